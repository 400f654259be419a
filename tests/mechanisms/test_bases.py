"""Residual bases for a whole workload: the best of their family, and whole numbers of all bits."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import scipy.sparse

from mechanisms.privacy.neighbours import relation
from mechanisms.queries.query_sets import QuerySet
from mechanisms.strategies import bases
from mechanisms.strategies.bases import OwnRows, rated
from mechanisms.strategies.least_error import split
from mechanisms.strategies.residual_lattice import Lattice
from mechanisms.strategies.residuals import residuals_strategy
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.least_squares.residual_basis import ResidualBasis
from pgmkit.least_squares.residual_tables import ResidualNoise, ResidualTables
from pgmkit.measurement import Measurement
from pgmkit.queries import FactoredQuery

DOMAIN = Domain({"a": 7, "b": 5, "c": 4, "d": 1})
MIXED = [
    QuerySet(("a", "d"), ("prefix", "identity"), 30.0),
    QuerySet(("a", "b"), ("range", "prefix")),
    QuerySet(("b", "c"), ("range", "identity"), 0.2),
    QuerySet(("c", "a"), ("identity", "identity"), 3.0),
]
ALIKE = [QuerySet(("a", "b", "c"), ("distance", "distance", "identity"))]

SMALL = [QuerySet(("a", "b"), (0.01 * np.tri(7), 0.01 * np.tri(5)))]
"""In small units, beside which a weight of 1 for the total would be large."""


def of_each_attribute(
    lattice: Lattice, own: dict[str, ResidualBasis], bits: object = None
) -> OwnRows:
    """The bases with one for each attribute, in place of `own_rows`."""
    none = np.zeros((len(lattice.residuals), len(lattice.names)), dtype=np.intp)
    return rated(lattice, {name: [basis] for name, basis in own.items()}, none)


@pytest.mark.parametrize("sets", [MIXED, ALIKE, SMALL], ids=["mixed", "alike", "small"])
def test_no_mean_of_the_kinds_and_no_weight_of_the_total_is_better(
    sets: list[QuerySet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nelder and Mead's search over both, for all attributes together, by the error alone."""
    from scipy.optimize import minimize

    lattice = Lattice(DOMAIN, sets)
    monkeypatch.setattr(bases, "own_rows", of_each_attribute)
    found = bases.residual_rows(lattice)
    slots = {n: [s for s, name in enumerate(lattice.names) if name == n] for n in ("a", "b")}

    def root(x: np.ndarray) -> float:
        rest, made = list(x), {n: found.bases[n][0] for n in found.bases if n == "c"}
        for name, own in slots.items():
            parts = np.exp([*(rest.pop() for _ in own[1:]), 0.0])
            gram = lattice.mixed(own, parts / parts.sum())
            least = -1 / np.linalg.inv(gram).sum()
            values, vectors = np.linalg.eigh(split(gram, least * (1 - np.exp(rest.pop())))[1])
            made[name] = ResidualBasis.of((vectors[:, 1:] * np.sqrt(values[1:])).T)
        return of_each_attribute(lattice, made).root

    start = np.vstack([np.zeros(n := sum(map(len, slots.values()))), np.eye(n)])
    options = {"initial_simplex": start, "maxfev": 200, "fatol": 1e-4 * found.root}
    best = minimize(root, start[0], method="Nelder-Mead", options=options)
    assert found.root <= best.fun * 1.0005


