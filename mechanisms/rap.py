"""RAP and RAPsoftmax: relaxed rows fitted to selected queries.

Aydore et al. (2021) and its softmax form in Liu, Vietri and Wu, "Iterative Methods for Private
Synthetic Data" (2021): in each of T rounds the K worst answered queries are selected at once
(report-noisy-top-k with Gumbel noise) and measured, and the rows are fitted by Adam to all noisy
answers so far. RAP's rows start uniform in (-1, 1) and are clamped to [-1, 1]; on a domain of many
attributes that fails, as the authors' code does. RAPsoftmax holds each attribute of a row on the
simplex. Answers are weighed by the inverse variance, and a fit ends when the loss has gained less
than a thousandth over 50 steps together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mechanisms.families.product_mixture import (
    Columns,
    ProductAnswers,
    ProductMixtureModel,
    RelaxedRowsModel,
)
from mechanisms.families.targets import Targets, one_thread
from mechanisms.privacy.curator import Curator
from mechanisms.queries.cells import Cell
from mechanisms.release.record import Release
from mechanisms.rounds.loop import Round, adapt
from mechanisms.rounds.select_and_measure import (
    CellRounds,
    check_device,
    check_queries,
    check_settings,
    measure_one_way,
)
from mechanisms.workload import Workload, WorkloadLike
from pgmkit.domain import Clique
from pgmkit.errors import InvalidInput
from pgmkit.measurement import Measurement

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Rap", "RapSoftmax", "rap", "rap_softmax", "stalled"]

_WINDOW = 50
_LEAST_GAIN = 1e-3


@dataclass(frozen=True)
class _Family:
    """What tells the two apart: free values, the rows they stand for, and the released model."""

    first: Callable[[int, int, torch.Generator], torch.Tensor]
    rows: Callable[[torch.Tensor], torch.Tensor]
    project: Callable[[torch.Tensor], torch.Tensor]
    model: type[ProductMixtureModel]


def _clamped(_columns: Columns) -> _Family:
    return _Family(
        first=lambda rows, width, random: 2 * torch.rand(rows, width, generator=random) - 1,
        rows=lambda values: values,
        project=lambda values: values.clamp(-1.0, 1.0),
        model=RelaxedRowsModel,
    )


def _on_simplex(columns: Columns) -> _Family:
    return _Family(
        first=lambda rows, width, random: torch.randn(rows, width, generator=random),
        rows=columns.softmax,
        project=lambda values: values,
        model=ProductMixtureModel,
    )


@dataclass(frozen=True)
class Rap:
    """Settings of RAP; none may be chosen by looking at private data.

    `rounds`, `queries`: T and K, fixed numbers; None for K takes sqrt(rows / noise) of all that
    remains, at least 5. `one_way_share`: of the budget, for the one-way marginals; 0, as in the
    paper, needs a public total. `select_share`: of a round's budget. `rows`, `steps`,
    `learning_rate`: of the fit. A query that was never selected keeps the error of the first rows,
    about 1/sqrt(rows). `device`: "cpu" or "cuda". `seed`: of the first rows.
    """

    rounds: int = 5
    queries: int | None = None
    one_way_share: float = 0.1
    select_share: float = 0.5
    rows: int = 4000
    steps: int = 1000
    learning_rate: float = 0.005
    device: str = "cpu"
    seed: int = 0
    select = "queries"

    def __post_init__(self) -> None:
        check_settings(
            self,
            whole=["rows", "steps", *(["queries"] if self.queries is not None else [])],
            positive=["learning_rate"],
            fractions=["select_share"],
        )
        if self.select_share == 0:
            raise InvalidInput("select_share must be above 0 and below 1, got 0")
        check_device(self.device)


@dataclass(frozen=True)
class RapSoftmax(Rap):
    """Settings of RAPsoftmax; as those of `Rap`."""

    rounds: int = 10
    rows: int = 1000
    learning_rate: float = 0.1


def rap(
    curator: Curator,
    workload: WorkloadLike,
    settings: Rap | None = None,
    *,
    progress: Callable[[Round[torch.Tensor, Any]], None] | None = None,
) -> Release:
    """Spend all that remains of the Curator's budget on relaxed rows for the workload.

    The model's tables need not be consistent, and may be negative. Raises InvalidInput (before
    anything is spent) for a workload over another domain or with unequal weights, more queries than
    there are, or one_way_share = 0 where the total is private.
    """
    settings = settings or Rap()
    workload = Workload.over(curator.domain, workload)
    return _run("rap", curator, workload, settings, _clamped, progress)


def rap_softmax(
    curator: Curator,
    workload: WorkloadLike,
    settings: RapSoftmax | None = None,
    *,
    progress: Callable[[Round[torch.Tensor, Any]], None] | None = None,
) -> Release:
    """Spend all that remains of the Curator's budget on rows of probabilities for the workload.

    Raises InvalidInput as `rap` does.
    """
    settings = settings or RapSoftmax()
    workload = Workload.over(curator.domain, workload)
    return _run("rap-softmax", curator, workload, settings, _on_simplex, progress)


def _run(
    name: str,
    curator: Curator,
    workload: Workload,
    settings: Rap,
    family_of: Callable[[Columns], _Family],
    progress: Callable[[Round[torch.Tensor, Any]], None] | None,
) -> Release:
    check_queries(curator, workload, settings)
    domain = curator.domain
    with one_thread():
        columns = Columns(domain)
        random = torch.Generator().manual_seed(settings.seed)
        family = family_of(columns)
        values = family.first(settings.rows, columns.width, random).to(settings.device)
        first, total = measure_one_way(curator, settings.one_way_share)
        count = settings.queries or _queries(curator, workload, settings, total)
        steps = CellRounds(curator, workload, settings.rounds, count, settings.select_share)
        tables = ProductAnswers(columns, workload.cliques)
        update = _fitter(columns, settings, total, family)

        def estimates(values: torch.Tensor) -> Mapping[Clique, NDArray[np.float64]]:
            found = tables(family.rows(values))
            return {clique: t.double().cpu().numpy() * total for clique, t in found.items()}

        def select(values: torch.Tensor, _last: Any) -> list[Cell] | None:
            return steps.select(lambda: estimates(values))

        values, measurements = adapt(
            update(values, first) if first else values,
            first,
            select=select,
            measure=steps.measure,
            update=update,
            progress=progress,
        )
        rows = family.rows(values).double().cpu().numpy()
    return Release(name, family.model(domain, rows, total), measurements, curator.ledger, settings)


def _queries(curator: Curator, workload: Workload, settings: Rap, total: float) -> int:
    """K by the rule, but no more than there are."""
    available = sum(map(workload.domain.size, workload.cliques)) // settings.rounds
    wanted = round((total / curator.scale(curator.remaining)) ** 0.5 / 5)
    return max(1, min(available, max(5, wanted)))


def _fitter(
    columns: Columns, settings: Rap, total: float, family: _Family
) -> Callable[[torch.Tensor, Sequence[Measurement]], torch.Tensor]:
    """Adam on the squared errors of all noisy answers, in units of their noise."""

    def update(values: torch.Tensor, measurements: Sequence[Measurement]) -> torch.Tensor:
        targets = Targets(columns, measurements, total, settings.device)
        fitted = values.detach().clone().requires_grad_()
        optimizer = torch.optim.Adam([fitted], lr=settings.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, settings.steps, settings.learning_rate / 20
        )
        losses: list[float] = []
        for _ in range(settings.steps):
            errors = targets.errors(family.rows(fitted)) / targets.stddevs
            loss = errors.square().mean()
            losses.append(float(loss.detach()))
            if losses[-1] <= 1 or stalled(losses):
                break
            optimizer.zero_grad()
            torch.autograd.backward([loss])
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                fitted.copy_(family.project(fitted))
        return fitted.detach()

    return update


def stalled(losses: Sequence[float]) -> bool:
    """Whether the best loss gained less than a thousandth over the last steps together."""
    if len(losses) <= _WINDOW:
        return False
    before = min(losses[:-_WINDOW])
    return min(losses) > before * (1 - _LEAST_GAIN)
