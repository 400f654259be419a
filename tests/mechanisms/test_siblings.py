"""The random field of siblings: its tables and conditional weights, child by child."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mechanisms.linked import siblings
from mechanisms.linked.siblings import (
    Children,
    Field,
    Wanted,
    broken,
    draw_children,
    summed_entries,
)
from pgmkit.domain import Domain

DOMAIN = Domain(
    {"area": 2, "position": 4, "sex": 2, "age": 3, "previous sex": 3, "previous age": 4}
)
CLIQUES = [
    ("area", "age"),
    ("position", "sex"),
    ("sex", "age"),
    ("previous age", "age"),
    ("previous sex", "age"),
    ("previous age", "sex", "area"),
    ("previous sex", "previous age"),
]
COUNTS = np.array([2, 0, 1, 4, 3])


def children(seed: int) -> Children:
    rng = np.random.default_rng(seed)
    records = {name: rng.integers(0, DOMAIN.sizes[name], COUNTS.sum()) for name in ("sex", "age")}
    return Children(DOMAIN, COUNTS, {"area": rng.integers(0, 2, len(COUNTS))}, records)


def rows_of(given: Children) -> list[dict[str, int]]:
    """Each child's codes in all columns, from the parents' numbers of children alone."""
    found: list[dict[str, int]] = []
    for parent, count in enumerate(COUNTS):
        for place in range(count):
            child = len(found)
            row = {name: int(codes[child]) for name, codes in given.records.items()}
            row["area"] = int(given.column("area")[child])
            assert given.parent[child] == parent
            row["position"] = place
            for name in ("sex", "age"):
                row[f"previous {name}"] = found[-1][name] if place else DOMAIN.sizes[name]
            found.append(row)
    return found


def counted(given: Children, clique: tuple[str, ...]) -> np.ndarray:
    cells = np.zeros(DOMAIN.shape(clique))
    for row in rows_of(given):
        cells[tuple(row[name] for name in clique)] += 1
    return cells


def test_tables_are_those_of_the_children_one_by_one() -> None:
    given = children(0)
    rows = rows_of(given)
    some = np.array([0, 3, 9])
    for name in DOMAIN.sizes:
        assert given.column(name).tolist() == [row[name] for row in rows]
        assert given.column(name, some).tolist() == [rows[i][name] for i in some]
    for clique in CLIQUES:
        np.testing.assert_array_equal(given.table(clique), counted(given, clique))
    followed = [row["position"] + 1 < COUNTS[given.parent[i]] for i, row in enumerate(rows)]
    assert given.followed.tolist() == followed and len(given) == COUNTS.sum()


@pytest.mark.parametrize("seed", range(3))
def test_conditional_weights_are_those_of_the_whole_field(seed: int) -> None:
    """Brute force: the sum of all children's potentials, with one code in place of another."""
    given, rng = children(seed), np.random.default_rng(seed)
    theta = [rng.normal(size=DOMAIN.shape(clique)) for clique in CLIQUES]
    rows = np.flatnonzero(rng.random(len(given)) < 0.7)
    for name in ("sex", "age"):
        found = summed_entries(given, zip(CLIQUES, theta, strict=True), name, rows, float)
        assert found.shape == (DOMAIN.sizes[name], len(rows))
        for line, child in zip(found.T, rows, strict=True):
            before, energies = given.records[name][child], []
            for code in range(DOMAIN.sizes[name]):
                given.records[name][child] = code
                tables = zip(CLIQUES, theta, strict=True)
                energies.append(sum(float((counted(given, c) * t).sum()) for c, t in tables))
            given.records[name][child] = before
            np.testing.assert_allclose(line - line[0], np.array(energies) - energies[0])


@pytest.mark.parametrize("seed", range(5))
def test_codes_that_break_a_rule_are_barred(seed: int) -> None:
    """Brute force: in the child's own record or in that of the next one."""
    given, rng = children(seed), np.random.default_rng(seed)
    masks = {clique: rng.random(DOMAIN.shape(clique)) < 0.25 for clique in CLIQUES[2:5]}
    held = [[masks[c][tuple(row[n] for n in c)] for c in masks] for row in rows_of(given)]
    assert broken(given, masks) == np.sum(held)
    rows = np.arange(len(given))
    for name in ("sex", "age"):
        found = siblings.barred_codes(given, masks, name, rows)
        for line, child in zip(found.T, rows, strict=True):
            before, wanted = given.records[name][child], []
            for code in range(DOMAIN.sizes[name]):
                given.records[name][child] = code
                near = rows_of(given)[child : child + 1 + int(given.followed[child])]
                wanted.append(
                    any(
                        masks[c][tuple(row[n] for n in c)]
                        for place, row in enumerate(near)
                        for c in masks
                        if (name if place == 0 else f"previous {name}") in c
                    )
                )
            given.records[name][child] = before
            assert line.tolist() == ([False] * len(wanted) if all(wanted) else wanted)


