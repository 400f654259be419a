"""A check of an inference pass by a second computation, which shares with it only the search for an
elimination order; any order gives the same sums.

Inference plans a contraction, runs it in flat buffers and differentiates it. Here attributes are
summed out one by one on plain arrays in log space (``plain_sums``), with the values of one clique
or more (the evidence e) held fixed, so that the sum takes little time. The result log Z(e) must
equal log Z + log P(e), where log Z and P(e) come from inference. All marginals must also sum to the
total and agree on the attributes that they share.

``FirstUses`` chooses which further answers are checked (``answer_checks``), and the time for this.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from math import fsum, inf, isinf, log, prod
from typing import TYPE_CHECKING

import numpy as np

from pgmkit.errors import NumericalFailure
from pgmkit.inference.layout import Layout, impossible_cells
from pgmkit.inference.plain_sums import PlainSums, TooLong
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.iterations import FEW_ROUNDS
from pgmkit.runtime.precision import EPSILON, ULPS
from pgmkit.runtime.sizes import REMEMBERED, TABLE_CELLS, UNASKED_SECONDS, UNNOTICED_SECONDS
from pgmkit.structural_zeros import Zeros

if TYPE_CHECKING:
    from pgmkit.inference.marginal_oracle import MarginalOracle


SHARE = 0.1
LEAST, MOST = UNNOTICED_SECONDS, UNASKED_SECONDS
"""The check takes a share of about SHARE of inference's time, at least LEAST and at most MOST
seconds.
"""
CLOSE = TABLE_CELLS
"""The rounding error of a logarithm that is allowed in addition to the part that grows with the
potentials (``ROUNDINGS``), in units of the format's epsilon: that of a sum over the cells of a
large table.
"""
ROUNDINGS = 2 * 2 * ULPS
"""The number of rounding errors, each relative to the sum of all potentials' magnitudes, that every
table of a pass may add: ``ULPS`` for a product of two tables in log space (subtract the peak, sum,
take the logarithm, add the peak), times two for the forward and backward pass, times two for the
two computations that are compared.
"""
DEFECT = 1e-2
"""The difference of two logarithms that always counts as a defect; rounding is never allowed
more.
"""
UNLIKELY = EPSILON**0.5 / DEFECT
"""The share of the total, 1.5e-6, below which a cell is not checked: a sum that has lost half of
its digits to rounding differs by a defect there.
"""


FIRST_SECONDS = LEAST / 5
"""A check may begin while the checks of its kind have taken less time than this together, even if
a tenth of the answers' time is less. It suffices for four checks on a network of forty tables.
"""
_MOST_KEPT = REMEMBERED**2
"""The number of structures that are remembered as checked: ``REMEMBERED`` kinds of evidence with
``REMEMBERED`` kinds of questions each. Others are checked each time.
"""


class Contradiction(NumericalFailure):
    """Raised if two computations of one number disagree, so that one of them is wrong."""


class FirstUses:
    """A record of which structures of one model or graph were checked, and of the time that checks
    took.

    Each kind of answer has its own time for checks: a tenth of the time of those answers of this
    kind that were not checked before, at most a second. A new check begins only while the checks of
    the kind have taken less than this time, or less than a millisecond; the checks together take at
    most this time, or five milliseconds if that is more. A structure whose check could not begin is
    checked when it is asked again and there is time.
    """

    def __init__(self) -> None:
        self._checked: set[tuple[str, Hashable]] = set()
        self._answering: dict[str, float] = defaultdict(float)
        self._checking: dict[str, float] = defaultdict(float)

    def check(
        self, kind: str, structure: Hashable, started: float, at: Callable[[float], None]
    ) -> None:
        """Check an answer if its structure was not checked before and there is time left.

        Args:
            kind: the kind of the answer; each kind has its own time.
            structure: what identifies the question except for its values.
            started: the ``time.perf_counter()`` at which the answer was begun.
            at: the check, called with the seconds that it may take. It may raise Contradiction, or
                TooLong, which ends it without a result; the structure then counts as checked.
        """
        if (kind, structure) in self._checked:
            return
        begun = time.perf_counter()
        self._answering[kind] += begun - started
        share = min(MOST, SHARE * self._answering[kind])
        if self._checking[kind] >= max(FIRST_SECONDS, share):
            return
        with suppress(TooLong):
            at(max(LEAST, share) - self._checking[kind])
        self._checking[kind] += time.perf_counter() - begun
        if len(self._checked) < _MOST_KEPT:
            self._checked.add((kind, structure))


def checked_marginals(
    inference: MarginalOracle,
    potentials: torch.Tensor,
    total: float,
    started: float,
    sums: PlainSums,
) -> tuple[torch.Tensor, float]:
    """Return the marginals and the log partition function of ``inference.marginals``, after
    ``check`` found no error.

    ``sums`` are over the factors from which the potentials were made, and ``started`` is the
    ``time.perf_counter()`` at which inference began. Raises NumericalFailure if no record is
    possible, and if the result contradicts itself or the second computation.
    """
    with inference.session():
        marginals, log_partition = inference.marginals(potentials, total)
        check(inference, potentials, marginals, log_partition, sums, total=total, started=started)
    return marginals, log_partition


def check(
    inference: MarginalOracle,
    potentials: torch.Tensor,
    marginals: torch.Tensor,
    log_partition: float,
    sums: PlainSums | None = None,
    *,
    total: float,
    started: float,
) -> None:
    """Raise NumericalFailure if the result of an inference pass contradicts itself or the second
    computation.

    Args:
        inference: the oracle that made the pass.
        potentials: the flat potentials of the pass.
        marginals: the flat marginals that it returned, in counts.
        log_partition: the log partition function over the cliques' attributes.
        sums: plain sums over the factors from which the potentials were made, over all attributes
            of the cliques at least; None to sum over the potentials themselves.
        total: the number that the marginal over each clique sums to.
        started: the ``time.perf_counter()`` at which inference began; the check may take about a
            tenth of the time since then, but at least a few milliseconds and at most a second.
    """
    seconds = min(MOST, max(LEAST, SHARE * (time.perf_counter() - started))) / 2
    epsilon = float(torch.finfo(inference.dtype).eps)
    found = _array(marginals) / total
    layout = inference.layout
    held = {name for clique in layout.cliques for name in clique}
    if sums is None:
        own = _array(inference.masked(potentials))
        places = zip(layout.cliques, layout.slices, layout.shapes, strict=True)
        tables = [(clique, own[cells].reshape(shape)) for clique, cells, shape in places]
        sums = PlainSums(tables, {n: s for n, s in layout.domain.sizes.items() if n in held})
    free = fsum(log(size) for name, size in sums.sizes.items() if name not in held)
    # `rounding` allows for a pass in log space, whose every step adds numbers as large as the sum
    # of the potentials' magnitudes. Where that sum is small, sums of probabilities round more than
    # this: 1e6 epsilon is allowed for them in marginals, and epsilon * CLOSE in logarithms.
    rounding = min(DEFECT, epsilon * ROUNDINGS * len(inference.plan.axes) * sums.size)
    _check_tables(inference, found, max(1e6 * epsilon, rounding), seconds / 2)
    slack = epsilon * CLOSE + rounding
    begun = time.perf_counter()
    for number, (evidence, share) in enumerate(_places(layout, found)):
        more = sums.further_evidence(evidence, seconds)
        if more and number:
            return
        if more:
            evidence = {**evidence, **more}
            theirs = inference.log_partition(_restricted(inference, potentials, evidence))
        else:
            theirs = log_partition + log(share)
        try:
            mine = sums.log_sum(evidence).real - free
        except TooLong:  # there is no memory for the second computation
            return
        if not (abs(mine - theirs) <= slack or (isinf(mine) and mine == theirs)):
            raise Contradiction(
                f"inference contradicts a second computation: the logarithm of the sum over all "
                f"records with {evidence!r} is {theirs!r} by inference and {mine!r} by the second "
                f"computation, and rounding explains at most {slack:.2g}. Nothing computed from "
                f"these {len(sums.tables)} cliques can be trusted; please report them"
            )
        spent = time.perf_counter() - begun
        if spent * (number + 2) / (number + 1) > seconds:  # no time for one more
            return


def _places(layout: Layout, found: Array) -> Iterator[tuple[dict[str, int], float]]:
    """Yield evidence and its probability by the flat marginals ``found`` (shares of the total) that
    inference returned: the likeliest cell of the largest clique, no evidence at all, and then, for
    random cliques, the likeliest cell or a random one that is not rare.
    """
    rng = np.random.default_rng(0)  # this choice affects no result

    def cell_of(place: int, likely: bool) -> tuple[dict[str, int], float]:
        table = found[layout.slices[place]]
        possible = () if likely else np.flatnonzero(table >= min(UNLIKELY, table.mean()))
        cell = int(table.argmax()) if likely else int(rng.choice(possible))
        values = (int(v) for v in np.unravel_index(cell, layout.shapes[place]))
        return dict(zip(layout.cliques[place], values, strict=True)), float(table[cell])

    count = len(layout.cliques)
    yield cell_of(max(range(count), key=lambda i: prod(layout.shapes[i])), likely=True)
    yield {}, 1.0
    for place in rng.integers(count, size=FEW_ROUNDS):
        yield cell_of(int(place), likely=bool(rng.random() < 0.5))


def _check_tables(inference: MarginalOracle, found: Array, allowed: float, seconds: float) -> None:
    """Raise Contradiction unless all marginals, which are flat in ``found``, sum to one and agree
    on single attributes that they share, up to ``allowed``. The second part ends after ``seconds``,
    even if not all are compared.
    """
    layout = inference.layout
    sums = np.add.reduceat(found, [s.start for s in layout.slices])
    if not np.abs(sums - 1).max() <= allowed:
        worst = int(np.abs(sums - 1).argmax())
        raise Contradiction(
            f"inference contradicts itself: the marginal over {layout.cliques[worst]} sums to "
            f"{sums[worst]} of the total. Please report these {len(layout.cliques)} cliques"
        )
    deadline = time.perf_counter() + seconds
    singles: dict[str, Array] = {}
    for clique, place, shape in zip(layout.cliques, layout.slices, layout.shapes, strict=True):
        if time.perf_counter() > deadline:
            return
        for axis, name in enumerate(clique):
            table = found[place].reshape(prod(shape[:axis]), shape[axis], -1).sum(axis=(0, 2))
            if not np.abs(singles.setdefault(name, table) - table).max() <= allowed:
                raise Contradiction(
                    f"inference contradicts itself: the marginal of {name!r} differs between "
                    f"cliques by {np.abs(singles[name] - table).max():.3g} of the total, here "
                    f"{clique}. Please report these {len(layout.cliques)} cliques"
                )


def _restricted(
    inference: MarginalOracle, potentials: torch.Tensor, evidence: Mapping[str, int]
) -> torch.Tensor:
    """Return the potentials with minus infinity in every cell that contradicts the evidence."""
    layout, sizes = inference.layout, inference.layout.domain.sizes
    zeros = [Zeros((name,), np.arange(sizes[name]) == value) for name, value in evidence.items()]
    excluded = impossible_cells(layout, zeros, potentials.device)
    assert excluded is not None
    return potentials.masked_fill(excluded, -inf)


def _array(tensor: torch.Tensor) -> Array:
    return tensor.detach().cpu().numpy().astype(np.float64, copy=False)
