"""All small marginals measured at once, and a mixture of product rows fitted to them.

Every one-way marginal and every pair of the workload are measured, and larger subsets of its
cliques as long as all of one size have few cells together; then one fit follows. No junction tree
limits what can be measured. If all pairs have too many cells, those whose cells are predicted to
gain least are left out. Budget goes to selection only for the workload's `sought` cliques (see
`Workload`). The shares of the budget for pairs and single attributes minimise their predicted error
(`mechanisms.rounds.merging.best_tables`).

Noise is kept out of the fit in three ways. Counts of single attributes are smoothed and each noisy
table is shrunk towards independence, the more the larger its own noise
(`mechanisms.families.shrinkage`). A penalty, whose size follows from the noisy tables
(`mechanisms.families.held_out`), keeps the rows near the independent model (`MixtureFit`).

Where a graphical model of the tables that stand out from their noise
(`mechanisms.families.table_graph`) and the mixture are together nearer to held-out parts of the
tables than the mixture alone, the release is a blend of both, in the shares that are nearest.

RAPsoftmax (Liu, Vietri and Wu 2021; Aydore et al. 2021) selects queries in rounds. The weights by
inverse variance, the penalty, the shares of pairs and the blend are new.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mechanisms import settings as rules
from mechanisms.families import shrinkage
from mechanisms.families.blended import blended
from mechanisms.families.fitting import ProductRows
from mechanisms.families.frequent import Frequent
from mechanisms.families.held_out import (
    Split,
    Trial,
    are_farther,
    blending_share,
    judges,
    least_misfit,
    splits,
)
from mechanisms.families.mixture_fit import MixtureFit
from mechanisms.families.product_mixture import Columns, PairMixtureModel, ProductMixtureModel
from mechanisms.families.table_graph import graph_of_tables
from mechanisms.families.tilted import tilted
from mechanisms.families.training_memory import answering_bytes, fitting_tables_bytes
from mechanisms.privacy.curator import Curator
from mechanisms.rounds.all_at_once import measure_all
from mechanisms.rounds.drawn import measure_distances, measure_worst
from mechanisms.rounds.loop import Outcome, mechanism
from mechanisms.rounds.merging import MOST_GROUPS, known_of
from mechanisms.rounds.select_and_measure import known_total, measure_one_way
from mechanisms.settings import Settings, setting
from mechanisms.workload import Workload, downward_closure
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.measurement import Measurement
from pgmkit.runtime import memory
from pgmkit.runtime.devices import check_room, device_of, gpu_memory
from pgmkit.runtime.threads import one_thread

_STRENGTHS = (0.1, 0.3)
"""The strengths of shrinkage that are tried; only the first if most tables stand out from their
noise. The penalty of the fit is a prior too, so 0.1 is enough then. If noise hides most pairs, the
error of pairs with 0.3 is 0.90 times that with 0.1 (k401ksubs at epsilon 0.3), 0.94 times
(meap00_01 at 1), or 1.01 to 1.03 times (SLID and GSS7402); with 1, k401ksubs has 1.3 times the
error of Cramer's V. If most tables stand out, but the trial fits are farther from the others than
independent columns are, 1 is tried, and taken if its trial fits are nearer to all beyond noise.
"""


@dataclass(frozen=True)
class Mixture(Settings):
    """Settings of the mixture mechanism; none may be chosen by looking at private data.

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        one_way_share: The share of the budget for the one-way marginals at the start, above 0 and
            below 0.5. What this and the next two shares leave goes to pairs, with the single
            attributes measured again, and to larger cliques: all cliques of k + 1 attributes get
            half as much as all of k.
        select_share: The share of the budget for one of the workload's `sought` cliques, above 0
            and below 0.5, if there are any that noise does not surely hide: this share of it goes
            to selecting the clique, the rest to measuring it.
        errors_share: The share of the budget for the distances of pairs from independence, above 0
            and below 0.5.
        cells: The most cells, 1 or more, that all cliques of the same number of attributes (two or
            more) may have together. If all pairs have more, also with rare codes and bins merged,
            those are left out whose cells are predicted to gain least, but one is always measured.
            Cliques of k attributes are measured only if no number from 2 to k has cliques with
            more.
        rows: The number of product distributions in the mixture, 1 or more. The number of records,
            which may be noisy, is used if it is smaller, since n records are themselves such a
            mixture of n rows. The trial fits that choose the level have half as many.
        steps: The number of Adam steps of the fit at each penalty level, 1 or more.
        learning_rate: Adam's first rate at each level, above 0; it falls along a cosine.
        level: The last penalty level, 0 to 1,000: the weight of the penalty at level l is the
            misfit of independent columns divided by 2^l. None chooses the level with the least
            misfit on held-out parts of the noisy tables, which takes twice as long.
        shrinkage: How strongly each noisy table is shrunk towards independence before the fit, 0 or
            more: the factor `strength` of `mechanisms.families.shrinkage`; 0 leaves tables
            unchanged. None chooses by the same misfit as the level, which takes half as long again:
            0.1 or 0.3 if noise hides most tables, 0.1 or 1 if the trial fits follow the noise of a
            few. Otherwise, or if a level is given, None is 0.1.
        graph_mb: The largest junction tree, in MB (2^20 bytes) of float64 cells, of the graphical
            model that the mixture may be blended with, 0 to 4,096; 0 for none. There is none either
            if a level is given.
        device: Where the mixture is fitted: "cpu", "cuda", or "auto": a GPU if there is one. The
            first rows are the same on every device.
        seed: The seed of the rows' start, of the fresh noise that holds parts of the tables out,
            and of the draw of rows if there would be too many; it protects nothing.
    """

    one_way_share: float = setting(0.1, rules.fraction(below=0.5))
    select_share: float = setting(0.1, rules.fraction(below=0.5))
    errors_share: float = setting(0.02, rules.fraction(below=0.5))
    cells: int = setting(100_000, rules.whole_number())
    rows: int = setting(1000, rules.whole_number())
    steps: int = setting(100, rules.whole_number())
    learning_rate: float = setting(0.1, rules.positive())
    level: float | None = setting(None, rules.at_least(0.0, 1000.0))
    shrinkage: float | None = setting(None, rules.at_least(0.0))
    graph_mb: float = setting(2.0, rules.at_least(0.0, memory.MEMORY_LIMIT / 2**20))
    device: str = setting("cpu", rules.torch_device())
    seed: int = setting(0, rules.random_seed())

    def measures(self, workload: Workload) -> bool:
        """Return True if no clique is sought, so that a run draws nothing but additive noise."""
        return not workload.sought

    def whole(self, domain: Domain, orders: Sequence[list[Clique]]) -> list[list[Clique]]:
        """Return the leading groups of `orders`, which are cliques by their number of attributes,
        before the first group whose tables together have more than `cells` cells. All cliques of
        these groups are measured.
        """
        return [*itertools.takewhile(lambda own: sum(map(domain.size, own)) <= self.cells, orders)]


@mechanism("mixture", Mixture)
def mixture(
    curator: Curator,
    workload: Workload,
    settings: Mixture,
    *,
    bins: Mapping[str, int] | None = None,
) -> Outcome:
    """Spend all that remains of the Curator's budget on one mixture for the workload, and return
    its release, whose model may be a blend of the mixture and a graphical model.

    If an attribute has more than 32 codes besides its `bins`, those of its codes that the noisy
    one-way marginals cannot tell from 0 count as one code in pairs, unless cliques of three or more
    attributes are measured, too: those of one size are if their tables, and those of each smaller
    size, have at most `settings.cells` cells together. If all pairs together then have more than
    `settings.cells` cells, with bins merged too, some are left out.

    `bins`: by attribute, the number n of its codes 0..n-1 that are ordered bins, which may be
    merged with their neighbours if the noise is large; an attribute that is left out has none.

    Raises, before anything is spent, InvalidInput for a workload over another domain and for shares
    that may leave nothing for pairs, and ModelTooLarge if memory is too small for the fit.
    """
    domain = curator.domain
    device = device_of(settings.device)
    orders = _orders(workload.asked)
    kept = settings.whole(domain, orders) or orders[:1]
    _check_room(device, Columns(domain), kept, settings)
    selections = ["select_share"] * bool(workload.sought)
    refusal = rules.leave_something("pairs", settings, "one_way_share", "errors_share", *selections)
    if orders and refusal:
        raise InvalidInput(refusal)
    whole, pure = curator.remaining, curator.ledger.budget.pure
    first, total = measure_one_way(curator, settings.one_way_share if orders else 1.0)
    measurements = list(first)
    selecting = settings.select_share * whole
    noise = curator.expected_error((1 - settings.select_share) * selecting)
    # Two tables of n records differ by at most 2 n in all cells together. A sought set whose
    # noise in all cells together is larger is hidden by it, and left out.
    sought = [c for c in workload.sought if orders and noise * domain.size(c) <= 2 * total]
    # Rare codes are merged only if no table larger than a pair enters the fit; a sought set is
    # measured after it. Bins do not count among the codes here, since `merging` merges them with
    # their neighbours.
    ordered = bins or {}
    without = [m for m in first if len(m.values) - ordered.get(m.clique[0], 0) > MOST_GROUPS]
    frequent = Frequent(domain, without if len(kept) < 2 else [], total)

    # The distances of pairs from independent columns decide how the budget is shared.
    if orders:
        alone = shrinkage.independent_columns(domain, first, total)
        cost = settings.errors_share * whole
        distances = measure_distances(curator, alone, kept[0], cost, step="errors of pairs")
        rest = curator.remaining - (selecting if sought else 0.0)
        names = domain.ordered({name for pair in kept[0] for name in pair})
        smooth = [shrinkage.smoothed(m, total) for m in first]
        known = known_of(names, alone.marginal, smooth, ordered, pure=pure)
        measurements += measure_all(
            curator, workload.asked, kept, rest, known, distances, frequent, settings.cells
        )
    alone_again = [m for m in measurements if len(m.clique) == 1]
    total = known_total(curator, measurements)
    with one_thread(), gpu_memory(device):
        # The table of a sought set changes the rows of a mixture, and a graphical model has none.
        given = replace(settings, graph_mb=0.0) if sought else settings
        rows, share = fitted_rows(frequent, measurements, total, given, device, pure=pure)
        graph = None
        if share:
            graph = graph_of_tables(
                domain, measurements, total, settings.graph_mb, whole=domain, pure=pure
            )
    larger = any(len(each.clique) > 2 for each in measurements)
    family = ProductMixtureModel if larger else PairMixtureModel
    counts = {}
    if frequent.domain != domain:
        # All measurements of single attributes tell how merged codes divide, not the first alone.
        told = shrinkage.independent_columns(domain, alone_again, total)
        counts = {name: told.marginal((name,)) for name in domain}
    model = family(domain, frequent.expand(rows.double().cpu().numpy(), counts), total)
    if sought:
        measurements.append(measure_worst(curator, model, sought, settings.select_share))
        model = tilted(model, measurements[-1], measurements[:-1], rng=settings.seed)
    return (blended(graph, model, share) if graph else model), measurements


def fitted_rows(
    frequent: Frequent,
    measurements: Sequence[Measurement],
    total: float,
    settings: Mixture,
    device: torch.device,
    *,
    pure: bool,
) -> tuple[torch.Tensor, float]:
    """Return the rows of the mixture fitted to all measurements, over the frequent codes, and the
    share of a graphical model with which they are to be blended (`_graph_share`).

    The penalty level is the given one or, if none is, that with the least misfit on held-out parts
    of the measurements (`judges`). Without a given level, the same misfit chooses the strength of
    the shrinkage (`_STRENGTHS`), unless that is given; and if noise explains what the tables have
    beyond independence, the result is one row, that of independent columns, and a share of 0.
    `pure`: True for Laplace noise, not Gaussian noise.

    The last fit begins with the rows of both trial fits at the chosen level. The fresh noise of the
    splits has opposite signs in the two, so that what the rows took from it nearly cancels in their
    mean. With a path of its own from independent columns it ends at the same errors, and all fits
    together take 1.4 times as long (`benchmarks/README.md`).
    """
    columns, measurements = Columns(frequent.domain), frequent.measured(measurements)

    def start(taken: Sequence[Measurement], rows: int, strength: float) -> MixtureFit:
        return MixtureFit(
            columns,
            shrinkage.near_independence(columns.domain, taken, total, strength),
            total,
            rows=rows,
            learning_rate=settings.learning_rate,
            random=torch.Generator().manual_seed(settings.seed),
            device=device,
            pure=pure,
        )

    most = min(settings.rows, math.ceil(total))
    strengths = _STRENGTHS if settings.shrinkage is None else (settings.shrinkage,)
    if settings.level is not None:
        last = start(measurements, most, strengths[0])
        last.follow(settings.steps, settings.level)
        return last.rows, 0.0
    alone = start(measurements, 1, strengths[0]).independent
    excess = shrinkage.beyond_noise(columns.domain, measurements, total, pure=pure)
    told = np.array(list(excess.values()))
    if shrinkage.all_hidden(told):
        return alone, 0.0
    parts = splits(measurements, settings.seed)
    held = [[m for m in rest if len(m.clique) > 1] for _, rest in parts]

    def judged(strength: float) -> tuple[float, float, torch.Tensor, float]:
        fits = [start(given, math.ceil(most / 2), strength) for given, _ in parts]
        trials = [
            (fit, *judges(columns, tables, fit.independent, total))
            for fit, tables in zip(fits, held, strict=True)
        ]
        return *least_misfit(trials, settings.steps), strength

    def rows_of(logits: torch.Tensor) -> list[torch.Tensor]:
        return [columns.softmax(each) for each in logits.chunk(len(parts))]

    found = judged(strengths[0])
    if len(strengths) > 1 and np.median(told) <= 1:  # noise hides most tables
        found = min(found, judged(strengths[1]), key=lambda each: each[0])
    elif len(strengths) > 1:
        hidden = [[m for m in tables if excess.get(m.clique, math.inf) <= 1] for tables in held]
        rows = rows_of(found[2])
        if are_farther(columns, hidden, rows, [alone] * len(parts), total):
            other = judged(1.0)
            if are_farther(columns, held, rows, rows_of(other[2]), total):
                found = other
    _, level, logits, strength = found
    rows = rows_of(logits) if level else [alone] * len(parts)
    share = _graph_share(frequent, parts, rows, total, settings.graph_mb, pure=pure)
    if level == 0:
        return alone, share
    last = start(measurements, most, strength)
    last.logits = logits[:most]
    last.finish(settings.steps, level)
    return last.rows, share


def _graph_share(
    frequent: Frequent,
    parts: Sequence[Split],
    rows: Sequence[torch.Tensor],
    total: float,
    graph_mb: float,
    *,
    pure: bool,
) -> float:
    """Return the share of a graphical model in the mean with a mixture that is nearest to held-out
    tables (`blending_share`), or 0 if in one of the trials no table stands out from its noise.

    `parts` and `rows`: for each trial the tables over frequent codes, and the rows fitted to them.
    `graph_mb` and `pure`: as for `graph_of_tables`, which is fitted to the same tables.
    """
    columns, graphs = Columns(frequent.domain), []
    for given, _ in parts:
        graph = graph_of_tables(
            columns.domain, given, total, graph_mb, whole=frequent.whole, pure=pure
        )
        if graph is None:
            return 0.0
        graphs.append(graph)

    def trials() -> Iterator[Trial]:
        for (_, rest), each, graph in zip(parts, rows, graphs, strict=True):
            held = [m for m in rest if len(m.clique) > 1]
            cliques = [m.clique for m in held]
            mixture = ProductRows(columns, each, total)
            yield held, mixture.marginals(cliques), graph.each_marginal(cliques)

    return blending_share(trials())


def _check_room(
    device: torch.device, columns: Columns, kept: list[list[Clique]], settings: Mixture
) -> None:
    """Raise ModelTooLarge if memory is too small for a fit to all tables that may be
    measured. `kept`: their cliques, by their number of attributes. Of pairs no more than
    `settings.cells` cells are fitted, or a single larger pair: as many as the largest pairs have.
    The tables of the others are held on all codes, since their misfits are found from these.
    """
    # A pass over a junction tree takes its tables twice.
    tree = int(2 * settings.graph_mb * 2**20)
    memory.check_room(tree, "a tree of graph_mb", remedy="lower graph_mb")
    domain, pairs = columns.domain, [*itertools.chain(*kept[:1])]
    pairs.sort(key=domain.size, reverse=True)
    ends = np.cumsum([domain.size(pair) for pair in pairs])
    fitted = np.searchsorted(ends, settings.cells) + 1
    cliques = [*((name,) for name in domain), *pairs[:fitted], *itertools.chain(*kept[1:])]
    needed = fitting_tables_bytes(columns, cliques, settings.rows)
    needed += answering_bytes(columns, pairs[fitted:], settings.rows)
    check_room(device, needed, f"a mixture of {settings.rows:,} rows of {columns.width:,} codes")


def _orders(workload: Workload) -> list[list[Clique]]:
    """Return all subsets of the workload's cliques with more than one attribute, each of more than
    one value, grouped by their number of attributes.
    """
    shape = workload.domain.shape
    larger = [c for c in downward_closure(workload) if len(c) > 1 and min(shape(c)) > 1]
    return [list(group) for _, group in itertools.groupby(larger, key=len)]
