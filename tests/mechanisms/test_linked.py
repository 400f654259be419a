"""Linked tables: what one unit can change, links that hold, and siblings that are alike."""

from __future__ import annotations

import json
import math
import os
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay import replay

from mechanisms import synthesize_linked
from mechanisms.linked import coding, pipeline
from mechanisms.linked.coding import coded
from mechanisms.linked.inherited import inherited
from mechanisms.linked.link import Link, with_counts
from mechanisms.linked.release import LinkedRelease, wanted_tables
from mechanisms.linked.report import html
from mechanisms.linked.siblings import Children, Wanted, draw_children
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import BudgetExceeded, Ledger
from mechanisms.privacy.neighbours import relation
from mechanisms.privacy.units import random_keys
from pgmkit import Domain, FactoredQuery, Schema, estimate
from pgmkit.errors import InvalidInput, NumericalFailure
from pgmkit.least_squares.linear_estimate import LinearEstimate
from pgmkit.measurement import Measurement
from pgmkit.records.dataset import Dataset
from pgmkit.tables.constraints import Forbid
from pgmkit.tables.labelled import Categorical, OpenCategorical
from pgmkit.tables.levels import Level
from pgmkit.tables.numbers import Integer

SCHEMAS = {
    "home": Schema({"area": Categorical(("n", "s")), "rich": Categorical(("no", "yes"))}),
    "person": Schema({"sex": Categorical(("F", "M")), "age": Integer(0, 79, bins=4)}),
}
LINK = Link("person", "home", key="id", most=3, order="no", count="size")


def homes(rng: np.random.Generator, count: int = 150) -> dict[str, Any]:
    """Homes of up to four persons: a couple of both sexes and one age, then children."""
    parents, children = [], []
    for i in range(count):
        area, rich = rng.choice(["n", "s"]), rng.choice(["no", "yes"])
        parents.append({"id": i, "area": area, "rich": rich})
        size = int(rng.integers(1, 5))
        sex, age = rng.choice(["F", "M"]), int(rng.integers(40, 80) if rich == "yes" else 30)
        for no in range(size):
            own = {0: sex, 1: "FM"[sex == "F"]}.get(no, rng.choice(["F", "M"]))
            years = age if no < 2 else int(rng.integers(0, 20))
            children.append({"id": i, "no": no + 1, "sex": own, "age": years})
    return {"home": pd.DataFrame(parents), "person": pd.DataFrame(children)}


def run(frames: dict[str, Any], **options: Any) -> LinkedRelease:
    given = {"epsilon": 50.0, "delta": 1e-6, "seed": 0, "mechanism": "mst"} | options
    links = given.pop("links", [LINK])
    return synthesize_linked(frames, given.pop("schemas", SCHEMAS), links, **given)


def steps_of(link: Link = LINK) -> dict[str, Schema]:
    placed = {name: schema.placed() for name, schema in SCHEMAS.items()}
    return {"person": link.steps(with_counts(placed["home"], [link]), placed["person"])}


