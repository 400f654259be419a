"""A release of linked tables: a model of each table, and records whose links hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mechanisms.linked.conditional import Given, Rows, allowed_codes, draw_given
from mechanisms.linked.fidelity import Compared, compared, fidelity, kind_of
from mechanisms.linked.link import Link, check_links, counted, own_columns
from mechanisms.linked.siblings import PREVIOUS, Children, Codes, Wanted, broken, draw_children
from mechanisms.privacy.ledger import Ledger
from mechanisms.release.column_counts import cell_variances
from mechanisms.release.tabular import TableRelease
from pgmkit import Dataset, Integer, InvalidInput, Measurement, NumericalFailure, Reply, Schema
from pgmkit.domain import Clique
from pgmkit.runtime.arguments import Rng, generator
from pgmkit.runtime.typed import typed_class
from pgmkit.runtime.untrusted import MOST_TEXT, FilePath, plain_values, refusing, whole_file
from pgmkit.tables.engines.frames import FrameForm, framed
from pgmkit.tables.files.formats import written_format
from pgmkit.tables.files.record_files import write_tables
from pgmkit.tables.records import arrow_schema, arrow_table

_LINKS = "links.json"


@typed_class
@dataclass(frozen=True, repr=False)
class LinkedRelease:
    """A release of the topmost table, and for each link a release of the children, who have the
    columns of their parent and of their previous sibling too.

    All of it is safe to publish if `secure` is True. Each of these releases answers questions with
    error bars: `children["person"].ask("mean(age) | income = low")` asks about persons by a column
    of their household.

    Attributes:
        links: The links, from the topmost table down.
        parents: The release of the topmost table, with the numbers of children.
        children: For each table of children the release of its rows, each with its parent's
            columns, its "position", and the columns of the previous sibling ("previous age").
        schemas: For each table of children the schema of its own columns, which include the numbers
            of its own children.
        forms: For each table the kind of data frame that `sample` returns; a pyarrow table if it is
            left out.
    """

    links: tuple[Link, ...]
    parents: TableRelease
    children: Mapping[str, TableRelease]
    schemas: Mapping[str, Schema]
    forms: Mapping[str, FrameForm] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = {link.child for link in self.links}
        if not named or named ^ {*self.children} or named ^ {*self.schemas}:
            said = "links must name the tables in children and schemas, and one at least; got"
            raise InvalidInput(f"{said} {[*named]}, {[*self.children]} and {[*self.schemas]}")

    @property
    def tables(self) -> dict[str, TableRelease]:
        """The release of each table by name; the topmost table comes first."""
        return {self.links[0].parent: self.parents, **self.children}

    @property
    def ledger(self) -> Ledger | None:
        """The ledger of all charges for all tables; None if it is not known."""
        return self.parents.ledger

    @property
    def secure(self) -> bool:
        """False if a seed made the noise reproducible, which protects nobody, or if a file of the
        release was changed after it was written.
        """
        return all(each.secure for each in self.tables.values())

    @property
    def caution(self) -> str:
        """The warning to be shown with anything from an insecure release; empty for a secure
        one.
        """
        said = [each.caution for each in self.tables.values()]
        return "\n".join(dict.fromkeys(filter(None, said)))

    def sample(
        self, n: int | None = None, *, given: Given | None = None, rng: Rng = None
    ) -> dict[str, Any]:
        """Return synthetic tables by name, as data frames of the data's kind (pyarrow tables if it
        is not known).

        `n`: the number of rows of the topmost table; by default as many as the model has or, with
        conditions, as many of these as meet them. Rows that can have children have the keys 1, 2,
        ...; every child has its parent's key, and each parent has as many children as its column
        says. Siblings are in order; a column that ordered them contains 1, 2, ... for each parent.

        `given`: conditions by table, such as {"home": {"area": "north", "persons": 3}, "person":
        "age < 2"}, on the table's own columns and its numbers of children. Every row of the
        topmost table meets the conditions on it and has, in each other table with conditions, at
        least one descendant that meets them. The records have the distribution of those that meet
        the conditions in a draw without conditions.
        `rng`: a seed, a numpy Generator, or None for a fresh one.

        Raises NumericalFailure if no records were found that satisfy the links' constraints, or if
        rows that meet the conditions have children but no row of a draw without conditions has any.
        Raises InvalidInput for conditions that cannot be met or are met too rarely.
        """
        return {
            name: framed(table, schema, self.forms[name]) if name in self.forms else table
            for name, (schema, table) in self._tables(n, given, generator(rng)).items()
        }

    def write(
        self,
        folder: FilePath,
        n: int | None = None,
        *,
        suffix: str = ".csv",
        given: Given | None = None,
        rng: Rng = None,
    ) -> dict[str, int]:
        """Write synthetic tables (`sample`) into a folder, a file for each, and return their
        numbers of rows.

        The folder is created. `suffix`: that of the files, such as ".parquet", which selects their
        format. `n`, `given` and `rng`: as in `sample`. Raises the errors of `sample`, and
        InvalidInput, which lists the known ones, for an unknown suffix.
        """
        place = Path(folder)
        written_format(place / f"{self.links[0].parent}{suffix}")
        drawn = self._tables(n, given, generator(rng))
        place.mkdir(parents=True, exist_ok=True)
        return {
            name: write_tables(place / f"{name}{suffix}", schema, [table])
            for name, (schema, table) in drawn.items()
        }

    def fidelity(self, *, rng: Rng = None) -> Reply:
        """Compare a fresh draw of records, as many as the models have, with the models' tables.
        Return the distances, and the noise of the tables for comparison.

        For each link there is a line for the numbers of children, and one each for the measured
        tables over parent and child, over siblings, and within a child, as far as there are such
        tables. A line has the mean total variation distance that noise alone makes in such a table,
        and that of the records from the model. Only the release is used, so no budget is spent.
        """
        return fidelity(self.compared(rng=rng))

    def compared(self, *, rng: Rng = None) -> list[Compared]:
        """Compare a fresh draw of records, as many as the models have, with the model's table over
        each measured clique about a link, and return the comparisons.
        """
        parents, children = self._records(None, None, generator(rng))
        tables: dict[str, Callable[[Clique], Any]] = {self.links[0].parent: parents.marginal}
        tables |= {name: each.table for name, each in children.items()}
        pure = self.ledger is not None and self.ledger.budget.pure
        found = []
        for link in self.links:
            for each in wanted_tables(self.tables[link.parent], {link.count}):
                kind = f"numbers of {link.child}"
                found.append(compared(link.parent, kind, each, tables[link.parent], pure=pure))
            for each in self._wanted(link.child):
                kind = kind_of(each.clique, self.schemas[link.child].columns)
                found.append(compared(link.child, kind, each, tables[link.child], pure=pure))
        return found

    def _tables(
        self, n: int | None, given: Given | None, random: np.random.Generator
    ) -> dict[str, tuple[Schema, Any]]:
        """Return for each synthetic table, by name, the schema of all its columns, the linking ones
        included, and its rows as a pyarrow table.
        """
        parents, children = self._records(n, given, random)
        keys = {link.parent: link.parent_key for link in self.links}
        top = self.links[0].parent
        places = {keys[top]: np.arange(1, len(parents) + 1)}
        found = {top: _linking(parents, self.parents.schema, places, random)}
        for link in self.links:
            drawn, schema = children[link.child], self.schemas[link.child]
            places = {link.key: drawn.parent + 1}
            if link.order is not None:
                places[link.order] = drawn.position + 1
            if link.child in keys:
                places[keys[link.child]] = np.arange(1, len(drawn) + 1)
            rows = Dataset(schema.domain, drawn.records) if len(drawn) else None
            found[link.child] = _linking(rows, schema, places, random)
        return found

    def _records(
        self, n: int | None, given: Given | None, random: np.random.Generator
    ) -> tuple[Dataset, dict[str, Children]]:
        """Draw `n` records of the topmost table (by default as many as its model has) under the
        conditions `given`, and all their descendants. Return the records of the topmost table, and
        those of each table of children by name.
        """
        top, given = self.links[0].parent, {} if given is None else given
        allowed = allowed_codes({top: self.parents.schema, **self.schemas}, given)
        below = partial(self._below, random)
        if allowed:
            rows = draw_given(self.links, self.parents, given, allowed, n, below, random)
        else:
            parents = self.parents.codes(n, rng=random)
            rows = below(parents.columns, len(parents))
        children = {}
        for link in self.links:
            domain, above = self.children[link.child].schema.domain, rows[link.parent]
            children[link.child] = Children(domain, above[link.count], above, rows[link.child])
        return Dataset(self.parents.schema.domain, rows[top]), children

    def _below(self, random: np.random.Generator, top: Mapping[str, Codes], fitted: int) -> Rows:
        """Draw the descendants of rows of the topmost table, and return the codes of all tables.

        `top`: the rows' codes by column. `fitted`: a number m; the first m rows stand for the
        population, to which the children's potentials are fitted.
        """
        rows, fit = {self.links[0].parent: top}, {self.links[0].parent: fitted}
        for link in self.links:
            drawn = self._drawn(link, rows[link.parent], fit[link.parent], random)
            rows[link.child], fit[link.child] = drawn.records, drawn.fitted
        return rows

    def _drawn(
        self, link: Link, parents: Mapping[str, Codes], fitted: int, rng: np.random.Generator
    ) -> Children:
        """Draw the link's children for parents with these codes, all with the same potentials,
        which make the tables of the children of the first m parents fit the model's; m is `fitted`.
        Raises NumericalFailure if children break a constraint, or if some parents have children but
        none of the first m has any.
        """
        release, schema = self.children[link.child], self.schemas[link.child]
        counts, domain = parents[link.count], release.schema.domain
        rows = int(counts.sum(dtype=np.int64))
        records = {name: rng.integers(0, size, rows) for name, size in schema.domain.sizes.items()}
        children = Children(domain, counts, parents, records, fitted)
        if len(children) and not children.fitted:
            raise NumericalFailure(
                f"none of {fitted} drawn rows of {link.parent!r} has rows of {link.child!r}, from "
                "which those that are asked for could follow; leave out conditions on "
                f"{link.parent!r}"
            )
        impossible = dict[Clique, NDArray[np.bool_]]()
        for zeros in release.schema.zeros:  # several constraints may have the same columns
            impossible[zeros.clique] = ~zeros.allowed | impossible.get(zeros.clique, False)
        draw_children(children, self._wanted(link.child), release.model.total, rng, impossible)
        left = broken(children, impossible)
        if left:
            raise NumericalFailure(
                f"{left} rows of {link.child!r} break a constraint after all attempts to draw "
                "them again; the constraints leave too few possible records for these parents"
            )
        return children

    def _wanted(self, child: str) -> list[Wanted]:
        """Return the model's tables over the measured cliques that have a column of the child or of
        its previous sibling.
        """
        own = set(self.schemas[child].columns)
        return wanted_tables(self.children[child], own | {PREVIOUS + name for name in own})

    def save(self, folder: FilePath) -> None:
        """Write a file for each table and one for the links into a folder, which is created. Files
        of these names are replaced; if writing fails, those written before remain.
        """
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        for name, release in self.tables.items():
            release.save(place / f"{name}.pgm")
        stored = json.dumps([link.to_dict() for link in self.links], indent=1)
        (place / _LINKS).write_text(stored + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: FilePath, *, allow_modified: bool = False) -> LinkedRelease:
        """Read a folder that `save` wrote; raise InvalidInput for any other. A table's file whose
        checksum shows that it was changed is read only with `allow_modified`.

        The method `sample` of a release that was read returns pyarrow tables.
        """
        place = Path(folder)
        _check_held(place, [_LINKS])
        with refusing(place / _LINKS, "the links of a release"):
            stored = plain_values(whole_file(place / _LINKS, MOST_TEXT))
            links = tuple(Link.from_dict(each) for each in stored)
            tables = dict.fromkeys(name for link in links for name in (link.parent, link.child))
        _check_held(place, [f"{name}.pgm" for name in tables])
        releases = {
            name: TableRelease.load(place / f"{name}.pgm", allow_modified=allow_modified)
            for name in tables
        }
        schemas = {name: own_columns(release.schema) for name, release in releases.items()}
        with refusing(place / _LINKS, "the links of a release"):
            links = _checked_links(links, schemas, releases)
        parents = releases.pop(links[0].parent)
        del schemas[links[0].parent]
        return cls(links, parents, releases, schemas)

    def __repr__(self) -> str:
        releases = ", ".join(f"{name}: {each!r}" for name, each in self.tables.items())
        return f"<LinkedRelease of {releases}>"


def _check_held(folder: Path, names: Sequence[str]) -> None:
    """Raise InvalidInput if the folder lacks one of these files."""
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise InvalidInput(f"{folder} is no release of linked tables: it has no file {absent[0]}")


def wanted_tables(release: TableRelease, columns: set[str]) -> list[Wanted]:
    """Return the model's tables over the measured cliques that contain one of these columns, with 0
    in place of negative counts, and each with the standard deviation of its noise: the least one if
    the whole table was measured, perhaps several times; the mean over its cells if it was measured
    in parts or through its residuals alone.
    """
    domain = release.schema.domain
    whole, parts = dict[Clique, float](), dict[Clique, float]()
    measured = [each for each in release.measurements if isinstance(each, Measurement)]
    for each in (m for m in measured if columns.intersection(m.clique)):
        if each.matrix is None:
            whole[each.clique] = min(each.stddev, whole.get(each.clique, each.stddev))
        else:
            noise = each.stddev * each.values.size / domain.size(each.clique)
            parts[each.clique] = parts.get(each.clique, 0.0) + noise
    if parts:
        found = cell_variances(domain, measured, release.model.total)
        parts |= {c: float(np.sqrt(found[c]).mean()) for c in parts.keys() & found}
    return [
        Wanted(clique, np.maximum(release.model.marginal(clique), 0.0), stddev)
        for clique, stddev in {**parts, **whole}.items()
    ]


def _checked_links(
    links: Sequence[Link], schemas: Mapping[str, Schema], releases: Mapping[str, TableRelease]
) -> tuple[Link, ...]:
    """Return the links from the top down; raise InvalidInput if they do not fit the columns of the
    releases.

    `schemas`: the own columns of each table, with the numbers of children.
    """
    counts = {(link.parent, link.count) for link in links}
    plain = {
        table: schema.restricted(name for name in schema.columns if (table, name) not in counts)
        for table, schema in schemas.items()
    }
    ordered = check_links(plain, links)
    whole = counted(plain, ordered)
    for name, schema in schemas.items():
        if whole[name].columns != schema.columns:
            raise InvalidInput(f"the release of {name!r} counts other children")
    top = ordered[0].parent
    if releases[top].schema.columns != schemas[top].columns:
        raise InvalidInput(f"the release of {top!r} is one of children, whose link is missing")
    for link in ordered:
        steps = link.steps(schemas[link.parent], schemas[link.child])
        if steps.columns != releases[link.child].schema.columns:
            raise InvalidInput(f"the release of {link.child!r} has other columns than its link")
    return ordered


def _linking(
    data: Dataset | None,
    schema: Schema,
    places: Mapping[str, NDArray[np.integer[Any]]],
    rng: np.random.Generator,
) -> tuple[Schema, Any]:
    """Return the schema of all columns of a table, and the table with the values of its records.
    `places`: the values of the linking columns by name, which are put in front. The table has no
    rows if `data` is None.
    """
    table = arrow_schema(schema).empty_table() if data is None else arrow_table(data, schema, rng)
    for position, (name, values) in enumerate(places.items()):
        table = table.add_column(position, name, pa.array(values, pa.int64()))
    # Only the kind of a linking column matters to a writer, not its range.
    columns = {name: Integer(1, 1) for name in places}
    return schema.with_columns({**columns, **schema.columns}), table
