"""Generated mistakes: every small change of the packages, one at a time, and whether tests notice.

    python tests/generated_mutants.py privacy/noise_scales privacy/budget   # these files
    python tests/generated_mutants.py privacy --slice 2/10 --seconds 600    # a tenth, for so long
    python tests/generated_mutants.py privacy/units --quick                 # without the tracer
    python tests/generated_mutants.py --report                              # the score of each file

`tests/syntax_mutants.py` enumerates the changes in a fixed order. The fast tests of a part of the
packages (`PARTS`) run once under a tracer, which tells the lines that each test runs; a mutant then
meets only the tests that run its line, the quickest first, until one fails. What was found goes to
benchmarks/results/generated_mutants.jsonl line by line, and a mutant that is there is not run
again unless it survived and `--again` is given. Survivors that do no harm are listed with a reason
in tests/harmless_mutants.json; all others are holes in the tests.

The tracer takes minutes. With `--quick` it does not run: each mutant meets the examples in the
documentation of its file, and then the tests that `QUICK` names for it, until one fails.

Tests run in a fork of a process that has loaded all libraries but not the packages themselves.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import mutants
from syntax_mutants import Change, changes

ROOT = mutants.ROOT
LINES = ROOT / "benchmarks" / "results" / "generated_mutants.jsonl"
HARMLESS = Path(__file__).with_name("harmless_mutants.json")
PARTS: dict[str, tuple[str, ...]] = {
    "mechanisms/privacy": (*mutants.TESTS, "residual", "settings"),
    "mechanisms/synthesis": (
        *("first_look", "refusals", "units", "synthesize", "discovery", "replay"),
        *("tables/test_neighbours", "test_replay_odd_rows", "gaussian_accounting"),
    ),
    "mechanisms/rounds": ("loop", "histogram_mechanisms", "mwem_pgm", "clique_tree", "replay"),
    "mechanisms": ("replay", "aim", "mst", "mwem_pgm", "hdmm", "residual", "baselines", "mixture"),
    "pgmkit/tables": (
        *("tables/test_company", "tables/test_neighbours", "tables/test_files"),
        *("tables/test_frames", "tables/test_schema", "untrusted"),
    ),
}
"""The tests of a part of the packages; a file belongs to the longest part that begins its path."""
QUICK: dict[str, tuple[str, ...]] = {
    "noise_scales": (
        "gaussian_accounting::test_scores_in_other_units_are_drawn_alike",
        "gaussian_accounting::test_discrete_noise_is_as_gaussian_as_its_scale_says",
        "gaussian_accounting::test_no_selection_is_easier_to_tell_than_what_is_charged",
        "gaussian_accounting::test_permute_and_flip_has_half_the_range",
        "gaussian_accounting::test_the_worst_selection_costs_exactly_what_is_charged",
        *("permute_and_flip", "curator"),
    ),
    "neighbours": (
        "units::test_no_unit_moves_a_marginal_by_more_than_is_stated",
        "units::test_stated_sensitivities_are_attained",
        "units::test_names_of_relations",
        "units::test_values_of_one_unit_pass_with_probability_delta_in_all",
        "units::test_query_answers_move_as_far_as_the_worst_unit_moves_them",
        "units::test_wrong_units_are_refused",
        "units::test_a_ledger_counts_units_whatever_their_rows",
        "scores",
    ),
    "units": (
        "units::test_each_unit_keeps_its_rows_of_smallest_keys",
        "units::test_keys_have_all_64_bits",
        "units::test_every_choice_of_rows_is_equally_likely",
        "units::test_the_choice_of_a_unit_depends_on_no_other",
        "units::test_no_rows_and_rows_of_nobody",
        "units::test_the_number_of_rows_left_out_is_noisy_and_paid_for",
        "units::test_noise_grows_with_the_rows_of_a_unit",
    ),
    "noise": ("exact_noise", "curator", "permute_and_flip"),
    "integer_matrix": (
        "strategies::test_column_norms_against_the_written_out_matrix",
        "strategies::test_whole_numbers_of_any_size_are_multiplied_exactly",
        "strategies::test_norms_of_as_many_rows_as_are_allowed",
        "strategies::test_large_whole_numbers_cost_what_is_charged",
        "strategies::test_answers_beyond_64_bits_are_refused_by_their_noisy_values",
        "strategies::test_exact_samplers_take_the_scaled_answers",
        "strategies::test_wrong_matrices_are_refused_before_spending",
        "strategies::test_measured_queries_cost_what_neighbours_reveal",
    ),
    "gaussian_dp": (
        "gaussian_accounting::test_the_conversion_is_that_of_dp_accounting",
        "gaussian_accounting::test_discrete_noise_is_as_gaussian_as_its_scale_says",
        "gaussian_accounting::test_no_selection_is_easier_to_tell_than_what_is_charged",
        "gaussian_accounting::test_the_worst_selection_costs_exactly_what_is_charged",
        "gaussian_accounting::test_the_default_never_needs_more_noise",
        "gaussian_accounting::test_it_never_allows_less_than_zcdp",
        "gaussian_accounting::test_conversions_refuse_what_is_no_promise",
        "budget",
    ),
    "held_budgets": (
        "ledger_file::test_no_run_holds_less_than_nothing",
        "ledger_file::test_a_run_holds_its_budget_until_it_ends",
        "ledger_file::test_a_charge_of_a_run_is_held_to_what_the_run_holds",
        "ledger_file::test_a_run_that_fails_gives_back_what_it_did_not_spend",
        "ledger_file::test_reserved_delta_adds_up_across_runs",
        "ledger_file::test_a_line_cut_short_is_overwritten_and_a_changed_one_refused",
    ),
    "exact_selection": (
        "permute_and_flip",
        "curator::test_fifty_thousand_exact_draws_take_under_a_second",
    ),
}
"""The tests that a file of mechanisms/privacy meets with `--quick`, by its name."""
_ENOUGH = 40.0
"""Seconds of tests for one mutant, as the tracer took them; tests beyond that are left out."""
_NO_TESTS = 5
"""The exit code of pytest for a file without any, as documentation without examples is."""
_PATIENCE = 90.0
"""Seconds after which a mutant that makes a test hang counts as noticed."""

Coverage = dict[str, dict[str, list[str]]]


def files(words: Sequence[str]) -> list[str]:
    """The files of all parts whose path without its ending holds one of the words."""
    found = {
        path.relative_to(ROOT).as_posix()
        for part in PARTS
        for path in ROOT.glob(f"{part}/*.py")
        if path.name != "__init__.py"
    }
    return sorted(f for f in found if any(word in f.removesuffix(".py") for word in words))


def part_of(file: str) -> str:
    """The part that a file belongs to."""
    return max((part for part in PARTS if file.startswith(f"{part}/")), key=len)


def paths(names: Sequence[str]) -> list[str]:
    """Test files by the names that `mutants.TESTS` has for them; those that are there."""
    found = []
    for name in names:
        file, _, test = name.partition("::")
        plain = file if "/" in file else f"mechanisms/test_{file.removeprefix('test_')}"
        if (ROOT / "tests" / f"{plain}.py").exists():
            found.append(f"tests/{plain}.py{'::' * bool(test)}{test}")
    return found


def forked(folder: Path, work: Callable[[], int], seconds: float) -> int | None:
    """The exit code of `work` in a fork that imports from the folder; None where it hangs."""
    child = os.fork()
    if not child:
        code = 70
        with contextlib.suppress(BaseException):
            os.setsid()
            os.chdir(folder)
            sys.path[:] = [str(folder), *(p for p in sys.path if not p.startswith(str(ROOT)))]
            os.environ |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
            sys.dont_write_bytecode = True
            silent = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(silent, stream)
            code = work()
        os._exit(code)
    deadline = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        late = time.monotonic() > deadline
        if done or late:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        if done:
            return os.waitstatus_to_exitcode(status)
        if late:
            os.waitpid(child, 0)
            return None
        time.sleep(0.01)


def quick_tests(file: str) -> list[str]:
    """The documentation of a file and the tests that `QUICK` names for it."""
    return [file, *paths(QUICK[Path(file).stem])]


def one_after_the_other(names: Sequence[str]) -> int:
    """The first exit code of a failure, file by file: a file that comes later is not even read."""
    by_file = (list(each) for _, each in itertools.groupby(names, lambda n: n.partition("::")[0]))
    codes = (tests_run(each) for each in by_file)
    return next((code for code in codes if code not in (0, _NO_TESTS)), 0)


def tests_run(names: Sequence[str], *plugins: object) -> int:
    """The exit code of pytest for these tests."""
    import pytest

    options = ["-q", "-p", "no:cacheprovider", *(() if plugins else ("-x",))]
    return int(pytest.main([*options, *names], plugins=list(plugins)))


class Tracer:
    """A plugin of pytest that notes the lines of some files that each test runs, and its time.

    A test that fails (one that measures its own time, under a tracer) is left out and said.
    """

    def __init__(self, folder: Path, wanted: Sequence[str]) -> None:
        self._files = {str(folder / file): file for file in wanted}
        self._lines: set[tuple[str, int]] = set()
        self.found: Coverage = {file: {} for file in wanted}
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._lines, self.seconds[nodeid] = set(), time.monotonic()
        sys.settrace(self._trace)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        sys.settrace(None)
        self.seconds[nodeid] = time.monotonic() - self.seconds[nodeid]
        for path, line in self._lines if nodeid not in self.failed else ():
            self.found[self._files[path]].setdefault(str(line), []).append(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        self._lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._trace


def coverage(folder: Path, part: str) -> tuple[Coverage, dict[str, float]]:
    """The tests that run each line of a part's files, and their times; kept between runs."""
    wanted = [file for file in files([part]) if part_of(file) == part]
    tests = paths(PARTS[part])
    state = hashlib.sha256()
    for file in [*wanted, *tests]:
        state.update((ROOT / file).read_bytes())
    kept = Path(tempfile.gettempdir(), f"pgmkit-lines-{state.hexdigest()[:16]}.json")
    if not kept.exists():
        print(f"tracing the tests of {part}", flush=True)

        def work() -> int:
            tracer = Tracer(folder, wanted)
            code = tests_run(tests, tracer)
            if code <= 1:
                noted = [tracer.found, tracer.seconds, tracer.failed]
                kept.write_text(json.dumps(noted), encoding="utf-8")
            return code

        if forked(folder, work, 3600) is None or not kept.exists():
            raise SystemExit(f"the tests of {part} do not run")
    found, seconds, failed = json.loads(kept.read_text(encoding="utf-8"))
    print("".join(f"left out, it fails under the tracer: {each}\n" for each in failed), end="")
    return found, seconds


