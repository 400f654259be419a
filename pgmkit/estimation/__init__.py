"""Estimation of a graphical model from noisy marginals by ``estimate``."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from math import inf, isfinite
from typing import Literal, TypedDict, Unpack, get_args, overload

import torch

from pgmkit.domain import Domain
from pgmkit.errors import Contradictory, InvalidInput, ModelTooLarge, NotCertified, warn
from pgmkit.estimation.loss_checks import check_point
from pgmkit.estimation.methods import METHODS, minimise
from pgmkit.estimation.model_size import model_limit, search_limit, tree_oracle, working_bytes
from pgmkit.estimation.problem import Monitor, Point, Problem
from pgmkit.estimation.request import Request
from pgmkit.estimation.start import best_start, uniform
from pgmkit.factor import Factor
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.least_squares.goodness import contradiction
from pgmkit.losses import CallableLoss, Penalty, Squared, known_loss, make_loss, statistics
from pgmkit.measurement import Measurement
from pgmkit.model import GraphicalModel
from pgmkit.regions.model import RegionModel
from pgmkit.runtime.arguments import listed, one_of, shown
from pgmkit.runtime.devices import gpu_memory
from pgmkit.runtime.progress import Progress, ProgressReport, reporting
from pgmkit.structural_zeros import Zeros, check_zeros

__all__ = ["METHODS", "Progress", "estimate", "working_bytes"]

logger = logging.getLogger(__name__)

_NO_TREE = (
    'Or pass inference="region", which needs no tree: it fits tables of the measured cliques that '
    "agree with each other"
)
Inference = Literal["exact", "region", "auto"]


class Options(TypedDict, total=False):
    """The keyword arguments of ``estimate`` that ``estimate_many`` takes too and passes on."""

    zeros: Iterable[Zeros]
    loss: str | Penalty | CallableLoss
    method: str
    warm_start: GraphicalModel | None
    tolerance: float
    device: str | torch.device | None
    dtype: torch.dtype
    memory_limit: int | None


class _Options(Options, total=False):
    """The keyword arguments of ``estimate`` that do not depend on the kind of model returned."""

    total: float | None
    max_seconds: float | None
    shrink: bool
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
    shrink: bool = True,
    progress: ProgressReport = None,
    inference: Inference = "exact",
) -> GraphicalModel | RegionModel:
    """Return the maximum-entropy model over the measured cliques that fits the measurements best.

    It minimises the loss of the marginals over all distributions with the given total. Among all
    minimisers it is the one whose potentials are over the measured cliques (McKenna et al., 2019).

    Args:
        domain: the attributes.
        measurements: noisy linear views of marginals, in counts; those of the empty clique only
            inform the total. With a callable loss the values inform only the total. If no attribute
            is measured, the model is uniform over the cells that ``zeros`` allow.
        total: the number of records; if None it is estimated from the measurements
            (``estimate_total``).
        zeros: combinations of values that cannot occur (``pgmkit.Zeros``); the model gives them
            probability zero. For the model's size their cliques count as measured.
        loss: ``"squared"`` (Gaussian noise, weights 1/variance), ``"absolute"`` (Laplace noise,
            weights 1/scale), ``"huber"``, a penalty of ``pgmkit.losses``, or a convex
            differentiable callable from ``{clique: tensor of counts}`` to a scalar tensor.
        method: ``"auto"`` takes ``"newton"`` if a step takes at most a tenth of the multiplications
            that ``"newton"`` allows, and else ``"accelerated"``. If that ends without a
            certificate, small problems continue with ``"newton"``, and others with a squared or
            Huber loss with ``"proximal"`` steps, until a hundred of their passes had to be computed
            in log space; on the CPU these steps begin after thirty iterations at the latest.

            ``"newton"`` is for small problems of any conditioning, and nearly always certifies. It
            refuses joint distributions of more than 4,096 cells, and steps of more than 2e8
            multiplications, of which k cells and n measured values (those of one clique combined)
            take min(n, k)^2 (n + k).

            ``"accelerated"``, mirror descent with momentum from the best consistent tables in
            closed form (exact if the cliques are decomposable), is the fastest on large problems
            with similar noise levels; its certificates may stay loose. ``"proximal"`` (no callable
            loss) is slower and certifies more often. ``"mirror_descent"``, ``"dual_averaging"`` and
            ``"lbfgs"`` are the published methods, for comparison. Figures: docs/mathematics.md.
        warm_start: an earlier model on the same domain whose cliques lie within the measured ones.
            Its potentials are the start; ``"auto"``, ``"accelerated"`` and ``"proximal"`` use them
            only if their own start does not fit better, which they do not look for if the earlier
            model is certified; ``"newton"`` starts from the uniform distribution in any case.
            Records that are impossible in the earlier model are possible in the new one, unless
            ``zeros`` rule them out.
        tolerance: the certified gap to reach, in units of the loss's own standard deviation at the
            truth, sqrt(n / 2) for n measured values with Gaussian noise. The search also ends when
            the loss falls by at most a quarter of this gap over the last 30 iterations, or over the
            last fifth of all iterations if these are more (150 in place of 30 for ``"newton"``; for
            a region model, a tenth of the gap over 30 steps).
        max_seconds: the time after which the best model so far is returned.
        device: where to compute: "cpu", a CUDA GPU ("cuda", "cuda:1"), or "auto": a GPU if there is
            one and a pass is large enough to gain (``pgmkit.runtime.devices.WORTH_A_GPU``).
        dtype: the type of the model's tables. The search is in float64 in any case, since in
            float32 the rounding of a large count is not small compared with its noise.
        memory_limit: the bytes of working memory allowed; by default half of the memory of the
            machine or of the process's control group, or half of a GPU's free memory. The tables of
            the model's junction tree, which sampling needs, may take 4 GiB, or this limit if it is
            larger.
        shrink: for a region model with the squared loss, whether tables that were measured whole
            are shrunk towards independence if an unbiased estimate says that this brings them
            nearer to the truth (``pgmkit.regions.shrinkage``); they then fit the measurements less
            closely. Exact models are not shrunk.
        progress: True for a progress bar on a terminal, or a callable that gets ``Progress``
            records.
        inference: ``"exact"`` runs on a junction tree, and raises ModelTooLarge if it would be too
            large. ``"region"`` fits tables of the measured cliques that agree wherever they
            overlap, and returns a ``RegionModel``: a relaxation for any size, whose answers beyond
            the measured cliques come from records near the tables. ``"auto"`` is exact if the
            junction tree fits, and otherwise ``"region"``. A region model is computed on the CPU in
            float64, by a method of its own, for a loss that is not a callable. ``"region"`` refuses
            a ``method`` other than ``"auto"``, a ``warm_start`` and a GPU as the ``device``, and
            does not use ``dtype``; ``"auto"`` uses none of the four for a region model.

    Raises:
        InvalidInput: for a wrong argument; the message names it and the remedy.
        TotalUndetermined: if no total is given and no measurement determines it.
        ModelTooLarge: before too much memory would be allocated.
        NumericalFailure: if a second computation contradicts the model
            (``pgmkit.inference.self_check``).

    Warns:
        NotCertified: the search ended without a certificate, with a gap of more than one noise unit
            (``model.unit``).
        Contradictory: with the squared loss, the measurements are farther from every distribution
            than noise of their stddev would put them from the true one (``model.fit``). A false
            alarm occurs in less than one of a million estimates, with Laplace noise too.
        UserWarning: no total is given, and a measured table has cells that sum to 1 but a stddev of
            1 or more, so that its cells must be shares and its stddev in counts.

    >>> domain = Domain({"a": 2, "b": 2})
    >>> y = [Measurement(("a",), [600.0, 402.0], 1.0), Measurement(("b",), [300.0, 700.0], 2.0)]
    >>> model = estimate(domain, y, total=1000)
    >>> model.marginal(("a",)).round(1), round(model.loss, 2)
    (array([599., 401.]), 1.0)
    """
    started = time.perf_counter()
    if not isinstance(shrink, bool):
        raise InvalidInput(f"shrink must be True or False, got {shrink!r}")
    _check_inference(inference, method=method, warm_start=warm_start, device=device)
    everything = listed(measurements, "measurements", "Measurement records")
    request = Request(domain, everything, total, loss, method, tolerance)
    request.check(max_seconds, memory_limit, dtype)
    total, impossible = request.known_total(), check_zeros(domain, zeros)
    deadline = inf if max_seconds is None else started + max_seconds
    known = statistics(domain, request.used, loss, deadline)
    used, constant = known.measurements, float(known.constant)
    # Statistics combine the measurements of a clique; the test of fit needs those that were given.
    given = tuple(everything) if known_loss(loss) == Squared() else ()
    oracle = None
    try:
        if inference != "region":
            oracle = tree_oracle(domain, used, impossible, device, memory_limit)
    except ModelTooLarge as refused:
        if inference == "exact":
            raise ModelTooLarge(f"{refused}. {_NO_TREE}") from None
    if oracle is None:
        # The import is here because most estimates need no region model.
        from pgmkit.regions.estimation import estimate_regions, local_polytope

        with reporting(progress) as report:
            relaxed = estimate_regions(
                local_polytope(domain, used, total, impossible),
                known,
                loss,
                tolerance=tolerance,
                deadline=deadline,
                memory_limit=search_limit(memory_limit, torch.device("cpu")),
                shrink=shrink,
                report=report,
            )
        relaxed = replace(relaxed, measurements=given)
        _warn(relaxed)
        return relaxed
    with gpu_memory(oracle.device), oracle.session(), reporting(progress) as report:
        objective = make_loss(loss, oracle.layout, used, oracle.dtype, oracle.device, known.count)
        problem = Problem(oracle, objective, total, deadline, constant)
        monitor = Monitor(problem, tolerance=tolerance, report=report, started=started)
        start = best_start(problem, monitor, request, known, impossible, warm_start)
        _search(problem, monitor, request, start)
    logger.info("estimated in %d iterations: %s", monitor.iterations, monitor.stopped)
    model = fitted(monitor, model_limit(memory_limit), dtype, given)
    _warn(model)
    return model


def _search(problem: Problem, monitor: Monitor, request: Request, start: Point) -> None:
    """Search from ``start`` by the requested method; the best point is in ``monitor``.

    Raises NumericalFailure if a second computation of the point's marginals or loss contradicts it,
    and InvalidInput for a callable loss that is not finite at the start of the search.
    """
    if callable(request.loss) and not isfinite(value := problem.loss.value(start.marginals)):
        raise InvalidInput(
            "loss must be a callable that returns a finite number for the tables from which the "
            f"search starts, got {value}; avoid logarithms, roots and quotients of numbers that "
            "may be negative or zero"
        )
    if request.used:
        point = minimise(problem, start, monitor, request.method)
        if monitor.bound == -inf:  # the search ended before it had a bound on a callable loss
            monitor.certify(point)
    else:  # without measurements the uniform point is certified
        point = problem.point(uniform(problem.inference))
        lowest = problem.loss.value(point.marginals)
        monitor.raise_bound(lowest)
        monitor.record(point, lowest)
    stated, oracle = monitor.best_loss + problem.constant, problem.inference
    check_point(oracle, point, problem.total, request.loss, request.used, stated, monitor.started)


def _warn(model: GraphicalModel | RegionModel) -> None:
    apart = contradiction(model, model.measurements)
    if apart:
        warn(apart, Contradictory, stacklevel=3)
    if model.poor_fit:
        other = "try method='proximal', " if isinstance(model, GraphicalModel) else ""
        warn(
            f"the estimate is {model.certificate}: its marginals may miss the measurements by "
            f"more than their noise. Allow more time (max_seconds) or a smaller tolerance, {other}"
            "or look for measurements whose stddev or total cannot be right",
            NotCertified,
            stacklevel=3,
        )


def factors(
    inference: MarginalOracle, potentials: torch.Tensor, dtype: torch.dtype = torch.float64
) -> tuple[Factor, ...]:
    """Return a factor of type ``dtype`` for each clique of the oracle except the empty one, from
    flat ``potentials`` over all its cliques, with minus infinity at structural zeros.
    """
    layout = inference.layout
    tables = layout.split(inference.masked(potentials).to(dtype, copy=True))
    held = zip(layout.cliques, tables, strict=True)
    return tuple(Factor(layout.domain.project(c), table) for c, table in held if c)


def fitted(
    monitor: Monitor, limit: int, dtype: torch.dtype, measurements: tuple[Measurement, ...] = ()
) -> GraphicalModel:
    """Return the model with the potentials of the best point of ``monitor``, in the format
    ``dtype``, and with the figures of the search (its loss, gap, iterations). ``limit`` is the
    model's own memory limit, in bytes, and ``measurements`` are those that its fit is tested with.
    """
    problem, best = monitor.problem, monitor.best
    assert best is not None
    return GraphicalModel(
        domain=problem.inference.layout.domain,
        potentials=factors(problem.inference, best.potentials, dtype),
        total=problem.total,
        loss=monitor.best_loss + problem.constant,
        gap=monitor.gap,
        unit=problem.loss.unit,
        certified=monitor.certified,
        iterations=monitor.iterations,
        stopped=monitor.stopped,
        memory_limit=limit,
        measurements=measurements,
    )


def _check_inference(inference: str, **tree_only: object) -> None:
    """Raise InvalidInput for an unknown name of inference and, if a region model is requested, for
    arguments (``tree_only``) that have a meaning only for a junction tree.
    """
    one_of(inference, get_args(Inference), "inference")
    if inference != "region":
        return
    cpu = None, "cpu", "auto", torch.device("cpu")
    usual = {"method": ("auto",), "warm_start": (None,), "device": cpu}
    for name, value in tree_only.items():
        if not isinstance(value, str | torch.device | None) or value not in usual[name]:
            raise InvalidInput(
                f'{name} ({shown(value)}) has no meaning with inference="region", which has one '
                "method of its own, on the CPU; leave it out"
            )
