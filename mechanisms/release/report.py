"""A release as one HTML page that opens offline: no scripts, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from mechanisms.release.evaluation import marginal_errors, train_and_test
from mechanisms.release.html import overview
from pgmkit.html import bars as chart
from pgmkit.html import graph, table
from pgmkit.model import GraphicalModel

if TYPE_CHECKING:
    from mechanisms.release.tabular import TableRelease
    from pgmkit.dataset import Dataset
    from pgmkit.uncertainty import Uncertainty

__all__ = ["Evaluation", "html"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2733; max-width: 66rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; margin: .6rem 0; } caption { text-align: left; color: #5a6775; }
th, td { padding: .15rem .8rem .15rem 0; text-align: left; border-bottom: 1px solid #e3e8ee; }
figure { display: inline-block; margin: .4rem 1.2rem .4rem 0; vertical-align: top; }
figcaption { font-weight: 600; }
.warn { background: #fdecea; border-left: 4px solid #c0392b; padding: .5rem 1rem; }
"""
_MOST_CHARTS = 40
_WORST = 10
_REPLICATES = 50


@dataclass(frozen=True)
class Evaluation:
    """Private data to compare with; the report is then not private.

    `target`: a column to predict; `test`: records to test on, a quarter of `truth` by default.
    """

    truth: Dataset
    target: str | None = None
    test: Dataset | None = None


def html(release: TableRelease, against: Evaluation | None = None) -> str:
    """The page's text.

    Error bars take some seconds of re-estimation, where the model is graphical.
    """
    graphical = isinstance(release.model, GraphicalModel)
    bars = release.bars(_REPLICATES, seed=0) if graphical else None
    sections = [
        *_released(release),
        *(_graph(release.model) if graphical else []),
        *_marginals(release, bars),
        *(_uncertain(release, bars) if bars is not None else []),
        *(_errors(release, against) if against is not None else []),
    ]
    title = f"Release of {release.mechanism}"
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<link rel='icon' href='data:,'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body><h1>{escape(title)}"
        "</h1>\n" + "\n".join(sections) + "\n</body></html>\n"
    )


def _released(release: TableRelease) -> Iterator[str]:
    constraints = "; ".join(map(repr, release.schema.constraints)) or "none"
    more = [
        *([["why this mechanism", release.reason]] if release.reason else []),
        ["columns", ", ".join(release.schema.columns)],
        ["constraints", constraints],
    ]
    yield "<h2>What was released</h2>"
    yield overview(release.release, more)


def _graph(model: GraphicalModel) -> Iterator[str]:
    yield "<h2>The model</h2>"
    yield (
        f"<p>{len(model.cliques)} cliques; columns are joined where the model holds them together. "
        "Others are independent given those between them.</p>"
    )
    yield graph(model.domain.attributes, model.cliques)


def _marginals(release: TableRelease, bars: Uncertainty | None) -> Iterator[str]:
    yield "<h2>Every column</h2>"
    shown = list(release.schema.columns)[:_MOST_CHARTS]
    note = "bars are expected counts" + (", whiskers 95% intervals" if bars is not None else "")
    left_out = len(release.schema.columns) - len(shown)
    yield f"<p>{note}{f'; {left_out} more columns are not drawn' if left_out else ''}</p>"
    counts = release.model.marginals([(name,) for name in shown])
    for name in shown:
        interval = None if bars is None else bars.marginal((name,))
        ends = None if interval is None else (interval.low, interval.high)
        yield chart(name, release.schema.columns[name].labels, counts[(name,)], ends)


def _uncertain(release: TableRelease, bars: Uncertainty) -> Iterator[str]:
    """The measured tables whose cells are least certain, relative to their counts."""
    found = []
    for clique in dict.fromkeys(m.clique for m in release.measurements if m.clique):
        interval = bars.marginal(clique)
        found.append((float(interval.stddev.sum() / max(1.0, interval.estimate.sum())), clique))
    found.sort(reverse=True)
    rows = [[" x ".join(clique), f"{share:.3f}"] for share, clique in found[:_WORST]]
    yield "<h2>Least certain tables</h2>"
    yield "<p>Standard errors of all cells together, as a share of the records.</p>"
    yield table(["columns", "share"], rows, numbers={1})


def _errors(release: TableRelease, against: Evaluation) -> Iterator[str]:
    yield "<h2>Against the private data</h2>"
    yield (
        "<p class='warn'>NOT PRIVATE: this part was computed from the private data without noise. "
        "Do not publish this page.</p>"
    )
    rows, worst = [], []
    for k in range(1, min(3, len(against.truth.domain)) + 1):
        errors = marginal_errors(release.model, against.truth, k)
        values = list(errors.values())
        rows.append([f"{k}-way", str(len(errors)), f"{np.mean(values):.4f}", f"{max(values):.4f}"])
        worst += [(value, clique) for clique, value in errors.items() if k <= 2]
    yield table(
        ["marginals", "number", "mean", "worst"],
        rows,
        numbers={1, 2, 3},
        caption="total variation distance",
    )
    worst.sort(reverse=True)
    yield table(
        ["worst of one and two columns", "distance"],
        [[" x ".join(clique), f"{value:.4f}"] for value, clique in worst[:_WORST]],
        numbers={1},
    )
    if against.target is not None:
        train, test = _split(against)
        synthetic = release.codes(len(train), rng=0)
        scores = train_and_test(synthetic, train, test, against.target)
        yield table(
            [f"predicting {against.target}", "macro F1"],
            [
                ["trained on synthetic records", f"{scores.synthetic:.3f}"],
                ["trained on real records", f"{scores.real:.3f}"],
                ["ratio", f"{scores.ratio:.3f}"],
            ],
            numbers={1},
            caption="logistic regression, tested on real records",
        )


def _split(against: Evaluation) -> tuple[Dataset, Dataset]:
    """Records to train and to test on: those given, or a quarter held out."""
    from pgmkit.dataset import Dataset

    truth = against.truth
    if against.test is not None:
        return truth, against.test
    held = np.random.default_rng(0).random(len(truth)) < 0.25
    parts = [
        Dataset(truth.domain, {name: codes[mask] for name, codes in truth.columns.items()})
        for mask in (~held, held)
    ]
    return parts[0], parts[1]
