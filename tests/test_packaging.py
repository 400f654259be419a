"""What a package index and conda are told is what the project says of itself."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

import pgmkit
from mechanisms.cli import main
from pgmkit.errors import installing

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONDA_NAMES = {"torch": "pytorch"}


def test_the_version_has_one_place() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "pgmkit/__init__.py"
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == pgmkit.__version__


def test_the_command_says_its_version_where_it_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def not_installed(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", not_installed)
    done = CliRunner().invoke(main, ["--version"])
    assert done.exit_code == 0 and done.output.split()[-1] == pgmkit.__version__


def test_conda_has_the_same_requirements_and_version() -> None:
    recipe = yaml.safe_load((ROOT / ".ci" / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == pgmkit.__version__
    own = [f"python {PROJECT['project']['requires-python']}"]
    for requirement in PROJECT["project"]["dependencies"]:
        name, bound = re.fullmatch(r"([\w-]+)(>=[\d.]+)", requirement).groups()  # type: ignore[union-attr]
        own.append(f"{CONDA_NAMES.get(name, name)} {bound}")
    assert recipe["requirements"]["run"] == own
    assert (
        PROJECT["build-system"]["requires"][0].replace(">", " >")
        in (recipe["requirements"]["host"])
    )


def test_publishing_waits_for_a_person() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "publish.yml").read_text())
    assert workflow[True] == {"release": {"types": ["published"]}}  # YAML reads `on` as true
    upload = workflow["jobs"]["upload"]
    assert upload["environment"] == "pypi" and upload["permissions"] == {"id-token": "write"}
    assert workflow["permissions"] == {"contents": "read"}
    assert "twine check --strict dist/*" in [
        s.get("run") for s in workflow["jobs"]["build"]["steps"]
    ]


@pytest.mark.parametrize("extra", ["files", "networks", "report"])
def test_messages_name_extras_that_are_there(extra: str) -> None:
    assert extra in PROJECT["project"]["optional-dependencies"]
    assert f".[{extra}]" in installing(extra)


def test_the_extra_for_files_has_all_that_reads_and_writes_them() -> None:
    needed = set[str]()
    for path in (ROOT / "pgmkit" / "tables" / "files").glob("foreign*.py"):
        needed.update(re.findall(r"^ +import (\w+)", path.read_text(), re.MULTILINE))
    extra = PROJECT["project"]["optional-dependencies"]["files"]
    assert needed == {re.match(r"\w+", each)[0] for each in extra}  # type: ignore[index]


def test_nothing_installs_a_package_that_no_index_has() -> None:
    # README's commands make an environment in this folder, whose packages are others'.
    folders = ("pgmkit", "mechanisms", "tests", "benchmarks", "docs", "examples")
    scripts = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *scripts]
    named = [
        str(page)
        for page in pages
        if page.name != "CHANGELOG.md" and re.search(r"pip install '?pgmkit", page.read_text())
    ]
    assert named == [], named
