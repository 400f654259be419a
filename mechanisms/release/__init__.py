"""Releases of mechanisms: models and tables with their price, as files and as reports."""
