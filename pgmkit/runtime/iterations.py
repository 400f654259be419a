"""When iterative methods stop, beside their own goals."""

from __future__ import annotations

MOST_ROUNDS = 100
"""Rounds of a method that settles within tens, unless rounding keeps it from its goal."""
MOST_ITERATIONS = 1000
"""Cheap iterations, of gradients or products with a matrix, after which more bring little."""
PATIENCE = 30
"""Steps over which a search has to gain a part of its goal: with momentum some gain nothing."""
ROUGHLY_SOLVED = 0.1
"""Share of what an outer step may leave undone to which an inner problem is solved: closer
solutions of it are thrown away with the step (Dembo, Eisenstat and Steihaug, 1982)."""
SOLVED = 1e-3
"""The same where the inner problem's solution is used as it is."""
SUFFICIENT = 1e-4
"""Share of the fall by the slope that a step has to reach (Armijo; Nocedal and Wright, 3.1)."""
