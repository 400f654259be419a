"""DualQuery, its likelihood, FEM and the oracle: against enumeration, exact laws and charges."""

import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from chance import assert_follows
from pricing import CellPriced, total_variation
from seams import draw_from

from mechanisms import run
from mechanisms.datasets.census import census
from mechanisms.dual_query import (
    DualQuery,
    DualQueryLoss,
    DualQueryRelease,
    dual_query,
    paid_rounds,
    uniform_draws,
)
from mechanisms.families import best_response
from mechanisms.families.best_response import Oracle
from mechanisms.fem import Fem, fem
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.privacy.noise import SparseScores
from mechanisms.queries.cells import Cell
from mechanisms.workload import Workload, k_way
from pgmkit import Domain, InvalidInput, Measurement, estimate

DATA = census(3000).project(["sex", "work", "income"])
PAIRS = k_way(DATA.domain, 2)
SMALL = Domain({"a": 2, "b": 3, "c": 2, "d": 3})


def worth(codes: tuple[int, ...], queries: list, bonus: dict[str, np.ndarray]) -> float:
    record = dict(zip(SMALL, codes, strict=True))
    value = sum(float(values[record[name]]) for name, values in bonus.items())
    for cell, weight in queries:
        held = np.unravel_index(cell.index, SMALL.shape(cell.clique))
        value += weight * all(record[n] == c for n, c in zip(cell.clique, held, strict=True))
    return value


@pytest.mark.parametrize("seed", range(12))
def test_the_oracle_finds_the_best_record_in_every_way(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cliques = [c for k in (1, 2, 3) for c in itertools.permutations(SMALL, k)]
    queries = []
    for _ in range(rng.integers(1, 12)):
        clique = cliques[rng.integers(len(cliques))]
        cell = Cell(clique, int(rng.integers(SMALL.size(clique))))
        queries.append((cell, float(rng.choice([-1.0, 1.0, 0.5]))))
    bonus = {n: rng.random(s) for n, s in SMALL.sizes.items()} if seed % 2 else {}
    oracle = Oracle(SMALL)
    every = itertools.product(*map(range, SMALL.shape()))
    best = max(worth(record, queries, bonus) for record in every)
    tables = oracle.tables_of(queries, bonus)
    for found in [
        oracle.best(queries, bonus),
        oracle.by_max_product(tables),
        oracle.by_integer_program(queries, bonus),
    ]:
        assert worth(found, queries, bonus) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize(
    "records, cells, way",
    [
        (36, 0, "by_enumeration"),
        (35, 15, "by_max_product"),
        (35, 14, "by_integer_program"),
    ],
)
def test_the_way_to_the_best_record_follows_from_sizes(
    monkeypatch: pytest.MonkeyPatch, records: int, cells: int, way: str
) -> None:
    """The tree of (a, b), (b, c) and the bonus over d has 6 + 6 + 3 cells; that of all pairs of a,
    b and c has 12 + 3. Each way is the only one that is left.
    """
    monkeypatch.setattr(best_response, "ENUMERABLE", records)
    monkeypatch.setattr(best_response, "TREE_CELLS", cells)
    for other in {"by_enumeration", "by_max_product", "by_integer_program"} - {way}:
        monkeypatch.setattr(Oracle, other, None)
    oracle, bonus = Oracle(SMALL), {"d": np.array([0.0, 2.0, 1.0])}
    for _ in range(2):  # what is known of the cliques serves again
        queries = [(Cell(("a", "b"), 4), 2.0), (Cell(("b", "c"), 3), 1.0)]
        assert oracle.best(queries, bonus) == (1, 1, 1, 1)
    queries = [(Cell(("a", "b"), 4), -2.0), (Cell(("a", "c"), 3), 1.0), (Cell(("c", "b"), 4), 1.0)]
    found = oracle.best([*queries, (Cell(("b",), 1), 0.5)], bonus)
    assert worth(found, queries, bonus) == 3.0 and found[3] == 1


def test_the_best_record_may_satisfy_a_query_of_negative_weight() -> None:
    domain = Domain({"a": 2, "one": 1, "b": 3})
    queries = [(Cell(("a",), 0), -1.0), (Cell(("a",), 1), -2.0), (Cell(("b",), 2), 0.5)]
    oracle = Oracle(domain)
    tables = {("a",): np.array([-1.0, -2.0]), ("b",): np.array([0.0, 0.0, 0.5])}
    for found in (oracle.by_integer_program(queries, {}), oracle.by_max_product(tables)):
        assert found == (0, 0, 2)


def test_more_attributes_than_an_array_has_axes() -> None:
    domain = Domain({f"x{i}": 1 + (i < 3) for i in range(70)})
    found = Oracle(domain).best([(Cell(("x1", "x2"), 3), 1.0)], {})
    assert (found[1], found[2], len(found)) == (1, 1, 70)


def test_without_queries_any_record_is_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_response, "ENUMERABLE", 0)
    found = Oracle(SMALL).best([], {})
    assert all(code in range(n) for code, n in zip(found, SMALL.shape(), strict=True))


