"""A hook of mkdocs: what each block showed when outputs were recorded."""

from __future__ import annotations

import sys
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
WIDTH = 80  # what fits beside the navigation of a window of 1280 pixels
doc_blocks = import_module("doc_blocks")


def wrapped(line: str) -> str:
    """The line, broken where it is prose and not a line of a table."""
    prose = "  " not in line.strip()
    return textwrap.fill(line, WIDTH, break_long_words=False) if prose and line else line


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """The page with its blocks' outputs."""
    outputs = iter(doc_blocks.recorded(Path(page.file.abs_src_path)))

    def shown(block: str) -> str:
        output = next(outputs, None)
        if output is None:
            return block
        if output.text:
            lines = "\n".join(map(wrapped, output.text.splitlines()))
            block += f'\n\n```text {{ .output title="prints" }}\n{lines}\n```'
        return f'{block}\n\n<div class="output">{output.html}</div>' if output.html else block

    return doc_blocks.BLOCK.sub(lambda found: shown(found[0]), doc_blocks.included(markdown))
