"""The choice of mechanism "auto", by public figures, by the times that these predict, and by noisy
answers that were paid for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mechanisms.privacy.budget import Budget
from mechanisms.workload import Workload, WorkloadLike, pairs_of
from pgmkit import InvalidInput, Schema
from pgmkit.domain import Clique, Domain
from pgmkit.records.sampling import check_count
from pgmkit.runtime.arguments import number
from pgmkit.runtime.typed import typed

_MANY_ATTRIBUTES = 40
"""The largest number of columns for which the time of `aim` was measured, and for which a mixture
is taken that may leave pairs out. On drawn networks of 50 and 100 columns such a mixture has twice
the error of `pair-graph` (`benchmarks.wide`).
"""
_LEAST_MODEL_MB = 5.0
"""The smallest model of `aim`, in MB, that is chosen because larger ones take too long. Smaller
ones are too small for the relations that could be measured: on `gss_abortion`, one of the tables of
`benchmarks.regret`, at epsilon 10 a model of 2 MB has 1.4 times the error of `mixture`, and takes
longer.
"""
_MIXTURE_MB = 600.0
"""The memory of `mixture` in MB: ten columns of 500 values, whose pairs have 11 million cells, take
549 MB.
"""
_PUBLIC_SECONDS = 150.0
"""If less time is allowed, in seconds, no network is trained on public records that have all
columns.
"""
_LEAST_ROWS_OF_GRAPH = 5.0
"""The fewest rows per column, in units of one marginal's noise, for which `pair-graph` with
Gaussian noise considers pairs. Drawn tables of 80 and 300 columns, of which each depends on one of
the ten before it, were compared with independent columns at epsilon 1 to 4. At 7.3 the error of
random pairs is 0.91 to 0.95 times, and that of the 200 strongest pairs 0.54 to 0.62 times; at 5.6
they are 0.95 and 0.64 times, at 3.9 1.02 to 1.06 and 0.85 to 0.93 times, and at 2 1.10 to 1.12 and
1.01 to 1.03 times. Without dependence the errors are 1.01 and 0.98 times at 7.3. A pure budget
needs twice as many rows: from 11 to 36 the error is 0.90 to 1.03 times that of independent columns,
and that of the worst pair is smaller (Caravan and loans_full_schema at epsilon 1, loans_full_schema
at 0.3, a network of 100 columns of `benchmarks.wide` at 0.2; one seed).
"""
_LEAST_ROWS_OF_LAPLACE = 30.0
"""The fewest rows for which `mixture` with a pure budget measures pairs, in the same units, per
squared number of columns, because Laplace noise grows with the number of pairs that share a budget.
From 6 to 29 it has 0.94 to 2.5 times the error of independent columns (HMDA, Wage and Chile at
epsilon 1, Chile at 0.3, CPS1988 at 0.1).
"""

_FEW_ROWS = 25.0
"""The rows per column, in units of one marginal's noise, below which noise hides pairs.

It was measured on six of the tables that `benchmarks.regret` lists under "choosing". Below 25, AIM
has 1.03 to 1.5 times the error of independent columns; between 25 and 45 it has 0.90 to 1.02 times
that error, depending on how much the columns depend on each other, which
`mechanisms.synthesis.first_look` measures.
"""
_LOG_SECONDS, _LOG_SECONDS_OF_A_PRODUCT = -5.47, 0.28
"""The numbers a and b of `aim_seconds`, fitted by `benchmarks.aim_seconds` to the tables that
`benchmarks.regret` lists under "choosing".
"""


@dataclass(frozen=True)
class Choice:
    """A mechanism's name, the reason for its choice, and its settings."""

    name: str
    reason: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@typed
