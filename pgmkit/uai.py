"""Files of the UAI inference competitions: models, evidence, and results (MAR, MAP, PR).

The files consist of numbers between white space. The first word of a model is BAYES or MARKOV; then
the number of variables and their sizes, the number of tables; for each table the number of its
variables and their numbers (the child last in a BAYES file); and for each table the number of its
cells and their values, the last variable changing fastest. Variable 3 of a file becomes the
attribute ``"x3"``.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from pgmkit.conditioning.evidence import Evidence, state
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.factor_graph import FactorGraph
from pgmkit.runtime.arguments import float_array, in_order, instance, listed, number, shown
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.atomic_write import atomic_writer
from pgmkit.runtime.typed import typed
from pgmkit.runtime.untrusted import MOST_VALUES, FilePath, refusing, whole_file

__all__ = [
    "read_evidence",
    "read_map",
    "read_marginals",
    "read_model",
    "read_probability",
    "write_evidence",
    "write_map",
    "write_marginals",
    "write_model",
    "write_probability",
]

_MOST_DIGITS = len(str(sys.maxsize)) - 1
"""The number of digits up to which every whole number fits into 64 bits."""


class _Words:
    """The words of a file, read one after the other. Every method raises InvalidInput if the file
    does not go on with what the method reads, which the message calls ``what``.
    """

    @typed
    def __init__(self, path: FilePath) -> None:
        self.path = os.fspath(path)
        with refusing(path, "a UAI file"):
            content = whole_file(path)
            if b"#" in content:  # pyAgrum's: of the parents, the first changes fastest
                raise InvalidInput(
                    "it holds a comment (#), which the format does not have; pyAgrum writes such "
                    "files, with the numbers of a table in another order: let it write a .bif "
                    "file, which pgmkit.bif.read_bif reads"
                )
            self.words = content.decode("ascii", "backslashreplace").split()
        self.next = 0

    def word(self, what: str) -> str:
        if self.next >= len(self.words):
            raise InvalidInput(f"{self.path!r} is cut short: it ends where {what} should be")
        self.next += 1
        return self.words[self.next - 1]

    def integer(self, what: str, least: int = 0, below: float = math.inf) -> int:
        text = self.word(what)
        if not text.isdigit() or len(text) > _MOST_DIGITS or not least <= int(text) < below:
            limit = f" below {below}" if below < math.inf else ""
            raise InvalidInput(
                f"{self.path!r}, word {self.next}: {what} is {text!r}; it must be an integer of "
                f"at least {least}{limit}"
            )
        return int(text)

    def numbers(self, count: int, what: str, least: float = -math.inf) -> Array:
        texts = self.words[self.next : self.next + count]
        if len(texts) < count:
            raise InvalidInput(
                f"{self.path!r} is cut short: {what} has {len(texts)} of {count} numbers"
            )
        self.next += count
        try:
            found = np.array(texts, dtype=np.float64)
        except ValueError as error:
            raise InvalidInput(f"{self.path!r}: {what} holds a word: {error}") from None
        return _below_infinity(found, f"{self.path!r}: {what}", least)

    def heading(self, *allowed: str) -> str:
        word = self.word(f"the heading {' or '.join(allowed)}").upper()
        if word not in allowed:
            raise InvalidInput(
                f"{self.path!r} begins with {word[:20]!r}; such a UAI file begins with "
                f"{' or '.join(allowed)}"
            )
        return word

    def finish(self) -> None:
        if self.next < len(self.words):
            raise InvalidInput(
                f"{self.path!r} continues after its end: {len(self.words) - self.next} words are "
                "left over; the numbers at its beginning do not fit what follows"
            )


def read_model(path: FilePath) -> FactorGraph:
    """Read a model file: a Bayesian network if it begins with BAYES, a factor graph if with MARKOV.

    Raises InvalidInput for files that are cut short, continue after their end or hold other words,
    for negative numbers, and in a BAYES file for cycles and for distributions that do not sum to
    one.
    """
    words = _Words(path)
    kind = words.heading("BAYES", "MARKOV")
    count = words.integer("the number of variables", 1)
    below = max(MOST_VALUES, len(words.words))
    sizes = {f"x{v}": words.integer(f"the size of variable {v}", 1, below) for v in range(count)}
    cliques = [
        _clique(words, f"table {place}", count)
        for place in range(words.integer("the number of tables"))
    ]
    domain = Domain(sizes)
    tables = []
    for place, clique in enumerate(cliques):
        what = f"table {place}"
        cells = words.integer(f"the number of cells of {what}")
        domain.clique(clique, f"{words.path!r}: {what}")
        if cells != domain.size(clique):
            raise InvalidInput(
                f"{words.path!r}: {what} has {cells} cells; its variables' sizes make it "
                f"{domain.size(clique)}"
            )
        tables.append((clique, words.numbers(cells, what, 0.0).reshape(domain.shape(clique))))
    words.finish()
    if kind == "MARKOV":
        return FactorGraph(domain, tables)
    return _bayesian(words.path, domain, tables)


def _clique(words: _Words, what: str, count: int) -> Clique:
    length = words.integer(f"the number of variables of {what}", 0, 65)  # an array has at most 64
    return tuple(f"x{words.integer(f'a variable of {what}', 0, count)}" for _ in range(length))


def _bayesian(path: str, domain: Domain, tables: Sequence[tuple[Clique, Array]]) -> FactorGraph:
    found = {
        clique[-1]: ((clique[-1], *clique[:-1]), np.moveaxis(table, -1, 0))
        for clique, table in tables
        if clique
    }
    if len(found) != len(tables) or set(found) != set(domain):
        raise InvalidInput(
            f"{path!r} says BAYES, but has not one table for each variable (the variable last); "
            "write MARKOV for tables of other kinds"
        )
    try:
        return FactorGraph.from_conditionals({name: found[name] for name in domain})
    except InvalidInput as refusal:
        reason = str(refusal).partition("; ")[0]
        raise InvalidInput(
            f"{path!r} is no Bayesian network: {reason}; in a BAYES file the last variable of a "
            "table is the child, and its states follow each other; write MARKOV for potentials"
        ) from None


def write_model(graph: FactorGraph, path: FilePath) -> None:
    """Write a model file that ``read_model`` reads back: BAYES for a Bayesian network, else MARKOV.

    Variables are numbered in the domain's order; their names, and names of states, are lost.
    """
    places = instance(graph, FactorGraph, "graph").domain.places
    lines = ["MARKOV" if graph.children is None else "BAYES", str(len(places))]
    lines += [" ".join(map(str, graph.domain.shape())), str(len(graph.tables))]
    arrays = []
    for clique, table in graph.tables:
        if graph.children is not None:
            clique, table = (*clique[1:], clique[0]), np.moveaxis(table, 0, -1)
        lines.append(" ".join(str(n) for n in (len(clique), *(places[name] for name in clique))))
        arrays.append(table)
    for table in arrays:
        lines += ["", str(table.size), _numbers(table)]
    _write(path, lines)


def read_evidence(path: FilePath, graph: FactorGraph) -> dict[str, Hashable]:
    """Return the state of each variable that an evidence file observes, by the variable's name; the
    code of a variable without named states. The file has the number of observed variables, then
    pairs of variable and code.

    The form that begins with the number of sets of evidence is read too, if there is one set.
    Raises InvalidInput for files of other forms, for variables and codes that the graph does not
    have, and for a variable that is observed twice.
    """
    words = _Words(path)
    names = instance(graph, FactorGraph, "graph").domain.attributes
    count = words.integer("the number of observed variables")
    if count == 1 and len(words.words) % 2 == 0:
        count = words.integer("the number of observed variables")
    found: dict[str, Hashable] = {}
    for _ in range(count):
        name = names[words.integer("an observed variable", 0, len(names))]
        if name in found:
            raise InvalidInput(f"{words.path!r} observes variable {name!r} twice")
        code = words.integer(f"the value of {name!r}", 0, graph.domain.sizes[name])
        found[name] = state(graph.states, name, code)
    words.finish()
    return found


def write_evidence(graph: FactorGraph, evidence: Mapping[str, Hashable], path: FilePath) -> None:
    """Write the code of each observed attribute as an evidence file, which ``read_evidence`` reads
    back. ``evidence`` has states or codes, as in ``FactorGraph.posterior``. Raises InvalidInput for
    an unknown attribute or state, and for a code out of range.
    """
    domain = instance(graph, FactorGraph, "graph").domain
    given = Evidence.of(domain, graph.states, evidence, None)
    pairs = [f"{domain.places[name]} {code}" for name, code in given.codes.items()]
    _write(path, [" ".join([str(len(pairs)), *pairs])])


@typed
def write_marginals(marginals: Iterable[Array], path: FilePath) -> None:
    """Write a MAR result: the probabilities of every variable, in the model's order. Raises
    InvalidInput for entries that are below 0, NaN, infinite or no numbers, and for an array that is
    no vector.
    """
    given = listed(marginals, "marginals", "arrays")
    tables = [_below_infinity(float_array(table, "marginals"), "marginals", 0.0) for table in given]
    if wrong := [table.shape for table in tables if table.ndim != 1 or not table.size]:
        raise InvalidInput(
            f"marginals must have one vector of probabilities for each variable, got an array of "
            f"shape {wrong[0]}"
        )
    texts = [f"{table.size} {_numbers(table)}" for table in tables]
    _write(path, ["MAR", " ".join([str(len(tables)), *texts])])


def read_marginals(path: FilePath) -> list[Array]:
    """Return the probabilities of a MAR result, one array for each variable. Raises InvalidInput
    for any other file; the sums of the arrays are not checked.
    """
    words = _Words(path)
    words.heading("MAR")
    found = []
    for v in range(words.integer("the number of variables")):
        size = words.integer(f"the size of variable {v}", 1)
        found.append(words.numbers(size, f"the marginal of variable {v}", 0.0))
    words.finish()
    return found


@typed
def write_map(codes: Iterable[int], path: FilePath) -> None:
    """Write a MAP result: a code for every variable, in the model's order. Raises InvalidInput for
    codes that are not whole numbers of at least 0.
    """
    held = float_array(in_order(codes, "codes", "codes"), "codes").tolist()
    for code in held:
        if not number(code) >= 0 or code % 1:
            raise InvalidInput(
                f"codes must be whole numbers of at least 0, got {shown(code)}; give one for each "
                "variable"
            )
    texts = [str(int(code)) for code in held]
    _write(path, ["MAP", " ".join([str(len(texts)), *texts])])


def read_map(path: FilePath) -> list[int]:
    """Return the codes of a MAP (or MPE) result, which are not compared with any model. Raises
    InvalidInput for any other file.
    """
    words = _Words(path)
    words.heading("MAP", "MPE")
    count = words.integer("the number of variables")
    found = [words.integer(f"the value of variable {v}") for v in range(count)]
    words.finish()
    return found


@typed
def write_probability(log_partition: float, path: FilePath) -> None:
    """Write a PR result: the logarithm to base 10 of the partition function, or of P(evidence).
    ``log_partition`` is its natural logarithm. Raises InvalidInput for NaN and plus infinity.
    """
    found = _below_infinity(float_array(log_partition, "log_partition"), "log_partition")
    _write(path, ["PR", repr(float(found) / math.log(10))])


def read_probability(path: FilePath) -> float:
    """Return the natural logarithm of the number of which a PR result holds the logarithm to base
    10: the partition function or P(evidence). Raises InvalidInput for any other file.
    """
    words = _Words(path)
    words.heading("PR")
    found = float(words.numbers(1, "the logarithm")[0]) * math.log(10)
    words.finish()
    return found


def _below_infinity(values: Array, name: str, least: float = -math.inf) -> Array:
    """Return the values. Raises InvalidInput for NaN, plus infinity, and values below `least`."""
    if (wrong := values[~((least <= values) & (values < np.inf))]).size:
        said = f" and at least {least:g}" if least > -math.inf else ""
        raise InvalidInput(
            f"{name} must be numbers below infinity{said}, got {wrong[0]}; correct them"
        )
    return values


def _numbers(table: Array) -> str:
    return " ".join(map(repr, np.asarray(table, dtype=np.float64).ravel().tolist()))


def _write(path: FilePath, lines: Sequence[str]) -> None:
    with atomic_writer(path) as file:
        file.write(("\n".join(lines) + "\n").encode("ascii"))
