"""What notebooks show: well-formed, escaped whatever the names are, bounded in size."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from work import calls

from mechanisms import Budget, Ledger, Release, TableRelease, run
from pgmkit import (
    Categorical,
    Dataset,
    Domain,
    GraphicalModel,
    Interval,
    Measurement,
    Reply,
    Schema,
    error_bars,
    estimate,
)
from pgmkit.runtime.html import MOST_COLUMNS
from pgmkit.runtime.html import bars as chart

HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "' onload='alert(1)",
    "</td></table></svg><b>&amp;&lt;",
    "]]><!--",
    "{{7*7}}",
)
ALLOWED = {
    *("table", "caption", "tr", "th", "td", "svg", "line", "circle", "rect", "title", "text"),
    *("figure", "figcaption", "p", "strong"),
}


def parsed(text: str) -> ElementTree.Element:
    """The text as XML, which it is if everything is closed and escaped; only plain elements."""
    root = ElementTree.fromstring(f"<div>{text}</div>")
    for element in list(root.iter())[1:]:
        assert element.tag.rpartition("}")[2] in ALLOWED, element.tag
        assert not [name for name in element.attrib if name.startswith("on")]
        assert not {"href", "src"} & set(element.attrib)
    return root


def words(text: str) -> str:
    return "\n".join(parsed(text).itertext())


@pytest.fixture(scope="module")
def domain() -> Domain:
    return Domain({name: 3 for name in HOSTILE})


@pytest.fixture(scope="module")
def released(domain: Domain) -> TableRelease:
    rng = np.random.default_rng(0)
    data = Dataset(domain, {name: rng.integers(0, 3, 300) for name in domain})
    pairs = [tuple(HOSTILE[i : i + 2]) for i in range(5)]
    plain = run("mst", data, pairs, 1.0, 1e-6, neighbours="add/remove", seed=0)
    schema = Schema({name: Categorical(HOSTILE[:3]) for name in HOSTILE})
    return TableRelease(replace(plain, reason=HOSTILE[0]), schema)


def test_models_are_drawn_and_escaped(domain: Domain) -> None:
    tables = [Measurement(HOSTILE[i : i + 2], np.full(9, 10.0), 1.0) for i in range(5)]
    model = estimate(domain, tables)
    shown = model._repr_html_()
    for name in HOSTILE:
        assert name in words(shown)
    assert shown.count("<circle") == 6 and shown.count("<line") == 5
    wide = estimate(Domain({f"a{i}": 2 for i in range(500)}), [Measurement(("a0",), [1, 2], 1.0)])
    assert len(wide._repr_html_()) < 10_000
    bars = error_bars(model, tables).marginal(HOSTILE[:2])
    assert "intervals at level 0.95, closed form" in words(bars._repr_html_())


def test_a_model_shows_what_is_known_of_it_and_draws_as_many_attributes_as_can_be_read() -> None:
    domain = Domain({"a": 2})
    known = estimate(domain, [Measurement(("a",), [3.0, 1.0 + i], 1.0) for i in range(2)])
    shown, bare = (words(m._repr_html_()) for m in (known, GraphicalModel(domain, (), 4.0)))
    assert known.certificate in shown and str(known.fit) in shown
    assert "search" not in bare and "fit" not in bare
    for columns in (MOST_COLUMNS, MOST_COLUMNS + 1):
        model = GraphicalModel(Domain({f"x{i}": 2 for i in range(columns)}), (), 1.0)
        assert model._repr_html_().count("<circle") == columns * (columns == MOST_COLUMNS)


def test_tables_and_intervals_are_cut() -> None:
    zeros = np.zeros((100, 100))
    bars = Interval(zeros, zeros, zeros, zeros, 0.9, "bootstrap")
    shown = bars._repr_html_()
    assert shown.count("<tr>") == 25 and "9,976 more rows" in words(shown)
    assert calls(bars._repr_html_) < 10_000  # the other cells are not listed
    reply = Reply({"<b>": HOSTILE * 20, "count": np.arange(120.0)})._repr_html_()
    assert reply.count("<tr>") == 25 and HOSTILE[0] in words(reply) and "<b>" in words(reply)
    assert parsed(Reply({"a": [], "count": np.zeros(0)})._repr_html_()) is not None


def test_a_scalar_interval_shows_its_one_cell() -> None:
    one = np.array(3.5)
    assert "3.5" in words(Interval(one, one, one, one, 0.95, "bootstrap")._repr_html_())


@pytest.mark.parametrize("method", ["closed form", "bootstrap"])
def test_an_interval_says_what_it_covers(method: Literal["closed form", "bootstrap"]) -> None:
    one = np.array([3.5])
    shown = Interval(one, one, one, one, 0.95, method)._repr_html_()
    assert ("of noise alone, not of the model" in words(shown)) == (method == "bootstrap")
    # Of the cell, the estimate, its error and the ends, all but the cell are numbers.
    assert shown.count("text-align: right") == 8 and "<th>cell</th>" in shown


@pytest.mark.parametrize("level", [0.975, 0.9999999, 1 - 2.0**-52])
def test_a_level_is_not_rounded(level: float) -> None:
    one = np.array([3.5])
    shown = words(Interval(one, one, one, one, level, "bootstrap")._repr_html_())
    assert float(shown.split("at level ")[1].split(",")[0]) == level


def test_releases_show_promise_warnings_and_ledger(released: TableRelease) -> None:
    for shown in (released._repr_html_(), released.release._repr_html_()):
        text = words(shown)
        assert "epsilon = 1, delta = 1e-06" in text and "INSECURE" in text and "mst" in text
        assert f"{len(released.measurements)}" in text and "cumulative epsilon" in text
    text = words(released._repr_html_())
    assert all(name in text for name in HOSTILE)
    table = released.table(HOSTILE[1])
    assert all(label in words(table._repr_html_()) for label in HOSTILE[:3])


def test_ledgers_put_rounds_together() -> None:
    ledger = Ledger(Budget(1.0, 1e-6), neighbours="add/remove")
    for i in range(30):
        ledger.charge(f"round {i}: <measure>", "discrete Gaussian", ledger.remaining / 40)
    root = parsed(ledger._repr_html_())
    rows = [[cell.text for cell in row] for row in root.iter("tr")]
    assert len(rows) == 2 and rows[1][:3] == ["round: <measure>", "discrete Gaussian", "30"]
    assert rows[1][4] == f"{ledger.budget.epsilon_spent(ledger.spent):.4g}"
    insecure = Ledger(Budget(1.0), secure=False)
    assert "INSECURE" in words(insecure._repr_html_())


def test_nothing_is_shown_that_the_release_does_not_hold(released: TableRelease) -> None:
    """The same page comes from a release that was saved and loaded: no data are behind it."""
    stored: dict[str, Any] = vars(released.release)
    assert Release(**stored)._repr_html_() == released.release._repr_html_()


@pytest.mark.parametrize("whiskers", [False, True])
def test_charts_keep_hostile_labels_in_their_place(whiskers: bool) -> None:
    counts = np.array([1.0, 5.0, -2.0, 0.0, 3.0, 8.0])
    ends = (counts - 1, counts + 1) if whiskers else None
    root = parsed(chart(HOSTILE[0], HOSTILE, counts, ends))
    assert len([e for e in root.iter() if e.tag.endswith("rect")]) == 6
    many = [f"v{i}" for i in range(100)]
    assert "76 rarer values" in words(chart("x", many, np.arange(100.0)))
    alike = [f"a range of values, 18 {rest}" for rest in ("and below", "and above")]
    drawn = words(chart("x", alike, counts[:2]))
    assert "a range …and below" in drawn and "a range …and above" in drawn
    assert "%" not in words(chart("x", ["a"], np.zeros(1), total=0.0))
