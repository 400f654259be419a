"""Estimation of many models of one structure: ``estimate_many``."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import inf, prod
from typing import Unpack

import numpy as np
import torch

from pgmkit.domain import Domain
from pgmkit.errors import Contradictory, InvalidInput, NotCertified, check_known, without
from pgmkit.estimation import Options, estimate, model_size
from pgmkit.estimation.batches.estimate import BatchedEstimate
from pgmkit.estimation.batches.oracle import gains, gains_by_threads, gains_when_coarse, table_cells
from pgmkit.estimation.batches.problem import naming_set, same_structure, stacked
from pgmkit.estimation.batches.proximal import affordable
from pgmkit.estimation.loss_checks import check_loss
from pgmkit.estimation.request import Request, positive
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.inference.self_check import LEAST, SHARE
from pgmkit.least_squares.goodness import contradiction
from pgmkit.least_squares.sufficient_statistics import combined
from pgmkit.linear.matrix import is_sparse
from pgmkit.losses import Squared, known_loss, statistics
from pgmkit.measurement import Measurement, check_scale, checked_measurements
from pgmkit.model import GraphicalModel
from pgmkit.runtime.arguments import check_seconds, float_array, listed
from pgmkit.runtime.progress import Replication, reporter
from pgmkit.runtime.sizes import BLOCK_CELLS, TABLE_CELLS
from pgmkit.runtime.threads import cores, in_threads, one_thread, pass_settings
from pgmkit.structural_zeros import check_zeros
from pgmkit.total import estimate_totals

_BATCH_VECTORS = 3 * model_size.SOLVER_VECTORS
"""The number of vectors over the cliques' cells that a batch has in memory for each set."""


def estimate_many(
    domain: Domain,
    measurement_sets: Iterable[Iterable[Measurement]],
    *,
    total: float | Sequence[float] | None = None,
    max_seconds: float | None = None,
    progress: bool | Callable[[Replication], None] | None = None,
    **options: Unpack[Options],
) -> list[GraphicalModel]:
    """Return a list with a model for each set of measurements, as ``estimate`` returns it; an empty
    list if there are no sets. The sets may differ only in their measured values.

    The next three paragraphs say which models are estimated together, which decides the time and,
    with a ``warm_start``, the precision.

    Small models are estimated together: one pass of inference serves all sets, which costs each set
    a fraction of a pass of its own. Every set has its own steps, stopping rule and certificate: the
    loss of its model is within the model's ``gap`` of the optimum, as from ``estimate``, but the
    potentials are not the same to the last digit.

    Models that would not gain from this are estimated separately. On the CPU these are models
    whose tables of a pass have more than 65,536 cells or, with a tolerance below 1, more than eight
    times the cells of the cliques, as in grids. Models with losses other than the squared one, with
    methods given by name or with large dense matrices are estimated separately too. On the CPU,
    if the tables of a pass have more than 65,536 cells but it takes fewer than 1e8 multiplications,
    as many models are estimated at a time as there are cores and as fit into memory; otherwise one
    is estimated after the other.

    With a ``warm_start``, the squared loss and no method given, sets with up to 4,096 cells of
    cliques and 4,096 measured values are estimated together, however large their tables, unless the
    matrices are so dense that cells times entries exceed 4,096^2, or one that is not sparse has
    more than 4,194,304 entries when it is written out. Proximal steps in the earlier model's
    metric, which all share, bring them to within a few hundredths of a noise unit of the optimum,
    whatever the tolerance.

    Args:
        domain: the attributes.
        measurement_sets: for each model its measurements, in counts; the i-th measurements of all
            sets have the same clique, stddev and matrix.
        total: the number of records, for all models or one for each; if None it is estimated from
            each set's measurements.
        max_seconds: the time for all sets together; unfinished models are the best found so far.
        progress: True for a progress bar on a terminal, or a callable that gets ``Replication``
            records.
        options: options of ``estimate``: ``zeros``, ``loss``, ``method``, ``warm_start`` (one
            model, for all), ``tolerance``, ``device``, ``dtype`` and ``memory_limit``.

    Raises:
        InvalidInput: for a wrong argument, and if the sets differ in more than their values. The
            message names the set, as in ``measurement_sets[3]``.
        NumericalFailure: if a second computation contradicts a model; the message names its set.
        TotalUndetermined: if no total is given and the measurements of a set, whatever their
            values, determine none.
        ModelTooLarge: if a single model does not fit; sets that do not fit together are estimated
            in smaller groups.

    Warns:
        NotCertified: some models may miss their best fit by more than one noise unit.
        Contradictory: the measurements of some sets contradict each other, as in ``estimate``.

    >>> domain = Domain({"a": 2, "b": 2})
    >>> def measured(x):
    ...     return [Measurement(("a",), [x, 1000 - x], 1.0), Measurement(("b",), [300, 700], 2.0)]
    >>> models = estimate_many(domain, [measured(600.0), measured(610.0)], total=1000)
    >>> [model.marginal(["a"]).round(1).tolist() for model in models]
    [[600.0, 400.0], [610.0, 390.0]]
    """
    started = time.perf_counter()
    check_seconds(max_seconds)
    check_known(options, Options.__annotations__, "estimate_many has no option", "options are")
    many = ManyEstimates(domain, measurement_sets, total, options)
    deadline = inf if max_seconds is None else started + max_seconds
    made: list[GraphicalModel] = []
    with reporter("estimates", progress, len(many.sets)) as report:
        for models in many.chunks(deadline):
            for model in models:
                made.append(model)
                report(len(made))
    many.check_last(made, started)
    _warn(made)
    return made


