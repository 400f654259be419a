"""The results of the zoo as the page of the documentation shows them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.common import RESULTS
from benchmarks.zoo_auto import EPSILONS, Comparison
from benchmarks.zoo_tables import TABLES

RESULT = RESULTS / "zoo.jsonl"
PAGE = RESULTS.parents[1] / "docs" / "zoo.md"
_BETWEEN = ("<!-- results -->\n", "\n<!-- end of results -->")


def known() -> dict[str, dict[str, Any]]:
    """The last line of each table, in the order of the tables."""
    if not RESULT.exists():
        return {}
    lines = [json.loads(line) for line in RESULT.read_text().splitlines()]
    last = {line["table"]: line for line in lines}
    return {table.name: last[table.name] for table in TABLES if table.name in last}


def markdown(lines: Sequence[dict[str, Any]]) -> str:
    """One row a table; at each epsilon the pairs' error of auto / independent."""
    head = ["table", "rows", "columns", "outcome", "CPU s", "MB"]
    head += [f"pairs, eps {e:g}" for e in EPSILONS]
    head += ["exact one-ways", "worst column, eps 1", "F1, eps 1 (real)", "auto - independent"]
    rows = [head, ["---"] * len(head)]
    for line in lines:
        found = line["scores"]
        one = found.get("auto 1", {})
        pairs = [
            "/".join(
                _figure(found.get(f"{m} {e:g}", {}).get("pairs")) for m in ("auto", "independent")
            )
            for e in EPSILONS
        ]
        worst = "{} {:.3f}".format(*one["worst"]) if one else "-"
        f1 = "{:.2f} ({:.2f})".format(*one["f1"]) if "f1" in one else "-"
        outcome = "ok" if line["ok"] else "failed: " + ", ".join(line["failed"])
        size = [str(found.get("rows", "-")), str(found.get("columns", "-"))]
        spent = sum(step.get("cpu") or 0 for step in line["steps"])
        price = [f"{spent:.0f}", str(line["mb"])]
        exact = _figure(one.get("exact_one_way"))
        seeds = ", ".join(f"{each.distance:+.1f}" for each in seeded(line).values()) or "-"
        rows.append([line["table"], *size, outcome, *price, *pairs, exact, worst, f1, seeds])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def seeded(line: dict[str, Any]) -> dict[str, Comparison]:
    """A line's comparisons over seeds, by epsilon."""
    return {
        epsilon: Comparison(**{name: tuple(values) for name, values in found.items()})
        for epsilon, found in line.get("seeds", {}).items()
    }


def summary(lines: Sequence[dict[str, Any]]) -> str:
    """What passed, what failed and why, and where auto is worse than independent columns."""
    passed = sum(line["ok"] for line in lines)
    said = [f"{passed} of {len(lines)} tables pass every step (of {len(TABLES)} in the zoo)."]
    for line in lines:
        said += [
            f"- {line['table']}: {step['step']} failed: {step['error']}."
            for step in line["steps"]
            if not step["ok"]
        ]
    found = [
        (each.distance, line["table"], epsilon, each)
        for line in lines
        for epsilon, each in seeded(line).items()
    ]
    worse = sorted((each for each in found if each[0] > 1), key=lambda each: -each[0])
    same = sum(each[3].taken == ("independent",) for each in found)
    said += [
        "",
        f"Over seeds: {len(found)} comparisons of auto with independent columns. In {same} of them "
        "auto took independent columns with every seed, so that the two differ by noise only; "
        f"about {0.16 * same:.0f} of these are expected above +1 by "
        "chance. Above +1:",
        "",
    ]
    said += [
        f"- {name}, epsilon {epsilon}: {np.mean(each.auto):.4f} against "
        f"{np.mean(each.independent):.4f}, {distance:+.1f} standard errors, {len(each.auto)} seeds "
        f"(taken: {', '.join(each.taken)})."
        for distance, name, epsilon, each in worse
    ] or ["- none."]
    return "\n".join(said)


def generated(lines: Sequence[dict[str, Any]]) -> str:
    """What stands between the marks of the page."""
    return f"{markdown(lines)}\n\n{summary(lines)}"


def write_page() -> None:
    """The results into the page, between its marks."""
    start, end = _BETWEEN
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(start)
    after = rest.partition(end)[2]
    text = before + start + generated([*known().values()]) + end + after
    PAGE.write_text(text, encoding="utf-8")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
