"""Proximal steps that try points beyond linear space, or that have no certificate to reach."""

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from pgmkit import Dataset, Domain, Measurement, Zeros, estimate
from pgmkit.estimation import newton
from pgmkit.estimation.newton import _Joint, _least_norm
from pgmkit.estimation.problem import Monitor, Problem
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.losses import Absolute, Huber, Penalty, Squared, make_loss
from pgmkit.runtime.precision import FAR


def test_a_few_points_beyond_linear_space_do_not_end_the_search() -> None:
    """All triples of nine Booleans without noise: on this draw a line search leaves linear space,
    and the optimum, of loss 0, is found all the same.
    """
    names = "abcdefghi"
    joint = np.random.default_rng(17).dirichlet(np.full(2 ** len(names), 0.5)) * 1e4
    joint = joint.reshape((2,) * len(names))
    measured = []
    for some in itertools.combinations(range(len(names)), 3):
        away = tuple(set(range(len(names))) - set(some))
        measured.append(Measurement([names[i] for i in some], joint.sum(away), 1.0))
    model = estimate(Domain(dict.fromkeys(names, 2)), measured, total=1e4)
    assert model.certified
    for each in measured:
        np.testing.assert_allclose(model.marginal(each.clique).reshape(-1), each.values, atol=1.0)


def _mixture(seed: int) -> tuple[Domain, list[Measurement], int]:
    """All pairs of five attributes of 5,000 records from a mixture of six products, with noise."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers([20, 20, 5, 4, 3], [50, 50, 12, 8, 6])
    domain = Domain({name: int(size) for name, size in zip("abcde", sizes, strict=True)})
    component, records = rng.choice(6, 5000, p=rng.dirichlet(np.ones(6))), {}
    for name, size in domain.sizes.items():
        steps = rng.dirichlet(np.full(size, 0.15), 6).cumsum(1)[component]
        records[name] = (rng.random((5000, 1)) > steps).sum(1).clip(max=size - 1)
    pairs = Dataset(domain, records).marginals(itertools.combinations(domain, 2))
    noisy = [Measurement(c, t + rng.normal(0, 5, t.shape), 5.0) for c, t in pairs.items()]
    return domain, noisy, 5000


def test_a_certificate_by_steps_beyond_linear_space() -> None:
    """Pairs that agree with each other and with no records: a certificate needs potentials whose
    spread no pass in linear space holds.
    """
    domain, noisy, total = _mixture(91)
    model = estimate(domain, noisy, total=total)
    assert model.certified
    other = estimate(domain, noisy, total=total, method="proximal")
    assert other.certified
    assert abs(model.loss - other.loss) < 0.1 * model.unit


def test_steps_without_tolerance_end_when_the_loss_falls_no_more() -> None:
    measured = [
        Measurement(("a", "b"), [[30.0, 31.0], [21.0, 18.0]], 3.0),
        Measurement(("a",), [55.0, 44.0], 0.03),
        Measurement(("b",), [48.0, 53.0], 1.0),
    ]
    domain = Domain({"a": 2, "b": 2})
    model = estimate(domain, measured, total=100.0, loss="huber", method="proximal", tolerance=0.0)
    assert model.iterations < 1000
    assert model.gap < 1e-3 * model.unit


def test_newton_steps_without_tolerance_do_not_overflow() -> None:
    only_total = [Measurement(("a",), [120.1], 3.7, np.ones((1, 2)))]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        model = estimate(Domain({"a": 2}), only_total, total=100.0, tolerance=0.0)
    np.testing.assert_allclose(model.marginal(["a"]), 50.0)


def _joint(
    seed: int,
    penalty: Penalty,
    widest: float = 3.0,
    zeros: Sequence[Zeros] = (),
    sizes: Sequence[int] = (2, 3, 2),
) -> tuple[_Joint, Problem, list[Measurement]]:
    """A cycle of three tables and two rows, with stddevs from 1 to 10 ** ``widest``; of a fourth
    attribute nothing is measured.
    """
    rng, domain = (
        np.random.default_rng(seed),
        Domain(dict(zip("abc", sizes, strict=True)) | {"d": 5}),
    )
    cliques, measured = [("a", "b"), ("c", "b"), ("c", "a")], []
    for clique in [*cliques, ("b",)]:
        rows = None if len(clique) == 2 else rng.normal(size=(2, sizes[1]))
        values = rng.gamma(1.0, size=domain.size(clique) if rows is None else 2) * 20
        stddev = 10 ** rng.uniform(0, widest)
        measured.append(Measurement(clique, values, stddev, rows))
    inference = MarginalOracle(domain, cliques, zeros=zeros)
    loss = make_loss(penalty, inference.layout, measured, torch.float64, torch.device("cpu"))
    problem = Problem(inference, loss, 100.0)
    return _Joint(problem), problem, measured


def _written_out(problem: Problem, measured: Sequence[Measurement], allowed: Any) -> Any:
    """The measurements' matrix on the joint cells, and their values, in units of the noise."""
    domain = problem.inference.layout.domain
    rows, values = [], []
    for m in measured:
        matrix = np.eye(domain.size(m.clique)) if m.matrix is None else m.matrix
        places = domain.cell_map(("a", "b", "c"), m.clique)
        rows.append(matrix[:, places][:, allowed] / m.stddev)
        values.append(m.values / m.stddev)
    return np.concatenate(rows), np.concatenate(values)


