"""The front door: a data frame, a schema and a privacy budget in; a release with meanings out."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mechanisms.dispatch import check_public, run_on
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import FileLedger
from mechanisms.registry import configure
from mechanisms.release.record import Release
from mechanisms.release.tabular import TableRelease
from mechanisms.rounds.loop import Round, round_reports
from mechanisms.synthesis.auto import Choice, check_limits, choose_mechanism
from mechanisms.workload import Workload, WorkloadLike, k_way
from pgmkit.dataset import Counts, Dataset
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.estimation import estimate
from pgmkit.measurement import Measurement
from pgmkit.model import GraphicalModel
from pgmkit.tables.frames import FrameForm, counts_of, encode, names_of
from pgmkit.tables.schema import Numeric, OpenCategorical, Schema

__all__ = ["synthesize", "table_workload"]

logger = logging.getLogger(__name__)

_DISCOVERY_SHARE = 0.1
"""Of the budget, for finding the values and edges that the schema leaves open."""
_RESERVED_SHARE = 0.1
"""Of delta, for values that are found (see `Curator.discover`)."""
_QUANTILE_BINS = 512
_TARGET_WEIGHT = 4.0
_TOTAL_SHARE = 0.01
"""Of the budget, for the number of rows that "auto" goes by where it is private."""


def synthesize(
    data: Any,
    schema: Schema,
    *,
    epsilon: float,
    delta: float,
    neighbours: str = "add/remove",
    mechanism: str = "auto",
    settings: Mapping[str, Any] | None = None,
    workload: int | WorkloadLike | None = None,
    target: str | None = None,
    public: Any = None,
    seconds: float | None = None,
    memory_mb: float | None = None,
    seed: int | np.random.Generator | None = None,
    ledger: FileLedger | None = None,
    progress: bool | Callable[[Round[Any, Any]], None] | None = None,
) -> TableRelease:
    """Spend an (epsilon, delta) budget on private records; records, tables and answers come out.

    Args:
        data: a data frame (pandas, polars, pyarrow, DuckDB, PySpark, Dask) or records already
            coded (`Dataset`, over the schema's domain). Frames in an engine are counted there.
        schema: what each column may hold. Columns left open (`OpenCategorical`, `Numeric` with
            quantiles) are found first with a tenth of the budget, and a tenth of delta.
        epsilon, delta, neighbours: the promise, for rows (see the privacy page).
        mechanism: a name, or "auto" (see `choose_mechanism`; where the number of rows is private
            it takes a hundredth of the budget to know it); `settings`: its options.
        workload: what should be answered well: all marginals of so many columns (two by default),
            or a Workload, or column sets.
        target: a column to predict later: marginals that hold it get four times the weight, and
            pairs of columns are measured together with it.
        public: records that need no protection, for mechanisms that use them; of the same columns,
            or (gem-pub) of some of them.
        seconds, memory_mb: limits that "auto" chooses by.
        seed: reproducible noise: INSECURE, for tests and simulations only.
        ledger: one across runs on the same data (`Ledger.open`): it has every charge on the disk
            before the answer is drawn, and refuses what all runs together may not spend.
        progress: True for a bar of rounds on a terminal, or a callable that gets each finished
            round of a mechanism that has rounds.

    With constraints in the schema the final model gives ruled out records probability zero, which
    needs a mechanism with a graphical model.

    Raises InvalidInput, before anything is spent, for data outside the schema, wrong arguments,
    or constraints with a mechanism that cannot hold them.

    >>> import pyarrow
    >>> from pgmkit.tables.schema import Boolean, Integer
    >>> people = pyarrow.table({"age": [31, 45, 27] * 50, "ill": [True, False, False] * 50})
    >>> schema = Schema({"age": Integer(18, 99, bins=8), "ill": Boolean()})
    >>> release = synthesize(people, schema, epsilon=1.0, delta=1e-6, seed=0)
    >>> release.sample(2, rng=0).column_names
    ['age', 'ill']
    """
    if schema.unresolved and not delta > 0:
        raise InvalidInput(
            f"column {schema.unresolved[0]!r} is to be found in the data, which needs delta above "
            f"0; got {delta!r}. Give its values or edges to use pure differential privacy"
        )
    _check(schema, mechanism, settings or {}, target, public is not None)
    check_limits(schema, public is not None, seconds, memory_mb)
    form = None if isinstance(data, Dataset) else FrameForm.of(data)
    reserved = _RESERVED_SHARE * delta if _open_columns(schema) else 0.0
    budget = Budget(epsilon, delta, reserved)
    if schema.unresolved:
        schema, curator = _resolved(data, schema, budget, neighbours, seed, ledger)
    else:
        counts = _counts(data, schema)
        curator = Curator(counts, budget, neighbours=neighbours, seed=seed, ledger=ledger)
    wanted = table_workload(schema.domain, workload, target)
    if mechanism == "auto":
        # A target is about dependence, and public records know some: both make pairs worth it.
        rows = None if target or public is not None else _rows(curator)
        choice = choose_mechanism(
            schema,
            wanted,
            budget,
            rows=rows,
            public=public is not None,
            seconds=seconds,
            memory_mb=memory_mb,
        )
    else:
        choice = Choice(mechanism, "as asked")
    logger.info("mechanism %s: %s", choice.name, choice.reason)
    entry, chosen = configure(choice.name, **{**choice.settings, **(settings or {})})
    others = None if public is None else _public_records(public, schema)
    with round_reports(progress) as report:
        release = run_on(curator, entry, chosen, wanted, public=others, progress=report)
    return TableRelease(_constrained(release, schema), schema, form, choice.reason)


def _check(
    schema: Schema,
    mechanism: str,
    settings: Mapping[str, Any],
    target: str | None,
    public: bool,
) -> None:
    """Refuse what can be refused before anything is spent on open columns."""
    if target is not None and target not in schema.columns:
        raise InvalidInput(
            f"target {target!r} is no column; columns are {', '.join(schema.columns)}"
        )
    if mechanism == "auto":
        return
    entry, _ = configure(mechanism, **settings)
    check_public(entry, public)
    if schema.constraints and not entry.graphical:
        raise InvalidInput(
            f"the schema has constraints, which the model of {mechanism} cannot hold; use aim, "
            "mst or mwem+pgm, or take the constraints out"
        )


def _rows(curator: Curator) -> int:
    """The number of rows, at a small price where it is private."""
    if curator.public_total is not None:
        return curator.public_total
    cost = _TOTAL_SHARE * curator.remaining
    return max(0, round(float(curator.measure((), cost, step="auto: measure").values[0])))


def table_workload(
    domain: Domain,
    workload: int | WorkloadLike | None,
    target: str | None,
) -> Workload:
    """The workload that `synthesize` is asked for.

    A number stands for all marginals of so many columns, None for all pairs. A target adds every
    pair of other columns together with it, and its marginals weigh four times as much.
    """
    if workload is None:
        wanted = k_way(domain, min(2, len(domain)))
    elif isinstance(workload, int):
        wanted = k_way(domain, workload)
    else:
        wanted = Workload.over(domain, workload)
    if target is None:
        return wanted
    if target not in domain:
        raise InvalidInput(
            f"target {target!r} is no column; columns are {', '.join(domain.attributes)}"
        )
    weights = dict(zip(wanted.cliques, wanted.weights, strict=True))
    held = {frozenset(clique) for clique in weights}
    others = [name for name in domain if name != target]
    for pair in itertools.combinations(others, 2):
        if frozenset((*pair, target)) not in held:
            weights[(*pair, target)] = 1.0
    biased = {c: w * (_TARGET_WEIGHT if target in c else 1.0) for c, w in weights.items()}
    return Workload(domain, biased, list(biased.values()))


def _open_columns(schema: Schema) -> list[str]:
    return [n for n, column in schema.columns.items() if isinstance(column, OpenCategorical)]


def _resolved(
    data: Any,
    schema: Schema,
    budget: Budget,
    neighbours: str,
    seed: int | np.random.Generator | None,
    ledger: FileLedger | None,
) -> tuple[Schema, Curator]:
    """The schema with its open columns found, and a Curator over the records coded by it."""
    open_columns = _open_columns(schema)
    fine = {
        name: Numeric(column.low, column.high, bins=_QUANTILE_BINS, missing=column.missing)
        for name, column in schema.columns.items()
        if isinstance(column, Numeric) and column.quantiles
    }
    known = {n: column for n, column in schema.columns.items() if column.resolved}
    first = Schema({**known, **fine}) if known or fine else None
    if first is None:
        raise InvalidInput("every column is open; list the values of at least one")
    counts = _counts(data, first)
    curator = Curator(counts, budget, neighbours=neighbours, seed=seed, ledger=ledger)
    share = _DISCOVERY_SHARE * curator.remaining / len(schema.unresolved)
    found: dict[str, Any] = {}
    for name in fine:
        declared = schema.columns[name]
        assert isinstance(declared, Numeric)
        queries = _dyadic(fine[name].size)
        noisy = curator.measure_queries((name,), [queries], share, step="quantiles:")
        cells = np.linalg.lstsq(np.asarray(noisy.matrix), noisy.values)[0]
        found[name] = declared.found(_quantiles(fine[name], cells, declared.bins or 1))
    for name in open_columns:
        declared_open = schema.columns[name]
        assert isinstance(declared_open, OpenCategorical)
        texts = _present_texts(data, name, declared_open)
        delta = budget.reserved / len(open_columns)
        labels = curator.discover(texts, share, delta, step=f"discover {name}")
        found[name] = declared_open.found([t for t in labels if t != declared_open.other])
    concrete = schema.resolve(found)
    return concrete, curator.recoded(_counts(data, concrete))


def _dyadic(size: int) -> np.ndarray:
    """Sums of intervals of 1, 2, 4, ... cells: any prefix is a sum of few of them."""
    rows = []
    width = 1
    while width < 2 * size:
        starts = np.arange(0, size, width)[:, None]
        cells = np.arange(size)[None, :]
        rows.append((starts <= cells) & (cells < starts + width))
        width *= 2
    return np.concatenate(rows).astype(np.float64)


def _quantiles(fine: Numeric, cells: np.ndarray, bins: int) -> list[float]:
    """Inner edges between bins of about equal noisy counts, missing values aside."""
    reached = np.maximum.accumulate(np.cumsum(cells[: len(fine.positions) - 1]))
    if reached[-1] <= 0:
        return [
            float(edge) for edge in np.linspace(fine.positions[0], fine.positions[-1], bins + 1)
        ]
    goals = reached[-1] * np.arange(1, bins) / bins
    return [float(edge) for edge in fine.positions[1 + np.searchsorted(reached, goals)]]


def _present_texts(data: Any, name: str, column: OpenCategorical) -> list[str]:
    """The column's values as texts; missing ones are the schema's business."""
    import narwhals as nw

    if isinstance(data, Dataset):
        raise InvalidInput("open columns are found in data frames, not in coded records")
    series = nw.from_native(data).select(name)
    table = series.collect() if isinstance(series, nw.LazyFrame) else series
    values = table[name].to_numpy()
    return column.texts(values)


def _counts(data: Any, schema: Schema) -> Counts:
    if not isinstance(data, Dataset):
        return counts_of(data, schema)
    if data.domain != schema.domain:
        raise InvalidInput("the records are coded over another domain than the schema's")
    schema.check_constraints(data)
    return data


def _public_records(public: Any, schema: Schema) -> Dataset:
    """The columns of the schema that the public records have, as codes."""
    if isinstance(public, Dataset):
        return public
    known = [name for name in names_of(public) if name in schema.columns]
    if not known:
        raise InvalidInput("the public records have no column of the schema; rename theirs")
    return encode(public, schema.restricted(known))


def _constrained(release: Release, schema: Schema) -> Release:
    """The release with a model that gives ruled out records probability zero."""
    if not schema.constraints:
        return release
    assert isinstance(release.model, GraphicalModel)
    tables = [m for m in release.measurements if isinstance(m, Measurement)]
    model = estimate(schema.domain, tables, total=release.model.total, zeros=schema.zeros)
    return replace(release, model=model)
