"""The fitted graphical model with its total: its marginals, answers, records and files."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import exp, inf
from typing import Any, Literal, overload

import numpy as np

from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput, NumericalFailure
from pgmkit.factor import Factor
from pgmkit.graphs.junction_tree import JunctionTree
from pgmkit.inference import potentials as checks
from pgmkit.inference.answer_checks import Check
from pgmkit.inference.model_tables import ModelTables
from pgmkit.inference.query_answers import check_held, checked_queries
from pgmkit.inference.self_check import Contradiction
from pgmkit.least_squares.goodness import Fit, goodness_of_fit
from pgmkit.measurement import Measurement
from pgmkit.queries import FactoredQuery
from pgmkit.records.dataset import Dataset
from pgmkit.records.sampling_parts import PartedSample, parted_sample
from pgmkit.runtime.arguments import Rng, generator, listed, mapped, number, shown
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.memory import MEMORY_LIMIT, check_limit
from pgmkit.runtime.precision import TINY
from pgmkit.runtime.untrusted import LARGEST, FilePath, read_container, refusing, write_container
from pgmkit.structural_zeros import Zeros

FORMAT = "pgmkit model"


@dataclass(frozen=True, eq=False, repr=False)
class GraphicalModel:
    """A distribution p(x) proportional to exp(sum of potentials), scaled to ``total`` records.

    Marginals and answers are float64 arrays in counts. Attributes that are in no potential are
    uniform and independent of the rest; without potentials the whole model is uniform.

    Attributes:
        domain: the attributes.
        potentials: factors over the measured cliques, all of one dtype and device. Minus infinity
            makes a cell impossible; answers raise NumericalFailure if no record is possible.
        total: the number of records that the marginals sum to, above 0.
        loss: the loss of the measurements at this model.
        gap: certified: no distribution of this total has a loss below ``loss - gap``.
        unit: the noise unit, the standard deviation of the loss at the truth, in which to judge the
            gap.
        certified: whether the gap is within the requested tolerance, or within the effect of
            rounding on the loss.
        iterations, stopped: the number of iterations of the search, and why it ended.
        measurements: the measurements from which the model was estimated, if the loss was the
            squared one; ``fit`` needs them. They are not saved in the model's file.
        memory_limit: the most bytes that the tables of the junction tree, or of an answer, may
            take; not saved in files.

    Raises InvalidInput for potentials that do not fit the domain, hold NaN or plus infinity, or are
    so large that others are lost to rounding, for a total that is infinite or below 2.2e-308
    (1.2e-38 for float32 potentials), and for a loss that is NaN, a negative gap or a unit of 0.

    >>> d = Domain({"a": 2, "b": 2})
    >>> model = GraphicalModel(d, (Factor(d, np.log([[4.0, 1.0], [1.0, 4.0]])),), total=100.0)
    >>> model.marginal(["b", "a"])
    array([[40., 10.],
           [10., 40.]])
    >>> model.answer(FactoredQuery({"a": [1.0, -1.0], "b": [1.0, -1.0]}))
    array([[60.]])
    """

    domain: Domain
    potentials: tuple[Factor, ...]
    total: float
    loss: float = 0.0
    gap: float = inf
    unit: float = 1.0
    certified: bool = False
    iterations: int = 0
    stopped: str = ""
    memory_limit: int = MEMORY_LIMIT
    measurements: tuple[Measurement, ...] = ()

    def __post_init__(self) -> None:
        held = checks.checked_potentials(self.domain, self.potentials)
        total = checks.checked_total(self.total, checks.least_total(held))
        check_limit(self.memory_limit)
        for name, least in {"loss": -inf, "gap": 0.0, "unit": TINY}.items():
            if not number(value := getattr(self, name)) >= least:
                raise InvalidInput(f"{name} must be at least {least:.2g}, got {shown(value)}")
        vars(self).update(potentials=held, total=total)

    def __repr__(self) -> str:
        return (
            f"GraphicalModel({len(self.domain)} attributes, {len(self.potentials)} cliques, "
            f"total={self.total:.6g}, loss={self.loss:.6g}, gap={self.gap:.3g}, "
            f"certified={self.certified}, iterations={self.iterations}, stopped={self.stopped!r})"
        )

    def _repr_html_(self) -> str:
        from pgmkit.runtime import html

        rows = [
            ["attributes", f"{len(self.domain):,}"],
            ["cliques", f"{len(self.cliques):,}"],
            ["total", f"{self.total:,.6g}"],
            *([["search", self.certificate]] if self.certificate else []),
            *([["fit", str(self.fit)]] if self.fit else []),
        ]
        shown = html.table(["", ""], rows, caption="GraphicalModel")
        drawn = len(self.domain) <= html.MOST_COLUMNS
        return shown + (html.graph(self.domain.attributes, self.cliques) if drawn else "")

    def plot(self, axes: Any = None) -> Any:
        """Draw the attributes on a circle, joined where a clique holds them together, and return
        matplotlib's axes.

        `axes`: where to draw; by default a new figure. Needs the extra `plot`; raises InvalidInput
        if it is not installed.
        """
        from pgmkit.runtime import plots

        return plots.graph(axes, self.domain.attributes, self.cliques)

    @cached_property
    def fit(self) -> Fit | None:
        """A test of how well the measurements agree with each other; None if they are not known.

        >>> from pgmkit import Measurement, estimate
        >>> y = [Measurement(("a",), [60.0, 40.0], 1.0), Measurement(("a",), [63.0, 37.0], 1.0)]
        >>> round(estimate(Domain({"a": 2}), y).fit.p_value, 3)
        0.022
        """
        return goodness_of_fit(self, self.measurements) if self.measurements else None

    @property
    def bound(self) -> float:
        """A certified lower bound: no distribution of this total has a lower loss."""
        return self.loss - self.gap

    @property
    def structural_zeros(self) -> list[Zeros]:
        """The combinations that cannot occur: those where a potential is minus infinity."""
        possible = [(f.domain.attributes, ~np.isneginf(f.numpy())) for f in self.potentials]
        return [Zeros(clique, allowed) for clique, allowed in possible if not allowed.all()]

    @property
    def certificate(self) -> str:
        """A sentence on how close the search came to the best fit, in noise units, and, if it is
        not certified, why it stopped. Empty if nothing is known: ``gap`` is infinite.

        >>> d = Domain({"a": 2})
        >>> GraphicalModel(d, (), total=1.0, gap=3.0, unit=2.0, stopped="time").certificate
        'not certified: up to 1.5 noise units from the best fit (time)'
        """
        if self.gap == inf:
            return ""
        if self.certified:
            return f"certified: within {self.gap / self.unit:.2g} noise units of the best fit"
        return (
            f"not certified: up to {self.gap / self.unit:.3g} noise units from the best fit "
            f"({self.stopped})"
        )

    @property
    def poor_fit(self) -> bool:
        """True if the model is not certified, and its gap is finite and larger than ``unit``."""
        return not self.certified and self.unit < self.gap < inf

    @cached_property
    def cliques(self) -> tuple[Clique, ...]:
        """The cliques of the potentials."""
        return tuple(factor.domain.attributes for factor in self.potentials)

    @property
    def tree(self) -> JunctionTree:
        """A junction tree of the potentials over all attributes of the domain."""
        return self._tables.tree

    @property
    def log_partition(self) -> float:
        """The logarithm of the sum, over all possible records, of exp(sum of potentials)."""
        return self._tables.log_partition

    def marginal(self, attrs: Iterable[str]) -> Array:
        """Return the expected counts over ``attrs``, measured or not; axes in the given order.

        Raises ``InvalidInput`` for unknown or duplicate attributes, ``ModelTooLarge`` if the table
        does not fit.
        """
        clique = self.domain.clique(attrs, "attrs")
        return self.marginals([clique])[clique]

    def marginals(self, cliques: Iterable[Iterable[str]]) -> dict[Clique, Array]:
        """Return a mapping from each clique to its marginal, as `marginal` returns it. The
        marginals share messages, so one call for all of them is faster than a call for each.
        """
        started = time.perf_counter()
        asked = [self.domain.clique(clique) for clique in listed(cliques, "cliques", "cliques")]
        found = self._tables.marginals(asked)
        self._check_marginals(found, started)
        return found

    def _check_marginals(self, tables: Mapping[Clique, Array], started: float) -> None:
        """Check the marginals ``tables`` by a second computation, unless similar ones were checked
        before or no time is left. They were begun at ``started``, a time of ``time.perf_counter``.
        """
        structure = len(tables), *list(tables)[:2], self._tables.calibrated
        self._check("marginals", structure, started, lambda op, s: op.tables(tables, self.total, s))

    def _check(self, kind: str, structure: Hashable, started: float, at: Check) -> None:
        """Check an answer by a second computation, unless an answer of the same kind and structure
        was checked before or no time is left (`FirstUses.check`). ``started``: the time at which
        the answer was begun.
        """
        self._tables.uses.check(kind, structure, started, partial(at, self._tables.second_opinion))

    def each_marginal(self, cliques: Iterable[Iterable[str]]) -> Iterator[tuple[Clique, Array]]:
        """Yield many marginals one after the other, in no stated order and in bounded memory.

        Use it for more marginals than fit into memory at once; each distinct clique comes once. An
        array that the caller does not keep is freed when its block (some megabytes of tables, or
        many pairs) has been yielded. Tables kept for later use take a few hundred megabytes at
        most. Raises the errors of ``marginals``.

        >>> d = Domain({"a": 2, "b": 2})
        >>> model = GraphicalModel(d, (), total=4.0)
        >>> for clique, table in model.each_marginal([("a",), ("b", "a")]):
        ...     print(clique, table.tolist())
        ('a',) [2.0, 2.0]
        ('b', 'a') [[1.0, 1.0], [1.0, 1.0]]
        """
        asked = [self.domain.clique(clique) for clique in listed(cliques, "cliques", "cliques")]
        ready = self._tables.in_turn(asked)
        while True:
            # No `oracle.session()` of `in_turn` is open while the caller works on a table.
            started = time.perf_counter()
            found = next(ready, None)
            if found is None:
                return
            self._check_marginals(found, started)
            yield from found.items()

    @overload
    def answer(self, query: FactoredQuery) -> Array: ...
    @overload
    def answer(self, query: Sequence[FactoredQuery]) -> list[Array]: ...
    def answer(self, query: FactoredQuery | Sequence[FactoredQuery]) -> Array | list[Array]:
        """Return the answers in counts, of shape (r_1, ..., r_d), without forming the joint
        distribution.

        A query over more attributes than an array may have axes (64) gets the array without its
        axes of length 1 (``FactoredQuery.answer_shape``). For a sequence of queries a list is
        returned; queries of the same structure share work. Raises ``InvalidInput`` for matrices
        that do not fit the domain, and for answers above 1.8e308.
        """
        several, started = checked_queries(query), time.perf_counter()
        found = self._tables.answers(several)
        check_held(found)
        if not several:
            return []
        one, its = several[len(several) // 2], found[len(several) // 2]
        structure = (len(several), one.attributes, one.shape)
        self._check("answer", structure, started, lambda op, s: op.answer(one, its, self.total, s))
        return found[0] if isinstance(query, FactoredQuery) else found

    def given(self, evidence: Mapping[str, int | Sequence[int]]) -> GraphicalModel:
        """Return the exact model of the records in which each attribute has the given code, or one
        of the given codes.

        Its total is the expected number of such records, so that marginals and answers remain
        counts. Raises ``InvalidInput`` for unknown attributes or codes, and if the model has no
        such records. The figures of the search and the measurements are left out.

        >>> d = Domain({"a": 2, "b": 2})
        >>> model = GraphicalModel(d, (Factor(d, np.log([[4.0, 1.0], [1.0, 4.0]])),), total=100.0)
        >>> model.given({"a": 0}).marginal(["b"])
        array([40., 10.])
        """
        started = time.perf_counter()
        allowed = {
            name: self.domain.allowed(name, codes)
            for name, codes in mapped(evidence, "evidence", "attributes to codes").items()
        }
        unknown: dict[str, Any] = {"loss": 0.0, "gap": inf, "certified": False, "measurements": ()}
        narrowed = replace(self, potentials=self._tables.narrowed(allowed), **unknown)
        try:
            share = exp(narrowed.log_partition - self.log_partition)
        except Contradiction:
            raise
        except NumericalFailure:
            share = 0.0
        structure = tuple((name, mask.sum()) for name, mask in allowed.items())
        self._check("given", structure, started, lambda op, s: op.share(allowed, share, s))
        expected = self.total * min(share, 1.0)
        if expected < checks.least_total(narrowed.potentials):
            raise InvalidInput(
                f"the model has no records with the given values of {', '.join(evidence)}"
            )
        return replace(narrowed, total=expected, stopped="conditioned")

    def map(self) -> dict[str, int]:
        """Return a most probable record; attributes that are in no potential get code 0."""
        started = time.perf_counter()
        best = self._tables.oracle.mode(self._tables.potentials)
        record = {name: best.get(name, 0) for name in self.domain}
        self._check("map", None, started, lambda op, s: op.most_probable(record, s))
        return record

    def sample(
        self, n: int, *, rng: Rng = None, method: Literal["round", "sample"] = "round"
    ) -> Dataset:
        """Draw ``n`` records, at least one, with counts that are rounded expectations ("round",
        ``pgmkit.records.sampling.sample``), or independent of each other ("sample").

        ``rng``: a seed, a numpy Generator, or None for a fresh one. A seed gives the same records
        on every device; a GPU draws many of them at once. Raises ``InvalidInput`` for fewer records
        or another method, and ``ModelTooLarge`` for more records than there is memory for.
        """
        started = time.perf_counter()
        columns = self._tables.records(n, generator(rng), method)
        structure = method, int(n).bit_length()
        self._check("sample", structure, started, lambda op, s: op.drawn(columns, n, s))
        return Dataset(self.domain, columns)

    def sample_in_parts(self, n: int, rows: int, *, rng: Rng = None) -> PartedSample:
        """Return the ``n`` records of one rounded draw in parts of ``rows`` records, each of which
        can be made separately; the last part has the remaining ones, none if ``n`` is 0. Raises
        ``InvalidInput`` for numbers that are not whole, ``n`` outside 0..999,999,999, ``rows`` < 1.

        Parts can be made in any order and on any machine; together their counts are as close to the
        model as those of ``sample(n)``.

        >>> d = Domain({"a": 2})
        >>> made = GraphicalModel(d, (), total=1.0).sample_in_parts(10, 4, rng=0)
        >>> [len(made.part(i)["a"]) for i in range(made.count)]
        [4, 4, 2]
        """
        started = time.perf_counter()
        made = parted_sample(self.tree, self._tables.belief, n, rows, generator(rng))
        structure = int(n).bit_length()
        self._check("parts", structure, started, lambda op, s: op.counted(*made.some_cell(), n, s))
        return made

    def save(self, path: FilePath) -> None:
        """Write the model to one file (numpy's zip of arrays, without pickle), completely or not at
        all.
        """
        figures = ("total", "loss", "unit", "certified", "iterations", "stopped")
        header = {name: getattr(self, name) for name in figures} | {
            "domain": list(self.domain.sizes.items()),
            "cliques": self.cliques,
            "gap": None if self.gap == inf else self.gap,
        }
        held = {f"potential{i}": f.values.numpy(force=True) for i, f in enumerate(self.potentials)}
        write_container(path, FORMAT, header, held)

    @classmethod
    def load(cls, path: FilePath, *, max_bytes: int = LARGEST) -> GraphicalModel:
        """Read a model that ``save`` wrote. Raises InvalidInput for any other file, and for one
        that would expand to more than ``max_bytes``.
        """
        with refusing(path, "a model file"):
            header, arrays = read_container(path, FORMAT, max_bytes)
            domain = Domain(dict(header["domain"]))
            pairs = [(c, arrays[f"potential{i}"]) for i, c in enumerate(header["cliques"])]
            return cls(
                domain=domain,
                potentials=tuple(
                    Factor(domain.project(c), t if t.dtype == np.float64 else torch.as_tensor(t))
                    for c, t in pairs
                ),
                total=header["total"],
                loss=header["loss"],
                gap=inf if header["gap"] is None else header["gap"],
                unit=header.get("unit", 1.0),
                certified=bool(header.get("certified", False)),
                iterations=int(header["iterations"]),
                stopped=str(header["stopped"]),
            )

    @cached_property
    def _tables(self) -> ModelTables:
        return ModelTables(self.domain, self.potentials, self.total, self.memory_limit)
