"""Compile the Triton kernels ahead of time for a GPU that need not be there.

``python tests/compile_kernels.py`` prints one line of JSON a kernel and format: its registers and
the bytes that it spills from them (ptxas of Triton's wheel, compute capability 9.0).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from pgmkit.contraction.kernels import cuda, cuda_steps

CAPABILITY = 90
POINTERS = (
    dict.fromkeys(("starts", "steps_table", "places", "tiles"), "*i64")
    | dict.fromkeys(("peaks", "sums", "shift", "weights", "clip"), "*fp64")
    | {"chosen": "*i1"}
)
"""Arguments that point to numbers of one format; ``TABLES`` point to the tables' own."""
TABLES = {
    "left", "right", "out", "values", "shifts", "table", "seen", "factors", "target", "slopes",
    "new", "old", "own", "other",
}  # fmt: skip
TILES = [(1, 1024, 1), (1, 16, 64), (8, 32, 4)]
"""Rows, terms and columns of tiles that ``fold`` and ``spread`` may choose."""


def kernels() -> dict[str, JITFunction[Any]]:
    """All kernels by name."""
    found = vars(cuda) | vars(cuda_steps)
    return {name: each for name, each in found.items() if isinstance(each, JITFunction)}


def constants_of(kernel: JITFunction[Any]) -> list[dict[str, int]]:
    """What the kernel may be compiled for."""
    names = [name for name in kernel.arg_names if name.isupper()]
    if names == ["ROWS", "TERMS", "COLUMNS"]:
        return [dict(zip(names, tile, strict=True)) for tile in TILES]
    if names == ["LOG", "TILE"]:
        return [{"LOG": log, "TILE": cuda.TILE} for log in (False, True)]
    return [{name: getattr(cuda, name) for name in names}]


def compiled(kernel: JITFunction[Any], table: str, constants: dict[str, int]) -> Any:
    """The kernel for tables of one format, all sizes unknown."""
    types = {name: POINTERS.get(name, "*" + table if name in TABLES else "i64")
             for name in kernel.arg_names}  # fmt: skip
    source = ASTSource(kernel, types | dict.fromkeys(constants, "constexpr"), constants)
    target = GPUTarget("cuda", CAPABILITY, 32)
    return triton.compile(source, target=target, options={"num_warps": cuda.WARPS})


def resources(ptx: str) -> dict[str, int]:
    """What ptxas says of one kernel."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.ptx")
        file.write_text(ptx)
        command = [get_ptxas(CAPABILITY).path, "-v", f"-arch=sm_{CAPABILITY}a", str(file)]
        done = subprocess.run(
            [*command, "-o", f"{folder}/kernel.cubin"], capture_output=True, text=True, check=True
        )
    found = {
        "registers": re.search(r"Used (\d+) registers", done.stderr),
        "stored": re.search(r"(\d+) bytes spill stores", done.stderr),
        "loaded": re.search(r"(\d+) bytes spill loads", done.stderr),
    }
    return {name: int(match[1]) for name, match in found.items() if match}


def report() -> Iterator[dict[str, Any]]:
    """One record for every kernel and format of tables."""
    for name, kernel in kernels().items():
        for table, constants in product(("fp64", "fp32"), constants_of(kernel)):
            made = compiled(kernel, table, constants)
            yield {
                "kernel": name,
                "table": table,
                **constants,
                "specialised": [
                    each.name
                    for each in kernel.params
                    if not (each.do_not_specialize or each.is_constexpr)
                    and each.name not in {*POINTERS, *TABLES}
                ],
                **resources(made.asm["ptx"]),
            }


if __name__ == "__main__":
    for record in report():
        json.dump(record, sys.stdout)
        print(flush=True)
