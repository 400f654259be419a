"""The matrix mechanism against explicit matrices: prices, least errors, variances, estimates."""

import itertools
import math
from functools import reduce

import numpy as np
import pytest
from chance import assert_mean
from hypothesis import example, given
from hypothesis import strategies as st
from pricing import Priced
from seams import draw_from, private_records

from benchmarks.lower_bound import lower_bound
from mechanisms import MECHANISMS, run
from mechanisms.baselines import Gaussian, Projection, gaussian
from mechanisms.datasets.census import census
from mechanisms.families.tables import TablesModel
from mechanisms.matrix import Matrix, MatrixPgm, matrix, matrix_pgm
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.integer_matrix import GridMatrix
from mechanisms.privacy.neighbours import NEIGHBOURS, Neighbours, relation
from mechanisms.queries.query_sets import QUERIES, QuerySet, query_rows
from mechanisms.strategies.best import best_strategy
from mechanisms.strategies.least_error import best_precision
from mechanisms.strategies.marginals import marginals_strategy
from mechanisms.strategies.residuals import Objective, ResidualsStrategy, residuals_strategy
from mechanisms.workload import Workload, k_way
from pgmkit import Dataset, estimate
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.least_squares.linear_estimate import LinearEstimate
from pgmkit.least_squares.residual_tables import ResidualTables
from pgmkit.measurement import Measurement
from pgmkit.model import GraphicalModel
from pgmkit.queries import FactoredQuery, prefix
from pgmkit.uncertainty.measured import MeasuredBars

DATA = census(2000).project(["sex", "work", "hours", "income"])
PAIRS = k_way(DATA.domain, 2)
HOURS = {"hours": "prefix"}
RELATIONS = [
    *NEIGHBOURS.values(),
    relation("add/remove", "person", 3),
    relation("replace-one", "person", 3),
]
ADDED = relation("add/remove")


def drawn_sets(seed: int, plain: bool = False) -> tuple[Domain, list[QuerySet]]:
    """A few random sets of queries with random weights over a small random domain.

    An attribute may be asked by several matrices, some of low rank.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, 4).tolist()
    domain = Domain(dict(zip("abcd", sizes, strict=True)))
    every = [c for k in (0, 1, 2, 3) for c in itertools.combinations("dbca", k)]
    picked = rng.choice(len(every), int(rng.integers(1, 6)), replace=False)
    own = {n: rng.normal(size=(int(rng.integers(1, 6)), size)) for n, size in domain.sizes.items()}
    names = [*QUERIES, "own"] if not plain else ["identity"]
    sets = []
    for place in picked:
        asked = [str(rng.choice(names)) for _ in every[place]]
        matrices = [own[n] if a == "own" else a for n, a in zip(every[place], asked, strict=True)]
        sets.append(QuerySet(every[place], tuple(matrices), float(rng.uniform(0.2, 3))))
    return domain, sets


def planned(
    domain: Domain,
    sets: list[QuerySet],
    neighbours: Neighbours = ADDED,
    norm: int = 2,
    known: bool = False,
    objective: Objective = "sum",
) -> ResidualsStrategy:
    return residuals_strategy(
        domain, sets, neighbours, norm, total_known=known, objective=objective
    )


def planned_or_none(
    domain: Domain, sets: list[QuerySet], neighbours: Neighbours, norm: int, known: bool
) -> ResidualsStrategy | None:
    try:
        return planned(domain, sets, neighbours, norm, known)
    except InvalidInput:
        assert known and not {n for each in sets for n in each.clique if domain.sizes[n] > 1}
        return None


def on_data(domain: Domain, factors: dict[str, np.ndarray]) -> np.ndarray:
    """Queries on the data vector, attributes in the domain's order; others are summed away."""
    parts = [factors.get(name, np.ones((1, size))) for name, size in domain.sizes.items()]
    return reduce(np.kron, parts, np.ones((1, 1)))


def of_set(domain: Domain, each: QuerySet) -> np.ndarray:
    return on_data(domain, factors_of(domain, each))


def factors_of(domain: Domain, each: QuerySet) -> dict[str, np.ndarray]:
    return {
        name: query_rows(asked, domain.sizes[name])
        for name, asked in zip(each.clique, each.asked, strict=True)
    }


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


@given(st.integers(0, 2**32))
def test_marginals_reach_the_bound_of_all_gaussian_mechanisms(seed: int) -> None:
    """The square of the sum of the singular values over the cells (Li and Miklau 2013): no noise
    that is Gaussian, of whatever queries, has a smaller expected squared error where a row is
    added or removed."""
    domain, sets = drawn_sets(seed, plain=True)
    found = planned(domain, sets)
    rows = np.vstack([math.sqrt(each.weight) * of_set(domain, each) for each in sets])
    bound = np.linalg.svd(rows, compute_uv=False).sum() ** 2 / domain.size()
    assert 2 * found.expected_error == pytest.approx(bound, rel=1e-9)
    assert found.objective == pytest.approx(found.lower_bound, rel=1e-9)
    assert 2 * lower_bound(domain, sets) == pytest.approx(bound, rel=1e-4)
    assert sum(found.shares.values()) == pytest.approx(1)


