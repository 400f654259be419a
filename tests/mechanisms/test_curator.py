"""The Curator: sensitivities on real neighbours, laws of the draws, charges, refusals, leaks."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from chance import assert_follows, assert_mean, assert_stddev
from hypothesis import given, settings
from hypothesis import strategies as st
from seams import draw_from, private_records
from work import calls

from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import BudgetExceeded
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.privacy.noise import ExactNoise, Noise, SeededNoise
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.records.dataset import Dataset

DOMAIN = Domain({"a": 2, "b": 3, "c": 4})
CLIQUES: list[Clique] = [("a",), ("b",), ("a", "b"), ("c", "a"), ("a", "b", "c")]
NOISES: list[Callable[[], Noise]] = [ExactNoise, lambda: SeededNoise(np.random.default_rng(1))]


def random_data(rng: np.random.Generator, rows: int = 200) -> Dataset:
    return Dataset(DOMAIN, {a: rng.integers(0, n, rows) for a, n in DOMAIN.sizes.items()})


def neighbour(data: Dataset, relation: str, rng: np.random.Generator) -> Dataset:
    """A random neighbour under the relation, built row by row."""
    columns = {a: data.columns[a].astype(int).tolist() for a in DOMAIN}
    row = int(rng.integers(len(data)))
    if relation == "replace-one":
        for a, n in DOMAIN.sizes.items():
            columns[a][row] = int(rng.integers(n))
    elif rng.random() < 0.5:
        for a in DOMAIN:
            del columns[a][row]
    else:
        for a, n in DOMAIN.sizes.items():
            columns[a].append(int(rng.integers(n)))
    return Dataset(DOMAIN, columns)


def curator(budget: Budget, relation: str = "replace-one", **options: object) -> Curator:
    data = random_data(np.random.default_rng(0))
    return Curator(data, budget, neighbours=relation, **options)


class Recorder:
    """Noise that adds nothing and records what it was asked: the draws, to price afterwards."""

    secure = True

    def __init__(self) -> None:
        self.draws: list[tuple[str, float]] = []
        self.scores: list[np.ndarray] = []

    def gaussian(self, counts: np.ndarray, scale: float) -> np.ndarray:
        self.draws.append(("gaussian", scale))
        return counts

    def laplace(self, counts: np.ndarray, scale: float) -> np.ndarray:
        self.draws.append(("laplace", scale))
        return counts

    def softmax(self, scores: np.ndarray, scale: float) -> int:
        self.draws.append(("softmax", scale))
        self.scores.append(scores)
        return int(np.argmax(scores))


def recording(owner: Curator) -> Recorder:
    recorder = Recorder()
    draw_from(owner, recorder)
    return recorder


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_sensitivities_bound_random_neighbours_and_are_attained(relation: str) -> None:
    rng = np.random.default_rng(3)
    stated = NEIGHBOURS[relation]
    largest = {"l1": 0.0, "l2": 0.0, "score": 0.0}
    fixed = {c: rng.random(DOMAIN.shape(c)) * 30 for c in CLIQUES}
    for _ in range(400):
        data = random_data(rng, 30)
        other = neighbour(data, relation, rng)
        assert (len(data) == len(other)) or not stated.rows_public
        for c in CLIQUES:
            before, after = data.marginal(c), other.marginal(c)
            scores = [float(np.abs(m - fixed[c]).sum()) for m in (before, after)]
            largest["l1"] = max(largest["l1"], float(np.abs(before - after).sum()))
            largest["l2"] = max(largest["l2"], float(np.sqrt(((before - after) ** 2).sum())))
            largest["score"] = max(largest["score"], abs(scores[0] - scores[1]))
    assert largest["l1"] == stated.l1
    assert largest["l2"] == pytest.approx(stated.l2)
    assert largest["score"] == pytest.approx(stated.l1)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(sorted(NEIGHBOURS)), st.integers(0, 2**32), st.booleans())
def test_weighted_scores_move_at_most_by_what_is_paid_for(
    relation: str, seed: int, pure: bool
) -> None:
    rng = np.random.default_rng(seed)
    budget = Budget(1.0, 0.0 if pure else 1e-6)
    data = random_data(rng, 20)
    estimates = {c: rng.random(DOMAIN.shape(c)) * 10 for c in CLIQUES}
    weights = rng.uniform(0.1, 5, len(CLIQUES)).tolist()
    scores, scales = [], []
    for rows in (data, neighbour(data, relation, rng)):
        owner = Curator(rows, budget, neighbours=relation)
        recorder = recording(owner)
        owner.choose(CLIQUES, estimates, 0.01, weights=weights, penalties=[1.0] * len(CLIQUES))
        scores.append(recorder.scores[0])
        scales.append(recorder.draws[0][1])
    assert scales[0] == scales[1]
    moved = float(np.abs(scores[0] - scores[1]).max())
    epsilon = 2 * moved / scales[0]
    cost = epsilon if pure else epsilon**2 / 8
    assert cost <= 0.01 * (1 + 1e-9)


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_draws_cost_what_was_charged(relation: str, delta: float) -> None:
    owner = curator(Budget(1.0, delta), relation)
    recorder = recording(owner)
    estimates = {c: np.zeros(DOMAIN.shape(c)) for c in CLIQUES}
    for share in (0.1, 0.2, 0.3):
        owner.measure(("a", "b"), share * owner.remaining)
        owner.choose(CLIQUES, estimates, share * owner.remaining, weights=[1, 2, 3, 4, 5])
    owner.measure(("c",), owner.remaining)
    # An independent price list: Dwork & Roth for pure DP, Bun & Steinke and Rogers & Steinke
    # (the exponential mechanism costs epsilon^2 / 8) for zCDP. Weights are fractions of the
    # largest.
    l1, l2 = {"replace-one": (2, math.sqrt(2)), "add/remove": (1, 1)}[relation]
    prices = {
        ("laplace", True): lambda b: l1 / b,
        ("softmax", True): lambda b: 2 * l1 / b,
        ("gaussian", False): lambda s: l2**2 / (2 * s**2),
        ("softmax", False): lambda b: (2 * l1 / b) ** 2 / 8,
    }
    costs = [prices[law, delta == 0](scale) for law, scale in recorder.draws]
    assert costs == pytest.approx([entry.cost for entry in owner.ledger.entries], rel=1e-9)
    assert math.fsum(costs) == pytest.approx(owner.ledger.budget.total, rel=1e-9)


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_prices_agree_with_opendp(relation: str) -> None:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    stated = NEIGHBOURS[relation]
    rho = 0.037
    owner = curator(Budget(3.0, 1e-6), relation)
    gaussian = dp.m.make_gaussian(
        dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float), scale=owner.scale(rho)
    )
    assert gaussian.map(stated.l2) == pytest.approx(rho, rel=1e-12)
    recorder = recording(owner)
    owner.choose([("a",)], {("a",): np.zeros(2)}, rho)
    choose = dp.m.make_noisy_max(
        dp.vector_domain(dp.atom_domain(T=float, nan=False)),
        dp.linf_distance(T=float),
        dp.zero_concentrated_divergence(),
        scale=recorder.draws[0][1],
    )
    assert choose.map(float(stated.l1)) == pytest.approx(rho, rel=1e-12)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("scale", [0.4, 1.7, 12.5])
def test_noise_follows_the_discrete_law(noise: Callable[[], Noise], law: str, scale: float) -> None:
    draws = getattr(noise(), law)(np.full((30, 1000), 7), scale)
    assert draws.shape == (30, 1000)
    x = np.arange(-math.ceil(40 * scale) - 3, math.ceil(40 * scale) + 4)
    mass = np.exp(-(x**2) / (2 * scale**2) if law == "gaussian" else -np.abs(x) / scale)
    observed = np.bincount(draws.ravel() - 7 - x[0], minlength=len(x))
    assert_follows(observed, mass)


@pytest.mark.parametrize("noise", NOISES)
def test_selection_follows_the_exponential_mechanism(noise: Callable[[], Noise]) -> None:
    # Permute-and-flip has another law (and price): at these scores it takes the best 10% more.
    scores, scale = np.array([0.0, 3.0, 1.0, 2.5, -40.0]), 2.0
    source = noise()
    observed = np.bincount([source.softmax(scores, scale) for _ in range(6000)], minlength=5)
    law = np.exp(scores / scale)
    assert_follows(observed, law)


def test_choose_prefers_the_worst_answered_by_the_stated_law() -> None:
    data = random_data(np.random.default_rng(5))
    rng = np.random.default_rng(6)
    estimates: dict[Clique, np.ndarray] = {
        ("a",): data.marginal(("a",)) + np.array([3.0, -3.0]),
        ("b",): data.marginal(("b",)) + np.array([2.0, -1.0, 2.0]),
        ("c",): data.marginal(("c",)).astype(float),
    }
    epsilon = 0.8
    draws = []
    for _ in range(5000):
        owner = Curator(data, Budget(epsilon), neighbours="replace-one", seed=rng)
        draws.append(owner.choose(list(estimates), estimates, epsilon, penalties=[1.0, 0.0, 0.0]))
    law = np.exp(epsilon * np.array([6.0 - 1.0, 5.0, 0.0]) / (2 * 2))
    observed = np.array([draws.count(c) for c in estimates])
    assert_follows(observed, law)


def test_choose_among_the_allowed_has_the_law_of_these_alone_at_one_charge() -> None:
    """Whatever the others' scores are, and however the estimates come."""
    data = random_data(np.random.default_rng(5))
    rng = np.random.default_rng(6)
    wrong = {"a": 9.0, "b": 3.0, "c": 5.0}
    cliques: list[Clique] = [("a",), ("b",), ("c",), ("a", "b")]
    estimates = {c: data.marginal(c).astype(float) for c in cliques}
    for (name,) in cliques[:3]:
        estimates[name,][0] += wrong[name]
    epsilon, draws, asked = 0.8, [], set()

    def allowed(clique: Clique) -> bool:
        asked.add(clique)
        return clique != ("a",)

    for _ in range(5000):
        owner = Curator(data, Budget(epsilon), neighbours="replace-one", seed=rng)
        stream = ((cliques[i], estimates[cliques[i]]) for i in rng.permutation(len(cliques)))
        draws.append(owner.choose(cliques, stream, epsilon, allowed=allowed))
        assert len(owner.ledger.entries) == 1
    assert asked == set(cliques)
    law = np.exp(epsilon * np.array([3.0, 5.0, 0.0]) / (2 * 2))
    assert ("a",) not in draws
    assert_follows(np.array([draws.count(c) for c in cliques[1:]]), law)


