"""Frames of every kind: the same counts, and the same kind of frame back."""

import datetime
import re
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import duckdb
import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from mechanisms import synthesize
from pgmkit import (
    Boolean,
    Categorical,
    Dataset,
    Date,
    DateTime,
    Integer,
    InvalidInput,
    Numeric,
    OpenCategorical,
    Schema,
)
from pgmkit.tables.engines import frames
from pgmkit.tables.engines.frames import (
    FrameForm,
    counts_of,
    decode,
    encode,
    made_frame,
    tally_of,
)
from pgmkit.tables.engines.pushdown import FrameCounts
from pgmkit.tables.engines.scan import engine_of
from pgmkit.tables.records import arrow_table
from pgmkit.tables.values import text_of

SCHEMA = Schema(
    {
        "age": Integer(0, 99, bins=10),
        "pay": Numeric(edges=(0, 10.5, 20, 99), missing=()),
        "sex": Categorical(("F", "M"), missing=("?",)),
        "ill": Boolean(),
        "born": Date("2000-01-01", "2001-12-31", unit="month"),
        "seen": DateTime("2020-01-01T00:00", "2020-01-02T23:00", unit="hour"),
        "kids": Integer(0, 3, outside="clip"),
    }
)


def table(seed: int, rows: int) -> dict[str, list[Any]]:
    rng = np.random.default_rng(seed)
    day, moment = datetime.date(2000, 1, 1), datetime.datetime(2020, 1, 1)
    pay = rng.choice([0.0, 10.5, 10.4999, 20.0, 98.9, 99.0], rows).tolist()
    return {
        "age": rng.integers(0, 100, rows).tolist(),
        "pay": [None if rng.random() < 0.2 else value for value in pay],
        "sex": [[None, "?", "F", "M"][i] for i in rng.integers(0, 4, rows)],
        "ill": rng.random(rows) < 0.5,
        "born": [day + datetime.timedelta(int(i)) for i in rng.integers(0, 730, rows)],
        "seen": [moment + datetime.timedelta(minutes=int(i)) for i in rng.integers(0, 2880, rows)],
        "kids": rng.integers(-2, 9, rows).tolist(),
        "name": [f"n{i}" for i in range(rows)],
    }


def arrow(columns: dict[str, list[Any]]) -> pa.Table:
    kinds = {"born": pa.date32(), "seen": pa.timestamp("us"), "sex": pa.string()}
    return pa.table({n: pa.array(list(v), kinds.get(n)) for n, v in columns.items()})


def pandas(columns: dict[str, list[Any]]) -> pd.DataFrame:
    frame = pd.DataFrame({name: list(values) for name, values in columns.items()})
    return frame.astype({"born": "datetime64[s]", "seen": "datetime64[us]"})


def dask(columns: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("dask.dataframe").from_pandas(pandas(columns), npartitions=2)


KINDS: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "pandas": pandas,
    "pandas on arrow": lambda c: arrow(c).to_pandas(types_mapper=pd.ArrowDtype),
    "polars": lambda c: pl.from_arrow(arrow(c)),
    "polars lazy": lambda c: pl.from_arrow(arrow(c)).lazy(),
    "pyarrow": arrow,
    "duckdb": lambda c: duckdb.from_arrow(arrow(c)),
    "dask": dask,
}
QUERIES = [("age", "sex"), ("sex", "age", "ill"), ("pay",), ("born", "seen"), ("kids", "pay"), ()]


def expected(columns: dict[str, list[Any]]) -> dict[tuple[str, ...], np.ndarray]:
    codes = {
        name: column.encode(np.array(list(columns[name]), dtype=object))
        for name, column in SCHEMA.columns.items()
    }
    found = {}
    for clique in QUERIES:
        counts = np.zeros(SCHEMA.domain.shape(clique), dtype=np.int64)
        for row in range(len(columns["age"])):
            counts[tuple(codes[name][row] for name in clique)] += 1
        found[clique] = counts
    return found


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=3, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 40), keep=st.booleans())
def test_every_kind_gives_the_same_counts(kind: str, seed: int, rows: int, keep: bool) -> None:
    columns = table(seed, rows)
    counts = counts_of(KINDS[kind](columns), SCHEMA, QUERIES[:2], keep=keep)
    assert isinstance(counts, FrameCounts) == (kind in ("duckdb", "dask"))
    assert len(counts) == rows
    # Dask takes a second for every question: it gets all at once.
    together = counts.marginals(QUERIES) if kind == "dask" else {}
    for clique, wanted in expected(columns).items():
        found = together[clique] if together else counts.marginals([clique])[clique]
        np.testing.assert_array_equal(found, wanted)
        assert found.dtype == np.int64


