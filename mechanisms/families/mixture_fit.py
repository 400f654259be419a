"""The fit of a mixture of product rows to noisy marginals: least squares with an entropy penalty.

No junction tree is involved, so every pair of many attributes can be fitted at once. The fit
follows a path from independent columns: the weight of the penalty falls level by level, and each
level starts from the rows of the one before. Rows that are fitted with a small weight from the
start fit the tables equally well, but end farther from the maximum-entropy distribution that fits
them. Nothing here sees private data or a Curator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from mechanisms.families.fitting import ProductRows, adam
from mechanisms.families.misfit import Misfit, single_shares
from mechanisms.families.product_mixture import Columns, ProductMixtureModel
from pgmkit.measurement import Measurement
from pgmkit.model import GraphicalModel
from pgmkit.runtime.iterations import FEW_ROUNDS

_DIVERSITY = 0.5
"""The standard deviation of the first rows' logits around those of the independent model; rows that
start equal would stay equal.
"""

_LEAST_WEIGHT = 0.015
"""The last level is the first whose penalty, divided by the number of measured cells, is at most
this, where the quotient of level 0 counts as at least 1. The quotients chosen by held-out noise
were 0.02 to 0.11 on five problems (HMDA, Chile and CPS1988 at epsilon 1; CPS1988 and a drawn table
at 10, with 400 steps for each fourfold fall of the penalty). With fewer steps smaller quotients are
chosen, because the fit has not converged, and rows leave the maximum-entropy distribution for
almost no gain. The last quotient, at most 0.015 and above 0.0075, is about half of the least that
was chosen, because noise can hide all but a few pairs, which larger penalties leave out.
"""


class MixtureFit:
    """Rows on a path of minima, found by Adam with a cosine schedule, of

        sum over measured cells ((answer - noisy value) / stddev)^2  +  penalty mean_k KL(p_k || q),

    where p_k are the rows and q is the product of the measured one-way marginals (there must be one
    of every attribute that has several values). The second term keeps each row near independence,
    so that noise is not fitted: with it the mixture is close to the maximum-entropy distribution
    that agrees with the tables.

    At level 0 the penalty is the first term's value for independent columns, so that one nat costs
    as much as their whole misfit; at level l it is 1/2^l of that. `last_level` is the last level
    worth trying. The first rows are drawn near the independent ones by `random`, a generator of the
    processor whatever the `device`. `pure`: True if the noise is Laplace noise, False if Gaussian.

    Attributes:
        logits: Logits of the present rows, rows x columns.width; the rows of other fits may take
            their place before a fit is finished.

    >>> from mechanisms.families.product_mixture import ProductAnswers
    >>> from pgmkit.domain import Domain
    >>> columns = Columns(Domain({"a": 2, "b": 2}))
    >>> noisy = [Measurement(("a",), [50, 50], 1.0), Measurement(("b",), [50, 50], 1.0),
    ...          Measurement(("a", "b"), [[45, 5], [5, 45]], 1.0)]
    >>> fit = MixtureFit(columns, noisy, 100.0, rows=20, learning_rate=0.1,
    ...                  random=torch.Generator().manual_seed(0), pure=False)
    >>> fit.follow(50, level=6.0)
    >>> ProductAnswers(columns, [("a", "b")])(fit.rows)[("a", "b")].numpy().round(1)
    array([[0.4, 0.1],
           [0.1, 0.4]], dtype=float32)
    """

    def __init__(
        self,
        columns: Columns,
        measurements: Sequence[Measurement],
        total: float,
        *,
        rows: int,
        learning_rate: float,
        random: torch.Generator,
        pure: bool,
        device: torch.device | str = "cpu",
    ) -> None:
        self._columns, self._device = columns, device
        self.measurements, self._total = list(measurements), total
        self._independent = _independent(columns, measurements, total).to(device)
        # These probabilities of the measured one-way marginals have the shape 1 x columns.width.
        self.independent = self._independent.exp().unsqueeze(0)
        self.misfit = Misfit(columns, measurements, total, device)
        self._attributes = _Attributes(columns, device)
        self._random = random
        self.logits = self._independent.repeat(rows, 1)
        self._missed = float(self.misfit(self.independent))
        self._rate = learning_rate
        self._cells = sum(len(m.values) for m in measurements)
        self._pure = pure
        self.last_level = math.ceil(math.log2(max(1.0, self._missed / self._cells) / _LEAST_WEIGHT))

    @property
    def rows(self) -> torch.Tensor:
        """The present rows, rows x columns.width."""
        return self._columns.softmax(self.logits)

    def run(self, steps: int, level: float) -> None:
        """Take `steps` steps at this level of the penalty, starting from the present rows.

        A large penalty makes rows equal, and then no gradient separates them again: codes whose
        logits vary less over the rows than at the start get new random differences.
        """
        weight = self._missed / 2**level / len(self.logits)  # the penalty's weight for each row
        lacking = (_DIVERSITY - self.logits.std(0, correction=0)).clamp_min(0)
        drawn = torch.randn(self.logits.shape, generator=self._random)
        self.logits += lacking * drawn.to(self.logits.device)

        def slope(logits: torch.Tensor) -> torch.Tensor:
            # This normalisation changes no probability, and keeps exponentials from overflowing.
            logits -= self._attributes.log_sums(logits)
            probabilities = logits.exp()
            found = self.misfit.slope(probabilities)
            found.add_(logits, alpha=weight).sub_(self._independent, alpha=weight)
            found.mul_(probabilities)
            return found.addcmul_(probabilities, self._attributes.sums(found), value=-1)

        adam(self.logits, slope, steps, self._rate)

    def follow(self, steps: int, level: float) -> None:
        """Change the rows by `steps` steps of Adam at each of the levels 0, 1, ... below `level`,
        and then `finish` them. The class docstring defines levels: the penalty is halved from one
        to the next.
        """
        for above in range(math.ceil(level)):
            self.run(steps, above)
        self.finish(steps, level)

    def finish(self, steps: int, level: float) -> None:
        """Change rows that the levels before `level` have led to by `steps` steps at `level`, and
        by as many more as their misfit asks for.

        Noise explains a misfit near the number of measured cells, with the variance of twice that,
        or of five times that if it is Laplace noise. While the misfit of the rows is larger, twice
        as many steps at `level` follow as before. Together they are at most `steps` for each of the
        ceil(level) + 1 levels, and none follow steps that lowered the misfit by less than a
        standard deviation. With little noise the error of the rows would otherwise be that of the
        descent. Tables that the penalty holds back then get more weight (`correct`), unless it is
        the number of steps that ends the descent: what is not fitted then is not held back by the
        penalty alone.
        """
        whole = left = steps * (math.ceil(level) + 1)
        self.run(steps, level)
        before, missed = math.inf, float(self.misfit(self.rows))
        noise = misfit_deviation(self._cells, pure=self._pure)
        while missed > self._cells and before - missed > noise:
            if 2 * steps > left:
                return
            steps, left = 2 * steps, left - 2 * steps
            self.run(steps, level)
            before, missed = missed, float(self.misfit(self.rows))
        self.correct(steps, whole, level)

    def correct(self, steps: int, most: int, level: float) -> None:
        """Give more weight to the tables of several attributes that the penalty holds back, and
        take steps at `level` with these weights, in rounds. The first takes twice `steps`, each
        further one twice as many as before, but none more than `most`. Fewer would leave the rows
        of a nearly exact fit farther from the minimum than they were.

        Rounds end if no table is held back, after `FEW_ROUNDS`, and when the misfit to all tables
        of several attributes, weighted as at first, falls by less than the standard deviation of
        what noise adds to it; if it rises, the rows of the round before are kept. With further
        rounds, tables that no rows can follow would take more and more weight from the others.

        One penalty serves all tables. If most are near independence, the penalty is large, and the
        few tables that are far from independence are fitted worse than their noise explains. The
        misfit of a table of n cells is n + z deviations (`misfit_deviation`), where z is near a
        standard normal value if noise explains the misfit. The weight of a table with a larger z
        than `largest_excess` is multiplied by its misfit divided by n, and again after each round
        of steps, until z is at most 1 or falls by less than 1.
        """
        noisy = {i: m for i, m in enumerate(self.measurements) if len(m.clique) > 1}
        largest = largest_excess(len(noisy))
        cells = {i: len(m.values) for i, m in noisy.items()}
        noise = misfit_deviation(sum(cells.values()), pure=self._pure)
        given, before = list(self.measurements), dict.fromkeys(noisy, math.inf)
        missed, behind = self.misfits_to(noisy), set[int]()
        for _ in range(FEW_ROUNDS):
            excess = {
                i: (missed[i] - n) / misfit_deviation(n, pure=self._pure) for i, n in cells.items()
            }
            behind |= {i for i, z in excess.items() if z > largest}
            behind = {i for i in behind if 1 < excess[i] < before[i] - 1}
            if not behind:
                return
            for i in behind:
                more = missed[i] / cells[i]
                given[i] = replace(given[i], stddev=given[i].stddev / more**0.5)
            before |= {i: excess[i] for i in behind}
            self.misfit = Misfit(self._columns, given, self._total, self._device)
            steps, kept, whole = min(2 * steps, most), self.logits.clone(), sum(missed.values())
            self.run(steps, level)
            missed = self.misfits_to(noisy)
            if sum(missed.values()) > whole:
                self.logits = kept
            if whole - sum(missed.values()) < noise:
                return

    def misfits_to(self, noisy: Mapping[int, Measurement]) -> dict[int, float]:
        """Return the misfit of the present rows to each of these tables."""
        model = ProductRows(self._columns, self.rows, self._total)
        return dict(zip(noisy, misfits(model, [*noisy.values()]), strict=True))


def misfits(
    model: ProductRows | ProductMixtureModel | GraphicalModel, measurements: Sequence[Measurement]
) -> list[float]:
    """Return the squared distance of a model from each measurement, in units of the variance of the
    measurement's noise.
    """
    tables = model.marginals([m.clique for m in measurements])
    off = [(m.applied(tables[m.clique].ravel()) - m.values) / m.stddev for m in measurements]
    return [float(each @ each) for each in off]


def misfit_deviation(cells: int, *, pure: bool) -> float:
    """Return the standard deviation of the misfit that noise alone has in this number of cells. The
    square of standard noise has the variance 2 if it is Gaussian, or 5 if it is Laplace noise
    (`pure`).
    """
    return float(((5.0 if pure else 2.0) * cells) ** 0.5)


def largest_excess(tables: int) -> float:
    """Return the number of standard deviations by which the misfit of one of so many tables of
    noise is expected to exceed its mean at most: sqrt(2 log m) of m tables (Donoho and Johnstone,
    "Ideal spatial adaptation by wavelet shrinkage", 1994).
    """
    return math.sqrt(2 * math.log(max(1, tables)))


class _Attributes:
    """Sums over the codes of each attribute, repeated at each of its columns, by two products with
    a matrix.
    """

    def __init__(self, columns: Columns, device: torch.device | str) -> None:
        sizes = torch.tensor(columns.sizes)
        owners = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        self._members = torch.nn.functional.one_hot(owners).float().to(device)
        self._owners = self._members.t().contiguous()

    def sums(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the sum of each attribute's entries in rows of K x columns.width, repeated at each
        of the attribute's columns.
        """
        return rows @ self._members @ self._owners

    def log_sums(self, logs: torch.Tensor) -> torch.Tensor:
        """Return the logarithm of the sum of each attribute's exponentials, repeated at each of its
        columns; the sums must be in the range of floats.
        """
        return (logs.exp() @ self._members).log_() @ self._owners


