"""Estimation of a graphical model from noisy marginals; ``estimate`` is the front door."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Literal, TypedDict, Unpack, get_args, overload

import numpy as np
import torch

from pgmkit.clique_index import maximal
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput, ModelTooLarge, NotCertified
from pgmkit.estimation.accelerated_mirror_descent import accelerated
from pgmkit.estimation.consistency import consistent_tables
from pgmkit.estimation.dual_averaging import dual_averaging
from pgmkit.estimation.lbfgs import lbfgs
from pgmkit.estimation.mirror_descent import NO_DESCENT, mirror_descent
from pgmkit.estimation.newton import is_small, is_tiny, newton
from pgmkit.estimation.problem import OUT_OF_TIME, Monitor, Point, Problem, Progress
from pgmkit.estimation.proximal import can_polish, polish, proximal
from pgmkit.estimation.start import Table, refit, scale, tree_potentials
from pgmkit.factor import Factor
from pgmkit.junction_tree import CELL_BYTES, junction_tree, model_cells
from pgmkit.losses import CallableLoss, Loss, MeasuredLoss, Penalty, Squared, make_loss
from pgmkit.marginal_oracle import MarginalOracle
from pgmkit.measurement import Measurement
from pgmkit.memory import available
from pgmkit.model import MEMORY_LIMIT, GraphicalModel
from pgmkit.regions.estimation import estimate_regions
from pgmkit.regions.model import RegionModel
from pgmkit.self_check import check
from pgmkit.structural_zeros import Zeros, check_zeros
from pgmkit.total import estimate_total

__all__ = ["METHODS", "Progress", "estimate", "working_bytes"]

logger = logging.getLogger(__name__)

Method = Callable[[Problem, Point, Monitor], Point]
METHODS: dict[str, Method] = {
    "mirror_descent": mirror_descent,
    "dual_averaging": dual_averaging,
    "accelerated": accelerated,
    "lbfgs": lbfgs,
    "newton": newton,
    "proximal": proximal,
}
_SOLVER_VECTORS = 14
"""Vectors over the cliques' cells that a method keeps: points, gradients, cuts, the best so far."""
_OBSERVED_BYTES = 40
"""Of a measured cell: its place, weight, value and residual."""
_START_BYTES = 100
"""Of a measured cell in the search for consistent tables, most of it for the constraints."""
_BASE_BYTES = 48 << 20
"""What the libraries take for themselves when they are first used."""
_PRECISION = 0.01
"""Precision of the consistency relaxation, as a share of the certified gap to reach."""
_NEAR = 25.0
"""Certified gap, in units of the one to reach, of an earlier model that needs no other start."""
_NO_TREE = (
    'Or pass inference="region", which needs no tree: it fits tables of the measured cliques that '
    "agree with each other"
)
Inference = Literal["exact", "region", "auto"]
ProgressReport = bool | Callable[[Progress], None] | None


class _Options(TypedDict, total=False):
    """What ``estimate`` takes by name, whatever it returns."""

    total: float | None
    zeros: Iterable[Zeros]
    loss: str | Penalty | CallableLoss
    method: str
    warm_start: GraphicalModel | None
    tolerance: float
    max_seconds: float | None
    device: str | torch.device | None
    dtype: torch.dtype
    memory_limit: int | None
    progress: ProgressReport


