"""Graphs over attributes: cliques, elimination orders, junction trees."""
