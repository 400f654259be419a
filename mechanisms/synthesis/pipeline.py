"""The front door: a data frame, a schema and a privacy budget in; a release with meanings out."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mechanisms.dispatch import accounting_of, only_measures, run_on
from mechanisms.privacy.budget import Accounting, Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import FileLedger
from mechanisms.privacy.neighbours import relation
from mechanisms.privacy.units import Excess
from mechanisms.registry import configure
from mechanisms.release.record import Model, Release
from mechanisms.release.tabular import TableRelease
from mechanisms.rounds.loop import Round, round_reports
from mechanisms.synthesis.auto import Choice, check_limits, choice_of
from mechanisms.synthesis.first_look import bins_of, first_look
from mechanisms.synthesis.open_columns import (
    assumed,
    counted,
    counted_roughly,
    open_columns,
    resolved,
)
from mechanisms.synthesis.refusals import (
    check_kinds,
    check_mechanism,
    check_public_records,
    dry_run,
    on_device,
    public_records,
    with_device,
)
from mechanisms.synthesis.units import bounded_frame, check_unit
from mechanisms.synthesis.unread import UnreadValues, check_labels, check_values
from mechanisms.workload import Workload, WorkloadLike, downward_closure, k_way, varied
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.estimation import estimate
from pgmkit.measurement import Measurement
from pgmkit.records.dataset import Dataset
from pgmkit.regions.model import RegionModel
from pgmkit.tables.engines.frames import FrameForm
from pgmkit.tables.schema import NoRows, Schema

__all__ = ["synthesize", "table_workload"]

logger = logging.getLogger(__name__)

_RESERVED_SHARE = 0.1
"""Of delta, for values that are found (see `Curator.discover`)."""
_TARGET_WEIGHT = 4.0
_ROWS_SHARE = 0.002
"""Of the budget, for the number of rows that "auto" goes by where it is private: a thousandth more
noise in all else. The number is off by a seventh of the rows at which its choice changes where
there are four columns, by less where there are more.
"""
_EXCESS_SHARE = 0.01
"""Of the budget, for the number of rows that were left out."""

_NO_ROWS = "the data have no rows, which replace-one takes as public; give some"


def synthesize(
    data: Any,
    schema: Schema,
    *,
    epsilon: float,
    delta: float,
    neighbours: str = "add/remove",
    unit: str | None = None,
    max_rows: int | None = None,
    report_dropped: bool = False,
    report_unread: bool | Callable[[UnreadValues], None] = False,
    mechanism: str = "auto",
    settings: Mapping[str, Any] | None = None,
    workload: int | WorkloadLike | None = None,
    target: str | None = None,
    public: Any = None,
    seconds: float | None = None,
    memory_mb: float | None = None,
    strict: bool = False,
    seed: int | np.random.Generator | None = None,
    ledger: FileLedger | None = None,
    accounting: Accounting | None = None,
    device: str | None = None,
    progress: bool | Callable[[Round[Any, Any]], None] | None = None,
) -> TableRelease:
    """Spend an (epsilon, delta) budget on private records; records, tables and answers come out.

    Args:
        data: a data frame (pandas, polars, pyarrow, DuckDB, PySpark, Dask) or records already
            coded (`Dataset`, or `counts_of` a frame; over the schema's domain). Frames in an engine
            are counted there, for most mechanisms in one pass.
        schema: what each column may hold. Columns left open (`OpenCategorical`, `Numeric` with
            quantiles) are found first with a tenth of the budget, and a tenth of delta.
        epsilon: the promise's first number, for rows (see the privacy page).
        delta: its second number; 0 promises pure epsilon.
        neighbours: which change of the data the promise is about, "add/remove" or "replace-one".
        unit: the column that says whose a row is, to protect all rows of a unit (a person, a
            household) together. It is not released and must not be in the schema; rows that lack it
            are left out.
        max_rows: how many rows of each unit are looked at; more of them are left out at random (by
            the operating system's randomness, or the seed). Noise grows with their number.
        report_dropped: spend a hundredth of the budget to say in `reason`, with noise, how many
            rows `max_rows` left out.
        report_unread: spend a hundredth of the budget on the share of each column's values that the
            schema could not read; `reason` says it, and a share surely above a tenth warns. A
            callable gets the noisy shares before the rest is spent, and may raise to end the run.
            For frames in memory and the records of `encode_file`.
        mechanism: a name, or "auto" (see `choose_mechanism`; where the number of rows is private
            it takes a five-hundredth of the budget to know it, and before `aim` up to a fiftieth to
            see whether columns depend on each other at all); `settings`: its options.
        workload: what should be answered well: all marginals of so many columns (two by default),
            or a Workload, or column sets.
        target: a column to predict later: marginals that hold it get four times the weight, and
            pairs of columns are measured together with it.
        public: records that need no protection, for mechanisms that use them; of the same columns,
            or (gem-pub) of some of them.
        seconds: what "auto" may take of time; it chooses a mechanism by that.
        memory_mb: what "auto" may take of memory.
        strict: refuse data that do not fit the schema (values outside it, missing ones that are not
            declared, broken constraints, no rows). NOT private: that a run fails, and the number of
            rows in the message, are exact. For data that are public, or to check them where nobody
            else looks on. By default such values go to the place that each column declares
            (`Schema.placed`), and only the noisy tables tell.
        seed: reproducible noise: INSECURE, for tests and simulations only.
        ledger: one across runs on the same data (`Ledger.open`): it has every charge on the disk
            before the answer is drawn, and refuses what all runs together may not spend.
        accounting: "zcdp" or "gaussian" (see `Budget`). By default that of the ledger across runs;
            without one what needs the least noise for measurements where the mechanism selects
            nothing, or is "auto" without public records, and "zcdp" elsewhere.
        device: where the model is computed: "cpu" (None), a CUDA card such as "cuda", or "auto", a
            card where there is one and it gains; the setting of that name. A mechanism that "auto"
            chose and that computes nothing there leaves it aside.
        progress: True for a bar of rounds on a terminal, or a callable that gets each finished
            round of a mechanism that has rounds.

    With constraints in the schema the final model gives ruled out records probability zero, which
    needs a mechanism with a graphical model, or with one of regions (`hdmm+pgm`,
    `gaussian+projection` and their setting `inference`).

    Raises InvalidInput, before anything is spent, for wrong arguments, a frame without the schema's
    columns, constraints with a mechanism that cannot hold them, and `strict` data.

    >>> import pyarrow
    >>> from pgmkit.tables.schema import Boolean, Integer
    >>> people = pyarrow.table({"age": [31, 45, 27] * 50, "ill": [True, False, False] * 50})
    >>> schema = Schema({"age": Integer(18, 99, bins=8), "ill": Boolean()})
    >>> release = synthesize(people, schema, epsilon=1.0, delta=1e-6, seed=0)
    >>> release.sample(2, rng=0).column_names
    ['age', 'ill']
    """
    options = settings if settings is not None else {}
    check_kinds(
        schema=schema,
        mechanism=mechanism,
        neighbours=neighbours,
        accounting=accounting,
        seed=seed,
        ledger=ledger,
        progress=progress,
        settings=options,
        strict=strict,
        report_dropped=report_dropped,
        report_unread=callable(report_unread) or report_unread,
    )
    options = with_device(device, mechanism, options)
    budget = _budget(schema, epsilon, delta)
    protected = relation(neighbours, unit, max_rows)
    check_unit(unit, schema, report_dropped)
    check_mechanism(schema, mechanism, options, public is not None)
    check_limits(schema, public is not None, seconds, memory_mb)
    form = None if isinstance(data, Dataset | NoRows) else FrameForm.of(data)
    likely = table_workload(assumed(schema).domain, workload, target)
    measures = _measures(schema, mechanism, options, likely, public is not None)
    budget = replace(budget, accounting=accounting_of(accounting, measures, budget, ledger))
    schema = schema if strict else schema.placed()
    check_public_records(public, schema, mechanism)

    choose = partial(
        choice_of,
        mechanism,
        budget=budget,
        max_rows=protected.max_rows,
        public=public is not None,
        seconds=seconds,
        memory_mb=memory_mb,
    )
    if schema.unresolved or report_dropped or report_unread or mechanism == "auto":
        choice = choose(assumed(schema), likely, rows=None)
        dry_run(choice, options, schema, likely, budget, protected, public)
    excess = None
    if unit is not None:
        # One generator for the rows that are kept and for the noise: they stay independent.
        seed = None if seed is None else np.random.default_rng(seed)
        data, excess = bounded_frame(data, schema, unit, protected.max_rows, seed)
    counts = counted_roughly(data, schema) if schema.unresolved else counted(data, schema, likely)
    curator = Curator(counts, budget, neighbours=protected, seed=seed, ledger=ledger)
    with closing(curator.ledger), round_reports(progress) as report:
        if curator.public_total == 0:
            raise InvalidInput(_NO_ROWS)
        said = check_values(curator, report_unread) if report_unread else ""
        if schema.unresolved:
            found = schema.unresolved
            schema, curator = resolved(data, schema, curator, likely)
            check_labels(schema, found)
        wanted = _resized(likely, schema.domain, workload, target)
        if report_dropped and excess is not None:
            said += _rows_left_out(curator, excess)
        # Public records know some dependence, which is worth it whatever the number of rows.
        if mechanism == "auto" and public is None:
            choice, known = _looked_at(curator, schema, wanted, choose)
        else:
            choice, known = choose(schema, wanted, rows=None), {}
        logger.info("mechanism %s: %s", choice.name, choice.reason)
        entry, chosen = configure(choice.name, **{**choice.settings, **options})
        chosen = on_device(chosen, device)
        others = None if public is None else public_records(public, schema)
        release = run_on(
            curator,
            entry,
            chosen,
            wanted,
            public=others,
            bins=bins_of(schema),
            progress=report,
            **known,
        )
    return TableRelease(_constrained(release, schema, device), schema, form, choice.reason + said)


def _budget(schema: Schema, epsilon: float, delta: float) -> Budget:
    """The promise, with a part of delta set aside where columns are to be found."""
    budget = Budget(epsilon, delta)
    if schema.unresolved and budget.pure:
        raise InvalidInput(
            f"column {schema.unresolved[0]!r} is to be found in the data, which needs delta above "
            f"0; got {delta!r}. Give its values or edges to use pure differential privacy"
        )
    return replace(budget, reserved=_RESERVED_SHARE * delta) if open_columns(schema) else budget


def _rows_left_out(curator: Curator, excess: Excess) -> str:
    """A clause on the rows that were left out, at a small price."""
    rows, stddev = curator.measure_excess(excess, _EXCESS_SHARE * curator.remaining)
    of_each = curator.neighbours.max_rows
    return (
        f"; about {max(0.0, rows):.0f} rows beyond {of_each} of each unit were left out (noise "
        f"{stddev:.0f}; at most {excess.most} of a unit are counted)"
    )


def _measures(
    schema: Schema, mechanism: str, settings: Mapping[str, Any], workload: Workload, public: bool
) -> bool:
    """Whether the run is known to measure only, or nearly so, before its first charge.

    "auto" chooses by a noisy number of rows, and an accounting must not depend on answers. So it
    has that of `independent`; its other choices without public records select with about a tenth
    of the budget, and gain by it too. A mixture selects where there are many cells, which is not
    known while columns are open.
    """
    if mechanism == "auto":
        return not public
    entry, chosen = configure(mechanism, **settings)
    return entry.measures if schema.unresolved else only_measures(entry, chosen, workload)


def _all_of(domain: Domain, k: int) -> Workload:
    """All marginals of k columns; those of one value say nothing, and cost nothing."""
    # A pair of one column is that column.
    wanted = k_way(domain, min(k, len(domain)) if k == 2 else k)
    names = varied(domain)
    if len(names) == len(domain):
        return wanted
    return Workload.over(domain, k_way(domain.project(names), min(k, len(names))).cliques)


def _rows(curator: Curator) -> int:
    """The number of rows, at a small price where it is private."""
    if curator.public_total is not None:
        return curator.public_total
    cost = _ROWS_SHARE * curator.remaining
    return max(0, round(float(curator.measure((), cost, step="auto: measure").values[0])))


def _looked_at(
    curator: Curator, schema: Schema, workload: Workload, choose: Callable[..., Choice]
) -> tuple[Choice, dict[str, Any]]:
    """The choice of "auto" by the number of rows and, where pairs are to be measured, by a look.

    Where no dependence shows it is independent columns. With it come those arguments of `run_on`
    that the look has paid for: the marginals, and, for a mixture, the distances of pairs.
    """
    rows = _rows(curator)
    choice = choose(schema, workload, rows=rows)
    pairs = any(len(clique) > 1 for clique in downward_closure(workload))
    if choice.name not in ("aim", "mixture", "mst") or not pairs:
        return choice, {}
    # What the mechanism would refuse it refuses before the look is paid for.
    dry_run(choice, {}, schema, workload, curator.ledger.budget, curator.neighbours, None)
    look = first_look(curator, workload, rows, choice.name, bins_of(schema))
    known: dict[str, Any] = {"first": look.measurements}
    if look.dependent:
        return choice, known | ({"distances": look.distances} if choice.name == "mixture" else {})
    reason = (
        f"pairs of columns are {look.excess:.4f} further from independence than chance gives "
        f"(total variation, noise {look.stddev:.4f}), and would be worth their price from "
        f"{look.needed:.4f} on: only single columns are measured"
    )
    return Choice("independent", reason), known


def _resized(
    likely: Workload, domain: Domain, workload: int | WorkloadLike | None, target: str | None
) -> Workload:
    """What is asked for, over the domain with its open columns found."""
    if workload is None or isinstance(workload, int):
        return table_workload(domain, workload, target)
    return Workload(domain, likely.cliques, likely.weights)


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
        wanted = _all_of(domain, min(2, len(domain)))
    elif isinstance(workload, int):
        wanted = _all_of(domain, workload)
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


def _constrained(release: Release, schema: Schema, device: str | None) -> Release:
    """The release with a model that gives ruled out records probability zero.

    A region model where constraints between columns that were not measured together make the tree
    too large.
    """
    if not schema.constraints:
        return release
    tables = [m for m in release.measurements if isinstance(m, Measurement)]
    total, zeros = release.model.total, schema.zeros
    if isinstance(release.model, RegionModel):
        model: Model = estimate(schema.domain, tables, total=total, zeros=zeros, inference="region")
    else:
        model = estimate(
            schema.domain, tables, total=total, zeros=zeros, device=device, inference="auto"
        )
    return replace(release, model=model)
