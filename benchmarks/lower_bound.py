"""A lower bound of the error of any Gaussian noise, for any measurements: a certificate for the
planner.

For weights d of sum 1 over the cells and any contraction U (of spectral norm 1) the error of
queries W is at least <U, W D^1/2>^2, where one row is added or removed: the largest such product is
the sum of the singular values of W D^1/2, and d = 1/n gives the singular value bound (Li and Miklau
2013).

A contraction that is a product over attributes needs no table over the domain. Let d be a product
and u the elementwise square root of an attribute's d. Of the queries w along the attribute, take a
unit vector y of their answers and a partial isometry P from what is orthogonal to u to what is
orthogonal to y; then y u' + P is a contraction, and the parts of U that take P along the attributes
A and y u' along all others have orthogonal ranges and kernels. With

    g = (y'W d)^2,    h = (sum of the singular values of (I - yy') W D^1/2 (I - uu'))^2,

the best weights of the parts give the squared sum over the residuals A of the square root of v_A,
as in `mechanisms.strategies.residual_lattice`, with h and g in the place of inside and outside.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mechanisms.queries.query_sets import QuerySet
from mechanisms.strategies.least_error import split
from mechanisms.strategies.residual_lattice import Lattice
from pgmkit.domain import Domain
from pgmkit.runtime.arrays import Array


def lower_bound(domain: Domain, sets: Sequence[QuerySet]) -> float:
    """Return a lower bound on the sum of variances at rho = 1, add/remove, in squared counts.

    Any y and d give a lower bound. Here y holds the queries' answers on the vector that the rows of
    the best strategy do not see, and d its weights.

    >>> from mechanisms.queries.query_sets import QuerySet
    >>> from pgmkit.domain import Domain
    >>> round(lower_bound(Domain({"a": 4}), [QuerySet(("a",), ("identity",))]), 6)
    2.0
    """
    lattice = Lattice(domain, sets)
    mixed: dict[str, Array] = {}
    for name, gram in zip(lattice.names, lattice.full, strict=True):
        own = np.eye(domain.sizes[name]) if gram is None else gram
        mixed[name] = mixed.get(name, 0.0) + own / np.trace(own)
    unseen = {name: split(gram, 0.0) for name, gram in mixed.items() if len(gram) > 1}
    inside, outside = np.zeros(len(lattice.names)), np.zeros(len(lattice.names))
    for slot, name in enumerate(lattice.names):
        given = lattice.grams[slot]
        gram = np.eye(domain.sizes[name]) if given is None else given
        if name not in unseen:
            outside[slot] = gram[0, 0]
            continue
        p, _, d = unseen[name]
        length = np.sqrt(p @ gram @ p)
        answers = gram @ p / length if length > 0 else np.zeros(len(p))  # W'y
        outside[slot] = (answers @ d) ** 2
        left = np.sqrt(d)[:, None] * (np.eye(len(d)) - np.outer(np.ones(len(d)), d))
        rest = left @ (gram - np.outer(answers, answers)) @ left.T
        inside[slot] = np.sqrt(np.linalg.eigvalsh(rest).clip(min=0)).sum() ** 2
    return lattice.root_error(inside, outside)[0] ** 2 / 2