@overload
def estimate(
    domain: Domain,
    measurements: Iterable[Measurement],
    *,
    inference: Literal["exact"] = "exact",
    **options: Unpack[_Options],
) -> GraphicalModel: ...
@overload
def estimate(
    domain: Domain,
    measurements: Iterable[Measurement],
    *,
    inference: Literal["region"],
    **options: Unpack[_Options],
) -> RegionModel: ...
@overload
def estimate(
    domain: Domain,
    measurements: Iterable[Measurement],
    *,
    inference: Literal["auto"],
    **options: Unpack[_Options],
) -> GraphicalModel | RegionModel: ...
def estimate(
    domain: Domain,
    measurements: Iterable[Measurement],
    *,
    total: float | None = None,
    zeros: Iterable[Zeros] = (),
    loss: str | Penalty | CallableLoss = "squared",
    method: str = "auto",
    warm_start: GraphicalModel | None = None,
    tolerance: float = 0.1,
    max_seconds: float | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float64,
    memory_limit: int | None = None,
    progress: ProgressReport = None,
    inference: Inference = "exact",
) -> GraphicalModel | RegionModel:
    """The maximum-entropy model over the measured cliques that fits the measurements best.

    Minimises the loss of the marginals over all distributions with the given total. Of all
    minimisers the model is the one whose potentials live on the measured cliques (McKenna et al.,
    2019).

    Args:
        domain: the attributes.
        measurements: noisy linear views of marginals, in counts; those of the empty clique only
            inform the total. With a callable loss their cliques alone are used. Where no attribute
            is measured the model is uniform over what ``zeros`` leave possible.
        total: number of records; estimated from the measurements (``estimate_total``) when None.
        zeros: combinations of values that cannot occur (``pgmkit.Zeros``); the model gives them
            probability zero, and their cliques count as measured ones for its size.
        loss: ``"squared"`` (Gaussian noise, weights 1/variance), ``"absolute"`` (Laplace noise,
            weights 1/scale), ``"huber"``, a penalty of ``pgmkit.losses``, or a convex
            differentiable callable from ``{clique: tensor of counts}`` to a scalar tensor.
        method: ``"auto"`` takes ``"newton"`` where its steps are cheap, else ``"accelerated"``;
            where that stalls short of a certificate it goes on with ``"newton"`` if it can, or
            with some ``"proximal"`` steps. ``"newton"`` is for
            small problems (a joint of up to 4,096 cells) of any conditioning: nearly always
            certified. ``"accelerated"``, mirror descent with momentum from the best consistent
            tables in closed form (exact when the cliques are decomposable), is the fastest on
            large problems whose noise levels are alike; its certificates may stay loose.
            ``"proximal"`` (squared and Huber losses) is slower and certifies more.
            ``"mirror_descent"``, ``"dual_averaging"`` and ``"lbfgs"`` are the published methods,
            for comparison. Figures: docs/mathematics.md.
        warm_start: an earlier model on the same domain whose cliques lie within the measured
            ones; its potentials, scaled to the tables that changed most, are the start
            (``"accelerated"`` uses them if they are near the optimum already, or fit better than
            its own start). Where it has no probability, this one may have some: the zeros that hold
            are those given.
        tolerance: the certified gap to reach, in units of the loss's own standard deviation at
            the truth, sqrt(cells / 2) with Gaussian noise. The search also ends when the loss
            falls by less than a quarter of that over max(30, a fifth of all) iterations.
        max_seconds: time after which the best model so far is returned.
        device, dtype: where and in what precision to compute. float32 halves memory and resolves a
            loss to about six digits, so small tolerances end on the progress rule.
        memory_limit: bytes of working memory allowed; by default half of what the machine or the
            process's control group has. The tables of the model's junction tree, which sampling
            needs, may take 4 GiB, or this if it is more.
        progress: True for a bar on a terminal, or a callable that gets ``Progress`` records.
        inference: ``"exact"`` runs on a junction tree and refuses what no tree holds.
            ``"region"`` fits tables of the measured cliques that agree wherever they overlap, and
            returns a ``RegionModel``: a relaxation of any size, whose answers beyond the measured
            cliques come from records near the tables. ``"auto"`` is exact where that fits. A region
            model is computed on the CPU in float64, without ``method`` and ``warm_start``.

    Raises:
        InvalidInput: for a bad argument, naming it and the remedy; ``TotalUndetermined`` if no
            total is given and no measurement determines it; ``ModelTooLarge`` before
            allocating too much; ``NumericalFailure`` where a second computation contradicts
            the model (``pgmkit.self_check``).

    Warns:
        NotCertified: the search ended with a gap of more than one noise unit (``model.unit``).

    >>> domain = Domain({"a": 2, "b": 2})
    >>> y = [Measurement(("a",), [600.0, 402.0], 1.0), Measurement(("b",), [300.0, 700.0], 2.0)]
    >>> model = estimate(domain, y, total=1000)
    >>> model.marginal(("a",)).round(1), round(model.loss, 2)
    (array([599., 401.]), 1.0)
    """
    started = time.perf_counter()
    request = _Request(domain, list(measurements), total, loss, method, tolerance, inference)
    request.check(max_seconds)
    used = [m for m in request.measurements if m.clique]
    total = request.known_total()
    impossible = check_zeros(domain, zeros)
    # Where nothing is measured, one cell of no attribute stands for the uniform model.
    cliques = _maximal(domain, [m.clique for m in used] + [z.clique for z in impossible] + [()])
    limit = memory_limit if memory_limit is not None else available() // 2
    model_limit = max(MEMORY_LIMIT, memory_limit or 0)
    deadline = inf if max_seconds is None else started + max_seconds
    oracle = None
    if inference != "region":
        try:
            oracle = MarginalOracle(
                domain,
                cliques,
                device=device or "cpu",
                dtype=dtype,
                memory_limit=limit,
                zeros=impossible,
            )
            _check_memory(oracle, used, limit)
            _check_tree(domain, cliques, model_limit)
        except ModelTooLarge as refused:
            if inference == "exact":
                raise ModelTooLarge(f"{refused}. {_NO_TREE}") from None
            oracle = None
    if oracle is None:
        with _reporter(progress, max_seconds) as report:
            relaxed = estimate_regions(
                domain,
                used,
                total=total,
                zeros=impossible,
                loss=loss,
                tolerance=tolerance,
                deadline=deadline,
                memory_limit=limit,
                report=report,
            )
        _warn_of_poor_fit(relaxed)
        return relaxed
    _check_possible(oracle, impossible)
    with oracle.session(), _reporter(progress, max_seconds) as report:
        objective = make_loss(loss, oracle.layout, used, dtype, oracle.device)
        problem = Problem(oracle, objective, total, deadline)
        monitor = Monitor(
            problem, tolerance=tolerance, max_seconds=max_seconds, report=report, started=started
        )
        start = _start(problem, monitor, used, request, impossible, warm_start)
        point = (
            _minimise(problem, start, monitor, method) if used else _unmeasured(problem, monitor)
        )
        check(
            oracle,
            point.potentials,
            point.marginals,
            point.log_partition,
            total=total,
            started=started,
        )
    logger.info("estimated in %d iterations: %s", monitor.iterations, monitor.stopped)
    model = _fitted(problem, monitor, point, model_limit)
    _warn_of_poor_fit(model)
    return model


