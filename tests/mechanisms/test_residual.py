"""The residual planner against explicit matrices: prices, least errors, variances, estimates."""

import itertools
import math
from functools import reduce

import numpy as np
import pytest
from chance import assert_mean
from hypothesis import given
from hypothesis import strategies as st
from pricing import Priced

from mechanisms import MECHANISMS, run
from mechanisms.datasets.census import census
from mechanisms.families.residual_tables import ResidualTables
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.integer_matrix import GridMatrix
from mechanisms.privacy.neighbours import NEIGHBOURS, Neighbours, relation
from mechanisms.residual import Residual, measure_residuals, residual
from mechanisms.strategies.marginals import marginals_strategy
from mechanisms.strategies.residuals import (
    ResidualsStrategy,
    residual_matrix,
    residuals_strategy,
)
from mechanisms.workload import Workload, k_way
from pgmkit import estimate
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.measurement import Measurement

DATA = census(2000).project(["sex", "work", "hours", "income"])
PAIRS = k_way(DATA.domain, 2)
RELATIONS = [
    *NEIGHBOURS.values(),
    relation("add/remove", "person", 3),
    relation("replace-one", "person", 3),
]


def drawn_workload(seed: int) -> Workload:
    """A few random cliques with random weights over a small random domain."""
    rng = np.random.default_rng(seed)
    domain = Domain(
        {name: int(size) for name, size in zip("abcd", rng.integers(1, 5, 4), strict=True)}
    )
    every = [c for k in (0, 1, 2, 3) for c in itertools.combinations("dbca", k)]
    picked = rng.choice(len(every), int(rng.integers(1, 6)), replace=False)
    cliques = [every[place] for place in picked]
    return Workload(domain, cliques, rng.uniform(0.2, 3, len(cliques)).tolist())


def on_data(domain: Domain, clique: Clique, factors: dict[str, np.ndarray]) -> np.ndarray:
    """Queries of a clique on the data vector, attributes in the domain's order."""
    parts = [
        factors.get(name, np.eye(size)) if name in clique else np.ones((1, size))
        for name, size in domain.sizes.items()
    ]
    return reduce(np.kron, parts, np.ones((1, 1)))


def projection(domain: Domain, part: Clique) -> np.ndarray:
    """P_A on the data vector, from its definition."""
    sizes = domain.sizes
    return on_data(domain, part, {name: np.eye(sizes[name]) - 1 / sizes[name] for name in part})


def price(change: np.ndarray, norm: int) -> float:
    """What answers that change so cost, with noise of scale 1: epsilon, or rho."""
    return float(np.abs(change).sum() if norm == 1 else (change**2).sum() / 2)


def worst_price(matrix: np.ndarray, neighbours: Neighbours, norm: int) -> float:
    """Over all moves of all rows of a unit from one cell to another, in, or out."""
    columns = [*matrix.T] if neighbours.exchanged else []
    rows = neighbours.max_rows
    moves = [rows * (x - y) for x, y in itertools.permutations(columns, 2)]
    if not neighbours.rows_public:
        moves += [rows * column for column in matrix.T]
    return max(price(move, norm) for move in moves)


def strategy_or_none(
    workload: Workload, neighbours: Neighbours, norm: int, known: bool, objective: str = "sum"
) -> ResidualsStrategy | None:
    try:
        return residuals_strategy(
            workload,
            neighbours,
            norm,
            total_known=known,
            objective=objective,  # type: ignore[arg-type]
        )
    except InvalidInput:
        asked = {n for c in workload.cliques for n in c if workload.domain.sizes[n] > 1}
        assert known and not asked
        return None


@given(st.integers(0, 2**32))
def test_the_sum_reaches_the_bound_of_all_gaussian_mechanisms(seed: int) -> None:
    """The square of the sum of the singular values over the cells (Li and Miklau 2013): no noise
    that is Gaussian, of whatever queries, has a smaller expected squared error where a row is
    added or removed."""
    workload = drawn_workload(seed)
    found = residuals_strategy(workload, relation("add/remove"), 2, total_known=False)
    rows = [
        math.sqrt(weight) * on_data(workload.domain, clique, {})
        for clique, weight in zip(workload.cliques, workload.weights, strict=True)
    ]
    singular = np.linalg.svd(np.vstack(rows), compute_uv=False)
    bound = singular.sum() ** 2 / workload.domain.size()
    assert 2 * found.sum == pytest.approx(bound, rel=1e-9)
    assert found.sum == pytest.approx(found.lower_bound, rel=1e-9)
    assert sum(found.shares.values()) == pytest.approx(1)


