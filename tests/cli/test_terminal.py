"""Long work on a terminal: it shows how far it is, ends, and stops at Ctrl-C with nothing left."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from forks import run_and_exit

from mechanisms.cli import main
from mechanisms.synthesis.pipeline import synthesize
from pgmkit import Schema
from pgmkit.runtime import progress
from pgmkit.runtime.progress import telling_time
from pgmkit.tables.files.record_files import write_records
from pgmkit.tables.numbers import Integer

COLUMNS, ROWS = 40, 1500
PATIENCE = 600.0
"""By the clock: other work may be running beside the tests."""


def on_a_terminal(
    arguments: list[str], folder: Path, interrupt: Callable[[str], bool] | None = None
) -> tuple[int, str]:
    """`pgmkit` in a pseudo-terminal: the exit code and all that it said; Ctrl-C when asked to.

    A command that is interrupted has a fresh process, whose end is looked at; others have a fork.
    """

    def command() -> None:
        os.chdir(folder)
        os.environ["TERM"] = "xterm"
        termios.tcsetwinsize(0, (30, 100))
        if interrupt is not None:
            program = "from mechanisms.cli import main; main()"
            os.execv(sys.executable, [sys.executable, "-c", program, *arguments])
        main(arguments, prog_name="pgmkit")

    child, master = pty.fork()
    if child == 0:
        run_and_exit(command)
    said, sent, deadline = "", False, time.monotonic() + PATIENCE
    try:
        while time.monotonic() < deadline:
            if select.select([master], [], [], 0.1)[0]:
                try:
                    said += os.read(master, 65536).decode("utf-8", "replace")
                except OSError:  # the other end is closed
                    break
            if interrupt is not None and not sent and interrupt(said):
                os.write(master, b"\x03")
                sent = True
        else:
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(master)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, said


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of 40 columns, its records, and one of three columns."""
    folder = tmp_path_factory.mktemp("wide")
    rng = np.random.default_rng(0)
    hidden = rng.integers(0, 5, ROWS)
    values = {f"q{i}": (hidden * (i % 3) + rng.integers(0, 9, ROWS)) % 9 for i in range(COLUMNS)}
    schema = Schema({name: Integer(0, 8) for name in values})
    release = synthesize(pa.table(values), schema, epsilon=3.0, delta=1e-9, mechanism="mst", seed=0)
    release.save(folder / "m.pgm")
    write_records(folder / "t.csv", schema, [schema.encode(values)], rng)
    few = schema.restricted(["q0", "q1", "q2"])
    synthesize(
        pa.table(values), few, epsilon=3.0, delta=1e-9, mechanism="mst", seed=0
    ).save(folder / "few.pgm")  # fmt: skip
    return folder


REPORT = ["report", "m.pgm", "--against", "t.csv", "-o", "r.html"]


def test_a_wide_report_shows_how_far_it_is_and_ends(wide: Path) -> None:
    code, said = on_a_terminal(REPORT, wide)
    assert code == 0, said
    assert "report:" in said and "100%" in said and "wrote" in said
    shown = {part.split("report:")[1][:5].strip() for part in said.split("\r") if "report:" in part}
    assert len(shown) >= 5, "the bar moved fewer than five times"
    assert "membership" in (wide / "r.html").read_text().lower()
    (wide / "r.html").unlink()


def test_ctrl_c_ends_a_report_with_nothing_left(wide: Path) -> None:
    before = sorted(os.listdir(wide))
    # While a bar is made, tqdm cannot be interrupted cleanly: the first one that moved is made.
    moved = re.compile(r"report: +[1-9]")
    code, said = on_a_terminal(REPORT, wide, lambda said: moved.search(said) is not None)
    assert code == 130, said
    assert "interrupted" in said and "Traceback" not in said
    assert sorted(os.listdir(wide)) == before


def test_error_bars_come_unasked_where_they_are_quick(wide: Path) -> None:
    code, said = on_a_terminal(["query", "few.pgm", "count | q0 = 1 and q2 = 3"], wide)
    assert code == 0, said
    assert "no error bars" not in said and "stderr" in said and "low" in said


def test_what_has_no_quick_error_bars_says_so(wide: Path) -> None:
    code, said = on_a_terminal(["query", "m.pgm", "count | q0 = 1 and q37 = 3 and q5 = 2"], wide)
    assert code == 0, said
    assert "stderr" in said or ("no error bars" in said and "--error-bars" in said)


def test_where_there_is_no_terminal_the_time_so_far_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = ""
    with telling_time("measuring", every=0.01):
        deadline = time.monotonic() + PATIENCE
        while "\n" not in said and time.monotonic() < deadline:
            said += capsys.readouterr().err
    assert said.startswith("measuring: 0 s\n")


def test_where_there_is_no_stderr_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that a service starts has none, nor has Python without a console on Windows."""
    monkeypatch.setattr(sys, "stderr", None)
    threads = threading.active_count()
    with telling_time("measuring", every=0.01):
        assert threading.active_count() == threads  # none tells the time
    with progress.reporter("error bars", True, 2) as report:
        report(1)
    told = capsys.readouterr()
    assert told.out == told.err == ""


def test_where_there_is_no_terminal_models_done_so_far_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other 80 models take four times as long as the first 20."""
    monkeypatch.setattr(progress, "telling_time", partial(telling_time, every=0.01))
    said, clock = "", iter([7.0])
    counted = SimpleNamespace(monotonic=time.monotonic, perf_counter=lambda: next(clock, 18.0))
    monkeypatch.setattr(progress, "time", counted)
    with progress.reporter("error bars", True, 100) as report:
        report(20)
        deadline = time.monotonic() + PATIENCE
        while "20 of" not in said and time.monotonic() < deadline:
            said += capsys.readouterr().err
    assert "error bars: 0 s, 20 of 100 models, about 44 s left\n" in said
