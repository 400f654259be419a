"""Linked tables drawn at random: replays of whole units, and marks that never leave the Curator."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from replay import assert_private, assert_same, transcript_of
from taint import marked, marks_in
from test_linked import _Saved
from test_taint import assert_kept

from mechanisms.linked import coding, pipeline
from mechanisms.linked.link import Link
from mechanisms.linked.pipeline import synthesize_linked
from mechanisms.linked.release import LinkedRelease
from mechanisms.linked.report import html
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.privacy.units import random_keys
from pgmkit import Column, Schema
from pgmkit.errors import PgmkitError
from pgmkit.tables.labelled import Boolean, Categorical
from pgmkit.tables.numbers import Integer, Numeric

Rng = np.random.Generator
Frames = dict[str, pd.DataFrame]
COLUMNS: tuple[Column, ...] = (
    Boolean(),
    Categorical(("a", "b", "c"), other="else"),
    Categorical(("a", "b"), missing=("?",)),
    Integer(0, 99, bins=4, missing=()),
    Numeric(0, 100, bins=3),
    Categorical(("a",)),
)
VALUES: tuple[Any, ...] = (True, "a", "b", "?", 7, 55.5, None, "0x1F", 10**30, b"\xff", "=1+1", -1)
MECHANISMS = ("auto", "auto", "mst", "aim", "independent", "gaussian+projection", "mwem+pgm")


def drawn_tables(rng: Rng) -> tuple[dict[str, Schema], list[Link]]:
    """Homes with persons, in half of the cases with cars, and in half of them with the persons'
    jobs.
    """
    links = [Link("person", "home", "id", int(rng.integers(1, 5)), order="no")]
    if rng.random() < 0.5:
        links.append(Link("car", "home", "id", int(rng.integers(1, 3))))
    if rng.random() < 0.5:
        links.append(Link("job", "person", "of", int(rng.integers(1, 3)), parent_key="name"))
    schemas = {}
    for table in ("home", *(link.child for link in links)):
        picks = rng.integers(len(COLUMNS), size=rng.integers(1, 4))
        schemas[table] = Schema({f"{table} {i}": COLUMNS[p] for i, p in enumerate(picks)})
    return schemas, links


def records(rng: Rng, schema: Schema, ids: list[Any]) -> pd.DataFrame:
    """Rows with these keys, most of them with values that the columns have."""
    columns: dict[str, Any] = {"id": pd.Series(ids, dtype=object)}
    columns["no"] = pd.Series([[1, 2.5, "3", None][rng.integers(4)] for _ in ids], dtype=object)
    for name, column in schema.columns.items():
        own = column.own_values(rng.integers(0, len(column.own_labels), len(ids)), rng).tolist()
        odd = rng.random(len(ids)) < 0.2
        values = [
            VALUES[rng.integers(len(VALUES))] if o else v for o, v in zip(odd, own, strict=True)
        ]
        columns[name] = pd.Series(values, dtype=object)
    return pd.DataFrame(columns)


def units(rng: Rng, schemas: dict[str, Schema], ids: range) -> Frames:
    """Whole units: parents, of which some are there twice, and any number of children."""
    keys = {"home": [i for i in ids for _ in range(1 + (rng.random() < 0.1))]}
    for child in list(schemas)[1:]:
        keys[child] = [i for i in ids for _ in range(rng.integers(0, 6))]
    found = {table: records(rng, schema, keys[table]) for table, schema in schemas.items()}
    # Some names are there twice, within one home, and some jobs are nobody's.
    homes = keys["person"]
    names = [None if rng.random() < 0.1 else f"{i} {rng.integers(6)}" for i in homes]
    found["person"]["name"] = pd.Series(names, dtype=object)
    if "job" in found:
        owners = [f"{i} {rng.integers(6)}" for i in keys["job"]]
        found["job"]["of"] = pd.Series(owners, dtype=object)
    return found


def joined(*parts: Frames) -> Frames:
    return {table: pd.concat([part[table] for part in parts]) for table in parts[0]}


class Case:
    """Two neighbours that differ in a unit, or that have nothing in common, and a job for them."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        rng = np.random.default_rng(seed)
        self.schemas, self.links = drawn_tables(rng)
        self.relation = str(rng.choice(list(NEIGHBOURS)))
        count = int(rng.integers(2, 40))
        shared, rest = units(rng, self.schemas, range(count)), range(1000, 1001)
        self.one = joined(shared, units(rng, self.schemas, rest))
        exchanged = self.relation == "replace-one"
        self.other = joined(shared, units(rng, self.schemas, rest)) if exchanged else shared
        more = count + 1 if exchanged else int(rng.integers(2, 60))
        self.unrelated = units(rng, self.schemas, range(2000, 2000 + more))
        self.pure = bool(rng.random() < 0.3)
        self.options: dict[str, Any] = {
            "mechanism": str(rng.choice(MECHANISMS)),
            "epsilon": float(np.exp(rng.uniform(np.log(0.1), np.log(20)))),
            "delta": 0.0 if self.pure else 1e-6,
            "report_unread": (lambda found: None) if rng.random() < 0.5 else False,
        }
        # Both runs keep the same rows of the units that they share: the draw depends on them alone.
        monkeypatch.setattr(coding, "random_keys", self._keys(int(rng.integers(1000))))
        # "auto" must meet both of its mechanisms on tables of any size.
        monkeypatch.setattr(pipeline, "MUCH_SIGNAL", float(rng.choice([0.0, 600.0])))

    @staticmethod
    def _keys(seed: int) -> Callable[..., Any]:
        return lambda count, _: random_keys(count, np.random.default_rng(seed))

    def job(self, frames: Frames) -> LinkedRelease:
        return synthesize_linked(
            frames, self.schemas, self.links, neighbours=self.relation, **self.options
        )

    def transcript(self, frames: Frames, folder: Path, forced: Any = None) -> Any:
        """What leaves a run, with its page and what is drawn from it."""
        pages: list[str] = []

        def saved() -> _Saved:
            release = self.job(frames)
            pages.append(html(release, rng=0))
            pages.append(repr({n: str(t) for n, t in release.sample(20, rng=0).items()}))
            return _Saved(release)

        found = transcript_of(saved, folder, forced)
        found.shown += "".join(pages)
        return found


