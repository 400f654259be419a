"""Files that describe linked tables: the columns of each table, and the links between them."""

from __future__ import annotations

import os

from mechanisms.linked.link import Link, check_links
from pgmkit.errors import InvalidInput, check_known, naming
from pgmkit.runtime.arguments import listed, mapped
from pgmkit.runtime.typed import typed
from pgmkit.runtime.untrusted import refusing
from pgmkit.tables.schema import Schema
from pgmkit.tables.schema_file import load

_FIELDS = ("tables", "links")


@typed
def load_linked_schema(path: str | os.PathLike[str]) -> tuple[dict[str, Schema], list[Link]]:
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
        for name in _FIELDS:
            if name not in stored:
                raise InvalidInput(f"it has no `{name}`; linked tables need `tables` and `links`")
        check_known(stored, _FIELDS, "it has no field", "its fields are")
        schemas = {}
        for name, each in mapped(stored["tables"], "tables", "names to schemas").items():
            with naming(f"table {name!r}"):
                schemas[name] = Schema.from_dict(each)
        each_link = listed(stored["links"], "links", "links")
        links = [
            Link.from_dict(mapped(each, "each link", "fields to values")) for each in each_link
        ]
        links = list(check_links(schemas, links))
    return schemas, links
