"""A mixture of product distributions that is changed to have a noisy marginal over several of its
attributes, and otherwise stays as near to the mixture as it can.

Of all distributions with a given marginal over a set of attributes, the one nearest to a model in
relative entropy is the model times the ratio of the given marginal to the model's own (Csiszar,
"I-divergence geometry of probability distributions and minimization problems", 1975). For a mixture
it is again a mixture: each row becomes one row for each cell of the set, with the cell's codes and
its own distributions of all other attributes. A fit from independent columns would need many steps
for this, because a set whose smaller subsets are all independent has no slope there.

That moves pairs of an attribute of the set with another attribute, which the mixture was fitted to.
Where noise does not explain by how much, a few rounds of iterative proportional fitting (Deming and
Stephan 1940) bring them back. Such rounds also keep the noise of the set's many cells out of its
pairs and single attributes.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from mechanisms.families.mixture_fit import misfits, nearest_counts
from mechanisms.families.product_mixture import Columns, ProductMixtureModel, systematic
from pgmkit.domain import Clique
from pgmkit.measurement import Measurement
from pgmkit.regions.raking import raked
from pgmkit.runtime.arguments import Rng, generator
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.chances import SIGNIFICANT
from pgmkit.runtime.iterations import FEW_ROUNDS
from pgmkit.runtime.sizes import BLOCK_CELLS


def tilted(
    model: ProductMixtureModel,
    measured: Measurement,
    fitted: Sequence[Measurement] = (),
    *,
    rng: Rng = None,
) -> ProductMixtureModel:
    """Return the model with the marginal of a noisy table, shrunk towards the model's own.

    `measured`: a whole marginal in counts. The new marginal is a weighted mean of the noisy one and
    the model's own. The weight of the noisy one is 1 - (expected sum of squares of the noise) /
    (squared distance of the two marginals) (James and Stein 1961); the mean is moved to the nearest
    counts of at least 0, and cells that the model gives 0 stay 0. The model is returned as it is if
    the squared distance is at most one standard deviation above that expected sum, or if the model
    gives 0 to every cell in which the mean is above 0.

    The result has a row for each row of the model and each cell of the table that it can lie in. If
    these would have more than `BLOCK_CELLS` numbers together, as many as fit are drawn by `rng`. If
    at least two rows for each cell fit, each cell above 0 gets some, which together keep its share.

    `fitted`: the measurements that the model was fitted to. The new marginal keeps what they tell
    about parts of it (`_with_subsets`). If the misfit to `fitted` would rise by more than a
    standard deviation of its noise, the marginals of each attribute of the table with each
    attribute outside it are brought back to those of the model.

    >>> from pgmkit.domain import Domain
    >>> alone = ProductMixtureModel(Domain({"a": 2, "b": 2}), [[0.5] * 4], total=100)
    >>> noisy = Measurement(("a", "b"), [[50, 0], [0, 50]], 0.1)
    >>> tilted(alone, noisy).marginal(("a", "b")).round(1)
    array([[50.,  0.],
           [ 0., 50.]])
    """
    before = model.marginal(measured.clique).ravel()
    off = measured.values - before
    squares, noise = float(off @ off), len(off) * measured.stddev**2
    if squares <= noise * (1 + math.sqrt(2 / len(off))):
        return model
    held = before > 0
    wanted = nearest_counts(before + (1 - noise / squares) * off, model.total) * held
    if not wanted.any():  # the model rules out all that was measured
        return model
    wanted *= model.total / wanted.sum()
    wanted = _with_subsets(model, measured, wanted, fitted)
    weights = model.shares[:, None]
    columns = Columns(model.domain)
    for name in measured.clique:
        part = model.rows[:, columns.of(name)]
        weights = (weights[:, :, None] * part[:, None, :]).reshape(len(part), -1)
    weights = (weights * np.divide(wanted, before, out=np.zeros_like(before), where=held)).T
    # If more than `most` rows have a share, `most` of them are drawn. If that is at least two draws
    # for each cell, up to half of the draws are divided equally among the cells above 0, so that
    # each gets one or more, and the rest follow the shares. If it is less, all draws follow the
    # shares.
    inside, most = weights.sum(1, keepdims=True), BLOCK_CELLS // columns.width
    all_cells = 2 * len(inside) <= most
    even = np.divide(inside.mean(), inside, out=np.zeros_like(inside), where=inside > 0)
    drawn = (weights * (1 + all_cells * even)).ravel()
    places = np.flatnonzero(drawn)
    shares = drawn[places]
    if len(places) > most:
        places, shares = np.unique(systematic(drawn, most, generator(rng)), return_counts=True)
    cells, origins = np.divmod(places, len(model.rows))
    if all_cells:
        shares = shares * wanted[cells] / np.bincount(cells, shares)[cells]
    rows = model.rows[origins]
    codes = np.unravel_index(cells, model.domain.shape(measured.clique))
    for name, code in zip(measured.clique, codes, strict=True):
        part = rows[:, columns.of(name)]
        part[:] = np.arange(part.shape[1]) == code[:, None]
    changed = ProductMixtureModel(model.domain, rows, model.total, shares)
    explained = math.sqrt(2 * sum(len(m.values) for m in fitted))
    if sum(misfits(changed, fitted)) <= sum(misfits(model, fitted)) + explained:
        return changed
    shares = _with_pairs(model, measured.clique, cells, rows, shares)
    return ProductMixtureModel(model.domain, rows, model.total, shares)


def _with_subsets(
    model: ProductMixtureModel, measured: Measurement, flat: Array, fitted: Sequence[Measurement]
) -> Array:
    """Return the shrunk table of a measurement, changed by iterative proportional fitting: it gets
    new marginals over every smaller clique that lies inside the measured one and that `fitted`
    measures.

    `flat`: the shrunk table of `measured` as a vector of cells. The result is such a vector, too.

    The new marginals are weighted means of the table's own and the model's, with weights inverse to
    the expected sums of squares of their errors. For any marginal of the table this sum is that of
    the measured table's noise. For the model it is that of the noise of the clique's measurements
    together; but if the squared distance of the model's marginal from the measured table's is too
    large for both, it is that distance less the table's noise, since measurements on merged codes
    do not tell all of a clique.
    """
    from scipy.special import chdtrc

    clique, shape = measured.clique, model.domain.shape(measured.clique)
    noisy, table = measured.values.reshape(shape), flat.reshape(shape)
    noise, precisions = table.size * measured.stddev**2, defaultdict[Clique, float](float)
    for each in fitted:
        if set(each.clique) < set(clique):
            inside = tuple(name for name in clique if name in each.clique)
            precisions[inside] += 1 / (len(each.values) * each.stddev**2)
    goals = []
    for inside, own in model.marginals([*precisions]).items():
        away = tuple(i for i, name in enumerate(clique) if name not in inside)
        now = table.sum(away, keepdims=True)
        expected = noise + 1 / precisions[inside]
        squares = float(((noisy.sum(away) - own) ** 2).sum())
        by_chance = chdtrc(own.size, own.size * squares / expected) >= SIGNIFICANT
        weight = noise / (expected if by_chance else squares)
        goals.append(now + weight * (own.reshape(now.shape) - now))
    return raked(table, goals, FEW_ROUNDS).ravel()


def _with_pairs(
    model: ProductMixtureModel, clique: Clique, cells: Array, rows: Array, shares: Array
) -> Array:
    """Change the rows of a mixture in place, and return new shares of them, so that each attribute
    outside the clique depends on each single one in it nearly as in the model. The mixture's
    marginal over the clique stays as it is.

    `cells`: for each row the cell of the clique that it is in. `shares`: the rows' shares so far.
    """
    columns, mass = Columns(model.domain), np.bincount(cells, shares)
    outside = [name for name in model.domain if name not in clique]
    wanted = model.marginals([*itertools.product(clique, outside)])
    for _ in range(FEW_ROUNDS):
        for (member, other), table in wanted.items():
            inside, part = rows[:, columns.of(member)], rows[:, columns.of(other)]
            now = inside.T @ (shares[:, None] * part)
            given = table * now.sum(1, keepdims=True), now * table.sum(1, keepdims=True)
            told = (table > 0) & (now > 0)
            part *= inside @ np.divide(*given, out=np.ones_like(now), where=told)
            sums = part.sum(1)
            part /= sums[:, None]
            shares = shares * sums
        shares = shares * mass[cells] / np.bincount(cells, shares)[cells]
    return shares
