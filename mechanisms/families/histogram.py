"""Histograms: a weight for every record of the domain, or for every distinct public record.

A query is one cell of a marginal. An update multiplies the weights of the records that satisfy a
query, in place. The sum of all weights is updated with them, so that they need not be normalised
each time.

Weights are numpy's arrays, or torch's tensors on a GPU. Both slice, multiply in place and add up
alike; the operations that differ are the functions at the end.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mechanisms.queries.cells import Cell
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput, ModelTooLarge
from pgmkit.inference.potentials import checked_total
from pgmkit.inference.query_answers import QueryAnswers, answers_of_table
from pgmkit.linear.axes import spread, sum_to
from pgmkit.queries import FactoredQuery
from pgmkit.records.counting import codes_of, sum_out
from pgmkit.records.dataset import Dataset
from pgmkit.records.sampling import check_draw
from pgmkit.runtime.arguments import Rng, generator
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import TABLE_CELLS
from pgmkit.runtime.typed import typed_class
from pgmkit.runtime.untrusted import LARGEST, FilePath, read_container, refusing, write_container

if TYPE_CHECKING:
    import torch


MOST_RECORDS = 8 * TABLE_CELLS
"""The most records of a domain whose histogram has a weight for every record: 256 MB of weights."""


class FullDomain:
    """The support of a histogram over every record of the domain. Raises ModelTooLarge, before
    anything is allocated, if the domain has more than `MOST_RECORDS` records or 64 attributes.

    >>> support = FullDomain(Domain({"a": 2, "b": 3}))
    >>> support.tables(np.ones((2, 3)), [("b", "a"), ("a",)])[("a",)]
    array([3., 3.])
    """

    def __init__(self, domain: Domain) -> None:
        if domain.size() > MOST_RECORDS:
            raise ModelTooLarge(
                f"a histogram over the domain has {domain.size():,} cells; the limit is "
                f"{MOST_RECORDS:,}. Use mst, aim, mixture or gem, which need no histogram, or "
                "fewer attributes"
            )
        if len(domain) > 64:
            raise ModelTooLarge(
                f"a histogram has an axis for each attribute, and arrays have at most 64 axes, got "
                f"{len(domain)} attributes; leave out those of a single value"
            )
        self.domain = domain
        # The array of the weights has an axis for each attribute.
        self.shape = domain.shape()

    def satisfying(self, cell: Cell) -> tuple[Any, ...]:
        """Return the index of the records that satisfy a query: for each attribute a code, or a
        slice of all codes. It gives a view of the weights, not a copy.
        """
        codes = np.unravel_index(cell.index, self.domain.shape(cell.clique))
        at = dict(zip(cell.clique, map(int, codes), strict=True))
        return tuple(at.get(name, slice(None)) for name in self.domain)

    def among(self, attribute: str, allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return a mask of the records with an allowed code of the attribute, in a shape that
        broadcasts over the weights. `allowed`: a mask of the attribute's codes.
        """
        return spread(self.domain.attributes, (attribute,), allowed)

    def tables(self, weights: Any, cliques: Iterable[Clique]) -> dict[Clique, Array]:
        """Return the marginal of the weights over each clique: for each cell the summed weight of
        the records in it. Sums over attributes that several cliques lack are computed once.
        """
        wanted = {clique: self.domain.ordered(clique) for clique in map(tuple, cliques)}
        order = tuple(sorted(self.domain, key=lambda name: -self.domain.sizes[name]))
        found: dict[Clique, Any] = {}
        sum_out(weights, self.domain.attributes, order, [*dict.fromkeys(wanted.values())], found)
        held = dict(zip(found, on_host([*found.values()]), strict=True))
        # The table over all attributes is the weights themselves, so each table is copied.
        return {clique: np.array(sum_to(held[own], own, clique)) for clique, own in wanted.items()}

    def records(self, places: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Return the codes of records, given their flat indices into the weights."""
        return dict(zip(self.domain, np.unravel_index(places, self.shape), strict=True))


class PublicSupport:
    """The support of a histogram over the distinct records of public data.

    >>> public = Dataset(Domain({"a": 2, "b": 2}), {"a": [0, 1, 1], "b": [1, 0, 0]})
    >>> support, start = PublicSupport.of(public)
    >>> start
    array([1., 2.])
    """

    def __init__(self, domain: Domain, codes: Mapping[str, NDArray[Any]]) -> None:
        self.domain = domain
        checked = Dataset(domain, codes)
        self._codes = checked.columns
        self._cells: dict[Clique, NDArray[np.int64]] = {}
        # The array of the weights has one axis, over the distinct records.
        self.shape = (len(checked),)

    @classmethod
    def of(cls, public: Dataset) -> tuple[PublicSupport, Array]:
        """Return the support, and how often each of its records occurs."""
        rows = np.stack([public.columns[name] for name in public.domain], axis=1)
        distinct, counts = np.unique(rows, axis=0, return_counts=True)
        codes = {name: distinct[:, i] for i, name in enumerate(public.domain)}
        return cls(public.domain, codes), counts.astype(np.float64)

    def satisfying(self, cell: Cell) -> NDArray[np.int64]:
        """Return the places of the records that satisfy a query."""
        return np.flatnonzero(self._places(cell.clique) == cell.index)

    def among(self, attribute: str, allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return a mask of the records with an allowed code of the attribute. `allowed`: a mask of
        the attribute's codes.
        """
        return allowed[self._codes[attribute]]

    def tables(self, weights: Any, cliques: Iterable[Clique]) -> dict[Clique, Array]:
        """Return the marginal of the weights over each clique."""
        wanted = list(dict.fromkeys(cliques))
        sums = [binned(weights, self._places(each), self.domain.size(each)) for each in wanted]
        found = zip(wanted, on_host(sums), strict=True)
        return {clique: flat.reshape(self.domain.shape(clique)) for clique, flat in found}

    def records(self, places: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return the codes of records, given their places."""
        return {name: codes[places] for name, codes in self._codes.items()}

    def _places(self, clique: Clique) -> NDArray[np.int64]:
        """Return, for each record, the cell of the clique's marginal that it falls in, as a flat
        index in C order.
        """
        if clique not in self._cells:
            cells = codes_of(self._codes, self.domain.sizes, clique, 0, *self.shape)
            self._cells[clique] = cells.astype(np.int64)
        return self._cells[clique]


Support: TypeAlias = FullDomain | PublicSupport
"""The records that have weights, with methods to find those that satisfy a query."""


class Histogram:
    """A distribution over a support; the weights are unnormalised, and `mass` is their sum.

    `device`: the device of the weights; None for the processor.

    >>> histogram = Histogram(FullDomain(Domain({"a": 2, "b": 2})), np.ones((2, 2)))
    >>> cell = Cell(("a",), 1)
    >>> histogram.scale(cell, 3.0)
    >>> histogram.answer(cell)
    0.75
    """

    def __init__(self, support: Support, weights: Any, device: torch.device | None = None) -> None:
        self.support = support
        self.weights = placed(weights, device)
        self.mass = self._largest = float(self.weights.sum())
        self._satisfying: dict[Cell, Any] = {}

    def answer(self, cell: Cell) -> float:
        """Return the fraction of the weight that is on the records that satisfy a query."""
        return self.answers([cell])[0]

    def answers(self, cells: Iterable[Cell]) -> list[float]:
        """Return the fraction of the weight that is on the records that satisfy each query."""
        sums = numbers([self.weights[self._where(cell)].sum() for cell in cells])
        return [each / self.mass for each in sums]

    def scale(self, cell: Cell, factor: float) -> None:
        """Multiply the weights of the records that satisfy a query by `factor`. All weights are
        normalised afterwards if their sum has become imprecise or very large.
        """
        where = self._where(cell)
        before = float(self.weights[where].sum())
        self.weights[where] *= factor
        self.mass += (factor - 1) * before
        self._largest = max(self._largest, self.mass)
        # The mass is a sum of differences, which keeps the rounding errors of its largest value:
        # weights are normalised when it has lost three digits of its sixteen to them, at once or in
        # many steps, and when it is very large.
        if not 1e-3 * self._largest < self.mass < 1e100:
            self.weights /= self.weights.sum()
            self.mass = self._largest = float(self.weights.sum())

    def tables(self, cliques: Iterable[Clique]) -> dict[Clique, Array]:
        """Return marginals as fractions, by clique."""
        found = self.support.tables(self.weights, cliques)
        return {clique: table / table.sum() for clique, table in found.items()}

    def copy(self) -> Histogram:
        """Return another histogram with the same weights."""
        other = copy.copy(self)
        # A tensor is cloned on its device.
        held = self.weights
        other.weights = held.copy() if isinstance(held, np.ndarray) else held.clone()
        other.mass = other._largest = float(other.weights.sum())
        return other

    def _where(self, cell: Cell) -> Any:
        if cell not in self._satisfying:
            self._satisfying[cell] = index(self.support.satisfying(cell), self.weights)
        return self._satisfying[cell]


@typed_class
class HistogramModel(QueryAnswers):
    """A released histogram, scaled to `total` counts. Raises InvalidInput for weights that are not
    finite, below 0, all 0 or of another shape than the support, and a total not above 0.

    >>> model = HistogramModel(FullDomain(Domain({"a": 2, "b": 2})), np.ones((2, 2)), total=8)
    >>> model.marginal(["b"])
    array([4., 4.])
    """

    format = "pgmkit histogram"

    def __init__(self, support: Support, weights: Array, total: float) -> None:
        self._support, self.domain = support, support.domain
        given = np.asarray(weights, dtype=np.float64)
        mass = given.sum()
        if given.shape != support.shape or not ((given >= 0).all() and 0 < mass < np.inf):
            raise InvalidInput(
                f"weights must be at least 0, of shape {support.shape} and with a finite sum above "
                f"0; got shape {given.shape} and sum {mass:g}"
            )
        self.total = checked_total(total)
        self._weights = given * (self.total / mass)

    def given(self, evidence: Mapping[str, int | Sequence[int]]) -> HistogramModel:
        """Return the exact model of the records in which each attribute has the given code, or one
        of the given codes.

        Its total is the expected number of such records. Raises InvalidInput for unknown attributes
        or codes, and if the model has no such records.

        >>> model = HistogramModel(FullDomain(Domain({"a": 2, "b": 2})), np.eye(2), total=8)
        >>> model.given({"a": 1}).marginal(["b"])
        array([0., 4.])
        """
        weights = self._weights
        for name, codes in evidence.items():
            weights = weights * self._support.among(name, self.domain.allowed(name, codes))
        total = float(weights.sum())
        if total <= 0:
            raise InvalidInput(
                f"the model has no records with the given values of {', '.join(evidence)}"
            )
        return HistogramModel(self._support, weights, total)

    def marginal(self, attrs: Iterable[str]) -> Array:
        """Return the marginal over `attrs` in counts, axes in their order."""
        checked = self.domain.clique(attrs)
        return self.marginals([checked])[checked]

    def marginals(self, cliques: Iterable[Iterable[str]]) -> dict[Clique, Array]:
        """Return marginals in counts, by clique."""
        return self._support.tables(self._weights, map(self.domain.clique, cliques))

    def _answered(self, query: FactoredQuery) -> Array:
        """Return the answer, computed from the marginal over the query's attributes."""
        query.check(self.domain)
        return answers_of_table(query, self.marginal(query.attributes))

    def sample(self, n: int, *, rng: Rng = None) -> Dataset:
        """Draw `n` independent records; `rng` is a seed, a numpy Generator, or None for a fresh
        one. Raises InvalidInput unless n is a whole number, 1 or more, and ModelTooLarge for more
        records than there is memory for.
        """
        check_draw(n, self.domain)
        reached = np.cumsum(self._weights.reshape(-1))
        drawn = generator(rng).random(n) * reached[-1]
        places = np.searchsorted(reached, drawn, side="right").clip(max=len(reached) - 1)
        return Dataset(self.domain, self._support.records(places))

    def save(self, path: FilePath) -> None:
        """Write the model to one file, completely or not at all; `load` reads it."""
        arrays: dict[str, Array | NDArray[np.int64]] = {"weights": self._weights}
        if isinstance(self._support, PublicSupport):
            places = np.arange(self._support.shape[0])
            arrays |= {f"code.{n}": c for n, c in self._support.records(places).items()}
        header = {"domain": dict(self.domain.sizes), "total": self.total}
        write_container(path, self.format, header, arrays)

    @classmethod
    def load(cls, path: FilePath, *, max_bytes: int = LARGEST) -> HistogramModel:
        """Read a model that `save` wrote. Raises InvalidInput for any other file, and for one that
        would expand to more than `max_bytes`.
        """
        with refusing(path, f"a {cls.format} file"):
            header, arrays = read_container(path, cls.format, max_bytes)
            domain = Domain(dict(header["domain"]))
            codes = {key[5:]: each for key, each in arrays.items() if key.startswith("code.")}
            support: Support = PublicSupport(domain, codes) if codes else FullDomain(domain)
            return cls(support, arrays["weights"], float(header["total"]))

    def __repr__(self) -> str:
        return f"<HistogramModel: {self._weights.size} weights, total {self.total:g}>"


def placed(values: Any, device: torch.device | None) -> Any:
    """Return a float64 copy: a numpy array if the device is None or the processor, else a tensor on
    the GPU.
    """
    whole = np.array(values, dtype=np.float64)
    if device is None or device.type == "cpu":
        return whole
    import torch

    return torch.from_numpy(whole).to(device)


def binned(weights: Any, places: NDArray[np.int64], cells: int) -> Any:
    """Return the sum of the weights in each of `cells` cells; `places` has the cell of each
    weight.
    """
    if isinstance(weights, np.ndarray):
        return np.bincount(places, weights, minlength=cells).astype(np.float64, copy=False)
    import torch

    there = torch.from_numpy(places).to(weights.device)
    return weights.new_zeros(cells).index_add_(0, there, weights)


def index(where: Any, weights: Any) -> Any:
    """Return `where`, slices or places of records, as an index for these weights: places become a
    tensor on a GPU if the weights are there.
    """
    if isinstance(where, tuple) or isinstance(weights, np.ndarray):
        return where
    import torch

    return torch.as_tensor(where, device=weights.device)


def numbers(sums: Sequence[Any]) -> list[float]:
    """Return numpy's or torch's scalars as floats; a GPU is waited for only once."""
    if not sums or isinstance(sums[0], np.generic):
        return [float(each) for each in sums]
    import torch

    found: list[float] = torch.stack(list(sums)).tolist()
    return found


def on_host(tables: Sequence[Any]) -> list[Array]:
    """Return tables as numpy's arrays, from a GPU all in one copy."""
    if not tables or isinstance(tables[0], np.ndarray | np.generic):
        return [*map(np.asarray, tables)]  # numpy's sum over all axes is a scalar
    import torch

    flat = torch.cat([table.reshape(-1) for table in tables]).cpu().numpy()
    parts = np.split(flat, np.cumsum([table.numel() for table in tables])[:-1])
    return [part.reshape(tuple(t.shape)) for part, t in zip(parts, tables, strict=True)]