@given(st.integers(0, 2**32), st.sampled_from(RELATIONS), st.sampled_from([1, 2]), st.booleans())
def test_errors_against_the_written_out_mechanism(
    seed: int, neighbours: Neighbours, norm: int, known: bool
) -> None:
    """Noise on P_A as large as its worst neighbours ask for; errors by generalised least squares
    on the data vector."""
    workload = drawn_workload(seed)
    found = strategy_or_none(workload, neighbours, norm, known)
    if found is None:
        return
    rows = []
    for part, share in found.shares.items():
        matrix = projection(workload.domain, part)
        # Marginal cells, not cells of the domain: each stands for many alike.
        single = matrix[:, np.unique(matrix, axis=1, return_index=True)[1]]
        stated = neighbours.l1 if norm == 1 else neighbours.l2**2 / 2
        worst = worst_price(single, neighbours, norm) if part else stated
        scale = worst / share if norm == 1 else math.sqrt(worst / share)
        bound = norm == 1 and neighbours.exchanged and len(part) > 1
        if bound:  # the difference of two columns is bounded by twice the norm of one
            scale = neighbours.max_rows * 2 * np.abs(single).sum(axis=0).max() / share
        rows.append(matrix / (scale * math.sqrt(2 if norm == 1 else 1)))
    # What a known total leaves open are the directions of sum zero.
    free = np.eye(workload.domain.size())
    if known:
        free = np.linalg.svd(np.ones((1, len(free))))[2][1:].T
    seen = np.vstack(rows) @ free
    covariance = free @ np.linalg.pinv(seen.T @ seen, rcond=1e-10, hermitian=True) @ free.T
    total, largest = 0.0, 0.0
    for clique, weight in zip(workload.cliques, workload.weights, strict=True):
        queries = on_data(workload.domain, clique, {})
        variances = np.einsum("ij,jk,ik->i", queries, covariance, queries)
        assert np.ptp(variances) <= 1e-6 * variances.max() + 1e-9
        total += weight * variances.sum()
        largest = max(largest, weight * variances.max())
    assert found.sum == pytest.approx(total, rel=1e-6, abs=1e-9)
    assert found.largest == pytest.approx(largest, rel=1e-6, abs=1e-9)


@given(
    st.integers(0, 2**32),
    st.sampled_from(RELATIONS),
    st.sampled_from([1, 2]),
    st.sampled_from(["sum", "largest"]),
)
def test_no_other_shares_are_better(
    seed: int, neighbours: Neighbours, norm: int, objective: str
) -> None:
    workload = drawn_workload(seed)
    found = strategy_or_none(workload, neighbours, norm, False, objective)
    assert found is not None
    value = found.sum if objective == "sum" else found.largest
    assert found.lower_bound * (1 - 1e-9) <= value <= found.lower_bound * 1.001 * (1 + 1e-9)
    other = strategy_or_none(workload, neighbours, norm, False)
    even = residuals_strategy(
        Workload(workload.domain, workload.cliques), neighbours, norm, total_known=False
    )
    assert other is not None and even.shares.keys() == found.shares.keys()
    if objective == "largest":
        assert value <= other.largest * 1.001


def test_the_largest_variance_against_a_general_optimiser() -> None:
    """SLSQP on (shares, largest variance), which knows nothing of duality."""
    from scipy.optimize import minimize

    from mechanisms.families.residual_tables import variance_parts

    domain = Domain({"a": 2, "b": 3, "c": 7})
    workload = Workload(domain, [("a", "b"), ("c",), ("b", "c"), ("a", "c")], [1, 4, 0.5, 2])
    found = residuals_strategy(
        workload, relation("add/remove"), 2, total_known=False, objective="largest"
    )
    parts = list(found.shares)
    lines = [variance_parts(domain, clique) for clique in workload.cliques]
    prices = [math.prod(1 - 1 / domain.sizes[n] for n in part) / 2 for part in parts]

    def largest(logs: np.ndarray) -> np.ndarray:
        shares = np.exp(logs - np.log(np.exp(logs).sum()))
        return np.array(
            [
                weight
                * sum(
                    line.get(a, 0.0) * k / s for a, k, s in zip(parts, prices, shares, strict=True)
                )
                for line, weight in zip(lines, workload.weights, strict=True)
            ]
        )

    start = np.append(np.zeros(len(parts)), largest(np.zeros(len(parts))).max())
    best = minimize(
        lambda x: x[-1],
        start,
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda x: x[-1] - largest(x[:-1])},
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert best.success and found.largest == pytest.approx(best.fun, rel=2e-3)


@given(st.integers(0, 2**32))
def test_never_worse_than_noise_on_marginals(seed: int) -> None:
    """HDMM's strategies of marginals hold their residuals in fixed proportions."""
    workload = drawn_workload(seed)
    if min(workload.domain.shape()) < 2 or not any(workload.cliques):
        return
    ours = residuals_strategy(workload, relation("add/remove"), 2, total_known=False)
    theirs = marginals_strategy(workload, {}, 2, False)
    assert 2 * ours.sum <= theirs.expected_error * (1 + 1e-9)