@given(st.integers(0, 2**32))
def test_plans_lie_between_the_best_of_all_strategies_and_noise_on_cells(seed: int) -> None:
    """`best_precision` on the data vector is the best of all, within a fraction 1e-4."""
    domain, sets = drawn_sets(seed)
    rows = np.vstack([math.sqrt(each.weight) * of_set(domain, each) for each in sets])
    _, weights = best_precision(rows.T @ rows)
    best = np.linalg.svd(rows * np.sqrt(weights), compute_uv=False).sum() ** 2
    found = 2 * planned(domain, sets).expected_error
    assert 2 * lower_bound(domain, sets) <= best * 1.001 and best <= found * (1 + 1e-9)
    if len(sets) == 1 and len(sets[0].clique) == 1 and min(domain.shape()) > 1:
        assert found <= best * 1.01


@pytest.mark.parametrize("kind", QUERIES)
def test_one_attribute_is_asked_as_well_as_by_any_strategy(kind: str) -> None:
    domain, sets = Domain({"a": 40, "b": 3}), [QuerySet(("a",), (kind,))]
    rows = query_rows(kind, 40)
    _, weights = best_precision(rows.T @ rows, close=1e-7)
    best = np.linalg.svd(rows * np.sqrt(weights), compute_uv=False).sum() ** 2
    assert best * (1 - 1e-9) <= 2 * planned(domain, sets).expected_error <= best * 1.001


@pytest.mark.parametrize("sizes", [(6, 5, 4), (9, 3, 2)])
def test_each_residual_has_rows_as_good_as_any_that_see_the_even_total(
    sizes: tuple[int, ...],
) -> None:
    """Residuals taken apart by the even table, as QuerySmasher does; each is then measured by the
    best strategy for its cells, which need not be a product."""
    domain = Domain(dict(zip("abc", sizes, strict=True)))
    kinds = {1: "range", 2: "prefix", 3: "identity"}
    sets = [
        QuerySet(c, (kind,) * k)
        for k, kind in kinds.items()
        for c in itertools.combinations(domain, k)
    ]
    root = 0.0
    for part in itertools.chain(*(itertools.combinations(domain, k) for k in range(4))):
        gram = np.zeros((domain.size(part),) * 2)
        for each in sets:
            if set(part) <= set(each.clique):
                turned = [
                    rows @ ((n := rows.shape[1]) * np.eye(n) - 1) / n
                    if name in part
                    else rows.mean(axis=1, keepdims=True)
                    for name, rows in factors_of(domain, each).items()
                ]
                seen = reduce(np.kron, turned)
                gram += seen.T @ seen
        values = np.linalg.eigvalsh(gram * np.sqrt(np.outer(w := best_precision(gram)[1], w)))
        root += float(np.sqrt(values.clip(min=0)).sum())
    assert 2 * planned(domain, sets).expected_error <= root**2 * 1.005


@given(st.integers(0, 2**32), st.sampled_from(RELATIONS), st.sampled_from([1, 2]), st.booleans())
def test_errors_against_the_written_out_mechanism(
    seed: int, neighbours: Neighbours, norm: int, known: bool
) -> None:
    assert_written_out(seed, neighbours, norm, known)


@pytest.mark.parametrize("seed", [0, 2, 5])
@pytest.mark.parametrize(
    ("neighbours", "norm", "known"),
    [
        (RELATIONS[0], 2, False),
        (RELATIONS[1], 2, True),
        (RELATIONS[1], 1, True),
        (RELATIONS[2], 1, False),
    ],
    ids=lambda each: getattr(each, "name", None),
)
def test_errors_of_fixed_workloads(
    seed: int, neighbours: Neighbours, norm: int, known: bool
) -> None:
    assert_written_out(seed, neighbours, norm, known)


def assert_written_out(seed: int, neighbours: Neighbours, norm: int, known: bool) -> None:
    """Every residual costs its share at most, or all together theirs where they are charged at
    once, and errors are those of least squares on all that is measured, on the data vector."""
    domain, sets = drawn_sets(seed)
    found = planned_or_none(domain, sets, neighbours, norm, known)
    if found is None:
        return
    at_once = norm == 2 and neighbours.exchanged
    if at_once:
        assert_charged_at_once(domain, found, neighbours)
    rows = []
    for part, share in found.shares.items():
        measured = on_data(domain, dict(zip(part, found.rows(part), strict=True)))
        scale = math.sqrt(found.noise.variances[part] / (2 if norm == 1 else 1))
        # Marginal cells, not cells of the domain: each stands for many alike.
        single = np.unique(measured, axis=1)
        stated = neighbours.l1 if norm == 1 else neighbours.l2**2 / 2
        worst = worst_price(single, neighbours, norm) if part else stated
        worst /= scale if norm == 1 else scale**2
        assert worst <= share * (1 + 1e-9) or (at_once and part)
        if not neighbours.exchanged or (len(part) == 1 and norm == 1):
            assert worst == pytest.approx(share, rel=1e-9)
        rows.append(measured / math.sqrt(found.noise.variances[part]))
    # What a known total leaves open are the directions of sum zero.
    free = np.eye(domain.size())
    if known:
        free = np.linalg.svd(np.ones((1, len(free))))[2][1:].T
    seen = np.vstack(rows) @ free
    best, total = np.linalg.pinv(seen, rcond=1e-10), 0.0
    for each in sets:
        queries = of_set(domain, each) @ free
        shown = queries @ best
        assert np.allclose(shown @ seen, queries, atol=1e-6)
        variances = (shown**2).sum(axis=1)
        stated = found.noise.variance(FactoredQuery(factors_of(domain, each)))
        ordered = tuple(sorted(each.clique))
        turned = np.array(stated).reshape([len(factors_of(domain, each)[n]) for n in each.clique])
        turned = turned.transpose([each.clique.index(name) for name in ordered])
        assert np.allclose(turned.reshape(-1), variances, rtol=1e-5, atol=1e-9)
        total += each.weight * variances.sum()
    assert found.expected_error == pytest.approx(total, rel=1e-5, abs=1e-9)


