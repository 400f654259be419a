"""Kronecker and as_matrix against numpy.kron on the written-out matrix."""

import functools
import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from pgmkit.errors import InvalidInput
from pgmkit.linear.kronecker import Kronecker
from pgmkit.linear.matrix import as_matrix


@st.composite
def factor_lists(draw: st.DrawFn) -> list[np.ndarray]:
    shapes = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    # Small integers: every product is exact, so the comparison can be too.
    return [rng.integers(-5, 6, size=shape).astype(float) for shape in shapes]


def explicit(factors: list[np.ndarray]) -> np.ndarray:
    return functools.reduce(np.kron, factors, np.ones((1, 1)))


@given(factors=factor_lists(), sparse=st.lists(st.booleans(), min_size=4, max_size=4))
def test_products_match_the_written_out_matrix(
    factors: list[np.ndarray], sparse: list[bool]
) -> None:
    given_factors = [sp.coo_matrix(f) if s else f for f, s in zip(factors, sparse, strict=False)]
    product, matrix = Kronecker(given_factors), explicit(factors)
    x = np.arange(1.0, matrix.shape[1] + 1)
    assert product.shape == matrix.shape
    np.testing.assert_array_equal(product.matvec(x), matrix @ x)
    np.testing.assert_array_equal(product.to_dense(), matrix)


def test_a_vector_is_one_row() -> None:
    product = Kronecker([[1, -1], np.eye(3)])
    assert product.shape == (3, 6)
    assert product.row_shape == (1, 3)
    assert product.column_shape == (2, 3)
    np.testing.assert_array_equal(product.matvec([5, 6, 7, 1, 1, 1]), [4, 5, 6])
    assert repr(product) == "Kronecker(1x2 (x) 3x3)"


def test_a_product_too_large_to_write_out_is_multiplied() -> None:
    product = Kronecker([np.ones((1, 100))] * 3 + [sp.eye(10)])  # dense: 10 x 1e7
    np.testing.assert_array_equal(product.matvec(np.ones(10**7)), np.full(10, 1e6))
    assert Kronecker([np.ones((1, 1000))] * 10).shape == (1, 10**30)


def test_the_result_and_the_factors_are_not_tied_to_the_input() -> None:
    x, factor = np.ones(3), np.eye(3)
    product = Kronecker([factor])
    factor[0, 0] = 7
    Kronecker([]).matvec([1.0])[0] = 2
    product.matvec(x)[:] = 9
    np.testing.assert_array_equal(x, np.ones(3))
    np.testing.assert_array_equal(product.to_dense(), np.eye(3))
    assert not product.factors[0].flags.writeable
    copy = pickle.loads(pickle.dumps(product))
    np.testing.assert_array_equal(copy.matvec(x), x)


def test_sparse_factors_are_read_only_and_still_multiply() -> None:
    matrix: Any = as_matrix(sp.coo_array(([1.0, 2.0], ([0, 0], [1, 1])), shape=(2, 3)), "m")
    np.testing.assert_array_equal(matrix.toarray(), [[0, 3, 0], [0, 0, 0]])
    with pytest.raises(ValueError, match="read-only"):
        matrix.data[0] = 1.0
    np.testing.assert_array_equal(matrix.T @ np.ones((2, 2)), [[0, 0], [3, 3], [0, 0]])


@pytest.mark.parametrize("x", [np.ones(5), np.ones((2, 3)), 1.0, [1.0]])
def test_a_wrong_length_is_refused(x: object) -> None:
    product = Kronecker([np.eye(2), np.eye(3)])
    with pytest.raises(InvalidInput, match="length 6"):
        product.matvec(x)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        ([[1, np.nan]], "not finite"),
        (sp.csr_array([[1, np.inf]]), "not finite"),
        (np.ones((2, 2, 2)), "3 dimensions"),
        (3.0, "0 dimensions"),
        (np.ones((0, 2)), "empty"),
        ([[1, 2], [3]], "must be an array of numbers"),
        ("identity", "real numbers"),
        ([[1j, 0]], "real numbers"),
        (None, "must be an array of numbers"),
    ],
)
def test_a_bad_factor_is_refused(factor: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=rf"Kronecker factor 1 .*{message}"):
        Kronecker([np.eye(2), factor])
