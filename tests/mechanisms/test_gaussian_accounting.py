"""Gaussian accounting against dp-accounting and sums over the lattice, and who may use it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_discrete_gaussian_mechanism
from hypothesis import given
from hypothesis import strategies as st
from replay import replay
from scipy.special import ndtri_exp
from test_replay import DOMAIN, PAIRS, drawn, neighbour, quick

from mechanisms import synthesize
from mechanisms.dispatch import only_measures, run, run_on
from mechanisms.mixture import Mixture
from mechanisms.privacy import gaussian_dp
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.conversions import epsilon_from_rho, rho_from_epsilon
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import Ledger
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.privacy.noise_scales import additive
from mechanisms.registry import MECHANISMS, configure
from pgmkit.errors import InvalidInput
from pgmkit.tables.schema import Categorical, OpenCategorical, Schema

EXACT = Budget(1.0, 1e-6, accounting="gaussian")
MEASURING = [name for name, entry in MECHANISMS.items() if entry.measures]
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


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("name", [*MEASURING, "mixture"])
def test_runs_that_measure_draw_what_is_charged(name: str, relation: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    entry, settings = configure(name, **quick(name))

    def job(data: Any) -> Any:
        return run_on(Curator(data, EXACT, neighbours=relation), entry, settings, PAIRS)

    data = drawn(rng)
    replay(job, data, neighbour(data, relation, rng), tmp_path, pure=False)


@pytest.mark.parametrize("name", MECHANISMS)
def test_each_mechanism_runs_under_the_least_noise_that_is_proven(name: str) -> None:
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


def test_a_mixture_that_selects_pairs_stays_with_zcdp() -> None:
    assert Mixture().measures(PAIRS)
    assert not Mixture(cells=5).measures(PAIRS)


def test_selections_are_refused_before_a_charge() -> None:
    curator = Curator(DATA, EXACT, neighbours="add/remove", seed=0)
    entry, settings = configure("mst")
    with pytest.raises(InvalidInput, match="only measure"):
        run_on(curator, entry, settings, PAIRS)
    pairs = [("a", "b"), ("b", "c")]
    zero = {pair: np.zeros(DOMAIN.shape(pair)) for pair in pairs}
    for draw in [
        lambda: curator.choose(pairs, zero, 0.001),
        lambda: curator.choose_cells(pairs, zero, 0.001),
        lambda: curator.draw_signed(pairs, zero, 0.001),
        lambda: curator.choose_public([{pairs[0]: np.full((2, 3), 1 / 6)}], 0.001),
    ]:
        with pytest.raises(InvalidInput, match="no price"):
            draw()
    assert not curator.ledger.entries


@pytest.mark.parametrize("mechanism", ["auto", "aim"])
def test_the_front_door_refuses_it_before_open_columns_are_paid(mechanism: str) -> None:
    import pandas as pd

    frame = pd.DataFrame({"a": ["x", "y"] * 50, "b": ["u", "v"] * 50})
    schema = Schema({"a": OpenCategorical(), "b": Categorical(("u", "v"))})
    with pytest.raises(InvalidInput, match="only measure"):
        synthesize(
            frame, schema, epsilon=1.0, delta=1e-6, mechanism=mechanism, accounting="gaussian"
        )
    release = synthesize(
        frame, schema, epsilon=3.0, delta=1e-6, mechanism="independent", workload=1, seed=0
    )
    assert release.ledger is not None and release.ledger.budget.gaussian


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
    with pytest.raises(InvalidInput, match="Gaussian measurements alone"):
        run("gaussian", DATA, PAIRS, 0.5, 1e-6, ledger=exact, accounting="zcdp", **arguments)
    with pytest.raises(InvalidInput, match="only measure"):
        run("mst", DATA, PAIRS, 0.5, 1e-6, ledger=exact, **arguments)
    assert not exact.entries
    run("gaussian", DATA, PAIRS, 0.5, 1e-6, ledger=exact, **arguments)
    assert exact.spent == pytest.approx(gaussian_dp.largest_cost(0.5, 1e-6))


@given(st.floats(0.01, 30), st.floats(1e-12, 0.1), st.floats(1e-4, 1), st.floats(1, 100))
def test_the_default_never_needs_more_noise(
    epsilon: float, delta: float, share: float, l2: float
) -> None:
    plain, exact = (Budget(epsilon, delta, accounting=kind) for kind in ("zcdp", "gaussian"))
    if plain.least_noise == "gaussian":
        scales = [additive(each, l2, l2, share * each.total) for each in (exact, plain)]
        assert scales[0] <= scales[1]


def test_wrong_accountings_are_refused() -> None:
    with pytest.raises(InvalidInput, match="'zcdp' or 'gaussian', got 'renyi'"):
        Budget(1.0, 1e-6, accounting="renyi")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="needs delta above 0"):
        Budget(1.0, accounting="gaussian")
