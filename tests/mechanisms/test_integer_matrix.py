"""Matrices on a grid of whole numbers, against Python's whole numbers and numpy's fractions."""

import itertools

import numpy as np
import pytest
from scipy.sparse import csr_array

from mechanisms.privacy.integer_matrix import LARGEST_ANSWER, FactorNorms, GridMatrix
from pgmkit.errors import InvalidInput
from pgmkit.linear.kronecker import Kronecker

BIG = 2**30 - 1


def norms(columns: list[list[int]]) -> tuple[int, int, int, int]:
    """The largest |u|_1, |u - v|_1, |u|_2^2 and |u - v|_2^2 of columns, in Python's integers."""
    differences = [
        [a - b for a, b in zip(u, v, strict=True)] for u, v in itertools.product(columns, repeat=2)
    ]
    l1 = [max(sum(map(abs, each)) for each in some) for some in (columns, differences)]
    l2 = [max(sum(x * x for x in each) for each in some) for some in (columns, differences)]
    return l1[0], max(1, l1[1]), l2[0], max(1, l2[1])


@pytest.mark.parametrize("rows", range(1, 18))
@pytest.mark.parametrize("others", [(1, 1 - BIG), (5,), (2**29, -(2**29))])
def test_norms_about_the_end_of_64_bits(rows: int, others: tuple[int, ...]) -> None:
    """Opposite columns have a squared distance of four times a squared norm."""
    first = others[0] if others[0] == 2**29 else -BIG
    columns = [[entry] * rows for entry in (first, *others)]
    grid = GridMatrix.rounded([np.array(columns, dtype=np.float64).T])
    found = (grid.l1(False), grid.l1(True), grid.l2_squared(False), grid.l2_squared(True))
    assert found == norms(columns)


def test_answers_of_negative_entries_are_held_within_64_bits() -> None:
    rows = 2**40
    for entry in (-BIG, BIG):
        grid = GridMatrix.rounded([np.array([[entry, 1.0], [1.0, 0.0]])])
        found = grid.answers(np.array([rows, 5]))
        exact = max(-2 * LARGEST_ANSWER, min(2 * LARGEST_ANSWER, entry * rows + 5))
        assert found.tolist() == [int(exact), rows]


def test_entries_are_rounded_to_the_nearest_of_the_grid() -> None:
    rng = np.random.default_rng(5)
    for size in (1e-9, 1.0, 2.0**22):
        matrix = rng.uniform(-size, size, (20, 6))
        grid = GridMatrix.rounded([matrix])
        assert grid.unit <= size * 2.0**-29
        assert np.abs(grid.matrix - matrix).max() <= grid.unit / 2
        assert np.abs(grid.factors[0]).max() <= 2**30, "fractions have 30 bits, however large"


def test_sparse_factors_are_those_written_out() -> None:
    dense = [np.array([[0.5, 0.0], [0.25, -1.0]]), np.array([[1.0, 1.0, 0.0]])]
    grid = GridMatrix.rounded([csr_array(each) for each in dense])
    matrix = grid.matrix
    assert isinstance(matrix, Kronecker)
    counts = np.arange(6)
    expected = np.kron(*dense) @ counts
    assert np.array_equal(grid.answers(counts) * grid.unit, expected)
    assert np.array_equal(matrix.matvec(counts), expected)


def test_at_most_thirty_factors() -> None:
    assert GridMatrix.rounded([np.ones((1, 1))] * 30).answers(np.array([7])).tolist() != [0]
    with pytest.raises(InvalidInput, match="at most 30 matrices"):
        GridMatrix.rounded([np.ones((1, 1))] * 31)


def test_two_columns_of_a_product_are_at_most_twice_one_apart() -> None:
    grid = GridMatrix.rounded([np.eye(2), np.eye(3)])
    assert grid.l1(True) * grid.unit == 2.0
    assert grid.l2_squared(True) * grid.unit**2 == 2.0


@pytest.mark.parametrize("seed", range(20))
def test_norms_of_a_factor_are_those_of_its_columns(seed: int) -> None:
    rng = np.random.default_rng([seed, 3])
    factor = rng.integers(-9, 10, rng.integers(1, 6, 2)) << rng.integers(0, 21)
    found, columns = FactorNorms.of(factor), factor.T.tolist()
    inner = [[sum(a * b for a, b in zip(u, v, strict=True)) for v in columns] for u in columns]
    apart = [[[a - b for a, b in zip(u, v, strict=True)] for v in columns] for u in columns]
    assert found.l1 == max(sum(map(abs, u)) for u in columns)
    assert found.l1_apart == max(sum(map(abs, d)) for row in apart for d in row)
    assert found.l2 == max(inner[i][i] for i in range(len(columns)))
    assert found.l2_apart == max(sum(a * a for a in d) for row in apart for d in row)
    assert (found.low, found.high) == (min(map(min, inner)), max(map(max, inner)))
    others = [x for i, row in enumerate(inner) for j, x in enumerate(row) if i != j]
    assert found.high_apart == max(others, default=inner[0][0])
