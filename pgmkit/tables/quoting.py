"""Names and values in double quotes, as questions hold them, and the texts between such quotes."""

from __future__ import annotations

import re

_QUOTED = re.compile(r'"[^"]*("|\Z)')


def unquoted(text: str) -> str:
    """Return a name or a value without blanks around it and, if it is in double quotes, without
    these; every two double quotes side by side within them then become one.
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


def pieces_of(text: str, sign: re.Pattern[str], brackets: str) -> list[str]:
    """Return the pieces of a text between the matches of `sign` that stand outside quotes and
    brackets. `brackets`: the kinds of brackets, such as "{}()", the opening one of each first.
    """
    # Quoted texts, also one that is not closed, are overwritten, so that no sign is found in them.
    bare = _QUOTED.sub(lambda found: '"' * len(found[0]), text)
    pairs = list(zip(brackets[::2], brackets[1::2], strict=True))
    depths, pieces, start, seen = [0] * len(pairs), [], 0, 0
    for match in sign.finditer(bare):
        part, seen = bare[seen : match.start()], match.start()
        depths = [
            depth + part.count(a) - part.count(b)
            for depth, (a, b) in zip(depths, pairs, strict=True)
        ]
        if all(depth <= 0 for depth in depths):
            pieces.append(text[start : match.start()])
            start = match.end()
    return [*pieces, text[start:]]
