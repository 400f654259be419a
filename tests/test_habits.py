"""The files around the code agree with it: versions, spelling, hooks, the workflow."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PINNED = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_one() -> None:
    cited = yaml.safe_load(read("CITATION.cff"))
    heading = re.search(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", read("CHANGELOG.md"), re.MULTILINE)
    assert heading is not None
    assert cited["version"] == heading[1] == version("pgmkit")
    assert str(cited["date-released"]) == heading[2]


def test_hooks_are_those_of_the_constraints() -> None:
    hooks = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"][0]["hooks"]
    assert {hook["id"] for hook in hooks} == {"ruff-format", "ruff", "codespell", "mypy"}
    for hook in hooks:
        for wanted in hook.get("additional_dependencies", []):
            name, _, number = wanted.partition("==")
            assert PINNED[name] == number
    pytest.importorskip("pre_commit", reason="pre-commit is not installed; pip install '.[dev]'")
    check = [sys.executable, "-m", "pre_commit", "validate-config", ".pre-commit-config.yaml"]
    assert subprocess.run(check, cwd=ROOT).returncode == 0


def test_every_requirement_has_a_version_in_the_constraints() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(each for extra in extras for each in extra)]
    known = {name.lower().replace("_", "-") for name in PINNED}
    for requirement in wanted:
        name = re.split(r"[<>=\[]", requirement)[0]
        assert name.lower().replace("_", "-") in known, requirement


def test_nothing_is_misspelt() -> None:
    pytest.importorskip("codespell_lib", reason="codespell is not installed; pip install '.[dev]'")
    tracked = ["pgmkit", "mechanisms", "docs", "examples", "tests", "README.md", "CHANGELOG.md"]
    done = subprocess.run(
        [sys.executable, "-m", "codespell_lib", *tracked, "CONTRIBUTING.md", "SECURITY.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_no_test_asserts_seconds() -> None:
    """A slower machine than the author's must pass; targets of speed stand in `benchmarks/`."""
    clock = re.compile(r"^ *assert .*\b(perf_counter|process_time|monotonic|time|times)\(", re.M)
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        assert not clock.search(file.read_text(encoding="utf-8")), file


def test_the_workflow_runs_the_gate() -> None:
    steps = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"]["gate"]["steps"]
    assert any(step.get("run") == ".ci/run" for step in steps)
    for template in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        assert yaml.safe_load(template.read_text())


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_to_files_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", read(name)):
        assert (ROOT / target).exists(), f"{name}: {target}"


def test_paragraphs_have_at_most_five_sentences() -> None:
    """A list, a table and an example are read item by item, so each of their lines counts alone."""
    texts = {str(p.relative_to(ROOT)): p.read_text() for p in sorted((ROOT / "docs").glob("*.md"))}
    texts |= {name: read(name) for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")}
    for path in [*ROOT.glob("pgmkit/**/*.py"), *ROOT.glob("mechanisms/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                named = f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'module')}"
                texts[named] = ast.get_docstring(node) or ""
    long = {}
    for name, text in texts.items():
        plain = re.sub(r"```.*?```|`[^`\n]*`|\bet al\.|\bi\.e\.", "", text, flags=re.DOTALL)
        paragraphs = re.split(r"\n\n|\n(?=[ >]*(?:[-|#*]|\d+\.|>>>|\w+:) ?)", plain)
        most = max(len(re.findall(r"[.!?](?=\s|$)", each)) for each in paragraphs)
        if most > 5:
            long[name] = most
    assert not long
