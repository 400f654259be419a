"""A small release of linked tables: its records, its files, and the noise of its tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from test_linked_pipeline import SCHEMAS, frames_of

from mechanisms import synthesize_linked
from mechanisms.linked.fidelity import fidelity
from mechanisms.linked.link import Link
from mechanisms.linked.release import LinkedRelease, wanted_tables
from mechanisms.release.tabular import TableRelease
from pgmkit import Domain, InvalidInput, Measurement, Schema
from pgmkit.tables.constraints import Forbid
from pgmkit.tables.labelled import Categorical
from pgmkit.tables.numbers import Integer

LINKS = [
    Link("cow", "farm", "id", 3, order="no", count="cows"),
    Link("calf", "cow", "of", 2, parent_key="tag", count="calves"),
]


def made(seed: int | None = 0, **options: Any) -> LinkedRelease:
    frames = frames_of([0, 1, 2, 3] * 8)
    cows = np.arange(len(frames["cow"]))
    frames["cow"] = frames["cow"].assign(no=cows, tag=cows)
    frames["calf"] = pd.DataFrame({"of": cows[::2], "age": cows[::2] % 3})
    schemas = {**SCHEMAS, "calf": Schema({"age": Integer(0, 2)})}
    given = {"epsilon": 50.0, "delta": 1e-6, "mechanism": "independent", "links": LINKS} | options
    return synthesize_linked(frames, schemas, given.pop("links"), seed=seed, **given)


@pytest.fixture(scope="module")
def release() -> LinkedRelease:
    return made()


def test_tables_stand_from_the_top_down_and_say_once_that_they_protect_nobody(
    release: LinkedRelease,
) -> None:
    assert list(release.tables) == ["farm", "cow", "calf"]
    assert release.tables["farm"] is release.parents and release.ledger is release.parents.ledger
    assert not release.secure and release.caution == release.parents.caution
    assert release.caution.count("INSECURE") == 1
    each = ", ".join(f"{name}: {table!r}" for name, table in release.tables.items())
    assert repr(release) == f"<LinkedRelease of {each}>"
    secure = made(None)
    assert secure.secure is True and secure.caution == ""
    mixed = replace(secure, children={**secure.children, "calf": release.children["calf"]})
    assert not mixed.secure and mixed.caution == release.caution


def test_a_release_has_the_children_that_its_links_name(release: LinkedRelease) -> None:
    wrong: list[dict[str, Any]] = [
        {"links": ()},
        {"links": release.links[:1]},
        {"children": {}},
        {"schemas": {}},
        {"schemas": {"cow": release.schemas["cow"]}},
        {"children": {"cow": release.children["cow"]}},
        {"links": (), "children": {}, "schemas": {}},
    ]
    for each in wrong:
        with pytest.raises(InvalidInput, match="links must name the tables in children and schema"):
            replace(release, **each)


@pytest.mark.parametrize("n", [None, 9])
def test_keys_and_numbers_of_drawn_rows_fit(release: LinkedRelease, n: int | None) -> None:
    drawn = release.sample(n, rng=1)
    farm, cow, calf = drawn["farm"], drawn["cow"], drawn["calf"]
    assert all(isinstance(each, pd.DataFrame) for each in drawn.values())
    assert [list(each.columns) for each in drawn.values()] == [
        ["id", "hills", "cows"],
        ["id", "no", "tag", "kind", "calves"],
        ["of", "age"],
    ]
    assert len(farm) == (n or round(release.parents.model.total))
    assert farm["id"].tolist() == list(range(1, len(farm) + 1))
    assert cow["tag"].tolist() == list(range(1, len(cow) + 1))
    assert cow["id"].tolist() == np.repeat(farm["id"], farm["cows"]).tolist()
    assert cow["no"].tolist() == [i + 1 for number in farm["cows"] for i in range(number)]
    assert calf["of"].tolist() == np.repeat(cow["tag"], cow["calves"]).tolist()
    for name, each in release.sample(n, rng=np.random.default_rng(1)).items():
        pd.testing.assert_frame_equal(each, drawn[name])
    given = release.sample(n, given={"farm": {"cows": 3}}, rng=1)
    assert set(given["farm"]["cows"]) == {3} and (n is None or len(given["farm"]) == n)
    nobody = release.sample(3, given={"farm": {"cows": 0}}, rng=1)
    assert [len(each) for each in nobody.values()] == [3, 0, 0]
    assert all(list(nobody[name].columns) == list(drawn[name].columns) for name in drawn)
    plain = replace(release, forms={}).sample(n, rng=1)
    assert all(isinstance(each, pa.Table) for each in plain.values())
    assert plain["cow"].to_pandas()["tag"].tolist() == cow["tag"].tolist()


def test_records_are_written_into_a_new_folder_or_an_old_one(
    release: LinkedRelease, tmp_path: Path
) -> None:
    place = tmp_path / "a" / "b"
    with pytest.raises(InvalidInput, match="xyz"):
        release.write(place, suffix=".xyz", rng=1)
    assert not place.exists()
    for folder in (str(place), place):
        rows = release.write(folder, 12, given={"farm": {"cows": [1, 2]}}, rng=1)
        drawn = release.sample(12, given={"farm": {"cows": [1, 2]}}, rng=1)
        assert rows == {name: len(each) for name, each in drawn.items()} and rows["farm"] == 12
        found = pd.read_csv(place / "cow.csv")
        assert found["tag"].tolist() == drawn["cow"]["tag"].tolist()
        assert set(pd.read_csv(place / "farm.csv")["cows"]) == {1, 2}
    assert sorted(each.name for each in place.iterdir()) == ["calf.csv", "cow.csv", "farm.csv"]


def test_distances_are_those_of_each_measured_table_about_a_link(release: LinkedRelease) -> None:
    tables = release.compared(rng=1)
    assert [(each.table, each.kind, each.clique) for each in tables] == [
        ("farm", "numbers of cow", ("cows",)),
        ("cow", "siblings", ("previous kind",)),
        ("cow", "siblings", ("previous calves",)),
        ("cow", "within a child", ("kind",)),
        ("cow", "within a child", ("calves",)),
        ("cow", "numbers of calf", ("calves",)),
        ("calf", "siblings", ("previous age",)),
        ("calf", "within a child", ("age",)),
    ]
    assert release.compared(rng=1) == tables
    said, wanted = (each.columns for each in (release.fidelity(rng=1), fidelity(tables)))
    assert {n: list(c) for n, c in said.items()} == {n: list(c) for n, c in wanted.items()}
    drawn = release.sample(rng=1)
    for each, column in ((tables[0], drawn["farm"]["cows"]), (tables[7], drawn["calf"]["age"])):
        model = release.tables[each.table].model.marginal(each.clique)
        shares = np.bincount(column, minlength=len(model)) / len(column)
        assert each.records == pytest.approx(np.abs(shares - model / model.sum()).sum() / 2)
    pure = made(delta=0.0)
    for one, of_gauss in ((pure, False), (replace(pure, parents=replace(
            pure.parents, release=replace(pure.parents.release, ledger=None))), True)):  # fmt: skip
        (found,) = (t for t in one.compared(rng=1) if t.clique == ("cows",))
        (m,) = (m for m in one.parents.measurements if m.clique == ("cows",))
        mean = (2 / np.pi if of_gauss else 1 / 2) ** 0.5
        total = one.parents.model.marginal(("cows",)).sum()
        assert found.noise == pytest.approx(0.5 * 4 * m.stddev * mean / total)


def test_the_noise_of_a_table_is_the_least_or_the_mean_over_its_parts() -> None:
    """The parts are no residuals. Each measures some of the cells; the mean is over all cells."""
    domain = Domain({"a": 2, "b": 3})
    model = SimpleNamespace(
        total=12.0, marginal=lambda clique: np.full(domain.shape(clique), -1.0 * ("a" in clique))
    )
    some, rest = np.eye(3)[:1] * 2, np.eye(3)[1:] * 3
    measured = [
        Measurement(("a",), [1.0, 2.0], 3.0),
        Measurement(("a",), [1.0, 2.0], 2.0),
        Measurement(("a",), [1.0, 2.0], 4.0),
        Measurement(("b",), [1.0], 3.0, some),
        Measurement(("b",), [1.0, 2.0], 6.0, rest),
        "no table",
    ]
    release: Any = SimpleNamespace(
        schema=SimpleNamespace(domain=domain), model=model, measurements=measured
    )
    found = {each.clique: each for each in wanted_tables(release, {"a", "b"})}
    assert found["a",].stddev == 2.0 and found["a",].counts.tolist() == [0.0, 0.0]
    assert found["b",].stddev == pytest.approx((3.0 * 1 + 6.0 * 2) / 3)
    assert found["b",].counts.tolist() == [0.0] * 3 and len(found) == 2
    assert [each.clique for each in wanted_tables(release, {"b", "c"})] == [("b",)]
    assert wanted_tables(release, set()) == []
    measured.append(Measurement(("b",), [1.0, 2.0, 3.0], 9.0))
    assert wanted_tables(release, {"b"})[0].stddev == 9.0


def test_a_release_is_saved_into_a_new_folder_or_an_old_one(
    release: LinkedRelease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "a" / "b"
    for folder in (str(place), place):
        release.save(folder)
    assert sorted(each.name for each in place.iterdir()) == [
        "calf.pgm", "cow.pgm", "farm.pgm", "links.json",
    ]  # fmt: skip
    text = (place / "links.json").read_text()
    assert json.loads(text) == [link.to_dict() for link in release.links] and text.endswith("]\n")
    asked: list[bool] = []
    load = TableRelease.load

    def noted(path: Any, *, allow_modified: bool) -> TableRelease:
        asked.append(allow_modified)
        return load(path, allow_modified=allow_modified)

    monkeypatch.setattr(TableRelease, "load", noted)
    for folder in (str(place), place):
        read = LinkedRelease.load(folder)
        assert read.links == release.links and list(read.tables) == list(release.tables)
        assert (
            read.schemas == dict(release.schemas) and read.parents.schema == release.parents.schema
        )
        for name, each in read.sample(9, rng=1).items():
            assert each.to_pandas().to_numpy().tolist() == (
                release.sample(9, rng=1)[name].to_numpy().tolist()
            )
    LinkedRelease.load(place, allow_modified=True)
    assert asked == [False] * 6 + [True] * 3
    with pytest.raises(InvalidInput, match="no release of linked tables: it has no file links.jso"):
        LinkedRelease.load(tmp_path)
    (place / "calf.pgm").unlink()
    with pytest.raises(InvalidInput, match="no release of linked tables: it has no file calf.pgm"):
        LinkedRelease.load(place)


def test_children_keep_the_rules_of_their_link(release: LinkedRelease) -> None:
    rule = Forbid({"position": 1, "kind": "a"})
    link = replace(LINKS[0], constraints=(rule,))
    drawn = made(links=[link, LINKS[1]]).sample(60, rng=1)["cow"]
    first = drawn.loc[drawn["no"] == 1, "kind"]
    assert len(first) > 20 and set(first) == {"b"}
    plain = release.sample(60, rng=1)["cow"]
    assert set(plain.loc[plain["no"] == 1, "kind"]) == {"a", "b"}
    # The rules of one pair of columns hold together: kinds take turns.
    turns = tuple(Forbid({"previous kind": kind, "kind": kind}) for kind in "ab")
    drawn = made(links=[replace(LINKS[0], constraints=turns), LINKS[1]]).sample(60, rng=1)["cow"]
    alike = drawn["kind"].shift() == drawn["kind"]
    assert len(drawn) > 60 and not alike[drawn["no"] > 1].any()


@pytest.mark.parametrize("total_known", [True, False])
def test_the_noise_of_residuals_is_that_of_least_squares(total_known: bool) -> None:
    """The pseudoinverse of the normal matrix of all measurements gives the noise of the counts."""
    domain = Domain({"a": 2, "b": 3})
    residual = {n: np.eye(size) - 1 / size for n, size in domain.sizes.items()}
    measured = [
        Measurement(("a",), np.zeros(2), 2.0, [residual["a"]]),
        Measurement(("b",), np.zeros(3), 3.0, [residual["b"]]),
        Measurement(("a", "b"), np.zeros(6), 5.0, [residual["a"], residual["b"]]),
    ]
    into = {("a",): np.kron(np.eye(2), np.ones(3)), ("b",): np.kron(np.ones(2), np.eye(3)),
            ("a", "b"): np.eye(6)}  # fmt: skip
    rows = [np.kron(residual["a"], np.ones(3)) / 2, np.kron(np.ones(2), residual["b"]) / 3]
    rows.append(np.kron(residual["a"], residual["b"]) / 5)
    rows.append(np.ones((1, 6)) * (1e4 if total_known else 1 / 4))
    if not total_known:
        measured.append(Measurement((), [12.0], 4.0))
    covariance = np.linalg.pinv(np.vstack(rows).T @ np.vstack(rows), rcond=1e-15, hermitian=True)
    model = SimpleNamespace(total=12.0, marginal=lambda clique: np.ones(domain.shape(clique)))
    release: Any = SimpleNamespace(
        schema=SimpleNamespace(domain=domain), model=model, measurements=measured
    )
    found = wanted_tables(release, {"a", "b"})
    assert [each.clique for each in found] == list(into)
    for each in found:
        sums = into[each.clique]
        noise = np.sqrt(np.diag(sums @ covariance @ sums.T)).mean()
        assert each.stddev == pytest.approx(noise, rel=1e-4)


def test_a_column_of_one_value_has_it_in_every_record() -> None:
    frames = frames_of([1, 2] * 10)
    frames["cow"]["farmed"] = "yes"
    schemas = {"farm": SCHEMAS["farm"], "cow": Schema({"farmed": Categorical(("yes",))})}
    link = Link("cow", "farm", "id", 3, count="cows")
    drawn = synthesize_linked(
        frames, schemas, [link], epsilon=50.0, delta=1e-6, mechanism="independent", seed=0
    ).sample(20, rng=0)
    assert (
        set(drawn["cow"]["farmed"]) == {"yes"} and len(drawn["cow"]) == drawn["farm"]["cows"].sum()
    )
