"""MARGINAL-ORACLE: exact marginals and most likely records from potentials over a set of cliques.

The distribution is p(x) proportional to exp(sum_c theta_c(x_c)). The potentials of all cliques are
in one flat vector (cliques in order, each in C order), and so are the marginals, so that optimisers
work with plain vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from math import fsum, inf, isfinite, log, nan

from pgmkit.contraction import kernels
from pgmkit.contraction.buffers import ContractionBuffers, pass_cells
from pgmkit.contraction.evaluate import LOG, MAX, adjoints, contract, forward, maximiser
from pgmkit.contraction.order import plan
from pgmkit.contraction.streamed import StreamedBuffers
from pgmkit.domain import Clique, Domain
from pgmkit.errors import ModelTooLarge, NumericalFailure
from pgmkit.inference.diffusion import diffusion
from pgmkit.inference.layout import Layout, Shifts, impossible_cells
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.memory import counted
from pgmkit.runtime.precision import AGREEMENT, TINY
from pgmkit.runtime.sizes import MULTIPLICATIONS_A_SECOND
from pgmkit.runtime.threads import pass_settings, threads_for
from pgmkit.structural_zeros import Zeros

_SAFE_SHARE = 0.85
"""The share of float64's exponent range that the spreads of all cliques' potentials together may
take up in linear space. A clique's spread is its largest potential minus its smallest finite one.
"""
_IMPOSSIBLE = (
    "no record has positive probability ({value}): the structural zeros (potentials of minus "
    "infinity) contradict each other, or a potential is not a number; leave out what contradicts"
)
THREADED_COST = MULTIPLICATIONS_A_SECOND / 10
"""The multiplications of a pass above which several threads save more time than they cost."""


class MarginalOracle:
    """Exact inference for potentials over ``cliques``. Build it once for a structure and call it
    often.

    Cells that ``zeros`` rule out have probability zero whatever their potentials. The caller sees
    to it that each of ``zeros`` lies within a clique, since others have no effect. ``dtype`` is the
    format of the marginals, float64 if it is None. ``log_passes`` counts the calls that had to
    compute marginals in log space.

    Raises ``ModelTooLarge`` before anything is allocated if the working memory of a pass exceeds
    ``memory_limit`` bytes (None: no limit).

    >>> bp = MarginalOracle(Domain({"a": 2, "b": 2}), [("a", "b")])
    >>> marginals, log_partition = bp.marginals(torch.zeros(4, dtype=torch.float64), total=8.0)
    >>> marginals
    tensor([2., 2., 2., 2.], dtype=torch.float64)
    """

    def __init__(
        self,
        domain: Domain,
        cliques: Sequence[Clique],
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        memory_limit: int | None = None,
        zeros: Sequence[Zeros] = (),
    ) -> None:
        self.device, self.dtype = torch.device(device), dtype or torch.float64
        self.layout = Layout(domain, cliques)
        self.shifts = Shifts(self.layout, self.device)
        self.plan = plan(list(cliques), (), domain.sizes)
        if memory_limit is not None:
            self._check_memory(memory_limit)
        self.safe_spread = -_SAFE_SHARE * log(TINY)
        self.smallest, self.largest = TINY**0.5, TINY**-0.5
        self._below_peaks = 0.0
        # If it is True, a search waits for the result of each step before it starts the next. That
        # is so on a CPU, and on a GPU once `device_search` could not finish a search.
        self.waits = self.device.type == "cpu"
        self.log_passes = 0
        self._balancing: torch.Tensor | None = None
        self._balance_at = 0
        held = dict.fromkeys(name for clique in cliques for name in clique)
        self._log_records = fsum(log(domain.sizes[name]) for name in held)
        self._impossible = impossible_cells(self.layout, zeros, self.device)

    def masked(self, potentials: torch.Tensor) -> torch.Tensor:
        """Return the potentials with minus infinity where ``zeros`` rule a cell out."""
        if self._impossible is None:
            return potentials
        return potentials.masked_fill(self._impossible, -inf)

    @cached_property
    def buffers(self) -> ContractionBuffers:
        """The buffers of a pass. They are float64 whatever the potentials' format: float32 has
        neither the range for a pass nor the precision for a log partition function multiplied by a
        total.
        """
        form = StreamedBuffers if kernels.on_gpu(self.device) else ContractionBuffers
        return form(self.plan, self.device, torch.float64)

    @cached_property
    def pass_bytes(self) -> int:
        """An estimate of the bytes that a pass takes: buffers, copies, the index of the cells, and
        the result.
        """
        buffers = 8 * (pass_cells(self.plan) + self.layout.cells)
        return buffers + 2 * self.layout.cells * self.dtype.itemsize

    def _check_memory(self, limit: int) -> None:
        p = self.plan
        needed = self.pass_bytes
        if needed > limit:
            biggest = max(range(len(p.axes)), key=p.cells)
            raise ModelTooLarge(
                f"inference over these cliques needs {counted(needed)} bytes and builds a table "
                f"over {p.axes[biggest]!r:.200} of {counted(p.cells(biggest))} cells; the limit is "
                f"{limit:,} bytes. Measure fewer or smaller overlapping cliques, or raise "
                "memory_limit"
            )

    @contextmanager
    def session(self) -> Iterator[None]:
        """Run the passes in this context faster: in one thread if they are small, with denormal
        numbers flushed to zero and no gradients recorded.
        """
        work = self.plan.cost if self.device.type == "cpu" else inf
        with threads_for(work, THREADED_COST), pass_settings():
            yield

    def marginals(self, potentials: torch.Tensor, total: float = 1.0) -> tuple[torch.Tensor, float]:
        """Return the flat marginals, which sum to ``total`` for each clique, and the log partition
        function. The error of a marginal is relative to the marginal itself, however small, and
        grows with the potentials' size.

        The pass is computed in linear space if the potentials of each clique differ so little that
        nothing can underflow, and in log space otherwise. Raises NumericalFailure if no record is
        possible or a potential is NaN.
        """
        potentials = self.masked(potentials)
        if self._spread(potentials) < self.safe_spread:
            found = self._linear(potentials, total)
            if found is not None:
                return found
        return self.log_marginals(potentials, total)

    def fast_marginals(
        self, potentials: torch.Tensor, total: float = 1.0
    ) -> tuple[torch.Tensor, float]:
        """Return the same as ``marginals``, with an absolute accuracy of 1e-12 of the total: small
        cells may underflow to zero. Potentials in float32 are rounded again, by up to 6e-8 of the
        largest difference within a clique, if they have to be balanced.

        The pass is in log space only if underflow in linear space may have lost more than 1e-12 of
        the total even after the potentials are balanced (``_balanced_linear``).
        """
        potentials = self.masked(potentials)
        found = self._balanced_linear(potentials, total)
        return self.log_marginals(potentials, total) if found is None else found

    def try_marginals(
        self, potentials: torch.Tensor, total: float | torch.Tensor = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the same as ``fast_marginals`` from one pass in linear space, without waiting for
        the device, and without checking whether underflow has lost records.

        The log partition function is a tensor without axes. It is NaN, and the marginals are
        useless, if the scaled partition function was too large or too small for linear space.
        Otherwise it sets the scale of the next call.
        """
        potentials = self.masked(potentials)
        peaks, guess = self._read(potentials), self._guess
        self._load(potentials, torch.add(peaks, guess, alpha=1 / len(peaks)))
        partition = self.buffers.forward()[0]
        change = partition.log()
        below = guess + change
        held = (change.abs() < log(self.largest)) & (below >= -self.safe_spread)
        torch.where(held, below, guess, out=guess)  # in place: a captured graph reads it
        marginals = self.buffers.weighted(total / partition, self.dtype)
        return marginals, (below + peaks.sum()).masked_fill_(~held, nan)

    @cached_property
    def _guess(self) -> torch.Tensor:
        """The logarithm of the partition function with each clique's largest potential subtracted,
        as the last successful ``try_marginals`` found it; at first, as another pass found it, or 0.
        """
        return torch.full((), self._below_peaks, dtype=torch.float64, device=self.device)

    @property
    def inputs(self) -> list[torch.Tensor]:
        """The tensors that ``try_marginals`` reads beside its arguments and its buffers."""
        return [self._guess] if self._impossible is None else [self._guess, self._impossible]

    def __getstate__(self) -> dict[str, object]:
        """Return the attributes for pickles and copies. The buffers are left out, since their steps
        cannot be pickled; a copy makes its own.
        """
        return {name: each for name, each in vars(self).items() if name != "buffers"}

    def separate(self) -> MarginalOracle:
        """Return the same oracle with ``inputs`` and buffers in memory of its own."""
        other = copy(self)
        other._guess = self._guess.clone()
        other._impossible = None if self._impossible is None else self._impossible.clone()
        return other

    def balancing(self, potentials: torch.Tensor) -> torch.Tensor:
        """Return terms that leave the distribution as it is when they are added to the potentials.
        The potentials of different cliques then cancel each other less: the sum of the cliques'
        largest potentials is nearer to the largest score of a record (max-sum diffusion).
        """
        return self.layout.join(diffusion(self.layout.cliques, self.layout.split(potentials)))

    def log_partition(self, potentials: torch.Tensor) -> float:
        """Return the log partition function, from a forward pass alone (a second one in log space
        if records may have underflowed in linear space); minus infinity if no record is possible,
        and NaN if a potential is.
        """
        potentials = self.masked(potentials)
        peaks = self._read(potentials)
        found = self._forward(potentials, peaks)
        if found is not None:
            below_peaks = log(found[0]) + found[1]
            if -below_peaks <= self.safe_spread:
                return below_peaks + float(peaks.sum())
        shifted = self.shifts.subtract(potentials, peaks, torch.empty_like(potentials))
        return float(contract(self.plan, self.layout.split(shifted), LOG)) + float(peaks.sum())

    def maximum(self, scores: torch.Tensor) -> float:
        """Return the largest score of a record, the sum of the scores of its cells; minus infinity
        if no record is possible.
        """
        return float(contract(self.plan, self.layout.split(self.masked(scores)), MAX))

    def max_marginals(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the max-marginals as a vector like ``scores``: for each cell of each clique, the
        largest score of a record with that cell. The score of a record is the sum of the scores of
        its cells.
        """
        tables = self.layout.split(self.masked(scores))
        others = adjoints(self.plan, forward(self.plan, tables, MAX), MAX)
        return self.layout.join([own + rest for own, rest in zip(tables, others, strict=True)])

    def mode(self, scores: torch.Tensor) -> dict[str, int]:
        """Return a record, a code for each of the cliques' attributes, whose score, the sum of the
        scores of its cells, is largest (MAP).

        Raises NumericalFailure if no record is possible or a score is NaN.
        """
        values = forward(self.plan, self.layout.split(self.masked(scores)), MAX)
        if not isfinite(float(values[-1])):
            raise NumericalFailure(_IMPOSSIBLE.format(value=f"maximum = {float(values[-1])}"))
        return maximiser(self.plan, values)

    def _read(self, potentials: torch.Tensor) -> torch.Tensor:
        """Return the largest potential of each clique, with 0 in place of minus infinity. On a GPU,
        ``_load`` then reads these potentials again, so they must not change in between.
        """
        if isinstance(self.buffers, StreamedBuffers):
            return self.buffers.read(potentials)
        return self.shifts.peaks(potentials).double()

    def _load(self, potentials: torch.Tensor, shifts: torch.Tensor) -> None:
        """Set the inputs of a pass to the exponentials of the potentials. From those of clique
        number i, ``shifts[i]`` is subtracted first. The potentials must be those that ``_read`` got
        last.
        """
        if isinstance(self.buffers, StreamedBuffers):
            self.buffers.load(shifts)
        else:
            self.shifts.subtract(potentials.double(), shifts, self.buffers.inputs).exp_()

    def _spread(self, potentials: torch.Tensor) -> float:
        finite = torch.where(torch.isneginf(potentials), torch.inf, potentials)
        spreads = self.shifts.peaks(potentials) + self.shifts.peaks(-finite)
        return float(spreads.clamp_min(0).sum())

    def _balanced_linear(
        self, potentials: torch.Tensor, total: float
    ) -> tuple[torch.Tensor, float] | None:
        """Return the result of ``_linear``, or None if underflow may have lost something even after
        balancing.

        If ``_linear`` returns None, the potentials are balanced: diffusion computes a change to
        them that leaves the distribution as it is. The same change is added in later passes, and a
        new one is computed when it no longer suffices. If balancing did not help, it is not tried
        again until there have been twice as many passes in log space.
        """
        found = self._linear(potentials, total) if self._balancing is None else None
        if found is not None:
            return found
        peaks = self.shifts.peaks(potentials)
        # Each clique's largest potential is subtracted first, so that rounding is in proportion to
        # differences of potentials and not to their size.
        below = self.shifts.subtract(potentials, peaks, torch.empty_like(potentials))
        if self._balancing is not None:
            found = self._linear(below + self._balancing, total)
        if found is None and self.log_passes >= self._balance_at:
            balancing = self.balancing(below)
            found = self._linear(below + balancing, total)
            if found is not None:
                self._balancing = balancing
            else:
                self._balance_at = 2 * self.log_passes + 1
        return None if found is None else (found[0], found[1] + float(peaks.sum()))

    def _linear(self, potentials: torch.Tensor, total: float) -> tuple[torch.Tensor, float] | None:
        """Return the marginals and log partition function by one pass in scaled linear space, or
        None if underflow may have lost something.

        Each clique's potentials are shifted by their peak, and all potentials by a further number,
        with which the partition function is about 1 if it has not changed since the last pass. A
        record is lost if a product of some of its factors underflows. To first order, the share of
        all lost records is at most the smallest number of the format, multiplied by the largest
        adjoint (of marginals of sum 1) and by the number of adjoints. The adjoints are not read if
        the number of records already bounds the share.
        """
        peaks = self._read(potentials)
        found = self._forward(potentials, peaks)
        if found is None:
            return None
        partition, guess = found
        self._below_peaks = log(partition) + guess
        if -self._below_peaks > self.safe_spread:
            return None
        weighted = self.buffers.weighted(total / partition, self.dtype)
        most = AGREEMENT / TINY / len(self.buffers.adjoint)
        many = self._log_records + max(guess, 0.0) - self._below_peaks > log(most)
        if many and not float(self.buffers.adjoint.max()) <= total * most:  # true for NaN
            return None
        return weighted, self._below_peaks + float(peaks.sum())

    def _forward(self, potentials: torch.Tensor, peaks: torch.Tensor) -> tuple[float, float] | None:
        """Return a pair (scaled, guess): the partition function is ``scaled`` times the exponential
        of ``guess`` plus the sum of ``peaks``. None if no guess keeps ``scaled`` in range.

        The first guess is the logarithm of the partition function that the last pass found (with
        each clique's largest potential, ``peaks``, subtracted). The interval of possible guesses is
        then halved, until it is at most the logarithm of ``largest`` long.
        """
        lowest, highest = -self.safe_spread, self._log_records
        guess = self._below_peaks
        while True:
            self._load(potentials, peaks + guess / len(peaks))
            partition = float(self.buffers.forward())
            if self.smallest < partition < self.largest:
                return partition, guess
            if partition <= self.smallest:
                highest = guess
            else:
                lowest = guess
            if not highest - lowest > log(self.largest):
                return None
            guess = (lowest + highest) / 2

    def log_marginals(self, potentials: torch.Tensor, total: float) -> tuple[torch.Tensor, float]:
        """Return the marginals and log partition function by one pass in log space. Each clique's
        largest potential is subtracted first, so that large constants do not add to the rounding.
        Raises NumericalFailure if no record is possible or a potential is NaN.
        """
        self.log_passes += 1
        peaks = self.shifts.peaks(potentials)
        shifted = self.shifts.subtract(potentials, peaks, torch.empty_like(potentials))
        tables = self.layout.split(shifted)
        values = forward(self.plan, tables, LOG)
        below_peaks = float(values[-1])
        if not isfinite(below_peaks):
            raise NumericalFailure(_IMPOSSIBLE.format(value=f"log Z = {below_peaks}"))
        self._below_peaks = below_peaks
        others = adjoints(self.plan, values, LOG)
        logs = [own + rest - values[-1] for own, rest in zip(tables, others, strict=True)]
        return self.layout.join(logs).exp_().mul_(total), below_peaks + float(peaks.sum())