class ManyEstimates:
    """The checked sets of measurements, and the estimation of their models in chunks."""

    def __init__(
        self,
        domain: Domain,
        measurement_sets: Iterable[Iterable[Measurement]],
        total: float | Sequence[float] | None,
        options: Options,
    ) -> None:
        self.domain, self.options = domain, options
        self.loss, self.tolerance = options.get("loss", "squared"), options.get("tolerance", 0.1)
        self.method, self.dtype = options.get("method", "auto"), options.get("dtype", torch.float64)
        self.memory_limit, self.warm_start = options.get("memory_limit"), options.get("warm_start")
        self.sets: list[list[Measurement]] = []
        given = listed(measurement_sets, "measurement_sets", "lists of Measurement records")
        for place, some in enumerate(given):
            with naming_set(place):
                self.sets.append(checked_measurements(some, domain))
                _check_same(self.sets[0], self.sets[-1])
        if self.sets:
            self._request(self.sets[0], None).check(None, self.memory_limit, self.dtype)
        self.zeros = check_zeros(domain, options.get("zeros", ()))
        self.totals = self._known_totals(total)

    def _request(self, each: list[Measurement], total: float | None) -> Request:
        return Request(self.domain, each, total, self.loss, self.method, self.tolerance)

    def _known_totals(self, given: float | Sequence[float] | None) -> list[float]:
        """Return the total of each set: given, or estimated from its measurements. Raises
        InvalidInput for a number of totals other than that of the sets, for a total that is not
        finite and above 0 or that no measurement determines, and for a stddev that is too small or
        too large beside the counts (`check_scale`).
        """
        if not self.sets:
            return []
        first, values, found = self.sets[0], stacked(self.sets), []
        implied = estimate_totals(first, values)[0].tolist() if given is None else []
        each = implied if given is None else _each_total(given, len(self.sets))
        for place, number in enumerate(each):
            with naming_set(place):
                total = positive(number) if implied else self._request(first, number).known_total()
                found.append(total)
        least, most = int(np.argmin(found)), int(np.argmax(found))
        for m, measured in zip(first, values, strict=True):
            # If any set fails the check, so does that of the least total, the largest total or the
            # largest absolute value.
            for place in (least, most, int(np.abs(measured).max(axis=0).argmax())):
                with naming_set(place):
                    check_scale(m, measured[:, place], found[place])
        return found

    def chunks(self, deadline: float) -> Iterator[list[GraphicalModel]]:
        """Yield the models of all sets in the order of the sets, in lists of those that were
        estimated together. The search for a model ends at ``deadline``, a time of
        `time.perf_counter`.
        """
        single = self._single
        together = single if single is not None and self._batched(single) else None
        size = self._at_once() if together is None else self._chunk(together)
        for start in range(0, len(self.sets), size):
            places = range(start, min(start + size, len(self.sets)))
            if together is None:
                yield self._separately(places, deadline)
            else:
                yield self.estimate_batch(together, places, deadline)

    def _separately(self, places: range, deadline: float) -> list[GraphicalModel]:
        """Return the models of some sets, which are estimated at the same time: if there are
        several, each in a thread of its own. Their warnings NotCertified and Contradictory are
        suppressed, since the caller warns once for all sets.
        """
        tasks = [partial(self._alone, place, deadline) for place in places]
        if len(places) == 1:
            return [tasks[0]()]
        with pass_settings():
            return list(in_threads([one_thread()(task) for task in tasks], len(places)))

    def _at_once(self) -> int:
        """Return the number of sets that are estimated at the same time if there are no batches: 1
        unless passes in several threads gain time, and then at most as many as there are cores and
        as fit into memory.
        """
        single = self._single
        if single is None or not gains_by_threads(single):
            return 1
        return min(cores(), self._fitting(single, model_size.needed_bytes(single, self._used)))

    def check_last(self, made: Sequence[GraphicalModel], started: float) -> None:
        """Raise Contradiction, a NumericalFailure, if a second computation from the last set of
        measurements contradicts the loss of the last of the models ``made``. The check takes a
        small share of the time since ``started``, and is left out if it would take longer.
        """
        used = [m for m in self.sets[-1] if m.clique] if self.sets else []
        if not used:
            return
        with naming_set(len(made) - 1):
            check_loss(
                self.loss,
                used,
                made[-1].marginals([m.clique for m in used]),
                made[-1].loss,
                epsilon=float(torch.finfo(self.dtype).eps),
                seconds=max(LEAST, SHARE * (time.perf_counter() - started)) / 2,
            )

    def _alone(self, place: int, deadline: float) -> GraphicalModel:
        left = None if deadline == inf else max(1e-3, deadline - time.perf_counter())
        total = self.totals[place]
        with naming_set(place), without(NotCertified, Contradictory):
            return estimate(
                self.domain, self.sets[place], total=total, max_seconds=left, **self.options
            )

    def estimate_batch(
        self, inference: MarginalOracle, places: range, deadline: float
    ) -> list[GraphicalModel]:
        used = [[m for m in self.sets[place] if m.clique] for place in places]
        batch = BatchedEstimate(
            first=places.start,
            inference=inference,
            known=combined(self.domain, used[0], stacked(used)),
            totals=np.array(self.totals[places.start : places.stop]),
            zeros=self.zeros,
            warm_start=self.warm_start,
            tolerance=self.tolerance,
            deadline=deadline,
            model_limit=model_size.model_limit(self.memory_limit),
            dtype=self.dtype,
        )
        return [
            replace(model, measurements=tuple(self.sets[place]))
            for place, model in zip(places, batch.models(), strict=True)
        ]

    def _fitting(self, single: MarginalOracle, bytes_each: int) -> int:
        """Return the number of sets, at least one, that fit into the allowed memory together if
        each takes ``bytes_each``.
        """
        return max(1, model_size.search_limit(self.memory_limit, single.device) // bytes_each)

    @cached_property
    def _used(self) -> list[Measurement]:
        """The combined measurements of the first set, without those of the empty clique. Those of
        all other sets have the same structure.
        """
        used = [m for m in self.sets[0] if m.clique]
        return statistics(self.domain, used, self.loss).measurements

    @cached_property
    def _single(self) -> MarginalOracle | None:
        """The oracle for one set; None if there is only one set, or no attribute is measured."""
        used = self._used if len(self.sets) > 1 else []
        if not used:
            return None
        asked = self.options.get("device"), self.memory_limit
        return model_size.tree_oracle(self.domain, used, self.zeros, *asked)

    def _batched(self, single: MarginalOracle) -> bool:
        """Return True if batches estimate the sets: if they can, and proximal steps in an earlier
        model's metric follow (``polished``) or batches are faster.
        """
        faster = gains(single) if self.tolerance < 1 else gains_when_coarse(single)
        return self.polished or (self._fits_batch and faster)

    @property
    def _fits_batch(self) -> bool:
        usual = known_loss(self.loss) == Squared() and self.method == "auto"
        return usual and all(map(is_writable, self._used))

    @property
    def polished(self) -> bool:
        """True if the models of all sets are improved by proximal steps in the metric of the
        earlier model: if there is one, and batches can estimate the sets and afford that metric.
        """
        if self._single is None or self.warm_start is None or not self._fits_batch:
            return False
        return affordable(self._single.layout, self._used)

    def _chunk(self, inference: MarginalOracle) -> int:
        """Return the number of sets that are estimated in one batch: as many as fit into memory and
        whose tables of a pass have at most ``BLOCK_CELLS`` cells together (``TABLE_CELLS`` on a
        GPU), but at least one. Larger batches take as long for each set on a CPU, and nothing is
        reported before all sets of a batch are finished.
        """
        each = model_size.needed_bytes(inference, self._used)
        each += 8 * _BATCH_VECTORS * inference.layout.cells
        most = BLOCK_CELLS if inference.device.type == "cpu" else TABLE_CELLS
        return min(max(1, most // table_cells(inference)), self._fitting(inference, each))


def is_writable(m: Measurement) -> bool:
    """Return True if a batch can use the measurement's matrix entry by entry: if there is none, or
    it is a scipy-sparse one, or it has at most ``TABLE_CELLS`` entries written out.
    """
    return m.matrix is None or is_sparse(m.matrix) or prod(m.matrix.shape) <= TABLE_CELLS


def _each_total(total: float | Sequence[float], count: int) -> list[float]:
    """Return one total for each of ``count`` sets: a single number counts for all. Raises
    InvalidInput for a sequence of another length.
    """
    if isinstance(total, int | float):
        return [total] * count
    each = float_array(total, "total")
    if each.ndim == 0:
        return [float(each)] * count
    if len(each) != count:
        raise InvalidInput(
            f"total has {len(each)} numbers for {count} measurement_sets; give one for each, or "
            "a single one for all"
        )
    return each.tolist()


def _check_same(first: list[Measurement], other: list[Measurement]) -> None:
    """Raise InvalidInput unless two sets of measurements differ only in the measured values."""
    if len(first) != len(other):
        raise InvalidInput(
            f"it has {len(other)} measurements, but measurement_sets[0] has {len(first)}; all sets "
            "must measure the same, so estimate sets that differ one by one, with estimate"
        )
    for one, another in zip(first, other, strict=True):
        if not same_structure(one, another):
            raise InvalidInput(
                f"it holds {another!r:.160} where measurement_sets[0] holds {one!r:.160}; the same "
                "clique, stddev and matrix are needed in all sets, so estimate sets that differ "
                "one by one, with estimate"
            )


def _warn(models: Sequence[GraphicalModel]) -> None:
    poor = [place for place, model in enumerate(models) if model.poor_fit]
    if poor:
        far = models[poor[0]].certificate
        warnings.warn(
            f"{len(poor)} of {len(models)} estimates may miss their measurements by more than the "
            f"noise; the first is measurement_sets[{poor[0]}], {far}. Allow more time "
            "(max_seconds) or a smaller tolerance, or look for measurements whose stddev or total "
            "cannot be right",
            NotCertified,
            stacklevel=3,
        )
    apart = {place: contradiction(m, m.measurements) for place, m in enumerate(models)}
    apart = {place: said for place, said in apart.items() if said}
    if apart:
        place, said = next(iter(apart.items()))
        warnings.warn(
            f"{len(apart)} of {len(models)} sets; the first is measurement_sets[{place}]: {said}",
            Contradictory,
            stacklevel=3,
        )
