"""Columns that the schema leaves open: their labels and edges are found with a part of the
budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import ROUND_DOWN, Context
from itertools import combinations
from typing import Any

import numpy as np

from mechanisms.privacy.curator import Curator
from mechanisms.queries.query_sets import query_rows
from mechanisms.workload import Workload
from pgmkit import Column, InvalidInput, Numeric, OpenCategorical, PgmkitError
from pgmkit.domain import Clique, Domain
from pgmkit.records.dataset import Counts, Dataset, NoRows
from pgmkit.tables.draft.thresholds import BINS
from pgmkit.tables.engines.frames import counts_of, names_of, tally_of
from pgmkit.tables.engines.pushdown import FrameCounts
from pgmkit.tables.schema import Schema

DISCOVERY_SHARE = 0.1
"""The share of the budget and of delta for finding the labels and edges that the schema leaves
open.
"""


class ColumnsFound(InvalidInput):
    """A run was refused after its open columns were found and paid for.

    `schema` is the schema with these columns, for another run with what is left of the budget: it
    is as public as a release. The message says how much is left.
    """

    schema: Schema


@contextmanager
def keeping(found: Schema, curator: Curator) -> Iterator[None]:
    """Raise ColumnsFound in place of a PgmkitError that ends the block, which runs after open
    columns were found. Some refusals depend on what is found, such as that of a domain that is too
    large.

    `found`: the schema with the columns that were found. `curator`: the Curator whose ledger tells
    what is left of the budget.
    """
    try:
        yield
    except PgmkitError as refusal:
        budget = curator.ledger.budget
        # What is stated must not be more than what is left.
        down = Context(prec=5, rounding=ROUND_DOWN)
        epsilon = down.create_decimal(budget.epsilon_spent(curator.ledger.remaining))
        delta = down.create_decimal(budget.delta - budget.reserved)
        error = ColumnsFound(
            f"the run was refused after its open columns were found: {refusal}. They are in the "
            f"error's `schema`; a run with it may spend epsilon={epsilon:g}, "
            f"delta={delta:g} and accounting={budget.accounting!r}, which is left of this budget"
        )
        error.schema = found
        raise error from refusal


def unlisted(schema: Schema) -> dict[str, OpenCategorical]:
    """Return the columns whose labels are still to be found."""
    return {n: c for n, c in schema.columns.items() if isinstance(c, OpenCategorical)}


def counted_roughly(data: Any, schema: Schema) -> Counts:
    """Return the records as they can be counted before open columns are found: by the other
    columns, and by fine bins of the numeric columns whose edges are to be found; if there are no
    columns of either kind, only their number is counted (`_rows_alone`). Raises InvalidInput for
    records that are coded already.
    """
    if isinstance(data, Dataset | FrameCounts):
        raise InvalidInput("open columns are found in data frames, not in coded records")
    schema.check_names(names_of(data))
    known = {n: column for n, column in schema.columns.items() if column.resolved}
    fine = _fine(schema)
    if known or fine:
        return counted(data, schema.with_columns({**known, **fine}), None)
    return _rows_alone(data, schema)


def resolved(
    data: Any, schema: Schema, curator: Curator, workload: Workload
) -> tuple[Schema, Curator]:
    """Return the schema with its open columns found, and a Curator over the records coded by it.
    Finding them takes a tenth of the remaining budget (`DISCOVERY_SHARE`) and, for labels, the
    reserved part of delta.

    `data`: the data frame. `curator`: that of its records as `counted_roughly` codes them.
    `workload`: the sets of columns that an engine counts first; the columns' sizes do not matter
    here.
    """
    categorical, fine = unlisted(schema), _fine(schema)
    tallies = {name: present_texts(data, schema, name) for name in categorical}
    share = DISCOVERY_SHARE * curator.remaining / len(schema.unresolved)
    found: dict[str, Any] = {}
    for name, column in _numeric(schema).items():
        queries = query_rows("hierarchy", fine[name].size)
        noisy = curator.measure_queries((name,), [queries], share, step="quantiles:")
        # Normal equations lose no digits that matter: the largest singular value of the matrix is
        # at most 45 times the smallest, for up to a thousand cells.
        matrix = np.asarray(noisy.matrix)
        cells = np.linalg.solve(matrix.T @ matrix, matrix.T @ noisy.values)
        found[name] = column.found(quantile_ends(fine[name], cells, column.bins or 1))
    for name, declared in categorical.items():
        delta = curator.ledger.budget.reserved / len(categorical)
        labels = curator.discover(tallies[name], share, delta, step=f"discover {name}")
        found[name] = declared.found([t for t in labels if t != declared.other])
    concrete = schema.resolve(found)
    return concrete, curator.recoded(counted(data, concrete, workload))


def _fine(schema: Schema) -> dict[str, Numeric]:
    """Return the columns of `_numeric`, each with 512 bins of equal width, whose ends are the edges
    that can be found.
    """
    return {name: column.grid(512) for name, column in _numeric(schema).items()}


def _numeric(schema: Schema) -> dict[str, Numeric]:
    """Return the numeric columns whose bins' edges are to be found in the data, by name."""
    return {n: c for n, c in schema.columns.items() if isinstance(c, Numeric) and c.quantiles}


