"""The course of a search, or of many estimates, as it is reported from the start to the end."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pgmkit.runtime.typed import typed

CERTIFIED = "certified: the duality gap is within the tolerance"
OUT_OF_TIME = "time: max_seconds has passed"


class OutOfTime(Exception):
    """Raised deep inside a computation when the deadline has passed; the caller that set the
    deadline continues with what was computed.
    """


def check_time(deadline: float) -> None:
    """Raise OutOfTime if ``deadline``, a time of ``time.perf_counter``, has passed."""
    if time.perf_counter() >= deadline:
        raise OutOfTime


@dataclass(frozen=True)
class Progress:
    """The record that a progress callback receives in the course of a search.

    ``seconds`` have passed since the search began. ``loss`` is that of the present iterate,
    ``best_loss`` the lowest so far, and ``gap`` the difference between ``best_loss`` and the best
    lower bound; the gap is infinite until a bound is known.
    """

    iteration: int
    seconds: float
    loss: float
    best_loss: float
    gap: float


ProgressReport = bool | Callable[[Progress], None] | None
"""True for a bar on a terminal, a callable that receives each record, or False or None for
silence.
"""


def bar(iterable: Any = None, **options: Any) -> Any:
    """Return a bar of tqdm over ``iterable`` with tqdm's ``options``: a widget in a notebook (text
    where widgets are not installed), text on a terminal, and silent elsewhere.
    """
    import tqdm

    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if "IPKernelApp" not in getattr(shell, "config", ()):
        return tqdm.tqdm(iterable, **{"disable": None if sys.stderr else True} | options)
    with warnings.catch_warnings(action="ignore"):  # where widgets are not installed
        from tqdm.auto import tqdm as in_notebook
    return in_notebook(iterable, **options)


@contextmanager
@typed
def reporting(progress: ProgressReport) -> Iterator[Callable[[Progress], None] | None]:
    """Give the block the callback that the argument ``progress`` asks for (None for silence), and
    close a progress bar at the block's end.
    """
    if callable(progress) or not progress:
        yield progress if callable(progress) else None
        return
    with bar(desc="estimate", unit="it") as shown:

        def show(record: Progress) -> None:
            shown.update(1)
            if record.iteration % 20 == 1:
                shown.set_postfix(loss=f"{record.best_loss:.6g}", gap=f"{record.gap:.3g}")

        yield show


@contextmanager
def telling_time(
    what: str, every: float = 10.0, done: Callable[[], str] = lambda: ""
) -> Iterator[None]:
    """While the block runs, print a line on stderr every ``every`` seconds. The line says what the
    block does, for how many seconds it has run, and what ``done`` returns. Nothing is printed on a
    terminal, which shows progress bars.
    """
    began, ended = time.monotonic(), threading.Event()

    def tell() -> None:
        while not ended.wait(every):
            print(f"{what}: {time.monotonic() - began:.0f} s{done()}", file=sys.stderr, flush=True)

    if sys.stderr and not sys.stderr.isatty():
        threading.Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


@dataclass(frozen=True)
class Replication:
    """The record that a progress callback of many estimates receives: ``done`` of ``of`` estimates
    are finished, ``seconds`` after the start.
    """

    done: int
    of: int
    seconds: float


@contextmanager
@typed
def reporter(
    what: str, progress: bool | Callable[[Replication], None] | None, of: int
) -> Iterator[Callable[[int], None]]:
    """Give the block a function to be called with the number of estimates done so far. It updates
    the progress bar or calls the callback that ``progress`` asks for; ``what`` names the bar and
    ``of`` is the number of all estimates. If a bar is asked for where none can be shown, as in a
    pipe, a line every ten seconds has the number so far and, once there are some, the time that
    the others will take.
    """
    started = time.perf_counter()
    if progress and not callable(progress):
        with bar(desc=what, unit="model", total=of) as shown, ExitStack() as lines:

            def so_far() -> str:
                left = (time.perf_counter() - started) * (of / max(1, shown.n) - 1)
                return f", {shown.n} of {of} models" + f", about {left:.0f} s left" * bool(shown.n)

            if shown.disable:
                lines.enter_context(telling_time(what, done=so_far))

            def show(done: int) -> None:
                shown.update(done - shown.n)
                shown.n = done  # a bar that is not shown does not count

            yield show
        return
    call = progress if callable(progress) else lambda _: None
    yield lambda done: call(Replication(done, of, time.perf_counter() - started))
