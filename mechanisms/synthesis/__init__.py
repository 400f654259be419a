"""The steps from a data frame and a budget to a release: request, choice of a mechanism,
plan, run.
"""
