"""The notebooks in examples/ run from top to bottom, as scripts in an empty folder."""

from __future__ import annotations

import ast
import runpy
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
