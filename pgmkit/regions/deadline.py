"""A deadline that is checked deep inside a computation."""

from __future__ import annotations

import time


class OutOfTime(Exception):
    """Raised when the deadline has passed; the caller that set the deadline continues with what was
    computed.
    """


def check_time(deadline: float) -> None:
    """Raise OutOfTime if ``deadline``, a time of ``time.perf_counter``, has passed."""
    if time.perf_counter() >= deadline:
        raise OutOfTime