def choose_mechanism(
    schema: Schema,
    workload: WorkloadLike,
    budget: Budget,
    *,
    rows: int | None = None,
    max_rows: int = 1,
    public: Collection[str] | None = None,
    seconds: float | None = None,
    memory_mb: float | None = None,
) -> Choice:
    """Return a mechanism for a table, with the reason.

    Public records lead to `gem-pub`, or to `pep-pub` if they have all columns and `seconds` is
    below 150 (`_PUBLIC_SECONDS`), too few to train a network. Without public records the first rule
    that applies decides:

    1. `independent` if `rows` is given and noise would exceed the counts of pairs at this budget,
       unless rule 3 applies and the noise is Gaussian: `mixture` then finds this out itself;
    2. `pair-graph` if `memory_mb` leaves no room for a model of `aim`;
    3. `mixture` if there are no constraints, pairs are the largest sets that the workload asks for
       (`Workload.sought` has sets that are not asked for themselves), both limits allow it, and its
       pairs together have at most `Mixture.cells` cells or, with at most 40 columns of several
       values, a hundred times as many;
    4. `pair-graph` for more than 40 columns of several values;
    5. `aim`, with a smaller model if the default one may take too long or too much memory. If even
       the smallest may take too long, `mixture` is taken, or `pair-graph` if there are constraints
       or too little time or memory for `mixture`.

    `rows`: the number of rows if it is public or was paid for. `max_rows`: the number of rows of a
    protected unit, by which the noise is multiplied. `public`: the columns of the public records;
    None without any. `seconds` (a minute if None) and `memory_mb`: limits, kept by estimate and not
    guaranteed (`longest_aim_seconds`).

    Raises InvalidInput for `rows` below 0, `max_rows` below 1, a limit that is not above 0, public
    records together with constraints, and a workload over another domain.

    >>> from mechanisms.workload import k_way
    >>> from pgmkit import Boolean, Schema
    >>> schema = Schema({f"q{i}": Boolean() for i in range(50)})
    >>> choose_mechanism(schema, k_way(schema.domain, 2), Budget(1.0, 1e-9)).name
    'mixture'
    """
    check_count(0 if rows is None else rows, "rows")
    check_count(max_rows, "max_rows", 1)
    check_limits(schema, public is not None, seconds, memory_mb)
    workload = Workload.over(schema.domain, workload)
    if public is not None and seconds is not None and seconds < _PUBLIC_SECONDS:
        if all(name in public for name in schema.columns):
            return Choice("pep-pub", f"public records, and less than {_PUBLIC_SECONDS:.0f} s")
        return Choice("gem-pub", "public records that lack columns, which only a network can use")
    if public is not None:
        return Choice("gem-pub", "public records: a network fitted to them has the smallest error")
    from mechanisms.mixture import Mixture  # loads torch, which takes seconds

    columns = sum(size > 1 for size in schema.domain.sizes.values())  # others have no pairs
    limit = 60.0 if seconds is None else seconds
    many = columns > _MANY_ATTRIBUTES
    pairs, most = pairs_of(schema.domain, workload.asked.cliques), Mixture().cells
    cells = sum(map(schema.domain.size, pairs))
    # An unknown number of rows is taken to be large. Noise is multiplied by `max_rows`, as if there
    # were that many times fewer rows.
    rows_of_one = (100_000 if rows is None else rows) // max_rows
    to_mix = mixture_seconds(schema.domain, pairs, most, rows_of_one, budget)
    within = limit >= to_mix and (memory_mb is None or memory_mb >= _MIXTURE_MB)
    # A mixture fits up to `most` cells; if the pairs have more, it merges codes or leaves pairs
    # out. With more than `_MANY_ATTRIBUTES` columns it is not taken then, since `pair-graph` is
    # nearer. With fewer columns it is taken for up to a hundred times as many cells, whose
    # comparison with independent columns takes up to `_MIXTURE_MB` of memory.
    mixes = (
        not schema.constraints
        and max(map(len, workload.asked.cliques)) == 2
        and within
        and cells <= (most if many else 100 * most)
    )
    least = _least_rows(columns, mixes, budget.pure)
    if rows is not None and rows < least * max_rows * noise(budget):
        return Choice(
            "independent",
            f"about {rows} rows and epsilon {budget.epsilon:g}: the noise would exceed the "
            f"counts of pairs of {columns} columns, so only single columns are measured",
        )
    most_mb = math.inf
    if memory_mb is not None:
        # A process without a model has 350 MB; each MB of a model's tables takes eight while it is
        # estimated.
        most_mb = (memory_mb - 350.0) / 8.0
        if most_mb < 1:
            few = f"{memory_mb:g} MB of memory leave none for the model of aim"
            return Choice("pair-graph", few)
    if mixes:
        return _mixture(columns, cells <= most)
    if many:
        return Choice(
            "pair-graph",
            f"{columns} columns: those of their pairs are measured that stand out from noise, and "
            "that a small graphical model holds",
        )
    return _by_time(schema, len(workload), rows_of_one, budget, limit, most_mb, within)


