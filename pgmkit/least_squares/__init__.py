"""Least squares over noisy tables: sufficient statistics, consistent tables, linear estimates, and
the goodness of fit.
"""
