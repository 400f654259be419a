"""The limits of iterative methods, which stop earlier where they reach their goals."""

from __future__ import annotations

MOST_ROUNDS = 100
"""The rounds of a method that settles within tens, unless rounding keeps it from its goal."""
MOST_ITERATIONS = 1000
"""The cheap iterations, of gradients or products with a matrix, after which more bring little."""
PATIENCE = 30
"""The steps over which a search has to gain a part of its goal; with momentum some gain nothing."""
WINDOW = 8
"""The iterations over which the progress of a quasi-Newton method, or of rounds, is judged."""
ROUGHLY_SOLVED = 0.1
"""The share of an outer problem's goal to which its inner problems are solved: more precision would
be lost with the next outer step (Dembo, Eisenstat and Steihaug, 1982)."""
SOLVED = 1e-3
"""The same where the solution of the inner problem is used as it is."""
SUFFICIENT = 1e-4
"""The share of the fall that the slope predicts which a step has to reach (Armijo's condition:
Nocedal and Wright, section 3.1)."""
