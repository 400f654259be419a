"""Measuring strategies chosen by expected error alone: they depend on the workload, never
on data.
"""
