"""Re-estimated models: from each redrawn set of measurements, as the model itself was."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from math import inf

from pgmkit.estimation import estimate
from pgmkit.estimation.batches.problem import stacked
from pgmkit.estimation.batches.proximal import affordable
from pgmkit.estimation.many import ManyEstimates, Options
from pgmkit.inference.marginal_oracle import Layout
from pgmkit.measurement import Measurement
from pgmkit.model import GraphicalModel
from pgmkit.regions.model import RegionModel
from pgmkit.runtime.deferred import torch
from pgmkit.structural_zeros import Zeros
from pgmkit.total import estimate_totals

Estimated = GraphicalModel | RegionModel
Sets = Sequence[Sequence[Measurement]]

_TOLERANCE = 0.1
"""The model's own default tolerance: replicates that stop earlier stay too near to the model."""
_NEAR = 1.0
"""The tolerance where proximal steps lead on from the model: these end within a few hundredths of a
noise unit, and only sets that they leave further away are searched for.
"""


def re_estimated(
    model: Estimated,
    sets: Sets,
    total: float | None,
    zeros: Sequence[Zeros],
    deadline: float,
) -> Iterator[Sequence[Estimated]]:
    """Models of the sets, some at a time; ``total`` of all, or None where each set implies one."""
    totals = [total] * len(sets) if total is not None else _totals(sets)
    if isinstance(model, RegionModel):
        return _regions(model, sets, totals, zeros, deadline)
    like = model.potentials[0].values if model.potentials else torch.empty(0, dtype=torch.float64)
    layout = Layout(model.domain, model.cliques)
    options: Options = {
        "zeros": zeros,
        "warm_start": model,
        "tolerance": _NEAR if affordable(layout, sets[0]) else _TOLERANCE,
        "device": like.device,
        "dtype": like.dtype,
    }
    return ManyEstimates(model.domain, sets, totals, None, options).chunks(deadline)


def _regions(
    model: RegionModel,
    sets: Sets,
    totals: Sequence[float],
    zeros: Sequence[Zeros],
    deadline: float,
) -> Iterator[Sequence[RegionModel]]:
    for measured, total in zip(sets, totals, strict=True):
        left = None if deadline == inf else max(1e-3, deadline - time.perf_counter())
        yield [
            estimate(
                model.domain,
                measured,
                total=total,
                zeros=zeros,
                tolerance=_TOLERANCE,
                max_seconds=left,
                inference="region",
                shrink=model.weight > 0,
            )
        ]


def _totals(sets: Sets) -> list[float]:
    """The totals that each set implies."""
    found = estimate_totals(sets[0], stacked(sets))
    return [max(1.0, total) for total in found.tolist()]
