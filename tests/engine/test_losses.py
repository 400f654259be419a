"""Losses against finite differences and dense algebra; cuts never exceed the loss."""

import itertools
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from brute_force import design
from hypothesis import given
from hypothesis import strategies as st

from pgmkit import Domain, FactoredQuery, Measurement
from pgmkit.errors import InvalidInput
from pgmkit.estimation.device_search import MeasuredObjective
from pgmkit.estimation.problem import Problem
from pgmkit.inference.layout import Layout
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.inference.observations import Observations
from pgmkit.losses import Absolute, Cut, Huber, Loss, MeasuredLoss, Squared, dot, make_loss
from pgmkit.queries import prefix
from pgmkit.runtime.precision import ULPS

DOMAIN = Domain({"a": 2, "b": 3, "c": 2})
CLIQUES = [("a", "b"), ("b", "c")]
CPU = torch.device("cpu")
TWICE = [[2.0**30, 1.0, -(2.0**30)], [1.0, 1.0, 1.0]]


def measurements() -> list[Measurement]:
    rng = np.random.default_rng(0)
    return [
        Measurement(("b", "a"), rng.normal(10, 5, 6), 2.0),
        Measurement(("b",), rng.normal(10, 5, 3), 1.5),
        Measurement(("c", "b"), rng.normal(10, 5, 4), 3.0, rng.normal(size=(4, 6))),
        Measurement(("b", "c"), rng.normal(size=2), 1.0, scipy.sparse.csr_array(np.eye(6)[:2])),
        Measurement(("c", "b"), rng.normal(10, 5, 6), 0.5, [np.eye(2), prefix(3)]),
        Measurement(("a",), [3.0], 1.0, FactoredQuery({"a": [1.0, -1.0]})),
        Measurement(("c", "b"), [3.0, 9.0, 4.0, 1.0], 0.7, [np.eye(2), [[1, 0.5, 0], [0, 0, 1]]]),
    ]


def dense(m: Measurement) -> np.ndarray:
    if m.matrix is None:
        return np.eye(len(m.values))
    if hasattr(m.matrix, "to_dense"):
        return m.matrix.to_dense()
    return m.matrix.toarray() if scipy.sparse.issparse(m.matrix) else np.asarray(m.matrix)


def joint_marginals(layout: Layout, joint: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(np.concatenate([design(DOMAIN, c) @ joint for c in layout.cliques]))


def test_residuals_and_adjoint_against_dense_matrices() -> None:
    layout = Layout(DOMAIN, CLIQUES)
    all_of_them = measurements()
    view = Observations(layout, all_of_them, torch.float64, CPU)
    rng = np.random.default_rng(1)
    joint = rng.random(12) * 10
    mu = joint_marginals(layout, joint)
    expected = [
        (dense(m) @ design(DOMAIN, m.clique) @ joint - m.values) / m.stddev for m in all_of_them
    ]
    found = view.residual(mu).numpy()
    np.testing.assert_allclose(np.sort(found), np.sort(np.concatenate(expected)), rtol=1e-10)
    assert view.matrix().data.all()  # no zero takes memory
    dual = torch.as_tensor(rng.normal(size=len(found)))
    linear = float(dual @ (view.residual(mu) - view.residual(torch.zeros_like(mu))))
    assert linear == pytest.approx(float(view.adjoint(dual) @ mu), rel=1e-10)


def test_large_tables_act_along_their_axes() -> None:
    """A clique of 90,000 cells: its table turned, and its sums, against numpy."""
    domain = Domain({"a": 300, "b": 300})
    rng = np.random.default_rng(2)
    table, turned, sums = rng.random((300, 300)), rng.random(90_000), rng.random(300)
    measured = [Measurement(("b", "a"), turned, 2.0), Measurement(("b",), sums, 0.5)]
    view = Observations(Layout(domain, [("a", "b")]), measured, torch.float64, CPU)
    found = view.residual(torch.as_tensor(table.reshape(-1))).numpy()
    expected = [(table.T.reshape(-1) - turned) / 2.0, (table.sum(0) - sums) / 0.5]
    np.testing.assert_allclose(found, np.concatenate(expected), atol=1e-9)
    dual = rng.normal(size=90_300)
    back = dual[:90_000].reshape(300, 300).T / 2.0 + dual[90_000:] / 0.5
    np.testing.assert_allclose(view.adjoint(torch.as_tensor(dual)), back.reshape(-1), atol=1e-12)
    total = table.sum()
    each = table.sum(0) / 0.5**2 - (table.sum(0) / 0.5) ** 2 / total
    variances = view.variances(torch.as_tensor(table.reshape(-1)), total).numpy()
    np.testing.assert_allclose(variances[90_000:], each, rtol=1e-9)


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.inf, np.nan, "1", None, np.complex128(1 + 1j)])
def test_a_huber_penalty_has_a_width_and_a_height(wrong: Any) -> None:
    for arguments in ((wrong, 1.0), (1.0, wrong)):
        with pytest.raises(InvalidInput, match="width and height of Huber.* above 0, got"):
            Huber(*arguments)
    assert Huber(Fraction(1, 2), np.float32(3)) == Huber(0.5, 3.0)  # type: ignore[arg-type]
    assert type(Huber(Fraction(1, 2)).width) is float  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [(1e-320, 1.0), (1.0, 1e-320), (1e-300, 1e300), (1e300, 1e-300)])
