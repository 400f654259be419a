"""The page of linked tables, part by part: which figures stand where, and how long bars are."""

from __future__ import annotations

import re
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import test_linked_trees as trees

from mechanisms.linked.fidelity import Compared
from mechanisms.linked.link import Link
from mechanisms.linked.report import (
    farthest_tables,
    html,
    numbers_of_children,
    records_beside_models,
    verdicts,
)
from pgmkit import Schema, __version__
from pgmkit.tables.labelled import Categorical
from pgmkit.tables.numbers import Integer


def cells(page: str) -> list[list[str]]:
    """The texts of the cells of each row of the tables of a page; a bar behind a cell is written
    after its text, in percent, and a cell that is aligned to the right begins with a blank.
    """
    rows = []
    for row in re.findall(r"<tr>(.*?)</tr>", page):
        own = re.findall(r"<t[hd]([^>]*)>(.*?)</t[hd]>", row)
        bars = [re.search(r"55 (\d+)%", style) for style, _ in own]
        rows.append([" " * ("right" in style) + text + (f" |{bar[1]}" if bar else "")
                     for (style, text), bar in zip(own, bars, strict=True)])  # fmt: skip
    return rows


def test_distances_have_bars_on_one_scale() -> None:
    """Means over each relation, and bars as shares of the largest of all figures."""
    tables = [
        Compared("order", "siblings", ("a",), 0.01, 0.03),
        Compared("order", "siblings", ("b",), 0.03, 0.05),
        Compared("item", "within a child", ("c",), 0.005, 0.01),
    ]
    assert cells("".join(records_beside_models(tables))) == [
        ["table", "tables over", " measured", " noise", " records"],
        ["order", "siblings", " 2", " 0.0200 |50", " 0.0400 |100"],
        ["item", "within a child", " 1", " 0.0050 |12", " 0.0100 |25"],
    ]
    none = [Compared("order", "siblings", ("a",), 0.0, 0.0)]
    assert cells("".join(records_beside_models(none)))[1:] == [
        ["order", "siblings", " 1", " 0.0000 |0", " 0.0000 |0"]
    ]
    assert len(cells("".join(records_beside_models([])))) == 1


def test_the_farthest_tables_of_each_relation_come_first() -> None:
    far = [Compared("t", "siblings", ("a", f"b{i}"), 0.5 / (i + 1), i / 100) for i in range(30)]
    far.insert(7, Compared("t", "within a child", ("c",), 0.25, 0.125))
    page = "".join(farthest_tables(far))
    siblings, within = page.split("<h3>")[1:]
    assert siblings.startswith("Siblings: the tables") and within.startswith("Within a child: the")
    found = cells(siblings)
    assert found[0] == ["columns", " noise", " records"]
    assert found[1:] == [
        [f"a x b{i}", f" {0.5 / (i + 1):.4f}", f" {i / 100:.4f}"]
        for i in range(29, 29 - len(found[1:]), -1)
    ]
    assert 5 < len(found) < 25
    assert cells(within)[1:] == [["c", " 0.2500", " 0.1250"]]


def test_numbers_of_children_are_told_for_each_value_of_their_parents() -> None:
    """A value without parents has the mean 0; of many values those of most parents are told, in
    the schema's order, and what has no parents' column has a chart alone.
    """
    rng = np.random.default_rng(0)
    many = rng.permutation(100) + 1.0
    columns = {"area": Categorical(("n", "s", "none", "few")), "code": Integer(0, 99)}
    link = Link("cow", "farm", "id", 3, count="cows")
    by_area = np.array([[1.0, 2.0, 3.0, 4.0], [6.0, 0.0, 0.0, 0.0], [0.0] * 4, [0.25, 0.25, 0, 0]])
    by_code = many[:, None] * np.array([0.5, 0.0, 0.0, 0.5])
    tables = {("area", "cows"): by_area, ("code", "cows"): by_code, ("cows",): by_area.sum(0)}
    parents: Any = SimpleNamespace(
        schema=Schema({**columns, "cows": Integer(0, 3)}),
        model=SimpleNamespace(marginal=tables.__getitem__, total=16.5),
    )
    page = "".join(numbers_of_children(parents, ["area", "code", "cows"], link))
    assert page.startswith("<h2>cow of each farm</h2>") and "<p>farm by each of its columns" in page
    for label, count in zip("0123", ("7 (43.9%)", "2 (13.6%)", "3 (18.2%)", "4 (24.2%)"),
                            strict=True):  # fmt: skip
        assert f">{label}</text>" in page and f">{count}</text>" in page
    found = cells(page)
    assert found[:5] == [
        ["column", "value", " farm", " mean number of cow", " without any"],
        ["area", "n", " 10", " 2.00 |100", " 10.0%"],
        ["area", "s", " 6", " 0.00 |0", " 100.0%"],
        ["area", "none", " 0", " 0.00 |0", " 0.0%"],
        ["area", "few", " 0", " 0.50 |25", " 50.0%"],
    ]
    shown = len(found) - 5
    assert 10 < shown < 100
    most = sorted(np.argsort(-many)[:shown].tolist())
    assert found[5:] == [["code", str(i), f" {2 * many[i] / 2:,.0f}", " 1.50 |75", " 50.0%"]
                         for i in most]  # fmt: skip
    alone = "".join(numbers_of_children(parents, ["cows"], link))
    assert "<table>" not in alone and "by each of" not in alone and "<svg" in alone


