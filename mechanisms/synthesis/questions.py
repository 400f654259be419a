"""Questions in words as a workload: what is measured for them, and their errors in advance.

Errors of the mechanisms `matrix` and `matrix+pgm` depend on the questions, the schema and the
budget alone, so they are known before anything is spent, and the least budget for given errors too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mechanisms.privacy.budget import Accounting, Budget
from mechanisms.privacy.neighbours import Neighbours
from mechanisms.privacy.noise_scales import reach
from mechanisms.queries.query_sets import CODES, Asked, QuerySet, kind_of
from mechanisms.strategies.best import Goal, best_strategy, expected_variance
from mechanisms.strategies.clique_queries import UNASKED
from mechanisms.synthesis.open_columns import assumed
from mechanisms.workload import Workload
from pgmkit import InvalidInput, Schema
from pgmkit.linear.matrix import MatrixLike, as_dense
from pgmkit.runtime.arguments import instance
from pgmkit.tables.question_plan import linear_parts
from pgmkit.tables.summaries import SUMMARIES


@dataclass(frozen=True)
class PlannedQuestion:
    """The standard error that the answers to a question will have, whatever the data are.

    Attributes:
        question: The question.
        stddev: The square root of the mean variance of the answers. For counts and cumulative
            counts, also those from which a median or quantile is computed, it is in records; for a
            sum it is in the column's unit; for a mean it has to be divided by the group's number of
            records.
        largest: The largest standard error of an answer, in the same unit.
        kind: "count", or the kind of the question's summary, such as "cdf".
    """

    question: str
    stddev: float
    largest: float
    kind: str = "count"

    def at(self, cost: float, pure: bool) -> PlannedQuestion:
        """Return the question with its errors at `cost`; its present ones are those at a cost of 1.
        `pure`: True if the cost is an epsilon, to which errors are inversely proportional; False if
        it is a rho, whose square root takes its place.
        """
        smaller = cost if pure else cost**0.5
        return replace(self, stddev=self.stddev / smaller, largest=self.largest / smaller)

    def __str__(self) -> str:
        spread = "" if self.largest <= 1.05 * self.stddev else f" (at most {self.largest:.3g})"
        unit = SUMMARIES[self.kind].unit if self.kind in SUMMARIES else "records"
        return f"{self.question}: +-{self.stddev:.3g} {unit}".rstrip() + spread

    def to_dict(self) -> dict[str, Any]:
        """Return plain values by the fields' names."""
        return dict(vars(self))


def check_questions(schema: Schema, questions: Sequence[str]) -> None:
    """Raise InvalidInput unless the schema answers these questions, one at least.

    A question is refused if it has a condition on an open column (whose values are still to be
    found in the data), or steps of such a column.
    """
    if not questions:
        raise InvalidInput(
            "queries must be a list of questions in words, got none; write, for example, "
            '["cdf(income) | region", "age in 5-year steps x sex"]'
        )
    known = assumed(schema)
    for text in questions:
        try:
            question = linear_parts(known, instance(text, str, "a question")).question
        except InvalidInput as error:
            found = ", ".join(schema.unresolved)
            told = f"; the values of {found} are still to be found" if found else ""
            raise InvalidInput(f"the question {text!r}: {error}{told}") from None
        for name in (*question.allowed, *question.steps):
            if name in schema.unresolved:
                raise InvalidInput(
                    f"the question {text!r} has a condition on {name!r}, or steps of it, whose "
                    "values are still to be found; list them in the schema"
                )


def question_workload(schema: Schema, questions: Sequence[str]) -> Workload:
    """Return the workload of the questions, each of weight 1, and of the marginal of each column
    of two or more values that no question names.

    These columns are measured so that records can be drawn. If a sum of variances is minimised,
    their share of the budget is about a tenth of the questions' share under Gaussian noise, and
    larger under Laplace noise; if the largest variance is minimised, it is smaller.

    >>> from pgmkit import Boolean, Integer, Schema
    >>> people = Schema({"age": Integer(0, 9), "ill": Boolean(), "old": Boolean()})
    >>> [each.clique for each in question_workload(people, ["ill", "cdf(age) | ill"]).sets]
    [('ill',), ('ill', 'age'), ('old',)]
    """
    asked = [linear_parts(schema, text).query for text in questions]
    sets = [
        QuerySet(q.attributes, tuple(_named(q.factors[n]) for n in q.attributes)) for q in asked
    ]
    named = {name for each in sets for name in each.clique}
    others = [name for name, size in schema.domain.sizes.items() if name not in named and size > 1]
    # Under Gaussian noise a weighted sum of variances is least if each set's share of the budget
    # grows with the square root of its weight.
    weight = (UNASKED * len(sets) / len(others)) ** 2 if others else 1.0
    sets += [QuerySet((name,), (CODES,), weight) for name in others]
    return Workload.of(schema.domain, sets)


