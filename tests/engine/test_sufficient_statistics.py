"""Combined measurements beside the given ones written out, and estimates beside another solver."""

import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from numpy.typing import NDArray

import pgmkit.losses
from benchmarks.many_measurements import optimum, problem
from pgmkit import Domain, Measurement, estimate
from pgmkit.estimation.many import estimate_many
from pgmkit.least_squares.stacked_rows import Rows, written_out
from pgmkit.least_squares.sufficient_statistics import average_tables, combined, side_by_side
from pgmkit.linear.kronecker import Kronecker

DOMAIN = Domain({"a": 3, "b": 4})
CLIQUE = ("a", "b")
CELLS = 12
Array = NDArray[np.float64]


def rows_of(m: Measurement) -> Array:
    """The matrix over the cells of ("a", "b"), written out."""
    matrix: Any = np.eye(CELLS) if m.matrix is None else m.matrix
    if isinstance(matrix, Kronecker):
        matrix = matrix.to_dense()
    dense = matrix.toarray() if scipy.sparse.issparse(matrix) else matrix
    return np.asarray(dense[:, DOMAIN.cell_map(CLIQUE, m.clique)])


def loss(measurements: list[Measurement], table: Array, penalty: Callable[..., Any]) -> float:
    """Summed with more digits than float64 has."""
    found = np.longdouble(0)
    for m in measurements:
        wide = rows_of(m).astype(np.longdouble)
        found += penalty((wide @ table - m.values) / np.longdouble(m.stddev)).sum()
    return float(found)


def half_square(r: Array) -> Array:
    return r**2 / 2


def drawn(rng: np.random.Generator, count: int, spread: float) -> list[Measurement]:
    """Of one clique in both orders: tables, cells, random and sparse rows, rows of zeros, products;
    standard deviations over ``spread`` orders of magnitude.
    """
    found = []
    for _ in range(count):
        clique = CLIQUE if rng.random() < 0.5 else CLIQUE[::-1]
        matrix: Any = None
        match rng.integers(5):
            case 0:
                matrix = rng.choice([1.0, 2.0, -1.0]) * np.eye(CELLS)[[rng.integers(CELLS)]]
            case 1:
                matrix = rng.normal(size=(int(rng.integers(1, 20)), CELLS))
            case 2:
                matrix = scipy.sparse.random_array((3, CELLS), density=0.2, rng=rng)
            case 3:
                matrix = [
                    rng.integers(-1, 2, size=(2, DOMAIN.sizes[n])).astype(float) for n in clique
                ]
        rows = CELLS if matrix is None else 4 if isinstance(matrix, list) else matrix.shape[0]
        stddev = float(10 ** rng.uniform(-spread / 2, spread / 2))
        found.append(Measurement(clique, rng.normal(0, 30, rows), stddev, matrix))
    return found


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("spread", [1.0, 8.0])
def test_the_loss_is_that_of_the_given_measurements(seed: int, spread: float) -> None:
    rng = np.random.default_rng([seed, int(spread)])
    given = drawn(rng, int(rng.integers(1, 40)), spread)
    few, together = combined(DOMAIN, given), side_by_side(DOMAIN, given)
    assert len(few.measurements) <= 2
    assert sum(len(m.values) for m in few.measurements) <= 3 * CELLS or len(given) == 1
    assert few.count == together.count == sum(len(m.values) for m in given)
    for scale in (1.0, 100.0):
        table = rng.normal(size=CELLS) * scale
        expected = loss(given, table, half_square)
        found = loss(few.measurements, table, half_square) + float(few.constant)
        assert found == pytest.approx(expected, rel=1e-12)
        assert loss(together.measurements, table, np.abs) == pytest.approx(
            loss(given, table, np.abs), rel=1e-12
        )


