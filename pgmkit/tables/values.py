"""Values from numpy, Arrow or lists: the distinct ones, which of them are null, their texts, and
the numbers in texts, among them in forms that spreadsheets print: "$1,234.50", "33 %", "(12.00)".

Each distinct value of a column is examined once; numbers and times are examined as whole arrays.
The source of the values does not matter: 3, 3.0 and "3" are one label, and null, NaN, NaT and an
empty text are all missing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import narwhals as nw
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from pgmkit.errors import InvalidInput
from pgmkit.runtime.precision import EXACT

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""This pattern matches a lone surrogate: half of a character, which files in UTF-8 cannot store."""
_CURRENCY = "[$€£¥₹]"
_DECORATED = re.compile(
    rf"(?P<open>\()?(?P<sign>[+-])?(?:{_CURRENCY}\s?)?(?P<inner>[+-])?"
    r"(?P<whole>\d{1,3}(?P<apart>[, '\u2019\u00a0\u202f])\d{3}(?:(?P=apart)\d{3})*|\d+)"
    rf"(?P<rest>\.\d+)?(?:\s?(?:{_CURRENCY}|%))?(?P<close>\))?"
)
"""This pattern matches numbers as spreadsheets print them."""
_WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0*")
"""This pattern matches a whole number written with a decimal point, such as "3.0" or "-0."."""


def distinct(
    values: Any, read: Callable[[bytes], str] = lambda each: each.decode("utf-8", "replace")
) -> tuple[list[Any], NDArray[np.intp]]:
    """Return the distinct values as Python objects (times in numpy arrays stay numpy's), and the
    place of each value among them. Nulls of several kinds, as None and NaN, may be several values,
    and so may a text and the bytes of its UTF-8, which are read as the text. `read`: a function
    that returns the text of bytes.

    >>> found, places = distinct(np.array([b"b", b"a", b"b"]))
    >>> [found[place] for place in places]
    ['b', 'a', 'b']
    """
    if isinstance(values, pa.Array):
        found, places = _distinct_arrow(values, read)
    elif (array := np.asarray(values)).dtype != object:
        unique, places = np.unique(array, return_inverse=True)
        found = unique.tolist() if array.dtype.kind not in "mM" else list(unique)
    else:
        seen: dict[Any, int] = {}
        places = np.array([seen.setdefault(_key(each), len(seen)) for each in array], np.intp)
        found = [value for _, value, _ in seen]
    return [read(each) if isinstance(each, bytes) else each for each in found], places


def tallied(values: Any) -> Counter[str]:
    """Return the number of rows of each text, in order of occurrence; missing values are under an
    empty text.

    >>> tallied(np.array([2.0, 1.0, 2.0]))
    Counter({'2': 2, '1': 1})
    """
    found, places = distinct(series_values(values))
    occurring, times = (np.asarray(part) for part in pa.array(places).value_counts().flatten())
    counts: Counter[str] = Counter()
    for place, rows in zip(occurring.tolist(), times.tolist(), strict=True):
        counts["" if is_null(found[place]) else text_of(found[place])] += rows
    return counts


def dictionary(values: Any) -> tuple[Any, NDArray[np.intp]] | None:
    """Return the texts of an Arrow dictionary, which may hold nulls and texts that do not occur,
    and the place of each row's text among them. None for other arrays, and for dictionaries with
    null places or of values that are no texts.
    """
    of_texts = isinstance(values, pa.DictionaryArray) and is_text(values.dictionary.type)
    if not of_texts or values.indices.null_count:
        return None
    return values.dictionary, values.indices.to_numpy(zero_copy_only=False)


def _key(value: Any) -> tuple[type, Any, str]:
    """Return a key of a value for dictionaries, whose second entry stands for the value. It has the
    value's type, since True and 1 alone would be one key, although their texts differ. It has the
    text of any value but a plain one, since equal values may have several: Decimal("2.5") and
    Decimal("2.50"), or one moment on the clocks of two zones. One of them would be read as the
    other if only the value counted.

    Lists and other values without a hash are represented by their texts, so that no single value
    makes a column unreadable. All nulls have one key.
    """
    if is_null(value):
        return type(None), None, ""
    if type(value) in (str, int, float, bool, date):
        return type(value), value, ""
    if isinstance(value, bytearray | memoryview):  # as which databases give bytes
        with suppress(ValueError):  # memory that was released
            value = bytes(value)
    text = text_of(value)
    try:
        hash(value)
    except Exception:  # any exception is possible, as in text_of
        return str, text, ""
    return type(value), value, text