def at_every_level(schema: Schema, workload: Workload) -> Workload:
    """Return the workload with each set of queries repeated for every combination of the levels,
    single values included, of the columns that it asks value by value.

    >>> from pgmkit import Integer, Level, Schema
    >>> ages = {"stage": Level("age", {"minor": "..1", "adult": "2.."})}
    >>> schema = Schema({"age": Integer(0, 3)}, levels=ages)
    >>> [each.asked for each in at_every_level(schema, Workload(schema.domain, [("age",)])).sets]
    [('identity',), (array([[1., 1., 0., 0.],
           [0., 0., 1., 1.]]),)]
    """
    asked: dict[str, list[Asked]] = {}
    for level in schema.groups.values():
        asked.setdefault(level.base, [CODES]).append(level.members().astype(np.float64))

    def every(name: str, own: Asked) -> list[Asked]:
        return asked.get(name, [own]) if kind_of(own) == CODES else [own]

    sets = [
        replace(each, asked=combined)
        for each in workload.sets
        for combined in itertools.product(*map(every, each.clique, each.asked))
    ]
    return Workload.of(workload.domain, sets, sought=workload.sought)


def planned(
    schema: Schema, questions: Sequence[str], relation: Neighbours, *, pure: bool, goal: Goal
) -> tuple[PlannedQuestion, ...]:
    """Return the errors of the questions when `matrix` spends a cost of 1 on them: an epsilon of 1
    if `pure`, else a rho of 1. `goal`: what `matrix` minimises: the "sum" of the variances of all
    answers, the sum of the "mean" variances of the questions, or the "largest" variance.
    """
    norm = 1 if pure else 2
    workload = question_workload(schema, questions)
    strategy = best_strategy(
        workload, relation, norm, total_known=relation.rows_public, objective=goal
    )
    found = []
    for text in questions:
        parts = linear_parts(schema, text)
        variance = expected_variance(workload, strategy, parts.query, relation, norm)
        variance = np.reshape(variance, parts.query.shape or [1])[..., parts.shown]
        summary = parts.question.summary
        kind = "count" if summary is None else summary.kind
        errors = parts.unit * np.sqrt(variance)
        typical = float(np.sqrt((errors**2).mean()))
        found.append(PlannedQuestion(text, typical, float(errors.max(initial=0.0)), kind))
    return tuple(found)


def least_budget(
    found: Sequence[PlannedQuestion],
    within: float,
    delta: float,
    accounting: Accounting | None,
    share: float = 1.0,
) -> Budget:
    """Return the least budget with which every answer is at most `within` records from the truth,
    each with a probability of 95%, if `share` of the budget is for the questions. For medians and
    quantiles this holds for the cumulative counts from which they are computed. If the budget is
    pure, a little less suffices where the noise of every answer is a sum of several variables.

    `found`: the errors of the questions at a cost of 1. `accounting`: that of the budget; None for
    the one with the lesser epsilon.

    Raises InvalidInput for sums and means, which are not in records, and where the epsilon is 0 or
    above 1e100, or no noise can be computed for it (`Budget`).
    """
    pure = delta == 0
    for each in found:
        if each.kind in SUMMARIES and SUMMARIES[each.kind].weighted:
            raise InvalidInput(
                f"{each.question!r} is not answered in records, which `within` is about; leave it "
                "out, or give epsilon"
            )
    # Whole-number noise that is within 2.9 records is within 2, and that is at least as likely as
    # continuous noise within 2.5. So 2.9 is planned for as 2.5.
    nearest = min(within, math.floor(within) + 0.5)
    wanted = reach(0.95, pure=pure) * max(each.largest for each in found) / nearest
    if pure:
        return Budget(wanted / share, accounting=accounting or "zcdp")
    kinds: tuple[Accounting, ...] = ("gaussian", "zcdp") if accounting is None else (accounting,)
    try:
        epsilons = [_reaching(wanted**2 / share, delta, kind) for kind in kinds]
    except OverflowError:
        epsilons = [math.inf]
    epsilon = min(epsilons)
    if not 0 < epsilon <= 1e100:  # `Budget` takes no larger one
        raise InvalidInput(
            f"answers within {within:g} records need epsilon = {epsilon:g}, which is no budget; "
            f"allow {'smaller' if epsilon == 0 else 'larger'} errors"
        )
    return Budget(epsilon, delta, accounting=kinds[epsilons.index(epsilon)])


def _reaching(cost: float, delta: float, accounting: Accounting) -> float:
    """Return the least epsilon for which the total of a budget is at least `cost`. The conversion
    rounds it. The result may be 0 or above 1e100; no budget takes such an epsilon, and the caller
    refuses it.
    """
    epsilon = Budget(1.0, delta, accounting=accounting).epsilon_spent(cost)
    while 0 < epsilon <= 1e100 and Budget(epsilon, delta, accounting=accounting).total < cost:
        epsilon *= 1 + 1e-6
    return epsilon


def _named(matrix: MatrixLike) -> Asked:
    """Return "identity" or "prefix" if the matrix is that of these queries, and otherwise the
    matrix as a dense array.
    """
    rows = as_dense(matrix)
    n = rows.shape[1]
    if rows.shape == (n, n):
        for name, named in ((CODES, np.eye(n)), ("prefix", np.tri(n))):
            if np.array_equal(rows, named):
                return name
    return rows
