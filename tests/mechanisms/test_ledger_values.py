"""What a stored ledger may say, and how one is shown."""

import math
import re
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mechanisms.privacy.budget import Budget, LedgerEntry
from mechanisms.privacy.chained_lines import ChainedLines
from mechanisms.privacy.ledger import BudgetExceeded, Ledger
from mechanisms.privacy.ledger_view import as_html, by_step
from mechanisms.privacy.neighbours import relation
from mechanisms.release.page import promise
from mechanisms.synthesis.plan import Plan, PlannedStep
from pgmkit.errors import InvalidInput

NAMES = ("", "replace-one", "add/remove", "add/remove of a home (max_rows 3)")


def stored(neighbours: str = "replace-one", **entry: object) -> dict[str, Any]:
    ledger = Ledger(Budget(1.0, 1e-6, reserved=5e-7), neighbours=neighbours)
    ledger.charge("s", "m", ledger.remaining / 4, 1e-7)
    values = ledger.to_dict()
    values["entries"] = [{**values["entries"][0], **entry}]
    return values


@pytest.mark.parametrize("neighbours", NAMES)
def test_a_stored_ledger_is_the_same(neighbours: str) -> None:
    values = stored(neighbours)
    assert Ledger.from_dict(values).to_dict() == values
    total = values["total"]
    exact = stored(neighbours, cost=total, delta=5e-7)
    assert Ledger.from_dict(exact).remaining == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        *({"neighbours": name} for name in ("both", "replace", None, 3)),
        *({"secure": value} for value in (1, None, "yes")),
        {"accounting": "none"},
        *({"entries": value} for value in (None, 3, [3], [{"step": "s"}], [{"price": 1.0}])),
    ],
)
def test_a_stored_ledger_that_promises_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        Ledger.from_dict({**stored(), **wrong})


def test_a_stored_ledger_without_a_part_is_refused_by_its_name() -> None:
    values = stored()
    for name in ("secure", "neighbours", "epsilon", "delta", "reserved", "entries"):
        without = {each: value for each, value in values.items() if each != name}
        with pytest.raises(InvalidInput, match=f"must have the entry '{name}'"):
            Ledger.from_dict(without)
    del values["accounting"]  # as in files of before it could be chosen
    assert Ledger.from_dict(values).budget.accounting == "zcdp"


