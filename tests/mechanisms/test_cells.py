"""Single queries behind the Curator: sensitivities, laws, prices, refusals."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from chance import assert_follows
from pricing import Priced
from seams import draw_from
from test_curator import DOMAIN, NOISES, curator, neighbour, random_data
from work import calls

from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import BudgetExceeded
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.privacy.noise import ExactNoise, Noise
from mechanisms.queries.cells import Cell
from pgmkit.errors import InvalidInput
from pgmkit.records.dataset import Dataset

PAIRS = list(itertools.combinations(DOMAIN, 2))


def guesses(value: float = 20.0) -> dict[tuple[str, ...], np.ndarray]:
    return {clique: np.full(DOMAIN.shape(clique), value) for clique in PAIRS}


class Watcher(Priced):
    """Priced draws that keep the scores; cells change by at most one."""

    def top(self, scores: np.ndarray, count: int, scale: float) -> list[int]:
        self.exact.append(scores)
        self.scale = scale
        return super().top(scores, count, scale)


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_scores_and_counts_change_by_at_most_one_and_do(relation: str) -> None:
    rng = np.random.default_rng(0)
    largest = 0.0
    for _ in range(40):
        data = random_data(rng)
        seen = []
        for one in (data, neighbour(data, relation, rng)):
            c = Curator(one, Budget(1.0), neighbours=relation)
            watcher = draw_from(c, Watcher(relation, pure=True))
            c.choose_cells(PAIRS, guesses(), 0.5)
            seen.append(watcher.exact[0])
        largest = max(largest, float(np.abs(seen[0] - seen[1]).max()))
        before, after = (
            np.concatenate([d.marginal(p).ravel() for p in PAIRS])
            for d in (data, neighbour(data, relation, rng))
        )
        assert np.abs(before - after).max() <= 1
    assert largest == 1


@pytest.mark.parametrize("noise", NOISES)
def test_top_k_is_the_exponential_mechanism_without_replacement(
    noise: Callable[[], Noise],
) -> None:
    drawer, scores = noise(), np.array([0.0, 1.0, 2.5, 3.0])
    weights = np.exp(scores / 1.5)
    draws = 6000
    counted = Counter(tuple(drawer.top(scores, 2, 1.5)) for _ in range(draws))
    pairs = list(itertools.permutations(range(4), 2))
    law = [weights[i] / weights.sum() * weights[j] / (weights.sum() - weights[i]) for i, j in pairs]
    observed = [counted[pair] for pair in pairs]
    assert_follows(observed, law)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("count", [1, 4])
def test_prices(delta: float, count: int) -> None:
    c = Curator(random_data(np.random.default_rng(0)), Budget(1.0, delta), neighbours="add/remove")
    watcher = draw_from(c, Watcher("add/remove", pure=delta == 0))
    cells = c.choose_cells(PAIRS, guesses(), c.remaining / 2, count=count)
    assert len(set(cells)) == count
    price = 2 * count / watcher.scale if delta == 0 else count / (2 * watcher.scale**2)
    assert c.ledger.entries[0].cost == pytest.approx(price, rel=1e-12)
    if delta > 0:
        import opendp.prelude as dp

        space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.linf_distance(T=float)
        zcdp = dp.zero_concentrated_divergence()
        theirs = dp.m.make_noisy_top_k(*space, zcdp, k=count, scale=watcher.scale)
        assert theirs.map(1.0) == pytest.approx(price, rel=1e-9)

    found = c.measure_cells(cells, c.remaining)
    assert c.remaining == 0
    share = c.ledger.entries[1].cost / count
    for m, cell in zip(found, cells, strict=True):
        assert m.clique == cell.clique and m.matrix.toarray().argmax() == cell.index
        expected = math.sqrt(2) / share if delta == 0 else 1 / math.sqrt(2 * share)
        assert m.stddev == pytest.approx(expected)


def test_with_much_budget_the_worst_cells_are_found_and_known() -> None:
    data = random_data(np.random.default_rng(3))
    c = Curator(data, Budget(1e6, 1e-6), neighbours="replace-one")
    errors = {
        Cell(p, i): abs(int(v) - 20.0) for p in PAIRS for i, v in enumerate(data.marginal(p).flat)
    }
    worst = max(errors.values())
    first = c.choose_cells(PAIRS, guesses(), c.remaining / 3)[0]
    assert errors[first] == worst
    rest = c.choose_cells(PAIRS, guesses(), c.remaining / 3, count=5, exclude=[first])
    assert first not in rest
    others = sorted((e for cell, e in errors.items() if cell != first), reverse=True)[:5]
    assert sorted((errors[cell] for cell in rest), reverse=True) == pytest.approx(others)
    for m, cell in zip(c.measure_cells(rest, c.remaining), rest, strict=True):
        assert m.values[0] == data.marginal(cell.clique).flat[cell.index]


def test_refusals_come_before_spending() -> None:
    c = curator(Budget(1.0))
    cells = [Cell(p, i) for p in PAIRS for i in range(DOMAIN.size(p))]
    for options in [{"count": 0}, {"count": len(cells) + 1}, {"count": 1, "exclude": cells}]:
        with pytest.raises(InvalidInput, match="count"):
            c.choose_cells(PAIRS, guesses(), 0.1, **options)
    with pytest.raises(InvalidInput, match="not finite"):
        c.choose_cells(PAIRS, guesses(np.nan), 0.1)
    with pytest.raises(InvalidInput, match=re.escape(f"no table for the clique {PAIRS[1]!r}")):
        c.choose_cells(PAIRS, {PAIRS[0]: guesses()[PAIRS[0]]}, 0.1)
    for index in (6, -1, 0.9, "0", True):
        with pytest.raises(InvalidInput, match="must be a whole number from 0 to 5, got"):
            c.measure_cells([Cell(("a", "b"), index)], 0.1)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="must be a whole number from 0 to 5, got"):
            c.choose_cells(PAIRS, guesses(), 0.1, exclude=[Cell(("a", "b"), index)])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="unknown attribute 'z'"):
        c.choose_cells(PAIRS, guesses(), 0.1, exclude=[Cell(("z",), 0)])
    with pytest.raises(InvalidInput, match="empty"):
        c.measure_cells([], 0.1)
    for count in (0, True):
        with pytest.raises(InvalidInput, match="count must be"):
            c.draw_signed(PAIRS, guesses(), 0.1, count=count)
    for draw in (c.choose_cells, c.draw_signed):
        with pytest.raises(InvalidInput, match="there is no clique"):
            draw([], {}, 0.1)
    with pytest.raises(BudgetExceeded):
        c.measure_cells([Cell(("a",), 0)], 2.0)
    with pytest.raises(BudgetExceeded):
        c.choose_cells(PAIRS, guesses(), 2.0)
    assert c.ledger.spent == 0


def test_exact_selection_among_many_queries_does_not_visit_them_one_by_one() -> None:
    scores = np.random.default_rng(0).random(300_000)
    noise = ExactNoise()
    assert calls(lambda: noise.top(scores, 10, 0.1)) < 10_000


def test_no_dataset_is_held_by_what_is_returned() -> None:
    c = curator(Budget(1.0), seed=0)
    cells = c.choose_cells(PAIRS, guesses(), 0.5)
    assert all(type(cell) is Cell for cell in cells)
    assert not isinstance(c.measure_cells(cells, 0.5)[0], Dataset)


@pytest.mark.parametrize("kept", [[], [0], [1, 2], [0, 1, 2]])
def test_cells_of_other_codes_take_no_part(kept: list[int]) -> None:
    """Against the whole tables; an attribute may keep no code, and its tables no cell."""
    rng = np.random.default_rng(3)
    data = random_data(rng)
    name = next(each for each, size in DOMAIN.sizes.items() if size >= 3)
    owner = Curator(data, Budget(9.0, 1e-6), neighbours="add/remove")
    noise = draw_from(owner, Watcher("add/remove", pure=False))
    whole = {clique: rng.uniform(0, 50, DOMAIN.shape(clique)) for clique in PAIRS}
    parts = {c: t.take(kept, c.index(name)) if name in c else t for c, t in whole.items()}
    taken = Cell(PAIRS[0], 0)
    found = owner.choose_cells(PAIRS, parts, 0.1, count=3, codes={name: kept}, exclude=[taken])
    wanted = {}
    for clique, table in whole.items():
        counts = data.marginal(clique)
        for at in np.ndindex(table.shape):
            cell = Cell(clique, int(np.ravel_multi_index(at, table.shape)))
            if (name not in clique or at[clique.index(name)] in kept) and cell != taken:
                wanted[cell] = abs(counts[at] - table[at])
    assert sorted(noise.exact[0]) == pytest.approx(sorted(wanted.values()), abs=2**-11)
    assert len(set(found)) == 3 and set(found) <= set(wanted)


def test_the_total_is_a_cell() -> None:
    owner = curator(Budget(9.0, 1e-6))
    assert owner.choose_cells([()], {(): np.zeros(())}, 0.1) == [Cell((), 0)]
    with pytest.raises(InvalidInput, match="at most the 0 candidate cells"):
        owner.choose_cells([()], {(): np.zeros(())}, 0.1, exclude=[Cell((), 0)])
    with pytest.raises(InvalidInput, match="no table for the clique"):
        owner.choose_cells([("a",)], {(): np.zeros(())}, 0.1)


def test_codes_are_distinct_whole_numbers_of_their_attribute() -> None:
    name, size = next(iter(DOMAIN.sizes.items()))
    for wrong in ([size], [-1], [1, 0], [0, 0], [0.5], ["0"], [None], [[0]], 0):
        owner = curator(Budget(1.0, 1e-6))
        with pytest.raises(InvalidInput, match="distinct whole numbers"):
            owner.choose_cells(PAIRS, guesses(), 0.1, codes={name: wrong})
        assert owner.ledger.spent == 0
    name = max(DOMAIN.sizes, key=DOMAIN.sizes.__getitem__)
    for codes, message in (({name: [0, 2, 1]}, "distinct whole numbers"), ({"z": [0]}, "'z'")):
        with pytest.raises(InvalidInput, match=message):
            curator(Budget(1.0)).choose_cells(PAIRS, guesses(), 0.1, codes=codes)
    nothing = {clique: np.zeros([0, 0]) for clique in PAIRS}
    with pytest.raises(InvalidInput, match="at most the 0 candidate cells"):
        owner.choose_cells(PAIRS, nothing, 0.1, codes=dict.fromkeys(DOMAIN, ()))
