"""Which mechanism `"auto"` takes: a choice from public figures and what was paid for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mechanisms.privacy.budget import Budget
from mechanisms.workload import Workload, WorkloadLike
from pgmkit.errors import InvalidInput

if TYPE_CHECKING:
    from pgmkit.tables.schema import Schema

__all__ = ["Choice", "check_limits", "choose_mechanism"]

_MANY_ATTRIBUTES = 40
_MODEL_MB = 80.0
_BASE_MB, _MB_FOR_A_MODEL_MB = 350.0, 8.0
"""Of a process without a model, and for each MB of the model's tables while it is estimated."""
_PUBLIC_SECONDS = 150.0
_ROWS_PER_ATTRIBUTE = 40.0
"""Fewer rows than so many, in units of the noise of one marginal, leave pairs under noise.

Measured on six tables of the half "choosing" of `benchmarks.regret`: between 20 and 40 times the
noise AIM is within a tenth of independence; under it AIM is worse, up to 1.8 times, and above
better, down to 0.36 times."""


@dataclass(frozen=True)
class Choice:
    """A mechanism's name, its settings, and why it was taken."""

    name: str
    reason: str
    settings: Mapping[str, Any] = field(default_factory=dict)


def choose_mechanism(
    schema: Schema,
    workload: WorkloadLike,
    budget: Budget,
    *,
    rows: int | None = None,
    max_rows: int = 1,
    public: bool = False,
    seconds: float | None = None,
    memory_mb: float | None = None,
) -> Choice:
    """The mechanism for a table, and why.

    `rows`: their number, where it is public or was paid for. `max_rows`: of a unit, where units are
    protected: noise is so many times larger. `public`: whether there are public
    records. `seconds` and `memory_mb`: limits, by estimates measured on four cores of a server and
    no promise.

    Public records lead to `gem-pub`, or `pep-pub` where there is no time to train a network. A
    budget too small for pairs leads to `independent`; more than 40 columns, or limits that `aim`
    might not hold, to `mst`; all else to `aim`.

    Raises InvalidInput as `check_limits` does.

    >>> from mechanisms.workload import k_way
    >>> from pgmkit.tables.schema import Boolean, Schema
    >>> schema = Schema({f"q{i}": Boolean() for i in range(50)})
    >>> print(choose_mechanism(schema, k_way(schema.domain, 2), Budget(1.0, 1e-9)).reason)
    50 columns: a tree of pairs takes seconds to estimate for any number of columns
    """
    check_limits(schema, public, seconds, memory_mb)
    workload = Workload.over(schema.domain, workload)
    if public and seconds is not None and seconds < _PUBLIC_SECONDS:
        return Choice("pep-pub", f"public records, and less than {_PUBLIC_SECONDS:.0f} s")
    if public:
        return Choice("gem-pub", "public records: a network fitted to them has the smallest error")
    columns = len(schema.domain)
    if rows is not None and rows < _ROWS_PER_ATTRIBUTE * columns * max_rows * _noise(budget):
        return Choice(
            "independent",
            f"about {rows} rows and epsilon {budget.epsilon:g}: the noise would exceed the "
            f"counts of pairs of {columns} columns, so only single columns are measured",
        )
    if columns > _MANY_ATTRIBUTES:
        return Choice(
            "mst",
            f"{columns} columns: a tree of pairs takes seconds to estimate for any number of "
            "columns",
        )
    needed = aim_seconds(columns)
    if seconds is not None and seconds < needed:
        return Choice(
            "mst", f"aim may take {needed:.0f} s for {columns} columns; mst takes about 1"
        )
    model_mb = _MODEL_MB
    if memory_mb is not None:
        model_mb = min(_MODEL_MB, (memory_mb - _BASE_MB) / _MB_FOR_A_MODEL_MB)
        if model_mb < 1:
            return Choice("mst", f"{memory_mb:g} MB of memory leave none for the model of aim")
    return Choice(
        "aim",
        f"{columns} columns and {len(workload)} marginals: adaptive marginals with a graphical "
        "model, which has error bars, conditional records and constraints",
        {} if model_mb == _MODEL_MB else {"model_mb": model_mb},
    )


def check_limits(
    schema: Schema, public: bool, seconds: float | None, memory_mb: float | None
) -> None:
    """Raises InvalidInput for limits not above 0, and for public records beside constraints."""
    for name, limit in [("seconds", seconds), ("memory_mb", memory_mb)]:
        if limit is not None and not (isinstance(limit, int | float) and limit > 0):
            raise InvalidInput(f"{name} must be above 0, got {limit!r}")
    if public and schema.constraints:
        raise InvalidInput(
            "the schema has constraints, which no mechanism that uses public records can hold; "
            "leave the public records out, or the constraints"
        )


def aim_seconds(columns: int) -> float:
    """What AIM may take: 10 s at 13 columns, 23 s at 40, were measured; twice that and a start.

    >>> aim_seconds(13) < 30 < aim_seconds(40) < 100
    True
    """
    return 20.0 + 4e-4 * 2 * columns**3


def _noise(budget: Budget) -> float:
    """The noise in counts, about, of one marginal measured with the whole budget."""
    total = budget.total
    return 2 / total if budget.pure else float((2 * total) ** -0.5)
