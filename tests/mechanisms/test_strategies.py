"""Strategies against explicit matrices: errors by pseudo-inverse, least squares, sensitivities."""

import itertools
import math
import re
import tracemalloc
from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pricing import Priced
from scipy.optimize import check_grad, nnls
from scipy.sparse import csr_array
from seams import draw_from

from mechanisms.baselines import Projection
from mechanisms.families.tables import projected
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.integer_matrix import FactorNorms, GridMatrix, product_l2_squared
from mechanisms.privacy.joint_moves import JointMoves
from mechanisms.privacy.neighbours import NEIGHBOURS, Neighbours, relation
from mechanisms.queries.query_sets import (
    QUERIES,
    QuerySet,
    number_of_queries,
    query_gram,
    query_rows,
)
from mechanisms.strategies import least_error, marginals, residual_lattice
from mechanisms.strategies.best import best_strategy, expected_variance
from mechanisms.strategies.least_error import best_precision, split
from mechanisms.strategies.marginals import marginals_strategy
from mechanisms.strategies.products import (
    ProductsStrategy,
    error_and_gradient,
    expected_error,
    p_identity,
    products_strategy,
)
from mechanisms.strategies.residuals import residuals_strategy
from mechanisms.workload import Workload, k_way
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput, ModelTooLarge, NumericalFailure
from pgmkit.least_squares.residual_tables import ResidualTables
from pgmkit.linear.kronecker import Kronecker
from pgmkit.linear.matrix import as_dense, as_matrix
from pgmkit.measurement import Measurement
from pgmkit.queries import FactoredQuery
from pgmkit.records.dataset import Dataset, NoRows

DOMAIN = Domain({"a": 2, "b": 3, "c": 4})


def kron(parts: list[np.ndarray]) -> np.ndarray:
    return reduce(np.kron, parts, np.ones((1, 1)))


RELATIONS = [
    *NEIGHBOURS.values(),
    relation("add/remove", "person", 3),
    relation("replace-one", "person", 3),
]


def marginal_matrix(clique: Clique, factors: dict[str, np.ndarray] | None = None) -> np.ndarray:
    """The clique's queries on the data vector, attributes in the domain's order."""
    factors = factors or {}
    return kron(
        [
            factors.get(name, np.eye(size)) if name in clique else np.ones((1, size))
            for name, size in DOMAIN.sizes.items()
        ]
    )


@pytest.mark.parametrize("kind", QUERIES)
@pytest.mark.parametrize("n", [1, 2, 7])
def test_grams_in_closed_form(kind: str, n: int) -> None:
    matrix = query_rows(kind, n)
    assert np.allclose(query_gram(kind, n), matrix.T @ matrix)
    domain = Domain({"a": n})
    assert number_of_queries(domain, QuerySet(("a",), (kind,))) == len(matrix)
    if kind in ("identity", "prefix", "range", "circular"):
        assert len(np.unique(matrix, axis=0)) == len(matrix) - (kind == "circular") * (n - 1)


def test_own_queries_have_weights_whose_squares_are_held() -> None:
    """From 2^-511, whose square is the least number of full precision, to 2^511; the squares' sum
    counts, which is in the Gram matrix.
    """
    for weight in (2.0**-511, 2.0**511):
        own = query_rows(csr_array([[0.0, 0.0], [0.0, -weight]]), 2)
        assert isinstance(own, np.ndarray) and own.tolist() == [[0.0, 0.0], [0.0, -weight]]
    for weight in (0.0, np.nextafter(2.0**-511, 0), np.nextafter(2.0**511, math.inf)):
        with pytest.raises(InvalidInput, match="an entry other than 0, and squares of entries"):
            query_rows([[0.0, -weight]], 2)
    with pytest.raises(InvalidInput, match="their sum is inf: scale the matrix"):
        query_gram(np.full((9, 4), 6.7e153), 4)


@pytest.mark.parametrize("weight", [1e-150, 1e-60, 1e60, 1e150])
def test_weights_whose_product_over_a_clique_is_beyond_float64_are_refused(weight: float) -> None:
    """The squares of each attribute's weights are held, but not those of their products."""
    pair = Workload(Domain({"a": 2, "b": 2}), [("a", "b")])
    with pytest.raises(InvalidInput, match="queries over a, b .* scale them to between 1.49e-154"):
        pair.asking({"a": np.eye(2) * weight, "b": np.tri(2) * weight})
    with pytest.raises(InvalidInput, match="unknown queries 'ranges'"):
        pair.asking({"a": "ranges"})
    assert not pair.asking({"a": np.eye(2) * weight, "b": np.tri(2) / weight}).plain


def test_named_queries_row_by_row() -> None:
    assert np.array_equal(query_rows("prefix", 2), [[1, 0], [1, 1]])
    assert np.array_equal(query_rows("range", 3), query_rows("circular", 3)[[0, 1, 2, 3, 4, 6]])
    circular = {tuple(row) for row in query_rows("circular", 3)}
    assert circular == set(itertools.product([0, 1], repeat=3)) - {(0, 0, 0)}
    nodes = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 0, 1], [1, 1, 1]]
    assert np.array_equal(query_rows("hierarchy", 3), nodes)
    assert np.array_equal(query_rows("moments", 3), [[1, 1, 1], [-1, 0, 1], [1, 0, 1]])
    assert np.array_equal(query_rows("distance", 3), [[0, 1, 2], [1, 0, 1], [2, 1, 0]])
    own = query_gram(np.array([[1.0, 2.0]]), 2)
    assert np.array_equal(own, [[1, 2], [2, 4]])
    with pytest.raises(InvalidInput, match="must have 3 columns"):
        query_gram(np.eye(2), 3)
    for weight in (0.0, 1e-160, 1e160):
        with pytest.raises(InvalidInput, match=re.escape(f"sum is {6 * weight * weight:.3g}")):
            query_gram(np.full((2, 3), weight), 3)
    with pytest.raises(InvalidInput, match="did you mean 'prefix'"):
        query_gram("prefixes", 3)


