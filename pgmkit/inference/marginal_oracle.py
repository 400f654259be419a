"""MARGINAL-ORACLE: exact marginals and most likely records from potentials over a set of cliques.

The distribution is p(x) proportional to exp(sum_c theta_c(x_c)). Potentials and marginals of all
cliques are kept side by side in one flat vector (C order, cliques in order), so that an
optimiser's algebra is plain vector algebra.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate, chain
from math import fsum, inf, isfinite, log, nan, prod

from pgmkit.contraction import kernels
from pgmkit.contraction.buffers import ContractionBuffers, pass_cells
from pgmkit.contraction.evaluate import adjoints, contract, forward, maximiser
from pgmkit.contraction.order import plan
from pgmkit.contraction.semirings import LOG, LOG_BELOW, MAX, Semiring
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput, ModelTooLarge, NumericalFailure
from pgmkit.graphs.clique_index import CliqueIndex
from pgmkit.inference.diffusion import Diffusion
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.threads import one_blas_thread, threads_for
from pgmkit.structural_zeros import Zeros

Clique = tuple[str, ...]

_SAFE_SHARE = 0.85
"""Share of the exponent range that the potentials' total spread may use in linear space."""
_IMPOSSIBLE = (
    "no configuration has positive probability: the structural zeros (potentials of minus "
    "infinity) contradict each other, or a potential is not a number ({value})."
)
_LARGE_CLIQUE = 1 << 12
"""Cells of a clique, on average, above which each has its own calls."""
_PIECE = 1 << 12
"""Cells of a clique whose peak a card's one block of threads looks for: a longer run in pieces."""
THREADED_COST = 1e8
"""Multiplications a pass above which several threads pay for their synchronisation."""


@contextmanager
def pass_settings() -> Iterator[None]:
    """Settings of torch and its libraries for passes, restored on exit.

    Denormals slow matrix products a hundredfold and weigh nothing next to a partition function.
    """
    coarse = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False  # three digits are no marginals
    torch.set_flush_denormal(True)
    try:
        with one_blas_thread(), torch.inference_mode():
            yield
    finally:
        torch.set_flush_denormal(False)
        torch.backends.cuda.matmul.allow_tf32 = coarse


