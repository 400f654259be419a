"""Files that a command cannot read, and files that it must not replace."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mechanisms.cli import main
from mechanisms.cli.rescue import keeping
from mechanisms.linked.link import Link, load_linked_schema
from mechanisms.linked.release import LinkedRelease
from mechanisms.release.record import Release
from mechanisms.release.tabular import TableRelease
from pgmkit import InvalidInput, Schema

UAI = "MARKOV\n2\n2 2\n1\n2 0 1\n\n4\n 1 2 3 4\n"
SCHEMA = ("--schema", "s.json")
LINKED = """
tables:
  home: {columns: {area: {type: boolean}}}
  person: {columns: {old: {type: boolean}}}
links: [{child: person, parent: home, key: id, most: 2}]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("s.json").write_text('{"sex": 2, "old": 2}')
        Path("d.csv").write_text("sex,old\n" + "0,1\n1,0\n" * 20)
        Path("t.csv").write_text("sex,old,count\n0,0,9\n0,1,21\n1,0,33\n1,1,47\n")
        Path("m.uai").write_text(UAI)
        Path("r.yaml").write_text(LINKED)
        for name, column in (("home", "area"), ("person", "old")):
            Path(f"{name}.csv").write_text(f"id,{column}\n" + "1,true\n2,false\n" * 3)
        assert run("estimate", "t.csv", *SCHEMA, "--stddev", "5", "--out", "m.pgm").exit_code == 0
        Release.load("m.pgm").model.save("m.npz")
        Path("empty").touch()
        Path("p.html").touch()
        Path("folder").mkdir()
        Path("folder/home.pgm").touch()
        Path("cut.pgm").write_bytes(Path("m.pgm").read_bytes()[:500])
        Path("other.pgm").write_bytes(bytes(range(256)))
    return folder


@pytest.fixture(autouse=True)
def inside(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def refused(*arguments: str) -> str:
    found = run(*arguments)
    assert found.exit_code == 2, found.output
    return found.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "m.pgm", "-o", "m.pgm"],
        ["report", "m.pgm", "-o", "d.csv", "--against", "d.csv"],
        ["report", "m.pgm", "-o", "./folder/../d.csv", "--against", "t.csv", "--test", "d.csv"],
        ["estimate", "m.pgm", "--out", "m.pgm"],
        ["estimate", "t.csv", *SCHEMA, "--stddev", "5", "--out", "t.csv"],
        ["estimate", "d.csv", "t.csv", *SCHEMA, "--stddev", "5", "--out", "t.csv"],
        ["infer", "m.uai", "--out", "m.uai"],
        ["infer", "m.uai", "--evidence", "t.csv", "--out", "t.csv"],
        ["report", "folder", "-o", "folder/home.pgm"],
        ["compare", *SCHEMA, "-o", "s.json"],
        ["compare", *SCHEMA, "--public", "d.csv", "-o", "d.csv"],
        ["synth", "d.csv", *SCHEMA, "--save", "new.pgm", "--report", "new.pgm"],
        ["synth", "d.csv", *SCHEMA, "--out", "d.csv"],
        ["plan", *SCHEMA, "--data-format", "d.csv", "--save", "d.csv"],
        ["synth-linked", "home=home.csv", "person=p.html", "--report", "p.html"],
        ["synth-linked", "home=home.csv", "person=person.csv", "--report", "r.yaml"],
        ["synth-linked", "home=home.csv", "person=person.csv", "--out", "o", "--save", "./o"],
        ["synth-linked", "home=home.csv", "person=person.csv", "--out", "."],
    ],
)
def test_no_file_that_a_command_reads_or_writes_is_replaced_by_another(
    arguments: list[str],
) -> None:
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    linked = ["--schema", "r.yaml"] if arguments[0] == "synth-linked" else []
    assert "is named twice" in refused(*arguments, *linked)
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["sample", "m.pgm", "--out", ""],
        ["report", "m.pgm", "-o", ""],
        ["synth", "d.csv", *SCHEMA, "--save", ""],
        ["estimate", "t.csv", *SCHEMA, "--out", ""],
        ["synth-linked", "home=home.csv", "person=person.csv", "--schema", "r.yaml", "--out", ""],
    ],
)
def test_an_empty_name_is_not_the_present_folder(arguments: list[str]) -> None:
    assert "the name of a file to be written is empty; give one" in refused(*arguments)


