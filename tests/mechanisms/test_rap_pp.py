"""RAP++: charges, learning, refusals."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from pricing import CellPriced
from seams import draw_from

from mechanisms.families.mixed_rows import MixedRows, Ranks
from mechanisms.families.product_mixture import ProductMixtureModel
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.queries.predicates import (
    MeasuredPredicate,
    Predicate,
    Predicates,
    linear_thresholds,
    mixed_marginals,
)
from mechanisms.rap_pp import Plan, RapPlusPlus, rap_pp
from mechanisms.release.record import Release
from mechanisms.rounds.merging import groups_of
from mechanisms.workload import Workload, k_way
from pgmkit import Boolean, Dataset, Domain, Integer, InvalidInput, Measurement, Schema, counts_of
from pgmkit.errors import ModelTooLarge

DOMAIN = Domain({"age": 50, "ill": 2, "pay": 40, "work": 3})
NUMERIC = ("age", "pay")


def people(rows: int, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    age = rng.integers(0, 50, rows)
    work = rng.integers(0, 3, rows)
    pay = np.clip(age * 0.5 + 6 * work + rng.normal(0, 3, rows), 0, 39).astype(int)
    ill = (rng.random(rows) < age / 60).astype(int)
    return Dataset(DOMAIN, {"age": age, "ill": ill, "pay": pay, "work": work})


DATA = people(2000)
WORKLOAD = k_way(DOMAIN, 2)
QUICK = {"rounds": 3, "queries": 4, "rows": 40, "steps": 15, "temperatures": (8.0, 32.0)}


def some_predicates() -> Predicates:
    rng = np.random.default_rng(1)
    return Predicates(
        DOMAIN,
        [
            *mixed_marginals(DOMAIN, NUMERIC, 4),
            *linear_thresholds(DOMAIN, NUMERIC, "ill", 10, rng),
            Predicate((("work", 2), ("ill", 1))),
            Predicate((), (("pay", -1.0),), -0.5),
        ],
    )


def some_rows() -> MixedRows:
    counts = {name: DATA.marginal([name]).astype(float) for name in NUMERIC}
    groups = {name: groups_of(each, 16, len(each)) for name, each in counts.items()}
    return MixedRows(Ranks(DOMAIN, counts, groups))


def test_rows_answer_as_their_records_do() -> None:
    """The largest difference is 0.009, standard deviation 0.003: 13 away from the limit."""
    family, predicates = some_rows(), some_predicates()
    free = family.start(DATA, torch.Generator().manual_seed(0))
    lines = family.thresholds(predicates)
    answers = family.satisfied(*family.rows(free, None), lines, None).numpy()
    model = ProductMixtureModel(DOMAIN, family.state(free, 1.0).whole_rows(), 1.0)
    drawn = model.sample(20_000, rng=0)
    # Numbers move within their group of codes: by a group at most.
    np.testing.assert_allclose(predicates.counts(drawn) / len(drawn), answers, atol=0.05)
    sharp = family.satisfied(*family.rows(free, 1e6), lines, 1e6).numpy()
    np.testing.assert_allclose(sharp, answers, atol=0.01)


class ThresholdPriced(CellPriced):
    """Four answers are those of thresholds; every marginal has more cells."""

    def __init__(self, relation: str, pure: bool) -> None:
        super().__init__(relation, pure)
        self._of_tables = dict(self.prices)

    def _price(self, answers: np.ndarray) -> None:
        self.prices = dict(self._of_tables)
        if answers.size == 4:
            self.prices |= {"gaussian": lambda b: 2 / b**2, "laplace": lambda b: 4 / b}

    def gaussian(self, counts: np.ndarray, scale: float) -> np.ndarray:
        self._price(counts)
        return super().gaussian(counts, scale)

    def laplace(self, counts: np.ndarray, scale: float) -> np.ndarray:
        self._price(counts)
        return super().laplace(counts, scale)


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-7])
def test_draws_match_charges(relation: str, delta: float) -> None:
    curator = Curator(DATA, Budget(1.0, delta), neighbours=relation)
    noise = ThresholdPriced(relation, pure=delta == 0)
    draw_from(curator, noise)
    settings = RapPlusPlus(numeric=NUMERIC, labels=("ill",), directions=10, **QUICK)
    release = rap_pp(curator, WORKLOAD, settings)
    # Three pairs with the label; each round a marginal and thresholds, selected and measured.
    assert len(noise.costs) == 3 + 4 * 3  # every answer once: the history is not drawn again
    assert len(release.measurements) == 3 + 3 * (1 + 4)  # and every answer is released
    assert noise.costs == pytest.approx([e.cost for e in release.ledger.entries], rel=1e-9)
    assert math.fsum(noise.costs) == pytest.approx(curator.ledger.budget.total, rel=1e-9)


TINY = {"rows": 5, "steps": 1, "temperatures": (8.0,), "directions": 10, "queries": 4}


@pytest.mark.parametrize("delta", [0.0, 1e-7])
def test_shares_of_the_budget_are_those_of_the_settings(delta: float) -> None:
    """Of first measurements, of thresholds, and of selection; the last measurement has the rest."""
    shares = {"one_way_share": 0.4, "threshold_share": 0.25, "select_share": 0.3}
    workload = Workload(DOMAIN, [("age", "work"), ("pay", "work")], [1.0, 3.0])
    for labels, marginals, parts in (
        (("ill",), workload, [0.75, 0.25]),
        ((), workload, [1.0]),
        (("ill",), [("age",)], [1.0]),
    ):
        settings = RapPlusPlus(numeric=NUMERIC, labels=labels, rounds=2, **TINY, **shares)
        curator = Curator(DATA, Budget(1.0, delta), neighbours="add/remove", seed=0)
        total = curator.remaining
        release = rap_pp(curator, marginals, settings)
        first = 3 if labels else 4
        costs = [entry.cost / total for entry in release.ledger.entries]
        assert costs[:first] == pytest.approx([0.4 / first] * first)
        one = [0.3 * 0.3 * part for part in parts] + [0.3 * 0.7 * part for part in parts]
        assert costs[first:] == pytest.approx([*one, *one])
        assert curator.remaining == 0.0
        later = release.measurements[first:]
        tables = [m.clique for m in later if isinstance(m, Measurement)]
        assert sorted(tables) == (list(workload.cliques) if marginals is workload else [])
        asked = [m.predicate for m in later if isinstance(m, MeasuredPredicate)]
        assert len(set(asked)) == len(asked) == (8 if labels else 0)


def test_usual_rounds_are_fewer_than_categorical_attributes_and_marginals() -> None:
    sizes = {**dict.fromkeys("abcdefghijklmn", 2), "x": 30, "one": 1}
    domain = Domain(sizes)
    many = k_way(domain, 2)
    for numeric, labels, workload, rounds, first in (
        ((), (), many, 10, [(name,) for name in (*"abcdefghijklmn", "x")]),
        (("x",), ("a", "b"), many, 10, [(f, b) for f in (*"cdefghijklmn", "x") for b in "ab"]),
        (("x",), (), [("a", "b"), ("a",), ("b", "a", "c")], 2, None),
        (("x", *"abcdefghij"), (), many, 4, None),
        (("x", *"abcdefghijklmn"), (), many, 1, None),
        (("x", *"bcdefghijklmn"), ("a",), [("a", "x")], 1, None),
    ):
        settings = RapPlusPlus(numeric=numeric, labels=labels)
        plan = Plan.of(Workload.over(domain, workload), settings)
        assert plan.rounds == rounds
        assert plan.thresholds == 2 * len(labels) * settings.directions
        if first is not None:
            assert plan.first == [*first, *([("a", "b")] if labels else [])]
        seen = {frozenset(clique) for clique in plan.first}
        assert all(len(c) > 1 and frozenset(c) not in seen for c in plan.marginals)


def test_it_learns_thresholds_that_it_measured_and_others() -> None:
    """The ratio is 0.08, standard deviation 0.015: 8 away from the limit; without steps 0.30."""
    curator = Curator(DATA, Budget(20.0, 1e-7), neighbours="replace-one", seed=0)
    settings = RapPlusPlus(
        numeric=NUMERIC, labels=("ill",), directions=40, rounds=3, queries=15, rows=100, steps=40
    )
    release = rap_pp(curator, WORKLOAD, settings)
    fresh = linear_thresholds(DOMAIN, NUMERIC, "ill", 60, np.random.default_rng(9))
    predicates = Predicates(DOMAIN, fresh)
    truth = predicates.counts(DATA) / len(DATA)
    found = predicates.counts(release.sample(20_000, rng=0)) / 20_000
    rng = np.random.default_rng(0)
    even = Dataset(DOMAIN, {n: rng.integers(0, size, 20_000) for n, size in DOMAIN.sizes.items()})
    uniform = predicates.counts(even) / 20_000
    assert np.abs(found - truth).mean() < 0.2 * np.abs(uniform - truth).mean()


def test_noisy_predicates_are_saved_and_read_again(tmp_path: Path) -> None:
    curator = Curator(DATA, Budget(1.0, 1e-7), neighbours="replace-one", seed=0)
    release = rap_pp(curator, WORKLOAD, RapPlusPlus(numeric=NUMERIC, labels=("ill",), **QUICK))
    release.save(tmp_path / "release")
    again = Release.load(tmp_path / "release")
    own = [m for m in release.measurements if isinstance(m, MeasuredPredicate)]
    assert own == [m for m in again.measurements if isinstance(m, MeasuredPredicate)]
    assert len(own) == 12 and any(len(m.predicate.weights) == 2 for m in own)
    exact = Predicates(DOMAIN, [m.predicate for m in own]).counts(DATA)
    for m, count in zip(own, exact, strict=True):
        assert set(m.clique) == {n for n, _ in (*m.predicate.codes, *m.predicate.weights)}
        assert abs(m.value - count) < 8 * m.stddev and m.values.tolist() == [m.value]
    assert again.settings == release.settings


def test_ranks_merge_and_expand_by_the_counts() -> None:
    family = some_rows()
    age = family.ranks.groups["age"]
    measured = Measurement(("ill", "age"), np.arange(100), 2.0)
    values, noise = family.ranks.merged(measured)
    table = np.arange(100).reshape(2, 50)
    for group in range(age[-1] + 1):
        own = age == group
        at = [group, age[-1] + 1 + group]
        assert values[at].tolist() == table[:, own].sum(axis=1).tolist()
        assert noise[at] == pytest.approx(2.0 * own.sum() ** 0.5)
    # Rows that are sure of the records' own groups have the records' counts of every code.
    records = Dataset(DOMAIN, {n: np.sort(c) for n, c in DATA.columns.items()})
    state = family.state(family.start(records, torch.Generator().manual_seed(0)), len(DATA))
    for name in NUMERIC:
        np.testing.assert_allclose(
            state.marginals([(name,)])[name,], DATA.marginal([name]), atol=1.0
        )


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.8])
def test_single_attributes_need_no_rounds(epsilon: float) -> None:
    """At 0.2 and 3.8 seven equal parts of the budget are a last bit less than the whole."""
    domain = Domain({f"x{i}": 2 for i in range(7)})
    data = Dataset(domain, {name: np.arange(40) % 2 for name in domain})
    curator = Curator(data, Budget(epsilon, 1e-7), neighbours="add/remove", seed=0)
    release = rap_pp(curator, k_way(domain, 1), RapPlusPlus(rows=20))
    assert [m.clique for m in release.measurements] == [(name,) for name in domain]
    assert curator.ledger.spent == pytest.approx(curator.ledger.budget.total)


def test_refusals_come_before_spending() -> None:
    for settings in [
        {"rounds": 0},
        {"temperatures": ()},
        {"temperatures": (0.0,)},
        {"one_way_share": 0.0},
    ]:
        with pytest.raises(InvalidInput):
            RapPlusPlus(**settings)
    curator = Curator(DATA, Budget(1.0, 1e-7), neighbours="add/remove", seed=0)
    for settings, message in [
        (RapPlusPlus(numeric=("height",)), "height"),
        (RapPlusPlus(numeric=NUMERIC, labels=("height",)), "labels.*height"),
        (RapPlusPlus(numeric=NUMERIC, labels=("age",)), "categorical"),
        (RapPlusPlus(labels=("ill",)), "name these in numeric"),
        (RapPlusPlus(rounds=1000), r"rounds \(1000\) .* there are 6 marginals; ask for fewer"),
        (
            RapPlusPlus(numeric=NUMERIC, labels=("ill",), queries=2000),
            r"a round \(2000\) .* there are 1000 thresholds",
        ),
    ]:
        with pytest.raises(InvalidInput, match=message):
            rap_pp(curator, WORKLOAD, settings)
    with pytest.raises(InvalidInput, match="another domain"):
        rap_pp(curator, k_way(Domain({"a": 2, "b": 2}), 2))
    assert curator.ledger.spent == 0


def test_what_does_not_fit_is_refused_before_spending(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pairs of all labels join them in one table, and whole marginals are counted together."""
    monkeypatch.setattr("mechanisms.rap_pp.check_room", lambda *_: None)
    labels = tuple(f"l{place}" for place in range(12))
    for domain, order, settings, said in [
        (
            Domain({"n": 4, **dict.fromkeys(labels, 8)}),
            2,
            RapPlusPlus(numeric=("n",), labels=labels, directions=1, rounds=1, queries=1, rows=1),
            "bytes",
        ),
        (Domain(dict.fromkeys("abcd", 160)), 4, RapPlusPlus(rounds=1, rows=1), "the marginal over"),
    ]:
        data = Dataset(domain, {name: np.zeros(3, dtype=int) for name in domain})
        curator = Curator(data, Budget(1.0, 1e-7), neighbours="add/remove", seed=0)
        with pytest.raises(ModelTooLarge, match=said):
            rap_pp(curator, k_way(domain, order), settings)
        assert curator.ledger.spent == 0


