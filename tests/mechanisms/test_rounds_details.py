"""Rounds in small: the number of rounds, what each costs, averages, refusals and the bar."""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

import numpy as np
import pytest

from mechanisms import run
from mechanisms.families.histogram import FullDomain, Histogram
from mechanisms.gem import Gem
from mechanisms.mwem import Mwem
from mechanisms.pep import Pep, pep_pub
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.queries.cells import Cell
from mechanisms.rounds.drawn import measure_worst, worst_pairs
from mechanisms.rounds.histogram import HistogramState, check_public, product_of_marginals, updater
from mechanisms.rounds.loop import Round, round_reports
from mechanisms.rounds.select_and_measure import (
    SELECTIONS,
    RoundsRule,
    check_enough,
    check_equal_weights,
    check_queries,
    check_total,
    known_total,
    least_total,
    measure_one_way,
)
from mechanisms.workload import Workload, k_way, pairs_of
from pgmkit import Dataset, Domain, InvalidInput, Measurement
from pgmkit.records.dataset import NoRows

DOMAIN = Domain({"a": 2, "b": 3})
DATA = Dataset(DOMAIN, {"a": [0] * 60 + [1] * 40, "b": [0] * 50 + [1] * 30 + [2] * 20})
NO_ROWS = NoRows(DOMAIN)
ONES = k_way(DOMAIN, 1)


def curator(delta: float = 1e-6, relation: str = "replace-one", data: Dataset = DATA) -> Curator:
    return Curator(data, Budget(1.0, delta), neighbours=relation, seed=0)


@pytest.mark.parametrize("average", [True, False])
def test_the_average_is_of_the_shares_of_each_round(average: bool) -> None:
    """Updates that double one weight after another: the sums are worked out by hand."""
    start = Histogram(FullDomain(DOMAIN), np.ones((2, 3)))
    seen = []

    def update(histogram: Histogram, cells: Any, latest: int) -> None:
        seen.append((len(cells), latest))
        histogram.scale(Cell(("a", "b"), len(seen)), 2)

    updated = updater(update, 1, 100.0, average)
    first = Measurement(("a",), [60, 40], 1.0)
    second, third = Measurement(("a",), [61, 39], 1.0), Measurement(("b",), [5, 3, 2], 1.0)
    one = updated(HistogramState(start, 100.0, known=1), [first, second])
    two = updated(one, [first, second, third])
    assert seen == [(2, 2), (5, 3)]
    once, twice = np.array([[1, 2, 1], [1, 1, 1]]) / 7, np.array([[1, 2, 2], [1, 1, 1]]) / 8
    if average:
        assert np.allclose(one.summed, once) and np.allclose(two.summed, once + twice)
    else:
        assert one.summed is None and two.summed is None
    assert np.array_equal(np.asarray(start.weights), np.ones((2, 3))), "updates work on copies"
    assert np.allclose(two.marginals([("b",)])["b",], 100 * twice.sum(axis=0))


def test_the_first_histogram_is_the_product_of_shares() -> None:
    first = [Measurement(("b",), [5.0, -3.0, 4.5], 1.0), Measurement(("a",), [2.0, 6.0], 1.0)]
    found = product_of_marginals(DOMAIN, first)
    expected = np.outer([0.25, 0.75], [0.5, 0.05, 0.45])
    assert np.allclose(found / found.sum(), expected)


