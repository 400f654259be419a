"""Region models against convex solvers, exact models and tables written out."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Sequence
from math import sqrt
from typing import Any, Literal

import cvxpy
import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from pgmkit import (
    Contradictory,
    Domain,
    FactoredQuery,
    FromRecords,
    GraphicalModel,
    Measurement,
    Zeros,
    estimate,
    estimate_total,
    queries,
)
from pgmkit.errors import InvalidInput, ModelTooLarge, NumericalFailure, TotalUndetermined
from pgmkit.linear.kronecker import Kronecker
from pgmkit.regions.model import RegionModel
from pgmkit.regions.polytope import LocalPolytope

Array = NDArray[np.float64]
TOTAL = 100.0


def drawn_matrix(kind: str, sizes: list[int], rng: np.random.Generator) -> Any:
    """What is measured of a table of these sizes."""
    cells = int(np.prod(sizes))
    rows = int(rng.integers(1, cells + 2))
    if kind == "cells":
        return None
    if kind == "prefix":
        return [np.tri(size) for size in sizes]
    if kind == "sparse":
        return scipy.sparse.random_array((rows, cells), density=0.5, rng=rng).tocsr()
    if kind == "factors":
        return [rng.normal(size=(int(rng.integers(1, size + 2)), size)) for size in sizes]
    return rng.normal(size=(rows, cells))


KINDS = ("cells", "prefix", "sparse", "factors", "dense")


@st.composite
def problems(draw: st.DrawFn) -> tuple[Domain, list[Measurement]]:
    """Up to five attributes, up to six tables over one to three of them, any matrix and noise."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=2, max_size=5))
    domain = Domain({f"x{i}": size for i, size in enumerate(sizes)})
    names = st.lists(st.sampled_from(domain.attributes), min_size=1, max_size=3, unique=True)
    cliques = draw(st.lists(names.map(tuple), min_size=1, max_size=6))
    kinds = draw(st.sampled_from([("cells",), KINDS]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    measured = []
    for clique in cliques:
        size = domain.size(clique)
        table = rng.dirichlet(np.full(size, 0.5)) * TOTAL
        matrix = drawn_matrix(str(rng.choice(kinds)), list(domain.shape(clique)), rng)
        exact = written(Measurement(clique, table, 1.0), matrix) @ table
        values = exact + rng.normal(0, 20, len(exact))
        measured.append(Measurement(clique, values, float(rng.uniform(0.5, 20)), matrix))
    return domain, measured


def written(m: Measurement, matrix: Any) -> Array:
    """The matrix of a measurement, entry by entry."""
    if matrix is None:
        return np.eye(len(m.values))
    if isinstance(matrix, Kronecker | list):
        factors = matrix.factors if isinstance(matrix, Kronecker) else matrix
        return functools.reduce(np.kron, factors)
    return matrix.toarray() if scipy.sparse.issparse(matrix) else np.asarray(matrix)


def sums_of(domain: Domain, clique: tuple[str, ...], kept: tuple[str, ...]) -> Array:
    """The matrix from a table over ``clique`` to that over ``kept``, entry by entry."""
    cells = list(itertools.product(*(range(domain.sizes[name]) for name in clique)))
    smaller = list(itertools.product(*(range(domain.sizes[name]) for name in kept)))
    matrix = np.zeros((len(smaller), len(cells)))
    for column, cell in enumerate(cells):
        values = dict(zip(clique, cell, strict=True))
        matrix[smaller.index(tuple(values[name] for name in kept)), column] = 1.0
    return matrix


def relaxed_optimum(
    domain: Domain,
    measured: list[Measurement],
    loss: str = "squared",
    total: float = TOTAL,
    zeros: Sequence[Zeros] = (),
) -> float:
    """The optimum of the relaxation by a solver that shares nothing with the engine."""
    tables = {frozenset(m.clique): m.clique for m in measured}
    variables = {key: cvxpy.Variable(domain.size(c), nonneg=True) for key, c in tables.items()}
    constraints = [cvxpy.sum(x) == total for x in variables.values()]
    for (a, first), (b, second) in itertools.combinations(tables.items(), 2):
        shared = tuple(sorted(a & b))
        left = sums_of(domain, first, shared) @ variables[a]
        constraints.append(left == sums_of(domain, second, shared) @ variables[b])
    for each in zeros:
        x, held = variables[frozenset(each.clique)], tables[frozenset(each.clique)]
        constraints.append(x[~each.within(domain, held).reshape(-1)] == 0)
    terms = []
    for m in measured:
        x = variables[frozenset(m.clique)]
        table = sums_of(domain, tables[frozenset(m.clique)], m.clique) @ x
        residual = (written(m, m.matrix) @ table - m.values) / m.stddev
        terms.append(
            {
                "squared": lambda r: cvxpy.sum_squares(r) / 2,
                "absolute": lambda r: sqrt(2) * cvxpy.norm1(r),
                "huber": lambda r: cvxpy.sum(cvxpy.huber(r, 1.345)) / 2,
            }[loss](residual)
        )
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum(cvxpy.hstack(terms))), constraints)
    return float(problem.solve(solver=cvxpy.CLARABEL))