def _warn_of_poor_fit(model: GraphicalModel | RegionModel) -> None:
    if model.poor_fit:
        warnings.warn(
            f"the estimate is {model.fit}: its marginals may miss the measurements by more than "
            "their noise. Allow more time (max_seconds), try method='proximal', or look for "
            "measurements whose stddev or total cannot be right",
            NotCertified,
            stacklevel=3,
        )


def _fitted(problem: Problem, monitor: Monitor, point: Point, memory_limit: int) -> GraphicalModel:
    layout = problem.inference.layout
    tables = layout.split(problem.inference.masked(point.potentials))
    return GraphicalModel(
        domain=layout.domain,
        potentials=tuple(
            Factor(layout.domain.project(clique), table.clone())
            for clique, table in zip(layout.cliques, tables, strict=True)
            if clique
        ),
        total=problem.total,
        loss=monitor.best_loss,
        gap=monitor.gap,
        unit=problem.loss.unit,
        certified=monitor.certified,
        iterations=monitor.iterations,
        stopped=monitor.stopped,
        memory_limit=memory_limit,
    )


@dataclass(frozen=True)
class _Request:
    domain: Domain
    measurements: list[Measurement]
    total: float | None
    loss: str | Penalty | CallableLoss
    method: str
    tolerance: float
    inference: str

    def check(self, max_seconds: float | None) -> None:
        if not isinstance(self.domain, Domain):
            raise InvalidInput(
                f"domain must be a Domain, got {type(self.domain).__name__}; build one with "
                'Domain({"age": 10, "sex": 2})'
            )
        for m in self.measurements:
            if not isinstance(m, Measurement):
                raise InvalidInput(
                    f"measurements must be Measurement records, got {type(m).__name__}; wrap each "
                    "as Measurement(clique, values, stddev)"
                )
            m.check(self.domain)
        if self.method not in ("auto", *METHODS):
            known = ", ".join(("auto", *METHODS))
            raise InvalidInput(f"method {self.method!r} is unknown; known methods: {known}")
        if self.inference not in get_args(Inference):
            known = ", ".join(map(repr, get_args(Inference)))
            raise InvalidInput(f"inference must be one of {known}; got {self.inference!r}")
        if not 0 <= self.tolerance < inf:
            raise InvalidInput(f"tolerance ({self.tolerance}) must be a finite number, 0 or above")
        if max_seconds is not None and not max_seconds > 0:
            raise InvalidInput(f"max_seconds ({max_seconds}) must be above 0, or None for no limit")

        if callable(self.loss) and not any(m.clique for m in self.measurements):
            raise InvalidInput(
                "loss is a callable of the measured marginals, but measurements holds no "
                "measurement of an attribute; pass one for each clique that the loss uses, for "
                f"example Measurement({self.domain.attributes[:1]!r}, values, stddev)"
            )

    def known_total(self) -> float:
        if self.total is None:
            estimated = estimate_total(self.measurements).value
            if estimated <= 0:
                raise InvalidInput(
                    f"the measurements imply a total of {estimated:.6g}, which is not above 0: the "
                    "noise exceeds the data. Pass total= explicitly"
                )
            return estimated
        if isinstance(self.total, bool) or not isfinite(self.total) or self.total <= 0:
            raise InvalidInput(f"total ({self.total}) must be a finite number above 0")
        return float(self.total)


