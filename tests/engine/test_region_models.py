"""What a region model offers besides its tables: conditions, files, error bars."""

from __future__ import annotations

import itertools
import pickle
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from pgmkit import (
    Dataset,
    Domain,
    FactoredQuery,
    FromRecords,
    GraphicalModel,
    Measurement,
    Zeros,
    error_bars,
    estimate,
    queries,
)
from pgmkit.errors import Contradictory, InvalidInput, ModelTooLarge, TooSlow
from pgmkit.regions.beyond import expected_marginals
from pgmkit.regions.given import GivenRegions
from pgmkit.regions.model import RECORDS, RegionModel


def cycle(noise: float, seed: int, matrix: bool = False) -> tuple[Domain, list[Measurement]]:
    """Noisy tables of a random distribution over five attributes, of the edges of a cycle."""
    rng = np.random.default_rng(seed)
    domain = Domain({name: int(rng.integers(2, 5)) for name in "abcde"})
    joint = rng.dirichlet(np.full(domain.size(), 0.5)).reshape(domain.shape(tuple("abcde"))) * 1000
    measured = []
    for edge in ("ab", "bc", "cd", "de", "ea"):
        clique = tuple(edge)
        others = tuple("abcde".index(name) for name in "abcde" if name not in edge)
        table = joint.sum(axis=others)
        if edge == "ea":
            table = table.T
        factors = [np.tri(domain.sizes[name]) for name in clique] if matrix else None
        exact = factors[0] @ table @ factors[1].T if factors else table
        values = exact + rng.normal(0, noise, exact.shape)
        measured.append(Measurement(clique, values.reshape(-1), noise, factors))
    return domain, measured


@pytest.mark.parametrize("seed", range(4))
def test_files_are_read_bit_for_bit(seed: int, tmp_path: Path) -> None:
    domain, measured = cycle(10.0, seed, matrix=seed % 2 == 1)
    allowed = np.ones(domain.shape(("a", "c")), dtype=bool)
    allowed[0, 1:] = False
    zeros = [Zeros(("a", "c"), allowed)] if seed > 1 else []
    model = estimate(domain, measured, total=1000.0, inference="region", zeros=zeros)
    model.save(tmp_path / "model.pgm")
    again = RegionModel.load(tmp_path / "model.pgm")
    for each in fields(model):
        # A file holds no measurements: they are in the release, where there is one.
        if each.name not in ("tables", "zeros", "domain", "measurements"):
            assert getattr(again, each.name) == getattr(model, each.name), each.name
    assert list(again.domain.sizes.items()) == list(domain.sizes.items())
    assert list(again.tables) == list(model.tables)
    for clique, table in model.tables.items():
        assert again.tables[clique].tobytes() == table.tobytes()
    assert [z.clique for z in again.zeros] == [z.clique for z in zeros]
    for mine, other in zip(zeros, again.zeros, strict=True):
        np.testing.assert_array_equal(mine.allowed, other.allowed)
    drawn, same = (each.sample(50, rng=1).columns for each in (model, again))
    for name in domain:
        np.testing.assert_array_equal(drawn[name], same[name])


