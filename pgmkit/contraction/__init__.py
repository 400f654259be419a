"""Sums of products of tables: plans, orders, buffers, semirings and the kernels that run them."""
