"""The decorator by which functions of mechanisms take a Curator, a workload and settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from mechanisms.privacy.curator import Curator
from mechanisms.workload import Workload, WorkloadLike
from pgmkit.runtime.typed import typed

R = TypeVar("R")


def mechanism(kind: type[Any]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Return a decorator for the function of a mechanism whose settings are of this kind.

    The function takes a Curator, a Workload over the Curator's domain, the settings, and further
    arguments by name. Callers of the decorated function may also give the workload as cliques, and
    may leave out the settings, which then have their defaults. All arguments are checked by their
    annotations. The decorated function raises InvalidInput, before anything is spent, for a
    workload over another domain.
    """

    def decorated(function: Callable[..., R]) -> Callable[..., R]:
        checked = typed(function)

        @typed
        def completed(
            curator: Curator, workload: WorkloadLike, settings: Any = None, **options: Any
        ) -> R:
            known = kind() if settings is None else settings
            return checked(curator, Workload.over(curator.domain, workload), known, **options)

        signature = inspect.signature(function)
        allowed = dict(signature.parameters)
        settings = allowed["settings"]
        allowed["workload"] = allowed["workload"].replace(annotation="WorkloadLike")
        allowed["settings"] = settings.replace(
            annotation=f"{settings.annotation} | None", default=None
        )
        told = wraps(function)(completed)
        vars(told)["__signature__"] = signature.replace(parameters=[*allowed.values()])
        return told

    return decorated
