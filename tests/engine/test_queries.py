"""The building blocks against loops over records, and the checks of FactoredQuery."""

import pickle
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from mechanisms.families.tables import TablesModel
from pgmkit import FactoredQuery, Measurement, estimate
from pgmkit import queries as q
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput, ModelTooLarge

RECORDS = np.random.default_rng(0).integers(0, 6, size=200)
COUNTS = np.bincount(RECORDS, minlength=6)


@given(bounds=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=5))
def test_ranges_count_both_ends(bounds: list[tuple[int, int]]) -> None:
    ordered = [(min(pair), max(pair)) for pair in bounds]
    expected = [sum(lo <= r <= hi for r in RECORDS) for lo, hi in ordered]
    np.testing.assert_array_equal(q.ranges(6, ordered) @ COUNTS, expected)
    np.testing.assert_array_equal(q.range(6, *ordered[0]) @ COUNTS, expected[:1])


def test_prefix_is_the_cdf() -> None:
    expected = [np.sum(b >= RECORDS) for b in (0, 1, 2, 3, 4, 5)]
    np.testing.assert_array_equal(q.prefix(6) @ COUNTS, expected)


@given(members=st.sets(st.integers(0, 5), min_size=1))
def test_subset_and_point_count_members(members: set[int]) -> None:
    np.testing.assert_array_equal(
        q.subset(6, members) @ COUNTS, [np.isin(RECORDS, [*members]).sum()]
    )
    first = min(members)
    np.testing.assert_array_equal(q.point(6, first) @ COUNTS, [np.sum(first == RECORDS)])


def test_identity_and_total() -> None:
    np.testing.assert_array_equal(q.identity(6) @ COUNTS, COUNTS)
    np.testing.assert_array_equal(q.total(6) @ COUNTS, [200])


@given(new=st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_compress_counts_recoded_records(new: list[int]) -> None:
    expected = np.bincount(np.array(new)[RECORDS], minlength=4)
    for mapping in (new, dict(enumerate(new)), np.array(new)):
        np.testing.assert_array_equal(q.compress(mapping, 4) @ COUNTS, expected)  # type: ignore[arg-type]
    assert q.compress(new).shape == (max(new) + 1, 6)


def test_mean_and_moments_sum_powers() -> None:
    values = np.array([-2.0, -1.0, 0.5, 1.0, 10.0, 3.0])
    np.testing.assert_allclose(q.mean(6) @ COUNTS / 200, [RECORDS.mean()])
    np.testing.assert_allclose(q.mean(6, values) @ COUNTS / 200, [values[RECORDS].mean()])
    for v in (None, values):
        numbers = (np.arange(6.0) if v is None else v)[RECORDS]
        expected = [np.sum(numbers**b) for b in (1, 2, 3)]
        np.testing.assert_allclose(q.moments(6, 3, v) @ COUNTS, expected)


def test_every_block_is_a_float64_matrix() -> None:
    blocks = [
        q.identity(3), q.total(3), q.point(3, 0), q.subset(3, [1]), q.range(3, 0, 1),
        q.ranges(3, [(0, 1)]), q.prefix(3), q.compress([0, 1, 0]), q.mean(3), q.moments(3, 2),
        q.mean(3, [1, 2, 3]), q.identity(np.int64(3)),  # type: ignore[arg-type]
    ]  # fmt: skip
    assert all(b.ndim == 2 and b.shape[1] == 3 and b.dtype == np.float64 for b in blocks)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: q.identity(0), "n must be a whole number, 1 or more, got 0"),
        (lambda: q.total(-1), "n must .* got -1"),
        (lambda: q.prefix(2.0), "n must .* got 2.0"),  # type: ignore[arg-type]
        (lambda: q.prefix(True), "n must .* got True"),
        (lambda: q.point(3, 3), "a code in members must be a whole number from 0 to 2, got 3"),
        (lambda: q.point(3, -1), "got -1"),
        (lambda: q.subset(3, []), "members is empty"),
        (lambda: q.subset(3, [1, 1]), "once"),
        (lambda: q.subset(3, [True, False]), "got True"),
        (lambda: q.range(3, 2, 1), "hi must be a whole number from 2 to 2, got 1"),
        (lambda: q.subset(3, [10**5000]), "from 0 to 2, got int"),
        (lambda: q.range(3, 0, 3), "hi must be a whole number from 0 to 2, got 3"),
        (lambda: q.ranges(3, []), "bounds is empty"),
        (lambda: q.ranges(3, [(1,)]), "pair"),  # type: ignore[list-item]
        (lambda: q.compress([]), "new code for each"),
        (lambda: q.compress(abs), "new code for each"),  # type: ignore[arg-type]
        (lambda: q.compress([0, -1]), "code in mapping must be a whole number, 0 or more, got -1"),
        (lambda: q.compress([0, 2], 2), "from 0 to 1, got 2"),
        (lambda: q.compress({0: 0, 2: 1}), "keys"),
        (lambda: q.compress([0.5, 1]), "got 0.5"),  # type: ignore[list-item]
        (lambda: q.compress("ab"), "new code for each"),  # type: ignore[arg-type]
        (lambda: q.compress(""), "new code for each"),  # type: ignore[arg-type]
        (lambda: q.compress([[0], [0, 1]]), "got list"),  # type: ignore[list-item]
        (lambda: q.mean(3, 2.0), "vector"),
        (lambda: q.moments(3, 0), "k must .* got 0"),
        (lambda: q.mean(3, [1, 2]), "length n = 3"),
        (lambda: q.mean(3, [[1, 2, 3]]), "vector"),
        (lambda: q.mean(2, [1, np.nan]), "not finite"),
        (lambda: q.moments(2, 2, [1, 1e200]), "too large"),
    ],
)
def test_bad_arguments_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()


