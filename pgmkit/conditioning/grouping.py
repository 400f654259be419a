"""The choice of questions that are answered by the same messages.

A marginal of a Bayesian network needs the tables of what is asked and observed, and of their
ancestors, alone (*barren* variables: Shachter 1986). One tree for all questions goes through every
table once, but joins the parents of all children: its tables may be hundreds of times as large as
those of each question by itself. So questions are parted where that costs less, those that have a
certain ancestor from those that have not, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pgmkit.graphs.bit_sets import each_bit, union

__all__ = ["LARGE_PASS", "Cost", "may_pay", "parted"]

LARGE_PASS = 3e6
"""Multiplications that take longer than orders for two halves of the questions."""
_MOSTLY_CELLS = 6
"""How many times longer than its tables the cells of a pass take if it may pay to part it: every
part has tables of its own for the ancestors that all share. At most as many as there are questions.
"""
_IN_VAIN = 4
"""How many times longer for each halving above that brought nothing."""
_WORTH = 1.5
"""How many times less all parts take, for a search improves the larger tree by more."""

Part = tuple[float, int]
"""The work of a part's answer, and its attributes."""
Closed = tuple[int, list[int]]
"""Attributes with all that matter to them, and the questions that they answer."""


@dataclass(frozen=True)
class Cost:
    """The cost of an answer by one tree."""

    cells: float
    """Multiplications."""
    tables: float
    """The cells of its tables by themselves."""

    @property
    def work(self) -> float:
        """Both."""
        return self.cells + self.tables


Draft = Callable[[int, Sequence[int]], Cost]
"""A function that gives the cost of a tree of a set of attributes for some questions."""


def may_pay(whole: Cost, questions: int, in_vain: int = 0) -> bool:
    """True if so much work is worth a try to part the questions, after some halvings in vain."""
    longer = min(_MOSTLY_CELLS, questions) * _IN_VAIN**in_vain
    return whole.cells >= max(LARGE_PASS, longer * whole.tables)


def parted(questions: Mapping[int, int], draft: Draft) -> list[int]:
    """Sets of attributes whose trees answer the questions, the cheapest first.

    Args:
        questions: sets of attributes, and for each those that matter to it, ancestors included.
        draft: of what an answer takes.
    """
    sets: dict[int, list[int]] = {}
    for asked, needed in sorted(questions.items(), key=lambda each: -each[1].bit_count()):
        home = next((larger for larger in sets if not needed & ~larger), needed)
        sets.setdefault(home, []).append(asked)
    whole = draft(union(sets), list(questions))
    parts = _parts(list(sets.items()), whole, draft, 0)
    if _WORTH * sum([work for work, _ in parts]) > whole.work:
        return [union(sets)]
    return [members for _, members in sorted(parts)]


def _parts(sets: Sequence[Closed], whole: Cost, draft: Draft, in_vain: int) -> list[Part]:
    alone = [(whole.work, union([members for members, _ in sets]))]
    if len(sets) < 2 or not may_pay(whole, len(sets), in_vain):
        return alone
    halves = []
    for half in _halves(sets):
        asked = [each for _, questions in half for each in questions]
        halves.append((half, draft(union([members for members, _ in half]), asked)))
    in_vain += sum([half.work for _, half in halves]) >= whole.work
    found = [part for each, half in halves for part in _parts(each, half, draft, in_vain)]
    return found if sum([work for work, _ in found]) < whole.work else alone


def _halves(sets: Sequence[Closed]) -> tuple[list[Closed], list[Closed]]:
    """Those that have an attribute which about half of them have, and the others."""
    counts: dict[int, int] = {}
    for members, _ in sets:
        for v in each_bit(members):
            counts[v] = counts.get(v, 0) + 1
    middle = min(counts, key=lambda v: abs(2 * counts[v] - len(sets)))
    having = [each for each in sets if each[0] >> middle & 1]
    return having, [each for each in sets if not each[0] >> middle & 1]
