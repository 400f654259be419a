"""The verdict in words: what it counts, beside figures worked out by hand and real spreads."""

import itertools
import math
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from chance import FALSE_ALARM
from scipy import stats

from mechanisms import Budget, k_way, plan, run, synthesize
from mechanisms.datasets.census import people, schema
from mechanisms.families.mixture_fit import nearest_counts
from mechanisms.release.independence import Evidence, evidence
from mechanisms.release.verdict import association, verdict
from pgmkit import (
    Categorical,
    Dataset,
    Domain,
    Measurement,
    OpenCategorical,
    Schema,
    Zeros,
    error_bars,
    estimate,
)

DOMAIN = Domain({"a": 2, "b": 2, "c": 4})


def noisy(*cliques: tuple[str, ...], stddev: float = 3.0) -> list[Measurement]:
    return [
        Measurement(c, np.full(DOMAIN.shape(c), 1200 / DOMAIN.size(c)), stddev) for c in cliques
    ]


def judged(*cliques: tuple[str, ...], stddev: float = 3.0) -> str:
    measured = noisy(*cliques, stddev=stddev)
    return str(verdict(estimate(DOMAIN, measured), measured, Budget(1.0, 1e-9)))


def test_single_columns_are_unrelated() -> None:
    said = judged(("a",), ("b",), ("c",))
    assert "unrelated to each other" in said and "no correlation" in said


def test_pairs_that_were_measured_together_are_named() -> None:
    said = judged(("a", "b"), ("c",))
    assert "The relation within one pair of columns is kept" in said
    assert ": a with b." in said and "the other 2 pairs are kept only" in said
    assert "all 3 pairs" in judged(("a", "b"), ("b", "c"), ("a", "c"))


def test_tables_of_noise_are_said_to_be_rough() -> None:
    assert "more noise than rows" not in judged(("a", "b"), ("c",))
    said = judged(("a", "b"), ("c",), stddev=400.0)
    assert "a with b hold more noise than rows" in said and "outline of this relation is" in said
    assert "tables of all of them hold" in judged(("a", "b"), ("b", "c"), stddev=400.0)


def test_tables_of_which_each_cell_is_scaled_count_like_tables_of_cells() -> None:
    """Children's tables that follow from their parents' are such. Noise of 12 in a quarter of a
    count is 48 in the count, and where half of the counts were scaled so, their root mean square.
    """
    domain, table = Domain({"a": 2, "b": 2}), np.array([[400.0, 100.0], [100.0, 300.0]])
    for entries, stddev in (([0.25, 0.25], 48.0), ([0.25, 1.0], 12 * math.sqrt(17 / 2))):
        scaled = [np.eye(2), np.diag(entries)]
        given = Measurement(("a", "b"), table * entries, 12.0, scaled)
        whole = Measurement(("a", "b"), table, stddev)
        model = estimate(domain, [whole])
        for rows in (900, 150):
            said, known = (str(verdict(model, [each], rows=rows)) for each in (given, whole))
            assert said == known


def test_tables_of_merged_codes_have_the_cells_that_were_measured() -> None:
    """Of 1,200 rows in 2 x 2 cells of merged codes each has 300: more than the noise of 200."""
    domain = Domain({"a": 8, "b": 8})
    halves = np.repeat(np.eye(2), 4, axis=1)
    merged = [Measurement(("a", "b"), np.full(4, 300.0), 200.0, [halves, halves])]
    whole = [Measurement(("a", "b"), np.full(64, 1200 / 64), 200.0)]
    model = estimate(domain, whole)
    assert "more noise than rows" in verdict(model, whole).relations
    assert "more noise than rows" not in verdict(model, merged).relations


def test_columns_of_one_value_have_no_relations() -> None:
    domain = Domain({"a": 2, "b": 2, "land": 1})
    measured = [Measurement(("a", "b"), np.full((2, 2), 300.0), 3.0)]
    said = verdict(estimate(domain, measured), measured).relations
    assert said == "The relation between the two columns is kept, as far as noise allows."
    apart = [Measurement((name, "land"), np.full((2, 1), 600.0), 3.0) for name in ("a", "b")]
    found = verdict(estimate(domain, apart), apart)
    assert found.kept == () and "unrelated to each other" in found.relations


