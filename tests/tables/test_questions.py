"""Questions in words, against sums over the joint table."""

import datetime
import re
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import torch
from chance import assert_stddev

from pgmkit import (
    Boolean,
    Categorical,
    Date,
    DateTime,
    Forbid,
    GraphicalModel,
    Integer,
    InvalidInput,
    Measurement,
    Numeric,
    Schema,
    estimate,
)
from pgmkit.factor import Factor
from pgmkit.tables import question_plan
from pgmkit.tables.question_grammar import Question, parse
from pgmkit.tables.question_plan import QuestionPlan, linear_parts
from pgmkit.tables.questions import Reply, ask
from pgmkit.tables.summaries import SUMMARIES, Summary
from pgmkit.uncertainty import error_bars

SCHEMA = Schema(
    {
        "age": Integer(0, 59, bins=6),
        "sex": Categorical(("F", "M")),
        "pay": Numeric(0, 40, bins=4, missing=()),
        "native country": Categorical(("here", "there, far", "else")),
        "ill": Boolean(),
    }
)
RNG = np.random.default_rng(0)
CLIQUES = [("age", "sex"), ("sex", "pay"), ("pay", "native country"), ("ill", "age")]
NOISY = [
    Measurement(c, RNG.integers(5, 50, SCHEMA.domain.size(c)).astype(float), 3.0) for c in CLIQUES
]
MODEL = estimate(SCHEMA.domain, NOISY, total=1000.0)
JOINT = MODEL.marginal(SCHEMA.domain.attributes)  # age, sex, pay, country, ill


def test_a_marginal_given_conditions() -> None:
    reply = ask(MODEL, SCHEMA, "pay | age in 30..49, sex = F")
    wanted = JOINT[3:5, 0].sum(axis=(0, 2, 3))
    assert reply.columns["pay"] == ["0..10", "10..20", "20..30", "30..40", "(missing)"]
    np.testing.assert_allclose(reply.columns["count"], wanted)
    np.testing.assert_allclose(reply.columns["share"], wanted / wanted.sum())


def test_two_columns_and_a_condition_on_one_of_them() -> None:
    reply = ask(MODEL, SCHEMA, "sex, age | age < 20, ill = true, sex != F")
    assert list(reply.columns) == ["sex", "age", "count", "share"]
    np.testing.assert_allclose(reply.columns["count"], JOINT[:2, 1, :, :, 1].sum(axis=(1, 2)))
    assert reply.columns["sex"] == ["M", "M"]
    met = JOINT[:2, 1, :, :, 1].sum()
    assert met % 1 and reply.notes == (f"share: of the {met:.0f} records that meet the conditions",)


def test_truth_values_are_shown_by_their_words() -> None:
    schema = Schema({"ill": Boolean(words=("no", " yes "), missing=(), outside="true")})
    noisy = [Measurement(("ill",), [1.0, 2.0, 3.0], 1.0)]
    model = estimate(schema.domain, noisy, total=6)
    assert ask(model, schema, "ill").columns["ill"] == ["no", "yes", "(missing)"]
    for asked, count in (("yes", 2), ("true", 2), ("0", 1), ("{no, missing}", 4)):
        found = ask(model, schema, f"count | ill {'in' if '{' in asked else '='} {asked}")
        assert found.columns["count"] == pytest.approx([count])
    assert schema.columns["ill"].place == "counted as 'yes'"


def test_a_cdf_of_dates_leaves_special_ones_out() -> None:
    schema = Schema({"day": Date("2020-01-01", "2020-01-03", special=("9999-12-31",), missing=())})
    noisy = [Measurement(("day",), [1.0, 2.0, 3.0, 4.0, 5.0], 1.0)]
    reply = ask(estimate(schema.domain, noisy, total=15), schema, "cdf(day)")
    np.testing.assert_allclose(reply.columns["count"], [1, 3, 6], rtol=1e-6)
    np.testing.assert_allclose(reply.columns["share"], [1 / 6, 1 / 2, 1], rtol=1e-6)
    assert reply.notes == ("records left out without a value of day: 9",)


def test_groups_behind_the_bar() -> None:
    found = ask(MODEL, SCHEMA, "pay | sex and age < 20, ill").columns
    cells = JOINT[:2].sum(axis=(0, 3)).transpose(0, 2, 1)  # sex, ill, pay
    assert list(found) == ["sex", "ill", "pay", "count", "share"]
    np.testing.assert_allclose(found["count"], cells.reshape(-1))
    shares = cells / cells.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(found["share"], shares.reshape(-1))
    inside = ask(MODEL, SCHEMA, "sex, cdf(age) | ill = true").columns
    behind = ask(MODEL, SCHEMA, "cdf(age) | ill = true and sex").columns
    for name in inside:
        np.testing.assert_array_equal(inside[name], behind[name])


def test_steps_join_bins() -> None:
    found = ask(MODEL, SCHEMA, "age in 20-year steps x sex | age >= 10").columns
    wanted = np.stack([JOINT[1], JOINT[2:4].sum(0), JOINT[4:6].sum(0)]).sum(axis=(2, 3, 4))
    assert found["age"][::2] == ["0..19", "20..39", "40..59"]
    np.testing.assert_allclose(found["count"], wanted.reshape(-1))
    missing = ask(MODEL, SCHEMA, "pay in steps of 20").columns
    assert missing["pay"] == ["0..20", "20..40", "(missing)"]
    tenths = Numeric(edges=(0, 0.1, 0.3, 0.7, 0.9), spikes=(0,))
    assert [each[1:] for each in tenths.steps(0.1 * 7)] == [(0, 4), (4, 5)]


def test_columns_whose_names_hold_the_signs_of_the_grammar() -> None:
    names = ["a x b", "c in 2-year steps", "d"]
    schema = Schema({name: Integer(0, 3) for name in names})
    assert parse(schema, "a x b x d").groups == ("a x b", "d")
    assert parse(schema, "c in 2-year steps").steps == {}
    for question in (
        "count | c in 2-year steps in 1..2",
        "count | d = 1 and c in 2-year steps > 1",
    ):
        assert parse(schema, question).allowed["c in 2-year steps"].sum() == 2
    assert parse(schema, '"a x b" x "c in 2-year steps" in 2-year steps').steps == {names[1]: 2.0}


