"""The total number of records from noisy measurements (McKenna et al., 2019, section E.1)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Domain
from pgmkit.errors import TotalUndetermined
from pgmkit.linear.kronecker import factors_of
from pgmkit.linear.matrix import Matrix, as_dense, is_sparse
from pgmkit.measurement import Measurement, checked_measurements
from pgmkit.runtime.precision import CLOSE
from pgmkit.runtime.sizes import TABLE_CELLS


@dataclass(frozen=True)
class TotalEstimate:
    """An unbiased estimate of the total, in counts, and the standard deviation of its error."""

    value: float
    stddev: float


def estimate_total(
    measurements: Iterable[Measurement], domain: Domain | None = None
) -> TotalEstimate:
    """Return the total that the measurements imply, combined by inverse variance (McKenna et
    al., 2019, section E.1).

    A measurement y = Q mu + noise determines the total if the vector of ones is in the row space of
    Q: then w . y, with w the shortest solution of Q^T w = 1 (that is, w = (Q^+)^T 1), is the
    unbiased estimate of the total with the least variance, stddev^2 |w|^2. Estimates of several
    measurements are combined by inverse variance, which assumes that their noise is independent.
    Each measurement is considered separately: several that determine the total only jointly are not
    used.

    A Kronecker product is solved factor by factor and never written out. Sparse matrices above
    about four million cells go through scipy's iterative ``lsqr``; one too ill-conditioned for it
    is counted as not determining the total.

    The value is in counts, is not rounded and may be negative when the noise is large. ``domain``
    is needed for nothing but checking the measurements against it first.

    Raises `TotalUndetermined`, with the reason for each measurement, when none determines the
    total; `InvalidInput` for something that is not a measurement or does not fit ``domain``.

    >>> a = Measurement(["sex"], [520.0, 480.0], stddev=10.0)
    >>> b = Measurement(["age"], [300.0, 300.0, 400.0, 100.0], stddev=10.0)
    >>> round(estimate_total([a, b]).value, 3)
    1033.333
    """
    checked = checked_measurements(measurements, domain)
    values, stddev = estimate_totals(checked, [m.values for m in checked])
    return TotalEstimate(float(values), stddev)


def estimate_totals(
    measurements: Sequence[Measurement], values: Sequence[NDArray[np.float64]]
) -> tuple[NDArray[np.float64], float]:
    """Return the estimates of ``estimate_total`` for many sets of noisy values: their values, in
    counts, and the standard deviation of each.

    The measurements give the matrices and the noise. ``values`` has, in place of each measurement's
    own values, an array with a row for each value and a column for each set. Raises
    `TotalUndetermined` if none of the measurements determines the total.

    >>> m = Measurement(["a"], [1.0, 2.0], stddev=1.0)
    >>> estimate_totals([m], [np.array([[1.0, 10.0], [2.0, 20.0]])])[0]
    array([ 3., 30.])
    """
    from scipy.linalg import norm  # its squares cannot overflow, unlike numpy's

    estimates, stddevs, reasons = [], [], []
    for measurement, y in zip(measurements, values, strict=True):
        weights = _weights(measurement)
        if isinstance(weights, str):
            reasons.append(weights)
            continue
        estimates.append(weights @ y)
        stddevs.append(measurement.stddev * float(norm(weights)))
    if not estimates:
        raise TotalUndetermined(
            f"no measurement determines the total: {_listed(reasons)}; pass total=..., measure a "
            "whole marginal or the empty clique, or stack a clique's queries as rows of one matrix"
        )
    # Deviations are taken relative to the smallest, so that no variance underflows.
    least = min(stddevs)
    shares = (least / np.array(stddevs)) ** 2
    found = np.asarray((shares / shares.sum()) @ np.array(estimates))
    return found, least / math.sqrt(shares.sum())


def _weights(measurement: Measurement) -> NDArray[np.float64] | str:
    """Return w, the shortest solution of Q^T w = 1 for the measurement's matrix Q
    (``estimate_total``); or, if there is no solution, a text that says why. For a Kronecker product
    it is the product of the factors' solutions.
    """
    if measurement.matrix is None:
        return np.ones(len(measurement.values))
    parts = factors_of(measurement.matrix)
    weights: NDArray[np.float64] = np.ones(1)
    for i, part in enumerate(parts):
        w, misfit = _shortest_solution(part)
        if not misfit <= CLOSE:
            which = f"factor of {measurement.clique[i]!r}" if len(parts) > 1 else "matrix"
            return (
                f"{measurement.clique!r}: the row of ones is not in the row space of its {which} "
                f"(misfit {misfit:.2g})"
            )
        weights = np.asarray(np.kron(weights, w), dtype=np.float64)
    return weights


def _shortest_solution(matrix: Matrix) -> tuple[NDArray[np.float64], float]:
    """Return the shortest least-squares solution w of Q^T w = 1, and max |Q^T w - 1|."""
    ones = np.ones(matrix.shape[1])
    if is_sparse(matrix) and math.prod(matrix.shape) > TABLE_CELLS:
        from scipy.sparse.linalg import lsqr

        limit = max(1000, 4 * min(matrix.shape))
        w = lsqr(matrix.T, ones, atol=1e-14, btol=1e-14, conlim=0, iter_lim=limit)[0]
    else:
        w = np.linalg.lstsq(as_dense(matrix).T, ones, rcond=None)[0]
    return w, float(np.abs(matrix.T @ w - ones).max())


def _listed(reasons: list[str]) -> str:
    if not reasons:
        return "there are no measurements"
    return "; ".join(reasons[:5]) + (f" and {len(reasons) - 5} more" if len(reasons) > 5 else "")
