"""Comparisons of synthetic records with real ones by well-known measures; none of them is private.

The k-marginal score and its sub-sampling equivalent are those of NIST's SDNist ("SDNist
Deidentified Data Report Tool", NIST TN 2309, 2023). The similarities of columns and of pairs are
TVComplement and ContingencySimilarity of SDMetrics (docs.sdv.dev/sdmetrics). The propensity score
is that of Snoke, Raab, Nowok, Dibben and Slavkovic, "General and specific utility measures for
synthetic data", JRSS A 181, 2018. All measures are computed over codes, with each bin as one value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu, norm

from mechanisms.release.evaluation import marginal_errors, one_hot, sklearn, some_rows
from pgmkit import Dataset, InvalidInput, Schema
from pgmkit.domain import Clique

_FRACTIONS = (0.01, 0.05, *(tenths / 10 for tenths in range(1, 10)))
"""The sample fractions that SDNist compares with."""


@dataclass(frozen=True)
class Propensity:
    """The success of a classifier in telling real records from synthetic ones.

    Attributes:
        pmse: The mean squared difference between the classifier's probabilities that a record is
            synthetic and the share of synthetic records; 0 if nothing tells the two kinds apart.
        ratio: `pmse` divided by the value expected of a perfect model of the data.
        columns: The number of columns that the classifier sees.
    """

    pmse: float
    ratio: float
    columns: int


@dataclass(frozen=True)
class Membership:
    """The success of an attack that ranks records by how much likelier the release makes them than
    other records of the same population do.

    Attributes:
        auc: The share of the pairs of a record of the data and one that was not in the data in
            which the attack ranks the former higher; ties count half.
        low: The lower end of a 95% confidence interval for the expectation of `auc`.
        high: The upper end of this interval.
        members: The number of records of the data that were ranked.
        others: The number of ranked records that were not in the data.
    """

    auc: float
    low: float
    high: float
    members: int
    others: int


def similarity(real: Dataset, synthetic: Dataset, cliques: Sequence[Clique]) -> dict[Clique, float]:
    """Return one minus the total variation distance of each marginal: 1 if they are equal.

    For one column this is SDMetrics' TVComplement, for two its ContingencySimilarity.

    >>> from pgmkit import Dataset, Domain
    >>> domain = Domain({"a": 2})
    >>> similarity(Dataset(domain, {"a": [0, 1]}), Dataset(domain, {"a": [0, 0]}), [("a",)])
    {('a',): 0.5}
    """
    return {c: 1 - error for c, error in marginal_errors(synthetic, real, cliques).items()}


def k_marginal_score(real: Dataset, synthetic: Dataset, cliques: Sequence[Clique]) -> float:
    """Return SDNist's score of these marginals, at least one, from 0 (no overlap) to 1000 (equal).

    The score is 1000 (2 - d) / 2, where d is the mean L1 distance of the marginals as shares.
    """
    return 1000.0 * float(np.mean(list(similarity(real, synthetic, cliques).values())))


def subsample_equivalent(
    real: Dataset, score: float, cliques: Sequence[Clique], *, seed: int = 0
) -> float:
    """Return the least of SDNist's fractions (0.01, 0.05, 0.1, 0.2, ... 0.9) for which that part of
    the real records, drawn at random, has a k-marginal score of at least `score` against all of
    them; 1.0 if there is none.
    """
    rng = np.random.default_rng(seed)
    for fraction in _FRACTIONS:
        size = max(1, round(fraction * len(real)))
        part = some_rows(real, rng.choice(len(real), size, replace=False))
        if k_marginal_score(real, part, cliques) >= score:
            return fraction
    return 1.0


def propensity(
    real: Dataset, synthetic: Dataset, *, most: int = 10_000, seed: int = 0
) -> Propensity:
    """Return the pMSE of a logistic regression on single columns, and its ratio to a perfect
    model's.

    At most `most` records of each kind are used, and of the columns the first ones that have up to
    500 coefficients together (a column of m values has m - 1), but at least one: more coefficients
    take minutes and need more records. Raises InvalidInput if scikit-learn is not installed.

    The ratio is to the expected pMSE of n synthetic records drawn from the real records' own
    distribution, (k - 1) c^2 (1 - c)^2 / n, for k coefficients (the constant included) and a share
    c of synthetic records among all records used (Snoke et al., section 2.2). If only m of the real
    records are used, and a share f of the real records is left out, 1 / n + f / m takes the place
    of 1 / n. If no column varies, the pMSE is 0 and the ratio 1.
    """
    linear = sklearn("linear_model")
    rng = np.random.default_rng(seed)
    parts = [_sample(real, most, rng), _sample(synthetic, most, rng)]
    sizes = np.cumsum([size - 1 for size in real.domain.sizes.values()])
    names = real.domain.attributes[: max(1, int((sizes <= 500).sum()))]
    m, n = (len(part) for part in parts)
    labels = np.repeat([0, 1], [m, n])
    features = np.concatenate([one_hot(p, names, drop="first").toarray() for p in parts])
    features = features[:, features.any(axis=0) & ~features.all(axis=0)]
    share = n / (m + n)
    coefficients = int(np.linalg.matrix_rank(np.column_stack([np.ones(m + n), features])))
    if coefficients < 2:
        return Propensity(0.0, 1.0, len(names))
    model = linear.LogisticRegression(C=1e6, max_iter=2000).fit(features, labels)
    pmse = float(((model.predict_proba(features)[:, 1] - share) ** 2).mean())
    spread = 1 / n + (1 - m / len(real)) / m
    expected = (coefficients - 1) * (share * (1 - share)) ** 2 * spread
    return Propensity(pmse, pmse / expected, len(names))


def matches(
    real: Dataset, synthetic: Dataset, *, most: int = 50_000, seed: int = 0
) -> tuple[float, float]:
    """Divide the real records at random into two halves, and return two shares: of the synthetic
    records that equal one of the first half in all codes, and of the second half's records that do,
    which is the share to be expected by chance. At most `most` synthetic records are used, and as
    many of each half.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(real))[: 2 * most]
    half = len(order) // 2
    kept, others = some_rows(real, order[:half]), some_rows(real, order[half:])
    known = set(_keys(kept))

    def share(records: Dataset) -> float:
        return float(np.mean([key in known for key in _keys(records)]))

    return share(_sample(synthetic, most, rng)), share(others)


