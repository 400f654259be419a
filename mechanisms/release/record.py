"""The release of a mechanism: a model, the noisy values behind it, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import combinations
from typing import Any, Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from mechanisms.privacy.ledger import Ledger
from mechanisms.queries.predicates import MeasuredPredicate
from mechanisms.release import file
from mechanisms.release.page import overview
from pgmkit import Dataset, FactoredQuery, GraphicalModel, Measurement, RegionModel, __version__
from pgmkit.domain import Clique, Domain
from pgmkit.least_squares.goodness import Fit, contradiction, goodness_of_fit
from pgmkit.measurement import largest_entry
from pgmkit.records.fitting import LARGEST_WIDTH, fit_records
from pgmkit.runtime.arguments import Rng, check_whole, generator
from pgmkit.runtime.sizes import MULTIPLICATIONS_A_SECOND
from pgmkit.runtime.typed import typed_class
from pgmkit.runtime.untrusted import LARGEST, FilePath, refusing

MOST_LOOKUPS = 2 * MULTIPLICATIONS_A_SECOND
"""The largest product of the number of records and the square of the number of columns, since to
count the pairs of more takes minutes.
"""
Measured: TypeAlias = "Measurement | MeasuredPredicate"
"""A noisy answer; both kinds have a `clique`, `values` in counts and the noise's `stddev`."""


def count_noise(m: Measured) -> float:
    """Return the standard deviation of the noise in a measured count. If the measurement has a
    matrix, its standard deviation is divided by the largest absolute entry of the matrix; the
    result is infinite if all entries are 0.
    """
    largest = largest_entry(m) if isinstance(m, Measurement) else 1.0
    return m.stddev / largest if largest else math.inf


class Answering(Protocol):
    """The interface of a release's model, and of that model under conditions: it answers questions
    and draws records.
    """

    @property
    def domain(self) -> Domain: ...
    @property
    def total(self) -> float: ...
    def marginal(self, attrs: Iterable[str]) -> NDArray[np.float64]: ...
    def marginals(
        self, cliques: Iterable[Iterable[str]]
    ) -> Mapping[Clique, NDArray[np.float64]]: ...
    @overload
    def answer(self, query: FactoredQuery) -> NDArray[np.float64]: ...
    @overload
    def answer(self, query: Sequence[FactoredQuery]) -> list[NDArray[np.float64]]: ...
    def sample(self, n: int, *, rng: Rng = None) -> Dataset: ...


class Model(Answering, Protocol):
    """The model from which a release answers. Its counts sum to `total`, the number of records,
    unless they are separate tables (`TablesModel`) or relaxed rows (`RelaxedRowsModel`).
    """

    def given(self, evidence: Mapping[str, int | Sequence[int]]) -> Answering: ...
    def save(self, path: FilePath) -> None: ...


