"""DualQuery: multiplicative weights over queries against best responding records.

Gaboardi et al. (2014); McKenna, Sheldon and Miklau (2019), Algorithms 4 and 5. Queries are closed
under negation: each cell of the workload's marginals has a sign. Let q(D) be the answer of query q
on the data, n the number of rows and x_r the record of round r. In round t + 1, s signed queries
are drawn with probability proportional to

    exp(+-eta sum_{r <= t} (q(D) - q(x_r))),

and the best response is the record with the largest sum of drawn queries. With arg max the weights
must grow where the data exceed the records: the printed algorithm has the opposite sign. The first
round is free (uniform); a draw of round t + 1 is an exponential mechanism of epsilon 2 eta t / n.
The release is the records of all rounds.

`DualQueryLoss` is the negative log likelihood of the drawn queries, a loss of `pgmkit.estimate`:
log-sum-exp of linear functions minus linear ones, so it is convex in the marginals.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mechanisms.families.best_response import Oracle, Records
from mechanisms.privacy.cell_line import CellLine
from mechanisms.privacy.curator import Curator
from mechanisms.queries.cells import Cell
from mechanisms.release.record import Release
from mechanisms.rounds.loop import Progress, Round, adapt, mechanism
from mechanisms.rounds.select_and_measure import measure_total
from mechanisms.settings import Settings, fraction, positive, random_seed, setting, whole_number
from mechanisms.workload import Workload, WorkloadLike
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.runtime.typed import typed_class

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Draws:
    """The result of one round: `queries` are the drawn cells, each with its sign (1 or -1), and
    `record` is the best responding record, as codes in the domain's order.
    """

    queries: tuple[tuple[Cell, int], ...]
    record: tuple[int, ...]


@dataclass(frozen=True, repr=False)
class DualQueryRelease(Release):
    """A release with what `DualQueryLoss` needs: all draws, and the eta that was used.

    `save` stores the records and not the draws.
    """

    draws: tuple[Draws, ...] = ()
    eta: float = 0.0


@dataclass(frozen=True)
class DualQuery(Settings):
    """Settings of DualQuery; none may be chosen by looking at private data.

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        eta: The rate of the weights, above 0. The number of rounds follows from it and the budget.
            The rate is then changed so that these rounds spend the budget exactly. It rises, with
            20 or more rounds by less than a tenth unless `max_rounds` limits them; it falls if a
            single round costs more than the budget.
        samples: The number s of queries drawn in each round, 1 to 1,000,000.
        one_way_share: The share of the budget for the one-way marginals, at least 0 and below 1. It
            is spent only if the number of rows is private, to estimate it.
        max_rounds: The most rounds, 1 or more.
        seed: The seed of the first round's draws, which are free; it protects nothing.
    """

    eta: float = setting(2.5, positive())
    samples: int = setting(50, whole_number(1, 10**6))
    one_way_share: float = setting(0.05, fraction(zero=True))
    max_rounds: int = setting(1000, whole_number())
    seed: int = setting(0, random_seed())


@mechanism("dual-query", DualQuery)
def dual_query(
    curator: Curator, workload: Workload, settings: DualQuery, *, progress: Progress = None
) -> DualQueryRelease:
    """Spend all that remains of the Curator's budget on records for the workload, and return their
    release.

    Raises, before anything is spent, InvalidInput for a workload over another domain or with
    unequal weights, one_way_share = 0 if the number of rows is private, or Gaussian accounting, and
    ModelTooLarge for marginals that are too large to count together.
    """
    domain = curator.domain
    if curator.ledger.budget.gaussian:
        raise InvalidInput(
            "dual-query must have accounting='zcdp', got 'gaussian': eta, the rate of its weights, "
            "follows from the budget by prices of zCDP"
        )
    first, total = measure_total(curator, workload, settings.one_way_share)
    weights, eta = paid_rounds(curator, settings, total)
    whole = curator.remaining
    rng = np.random.default_rng(settings.seed)
    drawn: list[tuple[tuple[Cell, int], ...]] = []

    def select(records: Records, last: Round[Records, Cell] | None) -> list[Cell] | None:
        t = len(drawn)
        if t > len(weights):
            return None
        if t == 0:
            queries = uniform_draws(domain, workload, settings.samples, rng)
        else:
            cost = curator.remaining if t == len(weights) else whole * weights[t - 1]
            estimates = records.sparse_marginals(workload.cliques)
            queries = curator.draw_signed(
                workload.cliques, estimates, cost, count=settings.samples, step=f"round {t}: draw"
            )
        drawn.append(tuple(queries))
        return [cell for cell, _ in queries]

    records, _ = adapt(
        Records(domain, (), total),
        first,
        select=select,
        measure=lambda picked: [],  # only the draws are paid for
        update=_responder(domain, drawn),
        progress=progress,
    )
    draws = tuple(map(Draws, drawn, records.list))
    return DualQueryRelease(
        "dual-query", records.model(), tuple(first), curator.ledger, settings, None, draws, eta
    )


def _responder(
    domain: Domain, drawn: Sequence[tuple[tuple[Cell, int], ...]]
) -> Callable[[Records, Sequence[Any]], Records]:
    """Return the update step, which adds one record: the one that maximises the sum of the signs of
    the last drawn cells that it lies in. The measurements given to the step are not used.
    """
    oracle = Oracle(domain)

    def update(records: Records, _measurements: Sequence[Any]) -> Records:
        return records.joined([oracle.best([(cell, float(sign)) for cell, sign in drawn[-1]], {})])

    return update


def paid_rounds(curator: Curator, settings: DualQuery, total: float) -> tuple[list[float], float]:
    """Return the share of the remaining budget of each paid round, and the eta at which these
    rounds cost exactly that budget. There are as many rounds as it pays for at `settings.eta`, but
    at least one and at most `max_rounds`. `total` is the number of rows, known or estimated.

    The t-th paid round costs s (m eta t / n)^2 / 2 in zCDP, and 2 s m eta t / n in pure epsilon,
    where s is the number of its draws, n the number of rows, and m the most by which a count
    changes between neighbours.
    """
    pure, whole = curator.ledger.budget.pure, curator.remaining
    rate = curator.neighbours.max_rows * settings.eta / total
    power, unit = (1, 2 * rate) if pure else (2, rate**2 / 2)
    unit *= settings.samples
    spent = itertools.accumulate(unit * t**power for t in range(1, settings.max_rounds + 1))
    rounds = max(1, sum(1 for _ in itertools.takewhile(lambda cost: cost <= whole, spent)))
    parts = np.arange(1, rounds + 1, dtype=np.float64) ** power
    eta = settings.eta * (whole / (unit * float(parts.sum()))) ** (1 / power)
    return (parts / parts.sum()).tolist(), eta


def uniform_draws(
    domain: Domain, workload: Workload, count: int, rng: np.random.Generator
) -> list[tuple[Cell, int]]:
    """Return `count` cells of the workload's marginals, each with a sign (1 or -1), drawn uniformly
    with replacement: the queries of the free first round.
    """
    line = CellLine(domain, workload.cliques)
    places = rng.integers(0, line.size, count).tolist()
    signs = rng.choice([-1, 1], count).tolist()
    return [(line.cell(place), sign) for place, sign in zip(places, signs, strict=True)]


@typed_class
class DualQueryLoss:
    """The negative log likelihood of a DualQuery release, as a function of marginals in counts
    (Algorithm 5).

    It is a loss for `pgmkit.estimate`, whose `measurements` must then name all of the workload's
    cliques. Its attribute `total` is the number of rows that the mechanism used.

    Raises InvalidInput for a release of another mechanism or without draws, and for a workload that
    lacks a clique of the drawn queries, with its attributes in the same order.
    """

    def __init__(self, release: DualQueryRelease, workload: WorkloadLike) -> None:
        domain = release.model.domain
        workload = Workload.over(domain, workload)
        drawn = {cell.clique for draws in release.draws for cell, _ in draws.queries}
        if not drawn or not drawn <= set(workload.cliques):
            raise InvalidInput(
                "the release must have drawn queries about cliques of the workload, got queries "
                f"about {sorted(drawn)}; give the release of a run, since a file holds no draws, "
                "and the workload of that run"
            )
        self._release, self._cliques = release, workload.cliques
        line = CellLine(domain, workload.cliques)
        start = dict(zip(line.cliques, line.starts.tolist(), strict=True))
        satisfied = []
        self._signed = np.zeros((len(release.draws), line.size))
        """The number of draws of each cell in each round, minus those of its negation: rounds x
        cells.
        """
        for signed, draws in zip(self._signed, release.draws, strict=True):
            alone = Records(domain, (draws.record,), 1.0)
            satisfied.append(line.joined(alone.marginals(line.cliques)))
            for cell, sign in draws.queries:
                signed[start[cell.clique] + cell.index] += sign
        self._draws = np.array([len(draws.queries) for draws in release.draws])
        self._reached = np.cumsum(satisfied, axis=0)
        self.total = release.model.total

    def __call__(self, marginals: Mapping[Clique, torch.Tensor]) -> torch.Tensor:
        """Return the loss of these marginals, in nats and differentiable. Raises InvalidInput if
        they lack a clique of the workload.
        """
        import torch

        if lacking := [clique for clique in self._cliques if clique not in marginals]:
            raise InvalidInput(f"measurements must name the workload's clique {lacking[0]!r} too")
        y = torch.cat([marginals[clique].reshape(-1) for clique in self._cliques]) / self.total
        # The queries of round t depend on the t records before it; those of round 0 are uniform.
        reached, signed, draws = (
            torch.as_tensor(each, dtype=y.dtype, device=y.device)
            for each in (self._reached[:-1], self._signed[1:], self._draws[1:])
        )
        rounds = torch.arange(1, len(self._draws), device=y.device)
        scores = self._release.eta * (rounds[:, None] * y - reached)
        normaliser = torch.logsumexp(torch.cat([scores, -scores], dim=1), dim=1)
        return (draws * normaliser).sum() - (signed * scores).sum()