def test_columns_that_a_constraint_relates_are_not_called_unrelated() -> None:
    measured = [Measurement((name,), [70.0, 30.0], 1.0) for name in ("a", "b")]
    never = Zeros(("a", "b"), np.array([[True, True], [True, False]]))
    model = estimate(Domain({"a": 2, "b": 2}), measured, zeros=[never])
    assert float(model.marginal(("a", "b"))[1, 1]) == 0.0
    found = verdict(model, measured)
    assert found.kept == () and "related only as far as constraints" in found.relations


def test_the_error_is_that_of_the_combined_tables() -> None:
    """Of column a: 3 from its own table, and 3 sqrt(4) from that with c: 1 / (1/9 + 1/36)."""
    measured = noisy(("a",), ("a", "c"))
    found = verdict(estimate(Domain({"a": 2, "c": 4}), measured), measured)
    of_a, of_c = (1 / 9 + 1 / 36) ** -0.5, 3 * 2**0.5
    assert found.error == pytest.approx(1.96 * (of_a + of_c) / 2, rel=1e-4)
    assert not found.more


def test_a_model_that_misses_its_noisy_counts_is_less_sure() -> None:
    """A mixture fitted too shortly to 348,532 rows missed counts by up to 9 times the noise, and
    "19 times out of 20" held for 89 of 100 values. Here a is off by 200, and c by its noise.
    """
    domain = Domain({"a": 2, "c": 4})
    given = [Measurement(("a",), [400.0, 800.0], 10.0), Measurement(("c",), [300.0] * 4, 10.0)]
    model = estimate(domain, [replace(given[0], values=[600.0, 600.0]), given[1]])
    excess = 2 * (200**2 - 10**2) / 6
    assert verdict(model, given).error == pytest.approx(1.96 * (10**2 + excess) ** 0.5, rel=1e-4)
    exact = estimate(domain, given)
    assert verdict(exact, given).error == pytest.approx(19.6, rel=1e-4)
    # A Laplace variable of variance 1 is within log(20) / sqrt(2) of 0 with a probability of 95%.
    laplace = verdict(exact, given, Budget(1.0))
    assert laplace.error == pytest.approx(10 * math.log(20) / 2**0.5)
    assert "within 21 of the truth" in laplace.counts and "Counts below 30" in laplace.counts


def test_counts_that_noise_covers_are_called_useless() -> None:
    """As in tables of answers: where the standard error is above a third of the count."""
    assert "Counts below 9 (0.8% of the rows) are mostly noise" in judged(("a",), stddev=3.0)
    assert "Counts below 1,500 (more than all rows) are mostly noise" in judged(
        ("a",), stddev=500.0
    )


def test_more_budget_means_less_noise_as_the_curator_draws_it() -> None:
    """Pure: noise in inverse proportion. Otherwise as two planned runs have it."""
    measured = noisy(("a",))
    model = estimate(Domain({"a": 2}), measured)
    assert "epsilon 4 have 0.25 times" in verdict(model, measured, Budget(1.0)).more
    noise = [
        plan("independent", k_way(DOMAIN, 1), e, 1e-9, neighbours="add/remove", rows=100).noise
        for e in (1.0, 4.0)
    ]
    said = verdict(model, measured, Budget(1.0, 1e-9, accounting="gaussian")).more
    stated = float(said.partition("have ")[2].split()[0])
    # Gaussian accounting pays a little for whole numbers, and the sentence has two digits.
    assert stated == pytest.approx(noise[1] / noise[0], rel=0.05)


def test_the_noise_of_residuals_is_that_of_the_cells() -> None:
    """`matrix` scales its residuals to whole numbers: their noise, 60 and more, is none of a cell.
    A table of 200 cells was said to hold more noise than rows, which had 100 rows a cell.
    """
    domain = Domain({"a": 40, "b": 5})
    data = Dataset(domain, {name: np.arange(20_000) % size for name, size in domain.sizes.items()})
    asked: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "neighbours": "add/remove"}
    planned = plan("matrix+pgm", k_way(domain, 2), rows=20_000, **asked)
    release = run("matrix+pgm", data, k_way(domain, 2), seed=0, **asked)
    cells = error_bars(release.model, release.measurements).marginal(("a", "b")).stddev
    assert planned.noise == pytest.approx(cells.min(), rel=1e-3) and planned.noise < 5
    said = "more noise than rows in most cells"
    assert said not in verdict(release.model, release.measurements).relations
    assert said in verdict(release.model, release.measurements, rows=800).relations
    assert said not in verdict(release.model, release.measurements, rows=900).relations


