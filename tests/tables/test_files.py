"""Files of records: what is read, what is refused, and that nothing half-written stays."""

import os
import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mechanisms.cli import main
from pgmkit import Categorical, Dataset, FileFormat, Integer, InvalidInput, Numeric, Schema
from pgmkit.tables.draft.draft import draft
from pgmkit.tables.files.formats import READ, WRITTEN
from pgmkit.tables.files.record_files import encode_file, write_file, write_records

HERE = Path(__file__).parents[1]
SCHEMA = Schema({"age": Integer(0, 99, bins=10), "sex": Categorical(("F", "M"), missing=("?",))})


def test_csv_and_parquet_give_the_same_codes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {
        "sex": np.array(["F", "M", "?"], dtype=object)[rng.integers(0, 3, 1000)],
        "age": rng.integers(0, 100, 1000),
        "other": rng.random(1000),
    }
    read = []
    for name in ["a.csv", "a.parquet"]:
        write_file(tmp_path / name, columns)
        read.append(encode_file(tmp_path / name, SCHEMA))
    times = np.array(["2024-01-31T12:30", "NaT"], "datetime64[ns]")
    write_file(tmp_path / "times.csv", {"time": times, "lasts": times - times[0]})
    assert (tmp_path / "times.csv").read_text() == "time,lasts\n2024-01-31 12:30:00,0:00:00\n,\n"
    wanted = SCHEMA.encode(columns)
    for data in read:
        for name in SCHEMA.columns:
            np.testing.assert_array_equal(data.columns[name], wanted.columns[name])