def assert_consistent(model: RegionModel) -> None:
    for table in model.tables.values():
        assert table.min() >= 0
        assert table.sum() == pytest.approx(model.total, abs=1e-6)
    for (a, first), (b, second) in itertools.combinations(model.tables.items(), 2):
        shared = tuple(sorted(set(a) & set(b)))
        left = sums_of(model.domain, a, shared) @ first.reshape(-1)
        right = sums_of(model.domain, b, shared) @ second.reshape(-1)
        np.testing.assert_allclose(left, right, atol=1e-6)


@given(problems(), st.sampled_from(["squared", "squared", "huber", "absolute"]))
def test_tables_agree_and_are_the_relaxations_optimum(
    problem: tuple[Domain, list[Measurement]], loss: str
) -> None:
    domain, measured = problem
    model = estimate(
        domain, measured, total=TOTAL, inference="region", tolerance=1e-4, loss=loss, shrink=False
    )
    assert_consistent(model)
    optimum = relaxed_optimum(domain, measured, loss)
    close = 1e-5 * (1 + optimum)
    assert model.loss == pytest.approx(optimum, abs=close + 1e-4 * model.unit)
    assert model.certified
    assert model.loss - model.gap <= optimum + close


def possible_zeros(
    domain: Domain, measured: list[Measurement], rng: np.random.Generator
) -> list[Zeros]:
    """Zeros in some measured tables, all kept by two records at least."""
    records = [{name: int(rng.integers(size)) for name, size in domain.sizes.items()} for _ in "ab"]
    found = {}
    for m in measured:
        allowed = rng.random(domain.shape(m.clique)) < 0.6
        for record in records:
            allowed[tuple(record[name] for name in m.clique)] = True
        if rng.random() < 0.6:
            found[frozenset(m.clique)] = Zeros(m.clique, allowed)
    return list(found.values())


