"""Sizes, in cells of float64, at which a machine's costs change: where work is cut into pieces.

They are round powers of two near what common processors have; a factor of two either way changes
the time by little.
"""

from __future__ import annotations

import struct
from math import isqrt

CELL_BYTES = struct.calcsize("d")
"""Bytes of a cell: tables are of float64, or of int64."""
CALL_CELLS = 1 << 12
"""Cells that one call goes through in a few times what calling it takes: 32 KB, a core's first
cache."""
FEW_CELLS = CALL_CELLS // 4
"""Cells that one call goes through in about the time that calling it takes."""
CACHE_CELLS = 16 * CALL_CELLS
"""Cells of a table that a core's own cache holds: half a megabyte. A larger temporary is fresh
memory at every call, and the system's clearing of its pages costs more than sums do."""
BLOCK_CELLS = 16 * CACHE_CELLS
"""Cells that are worked on together: eight megabytes, a core's share of the last cache."""
TABLE_CELLS = 4 * BLOCK_CELLS
"""Cells of a temporary that any machine has room for: 32 megabytes. Writing them takes some ten
milliseconds, ten times as long as asking the system for what memory is free."""
DENSE_ROWS = isqrt(TABLE_CELLS)
"""Rows of a square matrix with ``TABLE_CELLS``: its factorisation takes a second or so."""
DENSE_SHARE = 0.1
"""Share of entries that are not zero above which products are faster with a dense matrix."""
