"""Requests by themselves: what is read from their arguments, and what is refused without data."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mechanisms.privacy.budget import Budget
from mechanisms.privacy.ledger import Ledger
from mechanisms.synthesis.open_columns import assumed
from mechanisms.synthesis.pipeline import synthesize
from mechanisms.synthesis.request import Request
from mechanisms.workload import k_way
from pgmkit import Boolean, Categorical, Forbid, OpenCategorical, Schema
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.records.dataset import Dataset

CLOSED = Schema({"sex": Categorical(("F", "M")), "ill": Boolean(), "paid": Boolean()})
OPEN = Schema({"job": OpenCategorical(), **CLOSED.columns})
RULED = Schema(CLOSED.columns, [Forbid({"sex": "F", "ill": True})])
FRAME = pd.DataFrame({"sex": ["F", "M"] * 200, "ill": True, "paid": False})
WORKING = FRAME.assign(job=["cook", "smith"] * 200)


def request(**changes: Any) -> Request:
    return Request(**{"schema": CLOSED, "epsilon": 1.0, "delta": 1e-6, **changes})


def test_a_device_is_a_setting_of_the_mechanism_that_was_named() -> None:
    assert request(device="cpu", mechanism="mst").options == {"device": "cpu"}
    several = request(device="cpu", mechanism="mwem+pgm", settings={"rounds": 3})
    assert several.options == {"device": "cpu", "rounds": 3}
    assert request(device="cpu").options == {}, "auto is told only what it takes in the end"
    assert request(mechanism="mst", settings={"select_share": 0.3}).options == {"select_share": 0.3}
    for mechanism in ("mst", "auto"):
        release = synthesize(
            FRAME, CLOSED, epsilon=5.0, delta=1e-6, mechanism=mechanism, device="cpu", seed=0
        )
        assert release.release.settings.device == "cpu"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"device": "abacus"}, "device"),
    ({"device": "cpu", "mechanism": "mst", "settings": {"device": "cpu"}}, "twice"),
    ({"mechanism": "mst", "seconds": 0.0}, "seconds must be a number above 0"),
    ({"mechanism": "mst", "memory_mb": -1}, "memory_mb must be a number above 0"),
    ({"schema": RULED, "public": FRAME}, "no mechanism that uses public"),
    ({"schema": RULED, "mechanism": "mixture"}, "cannot hold; use aim, mst"),
    ({"schema": RULED, "mechanism": "gaussian+projection"}, "use settings={'inference': 'auto'}"),
    (
        {"mechanism": "gem-pub", "public": FRAME.rename(columns=str.upper)},
        "no column of the schema",
    ),
    ({"mechanism": "gem-pub", "public": FRAME.iloc[:0]}, "no rows"),
    (
        {"schema": OPEN, "public": Dataset(Domain({"job": 2}), {"job": [0]})},
        "public records must be a data frame",
    ),
    ({"mechanism": "gem-pub"}, "public"),
    ({"strict": True, "mechanism": "gem-pub", "public": FRAME.assign(sex="X")}, "'sex'"),
    (
        {"schema": OPEN, "strict": True, "mechanism": "gem-pub", "public": WORKING.assign(sex="X")},
        "column 'sex'",
    ),
    ({"mechanism": "mst", "public": FRAME}, "uses no public records"),
    ({"settings": {"rounds": 3}}, "need a mechanism by name"),
    ({"mechanism": "mst", "strict": 1}, "strict must be True or False"),
    ({"mechanism": "mst", "report_unread": 1}, "report_unread must be True or False"),
    ({"mechanism": "mst", "report_dropped": print}, "report_dropped must be True or False"),
    ({"mechanism": "mst", "report_dropped": True}, "give unit and max_rows"),
    ({"mechanism": "mst", "progress": 1}, "progress must be"),
    ({"mechanism": "mst", "settings": {3: 3}}, "a setting's name must be a str"),
    ({"mechanism": "mst", "seed": "x"}, "seed must be"),
    ({"schema": OPEN, "delta": 0.0, "mechanism": "mst"}, "'job' is to be found"),
    ({"schema": Schema(OPEN.columns, [Forbid({"job": "a", "ill": True})])}, "speaks of 'job'"),
]


def test_public_records_without_an_open_column_are_refused_before_it_is_looked_for(
    tmp_path: Path,
) -> None:
    ledger = Ledger.create(tmp_path / "ledger", Budget(1.0, 1e-6, 1e-7), neighbours="add/remove")
    public = WORKING[["job", "sex", "ill"]]
    with pytest.raises(InvalidInput, match="'paid'.*gem-pub"):
        synthesize(
            WORKING,
            OPEN,
            epsilon=1.0,
            delta=1e-6,
            mechanism="pep-pub",
            public=public,
            ledger=ledger,
        )
    assert ledger.spent == 0


@pytest.mark.parametrize(("changes", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_needs_no_data_is_refused_without(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        request(**changes)


def test_what_is_allowed_is_taken() -> None:
    """The neighbours of what is refused."""
    assert request(schema=RULED, mechanism="mst").schema is RULED
    ruled = request(schema=RULED, mechanism="gaussian+projection", settings={"inference": "auto"})
    assert ruled.options == {"inference": "auto"}
    assert request(report_unread=print, progress=print).report_unread is print
    lacking = request(schema=OPEN, mechanism="gem-pub", public=WORKING[["job", "sex"]])
    records = lacking.public_records(assumed(OPEN).placed())
    assert records is not None and list(records.domain) == ["job", "sex"]
    known = Dataset(CLOSED.domain, {name: [0] for name in CLOSED.domain})
    assert request(mechanism="gem-pub", public=known).public_records(CLOSED) is known
    assert request().public_records(CLOSED) is None
    assert request(strict=True).placed is CLOSED
    assert request().placed == CLOSED.placed() != CLOSED


def test_a_part_of_delta_is_reserved_for_columns_to_be_found() -> None:
    assert request().budget.reserved == 0
    assert 0 < request(schema=OPEN).budget.reserved < 1e-6


def test_a_run_that_measures_alone_is_accounted_for_exactly() -> None:
    for changes, accounting in (
        ({"mechanism": "independent"}, "gaussian"),
        ({"mechanism": "mst"}, "zcdp"),
        ({"mechanism": "mst", "accounting": "gaussian"}, "gaussian"),
        ({}, "gaussian"),
        ({"public": FRAME}, "zcdp"),
        ({"schema": OPEN, "mechanism": "mixture"}, "zcdp"),
        ({"mechanism": "mixture"}, "gaussian"),
    ):
        assert request(**changes).budget.accounting == accounting, changes


def test_the_workload_is_read_once_and_laid_over_what_is_found() -> None:
    jobs = Schema({"job": Categorical(("a", "b", "c")), **CLOSED.columns})
    found = jobs.domain
    cliques = [("job", "sex"), ("ill",)]
    once = request(schema=OPEN, workload=iter(cliques), target="sex").workload_over(jobs)
    assert once.domain == found and set(cliques) < set(once.cliques)
    assert dict(zip(once.cliques, once.weights, strict=True))["ill",] == 1.0 < max(once.weights)
    assert request(schema=OPEN, workload=1).workload_over(jobs) == k_way(found, 1)
    assert request(schema=OPEN).workload_over(jobs) == k_way(found, 2)
    nothing = Schema({"job": Categorical(("a",)), **CLOSED.columns})
    told = request(schema=OPEN).workload_over(nothing).cliques
    assert set(told) == set(k_way(CLOSED.domain, 2).cliques), "of one value nothing is to be learnt"


def test_sets_that_a_target_adds_stay_sought_in_a_workload_of_cliques() -> None:
    pairs = [*itertools.combinations(CLOSED.columns, 2)]
    usual = request(target="sex").workload_over(CLOSED)
    for workload in (pairs, k_way(CLOSED.domain, 2)):
        found = request(workload=workload, target="sex").workload_over(CLOSED)
        assert found.sought == usual.sought != () and found.asked.cliques == usual.asked.cliques


def test_a_mechanism_by_name_pays_for_no_choice() -> None:
    for mechanism in ("mst", "mixture"):
        release = synthesize(FRAME, CLOSED, epsilon=1.0, delta=1e-6, mechanism=mechanism, seed=0)
        assert release.ledger is not None
        assert not [each for each in release.ledger.entries if each.step.startswith("auto")]
        assert release.reason == "as asked"


def test_auto_looks_at_no_pairs_where_none_are_asked_for() -> None:
    release = synthesize(FRAME, CLOSED, epsilon=9.0, delta=1e-6, workload=1, seed=0)
    assert release.ledger is not None
    assert not [each for each in release.ledger.entries if "errors of pairs" in each.step]


def test_strict_public_records_hold_values_that_are_still_to_be_found() -> None:
    release = synthesize(
        WORKING,
        OPEN,
        epsilon=9.0,
        delta=1e-6,
        mechanism="pep-pub",
        settings={"rounds": 2},
        public=WORKING,
        strict=True,
        seed=0,
    )
    assert {"cook", "smith"} < set(release.schema.columns["job"].labels)


def test_auto_takes_public_records_without_a_look() -> None:
    release = synthesize(FRAME, CLOSED, epsilon=1.0, delta=1e-6, public=FRAME, seconds=1.0, seed=0)
    assert release.mechanism == "pep-pub"


def test_every_argument_of_synthesize_reaches_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is left out on the way, where it would be ignored without a word."""
    names = [name for name in inspect.signature(synthesize).parameters if name != "data"]
    given: dict[str, Any] = {name: object() for name in names}
    taken: dict[str, Any] = {}
    monkeypatch.setattr("mechanisms.synthesis.pipeline.Request", lambda **made: taken.update(made))
    monkeypatch.setattr("mechanisms.synthesis.pipeline.release_of", lambda request, data: None)
    synthesize(FRAME, **given)
    assert taken == given
    assert names == [each.name for each in dataclasses.fields(Request)]
