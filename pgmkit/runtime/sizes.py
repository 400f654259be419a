"""Sizes, rates and times of common machines, by which routes are chosen and work is divided.

Table sizes are in cells of float64. They are round powers of two near the values of common
processors, and each cache is sixteen times as large as the one before it. A factor of two either
way changes the time little.
"""

from __future__ import annotations

import struct
from math import isqrt

CELL_BYTES = struct.calcsize("d")
"""The bytes of a cell: tables are of float64 or int64."""
CALL_CELLS = 1 << 12
"""The cells that one call of numpy processes in a few times the call's overhead: 32 KB, a core's
first cache.
"""
FEW_CELLS = CALL_CELLS // 4
"""The cells that one call of numpy processes in about the time of the call's overhead."""
CACHE_CELLS = 16 * CALL_CELLS
"""The cells of a table that fits a core's own cache: half a megabyte. A larger temporary gets new
memory in every call, and clearing its pages takes the system longer than the sums take numpy.
"""
BLOCK_CELLS = 16 * CACHE_CELLS
"""The cells that are processed together: eight megabytes, a core's share of the last cache."""
TABLE_CELLS = 4 * BLOCK_CELLS
"""The cells of a temporary for which any machine has room: 32 megabytes. Writing them takes some
ten milliseconds, ten times as long as asking the system for the free memory.
"""
DENSE_ROWS = isqrt(TABLE_CELLS)
"""The rows of a square matrix with ``TABLE_CELLS`` cells: its factorisation takes about a
second.
"""
REMEMBERED = 64
"""The number of structures, or of kinds of questions, for which plans are kept."""
MULTIPLICATIONS_A_SECOND = 1e9
"""The multiplications that one core does in a second of large products: 0.6 to 1.8 billion."""
UNASKED_SECONDS = 1.0
"""The most seconds of work that nobody asked for: checks of answers, and default error bars."""
UNNOTICED_SECONDS = 5e-3
"""The seconds of work, such as a check, that nobody notices beside the answer of a small model: the
time of about ten of its answers.
"""
DENSE_SHARE = 0.1
"""The share of nonzero entries above which products with a dense matrix are faster."""
