"""Schema files: their parts as plain values, read and written as YAML or JSON by their suffix.

Columns and the format of a data file are made from these values by the names that such files give
to their types and settings.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pgmkit.errors import InvalidInput, check_known
from pgmkit.runtime.arguments import one_of
from pgmkit.runtime.atomic_write import atomic_writer
from pgmkit.runtime.typed import typed, typed_class
from pgmkit.runtime.untrusted import FilePath, check_new, plain_values, whole_file
from pgmkit.tables.columns import MOST_BINS, Column, changed_fields
from pgmkit.tables.dates import Date, DateTime
from pgmkit.tables.labelled import Boolean, Categorical, OpenCategorical
from pgmkit.tables.numbers import Integer, Numeric

_MOST_BYTES = 16 * MOST_BINS
"""The most bytes of a schema file: a short line for each of the most bins that a column may
have.
"""

COLUMN_TYPES: Mapping[str, type[Column]] = {
    each.type: each
    for each in (Categorical, OpenCategorical, Boolean, Integer, Numeric, Date, DateTime)
}
"""The types of columns that a schema can have, by the names that schema files give them."""


@typed_class
@dataclass(frozen=True)
class FileFormat:
    """The format of a data file, if it differs from a plain CSV file in UTF-8.

    Attributes:
        names: The columns' names, for a file without a header line.
        comment: The beginning of lines that are no records.
        separator: The sign between values. By default it is a tab in a .tsv file, and otherwise the
            most frequent of comma, semicolon, tab and | in the header line. Without a header, or
            without such a sign in it, it is a comma, or a semicolon if `decimal` is a comma.
        encoding: The encoding of the text, by Python's name.
        decimal: The decimal sign, "." or ","; the other one may then separate groups of three
            digits (thousands).
        ignore: Columns of the file that are left out, such as an identifier.
        multiline: Whether a quoted value may continue over line ends; if False every line is one
            record or none.
        skip_lines: The number of lines of a CSV file, or rows of a sheet, above the header, such as
            titles.
        sheet: The name of an Excel file's sheet; by default the first.
        user_missing: Whether values that an SPSS or Stata file declares missing are read as their
            codes, not as missing.

    Raises InvalidInput for an encoding that Python does not know, a separator that is not one ASCII
    sign, a decimal sign that is neither "." nor "," or is also the separator, an empty `comment`,
    and `skip_lines` below 0.

    >>> FileFormat(separator=";", decimal=",").to_dict()
    {'separator': ';', 'decimal': ','}
    """

    names: Sequence[str] | None = None
    comment: str | None = None
    separator: str | None = None
    encoding: str = "utf-8"
    decimal: str = "."
    ignore: Sequence[str] = ()
    multiline: bool = True
    skip_lines: int = 0
    sheet: str | None = None
    user_missing: bool = False

    def __post_init__(self) -> None:
        if self.comment == "":
            raise InvalidInput("comment is empty, with which all lines begin; leave it out")
        if self.skip_lines < 0:
            raise InvalidInput(f"skip_lines must be 0 or more, got {self.skip_lines!r}")
        if self.separator is not None and not re.fullmatch("[ -~\t]", self.separator):
            raise InvalidInput(f"separator must be one ASCII sign, got {self.separator!r}")
        one_of(self.decimal, (".", ","), "decimal")
        if self.decimal == self.separator:
            raise InvalidInput(f"decimal and separator must differ, got {self.decimal!r} for both")
        try:
            "".encode(self.encoding)  # Python also knows encodings of no text, such as base64
        except (LookupError, ValueError):
            raise InvalidInput(
                f"encoding {self.encoding!r} is unknown; use utf-8, latin-1, cp1252, utf-16, ..."
            ) from None
        for name in ("names", "ignore"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def written_separator(self) -> str:
        """The separator of files that are written."""
        return self.separator or (";" if self.decimal == "," else ",")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults, as a schema file has them under
        `file`.
        """
        return changed_fields(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> FileFormat:
        """Return the format that `to_dict` stored. Raises InvalidInput for unknown fields, and for
        wrong values as the class does.
        """
        check_known(stored, [each.name for each in fields(cls)], "it has no field", "it has")
        return cls(**stored)


def column_from_dict(stored: Mapping[str, Any]) -> Column:
    """Return the column that `to_dict` stored; raise InvalidInput for an unknown type or field.

    >>> column_from_dict({"type": "integer", "low": 0, "high": 3})
    Integer(missing=None, outside=None, decode_as=None, low=0, high=3, bins=None, ...)
    """
    given: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in stored.items()}
    kind = given.pop("type", None)
    check_known([kind], COLUMN_TYPES, "there is no type", "types are")
    allowed = sorted(each.name for each in fields(COLUMN_TYPES[kind]))
    check_known(given, allowed, f"a column of type {kind} has no field", "it has")
    return COLUMN_TYPES[kind](**given)


