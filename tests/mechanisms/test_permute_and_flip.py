"""Permute-and-flip against its own exact law (not the exponential mechanism's), and its price."""

import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from chance import assert_differs, assert_follows
from seams import dense, listed, noise_of

from mechanisms.datasets.census import census
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.privacy.noise import ExactNoise, SeededNoise, SparseScores, exact_draws, happens
from mechanisms.workload import k_way, random_k_way, target_biased
from pgmkit import Domain, InvalidInput

SCORES = np.array([3.0, 2.0, 2.5, -1.0])
SCALE = 0.7
DATA = census(300).project(["sex", "work", "income"])
PAIRS = k_way(DATA.domain, 2)


def flip_law(scores: np.ndarray, scale: float) -> np.ndarray:
    """McKenna and Sheldon (2020): q_r sum over S, others, of (-1)^|S| prod q_s / (|S| + 1)."""
    q = np.exp((scores - scores.max()) / scale)
    law = []
    for r in range(len(q)):
        others = [s for s in range(len(q)) if s != r]
        terms = [
            (-1) ** k * math.prod(q[s] for s in chosen) / (k + 1)
            for k in range(len(others) + 1)
            for chosen in itertools.combinations(others, k)
        ]
        law.append(q[r] * math.fsum(terms))
    return np.array(law)


@pytest.mark.parametrize(("noise", "draws"), [(SeededNoise, 60_000), (ExactNoise, 4_000)])
def test_permute_and_flip_has_its_own_law(noise: type, draws: int) -> None:
    sampler = noise(np.random.default_rng(0)) if noise is SeededNoise else noise()
    law = flip_law(SCORES, SCALE)
    assert law.sum() == pytest.approx(1)
    found = np.bincount([sampler.flip(SCORES, SCALE) for _ in range(draws)], minlength=4)
    assert_follows(found, law)
    # So many draws tell the two laws apart but for one run in a million.
    assert_differs(found, np.exp(SCORES / SCALE))


def test_repeated_draws_follow_the_exponential_mechanism() -> None:
    scores = np.array([3.0, 2.0, 2.5, -1.0, -9.0, 3.0])
    law = np.exp(scores / 2.0) / np.exp(scores / 2.0).sum()
    for noise in (SeededNoise(np.random.default_rng(0)), ExactNoise()):
        found = np.bincount(noise.draws(listed(scores), 20_000, 2.0), minlength=6)
        assert_follows(found, law)


@pytest.mark.parametrize("noise", [SeededNoise(np.random.default_rng(0)), ExactNoise()])
@pytest.mark.parametrize("size", [3, 4, 9])
def test_candidates_that_are_not_listed_are_drawn_as_scores_of_zero(
    noise: SeededNoise | ExactNoise, size: int
) -> None:
    scores = SparseScores(np.array([0, 2, 3])[: min(3, size - 1)], np.array([1.0, -2.0, 3.0]), size)
    scores = SparseScores(scores.places, scores.values[: len(scores.places)], size)
    law = np.exp(dense(scores) / 2.0)
    found = np.bincount(noise.draws(scores, 20_000, 2.0), minlength=size)
    assert_follows(found, law / law.sum())


def test_scores_far_below_zero_are_drawn_where_all_are_listed() -> None:
    """No candidate has the score zero, which would be above all weights."""
    scores = listed(np.full(2, -1e6))
    for scale in (1.0, 1e-3):
        with np.errstate(over="raise"):
            assert set(exact_draws(scores, 60, scale)) == {0, 1}  # one of them alone: 2^-59
    nothing = SparseScores(np.zeros(0, dtype=np.int64), np.zeros(0), 3)
    assert set(exact_draws(nothing, 200, 1.0)) == {0, 1, 2}  # one is missing: 3 (2/3)^200


def test_weights_beyond_floating_point_are_drawn_as_rarely_as_they_should() -> None:
    # The bound of such a weight is one unit, far above it: nearly every proposal is refused.
    scores = np.append(np.full(1000, -800.0), 0.0)
    assert set(exact_draws(listed(scores), 200, 1.0)) == {1000}
    assert exact_draws(listed(np.full(3, -1e300)), 5, 1e-3) and exact_draws(
        listed(np.zeros(1)), 2, 1.0
    ) == [0, 0]