def assert_charged_at_once(
    domain: Domain, found: ResidualsStrategy, neighbours: Neighbours, exactly: bool = False
) -> None:
    """All pairs of rows of the domain, on the residuals written out below each other."""
    parts = [part for part in found.shares if part]
    rows = [
        on_data(domain, dict(zip(part, found.rows(part), strict=True)))
        / math.sqrt(found.noise.variances[part])
        for part in parts
    ]
    worst = worst_price(np.vstack(rows), neighbours, 2) if rows else 0.0
    charged = sum(found.shares[part] for part in parts)
    assert worst <= charged * (1 + 1e-9)
    if exactly and rows:
        assert worst == pytest.approx(charged, rel=1e-9)


@given(st.integers(0, 2**32), st.sampled_from([each for each in RELATIONS if each.exchanged]))
def test_codes_charged_at_once_cost_exactly_that(seed: int, neighbours: Neighbours) -> None:
    domain, sets = drawn_sets(seed, plain=True)
    found = planned_or_none(domain, sets, neighbours, 2, neighbours.rows_public)
    if found is not None:
        assert_charged_at_once(domain, found, neighbours, exactly=True)


def test_many_residuals_are_charged_at_once_in_groups() -> None:
    """Eighteen attributes of two codes: rows move the single attributes in which they differ, and
    the pairs of which they differ in one. All ways to differ are tried."""
    domain = Domain({f"x{i}": 2 for i in range(18)})
    found = planned(domain, k_way(domain, 2).sets, relation("replace-one"), known=True)
    costs = {part: 2 * 2.0 ** len(part) / found.noise.variances[part] for part in found.shares}
    signs = 1.0 - 2 * (np.arange(2**18)[:, None] >> np.arange(18) & 1)
    pairs = np.zeros((18, 18))
    for part, cost in costs.items():
        if len(part) == 2:
            pairs[tuple(int(name[1:]) for name in part)] = cost
    moved = (1 - signs) @ [costs[name,] for name in domain] / 2
    moved += (pairs.sum() - ((signs @ pairs) * signs).sum(axis=1)) / 2
    assert 0.8 < moved.max() <= 1 + 1e-9 and sum(costs.values()) > 1.5


@given(st.integers(0, 2**32), st.sampled_from(RELATIONS), st.sampled_from([1, 2]), st.booleans())
@example(57238, relation("replace-one"), 2, False)  # columns of different lengths
def test_no_other_shares_are_better(
    seed: int, neighbours: Neighbours, norm: int, plain: bool
) -> None:
    assert_best_shares(seed, neighbours, norm, plain)


@pytest.mark.parametrize("seed", [0, 2, 5])
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("neighbours", RELATIONS[:2], ids=lambda each: each.name)
def test_no_other_shares_are_better_for_fixed_workloads(
    seed: int, neighbours: Neighbours, norm: int
) -> None:
    assert_best_shares(seed, neighbours, norm, False)


def assert_best_shares(seed: int, neighbours: Neighbours, norm: int, plain: bool) -> None:
    domain, sets = drawn_sets(seed, plain)
    by_sum = planned(domain, sets, neighbours, norm)
    by_largest = planned(domain, sets, neighbours, norm, objective="largest")
    # A thousandth of the root goes to cells that no query tells apart.
    for found, close in [(by_sum, 1.01), (by_largest, 1.001)]:
        assert found.lower_bound * (1 - 1e-9) <= found.objective <= found.lower_bound * close

    def largest(found: ResidualsStrategy) -> float:
        queries = [FactoredQuery(factors_of(domain, each)) for each in sets]
        variances = [found.noise.variance(query).max() for query in queries]
        return max(w.weight * v for w, v in zip(sets, variances, strict=True))

    assert by_largest.objective == pytest.approx(largest(by_largest), rel=1e-6)
    assert by_largest.objective <= largest(by_sum) * 1.001
    assert by_sum.objective <= by_largest.expected_error * 1.01


def test_totals_along_a_column_are_asked_as_if_it_were_not_named() -> None:
    domain, total = Domain({"a": 3, "b": 4}), np.ones((1, 3))
    named = planned(domain, [QuerySet(("a", "b"), (total, "identity"))], objective="largest")
    plain = planned(domain, [QuerySet(("b",), ("identity",))], objective="largest")
    assert named.objective == pytest.approx(plain.objective, rel=5e-3)


