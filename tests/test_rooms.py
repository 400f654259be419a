"""Which room may import which: the house of the packages, held to its drawing.

Run as a program it prints the rooms, floors and arrows: ``python tests/test_rooms.py``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).parents[1]

FLOORS: dict[str, tuple[tuple[str, ...], ...]] = {
    "pgmkit": (
        ("errors",),
        ("runtime",),
        ("domain", "linear"),
        ("factor", "queries", "structural_zeros", "graphs"),
        ("measurement", "contraction", "records"),
        ("total", "inference", "least_squares"),
        ("losses", "model"),
        ("conditioning", "regions"),
        ("estimation", "approximate"),
        ("factor_graph", "uncertainty"),
        ("tables", "uai", "bif"),
    ),
    "mechanisms": (
        ("queries", "settings", "registry"),
        ("workload",),
        ("privacy",),
        ("release",),
        ("families",),
        ("strategies",),
        ("rounds",),
        ("algorithms",),
        ("dispatch", "datasets"),
        ("synthesis",),
        ("linked",),
        ("cli",),
    ),
}
"""The rooms of both packages, the lowest floor first; a room imports from floors below only.

`CONTRIBUTING.md` shows the same drawing.
"""

HEIGHT = {
    (package, room): floor
    for package, floors in FLOORS.items()
    for floor, rooms in enumerate(floors)
    for room in rooms
}


def modules(package: str) -> dict[str, Path]:
    """Every module of a package by its dotted name."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules("pgmkit") | modules("mechanisms")


def imported(path: Path) -> Iterator[str]:
    """What a file imports, for types or inside functions too: each module's name, with that of the
    name imported from it.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def imports() -> dict[str, list[str]]:
    """What every module of both packages imports."""
    return {name: list(imported(path)) for name, path in MODULES.items()}


@cache
def arrows() -> nx.DiGraph:
    """The imports of the project's modules by each other."""
    graph = nx.DiGraph()
    for name, found in imports().items():
        for inner in found:
            target = inner if inner in MODULES else inner.rpartition(".")[0]
            if target in MODULES and target != name:
                graph.add_edge(name, target)
    return graph


def room(module: str) -> tuple[str, str]:
    """The package and its folder or named module; an algorithm's module is in "algorithms"."""
    package, part = module.split(".")[:2]
    if package == "mechanisms" and (package, part) not in HEIGHT:
        part = "algorithms"
    return package, part


def crossing() -> list[tuple[str, str]]:
    """The imports between rooms of one package."""
    return [
        (source, target)
        for source, target in arrows().edges
        if "." in source and "." in target and source.split(".")[0] == target.split(".")[0]
        if room(source) != room(target)
    ]


def test_the_engine_knows_neither_mechanisms_nor_tables() -> None:
    for source, target in arrows().edges:
        if source.startswith("pgmkit"):
            assert not target.startswith("mechanisms"), f"{source} imports {target}"
        if source.startswith("pgmkit") and not source.startswith("pgmkit.tables"):
            assert not target.startswith("pgmkit.tables"), f"{source} imports {target}"


def test_nothing_imports_the_benchmarks_or_the_tests() -> None:
    for name, found in imports().items():
        assert not {each.split(".")[0] for each in found} & {"benchmarks", "tests"}, name


def test_imports_between_rooms_go_down() -> None:
    upward = [
        f"{source} -> {target}"
        for source, target in crossing()
        if HEIGHT[room(source)] <= HEIGHT[room(target)]
    ]
    assert not upward, "\n".join(upward)


def test_the_drawing_is_shown_to_contributors() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for package, floors in FLOORS.items():
        assert drawing(floors) in text, f"the drawing of {package} is not that of the test"


def drawing(floors: tuple[tuple[str, ...], ...]) -> str:
    """One line a floor, the highest first."""
    return "\n".join(" ".join(rooms) for rooms in reversed(floors))


def test_no_modules_import_each_other_in_a_circle() -> None:
    circles = [sorted(part) for part in nx.strongly_connected_components(arrows()) if len(part) > 1]
    assert not circles, circles


def test_tables_say_nothing_about_privacy() -> None:
    for name, path in MODULES.items():
        if name.startswith("pgmkit"):
            text = path.read_text().lower()
            for word in ("privacy", "private data", "epsilon of", "curator"):
                assert word not in text, f"{name} says {word!r}"


def main() -> None:
    """Print the house: rooms by floor with their modules, and how many imports cross rooms."""
    for package, floors in FLOORS.items():
        for each in (room for rooms in reversed(floors) for room in rooms):
            members = [n for n in MODULES if "." in n and room(n) == (package, each)]
            print(f"{each:<16} {len(members):>2} modules")
        between = {(room(a), room(b)) for a, b in crossing() if room(a)[0] == package}
        print(f"{package}: {len(floors)} floors, {len(between)} arrows between rooms\n")


if __name__ == "__main__":
    main()