def _independent(
    columns: Columns, measurements: Sequence[Measurement], total: float
) -> torch.Tensor:
    """Return the logarithms of the one-way probabilities of all attributes, side by side. They are
    the probabilities nearest to the noisy values; those below 1e-5 are raised to it, and all are
    scaled to sum to 1. The codes of an attribute that is not measured are equally probable; only
    attributes of one value are not measured.

    Several measurements of an attribute are averaged by inverse variance.
    """
    _, noisy = single_shares(columns, measurements, total)
    parts = []
    for name in columns.domain:
        shares = nearest_counts(noisy[columns.of(name)], 1.0)
        shares = np.maximum(shares, 1e-5)  # a probability of 0 would have no finite logit
        parts.append(np.log(shares / shares.sum()))
    return torch.tensor(np.concatenate(parts), dtype=torch.float32)


def nearest_counts(values: NDArray[np.float64], total: float) -> NDArray[np.float64]:
    """Return the nearest counts, 0 or above, with this total (above 0): the least-squares fit to
    the noisy counts `values`.

    >>> nearest_counts(np.array([6.0, 5.0, -3.0]), 10.0)
    array([5.5, 4.5, 0. ])
    """
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - total) / np.arange(1, len(values) + 1)
    return np.maximum(values - excess[ordered > excess][-1], 0.0)
