"""What a user sees first: names where the documentation says, completion, versions, types."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import sysconfig
import venv
from importlib import import_module
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from doc_blocks import blocks

ROOT = Path(__file__).parent.parent


def make_api() -> ModuleType:
    """The program that writes the reference."""
    spec = spec_from_file_location("make_api", ROOT / "docs" / "make_api.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


API = make_api()


@pytest.mark.parametrize("package", ["pgmkit", "mechanisms"])
def test_names_complete_and_resolve_without_importing_everything(package: str) -> None:
    module = import_module(package)
    assert set(module.__all__) <= set(dir(module))
    assert all(hasattr(module, name) for name in module.__all__)
    assert module.__version__ == version("pgmkit")
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = module.nothing_like_it
    light = f"import sys, {package}; dir({package}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", light], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("LinearMeasurement", "Measurement"), ("VariableElimination", "FactorGraph.posterior")],
)
def test_a_class_of_another_package_is_refused_with_what_takes_its_place(
    theirs: str, ours: str
) -> None:
    with pytest.raises(ImportError, match=f"no {theirs}; use {ours} "):
        exec(f"from pgmkit import {theirs}")
    exec(f"assert not hasattr(pgmkit, {theirs!r})", {"pgmkit": import_module("pgmkit")})


def test_what_takes_the_place_of_another_class_is_there() -> None:
    source = (ROOT / "pgmkit" / "__init__.py").read_text(encoding="utf-8")
    targets = re.findall(r'^        "([\w.]+)": ', source, re.MULTILINE)
    assert len(targets) == 7
    for target in targets:
        own, _, name = target.rpartition(".")
        if own == "FactorGraph":
            assert hasattr(import_module("pgmkit").FactorGraph, name)
        else:
            assert hasattr(import_module(own or "pgmkit"), name)


def test_every_settings_class_is_exported_and_its_mechanism_is_on_the_page() -> None:
    mechanisms = import_module("mechanisms")
    page = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8")
    for entry in mechanisms.MECHANISMS.values():
        if entry.module.startswith("mechanisms."):
            assert getattr(mechanisms, entry.settings) is entry.load()[1]
            assert f"`{entry.name}`" in page


def test_the_reference_is_what_the_public_names_give() -> None:
    written = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert written == API.page(), "run python docs/make_api.py"
    for module in API.PUBLIC:
        for name in import_module(module).__all__:
            if not isinstance(getattr(import_module(module), name), ModuleType):
                assert re.search(rf"(\.|\[|, ){name}\b", written), f"{module}.{name}"


def python_of_the_documentation() -> list[tuple[str, str]]:
    """(where, source) of everything that shows a user how it is done."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    shown = [
        (page.name, block)
        for page in pages
        for language, block in blocks(page)
        if language == "python"
    ]
    scripts = sorted((ROOT / "examples").glob("*.py"))
    return shown + [(script.name, script.read_text(encoding="utf-8")) for script in scripts]


def test_the_documentation_imports_public_names_only() -> None:
    found = 0
    for where, source in python_of_the_documentation():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith(
                ("pgmkit", "mechanisms")
            ):
                found += 1
                assert node.module in API.PUBLIC, f"{where} imports from {node.module}"
                for alias in node.names:
                    assert alias.name in import_module(node.module).__all__, (where, alias.name)
    assert found > 10


USER = """
from pgmkit import Domain, Measurement, Schema, error_bars, estimate, losses
from mechanisms import Aim, k_way, run, synthesize

domain = Domain({"a": 2})
model = estimate(domain, [Measurement(("a",), [1.0, 2.0], 1.0)])
reveal_type(domain)
reveal_type(model)
reveal_type(error_bars(model, []))
reveal_type(Aim().model_mb)
reveal_type(k_way(domain, 1))
reveal_type(run)
reveal_type(synthesize)
reveal_type(Schema)
reveal_type(losses.Huber())
estimate(domain, "no measurements")
domain.no_such_thing
"""


def test_a_users_type_checker_sees_types(tmp_path: Path) -> None:
    """mypy on a user's file, with the packages in an environment's site-packages as pip puts them
    there: types, and errors where there are some."""
    pytest.importorskip("mypy", reason="mypy is not installed; pip install '.[dev]'")
    home = tmp_path / "environment"
    venv.create(home, with_pip=False)
    site = next(home.glob("lib/python*/site-packages"))
    paths = [str(ROOT), sysconfig.get_path("purelib")]
    (site / "installed.pth").write_text("\n".join(paths) + "\n")
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\ncache_dir = /dev/null\n"
        # What no public name is typed by; to read pyarrow's types took half of the time.
        "[mypy-torch.*,opendp.*,networkx.*,scipy.*,pyarrow.*,narwhals.*,click.*,pandas.*,polars.*,"
        "matplotlib.*,yaml.*]\nignore_missing_imports = true\n"
        "follow_imports = skip\n"
    )
    python = str(home / "bin" / "python")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", python, "user.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    revealed = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert len(revealed) == 9, done.stdout + done.stderr
    assert not [shown for shown in revealed if shown in ("Any", "builtins.object")]
    assert revealed[0] == "pgmkit.domain.Domain" and revealed[1] == "pgmkit.model.GraphicalModel"
    assert revealed[3] == "float" or revealed[3] == "builtins.float"
    assert "arg-type" in done.stdout and '"Domain" has no attribute "no_such_thing"' in done.stdout


def test_both_packages_ship_the_marker_of_types() -> None:
    for package in ("pgmkit", "mechanisms"):
        assert (ROOT / package / "py.typed").is_file()