def test_the_largest_variance_against_a_general_optimiser() -> None:
    """SLSQP on (shares, largest variance), which knows nothing of duality."""
    from scipy.optimize import minimize

    domain = Domain({"a": 2, "b": 3, "c": 7})
    workload = Workload(domain, [("a", "b"), ("c",), ("b", "c"), ("a", "c")], [1, 4, 0.5, 2])
    found = planned(domain, workload.sets, objective="largest")
    parts = list(found.shares)

    def part_of(clique: Clique, residual: Clique) -> float:
        """Theorem 4.7."""
        if not set(residual) <= set(clique):
            return 0.0
        sizes = domain.sizes
        return math.prod(1 - 1 / sizes[n] if n in residual else sizes[n] ** -2 for n in clique)

    prices = [math.prod(1 - 1 / domain.sizes[n] for n in part) / 2 for part in parts]
    lines = np.array([[part_of(clique, part) for part in parts] for clique in workload.cliques])

    def largest(logs: np.ndarray) -> np.ndarray:
        shares = np.exp(logs - np.log(np.exp(logs).sum()))
        return workload.weights * (lines @ (prices / shares))

    start = np.append(np.zeros(len(parts)), largest(np.zeros(len(parts))).max())
    best = minimize(
        lambda x: x[-1],
        start,
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda x: x[-1] - largest(x[:-1])},
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert best.success and found.objective == pytest.approx(best.fun, rel=2e-3)


@given(st.integers(0, 2**32))
def test_never_worse_than_noise_on_marginals(seed: int) -> None:
    """HDMM's strategies of marginals hold their residuals in fixed proportions."""
    domain, sets = drawn_sets(seed, plain=True)
    if min(domain.shape()) < 2 or not any(each.clique for each in sets):
        return
    workload = Workload(domain, [s.clique for s in sets], [s.weight for s in sets])
    theirs = marginals_strategy(workload, 2, False)
    assert 2 * planned(domain, sets).expected_error <= theirs.expected_error * (1 + 1e-9)


def curator_with(neighbours: str | Neighbours, delta: float, seed: int = 0) -> Curator:
    return Curator(DATA, Budget(1.0, delta), neighbours=neighbours, seed=seed)


