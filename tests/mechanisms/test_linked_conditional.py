"""Linked records under conditions: exact rules, and the law of an unconditional draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import test_linked_trees as trees
from chance import FALSE_ALARM, assert_follows
from scipy import stats
from test_linked import SCHEMAS, homes, run

from mechanisms.linked.link import Link
from mechanisms.linked.release import LinkedRelease
from mechanisms.linked.siblings import Children, Wanted, draw_children
from pgmkit import Domain, Schema
from pgmkit.errors import InvalidInput, NumericalFailure
from pgmkit.tables.constraints import Forbid
from pgmkit.tables.labelled import Categorical
from pgmkit.tables.levels import Level

RULE = Forbid({"position": 1, "age": "0..19"})
YOUNG = {"age": "0..19"}


@pytest.fixture(scope="module")
def release() -> LinkedRelease:
    """Homes of one to three persons, the first of them grown up."""
    link = Link("person", "home", "id", 3, order="no", count="size", constraints=(RULE,))
    return run(homes(np.random.default_rng(0), 1500), links=[link])


@pytest.fixture(scope="module")
def plain(release: LinkedRelease) -> dict[str, Any]:
    """A draw without conditions."""
    return release.sample(6000, rng=0)


def linked(drawn: dict[str, Any]) -> None:
    """Keys fit, numbers and order of persons are right, and no rule is broken."""
    home, person = drawn["home"], drawn["person"]
    assert home["id"].tolist() == list(range(1, len(home) + 1))
    own = person.groupby("id").size()
    assert own.reindex(home["id"], fill_value=0).tolist() == home["size"].tolist()
    assert own.sum() == len(person) and set(own.index) <= set(home["id"])
    assert (person.groupby("id").cumcount() + 1 == person["no"]).all()
    assert (person.loc[person["no"] == 1, "age"] >= 20).all()


def kinds(drawn: dict[str, Any]) -> pd.Series:
    """For each home its columns, and the sex and the bin of the age of its first two persons: one
    unit of the field, independent of the other homes'.
    """
    home, person = drawn["home"].set_index("id"), drawn["person"]
    kind = person["sex"] + (person["age"] // 20).astype(str)
    places = {k: kind[person["no"] == k].set_axis(person["id"][person["no"] == k]) for k in (1, 2)}
    columns = [home["area"], home["rich"], home["size"].astype(str)]
    columns += [each.reindex(home.index, fill_value="none") for each in places.values()]
    return pd.concat(columns, axis=1).agg(" ".join, axis=1)


def apart(one: pd.Series, other: pd.Series) -> float:
    """The p-value of Pearson's test that two samples have one law; rare kinds are pooled."""
    counts = pd.concat([one.value_counts(), other.value_counts()], axis=1).fillna(0).to_numpy().T
    expected = counts.sum(0) * counts.sum(1, keepdims=True).min() / counts.sum()
    rare = expected < 20
    pooled = np.column_stack([counts[:, ~rare], counts[:, rare].sum(1)])
    return float(stats.chi2_contingency(pooled[:, pooled.sum(0) > 0]).pvalue)


def test_homes_of_an_area_and_a_size_are_those_of_a_draw_without_conditions(
    release: LinkedRelease, plain: dict[str, Any]
) -> None:
    """The p-values of 20 seeds, for this test and the next, were spread evenly from .008 to .99."""
    drawn = release.sample(500, given={"home": {"area": "s", "size": 2}}, rng=1)
    linked(drawn)
    assert len(drawn["home"]) == 500 and len(drawn["person"]) == 1000
    assert set(drawn["home"]["area"]) == {"s"} and set(drawn["home"]["size"]) == {2}
    whole = kinds(plain)
    kept = whole[((plain["home"]["area"] == "s") & (plain["home"]["size"] == 2)).to_numpy()]
    assert apart(kinds(drawn), kept) >= FALSE_ALARM
    # The test can tell: homes of the other area, where incomes are others.
    assert apart(
        kinds(drawn).str[2:], whole[plain["home"].set_index("id")["rich"] == "no"].str[2:]
    ) < (FALSE_ALARM)