@pytest.mark.parametrize("neighbours", RELATIONS, ids=lambda each: each.name)
@pytest.mark.parametrize("delta", [0.0, 1e-8])
def test_draws_match_charges_and_the_plan(neighbours: Neighbours, delta: float) -> None:
    """The Curator's scale on whole numbers is what the plan reckons with."""
    curator = Curator(DATA, Budget(1.0, delta), neighbours=neighbours, seed=0)
    norm = 1 if delta == 0 else 2
    known = curator.public_total is not None
    plan = residuals_strategy(PAIRS, neighbours, norm, total_known=known)
    whole = curator.remaining
    measurements = measure_residuals(curator, PAIRS)
    assert curator.remaining == pytest.approx(0, abs=1e-12)
    costs = {m.clique: e.cost for m, e in zip(measurements, curator.ledger.entries, strict=True)}
    assert costs == pytest.approx({a: s * whole for a, s in plan.shares.items()}, rel=1e-9)
    tables = ResidualTables(DATA.domain, measurements, curator.public_total)
    expected = sum(tables.variance(c) * DATA.domain.size(c) for c in PAIRS.cliques)
    assert expected == pytest.approx(plan.sum / whole ** (2 / norm), rel=1e-9)


class Kept(Priced):
    """Keeps what was asked for on whole numbers."""

    def gaussian(self, counts: np.ndarray, scale: float) -> np.ndarray:
        self.asked = counts.copy(), scale
        return super().gaussian(counts, scale)


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_the_price_is_the_papers_and_is_attained(neighbours: str) -> None:
    domain = Domain({"a": 2, "b": 3, "c": 4})
    part = ("a", "b", "c")
    cells = list(np.ndindex(*domain.shape()))
    grid = GridMatrix.over(domain, part, residual_matrix(domain, part))
    worst = 0.0
    for x, y in itertools.product(cells, cells):
        before, after = np.zeros((2, *domain.shape()), dtype=np.int64)
        after[x] += 1
        before[y] += neighbours == "replace-one"
        moved = grid.answers(after.reshape(-1)) - grid.answers(before.reshape(-1))
        worst = max(worst, float((moved**2).sum()) * grid.unit**2)
    curator = Curator(
        DATA.project(["sex", "work"]), Budget(1.0, 1e-6), neighbours=neighbours, seed=0
    )
    cost = curator.remaining
    stated = relation(neighbours).largest_move(lambda differ: grid.l2_squared(differ) ** 0.5)
    assert (stated * grid.unit) ** 2 == pytest.approx(worst, rel=1e-12)
    if neighbours == "add/remove":
        assert worst == pytest.approx((2 * 3 * 4) * (1 * 2 * 3))  # p_A times the squared product
    matrix = residual_matrix(curator.domain, ("sex", "work"))
    noise = curator._noise = Kept(neighbours, pure=False)
    m = curator.measure_queries(("sex", "work"), matrix, cost)
    exact = m.matrix.matvec(curator._data.marginal(("sex", "work")).reshape(-1))
    assert np.array_equal(noise.asked[0] * m.stddev / noise.asked[1], exact)


@pytest.mark.parametrize("sizes", [(2000, 2, 2), (70, 5, 5, 5, 5)])
def test_large_columns_stay_whole_numbers(sizes: tuple[int, ...]) -> None:
    """Rounded, the queries would not be of the residual any more."""
    domain = Domain({f"x{i}": size for i, size in enumerate(sizes)})
    matrix = residual_matrix(domain, domain.attributes)
    grid = GridMatrix.over(domain, domain.attributes, matrix)
    for factor, exact in zip(grid.factors, matrix, strict=True):
        assert not factor.sum(axis=0).any()
        assert np.array_equal(factor / factor[0, 0], exact / exact[0, 0])
    assert grid.unit * math.prod(int(f[0, 0]) for f in grid.factors) == math.prod(
        size - 1 for size in sizes
    )


