"""Which answers are checked by a second computation, and how much time the checks may take."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from contextlib import suppress

from pgmkit.inference.plain_sums import TooLong
from pgmkit.inference.self_check import LEAST, MOST, SHARE

_FIRST_SECONDS = LEAST / 5
"""The checks of one kind of answer may take this long together before their share of the time
counts; that is four checks on a network of forty tables.
"""
_MOST_KEPT = 1 << 12
"""The structures that are remembered as checked."""


class FirstUses:
    """The structures of one model or graph that were checked already, and the time that checks
    took.

    The checks of one kind of answer take at most a tenth of the time of these answers, or five
    milliseconds where that is more, and none begins after a millisecond or that tenth. A structure
    for which there was no time is checked when it is asked again and there is time.
    """

    def __init__(self) -> None:
        self._checked: set[tuple[str, Hashable]] = set()
        self._answering: dict[str, float] = defaultdict(float)
        self._checking: dict[str, float] = defaultdict(float)

    def check(
        self, kind: str, structure: Hashable, started: float, at: Callable[[float], None]
    ) -> None:
        """Call the check ``at`` with the seconds it may take, if this is the structure's first use
        and time is left.

        ``started`` is the ``time.perf_counter()`` at which the answer was begun.
        """
        if (kind, structure) in self._checked:
            return
        begun = time.perf_counter()
        self._answering[kind] += begun - started
        share = min(MOST, SHARE * self._answering[kind])
        if self._checking[kind] >= max(_FIRST_SECONDS, share):
            return
        with suppress(TooLong):
            at(max(LEAST, share) - self._checking[kind])
        self._checking[kind] += time.perf_counter() - begun
        if len(self._checked) < _MOST_KEPT:
            self._checked.add((kind, structure))
