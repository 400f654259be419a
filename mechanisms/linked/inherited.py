"""Tables of children that follow from the parents' noisy tables, at no further cost to the budget.

Take a table of parents over some of their columns and their number of children. Each count of
parents times their number of children is a count of children, so the table gives one of children
over the same columns. A unit may have more children than parents, so parents are measured with less
noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mechanisms.baselines import Projection
from mechanisms.families.graphical import model_megabytes
from mechanisms.linked.link import Link
from mechanisms.linked.siblings import POSITION
from pgmkit import Domain, Measurement


def inherited(
    parents: Sequence[Any], above: Domain, link: Link, domain: Domain
) -> list[Measurement]:
    """Return noisy tables of children over columns of their parent, one of which is the number of
    children. A table over this number alone gives one over the number and the position, unless that
    needs a model of more than `Projection.model_mb`.

    `parents`: the noisy values of the parents' release, of which only those of whole tables are
    used that have the number of children among their columns. `above`: the parents' domain.
    `domain`: the domain of the children with their parent's columns. If the parents are children
    themselves, `above` has further columns, those of the parents' own parents and siblings; the
    tables are summed over these.

    The children of parents with k have k times the noise of these parents, so the matrix divides
    their count by k. Parents without children are a count of 0, to which noise is imputed.
    Children of one parent are at all positions up to their number, where k cells repeat one noisy
    value. Each is given k times its variance, which makes that of their sum right, and that of
    everything else an upper bound.

    >>> noisy = [Measurement(("rural", "cows"), [[5, 3, 2], [4, 1, 0]], 2.0)]
    >>> above = Domain({"rural": 2, "cows": 3})
    >>> domain = Domain({"rural": 2, "cows": 3, "position": 2, "kind": 2})
    >>> (table,) = inherited(noisy, above, Link("cow", "farm", "id", 2, count="cows"), domain)
    >>> table.values.reshape(2, 3), table.matrix.factors[1].diagonal()
    (array([[0., 3., 2.],
           [0., 1., 0.]]), array([1. , 1. , 0.5]))
    """
    numbers, kept = np.arange(link.most + 1), list(domain)[: domain.places[POSITION]]
    held = np.maximum(numbers, 1)
    found = []
    for each in parents:
        usable = isinstance(each, Measurement) and each.matrix is None
        if not usable or link.count not in each.clique:
            continue
        gone = [name for name in each.clique if name not in kept]
        clique = tuple(name for name in each.clique if name in kept)
        away = tuple(each.clique.index(name) for name in gone)
        table = each.values.reshape(above.shape(each.clique)).sum(axis=away)
        noise = each.stddev * above.size(gone) ** 0.5
        places, weights = (link.count, POSITION), 1 / held
        if clique == places[:1] and model_megabytes(domain, [places]) <= Projection().model_mb:
            clique, weights = places, held**-0.5
            table = np.where(np.greater.outer(numbers, numbers[:-1]), table[:, None], 0.0)
            table = table * weights[:, None]
        matrix = [np.diag(weights) if n == link.count else np.eye(domain.sizes[n]) for n in clique]
        along = [-1 if name == link.count else 1 for name in clique]
        table = table * (numbers > 0).reshape(along)
        found.append(Measurement(clique, table.ravel(), noise, matrix))
    return found
