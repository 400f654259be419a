"""A fixed set of public calls: which of them the program itself contradicts, and what others give.

    python tests/engine_calls.py

``tests/engine_mutants.py`` runs it on a copy of the packages with one planted mistake: what is
contradicted was noticed without a test, by a second computation alone.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from pgmkit import (
    Dataset,
    Domain,
    Factor,
    FactoredQuery,
    FactorGraph,
    GraphicalModel,
    Interval,
    Measurement,
    error_bars,
    estimate,
    estimate_many,
)
from pgmkit.inference.self_check import Contradiction
from pgmkit.queries import prefix

Array = NDArray[np.float64]
Call = tuple[str, Callable[[], object]]

SIZES = {"a": 2, "b": 3, "c": 4, "d": 2, "e": 3, "f": 2, "g": 5, "h": 3}
CLIQUES = [("a", "b", "c"), ("c", "d"), ("e", "d"), ("a", "e"), ("f", "c"), ("g", "f"), ("h", "b")]


def cyclic(seed: int = 0) -> GraphicalModel:
    rng, domain = np.random.default_rng(seed), Domain(SIZES)
    factors = [Factor(domain.project(c), rng.normal(size=domain.shape(c))) for c in CLIQUES]
    return GraphicalModel(domain, tuple(factors), total=1000.0)


def grid(side: int = 5, size: int = 2) -> GraphicalModel:
    """Equal sizes, and steps of one shape."""
    names = {(i, j): f"x{i}{j}" for i in range(side) for j in range(side)}
    domain, rng = Domain(dict.fromkeys(names.values(), size)), np.random.default_rng(1)
    pairs = [(names[i, j], names[i, j + 1]) for i in range(side) for j in range(side - 1)]
    pairs += [(names[i + 1, j], names[i, j]) for i in range(side - 1) for j in range(side)]
    factors = [Factor(domain.project(c), rng.normal(size=(size, size))) for c in pairs]
    return GraphicalModel(domain, tuple(factors), total=1.0)


def chain(length: int = 40) -> GraphicalModel:
    rng = np.random.default_rng(2)
    domain = Domain({f"x{i}": 3 + i % 2 for i in range(length)})
    pairs = [(f"x{i}", f"x{i + 1}") for i in range(length - 1)]
    factors = [Factor(domain.project(c), 3 * rng.normal(size=domain.shape(c))) for c in pairs]
    return GraphicalModel(domain, tuple(factors), total=10.0)


def models() -> Iterator[Call]:
    triples = [("g", "a", "e"), ("h", "g", "d"), ("e", "h", "f"), ("b", "g", "d")]
    pairs = [(x, y) for x in SIZES for y in SIZES if x < y]
    weighted = FactoredQuery({"g": prefix(5), "a": [[1.0, -1.0]], "e": [[0.0, 1.0, 2.0]]})
    sparse = FactoredQuery({"c": scipy.sparse.csr_array(np.eye(4)[[0, 2]]), "h": np.eye(3)})
    yield "log partition", lambda: cyclic().log_partition
    yield "inside", lambda: cyclic().marginals([("c", "a"), ("d",), ("b", "a")])
    yield "across", lambda: cyclic().marginals(triples)
    yield "pairs", lambda: cyclic().marginals(pairs)
    yield "distant pairs", lambda: chain().marginals([("x35", "x0"), ("x3", "x20")])
    yield "grid", lambda: grid().marginals([("x00", "x44"), ("x01", "x00")])
    yield "one after another", lambda: list(cyclic().each_marginal(triples))
    yield "answer", lambda: cyclic().answer(weighted)
    yield "sparse answer", lambda: cyclic().answer([sparse, weighted])
    yield "given one", lambda: cyclic().given({"c": 1, "h": 2}).marginal(("b", "g"))
    yield "given several", lambda: cyclic().given({"g": [0, 2, 4], "c": [1, 2, 3]}).total
    yield "map", lambda: (cyclic().map(), grid().map(), chain().map())
    yield "rounded draws", lambda: cyclic().sample(20_000, rng=0)
    yield "independent draws", lambda: cyclic().sample(20_000, rng=0, method="sample")
    yield "draws in parts", lambda: list(cyclic().sample_in_parts(20_000, 9_000, rng=0).parts(0, 3))


def tables_of(seed: int) -> FactorGraph:
    rng, domain = np.random.default_rng(seed), Domain(SIZES)
    tables = [(c, rng.exponential(size=domain.shape(c))) for c in CLIQUES]
    return FactorGraph(domain, tables)


def network(count: int = 14) -> FactorGraph:
    rng, tables = np.random.default_rng(4), {}
    sizes = {f"v{i}": 2 + i % 3 for i in range(count)}
    for i, (name, size) in enumerate(sizes.items()):
        parents = [f"v{p}" for p in sorted({max(0, i - 1), i // 2, i // 3} - {i})]
        shape = (size, *(sizes[p] for p in parents))
        table = rng.exponential(size=shape)
        tables[name] = ((name, *parents), table / table.sum(0))
    return FactorGraph.from_conditionals(tables)


def asked(graph: FactorGraph, seed: int) -> object:
    """One set of evidence after another: by elimination, then on a calibrated tree."""
    rng = np.random.default_rng(seed)
    names = graph.domain.attributes
    found: list[object] = []
    for turn in range(8):
        some = rng.choice(len(names), 2 + turn % 2, replace=False)
        evidence = {names[i]: int(rng.integers(graph.domain.sizes[names[i]])) for i in some}
        soft = {n: rng.random(s) for n, s in graph.domain.sizes.items() if n not in evidence}
        posterior = graph.posterior(evidence, dict(list(soft.items())[: turn % 3]))
        found += [posterior.log_partition, posterior.marginals()]
        found.append(posterior.marginals([(names[0], names[-1]), (names[2], names[1])]))
    return found


def side_by_side(graph: FactorGraph, count: int) -> object:
    rng = np.random.default_rng(count)
    names = graph.domain.attributes[1::3]
    columns = {n: rng.integers(graph.domain.sizes[n], size=count) for n in names}
    batch = graph.posteriors(columns)
    last = graph.domain.attributes[-1]
    return batch.marginals([(last,), (names[0], last)]), batch.log_partition


def graphs() -> Iterator[Call]:
    for kind, make in {"graph": lambda: tables_of(3), "network": network}.items():
        yield f"{kind}: posteriors one by one", lambda make=make: asked(make(), 0)
        yield f"{kind}: 40 side by side", lambda make=make: side_by_side(make(), 40)
        yield f"{kind}: 150 side by side", lambda make=make: side_by_side(make(), 150)
        yield f"{kind}: map", lambda make=make: make().posterior().map()
        yield f"{kind}: max marginals", lambda make=make: make().posterior().max_marginals()
        yield f"{kind}: entropy", lambda make=make: make().posterior().entropy()
        yield f"{kind}: draws", lambda make=make: make().posterior().sample(9000, rng=0)


def measured(seed: int) -> list[Measurement]:
    rng, truth = np.random.default_rng(seed), cyclic(7).marginals(CLIQUES)
    found = [
        Measurement(c, t + 4 * (1 + i) * rng.normal(size=t.shape), 4.0 * (1 + i))
        for i, (c, t) in enumerate(truth.items())
    ]
    table = cyclic(7).marginal(("h", "c"))
    product = prefix(3) @ table @ np.ones((4, 1))
    return [*found, Measurement(("h", "c"), product, 3.0, matrix=[prefix(3), np.ones((1, 4))])]


def estimates() -> Iterator[Call]:
    domain = Domain(SIZES)
    for loss in ("squared", "huber", "absolute"):
        yield f"estimate {loss}", lambda loss=loss: estimate(domain, measured(1), loss=loss)
    yield "mirror descent", lambda: estimate(domain, measured(2), method="mirror_descent")
    small = Domain({"a": 2, "b": 3, "c": 2})
    rng = np.random.default_rng(5)

    def sets(count: int) -> list[list[Measurement]]:
        return [
            [
                Measurement(("a", "b"), 100 + 40 * rng.normal(size=6), 2.0),
                Measurement(("c", "b"), 100 + 40 * rng.normal(size=6), 5.0),
            ]
            for _ in range(count)
        ]

    yield "many estimates", lambda: estimate_many(small, sets(70), total=600.0)
    query = FactoredQuery({"c": [1.0, -1.0], "a": [0.0, 1.0]})

    def bars() -> object:
        y = sets(1)[0]
        return error_bars(estimate(small, y, total=600.0), y, seed=0).answer(query)

    yield "error bars", bars


def numbers(found: object) -> Array:
    """All numbers of an answer, one after the other."""
    if isinstance(found, GraphicalModel):
        return numbers([found.total, found.loss, found.marginals(found.cliques)])
    if isinstance(found, Dataset):
        return numbers(found.marginals(list(pairwise(found.domain))))
    if isinstance(found, Mapping):
        return numbers(list(found.values()))
    if isinstance(found, list | tuple):
        return np.concatenate([np.zeros(0), *map(numbers, found)])
    if isinstance(found, Interval):
        return numbers([found.estimate, found.stddev])
    if isinstance(found, str):
        return np.zeros(0)
    return np.asarray(found, dtype=np.float64).reshape(-1)


@dataclass
class Outcome:
    """Calls that were contradicted; those that ended in another error, with its name; and numbers
    that stand for the answers of the rest.
    """

    contradicted: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    answers: dict[str, list[float]] = field(default_factory=dict)

    def wrong(self, sound: Outcome) -> list[str]:
        """The calls whose answers differ from the sound ones, and that said nothing."""
        return [
            name
            for name, found in self.answers.items()
            if not np.allclose(found, sound.answers[name], rtol=1e-3, atol=1e-6)
        ]


def outcome() -> Outcome:
    """All calls, one after the other."""
    made = Outcome()
    warnings.simplefilter("ignore")
    for name, call in (*models(), *graphs(), *estimates()):
        try:
            found = numbers(call())
        except Contradiction:
            made.contradicted.append(name)
        except Exception as error:  # noticed by whoever calls, not by the second computation
            made.errors[name] = type(error).__name__
        else:
            places = np.arange(len(found))
            made.answers[name] = [float(found @ np.cos(k * places)) for k in (0, 1, 2)]
    return made


if __name__ == "__main__":
    print(json.dumps(asdict(outcome())))