@pytest.mark.parametrize("stddev", [3.0, 1e-13])
def test_newton_has_the_measurements_on_the_joint_with_no_more_weight_than_rounding_leaves(
    stddev: float,
) -> None:
    zeros = [Zeros(("b", "a"), [[1, 0], [1, 1], [1, 1]])]
    _, problem, measured = _joint(0, Squared(), zeros=zeros)
    rows = np.array([[-1.0, -2.0, -3.0], [1.0, -4.0, 1.0]])
    measured[3] = Measurement(("b",), [-900.0, 3.0], 1.0, rows)
    measured = [replace(m, stddev=m.stddev * stddev) for m in measured]
    layout = problem.inference.layout
    loss = make_loss(Squared(), layout, measured, torch.float64, torch.device("cpu"))
    joint = _Joint(replace(problem, loss=loss))
    allowed = np.ones((2, 3, 2), dtype=bool)
    allowed[1, 0] = False
    matrix, target = _written_out(problem, measured, allowed.ravel())
    rounding = 4 * np.finfo(float).eps * (100.0 * np.abs(matrix).max(1) + np.abs(target))
    assert (rounding > 1).any() == (stddev < 1)
    weight = np.minimum(1.0, 1.0 / rounding)
    stacked = [*zip(joint.matrix.tolist(), joint.target.tolist(), strict=True)]
    expected = [*zip((matrix.T * weight).T.tolist(), (target * weight).tolist(), strict=True)]
    for found, true in zip(sorted(stacked), sorted(expected), strict=True):
        np.testing.assert_allclose(np.append(*found), np.append(*true), rtol=1e-12)


@pytest.mark.parametrize("penalty", [Squared(), Huber(), Absolute()])
def test_newton_bounds_the_loss_by_any_multipliers_less_their_rounding(penalty: Penalty) -> None:
    """Fenchel's bound in fractions."""
    joint, _, _ = _joint(1, penalty)
    rng = np.random.default_rng(0)
    values = joint.target * np.resize([1.0, -1.0], len(joint.target))
    joint.matrix *= -1.0
    for size, factor in ((1e-2, 1e-4), (1.0, 1.0), (1e3, 1.0), (1e-2, 1e4)):
        joint.target = values * factor
        dual = np.clip(rng.normal(size=len(joint.target)) * size, -joint.steepest, joint.steepest)
        exact = [Fraction(float(u)) for u in dual]
        squares = Fraction(joint.curvature) / 2 * sum(u * u for u in exact)
        pulled = sum(u * Fraction(y) for u, y in zip(exact, joint.target.tolist(), strict=True))
        slopes = [
            sum(u * Fraction(q) for u, q in zip(exact, column, strict=True))
            for column in joint.matrix.T.tolist()
        ]
        true = -squares - pulled + 100 * min(slopes)
        terms = squares + sum(
            abs(u * Fraction(y)) for u, y in zip(exact, joint.target, strict=True)
        )
        terms += 100 * max(
            sum(abs(u * Fraction(q)) for u, q in zip(exact, column, strict=True))
            for column in joint.matrix.T.tolist()
        )
        found = Fraction(joint.bound(dual))
        rounding = 4 * np.finfo(float).eps * float(terms)
        assert float(true - found) == pytest.approx(rounding, rel=0.5, abs=0)
        state = joint.start(1.0)
        assert true <= joint.loss(state)


