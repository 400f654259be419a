"""The schema: what each column of a table may hold, and which combinations cannot occur."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput, check_known, did_you_mean, naming, without_quotes
from pgmkit.records.dataset import Counts, Dataset, NoRows
from pgmkit.runtime.arguments import instance, listed, mapped, shown
from pgmkit.runtime.sizes import TABLE_CELLS
from pgmkit.runtime.typed import typed_class
from pgmkit.runtime.untrusted import FilePath, refusing
from pgmkit.structural_zeros import Zeros
from pgmkit.tables.columns import MOST_BINS, Column
from pgmkit.tables.constraints import Constraint, constraint_from_dict
from pgmkit.tables.levels import Groups, Level, found_groups, level_from_dict
from pgmkit.tables.numbers import Integer
from pgmkit.tables.schema_file import COLUMN_TYPES, FileFormat, column_from_dict, load, save
from pgmkit.tables.values import LONE_SURROGATE

_MOST_CODES = 2 * MOST_BINS
"""The most ends of bins that all columns of a schema file have together."""
_MOST_CELLS = 32 * TABLE_CELLS
"""The most combinations of a constraint's values: 128 MiB of truth values."""


@typed_class
class Schema:
    """Columns by name, in order, and constraints among them. A schema counts as public: it must not
    be made from private values.

    `levels`: groups of a column's values by name, such as the counties of blocks. `file`: the
    format of the data's files. `checked`: False for a schema that accepts data without rows and
    records that break constraints, as that of `placed` does.

    Raises InvalidInput if there are no columns, if an entry is no Column, Constraint or Level, for
    columns of other types than pgmkit's own, which no file could name, and for constraints and
    levels over unknown columns or values.

    >>> from pgmkit import Categorical, Integer
    >>> schema = Schema({"age": Integer(0, 99, bins=10), "sex": Categorical(("F", "M"))})
    >>> schema.domain
    Domain({'age': 10, 'sex': 2})
    >>> data = schema.encode({"age": np.array([7, 42]), "sex": np.array(["M", "F"])})
    >>> data.columns["age"]
    array([0, 4], dtype=uint8)
    """

    def __init__(
        self,
        columns: Mapping[str, Column],
        constraints: Sequence[Constraint] = (),
        *,
        levels: Mapping[str, Level] | None = None,
        file: FileFormat | None = None,
        checked: bool = True,
    ) -> None:
        if not columns:
            raise InvalidInput("the schema has no columns; describe at least one")
        for name, column in columns.items():
            if not isinstance(name, str) or not name:
                raise InvalidInput(f"a column's name must be a text, and not empty; got {name!r}")
            if type(column) not in COLUMN_TYPES.values():  # files could not name its type
                raise InvalidInput(
                    f"column {name!r} must be one of "
                    f"{', '.join(each.__name__ for each in COLUMN_TYPES.values())}, such as "
                    f"Integer(0, 9), got {shown(column)}; Schema.from_dict takes sizes and fields "
                    "of columns"
                )
        self.columns = dict(columns)
        self.constraints = tuple(constraints)
        self.levels = dict(levels or {})
        self.file = FileFormat() if file is None else file
        self.checked = checked
        for constraint in self.constraints:
            said = f"the constraint ({constraint}): there is no column"
            check_known(constraint.columns, self.columns, said, "columns are")
            if not set(constraint.columns) & set(self.unresolved):
                self._zeros_of(constraint)  # it refuses values that no column has
        for name, level in self.levels.items():
            instance(level, Level, f"level {name!r}")
        self.groups: dict[str, Groups] = found_groups(self.columns, self.levels)
        self._check_texts()

    @property
    def unresolved(self) -> tuple[str, ...]:
        """The names of the columns whose codes are still to be found; `resolve` replaces them."""
        return tuple(name for name, column in self.columns.items() if not column.resolved)

    def resolve(self, found: Mapping[str, Column]) -> Schema:
        """Return the schema with the columns `found` in place of its own of the same names, such as
        concrete columns for unresolved ones. Raises InvalidInput for a name that the schema does
        not have.
        """
        check_known(found, self.columns, "the schema has no column", "columns are")
        return self._with({**self.columns, **found}, self.constraints)

    def with_columns(self, columns: Mapping[str, Column]) -> Schema:
        """Return a schema of these columns and their levels, without constraints."""
        return self._with(columns, ())

    def of_file(self, file: FileFormat) -> Schema:
        """Return the schema with `file` as the format of its data files."""
        return self._with(self.columns, self.constraints, file=file)

    def placed(self) -> Schema:
        """Return the schema with a code for every value, so that none is refused.

        Each column declares `outside`, with its default if it has none. Records that break a
        constraint are counted as they are, and there may be no rows at all.

        >>> from pgmkit import Categorical, Integer
        >>> placed = Schema({"age": Integer(0, 9), "sex": Categorical(("F", "M"))}).placed()
        >>> {name: column.outside for name, column in placed.columns.items()}
        {'age': 'clip', 'sex': 'F'}
        """
        columns = {name: column.placed() for name, column in self.columns.items()}
        return self._with(columns, self.constraints, checked=False)

    def _with(
        self, columns: Mapping[str, Column], constraints: Sequence[Constraint], **changed: Any
    ) -> Schema:
        """Return a schema of these columns and constraints, with the levels whose base is one of
        the columns. `file` and `checked` are those of this schema unless they are in `changed`.
        """
        own = {n: each for n, each in self.levels.items() if self.groups[n].base in columns}
        settings = {"file": self.file, "checked": self.checked, **changed}
        return Schema(columns, constraints, levels=own, **settings)

    @cached_property
    def shown(self) -> dict[str, Column]:
        """The columns of records and questions: the schema's own, and then its levels."""
        return {**self.columns, **{name: each.column for name, each in self.groups.items()}}

    def behind(self, name: str, mask: NDArray[np.bool_]) -> tuple[str, NDArray[np.bool_]]:
        """Return a condition on a column or level as one on a column that is coded: the column's
        name, and a Boolean for each of its codes. `mask` has a Boolean for each code of `name`,
        True if it meets the condition. For a level, the column is the one at its base, whose codes
        meet the condition if their group does. For a column, the arguments are returned.
        """
        level = self.groups.get(name)
        return (name, mask) if level is None else (level.base, mask[level.codes])

    def shown_codes(self, data: Dataset) -> dict[str, NDArray[np.integer[Any]]]:
        """Return the codes of records in every column and every level of the schema, by name.
        Raises InvalidInput for records over another domain.
        """
        if data.domain != self.domain:
            raise InvalidInput("the records are over another domain; code them by this schema")
        codes = {name: data.columns[name] for name in self.columns}
        return codes | {n: each.codes[codes[each.base]] for n, each in self.groups.items()}

    def check_rows(self, rows: int) -> None:
        """Raise InvalidInput if there are no rows, unless the schema's `checked` is False."""
        if self.checked and rows == 0:
            raise InvalidInput("the data have no rows; give at least one")

    def check_unread(self, unread: Mapping[str, int]) -> None:
        """Raise InvalidInput for a column that has values without a code, but declares no place for
        them (`outside`). `unread`: the number of these values in each column. The message says how
        many but shows no value.
        """
        for name, rows in unread.items():
            if rows and self.columns[name].outside is None:
                raise InvalidInput(
                    f"column {name!r}: {rows} rows hold values outside the schema (missing ones "
                    "included); declare them (values, low and high, format, words, missing), or "
                    "their place: `other`, `outside`. This count is exact: do not publish it"
                )

    def restricted(self, names: Iterable[str]) -> Schema:
        """Return the schema of these columns, in its own order, with their levels and the
        constraints over these columns alone. Names that the schema does not have are ignored;
        raises InvalidInput if no column is left.

        >>> from pgmkit import Categorical, Integer
        >>> schema = Schema({"age": Integer(0, 9), "sex": Categorical(("F", "M"))})
        >>> schema.restricted(["sex", "shoe size"]).domain
        Domain({'sex': 2})
        """
        wanted = set(names)
        columns = {name: column for name, column in self.columns.items() if name in wanted}
        kept = [each for each in self.constraints if wanted.issuperset(each.columns)]
        return self._with(columns, kept)

    @cached_property
    def domain(self) -> Domain:
        """The number of codes of each column. Raises InvalidInput while codes of a column are still
        to be found.
        """
        self._check_resolved()
        return Domain({name: column.size for name, column in self.columns.items()})

    @cached_property
    def zeros(self) -> tuple[Zeros, ...]:
        """The constraints as structural zeros. Raises InvalidInput as `domain` does."""
        self._check_resolved()
        return tuple(map(self._zeros_of, self.constraints))

    def _zeros_of(self, constraint: Constraint) -> Zeros:
        cells = math.prod(self.columns[name].size for name in constraint.columns)
        if cells > _MOST_CELLS:
            raise InvalidInput(
                f"the constraint over {', '.join(constraint.columns)} has {cells:,} "
                f"combinations; at most {_MOST_CELLS:,} can be held: give wider bins"
            )
        return constraint.zeros(self.columns)

    def _check_texts(self) -> None:
        """Raise InvalidInput for names and labels that no file can store."""
        for name, column in self.shown.items():
            labels = (*column.labels, *getattr(column, "values", ())) if column.resolved else ()
            for text in name, *labels, *(column.missing or ()):
                if isinstance(text, str) and LONE_SURROGATE.search(text):
                    raise InvalidInput(
                        f"column {name!r} has a text with half of a character: {text!r}"
                    )

    def encode(self, columns: Any) -> Dataset:
        """Return columns of values as coded records; columns not in the schema are ignored.

        `columns`: numpy or Arrow arrays by name, a pandas frame or an Arrow table.

        Raises InvalidInput for missing columns and columns of unequal length, for values outside
        the schema in a column without `outside` and, unless the schema's `checked` is False, for no
        rows and broken constraints. The message on values outside and on constraints has the number
        of rows concerned but shows no value.
        """
        self._check_resolved()
        if not isinstance(columns, Mapping) and not {"iterrows", "column_names"} & {*dir(columns)}:
            ways = "to_arrow", "to_arrow_table", "to_pyarrow", "toArrow", "collect().to_arrow"
            way = next((w for w in ways if hasattr(columns, w.partition("(")[0])), ways[0])
            raise InvalidInput(
                "columns must be arrays by name, a pandas frame or an Arrow table, got "
                f"{type(columns).__name__}; for a frame of another library give its {way}()"
            )
        # Iterating an Arrow table gives arrays.
        self.check_names(getattr(columns, "column_names", columns))
        codes, unread = {}, {}
        for name, column in self.columns.items():
            what = f"reading the column {name!r} failed"
            codes[name], without = without_quotes(what, column.read, columns[name])
            unread[name] = int(without.sum())
        return self.coded(codes, unread)

    def coded(
        self, codes: Mapping[str, NDArray[Any]], unread: Mapping[str, int] | None = None
    ) -> Dataset:
        """Return records of these codes. Raises InvalidInput for columns of unequal length and,
        unless `checked` is False, for no rows and for rows that break a constraint.

        `unread`: the number of values of each column that have no code of their own
        (`Column.read`), if known. Raises InvalidInput if there are such values in a column that
        declares no place for them.
        """
        self.check_unread(unread or {})
        rows = max(map(len, codes.values()))
        self.check_rows(rows)
        if not rows:
            return NoRows(self.domain)
        data = Dataset(self.domain, codes, unread=unread)
        self.check_constraints(data)
        return data

    def check_constraints(self, data: Counts) -> None:
        """Raise InvalidInput for the first constraint that records break, with the number of these
        records. Nothing is checked if the schema's `checked` is False.
        """
        if not self.checked:
            return
        for constraint, zeros in zip(self.constraints, self.zeros, strict=True):
            impossible = data.marginals([zeros.clique])[zeros.clique][~zeros.allowed]
            if impossible.any():
                raise InvalidInput(
                    f"{int(impossible.sum())} rows break the constraint ({constraint}); correct "
                    "the data or the constraint. This count is exact: do not publish it"
                )

    def decode(self, data: Dataset, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        """Return values for the codes of a data set over the schema's domain, in the order of
        `shown`.
        """
        codes = self.shown_codes(data)
        return {name: self.shown[name].decode(each, rng) for name, each in codes.items()}

    def check_names(self, names: Mapping[Any, Any] | Sequence[object]) -> None:
        """Raise InvalidInput if columns of the schema are not among the names, or more than once;
        the message lists these columns.
        """
        held = list(names)
        absent = [name for name in self.columns if name not in held]
        if wrong := absent or [name for name in self.columns if held.count(name) > 1]:
            raise InvalidInput(
                f"the data have {'no column' if absent else 'several columns'} "
                f"{', '.join(map(repr, wrong))}{did_you_mean(wrong[0], held) if absent else ''}; "
                f"they have {', '.join(map(repr, held[:30])) or 'none'}. Rename, or take it out of "
                "the schema"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that `from_dict` reads, as YAML and JSON files store them; `checked`
        is not among them.
        """
        stored = {
            "columns": {name: column.to_dict() for name, column in self.columns.items()},
            "constraints": [constraint.to_dict() for constraint in self.constraints],
            "levels": {name: level.to_dict() for name, level in self.levels.items()},
            "file": self.file.to_dict(),
        }
        return {name: each for name, each in stored.items() if each}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Schema:
        """Return the schema that `to_dict` stored; raise InvalidInput with the name of a wrong
        column.

        {column: size} alone describes columns of codes 0 to size - 1.
        """
        if isinstance(stored.get("tables"), Mapping):
            raise InvalidInput(
                "it has `tables` and so describes linked tables; `pgmkit synth-linked` takes it"
            )
        described = any(isinstance(each, Mapping) for each in stored.values())
        if stored and "columns" not in stored and not described:
            sizes = Domain(dict(stored)).sizes
            return cls({name: Integer(0, size - 1) for name, size in sizes.items()})
        if not isinstance(stored.get("columns"), Mapping):
            raise InvalidInput("a schema must hold `columns`: {name: {type: ...}}")
        known = ("columns", "constraints", "levels", "file")
        check_known(stored, known, "a schema has no field", "it has")
        columns: dict[str, Column] = {}
        codes = 0
        for name, column in stored["columns"].items():
            with naming(f"column {name!r}"):
                if not isinstance(column, Mapping):
                    raise InvalidInput("write {type: ...}, as {type: categorical, values: [a, b]}")
                columns[name] = column_from_dict(column)
            codes += len(getattr(columns[name], "positions", ()))
            if codes > _MOST_CODES:
                raise InvalidInput(f"the columns have more than {_MOST_CODES:,} codes in all")
        rules = listed(stored.get("constraints", []), "constraints", "mappings")
        constraints = [constraint_from_dict(each) for each in rules]
        given = mapped(stored.get("levels", {}), "levels", "names to {of: ..., groups: {...}}")
        levels = {name: level_from_dict(name, each) for name, each in given.items()}
        with naming("`file`"):
            form = FileFormat.from_dict(mapped(stored.get("file", {}), "file", "fields to values"))
        return cls(columns, constraints, levels=levels, file=form)

    @classmethod
    def load(cls, path: FilePath) -> Schema:
        """Read a schema file: YAML (.yaml, .yml) or JSON (.json); raise InvalidInput for any other
        file.
        """
        with refusing(path, "a schema file"):
            return cls.from_dict(load(path))

    def save(self, path: FilePath) -> None:
        """Write a schema file, YAML (.yaml, .yml) or JSON (.json), completely or not at all. Raises
        InvalidInput for another suffix, and for more values than a YAML file may hold.
        """
        save(path, self.to_dict())

    def _check_resolved(self) -> None:
        if self.unresolved:
            raise InvalidInput(
                f"column {self.unresolved[0]!r} is still to be found in the data: use "
                "mechanisms.synthesize, which spends a budget on it, or give its values or edges"
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __repr__(self) -> str:
        return f"<Schema: {len(self.columns)} columns, {len(self.constraints)} constraints>"
