"""The entry point `synthesize`: from a data frame, a schema and a budget to a release with
meanings.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from mechanisms.dispatch import run_on, warn_of_poor_fit
from mechanisms.privacy.budget import Accounting
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import FileLedger
from mechanisms.privacy.units import Excess
from mechanisms.registry import configure
from mechanisms.release.record import Release
from mechanisms.release.tabular import TableRelease
from mechanisms.release.unfinished import estimated, kept, unfinished
from mechanisms.rounds.loop import Progress, round_reports
from mechanisms.synthesis import open_columns
from mechanisms.synthesis.auto import Choice
from mechanisms.synthesis.first_look import bins_of, first_look
from mechanisms.synthesis.plan import dry_run
from mechanisms.synthesis.request import Request
from mechanisms.synthesis.units import bounded_frame, warn_of_others
from mechanisms.synthesis.unread import UnreadValues, check_labels, check_values, warn_unchecked
from mechanisms.workload import Workload, WorkloadLike, downward_closure
from pgmkit import RegionModel, Schema
from pgmkit.errors import InvalidInput, ModelTooLarge, NotCertified, without
from pgmkit.records.dataset import Counts, Dataset
from pgmkit.tables.engines.frames import FrameForm

logger = logging.getLogger(__name__)

_ROWS_SHARE = 0.002
"""The share of the budget for the number of rows, which "auto" needs if the number is private.

