"""Checks that conditional tables form a Bayesian network, and that names of values are valid."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import numpy as np
from numpy.typing import ArrayLike

from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.runtime.arguments import check_unlabelled, float_array, in_order, mapped
from pgmkit.runtime.arrays import Array

TOLERANCE = 1e-5
"""The most by which a distribution's sum may differ from one: files that round to seven digits can
be so far off.
"""


def checked_conditionals(
    tables: Mapping[str, tuple[Sequence[str], ArrayLike]],
    states: Mapping[str, Sequence[Hashable]] | None,
) -> tuple[Domain, list[tuple[Clique, Array]], dict[str, tuple[Hashable, ...]]]:
    """Return three things: the domain; for each variable its clique (the variable, then its
    parents) with its table, scaled so that every distribution along the first axis sums to one; and
    the names of values. Raises InvalidInput unless the tables form a Bayesian network, and for
    ``states`` as `checked_states` does.
    """
    if not isinstance(tables, Mapping) or not tables:
        raise InvalidInput(
            "conditional tables must be a mapping such as "
            '{"rain": (("rain",), [0.8, 0.2]), "wet": (("wet", "rain"), table)}, got '
            f"{type(tables).__name__} {tables!r:.60}"
        )
    axes: dict[str, Clique] = {}
    arrays: dict[str, Array] = {}
    for name, pair in tables.items():
        try:
            attrs, table = pair
        except (TypeError, ValueError):
            raise InvalidInput(
                f"the table of {name!r} must be a pair (attributes, array), got {pair!r:.60}"
            ) from None
        held = axes[name] = tuple(in_order(attrs, f"the axes of {name!r}", "attribute names"))
        check_unlabelled(table, f"the table of {name!r}")
        arrays[name] = float_array(table, f"the table of {name!r}")
        if not all(isinstance(each, str) for each in held) or held[:1] != (name,):
            raise InvalidInput(
                f"the axes of {name!r} are {held!r:.80}; write the variable first, then its "
                f"parents: ({name!r}, ...)"
            )
        if arrays[name].ndim != len(held):
            raise InvalidInput(
                f"the table of {name!r} must have one axis for each of {held!r}, got shape "
                f"{arrays[name].shape}; use numpy.reshape, the last axis changing fastest"
            )
    domain = Domain({name: len(array) for name, array in arrays.items()})
    cliques, named = [], checked_states(domain, states)
    for name in tables:
        clique = domain.clique(axes[name], f"the axes of {name!r}")
        if arrays[name].shape != domain.shape(clique):
            raise InvalidInput(
                f"the table of {name!r} over {clique!r} has shape {arrays[name].shape}; its "
                f"parents' own tables make it {domain.shape(clique)}"
            )
        cliques.append((clique, _normalised(clique, arrays[name], named)))
    try:
        TopologicalSorter({name: clique[1:] for name, clique in axes.items()}).prepare()
    except CycleError as error:
        raise InvalidInput(
            f"the parents form a cycle: {' -> '.join(error.args[1])}; a Bayesian network has "
            "none. Use FactorGraph(domain, tables) for potentials"
        ) from None
    return domain, cliques, named


def _normalised(clique: Clique, array: Array, named: Mapping[str, tuple[Hashable, ...]]) -> Array:
    """Return the table over ``clique``, the variable and its parents, scaled so that every
    distribution along the first axis sums to one. Raises InvalidInput for an entry below 0 or not
    finite, and for a sum that is farther than TOLERANCE from one; the message has the names of
    values in ``named``, or codes.
    """
    name, *parents = clique
    if not (np.isfinite(array).all() and array.min() >= 0):
        raise InvalidInput(f"the table of {name!r} holds a negative number, NaN or infinity")
    totals = array.sum(0)
    if not np.abs(totals - 1).max() <= TOLERANCE:
        cell = np.unravel_index(int(np.abs(totals - 1).argmax()), totals.shape)
        values = [named[p][c] if p in named else c for p, c in zip(parents, cell, strict=True)]
        given = ", ".join(f"{p} = {value}" for p, value in zip(parents, values, strict=True))
        said = (
            f"sums to {totals[cell]:.6g}" if totals[cell] else "is missing (its numbers are all 0)"
        )
        raise InvalidInput(
            f"the distribution of {name!r}{' given ' + given if given else ''} {said}; a sum "
            f"within {TOLERANCE:g} of one is allowed; correct the table (its first axis is the "
            "variable), or build the graph with FactorGraph(domain, tables) if these are potentials"
        )
    return array / totals


def checked_states(
    domain: Domain, states: Mapping[str, Sequence[Hashable]] | None
) -> dict[str, tuple[Hashable, ...]]:
    """Check the names that a user gives to the values of attributes, and return them as tuples. The
    result is empty if `states` is None, and attributes may be left out. Raises InvalidInput for an
    unknown attribute, for names in a set, and unless each value of a listed attribute has a name of
    its own, which is hashable.
    """
    found: dict[str, tuple[Hashable, ...]] = {}
    if states is None:
        return found
    for name, values in mapped(states, "states", "attributes to names of values").items():
        (size,) = domain.shape(domain.clique([name], "states"))
        found[name] = tuple(in_order(values, f"the states of {name!r}", "names"))
        hashable = all(isinstance(value, Hashable) for value in found[name])
        if not hashable or len(found[name]) != size or len(set(found[name])) != size:
            raise InvalidInput(
                f"states of {name!r} must be {size} different names, got {found[name]!r:.80}"
            )
    return found
