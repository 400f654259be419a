"""Estimation against scipy's general solvers on the joint distribution written out."""

import itertools
import math
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from brute_force import design, spread
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog, minimize

from pgmkit import Dataset, Domain, Factor, FactoredQuery, Measurement, Zeros, estimate
from pgmkit.errors import InvalidInput, ModelTooLarge, NotCertified
from pgmkit.estimation import METHODS, Progress, working_bytes
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.least_squares.consistency import consistent_tables
from pgmkit.losses import Huber
from pgmkit.queries import identity, prefix

DOMAIN = Domain({"a": 2, "b": 3, "c": 2, "d": 2})
CLIQUE_SETS = {
    "one": [("a", "b")],
    "chain": [("a", "b"), ("b", "c"), ("c", "d")],
    "cycle": [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")],
    "triangle, nested": [("a", "b"), ("b", "c"), ("a", "c"), ("a",), ("d",)],
    "disconnected, repeated": [("a", "b"), ("b", "a"), ("c",), ("d", "c")],
}
TOTAL = 100.0
ALL_METHODS = ["auto", *METHODS]


def noisy(cliques: list[tuple[str, ...]], seed: int, stddev: float = 8.0) -> list[Measurement]:
    """Measurements of a peaked joint, noisy enough that some cells are driven to zero."""
    rng = np.random.default_rng(seed)
    joint = rng.dirichlet(np.full(DOMAIN.size(), 0.3)) * TOTAL
    found = []
    for i, clique in enumerate(cliques):
        scale = stddev * (1 + i % 3) / 2
        true = design(DOMAIN, clique) @ joint
        found.append(Measurement(clique, true + rng.normal(0, scale, len(true)), scale))
    return found


def stacked(measurements: list[Measurement]) -> tuple[NDArray, NDArray]:
    """Rows of (Q P) / stddev and y / stddev over the joint's cells."""
    rows, targets = [], []
    for m in measurements:
        view = design(DOMAIN, m.clique)
        if m.matrix is not None:
            matrix = m.matrix.to_dense() if hasattr(m.matrix, "to_dense") else m.matrix
            matrix = matrix.toarray() if scipy.sparse.issparse(matrix) else np.asarray(matrix)
            view = matrix @ view
        rows.append(view / m.stddev)
        targets.append(m.values / m.stddev)
    return np.vstack(rows), np.concatenate(targets)


def best_squared(measurements: list[Measurement], total: float = TOTAL) -> float:
    """The least squared loss over all joints of this total: nonnegative least squares."""
    from scipy.optimize import nnls

    rows, targets = stacked(measurements)
    weight = 1e5  # the total, as a very precise measurement
    rows = np.vstack([rows, weight * np.ones(rows.shape[1])])
    joint, _ = nnls(rows, np.append(targets, weight * total), maxiter=10_000)
    joint *= total / joint.sum()
    return 0.5 * float(np.sum((rows[:-1] @ joint - targets) ** 2))


def best_absolute(measurements: list[Measurement]) -> float:
    """The least sqrt(2) sum |r| over all joints: a linear program."""
    rows, targets = stacked(measurements)
    m, n = rows.shape
    bounds = np.block([[rows, -np.eye(m)], [-rows, -np.eye(m)]])
    found = linprog(
        np.concatenate([np.zeros(n), np.ones(m)]),
        A_ub=bounds,
        b_ub=np.concatenate([targets, -targets]),
        A_eq=[np.concatenate([np.ones(n), np.zeros(m)])],
        b_eq=[TOTAL],
    )
    return math.sqrt(2) * found.fun


def best_huber(measurements: list[Measurement]) -> float:
    rows, targets = stacked(measurements)
    width = 1.345

    def value(joint: NDArray) -> tuple[float, NDArray]:
        r = rows @ joint - targets
        inner = np.clip(r, -width, width)
        return float(np.sum(inner * (r - inner / 2))), rows.T @ inner

    start = np.full(rows.shape[1], TOTAL / rows.shape[1])
    found = minimize(
        value,
        start,
        jac=True,
        method="SLSQP",
        bounds=[(0, None)] * len(start),
        constraints={"type": "eq", "fun": lambda x: x.sum() - TOTAL, "jac": np.ones_like},
        options={"maxiter": 1000, "ftol": 1e-13},
    )
    return float(found.fun)


@pytest.mark.parametrize("name", CLIQUE_SETS)
@pytest.mark.parametrize("method", ALL_METHODS)
def test_squared_loss_reaches_the_optimum(name: str, method: str) -> None:
    for seed in range(2):
        measurements = noisy(CLIQUE_SETS[name], seed)
        best = best_squared(measurements)
        model = estimate(DOMAIN, measurements, total=TOTAL, method=method, tolerance=1e-3)
        rows, targets = stacked(measurements)
        joint = model.marginal(DOMAIN.attributes).ravel()
        recomputed = 0.5 * float(np.sum((rows @ joint - targets) ** 2))
        assert model.loss == pytest.approx(recomputed, rel=1e-8)
        assert best - 1e-6 <= model.loss <= best + 0.02
        assert model.loss - model.gap <= best + 1e-6  # the certificate is never below the true gap


@pytest.mark.parametrize("method", ["auto", "mirror_descent", "dual_averaging"])
@pytest.mark.parametrize("name", ["chain", "cycle"])
def test_absolute_and_huber_losses_reach_the_optimum(name: str, method: str) -> None:
    measurements = noisy(CLIQUE_SETS[name], 5)
    for loss, best in [
        ("absolute", best_absolute(measurements)),
        ("huber", best_huber(measurements)),
    ]:
        model = estimate(
            DOMAIN, measurements, total=TOTAL, loss=loss, method=method, tolerance=1e-3
        )
        assert best - 1e-5 <= model.loss <= best + 0.02
        assert model.loss - model.gap <= best + 1e-5


def test_dense_sparse_and_kronecker_matrices() -> None:
    rng = np.random.default_rng(3)
    joint = rng.dirichlet(np.full(DOMAIN.size(), 0.5)) * TOTAL
    dense = rng.normal(size=(5, 6))
    sparse = scipy.sparse.csr_array(np.tri(4))
    kron = FactoredQuery({"b": prefix(3), "d": [[1.0, -1.0], [1.0, 1.0]]})
    measurements = []
    for clique, matrix, flat in [
        (("b", "a"), dense, dense),
        (("c", "d"), sparse, sparse.toarray()),
        (("d", "b"), kron, np.kron([[1.0, -1.0], [1.0, 1.0]], prefix(3))),
        (("a",), None, np.eye(2)),
    ]:
        values = flat @ design(DOMAIN, clique) @ joint + rng.normal(0, 3.0, len(flat))
        measurements.append(Measurement(clique, values, 3.0, matrix))
    best = best_squared(measurements)
    for method in ["auto", "mirror_descent", "lbfgs"]:
        model = estimate(DOMAIN, measurements, total=TOTAL, method=method, tolerance=1e-3)
        assert best - 1e-6 <= model.loss <= best + 0.01, method
        assert model.loss - model.gap <= best + 1e-6


def test_lbfgs_where_records_outnumber_the_range_of_floats() -> None:
    """2^1100 records; the loss of the tables that `auto` finds is the least."""
    names = [f"x{i}" for i in range(1100)]
    domain, rng = Domain(dict.fromkeys(names, 2)), np.random.default_rng(0)
    noisy = [
        Measurement(clique, 250 + rng.normal(0, 20.0, 4), 20.0)
        for clique in itertools.pairwise(names[:4])
    ]
    rest = [Measurement((name,), [500.0, 500.0], 20.0) for name in names[4:]]
    models = [
        estimate(domain, [*noisy, *rest], total=1000, method=method, tolerance=1e-3)
        for method in ("auto", "lbfgs")
    ]
    assert models[1].loss == pytest.approx(models[0].loss, abs=0.01)


@pytest.mark.parametrize("name", ["chain", "cycle", "triangle, nested"])
def test_maximum_entropy_in_the_span_of_the_cliques(name: str) -> None:
    """Of all joints with the fitted marginals, the model is the one of largest entropy (scipy)."""
    cliques = CLIQUE_SETS[name]
    rng = np.random.default_rng(0)
    truth = rng.dirichlet(np.full(DOMAIN.size(), 2.0)) * TOTAL
    exact = [Measurement(c, design(DOMAIN, c) @ truth, 1.0) for c in cliques]
    model = estimate(DOMAIN, exact, total=TOTAL, tolerance=1e-9)
    fitted = model.marginal(DOMAIN.attributes)
    constraints = np.vstack([design(DOMAIN, c) for c in cliques])

    def dual(multipliers: NDArray) -> tuple[float, NDArray]:
        logs = constraints.T @ multipliers
        weights = np.exp(logs - logs.max())
        value = logs.max() + np.log(weights.sum()) - multipliers @ (constraints @ truth) / TOTAL
        return value, constraints @ (weights / weights.sum() - truth / TOTAL)

    found = minimize(dual, np.zeros(len(constraints)), jac=True, options={"gtol": 1e-11})
    entropic = np.exp(constraints.T @ found.x)
    entropic *= TOTAL / entropic.sum()
    np.testing.assert_allclose(fitted.ravel(), entropic, atol=1e-3)
    # log p is a sum of functions of the measured cliques
    logs = np.log(fitted.ravel())
    span = np.vstack([constraints, np.ones(DOMAIN.size())]).T
    coefficients, *_ = np.linalg.lstsq(span, logs, rcond=None)
    np.testing.assert_allclose(span @ coefficients, logs, atol=1e-8)


def test_potentials_reproduce_the_marginals() -> None:
    model = estimate(DOMAIN, noisy(CLIQUE_SETS["cycle"], 1), total=TOTAL)
    logs = sum(spread(DOMAIN, f.domain.attributes, f.numpy()) for f in model.potentials)
    joint = np.exp(logs - model.log_partition) * TOTAL
    np.testing.assert_allclose(
        model.marginal(DOMAIN.attributes), np.broadcast_to(joint, DOMAIN.shape()), rtol=1e-9
    )


def test_unequal_noise_is_weighed_by_the_inverse_variance() -> None:
    one = Domain({"a": 2})
    precise = Measurement(("a",), [600.0, 400.0], 1.0)
    vague = Measurement(("a",), [400.0, 600.0], 10.0)
    for method in ALL_METHODS:
        model = estimate(one, [precise, vague], total=1000, method=method, tolerance=1e-7)
        assert model.marginal(["a"])[0] == pytest.approx(598.0198, abs=2e-3), method


def test_total_is_estimated_and_contradictions_are_averaged() -> None:
    one = Domain({"a": 2, "b": 2})
    y = [Measurement(("a",), [600.0, 400.0], 1.0), Measurement(("b",), [600.0, 600.0], 2.0)]
    model = estimate(one, y)
    assert model.total == pytest.approx((1000 / 2 + 1200 / 8) / (1 / 2 + 1 / 8))
    for clique in [("a",), ("b",)]:
        assert model.marginal(clique).sum() == pytest.approx(model.total)
    known = estimate(one, [*y, Measurement((), [990.0], 1e-4)])
    assert known.total == pytest.approx(990, abs=1e-3)


@pytest.mark.parametrize("loss", ["squared", "absolute", "huber"])
@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_without_a_measured_attribute_the_model_is_uniform(method: str, loss: str) -> None:
    seen: list[Progress] = []
    domain = Domain({"a": 2, "b": 3, "c": 1})
    counted = [Measurement((), [90.0], 10.0), Measurement((), [120.0], 20.0)]
    for measurements, total, expected in [([], 12.0, 12.0), (counted, None, 96.0), (counted, 6, 6)]:
        model = estimate(
            domain, measurements, total=total, method=method, loss=loss, progress=seen.append
        )
        assert model.cliques == () and (model.loss, model.gap) == (0.0, 0.0)
        assert model.total == pytest.approx(expected)
        np.testing.assert_allclose(model.marginal(["b", "a"]), np.full((3, 2), expected / 6))
    assert len(seen) == 3
    possible = np.array([[True, True, False], [True, False, True]])
    ruled = estimate(domain, [], total=8, zeros=[Zeros(("a", "b"), possible)], method=method)
    np.testing.assert_allclose(ruled.marginal(["a", "b"]), 2.0 * possible)
    again = estimate(domain, [], total=8, warm_start=model, method=method)
    np.testing.assert_allclose(again.marginal(["b"]), np.full(3, 8 / 3))


def test_warm_start_keeps_the_potentials() -> None:
    measurements = noisy(CLIQUE_SETS["cycle"], 2)
    earlier = estimate(DOMAIN, measurements[:2], total=TOTAL, method="mirror_descent")
    later = estimate(
        DOMAIN,
        measurements[:2],
        total=TOTAL,
        method="mirror_descent",
        warm_start=earlier,
        max_seconds=1e-9,
    )
    np.testing.assert_allclose(
        later.marginal(DOMAIN.attributes), earlier.marginal(DOMAIN.attributes), rtol=1e-9
    )
    grown = estimate(DOMAIN, measurements, total=TOTAL, warm_start=earlier, max_seconds=1e-9)
    rows, targets = stacked(measurements)
    start = rows @ earlier.marginal(DOMAIN.attributes).ravel() - targets
    assert grown.loss <= 0.5 * start @ start + 1e-9


def test_a_warm_start_that_excludes_cells_does_not_keep_them_out() -> None:
    domain, pairs = Domain({"a": 2, "b": 2, "c": 2}), [("a", "b"), ("b", "c"), ("a", "c")]
    tables = [[[40, 12], [9, 39]], [[45, 6], [3, 46]], [[30, 20], [22, 28]]]
    wanted = [Measurement(p, values, 1.0) for p, values in zip(pairs, tables, strict=True)]
    diagonal = torch.tensor([[0.0, -600.0], [-600.0, 0.0]], dtype=torch.float64)
    earlier = estimate(domain, [Measurement(p, 50 * np.eye(2), 1.0) for p in pairs], total=100)
    earlier = replace(earlier, potentials=[Factor(f.domain, diagonal) for f in earlier.potentials])
    started = estimate(domain, wanted, total=100, warm_start=earlier, method="mirror_descent")
    assert started.loss == pytest.approx(estimate(domain, wanted, total=100).loss, rel=1e-4)


def test_a_callable_loss_equals_the_named_one() -> None:
    measurements = noisy(CLIQUE_SETS["cycle"], 4)

    def squared(marginals: dict) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for m in measurements:
            residual = (
                marginals[m.clique].reshape(-1) - torch.as_tensor(m.values.copy())
            ) / m.stddev
            total = total + residual @ residual / 2
        return total

    named = estimate(DOMAIN, measurements, total=TOTAL, tolerance=1e-4)
    called = estimate(DOMAIN, measurements, total=TOTAL, loss=squared, tolerance=1e-3)
    assert called.loss == pytest.approx(named.loss, abs=0.01)
    assert called.loss - called.gap <= named.loss + 1e-6
    custom = estimate(DOMAIN, measurements, total=TOTAL, loss=Huber(1e6, 1e6), tolerance=1e-3)
    assert custom.loss == pytest.approx(named.loss, abs=0.01)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from(sorted(CLIQUE_SETS)), st.floats(0.1, 30))
