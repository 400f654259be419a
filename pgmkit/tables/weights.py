"""Survey weights: numbers rounded at random to a few points, so that their totals stay unbiased."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from pgmkit.errors import InvalidInput, unquoted
from pgmkit.runtime.arguments import Rng, float_array, generator
from pgmkit.runtime.arrays import Array


@unquoted
def round_at_random(values: ArrayLike, points: ArrayLike, *, rng: Rng = None) -> Array:
    """Return each value as one of the two points around it, drawn so that its expectation is the
    value.

    If weights were put into bins instead, totals would be biased by the difference between the
    weights and the bins' middles. Rounding at random adds noise, of variance (value - below) (above
    - value) for each value. Every value is rounded independently of the others, so two private
    tables that differ in one row still differ in one row only. Values beyond the first or the last
    point become that point; NaN stays.

    Args:
        values: Numbers, such as the weights of a survey's records.
        points: Increasing numbers, at least two, which are public.
        rng: A seed, a numpy Generator, or None for a fresh one, which private tables need: with a
            seed that is known, one row more would change how the rows after it are rounded.

    Raises InvalidInput for values that are no numbers, and for points that are not two or more
    finite numbers in increasing order.

    >>> round_at_random([0.0, 10.0, 25.0], [0, 10, 20], rng=0)
    array([ 0., 10., 20.])
    >>> bool(abs(round_at_random(np.full(10_000, 7.0), [0, 10], rng=0).mean() - 7) < 0.2)
    True
    """
    given, grid = float_array(values, "values"), float_array(points, "points")
    if grid.ndim != 1 or len(grid) < 2 or not np.isfinite(grid).all() or (np.diff(grid) <= 0).any():
        raise InvalidInput(
            f"points must be two or more finite numbers that increase, got {points!r:.60}"
        )
    bounded = np.clip(given, grid[0], grid[-1])
    below = np.clip(np.searchsorted(grid, bounded, side="right") - 1, 0, len(grid) - 2)
    share = (bounded - grid[below]) / (grid[below + 1] - grid[below])
    up = generator(rng).random(given.shape) < share
    return np.where(np.isnan(given), np.nan, grid[below + up])
