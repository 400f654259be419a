"""Which questions are answered by the same messages.

A marginal of a Bayesian network needs the tables of what is asked and observed, and of their
ancestors, alone (*barren* variables: Shachter 1986). One tree for all questions goes through every
table once, but joins the parents of all children: its tables may be hundreds of times as large as
those of each question by itself. So questions are parted where that costs less, those that have a
certain ancestor from those that have not, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pgmkit.bit_sets import each_bit, union
from pgmkit.conditioning.graph_tables import Draft

__all__ = ["may_pay", "parted"]

_LARGE_PASS = 3e6
"""Multiplications that take longer than orders for two halves of the questions."""
_MOSTLY_CELLS = 6
"""How many times longer than its tables the cells of a pass take if it may pay to part it: every
part has tables of its own for the ancestors that all share.
"""
_IN_VAIN = 4
"""How many times longer for each halving above that brought nothing."""
_WORTH = 1.5
"""How many times less all parts take, for a search improves the larger tree by more."""

Part = tuple[float, int]
"""What it takes to answer, and its attributes."""


def may_pay(whole: Draft, in_vain: int = 0) -> bool:
    """Whether a tree is so large that its questions may be parted, after some halvings in vain."""
    longer = _MOSTLY_CELLS * _IN_VAIN**in_vain
    return whole.cells >= max(_LARGE_PASS, longer * (whole.work - whole.cells))


def parted(questions: Iterable[int], whole: Draft, draft: Callable[[int], Draft]) -> list[int]:
    """Sets of attributes whose trees answer the questions, the cheapest first.

    Args:
        questions: for each the attributes that matter to it, ancestors included.
        whole: of a tree for all of them.
        draft: of the tree of such a set of attributes.
    """
    sets: list[int] = []
    for each in sorted(set(questions), key=int.bit_count, reverse=True):
        if all(each & ~larger for larger in sets):
            sets.append(each)
    parts = _parts(sets, whole, draft, 0)
    if _WORTH * sum([work for work, _ in parts]) > whole.work:
        return [union(sets)]
    return [members for _, members in sorted(parts)]


def _parts(
    sets: Sequence[int], whole: Draft, draft: Callable[[int], Draft], in_vain: int
) -> list[Part]:
    alone = [(whole.work, union(sets))]
    if len(sets) < 2 or not may_pay(whole, in_vain):
        return alone
    halves = [(half, draft(union(half))) for half in _halves(sets)]
    in_vain += sum([half.work for _, half in halves]) >= whole.work
    found = [part for each, half in halves for part in _parts(each, half, draft, in_vain)]
    return found if sum([work for work, _ in found]) < whole.work else alone


def _halves(sets: Sequence[int]) -> tuple[list[int], list[int]]:
    """Those that have an attribute which about half of them have, and the others."""
    counts: dict[int, int] = {}
    for members in sets:
        for v in each_bit(members):
            counts[v] = counts.get(v, 0) + 1
    middle = min(counts, key=lambda v: abs(2 * counts[v] - len(sets)))
    having = [members for members in sets if members >> middle & 1]
    return having, [members for members in sets if not members >> middle & 1]
