"""Graphical models as what a mechanism updates: re-estimation, and models small enough for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mechanisms.workload import Workload
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput, NotCertified
from pgmkit.measurement import Measurement

if TYPE_CHECKING:
    from pgmkit.junction_tree import JunctionTree
    from pgmkit.model import GraphicalModel

__all__ = ["affordable", "check_fits_workload", "estimator", "model_megabytes", "tree_megabytes"]

_WORTH_A_SEARCH = 4.0
"""Factor by which a better elimination order may shrink a model; beyond it none is looked for."""
_SEARCH_SECONDS = 0.02


def estimator(
    domain: Domain, total: int | None, tolerance: float = 0.1
) -> Callable[[GraphicalModel | None, Sequence[Measurement]], GraphicalModel]:
    """The update step: re-estimate from all measurements, warm. Its scope has no private data.

    An unknown total is estimated too, and is at least 1, as data sets have rows: with a budget too
    small for the data the estimate can be anything.
    """
    from pgmkit.estimation import estimate
    from pgmkit.total import estimate_total

    def update(model: GraphicalModel | None, measurements: Sequence[Measurement]) -> GraphicalModel:
        known = max(1.0, estimate_total(measurements, domain).value) if total is None else total
        with warnings.catch_warnings():
            # Of many models only the last one is released, and the release says how it fits.
            warnings.simplefilter("ignore", NotCertified)
            return estimate(
                domain, measurements, total=known, warm_start=model, tolerance=tolerance
            )

    return update


def affordable(
    domain: Domain,
    candidates: Sequence[Clique],
    measured: Sequence[Clique],
    limit_mb: float,
    fallback_mb: float,
) -> list[Clique]:
    """The candidates that keep the junction tree of all measured cliques within the limit.

    Where none does, those that keep it within `fallback_mb`. One of them always fits once a
    candidate has been measured: that candidate again.
    """
    for limit in (limit_mb, fallback_mb):
        fitting = [c for c in candidates if _fits(domain, [*measured, c], limit)]
        if fitting:
            return fitting
    return []


def _fits(domain: Domain, cliques: Sequence[Clique], limit_mb: float) -> bool:
    """Whether the junction tree fits; a quick size first, a search for a better tree if close."""
    from pgmkit.junction_tree import junction_tree

    size = model_megabytes(domain, cliques)
    if limit_mb < size <= _WORTH_A_SEARCH * limit_mb:
        size = tree_megabytes(junction_tree(domain, cliques, seconds=_SEARCH_SECONDS))
    return size <= limit_mb


def model_megabytes(domain: Domain, cliques: Sequence[Clique]) -> float:
    """MB (2^20 bytes) of a junction tree's float64 cells, by a quick elimination order."""
    from pgmkit.junction_tree import CELL_BYTES, model_cells

    return model_cells(domain, cliques) * CELL_BYTES / 2**20


def tree_megabytes(tree: JunctionTree) -> float:
    """MB (2^20 bytes) of a junction tree's float64 cells."""
    return tree.bytes() / 2**20


def check_fits_workload(domain: Domain, workload: Workload, limit: float) -> None:
    """Raise InvalidInput for a workload of which nothing fits.

    Also for a limit above what estimation accepts: it would refuse after the budget is spent.
    """
    from pgmkit.model import MEMORY_LIMIT

    most = MEMORY_LIMIT / 2**20
    if limit > most:
        raise InvalidInput(
            f"model_mb = {limit:g} is more than a model that can be sampled may take "
            f"({most:g} MB): lower model_mb"
        )
    if not affordable(domain, workload.cliques, [], limit, limit):
        smallest = min(model_megabytes(domain, [clique]) for clique in workload.cliques)
        raise InvalidInput(
            f"no workload clique fits in model_mb = {limit:g}; the smallest needs "
            f"{smallest:.3g} MB: raise model_mb or use smaller cliques"
        )
