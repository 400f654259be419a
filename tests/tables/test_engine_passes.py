"""Passes over records in an engine: pieces, batches, kept codes, and records that change."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import duckdb
import narwhals as nw
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from pgmkit import (
    Boolean,
    Categorical,
    Date,
    DateTime,
    Integer,
    InvalidInput,
    ModelTooLarge,
    Numeric,
    OpenCategorical,
    Schema,
)
from pgmkit.tables.constraints import Forbid
from pgmkit.tables.engines import frames, pushdown, scan
from pgmkit.tables.engines.frames import FrameForm, counts_of, encode, made_frame
from pgmkit.tables.engines.scan import (
    Codec,
    Scan,
    code_type,
    gathered,
    rows_of_counts,
    text_tally,
)

SCHEMA = Schema({"age": Integer(0, 8), "kids": Integer(0, 2, missing=()), "ill": Boolean()})
CLIQUES = (("age", "ill"), ("kids",), ())


def batches(lengths: list[int]) -> list[pa.RecordBatch]:
    """Arrow batches with values outside and missing ones."""
    rng = np.random.default_rng(sum(lengths))
    return [
        pa.RecordBatch.from_pydict(
            {
                "age": pa.array(
                    [[None, 9][i] if i < 2 else i - 2 for i in rng.integers(0, 11, n)], pa.int64()
                ),
                "kids": pa.array(rng.integers(-1, 4, n)),
                "ill": pa.array(
                    [[None, True, False][i] for i in rng.integers(0, 3, n)], pa.bool_()
                ),
            }
        )
        for n in lengths
    ]


def lines_one_by_one(given: list[pa.RecordBatch]) -> list[int]:
    """The rows outside and the cells of each clique: values outside count as the first code."""
    columns = {
        name: column.encode(np.array(pa.Table.from_batches(given)[name].to_pylist(), dtype=object))
        for name, column in SCHEMA.columns.items()
    }
    line = [int((codes < 0).sum()) for codes in columns.values()]
    for clique in CLIQUES:
        cells = np.zeros(SCHEMA.domain.shape(clique), dtype=int)
        for row in range(len(columns["age"])):
            cells[tuple(max(0, columns[name][row]) for name in clique)] += 1
        line += cells.ravel().tolist()
    return line


@pytest.mark.parametrize(
    "lengths", [[3], [4, 4], [1, 2, 3, 1, 9], [1100, 1], [5, 1, 1, 1, 4, 2, 6, 4, 4]]
)
def test_records_are_counted_piece_by_piece(
    lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In tables that are just large enough, whatever the batches; the codes alone say the same."""
    given, wanted = batches(lengths), lines_one_by_one(batches(lengths))
    codec = Codec(SCHEMA.columns)
    for rows in (4, 1000, 1):
        monkeypatch.setattr(scan, "BATCH_ROWS", rows)
        joined = list(gathered(given))
        assert [each.num_rows >= rows for each in joined[:-1]] == [True] * (len(joined) - 1)
        assert all(each.num_rows < rows + max(lengths) for each in joined)
        assert sum(each.num_rows for each in joined) == sum(lengths)
        assert Scan(codec, CLIQUES).line(gathered(given)).tolist() == wanted
        kept = list(codec.arrow_codes(given))
        assert (
            Scan(Codec(SCHEMA.columns, kept=True), CLIQUES).line(gathered(kept)).tolist() == wanted
        )
        found = pa.Table.from_batches(Scan(codec, CLIQUES).rows_of_line(given))
        line = np.zeros(len(wanted), dtype=int)
        line[found["cell"].to_numpy()] = found["rows"].to_numpy()
        assert line.tolist() == wanted and 0 not in found["rows"].to_pylist()
    alone = Scan(codec, ())
    assert alone.line(gathered(given)).tolist() == wanted[:3] and alone.length == 3
    assert list(gathered([])) == [] and Scan(codec, CLIQUES).line([]).tolist() == [0] * len(wanted)


