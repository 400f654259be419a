"""Synthetic beside real records: brute force, SDMetrics, and what must hold by chance."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mechanisms.release.comparison import (
    k_marginal_score,
    matches,
    membership,
    propensity,
    regressions,
    similarity,
    strongest_line,
    subsample_equivalent,
)
from mechanisms.release.evaluation import held_out, some_cliques
from pgmkit import (
    Categorical,
    Dataset,
    Domain,
    Integer,
    InvalidInput,
    Measurement,
    Schema,
    estimate,
)

SIZES = {"a": 3, "b": 4, "c": 2, "d": 5}
DOMAIN = Domain(SIZES)


def drawn(seed: int, n: int, tilt: float = 0.0) -> Dataset:
    """Records whose columns depend on each other; `tilt` moves the first column."""
    rng = np.random.default_rng(seed)
    a = np.minimum(2, rng.poisson(1 + tilt, n))
    b = (a + rng.integers(0, 3, n)) % 4
    c = (rng.random(n) < 0.2 + 0.2 * a).astype(int)
    return Dataset(DOMAIN, {"a": a, "b": b, "c": c, "d": rng.integers(0, 5, n)})


@pytest.mark.parametrize("seed", range(4))
def test_similarity_is_that_of_sdmetrics(seed: int) -> None:
    pytest.importorskip("sdmetrics", reason="sdmetrics is not installed")
    import pandas as pd
    from sdmetrics.column_pairs import ContingencySimilarity
    from sdmetrics.single_column import TVComplement

    real, synthetic = drawn(seed, 300), drawn(seed + 100, 250, tilt=0.4)
    frames = [pd.DataFrame(dict(each.columns)).astype(str) for each in (real, synthetic)]
    cliques = [*some_cliques(DOMAIN, 1), *some_cliques(DOMAIN, 2)]
    for clique, found in similarity(real, synthetic, cliques).items():
        if len(clique) == 1:
            wanted = TVComplement.compute(*(frame[clique[0]] for frame in frames))
        else:
            wanted = ContingencySimilarity.compute(*(frame[list(clique)] for frame in frames))
        assert found == pytest.approx(wanted)


def test_the_k_marginal_score_is_sdnists_formula() -> None:
    real, synthetic = drawn(0, 300), drawn(1, 250, tilt=0.5)
    cliques = some_cliques(DOMAIN, 3)
    distances = []
    for clique in cliques:
        cells = itertools.product(*(range(SIZES[name]) for name in clique))
        shares = [
            np.stack([each.columns[name] for name in clique], axis=1) for each in (real, synthetic)
        ]
        distances.append(
            sum(
                abs(float((shares[0] == cell).all(1).mean()) - (shares[1] == cell).all(1).mean())
                for cell in cells
            )
        )
    wanted = 1000 * (2 - np.mean(distances)) / 2
    assert k_marginal_score(real, synthetic, cliques) == pytest.approx(wanted)
    assert k_marginal_score(real, real, cliques) == 1000


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_a_subsample_is_worth_about_itself(share: float) -> None:
    real, cliques = drawn(0, 20_000), some_cliques(DOMAIN, 2)
    part = Dataset(
        DOMAIN, {name: codes[: round(share * 20_000)] for name, codes in real.columns.items()}
    )
    found = subsample_equivalent(real, k_marginal_score(real, part, cliques), cliques)
    assert share / 5.1 <= found <= 3 * share
    assert subsample_equivalent(real, 1000.0, cliques) == 1.0
    assert subsample_equivalent(real, 0.0, cliques) == 0.01


def test_propensity_is_one_for_a_perfect_model_and_large_for_another() -> None:
    rng = np.random.default_rng(0)
    real = drawn(0, 3000)
    ratios = []
    for _ in range(40):
        rows = rng.integers(0, 3000, 2000)
        again = Dataset(DOMAIN, {name: codes[rows] for name, codes in real.columns.items()})
        ratios.append(propensity(real, again).ratio)
    # A mean of 40 chi squares of 10 degrees over 10: standard deviation sqrt(2 / 10 / 40) = 0.07.
    assert abs(np.mean(ratios) - 1) < 5 * 0.0707
    sampled = [propensity(real, drawn(s, 1000), most=1000, seed=s).ratio for s in range(40)]
    assert 0.5 < np.mean(sampled) < 2.2  # a fresh sample of the population, not of the records
    assert propensity(real, drawn(1, 3000, tilt=1.0)).ratio > 20


def test_matches_are_counted() -> None:
    real = drawn(0, 400)
    copied, by_chance = matches(real, real)
    order = np.random.default_rng(0).permutation(400)
    rows = list(zip(*(codes.tolist() for codes in real.columns.values()), strict=True))
    known = {rows[i] for i in order[:200]}
    assert copied == pytest.approx(np.mean([row in known for row in rows]))
    assert by_chance == pytest.approx(np.mean([rows[i] in known for i in order[200:]]))
    wide = Domain({str(i): 10 for i in range(12)})
    rng = np.random.default_rng(1)
    unique = Dataset(wide, {name: rng.integers(0, 10, 500) for name in wide})
    assert matches(unique, unique) == (pytest.approx(0.5), 0.0)


def test_an_attack_on_what_was_copied_succeeds_and_on_what_was_not_fails() -> None:
    sizes = Domain({"a": 30, "b": 30})
    rng = np.random.default_rng(0)
    inside, outside = (
        Dataset(sizes, {name: rng.integers(0, 30, 1000) for name in sizes}) for _ in range(2)
    )
    table = inside.marginal(("a", "b")).astype(float)
    exact = estimate(sizes, [Measurement(("a", "b"), table, 0.01)], total=1000.0)
    found = membership(exact, inside, outside, [("a", "b")])
    assert found.low > 0.6 and found.low < found.auc < found.high
    flat = estimate(sizes, [Measurement(("a",), np.full(30, 1000 / 30), 1.0)], total=1000.0)
    guess = membership(flat, inside, outside, [("a", "b")])
    error = (guess.high - guess.low) / 2 / 1.96
    assert abs(guess.auc - 0.5) < 5 * error
    with pytest.raises(InvalidInput, match="not in the data"):
        membership(flat, inside, Dataset(sizes, {"a": [1], "b": [1]}), [("a", "b")])


def test_the_rank_statistic_is_the_share_of_pairs() -> None:
    from mechanisms.release.comparison import area_under_curve

    rng = np.random.default_rng(0)
    for _ in range(20):
        high, low = (rng.integers(0, 6, rng.integers(1, 40)).astype(float) for _ in range(2))
        pairs = (high[:, None] > low).mean() + (high[:, None] == low).mean() / 2
        assert area_under_curve(high, low) == pytest.approx(pairs)


def test_slopes_are_those_of_least_squares() -> None:
    schema = Schema(
        {
            "x": Integer(0, 9),
            "y": Integer(0, 39, bins=20),
            "z": Integer(0, 9),
            "g": Categorical(("p", "q"), missing=()),
        }
    )
    data = []
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        x, g = rng.integers(0, 10, 500), rng.integers(0, 2, 500)
        y = np.clip(x * (1 + g) // 2 + rng.integers(0, 4, 500), 0, 19)
        data.append(Dataset(schema.domain, {"x": x, "y": y, "z": rng.integers(0, 10, 500), "g": g}))
    assert strongest_line(data[0], schema, "y") == ("y", "x")
    lines = list(regressions(*data, schema, "y", "x", "g"))
    assert [group for group, *_ in lines] == ["p", "q"]
    middles = np.asarray(schema.columns["y"].midpoints)
    for code, (_, _, *slopes) in enumerate(lines):
        for each, slope in zip(data, slopes, strict=True):
            rows = each.columns["g"] == code
            wanted = np.polyfit(each.columns["x"][rows], middles[each.columns["y"][rows]], 1)[0]
            assert slope == pytest.approx(wanted)


def test_cliques_are_sampled_without_repetition_and_records_held_out() -> None:
    wide = Domain({str(i): 2 for i in range(300)})
    found = some_cliques(wide, 3, most=200)
    assert len(set(found)) == 200 == len(found)
    assert all(len(set(clique)) == 3 for clique in found)
    assert some_cliques(wide, 3, most=200) == found
    train, test = held_out(drawn(0, 1000), most=400)
    assert (len(train), len(test)) == (300, 100)