def test_columns_of_parents_and_siblings_stand_beside_each_child() -> None:
    frames = homes(np.random.default_rng(0), 40)
    # One order of the rows is as good as another.
    frames["person"] = frames["person"].sample(frac=1.0, random_state=1)
    found = coded(frames, SCHEMAS, [LINK], steps_of(), np.random.default_rng(0))
    kept = frames["person"].sort_values(["id", "no"])
    # Where a home has four, any three of them are kept: look at those that are kept whole.
    small = kept.groupby("id").filter(lambda rows: len(rows) <= 3)
    area = frames["home"].set_index("id")["area"]
    before = small.groupby("id")["age"].shift()
    wanted: dict[tuple[int, ...], int] = {}
    for i, home in enumerate(small["id"]):
        past = before.iloc[i]
        cell = (
            "ns".index(area[home]),
            int((small["id"] == home).sum()),
            4 if np.isnan(past) else int(past // 20),
            int(small["age"].iloc[i] // 20),
        )
        wanted[cell] = wanted.get(cell, 0) + 1
    steps = found["person"]
    assert isinstance(steps, Dataset)
    table = steps.marginal(("area", "size", "previous age", "age"))
    for cell, count in wanted.items():
        if cell[1] < 3:
            assert table[cell] == count
    assert len(steps) == kept.groupby("id").size().clip(upper=3).sum()
    sizes = kept.groupby("id").size().clip(upper=3).value_counts()
    assert found["home"].marginals([("size",)])[("size",)].tolist() == [
        int(sizes.get(k, 0)) for k in range(4)
    ]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_a_unit_changes_no_more_rows_than_it_may(seed: int, most: int) -> None:
    """Frames that begin with one home more, with odd rows: the others are coded as before."""
    rng = np.random.default_rng(seed)
    frames = homes(rng, 12)
    link = Link("person", "home", key="id", most=most, order="no", count="size")
    spelt = ["x", None, 1e300, "2", 2.0, " 2", -1, "nan", 2**53, 2**53 + 1, "9007199254740993"]
    odd = rng.choice(np.array(spelt, dtype=object), 7)
    extra = pd.DataFrame(
        {"id": ["new"] * 7, "no": odd, "sex": ["F", "M", "?", None, "F", "", "M"], "age": odd}
    )
    home = pd.DataFrame({"id": ["new", "new"], "area": ["n", "q"], "rich": ["no", None]})
    shared = {name: frame.astype(object) for name, frame in frames.items()}
    shared["person"]["no"] = rng.choice(np.array(spelt, dtype=object), len(shared["person"]))
    larger = {
        "home": pd.concat([home, shared["home"]], ignore_index=True),
        "person": pd.concat([extra, shared["person"]], ignore_index=True),
    }
    keys = random_keys(100, np.random.default_rng(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coding, "random_keys", lambda n, _: keys[-n:])
        placed = {name: schema.placed() for name, schema in SCHEMAS.items()}
        one, other = (
            coded(each, placed, [link], steps_of(link), None) for each in (shared, larger)
        )
    for a, b, rows in (
        (one["home"], other["home"], 1),
        (one["person"], other["person"], most),
    ):
        clique = tuple(a.domain)
        change = b.marginals([clique])[clique] - a.marginals([clique])[clique]
        assert change.min() >= 0
        assert change.sum() <= rows


@pytest.mark.parametrize("most", [1, 3, 4])
def test_parents_tables_are_those_of_children_too(most: int) -> None:
    """Without noise they are what counting the children gives."""
    link = Link("person", "home", key="id", most=most, order="no", count="size")
    steps = steps_of(link)
    found = coded(homes(np.random.default_rng(0)), SCHEMAS, [link], steps, None)
    children = found["person"]
    assert isinstance(found["home"], Dataset) and isinstance(children, Dataset)
    cliques = [("size",), ("area", "size"), ("size", "rich"), ("area", "rich"), ("area",)]
    noisy = [Measurement(c, found["home"].marginal(c), 2.0) for c in cliques]
    noisy.append(Measurement(("size",), [1.0], 1.0, np.ones((1, most + 1))))
    above = found["home"].domain
    tables = inherited([*noisy, "no table"], above, link, steps["person"].domain)
    assert [each.clique for each in tables] == [
        *[("size", "position"), ("area", "size"), ("size", "rich")],
    ]
    for each in tables:
        counted = each.applied(children.marginal(each.clique).ravel())
        np.testing.assert_allclose(each.values, counted, rtol=1e-12)


@pytest.mark.parametrize("most", [1, 3, 8])
def test_tables_that_follow_from_the_parents_state_no_less_noise_than_they_have(most: int) -> None:
    """What an answer makes of a count of parents shows in its change with that count."""
    link = Link("cow", "farm", "id", most, count="cows")
    above = Domain({"hills": 2, "cows": most + 1})
    domain = Domain({"hills": 2, "cows": most + 1, "position": most, "kind": 2})
    cliques, noises = [("cows",), ("hills", "cows"), ("cows",)], [3.0, 2.0, 4.0]

    def estimated(counts: Any) -> LinearEstimate:
        ends = np.cumsum([above.size(clique) for clique in cliques])[:-1]
        parts = zip(cliques, np.split(counts, ends), noises, strict=True)
        tables = inherited([Measurement(*part) for part in parts], above, link, domain)
        return LinearEstimate(domain, tables, None)

    each = np.concatenate([np.full(above.size(c), s) for c, s in zip(cliques, noises, strict=True)])
    found = list(map(estimated, [0 * each, *np.diag(each)]))
    for asked in [("cows",), ("hills",), ("hills", "cows"), ("position",), ("cows", "position")]:
        query = FactoredQuery.marginal(domain, asked)
        at_none, *moved = (estimate.answer(query) for estimate in found)
        assert at_none is not None
        true = np.sqrt(sum((m.values - at_none.values) ** 2 for m in moved if m is not None))
        assert (at_none.stddev >= true - 1e-9).all()
        if "position" not in asked:  # zeros of farms without cows have no noise of their own
            assert (at_none.stddev <= 1.5 * true + (true < 1e-9) * at_none.stddev).all()


def test_numbers_by_position_are_no_table_where_that_would_be_too_large() -> None:
    most = 4000
    link = Link("cow", "farm", "id", most, count="cows")
    sizes = {"cows": most + 1, "position": most, "kind": 2}
    noisy = [Measurement(("cows",), np.ones(most + 1), 1.0)]
    (table,) = inherited(noisy, Domain({"cows": most + 1}), link, Domain(sizes))
    assert table.clique == ("cows",) and table.values[7] == 1


def test_siblings_stand_in_order_and_orphans_are_left_out() -> None:
    """Numbers by size, however they are spelt, then other texts, then gaps; worked out by hand.

    Among them are whole numbers that are equal as float64: if they had one rank, they would stand
    in order in one of 720 draws.
    """
    close = range(2**60, 2**60 + 6)
    in_order = [-1, "2", 2.5, "10", *close, 1e300, "a", "b", math.inf, True, None]
    link = Link("pet", "home", key="id", most=len(in_order), order="no", count="size")
    schemas = {
        "home": Schema({"area": Categorical(("n", "s"))}),
        "pet": Schema({"tag": Integer(0, len(in_order) - 1)}).placed(),
    }
    shuffled = np.random.default_rng(0).permutation(len(in_order))
    orphans = {"id": ["zz", None, ""], "no": [0, 0, 0], "tag": [0, 0, 0]}
    pets = pd.DataFrame(
        {
            "id": ["h0"] * len(in_order) + orphans["id"],
            "no": pd.Series([in_order[i] for i in shuffled] + orphans["no"], dtype=object),
            "tag": pd.Series([*shuffled.tolist(), *orphans["tag"]], dtype=object),
        }
    )
    pets.loc[0, "tag"] = "unread"
    lost = int(shuffled[0])
    # More homes than pets; the first in the table is not the one that has them.
    homes = [f"h{i}" for i in range(20, -1, -1)]
    frames = {"home": pa.table({"id": homes, "area": ["s"] * 20 + ["n"]}), "pet": pets}
    steps = {"pet": link.steps(with_counts(schemas["home"], [link]), schemas["pet"])}
    found = coded(frames, schemas, [link], steps, None)
    assert isinstance(found["home"], Dataset) and len(found["home"]) == 21
    assert sorted(found["home"].columns["size"].tolist()) == [0] * 20 + [len(in_order)]
    children = found["pet"]
    assert isinstance(children, Dataset)
    tags = [0 if i == lost else i for i in range(len(in_order))]
    assert children.columns["tag"].tolist() == tags
    assert children.columns["position"].tolist() == list(range(len(in_order)))
    assert children.columns["area"].tolist() == [0] * len(in_order)
    assert children.unread == dict.fromkeys(children.domain, 0) | {"tag": 1}
    with pytest.raises(InvalidInput, match="no column 'tag'.*did you mean 'tags'"):
        coded(frames | {"pet": pets.rename(columns={"tag": "tags"})}, schemas, [link], steps, None)


def test_tables_of_children_are_fitted() -> None:
    """Children of a known chain: ages repeat the sibling's before, and depend on the parent."""
    rng = np.random.default_rng(0)
    n, most = 3000, 4
    domain = Domain({"rich": 2, "position": most, "previous age": 5, "age": 4})
    counts = rng.integers(0, most + 1, n)
    rich = rng.integers(0, 2, n)
    ages = [
        age
        for home in range(n)
        for age in np.where(
            np.arange(counts[home]) % 2 == 0, 3 * rich[home], rng.integers(0, 4, counts[home])
        )
    ]
    true = Children(domain, counts, {"rich": rich}, {"age": np.array(ages)})
    cliques = [("rich", "age"), ("position", "age"), ("previous age", "age")]
    drawn = Children(domain, counts, {"rich": rich}, {"age": rng.integers(0, 4, len(true))})
    wanted = [Wanted(c, 7 * true.table(c), 1.0) for c in cliques]
    draw_children(drawn, wanted, 7.0 * len(true), rng)
    for clique in cliques:
        distance = np.abs(drawn.table(clique) - true.table(clique)).sum() / 2 / len(true)
        # Independent draws of the cells would be .01 off; before fitting it is .2 and more.
        assert distance < 0.02


def test_tables_of_siblings_do_not_contradict_those_of_children() -> None:
    """The sibling's column of a table of siblings is off by a third of its counts; the records
    have half of that error, the children's own column has next to nothing of it, and the odds
    ratio is the table's.
    """
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 5, 3000)
    domain = Domain({"position": 4, "age": 3, "previous age": 4})
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    fresh = rng.random(len(starts)) < 0.4
    # A child has its own age, or that of the last sibling with an age of its own.
    source = np.maximum.accumulate(np.where(fresh, np.arange(len(starts)), starts))
    ages = rng.choice(3, size=len(starts), p=[0.5, 0.3, 0.2])[np.maximum(source, starts)]
    true = Children(domain, counts, {}, {"age": ages})
    pair = ("previous age", "age")
    off = true.table(pair) * np.array([[1.3], [0.8], [0.7], [1.0]])
    off *= len(true) / off.sum()
    drawn = Children(domain, counts, {}, {"age": rng.integers(0, 3, len(true))})
    wanted = [Wanted(("age",), true.table(("age",)), 10.0), Wanted(pair, off, 30.0)]
    draw_children(drawn, wanted, float(len(true)), rng)

    def distance(one: Any, other: Any) -> float:
        return float(np.abs(one - other).sum() / 2 / len(true))

    table = drawn.table(pair)
    assert distance(drawn.table(("age",)), true.table(("age",))) < 0.013
    assert distance(table, true.table(pair)) < 0.65 * distance(off, true.table(pair))
    odds = [t[0, 0] * t[1, 1] / (t[0, 1] * t[1, 0]) for t in (table, off)]
    assert 0.8 < odds[0] / odds[1] < 1.25


def test_the_key_of_parents_may_have_a_name_of_its_own(tmp_path: Path) -> None:
    frames = homes(np.random.default_rng(0), 60)
    plain = run(frames).sample(rng=1)
    renamed = frames | {"home": frames["home"].rename(columns={"id": "home_id"})}
    release = run(renamed, links=[replace(LINK, parent_key="home_id")])
    drawn = release.sample(rng=1)
    assert drawn["home"].rename(columns={"home_id": "id"}).equals(plain["home"])
    assert drawn["person"].equals(plain["person"])
    release.save(tmp_path / "release")
    read = LinkedRelease.load(tmp_path / "release")
    assert read.links == release.links and read.links[0].parent_key == "home_id"
    with pytest.raises(InvalidInput, match="'home': it has no column 'id'.*`parent_key`"):
        run(renamed)
    with pytest.raises(InvalidInput, match="must be different columns, got .*'size', .*'size'"):
        replace(LINK, parent_key="size")
    with pytest.raises(InvalidInput, match="'rich'.* link or order"):
        run(frames, links=[replace(LINK, parent_key="rich")])


@pytest.mark.parametrize(("delta", "mean"), [(1e-6, math.sqrt(2 / math.pi)), (0.0, math.sqrt(0.5))])
def test_fidelity_is_the_distance_of_records_from_the_models(delta: float, mean: float) -> None:
    """Of one table of each kind, counted again from the data frames of the same draw. `mean`: that
    of a standard Gaussian or Laplace variable in absolute value.
    """
    frames = homes(np.random.default_rng(0), 300)
    schemas = {"home": SCHEMAS["home"].restricted(["rich"])} | {
        "person": SCHEMAS["person"].restricted(["sex"])
    }
    release = run(frames, schemas=schemas, epsilon=5.0, delta=delta)
    said = release.fidelity(rng=3).columns
    drawn = {n: t.rename(columns={"no": "position"}) for n, t in release.sample(rng=3).items()}
    labels = {"size": range(4), "rich": ["no", "yes"], "sex": ["F", "M"], "position": [1, 2, 3]}

    def line(kind: str) -> tuple[str, float, float]:
        place = list(said["tables over"]).index(kind)
        return said["measured"][place], said["noise"][place], said["records"][place]

    def expected(table: str, own: Any, column: str) -> tuple[str, float, float]:
        """The mean over the measured tables with the column and with no sibling's."""
        noises = {m.clique: m.stddev for m in own.measurements if column in m.clique}
        found = []
        for clique, noise in noises.items():
            if not set(clique) <= set(drawn[table].columns):
                continue
            cells = pd.MultiIndex.from_product([labels[name] for name in clique])
            counts = drawn[table].value_counts(list(clique)).reindex(cells, fill_value=0)
            model = own.model.marginal(clique).ravel()
            apart = np.abs(counts / counts.sum() - model / model.sum()).sum() / 2
            away = len(cells) * noise * mean / 2 / model.sum()
            found.append((away, apart))
        return str(len(found)), *np.mean(found, axis=0)

    for kind, table, own, column in (
        ("numbers of person", "home", release.parents, "size"),
        ("within a child", "person", release.children["person"], "sex"),
    ):
        assert line(kind)[0] == expected(table, own, column)[0]
        assert line(kind)[1:] == pytest.approx(expected(table, own, column)[1:])
    assert {"siblings", "parent and child"} <= set(said["tables over"])


def test_the_report_shows_numbers_of_children_and_what_is_kept_of_links() -> None:
    """Its figures are those of the models and of `fidelity`; names are escaped."""
    frames = homes(np.random.default_rng(0), 300)
    frames["home"] = frames["home"].rename(columns={"area": "<b>"})
    columns = {"<b>": Categorical(("n", "s")), "rich": Categorical(("no", "yes"))}
    release = run(frames, schemas=SCHEMAS | {"home": Schema(columns)})
    text = html(release, name="homes", rng=3)
    assert "<b>" not in text and "&lt;b&gt;" in text and "INSECURE" in text
    tables = [[cell.text for cell in row] for row in _rows(text)]
    parents = release.parents.model.marginal(("rich", "size"))
    for code, label in enumerate(["no", "yes"]):
        mean = parents[code] @ np.arange(4) / parents[code].sum()
        without = parents[code, 0] / parents[code].sum()
        found = next(row for row in tables if row[:2] == ["rich", label])
        least = "<0.1%" if 0 < without < 0.0005 else f"{without:.1%}"
        assert found[3:] == [f"{mean:.2f}", least]
    said = release.fidelity(rng=3).columns
    for row in zip(*said.values(), strict=True):
        assert [*row[:3], *(f"{each:.4f}" for each in row[3:])] in tables
    assert text.count("<svg") == 2  # the numbers of children, and the map of relations


def _rows(text: str) -> list[Any]:
    """The rows of the tables of a page, read as XML."""
    found = re.findall(r"<tr>.*?</tr>", text)
    return [ElementTree.fromstring(row) for row in found]


def test_no_child_breaks_a_constraint() -> None:
    rng = np.random.default_rng(0)
    rules = (
        Forbid({"position": 1, "age": "0..19"}),
        Forbid({"position": 2, "sex": "F", "previous sex": "F"}),
        Forbid({"rich": "no", "age": "60..79"}),
    )
    link = Link("person", "home", "id", 3, order="no", count="size", constraints=rules)
    drawn = run(homes(rng), links=[link], epsilon=1.0).sample(rng=0)
    person = drawn["person"].merge(drawn["home"], on="id")
    assert not ((person["no"] == 1) & (person["age"] < 20)).any()
    assert not ((person["rich"] == "no") & (person["age"] >= 60)).any()
    pairs = person[person["no"] == 1].merge(person[person["no"] == 2], on="id")
    assert len(pairs) > 20
    assert not ((pairs["sex_x"] == "F") & (pairs["sex_y"] == "F")).any()
    impossible = (Forbid({"position": 1, "sex": ["F", "M"], "rich": "no"}),)
    link = Link("person", "home", "id", 3, order="no", count="size", constraints=impossible)
    with pytest.raises(NumericalFailure, match="break a constraint"):
        run(homes(rng), links=[link], epsilon=1.0).sample(rng=0)


@pytest.mark.parametrize("mechanism", ["aim", "auto", "mst"])
def test_models_of_children_have_the_rules_in_them(
    mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are what an estimate from all their tables with the rules is, to its tolerance. "auto"
    measures all pairs of these few persons at once.
    """
    monkeypatch.setattr(pipeline, "MUCH_SIGNAL", 0.0)
    rule = Forbid({"position": 1, "age": "0..19"})
    link = Link("person", "home", "id", 3, order="no", count="size", constraints=(rule,))
    frames = homes(np.random.default_rng(0))
    release = run(frames, links=[link], mechanism=mechanism, epsilon=2.0).children["person"]
    used = "gaussian+projection" if mechanism == "auto" else mechanism
    assert release.mechanism == used
    assert release.model.marginal(("position", "age"))[0, 0] == 0
    again = estimate(
        release.schema.domain,
        release.measurements,
        total=release.model.total,
        zeros=release.schema.zeros,
    )
    assert abs(again.loss - release.model.loss) <= 0.2 * again.unit
    for clique in (("rich", "age"), ("previous age", "age"), ("size", "position")):
        apart = again.marginal(clique) - release.model.marginal(clique)
        assert np.abs(apart).sum() < 0.01 * release.model.total


def test_rules_on_parents_alone_hold_for_every_parent() -> None:
    """A column of the parents that repeats the number of children, at much noise."""
    frames = homes(np.random.default_rng(0), 40)
    sizes = frames["person"].groupby("id").size().clip(upper=3).to_numpy()
    frames["home"] = frames["home"].assign(stated=np.where(np.arange(40) % 9, sizes, 0))
    schemas = SCHEMAS | {"home": Schema({"stated": Integer(0, 3)})}
    rules = tuple(Forbid({"stated": k, "size": [j for j in range(4) if j != k]}) for k in range(4))
    link = Link("person", "home", "id", 3, count="size", constraints=rules)
    drawn = run(frames, schemas=schemas, links=[link], epsilon=0.3).sample(200, rng=0)
    assert drawn["home"]["size"].nunique() > 1
    assert (drawn["home"]["stated"] == drawn["home"]["size"]).all()


def test_cautions_are_those_of_one_table() -> None:
    frames = homes(np.random.default_rng(0), 20)
    with pytest.warns(UserWarning, match="delta .0.5. is above"):
        run(frames, delta=0.5)
    nobody = {name: frame.iloc[:0] for name, frame in frames.items()}
    with pytest.raises(InvalidInput, match="no rows"):
        run(nobody, neighbours="replace-one")


def test_links_hold_and_siblings_resemble_each_other() -> None:
    frames = homes(np.random.default_rng(0), 600)
    drawn = run(frames).sample(rng=0)
    home, person = drawn["home"], drawn["person"]
    assert home["id"].tolist() == list(range(1, len(home) + 1))
    assert person.groupby("id").size().reindex(home["id"], fill_value=0).tolist() == (
        home["size"].tolist()
    )
    assert (person.groupby("id")["no"].rank() == person["no"]).all()

    def differing(persons: Any) -> float:
        """The share of siblings beside each other who differ in sex: .5 of independent ones."""
        sex = persons["sex"] == "F"
        before = sex.groupby(persons["id"]).shift()
        return float((sex != before)[before.notna()].mean())

    true = differing(frames["person"].query("no <= 3"))
    assert true > 0.7
    # 800 pairs: one draw has a standard deviation of .015.
    assert abs(differing(person) - true) < 0.08
    old = person.merge(home, on="id").query("no == 1 and rich == 'yes'")
    assert (old["age"] >= 40).mean() > 0.8


def test_the_budget_is_shared_and_kept(tmp_path: Path) -> None:
    frames = homes(np.random.default_rng(0))
    ledger = Ledger.create(
        tmp_path / "ledger", Budget(3.0, 1e-6), neighbours="add/remove", unit="id"
    )
    release = run(frames, epsilon=2.0, seed=None, ledger=ledger)
    budget = release.ledger.budget
    assert release.ledger.spent <= budget.total * (1 + 1e-9)
    assert release.ledger.spent > 0.999 * budget.total
    assert release.secure
    with pytest.raises(BudgetExceeded):
        run(frames, epsilon=2.5, seed=None, ledger=ledger)


def test_all_pairs_are_measured_where_noise_hides_few() -> None:
    """The choice follows from the noisy number of persons and the noise of a table."""
    frames = homes(np.random.default_rng(0), 300)
    few, many = (run(frames, mechanism="auto", epsilon=eps) for eps in (1.0, 1000.0))
    assert few.parents.mechanism == many.parents.mechanism == "aim"
    assert few.children["person"].mechanism == "aim"
    # Selected tables have the position in them where few homes have all positions.
    alone = frames["person"].query("no == 1 or id % 5 == 0")
    uneven = run(frames | {"person": alone}, mechanism="auto", epsilon=1.0)
    for release, placed in ((few, False), (uneven, True)):
        tables = [
            m for m in release.children["person"].measurements if {*m.clique} & {"sex", "age"}
        ]
        assert tables and all("position" in m.clique for m in tables) == placed
    assert many.children["person"].mechanism == "gaussian+projection"
    assert "all pairs" in many.children["person"].reason
    measured = [m for m in many.children["person"].measurements if isinstance(m, Measurement)]
    own = [m for m in measured if not {"area", "rich", "size", "position"} >= set(m.clique)]
    # Each column by number and place, in a table for each number; then 1 pair within a person, 4
    # with the previous sibling's columns, and 4 with the home's.
    numbered, own = own[:6], own[6:]
    assert {m.clique[:2] for m in numbered} == {("size", "position")}
    assert len({m.clique for m in own}) == len(own) == 9
    assert [m.stddev for m in own] == pytest.approx([own[0].stddev] * len(own))
    by_number = own[0].stddev * np.sqrt([1, 2, 3]) / 3
    assert [m.stddev for m in numbered] == pytest.approx([*by_number, *by_number], rel=1e-3)
    persons = len(frames["person"].groupby("id").head(3))
    assert persons / own[0].stddev > pipeline.MUCH_SIGNAL


def test_a_table_of_a_curator_spends_its_part_alone() -> None:
    data = Dataset(Domain({"a": 2}), {"a": [0, 1, 1]})
    units = relation("add/remove", "id", 1)
    curator = Curator(data, Budget(1.0, 1e-6), neighbours=units, seed=0)
    whole = curator.remaining
    part = curator.table(data, relation("add/remove", "id", 5), whole / 4)
    assert part.remaining == pytest.approx(whole / 4)
    assert part.scale(1.0) == 5 * curator.scale(1.0)
    with pytest.raises(BudgetExceeded, match="but only"):
        part.measure(("a",), whole / 2)
    part.measure(("a",), part.remaining)
    assert part.remaining == 0.0
    assert curator.remaining == pytest.approx(3 * whole / 4)
    for share in np.random.default_rng(0).random(200):
        # What rounding leaves of a part is no budget, on which a further step would be planned.
        curator = Curator(data, Budget(1.0, 1e-6), neighbours=units, seed=0)
        part = curator.table(data, units, whole * share)
        part.measure(("a",), part.remaining / 3)
        part.measure(("a",), part.remaining)
        assert part.remaining == 0.0
    for neighbours, cost in ((relation("add/remove"), 1e-3), (units, 2 * whole), (units, 0.0)):
        with pytest.raises(InvalidInput):
            curator.table(data, neighbours, cost)


@pytest.mark.parametrize("name", ["add/remove", "replace-one"])
@pytest.mark.parametrize("mechanism", ["mst", "auto"])
@pytest.mark.parametrize("most", [1, 3])
def test_whole_units_are_replayed(
    name: str, most: int, mechanism: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours differ in one home with all its persons; nothing costs more than is charged."""
    shared = homes(np.random.default_rng(0), 40)
    rows = {
        "home": pd.DataFrame({"id": [90], "area": ["n"], "rich": ["no"]}),
        "person": pd.DataFrame({"id": [90] * 5, "no": range(5), "sex": "F", "age": [70] * 5}),
    }
    # A home without persons stands for one with some: their number is private in either relation.
    persons = 0 if most == 1 else 2
    others = {
        "home": pd.DataFrame({"id": [91], "area": ["s"], "rich": ["yes"]}),
        "person": pd.DataFrame(
            {"id": [91] * persons, "no": range(persons), "sex": "M", "age": [5] * persons}
        ),
    }
    one = {table: pd.concat([shared[table], rows[table]]) for table in shared}
    other = (
        shared
        if name == "add/remove"
        else {table: pd.concat([shared[table], others[table]]) for table in shared}
    )
    monkeypatch.setattr(
        coding, "random_keys", lambda n, _: random_keys(n, np.random.default_rng(3))
    )
    # "auto" measures all pairs of these few persons at once.
    monkeypatch.setattr(pipeline, "MUCH_SIGNAL", 0.0)
    link = Link("person", "home", "id", most, order="no", count="size")
    options: dict[str, Any] = {"mechanism": mechanism, "neighbours": name, "epsilon": 2.0}

    def job(frames: Any) -> Any:
        return _Saved(run(frames, links=[link], seed=None, **options))

    share = replay(job, one, other, tmp_path, pure=False)
    assert share > 0.3


class _Saved:
    """A release of linked tables as one archive, as the replay reads it."""

    def __init__(self, release: LinkedRelease) -> None:
        self.release, self.ledger = release, release.ledger

    def save(self, path: Path) -> None:
        folder = path.parent / "tables"
        self.release.save(folder)
        with zipfile.ZipFile(path, "w") as archive:
            for name in sorted(os.listdir(folder)):
                with (
                    zipfile.ZipFile(folder / name)
                    if name.endswith(".pgm")
                    else (open(folder / name, "rb")) as stored
                ):
                    if isinstance(stored, zipfile.ZipFile):
                        for part in stored.namelist():
                            archive.writestr(f"{name}/{part}", stored.read(part))
                    else:
                        archive.writestr(name, stored.read())

    def __repr__(self) -> str:
        return repr(self.release)


def test_levels_of_both_tables_are_asked_of_children_and_in_the_records(tmp_path: Path) -> None:
    home = Schema(SCHEMAS["home"].columns, levels={"country": Level("area", {"whole": ["n", "s"]})})
    stages = {"child": "..19", "grown": "20.."}
    person = Schema(SCHEMAS["person"].columns, levels={"stage": Level("age", stages)})
    release = run(homes(np.random.default_rng(0)), schemas={"home": home, "person": person})
    release.save(tmp_path / "out")
    for each in (release, LinkedRelease.load(tmp_path / "out")):
        reply = each.children["person"].ask("stage | country").columns
        assert reply["stage"] == ["child", "grown"] and set(reply["country"]) == {"whole"}
        drawn = {
            n: pa.table(t) if isinstance(t, pa.Table) else pa.Table.from_pandas(t)
            for n, t in each.sample(30, rng=0).items()
        }
        stage, age = (drawn["person"][name].to_pylist() for name in ("stage", "age"))
        assert stage == ["child" if years < 20 else "grown" for years in age]
        assert set(drawn["home"]["country"].to_pylist()) == {"whole"}


def test_a_release_is_saved_and_read(tmp_path: Path) -> None:
    release = run(homes(np.random.default_rng(0)))
    release.save(tmp_path / "out")
    read = LinkedRelease.load(tmp_path / "out")
    one, other = release.sample(20, rng=1), read.sample(20, rng=1)
    for name, frame in one.items():
        pd.testing.assert_frame_equal(frame, other[name].to_pandas(), check_dtype=False)
    assert read.links == release.links
    stored = LINK.to_dict()
    wrong: list[Any] = [{"child": 3}, {}, 3]
    wrong += [stored | {"count": name} for name in ("rich", "id", "other")]
    wrong += [stored | {"order": name} for name in ("id", "age")]
    wrong += [
        stored | each
        for each in ({"most": 4}, {"key": "sex"}, {"parent_key": "area"}, {"child": "home"})
    ]
    for links in ([], 3, [stored, stored], *([each] for each in wrong)):
        (tmp_path / "out" / "links.json").write_text(json.dumps(links))
        with pytest.raises(InvalidInput, match="links"):
            LinkedRelease.load(tmp_path / "out")


def test_a_column_may_be_named_like_a_siblings(tmp_path: Path) -> None:
    """ "previous area" of a home, beside its "area", is no column of the persons."""
    frames = homes(np.random.default_rng(0), 40)
    frames["home"]["previous area"] = frames["home"]["area"]
    columns = SCHEMAS["home"].columns
    home = Schema({**columns, "previous area": columns["area"]})
    release = run(frames, schemas=SCHEMAS | {"home": home})
    release.save(tmp_path / "out")
    read = LinkedRelease.load(tmp_path / "out").sample(20, rng=1)
    drawn = release.sample(20, rng=1)
    for name, frame in drawn.items():
        pd.testing.assert_frame_equal(frame, read[name].to_pandas(), check_dtype=False)


def test_a_childs_column_with_the_prefix_of_a_siblings_is_treated_as_any_other() -> None:
    """The same records as under another name, and the same measurements."""
    frames, person = homes(np.random.default_rng(0), 60), SCHEMAS["person"].columns
    drawn, charged = {}, {}
    for name in ("previous_work", "previous work"):
        columns = {name: person["sex"], **{n: c for n, c in person.items() if n != "sex"}}
        named = frames | {"person": frames["person"].rename(columns={"sex": name})}
        release = run(named, schemas=SCHEMAS | {"person": Schema(columns)}, report_unread=True)
        drawn[name] = release.sample(50, rng=1)["person"].rename(columns={name: "sex"})
        charged[name] = [entry.cost for entry in release.ledger.entries]
    assert charged["previous_work"] == charged["previous work"]
    pd.testing.assert_frame_equal(drawn["previous_work"], drawn["previous work"])


def test_a_parents_column_beside_its_namesake_is_no_column_of_the_children() -> None:
    """No budget goes to the home's "area" as if it were a person's."""
    frames = homes(np.random.default_rng(0), 40)
    frames["home"]["previous area"] = frames["home"]["area"]
    columns = SCHEMAS["home"].columns
    home = Schema({**columns, "previous area": columns["area"]})
    release = run(frames, schemas=SCHEMAS | {"home": home})
    numbered = [e.step for e in release.ledger.entries if "in 3 tables" in e.step]
    assert [step.split(" x ")[2].split(" in")[0] for step in numbered] == ["sex", "age"]


def test_tables_without_rows_and_children_without_parents() -> None:
    frames = homes(np.random.default_rng(0), 30)
    lonely = frames | {"person": frames["person"].assign(id=1000)}
    drawn = run(lonely, epsilon=10.0).sample(30, rng=0)
    assert len(drawn["person"]) == drawn["home"]["size"].sum()
    nobody = {name: frame.iloc[:0] for name, frame in frames.items()}
    drawn = run(nobody).sample(3, rng=0)
    assert list(drawn["home"].columns) == ["id", "area", "rich", "size"]
    assert list(drawn["person"].columns) == ["id", "no", "sex", "age"]


def with_level(name: str) -> Schema:
    """The homes' schema with a level of this name."""
    return Schema(SCHEMAS["home"].columns, levels={name: Level("area", {"both": ["n", "s"]})})


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"links": []}, "at least one"),
    ({"links": [Link("pet", "home", "id", 3)]}, "pet"),
    ({"links": [Link("person", "home", "ID", 3)]}, "'ID'"),
    ({"links": [Link("person", "home", "id", 3, order="when")]}, "'when'"),
    ({"links": [Link("person", "home", "area", 3)]}, "not released"),
    ({"links": [Link("person", "home", "id", 3, count="rich")]}, "counted"),
    (
        {
            "schemas": {**SCHEMAS, "pet": Schema({"fur": Categorical(("no", "yes"))})},
            "links": [LINK, Link("pet", "home", "id", 3, count="size")],
        },
        "different columns",
    ),
    *[({"schemas": SCHEMAS | {"home": with_level(name)}}, name) for name in ("id", "size")],
    ({"schemas": {**SCHEMAS, "pet": SCHEMAS["home"]}}, "pet"),
    ({"schemas": {**SCHEMAS, "person": SCHEMAS["home"]}}, "rename"),
    ({"schemas": {**SCHEMAS, "person": {"sex": "F"}}}, "schema of 'person' must be a Schema, got"),
    ({"schemas": {**SCHEMAS, "person": Schema({"sex": OpenCategorical()})}}, "to be found in"),
    ({"mechanism": "auto", "settings": {"model_mb": 1.0}}, "by name"),
    ({"mechanism": "aims"}, "aims"),
    ({"epsilon": -1.0}, "epsilon"),
    ({"settings": {"model_mb": 1e-9}, "mechanism": "aim"}, "model_mb"),
    # The parents' pairs have room, the children's have not.
    (
        {
            "settings": {"model_mb": 5e-4},
            "mechanism": "aim",
            "schemas": {
                "home": SCHEMAS["home"],
                "person": Schema({"age": Integer(0, 79), "sex": SCHEMAS["person"].columns["sex"]}),
            },
        },
        "model_mb",
    ),
]


