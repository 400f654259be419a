"""Released tables as a model that answers only marginals inside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

import numpy as np
from numpy.typing import ArrayLike

import pgmkit
from mechanisms.families.graphical import estimator, megabytes
from mechanisms.release.record import Model
from mechanisms.settings import Settings, at_least, one_of, setting, torch_device
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.graphs.junction_tree import junction_tree
from pgmkit.inference.potentials import checked_total
from pgmkit.inference.query_answers import QueryAnswers, answers_of_table
from pgmkit.least_squares.mostly_zero import nonnegative_bytes, nonnegative_tables
from pgmkit.linear.axes import sum_to
from pgmkit.linear.kronecker import Kronecker, factors_of
from pgmkit.linear.matrix import as_dense
from pgmkit.measurement import Measurement
from pgmkit.queries import FactoredQuery
from pgmkit.runtime.arguments import Rng
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.memory import MEMORY_LIMIT, check_room
from pgmkit.runtime.typed import typed_class
from pgmkit.runtime.untrusted import LARGEST, FilePath, read_container, refusing, write_container
from pgmkit.structural_zeros import Zeros
from pgmkit.total import estimate_total


@typed_class
class TablesModel(QueryAnswers):
    """Tables in counts by clique; a marginal is answered from the smallest table that holds its
    attributes.

    `tables` have one axis for each attribute of their clique. They are what a mechanism released,
    and need not agree with each other nor be nonnegative. `total` is the number of records, and the
    answer for no attributes. A query whose attributes are in no single table is refused.

    Raises InvalidInput for no tables, tables of wrong shape or not finite, or a total not above 0.

    >>> model = TablesModel(Domain({"a": 2, "b": 2, "c": 2}), {("a", "b"): [[4, 1], [2, 3]]}, 10)
    >>> model.marginal(["b"])
    array([6., 4.])
    >>> from pgmkit.queries import prefix
    >>> model.answer(FactoredQuery({"b": prefix(2)}))
    array([ 6., 10.])
    """

    format = "pgmkit tables"

    def __init__(self, domain: Domain, tables: Mapping[Clique, ArrayLike], total: float) -> None:
        if not tables:
            raise InvalidInput("tables is empty; give at least one table by its clique")
        self.domain = domain
        self.total = checked_total(total)
        self.tables = {
            clique: self._checked(domain.clique(clique, "table"), table)
            for clique, table in sorted(tables.items(), key=lambda item: np.size(item[1]))
        }

    def marginal(self, attrs: Iterable[str]) -> Array:
        """Return the marginal over `attrs` in counts, axes in their order; for no attributes, the
        total.

        Raises InvalidInput for unknown or duplicate attributes, and if no table holds all `attrs`.
        """
        clique = self.domain.clique(attrs)
        if not clique:
            return np.array(self.total)
        tables = list(self.tables)
        place = self.domain.smallest_holding(tables, clique)
        if place is None:
            raise InvalidInput(
                f"no released table holds {clique!r}: this release has the marginals inside "
                f"{', '.join(map(repr, tables[:3]))} and {len(tables)} tables in "
                "all; ask within one of them, put the marginal into the workload, or use a "
                "mechanism that fits a model of all attributes, such as aim"
            )
        held = tables[place]
        return np.array(sum_to(self.tables[held], held, clique))

    def marginals(self, cliques: Iterable[Iterable[str]]) -> dict[Clique, Array]:
        """Return marginals in counts, by clique."""
        return {clique: self.marginal(clique) for clique in map(self.domain.clique, cliques)}

    def _answered(self, query: FactoredQuery) -> Array:
        query.check(self.domain)
        return answers_of_table(query, self.marginal(query.attributes))

    def sample(self, n: int, *, rng: Rng = None) -> NoReturn:
        """Raise InvalidInput: separate tables are not a distribution over whole records."""
        raise InvalidInput(
            "records cannot be drawn from separate tables, nor conditions put to them: they are no "
            "distribution over all attributes; fit a model to the noisy tables, at no cost to the "
            "budget (`pgmkit estimate` of a saved release, or pgmkit.estimate with total= and "
            'inference="auto")'
        )

    def given(self, evidence: Mapping[str, int | Sequence[int]]) -> NoReturn:
        """Raise InvalidInput, as `sample` does."""
        self.sample(1)

    def save(self, path: FilePath) -> None:
        """Write the tables to one file, completely or not at all; `load` reads it."""
        arrays = {f"table{i}": table for i, table in enumerate(self.tables.values())}
        header = {"domain": dict(self.domain.sizes), "total": self.total}
        write_container(path, self.format, header | {"cliques": list(self.tables)}, arrays)

    @classmethod
    def load(cls, path: FilePath, *, max_bytes: int = LARGEST) -> TablesModel:
        """Read tables that `save` wrote. Raises InvalidInput for any other file, and for one that
        would expand to more than `max_bytes`.
        """
        with refusing(path, f"a {cls.format} file"):
            header, arrays = read_container(path, cls.format, max_bytes)
            tables = {tuple(c): arrays[f"table{i}"] for i, c in enumerate(header["cliques"])}
            return cls(Domain(dict(header["domain"])), tables, float(header["total"]))

    def __repr__(self) -> str:
        return f"<TablesModel: {len(self.tables)} tables, total {self.total:g}>"

    def _checked(self, clique: Clique, table: ArrayLike) -> Array:
        array = np.array(table, dtype=np.float64)
        if array.shape != self.domain.shape(clique):
            raise InvalidInput(
                f"the table of {clique!r} has shape {array.shape}; the marginal's is "
                f"{self.domain.shape(clique)}"
            )
        if not np.isfinite(array).all():
            raise InvalidInput(f"the table of {clique!r} has values that are not finite")
        array.flags.writeable = False
        return array


@dataclass(frozen=True)
class Projecting(Settings):
    """The settings of mechanisms whose model is `projected`.

    Attributes:
        model_mb: The largest junction tree of the measured cliques, in MB (2^20 bytes) of float64
            cells, for which the result is a graphical model, 0 or above. For a larger one the
            result is locally consistent nonnegative tables, which draw no records, unless
            `inference` makes it a region model.
        inference: When the result is a region model (`pgmkit.RegionModel`), whose tables agree
            locally too, and which draws records: with "region" always, with "auto" if the junction
            tree is larger than `model_mb`, with "exact" if it is and there are structural zeros.
        device: Where models are estimated: "cpu", a CUDA GPU such as "cuda", or "auto": a GPU if
            there is one and the model is large enough to gain (`pgmkit.runtime.devices`).
    """

    model_mb: float = setting(80.0, at_least(0))
    inference: Literal["exact", "auto", "region"] = setting(
        "exact", one_of("exact", "auto", "region")
    )
    device: str = setting("cpu", torch_device())


def projected(
    domain: Domain,
    measurements: Sequence[Measurement],
    noisy: Sequence[Measurement],
    known_total: int | None,
    settings: Projecting,
    zeros: Sequence[Zeros] = (),
) -> Model:
    """Return the model nearest to measurements: a graphical model, or locally consistent tables.

    The result is a GraphicalModel if the junction tree of the measured cliques takes at most
    `settings.model_mb` (MB of float64 cells). Otherwise it is a TablesModel, which draws no
    records: one nonnegative table for each of the `noisy` marginals, which hold the same
    information as the measurements; each agrees with the others on shared attributes (least
    squares, weights 1/variance).

    A RegionModel, which draws records, takes the place of the TablesModel if `settings.inference`
    is "auto" or there are `zeros` (combinations of probability zero, which a TablesModel cannot
    keep to), and the place of both if it is "region". Measurements of the total alone give a
    uniform GraphicalModel in every case. If `known_total` is None, the total is estimated, and is
    at least 1. `settings.device`: the device of a graphical model.

    >>> from mechanisms.baselines import Projection
    >>> domain = Domain({"a": 2, "b": 2})
    >>> noisy = [Measurement(("a",), [7.0, -1.0], 1.0), Measurement(("b",), [3.0, 3.0], 1.0)]
    >>> projected(domain, noisy, noisy, 6, Projection(model_mb=0)).marginal(["a"]).round(2)
    array([6., 0.])
    """
    if _has_tree(domain, [m.clique for m in measurements], settings):
        fit = estimator(domain, known_total, device=settings.device, zeros=zeros)
        return fit(None, measurements)
    total = known_total or max(1.0, estimate_total(measurements, domain).value)
    tables = [m for m in noisy if m.clique]
    if settings.inference != "exact" or zeros:
        return pgmkit.estimate(domain, tables, total=total, zeros=zeros, inference="region")
    consistent = nonnegative_tables(domain, tables, total)
    for table in consistent.values():
        table *= total / table.sum()
    return TablesModel(domain, consistent, total)


def check_projection(
    domain: Domain,
    measured: Iterable[Clique],
    tables: Iterable[Clique],
    settings: Projecting,
    zeros: Sequence[Zeros] = (),
) -> None:
    """Raise ModelTooLarge if `projected`, where its result is locally consistent tables, would need
    more memory for making them agree than is left to this process; to be called before anything is
    measured.

    `measured` and `tables`: the cliques of `projected`'s measurements and of its noisy marginals.

    >>> from mechanisms.baselines import Projection
    >>> pair = ("a", "b")
    >>> check_projection(Domain({"a": 2, "b": 2}), [pair], [pair], Projection(model_mb=0))
    """
    if settings.inference == "exact" and not (zeros or _has_tree(domain, measured, settings)):
        cliques = list(dict.fromkeys(clique for clique in tables if clique))
        check_room(
            nonnegative_bytes(domain, cliques),
            f"making {len(cliques)} tables agree",
            remedy='set inference="region", ask for fewer or smaller marginals',
        )


def _has_tree(domain: Domain, cliques: Iterable[Clique], settings: Projecting) -> bool:
    """Return True if the junction tree of the cliques is wanted and fits into `model_mb` and the
    memory limit, or if only the total was measured, for which a uniform graphical model suffices.
    """
    held = [clique for clique in cliques if clique]
    if not held:
        return True
    if settings.inference == "region":
        return False
    tree = junction_tree(domain, held)
    return megabytes(tree.cells) <= min(settings.model_mb, MEMORY_LIMIT / 2**20)


def least_squares_table(measurement: Measurement) -> Measurement:
    """Return the marginal that a measurement through a matrix of full column rank implies; a
    measurement without a matrix is returned as it is.

    The noise of its cells is correlated; `stddev` is the square root of their mean variance.

    >>> from pgmkit.queries import prefix
    >>> m = least_squares_table(Measurement(("a",), [3.0, 5.0], 1.0, prefix(2)))
    >>> m.values.round(6), round(m.stddev, 3)
    (array([3., 2.]), 1.225)
    """
    if measurement.matrix is None:
        return measurement
    inverses = [np.linalg.pinv(as_dense(each)) for each in factors_of(measurement.matrix)]
    values = Kronecker(inverses).matvec(measurement.values)
    variance = np.prod([float((part**2).sum()) / len(part) for part in inverses])
    return Measurement(measurement.clique, values, measurement.stddev * float(np.sqrt(variance)))
