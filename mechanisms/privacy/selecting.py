"""The part of the Curator that selects, by the exponential mechanism and its relatives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from mechanisms.privacy import scores
from mechanisms.privacy.cell_line import CellLine
from mechanisms.privacy.charging import Charging
from mechanisms.privacy.noise import SparseScores
from mechanisms.privacy.scores import Queries, Tables
from mechanisms.queries.cells import Cell
from mechanisms.queries.predicates import Predicates, check_number
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.runtime.typed import typed_class

Selected = Callable[[str, NDArray[np.float64], float, float], int]


class Scored:
    """Candidates with private scores, from which `choose` selects at a charge for each selection;
    made by `Curator.scored`.
    """

    def __init__(self, found: NDArray[np.float64], sensitivity: float, selected: Selected) -> None:
        self._found, self._sensitivity, self._selected = found, sensitivity, selected

    def choose(self, places: Sequence[int] | NDArray[np.int64], cost: float, *, step: str) -> int:
        """Select one of the candidates at these places by the exponential mechanism, and return its
        place.

        Raises InvalidInput for no places or places without a candidate, BudgetExceeded if cost is
        not available.
        """
        among, last = np.asarray(places), len(self._found) - 1
        whole = among.ndim == 1 and among.dtype.kind in "iu" and len(among)
        if not whole or among.min() < 0 or among.max() > last:
            raise InvalidInput(f"places must be whole numbers from 0 to {last}, got {places!r:.60}")
        return int(among[self._selected(step, self._found[among], self._sensitivity, cost)])


@typed_class
class Selecting(Charging):
    """The part of the Curator that selects cliques, cells, predicates and public distributions by
    noisy scores; each selection is charged before it is drawn.
    """

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
        queries: Queries | None = None,
        step: str = "select",
    ) -> Clique:
        """Return a candidate that the estimates answer badly, selected by the exponential
        mechanism.

        The score of clique c is weight_c (||marginal_c(data) - estimates[c]||_1 - penalty_c), with
        weights as fractions of the largest; its sensitivity is the relation's `l1`. Estimates are
        tables in counts, in the cliques' shapes: a mapping, or an iterable of pairs of a clique and
        its table in any order, of which only a few are held in memory at a time. `estimates`,
        `penalties` (in counts, default 0) and `weights` (default 1, above 0) must not depend on the
        data except through earlier answers of this Curator. In zCDP the mechanism costs epsilon^2 /
        8.

        `queries`: for some cliques, matrices Q whose answers are compared in place of the cells.
        The distance of such a clique is the mean over its matrices of ||Q marginal - Q
        estimate||_1, divided by the largest L1 norm of a column of Q; its sensitivity is again
        `l1`. The matrices must not depend on the data either.

        Permute-and-flip errs less at the same epsilon, but costs epsilon^2 / 2 in zCDP, so it is
        better only with a pure budget.

        `allowed` leaves candidates out, and must not depend on the data except through earlier
        answers either. It is called only for candidates that are drawn: one that is not allowed is
        rejected and another one drawn. The first that passes has the distribution of the
        exponential mechanism among the allowed candidates, and the rejected ones never leave the
        Curator; so it cannot be combined with permute-and-flip. The rejected draws are not paid
        for: `allowed` must not remember its calls, and nothing later may depend on them.

        Raises InvalidInput for wrong arguments, or estimates or penalties of more than 2^40 counts;
        also, after the charge, if `allowed` is true of no candidate. Raises BudgetExceeded if cost
        is not available.
        """
        flip = mechanism == "permute-and-flip"
        if flip and allowed is not None:
            raise InvalidInput("allowed goes with the exponential mechanism only; leave it out")
        cliques = self._candidates(candidates)
        found = self._scores(cliques, estimates, penalties, weights, queries)
        passes = None if allowed is None else lambda place: allowed(cliques[place])
        place = self._selected(step, found, self.neighbours.l1, cost, flip=flip, passes=passes)
        return cliques[place]

    def scored(
        self,
        candidates: Sequence[Clique],
        estimates: Tables,
        *,
        penalties: Sequence[float] | None = None,
        queries: Queries | None = None,
    ) -> Scored:
        """Return candidates from which `Scored.choose` selects, any number of times. Their scores
        are computed here, once.

        The score of a candidate is the distance of its table in `estimates` (in counts) from its
        marginal, less its penalty in counts; with `queries` distances are those of the answers.
        They are the scores of `choose` without weights. Nothing is charged before a selection.
        Raises InvalidInput for wrong arguments, and for estimates or penalties of more than 2^40
        counts.
        """
        found = self._scores(self._candidates(candidates), estimates, penalties, None, queries)
        return Scored(found, self.neighbours.l1, self._selected)

    def _scores(
        self,
        cliques: Sequence[Clique],
        estimates: Tables,
        penalties: Sequence[float] | None,
        weights: Sequence[float] | None,
        queries: Queries | None,
    ) -> NDArray[np.float64]:
        """Return the exact scores of `choose`."""
        penalty = scores.one_each("penalties", penalties, 0.0, len(cliques))
        weight = scores.one_each("weights", weights, 1.0, len(cliques))
        if weight.min() <= 0:
            raise InvalidInput(f"weights must be above 0, got {float(weight.min())!r}")
        penalty_units = scores.on_grid("penalties", penalty)
        distances = scores.distances(cliques, estimates, self._counted(cliques), queries)
        return scores.weighted_scores(distances, penalty_units, weight)

    def choose_cells(
        self,
        cliques: Sequence[Clique],
        estimates: Mapping[Clique, ArrayLike],
        cost: float,
        *,
        count: int = 1,
        exclude: Collection[Cell] = (),
        codes: Mapping[str, ArrayLike] | None = None,
        step: str = "select",
    ) -> list[Cell]:
        """Select `count` single queries that the estimates answer badly: noisy top-k with Gumbel
        noise.

        The score of a cell is |number of its records - estimate|, which changes by at most the
        relation's `max_rows` m. This is equivalent to `count` exponential mechanisms without
        replacement. The noise scale b follows from the cost: rho = count m^2 / (2 b^2) in zCDP, or
        epsilon = 2 count m / b.

        `exclude`: cells that are no candidates, which may be of other cliques too. `codes`: by
        attribute, the codes that candidates may have, distinct and in rising order; an attribute
        that is left out may have all its codes. The estimates are then tables of these codes alone.
        None of these arguments may depend on the data except through earlier answers of this
        Curator.

        Raises InvalidInput for wrong arguments or fewer cells than `count`, BudgetExceeded if cost
        is not available.
        """
        exclude = self._checked_cells(exclude)
        kept = _checked_codes(self.domain, codes or {})
        names = self._candidates(cliques)
        line = CellLine(self.domain, names, kept)
        tables = {c: scores.estimate_of(c, estimates, line.shape(c)) for c in names}
        grid = scores.on_grid("estimates", line.joined(tables))
        candidates = line.without(exclude)
        _check_count(count, len(candidates), "cells")
        counts = self._counted(names)  # may raise before the charge
        exact = line.joined({c: line.part(c, counts[c]) for c in names})
        errors = np.abs(scores.cell_differences(exact, grid))[candidates]
        found = self._top(step, "cells", errors, count, cost)
        return [line.cell(candidates[place]) for place in found]

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
        Return their places among the predicates.

        `estimates`: a count for each predicate. `exclude`: the places of predicates that are no
        candidates; other numbers are ignored. The score of a predicate is |number of records that
        satisfy it - estimate|, which changes by at most the relation's `max_rows` m. The noise
        scale b follows from the cost: rho = count m^2 / (2 b^2) in zCDP, or epsilon = 2 count m /
        b. Raises InvalidInput for wrong arguments and for records that are not in memory,
        BudgetExceeded if cost is not available.
        """
        table = scores.one_each("estimates", estimates, np.nan, len(predicates))
        grid = scores.on_grid("estimates", table)
        left = np.array(sorted(set(range(len(predicates))).difference(exclude)), dtype=np.intp)
        _check_count(count, len(left), "predicates")
        # Counting may raise, before the charge.
        errors = np.abs(scores.cell_differences(self._predicate_counts(predicates), grid))[left]
        return [int(left[place]) for place in self._top(step, "predicates", errors, count, cost)]

    def draw_signed(
        self,
        cliques: Sequence[Clique],
        estimates: Mapping[Clique, ArrayLike | csr_array],
        cost: float,
        *,
        count: int = 1,
        step: str = "draw",
    ) -> list[tuple[Cell, int]]:
        """Draw `count` signed single queries, with replacement, by the exponential mechanism.

        The score of (cell, sign) is sign * (count in the data - estimate), which changes by at most
        the relation's `max_rows` m. An estimate is a table or, where most of it is zero, one sparse
        row of the clique's cells in C order. `cost` pays for all draws together: a draw has
        probability proportional to exp(score / b), where cost = count m^2 / (2 b^2) in zCDP and
        cost = 2 count m / b in pure epsilon.

        Raises InvalidInput for wrong arguments, as a count that is not from 1 to 1,000,000, and
        BudgetExceeded if cost is not available.
        """
        check_number(count, "count")
        names = self._candidates(cliques)
        line = CellLine(self.domain, names)
        rows = [scores.row_of(c, estimates, line.shape(c)) for c in names]
        counts = self._counted(names)  # may raise before the charge
        tables = zip(names, rows, line.starts, strict=True)
        found = [(start, *scores.nonzero_differences(counts[c], r)) for c, r, start in tables]
        # Cells where neither a record nor an estimate is have the score 0 and are not listed.
        places = np.concatenate([start + own for start, own, _ in found])
        positive = scores.in_counts(np.concatenate([gaps for *_, gaps in found]))
        values = np.concatenate([positive, -positive])
        signed = SparseScores(np.concatenate([places, line.size + places]), values, 2 * line.size)
        self.ledger.charge(step, f"{count} x exponential mechanism", cost)
        scale = self._several(count, cost)
        drawn = self._noise.draws(signed, count, scale)
        return [(line.cell(place % line.size), -1 if place >= line.size else 1) for place in drawn]

    def choose_public(
        self,
        shares: Sequence[Mapping[Clique, ArrayLike]],
        cost: float,
        *,
        step: str = "select public data",
    ) -> int:
        """Select the public distribution nearest to the data by the exponential mechanism, and
        return its place in `shares`.

        Each distribution is given by its marginals as shares of its rows, all of the same cliques.
        The score is minus the largest error of a single cell, |count - rows * share|, with the
        number of private rows. It changes by at most the relation's `max_rows`: one row changes the
        difference by between -share and 1 - share.

        Raises InvalidInput for wrong arguments, BudgetExceeded if cost is not available.
        """
        if not shares or not shares[0]:
            raise InvalidInput("shares is empty; give the marginals of at least one distribution")
        shape = self.domain.shape
        tables = [{c: scores.estimate_of(c, each, shape(c)) for c in each} for each in shares]
        for known in tables:
            if set(known) != set(tables[0]):
                raise InvalidInput("shares must hold the same cliques for every distribution")
            # Another share could change count - rows * share by more than 1 where a row is added.
            if any(table.min() < 0 or table.max() > 1 for table in known.values()):
                raise InvalidInput("shares must be in 0..1; divide counts by their total")
        counts = self._marginals(list(shares[0]))  # may raise before the charge
        found = [scores.share_score(counts, known, len(self._data)) for known in tables]
        return self._selected(step, np.array(found), self.neighbours.max_rows, cost)


def _checked_codes(domain: Domain, codes: Mapping[str, ArrayLike]) -> dict[str, NDArray[np.int64]]:
    """Return the codes of some attributes; raise InvalidInput unless they are distinct, in rising
    order, within the attribute's size.
    """
    domain.clique(codes, "codes")
    found = {}
    for name, some in codes.items():
        own, last = np.asarray(some), domain.sizes[name] - 1
        rising = own.ndim == 1 and own.dtype.kind in "iu" and (own[1:] > own[:-1]).all()
        if own.size and not (rising and own[0] >= 0 and own[-1] <= last):
            raise InvalidInput(
                f"codes of {name!r} must be distinct whole numbers, in rising order, in 0..{last}"
            )
        found[name] = own.reshape(-1).astype(np.int64)
    return found


def _check_count(count: int, most: int, what: str) -> None:
    if not 1 <= count <= most:
        raise InvalidInput(
            f"count must be at least 1 and at most the {most} candidate {what}, got {count!r}"
        )
