"""The argument `rng`: a source of randomness."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from pgmkit.runtime.arguments import check_whole

Rng: TypeAlias = "int | np.random.Generator | None"
"""A seed, a generator to draw from, or None for a fresh one."""


def generator(rng: Rng, name: str = "rng") -> np.random.Generator:
    """Return a numpy Generator: `rng` itself if it is one, otherwise a new one from the seed `rng`,
    or from the system's randomness if it is None. `name` is the argument's name, for the message.

    Raises InvalidInput unless `rng` is a whole number of at least 0, a numpy Generator or None.

    >>> int(generator(0).integers(10)) == int(generator(np.random.default_rng(0)).integers(10))
    True
    """
    if rng is not None and not isinstance(rng, np.random.Generator):
        check_whole(rng, f"{name}, unless a numpy.random.Generator or None,", 0)
    return np.random.default_rng(rng)
