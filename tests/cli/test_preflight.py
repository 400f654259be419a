"""Whatever can be checked is checked before the budget is spent: the ledger stays as it was."""

from __future__ import annotations

import csv
import itertools
import json
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from mechanisms.cli import main
from mechanisms.cli.planning import plan
from mechanisms.cli.preflight import check_disk
from mechanisms.cli.synthesis import synth
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.ledger import Ledger
from pgmkit import Categorical, Dataset, InvalidInput, Schema
from pgmkit.tables.files.record_files import write_file, write_records

SIZES = {"age": 4, "sex": 2, "income": 3}
DATA = ["data.csv"]
TARGETS = ["--out", "out.csv", "--save", "m.pgm", "--report", "r.html"]
FIXED = ["--schema", "schema.json", "--epsilon", "1", "--delta", "1e-6"]
WRONG: dict[str, list[list[str]]] = {
    "data": [["none.csv"], ["."], ["schema.json"], ["narrow.csv"], ["wide.csv"], ["empty.csv"]],
    "schema": [["--schema", name] for name in ("none.json", ".", "data.csv", "bad.json")],
    "mechanism": [["--mechanism", name] for name in ("magic", "pmw-pub", "gaussian", "")],
    "settings": [["--set", "rounds"], ["--set", "rounds=2"],
                 ["--mechanism", "mst", "--set", "sede=2"],
                 ["--mechanism", "mwem+pgm", "--set", "rounds=-1"],
                 ["--mechanism", "mwem+pgm", "--set", "rounds=2", "--set", "rounds=3"]],
    "workload": [["--workload", k] for k in ("0", "4", "-1", "x")],
    "queries": [["--queries", name] for name in ("none.txt", "asked.txt", "empty.csv")]
               + [["--queries", "age.txt", "--workload", "2"]],
    "within": [["--within", "9"], ["--within", "1%", "--queries", "age.txt"],
               ["--within", "x", "--queries", "age.txt"],
               ["--within", "9", "--queries", "age.txt", "--mechanism", "mst"]],
    "target": [["--target", "wages"], ["--target", ""]],
    "accounting": [["--accounting", "renyi"], ["--accounting", "gaussian", "--delta", "0"]],
    "epsilon": [["--epsilon", each] for each in ("0", "-1", "nan", "inf", "x")],
    "delta": [["--delta", each] for each in ("1", "-1", "nan", "x")],
    "neighbours": [["--neighbours", "swap"]],
    "unit": [["--unit", "nobody", "--max-rows", "2"], ["--unit", "age", "--max-rows", "2"],
             ["--unit", "person"]],
    "max_rows": [["--max-rows", "0"], ["--max-rows", "x"], ["--max-rows", "2"]],
    "report_dropped": [["--report-dropped"], ["--report-dropped=3"]],
    "seed": [["--seed", "-1"], ["--seed", "x"]],
    "public": [["--public", "none.csv"], ["--public", "schema.json"],
               ["--public", "data.csv", "--mechanism", "mst"],
               ["--public", "empty.csv", "--mechanism", "gem-pub"]],
    "out": [["--out", name] for name in ("o.ods", "o.sas", "o", ".", "no/o.csv", "data.csv")],
    "save": [["--save", name]
             for name in (".", "no/m.pgm", "out.csv", "schema.json", "narrow.csv")],
    "report": [["--report", name] for name in (".", "no/r.html", "m.pgm", "r.pdf")],
    "rows": [["--rows", "0"], ["--rows", "x"]],
    "seconds": [["--seconds", each] for each in ("0", "-1", "nan", "x")],
    "memory_mb": [["--memory-mb", each] for each in ("0", "-1", "nan", "x")],
    "device": [["--device", "gpu"], ["--device", "cuda:77"], ["--device", ""]],
    "ledger": [["--ledger", "none.ledger"], ["--ledger", "data.csv"], ["--ledger", "schema.json"]],
    "safe_csv": [["--safe-csv", "--out", "out.parquet"], ["--safe-csv=3"]],
    "ignore_extra_columns": [["--ignore-extra-columns=3"]],
    "strict": [["outside.csv", "--strict"], ["--strict=3"]],
    "encoding": [["--encoding", "latin-99"], ["--encoding", ""]],
    "separator": [["--separator", each] for each in (";", "::", "\u00e9", "")],
    "skip_lines": [["--skip-lines", each] for each in ("-1", "x", "1", "9999")],
    "sheet": [["--sheet", "first"]],
    "yes": [["--yes=3"]],
    "decimal": [["--decimal", "x"], ["--decimal", ",", "--separator", ","]],
    "json_out": [["--json=3"]],
}  # fmt: skip
ONLY_OF_A_RUN = [
    ["--neighbours", "replace-one"],  # not the ledger's
    ["--epsilon", "9"],  # more than the ledger has
    ["--save", "all.ledger"],
    ["--rows", "2000000", "--out", "o.xlsx"],
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, [4, 2, 3], (500, 3)).tolist()
    files = {
        "data.csv": [list(SIZES), *rows],
        "narrow.csv": [["age", "sex"], *(row[:2] for row in rows)],
        "wide.csv": [[*SIZES, "shoe"], *([*row, 1] for row in rows)],
        "outside.csv": [list(SIZES), [9, 9, 9]],
        "empty.csv": [],
    }
    for name, lines in files.items():
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows(lines)
    (tmp_path / "schema.json").write_text(json.dumps(SIZES))
    (tmp_path / "age.txt").write_text("# ages\n\ncdf(age) | sex\n")
    (tmp_path / "asked.txt").write_text("cdf(age) | sex\ncdf(age) | wages\n")
    (tmp_path / "bad.json").write_text('{"columns": {"age": {"type": "integr"}}}')
    Ledger.create(tmp_path / "all.ledger", Budget(2.0, 1e-5), neighbours="add/remove")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def changed(options: list[str], change: list[str]) -> list[str]:
    """The options with their values, except those that the change has, and the change."""
    kept = [pair for pair in zip(options[::2], options[1::2], strict=True) if pair[0] not in change]
    return [*itertools.chain(*kept), *change]