@pytest.mark.parametrize(
    "public, message",
    [
        (Dataset(Domain({"a": 2}), {"a": [0]}), "lack 'b'"),
        (Dataset(Domain({"a": 2, "b": 4}), {"a": [0], "b": [0]}), "another domain"),
        (Dataset(Domain({"b": 3, "a": 2}), {"a": [0], "b": [0]}), "another domain"),
    ],
)
def test_public_records_are_of_the_same_domain(public: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        check_public(DOMAIN, public)
    check_public(DOMAIN, DATA)


@pytest.mark.parametrize("settings", [Mwem(rounds=2, queries=2), Pep(rounds=4), Mwem(rounds=5)])
def test_rounds_cost_alike_and_the_last_one_spends_the_rest(settings: Any) -> None:
    from mechanisms.dispatch import run_on
    from mechanisms.registry import configure

    owner = curator()
    name = type(settings).__name__.lower()
    entry, chosen = configure(name, **{k: v for k, v in vars(settings).items()})
    run_on(owner, entry, chosen, ONES)
    total = owner.ledger.budget.total
    costs = {e.step: e.cost for e in owner.ledger.entries if e.step.startswith("round")}
    share = 1 - chosen.one_way_share
    for number in range(1, settings.rounds + 1):
        select, measure = costs[f"round {number}: select"], costs[f"round {number}: measure"]
        assert select == pytest.approx(chosen.select_share * share * total / settings.rounds)
        assert select + measure == pytest.approx(share * total / settings.rounds)
    assert owner.remaining == 0.0
    assert len(costs) == 2 * settings.rounds


def test_a_round_counts_as_many_queries_as_were_planned_for_what_it_spends() -> None:
    owner = curator()
    whole, rounds = owner.remaining, SELECTIONS["queries"](owner, ONES, 2, 2, 0.25, repeat=True)

    class Model:
        def marginals(self, cliques: Any) -> Any:
            return {clique: np.zeros(DOMAIN.shape(clique)) for clique in cliques}

    assert rounds.planned == 0.0
    for before in (False, True):
        assert rounds.late is before
        picked = rounds.select(Model())
        assert picked is not None
        rounds.measure(picked)
        assert rounds.planned == pytest.approx(2.0)  # half of the budget for four queries
    assert rounds.select(Model()) is None and owner.ledger.spent == pytest.approx(whole)


@pytest.mark.parametrize("kind, queries", [("queries", 1), ("queries", 2), ("marginals", 1)])
@pytest.mark.parametrize("repeat", [True, False])
def test_what_was_measured_is_not_selected_again(kind: str, queries: int, repeat: bool) -> None:
    owner = curator()
    options = {"repeat": repeat} if kind == "queries" else {}
    rounds = SELECTIONS[kind](owner, ONES, 2, queries, 0.5, **options)
    estimates = {("a",): np.array([60.0, 40.0]), ("b",): np.array([1e6, -1e6, 20.0])}

    class Model:
        def marginals(self, cliques: Any) -> Any:
            return {clique: estimates[clique] for clique in cliques}

    picked = []
    for number in (1, 2):
        some = rounds.select(Model())
        assert some is not None and len(some) == queries
        assert owner.ledger.entries[-1].step == f"round {number}: select"
        assert len(rounds.measure(some)) == queries
        picked.append(some[0])
    assert rounds.select(Model()) is None and owner.remaining == 0.0
    if kind == "marginals":
        assert picked == [("b",), ("a",)]
    else:
        assert (picked[0] in (Cell(("b",), 0), Cell(("b",), 1))) and (
            repeat or picked[0] != picked[1]
        )


@pytest.mark.parametrize("delta, root", [(1e-6, 2), (0.0, 3)])
@pytest.mark.parametrize("power", [1.0, 2.0])
def test_the_number_of_rounds_follows_its_formula(delta: float, root: int, power: float) -> None:
    owner = curator(delta)
    settings, rule = Mwem(rounds=None), RoundsRule(3.0, power)
    for total, share in ((1e4, 0.0), (1e7, 0.5), (1e-6, 0.0)):
        noise = owner.scale((1 - share) * owner.remaining)
        expected = max(1, round(3.0 * (total / noise) ** (power / root)))
        assert rule(owner, total, share) == expected
        most = min(5, expected)
        assert rule.of(owner, ONES, settings, total, share) == most
        assert rule.of(owner, ONES, Mwem(rounds=4), total, share) == 4
        halved = max(1, min(5 // 2, expected))
        assert rule.of(owner, ONES, Mwem(rounds=None, queries=2), total, share) == halved
        assert rule.of(owner, ONES, Mwem(rounds=None, queries=5), total, share) == 1
        assert rule.of(owner, ONES, Gem(), total, share) == most  # queries is None
    assert rule(owner, 1e4) == rule(owner, 1e4, 0.0)
    assert RoundsRule(3.0).power == 1.0


def test_no_more_is_selected_than_there_is() -> None:
    check_enough(2, 3, 6, "cells")
    with pytest.raises(InvalidInput, match="is 6, but there are 5 cells"):
        check_enough(2, 3, 5, "cells")
    assert Mwem(select="queries").available(ONES) == 5
    assert Mwem(select="marginals").available(ONES) == 2
    owner = curator()
    for fine in (Mwem(rounds=5), Mwem(rounds=1, queries=5), Mwem(rounds=2, select="marginals")):
        check_queries(owner, ONES, fine)
    for wrong in (Mwem(rounds=6), Mwem(rounds=2, queries=3), Mwem(rounds=3, select="marginals")):
        with pytest.raises(InvalidInput, match="ask for fewer"):
            check_queries(owner, ONES, wrong)
    for one_each in (Gem(select="marginals", rounds=2), Gem(rounds=5)):  # queries is None
        check_queries(owner, ONES, one_each)
    check_queries(owner, ONES, Mwem(rounds=None, queries=5))
    with pytest.raises(InvalidInput, match="ask for fewer"):
        check_queries(owner, ONES, Mwem(rounds=None, queries=6))


def test_single_queries_know_no_weights_and_marginals_come_one_by_one() -> None:
    unequal = Workload(DOMAIN, [("a",), ("b",)], [1.0, 2.0])
    check_equal_weights(ONES)
    owner = curator()
    check_queries(owner, unequal, Mwem(rounds=2, select="marginals"))
    for check in (check_equal_weights, lambda wanted: check_queries(owner, wanted, Mwem())):
        with pytest.raises(InvalidInput, match=r"unequal weights \(1 to 2\).*no target.*aim"):
            check(unequal)
    assert Mwem(select="marginals").conflict() is Mwem(queries=7).conflict() is None
    assert Gem(select="marginals", queries=None).conflict() is None
    with pytest.raises(InvalidInput, match="got 2"):
        Mwem(select="marginals", queries=2)


def test_the_total_is_known_or_measured() -> None:
    public, private = curator(), curator(relation="add/remove")
    for share in (0.0, 0.1):
        check_total(public, share)
    check_total(private, 0.1)
    for check in (
        lambda: check_total(private, 0.0),
        lambda: check_queries(private, ONES, Mwem(one_way_share=0.0)),
    ):
        with pytest.raises(InvalidInput, match="one_way_share must be above 0"):
            check()
    assert known_total(public, []) == least_total(public) == 100.0
    assert least_total(private) == 1.0 and type(known_total(public, [])) is float
    empty = curator(data=NO_ROWS)
    assert known_total(empty, []) == least_total(empty) == 1.0
    first = [Measurement(("a",), [30.0, 20.0], 1.0), Measurement(("b",), [30.0, 20.0, 2.0], 1.0)]
    # Inverse variances 1/2 and 1/3 of two sums, 50 and 52.
    assert known_total(private, first) == pytest.approx((50 / 2 + 52 / 3) / (1 / 2 + 1 / 3))
    assert known_total(private, [Measurement(("a",), [-30.0, 20.0], 1.0)]) == 1.0


def test_one_way_marginals_share_their_part_evenly() -> None:
    owner = curator()
    before = owner.remaining
    first, total = measure_one_way(owner, 0.3)
    assert [m.clique for m in first] == [("a",), ("b",)] and total == 100.0
    assert [e.cost for e in owner.ledger.entries] == pytest.approx([0.15 * before] * 2)
    assert [e.step for e in owner.ledger.entries] == ["first: measure a", "first: measure b"]
    assert measure_one_way(curator(), 0.0) == ([], 100.0)
    single = Dataset(Domain({"one": 1, "a": 2}), {"one": [0, 0], "a": [0, 1]})
    first, total = measure_one_way(curator(data=single), 0.3)
    assert [m.clique for m in first] == [("a",)] and total == 2.0


def test_rounds_are_shown_on_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []

    class Bar:
        def __init__(self, iterable: object, **options: object) -> None:
            assert iterable is None and options == {"disable": None, "unit": "round"}

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            shown.append("closed")

        def set_postfix_str(self, text: str) -> None:
            shown.append(text)

        def update(self) -> None:
            shown.append(1)

    monkeypatch.setattr("tqdm.tqdm", Bar)
    with round_reports(True) as show:
        assert show is not None
        show(Round(0, (("a",), ("a", "b")), (), None, None))
        show(Round(1, (), (), None, None))
    assert shown == ["a x b", 1, 1, "closed"]
    for nothing in (None, False):
        with round_reports(nothing) as show:
            assert show is None
    with round_reports(print) as show:
        assert show is print


def test_marginals_are_penalised_by_their_expected_noise() -> None:
    """A cell's expected absolute noise, times the cells; the weights are those of the workload."""
    owner = curator()
    weighted = Workload(DOMAIN, [("a",), ("b",)], [1.0, 2.5])
    rounds = SELECTIONS["marginals"](owner, weighted, 2, 1, 0.25)
    cost = 0.75 * owner.remaining / 2
    given: dict[str, Any] = {}

    def choose(candidates: Any, estimates: Any, price: float, **options: Any) -> Any:
        given.update(options, candidates=list(candidates), price=price)
        return ("b",)

    owner.choose = choose  # type: ignore[method-assign, assignment]

    class Model:
        def marginals(self, cliques: Any) -> Any:
            return {clique: np.zeros(DOMAIN.shape(clique)) for clique in cliques}

    assert rounds.select(Model()) == [("b",)]
    cell = np.sqrt(2 / np.pi) * owner.scale(cost)
    assert given["candidates"] == [("a",), ("b",)] and given["weights"] == [1.0, 2.5]
    assert given["penalties"] == pytest.approx([2 * cell, 3 * cell])
    assert given["price"] == pytest.approx(0.25 * owner.remaining / 2)


def test_pairs_are_named_in_the_order_of_the_domain() -> None:
    """Two cliques name one pair in two orders: it is one."""
    domain = Domain({"a": 2, "b": 3, "c": 2, "one": 1})
    cliques = [("b", "a"), ("c", "a", "b"), ("one", "a")]
    assert pairs_of(domain, cliques) == [("a", "b"), ("a", "c"), ("b", "c")]


@pytest.mark.parametrize("share", [0.3, 0.5])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_rounding_makes_no_round_fewer(epsilon: float, share: float) -> None:
    """What remains before the last round is the budget of a round, but for rounding."""

    class Model:
        def marginals(self, cliques: Any) -> Any:
            return {clique: np.zeros(DOMAIN.shape(clique)) for clique in cliques}

    for rounds in range(1, 9):
        owner = Curator(DATA, Budget(epsilon, 1e-6), neighbours="replace-one", seed=0)
        steps = SELECTIONS["queries"](owner, ONES, rounds, 1, share, repeat=True)
        while (picked := steps.select(Model())) is not None:
            steps.measure(picked)
        measured = [each for each in owner.ledger.entries if each.step.endswith("measure")]
        assert len(measured) == rounds


class Fixed:
    """A model whose tables never change."""

    tables: ClassVar = {("a",): np.array([60.0, 40.0]), ("b",): np.array([50.0, 7.0, 20.0])}

    def marginals(self, cliques: Any) -> Any:
        return {clique: self.tables[clique] for clique in cliques}


def costs_of_rounds(planned: int, distances: list[float]) -> list[float]:
    """The costs of the measurements of annealed rounds, in units of the planned cost, if the noisy
    answers are at these distances from the model, in standard deviations.
    """
    owner = curator()
    unit, exact, left = owner.remaining / planned, owner.measure_cells, iter(distances)

    def measured(cells: Any, cost: float, *, step: str) -> list[Measurement]:
        paid = exact(cells, cost, step=step)
        counts = [Fixed.tables[cell.clique][cell.index] for cell in cells]
        return [
            Measurement(m.clique, [count + 2.0 * next(left)], 2.0, m.matrix)
            for m, count in zip(paid, counts, strict=True)
        ]

    owner.measure_cells = measured  # type: ignore[method-assign]
    rounds = SELECTIONS["queries"](owner, ONES, planned, 1, 0.25, repeat=True, anneal=True)
    for _ in distances:
        picked = rounds.select(Fixed())
        if picked is None:
            break
        rounds.measure(picked)
    costs = [e.cost for e in owner.ledger.entries if e.step.endswith("measure")]
    return [cost / (0.75 * unit) for cost in costs]


@pytest.mark.parametrize(
    "distances, costs",
    [
        ([0.75] * 12, [1] * 5 + [2] * 5 + [4] * 2),
        ([0.5, -3.0, 0.5, 1.0, 3.0, 0.0], [1] * 5 + [2]),  # the median is the noise
        ([1.5] * 7, [1] * 7),
        ([-3.0] * 5 + [0.5] * 4, [1] * 8 + [2]),  # the last five count
    ],
)
def test_the_budget_doubles_where_rounds_find_only_noise(
    distances: list[float], costs: list[float]
) -> None:
    assert costs_of_rounds(64, distances) == pytest.approx(costs)


def test_a_round_takes_what_is_too_little_for_another() -> None:
    """Of eight rounds, three are left after five: one of twice the budget, and a half of one."""
    costs = costs_of_rounds(8, [0.0] * 8)
    assert costs == pytest.approx([1] * 5 + [(3 - 0.25 * 2) / 0.75])


def test_queries_are_selected_by_the_answers_of_the_view() -> None:
    owner, asked = curator(), []

    class Other(Fixed):
        def marginals(self, cliques: Any) -> Any:
            asked.append(self)
            return super().marginals(cliques)

    model, other = Fixed(), Other()
    rounds = SELECTIONS["queries"](owner, ONES, 2, 1, 0.25)
    last, measurements = rounds.run(model, (), lambda now, _: now, None, view=lambda now: other)
    assert last is model and len(measurements) == 2 and asked == [other] * 2


def test_only_some_settings_average_repeat_and_anneal(monkeypatch: pytest.MonkeyPatch) -> None:
    from mechanisms.dispatch import run_on
    from mechanisms.registry import entry_of

    given: list[tuple[bool, bool]] = []

    class Seen(SELECTIONS["queries"]):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, repeat: bool, anneal: bool) -> None:
            given.append((repeat, anneal))
            super().__init__(*arguments, repeat=repeat, anneal=anneal)

    monkeypatch.setitem(SELECTIONS, "queries", Seen)
    for settings in (Pep(rounds=1), Pep(), Mwem(), Mwem(rounds=2, past_queries=False)):
        run_on(curator(), entry_of(settings), settings, ONES)
    assert given == [(False, False), (False, True), (False, True), (True, False)]
    every = Pep(), Mwem(), Mwem(result="average")
    assert [each.updates().average for each in every] == [0, 0, 1]


@pytest.mark.parametrize(
    "settings, workload, message",
    [
        (Mwem(), Workload(DOMAIN, [("a",), ("b",)], [1.0, 2.0]), "unequal weights"),
        (Pep(rounds=6), ONES, "ask for fewer"),
        (Mwem(one_way_share=0.0), ONES, "one_way_share must be above 0"),
    ],
)
def test_what_rounds_do_not_support_is_refused_before_spending(
    settings: Any, workload: Workload, message: str
) -> None:
    from mechanisms.dispatch import run_on
    from mechanisms.registry import entry_of

    owner = curator(relation="add/remove")
    with pytest.raises(InvalidInput, match=message):
        run_on(owner, entry_of(settings), settings, workload)
    assert owner.ledger.spent == 0


def test_public_records_over_another_domain_are_refused_before_spending() -> None:
    owner = curator(relation="add/remove")
    other = Dataset(Domain({"a": 2, "b": 4}), {"a": [0], "b": [0]})
    with pytest.raises(InvalidInput, match="another domain"):
        pep_pub(owner, ONES, public=other)
    assert owner.ledger.spent == 0


def test_pairs_are_drawn_without_replacement_those_of_largest_error_first() -> None:
    """The errors are 100 and more apart, which is far beyond the noise of the draws."""
    owner = Curator(DATA, Budget(1e4), neighbours="replace-one", seed=0)
    cliques: list[tuple[str, ...]] = [("a",), ("b",), ("a", "b")]
    counts = DATA.marginals(cliques)
    estimates = {c: counts[c] + off for c, off in zip(cliques, (300.0, 100.0, 80.0), strict=True)}
    # The L1 errors are 600, 300 and 480.
    assert worst_pairs(owner, cliques, estimates, 2, 1e3) == [("a",), ("a", "b")]
    penalties = [0.0, 0.0, 300.0]
    assert worst_pairs(owner, cliques, estimates, 9, 1e3, penalties) == cliques
    assert owner.ledger.spent == pytest.approx(2e3)


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_a_set_is_drawn_by_its_error_beyond_the_noise_of_measuring_it(share: float) -> None:
    owner = curator()
    whole = owner.remaining
    sets: list[tuple[str, ...]] = [("b",), ("a",)]
    given: dict[str, Any] = {}

    def choose(candidates: Any, estimates: Any, price: float, **options: Any) -> Any:
        given.update(options, candidates=list(candidates), price=price)
        owner.measure(("b",), price)  # the price is spent
        return ("a",)

    owner.choose = choose  # type: ignore[method-assign, assignment]
    found = measure_worst(owner, Fixed(), sets, share)
    cell = np.sqrt(2 / np.pi) * owner.scale((1 - share) * whole)
    assert found.clique == ("a",) and owner.remaining == 0.0
    assert given["candidates"] == sets and given["price"] == pytest.approx(share * whole)
    assert given["penalties"] == pytest.approx([3 * cell, 2 * cell])


@pytest.mark.parametrize("name", ["aim", "mwem+pgm", "pep"])
def test_rounds_can_be_sent_to_another_process(name: str) -> None:
    """An application may show progress elsewhere, or keep the rounds in a file."""
    rounds: list[Round[Any, Any]] = []
    run(name, DATA, [("a", "b")], 1.0, 1e-6, neighbours="replace-one", progress=rounds.append)
    for sent, kept in zip(pickle.loads(pickle.dumps(rounds)), rounds, strict=True):
        own, other = (each.after.marginals([("a",)])[("a",)] for each in (kept, sent))
        np.testing.assert_array_equal(own, other)
