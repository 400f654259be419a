"""Remarks on texts that a draft can read neither as times nor as numbers, though they look like
them: what they are, and how to write them instead.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pgmkit.tables.draft.format import COMMA, unsigned
from pgmkit.tables.draft.thresholds import FEW, NEARLY_ALL, SURE
from pgmkit.tables.draft.times import FORMATS, has_offset, is_written

_DURATIONS = {
    "H:MM:SS": re.compile(r"-?\d+:[0-5]\d:[0-5]\d([.,]\d+)?"),
    "H:MM": re.compile(r"-?\d+:[0-5]\d"),
    "D days HH:MM:SS": re.compile(r"-?\d+ days?,? \+?\d\d?:[0-5]\d:[0-5]\d(\.\d+)?"),
    "PnDTnHnMnS": re.compile(r"-?P(?=.*\d)(\d+D)?(T(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?"),
}
"""Patterns of durations by their form; hours may exceed 24."""
_OF_UNIT = re.compile(
    r"([A-Z]{3}\s(?!0\d))?[-+]?\d[\d.,'\u2019]*(?(1)|\s?([^\W\d_]+(?:/[^\W\d_]+)?|°[CF]))"
)
"""This pattern matches a number with a unit, such as 12.5 km, 139 mmol/l or CHF 12.50."""
_LOOKED_AT = round(SURE / (1 - NEARLY_ALL))
"""The number of texts (200, and fewer than twice as many) that are examined to find the most
frequent kind; of fewer texts all are. A kind that is more than an oversight occurs about twenty
times among them. Each text is compared with over a hundred formats.
"""


def advice(texts: Sequence[str]) -> tuple[str, list[str]]:
    """Return a remark on texts that are durations, times with different offsets, numbers with a
    decimal comma or a unit, or dates written in several ways; it is empty for other texts. If
    nearly all texts are dates or times written in one way, the second result has the others;
    otherwise it is empty.

    >>> advice(["26:15:00", "3:05:10", "41:00:59"])[0]
    'durations written H:MM:SS: write them as numbers of seconds, and draft again'
    >>> advice(["31/01/2020", "2020.02.28", "03.02.2020", "29/02/2020"])
    ('', [])
    >>> advice([*(f"{hour}:30" for hour in range(24)), "9.12"])
    ('', ['9.12'])
    """
    found, others = _covering(texts, {k: v.fullmatch for k, v in _DURATIONS.items()})
    ways, strays = _covering(texts, {form: partial(is_written, form=form) for form in FORMATS})
    units = Counter((each[1] or each[2]).strip() for each in map(_OF_UNIT.fullmatch, texts) if each)
    [(unit, times)] = units.most_common(1) or [("", 0)]
    if len(ways) == 1 and (not found or len(strays) <= len(others)):
        return "", strays
    if found:
        what, how = f"durations written {' or '.join(found)}", "them as numbers of seconds"
        what += _beside(others)
    elif texts and all(map(has_offset, texts)):
        what, how = "points in time with different offsets from Greenwich", "them in one zone"
    elif texts and all(COMMA.fullmatch(unsigned(text)) for text in texts):
        what = "numbers with a decimal comma, where another column has a decimal point"
        how = "all in one way"
    elif ways:
        what, how = f"dates written {' and '.join(ways)}", "all in one way, such as %Y-%m-%d"
        what += _beside(strays)
    elif times > max(SURE, NEARLY_ALL * len(texts)):
        what, how = f"numbers with the unit {unit!r}", "the numbers alone"
    else:
        return "", []
    return f"{what}: write {how}, and draft again", []


def _covering(
    texts: Sequence[str], kinds: Mapping[str, Callable[[str], object]]
) -> tuple[list[str], list[str]]:
    """Return the kinds that together match nearly all texts, most frequent first, and the texts
    that match none of them.

    `kinds` maps a name to a function whose result is true for texts of that kind. Both lists are
    empty if all kinds together match too few texts.
    """
    left, found = list(texts), list[str]()
    while left:
        some = left[:: max(1, len(left) // _LOOKED_AT)]
        times = {kind: sum(map(bool, map(matches, some))) for kind, matches in kinds.items()}
        most = max(times, key=times.__getitem__)
        if not times[most]:
            break
        found.append(most)
        left = [text for text in left if not kinds[most](text)]
    return (found, left) if len(left) <= (1 - NEARLY_ALL) * len(texts) else ([], [])


def _beside(others: Sequence[str]) -> str:
    if not others:
        return ""
    shown = ", ".join(map(repr, sorted(others)[:FEW]))
    return f" (and {len(others)} other texts, such as {shown}: list them under `missing`)"