@pytest.mark.parametrize(("options", "said"), WRONG, ids=[said for _, said in WRONG])
def test_refusals_come_before_anything_is_spent(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    ledger = Ledger.create(
        tmp_path / "ledger", Budget(3.0, 1e-6), neighbours="add/remove", unit="id"
    )
    frames = homes(np.random.default_rng(0), 20)
    if "schemas" in options:
        frames = {name: frames.get(name, frames["home"]) for name in options["schemas"]}
    with pytest.raises(InvalidInput, match=said):
        run(frames, **{"epsilon": 1.0, "seed": None, "ledger": ledger, **options})
    assert ledger.spent == 0


@pytest.mark.parametrize(
    "wrong",
    [
        *[{"most": 0}, {"most": True}, {"child": ""}, {"child": "../a"}, {"key": 3}],
        *[{"order": "id"}, {"count": "id"}, {"child": "b"}],
    ],
    ids=str,
)
def test_wrong_links(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Link(**{"child": "a", "parent": "b", "key": "id", "most": 2, **wrong})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mots": 3}, "no field 'mots'.*did you mean 'most'"),
        ({"most": None}, "needs the field 'most'"),
        ({"child": None}, "needs the field 'child'"),
        ({"constraints": 3}, "constraints of a link must be a sequence of constraints, got 3"),
    ],
    ids=str,
)
def test_links_that_cannot_be_read(change: dict[str, Any], said: str) -> None:
    """A value of None stands for a field that is left out."""
    stored = {"child": "a", "parent": "b", "key": "id", "most": 2} | change
    with pytest.raises(InvalidInput, match=said):
        Link.from_dict({name: value for name, value in stored.items() if value is not None})


