"""Links between tables: the rule by which rows of one table belong to a row of another, in Python
or in a schema file.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from mechanisms.linked.siblings import POSITION, PREVIOUS
from pgmkit import Integer, Schema
from pgmkit.errors import InvalidInput, check_known, naming
from pgmkit.runtime.arguments import check_whole, instance, listed, mapped
from pgmkit.runtime.typed import typed, typed_class
from pgmkit.runtime.untrusted import FilePath, refusing
from pgmkit.tables.columns import MOST_BINS
from pgmkit.tables.constraints import Constraint, constraint_from_dict
from pgmkit.tables.schema_file import load


@typed_class
@dataclass(frozen=True)
class Link:
    """A rule that rows of the table `child` belong to the row of `parent` with the same key.

    Raises InvalidInput for an empty name of a child, parent or key, a table that is its own child,
    a table's name with a slash, backslash, colon or null character or with a dot at the start
    (tables are saved in files of these names), a key that is also the order or the count, a
    parents' key that is also the count, and `most` outside its range.

    Attributes:
        child: The name of the children's table, such as "person".
        parent: The name of the parents' table, such as "household".
        key: The children's column with the key of their parent. The parents' key column has the
            same name, unless `parent_key` names another. It is not released.
        most: The largest number of children of one parent that are used, from 1 to 1,048,575; if
            there are more, this many are kept at random. Noise grows with this number.
        order: The children's column by which siblings are ordered, such as a person's number within
            the household; by default their order is random. Numbers, times and durations are in
            order of size, and all other values in that of their texts. It is not released.
        count: The name of the parents' column with the number of children. The schema of the
            parents must not have this column: it is counted.
        constraints: Rules that no child may break, over the parent's columns, `count`, "position"
            (1 is the first child), the child's own columns, and the previous sibling's columns,
            which have the prefix "previous ". Rules over the parent's columns and `count` alone
            hold for parents without children too. They are public, like those of a schema.
        parent_key: The parents' column with the key; by default it has the name `key`. All links
            from one table of parents name the same column. If several parents have the same key,
            one of them, drawn at random, gets the children.

    >>> Link("person", "household", key="id", most=6).count
    'number of person'
    """

    child: str
    parent: str
    key: str
    most: int
    order: str | None = None
    count: str = ""
    constraints: Sequence[Constraint] = ()
    parent_key: str = ""

    def __post_init__(self) -> None:
        for name in ("child", "parent", "key"):
            if not getattr(self, name):
                raise InvalidInput(f"{name} of a link must be a name, got ''")
        if self.child == self.parent:
            raise InvalidInput(
                f"a table cannot be its own child, got {self.child!r} as child and parent of a link"
            )
        for name in (self.child, self.parent):
            if name.startswith(".") or set(name) & set("/\\:\0"):
                raise InvalidInput(
                    f"a table is saved in a file of its name, which {name!r} cannot be; leave out "
                    "slashes, colons and a dot at the start"
                )
        check_whole(self.most, "most", 1, MOST_BINS - 1, " of children")
        count = self.count or f"number of {self.child}"
        vars(self).update(parent_key=self.parent_key or self.key, count=count)
        vars(self).update(constraints=tuple(self.constraints))
        if self.key in (self.order, self.count) or self.parent_key == self.count:
            raise InvalidInput(
                "the keys, order and count of a link must be different columns, got "
                f"{[self.key, self.parent_key, self.order, self.count]}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, which `from_dict` reads."""
        rules = [rule.to_dict() for rule in self.constraints]
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"constraints": rules}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Link:
        """Return the link of these plain values; raise InvalidInput for wrong ones."""
        known = [each.name for each in fields(cls)]
        check_known(stored, known, "a link has no field", "its fields are")
        for name in ("child", "parent", "key", "most"):
            if name not in stored:
                raise InvalidInput(f"a link needs the field {name!r}, which is missing: {stored}")
        rules = listed(stored.get("constraints", ()), "constraints of a link", "constraints")
        return cls(**{**stored, "constraints": tuple(map(constraint_from_dict, rules))})

    def steps(self, parents: Schema, children: Schema) -> Schema:
        """Return the schema by which children are modelled.

        Its columns are, in this order, those of `parents` (with the number of children), the
        position, those of the previous sibling (missing if there is none), and those of `children`,
        the child's own. Raises InvalidInput if a name occurs twice among these columns and the
        levels of both schemas.
        """
        before = {
            PREVIOUS + name: replace(column, missing=column.missing or ())
            for name, column in children.columns.items()
        }
        groups = parents.columns, {POSITION: Integer(1, self.most)}, before, children.columns
        names = Counter(itertools.chain(*groups, parents.levels, children.levels))
        twice = sorted(name for name, times in names.items() if times > 1)
        if twice:
            raise InvalidInput(
                f"the tables {self.parent!r} and {self.child!r} both have the columns or levels "
                f"{twice}, or one is named {POSITION!r}; rename them, or leave them out of one "
                "schema"
            )
        columns = {name: column for group in groups for name, column in group.items()}
        rules = [*children.constraints, *self.constraints]
        levels = {**parents.levels, **children.levels}
        return Schema(columns, rules, levels=levels, file=children.file, checked=children.checked)


