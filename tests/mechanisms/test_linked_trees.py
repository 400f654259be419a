"""Children of children: customers, their orders and calls, and the items of orders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from mechanisms import load_linked_schema, synthesize_linked
from mechanisms.cli import main
from mechanisms.linked import coding
from mechanisms.linked.coding import coded
from mechanisms.linked.fidelity import Compared
from mechanisms.linked.inherited import inherited
from mechanisms.linked.link import Link, check_links, counted
from mechanisms.linked.release import LinkedRelease
from mechanisms.linked.report import farthest_tables, html
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import relation
from mechanisms.privacy.units import random_keys
from pgmkit import Schema
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.measurement import Measurement
from pgmkit.records.dataset import Dataset
from pgmkit.tables.constraints import Forbid
from pgmkit.tables.labelled import Categorical
from pgmkit.tables.numbers import Integer

SCHEMAS = {
    "customer": Schema({"sector": Categorical(("home", "work"))}),
    "order": Schema({"status": Categorical(("F", "O")), "year": Integer(0, 2)}),
    "item": Schema({"kind": Categorical(("a", "b", "c")), "sent": Categorical(("F", "O"))}),
    "call": Schema({"loud": Categorical(("no", "yes"))}),
}
ORDERS = Link("order", "customer", key="customer", most=3, order="date", count="orders")
ITEMS = Link("item", "order", key="of", parent_key="order", most=2, order="line", count="items")
CALLS = Link("call", "customer", key="customer", most=2, count="calls")
LINKS = [ITEMS, CALLS, ORDERS]  # any order will do


def shop(rng: np.random.Generator, ids: range) -> dict[str, Any]:
    """Customers with 0 to 4 orders of 0 to 3 items, which are sent if the order is finished; all
    items of an order are of one kind.
    """
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
    for i in ids:
        sector = rng.choice(["home", "work"])
        rows["customer"].append({"customer": i, "sector": sector})
        for date in range(int(rng.integers(5))):
            status, kind = rng.choice(["F", "O"]), rng.choice(["a", "b", "c"])
            key, items = f"{i}-{date}", int(rng.integers(4))
            order = {"customer": i, "order": key, "date": date, "status": status}
            rows["order"].append({**order, "year": int(sector == "work") + (items > 1)})
            for line in range(items):
                rows["item"].append({"of": key, "line": line, "kind": kind, "sent": status})
        rows["call"] += [{"customer": i, "loud": "yes"}] * int(rng.integers(3))
    columns = {"order": ["customer", "order", "date", "status", "year"]}
    columns |= {"item": ["of", "line", "kind", "sent"], "call": ["customer", "loud"]}
    return {name: pd.DataFrame(each, columns=columns.get(name)) for name, each in rows.items()}


def run(frames: dict[str, Any], **options: Any) -> LinkedRelease:
    given = {"epsilon": 100.0, "delta": 1e-6, "seed": 0, "mechanism": "mst"} | options
    links = given.pop("links", LINKS)
    return synthesize_linked(frames, given.pop("schemas", SCHEMAS), links, **given)


def steps_of(links: list[Link]) -> tuple[tuple[Link, ...], dict[str, Schema]]:
    ordered = check_links(SCHEMAS, links)
    whole = counted(SCHEMAS, ordered)
    return ordered, {
        each.child: each.steps(whole[each.parent], whole[each.child]) for each in links
    }


def test_descendants_are_coded_with_their_own_parents() -> None:
    """Each item with its order's columns and the number of items there, counted with pandas."""
    frames = shop(np.random.default_rng(0), range(60))
    # At most three orders and two items, so that all are kept; one order of the rows is as good as
    # another.
    frames["order"] = frames["order"].query("date < 3")
    frames["item"] = frames["item"].query("line < 2 and of in @frames['order'].order")
    frames = {name: each.sample(frac=1.0, random_state=1) for name, each in frames.items()}
    links, steps = steps_of(LINKS)
    found = coded(frames, SCHEMAS, links, steps, np.random.default_rng(0))
    sizes = frames["item"].groupby("of").size()
    orders = frames["order"].assign(items=frames["order"]["order"].map(sizes).fillna(0).astype(int))
    orders = orders.sort_values(["customer", "date"])
    orders["before"] = orders.groupby("customer")["items"].shift().fillna(3).astype(int)
    items = frames["item"].sort_values(["of", "line"]).merge(orders, left_on="of", right_on="order")
    items["place"] = items.groupby("of").cumcount()
    expected = {
        "order": (("status", "items", "previous items"), orders, ["status", "items", "before"]),
        "item": (("year", "items", "position", "kind"), items, ["year", "items", "place", "kind"]),
    }
    codes = {"F": 0, "O": 1, "a": 0, "b": 1, "c": 2}
    for table, (clique, rows, columns) in expected.items():
        data = found[table]
        assert isinstance(data, Dataset) and len(data) == len(rows) > 60
        places = [rows[name].map(lambda x: codes.get(x, x)).astype(int) for name in columns]
        counts = np.zeros(data.domain.shape(clique))
        np.add.at(counts, tuple(each.to_numpy() for each in places), 1)
        np.testing.assert_array_equal(data.marginal(clique), counts)
    assert isinstance(found["customer"], Dataset)
    numbers = frames["customer"]["customer"].map(frames["order"].groupby("customer").size())
    assert found["customer"].marginal(("orders",)).tolist() == [
        int((numbers.fillna(0) == k).sum()) for k in range(4)
    ]
    assert set(found["customer"].domain) == {"sector", "orders", "calls"}
    assert "sector" not in found["item"].domain


