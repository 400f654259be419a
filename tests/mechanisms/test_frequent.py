"""Codes told from noise: which they are, the small domain against the whole one, fewer queries."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from mechanisms.families.fitting import ProductRows
from mechanisms.families.frequent import Frequent
from mechanisms.families.product_mixture import Columns, ProductAnswers
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.cell_line import measured_cell, selector
from mechanisms.privacy.curator import Curator
from mechanisms.queries.cells import Cell
from mechanisms.rounds.select_and_measure import CellRounds
from mechanisms.workload import Workload
from pgmkit import Dataset, Domain, InvalidInput, Measurement

DOMAIN = Domain({"a": 5, "b": 2, "c": 4})
FIRST = [
    Measurement(("a",), [50.0, -1.0, 2.9, 40.0, 7.0], 1.5),
    Measurement(("b",), [60.0, 2.0], 1.5),
    Measurement(("c",), [1.0, -2.0, 90.0, 1.0], 1.5),
]


def rows_of(domain: Domain, count: int = 6) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.hstack([rng.dirichlet(np.ones(size), count) for size in domain.shape()])


def test_codes_within_two_deviations_of_none_become_one() -> None:
    frequent = Frequent(DOMAIN, FIRST, 100.0)
    assert {name: codes.tolist() for name, codes in frequent.codes.items()} == {
        "a": [0, 3, 4], "b": [0, 1], "c": [2]
    }  # fmt: skip
    assert frequent.domain.sizes == {"a": 4, "b": 2, "c": 2}  # one rare code of b stays as it is
    assert Frequent(DOMAIN, [], 100.0).domain == DOMAIN
    pairs = Workload(DOMAIN, [("a", "c"), ("b",)])  # 3 + 2 cells of frequent codes
    assert Frequent.of(pairs, FIRST, 100.0, 5).domain == frequent.domain
    assert Frequent.of(pairs, FIRST, 100.0, 6).domain == DOMAIN


def test_expanded_rows_answer_as_the_small_ones() -> None:
    """Tables over all codes, summed over each rest, are those of the small domain."""
    frequent = Frequent(DOMAIN, FIRST, 100.0)
    small = rows_of(frequent.domain)
    state = ProductRows(Columns(frequent.domain), torch.from_numpy(small), 100.0, frequent=frequent)
    cliques = [c for k in (1, 2, 3) for c in itertools.permutations(DOMAIN, k)]
    whole = state.marginals(cliques)
    expected = ProductAnswers(Columns(DOMAIN), cliques)(torch.from_numpy(state.whole_rows()))
    for clique, table in state.small.marginals(cliques).items():
        np.testing.assert_allclose(whole[clique], 100 * expected[clique].numpy(), rtol=1e-12)
        summed = whole[clique]
        for axis, name in enumerate(clique):
            codes = frequent.codes[name]
            parts = [summed.take(codes, axis)]
            if frequent.domain.sizes[name] > len(codes):
                rare = np.setdiff1d(np.arange(DOMAIN.sizes[name]), codes)
                parts.append(summed.take(rare, axis).sum(axis, keepdims=True))
            summed = np.concatenate(parts, axis)
        np.testing.assert_allclose(summed, table, rtol=1e-12)
    # A rest is shared out in proportion to the noisy counts, none below zero.
    a = state.marginals([("a",)])[("a",)]
    assert a[1] == 0 and a[2] > 0


def test_measurements_move_to_the_small_domain() -> None:
    frequent = Frequent(DOMAIN, FIRST, 100.0)
    cell = Cell(("c", "a"), int(np.ravel_multi_index((2, 4), (4, 5))))
    asked = Measurement(cell.clique, [3.5], 1.0, selector(DOMAIN, cell))
    one, moved = frequent.measured([FIRST[0], asked])
    np.testing.assert_allclose(one.values, [50, 40, 7, 3])  # what is left of 100
    assert measured_cell(moved) == (("c", "a"), int(np.ravel_multi_index((0, 2), (2, 4))))
    assert moved.values[0] == 3.5 and moved.stddev == 1.0


def test_a_rest_is_what_is_left_of_the_total_and_even_without_counts() -> None:
    first = [Measurement(("a",), [50.0, -1.0, -2.0, 40.0, 0.0], 1.5)]
    frequent = Frequent(DOMAIN, first, 89.0)
    (moved,) = frequent.measured(first)
    assert moved.values.tolist() == [50.0, 40.0, 0.0]  # two more than the total
    rows = frequent.expand(np.array([[0.5, 0.2, 0.3, *[0.5] * 2, *[0.25] * 4]]))
    np.testing.assert_allclose(rows[0, :5], [0.5, 0.1, 0.1, 0.2, 0.1])
    counts = {"a": np.array([9.0, 1.0, 0.0, 9.0, 3.0])}
    rows = frequent.expand(np.array([[0.5, 0.2, 0.3, *[0.5] * 2, *[0.25] * 4]]), counts)
    np.testing.assert_allclose(rows[0, :5], [0.5, 0.075, 0.0, 0.2, 0.225])


@pytest.mark.parametrize("sparse", [True, False])
def test_a_matrix_with_equal_entries_at_rare_codes_is_one_over_the_small_domain(
    sparse: bool,
) -> None:
    """Its answers on a small table are those on any table that is summed to it."""
    frequent, rng = Frequent(DOMAIN, FIRST, 100.0), np.random.default_rng(0)
    sides = [
        rng.normal(size=(2, frequent.domain.sizes[name]))[:, frequent.places(name)]
        for name in ("c", "a")
    ]
    matrices = [csr_array(side) for side in sides] if sparse else sides
    whole = Measurement(("c", "a"), np.arange(4.0), 1.5, matrices)
    moved = frequent.merged(whole)
    assert moved.clique == whole.clique and moved.stddev == 1.5
    assert moved.values.tolist() == whole.values.tolist()
    table = rng.random((4, 5))
    small = np.zeros(frequent.domain.shape(("c", "a")))
    np.add.at(small, np.ix_(frequent.places("c"), frequent.places("a")), table)
    np.testing.assert_allclose(moved.applied(small.ravel()), whole.applied(table.ravel()))
    assert frequent.merged(FIRST[1]) is FIRST[1]


def data() -> Dataset:
    rng = np.random.default_rng(1)
    codes = {name: rng.integers(0, size, 4000) for name, size in DOMAIN.sizes.items()}
    return Dataset(DOMAIN, codes)


def test_only_cells_of_the_codes_are_chosen_and_the_worst_of_them() -> None:
    """With nearly no noise the choice is the largest error among the cells of these codes."""
    truth, rng = data(), np.random.default_rng(2)
    cliques = [("a", "c"), ("b",)]
    whole = {c: truth.marginal(c) + rng.normal(0, 50, DOMAIN.shape(c)) for c in cliques}
    codes = {"a": np.array([1, 4]), "c": np.array([0, 2, 3])}
    parts = {("a", "c"): whole["a", "c"][np.ix_(codes["a"], codes["c"])], ("b",): whole[("b",)]}
    owner = Curator(truth, Budget(1e6, 1e-9), neighbours="replace-one", seed=0)
    errors = {
        Cell(c, i): abs(float((whole[c] - truth.marginal(c)).reshape(-1)[i]))
        for c in cliques
        for i in range(DOMAIN.size(c))
        if c == ("b",) or (i // 4 in codes["a"] and i % 4 in codes["c"])
    }
    ranked = sorted(errors, key=errors.__getitem__, reverse=True)
    picked = owner.choose_cells(cliques, parts, 1000.0, count=5, codes=codes)
    assert picked == ranked[:5]
    outside = Cell(("a", "c"), 0)  # of code 0 of a, which is left out
    again = owner.choose_cells(
        cliques, parts, 1000.0, count=1, codes=codes, exclude=[outside, *picked]
    )
    assert again == ranked[5:6]


@pytest.mark.parametrize("codes", [[1, 1], [2, 1], [-1, 0], [0, 5], [[0, 1]]])
def test_codes_that_are_none_are_refused_before_anything_is_charged(codes: list[int]) -> None:
    owner = Curator(data(), Budget(1.0, 1e-9), neighbours="replace-one", seed=0)
    with pytest.raises(InvalidInput, match="codes of 'a' must be distinct"):
        owner.choose_cells([("a",)], {("a",): np.zeros(2)}, 0.1, codes={"a": codes})
    assert owner.ledger.entries == ()


@pytest.mark.parametrize("anneal", [True, False])
def test_rounds_that_find_only_noise_double_the_next_budgets(anneal: bool) -> None:
    """A model without errors: with annealing, round i costs 2^i parts until the budget is spent."""
    truth = data()
    owner = Curator(truth, Budget(1.0, 1e-9), neighbours="replace-one", seed=0)
    workload = Workload(DOMAIN, [("a", "c")])
    steps = CellRounds(owner, workload, 16 if anneal else 3, 5, 0.5, anneal=anneal)
    whole, costs = owner.remaining, []
    while (picked := steps.select(truth)) is not None:
        assert steps.late == (owner.remaining <= whole / 2)
        steps.measure(picked)
        costs.append((whole - owner.remaining) / whole)
    rounds = np.diff([0.0, *costs]) * 16
    if anneal:
        # Medians of five noises are within one deviation in 85 of 100 cases; this seed's are. The
        # last round takes the 9 parts that 1 + 2 + 4 leave.
        np.testing.assert_allclose(rounds, [1, 2, 4, 9])
    else:
        np.testing.assert_allclose(rounds, np.full(3, 16 / 3))


def test_rounds_with_errors_are_equal() -> None:
    """A model that is far off everywhere: each round finds something, none is doubled."""

    class Wrong:
        def marginals(self, cliques: list[tuple[str, ...]]) -> dict[tuple[str, ...], np.ndarray]:
            return {c: np.zeros(DOMAIN.shape(c)) for c in cliques}

    owner = Curator(data(), Budget(1.0, 1e-9), neighbours="replace-one", seed=0)
    steps = CellRounds(owner, Workload(DOMAIN, [("a", "c")]), 10, 2, 0.5, anneal=True, repeat=True)
    whole, count = owner.remaining, 0
    while (picked := steps.select(Wrong())) is not None:
        steps.measure(picked)
        count += 1
        assert whole - owner.remaining == pytest.approx(whole * count / 10)
    assert count == 10
