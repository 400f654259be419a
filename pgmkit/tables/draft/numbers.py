"""Numbers among texts: codes, scales, identifiers, sentinels, spikes and bins."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from pgmkit.errors import InvalidInput
from pgmkit.runtime.precision import EXACT
from pgmkit.tables.columns import LARGEST, Column
from pgmkit.tables.draft.edges import crowded_edges
from pgmkit.tables.draft.format import doubt
from pgmkit.tables.draft.thresholds import BINS, FEW, NEARLY_ALL, OFTEN, SURE
from pgmkit.tables.labelled import Categorical
from pgmkit.tables.numbers import Integer, Numeric
from pgmkit.tables.values import bare, is_number, number_of, text_of, with_point

_MOST_SINGLE = FEW * BINS
"""The widest range of whole numbers in which each gets a code of its own, as with ages and
percentages: five times as many as a drafted column has bins.
"""
_SENTINEL = re.compile(r"9+|9*[78]|7{2,}|8{2,}")
_PLAIN = re.compile(r"[-+.,0-9eE]+")
_UNENDING = re.compile(r"(?i:[-+]?(inf|infinity|nan))").fullmatch
_EXACT_DIGITS = sys.float_info.dig
"""The decimal digits that float64 holds; a text of as many was written from a computed number."""
_SINGLE_DIGITS = math.ceil(1 + math.log10(1 / np.finfo(np.float32).epsneg))
"""The decimal digits that tell numbers in single precision apart."""

Drafted = tuple[Column | None, str]
"""A proposed column, or None for one to be left out of the schema, and the reason."""


def number_column(
    counts: Counter[str], missing: tuple[str, ...] | None, most_values: int, decimal: str = "."
) -> Drafted | None:
    """Return a column of numbers for these texts, and the reason for it; if the numbers are
    identifiers, None in place of the column, beside the reason. Return None alone if some text is
    no number, is a code such as 007 or 01.10, or has more digits than a column of numbers holds.

    `counts`: the number of rows of each text, in order of occurrence. `missing`: the texts for
    missing values, None if there are none. `most_values`: the most distinct whole numbers that are
    taken for codes and listed. `decimal`: the decimal sign.

    >>> likert = Counter({str(i): 10 for i in range(1, 6)})
    >>> number_column(likert, None, 50)[1]
    'whole numbers 1..5, a code each'
    """
    printed = Counter[str]()
    for text, times in counts.items():
        printed[bare(with_point(text, decimal))] += times
    numbers = numbers_in(printed)
    if numbers is None:
        return None
    if all(isinstance(number, int) for number in numbers):
        column, note = _whole(numbers, missing, most_values)  # type: ignore[arg-type]
    else:
        places = _places(printed)
        column, note = _real(numbers, max(places), len(places) == 1, missing)
    signs = any(decimal == "." and bare(text) != text for text in counts)
    signs |= any(not _PLAIN.fullmatch(text) for text in counts)
    note += "; read and written without signs for units and thousands" * signs
    return column, note + doubt(list(printed), decimal)


def numbers_beside(
    counts: Counter[str], missing: tuple[str, ...], most_values: int, decimal: str
) -> Drafted | None:
    """Return the column of numbers for texts of which nearly all, each counted once, are finite
    numbers, with the others as texts for missing values, and the reason. There is None in place of
    the column if one of the others, such as 3.5 beside decimal commas, has the number of a value of
    the column. Return None alone for other texts, for numbers that are identifiers, and where
    `number_column` does.
    """
    others = [t for t in sorted(counts) if not is_number(with_point(t, decimal)) or _UNENDING(t)]
    if len(others) > (1 - NEARLY_ALL) * len(counts):
        return None
    numbers = counts - Counter({text: counts[text] for text in others})
    try:
        found = number_column(numbers, (*missing, *others), most_values, decimal)
    except InvalidInput:
        # A column does not take a value of its own, such as 3.5 beside decimal commas, for missing.
        shown = ", ".join(map(repr, others[:FEW]))
        return None, (
            f"numbers beside {shown} with another decimal sign: write all in one way, and draft "
            "again; left out until then"
        )
    if found is None or found[0] is None:
        return None
    return found[0], f"{found[1]}; {taken_for_missing(others)}"


def taken_for_missing(texts: Sequence[str]) -> str:
    """Return the clause of a draft that says which texts are taken for missing values."""
    shown = ", ".join(map(repr, texts[:FEW])) + (", ..." if len(texts) > FEW else "")
    limits = (
        "; a limit is told from missing values if it is written as a number: a detection limit as "
        "one beyond the range that `special` lists, a top code as the beginning of the last bin"
    )
    bounded = any(text.startswith(("<", ">")) or text.endswith("+") for text in texts)
    return f"{shown} among them taken for missing: correct `missing` if not" + limits * bounded


def numbers_in(counts: Mapping[str, int]) -> Counter[int | float] | None:
    """Return the number of rows of each number.

    None if a text is no finite number, is a code, which begins with a zero and a further digit
    (007, 01.10), or is a whole number in digits alone that is too large for a column of numbers.
    """
    numbers: Counter[int | float] = Counter()
    for text, times in counts.items():
        digits = text.lstrip("+-")
        if digits[:1] == "0" and digits[1:2].isdigit():
            return None
        try:
            number = number_of(text)
        except ValueError:
            return None
        large = isinstance(number, int) and abs(number) > LARGEST
        if large or not math.isfinite(number) or "_" in text:
            return None
        whole = float(number).is_integer() and abs(number) < EXACT
        numbers[int(number) if whole else number] += times
    return numbers


def _whole(numbers: Counter[int], missing: tuple[str, ...] | None, most_values: int) -> Drafted:
    rows = sum(numbers.values())
    if len(numbers) == rows >= SURE and _is_identifier(numbers):
        return None, (
            f"an identifier: all {rows} numbers differ; left out; to keep it, describe it as "
            "integer"
        )
    special = _sentinels(numbers)
    usual = Counter({n: times for n, times in numbers.items() if n not in special})
    low, high = min(usual), max(usual)
    width = high - low + 1
    # At most `most_values` whole numbers, of three or more rows on average, are taken for codes and
    # not quantities if they fill less than half of their range or if at most one is no sentinel. Of
    # over twenty numbers only those of the middle nine tenths of the rows count, since the sparse
    # tails of a quantity leave gaps, too.
    middle = sorted(usual)
    if len(usual) > BINS:
        reached = np.cumsum([usual[n] for n in middle]) / usual.total()
        first, last = np.searchsorted(reached, ((1 - NEARLY_ALL) / 2, (1 + NEARLY_ALL) / 2))
        middle = middle[first : last + 1]
    dense = 2 * len(middle) > middle[-1] - middle[0] and len(usual) > 1
    if len(numbers) <= most_values and rows >= 3 * len(numbers) and not dense:
        note = f"{len(numbers)} codes: whole numbers with gaps; list every one that may occur"
        return Categorical(tuple(sorted(numbers)), missing=missing), note
    if width <= max(_MOST_SINGLE, most_values):
        column = Integer(low, high, special=special, missing=missing)
        return column, f"whole numbers {low}..{high}, a code each{_beside(special)}"
    bins, said = _binned(usual, rows, special, whole=True)
    return Integer(**bins, missing=missing), f"whole numbers {low}..{high} in {said}"


def _binned(
    numbers: Mapping[Any, int], rows: int, special: Sequence[Any], *, whole: bool
) -> tuple[dict[str, Any], str]:
    """Return the bins, spikes and special values of a drafted column, as arguments of its
    constructor and in words. The bins have equal widths, or lie between edges if the rows are
    crowded. The ends of real numbers are rounded outwards. `numbers`: the number of rows of each
    number that is not `special`. `rows`: that of all rows.
    """
    inside, kind, shown = _inside(numbers), int if whole else float, str if whole else _plain
    spikes = sorted(kind(n) for n, t in numbers.items() if t > max(rows / BINS, FEW) or n in inside)
    shared = {n: times for n, times in numbers.items() if n not in spikes}
    low, high = kind(min(numbers)), kind(max(numbers))
    edges = crowded_edges(shared, low, high, BINS, whole=whole)
    if not whole:
        first, last = (edges[1] - low, high - edges[-2]) if edges else (math.inf, math.inf)
        tenth = (high - low) / 10
        low = min(low, _outward(low, tenth, first, math.floor))
        high = max(high, _outward(high, tenth, last, math.ceil))
    said = f"{BINS} bins"
    ends: dict[str, Any] = {"low": low, "high": high, "bins": BINS}
    if edges is not None:
        ends = {"edges": (low, *edges[1:-1], high)}
        said = f"{len(edges) - 1} bins between round edges at every {1 / BINS:.0%} of the rows, "
        said += "which crowd at one end"
    if spikes:
        said += f"; {', '.join(map(shown, spikes))} alone, being frequent"
    if inside:
        nines = ", ".join(map(shown, inside))
        said += f" ({nines} may stand for a missing value: if so, have it written empty)"
    return {**ends, "spikes": tuple(spikes), "special": special}, said + _beside(special)


def _outward(end: float, tenth: float, gap: float, rounded: Callable[[float], int]) -> float:
    """Return the end of a range, rounded by `math.floor` or `math.ceil` to a multiple of the
    largest power of ten that is at most `tenth`, a tenth of the range. A rounded end that would
    make the outermost bin, of width `gap`, more than twice as wide is rounded again with `gap` in
    place of `tenth`, unless it is 0, where amounts begin or end.

    >>> _outward(-4.07, 6e8, 2.1, math.floor), _outward(5.6, 0.3, math.inf, math.floor)
    (-5.0, 5.6)
    """
    digits = -math.floor(math.log10(max(tenth, 1e-99)))
    found = round(rounded(round(end * 10.0**digits, 9)) * 10.0**-digits, max(0, digits))
    if gap == tenth or not found or abs(found - end) <= gap:
        return found
    return _outward(end, gap, gap, rounded)


def _beside(special: Sequence[Any]) -> str:
    shown = ", ".join(map(text_of, special))
    return f"; {shown} as special values, no quantities (else widen the range)" * bool(special)


def _is_identifier(numbers: Counter[int]) -> bool:
    """Return True for numbers that are identifiers. They are so if they rise or fall from row to
    row, by equal steps or within a range of at most twice as many whole numbers as rows; if all
    have nine or more digits; or if they lie so close together that independent values would not all
    differ by chance. The caller has checked that they differ.

    Of n independent draws among W numbers about n (n - 1) / (2 W) pairs agree; the probability that
    none does is e to the power of minus this expectation.
    """
    given = list(numbers)
    rows, width = len(given), max(given) - min(given) + 1
    in_order = given in (sorted(given), sorted(given, reverse=True))
    evenly = len({after - before for before, after in pairwise(given)}) == 1
    counted = in_order and (evenly or width <= 2 * rows)
    return counted or (rows * (rows - 1) > 2 * SURE * width) or min(map(abs, given)) >= 10**8


def _sentinels(numbers: Counter[int]) -> tuple[int, ...]:
    """Return the numbers such as 9, 98, 999 and -1 that are probably codes for missing values,
    since they lie beyond all other numbers, or are among at most four numbers below 0 that do not
    become more frequent towards 0 (`_reaches_zero`).

    A code less than twice the largest other number, such as 99 in a column of ages up to 94, must
    be frequent. A code that is only two or three above the largest other number must be over five
    times as frequent as any other number, or a frequent 9 where all digits from 0 or 1 up to that
    number occur.
    """
    found: list[int] = []
    rest = sorted(numbers)
    while len(rest) > 2 and _SENTINEL.fullmatch(str(rest[-1])):
        # 98 and 99 can both be codes, so 99 is compared only with numbers that do not look like
        # codes. The digits 7 and 8 look like codes too, but are usually values beside 9 or 99.
        below = [n for n in rest if not _SENTINEL.fullmatch(str(n)) or n < min(rest[-1], 9)]
        if not below or not _stands_apart(numbers, rest[-1], below):
            break
        found.append(rest.pop())
    while (
        len(rest) > 2
        and rest[0] < 0
        and not _reaches_zero(numbers)
        and re.fullmatch(r"-(\d|9+|[789]{2,})", str(rest[0]))
    ):
        positive = [n for n in rest if n >= 0]
        if len(positive) < len(rest) - 4 or len(positive) < 2:
            break
        found.append(rest.pop(0))
    return tuple(sorted(found))


def _stands_apart(numbers: Counter[int], code: int, below: Sequence[int]) -> bool:
    """Return True if a number such as 99 is probably a code for a missing value and not a quantity,
    judged by its distance from the ascending numbers `below` it and by its frequency.

    >>> ages = Counter({**dict.fromkeys(range(18, 98), 5), 99: 600})
    >>> _stands_apart(ages, 99, range(18, 98))
    True
    >>> _stands_apart(Counter({**dict.fromkeys(range(1, 8), 80), 9: 60}), 9, range(1, 8))
    True
    """
    gap = code - below[-1]
    if gap < 2:
        return False
    if code - 1 not in numbers and numbers[code] > FEW * max(numbers[n] for n in below):
        return True
    if gap < 4:
        digits = code == 9 and below[0] in (0, 1) and len(below) == below[-1] - below[0] + 1
        return digits and numbers[code] > numbers[below[-1]] / 2
    usual = sum(numbers[n] for n in below) / len(below)
    return code >= 2 * below[-1] or numbers[code] > max(2 * usual, OFTEN * sum(numbers.values()))


def _inside(numbers: Mapping[Any, int]) -> tuple[Any, ...]:
    """Return the numbers written by nines alone, at least three of them as in 999 and 99.9, that
    lie among other numbers and are too frequent to be quantities.

    Such a number is returned if more than five rows and more than one in a hundred have it, and if
    it is over five times as frequent as each of the numbers that differ from it by less than half
    its value. It is not returned if there are no such numbers near it.
    """
    rows = sum(numbers.values())
    found = []
    for number, times in numbers.items():
        if not re.fullmatch(r"9{3,}(\.9+)?|9{2,}\.9+", text_of(number)):
            continue
        near = [t for n, t in numbers.items() if n != number and abs(n - number) < number / 2]
        if times > max(OFTEN * rows, FEW) and near and times > FEW * max(near):
            found.append(number)
    return tuple(found)


def _reaches_zero(numbers: Counter[int]) -> bool:
    """Return True if at least two numbers are below 0, follow each other without a gap up to -1,
    and become more frequent towards 0 (which is included), as quantities do, or mirror the numbers
    above 0, as in a scale from -2 to 2.

    >>> _reaches_zero(Counter({-2: 3, -1: 9, 0: 20, 1: 8})), _reaches_zero(Counter({-1: 9, 0: 20}))
    (True, False)
    """
    below = sorted(n for n in numbers if n < 0)
    rising = all(numbers[before] < numbers[after] for before, after in pairwise([*below, 0]))
    mirrored = len(below) in numbers and len(below) + 1 not in numbers
    return len(below) > 1 and below == list(range(-len(below), 0)) and (rising or mirrored)


def _real(
    numbers: Counter[int | float], places: int, padded: bool, missing: tuple[str, ...] | None
) -> Drafted:
    rows = sum(numbers.values())
    if len(numbers) <= BINS and rows >= 3 * len(numbers):
        note = f"a scale of {len(numbers)} numbers; list every one that may occur"
        return Categorical(tuple(sorted(numbers)), missing=missing), note
    special = _nines(numbers)
    usual = {n: times for n, times in numbers.items() if n not in special}
    bins, said = _binned(usual, rows, special, whole=False)
    decimals = min(places, 15)
    padded = padded and 0 < places <= 15
    column = Numeric(**bins, decimals=decimals, trailing_zeros=padded, missing=missing)
    digit = "decimal" if decimals == 1 else "decimals"
    ends = bins.get("edges") or (bins["low"], bins["high"])
    return column, f"numbers {_plain(ends[0])}..{_plain(ends[-1])} of {decimals} {digit} in {said}"


def _plain(number: float) -> str:
    """Return a number's text. It has an exponent, and six digits, if the number is not 0 and its
    absolute value is below 10^-6 or at least 10^16.
    """
    if number and not 1e-6 <= abs(number) < 1e16:
        return f"{number:g}"
    return np.format_float_positional(number, trim="-")


def _nines(numbers: Counter[int | float]) -> tuple[float, ...]:
    """Return the numbers that are probably codes for missing values. They are written by nines
    alone, such as 99.9 and -9.99, or by two or more and a last 7 or 8, such as 9998, and are the
    largest or the least beside those found before; two numbers always stay. Either two or more rows
    have them, and they are at least twice as far from 0 as the next number on their side; or they
    are over five times as frequent as any other.

    A whole number from -9 to -1 is returned too, if it is the only one below 0 and over five times
    as frequent as any other.
    """
    found: list[float] = []
    for sign in (1, -1):
        rest = sorted((n for n in numbers if n not in found), key=lambda n: sign * n)
        while len(rest) > 2 and re.fullmatch(r"9+(\.9+|9[78])?", text_of(sign * rest[-1])):
            outstanding = numbers[rest[-1]] > FEW * max(numbers[n] for n in rest[:-1])
            far = sign * rest[-1] >= 2 * sign * rest[-2] and numbers[rest[-1]] >= 2
            if not (far or outstanding):
                break
            found.append(float(rest.pop()))
    below = [n for n in numbers if n < 0]
    if len(below) == 1 and re.fullmatch(r"-\d", text_of(below[0])):
        usual = max((times for n, times in numbers.items() if n >= 0), default=0)
        found += map(float, below if numbers[below[0]] > FEW * max(usual, 1) else [])
    return tuple(sorted({*found}))


def _places(texts: Iterable[str]) -> set[int]:
    """Return the numbers of digits after the decimal point that occur. If a text has all digits
    that float64 holds, the numbers were computed, and the digits are counted after rounding to
    single precision; of numbers in single precision those of the shortest texts count.

    >>> _places(["25.06", "3.1"]), _places(["25.06899999990128", "3.10"])
    ({1, 2}, {1, 3})
    >>> _places(["0.10000000149011612", "2"])
    {0, 1}
    """
    texts = list(texts)
    if max(len(re.sub(r"\D", "", text).lstrip("0")) for text in texts) >= _EXACT_DIGITS:
        numbers = np.array(texts, float)
        with np.errstate(over="ignore"):
            single = numbers.astype(np.float32)
        texts = [f"{number:.{_SINGLE_DIGITS}g}" for number in numbers]
        if np.array_equal(single, numbers):
            texts = [str(number).removesuffix(".0") for number in single]
    found = set()
    for text in texts:
        mantissa, _, exponent = text.lower().partition("e")
        behind = len(mantissa.partition(".")[2])
        found.add(max(0, behind - int(exponent)) if exponent else behind)
    return found
