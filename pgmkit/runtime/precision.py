"""The tolerances that follow from the format of numbers, float64."""

from __future__ import annotations

import sys

from pgmkit.runtime.sizes import CALL_CELLS, TABLE_CELLS

EPSILON = sys.float_info.epsilon
"""The relative distance of neighbouring numbers."""
EXACT = 2 / EPSILON
"""2^53: every whole number up to here is exact, and a share of 2^-53 beside another is lost."""
AGREEMENT = EPSILON * CALL_CELLS
"""The largest relative error, 1e-12, of a sum over the cells of a small table."""
SUM_ROUNDING = EPSILON * TABLE_CELLS
"""The largest relative error, 1e-9, of a sum over the cells of a large table."""
CLOSE = EPSILON**0.5
"""The relative difference, 1.5e-8, up to which two computations agree: half of all digits."""
DEPENDENT = EPSILON ** (2 / 3)
"""The relative length, 4e-11, below which the part of a vector that is independent of others is
rounding."""
HALVINGS = sys.float_info.mant_dig - 1
"""The halvings after which a step is below the rounding of its starting point."""
TINY = sys.float_info.min
"""The smallest number that is held to full precision."""
FAR = TINY ** (-1 / 3)
"""A number, 4e102, beside which no other counts and whose square is finite."""
