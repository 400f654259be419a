"""The decorator of every mechanism's function, and the loop of the adaptive mechanisms, which
select what the model answers worst, measure it, and update the model.

The loop is the framework of Liu, Vietri and Wu, "Iterative Methods for Private Synthetic Data"
(2021), Algorithm 1. A mechanism supplies the three steps; `select` and `measure` see the private
data through a Curator, `update` must be built in a scope that does not have the data.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from mechanisms.privacy.curator import Curator
from mechanisms.queries.cells import Question, clique_of
from mechanisms.release import record
from mechanisms.release.record import Measured, Release
from mechanisms.workload import Workload, WorkloadLike
from pgmkit import InvalidInput
from pgmkit.domain import Clique
from pgmkit.runtime.arguments import listed
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.progress import bar
from pgmkit.runtime.typed import typed


class Answers(Protocol):
    """A model that answers marginals, in counts; each round of `adapt` replaces it by an updated
    one.
    """

    def marginals(self, cliques: Sequence[Clique], /) -> Mapping[Clique, Array]: ...


Model = TypeVar("Model", bound=Answers)
Picked = TypeVar("Picked", bound=Question)


@dataclass(frozen=True)
class Round(Generic[Model, Picked]):
    """One round of any mechanism, in a form that may be published: it holds nothing exact about the
    private data.

    Attributes:
        index: The number of the round, from 0.
        picked: The selected queries, in a tuple: whole marginals by their cliques, `Cell`s or
            `Predicate`s.
        measurements: The noisy answers; empty if the mechanism measures nothing.
        before: The model that the selection was based on; it answers `marginals`, in counts.
        after: The model after the update.
    """

    index: int
    picked: tuple[Picked, ...]
    measurements: tuple[Measured, ...]
    before: Model
    after: Model

    @property
    def cliques(self) -> tuple[Clique, ...]:
        """The attributes of each selected query, each set once, whether or not it was measured."""
        return tuple(dict.fromkeys(map(clique_of, self.picked)))


Progress: TypeAlias = Callable[[Round[Any, Any]], None] | None
"""A function that is called with each finished round; None for none."""


@typed
def adapt(
    model: Model,
    measurements: Sequence[Measured],
    *,
    select: Callable[[Model, Round[Model, Picked] | None], Sequence[Picked] | None],
    measure: Callable[[Sequence[Picked]], Sequence[Measured]],
    update: Callable[[Model, Sequence[Any]], Model],
    progress: Progress = None,
) -> tuple[Model, tuple[Any, ...]]:
    """Run rounds until `select` returns None; return the last model and all measurements.

    The loop starts from `model` and `measurements`. `select(model, last_round)` returns the
    selected queries as a sequence; in the first round `last_round` is None. `measure(picked)`
    returns the noisy answers to these queries in a sequence. `update(model, measurements)` gets all
    measurements so far, and returns the next model. An exception from a step or from `progress`
    (KeyboardInterrupt too) is passed on at once, and nothing half-done is returned.

    >>> steps = iter([[("a",)], [("b",), ("a",)], None])
    >>> class Count(int):
    ...     def marginals(self, cliques):
    ...         return {}
    >>> adapt(Count(0), [], select=lambda model, last: next(steps), measure=lambda picked: [],
    ...       update=lambda model, measurements: Count(model + 1),
    ...       progress=lambda each: print(each.cliques))
    (('a',),)
    (('b',), ('a',))
    (2, ())
    """
    taken = tuple(listed(measurements, "measurements", "noisy answers"))
    last: Round[Model, Picked] | None = None
    while (picked := select(model, last)) is not None:
        fresh = tuple(listed(measure(picked), "the result of measure", "noisy answers"))
        taken += fresh
        updated = update(model, taken)
        last = Round(0 if last is None else last.index + 1, tuple(picked), fresh, model, updated)
        model = updated
        if progress is not None:
            progress(last)
    return model, taken


@contextmanager
def round_reports(progress: bool | Progress) -> Iterator[Progress]:
    """Yield the function to call at the end of each round: a callable `progress` itself; for True,
    that of a progress bar, which is silent in a pipe; otherwise None.
    """
    if progress is not True:
        yield None if progress is False else progress
        return
    with bar(unit="round") as shown:

        def show(finished: Round[Any, Any]) -> None:
            if finished.cliques:
                shown.set_postfix_str(" x ".join(finished.cliques[-1]))
            shown.update()

        yield show


Outcome: TypeAlias = tuple[record.Model, Sequence[Measured]]
"""The result of a mechanism's function: the model that is released, and all measurements."""


def mechanism(
    name: str, kind: type[Any]
) -> Callable[[Callable[..., Outcome | Release]], Callable[..., Release]]:
    """Return a decorator for the function of the mechanism of this name, whose settings are of this
    kind.

    The function takes a Curator, a Workload over the Curator's domain, the settings, and further
    arguments by name, and returns an `Outcome` or its release. Callers of the decorated function
    may also give the workload as cliques, may leave out the settings, which then have their
    defaults, and get the release. All arguments are checked by their annotations. The decorated
    function raises InvalidInput, before anything is spent, for a workload over another domain, and
    for a budget that leaves noise below 2^-20 records.
    """

    def decorated(function: Callable[..., Outcome | Release]) -> Callable[..., Release]:
        checked = typed(function)

        @typed
        def completed(
            curator: Curator, workload: WorkloadLike, settings: Any = None, **options: Any
        ) -> Release:
            known, budget = kind() if settings is None else settings, curator.ledger.budget
            # Beside less noise float64 cannot hold counts above 2^33 (`pgmkit.measurement`). The
            # number of rows may be private, so it must not decide.
            if (noise := curator.scale(budget.total)) < 2**-20:
                raise InvalidInput(
                    f"epsilon = {budget.epsilon:g} leaves noise of {noise:.2g} records, which is "
                    "too little to compute with; choose a smaller one, 0.1 to 10 are usual"
                )
            found = checked(curator, Workload.over(curator.domain, workload), known, **options)
            if isinstance(found, Release):
                return found
            model, measurements = found
            return Release(name, model, tuple(measurements), curator.ledger, known)

        signature = inspect.signature(function)
        allowed = dict(signature.parameters)
        settings = allowed["settings"]
        allowed["workload"] = allowed["workload"].replace(annotation="WorkloadLike")
        allowed["settings"] = settings.replace(
            annotation=f"{settings.annotation} | None", default=None
        )
        told = wraps(function)(completed)
        vars(told)["__signature__"] = signature.replace(
            parameters=[*allowed.values()], return_annotation="Release"
        )
        return told

    return decorated
