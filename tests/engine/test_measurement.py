"""What a Measurement accepts, stores and refuses."""

import dataclasses
import pickle
from contextlib import nullcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.linear.kronecker import Kronecker
from pgmkit.measurement import Measurement, check_scale, largest_entry
from pgmkit.queries import FactoredQuery, identity, prefix, total

DOMAIN = Domain({"age": 4, "sex": 2, "job": 3})
CLIQUE = ("age", "sex")


def test_arrays_are_copied_flattened_and_read_only() -> None:
    table, matrix = np.arange(8).reshape(4, 2), np.eye(8)
    plain, full = Measurement(list(CLIQUE), table, 2), Measurement(CLIQUE, range(8), 2, matrix)
    matrix[0, 0] = 9
    assert plain.clique == CLIQUE
    assert plain.stddev == 2.0
    np.testing.assert_array_equal(plain.values, np.arange(8.0))
    np.testing.assert_array_equal(full.matrix, np.eye(8))
    assert plain.values.dtype == np.float64
    table[:] = 0
    for array in (plain.values, full.matrix):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        plain.stddev = 1.0  # type: ignore[misc]
    plain.check(DOMAIN)
    full.check(DOMAIN)


def test_copies_keep_the_record() -> None:
    measurement = Measurement(CLIQUE, np.arange(8).reshape(4, 2), 2)
    for copy in (pickle.loads(pickle.dumps(measurement)), dataclasses.replace(measurement)):
        np.testing.assert_array_equal(copy.values, measurement.values)
        copy.check(DOMAIN)
    assert dataclasses.replace(measurement, stddev=3).stddev == 3.0


@pytest.mark.parametrize("values", [[100.0], 100.0, np.array(100)])
def test_the_empty_clique_measures_the_total(values: Any) -> None:
    measurement = Measurement((), values, 1.0)
    measurement.check(DOMAIN)
    assert measurement.values.shape == (1,)
    assert repr(measurement) == "Measurement((), 1 value, stddev=1.0)"


@pytest.mark.parametrize(
    "matrix",
    [
        Kronecker([prefix(4), total(2)]),
        [prefix(4), [1, 1]],
        (sp.csr_array(prefix(4)), total(2)),
        FactoredQuery({"sex": total(2), "age": prefix(4)}),
    ],
)
def test_factors_become_a_kronecker_in_the_clique_order(matrix: Any) -> None:
    for values in (np.ones(4), np.ones((4, 1))):
        measurement = Measurement(CLIQUE, values, 1.0, matrix)
        assert isinstance(measurement.matrix, Kronecker)
        np.testing.assert_array_equal(
            measurement.matrix.to_dense(), np.kron(prefix(4), np.ones((1, 2)))
        )
        measurement.check(DOMAIN)


@pytest.mark.parametrize("form", [np.asarray, sp.coo_matrix, sp.dok_array])
def test_matrices_dense_and_sparse(form: Any) -> None:
    measurement = Measurement(CLIQUE, [1, 2, 3], 1.0, form(np.ones((3, 8))))
    measurement.check(DOMAIN)
    np.testing.assert_array_equal(measurement.matrix @ np.ones(8), [8, 8, 8])  # type: ignore[operator]
    assert "3x8" in repr(measurement)


@pytest.mark.parametrize("stddev", [1, 0.5, np.float32(0.5), np.int64(3), Fraction(1, 3), 1e-300])
def test_any_positive_number_is_a_stddev(stddev: Any) -> None:
    assert Measurement(["sex"], [1, 2], stddev).stddev == float(stddev)


@pytest.mark.parametrize(
    "stddev", [0, -1.0, np.nan, np.inf, True, np.True_, "1", None, 1j, [1.0], 10**400]
)
def test_a_bad_stddev_is_refused(stddev: Any) -> None:
    with pytest.raises(InvalidInput, match=r"\('sex',\) has stddev .* above 0"):
        Measurement(["sex"], [1, 2], stddev)


@pytest.mark.parametrize(
    ("clique", "message"),
    [
        ("sex", r"string 'sex'.*write \('sex',\)"),
        (("sex", "sex"), "once"),
        ((1, "sex"), "strings"),
        ([3.0, 4.0], r"write Measurement\(clique, values, stddev\)"),
        (None, "sequence"),
    ],
)
def test_a_bad_clique_is_refused(clique: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Measurement(clique, [1, 2], 1.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "no values"),
        ([1, np.nan], "not finite .*nan"),
        ([np.inf, 1], "not finite .*inf"),
        ([1j, 2], "real numbers"),
        (["a", "b"], "real numbers"),
        (None, "got None"),
        ([True, False], "real numbers"),
        ([[1], [1, 2]], "must be an array"),
    ],
)
def test_bad_values_are_refused(values: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=rf"\('sex',\).*{message}"):
        Measurement(["sex"], values, 1.0)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.array([[1, np.nan]]), "matrix has 1 entries that are not finite"),
        (np.ones(2), "1 dimensions"),
        (np.ones((2, 2, 2)), "3 dimensions"),
        ("identity", "0 dimensions"),
        (np.ones((3, 2)), "needs 3"),
        (sp.eye(3), "needs 3"),
        ([identity(3)], "needs 3"),
        ([identity(2), identity(1)], "2 Kronecker factors, but needs 1"),
        ([[1, 0], [0, 1]], r"numpy.array\(rows\)"),
        ([np.array([[1, np.inf]])], "matrix factor 0 has"),
        (FactoredQuery({"age": identity(2)}), "exactly the clique's"),
        (FactoredQuery({}), "exactly the clique's"),
        (np.array([["a", "b"]]), "real numbers"),
    ],
)
def test_a_bad_matrix_is_refused(matrix: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=rf"\('sex',\).*{message}"):
        Measurement(["sex"], [1, 2], 1.0, matrix)