@pytest.mark.parametrize(
    "entry",
    [
        *({"cost": value} for value in (-0.01, 0.0, math.nan, math.inf, "0.01", True, 10.0)),
        *({"delta": value} for value in (-1e-9, math.nan, "0", True, 6e-7)),
        *({name: None} for name in ("step", "mechanism")),
    ],
)
def test_stored_charges_are_checked_as_new_ones(entry: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        Ledger.from_dict(stored(**entry))
    ledger = Ledger(Budget(1.0, 1e-6, reserved=5e-7))
    charge: dict[str, Any] = {"step": "s", "mechanism": "m", "cost": 1e-3, **entry}
    with pytest.raises((InvalidInput, BudgetExceeded)):
        ledger.charge(**charge)
    assert ledger.entries == () and ledger.spent == 0.0


def test_the_text_adds_costs_up_and_aligns_them() -> None:
    ledger = Ledger(Budget(2.0), secure=False, neighbours="add/remove")
    ledger.charge("a long name\nof a step", "x", 0.5)
    ledger.charge("b", "a\nmechanism", 0.25)
    *rows, spent, insecure = str(ledger).splitlines()
    assert len({len(row) for row in rows}) == 1 and len(rows) == 3
    found = [re.split(r"\s{2,}", row.strip())[-2:] for row in rows]
    assert found == [["epsilon", "cumulative epsilon"], ["0.5", "0.5"], ["0.25", "0.75"]]
    assert spent == "spent 0.75 of 2 (epsilon = 2, delta = 0), neighbours: add/remove"
    assert insecure.startswith("INSECURE")
    assert "INSECURE" not in str(Ledger(Budget(1.0))) and "neighbours" not in str(Ledger(Budget(1)))


def test_the_page_puts_rounds_of_one_step_together() -> None:
    ledger = Ledger(Budget(2.0), secure=False)
    for step in ("round 1: select", "round 2: select", "measure"):
        ledger.charge(step, "x", 0.5)
    ledger.charge("round 1: select", "y", 0.25)
    cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", ledger._repr_html_())
    assert re.findall(r"<td( style)?", ledger._repr_html_())[:5] == ["", "", *[" style"] * 3]
    assert cells[:5] == ["step", "noise", "times", "share of the budget", "cumulative epsilon"]
    assert [cells[i : i + 5] for i in range(5, len(cells), 5)] == [
        ["round: select", "x", "2", "50.0%", "1"],
        ["measure", "x", "1", "25.0%", "1.5"],
        ["round: select", "y", "1", "12.5%", "1.75"],
    ]
    assert "1.75 of 2 epsilon spent" in ledger._repr_html_()
    assert "INSECURE" in ledger._repr_html_()
    assert "INSECURE" not in Ledger(Budget(1.0))._repr_html_()
    assert repr(ledger) == "<Ledger: 4 charges, 1.75 of 2 epsilon>"


@pytest.mark.parametrize("damage", [b"", b"{}\n", b"\xff\n", b"[1]\n"])
def test_a_file_that_was_damaged_meanwhile_is_refused_by_its_name(
    tmp_path: Path, damage: bytes
) -> None:
    path = tmp_path / "all.ledger"
    ledger = Ledger.create(path, Budget(1.0, 1e-6), neighbours="replace-one")
    run = ledger.begin_run(Budget(0.1, 1e-6), "replace-one")
    assert list(ledger.open_runs) == [run] == [1]
    path.write_bytes(damage)
    for call in (
        lambda: ledger.charge("s", "m", 1e-6),
        lambda: ledger.begin_run(Budget(0.1, 1e-6), "replace-one"),
        lambda: ledger.end_run(run),
        lambda: Ledger.open(path),
    ):
        with pytest.raises(InvalidInput, match=r"all\.ledger' is not a ledger file"):
            call()
    assert path.read_bytes() == damage
    with pytest.raises(InvalidInput, match=r"all\.ledger' is not a ledger file"):
        _ = ledger.entries
    with pytest.raises(InvalidInput, match=r"all\.ledger' is not a ledger file"):
        _ = ledger.open_runs


def test_sealed_lines_that_make_no_ledger_are_refused_by_the_name_of_the_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "all.ledger"
    ledger = Ledger.create(path, Budget(1.0, 1e-6), neighbours="replace-one")
    ChainedLines(path).append(lambda before: {"run": 7, "holds": 0.1, "delta": 0.0})
    before = path.read_bytes()
    for call in (
        lambda: ledger.entries,
        lambda: ledger.open_runs,
        lambda: ledger.charge("s", "m", 1e-6),
        lambda: ledger.begin_run(Budget(0.1, 1e-6), "replace-one"),
        lambda: ledger.end_run(7),
        lambda: Ledger.open(path),
    ):
        with pytest.raises(InvalidInput, match=r"all\.ledger' is not a ledger file: run 7 begins"):
            call()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "entry",
    [
        {"cost": -0.01},
        {"cost": 0.0},
        {"cost": 1e-320},
        {"cost": 9e-101},
        {"cost": math.nan},
        {"delta": -1e-9},
        {"step": None},
    ],
)
def test_charges_of_no_run_are_checked_too(tmp_path: Path, entry: dict[str, object]) -> None:
    ledger = Ledger.create(tmp_path / "l", Budget(1.0, 1e-6), neighbours="replace-one")
    charge: dict[str, Any] = {"step": "s", "mechanism": "m", "cost": 1e-3, **entry}
    with pytest.raises(InvalidInput):
        ledger.charge(**charge)
    assert ledger.entries == ()
    ledger.charge("s", "m", 1e-3)
    assert ledger.entries == (LedgerEntry("s", "m", 1e-3, 0.0),) and ledger.secure
    ledger.record(LedgerEntry("s", "m", 1e-3, 0.0), 0, secure=False)
    assert not ledger.secure and not Ledger.open(tmp_path / "l").secure
    assert [entry.cost for entry in Ledger.open(tmp_path / "l").entries] == [1e-3, 1e-3]


def test_costs_of_any_type_of_number_are_kept_as_floats(tmp_path: Path) -> None:
    budget = Budget(64.0, 1e-6, reserved=5e-7)
    for ledger in (
        Ledger(budget),
        Ledger.create(tmp_path / "l", budget, neighbours="replace-one"),
    ):
        for cost in (np.float32(0.25), np.int64(1), Fraction(1, 8)):
            ledger.charge("s", "m", cost, delta=0)
        assert [each.cost for each in ledger.entries] == [0.25, 1.0, 0.125]
        assert {type(each.cost) for each in ledger.entries} == {float}
        assert {type(each.delta) for each in ledger.entries} == {float}


