"""The choice of answers to check by a second computation, and the time for these checks."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from contextlib import suppress

from pgmkit.inference.plain_sums import TooLong
from pgmkit.inference.self_check import LEAST, MOST, SHARE
from pgmkit.runtime.sizes import REMEMBERED

FIRST_SECONDS = LEAST / 5
"""A check may begin while the checks of its kind have taken less time than this together, even if
a tenth of the answers' time is less. It suffices for four checks on a network of forty tables.
"""
_MOST_KEPT = REMEMBERED**2
"""The number of structures that are remembered as checked: ``REMEMBERED`` kinds of evidence with
``REMEMBERED`` kinds of questions each. Others are checked each time.
"""


class FirstUses:
    """A record of which structures of one model or graph were checked, and of the time that checks
    took.

    Each kind of answer has its own time for checks: a tenth of the time of those answers of this
    kind that were not checked before, at most a second. A new check begins only while the checks of
    the kind have taken less than this time, or less than a millisecond; the checks together take at
    most this time, or five milliseconds if that is more. A structure whose check could not begin is
    checked when it is asked again and there is time.
    """

    def __init__(self) -> None:
        self._checked: set[tuple[str, Hashable]] = set()
        self._answering: dict[str, float] = defaultdict(float)
        self._checking: dict[str, float] = defaultdict(float)

    def check(
        self, kind: str, structure: Hashable, started: float, at: Callable[[float], None]
    ) -> None:
        """Check an answer if its structure was not checked before and there is time left.

        Args:
            kind: the kind of the answer; each kind has its own time.
            structure: what identifies the question except for its values.
            started: the ``time.perf_counter()`` at which the answer was begun.
            at: the check, called with the seconds that it may take. It may raise Contradiction, or
                TooLong, which ends it without a result; the structure then counts as checked.
        """
        if (kind, structure) in self._checked:
            return
        begun = time.perf_counter()
        self._answering[kind] += begun - started
        share = min(MOST, SHARE * self._answering[kind])
        if self._checking[kind] >= max(FIRST_SECONDS, share):
            return
        with suppress(TooLong):
            at(max(LEAST, share) - self._checking[kind])
        self._checking[kind] += time.perf_counter() - begun
        if len(self._checked) < _MOST_KEPT:
            self._checked.add((kind, structure))
