"""A release as one HTML page, which opens offline since it loads nothing from elsewhere."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import combinations
from typing import Any

import numpy as np

from mechanisms.privacy.ledger import Ledger
from mechanisms.privacy.ledger_view import as_html
from mechanisms.privacy.neighbours import rows_public
from mechanisms.registry import MECHANISMS
from mechanisms.release.page import of_columns, origin, page, promise, result_rows, warnings
from mechanisms.release.quick_bars import REPLICATES, gaussian_level
from mechanisms.release.report_against import DRAWN, NOT_PRIVATE, Evaluation, sections, separate
from mechanisms.release.tabular import TableRelease
from mechanisms.release.verdict import MOST_CELLS, association
from pgmkit import Column, FactoredQuery, GraphicalModel, Interval, RegionModel
from pgmkit.errors import NotMeasured, PgmkitError, TooSlow, check_known
from pgmkit.runtime.html import MOST_BARS, MOST_COLUMNS, escape, graph, heat_map, table
from pgmkit.runtime.html import bars as bar_chart
from pgmkit.runtime.printed import NAMED, exactly
from pgmkit.runtime.progress import bar
from pgmkit.runtime.sizes import UNASKED_SECONDS
from pgmkit.runtime.typed import typed
from pgmkit.tables.bins import Binned
from pgmkit.tables.question_plan import Bars

__all__ = ["Evaluation", "html"]

_HOW_TO_READ = (
    "Counts, shares and charts are estimates: a difference smaller than its interval is noise. "
    "Columns that were measured together keep the relation they have in the data as far as it "
    "stands out from noise; others are related only through the columns between them, so that a "
    "finding about such a pair is about the model. Records drawn from the model are nobody's: use "
    "them in tables and regressions, and read nothing into a single one.</p>"
)
_UNPROTECTED = (
    "Not protected are facts about the population that hold for its members whether or not they "
    "are in the data, and the schema, the workload and the settings, which are public."
)
_BAR_SECONDS = 20 * UNASKED_SECONDS
"""The most seconds of re-estimation for the columns whose error bars have no closed form."""


@typed
def html(
    release: TableRelease,
    against: Evaluation | None = None,
    *,
    name: str = "",
    schema_file: str = "",
    target: str | None = None,
    progress: bool = False,
) -> str:
    """Return the report on a release as the text of an HTML page.

    `name` and `schema_file`: the name of the data and of the schema's file, for the heading.
    `target`: a column whose relations to the others are listed. `against`: private data to compare
    with; further sections then follow, each of which takes bounded time. `progress`: whether to
    show progress bars on a terminal.

    Raises InvalidInput for an unknown target. Error bars take up to 20 seconds of re-estimation if
    the model is graphical or a region model, and those that would take longer are left out. Other
    models have error bars only within measured tables.
    """
    asked = [] if target is None else [target]
    check_known(asked, release.schema.columns, "there is no column", "columns are")
    bars = release.bars(2 * REPLICATES, seed=0, progress=progress, max_seconds=_BAR_SECONDS)
    planned = {"release": _released(release)}
    if release.ledger is not None:
        planned["budget"] = _budget(release.ledger, release.model.domain)
    if isinstance(release.model, GraphicalModel):
        planned["model"] = _structure(release.model)
    planned["relations"] = relations(release, target)
    planned["columns"] = _marginals(release, bars)
    planned["uncertainty"] = _uncertain(release, bars)
    if against is not None:
        planned |= sections(release, against)
    parts = [origin(schema_file)]
    parts += [] if against is None else [f"<p class='warn'>{NOT_PRIVATE}</p>"]
    with bar(planned.items(), desc="report", disable=None if progress else True) as steps:
        for step, section in steps:
            steps.set_postfix_str(step)
            parts += section
    kind = "Model of noisy tables" if release.ledger is None else f"Release of {release.mechanism}"
    return page(f"{kind}: {name}" if name else kind, parts)


def _released(release: TableRelease) -> Iterator[str]:
    yield from warnings(release)
    shared = "All numbers here come from noisy tables alone, not from records. "
    if release.secure and release.ledger is not None:
        shared = (
            "These sections may be shared: they were computed from noisy values, and the promise "
            "below holds whatever is done with them. "
        )
    if release.exact:
        shared = f"These sections were computed from noisy values, but {release.exception}. "
    yield "<div class='box'><h2>In short</h2><ul>"
    yield from (f"<li>{escape(each)}</li>" for each in release.verdict.sentences)
    yield "</ul></div>"
    yield f"<p>{shared}{_HOW_TO_READ}"
    names = release.schema.columns
    yield "<h2>What was released</h2>"
    yield table(
        ["", ""],
        [
            ["promise", promise(release)],
            ["columns", ", ".join(names) if len(names) <= NAMED else f"{len(names)}, each below"],
            *result_rows(release),
            ["constraints", "; ".join(map(str, release.schema.constraints)) or "none"],
        ],
    )
    yield from methods(f"{len(names)} column{'s' * (len(names) != 1)}", [release])


def methods(what: str, releases: Sequence[TableRelease]) -> Iterator[str]:
    """Yield the section of a report that has a paragraph for the methods section of a paper.

    `what`: what the synthetic data are of, such as "3 columns". `releases`: one release, or those
    of linked tables, which have one promise together; there must be at least one.
    """
    yield "<h2>For a methods section</h2>"
    yield f"<blockquote class='box'><p>{escape(_paragraph(what, releases))}</p></blockquote>"


def _paragraph(what: str, releases: Sequence[TableRelease]) -> str:
    """Return the paragraph of `methods`: mechanisms, promise and its accounting (or, if a release
    is not secure, that none is promised), number of noisy tables, exact tables if there are any,
    what is not protected, and the references if there are any. Without a ledger it says only how
    many noisy tables, published by others, and how many exact ones the model was estimated from.
    """
    ledger, tool = releases[0].ledger, f"pgmkit {releases[0].made_by}".rstrip()
    exact = sum(each.exact for each in releases)
    noisy = sum(len(each.measurements) for each in releases) - exact
    if ledger is None:
        tables = f"{noisy} noisy{f' and {exact} exact' * (exact > 0)} table"
        return (
            f"A model of {what} was estimated from {tables}{'s' * (noisy + exact != 1)} with "
            f"{tool}. Their privacy is that of whoever published them."
        )
    run = {each.mechanism: MECHANISMS.get(each.mechanism) for each in releases}
    cited = dict.fromkeys(_cited(entry.module) for entry in run.values() if entry is not None)
    how = [
        f"{name} of {tool}" + ("" if entry is None else f" ({entry.summary.partition(';')[0]})")
        for name, entry in run.items()
    ]
    unsafe = [" ".join(each.caution.splitlines()) for each in releases if not each.secure]
    kept = f"No privacy is promised: {unsafe[0]}." if unsafe else _promised(ledger)
    said = [
        f"Synthetic data of {what} were made with the mechanism {' and '.join(how)}. {kept}",
        f"{noisy} noisy table{'s were' if noisy != 1 else ' was'} measured, and all else was "
        f"computed from {'them' if noisy != 1 else 'it'}.",
    ]
    beside = dict.fromkeys(each.exception for each in releases if each.exact)
    said += [f"The model also holds tables that are exact: {each}." for each in beside]
    return " ".join([*said, _UNPROTECTED, *(f"Reference: {each}" for each in cited if each)])


def _promised(ledger: Ledger) -> str:
    budget = ledger.budget
    kind = "pure" if budget.pure else "Gaussian" if budget.gaussian else "zero-concentrated"
    delta = "" if budget.pure else f", {exactly(budget.delta)}"
    composed = " by basic composition" if budget.pure else ""
    public = ", which leaves the number of rows public" if rows_public(ledger.neighbours) else ""
    return (
        f"They satisfy ({exactly(budget.epsilon)}{delta})-differential privacy under the neighbour "
        f"relation {ledger.neighbours}{public}, accounted for by {kind} differential "
        f"privacy{composed}."
    )


def _cited(module: str) -> str:
    """Return the paper that the second paragraph of a mechanism's module docstring begins with, or
    "".
    """
    try:
        said = inspect.getdoc(import_module(module)) or ""
    except ImportError:  # its package is no longer installed
        return ""
    second = [" ".join(part.split()) for part in said.split("\n\n")][1:2]
    paper, year, _ = second[0].partition(")") if second else ("", "", "")
    return f"{paper})." if year and '"' in paper else ""


def _structure(model: GraphicalModel) -> Iterator[str]:
    if max(map(len, model.cliques), default=0) < 2:
        return  # no columns were measured together, as the first lines say
    yield "<h2>The model</h2>"
    yield (
        f"<p>Lines join columns that the model holds together, in {len(model.cliques)} groups "
        "(cliques). Others are related only through the columns between them.</p>"
    )
    yield of_columns(graph(model.domain.attributes, model.cliques), len(model.domain))


def _budget(ledger: Ledger, names: Iterable[str]) -> Iterator[str]:
    """Yield the charges grouped by kind of step, and below them the folded list of all charges."""
    yield "<h2>The budget</h2>"
    yield as_html(ledger.budget, ledger.entries, ledger.secure, names)
    yield f"<details><summary>All {len(ledger.entries)} charges, in order</summary>"
    lines = "\n".join(map(escape, str(ledger).splitlines()))
    yield f"<pre>{lines}</pre></details>"


def relations(release: TableRelease, target: str | None = None) -> Iterator[str]:
    """Yield the section with Cramér's V of all pairs of columns, or a line that says why they are
    not drawn; with a target, also a list of its relations, the strongest first, unless its tables
    are too large or not in the model. Yield nothing for fewer than two columns.
    """
    names = list(release.schema.columns)
    if len(names) < 2:
        return
    yield "<h2>Relations between columns</h2>"
    if target is not None:
        yield from _of_target(release, names, target)
    strengths = _strengths(release, list(combinations(names, 2)))
    if len(names) > MOST_COLUMNS or strengths is None:
        yield "<p>There are too many columns or values to draw all pairs.</p>"
        return
    # The map shows two digits after the point, so a strength below 0.005 is shown as 0.
    if not release.verdict.kept and not any(round(v, 2) for v in strengths.values()):
        yield "<p>None: the columns of this release are unrelated to each other.</p>"
        return
    yield (
        "<p>In the release, from 0 (white: unrelated) to 1 (one column tells the other), by "
        "Cramér's V; framed pairs were measured together, and all others follow from the model. "
        "Pairs of which sampling and noise may explain all are white.</p>"
    )
    yield of_columns(heat_map(names, strengths, release.verdict.kept), len(names))


def _of_target(release: TableRelease, names: Sequence[str], target: str) -> Iterator[str]:
    found = _strengths(release, [(name, target) for name in names if name != target])
    if found is None:
        return
    order = sorted(found, key=lambda pair: -found[pair])
    rows = [[name, f"{found[name, other]:.2f}"] for name, other in order]
    yield f"<h3>{escape(target)} and the other columns</h3>"
    yield table(["column", "Cramér's V"], rows, numbers={1})


def _strengths(
    release: TableRelease, pairs: Sequence[tuple[str, str]]
) -> Mapping[tuple[str, str], float] | None:
    """Return Cramér's V of each pair, 0 if sampling and noise may explain it (`Verdict.hidden`);
    None if there are too many cells or the model lacks these tables.
    """
    if sum(map(release.model.domain.size, pairs)) > 4 * MOST_CELLS:  # some seconds of work
        return None
    try:
        tables = release.model.marginals(pairs)
    except PgmkitError:
        return None
    hidden = set(map(frozenset, release.verdict.hidden))
    return {p: 0.0 if frozenset(p) in hidden else association(tables[p]) for p in pairs}


def _marginals(release: TableRelease, bars: Bars) -> Iterator[str]:
    """Yield foldable charts of the schema's first `DRAWN` columns, in its order, with a search
    field for their names. A release of separate tables has charts of the columns in these alone.
    """
    yield "<h2>Every column</h2>"
    columns = release.schema.columns
    tables = separate(release) or [tuple(columns)]
    shown = [name for name in columns if any(name in each for each in tables)][:DRAWN]
    counts = release.model.marginals([(name,) for name in shown])
    grouped = {name: _grouped(columns[name]) for name in shown}
    level = gaussian_level(release.release, 0.95)
    held = {name: _interval(bars, FactoredQuery({name: grouped[name][1]}), level) for name in shown}
    note = "Bars are expected counts, beside them counts and shares of all records"
    if any(each is not None for each in held.values()):
        note += "; whiskers are 95% intervals"
    if None in held.values() and isinstance(release.model, GraphicalModel | RegionModel):
        note += f" (where they take less than {_BAR_SECONDS:g} s)"
    left_out = len(columns) - len(shown)
    yield f"<p>{note}.{f' {left_out} more columns are not drawn.' if left_out else ''}</p>"
    yield (
        "<p><input type='search' id='find' placeholder='Find a column' aria-label='Find a column'>"
        "</p>"
    )
    opened = " open" if len(shown) <= NAMED else ""  # with more columns, all are folded
    yield "<div class='columns'>"
    for name in shown:
        interval = held[name]
        ends = None if interval is None else (interval.low, interval.high)
        labels, sums = grouped[name]
        values = f"{columns[name].size} value{'s' if columns[name].size > 1 else ''}"
        yield (
            f"<details class='column' data-name='{escape(name)}'{opened}><summary>{escape(name)} "
            f"<span>{values}</span></summary>"
        )
        yield bar_chart(name, labels, sums @ counts[(name,)], ends, total=release.model.total)
        yield "</details>"
    yield "</div>"


def _grouped(column: Column) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Return the labels of a chart and the 0/1 matrix (labels, codes) of the codes that each stands
    for.

    If a column of bins has more than `MOST_BARS` codes, neighbouring bins are joined; spikes,
    special values and missing ones stay separate.
    """
    each = np.eye(column.size)
    if not isinstance(column, Binned) or column.size <= MOST_BARS:
        return list(column.labels), each
    groups = column.neighbours(MOST_BARS)
    sums = np.stack([each[start:stop].sum(axis=0) for _, start, stop in groups])
    return [label for label, _, _ in groups], sums


def _interval(bars: Bars, query: FactoredQuery, level: float = 0.95) -> Interval | None:
    """Return the intervals of a query's answers; None if they take too long, or if the model has
    error bars within measured tables only and none of these holds the answers.
    """
    try:
        return bars.answer(query, level=level)
    except (TooSlow, NotMeasured):
        return None


def _uncertain(release: TableRelease, bars: Bars) -> Iterator[str]:
    """Yield the HTML of a section that lists the measured tables with the largest standard errors,
    summed over a table's cells and divided by the sum of its counts, or by 1 if that is more.
    Tables without error bars are left out; nothing is yielded if none has any.
    """
    found = []
    for clique in dict.fromkeys(m.clique for m in release.measurements if m.clique):
        interval = _interval(bars, FactoredQuery.marginal(release.model.domain, clique))
        if interval is not None:
            found.append((interval.stddev.sum() / max(1.0, interval.estimate.sum()), clique))
    if not found:
        return
    rows = [[" x ".join(each), f"{share:.3f}"] for share, each in sorted(found, reverse=True)]
    yield "<h2>Least certain tables</h2>"
    yield "<p>Standard errors of all cells together, as a share of the records.</p>"
    yield table(["columns", "share"], rows[:NAMED], numbers={1})