def test_relaxation_is_a_bound_and_exact_on_decomposable_cliques(
    seed: int, name: str, stddev: float
) -> None:
    measurements = noisy(CLIQUE_SETS[name], seed, stddev)
    best = best_squared(measurements)
    found = consistent_tables(DOMAIN, measurements, TOTAL, precision=1e-9)
    assert found.bound <= best + 1e-5 * max(1.0, best)
    if name not in ("cycle", "triangle, nested"):
        assert found.bound == pytest.approx(best, rel=1e-4, abs=1e-4)


def test_noise_beyond_the_data_still_gives_a_model() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        y = [Measurement(c, rng.normal(0, 1e4, DOMAIN.size(c)), 1e4) for c in CLIQUE_SETS["cycle"]]
        model = estimate(DOMAIN, y, total=3.0)
        assert np.isfinite(model.loss)
        assert model.marginal(["a"]).sum() == pytest.approx(3.0)


def test_a_hundred_attributes_and_a_sampled_data_set() -> None:
    rng = np.random.default_rng(0)
    names = [f"x{i}" for i in range(100)]
    domain = Domain(dict.fromkeys(names, 4))
    data = Dataset(domain, {name: rng.integers(0, 4, 1000) for name in names})
    pairs = list(itertools.pairwise(names))
    y = [
        Measurement(p, t + rng.normal(0, 5, t.shape), 5.0) for p, t in data.marginals(pairs).items()
    ]
    model = estimate(domain, y, total=1000)
    assert model.stopped.startswith("certified")
    assert model.gap <= 0.1 * math.sqrt(99 * 16 / 2)


