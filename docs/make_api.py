"""Write docs/api.md from the public names: `python docs/make_api.py`.

The names are those of `__all__` of the public modules; the heading of each follows from the module
that defines it. A test compares the page with what this program writes.
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).with_name("api.md")
PUBLIC = (
    "pgmkit",
    "mechanisms",
    "pgmkit.queries",
    "pgmkit.losses",
    "pgmkit.uai",
    "pgmkit.bif",
    "mechanisms.settings",
    "mechanisms.datasets.census",
)
"""The modules whose `__all__` is public; the first two gather names of others."""
HEADINGS = {
    "pgmkit": "Models and estimation",
    "pgmkit.tables": "Tables and schemas",
    "pgmkit.uncertainty": "Error bars",
    "pgmkit.errors": "Errors and warnings",
    "pgmkit.queries": "Factored queries: `pgmkit.queries`",
    "pgmkit.losses": "Losses: `pgmkit.losses`",
    "mechanisms.synthesis": "From a data frame to a release",
    "mechanisms.linked": "Linked tables",
    "mechanisms.release": "Releases",
    "mechanisms.dispatch": "Running a mechanism",
    "mechanisms.registry": "Running a mechanism",
    "mechanisms.workload": "Workloads and queries",
    "mechanisms.queries": "Workloads and queries",
    "mechanisms": "Mechanisms",
    "mechanisms.privacy": "Budget, ledger and Curator",
    "mechanisms.rounds": "The loop of the adaptive mechanisms",
    "pgmkit.uai": "Factor graphs in files: `pgmkit.uai`, `pgmkit.bif`",
    "pgmkit.bif": "Factor graphs in files: `pgmkit.uai`, `pgmkit.bif`",
    "mechanisms.settings": "Settings of one's own mechanism: `mechanisms.settings`",
    "mechanisms.datasets.census": "Built-in data: `mechanisms.datasets.census`",
}
"""Headings in the page's order, by the longest prefix of the defining module."""


def defined_in(package: ModuleType, name: str) -> str:
    """The module from which the package's stub imports a public name."""
    stub = Path(str(package.__file__)).with_suffix(".pyi")
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return f"{package.__name__}.{node.module}"
    raise LookupError(f"{name} is not imported in {stub}")


def room(module: str) -> str:
    """The longest prefix of a module that has a heading."""
    parts = module.split(".")
    while ".".join(parts) not in HEADINGS:
        parts.pop()
    return ".".join(parts)


def entries() -> dict[str, list[str]]:
    """The page's entries by heading."""
    found: dict[str, list[str]] = {heading: [] for heading in HEADINGS.values()}
    for package_name in PUBLIC[:2]:
        package = import_module(package_name)
        by_module: dict[str, list[str]] = {}
        for name in package.__all__:
            if not isinstance(getattr(package, name), ModuleType):
                by_module.setdefault(defined_in(package, name), []).append(name)
        for module, names in sorted(by_module.items()):
            heading = HEADINGS[room(module)]
            if heading == HEADINGS["mechanisms"]:
                # An algorithm's module says what it does; its settings follow.
                found[heading].append(_module(module, names))
            elif module not in PUBLIC:
                found[heading] += [f"::: {package_name}.{name}" for name in names]
    for module in PUBLIC[2:]:
        found[HEADINGS[module]].append(_module(module, import_module(module).__all__))
    return found


def _module(module: str, names: list[str]) -> str:
    listed = ", ".join(names)
    return f"::: {module}\n    options: {{members: [{listed}], show_root_heading: false}}"


def page() -> str:
    """The page's text."""
    text = [
        "# API reference",
        "Everything on this page is public: it is imported from `pgmkit`, `mechanisms`, or the "
        "module that the heading names. Other module paths may change between versions.",
    ]
    for heading, listed in entries().items():
        text += [f"## {heading}", *listed]
    return "\n\n".join(text) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}: {page().count(':::')} entries\n")
