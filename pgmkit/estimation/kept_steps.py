"""Captured steps, kept by structure, so that a later search of the same structure captures none."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from pgmkit.estimation.measured_objective import MeasuredObjective
from pgmkit.estimation.tensor_steps import State, Steps
from pgmkit.runtime.memory import available
from pgmkit.runtime.sizes import REMEMBERED

KEPT: dict[Hashable, tuple[MeasuredObjective, Steps]] = {}
"""The steps and their objective for each structure, in the order of their last use."""
_LOCK = threading.Lock()


@contextmanager
def steps_of(objective: MeasuredObjective, first: State) -> Iterator[Steps]:
    """Yield steps that minimise the objective from its state ``first``.

    If captured steps of the same structure are kept, they are used, after the objective's values
    were copied to their memory. The block has the steps to itself. When it ends without an error,
    captured steps are kept. At most REMEMBERED structures are kept, and together they take at most
    1 / REMEMBERED of the GPU's free memory; the least recently used ones are dropped.
    """
    room = available(objective.inference.device) // REMEMBERED
    if objective.bytes > room:
        yield Steps(objective, first)
        return
    structure = objective.structure
    with _LOCK:
        kept = KEPT.pop(structure, None)
    if kept is None:
        kept = objective, Steps(objective, first, objective.separate)
    else:
        for own, new in zip(kept[0].inputs, objective.inputs, strict=True):
            own.copy_(new)
        kept[1].state.take(first)
    yield kept[1]
    if kept[1].captured:
        with _LOCK:
            KEPT[structure] = kept
            while len(KEPT) > REMEMBERED or sum(each.bytes for each, _ in KEPT.values()) > room:
                del KEPT[next(iter(KEPT))]
