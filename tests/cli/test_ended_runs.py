"""A run that is ended from outside keeps what it paid for; a command makes a release of it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from mechanisms import Budget, Curator, Ledger, TableRelease, synthesize
from mechanisms.cli import main
from mechanisms.cli.rescue import interrupted_by_signals, keeping, rescuing
from mechanisms.datasets.census import census, schema
from mechanisms.release.unfinished import unfinished
from mechanisms.synthesis.open_columns import ColumnsFound
from pgmkit import Integer, InvalidInput, Schema
from pgmkit.runtime.atomic_write import atomic_writer

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no signals that end a process politely"
)
SCHEMA = Schema(
    {name: Integer(0, most, outside="clip") for name, most in (("a", 3), ("b", 1), ("c", 2))}
)
ENDED = """
import os, signal, sys
from dataclasses import dataclass
from mechanisms import Entry, register
from mechanisms.cli import main

@dataclass(frozen=True)
class Ended:
    pass

def ended(curator, workload, settings):
    for clique in workload.cliques[:2]:
        curator.measure(clique, curator.remaining / 4)
    os.kill(os.getpid(), signal.SIGTERM)
    raise AssertionError("SIGTERM does not interrupt the run")

register(Entry("ended", __name__, "ended", "Ended", "a run that is ended", rounds=False))
sys.exit(main())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [f"{i % 4},{i % 2},{i % 3}" for i in range(3000)]
    Path("data.csv").write_text("\n".join(["a,b,c", *lines]))
    SCHEMA.save("schema.yaml")
    return tmp_path


def command(*words: str) -> Result:
    return CliRunner().invoke(main, [*words])


def test_a_process_that_is_ended_keeps_what_it_had_paid_for(folder: Path) -> None:
    """SIGTERM comes after two noisy tables: no further charge makes a release of them."""
    Ledger.create("people.ledger", Budget(3.0, 1e-6), neighbours="add/remove")
    words = ["synth", "data.csv", "--schema", "schema.yaml", "--mechanism", "ended"]
    words += ["--epsilon", "2", "--delta", "1e-6", "--ledger", "people.ledger"]
    done = subprocess.run(
        [sys.executable, "-c", ENDED, *words, "--out", "out.csv"], capture_output=True, text=True
    )
    assert done.returncode == 130, done.stderr
    assert not Path("out.csv").exists() and not Ledger.open("people.ledger").open_runs
    (saved,) = folder.glob("rescued-*.pgm")
    assert f"`pgmkit estimate {saved.name} --out NEW.pgm`" in done.stderr
    charged = Path("people.ledger").read_bytes()

    assert "the run did not end" in command("query", saved.name, "a").stderr
    made = command("estimate", saved.name, "--out", "people.pgm")
    assert made.exit_code == 0, made.output
    release = TableRelease.load("people.pgm")
    assert Path("people.ledger").read_bytes() == charged
    assert release.secure and len(release.measurements) == 2
    assert release.ledger.entries == TableRelease.load(saved).ledger.entries
    # A count of `a` is the sum of two or three noisy cells; six standard deviations.
    limit = 6 * 3**0.5 * max(each.stddev for each in release.measurements)
    assert limit < 100
    assert release.model.marginal(["a"]) == pytest.approx([750] * 4, abs=limit)
    assert command("query", "people.pgm", "a | b = 1").exit_code == 0
    assert command("sample", "people.pgm", "--out", "out.csv").exit_code == 0


def test_a_release_is_estimated_alone(folder: Path) -> None:
    curator = Curator(census(200), Budget(1.0, 1e-6), neighbours="add/remove")
    TableRelease(unfinished(curator, "aim"), schema()).save("none.pgm")
    Path("table.csv").write_text("a,count\n0,1\n1,2\n2,3\n3,4\n")
    for words, said in {
        ("none.pgm",): "no noisy tables",
        ("none.pgm", "table.csv"): "leave table.csv out",
        ("none.pgm", "--stddev", "3", "--schema", "schema.yaml"): "leave --schema, --stddev out",
        ("table.csv", "--stddev", "3"): "table.csv is no release",
    }.items():
        result = command("estimate", *words, "--out", "new.pgm")
        assert result.exit_code == 2 and said in result.stderr, result.stderr