def test_numbers_of_a_small_type_do_not_overflow() -> None:
    codes, n = np.array([0, 255], np.uint8), np.uint8(255)
    np.testing.assert_array_equal(q.compress(codes), q.compress([0, 255]))
    np.testing.assert_array_equal(q.moments(n, np.uint8(2)), q.moments(255, 2))  # type: ignore[arg-type]
    np.testing.assert_array_equal(q.ranges(n, [(0, n - 1)]), q.total(255))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda: q.identity(10**6),
        lambda: q.prefix(2**63),
        lambda: q.total(10**12),
        lambda: q.subset(10**12, [1]),
        lambda: q.ranges(10**12, [(0, 1)]),
        lambda: q.compress([0, 10**12]),
        lambda: q.moments(2, 10**12),
    ],
)
def test_matrices_that_do_not_fit_into_memory_are_refused_at_once(
    make: Callable[[], object],
) -> None:
    with pytest.raises(ModelTooLarge, match=r"dense matrix of .* sparse matrix of your own"):
        make()


def test_the_query_for_a_marginal_of_many_codes_is_sparse() -> None:
    domain = Domain({"age": 10**6, "sex": 2})
    factors = q.FactoredQuery.marginal(domain, ["sex", "age"]).factors
    np.testing.assert_array_equal(factors["sex"], np.eye(2))
    assert (factors["age"] != sp.eye_array(10**6)).nnz == 0


DOMAIN = Domain({"age": 4, "sex": 2, "job": 3})


def test_factored_query_keeps_order_shapes_and_entries() -> None:
    haar = [1, -1]
    query = q.FactoredQuery({"job": sp.eye(3), "sex": haar})
    assert query.attributes == ("job", "sex")
    assert query.shape == (3, 1)
    np.testing.assert_array_equal(query.factors["sex"], [[1, -1]])
    query.check(DOMAIN)
    assert repr(query) == "FactoredQuery({job: 3x3, sex: 1x2})"
    assert q.FactoredQuery({}).shape == ()


def test_factored_query_is_frozen() -> None:
    factor = np.eye(2)
    query = q.FactoredQuery({"sex": factor})
    factor[0, 0] = 5
    np.testing.assert_array_equal(query.factors["sex"], np.eye(2))
    with pytest.raises(AttributeError):
        query.factors = {}  # type: ignore[misc]
    with pytest.raises(TypeError):
        query.factors["sex"] = factor  # type: ignore[index]
    with pytest.raises(ValueError, match="read-only"):
        query.factors["sex"][0, 0] = 5
    assert pickle.loads(pickle.dumps(query)).shape == query.shape


def test_a_marginal_follows_the_clique_order() -> None:
    marginal = q.FactoredQuery.marginal(DOMAIN, ["job", "age"])
    assert (marginal.attributes, marginal.shape) == (("job", "age"), (3, 4))
    np.testing.assert_array_equal(marginal.factors["job"], np.eye(3))
    with pytest.raises(InvalidInput, match="height"):
        q.FactoredQuery.marginal(DOMAIN, ["height"])


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ({"height": [1, 1]}, "unknown attribute 'height'"),
        ({"age": np.eye(3)}, "factor of 'age' has 3 columns, but must have 4"),
        ({"age": [1, 1]}, "factor of 'age' has 2 columns"),
        ({"age": [1, np.nan, 0, 0]}, "factor of 'age' .*not finite"),
        ({"age": np.ones((1, 1, 4))}, "factor of 'age' has 3 dimensions"),
        ({0: np.eye(4)}, "attributes are strings"),
        ("age", "mapping"),
    ],
)
def test_a_bad_query_is_refused(factors: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        q.FactoredQuery(factors).check(DOMAIN)


def test_codes_of_a_tensor_are_those_of_a_list() -> None:
    codes = torch.tensor([0, 2])
    assert (q.subset(3, codes) == q.subset(3, [0, 2])).all()  # type: ignore[arg-type]
    assert (q.ranges(3, codes[None]) == q.ranges(3, [(0, 2)])).all()  # type: ignore[arg-type]


def test_answers_beyond_float64_are_refused_without_a_warning() -> None:
    domain = Domain({"a": 3, "b": 2})
    model = estimate(domain, [Measurement(("a", "b"), np.full((3, 2), 1e3), 1.0)])
    separate = TablesModel(domain, {("a", "b"): np.full((3, 2), 1e3)}, 6e3)
    queries = [{"a": [[1e308, 1e308, -1e308]]}, {"a": [[1e200, 1.0, 1.0]], "b": [[1e200, 1.0]]}]
    with warnings.catch_warnings(action="error"):
        for each in (model, separate):
            for query in queries:
                with pytest.raises(InvalidInput, match="answers that float64 can hold"):
                    each.answer(FactoredQuery(query))


@pytest.mark.parametrize("count", [32, 33, 64, 65])
def test_answers_have_as_many_axes_as_numpy_allows(count: int) -> None:
    query = FactoredQuery(
        {f"x{i}": q.prefix(2) if i == 3 else q.total(2) for i in np.arange(count)}
    )
    shape = tuple(2 if i == 3 else 1 for i in np.arange(count))
    try:
        np.empty(shape)
    except ValueError:
        shape = (2,)
    assert query.answer_shape == shape


def test_queries_of_a_single_code() -> None:
    assert q.ranges(1, [(0, 0)]).tolist() == [[1.0]]
    assert q.compress([0, 0], n_out=1).tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("pair", [(-1, 2), (0.5, 2), (0, 4), (3, 2)])
def test_ranges_are_of_codes(pair: tuple[float, float]) -> None:
    with pytest.raises(InvalidInput, match="(lo|hi) must be"):
        q.ranges(4, [pair])  # type: ignore[list-item]
