"""The choice of which questions are answered by the same messages.

A marginal of a Bayesian network depends only on the tables of the attributes asked of, those
observed, and their ancestors (all others are *barren*: Shachter 1986). One tree for all questions
goes through every table once, but joins the parents of all children: its tables may be hundreds of
times as large as those of each question by itself. So the questions are split if that costs less,
into those that have a certain ancestor and those that have not, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pgmkit.graphs.bit_sets import each_bit, union
from pgmkit.runtime.sizes import MULTIPLICATIONS_A_SECOND

LARGE_PASS = MULTIPLICATIONS_A_SECOND / 300
"""Multiplications that take longer than the search of orders for two halves of the questions."""
MOSTLY_CELLS = 6
"""A pass is split only if its multiplications take this many times as long as handling its tables,
since every part handles the shared ancestors' tables again; with fewer questions than this, that
many times.
"""
_WORTH = 1.5
"""The factor by which all parts together must be cheaper than one tree: a search improves the
larger tree by more.
"""

Part = tuple[float, int]
"""The work of a part's answer, and its attributes as a set."""
Closed = tuple[int, list[int]]
"""A set of attributes with all their relevant ancestors, and the questions that it answers."""


@dataclass(frozen=True)
class Cost:
    """The cost of an answer by one tree."""

    cells: float
    """Multiplications."""
    tables: float
    """The work of handling the tables themselves, in the time of so many multiplications."""

    @property
    def work(self) -> float:
        """The sum of both."""
        return self.cells + self.tables


Draft = Callable[[int, Sequence[int]], Cost]
"""A function of a set of attributes and some questions: the cost of their answers by one tree."""


def may_pay(whole: Cost, questions: int) -> bool:
    """True if the work of one tree is large enough to try to split the questions."""
    return whole.cells >= max(LARGE_PASS, min(MOSTLY_CELLS, questions) * whole.tables)


def split_questions(questions: Mapping[int, int], draft: Draft) -> list[int]:
    """Split the questions into groups, each answered by one tree, and return the trees' sets of
    attributes, those with the least work first.

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
    parts = _parts(list(sets.items()), whole, draft)
    if _WORTH * sum([work for work, _ in parts]) > whole.work:
        return [union(sets)]
    return [members for _, members in sorted(parts)]


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
    """Split the sets into those that hold a certain attribute, which about half of them do, and the
    others.
    """
    counts: dict[int, int] = {}
    for members, _ in sets:
        for v in each_bit(members):
            counts[v] = counts.get(v, 0) + 1
    middle = min(counts, key=lambda v: abs(2 * counts[v] - len(sets)))
    having = [each for each in sets if each[0] >> middle & 1]
    return having, [each for each in sets if not each[0] >> middle & 1]
