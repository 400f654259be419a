"""Families of distributions over the domain, which the mechanisms update."""