@pytest.mark.parametrize(
    ("measurement", "message"),
    [
        (Measurement(["height"], [1.0], 1.0), "unknown attribute 'height'"),
        (Measurement(["age"], [1.0], 1.0), "has 1 values .* needs 4"),
        (Measurement(["age"], 1.0, 1.0), "has 1 values .* needs 4"),
        (Measurement((), [1.0, 2.0], 1.0), "has 2 values .* needs 1"),
        (
            Measurement(CLIQUE, np.ones((2, 4)), 1.0),
            r"shape \(2, 4\)\), but needs 8 \(shape \(4, 2",
        ),
        (Measurement(CLIQUE, np.ones((8, 1)), 1.0), r"shape \(8, 1\)"),
        (Measurement(CLIQUE, [1.0], 1.0, np.ones((1, 4))), "4 columns, but the marginal has 8"),
        (Measurement(CLIQUE, [1.0], 1.0, sp.csr_array(np.ones((1, 9)))), "9 columns"),
        (Measurement(CLIQUE, np.ones(8), 1.0, [identity(2), identity(4)]), "2 columns for 'age'"),
    ],
)
def test_check_names_the_measurement_and_the_misfit(measurement: Measurement, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        measurement.check(DOMAIN)
    assert repr(measurement.clique) in str(caught.value)


def test_a_table_of_the_wrong_shape_for_a_matrix_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"shape \(1, 4\)"):
        Measurement(CLIQUE, np.ones((1, 4)), 1.0, [prefix(4), total(2)])


KINDS: dict[str, Any] = {
    "none": None,
    "dense": np.array([[1.0, -3.0, 0.5, 0.0, 2.0, 1.0], [0.0, 1.0, 1.0, -2.0, 0.0, 0.0]]),
    "sparse": sp.csr_array(np.array([[0.0, -3.0, 0.0, 0.0, 2.0, 1.0]])),
    "product": [np.array([[1.0, -2.0], [0.5, 0.0]]), np.array([[-1.0, 3.0, -4.0]])],
}


@pytest.mark.parametrize("kind", KINDS)
def test_answers_and_the_largest_entry_are_those_of_the_dense_matrix(kind: str) -> None:
    matrix = KINDS[kind]
    dense = np.eye(6) if matrix is None else np.kron(*matrix) if kind == "product" else matrix
    dense = dense.toarray() if kind == "sparse" else dense
    m = Measurement(("a", "b"), np.zeros(len(dense)), 1.0, matrix)
    cells = np.arange(6.0) ** 2
    np.testing.assert_allclose(m.applied(cells), dense @ cells)
    for sign in (1.0, -1.0):
        turned = [sign * matrix[0], matrix[1]] if kind == "product" else matrix
        turned = turned if kind in ("none", "product") else sign * matrix
        assert largest_entry(Measurement(("a", "b"), m.values, 1.0, turned)) == np.abs(dense).max()


def test_the_scales_that_float64_resolves() -> None:
    """Of values up to 6, answers up to 3, and totals beside the noise of one count."""
    ulp = 2.0**-53
    for stddev, resolved in (
        (6 * ulp, True),
        (6 * ulp * (1 - 1e-9), False),
        (3 / ulp, True),
        (3 / ulp * (1 + 1e-9), False),
    ):
        m = Measurement(("a",), [-6.0, 2.0], stddev, np.array([[0.5, -3.0], [1.0, 1.0]]))
        with nullcontext() if resolved else pytest.raises(InvalidInput, match="has stddev"):
            check_scale(m, m.values, 1.0)
    one = Measurement((), [1.0], 1.0)
    for records, good in ((ulp, True), (1 / ulp, True), (0.9 * ulp, False), (1.1 / ulp, False)):
        with nullcontext() if good else pytest.raises(InvalidInput, match="^total "):
            check_scale(one, one.values, records)


def test_one_value_may_stand_alone() -> None:
    Measurement(("a",), 5.0, 1.0, np.ones((1, 4))).check(Domain({"a": 4}))
    Measurement(("a",), 5.0, 1.0).check(Domain({"a": 1}))
    with pytest.raises(InvalidInput, match="has 1 values .* needs 2"):
        Measurement(("a",), 5.0, 1.0).check(Domain({"a": 2}))


def test_a_measurement_is_named_by_its_clique() -> None:
    with pytest.raises(InvalidInput, match=r"^measurement of \('a',\)"):
        Measurement(("a",), [5.0], -1.0)
    with pytest.raises(InvalidInput, match=r"^measurement of \('x',\) names an unknown"):
        Measurement(("x",), [5.0], 1.0).check(Domain({"a": 1}))
    assert "matrix=sparse 1x6" in repr(Measurement(("a",), [5.0], 1.0, KINDS["sparse"]))
    assert "matrix=dense 2x6" in repr(Measurement(("a",), [5.0, 1.0], 1.0, KINDS["dense"]))
