"""Warnings about budgets that protect too little."""

from __future__ import annotations

from collections.abc import Iterator

from mechanisms.synthesis.request import Request

_MOST_EPSILON = 10.0
"""The largest epsilon that is accepted without a warning. An adversary who gives a probability of
50% to a person's being in the data may be 99.995% sure of it after a release with epsilon 10.
"""


def cautions(request: Request, rows: int | None) -> Iterator[str]:
    """Yield a warning if delta is above 1 / rows, and one if the budget's epsilon is above
    `_MOST_EPSILON`, which protects hardly anyone.

    `rows`: the number of rows if it is public. If it is None, 1,000 rows are assumed, as tables of
    fewer are seldom released.

    >>> from pgmkit import Boolean, Schema
    >>> request = Request(schema=Schema({"ill": Boolean()}), epsilon=20, delta=0.01)
    >>> for said in cautions(request, None):
    ...     print(said[:72].strip())
    delta (0.01) is above 1 / 1000 rows (assumed, as their number is private
    epsilon = 20 protects hardly anyone; 0.1 to 10 are usual, and with less
    """
    delta, least = request.delta, 1000 if rows is None else rows
    if delta * least > 1:
        assumed = " (assumed, as their number is private)" if rows is None else ""
        yield (
            f"delta ({delta:g}) is above 1 / {least} rows{assumed}: its promise allows that whole "
            "records are published, each with that probability; choose delta well below 1 / rows"
        )
    epsilon = request.budget.epsilon
    if epsilon > _MOST_EPSILON and request.within is None:
        yield (
            f"epsilon = {epsilon:.4g} protects hardly anyone; 0.1 to {_MOST_EPSILON:g} are usual, "
            "and with less noise some mechanisms take many times as long"
        )
    elif epsilon > _MOST_EPSILON:
        yield (
            f"answers within {request.within:g} records need epsilon = {epsilon:.4g}, which "
            "protects hardly anyone; allow larger errors"
        )
