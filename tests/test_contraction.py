"""Contractions against numpy's einsum, in all semirings, and their fused form."""

import itertools
import random

import numpy as np
import pytest
import torch
from brute_force import CLIQUE_SETS, FIVE, structures
from hypothesis import given
from hypothesis import strategies as st

from pgmkit.contraction import (
    LINEAR,
    LOG,
    MAX,
    adjoints,
    contract,
    forward,
    maximiser,
    plan,
)
from pgmkit.domain import Clique, Domain
from pgmkit.message_passing import MessagePassing


def einsum(tables: list[np.ndarray], cliques: list[Clique], output: Clique) -> np.ndarray:
    names = sorted({name for clique in cliques for name in clique})
    operands: list[object] = []
    for table, clique in zip(tables, cliques, strict=True):
        operands += [table, [names.index(name) for name in clique]]
    return np.einsum(*operands, [names.index(name) for name in output], optimize="greedy")


def random_tables(domain: Domain, cliques: list[Clique], seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=domain.shape(clique)) for clique in cliques]


@given(structures(), st.integers(0, 10**6), st.data())
def test_any_output_and_sign(
    structure: tuple[Domain, list[Clique]], seed: int, data: st.DataObject
) -> None:
    domain, cliques = structure
    held = sorted({name for clique in cliques for name in clique})
    output = tuple(data.draw(st.lists(st.sampled_from(held), unique=True, max_size=3)))
    tables = random_tables(domain, cliques, seed)
    tensors = [torch.as_tensor(table) for table in tables]
    found = contract(plan(cliques, output, domain.sizes), tensors, LINEAR)
    expected = einsum(tables, cliques, output)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-10)
    logs = contract(plan(cliques, output, domain.sizes), tensors, LOG)
    positive = einsum([np.exp(t) for t in tables], cliques, output)
    np.testing.assert_allclose(logs.numpy(), np.log(positive), rtol=1e-10, atol=1e-10)


@given(structures(), st.integers(0, 10**6))
def test_maximum_and_its_argument(structure: tuple[Domain, list[Clique]], seed: int) -> None:
    domain, cliques = structure
    tables = random_tables(domain, cliques, seed)
    held = sorted({name for clique in cliques for name in clique})
    best = max(
        sum(
            t[tuple(record[held.index(n)] for n in c)] for t, c in zip(tables, cliques, strict=True)
        )
        for record in itertools.product(*(range(domain.sizes[n]) for n in held))
    )
    p = plan(cliques, (), domain.sizes)
    values = forward(p, [torch.as_tensor(table) for table in tables], MAX)
    assert float(values[-1]) == pytest.approx(best, abs=1e-12)
    record = maximiser(p, values)
    assert sorted(record) == held
    found = sum(t[tuple(record[n] for n in c)] for t, c in zip(tables, cliques, strict=True))
    assert found == pytest.approx(best, abs=1e-12)


@given(structures(), st.integers(0, 10**6))
def test_adjoints_are_derivatives_and_the_fused_form_agrees(
    structure: tuple[Domain, list[Clique]], seed: int
) -> None:
    domain, cliques = structure
    p = plan(cliques, (), domain.sizes)
    tensors = [
        torch.as_tensor(np.exp(table)).requires_grad_()
        for table in random_tables(domain, cliques, seed)
    ]
    result = contract(p, tensors, LINEAR)
    expected = torch.autograd.grad(result, tensors)
    plain = [tensor.detach() for tensor in tensors]
    for mine, theirs in zip(adjoints(p, forward(p, plain, LINEAR), LINEAR), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=0)
    logs = [tensor.log() for tensor in plain]
    for mine, theirs in zip(adjoints(p, forward(p, logs, LOG), LOG), expected, strict=True):
        torch.testing.assert_close(mine.exp(), theirs, rtol=1e-9, atol=0)

    passing = MessagePassing(p, torch.device("cpu"), torch.float64)
    for _ in range(2):  # buffers are reused
        passing.inputs.copy_(torch.cat([tensor.reshape(-1) for tensor in plain]))
        torch.testing.assert_close(passing.forward()[0], result.detach(), rtol=1e-10, atol=0)
        seed_value = torch.tensor([2.0], dtype=torch.float64)
        found = passing.backward(seed_value)
        flat = torch.cat([grad.reshape(-1) for grad in expected])
        torch.testing.assert_close(found, 2 * flat, rtol=1e-10, atol=0)


def test_equal_small_steps_share_a_call() -> None:
    """A balanced tree of equal factors needs far fewer calls than it has factors."""
    domain = Domain({f"x{i}": 4 for i in range(63)})
    edges = [(f"x{(i - 1) // 2}", f"x{i}") for i in range(1, 63)]
    p = plan(edges, (), domain.sizes)
    passing = MessagePassing(p, torch.device("cpu"), torch.float64)
    pairs = sum(step.kernel is not None for step in p.steps)
    assert len(passing._up) - (len(p.steps) - pairs) < pairs / 3


def test_a_large_clique_of_small_factors_is_not_written_out() -> None:
    domain = Domain({f"x{i}": 30 for i in range(6)})
    pairs = [(f"x{i}", f"x{j}") for i in range(6) for j in range(i)]
    assert plan(pairs, (), domain.sizes).largest <= 30**5
    ring = [(f"x{i}", f"x{(i + 1) % 6}") for i in range(6)]
    assert plan(ring, (), domain.sizes).largest <= 30**2


def test_plans_are_cached_and_leave_the_global_generator_alone() -> None:
    cliques = CLIQUE_SETS["all pairs"]
    random.seed(5)
    before = random.getstate()
    first = plan(cliques, (), FIVE.sizes)
    assert random.getstate() == before
    assert plan(cliques, (), FIVE.sizes) is first


def test_minus_infinity_is_exact() -> None:
    p = plan([("a", "b"), ("b",)], ("a",), {"a": 2, "b": 2})
    table = torch.tensor([[-torch.inf, -torch.inf], [0.0, -torch.inf]])
    found = contract(p, [table, torch.zeros(2)], LOG)
    assert found.tolist() == [-torch.inf, 0.0]
