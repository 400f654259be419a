"""Shares of least predicted error, and coarser cells: optima against other optimisers and rules."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay import replay
from scipy.optimize import minimize

from mechanisms.mixture import Mixture, mixture
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.rounds.merging import Tables, best_tables, groups_of, measure_tables
from mechanisms.rounds.shares import least_risk_shares, predicted_risk
from mechanisms.synthesis.first_look import bins_of
from mechanisms.workload import k_way
from pgmkit.domain import Domain
from pgmkit.records.dataset import Dataset
from pgmkit.tables.schema import Categorical, Integer, Numeric, Schema

NAMES = [f"x{i}" for i in range(4)]
DOMAIN = Domain(dict.fromkeys(NAMES, 24))
BINS = dict.fromkeys(NAMES, 24)


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_no_other_shares_have_less_risk(seed: int, pure: bool) -> None:
    rng = np.random.default_rng(seed)
    distances, noise = rng.exponential(3.0, 6), rng.exponential(1.0, 6) + 0.05
    power = 1.0 if pure else 0.5

    def risk(shares: np.ndarray) -> float:
        return float(predicted_risk(distances, noise / np.maximum(shares, 1e-12) ** power).sum())

    found = least_risk_shares(distances, noise, pure=pure)
    assert found.sum() == pytest.approx(1.0)
    others = [
        minimize(lambda x: risk(np.exp(x) / np.exp(x).sum()), start, method="Nelder-Mead").fun
        for start in (np.zeros(6), np.log(np.maximum(found, 1e-6)))
    ]
    assert risk(found) <= min(others) + 1e-6


def test_tables_that_nothing_is_known_of_get_all_and_extremes_are_finite() -> None:
    noise = np.ones(3)
    assert least_risk_shares(np.array([0.0, 2.0, 0.0]), noise, pure=True).tolist() == [0, 1, 0]
    for scale in (1e-9, 1e9):
        found = least_risk_shares(np.array([1.0, 2.0, 3.0]) * scale, noise, pure=False)
        assert np.isfinite(found).all() and found.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(10))
def test_groups_are_runs_of_at_most_their_mass(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts, most = rng.exponential(1.0, 30) ** 3, int(rng.integers(2, 12))
    bins = 28
    groups = groups_of(counts, most, bins)
    assert groups[0] == 0 and set(np.diff(groups)) <= {0, 1}
    assert (np.diff(groups)[bins - 1 :] == 1).all()  # what is no bin stays apart
    sums = np.bincount(groups, counts)
    alone = np.bincount(groups) == 1
    assert (sums[~alone] <= counts.sum() / most * (1 + 1e-9)).all()
    # Two neighbours together hold more than a group's mass, so there are not many of them.
    assert groups[bins - 1] + 1 <= 2 * most + 1


def tables(noise: float, distance: float = 2000.0) -> Any:
    pairs = list(itertools.combinations(NAMES, 2))
    counts = dict.fromkeys(NAMES, np.full(24, 5000 / 24))
    return best_tables(
        pairs,
        counts,
        np.full(len(pairs), distance),
        dict.fromkeys(NAMES, 20.0),
        noise,
        bins=BINS,
        pure=False,
        residuals=True,
    )


def test_cells_are_the_coarser_the_more_noise_there_is() -> None:
    cells = [int(tables(noise).groups[0][0][-1]) + 1 for noise in (0.01, 3.0, 30.0)]
    assert cells[0] == 24 and cells[0] > cells[1] >= cells[2] >= 2
    # Residuals say nothing of single attributes, whatever the cells.
    assert all(0.0 < tables(noise).singles.sum() < 0.7 for noise in (0.01, 30.0))


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_residuals_are_cheaper_than_tables_and_exact_but_for_noise(relation: str) -> None:
    """With a budget of nearly no noise, beside the double centring of the counts."""
    rng = np.random.default_rng(4)
    domain = Domain({"a": 2, "b": 6})
    data = Dataset(domain, {n: rng.integers(0, k, 300) for n, k in domain.sizes.items()})
    groups = (np.arange(2), np.array([0, 0, 1, 1, 2, 2]))
    for both in (groups, (groups[0], np.arange(6))):
        curator = Curator(data, Budget(1e7, 1e-6), neighbours=relation, seed=0)
        cost = curator.remaining / 2
        table = curator.measure(("a", "b"), cost)
        chosen = Tables([both], np.ones(1), np.zeros(2))
        (found,) = measure_tables(curator, ["a", "b"], [("a", "b")], chosen, cost, residuals=True)
        counts = np.add.reduceat(
            data.marginal(("a", "b")), np.unique(both[1], return_index=True)[1], 1
        )
        centred = counts - counts.mean(0) - counts.mean(1, keepdims=True) + counts.mean()
        np.testing.assert_allclose(found.values.reshape(counts.shape), centred, atol=0.2)
        g, h = counts.shape
        kept = (1 - 1 / g) * (1 - 1 / h) if relation == "add/remove" else 1 - 1 / max(g, h)
        assert (found.stddev / table.stddev) ** 2 == pytest.approx(kept, rel=1e-3)


def ordered(rows: int, seed: int) -> Dataset:
    """Numbers in 24 bins that depend on each other."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=rows)
    columns = {}
    for name in NAMES:
        level = 0.7 * common + 0.7 * rng.normal(size=rows)
        columns[name] = np.searchsorted(np.linspace(-2, 2, 23), level)
    return Dataset(DOMAIN, columns)


