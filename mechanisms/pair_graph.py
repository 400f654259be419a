"""Pair graph: a forest of the pairs that depend most, then pairs that it answers badly.

For tables of more pairs than can all be measured. Two turns, each with half of the budget that the
one-way marginals leave. The first draws a maximum spanning forest of pairs (as
`mechanisms.mst`), the second pairs that the model of the forest answers worst, while a junction
tree of all of them stays small. Both draw by the exponential mechanism, whose price does not grow
with the number of pairs that are not drawn. A turn then measures how far the model is from each of
the pairs drawn, and shares what it has left among these pairs and all single attributes, on the
cells, and with the shares, for which the predicted error of all pairs is least
(`mechanisms.rounds.merging`). Pairs that noise would hide are not measured: where nothing depends,
single attributes get nearly everything.

The forest is of McKenna, Miklau and Sheldon, "Winning the NIST contest" (2021); the second turn is
a round of AIM (McKenna et al. 2022) that draws many pairs by one estimate; shares by predicted
error are new.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mechanisms.families.graphical import check_fits_workload, estimator, megabytes, model_megabytes
from mechanisms.families.tree_growth import TreeGrowth
from mechanisms.privacy.curator import Curator
from mechanisms.release.record import Release
from mechanisms.rounds.distances import measure_distances
from mechanisms.rounds.forest import draw_forest, pairs_of
from mechanisms.rounds.merging import best_tables, known_noise, measure_tables
from mechanisms.rounds.select_and_measure import measure_one_way
from mechanisms.settings import Settings, fraction, leave_something, positive, setting, torch_device
from mechanisms.workload import Workload, WorkloadLike, varied
from pgmkit.domain import Clique
from pgmkit.measurement import Measurement

if TYPE_CHECKING:
    from pgmkit.model import GraphicalModel

__all__ = ["PairGraph", "pair_graph"]

_NOISE_LEFT = 0.5
"""The part of a table's noise that is left in an estimate, as counts are not below 0 and tables
agree. On five tables (see `benchmarks/README.md`) errors at 0.25 to 1 differ by 6% at most."""
_HIDDEN = 2.0
"""Times a pair's distance from what is known that noise must be to hide it: a third of the distance
is then gained at most, and what the pair would cost the others is not counted in that."""


@dataclass(frozen=True)
class PairGraph(Settings):
    """Settings of the pair graph; none may be chosen by looking at private data.

    Raises InvalidInput for values that are not as below, or shares that leave nothing for pairs.

    Attributes:
        model_mb: The size of the junction tree, in MB (2^20 bytes) of float64 cells, that no pair
            is drawn beyond in the second turn, above 0; no pair alone is larger.
        one_way_share: The share of the budget for the one-way marginals at the start, above 0 and
            below 1; each turn measures them again by what it predicts.
        select_share: The share of each turn's budget that draws pairs, above 0 and below 1.
        errors_share: The share of it that tells how far the drawn pairs are from the model, above 0
            and below 1.
        device: Where models are estimated: "cpu", a CUDA card such as "cuda", or "auto", a card
            where there is one and a model is large enough to gain (`pgmkit.runtime.devices`).
    """

    model_mb: float = setting(4.0, positive())
    one_way_share: float = setting(0.15, fraction())
    select_share: float = setting(0.1, fraction())
    errors_share: float = setting(0.02, fraction())
    device: str = setting("cpu", torch_device())

    def conflict(self) -> str | None:
        """Something is left to measure the pairs with."""
        return leave_something("the pairs", self, "select_share", "errors_share")


def pair_graph(
    curator: Curator,
    workload: WorkloadLike,
    settings: PairGraph | None = None,
    *,
    first: Sequence[Measurement] = (),
    bins: Mapping[str, int] | None = None,
) -> Release:
    """Spend all that remains of the Curator's budget on pairs of the workload.

    `first`: noisy one-way marginals of all attributes, where the Curator has measured them already.
    `bins`: how many codes of an attribute, the first ones, are bins in order, which may be merged
    where noise asks for it; none where it is not named.

    Raises InvalidInput (before anything is spent) for a workload over another domain, or a model
    limit that no workload clique fits.
    """
    settings = settings or PairGraph()
    workload = Workload.over(curator.domain, workload)
    domain = curator.domain
    check_fits_workload(domain, workload, settings.model_mb)
    pairs = [
        pair
        for pair in pairs_of(workload)
        if min(domain.shape(pair)) > 1 and model_megabytes(domain, [pair]) <= settings.model_mb
    ]
    taken = list(first)
    if not taken:
        taken, _ = measure_one_way(curator, settings.one_way_share if pairs else 1.0)
    update = estimator(domain, curator.public_total, device=settings.device)
    model = update(None, taken)
    if pairs:
        others = _pairs_of_each(pairs)
        half = curator.remaining / 2
        cost = settings.select_share * half
        drawn = draw_forest(curator, model, pairs, cost)
        taken += _measured(curator, model, drawn, taken, half - cost, others, settings, bins or {})
        model = update(model, taken)
        told = [m.clique for m in taken if len(m.clique) > 1]
        cost = settings.select_share * curator.remaining
        # Where noise hides the whole forest, single attributes get all that is left.
        drawn = _drawn(curator, model, pairs, told, cost, settings.model_mb) if told else []
        rest = curator.remaining
        taken += _measured(curator, model, drawn, taken, rest, others, settings, bins or {})
        model = update(model, taken)
    return Release("pair-graph", model, tuple(taken), curator.ledger, settings)


def _pairs_of_each(pairs: Sequence[Clique]) -> dict[str, float]:
    """Return half the number of pairs of each attribute: half of a pair's error is of either."""
    found: dict[str, float] = {}
    for name in itertools.chain(*pairs):
        found[name] = found.get(name, 0.0) + 0.5
    return found


