"""The probabilities at which a statement about noisy numbers counts as certain or as likely."""

from __future__ import annotations

RARE = 1e-6
"""The largest probability with which noise alone may raise an alarm or end a run."""
SIGNIFICANT = 1e-3
"""The probability below which noise is not taken for the explanation of what was observed."""
DEVIATIONS = 2.0
"""The standard deviations above which a noisy number is taken for more than noise where a mistake
costs little.
"""
