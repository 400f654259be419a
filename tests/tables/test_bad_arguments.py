"""Columns, schemas, files and questions refuse arguments of another type by name."""

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from mechanisms.privacy.ledger import Ledger
from pgmkit import (
    Boolean,
    Categorical,
    Date,
    FileFormat,
    GraphicalModel,
    Integer,
    Measurement,
    Numeric,
    OpenCategorical,
    Schema,
    ask,
    counts_of,
    draft,
    encode_file,
    estimate,
    round_at_random,
    write_file,
)
from pgmkit.errors import InvalidInput

NOTHING: Any = None
SCHEMA = Schema({"age": Integer(0, 3)})
FRAME = pd.DataFrame({"age": [0, 1, 3]})


DAY = np.array(["2020-01-01"], dtype="datetime64[D]")
HIDDEN = np.ma.array([1.0, 2.0], mask=[True, False])


def decoded(codes: NDArray[np.int64]) -> object:
    return SCHEMA.columns["age"].decode(codes, np.random.default_rng(0))


def stored(**fields: object) -> Schema:
    return Schema.from_dict(
        {"columns": {"age": {"type": "integer", "low": 0, "high": 3}}, **fields}
    )


def model() -> GraphicalModel:
    return estimate(SCHEMA.domain, [Measurement(("age",), np.ones(4), 1.0)])


REFUSED: dict[str, tuple[str, Callable[[Any], object], tuple[Any, ...]]] = {
    "unit": ("unit", lambda x: Date("2000-01-01", "2001-01-01", unit=x), ([], {}, 1, None)),
    "format": ("format", lambda x: Date("2000-01-01", "2001-01-01", format=x), (1, [])),
    "aliases": ("aliases", lambda x: Categorical(("x", "y"), aliases=x), (1, "z", [1], None)),
    "spikes": ("spikes", lambda x: Integer(0, 9, spikes=x), (None, 1, [10**400])),
    "special": ("special", lambda x: Integer(0, 9, special=x), (None, 1, [10**400])),
    "edges": ("edges|values of", lambda x: Integer(edges=x), ([0, 10**400], 3)),
    "high": ("high", lambda x: Numeric(0, x, bins=2), (None, "x", Fraction(10**400))),
    "quantiles": ("quantiles", lambda x: Numeric(0, 1, bins=2, quantiles=x), ("no", None, [0])),
    "values": ("values holds", lambda x: Categorical((x, "a")), ([1], {"b": 1}, None)),
    "values in no order": ("values must", Categorical, ({"a", "b"}, {"a": 1})),
    "words in no order": ("words must", lambda x: Boolean(words=x), ({"n", "y"}, {"n": "y", 1: 2})),
    "edges in no order": ("edges must", lambda x: Integer(edges=x), ({1, 5}, {1: "low", 5: "x"})),
    "other": ("other", lambda x: Categorical(("a",), other=x), (math.nan, 1, [])),
    "other of an open column": ("other", lambda x: OpenCategorical(other=x), (None, 1)),
    "comment": ("comment", lambda x: FileFormat(comment=x), ("", 1)),
    "masked and other shapes": (
        "values must be (one column|an array without masked)",
        Integer(0, 9).encode,
        (np.ma.array([1, 2], mask=[1, 0]), np.ones((2, 2)), np.array(1), 1.0, None),
    ),
    "codes": ("codes", lambda x: decoded(np.array(x)), ([-1], [0, 4])),
    "constraints of a file": ("constraint", lambda x: stored(constraints=x), (None, 3, [1], "x")),
    "levels of a file": ("levels", lambda x: stored(levels=x), (None, 3, [1])),
    "file of a file": ("file must", lambda x: stored(file=x), (None, 3, [1])),
    "weights": ("values must", lambda x: round_at_random(x, [0, 9], rng=0), ("x", DAY, HIDDEN)),
    "columns of a file": (
        "column",
        lambda x: write_file("nowhere.parquet", {"a": x, "b": np.arange(2)}),
        (HIDDEN, np.arange(3), np.ones((2, 2)), 3),
    ),
    "a name that no file has": ("zero byte", SCHEMA.save, ("a\0.json", Path("a\0.yaml"))),
    "a ledger that is no file": ("zero byte", Ledger.open, ("a\0", Path("a\0"))),
    "name of a file": ("must end in .csv or .parquet", lambda x: write_file(x, {}), ("a.xlsx",)),
    "names": ("names", lambda x: FileFormat(names=x), (-1, [1], "x")),
    "ignore": ("ignore", lambda x: FileFormat(ignore=x), (-1, [1])),
    "encoding": ("encoding", lambda x: FileFormat(encoding=x), ("a\0b", "\ud800", 1)),
    "constraints": ("constraints", lambda x: Schema({"a": Integer(0, 1)}, x), (None, 1, "x")),
    "levels": ("levels", lambda x: Schema({"a": Integer(0, 1)}, levels=x), (1, "x", [1])),
    "file": ("file", lambda x: Schema({"a": Integer(0, 1)}, file=x), (1, "x", [1])),
    "found": ("found", SCHEMA.resolve, (None, 1, [])),
    "columns": ("columns", SCHEMA.encode, (None, 1)),
    "question": ("question", lambda x: ask(model(), SCHEMA, x), (None, 1, b"age", ["age"])),
    "schema of a question": ("schema", lambda x: ask(model(), x, "age"), (None, "x", FRAME)),
    "model of a question": ("model", lambda x: ask(x, SCHEMA, "age"), (None, 1, "x", FRAME)),
    "bars of a question": ("bars", lambda x: ask(model(), SCHEMA, "age", bars=x), (1, model())),
    "schema of a frame": ("schema", lambda x: counts_of(FRAME, x), (None, "x", FRAME)),
}


