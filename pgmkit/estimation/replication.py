"""Progress reports of many estimates of one structure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pgmkit.runtime.progress import bar


@dataclass(frozen=True)
class Replication:
    """The record that a progress callback gets: how many estimates are ``done``, ``of`` how many,
    and the seconds so far.
    """

    done: int
    of: int
    seconds: float


@contextmanager
def reporter(
    what: str, progress: bool | Callable[[Replication], None] | None, of: int
) -> Iterator[Callable[[int], None]]:
    """Return a context manager that gives a function to be called with the number of estimates
    done. It updates the progress bar or calls the callback that ``progress`` asks for; ``what``
    names the bar and ``of`` is the number of all estimates.
    """
    started = time.perf_counter()
    if progress is True:
        with bar(desc=what, unit="model", total=of) as shown:
            yield lambda done: shown.update(done - shown.n)
        return
    call = progress if callable(progress) else None
    yield (
        lambda done: call(Replication(done, of, time.perf_counter() - started)) if call else None
    )
