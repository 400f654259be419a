"""A release as one HTML page that opens offline: no scripts, nothing from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mechanisms.release.html import fit_rows, promise
from mechanisms.release.report_against import Evaluation, Section, sections
from pgmkit.errors import NotMeasured, TooSlow
from pgmkit.model import GraphicalModel
from pgmkit.queries import FactoredQuery
from pgmkit.runtime.html import MOST_BARS, escape, graph, table
from pgmkit.runtime.html import bars as bar_chart
from pgmkit.tables.bins import Binned

if TYPE_CHECKING:
    from mechanisms.privacy.ledger import Ledger
    from mechanisms.release.tabular import TableRelease
    from pgmkit.tables.columns import Column
    from pgmkit.tables.questions import Bars
    from pgmkit.uncertainty import Interval

__all__ = ["Evaluation", "html"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --paper: #fff; --soft: #5a6775; --line: #e3e8ee;
  --bar: #4f81bd; --edge: #9fb3c8; --warn: #fdecea; }
@media (prefers-color-scheme: dark) { :root { --ink: #dde5ee; --paper: #14191f; --soft: #9aa8b6;
  --line: #2c3640; --bar: #6fa0dc; --edge: #55687c; --warn: #45201c; } }
@media print { :root { --ink: #000; --paper: #fff; --line: #ccc; }
  figure, tr { break-inside: avoid; } h2, h3 { break-after: avoid; } body { margin: 0; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 66rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
h3 { font-size: 1rem; margin-top: 1.6rem; }
table { border-collapse: collapse; margin: .6rem 0; } caption { text-align: left;
  color: var(--soft); }
th, td { padding: .15rem .8rem .15rem 0; text-align: left; border-bottom: 1px solid var(--line); }
figure { display: inline-block; margin: .4rem 1.2rem .4rem 0; vertical-align: top; }
figcaption { font-weight: 600; } svg { max-width: 100%; height: auto; } .bar { fill: var(--bar); }
.whisker { stroke: var(--ink); } .edge { stroke: var(--edge); } .node { fill: var(--bar); }
text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.warn { background: var(--warn); border-left: 4px solid #c0392b; padding: .5rem 1rem; }
summary { cursor: pointer; color: var(--soft); }
"""
_HOW_TO_READ = (
    "Counts, shares and charts are estimates: a difference smaller than its interval is noise. "
    "Columns that were measured together (joined in the model's drawing) keep the relation they "
    "have in the data; others are related only through the columns between them, so that a finding "
    "about such a pair is about the model. Records drawn from the model are nobody's: use them in "
    "tables and regressions, and read nothing into a single one.</p>"
)
_VERBS = ("discover", "draw", "measure", "select")
_MOST_CHARTS = 40
_WORST = 10
_REPLICATES = 50
_BAR_SECONDS = 20.0
"""Of re-estimation, for the columns whose error bars have no closed form."""


def html(
    release: TableRelease, against: Evaluation | None = None, *, progress: bool = False
) -> str:
    """The page's text.

    Error bars take up to 20 seconds of re-estimation, where the model is graphical; those that
    would take longer are left out, and of other models those beyond measured tables. With private
    data to compare with, more sections follow, each of bounded time. `progress`: bars on a
    terminal.
    """
    from tqdm import tqdm

    graphical = isinstance(release.model, GraphicalModel)
    bars = release.bars(_REPLICATES, seed=0, progress=progress, max_seconds=_BAR_SECONDS)
    planned: dict[str, Section] = {"release": lambda: _released(release)}
    if release.ledger is not None:
        ledger = release.ledger
        planned["budget"] = lambda: _budget(ledger)
    if graphical:
        planned["model"] = lambda: _structure(release.model)
    planned["columns"] = lambda: _marginals(release, bars)
    planned["uncertainty"] = lambda: _uncertain(release, bars)
    if against is not None:
        planned |= sections(release, against)
    parts: list[str] = []
    with tqdm(planned.items(), desc="report", disable=None if progress else True) as steps:
        for name, section in steps:
            steps.set_postfix_str(name)
            parts += section()
    title = "Model of noisy tables" if release.ledger is None else f"Release of {release.mechanism}"
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'><link rel='icon' href='data:,'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body><h1>{escape(title)}"
        "</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _released(release: TableRelease) -> Iterator[str]:
    for line in release.caution.splitlines():
        yield f"<p class='warn'>{escape(line)}</p>"
    if getattr(release.model, "poor_fit", False):
        yield (
            f"<p class='warn'>The model is {escape(release.certificate)}. Its answers may be "
            "off by more than the noise explains.</p>"
        )
    if release.contradiction:
        yield f"<p class='warn'>Careful: {escape(release.contradiction)}.</p>"
    shared = "All numbers here come from noisy tables alone, not from records. "
    if release.secure and release.ledger is not None:
        shared = (
            "These sections may be shared: they were computed from noisy values, and the promise "
            "below holds whatever is done with them. "
        )
    yield f"<p>{shared}{_HOW_TO_READ}"
    yield "<h2>What was released</h2>"
    yield table(
        ["", ""],
        [
            ["promise", promise(release.ledger)],
            ["mechanism", f"{release.mechanism} {release.reason and f'({release.reason})'}"],
            ["columns", ", ".join(release.schema.columns)],
            ["records (estimated)", f"{release.model.total:,.0f}"],
            ["noisy tables", str(len(release.measurements))],
            *fit_rows(release),
            ["constraints", "; ".join(map(repr, release.schema.constraints)) or "none"],
        ],
    )