@pytest.mark.parametrize("size", [126, 127, 128, 254, 255, 256, 257, 32766, 32767, 32768])
def test_kept_codes_are_of_types_that_hold_them(size: int) -> None:
    """The last code, and the one of values outside, at the ends of whole numbers' types."""
    column = Integer(0, size - 1)
    values = pa.RecordBatch.from_pydict({"n": [0, size - 2, size - 1, size, None]})
    codec = Codec({"n": column})
    wanted = [0, size - 2, size - 1, size, size]
    kept = pa.Table.from_batches(codec.arrow_codes([values]))
    assert kept["n"].to_pylist() == wanted
    assert kept["n"].type.bit_width == (8 if size < 128 else 16 if size < 32768 else 32)
    assert code_type(column).itemsize * 8 == kept["n"].type.bit_width
    assert Codec({"n": column}, kept=True).coded(kept)["n"].tolist() == wanted
    frame = codec.pandas_codes(values.to_pandas())
    assert list(frame.columns) == ["n"] and frame["n"].tolist() == wanted
    line = Scan(Codec({"n": column}, kept=True), (("n",),)).line([kept])
    assert line[0] == 2 and line[1] == 3 and line[-2:].tolist() == [1, 1]


def test_times_with_a_zone_are_coded_by_the_clock_there() -> None:
    column = DateTime("2020-01-01T00:00:00", "2020-01-02T23:00:00", unit="hour")
    hours = pd.date_range("2020-01-01 20:30", periods=5, freq="2h").tz_localize("Asia/Tokyo")
    frame = pd.DataFrame({"when": hours})
    codec = Codec({"when": column})
    for records in (frame, pa.Table.from_pandas(frame)):
        assert codec.coded(records)["when"].tolist() == [20, 22, 24, 26, 28]
        texts = text_tally("when", OpenCategorical(), [records])
        assert set(texts) == {f"2020-01-{day} {hour}:30:00" for day, hour in SHOWN}


SHOWN = [("01", "20"), ("01", "22"), ("02", "00"), ("02", "02"), ("02", "04")]
"""The days and hours of five times, each two hours after the last."""


def test_texts_are_counted_over_all_batches() -> None:
    texts = [["a", None, "b"], [], ["b", "b"], ["?"]]
    given = [pa.RecordBatch.from_pydict({"t": pa.array(t, pa.string())}) for t in texts]
    tally = partial(text_tally, "t", OpenCategorical(missing=("?",)))
    wanted = Counter({"b": 3, "a": 1, None: 2})
    assert tally(gathered(given)) == wanted
    rows = pa.Table.from_batches(rows_of_counts(tally, given)).to_pylist()
    assert {row["text"]: row["rows"] for row in rows} == wanted and len(rows) == 3