def numeric(values: Any) -> tuple[NDArray[Any], NDArray[np.bool_]] | None:
    """Return whole numbers, floats, dates, or timestamps without a zone, as a numpy array, and a
    mask of the null ones, which are 0 among whole numbers of Arrow, and NaN or NaT otherwise.
    Return None for other values, such as decimals and Booleans.

    >>> numeric(np.array([1.5, np.nan]))
    (array([1.5, nan]), array([False,  True]))
    """
    if isinstance(values, pa.Array):
        whole = pa.types.is_integer(values.type)
        others = (pa.types.is_floating, pa.types.is_date, pa.types.is_timestamp)
        known = whole or any(is_kind(values.type) for is_kind in others)
        if not known or getattr(values.type, "tz", None) is not None:
            return None
        filled = values.fill_null(0) if whole and values.null_count else values
        array = np.asarray(filled.to_numpy(zero_copy_only=False))
        null = array != array  # NaN and NaT differ from themselves
        if values.null_count:
            null |= values.is_null().to_numpy(zero_copy_only=False)
        return array, null
    array = np.asarray(values)
    return (array, array != array) if array.dtype.kind in "iufM" else None


def parsed(values: Any, kinds: Sequence[str], absent: Sequence[str]) -> Any:
    """Return Arrow texts as numbers or times, with blank texts and those of `absent` as nulls. None
    if `values` are no Arrow texts, or if Arrow may not read every text exactly as it is meant.

    `kinds`: Arrow's names of types, tried in turn. If the result is None, as it is without `kinds`,
    the values must be examined one by one.
    """
    if not kinds or not isinstance(values, pa.Array) or not is_text(values.type):
        return None
    with suppress(pa.ArrowInvalid):  # bytes that are no UTF-8 cannot be trimmed
        trimmed = compute.utf8_trim_whitespace(values)
        null = compute.is_in(trimmed, pa.array(["", *absent], values.type))
        texts = compute.if_else(null, pa.scalar(None, values.type), trimmed)
        for kind in kinds:
            try:
                found = compute.cast(texts, pa.type_for_alias(kind))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                continue
            # Whole numbers that float64 would round are read exactly, one by one.
            rounded = kind == "float64" and _rounds(found)
            numbers = kind in ("int64", "float64")
            return None if rounded or (numbers and _only_arrow_reads(texts)) else found
    return None


def _only_arrow_reads(texts: Any) -> bool:
    """Return True if some text may be like 0x1F or nan(1), which only Arrow reads as a number.

    The bytes of all texts are searched at once; if the array is a slice, also those beside it.
    """
    held = texts.buffers()[2]
    whole = b"" if held is None else held.to_pybytes()
    return any(sign in whole for sign in (b"x", b"X", b"("))


def _rounds(numbers: Any) -> bool:
    """Return True if one of Arrow's float64 numbers is 2^53 or more in absolute value, so that it
    may stand for a whole number that float64 does not hold.
    """
    return bool(compute.any(compute.greater_equal(compute.abs(numbers), EXACT)).as_py())


def series_values(series: Any, zone: str | None = None) -> Any:
    """Return the values of a series (of narwhals, pandas or polars, or a chunked Arrow array). A
    pandas series of numpy's numbers, truth values or times gives a numpy array of its type. Mixed
    types, and types that Arrow does not have, such as intervals and periods, give a numpy array of
    objects, and all others an Arrow array. Anything but a series is taken as it is. Arrow times
    that have a zone, of a series or not, are then read on the clock of that zone, or of `zone` if
    it is given (`clock_times`).
    """
    wrapped = nw.from_native(series, series_only=True, pass_through=True)
    array = _arrow_values(wrapped) if isinstance(wrapped, nw.Series) else series
    whole = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    return clock_times(whole, zone)


