"""RAP++: predicates against records one by one, charges, learning, refusals."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from pricing import CellPriced

from mechanisms.families.mixed_rows import MixedRows
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.queries.predicates import (
    MeasuredPredicate,
    Predicate,
    Predicates,
    linear_thresholds,
    mixed_marginals,
    value_of,
)
from mechanisms.rap_pp import RapPlusPlus, rap_pp
from mechanisms.release.record import Release
from mechanisms.workload import k_way
from pgmkit import Dataset, Domain, InvalidInput

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


def test_counts_are_those_of_the_records_one_by_one() -> None:
    predicates = some_predicates()
    small = people(60)
    found = predicates.counts(small)
    for count, each in zip(found, predicates.list, strict=True):
        expected = 0
        for row in range(60):
            codes = {n: int(c[row]) for n, c in small.columns.items()}
            values = {n: (codes[n] + 0.5) / DOMAIN.sizes[n] for n in NUMERIC}
            met = all(codes[n] == c for n, c in each.codes)
            if each.weights:
                met &= sum(w * values[n] for n, w in each.weights) <= each.bound
            expected += met
        assert count == expected


def test_a_count_changes_by_at_most_one_between_neighbours() -> None:
    predicates = some_predicates()
    before = predicates.counts(DATA)
    rng = np.random.default_rng(0)
    for _ in range(20):
        columns = {n: c.copy() for n, c in DATA.columns.items()}
        row = rng.integers(len(DATA))
        for name, size in DOMAIN.sizes.items():
            columns[name][row] = rng.integers(size)
        replaced = predicates.counts(Dataset(DOMAIN, columns))
        removed = {n: np.delete(c, row) for n, c in DATA.columns.items()}
        fewer = predicates.counts(Dataset(DOMAIN, removed))
        assert np.abs(replaced - before).max() <= 1 and np.abs(fewer - before).max() <= 1


def test_rows_answer_as_their_records_do() -> None:
    """The largest difference is 0.009, standard deviation 0.003: 13 away from the limit."""
    family, predicates = MixedRows(DOMAIN, NUMERIC), some_predicates()
    free = 3 * family.start(400, torch.Generator().manual_seed(0))
    answers = family.answers(free, family.index(predicates), None).numpy()
    rows = np.array(family.records(free, np.random.default_rng(0)))
    drawn = Dataset(DOMAIN, dict(zip(DOMAIN, rows.T, strict=True)))
    # Numbers of the rows become the middle of their code: half a code off at most.
    np.testing.assert_allclose(predicates.counts(drawn) / len(drawn), answers, atol=0.05)
    sharp = family.answers(free, family.index(predicates), 1e5).numpy()
    np.testing.assert_allclose(sharp, answers, atol=0.01)
    assert value_of(np.array([0, 49]), 50).tolist() == [0.01, 0.99]


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-7])
def test_draws_match_charges(relation: str, delta: float) -> None:
    curator = Curator(DATA, Budget(1.0, delta), neighbours=relation)
    noise = CellPriced(relation, pure=delta == 0)
    plain_top = noise.top

    def top(scores: np.ndarray, count: int, scale: float) -> list[int]:
        found = plain_top(scores, count, scale)
        noise.prices["gaussian"] = lambda scale: count / (2 * scale**2)
        noise.prices["laplace"] = lambda scale: count / scale
        return found

    noise.top = top
    curator._noise = noise
    settings = RapPlusPlus(numeric=NUMERIC, label="ill", directions=5, **QUICK)
    release = rap_pp(curator, WORKLOAD, settings)
    assert len(noise.costs) == 4 + 2 * 3  # every answer once: the history is not drawn again
    assert len(release.measurements) == 4 + 3 * 4  # and every answer is released
    assert noise.costs == pytest.approx([e.cost for e in release.ledger.entries], rel=1e-9)
    assert math.fsum(noise.costs) == pytest.approx(curator.ledger.budget.total, rel=1e-9)


def test_it_learns_thresholds_that_it_measured_and_others() -> None:
    """The ratio is 0.13, standard deviation 0.027: 9.8 away from the limit."""
    curator = Curator(DATA, Budget(20.0, 1e-7), neighbours="replace-one", seed=0)
    settings = RapPlusPlus(
        numeric=NUMERIC, label="ill", directions=40, rounds=6, queries=15, rows=200, steps=80
    )
    release = rap_pp(curator, WORKLOAD, settings)
    fresh = linear_thresholds(DOMAIN, NUMERIC, "ill", 60, np.random.default_rng(9))
    predicates = Predicates(DOMAIN, fresh)
    truth = predicates.counts(DATA) / len(DATA)
    found = predicates.counts(release.sample(20_000, rng=0)) / 20_000
    rng = np.random.default_rng(0)
    even = Dataset(DOMAIN, {n: rng.integers(0, size, 20_000) for n, size in DOMAIN.sizes.items()})
    uniform = predicates.counts(even) / 20_000
    assert np.abs(found - truth).mean() < 0.4 * np.abs(uniform - truth).mean()


def test_noisy_predicates_are_saved_and_read_again(tmp_path: Path) -> None:
    curator = Curator(DATA, Budget(1.0, 1e-7), neighbours="replace-one", seed=0)
    release = rap_pp(curator, WORKLOAD, RapPlusPlus(numeric=NUMERIC, label="ill", **QUICK))
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


def test_rows_between_updates_answer_marginals_as_their_records_do() -> None:
    family = MixedRows(DOMAIN, NUMERIC)
    free = 3 * family.start(50, torch.Generator().manual_seed(1))
    state = family.state(free, 1000.0)
    drawn = np.concatenate(
        [np.array(family.records(free, np.random.default_rng(seed))) for seed in range(40)]
    )
    records = Dataset(DOMAIN, dict(zip(DOMAIN, drawn.T, strict=True)))
    tables = state.marginals(WORKLOAD.cliques)
    for clique, table in tables.items():
        assert table.sum() == pytest.approx(1000, rel=1e-5)
        shares = records.marginal(clique) / len(records)
        # Each cell is a share of 20,000 draws: its standard deviation is at most 0.0036.
        np.testing.assert_allclose(table / 1000, shares, atol=0.03)


def test_refusals_come_before_spending() -> None:
    for settings in [{"rounds": 0}, {"temperatures": ()}, {"temperatures": (0.0,)}, {"cuts": 0}]:
        with pytest.raises(InvalidInput):
            RapPlusPlus(**settings)
    curator = Curator(DATA, Budget(1.0, 1e-7), neighbours="add/remove", seed=0)
    for settings, message in [
        (RapPlusPlus(numeric=("height",)), "height"),
        (RapPlusPlus(numeric=NUMERIC, label="age"), "categorical"),
        (RapPlusPlus(label="ill"), "beside some numeric"),
        (RapPlusPlus(one_way_share=0.0), "above 0"),
        (RapPlusPlus(rounds=1000, queries=1000), "there are [0-9]+ queries; ask for fewer"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            rap_pp(curator, WORKLOAD, settings)
    with pytest.raises(InvalidInput, match="another domain"):
        rap_pp(curator, k_way(Domain({"a": 2, "b": 2}), 2))
    for predicates in [
        [],
        [Predicate((("ill", 7),))],
        [Predicate((("x", 0),))],
        [Predicate((), (("age", math.nan),), 0.0)],
    ]:
        with pytest.raises(InvalidInput):
            Predicates(DOMAIN, predicates)
    assert curator.ledger.spent == 0
