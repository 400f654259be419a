"""The choice of which questions are answered by messages on the same tree.

A marginal of a Bayesian network depends only on the tables of the attributes asked for, of those
observed, and of their ancestors (all others are *barren*: Shachter 1986). One tree for all
questions processes every table once, but it joins the parents of every attribute that matters to
any question. Its tables may be hundreds of times as large as those of a tree for each question: the
largest of one tree for pgmpy's network munin1 has 16.8 million cells, and that of several trees 1.8
million. If several trees cost less, the questions are therefore split into those that depend on a
certain attribute and those that do not, and each part again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pgmkit.graphs.bit_sets import each_bit, union
from pgmkit.runtime.sizes import MULTIPLICATIONS_A_SECOND

LARGE_PASS = MULTIPLICATIONS_A_SECOND / 300
"""The number of multiplications above which a pass takes longer than the search for orders of two
halves.
"""
MOSTLY_CELLS = 6
"""A pass is split only if its multiplications take at least this many times as long as handling its
tables, since every part handles the tables of shared ancestors again. For fewer questions than
this, the factor is their number.
"""

Part = tuple[float, int]
"""The estimated work of answering a group of questions by one tree, and the set of attributes that
their answers depend on.
"""
Closed = tuple[int, list[int]]
"""A set of attributes with all their relevant ancestors, and the questions that it answers."""


@dataclass(frozen=True)
class Cost:
    """The estimated cost of answering questions by one tree."""

    multiplications: float
    """The number of multiplications."""
    tables: float
    """The work of handling the tables themselves, as a number of multiplications that take as
    long.
    """

    @property
    def work(self) -> float:
        """The multiplications and the handling of tables together."""
        return self.multiplications + self.tables


Draft = Callable[[int, Sequence[int]], Cost]
"""A function of a set of attributes and some questions that returns the cost of answering them by
one tree.
"""


def may_pay(whole: Cost, questions: int) -> bool:
    """Return True if one tree for all ``questions``, at the cost ``whole``, costs so much that
    several trees may be cheaper.
    """
    return whole.multiplications >= max(LARGE_PASS, min(MOSTLY_CELLS, questions) * whole.tables)


def split_questions(questions: Mapping[int, int], draft: Draft) -> list[int]:
    """Split the questions into groups that are answered by one tree each, and return the set of
    attributes of each group's tree, the tree with the least work first.

    Args:
        questions: for each question's set of attributes the set that its answer depends on,
            ancestors included.
        draft: estimates the cost of answering questions by one tree.
    """
    sets: dict[int, list[int]] = {}
    for asked, needed in sorted(questions.items(), key=lambda each: -each[1].bit_count()):
        home = next((larger for larger in sets if not needed & ~larger), needed)
        sets.setdefault(home, []).append(asked)
    whole = draft(union(sets), list(questions))
    return [members for _, members in sorted(_parts(list(sets.items()), whole, draft))]


def _parts(sets: Sequence[Closed], whole: Cost, draft: Draft) -> list[Part]:
    alone = [(whole.work, union([members for members, _ in sets]))]
    if len(sets) < 2 or not may_pay(whole, len(sets)):
        return alone
    halves = []
    for half in _halves(sets):
        asked = [each for _, questions in half for each in questions]
        halves.append((half, draft(union([members for members, _ in half]), asked)))
    found = [part for each, half in halves for part in _parts(each, half, draft)]
    return found if sum([work for work, _ in found]) < whole.work else alone


def _halves(sets: Sequence[Closed]) -> tuple[list[Closed], list[Closed]]:
    """Split the sets into those that contain a certain attribute and the others. The attribute is
    the one that most nearly half of the sets contain.
    """
    counts = Counter(v for members, _ in sets for v in each_bit(members))
    middle = min(counts, key=lambda v: abs(2 * counts[v] - len(sets)))
    having = [each for each in sets if each[0] >> middle & 1]
    return having, [each for each in sets if not each[0] >> middle & 1]