def quantile_ends(fine: Numeric, cells: np.ndarray, bins: int) -> list[float]:
    """Return the inner edges of `bins` bins of about equal noisy counts or, if no cumulative count
    is above 0, all edges of bins of equal width. `cells`: the noisy counts of the bins of `fine`,
    followed by those of missing values, which are left out.
    """
    reached = np.maximum.accumulate(np.cumsum(cells[: len(fine.positions) - 1]))
    if reached[-1] <= 0:
        return np.linspace(fine.positions[0], fine.positions[-1], bins + 1).tolist()
    goals = reached[-1] * np.arange(1, bins) / bins
    return fine.positions[1 + np.searchsorted(reached, goals)].tolist()


def present_texts(data: Any, schema: Schema, name: str) -> dict[str, int]:
    """Return the number of rows of each text in the open column of this name.

    Raises InvalidInput if rows have no text and the column has no place for them.
    """
    column = unlisted(schema)[name]
    tally = tally_of(data, name, column)
    if column.missing is None:
        schema.check_unread({name: tally[None]})
    return {text: rows for text, rows in tally.items() if text is not None}


def _rows_alone(data: Any, schema: Schema) -> Counts:
    """Return the records as a column of one value. It serves where all columns are open with
    values that are not listed: until they are found, only the number of records is used.
    """
    rows = tally_of(data, schema.unresolved[0], OpenCategorical()).total()
    domain = Domain({"(rows)": 1})
    schema.check_rows(rows)
    return Dataset(domain, {"(rows)": np.zeros(rows, dtype=np.uint8)}) if rows else NoRows(domain)


def counted(data: Any, schema: Schema, workload: Workload | None) -> Counts:
    """Return the records of a data frame coded by the schema or, for a frame in an engine, as they
    are counted there; `data` itself if it is coded already.

    The first pass of an engine counts the marginals that a mechanism is likely to need for
    `workload`. Raises InvalidInput for coded records over another domain, and for those that break
    constraints unless the schema accepts any data (`Schema.placed`).
    """
    if not isinstance(data, Dataset | FrameCounts):
        return counts_of(data, schema, () if workload is None else _likely(workload))
    if data.domain != schema.domain:
        raise InvalidInput("the records are over another domain; code them by this schema")
    schema.check_constraints(data)
    return data


def _likely(workload: Workload) -> Iterator[Clique]:
    """Yield the pairs of columns in the workload's cliques, and then the cliques themselves; both
    in the order of their tables' sizes.
    """
    pairs = {pair for clique in workload.cliques for pair in combinations(sorted(clique), 2)}
    yield from sorted(pairs, key=lambda pair: (workload.domain.size(pair), pair))
    yield from sorted(workload.cliques, key=workload.domain.size)


def assumed(schema: Schema) -> Schema:
    """Return the schema with made-up labels and edges in place of those that are still to be found,
    for plans, and for checks before anything is spent. Raises InvalidInput for constraints on such
    columns.

    >>> assumed(Schema({"job": OpenCategorical()})).domain
    Domain({'job': 21})
    """
    for name in schema.unresolved:
        if any(name in constraint.columns for constraint in schema.constraints):
            raise InvalidInput(
                f"a constraint speaks of {name!r}, whose values are still to be found; list them, "
                "or take the constraint out"
            )
    labels = [f"value {i}" for i in range(BINS)]
    columns: dict[str, Column] = {n: c.found(labels) for n, c in unlisted(schema).items()}
    columns |= {n: c.grid(c.bins or 1) for n, c in _numeric(schema).items()}
    return schema.resolve(columns)
