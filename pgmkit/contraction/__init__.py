"""Sums of products of tables: contraction plans and their order, buffers, semirings, and
kernels.
"""