def test_a_ledger_takes_runs_of_its_own_accounting(tmp_path: Path) -> None:
    """Gaussian DP implies no zCDP, and the budget of one is no budget of the other."""
    plain, gaussian = Budget(1.0, 1e-6), Budget(1.0, 1e-6, accounting="gaussian")
    small = {name: Budget(0.1, 1e-6, accounting=name) for name in ("zcdp", "gaussian")}
    ledger = Ledger.create(tmp_path / "gaussian", gaussian, neighbours="replace-one")
    ledger.begin_run(small["gaussian"], "replace-one")
    with pytest.raises(InvalidInput, match="accounting='gaussian'"):
        ledger.begin_run(small["zcdp"], "replace-one")
    assert list(ledger.open_runs) == [1]
    ledger = Ledger.create(tmp_path / "plain", plain, neighbours="replace-one")
    ledger.begin_run(small["zcdp"], "replace-one")
    for budget, neighbours in ((small["zcdp"], "add/remove"), (Budget(0.1), "replace-one")):
        with pytest.raises(InvalidInput, match="do not add up"):
            ledger.begin_run(budget, neighbours)
    assert list(ledger.open_runs) == [1]


def test_a_ledger_of_units_takes_runs_of_any_number_of_their_rows(tmp_path: Path) -> None:
    budget, run = Budget(1.0, 1e-6), Budget(0.1, 1e-6)
    ledger = Ledger.create(tmp_path / "l", budget, neighbours="add/remove", unit="home")
    assert ledger.neighbours == "add/remove of home"
    for rows in (1, 3):
        ledger.begin_run(run, relation("add/remove", "home", rows).name)
    for other in ("add/remove", relation("add/remove", "person", 3).name):
        with pytest.raises(InvalidInput, match="do not add up"):
            ledger.begin_run(run, other)


def test_the_page_ends_with_the_promise() -> None:
    """In zCDP rho is no epsilon: all that is spent is the epsilon that was promised."""
    ledger = Ledger(Budget(1.0, 1e-6))
    ledger.charge("s", "m", ledger.remaining)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", ledger._repr_html_())
    assert cells == ["s", "m", "1", "100.0%", "1"]


def test_a_promise_is_not_rounded() -> None:
    """Six digits of the epsilon would promise more than was kept."""
    ledger = Ledger(Budget(1.0000004, 1.2345678e-6))
    said = "epsilon = 1.0000004, delta = 1.2345678e-06"
    release = SimpleNamespace(ledger=ledger, exception="", secure=True)
    assert said in str(ledger) and said in promise(release)


def test_charges_are_shown_by_step_without_rounds_and_columns() -> None:
    names = ["age", "age group", "a+b", "sex", "(pay)"]
    steps = {
        "round 3: measure age x sex": "round: measure",
        "round 12: measure age group x a+b": "round: measure",
        "round 2: select 5": "round: select",
        "measure age group": "measure",
        "2-way: measure queries of sex x (pay)": "2-way: measure queries",
        "first: measure (pay)": "first: measure",
        "measure garage": "measure garage",
        "top 3 of cells": "top 3 of cells",
        "run 2: round 3: measure sex": "run 2: round: measure",
        "run 12": "run 12",
    }
    charges = [LedgerEntry(step, "m", 0.125) for step in steps]
    shown = dict.fromkeys((step, "m") for step in steps.values())
    assert {each: len(costs) for each, costs in by_step(charges, names).items()} == {
        each: [*steps.values()].count(each[0]) for each in shown
    }
    assert [*by_step(charges[:1])] == [("round: measure age x sex", "m")]


def test_a_small_share_of_the_budget_is_not_shown_as_none() -> None:
    for cost, shown in ((1e-99, "&lt;0.1%"), (0.0004, "&lt;0.1%"), (0.0007, "0.1%"), (1, "100.0%")):
        page = as_html(Budget(1.0), [LedgerEntry("s", "m", cost)], secure=True)
        assert f">{shown}<" in page
    steps = (PlannedStep("s", "m", 1, 0.0004), PlannedStep("t", "m", 9, 0.9996))
    planned = str(Plan("mst", "rho", 1.0, steps, 9, 1.0, None, 1.0, 1.0, "add/remove"))
    assert "    1 x   <0.1%  m" in planned and "    9 x  100.0%  m" in planned


def test_a_charge_without_a_name_is_refused_with_what_was_given() -> None:
    for step, name in ((3, "m"), ("s", None)):
        with pytest.raises(InvalidInput, match=f"must be texts, got {step!r} and {name!r}"):
            LedgerEntry(step, name, 0.5).checked()  # type: ignore[arg-type]