def test_a_page_has_all_tables_in_turn() -> None:
    """Headings, the promise, what each table released, and under each link its own tables alone."""
    release = trees.run(trees.shop(np.random.default_rng(0), range(60)))
    page = html(release, name="shop", schema_file="shop.yaml", rng=3)
    assert "<h1>Linked tables: shop</h1>" in page and "schema shop.yaml" in page
    assert "<h1>Linked tables</h1>" in html(release, rng=3)
    assert page.count("class='warn'") == 1 and page.count("INSECURE") == 2
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    links = [("call", "customer"), ("order", "customer"), ("item", "order")]
    wanted = ["In short", "What was released", "For a methods section", "Records beside the models"]
    for child, parent in links:
        wanted += [f"{child} of each {parent}", f"{child}: parent, child and sibling"]
        wanted.append("Relations between columns")
    assert headings == wanted
    tables = release.compared(rng=3)
    sections = dict(pairwise(re.split(r"<h2>(.*?)</h2>", page)[1:]))
    released = cells(sections["What was released"])
    said = ["order of a customer", "at most 3, by the key customer"]
    assert released[0][0] == "promise" and "epsilon = 100" in released[0][1] and said in released
    for name, said in verdicts(release).items():
        named = "position" in (own := " ".join(release.tables[name].verdict.sentences))
        assert ("“position” is the place of a row" in said[-1]) == (named or "previous" in own)
        assert f"<li>{name}: {said[-1]}</li>" in page
        shows = bool(release.tables[name].verdict.shows) and name in release.children
        assert any("rows as independent of each other" in each for each in said) == shows
    assert "“previous ...” are the columns of the sibling before" in verdicts(release)["call"][-1]
    methods = sections["For a methods section"]
    assert "Synthetic data of 4 linked tables (customer, call, order, item) were made" in methods
    noisy = sum(len(each.measurements) for each in release.tables.values())
    assert f"{noisy} noisy tables were measured" in methods and "No privacy is promised" in methods
    assert methods.count("mechanism mst of pgmkit") == methods.count("Reference: McKenna") == 1
    for name, each in release.tables.items():
        assert [f"{name}: mechanism", f"mst of pgmkit {__version__} (as asked)"] in released
        assert [f"{name}: noisy tables", str(len(each.measurements))] in released
    assert len(cells(sections["Records beside the models"])) - 1 == len(
        {(each.table, each.kind) for each in tables}
    )
    own_columns = {"call": ["sector", "orders"], "order": ["sector", "calls"]}
    own_columns["item"] = ["status", "year"]
    for i, (child, parent) in enumerate(links):
        columns = [row[0] for row in cells(sections[f"{child} of each {parent}"])[1:]]
        assert list(dict.fromkeys(columns)) == own_columns[child]
        section = page.split("Relations between columns")[i + 1].split("<h2>")[0]
        own = {" x ".join(t.clique): t for t in tables if t.table == child}
        rows = [row for row in cells(section) if row[0] in own]
        assert {own[row[0]].kind for row in rows} == {each.kind for each in own.values()}
        others = {" x ".join(t.clique) for t in tables if t.table != child} - own.keys()
        assert rows and not others & {row[0] for row in cells(section)}
        assert f"One column of {child} is compared with the columns of its {parent}" in page