def people(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(rows)
    return pd.DataFrame(
        {
            "age": rng.integers(0, 9, rows),
            "kids": rng.integers(0, 3, rows),
            "ill": rng.random(rows) < 0.5,
        }
    )


def stored(frame: pd.DataFrame) -> Any:
    """A connection to DuckDB that holds the frame as the table `people`."""
    engine = duckdb.connect()
    engine.register("given", frame)
    engine.execute("create table people as select * from given")
    return engine


@pytest.mark.parametrize(
    "change",
    [
        "insert into people values (3, 1, true)",
        "delete from people where age = (select min(age) from people)",
        "update people set age = 77 where age = (select min(age) from people)",
        "update people set age = null where age = (select min(age) from people)",
    ],
)
@pytest.mark.parametrize("keep", [False, True])
def test_records_that_change_between_passes_are_refused(change: str, keep: bool) -> None:
    """Another number of rows, or values outside, unless the codes are kept."""
    engine = stored(people(50))
    counts = counts_of(engine.sql("select * from people"), SCHEMA, keep=keep)
    before = encode(people(50), SCHEMA).marginal(("age", "kids"))
    engine.execute(change)
    if keep:
        np.testing.assert_array_equal(counts.marginal(("age", "kids")), before)
    else:
        with pytest.raises(InvalidInput, match="gave other records in this pass"):
            counts.marginal(("age", "kids"))
    assert len(counts) == 50


@pytest.mark.parametrize("library", ["duckdb", "dask"])
@pytest.mark.parametrize("keep", [False, True])
def test_values_that_cannot_be_read_are_counted_as_in_memory(library: str, keep: bool) -> None:
    frame = people(90)
    frame["age"] = [*["unknown"] * 4, *map(str, frame["age"][4:])]
    frame["kids"] = [*map(str, frame["kids"][5:]), "?", "many", "", "1.5", "1.0"]
    frame["town"] = ["x"] * 90
    schema = Schema({**SCHEMA.columns, "town": Categorical(("y",), other="else")}).placed()
    given = stored(frame).sql("select * from people")
    if library == "dask":
        given = pytest.importorskip("dask.dataframe").from_pandas(frame, npartitions=3)
    counts = counts_of(given, schema, keep=keep)
    assert counts.unread == encode(frame, schema).unread
    assert counts.unread == {"age": 4, "kids": 2, "ill": 0, "town": 0}
    assert counts.scans == 1
    data, pairs = encode(frame, schema), [("age", "kids"), ("kids", "town")]
    for pair, table in counts.marginals(pairs).items():
        np.testing.assert_array_equal(table, data.marginal(pair))


def test_the_length_of_each_batch_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(scan, "len", lambda each: asked.append(each) or len(each), raising=False)
    assert sum(each.num_rows for each in gathered(batches([1] * 100))) == len(asked) == 100


def test_another_number_of_unread_values_in_a_later_pass_is_refused() -> None:
    engine = stored(people(50))
    counts = counts_of(engine.sql("select * from people"), SCHEMA.placed())
    engine.execute("update people set age = null where age = (select min(age) from people)")
    with pytest.raises(InvalidInput, match="gave other records in this pass"):
        counts.marginal(("age", "kids"))


@pytest.mark.parametrize("cells", [1, 12, 21, 40, 10_000])
def test_a_pass_counts_no_more_cells_than_it_may(
    cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless one table is larger; expected tables come with the first pass that has room."""
    monkeypatch.setattr(pushdown, "SCAN_CELLS", cells)
    passes: list[Scan] = []

    def noted(codec: Codec, cliques: tuple[tuple[str, ...], ...]) -> Scan:
        passes.append(Scan(codec, cliques))
        return passes[-1]

    monkeypatch.setattr(pushdown, "Scan", noted)
    data = encode(people(60), SCHEMA)
    expected = [("kids", "ill"), ("ill", "age"), ("age", "kids")]
    counts = counts_of(stored(people(60)).sql("select * from people"), SCHEMA, expected)
    asked = [("ill", "age"), ("age", "ill"), ("kids", "ill"), ("kids",), (), ("age", "kids")]
    for clique, found in counts.marginals(asked).items():
        np.testing.assert_array_equal(found, data.marginal(clique))
        assert found.dtype == np.int64 and not found.flags.writeable
    assert counts.scans == len(passes)
    for each in passes:
        sizes = [place.stop - place.start for place in each.places.values()]
        assert sum(sizes) <= cells or len(sizes) == 1
    assert len(passes) == {1: 7, 12: 5, 21: 4, 40: 3, 10_000: 1}[cells]
    for each in passes[1:]:
        assert set(each.codec.columns) == set().union(*each.cliques)


def test_wrong_records_are_refused_in_the_first_pass() -> None:
    """Where an engine counts: none at all, those that break a rule, and tables without room."""
    engine = stored(people(50))
    sql = "select * from people where age > 4 and not ill"
    rule = Forbid({"age": [5, 6, 7, 8], "ill": False})
    ruled = Schema(SCHEMA.columns, constraints=[rule])
    with pytest.raises(InvalidInput, match="no rows"):
        counts_of(engine.sql("select * from people where age > 99"), SCHEMA)
    with pytest.raises(InvalidInput, match="rows break the constraint"):
        counts_of(engine.sql(sql), ruled)
    few = engine.sql("select * from people where age < 5")
    assert counts_of(few, ruled).scans == 1
    counts = counts_of(few, ruled)
    assert counts.marginal(["kids"]).sum() == len(counts)
    wide = Schema({f"n{i}": Integer(0, 999) for i in range(6)})
    large = counts_of(duckdb.sql("select " + ", ".join(f"{i} as n{i}" for i in range(6))), wide)
    with pytest.raises(ModelTooLarge):
        large.marginal(tuple(wide.columns))
    with pytest.raises(InvalidInput, match="unknown attribute"):
        large.marginal(["height"])
    with pytest.raises(InvalidInput, match="unknown attribute"):
        large.marginals([["n0"], ["height"]])
    assert list(large.marginals([["n0"]])) == [("n0",)]
    assert large.scans == 1 and str(large).startswith("<FrameCounts: 6 attributes")


class Parts:
    """Records in parts of different lengths: part k has the numbers of k + 1 rows."""

    count = 5

    def tables(self, start: int, stop: int) -> Iterator[pa.Table]:
        for number in range(start, stop):
            rows = range(100 * number, 100 * number + number + 1)
            yield pa.table({"n": pa.array(rows, pa.int64())})


def test_parts_are_made_in_order_and_again_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema({"n": Integer(0, 999, missing=())})
    monkeypatch.setattr(frames, "BATCH_ROWS", 2)
    wanted = [100 * number + row for number in range(5) for row in range(number + 1)]
    relation = made_frame(Parts(), schema, FrameForm.of(duckdb.sql("select 1 as n")))
    assert relation.columns == ["n"] and len(relation) == len(wanted)
    for _ in range(2):
        assert [row[0] for row in relation.fetchall()] == wanted
    dataframe = pytest.importorskip("dask.dataframe")
    like = dataframe.from_pandas(pd.DataFrame({"n": [1]}), npartitions=1)
    frame = made_frame(Parts(), schema, FrameForm.of(like))
    assert frame.npartitions == 5 and str(frame.dtypes["n"]) == "Int64"
    assert frame.partitions[3].compute()["n"].tolist() == [300, 301, 302, 303]
    assert frame.compute()["n"].tolist() == wanted


class CodedParts(Parts):
    def tables(self, start: int, stop: int) -> Iterator[pa.Table]:
        for table in super().tables(start, stop):
            yield pa.table({"n": table["n"].dictionary_encode()})


class NumbersAlone:
    """What a session of Spark does with a range of numbers, in this process."""

    def __init__(self) -> None:
        self.asked: tuple[int, ...] = ()

    @property
    def sparkSession(self) -> "NumbersAlone":
        return self

    def range(self, *asked: int) -> "NumbersAlone":
        self.asked = asked
        return self

    def mapInArrow(self, made: Any, schema: Any) -> tuple[Any, Any]:
        start, stop, step, parts = self.asked
        assert parts == stop - start
        numbers = pa.array(range(start, stop, step))
        halves = [numbers[:2], numbers[2:]]
        batches = [pa.RecordBatch.from_arrays([each], ["id"]) for each in halves]
        return list(made(batches)), schema


def test_spark_gets_the_parts_of_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    types = pytest.importorskip("pyspark.sql.types")
    monkeypatch.setattr(frames, "BATCH_ROWS", 2)
    shown = {
        "text": Categorical(("a",)),
        "category": Categorical(("a",), decode_as="category"),
        "integer": Integer(0, 9),
        "number": Numeric(0, 1, bins=2),
        "boolean": Boolean(),
        "date": Date("2000-01-01", "2000-01-31"),
        "datetime": DateTime("2000-01-01T00:00", "2000-01-02T00:00", unit="hour"),
    }
    form = FrameForm(nw.Implementation.PYSPARK, lazy=True)
    found, schema = made_frame(CodedParts(), Schema(shown), form, like=NumbersAlone())
    wanted = [100 * number + row for number in range(5) for row in range(number + 1)]
    texts = [value for batch in found for value in batch["n"].to_pylist()]
    assert texts == list(map(str, wanted))
    assert max(batch.num_rows for batch in found) == 2
    assert {batch["n"].type for batch in found} == {pa.string()}  # no categories
    kinds = {field.name: type(field.dataType).__name__ for field in schema}
    assert kinds == {
        "text": "StringType",
        "category": "StringType",
        "integer": "LongType",
        "number": "DoubleType",
        "boolean": "BooleanType",
        "date": "DateType",
        "datetime": "TimestampNTZType",
    }
    assert isinstance(schema, types.StructType)
    with pytest.raises(InvalidInput, match="no active Spark session"):
        made_frame(Parts(), Schema(shown), form)