def clock_times(values: Any, to: str | None = None) -> Any:
    """Return Arrow times that have a zone as what a clock shows there, or in the zone `to` if it is
    given; other values are returned unchanged. Arrow knows when clocks change up to 2037. Later
    times are converted by Python, one by one, up to the year 9999, where its calendar ends; no time
    changes how another is converted. Raises InvalidInput if this machine lacks the zone.
    """
    zone = isinstance(values, pa.Array | pa.ChunkedArray) and getattr(values.type, "tz", None)
    if not zone:
        return values
    if to:
        values, zone = values.cast(pa.timestamp(values.type.unit, to)), to
    if zone == "UTC":
        return values.cast(pa.timestamp(values.type.unit))
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    try:
        clock = compute.local_timestamp(values)
    except pa.ArrowInvalid:
        raise InvalidInput(
            f"times in the zone {zone!r} need this machine's database of time zones, which lacks "
            "it; install the operating system's package tzdata, or remove the zone"
        ) from None
    late = compute.greater_equal(compute.year(clock), 2038)
    moments, shown = values.filter(late), np.array(clock.filter(late).cast(pa.int64()))
    second = pa.scalar(1, pa.duration("s")).cast(pa.duration(values.type.unit)).value
    in_seconds = moments.cast(pa.timestamp("s", zone), safe=False)
    pairs = zip(moments.cast(pa.int64()).to_pylist(), in_seconds, strict=True)
    for place, (moment, each) in enumerate(pairs):
        with suppress(OverflowError):  # a time may be beyond Python's calendar, or Arrow's
            shown[place] = moment + each.as_py().utcoffset() // timedelta(seconds=1) * second
    return compute.replace_with_mask(clock, late, pa.array(shown, pa.int64()).cast(clock.type))


def _arrow_values(series: Any) -> Any:
    native = series.to_native()
    if not series.implementation.is_pandas_like():
        # Arrow would get polars' objects as addresses, and has no whole numbers of 128 bits.
        odd = series.dtype in (nw.Object, nw.Int128, nw.UInt128)
        return np.fromiter(series.to_list(), object) if odd else series.to_arrow()
    from pandas.api.types import infer_dtype

    if getattr(native.dtype, "kind", "O") in "biufM" and isinstance(native.dtype, np.dtype):
        return native.to_numpy()
    # Arrow would convert objects to one type, so that one row decided how others are read.
    held = getattr(native.dtype, "categories", native)
    if held.dtype != object or infer_dtype(held, skipna=True) == "string":
        with suppress(Exception):  # any exception is possible, as in text_of
            array = pa.array(native, from_pandas=True)
            # Arrow would make records of pandas' intervals and numbers of its periods.
            if not isinstance(getattr(array.type, "value_type", array.type), pa.BaseExtensionType):
                return array
    return native.to_numpy(dtype=object)


def is_text(kind: Any) -> bool:
    """Return True for Arrow's types of texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_null(value: object) -> bool:
    """Return True for None, NaN, NaT, pandas' NA, and texts that are empty or spaces."""
    if isinstance(value, str):
        return not value or value.isspace()
    # A comparison with pandas' NA gives NA, whose truth value raises, so NA is recognised by its
    # type. NaN and NaT differ from themselves.
    if value is None or type(value).__name__ == "NAType":
        return True
    try:
        return bool(value != value)
    except Exception:  # arrays, signalling NaNs, and objects that refuse comparison
        return False


def text_of(value: object) -> str:
    """Return the text that identifies a value: 3, 3.0 and " 3" are the same label.

    Lone surrogates (halves of characters), which no file can store, are replaced by U+FFFD, as in
    files that are read in a wrong encoding.

    >>> text_of(3.0), text_of(True), text_of(" padded ")
    ('3', 'true', 'padded')
    """
    if isinstance(value, str):
        return LONE_SURROGATE.sub("\ufffd", value.strip())
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    if isinstance(value, int) and abs(value) > EXACT:
        return str(Decimal(value))
    try:
        # The text that numpy writes for an array lacks digits, and entries if the array is long.
        return str(value.tolist() if isinstance(value, np.ndarray) else value)
    except Exception:  # no single object may end the reading of a column
        return f"({type(value).__name__})"


