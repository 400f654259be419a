"""Replicates of a model: a model is estimated from each redrawn set of measurements.

Replicates have the model's cliques, structural zeros, device and precision. The search for a
graphical model's replicate starts from the model; it ends at a tolerance that is small beside the
spread of the replicates. A region model's replicate is estimated from the beginning.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from math import inf

from pgmkit.estimation import Options, estimate
from pgmkit.estimation.batches.problem import stacked
from pgmkit.estimation.many import ManyEstimates
from pgmkit.measurement import Measurement
from pgmkit.model import GraphicalModel
from pgmkit.regions.model import RegionModel
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.iterations import ROUGHLY_SOLVED
from pgmkit.total import estimate_totals

Estimated = GraphicalModel | RegionModel
Sets = Sequence[Sequence[Measurement]]

TOLERANCE = ROUGHLY_SOLVED
"""The tolerance of estimation, in noise units. With a larger one, replicates would end too near to
the model from which they start.
"""


def re_estimated(
    model: Estimated, sets: Sets, total: float | None, deadline: float
) -> Iterator[Sequence[Estimated]]:
    """Yield the replicates in lists, in the order of the sets of measurements. ``total`` is that of
    every replicate, or None if each set's measurements imply its own, which counts as 1 where it is
    less; ``deadline`` (of ``time.perf_counter``) ends the search. The replicates of a region model
    come in lists of one, and may be shrunk towards independence only if the model was.
    """
    if total is None:
        totals = [max(1.0, each) for each in estimate_totals(sets[0], stacked(sets))[0].tolist()]
    else:
        totals = [total] * len(sets)
    if isinstance(model, RegionModel):
        for measured, own in zip(sets, totals, strict=True):
            left = None if deadline == inf else max(1e-3, deadline - time.perf_counter())
            yield [
                estimate(
                    model.domain,
                    measured,
                    total=own,
                    zeros=model.structural_zeros,
                    tolerance=TOLERANCE,
                    max_seconds=left,
                    inference="region",
                    shrink=model.weight > 0,
                )
            ]
        return
    like = model.potentials[0].values if model.potentials else torch.empty(0, dtype=torch.float64)
    options: Options = {
        "zeros": model.structural_zeros,
        "warm_start": model,
        "tolerance": TOLERANCE,
        "device": like.device,
        "dtype": like.dtype,
    }
    many = ManyEstimates(model.domain, sets, totals, options)
    if many.polished:
        # Proximal steps from the model end with a loss within a few hundredths of a noise unit of
        # the least one. Only sets for which it is not within a whole unit are searched further.
        many.tolerance = 1.0
    yield from many.chunks(deadline)
