"""The results of the zoo as the page of the documentation shows them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.common import RESULTS
from benchmarks.zoo_auto import EPSILONS, LINES
from benchmarks.zoo_tables import TABLES

Rows = dict[str, dict[float, dict[str, Any]]]
"""Lines by table and epsilon."""
RESULT = RESULTS / "zoo.jsonl"
PAGE = RESULTS.parent / "zoo.md"
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
    first, _ = compared()
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
        rows_of_it = first.get(line["table"], {}).values()
        seeds = ", ".join(f"{each['distance']:+.1f}" for each in rows_of_it) or "-"
        rows.append([line["table"], *size, outcome, *price, *pairs, exact, worst, f1, seeds])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


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
    return "\n".join([*said, "", *_compared()])


def _compared() -> list[str]:
    """What the last comparisons over seeds say, and those that were looked at again."""
    first, again = compared()
    rows = [row for each in first.values() for row in each.values()]
    if not rows:
        return ["No comparisons over seeds."]
    alone = [row["distance"] for row in rows if row["taken"] == ["independent"]]
    above = [row for row in rows if row["distance"] > 1]
    said = [
        f"Over seeds: {len(rows)} comparisons of auto with independent columns. In {len(alone)} of "
        "them auto took independent columns with every seed, so that the two differ by noise and "
        f"by what auto pays to choose: {np.mean(alone):+.2f} standard errors on average (standard "
        f"deviation {np.std(alone, ddof=1):.2f}); {sum(d > 1 for d in alone)} are above +1, and "
        f"{0.165 * len(alone):.0f} would be by chance. Above +1, and again with fresh seeds:",
        "",
    ]
    for row in sorted(above, key=lambda row: -row["distance"]):
        fresh = again.get(row["table"], {}).get(row["epsilon"])
        said.append(
            f"- {row['table']}, epsilon {row['epsilon']:g}: {row['auto']:.3f} against "
            f"{row['independent']:.3f}, {row['distance']:+.1f} standard errors, {row['seeds']} "
            f"seeds (taken: {', '.join(row['taken'])})"
            + (f"; {fresh['distance']:+.1f} with {fresh['seeds']} fresh seeds." if fresh else ".")
        )
    return said if above else [*said, "- none."]


def compared() -> tuple[Rows, Rows]:
    """The last comparison of each table and epsilon, and the last with fresh seeds."""
    lines = [json.loads(line) for line in LINES.read_text().splitlines()]
    first: Rows = {}
    again: Rows = {}
    for line in lines:
        place = again if line["first_seed"] else first
        place.setdefault(line["table"], {})[line["epsilon"]] = line
    return first, again


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
