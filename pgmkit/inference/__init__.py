"""Exact marginals of a junction tree: the marginal oracle, calibrated trees, self-checks."""