@pytest.mark.parametrize("penalty", [Squared(), Huber(), Absolute()])
@pytest.mark.parametrize("widest", [1.0, 12.0])
def test_a_proximal_step_solves_its_equations_in_few_rounds(
    monkeypatch: pytest.MonkeyPatch, penalty: Penalty, widest: float
) -> None:
    """The conditions of the optimum, with weights that differ by twelve orders of magnitude."""
    joint, problem, _ = _joint(2, penalty, widest)
    monitor = Monitor(problem, tolerance=1e-3, report=None, started=0.0)
    origin = joint.start(monitor.goal)
    step = joint.first_step(origin, monitor.goal)
    with monkeypatch.context() as patch:
        patch.setattr(joint, "_search", lambda *_: None)
        assert joint.proximal_step(origin, step, 1e-12, monitor) == (origin, False)
    state, rounds, usual = origin, list[object](), joint._newton_direction
    monkeypatch.setattr(joint, "_newton_direction", lambda *a: rounds.append(a) or usual(*a))
    for _ in range(3):
        before = state
        rounds.clear()
        state, solved = joint.proximal_step(before, step, 1e-12, monitor)
        assert solved and len(rounds) <= 7
        implied = before.logs - step * (state.dual @ joint.matrix)
        implied -= np.log(np.exp(implied - implied.max()).sum()) + implied.max()
        np.testing.assert_allclose(np.log(state.shares), implied, atol=1e-12)
        np.testing.assert_allclose(state.above, joint.steepest - state.dual, rtol=1e-12)
        np.testing.assert_allclose(state.below, joint.steepest + state.dual, rtol=1e-12)
        residual = 100 * joint.matrix @ state.shares - joint.target
        slope = joint.curvature * state.dual
        if penalty != Squared():
            slope = slope + state.barrier * (1 / state.above - 1 / state.below)
        np.testing.assert_allclose(slope, residual, rtol=1e-12, atol=1e-12)
        step *= 5


