"""What linked tables measure: which pairs, by number and place or not, and at which part of the
budget, beside the rules of the documentation.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from seams import interrupt_second_table

from mechanisms import synthesize_linked
from mechanisms.baselines import Projection
from mechanisms.linked import pipeline
from mechanisms.linked.link import Link, with_counts
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.release.tabular import TableRelease
from mechanisms.workload import Workload
from pgmkit import Domain, InvalidInput, Measurement, Schema
from pgmkit.tables.constraints import Forbid
from pgmkit.tables.labelled import Boolean, Categorical
from pgmkit.tables.numbers import Integer

LINK = Link("cow", "farm", "id", 3, count="cows")
DOMAIN = Domain({"hills": 2, "cows": 4, "position": 3, "previous kind": 4, "kind": 3, "age": 5})


class Table:
    """What the rules know of a Curator; `asked` has the costs whose noise was asked for."""

    def __init__(self, pure: bool = False, remaining: float = 12.0) -> None:
        self.remaining, self.domain = remaining, DOMAIN
        self.ledger = SimpleNamespace(budget=Budget(1.0, 0.0 if pure else 1e-6))
        self.asked: list[float] = []
        self.measured: list[Any] = []

    def scale(self, cost: float) -> float:
        self.asked.append(cost)
        return 2.0

    def measure_numbered(self, *given: Any) -> list[Measurement]:
        self.measured.append(given)
        name = given[2][0]
        return [Measurement((name,), np.zeros(DOMAIN.sizes[name]), float(k)) for k in (1, 2)]


@pytest.mark.parametrize("children", [1200.0, np.nextafter(1200.0, 0)])
@pytest.mark.parametrize("room", [True, False])
def test_all_pairs_are_measured_where_there_is_much_signal_and_room(
    children: float, room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 children in units of the noise of a pair; a model of the pairs and of what was measured
    before may be as large as the setting says.
    """
    asked: list[Any] = []
    limit = Projection().model_mb

    def megabytes(domain: Domain, cliques: Any) -> float:
        asked.append((domain, list(cliques)))
        return limit if room else float(np.nextafter(limit, np.inf))

    monkeypatch.setattr(pipeline, "model_megabytes", megabytes)
    table: Any = Table()
    workload = Workload(DOMAIN, [("hills", "kind"), ("kind", "age"), ("cows", "age")])
    first = [Measurement(("hills", "cows"), np.zeros(8), 1.0)]
    choice = pipeline.choice_for(table, workload, first, children)
    assert table.asked == [4.0]
    said = "hide" if children < 1200 else "too large"
    if children < 1200 or not room:
        assert choice.name == "aim" and said in choice.reason
    else:
        assert choice.name == "gaussian+projection" and "all pairs" in choice.reason
    if children >= 1200:
        assert asked == [(DOMAIN, [*workload.cliques, ("hills", "cows")])]
    assert not choice.settings


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("own", [["kind", "age"], ["age"]])
def test_columns_are_measured_by_number_unless_noise_hides_them(
    own: list[str], pure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell of k children has k times the counts of a parent, and sqrt(k) or k times its noise."""
    pairs = [("hills", "kind"), ("kind", "age"), ("previous kind", "age")]
    told = [("cows", "kind"), ("position", "age"), ("cows", "position")]
    workload = Workload(DOMAIN, [*told[:1], *pairs, *told[1:]])
    sizes = [DOMAIN.sizes[name] for name in own]
    enough = (
        sum(sizes) / len(own) * 2.0 / 3 * sum(k * k ** (1.0 if pure else 0.5) for k in (1, 2, 3))
    )
    limit, asked = Projection().model_mb, list[Any]()

    def megabytes(domain: Domain, cliques: Any) -> float:
        asked.append((domain, list(cliques)))
        return limit

    monkeypatch.setattr(pipeline, "model_megabytes", megabytes)
    for children, hidden in ((enough * (1 - 1e-9), True), (enough * (1 + 1e-9), False)):
        table: Any = Table(pure)
        found, left = pipeline.numbered_tables(table, workload, LINK, own, children)
        cost = 12.0 / (len(own) + len(pairs))
        assert table.asked == [cost]
        if hidden:
            assert found == [] and left is workload and table.measured == []
            continue
        assert table.measured == [("cows", "position", [name], cost) for name in own]
        assert [m.clique for m in found] == [(name,) for name in own for _ in range(2)]
        assert [*left.cliques] == pairs and left.domain == DOMAIN
    # The model is that of all these tables and of the pair of the child's two largest columns.
    numbered = [("cows", "position", name) for name in own]
    assert asked == [(DOMAIN, [*numbered, tuple(own)])] * 2
    for size, cliques in ((np.nextafter(limit, np.inf), workload.cliques), (limit, told)):
        monkeypatch.setattr(pipeline, "model_megabytes", lambda *_, size=size: size)
        table, some = Table(pure), Workload(DOMAIN, cliques)
        assert pipeline.numbered_tables(table, some, LINK, own, 1e9) == ([], some)
        assert table.measured == []


def test_the_largest_columns_stand_for_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(pipeline, "model_megabytes", lambda _, c: asked.append(c[-1]) or 0.0)
    workload = Workload(DOMAIN, [("hills", "kind")])
    for own, wide in ((["age", "hills", "kind"], {"age", "kind"}), (["kind"], {"kind"})):
        pipeline.numbered_tables(Table(), workload, LINK, own, 0.0)  # type: ignore[arg-type]
        assert set(asked.pop()) == wide


def test_pairs_have_a_column_of_the_child_and_more_than_one_code() -> None:
    """The child's columns make pairs with each other and with all others, listed one by one."""
    farm = Schema({"hills": Boolean(), "land": Categorical(("here",))})
    cow = Schema(
        {"kind": Categorical(("a", "b")), "tag": Categorical(("x",)), "age": Integer(0, 4)}
    )
    steps = LINK.steps(with_counts(farm, [LINK]), cow)
    found = [set(clique) for clique in pipeline.child_workload(steps, cow).cliques]
    expected = [
        {one, other}
        for i, one in enumerate(steps.columns)
        for other in list(steps.columns)[:i]
        if {one, other} & {"kind", "age"} and not {one, other} & {"tag", "land"}
    ]
    assert len(found) == len(expected) and all(pair in expected for pair in found)
    assert {"previous tag", "kind"} in found  # a first child has none, which is a second code
    one = Schema({"tag": Categorical(("x",))})
    lonely = Link("cow", "farm", "id", 1, count="cows")
    few = lonely.steps(with_counts(Schema({"land": Categorical(("here",))}), [lonely]), one)
    assert pipeline.child_workload(few, one).cliques == (("tag",),)


def frames_of(numbers: list[int]) -> dict[str, Any]:
    """Return a frame of farms with these numbers of cows, and one of the cows."""
    ids = np.arange(len(numbers))
    cows = np.repeat(ids, numbers)
    return {
        "farm": pd.DataFrame({"id": ids, "hills": ids % 2 == 0}),
        "cow": pd.DataFrame({"id": cows, "kind": np.where(np.arange(len(cows)) % 3, "a", "b")}),
    }


SCHEMAS = {"farm": Schema({"hills": Boolean()}), "cow": Schema({"kind": Categorical(("a", "b"))})}


def spied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, float, str | None]]:
    """The relation, the cost and the place of each part of a Curator, in turn."""
    seen: list[tuple[Any, float, str | None]] = []
    table = Curator.table

    def noted(self: Curator, data: Any, neighbours: Any, cost: float, **options: Any) -> Curator:
        seen.append((neighbours, cost, options.get("place")))
        return table(self, data, neighbours, cost, **options)

    monkeypatch.setattr(Curator, "table", noted)
    return seen