def test_spaces_comments_and_a_file_without_header(tmp_path: Path) -> None:
    path = tmp_path / "a.data"
    path.write_text("|a comment\n 5 ; F \n17;M\n\n")
    form = FileFormat(names=("age", "sex"), comment="|", separator=";")
    schema = Schema(SCHEMA.columns, file=form)
    assert encode_file(path, schema).columns["age"].tolist() == [0, 1]
    with_mark = tmp_path / "b.csv"
    with_mark.write_text("\ufeffage,sex\n5,F\n", encoding="utf-8")
    assert len(encode_file(with_mark, SCHEMA)) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "empty"),
        ("a.csv", b"age,sex\n", "holds no records"),
        ("a.csv", b"age,sex\n1,F,3\n", "line 2: a record does not have 2 values"),
        ("a.csv", b"age,sex,age\n1,F,2\n", "2 columns named 'age'"),
        ("a.csv", b"years,sex\n1,F\n", "no column 'age'; it has column 1, 'sex' .* not shown"),
        ("a.csv", b"444,sexes\n1,F\n", "no column 'age', 'sex'; it has column 1, column 2 .* not"),
        (
            "a.jsonl",
            b'{"years": 1, "sex": "F"}',
            "no column 'age'; it has 'years', 'sex'",
        ),
        ("a.csv", b"age,sex\n444,F\n", "column 'age': 1 rows"),
        ("a.csv", "age,sex\n1,Ä\n".encode("latin-1"), "UTF-8"),
        ("a.csv", "age,sëx\n1,F\n".encode("latin-1"), "UTF-8"),
        ("a.parquet", b"age,sex\n1,F\n", "not a parquet file"),
        ("a.xlsx", b"", "read as an Excel file"),
        ("a.ods", b"", "read other formats"),
    ],
)
def test_broken_files_are_refused_without_showing_values(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=message) as caught:
        encode_file(path, SCHEMA)
    assert "444" not in str(caught.value).replace(os.fspath(tmp_path), "")  # pytest numbers folders


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "jsonl", "parquet", "xlsx", "sav", "dta"])
def test_a_file_that_is_missing_or_a_folder_raises_what_open_raises(
    suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"a.{suffix}"
    for schema in (SCHEMA, SCHEMA.placed()):
        with pytest.raises(FileNotFoundError):
            encode_file(path, schema)
    path.mkdir()
    for schema in (SCHEMA, SCHEMA.placed()):
        with pytest.raises(IsADirectoryError):
            encode_file(path, schema)


def test_every_format_is_refused_by_one_list_and_told_where_files_are_named(
    tmp_path: Path,
) -> None:
    """A new one is forgotten nowhere: neither by the reader, nor by the writer and the command."""
    for path in (tmp_path / "a.ods", tmp_path / "a.parquet.gz"):
        with pytest.raises(InvalidInput) as refused:
            encode_file(path, SCHEMA)
        assert all(each in str(refused.value) for each in (*READ, *sum(READ.values(), ())))
    page = (HERE.parent / "docs" / "data.md").read_text(encoding="utf-8")
    for name, suffixes in READ.items():
        assert name.lower() in page.lower() and name in (main.commands["synth"].help or "")
        for suffix in suffixes:
            with pytest.raises(FileNotFoundError):
                encode_file(tmp_path / f"a{suffix}", SCHEMA)
    schema, rng = Schema({"age": Integer(0, 1)}), np.random.default_rng(0)
    data = Dataset(schema.domain, {"age": np.arange(2)})
    for suffix in WRITTEN:
        path = tmp_path / f"a{suffix}"
        write_records(path, schema, [data, data], rng)
        assert encode_file(path, schema).columns["age"].tolist() == [0, 1, 0, 1], suffix
    with pytest.raises(InvalidInput, match=f"must end in {', '.join(WRITTEN)}"):
        write_records(tmp_path / "a.xpt", schema, [data], rng)


def test_files_have_the_separator_that_their_suffix_says(tmp_path: Path) -> None:
    """What was made from a .tsv file was written as a .csv file with tabs, and no other way."""
    (tmp_path / "a.tsv").write_text("age\ttown\n" + "40\tBonn, Rh.\n50\tUlm\n" * 30)
    (tmp_path / "s.yaml").write_text(draft(tmp_path / "a.tsv", look=True))
    schema = Schema.load(tmp_path / "s.yaml")
    data = encode_file(tmp_path / "a.tsv", schema)
    semicolons = Schema(schema.columns, file=FileFormat(separator=";"))
    for made, name, first in [
        (schema, "o.csv", '40,"Bonn, Rh."'),
        (schema, "o.tsv", "40\tBonn, Rh."),
        (semicolons, "p.tsv", "40\tBonn, Rh."),
        (semicolons, "p.csv", "40;Bonn, Rh."),
    ]:
        write_records(tmp_path / name, made, [data], np.random.default_rng(0))
        assert (tmp_path / name).read_text().splitlines()[1] == first
        assert encode_file(tmp_path / name, schema).unread == {"age": 0, "town": 0}


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "big.csv"
    target.write_text("before")
    child = os.fork()
    if child == 0:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            write_file(target, {"a": np.arange(100_000)})
        except OSError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert [path.name for path in tmp_path.iterdir()] == ["big.csv"]
    assert target.read_text() == "before"


def test_real_files_are_read_whole() -> None:
    folder = os.environ.get("PGMKIT_DATA")
    if not folder:
        pytest.skip("PGMKIT_DATA does not name a folder with the Adult and ACS files")
    adult = Schema.load(HERE / "data" / "adult.yaml")
    assert len(encode_file(Path(folder, "adult-raw-train.data"), adult)) == 32_561
    assert len(encode_file(Path(folder, "adult-raw-test.data"), adult)) == 16_281
    acs = Schema.load(HERE / "data" / "acs.yaml")
    assert len(encode_file(Path(folder, "acs-na2019-1000.csv"), acs)) == 1_000


@pytest.mark.slow
def test_ten_million_rows_are_coded_in_bounded_memory(tmp_path: Path) -> None:
    columns = {f"c{i}": Integer(0, 9) for i in range(9)} | {"x": Numeric(0, 1, bins=20)}
    rng = np.random.default_rng(0)
    path = tmp_path / "big.parquet"
    writer, rows = None, 0
    for _ in range(20):
        batch = {name: rng.integers(0, 10, 500_000) for name in list(columns)[:-1]}
        table = pa.table({**batch, "x": rng.random(500_000)})
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
        rows += len(table)
    assert writer is not None
    writer.close()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = encode_file(path, Schema(columns))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert len(data) == rows == 10_000_000
    assert data.marginal(("x", "c0")).sum() == rows
    assert grown < 1000  # MB; the values alone would be 800 MB, the codes are 100 MB


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "people.csv"
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR)  # with both ends open, no opening of it waits
    with pytest.raises(InvalidInput, match="is a pipe"):
        encode_file(pipe, Schema({"age": Integer(0, 9)}))
    os.close(held)
