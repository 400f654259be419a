"""What "auto" looks at before it pays for pairs: dependence beyond chance, at what price."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from replay import replay

from mechanisms import synthesize
from mechanisms.mst import mst
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import NEIGHBOURS, relation
from mechanisms.release.record import Release
from mechanisms.rounds.drawn import Distances
from mechanisms.rounds.merging import MOST_GROUPS
from mechanisms.synthesis.auto import choose_mechanism
from mechanisms.synthesis.first_look import bins_of, first_look
from mechanisms.workload import k_way
from pgmkit import Forbid, Integer, Schema
from pgmkit.domain import Domain
from pgmkit.estimation import estimate
from pgmkit.records.dataset import Dataset

DOMAIN = Domain({"a": 4, "b": 5, "c": 6, "d": 3, "e": 2})
PAIRS = k_way(DOMAIN, 2)
BUDGETS = [Budget(1.0, 1e-9), Budget(1.0, 1e-9, accounting="gaussian"), Budget(2.0)]
ROOM = 590.0
"""Too little memory in MB for a mixture, so that "auto" looks before it runs AIM."""
DEVIATIONS = 6.1  # of a mean of looks: once in 1e9


def table(rng: np.random.Generator, rows: int, dependence: float) -> Dataset:
    """Uneven columns; each row has one hidden code in all of them with this probability."""
    hidden, same = rng.integers(0, 6, rows), rng.random(rows) < dependence
    columns = {}
    for name, size in DOMAIN.sizes.items():
        own = rng.choice(size, rows, p=rng.dirichlet(np.full(size, 2.0)))
        columns[name] = np.where(same, hidden % size, own)
    return Dataset(DOMAIN, columns)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_noise_and_chance_are_what_is_said_of_them(budget: Budget, relation: str) -> None:
    """Independent columns, new ones each time: the excess is noise about zero."""
    found, outstanding = [], 0
    for seed in range(30):
        data = table(np.random.default_rng([seed, 1]), 2000, 0.0)
        curator = Curator(data, budget, neighbours=relation, seed=seed)
        look = first_look(curator, PAIRS)
        found.append(look.excess / look.stddev)
        outstanding += bool(look.outstanding)
    # What is said is the noise in the mean of distances; that of the columns adds to it.
    assert abs(np.mean(found)) <= DEVIATIONS * 1.5 / math.sqrt(len(found))
    assert 0.4 <= np.std(found) <= 2.0
    # One look in a thousand finds a pair by chance, so more than three of thirty are one in 4e7.
    assert outstanding <= 3


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_dependence_is_seen_as_it_is(relation: str) -> None:
    """With little noise the excess is the distance from independence, found by counting."""
    data = table(np.random.default_rng(3), 50_000, 0.3)
    curator = Curator(data, Budget(10.0, 1e-9), neighbours=relation, seed=0)
    look = first_look(curator, PAIRS)
    distances = []
    for pair in itertools.combinations(DOMAIN, 2):
        counts = data.marginal(pair) / len(data)
        product = np.outer(counts.sum(1), counts.sum(0))
        distances.append(np.abs(counts - product).sum() / 2)
    assert look.dependent
    assert look.excess == pytest.approx(np.mean(distances), rel=0.1)


def schema() -> Schema:
    return Schema({name: Integer(0, size - 1) for name, size in DOMAIN.sizes.items()})


def released(
    data: Dataset, mechanism: str, epsilon: float, relation: str = "add/remove"
) -> Release:
    return synthesize(
        data,
        schema(),
        epsilon=epsilon,
        delta=1e-9,
        mechanism=mechanism,
        seed=0,
        neighbours=relation,
        memory_mb=ROOM if mechanism == "auto" else None,
    ).release


def precision(release: Release, name: str) -> float:
    return sum(m.stddev**-2 for m in release.measurements if m.clique == (name,))


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("epsilon", [0.1, 0.2, 0.3])
def test_where_none_is_seen_single_columns_get_nearly_all(epsilon: float, relation: str) -> None:
    data = table(np.random.default_rng(8), 12_000, 0.0)
    auto, alone = (released(data, name, epsilon, relation) for name in ("auto", "independent"))
    assert auto.mechanism == "independent"
    assert auto.ledger is not None
    assert auto.ledger.remaining == 0
    for name in DOMAIN:
        assert precision(auto, name) >= 0.97 * precision(alone, name)


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_the_look_costs_next_to_nothing_where_pairs_have_many_cells(relation: str) -> None:
    rng = np.random.default_rng(4)
    domain = Domain({f"x{i}": 20 for i in range(6)})
    data = Dataset(domain, {name: rng.integers(0, 20, 20_000) for name in domain})
    for budget in BUDGETS:
        curator = Curator(data, budget, neighbours=relation, seed=0)
        look = first_look(curator, k_way(domain, 2))
        (spent,) = [e.cost for e in curator.ledger.entries if e.step == "auto: errors of pairs"]
        # Laplace noise in all distances grows with their number, and stays at its fiftieth.
        assert spent <= (0.021 if budget.pure else 0.006) * budget.total
        if not budget.pure:
            # The noise is what was paid for: too little to decide anything by itself.
            assert look.stddev <= 0.4 * look.needed


def test_pairs_of_independent_columns_are_measured_where_noise_is_small() -> None:
    """The records' own pairs differ from independence by chance, and less noise can tell them."""
    data = table(np.random.default_rng(8), 12_000, 0.0)
    assert released(data, "auto", 3.0).mechanism == "aim"
    curator = Curator(data, Budget(3.0, 1e-9), neighbours="add/remove", seed=0)
    look = first_look(curator, PAIRS)
    rng, found = np.random.default_rng(0), []
    for pair in itertools.combinations(DOMAIN, 2):
        product = np.outer(*(data.marginal((name,)) / len(data) for name in pair)).ravel()
        drawn = rng.multinomial(len(data), product, 200) / len(data)
        found.append(np.abs(drawn - product).sum(1).mean() / 2)
    assert look.chance == pytest.approx(np.mean(found), rel=0.05)


