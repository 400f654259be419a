"""The numbers by which a draft decides; the reader of the draft can decide otherwise."""

from __future__ import annotations

BINS = 20
"""The number of bins of a drafted column of numbers: on average each has a twentieth of the rows.
"""
FEW = 5
"""The least number of rows or of values, and the least ratio of two frequencies, on which a
decision rests; what is less may be due to chance.
"""
SURE = 20
"""The number of rows, or of expected pairs of equal rows, from which on an observation is taken for
certain: chance explains it with probability e^-20 or less.
"""
NEARLY_ALL = 0.9
"""The share of texts that counts as nearly all, so that the others are an oversight."""
OFTEN = 1 / (FEW * BINS)
"""The share of the rows that a value must have to stand out: a fifth of a bin's share."""
