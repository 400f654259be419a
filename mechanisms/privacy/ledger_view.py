"""A ledger as text and as an HTML table."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from mechanisms.privacy.budget import Budget, LedgerEntry
from pgmkit.runtime.html import table
from pgmkit.runtime.printed import exactly, on_one_line, percent

_GAUSSIAN = "rho is mu^2 / 2 of Gaussian differential privacy, not that of zCDP"


def as_text(budget: Budget, entries: Sequence[LedgerEntry], neighbours: str, secure: bool) -> str:
    """Return a table as text, with a line for each charge and the cumulative epsilon, followed by a
    line with the sum of the charges, the budget and the neighbour relation, and by a warning unless
    `secure`. `neighbours`: the name of the relation, or an empty text, which is left out.
    """
    rows = [("step", "mechanism", budget.unit, "cumulative epsilon")]
    so_far: list[float] = []
    for entry in entries:
        so_far.append(entry.cost)
        epsilon = budget.epsilon_spent(math.fsum(so_far))
        named = on_one_line(entry.step), on_one_line(entry.mechanism)
        rows.append((*named, f"{entry.cost:.4g}", f"{epsilon:.4g}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}"
        for a, b, c, d in rows
    ]
    lines.append(
        f"spent {math.fsum(so_far):.4g} of {budget.total:.4g} "
        f"(epsilon = {exactly(budget.epsilon)}, delta = {exactly(budget.delta)})"
        + (f", neighbours: {neighbours}" if neighbours else "")
        + (f", {_GAUSSIAN}" if budget.gaussian else "")
    )
    if not secure:
        lines.append("INSECURE: noise came from a seeded generator; do not release")
    return "\n".join(lines)


def by_step(
    entries: Sequence[LedgerEntry], names: Iterable[str] = ()
) -> dict[tuple[str, str], list[float]]:
    """Return, for each pair of step and mechanism, the costs of its charges. The numbers of
    rounds are left out of steps, and so are the names of measured columns at their end: "round 3:
    measure queries of age x sex" becomes "round: measure queries". A run's number at the
    beginning of a step remains. `names`: all names of columns.
    """
    known = f"(?:{'|'.join(map(re.escape, names))})"
    measured = rf"(?: of)? {known}(?: x {known})*$"
    found: dict[tuple[str, str], list[float]] = {}
    for entry in entries:
        step = re.sub(measured, "", entry.step)
        step = re.sub(r"(?<!^run)(?<!^run )\s*\b\d+\b(?=:|$)", "", step)
        found.setdefault((step, entry.mechanism), []).append(entry.cost)
    return found


def as_html(
    budget: Budget, entries: Sequence[LedgerEntry], secure: bool, names: Iterable[str] = ()
) -> str:
    """Return an HTML table with a line for each step and mechanism (`by_step`), whose caption warns
    unless `secure`. `names`: all names of columns, which are left out of the steps.
    """
    rows, so_far = [], 0.0
    for (step, mechanism), costs in by_step(entries, names).items():
        so_far += math.fsum(costs)
        share, epsilon = math.fsum(costs) / budget.total, budget.epsilon_spent(so_far)
        rows.append([step, mechanism, str(len(costs)), percent(share), f"{epsilon:.4g}"])
    caption = f"Ledger: {so_far:.4g} of {budget.total:.4g} {budget.unit} spent"
    caption += f"; {_GAUSSIAN}" if budget.gaussian else ""
    caption += "" if secure else "; INSECURE: noise came from a seeded generator"
    header = ["step", "noise", "times", "share of the budget", "cumulative epsilon"]
    return table(header, rows, numbers={2, 3, 4}, caption=caption)
