"""Which room may import which: the house of the packages, held to its drawing.

Run as a program it prints the rooms, floors and arrows: ``python tests/test_rooms.py``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).parents[1]

FLOORS: tuple[tuple[str, ...], ...] = (
    ("queries", "settings", "workload", "registry"),
    ("privacy",),
    ("release",),
    ("families",),
    ("strategies",),
    ("rounds",),
    ("algorithms",),
    ("dispatch", "datasets"),
    ("synthesis",),
    ("cli",),
)
"""The rooms of `mechanisms`, the lowest floor first; a room imports from floors below only."""

HEIGHT = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def modules(package: str) -> dict[str, Path]:
    """Every module of a package by its dotted name."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules("pgmkit") | modules("mechanisms")


def imported(path: Path) -> Iterator[str]:
    """The modules of the project that a file imports, for types or inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in MODULES or node.module in MODULES:
                    yield inner if inner in MODULES else node.module


ARROWS = nx.DiGraph(
    (name, target) for name, path in MODULES.items() for target in imported(path) if target != name
)


def room(module: str) -> str:
    """A folder of `mechanisms`, one of its named modules, or an algorithm."""
    part = module.split(".")[1]
    return part if part in HEIGHT else "algorithms"


def test_the_engine_knows_neither_mechanisms_nor_tables() -> None:
    for source, target in ARROWS.edges:
        if source.startswith("pgmkit"):
            assert not target.startswith("mechanisms"), f"{source} imports {target}"
        if source.startswith("pgmkit") and not source.startswith("pgmkit.tables"):
            assert not target.startswith("pgmkit.tables"), f"{source} imports {target}"


def test_nothing_imports_the_benchmarks_or_the_tests() -> None:
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                assert node.module.split(".")[0] not in ("benchmarks", "tests"), name


def test_imports_of_the_mechanisms_go_down() -> None:
    upward = [
        f"{source} -> {target}"
        for source, target in ARROWS.edges
        if source.startswith("mechanisms.") and target.startswith("mechanisms.")
        if room(source) != room(target) and HEIGHT[room(source)] <= HEIGHT[room(target)]
    ]
    assert not upward, "\n".join(upward)


def test_no_modules_import_each_other_in_a_circle() -> None:
    circles = [sorted(part) for part in nx.strongly_connected_components(ARROWS) if len(part) > 1]
    assert not circles, circles


def test_tables_say_nothing_about_privacy() -> None:
    for name, path in MODULES.items():
        if name.startswith("pgmkit"):
            text = path.read_text().lower()
            for word in ("privacy", "private data", "epsilon of", "curator"):
                assert word not in text, f"{name} says {word!r}"


def main() -> None:
    """Print the house: rooms by floor with their modules, and how many arrows cross."""
    own = [(a, b) for a, b in ARROWS.edges if a.startswith("mechanisms.") and "." in b]
    crossing = [(a, b) for a, b in own if b.startswith("mechanisms.") and room(a) != room(b)]
    for floor in reversed(FLOORS):
        for each in floor:
            members = [n for n in MODULES if n.startswith("mechanisms.") and room(n) == each]
            print(f"{each:<12} {len(members):>2} modules")
    print(f"{len(FLOORS)} floors, {len(crossing)} arrows between rooms of mechanisms")


if __name__ == "__main__":
    main()
