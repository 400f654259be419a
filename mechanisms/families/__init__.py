"""Families of distributions over the domain that the mechanisms update."""