def test_columns_that_yaml_cannot_hold_cost_neither_them_nor_the_tables(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(folder))
    monkeypatch.setattr("pgmkit.tables.schema_file._check_yaml", refused)
    frame = pa.table({"a": [0, 1] * 50, "b": [0, 1] * 50, "c": [0, 1] * 50})
    release = synthesize(frame, SCHEMA, epsilon=1.0, delta=1e-6, mechanism="independent", seed=0)
    found = ColumnsFound("too many cells")
    found.schema, found.unfinished = SCHEMA, release  # type: ignore[attr-defined]
    with pytest.raises(ColumnsFound), rescuing("out.csv", "schema.yaml"):
        raise found
    (tables,), (columns,) = folder.glob("rescued-*.pgm"), folder.glob("rescued-*.json")
    assert len(TableRelease.load(tables).measurements) == len(release.measurements)
    assert Schema.load(columns) == SCHEMA


def refused(text: str) -> None:
    raise InvalidInput("a schema in YAML may hold fewer values")


def test_signals_interrupt_unless_they_are_handled_already() -> None:
    ours = [signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU]
    before = [signal.signal(each, signal.SIG_DFL) for each in ours]  # `nohup` may run the tests
    try:
        for each in ours:
            with pytest.raises(KeyboardInterrupt), interrupted_by_signals():
                os.kill(os.getpid(), each)
                time.sleep(5)
        assert all(signal.getsignal(each) is signal.SIG_DFL for each in ours)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
        with interrupted_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        for each, handler in zip(ours, before, strict=True):
            signal.signal(each, handler)


def test_an_interrupt_while_records_are_written_keeps_the_release(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(folder))
    frame = pa.table({"a": [0, 1] * 50, "b": [0, 1] * 50, "c": [0, 1] * 50})
    release = synthesize(frame, SCHEMA, epsilon=1.0, delta=1e-6, mechanism="independent", seed=0)
    with pytest.raises(KeyboardInterrupt), keeping(release, None):
        raise KeyboardInterrupt
    (saved,) = folder.glob("rescued-*.pgm")
    assert f"saved to {saved}" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt), keeping(release, "kept.pgm"):
        raise KeyboardInterrupt
    assert "the release is in kept.pgm" in capsys.readouterr().err


def test_a_release_is_saved_where_the_disk_of_temporary_files_is_full(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder / "full"))
    curator = Curator(census(200), Budget(1.0, 1e-6), neighbours="add/remove")
    TableRelease(unfinished(curator, "aim"), schema()).save("none.pgm")
    assert sorted(path.name for path in folder.iterdir()) == ["data.csv", "none.pgm", "schema.yaml"]


def test_an_error_for_lack_of_room_names_the_file(folder: Path) -> None:
    for code, named in ((errno.ENOSPC, "full.txt"), (errno.EPIPE, None)):
        with pytest.raises(OSError) as caught, atomic_writer("full.txt"):
            raise OSError(code, "said by the system")
        assert caught.value.filename == named
    assert not Path("full.txt").exists()


def test_a_name_may_be_as_long_as_the_system_allows(folder: Path) -> None:
    """255 bytes on most systems; a letter has up to four."""
    longest = 62 * "\N{CJK UNIFIED IDEOGRAPH-20000}" + ".jsonl"
    with atomic_writer(longest) as file:
        file.write(b"whole")
    assert Path(longest).read_bytes() == b"whole"
    Path(longest).unlink()
    Ledger.create(longest, Budget(1.0), neighbours="add/remove")
    assert [path.name for path in folder.glob("*.jsonl")] == [longest]


def test_an_error_for_lack_of_room_names_the_release_and_not_a_part_of_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    curator = Curator(census(200), Budget(1.0, 1e-6), neighbours="add/remove")
    with pytest.raises(OSError) as caught:
        TableRelease(unfinished(curator, "aim"), schema()).save("none.pgm")
    assert caught.value.filename == "none.pgm" and not Path("none.pgm").exists()