@pytest.mark.parametrize(
    "text",
    ["pay | sex", "age in 20-year steps x sex", "cdf(pay) | sex", "sum(age) | ill",
     "mean(pay) | sex", "median(age) | pay < 20", "count | sex = F", "count"],
)  # fmt: skip
def test_linear_parts_are_what_replies_are_computed_from(text: str) -> None:
    reply = ask(MODEL, SCHEMA, text).columns
    parts = linear_parts(SCHEMA, text)
    question, query, unit = parts.question, parts.query, parts.unit
    found = MODEL.answer(query).reshape([len(f) for f in query.factors.values()])
    if question.summary is None:
        np.testing.assert_allclose(found.reshape(-1), reply["count"])
    elif question.summary.kind == "cdf":
        np.testing.assert_allclose(found[:, :4].reshape(-1), reply["count"])
        np.testing.assert_allclose(found[:, 4], JOINT[:, :, 4].sum(axis=(0, 2, 3)))
    elif question.summary.kind == "sum":
        np.testing.assert_allclose(unit * found[:, 0], reply["sum(age)"])
    elif question.summary.kind == "mean":
        np.testing.assert_allclose(found[:, 0], reply["count"])
        np.testing.assert_allclose(20 + unit * found[:, 1] / found[:, 0], reply["mean(pay)"])
    else:
        np.testing.assert_allclose(found[..., -1].sum(), reply["count"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("age in 15-year steps", "column 'age': steps of 15 cut the bin 10..19"),
        ("sex in steps of 2", "column 'sex': steps need a column of numbers"),
        ("age in 0-year steps", "a width above 0"),
        ("pay | sex, pay", "asked for twice"),
        ("pay | wages", "condition 'wages' is not understood (did you mean 'age'?); write"),
        ("pay | zone", "condition 'zone' is not understood; write"),
        ("sex x wages", "no column 'wages'"),
    ],
)
def test_groups_that_are_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(said)):
        ask(MODEL, SCHEMA, text)


def test_means_have_error_bars_of_their_own() -> None:
    noisy = [Measurement(("sex", "pay"), MODEL.marginal(("sex", "pay")), 3.0)]
    model = estimate(SCHEMA.domain, noisy, total=MODEL.total)
    bars = error_bars(model, noisy, replicates=200, seed=0)
    reply = ask(model, SCHEMA, "sex, mean(pay)", bars=bars).columns
    # By hand: the same function of tables drawn around the model's.
    rng, middles = np.random.default_rng(1), np.array([5, 15, 25, 35])
    drawn = model.marginal(("sex", "pay")) + rng.normal(0, 3, (4000, 2, 5))
    means = (drawn[..., :4] @ middles) / drawn[..., :4].sum(2)
    assert_stddev(reply["stderr"], means.std(0), 200)  # that of 4,000 is exact beside it
    assert (reply["low"] < reply["mean(pay)"]).all() and (reply["mean(pay)"] < reply["high"]).all()


def test_means_stay_within_the_values() -> None:
    noisy = [Measurement(("sex", "pay"), MODEL.marginal(("sex", "pay")), 300.0)]
    model = estimate(SCHEMA.domain, noisy, total=MODEL.total)
    bars = error_bars(model, noisy, replicates=20, seed=0)
    reply = ask(model, SCHEMA, "sex, mean(pay)", bars=bars).columns
    assert (reply["low"] >= 5).all() and (reply["high"] <= 35).all()  # the middles of the bins


def test_cdf_mean_and_count() -> None:
    cdf = ask(MODEL, SCHEMA, "cdf(age) | sex = M").columns
    np.testing.assert_allclose(cdf["count"], np.cumsum(JOINT[:, 1].sum(axis=(1, 2, 3))))
    assert cdf["share"][-1] == pytest.approx(1.0)
    paid = ask(MODEL, SCHEMA, "sex, cdf(pay) | age >= 30")
    present = JOINT[3:, :, :4].sum(axis=(0, 3, 4))
    np.testing.assert_allclose(paid.columns["count"], present.cumsum(1).reshape(-1))
    shares = present.cumsum(1) / present.sum(1, keepdims=True)
    np.testing.assert_allclose(paid.columns["share"], shares.reshape(-1))
    assert paid.notes[0].endswith(f"left out without a value of pay: {JOINT[3:, :, 4].sum():.0f}")
    assert not ask(MODEL, SCHEMA, "cdf(pay) | pay != missing").notes
    none = estimate(SCHEMA.domain, [Measurement(("pay",), [9.0, 9, 9, 9, 1e-3], 1.0)])
    assert not ask(none, SCHEMA, "cdf(pay)").notes  # a thousandth of a record is none
    mean = ask(MODEL, SCHEMA, "sex, mean(pay) | age >= 30").columns
    counts = JOINT[3:, :, :4].sum(axis=(0, 3, 4))
    np.testing.assert_allclose(mean["mean(pay)"], counts @ [5, 15, 25, 35] / counts.sum(1))
    np.testing.assert_allclose(mean["count"], counts.sum(1))
    one = ask(MODEL, SCHEMA, 'count | "native country" in {here, "there, far"}, age > 9').columns
    np.testing.assert_allclose(one["count"], [JOINT[1:, :, :, :2].sum()])
    np.testing.assert_allclose(one["share"], one["count"] / 1000.0)
    whole = ask(MODEL, SCHEMA, "count").columns
    np.testing.assert_allclose(whole["count"], [1000.0])


def test_the_level_of_a_quantile_is_not_rounded() -> None:
    for text in ("quantile(pay, 0.9999999)", "quantile(pay, 1)", "quantile(pay, 0.5)"):
        assert text in ask(MODEL, SCHEMA, text).columns


def test_error_bars_come_along() -> None:
    bars = error_bars(MODEL, NOISY, replicates=20, seed=0)
    reply = ask(MODEL, SCHEMA, "age | sex = F", bars=bars).columns
    assert (reply["low"] <= reply["count"]).all() and (reply["count"] <= reply["high"]).all()
    assert (reply["stderr"] > 0).all()


