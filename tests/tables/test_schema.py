"""Schemas: every column type there and back, what lies outside, and files of real data."""

import csv
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pgmkit
from pgmkit import (
    Boolean,
    Categorical,
    Column,
    Date,
    DateTime,
    Domain,
    Integer,
    InvalidInput,
    Numeric,
    OpenCategorical,
    Schema,
)
from pgmkit.tables.schema_file import COLUMN_TYPES, column_from_dict, dump_yaml

HERE = Path(__file__).parents[1]
MISSING = st.sampled_from([None, (), ("?",), ("N", "")])


@st.composite
def binned(draw: st.DrawFn) -> Column:
    missing = draw(MISSING)
    kind = draw(st.sampled_from(["integer", "edges", "numeric", "cuts", "date", "datetime"]))
    low = draw(st.integers(-50, 50))
    width = draw(st.integers(1, 60))
    if kind == "integer":
        bins = draw(st.one_of(st.none(), st.integers(1, width)))
        return Integer(low, low + width, bins=bins, missing=missing)
    if kind == "edges":
        steps = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
        return Integer(edges=tuple(np.cumsum([low, *steps]).tolist()), missing=missing)
    if kind == "numeric":
        high = low + draw(st.floats(0.001, 1e6))
        return Numeric(low, high, bins=draw(st.integers(1, 20)), missing=missing)
    if kind == "cuts":
        steps = draw(st.lists(st.floats(0.01, 99), min_size=1, max_size=6))
        return Numeric(edges=tuple(np.cumsum([low, *steps]).tolist()), missing=missing)
    days = np.timedelta64(width, "D")
    start = np.datetime64("1999-12-27") + np.timedelta64(low, "D")
    if kind == "date":
        unit = draw(st.sampled_from(["day", "month", "year"]))
        return Date(str(start), str(start + days), unit=unit, missing=missing)
    unit = draw(st.sampled_from(["hour", "day", "month"]))
    return DateTime(str(start), str(start + days), unit=unit, missing=missing)


@st.composite
def listed(draw: st.DrawFn) -> Column:
    values = draw(
        st.one_of(
            st.lists(
                st.text("abcxyz <=.", min_size=1).filter(str.strip),
                min_size=1,
                max_size=6,
                unique_by=str.strip,
            ),
            st.lists(st.integers(-5, 99), min_size=1, max_size=6, unique=True),
        )
    )
    other = draw(st.sampled_from([None, "(else)"]))
    return Categorical(tuple(values), other=other, missing=draw(MISSING))


columns = st.one_of(binned(), listed(), st.builds(Boolean, missing=MISSING))


@settings(max_examples=200, deadline=None)
@given(columns, st.integers(0, 2**32 - 1))
def test_decoding_then_encoding_is_the_identity(column: Column, seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, column.size, 50)
    values = column.decode(codes, rng)
    np.testing.assert_array_equal(column.encode(values), codes)
    as_objects = np.array(values.tolist(), dtype=object)
    np.testing.assert_array_equal(column.encode(as_objects), codes)
    assert len(column.labels) == len(set(column.labels)) == column.size


@settings(max_examples=100, deadline=None)
@given(columns)
def test_a_stored_column_is_the_same_column(column: Column) -> None:
    assert column_from_dict(column.to_dict()) == column


@settings(max_examples=100, deadline=None)
@given(binned(), st.integers(0, 2**32 - 1))
def test_bins_hold_exactly_the_values_between_their_ends(column: Column, seed: int) -> None:
    ends = column.positions
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, len(ends) - 1, 20)
    for code, value in zip(codes, column.own_values(codes, rng), strict=True):
        position = column.position(value)
        last = code == len(ends) - 2 and not column.whole
        assert ends[code] <= position
        assert position < ends[code + 1] or (last and position == ends[code + 1])


