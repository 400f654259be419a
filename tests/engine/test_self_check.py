"""The program notices by itself: defects planted in inference raise, and right answers pass."""

import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from brute_force import Table, summed
from seams import tables_of
from structures import Case, draw_case
from test_structures import (
    Patch,
    adjoints_swapped,
    factors_expanded_backwards,
    groups_gathered_backwards,
    product_in_another_order,
)

import pgmkit.contraction.order
import pgmkit.inference.self_check
import pgmkit.model
from pgmkit import Domain, Factor, GraphicalModel, Measurement, estimate
from pgmkit.errors import NumericalFailure
from pgmkit.inference import model_tables
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.inference.self_check import check

STRUCTURES = 400


@pytest.fixture(autouse=True)
def fresh_plans() -> Iterator[None]:
    pgmkit.contraction.order.cached_plan.cache_clear()
    yield
    pgmkit.contraction.order.cached_plan.cache_clear()


@cache
def possible_cases() -> list[tuple[int, Case, Table]]:
    cases = ((seed, draw_case(seed)) for seed in range(STRUCTURES))
    return [(seed, case, case.problem.joint()) for seed, case in cases if case.possible]


def wrong_and_unnoticed(beliefs: bool) -> tuple[int, list[int]]:
    """How many of the structures have a wrong result, and the seeds of those that say nothing."""
    wrong, silent = 0, []
    for seed, case, joint in possible_cases():
        model = case.problem.model()
        try:
            found = tables_of(model).beliefs if beliefs else tables_of(model).clique_marginals[0]
        except NumericalFailure:
            wrong += 1
            continue
        cliques = model.tree.cliques if beliefs else model.cliques
        names = list(case.domain)
        for clique, table in zip(cliques, found, strict=True):
            away = tuple(i for i, name in enumerate(names) if name not in clique)
            true = joint.sum(axis=away)
            held = [name for name in names if name in clique]
            true = true.transpose([held.index(name) for name in clique]).astype(float)
            if np.abs(table.numpy() - true).max() > 1e-6:
                wrong += 1
                silent.append(seed)
                break
    return wrong, silent


@pytest.mark.parametrize(
    ("plant", "beliefs"),
    [
        (product_in_another_order, False),
        (groups_gathered_backwards, False),
        (adjoints_swapped, False),
        (factors_expanded_backwards, True),
    ],
)
def test_planted_defects_are_noticed(
    monkeypatch: Patch, plant: Callable[[Patch], None], beliefs: bool
) -> None:
    """All but one in thirty: a defect may show in cells alone that were not looked at."""
    monkeypatch.setattr(pgmkit.inference.self_check, "MOST", 10.0)
    monkeypatch.setattr(
        pgmkit.inference.self_check, "LEAST", 10.0
    )  # the same cells on every machine
    plant(monkeypatch)
    wrong, silent = wrong_and_unnoticed(beliefs)
    assert wrong >= 5
    assert len(silent) <= wrong / 30, silent


def test_estimates_on_a_planted_defect_raise(monkeypatch: Patch) -> None:
    """Noiseless tables have a model that fits them: one that does not fit must not be returned."""
    monkeypatch.setattr(model_tables, "MOST_CELLS", 0)  # small models do not come here
    groups_gathered_backwards(monkeypatch)
    small = [case for case in map(draw_case, range(40)) if case.domain.size() <= 256]
    wrong = [case for case in small if case.possible and contradicts(case)]
    raised = 0
    for case in wrong[:4]:
        joint = np.random.default_rng(0).dirichlet(np.ones(case.domain.size())) * 1000
        joint = joint.reshape(case.domain.shape())
        truth = {c: summed(case.domain, joint, c) for c in case.cliques if c}
        measured = [Measurement(c, table, 1.0) for c, table in truth.items()]
        try:
            model = estimate(case.domain, measured, total=1000, max_seconds=5)
        except NumericalFailure:
            raised += 1
            continue
        assert all(np.abs(model.marginal(c) - truth[c]).max() < 10 for c in truth)
    assert raised >= 1


def contradicts(case: Case) -> bool:
    """Whether inference on the case's own potentials raises."""
    try:
        case.problem.model().log_partition  # noqa: B018
    except NumericalFailure:
        return True
    return False


def test_loaded_models_are_checked(monkeypatch: Patch, tmp_path: Path) -> None:
    domain = Domain(dict.fromkeys("abcdef", 2))
    rng = np.random.default_rng(3)
    pairs = [(x, y) for i, x in enumerate("abcdef") for y in "abcdef"[:i]]
    factors = tuple(Factor(domain.project(c), rng.normal(size=(2, 2))) for c in pairs)
    GraphicalModel(domain, factors, total=1.0).save(tmp_path / "model")
    monkeypatch.setattr(model_tables, "MOST_CELLS", 0)
    product_in_another_order(monkeypatch)
    pgmkit.contraction.order.cached_plan.cache_clear()
    with pytest.raises(NumericalFailure, match="contradicts"):
        GraphicalModel.load(tmp_path / "model").marginal(("a",))


