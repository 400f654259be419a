"""Tables of children that follow from the parents' noisy tables, which costs no more budget.

Take a table of parents over some of their columns and their number of children. Each count of
parents times their number of children is a count of children, so the table gives one of children
over the same columns. Parents are measured with less noise: a unit is one row of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mechanisms.linked.link import POSITION, Link
from pgmkit.domain import Domain
from pgmkit.measurement import Measurement


def inherited(parents: Sequence[Any], link: Link, domain: Domain) -> list[Measurement]:
    """Return noisy tables of children over their parent's columns, number and position.

    `parents`: the noisy values that the parents' release holds, of which tables with the number of
    children are used; `domain`: the domain of the children with their parent's columns.

    Noise grows with the number of children; the standard deviation is the root mean square over the
    numbers. Children of one parent are at all positions up to their number: these cells repeat one
    noisy value, and are given so little weight that together they count once.

    >>> noisy = [Measurement(("rural", "cows"), [[5, 3, 2], [4, 1, 0]], 2.0)]
    >>> domain = Domain({"rural": 2, "cows": 3, "position": 2, "kind": 2})
    >>> (table,) = inherited(noisy, Link("cow", "farm", "id", 2, count="cows"), domain)
    >>> table.values.reshape(2, 3)
    array([[0., 3., 4.],
           [0., 1., 0.]])
    """
    numbers = np.arange(link.most + 1)
    spread = float(np.sqrt(np.mean(numbers[1:] ** 2)))
    found = []
    for each in parents:
        usable = isinstance(each, Measurement) and each.matrix is None
        if not usable or link.count not in each.clique:
            continue
        shape = domain.shape(each.clique)
        along = [len(numbers) if name == link.count else 1 for name in each.clique]
        values = each.values.reshape(shape) * numbers.reshape(along)
        found.append(Measurement(each.clique, values, each.stddev * spread))
        if each.clique == (link.count,):
            reached = np.greater.outer(numbers, np.arange(link.most))
            table = each.values[:, None] * reached
            clique = (link.count, POSITION)
            found.append(Measurement(clique, table, each.stddev * link.most**0.5))
    return found
