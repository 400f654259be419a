"""The notebooks in examples/ run from top to bottom, as scripts in an empty folder."""

from __future__ import annotations

import ast
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = sorted(p for p in EXAMPLES.glob("*.py") if p.read_text().startswith("# %% [markdown]"))


def test_there_are_three_notebooks() -> None:
    assert len(NOTEBOOKS) == 3


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_notebook_runs(
    notebook: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    ran = runpy.run_path(str(notebook), run_name="__main__")
    assert capsys.readouterr().out
    for cell in notebook.read_text().split("\n# %%\n")[1:]:
        last = ast.parse(cell.split("\n# %%")[0]).body[-1]
        # What a cell ends with is shown by a notebook.
        if isinstance(last, ast.Expr) and not isinstance(last.value, ast.Call):
            shown = eval(compile(ast.Expression(last.value), notebook.name, "eval"), ran)
            assert shown._repr_html_().startswith("<")


def test_the_script_for_r_runs(tmp_path: Path) -> None:
    script, page = EXAMPLES / "from_r.R", EXAMPLES.parent / "docs" / "from-r.md"
    assert script.read_text(encoding="utf-8") in page.read_text(encoding="utf-8")
    if shutil.which("Rscript") is None:
        pytest.skip("no R on this machine")
    command = tmp_path / "pgmkit"
    command.write_text(
        f"#!{sys.executable}\nfrom mechanisms.cli import main\nmain(prog_name='pgmkit')\n"
    )
    command.chmod(0o755)
    done = subprocess.run(
        ["Rscript", str(script)],
        cwd=tmp_path,
        env={**os.environ, "PGMKIT": str(command), "PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0-39g/day" in done.stdout and "stderr" in done.stdout
    rows = (tmp_path / "synthetic.csv").read_text().splitlines()
    assert rows[0] == "agegp,alcgp,tobgp" and len(rows) > 500