def test_homes_with_a_young_person_are_those_of_a_draw_without_conditions(
    release: LinkedRelease, plain: dict[str, Any]
) -> None:
    given = {"home": "rich = yes", "person": {**YOUNG, "sex": "F"}}
    drawn = release.sample(400, given=given, rng=1)
    linked(drawn)

    def meeting(tables: dict[str, Any]) -> Any:
        young = tables["person"].query("age < 20 and sex == 'F'")["id"]
        home = tables["home"]
        return ((home["rich"] == "yes") & home["id"].isin(young)).to_numpy()

    assert len(drawn["home"]) == 400 and meeting(drawn).all()
    assert apart(kinds(drawn), kinds(plain)[meeting(plain)]) >= FALSE_ALARM
    # Without a number there are as many as the model has: the share of a plain draw.
    number = len(release.sample(given=given, rng=2)["home"])
    expected = release.parents.model.total * meeting(plain).mean()
    assert abs(number - expected) < 6 * (2 * expected) ** 0.5


def test_the_children_of_some_parents_have_the_law_of_theirs() -> None:
    """Tables over parent, place and child fix the law. The parents that are asked for are all rich,
    a tenth of the others, and count in no table.
    """
    rng = np.random.default_rng(0)
    law = rng.dirichlet(np.ones(3), (2, 2))  # age by rich and position
    domain = Domain({"rich": 2, "position": 2, "age": 3})
    rich = np.append(rng.random(5000) < 0.1, np.ones(2000, bool)).astype(int)
    counts = np.full(7000, 2)
    start = {"age": rng.integers(0, 3, 14000)}
    drawn = Children(domain, counts, {"rich": rich}, start, fitted=5000)
    shares = np.array([0.9, 0.1])[:, None, None] * law / 2
    wanted = [Wanted(("rich", "position", "age"), shares * 1e6, 10.0)]
    draw_children(drawn, wanted, 1e6, rng)
    assert drawn.fitted == 10000 and drawn.table(("rich",)).sum() == 10000
    ages = drawn.records["age"][10000:].reshape(2000, 2)
    for place in (0, 1):
        # 500 fitted parents decide about the potentials, 2,000 are drawn with them: seen beside the
        # law, their spread is that of 400.
        found = np.bincount(ages[:, place], minlength=3)
        assert_follows(np.round(found / 5), law[1, place])
    assert np.abs(drawn.table(("rich", "position", "age")) - 1e4 * shares).sum() < 600


def test_descendants_of_every_level_meet_conditions() -> None:
    """Customers of one sector with an order of the last year, and with an item of one kind."""
    frames = trees.shop(np.random.default_rng(0), range(100))
    release = trees.run(frames)
    given: dict[str, Any] = {
        "customer": {"sector": "work", "orders": [2, 3]},
        "order": "year = 2",
        "item": {"kind": "a"},
    }
    drawn = release.sample(20, given=given, rng=0)
    customer, order, item, call = (drawn[name] for name in trees.SCHEMAS)
    assert len(customer) == 20
    assert set(customer["sector"]) == {"work"} and set(customer["orders"]) <= {2, 3}
    for key, parents, number, children, of in (
        ("customer", customer, "orders", order, "customer"),
        ("customer", customer, "calls", call, "customer"),
        ("order", order, "items", item, "of"),
    ):
        own = children.groupby(of).size().reindex(parents[key], fill_value=0)
        assert own.tolist() == parents[number].tolist() and own.sum() == len(children)
    assert set(order.query("year == 2")["customer"]) == set(customer["customer"])
    some = order[order["order"].isin(item.query("kind == 'a'")["of"])]
    assert set(some["customer"]) == set(customer["customer"])


def test_a_release_that_was_read_gives_the_same_records(
    release: LinkedRelease, tmp_path: Path
) -> None:
    release.save(tmp_path / "out")
    read = LinkedRelease.load(tmp_path / "out")
    given = {"home": {"size": 3}, "person": "age < 20"}
    one, other = (each.sample(20, given=given, rng=1) for each in (release, read))
    for name, frame in one.items():
        pd.testing.assert_frame_equal(frame, other[name].to_pandas(), check_dtype=False)
    rows = read.write(tmp_path / "tables", 20, given=given, rng=1)
    assert rows == {name: len(frame) for name, frame in one.items()}
    assert (pd.read_csv(tmp_path / "tables" / "home.csv")["size"] == 3).all()


