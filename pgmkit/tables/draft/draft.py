"""A first draft of a schema, from the names or from the values of data that may be read."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pgmkit.errors import InvalidInput
from pgmkit.runtime.printed import on_one_line, shell_word
from pgmkit.runtime.typed import typed
from pgmkit.runtime.untrusted import FilePath
from pgmkit.tables.bins import Binned
from pgmkit.tables.columns import Column
from pgmkit.tables.dates import DateTime, is_zone
from pgmkit.tables.draft.column import Drafted, draft_column, text_order
from pgmkit.tables.draft.format import decimals_of, named_format, seen_format
from pgmkit.tables.draft.thresholds import SURE
from pgmkit.tables.files.csv_file import dividing, is_index
from pgmkit.tables.files.foreign import Labels, foot_notes, other_sheets, value_labels
from pgmkit.tables.files.formats import format_of, plain_suffix
from pgmkit.tables.files.reading import all_names, batches, names_of
from pgmkit.tables.labelled import Categorical, OpenCategorical
from pgmkit.tables.numbers import Integer
from pgmkit.tables.schema import Schema
from pgmkit.tables.schema_file import FileFormat, dump_yaml
from pgmkit.tables.values import clock_times, is_text, number_of, tallied

_NAMED_IDENTIFIER = re.compile(r"(?is:(^|.*[_.\s-])(id|uid|uuid|guid))|(?s:.*)[a-z](ID|Id)")
_NAMED_UNIT = re.compile(
    r"(?is:(.*[_.\s-])?((household|hh|haushalt|family|patient|person|respondent|participant|subject|"
    r"customer|client|pupil|student|employee|member|account|case|firm|school|hospital|clinic|ssn|"
    r"mom|individual|user|community|comm|village|cluster|psu)"
    r"([_.\s-]?(id|nr|no|num|number|key|code)\.?)?|(child|class|teacher|u?subj|emp|cust)(id|nr|key)))"
)
"""This pattern matches names of columns that say to which person or household a row belongs."""
_UNSEEN = (
    "# Only the names were read: every column's values are found with a budget, and\n"
    f"# rare ones become {OpenCategorical.other!r}. Most numbers are rare, so give their\n"
    "# range, as in\n"
    "#   age: {type: integer, low: 0, high: 120, bins: 20}\n"
)
"""A draft begins with these lines if only the names of columns were read."""


@typed
def draft(
    path: FilePath, *, look: bool, most_values: int = 50, file: FileFormat | None = None
) -> str:
    """Return the text of a YAML schema for a file, to be read and corrected by hand.

    With `look` all values are read, so they must be public. Without it only names are read, and
    every column is left open, or left out if its name is that of an identifier. A comment before
    each column says what was decided and why.

    `most_values`: the most distinct values that are listed; of texts that on average occur twenty
    times or more, twenty times as many are listed. A column of more texts is left open or left out.
    `file`: the format of the file, as far as it is known.

    Raises InvalidInput for a file that is damaged or of another kind, and for a file none of whose
    columns would be in the schema; with `look` also for a file without records, and without `look`
    for a first line that may be a record.
    """
    if most_values < 1:
        raise InvalidInput(f"most_values must be a whole number, 1 or more; got {most_values!r}")
    with dividing(path):
        form = (seen_format if look else named_format)(path, file or FileFormat())
    notes = {
        name: "without a name: left out. Give it one, or all with --names and --skip-lines"
        if place and not name
        else "an index of rows: left out"
        for place, name in enumerate(all_names(path, form))
        if is_index(name)
    }
    if not look:
        drafts, head = {name: _unseen(name) for name in names_of(path, form)}, _UNSEEN
        if format_of(path) == "JSON lines":
            head += (
                "# The names are the keys of the first line, which is a private record: delete\n"
                "# those that tell about it, and keep what is known without the data.\n"
            )
    else:
        labels = value_labels(path)
        if any(each.ranges for each in labels.values()):
            form = replace(form, user_missing=True)
        (tallies, zones, orders), below = _tallies_of(path, form), foot_notes(path, form)
        _take_out(below, tallies)
        form = decimals_of(tallies.values(), form)
        drafts = {}
        for name, tally in tallies.items():
            named = labels.get(name, orders.get(name, Labels()))
            own = labelled(tally, named, most_values, form.decimal)
            drafts[name] = _unless_named_identifier(name, own)
        drafts |= {name: _in_zone(drafts[name], zone) for name, zone in zones.items()}
        head = (
            "# Drafted from the values of public data. Correct ranges to what is possible, not to\n"
            "# what occurs, and list every value that may occur.\n"
        )
        if below:
            head += (
                f"# Rows below the records are left out of this draft: {on_one_line(below[0])!r}.\n"
                "# Delete them from the sheet, since a run would take them for records.\n"
            )
        if form.names is not None and (file is None or file.names is None):
            head += (
                "# The first line is a record and no header: the columns are numbered. Name them\n"
                "# under `names` and in `columns`, or draft again with --names age,sex,...\n"
            )
    if sheets := other_sheets(path, form):
        head += f"# This is an Excel file{on_one_line(sheets)} reads another one.\n"
    columns = {name: each.column for name, each in drafts.items() if each.column is not None}
    if not columns:
        said = "; ".join(f"{name}: {each.note}" for name, each in drafts.items())
        raise InvalidInput(
            f"{os.fspath(path)} has no column that a draft would hold ({said}). Write the schema "
            "by hand, or leave out --assume-public"
        )
    left_out = tuple(name for name, each in drafts.items() if each.column is None)
    form = replace(form, ignore=(*form.ignore, *left_out))
    if plain_suffix(path) == ".tsv" and form.separator == "\t":
        form = replace(form, separator=None)  # the suffix says it, and is not that of what is made
    notes |= {name: each.note for name, each in drafts.items()}
    return head + _yaml(Schema(columns, file=form), notes)


def _tallies_of(
    path: FilePath, form: FileFormat
) -> tuple[dict[str, Counter[str]], dict[str, str], dict[str, Labels]]:
    """Return the number of rows of each text in each column of the whole file, the zones of columns
    of times that have one, and the labels of columns of ordered categories, in their order. Raises
    InvalidInput for a file without records.
    """
    tallies: dict[str, Counter[str]] = {}
    zones: dict[str, str] = {}
    orders: dict[str, Labels] = {}
    for batch in batches(path, form):
        for name, values in batch.items():
            kind: Any = getattr(values, "type", None)
            if (zone := getattr(kind, "tz", None)) is not None:
                zones[name] = zone
            if getattr(kind, "ordered", False) and is_text(kind.value_type):
                orders[name] = Labels({text: text for text in values.dictionary.to_pylist()})
            tallies.setdefault(name, Counter()).update(tallied(clock_times(values)))
    return tallies, zones, orders


def _take_out(notes: Sequence[str], tallies: Mapping[str, Counter[str]]) -> None:
    """Remove from the tallies, in place, the rows below the records, which have one of the texts
    `notes` in the first column and no value in the others.
    """
    for place, tally in enumerate(tallies.values()):
        tally -= Counter({"": len(notes)} if place else notes)


def _unseen(name: str) -> Drafted:
    """Return the draft of a column of which only the name is known: an open column, or none if the
    name is that of an identifier, and the reason.
    """
    note = "open: values are found with a budget; better give its type, low and high, or values"
    drafted = Drafted(OpenCategorical(), note)
    return _identifier(name, drafted) if _NAMED_IDENTIFIER.fullmatch(name) else drafted


def _unless_named_identifier(name: str, drafted: Drafted) -> Drafted:
    """Return the draft of a column, changed if the column's name is that of an identifier. A column
    that is open, or of whole numbers in bins, is then left out. The note of any other column with
    more than twenty codes then says that it may tell to whom a row belongs.
    """
    column = drafted.column
    if column is None or not (_NAMED_IDENTIFIER.fullmatch(name) or _NAMED_UNIT.fullmatch(name)):
        return drafted
    binned = isinstance(column, Integer) and (column.bins or column.edges)
    if binned or isinstance(column, OpenCategorical):
        return _identifier(name, drafted)
    hint = (
        "; if it says to whom a row belongs, delete it and protect all rows of each together "
        f"(--unit {shell_word(name)})"
    )
    return drafted._replace(note=drafted.note + hint * (column.size > SURE))


def _identifier(name: str, drafted: Drafted) -> Drafted:
    return Drafted(
        None,
        "an identifier by its name; left out. If one stands for a person with several rows, it is "
        f"the unit to protect (--unit {shell_word(name)}); as a column it would be {drafted.note}",
    )


def labelled(tally: Mapping[str, int], labels: Labels, most_values: int, decimal: str) -> Drafted:
    """Return the draft of a column with the labels and missing codes that an SPSS or Stata file
    declares for it; there are none for other files. `tally`: the number of rows of each text,
    missing values under an empty text.

    If every text is a code that has a label or is declared missing, and some have a label, the
    labels are the values, the codes are other spellings of them, and codes without a label are
    texts for missing values. Otherwise, and if two codes share a label or one is the label of
    another, the codes that are not declared missing are drafted as without a declaration
    (`draft_column`). Those declared missing become special values if the column has bins and they
    lie beyond its range; in other columns they become texts for missing values.

    >>> drafted = labelled({"1": 9, "2": 8}, Labels({"1": "man", "2": "woman"}), 50, ".")
    >>> drafted.column.values, drafted.column.aliases
    (('man', 'woman'), (('1', 'man'), ('2', 'woman')))
    """
    given = [text for text in tally if text]
    unnamed = [text for text in given if text not in labels.names]
    if len(unnamed) < len(given) and all(map(labels.is_missing, unnamed)):
        aliases = {code: label for code, label in labels.names.items() if code != label}
        missing = tuple(sorted(unnamed, key=text_order)) or (() if "" in tally else None)
        # `Categorical` refuses a label that two codes share, or that is a code itself.
        with suppress(InvalidInput):
            column = Categorical(tuple(labels.names.values()), missing=missing, aliases=aliases)
            codes = (
                "codes with labels, which stand for them" if aliases else "labels in their order"
            )
            return Drafted(column, f"{len(labels.names)} {codes}")
    beside = sorted((text for text in given if labels.is_missing(text)), key=text_order)
    usual = {text: rows for text, rows in tally.items() if text not in beside}
    drafted = draft_column(usual, most_values, decimal)
    shown = ", ".join(f"{code} = {name}" for code, name in list(labels.names.items())[:9])
    note = drafted.note + (f"; labels: {shown}" if shown else "")
    if not beside or drafted.column is None:
        return drafted._replace(note=note)
    return _with_missing(drafted.column, beside, f"{note}; declared missing: {', '.join(beside)}")


def _with_missing(column: Column, texts: Sequence[str], note: str) -> Drafted:
    """Return the column with these codes as special values, if it has bins and all codes lie beyond
    its range, and otherwise as texts for missing values.
    """
    if isinstance(column, Binned):
        with suppress(InvalidInput, ValueError):
            numbers = sorted({*column.special, *map(number_of, texts)})
            return Drafted(replace(column, special=tuple(numbers)), note)
    return Drafted(replace(column, missing=(*(column.missing or ()), *texts)), note)


def _yaml(schema: Schema, notes: Mapping[str, str]) -> str:
    """Return the schema as YAML with a comment of one line, from `notes`, before each column. The
    comments on columns that are left out of the schema stand at the top.
    """
    stored = schema.to_dict()
    lines = [
        on_one_line(f"# {name or '(unnamed)'}: {note}")
        for name, note in notes.items()
        if name not in schema.columns
    ]
    if "file" in stored:
        lines.append(dump_yaml({"file": stored["file"]}).rstrip())
    lines.append("columns:")
    for name, column in stored["columns"].items():
        lines.append(on_one_line(f"  # {name}: {notes[name]}"))
        lines += [f"  {line}" for line in dump_yaml({name: column}).rstrip().split("\n")]
    return "\n".join(lines) + "\n"


def _in_zone(drafted: Drafted, zone: str) -> Drafted:
    """Return the draft of a column of times whose texts are what a clock in the time zone `zone`
    shows, with a note that says so. The column gets the zone if it is a DateTime and Python knows
    the zone.
    """
    column = drafted.column
    if isinstance(column, DateTime) and is_zone(zone):
        column = replace(column, zone=zone)
    return Drafted(column, f"{drafted.note}; of a clock in {zone}")
