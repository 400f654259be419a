"""The choice of a smoothing level, or of a model's share in a mean of two, by comparing fits with
noisy tables whose noise is independent of the fits.

Every noisy value y is split into a value to fit to and a value to judge by. Fresh noise e of the
same standard deviation is added for the first, and a multiple of it subtracted for the second:

    given = y + a e,        kept = y - e / a.

For Gaussian noise the two are independent. The squared distance between a fit to the given values
and the kept values then has the expectation of the fit's squared error plus a constant that is the
same for all fits, so the fit with the least distance has the least expected error. No budget is
spent, since everything is computed from noisy values, and only the standard deviation of their
noise needs to be known. (The coupled bootstrap: Oliveira, Lei and Tibshirani, "Unbiased risk
estimation in the normal means problem via coupled bootstrap techniques", 2024.) For other noise the
two are uncorrelated. Two splits, with e and with -e, are judged together: terms linear in e cancel
in their mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch

from mechanisms.families.misfit import Misfit
from mechanisms.families.mixture_fit import MixtureFit
from mechanisms.families.product_mixture import Columns, ProductMixtureModel
from pgmkit.domain import Clique
from pgmkit.measurement import Measurement
from pgmkit.runtime.arguments import Rng, generator
from pgmkit.runtime.arrays import Array

Split: TypeAlias = "tuple[list[Measurement], list[Measurement]]"
"""Measurements to fit to, and measurements to judge the fit by."""
Trial: TypeAlias = (
    "tuple[Sequence[Measurement], Mapping[Clique, Array], Iterable[tuple[Clique, Array]]]"
)
"""A trial of `blending_share` has the held-out tables and the counts that two models answer for
them: those of the first by clique, those of the other as pairs of a clique and its counts.
"""


def splits(
    measurements: Sequence[Measurement], rng: Rng = None, added: float = 0.7
) -> tuple[Split, Split]:
    """Return two splits of the measurements, each into measurements to fit to and others to judge
    by. The noise in the two parts of a split is independent if it is Gaussian, and otherwise
    uncorrelated.

    The fresh noise of the two splits has opposite signs. `added`: the number a of the module's
    text: a times the fresh noise is added to the values to fit to, and 1 / a times subtracted from
    the others. By default the former have 1.22 times the noise, and the latter 1.74 times.

    >>> (given, kept), (other, _) = splits([Measurement(("a",), [3.0, 5.0], 1.0)], rng=0)
    >>> all(given[0].values != kept[0].values)
    True
    >>> ((given[0].values + other[0].values) / 2).round(6)
    array([3., 5.])
    """
    random = generator(rng)
    fresh = [m.stddev * random.standard_normal(len(m.values)) for m in measurements]
    more, less = (1 + added**2) ** 0.5, (1 + added**-2) ** 0.5

    def noisier(share: float, factor: float) -> list[Measurement]:
        pairs = zip(measurements, fresh, strict=True)
        return [replace(m, values=m.values + share * e, stddev=factor * m.stddev) for m, e in pairs]

    first = noisier(added, more), noisier(-1 / added, less)
    return first, (noisier(-added, more), noisier(1 / added, less))


def best_level(losses: Sequence[float]) -> tuple[float, float]:
    """Return the level of least loss, and the least of the `losses`. A level between two others is
    refined: in its place the minimum of the parabola through its loss and those of its two
    neighbours is returned.

    `losses`: the losses of the fits at the levels 0, 1, 2 ... on the values that `splits` holds
    out. All levels are needed: fits at the first levels hardly differ from independent columns, so
    a loss that rises there says nothing about later levels.

    >>> level, loss = best_level([(level - 2.4) ** 2 for level in range(10)])
    >>> round(level, 3), round(loss, 3)
    (2.4, 0.16)
    """
    best = int(np.argmin(losses))
    if not 0 < best < len(losses) - 1:
        return float(best), losses[best]
    below, least, above = losses[best - 1 : best + 2]
    return best + (below - above) / (2 * (below - 2 * least + above)), least


def judges(
    columns: Columns, held: Sequence[Measurement], alone: torch.Tensor, total: float
) -> tuple[Misfit, Misfit]:
    """Return two functions of rows. The first returns their squared distances from the held-out
    tables `held`, each divided by the standard deviation of the table's noise, in one sum. The
    second returns the variance of the noise in the difference between this sum and that of `alone`,
    which are other rows, such as the one row of independent columns (1 x columns.width).

    What should be small is the sum of absolute errors. The error of a fit is near the noise of the
    table, so its square divided by the noise's standard deviation is near its absolute value.
    Squares alone would leave the choice to the tables with the smallest shares of the budget.

    If an answer differs by x from that of `alone`, its squared distance from the noisy value
    differs by -2 x times the noise, plus an amount without noise. Divided by the standard deviation
    of the noise, this difference has the variance 4 x^2.
    """
    model = ProductMixtureModel(columns.domain, alone.double().cpu().numpy(), total)
    tables = model.marginals([m.clique for m in held])
    given = [replace(m, stddev=m.stddev**0.5) for m in held]
    moved = [replace(m, values=m.applied(tables[m.clique].ravel()), stddev=0.5) for m in held]
    device = alone.device
    return Misfit(columns, given, total, device), Misfit(columns, moved, total, device)


def least_misfit(
    trials: Sequence[tuple[MixtureFit, Misfit, Misfit]], steps: int
) -> tuple[float, float, torch.Tensor]:
    """Run all fits through the levels of the penalty, with `steps` steps of descent at each. Return
    three results: the least misfit to the held-out tables, summed over the trials; its level,
    refined by a parabola through the neighbouring levels; and the logits of all fits, one below the
    other, at the whole-numbered level before this refinement.

    `trials`: for each trial its fit and the two functions that `judges` returns. If the misfit of
    independent columns is above the least misfit by at most the standard deviation of the noise in
    their difference, noise explains the difference. Then the misfit of independent columns and
    level 0 are returned, with the same logits. This is the rule of one standard error (Breiman,
    Friedman, Olshen and Stone, "Classification and regression trees", 1984).
    """
    deviations, losses = [], []
    logits = torch.empty(0)
    for level in range(1 + max(fit.last_level for fit, *_ in trials)):
        for fit, *_ in trials:
            fit.run(steps, level)
        deviations.append(math.fsum(float(moved(fit.rows)) for fit, _, moved in trials) ** 0.5)
        losses.append(math.fsum(float(misfit(fit.rows)) for fit, misfit, _ in trials))
        if losses[-1] == min(losses):
            logits = torch.cat([fit.logits for fit, *_ in trials])
    best, least = best_level(losses)
    alone = math.fsum(float(misfit(fit.independent)) for fit, misfit, _ in trials)
    if alone - least <= deviations[round(best)]:
        return alone, 0.0, logits
    return least, best, logits


def are_farther(
    columns: Columns,
    held: Sequence[Sequence[Measurement]],
    rows: Sequence[torch.Tensor],
    others: Sequence[torch.Tensor],
    total: float,
) -> bool:
    """Return True if rows are farther from held-out tables than other rows are, in the sum over all
    trials and by more than the standard deviation of the noise in the difference (`judges`).

    `held`, `rows` and `others`: for each trial its held-out tables, its rows, and the rows that
    these are compared with.
    """
    excess, variance = 0.0, 0.0
    for tables, each, other in zip(held, rows, others, strict=True):
        misfit, moved = judges(columns, tables, other, total)
        excess += float(misfit(each)) - float(misfit(other))
        variance += float(moved(each))
    return excess > variance**0.5


def blending_share(trials: Iterable[Trial]) -> float:
    """Return the share of other models, from 0 to 1, in the mean of two kinds of models that is
    nearest to held-out tables (Breiman, "Stacked regressions", 1996).

    `trials`: they are read one by one, and the counts of the other model once for each clique.

    What should be small is the sum of the distances from the tables, not that of their squares, in
    which a few tables far from both models would outweigh all others.

    Let d be the other model's n answers minus the first model's, r the held-out values minus the
    first model's answers, and s the standard deviation of the noise. A squared distance is divided
    by q, the root of |d|^2 + n s^2, which differs from table to table. Then the sum over all tables
    of all trials is least for the share w = sum (d r / q) / sum (d^2 / q).

    Noise that is independent of the models gives w the variance v = sum (s d / q)^2 / (sum d^2 /
    q)^2. Shares near 0 would follow this noise. So w is multiplied by 1 - v / w^2, the part of w^2
    that the noise does not explain, or by 0 if that is negative (in the way of James and Stein
    1961).

    The mean lowers the sum by w sum (d r / q). The result is 0 if w is negative, and if this is
    less than 7% of the first model's sum without noise, sum ((r^2 - s^2) / q). On tables that
    `benchmarks.regret` lists under "choosing", at epsilon 1: where it is less (`diamonds`,
    `CPS1988`, one seed of `HMDA`), the mean has a worst pair that is 1% to 9% farther; where it is
    more (`gss_abortion`, `bfi`, `Wage`, `Chile`, `yrbss`), its pairs are 1% to 4% nearer.

    >>> held = [Measurement(("a",), [50.0, 50.0], 1.0)]
    >>> first, other = {("a",): np.array([60, 40])}, {("a",): np.array([30, 70])}
    >>> round(blending_share([(held, first, other.items())]), 3)
    0.332
    """
    along, squares, moved, missed = 0.0, 0.0, 0.0, 0.0
    for held, model, other in trials:
        of: dict[Clique, list[Measurement]] = {}
        for m in held:
            of.setdefault(m.clique, []).append(m)
        for clique, table in other:
            for m in of[clique]:
                answer = m.applied(model[clique].ravel())
                step, rest = m.applied(table.ravel()) - answer, m.values - answer
                square, noise = float(step @ step), len(step) * m.stddev**2
                weight = (square + noise) ** -0.5
                along += weight * float(step @ rest)
                squares += weight * square
                moved += (weight * m.stddev) ** 2 * square
                missed += weight * (float(rest @ rest) - noise)
    if along <= 0 or along**2 < 0.07 * missed * squares:
        return 0.0
    return min(1.0, along / squares * max(0.0, 1 - moved / along**2))
