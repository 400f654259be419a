"""Draws of the cliques that a model answers worst, by the exponential mechanism. The model stays
the same for all draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mechanisms.privacy.curator import Curator
from mechanisms.rounds.loop import Answers
from pgmkit.domain import Clique
from pgmkit.measurement import Measurement


def worst_pairs(
    curator: Curator, model: Answers, pairs: Sequence[Clique], most: int, cost: float
) -> list[Clique]:
    """Draw `most` of these pairs (all if there are fewer) with the largest errors under the model,
    one by one without replacement. `cost` pays for all draws.
    """
    wanted = min(len(pairs), most)
    scored = curator.scored(pairs, model.marginals(pairs))
    left, picked = np.arange(len(pairs)), []
    for i in range(wanted):
        place = scored.choose(left, cost / wanted, step=f"pair {i + 1}: select")
        picked.append(pairs[place])
        left = left[left != place]
    return picked


def measure_worst(
    curator: Curator, model: Answers, sets: Sequence[Clique], select_share: float
) -> Measurement:
    """Spend all that remains on the one of these sets that the model answers worst beyond the noise
    of measuring it: `select_share` of it to draw the set by the exponential mechanism, and the rest
    to measure its marginal.
    """
    cost = select_share * curator.remaining
    noise = curator.expected_error(curator.remaining - cost)
    penalties = [noise * curator.domain.size(clique) for clique in sets]
    estimates = model.marginals(sets)
    picked = curator.choose(sets, estimates, cost, penalties=penalties, step="set: select")
    return curator.measure(picked, curator.remaining, step="set: measure")
