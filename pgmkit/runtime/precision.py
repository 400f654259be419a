"""Tolerances that follow from the format of numbers, float64, and the rarity of false alarms."""

from __future__ import annotations

import sys

from pgmkit.runtime.sizes import CALL_CELLS, TABLE_CELLS

EPSILON = sys.float_info.epsilon
"""The relative distance of neighbouring numbers."""
EXACT = 2 / EPSILON
"""2^53: up to here every whole number is held, and beside it a share of 2^-53 is lost."""
AGREEMENT = EPSILON * CALL_CELLS
"""Relative error, 1e-12, that sums over the cells of a small table have at most."""
SUM_ROUNDING = EPSILON * TABLE_CELLS
"""Relative error, 1e-9, that a sum over the cells of a large table has at most."""
CLOSE = EPSILON**0.5
"""Relative difference, 1.5e-8, up to which two computations agree: half of all digits."""
DEPENDENT = EPSILON ** (2 / 3)
"""Relative length, 4e-11, below which what is left of a vector beside others is rounding."""
HALVINGS = sys.float_info.mant_dig - 1
"""Halvings after which a step is below the rounding of what it starts from."""
TINY = sys.float_info.min
"""The smallest number that is held to full precision."""
FAR = TINY ** (-1 / 3)
"""A number, 4e102, so large that nothing counts beside it, whose square is finite."""
FALSE_ALARM = 1e-6
"""Probability with which chance alone may be reported as a fault: once in a million runs."""
