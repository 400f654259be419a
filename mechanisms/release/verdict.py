"""A verdict on what a release keeps and loses, in words for readers without statistics.

Everything is computed from the noisy measurements and the model: nothing here is exact, and
nothing costs budget.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.privacy.budget import Budget
from mechanisms.privacy.noise_scales import reach
from mechanisms.release.column_counts import as_table, cell_variances, column_counts
from mechanisms.release.independence import Evidence, evidence
from mechanisms.release.record import count_noise
from mechanisms.workload import pairs_of
from pgmkit import Domain, Kronecker, Measurement
from pgmkit.runtime.printed import NAMED
from pgmkit.runtime.sizes import TABLE_CELLS
from pgmkit.tables.questions import UNRELIABLE

MOST_CELLS = TABLE_CELLS
"""Relations are compared with chance if the tables of their pairs have at most this many cells in
all, which takes about a second.
"""
_STRONGER = NAMED // 3
"""The most relations that are listed as the strongest."""


@dataclass(frozen=True)
class Verdict:
    """Sentences on which relations are kept, how sure counts are, and what would keep more.

    Attributes:
        relations: Which relations between columns are kept.
        counts: How sure counts are.
        more: What would keep more.
        shown: Which of the kept relations are the strongest in the model, and which sampling and
            noise may explain.
        shows: From which Cramér's V on relations can show in the measured tables.
        kept: The pairs of columns, of more than one value each, that were measured together.
        hidden: Those of the kept pairs whose relation sampling and noise may explain. If the tables
            of the kept pairs have more than `MOST_CELLS` cells in all, nothing is compared, and
            `hidden`, `shown` and `shows` are empty.
        error: Half the width of a 95% interval of the count of one value; None if no measured table
            gives it. It covers the noise of the median column, and the distance of the model's
            counts from the noisy ones as far as noise does not explain it.
    """

    relations: str
    counts: str
    more: str
    shown: str
    shows: str
    kept: tuple[tuple[str, str], ...]
    hidden: tuple[tuple[str, str], ...]
    error: float | None

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences that are not empty."""
        return tuple(filter(None, (self.relations, self.shown, self.shows, self.counts, self.more)))

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    __repr__ = __str__


def verdict(
    model: Any, measurements: Iterable[Any], budget: Budget | None = None, rows: float | None = None
) -> Verdict:
    """Return the verdict on a model and the noisy values behind it.

    `budget`: the budget of the promise; without it the verdict does not say how much less noise a
    larger epsilon gives. `rows`: the number of records of the data, with which noise is compared;
    by default the total of the model.

    >>> from pgmkit import Domain, Measurement, estimate
    >>> noisy = [Measurement((n,), [70.0, 30.0], 1.0) for n in ("a", "b")]
    >>> model = estimate(Domain({"a": 2, "b": 2}), noisy)
    >>> print(verdict(model, noisy).relations)
    The synthetic columns are unrelated to each other: each is kept by itself, and no relation
    between two of them. Use them for no correlation, regression or prediction.
    """
    known = [as_table(m) for m in measurements]
    domain, total = model.domain, model.total if rows is None else rows
    # A column of one value has no relations.
    names = [name for name, size in domain.sizes.items() if size > 1]
    kept = pairs_of(domain, [m.clique for m in known])
    tables = [m for m in known if isinstance(m, Measurement) and m.matrix is None]
    noisy = column_counts(domain, tables)
    variances = {name: m.stddev**2 for name, m in noisy.items()}
    compared = kept if sum(map(domain.size, kept)) <= MOST_CELLS else []
    found = evidence(model, known, variances, total) if compared else {}
    strengths, hidden = _strengths(model, compared, found)
    far = reach(19 / 20, pure=budget is not None and budget.pure)
    stderr = _stderr(model, noisy)
    related = _relations(names, kept, bool(known), model), _faint(model, total, known)
    return Verdict(
        " ".join(filter(None, related)),
        _counts(total, stderr, far),
        _more(budget),
        _shown(strengths, hidden),
        _shows(found),
        tuple(kept),
        tuple(hidden),
        None if stderr is None else far * stderr,
    )


