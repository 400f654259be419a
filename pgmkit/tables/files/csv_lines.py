"""Division of a CSV file's lines into records: no line changes how a well-formed one is read.

A line ends at a line feed, with or without a carriage return before it. A line that is well formed
by itself, with a value for each column, is a record wherever it occurs. A line that opens a quoted
value without closing it begins a record of several lines if three conditions hold: the value ends
as a CSV writer ends it (a quotation mark, then a separator or a line end); the record has a value
for each column and at most `MOST_BYTES` bytes; and none of its lines is a record by itself.

Every other line stands alone. It is a record if it has a value for each column and leaves none of
them open; quotation marks within a value are taken literally. Otherwise it is an odd line, unless
it is empty or has blanks alone, and is skipped. In a file of one column an empty line is a record
with an empty value, as DuckDB, polars and pyarrow write a missing one.

So a line inserted between two well-formed records changes nothing but itself. It can only change
lines that are not well formed: if it opens a value that one of them closes, the lines up to there
are one record. If records are declared to be of one line each, every line stands alone, and a line
never changes another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pgmkit.runtime.sizes import CACHE_CELLS, CELL_BYTES

MOST_BYTES = 2 * CACHE_CELLS * CELL_BYTES
"""The most bytes of a record; a longer line is odd. At most twice as many bytes are read ahead."""
_QUOTED = re.compile(rb'"[^"]*"(?:"[^"]*")*')


class _Shape(NamedTuple):
    """The structure of a line.

    `values`: the number of values; 0 if a carriage return stands outside quotes, where a reader
    would break the line.
    `proper`: whether quotation marks are where a CSV writer puts them. `open`: whether the last
    value is still open.
    """

    values: int
    proper: bool
    open: bool


class Division(NamedTuple):
    """The result of the division of a block of lines into records.

    `records`: the records. `odd`: the places of odd lines, which are neither a record nor part of
    one. `rest`: the last lines, if their record may continue in the next block. `lines`: the number
    of the block's lines without `rest`.
    """

    records: list[bytes]
    odd: list[int]
    rest: bytes
    lines: int


class LineGrammar(NamedTuple):
    """The rules by which lines are divided into records of `values` values.

    >>> grammar = LineGrammar(b",", 2)
    >>> grammar.divided(b'1,a\\n2,"b\\n3,"c\\nd"\\n4,e\\n', final=True)
    Division(records=[b'1,a', b'3,"c\\nd"', b'4,e'], odd=[1], rest=b'', lines=5)
    """

    separator: bytes
    values: int
    comment: bytes | None = None
    multiline: bool = True

    def divided(self, block: bytes, *, final: bool) -> Division:
        """Divide a block of whole lines into records, and list the places of odd lines, which are
        neither a record nor part of one. Comments, and lines of blanks or nothing that are no
        record, are dropped. Unless the block is `final`, last lines whose record may continue in
        the next block are returned as ``rest``.
        """
        lines = block.split(b"\n")[:-1]
        records: list[bytes] = []
        odd: list[int] = []
        place = 0
        while place < len(lines):
            last = self._last_line(lines, place, final=final)
            if last == len(lines):
                return Division(records, odd, b"\n".join([*lines[place:], b""]), place)
            if last is None:
                odd.append(place)
            elif last >= place:
                records.append(b"\n".join(lines[place : last + 1]))
            place = place + 1 if last is None else max(last, place) + 1
        return Division(records, odd, b"", len(lines))

    def is_open(self, line: bytes) -> bool:
        """Return True if a line opens a quoted value and does not close it."""
        return b'"' in line and self._shape(line.removesuffix(b"\r")).open

    def _last_line(self, lines: Sequence[bytes], first: int, *, final: bool) -> int | None:
        """Return the place of the last line of the record that begins with line `first`.

        None for an odd line, -1 for a line that is dropped (`divided`), and the number of lines if
        the next block decides.
        """
        line = lines[first].removesuffix(b"\r")
        if self.comment is not None and line.startswith(self.comment):
            return -1
        if len(line) > MOST_BYTES:
            return None
        shape = self._shape(line)
        if not shape.open or not self.multiline:
            if not shape.open and shape.values == self.values:
                return first
            return None if line.strip(b" ") else -1
        last = self._closing(lines, first, final=final)
        if last is None or last == len(lines):
            return last
        # If the last line is also the first line of another multi-line record, it belongs to that
        # one, and line `first` is odd.
        other = self._closing(lines, last, final=final)
        return last if other is None else other if other == len(lines) else None

    def _closing(self, lines: Sequence[bytes], first: int, *, final: bool) -> int | None:
        """Return the place of the last line of the multi-line record that line `first` begins by
        opening a value. A line that closes this value may open the next one.

        None if there is no such record, and the number of lines if the next block decides.
        """
        line = lines[first].removesuffix(b"\r")
        shape = self._shape(line)
        # A line that begins with a quotation mark, before a separator or the line's end, usually
        # ends a multi-line text, so it is not taken to begin one.
        ends = line[:1] == b'"' and line[1:2] in (b"", self.separator)
        if ends or not shape.open or not shape.proper:
            return None
        values, size, few = shape.values, len(line), self.values - 1
        for place in range(first + 1, len(lines)):
            line = lines[place].removesuffix(b"\r")
            size += 1 + len(lines[place])
            if b'"' not in line and size <= MOST_BYTES and line.count(self.separator) < few:
                continue
            if size > MOST_BYTES or self._shape(line) == (self.values, True, False):
                return None  # the line is too long, or a record by itself
            shape = self._shape(b'"' + line)
            values += shape.values - 1
            if not shape.proper or values > self.values:
                return None
            if not shape.open:
                return place if values == self.values else None
        return None if final else len(lines)

    def _shape(self, line: bytes) -> _Shape:
        """Return a line's number of values, whether its quotation marks are proper, and whether its
        last value is open. As for Arrow's reader, a quotation mark opens a quoted value only at the
        start of a value.
        """
        if b'"' not in line and b"\r" not in line:
            return _Shape(line.count(self.separator) + 1, proper=True, open=False)
        values, at, proper = 1, 0, True
        while True:
            if line[at : at + 1] == b'"':
                quoted = _QUOTED.match(line, at)
                if quoted is None or line[quoted.end() : quoted.end() + 1] == b'"':
                    return _Shape(values, proper, open=True)
                at = quoted.end()
                proper = proper and line[at : at + 1] in (b"", self.separator)
            end = line.find(self.separator, at)
            plain = line[at:] if end < 0 else line[at:end]
            if b"\r" in plain:
                return _Shape(0, proper=False, open=False)
            proper = proper and b'"' not in plain
            if end < 0:
                return _Shape(values, proper, open=False)
            values, at = values + 1, end + 1


def whole_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield chunks of bytes as blocks of whole lines, each with its line feed. The last line gets
    one if it has none.

    A line longer than `MOST_BYTES` may be cut, but keeps more than `MOST_BYTES` bytes, so that it
    is still recognised as too long.
    """
    rest = b""
    for chunk in chunks:
        end = chunk.rfind(b"\n") + 1
        if end:
            yield b"".join((rest, memoryview(chunk)[:end]))
        rest = chunk[end:] if end else (rest + chunk)
        rest = rest[: MOST_BYTES + 2]  # a byte more than a record may have, and a carriage return
    if rest:
        yield rest + b"\n"
