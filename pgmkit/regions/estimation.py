"""``estimate(..., inference="region")``: from checked measurements to a ``RegionModel``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf

from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput, ModelTooLarge
from pgmkit.inference.layout import Layout
from pgmkit.least_squares.sufficient_statistics import Statistics
from pgmkit.losses import CallableLoss, MeasuredLoss, Penalty, Squared, make_loss
from pgmkit.measurement import Measurement
from pgmkit.regions.deadline import OutOfTime
from pgmkit.regions.model import RegionModel
from pgmkit.regions.parts import Parts, needed_bytes, parts_of
from pgmkit.regions.polytope import LocalPolytope
from pgmkit.regions.relaxation import hessian_bound, solve
from pgmkit.regions.shrinkage import shrunk
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.progress import CERTIFIED, Progress
from pgmkit.runtime.sizes import CELL_BYTES
from pgmkit.structural_zeros import Zeros

_REGION_BYTES = 64 * CELL_BYTES
"""The bytes needed for each cell of a region: its entries in the constraints and their transpose,
weights, and vectors.
"""


def estimate_regions(
    domain: Domain,
    known: Statistics,
    *,
    total: float,
    zeros: Sequence[Zeros] = (),
    loss: str | Penalty | CallableLoss = "squared",
    tolerance: float = 0.1,
    deadline: float = inf,
    memory_limit: int,
    shrink: bool = True,
    report: Callable[[Progress], None] | None = None,
) -> RegionModel:
    """Fit tables over the measured cliques, which agree locally, to the measurements in ``known``.
    The other arguments are those of ``estimate``, already checked.

    If ``shrink``, a certified least-squares fit of whole tables is replaced by shrunk tables
    (``pgmkit.regions.shrinkage``) if their estimated risk is clearly lower. If no measured clique
    contains the attributes of a structural zero, a table over them is fitted too, but not kept,
    since no measurement distinguishes one such table from another.

    Raises ``InvalidInput`` if no attribute is measured and for a callable loss, and
    ``ModelTooLarge`` if the tables do not fit into memory.
    """
    measurements, constant = known.measurements, float(known.constant)
    regions = _regions(domain, measurements, zeros)
    layout = Layout(domain, regions)
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
    polytope = LocalPolytope(domain, regions, total, tuple(zeros))
    goal = tolerance * objective.unit
    # The interior point method finds the best fit among tables that agree locally, and a lower
    # bound on its loss.
    inner = _interior(polytope, layout, measurements, objective, left, deadline)
    variances = dict(zip(regions, _variances(layout, squares, inner, total, deadline), strict=True))
    found = solve(
        polytope,
        objective,
        squares,
        constant,
        parts=inner,
        goal=goal,
        deadline=deadline,
        report=report,
    )
    measured = {frozenset(m.clique) for m in measurements}
    kept = [region for region in regions if frozenset(region) in measured]
    tables, loss_there, gap = found.tables, found.loss, max(0.0, found.loss - found.bound)
    certified, nearer = found.stopped == CERTIFIED, None
    # Tables that are shrunk towards independence replace the fit if their estimated risk is lower.
    if shrink and certified and _whole_tables(measurements, objective):
        nearer = shrunk(polytope, objective, squares, found.tables, deadline)
    if nearer is not None:
        tables, gap = nearer.tables, nearer.gap
        loss_there = objective.value(torch.from_numpy(tables))
    return RegionModel(
        domain=domain,
        tables=_split(layout, tables, kept),
        variances={region: variances[region] for region in kept},
        zeros=tuple(zeros),
        total=total,
        loss=loss_there + constant,
        gap=gap,
        bound=found.bound + constant,
        weight=nearer.weight if nearer else 0.0,
        penalty=nearer.penalty if nearer else 0.0,
        unit=objective.unit,
        certified=certified,
        iterations=found.steps,
        stopped=found.stopped,
        measurements=tuple(measurements) if loss in ("squared", Squared()) else (),
    )


def _tables_bytes(layout: Layout, limit: int) -> int:
    """Return the bytes that the tables need. Raises ModelTooLarge if they exceed the limit."""
    needed = _REGION_BYTES * layout.cells
    if needed > limit:
        raise ModelTooLarge(
            f"tables over {len(layout.cliques)} regions of {layout.cells:,} cells need "
            f"{needed / 2**20:,.0f} MiB; the limit is {limit / 2**20:,.0f} MiB. Measure fewer or "
            "smaller cliques, or raise memory_limit"
        )
    return needed


def _split(layout: Layout, cells: Array, regions: Sequence[Clique]) -> dict[Clique, Array]:
    """Return the tables of some regions, from the cells of all tables one after the other."""
    places = zip(layout.cliques, layout.slices, layout.shapes, strict=True)
    tables = {clique: cells[part].reshape(shape) for clique, part, shape in places}
    return {region: tables[region] for region in regions}


def _variances(
    layout: Layout, squares: Array, inner: Parts | None, total: float, deadline: float
) -> list[float]:
    """Return the mean variance of the cells of each table, from the curvature of its measurements
    and a variance of ``total`` squared before them.

    Without ``inner``, and for tables not reached by the ``deadline``, it is one over the mean of
    ``squares``, a diagonal upper bound of the curvature; it is infinite for an unmeasured table.
    """
    means = [float(squares[part].mean()) for part in layout.slices]
    variances = [1 / mean if mean > 0 else inf for mean in means]
    for place, region in enumerate(inner.regions if inner is not None else ()):
        if time.perf_counter() >= deadline:
            break
        variances[place] = region.variance(total**2)
    return variances


def _interior(
    polytope: LocalPolytope,
    layout: Layout,
    measurements: Sequence[Measurement],
    objective: MeasuredLoss,
    memory: int,
    deadline: float,
) -> Parts | None:
    """Return the parts for an interior-point search, or None if it is not needed, since the
    solution is a projection, or does not fit into the memory or time.
    """
    if _whole_tables(measurements, objective):
        return None
    if needed_bytes(layout, measurements) > memory:
        return None
    try:
        return parts_of(polytope, layout, measurements, deadline)
    except OutOfTime:
        return None


def _whole_tables(measurements: Sequence[Measurement], objective: MeasuredLoss) -> bool:
    """Return True if the loss is a sum of squares over cells, so that the best fit is a
    projection.
    """
    return all(m.matrix is None for m in measurements) and isinstance(objective.penalty, Squared)


def _regions(
    domain: Domain, measurements: Sequence[Measurement], zeros: Sequence[Zeros]
) -> tuple[Clique, ...]:
    if not measurements:
        raise InvalidInput(
            'inference="region" needs a measurement of at least one attribute, got none; '
            'inference="exact" gives the uniform model'
        )
    found = dict.fromkeys(frozenset(m.clique) for m in measurements)
    held = list(found)
    extra = (frozenset(each.clique) for each in zeros)
    found.update((clique, None) for clique in extra if not any(clique <= other for other in held))
    return tuple(map(domain.ordered, found))
