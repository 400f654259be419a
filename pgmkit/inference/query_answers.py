"""The interface of models that answer factored queries, one or several at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import overload

import numpy as np

from pgmkit.errors import InvalidInput
from pgmkit.linear.kronecker import applied
from pgmkit.queries import FactoredQuery
from pgmkit.runtime.arguments import instance, listed
from pgmkit.runtime.arrays import Array


class QueryAnswers(ABC):
    """A model that answers factored queries, one or several at a time.

    >>> import numpy as np
    >>> class Nothing(QueryAnswers):
    ...     def _answered(self, query):
    ...         return np.zeros(query.answer_shape)
    >>> Nothing().answer([FactoredQuery({"a": [1.0, 0.0]})])
    [array([0.])]
    """

    @overload
    def answer(self, query: FactoredQuery) -> Array: ...
    @overload
    def answer(self, query: Sequence[FactoredQuery]) -> list[Array]: ...
    @np.errstate(over="ignore", invalid="ignore")  # `check_held` refuses such answers
    def answer(self, query: FactoredQuery | Sequence[FactoredQuery]) -> Array | list[Array]:
        """Return the answer to a query, in counts and of its ``answer_shape``; for a sequence of
        queries a list of answers.

        Raises InvalidInput for anything that is no query, for matrices that do not fit the domain,
        for answers that float64 cannot hold, and for queries that the model cannot answer, as its
        class says.
        """
        found = [self._answered(each) for each in checked_queries(query)]
        check_held(found)
        return found[0] if isinstance(query, FactoredQuery) else found

    @abstractmethod
    def _answered(self, query: FactoredQuery) -> Array:
        """Check that one query fits the domain, and return its answer."""


def checked_queries(query: FactoredQuery | Sequence[FactoredQuery]) -> list[FactoredQuery]:
    """Return one query, or several, as a list. Raises InvalidInput for anything else."""
    wanted = "FactoredQuery records, or one itself (`ask` takes questions in words)"
    several = [query] if isinstance(query, FactoredQuery) else listed(query, "query", wanted)
    return [instance(each, FactoredQuery, "a query") for each in several]


def check_held(answers: Sequence[Array]) -> None:
    """Raise InvalidInput if an answer is too large for float64."""
    if not all(np.isfinite(each).all() for each in answers):
        raise InvalidInput(
            "queries must have answers that float64 can hold, got infinity; divide their matrices "
            "by a constant"
        )


def answers_of_table(query: FactoredQuery, table: Array) -> Array:
    """Return the answers to a query, given the marginal ``table`` over its attributes, with axes in
    the query's order: an array of its ``answer_shape``, in the unit of the table.

    >>> import numpy as np
    >>> answers_of_table(FactoredQuery({"a": [[1.0, 1.0], [1.0, -1.0]]}), np.array([3.0, 1.0]))
    array([4., 2.])
    """
    return applied(query.factors.values(), table).reshape(query.answer_shape)
