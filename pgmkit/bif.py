"""Bayesian networks in BIF and XMLBIF files, read and written by pgmpy (the extra ``networks``)."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np

from pgmkit.errors import InvalidInput
from pgmkit.factor_graph import FactorGraph

__all__ = ["from_pgmpy", "read_bif", "to_pgmpy", "write_bif"]


def read_bif(path: str | os.PathLike[str]) -> FactorGraph:
    """The network of a ``.bif``, ``.xml`` or ``.xmlbif`` file, or of one packed by gzip (``.gz``).

    States keep their names. Raises InvalidInput for files that pgmpy cannot read, and for tables
    that are no Bayesian network's.
    """
    read = _pgmpy()
    file = Path(path)
    data = file.read_bytes()
    suffixes = [suffix.lower() for suffix in file.suffixes]
    try:
        text = (gzip.decompress(data) if suffixes[-1:] == [".gz"] else data).decode()
        if ".bif" in suffixes:
            model = read.BIFReader(string=text).get_model()
        elif ".xml" in suffixes or ".xmlbif" in suffixes:
            model = read.XMLBIFReader(string=text).get_model()
        else:
            raise InvalidInput(f"{str(file)!r}: the name must end in .bif, .xml or .xmlbif (.gz)")
        return from_pgmpy(model)
    except (InvalidInput, MemoryError):
        raise
    except Exception as error:
        # A parser's errors are of any kind; none is ours.
        raise InvalidInput(
            f"{str(file)!r} cannot be read as a Bayesian network: {type(error).__name__}: "
            f"{error!s:.200}; it may be cut short"
        ) from error


def write_bif(graph: FactorGraph, path: str | os.PathLike[str]) -> None:
    """The network as a ``.bif``, ``.xml`` or ``.xmlbif`` file; InvalidInput for other graphs."""
    write = _pgmpy()
    model = to_pgmpy(graph)
    suffix = Path(path).suffix.lower()
    if suffix == ".bif":
        write.BIFWriter(model).write(os.fspath(path))
    elif suffix in (".xml", ".xmlbif"):
        write.XMLBIFWriter(model).write(os.fspath(path))
    else:
        raise InvalidInput(f"{os.fspath(path)!r}: the name must end in .bif, .xml or .xmlbif")


def from_pgmpy(model: Any) -> FactorGraph:
    """The graph of a pgmpy ``DiscreteBayesianNetwork``."""
    tables, states = {}, {}
    for name in model.nodes():
        table = model.get_cpds(name)
        if table is None:
            raise InvalidInput(f"the network has no table for {name!r}; the file may be cut short")
        tables[str(name)] = (tuple(map(str, table.variables)), np.asarray(table.values))
        states[str(name)] = tuple(table.state_names[name])
    return FactorGraph.from_conditionals(tables, states=states)


def to_pgmpy(graph: FactorGraph) -> Any:
    """A pgmpy ``DiscreteBayesianNetwork`` of a graph of conditional tables."""
    if graph.children is None:
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
    names = {
        name: list(map(str, graph.states.get(name, range(size))))
        for name, size in graph.domain.sizes.items()
    }
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
        raise InvalidInput(
            "BIF and XMLBIF files need pgmpy; install it: pip install 'pgmkit[networks]'"
        ) from None
    return readwrite
