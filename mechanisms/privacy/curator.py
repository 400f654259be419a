"""The Curator: private data behind an interface that charges before it answers.

Mechanisms see coded records through it alone. It derives sensitivities from the neighbour relation,
draws noise and selects. Everything that leaves it is noisy and recorded on the ledger, except the
domain and a public number of rows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mechanisms.privacy import scores
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.cell_line import selector
from mechanisms.privacy.discovery import Discovering
from mechanisms.privacy.integer_matrix import LARGEST_ANSWER, GridMatrix
from mechanisms.privacy.joint_moves import JointMoves, Product
from mechanisms.privacy.ledger import FileLedger, Ledger
from mechanisms.privacy.neighbours import Neighbours, promise, relation
from mechanisms.privacy.noise import ExactNoise, Noise, SeededNoise
from mechanisms.queries.cells import Cell
from mechanisms.queries.predicates import Predicates
from pgmkit import Dataset, InvalidInput, Measurement, NumericalFailure
from pgmkit.domain import Clique
from pgmkit.linear.matrix import MatrixLike
from pgmkit.records.dataset import Counts
from pgmkit.runtime.arguments import generator, mapped
from pgmkit.runtime.precision import AGREEMENT
from pgmkit.runtime.typed import typed_class


@typed_class
class Curator(Discovering):
    """The holder of private records, their neighbour relation and the budget's ledger.

    `data`: a Dataset, or other records that can be counted.

    `neighbours`: "replace-one", "add/remove", or a relation of units such as persons (`relation`).
    The caller has made sure that each unit has at most `max_rows` rows; this cannot be checked
    here.

    Costs are in the budget's unit: rho of zCDP when delta > 0 (noise is then discrete Gaussian),
    epsilon when delta = 0 (discrete Laplace). With a `seed`, noise is reproducible and the ledger
    is marked insecure: for tests and simulations only. The argument `step` of methods names the
    charge on the ledger.

    `ledger`: a ledger that is kept across runs (`Ledger.open`). This whole budget is set aside in
    it at once, until `Ledger.close`, and every charge is written to it as well.

    `measurements` lists the noisy answers about marginals so far, in the order of their draws;
    those of `measure_errors` and `measure_predicates` are not among them.

    Raises InvalidInput for an unknown relation and for a ledger across runs of another promise,
    BudgetExceeded if that ledger has less left than this budget.

    >>> from pgmkit import Dataset, Domain
    >>> data = Dataset(Domain({"sex": 2, "age": 3}), {"sex": [0, 1, 1], "age": [2, 0, 1]})
    >>> curator = Curator(data, Budget(1.0, 1e-6), neighbours="replace-one", seed=0)
    >>> curator.measure(("sex",), curator.remaining / 2)
    Measurement(('sex',), 2 values, stddev=9.06...)
    >>> curator
    <Curator: 2 attributes, replace-one, rho 0.01218 of 0.02436 remaining>
    """

    def __init__(
        self,
        data: Dataset | Counts,
        budget: Budget,
        *,
        neighbours: str | Neighbours,
        seed: int | np.random.Generator | None = None,
        ledger: FileLedger | None = None,
    ) -> None:
        self.neighbours = relation(neighbours)
        self._data = data
        self._noise: Noise = ExactNoise() if seed is None else SeededNoise(generator(seed, "seed"))
        self._counts: dict[Clique, NDArray[np.unsignedinteger[Any]]] = {}
        self._place: str | None = None
        self.measurements: list[Measurement] = []
        self.ledger = Ledger(
            budget, secure=self._noise.secure, neighbours=self.neighbours.name, across_runs=ledger
        )

    def recoded(self, data: Counts) -> Curator:
        """Return a Curator that holds the same records under other codes and charges the same
        ledger. Its list of measurements is empty.

        The caller must make sure that each row of `data` codes the same row of the private data:
        this cannot be checked here, and the sensitivities depend on it.
        """
        other = copy.copy(self)
        other._data, other._counts, other.measurements = data, {}, []
        return other

    def table(
        self, data: Counts, neighbours: Neighbours, cost: float, *, place: str | None = None
    ) -> Curator:
        """Return a Curator of another table of the same units, which spends up to `cost` from the
        same ledger. Its own ledger is a view of the same charges that names `neighbours` and ends
        at `cost`.

        `data`: the records of that table. `neighbours`: what a unit changes in it; the caller has
        bounded the rows of a unit. `place`: an attribute that is then added to every measured table
        (`placed`). The rows of a unit form groups, such as the children of one parent. The caller
        has made sure that the rows of a group have different codes in `place`, and that the number
        of its codes times the largest number of groups of a unit is at most `max_rows`.

        Raises InvalidInput if `neighbours` is another relation than this Curator's, up to the
        number of rows of a unit, and for a cost that is not available.
        """
        if promise(neighbours.name) != promise(self.neighbours.name):
            raise InvalidInput(
                f"neighbours must be the relation {self.neighbours.name!r} of the ledger, with any "
                f"number of rows of a unit, got {neighbours.name!r}"
            )
        if not 0 < cost <= self.remaining:
            raise InvalidInput(f"cost must be above 0 and at most {self.remaining!r}, got {cost!r}")
        other = self.recoded(data)
        other.neighbours, other._place = neighbours, place
        other.ledger = self.ledger.part(cost, neighbours.name)
        return other

    def placed(self, clique: Sequence[str]) -> Clique:
        """Return the clique that `measure` measures for this one. If noise is Gaussian and the rows
        of a unit's group have different codes in an attribute `place` (`table`), it is the clique
        with this attribute.

        With p codes of that attribute and g groups, a unit that is added changes p cells by at most
        g each, so the L2 sensitivity is g sqrt(p) instead of g p; for a unit that is replaced both
        are sqrt(2) times as large. The sums of the noisy table over the p codes therefore have the
        noise that a table without the attribute would have at the same cost.
        """
        checked = self.domain.clique(clique)
        if self._place is None or self._place in checked or self.ledger.budget.pure:
            return checked
        return (*checked, self._place)

    def measure(self, clique: Sequence[str], cost: float, *, step: str = "measure") -> Measurement:
        """Return the marginal of the clique, or of the larger one that `placed` returns, with exact
        discrete noise on every cell.

        The measurement's `stddev` is the noise's scale (times sqrt(2) for Laplace), which equals
        its standard deviation except for scales below about 1, where it is an upper bound.

        Raises InvalidInput for a wrong clique or cost, BudgetExceeded if cost is not available.
        """
        checked = self.placed(clique)
        counts = self._marginals([checked])[checked]  # may raise before the charge
        l1, l2 = self.neighbours.l1, self.neighbours.l2
        if self._place in checked:
            l2 /= self.domain.sizes[str(self._place)] ** 0.5
        self._charged(f"{step} {_named(checked)}", cost)
        noisy, stddev = self._drawn(counts, l1, l2, cost)
        return self._listed(Measurement(checked, noisy, stddev))

    def measure_numbered(
        self, number: str, place: str, others: Sequence[str], cost: float
    ) -> list[Measurement]:
        """Return a noisy table for each number k of rows that a group can have, from 1 up. It
        counts the rows of groups of k rows, and is a measurement over `number` (its code k alone),
        `place` (its codes below k) and `others`.

        The rows of a unit are in g groups, such as the children of one parent, where g is
        `max_rows` divided by the number of places. The caller has made sure that the code in
        `number` of each row is the number of its group's rows, and that the rows of a group have
        different codes in `place`, below that number. A group is then in one table, where it
        changes k cells by 1: the noise there has k^(1/2) g times the scale (k g times, for Laplace
        noise) of a unit of one row. All tables are one charge.

        Raises InvalidInput for wrong columns or cost and for a number of places that does not
        divide `max_rows`, BudgetExceeded if cost is not available.
        """
        checked = self.domain.clique([number, place, *others])
        counts = self._marginals([checked])[checked]
        places = counts.shape[1]
        if self.neighbours.max_rows % places:
            raise InvalidInput(
                f"{place!r} must have as many codes as a group has rows at most, which must divide "
                f"the relation's max_rows; got {places} codes and max_rows "
                f"{self.neighbours.max_rows}"
            )
        # A unit has at most g = max_rows / places groups. In the worst case all of them have k
        # rows, so that all are in one table. Each of its k places then has g of the unit's rows, so
        # the sensitivities are those of g rows times k (L1) or sqrt(k) (L2).
        l1, l2 = self.neighbours.l1 / places, self.neighbours.l2 / places
        most = min(places, len(counts) - 1)
        self._charged(f"measure {_named(checked)} in {most} tables", cost)
        every = [np.eye(size) for size in counts.shape]
        found = []
        for k in range(1, most + 1):
            noisy, stddev = self._drawn(counts[k, :k], l1 * k, l2 * k**0.5, cost)
            matrix = [every[0][k : k + 1], every[1][:k], *every[2:]]
            found.append(self._listed(Measurement(checked, noisy.ravel(), stddev, matrix)))
        return found

    def measure_queries(
        self,
        clique: Sequence[str],
        matrix: Sequence[MatrixLike] | NDArray[np.float64],
        cost: float,
        *,
        step: str = "measure",
    ) -> Measurement:
        """Return `matrix @ marginal(clique).ravel()` with exact discrete noise on every answer.

        `matrix` is one array over the marginal's cells, or a list with one matrix for each
        attribute (their Kronecker product). Its entries are rounded to 30 bits of the largest
        entry, or with m matrices each to 30 / m bits (three digits for three matrices), so that
        answers are whole numbers of a unit; the measurement's own matrix is the rounded one. The
        sensitivity is that of the rounded matrix: the largest norm (L2, or L1 for a pure budget) of
        a column for add/remove, of the difference of two columns for replace-one (an upper bound of
        it for several matrices), times the relation's `max_rows`; the larger of both for replaced
        units of several rows.

        Raises InvalidInput for a wrong clique, matrix or cost, BudgetExceeded if cost is not
        available, and NumericalFailure for noisy answers that do not fit into 64 bits, as with more
        than 2^31 rows and entries of 30 bits, or with noise of that size. The last is decided from
        the noisy answers alone, after they were paid for.
        """
        checked = self.domain.clique(clique)
        return self.measure_together({checked: matrix}, [1.0], cost, step=step)[0]

    def measure_together(
        self,
        queries: Mapping[Clique, Sequence[MatrixLike] | NDArray[np.float64]],
        shares: Sequence[float],
        cost: float,
        *,
        step: str = "measure",
    ) -> list[Measurement]:
        """Return the answers to the queries of several cliques, as `measure_queries` does, at one
        charge.

        `shares` are the cliques' parts of the cost and sum to 1. A clique's noise is that of the
        cost share * cost / part, where part <= 1 is the most that all queries cost together, as a
        fraction of the sum of what they cost one by one. It can be below 1 only for Gaussian noise
        in the answers of several cliques, where a row can replace another: often no replacement
        changes the answers of all cliques most at once (`joint_moves`).

        Raises the errors of `measure_queries`, and InvalidInput for shares that are not above 0, do
        not sum to 1 or are not as many as the queries.
        """
        cliques = [self.domain.clique(c) for c in mapped(queries, "queries", "cliques to matrices")]
        shares = scores.one_each("shares", [*shares], np.nan, len(cliques)).tolist()
        if not all(share > 0 for share in shares) or abs(math.fsum(shares) - 1) > AGREEMENT:
            raise InvalidInput(f"shares must be above 0 and sum to 1, got {shares!r}")
        pairs = zip(cliques, queries.values(), strict=True)
        grids = [GridMatrix.over(self.domain, clique, matrix) for clique, matrix in pairs]
        tables = self._counted(cliques)  # may raise before the charge
        part = 1.0
        if not self.ledger.budget.pure and len(grids) > 1:
            part = JointMoves(self.neighbours, [*map(_product, cliques, grids)]).most(shares)
        several = f"{len(cliques)} tables" if len(cliques) > 1 else _named(cliques[0])
        self._charged(f"{step} queries of {several}", cost)
        return [
            self._answered(clique, grid, tables[clique], share * cost / part)
            for clique, grid, share in zip(cliques, grids, shares, strict=True)
        ]

    def _answered(
        self, clique: Clique, grid: GridMatrix, counts: NDArray[Any], cost: float
    ) -> Measurement:
        """Return the answers of the matrix `grid` on the exact counts, with the noise that this
        cost, charged already, pays for, and add them to `measurements`. Raises NumericalFailure if
        a noisy answer has an absolute value of `LARGEST_ANSWER` units of the grid or more.
        """
        pure = self.ledger.budget.pure
        # Under replace-one a row leaves one cell and another row enters another cell.
        sensitivity = self.neighbours.largest_move(
            lambda differ: grid.l1(differ) if pure else grid.l2_squared(differ) ** 0.5
        )
        answers = grid.answers(counts.astype(np.int64).reshape(-1))
        noisy, stddev = self._drawn(answers, sensitivity, sensitivity, cost)
        if noisy.max() >= LARGEST_ANSWER or noisy.min() <= -LARGEST_ANSWER:
            raise NumericalFailure(
                f"a noisy answer to the queries of {clique!r} reaches 2^61 units of "
                f"{grid.unit:.3g}, beyond what 64 bits hold; ask with smaller whole numbers, which "
                "need fewer bits"
            )
        return self._listed(Measurement(clique, noisy * grid.unit, stddev * grid.unit, grid.matrix))

    def measure_errors(
        self,
        cliques: Sequence[Clique],
        estimates: Mapping[Clique, ArrayLike],
        cost: float,
        *,
        step: str = "errors",
    ) -> NDArray[np.float64]:
        """Return the noisy error of the estimate of each clique, ||marginal - estimate||_1, in
        counts.

        The estimates are rounded to whole counts first, since discrete noise needs whole numbers.
        Each distance changes by at most the relation's `l1` between neighbours, the vector of all
        distances by that times their number (L1) or its square root (L2). `estimates`: by clique, a
        table in counts, which must not depend on the data except through earlier answers of this
        Curator. A noisy distance may be negative.

        Raises InvalidInput for wrong arguments, BudgetExceeded if cost is not available.
        """
        names = self._candidates(cliques)
        shape = self.domain.shape
        tables = {c: np.rint(scores.estimate_of(c, estimates, shape(c))) for c in names}
        counts = self._marginals(names)  # may raise before the charge
        distances = [np.abs(counts[c] - tables[c].astype(np.int64)).sum() for c in names]
        return self._noisy(step, distances, self.neighbours.l1, cost)[0].astype(np.float64)

    def measure_cells(
        self, cells: Sequence[Cell], cost: float, *, step: str = "measure"
    ) -> list[Measurement]:
        """Return each cell's count with its own exact discrete noise; the cost is split evenly over
        the cells.

        A cell's count changes by at most the relation's `max_rows`. Raises InvalidInput for no
        cells and for a wrong cell or cost, BudgetExceeded if cost is not available.
        """
        if not cells:
            raise InvalidInput("cells is empty; give at least one cell to measure")
        cells = self._checked_cells(cells)
        counts = self._marginals([cell.clique for cell in cells])  # may raise before the charge
        exact = [counts[cell.clique].flat[cell.index] for cell in cells]
        noisy, stddev = self._noisy(step, exact, self.neighbours.max_rows, cost)
        return [
            self._listed(Measurement(cell.clique, [value], stddev, selector(self.domain, cell)))
            for cell, value in zip(cells, noisy, strict=True)
        ]

    def measure_predicates(
        self, predicates: Predicates, cost: float, *, step: str = "measure"
    ) -> tuple[NDArray[np.float64], float]:
        """Return each predicate's count with its own exact discrete noise, and the noise's standard
        deviation.

        The cost is split evenly. Raises InvalidInput for predicates over another domain, records
        that are not in memory and a wrong cost, BudgetExceeded if cost is not available.
        """
        exact = self._predicate_counts(predicates)  # may raise before the charge
        noisy, stddev = self._noisy(step, exact, self.neighbours.max_rows, cost)
        return noisy.astype(np.float64), stddev

    def _listed(self, found: Measurement) -> Measurement:
        self.measurements.append(found)
        return found

    def __repr__(self) -> str:
        budget = self.ledger.budget
        return (
            f"<Curator: {len(self.domain)} attributes, {self.neighbours.name}, "
            f"{budget.unit} {self.remaining:.4g} of {budget.total:.4g} remaining>"
        )


def _named(clique: Clique) -> str:
    return " x ".join(clique) if clique else "total"


def _product(clique: Clique, grid: GridMatrix) -> Product:
    """Return the norms (`FactorNorms`) of the integer factors of `grid`, with each factor's
    attribute as the key. The key of a single array over the cells of a clique of several
    attributes is the whole clique.
    """
    names: Sequence[Hashable] = clique if len(grid.norms) == len(clique) else [clique]
    return dict(zip(names, grid.norms, strict=True))
