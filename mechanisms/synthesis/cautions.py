"""Warnings about budgets that protect too little."""

from __future__ import annotations

from mechanisms.synthesis.request import Request

_MOST_EPSILON = 10.0
"""The largest epsilon that is accepted without a warning. An adversary who gives a probability of
50% to a person's being in the data may be 99.995% sure of it after a release with epsilon 10.
"""


def delta_caution(delta: float, rows: int | None) -> str:
    """Return a warning if delta is above 1 / rows, and otherwise an empty text.

    `rows`: the number of rows if it is public. If it is None, 1,000 rows are assumed, as tables of
    fewer are seldom released.

    >>> delta_caution(1e-9, None), delta_caution(0.5, 10)[:32]
    ('', 'delta (0.5) is above 1 / 10 rows')
    >>> delta_caution(0.5, None)[:72]
    'delta (0.5) is above 1 / 1000 rows (assumed, as their number is private)'
    """
    least = 1000 if rows is None else rows
    assumed = " (assumed, as their number is private)" if rows is None else ""
    if delta * least <= 1:
        return ""
    return (
        f"delta ({delta:g}) is above 1 / {least} rows{assumed}: its promise allows that whole "
        "records are published, each with that probability; choose delta well below 1 / rows"
    )


def epsilon_caution(request: Request) -> str:
    """Return a warning if the budget's epsilon is above `_MOST_EPSILON`, which protects hardly
    anyone, and otherwise an empty text.
    """
    epsilon = request.budget.epsilon
    if epsilon <= _MOST_EPSILON:
        return ""
    if request.within is None:
        return f"epsilon = {epsilon:.4g} protects hardly anyone; 0.1 to {_MOST_EPSILON:g} are usual"
    return (
        f"answers within {request.within:g} records need epsilon = {epsilon:.4g}, which protects "
        "hardly anyone; allow larger errors"
    )
