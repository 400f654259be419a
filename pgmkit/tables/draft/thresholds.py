"""The numbers that a draft decides by; whoever reads the draft can decide otherwise."""

from __future__ import annotations

__all__ = ["BINS", "FEW", "NEARLY_ALL", "OFTEN", "SURE"]

BINS = 20
"""Bins of a drafted column of numbers: each has about a twentieth of the rows."""
FEW = 5
"""Rows, values or times: fewer may be chance, or are of no use."""
SURE = 20
"""Rows, or pairs of rows that are expected: chance fails so many with probability e^-20 or less."""
NEARLY_ALL = 0.9
"""A share of distinct texts beyond which the others are an oversight."""
OFTEN = 1 / (FEW * BINS)
"""The share of the rows that a value must have to stand out: a fifth of a bin's."""