def test_other_files_are_refused(tmp_path: Path) -> None:
    domain, measured = cycle(10.0, 0)
    region, exact = tmp_path / "region.pgm", tmp_path / "exact.pgm"
    model = estimate(domain, measured, total=1000.0, inference="region")
    model.save(region)
    estimate(domain, measured, total=1000.0).save(exact)
    with pytest.raises(InvalidInput, match="not a file of a region model"):
        RegionModel.load(exact)
    with pytest.raises(InvalidInput, match="RegionModel"):
        GraphicalModel.load(region)
    content = region.read_bytes()
    for end in range(0, len(content), max(1, len(content) // 25)):
        (tmp_path / "cut.pgm").write_bytes(content[:end])
        with pytest.raises(InvalidInput):
            RegionModel.load(tmp_path / "cut.pgm")
    with pytest.raises(InvalidInput):
        RegionModel.load(region, max_bytes=1000)


@pytest.mark.parametrize("seed", range(3))
def test_conditions_are_those_of_tables_inside_and_of_records_outside(seed: int) -> None:
    domain, measured = cycle(3.0, seed)
    model = estimate(domain, measured, total=1000.0, inference="region")
    some = [0, domain.sizes["b"] - 1]
    given = model.given({"b": some})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = np.isin(np.arange(domain.sizes["b"]), some)
        inside = model.marginal(("a", "b")) * kept
        np.testing.assert_allclose(given.marginal(("a", "b")), inside, atol=1e-9)
        np.testing.assert_allclose(given.marginal(("a",)), inside.sum(1), atol=1e-9)
        assert given.total == pytest.approx(inside.sum())
        both = FactoredQuery({"b": [[1.0] * len(kept)], "c": queries.prefix(domain.sizes["c"])})
        table = model.marginal(("c", "b"))[:, kept].sum(1)
        np.testing.assert_allclose(given.answer(both).ravel(), np.cumsum(table), atol=1e-9)
    records = model.joint.records.columns
    met = np.isin(records["b"], some)
    counted = np.zeros(domain.shape(("e", "c")))
    np.add.at(counted, (records["e"][met], records["c"][met]), 1000.0 / RECORDS)
    with pytest.warns(FromRecords):
        found = given.marginal(("e", "c"))
        whole = model.marginal(("b", "e", "c"))
    np.testing.assert_allclose(found, whole[kept].sum(0), atol=1e-9)
    # Eight standard deviations of a count of 20,000 records.
    assert (abs(found - counted) <= 8 * np.sqrt((found + 1) * 1000.0 / RECORDS)).all()
    drawn = given.sample(500, rng=0)
    assert len(drawn) == 500
    assert set(drawn.columns["b"]) <= set(some)


def test_conditioned_records_follow_the_exact_model() -> None:
    domain, measured = cycle(1.0, 5)
    relaxed = estimate(domain, measured, total=1000.0, inference="region").given({"a": 0})
    exact = estimate(domain, measured, total=1000.0).given({"a": 0})
    drawn = relaxed.sample(20_000, rng=0)
    for pair in itertools.combinations("bcde", 2):
        apart = np.abs(drawn.marginal(pair) / 20_000 - exact.marginal(pair) / exact.total)
        # Local agreement is not the exact model's own; what they share is that of the tables.
        assert apart.sum() / 2 < 0.06, pair


def test_conditions_that_no_record_meets_are_refused() -> None:
    domain = Domain({"a": 2, "b": 2})
    measured = [Measurement(("a", "b"), [[500.0, 0.0], [500.0, 0.0]], 0.1)]
    model = estimate(domain, measured, total=1000.0, inference="region")
    given = model.given({"b": 1})
    with pytest.raises(InvalidInput, match="given values of b"):
        given.sample(100_000, rng=0)
    with pytest.raises(
        InvalidInput, match="codes of 'b' must be a whole number from 0 to 1, got 2"
    ):
        model.given({"b": 2})


@dataclass
class Counting:
    """A model of one attribute that counts the records drawn of it; ``codes`` gives their codes."""

    codes: Callable[[int, int], np.ndarray]
    domain: Domain = field(default_factory=lambda: Domain({"a": 2}))
    drawn: int = 0

    def sample(self, n: int, *, rng: object = None) -> Dataset:
        self.drawn += n
        return Dataset(self.domain, {"a": self.codes(n, self.drawn)})


def test_a_condition_that_the_first_records_do_not_meet_is_met_by_later_ones() -> None:
    model = Counting(lambda n, drawn: ((np.arange(n) == 7) & (drawn > n)).astype(np.uint8))
    given = GivenRegions(cast(Any, model), {"a": np.array([False, True])})
    assert given.sample(3).columns["a"].tolist() == [1, 1, 1]


def test_more_records_are_drawn_for_more_that_are_asked_for() -> None:
    model = Counting(lambda n, _: (np.arange(n) % 2).astype(np.uint8))
    given = GivenRegions(cast(Any, model), {"a": np.array([False, True])})
    assert given.sample(1_200_000).columns["a"].sum() == 1_200_000
    assert model.drawn == 2_400_000


def test_no_more_records_are_drawn_than_the_refusal_says() -> None:
    model = Counting(lambda n, _: np.zeros(n, np.uint8))
    given = GivenRegions(cast(Any, model), {"a": np.array([False, True])})
    with pytest.raises(InvalidInput, match=r"only 0 of 2,097,152 records .* and 5 were asked for"):
        given.sample(5)
    assert model.drawn == 2_097_152
    for wrong in (0, -1, 2.5, True):
        with pytest.raises(InvalidInput, match="n must be a whole number of records from 1 to"):
            given.sample(cast(Any, wrong))


@pytest.mark.parametrize("matrix", [False, True])
def test_error_bars_are_those_of_the_exact_model_on_a_tree(matrix: bool) -> None:
    domain, measured = cycle(8.0, 2, matrix)
    tree = measured[:4]
    relaxed = estimate(domain, tree, total=1000.0, inference="region")
    exact = estimate(domain, tree, total=1000.0)
    bars = error_bars(relaxed, tree, replicates=150, seed=0)
    others = error_bars(exact, tree, replicates=150, seed=1)

    def cells(model: RegionModel | GraphicalModel) -> np.ndarray:
        return model.marginal(("b", "c"))

    mine, theirs = bars.statistic(cells), others.statistic(cells)
    # Two standard deviations of 150 draws each differ by a factor exp(N(0, 1 / 150)).
    noisy = theirs.stddev > 0.5
    assert noisy.any()
    assert (np.abs(np.log(mine.stddev[noisy] / theirs.stddev[noisy])) < 6 / np.sqrt(150)).all()
    closed, known = bars.marginal(("b", "c")), others.marginal(("b", "c"))
    assert closed.method == "closed form"
    np.testing.assert_allclose(closed.stddev, known.stddev, rtol=1e-6)
    assert (closed.low <= closed.estimate).all()
    assert (closed.estimate <= closed.high).all()


def test_error_bars_beyond_the_regions_come_from_replicates_records() -> None:
    domain, measured = cycle(8.0, 3)
    model = estimate(domain, measured, total=1000.0, inference="region")
    bars = error_bars(model, measured, replicates=20, seed=0)
    with pytest.warns(FromRecords):
        interval = bars.marginal(("a", "c"))
    assert interval.method == "bootstrap"
    with pytest.warns(FromRecords):
        drawn = np.stack([each.marginal(("a", "c")) for each in bars.replicates])
    spread = np.sqrt(((drawn - interval.estimate) ** 2).mean(0))
    np.testing.assert_allclose(interval.stddev, spread)
    assert spread.max() > 1
    quick = error_bars(model, measured, replicates=20, seed=0, max_seconds=1e-3)
    with pytest.raises(TooSlow, match="max_seconds"):
        quick.marginal(("a", "c"))
    with pytest.raises(InvalidInput, match="no measurement covers"):
        error_bars(model, measured[:3])


def test_answers_beyond_the_regions_have_the_regions_sums() -> None:
    """Nearest to the joint's own table: their ratio is a product of one factor for each known
    sum.
    """
    domain, measured = cycle(8.0, 3)
    model = estimate(domain, measured, total=1000.0, inference="region")
    with pytest.warns(FromRecords):
        pair, triple = model.marginals([("a", "c"), ("c", "a", "b")]).values()
        answered = model.answer(FactoredQuery.marginal(domain, ("a", "c")))
    np.testing.assert_allclose(pair.sum(1), model.marginal(["a"]), rtol=1e-9)
    np.testing.assert_allclose(pair.sum(0), model.marginal(["c"]), rtol=1e-9)
    np.testing.assert_allclose(triple.sum(0), model.marginal(["a", "b"]), rtol=1e-9)
    np.testing.assert_allclose(triple.sum(1).T, model.marginal(["b", "c"]), rtol=1e-9)
    np.testing.assert_allclose(answered, pair)
    joint = expected_marginals(model.joint, [("a", "c"), ("c", "a", "b")])
    ratio = np.log(pair / joint["a", "c"])
    apart = ratio - ratio.mean(0) - ratio.mean(1, keepdims=True) + ratio.mean()
    assert np.abs(apart).max() <= 1e-9 < np.abs(ratio - ratio.mean()).max()
    ratio = np.log(triple / joint["c", "a", "b"])  # nothing binds a and c at one value of b
    apart = ratio - ratio.mean(0) - ratio.mean(1, keepdims=True) + ratio.mean((0, 1))
    assert np.abs(apart).max() <= 1e-9


@pytest.mark.filterwarnings("ignore::pgmkit.FromRecords")
def test_tables_without_room_in_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgmkit.regions.model.RECORDS", 100)
    domain = Domain({f"x{i}": 2 for i in range(50)})
    pair = Measurement(("x0", "x1"), [[30.0, 20.0], [20.0, 30.0]], 1.0)
    model = estimate(domain, [pair], total=100, inference="region")
    for each in (model, model.given({"x2": 0})):
        with pytest.raises(ModelTooLarge, match="over .*; ask for fewer attributes"):
            each.marginal(domain)


@pytest.mark.filterwarnings("ignore:overflow")
def test_answers_that_float64_cannot_hold_are_refused() -> None:
    domain, measured = cycle(8.0, 3)
    model = estimate(domain, measured, total=1000.0, inference="region")
    large = {name: np.full((1, domain.sizes[name]), 1e200) for name in "ab"}
    for each in (model, model.given({"c": 0})):
        for _ in range(2):  # the first answer of a kind is computed twice
            with pytest.raises(InvalidInput, match="answers that float64 can hold"):
                each.answer(FactoredQuery(large))


@pytest.mark.parametrize("kind", ["cells", "prefix", "mixed"])
def test_variances_are_those_of_least_squares(kind: str) -> None:
    rng = np.random.default_rng(1)
    domain = Domain({"a": 3, "b": 4})
    matrices = {
        "cells": [np.eye(12)],
        "prefix": [np.kron(np.tri(3), np.tri(4))],
        "mixed": [rng.normal(size=(15, 12)), np.kron(np.tri(3), np.ones((1, 4)))],
    }[kind]
    noise = [2.0, 5.0]
    measured = [
        Measurement(("a", "b"), q @ np.full(12, 50.0) + rng.normal(0, s, len(q)), s, q)
        for q, s in zip(matrices, noise, strict=False)
    ]
    model = estimate(domain, measured, total=600.0, inference="region")
    gram = sum(q.T @ q / s**2 for q, s in zip(matrices, noise, strict=False))
    wanted = float(np.trace(np.linalg.inv(gram)) / 12)
    assert model.variances["a", "b"] == pytest.approx(wanted, rel=1e-3)


def test_what_nobody_measured_is_as_near_as_independence_where_that_is_true() -> None:
    """Independent columns: a product of one-way tables is the best that anybody can say of a pair.

    Counted from the records, the same pairs are 1.2 times as far away.
    """
    rng, names = np.random.default_rng(4), [f"x{i}" for i in range(24)]
    domain = Domain(dict.fromkeys(names, 3))
    columns = {name: rng.choice(3, size=50_000, p=rng.dirichlet(np.ones(3))) for name in names}
    data = Dataset(domain, columns)
    cliques = [tuple(rng.permutation(names)[:3]) for _ in range(30)]
    cliques += [tuple(names[i : i + 3]) for i in range(0, 24, 3)]
    measured = [
        Measurement(c, table + rng.normal(0, 20.0, table.shape), 20.0)
        for c, table in data.marginals(cliques).items()
    ]
    model = estimate(domain, measured, total=50_000.0, inference="region")
    asked = [
        p for p in itertools.combinations(names, 2) if not any(set(p) <= set(c) for c in cliques)
    ]
    ones = model.marginals([(name,) for name in names])
    truth = data.marginals(asked)
    with pytest.warns(FromRecords):
        found = model.marginals(asked)

    def apart(tables: Mapping[tuple[str, ...], np.ndarray]) -> float:
        return float(np.mean([abs(tables[p] - truth[p]).sum() / 100_000 for p in asked]))

    product = {(a, b): np.outer(ones[(a,)], ones[(b,)]) / 50_000 for a, b in asked}
    records = model.joint.records.marginals(asked)
    counted = {p: records[p] * 50_000 / RECORDS for p in asked}
    assert apart(found) <= 1.002 * apart(product)
    assert apart(counted) >= 1.1 * apart(found)  # so that the test can fail


def test_measurements_of_one_clique_that_contradict_each_other_are_told() -> None:
    """Both models fit the average of the two tables of a; the test of fit has all that was given,
    also the measured total.
    """
    given = [
        Measurement((), [1000.0], 5.0),
        Measurement(("a",), [600.0, 400.0], 1.0),
        Measurement(("a",), [300.0, 700.0], 2.0),
        Measurement(("a", "b"), [[250.0, 250.0], [250.0, 250.0]], 100.0),
    ]
    found: list[Any] = []
    for inference in ("exact", "region"):
        with pytest.warns(Contradictory):
            found.append(
                estimate(Domain({"a": 2, "b": 2}), given, total=1000.0, inference=inference)
            )
    exact, region = (model.fit for model in found)
    assert region.gross and region.degrees == exact.degrees
    assert region.statistic == pytest.approx(exact.statistic)


@pytest.mark.filterwarnings("ignore::pgmkit.FromRecords")
def test_a_model_that_has_answered_from_its_records_is_pickled() -> None:
    domain, measured = cycle(20.0, 0)
    model = estimate(domain, measured, total=1000, inference="region")
    expected = model.marginal(["a", "c"])
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.marginal(["a", "c"]), expected)
