"""Products of two tables, and joint marginals of attributes that are far apart, against numpy."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from math import prod

import numpy as np
import pytest

from pgmkit import FactorGraph
from pgmkit.conditioning import message_passing
from pgmkit.conditioning.kernels import Kernel
from pgmkit.conditioning.message_passing import multiplied
from pgmkit.graphs.bit_sets import each_bit


@pytest.mark.parametrize("size", [2, 20])
def test_every_product_of_two_tables_is_that_of_einsum(size: int) -> None:
    rng, sizes = np.random.default_rng(size), (size, 3, size, 2)
    forms = set()
    for one in range(1, 16):
        for other in range(1, 16):
            for wanted in range(16):
                kernel = Kernel(one, other, wanted, sizes)
                left, right, kept = each_bit(one), each_bit(other), each_bit((one | other) & wanted)
                a = rng.random([sizes[v] for v in left])
                b = rng.random([sizes[v] for v in right])
                expected = np.einsum(a, left, b, right, kept)
                found = kernel(a, b)
                assert found.shape == expected.shape
                assert kernel.cells == prod(expected.shape)
                np.testing.assert_allclose(found, expected, rtol=1e-12)
                forms.add(kernel.form)
    assert forms == ({"multiply"} if size == 2 else {"multiply", "matrix"})


@pytest.mark.parametrize("count", [1, 2, 3, 64, 130, 1000])
@pytest.mark.parametrize("size", [2, 16])
def test_many_matrices_are_multiplied_in_their_order(count: int, size: int) -> None:
    rng = np.random.default_rng(count)
    matrices = [rng.dirichlet(np.ones(size), size=size) for _ in range(count)]
    expected = reduce(np.matmul, matrices)
    np.testing.assert_allclose(multiplied(matrices), expected, rtol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_distant_pairs_of_a_chain_are_products_of_its_matrices(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sizes change on the way, and names and the domain's order are drawn. Each table is near a
    permutation: products of many random tables would have equal rows, whatever their order.
    """
    rng = np.random.default_rng(seed)
    sizes = [3] * 30 + [4] * 3 + [3] * 40
    names = [f"x{v}" for v in rng.permutation(len(sizes))]
    laws = [rng.dirichlet(np.ones(sizes[0]))]
    for m, n in pairwise(sizes):
        near = np.eye(n)[rng.permutation(max(m, n))[:m] % n]
        laws.append(0.95 * near + 0.05 * rng.dirichlet(np.ones(n), size=m))
    tables = {names[0]: ([names[0]], laws[0])}
    tables |= {names[i]: ([names[i], names[i - 1]], laws[i].T) for i in range(1, len(sizes))}
    shuffled = {name: tables[name] for name in rng.permutation(names)}
    lengths = []
    monkeypatch.setattr(
        message_passing,
        "multiplied",
        lambda matrices: lengths.append(len(matrices)) or multiplied(matrices),
    )
    # A wrong sum, which a wrong product has, would be computed again without such products.
    monkeypatch.setattr(message_passing, "Underflow", AssertionError)
    graph = FactorGraph.from_conditionals(shuffled)
    for observed in ({}, {50: 1}, {10: 2, 72: 0}):
        masks = [np.ones(n) for n in sizes]
        for i, code in observed.items():
            masks[i] = np.eye(sizes[i])[code]
        first, last = 2, 70
        before = laws[0] * masks[0]
        for i in range(1, first + 1):
            before = (before @ laws[i]) * masks[i]
        between = reduce(np.matmul, [laws[i] * masks[i] for i in range(first + 1, last + 1)])
        after = np.ones(sizes[-1])
        for i in range(len(sizes) - 1, last, -1):
            after = laws[i] @ (masks[i] * after)
        expected = before[:, None] * between * after
        evidence = {names[i]: code for i, code in observed.items()}
        found = graph.posterior(evidence).marginal([names[first], names[last]])
        np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-10)
    assert max(lengths) > 20
