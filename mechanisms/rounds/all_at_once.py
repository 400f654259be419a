"""One round that measures all pairs of a workload and larger cliques, with shares of the budget and
merged codes of least predicted error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mechanisms.families.frequent import Frequent
from mechanisms.families.shrinkage import all_stay_hidden
from mechanisms.privacy.curator import Curator
from mechanisms.rounds.drawn import Distances
from mechanisms.rounds.merging import OneWay, Tables, best_tables, measure_tables
from mechanisms.workload import Workload, pair_weights
from pgmkit.domain import Clique
from pgmkit.measurement import Measurement

_LEAST = 0.1
"""Two lower limits: the distance assumed for a pair, as a fraction of the mean distance, since
distances are noisy; and a pair's share of the budget, as a fraction of the mean share, so that its
table has useful error bars. If pairs have less than a tenth of the budget together, as where noise
hides them all, the mean share is taken to be that of a tenth.
"""


def measure_all(
    curator: Curator,
    workload: Workload,
    orders: Sequence[Sequence[Clique]],
    rest: float,
    known: Mapping[str, OneWay],
    distances: Distances,
    frequent: Frequent,
    most: int,
) -> list[Measurement]:
    """Spend `rest` on the cliques of `orders`, one group for each number of attributes, and return
    the measurements. Each group gets half as much as the group before.

    For pairs the merged cells and the shares are those of least predicted error
    (`mechanisms.rounds.merging`), weighted as in the workload; single attributes are measured again
    with shares of their own. With Gaussian noise a pair's residual is measured, the part of its
    table that its single attributes do not tell; none is if noise is expected to hide all. Larger
    cliques are measured on all cells, with equal shares.

    `known`: what is known of each attribute of the pairs. `distances`: the noisy distances of the
    pairs from independent columns. `frequent`: the frequent codes of each attribute; all others
    count as one code in pairs. `most`: the most cells that all pairs may have together.
    """
    shares = 0.5 ** np.arange(len(orders))
    shares *= rest / shares.sum()
    pairs, *larger = orders
    noise = curator.expected_error(shares[0])
    pure = curator.ledger.budget.pure
    places = {name: frequent.places(name) for name in known}
    far = distances.likely(pairs, known, pure=pure)
    tables = best_tables(
        pairs,
        {
            name: OneWay(
                np.bincount(places[name], one.counts).astype(float),
                one.noise,
                bins=int((frequent.codes[name] < one.bins).sum()),
                codes=len(one.counts),
            )
            for name, one in known.items()
        },
        np.maximum(far, _LEAST * max(1.0, float(far.mean()))),
        noise,
        pure=pure,
        residuals=not pure,
        importance=pair_weights(workload, pairs),
    )
    # `best_tables` groups the frequent codes; the measurements need the group of every code.
    groups = [
        (a[places[left]], b[places[right]])
        for (left, right), (a, b) in zip(pairs, tables.groups, strict=True)
    ]
    parts = tables.pairs.clip(_LEAST * max(float(tables.pairs.mean()), _LEAST / len(pairs)))
    parts[~pairs_within(most, tables)] = 0.0
    # A pair has no residual if all codes of one of its attributes are in one group.
    parts[[not pure and min(a.max(), b.max()) == 0 for a, b in tables.groups]] = 0.0
    # If noise is expected to hide all pairs, no pair is measured with Gaussian noise, since a
    # residual tells about its pair alone. Under a pure budget whole tables are measured, and they
    # tell about their attributes, too.
    if not pure and all_stay_hidden(tables.excess(far, noise)):
        parts = np.zeros(len(pairs))
    tables = replace(tables, groups=groups, pairs=parts)
    measurements = measure_tables(
        curator, list(known), pairs, tables, float(shares[0]), residuals=not pure
    )
    for share, cliques in zip(shares[1:], larger, strict=True):
        step = f"{len(cliques[0])}-way: measure"
        measurements += [curator.measure(c, share / len(cliques), step=step) for c in cliques]
    return measurements


def pairs_within(most: int, tables: Tables) -> NDArray[np.bool_]:
    """Return True for the pairs that are kept: in falling order of the gain for each cell the first
    and, of the others, each that leaves at most `most` cells together.
    """
    cells = [(a.max() + 1) * (b.max() + 1) for a, b in tables.groups]
    found, order = np.zeros(len(cells), dtype=bool), np.argsort(-tables.gains / cells)
    room = max(most, cells[order[0]])
    for place in order:
        if cells[place] <= room:
            found[place], room = True, room - cells[place]
    return found
