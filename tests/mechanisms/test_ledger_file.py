"""A ledger across runs: nothing is answered that is not on the disk, whoever fails or is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from forks import Fork
from seams import draw_from

from mechanisms import Budget, BudgetExceeded, Curator, Ledger, k_way, run
from mechanisms.cli import main
from mechanisms.datasets.census import census
from mechanisms.privacy.budget import LedgerEntry
from mechanisms.privacy.chained_lines import ChainedLines
from mechanisms.privacy.held_budgets import held_budgets
from mechanisms.privacy.noise import SeededNoise
from pgmkit.errors import InvalidInput

DATA = census(200).project(["sex", "income"])
TOTAL = Budget(1.0, 1e-6, 1e-7)


def begun(folder: Path, budget: Budget = TOTAL) -> Path:
    path = folder / "people.ledger"
    Ledger.create(path, budget, neighbours="add/remove")
    return path


def test_a_charge_is_on_the_disk_before_the_answer_is_drawn(tmp_path: Path) -> None:
    path = begun(tmp_path)
    curator = Curator(DATA, Budget(0.5, 1e-7), neighbours="add/remove", ledger=Ledger.open(path))
    lines: list[int] = []

    class Watching(SeededNoise):
        def gaussian(self, counts: np.ndarray, scale: float) -> np.ndarray:
            lines.append(len(path.read_text().splitlines()))
            return super().gaussian(counts, scale)

        def softmax(self, scores: np.ndarray, scale: float) -> int:
            lines.append(len(path.read_text().splitlines()))
            return super().softmax(scores, scale)

    draw_from(curator, Watching(np.random.default_rng(0)))
    curator.measure(("sex",), curator.remaining / 4)
    curator.choose([("sex",)], {("sex",): [1.0, 2.0]}, curator.remaining / 2)
    curator.measure(("income",), curator.remaining)
    assert lines == [3, 4, 5]  # after the ledger's own line, and that by which the run began
    across = Ledger.open(path)
    assert [e.cost for e in across.entries] == [e.cost for e in curator.ledger.entries]


def test_runs_add_up_and_a_refusal_names_what_is_left(tmp_path: Path) -> None:
    path = begun(tmp_path, Budget(1.0))
    pairs = k_way(DATA.domain, 1)
    for _ in range(2):
        run("independent", DATA, pairs, 0.375, neighbours="add/remove", ledger=Ledger.open(path))
    with pytest.raises(BudgetExceeded, match=r"epsilon = 0.375, but 0.25 of 1 is left"):
        run("independent", DATA, pairs, 0.375, neighbours="add/remove", ledger=Ledger.open(path))
    run("independent", DATA, pairs, 0.25, neighbours="add/remove", ledger=Ledger.open(path))
    across = Ledger.open(path)
    assert across.remaining == 0 and across.secure and len(across.entries) == 6
    assert [e.step.partition(":")[0] for e in across.entries[::2]] == ["run 1", "run 2", "run 3"]
    with pytest.raises(BudgetExceeded):
        across.charge("more", "by hand", 1e-6)
    for wrong in ({"delta": 1e-6, "neighbours": "add/remove"}, {"neighbours": "replace-one"}):
        with pytest.raises(InvalidInput, match="do not add up"):
            run("independent", DATA, pairs, 0.1, ledger=across, **wrong)


def test_failed_and_seeded_runs_count(tmp_path: Path) -> None:
    path = begun(tmp_path)
    ledger = Ledger.open(path)
    curator = Curator(DATA, Budget(0.5, 1e-7), neighbours="add/remove", ledger=ledger)
    cost = curator.remaining / 4

    class Broken(SeededNoise):
        def gaussian(self, counts: np.ndarray, scale: float) -> np.ndarray:
            raise OSError("no entropy")

    draw_from(curator, Broken(np.random.default_rng(0)))
    with pytest.raises(OSError, match="entropy"):
        curator.measure(("sex",), cost)
    curator.ledger.close()
    assert Ledger.open(path).spent == cost and Ledger.open(path).secure
    opened_before = Ledger.open(path)
    seeded = Curator(DATA, Budget(0.5, 1e-7), neighbours="add/remove", seed=0, ledger=ledger)
    seeded.measure(("sex",), cost)
    assert not opened_before.secure and "INSECURE" in str(opened_before)
    seeded.ledger.close()
    assert Ledger.open(path).spent == 2 * cost and not Ledger.open(path).secure
    assert "INSECURE" in str(Ledger.open(path))


def test_reserved_delta_adds_up_across_runs(tmp_path: Path) -> None:
    path = begun(tmp_path)
    for _ in range(2):
        budget = Budget(0.3, 1e-6, 5e-8)
        curator = Curator(DATA, budget, neighbours="add/remove", ledger=Ledger.open(path))
        curator.discover(["a"] * 200, 1e-5, 5e-8)
    with pytest.raises(BudgetExceeded, match="reserves delta"):
        Curator(DATA, Budget(0.3, 1e-6, 5e-8), neighbours="add/remove", ledger=Ledger.open(path))
    with pytest.raises(BudgetExceeded, match="delta"):
        curator.discover(["a"] * 200, 1e-5, 5e-8)


def spend(path: Path, cost: float, pause: float) -> None:
    """Charge until the ledger refuses, with pauses."""
    ledger = Ledger.open(path)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        while True:
            ledger.charge("step", "by hand", cost)
            print("answer", flush=True)
            time.sleep(pause)
    except BudgetExceeded:
        pass


def begun_together(
    program: Callable[[Path, float, float], None],
    path: Path,
    count: int,
    cost: float,
    pause: float = 0.0,
) -> list[Fork]:
    """Processes that run the program and begin together."""
    found = [Fork(lambda: program(path, cost, pause)) for _ in range(count)]
    for each in found:
        assert each.stdout.readline() == "ready\n"
    for each in found:
        each.stdin.write("go\n")
        each.stdin.flush()
    return found


def test_processes_at_once_cannot_overspend(tmp_path: Path) -> None:
    path = begun(tmp_path, Budget(1.0))
    # With a pause after each charge no process can spend it all before another begins.
    started = begun_together(spend, path, 3, 1 / 64, pause=0.02)
    answers = [each.end()[0].count("answer") for each in started]
    assert sum(answers) == 64 == len(Ledger.open(path).entries)
    assert Ledger.open(path).spent == 1.0
    assert sum(answer > 0 for answer in answers) > 1, "one process had it all to itself"


def test_killed_processes_lose_no_charge_and_block_nobody(tmp_path: Path) -> None:
    path = begun(tmp_path, Budget(1.0))
    answered = 0
    for seconds in (0.02, 0.05, 0.1):
        running = begun_together(spend, path, 2, 1 / 4096)
        time.sleep(seconds)
        for each in running:
            os.kill(each.pid, signal.SIGKILL)
        answered += sum(each.end()[0].count("answer") for each in running)
    ledger = Ledger.open(path)
    charged = len(ledger.entries)
    assert answered <= charged <= answered + 6, "every answer is charged, in each process one more"
    ledger.charge("after", "by hand", 1 / 4096)
    assert len(Ledger.open(path).entries) == charged + 1


def test_a_run_holds_its_budget_until_it_ends(tmp_path: Path) -> None:
    path = begun(tmp_path, Budget(1.0))
    ledger = Ledger.open(path)
    curator = Curator(DATA, Budget(0.75), neighbours="add/remove", ledger=ledger)
    assert ledger.remaining == 0.25 and ledger.open_runs == {1: 0.75}
    with pytest.raises(BudgetExceeded, match=r"0\.25 of 1 is left .* run 1 holds a part"):
        Curator(DATA, Budget(0.5), neighbours="add/remove", ledger=ledger)
    with pytest.raises(BudgetExceeded, match=r"only 0\.25 of 1 remains"):
        ledger.charge("by hand", "discrete Laplace", 0.5)
    ledger.charge("by hand", "discrete Laplace", 0.25)
    curator.measure(("sex",), 0.5)  # it has what it was promised, whatever others do
    assert ledger.remaining == 0 and ledger.open_runs == {1: 0.25}
    for _ in range(2):
        curator.ledger.close()
        assert ledger.remaining == 0.25 and ledger.open_runs == {}
    curator.measure(("sex",), 0.25)  # over, so paid from what is left to all
    assert ledger.remaining == 0 == Ledger.open(path).remaining
    with pytest.raises(BudgetExceeded):
        curator.ledger.charge("more", "discrete Laplace", 1e-6)


@pytest.mark.parametrize("line", [{"holds": -5.0}, {"holds": 0.0}, {"delta": -1e-6}])
def test_no_run_holds_less_than_nothing(line: dict[str, float]) -> None:
    """It would free what others have spent."""
    with pytest.raises(InvalidInput, match="run holds"):
        held_budgets([{"run": 1, "holds": 0.5, "delta": 0.0, **line}])


def test_a_run_that_never_began_does_not_end() -> None:
    with pytest.raises(InvalidInput, match="run 1 ends, which had not begun or had ended"):
        held_budgets([{"run": 1, "ended": True}])


def test_a_file_of_another_version_is_no_ledger(tmp_path: Path) -> None:
    stored = Ledger(Budget(1.0), neighbours="add/remove").to_dict()
    first = {"format": "pgmkit ledger", "version": 2, **stored}
    ChainedLines.create(tmp_path / "ledger", first)
    with pytest.raises(InvalidInput, match="first line is of another format or version"):
        Ledger.open(tmp_path / "ledger")


def test_a_charge_of_a_run_is_held_to_what_the_run_holds(tmp_path: Path) -> None:
    """Whatever its own ledger in memory allows: the file has the last word, under its lock."""
    ledger = Ledger.open(begun(tmp_path, TOTAL))
    half = Budget(0.5, 1e-6)
    for _ in range(2):
        Curator(DATA, half, neighbours="add/remove", ledger=ledger)
    for _ in range(2):
        ledger.record(LedgerEntry("fits", "discrete Gaussian", half.total / 2), 1, secure=True)
    ledger.charge("the rest of all", "discrete Gaussian", ledger.remaining)
    before = ledger.entries
    for run_number, cost, delta in [
        (1, half.total / 1000, 0.0),
        (2, half.total * 1.001, 0.0),
        (2, half.total / 2, 2e-7),
    ]:
        entry = LedgerEntry("more", "discrete Gaussian", cost, delta)
        with pytest.raises(BudgetExceeded, match="'more'"):
            ledger.record(entry, run_number, secure=True)
    assert ledger.entries == before
    ledger.record(LedgerEntry("fits", "discrete Gaussian", half.total), 2, secure=True)
    assert ledger.remaining == 0


def test_a_run_without_cost_left_holds_no_delta_either(tmp_path: Path) -> None:
    """Another run may have reserved it: a charge of both made the file unreadable."""
    whole, part = Budget(2.0, 1e-6, 1e-7), Budget(0.5, 1e-6, 1e-7)
    shared = Ledger.create(tmp_path / "people.ledger", whole, neighbours="add/remove")
    first = Ledger(part, neighbours="add/remove", across_runs=shared)
    first.charge("all", "by hand", first.remaining)
    second = Ledger(part, neighbours="add/remove", across_runs=shared)
    with pytest.raises(BudgetExceeded, match="reserves delta"):
        Ledger(part, neighbours="add/remove", across_runs=shared)
    second.charge("labels", "by hand", second.remaining / 2, 1e-7)
    with pytest.raises(BudgetExceeded, match="delta"):
        first.charge("labels", "by hand", 1e-90, 1e-7)
    assert [entry.delta for entry in shared.entries if entry.delta] == [1e-7]


@pytest.mark.parametrize(("left", "held"), [(0.5e-100, 0), (1.5e-100, 1)])
def test_a_rest_that_no_charge_can_cost_is_not_held(left: float, held: int, tmp_path: Path) -> None:
    """As an entry of the ledger, a rest below 1e-100 made the file unreadable."""
    shared = Ledger.create(tmp_path / "people.ledger", Budget(1.0), neighbours="add/remove")
    run = Ledger(Budget(2e-99), neighbours="add/remove", across_runs=shared)
    run.charge("most", "by hand", 2e-99 - left)
    assert len(shared.entries) == 1 + held
    run.close()
    assert len(shared.entries) == 1


def test_a_run_that_fails_gives_back_what_it_did_not_spend(tmp_path: Path) -> None:
    path = begun(tmp_path, Budget(1.0))

    def stopped(_: object) -> None:
        raise KeyboardInterrupt

    ledger = Ledger.open(path)
    pairs = k_way(DATA.domain, 2)
    options = {"neighbours": "add/remove", "ledger": ledger}
    with pytest.raises(KeyboardInterrupt):
        run("mwem+pgm", DATA, pairs, 1.0, progress=stopped, **options)
    assert 0 < ledger.spent < 1 and not ledger.open_runs
    # Refused before anything is counted: no run begins.
    content = path.read_bytes()
    with pytest.raises(InvalidInput):
        run("mst", DATA, [("sex", "age")], 0.1, **options)
    assert path.read_bytes() == content


def run_eight_steps(path: Path, cost: float, pause: float) -> None:
    """Begin a run and measure eight times, with pauses."""
    data = census(50).project(["sex", "income"])
    ledger = Ledger.open(path)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        curator = Curator(data, Budget(cost), neighbours="add/remove", ledger=ledger)
    except BudgetExceeded:
        print("refused at the start")
        return
    print("begun", flush=True)
    with closing(curator.ledger):
        for _ in range(8):
            curator.measure(("sex",), cost / 8)
            print("answer", flush=True)
            time.sleep(pause)


def test_runs_that_start_together_are_paid_for_whole_or_not_begun(tmp_path: Path) -> None:
    """Each of the first two checks of a run and its charges meet those of others, in any order."""
    path = begun(tmp_path, Budget(1.0))
    started = begun_together(run_eight_steps, path, 4, 0.375, pause=0.01)
    said, codes = zip(*(each.end() for each in started), strict=True)
    assert codes == (0,) * 4, said
    whole = [each.count("answer") for each in said]
    assert sorted(whole) == [0, 0, 8, 8], "a run was refused half-way, its work lost"
    assert sum("refused at the start" in each for each in said) == 2
    ledger = Ledger.open(path)
    assert ledger.spent == 0.75 and len(ledger.entries) == 16 and not ledger.open_runs


def test_what_a_killed_run_holds_stays_spent_until_it_is_ended_by_hand(tmp_path: Path) -> None:
    path = begun(tmp_path, Budget(1.0))
    answered = 0
    for lines in (1, 4):
        (running,) = begun_together(run_eight_steps, path, 1, 0.25, pause=0.03)
        seen = [running.stdout.readline() for _ in range(lines)]
        os.kill(running.pid, signal.SIGKILL)
        answered += [*seen, *running.end()[0].splitlines(True)].count("answer\n")
    ledger = Ledger.open(path)
    held = ledger.open_runs
    assert list(held) == [1, 2]
    charged = sum(entry.cost for entry in ledger.entries if "held" not in entry.mechanism)
    assert answered / 32 <= charged <= (answered + 2) / 32
    assert ledger.spent == charged + sum(held.values()) == 0.25 * len(held)
    assert "held until it ends" in str(ledger)
    rest = ledger.remaining
    with pytest.raises(BudgetExceeded, match=r"--end-run \(end_run\) ends killed runs"):
        Curator(DATA, Budget(rest + 0.01), neighbours="add/remove", ledger=ledger)
    for number in held:
        done = CliRunner().invoke(main, ["ledger", str(path), "--end-run", str(number)])
        assert done.exit_code == 0, done.output
    assert ledger.spent == charged and not ledger.open_runs
    for wrong in (number, 99):
        done = CliRunner().invoke(main, ["ledger", str(path), "--end-run", str(wrong)])
        assert done.exit_code == 2 and "open runs: none" in done.stderr


def test_a_line_cut_short_is_overwritten_and_a_changed_one_refused(tmp_path: Path) -> None:
    path = begun(tmp_path)
    ledger = Ledger.open(path)
    for _ in range(3):
        ledger.charge("step", "by hand", 1e-4)
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    assert len(Ledger.open(path).entries) == 2
    Ledger.open(path).charge("step", "by hand", 1e-4)
    assert path.read_bytes() == whole
    rng = np.random.default_rng(0)
    for _ in range(60):
        at = int(rng.integers(len(whole) - 1))
        if whole[at] == ord("\n"):
            continue
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(InvalidInput, match="is not a ledger file"):
            Ledger.open(path)
    for wrong in (b"", b"{}\n", b"nothing\n", b"\xff" * 9):
        path.write_bytes(wrong)
        with pytest.raises(InvalidInput, match="is not a ledger file"):
            Ledger.open(path)
    with pytest.raises(FileNotFoundError):
        Ledger.open(tmp_path / "absent")


def test_a_ledger_is_never_begun_anew(tmp_path: Path) -> None:
    path = begun(tmp_path)
    with pytest.raises(InvalidInput, match="exists already .*go on with it .`Ledger.open`"):
        begun(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    with pytest.raises(InvalidInput, match="neighbours"):
        Ledger.create(tmp_path / "other", TOTAL, neighbours="swap")


def test_the_command_line_keeps_a_ledger(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"a": 3}')
    (tmp_path / "d.csv").write_text("a\n" + "0\n1\n2\n" * 50)
    path, out = str(tmp_path / "l"), str(tmp_path / "o.csv")

    def invoked(*arguments: str) -> tuple[int, str]:
        found = CliRunner().invoke(main, [*arguments])
        return found.exit_code, found.output

    code, text = invoked("ledger", path, "--create", "--epsilon", "1.2", "--delta", "1e-9")
    assert code == 0 and "epsilon = 1.2" in text
    synth = ["synth", str(tmp_path / "d.csv"), "--schema", str(tmp_path / "s.json"), "--out", out]
    synth += ["--mechanism", "independent", "--workload", "1", "--ledger", path, "--epsilon", "1"]
    assert invoked(*synth)[0] == 0
    code, text = invoked(*synth)
    assert code == 3 and "left in the ledger" in text
    stored = json.loads(invoked("ledger", path, "--json")[1])
    assert 0 < stored["spent"] < stored["total"] and stored["entries"]
    assert "measure a" in invoked("ledger", path)[1]


def test_each_line_and_the_name_of_the_file_are_flushed_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[tuple[int, int]] = []
    wait = os.fsync

    def watched(descriptor: int) -> None:
        wait(descriptor)
        seen = os.fstat(descriptor)
        flushed.append((seen.st_ino, seen.st_size))

    monkeypatch.setattr(os, "fsync", watched)
    path = begun(tmp_path)
    assert (path.stat().st_ino, path.stat().st_size) in flushed
    assert tmp_path.stat().st_ino in [number for number, _ in flushed], "its name may be lost"
    for _ in range(3):
        flushed.clear()
        Ledger.open(path).charge("step", "by hand", 1e-4)
        assert (path.stat().st_ino, path.stat().st_size) in flushed


def test_a_ledger_is_its_owners_and_has_one_name(tmp_path: Path) -> None:
    path = begun(tmp_path)
    Ledger.open(path).charge("step", "by hand", 1e-4)
    for each in tmp_path.iterdir():
        assert each.stat().st_mode & 0o777 == 0o600, each
    (tmp_path / "link").symlink_to(path)
    Ledger.open(tmp_path / "link").charge("step", "by hand", 1e-4)
    other = tmp_path / "other"
    os.link(path, other)
    content = path.read_bytes()
    for name in (path, other, tmp_path / "link"):
        with pytest.raises(InvalidInput, match="one of 2 names"):
            Ledger.open(name).charge("step", "by hand", 1e-4)
    assert path.read_bytes() == content
    other.unlink()
    Ledger.open(path).charge("step", "by hand", 1e-4)