def test_a_page_has_the_name_of_a_page() -> None:
    linked = ["synth-linked", "home=home.csv", "person=person.csv", "--schema", "r.yaml"]
    synth = ["synth", "d.csv", *SCHEMA, "--save", "new.pgm"]
    for command in (
        ["report", "m.pgm", "-o"],
        ["report", "folder", "-o"],
        ["compare", *SCHEMA, "-o"],
        [*synth, "--report"],
        ["plan", *SCHEMA, "--report"],
        [*linked, "--report"],
    ):
        assert "page.csv must end in .html or .htm" in refused(*command, "page.csv")
    assert not Path("page.csv").exists() and not Path("new.pgm").exists()


def test_what_was_paid_for_or_spent_is_never_replaced() -> None:
    """A model of tables from elsewhere cost nothing, and may be made again under its name."""
    synth = run("synth", "d.csv", *SCHEMA, "--mechanism", "independent", "--save", "paid.pgm")
    assert synth.exit_code == run("ledger", "all.ledger", "--create").exit_code == 0
    estimate = ["estimate", "t.csv", *SCHEMA, "--stddev", "5", "--out"]
    for file in ("paid.pgm", "all.ledger"):
        before = Path(file).read_bytes()
        for command in (estimate, ["report", "m.pgm", "-o"], ["compare", *SCHEMA, "-o"]):
            assert "is not replaced; give another name" in refused(*command, file)
        assert Path(file).read_bytes() == before
    assert run(*estimate, "m.pgm").exit_code == 0


@pytest.mark.parametrize("file", ["empty", "cut.pgm", "other.pgm", "d.csv", "m.uai"])
def test_other_formats_are_named_in_words(file: str) -> None:
    said = "it has another format, or it is cut off or damaged"
    for command in (["query", file, "sex"], ["sample", file, "--out", "o.csv"]):
        assert (message := refused(*command)).count("release file") == 1 and said in message
    synth = ["synth", "d.csv", *SCHEMA, "--save", "new.pgm", "--ledger", file]
    for command in (synth, ["ledger", file], ["ledger", file, "--end-run", "1"]):
        assert "is not a ledger file" in (message := refused(*command))
        assert said in message or "no whole line" in message
    assert said in refused("estimate", file, "--out", "new.pgm")
    assert not Path("new.pgm").exists()


def test_a_model_and_a_folder_are_told_from_a_release() -> None:
    assert "it has no 'release.json'" in refused("query", "m.npz", "sex")
    assert "noisy tables must be .csv" in refused("estimate", "m.npz", *SCHEMA, "--out", "e.pgm")
    for command in (["sample", "folder", "--out", "o"], ["report", "folder", "-o", "o.html"]):
        assert "is no release of linked tables: it has no file links.json" in refused(*command)
    with pytest.raises(InvalidInput, match="no release of linked tables"):
        LinkedRelease.load("m.pgm")
    for option in (["--level", "0.9"], ["--allow-modified"], ["--error-bars"]):
        message = refused("query", "m.npz", "sex", *SCHEMA, *option)
        assert f"{option[0]} goes with a release" in message
    assert run("query", "m.npz", "sex", *SCHEMA, "--no-error-bars").exit_code == 0
    ended = refused("ledger", "m.pgm", "--end-run", "1")
    assert "ledger of all runs on a data set, which m.pgm is not" in ended