def synthesized(change: list[str]) -> Result:
    data = change if change and not change[0].startswith("-") else [*DATA, *change]
    options = [*FIXED, *TARGETS, "--ledger", "all.ledger"]
    return CliRunner().invoke(main, ["synth", *changed(options, data)])


def planned(change: list[str]) -> Result:
    options = [*FIXED, *TARGETS, "--data-format", *DATA]
    return CliRunner().invoke(main, ["plan", *changed(options, change)])


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the lock that guards the ledger."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}


def refused(result: Result, change: list[str]) -> None:
    assert result.exit_code in (2, 3), (change, result.output)
    errors = [x for x in result.stderr.splitlines() if x.lower().startswith("error: ")]
    assert len(errors) == 1, (change, result.stderr)


def test_the_command_that_is_made_wrong_is_right(folder: Path) -> None:
    before = contents(folder)
    result = synthesized(["--mechanism", "mst"])
    assert result.exit_code == 0, result.output
    after = contents(folder)
    assert after["all.ledger"] != before["all.ledger"]
    assert after.keys() - before.keys() == {"out.csv", "m.pgm", "r.html"}


def test_an_option_is_given_once(folder: Path) -> None:
    """The last of several would be taken without a word."""
    before = contents(folder)
    for again in (["--epsilon", "2"], ["--report", "r.html"], ["--yes", "--yes"], ["--json"] * 2):
        ended = CliRunner().invoke(main, ["synth", *DATA, *FIXED, *TARGETS, *again])
        assert ended.exit_code == 2
        assert ended.stderr == f"error: {again[0]} is given twice; give it once\n"
    twice = ["--values", "5", "--values", "6"]
    assert (
        "--values is given" in CliRunner().invoke(main, ["schema", "draft", *DATA, *twice]).stderr
    )
    assert contents(folder) == before
    several = ["--mechanism", "mst", "--mechanism", "independent"]
    assert CliRunner().invoke(main, ["compare", *FIXED[:2], *several]).exit_code == 0