def _structure(model: GraphicalModel) -> Iterator[str]:
    yield "<h2>The model</h2>"
    yield (
        f"<p>{len(model.cliques)} cliques; columns are joined where the model holds them together. "
        "Others are independent given those between them.</p>"
    )
    yield graph(model.domain.attributes, model.cliques)


def _share(part: float) -> str:
    """A part of the whole; one that is small is not none."""
    return "<0.1%" if 0 < part < 0.0005 else f"{part:.1%}"


def _budget(ledger: Ledger) -> Iterator[str]:
    """The charges by kind of step, and all of them folded away."""
    groups: dict[tuple[str, str], list[float]] = {}
    for entry in ledger.entries:
        groups.setdefault((_kind_of_step(entry.step), _law(entry.mechanism)), []).append(entry.cost)
    total = ledger.budget.total
    rows = [
        [step, law, str(len(costs)), _share(math.fsum(costs) / total)]
        for (step, law), costs in groups.items()
    ]
    yield "<h2>The budget</h2>"
    yield table(["step", "noise", "times", "share"], rows, numbers={2, 3})
    spent: list[float] = []
    every = []
    for entry in ledger.entries:
        spent.append(entry.cost)
        epsilon = ledger.budget.epsilon_spent(math.fsum(spent))
        every.append([entry.step, entry.mechanism, f"{entry.cost / total:.2%}", f"{epsilon:.4g}"])
    yield f"<details><summary>All {len(every)} charges, in order</summary>"
    yield table(["step", "noise", "share", "epsilon so far"], every, numbers={2, 3})
    yield "</details>"


def _kind_of_step(step: str) -> str:
    """Without rounds and columns: "round 3: select" is "round: select"."""
    numbered = any(word.endswith(":") and word[:-1].isdigit() for word in step.split())
    words = [word for word in step.split() if not word.strip(":").isdigit()]
    verb = next((i for i, word in enumerate(words) if word in _VERBS), len(words))
    kept = words[: verb + 1]
    return f"{kept[0]}: {' '.join(kept[1:])}" if numbered else " ".join(kept)


def _law(mechanism: str) -> str:
    return " ".join("n" if word.isdigit() else word for word in mechanism.split())


def _marginals(release: TableRelease, bars: Bars) -> Iterator[str]:
    """Charts of the columns, those first that are least like an even spread: they say most."""
    yield "<h2>Every column</h2>"
    columns = release.schema.columns
    counts = release.model.marginals([(name,) for name in columns])
    order = sorted(columns, key=lambda name: -_unevenness(counts[(name,)]))
    shown = order[:_MOST_CHARTS]
    grouped = {name: _grouped(columns[name]) for name in shown}
    intervals = {name: _interval(bars, FactoredQuery({name: grouped[name][1]})) for name in shown}
    note = "bars are expected counts"
    if any(each is not None for each in intervals.values()):
        note += ", whiskers 95% intervals"
    if None in intervals.values() and isinstance(release.model, GraphicalModel):
        note += f" (where they take less than {_BAR_SECONDS:g} s)"
    left_out = len(order) - len(shown)
    yield (
        f"<p>{note}; columns that are spread least evenly come first"
        f"{f'; {left_out} more columns are not drawn' if left_out else ''}</p>"
    )
    for name in shown:
        interval = intervals[name]
        ends = None if interval is None else (interval.low, interval.high)
        labels, sums = grouped[name]
        yield bar_chart(name, labels, sums @ counts[(name,)], ends)


def _grouped(column: Column) -> tuple[list[str], np.ndarray[Any, Any]]:
    """The labels of a chart and the sums of codes that they stand for, (labels, codes).

    Neighbouring bins of an ordered column are put together where there are more than a chart draws;
    spikes, special values and missing ones stay alone.
    """
    each = np.eye(column.size)
    if not isinstance(column, Binned) or column.size <= MOST_BARS:
        return list(column.labels), each
    groups = column.neighbours(MOST_BARS)
    sums = np.stack([each[start:stop].sum(axis=0) for _, start, stop in groups])
    return [label for label, _, _ in groups], sums


def _interval(bars: Bars, query: FactoredQuery) -> Interval | None:
    """None where error bars take too long, and where no measured table has them."""
    try:
        return bars.answer(query)
    except (TooSlow, NotMeasured):
        return None


def _unevenness(counts: np.ndarray[Any, Any]) -> float:
    """Total variation distance from equal counts, 0 to 1."""
    shares = np.maximum(counts, 0) / max(1e-300, float(np.maximum(counts, 0).sum()))
    return float(np.abs(shares - 1 / len(shares)).sum() / 2)


def _uncertain(release: TableRelease, bars: Bars) -> Iterator[str]:
    """The measured tables whose cells are least certain, relative to their counts."""
    found = []
    for clique in dict.fromkeys(m.clique for m in release.measurements if m.clique):
        interval = _interval(bars, FactoredQuery.marginal(release.model.domain, clique))
        if interval is None:
            continue
        found.append((float(interval.stddev.sum() / max(1.0, interval.estimate.sum())), clique))
    if not found:
        return
    found.sort(reverse=True)
    rows = [[" x ".join(clique), f"{share:.3f}"] for share, clique in found[:_WORST]]
    yield "<h2>Least certain tables</h2>"
    yield "<p>Standard errors of all cells together, as a share of the records.</p>"
    yield table(["columns", "share"], rows, numbers={1})
