"""Smoothing of the noisy counts of one attribute, as much as their noise requires.

A column of sixty codes and few records has more noise than records in most codes, and neighbouring
codes often have similar counts: ages, amounts, bins of equal counts. The codes are halved into runs
of equal length, the runs are halved again, and so on down to single codes. What one halving adds to
the means of the runs is a part of the counts, and all parts are orthogonal (a Haar basis).

If the truth of a part with d degrees of freedom is regarded as a draw of variance v in each, in
units of the noise's variance, its noisy values have the mean square 1 + v, and their best estimate
is v / (1 + v) times themselves, with v / (1 + v) of the noise's variance (James and Stein 1961; by
halvings Cai, "Adaptive wavelet estimation: a block thresholding and oracle inequality approach",
1999). So coarse runs stay, and single codes as far as they stand out from noise. Codes without an
order lose little: their parts are as large as their differences, and stay as far as noise does not
explain them.

No count is below 0, and the sum of all counts is known. So the noisy counts are replaced first by
the nearest ones of this kind. Counts that are then 0 have hardly any noise left, so the mean
variance of the noise is that of the measurement times the share of the codes with counts above 0.

Nothing here sees private data or a Curator: only noisy counts are read.
"""

from __future__ import annotations

import math

import numpy as np

from mechanisms.families.mixture_fit import nearest_counts
from pgmkit.measurement import Measurement
from pgmkit.runtime.chances import expected_positive


def smoothed(noisy: Measurement, total: float) -> Measurement:
    """Return the counts of one attribute of `total` records, smoothed: the nearest counts that are
    not below 0 and have this sum, with the differences between runs of codes reduced. Their
    `stddev` is the root of the mean variance of the noise that is left in a code whose nearest
    count is above 0.

    What each halving of the runs of codes adds to their means is multiplied by v / (1 + v), where v
    is the true variance of these d differences in units of the noise's. Their mean square in these
    units, minus 1, estimates v with the variance 2 / d. Since v is not negative, the expected value
    of the positive part of this estimate is used, which is above 0 even for a mean square of 1.

    >>> noisy = Measurement(("a",), [9, 12, 10, 11, 52, 48, 49, 51], stddev=4.0)
    >>> found = smoothed(noisy, 242.0)
    >>> found.values.round(), round(found.stddev, 1)
    (array([11., 11., 11., 11., 50., 50., 50., 50.]), 2.2)
    """
    values, size = nearest_counts(noisy.values, total), len(noisy.values)
    found = mean = np.full(size, total / size)
    runs, left, noise = 1, 1.0, noisy.stddev**2 * (values > 0).mean()
    for halvings in range(1, 1 + math.ceil(math.log2(size))):
        codes = np.unique(np.arange(size) * 2**halvings // size, return_inverse=True)[1]
        finer = (np.bincount(codes, values) / np.bincount(codes))[codes]
        degrees = codes[-1] + 1 - runs
        square = ((finer - mean) ** 2).sum() / (degrees * noise)
        kept = 1 - 1 / (1 + expected_positive(square - 1, (2 / degrees) ** 0.5))
        found, left = found + kept * (finer - mean), left + kept * degrees
        runs, mean = runs + degrees, finer
    return Measurement(noisy.clique, found, noisy.stddev * (left / size) ** 0.5)
