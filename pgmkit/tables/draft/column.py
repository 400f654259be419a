"""The draft of one column from its texts: times, numbers, truth values, labels, or none, with
remarks on texts that look like times or numbers, but cannot be read as such.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

from pgmkit.tables.columns import Column
from pgmkit.tables.draft.format import COMMA, DASHES, MISSING, unsigned
from pgmkit.tables.draft.numbers import number_column, numbers_beside, numbers_in, taken_for_missing
from pgmkit.tables.draft.thresholds import FEW, NEARLY_ALL, SURE
from pgmkit.tables.draft.times import FORMATS, has_offset, is_written, time_column
from pgmkit.tables.labelled import Boolean, Categorical, OpenCategorical
from pgmkit.tables.values import is_number, text_of, with_point

_DIGITS = re.compile(r"-?(0|[1-9]\d*)(\.\d*)?")
"""This pattern matches numbers without leading zeros; texts with leading zeros are codes."""
_NUMBERS = re.compile(r"(\d+(?:,\d{3})*(?:\.\d+)?)")
"""This pattern matches a number inside a text, as its only group."""
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
_POINTED = re.compile(r"-?[1-9]\d{0,2}(\.\d{3})*")
_MINUS = re.compile(r"[-+]?([\u2212\u2013]?)\d[\d.,'\u2019]*(-?)")
"""This pattern matches a number, and as its groups another sign for minus before it (a minus sign
of Unicode or a dash) and a minus sign behind it.
"""
_LOOKED_AT = round(SURE / (1 - NEARLY_ALL))
"""The number of texts (200, and fewer than twice as many) that are examined to find the most
frequent kind; of fewer texts all are. A kind that is more than an oversight occurs about twenty
times among them. Each text is compared with over a hundred formats.
"""


class Drafted(NamedTuple):
    """A proposed column with its reason.

    `column`: the column, or None if it is to be left out of the schema. `note`: the reason, which
    the draft has as a comment.
    """

    column: Column | None
    note: str


def draft_column(tally: Mapping[str, int], most_values: int = 50, decimal: str = ".") -> Drafted:
    """Return the draft of a column from the number of rows of each text, `tally`, in which missing
    values are under an empty text. `most_values` is that of `draft`, and `decimal` the decimal
    sign.

    >>> draft_column({"3": 9, "17": 9, "29": 9}).column.values
    (3, 17, 29)
    >>> print(draft_column({"2020-01-31": 9, "2020-02-01": 9}).note)
    dates 2020-01-31 to 2020-02-01, by day; decoded uniformly within
    """
    absent = _absent(tally, decimal)
    counts = Counter({t: times for t, times in tally.items() if t and t not in absent})
    listed = sorted(text for text in tally if text in absent)
    missing = tuple(listed) if listed else () if "" in tally else None
    gaps = f"; {sum(tally.values()) - sum(counts.values())} missing" if missing is not None else ""
    drafted = _present(counts, missing, most_values, decimal)
    return drafted._replace(note=drafted.note + gaps)


def _absent(tally: Mapping[str, int], decimal: str) -> frozenset[str]:
    """Return the texts that stand for missing values, whether they occur or not. Dashes and points
    are among them if all other texts are numbers, or all are times.
    """
    usual = frozenset(MISSING)
    rest = [text for text in tally if text and text not in usual and text not in DASHES]
    if rest and (
        all(is_number(with_point(text, decimal)) for text in rest)
        or time_column(rest, None) is not None
    ):
        return usual | DASHES
    return usual


def _present(
    counts: Counter[str], missing: tuple[str, ...] | None, most_values: int, decimal: str
) -> Drafted:
    """Return the draft of a column from the number of rows of each text that is not missing,
    `counts`. `missing`: the texts that stand for missing values, None if no value is missing.
    """
    if not counts:
        return Drafted(None, "no value at all; left out; to keep it, say what it may hold")
    always = f"; always {next(iter(counts))!r} here" * (len(counts) == 1)
    for words in (("false", "true"), ("False", "True"), ("FALSE", "TRUE")):
        if counts.keys() <= {*words}:
            written = None if words == ("false", "true") else words
            return Drafted(Boolean(words=written, missing=missing), f"true or false{always}")
    timed = None if all(map(str.isdigit, counts)) and always else time_column([*counts], missing)
    if always and timed is None:
        return _constant(next(iter(counts)), missing, decimal)
    found = timed or number_column(counts, missing, most_values, decimal)
    if found is not None:
        return Drafted(*found)
    drafted = _labelled(counts, missing, most_values)
    remark, strays = advice(list(counts))
    kept, gaps = [text for text in counts if text not in strays], (*(missing or ("",)), *strays)
    if strays and (timed := time_column(kept, gaps)):
        return Drafted(timed[0], f"{timed[1]}; {taken_for_missing(strays)}")
    if not remark:
        many = drafted.column is None or len(counts) > most_values
        beside = numbers_beside(counts, missing or (), most_values, decimal) if many else None
        return Drafted(*beside) if beside else drafted
    decided = "left out until then" if drafted.column is None else drafted.note
    return drafted._replace(note=f"{remark}; {decided}")


def _labelled(counts: Counter[str], missing: tuple[str, ...] | None, most_values: int) -> Drafted:
    """Return the draft of a column of texts that are neither numbers nor times: listed labels (at
    most `most_values`, unless they occur often), an open column, or None with the reason why it is
    left out. `missing`: the texts that stand for missing values.
    """
    rows = sum(counts.values())
    if rows >= SURE and len(counts) > NEARLY_ALL * rows:
        words = sum(len(text.split()) for text in counts) / len(counts)
        if words >= FEW:  # sentences, and not names or addresses
            return Drafted(
                None,
                f"free text: nearly all texts differ, of {words:.0f} words on average; left out, "
                "as sentences say who wrote them. Derive categories from them to keep what they "
                "say",
            )
        note = f"all {rows} texts differ; left out"
        if len(counts) < rows:
            note = "nearly all texts differ; left out. If one stands for a person with several "
            note += "rows, it is the unit to protect"
        return Drafted(None, f"an identifier: {note}; to keep it, list it as open")
    # Of texts that occur often, such as countries, up to `SURE` times as many are listed.
    if len(counts) <= most_values * (SURE if rows >= SURE * len(counts) else 1):
        same = _same_number(counts)
        note = f"{len(counts) - len(same)} labels; list every one that may occur, or give `other`"
        folded = Counter(text.casefold() for text in counts)
        if len(folded) < len(counts):
            twice = [text for text in counts if folded[text.casefold()] > 1]
            ordered = sorted(twice, key=lambda text: (text.casefold(), text))
            shown = [text for text in ordered if text.casefold() <= ordered[:4][-1].casefold()]
            note += f"; {', '.join(shown)} differ by case: one may be listed in `aliases`"
        if same:
            note += f"; {', '.join(map(repr, same))} are other spellings of numbers"
        listed = tuple(sorted((text for text in counts if text not in same), key=text_order))
        return Drafted(Categorical(listed, missing=missing, aliases=same), note)
    note = f"{len(counts)} texts: open, the frequent ones are found with a budget"
    return Drafted(OpenCategorical(missing=missing), note)


def _same_number(texts: Collection[str]) -> dict[str, str]:
    """Return the texts of numbers that have a shorter spelling among the texts, each with that
    spelling.

    >>> _same_number(["9.0", "9", "B"])
    {'9.0': '9'}
    """
    first: dict[Decimal, str] = {}
    same = {}
    for text in sorted(texts, key=lambda text: (len(text), text)):
        # A Decimal is exact: floats would equate large whole numbers.
        if _DIGITS.fullmatch(text) and (known := first.setdefault(Decimal(text), text)) != text:
            same[text] = known
    return same


def _constant(text: str, missing: tuple[str, ...] | None, decimal: str) -> Drafted:
    note = f"always {text!r}: it says nothing; drop it, or list what else may occur"
    point = with_point(text, decimal)  # a text that is not the number's own, such as 2.50, is kept
    numbers = [n for n in numbers_in({point: 1}) or () if point in (text_of(n), f"{n}.0")]
    return Drafted(Categorical(tuple(numbers) or (text,), missing=missing), note)


def text_order(text: str) -> tuple[Any, ...]:
    """Return a sort key that puts numbers in order before texts, and compares numbers inside texts
    as numbers.

    >>> sorted(["10", "A", "2", "-nan", "01", "1"], key=text_order)
    ['01', '1', '2', '10', '-nan', 'A']
    >>> sorted(["step 10", "step 2", "$1,000", "$900", "1.25 mg", "1.5 mg"], key=text_order)
    ['1.25 mg', '1.5 mg', '$900', '$1,000', 'step 2', 'step 10']
    """
    number = math.inf
    with suppress(ValueError):
        number = min(number, float(text))  # NaN counts as infinity
    inside = _NUMBERS.split(text)  # texts and numbers alternate
    inside[1::2] = [Decimal(each.replace(",", "")) for each in inside[1::2]]
    return number, inside, text


def advice(texts: Sequence[str]) -> tuple[str, list[str]]:
    """Return a remark on texts that are durations, times with different offsets, numbers with a
    decimal comma, points for thousands, a unit or an odd minus sign, or dates written in
    several ways; it is empty for other texts. If nearly all texts are dates or times written in one
    way, the second result has the others; otherwise it is empty.

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
    minus = [each[1] + each[2] for each in map(_MINUS.fullmatch, texts) if each]
    points = {text.count(".") for text in texts}
    plain = list(map(unsigned, texts))
    [(unit, times)] = units.most_common(1) or [("", 0)]
    if len(ways) == 1 and (not found or len(strays) <= len(others)):
        return "", strays
    if found:
        what, how = f"durations written {' or '.join(found)}", "them as numbers of seconds"
        what += _beside(others)
    elif texts and all(map(has_offset, texts)):
        what, how = "points in time with different offsets from Greenwich", "them in one zone"
    elif texts and all(map(COMMA.fullmatch, plain)):
        what = "numbers with a decimal comma, where another column has a decimal point"
        how = "all in one way"
    elif 2 in points and all(map(_POINTED.fullmatch, plain)):  # an address has three points
        what, how = "numbers with points as signs of thousands", "them without the points"
    elif ways:
        what, how = f"dates written {' and '.join(ways)}", "all in one way, such as %Y-%m-%d"
        what += _beside(strays)
    elif times > max(SURE, NEARLY_ALL * len(texts)):
        what, how = f"numbers with the unit {unit!r}", "the numbers alone"
    elif sum(map(bool, minus)) >= SURE and len(minus) > NEARLY_ALL * len(texts):
        what, how = f"numbers with {max(minus)!r} for minus", "- before them"
        what = "numbers with the minus sign behind them" if max(minus) == "-" else what
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