def _maximal(domain: Domain, cliques: Sequence[Clique]) -> list[Clique]:
    """The cliques that lie in no other, in the domain's attribute order."""
    position = {name: place for place, name in enumerate(domain)}
    kept = (cliques[place] for place in maximal(cliques))
    return [tuple(sorted(clique, key=position.__getitem__)) for clique in kept]


def _check_possible(inference: MarginalOracle, zeros: Sequence[Zeros]) -> None:
    nothing = torch.zeros(inference.layout.cells, dtype=inference.dtype, device=inference.device)
    if zeros and inference.maximum(nothing) == -inf:
        raise InvalidInput(
            f"the zeros over {', '.join(repr(each.clique) for each in zeros)} together leave no "
            "possible record; allow more combinations"
        )


def _check_memory(inference: MarginalOracle, used: Sequence[Measurement], limit: int) -> None:
    needed = _needed(inference, used)
    if needed > limit:
        cells = sum(inference.layout.domain.size(m.clique) for m in used)
        raise ModelTooLarge(
            f"estimation from {cells:,} measured cells in {inference.layout.cells:,} cells of "
            f"cliques needs {needed / 2**20:,.0f} MiB; the limit is {limit / 2**20:,.0f} MiB. "
            "Measure fewer or smaller cliques, use float32, or raise memory_limit"
        )


def _check_tree(domain: Domain, cliques: Sequence[Clique], limit: int) -> None:
    """Refuse cliques whose model could be estimated, but not sampled or asked.

    The quick size is an upper bound; only where it exceeds the limit a better tree is looked for.
    """
    if model_cells(domain, cliques) * CELL_BYTES <= limit:
        return
    tree = junction_tree(domain, cliques)
    if tree.bytes() > limit:
        raise ModelTooLarge(
            f"a model of these cliques cannot be sampled: its junction tree takes "
            f"{tree.bytes() / 2**20:,.0f} MiB, with a table over {tree.largest} of "
            f"{domain.size(tree.largest):,} cells; the limit is {limit / 2**20:,.0f} MiB. Measure "
            "fewer overlapping cliques, merge values of large attributes, or raise memory_limit"
        )


