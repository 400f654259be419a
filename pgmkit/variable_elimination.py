"""Factored queries by variable elimination (McKenna et al., 2019, algorithm 3).

Every query matrix Q_i is one more factor, over the attribute x_i and a new axis z_i, and the
model's own factors are contracted with them until only the z axes are left. Entries of Q may be
negative, so this runs in linear space; the model's factors are nonnegative with a known sum, so
nothing can overflow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from pgmkit.contraction import contract
from pgmkit.contraction_order import plan
from pgmkit.domain import Clique, Domain
from pgmkit.errors import ModelTooLarge
from pgmkit.junction_tree import JunctionTree
from pgmkit.matrix import as_dense
from pgmkit.queries import FactoredQuery
from pgmkit.semirings import LINEAR

Factors = Sequence[tuple[Clique, torch.Tensor]]


def spanning_factors(
    tree: JunctionTree, beliefs: Sequence[torch.Tensor], attributes: Clique, total: float
) -> Factors:
    """Tables over the smallest part of the tree that holds the attributes; their product, summed
    over everything, is the total.

    Beyond that part lie conditional tables only, which sum to one.
    """
    needed: set[int] = set()
    for name in attributes:
        place = tree.highest[name]
        while place >= 0 and place not in needed:
            needed.add(place)
            place = tree.parents[place]
    wanted = frozenset(attributes)
    tops: list[int] = []
    for root in sorted(place for place in needed if tree.parents[place] < 0):
        top = root
        while True:
            below = [child for child in tree.children[top] if child in needed]
            if len(below) != 1 or not wanted.intersection(tree.cliques[top]).issubset(
                tree.cliques[below[0]]
            ):
                break
            needed.discard(top)
            (top,) = below
        tops.append(top)
    if not tops:
        tops = [min(range(len(beliefs)), key=lambda place: beliefs[place].numel())]
    factors = [(tree.cliques[tops[0]], beliefs[tops[0]])]
    factors += [(tree.cliques[top], beliefs[top] / total) for top in tops[1:]]
    for place in sorted(needed.difference(tops)):
        clique, separator, belief = tree.cliques[place], tree.separators[place], beliefs[place]
        summed = [i for i, name in enumerate(clique) if name not in separator]
        above = belief.sum(summed, keepdim=True)
        factors.append((clique, torch.where(above > 0, belief / above, torch.zeros_like(belief))))
    return factors


def answers(
    domain: Domain,
    factors_of: Callable[[Clique], Factors],
    queries: Sequence[FactoredQuery],
    memory_limit: int,
) -> list[NDArray[np.float64]]:
    """One array of shape ``answer_shape`` for each query.

    ``factors_of`` gives nonnegative tables over some attributes, and others where it is needed,
    whose product, summed over everything, is the total. Queries over the same attributes with
    matrices of the same shapes are answered together, and what no query touches is summed out once.
    """
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, query in enumerate(queries):
        query.check(domain)
        groups[(query.attributes, query.shape)].append(place)
    found: list[NDArray[np.float64]] = [np.empty(0)] * len(queries)
    for places in groups.values():
        alike = [queries[i] for i in places]
        factors = factors_of(alike[0].attributes)
        together = _answer_alike(domain, factors, alike, memory_limit)
        for place, answer in zip(places, together, strict=True):
            found[place] = answer.reshape(queries[place].answer_shape).copy()
    return found


def _answer_alike(
    domain: Domain,
    factors: Factors,
    queries: Sequence[FactoredQuery],
    memory_limit: int,
) -> NDArray[np.float64]:
    """A row of answers, flat, for each query."""
    like = factors[0][1]
    inputs = [clique for clique, _ in factors]
    tensors = [table for _, table in factors]
    prefix = _answer_prefix(domain)
    sizes = {**domain.sizes, prefix: len(queries)}
    batch: Clique = (prefix,) if len(queries) > 1 else ()
    output = batch
    for name in queries[0].attributes:
        matrices = np.stack([np.asarray(as_dense(query.factors[name])) for query in queries])
        # A matrix of one row needs no answer axis; the shape gets it back at the end.
        answer: Clique = (prefix + name,) if matrices.shape[1] > 1 else ()
        axes = (*batch, *answer, name)
        sizes.update((axis, matrices.shape[1]) for axis in answer)
        kept = matrices if batch else matrices[0]
        inputs.append(axes)
        tensors.append(
            torch.as_tensor(kept, dtype=like.dtype, device=like.device).reshape(
                [sizes[axis] for axis in axes]
            )
        )
        output += answer
    if not queries[0].attributes:
        output = ()
    prepared = plan(inputs, output, sizes)
    if prepared.largest * tensors[0].element_size() > memory_limit:
        raise ModelTooLarge(
            f"answering the query over {queries[0].attributes} builds a table of "
            f"{prepared.largest:,} cells; the limit is {memory_limit / 2**20:,.0f} MiB. Ask fewer "
            "rows or attributes at once"
        )
    result = contract(prepared, tensors, LINEAR).cpu().numpy().astype(np.float64)
    # Queries without attributes are all alike and were contracted as one.
    rows = result.reshape(-1, prod(queries[0].shape))
    return np.broadcast_to(rows, (len(queries), rows.shape[1]))


def _answer_prefix(domain: Domain) -> str:
    """Before any attribute's name, or by itself, no attribute's name: it begins with more ``>``."""
    return ">" * (1 + max(len(name) - len(name.lstrip(">")) for name in domain))
