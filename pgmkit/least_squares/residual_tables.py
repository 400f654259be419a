"""Unbiased answers and tables from measured residuals, with their exact variances, without a fitted
model.

The *residual* of a set A of attributes is the table of counts to which the matrix S of a residual
basis was applied along each attribute of A, summed over all other attributes. (The docstring of
`residual_basis` defines S, and the K and p that belong to it.)
The table over a clique c is the sum, over the subsets A of c, of the residual of A, to which K is
applied along the attributes of A and p along the others (Xiao et al. 2023, Algorithm 6, where S has
all contrasts and p is uniform). Every residual may have a matrix S of its own for each attribute,
as long as all matrices of an attribute have the same p. The noise of different residuals is
independent, so variances add up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import TypeAlias

import numpy as np

from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.least_squares.residual_basis import RANK, ResidualBasis, code_by_code
from pgmkit.linear.axes import spread
from pgmkit.linear.kronecker import factors_of
from pgmkit.linear.matrix import Matrix, along, as_dense
from pgmkit.measurement import Measurement, largest_entry
from pgmkit.queries import FactoredQuery
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.precision import AGREEMENT

QueryLike: TypeAlias = "FactoredQuery | Iterable[str]"
"""A query, or attributes, which stand for the query of every cell of their marginal."""
_DIGITS = round(-math.log10(AGREEMENT))
"""The number of digits (12) to which equal rows must agree, more than whole numbers of 30 bits
have.
"""


Bases: TypeAlias = "Mapping[str, ResidualBasis]"
"""For each attribute of a residual, the basis in which the residual is measured along it."""


class ResidualNoise:
    """The variance of answers computed from residuals, in closed form; no measured values are
    needed.

    Residuals are named by their attributes in the domain's order.

    `bases` has, for each residual, its basis along each of its attributes (bases of other
    attributes are ignored); all bases of an attribute have the same `unseen`. `variances` has, for
    each residual, the variance of the noise of each of its values.
    """

    def __init__(
        self, domain: Domain, bases: Mapping[Clique, Bases], variances: Mapping[Clique, float]
    ) -> None:
        self.domain, self.bases, self.variances = domain, bases, variances

    def variance(self, query: QueryLike) -> Array:
        """Return the variance of each answer in squared counts, in the shape of the answer.

        Raises InvalidInput if a residual that the query needs was not measured.
        """
        asked = factored(self.domain, query)
        acting = self.acting(asked.factors)
        found: Array = np.zeros(())
        for residual in self.inside(asked.attributes):
            spread = [(acting(residual, name) ** 2).sum(axis=1) for name in asked.attributes]
            found = found + self.variances[residual] * reduce(
                np.multiply.outer, spread, np.ones(())
            )
        return found.reshape(asked.answer_shape)

    def acting(self, queries: Mapping[str, Matrix]) -> Callable[[Clique, str], Array]:
        """Return a function of a residual and an attribute. It returns the matrix by which the
        residual enters the answers to the attribute's queries Q: Q K if the attribute is in the
        residual, otherwise the column Q p (the docstring of `residual_basis` defines K and p).
        """
        known: dict[tuple[str, int], Array] = {}

        def acting(residual: Clique, name: str) -> Array:
            own = self.bases[residual][name] if name in residual else None
            if (name, id(own)) not in known:
                turned = self.unseen(name)[:, None] if own is None else own.inverse
                known[name, id(own)] = queries[name] @ turned
            return known[name, id(own)]

        return acting

    def unseen(self, name: str) -> Array:
        """Return the vector p of an attribute whose own residual was measured, or (1) for an
        attribute with a single code.
        """
        own = self.bases.get((name,))
        return np.ones(1) if own is None else own[name].unseen

    def inside(self, attributes: Clique) -> list[Clique]:
        """Return the residuals of all subsets of the clique. Raises InvalidInput if one was not
        measured.
        """
        found = residuals_inside(self.domain, attributes)
        for residual in found:
            if residual not in self.variances:
                raise InvalidInput(
                    f"the marginal of {attributes!r} needs the residual of {residual!r}, which was "
                    "not measured; ask inside the cliques of the workload"
                )
        return found


class ResidualTables(ResidualNoise):
    """Unbiased answers, in counts, to queries within any clique all of whose residuals were
    measured.

    There are three kinds of `measurements`: residuals, through rows of a residual basis along each
    attribute; whole tables, which are split into their residuals in the basis n I - J; and the
    total (the empty clique), unless `total` gives it. All bases of an attribute must have the same
    vector p (see the module docstring). All measurements of one residual must have the same rows up
    to a positive factor (multiples of n I - J: any factor); they are averaged by inverse variance.
    Attributes with a single code have no residuals.

    `statistic` is the squared distance, in standard deviations, between the measurements and the
    nearest values that noiseless measurements can have. Whatever the true table, it has a
    chi-square distribution with `degrees` degrees of freedom.

    Raises InvalidInput for measurements that are of none of these kinds or break these rules, and
    if there is no total. If a residual is measured and a whole table contains it too, the rules
    require the basis n I - J of both.

    >>> from pgmkit.domain import Domain
    >>> from pgmkit.measurement import Measurement
    >>> domain = Domain({"a": 2, "year": 1})
    >>> measured = Measurement(("a",), [4.0, -4.0], 2.0, np.array([[1.0, -1.0], [-1.0, 1.0]]))
    >>> tables = ResidualTables(domain, [measured], total=10)
    >>> tables.marginal(("a",)), tables.variance(("a",))
    (array([7., 3.]), array([0.5, 0.5]))
    >>> table = Measurement(("a",), [8.0, 4.0], 1.0)
    >>> ResidualTables(domain, [measured, table]).marginal(("a",))
    array([8., 4.])
    """

    def __init__(
        self, domain: Domain, measurements: Sequence[Measurement], total: float | None = None
    ) -> None:
        self.statistic, self.degrees = 0.0, 0
        self._answers: dict[Clique, Array] = {}
        self._bases: dict[Clique, Bases] = {}
        self._made: dict[tuple[int, bytes], ResidualBasis] = {}
        self._first: dict[str, ResidualBasis] = {}
        self._variances: dict[Clique, float] = {}
        super().__init__(domain, self._bases, self._variances)
        if total is not None:
            self._answers[()], self._variances[()] = np.array(total), 0.0
        for m in measurements:
            if m.matrix is None:
                self._take_table(m)
            else:
                self._take_residual(m)
        if () not in self._answers:
            raise InvalidInput("the total is missing; measure the empty clique, or pass total=")

    def _take_residual(self, m: Measurement) -> None:
        """Record a measured residual, projected onto the values that it can have without noise. The
        squared length of what this removes, over the noise's variance, is added to ``statistic``.
        """
        factors = _rows(m)
        found = dict(zip(m.clique, map(self._basis, factors), strict=True))
        bases = {name: self._checked(name, basis) for name, (basis, _) in found.items()}
        residual = self.domain.ordered(m.clique)
        scale = math.prod(found[name][1] for name in residual)
        table = m.values.reshape([len(rows) for rows in factors]) / scale
        variance = (m.stddev / scale) * (m.stddev / scale)  # a power may raise OverflowError
        possible = table
        for axis, name in enumerate(m.clique):
            possible = along(bases[name].rows @ bases[name].inverse, possible, axis)
        axes = [m.clique.index(name) for name in residual]
        self._combine(residual, bases, possible.transpose(axes), variance)
        self.statistic += float(((table - possible) ** 2).sum()) / variance
        self.degrees += table.size - residual_length(self.domain, m.clique)

    def _take_table(self, m: Measurement) -> None:
        """Split a measured table into its residuals, whose noises are independent. Record them."""
        clique, bases = self.domain.ordered(m.clique), {}
        axes = [m.clique.index(name) for name in clique]
        split = m.values.reshape(self.domain.shape(m.clique)).transpose(axes)
        for axis, (name, n) in enumerate(zip(clique, split.shape, strict=True)):
            if n > 1:
                bases[name] = self._checked(name, self._contrasts(n))
            # Along each axis, the sum over the codes comes first, then each code minus their mean.
            summed = split.sum(axis, keepdims=True)
            split = np.concatenate([summed, split - summed / n], axis)
        for residual in residuals_inside(self.domain, clique):
            table = split[tuple([slice(1, None) if name in residual else 0 for name in clique])]
            self._combine(residual, bases, table, m.stddev * m.stddev * m.values.size / table.size)

    def _combine(self, residual: Clique, bases: Bases, table: Array, variance: float) -> None:
        """Record measured values of a residual in these bases; earlier values of the same residual
        are averaged with them by inverse variance. Raises InvalidInput if they are in other bases,
        and if the variance is beyond the range of floats.
        """
        if not 0 < variance < math.inf:
            raise InvalidInput(
                f"float64 cannot hold the variance of the residual of {residual!r}; correct stddev"
            )
        used = self._bases.setdefault(residual, bases)
        if any(used[name] is not bases[name] for name in residual):
            raise InvalidInput(
                f"the residual of {residual!r} is measured through two bases; give one of them"
            )
        before = self._answers.setdefault(residual, table)
        known = self._variances.setdefault(residual, variance)
        if before is table:
            return
        together = known + variance
        apart = table - before
        self._answers[residual] = before + known / together * apart
        self._variances[residual] = known * variance / together
        self.statistic += float((apart**2).sum()) / together
        self.degrees += residual_length(self.domain, residual)

    def _basis(self, rows: Array) -> tuple[ResidualBasis, float]:
        """Return a residual basis, and the number by which its rows must be multiplied to give
        ``rows``. Positive multiples of the same rows share one basis, and so do negative ones of
        n I - J.
        """
        n = rows.shape[1]
        if code_by_code(rows):
            return self._contrasts(n), float(rows[0, 0]) / (1 - 1 / n)
        # Rows that are positive multiples of each other differ only in the last digits after the
        # division, so rounded rows are the key.
        size = float(np.abs(rows).max())
        key = (n, (rows / size).round(_DIGITS).tobytes())
        if key not in self._made:
            self._made[key] = ResidualBasis.of(rows / size)
        return self._made[key], size

    def _contrasts(self, n: int) -> ResidualBasis:
        """Return the basis with the rows I - J / n."""
        key = (n, b"")
        if key not in self._made:
            self._made[key] = ResidualBasis.of(np.eye(n) - 1 / n)
        return self._made[key]

    def _checked(self, name: str, basis: ResidualBasis) -> ResidualBasis:
        """Return the basis. Raises InvalidInput if an earlier basis of the attribute has another
        vector p.
        """
        first = self._first.setdefault(name, basis)
        if not (np.abs(first.unseen - basis.unseen) <= RANK).all():
            raise InvalidInput(
                f"{name!r} is measured through two bases with different vectors p; give residuals "
                "of one of them"
            )
        return basis

    def answer(self, query: QueryLike) -> Array:
        """Return the unbiased answer in counts, which may be negative.

        Raises InvalidInput if a residual that the query needs was not measured.
        """
        asked = factored(self.domain, query)
        acting = self.acting(asked.factors)
        found: Array = np.zeros(())
        for residual in self.inside(asked.attributes):
            table = spread(asked.attributes, residual, self._answers[residual])
            for axis, name in enumerate(asked.attributes):
                table = along(acting(residual, name), table, axis)
            found = found + table
        return found.reshape(asked.answer_shape)

    def holds(self, attributes: Clique) -> bool:
        """Return True if queries over these attributes can be answered: the residuals of all their
        subsets were measured, except that the total may be given instead.
        """
        return self._answers.keys() >= {*residuals_inside(self.domain, attributes)}

    def marginal(self, attrs: Iterable[str]) -> Array:
        """Return the unbiased marginal over `attrs`, in counts; axes in the order of `attrs`."""
        return self.answer(attrs)


def residuals_inside(domain: Domain, attributes: Clique) -> list[Clique]:
    """Return the residuals of a clique: all subsets, the empty one included, of those of its
    attributes that have more than one code. Smaller subsets come first; the attributes of each are
    in the domain's order.
    """
    varied = [name for name in domain.ordered(attributes) if domain.sizes[name] > 1]
    sizes = range(len(varied) + 1)
    return list(itertools.chain.from_iterable(itertools.combinations(varied, k) for k in sizes))


def residual_length(domain: Domain, residual: Clique) -> int:
    """Return the number of independent values of a residual."""
    return math.prod(domain.sizes[name] - 1 for name in residual)


def factored(domain: Domain, query: QueryLike) -> FactoredQuery:
    """Return the query, checked; if attributes are given instead, the query for every cell of their
    marginal.
    """
    if not isinstance(query, FactoredQuery):
        query = FactoredQuery.marginal(domain, query)
    query.check(domain)
    return query


def _rows(measurement: Measurement) -> list[Array]:
    """Return the factors of the measurement's matrix, one for each attribute. Raises InvalidInput
    if it has another number of factors, or if one of them has only zeros.
    """
    factors = factors_of(measurement.matrix)
    if len(factors) != len(measurement.clique) or not largest_entry(measurement):
        raise InvalidInput(
            f"the measurement of {measurement.clique!r} is not of a residual; measure the "
            "factors of a residual basis"
        )
    return [as_dense(factor) for factor in factors]
