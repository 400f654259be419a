"""Pair graph: a forest of the pairs that depend most, then pairs that the forest's model answers
badly.

It is for tables with more pairs than can all be measured. There are two turns, each with half of
the budget that the one-way marginals leave. The first draws a maximum spanning forest of pairs (as
`mechanisms.mst`). The second draws pairs that the model of the forest answers worst, as long as a
junction tree of all drawn pairs stays small. Both draw by the exponential mechanism, whose price
does not grow with the number of pairs that are not drawn.

A turn then measures how far the model is from each of the drawn pairs, and divides the rest of its
budget among these pairs and all single attributes. The cells and the shares are those with the
least predicted error of all pairs (`mechanisms.rounds.merging`). Pairs that noise would hide are
not measured: if nothing depends, single attributes get nearly everything.

The forest is that of McKenna, Miklau and Sheldon, "Winning the NIST contest" (2021). The second
turn is a round of AIM (McKenna et al. 2022) that draws many pairs by one estimate; shares by
predicted error are new.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mechanisms.families import graphical
from mechanisms.privacy.curator import Curator
from mechanisms.rounds.drawn import draw_forest, measure_distances, worst_pairs
from mechanisms.rounds.loop import Outcome, mechanism
from mechanisms.rounds.merging import best_tables, known_of, measure_tables
from mechanisms.rounds.select_and_measure import measure_one_way
from mechanisms.settings import Settings, fraction, positive, setting, torch_device
from mechanisms.workload import Workload, pairs_of, varied
from pgmkit import GraphicalModel, Measurement
from pgmkit.domain import Clique
from pgmkit.graphs.junction_tree import junction_tree
from pgmkit.records.counting import check_memory


@dataclass(frozen=True)
class PairGraph(Settings):
    """Settings of the pair graph; none may be chosen by looking at private data.

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        model_mb: The largest junction tree, in MB (2^20 bytes) of float64 cells, beyond which no
            pair is drawn in the second turn, above 0. A pair that is larger alone is never drawn.
        one_way_share: The share of the budget for the one-way marginals at the start, above 0 and
            below 1; each turn measures them again, with the share of least predicted error.
        select_share: The share of each turn's budget for drawing pairs, above 0 and below 1.
        errors_share: The share of what drawing leaves of each turn's budget, for measuring how far
            the drawn pairs are from the model, above 0 and below 1.
        noise_left: The share of a table's noise that is expected to remain in an estimate, above 0,
            since counts are not below 0 and tables agree. On `loans_full_schema` and `Caravan` at
            epsilon 1 the errors of pairs at 0.25 and at 1 are 1.01 to 1.10 times those at 0.5 (one
            seed).
        hidden: The ratio of a pair's noise to its distance from the model, above 0, beyond which
            the pair is not measured. At a ratio of 2, measuring would reduce the pair's error by at
            most a third of the distance, and would take budget from other pairs.
        device: Where models are estimated: "cpu", a CUDA GPU such as "cuda", or "auto": a GPU if
            there is one and the model is large enough to gain (`pgmkit.runtime.devices`).
    """

    model_mb: float = setting(4.0, positive())
    one_way_share: float = setting(0.15, fraction())
    select_share: float = setting(0.1, fraction())
    errors_share: float = setting(0.02, fraction())
    noise_left: float = setting(0.5, positive())
    hidden: float = setting(2.0, positive())
    device: str = setting("cpu", torch_device())


@mechanism("pair-graph", PairGraph)
def pair_graph(
    curator: Curator,
    workload: Workload,
    settings: PairGraph,
    *,
    first: Sequence[Measurement] = (),
    bins: Mapping[str, int] | None = None,
) -> Outcome:
    """Spend all that remains of the Curator's budget on pairs of the workload, and return the
    release of a graphical model.

    `first`: noisy one-way marginals of all attributes, if the Curator has measured them already.
    `bins`: by attribute, the number n of its codes 0..n-1 that are bins in order, which may be
    merged if the noise is large; an attribute that is left out has none.

    Raises, before anything is spent, InvalidInput for a workload over another domain, for one that
    asks for the total alone, and for a model limit that no workload clique fits or that is above
    what estimation accepts, and ModelTooLarge for pairs whose tables are too large to count.
    """
    domain = curator.domain
    graphical.check_fits_workload(domain, workload, settings.model_mb)
    every = pairs_of(domain, workload.cliques)
    pairs = [pair for pair in every if graphical.megabytes(domain.size(pair)) <= settings.model_mb]
    check_memory(pairs, domain.sizes)  # before the first charge
    taken = list(first)
    if not taken or not pairs:
        taken += measure_one_way(curator, settings.one_way_share if pairs else 1.0)[0]
    update = graphical.estimator(domain, curator.public_total, device=settings.device)
    model = update(None, taken)
    if pairs:
        # `best_tables` takes as a pair's error the mean of two: that of its table, which has the
        # noise in the counts of both attributes, and that of its dependence, which has not. So the
        # noise in an attribute's counts has the weight 1/2 for each pair with the attribute.
        others = {name: n / 2 for name, n in Counter(itertools.chain(*pairs)).items()}
        half = curator.remaining / 2
        cost = settings.select_share * half
        drawn = draw_forest(curator, model, pairs, cost)
        taken += _measured(curator, model, drawn, taken, half - cost, others, settings, bins or {})
        model = update(model, taken)
        known = [m.clique for m in taken if len(m.clique) > 1]
        cost = settings.select_share * curator.remaining
        # If noise hides the whole forest, single attributes get all that is left.
        drawn = _drawn(curator, model, pairs, known, cost, settings.model_mb) if known else []
        rest = curator.remaining
        taken += _measured(curator, model, drawn, taken, rest, others, settings, bins or {})
        model = update(model, taken)
    return model, taken


def _drawn(
    curator: Curator,
    model: GraphicalModel,
    pairs: Sequence[Clique],
    known: Sequence[Clique],
    cost: float,
    limit_mb: float,
) -> list[Clique]:
    """Draw half as many pairs as there are attributes (at least one), those that the model answers
    worst beyond noise.

    Each is drawn by the exponential mechanism among the pairs that fit: those that can each be
    added alone to the pairs `known`, which are measured already, within a junction tree of at most
    `limit_mb`. A drawn pair that does not fit together with the pairs drawn before it is left out
    of the result; if no pair fits, the result is empty and nothing is spent.
    """
    domain = curator.domain
    place = domain.places
    size = graphical.megabytes(1.0) * graphical.cells_with_pairs(junction_tree(domain, known))
    fitting = [(a, b) for a, b in pairs if size[place[a], place[b]] <= limit_mb]
    wanted = min(len(fitting), max(1, len(domain) // 2))
    if not wanted:
        return []
    noise = curator.expected_error((curator.remaining - cost) / wanted)
    penalties = [noise * domain.size(pair) for pair in fitting]
    drawn = worst_pairs(curator, fitting, model.each_marginal(fitting), wanted, cost, penalties)
    return graphical.fitting(domain, known, drawn, limit_mb)


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
    """Spend `rest` on the distances of the drawn pairs from the model, and on measurements of the
    pairs that noise does not hide and of all single attributes. Without drawn pairs, spend it on
    single attributes alone.

    `before`: the measurements made so far, from which `model` was estimated. `others`: for each
    attribute, half the number of the pairs that hold it, whether drawn or not. `bins`: by
    attribute, the number of its first codes that are bins in order.
    """
    if not drawn:
        return measure_one_way(curator, rest / curator.remaining)[0]
    cost = settings.errors_share * rest
    found = measure_distances(curator, model, drawn, cost, step="errors of pairs")
    rest -= cost
    names = varied(curator.domain)
    unit = curator.expected_error(rest)
    pure = curator.ledger.budget.pure
    known = known_of(names, model.marginal, before, bins, pure=pure)
    # The part of a distance that the noise of the model's one-way marginals explains is no
    # dependence, and is subtracted. A distance below two standard deviations of its own noise
    # counts as 0.
    wrong = {name: one.noise * len(one.counts) for name, one in known.items()}
    far = np.array([found.of[a, b] - math.hypot(wrong[a], wrong[b]) for a, b in drawn])
    far[far < 2 * found.stddev] = 0.0
    left, noise = settings.noise_left, settings.noise_left * unit
    known = {
        name: replace(one, noise=left * one.noise, weight=others.get(name, 0.0))
        for name, one in known.items()
    }
    while True:
        tables = best_tables(drawn, known, far, noise, pure=pure, residuals=False)
        sides = 1.0 + np.array([[a[-1], b[-1]] for a, b in tables.groups])
        cells, widest = sides.prod(1), sides.max(1)
        # Estimated counts are not below 0, so little noise remains in cells that are empty because
        # of dependence. With a distance of d, as a share of the total, a share of about 1 - d / 2
        # of the cells is assumed to have records, but at least as many cells as the attribute with
        # more groups of codes has groups (one attribute is then a function of the other).
        filled = np.maximum(cells * (1 - far / (2 * model.total)), widest)
        # A pair without a share is not measured and does not count as hidden: its ratio is 0. Its
        # distance is 0 or, for a pure budget, so small that measuring it is worth no budget.
        seen = far * tables.pairs ** (1.0 if pure else 0.5)
        ratios = np.divide(noise * filled, seen, out=np.zeros_like(seen), where=seen > 0)
        hidden = ratios > settings.hidden
        if not hidden.any():
            return measure_tables(curator, names, drawn, tables, rest, residuals=False)
        # Only the worse half of the hidden pairs is dropped in one pass: with the budget that it
        # frees, the noise may no longer hide the others.
        far[ratios >= np.median(ratios[hidden])] = 0.0