def made(numbers: list[int], most: int = 3, **options: Any) -> Any:
    link = Link("cow", "farm", "id", most, count="cows")
    given = {"epsilon": 200.0, "delta": 1e-6, "mechanism": "mst", "seed": 0} | options
    return synthesize_linked(frames_of(numbers), SCHEMAS, [link], **given)


@pytest.mark.parametrize(
    ("ones", "twos", "threes", "placed"),
    [
        # (N_1 + N_2 + N_3)^2 / 3 (N_1^2 + N_2^2 + N_3^2) is .722, .778, 1, .333 and .667.
        (40, 20, 10, True),
        (30, 20, 15, False),
        (0, 0, 40, False),
        (60, 0, 0, True),
        (0, 60, 0, True),
    ],
)
@pytest.mark.parametrize("mechanism", ["mst", "independent"])
def test_the_position_is_in_all_tables_where_few_children_are_at_many_positions(
    ones: int, twos: int, threes: int, placed: bool, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = [ones + twos + threes, twos + threes, threes]
    share = sum(at) ** 2 / (3 * sum(n * n for n in at))
    assert (share < 0.75) == placed and abs(share - 0.75) > 0.02
    seen = spied(monkeypatch)
    made([1] * ones + [2] * twos + [3] * threes, mechanism=mechanism)
    places = [place for _, _, place in seen]
    assert places == [None, None, *(["position"] if placed and mechanism == "mst" else [])]


def test_parts_of_the_budget_are_in_proportion_to_the_rows_of_a_unit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The share of a table is proportional to the power 2/3 of the rows that a unit has in it. A
    table of children has a private number of rows even if a unit has at most one of them.
    """
    for most in (1, 2, 3):
        with monkeypatch.context() as patched:
            seen = spied(patched)
            release = made([min(most, 1)] * 30, most=most, neighbours="replace-one")
        total = release.ledger.budget.total
        (farms, one, _), (cows, other, _) = seen[:2]
        assert one == pytest.approx(total / (1 + most ** (2 / 3)))
        assert other == pytest.approx(total - one)
        assert (farms.max_rows, cows.max_rows) == (1, most)
        assert farms.rows_public and not cows.rows_public
        said = "replace-one of id" + f" (max_rows {most})" * (most > 1)
        assert (farms.name, cows.name) == ("replace-one of id (max_rows 1)", said)
        assert release.ledger.spent == pytest.approx(total)


def test_children_begin_with_their_parents_tables_and_those_by_number() -> None:
    release = made([1, 2, 3] * 30)
    for numbered, mechanism in ((True, "mst"), (False, "independent")):
        found = made([1, 2, 3] * 30, mechanism=mechanism).children["cow"].measurements
        assert (("cows", "position") in {m.clique for m in found}) == numbered
        by_number = [m for m in found if m.clique == ("cows", "position", "kind")]
        assert len(by_number) == 3 * numbered
    # The number of cows is that of the parents' table.
    numbers = release.parents.model.marginal(("cows",))
    assert numbers.shape == (4,)
    assert release.children["cow"].model.total == pytest.approx(numbers @ np.arange(4), rel=0.1)


def test_rules_are_in_the_run_of_a_mechanism_that_can_hold_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With other zeros the model is fitted again; neither model has a record that breaks a rule."""
    run_on, seen = pipeline.run_on, list[Any]()

    def noted(table: Any, entry: Any, *given: Any, zeros: Any, **options: Any) -> Any:
        seen.append((entry.name, [z.clique for z in zeros]))
        return run_on(table, entry, *given, zeros=zeros, **options)

    monkeypatch.setattr(pipeline, "run_on", noted)
    rule = Forbid({"position": 1, "kind": "a"})
    link = Link("cow", "farm", "id", 3, count="cows", constraints=(rule,))
    for mechanism, held in (("aim", [("position", "kind")]), ("independent", [])):
        release = synthesize_linked(
            frames_of([1, 2, 3] * 20), SCHEMAS, [link], epsilon=5.0, delta=1e-6, seed=0,
            mechanism=mechanism)  # fmt: skip
        assert seen == [(mechanism, []), (mechanism, held)]
        seen.clear()
        table = release.children["cow"].model.marginal(("position", "kind"))
        assert table[0, 0] == 0 and table[1, 0] > 0


def test_warnings_name_the_line_that_calls_and_tables_are_told_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warnings tell of columns that hide what they cannot read, unless it is counted, of what was
    not read, and of models that fit poorly.
    """
    frames = frames_of([1, 2, 3] * 200)
    frames["farm"]["unheard of"] = frames["farm"].pop("hills")
    frames["cow"]["kind"] = "?"
    schemas = {"farm": Schema({"unheard of": Boolean()}), "cow": SCHEMAS["cow"]}
    link = Link("cow", "farm", "id", 3, count="cows")
    monkeypatch.setattr(
        pipeline, "warn_of_poor_fit", lambda _, level: warnings.warn("a poor fit", stacklevel=level)
    )
    for report_unread in (True, False):
        with caplog.at_level("INFO"), pytest.warns(UserWarning) as told:
            synthesize_linked(frames, schemas, [link], epsilon=10.0, delta=1e-6, seed=0,
                              mechanism="mst", report_unread=report_unread)  # fmt: skip
        said = [str(each.message) for each in told if each.filename == __file__]
        assert sum("poor fit" in each for each in said) == 2
        assert sum("unheard of as" in each for each in said) == (not report_unread)
        assert sum("kind could not be read" in each for each in said) == report_unread
    assert [r.getMessage() for r in caplog.records if "is measured" in r.getMessage()] == [
        "the table farm is measured", "the table cow is measured"] * 2  # fmt: skip


@pytest.mark.parametrize("most", [1, 3])
def test_what_an_interrupted_run_had_paid_for_is_kept(
    most: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The run ends after the children's tables were measured, by position or without it."""
    interrupt_second_table(monkeypatch)
    frames = frames_of([1] * 300)
    link = Link("cow", "farm", "id", most, count="cows")
    with pytest.raises(KeyboardInterrupt) as caught:
        synthesize_linked(frames, SCHEMAS, [link], epsilon=10.0, delta=1e-6, seed=0,
                          mechanism="mst", report_unread=True)  # fmt: skip
    kept = caught.value.unfinished  # type: ignore[attr-defined]
    kept.save(tmp_path / "kept")
    charges = [each.step for each in kept.tables["farm"].ledger.entries]
    for name, finished in (("farm", True), ("cow", False)):
        release = TableRelease.load(tmp_path / "kept" / f"{name}.pgm")
        assert len(release.measurements) == len(kept.tables[name].measurements) > 0
        assert [each.step for each in release.ledger.entries] == charges
        assert release.mechanism == ("mst" if finished else "mst, unfinished")
        (column,) = SCHEMAS[name].columns
        counts = release.estimated().model.marginal([column])
        assert counts.sum() == pytest.approx(300, abs=60)
    with pytest.raises(FileExistsError):
        kept.save(tmp_path / "kept")


def test_a_model_that_is_too_large_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is refused even if the table of the parents, which comes first, is not."""
    seen = spied(monkeypatch)
    schemas = SCHEMAS | {"cow": Schema({"kind": Integer(0, 79)})}
    link = Link("cow", "farm", "id", 3, count="cows")
    with pytest.raises(InvalidInput, match="model_mb"):
        synthesize_linked(frames_of([1] * 9), schemas, [link], epsilon=5.0, delta=1e-6, seed=0,
                          mechanism="aim", settings={"model_mb": 5e-4})  # fmt: skip
    assert not seen


def test_first_children_are_no_children_whose_siblings_values_are_missing() -> None:
    """Missing values are counted in columns of one's own alone: all previous ones are missing."""
    told: list[Any] = []
    made([1] * 40, report_unread=told.append, epsilon=1.0)
    assert [[*each.shares] for each in told] == [
        ["hills", "cows"],
        ["hills", "cows", "position", "previous kind", "kind"],
    ]
    assert [each.missing for each in told] == [{}, {}]
