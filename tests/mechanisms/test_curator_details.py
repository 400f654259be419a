"""What a Curator states and refuses at the edges: expected errors, names of steps, empty lists."""

from __future__ import annotations

import copy
import math
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import narwhals as nw
import numpy as np
import pytest
from scipy import stats
from seams import dense, draw_from

from mechanisms import run
from mechanisms.privacy.budget import Budget, LedgerEntry
from mechanisms.privacy.cell_line import selector
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import BudgetExceeded, Ledger
from mechanisms.privacy.noise import SparseScores
from mechanisms.privacy.units import Excess, bounded
from mechanisms.queries.cells import Cell
from mechanisms.queries.predicates import Predicate, Predicates
from pgmkit import Integer, Schema
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput, ModelTooLarge
from pgmkit.records.dataset import Dataset
from pgmkit.tables.engines.pushdown import FrameCounts

DOMAIN = Domain({"a": 2, "b": 3})
A, B = ("a",), ("b",)
DATA = Dataset(DOMAIN, {"a": [0] * 60 + [1] * 40, "b": [0] * 50 + [1] * 30 + [2] * 20})
NOTHING = {A: np.zeros(2), B: np.zeros(3)}


def curator(delta: float = 0.0, neighbours: str = "replace-one") -> Curator:
    return Curator(DATA, Budget(1e6, delta), neighbours=neighbours, seed=0)


class Asked:
    """Noise that adds none and keeps the scale of each draw."""

    secure = True

    def __init__(self) -> None:
        self.scales: list[float] = []

    def __getattr__(self, law: str) -> Callable[..., Any]:
        def draw(values: np.ndarray | SparseScores, *rest: float) -> Any:
            self.scales.append(rest[-1])
            if isinstance(values, SparseScores):
                values = dense(values)
            if law in ("gaussian", "laplace"):
                return values
            best = np.argsort(-values, kind="stable").tolist()
            return best[: int(rest[0])] if len(rest) == 2 else best[0]

        return draw


def asked(owner: Curator) -> Asked:
    noise = Asked()
    draw_from(owner, noise)
    return noise


def test_the_expected_error_is_that_of_the_law() -> None:
    for delta, law in ((0.0, stats.laplace), (1e-6, stats.norm)):
        owner = curator(delta)
        expected = law.expect(np.abs, scale=owner.scale(0.01))
        assert owner.expected_error(0.01) == pytest.approx(expected, rel=1e-6)


def test_distances_of_what_is_no_clique_are_refused_by_its_name() -> None:
    owner = curator()
    for cliques, message in (([("z",)], "unknown attribute 'z'"), ([], "there is no clique")):
        with pytest.raises(InvalidInput, match=message):
            owner.measure_errors(cliques, {("z",): np.zeros(2)}, 0.1)
    assert not owner.ledger.entries


@pytest.mark.parametrize(
    "budget", [Budget(1.0), Budget(1.0, 1e-6), Budget(1.0, 1e-6, accounting="gaussian")]
)
@pytest.mark.parametrize("cost", [0.0, -0.5, math.inf, math.nan])
def test_the_noise_of_no_cost_is_refused(budget: Budget, cost: float) -> None:
    owner = Curator(DATA, budget, neighbours="replace-one", seed=0)
    for stated in (owner.scale, owner.expected_error, lambda cost: owner.errors_stddev(3, cost)):
        with pytest.raises(InvalidInput, match="^cost must be a finite number above 0, got"):
            stated(cost)


@pytest.mark.parametrize("neighbours, moved", [("replace-one", 2), ("add/remove", 1)])
@pytest.mark.parametrize("number", [1, 4, 9])
def test_distances_are_measured_with_the_stated_noise(
    neighbours: str, moved: int, number: int
) -> None:
    """One row moves each distance by `moved`, all of them by `number` times that in L1."""
    pure, zcdp = curator(0.0, neighbours), curator(1e-6, neighbours)
    laplace = moved * number / 0.5
    gaussian = moved * number**0.5 / (2 * 0.5) ** 0.5
    assert pure.errors_stddev(number, 0.5) == pytest.approx(laplace * 2**0.5)
    assert zcdp.errors_stddev(number, 0.5) == pytest.approx(gaussian)
    for owner, scale in ((pure, laplace), (zcdp, gaussian)):
        noise = asked(owner)
        found = owner.measure_errors([A] * number, NOTHING, 0.5)
        assert noise.scales == pytest.approx([scale])
        assert found.tolist() == [100.0] * number