def test_named_queries_of_one_and_two_codes_and_levels_of_five() -> None:
    assert query_rows("moments", 1).tolist() == [[1], [0], [0]]
    assert query_rows("moments", 2).tolist() == [[1, 1], [-1, 1], [1, 1]]
    assert query_rows("distance", 1).tolist() == [[1]]
    assert query_rows("distance", 2).tolist() == [[0, 1], [1, 0]]
    assert len(query_rows("hierarchy", 5)) == 5 + 3 + 2 + 1
    sets = QuerySet(("b", "a"), ("prefix", "range"))
    assert [sets.along(name) for name in "ab"] == ["range", "prefix"] and sets.weight == 1.0


@pytest.mark.parametrize("kind", QUERIES)
def test_p_identity(kind: str) -> None:
    gram, queries = query_gram(kind, 20), query_rows(kind, 20)
    strategy = p_identity(gram)
    assert np.allclose(strategy.sum(axis=0), 1) and strategy.min() >= 0
    error = expected_error(gram, strategy)
    assert error == pytest.approx(((queries @ np.linalg.pinv(strategy)) ** 2).sum(), rel=1e-6)
    assert error <= np.trace(gram) * (1 + 1e-9)
    # No strategy of L2 sensitivity 1 is better than this (Li and Miklau, 2013).
    lowest = np.sqrt(np.linalg.eigvalsh(gram).clip(min=0)).sum() ** 2 / 20
    assert error >= lowest * (1 - 1e-9)


def test_gradient_of_p_identity() -> None:
    gram = query_gram("range", 5)
    point = np.random.default_rng(0).random(10)
    wrong = check_grad(
        lambda x: error_and_gradient(x, gram)[0],
        lambda x: error_and_gradient(x, gram)[1],
        point,
    )
    assert wrong < 1e-4


@pytest.mark.parametrize("seed", range(6))
def test_best_precision_against_the_primal_programme(seed: int) -> None:
    """Nothing near has less error at the same diagonal, and the dual value is the error."""
    rng = np.random.default_rng(seed)
    queries = rng.normal(size=(9, 6)) * rng.uniform(0.1, 3, 6)
    gram = queries.T @ queries
    found, weights = best_precision(gram, close=1e-9)
    error = float(np.trace(np.linalg.solve(found, gram)))
    assert np.diag(found).max() <= 1 + 1e-12
    assert error == pytest.approx(
        np.linalg.svd(queries * np.sqrt(weights), compute_uv=False).sum() ** 2, rel=1e-8
    )
    for _ in range(50):
        change = 0.05 * rng.normal(size=(6, 6))
        near = found + change + change.T
        near /= np.diag(near).max()
        assert np.trace(np.linalg.solve(near, gram)) >= error * (1 - 1e-9)