def chosen(found: dict[str, list[str]], line: int, seconds: dict[str, float]) -> list[str]:
    """The tests that run a line, or any of its file where it runs as the file is imported."""
    running = set(found.get(str(line), ())) or {test for each in found.values() for test in each}
    picked, spent = [], 0.0
    for test in sorted(running, key=lambda each: (seconds[each], each)):
        spent += seconds[test]
        if picked and spent > _ENOUGH:
            break
        picked.append(test)
    return picked


def fate(folder: Path, file: str, change: Change, work: Callable[[], int]) -> str:
    """What becomes of a mutant, by the exit code of its tests: "noticed", "hangs" or "survived"."""
    path = folder / file
    sound = path.read_text(encoding="utf-8")
    path.write_text(change.source, encoding="utf-8")
    try:
        code = forked(folder, work, _PATIENCE)
    finally:
        path.write_text(sound, encoding="utf-8")
    return "hangs" if code is None else "survived" if code == 0 else "noticed"


def known() -> dict[str, dict[str, Any]]:
    """The last line of each mutant, by file and name."""
    if not LINES.exists():
        return {}
    lines = map(json.loads, LINES.read_text(encoding="utf-8").splitlines())
    return {f"{line['file']} {line['name']}": line for line in lines}


def planned(words: Sequence[str], part: str) -> Iterator[tuple[str, Change]]:
    """The mutants of the files, every n-th of them from the i-th on for the slice "i/n"."""
    place, every = map(int, part.split("/"))
    all_of_them = (
        (file, change)
        for file in files(words)
        for change in changes((ROOT / file).read_text(encoding="utf-8"))
    )
    for number, each in enumerate(all_of_them):
        if number % every == place - 1:
            yield each


