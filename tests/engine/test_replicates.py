"""Replicates of error bars against estimates of the same redrawn measurements by another method."""

import itertools

import numpy as np
import pytest

from pgmkit import Domain, Factor, GraphicalModel, Measurement, error_bars, estimate
from pgmkit.least_squares.linear_estimate import LinearEstimate
from pgmkit.queries import prefix

CYCLE = [(i, (i + 1) % 5) for i in range(5)]
PAIRS = [*itertools.combinations(range(4), 2)][:-1]
REPLICATES = 20


def drawn(
    edges: list[tuple[int, int]], stddev: float, matrices: bool, seed: int
) -> tuple[GraphicalModel, list[Measurement]]:
    rng = np.random.default_rng(seed)
    names = "abcde"[: 1 + max(map(max, edges))]
    domain = Domain({name: 2 + i % 2 for i, name in enumerate(names)})
    cliques = [tuple(names[i] for i in sorted(edge)) for edge in edges]
    factors = [Factor(domain.project(c), rng.normal(size=domain.shape(c))) for c in cliques]
    truth = GraphicalModel(domain, tuple(factors), total=2000.0)
    y = []
    for clique, table in truth.marginals(cliques).items():
        matrix = prefix(table.size) if matrices else None
        values = table.ravel() if matrix is None else matrix @ table.ravel()
        y.append(Measurement(clique, values + rng.normal(0, stddev, table.size), stddev, matrix))
    return estimate(domain, y, total=2000.0), y


# Any two of the choices meet in the first four.
CASES = [(CYCLE, False, 3.0), (CYCLE, True, 20.0), (PAIRS, False, 20.0), (PAIRS, True, 3.0)]
OTHERS = [(CYCLE, False, 20.0), (CYCLE, True, 3.0), (PAIRS, False, 3.0), (PAIRS, True, 20.0)]


@pytest.mark.parametrize(
    ("edges", "matrices", "stddev"),
    [*CASES, *(pytest.param(*each, marks=pytest.mark.slow) for each in OTHERS)],
)
def test_replicates_are_at_their_own_optimum(
    edges: list[tuple[int, int]], matrices: bool, stddev: float
) -> None:
    """Near them, and stated to be as spread as they are; no chance: the same redrawn values.

    Replicates that stop at a noise unit from their optimum are 0.6 to 0.87 times as spread.
    """
    model, y = drawn(edges, stddev, matrices, seed=1)
    bars = error_bars(model, y, replicates=REPLICATES, seed=3)
    assert LinearEstimate(model.domain, y, 2000.0).scale == 1.0  # the noise is drawn as stated
    pair = next(
        p for p in itertools.combinations(model.domain, 2)
        if not any(set(p) <= set(m.clique) for m in y)
    )  # fmt: skip
    rng, best = np.random.default_rng(3), []
    tables = model.marginals([m.clique for m in y])
    means = [m.applied(tables[m.clique].ravel()) for m in y]
    for _ in range(REPLICATES):
        again = [
            Measurement(m.clique, mean + rng.normal(0.0, stddev, len(mean)), stddev, m.matrix)
            for m, mean in zip(y, means, strict=True)
        ]
        found = estimate(model.domain, again, total=2000.0, method="newton", tolerance=1e-3)
        best.append(found.marginal(pair))
    own = np.stack([each.marginal(pair) for each in bars.replicates])
    centre, real = model.marginal(pair), np.stack(best)
    spread = np.sqrt(((real - centre) ** 2).mean())
    assert np.sqrt(((own - real) ** 2).mean()) < 0.3 * spread
    stated = np.sqrt(np.square(bars.marginal(pair).stddev).mean())  # around the model's answer
    assert stated == pytest.approx(spread, rel=0.06)


def test_replicates_too_large_for_a_batch_are_at_their_own_optimum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pgmkit.estimation.many.is_writable", lambda _m: False)
    test_replicates_are_at_their_own_optimum(CYCLE, False, 3.0)
