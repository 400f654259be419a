"""The end of the time allowed, deep inside a computation."""

from __future__ import annotations

import time

__all__ = ["OutOfTime", "check_time"]


class OutOfTime(Exception):
    """The deadline has passed; whoever set it goes on with what there is."""


def check_time(deadline: float) -> None:
    """Raise OutOfTime from ``deadline`` (``time.perf_counter``) on."""
    if time.perf_counter() >= deadline:
        raise OutOfTime