def _drawn(
    curator: Curator,
    model: GraphicalModel,
    pairs: Sequence[Clique],
    told: Sequence[Clique],
    cost: float,
    limit_mb: float,
) -> list[Clique]:
    """Draw half as many pairs as there are attributes, that the model answers worst beyond noise.

    Each is drawn by the exponential mechanism among those that fit into a junction tree of at most
    `limit_mb` beside the pairs `told`. Those that do not fit beside pairs drawn before are then
    left out; where there is no room at all, none are drawn.
    """
    from pgmkit.graphs.junction_tree import junction_tree

    domain = curator.domain
    place = domain.places
    cells = TreeGrowth(junction_tree(domain, told)).cells_with_pairs()
    fitting = [
        pair for pair in pairs if megabytes(cells[place[pair[0]], place[pair[1]]]) <= limit_mb
    ]
    wanted = min(len(fitting), max(1, len(domain) // 2))
    if not wanted:
        return []
    noise = curator.expected_error((curator.remaining - cost) / wanted)
    penalties = [noise * domain.size(pair) for pair in fitting]
    scored = curator.scored(fitting, model.each_marginal(fitting), penalties=penalties)
    left, found = np.arange(len(fitting)), list[Clique]()
    for i in range(wanted):
        chosen = scored.choose(left, cost / wanted, step=f"pair {i + 1}: select")
        left = left[left != chosen]
        if model_megabytes(domain, [*told, *found, fitting[chosen]]) <= limit_mb:
            found.append(fitting[chosen])
    return found


def _measured(
    curator: Curator,
    model: GraphicalModel,
    drawn: Sequence[Clique],
    before: Sequence[Measurement],
    rest: float,
    others: Mapping[str, float],
    settings: PairGraph,
    bins: Mapping[str, int],
) -> list[Measurement]:
    """Measure the drawn pairs that noise does not hide, and all attributes, for `rest` together.

    `before`: what was measured until now, all of it in `model`. `others`: as in `best_tables`.
    """
    if not drawn:
        return measure_one_way(curator, rest / curator.remaining)[0]
    cost = settings.errors_share * rest
    found = measure_distances(curator, model, drawn, cost, step="errors of pairs")
    rest -= cost
    names = varied(curator.domain)
    unit = curator.expected_error(rest)
    known = known_noise(names, before, unit / curator.scale(rest))
    # The model has the noise of its attributes, which is no dependence, and what may well be noise
    # of the distance is none either.
    wrong = {name: noise * curator.domain.sizes[name] for name, noise in known.items()}
    far = np.array([found.of[a, b] - math.hypot(wrong[a], wrong[b]) for a, b in drawn])
    far[far < 2 * found.stddev] = 0.0
    counts = {name: model.marginal((name,)) for name in names}
    noise = _NOISE_LEFT * unit
    left = {name: _NOISE_LEFT * known[name] for name in names}
    pure = curator.ledger.budget.pure
    while True:
        tables = best_tables(drawn, counts, far, left, noise, bins=bins, pure=pure, others=others)
        sides = 1.0 + np.array([[a[-1], b[-1]] for a, b in tables.groups])
        cells, widest = sides.prod(1), sides.max(1)
        # Counts are not below 0, so that cells which dependence leaves empty tell it from noise; at
        # the distance d it leaves 1 - d / 2 of them, and those of a function of the larger side.
        filled = np.maximum(cells * (1 - far / (2 * model.total)), widest)
        # A pair without a share has no distance either, so that nothing hides it.
        seen = far * tables.pairs ** (1.0 if pure else 0.5)
        ratios = np.divide(noise * filled, seen, out=np.zeros_like(seen), where=seen > 0)
        hidden = ratios > _HIDDEN
        if not hidden.any():
            return measure_tables(curator, names, drawn, tables, rest)
        # What the worse half of them leave may uncover the others.
        far[ratios >= np.median(ratios[hidden])] = 0.0