def test_every_option_has_wrong_values() -> None:
    assert {option.name for option in synth.params} == set(WRONG)


@pytest.mark.parametrize("option", WRONG)
def test_a_wrong_option_costs_nothing(option: str, folder: Path) -> None:
    before = contents(folder)
    for change in WRONG[option]:
        refused(synthesized(change), change)
        assert contents(folder) == before, change


def test_what_the_ledger_cannot_pay_for_costs_nothing(folder: Path) -> None:
    before = contents(folder)
    for change in ONLY_OF_A_RUN:
        refused(synthesized(change), change)
        assert contents(folder) == before, change


@pytest.mark.parametrize("option", [each.name for each in plan.params if each.name in WRONG])
def test_a_plan_refuses_what_a_run_would(option: str, folder: Path) -> None:
    before = contents(folder)
    for change in WRONG[option]:
        named = ["--data-format", *change] if option == "data" else change
        refused(planned(named), named)
        assert contents(folder) == before, change


def test_a_plan_reads_no_values(folder: Path) -> None:
    assert planned(["--data-format", "outside.csv", "--mechanism", "mst"]).exit_code == 0


def test_a_full_disk_is_seen_before_the_budget_is_spent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(folder)
    usage = namedtuple("usage", ["total", "used", "free"])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 5_000_000, 5_000_000))
    result = synthesized(["--rows", "1000000"])
    assert result.exit_code == 2 and "has 5,000,000 bytes left" in result.stderr
    assert contents(folder) == before
    assert planned(["--mechanism", "mst"]).exit_code == 0
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 0))
    refused(planned(["--mechanism", "mst"]), [])


def test_a_missing_value_takes_one_byte_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = Schema({"x": Categorical(["a", "b"]), "y": Categorical(["c", "d"], missing=())})
    shortest = Dataset(schema.domain, {"x": np.zeros(1000, int), "y": np.full(1000, 2)})
    out = tmp_path / "out.csv"
    write_records(out, schema, [shortest], np.random.default_rng(0))
    assert out.stat().st_size == len("x,y\n") + 3000
    usage = namedtuple("usage", ["free"])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(3000))
    check_disk(out, schema, 1000)
    with pytest.raises(InvalidInput, match="has 3,000 bytes left, but the records take 3,003"):
        check_disk(out, schema, 1001)


@pytest.mark.parametrize(
    "option",
    [["--encoding", "latin-1"], ["--separator", ";"], ["--skip-lines", "1"], ["--sheet", "a"]],
)
def test_options_of_another_format_are_refused(option: list[str], folder: Path) -> None:
    write_file(folder / "data.parquet", {name: np.array([1]) for name in SIZES})
    for command in (
        ["schema", "draft", "data.parquet"],
        ["synth", "data.parquet", *FIXED, "--out", "out.jsonl"],
        ["plan", *FIXED],
        ["compare", *FIXED],
    ):
        ended = CliRunner().invoke(main, [*command, *option])
        file = "data.parquet" if "data.parquet" in command else "no file"
        assert ended.exit_code == 2
        assert f"{option[0]} is about " in ended.stderr and f"got {file}" in ended.stderr
    written = synthesized(["data.parquet", *option, "--mechanism", "independent"])
    assert written.exit_code == 2 * (option[0] != "--separator")  # out.csv is written with it


@pytest.mark.parametrize(
    ("change", "near"),
    [
        (["--mechanism", "msst"], "'mst'"),
        (["--mechanism", "mst", "--set", "select_shear=1"], "'select_share'"),
        (["--target", "Income"], "'income'"),
        (["--unit", "persn", "--max-rows", "2"], "'person'"),
    ],
)
def test_a_misspelt_name_gets_the_one_that_was_meant(
    change: list[str], near: str, folder: Path
) -> None:
    with (folder / "owned.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[*SIZES, "person"], [1, 1, 1, "a"]])
    result = synthesized(["owned.csv", "--ignore-extra-columns", *change])
    assert f"did you mean {near}?" in result.stderr
    assert ("as the unit (--unit)" in result.stderr) == ("--unit" in change)