def test_values_that_no_schema_foresaw_end_nothing() -> None:
    """They go where the schema places them, in both tables, and the run is like any other."""
    frames = homes(np.random.default_rng(0), 60)
    frames["home"].loc[3, "area"] = "west"
    frames["person"] = frames["person"].astype({"age": object})
    frames["person"].loc[[2, 5], "age"] = ["old", None]
    release = run(frames)
    assert set(release.sample(30, rng=0)["home"]["area"]) <= {"n", "s"}


def test_a_check_of_values_takes_a_hundredth_of_each_tables_part() -> None:
    """A table's part is in proportion to the rows of a unit, to the power 2/3."""
    release = run(homes(np.random.default_rng(0), 60), report_unread=True)
    ledger = release.ledger
    assert ledger is not None
    parts, left = [1.0, 3 ** (2 / 3)], ledger.budget.total
    checks = [each.cost for each in ledger.entries if each.step == "unread values"]
    for part, cost in zip(parts, checks, strict=True):
        assert cost == pytest.approx(0.01 * left * part / sum(parts))
        left -= cost
    assert ledger.remaining == 0


def test_a_warning_of_unread_values_names_the_line_that_calls() -> None:
    frames = homes(np.random.default_rng(0), 60)
    frames["person"]["sex"] = "unknown"
    with pytest.warns(UserWarning, match="of sex could not be read by the schema") as told:
        synthesize_linked(
            frames, SCHEMAS, [LINK], epsilon=50.0, delta=1e-6, seed=0, report_unread=True
        )
    assert [each.filename for each in told if "of sex" in str(each.message)] == [__file__]