def test_every_weight_is_proposed_however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that can never be drawn on one data set, and can on another, tells them apart."""
    scores = np.array([-800.0, -1e9, 0.0, -800.0])
    from_below = [0, 1, 2, -1]
    levels = iter(from_below)
    monkeypatch.setattr(
        "mechanisms.privacy.noise.secrets.randbelow",
        lambda all_levels: next(levels) % all_levels,
    )
    monkeypatch.setattr("mechanisms.privacy.noise.happens", lambda *_: True)
    assert exact_draws(listed(scores), len(from_below), 1.0) == [0, 1, 2, 3]


def test_candidates_that_are_not_listed_have_equal_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("secrets.randbelow", lambda levels: asked.append(levels) or levels - 1)
    nothing = SparseScores(np.zeros(0, dtype=np.int64), np.zeros(0), 3)
    assert exact_draws(nothing, 1, 1.0) == [2] and asked[0] % 3 == 0


def test_no_place_is_accepted_with_a_probability_above_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds below the weights would cut them off, by as much as they fall short."""
    asked = []

    def noted(exponent: Fraction, factor: Fraction) -> bool:
        asked.append((exponent, factor))
        return True

    monkeypatch.setattr("mechanisms.privacy.noise.happens", noted)
    rng = np.random.default_rng(0)
    for mean, scale in itertools.product((0.0, -20.0), (0.01, 1.0, 300.0)):
        exact_draws(listed(rng.normal(mean, 3, 50)), 100, scale)
    with localcontext() as context:
        context.prec = 60
        for exponent, factor in asked:
            log = (Decimal(factor.numerator) / Decimal(factor.denominator)).ln()
            assert log <= Decimal(exponent.numerator) / Decimal(exponent.denominator)
    assert len(asked) == 600


def test_the_bounds_of_the_smallest_weights_are_above_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of a few units of the last bit, where a bound that is cut off falls short."""
    asked = []

    def noted(exponent: Fraction, factor: Fraction) -> bool:
        asked.append((exponent, factor))
        return True

    monkeypatch.setattr("mechanisms.privacy.noise.happens", noted)
    monkeypatch.setattr("secrets.randbelow", lambda most: most - 1)
    for gap in np.linspace(25, 45, 200):
        assert exact_draws(listed(np.array([0.0, -gap])), 1, 1.0) == [1]
    with localcontext() as context:
        context.prec = 60
        for exponent, factor in asked:
            log = (Decimal(factor.numerator) / Decimal(factor.denominator)).ln()
            assert log <= Decimal(exponent.numerator) / Decimal(exponent.denominator)


def test_a_close_decision_takes_more_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    # Bits of exp(-1) itself, to 500 places: every comparison is undecided until other bits come.
    with localcontext() as context:
        context.prec = 600
        expansion = int(Decimal(-1).exp() * 2**500)
    asked = []

    def bits(count: int) -> int:
        used = sum(asked)
        asked.append(count)
        if used + count > 500:
            return 0
        return (expansion >> (500 - used - count)) & ((1 << count) - 1)

    monkeypatch.setattr("mechanisms.privacy.noise.secrets.randbits", bits)
    assert happens(Fraction(1), Fraction(1)) is True  # zeros after the true digits: below it
    assert len(asked) >= 4


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_permute_and_flip_costs_half_the_square_in_zcdp(relation: str, delta: float) -> None:
    curator = Curator(DATA, Budget(1.0, delta), neighbours=relation, seed=0)
    scales = []
    flip = noise_of(curator).flip
    noise_of(curator).flip = lambda scores, scale: scales.append(scale) or flip(scores, scale)
    cost = curator.remaining / 2
    estimates = {c: np.ones(DATA.domain.shape(c)) for c in PAIRS.cliques}
    curator.choose(PAIRS.cliques, estimates, cost, mechanism="permute-and-flip")
    epsilon = 2 * NEIGHBOURS[relation].l1 / scales[0]
    assert cost == pytest.approx(epsilon if delta == 0 else epsilon**2 / 2)
    assert curator.ledger.entries[0].mechanism == "permute-and-flip"
    with pytest.raises(InvalidInput, match="mechanism must be"):
        curator.choose(PAIRS.cliques, estimates, cost, mechanism="best")


def test_biased_and_random_workloads() -> None:
    domain = Domain({n: 2 for n in "abcde"})
    biased = target_biased(domain, 3, "c", factor=2.5)
    assert len(biased) == 10 and sum(w == 2.5 for w in biased.weights) == 6
    some = random_k_way(domain, 2, 4, seed=3)
    assert some == random_k_way(domain, 2, 4, seed=3) != random_k_way(domain, 2, 4, seed=4)
    assert len({frozenset(c) for c in some.cliques}) == 4
    for make in [
        lambda: target_biased(domain, 2, "z"),
        lambda: target_biased(domain, 2, "a", factor=0.0),
        lambda: random_k_way(domain, 2, 11, seed=0),
        lambda: random_k_way(domain, 9, 1, seed=0),
    ]:
        with pytest.raises(InvalidInput):
            make()
    with pytest.raises(InvalidInput, match="^k must be"):  # the factor is not at fault
        target_biased(domain, 0, "a")


def test_exact_decisions_follow_their_probability() -> None:
    """factor * exp(-exponent), from nothing to likely."""
    assert not any(happens(Fraction(1000), Fraction(1)) for _ in range(50))
    for exponent, factor in ((Fraction(1, 2), Fraction(1)), (Fraction(2), Fraction(3))):
        count, chance = 2000, float(factor) * math.exp(-float(exponent))
        happened = sum(happens(exponent, factor) for _ in range(count))
        assert_follows([happened, count - happened], [chance, 1 - chance])