def test_steps_are_accelerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain multiplicative steps need 110 where 52 are enough."""
    monkeypatch.setattr("mechanisms.strategies.least_error.MOST_STEPS", 80)
    gram = query_gram("distance", 40)
    found, weights = best_precision(gram, close=1e-4)
    root = np.sqrt(np.linalg.eigvalsh(gram * np.sqrt(np.outer(weights, weights))).clip(0)).sum()
    assert np.trace(np.linalg.solve(found, gram)) <= root**2 * (1 + 1.1e-4)


@pytest.mark.parametrize("sizes", [[5, 1, 3, 7], [2, 2, 2, 2], [1, 1, 9, 1]])
@pytest.mark.parametrize("single", [0.0, 1.0])
def test_best_precision_of_areas_within_areas(sizes: list[int], single: float) -> None:
    """Its error over all codes is the dual's lower bound; blocks of a tract have equal weights.
    Without questions about single blocks (`single` 0) those of a tract are told apart by nothing.
    """
    tract = np.repeat(np.arange(4), sizes)
    county = tract // 2
    gram = single * np.eye(len(tract)) + 2.0 * np.equal.outer(tract, tract)
    gram += 0.3 * np.equal.outer(county, county)
    order = np.random.default_rng(0).permutation(len(tract))
    gram = gram[np.ix_(order, order)]
    precision, weights = best_precision(gram, close=1e-9)
    assert np.diag(precision).max() == pytest.approx(1)
    error = np.trace(np.linalg.pinv(precision, rcond=1e-9) @ gram)
    bound = np.sqrt(np.linalg.eigvalsh(gram * np.sqrt(np.outer(weights, weights))).clip(0)).sum()
    assert weights.sum() == pytest.approx(1)
    assert error == pytest.approx(bound**2, rel=1e-7)
    for number in range(4):
        assert np.ptp(weights[tract[order] == number]) < 1e-12
    codes = range(len(order))
    exchanged = [[[{i: j, j: i}.get(k, k) for k in codes] for j in codes] for i in codes]
    twins = [[np.array_equal(gram, gram[np.ix_(p, p)]) for p in row] for row in exchanged]
    for unit in (1e-3, 1.0, 1e6):  # they are one group, whatever the unit
        rounded = unit * gram * (1 + 1e-14 * np.random.default_rng(1).normal(size=gram.shape))
        groups = least_error.Twins.of(rounded).group
        assert np.array_equal(np.equal.outer(groups, groups), twins)


@pytest.mark.parametrize("more", [-0.9, 0.0, 3.0, 200.0])
def test_splits_are_the_best_for_their_trade(more: float) -> None:
    """A total and a rest, weighed against each other, lose nothing against one strategy."""
    gram = query_gram("prefix", 12)  # 1'V^-1 1 is 1
    p, precision, _ = split(gram, more)
    assert np.allclose(precision @ p, 0, atol=1e-9) and p.sum() == pytest.approx(1)
    assert np.diag(precision).max() == pytest.approx(1)
    inside = np.eye(12) - np.outer(p, np.ones(12))
    error = float((np.linalg.pinv(precision, rcond=1e-9) * (inside.T @ gram @ inside)).sum())
    both = (math.sqrt(error) + math.sqrt(p @ gram @ p + more)) ** 2
    _, weights = best_precision(gram + more, close=1e-7)
    root = np.sqrt(weights)
    best = np.sqrt(np.linalg.eigvalsh((gram + more) * np.outer(root, root)).clip(min=0)).sum() ** 2
    assert best * (1 - 1e-9) <= both <= best * (1 + 1e-3)


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("total_known", [False, True])
@pytest.mark.parametrize(
    "kinds", [{}, {"c": "prefix"}, {"b": "range", "c": "prefix"}, {"c": "moments"}]
)
def test_marginals_strategy_against_the_trace_formula(
    norm: int, total_known: bool, kinds: dict[str, str]
) -> None:
    workload = Workload(DOMAIN, [("a", "b"), ("c",), ("c", "b")], weights=[1, 2, 0.5])
    factors = {name: query_rows(kind, DOMAIN.sizes[name]) for name, kind in kinds.items()}
    found = marginals_strategy(workload.asking(kinds), norm, total_known)
    assert sum(found.shares.values()) == pytest.approx(1)

    def error(shares: dict[Clique, float]) -> float:
        strategy = np.vstack([s ** (1 / norm) * marginal_matrix(c) for c, s in shares.items()])
        if total_known:
            strategy = np.vstack([strategy, 1e6 * np.ones((1, DOMAIN.size()))])
        inverse = np.linalg.pinv(strategy, rcond=1e-12)
        return sum(
            weight * float(((marginal_matrix(clique, factors) @ inverse) ** 2).sum())
            for clique, weight in zip(workload.cliques, workload.weights, strict=True)
        )

    assert found.expected_error == pytest.approx(error(dict(found.shares)), rel=1e-5)
    even = {clique: 1 / 3 for clique in workload.cliques}
    assert found.expected_error <= error(even)
    rng = np.random.default_rng(0)
    for _ in range(20):  # nothing near is better
        near = {clique: share * rng.uniform(0.8, 1.25) for clique, share in found.shares.items()}
        scale = sum(near.values())
        assert error({c: s / scale for c, s in near.items()}) > 0.9999 * found.expected_error


def test_marginals_of_columns_of_one_code_and_without_questions_change_nothing() -> None:
    pairs = [("a", "b"), ("b", "c")]
    plain = marginals_strategy(Workload(DOMAIN, pairs), 1, False)
    wide = Domain({"year": 1, **{f"x{i}": 2 for i in range(40)}, **DOMAIN.sizes})
    asked = marginals_strategy(Workload(wide, [("a", "b", "year"), ("b", "c")]), 1, False)
    assert asked.expected_error == pytest.approx(plain.expected_error, rel=1e-6)
    query = FactoredQuery({"year": np.eye(1), "a": np.eye(2)})
    variance = asked.noise(wide, 2, False).variance(query).reshape(-1)
    assert variance == pytest.approx(plain.noise(DOMAIN, 2, False).variance(("a",)), rel=1e-4)
    whole = marginals.MarginalsStrategy({("a", "b", "c"): 1.0}, 0.0).noise(DOMAIN, 1, False)
    assert whole.variance(("a", "b", "c")) == pytest.approx(np.ones((2, 3, 4)))


def test_a_clique_of_next_to_no_weight_is_measured_or_inside_one_that_is() -> None:
    workload = Workload(DOMAIN, [("a", "b"), ("c", "b")], weights=[1, 1e-16])
    for norm in (1, 2):
        found = marginals_strategy(workload, norm, False)
        assert any({"b", "c"} <= set(clique) for clique in found.shares)
        assert math.isfinite(found.expected_error)


def test_candidates_are_subsets_and_next_larger_sets_within_limits() -> None:
    for number, more in ((30, 4060), (31, 4495), (32, 4960), (33, 0)):
        domain = Domain({f"x{i}": 2 for i in range(number)})
        lattice = marginals.subsets(domain, itertools.combinations(domain, 2))
        found = marginals.candidate_marginals(k_way(domain, 2), lattice)
        assert found[: len(lattice)] == lattice and len(found) == len(lattice) + more
    domain = Domain({"a": 2**10, "b": 2**10, "c": 1, "d": 2, "unasked": 2})
    pairs = list(itertools.combinations("abcd", 2))
    found = marginals.candidate_marginals(Workload(domain, pairs), marginals.subsets(domain, pairs))
    assert [c for c in found if len(c) > 2] == [("a", "b", "c"), ("a", "c", "d"), ("b", "c", "d")]


def test_laplace_noise_prefers_few_larger_marginals() -> None:
    domain = Domain({name: 2 for name in "abcde"})
    laplace = marginals_strategy(k_way(domain, 2), norm=1, total_known=False)
    assert max(map(len, laplace.shares)) == 3 and len(laplace.shares) < 10
    even = 10**2 * 40
    assert laplace.expected_error < 0.6 * even


def test_products_strategy_against_the_trace_formula() -> None:
    workload = Workload(DOMAIN, [("a", "c"), ("b",)], weights=[1, 3])
    matrix = query_rows("range", 4)
    found = products_strategy(workload.asking({"c": matrix}))
    expected = 0.0
    for clique, weight in zip(workload.cliques, workload.weights, strict=True):
        queries = kron([matrix if name == "c" else np.eye(DOMAIN.sizes[name]) for name in clique])
        strategy = kron([found.rows[name] for name in clique]) * found.shares[clique]
        expected += weight * float(((queries @ np.linalg.pinv(strategy)) ** 2).sum())
    assert found.expected_error == pytest.approx(expected, rel=1e-6)
    shares = np.array(list(found.shares.values()))
    errors = {place: expected for place in range(2)}
    for place in errors:  # the error of a clique alone
        only = Workload(DOMAIN, [workload.cliques[place]], [workload.weights[place]])
        errors[place] = products_strategy(
            only.asking({"c": matrix} if not place else {})
        ).expected_error
    for change in (-0.01, 0.01):
        near = np.array([*errors.values()]) / (shares + np.array([change, -change])) ** 2
        assert near.sum() > expected


def test_rows_of_products_serve_each_kind_alike() -> None:
    """Whatever the unit of the queries."""
    domain = Domain({"a": 32})
    found = []
    for unit in (1.0, 300.0):
        asked = [QuerySet(("a",), (unit * np.tri(32),)), QuerySet(("a",), (np.eye(32)[::2],))]
        found.append(products_strategy(Workload.of(domain, asked)).rows["a"])
    assert np.allclose(*found, atol=1e-4)


def test_variances_of_products_for_any_query() -> None:
    """Noise of variance 1 on each row of the smallest clique that holds the query."""
    domain = Domain({"a": 32, "b": 3})
    rows = {"a": p_identity(query_gram("prefix", 32)), "b": np.vstack([np.eye(3), np.ones(3)]) / 2}
    strategy = ProductsStrategy(rows, {("a", "b"): 0.7, ("b",): 0.3}, 0.0)
    own = np.array([[1.0, 2.0, 0.0], [0.0, -1.0, 1.0]])
    for factors, clique in [
        ({"a": np.tri(32)}, "ab"),
        ({"b": own, "a": np.tri(32)[::5]}, "ab"),
        ({"b": csr_array(own)}, "b"),
        ({}, "b"),
    ]:
        dense = {name: as_dense(as_matrix(each, "rows")) for name, each in factors.items()}
        queries = kron([dense.get(name, np.ones((1, domain.sizes[name]))) for name in clique])
        measured = kron([rows[name] for name in clique]) * strategy.shares[tuple(clique)]
        wanted = ((queries @ np.linalg.pinv(measured)) ** 2).sum(axis=1)
        query = FactoredQuery(factors)
        if len(factors) == 2:
            wanted = wanted.reshape(7, 2).T
        found = strategy.variance(query, domain)
        assert np.allclose(found, wanted.reshape(query.answer_shape))


@pytest.mark.parametrize("objective", ["sum", "largest"])
@pytest.mark.parametrize("norm", [1, 2])
def test_queries_that_ask_for_a_public_total_alone_have_no_error(
    objective: Literal["sum", "largest"], norm: int
) -> None:
    neighbours, ones = NEIGHBOURS["replace-one"], np.ones((1, 3))
    workload = Workload.of(Domain({"a": 3, "b": 2}), [QuerySet(("a",), (ones,))])
    found = best_strategy(workload, neighbours, norm, total_known=True, objective=objective)
    query = FactoredQuery({"a": ones})
    variance = expected_variance(workload, found, query, neighbours, norm)
    assert variance == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("neighbours", NEIGHBOURS.values())
@pytest.mark.parametrize("norm", [1, 2])
def test_the_least_certain_answer_is_no_less_certain_than_from_the_cells(
    neighbours: Neighbours, norm: int
) -> None:
    """Whose noise is of one variance, but for the public total of rows that are replaced."""
    domain = Domain({"a": 3, "b": 3})
    unit = 2 * neighbours.l1**2 if norm == 1 else neighbours.l2**2 / 2
    for asked in [{"a": "moments", "b": "distance"}, {"a": "prefix"}]:
        workload = Workload.of(domain, [QuerySet(tuple(asked), tuple(asked.values()))])
        known = neighbours.rows_public
        found = best_strategy(workload, neighbours, norm, total_known=known, objective="largest")
        query = FactoredQuery({name: query_rows(each, 3) for name, each in asked.items()})
        cells = Kronecker([*query.factors.values()]).to_dense()
        cells -= known * cells.mean(axis=1, keepdims=True)
        worst = expected_variance(workload, found, query, neighbours, norm).max()
        assert worst <= unit * (cells**2).sum(axis=1).max() * (1 + 1e-9)


@pytest.mark.parametrize("kinds", [["identity"], ["prefix"], ["prefix", "identity", "range"]])
def test_columns_of_too_many_codes_for_the_matrices_of_their_queries_are_refused(
    kinds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes that are asked for are compared with those that a plan allocates."""
    domain = Domain({"a": 3, "b": 4_000_000})
    with pytest.raises(ModelTooLarge, match="'b', which has 4,000,000 codes"):
        best_strategy(Workload(domain, [("a", "b")]), RELATIONS[0], 2, total_known=False)
    needed: list[int] = []
    monkeypatch.setattr(residual_lattice, "check_room", lambda n, *_, **__: needed.append(n))
    sets = [QuerySet(("a", "b"), (kind, "identity")) for kind in kinds]
    for n in (3, 200):  # the first plan loads what plans import
        needed.clear()
        tracemalloc.start()
        residuals_strategy(Domain({"a": n, "b": 2}), sets, RELATIONS[1], 2, total_known=False)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    # Other memory is small beside the matrices; some systems copy a matrix more.
    assert needed[0] / 2 < peak < 1.2 * needed[0]


