"""Audits of what is selected: canaries are guessed from the picks of a run alone.

The background is the same record of zeros and of ones, many times, so that all pairs are alike far
from independence: which of them is picked depends on the noise and on hundreds of canaries, each
there or not by a fair coin. A canary raises the score of one half of the pairs by a count and
lowers that of the others. The adversary knows all records but for the coins, and of each pick what
was on offer, by what estimates, at which price; from this follows how much likelier each pick is
with the canary than without. All canaries of a run are guessed at once (Steinke, Nasr and Jagielski
2023), and how many guesses are right bounds mu of Gaussian differential privacy from below, however
the canaries hang together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from chance import FALSE_ALARM
from scipy.special import ndtr, ndtri

from mechanisms.dispatch import run_on
from mechanisms.privacy import curator as curator_module
from mechanisms.privacy import noise_scales
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.gaussian_dp import epsilon_from_cost, largest_cost
from mechanisms.privacy.noise import SeededNoise
from mechanisms.registry import configure
from mechanisms.synthesis.pipeline import synthesize
from mechanisms.workload import k_way
from pgmkit import Boolean, Schema
from pgmkit.domain import Clique, Domain
from pgmkit.records.dataset import Dataset

DELTA = 1e-5
DOMAIN = Domain({f"q{i}": 2 for i in range(24)})
PAIRS = k_way(DOMAIN, 2)
CANARIES = 32
"""In a run: about as many as the picks can tell something of."""
COPIES = 2000
"""Of the background's two records each: no canary changes the sign of an error."""


AUDITED: dict[str, dict[str, Any]] = {
    "mst": {"select_share": 0.9, "one_way_share": 0.05},
    "mwem+pgm": {"select_share": 0.9, "one_way_share": 0.05, "rounds": 23, "model_mb": 0.001},
    "aim": {"select_share": 0.9},
    "pair-graph": {"select_share": 0.9, "one_way_share": 0.05, "errors_share": 0.01},
    # Where memory is short it takes pair-graph, with its default shares.
    "auto": {},
}
"""Most of the budget goes to selections."""
BROKEN = {"mst": 4.0, "mwem+pgm": 4.0, "aim": 16.0, "pair-graph": 8.0, "auto": 32.0}
"""The part of the noise of selections with which a mechanism is broken at epsilon 4; the smaller
the share of the selections, the more must be missing until their picks show more than the claim of
the whole. At epsilon 1 it is twice as much."""


@dataclass
class Pick:
    """What an adversary sees of a selection."""

    cliques: Sequence[Clique]
    estimates: Mapping[Clique, np.ndarray]
    weights: np.ndarray
    penalties: np.ndarray
    scale: float
    place: int


@contextmanager
def watched(noise: type[SeededNoise]) -> Iterator[list[Pick]]:
    """The picks of the Curators of this block, whose seeded noise is of this class."""
    picks: list[Pick] = []
    choose, scored = Curator.choose, Curator.scored

    def choosing(self: Curator, candidates: Any, estimates: Any, cost: float, **named: Any) -> Any:
        cliques, tables = list(candidates), tables_of(estimates)
        picked = choose(self, cliques, tables, cost, **named)
        weights = np.array(named.get("weights") or np.ones(len(cliques)))
        penalties = np.array(named.get("penalties") or np.zeros(len(cliques)))
        scale = noise_scales.exponential(self.ledger.budget, self.neighbours.l1, cost)
        shares = weights / weights.max()
        picks.append(Pick(cliques, tables, shares, penalties, scale, cliques.index(picked)))
        return picked

    def scoring(self: Curator, candidates: Any, estimates: Any, **named: Any) -> Any:
        cliques, tables = list(candidates), tables_of(estimates)
        made = scored(self, cliques, tables, **named)
        penalties = np.array(named.get("penalties") or np.zeros(len(cliques)))
        several = made.choose

        def one(places: Any, cost: float, *, step: str) -> int:
            place = several(places, cost, step=step)
            left = [cliques[each] for each in places]
            scale = noise_scales.exponential(self.ledger.budget, self.neighbours.l1, cost)
            alike = np.ones(len(left))
            offered = penalties[np.array(places)]
            picks.append(Pick(left, tables, alike, offered, scale, list(places).index(place)))
            return place

        made.choose = one
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Curator, "choose", choosing)
        patch.setattr(Curator, "scored", scoring)
        patch.setattr(curator_module, "SeededNoise", noise)
        yield picks


def tables_of(estimates: Any) -> dict[Clique, np.ndarray]:
    return {clique: np.asarray(t) for clique, t in dict(estimates).items()}


def less(part: float) -> type[SeededNoise]:
    """The mistake to catch: a part of the noise of the selections that is charged for."""

    class Less(SeededNoise):
        def softmax(self, scores: np.ndarray, scale: float) -> int:
            return super().softmax(scores, scale / part)

    return Less


def evidence(picks: Sequence[Pick], canaries: np.ndarray) -> np.ndarray:
    """For each canary how much likelier, by its logarithm, the picks are with it than without."""
    found = np.zeros(len(canaries))
    estimates, errors = None, {}
    for pick in picks:
        if pick.estimates is not estimates:
            estimates = pick.estimates
            errors = {c: expected(c, table, canaries) for c, table in estimates.items()}
        away = np.array([errors[clique][0] for clique in pick.cliques])
        signs = np.array([errors[clique][1] for clique in pick.cliques])
        logits = pick.weights * (away - pick.penalties) / pick.scale
        odds = np.exp(logits - logits.max())
        moved = pick.weights[:, None] * signs / pick.scale
        found += moved[pick.place] - np.log(odds @ np.exp(moved) / odds.sum())
    return found


