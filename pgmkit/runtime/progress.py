"""Reports of a search while it runs, and the texts for how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["CERTIFIED", "OUT_OF_TIME", "Progress", "ProgressReport", "reporting"]

CERTIFIED = "certified: the duality gap is within the tolerance"
OUT_OF_TIME = "time: max_seconds has passed"


@dataclass(frozen=True)
class Progress:
    """The record that a progress callback receives; ``gap`` is infinite until a bound is known."""

    iteration: int
    seconds: float
    loss: float
    best_loss: float
    gap: float


ProgressReport = bool | Callable[[Progress], None] | None
"""True for a bar on a terminal, a callable that receives each record, or False or None for
silence.
"""


@contextmanager
def reporting(progress: ProgressReport) -> Iterator[Callable[[Progress], None] | None]:
    """Return the callback that the argument ``progress`` asks for, None for silence."""
    if progress is not True:
        yield progress if callable(progress) else None
        return
    from tqdm import tqdm

    with tqdm(desc="estimate", unit="it", disable=None) as bar:

        def show(record: Progress) -> None:
            bar.update(1)
            if record.iteration % 20 == 1:
                bar.set_postfix(loss=f"{record.best_loss:.6g}", gap=f"{record.gap:.3g}")

        yield show