@pytest.mark.parametrize("reach", [40, 200_000])
@pytest.mark.parametrize("outside", [None, "clip"])
def test_whole_numbers_by_the_definition(reach: int, outside: str | None) -> None:
    """Bins, spikes and special values, read one by one; far special values leave the look-up."""
    rng = np.random.default_rng(reach)
    for _ in range(40):
        edges = sorted(rng.choice(np.arange(-30, 31), rng.integers(2, 7), replace=False).tolist())
        spikes = tuple(rng.choice(np.arange(edges[0], edges[-1]), rng.integers(0, 2)).tolist())
        special = tuple({int(v) for v in rng.integers(31, 31 + reach, rng.integers(0, 4))})
        column = Integer(
            edges=tuple(edges), spikes=spikes, special=special, outside=outside, missing=("77777",)
        )
        tops = [*edges[:-1], edges[-1] + 1]
        starts = sorted({*tops[:-1], *spikes, *(v + 1 for v in spikes if v + 1 < tops[-1])})
        values = np.concatenate([rng.integers(-60, 80, 200), special, [77777]]).astype(np.int64)
        for value, code in zip(values.tolist(), column.encode(values).tolist(), strict=True):
            if value == 77777:
                expected = column.size - 1
            elif value in special:
                expected = len(starts) + special.index(value)
            elif edges[0] <= value <= edges[-1]:
                expected = max(i for i, start in enumerate(starts) if start <= value)
            elif outside is None:
                expected = -1
            else:
                expected = 0 if value < edges[0] else len(starts) - 1
            assert code == expected, (column, value)
        texts = pa.array([str(value) for value in values.tolist()])
        np.testing.assert_array_equal(column.encode(texts), column.encode(values))


def test_odd_spellings_are_declared() -> None:
    column = Categorical(("<=50K", ">50K"), aliases={"<=50K.": "<=50K"}, missing=("?",))
    values = np.array(["<=50K.", ">50K", "?", None, "<=50k"], dtype=object)
    assert column.encode(values).tolist() == [0, 1, 2, 2, -1]
    assert column.decode(np.array([0, 2]), np.random.default_rng(0)).tolist() == ["<=50K", "?"]
    assert Categorical((1, 2)).encode(np.array([1.0, 2.0, 2.5])).tolist() == [0, 1, -1]
    assert Boolean().encode(np.array(["Yes", "0", "maybe"])).tolist() == [1, 0, -1]
    assert Integer(0, 9).encode(np.array(["3", "3.5", "x"], dtype=object)).tolist() == [3, -1, -1]
    assert Integer(0, 9).encode(np.array([True, False], dtype=object)).tolist() == [-1, -1]


