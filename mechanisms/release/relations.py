"""The section of the report on relations: a map of all pairs of columns, and one column's
relations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from mechanisms.release.page import of_columns
from mechanisms.release.tabular import TableRelease
from mechanisms.release.verdict import MOST_CELLS, association
from pgmkit.errors import PgmkitError
from pgmkit.runtime.html import MOST_COLUMNS, escape, heat_map, table


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
