"""The graphical model of the noisy tables of pairs that stand out from their noise.

Where few pairs depend on each other, or some strongly, a graphical model of these pairs follows
less noise than rows that are fitted to all pairs. It takes two turns, as the mechanism `pair-graph`
does, but from tables that are measured already: first a maximum spanning forest of the pairs, then
the pairs that the model of the forest misses by more than their noise. A pair of the second turn
may be near independence: if a third column depends on both of its columns, the forest relates them.
Nothing here sees private data or a Curator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mechanisms.families import graphical, shrinkage
from mechanisms.families.mixture_fit import largest_excess, misfit_deviation, misfits
from pgmkit.domain import Clique, Domain
from pgmkit.measurement import Measurement
from pgmkit.model import GraphicalModel


def graph_of_tables(
    domain: Domain,
    measurements: Sequence[Measurement],
    total: float,
    most_mb: float,
    *,
    whole: Domain,
    pure: bool,
) -> GraphicalModel | None:
    """Return the graphical model of the pairs that stand out, or None if no pair does.

    A pair stands out if its squared misfit exceeds what noise alone has on average by more standard
    deviations than is to be expected of so many tables of noise (`largest_excess`). In the first
    turn the misfit is that of independent columns without what single columns tell
    (`shrinkage.beyond_noise`), in the second that of the forest's model.

    `measurements`, in counts of `total` records: tables of pairs, and the single codes of each
    attribute in at least one table; single columns are smoothed, and larger tables are not used.
    `most_mb`: the largest junction tree, in MB of float64 cells; pairs that do not fit are left
    out. `whole`: the domain over which the tree's cells are counted, some of whose codes may be
    merged in `domain`. `pure`: True for Laplace noise, False for Gaussian noise.

    >>> domain = Domain({"a": 2, "b": 2})
    >>> noisy = [Measurement(("a",), [50, 50], 1.0), Measurement(("b",), [50, 50], 1.0),
    ...          Measurement(("a", "b"), [[45, 5], [5, 45]], 1.0)]
    >>> model = graph_of_tables(domain, noisy, 100.0, 1.0, whole=domain, pure=False)
    >>> model.marginal(("a", "b")).round()
    array([[45.,  5.],
           [ 5., 45.]])
    """
    import networkx as nx

    known = shrinkage.near_independence(domain, measurements, total, 0.0)
    tables: dict[Clique, Measurement] = {m.clique: m for m in known if len(m.clique) == 2}
    single = [m for m in known if len(m.clique) == 1]
    found = shrinkage.beyond_noise(domain, [*single, *tables.values()], total, pure=pure)
    seen = _standing_out(found)
    pairs = nx.Graph()
    pairs.add_weighted_edges_from((*clique, found[clique]) for clique in seen)
    edges = {frozenset(edge) for edge in nx.maximum_spanning_edges(pairs, data=False)}
    forest = [clique for clique in seen if frozenset(clique) in edges]
    kept = graphical.fitting(whole, [], forest, most_mb) if forest else []
    if not kept:
        return None
    # Longer searches follow more of the noise. With the default method and a tolerance of 1 they
    # take 2 to 5 times as long on five tables, and the mean errors of pairs are 1.01 to 1.03 times
    # as large.
    update = graphical.estimator(domain, total, tolerance=3.0, method="accelerated")
    model = update(None, [*single, *(tables[clique] for clique in kept)])
    others = {clique: m for clique, m in tables.items() if clique not in kept}
    missed = zip(others.values(), misfits(model, [*others.values()]), strict=True)
    more = _standing_out(
        {
            m.clique: (misfit - len(m.values)) / misfit_deviation(len(m.values), pure=pure)
            for m, misfit in missed
        }
    )
    kept += graphical.fitting(whole, kept, more, most_mb) if more else []
    return update(model, [*single, *(tables[clique] for clique in kept)]) if more else model


def _standing_out(excess: Mapping[Clique, float]) -> list[Clique]:
    """Return the cliques whose excess is above `largest_excess`, in falling order of the excess.
    `excess`: by how many standard deviations the misfit of each exceeds that of noise alone.
    """
    largest = largest_excess(len(excess))
    return sorted((c for c, z in excess.items() if z > largest), key=lambda c: -excess[c])