@pytest.mark.parametrize("tolerance", [0.1, 1e-3])
def test_float32_tables_fit_as_well(tolerance: float) -> None:
    """The loss of the rounded tables' own marginals is that of the float64 model, to 1e-4."""
    measurements = noisy(CLIQUE_SETS["cycle"], 0)
    double = estimate(DOMAIN, measurements, total=TOTAL, tolerance=tolerance)
    single = estimate(DOMAIN, measurements, total=TOTAL, tolerance=tolerance, dtype=torch.float32)
    assert single.potentials[0].values.dtype == torch.float32
    tables = single.marginals([m.clique for m in measurements])
    residuals = [(tables[m.clique].reshape(-1) - m.values) / m.stddev for m in measurements]
    own = 0.5 * float(np.square(np.concatenate(residuals)).sum())
    assert own == pytest.approx(double.loss, rel=1e-4)
    assert single.loss == double.loss


def test_progress_and_time_limit() -> None:
    seen: list[Progress] = []
    measurements = noisy(CLIQUE_SETS["cycle"], 3)
    options = {"total": TOTAL, "method": "mirror_descent", "tolerance": 0.0}
    model = estimate(DOMAIN, measurements, **options, max_seconds=0.05, progress=seen.append)
    assert model.stopped.startswith(("time", "precision"))
    losses = [record.best_loss for record in seen]
    assert losses == sorted(losses, reverse=True)
    assert [record.iteration for record in seen] == list(range(1, len(seen) + 1))
    assert model.loss == losses[-1]


