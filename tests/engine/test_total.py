"""estimate_total against the closed form 1^T Q^+ y with an explicit pseudo-inverse."""

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from chance import assert_mean, assert_stddev
from hypothesis import given
from hypothesis import strategies as st

import pgmkit.total
from pgmkit import estimate
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput, TotalUndetermined
from pgmkit.measurement import Measurement
from pgmkit.queries import compress, identity, mean, point, prefix, range_, total
from pgmkit.total import TotalEstimate, estimate_total


def closed_form(matrix: np.ndarray, values: np.ndarray, stddev: float) -> tuple[float, float]:
    weights = np.ones(matrix.shape[1]) @ np.linalg.pinv(matrix, rcond=1e-10)
    return float(weights @ values), stddev * float(np.linalg.norm(weights))


def inverse_variance(estimates: list[tuple[float, float]]) -> tuple[float, float]:
    precision = np.array([1 / stddev**2 for _, stddev in estimates])
    values = np.array([value for value, _ in estimates])
    return precision @ values / precision.sum(), precision.sum() ** -0.5


def deficient(rng: np.random.Generator, rows: int, cells: int) -> np.ndarray:
    """A random matrix of rank below its sides, with the row of ones in its row space."""
    basis = np.vstack([np.ones(cells), rng.normal(size=(cells // 2, cells))])
    return rng.normal(size=(rows, len(basis))) @ basis


seeds = st.integers(0, 2**32)


@given(seed=seeds, rows=st.integers(6, 12), cells=st.integers(2, 6), kind=st.integers(0, 2))
def test_one_measurement_matches_the_pseudo_inverse(
    seed: int, rows: int, cells: int, kind: int
) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(rows, cells)) if kind == 0 else deficient(rng, rows, cells)
    values, stddev = rng.normal(100, 10, size=rows), rng.uniform(0.1, 10)
    given_matrix: Any = sp.csr_array(matrix) if kind == 2 else matrix
    estimate = estimate_total([Measurement(["a"], values, stddev, given_matrix)])
    expected = closed_form(matrix, values, stddev)
    np.testing.assert_allclose((estimate.value, estimate.stddev), expected, rtol=1e-6)


@given(seed=seeds, shapes=st.lists(st.tuples(st.integers(3, 5), st.integers(1, 3)), max_size=3))
def test_a_kronecker_product_matches_the_pseudo_inverse(
    seed: int, shapes: list[tuple[int, int]]
) -> None:
    rng = np.random.default_rng(seed)
    factors = [deficient(rng, rows, cells) for rows, cells in shapes]
    measurement = Measurement(
        [f"x{i}" for i in range(len(factors))],
        rng.normal(100, 10, size=np.prod([len(f) for f in factors], dtype=int)),
        3.0,
        [sp.coo_array(f) if i % 2 else f for i, f in enumerate(factors)],
    )
    estimate = estimate_total([measurement])
    expected = closed_form(measurement.matrix.to_dense(), measurement.values, 3.0)  # type: ignore[union-attr]
    np.testing.assert_allclose((estimate.value, estimate.stddev), expected, rtol=1e-6)


@given(seed=seeds)
def test_several_measurements_combine_by_inverse_variance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrices = [np.eye(4), rng.normal(size=(5, 4)), np.kron(prefix(3), rng.normal(size=(3, 2)))]
    values = [rng.normal(50, 5, size=len(m)) for m in matrices]
    stddevs = rng.uniform(0.1, 10, size=3)
    measurements = [
        Measurement(["a"], values[0], stddevs[0]),
        Measurement(["a"], values[1], stddevs[1], matrices[1]),
        Measurement(["b", "c"], values[2], stddevs[2], matrices[2]),
        Measurement(["b"], [1e9], 1e-9, point(3, 0)),  # says nothing of the total
    ]
    estimate = estimate_total(measurements)
    singles = [closed_form(*one) for one in zip(matrices, values, stddevs, strict=True)]
    expected = inverse_variance(singles)
    np.testing.assert_allclose((estimate.value, estimate.stddev), expected, rtol=1e-6)


def test_unequal_noise_weighs_by_variance_not_by_stddev() -> None:
    # stddev 1 saying 600 and stddev 10 saying 400: 598.02 (weighing by 1/stddev gives 581.8).
    sure, unsure = Measurement([], [600.0], 1.0), Measurement([], [400.0], 10.0)
    estimate = estimate_total([sure, unsure])
    assert estimate.value == pytest.approx((600 + 400 / 100) / 1.01)
    assert round(estimate.value, 2) == 598.02
    assert estimate.stddev == pytest.approx(1.01**-0.5)


def test_the_estimate_is_unbiased_with_the_stated_stddev() -> None:
    rng, counts, draws = np.random.default_rng(7), np.array([400.0, 250.0, 350.0]), 4000
    errors = []
    for _ in range(draws):
        noisy = [
            Measurement(["a"], counts + rng.normal(0, 5, 3), 5.0),
            Measurement(["a"], prefix(3) @ counts + rng.normal(0, 8, 3), 8.0, prefix(3)),
        ]
        estimate = estimate_total(noisy)
        errors.append(estimate.value - 1000)
    assert_mean(errors, 0)
    assert_stddev(np.std(errors), estimate.stddev, draws)


@pytest.mark.parametrize(
    ("matrix", "weights"),
    [
        (identity(4), [1, 1, 1, 1]),
        (prefix(4), [0, 0, 0, 1]),
        (total(4), [1]),
        (4 * total(4), [0.25]),
        (compress([0, 0, 1, 1]), [1, 1]),
        (np.vstack([total(4)] * 4), [0.25] * 4),
    ],
)
def test_weights_known_by_hand(matrix: np.ndarray, weights: list[float]) -> None:
    values = np.arange(1.0, len(matrix) + 1)
    estimate = estimate_total([Measurement(["a"], values, 2.0, matrix)])
    assert estimate.value == pytest.approx(np.dot(weights, values))
    assert estimate.stddev == pytest.approx(2 * np.linalg.norm(weights))


def test_scales_of_matrix_and_noise_do_not_matter() -> None:
    for scale in (1e-200, 1e-150, 1e-8, 1e8, 1e150, 1e200):
        one_row = Measurement(["a"], [7 * scale], scale, scale * total(2))
        assert estimate_total([one_row]) == TotalEstimate(pytest.approx(7), pytest.approx(1))
        scaled = Measurement(["a"], scale * np.array([3.0, 4.0]), scale, scale * np.eye(2))
        estimate = estimate_total([scaled, scaled])
        assert estimate.value == pytest.approx(7.0)
        assert estimate.stddev == pytest.approx(1.0)
    tiny = Measurement([], [5.0], 1e-200)
    assert estimate_total([tiny, tiny]).value == pytest.approx(5.0)
    assert estimate_total([tiny, tiny]).stddev == pytest.approx(1e-200 / 2**0.5)


def test_a_large_sparse_matrix_goes_through_the_iterative_solver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(3)
    matrix = sp.csr_array(rng.normal(size=(60, 30)) * (rng.random((60, 30)) < 0.2) + np.eye(60, 30))
    values = rng.normal(size=60)
    dense = estimate_total([Measurement(["a"], values, 1.0, matrix)])
    monkeypatch.setattr(pgmkit.total, "TABLE_CELLS", 0)
    iterative = estimate_total([Measurement(["a"], values, 1.0, matrix)])
    assert iterative.value == pytest.approx(dense.value, rel=1e-6)
    assert iterative.stddev == pytest.approx(dense.stddev, rel=1e-6)
    with pytest.raises(TotalUndetermined):
        estimate_total([Measurement(["a"], np.ones(30), 1.0, sp.eye(30, 31))])
    # Differences of neighbours need about as many iterations as there are rows.
    steps = sp.eye(3000, format="csr") - sp.eye(3000, k=-1, format="csr")
    found = estimate_total([Measurement(["a"], np.ones(3000), 1.0, steps)])
    weights = np.arange(3000.0, 0.0, -1.0)  # the i-th difference is in all sums from i on
    assert found.value == pytest.approx(weights.sum(), rel=1e-9)
    assert found.stddev == pytest.approx(np.linalg.norm(weights), rel=1e-9)


def test_a_kronecker_product_is_never_written_out() -> None:
    factors = [prefix(100)] * 3  # written out: 1e12 cells
    values = np.zeros(10**6)
    values[-1] = 1234.0
    estimate = estimate_total([Measurement(["a", "b", "c"], values, 2.0, factors)])
    assert estimate.value == pytest.approx(1234.0)
    assert estimate.stddev == pytest.approx(2.0)


def test_nothing_determines_the_total() -> None:
    measurements = [
        Measurement(["a"], [1.0], 1.0, point(3, 1)),
        Measurement(["a"], [1.0], 1.0, mean(3)),
        Measurement(["a", "b"], np.ones(3), 1.0, [identity(3), [1, -1]]),
        Measurement(["b"], [0.0], 1.0, np.zeros((1, 2))),
    ]
    with pytest.raises(TotalUndetermined) as caught:
        estimate_total(measurements)
    message = str(caught.value)
    assert "pass total=" in message
    assert "factor of 'b'" in message
    assert message.count("row space") == 4
    assert "'a',): the row of ones is not in the row space of its matrix (misfit 1)" in message
    with pytest.raises(TotalUndetermined, match=r"\(misfit [^;]*\); pass total="):
        estimate_total(measurements[-1:] * 5)  # all five reasons, and no word of others
    with pytest.raises(TotalUndetermined, match="and 1 more") as caught:
        estimate_total(measurements[-1:] * 6)
    assert str(caught.value).count("row space") == 5
    with pytest.raises(TotalUndetermined, match="and 15 more"):
        estimate_total(measurements * 5)
    with pytest.raises(TotalUndetermined, match="there are no measurements"):
        estimate_total([])


def test_queries_that_determine_the_total_together_do_so_as_rows_of_one_matrix() -> None:
    rng = np.random.default_rng(5)
    rows = np.vstack([range_(9, lo, min(8, lo + 3)) for lo in range(9)] * 4)
    values = rows @ rng.gamma(1.0, 50.0, 9) + rng.normal(0, 2.0, 36)
    alone = [Measurement(["a"], [y], 2.0, row[None]) for y, row in zip(values, rows, strict=True)]
    with pytest.raises(TotalUndetermined, match="stack a clique's queries as rows of one matrix"):
        estimate_total(alone)
    together = estimate_total([Measurement(["a"], values, 2.0, rows)])
    assert together.value == pytest.approx(np.linalg.lstsq(rows, values, rcond=None)[0].sum())
    spread = np.linalg.inv(rows.T @ rows).sum() ** 0.5
    assert together.stddev == pytest.approx(2.0 * spread)


def test_a_row_close_to_ones_is_not_ones() -> None:
    with pytest.raises(TotalUndetermined):
        estimate_total([Measurement(["a"], [1.0], 1.0, np.array([[1.0, 1.0 + 1e-6]]))])


def test_bad_input_is_refused() -> None:
    good = Measurement(["a"], [1.0, 2.0], 1.0)
    with pytest.raises(InvalidInput, match="must be a sequence of Measurement records"):
        estimate_total(good)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="Measurement records"):
        estimate_total([good, ("a", 1)])  # type: ignore[list-item]
    assert estimate_total(iter([good]), Domain({"a": 2})).value == 3.0
    with pytest.raises(InvalidInput, match="needs 3"):
        estimate_total([good], Domain({"a": 3}))


SHARES = Measurement(("a",), [0.2, 0.3, 0.5], 5.0)


@pytest.mark.parametrize(
    ("measured", "given", "warned"),
    [
        (SHARES, None, True),
        (SHARES, 1.0, False),
        (Measurement(("a",), SHARES.values, 0.01), None, False),
        (Measurement(("a",), [1.0, 0.0, 0.0], 5.0), None, False),
        (Measurement(("a",), [0.2, 0.31, 0.5], 5.0), None, False),
        (Measurement(("a",), [0.9, 0.3, -0.2], 5.0), None, False),
    ],
)
def test_shares_with_the_noise_of_counts_are_told(
    measured: Measurement, given: float | None, warned: bool
) -> None:
    """No warning comes for whole numbers, such as one record with discrete noise, or other sums."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        estimate(Domain({"a": 3}), [measured, measured], total=given)
    assert [str(each.message)[:48] for each in said] == [
        "the table over ('a',) has fractions that sum to "
    ] * warned
