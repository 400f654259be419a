"""Audits from the release alone: how Gaussian-private the mechanisms are, by many canaries a run.

The adversary knows the records but for 64 canaries, each there or not by a fair coin, and sees a
release's noisy tables. Canaries share no cell of any table, so that each run is 64 experiments
(Steinke, Nasr and Jagielski 2023). The scores of a canary that is there and of one that is not are
normal with a shift: `mu` is estimated from them (Nasr et al. 2023; Mahloujifar et al. 2024), and
stands for the epsilon that mu-GDP means at the claim's delta. No claim may be below what is seen,
but for one audit in a million, and most of what is claimed must be seen: else the audit is weak,
or noise is wasted.
"""

import math

import numpy as np
import pytest
from chance import FALSE_ALARM
from scipy.stats import norm
from seams import draw_from

from mechanisms.dispatch import accounted, only_measures, run_on
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.gaussian_dp import epsilon_from_cost, largest_cost
from mechanisms.privacy.noise import SeededNoise
from mechanisms.registry import configure
from mechanisms.release.record import Release
from mechanisms.workload import k_way
from pgmkit import Dataset, Domain

CANARIES = 64
DOMAIN = Domain({name: CANARIES for name in "abc"})
PAIRS = k_way(DOMAIN, 2)
OTHERS = 100  # of every value, so many that none is rare, as rare ones share a cell in mixtures
KNOWN = np.repeat(np.arange(CANARIES), OTHERS)  # in all columns alike
EPSILON, DELTA = 4.0, 1e-5
RUNS = 240
# The others leave a tenth to their selections and to the conversion of zCDP.
NEAR = {
    "independent",
    "gaussian",
    "gaussian+projection",
    "matrix",
    "matrix+pgm",
    "mst",
    "clique-tree",
    "mixture",
}
SETTINGS = {
    "independent": {},
    "gaussian": {},
    "gaussian+projection": {"model_mb": 1e-9},
    "matrix": {},
    "matrix+pgm": {"model_mb": 1e-9},
    "mixture": {"steps": 2, "rows": 10},
    # Little goes to selection, which the audit does not look at.
    "clique-tree": {"select_share": 0.02},
    "mst": {"select_share": 0.02},
    "mwem+pgm": {"rounds": 2, "select_share": 0.02},
    "aim": {"select_share": 0.02},
}


class Halved(SeededNoise):
    """The mistake to catch: half the noise that is charged for."""

    def gaussian(self, counts: np.ndarray, scale: float) -> np.ndarray:
        return super().gaussian(counts, scale / 2)


def scores(release: Release) -> np.ndarray:
    """For each canary the noisy counts of its cells above what is known, weighted by precision."""
    found, weight = np.zeros(CANARIES), 0.0
    for m in release.measurements:
        if not m.clique:
            continue  # the number of rows is of all canaries
        shape = DOMAIN.shape(m.clique)
        rows = [np.eye(n) for n in shape]  # of a table; of a residual its own
        if m.matrix is not None:
            rows = [np.asarray(each) for each in getattr(m.matrix, "factors", [m.matrix])]
        answers = np.asarray(m.values).reshape([len(each) for each in rows])
        alone = np.prod([each.T @ each for each in rows], axis=0)  # what rows of canaries share
        for each in rows:
            answers = np.tensordot(answers, each, (0, 0))
        held = answers[(np.arange(CANARIES),) * len(shape)]
        found += (held - alone @ np.full(CANARIES, float(OTHERS))) / m.stddev**2
        weight += np.diag(alone) / m.stddev**2
    return found / np.sqrt(weight)


def audited(name: str, noise: type[SeededNoise], runs: int = RUNS) -> tuple[float, float]:
    """The shift mu between scores with and without the canary, and its standard error."""
    entry, settings = configure(name, **SETTINGS[name])
    measures = only_measures(entry, settings, PAIRS)
    budget = accounted(Budget(EPSILON, DELTA), None, measures, None)
    rng = np.random.default_rng(1)
    present, absent = [], []
    for _ in range(runs):
        there = rng.random(CANARIES) < 0.5
        codes = np.concatenate([KNOWN, np.flatnonzero(there)])
        data = Dataset(DOMAIN, {name: codes for name in DOMAIN})
        curator = Curator(data, budget, neighbours="add/remove", seed=0)
        draw_from(curator, noise(rng))
        seen = scores(run_on(curator, entry, settings, PAIRS))
        present += seen[there].tolist()
        absent += seen[~there].tolist()
    with_it, without = np.array(present), np.array(absent)
    spread = math.sqrt((with_it.var(ddof=1) + without.var(ddof=1)) / 2)
    mu = float(with_it.mean() - without.mean()) / spread
    trials = len(with_it) + len(without)
    return mu, math.sqrt(4 / trials + mu**2 / (2 * trials))


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_claims_hold_and_are_nearly_used(name: str) -> None:
    mu, error = audited(name, SeededNoise)
    claim = math.sqrt(2 * largest_cost(EPSILON, DELTA))
    seen = epsilon_from_cost(mu**2 / 2, DELTA)
    deviations = float(norm.isf(FALSE_ALARM))
    print(f"{name}: epsilon {seen:.2f} of {EPSILON:g}, mu {mu:.3f} +- {error:.3f} of {claim:.3f}")
    assert mu - deviations * error < claim
    if name in NEAR:
        assert epsilon_from_cost((mu + deviations * error) ** 2 / 2, DELTA) > 0.9 * EPSILON


@pytest.mark.parametrize("name", ["gaussian", "independent"])
def test_half_of_the_noise_is_caught(name: str) -> None:
    mu, error = audited(name, Halved, runs=12)
    assert mu - norm.isf(FALSE_ALARM) * error > math.sqrt(2 * largest_cost(EPSILON, DELTA))
