"""Questions in words, against sums over the joint table."""

import numpy as np
import pytest
from chance import assert_stddev

from pgmkit import InvalidInput, Measurement, estimate
from pgmkit.tables.questions import ask, parse
from pgmkit.tables.schema import Boolean, Categorical, Integer, Numeric, Schema
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


def test_cdf_mean_and_count() -> None:
    cdf = ask(MODEL, SCHEMA, "cdf(age) | sex = M").columns
    np.testing.assert_allclose(cdf["count"], np.cumsum(JOINT[:, 1].sum(axis=(1, 2, 3))))
    assert cdf["share"][-1] == pytest.approx(1.0)
    mean = ask(MODEL, SCHEMA, "sex, mean(pay) | age >= 30").columns
    counts = JOINT[3:, :, :4].sum(axis=(0, 3, 4))
    np.testing.assert_allclose(mean["mean(pay)"], counts @ [5, 15, 25, 35] / counts.sum(1))
    np.testing.assert_allclose(mean["count"], counts.sum(1))
    one = ask(MODEL, SCHEMA, 'count | "native country" in {here, "there, far"}, age > 9').columns
    np.testing.assert_allclose(one["count"], [JOINT[1:, :, :, :2].sum()])
    whole = ask(MODEL, SCHEMA, "count").columns
    np.testing.assert_allclose(whole["count"], [1000.0])


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
    assert parse(SCHEMA, 'sex | pay = "(missing)"').allowed["pay"].tolist()[-1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("wages", "no column 'wages'"),
        ("sex |", "no conditions"),
        ("sex | age ~ 3", "not understood"),
        ("sex | age in 3", "low..high"),
        ("sex | age in 0..14", "cuts the bin"),
        ("sex | sex = X", "no value 'X'"),
        ("sex | sex < F", "no order"),
        ("sex, sex", "twice"),
        ("mean(sex)", "column of numbers"),
        ("cdf(age), mean(pay)", "only one"),
        ("sex | age < 10, age >= 10", "leaves no value"),
    ],
)
def test_what_is_not_understood_is_said(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ask(MODEL, SCHEMA, text)
