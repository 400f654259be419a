"""Dry runs on made-up records: as plans they show the course of a real run without its data, and up
to the first charge they raise a mechanism's refusals before anything is spent. Errors of questions
and the least epsilon for them need no run.

The mechanism itself runs on made-up records of a random network, with reproducible noise, so the
split of the budget and the noise are those of the real code. What adapts to the data will differ:
the marginals selected and, for `aim`, whose model grows if the data depend, the time and the
memory. How much a table's columns depend on each other is not public; between tables of the same
public figures the time of `aim` differs by a factor of ten and more, and that of one-shot
mechanisms does not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from mechanisms.dispatch import accounted, only_measures, run_on
from mechanisms.families.graphical import megabytes
from mechanisms.families.tables import Projecting, TablesModel
from mechanisms.privacy.budget import Accounting, Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import Ledger
from mechanisms.privacy.ledger_view import by_step
from mechanisms.privacy.neighbours import relation
from mechanisms.registry import configure
from mechanisms.release.column_counts import cell_variances
from mechanisms.release.record import Release, count_noise
from mechanisms.release.verdict import verdict
from mechanisms.synthesis.auto import Choice, mixture_seconds
from mechanisms.synthesis.open_columns import assumed
from mechanisms.synthesis.questions import PlannedQuestion
from mechanisms.synthesis.request import Request
from mechanisms.workload import Workload, WorkloadLike, pairs_of
from pgmkit import Dataset, Domain, GraphicalModel, InvalidInput, Measurement, Schema
from pgmkit.records.sampling import check_count
from pgmkit.runtime.memory import peak
from pgmkit.runtime.printed import on_one_line, percent
from pgmkit.runtime.typed import typed


@dataclass(frozen=True)
class PlannedStep:
    """The charges of one kind: `times` of them, which take this `share` of the budget together.

    `step`: what is done, without numbers of rounds and names of columns. `mechanism`: the mechanism
    of the ledger's entries that draws the noise or selects.
    """

    step: str
    mechanism: str
    times: int
    share: float


@dataclass(frozen=True)
class Plan:
    """The figures of a dry run: the split of the budget, the noise, the model's size and the time.
    Those of a real run are similar (see the module's docstring).

    Attributes:
        mechanism: The mechanism's name.
        unit: The unit of the budget, such as rho.
        total: The whole budget in this unit.
        steps: The charges, grouped by step and mechanism.
        measurements: The number of noisy tables.
        noise: The standard deviation, in counts, of the least noisy measured cells; 0 if nothing is
            measured.
        model_mb: The size of the junction tree of the dry run's model in MB; None if the model is
            not graphical.
        seconds: The CPU seconds of the dry run, without imports. Where records show stronger
            relations than made-up ones, `mixture` was seen to take four times as long (348,532 rows
            at epsilon 1), and `aim` ten times (`benchmarks/README.md`).
        peak_mb: The most memory that this process has had so far, in MB (10^6 bytes); for a fresh
            process this is that of the dry run. What is read from files, and the records that are
            drawn, come on top.
        neighbours: The neighbour relation, which says what is protected.
        max_rows: The number of rows of each protected unit that are used.
        verdict: What a release of the made-up records keeps and loses, in words
            (`TableRelease.verdict`).
        questions: The errors that questions will have (`mechanisms.expected_errors`); `plan` leaves
            them empty, and `pgmkit plan` fills them in.
    """

    mechanism: str
    unit: str
    total: float
    steps: tuple[PlannedStep, ...]
    measurements: int
    noise: float
    model_mb: float | None
    seconds: float
    peak_mb: float
    neighbours: str
    max_rows: int = 1
    verdict: tuple[str, ...] = ()
    questions: tuple[PlannedQuestion, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values by the fields' names; the total has the name of its unit."""
        stored = {**vars(self), "steps": [vars(step) for step in self.steps]}
        unit = stored.pop("unit")
        stored["verdict"] = list(self.verdict)
        stored["questions"] = [each.to_dict() for each in self.questions]
        return {unit if name == "total" else name: value for name, value in stored.items()}

    def __str__(self) -> str:
        names = [on_one_line(step.step) for step in self.steps]
        width = max(map(len, names))
        lines = [f"{self.mechanism}: {self.unit} = {self.total:.4g} in all"]
        lines += [
            f"  {name:<{width}}  {step.times:>5} x  {percent(step.share):>6}  {step.mechanism}"
            for name, step in zip(names, self.steps, strict=True)
        ]
        size = "" if self.model_mb is None else f", model {self.model_mb:.3g} MB"
        times = {"mixture": 4, "aim": 10}.get(self.mechanism)  # the most that was measured
        longer = f"; strong relations took up to {times} times as long" if times else ""
        lines.append(
            f"{self.measurements} noisy table{'s' * (self.measurements != 1)}, noise "
            f"{self.noise:.3g} counts a cell at best{size}, about {self.seconds:.2f} s and "
            f"{self.peak_mb:.0f} MB (a dry run on made-up records, which reads and writes no files"
            f"{longer})"
        )
        if self.max_rows > 1:
            lines.append(
                f"{self.neighbours}: a marginal's noise is {self.max_rows} times that of units of "
                "one row; fewer rows of each leave out more data"
            )
        if self.questions:
            lines.append("standard errors of the questions, whatever the data are:")
            lines += [f"  {on_one_line(str(each))}" for each in self.questions]
        lines += ["on made-up records of this shape:", *self.verdict] if self.verdict else []
        return "\n".join(lines)

    __repr__ = __str__


@typed
def plan(
    mechanism: str,
    workload: WorkloadLike,
    epsilon: float,
    delta: float = 0.0,
    *,
    neighbours: str,
    rows: int,
    unit: str | None = None,
    max_rows: int | None = None,
    settings: Mapping[str, Any] | None = None,
    domain: Domain | None = None,
    accounting: Accounting | None = None,
) -> Plan:
    """Run the mechanism on `rows` `made_up` records (at most 100,000), never on data, and return
    its plan.

    `unit`: the name of the column of units, if units are protected instead of rows; `max_rows`: the
    number of rows of each unit that are used, with which noise grows. `domain`: the domain of the
    records, needed if `workload` is cliques, since only a Workload has a domain. `accounting`: a
    kind of accounting (see `Budget`); by default "zcdp" or, for a mechanism that only measures, the
    one with the least noise.

    Raises InvalidInput as a real run would before it spends anything; also for mechanisms that need
    public records, and for cliques without a domain.

    >>> from mechanisms.workload import k_way
    >>> from pgmkit import Domain
    >>> found = plan("mst", k_way(Domain({"a": 2, "b": 3}), 2), 1.0, 1e-6,
    ...              neighbours="add/remove", rows=100)
    >>> [(step.step, step.times) for step in found.steps]
    [('first: measure', 2), ('edge: select', 1), ('tree: measure', 1)]
    """
    check_count(rows, "rows", 1)
    entry, chosen = configure(mechanism, **{str(n): v for n, v in (settings or {}).items()})
    if entry.public:
        raise InvalidInput(
            f"{mechanism} depends on public records, which a plan does not have; plan another "
            "mechanism, or run this one on data that need no protection"
        )
    if domain is None:
        if not isinstance(workload, Workload):
            raise InvalidInput(
                "workload must be a Workload, such as k_way(schema.domain, 2), got "
                f"{type(workload).__name__}; cliques alone need domain= beside them"
            )
        domain = workload.domain
    wanted = Workload.over(domain, workload)
    measures = only_measures(entry, chosen, wanted)
    budget = accounted(Budget(epsilon, delta), accounting, measures, None)
    rng = np.random.default_rng(0)
    # More made-up records would take longer to draw and to count. They are not needed for the
    # verdict, which compares the noise with `rows`.
    records = made_up(domain, min(rows, 100_000), rng)
    curator = Curator(records, budget, neighbours=relation(neighbours, unit, max_rows), seed=rng)
    started = time.process_time()
    release = run_on(curator, entry, chosen, wanted)
    seconds = time.process_time() - started
    # The relations that made-up records show say nothing about the data, so `shown` is left out.
    # The strength from which on relations show (`shows`) depends on how rare the columns' values
    # are, which is made up too. The median of several pairs is a rough guide to that of the data;
    # the strength of a single pair is none, and is left out.
    found = verdict(release.model, release.measurements, budget, rows)
    said = replace(found, shown="", shows=found.shows * (len(found.kept) > 1)).sentences
    if rows > len(records) and not measures:
        said += (
            f"The steps, the time and the model are those of {len(records):,} records; of {rows:,} "
            "a mechanism that selects may measure more and larger tables, which takes longer.",
        )
    said += tuple(
        _drawing_and_pairs(mechanism, chosen, release, wanted, rows // (max_rows or 1), budget)
    )
    return Plan(
        mechanism,
        budget.unit,
        budget.total,
        tuple(
            PlannedStep(step, noise, len(costs), sum(costs) / budget.total)
            for (step, noise), costs in by_step(curator.ledger.entries, curator.domain).items()
        ),
        len(release.measurements),
        _least_noise(release),
        megabytes(release.model.tree.cells) if isinstance(release.model, GraphicalModel) else None,
        seconds,
        peak() / 1e6,
        curator.neighbours.name,
        curator.neighbours.max_rows,
        said,
    )


def _least_noise(release: Release) -> float:
    """Return `Plan.noise`."""
    tables = [m for m in release.measurements if isinstance(m, Measurement)]
    found = cell_variances(release.model.domain, tables, release.model.total)
    least = [math.sqrt(each.min()) for clique, each in found.items() if clique]
    return min(least or map(count_noise, release.measurements), default=0.0)


def _drawing_and_pairs(
    mechanism: str, chosen: Any, release: Release, wanted: Workload, units: int, budget: Budget
) -> Iterator[str]:
    """Yield a sentence if no records can be drawn, and one if `mixture`, run on the made-up records
    of the plan, has measured no pairs; it says how long a run with pairs would take. `chosen`: the
    mechanism's settings. `release`: that of the run on made-up records. `units`: the number of
    rows, divided by the most rows that one protected unit may have.
    """
    if isinstance(release.model, TablesModel):
        other = isinstance(chosen, Projecting)
        yield (
            "No records can be drawn from the result, which is separate tables"
            f"{'; with inference=auto it is a model that draws them' * other}."
        )
    pairs = pairs_of(wanted.domain, wanted.asked.cliques)
    alone = all(len(m.clique) == 1 for m in release.measurements)
    if mechanism == "mixture" and pairs and alone:
        longer = mixture_seconds(wanted.domain, pairs, chosen.cells, units, budget)
        yield (
            "Noise hides all pairs of the made-up records, so that none is measured. If relations "
            f"of the data stand out from it, pairs are measured, in about {longer:.0f} s."
        )


class _FirstCharge(BaseException):
    """An exception that ends a dry run. It is a BaseException, so that no mechanism handles it as
    one of its own errors.
    """


class _DryLedger(Ledger):
    def charge(self, step: str, mechanism: str, cost: float, delta: float = 0.0) -> None:
        raise _FirstCharge


def dry_run(request: Request, choice: Choice, schema: Schema, workload: Workload) -> None:
    """Run the mechanism on made-up records up to its first charge, so that its refusals are raised.

    `schema`: the schema of the records; open columns get made-up values (`assumed`). `workload`:
    over the schema with these values. A run that pays for something before its mechanism, such as
    the values of open columns, the number of rows or a first look, makes a dry run before that. A
    refusal that depends on how many values are found, such as that of a domain that is too large,
    can still come later. A named mechanism then ends the run with `ColumnsFound`; "auto", unless
    there are public records or questions, makes a second dry run, over the values found, and takes
    independent columns if that is refused.
    """
    entry, chosen = configure(choice.name, **choice.settings)
    if any(field.name == "pretrain_steps" for field in fields(chosen)):
        chosen = replace(chosen, pretrain_steps=1)  # pretraining refuses nothing and takes time
    likely = assumed(schema)
    # Refusals depend on public figures, not on the records, so any few records will do.
    records = made_up(likely.domain, 100, np.random.default_rng(0))
    curator = Curator(records, request.budget, neighbours=request.relation, seed=0)
    curator.ledger = _DryLedger(request.budget, neighbours=request.relation.name)
    with suppress(_FirstCharge):
        run_on(curator, entry, chosen, workload, public=request.public_records(likely))


def made_up(domain: Domain, rows: int, rng: np.random.Generator) -> Dataset:
    """Return records of a random network in which a column has up to three parents among earlier
    ones.

    A column's distribution is uneven, and a different one for every combination of the parents'
    values. So columns depend on each other about as strongly as in a typical table of the half
    "choosing" of `benchmarks.regret`. On a table of this half `aim` takes from half to six times as
    long as on records made up for its columns.

    >>> from pgmkit.domain import Domain
    >>> len(made_up(Domain({"a": 2, "b": 3}), 50, np.random.default_rng(0)))
    50
    """
    check_count(rows, "rows", 1)
    columns: dict[str, np.ndarray[Any, Any]] = {}
    for name, size in domain.sizes.items():
        most = min(len(columns), int(rng.integers(1, 4)))
        parents = [list(columns)[i] for i in rng.permutation(len(columns))[:most]]
        states = np.zeros(rows, dtype=np.int64)
        for parent in parents:
            states = states * domain.sizes[parent] + columns[parent]
        present, row = np.unique(states, return_inverse=True)
        reached = np.cumsum(rng.dirichlet(np.full(size, 0.5), len(present)), axis=1)
        level = rng.random(rows)
        drawn = np.zeros(rows, dtype=np.int64)
        for code in range(size - 1):
            drawn += level >= reached[row, code]
        columns[name] = drawn
    return Dataset(domain, columns)


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
