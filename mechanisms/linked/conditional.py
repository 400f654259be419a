"""Linked records whose rows of the topmost table meet conditions, with all their descendants.

Conditions on the topmost table, such as its numbers of children, are met by drawing its rows from
the conditional model. The children are a random field (`mechanisms.linked.siblings`) whose
potentials are fitted to tables over the children of all parents. So the children of the rows that
are asked for are drawn together with those of a whole population, and the latter alone count in the
fit. The former then have the distribution of the children of such parents in a draw without
conditions.

Conditions on a table of children, such as "a person below 2", are met by rejection: a row of the
topmost table is kept if at least one of its descendants in that table meets them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from mechanisms.linked.link import Link
from mechanisms.linked.siblings import Codes
from mechanisms.release.tabular import TableRelease, rows_asked
from pgmkit.errors import InvalidInput, check_known, naming
from pgmkit.runtime.arguments import mapped
from pgmkit.runtime.iterations import FEW_ROUNDS
from pgmkit.tables.constraints import Condition, Mask
from pgmkit.tables.question_grammar import conditions
from pgmkit.tables.schema import Schema

Given: TypeAlias = "Mapping[str, Mapping[str, Condition] | str]"
"""Conditions on the rows of each table, by its name."""

Rows: TypeAlias = "dict[str, Mapping[str, Codes]]"
"""The codes of each table by column, one for each row. Children are in the order of their parents,
and the parents' column `Link.count` has their numbers.
"""


def allowed_codes(schemas: Mapping[str, Schema], given: Given) -> dict[str, dict[str, Mask]]:
    """Return, for each table and column with conditions, a Boolean for each code: True if the code
    meets them. Tables without conditions are left out.

    `schemas`: the own columns of each table. Raises InvalidInput for unknown tables and columns,
    for values that a column does not have, and for conditions that are neither a mapping nor text.
    """
    found = {}
    for table, own in mapped(given, "given", 'tables to conditions ({"home": "size = 3"})').items():
        check_known([table], schemas, "given: the release has no table", "its tables are")
        with naming(f"table {table!r}"):
            if not isinstance(own, str):
                mapped(own, "the conditions", "columns to values")
            found[table] = conditions(schemas[table], own)
    return {table: masks for table, masks in found.items() if masks}


def draw_given(
    links: Sequence[Link],
    parents: TableRelease,
    given: Given,
    allowed: Mapping[str, Mapping[str, Mask]],
    n: int | None,
    below: Callable[[Mapping[str, Codes], int], Rows],
    rng: np.random.Generator,
) -> Rows:
    """Draw `n` rows of the topmost table that meet the conditions, with all their descendants, and
    return the codes of all tables.

    If `n` is None, the number of drawn rows is the number of the topmost model's rows that meet the
    conditions on the topmost table; of these, the rows that meet the conditions on children too are
    returned.

    Raises InvalidInput if the model has no rows of the topmost table that meet the conditions. With
    conditions on children, every draw has `n` rows, or a whole population if that is more;
    InvalidInput is raised if fewer than a tenth of `n` (none, if `n` is None) of the rows of the
    first draw meet the conditions.

    Args:
        links: The links, from the topmost table down.
        parents: The release of the topmost table.
        given: The conditions; `allowed` has the codes that meet them (`allowed_codes`).
        n: The number of rows of the topmost table.
        below: A function of the codes of the topmost table and of a number m: it returns the codes
            of all tables. The first m rows of the topmost table stand for the population.
        rng: The generator.
    """
    top = links[0].parent
    of_children = allowed.keys() - {top}
    batch = None if n is None else rows_asked(parents.model, n)
    if batch is not None and of_children:
        batch = max(batch, rows_asked(parents.model, None))
    known = [parents.codes(rng=rng).columns] if top in allowed else []
    found, kept = list[Rows](), 0
    while not found or kept < (n or 0):
        asked = parents.codes(batch, given=given.get(top), rng=rng)
        fitted = len(next(iter(known[0].values()))) if known else len(asked)
        rows = below(_joined([*known, asked.columns]), fitted)
        keep = _meeting(links, rows, {table: allowed[table] for table in of_children})
        if known:
            keep[:fitted] = False
        kept += int(keep.sum())
        if kept * FEW_ROUNDS < (n or 1):
            raise InvalidInput(
                f"{kept} of {len(asked)} rows of {top!r} have rows of {sorted(of_children)} that "
                f"meet the conditions, which are too few{'' if n is None else f' for n = {n}'}; "
                + (f"ask for at most {kept * FEW_ROUNDS}, or " if kept else "")
                + "leave out a condition"
            )
        found.append(_descending(links, rows, keep))
    rows = {table: _joined([each[table] for each in found]) for table in found[0]}
    return rows if n is None else _descending(links, rows, np.arange(kept) < n)


def _joined(parts: Sequence[Mapping[str, Codes]]) -> dict[str, Codes]:
    """Return one table with the rows of all parts, in the order of the parts."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _owners(link: Link, rows: Rows) -> Codes:
    """Return, for each row of the link's table of children, the place of its parent among the rows
    of the parents' table.
    """
    counts = rows[link.parent][link.count].astype(np.int64)
    return np.repeat(np.arange(len(counts)), counts)


def _meeting(links: Sequence[Link], rows: Rows, allowed: Mapping[str, Mapping[str, Mask]]) -> Mask:
    """Return a Boolean for each row of the topmost table: True if the row has an allowed descendant
    in each table of `allowed`. A row is allowed if the masks of its table are True at its codes.
    """
    top = links[0].parent
    count = len(next(iter(rows[top].values())))
    roots, keep = {top: np.arange(count)}, np.ones(count, dtype=bool)
    for link in links:
        roots[link.child] = roots[link.parent][_owners(link, rows)]
        if link.child in allowed:
            masks = allowed[link.child].items()
            met = np.logical_and.reduce([mask[rows[link.child][name]] for name, mask in masks])
            keep &= np.bincount(roots[link.child][met], minlength=count) > 0
    return keep


def _descending(links: Sequence[Link], rows: Rows, keep: Mask) -> Rows:
    """Return the codes of all tables for the rows of the topmost table where `keep` is True, and
    for all their descendants.
    """
    kept = {links[0].parent: keep}
    for link in links:
        kept[link.child] = kept[link.parent][_owners(link, rows)]
    return {
        table: {name: codes[kept[table]] for name, codes in columns.items()}
        for table, columns in rows.items()
    }
