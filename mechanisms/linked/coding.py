"""Linked data frames as coded tables in which one unit changes a bounded number of rows.

A unit is a row of the topmost table with all its descendants. The treatment of one unit's rows
depends on that unit alone: which row represents a parent that occurs twice, which children are
kept, and their order. Neighbouring data, which differ in one unit, therefore give coded tables that
differ in one row of the topmost table, in at most `most` rows of each table of its children, and in
at most the product of `most` along the path of links in a table further below.

Keys must identify rows, as primary keys do: no two units have rows with the same key. This is not
checked, since the result of a check would depend on the data and be seen. If two customers both had
an order with the number 7, the items of order 7 would all go to one of these customers, so the rows
of one customer would depend on those of the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.linked.link import Link, counted, linking
from mechanisms.linked.siblings import Children, Codes
from mechanisms.privacy.units import bounded, random_keys
from mechanisms.synthesis.units import held_columns, unit_numbers
from pgmkit import Domain, Schema
from pgmkit.errors import naming, unquoted
from pgmkit.records.dataset import Counts, Dataset, NoRows
from pgmkit.tables.values import distinct, is_null, number_of, series_values, text_of

_KEY = "which a link needs (a key that the parents name otherwise is the link's `parent_key`)"


@unquoted
def coded(
    frames: Mapping[str, Any],
    schemas: Mapping[str, Schema],
    links: Sequence[Link],
    steps: Mapping[str, Schema],
    rng: np.random.Generator | None,
) -> dict[str, Counts]:
    """Return the coded rows of all tables by name, which are private: first those of the topmost
    one with their numbers of children, then those of the others with the columns of their parent,
    their position and the columns of their previous sibling too.

    `steps`: by the name of each table of children, the schema of `Link.steps`. Rows of the topmost
    table without a key, and children without a parent in the data, are left out; of several rows of
    the topmost table with the same key one is kept at random, and of the children of one parent at
    most `Link.most`. Randomness is the operating system's, or `rng`'s, which is INSECURE.

    Raises InvalidInput for anything but a data frame, and for a frame that lacks a column of its
    schema, or the key or order of its link.
    """
    held: dict[str, Any] = {}
    for name, further in linking(links).items():
        with naming(f"table {name!r}"):
            held[name] = held_columns(frames[name], schemas[name], further, "it has", _KEY)
    top = links[0].parent
    (units,) = unit_numbers([series_values(held[top][links[0].parent_key], "UTC")])
    kept = {top: bounded(units, 1, random_keys(len(units), rng))[0]}
    counts: dict[str, dict[str, Codes]] = {name: {} for name in held}
    for link in links:
        owners = _owners(held, link, kept[link.parent], rng)
        kept[link.child] = _sorted(held[link.child], link, owners, rng)
        numbers = np.bincount(owners[kept[link.child]], minlength=len(kept[link.parent]))
        counts[link.parent][link.count] = numbers
    read = {name: _read(held[name], schemas[name], rows) for name, rows in kept.items()}
    records = {name: codes | counts[name] for name, (codes, _) in read.items()}
    found = {top: _counts(counted(schemas, links)[top].domain, records[top], read[top][1])}
    for link in links:
        domain, parents = steps[link.child].domain, records[link.parent]
        children = Children(domain, parents[link.count], parents, records[link.child])
        columns = {name: children.column(name) for name in domain}
        found[link.child] = _counts(domain, columns, read[link.child][1])
    return found


def _owners(
    held: Mapping[str, Any], link: Link, parents: NDArray[np.intp], rng: np.random.Generator | None
) -> NDArray[np.intp]:
    """Return, for each row of the link's children, the place of its parent in the array `parents`,
    or -1 if it has none there. Of several parents with the same key one is drawn at random.

    `held`: the data frame of each table. `parents`: the numbers of the kept rows of the parents'
    table.
    """
    keys = [(held[link.parent], link.parent_key), (held[link.child], link.key)]
    theirs, own = unit_numbers([series_values(frame[column], "UTC") for frame, column in keys])
    theirs = theirs[parents]
    chosen, _ = bounded(theirs, 1, random_keys(len(theirs), rng))
    # The last entry is for the number -1, which rows without a key have.
    place = np.full(2 + max(int(n.max(initial=-1)) for n in (theirs, own)), -1, dtype=np.intp)
    place[theirs[chosen]] = chosen
    return place[own]


def _read(
    held: Any, schema: Schema, rows: NDArray[np.intp]
) -> tuple[dict[str, Codes], dict[str, int]]:
    """Return the codes of these rows of a table by column, and for each column the number of values
    in these rows that could not be read.
    """
    codes: dict[str, Codes] = {}
    unread: dict[str, int] = {}
    for name, column in schema.columns.items():
        found, without = column.read(held[name])
        codes[name], unread[name] = found[rows], int(without[rows].sum())
    return codes, unread


def _sorted(
    held: Any, link: Link, owners: NDArray[np.intp], rng: np.random.Generator | None
) -> NDArray[np.intp]:
    """Keep at most `link.most` children of each parent, drawn at random, and return their places in
    the children's table: parent by parent, and siblings in the link's order, or in random order if
    it has none. `owners`: for each row of the children's table the place of its parent, or a number
    below 0 if it has none.
    """
    keys = random_keys(len(owners), rng)
    places, _ = bounded(owners, link.most, keys)
    ranks = (
        np.zeros_like(owners) if link.order is None else ranks_of(series_values(held[link.order]))
    )
    return places[np.lexsort((keys[places], ranks[places], owners[places]))]


def ranks_of(values: Any) -> NDArray[np.intp]:
    """Return the rank of each value: finite numbers and durations (in seconds) by size, then texts
    in their order, among them infinities, then missing values.

    The comparison of two values depends on these two alone, so no row decides how other rows are
    ordered. Different spellings of one number have the same rank; siblings with equal ranks are in
    random order.
    """
    found, places = distinct(values)
    order = [_place_of(value) for value in found]
    rank = {place: i for i, place in enumerate(sorted(set(order)))}
    return np.array([rank[place] for place in order], dtype=np.intp)[places]


def _place_of(value: Any) -> tuple[int, float, str]:
    if is_null(value):
        return 2, 0.0, ""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    # Years and months of numpy are no number of seconds, so they are ordered as texts.
    with suppress(ValueError, TypeError):
        if isinstance(value, np.timedelta64):
            value = value / np.timedelta64(1, "s")
        if abs(number := number_of(value)) < math.inf:
            return 0, number, ""
    return 1, 0.0, text_of(value)


def _counts(domain: Domain, columns: Mapping[str, Codes], unread: Mapping[str, int]) -> Counts:
    """Return the data set of these codes, or `NoRows` if the columns are empty.

    `unread`: the numbers of values that could not be read; columns that are not listed, such as
    those of a child's parent, have none.
    """
    if not len(next(iter(columns.values()))):
        return NoRows(domain)
    lost = {name: unread.get(name, 0) for name in domain}
    return Dataset(domain, {name: columns[name] for name in domain}, unread=lost)
