"""Factors: torch tensors whose axes are named by attributes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pgmkit.domain import Clique, Domain, check_domain
from pgmkit.errors import InvalidInput
from pgmkit.linear.axes import tensor_sum_to
from pgmkit.runtime.arguments import check_unlabelled, float_array
from pgmkit.runtime.deferred import is_tensor, torch


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Factor:
    """A real function on a domain: one value for each cell.

    `values` is a float32 or float64 tensor of shape `domain.shape()`, kept as it is (shared, on its
    device). Anything else array-like is copied into a float64 array, which becomes a tensor on the
    CPU on first use of `values`, so that reading a model does not load torch.

    `+ - * /` work cell by cell between factors, over the union of their attributes (the left
    operand's first), and with numbers. They follow IEEE arithmetic: -inf minus -inf and 0 / 0 are
    NaN. Both operands must have one dtype and device, and the same sizes for shared attributes.

    Raises InvalidInput when the shape, dtype or an operand does not fit.

    >>> f = Factor(Domain({"a": 2}), [1.0, 2.0])
    >>> g = Factor(Domain({"b": 3, "a": 2}), np.ones((3, 2)))
    >>> (f * g).domain
    Domain({'a': 2, 'b': 3})
    >>> (f * g + 1).project(["b"]).numpy()
    array([5., 5., 5.])
    """

    domain: Domain
    _held: torch.Tensor | NDArray[np.float64]

    # With None, `numpy scalar * factor` calls the operators of this class and not numpy's.
    __array_ufunc__ = None

    def __init__(self, domain: Domain, values: torch.Tensor | ArrayLike) -> None:
        check_domain(domain)
        check_unlabelled(values, "the values of a factor")
        held = values if is_tensor(values) else float_array(values, "the values of a factor")
        if is_tensor(held) and held.dtype not in (torch.float64, torch.float32):
            raise InvalidInput(
                f"the values of a factor must be float64 or float32, got {held.dtype}; "
                "convert with tensor.double()"
            )
        if tuple(held.shape) != domain.shape():
            raise InvalidInput(
                f"the values of a factor over {domain!r} must have shape {domain.shape()}, "
                f"got {tuple(held.shape)}"
            )
        object.__setattr__(self, "domain", domain)
        object.__setattr__(self, "_held", held)

    @property
    def values(self) -> torch.Tensor:
        """The values as a tensor of shape `domain.shape()`."""
        if isinstance(self._held, np.ndarray):
            object.__setattr__(self, "_held", torch.from_numpy(self._held))
        assert is_tensor(self._held)
        return self._held

    @property
    def array(self) -> NDArray[np.float64] | None:
        """The values as an array that shares their memory; None unless they are float64 numbers in
        the processor's memory.
        """
        if isinstance(self._held, np.ndarray):
            return self._held
        plain = self._held.dtype == torch.float64 and self._held.device.type == "cpu"
        return self._held.detach().numpy() if plain else None

    def __add__(self, other: Factor | Real | float) -> Factor:
        return self._combined(other, operator.add)

    def __sub__(self, other: Factor | Real | float) -> Factor:
        return self._combined(other, operator.sub)

    def __mul__(self, other: Factor | Real | float) -> Factor:
        return self._combined(other, operator.mul)

    def __truediv__(self, other: Factor | Real | float) -> Factor:
        return self._combined(other, operator.truediv)

    # Python calls the next four methods if the left operand is a number. If it is a factor, Python
    # calls that factor's method above.
    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Real | float) -> Factor:
        return self._combined(other, lambda mine, number: number - mine)

    def __rtruediv__(self, other: Real | float) -> Factor:
        # For a plain number torch would compute number * (1 / tensor), and the reciprocal is
        # rounded.
        return self._combined(other, lambda mine, number: mine.new_tensor(number) / mine)

    def __repr__(self) -> str:
        return f"Factor({self.domain!r}, {self.values.dtype}, {self.values.device})"

    def project(self, attrs: Iterable[str]) -> Factor:
        """Return the factor over `attrs`, in the given order; the other attributes are summed out.

        Raises InvalidInput for a bare string, a set, unknown or duplicate attributes.
        """
        kept = self.domain.clique(attrs, "attrs")
        values = tensor_sum_to(self.values, self.domain.attributes, kept)
        return Factor(self.domain.project(kept), values)

    def exp(self) -> Factor:
        """Return the exponential of every value; exp(-inf) is 0."""
        return Factor(self.domain, self.values.exp())

    def log(self) -> Factor:
        """Return the natural logarithm of every value; log(0) is -inf, that of a negative value
        NaN.
        """
        return Factor(self.domain, self.values.log())

    def transpose(self, attrs: Iterable[str]) -> Factor:
        """Return the same factor with its axes in the order of `attrs`, as a view of the same
        values.

        Raises InvalidInput when `attrs` is not a permutation of the factor's attributes.
        """
        order = self.domain.clique(attrs, "attrs")
        if len(order) != len(self.domain):
            raise InvalidInput(
                f"attrs must name every attribute of the factor once, got {order!r} for "
                f"{self.domain.attributes!r}; use project to sum attributes away"
            )
        return Factor(self.domain.project(order), _aligned(self, order))

    def expand(self, domain: Domain) -> Factor:
        """Return the same function on a larger domain, constant along the attributes it lacks.

        The axes follow `domain`. The values are a view that must not be written, since cells
        along new axes share memory.

        Raises InvalidInput when `domain` lacks an attribute or gives it another size.
        """
        check_domain(domain)
        for attribute in self.domain:
            if attribute not in domain:
                raise InvalidInput(
                    f"cannot expand to {domain!r}: it lacks the factor's attribute {attribute!r}; "
                    "use project to sum it away first"
                )
        _check_sizes(self.domain, domain)
        return Factor(domain, _aligned(self, domain.attributes).expand(domain.shape()))

    def numpy(self) -> NDArray[np.float64]:
        """Return a float64 copy of the values, of shape `domain.shape()`."""
        held = self.array
        return np.array(self.values.numpy(force=True) if held is None else held, float, order="C")

    def _combined(
        self, other: object, combine: Callable[[torch.Tensor, torch.Tensor | float], torch.Tensor]
    ) -> Factor:
        if isinstance(other, Real):
            number = float(float_array(other, "the operand of a factor"))
            return Factor(self.domain, combine(self.values, number))
        if not isinstance(other, Factor):
            raise InvalidInput(
                f"a factor combines with another factor or a number, got {type(other).__name__}; "
                "wrap arrays: Factor(domain, array)"
            )
        if self.values.dtype != other.values.dtype or self.values.device != other.values.device:
            raise InvalidInput(
                f"cannot combine a {self.values.dtype} factor on {self.values.device} with a "
                f"{other.values.dtype} factor on {other.values.device}; "
                "convert one with Factor(f.domain, f.values.to(g.values))"
            )
        _check_sizes(self.domain, other.domain)
        if self.domain == other.domain:
            return Factor(self.domain, combine(self.values, other.values))
        union = Domain(dict(self.domain.sizes) | dict(other.domain.sizes))
        order = union.attributes
        return Factor(union, combine(_aligned(self, order), _aligned(other, order)))


def _aligned(factor: Factor, order: Clique) -> torch.Tensor:
    """Return a view of the factor's values with its axes in `order`, which contains all its
    attributes; the axes of other attributes have length 1.
    """
    domain = factor.domain
    present = [a for a in order if a in domain]
    values = factor.values.permute([domain.attributes.index(a) for a in present])
    return values.reshape([domain.sizes[a] if a in domain else 1 for a in order])


def _check_sizes(one: Domain, other: Domain) -> None:
    for attribute in one:
        if attribute in other and one.sizes[attribute] != other.sizes[attribute]:
            raise InvalidInput(
                f"attribute {attribute!r} has size {one.sizes[attribute]} in one domain and "
                f"{other.sizes[attribute]} in the other; factors must share one domain"
            )
