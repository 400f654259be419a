"""RAP and RAPsoftmax: relaxed rows fitted to selected queries.

Aydore et al. (2021) and its softmax form in Liu, Vietri and Wu, "Iterative Methods for Private
Synthetic Data" (2021): in each of T rounds the K worst answered queries are selected at once
(report-noisy-top-k with Gumbel noise) and measured, and the rows are fitted by Adam to all noisy
answers so far. RAP's rows start uniform in (-1, 1) and are clamped to [-1, 1]. On a domain of many
attributes this fit fails, and so does the authors' code. RAPsoftmax keeps each attribute of a row
on the simplex.

Answers are weighted by inverse variance, and a fit ends when the loss is that of noise alone, or
has fallen by less than a thousandth over 50 steps together. Codes whose noisy one-way counts cannot
be told from 0 are merged into one code, and no query is about them
(`mechanisms.families.frequent`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from mechanisms.families import training_memory
from mechanisms.families.fitting import FreeRows, Targets, descend, fitted_or_stalled
from mechanisms.families.frequent import Frequent
from mechanisms.families.product_mixture import Columns, ProductMixtureModel, RelaxedRowsModel
from mechanisms.privacy.curator import Curator
from mechanisms.rounds import select_and_measure
from mechanisms.rounds.loop import Outcome, Progress, mechanism
from mechanisms.settings import fraction, positive, random_seed, setting, torch_device, whole_number
from mechanisms.workload import Workload
from pgmkit.measurement import Measurement
from pgmkit.runtime.devices import check_room, device_of, gpu_memory
from pgmkit.runtime.threads import one_thread


@dataclass(frozen=True)
class Rap(select_and_measure.SelectionSettings):
    """Settings of RAP; none may be chosen by looking at private data.

    A query that was never selected keeps the error of the first rows, about 1/sqrt(rows).

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        rounds: The number of rounds T, 1 or more; None for 5, or fewer if the workload has not
            enough queries for them.
        queries: The number of queries K of a round, 1 or more; None for sqrt(n / s) / 5, at least
            5, with n the number of data rows and s the noise scale of one marginal measured with
            all that the one-way marginals leave, but in all rounds together no more than the
            workload has. With None, the number of rounds falls if rounds find only noise.
        one_way_share: The share of the budget for the one-way marginals, at least 0 and below 1;
            with 0, as in the paper, nothing measures the number of rows, so it must be public.
        select_share: The share of each round's budget for selection, above 0 and below 1.
        rows: The number of relaxed rows, 1 or more.
        steps: The most steps of one update's fit, 1 or more.
        learning_rate: Adam's first rate, above 0; it falls along a cosine.
        device: Where the fit runs: "cpu", "cuda", or "auto": a GPU if there is one.
        seed: The seed of the first rows; it protects nothing.
    """

    rounds: int | None = setting(None, whole_number())
    queries: int | None = setting(None, whole_number())
    one_way_share: float = setting(0.1, fraction(zero=True))
    select_share: float = setting(0.5, fraction())
    rows: int = setting(4000, whole_number())
    steps: int = setting(1000, whole_number())
    learning_rate: float = setting(0.005, positive())
    device: str = setting("cpu", torch_device())
    seed: int = setting(0, random_seed())
    select = "queries"
    usual_rounds: ClassVar[int] = 5
    model: ClassVar[type[ProductMixtureModel]] = RelaxedRowsModel

    def rounds_for(self, workload: Workload) -> int:
        """Return `rounds`, or the number that its description states if it is None."""
        most = self.available(workload) // (self.queries or 1)
        return self.rounds or min(self.usual_rounds, most)

    def first(self, width: int, random: torch.Generator) -> torch.Tensor:
        """Return the values from which the fit starts, rows x width: uniform between -1 and 1."""
        return 2 * torch.rand(self.rows, width, generator=random) - 1

    def relaxed(self, columns: Columns, values: torch.Tensor) -> torch.Tensor:
        """Return the relaxed rows that the fitted values stand for, both rows x columns.width."""
        return values

    def project(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values clipped to their range [-1, 1], which a step may have left."""
        return values.clamp(-1.0, 1.0)


@dataclass(frozen=True)
class RapSoftmax(Rap):
    """Settings of RAPsoftmax: those of `Rap`, with other defaults for these.

    Attributes:
        rounds: The number of rounds T, 1 or more; None for 10, or fewer if the workload has not
            enough queries for them.
        rows: The number of rows of probabilities, 1 or more.
        learning_rate: Adam's first rate on the rows' logits, above 0; it falls along a cosine.
    """

    rows: int = setting(1000, whole_number())
    learning_rate: float = setting(0.1, positive())
    usual_rounds = 10
    model = ProductMixtureModel

    def first(self, width: int, random: torch.Generator) -> torch.Tensor:
        """Return the logits from which the fit starts, rows x width: standard normal."""
        return torch.randn(self.rows, width, generator=random)

    def relaxed(self, columns: Columns, values: torch.Tensor) -> torch.Tensor:
        return columns.softmax(values)

    def project(self, values: torch.Tensor) -> torch.Tensor:
        return values