@pytest.mark.parametrize(("name", "call", "values"), REFUSED.values(), ids=REFUSED)
def test_wrong_types_are_refused_by_name(
    name: str, call: Callable[[Any], object], values: tuple[Any, ...]
) -> None:
    for value in values:
        with pytest.raises(InvalidInput, match=name):
            call(value)


def test_files_refuse_what_is_no_schema_or_format(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    FRAME.to_csv(path, index=False)
    for value in (NOTHING, "schema.yaml", FRAME):
        with pytest.raises(InvalidInput, match="schema must be a Schema"):
            encode_file(path, value)
    with pytest.raises(InvalidInput, match="file must be a FileFormat"):
        draft(path, look=True, file=FRAME)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="most_values must be"):
        draft(path, look=True, most_values=NOTHING)


def test_refused_frames_are_not_shown() -> None:
    """What is passed in place of a schema may be private: the message has its type only."""
    with pytest.raises(InvalidInput) as refused:
        counts_of(FRAME, pd.DataFrame({"secret": [4711]}))  # type: ignore[arg-type]
    assert "4711" not in str(refused.value) and "DataFrame" in str(refused.value)


def test_frames_as_arguments_are_refused_without_their_content() -> None:
    frame = pd.DataFrame({"age": ["6174-Kaprekar"]})
    calls: list[Callable[[], object]] = [
        lambda: Date("2020-01-01", "2020-02-01", decode_as=frame),  # type: ignore[arg-type]
        lambda: Date("2020-01-01", "2020-02-01", unit=frame),  # type: ignore[arg-type]
        lambda: Ledger.from_dict(frame),  # type: ignore[arg-type]
        lambda: Ledger.from_dict({}),
        lambda: Ledger.from_dict({"age": frame}),
    ]
    for call in calls:
        with pytest.raises(InvalidInput) as caught:
            call()
        assert "6174" not in str(caught.value)
    with pytest.raises(ValueError, match="not a number"):
        Integer(1, 5).position(frame)
    with pytest.raises(InvalidInput, match="rng must be a Generator, got 5"):
        Date("2020-01-01", "2020-02-01").own_values(np.array([0]), 5)  # type: ignore[arg-type]
