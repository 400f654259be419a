"""The front door: a data frame, a schema and a privacy budget in; a release with meanings out."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from mechanisms.dispatch import run_on
from mechanisms.privacy.budget import Accounting
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import FileLedger
from mechanisms.privacy.units import Excess
from mechanisms.registry import configure
from mechanisms.release.record import Model, Release
from mechanisms.release.tabular import TableRelease
from mechanisms.rounds.loop import Round, round_reports
from mechanisms.synthesis.auto import Choice
from mechanisms.synthesis.dry_run import dry_run
from mechanisms.synthesis.first_look import bins_of, first_look
from mechanisms.synthesis.open_columns import assumed, counted, counted_roughly, resolved
from mechanisms.synthesis.request import Request, delta_caution
from mechanisms.synthesis.units import bounded_frame, warn_of_others
from mechanisms.synthesis.unread import UnreadValues, check_labels, check_values
from mechanisms.workload import Workload, WorkloadLike, downward_closure
from pgmkit.errors import InvalidInput
from pgmkit.estimation import estimate
from pgmkit.measurement import Measurement
from pgmkit.records.dataset import Counts, Dataset
from pgmkit.regions.model import RegionModel
from pgmkit.tables.engines.frames import FrameForm
from pgmkit.tables.schema import NoRows, Schema

__all__ = ["constrained", "release_of", "synthesize"]

logger = logging.getLogger(__name__)

_ROWS_SHARE = 0.002
"""The part of the budget for the number of rows that "auto" goes by where it is private.

It costs a thousandth more noise in all else. The number is off by a seventh of the rows at which
the choice changes where there are four columns, and by less where there are more.
"""


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
            see whether columns depend on each other at all).
        settings: the options of a mechanism that is named, such as {"model_mb": 10}.
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
    request = Request(
        schema=schema,
        epsilon=epsilon,
        delta=delta,
        neighbours=neighbours,
        unit=unit,
        max_rows=max_rows,
        report_dropped=report_dropped,
        report_unread=report_unread,
        mechanism=mechanism,
        settings=settings,
        workload=workload,
        target=target,
        public=public,
        seconds=seconds,
        memory_mb=memory_mb,
        strict=strict,
        seed=seed,
        ledger=ledger,
        accounting=accounting,
        device=device,
        progress=progress,
    )
    return release_of(request, data)


def release_of(request: Request, data: Any) -> TableRelease:
    """Spend the budget of a request on private records, which this function alone takes further.

    The records are coded once and then held by a Curator; nothing after that sees the frame, except
    for columns whose values are still to be found.

    Raises InvalidInput, before anything is spent, for data that do not fit the request.
    """
    form = _form(data)
    warn_of_others(data, request.schema, request.unit)
    schema = request.placed
    pays_before = schema.unresolved or request.report_dropped or request.report_unread
    if pays_before or request.mechanism == "auto":
        likely = request.choice(assumed(schema), request.likely)
        dry_run(request, likely, schema, request.likely)
    # One generator for the rows that are kept and for the noise: they stay independent.
    seed = None if request.seed is None else np.random.default_rng(request.seed)
    excess = None
    if request.unit is not None:
        data, excess = bounded_frame(data, schema, request.unit, request.relation.max_rows, seed)
    if schema.unresolved:
        counts = counted_roughly(data, schema)
    else:
        counts = counted(data, schema, request.likely)
    _check_rows(request, counts)
    curator = Curator(
        counts, request.budget, neighbours=request.relation, seed=seed, ledger=request.ledger
    )
    with closing(curator.ledger), round_reports(request.progress) as report:
        said = check_values(curator, request.report_unread) if request.report_unread else ""
        if schema.unresolved:
            found = schema.unresolved
            schema, curator = resolved(data, counts, schema, curator, request.likely)
            check_labels(schema, found)
        workload = request.workload_over(schema.domain)
        said += _rows_left_out(curator, excess) if request.report_dropped and excess else ""
        choice, known = _chosen(request, curator, schema, workload)
        logger.info("mechanism %s: %s", choice.name, choice.reason)
        entry, settings = configure(choice.name, **{**choice.settings, **request.options})
        if request.device is not None and hasattr(settings, "device"):
            settings = replace(settings, device=request.device)
        release = run_on(
            curator,
            entry,
            settings,
            workload,
            public=request.public_records(schema),
            bins=bins_of(schema),
            progress=report,
            **known,
        )
    final = constrained(release, schema, request.device)
    return TableRelease(final, schema, form, choice.reason + said)


def _form(data: Any) -> FrameForm | None:
    """The kind of frame that records come back in; None for records that are coded already."""
    if isinstance(data, str | os.PathLike):
        raise InvalidInput(
            f"the data must be a data frame, got the path {os.fspath(data)!r}; read the file by "
            "encode_file(path, schema), or run `pgmkit synth` on it"
        )
    return None if isinstance(data, Dataset | NoRows) else FrameForm.of(data)


def _check_rows(request: Request, counts: Counts) -> None:
    """Refuse a public number of rows that is 0; warn of a delta that protects too few rows."""
    public = request.relation.rows_public
    if public and len(counts) == 0:
        raise InvalidInput("the data have no rows, which replace-one takes as public; give some")
    caution = delta_caution(request.delta, len(counts) if public else None)
    if caution:
        warnings.warn(caution, UserWarning, stacklevel=4)


def _rows_left_out(curator: Curator, excess: Excess) -> str:
    """A clause on the rows that were left out, at a small price."""
    rows, stddev = curator.measure_excess(excess, curator.remaining / 100)
    of_each = curator.neighbours.max_rows
    return (
        f"; about {max(0.0, rows):.0f} rows beyond {of_each} of each unit were left out (noise "
        f"{stddev:.0f}; at most {excess.most} of a unit are counted)"
    )


def _chosen(
    request: Request, curator: Curator, schema: Schema, workload: Workload
) -> tuple[Choice, dict[str, Any]]:
    """The mechanism that runs, and the arguments of `run_on` that the choice has paid for already.

    Without public records "auto" pays for the number of rows and, where pairs are to be measured,
    for a first look at their dependence; where none shows it takes independent columns. The look
    leaves the marginals of columns, and, for a mixture, the distances of pairs.
    """
    # Public records know some dependence, which is worth it whatever the number of rows.
    if request.mechanism != "auto" or request.public is not None:
        return request.choice(schema, workload), {}
    rows = _rows(curator)
    choice = request.choice(schema, workload, rows)
    pairs = any(len(clique) > 1 for clique in downward_closure(workload))
    if choice.name not in ("aim", "mixture", "mst") or not pairs:
        return choice, {}
    # A mechanism must refuse before the look is paid for.
    dry_run(request, choice, schema, workload)
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


def _rows(curator: Curator) -> int:
    """The number of rows, at a small price where it is private."""
    if curator.public_total is not None:
        return curator.public_total
    cost = _ROWS_SHARE * curator.remaining
    return max(0, round(float(curator.measure((), cost, step="auto: measure").values[0])))


def constrained(release: Release, schema: Schema, device: str | None) -> Release:
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
