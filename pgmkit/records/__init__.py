"""Data sets of coded records: counting, sampling, and records near given tables."""