@typed_class
@dataclass(frozen=True, repr=False)
class Release:
    """The result of a mechanism; everything in it is safe to publish if `secure` is True.

    Attributes:
        mechanism: The mechanism's name.
        model: The model that answers and draws records.
        measurements: All noisy answers that were paid for, as they were drawn, and after them the
            exact tables (`exact`).
        ledger: The Curator's own ledger, which also shows later charges to the same data; None for
            a model of noisy tables from elsewhere, whose price is not known here.
        settings: The mechanism's settings: a dataclass, or a mapping if this mechanism is unknown
            here; None for a run that did not end and for tables from elsewhere (an empty mapping
            after the release was read from a file).
        schema: The meaning of the codes, as from `pgmkit.Schema.to_dict`; None if unknown.
        modified: Whether it was read from a file that was changed after it was written.
        exact: The number of tables at the end of `measurements` that were not paid for, since they
            were given as known exactly (`TableRelease.with_exact`).
        reason: Why this mechanism was run, and what noisy checks of the data have shown.
        made_by: The version of pgmkit that made it; empty if its file does not say.
    """

    mechanism: str
    model: Model
    measurements: tuple[Measured, ...]
    ledger: Ledger | None
    settings: object
    schema: Mapping[str, Any] | None = None
    modified: bool = field(default=False, kw_only=True)
    exact: int = field(default=0, kw_only=True)
    reason: str = field(default="", kw_only=True)
    made_by: str = field(default=__version__, kw_only=True)

    def __post_init__(self) -> None:
        check_whole(self.exact, "exact", 0, len(self.measurements), " of tables")

    @property
    def secure(self) -> bool:
        """False if a seed made the noise reproducible, which protects nobody, or if the file was
        changed after it was written, so that nothing is known of it.
        """
        return (self.ledger is None or self.ledger.secure) and not self.modified

    @property
    def caution(self) -> str:
        """The warning to be shown with anything from a release whose noise came from a seed or
        whose file was modified; empty for any other.
        """
        seeded = "INSECURE: noise came from a seeded generator; do not release"
        modified = "INSECURE: modified after it was written; rely on nothing in it"
        known = self.ledger is None or self.ledger.secure
        return "\n".join([seeded] * (not known) + [modified] * self.modified)

    @property
    def paid(self) -> tuple[Measured, ...]:
        """The noisy answers: `measurements` without the exact tables, which come last."""
        return self.measurements[: len(self.measurements) - self.exact]

    @property
    def exception(self) -> str:
        """A clause that says that the promise does not cover exact tables; empty without any."""
        tables = f"{self.exact} tables that were" if self.exact > 1 else "1 table that was"
        return f"the promise does not cover {tables} given exactly" * (self.exact > 0)

    @property
    def certificate(self) -> str:
        """A sentence on how close a graphical or region model came to the best fit; empty for other
        models.
        """
        return str(getattr(self.model, "certificate", ""))

    @property
    def fit(self) -> Fit | None:
        """The test of how well the noisy tables of a graphical or region model agree with each
        other; None for other models, and for one that was not estimated from all measurements.
        """
        fitted = self._fitted
        return None if fitted is None else goodness_of_fit(*fitted)

    @property
    def contradiction(self) -> str:
        """The warning that the noisy tables contradict each other; empty if they do not."""
        fitted = self._fitted
        return "" if fitted is None else contradiction(*fitted)

    @property
    def _fitted(self) -> tuple[GraphicalModel | RegionModel, list[Measurement]] | None:
        """The model and the tables it was estimated from; None unless it was estimated from all
        measurements.
        """
        known = [m for m in self.measurements if isinstance(m, Measurement)]
        if not isinstance(self.model, GraphicalModel | RegionModel) or not self.certificate:
            return None
        return (self.model, known) if len(known) == len(self.measurements) else None

    @property
    def certified(self) -> bool:
        """False if the search for the model ended before it reached its tolerance (`certificate`
        says how far from the best fit); True for a model that was not searched for.
        """
        return bool(getattr(self.model, "certified", True)) or not self.certificate

    def answer(self, query: FactoredQuery) -> NDArray[np.float64]:
        """Return the model's answers to a factored query, in counts, as an array of the query's
        `answer_shape`.
        """
        return self.model.answer(query)

    def sample(self, n: int | None = None, *, rng: Rng = None) -> Dataset:
        """Return `n` synthetic records; by default as many as the model's total, rounded,
        but at least one.

        Their pairs of columns are nearer to the model's than those of `model.sample`, except where
        `draw_near` leaves records as they were drawn. `rng`: a seed, a numpy Generator, or None for
        a fresh one.
        """
        return draw_near(self.model, max(1, round(self.model.total)) if n is None else n, rng)

    def save(self, path: FilePath) -> None:
        """Write the release to one file (JSON and arrays, no pickle), completely or not at all."""
        file.save({each.name: getattr(self, each.name) for each in fields(self)}, path)

    @classmethod
    def load(
        cls, path: FilePath, *, allow_modified: bool = False, max_bytes: int = LARGEST
    ) -> Release:
        """Read a file that `save` wrote; raise InvalidInput for any other file.

        A file whose checksum shows that it was changed is read only with `allow_modified`, and is
        marked `modified`. The checksum is no signature. A file that would expand to more than
        `max_bytes` is refused.
        """
        with refusing(path, "a release file"):
            return cls(**file.load(path, allow_modified=allow_modified, max_bytes=max_bytes))

    def __repr__(self) -> str:
        marks = [f"{self.exact} exact"] * (self.exact > 0)
        marks += ["INSECURE"] * (not self.secure) + ["modified"] * self.modified
        marks += [self.certificate] * (not self.certified)
        measured = f"{len(self.measurements)} measurements"
        return f"<Release of {self.mechanism}: {', '.join([measured, repr(self.ledger), *marks])}>"

    def _repr_html_(self) -> str:
        return overview(self)


def draw_near(model: Any, n: int, rng: Rng = None) -> Dataset:
    """Return `n` records of a released model, with codes replaced so that the counts of all pairs
    of columns are near the model's, scaled to `n`.

    Drawn records differ from the model's tables as any sample does; with a few thousand records, or
    with many columns, by more than the noise. Only the model is used, so this costs no budget. The
    records stay as they were drawn if there is only one column, if the columns have more than
    `LARGEST_WIDTH` codes together, if `n` times the squared number of columns is above
    `MOST_LOOKUPS`, or if combinations of three columns or more are impossible, which replacing
    single codes could not respect.

    >>> from pgmkit.domain import Domain
    >>> from pgmkit.factor import Factor
    >>> from pgmkit.model import GraphicalModel
    >>> d = Domain({"a": 2, "b": 2})
    >>> model = GraphicalModel(d, (Factor(d, np.log([[4.0, 1.0], [1.0, 4.0]])),), total=100.0)
    >>> draw_near(model, 1000, rng=0).marginal(("a", "b"))
    array([[400, 100],
           [100, 400]])
    """
    random = generator(rng)
    names = list(model.domain)
    large = sum(model.domain.shape()) > LARGEST_WIDTH or n * len(names) ** 2 > MOST_LOOKUPS
    triples = any(len(zeros.clique) > 2 for zeros in getattr(model, "structural_zeros", ()))
    if len(names) < 2 or large or triples:
        return model.sample(n, rng=random)
    records = getattr(model, "first_records", model.sample)(n, rng=random)
    tables = model.marginals(combinations(names, 2))
    goals = {pair: np.maximum(table, 0.0) for pair, table in tables.items() if table.max() > 0}
    return fit_records(records, goals, rng=random)
