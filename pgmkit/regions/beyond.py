"""Answers about attributes that share no region, from the records that the joint distribution was
fitted with.

Of a question's attributes, consider the one that was drawn last. The probabilities from which its
value was drawn are known for each record, and are summed in place of the value
(Rao-Blackwellisation). The answer then has the same expectation, but only the sampling noise of the
other attributes. If an attribute that these probabilities were conditioned on was drawn again
later, they no longer belong to the record, and values are counted instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

import numpy as np

from pgmkit.domain import Clique
from pgmkit.linear.matrix import as_dense
from pgmkit.queries import FactoredQuery
from pgmkit.regions.chain import cells_of
from pgmkit.regions.joint import Joint
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.memory import check_room
from pgmkit.runtime.sizes import CELL_BYTES, TABLE_CELLS


def expected_marginals(joint: Joint, cliques: Iterable[Clique]) -> dict[Clique, Array]:
    """Return the marginals of the joint distribution, as fractions, estimated from its records. The
    axes are in each clique's order. Raises ModelTooLarge for a table without room in memory.
    """
    last = {clique: joint.last_drawn(clique) for clique in cliques}
    for clique in last:
        _check_room(f"the marginal over {clique!r:.200}", joint.records.domain.size(clique))
    counted = joint.records.marginals([clique for clique, name in last.items() if name is None])
    found = {clique: counts / len(joint.records) for clique, counts in counted.items()}
    # Cliques with the same last attribute follow each other, so that the probabilities of this
    # attribute are computed only once.
    drawn = [(name, clique) for clique, name in last.items() if name is not None]
    return found | {clique: _summed_chances(joint, clique, name) for name, clique in sorted(drawn)}


def _summed_chances(joint: Joint, clique: Clique, name: str) -> Array:
    """Return the marginal over ``clique``, as fractions: each record counts in the cell of its
    other attributes, with the probabilities from which its value of ``name`` was drawn.
    """
    from scipy.sparse import csr_array

    domain, records = joint.records.domain, joint.records
    others = tuple(other for other in clique if other != name)
    cells = cells_of(domain, [others], records.columns, len(records))[:, 0]
    entries = np.ones(len(cells)), cells, np.arange(len(cells) + 1)
    lies_in = csr_array(entries, shape=(len(cells), domain.size(others)))
    table = (lies_in.T @ joint.chances(name)) / len(records)
    shape = (*domain.shape(others), domain.sizes[name])
    return np.ascontiguousarray(np.moveaxis(table.reshape(shape), -1, clique.index(name)))


def expected_answer(joint: Joint, query: FactoredQuery) -> Array:
    """Return the query's answers over the joint distribution, as fractions of the total, estimated
    from its records. Raises ModelTooLarge if there is not enough memory for them.

    Records are processed in blocks. In each block, one matrix product joins the values of the first
    half of the query's attributes with those of the second.
    """
    _check_room(f"a query over {query.attributes!r:.200}", prod(query.shape))
    half = len(query.attributes) // 2
    names = query.attributes[:half], query.attributes[half:]
    widths = [prod(query.shape[:half]), prod(query.shape[half:])]
    step = max(1, TABLE_CELLS // max(widths))
    last = joint.last_drawn(query.attributes)
    found = np.zeros(widths)
    for start in range(0, len(joint.records), step):
        part = slice(start, start + step)
        left, right = (_products(joint, query, side, last, part) for side in names)
        found += left.T @ right
    return found.reshape(query.answer_shape) / len(joint.records)


def _check_room(what: str, cells: int) -> None:
    # The table, a product or copy of it that is in memory at the same time, and the caller's copy.
    check_room(3 * CELL_BYTES * cells, what, remedy="ask for fewer attributes or answers at once")


def _products(
    joint: Joint, query: FactoredQuery, names: Clique, last: str | None, part: slice
) -> Array:
    """Return one row for each record in ``part``: the Kronecker product, over ``names``, of the
    factors' columns at the record's codes. If the attribute ``last`` (None: there is none) is among
    ``names``, its factor enters with the mean of its columns under the record's probabilities.
    """
    found = np.ones((len(range(*part.indices(len(joint.records)))), 1))
    for name in names:
        factor = query.factors[name]
        if name == last:
            columns = joint.chances(name)[part] @ factor.T
        else:
            columns = as_dense(factor[:, joint.records.columns[name][part]]).T
        found = (found[:, :, None] * columns[:, None, :]).reshape(len(found), -1)
    return found


def expected_product(joint: Joint, weights: Mapping[str, Array]) -> float:
    """Return the mean, over the records, of the product over attributes of the weight of the
    record's value. For the attribute that ``Joint.last_drawn`` returns, if any, the mean weight
    under its probabilities takes the place of the weight.
    """
    last, each = joint.last_drawn(tuple(weights)), np.ones(len(joint.records))
    for name, values in weights.items():
        if name == last:
            each *= (joint.chances(name) * values).sum(axis=1)
        else:
            each *= values[joint.records.columns[name]]
    return float(each.mean())