@pytest.mark.parametrize("neighbours", RELATIONS, ids=lambda each: each.name)
@pytest.mark.parametrize("delta", [0.0, 1e-8])
@pytest.mark.parametrize("queries", [{}, HOURS])
def test_draws_match_charges_and_the_plan(
    queries: dict[str, str],
    neighbours: Neighbours,
    delta: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The Curator's noise on whole numbers is what the plan reckons with."""
    curator = curator_with(neighbours, delta)
    norm = 1 if delta == 0 else 2
    known = curator.public_total is not None
    objective: Objective = "largest" if delta == 0 else "sum"
    plan = planned(DATA.domain, PAIRS.asking(queries).sets, neighbours, norm, known, objective)
    if delta == 0:  # other strategies would be better
        monkeypatch.setattr("mechanisms.matrix.best_strategy", lambda *_, **__: plan)
    whole = curator.remaining
    settings = Matrix(queries, objective, clip=False)
    release = matrix(curator, PAIRS, settings)
    assert curator.remaining == pytest.approx(0, abs=1e-12)
    if len(release.measurements) != len(plan.shares):
        assert neighbours.exchanged and objective == "sum"  # marginals are better there
        return
    spent = [e.cost for e in release.ledger.entries]
    shares = [*plan.shares.values()]
    if norm == 2 and neighbours.exchanged:
        total = plan.shares.get((), 0.0)
        shares = [*([total] if total else []), 1 - total]
    assert spent == pytest.approx([share * whole for share in shares], rel=1e-9)
    tables = ResidualTables(DATA.domain, release.measurements, curator.public_total)
    for clique in PAIRS.cliques:
        stated = plan.noise.variance(clique) / whole ** (2 / norm)
        assert np.allclose(tables.variance(clique), stated, rtol=1e-9)
        assert np.array_equal(release.model.marginal(clique), tables.marginal(clique))


class Kept(Priced):
    """Keeps what was asked for on whole numbers."""

    def gaussian(self, counts: np.ndarray, scale: float) -> np.ndarray:
        self.asked = counts.copy(), scale
        return super().gaussian(counts, scale)


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_the_price_is_the_papers_and_is_attained(neighbours: str) -> None:
    domain = Domain({"a": 2, "b": 3, "c": 4})
    part = ("a", "b", "c")
    rows = planned(domain, [QuerySet(part, ("identity",) * 3)]).rows(part)
    cells = list(np.ndindex(*domain.shape()))
    grid = GridMatrix.over(domain, part, rows)
    worst = 0.0
    for x, y in itertools.product(cells, cells):
        before, after = np.zeros((2, *domain.shape()), dtype=np.int64)
        after[x] += 1
        before[y] += neighbours == "replace-one"
        moved = grid.answers(after.reshape(-1)) - grid.answers(before.reshape(-1))
        worst = max(worst, float((moved**2).sum()) * grid.unit**2)
    stated = relation(neighbours).largest_move(lambda differ: grid.l2_squared(differ) ** 0.5)
    assert (stated * grid.unit) ** 2 == pytest.approx(worst, rel=1e-12)
    if neighbours == "add/remove":
        assert worst == pytest.approx((2 * 3 * 4) * (1 * 2 * 3))  # p_A times the squared product
    curator = Curator(
        DATA.project(["sex", "work"]), Budget(1.0, 1e-6), neighbours=neighbours, seed=0
    )
    sizes = curator.domain.shape()
    asked = [n * np.eye(n) - 1 for n in sizes]
    noise = draw_from(curator, Kept(neighbours, pure=False))
    m = curator.measure_queries(("sex", "work"), asked, curator.remaining)
    exact = m.matrix.matvec(private_records(curator).marginal(("sex", "work")).reshape(-1))
    assert np.array_equal(noise.asked[0] * m.stddev / noise.asked[1], exact)


@pytest.mark.parametrize("sizes", [(2000, 2, 2), (70, 5, 5, 5, 5)])
def test_large_columns_stay_whole_numbers(sizes: tuple[int, ...]) -> None:
    """Rounded, the queries would not be of the residual any more."""
    domain = Domain({f"x{i}": size for i, size in enumerate(sizes)})
    asked = [n * np.eye(n) - 1 for n in sizes]
    grid = GridMatrix.over(domain, domain.attributes, asked)
    for factor, exact in zip(grid.factors, asked, strict=True):
        assert not factor.sum(axis=0).any()
        assert np.array_equal(factor / factor[0, 0], exact / exact[0, 0])
    assert grid.unit * math.prod(int(f[0, 0]) for f in grid.factors) == math.prod(
        size - 1 for size in sizes
    )


@pytest.mark.parametrize("sizes", [(9, 40, 3), (30, 30, 30), (5, 6, 4, 2)])
def test_planned_rows_are_measured_as_they_are(sizes: tuple[int, ...]) -> None:
    domain = Domain({f"x{i}": size for i, size in enumerate(sizes)})
    every = [c for k in (1, 2, 3) for c in itertools.combinations(domain, k)]
    sets = [QuerySet(c, tuple("identity" if n == "x2" else "prefix" for n in c)) for c in every]
    found = planned(domain, sets)
    for part in found.shares:
        if part:
            grid = GridMatrix.over(domain, part, found.rows(part))
            for factor, turned in zip(grid.factors, found.rows(part), strict=True):
                assert np.array_equal(
                    factor * (np.abs(turned).max() / np.abs(factor).max()), turned
                )


def test_too_many_turned_attributes_are_refused() -> None:
    domain = Domain({f"x{i}": 5 for i in range(9)})
    with pytest.raises(InvalidInput, match="bits do not hold their products"):
        planned(domain, [QuerySet(domain.attributes, ("prefix",) * 9)])


@pytest.mark.parametrize("total", [None, 40.0])
def test_answers_are_the_least_squares_solution(total: float | None) -> None:
    domain = Domain({"a": 2, "b": 3, "year": 1, "c": 4})
    rng = np.random.default_rng(0)
    sets = Workload(domain, [("b", "a"), ("c", "b")]).asking({"c": "prefix", "b": "range"}).sets
    found = planned(domain, sets)
    rows_of = {n: found.rows((n,))[0] for n in "abc"}
    bases = {n: rows / np.abs(rows).max() for n, rows in rows_of.items()}
    parts = [("a",), ("b",), ("c",), ("b", "a"), ("c", "b")]
    measurements = [
        Measurement(
            part,
            rng.normal(0, 9, math.prod(len(bases[n]) for n in part)),
            rng.uniform(1, 5),
            [bases[n] for n in part] if len(part) > 1 else bases[part[0]],
        )
        for part in parts
    ]
    rows = [np.full((1, domain.size()), 1e5)]
    values = [np.full(1, 1e5 * (total or 31.0))]
    if total is None:
        measurements.append(Measurement((), [31.0], 2.0))
    for m in measurements[: len(parts)]:
        ordered = tuple(sorted(m.clique))
        table = m.values.reshape([len(bases[n]) for n in m.clique])
        table = table.transpose([m.clique.index(name) for name in ordered])
        rows.append(on_data(domain, {n: bases[n] for n in ordered}) / m.stddev)
        values.append(table.reshape(-1) / m.stddev)
    stacked = np.vstack(rows)
    x = np.linalg.lstsq(stacked, np.concatenate(values), rcond=1e-13)[0]
    covariance = np.linalg.pinv(stacked.T @ stacked, rcond=1e-15, hermitian=True)
    tables = ResidualTables(domain, measurements, total)
    for clique in [("a", "b"), ("b", "c"), ("c",), ("a", "b", "year"), ()]:
        queries = on_data(domain, {n: np.eye(domain.sizes[n]) for n in clique})
        assert np.allclose(tables.marginal(clique).reshape(-1), queries @ x, atol=1e-5)
        mean = on_data(domain, {n: p[None, :] for n, p in unseen(tables, clique).items()})
        extra = 0.0 if total is not None else 4.0 * mean_square(tables, clique)
        assert mean.shape[0] == 1
        variances = np.einsum("ij,jk,ik->i", queries, covariance, queries)
        found = tables.variance(clique).reshape(-1)
        assert np.allclose(found, variances + extra, rtol=1e-4, atol=1e-6)
    assert np.array_equal(tables.marginal(("b", "a")), tables.marginal(("a", "b")).T)
    cdf = FactoredQuery({"c": prefix(4), "b": np.eye(3)})
    assert np.allclose(tables.answer(cdf), np.cumsum(tables.marginal(("c", "b")), axis=0))
    with pytest.raises(InvalidInput, match="residual of \\('a', 'c'\\), which was not measured"):
        tables.marginal(("c", "a"))


def unseen(tables: ResidualTables, clique: Clique) -> dict[str, np.ndarray]:
    return {n: tables.unseen(n) for n in clique if tables.domain.sizes[n] > 1}


def mean_square(tables: ResidualTables, clique: Clique) -> np.ndarray:
    """By cell, the squared part of the total."""
    parts = [unseen(tables, clique).get(name, np.ones(1)) for name in clique]
    return reduce(np.kron, parts, np.ones(1)) ** 2


@pytest.mark.usefixtures("planned_once")
@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize("queries", [{}, HOURS])
def test_errors_are_the_stated_variances(queries: dict[str, str], neighbours: str) -> None:
    """Over 40 seeds: of cells, and of cumulative counts."""
    n = DATA.domain.sizes["hours"]
    asked = [
        FactoredQuery({"hours": prefix(n), "sex": np.eye(2)}),
        FactoredQuery({"work": np.eye(DATA.domain.sizes["work"])}),
        FactoredQuery({"hours": np.eye(n), "income": np.ones((1, DATA.domain.sizes["income"]))}),
    ]
    known = neighbours == "replace-one"
    plan = planned(
        DATA.domain, PAIRS.asking(queries).sets, relation(neighbours), 2, known, "largest"
    )
    squares: dict[int, list[float]] = {place: [] for place in range(len(asked))}
    exact = [query_of(query) for query in asked]
    for seed in range(40):
        curator = curator_with(neighbours, 1e-8, seed)
        measured = matrix(curator, PAIRS, Matrix(queries, "largest")).measurements
        assert len(measured) == len(plan.shares)
        tables = ResidualTables(DATA.domain, measured, curator.public_total)
        for place, query in enumerate(asked):
            gaps = tables.answer(query) - exact[place]
            squares[place].append(float((gaps**2 / tables.variance(query)).mean()))
    for found in squares.values():
        assert_mean(found, 1.0)


def query_of(query: FactoredQuery) -> np.ndarray:
    table = DATA.marginal(query.attributes).reshape(-1)
    factors = [np.asarray(query.factors[name]) for name in query.attributes]
    return (reduce(np.kron, factors) @ table).reshape(query.answer_shape)


@pytest.mark.usefixtures("planned_once")
@pytest.mark.parametrize("neighbours", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-8])
def test_errors_are_as_expected_of_the_best_strategy(neighbours: str, delta: float) -> None:
    truth = DATA.marginals(PAIRS.cliques)
    norm, known = (2 if delta else 1), neighbours == "replace-one"
    strategy = best_strategy(PAIRS, relation(neighbours), norm, total_known=known)
    unit = 1.0
    if not isinstance(strategy, ResidualsStrategy):
        moved = relation(neighbours)
        unit = 2 * moved.l1**2 if norm == 1 else moved.l2**2 / 2
    squares = []
    for seed in range(60):
        curator = curator_with(neighbours, delta, seed)
        budget = curator.remaining ** (2 / norm)
        tables = matrix(curator, PAIRS, Matrix(clip=False)).model.marginals(PAIRS.cliques)
        squares.append(sum(float(((tables[c] - truth[c]) ** 2).sum()) for c in truth) * budget)
    assert_mean(squares, strategy.expected_error * unit)


