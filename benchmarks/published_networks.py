"""Bayesian networks to measure on: the 24 that pgmpy ships, and some of hard shapes drawn here."""

from __future__ import annotations

import gzip
import os
import pickle
import tempfile
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Tables = dict[str, tuple[tuple[str, ...], NDArray[np.float64]]]
"""Of each variable: itself and its parents, and the conditional table with its axes so."""

PUBLISHED = (
    *("cancer", "earthquake", "survey", "asia", "sachs", "child", "alarm", "insurance"),
    *("win95pts", "hailfinder", "hepar2", "andes", "pigs", "water", "mildew", "barley"),
    *("pathfinder", "diabetes", "munin1", "munin2", "munin3", "munin4", "munin", "link"),
)
DRAWN = ("grid10", "grid15", "pedigree60", "chain1000")
NAMES = (*PUBLISHED, *DRAWN)
_CACHE = Path(os.environ.get("PGMKIT_NETWORKS", Path(tempfile.gettempdir()) / "pgmkit-networks"))


def network(name: str) -> Tables:
    """The tables of a network, parents before children, normalised to rounding error."""
    if name in DRAWN:
        return _drawn(name)
    stored = _CACHE / f"{name}.pickle"  # pgmpy takes up to half a minute to read one
    if not stored.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        stored.write_bytes(pickle.dumps(_published(name)))
    return pickle.loads(stored.read_bytes())


def _published(name: str) -> Tables:
    import networkx as nx
    from pgmpy.readwrite import BIFReader

    packed = files("pgmpy.utils") / "example_models" / f"{name}.bif.gz"
    model = BIFReader(string=gzip.decompress(packed.read_bytes()).decode()).get_model()
    found: Tables = {}
    for node in nx.topological_sort(model):
        table = model.get_cpds(node)
        values = np.asarray(table.values, dtype=np.float64)
        found[node] = (tuple(table.variables), values / values.sum(0))
    return found


def _drawn(name: str) -> Tables:
    rng = np.random.default_rng(1)
    if name.startswith("grid"):
        return _grid(int(name[4:]), rng)
    if name.startswith("pedigree"):
        return _pedigree(int(name[8:]), rng)
    return _chain(int(name[5:]), rng)


def _conditional(rng: np.random.Generator, size: int, shape: list[int]) -> NDArray[np.float64]:
    return np.moveaxis(rng.dirichlet(np.ones(size), size=shape), -1, 0)


def _grid(side: int, rng: np.random.Generator) -> Tables:
    """A square grid of binary variables, each with the ones above and to the left as parents."""
    found: Tables = {}
    for i in range(side):
        for j in range(side):
            parents = [f"x{a}_{b}" for a, b in ((i - 1, j), (i, j - 1)) if min(a, b) >= 0]
            table = _conditional(rng, 2, [2] * len(parents))
            found[f"x{i}_{j}"] = ((f"x{i}_{j}", *parents), table)
    return found


def _chain(length: int, rng: np.random.Generator) -> Tables:
    """A hidden Markov chain of eight states, each with an observable of four."""
    found: Tables = {}
    for i in range(length):
        parents = [f"h{i - 1}"] if i else []
        found[f"h{i}"] = ((f"h{i}", *parents), _conditional(rng, 8, [8] * len(parents)))
        found[f"y{i}"] = ((f"y{i}", f"h{i}"), _conditional(rng, 4, [8]))
    return found


def _pedigree(people: int, rng: np.random.Generator) -> Tables:
    """Genotypes (three alleles) of people with two random earlier parents, and phenotypes.

    Each of a person's two alleles is a copy of one of a parent's two, by a hidden selector.
    """
    copy = np.zeros((3, 2, 3, 3))
    for first in range(3):
        for second in range(3):
            copy[first, 0, first, second] = copy[second, 1, first, second] = 1.0
    found: Tables = {}
    for i in range(people):
        earlier = range(max(0, i - 20), i)
        parents = rng.choice(earlier, 2, replace=False) if i >= people // 4 else [None, None]
        for side, parent in zip("pm", parents, strict=True):
            allele = f"{side}{i}"
            if parent is None:
                found[allele] = ((allele,), _conditional(rng, 3, []))
                continue
            found[f"s{side}{i}"] = ((f"s{side}{i}",), np.array([0.5, 0.5]))
            found[allele] = ((allele, f"s{side}{i}", f"p{parent}", f"m{parent}"), copy)
        table = _conditional(rng, 2, [3, 3])
        found[f"t{i}"] = ((f"t{i}", f"p{i}", f"m{i}"), table)
    return found
