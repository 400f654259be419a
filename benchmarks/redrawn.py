"""Structures drawn at random whose measurements are redrawn: the real spread of their answers.

A case is a true model over random cliques of four to seven attributes, with Gaussian or Laplace
noise, whole tables or matrices, a given total or one that is estimated. Its data sets are estimated
one by one or side by side, and asked for what no measurement determines: pairs that no clique
holds, or tables of which only some sums were measured.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from pgmkit import (
    Domain,
    Factor,
    GraphicalModel,
    Measurement,
    NotCertified,
    RegionModel,
    error_bars,
    estimate,
    estimate_many,
)

Clique = tuple[str, ...]
Model = GraphicalModel | RegionModel
FAMILIES = ("cycle", "chain", "pairs", "triples", "random", "grid", "matrices", "region")
MOST_ASKED = 8
REPLICATES = 50


@dataclass(frozen=True)
class Case:
    """What is measured without noise, and how it is redrawn and asked."""

    family: str
    truth: GraphicalModel
    exact: tuple[Measurement, ...]
    asked: tuple[Clique, ...]
    laplace: bool
    batched: bool
    total: float | None

    @property
    def least(self) -> float:
        """The smallest value that is measured, without its noise."""
        return float(min(m.values.min() for m in self.exact))

    def draws(self, count: int, seed: int) -> list[list[Measurement]]:
        rng = np.random.default_rng(seed)
        return [[self._noisy(m, rng) for m in self.exact] for _ in range(count)]

    def _noisy(self, m: Measurement, rng: np.random.Generator) -> Measurement:
        noise = rng.laplace if self.laplace else rng.normal
        scale = m.stddev / np.sqrt(2) if self.laplace else m.stddev
        values = m.values + noise(0.0, scale, m.values.shape)
        return Measurement(m.clique, values, m.stddev, m.matrix)

    def models(self, sets: list[list[Measurement]]) -> list[Model]:
        domain = self.truth.domain
        if self.family == "region":
            return [estimate(domain, y, total=self.total, inference="region") for y in sets]
        if self.batched:
            return [*estimate_many(domain, sets, total=self.total)]
        return [estimate(domain, y, total=self.total) for y in sets]

    def noiseless(self) -> np.ndarray:
        """The answers of what measurements without noise give, which the intervals are to hold."""
        if self.family in ("matrices", "region"):  # sums leave some tables undetermined
            return self.answers(self.models([list(self.exact)])[0])
        return self.answers(self.truth)

    def answers(self, model: Model) -> np.ndarray:
        return np.concatenate([table.ravel() for table in model.marginals(self.asked).values()])


def case(seed: int) -> Case:
    """The case of this seed, drawn again where it would leave nothing to ask."""
    rng = np.random.default_rng([seed, 1])
    family = FAMILIES[seed % len(FAMILIES)]
    while True:
        domain, cliques = _structure(family, rng)
        asked = _asked(domain, cliques, family)
        if asked:
            break
    width = float(rng.choice([0.5, 1.0, 2.0]))
    factors = [Factor(domain.project(c), rng.normal(0, width, domain.shape(c))) for c in cliques]
    truth = GraphicalModel(domain, tuple(factors), total=float(rng.choice([2_000, 20_000])))
    stddev, sums = float(rng.choice([3.0, 20.0])), family in ("matrices", "region")
    exact = []
    for clique, table in truth.marginals(cliques).items():
        matrix = _sums(table.size, rng) if sums else None
        values = table.ravel() if matrix is None else matrix @ table.ravel()
        exact.append(Measurement(clique, values, stddev, matrix))
    if family == "matrices":  # some tables are known as a whole
        exact += [Measurement(c, t, stddev) for c, t in truth.marginals(cliques[::2]).items()]
    return Case(
        family,
        truth,
        tuple(exact),
        asked,
        laplace=bool(rng.random() < 0.3),
        batched=bool(rng.random() < 0.5),
        total=truth.total if sums or rng.random() < 0.5 else None,
    )


def _structure(family: str, rng: np.random.Generator) -> tuple[Domain, list[Clique]]:
    count = 9 if family == "grid" else int(rng.integers(4, 8))
    names = [*"abcdefghi"[:count]]
    most = 2 if family == "grid" else 4
    domain = Domain({name: int(rng.integers(2, most + 1)) for name in names})
    pairs, triples = ([*itertools.combinations(range(count), k)] for k in (2, 3))
    if family in ("cycle", "matrices", "region"):
        chosen = [(i, (i + 1) % count) for i in range(count)]
    elif family == "chain":
        chosen = [(i, i + 1) for i in range(count - 1)]
    elif family == "grid":
        chosen = [(i, i + 1) for i in range(9) if i % 3 < 2] + [(i, i + 3) for i in range(6)]
    elif family == "random":
        size = int(rng.integers(3, 9))
        chosen = [tuple(rng.permutation(count)[: rng.integers(1, 4)]) for _ in range(size)]
    else:
        held = pairs if family == "pairs" else triples
        size = min(len(held) - 1, 2 * count - 3 if family == "pairs" else 3)
        chosen = [held[i] for i in rng.choice(len(held), size, replace=False)]
    return domain, [*dict.fromkeys(tuple(names[i] for i in sorted(c)) for c in chosen)]


def _asked(domain: Domain, cliques: list[Clique], family: str) -> tuple[Clique, ...]:
    if family == "region":
        return tuple(cliques)
    pairs = itertools.combinations(domain, 2)
    outside = [p for p in pairs if not any(set(p) <= set(clique) for clique in cliques)]
    return tuple(outside[:MOST_ASKED])


def _sums(cells: int, rng: np.random.Generator) -> np.ndarray:
    """Random sums of cells, fewer of them than there are cells."""
    return (rng.random((max(2, cells - 2), cells)) < 0.5).astype(float)


def spread(seed: int, draws: int, reports: int = 6) -> dict[str, Any]:
    """The stated over the real standard error, both pooled over all answers, and its own error.

    A stated error is the root mean square of what the noise does to an answer, the shift that the
    bounds at zero cause included. The real one is therefore taken around the noiseless answers;
    ``deviation`` compares with the spread around the mean of the answers, without that shift.
    """
    drawn = case(seed)
    sets = drawn.draws(draws, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotCertified)
        models = drawn.models(sets)
        answers = np.stack([drawn.answers(model) for model in models])
        said = [np.square(_bars(drawn, models[k], sets[k], k)[1]).mean() for k in range(reports)]
    # One mean a data set, so that the standard error allows for answers that move together.
    real = ((answers - drawn.noiseless()) ** 2).mean(axis=1)
    apart = ((answers - answers.mean(axis=0)) ** 2).mean(axis=1) * draws / (draws - 1)
    ratio = float(np.sqrt(np.mean(said) / real.mean()))
    relative = [np.std(v, ddof=1) / np.mean(v) / np.sqrt(len(v)) for v in (said, real)]
    return {
        "ratio": ratio,
        "error": float(ratio * np.hypot(*relative) / 2),
        "deviation": float(np.sqrt(np.mean(said) / apart.mean())),
        "sets": draws,
        "family": drawn.family,
        "laplace": drawn.laplace,
        "batched": drawn.batched,
        "total": drawn.total is not None,
        "stddev": drawn.exact[0].stddev,
        "least": drawn.least,
    }


def intervals(seed: int, draws: int) -> dict[str, Any]:
    """The share of answers of what noiseless measurements give that 95% intervals hold."""
    drawn = case(seed)
    sets = drawn.draws(draws, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotCertified)
        models = drawn.models(sets)
        truth = drawn.noiseless()
        inside = []
        for k, (model, measured) in enumerate(zip(models, sets, strict=True)):
            ends, _ = _bars(drawn, model, measured, k)
            inside.append(float(((ends[0] <= truth) & (truth <= ends[1])).mean()))
    return {
        "covered": float(np.mean(inside)),
        "error": float(np.std(inside, ddof=1) / np.sqrt(draws)),
        "sets": draws,
        "family": drawn.family,
        "laplace": drawn.laplace,
        "stddev": drawn.exact[0].stddev,
        "least": drawn.least,
    }


def _bars(
    drawn: Case, model: Model, measured: list[Measurement], seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of the intervals, and the standard deviations, of all answers."""
    bars = error_bars(model, measured, replicates=REPLICATES, seed=seed)
    found = [bars.marginal(clique) for clique in drawn.asked]
    ends = [np.concatenate([getattr(i, end).ravel() for i in found]) for end in ("low", "high")]
    return np.stack(ends), np.concatenate([i.stddev.ravel() for i in found])