@mechanism("rap", Rap)
def rap(
    curator: Curator, workload: Workload, settings: Rap, *, progress: Progress = None
) -> Outcome:
    """Spend all that remains of the Curator's budget on relaxed rows for the workload, and return
    their release.

    The model's tables need not be consistent, and may be negative. Raises InvalidInput (before
    anything is spent) for a workload over another domain or with unequal weights, for rounds that
    select more queries than the workload has, or for one_way_share = 0 if the total is private.
    Raises ModelTooLarge if memory is too small to count the marginals together or for the fit; if
    the total is private, the latter may be known only once the one-way marginals are measured.
    """
    return _run(curator, workload, settings, progress)


@mechanism("rap-softmax", RapSoftmax)
def rap_softmax(
    curator: Curator, workload: Workload, settings: RapSoftmax, *, progress: Progress = None
) -> Outcome:
    """Spend all that remains of the Curator's budget on rows of probabilities for the workload, and
    return their release.

    Raises InvalidInput (before anything is spent) for a workload over another domain or with
    unequal weights, more queries than there are, or one_way_share = 0 if the total is private;
    ModelTooLarge if memory is too small to count the marginals together or for the fit; if the
    total is private, the latter may be known only once the one-way marginals are measured.
    """
    return _run(curator, workload, settings, progress)


def _run(curator: Curator, workload: Workload, settings: Rap, progress: Progress) -> Outcome:
    select_and_measure.check_queries(curator, workload, settings)
    domain = curator.domain
    device = device_of(settings.device)
    split, anneal = settings.select_share, settings.queries is None
    rounds = settings.rounds_for(workload)
    least = select_and_measure.least_total(curator)
    expected = _queries(curator, workload, settings, least, settings.one_way_share)
    _check_room(device, workload, settings, expected)
    with one_thread(), gpu_memory(device):
        first, total = select_and_measure.measure_one_way(curator, settings.one_way_share)
        count = _queries(curator, workload, settings, total)
        if count > expected:  # the total was private
            _check_room(device, workload, settings, count)
        frequent = Frequent.of(workload, first, total, rounds * count)
        columns = Columns(frequent.domain)
        random = torch.Generator().manual_seed(settings.seed)
        free = settings.first(columns.width, random).to(device)
        steps = select_and_measure.CellRounds(
            curator, workload, rounds, count, split, codes=frequent.codes, anneal=anneal
        )
        update = fitter(settings)
        start = FreeRows(columns, settings.relaxed(columns, free), total, free, frequent=frequent)
        start = update(start, first) if first else start
        small = operator.attrgetter("small")
        state, measurements = steps.run(start, first, update, progress, small)
        rows = state.whole_rows()
    return settings.model(domain, rows, total), measurements


def _check_room(device: torch.device, workload: Workload, settings: Rap, queries: int) -> None:
    """Raise ModelTooLarge if memory is too small for `queries` queries in each round."""
    columns, rows = Columns(workload.domain), settings.rows
    singles = [(name,) for name in workload.domain]
    cells = min(settings.rounds_for(workload) * queries, settings.available(workload))
    places = max(map(len, workload.cliques))
    needed = training_memory.fitting_tables_bytes(columns, singles, rows)
    needed += training_memory.fitting_cells_bytes(columns, cells, places, rows)
    needed = max(needed, training_memory.answering_bytes(columns, workload.cliques, rows))
    what = f"RAP with {rows:,} rows of {columns.width:,} codes and {queries:,} queries a round"
    check_room(device, needed, what)


def _queries(
    curator: Curator, workload: Workload, settings: Rap, total: float, share: float = 0.0
) -> int:
    """Return K, the number of queries of a round: `settings.queries` or, if that is None, the
    number by the rule in the description of `Rap.queries`. `total`: the number of records.

    `share`: the share of the remaining budget that is spent before the rounds.
    """
    if settings.queries is not None:
        return settings.queries
    available = settings.available(workload) // settings.rounds_for(workload)
    wanted = round((total / curator.scale((1 - share) * curator.remaining)) ** 0.5 / 5)
    return max(1, min(available, max(5, wanted)))


def fitter(settings: Rap) -> Callable[[FreeRows, Sequence[Measurement]], FreeRows]:
    """Return the update step, which fits the rows to all noisy answers by Adam on the mean squared
    error in units of the noise.
    """

    def update(state: FreeRows, measurements: Sequence[Measurement]) -> FreeRows:
        known = state.frequent.measured(measurements) if state.frequent else measurements
        targets = Targets(state.columns, known, state.total, state.free.device)
        fitted = state.free.detach().clone().requires_grad_()

        def losses() -> Iterator[torch.Tensor]:
            while True:
                errors = targets.errors(settings.relaxed(state.columns, fitted))
                yield (errors / targets.stddevs).square().mean()
                with torch.no_grad():
                    fitted.copy_(settings.project(fitted))

        optimizer = torch.optim.Adam([fitted], lr=settings.learning_rate)
        last_rate = settings.learning_rate / 20
        descend(optimizer, losses(), settings.steps, last_rate=last_rate, enough=fitted_or_stalled)
        free = settings.project(fitted.detach())
        return replace(state, rows=settings.relaxed(state.columns, free), free=free)

    return update
