"""All small marginals at once, and a mixture of product rows fitted to them.

Every one-way marginal, every pair of the workload, and every larger subset of its cliques where
those have few cells, are measured; then one fit. No junction tree limits what can be measured, and
no budget goes to selection. Pairs get shares of the budget that grow with how far they are from
independence, which a fiftieth of the budget tells of all of them together, or what was asked before
this mechanism was taken. Noise is kept out of the fit twice: each noisy table is drawn to
independence as its own noise asks for (see `mechanisms.families.shrinkage`), and a penalty holds
the rows near the independent model (see `fit_mixture`); how large it is follows from the noisy
tables (see `mechanisms.families.held_out`).

It relates to RAPsoftmax (Liu, Vietri and Wu 2021; Aydore et al. 2021) as measuring whole marginals
once relates to selecting queries in rounds; weights by inverse variance, the penalty and the shares
of pairs are new.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from mechanisms.families.graphical import estimator
from mechanisms.families.held_out import best_penalty, splits
from mechanisms.families.mixture_fit import Misfit, fit_mixture
from mechanisms.families.product_mixture import Columns, ProductAnswers, ProductMixtureModel
from mechanisms.families.shrinkage import near_independence
from mechanisms.families.training_memory import answering_bytes, fitting_tables_bytes
from mechanisms.privacy.curator import Curator
from mechanisms.release.record import Release
from mechanisms.rounds.distances import Distances, measure_distances
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

__all__ = ["Mixture", "mixture"]

_PENALTY = 8.0
"""The penalty of the fit that selection is based on, where the search for the best one starts."""


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
        steps: The number of steps of the fit, 1 or more.
        learning_rate: Adam's first rate, above 0; it falls along a cosine.
        penalty: The weight of independence in the fit, above 0, in units of (total / noise)^0.7,
            where noise is the standard deviation of a pair's cells; None for the weight that the
            noisy tables say is best, for two to three times the time; 8 where pairs are thinned.
        shrinkage: How strongly each noisy table is drawn to independence before the fit, by its own
            noise, 0 or more (`mechanisms.families.shrinkage`).
        device: Where the mixture is fitted: "cpu", "cuda", or "auto", a card where there is one.
            Its rows start alike on any device.
        seed: The seed of the rows' start; it protects nothing.
    """

    one_way_share: float = setting(0.1, fraction(below=0.5))
    select_share: float = setting(0.1, fraction(below=0.5))
    errors_share: float = setting(0.02, fraction(below=0.5))
    cells: int = setting(50_000, whole_number())
    pairs: int = setting(4, whole_number())
    rows: int = setting(500, whole_number())
    steps: int = setting(1500, whole_number())
    learning_rate: float = setting(0.1, positive())
    penalty: float | None = setting(None, or_none(positive()))
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
) -> Release:
    """Spend all that remains of the Curator's budget on one mixture for the workload.

    `first`: noisy one-way marginals of all attributes, where the Curator has measured them already.
    `distances`: of all pairs of the workload from independence, where it has measured those, too.

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

    def fit(taken: Sequence[Measurement], steps: int, penalty: float) -> torch.Tensor:
        with one_thread(), card_memory(device):
            return fit_mixture(
                columns,
                near_independence(domain, taken, total, settings.shrinkage),
                total,
                rows=settings.rows,
                steps=steps,
                learning_rate=settings.learning_rate,
                penalty=penalty * _unit(taken, total),
                random=torch.Generator().manual_seed(settings.seed),
                device=device,
            )

    penalty = settings.penalty
    if penalty is None and not kept:
        penalty = _PENALTY
    costs = np.ones(0)
    if kept:
        if distances is None:
            alone = estimator(domain, curator.public_total)(None, measurements)
            cost = settings.errors_share * whole
            distances = measure_distances(curator, alone, kept[0], cost, step="errors of pairs")
        costs = _pair_costs(distances, kept[0])
    elif orders:
        # One-way marginals alone are fitted here, which takes few steps.
        independent = fit(measurements, min(settings.steps, 200), penalty or _PENALTY)
        kept = [_thinned(curator, columns, independent, total, orders[0], settings, whole)]
        costs = np.ones(len(kept[0]))
    measurements += _measured(curator, kept, costs)
    if penalty is None:
        penalty = _held_out(columns, measurements, total, fit, settings)
    rows = fit(measurements, settings.steps, penalty).double().cpu().numpy()
    model = ProductMixtureModel(domain, rows, total)
    return Release("mixture", model, tuple(measurements), curator.ledger, settings)


def _measured(
    curator: Curator, orders: Sequence[Sequence[Clique]], costs: NDArray[np.float64]
) -> list[Measurement]:
    """All that remains spent on cliques by their orders; `costs`: of pairs, not scaled."""
    rest = curator.remaining
    shares = [0.5**i for i in range(len(orders))]
    found = []
    for share, cliques in zip(shares, orders, strict=True):
        parts = costs if len(cliques[0]) == 2 else np.ones(len(cliques))
        parts = rest * share / sum(shares) * parts / parts.sum()
        step = f"{len(cliques[0])}-way: measure"
        found += [
            curator.measure(clique, cost, step=step)
            for clique, cost in zip(cliques, parts.tolist(), strict=True)
        ]
    return found


def _unit(measurements: Sequence[Measurement], total: float) -> float:
    """The unit of penalties, from the noise in pairs, or in all tables where there are no pairs."""
    pairs = [m.stddev for m in measurements if len(m.clique) == 2]
    noise = np.mean([s**-2 for s in pairs or [m.stddev for m in measurements]]) ** -0.5
    # At a power of 1 the penalty would vanish with the budget faster than the noise that it keeps
    # out grows.
    return float((total / noise) ** 0.7)


def _held_out(
    columns: Columns,
    measurements: Sequence[Measurement],
    total: float,
    fit: Callable[[Sequence[Measurement], int, float], torch.Tensor],
    settings: Mixture,
) -> float:
    """The penalty whose fits to a part of the tables' noise say most of the rest, times 1.5.

    Fits of few steps find the penalty that is best for squares. Total variation asks for more of
    it: on five tables of the half "choosing" (epsilon 1, two seeds) the product has 0.97 times the
    error of the penalty itself, 0.93 to 1.04 times.
    """
    device = device_of(settings.device)
    trials = []
    for given, rest in splits(measurements, settings.seed):
        # All tables count alike, though they were not given alike of the budget.
        judges = [Measurement(m.clique, m.values, 1.0) for m in rest if len(m.clique) > 1]
        trials.append((given, Misfit(columns, judges, total, device)))
    # A fit that only judges a penalty takes few steps. The last fit needs more where there is
    # little noise: on CPS1988 at epsilon 10 the error is 0.0022 after 1500 steps, and 0.0024 after
    # 600; at epsilon 1 it is the same (Chile, HMDA).
    steps = min(settings.steps, 150)

    def loss(penalty: float) -> float:
        return math.fsum(float(misfit(fit(given, steps, penalty))) for given, misfit in trials)

    return 1.5 * best_penalty(loss, _PENALTY)


def _pair_costs(distances: Distances, pairs: Sequence[Clique]) -> NDArray[np.float64]:
    """Shares of the budget of pairs, not scaled: as the distances from independence.

    Noisy distances are drawn to their mean, the more the less they differ beyond their noise.
    """
    found = np.array([distances.of[pair] for pair in pairs])
    mean = float(found.mean())
    if mean <= 0:
        return np.ones(len(pairs))
    variance = float(found.var())
    trust = max(0.0, 1 - distances.stddev**2 / variance) if variance > 0 else 0.0
    # Distances are noisy, so every pair gets a tenth of the mean share at least.
    shares: NDArray[np.float64] = np.maximum(mean + trust * (found - mean), 0.1 * mean)
    return shares


def _check_room(
    device: torch.device, columns: Columns, orders: list[list[Clique]], settings: Mixture
) -> None:
    """ModelTooLarge where a card has no room for the fit to all that may be measured."""
    domain = columns.domain
    kept = list(itertools.chain(*settings.whole(domain, orders)))
    needed = 0
    if orders and not kept:
        needed = answering_bytes(columns, orders[0], settings.rows)
        kept = sorted(orders[0], key=domain.size)[-settings.pairs * len(domain) :]
    cliques = [*((name,) for name in domain), *kept]
    needed = max(needed, fitting_tables_bytes(columns, cliques, settings.rows))
    check_room(device, needed, f"a mixture of {settings.rows:,} rows of {columns.width:,} codes")


def _orders(workload: Workload) -> list[list[Clique]]:
    """All subsets of the workload's cliques of more than one attribute, by their number."""
    larger = [clique for clique in downward_closure(workload) if len(clique) > 1]
    return [list(group) for _, group in itertools.groupby(larger, key=len)]


def _thinned(
    curator: Curator,
    columns: Columns,
    rows: torch.Tensor,
    total: float,
    pairs: list[Clique],
    settings: Mixture,
    whole: float,
) -> list[Clique]:
    """The pairs that the rows answer worst, drawn one by one without replacement."""
    wanted = min(len(pairs), settings.pairs * len(curator.domain))
    cost = settings.select_share * whole / wanted
    tables = ProductAnswers(columns, pairs)(rows)
    estimates = {pair: table.double().cpu().numpy() * total for pair, table in tables.items()}
    left, picked = list(pairs), []
    for i in range(wanted):
        picked.append(curator.choose(left, estimates, cost, step=f"pair {i + 1}: select"))
        left.remove(picked[-1])
    return picked