@pytest.mark.parametrize("total", [None, 50.0])
def test_least_squares_against_the_data_vector(total: float | None) -> None:
    rng = np.random.default_rng(1)
    cliques = [("b", "a"), ("c", "b"), ("c",), ("a",), ("c",)]
    stddevs = [1.0, 2.0, 0.5, 3.0, 1.5]
    measurements = [
        Measurement(c, rng.normal(5, 3, DOMAIN.size(c)), s)
        for c, s in zip(cliques, stddevs, strict=True)
    ]
    rows, values = [], []
    for m in measurements:
        ordered = tuple(sorted(m.clique))
        table = m.values.reshape(DOMAIN.shape(m.clique))
        table = table.transpose([m.clique.index(name) for name in ordered])
        rows.append(marginal_matrix(ordered) / m.stddev)
        values.append(table.reshape(-1) / m.stddev)
    if total is not None:
        rows.append(1e6 * np.ones((1, DOMAIN.size())))
        values.append(np.array([1e6 * total]))
    x = np.linalg.lstsq(np.vstack(rows), np.concatenate(values), rcond=1e-14)[0]
    found = ResidualTables(DOMAIN, measurements, total)
    for clique in [("a", "b"), ("b", "c"), ("c",), ()]:
        table = found.marginal(clique)
        assert np.allclose(table.reshape(-1), marginal_matrix(clique) @ x, atol=1e-5)


