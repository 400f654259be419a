"""A hook of mkdocs: after each block that runs, what it showed when outputs were recorded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import doc_blocks


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """The page with its blocks' outputs."""
    outputs = iter(doc_blocks.recorded(Path(page.file.abs_src_path)))

    def shown(block: str) -> str:
        output = next(outputs, None)
        if output is None:
            return block
        if output.text:
            block += f'\n\n```text {{ .output title="prints" }}\n{output.text}\n```'
        return f'{block}\n\n<div class="output">{output.html}</div>' if output.html else block

    return doc_blocks.BLOCK.sub(lambda found: shown(found[0]), doc_blocks.included(markdown))