def load(path: FilePath) -> dict[str, Any]:
    """Return the plain values of a schema file. Raise InvalidInput for another suffix, and if it is
    no mapping in valid YAML or JSON in UTF-8, has too many bytes or values, or gives a key twice.
    Its message says "it" of the file, whose name the caller adds (`refusing`).
    """
    kind = _kind(path)
    content = whole_file(path, _MOST_BYTES)
    try:
        text = content.decode("utf-8-sig")  # an editor may have added a byte order mark
        stored = _read_yaml(text) if kind == "yaml" else plain_values(text)
    except UnicodeDecodeError:
        raise InvalidInput("it is not text in UTF-8") from None
    except InvalidInput:
        raise
    except ValueError as error:
        raise InvalidInput(f"it is not {kind.upper()}: {error}") from None
    _check_expanded(stored)
    if not isinstance(stored, dict):
        raise InvalidInput("it must hold a mapping with `columns`")
    return stored


def _check_expanded(stored: Any) -> None:
    """Raise InvalidInput for more than `MOST_BINS` values, each counted as often as YAML's aliases
    repeat it.
    """
    left, seen = [stored], 0
    while left:
        each = left.pop()
        seen += 1
        if seen > MOST_BINS:
            raise InvalidInput(f"it holds more than {MOST_BINS:,} values")
        if isinstance(each, Mapping):
            left.extend(each.values())
        elif isinstance(each, list | tuple | set):
            left.extend(each)


def _check_yaml(text: str) -> None:
    """Raise InvalidInput for a text in YAML that may hold more than `MOST_BINS` / 4 values: while
    it is parsed, each takes about 1 KB and 50 microseconds.
    """
    # A value but the first follows one of these signs; signs within texts are counted too.
    if len(re.findall(r"[,:\[{?]|-(?=\s)", text)) > MOST_BINS // 4:
        raise InvalidInput(
            f"a schema in YAML may hold at most {MOST_BINS // 4:,} values; write it as JSON (.json)"
        )


def save(path: FilePath, stored: Mapping[str, Any]) -> None:
    """Write plain values as YAML or JSON, by the path's suffix, completely or not at all. Raises
    InvalidInput for another suffix, and for more values than are read of a file in YAML.
    """
    if _kind(path) == "yaml":
        text = dump_yaml(stored)
        _check_yaml(text)
    else:
        text = json.dumps(stored, indent=2, ensure_ascii=False) + "\n"
    with atomic_writer(path) as file:
        file.write(text.encode("utf-8"))


def dump_yaml(stored: Mapping[str, Any]) -> str:
    """Return plain values as YAML in block style, with keys in the given order."""
    import yaml

    class Quoting(yaml.SafeDumper):  # type: ignore[misc]
        """A dumper that also quotes texts that other readers of YAML take for numbers: 008, say."""

    number = re.compile(r"[-+]?(0o)?([0-9]+(:[0-9]+)*\.?|\.)[0-9]*([eE][-+]?[0-9]+)?$")
    Quoting.add_implicit_resolver("number", number, [*"-+.0123456789"])
    # PyYAML reads these line ends back as others, or as spaces, unless they are escaped.
    plain = not {"\x85", "\u2028", "\u2029"} & set(json.dumps(stored, ensure_ascii=False))
    form: dict[str, Any] = dict(sort_keys=False, allow_unicode=plain, width=100)
    return str(yaml.dump(dict(stored), Dumper=Quoting, **form))


@typed
def _kind(path: FilePath) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in (".yaml", ".yml", ".json"):
        raise InvalidInput(f"a schema file must end in .yaml, .yml or .json, got {os.fspath(path)}")
    return "json" if suffix == ".json" else "yaml"


def _read_yaml(text: str) -> Any:
    import yaml

    _check_yaml(text)

    class Unique(yaml.SafeLoader):  # type: ignore[misc]
        """A loader that refuses keys given twice, of which plain YAML drops one silently, and reads
        `no`, `yes`, numbers with leading zeros and times of day as texts. A list with a number
        such as 01.10 is one of codes, so that its 10.10 is a text, too, and not 10.1.
        """

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            found: dict[Any, Any] = {}
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                check_new(key, found)
                found[key] = None
            return super().construct_mapping(node, deep)

        def construct_sequence(self, node: Any, deep: bool = False) -> list[Any]:
            plain = [each for each in node.value if isinstance(each.value, str)]
            if any(padded.fullmatch(each.value) for each in plain):
                for each in plain:
                    if each.tag == "tag:yaml.org,2002:float":
                        each.tag = "tag:yaml.org,2002:str"
            return super().construct_sequence(node, deep)

    padded = re.compile("0[0-9]+[.][0-9]+")
    # YAML 1.1 reads no, yes, on and off as truth values, 0123 as 83 and 8:30 as 510; here they are
    # labels, codes and times of day.
    code = ("tag:yaml.org,2002:str", re.compile("[-+]?(0[0-9]|[0-9]+:)"))
    Unique.yaml_implicit_resolvers = {
        first: [code, *(each for each in known if first in "tTfF" or "bool" not in each[0])]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    try:
        return yaml.load(text, Unique)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
