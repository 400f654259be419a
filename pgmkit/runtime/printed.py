"""Names, labels and numbers in a form that is safe to show."""

from __future__ import annotations

import os
import re
import shlex

NAMED = 12
"""The most attributes, or sets of attributes, that one line names; a line about more of them says
their number. It is also the length of lists of the least accurate tables.
"""

_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])"
    r"[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x1b[ -/]*[0-~]?"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_LINE_ENDS = re.compile(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")


def exactly(number: float) -> str:
    """Return the shortest text that is read as this float, without a fraction of zero. For levels,
    promises and others that must not be rounded.

    >>> exactly(1.0), exactly(0.9999999)
    ('1', '0.9999999')
    """
    return repr(float(number)).removesuffix(".0")


def percent(share: float) -> str:
    """Return a share as a percentage with one decimal; a small one is not shown as none.

    >>> percent(0.25), percent(0.0001), percent(0)
    ('25.0%', '<0.1%', '0.0%')
    """
    return "<0.1%" if share and share < 0.0005 else f"{share:.1%}"


def shell_word(text: str) -> str:
    """Return the text as one word of a command in this system's shell. On Windows, where
    single quotes do not quote, double ones do, as `subprocess.list2cmdline` writes them.
    """
    if os.name != "nt":
        return shlex.quote(text)
    if re.fullmatch(r"[\w:./\\-]+", text):
        return text
    return '"' + re.sub(r'(\\+)("|\Z)', r"\1\1\2", text).replace('"', '\\"') + '"'


def printable(text: str) -> str:
    """Return the text, which may come from an untrusted file, without characters that could control
    a terminal: escape sequences, control characters other than tabs and line feeds, and marks that
    reverse the direction of writing.

    >>> printable("\x1b[2Jage\x07 30\u202e")
    'age 30'
    """
    return _CONTROLS.sub("", _SEQUENCES.sub("", text))


def on_one_line(text: str) -> str:
    """Return the text as `printable` does, with one space in place of each run of tabs and line
    ends, so that the text cannot look like several lines.

    >>> on_one_line("F\\n\\x1b[2JM  99")
    'F M  99'
    """
    return printable(_LINE_ENDS.sub(" ", text))
