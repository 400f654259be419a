"""A noisy linear view of one marginal: the input of estimation."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pgmkit.domain import Domain, check_domain
from pgmkit.errors import InvalidInput
from pgmkit.linear.kronecker import Kronecker, factors_of
from pgmkit.linear.matrix import Matrix, MatrixLike, as_matrix, check_finite, is_sparse
from pgmkit.queries import FactoredQuery
from pgmkit.runtime.arguments import (
    any_array,
    check_unlabelled,
    float_array,
    in_order,
    listed,
    number,
)
from pgmkit.runtime.precision import EXACT

QueryMatrix: TypeAlias = "MatrixLike | Kronecker | FactoredQuery | Sequence[MatrixLike]"


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Measurement:
    """Noisy linear values of one marginal, in counts: values = matrix @ marginal(clique).ravel() +
    N(0, stddev^2), with independent noise.

    ``values``: finite numbers, one for each row of ``matrix``; the natural shape is accepted (that
    of the marginal, or (r_1, ..., r_d) for a Kronecker product) and stored flattened in C order.

    ``stddev``: the standard deviation of the noise on each value, in counts, above 0.

    ``matrix``: None for the marginal itself; a 2-D array or scipy-sparse matrix whose columns are
    the marginal's cells in C order; a `Kronecker`; or a value that is turned into one: a list or
    tuple of one matrix for each attribute of the clique (never the rows of one matrix: wrap those
    in `numpy.array`), or a `FactoredQuery` over exactly the clique's attributes.

    The marginal of the empty clique has one cell, the total.

    Arrays are copied and read-only. Raises `InvalidInput`, naming the clique, for errors that do
    not depend on the domain; `check` finds the others.

    >>> Measurement(["sex"], [520.3, 478.1], stddev=10.0)
    Measurement(('sex',), 2 values, stddev=10.0)
    >>> Measurement(["age", "sex"], [1.0, 2.0, 3.0], 1.0, matrix=[np.eye(3), [1, -1]])
    Measurement(('age', 'sex'), 3 values, stddev=1.0, matrix=Kronecker(3x3 (x) 1x2))
    """

    clique: tuple[str, ...]
    values: NDArray[np.float64]
    stddev: float
    matrix: Matrix | Kronecker | None
    # The shape in which the values were given; `check` refuses a transposed table by it.
    _given_shape: tuple[int, ...] = field(init=False)

    def __init__(
        self,
        clique: Sequence[str],
        values: ArrayLike,
        stddev: float,
        matrix: QueryMatrix | None = None,
    ) -> None:
        checked = _checked_clique(clique)
        name = _name(checked)
        given = _checked_values(values, name)
        flat = given.reshape(-1)
        flat.setflags(write=False)
        noise, known = _checked_stddev(stddev, name), _checked_matrix(matrix, checked, name)
        vars(self).update(clique=checked, values=flat, stddev=noise, matrix=known)
        vars(self).update(_given_shape=given.shape)
        if known is not None:
            rows = known.row_shape if isinstance(known, Kronecker) else (int(known.shape[0]),)
            self._check_shape(rows, "the rows of its matrix ask")

    def applied(self, cells: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``matrix @ cells``: the measured values without noise, for the clique's table
        ``cells`` flattened in C order. Without a matrix this is a copy of ``cells``.

        Raises `InvalidInput` unless ``cells`` is a vector with a number for each cell.
        """
        held, matrix = float_array(cells, "cells"), self.matrix
        size = len(self.values) if matrix is None else matrix.shape[1]
        if held.shape != (size,):
            raise InvalidInput(f"cells must have the shape ({size},), got {held.shape}; flatten it")
        if matrix is None:
            return held
        return matrix.matvec(held) if isinstance(matrix, Kronecker) else matrix @ held

    def check(self, domain: Domain) -> None:
        """Raise `InvalidInput` unless the measurement fits ``domain``: its attributes are known,
        and its matrix has a column for each cell of the marginal (each factor of a Kronecker
        product, one for each code of its attribute). Without a matrix there must be a value for
        each cell, in the marginal's shape or flattened.
        """
        name = _name(self.clique)
        check_domain(domain)
        domain.clique(self.clique, name)
        if isinstance(self.matrix, Kronecker):
            for attribute, columns in zip(self.clique, self.matrix.column_shape, strict=True):
                if columns != domain.sizes[attribute]:
                    raise InvalidInput(
                        f"{name} has a factor of {columns} columns for {attribute!r}, but its size "
                        f"is {domain.sizes[attribute]}; give one column for each code, and the "
                        "factors in the clique's order"
                    )
            return
        cells = domain.size(self.clique)
        if self.matrix is not None and self.matrix.shape[1] != cells:
            raise InvalidInput(
                f"{name} has a matrix of {self.matrix.shape[1]} columns, but the marginal has "
                f"{cells} cells; give one column for each cell, in C order"
            )
        if self.matrix is None:
            self._check_shape(domain.shape(self.clique), "the marginal has cells")

    def _check_shape(self, shape: tuple[int, ...], whose: str) -> None:
        cells = math.prod(shape)
        if self._given_shape in ((cells,), shape) or (self._given_shape == () and cells == 1):
            return
        raise InvalidInput(
            f"{_name(self.clique)} has {len(self.values)} values (shape {self._given_shape}), but "
            f"needs {cells} (shape {shape}), as {whose}; pass that shape, flattened or not"
        )

    def __repr__(self) -> str:
        count = f"{len(self.values)} value{'s' if len(self.values) > 1 else ''}"
        text = f"{self.clique!r}, {count}, stddev={self.stddev!r}"
        if isinstance(self.matrix, Kronecker):
            text += f", matrix={self.matrix!r}"
        elif self.matrix is not None:
            kind = "sparse" if is_sparse(self.matrix) else "dense"
            text += f", matrix={kind} {self.matrix.shape[0]}x{self.matrix.shape[1]}"
        return f"Measurement({text})"