@settings(max_examples=50, deadline=None)
@given(problems(), st.integers(0, 2**32 - 1), st.sampled_from(["squared", "huber", "absolute"]))
def test_zeros_hold_at_the_optimum(
    problem: tuple[Domain, list[Measurement]], seed: int, loss: str
) -> None:
    domain, measured = problem
    zeros = possible_zeros(domain, measured, np.random.default_rng(seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = estimate(
            domain,
            measured,
            total=TOTAL,
            inference="region",
            shrink=False,
            tolerance=1e-3,
            zeros=zeros,
            loss=loss,
        )
    assert_consistent(model)
    for each in zeros:
        assert (model.marginal(each.clique)[~each.allowed] == 0).all()
    optimum = relaxed_optimum(domain, measured, loss, zeros=zeros)
    close = 1e-5 * (1 + optimum)
    assert model.certified, model
    assert model.loss - model.gap <= optimum + close
    assert model.loss >= optimum - close


def exact_model(
    domain: Domain, measured: list[Measurement], inference: Literal["exact", "auto"] = "exact"
) -> GraphicalModel:
    """On a junction tree, which fits; poor fits of odd matrices are no matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = estimate(domain, measured, total=TOTAL, inference=inference)
    assert isinstance(model, GraphicalModel)
    return model


@settings(max_examples=25, deadline=None)
@given(problems())
def test_auto_is_exact_where_that_fits_and_totals_are_those_implied(
    problem: tuple[Domain, list[Measurement]],
) -> None:
    domain, measured = problem
    exact, auto = exact_model(domain, measured), exact_model(domain, measured, "auto")
    for m in measured:
        np.testing.assert_array_equal(auto.marginal(m.clique), exact.marginal(m.clique))
    try:
        implied = estimate_total(measured).value
    except TotalUndetermined:
        implied = 0.0
    if implied > 0:
        assert estimate(domain, measured, inference="region").total == pytest.approx(implied)
    else:
        with pytest.raises(InvalidInput, match="total"):
            estimate(domain, measured, inference="region")


@settings(max_examples=25, deadline=None)
@given(problems())
def test_the_bound_holds_for_the_exact_model_too(
    problem: tuple[Domain, list[Measurement]],
) -> None:
    domain, measured = problem
    relaxed = estimate(domain, measured, total=TOTAL, inference="region")
    unshrunk = estimate(domain, measured, total=TOTAL, inference="region", shrink=False)
    exact = exact_model(domain, measured)
    for model in (relaxed, unshrunk):
        assert model.bound <= exact.loss * (1 + 1e-9) + 1e-9
    assert unshrunk.bound == pytest.approx(max(0.0, unshrunk.loss - unshrunk.gap), abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_on_a_tree_it_is_the_exact_model(seed: int) -> None:
    rng = np.random.default_rng(seed)
    domain = Domain({f"x{i}": int(rng.integers(2, 5)) for i in range(7)})
    edges = [(f"x{rng.integers(i)}", f"x{i}") for i in range(1, 7)]
    measured = [Measurement(e, rng.dirichlet(np.ones(domain.size(e))) * 1000, 5.0) for e in edges]
    relaxed = estimate(
        domain, measured, total=1000.0, inference="region", tolerance=1e-6, shrink=False
    )
    exact = estimate(domain, measured, total=1000.0, tolerance=1e-6)
    for edge in edges:
        np.testing.assert_allclose(relaxed.marginal(edge), exact.marginal(edge), atol=0.05)


@pytest.mark.parametrize("loss", ["squared", "huber", "absolute"])
def test_other_losses_and_matrices(loss: str) -> None:
    rng = np.random.default_rng(4)
    domain = Domain({"a": 3, "b": 4, "c": 2})
    measured = [
        Measurement(("a", "b"), rng.normal(8, 9, 6), 3.0, matrix=rng.normal(size=(6, 12))),
        Measurement(("c", "b"), rng.normal(12, 9, 8), 2.0),
        Measurement(("a", "c"), rng.normal(50, 9, 3), 4.0, matrix=[np.tri(3), [1.0, 0.0]]),
    ]
    model = estimate(domain, measured, total=TOTAL, inference="region", loss=loss, tolerance=1e-3)
    optimum = relaxed_optimum(domain, measured, loss)
    assert_consistent(model)
    assert model.loss - model.gap <= optimum * (1 + 1e-5) + 1e-5
    assert model.loss >= optimum * (1 - 1e-5) - 1e-5
    assert model.loss <= optimum + max(1e-3 * optimum, 1.1e-3 * model.unit)


@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(0, 2**32 - 1))
def test_linear_functions_have_no_lower_value(
    problem: tuple[Domain, list[Measurement]], seed: int
) -> None:
    domain, measured = problem
    cliques = {frozenset(m.clique): tuple(sorted(m.clique)) for m in measured}
    polytope = LocalPolytope(domain, tuple(cliques.values()), TOTAL)
    rng = np.random.default_rng(seed)
    gradient = rng.normal(size=polytope.offsets[-1])
    matrix, _, sums = polytope.constraints
    least = linprog(gradient, A_eq=matrix.toarray(), b_eq=sums).fun
    for scale in (0.0, 1.0, 10.0):
        assert polytope.lowest(gradient, scale * rng.normal(size=len(sums))) <= least + 1e-7
    # Those of a far target are nearly optimal: the bound is not only below, but near.
    step = 1e6
    point, multipliers = polytope.nearest(-step * gradient, np.ones(len(gradient)))
    assert polytope.lowest(gradient, multipliers / step) >= least - 1e-2 * TOTAL
    assert gradient @ point >= least - 1e-6 * TOTAL


def square(noise: float = 1.0, seed: int = 0) -> tuple[Domain, list[Measurement], Array]:
    """Four attributes in a cycle, from a joint table that is known."""
    rng = np.random.default_rng(seed)
    domain = Domain({"a": 2, "b": 3, "c": 2, "d": 3})
    joint = rng.dirichlet(np.full(36, 2.0)).reshape(2, 3, 2, 3) * 1000
    tables = {
        ("a", "b"): joint.sum((2, 3)),
        ("b", "c"): joint.sum((0, 3)),
        ("c", "d"): joint.sum((0, 1)),
        ("a", "d"): joint.sum((1, 2)),
    }
    measured = [Measurement(c, t + rng.normal(0, noise, t.shape), noise) for c, t in tables.items()]
    return domain, measured, joint


def test_answers_inside_are_the_tables_and_those_outside_say_so() -> None:
    domain, measured, _ = square()
    model = estimate(domain, measured, total=1000.0, inference="region")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(model.marginal(("b", "a")), model.marginal(("a", "b")).T)
        inside = model.answer(FactoredQuery({"b": queries.prefix(3), "a": [1.0, -1.0]}))
    table = model.marginal(("b", "a"))
    np.testing.assert_allclose(inside, np.tri(3) @ table @ [[1.0], [-1.0]], atol=1e-9)
    assert model.region(("a", "c")) is None
    with pytest.warns(FromRecords, match="20,000 records that come within"):
        outside = model.marginal(("c", "a"))
    counted = model.joint.records.marginal(("c", "a")) * (1000.0 / 20_000)
    # Chances are summed where these records are counted: five standard errors of a count are 18.
    np.testing.assert_allclose(outside, counted, atol=18)
    assert outside.sum() == pytest.approx(1000)
    asked = FactoredQuery({"d": queries.prefix(3), "a": [1.0, 0.5], "c": queries.identity(2)})
    with pytest.warns(FromRecords):
        answer = model.answer(asked)
    with pytest.warns(FromRecords):
        table = model.marginal(("d", "a", "c"))
    wanted = np.einsum("id,ja,dac->ijc", np.tri(3), np.array([[1.0, 0.5]]), table)
    np.testing.assert_allclose(answer, wanted, atol=1e-8)


def test_records_are_near_the_tables_and_near_the_exact_model() -> None:
    domain, measured, _ = square(noise=2.0)
    model = estimate(domain, measured, total=1000.0, inference="region")
    assert model.agreement.worst < 0.02
    drawn = model.sample(40_000, rng=1)
    assert len(drawn) == 40_000
    assert list(drawn.domain) == list(domain)
    exact = estimate(domain, measured, total=1000.0)
    for clique in itertools.combinations(domain, 2):
        counts = drawn.marginal(clique) / 40_000
        # 0.02 is 2.5 times the mean distance of 40,000 draws, and leaves room for the chain.
        assert np.abs(counts - exact.marginal(clique) / 1000).sum() / 2 < 0.02, clique
    again = model.sample(100, rng=3)
    np.testing.assert_array_equal(again.columns["a"], model.sample(100, rng=3).columns["a"])


def test_zeros_hold_in_tables_and_no_record_breaks_them() -> None:
    domain, measured, _ = square(noise=20.0)
    allowed = np.ones((2, 3), dtype=bool)
    allowed[0, 1:] = False
    other = np.array([[True, False], [True, True]])
    zeros = [Zeros(("a", "b"), allowed), Zeros(("a", "c"), other)]
    model = estimate(domain, measured, total=1000.0, inference="region", zeros=zeros)
    assert (model.tables["a", "b"][~allowed] == 0).all()
    assert_consistent(model)
    # Nobody measured a and c together: no table of theirs is kept, and records answer.
    with pytest.warns(FromRecords):
        assert (model.marginal(("a", "c"))[~other] == 0).all()
    drawn = model.sample(1000, rng=0)
    for each in zeros:
        assert (drawn.marginal(each.clique)[~each.allowed] == 0).all()


def test_contradicting_zeros_are_refused() -> None:
    domain = Domain({"a": 2, "b": 2, "c": 2})
    measured = [Measurement(c, np.full(4, 25.0), 1.0) for c in (("a", "b"), ("b", "c"))]
    first = Zeros(("a", "b"), [[True, False], [True, False]])
    second = Zeros(("b", "c"), [[False, False], [True, True]])
    with pytest.raises((NumericalFailure, InvalidInput), match="zeros"):
        estimate(domain, measured, total=100.0, inference="region", zeros=[first, second])


def all_pairs(attributes: int, size: int) -> tuple[Domain, list[Measurement]]:
    rng = np.random.default_rng(0)
    domain = Domain({f"x{i}": size for i in range(attributes)})
    records = rng.integers(size, size=(3, 5000))
    picks = rng.integers(3, size=attributes)
    columns = [np.where(rng.random(5000) < 0.5, records[k], records[0]) for k in picks]
    measured = []
    for i, j in itertools.combinations(range(attributes), 2):
        table = np.bincount(columns[i] * size + columns[j], minlength=size**2)
        measured.append(Measurement((f"x{i}", f"x{j}"), table + rng.normal(0, 10, size**2), 10.0))
    return domain, measured


def test_what_no_tree_holds_is_refused_with_the_way_out_and_auto_takes_it() -> None:
    domain, measured = all_pairs(12, 10)
    with pytest.raises(ModelTooLarge, match='inference="region"'):
        estimate(domain, measured, total=5000.0)
    model = estimate(domain, measured, total=5000.0, inference="auto")
    assert isinstance(model, RegionModel)
    assert model.certified
    assert "relaxed" in model.certificate
    assert_consistent(model)
    small, few = all_pairs(3, 3)
    assert not isinstance(estimate(small, few, total=5000.0, inference="auto"), RegionModel)


def test_the_processor_may_be_named_and_a_gpu_may_not() -> None:
    domain, measured, _ = square()
    plain = estimate(domain, measured, total=1000.0, inference="region")
    for device in ("cpu", "auto", torch.device("cpu")):
        named = estimate(domain, measured, total=1000.0, inference="region", device=device)
        assert named.loss == plain.loss
    with pytest.raises(InvalidInput, match="has no meaning with inference="):
        estimate(domain, measured, total=1000.0, inference="region", device=torch.device("cuda"))


def test_bad_input_is_named() -> None:
    domain, measured, _ = square()
    with pytest.raises(InvalidInput, match="inference must be one of 'exact', 'region', 'auto'"):
        estimate(domain, measured, inference="loopy")  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="callable"):
        estimate(
            domain, measured, total=1000.0, inference="region", loss=lambda t: t["a", "b"].sum()
        )
    with pytest.raises(InvalidInput, match="at least one attribute"):
        estimate(domain, [], total=1000.0, inference="region")
    with pytest.raises(ModelTooLarge, match="regions"):
        estimate(domain, measured, total=1000.0, inference="region", memory_limit=1000)
    model = estimate(domain, measured, total=1000.0, inference="region")
    with pytest.raises(InvalidInput, match="n must be a whole number of records from 1 to"):
        model.sample(0)
    with pytest.raises(InvalidInput, match="unknown attribute"):
        model.marginal(("a", "z"))


def test_tables_far_below_zero_are_fitted_in_any_unit() -> None:
    measured = [Measurement(("a",), [-3e9, -1e9], 1e8)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Contradictory)
        model = estimate(Domain({"a": 2}), measured, total=1e9, inference="region")
    # The cells differ by more than the total.
    np.testing.assert_allclose(model.marginal(["a"]), [0.0, 1e9])


def test_contradictory_tables_of_very_different_noise_are_fitted() -> None:
    shape = np.array([0.3, 0.0, 0.0, 0.2])
    pairs = list(itertools.combinations("abc", 2))
    shifts, stddevs = (1.0, -1.0, -5.0), (6e-6, 1.5e-3, 19.0)
    measured = [
        Measurement(pair, shape + shift, stddev)
        for pair, shift, stddev in zip(pairs, shifts, stddevs, strict=True)
    ]
    domain = Domain(dict.fromkeys("abc", 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Contradictory)
        model = estimate(domain, measured, total=1.0, inference="region")
    assert model.certified
    # Only the sum of each is wrong, which an equal change of all cells mends.
    nearest = (shape + 0.125).reshape(2, 2)
    for pair in pairs[:2]:
        np.testing.assert_allclose(model.marginal(pair), nearest, atol=1e-3)


def test_a_product_that_does_not_fit_into_memory_is_not_written_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All ranges of two attributes are 6,084 answers over 144 cells: 7 MB written out."""
    domain = Domain({"a": 12, "b": 12})
    ranges = np.array(
        [(i <= np.arange(12)) & (np.arange(12) <= j) for i in range(12) for j in range(i, 12)]
    )
    product = Kronecker([ranges.astype(float)] * 2)
    noisy = Measurement(("a", "b"), product.matvec(np.full(144, 10.0)), 1.0, product)
    monkeypatch.setattr(Kronecker, "to_dense", lambda _: pytest.fail("it was written out"))
    monkeypatch.setattr("pgmkit.least_squares.sufficient_statistics.MOST_FACTORED", 1)
    model = estimate(domain, [noisy], total=1440.0, inference="region", memory_limit=6 << 20)
    np.testing.assert_allclose(model.marginal(["a", "b"]), 10.0, atol=0.1)


def test_a_step_that_rounding_spoils_leaves_tables_of_the_total() -> None:
    """Its tables beyond all measure were projected to their own rounding: to a sum of 0.11."""
    domain, zeros = Domain({"a": 1, "b": 3}), Zeros(("a", "b"), [[False, True, True]])
    measured = Measurement(("b",), [-1.6290990794799305e-4], 1e-9, np.array([[0.0, 0.0, 1.0]]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Contradictory)
        model = estimate(domain, [measured], total=0.01, zeros=[zeros], inference="region")
    np.testing.assert_allclose(model.marginal(["b"]), [0.0, 0.01, 0.0], atol=1e-9)


@pytest.mark.parametrize("shrink", [True, False])
@pytest.mark.parametrize("size", [1e6, 1e9, 1e12])
def test_tables_of_noise_far_beyond_the_total_have_it(size: float, shrink: bool) -> None:
    """They had it to the rounding of the noise alone: 2.4 counts in place of 1."""
    rng, domain = np.random.default_rng(0), Domain({"a": 3, "b": 4, "c": 2})
    measured = [
        Measurement(pair, size * rng.normal(size=domain.shape(pair)), size)
        for pair in itertools.combinations("abc", 2)
    ]
    model = estimate(domain, measured, total=1.0, inference="region", shrink=shrink)
    sums = [model.tables[pair].sum(1) for pair in (("a", "b"), ("a", "c"))]
    np.testing.assert_allclose(sums[0], sums[1], atol=1e-9)
    assert [table.sum() for table in model.tables.values()] == pytest.approx([1.0] * 3, abs=1e-9)


def test_a_search_that_fails_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where interior points do not fit into memory, nothing is left to be tried."""
    searches = []

    def fails(_search: object, _squares: object, parts: object) -> None:
        searches.append(parts)
        raise NumericalFailure("no projection")

    monkeypatch.setattr("pgmkit.regions.estimation.Search.run", fails)
    domain = Domain({"a": 2, "b": 2})
    whole = [Measurement(("a", "b"), np.ones((2, 2)), 1.0)]
    for needed, tried in ((1 << 60, 1), (0, 2)):
        monkeypatch.setattr("pgmkit.regions.estimation.needed_bytes", lambda *_, n=needed: n)
        searches.clear()
        with pytest.raises(NumericalFailure, match="no projection"):
            estimate(domain, whole, inference="region")
        assert [parts is None for parts in searches] == [True, False][:tried]