def working_bytes(domain: Domain, measurements: Sequence[Measurement]) -> int:
    """Memory that an estimate in float64 with the default method takes beyond its measurements.

    >>> y = Measurement(("a", "b"), [0.0] * 1_000_000, 1.0)
    >>> working_bytes(Domain({"a": 1000, "b": 1000}), [y]) > 100_000_000
    True
    """
    used = [m for m in measurements if m.clique]
    inference = MarginalOracle(domain, _maximal(domain, [m.clique for m in used]))
    return _needed(inference, used)


def _needed(inference: MarginalOracle, used: Sequence[Measurement]) -> int:
    solver = _SOLVER_VECTORS * inference.layout.cells * inference.dtype.itemsize
    cells = sum(inference.layout.domain.size(m.clique) for m in used)
    tabular = sum(len(m.values) for m in used if m.matrix is None)
    phases = (_START_BYTES * tabular, inference.pass_bytes + solver)
    return _BASE_BYTES + _OBSERVED_BYTES * cells + max(phases)


def _start(
    problem: Problem,
    monitor: Monitor,
    used: Sequence[Measurement],
    request: _Request,
    zeros: Sequence[Zeros],
    warm_start: GraphicalModel | None,
) -> Point:
    """The start with the lowest loss: the earlier model, the consistent tables, or uniform."""
    starts = []
    if warm_start is not None:
        starts.append(problem.point(_fold(problem, request.domain, warm_start)))
    tabular = [m for m in used if m.matrix is None]
    late = bool(starts) and time.perf_counter() >= monitor.deadline
    if tabular and not callable(request.loss) and not late:
        precision = _PRECISION * monitor.goal
        consistent = consistent_tables(
            request.domain, tabular, problem.total, precision, zeros, monitor.deadline
        )
        if len(tabular) == len(used) and request.loss in ("squared", Squared()):
            monitor.raise_bound(consistent.bound)
        if starts:
            starts[0] = _refitted(problem, monitor, starts[0], consistent.tables)
        enough = monitor.bound + _NEAR * monitor.goal
        near = bool(starts) and problem.loss.value(starts[0].marginals) <= enough
        if request.method in ("auto", "accelerated", "proximal") and not near:
            starts.append(_consistent_start(problem, monitor, request.domain, consistent.tables))
    if not starts:
        starts.append(problem.point(_flat(problem, [])))
    return min(starts, key=lambda point: problem.loss.value(point.marginals))


def _refitted(
    problem: Problem, monitor: Monitor, start: Point, tables: Mapping[Clique, Table]
) -> Point:
    cliques = problem.inference.layout.cliques
    if not all(clique in tables for clique in cliques):
        return start
    wanted = [tables[clique] for clique in cliques]
    return refit(problem, start, wanted, monitor.bound + monitor.goal)


def _consistent_start(
    problem: Problem, monitor: Monitor, domain: Domain, tables: Mapping[Clique, Table]
) -> Point:
    cliques = problem.inference.layout.cliques
    potentials = tree_potentials(domain, cliques, tables, monitor.deadline)
    start = problem.point(_flat(problem, potentials))
    enough = monitor.bound + monitor.goal
    certified = problem.loss.value(start.marginals) <= enough
    if certified or not all(clique in tables for clique in cliques):
        return start
    return scale(problem, start, [tables[clique] for clique in cliques], enough)


def _flat(problem: Problem, tables: Sequence[np.ndarray]) -> torch.Tensor:
    inference = problem.inference
    if not tables:
        return torch.zeros(inference.layout.cells, dtype=inference.dtype, device=inference.device)
    flat = np.concatenate([table.reshape(-1) for table in tables])
    return torch.as_tensor(flat, dtype=inference.dtype, device=inference.device)