def test_the_quotient_of_width_and_height_is_a_number(wrong: tuple[float, float]) -> None:
    with pytest.raises(InvalidInput, match="and their quotient, must be finite numbers above 0"):
        Huber(*wrong)


@pytest.mark.parametrize("penalty", [Squared(), Huber(), Huber(0.1, 1.4), Absolute()])
def test_values_gradients_and_cuts(penalty: Squared | Huber | Absolute) -> None:
    layout = Layout(DOMAIN, CLIQUES)
    loss = make_loss(penalty, layout, measurements(), torch.float64, CPU)
    rng = np.random.default_rng(2)
    points = [joint_marginals(layout, rng.random(12) * 10) for _ in range(6)]
    value, gradient = loss.value_and_gradient(points[0])
    assert value == pytest.approx(loss.value(points[0]))
    direction = torch.as_tensor(rng.normal(size=layout.cells))
    step = 1e-6
    slope = (
        loss.value(points[0] + step * direction) - loss.value(points[0] - step * direction)
    ) / (2 * step)
    assert float(gradient @ direction) == pytest.approx(slope, rel=1e-5, abs=1e-6)
    cuts = [loss.cut(point) for point in points]
    cuts.append(cuts[0].blend(cuts[1], 0.3))
    for point in points:
        for cut in cuts:
            assert cut.offset + float(cut.gradient @ point) <= loss.value(point) + 1e-8
    for point, cut in zip(points, cuts, strict=False):
        tight = cut.offset + float(cut.gradient @ point)
        assert tight == pytest.approx(loss.value(point), rel=1e-9)


@pytest.mark.parametrize("penalty", [Squared(), Huber(), Huber(0.1, 1.4)])
@pytest.mark.parametrize("whole", ["both", "both alike", "one"])
def test_a_step_on_a_gpu_has_the_loss_and_its_gradient(
    penalty: Squared | Huber, whole: str
) -> None:
    """In parts if every clique is measured; for two points, their difference from the tangent."""
    rng = np.random.default_rng(3)
    given = [
        Measurement(("a", "b"), rng.normal(10, 5, 6), 2.0),
        Measurement(("b", "c"), rng.normal(10, 5, 6), 2.0 if whole == "both alike" else 3.0),
    ]
    given = measurements() + (given[:1] if whole == "one" else given)
    oracle = MarginalOracle(DOMAIN, CLIQUES)
    loss = make_loss(penalty, oracle.layout, given, torch.float64, CPU)
    assert isinstance(loss, MeasuredLoss)
    assert len(loss.observations.parts()) == (1 if whole == "one" else 2)
    objective = MeasuredObjective(Problem(oracle, loss, 60.0), loss)
    old, new = (joint_marginals(oracle.layout, rng.random(12) * 10) for _ in range(2))
    value, gradient = loss.value_and_gradient(old)
    found, slope, known = objective.slope(old)
    assert float(found) == pytest.approx(value)
    np.testing.assert_allclose(slope, gradient, rtol=1e-12, atol=1e-12)
    reached, excess, product = map(float, objective.compare(new, known))
    assert reached == pytest.approx(loss.value(new))
    assert excess == pytest.approx(reached - value - float(gradient @ (new - old)), abs=1e-9)
    assert product == pytest.approx(float(gradient @ new))


def test_a_blend_of_cuts_has_the_share_of_each() -> None:
    one = Cut(1.0, torch.tensor([1.0, 2.0]), 4.0)
    both = one.blend(Cut(3.0, torch.tensor([5.0, 2.0]), 12.0), 0.25)
    assert (both.offset, both.gradient.tolist(), both.size) == (1.5, [2.0, 2.0], 6.0)


@pytest.mark.parametrize("dtypes", [*itertools.product((torch.float32, torch.float64), repeat=2)])
def test_products_of_numbers_of_either_format_are_summed_in_float64(
    dtypes: tuple[torch.dtype, torch.dtype],
) -> None:
    """In float32, 1 is lost beside 2^30."""
    left, right = (torch.tensor(values, dtype=d) for values, d in zip(TWICE, dtypes, strict=True))
    assert float(dot(left, right)) == 1.0


@given(st.floats(-50, 50))
def test_penalties_against_their_formulas(r: float) -> None:
    one = torch.tensor([r], dtype=torch.float64)
    assert Squared().value(one) == pytest.approx(r * r / 2)
    assert Absolute().value(one) == pytest.approx(np.sqrt(2) * abs(r))
    huber = r * r / 2 if abs(r) <= 1.345 else 1.345 * (abs(r) - 1.345 / 2)
    assert Huber().value(one) == pytest.approx(huber)