def assert_case(seed: int, folder: Path) -> float | None:
    """The largest share of a drawn case; None if it is refused, on all tables alike."""
    with pytest.MonkeyPatch.context() as patch:
        case = Case(seed, patch)
        try:
            one = case.transcript(case.one, folder)
        except PgmkitError as refusal:
            for frames in (case.other, case.unrelated):
                with pytest.raises(type(refusal)):
                    case.job(frames)
            return None
        share = assert_private(one, case.transcript(case.other, folder, one), case.pure)
        assert_same(one, case.transcript(case.unrelated, folder, one))
        return share


@pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(300), marks=pytest.mark.slow)], ids=len
)
def test_drawn_linked_tables_cost_no_more_than_they_are_charged(
    seeds: range, tmp_path: Path
) -> None:
    shares = {seed: assert_case(seed, tmp_path) for seed in seeds}
    replayed = [share for share in shares.values() if share is not None]
    print(f"{len(replayed)} replayed, true / charged up to {max(replayed):.9f}")
    assert len(replayed) > 0.8 * len(shares)


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(s, marks=pytest.mark.slow) for s in range(3, 60))]
)
def test_no_mark_leaves_by_linked_tables(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables, their page and files, what is said, and the log."""
    case = Case(seed, monkeypatch)
    with marked() as marks:
        release = case.job(case.one)
        release.save(tmp_path / "linked")
        assert html(release, rng=0) and repr(release) and release.sample(5, rng=0)
        assert marks_in(release) == 0
    assert_kept(marks)


def test_what_is_coded_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leak that is planted between the coding of linked tables and the Curator is noticed."""
    case = Case(0, monkeypatch)
    honest = pipeline._spend
    with marked() as marks, monkeypatch.context() as patch:

        def leaking(curator: Any, tables: Any, *args: Any, **options: Any) -> Any:
            logging.getLogger("mechanisms").info("%d persons", len(tables["person"]))
            return honest(curator, tables, *args, **options)

        patch.setattr(pipeline, "_spend", leaking)
        case.job(case.one)
    assert any("the number of rows" in leak for leak in marks.leaks)


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_only_the_number_of_topmost_rows_is_ever_public(
    most: int, relation: str, tmp_path: Path
) -> None:
    frames = {
        "home": pd.DataFrame({"id": range(90), "area": ["n", "s"] * 45}),
        "person": pd.DataFrame({"id": [*range(60), *range(30)], "sex": ["f", "m", "m"] * 30}),
    }
    schemas = {
        "home": Schema({"area": Categorical(("n", "s"))}),
        "person": Schema({"sex": Categorical(("f", "m"))}),
    }
    links = [Link("person", "home", "id", most)]
    release = synthesize_linked(
        frames, schemas, links, epsilon=2.0, delta=1e-6, neighbours=relation, mechanism="mst"
    )
    release.save(tmp_path / "linked")
    for each in (release, LinkedRelease.load(tmp_path / "linked")):
        top = "public" if relation == "replace-one" else "estimated"
        page = re.sub("<[^>]*>", " ", html(each, rng=0))
        assert f"home: records ({top})" in page and "person: records (estimated)" in page
        person = each.children["person"]
        assert "records (estimated)" in person._repr_html_()
        used = "Counts are of at most 3 rows of each id; any others were left out."
        assert (used in person.verdict.counts) == ("of each id" in person.verdict.counts)
        assert (used in person.verdict.counts) == (most == 3)
        assert person.ledger.spent == release.ledger.spent
