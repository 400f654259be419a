"""Records of region models with structural zeros, against all records of small domains."""

from __future__ import annotations

import itertools
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pgmkit import Domain, FromRecords, Measurement, RegionModel, Zeros, estimate
from pgmkit.errors import InvalidInput
from pgmkit.regions import chain, possible
from pgmkit.regions.conditional import Conditional
from pgmkit.regions.model import RECORDS

Array = NDArray[np.float64]
TOTAL = 1000.0

Drawn = tuple[Domain, list[tuple[str, ...]], list[Zeros]]


@st.composite
def networks(draw: st.DrawFn) -> Drawn:
    """Up to five attributes, cliques, and zeros over sets that need not be among them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    names = "abcde"[: draw(st.integers(2, 5))]
    domain = Domain({name: draw(st.integers(1, 4)) for name in names})
    some = st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True).map(tuple)
    cliques = draw(st.lists(some, min_size=1, max_size=5, unique_by=frozenset))
    left = draw(st.sampled_from([0.4, 0.6, 0.9]))
    zeros = []
    for clique in draw(st.lists(some, min_size=1, max_size=4)):
        table = rng.random(domain.shape(clique)) < left
        table.flat[rng.integers(table.size)] = True
        zeros.append(Zeros(clique, table))
    return domain, cliques, zeros


def written_out(domain: Domain, zeros: list[Zeros]) -> NDArray[np.bool_]:
    """Which records of all are possible, one after the other."""
    names = list(domain)
    found = np.zeros(domain.shape(tuple(names)), dtype=np.bool_)
    for cell in itertools.product(*map(range, found.shape)):
        value = dict(zip(names, cell, strict=True))
        found[cell] = all(z.allowed[tuple(value[name] for name in z.clique)] for z in zeros)
    return found


def noisy_tables(
    domain: Domain, cliques: list[tuple[str, ...]], allowed: NDArray[np.bool_], noise: float
) -> list[Measurement]:
    """Of a random distribution over the possible records, or over all where there are none."""
    rng = np.random.default_rng(7)
    joint = rng.dirichlet(np.full(allowed.size, 0.5)).reshape(allowed.shape)
    joint = joint * allowed if allowed.any() else joint
    joint *= TOTAL / joint.sum()
    names, found = list(domain), []
    for clique in cliques:
        table = joint.sum(axis=tuple(i for i, name in enumerate(names) if name not in clique))
        kept = [name for name in names if name in clique]
        table = table.transpose([kept.index(name) for name in clique])
        found.append(Measurement(clique, table + rng.normal(0, noise, table.shape), noise))
    return found


def impossible_records(model: RegionModel, allowed: NDArray[np.bool_], n: int) -> int:
    columns = model.sample(n, rng=1).columns
    return int((~allowed[tuple(columns[name] for name in model.domain)]).sum())


def assert_possible_records(drawn: Drawn) -> None:
    domain, cliques, zeros = drawn
    allowed = written_out(domain, zeros)
    measured = noisy_tables(domain, cliques, allowed, 5.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FromRecords)
        if not allowed.any():
            with pytest.raises(InvalidInput, match="no possible record|zeros left only"):
                model = estimate(domain, measured, total=TOTAL, zeros=zeros, inference="region")
                model.sample(1)
            return
        model = estimate(domain, measured, total=TOTAL, zeros=zeros, inference="region")
        assert impossible_records(model, allowed, 3000) == 0
        assert impossible_records(model, allowed, 1) == 0
        whole = model.marginal(tuple(domain))
        assert (whole[~allowed] == 0).all()
        assert whole.sum() == pytest.approx(TOTAL)
        assert set(model.tables) == {domain.ordered(clique) for clique in cliques}
        fitted = model.joint.records
        for clique, table in model.tables.items():
            apart = np.abs(fitted.marginal(clique) / RECORDS - table / TOTAL).sum() / 2
            assert apart <= model.agreement.worst + 1e-12
            for each in zeros:
                if set(each.clique) <= set(clique):
                    assert (model.marginal(each.clique)[~each.allowed] == 0).all()


@given(networks())
def test_no_record_is_one_that_zeros_rule_out(drawn: Drawn) -> None:
    assert_possible_records(drawn)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(networks())
def test_nor_where_records_have_to_be_drawn_again(drawn: Drawn) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(possible, "TABLE_CELLS", 1)
        assert_possible_records(drawn)


@settings(max_examples=60, deadline=None)
@given(networks(), st.randoms(use_true_random=False))
def test_values_left_are_those_of_some_possible_record(drawn: Drawn, shuffled: object) -> None:
    domain, _, zeros = drawn
    allowed = written_out(domain, zeros)
    order = list(domain)
    shuffled.shuffle(order)  # type: ignore[attr-defined]
    if not allowed.any():
        with pytest.raises(InvalidInput, match="no possible record"):
            possible.possible_values(domain, order, zeros)
        return
    found = possible.possible_values(domain, order, zeros)
    reached: set[tuple[int, ...]] = {()}
    for name in order:
        reached = {
            (*cell, value)
            for cell in reached
            for value in range(domain.sizes[name])
            if all(_follows(domain, order, each, cell, value) for each in found[name])
        }
    axes = [list(domain).index(name) for name in order]
    assert reached == set(map(tuple, np.argwhere(allowed.transpose(axes)).tolist()))


def _follows(
    domain: Domain, order: list[str], each: possible.Possible, cell: tuple[int, ...], value: int
) -> bool:
    row = 0
    for name in each.given:
        row = row * domain.sizes[name] + cell[order.index(name)]
    return bool(each.table[row, value])


def spanning() -> tuple[Domain, list[Measurement], list[Zeros]]:
    """A cycle of five attributes; zeros between attributes that no table holds together."""
    rng = np.random.default_rng(3)
    domain = Domain(dict.fromkeys("abcde", 4))
    far = ~np.eye(4, dtype=bool)
    zeros = [Zeros(("a", "c"), far), Zeros(("b", "e"), np.tri(4, dtype=bool))]
    joint = rng.dirichlet(np.full(4**5, 0.3)).reshape((4,) * 5) * written_out(domain, zeros)
    joint *= TOTAL / joint.sum()
    measured = []
    for edge in ("ab", "bc", "cd", "de", "ea"):
        others = tuple("abcde".index(name) for name in "abcde" if name not in edge)
        table = joint.sum(axis=others)
        table = table.T if edge == "ea" else table
        measured.append(Measurement(tuple(edge), table + rng.normal(0, 1, (4, 4)), 1.0))
    return domain, measured, zeros


def test_zeros_between_two_tables_hold_and_the_records_stay_near_the_tables() -> None:
    domain, measured, zeros = spanning()
    model = estimate(domain, measured, total=TOTAL, zeros=zeros, inference="region")
    assert model.region(("a", "c")) is None
    assert model.agreement.worst < 0.02
    drawn = model.sample(40_000, rng=0)
    for each in zeros:
        assert (drawn.marginal(each.clique)[~each.allowed] == 0).all()
        with pytest.warns(FromRecords):
            assert (model.marginal(each.clique)[~each.allowed] == 0).all()
    exact = estimate(domain, measured, total=TOTAL, zeros=zeros)
    for pair in itertools.combinations("abcde", 2):
        apart = np.abs(drawn.marginal(pair) / 40_000 - exact.marginal(pair) / TOTAL).sum() / 2
        assert apart < 0.06, pair
    conditioned = model.given({"a": 2}).sample(2000, rng=0)
    assert (conditioned.columns["a"] == 2).all()
    assert (conditioned.columns["c"] != 2).all()


def test_attributes_of_zeros_alone_take_what_is_left() -> None:
    domain = Domain({"a": 2, "b": 3, "c": 2})
    measured = [Measurement(("a",), [30.0, 70.0], 1.0)]
    zeros = [Zeros(("a", "b"), [[True, False, False], [False, True, True]])]
    model = estimate(domain, measured, total=100.0, zeros=zeros, inference="region")
    with pytest.warns(FromRecords):
        found = model.marginal(("a", "b"))
    np.testing.assert_allclose(found, [[30, 0, 0], [0, 35, 35]], atol=0.5)
    with pytest.warns(FromRecords):
        np.testing.assert_allclose(model.marginal(("c",)), [50, 50], atol=0.5)


def test_the_refusal_counts_all_records_that_were_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "MOST_ROUNDS", 3)
    drawn = []

    def nothing(n: int) -> chain.Columns:
        drawn.append(n)
        return {"a": np.zeros(0, dtype=np.int64)}

    with pytest.raises(InvalidInput) as caught:
        chain.enough(nothing, 10)
    assert f"zeros left only 0 of {sum(drawn):,} records" in str(caught.value)


def test_zeros_that_leave_hardly_any_record_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten attributes that differ pairwise: of ten values they are permutations, of nine nothing."""
    domain = Domain({f"x{i}": 10 for i in range(10)})
    different = ~np.eye(10, dtype=bool)
    pairs = list(itertools.combinations(domain, 2))
    measured = [Measurement((name,), np.full(10, 100.0), 1.0) for name in domain]
    zeros = [Zeros(pair, different) for pair in pairs]
    model = estimate(domain, measured, total=TOTAL, zeros=zeros, inference="region")
    drawn = np.stack(list(model.sample(500, rng=0).columns.values())).T
    assert all(len(set(record)) == 10 for record in drawn.tolist())
    nine = Domain({f"x{i}": 9 for i in range(10)})
    few = [Measurement((name,), np.full(9, 100.0), 1.0) for name in nine]
    none = [Zeros(pair, ~np.eye(9, dtype=bool)) for pair in pairs]
    monkeypatch.setattr(possible, "TABLE_CELLS", 9**4)
    monkeypatch.setattr(chain, "MOST_ROUNDS", 3)
    model = estimate(nine, few, total=900.0, zeros=none, inference="region")
    with pytest.raises(InvalidInput, match="zeros left only 0 of"):
        model.sample(10, rng=0)


def test_a_draw_takes_the_probabilities_of_a_block_of_records_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The records are the same, however many a block has."""
    rng, size, count = np.random.default_rng(0), 200, 200_000
    conditional = Conditional(((),), rng.normal(size=(3, size)), np.zeros(1, dtype=np.int64))
    kinds = chain.Kinds(rng.integers(0, 3, (count, 1)), rng.random(count))
    tracemalloc.start()
    drawn = kinds.pick(conditional)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * size * count / 3
    monkeypatch.setattr(chain, "TABLE_CELLS", 1000 * size + 1)
    np.testing.assert_array_equal(kinds.pick(conditional), drawn)
