"""The Curator, its budget, noise and exact selection: nothing else sees private data."""
