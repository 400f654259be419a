"""The `pgmkit` command in forks of a process that has loaded both packages and what they need.

The documentation's pages run some forty commands, most of which would load torch, scipy, opendp and
networkx: two to three seconds of processor time each. A fork has the arguments, folder, environment
and streams of the command in its place; what is optional it loads itself.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({address!r})
    said = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(line, [said[:1]], [0, 1, 2])
    line.sendall(said[1:])
    line.shutdown(socket.SHUT_WR)
    code = line.recv(1)
sys.exit(code[0] if code else 1)
"""


@contextmanager
def warm_command() -> Iterator[str]:
    """Yield a folder with a `pgmkit` command, which answers as long as the context lasts."""
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder) / "socket")
        command = Path(folder) / "pgmkit"
        command.write_text(_CLIENT.format(python=sys.executable, address=address))
        command.chmod(0o755)
        with subprocess.Popen(
            [sys.executable, "-P", __file__, address], stdout=subprocess.PIPE
        ) as server:
            assert server.stdout is not None and server.stdout.readline(), "no process answers"
            try:
                yield folder
            finally:
                server.kill()


def _serve(address: str) -> None:
    import networkx  # noqa: F401
    import opendp.prelude  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch  # noqa: F401

    import mechanisms
    import pgmkit
    from mechanisms.cli import main

    for package in (pgmkit, mechanisms):
        for name in package.__all__:
            getattr(package, name)
    for entry in mechanisms.MECHANISMS.values():
        entry.load()

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        print("ready", flush=True)
        while True:
            line, _ = listening.accept()
            with line:
                if os.fork() == 0:
                    listening.close()
                    line.sendall(bytes([_run(line, main)]))
                    os._exit(0)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _run(line: socket.socket, main: Callable[[], None]) -> int:
    """Run the command that the line asks for, with its streams, and return the exit code."""
    said, streams, *_ = socket.recv_fds(line, 1, 3)
    while part := line.recv(1 << 16):
        said += part
    arguments, folder, environment = json.loads(said)
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["pgmkit", *arguments]
    code: object = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    _serve(sys.argv[1])
