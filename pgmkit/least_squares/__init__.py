"""Least squares over noisy tables: statistics, consistent tables, linear estimates, fit."""
