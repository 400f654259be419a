"""Bayesian networks in BIF and XMLBIF files, and as objects of pgmpy (the extra ``networks``).

Both formats have an entry for each variable, with the names of its states, and one for each
variable's table, which names the variable and its parents. The rows of a BIF table name the states
of the parents, or all its numbers are in one list, in which the states of the variable change
slowest. An XMLBIF table is always one list, in which the states of the variable change fastest and
those of its first parent slowest.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from pgmkit.errors import InvalidInput, installing, naming
from pgmkit.factor_graph import FactorGraph
from pgmkit.runtime.arguments import instance
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.atomic_write import atomic_writer
from pgmkit.runtime.memory import MEMORY_LIMIT, check_room
from pgmkit.runtime.sizes import CELL_BYTES
from pgmkit.runtime.typed import typed
from pgmkit.runtime.untrusted import MOST_TEXT, FilePath, HeldFile, refusing, ungzipped, whole_file

__all__ = ["from_pgmpy", "read_bif", "to_pgmpy", "write_bif"]

_States = dict[str, Sequence[str]]
_Tables = dict[str, tuple[tuple[str, ...], Array]]


@typed
def read_bif(path: FilePath) -> FactorGraph:
    """Return the network of a ``.bif`` file, of one in XMLBIF (``.xml``, ``.xmlbif``, ``.bifxml``),
    or of one packed by gzip (such as ``.bif.gz``).

    States keep their names. Raises InvalidInput for a name with another ending, for a file that is
    blank, has more than 16 MiB (packed or unpacked), defines entities, has a variable without a
    table or has another format, and for tables that do not form a Bayesian network.
    """
    file = Path(path)
    suffix = Path(file.name.lower().removesuffix(".gz")).suffix
    if suffix not in (".bif", ".xml", ".xmlbif", ".bifxml"):
        raise InvalidInput(
            f"{str(file)!r}: the name must end in .bif, .xml, .xmlbif or .bifxml (.gz), or in .uai "
            "for a file that `pgmkit infer` or `pgmkit.uai.read_model` reads"
        )
    with refusing(path, "a Bayesian network's file, or it is cut short"):
        data = whole_file(path, MOST_TEXT)
        data = ungzipped(data, MOST_TEXT) if file.suffix.lower() == ".gz" else data
        text = data.decode("utf-8-sig")
        if not text.strip():
            raise InvalidInput("it is empty")
        states, tables = _read_text(text) if suffix == ".bif" else _read_xml(text)
        if not tables:
            raise InvalidInput("no table of a variable was found in it")
        if absent := [name for name in states if name not in tables]:
            raise InvalidInput(f"the variable {absent[0]!r} has no table of probabilities")
    with naming(repr(os.fspath(path))):
        return FactorGraph.from_conditionals(tables, states=states)


def _read_text(text: str) -> tuple[_States, _Tables]:
    """Return the states and the tables of the variables of a BIF text."""
    states, scopes, bodies = _States(), dict[str, tuple[str, ...]](), dict[str, str]()
    for kind, head, body in _blocks(text):
        if kind == "variable":
            (name,) = _names(head, 1)
            found = re.fullmatch(
                r"type\s++discrete\s*+\[\s*+(\d++)\s*+\]\s*+\{([^{}]*+)\}\s*+;?", body.strip()
            )
            if not found:
                raise InvalidInput(f"the variable {name!r} has no `type discrete [ 2 ] {{ ... }};`")
            own = _names(found[2], int(found[1]))
            if len(set(own)) < len(own):
                raise InvalidInput(f"the variable {name!r} has a state twice")
            _add(states, name, own)
        elif kind == "probability":
            of, _, given = head.strip().removeprefix("(").removesuffix(")").partition("|")
            child, *parents = [*_names(of), *_names(given)] or [""]  # refused by `_shape`
            _add(scopes, child, (child, *parents))
            bodies[child] = body
    cells = sum([math.prod(_shape(states, scope)) for scope in scopes.values()])
    check_room(CELL_BYTES * cells, "the network", MEMORY_LIMIT)
    codes = {name: {state: code for code, state in enumerate(own)} for name, own in states.items()}
    return states, {
        child: (scope, _table(child, [codes[name] for name in scope], bodies[child]))
        for child, scope in scopes.items()
    }


def _blocks(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield, for each block of a BIF text, its kind (such as "variable"), the text between the kind
    and the opening brace, and the text within the braces. Comments and properties are left out;
    one without an end goes to the end of the text.
    """
    # A quantifier with a second + never gives back characters that it took, so the time is linear
    # in the text.
    marks = r'("[^"]*+")|//[^\n\r]*+|/\*.*?(?:\*/|\Z)'
    text = re.sub(marks, lambda found: found[1] or " ", text, flags=re.DOTALL)
    if text.count('"') % 2:
        raise InvalidInput("a quotation mark is missing")
    # A property stands at the beginning, or after a brace or a semicolon.
    dropped = r'("[^"]*+")|(?<![^{};])\s*+property\b(?:"[^"]*+"|[^";])*+(?:;|\Z)'
    text = re.sub(dropped, lambda found: found[1] or "", text)
    block = re.compile(
        r"\s*+(network|variable|probability)\b([^{}]*+)\{((?:[^{}]++|\{[^{}]*+\})*+)\}"
    )
    end = 0
    while found := block.match(text, end):
        end = found.end()
        yield found[1], found[2], found[3]
    if rest := text[end:].strip():
        raise InvalidInput(
            f"a network, variable or probability must begin at {rest[:40]!r}; look for a brace "
            "that is missing"
        )