def expected(
    clique: Clique, estimate: np.ndarray, canaries: np.ndarray
) -> tuple[float, np.ndarray]:
    """The error of an estimate with half of the canaries, and by what each of them moves it."""
    places = [list(DOMAIN).index(name) for name in clique]
    cells = np.ravel_multi_index(canaries[:, places].T, DOMAIN.shape(clique))
    table = np.bincount(cells, minlength=DOMAIN.size(clique)) / 2.0
    table[[0, -1]] += COPIES
    away = table - estimate.reshape(-1)
    return float(np.abs(away).sum()), np.sign(away)[cells]


def right_guesses(name: str, epsilon: float, noise: type[SeededNoise], seed: int) -> float:
    """The share of the canaries of a run that are guessed right."""
    rng = np.random.default_rng([seed, 1])  # the noise draws from the seed alone
    canaries = rng.integers(0, 2, (CANARIES, len(DOMAIN)))
    there = rng.random(len(canaries)) < 0.5
    known = np.repeat([[0], [1]], COPIES, axis=0) * np.ones(len(DOMAIN), int)
    records = np.concatenate([known, canaries[there]])
    with watched(noise) as picks:
        if name == "auto":
            columns = {each: records[:, i] == 1 for i, each in enumerate(DOMAIN)}
            release = synthesize(
                pd.DataFrame(columns),
                Schema({each: Boolean() for each in DOMAIN}),
                epsilon=epsilon,
                delta=DELTA,
                neighbours="add/remove",
                accounting="gaussian",
                memory_mb=350,
                seed=seed,
            )
            assert release.mechanism == "pair-graph"
        else:
            entry, settings = configure(name, **AUDITED[name])
            data = Dataset(DOMAIN, {each: records[:, i] for i, each in enumerate(DOMAIN)})
            budget = Budget(epsilon, DELTA, accounting="gaussian")
            run_on(
                Curator(data, budget, neighbours="add/remove", seed=seed), entry, settings, PAIRS
            )
    assert picks
    return float(((evidence(picks, canaries) > 0) == there).mean())


def least_mu(shares: Sequence[float]) -> float:
    """The mu of a claim that is too high with probability FALSE_ALARM at most; 0 if none is.

    Of a canary that mu-GDP protects no guess is right more often than N(mu / 2), so neither is the
    share of right guesses of a run above that in expectation, however its canaries hang together.
    Then the product over runs of share / N(mu / 2) has an expectation of 1 at most, and reaches
    1 / FALSE_ALARM with probability FALSE_ALARM at most.
    """
    least = math.exp(float(np.log(shares).mean()) + math.log(FALSE_ALARM) / len(shares))
    return max(0.0, 2 * float(ndtri(least)))


def least_seen(name: str, epsilon: float, part: float, runs: int) -> float:
    """The least mu that so many runs show of a mechanism with a part of its selections' noise."""
    noise = less(part)
    shares = [right_guesses(name, epsilon, noise, seed) for seed in range(runs)]
    mu = least_mu(shares)
    likely = 2 * float(ndtri(np.mean(shares)))
    print(
        f"{name} at epsilon {epsilon:g}, noise / {part:g}: {np.mean(shares):.3f} right, mu about "
        f"{likely:.3f} (epsilon {seen(likely):.2f}) and at least {mu:.3f} ({seen(mu):.2f}), "
        f"of {claim(epsilon):.3f}"
    )
    return mu


def seen(mu: float) -> float:
    """The epsilon that mu-GDP means at the claim's delta."""
    return epsilon_from_cost(mu**2 / 2, DELTA) if mu > 0 else 0.0


def claim(epsilon: float) -> float:
    """The mu that is claimed."""
    return math.sqrt(2 * largest_cost(epsilon, DELTA))


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("name", AUDITED)
@pytest.mark.filterwarnings("ignore")
def test_picks_show_no_more_than_is_claimed(name: str, epsilon: float) -> None:
    assert least_seen(name, epsilon, 1.0, 60) < claim(epsilon)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("name", AUDITED)
@pytest.mark.filterwarnings("ignore")
def test_picks_with_too_little_noise_are_caught(name: str, epsilon: float) -> None:
    part = BROKEN[name] * (1 if epsilon == 4 else 2)
    assert least_seen(name, epsilon, part, 200) > claim(epsilon)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mst", "mwem+pgm"])
def test_picks_with_half_of_the_noise_are_caught(name: str) -> None:
    assert least_seen(name, 4.0, 2.0, 300) > claim(4.0)


def test_picks_almost_without_noise_are_caught_in_few_runs() -> None:
    assert least_seen("mst", 1.0, 20.0, 60) > claim(1.0)


def test_the_bound_is_too_high_no_more_often_than_it_says() -> None:
    """Shares of coins that hang together: all right or all wrong, or each by itself."""
    rng = np.random.default_rng(0)
    for together in (1, 32):
        shares = rng.binomial(together, float(ndtr(0.25)), (4000, 30)) / together
        found = [least_mu(np.maximum(each, 1e-9)) for each in shares]
        assert max(found) < 0.5
    assert least_mu([0.9] * 200) > 1.9