def test_smooth_stages_approach_the_absolute_loss_from_below() -> None:
    layout = Layout(DOMAIN, CLIQUES)
    loss = make_loss("absolute", layout, measurements(), torch.float64, CPU)
    point = joint_marginals(layout, np.full(12, 3.0))
    values = [stage.value(point) for stage in loss.smooth_stages()]
    assert values == sorted(values)
    assert values[-1] <= loss.value(point) <= values[-1] + 0.001 * np.sqrt(2) / 2 * 26


def test_smooth_losses_are_their_own_stage() -> None:
    layout = Layout(DOMAIN, CLIQUES)
    losses: list[Loss] = [
        make_loss(name, layout, measurements(), torch.float64, CPU) for name in ("squared", "huber")
    ]
    for loss in losses:
        assert loss.smooth_stages() == [loss]


def test_a_callable_must_return_a_scalar() -> None:
    layout = Layout(DOMAIN, CLIQUES)
    loss = make_loss(lambda tables: tables["b",], layout, measurements(), torch.float64, CPU)
    with pytest.raises(InvalidInput, match="scalar"):
        loss.value(torch.zeros(layout.cells, dtype=torch.float64))


def test_a_callable_loss_gives_no_warning_of_torch() -> None:
    layout = Layout(DOMAIN, CLIQUES)
    loss = make_loss(
        lambda tables: (tables["b", "a"] ** 2).sum(), layout, measurements(), torch.float64, CPU
    )
    marginals = torch.ones(layout.cells, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loss.value(marginals) == 6.0


def test_the_unit_is_the_spread_of_the_loss_of_noise() -> None:
    """The variance of r^2 / 2 is 1 / 2 under Gaussian noise, that of sqrt(2) |r| is 1 under
    Laplace's.
    """
    layout = Layout(DOMAIN, CLIQUES)
    for penalty, variance in ((Squared(), 0.5), (Huber(), 0.5), (Absolute(), 1.0)):
        assert penalty.unit(18) == pytest.approx(np.sqrt(18 * variance))
        loss = make_loss(penalty, layout, measurements(), torch.float64, CPU)
        values = sum(len(m.values) for m in measurements())
        assert loss.unit == pytest.approx(np.sqrt(values * variance))
        none = Observations(layout, [], torch.float64, CPU)
        assert MeasuredLoss(none, penalty).unit == pytest.approx(np.sqrt(variance))


def test_the_slope_of_the_absolute_penalty_is_zero_at_zero() -> None:
    slopes = Absolute().slope(torch.tensor([-2.0, 0.0, 3.0], dtype=torch.float64))
    np.testing.assert_allclose(slopes, [-np.sqrt(2), 0.0, np.sqrt(2)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("penalty", [Squared(), Huber(), Absolute()])
def test_the_offset_and_the_size_of_a_cut(
    penalty: Squared | Huber | Absolute, dtype: torch.dtype
) -> None:
    """-phi*(u) - <u, y / stddev> in float64, and the sum of the sizes of its terms."""
    loss = make_loss(penalty, Layout(DOMAIN, CLIQUES), measurements(), dtype, CPU)
    assert isinstance(loss, MeasuredLoss)
    dual = (
        np.random.default_rng(4).uniform(-1, 1, 26).astype(loss.observations.target.numpy().dtype)
    )
    cut = loss.cut_of_dual(torch.as_tensor(dual))
    products = dual.astype(float) * loss.observations.target.numpy().astype(float)
    conjugate = penalty.curvature * (dual.astype(float) ** 2).sum() / 2
    assert cut.offset == pytest.approx(-conjugate - products.sum(), rel=1e-12)
    assert cut.size == pytest.approx(conjugate + np.abs(products).sum(), rel=1e-12)


@pytest.mark.parametrize("penalty", [Squared(), Absolute()])
def test_the_rounding_of_a_loss_grows_with_answers_and_values(penalty: Squared | Absolute) -> None:
    """Every answer and every value a few units in the last place further from the other."""
    layout, joint = Layout(DOMAIN, CLIQUES), np.random.default_rng(5).uniform(-9, 9, 12)
    loss = make_loss(penalty, layout, measurements(), torch.float64, CPU)
    views = [dense(m) @ design(DOMAIN, m.clique) @ joint / m.stddev for m in measurements()]
    answers = np.concatenate(views)
    values = np.concatenate([m.values / m.stddev for m in measurements()])
    shift = ULPS * np.finfo(float).eps * (np.abs(answers) + np.abs(values))
    slope = np.sqrt(2) if isinstance(penalty, Absolute) else np.abs(answers - values)
    found = loss.rounding(joint_marginals(layout, joint))
    assert found == pytest.approx((slope * shift).sum(), rel=1e-9)
