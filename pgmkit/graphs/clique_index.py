"""An index that finds the cliques with given attributes without going through all cliques."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pgmkit.domain import Clique


class CliqueIndex:
    """The positions of cliques in a sequence, indexed by attribute.

    >>> index = CliqueIndex([("a", "b"), ("b", "c"), ("c",)])
    >>> index.containing(["b"]), index.containing(["c"]), index.containing(["a", "c"])
    ([0, 1], [1, 2], [])
    """

    def __init__(self, cliques: Sequence[Collection[str]]) -> None:
        self.sets = [frozenset(clique) for clique in cliques]
        self.places: dict[str, list[int]] = {}
        for place, clique in enumerate(self.sets):
            for name in clique:
                self.places.setdefault(name, []).append(place)

    def containing(self, attrs: Collection[str]) -> list[int]:
        """Return the positions of the cliques that contain all of `attrs`, ascending; all positions
        if `attrs` is empty.
        """
        if not attrs:
            return list(range(len(self.sets)))
        wanted = frozenset(attrs)
        # Only the cliques of the rarest attribute are searched. In a star these are the few cliques
        # of a leaf instead of all cliques of the hub.
        rarest = min((self.places.get(name, []) for name in wanted), key=len)
        return [place for place in rarest if wanted <= self.sets[place]]


def maximal(cliques: Sequence[Clique]) -> list[int]:
    """Return the positions of the cliques that are not proper subsets of another; of equal cliques,
    only the first.

    >>> maximal([("a",), ("a", "b"), ("b", "a"), ("c",)])
    [1, 3]
    """
    index = CliqueIndex(cliques)
    first = {held: place for place, held in reversed(list(enumerate(index.sets)))}
    return [
        place
        for place, held in enumerate(index.sets)
        if first[held] == place
        and all(index.sets[other] == held for other in index.containing(held))
    ]
