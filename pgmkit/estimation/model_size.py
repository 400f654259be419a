"""The memory that estimating a model over given cliques takes, and the oracle for it."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch

from pgmkit.contraction.order import plan
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput, ModelTooLarge
from pgmkit.graphs.clique_index import maximal
from pgmkit.graphs.junction_tree import check_fits, junction_tree, model_cells
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.inference.observations import acts_by_coordinates, host
from pgmkit.linear.kronecker import factors_of, nonzeros
from pgmkit.measurement import Measurement
from pgmkit.runtime.devices import device_of
from pgmkit.runtime.memory import MEMORY_LIMIT, available, counted
from pgmkit.runtime.sizes import CELL_BYTES
from pgmkit.structural_zeros import Zeros

SOLVER_VECTORS = 14
"""The number of vectors over the cliques' cells that a method has in memory: points, gradients,
cuts, and the best point so far.
"""
_GPU_VECTORS = 2 * SOLVER_VECTORS
"""The number of vectors over the cliques' cells that a method has in memory on a GPU, where a step
allocates all memory in advance and its state is copied.
"""
_OBSERVED_BYTES = 5 * CELL_BYTES
"""The bytes of a measured cell, or of an entry of a matrix: its place, weight, value, residual, and
a product of these.
"""
_START_BYTES = 12 * CELL_BYTES
"""The bytes of a measured cell in the search for consistent tables, most of them for the
constraints.
"""
BASE_BYTES = 48 << 20
"""The bytes that the libraries take when they are first used."""


def tree_oracle(
    domain: Domain,
    used: Sequence[Measurement],
    zeros: Sequence[Zeros],
    device: str | torch.device | None,
    memory_limit: int | None,
) -> MarginalOracle:
    """Return the oracle for the cliques of these measurements and zeros, on the device that
    ``device`` names (None for the CPU; "auto" chooses by the multiplications of a pass).

    Raises ModelTooLarge if the estimation would take more than ``search_limit(memory_limit)``
    bytes, or the junction tree of the model more than ``model_limit(memory_limit)``; and
    InvalidInput if zeros leave no record possible.
    """
    cliques = cliques_of(domain, used, zeros)
    where = device_of(device, lambda: plan(cliques, (), domain.sizes).cost)
    limit = search_limit(memory_limit, where)
    oracle = MarginalOracle(domain, cliques, device=where, memory_limit=limit, zeros=zeros)
    needed, cells = needed_bytes(oracle, used), oracle.layout.cells
    if needed > limit:
        measured = sum(domain.size(m.clique) for m in used)
        raise ModelTooLarge(
            f"estimation from {measured:,} measured cells in {cells:,} cells of cliques needs "
            f"{counted(needed)} bytes; the limit is {limit:,} bytes. Measure fewer or smaller "
            "cliques, or raise memory_limit"
        )
    # The model's junction tree must fit too, for answers and samples. The size that is computed
    # first is an upper bound, so a better tree is searched for only if it exceeds the limit.
    if model_cells(domain, cliques) * CELL_BYTES > model_limit(memory_limit):
        check_fits(junction_tree(domain, cliques), model_limit(memory_limit))
    if zeros and oracle.maximum(torch.zeros(cells, dtype=oracle.dtype, device=where)) == -inf:
        raise InvalidInput(
            f"the zeros over {', '.join(repr(each.clique) for each in zeros)} together leave no "
            "possible record; allow more combinations"
        )
    return oracle


def search_limit(memory_limit: int | None, device: torch.device) -> int:
    """Return the bytes of working memory that the estimation of a model may take: ``memory_limit``
    or, if that is None, half of the memory that this process may use, or of a GPU's free memory.
    """
    return memory_limit if memory_limit is not None else available(device) // 2


def model_limit(memory_limit: int | None) -> int:
    """Return the bytes that the tables of the model's junction tree may take: 4 GiB, or
    ``memory_limit`` if that is larger.
    """
    return max(MEMORY_LIMIT, memory_limit or 0)


def cliques_of(
    domain: Domain, used: Sequence[Measurement], zeros: Sequence[Zeros] = ()
) -> list[Clique]:
    """Return the maximal cliques of the measurements and zeros, each in the domain's attribute
    order. If there are none, this is the empty clique, which stands for the uniform model.
    """
    cliques = [*(m.clique for m in used), *(z.clique for z in zeros), ()]
    return [domain.ordered(cliques[place]) for place in maximal(cliques)]


def working_bytes(domain: Domain, measurements: Sequence[Measurement]) -> int:
    """Return an upper bound on the bytes of memory that an estimate in float64 by the default
    method takes on the CPU beyond its measurements.

    >>> y = Measurement(("a", "b"), [0.0] * 1_000_000, 1.0)
    >>> working_bytes(Domain({"a": 1000, "b": 1000}), [y]) > 100_000_000
    True
    """
    used = [m for m in measurements if m.clique]
    return needed_bytes(MarginalOracle(domain, cliques_of(domain, used)), used)


def needed_bytes(inference: MarginalOracle, used: Sequence[Measurement]) -> int:
    """Return an upper bound on the bytes of working memory that an estimate takes."""
    layout, cells = inference.layout, 0
    for m in used:
        # The size of a sparse matrix is the number of its stored entries.
        entries = sum(int(each.size) for each in factors_of(m.matrix))
        # A matrix in coordinates is written out over the cells of the clique that hosts it.
        if m.matrix is not None and acts_by_coordinates(layout, m):
            entries = max(entries, nonzeros(m.matrix))
            entries *= layout.domain.size(layout.cliques[host(layout, m.clique)])
            entries //= layout.domain.size(m.clique)
        cells += max(layout.domain.size(m.clique), entries)
    tabular = sum(len(m.values) for m in used if m.matrix is None)
    # While the entries are put in order, they take as much memory again.
    phases = (_START_BYTES * tabular, _OBSERVED_BYTES * cells, search_bytes(inference))
    return BASE_BYTES + _OBSERVED_BYTES * cells + max(phases)


def search_bytes(inference: MarginalOracle) -> int:
    """Return an upper bound on the bytes that a search takes beside its measurements."""
    vectors = _GPU_VECTORS if inference.device.type == "cuda" else SOLVER_VECTORS
    return inference.pass_bytes + vectors * inference.layout.cells * inference.dtype.itemsize
