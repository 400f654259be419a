"""Releases of mechanisms: models and noisy tables with their price, as files and as reports."""