def membership(
    model: Any,
    members: Dataset,
    others: Dataset,
    cliques: Sequence[Clique],
    *,
    most: int = 20_000,
    seed: int = 0,
) -> Membership:
    """Return the area under the ROC curve of a membership inference attack, with the 95% interval
    of Hanley and McNeil (1982). With 100 other records or fewer it covers the expected area in
    about 92 of 100 cases, as it leaves out that another reference would rank records otherwise.

    `members` are the records that the model was made of, and `others` are records of the same
    population that it was not made of; the attack knows half of the latter as its reference and
    ranks the other half. It ranks a record by the mean logarithm of how much likelier the model
    makes the record's values in `cliques` than the reference does. At most `most` records of each
    kind are ranked, and at most four members for each of the other records that are. A stronger
    attack may exist; what bounds every attack is the budget. Raises InvalidInput for fewer than 4
    other records.
    """
    if len(others) < 4:
        raise InvalidInput(f"membership needs 4 or more records not in the data, got {len(others)}")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(others))
    reference, unseen = some_rows(others, order[::2]), some_rows(others, order[1::2])
    known = _sample(members, min(most, len(unseen) * 4), rng)
    unseen = _sample(unseen, most, rng)
    tables, counts = model.marginals(cliques), reference.marginals(cliques)
    scores = [np.zeros(len(known)), np.zeros(len(unseen))]
    for clique in cliques:
        released = np.maximum(tables[clique], 0) + 0.5
        usual = counts[clique] + 0.5
        gain = np.log(released / released.sum()) - np.log(usual / usual.sum())
        for score, records in zip(scores, (known, unseen), strict=True):
            score += gain[tuple(records.columns[name] for name in clique)]
    auc = area_under_curve(*scores)
    reach = float(norm.ppf(0.975)) * _auc_error(auc, len(known), len(unseen))
    low, high = max(0.0, auc - reach), min(1.0, auc + reach)
    return Membership(auc, low, high, len(known), len(unseen))


