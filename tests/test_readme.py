"""Every Python example of README runs, in order, in one session."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mechanisms.census import census
from pgmkit.table import write_csv

README = Path(__file__).parent.parent / "README.md"


def test_the_python_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv("people.csv", census(2000).project(["age", "sex", "income"]))
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 3
    session: dict[str, object] = {}
    for block in blocks:
        exec(block, session)
    assert "cumulative epsilon" in capsys.readouterr().out
    assert (tmp_path / "synth.csv").stat().st_size > 1000
