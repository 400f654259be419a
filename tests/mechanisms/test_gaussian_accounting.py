"""Gaussian accounting against dp-accounting, sums over the lattice and random selections."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import (
    from_discrete_gaussian_mechanism,
    from_randomized_response,
)
from hypothesis import given
from hypothesis import strategies as st
from replay import replay
from scipy.special import log_softmax, ndtri_exp
from test_replay import PAIRS, PUBLIC, drawn, neighbour, quick

from mechanisms import synthesize
from mechanisms.dispatch import only_measures, run, run_on
from mechanisms.mixture import Mixture
from mechanisms.privacy import gaussian_dp
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.conversions import epsilon_from_rho, rho_from_epsilon
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import Ledger
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.privacy.noise_scales import additive, exponential, permute_and_flip
from mechanisms.registry import MECHANISMS, configure
from mechanisms.workload import Workload
from pgmkit import Integer, Schema
from pgmkit.errors import InvalidInput

EXACT = Budget(1.0, 1e-6, accounting="gaussian")
DATA = drawn(np.random.default_rng(0))


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("delta", [1e-15, 1e-9, 1e-5, 0.01, 0.3])
def test_the_conversion_is_that_of_dp_accounting(epsilon: float, delta: float) -> None:
    cost = gaussian_dp.largest_cost(epsilon, delta)
    sigma = dp_accounting.get_sigma_gaussian(epsilon, delta)
    assert math.sqrt(0.5 / cost) == pytest.approx(sigma, rel=1e-6)
    back = dp_accounting.get_epsilon_gaussian(math.sqrt(0.5 / cost), delta)
    assert back == pytest.approx(epsilon, rel=1e-6, abs=1e-9)
    assert gaussian_dp.epsilon_from_cost(cost, delta) == pytest.approx(epsilon, rel=1e-9)
    assert gaussian_dp.delta_from_mu(math.sqrt(2 * cost), epsilon) <= delta


@given(st.floats(0.01, 20), st.floats(1e-12, 0.1))
def test_it_never_allows_less_than_zcdp(epsilon: float, delta: float) -> None:
    cost = gaussian_dp.largest_cost(epsilon, delta)
    assert cost >= rho_from_epsilon(epsilon, delta)
    assert gaussian_dp.epsilon_from_cost(cost, delta) <= epsilon_from_rho(cost, delta) + 1e-9


def gaps(scale: float) -> np.ndarray:
    """Of normal quantiles of the discrete Gaussian's distribution function, by sums of its law."""
    k = np.arange(int(100 * scale) + 1000)
    tails = np.logaddexp.accumulate(-(k[::-1] ** 2) / (2 * scale**2))[::-1]  # of j >= k, in logs
    quantiles = -ndtri_exp(tails - np.logaddexp(tails[0], tails[1]))[1 : int(60 * scale) + 30]
    return np.append(2 * quantiles[0], np.diff(quantiles))  # symmetric about the gap at zero


@given(st.floats(0.05, 4000), st.floats(1e-7, 2))
def test_discrete_noise_is_as_gaussian_as_its_scale_says(l2: float, cost: float) -> None:
    """A shift by 1 is no easier to tell than the normal shift that is charged for it."""
    scale = gaussian_dp.scale(l2, cost)
    assert scale >= max(2 / math.pi, l2 / math.sqrt(2 * cost)) * (1 - 1e-12)
    if scale < 1000:
        assert gaps(scale).max() <= math.sqrt(2 * cost) / l2 * (1 + 1e-9)


def test_the_continuous_scale_would_promise_too_much() -> None:
    """The correction is needed: the check above fails without it."""
    assert gaps(2.0).max() > 1 / 2.0 * (1 + 1e-2)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("steps", [1, 6])
def test_an_independent_accountant_of_the_discrete_draws_agrees(epsilon: float, steps: int) -> None:
    """dp-accounting's privacy-loss distribution of discrete Gaussians, composed."""
    delta = 1e-6
    budget = Budget(epsilon, delta, accounting="gaussian")
    scale = gaussian_dp.scale(1.0, budget.total / steps)
    loss = from_discrete_gaussian_mechanism(scale, value_discretization_interval=1e-4)
    found = loss.self_compose(steps).get_epsilon_for_delta(delta)
    # Its losses are rounded up by at most the interval a step.
    assert found <= epsilon + steps * 1e-4
    # The bound on single steps is for the worst epsilon, which this one need not be.
    assert found >= 0.9 * epsilon


