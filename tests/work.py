"""The work of a call, counted: the same number on fast and slow machines."""

import sys
from collections.abc import Callable
from types import FrameType


def calls(action: Callable[[], object]) -> int:
    """Return how many functions `action` calls on this thread, those written in C included.

    >>> calls(lambda: [abs(i) for i in range(100)]) < 110
    True
    """
    count = 0

    def see(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        action()
    finally:
        sys.setprofile(before)
    return count
