"""L-BFGS beside closed forms and scipy."""

import numpy as np
import pytest
import scipy.optimize
import torch

from pgmkit.estimation.limited_memory import minimum


def bowl(size: int, condition: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The diagonal of a quadratic form, and its minimum."""
    rng = np.random.default_rng(size)
    curvatures = torch.logspace(0, np.log10(condition), size, dtype=torch.float64)
    return curvatures, torch.as_tensor(rng.normal(size=size))


@pytest.mark.parametrize(("size", "condition"), [(1, 1.0), (5, 10.0), (60, 300.0)])
def test_the_minimum_of_a_quadratic_form(size: int, condition: float) -> None:
    curvatures, lowest = bowl(size, condition)

    def function(x: torch.Tensor) -> tuple[float, torch.Tensor]:
        gradient = curvatures * (x - lowest)
        return float(gradient @ (x - lowest)) / 2, gradient

    found = minimum(function, torch.zeros(size, dtype=torch.float64), lambda: False)
    np.testing.assert_allclose(found, lowest, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_log_sums_of_exponentials_beside_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = torch.as_tensor(rng.normal(size=(40, 12)) * 3)
    values = torch.as_tensor(rng.normal(size=40))

    def function(x: torch.Tensor) -> tuple[float, torch.Tensor]:
        scores = rows @ x + values
        return float(scores.logsumexp(0) + 0.05 * x @ x), rows.T @ scores.softmax(0) + 0.1 * x

    found = minimum(function, torch.zeros(12, dtype=torch.float64), lambda: False)
    other = scipy.optimize.minimize(
        lambda x: function(torch.as_tensor(x))[0], np.zeros(12), method="Nelder-Mead",
        options={"maxfev": 50_000, "xatol": 1e-9, "fatol": 1e-12, "adaptive": True},
    )  # fmt: skip
    assert function(found)[0] <= other.fun + 1e-9


def test_values_out_of_range_shorten_the_step_and_the_search_stops_where_it_is_told() -> None:
    """The minimum of x - log x is at 1; the first step lands where the logarithm is not defined."""
    seen = list[float]()

    def function(x: torch.Tensor) -> tuple[float, torch.Tensor]:
        seen.append(float(x))
        value = float(100 * (x - x.log()).sum())  # NaN below zero
        return value, 100 * (1 - 1 / x)

    start = torch.tensor([0.5], dtype=torch.float64)
    assert float(minimum(function, start, lambda: False)) == pytest.approx(1.0)
    steps = iter([False, False, True])
    seen.clear()
    reached = float(minimum(function, start, lambda: next(steps)))
    assert reached == seen[-1] and reached != pytest.approx(1.0, abs=1e-12)


def test_the_search_ends_where_rounding_hides_any_fall() -> None:
    calls = []

    def flat(x: torch.Tensor) -> tuple[float, torch.Tensor]:
        calls.append(x)
        return 1e18 + float(x @ x), 2 * x

    minimum(flat, torch.tensor([3.0, -4.0], dtype=torch.float64), lambda: False)
    assert len(calls) == 2
