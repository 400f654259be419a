"""Errors and help texts read alike: errors end without a period, help texts begin with a noun."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click

from mechanisms.cli import main

ROOT = Path(__file__).parent.parent
RAISED = {
    "EngineFailed",
    "InvalidInput",
    "ModelTooLarge",
    "NumericalFailure",
    "TotalUndetermined",
    "warn",
}


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the last words of every error and warning that a file makes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and node.args):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        text = node.args[0]
        if name in RAISED and isinstance(text, ast.JoinedStr):
            text = text.values[-1]
        if name in RAISED and isinstance(text, ast.Constant) and isinstance(text.value, str):
            yield node.lineno, text.value


def test_errors_end_without_a_period() -> None:
    found = 0
    for package in ("pgmkit", "mechanisms"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for line, text in messages(path):
                found += 1
                ends = text.endswith(".") and not text.endswith("...")
                assert not ends, f"{path.relative_to(ROOT)}:{line}: {text!r}"
    assert found > 200


def commands(group: click.Group, path: str = "pgmkit") -> Iterator[tuple[str, click.Command]]:
    """Every command with its name, groups gone through."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def test_every_option_has_a_help_text_that_is_a_sentence_about_a_thing() -> None:
    found = 0
    for name, command in commands(main):
        assert command.help, name
        for option in command.params:
            if not isinstance(option, click.Option):
                continue
            found += 1
            text = str(option.help or "")
            assert re.match(r"[A-Z]\S* .*[.\]]$", text), f"{name} {option.opts}: {text}"
            assert not re.match(r"(Of|For|Where|What|With|Well|Answer)\b", text), (name, text)
    assert found > 30