def test_columns_lead_to_a_mixture_where_the_limits_allow_one() -> None:
    columns = {f"c{i}": Integer(0, 3) for i in range(8)}
    schema, budget = Schema(columns), Budget(2.0, 1e-9)
    pairs = k_way(schema.domain, 2)
    assert choose_mechanism(schema, pairs, budget, rows=12_000).name == "mixture"
    for limits in ({"seconds": 1.0}, {"memory_mb": 500}):
        assert choose_mechanism(schema, pairs, budget, rows=12_000, **limits).name != "mixture"
    triples = k_way(schema.domain, 3)
    assert choose_mechanism(schema, triples, budget, rows=12_000).name == "aim"
    for number, taken in [(1, "aim"), (2, "mixture")]:
        few = Schema(dict(list(columns.items())[:number]))
        workload = k_way(few.domain, number)
        assert choose_mechanism(few, workload, budget, rows=12_000).name == taken


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_where_some_is_seen_the_columns_are_not_measured_twice(relation: str) -> None:
    data = table(np.random.default_rng(5), 12_000, 0.5)
    release = released(data, "auto", 1.0, relation)
    assert release.mechanism == "aim"
    assert release.ledger is not None and release.ledger.remaining == 0
    steps = [entry.step for entry in release.ledger.entries]
    looked = [step for step in steps if step.startswith("auto: measure ") and "total" not in step]
    assert looked == [f"auto: measure {name}" for name in DOMAIN]
    # AIM's first round selects at once.
    after = steps[steps.index("auto: errors of pairs") + 1]
    assert after.startswith("select 6")


@pytest.mark.usefixtures("short_fits")
@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_a_mixture_needs_no_look(relation: str) -> None:
    """It measures distances itself, which give the pairs their shares, and spends all."""
    rng = np.random.default_rng(6)
    columns = {f"c{i}": Integer(0, 3) for i in range(7)}
    codes = {name: rng.integers(0, 4, 8000) for name in columns}
    codes["c1"] = np.where(rng.random(8000) < 0.8, codes["c0"], codes["c1"])
    described = Schema(columns)
    release = synthesize(
        Dataset(described.domain, codes),
        described,
        epsilon=3.0,
        delta=1e-9,
        neighbours=relation,
        seed=0,
    ).release
    assert release.mechanism == "mixture"
    assert release.ledger is not None
    assert release.ledger.remaining == pytest.approx(0.0, abs=1e-12)
    steps = [entry.step for entry in release.ledger.entries]
    assert [step for step in steps if step.startswith("auto: ")] == (
        ["auto: measure total"] if relation == "add/remove" else []
    )
    assert len([step for step in steps if step.startswith("2-way: measure ")]) == 21
    noise = {m.clique: m.stddev for m in release.measurements if len(m.clique) == 2}
    assert min(noise, key=noise.__getitem__) == ("c0", "c1")