def test_coarse_pairs_are_nearer_where_noise_hides_whole_ones() -> None:
    """Of five seeds the ratio is 0.70 to 0.77, standard deviation 0.03: 7 away from the limit."""
    data, pairs, missed = ordered(2000, 0), k_way(DOMAIN, 2), []
    for bins in (BINS, {}):
        curator = Curator(data, Budget(1.0, 1e-7), neighbours="add/remove", seed=0)
        release = mixture(curator, pairs, Mixture(rows=100, steps=40), bins=bins)
        coarse = [len(m.values) < 24**2 for m in release.measurements if len(m.clique) == 2]
        assert all(coarse) if bins else not any(coarse)
        assert curator.remaining == pytest.approx(0.0, abs=1e-12)
        missed.append(
            sum(
                np.abs(release.model.marginal(c) - data.marginal(c)).sum() / (2 * len(data))
                for c in pairs.cliques
            )
        )
    assert missed[0] < 0.95 * missed[1]


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-7])
def test_coarse_pairs_are_replayed(relation: str, delta: float, tmp_path: Path) -> None:
    """Which cells are measured follows from noisy answers, and each draw costs what is charged."""
    data = ordered(800, 1)
    columns = {name: np.array(data.columns[name]) for name in NAMES}
    if relation == "replace-one":
        for name in NAMES:
            columns[name][0] = (columns[name][0] + 5) % 24
        other = Dataset(DOMAIN, columns)
    else:
        other = Dataset(DOMAIN, {name: each[1:] for name, each in columns.items()})

    def job(records: Dataset) -> Any:
        curator = Curator(records, Budget(2.0, delta), neighbours=relation)
        release = mixture(curator, k_way(DOMAIN, 2), Mixture(rows=5, steps=3), bins=BINS)
        assert any(len(m.values) < 24**2 for m in release.measurements if len(m.clique) == 2)
        return release

    replay(job, data, other, tmp_path, pure=delta == 0)


def test_only_bins_are_merged() -> None:
    schema = Schema(
        {
            "work": Categorical(["a", "b", "c"]),
            "code": Integer(0, 7),
            "hour": Integer(0, 31),
            "year": Integer(1960, 1992),
            "age": Integer(0, 99, bins=10, missing=[]),
            "pay": Numeric(edges=(0.0, 1.0, 5.0, 9.0)),
        }
    )
    assert bins_of(schema) == {"year": 33, "age": 10, "pay": 3}
