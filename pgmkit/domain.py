"""The domain: named discrete attributes and the number of values of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from pgmkit.errors import InvalidInput, did_you_mean
from pgmkit.runtime.arguments import check_order, check_whole, listed, mapped
from pgmkit.runtime.memory import check_room
from pgmkit.runtime.sizes import CALL_CELLS, CELL_BYTES

Clique = tuple[str, ...]
"""A tuple of distinct attribute names; the axes of a clique's arrays follow its order."""


class Domain:
    """Attributes in a fixed order, each with its number of values (codes are 0 .. size - 1).

    Immutable and hashable. Two domains are equal when they have the same attributes with the
    same sizes in the same order.

    Raises InvalidInput when `sizes` is empty, an attribute is not a non-empty string, or a size
    is not a positive integer.

    >>> domain = Domain({"age": 10, "sex": 2, "race": 5})
    >>> domain.size(), domain.shape(["sex", "age"])
    (100, (2, 10))
    >>> domain.project(["race", "age"])
    Domain({'race': 5, 'age': 10})
    """

    attributes: Clique
    """The attribute names, in order."""
    sizes: Mapping[str, int]
    """The number of values of each attribute (a read-only mapping, in order)."""
    _checked: set[Clique]
    """Cliques that `clique` has accepted; it does not check them a second time."""
    _hash: int

    def __init__(self, sizes: Mapping[str, int]) -> None:
        if not mapped(sizes, "sizes", "attributes to sizes, such as {'age': 10, 'sex': 2}"):
            raise InvalidInput("sizes is empty: a domain needs at least one attribute")
        self._fill({name: _checked_size(name, size) for name, size in sizes.items()})

    def _fill(self, sizes: dict[str, int]) -> None:
        hashed, known = hash(tuple(sizes.items())), MappingProxyType(sizes)
        vars(self).update(attributes=tuple(sizes), sizes=known, _checked=set(), _hash=hashed)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The place of each attribute in the order, from 0 (a read-only mapping)."""
        return MappingProxyType({name: place for place, name in enumerate(self.attributes)})

    def ordered(self, attrs: Iterable[str]) -> Clique:
        """Return `attrs` in the domain's order.

        Raises InvalidInput for a bare string, unknown or duplicate attributes.

        >>> Domain({"age": 10, "sex": 2, "race": 5}).ordered({"race", "age"})
        ('age', 'race')
        """
        return tuple(sorted(self._known(attrs, "attrs"), key=self.places.__getitem__))

    def shape(self, attrs: Iterable[str] | None = None) -> tuple[int, ...]:
        """Return the sizes of `attrs` in the given order (of all attributes by default).

        Raises InvalidInput for a bare string, a set, unknown or duplicate attributes.
        """
        if attrs is None:
            return tuple(self.sizes.values())
        return tuple(map(self.sizes.__getitem__, self.clique(attrs, "attrs")))

    def size(self, attrs: Iterable[str] | None = None) -> int:
        """Return the number of cells over `attrs`: an exact integer, 1 for no attributes.

        Raises InvalidInput for a bare string, unknown or duplicate attributes.

        >>> Domain({f"x{i}": 1000 for i in range(10)}).size() == 10**30
        True
        """
        known = self if attrs is None else self._known(attrs, "attrs")
        return math.prod(map(self.sizes.__getitem__, known))

    def smallest_holding(self, cliques: Sequence[Clique], attrs: Iterable[str]) -> int | None:
        """Return the position in `cliques` of the clique with the fewest cells that contains
        `attrs`, the first of equal ones; None if no clique contains them.

        Raises InvalidInput for a bare string, unknown or duplicate attributes.

        >>> Domain({"a": 2, "b": 3, "c": 4}).smallest_holding([("b", "c"), ("a", "b")], ["b"])
        1
        """
        wanted = frozenset(self._known(attrs, "attrs"))
        known = [self.clique(each) for each in listed(cliques, "cliques", "cliques")]
        places = (place for place, clique in enumerate(known) if wanted <= set(clique))
        return min(places, key=lambda place: self.size(known[place]), default=None)

    def project(self, attrs: Iterable[str]) -> Domain:
        """Return the domain over `attrs`, in the given order; without attributes, the domain of a
        single cell.

        Raises InvalidInput for a bare string, a set, unknown or duplicate attributes.
        """
        return _unchecked({name: self.sizes[name] for name in self.clique(attrs, "attrs")})

    def clique(self, attrs: Iterable[str], name: str = "clique") -> Clique:
        """Return `attrs` as a tuple in the given order, checked; errors call it `name`.

        Raises InvalidInput for a bare string, a set, which has no order, and for unknown or
        duplicate attributes.

        >>> Domain({"age": 10, "sex": 2}).clique(["sex"])
        ('sex',)
        """
        if type(attrs) is not tuple:
            check_order(attrs, name)
        return self._known(attrs, name)

    def _known(self, attrs: Iterable[str], name: str) -> Clique:
        """Return `attrs` as a tuple, checked as by `clique`, except that a set is accepted too (in
        any order).
        """
        try:
            if type(attrs) is tuple and attrs in self._checked:
                return attrs
        except TypeError:  # an entry cannot be hashed, and is refused below as no attribute
            pass
        if isinstance(attrs, (str, bytes)):
            raise InvalidInput(
                f"{name} must be a sequence of attribute names, got the string {attrs!r}; "
                f"write ({attrs!r},) for one attribute"
            )
        checked = tuple(listed(attrs, name, "attribute names"))
        for attribute in checked:
            if not isinstance(attribute, str) or attribute not in self.sizes:
                raise InvalidInput(
                    f"{name} names an unknown attribute {attribute!r}"
                    f"{did_you_mean(attribute, self.attributes)};"
                    f" the domain has {_shortened(self.attributes)}"
                )
        if len(set(checked)) < len(checked):
            repeated = next(a for a in checked if checked.count(a) > 1)
            raise InvalidInput(f"{name} names the attribute {repeated!r} twice; name it once")
        self._checked.add(checked)
        return checked

    def cell_map(self, source: Iterable[str], target: Iterable[str]) -> NDArray[np.int64]:
        """Return, for every cell of the table over `source` (in C order), the flat index of the
        cell of the table over `target` into which it is summed.

        The axes of each table are in the order given. Raises InvalidInput for a set, unknown or
        duplicate attributes, and for one of `target` that is not in `source`; ModelTooLarge for
        more cells than there is memory for.

        >>> Domain({"a": 2, "b": 3}).cell_map(["a", "b"], ["b"])
        array([0, 1, 2, 0, 1, 2])
        """
        held, kept = self.clique(source, "source"), self.clique(target, "target")
        if not set(kept) <= set(held):
            raise InvalidInput(f"target must be within source {held!r}, got {kept!r}")
        shape = tuple([self.sizes[name] for name in held])
        places = tuple([held.index(name) for name in kept])
        cells = math.prod(shape)
        check_room(CELL_BYTES * cells, f"the cell map of {held!r:.200}")
        if cells <= CALL_CELLS:
            return _small_cell_map(shape, places).copy()
        return _cell_map(shape, places)

    def allowed(self, attribute: str, codes: int | Sequence[int]) -> NDArray[np.bool_]:
        """Return a Boolean for each code of an attribute: True for those in `codes`, which is one
        code or several.

        Raises InvalidInput for an unknown attribute, for no codes, and for a value that is not one
        of the attribute's codes; ModelTooLarge for more codes than there is memory for.

        >>> Domain({"a": 3}).allowed("a", [0, 2])
        array([ True, False,  True])
        """
        size = self.sizes[self.clique([attribute], "evidence")[0]]
        name = f"codes of {attribute!r}"
        wanted = [codes] if isinstance(codes, int | np.integer) else listed(codes, name, "codes")
        if not wanted:
            raise InvalidInput(f"{name} must be one or more, got none")
        for code in wanted:
            check_whole(code, f"each of the {name}", 0, size - 1)
        check_room(size, f"a mask of the {name}")
        mask = np.zeros(size, dtype=np.bool_)
        mask[wanted] = True
        return mask

    def __contains__(self, attribute: object) -> bool:
        return isinstance(attribute, str) and attribute in self.sizes

    def __len__(self) -> int:
        return len(self.attributes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.attributes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Domain):
            return NotImplemented
        return self._hash == other._hash and tuple(self.sizes.items()) == tuple(other.sizes.items())

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Domain({dict(self.sizes)!r})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Domain cannot be changed; build a new one")

    def __reduce__(self) -> tuple[object, tuple[dict[str, int]]]:
        # The read-only mapping inside cannot be pickled or copied by itself.
        return _unchecked, (dict(self.sizes),)


def check_domain(domain: Domain) -> None:
    """Raise `InvalidInput` unless the argument is a `Domain`."""
    if not isinstance(domain, Domain):
        raise InvalidInput(
            f"domain must be a pgmkit Domain, got {type(domain).__name__}; it is the first "
            'argument, such as Domain({"age": 10, "sex": 2})'
        )


def _cell_map(shape: tuple[int, ...], places: tuple[int, ...]) -> NDArray[np.int64]:
    """Return, for every cell of a table of this shape, the flat index of the cell of a smaller
    table into which it is summed. The axes of the smaller table are the axes `places` of the
    table, in the order given.
    """
    kept = [shape[place] for place in places]
    cells = np.arange(math.prod(kept), dtype=np.int64).reshape(kept)
    ordered = cells.transpose(sorted(range(len(places)), key=places.__getitem__))
    spread = ordered[tuple(slice(None) if axis in places else None for axis in range(len(shape)))]
    return np.broadcast_to(spread, shape).reshape(-1)


_small_cell_map = lru_cache(maxsize=256)(_cell_map)


def _unchecked(sizes: dict[str, int]) -> Domain:
    """Return the domain with these sizes, which are known to be valid."""
    domain = Domain.__new__(Domain)
    domain._fill(sizes)
    return domain


def _checked_size(name: object, size: int) -> int:
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"an attribute name must be a non-empty string, got {name!r}")
    check_whole(size, f"the size of attribute {name!r}", 1)
    return int(size)


def _shortened(names: Clique, limit: int = 20) -> str:
    listed = ", ".join(repr(name) for name in names[:limit])
    return listed if len(names) <= limit else f"{listed}, ... ({len(names)} in all)"