def test_no_conditions_change_nothing(release: LinkedRelease) -> None:
    expected = release.sample(30, rng=1)
    for given in (None, {}, {"home": {}}, {"person": ""}):
        for name, frame in release.sample(30, given=given, rng=1).items():
            pd.testing.assert_frame_equal(frame, expected[name])


def test_levels_are_conditions_too() -> None:
    home = Schema(
        SCHEMAS["home"].columns, levels={"shore": Level("area", {"sea": ["n"], "land": ["s"]})}
    )
    person = Schema(
        SCHEMAS["person"].columns,
        levels={"stage": Level("age", {"child": "..19", "grown": "20.."})},
    )
    release = run(homes(np.random.default_rng(0)), schemas={"home": home, "person": person})
    drawn = release.sample(10, given={"home": {"shore": "sea"}, "person": "stage = child"}, rng=0)
    assert set(drawn["home"]["area"]) == {"n"}
    young = drawn["person"].query("stage == 'child'")
    assert set(young["id"]) == set(drawn["home"]["id"]) and (young["age"] < 20).all()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("area = s", "given must be a mapping from tables to conditions.*got"),
        ([], "given must be a mapping from tables to conditions.*got list"),
        ({"home": 3}, "table 'home': the conditions must be a mapping.*got 3"),
        ({"person": None}, "table 'person': the conditions must be a mapping.*got None"),
        ({"homes": {}}, "the release has no table 'homes'.*did you mean 'home'.*home, person"),
        ({"home": {"aera": "s"}}, "table 'home': there is no column 'aera'.*'area'.*size"),
        ({"home": "aera = s"}, "table 'home': there is no column 'aera'.*'area'.*size"),
        ({"person": {"area": "s"}}, "table 'person': there is no column 'area'.*sex, age"),
        ({"home": {"area": "west"}}, "table 'home': .*'area'.*'west'"),
        ({"home": {"size": 4}}, "table 'home': 4 leaves no value of 'size'; .*0, 1, 2, 3"),
        ({"person": {"sex": []}}, r"table 'person': \[\] leaves no value of 'sex'"),
        ({"home": {"size": 0}, "person": {"sex": "F"}}, "0 of .*'home'.*'person'.*leave out"),
        ({"home": {"size": 1}, "person": YOUNG}, "0 of .*'person'.*leave out a condition"),
    ],
    ids=str,
)
def test_conditions_that_cannot_be_met(release: LinkedRelease, given: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        release.sample(20, given=given, rng=0)


def test_impossible_and_rare_conditions_are_refused() -> None:
    frames = homes(np.random.default_rng(0), 300)
    frames["home"]["stated"] = np.where(frames["home"]["rich"] == "yes", "y", "n")
    frames["person"]["tag"] = np.where(np.arange(len(frames["person"])) % 60 == 0, "rare", "usual")
    schemas = {
        "home": Schema(
            {"rich": SCHEMAS["home"].columns["rich"], "stated": Categorical(("n", "y"))}
        ),
        "person": Schema({"tag": Categorical(("usual", "rare"))}),
    }
    rules = (Forbid({"rich": "yes", "stated": "n"}),)
    link = Link("person", "home", "id", 3, order="no", count="size", constraints=rules)
    release = run(frames, schemas=schemas, links=[link])
    with pytest.raises(InvalidInput, match="the model has no records with"):
        release.sample(5, given={"home": {"rich": "yes", "stated": "n"}}, rng=0)
    with pytest.raises(InvalidInput, match=r"too few for n = 5000; ask for at most \d+, or leave"):
        release.sample(5000, given={"person": "tag = rare"}, rng=0)
    few = release.sample(5, given={"person": "tag = rare"}, rng=0)
    assert set(few["person"].query("tag == 'rare'")["id"]) == set(range(1, 6))
    for n in (0, -1):
        with pytest.raises(InvalidInput, match="n must be a number of records above 0"):
            release.sample(n, given={"person": "tag = rare"}, rng=0)


def test_children_that_the_population_has_none_of_are_refused() -> None:
    frames = homes(np.random.default_rng(0), 3)
    release = run(frames | {"person": frames["person"].iloc[:0]}, epsilon=1e6)
    with pytest.raises(NumericalFailure, match="none of 3 drawn rows of 'home' has .*'person'"):
        release.sample(5, given={"home": {"size": 3}}, rng=0)