def test_a_plan_without_pairs_says_that_the_data_may_have_them_and_for_how_long() -> None:
    """Noise hides pairs of made-up records where it does not hide those of equal columns."""
    domain, rows = Domain(dict.fromkeys("abcde", 12)), 700
    pairs = k_way(domain, 2)
    planned = plan("mixture", pairs, 1.0, 1e-9, neighbours="add/remove", rows=rows)
    assert not any("2-way" in each.step for each in planned.steps)
    # A second, the levels of a fit of 60 codes, and a graphical model (`mixture_seconds`).
    assert "Noise hides all pairs of the made-up records" in planned.verdict[-1]
    assert "in about 3 s" in planned.verdict[-1]
    equal = Dataset(domain, dict.fromkeys("abcde", np.arange(rows) % 2 * 11))
    release = run("mixture", equal, pairs, 1.0, 1e-9, neighbours="add/remove", seed=0)
    assert sum(len(m.clique) == 2 for m in release.measurements) == 10
    for other, many in (("independent", rows), ("mixture", 100_000)):
        found = plan(other, pairs, 1.0, 1e-9, neighbours="add/remove", rows=many)
        assert "made-up" not in " ".join(found.verdict)


def related(strength: float, total: float = 1200.0) -> str:
    """The verdict on pairs of four columns, of which only a and b are related."""
    domain = Domain(dict.fromkeys("abcd", 2))
    measured = []
    for pair in itertools.combinations("abcd", 2):
        apart = strength * np.array([1.0, -1.0, -1.0, 1.0]) * (pair == ("a", "b"))
        measured.append(Measurement(pair, total / 4 * (1 + apart), 3.0))
    return str(verdict(estimate(domain, measured), measured))


def test_relations_that_chance_explains_are_not_called_strong() -> None:
    """The squared V of unrelated columns of two values is 1/1200 on average in 1,200 records."""
    assert "no relation beyond chance" in related(0.0) and "no correlation" in related(0.0)
    assert "strongest" not in related(0.9 / 1200**0.5)
    said = related(0.3)
    assert "The strongest relation, by Cramér's V, is a with b (0.30); noise raises" in said
    assert "rare ones. Of a with c, a" in said
    assert "no relation beyond chance" in related(0.9 / 300**0.5, total=300)
    # Chi-square 2.9 of one degree: one of six unrelated pairs is often that far off.
    assert "no relation beyond chance" in related(0.05)
    assert "a with b (0.12)" in related(0.12)


def test_noise_is_rarely_named_a_relation_and_strong_relations_always_are() -> None:
    """Of unrelated columns of 300 rows at epsilon 1, a pair is named in a 20th of the releases at
    most; before noise was counted, in all.
    """
    laws = [[0.93, 0.07], [0.85, 0.05, 0.05, 0.05], [0.5, 0.5], [0.6, 0.3, 0.1], [0.9, 0.1]]
    domain = Domain({f"c{i}": len(law) for i, law in enumerate(laws)})
    named = []
    for seed in range(24):
        rng = np.random.default_rng(seed)
        columns = [rng.choice(len(law), 300, p=law) for law in laws]
        alike = seed >= 20
        columns[4] = columns[2] if alike else columns[4]
        data = Dataset(domain, dict(zip(domain.sizes, columns, strict=True)))
        release = run("mst", data, k_way(domain, 2), 1.0, 1e-6, neighbours="add/remove", seed=seed)
        found = verdict(release.model, release.measurements)
        if alike:
            assert ("c2", "c4") in found.kept and not found.shown.startswith("But")
            assert "c2 with c4" not in found.shown  # not among those that chance explains
        named.append(not alike and not found.shown.startswith("But"))
    assert sum(named) <= stats.binom.isf(FALSE_ALARM, 20, 1 / 20)


RARE = ([992, 5, 2, 1], [986, 8, 3, 2, 1])
COMMON = ([320, 40, 40], [360, 40])


