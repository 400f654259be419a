"""From the papers to the code: every name on that page can be imported, every file is there."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`((?:pgmkit|mechanisms)\.[\w.]+)`", PAGE)))
FILES = sorted(set(re.findall(r"`((?:pgmkit|mechanisms)/[\w/]+\.py)`", PAGE)))

BOXES = {
    "Private-PGM": (
        "A.1, A.2, A.3, Algorithm 3, Algorithm 4, Algorithm 5, C.1, C.2, Definition 4, Table 2, "
        "E.1, E.2"
    ),
    "Iterative methods": (
        "(1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (13), Theorem 1, A.1, A.3, B.3, "
        "Algorithm 1, Algorithm 2, Algorithm 3, Algorithm 4, "
        "Table 1, Table 2, Table 3, Table 4, Table 5, Table 6"
    ),
    "PMW-Pub": "Algorithm 1, Definition 2.1, A.8, B.1.4, C.3, Table 3, Tables 1",
    "RAP++": (
        "(1), (2), Algorithm 1, Algorithm 2, Theorem 1, Tables 1, Definition 1, Definition 2, "
        "Definition 3, Definition 4, Definition 5, Definition 8, Definition 9, Definition 10, "
        "Definition 13, Definition 14"
    ),
}
"""What the papers number, by the headings of the page."""


def resolve(name: str) -> object:
    """The object of a dotted name: the longest module that imports, then attributes."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_resolves_where_it_is_defined(name: str) -> None:
    found = resolve(name)
    module = getattr(found, "__module__", None)
    if module is not None:
        assert name.startswith(f"{module}."), f"{name} is defined in {module}"


def test_every_file_holds_the_name_beside_it() -> None:
    assert len(FILES) >= 15
    for line in PAGE.splitlines():
        file = re.search(r"`([\w/]+\.py)`", line)
        if file:
            assert (ROOT / file[1]).is_file(), file[1]
            module = file[1].removesuffix(".py").replace("/", ".")
            assert f"`{module}." in line, line


def test_every_numbered_thing_of_the_papers_has_a_row() -> None:
    for heading, numbered in BOXES.items():
        section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
        for label in numbered.split(", "):
            assert re.search(re.escape(label) + r"(?!\d)", section), f"{heading}: {label}"


def test_settings_named_in_remarks_exist() -> None:
    for name, setting in [
        ("mechanisms.mwem.Mwem", "past_queries"),
        ("mechanisms.mwem.Mwem", "result"),
        ("mechanisms.gem.Gem", "select"),
    ]:
        settings = resolve(name)
        assert is_dataclass(settings) and setting in {field.name for field in fields(settings)}