@pytest.mark.usefixtures("short_fits")
def test_a_few_columns_with_many_bins_keep_their_relations() -> None:
    """Graphs of whole tables of 50 x 50 bins leave a correlation of 0.04 at most, of 0.9."""
    rng = np.random.default_rng(7)
    first = rng.integers(0, 50, 1500)
    codes = {"a": first, "b": np.clip(first + rng.integers(-8, 9, 1500), 0, 49)}
    codes |= {name: rng.integers(0, 50, 1500) for name in "cd"}
    described = Schema({name: Integer(0, 99, bins=50) for name in codes})
    found = synthesize(
        Dataset(described.domain, codes), described, epsilon=1.0, delta=1e-6, seed=0
    ).release.sample(1500, rng=0)
    assert np.corrcoef(found.columns["a"], found.columns["b"])[0, 1] > 0.4


def neighbour(data: Dataset, relation: str) -> Dataset:
    """The first row replaced by another in every column, or taken out."""
    if relation == "replace-one":
        columns = {name: np.array(data.columns[name]) for name in DOMAIN}
        for name, size in DOMAIN.sizes.items():
            columns[name][0] = (columns[name][0] + 1) % size
        return Dataset(DOMAIN, columns)
    return Dataset(DOMAIN, {name: data.columns[name][1:] for name in DOMAIN})


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize(("dependence", "taken"), [(0.0, "independent"), (0.5, "aim")])
def test_both_ways_are_replayed(
    dependence: float, taken: str, relation: str, tmp_path: Path
) -> None:
    data = table(np.random.default_rng(4), 4000, dependence)

    def job(records: Dataset) -> Any:
        release = synthesize(
            records, schema(), epsilon=0.4, delta=1e-9, neighbours=relation, memory_mb=ROOM
        )
        assert release.mechanism == taken
        return release

    replay(job, data, neighbour(data, relation), tmp_path, pure=False)


@pytest.mark.usefixtures("short_fits")
def test_a_mixture_of_auto_is_replayed(tmp_path: Path) -> None:
    """What is measured of seven columns, the level of the fit and its rows follow from noise."""
    rng = np.random.default_rng(7)
    described = Schema({f"c{i}": Integer(0, 1) for i in range(7)})
    codes = {name: rng.integers(0, 2, 3000) for name in described.domain}
    codes["c1"] = codes["c0"]
    data = Dataset(described.domain, codes)
    fewer = Dataset(described.domain, {name: each[1:] for name, each in codes.items()})

    def job(records: Dataset) -> Any:
        release = synthesize(records, described, epsilon=0.4, delta=1e-9)
        assert release.mechanism == "mixture"
        return release

    replay(job, data, fewer, tmp_path, pure=False)


def test_what_auto_says_of_few_rows_is_their_noisy_number(tmp_path: Path) -> None:
    """The reason names a number of rows, which must not be that of the records."""
    data = table(np.random.default_rng(4), 40, 0.0)
    said = []

    def job(records: Dataset) -> Any:
        release = synthesize(records, schema(), epsilon=0.4, delta=1e-9, memory_mb=ROOM)
        said.append(release.reason)
        return release

    replay(job, data, neighbour(data, "add/remove"), tmp_path, pure=False)
    assert said[0] == said[1] and re.fullmatch(r"about \d+ rows and .*", said[0])


def test_constraints_hold_where_columns_are_taken_for_independent() -> None:
    data = table(np.random.default_rng(8), 12_000, 0.0)
    holds = (data.columns["a"] != 0) | (data.columns["b"] != 0)
    kept = Dataset(DOMAIN, {name: data.columns[name][holds] for name in DOMAIN})
    ruled = Schema(schema().columns, [Forbid({"a": 0, "b": 0})])
    release = synthesize(kept, ruled, epsilon=0.2, delta=1e-9, seed=0)
    assert release.mechanism == "independent"
    records = release.release.sample(5000, rng=0)
    assert not ((records.columns["a"] == 0) & (records.columns["b"] == 0)).any()


WIDE = Domain({f"w{i}": 2 + i % 5 for i in range(45)})


