"""The cluster expansion: exact on junction trees of cycles, near the optimum on grids."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from brute_force import structures
from hypothesis import given, settings
from hypothesis import strategies as st

from pgmkit import Domain, Measurement, estimate
from pgmkit.domain import Clique
from pgmkit.estimation import cluster_expansion as expansions
from pgmkit.estimation.cluster_expansion import ClusterExpansion, cluster_expansion
from pgmkit.graphs.clique_index import maximal
from pgmkit.inference.marginal_oracle import MarginalOracle


def grid(rows: int, columns: int) -> list[Clique]:
    """Pairs of neighbours."""

    def name(i: int, j: int) -> str:
        return f"x{i}_{j}"

    right = [(name(i, j), name(i, j + 1)) for i in range(rows) for j in range(columns - 1)]
    down = [(name(i, j), name(i + 1, j)) for i in range(rows - 1) for j in range(columns)]
    return right + down


def expanded(inference: MarginalOracle, marginals: torch.Tensor) -> torch.Tensor:
    """The marginals of the expansion of these."""
    expansion = cluster_expansion(inference)
    assert expansion is not None
    return inference.marginals(expansion.potentials(marginals))[0]


@pytest.mark.parametrize("seed", range(10))
def test_a_junction_tree_of_cycles_is_recovered(seed: int) -> None:
    """Squares in a row share single edges: the counting numbers are those of a junction tree."""
    rng = np.random.default_rng(seed)
    cliques = [*grid(2, int(rng.integers(2, 7))), ("x0_0", "leaf"), ("x0_0", "x1_0", "more")]
    cliques = [cliques[i] for i in maximal(cliques)]
    names = sorted({name for clique in cliques for name in clique})
    domain = Domain({name: int(rng.integers(2, 5)) for name in names})
    inference = MarginalOracle(domain, cliques)
    potentials = torch.as_tensor(rng.normal(0, 1, inference.layout.cells))
    marginals, _ = inference.marginals(potentials)
    again = expanded(inference, marginals)
    assert float((again - marginals).abs().max()) < 1e-5


@pytest.mark.parametrize("seed", range(5))
def test_loops_are_nearly_accounted_for(seed: int) -> None:
    """Closer than a tree's expansion (cliques alone) by a factor of ten, on a 4 x 4 grid."""
    rng = np.random.default_rng(seed)
    cliques = grid(4, 4)
    domain = Domain({f"x{i}_{j}": 3 for i in range(4) for j in range(4)})
    inference = MarginalOracle(domain, cliques)
    potentials = torch.as_tensor(rng.normal(0, 1, inference.layout.cells))
    marginals, _ = inference.marginals(potentials)
    counted = expansions.counting_numbers(map(frozenset, cliques))
    alone = ClusterExpansion(inference.layout, counted).potentials(marginals)
    off = float((inference.marginals(alone)[0] - marginals).abs().sum())
    assert float((expanded(inference, marginals) - marginals).abs().sum()) < off / 10


@settings(max_examples=100, deadline=None)
@given(structures(), st.integers(10, 10_000))
def test_every_clique_and_attribute_is_counted_once(
    structure: tuple[Domain, list[Clique]], most: int
) -> None:
    domain, cliques = structure
    cliques = [cliques[i] for i in maximal(cliques)]
    layout = MarginalOracle(domain, cliques).layout
    cycles = expansions.short_cycles(layout, most)
    assert all(2 < len(cycle) <= 4 for cycle in cycles)
    counts = expansions.counting_numbers([*map(frozenset, cliques), *cycles])
    for part in [*map(frozenset, cliques), *({name} for c in cliques for name in c)]:
        assert sum(count for region, count in counts.items() if region >= part) == 1


def test_a_strongly_correlated_grid_takes_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attribute repeats a neighbour in nine of ten records. A tree's start takes hundreds."""
    rng, n, k, side = np.random.default_rng(0), 50_000, 4, 7
    records = rng.integers(0, k, (side, side, n))
    for i in range(side):
        for j in range(side):
            near = [records[a, b] for a, b in ((i - 1, j), (i, j - 1)) if a >= 0 and b >= 0]
            if near:
                copied = np.choose(rng.integers(0, len(near), n), near)
                records[i, j] = np.where(rng.random(n) < 0.9, copied, records[i, j])
    data = {f"x{i}_{j}": records[i, j] for i in range(side) for j in range(side)}
    measurements = []
    for a, b in grid(side, side):
        counts = np.bincount(k * data[a] + data[b], minlength=k * k)
        measurements.append(Measurement((a, b), counts + rng.normal(0, 50, k * k), 50.0))
    passes = []
    whole = MarginalOracle.fast_marginals

    def counting(
        self: MarginalOracle, potentials: torch.Tensor, total: float = 1.0
    ) -> tuple[torch.Tensor, float]:
        passes.append(1)
        return whole(self, potentials, total)

    monkeypatch.setattr(MarginalOracle, "fast_marginals", counting)
    model = estimate(Domain(dict.fromkeys(data, k)), measurements, total=n)
    assert model.certified
    assert len(passes) < 40