@pytest.mark.parametrize("far", [0.0, -60.0, -1e4])
def test_newton_states_have_small_potentials_of_the_same_marginals(far: float) -> None:
    joint, problem, _ = _joint(3, Squared())
    rng = np.random.default_rng(0)
    tables = rng.normal(size=joint.design.shape[1])
    tables[[0, 7]] += far
    state = replace(joint.start(1.0), logs=joint.design @ tables)
    state = state.moved(0.0, (state.logs, state.dual))
    uniform = problem.point(torch.zeros(len(tables), dtype=torch.float64))
    found = joint.potentials(state, uniform)
    if far:
        assert float(found.abs().max()) < 60.0
    else:  # the smallest of all with these sums, up to a constant
        centred = np.linalg.pinv(joint.design.toarray()) @ state.logs
        np.testing.assert_allclose(found.numpy(), centred, atol=1e-12)
    expected = 100.0 * (joint.design.T @ state.shares)
    np.testing.assert_allclose(
        problem.point(found).marginals.numpy(), expected, rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("shape", [(2, 9), (9, 2), (4, 4)])
@pytest.mark.parametrize("seed", range(3))
def test_least_norms_solve_both_equations_to_the_last_digits(
    shape: tuple[int, int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    wide = rng.normal(size=shape) * 10 ** rng.uniform(-7, 7, (shape[0], 1))
    right = rng.normal(size=shape[0]) * 10 ** rng.uniform(-7, 7, shape[0])
    slack, inner = _least_norm(wide, right)
    lost = np.abs(slack + wide @ inner - right)
    assert (lost <= 1e-14 * (np.abs(slack) + np.abs(wide) @ np.abs(inner) + np.abs(right))).all()
    lost = np.abs(wide.T @ slack - inner)
    assert (lost <= 1e-14 * (np.abs(wide.T) @ np.abs(slack) + np.abs(inner))).all()


def test_newton_takes_problems_up_to_so_many_multiplications(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The square of the smaller of 18 values and 12 cells, times both: 4,320."""
    _, problem, _ = _joint(0, Squared())
    for most, small, tiny in (
        (4319.0, False, False),
        (4320.0, True, False),
        (43199.0, True, False),
        (43200.0, True, True),
    ):
        monkeypatch.setattr(newton, "_MOST_WORK", most)
        assert (newton.is_small(problem), newton.is_tiny(problem)) == (small, tiny)
    for cells, small in ((12, True), (11, False)):
        monkeypatch.setattr(newton, "CALL_CELLS", cells)
        assert newton.is_small(problem) == small


@pytest.mark.parametrize(
    ("penalty", "widest", "steps"),
    [
        (Squared(), 1.0, 53),
        (Squared(), 6.0, 62),
        (Huber(), 1.0, 65),
        (Huber(), 6.0, 63),
        (Absolute(), 1.0, 70),
        (Absolute(), 6.0, 66),
    ],
)
def test_newton_certifies_six_problems_in_few_steps(
    penalty: Penalty, widest: float, steps: int
) -> None:
    """To a millionth of a noise unit; rounding may cost three steps more."""
    taken = 0
    for seed in range(6):
        joint, problem, _ = _joint(seed, penalty, widest)
        monitor = Monitor(problem, tolerance=1e-6, report=None, started=0.0)
        start = problem.point(torch.zeros(joint.design.shape[1], dtype=torch.float64))
        newton.newton(problem, start, monitor)
        assert monitor.certified
        taken += monitor.iterations
    assert taken <= steps + 3


def test_the_first_proximal_step_is_as_long_as_the_values_vary_little() -> None:
    joint, _, _ = _joint(4, Squared())
    state = joint.start(1.0)
    state = state.moved(1.0, (np.linspace(0.0, 3.0, len(state.logs)), state.dual))
    variances = [float(np.cov(row, aweights=state.shares, ddof=0)) for row in joint.matrix]
    assert joint.first_step(state, 1e-9) == pytest.approx(1 / (100.0 * max(variances)))
    assert joint.first_step(state, 1e9) == pytest.approx(100.0 / 1e9)
    joint.matrix[:], joint.total = 3.0, 1.0
    assert joint.first_step(state, 0.0) == FAR


@pytest.mark.parametrize("dense", [newton.CACHE_CELLS, 0])
def test_newton_states_of_any_spread_have_potentials_of_the_same_marginals(
    monkeypatch: pytest.MonkeyPatch, dense: int
) -> None:
    """Shares far below rounding in a third of the cells, whose logarithms no tables have together
    once they are cut; by a dense and by a sparse solver.
    """
    monkeypatch.setattr(newton, "CACHE_CELLS", dense)
    joint, problem, _ = _joint(3, Squared(), sizes=(3, 4, 4))
    uniform = problem.point(torch.zeros(joint.design.shape[1], dtype=torch.float64))
    for seed in range(40):
        rng = np.random.default_rng(seed)
        tables = rng.normal(size=joint.design.shape[1])
        low = rng.random(len(tables)) < 0.3
        tables[low] -= 10 ** rng.uniform(1, 5, low.sum())
        logs = joint.design @ tables
        state = replace(joint.start(1.0), logs=logs - logs.max())
        found = problem.point(joint.potentials(state, uniform)).marginals.numpy()
        expected = 100.0 * (joint.design.T @ state.shares)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_newton_forces_are_moved_towards_zero_by_their_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At most to zero; here a thousandth is lost to rounding."""
    monkeypatch.setattr(newton, "EPSILON", 1e-3)
    joint, _, _ = _joint(5, Huber())
    joint.matrix *= -1.0
    joint.target *= -1.0
    state = joint.start(1.0)
    lost = 1e-3 * (100.0 * np.abs(joint.matrix) @ state.shares + np.abs(joint.target))
    others = state.barrier * (1 / state.above - 1 / state.below) - joint.residual(state.shares)
    for share, left in ((-3.0, -2.0), (-0.5, 0.0), (0.5, 0.0), (3.0, 2.0)):
        dual = (share * lost - others) / joint.curvature
        _, force = joint._force(replace(state, dual=dual))
        np.testing.assert_allclose(force, left * lost, rtol=1e-9, atol=1e-9)


def test_newton_directions_solve_the_linearised_equations_in_all_cells() -> None:
    """Also in cells without a share, whose logarithms follow from the multipliers."""
    joint, _, _ = _joint(6, Squared())
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(joint.matrix.shape[1]))
    shares[:3] = 1e-40
    shares /= shares.sum()
    force, curvature = rng.normal(size=(2, len(joint.target))) ** 2
    lag = rng.normal(size=len(shares))
    lag -= shares @ lag
    (logs, dual), _ = joint._newton_direction(shares, 0.3, curvature, force, lag)
    moved = dual @ joint.matrix
    np.testing.assert_allclose(logs, -lag - 0.3 * (moved - moved @ shares), rtol=1e-9, atol=1e-9)
    left = curvature * dual - 100.0 * joint.matrix @ (shares * logs)
    np.testing.assert_allclose(left, -force, rtol=1e-9, atol=1e-9)
