"""Least squares without nonnegativity: unbiased tables and their exact noise, in closed form.

Measured tables y with noise covariance S that must satisfy B x = b (they agree on the attributes
that they share, and on a known total) have the best linear unbiased estimate

    x = y + S B' M (b - B y),    Cov(x) = S - S B' M B S,    M a generalised inverse of B S B'.

``estimate`` also requires x >= 0. If that holds many small counts at zero, it biases large counts
downwards a little. The estimate here has no bias, so its noise is its whole error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, sqrt

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.special import chdtrc, gammaincc

from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.least_squares.consistency import agreement
from pgmkit.least_squares.residual_tables import ResidualTables
from pgmkit.least_squares.stacked_rows import written_out
from pgmkit.linear.axes import sums_up_to
from pgmkit.linear.kronecker import Kronecker, factors_of, nonzeros, sparse_product
from pgmkit.linear.matrix import as_dense, is_sparse
from pgmkit.measurement import Measurement, largest_entry
from pgmkit.queries import FactoredQuery
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.chances import SIGNIFICANT
from pgmkit.runtime.precision import CLOSE, DEPENDENT
from pgmkit.runtime.sizes import DENSE_ROWS, DENSE_SHARE
from pgmkit.structural_zeros import Zeros, possible_cells


@dataclass(frozen=True)
class _Table:
    clique: Clique
    values: Array
    covariance: scipy.sparse.csc_array
    unseen: NDArray[np.bool_]
    """True for the cells that no measurement counts; their values and covariance are 0."""
    statistic: float
    """The squared distance of the measurements from the table: a chi-square with ``degrees``."""
    degrees: int


@dataclass(frozen=True)
class Answer:
    """Unbiased answers, flat, in counts, with their standard errors, which do not depend on the
    truth. ``nonnegative`` is True if the true answers cannot be negative.
    """

    values: Array
    stddev: Array
    nonnegative: bool


class LinearEstimate:
    """The unbiased estimate of the table of every clique whose measurements determine it, but for
    cells that none of them counts.

    A single residual does not determine a table, but the residuals of all subsets of a clique
    together do (`pgmkit.least_squares.residual_tables`). If residuals were measured, the estimate
    comes from them, and structural zeros are not used. If only whole tables were measured, they are
    split into their residuals, unless there are structural zeros or more than DENSE_ROWS residuals.
    In all other cases, and if `ResidualTables` refuses a measurement, there is a least-squares
    table for each measured set of attributes, and the tables are then made to agree by the formula
    in the module's docstring.

    ``total`` is the known sum of every table, or None if only the measurements tell it.
    """

    def __init__(
        self,
        domain: Domain,
        measurements: Sequence[Measurement],
        total: float | None,
        zeros: Sequence[Zeros] = (),
    ) -> None:
        self.domain = domain
        self._residuals = _residuals(domain, measurements, total, zeros)
        if self._residuals is not None:
            self.statistic, self.degrees = self._residuals.statistic, self._residuals.degrees
            return
        self._tables, self._left_out = _tables(domain, measurements, zeros)
        self.statistic = sum((table.statistic for table in self._tables), 0.0)
        self.degrees = sum(table.degrees for table in self._tables)
        if not self._tables:
            return
        covariance = scipy.sparse.block_diag([t.covariance for t in self._tables], format="csr")
        self._covariance = covariance
        constraints, target = agreement(domain, [t.clique for t in self._tables], total)
        # At most DENSE_ROWS constraints are used: the last, on the smallest intersections, and the
        # total. Leaving out the others costs precision, but the estimate remains unbiased.
        constraints, target = constraints[-DENSE_ROWS:], target[-DENSE_ROWS:]
        y = np.concatenate([t.values for t in self._tables])
        self._unseen = np.concatenate([t.unseen for t in self._tables])
        of_unseen = constraints[:, self._unseen]
        with_unseen = np.diff(of_unseen.indptr) > 0
        rows, sums, hidden = constraints[with_unseen], target[with_unseen], of_unseen[with_unseen]
        gram = (hidden @ hidden.T).toarray()
        inverse, _ = _generalised_inverse(gram)
        self._with_unseen = rows, sums, hidden, inverse
        constraints, target = constraints[~with_unseen], target[~with_unseen]
        # The constraints with unseen cells are replaced by their combinations in which the unseen
        # cells cancel. G is the Gram matrix of their entries for unseen cells. Its generalised
        # inverse M has zero rows except for some independent constraints that span all. A dependent
        # constraint, minus its row of G M times the constraints, has no unseen cells. If its seen
        # cells cancel too, nothing but rounding is left, and it is dropped.
        free = (np.eye(len(sums)) - gram @ inverse)[inverse.diagonal() == 0]
        combined = scipy.sparse.csr_array(free) @ rows
        real = abs(combined) @ (covariance.diagonal() > 0) > CLOSE
        constraints = scipy.sparse.vstack([constraints, combined[real]], format="csr")
        target = np.append(target, (free @ sums)[real])
        self._spread = (constraints @ covariance).tocsc()
        self._inverse, rank = _generalised_inverse((self._spread @ constraints.T).toarray())
        apart = target - constraints @ y
        pull = self._inverse @ apart
        self._values = y + self._spread.T @ pull
        self.statistic += float(apart @ pull)
        self.degrees += rank

    @property
    def p_value(self) -> float:
        """The probability that Gaussian noise puts the tables as far apart as they are, or further;
        1 if there are no degrees of freedom.

        The ``statistic``, the squared distance between the measurements and the estimate in
        standard deviations, has a chi-square distribution with ``degrees`` of freedom whatever the
        truth: nothing here is bounded at zero.
        """
        return float(chdtrc(self.degrees, self.statistic)) if self.degrees else 1.0

    @property
    def scale(self) -> float:
        """The factor by which the noise must exceed the stated one for tables this far apart.

        It is the Particle Data Group's factor sqrt(chi-square / degrees) if that is above 1 and the
        distance is significant for noise of any usual distribution; else 1. The square of a Laplace
        variable of variance 1 has variance 5, that of a Gaussian one 2. The statistic is therefore
        compared with the Gamma distribution of mean ``degrees`` and variance 5 ``degrees``: correct
        error bars are widened in at most 3 of 1,000 data sets with Laplace noise (2.6 at 10 degrees
        of freedom), and in fewer than 1 of 10,000 with Gaussian noise.
        """
        if not self.degrees or gammaincc(self.degrees / 5, self.statistic / 5) >= SIGNIFICANT:
            return 1.0
        return sqrt(self.statistic / self.degrees)

    def answer(self, query: FactoredQuery, run: int = 1) -> Answer | None:
        """Return the answers to a query, with standard errors widened by ``scale``. If ``run`` is
        the number of rows of its last attribute's matrix, they are sums of the answers to rows up
        to each (`sums_up_to`). Return None if no estimated table has all those attributes of the
        query that have more than one code, and if an answer needs a cell that no measurement counts
        and no constraint determines. Unless the estimate comes from residuals, return None also if
        one of these attributes is in a measured set without an estimated table: one whose
        measurements do not determine the cells that they count, or that is too large for this
        (`_table`).
        """
        if (residuals := self._residuals) is not None:
            if not residuals.holds(query.attributes):
                return None
            if run > 1:
                *_, (last, rows) = query.factors.items()
                query = FactoredQuery({**query.factors, last: as_dense(rows).cumsum(axis=0)})
            stddev = self.scale * np.sqrt(residuals.variance(query).reshape(-1))
            positive = all(factor.min() >= 0 for factor in query.factors.values())
            return Answer(residuals.answer(query).reshape(-1), stddev, positive)
        if not self._left_out.isdisjoint(query.attributes):
            return None
        cliques = [table.clique for table in self._tables]
        place = self.domain.smallest_holding(cliques, query.attributes)
        if place is None:
            return None
        matrix = _rows(self.domain, cliques, place, query)
        nonnegative, known = bool((matrix.data >= 0).all()), np.zeros(matrix.shape[0])
        if (asked := matrix[:, self._unseen]).nnz:
            # The sums of unseen cells that the query asks for are replaced by sums of other cells,
            # if the constraints determine them; otherwise there is no answer.
            rows, sums, hidden, inverse = self._with_unseen
            open_sums = np.abs(sums_up_to(asked @ self._undetermined, run))
            if (open_sums > CLOSE * sums_up_to(abs(asked).sum(axis=1), run)).any():
                return None
            weights = asked @ hidden.T @ scipy.sparse.csr_array(inverse)
            matrix = matrix - weights @ rows
            known = weights @ sums
        noise = matrix @ self._covariance
        shared = (self._spread @ matrix.T).tocsr()
        touched = np.flatnonzero(np.diff(shared.indptr))
        shared, inverse = shared[touched], self._inverse[np.ix_(touched, touched)]
        if run == 1:
            raw = noise.multiply(matrix).sum(axis=1)
            saved = shared.multiply(inverse @ shared).sum(axis=0)
        else:
            raw = _of_sums((noise @ matrix.T).tocoo(), run)
            each = sums_up_to(shared.toarray(), run)
            saved = np.einsum("ij,ij->j", each, inverse @ each)
        stddev = self.scale * np.sqrt(np.where(raw - saved > DEPENDENT * raw, raw - saved, 0.0))
        return Answer(sums_up_to(known + matrix @ self._values, run), stddev, nonnegative)

    @cached_property
    def _undetermined(self) -> Array:
        """Random numbers for the unseen cells that every constraint sums to 0. A question sums them
        to 0, up to rounding, if the constraints determine what it asks of the unseen cells, and
        almost never otherwise.
        """
        _, _, hidden, inverse = self._with_unseen
        found = np.random.default_rng(0).standard_normal(hidden.shape[1])
        for _ in range(2):  # the second time for what rounding has left
            found -= hidden.T @ (inverse @ (hidden @ found))
        return found


def _residuals(
    domain: Domain, measurements: Sequence[Measurement], total: float | None, zeros: Sequence[Zeros]
) -> ResidualTables | None:
    """Return the tables of the residuals that were measured. If only whole tables were measured,
    return those of the residuals into which they are split, unless there are structural zeros or
    more than DENSE_ROWS residuals; then return None. Return None also if ``ResidualTables`` refuses
    a measurement, and for an attribute of more than DENSE_ROWS codes in a whole table or a sparse
    matrix, which would be written out.

    Kronecker products with fewer than n - 1 rows along an attribute of n codes, or with a factor of
    zeros, determine no residual. They are left out, as are matrices that act on the total. If such
    a product is all that was measured of its attributes, whole tables are split without it;
    otherwise they are not split.
    """
    kept = [m for m in measurements if _may_determine(m)]
    times = Counter(frozenset(m.clique) for m in measurements if m.clique)
    alone = all(_may_determine(m) or times[frozenset(m.clique)] == 1 for m in measurements)
    whole = all(m.matrix is None for m in kept)
    split = alone and not zeros and whole
    tables = [m.clique for m in kept if m.matrix is None]
    widest = max((domain.sizes[name] for clique in tables for name in clique), default=1)
    if widest > DENSE_ROWS or (split and sum(2 ** len(clique) for clique in tables) > DENSE_ROWS):
        return None
    if (whole and not split) or any(map(_is_no_basis, kept)):
        return None
    try:
        return ResidualTables(domain, kept, total)
    except InvalidInput:
        return None


def _may_determine(m: Measurement) -> bool:
    if not m.clique:
        return m.matrix is None
    if not isinstance(m.matrix, Kronecker):
        return True
    long_enough = all(rows >= columns - 1 for rows, columns in map(np.shape, m.matrix.factors))
    return long_enough and largest_entry(m) > 0


def _is_no_basis(m: Measurement) -> bool:
    """Return True if a matrix has too few rows for a residual basis, or would be written out from a
    sparse one of more than DENSE_ROWS columns.
    """
    return any(
        each.shape[0] < each.shape[1] - 1 or (is_sparse(each) and each.shape[1] > DENSE_ROWS)
        for each in factors_of(m.matrix)
    )


def _tables(
    domain: Domain, measurements: Sequence[Measurement], zeros: Sequence[Zeros]
) -> tuple[list[_Table], set[str]]:
    """Return a least-squares table for each measured set of attributes, unless `_table` returns
    None for it, and the attributes, of more than one code, of the sets without a table. All tables
    have the attributes of a single code as axes.
    """
    single = [name for name, size in domain.sizes.items() if size == 1]
    groups: dict[Clique, list[Measurement]] = {}
    for m in measurements:
        groups.setdefault(domain.ordered({*m.clique, *single}), []).append(m)
    possible = {clique: possible_cells(domain, clique, zeros).reshape(-1) for clique in groups}
    found = {c: _table(domain, c, group, possible[c]) for c, group in groups.items()}
    left_out = {name for clique, table in found.items() if table is None for name in clique}
    return [table for table in found.values() if table is not None], left_out - {*single}


def _table(
    domain: Domain, clique: Clique, group: Sequence[Measurement], possible: NDArray[np.bool_]
) -> _Table | None:
    """Return the group's table by least squares, with its covariance. Cells that are False in
    ``possible`` are zero.

    Return None if the group does not determine every possible cell that some measured value counts,
    or if entries are so large, or so small, that float64 does not hold their squares. If a measured
    value is of several cells, return None also for a table of more than DENSE_ROWS cells.
    """
    cells = len(possible)
    large = any(m.matrix is not None and nonzeros(m.matrix) > len(m.values) for m in group)
    if large and cells > DENSE_ROWS:
        return None
    group, lost, removed = zip(*map(_shortened, group), strict=True)
    rows = [scipy.sparse.csr_array(written_out(domain, clique, m)) / m.stddev for m in group]
    matrix = scipy.sparse.vstack(rows)
    matrix.eliminate_zeros()
    measured = np.concatenate([m.values / m.stddev for m in group])
    seen = np.zeros(cells, dtype=bool)
    seen[matrix.indices] = True
    unknown = np.flatnonzero(possible & seen)
    design = matrix[:, unknown]
    if not 0 < len(unknown) <= len(measured):
        return None
    single = np.diff(matrix.indptr).max() == 1  # every measured value is of one cell
    if not single and cells > DENSE_ROWS:
        return None
    if not single and design.nnz > DENSE_SHARE * design.shape[0] * design.shape[1]:
        design = design.toarray()
    information = design.T @ design
    precisions = information.diagonal()
    if not (precisions.min() > 0 and np.isfinite(precisions).all()):
        return None  # squares of entries overflow or vanish, as those of a tampered file may
    if single:
        inverse = scipy.sparse.diags_array(1 / precisions, format="csr")
    else:
        eigenvalues, vectors = np.linalg.eigh(as_dense(information))
        if eigenvalues[0] <= DEPENDENT * eigenvalues[-1]:
            return None
        inverse = scipy.sparse.csr_array((vectors / eigenvalues) @ vectors.T)
    among = scipy.sparse.eye_array(cells, format="csr")[unknown]
    values = among.T @ (inverse @ (design.T @ measured))
    statistic = float(((matrix @ values - measured) ** 2).sum()) + sum(lost)
    covariance = among.T @ inverse @ among
    degrees = len(measured) - len(unknown) + sum(removed)
    return _Table(clique, values, covariance, possible & ~seen, statistic, degrees)


def _shortened(m: Measurement) -> tuple[Measurement, float, int]:
    """Return a measurement that determines the same least-squares table, through a product of
    factors with no more rows than columns; the squared length, in units of the noise, of that part
    of the measured values which no table explains; and by how many values the new measurement is
    shorter. A measurement of single cells, and one that is no product or has no more rows than
    columns, is returned as it is, with 0 and 0.
    """
    matrix, count = m.matrix, len(m.values)
    if not isinstance(matrix, Kronecker) or count <= matrix.shape[1] or nonzeros(matrix) <= count:
        return m, 0.0, 0
    turned, kept = zip(*(np.linalg.qr(as_dense(each)) for each in matrix.factors), strict=True)
    values = Kronecker([each.T for each in turned]).matvec(m.values)
    lost = (m.values - Kronecker(turned).matvec(values)) / m.stddev
    short = Measurement(m.clique, values, m.stddev, kept)
    return short, float(lost @ lost), count - len(values)


def _generalised_inverse(matrix: Array) -> tuple[Array, int]:
    """Return a generalised inverse of a symmetric positive semidefinite matrix, and the matrix's
    rank r. All rows and columns of the inverse but r are zero.
    """
    from scipy.linalg import lapack

    if not matrix.any():
        return matrix, 0
    scale = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    scale = np.where(scale > 0, scale, inf)
    # Any M with A M A = A suffices, since M is applied to vectors in the range of A only. A pivoted
    # Cholesky factorisation takes a tenth of the time of eigenvalues.
    factor, order, rank, _ = lapack.dpstrf(matrix / np.outer(scale, scale), tol=DEPENDENT, lower=1)
    kept = order[:rank] - 1
    inverse, _ = lapack.dpotri(factor[:rank, :rank], lower=1)
    whole = np.tril(inverse) + np.tril(inverse, -1).T
    found = np.zeros_like(matrix)
    found[np.ix_(kept, kept)] = whole / np.outer(scale[kept], scale[kept])
    return found, rank


def _of_sums(covariance: scipy.sparse.coo_array, run: int) -> Array:
    """Return the variances of sums of answers (`sums_up_to`) from the answers' covariance."""
    i, j = covariance.coords
    before = (j <= i) & (i // run == j // run)
    each = np.where(i == j, 1.0, 2.0) * covariance.data * before  # what answer i adds to its run
    added = np.zeros(covariance.shape[0])
    np.add.at(added, i, each)
    return sums_up_to(added, run)


def _rows(
    domain: Domain, cliques: Sequence[Clique], place: int, query: FactoredQuery
) -> scipy.sparse.csr_array:
    """Return the query as a sparse matrix over the cells of all cliques' tables, one after the
    other, of which it uses those of the clique at ``place``.
    """
    product = sparse_product(query.factors.values())
    ends = np.cumsum([0, *map(domain.size, cliques)])
    cells = domain.cell_map(cliques[place], query.attributes)
    entries = (np.ones(len(cells)), (cells, np.arange(ends[place], ends[place + 1])))
    summed = scipy.sparse.csr_array(entries, (domain.size(query.attributes), ends[-1]))
    return product @ summed
