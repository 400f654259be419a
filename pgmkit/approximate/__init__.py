"""Approximate inference in factor graphs that no junction tree of memory's size holds."""
