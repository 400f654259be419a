"""The one loop of the adaptive mechanisms: select what the model answers worst, measure, update.

The framework of Liu, Vietri and Wu, "Iterative Methods for Private Synthetic Data" (2021),
Algorithm 1. A mechanism supplies the three steps; `select` and `measure` see the private data
through a Curator, `update` must be built in a scope that does not have the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pgmkit.measurement import Measurement

__all__ = ["Round", "adapt", "round_reports"]

Model = TypeVar("Model")
Pick = TypeVar("Pick")


@dataclass(frozen=True)
class Round(Generic[Model, Pick]):
    """One round as it may be published: nothing exact is in it.

    `index` counts from 0; `picked` is what was selected; `measurements` are its noisy values;
    `before` and `after` are the models around the update.
    """

    index: int
    picked: Pick
    measurements: tuple[Measurement, ...]
    before: Model
    after: Model


def adapt(
    model: Model,
    measurements: Sequence[Measurement],
    *,
    select: Callable[[Model, Round[Model, Pick] | None], Pick | None],
    measure: Callable[[Pick], Sequence[Measurement]],
    update: Callable[[Model, Sequence[Measurement]], Model],
    progress: Callable[[Round[Model, Pick]], None] | None = None,
) -> tuple[Model, tuple[Measurement, ...]]:
    """Run rounds until `select` returns None; the last model and all measurements.

    `select(model, last_round)` gets None as the last round before the first; `update(model,
    measurements)` gets all measurements so far. An exception from a step or from `progress`
    (KeyboardInterrupt too) leaves at once and nothing half-done is returned.

    >>> steps = iter([3, 5, None])
    >>> adapt(0, [], select=lambda model, last: next(steps), measure=lambda pick: [],
    ...       update=lambda model, measurements: model + 1, progress=lambda r: print(r.picked))
    3
    5
    (2, ())
    """
    taken = tuple(measurements)
    last: Round[Model, Pick] | None = None
    while (picked := select(model, last)) is not None:
        fresh = tuple(measure(picked))
        taken += fresh
        updated = update(model, taken)
        last = Round(0 if last is None else last.index + 1, picked, fresh, model, updated)
        model = updated
        if progress is not None:
            progress(last)
    return model, taken


@contextmanager
def round_reports(
    progress: bool | Callable[[Round[Any, Any]], None] | None,
) -> Iterator[Callable[[Round[Any, Any]], None] | None]:
    """What is called after each round: the callable, or a bar on a terminal, silent in a pipe."""
    if progress is not True:
        yield progress or None
        return
    from tqdm import tqdm

    with tqdm(disable=None, unit="round") as bar:

        def show(finished: Round[Any, Any]) -> None:
            if finished.measurements:
                bar.set_postfix_str(" x ".join(finished.measurements[-1].clique))
            bar.update()

        yield show
