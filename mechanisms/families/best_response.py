"""A list of records to which each round of DualQuery and FEM adds best responses: a best response
is the record that satisfies the largest weight of queries.

A best response is found exactly by enumeration for a small domain, and by max-product on the
junction tree of the queries' cliques if that is small; otherwise by an integer program (HiGHS
through scipy), up to its relative tolerance of 1e-4.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from mechanisms.families.histogram import HistogramModel, PublicSupport
from mechanisms.queries.cells import Cell
from pgmkit.domain import Clique, Domain
from pgmkit.errors import NumericalFailure
from pgmkit.graphs.junction_tree import model_cells
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.linear.axes import spread
from pgmkit.records.counting import codes_of
from pgmkit.records.dataset import Dataset
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import BLOCK_CELLS, TABLE_CELLS

Weighted = tuple[Cell, float]
"""A query and its weight, which may be negative."""
Codes = tuple[int, ...]
"""A record: the code of each attribute, in the domain's order."""

ENUMERABLE = BLOCK_CELLS
"""The size, in records, of the largest domain whose records are all scored: 8 MB of scores."""
TREE_CELLS = TABLE_CELLS
"""The most cells of a junction tree that max-product runs on: 32 MB of them."""


class Oracle:
    """A search for the record x that maximises sum_i w_i [x satisfies q_i] + sum_a bonus_a[x_a],
    where w_i is the weight of query q_i, and bonus_a has a number for each code of attribute a.

    >>> oracle = Oracle(Domain({"a": 2, "b": 2, "c": 3}))
    >>> oracle.best([(Cell(("a", "b"), 3), 1.0), (Cell(("b", "c"), 1), 0.4)], {})
    (1, 1, 0)
    """

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        # Many searches in a row have queries on the same cliques: the last inference is remembered.
        self._inference: dict[tuple[Clique, ...], MarginalOracle] = {}

    def best(self, queries: Sequence[Weighted], bonus: dict[str, Array]) -> Codes:
        """Return a record with the largest score; if it is found by an integer program (see the
        module's docstring), its score may be slightly lower. `bonus` has, for some attributes, the
        amount that each code adds to the score. Raises NumericalFailure if the integer program is
        not solved in a minute.
        """
        if self.domain.size() <= ENUMERABLE and len(self.domain) <= 64:  # the most axes of an array
            return self.by_enumeration(self.tables_of(queries, bonus))
        cliques = {(name,) for name in bonus} | {cell.clique for cell, _ in queries}
        if cliques and model_cells(self.domain, sorted(cliques)) <= TREE_CELLS:
            return self.by_max_product(self.tables_of(queries, bonus))
        return self.by_integer_program(queries, bonus)

    def tables_of(
        self, queries: Sequence[Weighted], bonus: dict[str, Array]
    ) -> dict[Clique, Array]:
        """Return for each clique a table with the sum of the weights of the queries on each cell;
        the bonuses of an attribute are added to its one-way table.
        """
        tables: dict[Clique, Array] = {(name,): own.copy() for name, own in bonus.items()}
        for cell, weight in queries:
            if cell.clique not in tables:
                tables[cell.clique] = np.zeros(self.domain.shape(cell.clique))
            tables[cell.clique].reshape(-1)[cell.index] += weight
        return tables

    def by_enumeration(self, tables: dict[Clique, Array]) -> Codes:
        """Return a record for which the sum of its cells' values in all tables is largest, found by
        scoring every record of the domain; of several the first in C order.
        """
        scores = np.zeros(self.domain.shape())
        for clique, table in tables.items():
            scores += spread(self.domain.attributes, clique, table)
        return tuple(map(int, np.unravel_index(int(np.argmax(scores)), scores.shape)))

    def by_max_product(self, tables: dict[Clique, Array]) -> Codes:
        """Return a record for which the sum of its cells' values in all tables is largest. `tables`
        are by clique; attributes in none of them get the code 0.
        """
        import torch

        cliques = tuple(tables)
        if cliques not in self._inference:
            self._inference = {cliques: MarginalOracle(self.domain, list(cliques))}
        inference = self._inference[cliques]
        flat = np.concatenate([table.reshape(-1) for table in tables.values()])
        with inference.session():
            best = inference.mode(torch.as_tensor(flat))
        return tuple(best.get(name, 0) for name in self.domain)

    def by_integer_program(self, queries: Sequence[Weighted], bonus: dict[str, Array]) -> Codes:
        """Return a record whose score is below the largest one by at most a ten-thousandth of the
        record's score. It is found by an integer program with a binary variable for each code, and
        a variable between 0 and 1 for each query.

        The variable of a query of positive weight is at most the variable of each of its codes; the
        variable of a query of negative weight is at least the sum of its codes' variables, minus
        their number, plus 1. Raises NumericalFailure if no optimum is found in a minute.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp

        ends = itertools.pairwise(itertools.accumulate(self.domain.shape(), initial=0))
        own = {name: range(*both) for name, both in zip(self.domain, ends, strict=True)}
        codes = sum(self.domain.shape())
        gain = np.zeros(codes + len(queries))
        for name, values in bonus.items():
            gain[own[name]] += values
        # A line has the coefficients of some variables, and the bounds of their sum.
        lines: list[tuple[dict[int, float], float, float]] = []
        for i, (cell, weight) in enumerate(queries, codes):
            gain[i] = weight
            at = np.unravel_index(cell.index, self.domain.shape(cell.clique))
            literals = [own[n][c] for n, c in zip(cell.clique, at, strict=True)]
            if weight > 0:
                lines += [({i: 1.0, literal: -1.0}, -np.inf, 0.0) for literal in literals]
            else:
                ones = dict.fromkeys(literals, 1.0)
                lines.append(({**ones, i: -1.0}, -np.inf, len(literals) - 1.0))
        lines += [(dict.fromkeys(places, 1.0), 1.0, 1.0) for places in own.values()]
        sums, lower, upper = zip(*lines, strict=True)
        columns, parts = np.array([entry for each in sums for entry in each.items()]).T
        starts = np.cumsum([0, *map(len, sums)])
        matrix = csr_array((parts, columns.astype(np.intp), starts), (len(lines), len(gain)))
        integral = np.array([1] * codes + [0] * len(queries))
        seconds = 60.0  # the most for one of the many programs of a run
        found = milp(
            -gain,
            integrality=integral,
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix, lower, upper),
            options={"time_limit": seconds},
        )
        if found.status != 0:
            raise NumericalFailure(
                f"the integer program of {len(queries)} queries was not solved in {seconds:g} s; "
                "ask for fewer samples a round"
            )
        return tuple(int(np.argmax(found.x[places])) for places in own.values())


@dataclass(frozen=True, eq=False)
class Records:
    """Records of equal weight that together stand for `total` rows. With no records, every marginal
    is uniform.

    >>> records = Records(Domain({"a": 2, "b": 3}), ((0, 2), (1, 2)), total=10)
    >>> records.marginals([("b",)])
    {('b',): array([ 0.,  0., 10.])}
    >>> Records(records.domain, (), 6).marginals([("b",)])
    {('b',): array([2., 2., 2.])}
    """

    domain: Domain
    list: tuple[Codes, ...]
    total: float

    def marginals(self, cliques: Iterable[Clique]) -> dict[Clique, Array]:
        """Return marginals in counts, by clique."""
        rows = self.sparse_marginals(cliques)
        return {c: row.toarray().reshape(self.domain.shape(c)) for c, row in rows.items()}

    def sparse_marginals(self, cliques: Iterable[Clique]) -> dict[Clique, csr_array]:
        """Return marginals in counts, by clique, each as one sparse row of its cells in C order."""
        wanted = list(cliques)
        sizes = {clique: self.domain.size(clique) for clique in wanted}
        if not self.list:
            return {c: csr_array(np.full((1, n), self.total / n)) for c, n in sizes.items()}
        columns = self._dataset().columns
        each = np.full(len(self.list), self.total / len(self.list))
        start = np.array([0, len(self.list)])
        rows = {}
        for c, n in sizes.items():
            cells = codes_of(columns, self.domain.sizes, c, 0, len(each))
            row = csr_array((each, cells.astype(np.int64), start), (1, n), copy=True)
            row.sum_duplicates()  # in place, so each row needs weights of its own
            rows[c] = row
        return rows

    def joined(self, others: Sequence[Codes]) -> Records:
        """Return these records followed by `others`, which together stand for the same `total`."""
        return Records(self.domain, (*self.list, *others), self.total)

    def model(self) -> HistogramModel:
        """Return a histogram on the distinct records, for the release. There must be at least one
        record.
        """
        support, counts = PublicSupport.of(self._dataset())
        return HistogramModel(support, counts, self.total)

    def _dataset(self) -> Dataset:
        return Dataset(self.domain, dict(zip(self.domain, np.array(self.list).T, strict=True)))
