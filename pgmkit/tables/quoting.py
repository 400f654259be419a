"""Names and values in double quotes, as questions hold them."""

from __future__ import annotations


def unquoted(text: str) -> str:
    """Return a name or a value without blanks around it and, if it is in double quotes, without
    these; doubled quotes inside then become single ones.
    """
    text = text.strip()
    if len(text) < 2 or not text[0] == text[-1] == '"':
        return text
    return text[1:-1].replace('""', '"')


def quoted(name: str) -> str:
    """Return a name or a value in double quotes, as a question can write it whatever it contains.

    >>> print(quoted('6" pipe'))
    "6"" pipe"
    """
    return '"' + name.replace('"', '""') + '"'
