"""Approximate inference in factor graphs for which no junction tree fits into memory."""
