"""A release as one HTML page that opens offline: no scripts, nothing from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from mechanisms.release.evaluation import marginal_errors, some_cliques, train_and_test
from pgmkit.model import GraphicalModel

if TYPE_CHECKING:
    from mechanisms.privacy.budget import Ledger
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
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
figure { display: inline-block; margin: .4rem 1.2rem .4rem 0; vertical-align: top; }
figcaption { font-weight: 600; } .bar { fill: #4f81bd; } .whisker { stroke: #1c2733; }
.edge { stroke: #9fb3c8; } .node { fill: #4f81bd; } text { font: 12px system-ui, sans-serif; }
.warn { background: #fdecea; border-left: 4px solid #c0392b; padding: .5rem 1rem; }
"""
_MOST_BARS = 24
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
        *(_budget(release.ledger) if release.ledger is not None else []),
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
    if not release.secure:
        yield (
            "<p class='warn'>INSECURE: the noise came from a seeded generator. This release "
            "protects nobody; do not publish it.</p>"
        )
    if getattr(release.model, "poor_fit", False):
        yield (
            f"<p class='warn'>The model is {escape(release.fit)}. Its answers may be off by more "
            "than the noise explains.</p>"
        )
    yield "<h2>What was released</h2>"
    yield _table(
        ["", ""],
        [
            ["promise", _promise(release.ledger)],
            ["mechanism", f"{release.mechanism} {release.reason and f'({release.reason})'}"],
            ["columns", ", ".join(release.schema.columns)],
            ["records (estimated)", f"{release.model.total:,.0f}"],
            ["noisy tables", str(len(release.measurements))],
            *([["fit of the model to them", release.fit]] if release.fit else []),
            ["constraints", "; ".join(map(repr, release.schema.constraints)) or "none"],
        ],
    )


def _promise(ledger: Ledger | None) -> str:
    if ledger is None:
        return "that of whoever published the noisy tables"
    budget = ledger.budget
    promise = f"epsilon = {budget.epsilon:g}, delta = {budget.delta:g}"
    return f"{promise}, neighbours: {ledger.neighbours}"


def _budget(ledger: Ledger) -> Iterator[str]:
    groups: dict[tuple[str, str], list[float]] = {}
    for entry in ledger.entries:
        step = " ".join(word for word in entry.step.split() if not word.strip(":").isdigit())
        groups.setdefault((step, entry.mechanism), []).append(entry.cost)
    spent = 0.0
    rows = []
    for (step, law), costs in groups.items():
        spent += math.fsum(costs)
        share, epsilon = math.fsum(costs) / ledger.budget.total, ledger.budget.epsilon_spent(spent)
        rows.append([step, law, str(len(costs)), f"{share:.1%}", f"{epsilon:.4g}"])
    yield "<h2>The budget</h2>"
    yield _table(["step", "noise", "times", "share", "epsilon so far"], rows, numbers={2, 3, 4})


def _graph(model: GraphicalModel) -> Iterator[str]:
    """The model's columns on a circle, joined where they are in one clique."""
    names = model.domain.attributes
    edges = {pair for clique in model.cliques for pair in combinations(sorted(clique), 2)}
    width, size, radius = 760, 480, 190
    at = {
        name: (
            width / 2 + radius * math.cos(2 * math.pi * i / len(names) - math.pi / 2),
            size / 2 + radius * math.sin(2 * math.pi * i / len(names) - math.pi / 2),
        )
        for i, name in enumerate(names)
    }
    parts = [
        f"<line class='edge' x1='{at[a][0]:.1f}' y1='{at[a][1]:.1f}' x2='{at[b][0]:.1f}' "
        f"y2='{at[b][1]:.1f}'/>"
        for a, b in sorted(edges)
    ]
    for name, (x, y) in at.items():
        anchor = "start" if x > width / 2 + 1 else "end" if x < width / 2 - 1 else "middle"
        dx, dy = (x - width / 2) * 0.06, (y - size / 2) * 0.06 + 4
        parts.append(f"<circle class='node' cx='{x:.1f}' cy='{y:.1f}' r='5'/>")
        parts.append(
            f"<text x='{x + dx:.1f}' y='{y + dy:.1f}' text-anchor='{anchor}'>{escape(name)}</text>"
        )
    yield "<h2>The model</h2>"
    yield (
        f"<p>{len(model.cliques)} cliques; columns are joined where the model holds them together. "
        "Others are independent given those between them.</p>"
    )
    yield f"<svg width='{width}' height='{size}' role='img'>{''.join(parts)}</svg>"


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
        yield _bars(name, release.schema.columns[name].labels, counts[(name,)], ends)


