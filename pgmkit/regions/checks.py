"""Checks of a region model's answers: one number of each answer is computed in another way.

An answer sums a table, or records, for all combinations of the query's rows at once. Here one
combination, that of the largest answer, is summed separately: over the cells of a region that
contains the attributes, if there is one, or record by record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt

import numpy as np

from pgmkit.domain import Clique
from pgmkit.errors import NumericalFailure
from pgmkit.inference.answer_checks import RARE, rows_of
from pgmkit.queries import FactoredQuery
from pgmkit.records.dataset import Dataset
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.precision import CLOSE
from pgmkit.runtime.sizes import CALL_CELLS
from pgmkit.structural_zeros import Zeros

Weights = Mapping[str, Array]
"""For each of some attributes a number for each of its values; all values of other attributes count
with weight 1.
"""

_DEVIATIONS = sqrt(2 * RARE)
"""The number of standard deviations by which the shares of a cell in two samples may differ;
samples of one distribution differ less.
"""


def row_weights(query: FactoredQuery, found: Array) -> tuple[Weights, float]:
    """Return, for the answer of largest magnitude among the answers ``found``, the row of each
    attribute's factor that it belongs to, as weights of the attribute's codes, and the answer.
    """
    place = int(np.abs(found).argmax())
    return rows_of(query, place), float(found.reshape(-1)[place])


def weighted_sum(table: Array, clique: Clique, weights: Weights) -> float:
    """Return the sum of the cells of the table over ``clique``, each multiplied by the product of
    its codes' weights.
    """
    for name in reversed(clique):
        table = table @ weights.get(name, np.ones(table.shape[-1]))
    return float(table)


def check_sample(
    drawn: Dataset, fitted: Dataset, cliques: Sequence[Clique], zeros: Sequence[Zeros]
) -> None:
    """Raise ``NumericalFailure`` if drawn records contradict those that the model was fitted with.

    Only the first ``CALL_CELLS`` drawn records are checked: none may be impossible by ``zeros``. Of
    the cells over the clique with the fewest attributes, the one that most fitted records lie in
    must have about the same share of the drawn records.
    """
    block = {name: codes[:CALL_CELLS] for name, codes in drawn.columns.items()}
    length = min(CALL_CELLS, len(drawn))
    for each in zeros:
        possible = each.allowed[tuple(block[name] for name in each.clique)]
        if not possible.all():
            raise NumericalFailure(
                f"{int((~possible).sum())} of {length} drawn records are impossible by the "
                f"structural zeros over {each.clique!r}; please report this model's regions"
            )
    clique = min(cliques, key=len)
    counts = fitted.marginal(clique)
    cell = np.unravel_index(int(counts.argmax()), counts.shape)
    met = np.all([block[name] == value for name, value in zip(clique, cell, strict=True)], axis=0)
    share, other = float(counts[cell]) / len(fitted), float(met.mean())
    spread = (share * (1 - share) * (1 / length + 1 / len(fitted))) ** 0.5
    # The bound is `_DEVIATIONS` standard deviations of the difference of two binomial shares, plus
    # the share of `_DEVIATIONS` ** 2 records, since the count of a rare cell has a skewed
    # distribution.
    if abs(share - other) > _DEVIATIONS * (spread + _DEVIATIONS / length):
        raise NumericalFailure(
            f"{other:.3g} of {length} drawn records lie in the cell {tuple(map(int, cell))} of "
            f"{clique!r}, and {share:.3g} of those that the distribution was fitted with; please "
            "report this model's regions"
        )


def check_answer(mine: float, found: float, weights: Weights, total: float, source: str) -> None:
    """Raise ``NumericalFailure`` unless the answer ``found`` equals ``mine`` up to rounding:
    ``mine`` is the sum of counts with these ``weights``, computed a second time from what
    ``source`` names. ``total`` is the number of records.
    """
    scale = total * prod(max(1.0, float(np.abs(values).max())) for values in weights.values())
    if not abs(mine - found) <= CLOSE * scale:
        raise NumericalFailure(
            f"an answer over {tuple(weights)!r} contradicts a second computation: it is {found!r}, "
            f"and {mine!r} by {source}. Nothing answered by this model can be trusted; please "
            "report its regions"
        )
