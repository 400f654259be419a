"""Conversions against OpenDP and a grid; the ledger's arithmetic and refusals."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanisms.privacy.budget import Budget
from mechanisms.privacy.conversions import epsilon_from_rho, log_delta, rho_from_epsilon
from mechanisms.privacy.ledger import BudgetExceeded, Ledger
from pgmkit.errors import InvalidInput, PgmkitError

NOT_POSITIVE = [0, 0.0, -1.0, math.nan, math.inf, -math.inf, "1", None, True]


def opendp_epsilon(rho: float, delta: float) -> float:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.atom_domain(T="i64"), dp.absolute_distance(T=float)
    gaussian = dp.m.make_gaussian(*space, scale=math.sqrt(0.5 / rho))
    return dp.c.make_zCDP_to_approxDP(gaussian).map(1.0).epsilon(delta)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("delta", [1e-15, 4.2e-10, 1e-5, 0.01, 0.3])
def test_conversion_agrees_with_opendp(epsilon: float, delta: float) -> None:
    rho = rho_from_epsilon(epsilon, delta)
    # OpenDP minimises over alpha to a tolerance of its own: its answer is never lower.
    assert opendp_epsilon(rho, delta) == pytest.approx(epsilon, rel=1e-9)
    assert epsilon_from_rho(rho, delta) == pytest.approx(epsilon, rel=1e-12)
    assert math.exp(log_delta(rho, epsilon)) == pytest.approx(delta, rel=1e-9)


@given(st.floats(1e-6, 30), st.floats(0, 100))
def test_delta_is_the_minimum_over_alpha(rho: float, epsilon: float) -> None:
    alpha = 1 + np.logspace(-6, 8, 20001)
    of_alpha = (alpha - 1) * (alpha * rho - epsilon) - np.log(alpha - 1)
    of_alpha += alpha * np.log1p(-1 / alpha)
    grid = min(0.0, float(of_alpha.min()))
    found = math.exp(min(0.0, log_delta(rho, epsilon)))
    assert found <= math.exp(grid) * (1 + 1e-9)
    assert found >= math.exp(grid) * (1 - 1e-2) or found < 1e-300


def test_conversion_is_tighter_than_the_textbook_one() -> None:
    epsilon, delta = 1.0, 1 / 43944**2
    textbook = (math.sqrt(math.log(1 / delta) + epsilon) - math.sqrt(math.log(1 / delta))) ** 2
    assert 1.26 < rho_from_epsilon(epsilon, delta) / textbook < 1.46


def test_conversion_never_promises_too_much() -> None:
    for epsilon, delta in [(0.1, 1e-9), (1.0, 1e-6), (8.0, 1e-3)]:
        rho = rho_from_epsilon(epsilon, delta)
        assert math.exp(log_delta(rho, epsilon)) <= delta * (1 + 1e-12)
        assert math.exp(log_delta(rho * (1 + 1e-9), epsilon)) > delta


def test_no_cost_is_no_epsilon() -> None:
    assert epsilon_from_rho(0.0, 1e-9) == 0.0
    assert epsilon_from_rho(1e-30, 1e-9) == 0.0


@pytest.mark.parametrize("epsilon", NOT_POSITIVE)
def test_bad_epsilon_is_refused(epsilon: object) -> None:
    for delta in (1e-9, 0.0):
        with pytest.raises(
            InvalidInput, match=r"epsilon must be a finite number above 0.*; 0\.1 to 10 are usual"
        ):
            Budget(epsilon, delta)


@pytest.mark.parametrize("delta", [-1e-9, 1.0, 2.0, math.nan, math.inf, "0", None])
def test_bad_delta_is_refused(delta: object) -> None:
    with pytest.raises(InvalidInput, match="delta must be"):
        Budget(1.0, delta)


def test_pure_budget_counts_epsilon() -> None:
    # rho = epsilon^2 / 2 would be the wrong direction: zCDP does not imply pure DP.
    budget = Budget(0.7)
    assert (budget.pure, budget.unit, budget.total) == (True, "epsilon", 0.7)
    assert budget.epsilon_spent(0.3) == 0.3


@given(
    st.floats(0.01, 10),
    st.floats(1e-12, 0.1),
    st.lists(st.floats(1e-9, 1), min_size=0, max_size=40),
)
def test_the_rest_is_spent_exactly(epsilon: float, delta: float, shares: list[float]) -> None:
    ledger = Ledger(Budget(epsilon, delta))
    for share in shares:
        ledger.charge("step", "mechanism", share * ledger.remaining / 2)
    ledger.charge("rest", "mechanism", ledger.remaining)
    assert ledger.remaining == 0.0
    assert ledger.spent == ledger.budget.total
    with pytest.raises(BudgetExceeded, match="'one more'"):
        ledger.charge("one more", "mechanism", 1e-6 * ledger.budget.total)


@pytest.mark.parametrize("shares", [3, 7, 13, 49, 1000])
def test_equal_shares_fit(shares: int) -> None:
    ledger = Ledger(Budget(1.0, 1e-9))
    for _ in range(shares):
        ledger.charge("share", "mechanism", ledger.budget.total / shares)
    assert ledger.spent == pytest.approx(ledger.budget.total, rel=1e-12)


def test_overspending_is_refused_and_not_recorded() -> None:
    ledger = Ledger(Budget(1.0, 1e-9))
    ledger.charge("first", "discrete Gaussian", 0.6 * ledger.budget.total)
    with pytest.raises(BudgetExceeded, match="step 'second' asks for rho = .* remains") as error:
        ledger.charge("second", "discrete Gaussian", 0.5 * ledger.budget.total)
    assert isinstance(error.value, PgmkitError)
    assert [entry.step for entry in ledger.entries] == ["first"]


@pytest.mark.parametrize("cost", NOT_POSITIVE)
def test_bad_cost_is_refused(cost: object) -> None:
    with pytest.raises(InvalidInput, match="cost( of step 'x')? must be"):
        Ledger(Budget(1.0)).charge("x", "y", cost)


def test_entries_are_frozen() -> None:
    ledger = Ledger(Budget(1.0))
    ledger.charge("x", "y", 0.5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        ledger.entries[0].cost = 0.0


def test_table_accumulates_epsilon_up_to_the_promise() -> None:
    ledger = Ledger(Budget(1.0, 1e-9), secure=False)
    ledger.charge("first", "discrete Gaussian", ledger.remaining / 2)
    ledger.charge("second", "exponential mechanism", ledger.remaining)
    header, first, second, total, warning = str(ledger).splitlines()
    assert header.split() == ["step", "mechanism", "rho", "cumulative", "epsilon"]
    half = epsilon_from_rho(ledger.budget.total / 2, 1e-9)
    assert float(first.split()[-1]) == pytest.approx(half, rel=1e-3)
    assert second.split()[-1] == "1"
    assert total.startswith("spent ")
    assert "INSECURE" in warning
