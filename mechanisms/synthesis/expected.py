"""Errors of questions and the least epsilon for them, before there are any data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mechanisms.synthesis.questions import PlannedQuestion
from mechanisms.synthesis.request import Request
from pgmkit import InvalidInput, Schema
from pgmkit.runtime.typed import typed


@typed
def expected_errors(
    schema: Schema, queries: Sequence[str], *, epsilon: float, delta: float, **options: Any
) -> tuple[PlannedQuestion, ...]:
    """Return the standard errors that the answers to questions in words will have, one
    `PlannedQuestion` for each question. They do not depend on the data, so nothing is spent to
    learn them.

    `options`: further arguments of `synthesize`, such as `neighbours`, `unit` and `max_rows`.
    Raises InvalidInput for questions that the schema does not answer, and where errors depend on
    the data: for open columns, for auto with public records, and for mechanisms other than auto,
    `matrix` and `matrix+pgm`.

    >>> from pgmkit import Boolean, Integer, Schema
    >>> people = Schema({"age": Integer(0, 99), "ill": Boolean()})
    >>> for each in expected_errors(people, ["cdf(age) | ill", "ill"], epsilon=1.0, delta=1e-9):
    ...     print(each)
    cdf(age) | ill: +-...
    ill: +-...
    """
    request = Request(schema=schema, queries=queries, epsilon=epsilon, delta=delta, **options)
    if not request.planned:
        raise InvalidInput(
            "errors are known beforehand without open columns and public records, for auto, matrix "
            f"and matrix+pgm; got {request.mechanism!r}"
        )
    return request.planned


@typed
def least_epsilon(
    schema: Schema, queries: Sequence[str], within: float, *, delta: float, **options: Any
) -> float:
    """Return the least epsilon with which every answer is at most `within` records from the truth,
    each with a probability of 95%.

    `synthesize` with the same `within` in place of epsilon spends this epsilon. If it gets this
    epsilon without an `accounting`, it may use one that has a few percent more noise. `options`:
    further arguments of `synthesize`. Raises InvalidInput for questions that the schema does not
    answer, where errors depend on the data (see `expected_errors`), and for questions about sums
    and means, whose answers are not in records.

    >>> from pgmkit import Boolean, Integer, Schema
    >>> people = Schema({"age": Integer(0, 99), "ill": Boolean()})
    >>> least_epsilon(people, ["cdf(age) | ill"], 500, delta=1e-9) < 0.2
    True
    """
    request = Request(schema=schema, queries=queries, within=within, delta=delta, **options)
    return request.budget.epsilon