def _relations(
    names: Sequence[str], kept: Sequence[tuple[str, str]], measured: bool, model: Any
) -> str:
    every = math.comb(len(names), 2)
    if not measured:
        return (
            "No table of counts was measured, so nothing is known of which relations between "
            "columns are kept."
        )
    if not every:
        return ""
    if not kept and pairs_of(model.domain, getattr(model, "cliques", ())):
        return (
            "No table of two columns was measured: the synthetic columns are related only as far "
            "as constraints, or totals that were given exactly, demand. Use them for no "
            "correlation, regression or prediction."
        )
    if not kept:
        return (
            "The synthetic columns are unrelated to each other: each is kept by itself, and no "
            "relation between two of them. Use them for no correlation, regression or prediction."
        )
    if len(kept) == every == 1:
        return "The relation between the two columns is kept, as far as noise allows."
    if len(kept) == every:
        return f"Relations between all {every} pairs of columns are kept, as far as noise allows."
    listed = ": " + ", ".join(f"{a} with {b}" for a, b in kept) if len(kept) <= NAMED else ""
    left = every - len(kept)
    which = f"Relations within {len(kept)} pairs of columns are"
    which = which if len(kept) > 1 else "The relation within one pair of columns is"
    others = f"Those within the other {left} pairs" if left > 1 else "That within the other one"
    return (
        f"{which} kept, as far as noise allows{listed}. {others} "
        f"{'are' if left > 1 else 'is'} kept only as far as the kept ones explain "
        f"{'them' if left > 1 else 'it'}, and mostly lost otherwise."
    )


def _faint(model: Any, total: float, known: Sequence[Any]) -> str:
    """Return a sentence on the pairs of columns whose measured tables all have, on average, more
    noise than rows in a cell; empty if there are none.
    """
    domain, noise = model.domain, dict[tuple[str, str], float]()
    tables = [m for m in known if isinstance(m, Measurement)]  # a predicate's count is no table
    variances = cell_variances(domain, tables, model.total)
    found = {clique: np.sqrt(each).sum() for clique, each in variances.items()}
    for m in tables:
        ratio = found.get(m.clique, count_noise(m) * _cells(domain, m)) / total
        for pair in pairs_of(domain, [m.clique]):
            noise[pair] = min(noise.get(pair, math.inf), ratio)
    faint = [pair for pair, ratio in noise.items() if ratio > 1]
    if not faint:
        return ""
    many = f"{'all' if len(faint) == len(noise) else len(faint)} of them"
    which = many if len(faint) > 1 else f"{faint[0][0]} with {faint[0][1]}"
    return (
        f"The tables of {which} hold more noise than rows in most cells, so that only the rough "
        f"outline of {'these relations' if len(faint) > 1 else 'this relation'} is kept."
    )


def _cells(domain: Domain, measurement: Measurement) -> int:
    """Return the number of cells of a measured table. If each attribute was measured on several
    sums of its codes, the cells are the combinations of these sums.
    """
    if isinstance(measurement.matrix, Kronecker):
        sizes = [each.shape[0] for each in measurement.matrix.factors]
        if min(sizes) > 1:
            return math.prod(sizes)
    return domain.size(measurement.clique)


def _strengths(
    model: Any, kept: Sequence[tuple[str, str]], found: Mapping[tuple[str, str], Evidence]
) -> tuple[dict[tuple[str, str], float], list[tuple[str, str]]]:
    """Return Cramér's V, in the model, of each of the pairs `kept`, and a list of those whose
    relation sampling and noise may explain. `found`: the evidence of the measured tables by pair.

    A relation counts as shown, not explained, on two conditions: the model's is stronger than that
    of unrelated columns on average, and one of the noisy tables is farther from independence than
    the farthest of all the tables would be 19 times out of 20 if no columns were related. For a
    pair that `found` lacks, the first condition alone decides.

    Two unrelated columns with r and c values, r >= c, have in n records a squared Cramér's V of
    (r - 1) / n on average: the mean (r - 1) (c - 1) of chi-square over n (c - 1).
    """
    tables, rows = model.marginals(kept), max(1.0, model.total)
    strengths = {pair: association(tables[pair]) for pair in kept}
    chance = {pair: (max(_occurring(tables[pair])) - 1) / rows for pair in kept}
    explained = {pair for pair, each in found.items() if each.hidden}
    return strengths, [p for p in kept if strengths[p] ** 2 <= chance[p] or p in explained]


