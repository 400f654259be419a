"""Noisy distances of pairs of columns from a model, measured for all pairs together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mechanisms.privacy.curator import Curator
from pgmkit.domain import Clique
from pgmkit.model import GraphicalModel


@dataclass(frozen=True)
class Distances:
    """The noisy L1 distances ||marginal - the model's marginal||_1 of pairs, in counts.

    `of`: the noisy distance of each pair, which may be negative. `stddev`: the standard deviation
    of the noise in each.
    """

    of: Mapping[Clique, float]
    stddev: float


def measure_distances(
    curator: Curator, columns: GraphicalModel, pairs: Sequence[Clique], cost: float, *, step: str
) -> Distances:
    """Return the noisy distances of the marginals of `pairs` from those of the model `columns`,
    which often has independent columns. `cost` pays for all of them.

    >>> from mechanisms.privacy.budget import Budget
    >>> from pgmkit import Dataset, Domain, Measurement, estimate
    >>> data = Dataset(Domain({"a": 2, "b": 2}), {"a": [0, 1] * 500, "b": [0, 1] * 500})
    >>> columns = estimate(data.domain, [Measurement((c,), [500, 500], 1.0) for c in "ab"])
    >>> curator = Curator(data, Budget(5.0, 1e-6), neighbours="add/remove", seed=0)
    >>> found = measure_distances(curator, columns, [("a", "b")], 0.1, step="errors")
    >>> abs(found.of["a", "b"] - 1000) < 6 * found.stddev
    True
    """
    noisy = curator.measure_errors(pairs, columns.marginals(pairs), cost, step=step)
    return Distances(
        dict(zip(pairs, noisy.tolist(), strict=True)), curator.errors_stddev(len(pairs), cost)
    )