def test_signed_draws_follow_the_exponential_mechanism() -> None:
    curator = Curator(DATA, Budget(1e4, 1e-6), neighbours="replace-one", seed=0)
    counts = DATA.marginal(("sex", "income")).astype(float)
    estimates = {("sex", "income"): counts - np.linspace(-3, 3, counts.size).reshape(counts.shape)}
    draws, cost = 40_000, 40_000 / (2 * 2.0**2)
    drawn = curator.draw_signed([("sex", "income")], estimates, cost, count=draws)
    scores = np.concatenate([np.linspace(-3, 3, counts.size), -np.linspace(-3, 3, counts.size)])
    law = np.exp(scores / 2.0)
    law /= law.sum()
    found = np.zeros(2 * counts.size)
    for cell, sign in drawn:
        found[cell.index + (0 if sign > 0 else counts.size)] += 1
    assert_follows(found, law)


class DrawPriced(CellPriced):
    """Signed draws change by at most one."""

    def draws(self, scores: SparseScores, count: int, scale: float) -> list[int]:
        each = 2 / scale if self.pure else (2 / scale) ** 2 / 8
        self.costs.append(count * each)
        self.exact.append(scores.values)
        return super().draws(scores, count, scale)


@pytest.mark.parametrize("mechanism", [dual_query, fem])
@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-7])
def test_draws_match_charges(mechanism: object, relation: str, delta: float) -> None:
    curator = Curator(DATA, Budget(1.0, delta), neighbours=relation)
    noise = DrawPriced(relation, pure=delta == 0)
    draw_from(curator, noise)
    release = mechanism(curator, PAIRS)
    assert noise.costs == pytest.approx([e.cost for e in release.ledger.entries], rel=1e-9)
    assert math.fsum(noise.costs) == pytest.approx(curator.ledger.budget.total, rel=1e-9)
    if mechanism is dual_query:
        # Round t + 1 draws with probability proportional to exp(eta t (share in the data - ...)).
        spent = [e.cost for e in release.ledger.entries if "draw" in e.step]
        assert len(release.draws) == len(spent) + 1
        total, s = release.model.total, release.settings.samples
        for t, cost in enumerate(spent, 1):
            rate = release.eta * t / total
            assert cost == pytest.approx(s * (2 * rate if delta == 0 else rate**2 / 2), rel=1e-6)


def small_release():
    curator = Curator(DATA, Budget(8.0, 1e-7), neighbours="replace-one", seed=0)
    return dual_query(curator, PAIRS, DualQuery(eta=2.0, samples=20))


def test_the_likelihood_is_that_of_the_draws() -> None:
    release = small_release()
    loss = DualQueryLoss(release, PAIRS)
    tables = {c: torch.as_tensor(DATA.marginal(c).astype(float)) for c in PAIRS.cliques}
    expected = 0.0
    reached = {c: np.zeros(DATA.domain.shape(c)) for c in PAIRS.cliques}
    for t, draws in enumerate(release.draws):
        if t > 0:
            law = {}
            for c in PAIRS.cliques:
                gap = t * DATA.marginal(c) / 3000 - reached[c]
                for index, value in enumerate(gap.ravel()):
                    law[Cell(c, index), 1] = math.exp(release.eta * value)
                    law[Cell(c, index), -1] = math.exp(-release.eta * value)
            norm = math.fsum(law.values())
            expected -= sum(math.log(law[query] / norm) for query in draws.queries)
        record = dict(zip(DATA.domain, draws.record, strict=True))
        for c in PAIRS.cliques:
            reached[c][tuple(record[n] for n in c)] += 1
    assert float(loss(tables)) == pytest.approx(expected, rel=1e-9)
    for table in tables.values():
        table.requires_grad_()
    value = loss(tables)
    (gradient,) = torch.autograd.grad(value, tables["sex", "work"])
    step = torch.zeros_like(gradient)
    step[0, 1] = 1e-2
    with torch.no_grad():
        moved = dict(tables)
        moved["sex", "work"] = tables["sex", "work"] + step
        up = float(loss(moved))
        moved["sex", "work"] = tables["sex", "work"] - step
        down = float(loss(moved))
    assert (up - down) / 2e-2 == pytest.approx(float(gradient[0, 1]), rel=1e-4, abs=1e-7)