def number_of(value: object) -> int | float:
    """Return a value as a number: an integer, its text, or a whole Decimal between -2^63 and 2^63
    as an exact int, any other number as the nearest float, infinite for texts beyond all floats.
    Raises ValueError if it is no number, a truth value, or a `Fraction` beyond all floats.

    >>> number_of("3.50"), number_of("123456789012345678")
    (3.5, 123456789012345678)
    """
    # Of a complex number of numpy, float() would return the real part with only a warning. A
    # duration of numpy is an np.integer, whose number depends on its unit.
    if isinstance(value, bool | np.bool_ | np.complexfloating | np.timedelta64):
        raise ValueError(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, str):
        with suppress(ValueError):
            return int(value)
    try:
        number = float(value)  # type: ignore[arg-type]
        exact = isinstance(value, Decimal) and abs(number) < 2**63 and value == int(value)
        return int(value) if exact else number  # type: ignore[call-overload]
    except Exception:  # The value may be of any class, so that any exception is possible.
        raise ValueError("not a number") from None


def bare(text: str) -> str:
    """Return a number's text without currency signs, percent signs and thousands separators, and
    with a minus sign for the brackets of accountants. Other texts are returned unchanged.

    >>> bare("$1,234.50"), bare("33 %"), bare("(12.00)"), bare("-€7"), bare("1,23"), bare("12-34")
    ('1234.50', '33', '-12.00', '-7', '1,23', '12-34')
    """
    found = _DECORATED.fullmatch(text)
    if found is None or (found["open"] is None) != (found["close"] is None):
        return text
    digits = re.sub(r"\D", "", found["whole"]) + (found["rest"] or "")
    minus = "-" in (found["sign"] or "") + (found["inner"] or "") or found["open"] is not None
    return "-" + digits if minus else digits


def with_point(text: str, decimal: str) -> str:
    """Return the text of a number with a decimal point. If the decimal sign is a comma, commas and
    points are exchanged: a point is then a sign of thousands, and "12.5" no number.

    >>> bare(with_point("1.234,5", ",")), bare(with_point("12.5", ","))
    ('1234.5', '12,5')
    """
    return text if decimal == "." else text.translate({ord("."): ",", ord(","): "."})


def is_number(text: str) -> bool:
    """Return True for the text of a number, also as spreadsheets print it, and for inf and nan."""
    try:
        number_of(bare(text))
    except ValueError:
        return False
    return True


def label_of(text: str) -> str:
    """Return the label of a text from a file. A whole number written with a decimal point has the
    label that the number has in a data frame; any other text is its own label.

    >>> label_of("3.0"), label_of("-0.0"), label_of("03.0"), label_of("2.50")
    ('3', '0', '03.0', '2.50')
    """
    whole = _WHOLE.fullmatch(text)
    return text if whole is None else "0" if whole[1] == "-0" else whole[1]


def _distinct_arrow(array: Any, read: Callable[[bytes], str]) -> tuple[list[Any], NDArray[np.intp]]:
    try:
        known = array.dictionary_encode()
    except pa.ArrowNotImplementedError:  # lists, records, types of other packages
        return distinct(np.fromiter(_objects(array), object), read)
    found = _objects(known.dictionary)
    if not known.null_count:
        return found, known.indices.to_numpy(zero_copy_only=False)
    places = known.indices.cast(pa.int64())  # a narrower type may not hold the number of values
    return [*found, None], places.fill_null(len(found)).to_numpy(zero_copy_only=False)


def _objects(array: Any) -> list[Any]:
    """Return Arrow values as Python objects; a value that Python does not have becomes a text."""
    with suppress(OverflowError, ValueError):
        return list(array.to_pylist())
    return [_object(each) for each in array]


def _object(scalar: Any) -> Any:
    """Return an Arrow value as a Python object. In texts, U+FFFD stands for bytes that are not
    UTF-8; a time beyond Python's is returned as the text that Arrow writes. Of any other value that
    Python does not have, such as a list of such times, the result is the type in parentheses.
    """
    with suppress(OverflowError, ValueError):
        return scalar.as_py()
    if is_text(scalar.type):
        return scalar.as_buffer().to_pybytes().decode("utf-8", "replace")
    try:
        return scalar.cast(pa.string()).as_py()
    except (pa.ArrowException, ValueError):  # the value may be a list
        return f"({scalar.type})"
