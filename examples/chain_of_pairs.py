"""A mechanism of one's own: the pairs along a chain of attributes, all measured at once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from mechanisms import Curator, Entry, Release, Workload, register
from mechanisms.settings import Settings, fraction, setting
from pgmkit import estimate, estimate_total


@dataclass(frozen=True)
class Chain(Settings):
    """Settings of the chain.

    Attributes:
        one_way_share: Share of the budget for the one-way marginals, above 0 and below 1.
    """

    one_way_share: float = setting(0.3, fraction())


def chain(curator: Curator, workload: Workload, settings: Chain | None = None) -> Release:
    """Measure every attribute and every pair of neighbours in the schema's order; estimate."""
    settings, domain = settings or Chain(), curator.domain
    Workload.over(domain, workload)  # refuses a workload over another domain
    names = list(domain)
    cliques = [(name,) for name in names] + list(pairwise(names))
    weights = [settings.one_way_share / len(names)] * len(names)
    weights += [(1 - settings.one_way_share) / max(1, len(names) - 1)] * (len(names) - 1)
    measurements = []
    for i, clique in enumerate(cliques):
        cost = curator.remaining * weights[i] / sum(weights[i:])  # the last takes what is left
        measurements.append(curator.measure(clique, cost))
    total = curator.public_total or max(1.0, estimate_total(measurements, domain).value)
    model = estimate(domain, measurements, total=total)
    return Release("chain", model, tuple(measurements), curator.ledger, settings)


CHAIN = Entry(
    name="chain",
    module=__name__,
    function="chain",
    settings="Chain",
    summary="the pairs along the schema's order, measured at once; an example",
    rounds=False,
    graphical=True,
    measures=True,
)
register(CHAIN)
