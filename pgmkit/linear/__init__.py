"""Matrices that act on one axis of a table and their Kronecker products; tables whose axes have
names.
"""