@pytest.mark.parametrize("neighbours", ["replace-one", "add/remove"])
@pytest.mark.parametrize("count", [1, 4, 9])
def test_predicates_are_measured_with_the_stated_noise(neighbours: str, count: int) -> None:
    """A row moves each count by at most 1, under both relations."""
    predicates = Predicates(DOMAIN, [Predicate((("b", i % 3),)) for i in range(count)])
    for delta in (0.0, 1e-6):
        owner = curator(delta, neighbours)
        noise = asked(owner)
        counts, stddev = owner.measure_predicates(predicates, 0.5)
        scale = count / 0.5 if delta == 0 else count**0.5 / (2 * 0.5) ** 0.5
        assert noise.scales == pytest.approx([scale])
        assert stddev == pytest.approx(scale * (2**0.5 if delta == 0 else 1))
        assert counts.tolist() == [(50, 30, 20)[i % 3] for i in range(count)]


def test_cells_are_measured_by_their_own_row_of_a_matrix() -> None:
    owner = curator()
    asked(owner)
    found = owner.measure_cells([Cell(B, 2), Cell(A, 0)], 1.0)
    assert [each.values.tolist() for each in found] == [[20.0], [60.0]]
    for each, cell in zip(found, [Cell(B, 2), Cell(A, 0)], strict=True):
        one = np.zeros(DOMAIN.size(cell.clique))
        one[cell.index] = 1.0
        assert np.array_equal(selector(DOMAIN, cell).toarray(), one[None])
        assert np.array_equal(np.asarray(each.matrix.toarray()), one[None])


def test_a_cell_far_below_its_estimate_is_as_badly_answered_as_one_far_above() -> None:
    estimates = {A: np.array([60.0, 40.0]), B: np.array([52.0, 30.0, 500.0])}
    predicates = Predicates(DOMAIN, [Predicate((("b", i),)) for i in range(3)])
    owner = curator()
    asked(owner)
    assert owner.choose_cells([A, B], estimates, 1.0) == [Cell(B, 2)]
    assert owner.choose_predicates(predicates, estimates[B], 1.0, count=1) == [2]
    assert owner.choose_predicates(predicates, [50.0, 0.0, 19.0], 1.0, count=1) == [1]
    for exclude in ([2], {2}, (2,)):
        found = owner.choose_predicates(predicates, estimates[B], 1.0, count=2, exclude=exclude)
        assert found == [0, 1]


def test_the_ledger_names_steps_and_mechanisms_in_their_places() -> None:
    owner = Curator(DATA, Budget(1e3, 1e-6, reserved=5e-7), neighbours="replace-one", seed=0)
    predicates = Predicates(DOMAIN, [Predicate((("b", i),)) for i in range(3)])
    owner.measure(["a"], 0.1, step="s")
    owner.measure_queries(A, np.eye(2), 0.1, step="s")
    owner.measure_errors([A], NOTHING, 0.1, step="s")
    owner.measure_cells([Cell(A, 0)], 0.1, step="s")
    owner.measure_predicates(predicates, 0.1, step="s")
    owner.choose([A, B], NOTHING, 0.1, step="s")
    owner.choose([A, B], NOTHING, 0.1, step="s", mechanism="permute-and-flip")
    owner.scored([A, B], NOTHING).choose([0, 1], 0.1, step="s")
    owner.choose_public([{A: np.array([0.5, 0.5])}], 0.1, step="s")
    owner.choose_cells([A], NOTHING, 0.1, step="s", count=2)
    owner.choose_predicates(predicates, np.zeros(3), 0.1, count=2, step="s")
    owner.draw_signed([A], NOTHING, 0.1, count=3, step="s")
    owner.discover(["x"] * 100, 0.1, 1e-7, step="s")
    noise, choice = "discrete Gaussian", "exponential mechanism"
    assert [(each.step, each.mechanism) for each in owner.ledger.entries] == [
        ("s a", noise),
        ("s queries of a", noise),
        *[("s", noise)] * 3,
        ("s", choice),
        ("s", "permute-and-flip"),
        *[("s", choice)] * 2,
        ("s", "top 2 of cells, Gumbel noise"),
        ("s", "top 2 of predicates, Gumbel noise"),
        ("s", f"3 x {choice}"),
        ("s", f"{noise}, threshold"),
    ]
    assert [each.cost for each in owner.ledger.entries] == [0.1] * 13
    assert [each.delta for each in owner.ledger.entries] == [0.0] * 12 + [1e-7]


def test_names_in_any_sequence_become_a_clique() -> None:
    owner = curator()
    assert owner.measure(["b", "a"], 1.0).clique == owner.measure(("b", "a"), 1.0).clique
    assert isinstance(owner.measure(["a"], 1.0).clique, tuple)
    assert owner.measure_queries(["a"], np.eye(2), 1.0).clique == A
    assert owner.measure_queries(("a", "b"), np.eye(6), 1.0).values.shape == (6,)
    assert owner.choose_public([{A: np.array([0.5, 0.5])}], 1.0) == 0


