"""What a release says to requests for records that it cannot meet, and what frames it accepts."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mechanisms import TableRelease, synthesize
from pgmkit import Boolean, Categorical, Forbid, Integer, InvalidInput, Schema

SCHEMA = Schema(
    {"age": Integer(0, 9), "ill": Boolean(), "job": Categorical(("cook", "none"), missing=("?",))}
)


def people(rows: int = 60) -> pd.DataFrame:
    columns = {"age": [1, 2, 3], "ill": [True, False, True], "job": ["cook", None, "none"]}
    return pd.DataFrame({name: values * (rows // 3) for name, values in columns.items()})


@pytest.fixture(scope="module")
def release() -> TableRelease:
    return synthesize(people(), SCHEMA, epsilon=1.0, delta=1e-6, mechanism="independent", seed=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"age": 99}, "99 leaves no value of 'age'; the values are"),
        ({"age": []}, r"\[\] leaves no value of 'age'"),
        ({"age": "20..30"}, "'20..30' leaves no value of 'age'"),
        ({"age": None}, "'age'.*None"),
        ({"ill": None}, "'ill'.*None"),
        ({"job": None}, "'job'.*None"),
    ],
)
def test_conditions_that_no_value_meets_are_named(
    release: TableRelease, given: dict[str, Any], message: str
) -> None:
    """None is neither all values nor, in a column that may have gaps, a missing one."""
    with pytest.raises(InvalidInput, match=message):
        release.sample(5, given=given, rng=0)


@pytest.mark.parametrize("given", [{"ill": "true", "job": "none"}, "ill = true, job = none"])
def test_conditions_that_no_record_meets_are_named_as_they_were_given(given: Any) -> None:
    schema = Schema(SCHEMA.columns, [Forbid({"ill": True, "job": "none"})])
    frame = people().assign(ill=False)
    release = synthesize(
        frame, schema, epsilon=1.0, delta=1e-6, mechanism="mst", workload=2, seed=0
    )
    said = re.escape(f"given {given!r}: the model has no records with the given values of ill, job")
    with pytest.raises(InvalidInput, match=said):
        release.sample(5, given=given, rng=0)


def test_missing_values_are_a_condition_by_their_name(release: TableRelease) -> None:
    assert (release.sample(5, given={"job": "(missing)"}, rng=0)["job"] == "?").all()


@pytest.mark.parametrize("n", [0, -1])
def test_no_records_are_refused_by_the_arguments_name(release: TableRelease, n: int) -> None:
    for drawn in (lambda: release.sample(n, rng=0), lambda: release.parts(n, rng=0)):
        with pytest.raises(InvalidInput, match=f"n must be .* above 0, got {n}"):
            drawn()


@pytest.mark.parametrize("other", [7, ("pay", "net"), 2.5])
def test_columns_beside_the_schemas_may_have_names_that_are_no_texts(other: Any) -> None:
    frame = people()
    frame[other] = 1
    with pytest.warns(UserWarning, match="are left out"):
        synthesize(frame, SCHEMA, epsilon=1.0, delta=1e-6, mechanism="independent", seed=0)


@pytest.mark.parametrize("other", [7, ("age", "years")])
def test_absent_columns_are_named_beside_names_that_are_no_texts(other: Any) -> None:
    frame, given = people().rename(columns={"age": other}), {"epsilon": 1.0, "delta": 1e-6}
    with pytest.raises(InvalidInput, match="no column 'age'"):
        synthesize(frame, SCHEMA, **given)
    with pytest.raises(InvalidInput, match="no column 'whose'"):
        synthesize(
            people().assign(**{"x": 1}).rename(columns={"x": other}),
            SCHEMA,
            **given,
            unit="whose",
            max_rows=1,
        )


def test_a_number_is_another_name_than_its_text() -> None:
    frame = people().rename(columns={"age": 7})
    schema = Schema({"7": Integer(0, 9)})
    with pytest.raises(InvalidInput, match="no column '7'.*they have 7,"):
        synthesize(frame, schema, epsilon=1.0, delta=1e-6)


def test_a_folder_that_does_not_exist_is_named(release: TableRelease, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere does not exist; create it"):
        release.save(tmp_path / "nowhere" / "people.pgm")