def test_missing_values_are_no_large_values() -> None:
    assert parse(SCHEMA, "sex | pay > 10").allowed["pay"].tolist() == [
        False,
        True,
        True,
        True,
        False,
    ]
    only = [False, False, False, False, True]
    for spelling in ('"(missing)"', "(missing)", "missing", '""', "{missing}"):
        operator = "in" if spelling.startswith("{") else "="
        assert parse(SCHEMA, f"sex | pay {operator} {spelling}").allowed["pay"].tolist() == only
    assert parse(SCHEMA, "sex | pay != missing").allowed["pay"].tolist() == [True] * 4 + [False]
    named = Schema({"a": Categorical(("missing", "b"), missing=("?",))})
    assert parse(named, "count | a = missing").allowed["a"].tolist() == [True, False, False]
    assert parse(named, 'count | a = ""').allowed["a"].tolist() == [False, False, True]
    assert parse(named, "count | a = ?").allowed["a"].tolist() == [False, False, True]


def test_and_joins_conditions_but_no_names_or_values() -> None:
    both = parse(SCHEMA, "pay | sex = F and age in 30..49").allowed
    assert both.keys() == {"sex", "age"}
    schema = Schema(
        {
            "land": Categorical(("Trinidad and Tobago", "Cuba")),
            "bed and board": Boolean(),
            "born in": Integer(0, 1),
        }
    )
    text = 'count | land = Trinidad and Tobago and bed and board = yes AND "born in" = 1'
    with pytest.raises(InvalidInput, match="no value"):
        parse(schema, text.replace("yes", "perhaps"))
    for word in ("yes", "true"):
        found = parse(schema, text.replace("yes", word)).allowed
        assert {name: mask.tolist() for name, mask in found.items()} == {
            "land": [True, False],
            "bed and board": [False, True],
            "born in": [False, True],
        }
    within = parse(schema, "count | land in {Trinidad and Tobago, Cuba} and bed and board = true")
    assert within.allowed["land"].all()


def test_columns_may_bear_the_names_of_the_replys_own() -> None:
    schema = Schema({"count": Integer(0, 1), "share": Integer(0, 1)})
    noisy = [Measurement(("count", "share"), [[1.0, 2.0], [3.0, 4.0]], 1.0)]
    model = estimate(schema.domain, noisy, total=10.0)
    reply = ask(model, schema, "count | share = 1").columns
    assert reply['"count"'] == ["0", "1"]
    np.testing.assert_allclose(reply["count"], [2.0, 4.0], rtol=1e-6)


@pytest.fixture(scope="module", params=range(6))
def exact(request: pytest.FixtureRequest) -> tuple[pd.DataFrame, Schema, GraphicalModel]:
    """Records drawn at random, and the model of their joint table without noise."""
    rng = np.random.default_rng(request.param)
    n = int(rng.integers(101, 400)) | 1
    frame = pd.DataFrame(
        {
            "age": rng.integers(-3, 6, n),
            "sex": rng.choice(["F", "M"], n),
            "pay": np.where(rng.random(n) < 0.2, np.nan, rng.integers(0, 12, n)),
        }
    )
    schema = Schema(
        {
            "age": Integer(-3, 5),
            "sex": Categorical(("F", "M")),
            "pay": Integer(0, 11, missing=()),
        }
    )
    arrays = {name: frame[name].to_numpy(dtype=object) for name in frame}
    table = schema.encode(arrays).marginal(("age", "sex", "pay"))
    with np.errstate(divide="ignore"):
        logs = torch.as_tensor(np.log(table))
    return frame, schema, GraphicalModel(schema.domain, (Factor(schema.domain, logs),), float(n))


def test_a_model_of_exact_tables_answers_as_pandas_does(
    exact: tuple[pd.DataFrame, Schema, GraphicalModel],
) -> None:
    frame, schema, model = exact

    def answers(text: str, column: str) -> np.ndarray:
        return np.asarray(ask(model, schema, text).columns[column], dtype=float)

    some = frame[(frame["age"] >= 0) & (frame["sex"] == "F")]
    given = "age >= 0 and sex = F"
    close = {"rtol": 1e-5, "atol": 1e-4}
    np.testing.assert_allclose(answers(f"count | {given}", "count"), [len(some)], **close)
    np.testing.assert_allclose(
        answers(f"count | {given}", "share"), [len(some) / len(frame)], **close
    )
    np.testing.assert_allclose(
        answers(f"sum(pay) | {given}", "sum(pay)"), some["pay"].sum(), **close
    )
    np.testing.assert_allclose(
        answers(f"mean(pay) | {given}", "mean(pay)"), some["pay"].mean(), **close
    )
    np.testing.assert_allclose(
        answers("count | pay = missing", "count"), frame["pay"].isna().sum(), **close
    )
    groups = frame.groupby("sex")["pay"]
    np.testing.assert_allclose(answers("sex, mean(pay)", "mean(pay)"), groups.mean(), **close)
    np.testing.assert_allclose(answers("sex, mean(pay)", "count"), groups.count(), **close)
    np.testing.assert_allclose(
        answers("sex, sum(age)", "sum(age)"), frame.groupby("sex")["age"].sum(), **close
    )
    counts = pd.crosstab(frame["sex"], frame["age"])
    np.testing.assert_allclose(answers("sex, age", "count"), counts.to_numpy().reshape(-1), **close)
    ranked = frame["pay"].value_counts(normalize=True).sort_index().cumsum()
    np.testing.assert_allclose(answers("cdf(pay)", "share"), ranked, **close)
    for level in (0.1337, 0.5, 0.771, 0.9, 1.0):
        wanted = groups.apply(lambda v, q=level: np.quantile(v.dropna(), q, method="inverted_cdf"))
        sizes = level * groups.count()
        if (abs(sizes - sizes.round()) < 1e-6).any() and level < 1:
            continue  # a tie between two values
        title = f"quantile(pay, {level:g})"
        np.testing.assert_array_equal(answers(f"sex, {title}", title), wanted)
    whole = answers("median(age)", "median(age)")
    assert whole == frame["age"].median()  # of an odd number of records