@given(st.floats(1e-9, 40), st.integers(2, 8), st.integers(0, 2**32))
def test_no_selection_is_easier_to_tell_than_what_is_charged(
    cost: float, size: int, seed: int
) -> None:
    """Scores that move by at most 1: (epsilon, delta) of the two laws, beside that of mu-GDP."""
    rng = np.random.default_rng(seed)
    before = rng.normal(0, rng.choice([0.1, 1, 10]), size)
    moved = rng.choice([rng.uniform(-1, 1, size), rng.choice([-1.0, 1.0], size)])
    scale, mu = exponential(EXACT, 1.0, cost), math.sqrt(2 * cost)
    laws = [log_softmax(each / scale) for each in (before, before + moved)]
    assert_no_easier(laws[0], laws[1], mu)
    assert_no_easier(laws[1], laws[0], mu)


def assert_no_easier(one: np.ndarray, other: np.ndarray, mu: float) -> None:
    for epsilon in [0.0, *np.abs(one - other) * 0.999, 0.3 * mu, mu]:
        delta = float(np.maximum(np.exp(one) - np.exp(epsilon + other), 0).sum())
        assert delta <= gaussian_dp.delta_from_mu(mu, epsilon) * (1 + 1e-9) + 1e-15


@given(st.floats(1e-6, 40))
def test_the_worst_selection_costs_exactly_what_is_charged(cost: float) -> None:
    """Of two candidates, one up and one down: half the range on either side is the kink."""
    half = 1.0 / exponential(EXACT, 1.0, cost)
    first = 1 / (1 + math.exp(-half))  # the probability of the better one of two
    kink = gaussian_dp.delta_from_mu(math.sqrt(2 * cost), 0.0)
    assert 2 * first - 1 == pytest.approx(kink, rel=1e-7)


@given(st.floats(1e-9, 40))
def test_permute_and_flip_has_half_the_range(cost: float) -> None:
    """It is epsilon-DP, so its log ratios may lie anywhere in -epsilon..epsilon."""
    epsilon = 2 / permute_and_flip(EXACT, 1.0, cost)
    probability = 1 / (1 + math.exp(-epsilon))
    kink = gaussian_dp.delta_from_mu(math.sqrt(2 * cost), 0.0)
    assert 2 * probability - 1 == pytest.approx(kink, rel=1e-7)


@pytest.mark.parametrize("budget", [Budget(1.0), Budget(1.0, 1e-6), EXACT])
@pytest.mark.parametrize("sensitivity", [1e-3, 0.5, 3.0, 40.0])
def test_scores_in_other_units_are_drawn_alike(budget: Budget, sensitivity: float) -> None:
    """A selection depends on scores by their ratio to the sensitivity alone, so its scale is
    proportional to it, under every accounting.
    """
    for price in (exponential, permute_and_flip):
        expected = sensitivity * price(budget, 1.0, 0.3)
        assert price(budget, sensitivity, 0.3) == pytest.approx(expected, rel=1e-12)
    noise = additive(budget, sensitivity, sensitivity, 0.3)
    if budget.pure:
        assert noise == pytest.approx(sensitivity / 0.3, rel=1e-12)
    elif not budget.gaussian:
        assert noise == pytest.approx(sensitivity / 0.6**0.5, rel=1e-12)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("select", [0.1, 0.5, 1.0])
