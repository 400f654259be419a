"""Structural zeros and conditioning, against the joint table with impossible cells taken out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy.optimize import nnls

from pgmkit import Domain, InvalidInput, Measurement, Zeros, error_bars, estimate
from pgmkit.estimation import METHODS
from pgmkit.least_squares.consistency import consistent_tables
from pgmkit.model import GraphicalModel
from pgmkit.structural_zeros import check_zeros

DOMAIN = Domain({"a": 3, "b": 2, "c": 3, "d": 2})
WITHIN = Zeros(("b", "a"), [[True, False, True], [True, True, False]])
ACROSS = Zeros(("c", "a"), [[True, True, False], [False, True, True], [True, True, True]])


def possible() -> np.ndarray:
    allowed = np.ones(DOMAIN.shape(), dtype=bool)
    for code in np.ndindex(*DOMAIN.shape()):
        a, b, c, _ = code
        allowed[code] = WITHIN.allowed[b, a] and ACROSS.allowed[c, a]
    return allowed


def noisy() -> list[Measurement]:
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 60, DOMAIN.shape()) * possible()
    cliques = [("a", "b"), ("b", "c"), ("c", "d")]
    axes = {name: i for i, name in enumerate(DOMAIN)}
    return [
        Measurement(
            clique,
            counts.sum(tuple(i for n, i in axes.items() if n not in clique)).ravel()
            + rng.normal(0, 9, DOMAIN.size(clique)),
            9.0,
        )
        for clique in cliques
    ]


def optimum(measurements: list[Measurement], total: float) -> float:
    """The least loss over joint tables without the impossible cells: nnls with a heavy total."""
    cells = np.flatnonzero(possible())
    rows, values = [], []
    for m in measurements:
        view = np.zeros((DOMAIN.size(m.clique), len(cells)))
        view[DOMAIN.cell_map(DOMAIN.attributes, m.clique)[cells], np.arange(len(cells))] = 1
        rows.append(view / m.stddev)
        values.append(m.values / m.stddev)
    rows.append(np.full((1, len(cells)), 1e4))
    values.append(np.array([1e4 * total]))
    return nnls(np.vstack(rows), np.concatenate(values))[1] ** 2 / 2


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_the_optimum_over_possible_records(method: str) -> None:
    measurements = noisy()
    best = optimum(measurements, 700.0)
    model = estimate(
        DOMAIN, measurements, total=700.0, zeros=[WITHIN, ACROSS], method=method, tolerance=1e-4
    )
    assert model.loss == pytest.approx(best, abs=2e-3)
    assert model.loss - model.gap <= best + 1e-6
    assert model.marginal(DOMAIN.attributes)[~possible()].max() == 0.0
    assert model.marginal(("b", "a"))[~WITHIN.allowed].max() == 0.0
    free = estimate(DOMAIN, measurements, total=700.0, tolerance=1e-4)
    assert free.loss < model.loss - 1


def test_records_saved_models_and_warm_starts_keep_them(tmp_path: Path) -> None:
    measurements = noisy()
    free = estimate(DOMAIN, measurements, total=700.0)
    model = estimate(DOMAIN, measurements, total=700.0, zeros=[WITHIN, ACROSS], warm_start=free)
    model.save(tmp_path / "model")
    again = GraphicalModel.load(tmp_path / "model")
    for method in ("round", "sample"):
        records = again.sample(2000, rng=np.random.default_rng(0), method=method)
        assert records.marginal(DOMAIN.attributes)[~possible()].max() == 0
    within = estimate(DOMAIN, measurements, total=700.0, zeros=[WITHIN])
    back = estimate(DOMAIN, measurements, total=700.0, warm_start=within, tolerance=1e-4)
    assert back.loss == pytest.approx(free.loss, abs=0.5)
    with pytest.raises(InvalidInput, match="no measured clique contains"):
        estimate(DOMAIN, measurements, total=700.0, warm_start=model)
    assert back.marginal(("b", "a"))[~WITHIN.allowed].min() >= 0


def test_the_relaxation_holds_them() -> None:
    measurements = noisy()
    found = consistent_tables(DOMAIN, measurements, 700.0, 1e-9, [WITHIN])
    assert found.tables[("a", "b")].T[~WITHIN.allowed].max() == 0.0
    assert found.bound <= optimum(measurements, 700.0) + 1e-6


def test_wrong_zeros_are_refused() -> None:
    with pytest.raises(InvalidInput, match="allow at least one"):
        Zeros(("a",), [False, False, False])
    with pytest.raises(InvalidInput, match="shape"):
        estimate(DOMAIN, noisy(), zeros=[Zeros(("a",), [True, False])])
    with pytest.raises(InvalidInput, match="unknown"):
        estimate(DOMAIN, noisy(), zeros=[Zeros(("z",), [True, False])])
    with pytest.raises(InvalidInput, match="each of zeros must be a Zeros, got"):
        estimate(DOMAIN, noisy(), zeros=[(("a",), [True, True, True])])
    contradiction = [
        Zeros(("a",), [True, False, False]),
        Zeros(("a", "d"), [[0, 0], [1, 1], [1, 1]]),
    ]
    with pytest.raises(InvalidInput, match="no possible record"):
        estimate(DOMAIN, noisy(), zeros=contradiction)


def test_given_is_the_conditional_joint() -> None:
    model = estimate(DOMAIN, noisy(), total=700.0)
    joint = model.marginal(DOMAIN.attributes)
    narrowed = model.given({"c": [0, 2], "d": 1})
    wanted = joint.copy()
    wanted[:, :, 1, :] = 0
    wanted[:, :, :, 0] = 0
    assert narrowed.total == pytest.approx(wanted.sum())
    np.testing.assert_allclose(narrowed.marginal(DOMAIN.attributes), wanted, atol=1e-9)
    np.testing.assert_allclose(narrowed.marginal(("d", "a")), wanted.sum((1, 2)).T, atol=1e-9)
    records = narrowed.sample(300, rng=np.random.default_rng(1))
    assert set(records.columns["c"].tolist()) == {0, 2}
    assert set(records.columns["d"].tolist()) == {1}


def test_given_attributes_outside_every_clique() -> None:
    model = estimate(DOMAIN, [Measurement(("a",), [5.0, 6.0, 7.0], 1.0)], total=18)
    narrowed = model.given({"d": 0})
    assert narrowed.total == pytest.approx(9.0)
    np.testing.assert_allclose(narrowed.marginal(("d",)), [9.0, 0.0], atol=1e-12)


def test_impossible_or_unknown_evidence_is_refused() -> None:
    model = estimate(DOMAIN, noisy(), total=700.0, zeros=[WITHIN])
    with pytest.raises(InvalidInput, match="no records"):
        model.given({"a": 1, "b": 0})
    with pytest.raises(InvalidInput, match="from 0 to 1"):
        model.given({"b": 2})
    with pytest.raises(InvalidInput, match="'z'"):
        model.given({"z": 0})


def test_zeros_that_rule_nothing_out_leave_no_trace() -> None:
    """Their clique would be one that no measurement covers."""
    nothing = Zeros(("a", "d"), np.ones((3, 2), dtype=bool))
    model = estimate(DOMAIN, noisy(), total=500.0, zeros=[nothing])
    assert model.cliques == estimate(DOMAIN, noisy(), total=500.0).cliques
    bars = error_bars(model, noisy(), replicates=20, seed=0)
    assert np.isfinite(bars.marginal(("a", "d")).stddev).all()


@pytest.mark.parametrize(
    "names, allowed", [("a", [True, False]), ("aa", np.eye(3)), ("z", [True, False])]
)
def test_a_mask_of_another_shape_than_the_domains_is_refused(
    names: str, allowed: ArrayLike
) -> None:
    with pytest.raises(InvalidInput, match="zeros"):
        Zeros(tuple(names), allowed).within(DOMAIN, ("a", "b"))


@pytest.mark.parametrize("allowed", [[0.5, 1.0], [2, 1], ["1", "0"], [1, None]])
def test_only_booleans_allow_cells(allowed: list[Any]) -> None:
    with pytest.raises(InvalidInput, match="must be an array of Booleans"):
        Zeros(("a",), allowed)


def test_zeros_are_not_changed_afterwards() -> None:
    given = np.array([True, False])
    zeros = Zeros(("a",), given)
    given[:] = True
    assert zeros.allowed.tolist() == [True, False] and not zeros.allowed.flags.writeable


@pytest.mark.parametrize("allowed", [[True, True, True], [True, True, False]])
def test_zeros_of_another_shape_are_refused(allowed: list[bool]) -> None:
    with pytest.raises(InvalidInput, match=r"have the shape \(3,\); the marginal's is \(2,\)"):
        check_zeros(Domain({"a": 2}), [Zeros(("a",), allowed)])


def test_a_table_of_no_attributes_has_one_cell() -> None:
    assert Zeros((), True).allowed.shape == ()


def test_zeros_are_spread_over_a_clique_of_the_domain() -> None:
    domain = Domain({"a": 2, "b": 3})
    zeros = Zeros(("b",), [True, False, True])
    assert zeros.within(domain, ("b", "a")).tolist() == [[True], [False], [True]]
    for clique, wrong in ((("b", "x"), "unknown attribute 'x'"), (("a",), "must contain")):
        with pytest.raises(InvalidInput, match=wrong):
            zeros.within(domain, clique)
