"""Rows of whole numbers for each residual: exact orthogonality, and the error by its definition."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mechanisms.queries.query_sets import QuerySet, query_gram
from mechanisms.strategies import bases as module
from mechanisms.strategies.bases import OwnRows, own_rows
from mechanisms.strategies.least_error import best_precision, of_full_rank
from mechanisms.strategies.residual_lattice import Lattice
from pgmkit.domain import Domain
from pgmkit.least_squares.residual_basis import ResidualBasis

DOMAIN = Domain({"a": 12, "b": 3, "c": 5, "d": 1})
SETS = [
    QuerySet(("a",), ("prefix",), 4.0),
    QuerySet(("a", "b"), ("identity", "identity")),
    QuerySet(("b", "a", "c"), ("identity", "identity", "range"), 0.5),
    QuerySet(("c", "d"), ("identity", "identity"), 2.0),
]
BITS = {"a": 7, "c": 7}


@pytest.mark.parametrize("over", [0, 1, 3, 4])
def test_sums_are_spread_evenly(over: int) -> None:
    sums = np.array([-7.0, -1.0, 0.0, 2.0, 3.0, 10.0])
    found = module.spread_evenly(sums, over)
    assert found.shape == (6, over)
    if over:
        assert found.sum(1).tolist() == sums.tolist()
        assert (np.ptp(found, axis=1) <= 1).all() and (found == np.rint(found)).all()


def test_weights_are_whole_numbers_near_the_shares() -> None:
    assert module.whole_weights(np.array([0.5, 0.25, 0.25])).tolist() == [16, 8, 9]
    assert module.whole_weights(np.array([0.36, 0.32, 0.32])).tolist() == [9, 8, 8]
    assert module.whole_weights(np.array([0.7, 0.3, 0.0])).tolist() == [1, 1, 1]
    for seed in range(20):
        p = np.random.default_rng(seed).random(9) + 0.2
        found = module.whole_weights(p / p.sum())
        assert {8.0, 9.0} <= set(found) and found.min() == 8
        # The second least number may become the next one above the least.
        off = np.abs(found - 8 * p / p.min())
        for place in np.flatnonzero(off > 0.5):
            assert found[place] == 9 and place == p.argsort()[1]


def inside_error(basis: ResidualBasis, gram: np.ndarray) -> float:
    """The sum of the variances of queries with this Gram matrix, with noise for the rows' largest
    column.
    """
    inverse = np.linalg.pinv(basis.rows)
    inverse = inverse - np.outer(basis.unseen, inverse.sum(0))
    return float(np.trace(inverse.T @ gram @ inverse) * (basis.rows**2).sum(0).max())


@pytest.mark.parametrize("bits", [8, 10, 12])
@pytest.mark.parametrize("seed", range(4))
def test_rows_are_whole_orthogonal_and_nearly_the_best(bits: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 12))
    weights = np.ones(n) if seed == 0 else module.whole_weights(rng.random(n) + 0.4)
    gram = query_gram("prefix", n) + rng.random() * np.eye(n)
    basis = module.whole_basis(gram, weights, bits)
    assert (basis.rows == np.rint(basis.rows)).all()
    assert 0.8 * 2**bits < np.abs(basis.rows).max() < 2**bits
    assert (basis.rows @ weights == 0).all()
    np.testing.assert_allclose(basis.unseen, weights / weights.sum(), rtol=1e-9)
    away = np.eye(n) - np.outer(weights / weights.sum(), np.ones(n))
    values, vectors = np.linalg.eigh(best_precision(away.T @ gram @ away)[0])
    exact = ResidualBasis.of((vectors[:, 1:] * np.sqrt(values[1:])).T)
    second = away.T @ gram @ away
    rounding = {8: 1.1, 10: 1.02, 12: 1.01}[bits]
    assert inside_error(basis, second) <= rounding * inside_error(exact, second)


def test_entries_of_either_sign_have_no_more_bits_than_allowed() -> None:
    for bits in range(6, 14):
        rows = module.whole_basis(np.eye(2), np.array([8.0, 9.0]), bits).rows
        assert np.abs(rows).max() < 2**bits and (rows @ [8, 9] == 0).all() and rows.any()


def root_error(lattice: Lattice, bases: Mapping[Any, Mapping[str, ResidualBasis]]) -> float:
    """T by its definition: the sum of the roots of v_A, over all sets that hold the residual A."""
    total = 0.0
    for residual, own in bases.items():
        seen = 0.0
        for each in SETS:
            if not set(residual) <= set(each.clique):
                continue
            product = each.weight
            for name in each.clique:
                n = DOMAIN.sizes[name]
                asked = each.along(name)
                gram = np.eye(n) if asked == "identity" else of_full_rank(query_gram(asked, n))
                if name in residual:
                    basis = own[name]
                    product *= (basis.inverse * (gram @ basis.inverse)).sum()
                    product *= (basis.rows**2).sum(0).max()
                elif n > 1:
                    unseen = UNSEEN[name]
                    product *= unseen @ gram @ unseen
            seen += product
        total += seen**0.5
    return total


UNSEEN: dict[str, np.ndarray] = {}
"""The vector p of each attribute, which all its bases share."""


def check(lattice: Lattice, found: OwnRows) -> None:
    by_residual = found.by_residual(lattice)
    assert list(by_residual) == lattice.residuals
    UNSEEN.clear()
    for residual, own in by_residual.items():
        assert list(own) == list(residual)
        for name, basis in own.items():
            np.testing.assert_allclose(basis.unseen, UNSEEN.setdefault(name, basis.unseen))
    assert found.root == pytest.approx(root_error(lattice, by_residual), rel=1e-9)


@pytest.mark.parametrize("even", [True, False])
def test_the_root_of_the_error_is_that_of_the_definition(even: bool) -> None:
    """Of shared rows and of rows of their own, which are better where residuals serve other
    queries.
    """
    lattice, rng = Lattice(DOMAIN, SETS), np.random.default_rng(0)
    shared = {}
    for name in ("a", "b", "c"):
        n = DOMAIN.sizes[name]
        if name == "b" or even:
            rows = n * np.eye(n) - 1
        else:
            p = rng.random(n) + 0.5
            rows = np.linalg.svd((p / p.sum())[None])[2][1:]
        shared[name] = ResidualBasis.of(rows)
    none = np.zeros((len(lattice.residuals), len(lattice.names)), dtype=np.intp)
    before = module.rated(lattice, {name: [basis] for name, basis in shared.items()}, none)
    check(lattice, before)
    found = own_rows(lattice, shared, BITS)
    check(lattice, found)
    assert found.root < 0.98 * before.root
    used = found.by_residual(lattice)
    assert used["a",]["a"] is not used["a", "b", "c"]["a"]
    for name, bits in BITS.items():
        for basis in found.bases[name]:
            assert np.abs(basis.rows).max() < 2**bits and (basis.rows == np.rint(basis.rows)).all()
    assert used["b",]["b"] is shared["b"]
    # The rows do not depend on the unit of the weights.
    small = Lattice(DOMAIN, [replace(each, weight=1e-6 * each.weight) for each in SETS])
    again = own_rows(small, shared, BITS)
    assert again.root == pytest.approx(1e-3 * found.root) and (again.which == found.which).all()
    for name, own in found.bases.items():
        for one, other in zip(own, again.bases[name], strict=True):
            np.testing.assert_array_equal(one.rows, other.rows)


def test_the_best_of_all_rounds_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    lattice, calls = Lattice(DOMAIN, SETS), []
    rated = module.rated

    def worse_each_time(*given: Any) -> OwnRows:
        calls.append(given)
        return replace(rated(*given), root=float(len(calls)))

    monkeypatch.setattr(module, "rated", worse_each_time)
    shared = {n: ResidualBasis.of(DOMAIN.sizes[n] * np.eye(DOMAIN.sizes[n]) - 1) for n in "abc"}
    weights = {name: module.whole_weights(shared[name].unseen) for name in BITS}
    found = module.residual_bases(lattice, shared, weights, BITS)
    assert found.root == 1.0 and len(calls) == 2
    assert not found.which.any() and all(len(own) == 1 for own in found.bases.values())


def test_rows_are_shared_where_each_attribute_is_asked_in_one_way() -> None:
    sets = [QuerySet(c, ("prefix",) * len(c)) for c in itertools.combinations("abc", 2)]
    lattice = Lattice(DOMAIN, sets)
    shared = {n: ResidualBasis.of(DOMAIN.sizes[n] * np.eye(DOMAIN.sizes[n]) - 1) for n in "abc"}
    found = own_rows(lattice, shared, {})
    assert {name: list(own) for name, own in found.bases.items()} == {
        name: [basis] for name, basis in shared.items()
    }
    assert not found.which.any()
