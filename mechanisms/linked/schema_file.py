"""Files that describe linked tables: the columns of each table, and the links between them."""

from __future__ import annotations

import os

from mechanisms.linked.link import Link, check_links
from pgmkit.errors import InvalidInput, naming
from pgmkit.runtime.arguments import listed, mapped
from pgmkit.runtime.typed import typed
from pgmkit.runtime.untrusted import refusing
from pgmkit.tables.schema import Schema
from pgmkit.tables.schema_file import load


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
        if {*stored} != {"tables", "links"}:
            raise InvalidInput(f"it must have `tables` and `links`, and no more; got {[*stored]}")
        schemas = {}
        for name, each in mapped(stored["tables"], "tables", "names to schemas").items():
            with naming(f"table {name!r}"):
                schemas[name] = Schema.from_dict(each)
        given = listed(stored["links"], "links", "links")
        links = [Link.from_dict(mapped(each, "each link", "fields to values")) for each in given]
        return schemas, list(check_links(schemas, links))