@pytest.mark.parametrize("kind", ["duckdb", "dask"])
def test_engines_answer_what_they_expect_from_one_pass(kind: str) -> None:
    columns = table(0, 300)
    counts = counts_of(KINDS[kind](columns), SCHEMA, QUERIES)
    assert isinstance(counts, FrameCounts)
    found = counts.marginals(QUERIES)
    for clique, wanted in expected(columns).items():
        np.testing.assert_array_equal(found[clique], wanted)
    assert counts.scans == 1
    counts.marginal(("pay", "age", "sex"))
    counts.marginal(("age", "pay"))
    assert counts.scans == 2


def neighbours(seed: int) -> list[dict[str, list[Any]]]:
    """A table, and others that differ in one row by a null, a "?", a new label, a number."""
    columns = table(seed, 30)
    found = [columns]
    for name, value in [("age", None), ("sex", "?"), ("sex", "new"), ("age", 4711), ("ill", None)]:
        found.append({**columns, name: [value, *columns[name][1:]]})
    return found


class OnePart:
    """The records of a data set, for an engine to read as a part."""

    count = 1

    def __init__(self, data: Dataset, schema: Schema) -> None:
        self.data, self.schema = data, schema

    def tables(self, start: int, stop: int) -> Iterator[pa.Table]:
        rng = np.random.default_rng(0)
        return iter([arrow_table(self.data, self.schema, rng)] * (stop - start))


def back_as(data: Dataset, schema: Schema, frame: Any) -> Any:
    """The records as a frame of the kind of this one, made there where that is a worker's work."""
    form = FrameForm.of(frame)
    if form.distributed:
        return made_frame(OnePart(data, schema), schema, form)
    return decode(data, schema, np.random.default_rng(0), form)


