"""The limits of iterative methods, which stop earlier if they reach their goals."""

from __future__ import annotations

MOST_ROUNDS = 100
"""The most rounds of a method that settles within tens of rounds unless rounding prevents it."""
MOST_ITERATIONS = 1000
"""The most cheap iterations (of gradients, or of products with a matrix); further ones gain
little.
"""
FEW_ROUNDS = 10
"""The rounds given to a method that makes most of its progress within them."""
PATIENCE = 30
"""The steps over which the loss of a search must fall by a tenth to a quarter of the search's goal,
or it ends; with momentum some single steps gain nothing.
"""
WINDOW = 8
"""A few iterations: those over which the progress of a search is judged, those between two reads of
a GPU's state, or the past steps that a quasi-Newton method keeps.
"""
ROUGHLY_SOLVED = 0.1
"""The precision to which an inner problem is solved for one step of an outer problem: this share of
the outer problem's goal, or of the inner one's initial error. The next outer step would lose a
higher precision (Dembo, Eisenstat and Steihaug, 1982).
"""
SOLVED = 1e-3
"""The precision to which a problem is solved whose solution is used as it is, as a share of its
initial error; also the share of its loss that a search must gain in a step to go on.
"""
SUFFICIENT = 1e-4
"""The least share of the decrease predicted by the slope that a step must reach (Armijo's
condition: Nocedal and Wright, section 3.1).
"""
SLIGHT = 0.01
"""The share of a goal, or of what is left to gain, that is not worth further work."""
