"""The part of the Curator that counts private records, charges and draws: every cost is on the
ledger before noise is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mechanisms.privacy import conversions, noise_scales, scores
from mechanisms.privacy.ledger import Ledger
from mechanisms.privacy.neighbours import Neighbours
from mechanisms.privacy.noise import Noise
from mechanisms.queries.cells import Cell
from mechanisms.queries.predicates import Predicates
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.records.counting import check_memory
from pgmkit.records.dataset import Counts, Dataset
from pgmkit.runtime.arguments import check_whole
from pgmkit.runtime.sizes import CACHE_CELLS
from pgmkit.runtime.typed import typed_class

_COUNTED_CELLS = 128 * CACHE_CELLS
"""The cells of marginals that are counted at once, before they are kept in a smaller type."""


@typed_class
class Charging:
    """The part of the Curator that holds the private records, the ledger and the source of noise:
    every noisy draw is charged first. Exact counts are for other parts of the Curator alone;
    `domain` and `public_total` are public.
    """

    neighbours: Neighbours
    ledger: Ledger
    _data: Counts
    _counts: dict[Clique, NDArray[np.unsignedinteger[Any]]]
    _noise: Noise

    @property
    def domain(self) -> Domain:
        """The data's domain (public)."""
        return self._data.domain

    @property
    def public_total(self) -> int | None:
        """The number of rows if the neighbour relation makes it public, else None."""
        return len(self._data) if self.neighbours.rows_public else None

    def _marginals(self, cliques: Sequence[Clique]) -> dict[Clique, NDArray[np.int64]]:
        counts = self._counted(cliques)
        return {clique: counts[clique].astype(np.int64) for clique in cliques}

    def _counted(
        self, cliques: Sequence[Clique]
    ) -> Mapping[Clique, NDArray[np.unsignedinteger[Any]]]:
        """Return a mapping with the counts of these cliques, and of all that were counted before,
        in the smallest integer type that holds the number of rows.

        Rounds ask for the same candidates again, so each marginal is counted once and kept.
        """
        missing = [clique for clique in cliques if clique not in self._counts]
        check_memory(missing, self.domain.sizes)
        smallest = np.min_scalar_type(len(self._data))
        blocks = np.cumsum([self.domain.size(clique) for clique in missing]) // _COUNTED_CELLS
        for _, some in groupby(zip(blocks, missing, strict=True), key=itemgetter(0)):
            counts = self._data.marginals([clique for _, clique in some])
            self._counts.update((each, table.astype(smallest)) for each, table in counts.items())
        return self._counts

    def check_in_memory(self) -> None:
        """Raise InvalidInput if the records are in an engine, such as a database, where no
        predicates are counted.
        """
        from pgmkit.tables.engines.pushdown import FrameCounts  # few runs need to load it

        if isinstance(self._data, FrameCounts):
            raise InvalidInput(
                "predicates are counted on records in memory, not in an engine; fetch the frame "
                "first, or use a mechanism without thresholds"
            )

    def _predicate_counts(self, predicates: Predicates) -> NDArray[np.int64]:
        self.check_in_memory()
        return predicates.counts(cast("Dataset", self._data))

    def _candidates(self, candidates: Sequence[Clique]) -> list[Clique]:
        cliques = [self.domain.clique(clique) for clique in candidates]
        if not cliques:
            raise InvalidInput("there is no clique to ask about; give at least one")
        return cliques

    def _checked_cells(self, cells: Collection[Cell]) -> list[Cell]:
        """Return the cells. Raises InvalidInput for one that no marginal of the domain has."""
        found = [Cell(self.domain.clique(clique, "cell"), index) for clique, index in cells]
        for clique, index in found:
            check_whole(index, f"index of a cell of {clique!r}", 0, self.domain.size(clique) - 1)
        return found

    @property
    def remaining(self) -> float:
        """The rest of the budget, in its unit, without the part kept for other tables."""
        return self.ledger.remaining

    def scale(self, cost: float) -> float:
        """Return the noise scale that `measure` uses at this cost: that of the discrete Gaussian
        (l2 / sqrt(2 rho), or more under Gaussian accounting) or, for a pure budget, of the discrete
        Laplace (l1 / epsilon), with the relation's sensitivities l2 and l1. If
        `Curator.placed` adds an attribute of p codes to the clique, each noisy cell has this scale
        divided by sqrt(p), so that the sums over that attribute have this scale.
        """
        budget = self.ledger.budget
        return noise_scales.additive(budget, self.neighbours.l1, self.neighbours.l2, cost)

    def expected_error(self, cost: float) -> float:
        """Return the expected absolute noise, in counts, of one cell measured at this cost, as if
        noise were continuous: that of discrete noise is less for scales below about 1.
        """
        return self.scale(cost) * (1.0 if self.ledger.budget.pure else float(np.sqrt(2 / np.pi)))

    def errors_stddev(self, number: int, cost: float) -> float:
        """Return the standard deviation, in counts, of the noise in each of `number` distances that
        `measure_errors` measures together at this cost; an upper bound for scales below about 1.
        Raises InvalidInput unless the number and the cost are finite and above 0.
        """
        conversions.positive("number", number)
        l1, l2 = self.neighbours.l1 * number, self.neighbours.l1 * number**0.5
        scale = noise_scales.additive(self.ledger.budget, l1, l2, cost)
        return scale * 2**0.5 if self.ledger.budget.pure else scale

    def _noisy(
        self, step: str, exact: ArrayLike, most: float, cost: float
    ) -> tuple[NDArray[np.int64], float]:
        """Charge, then return the whole numbers `exact` with discrete noise, and the noise's
        standard deviation (an upper bound for scales below about 1). `most`: the most by which each
        of the numbers changes between neighbours.
        """
        values = np.array(exact, dtype=np.int64)
        self._charged(step, cost)
        return self._drawn(values, most * len(values), most * len(values) ** 0.5, cost)

    def _charged(self, step: str, cost: float) -> None:
        pure = self.ledger.budget.pure
        self.ledger.charge(step, "discrete Laplace" if pure else "discrete Gaussian", cost)

    def _drawn(
        self, exact: NDArray[np.int64], l1: float, l2: float, cost: float
    ) -> tuple[NDArray[np.int64], float]:
        """Return the values `exact` with the noise that this cost, charged already, pays for, and
        the noise's standard deviation (an upper bound for scales below about 1). `l1` and `l2`: the
        sensitivities of the values.
        """
        scale = noise_scales.additive(self.ledger.budget, l1, l2, cost)
        if self.ledger.budget.pure:
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
        """Charge, then return the place of one of the scores `found`, which change by at most
        `sensitivity`, selected by the exponential mechanism or, with `flip`, by permute-and-flip.

        The exponential mechanism draws again, without the rejected places, until `passes(place)` is
        true. Raises InvalidInput, after the charge, if it is true of no place.
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
        """Charge, then return the places of the `count` largest of `errors` plus Gumbel noise. The
        errors are in units of 2^-11 counts, and each changes by at most `max_rows` counts. `what`:
        the kind of candidate, for the ledger.
        """
        self.ledger.charge(step, f"top {count} of {what}, Gumbel noise", cost)
        return self._noise.top(scores.in_counts(errors), count, self._several(count, cost))

    def _several(self, count: int, cost: float) -> float:
        """Return the noise scale of each of `count` selections that share the cost evenly. It is in
        counts, and includes the sensitivity: one unit changes the scores, as it does the count of
        one cell, by at most `max_rows`.
        """
        return noise_scales.exponential(self.ledger.budget, self.neighbours.max_rows, cost / count)
