"""All small marginals at once, and a mixture of product rows fitted to them.

One shot: every one-way marginal, every pair of the workload, and every larger subset of its cliques
where those have few cells, are measured together; then one fit. No junction tree limits what can be
measured, and no budget goes to selection. Noise is kept out of the fit by a penalty that holds the
rows near the independent model (see `fit_mixture`).

It relates to RAPsoftmax (Liu, Vietri and Wu 2021; Aydore et al. 2021) as measuring whole marginals
once relates to selecting queries in rounds; weights by inverse variance and the penalty are new.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mechanisms.families.mixture_fit import fit_mixture
from mechanisms.families.product_mixture import Columns, ProductAnswers, ProductMixtureModel
from mechanisms.families.training_memory import answering_bytes, fitting_tables_bytes
from mechanisms.privacy.curator import Curator
from mechanisms.release.record import Release
from mechanisms.rounds.select_and_measure import known_total, measure_one_way
from mechanisms.settings import (
    Settings,
    fraction,
    positive,
    random_seed,
    setting,
    torch_device,
    whole_number,
)
from mechanisms.workload import Workload, WorkloadLike, downward_closure
from pgmkit.devices import card_memory, check_room, device_of
from pgmkit.domain import Clique, Domain
from pgmkit.measurement import Measurement
from pgmkit.threads import one_thread

__all__ = ["Mixture", "mixture"]

_FIRST_STEPS = 200
"""Steps of the fit to one-way marginals that selection is based on."""
_POWER = 0.7
"""At 1 the penalty would vanish with the budget faster than the noise that it keeps out grows."""


@dataclass(frozen=True)
class Mixture(Settings):
    """Settings of the mixture mechanism; none may be chosen by looking at private data.

    Raises InvalidInput for values that are not as below.

    Attributes:
        one_way_share: The share of the budget for the one-way marginals, above 0 and below 0.5. Of
            the rest, each larger order of cliques gets half of what the order below it gets.
        select_share: The share of the budget that draws pairs where they are too many to measure,
            above 0 and below 0.5.
        cells: The most cells of an order of cliques above 1 that is measured whole, 1 or more. A
            larger order of pairs is thinned; larger cliques are left out.
        pairs: The number of pairs an attribute that thinning keeps, 1 or more, drawn by the
            exponential mechanism.
        rows: The number of product distributions in the mixture, 1 or more.
        steps: The number of steps of the fit, 1 or more.
        learning_rate: Adam's first rate, above 0; it falls along a cosine.
        penalty: The weight of independence in the fit, above 0, in units of (total / noise)^0.7,
            where noise is the standard deviation of a pair's cells.
        device: Where the mixture is fitted: "cpu", "cuda", or "auto", a card where there is one.
            Its rows start alike on any device.
        seed: The seed of the rows' start; it protects nothing.
    """

    one_way_share: float = setting(0.1, fraction(below=0.5))
    select_share: float = setting(0.1, fraction(below=0.5))
    cells: int = setting(50_000, whole_number())
    pairs: int = setting(4, whole_number())
    rows: int = setting(500, whole_number())
    steps: int = setting(600, whole_number())
    learning_rate: float = setting(0.1, positive())
    penalty: float = setting(8.0, positive())
    device: str = setting("cpu", torch_device())
    seed: int = setting(0, random_seed())

    def measures(self, workload: Workload) -> bool:
        """Whether pairs are few enough to be measured all, so that none are selected."""
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
) -> Release:
    """Spend all that remains of the Curator's budget on one mixture for the workload.

    `first`: noisy one-way marginals of all attributes, where the Curator has measured them already.

    Raises InvalidInput, before anything is spent, for a workload over another domain.
    """
    settings = settings or Mixture()
    workload = Workload.over(curator.domain, workload)
    domain = curator.domain
    device = device_of(settings.device)
    orders = _orders(workload)
    columns = Columns(domain)
    _check_room(device, columns, orders, settings)
    random = torch.Generator().manual_seed(settings.seed)
    whole = curator.remaining
    if first:
        total = known_total(curator, first)
    else:
        first, total = measure_one_way(curator, settings.one_way_share if orders else 1.0)
    measurements = list(first)

    def fit(taken: list[Measurement], steps: int) -> torch.Tensor:
        noise = min(m.stddev for m in taken[len(first) :] or first)
        with one_thread(), card_memory(device):
            return fit_mixture(
                columns,
                taken,
                total,
                rows=settings.rows,
                steps=steps,
                learning_rate=settings.learning_rate,
                penalty=settings.penalty * (total / noise) ** _POWER,
                random=random,
                device=device,
            )

    kept = settings.whole(domain, orders)
    if orders and not kept:
        independent = fit(measurements, _FIRST_STEPS)
        kept = [_thinned(curator, columns, independent, total, orders[0], settings, whole)]
    rest = curator.remaining
    shares = [0.5**i for i in range(len(kept))]
    for share, cliques in zip(shares, kept, strict=True):
        cost = rest * share / sum(shares) / len(cliques)
        step = f"{len(cliques[0])}-way: measure"
        measurements += [curator.measure(clique, cost, step=step) for clique in cliques]
    rows = fit(measurements, settings.steps).double().cpu().numpy()
    model = ProductMixtureModel(domain, rows, total)
    return Release("mixture", model, tuple(measurements), curator.ledger, settings)


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
