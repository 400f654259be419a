"""The tolerances that follow from the format of numbers, float64."""

from __future__ import annotations

import sys

from pgmkit.runtime.sizes import CALL_CELLS, TABLE_CELLS

EPSILON = sys.float_info.epsilon
"""The relative distance of neighbouring numbers."""
ULPS = 4
"""The assumed rounding error of a sum over a model's cells, and of a product of two tables in log
space, in units of the last place.
"""
EXACT = 2 / EPSILON
"""2^53: whole numbers up to this are exact, and what is below 2^-53 of a number is lost when it is
added to that number.
"""
AGREEMENT = EPSILON * CALL_CELLS
"""The largest relative error, 1e-12, of a sum over the cells of a small table."""
SUM_ROUNDING = EPSILON * TABLE_CELLS
"""The largest relative error, 1e-9, of a sum over the cells of a large table."""
CLOSE = EPSILON**0.5
"""The relative difference, 1.5e-8, up to which two computations agree: half of all digits."""
DEPENDENT = EPSILON ** (2 / 3)
"""The relative length, 4e-11, below which the part of a vector independent of other vectors is
rounding.
"""
HALVINGS = sys.float_info.mant_dig - 1
"""The halvings after which a step is below the rounding of its starting point."""
TINY = sys.float_info.min
"""The smallest number that is stored to full precision."""
FAR = TINY ** (-1 / 3)
"""A number, 4e102, that exceeds any count and whose square is finite."""
