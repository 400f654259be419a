"""Constraints as masks, against their meaning spelled out record by record."""

import itertools

import numpy as np
import pytest

from pgmkit import (
    Categorical,
    Determines,
    Forbid,
    Integer,
    InvalidInput,
    Measurement,
    Require,
    Schema,
    estimate,
)
from pgmkit.tables.constraints import Constraint, constraint_from_dict

COLUMNS = {
    "age": Integer(0, 5),
    "status": Categorical(("single", "married", "widowed"), missing=("?",)),
    "work": Categorical(("no", "yes")),
}


def spelled_out(constraint: Constraint, holds: object) -> np.ndarray:
    columns = [COLUMNS[name] for name in constraint.columns]
    table = np.zeros([column.size for column in columns], dtype=bool)
    for codes in itertools.product(*(range(column.size) for column in columns)):
        table[codes] = holds(*(c.labels[code] for c, code in zip(columns, codes, strict=True)))
    return table


@pytest.mark.parametrize(
    ("constraint", "holds"),
    [
        (
            Forbid({"age": "..2", "status": ["married", "widowed"]}),
            lambda age, status: not (int(age) <= 2 and status in ("married", "widowed")),
        ),
        (
            Require({"age": "0..1", "work": "no"}, {"status": "single"}),
            lambda age, work, status: not (int(age) <= 1 and work == "no") or status == "single",
        ),
        (
            Determines("age", "work", {"0..2": "no", 5: ["no", "yes"], 3: "yes"}),
            lambda age, work: (
                work in {3: ("yes",), 4: ("no", "yes"), 5: ("no", "yes")}.get(int(age), ("no",))
            ),
        ),
        (Forbid({"status": "(missing)"}), lambda status: status != "(missing)"),
    ],
)
def test_masks_say_what_the_constraint_says(constraint: Constraint, holds: object) -> None:
    expected = spelled_out(constraint, holds)
    np.testing.assert_array_equal(constraint.allowed(COLUMNS), expected)
    assert constraint_from_dict(constraint.to_dict()) == constraint


def test_every_record_of_a_model_obeys() -> None:
    schema = Schema(
        COLUMNS,
        [
            Forbid({"age": "..2", "status": ["married", "widowed"]}),
            Determines("age", "work", {"0..2": "no"}),
        ],
    )
    rng = np.random.default_rng(0)
    noisy = [
        Measurement((name,), rng.normal(100, 30, column.size), 30.0)
        for name, column in COLUMNS.items()
    ]
    model = estimate(schema.domain, noisy, zeros=schema.zeros)
    records = model.sample(3000, rng=rng)
    again = schema.encode(schema.decode(records, rng))
    assert len(again) == 3000


def test_data_that_break_a_constraint_are_refused() -> None:
    schema = Schema(COLUMNS, [Require({"age": 0}, {"work": "no"})])
    table = {
        "age": np.array([0, 0, 3]),
        "status": np.array(["single", "single", "widowed"]),
        "work": np.array(["yes", "no", "yes"]),
    }
    with pytest.raises(InvalidInput, match=r"1 rows .* \(if age 0, then work no\); "):
        schema.encode(table)


def test_constraints_are_written_in_words() -> None:
    assert str(Forbid({"age": "0..14", "status": ["single", "widowed"]})) == (
        "never age 0..14 and status single or widowed"
    )
    assert str(Require({"age": 3.0}, {"adult": True, "work": "no"})) == (
        "if age 3, then adult true and work no"
    )
    assert str(Determines("age", "adult", {"0..14": False, "30..": [True]})) == (
        "if age 0..14, then adult false; if age 30.., then adult true"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Schema(COLUMNS, [Forbid({"wages": 1})]), r"\(never wages 1\): there is no col"),
        (lambda: Schema(COLUMNS, [Forbid({"age": "7..9", "work": "maybe"})]), "'work': no value"),
        (lambda: Schema({"age": Integer(0, 9, bins=2)}, [Forbid({"age": "0..3"})]), "cuts the bin"),
        (lambda: Schema(COLUMNS, [Forbid({"status": "a..b"})]), "no order"),
        (lambda: Schema(COLUMNS, ["age"]), "constraints must be"),
        (lambda: Schema(COLUMNS, [Forbid({"age": "0..5"})]), "allow at least one"),
        (lambda: Require({"age": 0}, {"age": 1}), "both"),
        (lambda: Forbid({}), "at least one"),
        (lambda: Determines("age", "age", {0: 0}), "two columns"),
        (lambda: constraint_from_dict({"never": {}}), "either `forbid`"),
    ],
)
def test_wrong_constraints_are_refused(make: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()


class Elsewhere(Constraint):
    """A constraint that another package defines, without fields."""

    columns = ("work",)

    def allowed(self, columns: object) -> np.ndarray:
        return np.array([True, False])


def test_a_constraint_without_fields_is_compared_as_the_others_are() -> None:
    assert Elsewhere() == Elsewhere() != Forbid({"work": "yes"})
    assert Schema(COLUMNS, [Elsewhere()]) == Schema(COLUMNS, [Elsewhere()]) != Schema(COLUMNS)