def test_columns_of_one_value_are_in_no_measured_pair() -> None:
    columns = {**SCHEMAS["home"].columns, "land": Categorical(("here",))}
    frames = homes(np.random.default_rng(0), 60)
    frames["home"]["land"] = "here"
    release = run(frames, schemas=SCHEMAS | {"home": Schema(columns)})
    measured = {m.clique for m in release.children["person"].measurements}
    assert measured and not any("land" in clique and len(clique) > 1 for clique in measured)


def test_links_are_stored_with_their_rules(tmp_path: Path) -> None:
    rule = Forbid({"position": "1", "age": "0..19"})
    link = Link("person", "home", key="id", most=3, count="size", constraints=[rule])  # type: ignore[arg-type]
    assert link.constraints == (rule,)
    assert Link.from_dict(json.loads(json.dumps(link.to_dict()))) == link
    release = run(homes(np.random.default_rng(0), 40), links=[link])
    release.save(tmp_path / "out")
    assert LinkedRelease.load(tmp_path / "out").links == (link,)


def test_tables_are_written_and_those_without_rows_too(tmp_path: Path) -> None:
    frames = homes(np.random.default_rng(0), 40)
    frames["person"] = frames["person"].iloc[:0]
    release = run(frames, epsilon=1000.0)
    rows = release.write(tmp_path / "out", 30, rng=0)
    assert rows["home"] == 30 and rows["person"] <= 3
    found = pd.read_csv(tmp_path / "out" / "person.csv")
    assert list(found.columns) == ["id", "no", "sex", "age"] and len(found) == rows["person"]
    many = run(homes(np.random.default_rng(0), 40)).write(tmp_path / "more", suffix=".jsonl", rng=0)
    assert len((tmp_path / "more" / "person.jsonl").read_text().splitlines()) == many["person"] > 40


