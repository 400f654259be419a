"""Region models drawn towards independence: the penalised optimum, its risk, and what it leaves."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from chance import assert_mean
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import xlogy

from pgmkit import Domain, Measurement, RegionModel, Zeros, estimate
from pgmkit.errors import InvalidInput
from pgmkit.regions import shrinkage
from pgmkit.regions.polytope import EntropicPrior, LocalPolytope

Array = NDArray[np.float64]
TOTAL = 500.0


@settings(max_examples=100, deadline=None)
@given(
    st.floats(1e-4, 1e3),
    st.floats(1e-3, 1e4),
    st.floats(1e-4, 1e2),
    st.floats(-1e4, 1e4),
)
def test_cells_solve_their_equation(weight: float, q: float, curvature: float, free: float) -> None:
    prior, c = EntropicPrior(weight, np.array([q])), np.array([curvature])

    def cell(value: float) -> float:
        return float(prior.cells(np.array([value]), c)[0])

    x = cell(free)
    assert x >= 0
    if x > 1e-290:  # less is rounded to 0
        terms = curvature * x, -curvature * free, weight * np.log(x / q)
        # The logarithm of x / q near 1 is off by a rounding of 1.
        assert abs(sum(terms)) <= 1e-9 * sum(map(abs, terms)) + 1e-14 * weight
    step = 1e-4 * max(1.0, abs(free))
    slope = (cell(free + step) - cell(free - step)) / (2 * step)
    middle = float(prior.slopes(np.array([x]), c)[0])
    ends = [float(prior.slopes(np.array([cell(free + s)]), c)[0]) for s in (-step, step)]
    assert min(*ends, middle) - 1e-6 <= slope <= max(*ends, middle) + 1e-6


def noisy(
    seed: int,
    dependence: float,
    noise: float,
    sizes: tuple[int, ...] = (3, 4, 5, 3),
    ways: int = 2,
) -> tuple[Domain, list[Measurement], dict[tuple[str, ...], Array]]:
    """All pairs (or triples) of a joint between independence (0) and a random table (1)."""
    rng = np.random.default_rng(seed)
    domain = Domain({f"x{i}": size for i, size in enumerate(sizes)})
    product = np.ones(())
    for size in sizes:
        product = np.multiply.outer(product, rng.dirichlet(np.full(size, 3.0)))
    joint = rng.dirichlet(np.full(domain.size(), 0.1)).reshape(sizes)
    joint = TOTAL * (dependence * joint + (1 - dependence) * product)
    names, exact = list(domain), {}
    for pair in itertools.combinations(names, ways):
        others = tuple(i for i, name in enumerate(names) if name not in pair)
        exact[pair] = joint.sum(axis=others)
    measured = [
        Measurement(pair, table + rng.normal(0, noise, table.shape), noise)
        for pair, table in exact.items()
    ]
    return domain, measured, exact


def models(
    domain: Domain, measured: list[Measurement], zeros: tuple[Zeros, ...] = ()
) -> tuple[RegionModel, RegionModel]:
    """The best fit, and the shrunk one."""
    return (
        estimate(domain, measured, total=TOTAL, zeros=zeros, inference="region", shrink=False),
        estimate(domain, measured, total=TOTAL, zeros=zeros, inference="region"),
    )


def penalised(
    model: RegionModel, best: RegionModel, measured: list[Measurement]
) -> tuple[float, Array, LocalPolytope]:
    """Loss and penalty at a model's tables, their gradient, and the constraints."""
    weight, slopes, value = model.weight, [], 0.0
    for m in measured:
        q = np.full((), TOTAL)
        for name in m.clique:
            one = best.marginal((name,)) / TOTAL
            q = np.multiply.outer(q, 0.999 * one + 0.001 / len(one))
        x, y = model.tables[m.clique], m.values.reshape(q.shape)
        value += ((x - y) ** 2).sum() / 2 / m.stddev**2
        value += weight * (xlogy(x, x / q) - x + q).sum()
        slopes.append(((x - y) / m.stddev**2 + weight * np.log(np.maximum(x, 1e-300) / q)).ravel())
    cliques = tuple(m.clique for m in measured)
    return value, np.concatenate(slopes), LocalPolytope(model.domain, cliques, TOTAL, model.zeros)


