"""The whole joint table written out, in extended precision: what inference is compared with."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from pgmkit.domain import Clique, Domain
from pgmkit.factor import Factor
from pgmkit.model import GraphicalModel

Table = NDArray[np.floating]

# Every shape of clique set that inference has to deal with, over the attributes a, b, c, d, e.
CLIQUE_SETS: dict[str, list[Clique]] = {
    "single attribute": [("c",)],
    "single pair": [("d", "b")],
    "everything": [("b", "a", "c", "e", "d")],
    "disconnected attributes": [("a",), ("b",), ("c",)],
    "disconnected pairs": [("b", "a"), ("c", "d")],
    "chain": [("a", "b"), ("c", "b"), ("c", "d"), ("d", "e")],
    "star": [("c", "a"), ("c", "b"), ("d", "c"), ("e", "c")],
    "nested": [("a", "b", "c"), ("b", "c"), ("c",), ("c", "a"), ("d", "c")],
    "repeated": [("a", "b"), ("b", "a"), ("a", "b")],
    "triangle": [("a", "b"), ("b", "c"), ("c", "a")],
    "cycle of five": [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "a")],
    "all pairs": [(x, y) for i, x in enumerate("abcde") for y in "abcde"[:i]],
    "cycle of triples": [("a", "b", "c"), ("c", "d", "e"), ("e", "a", "d")],
    "cycle beside a chain": [("a", "b"), ("b", "c"), ("c", "a"), ("d", "e")],
}
FIVE = Domain({"a": 2, "b": 3, "c": 4, "d": 1, "e": 3})


@dataclass(frozen=True)
class Problem:
    """A domain, cliques over some of its attributes, and a table of potentials for each clique."""

    domain: Domain
    cliques: list[Clique]
    potentials: list[NDArray[np.float64]]

    def joint(self, total: float = 1.0) -> Table:
        weights = log_weights(self.domain, self.cliques, self.potentials)
        unscaled = np.exp(weights - weights.max())
        return unscaled * (total / unscaled.sum())

    def log_partition(self) -> float:
        weights = log_weights(self.domain, self.cliques, self.potentials)
        return float(weights.max() + np.log(np.exp(weights - weights.max()).sum()))

    def possible(self) -> bool:
        weights = log_weights(self.domain, self.cliques, self.potentials)
        return bool(weights.max() > -np.inf)

    def flat(self) -> torch.Tensor:
        return torch.as_tensor(np.concatenate([table.ravel() for table in self.potentials]))

    def model(self, total: float = 1.0) -> GraphicalModel:
        pairs = zip(self.cliques, self.potentials, strict=True)
        factors = tuple(Factor(self.domain.project(clique), table) for clique, table in pairs)
        return GraphicalModel(self.domain, factors, total)


def log_weights(
    domain: Domain, cliques: Sequence[Clique], potentials: Sequence[NDArray[np.float64]]
) -> Table:
    """The sum of the potentials in every cell of the domain."""
    weights = np.zeros(domain.shape(), dtype=np.longdouble)
    for clique, table in zip(cliques, potentials, strict=True):
        weights = weights + spread(domain, clique, table)
    return weights


def spread(domain: Domain, clique: Clique, table: Table) -> Table:
    """The table with an axis for each attribute of the domain, of length 1 outside the clique."""
    held = [name for name in domain if name in clique]
    ordered = table.transpose([clique.index(name) for name in held])
    return ordered.reshape([domain.sizes[name] if name in clique else 1 for name in domain])


def summed(domain: Domain, joint: Table, clique: Clique) -> Table:
    """The marginal of the joint, axes in the clique's order."""
    left = [name for name in domain if name in clique]
    table = joint.sum(axis=tuple(i for i, name in enumerate(domain) if name not in clique))
    return table.transpose([left.index(name) for name in clique])


def design(domain: Domain, clique: Clique) -> NDArray[np.float64]:
    """The 0/1 matrix from the flattened joint to the flattened marginal of the clique."""
    cells = domain.size()
    rows = [summed(domain, row.reshape(domain.shape()), clique).ravel() for row in np.eye(cells)]
    return np.array(rows).T


def potentials(
    rng: np.random.Generator,
    domain: Domain,
    cliques: Sequence[Clique],
    width: float,
    zeros: float = 0.0,
) -> list[NDArray[np.float64]]:
    """Uniform in (-width, width); a share of the cells minus infinity (structural zeros)."""
    tables = [rng.uniform(-width, width, domain.shape(clique)) for clique in cliques]
    for table in tables:
        table[rng.random(table.shape) < zeros] = -np.inf
    return tables


def random_problem(
    domain: Domain, cliques: Sequence[Clique], seed: int, width: float, zeros: float = 0.0
) -> Problem:
    rng = np.random.default_rng(seed)
    return Problem(domain, list(cliques), potentials(rng, domain, cliques, width, zeros))


@st.composite
def structures(draw: st.DrawFn, most: int = 6) -> tuple[Domain, list[Clique]]:
    """Any cliques: single, nested, repeated, cyclic, disconnected, of any order of attributes."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=most))
    domain = Domain({f"x{i}": size for i, size in enumerate(sizes)})
    names = st.sampled_from(domain.attributes)
    clique = st.lists(names, min_size=1, max_size=3, unique=True).map(tuple)
    return domain, draw(st.lists(clique, min_size=1, max_size=8))


@st.composite
def problems(draw: st.DrawFn, most: int = 6) -> Problem:
    """Potentials from nearly flat to +-700, with and without structural zeros."""
    domain, cliques = draw(structures(most))
    width = draw(st.sampled_from([0.5, 10.0, 100.0, 700.0]))
    zeros = draw(st.sampled_from([0.0, 0.0, 0.2, 0.6]))
    return random_problem(domain, cliques, draw(st.integers(0, 10**6)), width, zeros)
