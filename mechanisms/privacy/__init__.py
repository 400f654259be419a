"""The Curator, its budget, noise and exact selection: no other code sees private data."""
