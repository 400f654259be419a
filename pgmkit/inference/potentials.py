"""Checks of the potentials and the total that a model is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from numbers import Real
from sys import float_info
from typing import Any

import numpy as np

from pgmkit.domain import Domain, check_domain
from pgmkit.errors import InvalidInput
from pgmkit.factor import Factor
from pgmkit.inference.self_check import DEFECT, ROUNDINGS
from pgmkit.runtime.arguments import listed, number
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.precision import TINY


def checked_potentials(domain: Domain, potentials: Iterable[Factor]) -> tuple[Factor, ...]:
    """Return the potentials of a model over this domain as a tuple, after checking them.

    Raises InvalidInput if ``domain`` is not a Domain, a potential is not a Factor, does not fit the
    domain or has another dtype or device than the first; if one is NaN or plus infinity; and if
    they are so large that rounding errors would exceed what the self-check allows.
    """
    check_domain(domain)
    checked = tuple(listed(potentials, "potentials", "factors, such as (factor,)"))
    size = 0.0
    for place, factor in enumerate(checked):
        if not isinstance(factor, Factor):
            raise InvalidInput(
                f"potentials[{place}] must be a pgmkit Factor, got {type(factor).__name__}; wrap "
                "arrays: Factor(domain.project(clique), array)"
            )
        name = f"potentials[{place}] over {factor.domain.attributes!r}"
        domain.clique(factor.domain.attributes, name)
        for attribute, cells in factor.domain.sizes.items():
            if cells != domain.sizes[attribute]:
                raise InvalidInput(
                    f"{name} has {cells} cells along {attribute!r}, but the domain gives it "
                    f"{domain.sizes[attribute]} values; build the factor over "
                    "domain.project(clique)"
                )
        size += _checked_size(name, factor, checked[0])
    # `most` is the largest `size`, the sum of the potentials' largest magnitudes, at which rounding
    # stays below DEFECT. Of two roundings the larger counts: that of float64 in one step for each
    # table and each attribute, as `self_check` allows it, and one to the format of the potentials.
    rounding = float_info.epsilon * ROUNDINGS * (len(checked) + len(domain))
    most = DEFECT / max(rounding, _format(checked).eps)
    if size > most:
        raise InvalidInput(
            f"the largest magnitudes of the potentials, which are logarithms, must sum to at most "
            f"{most:.3g}, got {size:.3g}, with which rounding errors are too large; write "
            "minus infinity where a cell is impossible"
        )
    return checked


def least_total(potentials: Sequence[Factor]) -> float:
    """Return the least total of a model of these potentials. What tables of their dtype cannot hold
    to full precision is then below the rounding of the total.
    """
    limits = _format(potentials)
    return float(limits.tiny / limits.eps)


def _format(potentials: Sequence[Factor]) -> Any:
    """Return the limits (``eps``, ``tiny``) of the potentials' dtype, or those of float64 if there
    are no potentials.
    """
    plain = not potentials or potentials[0].array is not None
    return np.finfo(np.float64) if plain else torch.finfo(potentials[0].values.dtype)


def checked_total(total: float, least: float = TINY) -> float:
    """Return the total of a model. Raises InvalidInput unless it is a finite number of at least
    ``least``.
    """
    if isinstance(total, bool) or not isinstance(total, Real) or not least <= number(total) < inf:
        raise InvalidInput(
            f"total must be a finite number above 0 (at least {least:.2g}), got {total!r}; give "
            "the number of records"
        )
    return float(total)


def _checked_size(name: str, factor: Factor, first: Factor) -> float:
    """Return the largest finite magnitude of a potential. Raises InvalidInput if it holds NaN or
    plus infinity, or has another dtype or device than the first potential; the error calls it
    ``name``.
    """
    held = factor.array
    # If a value is NaN, the maximum is NaN, and this comparison is false.
    if held is not None and first.array is not None and held.max(initial=-inf) < inf:
        return float(np.abs(held[held > -inf]).max(initial=0.0))
    values, like = factor.values.detach(), first.values
    if (values.dtype, values.device) != (like.dtype, like.device):
        raise InvalidInput(
            f"{name} is {values.dtype} on {values.device}, but potentials[0] is {like.dtype} on "
            f"{like.device}; convert one with Factor(f.domain, f.values.to(g.values))"
        )
    if float(values.max()) < inf:
        return float(torch.where(torch.isneginf(values), 0.0, values).abs().max())
    place = tuple(torch.nonzero(torch.isnan(values) | torch.isposinf(values))[0].tolist())
    raise InvalidInput(
        f"{name} holds {float(values[place])} at the cell {place}, but potentials are finite "
        "numbers, or minus infinity where a cell is impossible; correct the values"
    )