def _bars(
    name: str,
    labels: Sequence[str],
    counts: np.ndarray[Any, Any],
    ends: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None,
) -> str:
    """A chart of horizontal bars; of many values the most frequent."""
    order = list(range(len(labels)))
    if len(order) > _MOST_BARS:
        order = sorted(np.argsort(-counts)[:_MOST_BARS].tolist())
    highest = max(1.0, *(float((counts if ends is None else ends[1])[i]) for i in order))
    scale, left, step = 190 / highest, 130, 17
    parts = []
    for line, i in enumerate(order):
        y = 4 + line * step
        label = labels[i] if len(labels[i]) <= 18 else labels[i][:17] + "…"
        parts.append(f"<text x='{left - 6}' y='{y + 10}' text-anchor='end'>{escape(label)}</text>")
        width = max(0.0, float(counts[i])) * scale
        parts.append(
            f"<rect class='bar' x='{left}' y='{y}' width='{width:.1f}' height='12'>"
            f"<title>{escape(labels[i])}: {counts[i]:,.0f}</title></rect>"
        )
        if ends is not None:
            low, high = (left + max(0.0, float(end[i])) * scale for end in ends)
            parts.append(
                f"<line class='whisker' x1='{low:.1f}' x2='{high:.1f}' y1='{y + 6}' y2='{y + 6}'/>"
            )
    more = len(labels) - len(order)
    caption = escape(name) + (f" ({more} rarer values not drawn)" if more else "")
    return (
        f"<figure><figcaption>{caption}</figcaption><svg width='340' "
        f"height='{10 + step * len(order)}' role='img'>{''.join(parts)}</svg></figure>"
    )


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
    yield _table(["columns", "share"], rows, numbers={1})


def _errors(release: TableRelease, against: Evaluation) -> Iterator[str]:
    yield "<h2>Against the private data</h2>"
    yield (
        "<p class='warn'>NOT PRIVATE: this part was computed from the private data without noise. "
        "Do not publish this page.</p>"
    )
    rows, worst = [], []
    for k in range(1, min(3, len(against.truth.domain)) + 1):
        errors = marginal_errors(
            release.model, against.truth, some_cliques(against.truth.domain, k)
        )
        values = list(errors.values())
        rows.append([f"{k}-way", str(len(errors)), f"{np.mean(values):.4f}", f"{max(values):.4f}"])
        worst += [(value, clique) for clique, value in errors.items() if k <= 2]
    yield _table(
        ["marginals", "number", "mean", "worst"],
        rows,
        numbers={1, 2, 3},
        caption="total variation distance",
    )
    worst.sort(reverse=True)
    yield _table(
        ["worst of one and two columns", "distance"],
        [[" x ".join(clique), f"{value:.4f}"] for value, clique in worst[:_WORST]],
        numbers={1},
    )
    if against.target is not None:
        train, test = _split(against)
        synthetic = release.codes(len(train), seed=0)
        scores = train_and_test(synthetic, train, test, against.target)
        yield _table(
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


def _table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: set[int] | None = None,
    caption: str = "",
) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if i in (numbers or set()) else ''}>{escape(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )

    top = f"<caption>{escape(caption)}</caption>" if caption else ""
    head = f"<tr>{line(header, 'th')}</tr>" if any(header) else ""
    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table>{top}{head}{body}</table>"