def test_thresholds_of_records_in_an_engine_are_refused_before_anything_is_spent() -> None:
    duckdb = pytest.importorskip("duckdb")
    schema = Schema({"age": Integer(0, 9), "ill": Boolean()})
    frame = duckdb.sql("select range % 10 as age, range % 3 = 0 as ill from range(50)")
    curator = Curator(counts_of(frame, schema), Budget(1.0, 1e-6), neighbours="add/remove", seed=0)
    settings = RapPlusPlus(numeric=("age",), labels=("ill",))
    with pytest.raises(InvalidInput, match="in memory, not in an engine; fetch the frame first"):
        rap_pp(curator, [("age", "ill")], settings)
    assert curator.ledger.spent == 0


def test_numbers_rise_linearly_within_groups_of_codes() -> None:
    """Ranks are interpolated between the groups' ends, by numpy."""
    counts, group = np.array([1.0, 0.0, 3.0, 2.0, 2.0, 4.0]), np.array([0, 0, 1, 2, 2, 2])
    ranks = Ranks(Domain({"x": 6}), {"x": counts}, {"x": group})
    below = np.array([0, 1, 4, 12]) / 12  # the shares of records below the groups' ends
    at = np.linspace(0.0, 1.0, 101)
    expected = np.interp(at, below, np.array([0, 2, 3, 6]) / 6)
    found = ranks.number("x", torch.tensor(at, dtype=torch.float32))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(ranks.bounds["x"].numpy(), below[1:-1], atol=1e-6)
    places = ranks.of("x", np.array([2, 5]), np.array([0.5, 1.0]))
    np.testing.assert_allclose(places, [2.5 / 12, 1.0], atol=1e-6)
    within = ranks.expand(torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64))
    np.testing.assert_allclose(within[0], [0.2, 0, 0.3, 0.125, 0.125, 0.25], atol=1e-8)


def test_rows_start_near_their_records() -> None:
    """The own code's logit is four higher on average, of 2,000 rows within 7 deviations, and ranks
    lie within the record's code.
    """
    family = some_rows()
    free = family.start(DATA, torch.Generator().manual_seed(0)).double()
    logits, ranks = free[:, : family.width], free[:, family.width :].sigmoid().numpy()
    for name, part in zip(("ill", "work"), logits.split(family.sizes, dim=1), strict=True):
        own = (
            torch.nn.functional.one_hot(
                torch.tensor(DATA.columns[name], dtype=torch.int64), part.shape[1]
            )
            > 0
        )
        for chosen, mean in ((own, 4.0), (~own, 0.0)):
            assert abs(float(part[chosen].mean()) - mean) < 7 / int(chosen.sum()) ** 0.5
    for place, name in enumerate(NUMERIC):
        ends = [family.ranks.of(name, DATA.columns[name], np.full(2000, at)) for at in (0.0, 1.0)]
        assert (ranks[:, place] >= ends[0] - 1e-5).all() and (
            ranks[:, place] <= ends[1] + 1e-5
        ).all()
