"""The Curator: private data behind an interface that charges before it answers.

It alone reads the data, derives sensitivities from the neighbour relation, draws noise and selects.
Everything that leaves it is noisy and recorded on the ledger.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mechanisms.privacy import noise_scales, scores
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.cell_line import CellLine, selector
from mechanisms.privacy.discovery import distinct, frequent, threshold
from mechanisms.privacy.integer_matrix import LARGEST_ANSWER, GridMatrix
from mechanisms.privacy.ledger import FileLedger, Ledger
from mechanisms.privacy.mixture_error import best_mixture_error
from mechanisms.privacy.neighbours import Neighbours, promise, relation
from mechanisms.privacy.noise import ExactNoise, Noise, SeededNoise
from mechanisms.privacy.scored import Scored
from mechanisms.queries.cells import Cell
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput, NumericalFailure
from pgmkit.measurement import Measurement
from pgmkit.records.counting import check_memory
from pgmkit.records.dataset import Counts, Dataset

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from mechanisms.privacy.scores import Tables
    from mechanisms.privacy.units import Excess
    from mechanisms.queries.predicates import Predicates
    from pgmkit.linear.matrix import MatrixLike

__all__ = ["Curator"]

_COUNTED_CELLS = 32 * scores.BLOCK_CELLS
"""The cells of marginals that are counted at once, before they are kept in a smaller type."""


class Curator:
    """Holds private records, the neighbour relation and the budget's ledger.

    `data`: a Dataset, or other records that can be counted.

    `neighbours`: "replace-one", "add/remove", or a relation of units such as persons (`relation`).
    The caller has made sure that each unit has at most `max_rows` rows; this cannot be checked
    here.

    Costs are in the budget's unit: rho of zCDP when delta > 0 (noise is then discrete Gaussian),
    epsilon when delta = 0 (discrete Laplace). With a `seed`, noise is reproducible and the ledger
    is marked insecure: for tests and simulations only.

    `ledger`: a ledger that is kept across runs (`Ledger.open`); every charge is written to it as
    well.

    Raises InvalidInput for an unknown relation, BudgetExceeded if the ledger across runs has less
    left than this budget.

    >>> from pgmkit.records.dataset import Dataset
    >>> data = Dataset(Domain({"sex": 2, "age": 3}), {"sex": [0, 1, 1], "age": [2, 0, 1]})
    >>> curator = Curator(data, Budget(1.0, 1e-6), neighbours="replace-one", seed=0)
    >>> curator.measure(("sex",), curator.remaining / 2)
    Measurement(('sex',), 2 values, stddev=9.06...)
    >>> curator
    <Curator: 2 attributes, replace-one, rho 0.01218 of 0.02436 remaining>
    """

    def __init__(
        self,
        data: Counts,
        budget: Budget,
        *,
        neighbours: str | Neighbours,
        seed: int | np.random.Generator | None = None,
        ledger: FileLedger | None = None,
    ) -> None:
        self.neighbours = relation(neighbours)
        self._data = data
        self._noise: Noise = (
            ExactNoise() if seed is None else SeededNoise(np.random.default_rng(seed))
        )
        self._counts: dict[Clique, NDArray[np.unsignedinteger[Any]]] = {}
        self._kept = 0.0
        self.ledger = Ledger(
            budget,
            secure=self._noise.secure,
            neighbours=self.neighbours.name,
            across_runs=ledger,
        )

    def recoded(self, data: Counts) -> Curator:
        """Return a Curator of the same records under other codes, on the same ledger.

        The caller must make sure that each row of `data` codes the same row of the private data:
        this cannot be checked here, and the sensitivities depend on it.
        """
        other = copy.copy(self)
        other._data, other._counts = data, {}
        return other

    def table(self, data: Counts, neighbours: Neighbours, cost: float) -> Curator:
        """A Curator of another table of the same units, on the same ledger, that spends up to cost.

        `neighbours`: what a unit changes in that table; the caller has bounded its rows. Raises
        InvalidInput for another promise than this Curator's, or a cost that is not available.
        """
        if promise(neighbours.name) != promise(self.neighbours.name):
            raise InvalidInput(
                f"a table of the relation {neighbours.name!r} cannot be charged to a ledger of "
                f"{self.neighbours.name!r}"
            )
        if not 0 < cost <= self.remaining:
            raise InvalidInput(f"cost must be above 0 and at most {self.remaining!r}, got {cost!r}")
        other = self.recoded(data)
        other.neighbours, other._kept = neighbours, self.ledger.remaining - cost
        return other

    @property
    def domain(self) -> Domain:
        """The data's domain (public)."""
        return self._data.domain

    @property
    def public_total(self) -> int | None:
        """The number of rows if the neighbour relation makes it public, else None."""
        return len(self._data) if self.neighbours.rows_public else None

    @property
    def remaining(self) -> float:
        """The rest of the budget, in its unit, without what is kept for other tables."""
        return max(0.0, self.ledger.remaining - self._kept)

    def scale(self, cost: float) -> float:
        """Return the noise scale that `measure` uses at this cost: that of the discrete Gaussian
        (l2 / sqrt(2 rho)) or, for a pure budget, of the discrete Laplace (l1 / epsilon), with the
        relation's sensitivities l2 and l1.
        """
        budget = self.ledger.budget
        return noise_scales.additive(budget, self.neighbours.l1, self.neighbours.l2, cost)

    def expected_error(self, cost: float) -> float:
        """Return the expected absolute noise, in counts, of one cell measured at this cost."""
        return self.scale(cost) * (1.0 if self.ledger.budget.pure else float(np.sqrt(2 / np.pi)))

    def measure(self, clique: Sequence[str], cost: float, *, step: str = "measure") -> Measurement:
        """Return the clique's marginal with exact discrete noise on every cell.

        The measurement's `stddev` is the noise's scale (times sqrt(2) for Laplace), which equals
        its standard deviation except for scales below about 1, where it is an upper bound.

        Raises InvalidInput for a wrong clique or cost, BudgetExceeded if cost is not available.
        """
        checked = self.domain.clique(clique)
        counts = self._marginals([checked])[checked]  # may refuse: before the charge
        l1, l2 = self.neighbours.l1, self.neighbours.l2
        noisy, stddev = self._noisy(f"{step} {_named(checked)}", counts, l1, l2, cost)
        return Measurement(checked, noisy, stddev)

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
        attribute (their Kronecker product). Its entries are rounded to a grid of about six digits
        (three for three attributes) so that answers are whole numbers of a unit; the measurement's
        own matrix is the rounded one. The sensitivity is that of the rounded matrix: the largest
        norm (L2, or L1 for a pure budget) of a column for add/remove, of the difference of two
        columns for replace-one, times the relation's `max_rows`; the larger of both for replaced
        units of several rows.

        Raises InvalidInput for a wrong clique, matrix or cost, BudgetExceeded if cost is not
        available, and NumericalFailure for noisy answers that do not fit into 64 bits, as with more
        than 2^31 rows and entries of 30 bits, or with noise of that size. The last is decided from
        the noisy answers alone, after they were paid for.
        """
        checked = self.domain.clique(clique)
        grid = GridMatrix.over(self.domain, checked, matrix)
        # Under replace-one a row leaves one cell and another row enters another cell.
        pure = self.ledger.budget.pure
        sensitivity = self.neighbours.largest_move(
            lambda differ: grid.l1(differ) if pure else grid.l2_squared(differ) ** 0.5
        )
        answers = grid.answers(self._marginals([checked])[checked].reshape(-1))
        named = f"{step} queries of {_named(checked)}"
        noisy, stddev = self._noisy(named, answers, sensitivity, sensitivity, cost)
        if noisy.max() >= LARGEST_ANSWER or noisy.min() <= -LARGEST_ANSWER:
            raise NumericalFailure(
                f"a noisy answer to the queries of {checked!r} reaches 2^61 units of "
                f"{grid.unit:.3g}, beyond what 64 bits hold; ask with smaller whole numbers, which "
                "need fewer bits"
            )
        return Measurement(checked, noisy * grid.unit, stddev * grid.unit, grid.matrix)

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

        The estimates are rounded to whole counts first, so the noise is exact. Each distance
        changes by at most the relation's `l1` between neighbours, the vector of all distances by
        that times their number (L1) or its square root (L2). `estimates` as in `choose`. Noise
        makes some distances negative.

        Raises InvalidInput for wrong arguments, BudgetExceeded if cost is not available.
        """
        names = [self.domain.clique(clique, "candidate") for clique in cliques]
        if not names:
            raise InvalidInput("cliques is empty; give at least one clique")
        tables = [np.rint(self._estimate(c, estimates)).astype(np.int64) for c in names]
        counts = self._marginals(names)  # may refuse: before the charge
        distances = np.array(
            [np.abs(counts[c] - table).sum() for c, table in zip(names, tables, strict=True)]
        )
        l1, l2 = self.neighbours.l1 * len(names), self.neighbours.l1 * len(names) ** 0.5
        return self._noisy(step, distances, l1, l2, cost)[0].astype(np.float64)

    def errors_stddev(self, number: int, cost: float) -> float:
        """Return the standard deviation, in counts, of each of ``number`` distances of
        `measure_errors`.
        """
        l1, l2 = self.neighbours.l1 * number, self.neighbours.l1 * number**0.5
        scale = noise_scales.additive(self.ledger.budget, l1, l2, cost)
        return scale * 2**0.5 if self.ledger.budget.pure else scale

    def choose(
        self,
        candidates: Sequence[Clique],
        estimates: Tables,
        cost: float,
        *,
        penalties: Sequence[float] | None = None,
        weights: Sequence[float] | None = None,
        mechanism: Literal["exponential mechanism", "permute-and-flip"] = "exponential mechanism",
        allowed: Callable[[Clique], bool] | None = None,
        step: str = "select",
    ) -> Clique:
        """Select a candidate that the estimates answer badly, by the exponential mechanism.

        The score of clique c is weight_c (||marginal_c(data) - estimates[c]||_1 - penalty_c), with
        weights as fractions of the largest; its sensitivity is the relation's `l1`. `estimates` is
        a mapping, or pairs of a clique and its table, one after the other in any order, of which a
        few are held at a time. `estimates`, `penalties` (default 0) and `weights` (default 1, above
        0) must not depend on the data except through earlier answers of this Curator. In zCDP the
        mechanism costs epsilon^2 / 8.

        Permute-and-flip errs less at the same epsilon, but costs epsilon^2 / 2 in zCDP: it pays
        with a pure budget.

        `allowed` leaves candidates out, and must not depend on the data except through earlier
        answers either. It is called only for candidates that are drawn: one that is not allowed is
        rejected and another one drawn. The first that passes has the distribution of the
        exponential mechanism among the allowed candidates, and the rejected ones never leave the
        Curator; so it cannot be combined with permute-and-flip. The rejected draws are not paid
        for: `allowed` must not remember its calls, and nothing later may depend on them.

        Raises InvalidInput for wrong arguments, or estimates or penalties of more than 2^40 counts;
        BudgetExceeded if cost is not available.
        """
        cliques = self._candidates(candidates)
        penalty = scores.one_each("penalties", penalties, 0.0, len(cliques))
        weight = scores.one_each("weights", weights, 1.0, len(cliques))
        if weight.min() <= 0:
            raise InvalidInput(f"weights must be above 0, got {float(weight.min())!r}")
        if mechanism not in ("exponential mechanism", "permute-and-flip"):
            raise InvalidInput(
                "mechanism must be 'exponential mechanism' or 'permute-and-flip', "
                f"got {mechanism!r}"
            )
        flip = mechanism == "permute-and-flip"
        if flip and allowed is not None:
            raise InvalidInput("allowed goes with the exponential mechanism only")
        penalty_units = scores.on_grid("penalties", penalty)
        distances = self._distances(cliques, estimates)  # may refuse: before the charge
        found = scores.weighted_scores(distances, penalty_units, weight)
        passes = None if allowed is None else lambda place: allowed(cliques[place])
        place = self._selected(step, found, self.neighbours.l1, cost, flip=flip, passes=passes)
        return cliques[place]

    def scored(
        self,
        candidates: Sequence[Clique],
        estimates: Tables,
        *,
        penalties: Sequence[float] | None = None,
    ) -> Scored:
        """Return candidates to choose from several times by the same estimates, compared with the
        data only once.

        A choice is that of `choose` without weights, and is charged alike. Raises InvalidInput as
        `choose` does.
        """
        cliques = self._candidates(candidates)
        penalty = scores.one_each("penalties", penalties, 0.0, len(cliques))
        penalty_units = scores.on_grid("penalties", penalty)
        distances = np.array(self._distances(cliques, estimates), dtype=np.int64)
        return Scored(
            scores.in_counts(distances - penalty_units), self.neighbours.l1, self._selected
        )

    def choose_cells(
        self,
        cliques: Sequence[Clique],
        estimates: Mapping[Clique, ArrayLike],
        cost: float,
        *,
        count: int = 1,
        exclude: Collection[Cell] = (),
        step: str = "select",
    ) -> list[Cell]:
        """Select `count` single queries that the estimates answer badly: noisy top-k with Gumbel
        noise.

        The score of a cell is |count in the data - estimate|, which changes by at most the
        relation's `max_rows` m. This is equivalent to `count` exponential mechanisms without
        replacement, and costs the same: rho = count m^2 / (2 scale^2) in zCDP, epsilon = 2 count m
        / scale.

        Raises InvalidInput for wrong arguments or fewer cells than `count`, BudgetExceeded if cost
        is not available.
        """
        line, table = self._line(cliques, estimates)
        candidates = line.without(exclude)
        _check_count(count, len(candidates), "cells")
        counts = line.joined(self._marginals(line.cliques))  # may refuse: before the charge
        errors = np.abs(scores.cell_differences(counts, table))[candidates]
        found = self._top(step, "cells", errors, count, cost)
        return [line.cell(candidates[place]) for place in found]

    def measure_cells(
        self, cells: Sequence[Cell], cost: float, *, step: str = "measure"
    ) -> list[Measurement]:
        """Return each cell's count with its own exact discrete noise; the cost is split evenly over
        the cells.

        A cell's count changes by at most the relation's `max_rows`. Raises InvalidInput for a wrong
        cell or cost, BudgetExceeded if cost is not available.
        """
        if not cells:
            raise InvalidInput("cells is empty; give at least one cell to measure")
        for cell in cells:
            size = self.domain.size(self.domain.clique(cell.clique))
            if not 0 <= cell.index < size:
                raise InvalidInput(f"cell {cell.index} of {cell.clique!r} must be in 0..{size - 1}")
        counts = self._marginals([cell.clique for cell in cells])  # may refuse: before the charge
        exact = np.array([counts[cell.clique].flat[cell.index] for cell in cells], dtype=np.int64)
        most = self.neighbours.max_rows
        noisy, stddev = self._noisy(step, exact, most * len(cells), most * len(cells) ** 0.5, cost)
        return [
            Measurement(cell.clique, [value], stddev, selector(self.domain, cell))
            for cell, value in zip(cells, noisy, strict=True)
        ]

    def choose_predicates(
        self,
        predicates: Predicates,
        estimates: ArrayLike,
        cost: float,
        *,
        count: int,
        exclude: Collection[int] = (),
        step: str = "select",
    ) -> list[int]:
        """Select `count` predicates that the estimates answer badly: noisy top-k with Gumbel noise.

        The cost is that of `choose_cells`; records must be in memory. Raises InvalidInput for wrong
        arguments, BudgetExceeded if cost is not available.
        """
        table = np.asarray(estimates, dtype=np.float64)
        if table.shape != (len(predicates),) or not np.isfinite(table).all():
            raise InvalidInput(f"estimates must be {len(predicates)} finite numbers")
        grid = scores.on_grid("estimates", table)
        left = np.setdiff1d(np.arange(len(predicates)), list(exclude))
        _check_count(count, len(left), "predicates")
        counts = self._predicate_counts(predicates)  # may refuse: before the charge
        errors = np.abs(scores.cell_differences(counts, grid))[left]
        return [int(left[place]) for place in self._top(step, "predicates", errors, count, cost)]

    def measure_predicates(
        self, predicates: Predicates, cost: float, *, step: str = "measure"
    ) -> tuple[NDArray[np.float64], float]:
        """Return each predicate's count with its own exact discrete noise, and the noise's standard
        deviation.

        The cost is split evenly. Raises the errors of `choose_predicates`.
        """
        count = len(predicates)
        exact = self._predicate_counts(predicates)  # may refuse: before the charge
        most = self.neighbours.max_rows
        noisy, stddev = self._noisy(step, exact, most * count, most * count**0.5, cost)
        return noisy.astype(np.float64), stddev

    def _predicate_counts(self, predicates: Predicates) -> NDArray[np.int64]:
        if not isinstance(self._data, Dataset):
            raise InvalidInput("predicates are counted on records in memory, not in an engine")
        if predicates.domain != self.domain:
            raise InvalidInput("the predicates are over another domain than the data")
        return predicates.counts(self._data)

    def draw_signed(
        self,
        cliques: Sequence[Clique],
        estimates: Mapping[Clique, ArrayLike],
        cost: float,
        *,
        count: int = 1,
        step: str = "draw",
    ) -> list[tuple[Cell, int]]:
        """Draw `count` signed single queries, with replacement, by the exponential mechanism.

        The score of (cell, sign) is sign * (count in the data - estimate), which changes by at most
        the relation's `max_rows` m. At scale b a draw has probability proportional to exp(score /
        b), and all draws together cost rho = count m^2 / (2 b^2) in zCDP, epsilon = 2 count m / b.

        Raises InvalidInput for wrong arguments, BudgetExceeded if cost is not available.
        """
        if not cliques or isinstance(count, bool) or count < 1:
            raise InvalidInput(f"give cliques, and a count of 1 or more; got {count!r}")
        line, table = self._line(cliques, estimates)
        counts = line.joined(self._marginals(line.cliques))  # may refuse: before the charge
        positive = scores.in_counts(scores.cell_differences(counts, table))
        self.ledger.charge(step, f"{count} x exponential mechanism", cost)
        scale = self._several(count, cost)
        found = self._noise.draws(np.concatenate([positive, -positive]), count, scale)
        return [(line.cell(place % line.size), -1 if place >= line.size else 1) for place in found]

    def choose_public(
        self,
        shares: Sequence[Mapping[Clique, ArrayLike]],
        cost: float,
        *,
        step: str = "select public data",
    ) -> int:
        """Select the nearest of several public distributions by the exponential mechanism, and
        return its place.

        Each distribution is given by its marginals as shares. The score is minus the largest error
        of a single cell, |count - rows * share|, which changes by at most the relation's
        `max_rows`: one row changes the difference by between -share and 1 - share.

        Raises InvalidInput for wrong arguments, BudgetExceeded if cost is not available.
        """
        if not shares or not shares[0]:
            raise InvalidInput("shares is empty; give the marginals of at least one distribution")
        tables = [{c: self._estimate(c, known) for c in known} for known in shares]
        for known in tables:
            if set(known) != set(tables[0]):
                raise InvalidInput("shares must hold the same cliques for every distribution")
            # If the number of rows is private, one more row changes rows * share by at most 1.
            if any(table.min() < 0 or table.max() > 1 for table in known.values()):
                raise InvalidInput("shares must be in 0..1; divide counts by their total")
        counts = self._marginals(list(shares[0]))  # may refuse: before the charge
        found = [
            scores.share_score([counts[c] for c in known], list(known.values()), len(self._data))
            for known in tables
        ]
        return self._selected(step, np.array(found), self.neighbours.max_rows, cost)

    def mixture_error(
        self,
        public: Dataset,
        cliques: Sequence[Clique],
        cost: float,
        *,
        step: str = "best mixture error",
    ) -> float:
        """Return the noisy error, in counts, of the best weights of the public records on the
        cliques.

        It is the minimum over weights of the maximum over cells of |count - rows * share|, a linear
        program; it changes by at most the relation's `max_rows` between neighbours (Liu et al.
        2021, Lemma A.8, for one row), as |count - rows * share| does. The noise is on thousandths
        of a count, and two of these are added to the sensitivity for the solver's inaccuracy.

        Raises InvalidInput for wrong arguments, BudgetExceeded if cost is not available.
        """
        names = [self.domain.clique(clique) for clique in cliques]
        if not names or public.domain != self.domain:
            raise InvalidInput("give at least one clique, and public data over the same domain")
        counts = self._marginals(names)  # may refuse: before the charge
        least = best_mixture_error(public, counts, len(self._data))
        fine = np.array([round(1000 * least)], dtype=np.int64)
        most = 1000 * self.neighbours.max_rows + 2
        noisy, _ = self._noisy(step, fine, most, most, cost)
        return float(noisy[0]) / 1000

    def discover(
        self,
        values: Sequence[str] | Mapping[str, int],
        cost: float,
        delta: float,
        *,
        step: str = "discover",
    ) -> list[str]:
        """Return the frequent values of a column, which nobody listed in advance.

        `values` has one text for each row of the same records, or the number of rows of each text.
        The count of each distinct value gets discrete Gaussian noise at this cost, and those above
        a threshold are returned, the most frequent first. A value of a single row (or a single
        unit) passes with probability at most `delta` (a part of it if neighbours can differ by
        several such values): (rho, delta)-approximate zCDP.

        Raises InvalidInput for a pure budget, or a delta above the reserved part of the budget's;
        BudgetExceeded if cost is not available.
        """
        budget = self.ledger.budget
        if not 0 < delta <= budget.reserved * (1 + 1e-9):
            raise InvalidInput(
                f"the discovery of values needs a delta above 0 of what the budget reserves "
                f"({budget.reserved:g}), got {delta!r}; a pure budget has none: list the values"
            )
        self.ledger.charge(step, "discrete Gaussian, threshold", cost, delta)
        texts, counts = distinct(values)
        scale = self.scale(cost)
        noisy = self._noise.gaussian(counts, scale)
        return frequent(texts, noisy, threshold(scale, delta, self.neighbours))

    def measure_excess(
        self, excess: Excess, cost: float, *, step: str = "rows left out"
    ) -> tuple[float, float]:
        """Return the noisy number of rows that the bound on a unit's rows left out, and the noise's
        standard deviation.

        At most `Excess.most` rows of a unit are counted, so the number changes by at most that
        between neighbours. Raises InvalidInput for a wrong cost, BudgetExceeded if it is not
        available.
        """
        exact = np.array([excess.rows], dtype=np.int64)
        noisy, stddev = self._noisy(step, exact, excess.most, excess.most, cost)
        return float(noisy[0]), stddev

    def measure_unread(
        self, cost: float, *, step: str = "unread values"
    ) -> tuple[dict[str, float], float, float]:
        """Return the number of values of each column that could not be read, the number of rows,
        and the standard deviation of the noise.

        The values are those of `Dataset.unread`; all numbers are noisy, except a public number of
        rows. Each of them changes by at most the relation's `max_rows` m between neighbours, the
        vector of k numbers by k m (L1) or sqrt(k) m (L2).

        Raises InvalidInput if the number of unread values is not known, and for a wrong cost,
        BudgetExceeded if it is not available.
        """
        unread = getattr(self._data, "unread", None)
        if unread is None:
            raise InvalidInput(
                "it is not known which values of these records could be read; give a data frame "
                "in memory, or records of encode_file"
            )
        exact = [*unread.values(), *([] if self.neighbours.rows_public else [len(self._data)])]
        most, count = self.neighbours.max_rows, len(exact)
        noisy, stddev = self._noisy(
            step, np.array(exact, dtype=np.int64), most * count, most * count**0.5, cost
        )
        rows = float(noisy[-1] if self.public_total is None else self.public_total)
        return dict(zip(unread, noisy[: len(unread)].tolist(), strict=True)), rows, stddev

    def _noisy(
        self, step: str, exact: NDArray[np.int64], l1: float, l2: float, cost: float
    ) -> tuple[NDArray[np.int64], float]:
        """Charge, then return the values with discrete noise for these sensitivities, and its
        standard deviation.
        """
        pure = self.ledger.budget.pure
        self.ledger.charge(step, "discrete Laplace" if pure else "discrete Gaussian", cost)
        scale = noise_scales.additive(self.ledger.budget, l1, l2, cost)
        if pure:
            return self._noise.laplace(exact, scale), scale * 2**0.5
        return self._noise.gaussian(exact, scale), scale

    def _selected(
        self,
        step: str,
        found: NDArray[np.float64],
        sensitivity: float,
        cost: float,
        *,
        flip: bool = False,
        passes: Callable[[int], bool] | None = None,
    ) -> int:
        """Charge, then return a place selected by the exponential mechanism, or by
        permute-and-flip.

        The exponential mechanism draws again, without the rejected places, until a place passes.
        """
        budget = self.ledger.budget
        self.ledger.charge(step, "permute-and-flip" if flip else "exponential mechanism", cost)
        if flip:
            scale = noise_scales.permute_and_flip(budget, sensitivity, cost)
            return self._noise.flip(found, scale)
        scale = noise_scales.exponential(budget, sensitivity, cost)
        left = np.arange(len(found))
        while len(left):
            drawn = self._noise.softmax(found[left], scale)
            if passes is None or passes(int(left[drawn])):
                return int(left[drawn])
            left = np.delete(left, drawn)
        raise InvalidInput("allowed is true of no candidate; leave one to choose")

    def _top(
        self, step: str, what: str, errors: NDArray[np.int64], count: int, cost: float
    ) -> list[int]:
        """Charge, then return the places of `count` large errors; each error changes by at most
        `max_rows`.
        """
        self.ledger.charge(step, f"top {count} of {what}, Gumbel noise", cost)
        return self._noise.top(scores.in_counts(errors), count, self._several(count, cost))

    def _several(self, count: int, cost: float) -> float:
        """Return the scale of `count` selections by scores whose sensitivity is that of one cell's
        count.
        """
        budget = self.ledger.budget
        return noise_scales.several(budget, self.neighbours.max_rows, count, cost)

    def _line(
        self, cliques: Sequence[Clique], estimates: Mapping[Clique, ArrayLike]
    ) -> tuple[CellLine, NDArray[np.int64]]:
        """Return the cells of the candidates in a line, and their estimates in the scores'
        units.
        """
        names = [self.domain.clique(clique, "candidate") for clique in cliques]
        tables = {clique: self._estimate(clique, estimates) for clique in names}
        line = CellLine(self.domain, names)
        return line, scores.on_grid("estimates", line.joined(tables))

    def _candidates(self, candidates: Sequence[Clique]) -> list[Clique]:
        cliques = [self.domain.clique(clique, "candidate") for clique in candidates]
        if not cliques:
            raise InvalidInput("candidates is empty; give at least one clique to choose from")
        return cliques

    def _distances(self, cliques: Sequence[Clique], estimates: Tables) -> list[int]:
        """Return ||marginal - estimate||_1 of each clique, in the scores' units."""
        return scores.distances(cliques, estimates, self._counted(cliques))

    def _estimate(
        self, clique: Clique, estimates: Mapping[Clique, ArrayLike]
    ) -> NDArray[np.float64]:
        return scores.estimate_of(clique, estimates, self.domain.shape(clique))

    def _marginals(self, cliques: Sequence[Clique]) -> dict[Clique, NDArray[np.int64]]:
        counts = self._counted(cliques)
        return {clique: counts[clique].astype(np.int64) for clique in cliques}

    def _counted(
        self, cliques: Sequence[Clique]
    ) -> Mapping[Clique, NDArray[np.unsignedinteger[Any]]]:
        """Return the counts of these cliques, and of others, in the smallest type that holds them.

        Candidates are the same every round, so each marginal is counted once and kept.
        """
        missing = [clique for clique in cliques if clique not in self._counts]
        check_memory(missing, self.domain.sizes)
        smallest = np.min_scalar_type(len(self._data))
        blocks = np.cumsum([self.domain.size(clique) for clique in missing]) // _COUNTED_CELLS
        for _, some in groupby(zip(blocks, missing, strict=True), key=itemgetter(0)):
            counts = self._data.marginals([clique for _, clique in some])
            self._counts.update((each, table.astype(smallest)) for each, table in counts.items())
        return self._counts

    def __repr__(self) -> str:
        budget = self.ledger.budget
        return (
            f"<Curator: {len(self.domain)} attributes, {self.neighbours.name}, "
            f"{budget.unit} {self.remaining:.4g} of {budget.total:.4g} remaining>"
        )


def _check_count(count: int, most: int, what: str) -> None:
    if isinstance(count, bool) or not 1 <= count <= most:
        raise InvalidInput(
            f"count must be at least 1 and at most the {most} candidate {what}, got {count!r}"
        )


def _named(clique: Clique) -> str:
    return " x ".join(clique) if clique else "total"
