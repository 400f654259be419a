"""Every block of the documentation runs and shows what the site says, which builds cleanly."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import Output, blocks, differences, recorded, run, source

from mechanisms.registry import MECHANISMS

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
RUNNING = [page for page in PAGES if blocks(page)]
WRITTEN = [*PAGES, *ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md")]


@pytest.mark.parametrize("page", RUNNING, ids=lambda p: p.stem)
def test_every_block_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The tests have registered the example that a page defines (conftest.py).
    monkeypatch.delitem(MECHANISMS._entries, "chain")
    assert not list(differences(run(page), recorded(page)))


@pytest.mark.parametrize("page", RUNNING, ids=lambda p: p.stem)
def test_the_recorded_outputs_are_of_these_blocks(page: Path) -> None:
    expected = [source(text) for _, text in blocks(page)]
    found = [output.source for output in recorded(page)]
    assert found == expected, "run python tests/doc_blocks.py docs --record"
    assert any(output.text or output.html for output in recorded(page))


@pytest.mark.parametrize("page", WRITTEN, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_rows_of_a_table_have_as_many_cells_as_its_header(page: Path) -> None:
    before, cells = "", 0
    for line in re.sub(r"(?s)^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M).split(
        "\n"
    ):
        found = len(re.findall(r"(?<!\\)\|", re.sub("`[^`]*`", "", line)))
        if line.startswith("|") and before.startswith("|"):
            assert found == cells, line
        before, cells = line, found


def test_a_changed_output_is_found() -> None:
    old = [Output("a", "count  share\n1  2"), Output("b", "")]
    assert not list(differences([Output("a", "count   share\n3.5  4"), old[1]], old))
    assert list(differences([Output("a", "error: no"), old[1]], old))
    assert list(differences([old[0], Output("b", "something")], old))
    assert list(differences([Output("c", old[0].text), old[1]], old))
    assert list(differences(old[:1], old))


def test_it_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed; pip install '.[docs]'")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
    done = subprocess.run(
        # What README and CONTRIBUTING say; "-q" would count fewer warnings.
        [sys.executable, "-m", "mkdocs", "build", "-d", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tutorial = (tmp_path / "site" / "tutorial" / "index.html").read_text(encoding="utf-8")
    assert 'class="output' in tutorial and "true median" in tutorial and "<svg" in tutorial
    assert '<span class="kn">from</span>' in tutorial  # colours
    own = (tmp_path / "site" / "own-mechanism" / "index.html").read_text(encoding="utf-8")
    assert "# include" not in own and "Chain" in own
