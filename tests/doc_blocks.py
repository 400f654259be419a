"""Run every block of the documentation's pages, as a reader would: each page in an empty folder.

    python tests/doc_blocks.py docs            # with the packages that are installed

Blocks marked ``python`` run in order in one session, those marked ``bash`` in a shell that finds
the `pgmkit` command of the same environment. The first failure stops with the block and its error.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    """The (language, text) of each block that can run."""
    return [(found[1], found[2]) for found in _BLOCK.finditer(page.read_text(encoding="utf-8"))]


def run(page: Path) -> int:
    """Run a page's blocks in a new folder; their number."""
    found = blocks(page)
    session: dict[str, object] = {"__name__": "page"}
    home = os.getcwd()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for language, text in found:
                if language == "python":
                    exec(compile(text, f"{page.name}", "exec"), session)
                else:
                    subprocess.run(
                        ["bash", "-euo", "pipefail", "-c", text],
                        check=True,
                        env={**os.environ, "PATH": path},
                        stdout=subprocess.DEVNULL,
                    )
        finally:
            os.chdir(home)
    return len(found)


if __name__ == "__main__":
    for each in sorted(Path(sys.argv[1]).resolve().glob("*.md")):
        print(f"{each.name}: {run(each)} blocks", flush=True)