def _names(text: str, count: int | None = None) -> list[str]:
    """Return the names in a text, without their quotation marks. Names are separated by commas if
    the text has a comma or ``count`` is 1. Otherwise, and if that does not give ``count`` names,
    they are separated by commas and blanks; InvalidInput is raised if this gives another number,
    too. If ``count`` is None, any number is right, and a blank text has no names.
    """
    patterns = r'"[^"]*"|[^,"]+', r'"[^"]*"|[^\s,"]+'
    for pattern in patterns if "," in text or count == 1 else patterns[1:]:
        found = [name.strip().strip('"') for name in re.findall(pattern, text) if name.strip()]
        if count is None or len(found) == count:
            return found
    raise InvalidInput(f"{text.strip()[:80]!r} must be {count} names, separated by commas")


def _table(child: str, known: Sequence[dict[str, int]], body: str) -> Array:
    """Return the table of a variable, with its own axis first, given the content of its block. An
    entry has one row of numbers after the parents' states in brackets, the numbers of all rows
    after `table`, or after `default` one row that stands for each row not given. Without `default`
    such rows are 0, which ``FactorGraph.from_conditionals`` refuses. ``known`` has the codes of the
    states by name, first of the variable, then of each parent.
    """
    own, *sizes = map(len, known)
    table, given = np.zeros((*sizes, own)), np.zeros(sizes, dtype=bool)
    others: Array | None = None
    for line in filter(None, map(str.strip, body.split(";"))):
        found = re.fullmatch(r"(table\b|default\b|\(([^()]*)\))([^()]*)", line)
        if not found:
            raise InvalidInput(f"the table of {child!r} has no row like {line[:40]!r}")
        if found[1] == "default" and others is None:
            others = _numbers(child, found[3], [own])
            continue
        row: tuple[int, ...] = ()
        if found[2] is not None:
            names = _names(found[2], len(sizes))
            try:
                row = tuple(map(operator.getitem, known[1:], names))
            except KeyError as error:
                raise InvalidInput(
                    f"the table of {child!r} has a row of no state {error}"
                ) from None
        if found[1] == "default" or given[row].any():
            raise InvalidInput(f"the table of {child!r} gives a row twice; give each row once")
        given[row] = True
        numbers = _numbers(child, found[3], [own, *table[row].shape[:-1]])
        table[row] = np.moveaxis(numbers, 0, -1)
    table[~given] = 0.0 if others is None else others
    return np.moveaxis(table, -1, 0)