def with_counts(parents: Schema, links: Sequence[Link]) -> Schema:
    """Return the parents' schema with a column for the number of children of each link, and with
    those constraints of the links that name only the parents' columns and these numbers.

    >>> from pgmkit import Boolean
    >>> list(with_counts(Schema({"rural": Boolean()}), [Link("cow", "farm", "id", 9)]).columns)
    ['rural', 'number of cow']
    """
    columns = {**parents.columns, **{link.count: Integer(0, link.most) for link in links}}
    every = [*parents.constraints, *(rule for link in links for rule in link.constraints)]
    rules = [rule for rule in every if columns.keys() >= set(rule.columns)]
    return Schema(columns, rules, levels=parents.levels, file=parents.file, checked=parents.checked)


def counted(schemas: Mapping[str, Schema], links: Sequence[Link]) -> dict[str, Schema]:
    """Return the schema of each table with a column for the number of its children by each of its
    links (`with_counts`).
    """
    return {
        name: with_counts(schema, [link for link in links if link.parent == name])
        for name, schema in schemas.items()
    }


def linking(links: Sequence[Link]) -> dict[str, list[str]]:
    """Return, for each table, its columns that link or order rows, each once.

    >>> linking([Link("cow", "farm", "id", 9, order="born")])
    {'farm': ['id'], 'cow': ['id', 'born']}
    """
    found: dict[str, list[str]] = {}
    for link in links:
        found.setdefault(link.parent, []).append(link.parent_key)
        found.setdefault(link.child, []).append(link.key)
        if link.order is not None:
            found[link.child].append(link.order)
    return {name: list(dict.fromkeys(columns)) for name, columns in found.items()}


def check_links(schemas: Mapping[str, Schema], links: Sequence[Link]) -> tuple[Link, ...]:
    """Return the links from the top down: the parent of the first link is the topmost table, and
    the parent of each further link is the topmost table too or the child of an earlier link.

    Raises InvalidInput for no links, links that form no tree, links of tables without a schema,
    tables without a link, links from one parent that name different keys of it or the same column
    for their counts, a table's key for its own children that also links or orders its rows, columns
    whose values the schemas leave to be found in the data, and schemas with a column that links,
    orders or counts rows.
    """
    if not links:
        raise InvalidInput("links is empty; give at least one Link")
    spoken = [name for link in links for name in (link.parent, link.child)]
    check_known(spoken, schemas, "a link speaks of a table that has no schema:", "tables are")
    ordered = _from_the_top(schemas, links)
    keys: dict[str, str] = {}
    for link in ordered:
        if keys.setdefault(link.parent, link.parent_key) != link.parent_key:
            raise InvalidInput(
                f"all links of {link.parent!r} must have the same key of it, got "
                f"{[keys[link.parent], link.parent_key]}; if children name it otherwise, give "
                "`parent_key` as well"
            )
    counts = [(link.parent, link.count) for link in links]
    if len(set(counts)) < len(counts):
        raise InvalidInput(f"links must count in different columns, got {counts}")
    columns = linking(ordered)
    for link in ordered:
        _check_columns(link, schemas, columns, keys)
    return ordered


