"""Tests that are collected once and run many times, each time in a fork with other code.

`Collected` is a plugin of pytest: what it is given runs in place of the tests, in the process that
has collected them. There `traced` runs the tests of one file and tells the lines that each runs,
and `outcome` runs some tests until one fails, after a change of the packages. A change inside
functions is put into the functions that are there already (`new_code`); any other change, of a
constant of a module, of a field of a class or of a decorator, is met by a second session in the
fork, which imports the packages once more.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import json
import os
import re
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

__all__ = ["Collected", "Outcome", "Traced"]

_CLOCK = re.compile(r"\b(perf_counter|monotonic|process_time|getrusage|time\.time)\b")
_SPARE = 3.0
"""Seconds of processor time that a test has beyond three times what it took when it was traced: for
the first use of a library."""
_IMPORTS = 10.0
"""Seconds of processor time for a session that imports the packages once more."""
_WAITING = 6.0
"""Seconds of the wall for one of processor time that all tests may take together, on a machine that
others use too."""
_MEMORY = 8 << 30
"""Bytes of memory that a fork may add: a mutant that asks for more counts as noticed."""

Lines = dict[str, list[int]]
"""The lines that a test runs, by file."""
Place = tuple[str, str, int]
"""The file of a function, its name, and its first line."""


@dataclass(frozen=True)
class Traced:
    """The seconds of processor time that a test takes, and the lines that it runs, by file."""

    seconds: float
    lines: Lines


@dataclass(frozen=True)
class Outcome:
    """The first test that failed; empty where all passed. `hung`: they did not end in time."""

    failed: str
    hung: bool = False


class Collected:
    """A plugin of pytest that runs `work` with the tests that were collected."""

    def __init__(self, folder: Path, work: Callable[[Collected], None]) -> None:
        self.folder = folder
        self.items: dict[str, pytest.Item] = {}
        self._work = work
        self._first = _FirstFailure()
        self._functions: dict[Place, list[FunctionType]] = {}

    def collect(self, paths: Sequence[str]) -> None:
        """Collect the tests of these paths and run `work`."""
        os.chdir(self.folder)
        sys.path[:0] = [str(self.folder), str(self.folder / "tests")]
        sys.dont_write_bytecode = True
        places = os.pathsep.join([str(self.folder), str(self.folder / "tests")])
        os.environ |= {"PYTHONPATH": places, "PYTHONDONTWRITEBYTECODE": "1"}
        os.environ |= {"HYPOTHESIS_PROFILE": "mutants"}
        if code := pytest.main([*_options(self.folder), *paths], plugins=[self, self._first]):
            raise SystemExit(f"the tests were not collected: {code}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("a test file cannot be read")
        self.items = {item.nodeid: item for item in session.items if not _measures_time(item)}
        gc.unfreeze()  # frozen objects (`conftest.py`) are not among gc.get_objects()
        for each in gc.get_objects():
            if type(each) is FunctionType:  # lazy objects of libraries answer isinstance
                code = each.__code__
                place = (code.co_filename, code.co_qualname, code.co_firstlineno)
                self._functions.setdefault(place, []).append(each)
        gc.collect()
        gc.freeze()
        self._work(self)
        return True

    def traced(self, names: Sequence[str], files: Sequence[str]) -> dict[str, Traced]:
        """The lines of these files that each test runs; tests that fail meanwhile are left out."""

        def work() -> dict[str, Any]:
            found = {}
            for item, following in _followed([self.items[name] for name in names]):
                self._first.test = ""
                with _tracer(self.folder, files) as lines:
                    begun = _processor_time()
                    self._run(item, following)
                if not self._first.test:
                    found[item.nodeid] = [_processor_time() - begun, _by_file(lines)]
            return found

        found, _ = _forked(self.folder, work, None)
        return {name: Traced(*each) for name, each in (found or {}).items()}

    def outcome(self, tests: Mapping[str, float], change: tuple[str, str]) -> Outcome:
        """Run tests, each with its seconds, until one fails, after a change of a file: its path and
        its new text. A test that takes several times as long is ended: it hangs.
        """
        together = sum(tests.values())

        def work(inside: bool) -> dict[str, Any]:
            if not inside:
                signal.setitimer(signal.ITIMER_PROF, _IMPORTS + 3 * together)
                return {"failed": self._afresh(list(tests))}
            for item, following in _followed([self.items[name] for name in tests]):
                signal.setitimer(signal.ITIMER_PROF, _SPARE + 3 * tests[item.nodeid])
                self._run(item, following)
                if self._first.test:
                    break
            return {"failed": self._first.test}

        found, hung = self._changed(change, work, _WAITING * (together + _IMPORTS))
        return Outcome((found or {"failed": "(the process ended)"})["failed"], hung)

    def answer(
        self, call: Callable[[], dict[str, Any]], change: tuple[str, str], seconds: float
    ) -> dict[str, Any] | None:
        """What a call gives after a change of a file, as `outcome` takes it; None where it has no
        end within so many seconds of processor time. The call imports the packages itself.
        """

        def work(inside: bool) -> dict[str, Any]:
            signal.setitimer(signal.ITIMER_PROF, seconds)
            if not inside:
                self._forget()
            return call()

        return self._changed(change, work, _WAITING * seconds)[0]

    def _changed(
        self, change: tuple[str, str], work: Callable[[bool], dict[str, Any]], seconds: float
    ) -> tuple[dict[str, Any] | None, bool]:
        """Do some work in a fork after a change of a file; it is told whether the change is inside
        functions, and done.
        """
        file, text = change
        path = self.folder / file
        sound = path.read_text(encoding="utf-8")
        codes = new_code(sound, text, str(path))
        if codes is not None and not in_place(codes, self._functions):
            codes = None

        def changed() -> dict[str, Any]:
            for place, code in (codes or {}).items():
                for function in self._functions[place]:
                    function.__code__ = code
            return work(codes is not None)

        path.write_text(text, encoding="utf-8")
        try:
            return _forked(self.folder, changed, seconds)
        finally:
            path.write_text(sound, encoding="utf-8")

    def _run(self, item: pytest.Item, following: pytest.Item | None) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def _afresh(self, names: Sequence[str]) -> str:
        """The first failure of a session that imports the packages and the tests once more."""
        self._forget()
        first = _FirstFailure()
        code = pytest.main([*_options(self.folder / "again"), "-x", *names], plugins=[first])
        return first.test or ("" if code == 0 else f"(exit code {int(code)})")

    def _forget(self) -> None:
        """Make the next import of the packages or of the tests a new one."""
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(str(self.folder)):
                del sys.modules[name]


class _FirstFailure:
    """A plugin that keeps the name of the first test that fails."""

    def __init__(self) -> None:
        self.test = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.test = self.test or report.nodeid


def new_code(sound: str, changed: str, path: str) -> dict[Place, CodeType] | None:
    """The code of each function that a change of a file's text concerns, by the file, the name and
    the first line that it has in the sound text; None where more than functions is changed.
    """
    found: dict[Place, CodeType] = {}

    def inside(old: CodeType, new: CodeType) -> bool:
        """The two differ at most in functions, which were put down."""
        if not _alike(old, new):
            return False
        for one, other in zip(_parts(old), _parts(new), strict=True):
            if _same(one, other):
                continue
            if one.co_flags & inspect.CO_OPTIMIZED:  # a function, not the body of a class
                found[path, one.co_qualname, one.co_firstlineno] = other
            elif not inside(one, other):
                return False
        return True

    if inside(compile(sound, path, "exec"), compile(changed, path, "exec")):
        return found
    return None


def in_place(codes: Collection[Place], there: Collection[Place]) -> bool:
    """Functions at these places can be given other code where they are: they are there (their names
    were not given to others), and none has made a function that is there. A decorator has: what it
    made keeps the code of which it was made.
    """
    made = any(
        file == other and name.startswith(f"{maker}.<locals>.")
        for other, maker, _ in codes
        for file, name, _ in there
    )
    return set(codes) <= set(there) and not made


def _parts(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def _alike(old: CodeType, new: CodeType) -> bool:
    """Two codes are the same but for their lines and the codes inside them."""

    def plain(code: CodeType) -> list[object]:
        constants = [
            None if isinstance(each, CodeType) else (type(each), repr(each))
            for each in code.co_consts
        ]
        names = [code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars]
        return [code.co_name, code.co_code, constants, names, code.co_flags]

    return plain(old) == plain(new)


def _same(old: CodeType, new: CodeType) -> bool:
    return _alike(old, new) and all(map(_same, _parts(old), _parts(new)))


def _options(folder: Path) -> list[str]:
    forks = folder / "forks"
    return ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={forks}"]


def _measures_time(item: pytest.Item) -> bool:
    """The test reads a clock: on a busy machine it would fail for the sound code, too."""
    function = getattr(item, "function", None)
    return function is not None and bool(_CLOCK.search(inspect.getsource(function)))


def _followed(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    return zip(items, [*items[1:], None], strict=True)


def _processor_time() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


@contextlib.contextmanager
def _tracer(folder: Path, files: Sequence[str]) -> Iterator[set[tuple[str, int]]]:
    """The lines of these files that run meanwhile, in all threads."""
    wanted = {str(folder / file): file for file in files}
    lines: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        file = wanted.get(frame.f_code.co_filename)
        if file is None:
            return None
        lines.add((file, frame.f_lineno))
        return trace

    sys.settrace(trace)
    threading.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]


def _by_file(lines: set[tuple[str, int]]) -> Lines:
    found: Lines = {}
    for file, line in sorted(lines):
        found.setdefault(file, []).append(line)
    return found


def _forked(
    folder: Path, work: Callable[[], dict[str, Any]], seconds: float | None
) -> tuple[dict[str, Any] | None, bool]:
    """The findings of `work` in a fork, None where it has none; and True if its time ran out."""
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            os.setsid()
            if seconds is not None:
                pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
                here = pages * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (here + _MEMORY, here + _MEMORY))
            silent = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(silent, stream)
            found = json.dumps(work())
            answer.write_text(found, encoding="utf-8")
        finally:
            os._exit(0)
    ended = _wait(child, seconds)
    shutil.rmtree(folder / "forks", ignore_errors=True)
    if answer.exists():
        return json.loads(answer.read_text(encoding="utf-8")), False
    return None, ended in (None, -signal.SIGPROF)


def _wait(child: int, seconds: float | None) -> int | None:
    """The exit code of a process; None where it does not end in time. Its children end with it."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        late = deadline is not None and time.monotonic() > deadline
        if done or late:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        if done:
            return os.waitstatus_to_exitcode(status)
        if late:
            os.waitpid(child, 0)
            return None
        time.sleep(0.005)
