"""Reading CSV files: header, separator, compression, encoding, ill-formed lines."""

from __future__ import annotations

import codecs
import csv
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from pgmkit.errors import InvalidInput
from pgmkit.tables.files.csv_lines import MOST_BYTES, LineGrammar, whole_lines
from pgmkit.tables.files.file_bytes import check_mark, chunks
from pgmkit.tables.files.formats import plain_suffix
from pgmkit.tables.schema_file import FileFormat

SEPARATORS = (",", ";", "\t", "|")
BLOCK = 16 * MOST_BYTES
"""The bytes read at a time; a text is examined once in each block, however often it occurs."""
_LINE_FEED, _CARRIAGE_RETURN = b"\n\r"


def is_index(name: object) -> bool:
    """Return True for the name of a column of row numbers as pandas and R write it."""
    return name in ("", "Unnamed: 0") or str(name).startswith("__index_level_")


def csv_names(path: str, form: FileFormat) -> list[str]:
    """Return the column names: those of the format, or those of the header line. Raises
    InvalidInput for a header line without names, not in the encoding, or in which a quotation mark
    is not closed.
    """
    if form.names is not None:
        return list(form.names)
    _, line = _header(path, form)
    separator = separator_of(path, form)
    if LineGrammar(separator.encode(), 0).is_open(line.encode()):
        raise InvalidInput(
            f"a name in the first line of {path} goes on in the next line, or its quotation mark "
            "is not closed; write the names on one line, or list them as `names` in the schema's "
            "`file` and leave out the header's lines (--skip-lines, `skip_lines`)"
        )
    with dividing(path):
        header = next(csv.reader([line], delimiter=separator), [])
    names = [name.strip() for name in header]
    if not any(names):
        raise InvalidInput(
            f"{path} is empty, or its first line holds no column names; add a header"
        )
    return names


def separator_of(path: str, form: FileFormat) -> str:
    """Return the separator: that of the format; or else, for a .tsv file, a tab; or else the one
    that occurs most often in the header line. Without a header line, or a separator in it, the
    result is a comma, or a semicolon if the decimal sign is a comma.
    """
    if form.separator is not None:
        return form.separator
    if plain_suffix(path) == ".tsv":
        return "\t"
    line = "" if form.names is not None else _header(path, form)[1]
    return likely_separator(line, form.written_separator)


