"""The command line: the main job, exit codes, one-line errors, a quick --help, interrupts."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from mechanisms.cli import main

SCHEMA = {"age": 4, "sex": 2, "income": 3}
QUICK = ["--mechanism", "mwem+pgm", "--set", "rounds=1"]
RUN = "import sys; from mechanisms.cli import main; sys.exit(main())"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    age = rng.integers(0, 4, 2345)
    columns = [age, rng.integers(0, 2, 2345), np.minimum(age, 2)]
    with (tmp_path / "data.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(SCHEMA)
        writer.writerows(np.stack(columns, 1).tolist())
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def synth(*arguments: str) -> Result:
    fixed = ["synth", "data.csv", "--schema", "schema.json", "--out", "out.csv"]
    return CliRunner().invoke(main, [*fixed, *arguments])


def test_synth_writes_records_and_a_model(folder: Path) -> None:
    from mechanisms.release.tabular import TableRelease

    result = synth("--epsilon", "2", "--delta", "1e-6", "--save", "the model.pgm")
    assert result.exit_code == 0, result.output
    assert "try `pgmkit query 'the model.pgm' ...`" in result.output
    rows = list(csv.DictReader((folder / "out.csv").open()))
    assert list(rows[0]) == list(SCHEMA)
    assert all(0 <= int(row[a]) < n for row in rows for a, n in SCHEMA.items())
    assert abs(len(rows) - 2345) < 100
    assert "cumulative epsilon" in result.output
    assert "INSECURE" not in result.output
    together = sum(row["income"] == str(min(int(row["age"]), 2)) for row in rows)
    assert together > 0.9 * len(rows)
    release = TableRelease.load(folder / "the model.pgm")
    assert release.model.domain.sizes == SCHEMA


@pytest.mark.parametrize("neighbours", ["add/remove", "replace-one"])
def test_a_seed_reproduces_the_file_with_a_warning(folder: Path, neighbours: str) -> None:
    files = []
    for _ in range(2):
        result = synth(
            "--seed",
            "7",
            "--neighbours",
            neighbours,
            "--mechanism",
            "mwem+pgm",
            "--set",
            "rounds=2",
        )
        assert result.exit_code == 0, result.output
        assert "INSECURE" in result.output
        assert "do not publish" in result.stderr
        files.append((folder / "out.csv").read_bytes())
    assert files[0] == files[1]


def test_pure_budget_uses_laplace_noise(folder: Path) -> None:
    result = synth("--delta", "0", *QUICK)
    assert result.exit_code == 0, result.output
    assert "discrete Laplace" in result.output
    assert "Gaussian" not in result.output


def test_rows_can_be_asked_for(folder: Path) -> None:
    assert synth(*QUICK, "--rows", "10").exit_code == 0
    assert len((folder / "out.csv").read_text().splitlines()) == 11


def test_extra_columns_are_ignored_only_when_told(folder: Path) -> None:
    (folder / "schema.json").write_text(json.dumps({"age": 4, "sex": 2}))
    refused = synth(*QUICK)
    assert refused.exit_code == 2
    assert "income" in refused.stderr
    assert synth(*QUICK, "--ignore-extra-columns").exit_code == 0


@pytest.mark.parametrize(
    ("schema", "data", "options", "code", "message"),
    [
        ("{", None, [], 2, "not JSON"),
        ("[1]", None, [], 2, "must hold a mapping"),
        ('{"age": 4, "age": 5}', None, [], 2, "'age' is given twice"),
        ('{"age": 0, "sex": 2, "income": 3}', None, [], 2, "whole number, 1 or more"),
        ('{"age": 4, "sex": 2, "income": 3, "zip": 9}', None, [], 2, "zip"),
        ('{"age": 3, "sex": 2, "income": 3}', None, ["--strict"], 2, "age"),
        (None, "", [], 2, "data.csv"),
        (None, "age,sex,income\n", ["--strict"], 2, "no records"),
        (None, "age,sex,income\n1,1,x\n", ["--strict"], 2, "income"),
        (None, None, ["--epsilon", "0"], 2, "epsilon"),
        (None, None, ["--epsilon", "nan"], 2, "epsilon"),
        (None, None, ["--delta", "1"], 2, "delta"),
        (None, None, ["--workload", "4"], 2, "from 1 to 3"),
        (None, None, ["--mechanism", "mwem+pgm", "--set", "rounds=0"], 2, "rounds"),
        (None, None, ["--set", "rounds=3"], 2, "need a mechanism by name"),
        (None, None, ["--mechanism", "mst", "--set", "rounds"], 2, "NAME=VALUE"),
        (None, None, ["--mechanism", "gaussian"], 2, "no records can be drawn"),
        (None, None, ["--target", "wages"], 2, "no column 'wages'"),
        (None, None, ["--mechanism", "mwem+pgm", "--set", "model_mb=1e-9"], 2, "model_mb"),
        (None, None, ["--save", "nowhere/model.pgm"], 2, "nowhere"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    folder: Path, schema: str | None, data: str | None, options: list[str], code: int, message: str
) -> None:
    if schema is not None:
        (folder / "schema.json").write_text(schema)
    if data is not None:
        (folder / "data.csv").write_text(data)
    before = sorted(folder.iterdir())
    result = synth(*options)
    assert result.exit_code == code
    (line,) = [x for x in result.stderr.splitlines() if not x.startswith("warning")]
    assert line.startswith("error: ")
    assert message in line
    assert "2345" not in result.output
    assert sorted(folder.iterdir()) == before


def test_what_is_left_out_is_said_with_what_to_do(folder: Path) -> None:
    result = CliRunner().invoke(main, ["synth", "data.csv"])
    assert result.exit_code == 2 and "pgmkit schema draft" in result.stderr
    result = synth("--unit", "age")
    assert result.exit_code == 2 and "--max-rows" in result.stderr
    plain = synth("--mechanism", "independent")
    kept = synth("--mechanism", "independent", "--save", "model.pgm")
    assert "was not kept: with --save" in plain.output and "not kept" not in kept.output
    written = (folder / "model.pgm").read_bytes()
    again = synth("--mechanism", "independent", "--save", "model.pgm")
    assert again.exit_code == 2 and "paid for is not replaced; give another name" in again.stderr
    assert (folder / "model.pgm").read_bytes() == written


def test_help_lists_every_command_with_what_it_does(folder: Path) -> None:
    said = CliRunner().invoke(main, ["--help"]).output
    for name, command in main.commands.items():
        (line,) = [line for line in said.splitlines() if line.startswith(f"  {name} ")]
        assert command.callback is not None or name == "schema"
        assert line.endswith(".") and "..." not in line


def test_unknown_options_and_files_exit_with_2(folder: Path) -> None:
    assert synth("--mechanism", "magic").exit_code == 2
    named = ["synth", "data.csv", "--schema", "schema.json", "--out", "missing/out.csv"]
    for words in (named, ["synth", "none.csv"]):
        assert CliRunner().invoke(main, words).exit_code == 2


def test_an_unforeseen_error_shows_no_values(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("private value 2345")

    monkeypatch.setattr("mechanisms.mwem_pgm.mwem_pgm", broken)
    result = synth("--mechanism", "mwem+pgm")
    assert result.exit_code == 1
    assert "unexpected RuntimeError" in result.stderr
    assert "2345" not in result.output + result.stderr


def test_an_interrupted_run_says_what_becomes_of_its_budget(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mechanisms.mwem_pgm.mwem_pgm", stopped)
    result = synth("--mechanism", "mwem+pgm")
    assert result.exit_code == 130
    assert "interrupted; what was charged until then stays spent" in result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is full")
@pytest.mark.parametrize("words", ["--help", "--version", "mechanisms"])
def test_output_that_finds_no_room_is_one_line(words: str) -> None:
    with open("/dev/full", "w") as full:
        line = [sys.executable, "-c", RUN, words]
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "error: input/output: No space left on device\n")


@pytest.mark.skipif(not __file__.isascii(), reason="Python finds no module in such a folder there")
def test_names_that_the_encoding_cannot_hold_are_refused_with_a_remedy(folder: Path) -> None:
    """In an ASCII locale without UTF-8 mode such bytes come as lone surrogates."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, "schema", "draft", "pérsons.csv", "--assume-public"],
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "PYTHONUTF8=1" in done.stderr and "unexpected" not in done.stderr


