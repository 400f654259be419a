"""A ledger as text and as an HTML table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mechanisms.privacy.budget import Budget
from mechanisms.privacy.ledger_entry import LedgerEntry
from pgmkit.runtime.html import table
from pgmkit.runtime.printed import on_one_line


def as_text(budget: Budget, entries: Sequence[LedgerEntry], neighbours: str, secure: bool) -> str:
    """Return a line for each charge, with the cumulative epsilon, and a line for the promise."""
    header = ("step", "mechanism", budget.unit, "cumulative epsilon")
    rows = []
    so_far: list[float] = []
    for entry in entries:
        so_far.append(entry.cost)
        epsilon = budget.epsilon_spent(math.fsum(so_far))
        named = on_one_line(entry.step), on_one_line(entry.mechanism)
        rows.append((*named, f"{entry.cost:.4g}", f"{epsilon:.4g}"))
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(4)]
    lines = [
        f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}"
        for a, b, c, d in [header, *rows]
    ]
    lines.append(
        f"spent {math.fsum(so_far):.4g} of {budget.total:.4g} "
        f"(epsilon = {budget.epsilon:g}, delta = {budget.delta:g})"
        + (f", neighbours: {neighbours}" if neighbours else "")
    )
    if not secure:
        lines.append("INSECURE: noise came from a seeded generator; do not release")
    return "\n".join(lines)


def as_html(budget: Budget, entries: Sequence[LedgerEntry], secure: bool) -> str:
    """Return an HTML table with a line for each step and mechanism; rounds are combined."""
    groups: dict[tuple[str, str], list[float]] = {}
    for entry in entries:
        step = " ".join(word for word in entry.step.split() if not word.strip(":").isdigit())
        groups.setdefault((step, entry.mechanism), []).append(entry.cost)
    rows, so_far = [], 0.0
    for (step, mechanism), costs in groups.items():
        so_far += math.fsum(costs)
        share, epsilon = math.fsum(costs) / budget.total, budget.epsilon_spent(so_far)
        rows.append([step, mechanism, str(len(costs)), f"{share:.1%}", f"{epsilon:.4g}"])
    caption = f"Ledger: {so_far:.4g} of {budget.total:.4g} {budget.unit} spent" + (
        "" if secure else "; INSECURE: noise came from a seeded generator"
    )
    header = ["step", "noise", "times", "share of the budget", "cumulative epsilon"]
    return table(header, rows, numbers={2, 3, 4}, caption=caption)