def test_signs_say_which_way_an_estimate_is_wrong() -> None:
    owner = curator()
    asked(owner)
    above, below = (
        {A: [60.0, 40.0], B: [50.0, 30.0, 90.0]},
        {A: [60.0, 10.0], B: [50.0, 31.0, 20.0]},
    )
    assert owner.draw_signed([A, B], above, 1.0) == [(Cell(B, 2), -1)]
    assert owner.draw_signed([A, B], below, 1.0, count=2)[0] == (Cell(A, 1), 1)


def test_a_candidate_without_an_estimate_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"no table for the clique \('b',\)"):
        curator().choose([A, B], {A: np.zeros(2)}, 1.0)


def test_numbers_that_leave_are_plain() -> None:
    owner = curator()
    found, stddev = owner.measure_excess(Excess(12, 15), 1.0)
    assert type(found) is type(stddev) is float
    halves = [{A: np.array([0.5, 0.5])}, {A: np.array([0.6, 0.4])}]
    assert type(owner.choose_public(halves, 1.0)) is int
    assert owner.choose_public(halves, 1.0) == 1
    assert type(owner.scored([A, B], NOTHING).choose([1], 1.0, step="s")) is int
    assert all(
        type(place) is int
        for place in owner.choose_predicates(
            Predicates(DOMAIN, [Predicate((("a", 0),))]), [0.0], 1.0, count=1
        )
    )


@pytest.mark.parametrize("delta", [0.0, -1e-9, 6e-7, 7.5e-7, 1.0, np.nan])
def test_values_are_found_within_the_reserved_delta(delta: float) -> None:
    owner = Curator(DATA, Budget(1e3, 1e-6, reserved=5e-7), neighbours="replace-one", seed=0)
    with pytest.raises(
        InvalidInput, match="delta must be above 0 and at most what the budget reserves"
    ):
        owner.discover(["x"] * 100, 0.1, delta)
    assert owner.ledger.entries == ()


def test_marginals_beyond_memory_are_refused_before_they_are_counted() -> None:
    names = [f"n{i}" for i in range(8)]
    data = Dataset(Domain({name: 1000 for name in names}), {name: [0] for name in names})
    owner = Curator(data, Budget(1.0), neighbours="replace-one", seed=0)
    with pytest.raises(ModelTooLarge, match=r"cells\) needs .* bytes"):
        owner.measure(names, 0.1)
    assert owner.ledger.entries == ()


def test_predicates_of_records_in_an_engine_are_refused_before_they_cost() -> None:
    frame = pytest.importorskip("polars").LazyFrame({"a": [0, 1, 1]})
    counts = FrameCounts(nw.from_native(frame), Schema({"a": Integer(0, 1)}))
    predicates = Predicates(Domain({"a": 2}), [Predicate((("a", 0),))])
    owner = Curator(counts, Budget(1.0), neighbours="replace-one", seed=0)
    for ask in (
        lambda: owner.measure_predicates(predicates, 0.1),
        lambda: owner.choose_predicates(predicates, [0.0], 0.1, count=1),
    ):
        with pytest.raises(InvalidInput, match="predicates are counted on records in memory"):
            ask()
    assert owner.ledger.entries == ()


def test_the_rows_that_are_kept_stay_in_their_order() -> None:
    units, keys = np.array([2, 0, 1, 0, 2, 1, 0]), np.array([9, 8, 7, 3, 2, 1, 5], dtype=np.uint64)
    places, excess = bounded(units, 2, keys)
    assert places.tolist() == [0, 2, 3, 4, 5, 6] and excess.rows == 1