def test_codes_are_drawn_by_their_weights() -> None:
    class Given:
        """A generator whose draws are chosen."""

        def __init__(self, draws: list[float]) -> None:
            self.draws = draws

        def random(self, count: int) -> np.ndarray:
            return np.array(self.draws).reshape(count)

    draws = [0.0, 0.24, 0.26, 0.74, 0.76, 1 - 2**-53]
    rng: Any = Given(draws)
    with np.errstate(divide="ignore"):
        for weights, wanted in (
            ([1.0, 0.0, 2.0, 1.0], [0, 0, 2, 2, 3, 3]),
            ([0.0, 1.0, 3.0, 0.0], [1, 1, 2, 2, 2, 2]),
        ):
            logits = np.log(np.tile(weights, (6, 1))).T + np.arange(6) * 500.0
            assert siblings.drawn_codes(logits, rng).tolist() == wanted


@pytest.mark.parametrize("push", [siblings.PUSH, 0.004])
def test_steps_go_down_the_dual_and_are_bounded(
    push: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the formulas of a Newton step with the diagonal of the Hessian."""
    monkeypatch.setattr(siblings, "PUSH", push)
    given, rng = children(1), np.random.default_rng(2)
    wanted = [
        Wanted(c, counted(given, c) + rng.integers(-2, 3, DOMAIN.shape(c)), 2.0) for c in CLIQUES
    ]
    field = Field(given, wanted)
    assert all(not theta.any() for theta in field.potentials)
    # Tables share their attributes, previous or not, and take the lesser part of the step.
    sexes = sum(any("sex" in name for name in clique) for clique in CLIQUES)
    ages = sum(any("age" in name for name in clique) for clique in CLIQUES)
    parts = [1 / ages if any("age" in n for n in clique) else 1 / sexes for clique in CLIQUES]
    assert field.part == pytest.approx(parts)
    field.potentials = [rng.normal(size=DOMAIN.shape(c)) for c in CLIQUES]
    before = [theta.copy() for theta in field.potentials]
    excess = field.excess()
    pushed = field.pushed(excess)
    field.step(excess)
    for place, clique in enumerate(CLIQUES):
        table, soft = counted(given, clique), siblings.FIT * 2.0
        over = table - wanted[place].counts
        np.testing.assert_allclose(excess[place], over)
        move = parts[place] * (over + soft * before[place]) / (table + soft + 1)
        moved = before[place] - field.potentials[place]
        np.testing.assert_allclose(moved, np.clip(move, -siblings.LONGEST, siblings.LONGEST))
        push = siblings.PUSH * parts[place] / siblings.SETTLED * over
        push /= np.maximum(table, wanted[place].counts) + 1
        np.testing.assert_allclose(before[place] - pushed[place], np.clip(push, -1, 1))


def test_tables_over_siblings_are_scaled_to_the_mean_of_both_sums() -> None:
    given, rng = children(3), np.random.default_rng(3)
    clique = ("previous age", "age")
    wanted = Wanted(clique, rng.exponential(2.0, DOMAIN.shape(clique)) + 0.1, 1.5)
    found = siblings.reconciled(given, wanted)
    middle = (counted(given, clique) + wanted.counts) / 2
    for axis in (0, 1):
        np.testing.assert_allclose(found.counts.sum(axis), middle.sum(axis), rtol=1e-6)
    ratio = found.counts / wanted.counts
    odds = ratio[1:, 1:] * ratio[:1, :1] / (ratio[1:, :1] * ratio[:1, 1:])
    np.testing.assert_allclose(odds, 1.0, rtol=1e-9)
    assert found.stddev == 1.5 and found.clique == clique


def test_wanted_counts_are_scaled_to_the_children_here(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[Wanted]] = []
    monkeypatch.setattr(siblings, "draw_to", lambda c, wanted, *_: seen.append(list(wanted)))
    given, rng = children(4), np.random.default_rng(0)
    wanted = [Wanted(c, np.ones(DOMAIN.shape(c)), 4.0) for c in CLIQUES]
    draw_children(given, wanted, 40.0, rng)
    alone = [c for c in CLIQUES if not any(name.startswith("previous") for name in c)]
    assert [[each.clique for each in some] for some in seen] == [
        alone,
        [*alone, *(c for c in CLIQUES if c not in alone)],
    ]
    assert all((each.counts == 0.25).all() for each in seen[0])
    assert all(each.stddev == 1.0 for some in seen for each in some)
    seen.clear()
    draw_children(given, wanted, 1.0, rng)
    assert all((each.counts == len(given)).all() for each in seen[0]) and len(seen[0]) == 3
    seen.clear()
    draw_children(given, wanted, 0.0, rng)
    draw_children(given, wanted[:2], 40.0, rng)
    assert [len(some) for some in seen] == [0, 2]
    empty = Children(DOMAIN, np.zeros(3, int), {"area": np.zeros(3, int)}, {"sex": [], "age": []})
    draw_children(empty, wanted, 40.0, rng)
    assert len(seen) == 2 and len(empty) == 0


@pytest.mark.parametrize("best", [0, 1, 3, 4, 6])
@pytest.mark.parametrize("ruled", [False, True])
def test_the_best_records_of_all_sweeps_are_kept(
    best: int, ruled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First those of fewest broken rules, then of the least distance, then of the first sweep."""
    monkeypatch.setattr(siblings, "SWEEPS", 3)
    given = Children(Domain({"position": 2, "sex": 3}), np.array([2, 2]), {}, {"sex": [2, 0, 0, 0]})
    states = [np.array([2, 0, 0, 0]) for _ in range(8)]
    states[best] = np.array([2, 2, 1, 1]) if not ruled else np.array([0, 0, 0, 0])
    states[0 if best else 5] = np.array([2, 0, 0, 1])
    sweeps: list[tuple[float, np.ndarray]] = []

    def redraw(field: Any, potentials: Any, barred: Any, part: float, rng: Any) -> None:
        sweeps.append((part, potentials[0].copy()))
        given.records["sex"][:] = states[len(sweeps)]

    monkeypatch.setattr(siblings, "redraw", redraw)
    given.records["sex"][:] = states[0]
    rules = {("sex",): np.array([False, False, True])} if ruled else {}
    wanted = [Wanted(("sex",), np.array([0.0, 2.0, 2.0]), 1.0)]
    draw_children(given, wanted, 4.0, np.random.default_rng(0), rules)
    assert given.records["sex"].tolist() == states[best].tolist()
    assert [part for part, _ in sweeps] == [1.0] * 3 + [siblings.SETTLED] * 4
    field = Field(given, wanted)
    for (part, used), state in zip(sweeps, states, strict=False):
        excess = [np.bincount(state, minlength=3) - wanted[0].counts]
        if part == 1.0:
            field.step(excess)
            np.testing.assert_allclose(used, field.potentials[0])
        else:
            np.testing.assert_allclose(used, field.pushed(excess)[0])


def test_every_child_of_a_share_is_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """With potentials that leave one code; siblings side by side are not redrawn at once."""

    def summed(given: Children, tables: Any, name: str, rows: Any, kind: type) -> Any:
        assert not np.isin(rows[given.followed[rows]] + 1, rows).any()
        return summed_entries(given, tables, name, rows, kind)

    monkeypatch.setattr(siblings, "summed_entries", summed)
    counts, rng = np.full(300, 4), np.random.default_rng(0)
    domain = Domain({"position": 4, "sex": 2, "previous sex": 3})
    given = Children(domain, counts, {}, {"sex": np.zeros(1200, int)})
    one = Field(given, [Wanted(("sex",), np.zeros(2), 1.0)])
    siblings.redraw(one, [np.array([0.0, 500.0])], {}, 0.1, rng)
    # Binomial(1200, 0.1): standard deviation 10.4.
    assert 60 <= given.records["sex"].sum() <= 180
    siblings.redraw(one, [np.array([0.0, 500.0])], {}, 1.0, rng)
    assert given.records["sex"].all()
    alike = Field(given, [Wanted(("previous sex", "sex"), np.zeros((3, 2)), 1.0)])
    theta = np.array([[500.0, 0.0], [0.0, 500.0], [0.0, 0.0]])
    given.records["sex"][:] = rng.integers(0, 2, 1200)
    for _ in range(12):
        siblings.redraw(alike, [theta], {}, 1.0, rng)
    sexes = given.records["sex"].reshape(300, 4)
    assert (sexes == sexes[:, :1]).mean() > 0.9


def test_rules_come_before_tables() -> None:
    counts, rng = np.full(300, 4), np.random.default_rng(0)
    domain = Domain({"position": 4, "sex": 2, "previous sex": 3})
    given = Children(domain, counts, {}, {"sex": np.zeros(1200, int)})
    barred = {("previous sex", "sex"): np.array([[0, 1], [0, 0], [0, 0]], bool)}
    other = {("previous sex", "sex"): np.array([[0, 0], [1, 0], [0, 0]], bool)}
    one = Field(given, [Wanted(("sex",), np.zeros(2), 1.0)])
    # Even positions first: a code may follow nothing or itself, and is drawn wherever it may be.
    for code, rule in ((1, barred), (0, other)):
        given.records["sex"][:] = 1 - code
        siblings.redraw(one, [500.0 * np.eye(2)[code]], rule, 1.0, rng)
        assert (given.records["sex"].reshape(300, 4) == [code, code, 1 - code, 1 - code]).all()
    given.records["sex"][:] = 0
    draw_children(given, [Wanted(("sex",), np.array([300.0, 900.0]), 1.0)], 1200.0, rng, barred)
    sexes = given.records["sex"].reshape(300, 4)
    assert not ((sexes[:, :-1] == 0) & (sexes[:, 1:] == 1)).any()
