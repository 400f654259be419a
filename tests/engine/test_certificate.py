"""Lower bounds of the optimum by ascent in the dual, beside optima that are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pgmkit import Domain, Measurement, Zeros, estimate
from pgmkit.estimation.certificate import ascent, lower_bound
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.losses import Huber, Squared, make_loss

DOMAIN = Domain({"a": 3, "b": 2, "c": 4})
TOTAL = 500.0


def measured(rng: np.random.Generator) -> list[Measurement]:
    """A cycle of three tables, one attribute of one of them again, and a matrix."""
    joint = rng.gamma(0.3, size=(3, 2, 4))
    joint *= TOTAL / joint.sum()
    found = []
    for clique, axis in ((("a", "b"), 2), (("b", "c"), 0), (("a", "c"), 1)):
        values = joint.sum(axis).reshape(-1)
        found.append(Measurement(clique, values + rng.normal(0, 20, len(values)), 20.0))
    found.append(Measurement(("c",), joint.sum((0, 1)) + rng.normal(0, 5, 4), 5.0))
    prefix = np.tri(3)[:2]
    values = prefix @ joint.sum((1, 2)) + rng.normal(0, 9, 2)
    found.append(Measurement(("a",), values, 9.0, prefix))
    return found


@pytest.mark.parametrize("penalty", [Squared(), Huber()])
@pytest.mark.parametrize("zeros", [(), (Zeros(("a", "b"), [[1, 0], [1, 1], [1, 1]]),)])
@pytest.mark.parametrize("seed", range(3))
def test_ascent_rises_towards_the_optimum_and_never_beyond(seed, zeros, penalty) -> None:
    rng = np.random.default_rng(seed)
    problem = measured(rng)
    best = estimate(
        DOMAIN, problem, total=TOTAL, zeros=zeros, loss=penalty, method="newton", tolerance=1e-6
    )
    assert best.gap < 1e-4
    inference = MarginalOracle(DOMAIN, [("a", "b"), ("b", "c"), ("a", "c")], zeros=zeros)
    cpu = torch.device("cpu")
    loss = make_loss(penalty, inference.layout, problem, torch.float64, cpu)
    start = rng.normal(0, 1, len(loss.observations.target))
    dual = torch.as_tensor(np.clip(start, -penalty.steepest, penalty.steepest))
    bounds = []
    for _ in range(60):
        plain = lower_bound(inference, loss.cut_of_dual(dual), TOTAL)
        bound, dual = ascent(inference, loss, dual, TOTAL)
        assert bound == pytest.approx(plain, rel=1e-9)
        bounds.append(bound)
    assert max(bounds) <= best.loss + 1e-9
    assert bounds[-1] >= bounds[0]
    if penalty == Squared():  # no limit on the multipliers stands in the way
        assert (np.diff(bounds) >= -1e-9 * abs(bounds[0])).all()
        assert best.loss - bounds[-1] < 0.5 * (best.loss - bounds[0])  # the matrix keeps its share


@pytest.mark.parametrize("seed", range(4))
def test_sparse_tables_on_a_cycle_end_certified(seed: int) -> None:
    """Consistent tables of such cliques are no marginals: only records bound the loss closely."""
    rng = np.random.default_rng(seed)
    names, size = "abcde", 9
    kinds = rng.integers(0, 4, 5000)
    shares = rng.dirichlet(np.full(size, 0.1), (5, 4))
    columns = [(shares[i][kinds].cumsum(1) > rng.random((5000, 1))).argmax(1) for i in range(5)]
    problem = []
    for i in range(5):
        for j in range(i):
            counts = np.bincount(size * columns[i] + columns[j], minlength=size**2)
            values = counts + rng.normal(0, 30, size**2)
            problem.append(Measurement((names[i], names[j]), values, 30.0))
    model = estimate(Domain(dict.fromkeys(names, size)), problem, total=5000)
    assert model.certified and model.gap <= 0.1 * model.unit
