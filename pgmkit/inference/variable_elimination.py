"""Factored queries by variable elimination (McKenna et al., 2019, algorithm 3).

Every query matrix Q_i is one more factor, over the attribute x_i and a new axis z_i. The model's
own factors are contracted with them until only the z axes are left. Entries of Q may be negative,
so this runs in linear space. Only large entries of Q can make it overflow, since the model's
factors are nonnegative and the sum of their product is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from pgmkit.contraction.evaluate import LINEAR, contract
from pgmkit.contraction.order import plan
from pgmkit.contraction.plan import Plan, batched
from pgmkit.domain import Clique, Domain
from pgmkit.errors import ModelTooLarge
from pgmkit.linear.matrix import along, as_dense, is_sparse
from pgmkit.queries import FactoredQuery
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.memory import counted
from pgmkit.runtime.sizes import TABLE_CELLS


def answers(
    domain: Domain,
    factors: Sequence[tuple[Clique, torch.Tensor]],
    queries: Sequence[FactoredQuery],
    memory_limit: int,
) -> list[NDArray[np.float64]]:
    """Return the answers to each query, as an array of its ``answer_shape``.

    ``factors`` are nonnegative tables; the sum of their product over all cells of the domain is the
    total, and answers are in its unit. Queries over the same attributes with matrices of the same
    shapes form a group, which one contraction answers, so that all other attributes are summed out
    once for the group; a query with a large sparse matrix (`_applied_last`) is a group of its own.
    Raises ModelTooLarge if a table of a group would exceed ``memory_limit`` bytes.
    """
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, query in enumerate(queries):
        query.check(domain)
        alone = place if _applied_last(query) else None
        groups[(query.attributes, query.shape, alone)].append(place)
    found: list[NDArray[np.float64]] = [np.empty(0)] * len(queries)
    for places in groups.values():
        alike = [queries[place] for place in places]
        # Queries without attributes all have the same answer, which was computed once and is
        # repeated here.
        rows = _contracted(domain, factors, alike, memory_limit).reshape(-1, prod(alike[0].shape))
        together = np.broadcast_to(rows, (len(alike), rows.shape[1]))
        for place, answer in zip(places, together, strict=True):
            found[place] = answer.reshape(queries[place].answer_shape).copy()
    return found


def answers_of_many(
    domain: Domain,
    factors: Sequence[tuple[Clique, torch.Tensor]],
    query: FactoredQuery,
    memory_limit: int,
) -> NDArray[np.float64]:
    """Return the answers of many models to one query, of shape (models, *query.answer_shape).

    The first axis of each factor numbers the models; otherwise the factors, the limit and the
    errors are those of ``answers``.
    """
    query.check(domain)
    count = len(factors[0][1])
    result = _contracted(domain, factors, [query], memory_limit, count)
    return result.reshape(count, *query.answer_shape)


def _contracted(
    domain: Domain,
    factors: Sequence[tuple[Clique, torch.Tensor]],
    queries: Sequence[FactoredQuery],
    limit: int,
    models: int | None = None,
) -> NDArray[np.float64]:
    """Return the answers to queries with the same attributes and matrices of the same shapes: an
    axis for the queries if there are several, then one for each attribute whose matrices have more
    than one row. Queries without attributes share one answer.

    With ``models``, the first axis of each factor, and of the result, numbers so many models.
    Raises ModelTooLarge if a table in between needs more than ``limit`` bytes.
    """
    tables = [table for _, table in factors]
    last = _applied_last(queries[0]) if len(queries) == 1 else ()
    cliques = [clique for clique, _ in factors]
    prepared, axes_of = _prepared(domain, cliques, queries, last)
    if models is not None:
        prepared = batched(prepared, models)
    if (cells := prepared.largest) * tables[0].element_size() > limit:
        raise ModelTooLarge(
            f"answering {len(queries)} queries over {queries[0].attributes!r:.200} together needs "
            f"a table of {counted(cells)} cells; the limit is {limit:,} bytes. Ask for fewer "
            "queries, rows or attributes at once, or raise memory_limit"
        )
    for name, axes in axes_of.items():
        matrices = torch.from_numpy(np.stack([as_dense(each.factors[name]) for each in queries]))
        held = matrices.to(tables[0]).reshape([prepared.sizes[axis] for axis in axes])
        tables.append(held if models is None else held.expand(models, *held.shape))
    found = contract(prepared, tables, LINEAR).cpu().numpy().astype(np.float64)
    for name in last:
        found = along(queries[0].factors[name], found, prepared.output.index(name))
    return found


def _applied_last(query: FactoredQuery) -> list[str]:
    """Return the attributes whose matrices are left out of the contraction and multiply its result
    instead. In this result such an attribute has an axis of its codes, and every other one an axis
    of its answers. The matrices are sparse and written out would have more than ``TABLE_CELLS``
    cells, and at least as many as the result.
    """
    found, cells = [], prod(query.shape)
    for name, factor in query.factors.items():
        rows, codes = factor.shape
        if is_sparse(factor) and rows * codes > TABLE_CELLS and rows * rows >= cells:
            found.append(name)
            cells = cells // rows * codes
    return found


def _prepared(
    domain: Domain,
    cliques: Sequence[Clique],
    queries: Sequence[FactoredQuery],
    last: Collection[str],
) -> tuple[Plan, dict[str, Clique]]:
    """Return the contraction plan over these cliques and the queries' matrices, and the axes of
    each attribute's matrices. The attributes in ``last`` have no matrix here, and are axes of the
    output themselves.
    """
    axes_of = dict[str, Clique]()
    # The prefix has one ">" more than any attribute's name begins with, so the prefixed names are
    # new.
    prefix = ">" * (1 + max(len(name) - len(name.lstrip(">")) for name in domain))
    sizes = {**domain.sizes, prefix: len(queries)}
    batch: Clique = (prefix,) if len(queries) > 1 else ()
    output = batch if queries[0].attributes else ()
    for name, rows in zip(queries[0].attributes, queries[0].shape, strict=True):
        if name in last:
            output += (name,)
            continue
        # A matrix of one row gets no answer axis here; the callers reshape the result to
        # `answer_shape`.
        answer: Clique = (prefix + name,) if rows > 1 else ()
        axes_of[name] = (*batch, *answer, name)
        sizes.update((axis, rows) for axis in answer)
        output += answer
    return plan([*cliques, *axes_of.values()], output, sizes), axes_of
