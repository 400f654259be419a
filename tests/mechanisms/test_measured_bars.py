"""Error bars of models that are not re-estimated: coverage against the records, and the tables."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from chance import assert_mean_between
from scipy import optimize, stats

from mechanisms import synthesize
from mechanisms.families.tables import TablesModel
from mechanisms.mixture import Mixture, mixture
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.release.tabular import TableRelease
from mechanisms.workload import k_way
from pgmkit import (
    Categorical,
    Dataset,
    Domain,
    FactoredQuery,
    Integer,
    Kronecker,
    Measurement,
    Schema,
    ask,
    estimate,
)
from pgmkit.errors import InvalidInput, NotMeasured
from pgmkit.tables.averages import none_negative
from pgmkit.uncertainty.measured import MeasuredBars

DOMAIN = Domain({"a": 3, "b": 4, "c": 2, "d": 5})
SETTINGS = Mixture(rows=40, steps=20, level=2.0)


def records(rows: int, seed: int) -> Dataset:
    """Columns that depend on each other, some of their values rare."""
    rng = np.random.default_rng(seed)
    columns: dict[str, np.ndarray] = {}
    before = np.zeros(rows, dtype=np.int64)
    for name, size in DOMAIN.sizes.items():
        own = rng.choice(size, rows, p=rng.dirichlet(np.full(size, 0.7)))
        columns[name] = before = np.where(rng.random(rows) < 0.4, before % size, own)
    return Dataset(DOMAIN, columns)


def queries(rng: np.random.Generator) -> list[FactoredQuery]:
    """Cells, ranges and random sums of pairs and single columns."""
    found = [FactoredQuery.marginal(DOMAIN, pair) for pair in itertools.combinations(DOMAIN, 2)]
    found += [FactoredQuery({name: np.tri(DOMAIN.sizes[name])}) for name in DOMAIN]
    for first, second in itertools.combinations(DOMAIN, 2):
        sums = {n: (rng.random((1, DOMAIN.sizes[n])) < 0.5) * 1.0 for n in (first, second)}
        found.append(FactoredQuery(sums))
    return found


@pytest.mark.parametrize("pure", [False, True])
def test_intervals_cover_the_counts_of_the_records(pure: bool) -> None:
    """Of 30 releases the share of intervals that hold the count is at least the level, but for
    Laplace noise, of which single cells are covered with 93.7%; answers of one release are not
    independent, so that shares of whole releases are compared with the level.
    """
    shares = []
    for seed in range(30):
        data = records(400, seed)
        budget = Budget(4.0, 0.0) if pure else Budget(2.0, 1e-6)
        curator = Curator(data, budget, neighbours="add/remove", seed=seed)
        release = mixture(curator, k_way(DOMAIN, 2), SETTINGS)
        bars = MeasuredBars(release.model, release.measurements)
        inside = []
        for query in queries(np.random.default_rng(seed)):
            truth = exact_answer(query, data)
            interval = bars.answer(query)
            assert (interval.low <= interval.estimate).all()
            assert (interval.estimate <= interval.high).all()
            inside.append(((interval.low <= truth) & (truth <= interval.high)).ravel())
        shares.append(np.concatenate(inside).mean())
    assert_mean_between(shares, 0.937 if pure else 0.95, 1.0)


def exact_answer(query: FactoredQuery, data: Dataset) -> np.ndarray:
    """The sums over the records, one by one."""
    rows = np.ones((len(data), 1))
    for name, factor in query.factors.items():
        reached = np.asarray(factor)[:, data.columns[name]].T
        rows = (rows[:, :, None] * reached[:, None, :]).reshape(len(data), -1)
    return rows.sum(axis=0).reshape(query.answer_shape)


def test_what_no_table_holds_has_none_and_the_message_says_so() -> None:
    curator = Curator(records(400, 0), Budget(2.0, 1e-6), neighbours="add/remove", seed=0)
    release = mixture(curator, k_way(DOMAIN, 2), SETTINGS)
    bars = MeasuredBars(release.model, release.measurements)
    assert bars.marginal(("d", "a")).estimate.shape == (5, 3)
    with pytest.raises(NotMeasured, match="no error bars for a question of a, b, c.*'aim'"):
        bars.marginal(("a", "b", "c"))
    with pytest.raises(NotMeasured, match="ratios and other statistics"):
        bars.statistic(lambda model: 1.0)
    with pytest.raises(InvalidInput, match="level must be"):
        bars.marginal(("a",), level=95)


def test_questions_to_a_release_of_a_mixture_have_error_bars_where_tables_do() -> None:
    data = records(3000, 1)
    schema = Schema.from_dict(DOMAIN.sizes)
    release = synthesize(
        data,
        schema,
        epsilon=2.0,
        delta=1e-6,
        mechanism="mixture",
        settings={"rows": 40, "steps": 40, "level": 2.0},
        seed=0,
    )
    assert isinstance(release, TableRelease)
    reply = release.ask("a, b")
    assert {"stderr", "low", "high"} <= set(reply.columns)
    assert "no error bars" not in str(reply)
    beyond = release.ask("a | b = 1, c = 0")
    assert "stderr" not in beyond.columns and "no table that was measured" in str(beyond)
    with pytest.raises(NotMeasured, match="mechanism='aim'"):
        release.ask("a | b = 1, c = 0", error_bars=True)


def test_single_columns_have_error_bars_beside_merged_pairs_alone() -> None:
    """If all measured pairs are merged, none determines its table. The single columns still have
    the error bars of generalised least squares, here over all cells and without these pairs.
    """
    rng = np.random.default_rng(0)
    sizes = {name: DOMAIN.sizes[name] for name in "abc"}
    domain, cells = Domain(sizes), np.indices(tuple(sizes.values())).reshape(3, -1)
    rows = [np.eye(size)[:, cells[i]] for i, size in enumerate(sizes.values())]
    noisy = [
        Measurement((name,), each @ np.full(24, 50.0) + rng.normal(0, sd, len(each)), sd)
        for sd in (3.0, 4.0)
        for name, each in zip(sizes, rows, strict=True)
    ]
    merged = [
        Measurement(pair, rng.normal(0, 2.0, 1), 2.0, matrix=Kronecker([[first], [second]]))
        for pair, first, second in (
            (("a", "b"), [1.0, 1.0, -2.0], [1.0, 1.0, -1.0, -1.0]),
            (("b", "c"), [1.0, 1.0, -1.0, -1.0], [1.0, -1.0]),
        )
    ]
    weighted = np.concatenate([each / sd for sd in (3.0, 4.0) for each in rows])
    covariance = np.linalg.pinv(weighted.T @ weighted)
    bars = MeasuredBars(estimate(domain, noisy), [*noisy, *merged])
    for name, each in zip(sizes, rows, strict=True):
        exact = np.sqrt(np.diag(each @ covariance @ each.T))
        np.testing.assert_allclose(bars.marginal((name,)).stddev, exact, rtol=1e-9)
    with pytest.raises(NotMeasured):
        bars.marginal(("a", "b"))


def test_single_queries_are_no_tables() -> None:
    """A mechanism that measures cells tells nothing of whole tables."""
    data = records(400, 2)
    release = synthesize(
        data,
        Schema.from_dict(DOMAIN.sizes),
        epsilon=2.0,
        delta=1e-6,
        mechanism="rap-softmax",
        settings={"rows": 40},
        seed=0,
    )
    bars = release.bars()
    with pytest.raises(NotMeasured):
        bars.answer(FactoredQuery.marginal(DOMAIN, ("a", "b", "c")))


GROUPED = Schema({"year": Integer(0, 53), "g": Categorical(("a", "b"))})


def test_intervals_of_means_of_small_groups_hold_the_mean() -> None:
    """Groups of which noise hides most, beside 36 years that no record has. In released tables
    without negative counts these years have more records, and the mean moves towards them; its
    interval is still that of the noisy tables. Of 500 releases at least 95% hold the mean, within
    what chance allows once in a million times.
    """
    counts = np.zeros((54, 2))
    counts[35:53] = [40.0, 8.0]
    mean = (np.arange(54) @ counts / counts.sum(axis=0))[0]
    inside = []
    for seed in range(500):
        noisy = counts + np.random.default_rng(seed).normal(0.0, 6.0, counts.shape)
        model = TablesModel(GROUPED.domain, {("year", "g"): np.maximum(noisy, 0.0)}, counts.sum())
        bars = MeasuredBars(model, [Measurement(("year", "g"), noisy, 6.0)])
        found = ask(model, GROUPED, "mean(year) | g", bars=bars).columns
        assert (found["low"] <= found["mean(year)"]).all()
        assert (found["mean(year)"] <= found["high"]).all()
        inside.append((found["low"] <= mean) & (mean <= found["high"]))
    hits = np.sum(inside, axis=0)
    assert (hits >= stats.binom.ppf(5e-7, 500, 0.95)).all(), hits


def test_means_and_quantiles_of_tables_with_negative_counts_are_not_moved_by_empty_codes() -> None:
    """The mean is that of all counts, also the negative ones. The quantiles are those of the
    nearest cumulative counts that never fall. Over 300 draws of the noise, they are those of the
    table without noise on average, up to a tenth of a code's width for quantiles.
    """
    counts = np.zeros((54, 2))
    counts[35:53] = [[800.0, 400.0]]
    own = np.arange(54) @ counts / counts.sum(axis=0)
    means, medians = [], []
    for seed in range(300):
        noisy = counts + np.random.default_rng(seed).normal(0.0, 25.0, counts.shape)
        model = TablesModel(GROUPED.domain, {("year", "g"): noisy}, counts.sum())
        found = ask(model, GROUPED, "mean(year) | g").columns
        np.testing.assert_allclose(
            found["mean(year)"], np.arange(54) @ noisy / noisy.sum(axis=0), rtol=1e-9
        )
        np.testing.assert_allclose(found["count"], noisy.sum(axis=0), rtol=1e-9)
        means.append(found["mean(year)"][1])
        medians.append(ask(model, GROUPED, "quantile(year, 0.25) | g").columns)
    assert_mean_between(means, own[1] - 0.01, own[1] + 0.01)
    quarters = [each["quantile(year, 0.25)"] for each in medians]
    assert_mean_between([each[0] for each in quarters], 38.5, 39.5)
    assert_mean_between([each[1] for each in quarters], 38.5, 39.5)


def test_the_counts_behind_a_quantile_are_the_nearest_that_never_fall() -> None:
    """Against the least squares of cumulative counts, solved by a general solver."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        noisy = rng.normal(5.0, 12.0, 9)
        total = max(noisy.sum(), 0.0)
        goal = np.cumsum(noisy)[:-1]
        solved = optimize.lsq_linear(np.tri(8), goal, (0.0, np.inf), tol=1e-12).x
        reached = np.minimum(np.cumsum(solved), total)
        np.testing.assert_allclose(
            np.cumsum(none_negative(noisy)), [*reached, total], atol=1e-5 * (1 + total)
        )


def test_a_known_total_counts_where_the_tables_do_not_imply_one() -> None:
    """Two of three cells are measured; the third, the rest of the total, has the noise of both."""
    domain = Domain({"a": 3, "b": 2})
    y = [Measurement(("a",), [400.0, 250.0], 10.0, np.eye(3)[:2])]
    bars = MeasuredBars(estimate(domain, y, total=1000), y)
    found = bars.marginal(["a"])
    np.testing.assert_allclose(found.stddev, 10 * np.sqrt([1, 1, 2]))
    np.testing.assert_allclose((found.low + found.high) / 2, [400, 250, 350], atol=1e-3)