@contextmanager
def dividing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise InvalidInput, with the file's name, if Python's csv module fails to divide a line into
    values inside the ``with`` statement.
    """
    try:
        yield
    except csv.Error as error:
        wrong = "hold carriage returns outside quotes; quote such texts, end lines in line feeds"
        if "limit" in str(error):
            most = csv.field_size_limit()
            wrong = f"hold a value of more than {most:,} characters; shorten it, or leave it out"
        raise InvalidInput(f"the first lines of {os.fspath(path)} {wrong}") from None


def likely_separator(line: str, usual: str = ",") -> str:
    """Return the one of `SEPARATORS` that occurs most often in a line, outside quotes; `usual`
    unless another one occurs more often.

    >>> likely_separator('"a,b,c";d'), likely_separator("a", ";")
    (';', ';')
    """
    return max((usual, *SEPARATORS), key="".join(line.split('"')[::2]).count)


def first_lines(path: str, form: FileFormat, most: int) -> list[str]:
    """Return up to `most` lines below those that the format skips, including comments, without line
    ends.
    """
    return list(itertools.islice(_lines(path, form), most))


def _header(path: str, form: FileFormat) -> tuple[int, str]:
    """Return the number of lines before the header, and the header: the first line that is no
    comment. Without such a line, return 0 and an empty text. Raises InvalidInput as `_lines` does,
    and in encodings other than UTF-8 for a header with bytes that are not in the encoding.
    """
    for before, line in enumerate(_lines(path, form)):
        if form.comment is None or not line.startswith(form.comment):
            if "\ufffd" in line and form.encoding != "utf-8":  # a character that was replaced
                raise InvalidInput(_not_text(path, form))
            return before, line
    return 0, ""


def _lines(path: str, form: FileFormat) -> Iterator[str]:
    """Yield the lines below those that the format skips, as texts without line ends.

    Raises InvalidInput if the file begins with the byte order mark of another encoding, or if UTF-8
    is declared and the first of these lines that is no comment, or a comment before it, is not
    UTF-8. All other bytes that are not in the encoding are replaced, since no record may decide
    whether the file can be read.
    """
    check_mark(path, form, next(chunks(path, MOST_BYTES), b"").partition(b"\n")[0])
    errors = "strict"
    try:
        for block in _below(_blocks(path, form, MOST_BYTES, errors="replace"), form.skip_lines):
            for line in block.split(b"\n")[:-1]:
                yield line.decode("utf-8", errors).removesuffix("\r")
                if form.comment is None or not line.startswith(form.comment.encode()):
                    errors = "replace"
    except UnicodeError:
        raise InvalidInput(_not_text(path, form)) from None


def _blocks(path: str, form: FileFormat, size: int, errors: str) -> Iterator[bytes]:
    """Yield the file's bytes in UTF-8, as blocks of whole lines of about `size` bytes.

    Bytes that are not in the encoding are handled as `errors` says ("strict" or "replace") and
    affect only the line that contains them. The bytes of a file in UTF-8, but for its byte order
    mark, are yielded as they are.
    """
    name, read = codecs.lookup(form.encoding).name, chunks(path, size)
    if name == "utf-8":
        first = next(read, b"").removeprefix(codecs.BOM_UTF8)
        yield from whole_lines(itertools.chain([first], read))
    elif "\n".encode(name) != b"\n":
        decoder = codecs.getincrementaldecoder(name)(errors)
        yield from whole_lines(decoder.decode(each).encode() for each in read)
    else:
        yield from (_in_utf8(block, name, errors) for block in whole_lines(read))


def _in_utf8(block: bytes, encoding: str, errors: str) -> bytes:
    """Return whole lines of an encoding in UTF-8. They are converted one by one if the block cannot
    be converted as one, would then have another number of lines, or if the encoding has sequences
    that change how all signs behind them are read, since one that is left open would change the
    next lines. A line end within a converted line becomes a space.
    """
    with suppress(UnicodeError):
        found = block.decode(encoding).encode("utf-8", "replace")
        shifting = encoding.startswith(("hz", "iso2022", "utf-7"))
        if not shifting and found.count(b"\n") == block.count(b"\n"):
            return found
    lines = [line.decode(encoding, errors) for line in block.split(b"\n")]
    return b"\n".join(line.replace("\n", " ").encode("utf-8", "replace") for line in lines)


def csv_batches(
    path: str, form: FileFormat, header: list[str], wanted: list[str], broken: list[object] | None
) -> Iterator[dict[str, Any]]:
    """Yield batches of the `wanted` columns by name, as Arrow arrays of texts. `header`: the names
    of all columns.

    `broken`: a list to which None is added for each odd line, which is no record by the definition
    in `pgmkit.tables.files.csv_lines`; bytes that are not in the encoding are then replaced. If
    `broken` is None, odd lines and such bytes raise InvalidInput.
    """
    comment = None if form.comment is None else form.comment.encode()
    separator = separator_of(path, form)
    grammar = LineGrammar(separator.encode(), len(header), comment, form.multiline)
    records = _Records(grammar, header, wanted)
    above = form.skip_lines + (0 if form.names else 1 + _header(path, form)[0])
    try:
        blocks = _blocks(path, form, BLOCK, "strict" if broken is None else "replace")
        for table, odd in _tables(_below(blocks, above), records):
            if odd and broken is None:
                raise InvalidInput(
                    f"{path}, line {above + odd[0] + 1}: a record does not have {len(header)} "
                    f"values, as the columns have (separator {separator!r}; name "
                    f"another: --separator), or has more than {MOST_BYTES:,} bytes, or a quotation "
                    "mark is not closed, or a carriage return is outside quotation marks, or a "
                    "text that goes over several lines has as many separators in one of them "
                    "(write it on one, or the file as parquet)"
                )
            if broken is not None:
                broken.extend([None] * len(odd))
            for batch in table.to_batches():
                yield {n: _texts(batch.column(n), broken is not None) for n in wanted}
    except (pa.ArrowInvalid, UnicodeError) as error:
        # The reader's own message could quote values.
        if isinstance(error, UnicodeError) or "UTF8" in str(error):
            raise InvalidInput(_not_text(path, form)) from None
        raise InvalidInput(f"{path} is not a well-formed CSV file") from None


def _below(blocks: Iterable[bytes], lines: int) -> Iterator[bytes]:
    """Yield the blocks of whole lines without the first `lines` lines."""
    for block in blocks:
        start = 0
        while lines and start < len(block):
            start = block.index(b"\n", start) + 1
            lines -= 1
        yield block[start:] if start else block


def _tables(blocks: Iterable[bytes], records: _Records) -> Iterator[tuple[Any, list[int]]]:
    """Yield Arrow tables of records in order, each with the numbers of its odd lines
    (`pgmkit.tables.files.csv_lines` defines them), counted from 0 at the first line of the first
    block.
    """
    rest, line = b"", 0
    for block in itertools.chain(blocks, [b""]):
        whole = None if rest else records.plain(block)
        step = 1 + len(block) // 64
        # Records of several lines may be few, so that most parts of a block are plain.
        parts = whole_lines(block[i : i + step] for i in range(0, len(block), step))
        for part in [block] if whole or not block else parts:
            plain = whole or (None if rest else records.plain(part))
            if plain is not None:
                yield plain[0], []
                line += plain[1]
                continue
            found = records.grammar.divided(rest + part, final=not part)
            yield records.table(found.records), [line + place for place in found.odd]
            line += found.lines
            rest = found.rest


class _Records(NamedTuple):
    """A converter of lines to Arrow tables of the columns `wanted`, of which `header` has all
    names.
    """

    grammar: LineGrammar
    header: list[str]
    wanted: list[str]

    def plain(self, block: bytes) -> tuple[Any, int] | None:
        """Return the table of a block of whole lines that are all records or empty, and the number
        of the lines; None for blocks of which this is not certain.

        It is certain if the block has no comment, carriage return within a line, or line that may
        be too long, if the last line that is not empty leaves no value open, and if Arrow finds as
        many records as there are lines (empty lines count only if there is a single column). Arrow
        finds fewer if a line end is within quotation marks.
        """
        grammar, filled = self.grammar, block.rstrip(b"\r\n")
        if (
            not block
            or _may_have_long_lines(block)
            or (b"\r" in block and block.count(b"\r") != block.count(b"\r\n"))
            or (grammar.comment is not None and b"\n" + grammar.comment in b"\n" + block)
            or grammar.is_open(filled[filled.rfind(b"\n") + 1 :])
        ):
            return None
        try:
            table = self._read(block, newlines=False)
        except pa.ArrowInvalid:
            return None
        lines, read = block.count(b"\n"), table.num_rows
        if read != lines and (grammar.values == 1 or read != lines - _empty_lines(block)):
            return None
        return table, lines

    def table(self, records: Sequence[bytes]) -> Any:
        """Return the Arrow table of well-formed records, some of which may span several lines: the
        columns `wanted`, with values as bytes. Without records it has no rows.
        """
        if not records:
            return pa.table({name: pa.array([], pa.binary()) for name in self.wanted})
        return self._read(b"\n".join([*records, b""]), newlines=True)

    def _read(self, block: bytes, *, newlines: bool) -> Any:
        # Values are read as bytes and decoded column by column afterwards. So a value that is not
        # valid text in the file's encoding does not stop the reading where the schema has a
        # code for every value (`Schema.placed`). No value is read as null.
        if block.startswith(codecs.BOM_UTF8):  # Arrow would leave it out, as at a file's start
            block = codecs.BOM_UTF8 + block
        types = dict.fromkeys(self.header, pa.binary())
        size, separator = len(block) + 1, self.grammar.separator.decode()
        return arrow_csv.read_csv(
            pa.BufferReader(block),
            arrow_csv.ReadOptions(column_names=self.header, use_threads=False, block_size=size),
            arrow_csv.ParseOptions(
                delimiter=separator,
                newlines_in_values=newlines,
                ignore_empty_lines=self.grammar.values > 1,
            ),
            arrow_csv.ConvertOptions(include_columns=self.wanted, column_types=types),
        )


def _may_have_long_lines(block: bytes) -> bool:
    """Return False if every successive stretch of `MOST_BYTES` / 2 bytes has a line end, so that no
    line is longer than a record may be (`MOST_BYTES`).
    """
    step = MOST_BYTES // 2
    return any(block.find(b"\n", i, i + step) < 0 for i in range(0, len(block) - step, step))


def _empty_lines(block: bytes) -> int:
    """Return the number of lines that contain nothing, or only a carriage return."""
    bytes_of = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(bytes_of == _LINE_FEED)
    sizes = np.diff(ends, prepend=-1) - 1
    return int((sizes == 0).sum() + (bytes_of[ends[sizes == 1] - 1] == _CARRIAGE_RETURN).sum())


def _texts(values: Any, tolerant: bool) -> Any:
    """Return an Arrow array of bytes as texts. Bytes that are not UTF-8 become replacement signs if
    `tolerant`, and raise ArrowInvalid otherwise.
    """
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        if not tolerant:
            raise
    known = values.dictionary_encode()
    texts = [each.decode("utf-8", "replace") for each in known.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(known.indices)


def _not_text(path: str, form: FileFormat) -> str:
    return (
        f"{path} is not text in {form.encoding.upper()}; name its encoding: --encoding, such as "
        "cp1252 for western languages on Windows, or `encoding` in the schema's `file`"
    )