def test_values_beyond_the_ends_are_outside_unless_declared() -> None:
    values = np.array([-1.0, 0.0, 10.0, 10.5, np.inf, np.nan])
    assert Numeric(0, 10, bins=2).encode(values).tolist() == [-1, 0, 1, -1, -1, -1]
    clipped = Numeric(0, 10, bins=2, outside="clip", missing=())
    assert clipped.encode(values).tolist() == [0, 0, 1, 1, 1, 2]
    dates = Date("2020-01-01", "2020-03-31", unit="month")
    given = ["2020-01-31", "2020-04-01", "2020-02-30", "2020-03-05T10:00+02:00"]
    assert dates.encode(np.array(given, dtype=object)).tolist() == [0, -1, -1, -1]
    assert dates.encode(np.array(["2020-02-02"], dtype="datetime64[ns]")).tolist() == [1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Categorical(()), "at least one value"),
        (lambda: Categorical((1, "1")), "twice"),
        (lambda: Categorical(("a",), aliases={"b": "c"}), "not a value"),
        (lambda: Categorical(("no", "yes"), aliases={" no": "yes"}), "value itself"),
        (lambda: Categorical(("1", "b"), aliases={1: "b"}), "value itself"),
        (lambda: Categorical((3, 4), aliases={"3.0": 4}), "stands for '4' and, as"),
        (lambda: Categorical(("no", "3.0"), aliases={"3": "no"}), "for 'no' and, as"),
        (
            lambda: Categorical(("no",), aliases={"3.0": "no"}, missing=("3",)),
            "'3' stands for miss",
        ),
        (lambda: Categorical(("no",), aliases={"3": "no"}, missing=("3.0",)), "for 'no'; keep"),
        (lambda: Categorical((3, 4), missing=("3.0",)), "missing values and, as"),
        (lambda: Categorical(("no", "yes"), aliases={"n ": "no", "n": "yes"}), "for 'no'; keep"),
        (lambda: Categorical(("no", "yes"), missing=("?",), aliases={"?": "yes"}), "keep one"),
        (lambda: Categorical(("?",), missing=("?",)), "keep one"),
        (lambda: Integer(5, 3), "ascend"),
        (lambda: Integer(0, 3, bins=9), "4 values only"),
        (lambda: Integer(0, 3, edges=(1, 2)), "not both"),
        (lambda: Integer(low=0), "low and high"),
        (lambda: Integer("a", "b"), "low must be a whole number up to"),
        (lambda: Numeric(0, 1), "needs bins"),
        (lambda: Numeric(0, float("nan"), bins=2), "high must be a finite number, got nan"),
        (lambda: Numeric(0, 1, bins=2, outside="drop"), "outside must be"),
        (lambda: Date("2020-01-01", "2020-13-01"), "high must be a date or time such as"),
        (lambda: Date("2020-01-01", "2021-01-01", unit="week"), "unit must be"),
        (lambda: Integer(0, 1, missing="?"), "list of the texts"),
        (lambda: Numeric(0, 1, bins=2, missing=1), "got 1; write missing=True"),
        (lambda: Integer(0, 1, missing=[9]), r"got \[9\]"),
        (lambda: Integer(0, 99, missing=("9",)), "missing lists 9"),
        (lambda: Integer(0, 99, special=(9,)), "list it in spikes"),
        (lambda: Integer(0, 99, spikes=(999,)), "list it in special"),
        (lambda: Integer(0, 99, outside="missing"), "missing ones need"),
        (
            lambda: Integer(0, 9, decode_as="date"),
            "decode_as for this integer column must be one of",
        ),
        (lambda: Numeric(0, 9, bins=2, decimals=-1), "decimals must be"),
        (lambda: Numeric(0, 9, bins=2, decode_as="integer"), "needs decimals: 0"),
        (lambda: Date("2020-01-01", "2020-02-01", format="iso"), "format must be"),
        (lambda: Boolean(words=("yes",)), "words must be"),
        (lambda: Categorical(("", "a")), "empty text"),
        (lambda: Categorical(("a", None)), "holds None, but must .* nulls"),
        (lambda: Categorical((1.5, float("nan"))), "holds nan, but must .* nulls"),
        (lambda: column_from_dict({"type": "text"}), "types are"),
        (lambda: column_from_dict({"type": "integer", "low": 0, "hihg": 3}), "no field 'hihg'"),
        (lambda: Schema({}), "no columns"),
        (lambda: Schema({"a": 3}), "must be one of Categorical, .* got 3; Schema.from_dict"),
        (lambda: Schema({"a": Integer}), "must be one of .* got the class Integer"),
        (lambda: Schema("a.yaml"), "texts to Columns, got 'a.yaml'; Schema.load reads a file"),  # type: ignore[arg-type]
        (
            lambda: Schema.from_dict({"columns": {"a": {"type": "integer"}}}),
            "column 'a': give low",
        ),
        (lambda: Schema.from_dict({"columns": {}, "colour": 1}), "no field 'colour'"),
    ],
)
def test_wrong_declarations_are_refused(make: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()


class Mine(Integer):
    """A type of column that schema files do not name: a saved release could not be read again."""


def test_a_column_of_a_type_that_no_file_names_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'a' must be one of .* got Mine"):
        Schema({"a": Mine(0, 3)})


EXAMPLES = [
    Boolean(missing=("?",), words=("N", "Y")),
    Categorical(("b", "a"), missing=("?",), other="else"),
    Date("1999-01-31", "1999-03-01", missing=("?",), unit="month"),
    DateTime("1999-01-31", "1999-02-01", missing=("?",), zone="UTC"),
    Integer(0, 9, missing=("?",), bins=3),
    Numeric(0, 1, missing=("?",), bins=3),
    OpenCategorical(missing=("?",), other="else"),
]


@pytest.mark.parametrize("kind", COLUMN_TYPES)
def test_every_type_of_column_keeps_what_all_promise(kind: str) -> None:
    """A new type is forgotten nowhere: give it an example above."""
    (column,) = (each for each in EXAMPLES if each.type == kind)
    schema = Schema({"a": column})
    assert Schema.from_dict(schema.to_dict()).columns == schema.columns
    assert getattr(pgmkit, type(column).__name__) is COLUMN_TYPES[kind]
    page = (HERE.parent / "docs" / "data.md").read_text(encoding="utf-8")
    assert f"{type(column).__name__}(" in page
    if column.resolved:
        with pytest.raises(InvalidInput, match="outside must be"):
            replace(column, outside="nowhere")
        codes, rng = np.arange(column.size), np.random.default_rng(0)
        np.testing.assert_array_equal(column.encode(column.decode(codes, rng)), codes)
        assert column.placed().encode(["no such thing", None, "?", np.nan]).min() >= 0
        assert column.encode(["?", None, np.nan]).tolist() == 3 * [column.size - 1]


def small() -> Schema:
    return Schema({"age": Integer(0, 99, bins=10), "sex": Categorical(("F", "M"))})


def test_encoding_a_table() -> None:
    schema = small()
    assert schema.domain == Domain({"age": 10, "sex": 2})
    table = {"sex": np.array(["M", "F"]), "age": np.array([5, 99]), "name": np.array(["x", "y"])}
    data = schema.encode(table)
    assert data.columns["age"].tolist() == [0, 9] and data.columns["sex"].tolist() == [1, 0]
    with pytest.raises(InvalidInput, match="no column 'age'"):
        schema.encode({"sex": np.array(["M"])})
    with pytest.raises(InvalidInput, match="column 'age': 2 rows") as caught:
        schema.encode({"age": np.array([777, 5, 778]), "sex": np.array(["M", "F", "F"])})
    assert "777" not in str(caught.value)


def test_columns_to_be_found_need_a_budget() -> None:
    schema = Schema({"zip": OpenCategorical(), "pay": Numeric(0, 100, bins=4, quantiles=True)})
    assert schema.unresolved == ("zip", "pay")
    with pytest.raises(InvalidInput, match="spends a budget"):
        _ = schema.domain
    found = schema.resolve(
        {
            "zip": schema.columns["zip"].found(["12", "34"]),
            "pay": schema.columns["pay"].found([10.0, 20.0, 20.0]),
        }
    )
    assert found.domain == Domain({"zip": 3, "pay": 3})


def test_ranges_and_values_as_conditions() -> None:
    age = Integer(0, 99, bins=10)
    assert np.flatnonzero(age.within("20", "39")).tolist() == [2, 3]
    assert np.flatnonzero(age.within(None, 20, closed=False)).tolist() == [0, 1]
    with pytest.raises(InvalidInput, match=r"cuts the bin 30\.\.39"):
        age.within(20, 35)
    with pytest.raises(InvalidInput, match="no order"):
        Categorical(("a",)).within(1, 2)
    assert Integer(0, 3).equal([2]).tolist() == [False, False, True, False]
    assert age.midpoints[0] == 4.5
    assert Numeric(0, 10, bins=2, missing=()).midpoints[:2].tolist() == [2.5, 7.5]


@pytest.mark.parametrize("suffix", ["yaml", "json"])
@pytest.mark.parametrize("name", ["adult", "acs"])
def test_schema_files_come_back_the_same(tmp_path: Path, suffix: str, name: str) -> None:
    schema = Schema.load(HERE / "data" / f"{name}.yaml")
    schema.save(tmp_path / f"schema.{suffix}")
    assert Schema.load(tmp_path / f"schema.{suffix}") == schema


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_labels_and_names_with_any_character_come_back(tmp_path: Path, suffix: str) -> None:
    signs = (*range(1, 0x180), *range(0x2000, 0x2070), 0xFEFF, 0xFFFD, 0xFFFF, 0x1F600)
    labels = tuple(f"a{chr(sign)}b" for sign in signs)
    columns = {"so\x85so": Categorical(labels), "a\u2028\rb": Categorical(("1", "2"))}
    Schema(columns).save(tmp_path / f"s.{suffix}")
    found = Schema.load(tmp_path / f"s.{suffix}").columns
    assert list(found) == list(columns) and found["so\x85so"].labels == labels


def test_yaml_words_are_texts_and_doubled_keys_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("columns:\n  ok: {type: categorical, values: [no, yes]}\n")
    assert Schema.load(path).columns["ok"].labels == ("no", "yes")
    path.write_text(
        "columns:\n  007: {type: categorical, values: [01067, 0o17, 1067, -3]}\n"
        "  at: {type: datetime, low: 8:30, high: 17:00, format: '%H:%M'}\n"
    )
    read = Schema.load(path).columns
    assert read["007"].labels == ("01067", "0o17", "1067", "-3")
    assert (read["at"].low, read["at"].high) == ("8:30", "17:00")
    codes = ("01.10", "10.10", "10.1", "10.20")
    path.write_text(
        f"columns:\n  nace: {{type: categorical, values: [{', '.join(codes)}]}}\n"
        "  share: {type: numeric, edges: [0, 0.10, 1.50]}\n"
    )
    read = Schema.load(path).columns
    assert read["nace"].labels == codes and read["share"].edges == (0, 0.1, 1.5)
    path.write_text("columns:\n  ok: {type: boolean}\n  ok: {type: boolean}\n")
    with pytest.raises(InvalidInput, match="'ok' is given twice"):
        Schema.load(path)
    (tmp_path / "s.json").write_text('{"columns": {"a": {}, "a": {}}}')
    with pytest.raises(InvalidInput, match="'a' is given twice"):
        Schema.load(tmp_path / "s.json")
    path.write_text("columns: [")
    with pytest.raises(InvalidInput, match="not YAML"):
        Schema.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInput, match="UTF-8"):
        Schema.load(path)
    with pytest.raises(InvalidInput, match="must end in"):
        Schema.load(tmp_path / "s.toml")


