"""Measured tables that no junction tree holds, counted from records of known distributions."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

NAMES = ("pairs", "grid", "triples", "adult", "prefix")
RECORDS, SIGMA = 50_000, 20.0
ASKED = 60
"""Tables that nobody measured, by which joint models are judged."""

Clique = tuple[str, ...]


@dataclass(frozen=True)
class Problem:
    """Sizes, columns of codes, measured cliques and noisy tables, and cliques to be judged by."""

    domain: dict[str, int]
    columns: dict[str, np.ndarray]
    cliques: tuple[Clique, ...]
    values: tuple[np.ndarray, ...]
    unmeasured: tuple[Clique, ...]
    cumulative: bool = False

    def seen(self, values: np.ndarray) -> np.ndarray:
        """The table behind noisy values: themselves, or the differences of cumulative ones."""
        if not self.cumulative:
            return values
        return np.diff(np.diff(values, axis=0, prepend=0), axis=1, prepend=0)

    @property
    def total(self) -> int:
        return len(next(iter(self.columns.values())))

    def counts(self, clique: Clique) -> np.ndarray:
        """The records' own table."""
        shape = [self.domain[name] for name in clique]
        cells = np.ravel_multi_index([self.columns[name] for name in clique], shape)
        return np.bincount(cells, minlength=int(np.prod(shape))).reshape(shape).astype(float)

    def variation(self, clique: Clique, table: np.ndarray) -> float:
        """Total variation distance of a table, in counts, from that of the records."""
        apart = np.abs(table.reshape(-1) - self.counts(clique).reshape(-1)).sum()
        return float(apart / 2 / self.total)


def draw(name: str, seed: int = 0) -> Problem:
    """One of ``NAMES``: all 190 pairs of 20 attributes, a 15 x 15 grid, 50 triples of 30
    attributes, each of ten values; or all 78 pairs of ADULT. "prefix": the first, of which sums of
    all cells up to each one are measured instead of cells.
    """
    rng = np.random.default_rng([seed, *name.encode()])
    columns, cliques, unmeasured = {
        "pairs": _pairs,
        "grid": _grid,
        "triples": _triples,
        "adult": _adult,
        "prefix": _pairs,
    }[name](rng)
    domain = {key: int(codes.max()) + 1 for key, codes in columns.items()}
    exact = Problem(domain, columns, tuple(cliques), (), tuple(unmeasured))
    cumulative = name == "prefix"
    tables = (exact.counts(clique) for clique in cliques)
    if cumulative:
        tables = (table.cumsum(0).cumsum(1) for table in tables)
    noisy = tuple(table + rng.normal(0, SIGMA, table.shape) for table in tables)
    return Problem(domain, columns, exact.cliques, noisy, exact.unmeasured, cumulative)


_Parts = tuple[dict[str, np.ndarray], list[Clique], list[Clique]]


def _mixture(attributes: int, rng: np.random.Generator, kinds: int = 8) -> dict[str, np.ndarray]:
    """Records of a mixture of products: every attribute depends on every other."""
    kind = rng.integers(kinds, size=RECORDS)
    columns = {}
    for i in range(attributes):
        chances = rng.dirichlet(np.full(10, 0.5), size=kinds).cumsum(1)
        level = rng.random(RECORDS)[:, None]
        columns[f"x{i}"] = np.minimum((level > chances[kind]).sum(1), 9)
    return columns


def _some(cliques: list[Clique], rng: np.random.Generator) -> list[Clique]:
    picked = rng.choice(len(cliques), min(ASKED, len(cliques)), replace=False)
    return [cliques[i] for i in sorted(picked)]


def _pairs(rng: np.random.Generator) -> _Parts:
    columns = _mixture(20, rng)
    names = list(columns)
    return (
        columns,
        list(itertools.combinations(names, 2)),
        _some(list(itertools.combinations(names, 3)), rng),
    )


def _triples(rng: np.random.Generator) -> _Parts:
    columns = _mixture(30, rng)
    names = list(columns)
    measured = _some(list(itertools.combinations(names, 3)), rng)[:50]
    held = {pair for clique in measured for pair in itertools.combinations(clique, 2)}
    others = [pair for pair in itertools.combinations(names, 2) if pair not in held]
    return columns, measured, _some(others, rng)


def _grid(rng: np.random.Generator, side: int = 15, copied: float = 0.4) -> _Parts:
    """Each attribute copies a recoding of its upper or its left neighbour, or neither."""
    columns: dict[str, np.ndarray] = {}
    measured = []
    for i, j in itertools.product(range(side), repeat=2):
        codes = rng.choice(10, size=RECORDS, p=rng.dirichlet(np.ones(10)))
        chosen = rng.random(RECORDS)
        if i:
            above = f"x{side * (i - 1) + j}"
            codes = np.where(chosen < copied, rng.permutation(10)[columns[above]], codes)
            measured.append((above, f"x{side * i + j}"))
        if j:
            left = f"x{side * i + j - 1}"
            codes = np.where(chosen > 1 - copied, rng.permutation(10)[columns[left]], codes)
            measured.append((left, f"x{side * i + j}"))
        columns[f"x{side * i + j}"] = codes
    diagonal = [
        (f"x{side * i + j}", f"x{side * (i + 1) + j + 1}")
        for i, j in itertools.product(range(side - 1), repeat=2)
    ]
    return columns, measured, _some(diagonal, rng)


def _adult(rng: np.random.Generator) -> _Parts:
    path = Path(os.environ["PGMKIT_DATA"], "adult.csv")
    with path.open() as file:
        header = file.readline().strip().split(",")[:13]
    table = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.int64, usecols=range(13))
    columns = {name: table[:, i] for i, name in enumerate(header)}
    names = list(columns)
    return (
        columns,
        list(itertools.combinations(names, 2)),
        _some(list(itertools.combinations(names, 3)), rng),
    )
