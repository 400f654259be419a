"""Choosing how much to smooth by what noisy tables tell of noise that a fit has not seen.

To every noisy value y with noise of standard deviation s, fresh noise e of the same standard
deviation is added, and a share of it taken away again:

    given = y + a e,        kept = y - e / a.

Gaussian noise in the two is independent, so a fit to what is given misses what is kept by its own
error and noise that is the same for all fits: the fit of least error misses least. No budget is
spent, as all follows from noisy values; nothing but the noise's size need be known. (The coupled
bootstrap: Oliveira, Lei and Tibshirani, "Unbiased risk estimation in the normal means problem via
coupled bootstrap techniques", 2024.) With other noise the two are uncorrelated. Two splits, with e
and with -e, are judged together: what is linear in e falls out of their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from pgmkit.measurement import Measurement
from pgmkit.runtime.randomness import Rng, generator

__all__ = ["best_level", "splits"]

Split: TypeAlias = "tuple[list[Measurement], list[Measurement]]"
"""Measurements to fit to, and measurements to judge the fit by."""


def splits(
    measurements: Sequence[Measurement], rng: Rng = None, added: float = 0.7
) -> tuple[Split, Split]:
    """The same measurements twice, with independent noise: to fit to, and to judge by.

    Two such splits are made, whose fresh noise is of opposite sign. `added` is a above: by default
    the tables that are given have 1.22 times the noise, and those that are kept 1.74 times.

    >>> (given, kept), (other, _) = splits([Measurement(("a",), [3.0, 5.0], 1.0)], rng=0)
    >>> all(given[0].values != kept[0].values)
    True
    >>> ((given[0].values + other[0].values) / 2).round(6)
    array([3., 5.])
    """
    random = generator(rng)
    fresh = [m.stddev * random.standard_normal(len(m.values)) for m in measurements]
    more, less = (1 + added**2) ** 0.5, (1 + added**-2) ** 0.5

    def split(sign: float) -> Split:
        pairs = list(zip(measurements, fresh, strict=True))
        return (
            [
                Measurement(m.clique, m.values + sign * added * e, more * m.stddev, m.matrix)
                for m, e in pairs
            ],
            [
                Measurement(m.clique, m.values - sign / added * e, less * m.stddev, m.matrix)
                for m, e in pairs
            ],
        )

    return split(1.0), split(-1.0)


def best_level(losses: Callable[[int], float], last: int) -> float:
    """The level of least loss among 0 to `last`, refined by a parabola through its neighbours.

    `losses`: of fits to `splits` of measurements at the levels 0, 1, ... of a path, asked in order
    up to `last`, which is at least 1. All of them are asked: the first levels of a path hardly
    differ from independence, so a rise there says nothing of the levels below.

    >>> round(best_level(lambda level: (level - 2.4) ** 2, 10), 3)
    2.4
    """
    found = [losses(level) for level in range(last + 1)]
    best = int(np.argmin(found))
    if not 0 < best < len(found) - 1:
        return float(best)
    below, least, above = found[best - 1 : best + 2]
    return best + (below - above) / (2 * (below - 2 * least + above))