def _read_xml(text: str) -> tuple[_States, _Tables]:
    """Return the states and the tables of the variables of an XMLBIF text."""
    if "<!ENTITY" in text:
        raise InvalidInput("it defines entities, which can stand for texts of any length")
    states, tables, root = _States(), _Tables(), ElementTree.fromstring(text)

    def texts(within: ElementTree.Element, tag: str) -> list[str]:
        return [(each.text or "").strip() for each in within.findall(tag)]

    for each in root.iter("VARIABLE"):
        _add(states, texts(each, "NAME")[0], texts(each, "OUTCOME"))
    for each in root.iter("DEFINITION"):
        child, parents = texts(each, "FOR")[0], texts(each, "GIVEN")
        shape = _shape(states, (*parents, child))
        table = np.moveaxis(_numbers(child, " ".join(texts(each, "TABLE")), shape), -1, 0)
        _add(tables, child, ((child, *parents), table))
    return states, tables


def _add(held: dict[str, Any], name: str, found: Any) -> None:
    if name in held:
        raise InvalidInput(f"{name!r} has two entries of one kind; keep one of them")
    held[name] = found


def _shape(states: _States, scope: Sequence[str]) -> list[int]:
    for name in scope:
        if name not in states:
            raise InvalidInput(f"a table names {name!r}, which is no variable of the file")
    return [len(states[name]) for name in scope]


def _numbers(child: str, text: str, shape: Sequence[int]) -> Array:
    """Return the numbers of a text, separated by commas or blanks, as an array of this shape, whose
    last axis changes fastest. Raises InvalidInput if their number is another.
    """
    found = np.array(text.replace(",", " ").split(), dtype=float)
    if found.size != math.prod(shape):
        raise InvalidInput(
            f"the table of {child!r} must have {math.prod(shape)} numbers where it has {found.size}"
        )
    return found.reshape(shape)


@typed
def write_bif(graph: FactorGraph, path: FilePath) -> None:
    """Write the network as a ``.bif`` file, or in XMLBIF (``.xml``, ``.xmlbif``, ``.bifxml``),
    completely or not at all. Before that its text is read back as a check. States get the texts of
    their names or, without names, of their codes.

    Raises InvalidInput for a graph that was not built by ``FactorGraph.from_conditionals``, for any
    other suffix (``.gz`` too), and for names that ``read_bif`` would not read back, such as those
    with commas.
    """
    states = _texts(graph)
    suffix = Path(path).suffix.lower()
    if suffix not in (".bif", ".xml", ".xmlbif", ".bifxml"):
        named = repr(os.fspath(path))
        raise InvalidInput(f"{named}: the name must end in .bif, .xml, .xmlbif or .bifxml")
    content = (_bif_text if suffix == ".bif" else _xml_text)(graph, states).encode()
    try:
        held = read_bif(HeldFile(os.fspath(path), content))  # nothing is on disk yet
        # Names that are read as they are hold no sign that could change how tables are read.
        wrong = "" if held.states == states else "it is read as another one"
    except InvalidInput as error:
        wrong = str(error)
    if wrong:
        raise InvalidInput(
            f"a {suffix} file cannot hold this network: {wrong}; name variables and states by "
            "letters and digits, or write it with pgmkit.uai.write_model"
        )
    with atomic_writer(path) as file:
        file.write(content)


def _texts(graph: FactorGraph) -> _States:
    """Return the texts of the states of each variable of a Bayesian network. Raises InvalidInput
    for other graphs, and for names of two states with the same text.
    """
    if instance(graph, FactorGraph, "graph").children is None:
        raise InvalidInput(
            "only Bayesian networks have such files; build the graph by from_conditionals, or "
            "write it with pgmkit.uai.write_model"
        )
    found = _States()
    for name, size in graph.domain.sizes.items():
        found[name] = texts = tuple(map(str, graph.states.get(name, range(size))))
        if len(set(texts)) < len(texts):
            raise InvalidInput(f"the states of {name!r} must be different texts, got {texts!r:.80}")
    return found