def test_nothing_allowed_and_what_allowed_does_not_go_with_are_refused() -> None:
    owner = curator(Budget(1.0), "replace-one")
    estimates = {("a",): np.zeros(2)}
    with pytest.raises(InvalidInput, match="exponential mechanism only"):
        owner.choose([("a",)], estimates, 0.1, mechanism="permute-and-flip", allowed=lambda c: True)
    assert owner.ledger.spent == 0
    with pytest.raises(InvalidInput, match="of no candidate"):
        owner.choose([("a",)], estimates, 0.1, allowed=lambda c: False)


@pytest.mark.parametrize("rows", [254, 255, 256, 65_536, 70_000])
def test_counts_of_any_number_of_rows_are_compared_exactly(rows: int) -> None:
    """They are kept in the smallest type that holds them, and not compared in it."""
    domain = Domain({"a": 2, "b": 2})
    data = Dataset(domain, {name: np.zeros(rows, dtype=int) for name in domain})
    owner = Curator(data, Budget(1.0), neighbours="add/remove")
    noise = recording(owner)
    owner.choose([("a",), ("a", "b")], {("a",): [0.5, 1], ("a", "b"): np.full((2, 2), 2.0)}, 0.1)
    assert noise.scores[-1].tolist() == [rows - 0.5 + 1, rows - 2 + 6]


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_measurement_states_its_noise(delta: float) -> None:
    owner = curator(Budget(1.0, delta), "add/remove", seed=4)
    cost = owner.remaining / 1001
    errors = np.concatenate(
        [
            owner.measure(("a", "b", "c"), cost).values
            - private_records(owner).marginal(("a", "b", "c")).ravel()
            for _ in range(1000)
        ]
    )
    stddev = owner.measure(("a",), cost).stddev
    assert_stddev(errors.std(), stddev, len(errors), kurtosis=6 if delta == 0 else 3)
    assert_mean(errors, 0)
    assert_mean(np.abs(errors), owner.expected_error(cost))


