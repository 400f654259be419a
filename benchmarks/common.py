"""What every benchmark needs: fresh processes, the machine's name, tables, JSON files."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


def machine() -> dict[str, Any]:
    """The processor, the memory and the versions the figures depend on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"


def code_state() -> str:
    """A digest of the sources of the engine and the mechanisms: lines of other code are others'."""
    found = hashlib.sha256()
    for folder in ("pgmkit", "mechanisms"):
        for path in sorted((HERE.parent / folder).rglob("*.py")):
            found.update(str(path.relative_to(HERE.parent)).encode() + path.read_bytes())
    return found.hexdigest()[:10]


def peak_rss_mb() -> float:
    """Peak resident memory of this process in MB (1e6 bytes).

    VmHWM, because the ``ru_maxrss`` of a child starts at its parent's peak on Linux. As
    ``pgmkit.runtime.memory.peak``, but also where only a peer is installed.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def fresh_process(
    module: str,
    request: Mapping[str, Any],
    python: str = sys.executable,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Run ``python -m module REQUEST.json ANSWER.json`` and return the answer it wrote.

    Raises:
        SystemExit: the worker failed; the message carries the end of what it said.
        subprocess.TimeoutExpired: it took longer than ``timeout`` seconds, and was ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        question.write_text(json.dumps(request))
        done = subprocess.run(
            [python, "-m", module, str(question), str(answer)],
            env=with_repository(),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
        if done.returncode != 0:
            raise SystemExit(
                f"{module} ended with {done.returncode} on {str(request)[:300]}:\n"
                f"{done.stderr[-3000:]}"
            )
        result: dict[str, Any] = json.loads(answer.read_text())
        return result


def within_cap(work: Callable[[], dict[str, Any]], cap: int) -> dict[str, Any]:
    """What `work` finds, or ``{"over": cap}`` where this process took more CPU seconds.

    Python's threads and the system's all count. The system ends a process that does not come back
    from a long call within a minute more.
    """

    def late(number: int, frame: object) -> None:
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)  # it comes again every second
        raise TimeoutError

    signal.signal(signal.SIGXCPU, late)
    resource.setrlimit(resource.RLIMIT_CPU, (cap, cap + 60))
    try:
        return work()
    except TimeoutError:
        return {"over": cap}


def with_repository() -> dict[str, str]:
    """The environment in which another interpreter, from any folder, finds this repository."""
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def serve(answer: Any) -> None:
    """The other half of ``fresh_process``: ``answer`` maps the request to what is written back.

    With no request, or ``--help``, it prints what the worker is for.
    """
    if len(sys.argv) != 3:
        print(sys.modules["__main__"].__doc__)
        return
    request = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps(answer(request)))


def command_line(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is a module's whole docstring, line by line as it is written."""
    shape = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=doc, formatter_class=shape)


def parse_sides(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Add the options about the peer, and parse the command line."""
    parser.add_argument(
        "--peer",
        choices=("run", "cached", "skip"),
        default="run",
        help="run the peer beside pgmkit, take its figures of an earlier run, or leave it out",
    )
    parser.add_argument(
        "--peer-python",
        default=sys.executable,
        help="the interpreter that has mbi (by default this one, with the extra 'bench')",
    )
    return parser.parse_args()


def read_results(name: str) -> dict[str, Any]:
    """What ``results/NAME.json`` holds, or nothing."""
    path = RESULTS / f"{name}.json"
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return content


def write_results(name: str, content: Mapping[str, Any]) -> Path:
    """Write ``results/NAME.json`` through a temporary file."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)
    return path


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A markdown table; floats to four significant digits, ``None`` as a dash."""
    texts = [list(header), *[[_cell(value) for value in row] for row in rows]]
    widths = [max(len(row[j]) for row in texts) for j in range(len(header))]
    lines = [
        "| " + " | ".join(t.ljust(w) for t, w in zip(r, widths, strict=True)) + " |" for r in texts
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return str(value)