def _least_rows(columns: int, mixes: bool, pure: bool) -> float:
    """Return the fewest rows, in units of one marginal's noise, for which more than single columns
    are measured: with fewer, noise would hide the pairs. `mixes`: True if a mixture would be taken.
    """
    # With Gaussian noise a mixture itself finds out whether noise hides the pairs, and then spends
    # more of its budget on the single columns.
    if mixes:
        return _LEAST_ROWS_OF_LAPLACE * columns**2 if pure else 0.0
    if columns > _MANY_ATTRIBUTES:
        return (2 if pure else 1) * _LEAST_ROWS_OF_GRAPH * columns
    return _FEW_ROWS * columns


def _mixture(columns: int, all_pairs: bool) -> Choice:
    """Return the choice of `mixture` for this number of columns, with its reason. `all_pairs`: True
    if all their pairs together have at most `Mixture.cells` cells.
    """
    if all_pairs:
        measured = (
            f"it measures all pairs of {columns} columns unless noise would hide them all, where a "
            "graphical model would leave some out"
        )
    else:
        measured = (
            f"it measures the pairs of {columns} columns that gain most for each of their cells, "
            "or all if they have few cells beyond those that noise would hide"
        )
    return Choice("mixture", f"{measured}; `aim` has error bars for all questions")


def _by_time(
    schema: Schema,
    marginals: int,
    rows: int,
    budget: Budget,
    seconds: float,
    most_mb: float,
    within: bool,
) -> Choice:
    """Return AIM with a model of the default size or, if that is less, of `most_mb`, halved until
    it can be estimated in `seconds`; if not even a small one can, return a faster mechanism.

    `marginals`: the number of the workload's cliques. `rows`: the number of rows, divided by
    that of the largest protected unit. `most_mb`: the largest model that the memory holds, in MB.
    `within`: True if `mixture` keeps within the limits of time and memory.
    """
    from mechanisms.aim import Aim  # it loads what takes long to import

    columns, default_mb = len(schema.domain), Aim().model_mb
    model_mb = min(most_mb, default_mb)
    needed = longest_aim_seconds(schema.domain, rows, budget, model_mb)
    while needed > seconds and model_mb / 2 >= _LEAST_MODEL_MB:
        model_mb /= 2
        needed = longest_aim_seconds(schema.domain, rows, budget, model_mb)
    if needed <= seconds:
        return Choice(
            "aim",
            f"{columns} columns and {marginals} marginals: adaptive marginals with a graphical "
            "model, which has error bars, conditional records and constraints; usually at "
            f"most about {math.ceil(needed)} s",
            {} if model_mb == default_mb else {"model_mb": model_mb},
        )
    late = f"aim may take {needed:.0f} s for {columns} columns, with the smallest model of use too"
    if schema.constraints or not within:
        return Choice("pair-graph", f"{late}; a graph of few pairs takes seconds")
    return Choice("mixture", f"{late}; a mixture is fitted once to all that it measures")


def check_limits(
    schema: Schema, public: bool, seconds: float | None, memory_mb: float | None
) -> None:
    """Raise InvalidInput if a limit is not above 0, or if there are both public records and
    constraints.
    """
    for name, limit in [("seconds", seconds), ("memory_mb", memory_mb)]:
        if limit is not None and not number(limit) > 0:
            raise InvalidInput(f"{name} must be a number above 0, got {limit!r}")
    if public and schema.constraints:
        raise InvalidInput(
            "the schema has constraints, which no mechanism that uses public records can hold; "
            "leave the public records out, or the constraints"
        )


def aim_seconds(domain: Domain, rows: int, budget: Budget) -> float:
    """Return the CPU seconds that AIM usually takes for all pairs, on a core of a shared server.

    The formula is exp(a + b log(columns) log(rows / noise)), where the noise is that of a marginal
    measured with the whole budget (`noise`), and a quotient below 1 counts as 1. How much the
    columns depend on each other is not public, and tables whose columns depend strongly take
    several times longer (`longest_aim_seconds`).
    """
    columns, signal = figures(domain, rows, budget)
    return math.exp(_LOG_SECONDS + _LOG_SECONDS_OF_A_PRODUCT * math.log(columns) * math.log(signal))