def engine_types(frame: Any) -> dict[str, str]:
    """Every column's type as the library itself writes it, in order."""
    if isinstance(frame, duckdb.DuckDBPyRelation):
        return dict(zip(frame.columns, map(str, frame.types), strict=True))
    if isinstance(frame, pa.Table):
        return {field.name: str(field.type) for field in frame.schema}
    if isinstance(frame, pl.LazyFrame):
        return {name: str(kind) for name, kind in frame.collect_schema().items()}
    kinds = frame.schema if isinstance(frame, pl.DataFrame) else frame.dtypes
    return {name: str(kind) for name, kind in kinds.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_the_library_comes_back_and_the_types_are_the_schemas(kind: str) -> None:
    frame = KINDS[kind](table(1, 50))
    data = encode(frame, SCHEMA)
    back = back_as(data, SCHEMA, frame)
    before, after = nw.from_native(frame), nw.from_native(back)
    assert after.implementation == before.implementation
    assert isinstance(after, nw.LazyFrame) == isinstance(before, nw.LazyFrame)
    for name in SCHEMA.columns:
        np.testing.assert_array_equal(encode(back, SCHEMA).columns[name], data.columns[name])
    if kind == "dask":
        return
    found = set()
    for columns in neighbours(1):
        try:
            other = KINDS[kind](columns)
        except (pa.ArrowInvalid, pa.ArrowTypeError):  # no such frame exists
            continue
        counts_of(other, SCHEMA.placed())
        again = back_as(data, SCHEMA, other)
        found.add(tuple(engine_types(again).items()))
        for name in SCHEMA.columns:
            np.testing.assert_array_equal(encode(again, SCHEMA).columns[name], data.columns[name])
    assert found == {tuple(engine_types(back).items())}
    assert [name for name, _ in next(iter(found))] == list(SCHEMA.columns)


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow", "duckdb"])
def test_declared_types_are_decoded_to(kind: str) -> None:
    schema = Schema(
        {
            "age": Integer(0, 99, bins=10, decode_as="number"),
            "sex": Categorical(("1", "2"), other="(other)", decode_as="integer"),
            "ill": Boolean(missing=(), decode_as="integer"),
            "pay": Numeric(0, 10, bins=2, decimals=0, decode_as="integer"),
            "born": Date("2000-01-01", "2001-12-31", decode_as="text"),
            "kids": Integer(0, 3, missing=("?",), decode_as="text"),
        }
    )
    codes = {name: np.arange(60) % column.size for name, column in schema.columns.items()}
    data = Dataset(schema.domain, codes)
    form = FrameForm.of(KINDS[kind](table(0, 3)))
    back = nw.from_native(decode(data, schema, np.random.default_rng(0), form))
    back = back.collect() if isinstance(back, nw.LazyFrame) else back
    kinds = {name: str(back[name].dtype) for name in schema.columns}
    assert kinds == {
        "age": "Float64",
        "sex": "Int64",
        "ill": "Int64",
        "pay": "Int64",
        "born": "String",
        "kids": "String",
    }
    assert back["sex"].is_null().sum() == 20 and "?" in back["kids"].to_list()


def test_values_outside_the_schema_are_found_by_the_engine() -> None:
    columns = table(2, 20)
    columns["age"][3] = 4711
    for kind in ("duckdb", "pandas"):
        with pytest.raises(InvalidInput, match="column 'age': 1 rows") as caught:
            counts_of(KINDS[kind](columns), SCHEMA)
        assert "4711" not in str(caught.value)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ([1, 2], "got list"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "several columns of one name.*'a' 2 times"),
        (pd.DataFrame({"a": [1]}), "no column 'age'"),
        (pd.DataFrame({name: [] for name in SCHEMA.columns}), "no rows"),
        (duckdb.sql("select 1 as a"), "no column 'age'"),
    ],
)
def test_wrong_frames_are_refused(frame: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        counts_of(frame, SCHEMA)


def test_missing_values_where_none_are_declared_are_outside() -> None:
    schema = Schema({"age": Integer(0, 9), "ill": Boolean()})
    for make in (pl.DataFrame, pd.DataFrame, lambda c: duckdb.from_arrow(pa.table(c))):
        with pytest.raises(InvalidInput, match="column 'age': 1 rows"):
            counts_of(make({"age": [1, None, 3], "ill": [True, False, None]}), schema)
        with pytest.raises(InvalidInput, match="column 'ill': 1 rows"):
            counts_of(make({"age": [1, 2, 3], "ill": [True, False, None]}), schema)


def test_times_with_a_zone_are_what_a_clock_there_shows() -> None:
    schema = Schema({"when": DateTime("2020-01-01T00:00:00", "2020-01-02T23:00:00", unit="hour")})
    hours = pd.date_range("2020-01-01 20:30", periods=5, freq="2h")
    plain = encode(pd.DataFrame({"when": hours}), schema).columns["when"]
    there = pd.DataFrame({"when": hours.tz_localize("Asia/Tokyo")})
    for frame in (there, pl.from_pandas(there), pa.Table.from_pandas(there)):
        np.testing.assert_array_equal(encode(frame, schema).columns["when"], plain)


def test_times_of_other_zones_are_read_on_the_clock_of_the_columns_zone() -> None:
    """Times in UTC, as databases keep them, came out as those of Berlin, an hour or two early."""
    ends = ("2024-03-30T00:00", "2045-07-02T00:00")
    schema = Schema({"seen": DateTime(*ends, zone="Europe/Berlin")})
    moments = pd.to_datetime(["2024-03-31 00:59", "2024-03-31 01:00", "2045-07-01 22:30"], utc=True)
    clock = ["2024-03-31T01:59", "2024-03-31T03:00", "2045-07-02T00:30"]
    wanted = schema.placed().columns["seen"].encode(np.array(clock, "M8[m]"))
    there = [pd.DataFrame({"seen": moments.tz_convert(z)}) for z in ("UTC", "Asia/Tokyo")]
    mixed = [
        moments[0],
        moments[1].tz_convert("Asia/Tokyo"),
        datetime.datetime.max.replace(tzinfo=datetime.UTC),
    ]
    frames: list[Any] = [*there, pl.from_pandas(there[0]), pa.Table.from_pandas(there[1])]
    for frame in (*frames, duckdb.from_arrow(frames[-1])):
        codes = encode(frame, schema.placed()).columns["seen"]
        np.testing.assert_array_equal(codes, wanted)
    codes = encode(pd.DataFrame({"seen": pd.Series(mixed, dtype=object)}), schema.placed())
    np.testing.assert_array_equal(codes.columns["seen"][:2], wanted[:2])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 60))
