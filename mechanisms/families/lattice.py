"""Marginals on the lattice of subsets: least squares in closed form.

The data vector over the domain is never formed. The subspaces R_s of contrasts over exactly the
attributes s (zero sum along each) are orthogonal, and the marginal over c consists of those with s
inside c (Xiao et al., "An optimal and scalable matrix mechanism for noisy marginals", 2023). So
each R_s is estimated separately, as an average over the measurements that contain it. Cells may be
negative; `pgmkit.least_squares.consistency` finds nonnegative tables, by a search.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from pgmkit.domain import Clique, Domain
from pgmkit.measurement import Measurement
from pgmkit.runtime.arrays import Array


def subsets(cliques: Iterable[Clique]) -> list[Clique]:
    """Return every subset of the cliques, the empty one first, each once, in the first clique's
    order.

    >>> subsets([("b", "a"), ("a", "b")])
    [(), ('b',), ('a',), ('b', 'a')]
    """
    found: dict[frozenset[str], Clique] = {}
    for clique in cliques:
        for size in range(len(clique) + 1):
            for subset in itertools.combinations(clique, size):
                found.setdefault(frozenset(subset), subset)
    return sorted(found.values(), key=len)


def least_squares(
    domain: Domain,
    measurements: Sequence[Measurement],
    targets: Iterable[Clique],
    total: float | None = None,
) -> dict[Clique, Array]:
    """Return the best linear unbiased estimates of marginals, in counts, from noisy marginals.

    Each contrast R_s is the average over the measurements that contain it, weighted by 1 /
    (variance x cells); a target is the sum of its contrasts. The tables agree with each other, and
    with `total` if it is given; cells may be negative. Every target must lie inside some measured
    clique.

    >>> from pgmkit.domain import Domain
    >>> ab = Measurement(("a", "b"), [[3.0, 1.0], [2.0, 2.0]], 1.0)
    >>> a = Measurement(("a",), [7.0, 1.0], 1.0)
    >>> least_squares(Domain({"a": 2, "b": 2}), [ab, a], [("a",)])[("a",)].round(3)
    array([6., 2.])
    """
    wanted = [domain.clique(clique, "target") for clique in targets]
    needed = {frozenset(subset) for subset in subsets(wanted)}
    contrasts: dict[frozenset[str], tuple[Clique, Array]] = {}
    precisions: dict[frozenset[str], float] = {}
    # The contrasts of each subset s of each measurement, averaged with the weights 1 / (variance x
    # cells), which are proportional to their precisions.
    for m in measurements:
        weight = 1 / (m.stddev**2 * domain.size(m.clique))
        for subset, table in _summed(m.clique, m.values.reshape(domain.shape(m.clique))):
            key = frozenset(subset)
            if key not in needed:
                continue
            ordered, so_far = contrasts.get(key, (subset, np.zeros(table.shape)))
            turned = centred(table).transpose([subset.index(name) for name in ordered])
            contrasts[key] = (ordered, so_far + weight * turned)
            precisions[key] = precisions.get(key, 0.0) + weight
    if total is not None:
        contrasts[frozenset()], precisions[frozenset()] = ((), np.array(float(total))), 1.0
    # A marginal over c is the sum of its contrasts, each spread evenly over the n_c / n_s cells of
    # c that belong to one cell of s.
    tables = {}
    for clique in wanted:
        table = np.zeros(domain.shape(clique))
        for subset in subsets([clique]):
            ordered, weighted = contrasts[frozenset(subset)]
            turned = weighted.transpose([ordered.index(name) for name in subset])
            shape = [domain.sizes[name] if name in subset else 1 for name in clique]
            cells = domain.size(clique) / domain.size(subset)
            table += turned.reshape(shape) / (precisions[frozenset(subset)] * cells)
        tables[clique] = table
    return tables


def _summed(clique: Clique, table: Array) -> Iterable[tuple[Clique, Array]]:
    """Yield the table summed to every subset of its clique."""
    for subset in subsets([clique]):
        dropped = tuple(axis for axis, name in enumerate(clique) if name not in subset)
        yield subset, np.asarray(table.sum(axis=dropped))


def centred(table: Array) -> Array:
    """Return the table minus its mean along each axis in turn: its contrast over all its
    attributes.

    >>> centred(np.array([[3.0, 1.0], [0.0, 0.0]]))
    array([[ 0.5, -0.5],
           [-0.5,  0.5]])
    """
    for axis in range(table.ndim):
        table = table - table.mean(axis=axis, keepdims=True)
    return table