def longest_aim_seconds(domain: Domain, rows: int, budget: Budget, model_mb: float) -> float:
    """Return the CPU seconds that AIM takes, with a model of at most `model_mb` MB, for a table
    whose columns depend strongly on each other.

    The result is the smaller of two estimates. One is six times `aim_seconds`, which is what the
    slowest of the tables of `benchmarks.regret` took. The other is the time of five rounds a
    column. A round takes 5e-6 s times the number of rows divided by the scale of the noise (with
    less noise estimates must be more exact), but at least 0.05 s, and 0.15 s more for each MB of
    the model. The table `gss_abortion` takes 0.2 s a round at epsilon 1, and 1.0 s at epsilon 10
    with a model of 2 MB (99 s in all; `mixture` takes 16 s and has 0.7 times its error).

    The result is not a bound: if columns rule most pairs of values out (such as places within
    districts), an estimate can take hundreds of passes. The table `MplsStops` of `benchmarks.zoo`,
    at epsilon 1 with a target, is predicted at 18 s and takes 15 to 21 s over five draws of the
    noise.

    >>> domain, budget = Domain({f"q{i}": 5 for i in range(20)}), Budget(1.0, 1e-9)
    >>> usual = aim_seconds(domain, 100_000, budget)
    >>> usual < longest_aim_seconds(domain, 100_000, budget, 80.0) < 10 * usual
    True
    """
    columns, signal = figures(domain, rows, budget)
    round_seconds = max(0.05, 5e-6 * signal) + 0.15 * model_mb
    return min(6.0 * aim_seconds(domain, rows, budget), 5.0 * columns * round_seconds)


def mixture_seconds(
    domain: Domain, pairs: Sequence[Clique], cells: int, rows: int, budget: Budget
) -> float:
    """Return roughly the CPU seconds that `mixture` takes to fit these pairs, on a core of a shared
    server. `cells`: the setting of that name, the most cells that it fits, but for a single larger
    pair. `rows`: the number of rows, divided by that of the largest protected unit.

    The fit takes a second, and for each level 2 ms for each code and 0.02 ms for each cell. The
    graphical models that it is compared with take a quarter of a second for each column. Of a pair
    no more cells are counted than it has rows in units of its noise, since codes are merged that
    noise would hide. A single pair of more than `cells` counts whole, since bins whose relation is
    close are not merged. The number of levels is that of `MixtureFit.last_level`: if a pair of n
    cells has its records in about the root of n, the misfit of a cell for independent columns is
    near the square of these rows divided by n^(3/2). Of 68 runs at epsilon 0.3, 1 and 10, on 42
    tables and beside two other programs, four fifths took 0.4 to 2.0 times as long, and all 0.2 to
    3.2 times (`benchmarks/README.md`).

    >>> budget = Budget(1.0, 1e-9)
    >>> round(mixture_seconds(Domain({"a": 20, "b": 20}), [("a", "b")], 100_000, 50_000, budget), 1)
    3.2
    """
    sizes = [domain.size(pair) for pair in pairs] or [1]
    columns = set(itertools.chain.from_iterable(pairs))
    codes = sum(domain.sizes[name] for name in columns)
    signal = max(1.0, rows / noise(budget) / len(sizes) ** (1 if budget.pure else 0.5))
    merged, largest = sum(min(size, signal) for size in sizes), max(sizes)
    fitted = largest if largest > cells else min(merged, cells)
    levels = math.log2(max(1.0, signal**2 / (sum(sizes) / len(sizes)) ** 1.5) / 0.015)
    return 1.0 + levels * (2e-3 * codes + 2e-5 * fitted) + 0.25 * len(columns)


def figures(domain: Domain, rows: int, budget: Budget) -> tuple[float, float]:
    """Return the number of columns, and the rows in units of one marginal's noise; both at
    least 1.
    """
    return float(max(1, len(domain))), max(1.0, rows / noise(budget))


def noise(budget: Budget) -> float:
    """Return roughly the scale of the noise, in counts, in each cell of one marginal that is
    measured with the whole budget.
    """
    total = budget.total
    return 2 / total if budget.pure else float((2 * total) ** -0.5)