def test_projected_tables_against_nonnegative_least_squares() -> None:
    rng = np.random.default_rng(2)
    noisy = [
        Measurement(c, rng.normal(2, 4, DOMAIN.size(c)), s)
        for c, s in [(("a", "b"), 1.0), (("b", "c"), 2.0), (("c",), 0.5)]
    ]
    # For cliques of a tree, tables that agree are the marginals of a nonnegative data vector.
    rows = [marginal_matrix(m.clique) / m.stddev for m in noisy]
    values = [m.values / m.stddev for m in noisy]
    x, _ = nnls(
        np.vstack([*rows, np.full((1, DOMAIN.size()), 1e4)]), np.concatenate([*values, [30e4]])
    )
    found = projected(DOMAIN, noisy, noisy, 30, Projection(model_mb=0))
    for m in noisy:
        table = found.marginal(m.clique).reshape(-1)
        assert np.allclose(table, marginal_matrix(m.clique) @ x, atol=0.02)


def random_factors(rng: np.random.Generator, signed: bool, clique: Clique) -> list[np.ndarray]:
    low = -1.0 if signed else 0.0
    return [rng.uniform(low, 1, (rng.integers(1, 5), DOMAIN.sizes[name])) for name in clique]


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_column_norms_against_the_written_out_matrix(signed: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    clique = [("a",), ("b", "c"), ("a", "b", "c")][seed % 3]
    factors = random_factors(rng, signed, clique)
    grid = GridMatrix.rounded(factors)
    dense = reduce(np.kron, [factor.astype(object) for factor in grid.factors])  # exact integers
    assert np.allclose((dense * grid.unit).astype(float), kron(factors), atol=0.01)
    gaps = dense[:, :, None] - dense[:, None, :]
    assert grid.l1(differ=False) == np.abs(dense).sum(axis=0).max()
    assert grid.l2_squared(differ=False) == (dense**2).sum(axis=0).max()
    exact = {1: np.abs(gaps).sum(axis=0).max(), 2: (gaps**2).sum(axis=0).max()}
    stated = {1: grid.l1(differ=True), 2: grid.l2_squared(differ=True)}
    for norm in (1, 2):
        assert stated[norm] >= exact[norm]
        if len(clique) == 1:
            assert stated[norm] == exact[norm]
    counts = rng.integers(0, 100, dense.shape[1])
    assert np.array_equal(grid.answers(counts), dense.astype(np.int64) @ counts)


def of_size(rng: np.random.Generator, bits: int, rows: int, columns: int) -> np.ndarray:
    """Whole numbers of up to so many bits, many of them at the ends of the range."""
    most = 2**bits - 1
    drawn = rng.integers(-most, most + 1, (rows, columns))
    ends = rng.choice([-most, most, most - 1, 1, 0, -1], (rows, columns))
    whole = np.where(rng.random((rows, columns)) < rng.choice([0.0, 0.5, 1.0]), ends, drawn)
    whole[0, 0] = most
    return whole.astype(float)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**63), st.lists(st.integers(1, 30), min_size=1, max_size=3))