@pytest.mark.usefixtures("planned_once")
def test_prefixes_beat_noise_on_every_cell() -> None:
    """Cumulative counts of hours by sex, by their standard errors and by what comes out."""
    workload = Workload(DATA.domain, [("hours", "sex")])
    query = FactoredQuery({"hours": prefix(DATA.domain.sizes["hours"]), "sex": np.eye(2)})
    errors: dict[str, list[float]] = {"matrix": [], "gaussian": []}
    for seed in range(60):
        curators = [curator_with("add/remove", 1e-8, seed) for _ in range(2)]
        for release in (
            matrix(curators[0], workload, Matrix(HOURS)),
            gaussian(curators[1], workload, Gaussian(clip=False)),
        ):
            gaps = release.answer(query) - query_of(query)
            errors[release.mechanism].append(float((gaps**2).mean()))
    plan = planned(DATA.domain, workload.asking(HOURS).sets)
    assert_mean(
        errors["matrix"], float(plan.noise.variance(query).mean()) / Budget(1.0, 1e-8).total
    )
    assert np.mean(errors["matrix"]) < 0.7 * np.mean(errors["gaussian"])


@pytest.mark.parametrize("queries", [{}, HOURS])
def test_a_model_of_the_residuals_is_near_their_tables(queries: dict[str, str]) -> None:
    """With little noise nothing binds at zero, and the best model has the least squares tables."""
    edges = Workload(DATA.domain, [("sex", "income"), ("work", "income"), ("hours", "sex")])
    curator = Curator(DATA, Budget(2000.0, 1e-8), neighbours="add/remove", seed=0)
    measurements = matrix(curator, edges, Matrix(queries)).measurements
    tables = ResidualTables(DATA.domain, measurements)
    model = estimate(DATA.domain, measurements, tolerance=1e-3)
    for clique in edges.cliques:
        low = np.minimum(tables.marginal(clique), 0).min()
        assert np.abs(model.marginal(clique) - tables.marginal(clique)).max() < 1 - 2 * low


