"""The measurement of pairs of attributes by residuals, on merged codes if noise would hide the
dependence on single codes.

The residual of a pair is the part of its table that the counts of its two attributes do not
determine: the table minus its means along each axis. With Gaussian noise a residual of g x h cells
costs (g - 1) (h - 1) / (g h) times as much as the table with the same noise, so that of two
Booleans costs a quarter (Xiao, He, Zhang and Kifer 2023, see `mechanisms.strategies.residuals`). It
has no information about the single attributes, so these are measured too, and the noise of an
attribute enters all of its pairs. With Laplace noise a residual costs as much as the table.
Graphical models take ten times as long to estimate from residuals, so tables are measured for them.

Neighbouring bins are merged into groups of about equal counts. A bin whose own count is as large as
that of a group, such as a frequent spike, stays separate. Codes without order stay separate too:
missing values, and all codes of a categorical column, since merging would lose most of the
dependence on them. Whether a pair is measured on merged codes is decided by its predicted error,
since fewer cells have less noise in total but lose the dependence within groups.

**Shares of a budget.** Consider a table at the L1 distance d from what is known without it,
measured with noise of expected L1 norm n. If both sources are combined, weighted by the inverse of
their sizes, the error is near d n / (d + n): the distance if noise hides it, the noise if that is
small. With a the noise at the cost 1, n = a / c^p at the cost c, where p is 1/2 for Gaussian noise
and 1 for Laplace noise, and the sum over tables

    sum_i d_i a_i / (d_i c_i^p + a_i)

is convex in the costs. At its minimum for a given sum of costs all tables of a cost above zero have
the same slope.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mechanisms.privacy.conversions import crossing
from mechanisms.privacy.curator import Curator
from pgmkit.domain import Clique
from pgmkit.measurement import Measurement
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.iterations import FEW_ROUNDS

Groups = NDArray[np.intp]

_GROUPS = tuple(2**power for power in range(1, 6))
"""The numbers of groups that are tried. More groups gain little and make the fit larger. An
attribute that has no more bins than groups keeps all its codes.
"""
MOST_GROUPS = _GROUPS[-1]
_LOST = 0.73
"""The share of the L1 distance from independence that is lost when n codes of one attribute are
merged into g groups, divided by 1/g - 1/n: for the density 1 + t x y on (-1, 1)^2 it is 0.72 for 2
groups to 0.74 for 20.
"""


@dataclass(frozen=True)
class Tables:
    """The cells to measure for each pair, and the shares of one budget, which sum to 1 over pairs
    and single attributes.

    `groups`: for each pair, the group of each code of its first and of its second attribute.
    `pairs`: the share of each pair; `singles`: the share of each attribute, in the order of the
    attributes that `best_tables` was given. `gains`: by how much each pair's measurement is
    predicted to reduce its error, in counts.
    """

    groups: list[tuple[Groups, Groups]]
    pairs: Array
    singles: Array
    gains: Array

    def excess(self, distances: Array, cell: float) -> Array:
        """Return for each pair by how much the sum of squares of its residual is expected to exceed
        that of noise alone, in standard deviations of the latter, if the residuals are measured
        with Gaussian noise (`mechanisms.families.shrinkage.beyond_noise` finds it afterwards).

        `distances`: the L1 distances of the pairs from independence, in counts. `cell`: the
        expected absolute noise of a cell measured with the whole budget. The dependence in N cells
        is taken for draws from a normal distribution, as the noise is, so that the ratio of both
        sums of squares is the square of the ratio of both L1 norms.
        """
        sides = 1.0 + np.array([[a.max(), b.max()] for a, b in self.groups])
        cells, degrees = sides.prod(1), np.maximum((sides - 1).prod(1), 1)
        return np.asarray(
            (distances / (cell * cells)) ** 2 * self.pairs * cells / (2 * degrees) ** 0.5
        )


@dataclass(frozen=True)
class OneWay:
    """The counts of an attribute, and their noise, before its pairs are measured.

    `counts`: noisy counts, at least 0, of its codes; an entry may also be the sum over several
    codes. `noise`: the expected absolute noise in the count of one code. `bins`: the number n of
    the entries 0..n-1 that are bins in order. `codes`: the number of codes that a one-way table of
    the attribute has; None if there is one for each entry of `counts`. `weight`: the weight of the
    noise in its counts in addition to the 1/2 that each measured pair with the attribute gives it.
    """

    counts: Array
    noise: float
    bins: int = 0
    codes: int | None = None
    weight: float = 0.0


def groups_of(counts: Array, most: int, bins: int) -> Groups:
    """Return the number of the group of each code. Groups are runs of bins that together have at
    most 1/most of all counts, and single bins that have more; the bins form fewer than twice `most`
    groups.

    `counts`: the counts of the codes, at least 0; if all are 0, each is taken as 1. The first
    `bins` codes are bins in order; all others stay separate, and so do all codes if there are at
    most `most` bins.

    >>> groups_of(np.array([5.0, 5.0, 60.0, 10.0, 10.0, 10.0]), 3, bins=6)
    array([0, 0, 1, 2, 2, 2])
    """
    if bins <= most:
        return np.arange(len(counts))
    counts = counts if counts.any() else np.ones_like(counts)
    whole = float(counts.sum()) / most
    found, group, held = np.zeros(len(counts), dtype=np.intp), 0, 0.0
    for code, count in enumerate(counts.tolist()):
        if code >= bins or (code and held + count > whole):
            group, held = group + 1, 0.0
        found[code] = group
        held += count
    return found


def best_tables(
    pairs: Sequence[Clique],
    known: Mapping[str, OneWay],
    distances: Array,
    cell: float,
    *,
    pure: bool,
    residuals: bool,
    importance: float | Array = 1.0,
) -> Tables:
    """Return the cells on which each pair is measured, and the shares of a budget. The cells and
    the shares are improved in turn, a few times, so that the predicted error of all pairs together
    becomes small.

    The error of a pair is the mean of the error of its table, which includes the noise in the
    counts of both attributes, and of the error of its dependence, which does not. Let the mean
    error be that of all pairs whose error is not 0. An error above it counts by its square: a pair
    with twice the mean error has the weight 2, also in the errors of its attributes. Otherwise the
    largest tables, whose errors fall slowly with the cost, would get little.

    `known`: what is known of each attribute.

    `distances`: the L1 distances of the pairs from independence, in counts; a pair with the
    distance 0 gets no share. `cell`: the expected absolute noise, in counts, of a cell measured
    with the whole budget. `pure`: True for Laplace noise, False for Gaussian noise. `residuals`:
    True if residuals are measured, False if tables are. `importance`: by how much the error of each
    pair is multiplied, above 0.

    If the distance, less what chance explains of it (`chance_distance`), is a share d of the number
    of records, the records are assumed to be concentrated on a share 1 - d / 2 of the cells, but on
    no fewer cells than the larger attribute has groups of codes. If one attribute is a function of
    the other, with n equally frequent codes, 1 - d / 2 is 1 / n.
    """
    names, options, every = list(known), (0, *_GROUPS), np.arange(len(pairs))
    counts = {name: one.counts for name, one in known.items()}
    merged = {
        name: [groups_of(one.counts, most or len(one.counts), one.bins) for most in options]
        for name, one in known.items()
    }
    ends = np.array([[names.index(name) for name in pair] for pair in pairs])
    sizes = np.array([[own[o].max() + 1.0 for own in merged.values()] for o in range(len(options))])
    sizes = sizes[:, ends]  # shape (options, pairs, 2)
    chance = np.minimum([chance_distance(counts[a], counts[b]) for a, b in pairs], distances)
    rows = max(1.0, max(float(count.sum()) for count in counts.values()))
    # The share of each pair's cells that is assumed to have records.
    width = np.maximum(1 - (distances - chance) / (2 * rows), np.finfo(float).eps)
    sides = sizes - residuals  # the degrees of freedom of a residual, or the cells of a table
    # `kept` is the part of each distance that remains if codes are merged. It is 0 where a side is
    # 0, since a pair has no residual if all codes of one of its attributes form a single group.
    kept = np.where(sides.all(2), _kept(sizes, distances, chance, width), 0.0)
    # In cells without records little noise remains, since estimated counts are not below 0. So
    # groups are chosen by the noise of the `filled` cells, which are assumed to have records. But
    # shares follow from the noise of all `cells`, or pairs that depend strongly would get too
    # little.
    cells = sides.prod(2)
    filled = np.maximum(cells * width, np.maximum(sides.max(2), 1))
    codes = np.array([float(one.codes or len(one.counts)) for one in known.values()])
    before, further = np.array([(one.noise, one.weight) for one in known.values()]).T
    power = 1.0 if pure else 0.5
    best, single = np.zeros(len(pairs), dtype=np.intp), before
    weights = importance * np.ones(len(pairs))
    for _ in range(FEW_ROUNDS):  # shares, weights and groups depend on each other
        now = best, every
        # With a residual or a table on merged codes, the counts of single codes come from one-way
        # measurements, whose errors enter the pair. A table on all codes of an attribute measures
        # its counts too.
        taking = np.where(residuals | (sizes[now] < sizes[0]), weights[:, None], 0.0)
        entered = further + np.bincount(ends.ravel(), taking.ravel(), minlength=len(names)) / 2
        if not (kept.any() or entered.any()):  # the attributes' own counts are all that is left
            entered = np.ones(len(names))
        far = np.concatenate([weights * kept[now], entered * codes * single])
        whole = cell * np.concatenate([weights * cells[now], entered * codes])
        of_pairs, of_singles = np.split(least_risk_shares(far, whole, pure=pure), [len(pairs)])
        at_cost = cell / np.maximum(of_pairs, np.finfo(float).eps) ** power
        risks = predicted_risk(kept[now], at_cost * cells[now])
        mean = max(risks.sum() / max(1, np.count_nonzero(risks)), np.finfo(float).tiny)
        weights = importance * np.maximum(risks / mean, 1.0)
        # The distance that merging keeps, minus its predicted risk, is written as one fraction,
        # since a difference of nearly equal numbers would lose digits.
        gains = kept**2 / (kept + at_cost * filled)
        best = gains.argmax(0)
        precision = before**-2.0
        for side in () if residuals else (0, 1):
            alone = sizes[best, every, side] == sizes[0, :, side]
            told = alone / (sizes[best, every, 1 - side] * at_cost**2)
            precision = precision + np.bincount(ends[:, side], told, minlength=len(names))
        single = precision**-0.5
    wrong = entered * np.minimum(codes * single, 2 * rows)
    of_singles = _divided(float(of_singles.sum()), wrong, cell * entered * codes, pure)
    chosen = zip(pairs, best.tolist(), strict=True)
    groups = [(merged[a][option], merged[b][option]) for (a, b), option in chosen]
    return Tables(groups, of_pairs, of_singles, importance * gains.max(0))


def _divided(together: float, wrong: Array, noise: Array, pure: bool) -> Array:
    """Divide the share `together` of the budget among the attributes' counts by least risk; all get
    0 if it is 0.

    `wrong`: the predicted L1 error of each attribute's counts without these measurements, which the
    caller has capped at twice the number of records: otherwise attributes with many codes would get
    too large a share where noise exceeds the counts. `noise`: the L1 noise of each attribute's
    counts measured with the whole budget. Both are weighted by how much the counts enter the pairs.
    """
    if not together > 0:
        return np.zeros(len(wrong))
    within = noise / together ** (1.0 if pure else 0.5)
    return together * least_risk_shares(wrong, within, pure=pure)


def _kept(sizes: Array, distances: Array, chance: Array, width: Array) -> Array:
    """Return the distance from independence that remains if codes are merged, with a row for each
    option of merging and a column for each pair.

    `sizes`: the numbers of groups, options x pairs x 2; `chance`: the part of each distance that
    independent attributes would have by chance; `width`: the share of the cells that have records.

    The fewer cells the records are concentrated on, the more of the distance is lost by merging. A
    distance by chance is assumed to be spread over all cells, without regard to the order of the
    codes, and so is a quarter of the rest, because numbers may be identifiers. With a quarter,
    `auto` has 0.79 times the error of pairs that it has without this part on lme4/InstEval, whose
    students and lecturers are such numbers; with a tenth the error is hardly less than without, and
    with a half it is larger than with a quarter on small tables (`benchmarks/README.md`).
    """
    cells = sizes.prod(2)
    lost = np.minimum(_LOST * (1 / sizes - 1 / sizes[0]).sum(2) / width, 1.0)
    unordered = chance + (distances - chance) / 4
    return np.asarray((1 - lost) * (distances - unordered) + np.sqrt(cells / cells[0]) * unordered)


def chance_distance(first: Array, second: Array) -> float:
    """Return the expected L1 distance, in counts, between the joint counts of two independent
    attributes and their product. `first` and `second`: the counts of their codes.
    """
    rows = max(1.0, float(first.sum()))
    product = np.outer(first, second).ravel() / max(1.0, float(second.sum()))
    spread = np.sqrt(product * np.maximum(0.0, 1 - product / rows))
    return float(np.minimum(spread * (2 / np.pi) ** 0.5, 2 * product).sum())


def known_of(
    names: Sequence[str],
    marginal: Callable[[Clique], Array],
    first: Sequence[Measurement],
    bins: Mapping[str, int],
    *,
    pure: bool,
) -> dict[str, OneWay]:
    """Return what is known of each of these attributes: its counts, which are its `marginal`, the
    noise in them, and its number of ordered bins.

    The noise is that of the attribute's one-way measurements in `first`, averaged by inverse
    variance. `pure`: True for Laplace noise, False for Gaussian noise. An attribute without a
    measurement must have one value; its noise is taken to be almost 0.

    >>> first = [Measurement(("a",), [1, 2], 10.0)]
    >>> found = known_of("ab", lambda clique: np.ones(2), first, {}, pure=False)
    >>> round(found["a"].noise, 2), found["b"].noise < 1e-9
    (7.98, True)
    """
    unit = 2**-0.5 if pure else (2 / np.pi) ** 0.5
    precision, none = defaultdict[Clique, float](float), float(np.finfo(float).eps)
    for m in first:
        precision[m.clique] += m.stddev**-2
    noise = {name: unit * precision[name,] ** -0.5 if precision[name,] else none for name in names}
    return {name: OneWay(marginal((name,)), noise[name], bins.get(name, 0)) for name in names}


def measure_tables(
    curator: Curator,
    names: Sequence[str],
    pairs: Sequence[Clique],
    tables: Tables,
    cost: float,
    *,
    residuals: bool,
) -> list[Measurement]:
    """Measure the attributes `names` by themselves, and the residuals (or tables, unless
    `residuals`) of the pairs on the groups of codes in `tables`. Each takes its share in `tables`
    of `cost`; attributes and pairs with the share 0 are not measured.
    """
    scale = cost / (tables.pairs.sum() + tables.singles.sum())
    singles, shares = (scale * tables.singles).tolist(), (scale * tables.pairs).tolist()
    found = [
        curator.measure((name,), each, step="again: measure")
        for name, each in zip(names, singles, strict=True)
        if each > 0
    ]
    for pair, both, each in zip(pairs, tables.groups, shares, strict=True):
        if each > 0:
            found.append(_measured(curator, pair, both, each, residuals))
    return found


def _measured(
    curator: Curator, pair: Clique, groups: tuple[Groups, Groups], cost: float, residual: bool
) -> Measurement:
    """Measure the residual of a pair, or its table, on these groups of codes at this cost. For
    exact noise the residual is multiplied by the number of cells, which makes its rows whole
    numbers; values and noise are divided by this number afterwards.
    """
    step = "2-way: measure"
    # Each attribute has a 0/1 matrix, groups x codes, with ones at the codes of each group.
    sums = [(np.arange(own.max() + 1)[:, None] == own).astype(float) for own in groups]
    if residual:
        whole = [len(each) * each - 1 for each in sums]
        found = curator.measure_queries(pair, whole, cost, step=step)
        cells = len(sums[0]) * len(sums[1])
        centred = [each - 1 / len(each) for each in sums]
        return Measurement(pair, found.values / cells, found.stddev / cells, centred)
    if all(each.shape[0] == each.shape[1] for each in sums):
        return curator.measure(pair, cost, step=step)
    return curator.measure_queries(pair, sums, cost, step=step)


def predicted_risk(distances: Array, noise: Array) -> Array:
    """Return, for each table, the expected L1 error d n / (d + n) of an estimate that combines the
    table's measurement with what is known without it; 0 where both d and n are 0. `distances`: the
    L1 distance d of each table from what is known without its measurement. `noise`: the expected L1
    norm n of each measurement's noise, in the same unit.

    >>> predicted_risk(np.array([6.0, 0.0]), np.array([3.0, 3.0]))
    array([2., 0.])
    """
    together = distances + noise
    return np.divide(distances * noise, together, out=np.zeros_like(together), where=together > 0)


def least_risk_shares(distances: Array, noise: Array, *, pure: bool) -> Array:
    """Return the shares of one budget, with sum 1, for which the predicted risk of all tables is
    least.

    `distances`: at least 0, not all 0; `noise`: the noise of each table measured with the whole
    budget, above 0; both are L1 norms in counts. `pure`: True if noise is inversely proportional to
    a share, False if to its square root. Tables at the distance 0 get nothing.

    >>> noise = np.array([1.0, 1.0, 1.0])
    >>> least_risk_shares(np.array([4.0, 4.0, 0.0]), noise, pure=False).round(3)
    array([0.5, 0.5, 0. ])
    """
    shares = np.zeros(len(distances))
    told = distances > 0
    d, a = distances[told], noise[told]

    def affordable(log_slope: float) -> bool:
        return bool(_shares_at(d, a, np.exp(log_slope), pure).sum() <= 1)

    _, log_slope = crossing(affordable, -700.0, 700.0)  # floats hold no further slopes
    found = _shares_at(d, a, np.exp(log_slope), pure)
    shares[told] = found / found.sum()
    return shares


def _shares_at(d: Array, a: Array, slope: float, pure: bool) -> Array:
    """Return the share c of each table at which its risk falls by `slope` for each unit of the
    share. `d`: the table's distance; `a`: its noise at the whole budget.

    With t = d c / a, for p = 1, the slope is d^2 / (a (1 + t)^2); with t = d sqrt(c) / a, for p =
    1/2, it is d^3 / (2 a^2 t (1 + t)^2), a cubic in t. With t = 4/3 sinh(x)^2 it is sinh(3 x)^2 =
    27 d^3 / (8 a^2 slope), from which small t follow to all digits.
    """
    if pure:
        return np.asarray(np.maximum(d / np.sqrt(a * slope) - 1, 0.0) * a / d)
    with np.errstate(over="ignore"):
        third = np.arcsinh(np.sqrt(27 / 8 * d**3 / slope) / a) / 3
        return np.asarray((4 / 3 * np.sinh(third) ** 2 * a / d) ** 2)