def test_a_likelihood_needs_the_draws_and_their_workload(tmp_path: Path) -> None:
    release = small_release()
    release.save(tmp_path / "saved.pgm")
    with pytest.raises(InvalidInput, match="a file holds no draws"):
        DualQueryLoss(DualQueryRelease.load(tmp_path / "saved.pgm"), PAIRS)
    for cliques in ([("sex", "work")], [clique[::-1] for clique in PAIRS.cliques]):
        with pytest.raises(InvalidInput, match="the workload of that run"):
            DualQueryLoss(release, cliques)
    other = run("independent", DATA, PAIRS, 1.0, neighbours="replace-one", seed=0)
    with pytest.raises(InvalidInput, match="release must be a DualQueryRelease"):
        DualQueryLoss(other, PAIRS)


def test_a_graphical_model_of_the_draws_beats_the_records() -> None:
    """The ratio of errors is 0.27, standard deviation 0.035: 20 away from 1."""
    release = small_release()
    named = [Measurement(c, np.zeros(DATA.domain.size(c)), 1.0) for c in PAIRS.cliques]
    # No time limit: on a busy machine it would end the search before the model is better.
    model = estimate(DATA.domain, named, total=3000, loss=DualQueryLoss(release, PAIRS))
    assert total_variation(DATA, model, PAIRS) < total_variation(DATA, release.model, PAIRS)


def test_the_free_draws_are_uniform_over_cells_and_signs() -> None:
    """Each count is within seven standard deviations, which fails once in 1e9 for 184 of them."""
    count, cells = 100_000, {Cell(c, i) for c in PAIRS.cliques for i in range(DATA.domain.size(c))}
    drawn = Counter(uniform_draws(DATA.domain, PAIRS, count, np.random.default_rng(0)))
    assert drawn.total() == count
    assert set(drawn) == {(cell, sign) for cell in cells for sign in (-1, 1)}
    expected = count / len(drawn)
    assert max(abs(each - expected) for each in drawn.values()) < 7 * math.sqrt(expected)


@pytest.mark.parametrize("name", ["dual-query", "fem"])
def test_more_budget_gives_better_records(name: str) -> None:
    """The ratios are 0.08 and 0.21, standard deviations 0.01 and 0.04: 12 away or more."""
    errors = []
    for epsilon in (0.05, 20.0):
        release = run(name, DATA, PAIRS, epsilon, 1e-7, neighbours="replace-one", seed=0)
        errors.append(total_variation(DATA, release.model, PAIRS))
    assert errors[1] < 0.7 * errors[0]


def test_refusals_come_before_spending() -> None:
    for make in [
        lambda: DualQuery(eta=0.0),
        lambda: DualQuery(samples=0),
        lambda: Fem(noise=float("nan")),
        lambda: Fem(rounds=0),
    ]:
        with pytest.raises(InvalidInput):
            make()
    for mechanism, settings in [(dual_query, DualQuery), (fem, Fem)]:
        for workload, options, relation, message in [
            (k_way(census(5).domain, 2), {}, "replace-one", "another domain"),
            (Workload(DATA.domain, PAIRS.cliques, [1, 2, 3]), {}, "replace-one", "unequal"),
            (PAIRS, {"one_way_share": 0.0}, "add/remove", "above 0"),
        ]:
            curator = Curator(DATA, Budget(1.0, 1e-7), neighbours=relation, seed=0)
            with pytest.raises(InvalidInput, match=message):
                mechanism(curator, workload, settings(**options))
            assert curator.ledger.spent == 0


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [(DualQuery(eta=1e-3, max_rounds=3), 3), (DualQuery(eta=1e9), 1), (Fem(rounds=3), 3)],
)
def test_rounds_that_are_paid_for(settings: DualQuery | Fem, rounds: int) -> None:
    """As many as the settings allow and the budget pays for, but at least one."""
    release = run(settings, DATA, PAIRS, 1.0, 1e-6, neighbours="replace-one", seed=0)
    assert release.ledger is not None and release.ledger.remaining == 0
    assert [each.step.split()[0] for each in release.ledger.entries] == ["round"] * rounds


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("most", [3, 1000])
def test_the_rounds_are_as_many_as_the_budget_pays(delta: float, most: int) -> None:
    """A round costs a power of its number; counted up here one by one."""
    settings = DualQuery(eta=4.0, samples=20, max_rounds=most)
    for epsilon in (1e-3, 2.0):
        curator = Curator(DATA, Budget(epsilon, delta), neighbours="replace-one", seed=0)
        rate = settings.eta / len(DATA)
        power, unit = (1, 2 * 20 * rate) if delta == 0 else (2, 20 * rate**2 / 2)
        paid = 1
        while paid < most and (
            unit * sum(t**power for t in range(1, paid + 2)) <= curator.remaining
        ):
            paid += 1
        found, eta = paid_rounds(curator, settings, len(DATA))
        expected = np.arange(1, paid + 1) ** power
        np.testing.assert_allclose(found, expected / expected.sum())
        cost = unit * (eta / settings.eta) ** power * expected.sum()
        assert cost == pytest.approx(curator.remaining)
        assert (paid == 1) == (epsilon < 1) and (paid == most or most > 3 or epsilon < 1)
