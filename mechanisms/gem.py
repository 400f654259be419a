"""GEM and GEM-Pub: generative networks with the exponential mechanism.

Liu, Vietri and Wu, "Iterative Methods for Private Synthetic Data" (2021), Algorithms 2 and 3: in
each round the worst answered queries are selected and measured, and a generator of product rows
is trained on all noisy answers so far. What the paper leaves open is decided here:

- The fixed noise batch is part of the model; normalisation uses the batch (see `Generator`).
- With eps_0 of section 3.1 selection scores are exp(alpha eps_0 n |error|), so selecting costs
  alpha^2 and measuring (1 - alpha)^2 parts of eps_0^2 / 2; k queries a round cost k times that.
- The threshold gamma is half of a moving average (beta 1/2) of the largest error on *noisy* past
  answers: the true error would leak.
- An update is a new Adam with a cosine schedule on the mean absolute error over the active set:
  the at most `worst` measured queries whose error is at least gamma.
- Measured queries are not selected again.
- The result's weights are a moving average over the last half of the rounds.
- An error within `tolerance` standard deviations of its own noise is not trained on.
- With public data the first generator is near the truth already, and what noise can do to it is
  worse than most errors: fewer rounds, a tolerance of 3, and the paper's small steps (1e-4).
- Noisy answers enter the training within [0, n], where answers of any data lie; what is released
  as a measurement is as drawn.
- Not in the paper: a share of the budget measures the one-way marginals first.

The networks compute in float32: answers are accurate to about 1e-6 of the total.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from mechanisms.families.generator import Generator
from mechanisms.families.product_mixture import Columns, ProductAnswers, ProductMixtureModel
from mechanisms.families.targets import one_thread
from mechanisms.families.training import GemState, pretrain, trainer
from mechanisms.privacy.curator import Curator
from mechanisms.release.record import Release
from mechanisms.rounds.loop import Round, adapt
from mechanisms.rounds.select_and_measure import (
    CellRounds,
    MarginalRounds,
    RoundsRule,
    check_device,
    check_queries,
    check_settings,
    measure_one_way,
)
from mechanisms.workload import Workload, WorkloadLike
from pgmkit.dataset import Dataset
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Tables = Mapping[Clique, NDArray[np.float64]]

__all__ = ["Gem", "GemPub", "gem", "gem_pub"]


@dataclass(frozen=True)
class Gem:
    """Settings of GEM; none may be chosen by looking at private data.

    `rounds`: T; None for a rule from the rows and the budget (`RoundsRule`).
    `queries`: k of a round. `alpha`: the weight of selecting against measuring; None for the
    paper's 0.67, or 0.5 for whole marginals. `one_way_share`: of the budget, for the one-way
    marginals before the rounds; 0, as in the paper, needs a public total.
    `select`: single "queries", or whole "marginals" (the marginal trick of appendix A.1, trained
    on squared errors in units of the noise as appendix D.4 does on squared errors).

    `noise_width`, `hidden`, `rows`: of the generator and its batch B; the paper's are 512,
    (1024, 1024), 1000. `precision`: of the network's products; "bfloat16" is several times as fast
    on processors and cards that have it, and slow on others.
    `learning_rate`, `steps` (Tmax), `worst` (of the active set), `tolerance` (see above): of an
    update. `smoothing`: of the average of the weights. `gradient`: "exact", or "reinforce" from
    `records` of each row, which needs no derivative of a query (appendix B.3). `device`: "cpu" or
    "cuda". `seed`: of the first weights, the noise batch and the estimator's records; it protects
    nothing and need not be secret.

    Raises InvalidInput for values out of range or a device that is not there.
    """

    rounds: int | None = None
    queries: int = 1
    alpha: float | None = None
    one_way_share: float = 0.2
    select: Literal["queries", "marginals"] = "queries"
    noise_width: int = 128
    hidden: tuple[int, ...] = (256, 256)
    rows: int = 1000
    precision: Literal["float32", "bfloat16"] = "float32"
    learning_rate: float = 3e-4
    steps: int = 30
    worst: int = 100
    tolerance: float = 1.0
    smoothing: float = 0.9
    gradient: Literal["exact", "reinforce"] = "exact"
    records: int = 10
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(
            self,
            whole=["queries", "noise_width", "rows", "steps", "worst", "records"],
            positive=["learning_rate", "tolerance"],
            fractions=["smoothing"],
        )
        if self.rows < 2:
            raise InvalidInput("rows must be 2 or more: they are normalised over the batch")
        if not self.hidden or any(width < 1 for width in self.hidden):
            raise InvalidInput(f"hidden must be widths of 1 or more, got {self.hidden!r}")
        if self.alpha is not None and not 0 < self.alpha < 1:
            raise InvalidInput(f"alpha must be above 0 and below 1, or None; got {self.alpha!r}")
        for name, known in [
            ("select", _SELECT),
            ("gradient", _GRADIENT),
            ("precision", _PRECISION),
        ]:
            if getattr(self, name) not in known:
                raise InvalidInput(
                    f"{name} must be one of {', '.join(known)}; got {getattr(self, name)!r}"
                )
        if self.select == "marginals" and self.queries != 1:
            raise InvalidInput("queries must be 1 where whole marginals are selected")
        check_device(self.device)


@dataclass(frozen=True)
class GemPub(Gem):
    """Settings of GEM-Pub; as those of `Gem`, and of the fit to the public data.

    The one-way marginals are not measured where the public data have every attribute and the total
    is public. `pretrain_steps`, `pretrain_rate`: of the fit.
    """

    learning_rate: float = 1e-4
    tolerance: float = 3.0
    pretrain_steps: int = 2000
    pretrain_rate: float = 2e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, whole=["pretrain_steps"], positive=["pretrain_rate"], fractions=[])


_SELECT = ("queries", "marginals")
_GRADIENT = ("exact", "reinforce")
_PRECISION = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_RULES = {
    ("gem", "queries"): RoundsRule(1.4),
    ("gem", "marginals"): RoundsRule(0.35),
    ("gem-pub", "queries"): RoundsRule(0.005, power=2),
    ("gem-pub", "marginals"): RoundsRule(0.001, power=2),
}


def gem(
    curator: Curator,
    workload: WorkloadLike,
    settings: Gem | None = None,
    *,
    progress: Callable[[Round[GemState, Any]], None] | None = None,
) -> Release:
    """Spend all that remains of the Curator's budget on a generator for the workload.

    `progress` is called with each finished Round. The Release's model is the mixture of the
    averaged generator's rows.

    Raises InvalidInput, before anything is spent, for a workload over another domain, unequal
    weights of single queries, more queries than there are, or one_way_share = 0 where the total is
    private.
    """
    settings = settings or Gem()
    workload = Workload.over(curator.domain, workload)
    share = settings.one_way_share
    return _run("gem", curator, workload, settings, share, lambda *_: None, progress)


def gem_pub(
    curator: Curator,
    workload: WorkloadLike,
    settings: GemPub | None = None,
    *,
    public: Dataset,
    progress: Callable[[Round[GemState, Any]], None] | None = None,
) -> Release:
    """Spend all that remains on a generator that is first fitted to the marginals of public data.

    The public data may lack attributes. Raises InvalidInput as `gem` does, and for public data
    without rows, over another domain, or that hold no workload clique whole.
    """
    fit = settings or GemPub()
    wanted = Workload.over(curator.domain, workload)
    _check_public(curator.domain, wanted, public)
    needless = set(public.domain) == set(curator.domain) and curator.public_total is not None
    share = 0.0 if needless else fit.one_way_share

    def prepare(generator: Generator, columns: Columns) -> None:
        pretrain(generator, columns, wanted.cliques, public, fit)

    return _run("gem-pub", curator, wanted, fit, share, prepare, progress)


def _run(
    name: str,
    curator: Curator,
    workload: Workload,
    settings: Gem,
    one_way_share: float,
    prepare: Callable[[Generator, Columns], None],
    progress: Callable[[Round[GemState, Any]], None] | None,
) -> Release:
    check_queries(curator, workload, settings)
    with one_thread():
        columns = Columns(curator.domain)
        generator = _generator(columns, settings)
        prepare(generator, columns)
        state = GemState(generator.weights_now(), generator().detach())
        first, total = measure_one_way(curator, one_way_share)
        rounds = _RULES[name, settings.select].of(curator, workload, settings, total)
        update = trainer(generator, columns, settings, rounds, total)
        if first:
            # The averages are over rounds.
            state = replace(update(state, first), average=None, error=None, round=0)
        if settings.select == "queries":
            steps: Any = CellRounds(curator, workload, rounds, settings.queries, _split(settings))
        else:
            steps = MarginalRounds(curator, workload, rounds, _split(settings))
        tables = ProductAnswers(columns, workload.cliques)
        state, measurements = adapt(
            state,
            first,
            select=lambda state, _last: steps.select(lambda: _counts(tables, state.rows, total)),
            measure=steps.measure,
            update=update,
            progress=progress,
        )
        generator.set_weights(state.average or state.weights)
        rows = generator().detach().double().cpu().numpy()
    model = ProductMixtureModel(curator.domain, rows, total)
    return Release(name, model, measurements, curator.ledger, settings)


def _generator(columns: Columns, settings: Gem) -> Generator:
    return Generator(
        columns,
        settings.noise_width,
        settings.hidden,
        settings.rows,
        torch.Generator().manual_seed(settings.seed),
        _PRECISION[settings.precision],
    ).to(settings.device)


def _split(settings: Gem) -> float:
    """The selection's share of a round's zCDP: alpha^2 / (alpha^2 + (1 - alpha)^2), section 3.1."""
    alpha = settings.alpha or (0.67 if settings.select == "queries" else 0.5)
    return alpha**2 / (alpha**2 + (1 - alpha) ** 2)


def _counts(tables: ProductAnswers, rows: torch.Tensor, total: float) -> Tables:
    return {clique: table.double().cpu().numpy() * total for clique, table in tables(rows).items()}


def _check_public(domain: Domain, workload: Workload, public: Dataset) -> None:
    for name in public.domain:
        if name not in domain or public.domain.sizes[name] != domain.sizes[name]:
            raise InvalidInput(
                f"the public data's attribute {name!r} of size {public.domain.sizes[name]} must be "
                f"one of the private domain's, of the same size; leave it out or recode it"
            )
    if not any(all(name in public.domain for name in clique) for clique in workload.cliques):
        raise InvalidInput(
            "the public data hold no workload clique whole; use others, or run without public data"
        )
    if len(public) == 0:
        raise InvalidInput("the public data have no rows; run without public data")