def flat(values: float, count: int) -> torch.Tensor:
    return torch.full((count,), values, dtype=torch.float64)


@pytest.mark.parametrize("wrong", ["partition", "table", "cell", "attribute"])
def test_what_is_compared(wrong: str) -> None:
    domain = Domain({"a": 2, "b": 2, "c": 2})
    bp = MarginalOracle(domain, [("a", "b"), ("b", "c")])
    marginals, log_partition = bp.marginals(flat(0.0, 8), 8.0)
    changed = marginals.clone()
    if wrong == "partition":
        log_partition += 1e-4
    elif wrong == "table":
        changed[:4] *= 1.001
    elif wrong == "cell":
        changed += torch.tensor([0.1, -0.1, -0.1, 0.1, 0, 0, 0, 0])
    else:
        changed[:4] += torch.tensor([0.1, -0.1, 0.1, -0.1])
    started = time.perf_counter()
    check(bp, flat(0.0, 8), marginals, bp.log_partition(flat(0.0, 8)), total=8.0, started=started)
    with pytest.raises(NumericalFailure, match="contradicts"):
        check(bp, flat(0.0, 8), changed, log_partition, total=8.0, started=started)


@pytest.mark.parametrize("size", [1e5, 1e7, 1e9])
def test_large_potentials_are_right_and_checked(size: float) -> None:
    """Rounding grows with the potentials; a defect of a hundredth is noticed beside it."""
    domain = Domain(dict.fromkeys("abcde", 3))
    cliques = [tuple(pair) for pair in ("ab", "bc", "cd", "de", "ae", "ac", "bd", "ce")]
    rng = np.random.default_rng(7)
    tables = [rng.normal(size=(3, 3)) for _ in cliques]
    joint = np.zeros(domain.shape())
    for clique, table in zip(cliques, tables, strict=True):
        joint += table.reshape([3 if name in clique else 1 for name in domain])
    joint = np.exp(joint)
    for name in domain:  # what is added to one table and taken from another changes no record
        large = size * rng.normal(size=3)
        first, *_, last = [i for i, clique in enumerate(cliques) if name in clique]
        for place, sign in ((first, 1.0), (last, -1.0)):
            axis = cliques[place].index(name)
            tables[place] += sign * (large[:, None] if axis == 0 else large)
    factors = [Factor(domain.project(c), t) for c, t in zip(cliques, tables, strict=True)]
    found = GraphicalModel(domain, tuple(factors), total=1.0).marginal(("a", "b"))
    assert np.abs(found - joint.sum(axis=(2, 3, 4)) / joint.sum()).max() <= 1e-14 * size

    bp = MarginalOracle(domain, cliques)
    potentials = torch.from_numpy(np.concatenate([table.reshape(-1) for table in tables]))
    marginals, log_partition = bp.marginals(potentials)
    started = time.perf_counter()
    check(bp, potentials, marginals, log_partition, total=1.0, started=started)
    with pytest.raises(NumericalFailure, match="contradicts"):
        check(bp, potentials, marginals, log_partition + 0.05, total=1.0, started=started)
    wrong = marginals.clone()
    wrong[:9] *= 1.03
    with pytest.raises(NumericalFailure, match="contradicts"):
        check(bp, potentials, wrong, log_partition, total=1.0, started=started)


def test_wide_cycles_are_checked_in_a_share_of_the_time(monkeypatch: Patch) -> None:
    """A 9 x 9 grid of size 4: fixing one clique leaves sums of 4^9 cells, so more is held fixed."""
    count = 9
    names = {(i, j): f"x{i}_{j}" for i in range(count) for j in range(count)}
    domain = Domain(dict.fromkeys(names.values(), 4))
    pairs = [(names[i, j], names[i + 1, j]) for i in range(count - 1) for j in range(count)]
    pairs += [(names[i, j], names[i, j + 1]) for i in range(count) for j in range(count - 1)]
    rng = np.random.default_rng(1)
    factors = tuple(Factor(domain.project(c), rng.normal(size=(4, 4))) for c in pairs)
    asked = []
    usual = MarginalOracle.log_partition
    monkeypatch.setattr(
        MarginalOracle, "log_partition", lambda s, p: asked.append(1) or usual(s, p)
    )
    model = GraphicalModel(domain, factors, total=1.0)
    assert model.marginal(pairs[0]).sum() == pytest.approx(1.0)
    assert asked == [1]


def test_a_model_without_memory_for_the_second_sum_answers() -> None:
    domain = Domain({"a": 2, "b": 3, "c": 2})
    factor = Factor(domain.project(("a", "b")), np.log(np.arange(1.0, 7.0).reshape(2, 3)))
    model = GraphicalModel(domain, (factor,), 42.0, memory_limit=200)
    expected = np.arange(1.0, 7.0).reshape(2, 3, 1).repeat(2, axis=2)
    np.testing.assert_allclose(model.marginal(("a", "b", "c")), expected, rtol=1e-12)