def test_a_release_that_another_run_wrote_meanwhile_is_kept() -> None:
    release = TableRelease.load("m.pgm")
    Path("paid.pgm").write_bytes(b"of another run")
    with (
        pytest.raises(InvalidInput, match="was paid for is not replaced"),
        keeping(release, "paid.pgm"),
    ):
        raise AssertionError("nothing is written")
    assert Path("paid.pgm").read_bytes() == b"of another run"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["compare", *SCHEMA, "--rows", str(10**23)],
            "rows must be a whole number of records from 1",
        ),
        (["plan", *SCHEMA, "--workload", "0"], "0 is not in the range x>=1"),
        (["sample", "m.pgm", "--out", "o.csv", "--seed", "-1"], "-1 is not in the range x>=0"),
        (["demo", "--seed", "-1"], "-1 is not in the range x>=0"),
        (["infer", "m.uai", "--marginal", "x0,"], "--marginal: there is no variable ''"),
        (
            ["infer", "m.uai", "--max-seconds", "1"],
            "exact answers do not use max_seconds; leave it out",
        ),
        (
            ["estimate", "t.csv", *SCHEMA, "--out", "e.pgm", "--stddev", "nan"],
            "stddev must be finite, 0 or more (0: exact), got nan",
        ),
        (
            ["estimate", "t.csv", *SCHEMA, "--out", "e.pgm", "--stddev", "5", "--value", "size"],
            "t.csv has no column 'size'; its columns are sex, old, count",
        ),
        (
            ["sample", "m.pgm", "--out", "o.csv", "--given", ""],
            "--given is empty; write conditions",
        ),
        (["ledger", ""], "error: '': No such file or directory"),
        (["query", "m.pgm", "mean(old"], "'mean(old' is not understood; write mean(column)"),
        (
            ["sample", "m.pgm", "--out", "o.csv", "--given", "sex"],
            "condition 'sex' is not understood; write",
        ),
    ],
)
def test_a_wrong_value_is_named_as_the_user_named_it(arguments: list[str], said: str) -> None:
    assert said in refused(*arguments)


def test_a_lack_of_memory_is_no_fault_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(TableRelease, "ask", fails)
    found = run("query", "m.pgm", "sex")
    assert found.exit_code == 3 and "take fewer rows, columns or codes" in found.stderr


def test_schemas_without_their_first_level() -> None:
    with pytest.raises(InvalidInput, match="a schema must hold `columns`"):
        Schema.from_dict({"sex": {"type": "boolean"}, "old": 2})
    for stored, said in [
        (json.dumps({"tables": {}, "links": 5}), "links must be a sequence of links, got 5"),
        (LINKED.replace("most: 2", "most: 1048576"), "from 1 to 1,048,575"),
        (LINKED.replace("most: 2", "most: 2, constraints: 5"), "must be a sequence of constraints"),
        (LINKED.replace("most: 2", "most: 2, constraints: [5]"), "a constraint must be a mapping"),
    ]:
        Path("wrong.yaml").write_text(stored)
        with pytest.raises(InvalidInput, match=said):
            load_linked_schema("wrong.yaml")
    assert Link("a", "b", "id", 1048575).most == 1048575


def test_reports_on_one_column_or_with_something_else_than_data() -> None:
    Path("one.json").write_text('{"sex": 2}')
    Path("one.csv").write_text("sex\n" + "0\n1\n" * 20)
    Path("n.csv").write_text("sex,count\n0,12\n1,30\n")
    given = ("--schema", "one.json", "--stddev", "2", "--out", "one.pgm")
    assert run("estimate", "n.csv", *given).exit_code == 0
    report = ["report", "one.pgm", "-o", "o.html", "--against", "one.csv", "--target", "sex"]
    assert "no column is left to predict the target 'sex' from" in refused(*report)
    from mechanisms.release.report import Evaluation, html

    for wrong in (lambda: html(TableRelease.load("m.pgm"), "d.csv"), lambda: Evaluation("d.csv")):
        with pytest.raises(InvalidInput, match="must be a"):
            wrong()


def test_the_demonstration_of_one_row_has_numbers_alone() -> None:
    found = run("demo", "--rows", "1", "--seed", "0", "--out", "o.csv")
    assert (
        found.exit_code == 0 and "nan" not in found.output and "invalid value" not in found.stderr
    )