@pytest.mark.parametrize("part", ["train", "test"])
def test_raw_adult_is_encoded_whole(part: str) -> None:
    folder = os.environ.get("PGMKIT_DATA")
    if not folder:
        pytest.skip("PGMKIT_DATA does not name a folder with the Adult files")
    schema = Schema.load(HERE / "data" / "adult.yaml")
    lines = Path(folder, f"adult-raw-{part}.data").read_text().splitlines()
    rows = [row for row in csv.reader(lines, skipinitialspace=True) if len(row) == 15]
    table = {
        name: np.array([row[i] for row in rows], dtype=object)
        for i, name in enumerate(schema.file.names)
    }
    data = schema.encode(table)
    assert len(data) == {"train": 32561, "test": 16281}[part]
    assert data.marginal(("income",)).tolist()[1] == {"train": 7841, "test": 3846}[part]


def test_an_arrow_table_is_encoded_by_its_names() -> None:
    schema = Schema({"sex": Categorical(("F", "M"))})
    assert schema.encode(pa.table({"sex": ["M", "F"]})).columns["sex"].tolist() == [1, 0]
    with pytest.raises(InvalidInput, match="no column 'sex'.*'Sex'"):
        schema.encode(pa.table({"Sex": ["M", "F"]}))


@pytest.mark.parametrize("empty", ["age", "sex"])
def test_columns_of_unequal_length_are_refused_where_one_is_empty(empty: str) -> None:
    schema = Schema({"age": Integer(0, 9), "sex": Categorical(("F", "M"))}).placed()
    columns = {"age": np.array([3]), "sex": np.array(["F"])}
    with pytest.raises(InvalidInput, match="different lengths"):
        schema.encode({**columns, empty: columns[empty][:0]})


