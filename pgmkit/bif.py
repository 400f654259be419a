"""Bayesian networks in BIF and XMLBIF files, read and written by pgmpy (the extra ``networks``)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from pgmkit.errors import InvalidInput, installing, naming
from pgmkit.factor_graph import FactorGraph
from pgmkit.runtime.arguments import instance
from pgmkit.runtime.atomic_write import atomic_writer
from pgmkit.runtime.typed import typed
from pgmkit.runtime.untrusted import MOST_TEXT, HeldFile, refusing, ungzipped, whole_file

__all__ = ["from_pgmpy", "read_bif", "to_pgmpy", "write_bif"]


@typed
def read_bif(path: str | os.PathLike[str]) -> FactorGraph:
    """Return the network of a ``.bif``, ``.xml`` or ``.xmlbif`` file, or of one packed by gzip
    (such as ``.bif.gz``).

    States keep their names. Raises InvalidInput if pgmpy is not installed, for a name with another
    ending, for a file that is empty, has more than 16 MiB, defines entities or cannot be read by
    pgmpy, and for tables that do not form a Bayesian network.
    """
    read = _pgmpy()
    file = Path(path)
    suffix = Path(file.name.lower().removesuffix(".gz")).suffix
    if suffix not in (".bif", ".xml", ".xmlbif"):
        raise InvalidInput(
            f"{str(file)!r}: the name must end in .bif, .xml or .xmlbif (.gz), or in .uai for a "
            "file that `pgmkit infer` or `pgmkit.uai.read_model` reads"
        )
    with refusing(path, "a Bayesian network's file, or it is cut short"):
        data = whole_file(path, MOST_TEXT)
        text = (ungzipped(data, MOST_TEXT) if file.suffix.lower() == ".gz" else data).decode()
        text = re.sub("\r\n?", "\n", text)  # pgmpy finds no variable before another end of a line
        if not text.strip():
            raise InvalidInput("it is empty")
        if "<!ENTITY" in text:
            raise InvalidInput("it defines entities, which can stand for texts of any length")
        reader = read.BIFReader if suffix == ".bif" else read.XMLBIFReader
        found = reader(string=text)
        tables, states = _tables_of(found.get_model())
        if not tables:
            raise InvalidInput("no variable was found in it; look for a brace that is missing")
        # Of several variables of one name, or tables of one variable, pgmpy keeps the last.
        if suffix == ".bif":
            names = found.variable_names
            blocks = re.split(r"^\s*probability\s*\(", found.network, flags=re.MULTILINE)[1:]
            _check_rows(blocks)
        else:
            names, blocks = found.variables, found.network.findall("DEFINITION")
        if max(len(names), len(blocks)) > len(tables):
            raise InvalidInput(
                f"it has {len(names)} variables and {len(blocks)} tables for {len(tables)} names; "
                "keep one of each"
            )
    with naming(repr(os.fspath(path))):
        return FactorGraph.from_conditionals(tables, states=states)


def _check_rows(blocks: list[str]) -> None:
    """Raise InvalidInput for a table, a text that begins with its variables, that gives a row
    twice, of which pgmpy keeps the last, or a default beside rows, which pgmpy takes for a row.
    """
    for block in blocks:
        rows = [each.split(",") for each in re.findall(r"[{;\n]\s*\(([^)]*)\)", block)]
        keys = {tuple(map(str.strip, row)) for row in rows}
        if len(keys) < len(rows) or (rows and re.search(r"[{;\n]\s*default\s", block)):
            raise InvalidInput(
                f"the table of {block.partition(')')[0].strip()} gives a row twice, or a default "
                "beside rows; give each row once"
            )


@typed
def write_bif(graph: FactorGraph, path: str | os.PathLike[str]) -> None:
    """Write the network as a ``.bif``, ``.xml`` or ``.xmlbif`` file, completely or not at all.
    Before that its text is read back as a check, which for a large ``.bif`` file takes longer than
    the writing.

    Raises InvalidInput if pgmpy is not installed, for a graph that was not built by
    ``FactorGraph.from_conditionals``, for any other suffix, and for names that ``read_bif`` would
    not read back, such as those with commas.
    """
    write = _pgmpy()
    model = to_pgmpy(graph)
    suffix = Path(path).suffix.lower()
    if suffix not in (".bif", ".xml", ".xmlbif"):
        raise InvalidInput(f"{os.fspath(path)!r}: the name must end in .bif, .xml or .xmlbif")
    writer = write.BIFWriter if suffix == ".bif" else write.XMLBIFWriter
    try:
        content = str(writer(model)).encode()
        held = read_bif(HeldFile(os.fspath(path), content))
        wrong = "" if _same(held, from_pgmpy(model)) else "it is read as another one"
    except Exception as error:  # pgmpy raises errors of many kinds for names that it cannot hold
        wrong = str(error)[:200]
    if wrong:
        raise InvalidInput(
            f"a {suffix} file cannot hold this network: {wrong}; name variables and states by "
            "letters and digits, or write it with pgmkit.uai.write_model"
        )
    with atomic_writer(path) as file:
        file.write(content)


def _same(one: FactorGraph, other: FactorGraph) -> bool:
    """Return True if two networks have the same states' names and, up to rounding, tables."""
    mine, theirs = ({c[0]: (c, table) for c, table in each.tables} for each in (one, other))
    alike = one.states == other.states and mine.keys() == theirs.keys()
    return alike and all(
        c == theirs[n][0] and np.allclose(table, theirs[n][1]) for n, (c, table) in mine.items()
    )


