"""The conversions between zCDP and (epsilon, delta): refusals, and ends of the range."""

import math
from collections.abc import Callable

import pytest

from mechanisms.privacy.conversions import (
    crossing,
    epsilon_from_rho,
    log_delta,
    rho_from_epsilon,
)
from pgmkit.errors import InvalidInput

NO_NUMBERS = (-1.0, math.nan, math.inf, True, "1")


@pytest.mark.parametrize("wrong", NO_NUMBERS)
def test_a_wrong_first_argument_is_refused(wrong: float) -> None:
    for call in (
        lambda: epsilon_from_rho(wrong, 1e-6),
        lambda: rho_from_epsilon(wrong, 1e-6),
    ):
        with pytest.raises(InvalidInput, match="must be a finite number"):
            call()


@pytest.mark.parametrize("conversion", [epsilon_from_rho, rho_from_epsilon])
@pytest.mark.parametrize("delta", [*NO_NUMBERS, 0.0, 1.0, 1.5])
def test_a_delta_that_is_no_promise_is_refused(
    conversion: Callable[[float, float], float], delta: float
) -> None:
    with pytest.raises(InvalidInput, match="delta must be above 0 and below 1"):
        conversion(1.0, delta)
    assert epsilon_from_rho(0.0, 0.5) == 0.0


def test_delta_is_a_number_for_any_rho() -> None:
    for rho in (1e-3, 1.0, 1e6, 1e19, 1e30):
        assert not math.isnan(log_delta(rho, 1.0))
    assert log_delta(1e30, 1.0) > 0.0


@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.01, 0.5])
@pytest.mark.parametrize("size", [1e-3, 0.1, 1.0, 2.0, 10.0])
def test_rounding_is_towards_the_safe_end(size: float, delta: float) -> None:
    """What is promised is kept by the same formula, and a little more would not be."""
    target = math.log(delta)
    rho = rho_from_epsilon(size, delta)
    assert log_delta(rho, size) <= target < log_delta(rho * (1 + 1e-9), size)
    epsilon = epsilon_from_rho(size, delta)
    assert log_delta(size, epsilon) <= target
    assert epsilon == 0.0 or target < log_delta(size, epsilon * (1 - 1e-9))


def test_a_crossing_near_zero_is_found_to_rounding() -> None:
    for at in (1e-3, 1e-90, 1e-300):
        below, above = crossing(lambda x, at=at: x >= at, 0.0, 1.0)
        assert below < at <= above and above - below <= 1e-14 * at
