"""Every block of the documentation runs; it builds without warnings."""

import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import blocks, run

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.stem)
def test_every_block_runs(page: Path) -> None:
    assert run(page) > 0


def test_it_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed; pip install '.[docs]'")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "tutorial" / "index.html").exists()
