"""What a model takes as its potentials."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.factor import Factor
from pgmkit.runtime.deferred import torch

__all__ = ["checked_potentials"]


def checked_potentials(domain: Domain, potentials: Iterable[Factor]) -> tuple[Factor, ...]:
    """The potentials of a model over this domain, of one dtype and device.

    Raises InvalidInput for what is no factor, does not fit the domain, or holds NaN or plus
    infinity.
    """
    if isinstance(potentials, Factor) or not isinstance(potentials, Iterable):
        raise InvalidInput(
            f"potentials must be a sequence of factors, got {type(potentials).__name__}; write "
            "(factor,) for one factor"
        )
    checked = tuple(potentials)
    for place, factor in enumerate(checked):
        if not isinstance(factor, Factor):
            raise InvalidInput(
                f"potentials[{place}] must be a pgmkit Factor, got {type(factor).__name__}; wrap "
                "arrays: Factor(domain.project(clique), array)"
            )
        name = f"potentials[{place}] over {factor.domain.attributes!r}"
        _check_fits_domain(name, factor, domain)
        _check_values(name, factor, checked[0])
    return checked


def _check_fits_domain(name: str, factor: Factor, domain: Domain) -> None:
    domain.clique(factor.domain.attributes, name)
    for attribute, size in factor.domain.sizes.items():
        if size != domain.sizes[attribute]:
            raise InvalidInput(
                f"{name} has {size} cells along {attribute!r}, but the domain gives it "
                f"{domain.sizes[attribute]} values; build the factor over domain.project(clique)"
            )


def _check_values(name: str, factor: Factor, first: Factor) -> None:
    held = factor.array
    if held is not None and first.array is not None and held.max() < inf:
        return
    values, like = factor.values, first.values
    if (values.dtype, values.device) != (like.dtype, like.device):
        raise InvalidInput(
            f"{name} is {values.dtype} on {values.device}, but potentials[0] is {like.dtype} on "
            f"{like.device}; convert one with Factor(f.domain, f.values.to(g.values))"
        )
    # torch's maximum of anything with NaN is NaN: one pass finds both kinds.
    if float(values.max()) < inf:
        return
    wrong = torch.isnan(values) | torch.isposinf(values)
    place = tuple(torch.nonzero(wrong)[0].tolist())
    raise InvalidInput(
        f"{name} holds {float(values[place])} at the cell {place}, but potentials are finite "
        "numbers, or minus infinity where a cell is impossible; correct the values"
    )
