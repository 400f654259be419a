"""Linked tables: children, such as persons, that belong to a parent, such as their household."""