def run(words: Sequence[str], part: str, seconds: float, again: bool, quick: bool) -> None:
    """Run the mutants that have no line yet, for so long; `quick`: on the tests of `QUICK`."""
    for library in ("numpy", "scipy.stats", "hypothesis", "opendp.prelude", "torch", "pandas"):
        __import__(library)
    before, started = known(), time.monotonic()
    traced: dict[str, tuple[Coverage, dict[str, float]]] = {}
    with mutants.copy() as folder, LINES.open("a", encoding="utf-8") as lines:
        for file, change in planned(words, part):
            earlier = before.get(f"{file} {change.name}")
            if earlier and not (again and earlier["end"] == "survived"):
                continue
            if time.monotonic() - started > seconds:
                return
            if quick:
                tests = quick_tests(file)
            else:
                if part_of(file) not in traced:
                    traced[part_of(file)] = coverage(folder, part_of(file))
                found, times = traced[part_of(file)]
                tests = chosen(found[file], change.line, times)
            begun = time.monotonic()
            work = functools.partial(one_after_the_other if quick else tests_run, tests)
            end = fate(folder, file, change, work) if tests else "survived"
            took = round(time.monotonic() - begun, 1)
            line = {"file": file, "name": change.name, "line": change.line, "end": end}
            met = {"quick": True} if quick else {"tests": len(tests)}
            lines.write(json.dumps(line | met | {"seconds": took}) + "\n")
            lines.flush()
            if end == "survived":
                print(f"{file}:{change.line} {change.name}", flush=True)


def report() -> bool:
    """Print the score of each file, and the survivors without a reason; whether there are none."""
    reasons = json.loads(HARMLESS.read_text(encoding="utf-8"))
    lines, holes = known(), []
    print("| file | mutants | run | noticed | harmless | holes |\n|---|---|---|---|---|---|")
    for file in files([""]):
        names = [change.name for change in changes((ROOT / file).read_text(encoding="utf-8"))]
        ends = {n: lines[f"{file} {n}"]["end"] for n in names if f"{file} {n}" in lines}
        left = [name for name, end in ends.items() if end == "survived"]
        open_ones = [name for name in left if name not in reasons.get(file, {})]
        if ends:
            row = [len(names), len(ends), len(ends) - len(left), len(left) - len(open_ones)]
            print(f"| `{file}` | {' | '.join(map(str, [*row, len(open_ones)]))} |")
        holes += [f"{file} {name}" for name in open_ones]
    print("\n".join(["", *holes]))
    return not holes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run generated mutants.")
    parser.add_argument("words", nargs="*", default=[""])
    parser.add_argument("--slice", default="1/1")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    if options.report:
        sys.exit(not report())
    run(options.words, options.slice, options.seconds, options.again, options.quick)