def drawn(
    columns: tuple[list[int], list[int]],
    related: float,
    noise: float,
    of_columns: float,
    draws: int,
    contrasts: bool = False,
) -> list[Evidence]:
    """The evidence of tables of two columns with these counts, put together at random but for a
    share `related` of records with equal codes. `noise`: that of each cell; `of_columns`: that of
    each count of the columns, which the model corrects to the total.
    """
    rng, rows = np.random.default_rng(3), sum(columns[0])
    first, second = (np.repeat(np.arange(len(c)), c) for c in columns)
    domain = Domain({"a": len(columns[0]), "b": len(columns[1])})
    factors = [np.eye(n) - 1 / n for n in domain.sizes.values()]
    found = []
    for _ in range(draws):
        codes = np.where(rng.random(rows) < related, first, rng.permutation(second))
        counts = np.zeros(domain.shape(("a", "b")))
        np.add.at(counts, (first, codes), 1.0)
        counts = factors[0] @ counts @ factors[1] if contrasts else counts
        values = counts + rng.normal(0, noise, counts.shape)
        singles = {
            (name,): nearest_counts(np.array(c) + rng.normal(0, of_columns, len(c)), rows)
            for name, c in zip("ab", columns, strict=True)
        }
        model = SimpleNamespace(
            domain=domain, total=float(rows), marginals=lambda _, held=singles: held
        )
        m = Measurement(("a", "b"), values, noise, factors if contrasts else None)
        found.append(evidence(model, [m], dict.fromkeys("ab", of_columns**2), rows)["a", "b"])
    return found


@pytest.mark.parametrize(
    "columns, noise, of_columns, contrasts",
    [(COMMON, 4.0, 4.0, True), (RARE, 0.3, 0.03, False), (RARE, 4.0, 4.0, False)],
)
def test_unrelated_columns_are_seldom_as_far_from_independence_as_bounded(
    columns: tuple[list[int], list[int]], noise: float, of_columns: float, contrasts: bool
) -> None:
    """Of 2,000 shuffled tables at most as many as stated have a p-value below it: for the rare
    values it was once too small by a factor of 15 to 50 (at 1/300), since errors of columns were
    taken for noise in all directions and few common records for normal errors.
    """
    chances = [each.chance for each in drawn(columns, 0.0, noise, of_columns, 2000, contrasts)]
    for level in (1 / 300, 0.01, 0.05):
        assert np.sum(np.array(chances) <= level) <= stats.binom.isf(FALSE_ALARM, 2000, level)
    if columns == COMMON:  # the bound is near where no value is rare
        assert np.mean(np.array(chances) <= 0.5) > 0.25


@pytest.mark.parametrize("contrasts", [False, True])
def test_a_relation_as_strong_as_stated_shows_in_half_of_all_draws(contrasts: bool) -> None:
    """Of two columns of two frequent values, with this share of equal records."""
    columns = ([300, 300], [300, 300])
    stated = drawn(columns, 0.0, 20.0, 2.0, 1, contrasts)[0].shows
    seen = [not each.hidden for each in drawn(columns, stated, 20.0, 2.0, 1000, contrasts)]
    assert abs(np.mean(seen) - 0.5) < 0.1


def test_chance_is_that_of_unrelated_records() -> None:
    """Mean squared V of 400 drawn tables; its standard error is 2.6% of it."""
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(500, np.full(12, 1 / 12), size=400).reshape(-1, 3, 4)
    mean = np.mean([association(each.astype(float)) ** 2 for each in drawn])
    assert mean == pytest.approx((4 - 1) / 500, rel=0.13)


def test_a_plan_says_it_before_anything_is_spent() -> None:
    found = plan("mst", k_way(DOMAIN, 2), 1.0, 1e-9, neighbours="add/remove", rows=1000)
    assert "on made-up records of this shape:\nRelations within 2 pairs" in str(found)
    assert "strongest" not in str(found)
    assert found.to_dict()["verdict"] == list(found.verdict)


@pytest.mark.parametrize(
    "mechanism, settings, said",
    [
        ("matrix", {}, "which is separate tables."),
        ("matrix+pgm", {"model_mb": 0}, "which is separate tables; with inference=auto it is"),
        ("matrix+pgm", {}, ""),
        ("independent", {}, ""),
    ],
)
def test_a_plan_says_whether_records_can_be_drawn(
    mechanism: str, settings: dict[str, int], said: str
) -> None:
    given: dict[str, Any] = {"neighbours": "add/remove", "rows": 1000, "settings": settings}
    found = plan(mechanism, k_way(DOMAIN, 2), 1.0, 1e-9, **given)
    assert ("No records can be drawn" in str(found)) == (found.model_mb is None) == bool(said)
    assert said in str(found)