def _from_the_top(schemas: Mapping[str, Schema], links: Sequence[Link]) -> tuple[Link, ...]:
    """Return the links in an order in which each follows the link that leads to its parent. Raises
    InvalidInput if they do not lead from one table to each of the other tables in exactly one way.
    """
    children = [link.child for link in links]
    tops = [name for name in schemas if name not in children]
    if len(tops) != 1 or len(set(children)) < len(children):
        raise InvalidInput(
            "every table but the topmost one must be the child of exactly one link; the tables "
            f"that are no child are {tops}, and the links' children are {children}"
        )
    reached, found = set(tops), list[Link]()
    for _ in links:
        found += [each for each in links if each.parent in reached and each.child not in reached]
        reached |= {each.child for each in found}
    if len(found) < len(links):
        raise InvalidInput(
            f"no links lead from {tops[0]!r} to the tables {sorted(set(children) - reached)}; see "
            "their parents"
        )
    return tuple(found)


def _check_columns(
    link: Link,
    schemas: Mapping[str, Schema],
    linking: Mapping[str, Sequence[str]],
    keys: Mapping[str, str],
) -> None:
    """Raise InvalidInput if the schema of the parents or of the children releases a column that
    links, orders or counts rows, or leaves values to be found in the data. Raise it also if the key
    for a child's own children is the column that links the child to its parent, or that orders it.

    `linking`: for each table, the columns that link or order its rows (`linking`). `keys`: for each
    table with children, its column with the key that the children name.
    """
    for name in (link.parent, link.child):
        schema = instance(schemas[name], Schema, f"the schema of {name!r}")
        if schema.unresolved:
            raise InvalidInput(
                f"the columns {list(schema.unresolved)} of {name!r} are to be found in the data, "
                "which linked tables do not support; list their values, or give edges"
            )
        shown = [column for column in linking[name] if column in schema.shown]
        if shown:
            raise InvalidInput(
                f"the columns {shown} of {name!r} link or order its rows and are not released; "
                "take them out of its schema, and copy one to another name if it is to be released"
            )
    if link.count in (*schemas[link.parent].shown, *linking[link.parent]):
        raise InvalidInput(
            f"the column {link.count!r} of {link.parent!r} is the number of children, which is "
            "counted; take it out of the schema, or give the link another `count`"
        )
    if link.child in keys and keys[link.child] in (link.key, link.order):
        raise InvalidInput(
            f"the column {keys[link.child]!r} of {link.child!r} is the key for its own children "
            f"and also links it to {link.parent!r} or orders it; these must be different columns"
        )


def own_columns(modelled: Schema) -> Schema:
    """Return the schema of a modelled table's own columns, without those of parents and siblings.

    `modelled`: a schema of `Link.steps`, in which the position is followed by the columns of the
    previous sibling and then by as many of the child itself; or that of the topmost table, which
    has no position and only own columns.
    """
    names = list(modelled.columns)
    behind = names[names.index(POSITION) + 1 :] if POSITION in names else []
    return modelled.restricted(behind[len(behind) // 2 :] or names)


@typed
def load_linked_schema(path: FilePath) -> tuple[dict[str, Schema], list[Link]]:
    """Return the schemas by table and the links of a file, as `synthesize_linked` takes them.

    The file is YAML (.yaml, .yml) or JSON (.json). It has `tables`, with a schema for each table's
    name, and `links`, a list of links with the fields of `Link`:

        tables:
          farm: {columns: {hills: {type: boolean}}}
          cow: {columns: {kind: {type: categorical, values: [a, b]}}}
        links:
          - {child: cow, parent: farm, key: id, most: 9}

    Raises InvalidInput for another file, and for schemas and links that do not fit each other.
    """
    with refusing(path, "a schema file of linked tables"):
        stored = load(path)
        if {*stored} != {"tables", "links"}:
            raise InvalidInput(f"it must have `tables` and `links`, and no more; got {[*stored]}")
        schemas = {}
        for name, each in mapped(stored["tables"], "tables", "names to schemas").items():
            with naming(f"table {name!r}"):
                schemas[name] = Schema.from_dict(each)
        given = listed(stored["links"], "links", "links")
        links = [Link.from_dict(mapped(each, "each link", "fields to values")) for each in given]
        return schemas, list(check_links(schemas, links))
