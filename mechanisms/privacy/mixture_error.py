"""The best mixture error of public records: a linear program (Liu et al. 2021, Definition 2.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from pgmkit.errors import NumericalFailure
from pgmkit.records.dataset import Dataset

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pgmkit.domain import Clique

__all__ = ["best_mixture_error"]


def best_mixture_error(
    public: Dataset, counts: Mapping[Clique, NDArray[np.int64]], rows: int
) -> float:
    """Return the least, over distributions on the public records, of the largest error of a cell.

    >>> from pgmkit.domain import Domain
    >>> public = Dataset(Domain({"a": 3}), {"a": [0, 1]})
    >>> round(best_mixture_error(public, {("a",): np.array([5, 3, 2])}, 10), 6)
    2.0
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, hstack, vstack

    distinct = np.unique(np.stack([public.columns[n] for n in public.domain], axis=1), axis=0)
    codes = {name: distinct[:, i].astype(np.int64) for i, name in enumerate(public.domain)}
    parts = []
    for clique, table in counts.items():
        columns = tuple(codes[name] for name in clique)
        cells = np.ravel_multi_index(columns, table.shape)
        ones = np.full(len(distinct), float(rows))
        places = np.arange(len(distinct))
        parts.append(csr_array((ones, (cells, places)), (table.size, len(distinct))))
    answers = vstack(parts).tocsr()
    wanted = np.concatenate([table.reshape(-1) for table in counts.values()]).astype(np.float64)
    slack = csr_array(np.ones((len(wanted), 1)))
    found = linprog(
        np.append(np.zeros(len(distinct)), 1.0),
        A_ub=vstack([hstack([answers, -slack]), hstack([-answers, -slack])]),
        b_ub=np.concatenate([wanted, -wanted]),
        A_eq=csr_array(np.append(np.ones(len(distinct)), 0.0)[None, :]),
        b_eq=[1.0],
        method="highs",
    )
    if found.status != 0:
        raise NumericalFailure("the linear program of the best mixture error was not solved")
    return float(found.fun)