def test_a_plan_of_one_table_counts_it_as_one() -> None:
    one = plan("independent", k_way(Domain({"a": 2}), 1), 1.0, neighbours="add/remove", rows=9)
    assert "\n1 noisy table, noise" in str(one)


@pytest.mark.parametrize("mechanism, selects", [("mst", True), ("independent", False)])
def test_a_plan_says_that_its_steps_are_those_of_fewer_records(
    mechanism: str, selects: bool
) -> None:
    domain = Domain({"a": 2, "b": 3})
    for rows in (100_000, 200_000):
        found = plan(mechanism, k_way(domain, 2), 1.0, 1e-9, neighbours="add/remove", rows=rows)
        said = f"those of 100,000 records; of {rows:,} a mechanism that selects" in str(found)
        assert said == (selects and rows > 100_000)


def test_a_plan_compares_noise_with_the_number_of_rows_that_was_asked_for() -> None:
    """Twenty million rows are 200 times the records that a plan makes up at most."""
    said = {
        rows: plan("independent", k_way(DOMAIN, 1), 0.01, 1e-9, neighbours="add/remove", rows=rows)
        for rows in (10**5, 2 * 10**7)
    }
    assert re.search(r"\([1-9]\.\d% of the rows\)", str(said[10**5]))
    assert "(less than 0.1% of the rows)" in str(said[2 * 10**7])


def test_it_needs_nothing_but_what_was_released() -> None:
    release = synthesize(people(2000), schema(), epsilon=1, delta=1e-7, mechanism="mst", seed=0)
    again = verdict(release.model, release.measurements, release.ledger.budget)
    assert release.verdict == again
    cliques = [m.clique for m in release.measurements]
    pairs = {frozenset(pair) for each in cliques for pair in itertools.combinations(each, 2)}
    assert {frozenset(pair) for pair in again.kept} == pairs


def test_association_is_cramers_v() -> None:
    table = np.array([[10.0, 20.0, 30.0], [20.0, 10.0, 10.0]])
    expected = np.outer(table.sum(1), table.sum(0)) / 100
    assert association(table) == pytest.approx(
        np.sqrt(((table - expected) ** 2 / expected).sum() / 100)
    )


def test_a_column_without_a_frequent_value_is_named() -> None:
    """Of 300 rows with a code each, no code is found at epsilon 1, so all are in one place."""
    schema = Schema({"sex": Categorical(("F", "M")), "code": OpenCategorical(other="rest")})
    frame = pd.DataFrame({"sex": ["F", "M"] * 150, "code": [f"c{i}" for i in range(300)]})
    with pytest.warns(UserWarning, match="no value of code"):
        release = synthesize(frame, schema, epsilon=1, delta=1e-9, mechanism="mst", seed=0)
    said = release.verdict.sentences[0]
    assert said.startswith(
        "No value of code is frequent enough to be found: all records have 'rest'"
    )
    schema = Schema({"sex": Categorical(("F", "M")), "code": Categorical(("a",), other="rest")})
    release = synthesize(
        frame, schema, epsilon=1, delta=1e-9, mechanism="mst", seed=0, report_unread=True
    )
    assert "frequent enough" not in str(release.verdict)


def test_two_columns_have_one_relation() -> None:
    domain = Domain({"a": 2, "b": 2})
    measured = [Measurement(("a", "b"), np.full((2, 2), 300.0), 3.0)]
    said = verdict(estimate(domain, measured), measured)
    assert said.relations.startswith("The relation between the two columns is kept")


def test_with_little_noise_counts_are_within_one_and_not_within_none() -> None:
    noisy = [Measurement(("a",), [70.0, 30.0], 0.03)]
    said = verdict(estimate(Domain({"a": 2}), noisy), noisy).counts
    assert "within 1 of the truth" in said and "Counts below 1 (" in said


def test_a_plan_of_one_pair_does_not_say_from_where_on_its_relation_shows() -> None:
    """How rare a value of made-up records is decides it: 0.03 to 1 in tables of the same shape."""
    sizes = {"a": 2, "b": 2, "c": 2, "d": 3}
    one, six = (
        plan("mst", k_way(Domain(dict([*sizes.items()][:n])), 2), 1.0, 1e-6,
             neighbours="add/remove", rows=1000)
        for n in (2, 4)
    )  # fmt: skip
    assert "Cram" not in str(one) and "relation" in one.verdict[0]
    assert "of any strength in most pairs" in str(six) or "in the median pair (" in str(six)