@pytest.mark.parametrize("neighbours", ["add/remove", "replace-one"])
def test_the_noise_of_tables_from_residuals_is_that_of_least_squares(neighbours: str) -> None:
    """That of the best linear estimate on all cells, by the pseudoinverse of the normal matrix."""
    frames = homes(np.random.default_rng(0), 60)
    release = run(frames, mechanism="matrix+pgm", neighbours=neighbours).parents
    domain = release.schema.domain
    rows = [np.sqrt(1e12) * np.ones((1, domain.size()))] if neighbours == "replace-one" else []
    for each in release.measurements:
        into = np.eye(domain.size(each.clique))[domain.cell_map(domain, each.clique)]
        rows.append(np.array([each.applied(own) for own in into]).T / each.stddev)
    covariance = np.linalg.pinv(np.vstack(rows).T @ np.vstack(rows), rcond=1e-15, hermitian=True)
    wanted = wanted_tables(release, set(domain))
    assert wanted
    for table in wanted:
        into = np.eye(table.counts.size)[domain.cell_map(domain, table.clique)]
        noise = np.sqrt(np.diag(into.T @ covariance @ into)).mean()
        assert table.stddev == pytest.approx(noise, rel=1e-3)


def test_frames_and_links_of_other_kinds_are_refused() -> None:
    given: Any
    frames = homes(np.random.default_rng(0), 20)
    two = {**SCHEMAS, "town": SCHEMAS["home"], "pet": Schema({"fur": Categorical(("a", "b"))})}
    more = {"town": frames["home"], "pet": frames["home"]}
    for given, options, said in [
        ([frames["home"]], {}, "got list"),
        ({"home": frames["home"]}, {}, "frames must be a mapping"),
        (frames | {"person": None}, {}, "^table 'person': the data must be a data frame"),
        (frames | {"person": frames["home"]}, {}, "^table 'person': the data have no column 'sex'"),
        (frames, {"links": [3]}, "links must be a sequence of Links"),
        (frames, {"links": []}, "links is empty; give at least one"),
        (
            frames | more,
            {"schemas": two, "links": [LINK, Link("pet", "town", "id", 3)]},
            "the child of exactly one link",
        ),
        (
            frames | {"pet": more["pet"]},
            {
                "schemas": {n: two[n] for n in ("home", "person", "pet")},
                "links": [LINK, Link("pet", "home", "other", 3)],
            },
            "the same key",
        ),
    ]:
        with pytest.raises(InvalidInput, match=said):
            run(given, **options)
    for name in (".person", "a/b", "a:b"):
        with pytest.raises(InvalidInput, match="saved in a file"):
            Link(name, "home", key="id", most=2)