def _fold(problem: Problem, domain: Domain, model: GraphicalModel) -> torch.Tensor:
    """The earlier model's potentials, each added to a clique that contains it."""
    if model.domain != domain:
        raise InvalidInput("warm_start is a model of another domain; pass one of the same domain")
    flat = _flat(problem, [])
    layout = problem.inference.layout
    tables = layout.split(flat)
    for factor in model.potentials:
        clique = factor.domain.attributes
        places = layout.index.containing(clique)
        if not places:
            raise InvalidInput(
                f"warm_start has the clique {clique}, which no measured clique contains; pass its "
                "measurements too, or start afresh"
            )
        held = domain.project(layout.cliques[places[0]])
        values = factor.values.to(device=flat.device, dtype=flat.dtype)
        values = values.masked_fill(values.isneginf(), 0.0)
        tables[places[0]].add_(Factor(factor.domain, values).expand(held).values)
    return flat


def _unmeasured(problem: Problem, monitor: Monitor) -> Point:
    """Nothing to fit: the flat potentials, whatever the start."""
    point = problem.point(_flat(problem, []))
    loss = problem.loss.value(point.marginals)
    monitor.raise_bound(loss)
    monitor.record(point, loss)
    return point


def _minimise(problem: Problem, start: Point, monitor: Monitor, name: str) -> Point:
    """The best point that the method of this name finds."""
    _check_method(problem, name)
    first = name if name != "auto" else "newton" if is_tiny(problem) else "accelerated"
    method, stages = METHODS[first], problem.loss.smooth_stages()
    if first == "newton" or stages == [problem.loss]:
        method(problem, start, monitor)
    else:
        _minimise_in_stages(problem, start, monitor, method, stages)
    if name == "auto" and first != "newton" and not monitor.certified and not problem.late():
        assert monitor.best is not None
        if is_small(problem):
            monitor.begin_stage()
            newton(problem, monitor.best, monitor)
        elif can_polish(problem):
            polish(problem, monitor.best, monitor)
    if monitor.stopped == NO_DESCENT and problem.late():
        monitor.stopped = OUT_OF_TIME
    assert monitor.best is not None
    return monitor.best


def _check_method(problem: Problem, name: str) -> None:
    """Methods that solve a dual problem need a measured loss; Newton's also a small problem."""
    if name in ("newton", "proximal") and not isinstance(problem.loss, MeasuredLoss):
        raise InvalidInput(
            f"method {name!r} needs a loss by name or a penalty of pgmkit.losses, got a callable; "
            'use "auto"'
        )
    if name == "newton" and not is_small(problem):
        raise InvalidInput(
            'method "newton" writes out the joint distribution of the measured attributes, which '
            'is too large here; use "auto" or "proximal"'
        )


def _minimise_in_stages(
    problem: Problem, point: Point, monitor: Monitor, method: Method, stages: Sequence[Loss]
) -> None:
    """Run the method on ever closer smooth stand-ins of the loss."""
    for stage in stages:
        inner = Monitor(
            replace(problem, loss=stage),
            tolerance=monitor.goal / stage.unit,
            max_seconds=monitor.deadline - time.perf_counter(),
            report=monitor.report,
            started=time.perf_counter(),
        )
        method(inner.problem, point, inner)
        assert inner.best is not None
        point = inner.best
        monitor.iterations += inner.iterations
        monitor.raise_bound(inner.bound)
        monitor.stopped = inner.stopped
        loss = problem.loss.value(point.marginals)
        if loss < monitor.best_loss:
            monitor.best, monitor.best_loss = point, loss


class _reporter:
    """Context manager that turns the ``progress`` argument into a callback."""

    def __init__(self, progress: ProgressReport, max_seconds: float | None) -> None:
        self.progress, self.max_seconds = progress, max_seconds

    def __enter__(self) -> Callable[[Progress], None] | None:
        self.bar = None
        if self.progress is True:
            from tqdm import tqdm

            self.bar = tqdm(desc="estimate", unit="it", disable=None)

            def show(record: Progress) -> None:
                assert self.bar is not None
                self.bar.update(1)
                if record.iteration % 20 == 1:
                    self.bar.set_postfix(loss=f"{record.best_loss:.6g}", gap=f"{record.gap:.3g}")

            return show
        return self.progress if callable(self.progress) else None

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()