def _shown(strengths: Mapping[tuple[str, str], float], hidden: Collection[tuple[str, str]]) -> str:
    """Return sentences on which of the kept relations are the strongest in the model (if more than
    `_STRONGER` are kept), and on which of them sampling and noise may explain. The text is empty if
    there is neither to tell.

    `strengths`: Cramér's V of each kept pair. `hidden`: those of the pairs whose relation sampling
    and noise may explain.
    """
    if not strengths:
        return ""
    why = "there is none, or noise hid it, and what records show of it may be noise"
    if len(hidden) == len(strengths):
        return (
            f"But the release shows no relation beyond chance: {why}. Use these columns for no "
            "correlation, regression or prediction."
        )
    seen = [pair for pair in strengths if pair not in hidden]
    order = sorted(seen, key=lambda pair: -strengths[pair])[:_STRONGER]
    strongest = ", ".join(f"{a} with {b} ({strengths[a, b]:.2f})" for a, b in order)
    many = ("relations", "are", "these figures")
    those, are, figures = many if len(order) > 1 else ("relation", "is", "this figure")
    said = (
        f"The strongest {those}, by Cramér's V, {are} {strongest}; noise raises {figures}, most "
        "where columns have many values or rare ones."
        if len(strengths) > _STRONGER
        else ""
    )
    if hidden:
        listed = ", ".join(f"{a} with {b}" for a, b in hidden)
        which = f"{len(hidden)} pairs" if len(hidden) > NAMED else listed
        said += f" Of {which} the release shows no relation beyond chance: {why}."
    return said.strip()


def _shows(found: Mapping[tuple[str, str], Evidence]) -> str:
    """Return a sentence on the strength from which on relations show: in the median pair, and in
    the pairs where it is smallest and largest. The text is empty without tables of pairs.
    """
    if not found:
        return ""
    order = sorted(found, key=lambda pair: found[pair].shows)
    least, middle, most = (found[order[place]].shows for place in (0, len(order) // 2, -1))
    if middle > 1:
        return "Sampling and noise hide relations of any strength in most pairs."
    ends = f"{' with '.join(order[0])} {least:.2f}, {' with '.join(order[-1])} "
    ends += f"{most:.2f}" if most <= 1 else "none"
    pairs = f" in the median pair ({ends})" if len(order) > 1 else ""
    return (
        f"Relations show from a Cramér's V of about {middle:.2f} on{pairs}; sampling and noise "
        "hide weaker ones."
    )


def association(table: NDArray[np.float64]) -> float:
    """Return Cramér's V of a table of two columns: 0 if unrelated, 1 if one determines the other. V
    depends on the numbers of the columns' values, in which values with a count below 0.5 are not
    included.

    >>> association(np.diag([50.0, 50.0, 0.0])), association(np.ones((2, 3)))
    (1.0, 0.0)
    """
    counts = np.maximum(table, 0.0)
    total, least = counts.sum(), min(_occurring(counts)) - 1
    if least < 1:
        return 0.0
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / total
    terms = np.divide(
        (counts - expected) ** 2, expected, out=np.zeros_like(counts), where=expected > 0
    )
    return float(min(1.0, math.sqrt(terms.sum() / (total * least))))


def _occurring(table: NDArray[np.float64]) -> tuple[int, int]:
    """Return, for each of a table's two columns, the number of its values whose count is 0.5 or
    more.
    """
    first, second = (int((table.sum(axis) >= 0.5).sum()) for axis in (1, 0))
    return first, second


def _stderr(model: Any, noisy: Mapping[str, Measurement]) -> float | None:
    """Return the standard error of the count of one value: the root of the sum of two squares. One
    is the standard deviation of the noise in a count of the median column; the other is the root
    mean square, over all values, of the part of the model's distance from the noisy counts that
    noise does not explain.
    """
    if not noisy:
        return None
    noise = float(np.median([m.stddev for m in noisy.values()]))
    missed = sum(
        max(0.0, float(((model.marginal((name,)) - m.values) ** 2 - m.stddev**2).sum()))
        for name, m in noisy.items()
    )
    values = sum(len(m.values) for m in noisy.values())
    return math.hypot(noise, math.sqrt(missed / values))


def _counts(total: float, stderr: float | None, far: float) -> str:
    """Return sentences on a count that is within `far` standard errors of the truth."""
    if stderr is None:
        return ""
    error, least = far * stderr, max(1.0, stderr / UNRELIABLE)
    share = f"{least / total:.1%} of the rows" if least < total else "more than all rows"
    if least < 0.001 * total:
        share = "less than 0.1% of the rows"
    return (
        f"How sure counts are: the count of a value is within {max(1.0, error):,.0f} of the truth, "
        f"19 times out of 20. Counts below {least:,.0f} ({share}) are mostly noise."
    )


def _more(budget: Budget | None) -> str:
    """Return a sentence on how the noise changes with the budget, from the accounting alone; empty
    without a budget.
    """
    if budget is None:
        return ""
    larger = replace(budget, epsilon=4 * budget.epsilon)
    ratio = larger.total / budget.total
    noise = 1 / ratio if budget.pure else 1 / math.sqrt(ratio)
    return (
        f"What would keep more: the same steps at epsilon {larger.epsilon:g} have {noise:.2g} "
        "times the noise; half as many values in a column (coarser bins) make each count twice as "
        "large beside the same noise."
    )