@pytest.mark.parametrize("seed", range(8))
def test_tables_are_the_optimum_with_the_penalty(seed: int) -> None:
    domain, measured, _ = noisy(seed, 0.2, 25.0, (5, 6, 5, 4))
    allowed = np.ones((5, 6), dtype=bool)
    allowed[0, 1] = seed % 2 == 0
    best, model = models(domain, measured, (Zeros(("x0", "x1"), allowed),))
    assert model.weight > 0 and model.certified
    value, slope, polytope = penalised(model, best, measured)
    assert model.loss + model.penalty == pytest.approx(value, rel=1e-9)
    assert model.loss > best.loss
    assert model.bound == pytest.approx(best.loss, abs=1e-6)
    assert 0 <= model.gap < 1e-6
    # Convex, and its slope is orthogonal to all moves that agreement allows: no other is lower.
    matrix = polytope.constraints[0].toarray()[:, polytope.allowed]
    moves = np.eye(matrix.shape[1]) - np.linalg.pinv(matrix, rcond=1e-10) @ matrix
    assert np.abs(moves @ slope[polytope.allowed]).max() < 1e-5 * np.abs(slope).max()
    if not allowed.all():
        assert model.tables["x0", "x1"][0, 1] == 0


@pytest.mark.parametrize("made", [shrinkage.independent, shrinkage.of_pairs])
def test_the_estimate_of_risk_is_unbiased(
    made: Callable[[LocalPolytope, Array], Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over 300 draws of the noise and of the direction, at one weight."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(shrinkage, "generator", lambda _: rng)
    domain, _, exact = noisy(0, 0.3, 6.0, ways=2 if made is shrinkage.independent else 3)
    truth = np.concatenate([table.ravel() for table in exact.values()])
    polytope = LocalPolytope(domain, tuple(exact), TOTAL)
    curvature = np.full(len(truth), 1 / 36)
    everywhere = np.ones(len(truth), dtype=bool)
    misses: dict[float, list[float]] = {0.0: [], 0.3: []}
    for seed in range(300):
        values = truth + np.random.default_rng([1, seed]).normal(0, 6.0, len(truth))
        best, _ = polytope.nearest(values, curvature)
        search = shrinkage.RiskSearch(polytope, best, values, curvature, everywhere, made, np.inf)
        assert search.improved(0.3)
        for weight, tables, risk in (
            (0.0, best, search.unshrunk),
            (0.3, search.chosen.tables, search.risk),
        ):
            actual = float(((tables - truth) ** 2).sum() / 36)
            misses[weight].append(risk - len(truth) - actual)
    for found in misses.values():
        assert_mean(found, 0.0)
        # Without the second sum it would be off by the number of free cells.
        assert abs(np.mean(found)) < 10


def test_priors_of_pairs_have_them_and_no_more() -> None:
    domain, measured, _ = noisy(5, 0.3, 3.0, ways=3)
    best, _ = models(domain, measured)
    polytope = LocalPolytope(domain, tuple(best.tables), TOTAL)
    flat = np.concatenate([table.ravel() for table in best.tables.values()])
    prior, start = shrinkage.of_pairs(polytope, flat), 0
    independent = shrinkage.independent(polytope, flat)
    for clique, table in best.tables.items():
        part = slice(start, start + table.size)
        q, product = prior[part].reshape(table.shape), independent[part].reshape(table.shape)
        for axis in range(3):
            wanted = 0.999 * table.sum(axis=axis) + 0.001 * product.sum(axis=axis)
            np.testing.assert_allclose(q.sum(axis=axis), wanted, atol=0.1, err_msg=str(clique))
        logs = np.log(q)
        for axis in range(3):
            logs = logs - logs.mean(axis=axis, keepdims=True)
        assert np.abs(logs).max() < 1e-9
        start += table.size


def risks(seed: int, dependence: float, noise: float) -> tuple[float, float, float]:
    """Squared errors in units of the noise: best fit, shrunk; and the weight."""
    domain, measured, exact = noisy(seed, dependence, noise, ways=2 + seed % 2)
    best, model = models(domain, measured)
    errors = [
        sum(float(((m.tables[pair] - table) ** 2).sum()) for pair, table in exact.items())
        for m in (best, model)
    ]
    return errors[0] / noise**2, errors[1] / noise**2, model.weight


@pytest.mark.parametrize(("dependence", "noise"), [(0.0, 10.0), (0.2, 15.0), (0.4, 25.0)])
def test_shrunk_tables_are_nearer_to_the_truth(dependence: float, noise: float) -> None:
    """Over 40 draws."""
    found = np.array([risks(seed, dependence, noise) for seed in range(40)])
    gains = found[:, 0] - found[:, 1]
    # By a mean of six standard errors or more.
    assert gains.mean() > 6 * gains.std() / np.sqrt(len(gains))
    # No draw loses more than noise alone gives the best fit's own risk.
    assert (found[:, 1] < found[:, 0] + np.sqrt(2 * 192)).all()


def test_precise_tables_and_single_attributes_stay_as_they_are() -> None:
    domain, measured, _ = noisy(1, 1.0, 0.01)
    best, model = models(domain, measured)
    for clique, table in best.tables.items():
        np.testing.assert_allclose(model.tables[clique], table, atol=0.02)
    rng = np.random.default_rng(0)
    singles = Domain({f"x{i}": 4 for i in range(6)})
    one_way = [Measurement((name,), 125 + rng.normal(0, 20, 4), 20.0) for name in singles]
    best, model = models(singles, one_way)
    assert model.weight == 0 and model.loss == best.loss


def test_other_losses_and_matrices_are_not_shrunk() -> None:
    domain, measured, _ = noisy(2, 0.1, 20.0)
    huber = estimate(domain, measured, total=TOTAL, inference="region", loss="huber")
    assert huber.weight == 0
    factors = [[np.tri(domain.sizes[name]) for name in m.clique] for m in measured]
    sums = [
        Measurement(m.clique, np.kron(*f) @ m.values, m.stddev, f)
        for m, f in zip(measured, factors, strict=True)
    ]
    assert estimate(domain, sums, total=TOTAL, inference="region").weight == 0
    with pytest.raises(InvalidInput, match="shrink must be True or False"):
        estimate(domain, measured, total=TOTAL, shrink="no")  # type: ignore[call-overload]


def test_a_deadline_leaves_the_best_fit() -> None:
    domain, measured, _ = noisy(3, 0.1, 20.0)
    best, _ = models(domain, measured)
    cliques = tuple(best.tables)
    polytope = LocalPolytope(domain, cliques, TOTAL)
    flat = np.concatenate([table.ravel() for table in best.tables.values()])
    found = shrinkage.shrunk(
        polytope, _squared(best, measured), np.full(len(flat), 1 / 400), flat, 0.0
    )
    assert found is None


def _squared(model: RegionModel, measured: list[Measurement]) -> object:
    from pgmkit.inference.layout import Layout
    from pgmkit.losses import make_loss

    layout = Layout(model.domain, tuple(model.tables))
    return make_loss("squared", layout, measured, torch.float64, torch.device("cpu"))


def test_there_is_no_most_probable_record() -> None:
    domain, measured, _ = noisy(4, 0.1, 20.0)
    model = estimate(domain, measured, total=TOTAL, inference="region")
    for each in (model, model.given({"x0": 1})):
        with pytest.raises(InvalidInput, match="no most probable record"):
            each.map()
