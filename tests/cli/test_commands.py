"""Every command in the order of a user's day, on files, with text and with --json."""

import errno
import json
import tempfile
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

from mechanisms.cli import main
from mechanisms.datasets.census import LABELS, census
from mechanisms.release.record import Release
from pgmkit import Schema
from pgmkit.tables.files.record_files import encode_file, write_file

COLUMNS = ["age", "sex", "work", "income"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("day")
    data = census(2000).project(COLUMNS)
    import numpy as np

    labels = {n: np.array(LABELS[n], dtype=object)[data.columns[n]] for n in COLUMNS}
    write_file(folder / "people.csv", labels)
    return folder


pytestmark = pytest.mark.usefixtures("short_fits")


@pytest.fixture(autouse=True)
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def pgmkit(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def done(*arguments: str) -> str:
    result = pgmkit(*arguments)
    assert result.exit_code == 0, result.output + result.stderr
    return result.stdout


def test_1_a_schema_is_drafted_only_from_what_may_be_seen(folder: Path) -> None:
    unseen = done("schema", "draft", "people.csv")
    assert "F" not in Schema.from_dict(_yaml(unseen)).columns
    assert Schema.from_dict(_yaml(unseen)).unresolved == tuple(COLUMNS)
    done("schema", "draft", "people.csv", "--assume-public", "-o", "people.yaml")
    schema = Schema.load("people.yaml")
    assert schema.unresolved == () and set(schema.columns) == set(COLUMNS)
    assert len(encode_file("people.csv", schema)) == 2000
    for wrong in ("people.json", "people.yaml"):  # a format of no draft, and a schema that exists
        kept = Path("people.yaml").read_bytes()
        refused = pgmkit("schema", "draft", "people.csv", "--out", wrong)
        assert refused.exit_code == 2 and "a new file that ends in .yaml or .yml" in refused.stderr
        assert Path("people.yaml").read_bytes() == kept and not Path("people.json").exists()


def _yaml(text: str) -> dict[str, object]:
    import yaml

    return yaml.safe_load(text)


def test_2_a_plan_costs_nothing_and_adds_up() -> None:
    fixed = ["plan", "--schema", "people.yaml", "--rows", "500", "--mechanism", "mst"]
    found = json.loads(done(*fixed, "--json"))
    assert sum(step["share"] for step in found["steps"]) == pytest.approx(1.0)
    assert found["measurements"] == 7 and found["model_mb"] > 0
    text = done(*fixed)
    assert "tree: measure" in text and text.startswith("mst for 500 rows, because: ")
    assert pgmkit(*fixed[:5], "--mechanism", "magic").exit_code == 2
    open_columns = {"columns": {"town": {"type": "open"}, "sick": {"type": "boolean"}}}
    Path("open.json").write_text(json.dumps(open_columns))
    text = done("plan", "--schema", "open.json", "--mechanism", "mst")
    assert "assumed: 20 values" in text and "open column: town" in text


def test_3_synth_writes_records_and_a_release(folder: Path) -> None:
    fixed = ["synth", "people.csv", "--schema", "people.yaml", "--epsilon", "3", "--delta", "1e-6"]
    text = done(*fixed, "--target", "income", "--out", "synth.parquet", "--save", "people.pgm")
    assert "mixture: it measures all pairs of 4 columns" in text and "wrote people.pgm" in text
    rows = pyarrow.parquet.read_table("synth.parquet")
    assert set(rows.column_names) == set(COLUMNS) and rows.num_rows > 1500
    found = json.loads(done(*fixed, "--mechanism", "mst", "--out", "s.csv", "--json"))
    assert found["mechanism"] == "mst" and found["ledger"]["spent"] > 0
    assert found["records"] == pyarrow.csv.read_csv("s.csv").num_rows


def test_4_questions_samples_and_the_ledger() -> None:
    reply = json.loads(done("query", "people.pgm", "sex, income | age != 30-34", "--json"))
    assert len(reply["count"]) == 20 and sum(reply["share"]) == pytest.approx(1.0)
    assert "stderr" in done("query", "people.pgm", "sex", "--error-bars")
    assert "cumulative epsilon" in done("ledger", "people.pgm")
    assert json.loads(done("ledger", "people.pgm", "--json"))["epsilon"] == 3.0
    done("sample", "people.pgm", "--given", "sex = female", "--rows", "30", "--out", "w.csv")
    one = done("sample", "people.pgm", "--rows", "1", "--out", "one.csv")
    assert "1 synthetic record" in one and "records" not in one
    women = pyarrow.csv.read_csv("w.csv")
    assert women.num_rows == 30 and set(women["sex"].to_pylist()) == {"female"}
    wrong = pgmkit("query", "people.pgm", "sex | height > 3")
    assert wrong.exit_code == 2 and "no column 'height'" in wrong.stderr


def test_5_a_report() -> None:
    assert "wrote r.html" in done("report", "people.pgm", "-o", "r.html")
    assert "NOT PRIVATE" not in Path("r.html").read_text()
    alone = pgmkit("report", "people.pgm", "-o", "t.html", "--test", "people.csv")
    assert alone.exit_code == 2 and "--test needs --against" in alone.stderr
    assert not Path("t.html").exists()
    result = pgmkit("report", "people.pgm", "-o", "p.html", "--against", "people.csv")
    assert result.exit_code == 0 and "do not publish" in result.stderr
    assert "NOT PRIVATE" in Path("p.html").read_text()
    assert "could not be read" not in result.stderr
    text = Path("people.csv").read_text()
    Path("other.csv").write_text(text.replace("female", "w"))
    share = f"{text.count('female'):,} of {text.count(chr(10)) - 1:,} values"
    result = pgmkit("report", "people.pgm", "-o", "p.html", "--against", "other.csv")
    assert f"other.csv: {share} of sex could not be read" in result.stderr


def test_6_tables_from_elsewhere_become_a_model() -> None:
    tables = [
        {"columns": ["sex", "work"], "values": [[30, 20], [25, 25]], "stddev": 2},
        {"columns": ["sex"], "values": [52, 48], "stddev": 1},
    ]
    Path("tables.json").write_text(json.dumps(tables))
    Path("two.json").write_text('{"sex": 2, "work": 2}')
    found = json.loads(
        done("estimate", "tables.json", "--schema", "two.json", "--out", "m.pgm", "--json")
    )
    assert found["total"] == pytest.approx(100, abs=3)
    assert "work" in done("query", "m.pgm", "work | sex = 0")
    for content, message in [
        ("{", "not JSON"),
        ("{}", "list of tables"),
        ('[{"columns": ["sex"]}]', "table 1 must be"),
        ('[{"columns": ["sex"], "values": [1, 2], "stddev": 0}]', "table 1"),
    ]:
        Path("bad.json").write_text(content)
        result = pgmkit("estimate", "bad.json", "--schema", "two.json", "--out", "x.pgm")
        assert result.exit_code == 2 and message in result.stderr
        assert not Path("x.pgm").exists()


def test_7_other_files_are_no_releases() -> None:
    result = pgmkit("ledger", "people.csv")
    assert result.exit_code == 2 and "not a ledger file" in result.stderr
    for other in (["people.pgm"], ["new.ledger", "--create"]):
        result = pgmkit("ledger", *other, "--end-run", "1")
        assert result.exit_code == 2 and "--end-run goes with the ledger of all" in result.stderr
    assert not Path("new.ledger").exists()
    assert "nothing to write" in pgmkit("synth", "people.csv", "--schema", "people.yaml").stderr


@pytest.mark.parametrize(
    "options, message",
    [
        (
            ("query", "people.pgm", "sex", "--schema", "people.yaml"),
            "people.pgm is a release, whose",
        ),
        (("ledger", "people.pgm", "--unit", "home"), "--unit goes with --create"),
        (("ledger", "people.pgm", "--reserved", "0"), "--reserved goes with --create"),
        (("ledger", "people.pgm", "--epsilon", "1"), "--epsilon goes with --create"),
        (
            ("compare", "--schema", "people.yaml", "--public", "people.csv", "--rows", "10000"),
            "--rows 10000 is about made-up records",
        ),
    ],
)
def test_7_options_without_effect_are_refused(options: tuple[str, ...], message: str) -> None:
    result = pgmkit(*options)
    assert result.exit_code == 2 and message in result.stderr


def test_8_every_command_teaches_by_example() -> None:
    for name in main.commands:
        text = done(name, "--help")
        assert "pgmkit" in text or name in ("demo", "mechanisms", "ledger", "schema"), name


def test_8_what_was_paid_for_is_not_lost_to_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pgmkit.tables.files.record_files.write_records", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fixed = ["synth", "people.csv", "--schema", "people.yaml", "--mechanism", "mst"]
    result = pgmkit(*fixed, "--out", "lost.csv")
    assert result.exit_code == 2 and "No space left" in result.stderr
    (rescued,) = tmp_path.glob("rescued-*.pgm")
    assert str(rescued) in result.stderr and not Path("lost.csv").exists()
    assert Release.load(rescued).ledger.spent > 0
    # Where the release was saved as asked, one copy is enough.
    assert pgmkit(*fixed, "--out", "lost.csv", "--save", "kept.pgm").exit_code == 2
    assert Release.load("kept.pgm") and len(list(tmp_path.iterdir())) == 1


def test_8_columns_that_were_paid_for_are_not_lost_to_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row has one of 150 labels, the same in four columns: 151^4 cells, where 21^4 were
    assumed.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = ["a", "b", "c", "d"]
    lines = [",".join([f"v{i % 150}"] * 4) for i in range(6000)]
    Path("labels.csv").write_text("\n".join([",".join(names), *lines]))
    opened = {"columns": {name: {"type": "open"} for name in names}}
    Path("labels.json").write_text(json.dumps(opened))
    fixed = ["synth", "labels.csv", "--epsilon", "90", "--delta", "1e-6", "--out", "labels.out.csv"]
    result = pgmkit(*fixed, "--schema", "labels.json", "--mechanism", "mwem")
    (rescued,) = tmp_path.glob("rescued-*.json")
    assert result.exit_code == 2 and str(rescued) in result.stderr
    assert Schema.load(rescued).domain.shape(tuple(names)) == (151,) * 4
    assert pgmkit(*fixed, "--schema", str(rescued), "--mechanism", "mst").exit_code == 0