def test_whole_numbers_of_any_size_are_multiplied_exactly(seed: int, sizes: list[int]) -> None:
    """Norms and answers against Python's integers, over all that may be asked and counted."""
    rng = np.random.default_rng(seed)
    rows = 600 if len(sizes) == 1 else 4
    factors = [of_size(rng, bits, rng.integers(1, rows + 1), rng.integers(1, 4)) for bits in sizes]
    grid = GridMatrix.rounded(factors)
    dense = reduce(np.kron, [factor.astype(object) for factor in grid.factors])
    if sum(sizes) <= 30:
        assert np.array_equal(dense * Fraction(grid.unit), kron_of_integers(factors))
    columns = range(dense.shape[1])
    gaps = np.stack([dense[:, i] - dense[:, j] for i in columns for j in columns])
    assert grid.l1(differ=False) == np.abs(dense).sum(axis=0).max()
    assert grid.l2_squared(differ=False) == (dense**2).sum(axis=0).max()
    largest_gaps = np.abs(gaps).sum(axis=1).max(), (gaps**2).sum(axis=1).max()
    stated = grid.l1(differ=True), grid.l2_squared(differ=True)
    if len(sizes) == 1:
        assert stated == tuple(max(1, gap) for gap in largest_gaps)
    assert stated[0] >= largest_gaps[0] and stated[1] >= largest_gaps[1]
    counts = rng.integers(0, 2 ** rng.integers(1, 41), dense.shape[1]) // dense.shape[1]
    exact = np.clip(dense @ counts.astype(object), -(2**62), 2**62)
    assert np.array_equal(grid.answers(counts), exact)


def kron_of_integers(factors: list[np.ndarray]) -> np.ndarray:
    return reduce(
        np.kron, [np.array([[int(x) for x in row] for row in f], object) for f in factors]
    )


def test_norms_of_as_many_rows_as_are_allowed() -> None:
    most, rows = 2**30 - 1, 2**20
    factor = np.full((rows, 2), float(most))
    factor[:, 1] = -most
    grid = GridMatrix.rounded([factor])
    assert grid.l1(False) == rows * most and grid.l1(True) == 2 * rows * most
    assert grid.l2_squared(False) == rows * most**2 and grid.l2_squared(True) == 4 * rows * most**2


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize(("rows", "entry"), [(20, 10**9), (4097, 2**26), (64, 2**29), (3, 2**30)])
def test_large_whole_numbers_cost_what_is_charged(
    rows: int, entry: int, relation: str, delta: float
) -> None:
    matrix = np.zeros((rows, 2))
    matrix[:, 0] = entry
    asked = []
    for codes in ([0, 0, 1], [0, 0, 1, 0] if relation == "add/remove" else [0, 1, 1]):
        curator = Curator(
            Dataset(Domain({"a": 2}), {"a": codes}), Budget(1.0, delta), neighbours=relation, seed=0
        )
        noise = draw_from(curator, Recorded(relation, pure=delta == 0))
        curator.measure_queries(("a",), matrix, curator.remaining)
        asked.append(noise)
    gap = asked[1].exact[0].astype(object) - asked[0].exact[0].astype(object)
    scale = Fraction(asked[0].scales[0])
    price = sum(abs(gap)) / scale if delta == 0 else sum(gap**2) / (2 * scale**2)
    assert float(price) == pytest.approx(curator.ledger.budget.total, rel=1e-12)


class ManyRows(NoRows):
    """Records that only counts tell of."""

    def __init__(self, table: list[int]) -> None:
        super().__init__(Domain({"a": len(table)}))
        self.table = np.array(table, dtype=np.int64)

    def __len__(self) -> int:
        return int(self.table.sum())

    def marginals(self, cliques: Sequence[Clique]) -> dict[Clique, np.ndarray]:
        return {clique: self.table if clique else self.table.sum() for clique in cliques}


@pytest.mark.parametrize("rows", [2**31, 2**33, 2**39])
def test_answers_beyond_64_bits_are_refused_by_their_noisy_values(rows: int) -> None:
    matrix = np.array([[float(2**29), 1.0]])
    curator = Curator(ManyRows([rows, 1]), Budget(1.0, 1e-6), neighbours="add/remove")
    noise = draw_from(curator, Recorded("add/remove", pure=False))
    if rows == 2**31:
        found = curator.measure_queries(("a",), matrix, curator.remaining)
        assert found.values[0] == pytest.approx(2.0**60, rel=1e-6)
        return
    with pytest.raises(NumericalFailure, match="64 bits"):
        curator.measure_queries(("a",), matrix, curator.remaining)
    assert noise.exact[0].tolist() == [2**62] and curator.remaining == 0


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_measured_queries_cost_what_neighbours_reveal(relation: str, delta: float) -> None:
    rng = np.random.default_rng(3)
    columns = {name: rng.integers(0, size, 30) for name, size in DOMAIN.sizes.items()}
    strategy = [p_identity(query_gram("prefix", DOMAIN.sizes[name])) for name in ("b", "c")]

    def measured(columns: dict[str, np.ndarray]) -> tuple[Priced, Curator, Measurement]:
        data = Dataset(DOMAIN, columns)
        curator = Curator(data, Budget(1.0, delta), neighbours=relation, seed=0)
        noise = draw_from(curator, Recorded(relation, pure=delta == 0))
        return noise, curator, curator.measure_queries(("b", "c"), strategy, curator.remaining)

    noise, curator, m = measured(columns)
    unit = m.stddev / noise.scales[0] / (math.sqrt(2) if delta == 0 else 1)
    exact = m.matrix.matvec(Dataset(DOMAIN, columns).marginal(("b", "c")).reshape(-1)) / unit
    assert np.allclose(noise.exact[0], exact) and noise.exact[0].dtype == np.int64
    assert curator.remaining == 0 and len(noise.scales) == 1
    largest = 0.0
    for row in range(30):
        for b, c in itertools.product(range(3), range(4)):
            other = {name: codes.copy() for name, codes in columns.items()}
            if relation == "replace-one":
                other["b"][row], other["c"][row] = b, c
            else:
                other = {name: np.append(codes, 0) for name, codes in other.items()}
                other["b"][-1], other["c"][-1] = b, c
            gap = measured(other)[0].exact[0] - noise.exact[0]
            price = (
                np.abs(gap).sum() / noise.scales[0]
                if delta == 0
                else (gap.astype(float) ** 2).sum() / (2 * noise.scales[0] ** 2)
            )
            largest = max(largest, price)
    assert largest <= curator.ledger.budget.total * (1 + 1e-12)
    # Bounds for products of matrices are close; add/remove is exact.
    tight = 1 if relation == "add/remove" else 0.5
    assert largest >= tight * curator.ledger.budget.total * (1 - 1e-12)