@pytest.mark.parametrize("total", [None, 40.0])
def test_tables_are_the_least_squares_solution(total: float | None) -> None:
    domain = Domain({"a": 2, "b": 3, "year": 1, "c": 4})
    rng = np.random.default_rng(0)
    parts = [("a",), ("b",), ("c",), ("b", "a"), ("c", "b")]
    measurements = [
        Measurement(
            a, rng.normal(0, 9, domain.size(a)), rng.uniform(1, 5), residual_matrix(domain, a)
        )
        for a in parts
    ]
    rows = [np.full((1, domain.size()), 1e5)]
    values = [np.full(1, 1e5 * (total or 31.0))]
    if total is None:
        measurements.append(Measurement((), [31.0], 2.0))
    for m in measurements[: len(parts)]:
        sizes = domain.sizes
        ordered = tuple(sorted(m.clique))
        factors = {n: sizes[n] * np.eye(sizes[n]) - 1 for n in m.clique}
        table = m.values.reshape(domain.shape(m.clique))
        table = table.transpose([m.clique.index(name) for name in ordered])
        rows.append(on_data(domain, ordered, factors) / m.stddev)
        values.append(table.reshape(-1) / m.stddev)
    matrix = np.vstack(rows)
    x = np.linalg.lstsq(matrix, np.concatenate(values), rcond=1e-13)[0]
    covariance = np.linalg.pinv(matrix.T @ matrix, rcond=1e-15, hermitian=True)
    tables = ResidualTables(domain, measurements, total)
    for clique in [("a", "b"), ("b", "c"), ("c",), ("a", "b", "year"), ()]:
        queries = on_data(domain, clique, {})
        found = tables.marginal(clique)
        assert np.allclose(found.reshape(-1), queries @ x, atol=1e-6)
        extra = 0.0 if total is not None else 4.0 / domain.size(clique) ** 2
        variances = np.einsum("ij,jk,ik->i", queries, covariance, queries)
        assert np.allclose(tables.variance(clique), variances + extra, rtol=1e-4, atol=1e-6)
    turned = tables.marginal(("b", "a"))
    assert np.array_equal(turned, tables.marginal(("a", "b")).T)
    with pytest.raises(InvalidInput, match="residual of \\('a', 'c'\\), which was not measured"):
        tables.marginal(("c", "a"))


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_errors_are_the_stated_variances(neighbours: str) -> None:
    squares: dict[Clique, list[float]] = {clique: [] for clique in [*PAIRS.cliques, ("work",)]}
    for seed in range(200):
        curator = Curator(DATA, Budget(1.0, 1e-8), neighbours=neighbours, seed=seed)
        tables = ResidualTables(
            DATA.domain, measure_residuals(curator, PAIRS), curator.public_total
        )
        for clique, found in squares.items():
            gaps = tables.marginal(clique) - DATA.marginal(clique)
            found.append(float((gaps**2).mean()) / tables.variance(clique))
    for found in squares.values():
        assert_mean(found, 1.0)


def test_a_model_of_the_residuals_is_near_their_tables() -> None:
    """With little noise nothing binds at zero, and the best model has the least squares tables."""
    curator = Curator(DATA, Budget(2000.0, 1e-8), neighbours="replace-one", seed=0)
    edges = Workload(DATA.domain, [("sex", "income"), ("work", "income")])
    measurements = measure_residuals(curator, edges)
    tables = ResidualTables(DATA.domain, measurements, curator.public_total)
    model = estimate(DATA.domain, measurements, total=len(DATA), tolerance=1e-3)
    for clique in edges.cliques:
        low = np.minimum(tables.marginal(clique), 0).min()
        assert np.abs(model.marginal(clique) - tables.marginal(clique)).max() < 1 - 2 * low


def test_forty_columns() -> None:
    domain = Domain({f"x{i}": 2 + i % 19 for i in range(40)})
    rng = np.random.default_rng(0)
    from pgmkit.records.dataset import Dataset

    data = Dataset(domain, {n: rng.integers(0, size, 500) for n, size in domain.sizes.items()})
    pairs = k_way(domain, 2)
    for objective in ("sum", "largest"):
        release = run(
            Residual(objective=objective),  # type: ignore[arg-type]
            data,
            pairs,
            1.0,
            1e-8,
            neighbours="add/remove",
            seed=0,
        )
        assert len(release.measurements) == 1 + 40 + 780
        assert release.model.marginal(("x3", "x9")).shape == (5, 11)


def test_refusals_come_before_spending() -> None:
    curator = Curator(DATA, Budget(1.0, 1e-8), neighbours="replace-one", seed=0)
    with pytest.raises(InvalidInput, match="objective must be one of 'sum', 'largest'; got 'mean'"):
        Residual(objective="mean")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="a total that is public"):
        residual(curator, [()])
    with pytest.raises(InvalidInput, match="another domain"):
        residual(curator, k_way(Domain({"a": 2, "b": 2}), 2))
    assert curator.ledger.spent == 0 and MECHANISMS["residual"].measures


def test_measurements_that_are_not_of_residuals_are_refused() -> None:
    domain = Domain({"a": 2, "b": 3})
    one = Measurement(("a",), [1.0, -1.0], 1.0, residual_matrix(domain, ("a",)))
    for given_ in ([Measurement(("a",), [1.0, 2.0], 1.0)], [one, one]):
        with pytest.raises(InvalidInput, match="not of a residual|given twice"):
            ResidualTables(domain, given_, 3.0)
    with pytest.raises(InvalidInput, match="the total is missing"):
        ResidualTables(domain, [one])