@pytest.mark.parametrize(("neighbours", "delta"), [("add/remove", 0.0), ("replace-one", 1e-8)])
@pytest.mark.parametrize("queries", [{}, {"hours": "range"}])
@pytest.mark.parametrize("model_mb", [80.0, 0.0])
def test_models_of_the_measurements(
    neighbours: str, delta: float, queries: dict[str, str], model_mb: float
) -> None:
    release = matrix_pgm(curator_with(neighbours, delta), PAIRS, MatrixPgm(queries, model_mb))
    model = release.model
    assert isinstance(model, GraphicalModel if model_mb else TablesModel)
    for table in model.marginals(PAIRS.cliques).values():
        assert table.min() >= 0 and table.sum() == pytest.approx(model.total, abs=1)
    assert neighbours == "add/remove" or model.total == 2000


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_error_bars_are_those_of_the_residuals(neighbours: str) -> None:
    curator = curator_with(neighbours, 1e-8)
    release = matrix(curator, PAIRS, Matrix(HOURS, "largest"))
    tables = ResidualTables(DATA.domain, release.measurements, curator.public_total)
    query = FactoredQuery({"hours": prefix(DATA.domain.sizes["hours"]), "sex": np.eye(2)})
    found = MeasuredBars(release.model, release.measurements).answer(query)
    assert found.method == "closed form"
    assert np.allclose(found.estimate, tables.answer(query))
    linear = LinearEstimate(DATA.domain, release.measurements, curator.public_total)
    assert np.allclose(found.stddev, linear.scale * np.sqrt(tables.variance(query)))
    assert linear.degrees == tables.degrees > 0 and 0 < linear.p_value < 1


@pytest.mark.parametrize("seed", range(4))
def test_noise_beyond_the_data_still_gives_a_release(seed: int) -> None:
    few = census(20).project(["sex", "work", "income"])
    for mechanism in (matrix, matrix_pgm):
        curator = Curator(few, Budget(0.001, 1e-9), neighbours="add/remove", seed=seed)
        assert mechanism(curator, k_way(few.domain, 2)).model.total >= 1


def test_forty_columns() -> None:
    domain = Domain({f"x{i}": 2 + i % 19 for i in range(40)})
    rng = np.random.default_rng(0)
    from pgmkit.records.dataset import Dataset

    data = Dataset(domain, {n: rng.integers(0, size, 500) for n, size in domain.sizes.items()})
    pairs = k_way(domain, 2)
    for settings in (Matrix({"x17": "prefix"}), Matrix(objective="largest")):
        release = run(settings, data, pairs, 1.0, 1e-8, neighbours="add/remove", seed=0)
        assert len(release.measurements) == 1 + 40 + 780
        assert release.model.marginal(("x3", "x9")).shape == (5, 11)


def test_earlier_names_are_understood() -> None:
    for name in ("hdmm", "residual"):
        assert MECHANISMS[name] is MECHANISMS["matrix"] and name not in list(MECHANISMS)
    assert MECHANISMS["hdmm+pgm"] is MECHANISMS["matrix+pgm"]
    release = run("hdmm", DATA, PAIRS, 1.0, 1e-6, neighbours="add/remove", seed=0)
    assert release.mechanism == "matrix"


def test_clipping_leaves_cumulative_tables_alone() -> None:
    curator = Curator(
        census(50).project(["hours", "sex"]), Budget(0.1, 1e-8), neighbours="add/remove", seed=0
    )
    both = [("hours",), ("sex",)]
    release = matrix(curator, both, Matrix(HOURS))
    assert release.model.marginal(("hours",)).min() < 0 <= release.model.marginal(("sex",)).min()


def test_refusals_come_before_spending() -> None:
    with pytest.raises(InvalidInput, match="to one of 'identity', 'prefix', .*; got .*median"):
        Matrix({"hours": "median"})
    known = "objective must be one of 'sum', 'mean', 'largest'; got 'least'"
    with pytest.raises(InvalidInput, match=known):
        Matrix(objective="least")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="model_mb"):
        MatrixPgm(model_mb=-1)
    curator = curator_with("replace-one", 1e-8)
    with pytest.raises(InvalidInput, match="nothing but a public total"):
        matrix(curator, [()])
    for mechanism, settings in [
        (matrix, Matrix({"z": "range"})),
        (matrix_pgm, MatrixPgm({"z": "range"})),
    ]:
        with pytest.raises(InvalidInput, match="another domain"):
            mechanism(curator, k_way(Domain({"a": 2, "b": 2}), 2))
        with pytest.raises(InvalidInput, match="'z'"):
            mechanism(curator, PAIRS, settings)
    with pytest.raises(InvalidInput, match="at most 1,048,576 queries"):
        wide = Domain({"a": 30, "b": 30, "c": 30})
        planned(wide, [QuerySet(("a", "b", "c"), ("range",) * 3)], objective="largest")
    assert curator.ledger.spent == 0 and MECHANISMS["matrix"].measures


def test_measurements_that_are_not_of_residuals_are_refused() -> None:
    domain = Domain({"a": 3, "b": 3})
    contrasts = 3 * np.eye(3) - 1
    one = Measurement(("a",), [1.0, -1.0, 0.0], 1.0, contrasts)
    other = Measurement(("a", "b"), np.zeros(6), 1.0, [np.tri(3)[:2] - 1, contrasts])
    for given_, why in [
        ([Measurement(("a",), [1.0, 2.0, 3.0], 1.0, np.eye(3))], "must not have the row of ones"),
        ([Measurement(("a",), [1.0], 1.0, np.array([[1.0, -1.0, 0.0]]))], "must have rank 2"),
        ([Measurement(("a",), [1.0, 2.0], 1.0, np.array([[1.0, 1, 1], [1, 0, 0]]))], "the total"),
        ([Measurement(("a", "b"), np.zeros(3), 1.0, np.zeros((3, 9)))], "not of a residual"),
        ([Measurement(("a",), np.zeros(3), 1.0, np.zeros((3, 3)))], "not of a residual"),
        ([Measurement((), [6.0], 1.0, np.array([[2.0]]))], "not of a residual"),
        ([one, other], "two bases"),
    ]:
        with pytest.raises(InvalidInput, match=why):
            ResidualTables(domain, given_, 3.0)
    with pytest.raises(InvalidInput, match="the total is missing"):
        ResidualTables(domain, [one])


