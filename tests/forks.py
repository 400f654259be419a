"""Programs in forks of the process that runs the tests, which has loaded their libraries already.

A fresh process takes one to three seconds of processor time for them. A fork has streams, signals
and an exit code of its own; where what a program loads, or when, is tested, it needs a fresh one.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn


def run_and_exit(program: Callable[[], object]) -> NoReturn:
    """Run a program with the file descriptors 0, 1 and 2 and end the process, which is a fork."""
    code = 1
    try:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
        program()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


class Fork:
    """A program in a fork, with pipes for what it reads and prints.

    Attributes:
        pid: The number of its process.
        stdin: What is written here it reads.
        stdout: What it prints is read here.
    """

    def __init__(self, program: Callable[[], object]) -> None:
        read_by_it, written_here = os.pipe()
        read_here, written_by_it = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(read_by_it, 0)
            os.dup2(written_by_it, 1)
            for end in (read_by_it, written_here, read_here, written_by_it):
                os.close(end)
            run_and_exit(program)
        os.close(read_by_it)
        os.close(written_by_it)
        self.stdin = os.fdopen(written_here, "w", encoding="utf-8")
        self.stdout = os.fdopen(read_here, encoding="utf-8")

    def end(self) -> tuple[str, int]:
        """Wait for its end, and return the rest of what it printed and its exit code."""
        with self.stdin, self.stdout:
            said = self.stdout.read()
        return said, os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
