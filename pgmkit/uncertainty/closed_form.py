"""Replicates of a model whose junction tree was measured table by table: no inference is needed.

Where every clique of the tree was measured cell by cell, the marginals that fit best are the
tables of `pgmkit.estimation.consistency`, and the model is their product over the separators. The
measurements of one clique are drawn together, as their mean by inverse variance: that is all that
the estimate takes from them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from pgmkit.domain import Clique
from pgmkit.estimation.consistency import NoisyTable, combine, relaxed
from pgmkit.factor import Factor
from pgmkit.junction_tree import JunctionTree
from pgmkit.measurement import Measurement
from pgmkit.model import GraphicalModel
from pgmkit.structural_zeros import Zeros

__all__ = ["ClosedForm", "closed_form"]

Array = NDArray[np.float64]

_PRECISION = 1e-3
"""Of the search for consistent tables, in noise units."""
_TOLERANCE = 0.1
"""Noise units from the best fit that are accepted, a tenth of what a re-estimation may have."""
_FLOOR = 1e-9
"""Smallest cell that is not impossible, as a fraction of the total, as in estimation."""


def closed_form(
    model: GraphicalModel, measurements: Sequence[Measurement], zeros: Sequence[Zeros]
) -> ClosedForm | None:
    """None where a clique of the tree was not measured cell by cell, or by some other query."""
    if any(m.matrix is not None for m in measurements):
        return None
    tables, _ = combine(model.domain, measurements)
    measured = {frozenset(table.clique) for table in tables}
    if not all(frozenset(clique) in measured for clique in model.tree.cliques):
        return None
    return ClosedForm(model, tables, zeros)


class ClosedForm:
    """Draws noisy tables from a model, and the model that fits them best."""

    def __init__(
        self, model: GraphicalModel, tables: Sequence[NoisyTable], zeros: Sequence[Zeros]
    ) -> None:
        self._model, self._tree, self._zeros = model, model.tree, zeros
        self._all, self._tables = list(tables), [table for table in tables if table.clique]
        found = model.marginals([table.clique for table in tables])
        self._expected = [found[table.clique].reshape(-1) for table in tables]
        sets = [set(clique) for clique in self._tree.cliques]
        self._host = {
            t.clique: next(i for i, held in enumerate(sets) if held.issuperset(t.clique))
            for t in self._tables
        }
        self._domains = [model.domain.project(clique) for clique in self._tree.cliques]
        self._possible = _possible(self._tree, zeros)

    def draw(self, rng: np.random.Generator) -> list[NoisyTable]:
        """The tables with new noise around the model's, the total's own measurement among them."""
        return [
            NoisyTable(
                table.clique,
                mean + rng.normal(0.0, table.variance**0.5, mean.shape),
                table.variance,
            )
            for table, mean in zip(self._all, self._expected, strict=True)
        ]

    def total(self, drawn: Sequence[NoisyTable]) -> float:
        """The total that they imply, as `estimate_total` finds it."""
        weights = [1 / (table.variance * len(table.values)) for table in drawn]
        sums = [float(table.values.sum()) for table in drawn]
        return float(np.average(sums, weights=weights))

    def model(self, drawn: Sequence[NoisyTable], total: float) -> GraphicalModel | None:
        """The model of this total that fits best; None where the search did not come near it."""
        noisy = [table for table in drawn if table.clique]
        unit = self._model.unit
        found = relaxed(self._model.domain, noisy, total, _PRECISION * unit, self._zeros)
        beliefs, conditionals = self._calibrated(found.tables, total)
        loss = self._loss(noisy, beliefs)
        gap = max(0.0, loss - found.bound)
        if not gap <= _TOLERANCE * unit:
            return None
        with np.errstate(divide="ignore"):
            potentials = tuple(
                Factor(domain, torch.from_numpy(np.log(table)))
                for domain, table in zip(self._domains, conditionals, strict=True)
            )
        made = GraphicalModel(
            self._model.domain, potentials, total, loss, gap, unit, certified=True
        )
        # What inference would find again.
        vars(made).update(tree=self._tree, _beliefs=[torch.from_numpy(b) for b in beliefs])
        return made

    def measurements(self, drawn: Sequence[NoisyTable]) -> list[Measurement]:
        """The drawn tables for `estimate`."""
        return [Measurement(t.clique, t.values, t.variance**0.5) for t in drawn]

    def _calibrated(
        self, tables: dict[Clique, Array], total: float
    ) -> tuple[list[Array], list[Array]]:
        """Tables that agree exactly, from the roots down, and what each is given its separator."""
        tree = self._tree
        beliefs: list[Array] = []
        conditionals: list[Array] = []
        for place, (clique, separator) in enumerate(
            zip(tree.cliques, tree.separators, strict=True)
        ):
            table = np.maximum(tables[clique], _FLOOR * total) * self._possible[place]
            sums = table.sum(axis=_others(clique, separator), keepdims=True)
            given = table / np.where(sums > 0, sums, 1.0)
            if separator:
                parent = tree.parents[place]
                above = beliefs[parent].sum(axis=_others(tree.cliques[parent], separator))
                beliefs.append(given * above.reshape(sums.shape))
            else:
                beliefs.append(given * total)
            conditionals.append(given)
        return beliefs, conditionals

    def _loss(self, noisy: Sequence[NoisyTable], beliefs: Sequence[Array]) -> float:
        loss = 0.0
        for table in noisy:
            host = self._host[table.clique]
            held = self._tree.cliques[host]
            belief = beliefs[host].sum(axis=_others(held, table.clique)).reshape(-1)
            loss += float(((belief - table.values) ** 2).sum()) / (2 * table.variance)
        return loss


def _others(clique: Clique, kept: Clique) -> tuple[int, ...]:
    return tuple(i for i, name in enumerate(clique) if name not in kept)


def _possible(tree: JunctionTree, zeros: Sequence[Zeros]) -> list[NDArray[np.bool_]]:
    """The cells of each clique's table that zeros leave possible, its own and all others'."""
    found = [np.ones(tree.domain.shape(clique), dtype=np.bool_) for clique in tree.cliques]
    for clique, possible in zip(tree.cliques, found, strict=True):
        for each in zeros:
            if set(each.clique) <= set(clique):
                possible &= each.within(tree.domain, clique)
    below = [place for place, parent in enumerate(tree.parents) if parent >= 0]
    both = [(place, tree.parents[place]) for place in reversed(below)]
    both += [(tree.parents[place], place) for place in below]
    for source, target in both:
        shared = tuple(n for n in tree.cliques[source] if n in tree.cliques[target])
        some = found[source].any(axis=_others(tree.cliques[source], shared))
        found[target] &= some.reshape(
            [tree.domain.sizes[n] if n in shared else 1 for n in tree.cliques[target]]
        )
    return found