def _name(clique: tuple[str, ...]) -> str:
    return f"measurement of {clique!r}"


def _checked_clique(clique: Any) -> tuple[str, ...]:
    if isinstance(clique, str):
        raise InvalidInput(
            f"measurement: clique is the string {clique!r}, but must be a sequence of attributes; "
            f"write ({clique!r},)"
        )
    names = tuple(in_order(clique, "measurement: clique", "attributes"))
    if not all(isinstance(name, str) for name in names):
        raise InvalidInput(
            f"measurement: clique is {names!r}, but attributes are strings; write "
            "Measurement(clique, values, stddev), with the domain's names in the clique"
        )
    if len(set(names)) < len(names):
        raise InvalidInput(
            f"measurement: clique is {names!r}, but each attribute may occur once; drop repeats"
        )
    return names


def _checked_values(values: Any, name: str) -> NDArray[np.float64]:
    check_unlabelled(values, f"{name}: values")
    given = any_array(values, f"{name}: values")
    if given.size == 0:
        raise InvalidInput(f"{name} has no values, but needs at least one; leave it out instead")
    if given.dtype.kind not in "iuf":
        raise InvalidInput(
            f"{name} has values of type {given.dtype}, but they must be real numbers (counts)"
        )
    checked = np.array(given, dtype=np.float64, order="C")
    check_finite(checked, name, "values", "drop those cells, and their rows of the matrix")
    return checked


def _checked_stddev(stddev: Any, name: str) -> float:
    if isinstance(stddev, numbers.Real) and 0 < (checked := number(stddev)) < math.inf:
        return checked
    raise InvalidInput(
        f"{name} has stddev {stddev!r}, but it must be a finite number above 0, the noise's "
        "standard deviation in counts; for an exact answer use a hundredth of the least stddev of "
        "the other measurements"
    )


def _checked_matrix(matrix: Any, clique: tuple[str, ...], name: str) -> Matrix | Kronecker | None:
    if matrix is None:
        return None
    if isinstance(matrix, FactoredQuery):
        if set(matrix.attributes) != set(clique):
            raise InvalidInput(
                f"{name} has a query over {matrix.attributes!r}, but it must be over exactly the "
                "clique's attributes; add total(n) for one that is summed away"
            )
        matrix = [matrix.factors[attribute] for attribute in clique]
    if isinstance(matrix, (list, tuple)):
        matrix = Kronecker(
            [as_matrix(f, f"{name}: matrix factor {i}") for i, f in enumerate(matrix)]
        )
    if isinstance(matrix, Kronecker):
        if len(matrix.factors) != len(clique):
            raise InvalidInput(
                f"{name} has {len(matrix.factors)} Kronecker factors, but needs {len(clique)}, one "
                "for each attribute; for the rows of one matrix pass numpy.array(rows)"
            )
        return matrix
    if np.ndim(matrix) != 2:
        raise InvalidInput(
            f"{name} has a matrix of {np.ndim(matrix)} dimensions, but it must be an array of 2 "
            "(values x cells); write matrix[None, :] for one row, numpy.diag(weights) for weights"
        )
    return as_matrix(matrix, f"{name}: matrix")


def checked_measurements(
    measurements: Iterable[Measurement], domain: Domain | None = None
) -> list[Measurement]:
    """Return the measurements as a list. Raises `InvalidInput` unless they are a sequence of
    `Measurement` records that fit ``domain``, if one is given.
    """
    checked = listed(measurements, "measurements", "Measurement records")
    for m in checked:
        if not isinstance(m, Measurement):
            raise InvalidInput(
                f"measurements must be Measurement records, got {type(m).__name__}; wrap each as "
                "Measurement(clique, values, stddev)"
            )
        if domain is not None:
            m.check(domain)
    return checked


def check_scale(m: Measurement, values: NDArray[np.float64], total: float) -> None:
    """Raise InvalidInput if ``total`` is not between 2^-53 and 2^53, or if rounding would lose the
    noise or the answers of ``m``: its stddev is less than 2^-53 times the largest absolute noisy
    value of ``values`` or the largest possible answer on ``total`` records, or more than 2^53 times
    that answer, unless this is 0. All are in counts.
    """
    if not 1 / EXACT <= total <= EXACT:
        raise InvalidInput(
            f"total ({total:.6g}) must lie between 2^-53 and 2^53 (9.0e15), up to where float64 "
            "numbers tell one count from the next; use another unit"
        )
    answers = total * largest_entry(m)
    largest = max(answers, float(np.abs(values).max()))
    if not largest / EXACT <= m.stddev:
        raise InvalidInput(
            f"measurement of {m.clique!r} has stddev {m.stddev!r} beside counts of up to "
            f"{largest:.3g}, but it must be at least 2^-53 times as large as they are, since they "
            f"are rounded to that; use {2 * largest / EXACT:.2g} or more for an answer that is "
            "nearly exact, and look for values that cannot be right"
        )
    if answers and not m.stddev <= answers * EXACT:
        raise InvalidInput(
            f"measurement of {m.clique!r} has stddev {m.stddev!r} beside counts of up to "
            f"{answers:.3g}, but it must be at most 2^53 times as large as they are "
            f"({answers * EXACT:.2g}), since float64 cannot resolve them beside such noise; leave "
            "the measurement out"
        )


def largest_entry(m: Measurement) -> float:
    """Return the largest absolute entry of the measurement's matrix; 1 without a matrix."""
    return math.prod(max(float(each.max()), -float(each.min())) for each in factors_of(m.matrix))
