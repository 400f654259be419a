"""Parts of linked tables one by one: keys that occur twice, draws under conditions, distances."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from chance import assert_follows

from mechanisms.linked.coding import coded, ranks_of
from mechanisms.linked.conditional import draw_given
from mechanisms.linked.fidelity import Compared, compared, fidelity
from mechanisms.linked.link import Link, check_links, counted
from mechanisms.linked.siblings import Wanted
from pgmkit import Dataset, Domain, Schema
from pgmkit.errors import InvalidInput
from pgmkit.tables.labelled import Boolean
from pgmkit.tables.numbers import Integer
from pgmkit.tables.values import series_values

LINKS = [
    Link("order", "customer", "customer", 3, count="orders"),
    Link("item", "order", "order", 2, count="items"),
]


class Drawn:
    """Draws of customers with 0 to 3 orders of 0 to 2 items, which are kept one after another."""

    def __init__(self, seed: int, meeting: float) -> None:
        self.rng, self.meeting = np.random.default_rng(seed), meeting
        self.model = SimpleNamespace(total=400.0)
        self.asked: list[tuple[int | None, Any]] = []
        self.fitted: list[int] = []
        self.orders: list[dict[str, Any]] = []
        """All customers that were asked for, with the codes of their orders and of their items."""

    def codes(self, n: int | None = None, *, given: Any = None, rng: Any = None) -> Dataset:
        self.asked.append((n, given))
        domain, n = Domain({"number": 10_000, "orders": 4}), 400 if n is None else n
        first = len(self.asked) * 1000
        orders = self.rng.integers(0, 4, n)
        return Dataset(domain, {"number": first + np.arange(n), "orders": orders})

    def below(self, top: Any, fitted: int) -> Any:
        self.fitted.append(fitted)
        of = np.repeat(top["number"], top["orders"].astype(int))
        order = {"of": of, "late": (self.rng.random(len(of)) < self.meeting).astype(int)}
        order["items"] = self.rng.integers(0, 3, len(of))
        item = {"of": np.repeat(of, order["items"])}
        item["kind"] = self.rng.integers(0, 2, len(item["of"]))
        rows = {"customer": top, "order": order, "item": item}
        self.orders.append({name: dict(each) for name, each in rows.items()})
        return rows


@pytest.mark.parametrize("of_customers", [False, True])
@pytest.mark.parametrize("n", [None, 50, 600])
def test_rows_that_meet_conditions_are_kept_with_all_their_descendants(
    n: int | None, of_customers: bool
) -> None:
    """The result is that of a search through all that was drawn, customer by customer. With
    conditions on customers a whole population is drawn too, of which nothing is kept.
    """
    parents, known = Drawn(0, 0.5), 400 * of_customers
    given: Any = {"customer": "the condition"} if of_customers else {}
    allowed = {
        "order": {"late": np.array([False, True])},
        "item": {"kind": np.array([True, False])},
    }
    if of_customers:
        allowed["customer"] = {"number": np.ones(10_000, bool)}
    rows = draw_given(LINKS, parents, given, allowed, n, parents.below, parents.rng)  # type: ignore[arg-type]
    wanted: dict[str, list[Any]] = {"customer": [], "order": [], "item": []}
    for drawn, fitted in zip(parents.orders, parents.fitted, strict=True):
        assert fitted == (known or len(drawn["customer"]["number"]))
        for place, number in enumerate(drawn["customer"]["number"].tolist()):
            order, item = drawn["order"], drawn["item"]
            own, things = order["of"] == number, item["of"] == number
            meets = order["late"][own].any() and (item["kind"][things] == 0).any()
            if place >= known and meets and len(wanted["customer"]) < (n or 10_000):
                wanted["customer"].append(number)
                wanted["order"] += [(number, late) for late in order["late"][own].tolist()]
                wanted["item"] += [(number, kind) for kind in item["kind"][things].tolist()]
    assert rows["customer"]["number"].tolist() == wanted["customer"]
    for table, column in (("order", "late"), ("item", "kind")):
        found = zip(rows[table]["of"].tolist(), rows[table][column].tolist(), strict=True)
        assert list(found) == wanted[table]
    assert len(wanted["customer"]) == (n or len(wanted["customer"])) > 0
    # No draw is made after the last one that is needed, and each is at least a population.
    batches = [asked for asked, _ in parents.asked[of_customers:]]
    assert set(batches) == {None if n is None else max(n, 400)}
    assert len(batches) == len(parents.orders) == {None: 1, 50: 1, 600: 3}[n]
    assert {condition for _, condition in parents.asked[of_customers:]} == {given.get("customer")}


@pytest.mark.parametrize("n", [None, 30, 500])
def test_conditions_on_the_topmost_table_alone_need_one_draw(n: int | None) -> None:
    parents = Drawn(0, 0.5)
    given: Any = {"customer": "the condition"}
    allowed = {"customer": {"number": np.ones(10_000, bool)}}
    rows = draw_given(LINKS, parents, given, allowed, n, parents.below, parents.rng)  # type: ignore[arg-type]
    assert parents.asked == [(None, None), (n, "the condition")] and parents.fitted == [400]
    (drawn,) = parents.orders
    assert rows["customer"]["number"].tolist() == drawn["customer"]["number"][400:].tolist()
    assert len(rows["customer"]["number"]) == (n or 400)


@pytest.mark.parametrize(("kept", "refused"), [(99, True), (100, False)])
def test_conditions_that_less_than_a_tenth_meets_are_refused(kept: int, refused: bool) -> None:
    """The share is that of the first draw. The error proposes ten times the rows that met them."""
    domain = Domain({"orders": 4})

    class Fixed:
        model = SimpleNamespace(total=400.0)

        def codes(self, n: int, **_: Any) -> Dataset:
            return Dataset(domain, {"orders": (np.arange(n) < kept).astype(int)})

    def below(top: Any, _: int) -> Any:
        return {"customer": top, "order": {"late": np.ones(int(top["orders"].sum()), int)}}

    allowed, rng = {"order": {"late": np.array([False, True])}}, np.random.default_rng(0)
    options: Any = LINKS[:1], Fixed(), {}, allowed, 1000, below, rng
    if refused:
        with pytest.raises(InvalidInput, match="too few for n = 1000; ask for at most 990, or"):
            draw_given(*options)
    else:
        assert draw_given(*options)["customer"]["orders"].tolist() == [1] * 1000


def test_one_of_several_parents_with_one_key_is_drawn_for_their_children() -> None:
    """Each customer has two orders with one key, and which one has the item is a fair coin; the
    other has none.
    """
    customers, n = range(2000), 2000
    frames = {
        "customer": pd.DataFrame({"customer": customers}),
        "order": pd.DataFrame(
            {"customer": np.repeat(customers, 2), "order": np.repeat(customers, 2)}
        ).assign(late=[False, True] * n, no=[1, 2] * n),
        "item": pd.DataFrame({"order": customers, "kind": 0}),
    }
    schemas = {
        "customer": Schema({"new": Boolean()}),
        "order": Schema({"late": Boolean()}),
        "item": Schema({"kind": Integer(0, 1)}),
    }
    frames["customer"]["new"] = True
    links = [replace(LINKS[0], order="no"), LINKS[1]]
    whole = counted(schemas, links)
    steps = {link.child: link.steps(whole[link.parent], whole[link.child]) for link in links}
    found = coded(frames, schemas, links, steps, np.random.default_rng(0))
    orders, items = found["order"], found["item"]
    assert isinstance(orders, Dataset) and isinstance(items, Dataset)
    assert orders.marginal(("items",)).tolist() == [n, n, 0] and len(items) == n
    assert_follows(items.marginal(("late",)), [1.0, 1.0])


def test_distances_of_next_to_no_records_are_finite() -> None:
    """One record is a whole table; a table of no records has shares of 0, and its noise is that of
    a table of one record.
    """
    for counts, own, noise, apart in (
        ([1.0, 0.0, 0.0], [0, 1, 0], 1.0, 1.0),
        ([1.0, 0.0, 0.0], [0, 0, 0], 1.0, 0.5),
        ([0.0, 0.0, 0.0], [0, 0, 0], 1.0, 0.0),
        ([3.0, 1.0, 0.0], [1, 1, 2], 0.25, 0.5),
    ):
        wanted = Wanted(("a",), np.array(counts), 0.5)
        for pure, mean in ((True, math.sqrt(0.5)), (False, math.sqrt(2 / math.pi))):
            found = compared("t", "k", wanted, {("a",): np.array(own)}.__getitem__, pure=pure)
            assert (found.table, found.kind, found.clique) == ("t", "k", ("a",))
            assert found.noise == pytest.approx(0.5 * 3 * 0.5 * mean * noise)
            assert found.records == pytest.approx(apart)
    lines = [Compared(*each) for each in (
        ("t", "k", ("a",), 0.1, 0.4), ("t", "l", ("b",), 0.3, 0.6), ("t", "k", ("c",), 0.3, 0.2),
    )]  # fmt: skip
    said = fidelity(lines).columns
    assert [list(said[name]) for name in ("table", "tables over", "measured")] == [
        ["t", "t"], ["k", "l"], ["2", "1"],
    ]  # fmt: skip
    np.testing.assert_allclose(said["noise"], [0.2, 0.3])
    np.testing.assert_allclose(said["records"], [0.3, 0.6])
    assert [len(column) for column in fidelity([]).columns.values()] == [0] * 5


@pytest.mark.parametrize("field", ["parent", "child"])
def test_links_of_a_table_without_a_schema_are_refused(field: str) -> None:
    schemas = {name: Schema({"late": Boolean()}) for name in ("customer", "order", "item")}
    said = "a link speaks of a table that has no schema: 'itemm' .did you mean 'item'.*customer, or"
    with pytest.raises(InvalidInput, match=said):
        check_links(schemas, [*LINKS, Link(**{"child": "item", "parent": "order", field: "itemm"},
                                           key="key", most=2)])  # fmt: skip


def test_siblings_stand_by_finite_numbers_then_by_texts() -> None:
    """Infinities are texts, whatever their sign, and missing values come last."""
    values = [None, math.inf, "b", 2.5, -math.inf, "-inf", "10", -3, "", "a", 1e300]
    ranks = ranks_of(np.array(values, dtype=object))
    order = [values[i] for i in np.argsort(ranks, kind="stable")]
    assert order[:4] == [-3, 2.5, "10", 1e300] and order[-2:] == [None, ""]
    assert set(map(str, order[4:-2])) == {"inf", "-inf", "a", "b"}
    assert ranks[0] == ranks[8] == ranks.max() and ranks[4] == ranks[5]


def test_siblings_stand_by_the_length_of_durations() -> None:
    """Their texts have another order: "10 days" stands before "2 days", "9:00" after "10:00"."""
    hours = pd.to_timedelta([-5, 1, 9, 10, 48, 240], unit="h")
    of_numpy = np.fromiter((np.timedelta64(each) for each in hours), object)
    for values in (pd.Series(hours), pa.array(hours), np.array(hours.to_pytimedelta()), of_numpy):
        assert ranks_of(series_values(values)).tolist() == list(range(6))
    odd = [np.timedelta64(1, "Y"), 3, np.timedelta64(2, "s"), None]
    assert ranks_of(np.fromiter(odd, object)).tolist() == [2, 1, 0, 3]
