"""The first minutes on a GPU nobody here has met: what works, what it costs, where time goes.

    python -m benchmarks.first_contact [--out FILE] [--minutes 25] [--device cuda]
    python -m benchmarks.first_contact --device cpu --small      # that all of it runs

Steps go from the cheapest to the longest: versions; the kernels beside their reference, plainly and
under compute-sanitizer; an estimate of each problem beside the processor's; sums of a million
terms; a thousand models at once; a profile; then the works of ``benchmarks.gpu``, one by one. Each
is a process of its own that ends within eight minutes, and FILE (``results/first_contact.json``) is
written after each. A second run goes on where the first one stopped: it leaves out what has
succeeded with the same code on the same GPU.

Takes 6 (on an H200) CPU minutes.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import HERE, RESULTS, code_state, command_line, fresh_process, machine
from benchmarks.first_contact_steps import STEPS, known
from benchmarks.gpu import COPY_BYTES, works

LONGEST = 8 * 60.0
"""Seconds of one step: the commands of borrowed machines often end at ten minutes."""


def steps(device: str, small: bool) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Names, modules and requests of all steps, in order."""
    for name in STEPS:
        request = {"step": name, "device": device, "small": small}
        yield name, "benchmarks.first_contact_steps", request
    copied = COPY_BYTES // 16 if small else COPY_BYTES
    first = {"job": "copy_bandwidth", "bytes": copied}
    for name, request in {"copies": first, **works(small)}.items():
        if "name" in request and not known((request["name"],)):
            continue  # a stored problem, whose folder is not here
        yield name, "benchmarks.gpu_work", {**request, "device": device}


def run(module: str, request: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What a step found, or why it did not: a failure is a finding, too."""
    begun = time.perf_counter()
    try:
        found = fresh_process(module, request, timeout=seconds)
    except subprocess.TimeoutExpired:
        found = {"failed": f"took longer than {seconds:.0f} s"}
    except SystemExit as error:
        found = {"failed": str(error).replace(f"{HERE.parent}/", "")}
    return {**found, "wall_s": round(time.perf_counter() - begun, 2)}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "first_contact.json")
    parser.add_argument("--minutes", type=float, default=25.0, help="when to begin no more steps")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 and so on, or cpu")
    parser.add_argument("--small", action="store_true", help="little of everything, as a proof")
    arguments = parser.parse_args()
    begun = time.monotonic()
    kept = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    _, module, request = next(steps(arguments.device, arguments.small))
    first = run(module, request, 120.0)
    here = {"code": code_state(), "device": arguments.device, "card": first.get("card")}
    if any(kept.get(key) != value for key, value in here.items()):
        kept = {**here, "machine": machine(), "steps": {}}
    kept["steps"]["versions"] = first
    for name, module, request in steps(arguments.device, arguments.small):
        left = 60 * arguments.minutes - (time.monotonic() - begun)
        if left <= 0:
            print(f"{name}: not begun, the {arguments.minutes:g} minutes are over", flush=True)
            break
        if "failed" in kept["steps"].get(name, {"failed": "not run"}):
            kept["steps"][name] = run(module, request, min(LONGEST, max(left, 60.0)))
        print(name, json.dumps(kept["steps"][name])[:600], flush=True)
        arguments.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
