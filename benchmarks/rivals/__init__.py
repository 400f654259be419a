"""Adapters of other programs for `benchmarks.arena`: a file each, run under their interpreter.

Each answers a request (sizes, codes by column, epsilon, delta, seed, cap) with records as codes,
CPU seconds and megabytes. They import the rival and `benchmarks.common`, nothing of pgmkit.
"""
