"""Error bars against closed forms, dense least squares on the joint, and Monte Carlo."""

import itertools
import pickle
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from brute_force import design
from chance import assert_mean_between, assert_stddev
from numpy.typing import NDArray
from scipy.stats import gamma, norm, t

from pgmkit import (
    Domain,
    FactoredQuery,
    InvalidInput,
    Measurement,
    TooSlow,
    Zeros,
    estimate,
    estimate_many,
)
from pgmkit.least_squares.linear_estimate import LinearEstimate, _generalised_inverse
from pgmkit.model import GraphicalModel
from pgmkit.queries import point, prefix, total
from pgmkit.runtime.chances import SIGNIFICANT
from pgmkit.runtime.progress import Replication
from pgmkit.runtime.sizes import DENSE_ROWS
from pgmkit.uncertainty import error_bars
from pgmkit.uncertainty.interval import nonnegative_interval
from pgmkit.uncertainty.measured import MeasuredBars

DOMAIN = Domain({"a": 2, "b": 3, "c": 2, "d": 4})
CHAIN = [("a", "b"), ("c", "b"), ("c", "d")]
Z = norm.ppf(0.975)


def measured(
    joint: NDArray, cliques: list[tuple[str, ...]], rng: np.random.Generator, stddev: float
) -> list[Measurement]:
    tables = [design(DOMAIN, clique) @ joint for clique in cliques]
    return [
        Measurement(clique, table + rng.normal(0, stddev, len(table)), stddev)
        for clique, table in zip(cliques, tables, strict=True)
    ]


def dense_joint(rng: np.random.Generator, rows: float = 10_000) -> NDArray:
    return rng.dirichlet(np.full(DOMAIN.size(), 20.0)) * rows


def fitted(
    joint: NDArray, cliques: list[tuple[str, ...]], seed: int, stddev: float, **options: float
) -> tuple[GraphicalModel, list[Measurement], np.random.Generator]:
    rng = np.random.default_rng(seed)
    y = measured(joint, cliques, rng, stddev)
    return estimate(DOMAIN, y, **options), y, rng


def test_noise_whose_square_is_no_float_has_no_closed_form() -> None:
    """As the noise of a residual in a file that somebody changed."""
    centred = np.eye(2) - 0.5
    for stddev in (1e-200, 1e200):
        y = [Measurement(("sex",), [3.0, -3.0], stddev, [centred]), Measurement((), [9.0], 1.0)]
        domain = Domain({"sex": 2})
        linear = LinearEstimate(domain, y, None)
        assert linear.answer(FactoredQuery.marginal(domain, ("sex",))) is None


def test_a_total_measured_by_a_product_of_no_matrices_is_a_total() -> None:
    domain, zeros = Domain({"sex": 2}), [Zeros(("sex",), [True, False])]
    y = [Measurement((), [9.0], 1.0, []), Measurement(("sex",), [8.0, 0.0], 1.0)]
    found = LinearEstimate(domain, y, None, zeros).answer(FactoredQuery({}))
    # The total is 9 and, as the only possible code's count, 8; its noise is that of their mean.
    assert found is not None
    assert found.values == pytest.approx([8.5])
    assert found.stddev == pytest.approx([0.5**0.5])


@pytest.mark.parametrize("zeros", [[], [Zeros(("a",), [True, True])]])
@pytest.mark.parametrize("stddev", [1e-4, 1e6])
def test_a_table_of_a_known_total_by_residuals_and_by_least_squares(
    zeros: list[Zeros], stddev: float
) -> None:
    """Its two cells are off by the same, and their sum, also written as a running one, by none."""
    y = [Measurement(("a",), [5.0, 3.0], stddev)]
    linear = LinearEstimate(Domain({"a": 2}), y, 8.0, zeros)
    for rows, run in ((np.eye(2), 2), (np.tri(2), 1)):
        found = linear.answer(FactoredQuery({"a": rows}), run)
        assert found is not None
        np.testing.assert_allclose(found.values, [5, 8])
        np.testing.assert_allclose(found.stddev / stddev, [0.5**0.5, 0], atol=1e-9)
    stored = scipy.sparse.csr_array(([1.0, 0.0], ([0, 0], [0, 1])), (1, 2))
    for row, nonnegative in (([1, 0], True), (stored, True), ([0.5, 0.5], True), ([1, -1], False)):
        found = linear.answer(FactoredQuery({"a": row}))
        assert found is not None and found.nonnegative is nonnegative


def test_a_query_in_large_units_has_a_closed_form() -> None:
    """Of all codes of `a` but the first, which are not counted, the total tells the sum."""
    y = [Measurement(("a",), [5.0], 1.0, np.eye(9)[:1])]
    row = 1e7 * (np.arange(9) > 0)
    found = LinearEstimate(Domain({"a": 9}), y, 8.0).answer(FactoredQuery({"a": row}))
    assert found is not None
    np.testing.assert_allclose([*found.values, *found.stddev], [3e7, 1e7])


CONTRAST = scipy.sparse.csr_array([[1.0, -1.0]])


@pytest.mark.parametrize(
    "beside", [[], [Measurement(("b",), [3.0, 4.0], 1.0, [np.eye(4)[:2]])], [Zeros(("a",), [1, 1])]]
)
def test_residuals_of_sparse_rows_determine_a_table_beside_what_determines_nothing(
    beside: list[Any],
) -> None:
    """Products of too few rows, and zeros."""
    y = [Measurement(("a",), [2.0], 1.0, [CONTRAST]), Measurement((), [8.0], 1.0)]
    y += [each for each in beside if isinstance(each, Measurement)]
    zeros = [each for each in beside if isinstance(each, Zeros)]
    domain = Domain({"a": 2, "b": 4})
    found = LinearEstimate(domain, y, None, zeros).answer(FactoredQuery.marginal(domain, ["a"]))
    assert found is not None
    np.testing.assert_allclose([*found.values, *found.stddev], [5, 3, 0.5**0.5, 0.5**0.5])