class Layout:
    """The place of each clique's cells in a flat vector.

    >>> layout = Layout(Domain({"a": 2, "b": 3}), [("a",), ("a", "b")])
    >>> layout.cells, layout.slices
    (8, (slice(0, 2, None), slice(2, 8, None)))
    """

    def __init__(self, domain: Domain, cliques: Sequence[Clique]) -> None:
        self.domain, self.cliques = domain, tuple(cliques)
        self.shapes = tuple(domain.shape(clique) for clique in cliques)
        slices, start = [], 0
        for shape in self.shapes:
            slices.append(slice(start, start + prod(shape)))
            start += prod(shape)
        self.slices, self.cells = tuple(slices), start

    @cached_property
    def index(self) -> CliqueIndex:
        """An index of the cliques that hold given attributes."""
        return CliqueIndex(self.cliques)

    @cached_property
    def domains(self) -> tuple[Domain, ...]:
        """The domain of each clique."""
        return tuple(self.domain.project(clique) for clique in self.cliques)

    def split(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Views of a flat vector, one array per clique."""
        return [flat[s].view(shape) for s, shape in zip(self.slices, self.shapes, strict=True)]

    def join(self, tables: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([table.reshape(-1) for table in tables]) if tables else torch.empty(0)


class MarginalOracle:
    """Exact inference over ``cliques``; build once for a structure, call often.

    ``log_passes`` counts the passes that linear space could not hold.

    Raises ``ModelTooLarge`` before anything is allocated when the working memory of a pass exceeds
    ``memory_limit`` bytes. Cells that ``zeros`` (each within a clique) rule out have probability
    zero whatever their potentials.

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
        _check_cliques(domain, cliques, memory_limit)
        self.layout = Layout(domain, cliques)
        self.plan = plan(list(cliques), (), domain.sizes)
        if memory_limit is not None:
            self._check_memory(memory_limit)
        tiny = torch.finfo(torch.float64).tiny
        self.safe_spread = -_SAFE_SHARE * log(tiny)
        self.smallest, self.largest = tiny**0.5, tiny**-0.5
        self._below_peaks = 0.0
        self.waits = self.device.type == "cpu"
        self.log_passes = 0
        self._balancing: torch.Tensor | None = None
        self._balance_at = 0
        held = dict.fromkeys(name for clique in cliques for name in clique)
        self._log_records = fsum(log(domain.sizes[name]) for name in held)
        self._impossible = _impossible(self.layout, zeros, self.device)

    def masked(self, potentials: torch.Tensor) -> torch.Tensor:
        """The potentials with minus infinity where ``zeros`` rule a cell out."""
        if self._impossible is None:
            return potentials
        return potentials.masked_fill(self._impossible, -inf)

    @cached_property
    def _passing(self) -> ContractionBuffers:
        """In float64 whatever the potentials' format: float32 has neither the range of a pass nor
        the precision of a log partition function times a total.
        """
        return ContractionBuffers(self.plan, self.device, torch.float64)

    @property
    def _few_large(self) -> bool:
        """True if a call for every clique costs less than an index of all cells, and its memory."""
        return self.layout.cells > _LARGE_CLIQUE * len(self.layout.cliques)

    @cached_property
    def _clique_of_cell(self) -> torch.Tensor:
        cells = torch.tensor([prod(shape) for shape in self.layout.shapes], device=self.device)
        return torch.repeat_interleave(torch.arange(len(cells), device=self.device), cells)

    @cached_property
    def pass_bytes(self) -> int:
        """Memory of a pass: buffers, copies, the index of cells, and its result."""
        buffers = 8 * (pass_cells(self.plan) + self.layout.cells)
        return buffers + 2 * self.layout.cells * self.dtype.itemsize

    def _check_memory(self, limit: int) -> None:
        p = self.plan
        needed = self.pass_bytes
        if needed > limit:
            biggest = max(range(len(p.axes)), key=p.cells)
            raise ModelTooLarge(
                f"inference over these cliques needs {needed / 2**20:,.0f} MiB and builds a "
                f"table over {p.axes[biggest]} of {p.cells(biggest):,} cells; the limit is "
                f"{limit / 2**20:,.0f} MiB. Measure fewer or smaller overlapping cliques, or "
                "raise memory_limit"
            )

    @contextmanager
    def session(self) -> Iterator[None]:
        """Settings for many small passes: one thread (restored on exit) and no denormal numbers."""
        work = self.plan.cost if self.device.type == "cpu" else inf
        with threads_for(work, THREADED_COST), pass_settings():
            yield

    def marginals(self, potentials: torch.Tensor, total: float = 1.0) -> tuple[torch.Tensor, float]:
        """Marginals in units of ``total`` (flat) and the log partition function, to full relative
        accuracy.

        Linear space where the spread of the potentials rules out underflow, log space otherwise.
        """
        potentials = self.masked(potentials)
        if self._spread(potentials) < self.safe_spread:
            found = self._linear(potentials, total)
            if found is not None:
                return found
        return self._log(potentials, total)

    def fast_marginals(
        self, potentials: torch.Tensor, total: float = 1.0
    ) -> tuple[torch.Tensor, float]:
        """As ``marginals`` with absolute accuracy (1e-12 of the total): cells may underflow to
        zero. In float32 a configuration of up to 2e-6 of the total may be lost.

        Log space is the fallback when the partition function itself nears the limits of the format,
        however the potentials are balanced.
        """
        potentials = self.masked(potentials)
        found = self._balanced_linear(potentials, total)
        return self._log(potentials, total) if found is None else found

    def begin_marginals(
        self, potentials: torch.Tensor, total: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor | float]:
        """``fast_marginals`` without waiting for a card: its log partition function may be a tensor
        without axes there, NaN where the pass has failed and ``fast_marginals`` is called for.
        """
        if self.waits:
            return self.fast_marginals(potentials, total)
        return self.try_marginals(potentials, total)

    def try_marginals(
        self, potentials: torch.Tensor, total: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``fast_marginals`` in linear space only, and nothing that waits for a device: the log
        partition function is a tensor without axes, NaN where the pass has failed.
        """
        potentials = self.masked(potentials)
        peaks, guess = self._peaks(potentials).double(), self._guess
        self._load(potentials, peaks + guess / len(peaks))
        partition = self._passing.forward()[0]
        change = partition.log()
        below = guess + change
        held = (change.abs() < log(self.largest)) & (below >= -self.safe_spread)
        guess.copy_(torch.where(held, below, guess))  # in place: a captured pass goes on with it
        marginals = self._counts(total / partition)
        log_partition = below + peaks.sum()
        return marginals, log_partition.masked_fill_(~held, nan)

    @cached_property
    def _guess(self) -> torch.Tensor:
        """The mass that the last ``try_marginals`` found below the peaks."""
        return torch.full((), self._below_peaks, dtype=torch.float64, device=self.device)

    def wait(self) -> None:
        """Make ``begin_marginals`` wait for the card from now on: a pass failed there."""
        self.waits = True

    def rough_marginals(
        self, potentials: torch.Tensor, total: float = 1.0
    ) -> tuple[torch.Tensor, float]:
        """As ``fast_marginals``, but records may be left out that are impossible beside the
        likeliest values of a few attributes: for searches that check where they arrive.

        Outside linear space this is many times faster.
        """
        potentials = self.masked(potentials)
        found = self._balanced_linear(potentials, total)
        if found is not None:
            return found
        try:
            return self._log(potentials, total, LOG_BELOW)
        except NumericalFailure:  # nothing was left
            return self._log(potentials, total)

    def balanced(self, potentials: torch.Tensor) -> torch.Tensor:
        """Potentials of the same distribution that cancel each other less."""
        return potentials + self._balance(potentials)

    def _balance(self, potentials: torch.Tensor) -> torch.Tensor:
        """The terms that ``balanced`` adds."""
        return self.layout.join(self._diffusion.change(self.layout.split(potentials)))

    @cached_property
    def _diffusion(self) -> Diffusion:
        return Diffusion(self.layout.cliques, self.layout.shapes)

    def log_partition(self, potentials: torch.Tensor) -> float:
        """The log partition function alone: a pass without its way back. Minus infinity where
        nothing is possible.
        """
        potentials = self.masked(potentials)
        peaks = self._peaks(potentials)
        found = self._forward(potentials, peaks)
        if found is not None:
            below_peaks = log(found[0]) + found[1]
            if -below_peaks <= self.safe_spread:
                return below_peaks + float(peaks.sum())
        shifted = self._subtract(potentials, peaks, torch.empty_like(potentials))
        return float(contract(self.plan, self.layout.split(shifted), LOG)) + float(peaks.sum())

    def maximum(self, scores: torch.Tensor) -> float:
        """The largest sum of scores over all joint configurations (max-product, no argument)."""
        return float(contract(self.plan, self.layout.split(self.masked(scores)), MAX))

    def max_marginals(self, scores: torch.Tensor) -> torch.Tensor:
        """The largest sum of scores of a configuration in each cell of the cliques (flat)."""
        tables = self.layout.split(self.masked(scores))
        values = forward(self.plan, tables, MAX)
        others = adjoints(self.plan, values, MAX)
        return self.layout.join([own + rest for own, rest in zip(tables, others, strict=True)])

    def mode(self, scores: torch.Tensor) -> dict[str, int]:
        """A configuration of the cliques' attributes with the largest sum of scores (MAP)."""
        values = forward(self.plan, self.layout.split(self.masked(scores)), MAX)
        if not isfinite(float(values[-1])):
            raise NumericalFailure(_IMPOSSIBLE.format(value=f"maximum = {float(values[-1])}"))
        return maximiser(self.plan, values)

    def peak_sum(self, scores: torch.Tensor) -> float:
        """The sum of all cliques' largest scores: no configuration has a larger sum."""
        return float(self._peaks(scores).sum())

    def _peaks(self, potentials: torch.Tensor) -> torch.Tensor:
        """Each clique's largest potential (0 where all are minus infinity)."""
        if kernels.on_card(potentials):
            return kernels.peaks(potentials, *self._runs)
        if self._few_large:
            peaks = torch.stack([potentials[cells].amax() for cells in self.layout.slices])
        else:
            lowest = torch.full_like(potentials[: len(self.layout.cliques)], -inf)
            peaks = lowest.scatter_reduce(0, self._clique_of_cell, potentials, "amax")
        return peaks.masked_fill(torch.isinf(peaks), 0.0)

    def _subtract(
        self, potentials: torch.Tensor, shifts: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        """``out`` = the potentials less one number for each clique."""
        if not self._few_large:
            return torch.sub(potentials, shifts[self._clique_of_cell], out=out)
        for cells, shift in zip(self.layout.slices, shifts.unbind(), strict=True):
            torch.sub(potentials[cells], shift, out=out[cells])
        return out

    def _counts(self, seed: torch.Tensor | float) -> torch.Tensor:
        """The way back of a pass: marginals times the partition function and ``seed``."""
        return self._passing.weighted(seed, self.dtype)

    def _load(self, potentials: torch.Tensor, shifts: torch.Tensor) -> None:
        """The exponentials of the shifted potentials become the inputs of a pass."""
        inputs = self._passing.inputs
        if kernels.on_card(potentials):
            kernels.shift_exp(potentials, shifts, self._starts, inputs)
        else:
            self._subtract(potentials.double(), shifts.double(), inputs).exp_()

    @cached_property
    def _starts(self) -> torch.Tensor:
        """The start of each clique's cells, and the end of the last one's."""
        starts = [cells.start for cells in self.layout.slices]
        return torch.tensor([*starts, self.layout.cells], device=self.device)

    @cached_property
    def _runs(self) -> tuple[torch.Tensor, ...]:
        """The levels of ``kernels.peaks`` over the cliques: large ones in pieces first."""
        sizes = [cells.stop - cells.start for cells in self.layout.slices]
        if max(sizes) <= _PIECE:
            return (self._starts,)
        firsts = [range(cells.start, cells.stop, _PIECE) for cells in self.layout.slices]
        pieces = [*chain.from_iterable(firsts), self.layout.cells]
        counts = accumulate(map(len, firsts), initial=0)
        return tuple(torch.tensor(list(each), device=self.device) for each in (pieces, counts))

    def _spread(self, potentials: torch.Tensor) -> float:
        finite = torch.where(torch.isneginf(potentials), torch.inf, potentials)
        return float((self._peaks(potentials) + self._peaks(-finite)).clamp_min(0).sum())

    def _balanced_linear(
        self, potentials: torch.Tensor, total: float
    ) -> tuple[torch.Tensor, float] | None:
        """``_linear`` with the potentials balanced once that is needed, and again when it is.

        Where no balance helps, none is looked for until twice as many passes were in log space.
        """
        found = self._linear(potentials, total) if self._balancing is None else None
        if found is not None:
            return found
        peaks = self._peaks(potentials)
        # Sums that cancel are exact to what lies below the peaks, not to the peaks.
        below = self._subtract(potentials, peaks, torch.empty_like(potentials))
        if self._balancing is not None:
            found = self._linear(below + self._balancing, total)
        if found is None and self.log_passes >= self._balance_at:
            balancing = self._balance(below)
            found = self._linear(below + balancing, total)
            if found is not None:
                self._balancing = balancing
            else:
                self._balance_at = 2 * self.log_passes + 1
        return None if found is None else (found[0], found[1] + float(peaks.sum()))

    def _linear(self, potentials: torch.Tensor, total: float) -> tuple[torch.Tensor, float] | None:
        """One pass in scaled linear space, or None where underflow may have lost something.

        Each clique is shifted by its peak, then all evenly so that the partition function is about
        what it was last time. A configuration that underflows anywhere is lost; its share of the
        total is below exp(sum of peaks - log Z) times the smallest number.
        """
        peaks = self._peaks(potentials)
        found = self._forward(potentials, peaks)
        if found is None:
            return None
        partition, guess = found
        self._below_peaks = log(partition) + guess
        if -self._below_peaks > self.safe_spread:
            return None
        log_partition = self._below_peaks + float(peaks.sum())
        return self._counts(total / partition), log_partition

    def _forward(self, potentials: torch.Tensor, peaks: torch.Tensor) -> tuple[float, float] | None:
        """The partition function and the log of what it was divided by, or None out of range.

        The first guess is that of the last pass; then the range of what is possible is halved, as
        long as the numbers' own range may not span what is left of it.
        """
        lowest, highest = -self.safe_spread, self._log_records
        guess = self._below_peaks
        while True:
            self._load(potentials, peaks + guess / len(peaks))
            partition = float(self._passing.forward())
            if self.smallest < partition < self.largest:
                return partition, guess
            if partition <= self.smallest:
                highest = guess
            else:
                lowest = guess
            if not highest - lowest > log(self.largest):
                return None
            guess = (lowest + highest) / 2

    def _log(
        self, potentials: torch.Tensor, total: float, semiring: Semiring = LOG
    ) -> tuple[torch.Tensor, float]:
        """One pass in log space; shifting by the peaks keeps large offsets out of the rounding."""
        self.log_passes += 1
        peaks = self._peaks(potentials)
        shifted = self._subtract(potentials, peaks, torch.empty_like(potentials))
        tables = self.layout.split(shifted)
        values = forward(self.plan, tables, semiring)
        below_peaks = float(values[-1])
        if not isfinite(below_peaks):
            raise NumericalFailure(_IMPOSSIBLE.format(value=f"log Z = {below_peaks}"))
        self._below_peaks = below_peaks
        others = adjoints(self.plan, values, semiring)
        logs = [own + rest - values[-1] for own, rest in zip(tables, others, strict=True)]
        log_partition = below_peaks + float(peaks.sum())
        return self.layout.join(logs).exp_().mul_(total), log_partition


def _impossible(
    layout: Layout, zeros: Sequence[Zeros], device: torch.device
) -> torch.Tensor | None:
    """The cells that zeros rule out, flat; each zero in every clique that holds it."""
    if not zeros:
        return None
    ruled_out = torch.zeros(layout.cells, dtype=torch.bool)
    for clique, table in zip(layout.cliques, layout.split(ruled_out), strict=True):
        for each in zeros:
            if set(each.clique) <= set(clique):
                table |= torch.from_numpy(~each.within(layout.domain, clique))
    return ruled_out.to(device)


def _check_cliques(domain: Domain, cliques: Sequence[Clique], limit: int | None) -> None:
    if not cliques:
        raise InvalidInput("cliques is empty; inference needs at least one clique")
    for clique in cliques:
        domain.clique(clique)
        cells = domain.size(clique)
        if limit is not None and 16 * cells > limit:
            raise ModelTooLarge(
                f"clique {clique} has {cells:,} cells ({8 * cells / 2**20:,.0f} MiB a table); "
                f"the limit is {limit / 2**20:,.0f} MiB. Measure smaller cliques, merge codes, or "
                "raise memory_limit"
            )