def test_rows_are_public_only_where_the_relation_says_so() -> None:
    assert curator(Budget(1.0), "replace-one").public_total == 200
    assert curator(Budget(1.0), "add/remove").public_total is None


def test_fifty_thousand_exact_draws_are_drawn_together() -> None:
    domain = Domain({"a": 250, "b": 200})
    data = Dataset(domain, {"a": [0], "b": [0]})
    owner = Curator(data, Budget(1.0, 1e-9), neighbours="add/remove")
    found = []
    assert calls(lambda: found.append(owner.measure(("a", "b"), owner.remaining))) < 50_000
    assert found[0].values.shape == (50_000,)


def test_a_seed_reproduces_and_marks() -> None:
    first, second, third = (
        curator(Budget(1.0, 1e-6), seed=s).measure(("a", "b"), 0.01).values for s in (1, 1, 2)
    )
    assert (first == second).all()
    assert (first != third).any()
    assert not curator(Budget(1.0, 1e-6), seed=1).ledger.secure
    assert curator(Budget(1.0, 1e-6)).ledger.secure


def test_nothing_is_answered_beyond_the_budget() -> None:
    owner = curator(Budget(1.0, 1e-6))
    recorder = recording(owner)
    owner.measure(("a",), owner.remaining)
    with pytest.raises(BudgetExceeded, match="step 'again b'"):
        owner.measure(("b",), 1e-3, step="again")
    with pytest.raises(BudgetExceeded, match="step 'select'"):
        owner.choose([("b",)], {("b",): np.zeros(3)}, 1e-3)
    assert len(recorder.draws) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], {}), "there is no clique"),
        (([("a",)], {}), "no table for the clique"),
        (([("x",)], {}), "unknown attribute 'x'"),
        ((["a"], {}), "candidates must be a sequence.* with str"),
        (([("a",)], {("a",): [1.0]}), "shape"),
        (([("a",)], {("a",): [1.0, math.nan]}), "not finite"),
        (([("a",)], {("a",): [1.0, 2.0]}, 0.0), "cost"),
        (([("a",)], {("a",): [1.0, 2.0]}, math.nan), "cost"),
    ],
)
def test_bad_choices_are_refused_before_anything_is_spent(
    arguments: tuple[object, ...], message: str
) -> None:
    owner = curator(Budget(1.0))
    with pytest.raises(InvalidInput, match=message):
        owner.choose(*arguments, *([0.1] if len(arguments) == 2 else []))
    assert owner.ledger.spent == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": [0.0]}, "weights must be above 0"),
        ({"weights": [1.0, 2.0]}, "weights must be 1 finite numbers"),
        ({"penalties": [math.inf]}, "penalties must be 1 finite numbers"),
    ],
)
def test_bad_weights_and_penalties_are_refused(options: dict[str, object], message: str) -> None:
    owner = curator(Budget(1.0))
    with pytest.raises(InvalidInput, match=message):
        owner.choose([("a",)], {("a",): [1.0, 2.0]}, 0.1, **options)
    assert owner.ledger.spent == 0