@pytest.mark.parametrize(
    ("sizes", "matrix", "sought"),
    [
        ([2] * 11, None, True),
        ([2] * 12, None, False),  # 4,096 residuals
        ([DENSE_ROWS], None, True),
        ([DENSE_ROWS + 1], None, False),
        ([3], np.eye(3)[:2], True),
        ([3], np.eye(3)[:1], False),
        ([DENSE_ROWS], scipy.sparse.eye_array(DENSE_ROWS), True),
        ([DENSE_ROWS + 1], scipy.sparse.eye_array(DENSE_ROWS + 1), False),
    ],
)
def test_residuals_are_sought_where_they_are_few(
    sizes: list[int], matrix: Any, sought: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refused(*arguments: Any) -> None:
        asked.append(arguments)
        raise InvalidInput("none")

    monkeypatch.setattr("pgmkit.least_squares.linear_estimate.ResidualTables", refused)
    domain = Domain({f"x{i}": size for i, size in enumerate(sizes)})
    values = np.ones(domain.size() if matrix is None else matrix.shape[0])
    LinearEstimate(domain, [Measurement(tuple(domain), values, 1.0, matrix)], None)
    assert bool(asked) == sought


@pytest.mark.parametrize(
    "matrix",
    [
        np.zeros((2, 3)),
        1e6 * np.array([[1.0, 1, 0], [0, 1, 1], [1, 2, 1]]),
        np.array([[1.0, 1, 0], [2, -2, 0], [0, 0, 1e6]]),
    ],
)
def test_rows_that_are_dependent_but_for_rounding_determine_no_table(matrix: NDArray) -> None:
    y = [Measurement(("a",), np.ones(len(matrix)), 1.0, matrix)]
    query = FactoredQuery({"a": np.eye(3)})
    assert LinearEstimate(Domain({"a": 3}), y, None).answer(query) is None


def test_sparse_rows_of_many_cells_are_least_squares() -> None:
    """Pairs of neighbours in a circle of 31 codes, and a stored zero of the code that is left."""
    matrix = (np.eye(32) + np.eye(32, k=1))[:31]
    matrix[30] = np.eye(32)[30] + np.eye(32)[0]
    values = np.random.default_rng(0).normal(9, 1, 31)
    rows = scipy.sparse.coo_array(matrix)
    entries, (i, j) = np.append(rows.data, 0.0), rows.coords
    stored = scipy.sparse.csr_array((entries, (np.append(i, 0), np.append(j, 31))), (31, 32))
    y = [Measurement(("a",), values, 2.0, stored)]
    found = LinearEstimate(Domain({"a": 32}), y, None).answer(FactoredQuery({"a": np.eye(32)[:31]}))
    inverse = np.linalg.inv(matrix[:, :31])
    assert found is not None
    np.testing.assert_allclose(found.values, inverse @ values)
    np.testing.assert_allclose(found.stddev, 2 * np.linalg.norm(inverse, axis=1))


@pytest.mark.parametrize("units", [np.full(4, 1e-9), np.array([1e-12, 1e-6, 1e6, 1e12])])
def test_a_generalised_inverse_is_one_in_any_units(units: NDArray) -> None:
    root = np.array([[1.0, 2], [2, 4], [0, 1], [1, 3]])
    matrix = (root @ root.T) * np.outer(units, units)
    matrix = np.pad(matrix, ((0, 1), (0, 1)))
    with np.errstate(all="raise"):
        inverse, rank = _generalised_inverse(matrix)
    scale = np.outer(np.append(units, 1.0), np.append(units, 1.0))
    assert rank == 2 == np.count_nonzero(inverse.any(axis=0))
    np.testing.assert_allclose(matrix @ inverse @ matrix / scale, matrix / scale, atol=1e-9)


def test_tables_agree_where_a_cell_that_nobody_counts_is_in_each_constraint() -> None:
    """Two whole tables agree with each other, though the third lacks a cell."""
    domain, rng = Domain(dict.fromkeys("abcd", 2)), np.random.default_rng(0)
    y = [Measurement(("a", "b"), rng.normal(9, 1, 3), 1.0, np.eye(4)[:3])]
    y += [Measurement((name, "b"), rng.normal(9, 1, 4), 1.0) for name in "cd"]
    rows = np.vstack([_matrix(m) @ design(domain, m.clique) for m in y])
    values = np.concatenate([m.values for m in y])
    left = values - rows @ np.linalg.pinv(rows) @ values
    linear = LinearEstimate(domain, y, None)
    assert linear.degrees == len(values) - np.linalg.matrix_rank(rows)
    assert linear.statistic == pytest.approx(left @ left)


@pytest.mark.parametrize("degrees", [1, 10, 100])
def test_error_bars_are_widened_beyond_a_quantile_of_the_gamma_distribution(degrees: int) -> None:
    limit = gamma.isf(SIGNIFICANT, degrees / 5, scale=5)
    for statistic, wider in ((0.999 * limit, False), (1.001 * limit, True)):
        values = np.full((2, degrees), 100.0)
        values[0, 0] += (2 * statistic) ** 0.5
        y = [Measurement(("a",), each, 1.0) for each in values]
        linear = LinearEstimate(Domain({"a": degrees}), y, None)
        assert (linear.statistic, linear.degrees) == (pytest.approx(statistic), degrees)
        assert linear.scale == pytest.approx((statistic / degrees) ** 0.5 if wider else 1.0)


class TestClosedForm:
    def test_one_measurement_has_its_own_noise(self) -> None:
        y = [Measurement(("a", "b"), np.arange(500.0, 506.0), 7.0)]
        bars = error_bars(estimate(DOMAIN, y), y, replicates=20, seed=0)
        cells = bars.marginal(["b", "a"])
        assert cells.method == "closed form"
        np.testing.assert_allclose(cells.stddev, 7.0)
        np.testing.assert_allclose(cells.high - cells.estimate, Z * 7.0, rtol=1e-6)
        np.testing.assert_allclose(cells.estimate - cells.low, Z * 7.0, rtol=1e-6)
        np.testing.assert_allclose(bars.marginal(["a"]).stddev, 7 * np.sqrt(3))
        np.testing.assert_allclose(bars.marginal([]).stddev, 7 * np.sqrt(6))

    def test_a_known_total_takes_its_share_off(self) -> None:
        y = [Measurement(("a", "b"), np.arange(500.0, 506.0), 7.0)]
        bars = error_bars(estimate(DOMAIN, y, total=3000), y, replicates=20, seed=0)
        np.testing.assert_allclose(bars.marginal(["a", "b"]).stddev, 7 * np.sqrt(5 / 6))
        whole = bars.marginal([])
        assert whole.stddev == 0 and whole.low == whole.high == pytest.approx(3000)

    def test_two_measurements_of_one_clique_combine_by_inverse_variance(self) -> None:
        values = np.arange(500.0, 506.0).reshape(2, 3)
        y = [Measurement(("a", "b"), values, 3.0), Measurement(("b", "a"), values.T, 4.0)]
        bars = error_bars(estimate(DOMAIN, y), y, replicates=20, seed=0)
        np.testing.assert_allclose(bars.marginal(["a", "b"]).stddev, 3 * 4 / 5)

    def test_a_query_with_negative_entries_is_two_sided(self) -> None:
        y = [Measurement(("a",), [5.0, 6.0], 2.0)]
        bars = error_bars(estimate(DOMAIN, y), y, replicates=20, seed=0)
        found = bars.answer(FactoredQuery({"a": [1.0, -1.0]}), level=0.5)
        np.testing.assert_allclose(found.stddev, 2 * np.sqrt(2))
        np.testing.assert_allclose(found.high - found.low, 4 * np.sqrt(2) * norm.ppf(0.75))

    def test_a_column_of_one_value_is_in_every_table(self) -> None:
        domain = Domain({"a": 2, "one": 1, "b": 3})
        y = [Measurement(("a", "b"), np.arange(500.0, 506.0), 7.0)]
        bars = error_bars(estimate(domain, y), y, replicates=20, seed=0)
        alone = bars.marginal(["one"])
        assert alone.method == "closed form"
        np.testing.assert_allclose(alone.stddev, [7 * np.sqrt(6)])
        beside = bars.marginal(["b", "one", "a"])
        assert beside.method == "closed form" and beside.stddev.shape == (3, 1, 2)
        np.testing.assert_allclose(beside.estimate[:, 0], bars.marginal(["b", "a"]).estimate)

    def test_structural_zeros_have_no_error(self) -> None:
        allowed = np.ones((2, 3), dtype=bool)
        allowed[0, 1] = False
        y = [Measurement(("a", "b"), [500.0, 3.0, 502.0, 503.0, 504.0, 505.0], 7.0)]
        model = estimate(DOMAIN, y, zeros=[Zeros(("a", "b"), allowed)])
        bars = error_bars(model, y, replicates=20, seed=0)
        cells = bars.marginal(["a", "b"])
        assert cells.low[0, 1] == cells.high[0, 1] == cells.stddev[0, 1] == 0
        np.testing.assert_allclose(cells.stddev[allowed], 7.0)
        assert all(r.marginal(["a", "b"])[0, 1] == 0 for r in bars.replicates)

    @pytest.mark.parametrize("beside", ["nothing", "zeros", "matrices"])
    @pytest.mark.parametrize("known", [None, 900.0])
    @pytest.mark.parametrize(
        "cliques",
        [
            CHAIN,
            [("a", "b"), ("b", "c"), ("c", "a"), ("d",)],
            [("a", "b", "c"), ("b", "c"), ("c", "d"), ("c",), ("b", "c")],
            [(), ("a", "b"), ("c", "d")],
        ],
    )
    def test_against_least_squares_on_the_joint(
        self, cliques: list[tuple[str, ...]], known: float | None, beside: str
    ) -> None:
        """Whole tables are split into residuals unless there are zeros (here none) or matrices."""
        rng = np.random.default_rng(3)
        y = [
            Measurement(c, rng.normal(100, 30, DOMAIN.size(c)), 2.0 + i)
            for i, c in enumerate(cliques)
        ]
        if beside == "matrices":
            y.append(Measurement(("d",), rng.normal(200, 30, 4), 1.5, prefix(4)))
            y.append(Measurement(("c", "d"), rng.normal(200, 30, 8), 2.5, [np.eye(2), prefix(4)]))
        zeros = [Zeros(("a",), np.ones(2, dtype=bool))] if beside == "zeros" else []
        rows = np.vstack([_matrix(m) @ design(DOMAIN, m.clique) / m.stddev for m in y])
        values = np.concatenate([m.values / m.stddev for m in y])
        if known is not None:
            rows = np.vstack([rows, 1e5 * np.ones(rows.shape[1])])
            values = np.append(values, 1e5 * known)
        inverse = np.linalg.pinv(rows)
        # The tables contradict each other, so that what is left of them widens the bars.
        left = values - rows @ inverse @ values
        widened = np.sqrt(left @ left / (len(values) - np.linalg.matrix_rank(rows)))
        linear = LinearEstimate(DOMAIN, y, known, zeros)
        for query in [
            FactoredQuery.marginal(DOMAIN, ("b", "a")),
            FactoredQuery({"d": prefix(4), "c": total(2)}),
            FactoredQuery({"c": [1.0, -2.0]}),
        ]:
            answer = linear.answer(query)
            if answer is None:
                assert not any(set(query.attributes) <= set(c) for c in cliques)
                continue
            view = _view(query) @ inverse
            np.testing.assert_allclose(answer.values, view @ values, atol=1e-4)
            stddev = widened * np.linalg.norm(view, axis=1)
            np.testing.assert_allclose(answer.stddev, stddev, rtol=1e-5, atol=1e-4 * widened)

    def test_a_whole_table_may_have_attributes_of_a_single_code(self) -> None:
        domain = Domain({"a": 2, "one": 1})
        y = [Measurement(("one", "a"), [5.0, 3.0], 2.0), Measurement(("one",), [10.0], 1.0)]
        linear = LinearEstimate(domain, y, None)
        answer = linear.answer(FactoredQuery.marginal(domain, ("one", "a")))
        # The sum of the table, 8 with variance 8, is averaged with 10, of variance 1.
        assert (linear.statistic, linear.degrees) == (pytest.approx(4 / 9), 1)
        assert answer is not None
        np.testing.assert_allclose(answer.values, np.array([5.0, 3.0]) + 2 * 8 / 9 / 2)
        np.testing.assert_allclose(answer.stddev, np.sqrt(4 / 2 + 8 / 9 / 4))

    def test_a_large_table_may_lack_cells(self) -> None:
        """The missing cell is the total without all others, whatever their number."""
        codes = 2 * DENSE_ROWS
        domain, values = Domain({"a": codes}), np.arange(codes - 1.0)
        kept = scipy.sparse.eye_array(codes, format="csr")[1:]
        y = [Measurement(("a",), values, 2.0, kept)]
        linear = LinearEstimate(domain, y, values.sum() + 100)
        for cell, value, variance in ((0, 100.0, 4.0 * (codes - 1)), (3, 2.0, 4.0)):
            answer = linear.answer(FactoredQuery({"a": point(codes, cell)}))
            assert answer is not None
            np.testing.assert_allclose([*answer.values, *answer.stddev**2], [value, variance])

    @pytest.mark.parametrize("entry", [1e-200, 1e200])
    def test_entries_whose_squares_float64_does_not_hold_determine_nothing(
        self, entry: float
    ) -> None:
        for matrix in (entry * np.eye(2), entry * np.tri(2)):
            y = [Measurement(("a",), [3.0, 4.0], 1.0, matrix)]
            query = FactoredQuery.marginal(DOMAIN, ["a"])
            assert LinearEstimate(DOMAIN, y, None).answer(query) is None

    def test_undetermined_tables_go_to_the_bootstrap(self) -> None:
        y = [
            Measurement(("a",), [500.0, 510.0], 3.0),
            Measurement(("a", "b"), [300.0, 90.0], 3.0, np.eye(6)[:2]),
        ]
        bars = error_bars(estimate(DOMAIN, y, total=1000), y, replicates=20, seed=0)
        assert bars.marginal(["a"]).method == "closed form"
        assert bars.marginal(["a", "b"]).method == "bootstrap"

    @pytest.mark.parametrize("known", [None, 10_000.0])
    def test_missing_cells_against_least_squares_on_the_joint(self, known: float | None) -> None:
        """Queries have a closed form exactly if least squares on the joint determines them."""
        rng = np.random.default_rng(5)
        ab = FactoredQuery.marginal(DOMAIN, ("a", "b"))
        queries = [
            *(FactoredQuery({name: np.eye(DOMAIN.sizes[name])}) for name in DOMAIN.attributes),
            *(FactoredQuery({"a": [each], "b": np.eye(3)}) for each in np.eye(2)),
            *(FactoredQuery({"a": [each], "b": [0.0, 2.0, -1.0]}) for each in np.eye(2)),
            FactoredQuery({"c": np.eye(2), "b": np.eye(3)}),
            ab,
        ]
        answered = set[int]()
        for missing in ((4,), (0, 5), (0, 4, 5), (1, 2, 4, 5), (0, 3)):
            for others in ([("b", "c")], [("b", "c"), ("a", "c")], [("a",)], [("c", "d")], []):
                y = [Measurement(c, rng.normal(100, 30, DOMAIN.size(c)), 2.0) for c in others]
                kept = np.delete(np.eye(6), missing, axis=0)
                y.append(Measurement(("a", "b"), rng.normal(100, 30, len(kept)), 3.0, kept))
                rows = np.vstack([_matrix(m) @ design(DOMAIN, m.clique) / m.stddev for m in y])
                values = np.concatenate([m.values / m.stddev for m in y])
                if known is not None:
                    rows = np.vstack([rows, 1e5 * np.ones(rows.shape[1])])
                    values = np.append(values, 1e5 * known)
                inverse, linear = np.linalg.pinv(rows), LinearEstimate(DOMAIN, y, known)
                assert linear.degrees == len(values) - np.linalg.matrix_rank(rows)
                measured = [set(m.clique) for m in y]
                for query in queries:
                    view, answer = _view(query) @ inverse, linear.answer(query)
                    determined = np.allclose(view @ rows, _view(query), atol=1e-6)
                    inside = any(set(query.attributes) <= clique for clique in measured)
                    assert (answer is not None) == (determined and inside)
                    if answer is not None:
                        answered.add(len(answer.values))
                        np.testing.assert_allclose(answer.values, view @ values, atol=1e-4)
                        stddev = linear.scale * np.linalg.norm(view, axis=1)
                        np.testing.assert_allclose(answer.stddev, stddev, rtol=1e-5, atol=1e-3)
        assert answered == {1, 2, 3, 4, 6}


def _matrix(m: Measurement) -> NDArray:
    if m.matrix is None:
        return np.eye(len(m.values))
    return m.matrix.to_dense() if hasattr(m.matrix, "to_dense") else np.asarray(m.matrix)


def _view(query: FactoredQuery) -> NDArray:
    product = np.ones((1, 1))
    for factor in query.factors.values():
        product = np.kron(product, np.asarray(factor))
    return product @ design(DOMAIN, query.attributes)


class TestBoundedIntervals:
    @pytest.mark.parametrize(
        "level, value, low, high",
        [  # Feldman and Cousins (1998), table X
            (0.95, -3.0, 0.0, 0.42),
            (0.95, -1.0, 0.0, 1.10),
            (0.95, 0.0, 0.0, 1.96),
            (0.95, 2.0, 0.35, 3.96),
            (0.95, 3.0, 1.14, 4.96),
            (0.90, -2.0, 0.0, 0.40),
            (0.90, 1.0, 0.0, 2.64),
            (0.90, 2.0, 0.58, 3.64),
        ],
    )
    def test_the_published_table(self, level: float, value: float, low: float, high: float) -> None:
        found = nonnegative_interval(np.array([value]), np.ones(1), level)
        np.testing.assert_allclose(np.concatenate(found), [low, high], atol=0.006)

    @pytest.mark.parametrize("level", [0.68, 0.8, 0.95, 0.999])
    @pytest.mark.parametrize("mean", [0.0, 0.1, 1.0, 2.5, 20.0])
    def test_exact_coverage(self, level: float, mean: float) -> None:
        quantiles = (np.arange(100_000) + 0.5) / 100_000
        values = 3.0 * (mean + norm.ppf(quantiles))
        low, high = nonnegative_interval(values, np.full(len(values), 3.0), level)
        inside = (low <= 3.0 * mean) & (3.0 * mean <= high)
        assert inside.mean() == pytest.approx(level, abs=2e-4)

    def test_no_noise_leaves_a_point(self) -> None:
        low, high = nonnegative_interval(np.array([4.0, 0.0]), np.zeros(2), 0.95)
        np.testing.assert_array_equal([low, high], [[4.0, 0.0], [4.0, 0.0]])

    def test_the_values_that_were_given_stay(self) -> None:
        values, stddev = np.array([8.0, 8.0, -3.0]), np.array([2.0, 0.0, 1.0])
        nonnegative_interval(values, stddev, 0.95)
        assert values.tolist() == [8.0, 8.0, -3.0] and stddev.tolist() == [2.0, 0.0, 1.0]


class TestBootstrap:
    def test_against_monte_carlo_on_the_joint(self) -> None:
        """Unmeasured pairs of a chain: product of dense least-squares tables, drawn anew."""
        rng = np.random.default_rng(0)
        joint = dense_joint(rng)
        model, y, _ = fitted(joint, CHAIN, 1, 10.0, total=10_000)
        bars = error_bars(model, y, replicates=400, seed=2)
        expected = np.concatenate([model.marginal(m.clique).ravel() for m in y])
        rows = np.vstack([design(DOMAIN, c) / 10 for c in CHAIN] + [np.full((1, 48), 1e4)])
        inverse = np.linalg.pinv(rows)
        noisy = np.full((20_000, len(rows)), 1e4 * 10_000)
        noisy[:, :-1] = expected / 10 + rng.normal(size=(20_000, len(expected)))
        x = noisy @ inverse.T
        ab, cb, cd = ((x @ design(DOMAIN, c).T).reshape(-1, *DOMAIN.shape(c)) for c in CHAIN)
        b, c = cb.sum(1, keepdims=True), cb.sum(2, keepdims=True)
        drawn = np.einsum("nab,ncb,ncd->nad", ab / b, cb / c, cd)
        found = bars.marginal(["a", "d"])
        assert found.method == "bootstrap"
        assert_stddev(found.stddev, np.std(drawn, axis=0), 400)

    def test_a_statistic_of_the_same_query_agrees(self) -> None:
        model, y, _ = fitted(dense_joint(np.random.default_rng(0)), CHAIN, 1, 10.0, total=10_000)
        bars = error_bars(model, y, replicates=20, seed=2)
        one, other = bars.marginal(["a", "d"]), bars.statistic(lambda m: m.marginal(["a", "d"]))
        np.testing.assert_allclose(one.stddev, other.stddev)
        ratio = bars.statistic(lambda m: m.given({"a": 0}).total / m.total)
        assert ratio.estimate.shape == () and 0 < ratio.stddev < 0.01

    @pytest.mark.parametrize("level", [0.5, 0.95])
    def test_ends_are_quantiles_of_student_and_only_counts_end_at_zero(self, level: float) -> None:
        y = [Measurement((n,), np.array([2.0, 998.0]), 10.0) for n in ("a", "c")]
        bars = error_bars(estimate(DOMAIN, y, total=1000), y, replicates=20, seed=0)
        counts = FactoredQuery.marginal(DOMAIN, ["a", "c"])
        differences = FactoredQuery({"a": [1.0, -1.0], "c": [1.0, 0.0]})
        weighted = FactoredQuery({"a": [0.5, 0.0], "c": [2.0, 0.0]})
        for query, least in ((counts, 0.0), (weighted, 0.0), (differences, -np.inf)):
            found = bars.answer(query, level=level)
            drawn = np.stack([each.answer(query) for each in bars.replicates])
            spread = np.sqrt(np.square(drawn - found.estimate).mean(axis=0))
            np.testing.assert_allclose(found.stddev, spread, rtol=1e-9)
            reach = t.ppf((1 + level) / 2, df=20) * spread
            np.testing.assert_allclose(found.high, found.estimate + reach)
            np.testing.assert_allclose(found.low, np.maximum(found.estimate - reach, least))
        assert (
            bars.answer(counts).low.min()
            == 0
            > bars.statistic(lambda m: m.answer(counts)).low[0, 0]
        )

    def test_an_implied_total_below_one_counts_as_one(self) -> None:
        y = [Measurement(("a",), [0.4, 0.2], 1.0)]
        bars = error_bars(estimate(Domain({"a": 2, "b": 2}), y), y, replicates=20, seed=7)
        rng, sides = np.random.default_rng(7), bars.model.marginal(["a"])
        totals = [max(1.0, (sides + rng.normal(0.0, 1.0, 2)).sum()) for _ in range(20)]
        assert totals.count(1.0) > 1 and 1 < sorted(totals)[-3] < 2 < max(totals)
        np.testing.assert_allclose([each.total for each in bars.replicates], totals)

    @pytest.mark.parametrize("values", [[-50.0, 20.0], [0.25, 0.5]])
    def test_a_total_of_one_in_place_of_less_is_not_known(self, values: list[float]) -> None:
        y = [Measurement(("a",), values, 100.0)]
        bars = error_bars(estimate(Domain({"a": 2, "b": 2}), y, total=1), y, replicates=20, seed=7)
        np.testing.assert_allclose(bars.marginal(["a"]).stddev, 100)
        np.testing.assert_allclose(bars.marginal([]).stddev, 100 * 2**0.5)
        assert len({each.total for each in bars.replicates}) > 1

    def test_an_implied_total_is_drawn_too(self) -> None:
        joint = dense_joint(np.random.default_rng(0))
        model, y, _ = fitted(joint, CHAIN, 1, 10.0)
        totals = [r.total for r in error_bars(model, y, replicates=200, seed=2).replicates]
        precision = sum(1 / (100 * DOMAIN.size(c)) for c in CHAIN)
        assert_stddev(np.std(totals), precision**-0.5, 200)
        model, y, _ = fitted(joint, CHAIN, 1, 10.0, total=10_000)
        bars = error_bars(model, y, replicates=20, seed=2)
        assert {r.total for r in bars.replicates} == {10_000}


class Heard(list[Any]):
    """The records that a progress callback got."""

    def __call__(self, record: Any) -> None:
        self.append(record)


class Clock:
    """A clock that goes on by a second for each replicate."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now


class TestRunning:
    @pytest.fixture
    def problem(self) -> tuple[GraphicalModel, list[Measurement]]:
        return fitted(dense_joint(np.random.default_rng(0)), CHAIN, 1, 10.0)[:2]

    def test_a_seed_repeats_it(self, problem: tuple[GraphicalModel, list[Measurement]]) -> None:
        one, same, other = (error_bars(*problem, replicates=20, seed=s) for s in (5, 5, 6))
        ad = [bars.marginal(["a", "d"]).stddev for bars in (one, same, other)]
        np.testing.assert_array_equal(ad[0], ad[1])
        assert (ad[0] != ad[2]).any()

    def test_only_the_number_of_records_was_measured(self) -> None:
        """Half of a count with standard deviation 2 has standard deviation 1."""
        domain = Domain({"a": 2, "b": 3})
        y = [Measurement((), [500.0], 2.0)]
        bars = error_bars(estimate(domain, y), y, replicates=200, seed=0)
        assert bars.marginal(()).stddev == pytest.approx(2.0)
        half = bars.marginal(["a"])
        assert_stddev(half.stddev, [1.0, 1.0], 200)
        np.testing.assert_allclose(half.estimate, [250.0, 250.0])
        for measurements in ([], y):  # a total that was given has no error
            known = error_bars(estimate(domain, measurements, total=600), measurements)
            interval = known.marginal(["b"])
            np.testing.assert_allclose([interval.low, interval.high], np.full((2, 3), 200.0))

    def test_progress(self, problem: tuple[GraphicalModel, list[Measurement]]) -> None:
        seen = Heard()  # false as long as it is empty
        bars = error_bars(*problem, replicates=21, seed=0, progress=seen)
        bars.marginal(["a", "b"])
        assert not seen  # closed form: nothing was re-estimated
        bars.marginal(["a", "d"])
        bars.marginal(["b", "d"])
        assert [(r.done, r.of) for r in seen] == [(i + 1, 21) for i in range(21)]
        assert len(error_bars(*problem, replicates=20, seed=0, progress=True).replicates) == 20
        searched = Heard()
        estimate(problem[0].domain, problem[1], progress=searched)
        assert searched

    def test_too_little_time_is_refused_at_once_and_stays_refused(
        self, problem: tuple[GraphicalModel, list[Measurement]]
    ) -> None:
        model, y = problem
        bars = error_bars(model, y, replicates=20, seed=0, max_seconds=1e-6)
        unmeasured = ("a", "d")
        for _ in range(2):
            with pytest.raises(TooSlow, match="max_seconds"):
                bars.marginal(unmeasured)
        assert bars.marginal(("a", "b")).method == "closed form"
        enough = error_bars(model, y, replicates=20, seed=0, max_seconds=300.0)
        free = error_bars(model, y, replicates=20, seed=0)
        np.testing.assert_array_equal(
            enough.marginal(unmeasured).stddev, free.marginal(unmeasured).stddev
        )

    @pytest.mark.parametrize(("most", "made"), [(20.0, 20), (19.9, 1), (1.0, 1)])
    def test_the_time_of_all_replicates_is_known_from_the_first(
        self,
        problem: tuple[GraphicalModel, list[Measurement]],
        monkeypatch: pytest.MonkeyPatch,
        most: float,
        made: int,
    ) -> None:
        clock = Clock()

        def re_estimated(model: GraphicalModel, sets: list[Any], *_: Any) -> Any:
            for _ in sets:
                clock.now += 1.0
                yield [model]

        monkeypatch.setattr("pgmkit.uncertainty.replicates.re_estimated", re_estimated)
        monkeypatch.setattr("pgmkit.uncertainty.time", clock)
        bars = error_bars(*problem, replicates=20, seed=0, max_seconds=most)
        if made == 20:
            assert len(bars.replicates) == 20
        else:
            with pytest.raises(TooSlow, match="about 20 s or more, .* max_seconds"):
                bars.marginal(("a", "d"))
        assert clock.now == 100 + made

    def test_replicates_whose_tables_take_too_much_memory_keep_none(
        self, problem: tuple[GraphicalModel, list[Measurement]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bars = error_bars(*problem, replicates=20, seed=0)
        bytes_of_all = 2 * bars.model.tree.bytes() * 20  # type: ignore[union-attr]
        for most, kept in ((bytes_of_all, True), (bytes_of_all - 1, False)):
            monkeypatch.setattr("pgmkit.uncertainty.CACHE_BYTES", most)
            asked = list[GraphicalModel]()
            bars.statistic(lambda model, asked=asked: asked.append(model) or model.total)
            pairs = list(zip(bars.replicates, asked[1:], strict=True))
            assert [one is other for one, other in pairs] == [kept] * 20
            assert all(one.total == other.total for one, other in pairs)

    def test_an_interrupt_comes_through(
        self, problem: tuple[GraphicalModel, list[Measurement]]
    ) -> None:
        def stop(record: Replication) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            error_bars(*problem, replicates=20, seed=0, progress=stop).marginal(["a", "d"])

    @pytest.mark.parametrize("clique", [(), ("a",), ("a", "b")])
    def test_noise_that_float64_cannot_resolve_is_refused(self, clique: tuple[str, ...]) -> None:
        """The total's noise is checked as that of any table; at the ends all bars are finite."""
        domain = Domain({"a": 2, "b": 3})
        base = Measurement(("a", "b"), np.full(6, 5.0), 1.0)
        model = estimate(domain, [base])
        for value, stddev in itertools.product(
            [0.0, 5.0, 1e200], [5e-324, 1e-300, 1e-150, 1e-16, 1e18, 1e150, 1e300]
        ):
            far = Measurement(clique, np.full(domain.size(clique), value), stddev)
            refused = pytest.raises(InvalidInput, match="has stddev .* beside counts of up to")
            with refused:
                estimate(domain, [base, far], total=30)
            with refused:
                estimate_many(domain, [[base, far]], total=30)
            with refused:
                error_bars(model, [base, far])
        for stddev in (30 * 2.0**-53, 30 * 2.0**53):
            near = Measurement(clique, np.full(domain.size(clique), 30 / 6), stddev)
            bars = error_bars(estimate(domain, [base, near], total=30), [base, near])
            assert np.isfinite(bars.marginal(("a",)).stddev).all()

    def test_bad_input(self, problem: tuple[GraphicalModel, list[Measurement]]) -> None:
        model, y = problem
        for replicates in (19, True, 20.0):
            with pytest.raises(InvalidInput, match="replicates must be (20 or|a whole n)"):
                error_bars(model, y, replicates=replicates)  # type: ignore[arg-type]
        for wrong in ("yes", 1, [], {}):
            for answer in (
                lambda progress: estimate(model.domain, y, progress=progress),
                lambda progress: estimate_many(model.domain, [y], progress=progress),
                lambda progress: error_bars(model, y, progress=progress),
            ):
                with pytest.raises(InvalidInput, match="progress must be True or False or a func"):
                    answer(wrong)
        with pytest.raises(InvalidInput, match="no measurement covers"):
            error_bars(model, [])
        with pytest.raises(InvalidInput, match="'x'"):
            error_bars(model, [*y, Measurement(("x",), [1.0], 1.0)])
        with pytest.raises(InvalidInput, match="no clique that contains the measured"):
            error_bars(model, [*y, Measurement(("a", "d"), np.ones(8), 1.0)])
        with pytest.raises(InvalidInput, match="which no measurement covers"):
            error_bars(model, y[:2])
        with pytest.raises(InvalidInput, match="beside counts of up to 1e\\+300"):
            error_bars(model, [replace(y[0], values=np.full(y[0].values.size, 1e300)), *y[1:]])
        with pytest.raises(
            InvalidInput, match="must be a sequence of Measurements, got a list with str"
        ):
            error_bars(model, [*y, "a"])  # type: ignore[list-item]
        with pytest.raises(
            InvalidInput, match="model must be a GraphicalModel or a RegionModel, got int"
        ):
            error_bars(3, y)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="model is conditioned"):
            error_bars(model.given({"a": 0}), y)

    @pytest.mark.parametrize(
        "level", [0, 1, 1e-320, 1 - 1e-16, -0.5, 95, True, "0.95", float("nan")]
    )
    def test_bad_level(
        self, problem: tuple[GraphicalModel, list[Measurement]], level: float
    ) -> None:
        bars = error_bars(*problem, replicates=20, seed=0)
        with pytest.raises(InvalidInput, match="above 0 and below 1 by more than rounding"):
            bars.marginal(["a"], level=level)
        with pytest.raises(InvalidInput, match="level must be (above 0 and below 1|a number)"):
            bars.statistic(lambda m: m.total, level=level)

    def test_the_usual_level_is_the_same_for_all(
        self, problem: tuple[GraphicalModel, list[Measurement]]
    ) -> None:
        bars, query = error_bars(*problem, seed=0), FactoredQuery.marginal(DOMAIN, ["a"])
        assert repr(bars).endswith(", 100 replicates)")
        asked = [bars.answer(query), bars.marginal(["a"]), bars.statistic(lambda m: m.total)]
        assert [each.level for each in asked] == [0.95] * 3
        assert type(bars.answer(query, level=np.float64(0.9)).level) is float

    def test_the_memory_of_the_redrawn_values_is_asked_for(
        self, problem: tuple[GraphicalModel, list[Measurement]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = Heard()
        monkeypatch.setattr("pgmkit.uncertainty.check_room", lambda needed, *_, **__: asked(needed))
        error_bars(*problem, replicates=21)
        assert asked == [21 * sum(m.values.nbytes for m in problem[1])]

    def test_a_clique_of_zeros_needs_no_measurement(self) -> None:
        y = [Measurement((name,), [400.0, 600.0], 5.0) for name in "ac"]
        zeros = [Zeros(("c", "a"), [[True, False], [True, True]])]
        model = estimate(Domain({"a": 2, "c": 2}), y, zeros=zeros)
        assert error_bars(model, y).marginal(["a"]).method == "closed form"

    @pytest.mark.parametrize("asked_before", [False, True])
    def test_bars_survive_pickling(
        self, problem: tuple[GraphicalModel, list[Measurement]], asked_before: bool
    ) -> None:
        done: list[int] = []
        report = lambda each: done.append(each.done)  # noqa: E731  which cannot be pickled
        bars = error_bars(*problem, replicates=20, seed=0, progress=report)
        if asked_before:
            bars.marginal(["a", "c"])
        copied = pickle.loads(pickle.dumps(bars))
        assert bool(done) == asked_before
        for clique in (["a", "b"], ["a", "c"]):  # closed form and replicates
            np.testing.assert_array_equal(copied.marginal(clique).low, bars.marginal(clique).low)

    def test_a_refusal_survives_pickling(
        self, problem: tuple[GraphicalModel, list[Measurement]]
    ) -> None:
        bars = error_bars(*problem, seed=0, max_seconds=1e-9)
        for each in (bars, pickle.loads(pickle.dumps(bars))):
            with pytest.raises(TooSlow, match="longer than the 1e-09 s"):
                each.marginal(["a", "c"])


@pytest.mark.parametrize("beside", [False, True])
def test_a_column_of_very_many_codes_takes_no_square_matrix(beside: bool) -> None:
    """With a known total the variance of a cell of one measured table is 1 - 1 / n."""
    codes = 2 * DENSE_ROWS
    domain = Domain({"a": codes, "b": 2})
    measured = [
        Measurement(("a",), np.random.default_rng(0).normal(9.0, 1.0, codes), 1.0),
        Measurement(("b",), [5.0 * codes, 4.0 * codes], 1.0),
    ]
    if beside:  # a residual, from which the other column's table follows
        measured[1] = Measurement(("b",), [codes, -codes], 1.0, np.array([[1.0, -1], [-1, 1]]))
    tracemalloc.start()
    bars = error_bars(estimate(domain, measured, total=9.0 * codes), measured)
    found = bars.answer(FactoredQuery({"a": point(codes, 3)}))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < codes**2 * 8 / 4
    assert found.method == "closed form"
    np.testing.assert_allclose(found.stddev, (1 - 1 / codes) ** 0.5, rtol=1e-9)


@pytest.mark.parametrize(
    "kind", ["residuals", "zeros", "unseen cells", "replicates", "region", "measured"]
)
def test_cumulative_error_bars_are_those_of_the_sums_written_out(kind: str) -> None:
    """Of counts (identity), of weighted rows, and of a query over no attribute."""
    rng = np.random.default_rng(0)
    joint = dense_joint(rng)
    joint[: len(joint) // 6] = 0.0  # the first value of a together with that of b
    y = measured(joint * 10_000 / joint.sum(), CHAIN, rng, 10.0)
    zeros = [Zeros(("a", "b"), np.arange(6).reshape(2, 3) > 0)] if kind == "zeros" else []
    if kind == "unseen cells":  # the total tells the last cell of the first table
        y[0] = Measurement(y[0].clique, y[0].values[:5], 10.0, np.eye(6)[:5])
    inference: Any = "region" if kind == "region" else "exact"
    model = estimate(DOMAIN, y, total=10_000, zeros=zeros, inference=inference)
    replicated = error_bars(model, y, replicates=20, seed=0)
    bars = MeasuredBars(model, y) if kind == "measured" else replicated
    last = "d" if kind == "replicates" else "b"
    identity, weights = np.eye(DOMAIN.sizes[last]), rng.normal(size=(5, DOMAIN.sizes[last]))
    for rows in (identity, scipy.sparse.csr_array(identity), weights):
        sums = np.cumsum(rows.toarray() if scipy.sparse.issparse(rows) else rows, axis=0)
        found = bars.answer(FactoredQuery({"a": np.eye(2), last: rows}), cumulative=True)
        expected = bars.answer(FactoredQuery({"a": np.eye(2), last: sums}))
        assert found.method == ("bootstrap" if kind == "replicates" else "closed form")
        np.testing.assert_allclose(found.estimate, expected.estimate)
        np.testing.assert_allclose(found.stddev, expected.stddev, rtol=1e-6, atol=1e-6)
        if rows is not weights:  # elsewhere only the signs of the sums tell that no sum is negative
            np.testing.assert_allclose([found.low, found.high], [expected.low, expected.high])
    assert bars.answer(FactoredQuery({}), cumulative=True).estimate == pytest.approx(10_000)


def coverage(draws: int, replicates: int) -> tuple[list[float], list[float], list[float]]:
    """Of measured cells, of their true zeros, and of unmeasured pairs; truth: a sparse chain.

    The share of each draw; without replicates none of unmeasured pairs.
    """
    domain = Domain({"a": 6, "b": 5, "c": 6})
    rng = np.random.default_rng(0)
    ab = rng.dirichlet(np.full(30, 0.3)).reshape(6, 5) * 3000
    joint = np.einsum("ab,bc->abc", ab, rng.dirichlet(np.full(6, 0.3), size=5)).round()
    truth = {("a", "b"): joint.sum(2), ("b", "c"): joint.sum(0)}
    exact = [Measurement(c, table, 1.0) for c, table in truth.items()]
    projection = estimate(domain, exact, total=joint.sum(), tolerance=1e-3).marginal(["a", "c"])
    cells, zeros, unmeasured = [], [], []
    for _ in range(draws):
        y = [Measurement(c, t + rng.normal(0, 20, t.shape), 20.0) for c, t in truth.items()]
        model = estimate(domain, y, total=joint.sum())
        bars = error_bars(model, y, replicates=max(20, replicates), seed=rng)
        for clique, table in truth.items():
            found = bars.marginal(clique)
            # Counts that the model gives to a cell of zero are never exactly zero.
            inside = (found.low <= table + 1e-3) & (table <= found.high)
            cells.append(float(inside.mean()))
            zeros.append(float(inside[table == 0].mean()))
        if not replicates:
            continue
        found = bars.marginal(["a", "c"])
        inside = (found.low <= projection + 1e-3) & (projection <= found.high)
        unmeasured.append(float(inside.mean()))
    return cells, zeros, unmeasured


def test_coverage_of_a_sparse_chain() -> None:
    cells, zeros, _ = coverage(draws=100, replicates=0)
    assert_mean_between(cells, 0.94, 0.96)
    assert_mean_between(zeros, 0.94, 0.96)
    assert_mean_between(coverage(draws=40, replicates=20)[2], 0.93, 0.98)


@pytest.mark.slow
def test_coverage_of_a_sparse_chain_in_many_draws() -> None:
    cells, zeros, unmeasured = coverage(draws=300, replicates=50)
    assert_mean_between(cells, 0.945, 0.955)
    assert_mean_between(zeros, 0.945, 0.955)
    assert_mean_between(unmeasured, 0.94, 0.97)