def test_children_begin_with_what_the_parents_tables_say_of_them() -> None:
    frames = homes(np.random.default_rng(0), 60)
    for mechanism, begins in (("mst", True), ("independent", False)):
        release = run(frames, mechanism=mechanism, epsilon=5.0)
        cliques = {each.clique for each in release.children["person"].measurements}
        assert (("size", "position") in cliques) == begins


def test_noise_is_that_of_all_pairs_measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It decides for "auto": that of 9 pairs of a person with the home, siblings and itself."""
    asked: list[tuple[float, float]] = []
    scale = Curator.scale

    def noted(self: Curator, cost: float) -> float:
        asked.append((self.remaining, cost))
        return scale(self, cost)

    monkeypatch.setattr(Curator, "scale", noted)
    run(homes(np.random.default_rng(0), 40), mechanism="auto", epsilon=50.0)
    assert any(cost == pytest.approx(left / 9, rel=1e-12) for left, cost in asked)


def test_columns_are_measured_by_number_where_noise_does_not_hide_them() -> None:
    """A parent's k children are at k positions, where the noise is sqrt(k) times that of one row:
    its scales sum to 3 (1 + 2 sqrt(2) + 3 sqrt(3)) at the mean of 3 codes.
    """
    frames = homes(np.random.default_rng(0), 300)
    children = len(frames["person"].groupby("id").head(3))
    for epsilon, hidden in ((0.3, True), (100.0, False)):
        release = run(frames, epsilon=epsilon).children["person"]
        numbered = [m for m in release.measurements if {"size", "sex"} <= {*m.clique}]
        assert (not [m for m in numbered if m.matrix is not None]) == hidden
        # 2 columns by number, and 9 pairs; persons have 3^(2/3) parts of 1 + 3^(2/3).
        assert release.ledger is not None
        cost = release.ledger.budget.total * 3 ** (2 / 3) / (1 + 3 ** (2 / 3)) / 11
        noise = 3 * (1 + 2**1.5 + 3**1.5) / np.sqrt(2 * cost)
        assert (children < noise) == hidden


def test_a_release_of_linked_tables_has_a_table_for_each_link() -> None:
    made = run(homes(np.random.default_rng(0), 60))
    wrong = [{"links": ()}, {"children": {}}, {"schemas": {}}, {"children": {"home": made.parents}}]
    for each in wrong:
        with pytest.raises(InvalidInput, match="links must name the tables in children"):
            replace(made, **each)