def from_pgmpy(model: Any) -> FactorGraph:
    """Return the graph of a pgmpy ``DiscreteBayesianNetwork``, with its states' names. Raises
    InvalidInput for another object, if a variable has no table, if the names of two variables have
    the same text, if the tables do not form a Bayesian network, or if pgmpy is not installed.
    """
    tables, states = _tables_of(model)
    return FactorGraph.from_conditionals(tables, states=states)


def _tables_of(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    _pgmpy()
    from pgmpy.models import DiscreteBayesianNetwork

    tables, states = dict[str, Any](), dict[str, Any]()
    for name in instance(model, DiscreteBayesianNetwork, "model").nodes():
        if str(name) in tables:
            raise InvalidInput(f"two variables have the name {str(name)!r}; rename one of them")
        table = model.get_cpds(name)
        if table is None:
            raise InvalidInput(f"the network has no table for {name!r}; the file may be cut short")
        tables[str(name)] = (tuple(map(str, table.variables)), np.asarray(table.values))
        states[str(name)] = tuple(table.state_names[name])
    return tables, states


def to_pgmpy(graph: FactorGraph) -> Any:
    """Return a graph that ``FactorGraph.from_conditionals`` built as a pgmpy
    ``DiscreteBayesianNetwork``; states get the texts of their names or, without names, of their
    codes. Raises InvalidInput for other graphs, for names of two states with the same text, and if
    pgmpy is not installed.
    """
    if instance(graph, FactorGraph, "graph").children is None:
        raise InvalidInput(
            "only Bayesian networks have such files; build the graph by from_conditionals, or "
            "write it with pgmkit.uai.write_model"
        )
    _pgmpy()
    from pgmpy.factors.discrete import TabularCPD
    from pgmpy.models import DiscreteBayesianNetwork

    model = DiscreteBayesianNetwork(
        [(p, clique[0]) for clique, _ in graph.tables for p in clique[1:]]
    )
    model.add_nodes_from(graph.domain.attributes)
    names = dict[str, list[str]]()
    for name, size in graph.domain.sizes.items():
        names[name] = texts = list(map(str, graph.states.get(name, range(size))))
        if len(set(texts)) < len(texts):
            raise InvalidInput(f"the states of {name!r} must be different texts, got {texts!r:.80}")
    for (name, *parents), table in graph.tables:
        model.add_cpds(
            TabularCPD(
                name,
                len(table),
                table.reshape(len(table), -1),
                evidence=parents,
                evidence_card=list(table.shape[1:]),
                state_names={each: names[each] for each in (name, *parents)},
            )
        )
    return model


def _pgmpy() -> Any:
    try:
        from pgmpy import readwrite
    except ImportError:
        raise InvalidInput(f"BIF and XMLBIF files need pgmpy: {installing('networks')}") from None
    return readwrite