def test_a_large_constant_leaves_no_rounding_in_what_depends_on_the_table() -> None:
    # 1,000 values around a million with noise of 1: their squares are 1e15.
    rng = np.random.default_rng(0)
    values = 1e6 + rng.normal(size=1000)
    given = [Measurement(CLIQUE, [x], 1.0, np.ones((1, CELLS))) for x in values]
    few = combined(DOMAIN, given)
    assert float(few.constant) == pytest.approx(np.square(values - values.mean()).sum() / 2)
    table = np.full(CELLS, values.mean() / CELLS)
    assert loss(few.measurements, table, half_square) < 1e-12


def test_every_cell_measured_equally_often_is_a_table() -> None:
    cells = [np.eye(CELLS)[[i]] for i in (*range(CELLS), *reversed(range(CELLS)))]
    squares = np.arange(2.0 * CELLS) ** 2
    given = [Measurement(CLIQUE, [x], 2.0, row) for x, row in zip(squares, cells, strict=True)]
    given.append(Measurement(CLIQUE, np.arange(CELLS), 2.0))
    values = [m.values[:, None] * [1, -2] for m in given]
    (alone,) = combined(DOMAIN, given[:-1], values[:-1]).measurements
    assert alone.matrix is None and alone.values.shape == (CELLS,)
    few = combined(DOMAIN, given, values)
    (table,) = few.measurements
    assert table.matrix is None
    assert table.stddev == pytest.approx(2 / 3**0.5)
    ways = [squares[:CELLS], squares[CELLS:][::-1], np.arange(CELLS)]
    np.testing.assert_allclose(table.values, np.mean(ways, axis=0), rtol=1e-12)
    np.testing.assert_allclose(few.values[0], np.outer(table.values, [1, -2]), rtol=1e-12)
    assert few.constant == pytest.approx(np.var(ways, axis=0).sum() * 3 / 8 * np.array([1, 4]))


def test_one_measurement_of_a_clique_is_left_as_it_is() -> None:
    rng = np.random.default_rng(1)
    given = [
        Measurement(CLIQUE, rng.normal(size=CELLS), 1.0),
        Measurement(["a"], rng.normal(size=2), 2.0, rng.normal(size=(2, 3))),
        Measurement(["b"], rng.normal(size=8), 2.0, [np.tri(8, 4)]),
        Measurement(["c"], rng.normal(size=2), 2.0, np.tri(2)),
    ]
    domain = Domain({**DOMAIN.sizes, "c": 2})
    assert combined(domain, given).measurements == given
    assert side_by_side(domain, given).measurements == given
    twice = given[1:2] * 2
    assert combined(domain, twice, deadline=-np.inf).measurements == twice
    assert len(combined(domain, twice).measurements) == 1
    assert len(side_by_side(domain, twice).measurements) == 1


@pytest.mark.parametrize("kept", [np.asarray, scipy.sparse.csr_array])
def test_products_too_large_to_write_out_are_averaged_where_they_are_alike(kept: Any) -> None:
    domain = Domain({"a": 40, "b": 40})
    rng = np.random.default_rng(2)
    factors = [kept(np.tri(40)), rng.normal(size=(40, 40))]
    values = [rng.normal(size=1600) for _ in range(3)]
    given = [
        Measurement(CLIQUE, v, s, factors) for v, s in zip(values, (1.0, 2.0, 4.0), strict=True)
    ]
    other = Measurement(CLIQUE, values[0], 1.0, [kept(np.tri(40)), np.tri(40)])
    few = combined(domain, [*given, other])
    assert len(few.measurements) == 2
    mean = np.average(values, axis=0, weights=[1, 1 / 4, 1 / 16])
    np.testing.assert_allclose(few.measurements[0].values, mean, rtol=1e-12, atol=1e-14)