def wide(rows: int, dependence: float) -> Dataset:
    """45 columns, each a copy of the one before it with this probability."""
    rng = np.random.default_rng([rows, 7])
    columns: dict[str, np.ndarray] = {}
    before = np.zeros(rows, dtype=np.int64)
    for name, size in WIDE.sizes.items():
        own = rng.choice(size, rows, p=rng.dirichlet(np.full(size, 2.0)))
        columns[name] = before = np.where(rng.random(rows) < dependence, before % size, own)
    return Dataset(WIDE, columns)


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_a_wide_table_needs_no_look(relation: str) -> None:
    """Errors are 1.02 times those of independent columns at most, with dependence 0.33 times."""
    described = Schema({name: Integer(0, size - 1) for name, size in WIDE.sizes.items()})
    pairs = list(itertools.combinations(WIDE, 2))
    for dependence, most in ((0.0, 1.1), (0.5, 0.5)):
        data, errors = wide(20_000, dependence), {}
        for name in ("auto", "independent"):
            release = synthesize(
                data,
                described,
                epsilon=1.0,
                delta=1e-9,
                mechanism=name,
                neighbours=relation,
                seconds=0.9 if name == "auto" else None,
                seed=0,
            ).release
            assert release.mechanism == {"auto": "pair-graph"}.get(name, name)
            assert release.ledger is not None and release.ledger.remaining == pytest.approx(0.0)
            errors[name] = _error(data, release, pairs)
        assert errors["auto"] < most * errors["independent"]


def _error(data: Dataset, release: Release, pairs: list[tuple[str, str]]) -> float:
    """Mean total variation."""
    truth, found = data.marginals(pairs), release.model.marginals(pairs)
    return float(np.mean([np.abs(truth[p] - found[p]).sum() / (2 * len(data)) for p in pairs]))


def test_columns_that_were_measured_count_in_a_tree() -> None:
    """Their noisy tables are part of the release, and its columns are nearer for them."""
    data = wide(20_000, 0.3)
    curator = Curator(data, Budget(1.0, 1e-9), neighbours="add/remove", seed=0)
    first = [curator.measure((name,), curator.remaining / 100) for name in WIDE]
    release = mst(curator, k_way(WIDE, 2), first=first)
    assert release.measurements[: len(first)] == tuple(first)
    again = [m for m in release.measurements if len(m.clique) == 1]
    assert len(again) == 2 * len(WIDE) and curator.remaining == pytest.approx(0.0)
    fixed = estimate(WIDE, release.measurements)
    for name in WIDE:
        np.testing.assert_allclose(
            release.model.marginal((name,)), fixed.marginal((name,)), atol=1.0
        )


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("budget", [BUDGETS[0], BUDGETS[2]])
def test_a_look_is_paid_and_judged_by_public_figures(budget: Budget, most: int) -> None:
    """Shares of the budget, the price of the distances and the threshold, computed by hand."""
    relation_of_units = relation("add/remove", "who", most)
    of_noise, deviations, share = 0.04, 2.0, 1 / 16
    unit = 2 / budget.total if budget.pure else (2 * budget.total) ** -0.5
    mean_cells = np.mean([a * b for a, b in itertools.combinations(DOMAIN.sizes.values(), 2)])
    for rows_of_noise in (1.0, 90.0, 1e4):  # rows a column, in units of the noise
        rows = max(1, round(rows_of_noise * 5 * most * unit))
        data = table(np.random.default_rng(0), min(rows, 100_000), 0.2)
        curator = Curator(data, budget, neighbours=relation_of_units, seed=0)
        look = first_look(curator, PAIRS)
        *singles, distances = curator.ledger.entries
        assert [e.cost for e in singles] == pytest.approx([share * budget.total / 5] * 5)
        assert {len(m.clique) for m in look.measurements} == {1}
        left = (1 - share) * budget.total

        def error(cost: float) -> float:
            return most / cost if budget.pure else most * (math.pi * cost) ** -0.5

        deciding = of_noise * mean_cells * error(left / 10)
        dearest = 0.02 * budget.total
        stddev = 2**0.5 * 10 * most / dearest if budget.pure else most * (5 / dearest) ** 0.5
        beyond = math.log(10 / 1e-3) / 2**0.5 if budget.pure else NormalDist().inv_cdf(1 - 1e-4)
        ratio = max(
            stddev / 10**0.5 / (0.37 * deciding), beyond * stddev / (6 * error(budget.total / 16))
        )
        price = dearest * min(1.0, ratio if budget.pure else ratio**2)
        assert distances.cost == pytest.approx(price)
        if rows_of_noise == 1.0:
            continue  # the number of rows is mostly noise
        weights = np.array([1 / (m.values.size * m.stddev**2) for m in look.measurements])
        totals = np.array([m.values.sum() for m in look.measurements])
        total = float(weights @ totals / weights.sum())
        assert look.noise == pytest.approx(
            mean_cells * error((left - price) / 10) / (2 * total), rel=1e-3
        )
        least = deciding / (2 * total)
        assert look.needed == pytest.approx(max(deviations * look.stddev, least), rel=1e-3)
        paid = stddev * (dearest / price) ** (1.0 if budget.pure else 0.5)
        assert look.stddev >= paid / 10**0.5 / (2 * total) * 0.999