def test_tables_beside_residuals_are_least_squares_of_both() -> None:
    """Two tables of an attribute, a table of the pair and its residual, by dense algebra."""
    rng = np.random.default_rng(3)
    domain = Domain({"a": 3, "b": 4})
    truth = rng.integers(0, 50, (3, 4)).astype(float)
    a, b = (n * np.eye(n) - 1 for n in (3, 4))
    measured, rows = list[Measurement](), list[np.ndarray]()
    for clique, factors, stddev, dense in [
        (("a",), None, 2.0, np.kron(np.eye(3), np.ones(4))),
        (("a",), None, 1.0, np.kron(np.eye(3), np.ones(4))),
        (("b",), None, 3.0, np.kron(np.ones(3), np.eye(4))),
        (("a", "b"), None, 5.0, np.eye(12)),
        (("a", "b"), [a, b], 20.0, np.kron(a, b)),
    ]:
        noisy = dense @ truth.ravel() + rng.normal(0, stddev, len(dense))
        measured.append(Measurement(clique, noisy, stddev, factors))
        rows.append(np.column_stack([dense, noisy]) / stddev)
    design, values = np.split(np.concatenate(rows), [12], axis=1)
    expected, squares, *_ = np.linalg.lstsq(design, values[:, 0])
    linear = LinearEstimate(domain, measured, None)
    answer = linear.answer(FactoredQuery.marginal(domain, ("a", "b")))
    assert answer is not None
    np.testing.assert_allclose(answer.values, expected, atol=1e-9)
    variances = np.diag(np.linalg.inv(design.T @ design))
    np.testing.assert_allclose(answer.stddev, linear.scale * variances**0.5, rtol=1e-9)
    assert linear.statistic == pytest.approx(squares[0])
    assert linear.degrees == len(design) - 12


def test_clipped_counts_end_at_zero() -> None:
    found = {}
    for clip in (False, True):
        curator = Curator(DATA, Budget(0.05, 1e-7), neighbours="add/remove", seed=0)
        found[clip] = matrix(curator, PAIRS, Matrix(clip=clip)).model.marginals(PAIRS.cliques)
    assert any(table.min() < 0 for table in found[False].values())
    for clique, table in found[True].items():
        np.testing.assert_allclose(table, np.maximum(found[False][clique], 0.0), atol=1e-6)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_a_private_total_alone_is_answered(delta: float) -> None:
    curator = Curator(DATA, Budget(1.0, delta), neighbours="add/remove", seed=0)
    release = matrix(curator, [()])
    assert float(release.model.marginal(())) == release.model.total
    assert abs(release.model.total - len(DATA)) < 100  # the noise's scale is 1 to 4
    assert curator.remaining == 0


def test_a_private_total_alone_is_answered_where_units_are_replaced() -> None:
    units = relation("replace-one", "person", 2)
    curator = Curator(DATA, Budget(1.0, 1e-6), neighbours=units, seed=0)
    release = matrix(curator, [()])
    assert [m.clique for m in release.measurements] == [()]
    assert abs(release.model.total - len(DATA)) < 100  # the noise's scale is 12
    assert curator.remaining == 0


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize(
    "settings", [Matrix(), MatrixPgm(), MatrixPgm(model_mb=0), MatrixPgm(inference="region")]
)
def test_a_table_that_is_the_public_total_needs_no_noise(
    delta: float, settings: Matrix | MatrixPgm
) -> None:
    domain = Domain({"a": 1, "b": 3})
    data = Dataset(domain, {"a": np.zeros(60, int), "b": np.arange(60) % 3})
    asked = Workload(domain, [("a",), ("b",)])
    release = run(settings, data, asked, 100.0, delta, neighbours="replace-one", seed=0)
    assert release.model.marginal(("a",)) == pytest.approx([60], abs=0.1)
    assert release.model.marginal(("b",)) == pytest.approx([20, 20, 20], abs=5)


@pytest.mark.parametrize("kind", [MatrixPgm, Projection])
@pytest.mark.parametrize("inference", ["exact", "region", "auto"])
@pytest.mark.parametrize("model_mb", [80.0, 1e-9])
def test_a_model_of_the_total_alone_is_uniform(kind: type, inference: str, model_mb: float) -> None:
    data = census(200).project(["sex", "work"])
    asked = Workload(data.domain, [()])
    settings = kind(inference=inference, model_mb=model_mb)
    release = run(settings, data, asked, 1.0, 1e-9, neighbours="add/remove", seed=0)
    even = release.model.marginal(["sex", "work"])
    total = float(release.measurements[0].values[0])
    assert even == pytest.approx(np.full(even.shape, total / even.size))
    assert "within 0 noise units" in release.certificate