def regressions(
    real: Dataset, synthetic: Dataset, schema: Schema, y: str, x: str, group: str
) -> Iterator[tuple[str, int, float, float]]:
    """Yield, for each value of `group`, its label, the number of real records that have a value of
    both x and y, and the least-squares slopes of column y on column x among these and among the
    synthetic records.

    Bins count at their middles. Records without a value of x or y are left out, and so are groups
    of which fewer than 20 real or 20 synthetic records remain, or whose remaining real or synthetic
    records all have the same x.
    """
    middles = {name: np.asarray(schema.columns[name].midpoints) for name in (x, y)}

    def slope(data: Dataset, code: int) -> tuple[int, float]:
        rows = data.columns[group] == code
        a, b = _present(*(middles[name][data.columns[name][rows]] for name in (x, y)))
        if len(a) < 20 or np.ptp(a) == 0:
            return 0, math.nan
        return len(a), float(np.cov(a, b, bias=True)[0, 1] / a.var())

    for code, label in enumerate(schema.columns[group].labels):
        (size, first), (other, second) = slope(real, code), slope(synthetic, code)
        if size and other:
            yield label, size, first, second


def area_under_curve(high: NDArray[np.float64], low: NDArray[np.float64]) -> float:
    """Return the probability that a score of `high` is above one of `low`; ties count half."""
    return float(mannwhitneyu(high, low).statistic / (len(high) * len(low)))


def _auc_error(auc: float, first: int, second: int) -> float:
    """Return the standard error of an AUC by Hanley and McNeil, for these numbers of records."""
    one, two = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    spread = auc * (1 - auc) + (first - 1) * (one - auc**2) + (second - 1) * (two - auc**2)
    return math.sqrt(max(0.0, spread) / (first * second))


def _keys(data: Dataset) -> Iterator[bytes]:
    table = np.stack([codes.astype(np.int64) for codes in data.columns.values()], axis=1)
    return (row.tobytes() for row in table)


def _sample(data: Dataset, most: int, rng: np.random.Generator) -> Dataset:
    if len(data) <= most:
        return data
    return some_rows(data, rng.choice(len(data), most, replace=False))


def _present(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an array of two rows, the values of x and y in the records that have both."""
    points = np.stack([x, y])
    return points[:, ~np.isnan(points).any(axis=0)]


def strongest_line(real: Dataset, schema: Schema, target: str | None) -> tuple[str, str] | None:
    """Return the two columns of numbers that are most correlated in the real records, as (y, x);
    None if no two columns have 20 records with values of both, and a correlation other than 0.

    Only the first thirty columns of numbers with more than two codes are compared. If `target` is
    one of these, y is the target.
    """
    numbers = [n for n, c in schema.columns.items() if c.midpoints is not None and c.size > 2]
    values = {n: np.asarray(schema.columns[n].midpoints)[real.columns[n]] for n in numbers[:30]}
    best, found = 0.0, None
    for y, x in itertools.permutations(values, 2):
        if target in values and y != target:
            continue
        points = _present(values[x], values[y])
        if len(points[0]) < 20 or not np.ptp(points, axis=1).all():
            continue
        strength = abs(float(np.corrcoef(points[0], points[1])[0, 1]))
        if strength > best:
            best, found = strength, (y, x)
    return found
