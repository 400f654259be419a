"""Every Python example of README runs, in order, in one session."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

README = Path(__file__).parent.parent / "README.md"


def test_the_python_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    age = rng.integers(16, 101, 2000)
    sex = rng.choice(["F", "M"], 2000)
    frame = pa.table({"age": age, "sex": sex, "income": np.minimum(age, 99)})
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 3
    session: dict[str, object] = {"frame": frame}
    for block in blocks:
        exec(block, session)
    shown = capsys.readouterr().out
    assert "cumulative epsilon" in shown and "stderr" in shown and "up to" in shown
    assert session["records"].num_rows == 1000
    assert set(session["women"]["sex"].to_pylist()) == {"F"}
