"""The seven estimation problems, and further noise draws of each.

``grid`` and ``boolean`` are drawn by ``benchmarks.drawn``. Any other is a pair ``NAME.json``
(domain, cliques, sigma) and ``NAME.npz`` (``x{i}`` the true marginal of clique i, ``y{i}`` the
noisy one, flattened in C order) in the folder that ``PGMKIT_PROBLEMS`` names, or else in
``$PGMKIT_DATA/../reference/problems``. Needs numpy only: the peer's interpreter reads it too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import drawn

STORED = ("star", "tree", "triangle", "wide", "dense")
NAMES = (*STORED, *drawn.NAMES)
SEEDS = (0, 1, 2)  # 0 is the noise that is stored, the others are drawn here


@dataclass(frozen=True)
class Problem:
    """Noisy marginals of one data set; counts throughout."""

    name: str
    seed: int
    domain: dict[str, int]
    cliques: tuple[tuple[str, ...], ...]
    values: tuple[np.ndarray, ...]
    sigma: float
    total: float
    unmeasured: tuple[tuple[str, ...], ...] = ()
    """Cliques that nobody measured, to judge a model by; of the drawn problems only."""
    unmeasured_counts: tuple[np.ndarray, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.name}/{self.seed}"

    def loss(self, marginals: list[np.ndarray]) -> float:
        """sum ||mu_c - y_c||^2 / (2 sigma^2), ``marginals`` in the order of ``cliques``."""
        squares = (
            np.sum((np.asarray(mu, dtype=np.float64).ravel() - y) ** 2)
            for mu, y in zip(marginals, self.values, strict=True)
        )
        return float(sum(squares) / (2 * self.sigma**2))

    def variation(self, marginals: list[np.ndarray]) -> float | None:
        """Mean total variation between the true tables of ``unmeasured`` and these, in order."""
        distances = [
            0.5 * np.abs(np.ravel(found) / np.sum(found) - true / true.sum()).sum()
            for found, true in zip(marginals, self.unmeasured_counts, strict=True)
        ]
        return float(np.mean(distances)) if distances else None


def folder() -> Path:
    """Where the problems lie.

    Raises:
        SystemExit: neither environment variable is set, or the folder does not exist.
    """
    if "PGMKIT_PROBLEMS" in os.environ:
        place = Path(os.environ["PGMKIT_PROBLEMS"])
    elif "PGMKIT_DATA" in os.environ:
        place = Path(os.environ["PGMKIT_DATA"]).parent / "reference" / "problems"
    else:
        raise SystemExit("set PGMKIT_PROBLEMS to the folder of the estimation problems")
    if not place.is_dir():
        raise SystemExit(f"no folder of estimation problems at {place}; set PGMKIT_PROBLEMS")
    return place


def load(name: str, seed: int = 0) -> Problem:
    """Read or draw a problem.

    Any seed but 0 replaces the stored noise by a fresh draw of N(0, sigma^2).
    """
    if name in drawn.NAMES:
        return _drawn(name, seed)
    place = folder()
    record = json.loads((place / f"{name}.json").read_text())
    cliques = tuple(tuple(clique) for clique in record["cliques"])
    sigma = float(record["sigma"])
    with np.load(place / f"{name}.npz") as arrays:
        if seed == 0:
            values = tuple(arrays[f"y{i}"] for i in range(len(cliques)))
        else:
            truth = [arrays[f"x{i}"] for i in range(len(cliques))]
            values = _noisy(truth, sigma, seed)
    return Problem(name, seed, record["domain"], cliques, values, sigma, _total(values))


def _drawn(name: str, seed: int) -> Problem:
    made, sigma = drawn.draw(name), drawn.SIGMA
    values = _noisy(made.counts, sigma, seed)
    return Problem(
        name, seed, made.domain, made.cliques, values, sigma, _total(values),
        made.unmeasured, made.unmeasured_counts,
    )  # fmt: skip


def _noisy(truth: Sequence[np.ndarray], sigma: float, seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return tuple(x + rng.normal(0, sigma, x.size) for x in truth)


def _total(values: tuple[np.ndarray, ...]) -> float:
    """Inverse-variance mean of the sums; on seed 0 this is the stored ``known_total``."""
    weights = np.array([1 / y.size for y in values])
    return float(weights @ np.array([y.sum() for y in values]) / weights.sum())