def test_texts_of_open_columns_are_counted_alike_everywhere(seed: int, rows: int) -> None:
    """Of texts that some engines' own grouping would hold together, and of numbers."""
    rng = np.random.default_rng(seed)
    texts = ["a", "A", "a ", "", "?", "\u00e9", "e\u0301", None]
    open_ones: dict[str, list[Any]] = {
        "text": ["a", *(texts[i] for i in rng.integers(0, len(texts), rows - 1))],
        "number": rng.choice([0.0, -0.0, 1.5, 3.0], rows).tolist(),
    }
    columns = {**table(seed, rows), **open_ones}
    for name, values in open_ones.items():
        column = OpenCategorical(missing=("?",))
        wanted = Counter(None if column.is_missing(value) else text_of(value) for value in values)
        for kind, make in KINDS.items():
            assert tally_of(make(columns), name, column) == wanted, kind


@pytest.mark.parametrize("texts", [["b", "a", None, "b"], []])
def test_categories_that_do_not_occur_are_not_counted(texts: list[str | None]) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": pandas.Categorical(texts, categories=["c", "a", "b", "d"])})
    assert tally_of(frame, "a", OpenCategorical()) == Counter(texts)


@pytest.mark.parametrize("kind", ["duckdb", "dask", "polars lazy"])
def test_open_columns_are_found_in_an_engine(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same labels and noisy counts as in memory, and no column of records comes here."""
    rng = np.random.default_rng(0)
    columns = table(0, 400)
    columns["job"] = rng.choice(["cook", "nurse", "rare"], 400, p=[0.5, 0.49, 0.01]).tolist()
    columns["place"] = rng.choice(["north", "south"], 400).tolist()
    schema = Schema({name: OpenCategorical() for name in ("job", "place")})
    options: dict[str, Any] = {"epsilon": 5.0, "delta": 1e-4, "mechanism": "mst", "seed": 0}
    here = synthesize(KINDS["pandas"](columns), schema, **options)
    if kind != "polars lazy":
        monkeypatch.setattr(frames, "in_memory", None)
    there = synthesize(KINDS[kind](columns), schema, **options)
    assert here.schema == there.schema
    for one, other in zip(here.measurements, there.measurements, strict=True):
        assert one.clique == other.clique and np.array_equal(one.values, other.values)


@given(st.lists(st.integers(0, 99_999), min_size=2, max_size=30, unique=True), st.integers(5, 7))
def test_numbers_of_frames_are_the_codes_with_leading_zeros_of_files(
    numbers: list[int], width: int
) -> None:
    """Readers of files make numbers of texts of digits, and floats where there are gaps."""
    texts = [f"{number:0{width}}" for number in numbers]
    schema = Schema({"zip": Categorical(tuple(texts), missing=())})
    expected = [*range(len(texts)), len(texts)]
    as_texts: Any = pd.DataFrame({"zip": [*texts, None]})
    for frame in (
        as_texts,
        pd.DataFrame({"zip": [*map(float, numbers), np.nan]}),
        pl.DataFrame({"zip": [*numbers, None]}),
        pa.table({"zip": [*numbers, None]}),
    ):
        assert encode(frame, schema).columns["zip"].tolist() == expected


def test_numbers_that_two_codes_share_are_neither() -> None:
    schema = Schema({"code": Categorical(("01", "001", "1", "02", "0"), other="else")})
    found = encode(pd.DataFrame({"code": [1, 2, 0, 3]}), schema).columns["code"]
    assert found.tolist() == [2, 3, 4, 5]
    assert encode(pd.DataFrame({"code": ["2"]}), schema).columns["code"].tolist() == [5]


def test_a_form_is_that_of_the_frame_or_of_its_counts() -> None:
    columns = table(0, 5)
    for kind, make in KINDS.items():
        frame = make(columns)
        forms = [FrameForm.of(frame)]
        if kind in ("duckdb", "dask"):
            forms.append(FrameForm.of(counts_of(frame, SCHEMA.placed())))
        for form in forms:
            assert form.lazy == (kind in ("polars lazy", "duckdb", "dask"))
            assert form.implementation == nw.from_native(frame).implementation
            assert form.distributed is (kind == "dask")
    for library in (nw.Implementation.PYSPARK, nw.Implementation.PYSPARK_CONNECT):
        assert FrameForm(library, lazy=True).distributed


def test_truth_values_of_pandas_keep_their_type_whether_any_is_missing_or_not() -> None:
    schema = Schema({"ill": Boolean(missing=()), "kids": Integer(0, 3, missing=())})
    form, rng = FrameForm.of("pandas"), np.random.default_rng(0)
    for codes in ([0, 1], [0, 2], [2, 2]):
        data = Dataset(schema.domain, {"ill": codes, "kids": [2 * c for c in codes]})
        back = decode(data, schema, rng, form)
        assert [str(kind) for kind in back.dtypes] == ["boolean", "Int64"]


@pytest.mark.parametrize("absent", [None, float("nan")])
@pytest.mark.parametrize(
    ("missing", "written"), [(("",), None), (("", "NA"), None), ((), None), (("NA",), "NA")]
)
def test_missing_texts_come_back_as_missing(
    absent: object, missing: tuple[str, ...], written: str | None
) -> None:
    frame = pd.DataFrame({"job": ["cook", absent]}, dtype=object)
    schema = Schema({"job": Categorical(("cook",), missing=missing)})
    data, rng = encode(frame, schema), np.random.default_rng(0)
    assert isinstance(data, Dataset)
    back = decode(data, schema, rng, FrameForm.of(frame))
    assert back["job"].isna().tolist() == [False, written is None]
    assert decode(data, schema, rng, FrameForm.of("pyarrow"))["job"].to_pylist() == [
        "cook",
        written,
    ]


def test_a_name_that_two_columns_have_is_refused() -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["age", "age"])
    with pytest.raises(InvalidInput, match="several columns of one name.*'age'"):
        encode(twice, Schema({"age": Integer(0, 9)}))
    for data in (twice, twice.to_pandas()):
        with pytest.raises(InvalidInput, match="several columns 'age'"):
            Schema({"age": Integer(0, 9)}).encode(data)


@pytest.mark.parametrize(
    ("frame", "remedy"),
    [
        (pl.DataFrame({"ill": [True]}), "to_arrow()"),
        (pl.LazyFrame({"ill": [True]}), "collect().to_arrow()"),
        (duckdb.sql("select true as ill"), "to_arrow_table()"),
    ],
)
def test_frames_of_other_libraries_are_refused_with_what_is_there(frame: Any, remedy: str) -> None:
    schema = Schema({"ill": Boolean()})
    with pytest.raises(InvalidInput, match=f"give its {re.escape(remedy)}$"):
        schema.encode(frame)
    for step in remedy.removesuffix("()").split("()."):
        frame = getattr(frame, step)()
    assert schema.encode(frame).columns["ill"].tolist() == [1]


def test_a_series_in_the_place_of_a_frame_is_refused_without_its_values() -> None:
    private = pd.Series([31, 74], name="age")
    with pytest.raises(InvalidInput, match="columns must be arrays by name") as refusal:
        Schema({"age": Integer(0, 99)}).encode(private)
    assert "31" not in str(refusal.value)


@pytest.mark.parametrize("keep", [False, True])
def test_each_partition_is_counted_once(keep: bool) -> None:
    """An odd number of them, as many as are added in several steps."""
    columns = table(3, 40)
    parts = pytest.importorskip("dask.dataframe").from_pandas(pandas(columns), npartitions=7)
    assert parts.npartitions == 7
    found = counts_of(parts, SCHEMA, QUERIES, keep=keep).marginals(QUERIES)
    for clique, counts in expected(columns).items():
        np.testing.assert_array_equal(found[clique], counts)
    column = OpenCategorical()
    texts = [None if column.is_missing(value) else text_of(value) for value in columns["sex"]]
    assert tally_of(parts, "sex", column) == Counter(texts)


def test_relations_of_an_older_duckdb_are_refused() -> None:
    """They have no stream of batches by this name; the error says what to do."""
    needed = SimpleNamespace(to_native=object)
    frame: Any = SimpleNamespace(select=lambda *_: needed, implementation=nw.Implementation.DUCKDB)
    with pytest.raises(InvalidInput, match=r"install duckdb 1\.5"):
        engine_of(frame, ["age"])
