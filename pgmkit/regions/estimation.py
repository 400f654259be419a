"""``estimate(..., inference="region")``: from checked measurements to a ``RegionModel``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf

from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput, ModelTooLarge, NumericalFailure
from pgmkit.inference.layout import Layout
from pgmkit.least_squares.sufficient_statistics import Statistics
from pgmkit.losses import LossLike, MeasuredLoss, Squared, make_loss
from pgmkit.measurement import Measurement
from pgmkit.regions.model import RegionModel
from pgmkit.regions.parts import Parts, needed_bytes, parts_of
from pgmkit.regions.polytope import LocalPolytope
from pgmkit.regions.relaxation import Search, hessian_bound
from pgmkit.regions.shrinkage import Shrunk, shrunk
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.memory import counted
from pgmkit.runtime.progress import CERTIFIED, OutOfTime, Progress
from pgmkit.runtime.sizes import CELL_BYTES
from pgmkit.structural_zeros import Zeros

_REGION_BYTES = 64 * CELL_BYTES
"""The bytes needed for each cell of a region: its entries in the constraints and their transpose,
weights, and vectors.
"""


def estimate_regions(
    polytope: LocalPolytope,
    known: Statistics,
    loss: LossLike,
    *,
    tolerance: float,
    deadline: float,
    memory_limit: int,
    shrink: bool,
    report: Callable[[Progress], None] | None,
) -> RegionModel:
    """Return the model whose tables in the ``local_polytope`` fit the measurements in ``known``
    best. The search ends at ``deadline``, a time of ``time.perf_counter``, and calls ``report``, if
    it is not None, after each step; the other arguments are those of ``estimate``, already checked.

    If ``shrink``, a certified least-squares fit of whole tables that projections have found is
    replaced by shrunk tables (``pgmkit.regions.shrinkage``) if their estimated risk is clearly
    lower. Tables over the attributes of structural zeros that no measured clique contains are
    fitted too, but not kept, since no measurement distinguishes one such table from another.

    Raises ``InvalidInput`` for a callable loss and for zeros that leave no record possible,
    ``ModelTooLarge`` if the tables do not fit into memory, and ``NumericalFailure`` if no agreeing
    tables are found.
    """
    measurements, constant = known.measurements, float(known.constant)
    regions, total = polytope.cliques, polytope.total
    layout = Layout(polytope.domain, regions)
    left = memory_limit - _tables_bytes(layout, memory_limit)
    objective = make_loss(
        loss, layout, measurements, torch.float64, torch.device("cpu"), known.count
    )
    if not isinstance(objective, MeasuredLoss):
        raise InvalidInput(
            'inference="region" needs a loss by name or a penalty of pgmkit.losses, got a '
            'callable; use inference="exact"'
        )
    squares = hessian_bound(layout, measurements)
    # If the loss is a sum of squares over cells, the best fit is a projection. For other losses,
    # and if the projection fails since stddevs differ too much, the interior point method finds the
    # best fit among tables that agree locally, and a lower bound on its loss. If its matrices do
    # not fit into the memory, the error of a failed projection is raised, and projected gradients
    # minimise other losses. They also do if the time ends before the matrices are made.
    whole = all(m.matrix is None for m in measurements) and isinstance(objective.penalty, Squared)
    found = Search(polytope, objective, constant, tolerance * objective.unit, deadline, report)
    fits, inner = needed_bytes(layout, measurements) <= left, None
    try:
        if whole:
            found.run(squares, None)
    except NumericalFailure:
        if not fits:
            raise
    if not found.stopped and fits:
        with suppress(OutOfTime):
            inner = parts_of(polytope, layout, measurements, deadline)
    variances = dict(zip(regions, _variances(layout, squares, inner, total, deadline), strict=True))
    if not found.stopped:
        found.run(squares, inner)
    chosen = Shrunk(found.tables, 0.0, 0.0, max(0.0, found.loss - found.bound))
    certified = found.stopped == CERTIFIED
    if shrink and certified and whole and inner is None:
        chosen = shrunk(polytope, objective, squares, found.tables, deadline) or chosen
    cells = torch.from_numpy(chosen.tables)
    tables = dict(zip(regions, layout.split(cells), strict=True))
    measured = {frozenset(m.clique) for m in measurements}
    kept = [region for region in regions if frozenset(region) in measured]
    return RegionModel(
        domain=polytope.domain,
        tables={region: tables[region].numpy() for region in kept},
        variances={region: variances[region] for region in kept},
        zeros=polytope.zeros,
        total=total,
        loss=objective.value(cells) + constant,
        gap=chosen.gap,
        bound=found.bound + constant,
        weight=chosen.weight,
        penalty=chosen.penalty,
        unit=objective.unit,
        certified=certified,
        iterations=found.steps,
        stopped=found.stopped,
    )


def local_polytope(
    domain: Domain, measurements: Sequence[Measurement], total: float, zeros: Sequence[Zeros]
) -> LocalPolytope:
    """Return the polytope of the tables over the measured cliques, and over those of the zeros that
    no measured clique contains. Raises ``InvalidInput`` if no attribute is measured.
    """
    if not measurements:
        raise InvalidInput(
            'inference="region" needs a measurement of at least one attribute, got none; '
            'inference="exact" gives the uniform model'
        )
    held = dict.fromkeys(frozenset(m.clique) for m in measurements)
    ruled = [frozenset(each.clique) for each in zeros]
    extra = [clique for clique in ruled if not any(clique <= other for other in held)]
    cliques = tuple(map(domain.ordered, dict.fromkeys([*held, *extra])))
    return LocalPolytope(domain, cliques, total, tuple(zeros))


def _tables_bytes(layout: Layout, limit: int) -> int:
    """Return the bytes that the tables need. Raises ModelTooLarge if they exceed the limit."""
    needed = _REGION_BYTES * layout.cells
    if needed > limit:
        raise ModelTooLarge(
            f"tables over {len(layout.cliques)} regions of {counted(layout.cells)} cells need "
            f"{counted(needed)} bytes; the limit is {limit:,} bytes. Measure fewer or smaller "
            "cliques, or raise memory_limit"
        )
    return needed


def _variances(
    layout: Layout, squares: Array, inner: Parts | None, total: float, deadline: float
) -> list[float]:
    """Return, for each table, the mean posterior variance of its possible cells given its
    measurements, in squared counts, if every cell has the prior variance ``total`` squared.

    ``inner`` has the regions of the interior-point search. If it is None, and for tables that are
    not reached by the ``deadline``, the number is one over the mean of ``squares``
    (`hessian_bound`) over the table's cells instead, which is infinite for an unmeasured table.
    """
    means = [float(squares[part].mean()) for part in layout.slices]
    variances = [1 / mean if mean > 0 else inf for mean in means]
    for place, region in enumerate(inner[0] if inner is not None else ()):
        if time.perf_counter() >= deadline:
            break
        variances[place] = region.variance(total**2)
    return variances