class Recorded(Priced):
    """Keeps the scales too."""

    def __init__(self, relation: str, pure: bool) -> None:
        super().__init__(relation, pure)
        self.scales: list[float] = []

    def gaussian(self, counts: np.ndarray, scale: float) -> np.ndarray:
        self.scales.append(scale)
        return super().gaussian(counts, scale)

    def laplace(self, counts: np.ndarray, scale: float) -> np.ndarray:
        self.scales.append(scale)
        return super().laplace(counts, scale)


def test_exact_samplers_take_the_scaled_answers() -> None:
    data = Dataset(DOMAIN, {name: [0, 1] for name in DOMAIN})
    for delta in (0.0, 1e-6):
        curator = Curator(data, Budget(1.0, delta), neighbours="replace-one")
        m = curator.measure_queries(("a",), np.array([[0.3, 1.0]]), curator.remaining)
        assert m.values.shape == (1,) and curator.ledger.secure


def test_wrong_matrices_are_refused_before_spending() -> None:
    data = Dataset(DOMAIN, {name: [0, 1] for name in DOMAIN})
    curator = Curator(data, Budget(1.0), neighbours="add/remove", seed=0)
    for clique, matrix in [
        (("a", "b"), np.eye(5)),
        (("a", "b"), [np.eye(3), np.eye(2)]),
        (("a",), np.zeros((1, 2))),
        (("a",), np.array([[math.nan, 1.0]])),
        ((), np.ones((1, 1))),
        (("z",), np.ones((1, 2))),
        (("a",), [np.ones((1, 1))] * 30 + [np.ones((1, 2))]),
    ]:
        with pytest.raises(InvalidInput):
            curator.measure_queries(clique, matrix, 0.5)
    with pytest.raises(InvalidInput, match="known are identity, prefix, range"):
        query_gram("median", 3)
    assert curator.ledger.spent == 0


@given(
    st.integers(0, 2**32),
    st.sampled_from(RELATIONS),
    st.sampled_from(["contrasts", "totals", "drawn", "mixed"]),
)
def test_products_measured_at_once_cost_what_rows_move_in_all_of_them(
    seed: int, neighbours: Neighbours, kind: str
) -> None:
    """Against all pairs of cells; n I - J along all attributes leaves no slack, and rows that come
    or go move totals more than any that take another's place."""
    rng = np.random.default_rng(seed)
    sizes = dict(zip("abc", rng.integers(2, 4, 3).tolist(), strict=True))
    every = [c for k in (1, 2, 3) for c in itertools.combinations(sizes, k)]
    picked = [every[i] for i in rng.choice(len(every), int(rng.integers(1, 7)), replace=False)]
    drawn = {
        n: [rng.integers(-3, 4, (rng.integers(1, 4), k)) for _ in "12"] for n, k in sizes.items()
    }

    def factor(n: str) -> np.ndarray:
        own = str(rng.choice(["contrasts", "totals", "drawn"])) if kind == "mixed" else kind
        eye = np.eye(sizes[n], dtype=np.int64)
        if own == "contrasts":
            return sizes[n] * eye - 1
        if own == "totals":
            return np.vstack([np.full(sizes[n], 3), eye])
        return drawn[n][rng.integers(2)] + eye[:1]

    factors = [{n: factor(n) for n in clique} for clique in picked]
    factors = [own for own in factors if all(each.any() for each in own.values())] or [
        {"a": np.eye(sizes["a"], dtype=np.int64)}
    ]
    shares = rng.dirichlet(np.ones(len(factors))).clip(1e-3)
    norms = [{n: FactorNorms.of(each) for n, each in own.items()} for own in factors]
    moving = JointMoves(neighbours, norms)
    found = moving.most(shares)
    costs = moving.costs(shares)
    # Rows that agree in all attributes move nothing, and no rows less.
    assert all(abs(each[0]) < 1e-12 and each.min() > -1e-12 for each in costs[1:])
    chances = [rng.dirichlet(np.ones(len(each))) for each in costs]
    average = sum(float(chance @ each) for chance, each in zip(chances, costs, strict=True))
    prices = moving.prices(chances)
    assert prices @ shares == pytest.approx(average) and prices.max() <= 1 + 1e-12
    written = []
    for own, share in zip(factors, shares, strict=True):
        grid = GridMatrix(tuple(own.values()), 1.0)
        alone = neighbours.largest_move(lambda differ, g=grid: g.l2_squared(differ) ** 0.5)
        written.append(
            kron([own.get(n, np.ones((1, k))) for n, k in sizes.items()]) / alone * share**0.5
        )
    columns = neighbours.max_rows * np.vstack(written).T
    moves = [] if neighbours.rows_public else [*columns]
    if neighbours.exchanged:
        moves += [x - y for x, y in itertools.permutations(columns, 2)]
    worst = max(float((each**2).sum()) for each in moves)
    # The allowance for rounding is in the bound, which no share exceeds.
    assert worst <= found * (1 + 1e-13) and found <= shares.sum() * (1 + 1e-13)
    if kind == "contrasts":
        assert worst == pytest.approx(found, rel=1e-9)


