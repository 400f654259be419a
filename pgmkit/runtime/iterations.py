"""The limits of iterative methods, which stop earlier if they reach their goals."""

from __future__ import annotations

MOST_ROUNDS = 100
"""The most rounds of a method that settles within tens of rounds unless rounding prevents it."""
MOST_ITERATIONS = 1000
"""The most cheap iterations (of gradients, or of products with a matrix); further ones gain
little.
"""
FEW_ROUNDS = 10
"""The rounds of a method that gains most of what there is to gain within them."""
PATIENCE = 30
"""The steps over which a search must gain a part of its goal; with momentum some single steps gain
nothing.
"""
WINDOW = 8
"""The iterations over which the progress of a quasi-Newton method, or of rounds, is judged, and
those whose steps the method remembers.
"""
ROUGHLY_SOLVED = 0.1
"""The share of an outer problem's goal to which its inner problems are solved; the next outer step
would lose a higher precision (Dembo, Eisenstat and Steihaug, 1982).
"""
SOLVED = 1e-3
"""The same share if the solution of the inner problem is used as it is."""
SUFFICIENT = 1e-4
"""The share of the fall that the slope predicts which a step has to reach (Armijo's condition:
Nocedal and Wright, section 3.1)."""
