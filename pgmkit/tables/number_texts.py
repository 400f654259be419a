"""Functions that read numbers from texts, among them forms that spreadsheets print: "$1,234.50",
"33 %", "(12.00)".
"""

from __future__ import annotations

import re
from contextlib import suppress
from decimal import Decimal

import numpy as np

_CURRENCY = "[$€£¥₹]"
_DECORATED = re.compile(
    rf"(?P<open>\()?(?P<sign>[+-])?(?:{_CURRENCY}\s?)?(?P<inner>[+-])?"
    r"(?P<whole>\d{1,3}(?P<apart>[, '\u2019\u00a0\u202f])\d{3}(?:(?P=apart)\d{3})*|\d+)"
    rf"(?P<rest>\.\d+)?(?:\s?(?:{_CURRENCY}|%))?(?P<close>\))?"
)
"""This pattern matches numbers as spreadsheets print them."""
_WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0*")
"""This pattern matches a whole number written with a decimal point, such as "3.0" or "-0."."""


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
