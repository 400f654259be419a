"""Run every block of the documentation's pages, as a reader would: each page in an empty folder.

    python tests/doc_blocks.py docs             # with the packages that are installed
    python tests/doc_blocks.py docs --record    # and write what they show to docs/outputs

Blocks marked ``python`` run in order in one session, those marked ``bash`` in a shell that finds
the `pgmkit` command of the same environment; here each command is a fork of one process, whereas
`test_docs.py` starts the command itself. What a block prints, and the value of a last line
that is an expression, is its output; the site shows what was recorded (`docs/show_outputs.py`).
Noise differs from run to run: a recorded output must be of the same block, and begin alike but for
the digits. The first failure stops with the block and its error.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from warm_command import warm_command

BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INCLUDE = re.compile(r"^# include (\S+)$", re.MULTILINE)
_ROOT = Path(__file__).parent.parent
os.environ.setdefault("MPLBACKEND", "agg")
_MOST_LINES = 16


@dataclass(frozen=True)
class Output:
    """What a block showed: text, or the HTML of a value that a notebook would draw."""

    source: str
    text: str
    html: str = ""


def blocks(page: Path) -> list[tuple[str, str]]:
    """The (language, text) of each block that can run, included files in their place."""
    text = included(page.read_text(encoding="utf-8"))
    return [(found[1], found[2]) for found in BLOCK.finditer(text)]


def included(text: str) -> str:
    """The text with the files that it names by a line `# include PATH`."""
    return _INCLUDE.sub(
        lambda found: (_ROOT / found[1]).read_text(encoding="utf-8").rstrip("\n"), text
    )


def run(page: Path, commands: str = "") -> list[Output]:
    """Run a page's blocks in a new folder; what each showed. Commands in the folder `commands` come
    before those of the environment.
    """
    session = ModuleType("page")
    with _new_folder():
        sys.modules["page"] = session
        try:
            return [
                _python(page, text, session) if language == "python" else _bash(text, commands)
                for language, text in blocks(page)
            ]
        finally:
            del sys.modules["page"]


def differences(found: list[Output], recorded: list[Output]) -> Iterator[str]:
    """Where a recorded page is not of these blocks, or shows something else."""
    if [output.source for output in found] != [output.source for output in recorded]:
        yield "its blocks have changed since their outputs were recorded"
        return
    for i, (new, old) in enumerate(zip(found, recorded, strict=True), 1):
        if bool(new.html) != bool(old.html) or _beginning(new.text) != _beginning(old.text):
            yield f"block {i} shows {_beginning(new.text)!r}, recorded: {_beginning(old.text)!r}"


def recorded(page: Path) -> list[Output]:
    """What was recorded of a page."""
    file = page.parent / "outputs" / f"{page.stem}.json"
    stored = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return [Output(**each) for each in stored]


def record(page: Path, found: list[Output]) -> None:
    """Write what a page's blocks showed."""
    file = page.parent / "outputs" / f"{page.stem}.json"
    file.parent.mkdir(exist_ok=True)
    text = json.dumps([asdict(output) for output in found], indent=1, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


def source(text: str) -> str:
    """What tells one block from another."""
    return sha256(text.encode()).hexdigest()[:16]


@contextmanager
def _new_folder() -> Iterator[None]:
    home = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(home)


def _python(page: Path, text: str, session: ModuleType) -> Output:
    body = ast.parse(text, page.name).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    shown = io.StringIO()
    html = ""
    with redirect_stdout(shown):
        exec(compile(ast.Module(body, []), page.name, "exec"), vars(session))
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), page.name, "eval"), vars(session))
            if hasattr(value, "_repr_html_"):
                html = value._repr_html_()
            elif hasattr(value, "figure"):
                html = _drawing(value.figure)
            elif value is not None:
                print(repr(value))
    return Output(source(text), _cut(shown.getvalue()), html)


def _drawing(figure: Any) -> str:
    """A picture of matplotlib as SVG, whose black follows the page's colour of text."""
    import matplotlib as mpl

    drawn = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "0"}):
        figure.savefig(
            drawn, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None}
        )
    svg = drawn.getvalue()
    return svg[svg.index("<svg") :].replace("#000000", "currentColor")


def _bash(text: str, commands: str) -> Output:
    own = str(Path(sys.executable).parent)
    path = os.pathsep.join([*([commands] if commands else []), own, os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        check=True,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    return Output(source(text), _cut(done.stdout))


def _cut(text: str) -> str:
    lines = text.rstrip().splitlines()
    left_out = len(lines) - _MOST_LINES
    if left_out > 1:
        lines = [*lines[:_MOST_LINES], f"... {left_out} more lines"]
    return "\n".join(line.rstrip() for line in lines)


def _beginning(text: str) -> str:
    """How the first line begins, without numbers, which noise changes, and widths that follow.

    Of a table, the first column's name: others come only where error bars take under a second.
    """
    first = text.splitlines()[0].partition("  ")[0] if text else ""
    masked = re.sub(r"[\s,]", "", re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?", "#", first))
    return re.sub(r"#+", "#", masked)[:24]


def main(folder: Path, *, write: bool) -> int:
    """Run all pages; 1 where something is not as recorded."""
    wrong = 0
    with warm_command() as commands:
        for page in sorted(folder.resolve().glob("*.md")):
            found = run(page, commands)
            if write and found:
                record(page, found)
            print(f"{page.name}: {len(found)} blocks", flush=True)
            for difference in differences(found, recorded(page)):
                wrong = 1
                print(f"{page.name}: {difference}; python tests/doc_blocks.py docs --record")
    return wrong


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), write="--record" in sys.argv[2:]))