def test_sets_of_values_are_combined_as_each_alone() -> None:
    rng = np.random.default_rng(3)
    sets = []
    for _ in range(10):
        same = np.random.default_rng(4)
        sets.append(
            [
                Measurement(m.clique, rng.normal(size=len(m.values)), m.stddev, m.matrix)
                for m in drawn(same, 20, 2.0)
            ]
        )
    values = [np.stack([m.values for m in group], axis=1) for group in zip(*sets, strict=True)]
    together = combined(DOMAIN, sets[0], values)
    for place, each in enumerate(sets):
        alone = combined(DOMAIN, each)
        assert float(together.constant[place]) == pytest.approx(float(alone.constant), rel=1e-12)
        for found, m in zip(together.values, alone.measurements, strict=True):
            np.testing.assert_allclose(found[:, place], m.values, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", [0, 1, 2, 5, 13, 25, 52])
def test_estimates_from_many_measurements_reach_the_optimum_of_another_solver(seed: int) -> None:
    domain, measured, zeros, total = problem(seed)
    above, below = optimum(domain, measured, zeros, total)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = estimate(domain, measured, total=total, zeros=zeros)
    assert model.loss <= above + model.unit
    assert model.loss >= below - 1e-6 * (1 + abs(below))
    assert model.loss - model.gap <= above + 1e-6 * (1 + above)
    assert model.certified or caught or model.gap <= model.unit


def answers(count: int) -> list[Measurement]:
    rng = np.random.default_rng(5)
    counts, found = np.array([500.0, 300.0, 200.0]), []
    for _ in range(count):
        row = np.eye(3)[[rng.integers(3)]] if rng.random() < 0.5 else np.tri(3)[[rng.integers(2)]]
        found.append(Measurement(["a"], row @ counts + rng.normal(0, 5, 1), 5.0, row))
    return found


@pytest.mark.parametrize("kind", ["squared", "absolute", "huber"])
@pytest.mark.parametrize("inference", ["exact", "region"])
def test_methods_see_as_few_measurements_of_thousands_as_of_ten(
    kind: str, inference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Measurement] = []
    written = pgmkit.inference.observations.coordinates

    def counted(layout: Any, m: Measurement) -> Any:
        seen.append(m)
        return written(layout, m)

    monkeypatch.setattr("pgmkit.inference.observations.coordinates", counted)
    numbers, rows = [], []
    for count in (10, 3000):
        seen.clear()
        model = estimate(DOMAIN, answers(count), total=1000, loss=kind, inference=inference)
        assert model.certified
        numbers.append(len(seen))
        rows.append(max(len(m.values) for m in seen))
    assert max(numbers) <= 4
    if kind == "squared":
        assert rows[1] <= 6


def test_progress_and_models_speak_of_the_loss_of_the_given_measurements() -> None:
    given = answers(200)
    for inference in ("exact", "region"):
        seen: list[Any] = []
        model = estimate(DOMAIN, given, total=1000, progress=seen.append, inference=inference)  # type: ignore[call-overload]
        marginal = model.marginal(["a"])
        expected = sum(
            float(np.square((np.asarray(m.matrix) @ marginal - m.values) / m.stddev).sum()) / 2
            for m in given
        )
        assert model.loss == pytest.approx(expected, rel=1e-6)
        assert seen[-1].best_loss == pytest.approx(expected, rel=1e-6)
        assert model.unit == pytest.approx(100**0.5)


def test_batches_combine_too() -> None:
    rng = np.random.default_rng(6)
    first = [*answers(60), Measurement(CLIQUE, rng.normal(80, 5, CELLS), 5.0)]
    sets = [
        [Measurement(m.clique, m.values + rng.normal(), m.stddev, m.matrix) for m in first]
        for _ in range(4)
    ]
    for model, each in zip(estimate_many(DOMAIN, sets, total=1000), sets, strict=True):
        alone = estimate(DOMAIN, each, total=1000, tolerance=1e-4)
        assert model.certified
        assert alone.loss - alone.gap - 1e-6 <= model.loss <= alone.loss + model.gap + 1e-6
        assert model.unit == alone.unit


def test_sums_over_areas_stay_sparse() -> None:
    """Counts of 40 codes in 1,000 blocks, in 50 tracts and in all, whose dense rows would take 640
    MB.
    """
    domain, rng = Domain({"block": 1000, "code": 40}), np.random.default_rng(0)
    tracts, codes = np.kron(np.eye(50), np.ones((1, 20))), np.eye(40)
    levels = [(tracts, 2000), (np.ones((1, 1000)), 40)]
    measurements = [Measurement(["block", "code"], rng.normal(size=(1000, 40)), 1.0)] + [
        Measurement(["block", "code"], rng.normal(size=rows), 2.0, [matrix, codes])
        for matrix, rows in levels
    ]
    tracemalloc.start()
    try:
        found = combined(domain, measurements)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 60e6
    cells = rng.random(40_000)
    by_hand = sum(
        np.square(((matrix @ cells.reshape(1000, 40)).ravel() - m.values) / m.stddev).sum() / 2
        for m, matrix in zip(measurements, [np.eye(1000), tracts, np.ones((1, 1000))], strict=True)
    )
    kept = sum(
        np.square((cells if m.matrix is None else m.matrix @ cells) - m.values).sum()
        / (2 * m.stddev**2)
        for m in found.measurements
    )
    assert np.isclose(kept + float(found.constant), by_hand)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("penalty", ["squared", "huber", "absolute"])
def test_zero_matrices_tell_nothing_and_cost_their_values(times: int, penalty: str) -> None:
    """Of a clique of their own, or of the whole domain: the loss is that of zeros."""
    nothing = [Measurement(CLIQUE, [1.0, -3.0], 2.0, np.zeros((2, CELLS)))] * times
    given = pgmkit.losses.known_loss(penalty)
    expected = times * float(given.value(torch.tensor([0.5, 1.5])))
    alone = estimate(DOMAIN, nothing, total=24.0, loss=penalty)
    assert alone.loss == pytest.approx(expected)
    np.testing.assert_allclose(alone.marginal(CLIQUE), 2.0)
    table = Measurement(("a",), [10.0, 8.0, 6.0], 1.0)
    beside = estimate(DOMAIN, [table, *nothing], total=24.0, loss=penalty)
    assert expected <= beside.loss <= expected + 0.1 * beside.unit


def test_rows_of_a_clique_in_either_order_are_averaged_for_many_sets() -> None:
    """The row a1 + 2 b0 in units of 1 and 3, with zeros that are stored, and rows of zeros."""
    stored = scipy.sparse.csr_array(([0.0, 2.0, 1.0], ([0, 0, 0], [0, 1, 4])), (1, CELLS))
    other = np.zeros((4, 3))
    other.flat[[1, 3]] = 3.0, 6.0
    rows = [stored, scipy.sparse.csr_array(other.reshape(1, -1)), np.zeros((2, CELLS))]
    cliques, noise = [CLIQUE, CLIQUE[::-1], CLIQUE], (0.5, 3.0, 2.0)
    values = [np.array([[3.0, 5.0]]), np.array([[6.0, 9.0]]), np.array([[4.0, 2.0], [0.0, 6.0]])]
    given = [
        Measurement(clique, each[:, 0], stddev, matrix)
        for clique, each, stddev, matrix in zip(cliques, values, noise, rows, strict=True)
    ]
    few = combined(DOMAIN, given, values)
    ((m,), (found,)) = few.measurements, few.values
    # Their weights are 4 and 1, and their values 3 and 2, 5 and 3.
    expected = stored.toarray() * 5**0.5
    np.testing.assert_allclose(rows_of(m), expected)
    np.testing.assert_allclose(found, [[14 / 5**0.5, 23 / 5**0.5]])
    np.testing.assert_allclose(m.values, found[:, 0])
    np.testing.assert_allclose(few.constant, [0.4 + 16 / 8, 1.6 + 40 / 8])


def test_rows_of_which_none_is_a_multiple_of_another_stay_as_they_are() -> None:
    rows = Rows(("a",), scipy.sparse.csr_array(np.tri(3)), np.ones(3), np.ones(3))
    assert rows.merged() is rows


@pytest.mark.parametrize(
    ("count", "cells", "entries", "expected"),
    [
        (12, 12, 144, False),  # not more rows than cells
        (13, 12, 144, True),
        (13, 12, 73, True),
        (24, 12, 72, False),  # few and sparse rows
        (24, 12, 73, True),
        (25, 12, 72, True),
        (1100, 512, 0, True),
        (1100, 513, 0, False),  # too many cells
    ],
)
def test_rows_are_factorised_where_that_saves_time(
    count: int, cells: int, entries: int, expected: bool
) -> None:
    matrix = np.zeros((count, cells))
    matrix.flat[:entries] = 1.0
    rows = Rows(("a",), scipy.sparse.csr_array(matrix), np.ones(count), np.ones(count))
    assert rows.are_many is expected


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_factorisation_is_accurate_in_rows_of_little_weight(sign: float) -> None:
    """The rows of Powell and Reid (1969), of which 1, 1, 1 is the solution."""
    matrix = sign * np.array([[0, 2, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]])
    weights = np.array([1.0, 1e6, 1e6, 1.0])
    few = Rows(("a",), scipy.sparse.csr_array(matrix), weights, matrix.sum(axis=1)).factorised()
    solution = np.linalg.solve(few.matrix.toarray(), few.values)
    np.testing.assert_allclose(solution, 1.0, rtol=1e-13)


def test_the_average_of_tables_has_its_axes_in_the_order_of_the_domain() -> None:
    values = np.random.default_rng(0).normal(size=(2, CELLS, 3))
    given = [Measurement(("b", "a"), each[:, 0], 2.0) for each in values]
    for count, factor in ((1, 0.0), (2, 1 / 16)):
        ((m, found),), spread = average_tables(DOMAIN, given[:count], list(values[:count]))
        mean = values[:count].mean(axis=0)
        assert m.clique == CLIQUE and m.stddev == pytest.approx(2 / count**0.5)
        expected = mean.reshape(4, 3, 3).swapaxes(0, 1).reshape(CELLS, 3)
        np.testing.assert_allclose(found, expected)
        np.testing.assert_allclose(m.values, expected[:, 0])
        np.testing.assert_allclose(spread, factor * np.square(values[0] - values[1]).sum(axis=0))


def test_a_product_is_written_out_up_to_two_entries_for_each_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or up to a number of entries, here 36."""
    monkeypatch.setattr("pgmkit.least_squares.sufficient_statistics.MOST_FACTORED", 6)
    for cells, entries, parts in ((3, 36, 1), (3, 37, 2), (30, 60, 1), (30, 61, 2)):
        matrix = np.zeros((entries, cells))
        matrix.flat[:entries] = 1.0
        twice = [Measurement(["a"], np.ones(entries), 1.0, [matrix])] * 2
        assert len(side_by_side(Domain({"a": cells}), twice).measurements) == parts


def test_rows_are_a_table_only_if_each_has_one_cell_of_its_own() -> None:
    for matrix, expected in (
        ([[0, 1], [1, 0]], True),
        ([[1, 1], [0, 0]], False),
        ([[1, 0], [1, 0]], False),
        ([[1, 0], [0, 2]], False),
    ):
        rows = scipy.sparse.csr_array(np.array(matrix, dtype=float))
        assert Rows(("a",), rows, np.ones(2), np.ones(2)).is_table is expected


@pytest.mark.filterwarnings("error::DeprecationWarning")
def test_dense_factors_with_few_entries_are_written_out_as_one_sparse_matrix() -> None:
    """Against numpy's Kronecker product; scipy 1.18 warns of a product of two dense matrices."""
    domain = Domain({"a": 4, "b": 5})
    table = Measurement(("a", "b"), np.zeros(20), 1.0, [np.eye(4), 2.0 * np.eye(5)])
    found = written_out(domain, ("a", "b"), table)
    assert scipy.sparse.issparse(found)
    assert np.array_equal(found.toarray(), np.kron(np.eye(4), 2.0 * np.eye(5)))
    sums = Measurement(("a", "b"), [9.0], 1.0, [np.ones(4), np.ones(5)])
    assert isinstance(written_out(domain, ("a", "b"), sums), np.ndarray)