SIGN = np.array([[1, -1]])
FIRST = np.array([[1, 1, 0], [0, 0, 1]])
SECOND = np.array([[1, 0, 0], [0, 1, 1]])
LONG = np.array([[3, 1, 0, 0, 0], [0, 2, 2, 1, 1], [3, 0, 1, 0, 0], [0, -1, 0, 0, 0]]).T


@pytest.mark.parametrize(
    "products",
    [
        # Two columns of one factor are equal, and those of the other orthogonal.
        [{"a": FIRST, "b": SIGN}, {"a": SECOND}],
        [{"a": SECOND, "b": SIGN}, {"a": FIRST}],
        # One column is shorter. The two that are furthest apart have neither the least inner
        # product nor the largest.
        [{"a": LONG, "b": SIGN}, {"a": LONG}, {"b": SIGN}],
    ],
)
def test_no_end_is_missing_that_rows_reach(products: list[dict[str, np.ndarray]]) -> None:
    norms = [{n: FactorNorms.of(each) for n, each in own.items()} for own in products]
    share = 1 / len(products)
    ones = {n: np.ones((1, max(own[n].shape[1] for own in products if n in own))) for n in "ab"}
    answers = [kron([own.get(n, ones[n]) for n in "ab"]).T for own in products]
    moved = sum(
        share * ((each[:, None] - each) ** 2).sum(2) / product_l2_squared([*own.values()], True)
        for each, own in zip(answers, norms, strict=True)
    )
    found = JointMoves(relation("replace-one"), norms).most([share] * len(products))
    assert np.max(moved) == pytest.approx(found, rel=1e-9)


def test_lengths_of_columns_count_in_products_of_several_factors() -> None:
    """Half the squared distance in one attribute is not what that attribute adds to a product."""
    factor = FactorNorms.of(np.array([[10, 9]]))
    found = JointMoves(relation("replace-one"), [{"a": factor, "b": factor}]).most([1.0])
    assert found >= (100 - 81) ** 2 / product_l2_squared([factor, factor], True)


def test_measuring_at_once_is_one_charge_and_refuses_wrong_shares() -> None:
    data = Dataset(Domain({"a": 2, "b": 3}), {"a": [0, 1, 1], "b": [0, 1, 2]})
    first, second = 2 * np.eye(2) - 1, 3 * np.eye(3) - 1
    queries = {("b",): [second], ("a", "b"): [first, second]}
    # What each replacement of a row moves of the most that one moves, for both tables together.
    answers = [np.tile(second, 2), np.kron(first, second)]
    moved = [((each.T[:, None] - each.T) ** 2).sum(2) for each in answers]
    joint = sum(each / each.max() for each in moved).max() / 2
    assert joint < 0.99
    for relation_, delta, part in [
        ("replace-one", 1e-6, joint),
        ("replace-one", 0.0, 1.0),
        ("add/remove", 1e-6, 1.0),
    ]:
        curator = Curator(data, Budget(1.0, delta), neighbours=relation_, seed=0)
        for shares in ([1.0], [0.5, 0.6], [0.5, 0.4], [1.0, 0.0]):
            with pytest.raises(InvalidInput, match="shares must"):
                curator.measure_together(queries, shares, curator.remaining)
        with pytest.raises(InvalidInput, match="'z'"):
            curator.measure_together({("z",): [first]}, [1.0], curator.remaining)
        assert curator.ledger.spent == 0
        cost = curator.remaining / 2
        together = curator.measure_together(queries, [0.5, 0.5], cost)
        assert [e.step for e in curator.ledger.entries] == ["measure queries of 2 tables"]
        for found, (clique, rows) in zip(together, queries.items(), strict=True):
            alone = curator.measure_queries(clique, rows, cost / 2)
            assert (found.stddev / alone.stddev) ** 2 == pytest.approx(part, rel=1e-6)


def test_joint_charges_of_nearly_equal_columns_are_not_rounded_away() -> None:
    """Rows that differ in each attribute move the answers to all three products at full cost."""
    rng = np.random.default_rng(0)
    one, other = (FactorNorms.of(np.eye(n, dtype=np.int64)) for n in (3, 2))
    for base in (
        1,
        20240101,
        *(rng.integers(2**k, 2 ** (k + 1)) for k in range(29) for _ in "..."),
    ):
        dates = FactorNorms.of(np.array([[base, base + 1, base + 2]]))
        moves = JointMoves(relation("replace-one"), [{"a": dates}, {"b": one}, {"c": other}])
        for shares in rng.dirichlet(np.ones(3), 5):
            assert moves.most(shares) >= sum(shares) * (1 - 1e-15), base


@pytest.mark.parametrize("value", [1, 2**29])
def test_answers_that_no_row_moves_leave_the_others_charged(value: int) -> None:
    constant = FactorNorms.of(np.array([[value, value]]))
    other = FactorNorms.of(np.eye(3, dtype=np.int64))
    moves = JointMoves(relation("replace-one"), [{"a": constant}, {"b": other}])
    assert moves.most([0.5, 0.5]) >= 0.5
    moves = JointMoves(relation("replace-one"), [{"a": constant}, {"b": constant}, {"b": constant}])
    assert all(moves.most(shares) >= 0 for shares in np.random.default_rng(0).random((50, 3)))