@pytest.mark.parametrize("budget", [Budget(1.0, 1e-9), Budget(4.0)])
def test_one_strong_pair_among_many_stands_out(budget: Budget) -> None:
    """A copy among ten columns of many codes, whose noise hides the mean of all pairs."""
    rng = np.random.default_rng(9)
    domain = Domain({f"x{i}": 60 for i in range(9)} | {"kind": 3})
    codes = {name: rng.integers(0, size, 8000) for name, size in domain.sizes.items()}
    codes["kind"] = codes["x4"] // 20
    curator = Curator(Dataset(domain, codes), budget, neighbours="add/remove", seed=0)
    look = first_look(curator, k_way(domain, 2))
    assert look.excess < look.needed
    assert look.outstanding == (("x4", "kind"),) and look.dependent
    codes["kind"] = rng.permutation(codes["kind"])
    curator = Curator(Dataset(domain, codes), budget, neighbours="add/remove", seed=0)
    look = first_look(curator, k_way(domain, 2))
    assert look.outstanding == () and not look.dependent


@pytest.mark.parametrize("budget", [Budget(1.0, 1e-9), Budget(2.0)])
def test_what_stands_out_is_compared_with_chance_and_with_both_noises(
    budget: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draws of chance and the noisy distances are given; the rest is computed by hand."""
    data = table(np.random.default_rng(0), 5000, 0.0)
    pairs, rng = list(itertools.combinations(DOMAIN, 2)), np.random.default_rng(1)
    for spread, sizes in ((0.05, False), (1e-4, True)):  # what decides: noise, or a table's size
        drawn = 0.05 + spread * rng.normal(size=(5, 10))
        monkeypatch.setattr(
            "mechanisms.synthesis.first_look.distances_by_chance", lambda *_, d=drawn: (d, 0.0)
        )
        stddev = 1e3 * spread
        noise, wide = stddev / 10_000, math.sqrt(1 + 1 / 5)
        each = math.hypot(noise, wide * max(np.std(d, ddof=1) for d in drawn.T))
        normal = NormalDist().inv_cdf(1 - 1e-4)
        surely = (math.log(1e4) / 2**0.5 if budget.pure else normal) * each
        curator = Curator(data, budget, neighbours="replace-one", seed=0)
        cell = curator.expected_error(budget.total / 16) / 10_000
        least = np.array([max(surely, cell * DOMAIN.size(pair)) for pair in pairs])
        assert (least > surely).all() if sizes else (least == surely).all()
        excess = least * np.where(np.arange(10) % 2, 1.001, 0.999)
        of = dict(zip(pairs, 10_000 * (drawn.mean(0) + excess), strict=True))
        made = Distances(of, stddev)
        monkeypatch.setattr(
            "mechanisms.synthesis.first_look.measure_distances", lambda *_, d=made, **__: d
        )
        look = first_look(curator, PAIRS)
        assert look.outstanding == tuple(pairs[1::2])
        assert look.excess == pytest.approx(excess.mean())
        of_the_mean = wide * np.std(drawn.mean(1), ddof=1)
        assert look.stddev == pytest.approx(math.hypot(noise / 10**0.5, of_the_mean))


def test_numbers_that_are_few_and_bins_of_their_own_have_no_order() -> None:
    few, more = Integer(0, MOST_GROUPS - 1), Integer(0, MOST_GROUPS)
    assert bins_of(Schema({"few": few, "more": more})) == {"more": MOST_GROUPS + 1}
