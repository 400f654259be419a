"""All small marginals at once, and a mixture of product rows fitted to them.

Every one-way marginal, every pair of the workload, and every larger subset of its cliques where
those have few cells, are measured; then one fit. No junction tree limits what can be measured, and
no budget goes to selection. Pairs get the shares of the budget for which their predicted error is
least (see `mechanisms.rounds.shares`): it follows from how far they are from independence, which a
fiftieth of the budget tells of all of them together, or what was asked before this mechanism was
taken. Noise is kept out of the fit twice: each noisy table is drawn to independence as its own
noise asks for (see `mechanisms.families.shrinkage`), and a penalty holds the rows near the
independent model (see `MixtureFit`); how far it falls follows from the noisy tables (see
`mechanisms.families.held_out`).

It relates to RAPsoftmax (Liu, Vietri and Wu 2021; Aydore et al. 2021) as measuring whole marginals
once relates to selecting queries in rounds; weights by inverse variance, the penalty and the shares
of pairs are new.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from mechanisms.families.graphical import estimator
from mechanisms.families.held_out import best_level, splits
from mechanisms.families.mixture_fit import Misfit, MixtureFit
from mechanisms.families.product_mixture import Columns, ProductMixtureModel
from mechanisms.families.shrinkage import near_independence
from mechanisms.families.training_memory import fitting_tables_bytes
from mechanisms.privacy.curator import Curator
from mechanisms.release.record import Release
from mechanisms.rounds.distances import Distances, measure_distances
from mechanisms.rounds.merging import best_tables
from mechanisms.rounds.select_and_measure import known_total, measure_one_way
from mechanisms.settings import (
    Settings,
    at_least,
    fraction,
    or_none,
    positive,
    random_seed,
    setting,
    torch_device,
    whole_number,
)
from mechanisms.workload import Workload, WorkloadLike, downward_closure
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.measurement import Measurement
from pgmkit.runtime.devices import card_memory, check_room, device_of
from pgmkit.runtime.threads import one_thread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pgmkit.model import GraphicalModel

__all__ = ["Mixture", "mixture"]

_LEAST = 0.1
"""The fraction of the mean distance that every pair is taken to have at least, as distances are
noisy; and of the mean share that it gets at least, so that its table has error bars of use."""


@dataclass(frozen=True)
class Mixture(Settings):
    """Settings of the mixture mechanism; none may be chosen by looking at private data.

    Raises InvalidInput for values that are not as below.

    Attributes:
        one_way_share: The share of the budget for the one-way marginals, above 0 and below 0.5. Of
            the rest, each larger order of cliques gets half of what the order below it gets.
        select_share: The share of the budget that draws pairs where they are too many to measure,
            above 0 and below 0.5.
        errors_share: The share of the budget that tells how far each pair is from independence,
            where that was not measured before; above 0 and below 0.5.
        cells: The most cells of an order of cliques above 1 that is measured whole, 1 or more. A
            larger order of pairs is thinned; larger cliques are left out.
        pairs: The number of pairs an attribute that thinning keeps, 1 or more, drawn by the
            exponential mechanism.
        rows: The number of product distributions in the mixture, 1 or more.
        steps: The number of steps of the fit at each level of its path, 1 or more. How many levels
            there are is not a matter of time: held-out noise ends the path.
        learning_rate: Adam's first rate at each level, above 0; it falls along a cosine.
        level: The last level of the path, 0 or more, where the weight of independence in the fit is
            what independent columns miss of the noisy tables over 2^level; None for the level that
            the noisy tables say is best, for three times the time.
        shrinkage: How strongly each noisy table is drawn to independence before the fit, by its own
            noise, 0 or more (`mechanisms.families.shrinkage`).
        device: Where the mixture is fitted: "cpu", "cuda", or "auto", a card where there is one.
            Its rows start alike on any device.
        seed: The seed of the rows' start; it protects nothing.
    """

    one_way_share: float = setting(0.1, fraction(below=0.5))
    select_share: float = setting(0.1, fraction(below=0.5))
    errors_share: float = setting(0.02, fraction(below=0.5))
    cells: int = setting(100_000, whole_number())
    pairs: int = setting(4, whole_number())
    rows: int = setting(500, whole_number())
    steps: int = setting(100, whole_number())
    learning_rate: float = setting(0.1, positive())
    level: float | None = setting(None, or_none(at_least(0.0)))
    shrinkage: float = setting(0.1, at_least(0.0))
    device: str = setting("cpu", torch_device())
    seed: int = setting(0, random_seed())

    def measures(self, workload: Workload) -> bool:
        """True if pairs are few enough to be measured all, so that none are selected."""
        orders = _orders(workload)
        return not orders or bool(self.whole(workload.domain, orders))

    def whole(self, domain: Domain, orders: Sequence[list[Clique]]) -> list[list[Clique]]:
        """The orders of cliques, from the smallest on, that are measured whole."""
        return list(
            itertools.takewhile(lambda order: sum(map(domain.size, order)) <= self.cells, orders)
        )


def mixture(
    curator: Curator,
    workload: WorkloadLike,
    settings: Mixture | None = None,
    *,
    first: Sequence[Measurement] = (),
    distances: Distances | None = None,
    bins: Mapping[str, int] | None = None,
) -> Release:
    """Spend all that remains of the Curator's budget on one mixture for the workload.

    `first`: noisy one-way marginals of all attributes, where the Curator has measured them already.
    `distances`: of all pairs of the workload from independence, where it has measured those, too.
    `bins`: how many codes of an attribute, the first ones, are bins in order, which may be merged
    where noise asks for it (`mechanisms.rounds.merging`); none where it is not named.

    Raises InvalidInput, before anything is spent, for a workload over another domain, and for
    distances that lack a pair.
    """
    settings = settings or Mixture()
    workload = Workload.over(curator.domain, workload)
    domain = curator.domain
    device = device_of(settings.device)
    orders = _orders(workload)
    kept = settings.whole(domain, orders)
    if kept and distances is not None and (lacking := set(kept[0]) - set(distances.of)):
        raise InvalidInput(
            f"distances must hold every pair of the workload, and lack {min(lacking)!r}; measure "
            "them of all pairs, or leave them out"
        )
    columns = Columns(domain)
    _check_room(device, columns, orders, settings)
    whole = curator.remaining
    if first:
        total = known_total(curator, first)
    else:
        first, total = measure_one_way(curator, settings.one_way_share if orders else 1.0)
    measurements = list(first)

    if orders:
        alone = estimator(domain, curator.public_total)(None, measurements)
        if not kept:
            kept, distances = [_thinned(curator, alone, orders[0], settings, whole)], None
        if distances is None:
            cost = settings.errors_share * whole
            distances = measure_distances(curator, alone, kept[0], cost, step="errors of pairs")
        measurements += _measured(curator, kept, alone, measurements, distances, bins or {})
    with one_thread(), card_memory(device):
        rows = _fitted(columns, measurements, total, settings, device)
    model = ProductMixtureModel(domain, rows.double().cpu().numpy(), total)
    return Release("mixture", model, tuple(measurements), curator.ledger, settings)


def _measured(
    curator: Curator,
    orders: Sequence[Sequence[Clique]],
    alone: GraphicalModel,
    first: Sequence[Measurement],
    distances: Distances,
    bins: Mapping[str, int],
) -> list[Measurement]:
    """All that remains spent on cliques by their orders, half as much on each as on the one below.

    Pairs are measured on the cells, and get the shares, for which their predicted error is least;
    what that gives to single attributes measures these again. Larger cliques are measured as they
    are, at equal shares. `alone`: the model of independent columns that `first` leads to.
    """
    shares = 0.5 ** np.arange(len(orders))
    shares *= curator.remaining / shares.sum()
    pairs, *larger = orders
    names = curator.domain.ordered({name for pair in pairs for name in pair})
    precisions = dict.fromkeys(names, 0.0)
    for m in first:
        if m.clique[0] in precisions:
            precisions[m.clique[0]] += m.stddev**-2
    noise = curator.expected_error(shares[0])
    unit = noise / curator.scale(shares[0])
    # Attributes of one value are not measured: they are known.
    known = {n: unit * p**-0.5 if p else np.finfo(float).eps for n, p in precisions.items()}
    tables = best_tables(
        pairs,
        {name: alone.marginal((name,)) for name in names},
        _likely(distances, pairs),
        known,
        noise,
        bins=bins,
        pure=curator.ledger.budget.pure,
    )
    parts = np.maximum(tables.pairs, _LEAST * tables.pairs.mean())
    scale = shares[0] / (parts.sum() + tables.singles.sum())
    measurements = [
        curator.measure((name,), cost, step="again: measure")
        for name, cost in zip(names, (scale * tables.singles).tolist(), strict=True)
        if cost > 0
    ] + [
        _measure_pair(curator, pair, groups, cost)
        for pair, groups, cost in zip(pairs, tables.groups, (scale * parts).tolist(), strict=True)
    ]
    for share, cliques in zip(shares[1:], larger, strict=True):
        step = f"{len(cliques[0])}-way: measure"
        measurements += [curator.measure(c, share / len(cliques), step=step) for c in cliques]
    return measurements


def _measure_pair(
    curator: Curator, pair: Clique, both: tuple[NDArray[np.intp], NDArray[np.intp]], cost: float
) -> Measurement:
    """The pair's table on these groups of either attribute's codes."""
    step = "2-way: measure"
    if all(groups[-1] + 1 == len(groups) for groups in both):
        return curator.measure(pair, cost, step=step)
    # A line for each group, with ones at its codes.
    sums = [(np.arange(groups[-1] + 1)[:, None] == groups).astype(float) for groups in both]
    return curator.measure_queries(pair, sums, cost, step=step)


def _likely(distances: Distances, pairs: Sequence[Clique]) -> NDArray[np.float64]:
    """Noisy distances drawn to their mean, the more the less they differ beyond their noise."""
    found = np.array([distances.of[pair] for pair in pairs])
    mean, variance = max(1.0, float(found.mean())), float(found.var())
    trust = max(0.0, 1 - distances.stddev**2 / variance) if variance > 0 else 0.0
    likely: NDArray[np.float64] = np.maximum(mean + trust * (found - mean), _LEAST * mean)
    return likely


def _fitted(
    columns: Columns,
    measurements: Sequence[Measurement],
    total: float,
    settings: Mixture,
    device: torch.device,
) -> torch.Tensor:
    """The rows of the fit to all tables, down to the level that parts of their noise say is best.

    It is judged by what fits to one part say of the rest, where all tables count alike, though they
    were not given alike of the budget.
    """

    def start(taken: Sequence[Measurement]) -> MixtureFit:
        return MixtureFit(
            columns,
            near_independence(columns.domain, taken, total, settings.shrinkage),
            total,
            rows=settings.rows,
            learning_rate=settings.learning_rate,
            random=torch.Generator().manual_seed(settings.seed),
            device=device,
        )

    def judged_level() -> float:
        trials = []
        for given, rest in splits(measurements, settings.seed):
            judges = [
                Measurement(m.clique, m.values, 1.0, m.matrix) for m in rest if len(m.clique) > 1
            ]
            trials.append((start(given), Misfit(columns, judges, total, device)))

        def loss(level: int) -> float:
            for fit, _ in trials:
                fit.run(settings.steps, level)
            return math.fsum(float(misfit(fit.rows)) for fit, misfit in trials)

        return best_level(loss, max(fit.last_level for fit, _ in trials))

    level = judged_level() if settings.level is None else settings.level
    last = start(measurements)
    last.follow(settings.steps, level)
    return last.rows


def _check_room(
    device: torch.device, columns: Columns, orders: list[list[Clique]], settings: Mixture
) -> None:
    """ModelTooLarge where a card has no room for the fit to all that may be measured."""
    domain = columns.domain
    kept = list(itertools.chain(*settings.whole(domain, orders)))
    if orders and not kept:
        kept = sorted(orders[0], key=domain.size)[-settings.pairs * len(domain) :]
    cliques = [*((name,) for name in domain), *kept]
    needed = fitting_tables_bytes(columns, cliques, settings.rows)
    check_room(device, needed, f"a mixture of {settings.rows:,} rows of {columns.width:,} codes")


def _orders(workload: Workload) -> list[list[Clique]]:
    """All subsets of the workload's cliques of more than one attribute, by their number."""
    larger = [clique for clique in downward_closure(workload) if len(clique) > 1]
    return [list(group) for _, group in itertools.groupby(larger, key=len)]


def _thinned(
    curator: Curator,
    alone: GraphicalModel,
    pairs: list[Clique],
    settings: Mixture,
    whole: float,
) -> list[Clique]:
    """The pairs that independent columns answer worst, drawn one by one without replacement."""
    wanted = min(len(pairs), settings.pairs * len(curator.domain))
    cost = settings.select_share * whole / wanted
    scored = curator.scored(pairs, alone.marginals(pairs))
    left, picked = np.arange(len(pairs)), []
    for i in range(wanted):
        place = scored.choose(left, cost, step=f"pair {i + 1}: select")
        picked.append(pairs[place])
        left = left[left != place]
    return picked