def test_quantiles_within_bins_are_those_of_evenly_spread_values() -> None:
    schema = Schema({"a": Integer(0, 99, bins=10), "b": Numeric(0, 1, bins=4)})
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 10, 1000) * 10, rng.integers(0, 4, 1000)
    pairs = np.stack([np.bincount(a // 10, minlength=10), np.zeros(10)], 1)
    assert pairs.sum() == 1000
    values = {"a": np.bincount(a // 10, minlength=10), "b": np.bincount(b, minlength=4)}
    noisy = [Measurement((name,), table.astype(float), 1e-6) for name, table in values.items()]
    model = estimate(schema.domain, noisy, total=1000.0)
    spread = np.concatenate(
        [c + np.arange(10).repeat(values["a"][c // 10]) for c in range(0, 100, 10)]
    )
    grains = 1000
    fine = np.concatenate(
        [
            (i + (np.arange(grains) + 0.5) / grains) / 4 * np.ones((n, 1))
            for i, n in enumerate(values["b"])
        ]
    ).reshape(-1)
    for level in (0.05, 0.31, 0.77, 0.93):
        wanted = np.quantile(spread, level, method="inverted_cdf")
        found = ask(model, schema, f"quantile(a, {level})").columns[f"quantile(a, {level})"]
        assert abs(found - wanted) <= 1
        found = ask(model, schema, f"quantile(b, {level})").columns[f"quantile(b, {level})"]
        assert found == pytest.approx(np.quantile(fine, level), abs=2e-3)


def test_an_answer_that_is_mostly_noise_says_so() -> None:
    schema = Schema({"a": Integer(0, 1), "b": Integer(0, 1)})
    noisy = [
        Measurement(("a", "b"), [[5.0, 1000.0], [1000.0, 900.0]], 20.0),
    ]
    model = estimate(schema.domain, noisy, total=2905.0)
    bars = error_bars(model, noisy, replicates=30, seed=0)
    reply = ask(model, schema, "a, b", bars=bars)
    assert reply.columns["note"] == ["unreliable", "", "", ""]
    assert any("UNRELIABLE: 1 of 4" in note for note in reply.notes)
    assert "note" not in ask(model, schema, "a", bars=bars).columns
    mean = ask(model, schema, "b, mean(a)", bars=bars)
    assert "note" not in mean.columns
    few = ask(model, schema, "median(b) | a = 0, b = 0", bars=bars)
    assert few.columns["note"] == ["unreliable"]


def test_columns_not_measured_together_are_said_to_have_the_error_of_the_model() -> None:
    schema = Schema({"a": Boolean(), "b": Boolean()})
    truth = np.array([[500.0, 0.0], [0.0, 500.0]])  # b equals a, which no table tells
    alone = [Measurement((name,), [500.0, 500.0], 5.0) for name in "ab"]
    bars = error_bars(estimate(schema.domain, alone), alone, replicates=30, seed=0)
    reply = ask(bars.model, schema, "a, b", bars=bars)
    assert (reply.columns["high"] < truth.max()).all() and (reply.columns["low"] > 0).all()
    assert reply.notes[-1].endswith("not measured together; true values may lie far outside")
    assert reply.notes[-1] in str(reply)
    assert "of noise alone, not of the model" in bars.marginal(["a", "b"])._repr_html_()
    assert not ask(bars.model, schema, "a", bars=bars).notes
    assert "of noise alone" not in bars.marginal(["a"])._repr_html_()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("wages", "no column 'wages'"),
        ("sex |", "no conditions"),
        ("age > 10", r"behind a bar; ask, for example, 'count \| age > 10'"),
        ("sex | age ~ 3", "not understood"),
        ("sex | age in 3", "low..high"),
        ("sex | age in 0..14", "cuts the bin"),
        ("sex | age in 14..", "the limit 14 cuts the bin"),
        ("sex | age in 40..15", "ends before it begins"),
        ("sex | sex = X", "no value 'X'"),
        ("sex | sex < F", "no order"),
        ("sex, sex", "twice"),
        ("mean(sex)", "needs a column of numbers"),
        ("cdf(age), mean(pay)", "one of cdf, .* at a time"),
        ("median(sex)", "needs a column of numbers"),
        ("quantile(age)", "write quantile\\(age, 0.9\\)"),
        ("quantile(age, 90)", "level from 0 to 1"),
        ("sex | sex = missing", "declares none"),
        ("sex, count", "leave 'count' out beside columns"),
        ("sex | age < 10, age >= 10", "'age' beside the conditions before it; the values are 0..9"),
        ("age in steps of 15 years", "steps of 15 cut the bin"),
        ("mean(pay) | pay = missing", "leave no value of 'pay' to summarise"),
    ],
)
def test_what_is_not_understood_is_said(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ask(MODEL, SCHEMA, text)


def test_digits_end_where_standard_errors_begin() -> None:
    numbers = {"stderr": [0.313, 21.0], "low": [6.76024, 990.0], "high": [8.04977, 1075.0]}
    reply = Reply(
        {"sex": ["F", "M"], "mean(age)": np.array([7.40501, 1032.5])}
        | {"count": np.array([596.764, 1067.33])}
        | {name: np.array(values) for name, values in numbers.items()}
    )
    assert [line.split() for line in str(reply).splitlines()[1:]] == [
        ["F", "7.41", "597", "0.31", "6.76", "8.05"],
        ["M", "1032.50", "1067", "21.00", "990.00", "1075.00"],
    ]
    exact = Reply({"count": np.array([12.0, 34.0]), "stderr": np.zeros(2)})
    assert exact.texts() == {"count": ["12", "34"], "stderr": ["0", "0"]}


def test_the_mean_of_equal_values_is_reliable_within_a_third_of_their_spread_in_a_bin() -> None:
    """Each whole number of a bin counts as often as the others."""
    schema = Schema({"g": Categorical(("x",)), "v": Integer(edges=(0, 10, 20, 30, 40))})
    limit = np.std(np.arange(20, 30)) / 3
    for records, reliable in ((1000.0, True), (10.0, False)):
        noisy = [Measurement(("g", "v"), [[0.0, 0, records, 0]], records / 200 + 1)]
        model = estimate(schema.domain, noisy, total=records)
        reply = ask(model, schema, "g, mean(v)", bars=error_bars(model, noisy))
        assert (0 < reply.columns["stderr"][0] < limit) == reliable
        assert reply.columns.get("note", []) == ["unreliable"] * (not reliable)


def test_a_bin_of_one_whole_number_adds_nothing_to_the_spread() -> None:
    """A rare value's mean has the deviation of a share, the root of p (1 - p)."""
    schema = Schema({"flag": Integer(0, 1)})
    for stddev in (100.0, 200.0):
        noisy = [Measurement(("flag",), [9990.0, 10.0], stddev)]
        model = estimate(schema.domain, noisy, total=10000.0)
        reply = ask(model, schema, "mean(flag)", bars=error_bars(model, noisy))
        wide = reply.columns["stderr"][0] > np.sqrt(0.001 * 0.999) / 3
        assert wide == (stddev == 200.0) == ("note" in reply.columns)


def test_replies_become_frames_and_pictures() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    columns = {
        "sex": ["F", "M"],
        "count": np.array([30.0, 70.0]),
        "low": np.array([28.0, 69.0]),
        "high": np.array([33.0, 75.0]),
        "note": ["", "unreliable"],
    }
    reply = Reply(columns)
    assert repr(reply) == str(reply)  # a console shows the table
    frame = reply.to_pandas()
    assert list(frame) == list(columns) and frame["count"].tolist() == [30.0, 70.0]
    axes = reply.plot()
    assert [bar.get_width() for bar in axes.patches] == [30.0, 70.0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["F", "M"]
    (whiskers,) = axes.collections
    assert [(s[0][0], s[1][0]) for s in whiskers.get_segments()] == [(28.0, 33.0), (69.0, 75.0)]
    assert axes.get_xlabel() == "count"
    assert len(Reply({"count": np.array([5.0])}).plot().patches) == 1


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("mean(age) by sex", r"there is no `by` .*; write 'sex, mean\(age\)'"),
        ("kids by sex", "there is no `by` .*; write 'sex, kids'"),
        ("count | pay < 3", r"the limit 3 cuts the bin 0\.\.3"),
        ("count by sex", "there is no `by` .*; write 'sex'"),
        ("share of sex = F", "there is no column 'share of sex = F'; .* A question is such"),
        ("count | kids = 1 or kids = 2", r"there is no `or`; .* kids in \{1, 2\}"),
        ("count | kids == 1", "write =, !=, <, <=, >, >= or in"),
        ("count | kids => 1", "write =, !=, <, <=, >, >= or in"),
        ("mean(kids", r"'mean\(kids' is not understood; write mean\(column"),
        ("count | kids = 1 or 2", r"there is no `or`; .* kids in \{1, 2\}"),
        ("count | kids = 1 or sex = F", r"there is no `or`; .* kids in \{a, b\}"),
        ("count | kids in 0..1 or kids = 3", r"there is no `or`; .* kids in \{a, b\}"),
        ("count | kids = x", "of type integer"),
        ("mean kids by sex", "no column 'mean kids by sex'.* there are count, age, .*mean.income"),
        ("COUNT", r"no column 'COUNT' \(did you mean 'count'"),
        ("average(kids)", "no function 'average'; there are cdf, .* A question is such as"),
        ("count | age > 3 & sex = F", "'age > 3 & sex = F': write `and` .* as age > a and"),
        ("count | sex = F && kids = 1", "write `and` between conditions"),
        ("count | age > 3 and < 5", "write `and` between conditions, and the column in each"),
        ("count | sex = F | kids = 1", "write `and` between conditions"),
        ("count | sex = 'F'", "column 'sex': write F without the quotes of 'F'"),
        ("count | sex in {'F', 'M'}", "column 'sex': write F without the quotes of 'F'"),
        ("age in 10 year steps", "write low..high, .* steps of 10"),
        ("age in decades", "write low..high, .* steps of 10"),
    ],
)
def test_what_other_languages_have_is_refused_with_the_spelling_here(question, said):
    columns = {"age": Integer(0, 9), "kids": Integer(0, 3), "pay": Integer(0, 7, bins=2)}
    schema = Schema({**columns, "sex": Categorical(("F", "M"))})
    with pytest.raises(InvalidInput, match=said):
        parse(schema, question)


def test_signs_of_other_languages_within_values_are_theirs():
    schema = Schema({"firm": Categorical(("R & D", "<5"), missing=("<NA>",))})
    for question in ("firm = R & D", "firm in {R & D, <5}", "firm = <5", 'firm != "R & D"'):
        assert parse(schema, f"count | {question}").allowed["firm"].any()
    assert parse(schema, "count | firm != <NA>").allowed["firm"].tolist() == [True, True, False]


def test_an_or_within_a_value_is_no_operator():
    schema = Schema({"music": Categorical(("rock or pop", "jazz"))})
    for value in ("rock or pop", '"rock or pop"', "{rock or pop, jazz}"):
        operator = "in" if value[0] == "{" else "="
        assert parse(schema, f"count | music {operator} {value}").allowed["music"][0]


@pytest.mark.parametrize(("first", "near"), [(-40.0, True), (60.0, False)])
def test_a_note_explains_answers_near_an_end_of_their_interval(first: float, near: bool) -> None:
    """A count held at zero takes from the other what the noisy table gives to it."""
    schema = Schema({"sex": Categorical(("F", "M"))})
    tables = [Measurement(("sex",), [first, 60.0 - first + 60.0 * (first > 0)], 20.0)]
    model = estimate(schema.domain, tables)
    reply = ask(model, schema, "sex", bars=error_bars(model, tables))
    assert any("near an end of theirs" in note for note in reply.notes) is near


def test_a_note_bounds_what_the_middles_of_bins_move_sums_and_means_by() -> None:
    """True values that crowd at the lower ends of wide bins are off by no more than it says."""
    values = np.array([0.0] * 70 + [1.0] * 20 + [20.0] * 10)
    schema = Schema({"sex": Categorical(("F",)), "pay": Numeric(edges=(0, 1, 20, 60))})
    exact = [Measurement(("sex", "pay"), [[70.0, 20.0, 10.0]], 0.01)]
    model = estimate(schema.domain, exact, total=100)
    for summary, truth in (("mean", values.mean()), ("sum", values.sum())):
        reply = ask(model, schema, f"{summary}(pay) | sex", bars=error_bars(model, exact))
        [note] = [each for each in reply.notes if "middles of their bins" in each]
        off = float(re.findall(r"up to ([\d.]+)", note)[0])
        answer = float(np.asarray(reply.columns[f"{summary}(pay)"])[0])
        assert reply.columns["high"][0] - reply.columns["low"][0] < 0.1 * off
        assert answer - truth == pytest.approx(off, rel=0.01)  # the worst case, and no more
        [placed] = [
            n for n in ask(model, schema.placed(), f"{summary}(pay)").notes if "middles" in n
        ]
        assert "outer bins" in placed and "outer bins" not in note


@pytest.mark.parametrize(
    "column",
    [
        Integer(0, 3),
        Numeric(0, 0.4, bins=4, decimals=1, spikes=(0.4,)),
        Numeric(0, 9, bins=1, spikes=(0,)),
    ],
)
def test_no_such_note_where_bins_hold_one_value_or_no_mean_is_asked_for(column) -> None:
    schema = Schema({"x": column})
    model = estimate(schema.domain, [Measurement(("x",), np.full(column.size, 5.0), 1.0)])
    where = " | x = 0" if column.size == 2 else ""
    for text in (f"mean(x){where}", f"sum(x){where}", "median(x)", "cdf(x)"):
        assert not any("middles" in note for note in ask(model, schema, text).notes)


@pytest.mark.parametrize(
    "column",
    [Integer(0, 10, bins=3), Numeric(0, 10, bins=2, decimals=1), Numeric(0, 10, bins=3)],
)
def test_the_bound_of_middles_is_the_distance_of_the_furthest_value(column) -> None:
    """The last bin of a column with decimals contains its upper end, which is further off."""
    values = np.arange(11) if isinstance(column, Integer) else np.arange(101) / 10
    schema = Schema({"x": column})
    plan = QuestionPlan(schema, parse(schema, "mean(x)"))
    codes = column.encode(values)
    for code, middle, said in zip(plan.codes, plan.middles, plan.half_widths, strict=True):
        furthest = np.abs(values[codes == code] - middle).max()
        assert furthest - 1e-9 <= said <= furthest + 0.1


@pytest.mark.parametrize(("stddev", "noisy"), [(0.1, False), (900.0, True)])
def test_a_median_as_wide_as_its_bin_is_not_called_noise(stddev: float, noisy: bool) -> None:
    """Nearly exact counts leave open where in a wide bin the median lies."""
    schema = Schema({"pay": Integer(edges=(0, 40, 100))})
    tables = [Measurement(("pay",), [900.0, 100.0], stddev)]
    model = estimate(schema.domain, tables, total=1000.0)
    reply = ask(model, schema, "median(pay)", bars=error_bars(model, tables))
    if not noisy:
        assert (reply.columns["low"], reply.columns["high"]) == ([0.0], [39.0])
    assert ("note" in reply.columns) is noisy is any("mostly noise" in n for n in reply.notes)
    assert any("1 of 1 intervals are a bin of pay" in note for note in reply.notes) is not noisy


def test_a_comma_within_a_number_is_named() -> None:
    with pytest.raises(
        InvalidInput, match=r"within a number.*'pay in 5.0..20.5, sex = F'.* quotes"
    ):
        ask(MODEL, SCHEMA, "age | pay in 5,0..20,5, sex = F")
    with pytest.raises(InvalidInput, match=r"comma within a number.*'age in 1.5..20'"):
        ask(MODEL, SCHEMA, "age in 1,5..20")
    with pytest.raises(InvalidInput, match=r"decimal point, 'pay > 1000.50', thousands"):
        ask(MODEL, SCHEMA, "count | pay > 1.000,50")
    numbers = Schema({"2010": Integer(0, 3), "2011": Integer(0, 3)})
    assert parse(numbers, "2010,2011 | 2010 = 1,2011 = 2").groups == ("2010", "2011")


def test_an_operator_is_read_whole_even_where_a_column_ends_in_one() -> None:
    """Otherwise "c <= 3" were "c <" = 3, without a word."""
    schema = Schema({"c": Integer(0, 5), "c <": Integer(0, 5), "c !": Integer(0, 5)})
    upto = [True] * 4 + [False] * 2
    for text, column, wanted in (
        ("c <= 3", "c", upto),
        ("c < 3", "c", [True] * 3 + [False] * 3),
        ("c < <= 3", "c <", upto),
        ("c < = 3", "c <", [code == 3 for code in range(6)]),
        ('"c <" = 3', "c <", [code == 3 for code in range(6)]),
        ("c != 3", "c", [code != 3 for code in range(6)]),
        ("c ! <= 3", "c !", upto),
    ):
        allowed = parse(schema, f"count | {text}").allowed
        assert {name: mask.tolist() for name, mask in allowed.items()} == {column: wanted}


def test_a_note_names_ends_of_bins_whose_values_count_above() -> None:
    schema = Schema({"d": Numeric(0, 1, bins=4, decimals=2, spikes=(0.5,)), "a": Integer(0, 9)})
    counts = np.bincount(schema.columns["d"].encode([0.25, 0.5, 0.75]), minlength=5)
    model = estimate(schema.domain, [Measurement(("d",), counts.astype(float), 1.0)], total=3)
    note = "a value of d that is exactly {} counts as above it"
    for asked, count, end in [("<= 0.25", 0, 0.25), ("> 0.75", 1, 0.75), ("in 0..0.25", 0, 0.25)]:
        reply = ask(model, schema, f"count | d {asked}")
        assert reply.columns["count"][0] == pytest.approx(count, abs=1e-6)
        assert note.format(end) in reply.notes
    for asked, count in [("<= 0.5", 2), ("> 0.5", 1), ("< 0.5", 1), ("<= 1", 3), ("= 0.5", 1)]:
        reply = ask(model, schema, f"count | d {asked}, a > 3")
        assert reply.columns["count"][0] == pytest.approx(count * 0.6, abs=1e-6)
        assert not [each for each in reply.notes if "exactly" in each]


def test_a_median_without_a_closed_interval_says_how_far_its_bin_may_move_it() -> None:
    """A median of prices was said to be 14.07 +- 0 where the truth, in the same bin, was 13.25."""
    schema = Schema({"pay": Integer(edges=(0, 40, 100)), "sex": Categorical(("F", "M"))})
    tables = [Measurement((n,), v, 0.1) for n, v in (("pay", [900, 100]), ("sex", [500, 500]))]
    model = estimate(schema.domain, tables, total=1000.0)
    bars = error_bars(model, tables)
    for given in (None, bars):
        reply = ask(model, schema, "median(pay) | sex", bars=given)
        middle = float(reply.columns["median(pay)"][0])
        said = f"off by up to {max(middle, 39 - middle):.3g}, beside"
        assert any(said in note for note in reply.notes)
    exact = ask(model, schema, "median(pay)", bars=bars)
    assert exact.columns["high"] == [39.0] and not any("off by" in each for each in exact.notes)


@pytest.mark.parametrize("summary", ["median(pay)", "mean(pay)"])
def test_no_interval_of_an_average_goes_beyond_the_column(summary: str) -> None:
    """A mean income of 168,174 had an interval from -589,857 on, in a column that begins at 0."""
    schema = Schema({"pay": Integer(edges=(0, 40, 10_000)), "sex": Categorical(("F", "M"))})
    tables = [Measurement((n,), v, 90.0) for n, v in (("pay", [290, 10]), ("sex", [20, 280]))]
    model = estimate(schema.domain, tables, total=300.0)
    found = ask(model, schema, f"{summary} | sex", bars=error_bars(model, tables)).columns
    assert min(found["low"]) >= 0 and max(found["high"]) <= 10_000
    assert (found["low"] <= found[summary]).all() and (found[summary] <= found["high"]).all()


def test_the_interval_of_a_quantile_that_is_a_spike_is_the_spike() -> None:
    schema = Schema({"d": Numeric(0, 50, bins=5, decimals=2, spikes=(45,))})
    counts = np.bincount(schema.columns["d"].encode([1, 2, 45, 45, 45, 45, 48]), minlength=7)
    noisy = [Measurement(("d",), 1000.0 * counts, 1.0)]
    model = estimate(schema.domain, noisy, total=7000)
    reply = ask(model, schema, "median(d)", bars=error_bars(model, noisy))
    assert [float(reply.columns[n][0]) for n in ("stderr", "low", "high")] == [0.0, 45.0, 45.0]
    assert str(reply).splitlines()[1].split()[0] == "45"


@pytest.mark.parametrize("form", ["%H:%M:%S", "%H:%M", "%-H:%M", "%H%M", "%I:%M %p"])
@pytest.mark.parametrize("width", [1, 30, 60, 240])
def test_times_of_day_are_asked_for_as_people_write_them(form: str, width: int) -> None:
    """Against the minutes of a day: a range holds whole bins of `width` minutes, or is refused."""
    unit, bins = ("minute", 1440 // width) if width < 60 else ("hour", 1440 // width)
    first, last = "1900-01-01T00:00", "1900-01-01T23:59"
    column = DateTime(first, last, unit=unit, bins=bins, format=form)
    assert column.labels == DateTime("0:00", "23:59", unit=unit, bins=bins, format=form).labels
    schema, minutes = Schema({"time": column}), np.arange(1440)

    def met(condition: str) -> list[bool]:
        return parse(schema, f"count | time {condition}").allowed["time"].tolist()

    conditions = {
        "in 8:00..11:59": (minutes >= 480) & (minutes < 720),
        "in 08..11": (minutes >= 480) & (minutes < 720),
        ">= 20:00": minutes >= 1200,
        "< 4": minutes < 240,
        "<= 03:59": minutes < 240,
        "= 5": minutes // 60 == 5,
        "in 9:30..9:59": (minutes >= 570) & (minutes < 600),
    }
    for condition, wanted in conditions.items():
        shares = wanted.reshape(-1, width).mean(axis=1)
        if np.isin(shares, [0.0, 1.0]).all():
            assert met(condition) == (shares == 1.0).tolist()
        else:
            with pytest.raises(InvalidInput, match="cuts the bin"):
                met(condition)
    for place, label in enumerate(column.labels):
        assert label == label.replace("1900", "")
        assert met(f"in {label if '..' in label else f'{label}..{label}'}").index(True) == place
    written = pd.Timestamp("1900-01-01T20:00").strftime(form)
    assert met(f">= {written}") == met(">= 20:00") == met(">= 1900-01-01T20:00")


def test_a_range_that_is_none_is_refused_with_the_values_there_are() -> None:
    clock = DateTime("1900-01-01T00:00", "1900-01-01T23:00", unit="hour", format="%H:%M:%S")
    with pytest.raises(InvalidInput, match=r"not have the value 24:00; the values are 00, 01, 02"):
        parse(Schema({"time": clock}), "count | time >= 24:00")


def test_minutes_and_seconds_are_no_times_of_day() -> None:
    first, last = "1900-01-01T00:00:00", "1900-01-01T00:59:59"
    laps = DateTime(first, last, unit="minute", format="%M:%S")
    assert laps.within("05:00", "06:59").nonzero()[0].tolist() == [5, 6]
    assert laps.labels[5] == "1900-01-01T00:05"
    days = DateTime("2024-01-01", "2024-01-02", unit="hour", format="%H:00 %d/%m/%Y")
    assert days.labels[20] == "2024-01-01T20"


OF_RECORDS = {
    "cdf": lambda values: np.bincount(values, minlength=5).cumsum(),
    "sum": np.sum,
    "mean": np.mean,
    "median": lambda values: np.quantile(values, 0.5, method="inverted_cdf"),
    "quantile": lambda values: np.quantile(values, 0.8, method="inverted_cdf"),
}
"""What each summary says of records with these values."""


@pytest.mark.parametrize("kind", SUMMARIES)
def test_every_summary_and_its_interval_are_those_of_the_records(kind: str) -> None:
    """A new one is forgotten nowhere: define it above, independently."""
    counts = np.array([10.0, 30.0, 20.0, 5.0, 36.0])
    wanted = OF_RECORDS[kind](np.arange(5).repeat(counts.astype(int)))
    schema = Schema({"a": Integer(0, 4)})
    noisy = [Measurement(("a",), counts, 1e-3)]
    model = estimate(schema.domain, noisy, total=101.0)
    question = f"{kind}(a{', 0.8' * (kind == 'quantile')})"
    for bars in (None, error_bars(model, noisy)):
        columns = ask(model, schema, question, bars=bars).columns
        found = np.asarray(columns["count" if kind == "cdf" else question])
        np.testing.assert_allclose(found, wanted, rtol=1e-4)
        if bars is not None:
            assert (columns["low"] <= found).all() and (found <= columns["high"]).all()


@pytest.mark.parametrize("kind", [*SUMMARIES, "mode"])
def test_a_summary_that_is_not_known_has_no_linear_parts(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a known one are weighted sums exactly where its reply is computed from them."""
    column = Summary(kind, "age")
    asked = Question((), column, {})
    monkeypatch.setattr(question_plan, "parse", lambda *_: asked)
    if kind == "mode":
        with pytest.raises(KeyError):
            linear_parts(SCHEMA, "")
        return
    rows = linear_parts(SCHEMA, "").query.factors["age"]
    assert (len(rows) < 3) == (kind in ("sum", "mean"))


@pytest.mark.parametrize("form", [None, "%d/%m/%Y", "%-m/%-d/%Y %-H:%M:%S"])
@pytest.mark.parametrize("unit", ["month", "year"])
def test_ranges_of_days_hold_whole_months_and_years_or_are_refused(
    form: str | None, unit: str
) -> None:
    """Against the days themselves: of each month or year all days must be in the range, or none."""
    column = Date("2014-01-01", "2016-12-31", unit=unit, format=form)
    days = pd.date_range("2014-01-01", "2016-12-31")
    bins = days.strftime("%Y-%m" if unit == "month" else "%Y")
    rng = np.random.default_rng(5)
    ends = [*days[days.is_month_start], *days[days.is_month_end], *rng.choice(days, 60)]
    for _ in range(300):
        low, high = sorted(pd.Timestamp(each) for each in rng.choice(ends, 2))
        texts = [str(d.date()) if form is None else d.strftime(form) for d in (low, high)]
        shares = pd.Series((days >= low) & (days <= high)).groupby(bins).mean()
        if shares.isin([0.0, 1.0]).all():
            np.testing.assert_array_equal(column.within(*texts), shares == 1.0)
        else:
            with pytest.raises(InvalidInput, match="cuts the bin"):
                column.within(*texts)


def test_a_time_within_a_bin_cuts_it_and_a_coarser_one_holds_all_its_bins() -> None:
    hours = DateTime("2024-01-01T00:00", "2024-01-03T23:59")
    assert hours.within("2024-01-02", "2024-01-02").nonzero()[0].tolist() == [*range(24, 48)]
    assert hours.within("2024-01-01T05", "2024-01-01T06:59").sum() == 2
    assert hours.within("2024-01-01T05:00", "2024-01-01T06:00", False).sum() == 1
    early = datetime.datetime(2024, 1, 1, 5)
    assert hours.within(early, early).nonzero()[0].tolist() == [5]
    for end in ("05:00:00.1", "05:00:00.123456"):
        with pytest.raises(InvalidInput, match="cuts the bin"):
            hours.within(f"2024-01-01T{end}", None)
    for low, high in [("2024-01-01T05:30", None), (None, "2024-01-01T05:30"), (None, early)]:
        with pytest.raises(InvalidInput, match="cuts the bin"):
            hours.within(low, high.replace(minute=30) if high is early else high)
    assert not Integer(3, 9).within(None, 2).any() and not hours.within(None, "2023-12-31").any()
    with pytest.raises(InvalidInput, match="cuts the bin 2024-01"):
        Date("2024-01-01", "2024-12-31", unit="month").equal(["2024-01-15"])


def test_a_mean_of_a_group_that_may_have_no_records_is_marked() -> None:
    """A model may give such a group a record or two, as a mixture does, with little noise."""
    schema = Schema({"group": Integer(0, 1), "value": Integer(0, 9)})
    noisy = np.zeros((2, 10))
    noisy[0] = 20.0
    tables = [Measurement(("group", "value"), noisy, 0.01)]
    given = noisy.copy()
    given[1] = 0.1
    model = estimate(schema.domain, [Measurement(("group", "value"), given, 0.01)])
    reply = ask(model, schema, "mean(value) | group", bars=error_bars(model, tables))
    assert reply.columns["count"] == pytest.approx([200.0, 1.0])
    assert reply.columns["note"] == ["", "unreliable"]


@pytest.mark.parametrize("average", ["mean", "median"])
def test_a_group_that_the_constraints_leave_no_records_is_not_marked(average: str) -> None:
    columns = {"group": Integer(0, 2), "value": Integer(0, 9)}
    schema = Schema(columns, [Forbid({"group": "0"})])
    noisy = [Measurement(("group", "value"), np.full((3, 10), [[0.0], [20.0], [0.0]]), 0.1)]
    model = estimate(schema.domain, noisy, zeros=schema.zeros)
    reply = ask(model, schema, f"{average}(value) | group", bars=error_bars(model, noisy))
    assert reply.columns["note"] == ["", "", "unreliable"]


def test_questions_of_many_values_need_no_square_matrix() -> None:
    """The identity of 6000 values has 288 MB."""
    schema = Schema({"id": Integer(1, 6000), "ill": Boolean()})
    counts = np.random.default_rng(0).integers(1, 9, 6000).astype(float)
    noisy = [Measurement(("id",), counts, 1.0), Measurement(("ill",), [counts.sum(), 0.0], 1.0)]
    model = estimate(schema.domain, noisy, total=float(counts.sum()))
    bars = error_bars(model, noisy, replicates=20, seed=0)
    half = np.searchsorted(np.cumsum(counts), counts.sum() / 2) + 1
    tracemalloc.start()
    for question, expected in [
        ("id | ill = no", counts),
        ("id, ill | id >= 11 and ill = no", counts[10:]),
        ("median(id)", [half]),
        ("cdf(id)", np.cumsum(counts)),
        ("mean(id)", [counts @ np.arange(1, 6001) / counts.sum()]),
    ]:
        for each in (None, bars):
            columns = ask(model, schema, question, bars=each).columns
            answers = columns[question if question in columns else "count"]
            np.testing.assert_allclose(answers, np.resize(expected, len(answers)), rtol=1e-6)
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()