It costs a thousandth more noise in all else. For four columns the noise in the number is a seventh
of the rows at which the choice changes; for more columns it is less.
"""
_MOST_EPSILON = 10.0
"""The largest epsilon that is accepted without a warning. An adversary who gives a probability of
50% to a person's being in the data may be 99.995% sure of it after a release with epsilon 10.
"""


def synthesize(
    data: Any,
    schema: Schema,
    *,
    epsilon: float | None = None,
    delta: float,
    neighbours: str = "add/remove",
    unit: str | None = None,
    max_rows: int | None = None,
    report_dropped: bool = False,
    report_unread: bool | Callable[[UnreadValues], None] = False,
    mechanism: str = "auto",
    settings: Mapping[str, Any] | None = None,
    workload: int | WorkloadLike | None = None,
    queries: Sequence[str] | None = None,
    within: float | None = None,
    target: str | None = None,
    public: Any = None,
    seconds: float | None = None,
    memory_mb: float | None = None,
    strict: bool = False,
    seed: int | np.random.Generator | None = None,
    ledger: FileLedger | None = None,
    accounting: Accounting | None = None,
    device: str | None = None,
    progress: bool | Progress = None,
) -> TableRelease:
    """Spend an (epsilon, delta) budget on private records and return a release of them.

    The release gives synthetic records, tables and answers. With constraints in the schema its
    model gives the records ruled out probability zero, which needs a mechanism with a graphical
    model or a region model (`matrix+pgm`, `gaussian+projection` and their setting `inference`).

    Raises InvalidInput, before anything is spent, for wrong arguments, a frame without the schema's
    columns, constraints with a mechanism that cannot hold them, and, with `strict`, data that do
    not fit the schema. Raises ColumnsFound, an InvalidInput with the schema that was found, if a
    mechanism that is named refuses what is found in open columns; "auto" then takes single columns.

    Args:
        data: A data frame (pandas, polars, pyarrow, DuckDB, PySpark, Dask), or records already
            coded over the schema's domain (`Dataset`, or `counts_of` a frame). Frames in an engine
            are counted there, for most mechanisms in one pass.
        schema: What each column may hold. Columns left open (`OpenCategorical`, `Numeric` with
            quantiles) are found first, with a tenth of the budget and, for labels, of delta.
        epsilon: The epsilon promised, for rows or for units (see the privacy page); leave it out
            with `within`.
        delta: The delta promised; 0 promises pure epsilon-differential privacy.
        neighbours: The change of the data that the promise is about: "add/remove" or "replace-one".
        unit: The column that says to whom a row belongs, to protect all rows of a unit (a person, a
            household) together. It is not released and must not be in the schema; rows without a
            unit are left out.
        max_rows: The number of rows of each unit that are used; further ones are left out at random
            (by the operating system's randomness, or by the seed). Noise grows with this number.
        report_dropped: Whether to spend a hundredth of what open columns and `report_unread` leave
            of the budget to say in the release's `reason`, with noise, how many rows `max_rows`
            left out.
        report_unread: Whether to spend a hundredth of the budget on the share of each column's
            values that the schema could not read, and of its missing values (nothing if the labels
            of all columns are to be found). The release's `reason` says it, and a warning tells of
            columns of which surely more than a tenth could not be read, or all values seem to be
            missing. A callable gets the noisy shares in place of the warning, before the rest is
            spent, and may raise to end the run. With either, the data must be a frame or the
            records of `encode_file`. If it is False, a warning, given once in a process, names the
            columns that count such values among others (`outside`).
        mechanism: A mechanism's name, or "auto" (see `choose_mechanism`). Without queries and
            public records "auto" spends a five-hundredth of what is left then on the number of
            rows, if that is private; before `aim` it spends up to a fiftieth of the rest to see
            whether columns depend on each other at all.
        settings: The settings of a mechanism that is named, such as {"model_mb": 10}.
        workload: What should be answered well: an integer k for all marginals of k columns (2 by
            default), a Workload, or sets of columns.
        queries: What should be answered well, as questions in words (`TableRelease.ask`) in place
            of a workload: ["cdf(income) | region", "age in 5-year steps x sex"]. "auto" then takes
            `matrix+pgm`, which has the least noise for them, each question's mean variance counting
            alike; `expected_errors` states the errors beforehand. Columns that no question names
            are measured one by one, for little.
        within: A number of records, from which the least epsilon follows: each answer to the
            queries differs from the truth by at most this number with a probability of 95%. For
            "auto", `matrix` and `matrix+pgm`; not for sums and means.
        target: A column to predict later: marginals that include it get four times the weight, and
            pairs of other columns may be measured together with it. "auto", `mixture`, `aim` and
            `mwem+pgm` also look for larger sets of columns that predict it only together.
        public: Records that need no protection, for the mechanisms that use them; with the same
            columns, or for gem-pub some of them.
        seconds: The time that "auto" may take, by which it chooses a mechanism.
        memory_mb: The memory that "auto" may take, by which it chooses a mechanism.
        strict: Whether to refuse data that do not fit the schema (values outside it, missing ones
            that are not declared, broken constraints, no rows). NOT private: whether a run fails,
            and the number of rows in its message, are exact. Use it for public data, or for a check
            that nobody else sees. By default such values go to the place that each column declares
            (`Schema.placed`), and only the noisy tables show them.
        seed: A seed for reproducible noise: INSECURE, for tests and simulations only.
        ledger: A ledger across runs on the same data (`Ledger.open`): it writes every charge to the
            disk before the answer is drawn, and refuses charges beyond the budget of all runs
            together.
        accounting: "zcdp" or "gaussian" (see `Budget`). The default is that of the ledger across
            runs. Without such a ledger it is the one with the least noise for measurements if the
            mechanism selects nothing, or is "auto" without public records, and otherwise "zcdp".
        device: Where the model is computed: "cpu" (None), a CUDA GPU such as "cuda", or "auto": a
            GPU if there is one and the model gains by it. It is the mechanism's setting of that
            name; a mechanism that "auto" chose and that has no such setting ignores it.
        progress: True for a progress bar of rounds on a terminal, or a callable that gets each
            finished round of a mechanism that has rounds.

    >>> import pyarrow
    >>> from pgmkit import Boolean, Integer
    >>> people = pyarrow.table({"age": [31, 45, 27] * 50, "ill": [True, False, False] * 50})
    >>> schema = Schema({"age": Integer(18, 99, bins=8), "ill": Boolean()})
    >>> release = synthesize(people, schema, epsilon=1.0, delta=1e-6, seed=0)
    >>> release.sample(2, rng=0).column_names
    ['age', 'ill']
    """
    # A request has the same arguments, by the same names, but for the data.
    arguments = {name: value for name, value in locals().items() if name != "data"}
    return release_of(Request(**arguments), data)


def release_of(request: Request, data: Any) -> TableRelease:
    """Return the release of private records that a request asks for, spending its budget.

    A frame in memory is coded once, and a Curator then holds the codes. The frame is read again
    only to find the values of open columns and to code them. Records in an engine are counted
    there, in as many passes as the counts need. Raises InvalidInput, before anything is spent, for
    data that do not fit the request.
    """
    form = _form(data)
    warn_of_others(data, request.schema, request.unit)
    if form is not None and not (request.strict or request.report_unread):
        warn_unchecked([request.schema])
    schema = request.placed
    pays_before = schema.unresolved or request.report_dropped or request.report_unread
    if pays_before or request.mechanism == "auto":
        likely = request.choice(open_columns.assumed(schema), request.likely)
        dry_run(request, likely, schema, request.likely)
    # The same generator draws first which rows of each unit are kept and then the noise, so that
    # the two draws are independent.
    seed = None if request.seed is None else np.random.default_rng(request.seed)
    excess = None
    if request.unit is not None:
        data, excess = bounded_frame(data, schema, request.unit, request.relation.max_rows, seed)
    if schema.unresolved:
        counts = open_columns.counted_roughly(data, schema)
    else:
        counts = open_columns.counted(data, schema, request.likely)
    curator = curator_of(request, counts, seed)
    with closing(curator.ledger), round_reports(request.progress) as report:
        said = ""
        # A column whose values are found in the data can hold any text, so nothing is checked if
        # all columns are of this kind.
        if request.report_unread and len(open_columns.unlisted(schema)) < len(schema.columns):
            said = check_values(curator, schema, request.report_unread)
        if found := schema.unresolved:
            schema, curator = open_columns.resolved(data, schema, curator, request.likely)
            check_labels(schema, found)
        with kept(lambda: TableRelease(unfinished(curator, request.mechanism), schema, form)):
            with open_columns.keeping(schema, curator) if found else nullcontext():
                release, why = _released(request, curator, schema, excess, report)
            final = constrained(release, schema, request.device)
            warn_of_poor_fit(final)
    return TableRelease(replace(final, reason=why + said), schema, form)


def _released(
    request: Request, curator: Curator, schema: Schema, excess: Excess | None, report: Progress
) -> tuple[Release, str]:
    """Run the mechanism that was named or that "auto" chooses. Return its release, and the reason
    for the choice, with a clause on the rows that were left out if the request reports them.
    """
    workload = request.workload_over(schema)
    said = _rows_left_out(curator, excess) if request.report_dropped and excess else ""
    choice, known = _chosen(request, curator, schema, workload)
    logger.info("mechanism %s: %s", choice.name, choice.reason)
    entry, settings = configure(choice.name, **choice.settings)
    if request.device is not None and hasattr(settings, "device"):
        settings = replace(settings, device=request.device)
    known |= {"public": request.public_records(schema), "bins": bins_of(schema)}
    release = run_on(curator, entry, settings, workload, progress=report, **known)
    return release, choice.reason + said


def _form(data: Any) -> FrameForm | None:
    """Return the kind of data frame that `data` is, in which records will be returned; None for a
    `Dataset`. Raises InvalidInput for a path.
    """
    if isinstance(data, str | os.PathLike):
        raise InvalidInput(
            f"the data must be a data frame, got the path {os.fspath(data)!r}; read the file by "
            "encode_file(path, schema), or run `pgmkit synth` on it"
        )
    return None if isinstance(data, Dataset) else FrameForm.of(data)


def curator_of(request: Request, counts: Counts, seed: np.random.Generator | None) -> Curator:
    """Return the Curator of these records with the budget of a request, after `check_rows`.
    `seed`: the generator for INSECURE noise; None for the operating system's randomness.
    """
    check_rows(request, counts)
    return Curator(
        counts, request.budget, neighbours=request.relation, seed=seed, ledger=request.ledger
    )


def check_rows(request: Request, counts: Counts) -> None:
    """Raise InvalidInput if the number of rows is public and 0. Warn if delta is above 1 / rows
    (1,000 rows are assumed if their number is private), and if epsilon is above 10 (`cautions`).
    """
    public = request.relation.rows_public
    if public and len(counts) == 0:
        raise InvalidInput("the data have no rows, which replace-one takes as public; give some")
    for caution in cautions(request, len(counts) if public else None):
        warnings.warn(caution, UserWarning, stacklevel=5)


def cautions(request: Request, rows: int | None) -> Iterator[str]:
    """Yield a warning if delta is above 1 / rows, and one if the budget's epsilon is above
    `_MOST_EPSILON`, which protects hardly anyone.

    `rows`: the number of rows if it is public. If it is None, 1,000 rows are assumed, as tables of
    fewer are seldom released.

    >>> from pgmkit import Boolean, Schema
    >>> request = Request(schema=Schema({"ill": Boolean()}), epsilon=20, delta=0.01)
    >>> for said in cautions(request, None):
    ...     print(said[:72].strip())
    delta (0.01) is above 1 / 1000 rows (assumed, as their number is private
    epsilon = 20 protects hardly anyone; 0.1 to 10 are usual, and with less
    """
    delta, least = request.delta, 1000 if rows is None else rows
    if delta * least > 1:
        assumed = " (assumed, as their number is private)" if rows is None else ""
        yield (
            f"delta ({delta:g}) is above 1 / {least} rows{assumed}: its promise allows that whole "
            "records are published, each with that probability; choose delta well below 1 / rows"
        )
    epsilon = request.budget.epsilon
    if epsilon > _MOST_EPSILON and request.within is None:
        yield (
            f"epsilon = {epsilon:.4g} protects hardly anyone; 0.1 to {_MOST_EPSILON:g} are usual, "
            "and with less noise some mechanisms take many times as long"
        )
    elif epsilon > _MOST_EPSILON:
        yield (
            f"answers within {request.within:g} records need epsilon = {epsilon:.4g}, which "
            "protects hardly anyone; allow larger errors"
        )


def _rows_left_out(curator: Curator, excess: Excess) -> str:
    """Spend a hundredth of the remaining budget on the number of rows that were left out, and
    return a clause that says it.
    """
    rows, stddev = curator.measure_excess(excess, curator.remaining / 100)
    of_each = curator.neighbours.max_rows
    return (
        f"; about {max(0.0, rows):.0f} rows beyond {of_each} of each unit were left out (noise "
        f"{stddev:.0f}; at most {excess.most} of a unit are counted)"
    )


def _chosen(
    request: Request, curator: Curator, schema: Schema, workload: Workload
) -> tuple[Choice, dict[str, Any]]:
    """Return the choice of mechanism, and further arguments of `run_on`: as `first`, the marginals
    of single columns that a first look has measured, if there was one.

    Without public records and questions, "auto" pays for the number of rows, if that is private.
    If it then chooses AIM for a workload with pairs, it also pays for a first look at their
    dependence, and takes `independent` instead if none shows.
    """
    # Neither the number of rows nor a first look is needed with public records, which show
    # dependence for free, or with questions, which say what to measure.
    if request.mechanism != "auto" or request.public is not None or request.queries:
        return request.choice(schema, workload), {}
    rows = _rows(curator)
    choice = _accepting(request, request.choice(schema, workload, rows), schema, workload)
    if choice.name != "aim" or all(len(clique) < 2 for clique in downward_closure(workload)):
        return choice, {}
    look = first_look(curator, workload)
    known: dict[str, Any] = {"first": look.measurements}
    if look.dependent:
        return choice, known
    reason = (
        f"pairs of columns are {max(0.0, look.excess):.4f} further from independence than chance "
        f"gives (total variation, noise {look.stddev:.4f}), and would be worth their price from "
        f"{look.needed:.4f} on, and no pair stands out: only single columns are measured; a "
        "mechanism that is named, such as mst, measures pairs nevertheless"
    )
    return Choice("independent", reason), known


def _accepting(request: Request, choice: Choice, schema: Schema, workload: Workload) -> Choice:
    """Return the choice if its mechanism accepts the columns that were found, and otherwise the
    choice of `independent`, which measures single columns only.

    The mechanism may refuse because more values were found than had been assumed, or because of so
    many rows that only a small model could be estimated in time. A refusal after this point would
    lose what has been spent.
    """
    if choice.name == "independent":
        return choice
    try:
        dry_run(request, choice, schema, workload)
    except (InvalidInput, ModelTooLarge) as refusal:
        return Choice("independent", f"single columns only, since {choice.name} says: {refusal}")
    return choice


def _rows(curator: Curator) -> int:
    """Return the number of rows if it is public. Otherwise measure it at a cost of `_ROWS_SHARE` of
    the remaining budget, and return the noisy number, rounded and at least 0.
    """
    if curator.public_total is not None:
        return curator.public_total
    cost = _ROWS_SHARE * curator.remaining
    return max(0, round(float(curator.measure((), cost, step="auto: measure").values[0])))


def constrained(release: Release, schema: Schema, device: str | None) -> Release:
    """Return the release with a model that is estimated again from its noisy tables and gives the
    records ruled out by constraints probability zero. Without constraints, return the release as it
    is.

    The model is a region model if that of `release` is, or if constraints between columns that were
    not measured together make the junction tree too large. The warning NotCertified is not given,
    since the caller reports how well the result fits. `device`: that of the fit, unused if the
    release's model is a region model.
    """
    if not schema.constraints:
        return release
    region = isinstance(release.model, RegionModel)
    with without(NotCertified):
        inference, where = ("region", None) if region else ("auto", device)
        return estimated(release, schema, inference=inference, device=where)