WRONG: dict[str, Callable[[Curator], object]] = {
    "no candidates": lambda c: c.scored([], NOTHING),
    "an unknown candidate": lambda c: c.scored([("z",)], {("z",): np.zeros(2)}),
    "a candidate with an attribute twice": lambda c: c.scored([("a", "a")], NOTHING),
    "a cell of an unknown clique": lambda c: c.measure_cells([Cell(("z",), 0)], 1.0),
    "a cell of an attribute twice": lambda c: c.measure_cells([Cell(("a", "a"), 0)], 1.0),
    "predicates of another domain": lambda c: c.measure_predicates(
        Predicates(Domain({"a": 3}), [Predicate((("a", 2),))]), 1.0
    ),
    "no cliques to draw from": lambda c: c.draw_signed([], NOTHING, 1.0),
    "no draws": lambda c: c.draw_signed([A], NOTHING, 1.0, count=0),
    "a count of True": lambda c: c.draw_signed([A], NOTHING, 1.0, count=True),
    "shares above 1": lambda c: c.choose_public([{A: np.array([1.5, 0.5])}], 1.0),
    "shares below 0": lambda c: c.choose_public([{A: np.array([-0.5, 0.5])}], 1.0),
    "no shares": lambda c: c.choose_public([], 1.0),
    "shares of nothing": lambda c: c.choose_public([{}], 1.0),
    "other cliques": lambda c: c.choose_public(
        [{A: np.array([0.5, 0.5])}, {B: np.full(3, 1 / 3)}], 1.0
    ),
    "queries of an unknown clique": lambda c: c.measure_queries(("z",), np.eye(2), 1.0),
    "queries of an attribute twice": lambda c: c.measure_queries(("a", "a"), np.eye(4), 1.0),
    "negative estimates that are beyond 2^40 together": lambda c: c.choose(
        [A, B], {A: np.full(2, -(2.0**39) * 1.5), B: np.zeros(3)}, 1.0
    ),
    "no predicates asked for": lambda c: c.choose_predicates(
        Predicates(DOMAIN, [Predicate((("a", 0),))]), [0.0], 1.0, count=0
    ),
    "more predicates than there are": lambda c: c.choose_predicates(
        Predicates(DOMAIN, [Predicate((("a", 0),))] * 3), [0.0] * 3, 1.0, count=3, exclude=[1]
    ),
    "no cells": lambda c: c.measure_cells([], 1.0),
    "an estimate of a predicate that is no number": lambda c: c.choose_predicates(
        Predicates(DOMAIN, [Predicate((("a", 0),))]), [np.nan], 1.0, count=1
    ),
    "a cell of nothing": lambda c: c.measure_cells([Cell(None, 0)], 1.0),  # type: ignore[arg-type]
    "distances of no tables": lambda c: c.errors_stddev(0, 1.0),
    "fewer than no distances": lambda c: c.errors_stddev(-1, 1.0),
    "more draws than memory holds": lambda c: c.draw_signed([A], NOTHING, 1.0, count=10**30),
    "weights that are no numbers": lambda c: c.choose([A], NOTHING, 1.0, weights=np.array(["x"])),
    "an estimate that is no number": lambda c: c.choose([A], {A: ["x", "y"]}, 1.0),
    "queries that are not on the grid": lambda c: c.choose(
        [A], NOTHING, 1.0, queries={A: [np.eye(2)]}
    ),
    "a number in place of queries": lambda c: c.choose([A], NOTHING, 1.0, queries={A: 3}),
    "an array in place of queries": lambda c: c.choose([A], NOTHING, 1.0, queries={A: np.eye(2)}),
    "a place that is not whole": lambda c: c.scored([A, B], NOTHING).choose([0.5], 1.0, step="s"),
    "a place in place of places": lambda c: c.scored([A, B], NOTHING).choose(0, 1.0, step="s"),
    "shares in a table": lambda c: c.measure_together({A: np.eye(2)}, np.ones((1, 1)), 1.0),
    "too few estimates of predicates": lambda c: c.choose_predicates(
        Predicates(DOMAIN, [Predicate((("a", 0),))]), [], 1.0, count=1
    ),
}


@pytest.mark.parametrize("what", sorted(WRONG))
def test_what_is_wrong_is_refused_before_it_costs(what: str) -> None:
    owner = curator()
    with pytest.raises(InvalidInput):
        WRONG[what](owner)
    assert owner.ledger.entries == ()


def test_threads_do_not_spend_what_another_is_about_to_spend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of two threads asks for more than half, and waits for the other after its check."""
    shared, check = curator(), Ledger._check
    both = threading.Barrier(2)

    def slow(ledger: Ledger, entry: LedgerEntry) -> None:
        check(ledger, entry)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)

    monkeypatch.setattr(Ledger, "_check", slow)

    def measured(_: int) -> bool:
        with suppress(BudgetExceeded):
            shared.measure(A, 0.6e6)
            return True
        return False

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(measured, range(2))) == [False, True]
    assert shared.ledger.spent == 0.6e6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_spends_nothing_of_a_budget_that_it_shares() -> None:
    shared = curator()
    child = os.fork()
    if not child:
        try:
            shared.measure(A, 1.0)
        except InvalidInput as refusal:
            os._exit(7 if "charges in a fork" in str(refusal) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    shared.measure(A, 1.0)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy])
def test_a_curator_is_not_copied_with_its_budget(copied: Callable[[Curator], object]) -> None:
    private = Curator(DATA, Budget(1.0, 1e-6), neighbours="add/remove")
    with pytest.raises(InvalidInput, match="cannot be pickled or copied deeply"):
        copied(private)
    release = run("mst", DATA, [A], 1.0, 1e-6, neighbours="add/remove")
    again = pickle.loads(pickle.dumps(release))
    assert again.ledger.entries == release.ledger.entries