def test_an_independent_accountant_of_selections_agrees(epsilon: float, select: float) -> None:
    """dp-accounting's composition of discrete Gaussians and of the worst selections."""
    delta, steps = 1e-6, 12
    budget = Budget(epsilon, delta, accounting="gaussian")
    half = 1.0 / exponential(budget, 1.0, select * budget.total / steps)
    # Randomized response with two answers: 1 - p/2 and p/2.
    worst = from_randomized_response(
        2 / (1 + math.exp(half)), 2, value_discretization_interval=1e-4
    ).self_compose(steps)
    if select < 1:
        scale = gaussian_dp.scale(1.0, (1 - select) * budget.total / steps)
        loss = from_discrete_gaussian_mechanism(scale, value_discretization_interval=1e-4)
        worst = worst.compose(loss.self_compose(steps))
    found = worst.get_epsilon_for_delta(delta)
    assert found <= epsilon + 2 * steps * 1e-4
    assert found >= 0.5 * epsilon  # many selections are less than their Gaussian curves


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("name", sorted(set(MECHANISMS) - {"dual-query"}))
def test_runs_draw_what_is_charged(name: str, relation: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    entry, settings = configure(name, **quick(name))
    public = {"public": PUBLIC} if entry.public else {}

    def job(data: Any) -> Any:
        return run_on(Curator(data, EXACT, neighbours=relation), entry, settings, PAIRS, **public)

    data = drawn(rng)
    replay(job, data, neighbour(data, relation, rng), tmp_path, pure=False)


@pytest.mark.parametrize("name", MECHANISMS)
def test_each_mechanism_by_name_has_the_accounting_of_its_draws(name: str) -> None:
    entry, settings = configure(name, **quick(name))
    if entry.public:
        return
    release = run(settings, DATA, PAIRS, 1.0, 1e-6, neighbours="add/remove", seed=0)
    assert release.ledger is not None
    draws = {each.mechanism for each in release.ledger.entries}
    assert release.ledger.budget.gaussian == (draws == {"discrete Gaussian"}), draws
    assert only_measures(entry, settings, PAIRS) == release.ledger.budget.gaussian


def test_the_accounting_can_be_chosen_and_is_stored(tmp_path: Path) -> None:
    arguments = (DATA, PAIRS, 1.0, 1e-6)
    plain = run("gaussian", *arguments, neighbours="add/remove", accounting="zcdp", seed=0)
    exact = run("gaussian", *arguments, neighbours="add/remove", seed=0)
    assert plain.ledger is not None and exact.ledger is not None
    assert plain.ledger.budget.total == rho_from_epsilon(1.0, 1e-6)
    saved = exact.measurements[0].stddev / plain.measurements[0].stddev
    assert 0.92 < saved < 0.94
    assert exact.ledger.budget.epsilon_spent(exact.ledger.spent) == pytest.approx(1.0)
    exact.save(tmp_path / "release.pgm")
    loaded = type(exact).load(tmp_path / "release.pgm")
    assert loaded.ledger is not None and loaded.ledger.budget == exact.ledger.budget
    pure = run("gaussian", DATA, PAIRS, 1.0, neighbours="add/remove", seed=0)
    assert pure.ledger is not None and pure.ledger.budget == Budget(1.0)


def test_a_mixture_that_selects_a_set_stays_with_zcdp() -> None:
    entry, usual = configure("mixture")
    assert only_measures(entry, usual, PAIRS) and only_measures(entry, Mixture(cells=5), PAIRS)
    every = tuple(PAIRS.domain)
    sought = Workload(PAIRS.domain, [*PAIRS.cliques, every], sought=[every])
    assert not only_measures(entry, usual, sought)


def test_dual_query_keeps_to_the_prices_that_its_rate_follows_from() -> None:
    curator = Curator(DATA, EXACT, neighbours="add/remove", seed=0)
    entry, settings = configure("dual-query")
    with pytest.raises(InvalidInput, match="accounting='zcdp'"):
        run_on(curator, entry, settings, PAIRS)
    assert not curator.ledger.entries


@pytest.mark.usefixtures("short_fits")
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("unit", [{}, {"unit": "id", "max_rows": 2}])
@pytest.mark.parametrize("rows", [100, 3000])
def test_auto_has_the_accounting_of_independent_columns(
    rows: int, unit: dict[str, Any], epsilon: float
) -> None:
    """Else it would be behind them where it takes them, by a conversion alone."""
    import pandas as pd

    numbers = np.arange(rows)
    frame = pd.DataFrame({"id": numbers // 2, "a": numbers % 2, "b": numbers % 3})
    schema = Schema({"a": Integer(0, 1), "b": Integer(0, 2)})
    found = [
        synthesize(
            frame, schema, epsilon=epsilon, delta=1e-9, mechanism=name, seed=0, **unit
        ).ledger
        for name in ("auto", "independent")
    ]
    assert found[0].budget == found[1].budget
    assert found[0].budget.gaussian == (epsilon < 5)


def test_ledgers_across_runs(tmp_path: Path) -> None:
    """Runs follow the ledger; zCDP's adds up Gaussian runs as well, but not the other way round."""
    plain = Ledger.create(tmp_path / "zcdp", Budget(2.0, 1e-6), neighbours="add/remove")
    arguments: dict[str, Any] = {"neighbours": "add/remove", "seed": 0}
    followed = run("gaussian", DATA, PAIRS, 0.5, 1e-6, ledger=plain, **arguments)
    assert followed.ledger is not None and not followed.ledger.budget.gaussian
    run("gaussian", DATA, PAIRS, 0.5, 1e-6, ledger=plain, accounting="gaussian", **arguments)
    exact = Ledger.create(tmp_path / "gaussian", EXACT, neighbours="add/remove")
    exact = Ledger.open(tmp_path / "gaussian")
    assert exact.budget == EXACT
    with pytest.raises(InvalidInput, match="more than zCDP"):
        run("gaussian", DATA, PAIRS, 0.5, 1e-6, ledger=exact, accounting="zcdp", **arguments)
    assert not exact.entries
    for mechanism in ("gaussian", "mst"):
        release = run(mechanism, DATA, PAIRS, 0.4, 1e-6, ledger=exact, **arguments)
        assert release.ledger is not None and release.ledger.budget.gaussian
    assert exact.spent == pytest.approx(2 * gaussian_dp.largest_cost(0.4, 1e-6))


@given(st.floats(0.01, 30), st.floats(1e-12, 0.1), st.floats(1e-4, 1), st.floats(1, 100))
def test_the_default_never_needs_more_noise(
    epsilon: float, delta: float, share: float, l2: float
) -> None:
    plain, exact = (Budget(epsilon, delta, accounting=kind) for kind in ("zcdp", "gaussian"))
    whole = [additive(each, 1.0, 1.0, each.total) for each in (exact, plain)]
    assert plain.least_noise == exact.least_noise == ("gaussian" if whole[0] < whole[1] else "zcdp")
    if plain.least_noise == "gaussian":
        scales = [additive(each, l2, l2, share * each.total) for each in (exact, plain)]
        assert scales[0] <= scales[1]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_conversions_refuse_what_is_no_promise(bad: float) -> None:
    """A mu below 0 would have a delta below 0, and comparisons with nan are all false."""
    for call, name in [
        (lambda: gaussian_dp.delta_from_mu(bad, 1.0), "mu"),
        (lambda: gaussian_dp.delta_from_mu(0.0, 1.0), "mu"),
        (lambda: gaussian_dp.delta_from_mu(1.0, bad), "epsilon"),
        (lambda: gaussian_dp.epsilon_from_cost(bad, 1e-6), "cost"),
        (lambda: gaussian_dp.epsilon_from_cost(1.0, bad), "delta"),
        (lambda: gaussian_dp.epsilon_from_cost(1.0, 1.0), "delta"),
        (lambda: gaussian_dp.epsilon_from_cost(0.0, 0.0), "delta"),
        (lambda: gaussian_dp.largest_cost(bad, 1e-6), "epsilon"),
        (lambda: gaussian_dp.largest_cost(0.0, 1e-6), "epsilon"),
        (lambda: gaussian_dp.largest_cost(1.0, bad), "delta"),
        (lambda: gaussian_dp.largest_cost(1.0, 0.0), "delta"),
    ]:
        with pytest.raises(InvalidInput, match=name):
            call()


def test_wrong_accountings_are_refused() -> None:
    with pytest.raises(InvalidInput, match="'zcdp', 'gaussian'; got 'renyi'"):
        Budget(1.0, 1e-6, accounting="renyi")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="needs delta above 0"):
        Budget(1.0, accounting="gaussian")


def test_the_default_changes_where_the_noise_does() -> None:
    """At delta 1e-9 between epsilon 5.4 and 5.6, as the documentation says."""
    found = [Budget(epsilon, 1e-9).least_noise for epsilon in (0.1, 5.4, 5.6, 20.0)]
    assert found == ["gaussian", "gaussian", "zcdp", "zcdp"]