def test_unknown_relation_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'replace-one', 'add/remove'; got 'add'"):
        curator(Budget(1.0), "add")


def test_nothing_exact_is_shown() -> None:
    data = Dataset(DOMAIN, {a: np.zeros(987654, dtype=int) for a in DOMAIN})
    owner = Curator(data, Budget(1.0, 1e-6), neighbours="add/remove")
    owner.choose([("a",), ("b",)], {("a",): np.zeros(2), ("b",): np.zeros(3)}, 0.001)
    measured = owner.measure(("a",), 0.001)
    shown = f"{owner!r} {owner.ledger} {owner.ledger!r} {measured!r}"
    with pytest.raises(BudgetExceeded) as refused:
        owner.measure(("a",), 1.0)
    shown += str(refused.value)
    assert not re.search("987654|9876", shown)


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-8])
def test_candidates_scored_once_are_chosen_as_by_choose(relation: str, delta: float) -> None:
    rng = np.random.default_rng(5)
    budget = Budget(1.0, delta)
    one, other = curator(budget, relation), curator(budget, relation)
    first, second = recording(one), recording(other)
    pairs = list(itertools.combinations(DOMAIN, 2))
    estimates = {c: rng.normal(20, 9, DOMAIN.shape(c)) for c in pairs}
    penalties = dict(zip(pairs, rng.uniform(0, 30, len(pairs)).tolist(), strict=True))
    scored = other.scored(pairs, estimates, penalties=[*penalties.values()])
    assert other.ledger.spent == 0
    for _ in range(4):
        places = rng.permutation(len(pairs))[: int(rng.integers(1, len(pairs) + 1))]
        cost = float(rng.uniform(0.01, 0.03)) * one.remaining
        some = [pairs[i] for i in places]
        wanted = one.choose(some, estimates, cost, penalties=[penalties[pair] for pair in some])
        assert pairs[scored.choose(places, cost, step="select")] == wanted
        np.testing.assert_array_equal(first.scores[-1], second.scores[-1])
    assert first.draws == second.draws
    assert [e.cost for e in one.ledger.entries] == [e.cost for e in other.ledger.entries]
    for wrong in ([], [-1], [len(pairs)]):
        with pytest.raises(InvalidInput, match="places"):
            scored.choose(wrong, 0.001, step="select")
    with pytest.raises(BudgetExceeded):
        scored.choose([0], 2 * other.remaining, step="select")