def _bif_text(graph: FactorGraph, states: _States) -> str:
    lines = ["network unknown {", "}"]
    for name, own in states.items():
        lines.append(f"variable {name} {{")
        lines.append(f"  type discrete [ {len(own)} ] {{ {', '.join(own)} }};\n}}")
    for (child, *parents), table in graph.tables:
        lines.append(f"probability ( {child}{' | ' * bool(parents)}{', '.join(parents)} ) {{")
        for codes in np.ndindex(table.shape[1:]):
            row = ", ".join([states[name][code] for name, code in zip(parents, codes, strict=True)])
            numbers = ", ".join(map(repr, table[:, *codes].tolist()))
            lines.append(f"  {f'( {row} )' if parents else 'table'} {numbers};")
        lines.append("}")
    return "\n".join(lines) + "\n"


def _xml_text(graph: FactorGraph, states: _States) -> str:
    add, root = ElementTree.SubElement, ElementTree.Element("BIF", VERSION="0.3")
    network = add(root, "NETWORK")
    add(network, "NAME").text = "unknown"
    for name, own in states.items():
        variable = add(network, "VARIABLE", TYPE="nature")
        for tag, text in (("NAME", name), *(("OUTCOME", each) for each in own)):
            add(variable, tag).text = text
    for (child, *parents), table in graph.tables:
        definition = add(network, "DEFINITION")
        numbers = " ".join(map(repr, np.moveaxis(table, 0, -1).ravel().tolist()))
        given = [("GIVEN", parent) for parent in parents]
        for tag, text in (("FOR", child), *given, ("TABLE", numbers)):
            add(definition, tag).text = text
    ElementTree.indent(root)
    return f'<?xml version="1.0"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def from_pgmpy(model: Any) -> FactorGraph:
    """Return the graph of a pgmpy ``DiscreteBayesianNetwork``: states keep their names, and
    variables get the texts of theirs. Raises InvalidInput for another object, if a variable has no
    table, if the names of two variables have the same text, if the tables do not form a Bayesian
    network, or if pgmpy is not installed.
    """
    models, _ = _pgmpy()
    tables, states = dict[str, Any](), dict[str, Any]()
    for node in instance(model, models.DiscreteBayesianNetwork, "model"):
        if (name := str(node)) in tables:
            raise InvalidInput(f"two variables have the name {name!r}; rename one of them")
        if (table := model.get_cpds(node)) is None:
            raise InvalidInput(f"the network has no table for {node!r}; add one")
        tables[name] = map(str, table.variables), table.values
        states[name] = table.state_names[node]
    return FactorGraph.from_conditionals(tables, states=states)


def to_pgmpy(graph: FactorGraph) -> Any:
    """Return a graph that ``FactorGraph.from_conditionals`` built as a pgmpy
    ``DiscreteBayesianNetwork``; states get the texts of their names or, without names, of their
    codes. Raises InvalidInput for other graphs, for names of two states with the same text, and if
    pgmpy is not installed.
    """
    states = _texts(graph)
    models, discrete = _pgmpy()
    model = models.DiscreteBayesianNetwork(
        [(p, clique[0]) for clique, _ in graph.tables for p in clique[1:]]
    )
    model.add_nodes_from(graph.domain.attributes)
    for (name, *parents), table in graph.tables:
        model.add_cpds(
            discrete.TabularCPD(
                name,
                len(table),
                table.reshape(len(table), -1),
                evidence=parents,
                evidence_card=table.shape[1:],
                state_names={each: states[each] for each in (name, *parents)},
            )
        )
    return model


def _pgmpy() -> tuple[Any, Any]:
    try:
        from pgmpy import models
        from pgmpy.factors import discrete
    except ImportError:
        raise InvalidInput(f"networks of pgmpy need pgmpy: {installing('networks')}") from None
    return models, discrete
