"""Queries about a marginal: the whole marginal, or one of its cells."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, cast

from mechanisms.queries.predicates import Predicate
from pgmkit.domain import Clique


class Cell(NamedTuple):
    """A single counting query: one cell of a marginal, by its index in C order."""

    clique: Clique
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here


Question: TypeAlias = "Clique | Cell | Predicate"
"""The questions that a round may select: a whole marginal (by its clique), one cell, or a
predicate.
"""


def clique_of(question: Question) -> Clique:
    """Return the attributes that a question is about.

    >>> clique_of(("a", "b")), clique_of(Cell(("a",), 1))
    (('a', 'b'), ('a',))
    """
    return cast("Clique", getattr(question, "clique", question))
