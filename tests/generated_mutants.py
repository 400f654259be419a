"""Generated mistakes: every small change of the packages, one at a time, and whether tests notice.

    python tests/generated_mutants.py privacy/noise_scales privacy/budget   # these files
    python tests/generated_mutants.py privacy --slice 2/10 --seconds 600    # a tenth, for so long
    python tests/generated_mutants.py privacy --again --enough 60           # survivors, once more
    python tests/generated_mutants.py aim gem --functions curator           # what asks the Curator
    python tests/generated_mutants.py merging --tests merging mixture       # by these tests alone
    python tests/generated_mutants.py --report                              # the score of each file

`tests/syntax_mutants.py` enumerates the changes in a fixed order. The fast tests are collected once
(`tests/warm_tests.py`) and run once under a tracer, which tells the lines that each runs and its
time; a mutant then meets the tests that run its line, those first that noticed a mutant of the same
function or file before, then the quickest, until one fails. The ends go to
benchmarks/results/generated_mutants.jsonl line by line, and a mutant that is there is not run
again. Survivors that do no harm are listed with a reason in tests/harmless_mutants.json; all others
are holes in the tests, and `--again` runs these once more. A reason for a mutant that there is no
longer must be deleted, or another mutant may come to have its name.

A test that notices a mutant for the first time is run on the sound code, after the same tests:
where it fails there, too, it is left out.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mutants
from syntax_mutants import Change, changes
from warm_tests import Collected, Outcome, Traced

ROOT = mutants.ROOT
LINES = ROOT / "benchmarks" / "results" / "generated_mutants.jsonl"
HARMLESS = Path(__file__).with_name("harmless_mutants.json")
PARTS = (
    "mechanisms/privacy",
    "mechanisms/synthesis",
    "mechanisms/rounds",
    "mechanisms/families",
    "mechanisms/linked",
    "mechanisms/release",
    "mechanisms/strategies",
    "mechanisms/queries",
    "mechanisms",
    "pgmkit/tables",
    "pgmkit/tables/files",
    "pgmkit/tables/engines",
    "pgmkit/records",
    "pgmkit/runtime",
    "pgmkit/uncertainty",
    "pgmkit/contraction",
    "pgmkit/estimation",
    "pgmkit/least_squares",
    "pgmkit",
)
"""The folders whose files are changed."""
LEFT_OUT = ("spark", "on_a_gpu", "mutants", "audit", "untrusted", "plug_ins")
"""Test files with these words in their name are not collected: other processes, GPUs, minutes."""


def files(words: Sequence[str]) -> list[str]:
    """The files of all parts whose path without its ending holds one of the words."""
    found = [
        path.relative_to(ROOT).as_posix()
        for part in PARTS
        for path in sorted(ROOT.glob(f"{part}/*.py"))
    ]
    return [f for f in found if any(word in f.removesuffix(".py") for word in words)]


def files_of_tests(words: Sequence[str]) -> list[str]:
    """The files of tests that mutants meet, and those of the packages for their examples: those
    whose path without its ending holds one of the words.
    """
    paths = sorted(ROOT.glob("tests/**/test_*.py"))
    there = [path.relative_to(ROOT).as_posix() for path in paths]
    tests = [f for f in there if not any(word in f for word in LEFT_OUT)]
    return [f for f in [*files([""]), *tests] if any(word in f[:-3] for word in words)]


class Coverage:
    """The tests that run each line, and their times; kept between runs for each file of tests."""

    def __init__(self, tests: Collected, of_tests: Sequence[str]) -> None:
        self.seconds: dict[str, float] = {}
        self._running: dict[tuple[str, int], set[str]] = {}
        changed = files([""])
        state = hashlib.sha256()
        for file in changed:
            state.update((ROOT / file).read_bytes())
        for file in of_tests:
            names = [name for name in tests.items if name.partition("::")[0] == file]
            own = state.copy()
            own.update((ROOT / file).read_bytes())
            kept = Path(tempfile.gettempdir(), f"pgmkit-lines-{own.hexdigest()[:16]}.json")
            if not names:
                continue
            if not kept.exists():
                begun = time.monotonic()
                found = tests.traced(names, changed)
                kept.write_text(json.dumps({n: vars(t) for n, t in found.items()}))
                print(f"traced {file} ({time.monotonic() - begun:.0f} s)", flush=True)
                for name in sorted(set(names) - set(found)):
                    print(f"left out, it fails under the tracer: {name}", flush=True)
            for name, each in json.loads(kept.read_text(encoding="utf-8")).items():
                self._add(name, Traced(**each))

    def _add(self, name: str, found: Traced) -> None:
        self.seconds[name] = found.seconds
        for file, lines in found.lines.items():
            for line in lines:
                self._running.setdefault((file, line), set()).add(name)

    def of(self, file: str, line: int, around: range) -> set[str]:
        """The tests that run a line; those that run any line of `around` where none does."""
        tests = self._running.get((file, line), set())
        return tests or set().union(*(self._running.get((file, each), set()) for each in around))


@dataclass
class Order:
    """The order in which tests meet a mutant: those first that noticed one before."""

    coverage: Coverage
    enough: float
    noticed: dict[str, dict[str, int]] = field(default_factory=dict)
    sound: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)

    def tests(self, file: str, change: Change) -> list[str]:
        """The tests of a mutant, as many as take `enough` seconds."""
        text = (ROOT / file).read_text(encoding="utf-8")
        running = self.coverage.of(file, change.line, _around(text, change.line)) - self.broken
        here = self.noticed.get(f"{file} {_function(change.name)}", {})
        there = self.noticed.get(file, {})
        seconds = self.coverage.seconds
        order = sorted(running, key=lambda t: (-here.get(t, 0), -there.get(t, 0), seconds[t], t))
        picked, spent = [], 0.0
        for test in order:
            if not picked or spent + seconds[test] <= self.enough:
                picked.append(test)
                spent += seconds[test]
        return picked

    def note(self, file: str, name: str, test: str) -> None:
        """A test noticed a mutant."""
        for place in (file, f"{file} {_function(name)}"):
            counts = self.noticed.setdefault(place, {})
            counts[test] = counts.get(test, 0) + 1


def _function(name: str) -> str:
    return name.partition(":")[0]


@functools.lru_cache
def _spans(text: str) -> list[range]:
    """The lines of each function of a file, and last of the whole file."""
    functions = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef))
    spans = [range(n.lineno, (n.end_lineno or n.lineno) + 1) for n in functions]
    return [*sorted(spans, key=len), range(1, text.count("\n") + 2)]


def _around(text: str, line: int) -> range:
    """The lines of the innermost function that holds a line, or of the file."""
    return next(span for span in _spans(text) if line in span)


def _text_around(text: str, line: int) -> str:
    around = _around(text, line)
    return "\n".join(text.splitlines()[around.start - 1 : around.stop - 1])


def known() -> dict[str, dict[str, Any]]:
    """The last line of each mutant, by file and name."""
    if not LINES.exists():
        return {}
    lines = map(json.loads, LINES.read_text(encoding="utf-8").splitlines())
    return {f"{line['file']} {line['name']}": line for line in lines}


def planned(words: Sequence[str], part: str, functions: str) -> Iterator[tuple[str, Change]]:
    """The mutants of the files, every n-th of them from the i-th on for the slice "i/n": those in
    functions whose text holds the word `functions`.
    """
    place, every = map(int, part.split("/"))
    all_of_them = (
        (file, change)
        for file in files(words)
        for text in [(ROOT / file).read_text(encoding="utf-8")]
        for change in changes(text)
        if functions in _text_around(text, change.line)
    )
    for number, each in enumerate(all_of_them):
        if number % every == place - 1:
            yield each


def fate(tests: Collected, order: Order, file: str, change: Change) -> tuple[Outcome, int]:
    """The end of a mutant, and the number of tests that it may meet."""
    sound = (file, (ROOT / file).read_text(encoding="utf-8"))
    while True:
        names = order.tests(file, change)
        if not names:
            return Outcome(""), 0
        seconds = {name: order.coverage.seconds[name] for name in names}
        found = tests.outcome(seconds, (file, change.source))
        if found.failed not in names or found.failed in order.sound:
            return found, len(names)
        earlier = {name: seconds[name] for name in names[: names.index(found.failed) + 1]}
        if not tests.outcome(earlier, sound).failed:
            order.sound.add(found.failed)
            return found, len(names)
        print(f"left out, it fails on the sound code: {found.failed}", flush=True)
        order.broken.add(found.failed)


def run(options: argparse.Namespace) -> None:
    """Run the mutants that have no line yet, as the options say."""
    of_tests = files_of_tests(options.tests)

    def work(tests: Collected) -> None:
        order = Order(Coverage(tests, of_tests), options.enough)
        before, started = known(), time.monotonic()
        reasons = json.loads(HARMLESS.read_text(encoding="utf-8"))
        for line in before.values():
            if line.get("by") in tests.items:
                order.note(line["file"], line["name"], line["by"])
        with LINES.open("a", encoding="utf-8") as lines:
            for file, change in planned(options.words, options.slice, options.functions):
                earlier = before.get(f"{file} {change.name}")
                hole = earlier and earlier["end"] == "survived"
                open_hole = hole and change.name not in reasons.get(file, {})
                if earlier and not (options.again and open_hole):
                    continue
                if time.monotonic() - started > options.seconds:
                    return
                begun = time.monotonic()
                found, met = fate(tests, order, file, change)
                end = "hangs" if found.hung else "noticed" if found.failed else "survived"
                line = {"file": file, "name": change.name, "line": change.line, "end": end}
                if end == "noticed":
                    order.note(file, change.name, found.failed)
                    line["by"] = found.failed
                took = round(time.monotonic() - begun, 1)
                lines.write(json.dumps(line | {"tests": met, "seconds": took}) + "\n")
                lines.flush()
                if end == "survived":
                    print(f"{file}:{change.line} {change.name} ({met} tests)", flush=True)

    with mutants.copy() as folder:
        Collected(folder, work).collect(of_tests)


def report() -> bool:
    """Print the score of each file, the survivors without a reason and the reasons without a
    mutant; whether there are none of both.
    """
    reasons = json.loads(HARMLESS.read_text(encoding="utf-8"))
    lines, there, holes = known(), files([""]), []
    print("| file | mutants | run | noticed | harmless | holes |\n|---|---|---|---|---|---|")
    for file in sorted({line["file"] for line in lines.values()} & set(there), key=there.index):
        names = [change.name for change in changes((ROOT / file).read_text(encoding="utf-8"))]
        ends = {n: lines[f"{file} {n}"]["end"] for n in names if f"{file} {n}" in lines}
        left = [name for name, end in ends.items() if end == "survived"]
        open_ones = [name for name in left if name not in reasons.get(file, {})]
        if ends:
            row = [len(names), len(ends), len(ends) - len(left), len(left) - len(open_ones)]
            print(f"| `{file}` | {' | '.join(map(str, [*row, len(open_ones)]))} |")
        holes += [f"{file} {name}" for name in open_ones]
    for file, named in reasons.items():
        text = (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).exists() else ""
        stale = named.keys() - {change.name for change in changes(text)}
        holes += [f"{file} has no mutant {name} (delete its reason)" for name in sorted(stale)]
    print("\n".join(["", *holes]))
    return not holes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run generated mutants.")
    parser.add_argument("words", nargs="*", default=[""])
    parser.add_argument("--slice", default="1/1")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--enough", type=float, default=40.0, help="seconds of tests for each")
    parser.add_argument("--functions", default="", help="functions that hold this word")
    parser.add_argument("--tests", nargs="+", default=["mechanisms/", "tables/"])
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    if options.report:
        sys.exit(not report())
    run(options)