@pytest.mark.parametrize("seed", range(12))
def test_a_unit_changes_no_more_rows_than_it_may(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A customer with all its descendants, some of them without keys, before the others."""
    rng = np.random.default_rng(seed)
    shared, unit = shop(rng, range(1, 9)), shop(rng, range(1))
    extra = pd.DataFrame(
        {"customer": 0, "order": ["x"] * 3 + [f"x{j}" for j in range(6)], "date": None}
    )
    unit["order"] = pd.concat([unit["order"], extra])
    unit["item"] = pd.DataFrame({"of": ["x", "x0", "x1", "x2", None] * 9, "line": range(45)})
    keys = random_keys(1000, np.random.default_rng(seed))
    monkeypatch.setattr(
        coding, "random_keys", lambda count, _: keys[-count:] if count else keys[:0]
    )
    links, steps = steps_of(LINKS)
    placed = {name: schema.placed() for name, schema in SCHEMAS.items()}
    together = {name: pd.concat([unit[name], shared[name]]) for name in shared}
    one, other = (coded(each, placed, links, steps, None) for each in (shared, together))
    most = {"order": 3, "item": 6, "call": 2}
    for table, rows in most.items():
        clique = tuple(steps[table].domain)
        tables = [each[table].marginals([clique])[clique].astype(int) for each in (one, other)]
        change = tables[1] - tables[0]
        assert change.min() >= 0
        assert change.sum() <= rows


@pytest.fixture(scope="module")
def made() -> tuple[dict[str, Any], LinkedRelease]:
    """Data, and a release of them with a rule on orders and items."""
    frames = shop(np.random.default_rng(0), range(300))
    items = replace(ITEMS, constraints=(Forbid({"status": "F", "sent": "O"}),))
    return frames, run(frames, links=[items, CALLS, ORDERS])


def test_keys_fit_at_every_level_and_relations_are_kept(made: Any) -> None:
    frames, release = made
    drawn = release.sample(rng=0)
    assert list(drawn["order"].columns) == [
        *("customer", "date", "order", "status", "year", "items")
    ]
    customer, order, item, call = (drawn[name] for name in SCHEMAS)
    for key, parents, number, children, of in (
        ("customer", customer, "orders", order, "customer"),
        ("customer", customer, "calls", call, "customer"),
        ("order", order, "items", item, "of"),
    ):
        assert parents[key].tolist() == list(range(1, len(parents) + 1))
        own = children.groupby(of).size()
        assert set(own.index) <= set(parents[key])
        assert own.reindex(parents[key], fill_value=0).tolist() == parents[number].tolist()
    assert (order.groupby("customer")["date"].rank() == order["date"]).all()
    joined = item.merge(order, left_on="of", right_on="order")
    assert not ((joined["status"] == "F") & (joined["sent"] == "O")).any()
    true = frames["item"].query("line < 2")
    pairs = {}
    for name, rows in (("data", true), ("drawn", item)):
        kinds = rows.groupby("of")["kind"].agg(["size", "nunique"])
        pairs[name] = (kinds.query("size == 2")["nunique"] == 1).mean()
    # All items of an order are of one kind, a third of independent ones; 150 orders have two.
    assert pairs["data"] == 1.0 and pairs["drawn"] > 0.7
    assert (joined["status"] == joined["sent"]).mean() > 0.8  # a half of independent ones
    late = order.groupby(order["items"] == 2)["year"].mean()
    assert late[True] - late[False] > 0.6  # one in the data


def test_a_release_is_saved_read_and_reported(made: Any, tmp_path: Path) -> None:
    release = made[1]
    release.save(tmp_path / "out")
    read = LinkedRelease.load(tmp_path / "out")
    assert read.links == release.links and read.schemas == release.schemas
    one, other = release.sample(30, rng=1), read.sample(30, rng=1)
    assert list(one) == ["customer", "call", "order", "item"]
    for name, frame in one.items():
        pd.testing.assert_frame_equal(frame, other[name].to_pandas(), check_dtype=False)
    text = html(release, rng=0)
    for said in ("item of each order", "item of a order", "numbers of item", "numbers of order"):
        assert said in text
    assert release.children["item"].ask("sent | status = F").columns
    stored = json.loads((tmp_path / "out" / "links.json").read_text())
    for wrong in (stored[::2], stored[2:]):
        (tmp_path / "out" / "links.json").write_text(json.dumps(wrong))
        with pytest.raises(InvalidInput, match="links"):
            LinkedRelease.load(tmp_path / "out")


def test_names_of_tables_are_escaped_in_headings() -> None:
    far = Compared("order", "numbers of <b>Item", ("status",), 0.1, 0.2)
    assert "<h3>Numbers of &lt;b&gt;Item: " in "".join(farthest_tables([far]))


def test_noise_grows_with_the_product_of_the_most_children() -> None:
    """Of the charges for the items' tables: 3 orders of 2 items each."""
    release = run(shop(np.random.default_rng(0), range(60)), mechanism="independent")
    assert release.ledger is not None
    assert "of customer" in release.ledger.neighbours
    budget, parts = release.ledger.budget.total, [1.0, 3.0, 2.0, 6.0]
    spent = 6 ** (2 / 3) / sum(part ** (2 / 3) for part in parts) * budget
    columns = len(release.children["item"].schema.columns)
    measured = release.children["item"].measurements
    assert len(measured) == columns
    expected = 6 / np.sqrt(2 * spent / columns)
    assert [m.stddev for m in measured] == pytest.approx([expected] * columns, rel=1e-6)


@pytest.mark.parametrize("name", ["add/remove", "replace-one"])
@pytest.mark.parametrize("pure", [True, False])
def test_groups_of_rows_cost_what_is_charged(name: str, pure: bool) -> None:
    """Units of three groups of up to two rows: the worst unit has three groups of one size."""
    domain = Domain({"rows": 3, "at": 2, "kind": 2})
    budget = Budget(1e9, 0.0 if pure else 1e-6)
    data = Dataset(domain, {"rows": [1, 2, 2], "at": [0, 0, 1], "kind": [0, 0, 1]})
    curator = Curator(data, budget, neighbours=relation(name, "id", 6), seed=0)
    cost = curator.remaining / 3
    several = 2 if name == "replace-one" else 1
    for k, table in enumerate(curator.measure_numbered("rows", "at", ["kind"], cost), 1):
        # Three groups change k cells by 3 each.
        true = 2**0.5 * 3 * k / table.stddev if pure else 9 * k / (2 * table.stddev**2)
        assert several * true == pytest.approx(cost)
    assert curator.remaining == pytest.approx(2 * cost)
    other = Curator(data, budget, neighbours=relation(name, "id", 5), seed=0)
    with pytest.raises(InvalidInput, match="'at' must have as many codes"):
        other.measure_numbered("rows", "at", ["kind"], cost)
    assert other.remaining == pytest.approx(3 * cost)


@pytest.mark.parametrize("name", ["add/remove", "replace-one"])
@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("groups", [1, 3])
def test_tables_by_place_cost_what_is_charged(name: str, pure: bool, groups: int) -> None:
    """The worst unit has a row at each of five places, or several in one cell of each; replaced, it
    leaves these cells and enters as many others.
    """
    places = 5
    domain = Domain({"at": places, "kind": 2, "hue": 3})
    rows = np.repeat(np.arange(places), 5)
    data = Dataset(domain, {"at": rows, "kind": rows % 2, "hue": rows % 3})
    whole = Curator(data, Budget(1e9, 0.0 if pure else 1e-6), neighbours=relation(name, "id", 1))
    units = relation(name, "id", places * groups)
    curator = whole.table(data, units, whole.remaining, place="at")
    cost, several = curator.remaining / 8, 2 if name == "replace-one" else 1
    for clique, measured, by_place in (
        (("kind",), ("kind", "at"), not pure),
        (("hue", "at"), ("hue", "at"), True),
        (("kind", "hue"), ("kind", "hue", "at"), not pure),
    ):
        table = curator.measure(clique, cost)
        assert table.clique == curator.placed(clique) == (clique if pure else measured)
        np.testing.assert_allclose(table.values, data.marginal(table.clique).ravel(), atol=0.5)
        # All rows of a place are in one cell; without places all rows of the unit are.
        change = [groups] * places if by_place else [groups * places]
        if pure:
            true = 2**0.5 * several * sum(change) / table.stddev
        else:
            true = several * sum(c**2 for c in change) / (2 * table.stddev**2)
        assert true == pytest.approx(cost)
    # The sum over the places has the noise of a table without them.
    plain = whole.recoded(data)
    plain.neighbours = units
    assert plain.placed(("kind",)) == ("kind",)
    if not pure:
        noise = curator.measure(("kind",), cost).stddev * places**0.5
        assert noise == pytest.approx(plain.measure(("kind",), cost).stddev)


def test_tables_of_children_give_those_of_their_children() -> None:
    """Without noise: those over other columns are summed over them first."""
    frames = shop(np.random.default_rng(0), range(50))
    links, steps = steps_of(LINKS)
    found = coded(frames, SCHEMAS, links, steps, np.random.default_rng(0))
    orders, items = found["order"], found["item"]
    assert isinstance(orders, Dataset) and isinstance(items, Dataset)
    cliques = [("position", "items"), ("sector", "status", "items"), ("previous items", "items")]
    noisy = [Measurement(c, orders.marginal(c), 2.0) for c in [*cliques, ("status", "year")]]
    tables = inherited(noisy, orders.domain, ITEMS, items.domain)
    assert [each.clique for each in tables] == [
        *[("items", "position"), ("status", "items"), ("items", "position")]
    ]
    for each in tables:
        counted = each.applied(items.marginal(each.clique).ravel())
        np.testing.assert_allclose(each.values, counted, rtol=1e-12)
    summed = [orders.domain.size(["position"]), orders.domain.size(["sector"]), 4]
    assert [table.stddev for table in tables] == pytest.approx(2 * np.sqrt(summed))


def test_a_column_of_children_named_like_one_of_their_parents_siblings_is_another() -> None:
    """The table over the previous order's kind tells of no item's own column of that name."""
    noisy = [Measurement(("previous kind", "items"), [[3, 1, 2], [0, 4, 1]], 2.0)]
    above = Domain({"kind": 1, "items": 3, "position": 3, "previous kind": 2})
    domain = Domain({"kind": 1, "items": 3, "position": 2, "previous kind": 2})
    tables = inherited(noisy, above, ITEMS, domain)
    assert [each.clique for each in tables] == [("items", "position")]
    np.testing.assert_allclose(tables[0].values ** 2, [0, 0, 25, 0, 4.5, 4.5])


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ([ORDERS, CALLS], r"'customer', 'item'"),
        ([ORDERS, CALLS, ITEMS, Link("item", "call", "of", 2)], "the child of exactly one link"),
        ([Link("order", "item", "of", 2), CALLS, ITEMS], r"from 'customer' to .*'item', 'order'"),
        *[
            ([Link("order", "customer", key, 3, order, parent_key="customer"), CALLS, ITEMS], said)
            for key, order, said in (
                ("order", None, "key for its own children"),
                ("of", "order", "or orders it"),
                ("items", None, "'items' of 'order' is the number"),
            )
        ],
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_links_that_form_no_tree_are_refused(links: list[Link], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        run(shop(np.random.default_rng(0), range(5)), links=links)


def test_files_of_three_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, frame in shop(np.random.default_rng(0), range(80)).items():
        frame.to_csv(f"{name}.csv", index=False)
    register = {
        "tables": {name: schema.to_dict() for name, schema in SCHEMAS.items()},
        "links": [each.to_dict() for each in LINKS],
    }
    Path("register.json").write_text(json.dumps(register))
    assert load_linked_schema("register.json")[1] == [CALLS, ORDERS, ITEMS]
    tables = [f"{name}={name}.csv" for name in SCHEMAS]
    options = "--schema register.json --epsilon 9 --delta 1e-6 --mechanism mst --seed 0 --yes"
    found = CliRunner().invoke(
        main, ["synth-linked", *tables, *options.split(), "--out", "made", "--save", "kept"]
    )
    assert found.exit_code == 0, found.output
    found = CliRunner().invoke(main, ["sample", "kept", "--rows", "9", "--out", "more"])
    assert found.exit_code == 0, found.output
    for folder in ("made", "more"):
        made = {name: pd.read_csv(f"{folder}/{name}.csv") for name in SCHEMAS}
        assert set(made["item"]["of"]) <= set(made["order"]["order"])
        assert len(made["item"]) == made["order"]["items"].sum()