def test_interrupt_from_a_callback_restores_the_threads() -> None:
    threads = torch.get_num_threads()

    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        estimate(DOMAIN, noisy(CLIQUE_SETS["cycle"], 0), total=TOTAL, progress=interrupt)
    assert torch.get_num_threads() == threads


def test_interrupt_ends_a_long_run_promptly() -> None:
    script = """
import itertools, signal
import numpy as np
from pgmkit import Domain, Measurement, estimate
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
domain = Domain(dict.fromkeys("abcdefg", 8))
rng = np.random.default_rng(0)
y = [Measurement(c, rng.normal(20, 20, 512), 20.0) for c in itertools.combinations("abcdefg", 3)]
print("ready", flush=True)
estimate(domain, y, total=9000, tolerance=0.0, method="mirror_descent")
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None and child.stdout.readline().strip() == "ready"
        time.sleep(0.5)
        os.kill(child.pid, signal.SIGINT)
        _, errors = child.communicate(timeout=300)
    finally:
        child.kill()
    assert child.returncode != 0
    assert errors.strip().endswith("KeyboardInterrupt")


def test_identity_and_named_matrix_agree() -> None:
    y = noisy([("a", "b")], 7)[0]
    same = Measurement(y.clique, y.values, y.stddev, matrix=[identity(2), identity(3)])
    options = {"total": TOTAL, "tolerance": 1e-5}
    np.testing.assert_allclose(
        estimate(DOMAIN, [y], **options).marginal(y.clique),
        estimate(DOMAIN, [same], **options).marginal(y.clique),
        atol=0.05,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "simplex"}, "method must be one of 'auto', 'mirror_descent'"),
        ({"loss": "cubed"}, "one of .squared., .absolute., .huber., a penalty"),
        ({"loss": 3}, "one of .squared., .absolute., .huber., a penalty"),
        ({"tolerance": math.nan}, "tolerance"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"max_seconds": 0.0}, "max_seconds"),
        ({"total": 0.0}, "total"),
        ({"total": math.nan}, "total"),
        ({"total": True}, "total"),
    ],
)
def test_bad_arguments(change: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        estimate(DOMAIN, noisy(CLIQUE_SETS["one"], 0), **{"total": TOTAL, **change})


def test_the_time_limit_holds_in_the_start_and_in_line_searches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Passes of a quarter of a second: the limit is kept but for the one that is under way."""
    fast, now = MarginalOracle.fast_marginals, 0.0

    def slow(self: MarginalOracle, *arguments: object) -> object:
        nonlocal now
        now += 0.25
        return fast(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(MarginalOracle, "fast_marginals", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    rng = np.random.default_rng(0)
    domain = Domain(dict.fromkeys("abcd", 3))
    pairs = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")]
    noisy = [Measurement(pair, rng.normal(100, 300, 9), 1.0) for pair in pairs]
    for method in ("auto", "mirror_descent", "dual_averaging", "lbfgs"):
        begun = now
        model = estimate(domain, noisy, total=900, method=method, tolerance=0.0, max_seconds=1.2)
        assert now - begun < 1.2 + 0.25
        assert model.stopped.startswith("time")


def test_consistent_tables_end_at_the_deadline() -> None:
    rng = np.random.default_rng(0)
    domain = Domain({f"x{i}": 20 for i in range(12)})
    noisy = [
        Measurement(pair, rng.normal(100, 300, 400), 1.0)
        for pair in itertools.combinations(domain, 2)
    ]
    whole = consistent_tables(domain, noisy, 40_000.0, 1e-9)
    cut_short = consistent_tables(domain, noisy, 40_000.0, 1e-9, deadline=0.0)
    assert cut_short.iterations == 1 < whole.iterations
    assert cut_short.bound <= whole.bound


def test_what_cannot_be_sampled_is_refused_at_once() -> None:
    """The pairs' own tables are small, and the contraction never forms the joint table."""
    domain = Domain(dict.fromkeys("abcd", 160))
    noisy = [
        Measurement(pair, np.full(160 * 160, 4.0), 1.0)
        for pair in itertools.combinations("abcd", 2)
    ]
    with pytest.raises(
        ModelTooLarge, match=r"655,360,000 cells.*limit is 4,294,967,296 bytes.*memory_limit"
    ):
        estimate(domain, noisy, total=1e5)


def test_the_memory_of_all_phases_is_checked_before_anything_is_allocated() -> None:
    domain = Domain({"a": 1000, "b": 1000})
    noisy = [Measurement(("a", "b"), np.ones(10**6), 1.0)]
    needed = working_bytes(domain, noisy)
    assert needed > 20 * 8 * 10**6
    with pytest.raises(ModelTooLarge, match="1,000,000 measured cells"):
        estimate(domain, noisy, total=1e6, memory_limit=needed - 1)
    # A matrix takes memory by its entries: in a sparse one those that are stored.
    rows = scipy.sparse.csr_array(np.ones((20, 50_000)))
    sums = Measurement(("c",), np.ones(20), 1.0, rows)
    assert working_bytes(Domain({"c": 50_000}), [sums]) > 8 * 8 * rows.nnz
    # A sparse one is held for the cells of a clique of the model, a large dense one for its own.
    known, wide = Domain({"c": 100, "d": 500}), Measurement(("c", "d"), np.ones(50_000), 1.0)
    dense, few = np.ones((100, 100)), scipy.sparse.csr_array(np.ones((100, 100)))
    both = [
        working_bytes(known, [wide, Measurement(("c",), np.ones(100), 1.0, matrix)])
        for matrix in (dense, few)
    ]
    assert both[0] < working_bytes(known, [wide]) + 20 * 8 * dense.size
    assert both[1] > 8 * 8 * 500 * few.nnz


def noiseless_pairs(count: int) -> tuple[Domain, list[Measurement]]:
    """All pairs of binary attributes, of one joint, with noise far below what a step resolves."""
    domain = Domain({f"x{i}": 2 for i in range(count)})
    joint = np.random.default_rng(0).dirichlet(np.full(2**count, 0.2)).reshape(domain.shape()) * 1e6
    pairs = itertools.combinations(domain, 2)
    names = list(domain)
    sums = {p: joint.sum(axis=tuple(i for i in range(count) if names[i] not in p)) for p in pairs}
    return domain, [Measurement(pair, table, 1e-3) for pair, table in sums.items()]


def test_a_large_gap_is_said() -> None:
    """An estimate cut short says how far it may be, as a warning and in the model."""
    domain, measured = noiseless_pairs(6)
    with pytest.warns(NotCertified, match=r"up to [\d.e+]+ noise units.*max_seconds"):
        model = estimate(domain, measured, total=1e6, method="mirror_descent", max_seconds=0.05)
    assert not model.certified and model.poor_fit
    assert model.unit == pytest.approx(math.sqrt(4 * len(measured) / 2))
    assert "certified=False" in repr(model)


def test_a_large_gap_of_a_callable_loss_is_said() -> None:
    """The bound holds at the first step already: it is below the loss of the best fit."""
    domain, measured = noiseless_pairs(4)

    def loss(tables: dict[tuple[str, ...], torch.Tensor]) -> torch.Tensor:
        apart = [tables[m.clique].flatten() - torch.tensor(m.values) for m in measured]
        return torch.cat(apart).square().sum()

    with pytest.warns(NotCertified, match=r"up to [\d.e+]+ noise units.*max_seconds"):
        model = estimate(domain, measured, total=1e6, loss=loss, max_seconds=1e-9)
    assert model.loss > 1 > model.bound  # the joint of `noiseless_pairs` has a loss of zero


def test_a_small_gap_is_certified_without_a_word() -> None:
    domain, measured = noiseless_pairs(6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = estimate(domain, measured, total=1e6)
    assert model.certified and not model.poor_fit
    assert model.certificate.startswith("certified: within")


def test_certification_survives_a_file(tmp_path: Path) -> None:
    domain, measured = noiseless_pairs(3)
    model = estimate(domain, measured, total=1e6)
    model.save(tmp_path / "model")
    again = type(model).load(tmp_path / "model")
    assert (again.certified, again.unit, again.gap) == (model.certified, model.unit, model.gap)
    assert not again.given({"x0": 0}).certified


@pytest.mark.parametrize("loss", ["squared", "huber", "absolute"])
def test_losses_are_known_to_be_at_least_zero(loss: str) -> None:
    """Two prefix measurements of 100 cells: the optimum is near 0, and a cut may say -700."""
    domain = Domain({"a": 10, "b": 10})
    rng = np.random.default_rng(1)
    joint = rng.dirichlet(np.ones(100)) * 1e4
    query = FactoredQuery({"a": prefix(10), "b": prefix(10)})
    matrix = np.kron(np.tril(np.ones((10, 10))), np.tril(np.ones((10, 10))))
    measured = [Measurement(("a", "b"), matrix @ joint, s, matrix=query) for s in (10.0, 20.0)]
    model = estimate(domain, measured, total=1e4, loss=loss, max_seconds=20)
    assert model.gap <= model.loss
    assert model.certified


def test_methods_that_cannot_solve_a_problem_say_so() -> None:
    big = Domain({f"x{i}": 10 for i in range(6)})
    chain = [Measurement((f"x{i}", f"x{i + 1}"), np.full(100, 1.0), 1.0) for i in range(5)]
    with pytest.raises(InvalidInput, match="too large"):
        estimate(big, chain, total=100, method="newton")
    for method in ("newton", "proximal"):
        with pytest.raises(InvalidInput, match="callable"):
            estimate(
                DOMAIN,
                noisy(CLIQUE_SETS["one"], 0),
                total=TOTAL,
                method=method,
                loss=lambda tables: tables[("a", "b")].square().sum(),
            )


def test_a_matrix_that_ends_in_rows_of_zeros() -> None:
    """Its coordinates look like an identity's; the values of the last rows count all the same."""
    matrix = scipy.sparse.csr_array(np.array([[1.0], [0.0]]))
    measured = [Measurement(("a",), [3.0, 4.0], 1.0, matrix=matrix)]
    model = estimate(Domain({"a": 1}), measured, total=5.0)
    assert model.loss == pytest.approx(((5 - 3) ** 2 + 4**2) / 2)