@pytest.mark.parametrize(("written", "same"), [(True, ()), (False, None)])
def test_columns_take_missing_as_drafts_write_it(written: bool, same: tuple[()] | None) -> None:
    stored = {"type": "integer", "low": 0, "high": 3, "missing": written}
    column = Integer(0, 3, missing=written)  # type: ignore[arg-type]
    assert column == Integer(0, 3, missing=same) == column_from_dict(stored)


@pytest.mark.parametrize("given", [polars.DataFrame({"age": [3]}), "people.csv", None])
def test_what_holds_no_columns_by_name_is_refused(given: object) -> None:
    with pytest.raises(InvalidInput, match=f"got {type(given).__name__}; .* to_arrow"):
        Schema({"age": Integer(0, 9)}).encode(given)


def test_texts_that_some_reader_takes_for_numbers_are_in_quotes() -> None:
    """008 and 0o17 are numbers in YAML 1.2 alone, 1e5 in most readers except PyYAML."""
    texts = ["007", "008", "+08", "1e5", "12E-3", "0o17", "09:30", "08.5", ".5", "5.", "1_0"]
    plain = ["25..44", "10-19", "1.5.2", "a1", "no. 1"]
    lines = dump_yaml({"v": [*texts, *plain, 8, 1.5, 1e30]}).splitlines()[1:]
    assert lines[: len(texts)] == [f"- '{text}'" for text in texts]
    assert lines[len(texts) :] == [f"- {text}" for text in (*plain, 8, 1.5, "1.0e+30")]