def test_demo_says_what_is_public(folder: Path) -> None:
    result = CliRunner().invoke(main, ["demo", "--rows", "3000"])
    assert result.exit_code == 0, result.output
    for text in ["Privacy ledger", "which is public", "range:", "CDF:", "wrote synthetic.csv"]:
        assert text in result.output
    lines = (folder / "synthetic.csv").read_text().splitlines()
    assert len(lines) > 2000
    assert "30-34" in {line.split(",")[0] for line in lines[1:]}, "labels, not codes"


def test_help_imports_nothing_heavy() -> None:
    heavy = ["torch", "scipy", "numpy", "opendp", "networkx", "tqdm", "pyarrow", "narwhals"]
    code = f"import sys, mechanisms.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_is_quick() -> None:
    """It loads no package of others but `click` and the one that loads the rest lazily."""
    watch = "import atexit, sys; old = {*sys.modules}; "
    watch += "atexit.register(lambda: print(*{*sys.modules} - old)); "
    done = subprocess.run(
        [sys.executable, "-c", watch + RUN, "--help"], capture_output=True, text=True, check=True
    )
    assert "synth" in done.stdout
    loaded = {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}
    others = loaded - sys.stdlib_module_names
    assert others == {"click", "lazy_loader", "mechanisms", "pgmkit"}


@pytest.mark.parametrize("delay", [0.2, 1.8])  # while importing; while estimating
def test_quiet_in_a_pipe_and_an_interrupt_is_clean(folder: Path, delay: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "demo", "--rows", "2000000"],  # ten seconds and more
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()  # the title
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip() == "interrupted"
    assert not (folder / "synthetic.csv").exists()