def test_slopes_are_the_derivatives() -> None:
    lattice, rng = Lattice(DOMAIN, MIXED), np.random.default_rng(0)
    inside, outside = rng.uniform(0.5, 2, (2, len(lattice.names)))
    root, inward, outward = lattice.root_error(inside, outside)
    assert root == pytest.approx(np.sqrt(lattice.seen(inside, outside)).sum())
    which = np.zeros((len(lattice.residuals), len(lattice.names)), dtype=np.intp)
    slopes = lattice.slopes(inside[None], outside, which)
    for slot, step in enumerate(1e-6 * np.eye(len(inside))):
        more = lattice.seen(inside + step, outside) - lattice.seen(inside - step, outside)
        assert slopes[:, slot] == pytest.approx(more / 2e-6, rel=1e-6, abs=1e-8)
        for found, own, other in ((inward, step, 0 * step), (outward, 0 * step, step)):
            high, low = (
                lattice.root_error(inside + x * own, outside + x * other)[0] for x in (1, -1)
            )
            assert found[slot] == pytest.approx((high - low) / 2e-6, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize(
    ("sets", "bits"),
    [
        ([QuerySet(("b",), ("prefix",))], {"b": 30}),
        # The largest entry of 4 I - J is 3, which has two bits.
        ([QuerySet(("b", "c"), ("prefix", "identity"))], {"b": 28}),
        (
            [
                QuerySet(("a", "b", "c"), ("prefix", "range", "identity")),
                QuerySet(("b", "c"), ("range", "identity")),
            ],
            {"a": 14, "b": 14},
        ),
    ],
)
def test_entries_have_all_the_bits_that_products_leave(
    sets: list[QuerySet], bits: dict[str, int]
) -> None:
    found = bases.residual_rows(Lattice(DOMAIN, sets)).bases
    for name, each in bits.items():
        ((rows,),) = [[basis.rows for basis in found[name]]]
        assert np.abs(rows).max() == 2**each - 1 and np.array_equal(rows, np.rint(rows))
    if "c" in found:
        assert np.array_equal(found["c"][0].rows, 4 * np.eye(4) - 1)


def test_entries_of_four_bits_are_the_coarsest() -> None:
    domain = Domain({f"x{i}": 2 for i in range(8)})
    for attributes in (domain.attributes[:7], domain.attributes):
        lattice = Lattice(domain, [QuerySet(attributes, ("prefix",) * len(attributes))])
        if len(attributes) == 7:
            assert np.abs(bases.residual_rows(lattice).bases["x0"][0].rows).max() == 15
            continue
        with pytest.raises(InvalidInput, match="whole numbers of 30 bits"):
            bases.residual_rows(lattice)


@pytest.mark.parametrize("known", [False, True])
def test_residuals_that_are_charged_at_once_use_all_that_the_total_leaves(known: bool) -> None:
    """By the largest squared distance of two columns, of all residuals below each other; a general
    optimiser on the variances finds nothing better.
    """
    from scipy.optimize import minimize

    domain = Domain({"a": 3, "b": 2})
    asked = [QuerySet(("a", "b"), ("identity", "identity")), QuerySet(("b",), ("identity",), 5.0)]
    found = residuals_strategy(domain, asked, relation("replace-one"), 2, total_known=known)
    parts = [part for part in found.noise.variances if part]
    moved = []
    for part in parts:
        own = dict(zip(part, found.rows(part), strict=True))
        factors = [own.get(name, np.ones((1, n))) for name, n in domain.sizes.items()]
        columns = np.kron(*factors).T
        moved.append(((columns[:, None] - columns) ** 2).sum(2) / 2)

    def worst(variances: np.ndarray) -> float:
        return float(np.tensordot(1 / variances, moved, axes=1).max())

    variances = np.array([found.noise.variances[part] for part in parts])
    left = 1 - found.shares.get((), 0.0)
    assert worst(variances) == pytest.approx(left, rel=1e-6)
    assert worst(variances) < 0.95 * sum(m.max() / v for m, v in zip(moved, variances, strict=True))
    assert (() in found.shares) is not known and sum(found.shares.values()) == pytest.approx(1)
    weights = []
    for part in parts:
        alone = ResidualNoise(
            domain, found.noise.bases, {(): 0.0, **{p: float(p == part) for p in parts}}
        )
        weights.append(sum(q.weight * alone.variance(q.clique).sum() for q in asked))
    best = minimize(
        lambda logs: worst(np.exp(logs)) * (weights @ np.exp(logs)),
        np.log(variances) + 0.3,
        method="Nelder-Mead",
    )
    own = worst(variances) * (weights @ variances)
    assert own <= best.fun * 1.002 and best.fun <= own * 1.002
    assert found.objective == pytest.approx(found.expected_error, rel=1e-9)
    assert found.lower_bound <= found.objective <= 1.001 * found.lower_bound


@pytest.mark.parametrize("objective", ["sum", "largest"])
def test_errors_and_bounds_are_in_the_unit_of_the_weights(
    objective: Literal["sum", "largest"],
) -> None:
    found = [
        residuals_strategy(
            DOMAIN,
            [QuerySet(each.clique, each.asked, unit * each.weight) for each in MIXED],
            relation("replace-one"),
            2,
            total_known=False,
            objective=objective,
        )
        for unit in (1.0, 1e-6)
    ]
    assert found[1].objective == pytest.approx(1e-6 * found[0].objective, rel=2e-3)
    assert found[1].lower_bound == pytest.approx(1e-6 * found[0].lower_bound, rel=2e-3)


@pytest.mark.parametrize("seed", range(8))
def test_rows_of_very_different_lengths_have_a_precise_basis(seed: int) -> None:
    """A millionth of the longest is too short for normal equations; x = p (1'x) + K (S x)."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(4))
    rows = 1e6 * rng.normal(size=(5, 3)) * [1, 1e-3, 1e-6] @ np.linalg.svd(p[None])[2][1:]
    basis = ResidualBasis.of(rows)
    np.testing.assert_allclose(basis.unseen, p, atol=1e-9)
    np.testing.assert_allclose(basis.inverse @ rows, np.eye(4) - p[:, None], atol=1e-8)
    np.testing.assert_allclose(basis.inverse.sum(axis=0), 0.0, atol=1e-12)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (-np.eye(3), "must not have the row of ones"),
        ([*(3 * np.eye(3) - 1), np.full(3, 1e-3)], "must have rank 2 .* of rank 3"),
        ([[1e6, -1e6, 0], [0, 1e-6, -1e-6]], "must have rank 2 .* of rank 1"),
    ],
)
def test_rows_that_are_no_residual_basis_are_refused(rows: list[object], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        ResidualBasis.of(np.array(rows))


def test_attributes_of_as_many_codes_have_bases_of_their_own() -> None:
    """One is measured twice, through multiples of its rows, and one through sparse rows."""
    domain, truth = Domain({"a": 3, "b": 3}), np.arange(9.0).reshape(3, 3) ** 2
    a, b = np.array([[1.0, -1, 0], [0, 1, -1]]), np.array([[1.0, -1, 0.25], [0, 1, -1]])
    y = [
        Measurement(("a",), a @ truth.sum(1), 1.0, a),
        Measurement(("a",), 3 * a @ truth.sum(1), 1.0, 3 * a),
        Measurement(("b",), b @ truth.sum(0), 1.0, scipy.sparse.csr_array(b)),
        Measurement(("a", "b"), (a @ truth @ b.T).ravel(), 1.0, [a, b]),
    ]
    tables = ResidualTables(domain, y, truth.sum())
    np.testing.assert_allclose(tables.marginal(["b", "a"]), truth.T, atol=1e-9)
    with pytest.raises(InvalidInput, match="has 2 columns, but must have 3"):
        tables.answer(FactoredQuery({"a": np.eye(2)}))


def test_small_rows_are_not_taken_for_contrasts() -> None:
    """Rows of 1e-10 that weigh the codes differently have another inverse than contrasts."""
    rows = 1e-10 * (np.diag([1.0, 2.0, 3.0]) @ (3 * np.eye(3) - 1))
    basis = ResidualBasis.of(rows)
    np.testing.assert_allclose(basis.inverse @ rows, np.eye(3) - 1 / 3, atol=1e-9)
