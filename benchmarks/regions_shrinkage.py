"""Region models of random problems: the best fit beside shrunk tables, by distance from the truth.

`python -m benchmarks.regions_shrinkage`: problems of `region_problems` of other seeds, then random
ones (Bayesian networks, and attributes that copy a common skewed one).

Prints a line a problem. How long it takes has not been
recorded.
"""

from __future__ import annotations

import itertools
import time

import numpy as np

import pgmkit
from benchmarks.common import command_line, table
from benchmarks.region_problems import SIGMA, Problem, draw

_LARGEST = 5000
"""Cells of a table."""
_DRAWN = ("pairs", "grid", "triples", "adult")


def main() -> None:
    """Run what is asked for and print a row for each problem."""
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=(3, 4), help="of known problems")
    parser.add_argument("--random", type=int, nargs=2, default=(100, 140), help="seeds: from, to")
    asked = parser.parse_args()
    rows = [
        _row(f"{name}/{seed}", draw(name, seed), None) for name in _DRAWN for seed in asked.seeds
    ]
    others = []
    for seed in range(*asked.random):
        problem, noise = random_problem(seed)
        kind = f"{len(problem.domain)} attributes, {len(problem.cliques)} tables"
        others.append(_row(f"{seed}: {kind}, {problem.total:,} records", problem, noise))
    header = ("problem", "CPU s", "best fit TV", "shrunk TV", "ratio", "weight")
    print(table(header, rows + others))
    ratios = np.array([row[4] for row in others])
    print(
        f"random: geometric mean {np.exp(np.log(ratios).mean()):.3f}, from {ratios.min():.3f} to "
        f"{ratios.max():.4f}; unchanged {int((ratios == 1).sum())} of {len(ratios)}"
    )


def _row(name: str, problem: Problem, noise: list[float] | None) -> list[object]:
    measured = [
        pgmkit.Measurement(clique, y, sigma)
        for clique, y, sigma in zip(
            problem.cliques, problem.values, noise or [SIGMA] * len(problem.cliques), strict=True
        )
    ]
    domain, apart = pgmkit.Domain(problem.domain), []
    for shrink in (False, True):
        cpu = time.process_time()
        model = pgmkit.estimate(
            domain, measured, total=float(problem.total), inference="region", shrink=shrink
        )
        cpu = time.process_time() - cpu
        apart.append(float(np.mean([problem.variation(c, t) for c, t in model.tables.items()])))
    return [name, cpu, *apart, apart[1] / apart[0], model.weight]


def random_problem(seed: int) -> tuple[Problem, list[float]]:
    """A problem and the noise of its tables: one- to three-way, alike in noise or not."""
    rng = np.random.default_rng([9, seed])
    records, attributes = int(10 ** rng.uniform(2, 5)), int(rng.integers(3, 15))
    columns = (_network, _copies)[seed % 2](rng, attributes, records)
    domain = {name: int(codes.max()) + 1 for name, codes in columns.items()}
    ways = min(int(rng.integers(1, 4)), attributes)
    possible = [
        clique
        for clique in itertools.combinations(columns, ways)
        if np.prod([domain[name] for name in clique]) <= _LARGEST
    ]
    kept = rng.choice(len(possible), min(len(possible), int(rng.integers(3, 60))), replace=False)
    cliques = tuple(tuple(sorted(possible[i], key=list(domain).index)) for i in sorted(kept))
    alike = rng.random() < 0.5
    noise = 10 ** (
        np.full(len(cliques), rng.uniform(0, 2)) if alike else rng.uniform(0, 2, len(cliques))
    )
    exact = Problem(domain, columns, cliques, (), ())
    values = tuple(
        exact.counts(clique) + rng.normal(0, sigma, exact.counts(clique).shape)
        for clique, sigma in zip(cliques, noise, strict=True)
    )
    return Problem(domain, columns, cliques, values, ()), noise.tolist()


def _network(rng: np.random.Generator, attributes: int, records: int) -> dict[str, np.ndarray]:
    """A Bayesian network of up to two parents each."""
    sizes, evenness = rng.integers(2, 16, attributes), 10 ** rng.uniform(-1, 0.7)
    columns: dict[str, np.ndarray] = {}
    for i, size in enumerate(sizes):
        key = np.zeros(records, dtype=np.int64)
        for parent in rng.choice(i, min(i, int(rng.integers(0, 3))), replace=False) if i else ():
            key = key * sizes[parent] + columns[f"x{parent}"]
        kinds, place = np.unique(key, return_inverse=True)
        chances = rng.dirichlet(np.full(size, evenness), len(kinds)).cumsum(axis=1)
        below = rng.random(records)[:, None] > chances[place]
        columns[f"x{i}"] = np.minimum(below.sum(axis=1), size - 1)
    return columns


def _copies(rng: np.random.Generator, attributes: int, records: int) -> dict[str, np.ndarray]:
    """Each attribute is a recoding of a common one for some records, and its own for the rest."""
    common, columns = rng.integers(0, 1000, records), {}
    for i, size in enumerate(rng.integers(2, 30, attributes)):
        law = 1 / np.arange(1, size + 1) ** rng.uniform(0.5, 2)
        recoded = rng.choice(size, 1000, p=law / law.sum())
        own = rng.choice(size, records, p=law / law.sum())
        columns[f"x{i}"] = np.where(
            rng.random(records) < rng.uniform(0.1, 0.9), recoded[common], own
        )
    return columns


if __name__ == "__main__":
    main()
