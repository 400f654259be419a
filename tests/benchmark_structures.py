"""The structures of the benchmarks' problems, and a few whose sums have many terms."""

import json
from pathlib import Path

import pytest

from benchmarks import problems
from benchmarks.first_contact_steps import known

LONG = {
    "a million cells": ({"a": 1000, "b": 1000}, [("a", "b")]),
    "a triple": ({"a": 100, "b": 100, "c": 100, "d": 3}, [("a", "b", "c"), ("c", "d")]),
    "a long separator": ({"a": 3, "b": 5000, "c": 4}, [("a", "b"), ("b", "c")]),
}
"""Sizes and cliques whose sums have many terms and few results."""


def structure(name: str) -> tuple[dict[str, int], list[tuple[str, ...]]]:
    """Sizes and cliques of a problem of the benchmarks, or of LONG."""
    stored = json.loads((Path(__file__).parent / "data" / "launches.json").read_text())
    if name in LONG:
        return LONG[name]
    if name in stored:
        return stored[name]["sizes"], [tuple(c) for c in stored[name]["cliques"]]
    if not known((name,)):
        pytest.skip("the estimation problems are not at hand")
    problem = problems.load(name, 0)
    return problem.domain, list(problem.cliques)
