"""Noisy marginals from measured residuals, and their exact variances; no model is fitted.

Residuals are the orthogonal parts of marginals (`mechanisms.strategies.residuals`): the marginal of
the attributes c is the sum of the residuals inside c, each spread evenly over the attributes that
it lacks (Xiao et al. 2023, Algorithm 6). That is the best linear unbiased estimate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mechanisms.families.lattice import centred
from pgmkit.errors import InvalidInput
from pgmkit.linear.kronecker import Kronecker
from pgmkit.linear.matrix import as_dense

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pgmkit.domain import Clique, Domain
    from pgmkit.measurement import Measurement

    Array = NDArray[np.float64]

__all__ = ["ResidualTables", "variance_parts"]


class ResidualTables:
    """Any marginal whose residuals were measured, in counts, and the variance of its cells.

    `measurements` are of residuals through `mechanisms.strategies.residuals.residual_matrix`, one
    for each residual, and of the total (the empty clique) unless `total` is given. Attributes with
    one value have no residuals.

    Raises InvalidInput for measurements through other matrices, two of one residual, or no total.

    >>> from pgmkit.domain import Domain
    >>> from pgmkit.measurement import Measurement
    >>> domain = Domain({"a": 2, "year": 1})
    >>> measured = Measurement(("a",), [4.0, -4.0], 2.0, np.array([[1.0, -1.0], [-1.0, 1.0]]))
    >>> tables = ResidualTables(domain, [measured], total=10)
    >>> tables.marginal(("a",)), tables.variance(("a",))
    (array([7., 3.]), 0.5)
    """

    def __init__(
        self, domain: Domain, measurements: Sequence[Measurement], total: float | None = None
    ) -> None:
        self.domain = domain
        self._contrasts: dict[Clique, Array] = {}
        self._variances: dict[Clique, float] = {}
        if total is not None:
            self._contrasts[()], self._variances[()] = np.array(float(total)), 0.0
        for m in measurements:
            residual = domain.ordered(m.clique)
            if residual in self._contrasts:
                raise InvalidInput(f"the residual of {residual!r} is given twice; give it once")
            scale = _scale(domain, m)
            table = centred(m.values.reshape(domain.shape(m.clique)) / scale)
            turned = table.transpose([m.clique.index(name) for name in residual])
            self._contrasts[residual] = turned
            self._variances[residual] = (m.stddev / scale) ** 2
        if () not in self._contrasts:
            raise InvalidInput("the total is missing; measure the empty clique, or pass total=")

    def marginal(self, attrs: Iterable[str]) -> Array:
        """Return the noisy marginal over `attrs` in counts, axes in their order; cells may be
        negative.

        Raises InvalidInput if a residual inside it was not measured.
        """
        clique = self.domain.clique(attrs)
        ordered = self.domain.ordered(clique)
        table = np.zeros(self.domain.shape(ordered))
        for residual in self._parts(ordered):
            shape = [self.domain.sizes[name] if name in residual else 1 for name in ordered]
            spread = self.domain.size(ordered) / self.domain.size(residual)
            table += self._contrasts[residual].reshape(shape) / spread
        return table.transpose([ordered.index(name) for name in clique])

    def variance(self, attrs: Iterable[str]) -> float:
        """Return the variance of the noise on each cell of `marginal(attrs)`, which is the same for
        all cells.
        """
        parts = self._parts(self.domain.ordered(self.domain.clique(attrs)))
        return math.fsum(part * self._variances[residual] for residual, part in parts.items())

    def _parts(self, ordered: Clique) -> dict[Clique, float]:
        parts = variance_parts(self.domain, ordered)
        missing = [residual for residual in parts if residual not in self._contrasts]
        if missing:
            raise InvalidInput(
                f"the marginal of {ordered!r} needs the residual of {missing[0]!r}, which was not "
                "measured; ask inside the cliques of the workload"
            )
        return parts


def variance_parts(domain: Domain, ordered: Clique) -> dict[Clique, float]:
    """Return, for each residual A inside the clique, the variance that it adds to a cell of the
    clique's marginal if its own noise has variance 1.

    It is the product over A of 1 - 1/n_i and over the other attributes of 1/n_i^2, with sizes n_i
    (Xiao et al. 2023, Theorem 4.7). The clique is in the domain's order; attributes with one value
    have no residual.

    >>> from pgmkit.domain import Domain
    >>> variance_parts(Domain({"a": 2, "b": 4}), ("a", "b"))
    {(): 0.015625, ('a',): 0.03125, ('b',): 0.1875, ('a', 'b'): 0.375}
    """
    found: dict[Clique, float] = {(): 1.0}
    for name in ordered:
        n = domain.sizes[name]
        with_it = {(*a, name): part * (1 - 1 / n) for a, part in found.items() if n > 1}
        found = {a: part / n**2 for a, part in found.items()} | with_it
    return dict(sorted(found.items(), key=lambda item: len(item[0])))


def _scale(domain: Domain, measurement: Measurement) -> float:
    """Return the factor by which the measurement's matrix is the projection on its residual. Raises
    InvalidInput for any other matrix.
    """
    matrix = measurement.matrix
    if not measurement.clique:
        return 1.0
    factors = matrix.factors if isinstance(matrix, Kronecker) else (matrix,)
    scale = 1.0
    for factor, n in zip(factors, domain.shape(measurement.clique), strict=True):
        dense = np.zeros((0, 0)) if factor is None else as_dense(factor)
        expected = np.eye(n) - 1 / n
        multiple = float(dense[0, 0]) / (1 - 1 / n) if dense.shape == (n, n) and n > 1 else 0.0
        if multiple <= 0 or not np.allclose(dense, multiple * expected, atol=1e-9 * multiple):
            raise InvalidInput(
                f"the measurement of {measurement.clique!r} is not of a residual; measure the "
                "factors of mechanisms.strategies.residuals.residual_matrix"
            )
        scale *= multiple
    return scale
