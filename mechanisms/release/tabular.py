"""A release whose codes have meanings: frames, labelled tables with error bars, questions."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import narwhals as nw
import numpy as np

from mechanisms.privacy.neighbours import rows_used
from mechanisms.release.page import overview
from mechanisms.release.parts import record_parts
from mechanisms.release.quick_bars import gaussian_level, quick_bars, without_bars
from mechanisms.release.record import Answering, Release
from mechanisms.release.verdict import Verdict, verdict
from pgmkit import Dataset, GraphicalModel, Measurement, RegionModel, Reply, Schema, ask
from pgmkit.errors import InvalidInput, NotMeasured, TooSlow, naming
from pgmkit.runtime.arguments import Rng, generator
from pgmkit.runtime.typed import typed_class
from pgmkit.runtime.untrusted import LARGEST, FilePath, refusing
from pgmkit.tables.columns import BATCH_ROWS
from pgmkit.tables.constraints import Condition
from pgmkit.tables.engines.frames import FrameForm, decode, made_frame
from pgmkit.tables.question_grammar import conditions, parse
from pgmkit.tables.question_plan import Bars
from pgmkit.tables.quoting import quoted
from pgmkit.uncertainty import Uncertainty, error_bars
from pgmkit.uncertainty.measured import MeasuredBars

if TYPE_CHECKING:
    from pgmkit.runtime.progress import Replication

T = TypeVar("T")
PART = 16 * BATCH_ROWS
"""The number of records that are drawn and written at a time."""
_PYARROW = FrameForm(nw.Implementation.PYARROW, lazy=False)


class _Forwarded(Generic[T]):
    """An attribute of a TableRelease whose value is computed from its `release`."""

    def __init__(self, read: Callable[[Release], T]) -> None:
        self._read = read

    def __get__(self, owner: TableRelease | None, kind: type | None = None) -> T:
        # Asked of the class and not of a release, the attribute is this object.
        return self if owner is None else self._read(owner.release)  # type: ignore[return-value]


@typed_class
@dataclass(frozen=True, repr=False)
class TableRelease:
    """A Release with the schema of its columns; everything is safe to publish if `secure` is True.

    Attributes:
        release: The release, over codes.
        schema: The columns, with the meaning of their codes.
        form: The kind of frame that `sample` returns, that of the data; None for pyarrow.
    """

    release: Release
    schema: Schema
    form: FrameForm | None = None
    _bars: dict[str, Uncertainty] = field(default_factory=dict, compare=False)

    @property
    def _tables(self) -> list[Measurement]:
        return [each for each in self.measurements if isinstance(each, Measurement)]

    @cached_property
    def _measured(self) -> MeasuredBars:
        return MeasuredBars(self.model, self._tables)

    @cached_property
    def _quick(self) -> Uncertainty | MeasuredBars | None:
        model, tables = self.model, self._tables
        return quick_bars(model, tables) if isinstance(model, GraphicalModel) else self._measured

    model = _Forwarded(lambda release: release.model)
    """The model that answers, in counts over codes; often a `pgmkit.GraphicalModel`."""
    mechanism = _Forwarded(lambda release: release.mechanism)
    """The mechanism's name."""
    measurements = _Forwarded(lambda release: release.measurements)
    """The noisy values behind the model, and after them the exact tables (`with_exact`)."""
    ledger = _Forwarded(lambda release: release.ledger)
    """The ledger, which lists all charges. It is None for a model of noisy tables that this program
    did not measure.
    """
    settings = _Forwarded(lambda release: release.settings)
    """The mechanism's settings."""
    secure = _Forwarded(lambda release: release.secure)
    """False if a seed made the noise reproducible, or if the file was modified."""
    caution = _Forwarded(lambda release: release.caution)
    """The warning shown with anything from an insecure release; empty for a secure one."""
    exact = _Forwarded(lambda release: release.exact)
    """The number of tables that were given exactly (`with_exact`)."""
    reason = _Forwarded(lambda release: release.reason)
    """Why this mechanism was run, and what noisy checks of the data have shown."""
    made_by = _Forwarded(lambda release: release.made_by)
    """The version of pgmkit that made the release; empty if its file does not say."""
    exception = _Forwarded(lambda release: release.exception)
    """A clause that says that the promise does not cover exact tables; empty without any."""
    certificate = _Forwarded(lambda release: release.certificate)
    """A sentence on how near a graphical or region model is to the best fit; empty for others."""
    fit = _Forwarded(lambda release: release.fit)
    """The test of how well the noisy tables of a graphical or region model agree with each other;
    None for other models, and for one that was not estimated from all measurements.
    """
    contradiction = _Forwarded(lambda release: release.contradiction)
    """The warning that the noisy tables contradict each other; empty if they do not."""
    certified = _Forwarded(lambda release: release.certified)
    """False if the search for the model ended before it reached its tolerance (`certificate`)."""
    _used = _Forwarded(lambda r: "" if r.ledger is None else rows_used(r.ledger.neighbours))
    """A sentence on which rows of a unit are counted; empty for a promise for rows."""

    @cached_property
    def verdict(self) -> Verdict:
        """A verdict in words on what the records keep and lose, computed from the release alone."""
        budget = None if self.ledger is None else self.ledger.budget
        found = verdict(self.model, self.measurements, budget)
        said = "No value of {} is frequent enough to be found: all records have {!r} or a gap."
        columns = self.schema.columns.items()
        none = [said.format(n, c.labels[0]) for n, c in columns if getattr(c, "values", 0) == ()]
        relations, counts = " ".join([*none, found.relations]), f"{found.counts} {self._used}"
        return replace(found, relations=relations.strip(), counts=counts.strip())

    def codes(
        self,
        n: int | None = None,
        *,
        given: Mapping[str, Condition] | str | None = None,
        rng: Rng = None,
    ) -> Dataset:
        """Return synthetic records as codes.

        `n`: their number, by default the model's total or, with conditions, as many as meet them in
        the model. `given`: conditions that all records meet, such as {"sex": "F", "age": "30..44"}
        or "sex = F, age < 45"; the records are drawn from the conditional model, so none are thrown
        away. Without conditions the pairs of columns are near the model's (`Release.sample`).
        `rng`: a seed, a numpy Generator, or None for a fresh one.

        Raises InvalidInput for `n` below 1, for conditions under which the model has no records,
        and for a model that cannot be conditioned, or from which no records can be drawn.
        """
        source = self._given(given)
        return self._drawn(source, rows_asked(source, n), rng)

    def parts(
        self,
        n: int | None = None,
        *,
        given: Mapping[str, Condition] | str | None = None,
        rng: Rng = None,
    ) -> Iterator[Dataset]:
        """Yield the records of `codes`, which has the same arguments and defaults, in parts of
        about a million (2^20), for more records than memory holds.

        The parts of a graphical model's records are together one rounded draw: counts in the tree's
        cliques are as near to the model's as those of a single draw. If there are several parts,
        no codes are replaced to bring pairs of columns nearer to the model's tables.
        """
        source = self._given(given)
        rows = rows_asked(source, n)
        if rows <= PART:
            return iter([self._drawn(source, rows, rng)])
        return record_parts(source, self.schema, rows, PART, generator(rng)).codes()

    def _drawn(self, source: Answering, n: int, rng: Rng) -> Dataset:
        return (self.release if source is self.model else source).sample(n, rng=rng)

    def _given(self, given: Mapping[str, Condition] | str | None) -> Answering:
        """Return the model, conditioned if there are conditions. Raises InvalidInput if the model
        cannot be conditioned, or if no record meets the conditions.
        """
        if not given:
            return self.model
        allowed = conditions(self.schema, given)
        with naming(f"given {given!r:.200}"):
            return self.model.given({n: np.flatnonzero(m).tolist() for n, m in allowed.items()})

    def sample(
        self,
        n: int | None = None,
        *,
        given: Mapping[str, Condition] | str | None = None,
        rng: Rng = None,
        like: Any = None,
    ) -> Any:
        """Return synthetic records, with `n`, `given` and `rng` as in `codes`, as a data frame of
        the data's kind, or of that of `like`.

        `like`: a data frame, or "pandas", "polars" or "pyarrow". A release that was read from a
        file does not know the data's library, and returns pyarrow by default.

        For Spark and Dask, the workers make the records when the frame is read, a million in a
        partition: they get the model, and no record passes through this process. A DuckDB relation
        of more than a million records makes them as it is read, so `relation.write_parquet(...)`
        needs little memory. The same seed gives the same records however the work is divided. A
        Spark frame is made in the session of `like`, or in the active one.
        """
        random = generator(rng)
        form = FrameForm.of(like) if like is not None else self.form or _PYARROW
        source = self._given(given)
        rows = rows_asked(source, n)
        if form.distributed or (form.implementation.is_duckdb() and rows > PART):
            parts = record_parts(source, self.schema, rows, PART, random)
            return made_frame(parts, self.schema, form, like)
        return decode(self._drawn(source, rows, random), self.schema, random, form)

    def bars(
        self,
        replicates: int = 100,
        seed: int | None = None,
        progress: bool | Callable[[Replication], None] | None = None,
        max_seconds: float | None = None,
    ) -> Uncertainty | MeasuredBars:
        """Return the error bars of the model's answers. The arguments are those of
        `pgmkit.error_bars`.

        The first question that needs re-estimation takes some seconds, further ones none; with
        `max_seconds` the question raises TooSlow if it would take longer. A model that is neither
        graphical nor a region model has error bars in closed form for counts and sums within one
        measured table, for which no argument matters, and raises NotMeasured for anything else.
        Levels are for continuous Gaussian noise; `ask` also allows for Laplace noise and for whole
        numbers, with which 95% is 91% at a standard deviation of 1.5 and 79% at one of 0.5.
        """
        if not isinstance(self.model, GraphicalModel | RegionModel):
            return self._measured
        asked: dict[str, Any] = dict(replicates=replicates, seed=seed, max_seconds=max_seconds)
        key = str(asked)
        if key not in self._bars:
            self._bars[key] = error_bars(self.model, self._tables, progress=progress, **asked)
        return self._bars[key]

    def table(self, *columns: str, level: float = 0.95, replicates: int | None = None) -> Reply:
        """Return the marginal of these columns: labels, count, share, standard error and interval;
        without columns, those of the number of all records.

        Without `replicates` only error bars that take about a second at most are computed, as in
        `ask`. With `replicates` (100 are usual) they are computed however long they take, if the
        model is graphical or a region model.
        """
        text = ", ".join(map(quoted, columns)) or "count"
        if replicates is None or not isinstance(self.model, GraphicalModel | RegionModel):
            return self.ask(text, level=level)
        return self._reply(text, level, self.bars(replicates, seed=0))

    def ask(
        self,
        question: str,
        *,
        error_bars: bool | None = None,
        level: float = 0.95,
        progress: bool = False,
    ) -> Reply:
        """Return the reply to a question such as "income | age in 30..44 and sex = F".

        The grammar is in `pgmkit.tables.question_grammar`. `error_bars`: True for standard errors,
        intervals and a word on unreliable answers, however long they take (raises
        NotMeasured if they are not known); None, the default, for the same if they are known and
        take about a second at most, and otherwise for a note, with marks on counts that are small
        beside the noise; False for none of these. `level`: the level of the intervals.
        `progress`: whether to show a progress bar on a terminal while error bars are estimated.
        """
        columns = parse(self.schema, question).columns  # raises before anything is computed
        if error_bars is not None:
            bars = self.bars(seed=0, progress=progress) if error_bars else None
            return self._reply(question, level, bars)
        with suppress(TooSlow, NotMeasured):
            if self._quick is not None:
                return self._reply(question, level, self._quick)
        return without_bars(self.release, columns, self._reply(question, level))

    def _reply(self, question: str, level: float, bars: Bars | None = None) -> Reply:
        """Return the reply to a question, with notes on contradictions and on units.

        `bars`: the error bars of the model's answers; None for a reply without any. `level`: the
        level that the intervals are to have; `bars` is asked for the level of `gaussian_level`,
        which is somewhat higher.
        """
        level = gaussian_level(self.release, level)
        reply = ask(self.model, self.schema, question, bars=bars, level=level)
        said = (self.contradiction and f"careful: {self.contradiction}", self._used)
        return replace(reply, notes=(*reply.notes, *filter(None, said)))

    def with_exact(self, *paths: FilePath) -> TableRelease:
        """Return the release with a model that also has these tables, which are known exactly.

        `paths`: CSV files of counts over columns or levels (docs/noisy-tables.md). The model comes
        within half a count of them, and records within a few. Only the release is used, so no
        budget is spent. But the promise does not cover the information in such tables, which the
        report and the saved release state.

        Raises InvalidInput for no paths, tables that state noise of a standard deviation above half
        a count, tables that contradict each other or what the schema rules out, and other models
        than graphical ones.
        """
        from mechanisms.release.exact import with_exact

        own = with_exact(self.release, self.schema, paths)
        said = "its model also has exact tables, which the promise does not cover"
        return self._remodelled(own, self.schema, said)

    def estimated(
        self,
        *,
        total: float | None = None,
        inference: Literal["exact", "region", "auto"] = "auto",
        device: str | None = None,
        progress: bool = False,
    ) -> TableRelease:
        """Return the release with a model that is estimated from its noisy tables, at no cost.

        This makes a release of what a run had paid for when it was interrupted or failed (the
        attribute `unfinished` of the exception, or the file that `pgmkit synth` saved then). It
        also gives the release of a mechanism with another kind of model, such as `mixture`, a
        model whose error bars are for all questions. Columns in no noisy table are left out, with a
        warning; noisy answers to thresholds (`rap++`) are not used.

        `total`: the number of records, by default that of the present model, or the public one, or
        else as the tables imply. `inference`: "exact" for a graphical model, "region" for a region
        model, "auto" for a region model only where no junction tree fits. `device` and `progress`:
        as for `pgmkit.estimate`.

        Raises InvalidInput for a release without noisy tables, TotalUndetermined if the total is
        not known and follows from no table.
        """
        from mechanisms.release.unfinished import estimated
        from mechanisms.release.unfitted import Unfitted

        measured = {name for each in self._tables for name in each.clique}
        if not measured:
            raise InvalidInput(
                f"there are no noisy tables of the schema's columns {[*self.schema.columns]}, from "
                "which a model could be estimated"
            )
        if left_out := [name for name in self.schema.columns if name not in measured]:
            said = f"in no table, and so left out of the model: {', '.join(left_out)}"
            warnings.warn(said, UserWarning, stacklevel=3)
        schema = self.schema.restricted(measured)
        given = {} if total is None else {"total": total}
        options = {"inference": inference, "device": device, "progress": progress, **given}
        release = estimated(self.release, schema, **options)
        if not isinstance(self.model, Unfitted):
            name = f"{self.mechanism.removesuffix(', estimated')}, estimated"
            release = replace(release, mechanism=name)
        return self._remodelled(release, schema, "its model is estimated from its noisy tables")

    def _remodelled(self, release: Release, schema: Schema, said: str) -> TableRelease:
        """Return the release with another model, over `schema`; `said` is added to the reason."""
        reason = f"{self.reason}; {said}" if self.reason else said
        return replace(self, release=replace(release, reason=reason), schema=schema, _bars={})

    def save(self, path: FilePath) -> None:
        """Write the release to one file, completely or not at all."""
        replace(self.release, schema=self.schema.to_dict()).save(path)

    @classmethod
    def load(
        cls, path: FilePath, *, allow_modified: bool = False, max_bytes: int = LARGEST
    ) -> TableRelease:
        """Read a file that `save` wrote; one whose checksum shows that it was changed is read only
        with `allow_modified`. Records that the result draws are pyarrow tables;
        `sample(like="pandas")` returns frames of another library.

        Raises InvalidInput for any other file, for one that would expand to more than `max_bytes`,
        and for one without a schema, or with a schema of another domain than the model's.
        """
        release = Release.load(path, allow_modified=allow_modified, max_bytes=max_bytes)
        if release.schema is None:
            raise InvalidInput(
                f"{os.fspath(path)!r} holds a release without a schema; load it with Release.load"
            )
        with refusing(path, "a release file"):
            schema = Schema.from_dict(release.schema)
            if schema.domain != release.model.domain:
                raise InvalidInput("its schema is of another domain than its model")
        return cls(release, schema)

    def __repr__(self) -> str:
        return repr(self.release).replace("<Release", "<TableRelease")

    def _repr_html_(self) -> str:
        return overview(self.release, [["columns", ", ".join(self.schema.columns)]])


def rows_asked(source: Answering, n: int | None) -> int:
    """Return `n`, or if None the model's total, rounded but at least 1. Raises InvalidInput for
    `n` below 1.
    """
    if n is not None and n < 1:
        raise InvalidInput(f"n must be a number of records above 0, got {n}; or leave it out")
    return max(1, round(source.total)) if n is None else n
