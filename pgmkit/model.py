"""The fitted graphical model with its total: its marginals, answers, records and files."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput, NumericalFailure
from pgmkit.factor import Factor
from pgmkit.graphs.clique_index import CliqueIndex
from pgmkit.graphs.junction_tree import JunctionTree, check_fits, junction_tree
from pgmkit.inference.answer_checks import FirstUses, SecondOpinion
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.inference.pair_marginals import PairMarginals
from pgmkit.inference.plain_beliefs import MOST_CELLS, PlainBeliefs
from pgmkit.inference.plain_sums import PlainSums
from pgmkit.inference.potentials import checked_potentials
from pgmkit.inference.self_check import Contradiction, checked_marginals
from pgmkit.inference.tree_marginals import each_marginal
from pgmkit.inference.tree_marginals import marginals as eliminate
from pgmkit.inference.tree_paths import tree_paths
from pgmkit.inference.variable_elimination import answers
from pgmkit.measurement import Measurement
from pgmkit.queries import FactoredQuery
from pgmkit.records.card_sampling import sample_on_card, worth_a_card
from pgmkit.records.dataset import Dataset
from pgmkit.records.sampling import sample
from pgmkit.records.sampling_parts import PartedSample, parted_sample
from pgmkit.runtime.atomic_write import atomic_writer
from pgmkit.runtime.deferred import torch
from pgmkit.runtime.memory import check_room
from pgmkit.runtime.randomness import Rng, generator
from pgmkit.runtime.sizes import BLOCK_CELLS, CACHE_CELLS, CELL_BYTES
from pgmkit.runtime.untrusted import LARGEST, plain_values, refusing, whole_file, zipped_arrays
from pgmkit.structural_zeros import Zeros

if TYPE_CHECKING:
    from pgmkit.least_squares.goodness import Fit

FORMAT = "pgmkit model"
FORMAT_VERSION = 1
MEMORY_LIMIT = 4 << 30
"""The most bytes that one table of a model's junction tree, or of an answer, may take."""
_MANY_PAIRS = 16
"""The fewest pairs for which computing all pairs at once pays."""


Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class GraphicalModel:
    """A distribution p(x) proportional to exp(sum of potentials), scaled to ``total`` records.

    Marginals and answers are float64 arrays in counts. Attributes that are in no potential are
    uniform and independent of the rest; without potentials the whole model is uniform.

    Attributes:
        domain: the attributes.
        potentials: factors over the measured cliques, all of one dtype and device. Minus infinity
            makes a cell impossible.
        total: the number of records that the marginals sum to, above 0.
        loss: the loss of the measurements at this model.
        gap: certified: no distribution of this total has a loss below ``loss - gap``.
        unit: the noise unit, the standard deviation of the loss at the truth, in which to judge the
            gap.
        certified: whether the gap is within the requested tolerance, or within the effect of
            rounding on the loss.
        iterations, stopped: how long the search took and why it ended.
        measurements: the measurements it was estimated from with the squared loss, for ``fit``;
            they are not saved in the model's file, but in that of a release.
        memory_limit: the most bytes that the tables of the junction tree, or of an answer, may
            take; not saved in files.

    Raises InvalidInput for potentials that do not fit the domain, hold NaN or plus infinity, or are
    so large that others are lost to rounding, and for a total that is not a finite number above 0.

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
        _check_domain(self.domain)
        object.__setattr__(self, "potentials", checked_potentials(self.domain, self.potentials))
        object.__setattr__(self, "total", _checked_total(self.total))

    def __repr__(self) -> str:
        return (
            f"GraphicalModel({len(self.domain)} attributes, {len(self.potentials)} cliques, "
            f"total={self.total:.6g}, loss={self.loss:.6g}, gap={self.gap:.3g}, "
            f"certified={self.certified}, "
            f"iterations={self.iterations}, stopped={self.stopped!r})"
        )

    def _repr_html_(self) -> str:
        from pgmkit.runtime import html

        return html.model(self)

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
        from pgmkit.least_squares.goodness import goodness_of_fit

        return goodness_of_fit(self, self.measurements) if self.measurements else None

    @property
    def bound(self) -> float:
        """A certified lower bound: no distribution of this total has a lower loss."""
        return self.loss - self.gap

    @property
    def structural_zeros(self) -> list[Zeros]:
        """The combinations that cannot occur: those where a potential is minus infinity."""
        found = []
        for factor in self.potentials:
            impossible = np.isneginf(factor.numpy())
            if impossible.any():
                found.append(Zeros(factor.domain.attributes, ~impossible))
        return found

    @property
    def certificate(self) -> str:
        """A sentence on how close the search came to the best fit; empty for other models.

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
        """True if the search is known to have ended more than a noise unit from the best fit."""
        return not self.certified and self.unit < self.gap < inf

    @cached_property
    def cliques(self) -> tuple[Clique, ...]:
        """The cliques of the potentials."""
        return tuple(factor.domain.attributes for factor in self.potentials)

    @cached_property
    def tree(self) -> JunctionTree:
        """A junction tree of the potentials over all attributes of the domain."""
        return junction_tree(self.domain, self.cliques)

    @property
    def log_partition(self) -> float:
        """The logarithm of the sum, over all records, of exp(sum of potentials)."""
        return self._plain.log_partition if self._plain else self._clique_marginals[1]

    def marginal(self, attrs: Iterable[str]) -> Array:
        """Return the expected counts over ``attrs``, measured or not; axes in the given order.

        Raises ``InvalidInput`` for unknown or duplicate attributes, ``ModelTooLarge`` if the table
        does not fit.
        """
        clique = self.domain.clique(attrs)
        return self.marginals([clique])[clique]

    def marginals(self, cliques: Iterable[Iterable[str]]) -> dict[Clique, Array]:
        """Return many marginals at once, by clique; they share messages, so ask for all of them in
        one call.
        """
        started = time.perf_counter()
        asked = [self.domain.clique(clique) for clique in cliques]
        found = self._plain_marginals(asked)
        if found is None:
            found = self._computed(asked)
        self._look_at(found, started)
        return found

    def _computed(self, asked: Sequence[Clique]) -> dict[Clique, Array]:
        """Return marginals by contractions, with shared messages."""
        found = self._pairs([clique for clique in asked if len(clique) == 2])
        left = [clique for clique in asked if clique not in found]
        hosts = {clique: self._host(clique) for clique in left}
        inside = {clique: place for clique, place in hosts.items() if place is not None}
        if len(inside) == len(hosts) and "_beliefs" not in self.__dict__:
            found.update((clique, self._summed(place, clique)) for clique, place in inside.items())
        else:
            # One calibration serves the marginals inside the potentials' cliques, too.
            with self._inference.session():
                tables = eliminate(self.tree, self._beliefs, left, memory_limit=self.memory_limit)
            found.update((clique, _array(table)) for clique, table in tables.items())
        return {clique: found[clique] for clique in asked}

    def _look_at(self, tables: Mapping[Clique, Array], started: float) -> None:
        """Check marginals by a second computation, unless some of the same kind were checked
        before.
        """
        structure = len(tables), *[clique for clique, _ in zip(tables, range(2), strict=False)]
        self._uses.look(
            "marginals",
            (*structure, "_beliefs" in self.__dict__),
            started,
            lambda seconds: self._opinion.tables(tables, self.total, seconds),
        )

    def each_marginal(self, cliques: Iterable[Iterable[str]]) -> Iterator[tuple[Clique, Array]]:
        """Yield many marginals one after the other, in no stated order and in bounded memory.

        Use it for more marginals than fit into memory at once; each distinct clique comes once, and
        an array that the caller does not keep is freed. Remembered tables take at most some hundred
        megabytes. Raises the errors of ``marginals``.

        >>> d = Domain({"a": 2, "b": 2})
        >>> model = GraphicalModel(d, (), total=4.0)
        >>> for clique, table in model.each_marginal([("a",), ("b", "a")]):
        ...     print(clique, table.tolist())
        ('a',) [2.0, 2.0]
        ('b', 'a') [[1.0, 1.0], [1.0, 1.0]]
        """
        asked = dict.fromkeys(self.domain.clique(clique) for clique in cliques)
        found = self._pairs([clique for clique in asked if len(clique) == 2])
        yield from found.items()
        outside = []
        for clique in asked:
            if clique in found:
                continue
            place = self._host(clique)
            if place is None:
                outside.append(clique)
            else:
                yield clique, self._summed(place, clique)
        if not outside:
            return
        tables = each_marginal(self.tree, self._beliefs, outside, memory_limit=self.memory_limit)
        while True:
            # The session ends before a table is yielded, so that the caller's work is outside it.
            started = time.perf_counter()
            with self._inference.session():
                ready = _some(tables)
            if not ready:
                return
            self._look_at(dict(ready), started)
            yield from ready

    def _pairs(self, asked: Sequence[Clique]) -> dict[Clique, Array]:
        """Return the tables of many pairs, or an empty dict if they are faster one by one."""
        if len(asked) < _MANY_PAIRS:
            return {}
        names = dict.fromkeys(name for clique in asked for name in clique)
        pairs = PairMarginals(tree_paths(self.tree), self._beliefs, names)
        if not pairs.pays(len(asked), self.memory_limit):
            return {}
        wanted = set(asked)
        found: dict[Clique, Array] = {}
        with self._inference.session():
            for pair, table in pairs.tables():
                if pair in wanted:
                    found[pair] = table.astype(np.float64)
                if pair[::-1] in wanted:
                    found[pair[::-1]] = table.T.astype(np.float64)
        return found

    @overload
    def answer(self, query: FactoredQuery) -> Array: ...
    @overload
    def answer(self, query: Sequence[FactoredQuery]) -> list[Array]: ...
    def answer(self, query: FactoredQuery | Sequence[FactoredQuery]) -> Array | list[Array]:
        """Return the answers in counts, of shape (r_1, ..., r_d), without forming the joint
        distribution.

        A query over more attributes than an array may have axes (64; 32 before numpy 2) gets the
        array without its axes of length 1 (``FactoredQuery.answer_shape``). For a sequence of
        queries a list is returned; queries of the same structure share work. Raises
        ``InvalidInput`` for matrices that do not fit the domain.
        """
        several = [query] if isinstance(query, FactoredQuery) else list(query)
        for one in several:
            if not isinstance(one, FactoredQuery):
                raise InvalidInput(f"a query must be a FactoredQuery, got {type(one).__name__}")
        started = time.perf_counter()
        known = self._plain_answers(several)
        if known is None:
            with self._inference.session():
                found = answers(self.domain, self._conditionals, several, self.memory_limit)
        else:
            found = known
        if several:
            place = len(several) // 2
            one = several[place]
            self._uses.look(
                "answer",
                (len(several), one.attributes, one.shape),
                started,
                lambda seconds: self._opinion.answer(one, found[place], self.total, seconds),
            )
        return found[0] if isinstance(query, FactoredQuery) else found

    def given(self, evidence: Mapping[str, int | Sequence[int]]) -> GraphicalModel:
        """Return the exact model of the records in which each attribute has the given code, or one
        of the given codes.

        Its total is the expected number of such records, so that marginals and answers remain
        counts. Raises ``InvalidInput`` for unknown attributes or codes, and if the model has no
        such records.

        >>> d = Domain({"a": 2, "b": 2})
        >>> model = GraphicalModel(d, (Factor(d, np.log([[4.0, 1.0], [1.0, 4.0]])),), total=100.0)
        >>> model.given({"a": 0}).marginal(["b"])
        array([40., 10.])
        """
        started = time.perf_counter()
        evidence = {
            name: codes if isinstance(codes, int | np.integer) else list(codes)
            for name, codes in evidence.items()
        }
        potentials = list(self.potentials)
        like = self._factors[0].values
        for name, codes in evidence.items():
            allowed = torch.from_numpy(self.domain.allowed(name, codes)).to(like.device)
            values = torch.zeros_like(allowed, dtype=like.dtype).masked_fill(~allowed, -inf)
            factor = Factor(self.domain.project([name]), values)
            held = [i for i, other in enumerate(potentials) if name in other.domain]
            if held:
                potentials[held[0]] = potentials[held[0]] + factor
            else:
                potentials.append(factor)
        narrowed = replace(
            self,
            potentials=tuple(potentials),
            total=1.0,
            loss=0.0,
            gap=inf,
            certified=False,
            measurements=(),
        )
        try:
            share = math.exp(narrowed.log_partition - self.log_partition)
        except Contradiction:
            raise
        except NumericalFailure:
            share = 0.0
        self._uses.look(
            "given",
            tuple((name, np.size(codes)) for name, codes in evidence.items()),
            started,
            lambda seconds: self._opinion.share(evidence, share, seconds),
        )
        expected = self.total * min(share, 1.0)
        if expected <= 0:
            raise InvalidInput(f"the model has no records with {dict(evidence)!r}")
        return replace(narrowed, total=expected, stopped="conditioned")

    def map(self) -> dict[str, int]:
        """Return a most probable record; attributes that are in no potential get code 0."""
        started = time.perf_counter()
        best = self._inference.mode(self._flat)
        record = {name: best.get(name, 0) for name in self.domain}
        self._uses.look(
            "map", None, started, lambda seconds: self._opinion.most_probable(record, seconds)
        )
        return record

    def sample(
        self, n: int, *, rng: Rng = None, method: Literal["round", "sample"] = "round"
    ) -> Dataset:
        """Draw ``n`` records; see ``pgmkit.records.sampling.sample`` for the two methods.

        ``rng``: a seed, a numpy Generator, or None for a fresh one. A seed gives the same records
        on every device; a GPU draws many of them at once.
        """
        started = time.perf_counter()
        check_fits(self.tree, self.memory_limit)
        draw = sample
        if self._plain is None:
            device = self._factors[0].values.device
            if worth_a_card(self.domain, n, device):
                draw = partial(sample_on_card, device=device)
        columns = draw(self.tree, self._belief, n, generator(rng), method)
        self._uses.look(
            "sample",
            (method, int(n).bit_length() // 4),
            started,
            lambda seconds: self._opinion.drawn(columns, n, seconds),
        )
        return Dataset(self.domain, columns)

    def sample_in_parts(self, n: int, rows: int, *, rng: Rng = None) -> PartedSample:
        """Return the ``n`` records of one rounded draw in parts of ``rows``, each of which is made
        by itself.

        Parts can be made in any order and on any machine; together their counts are as close to the
        model as those of ``sample(n)``.

        >>> d = Domain({"a": 2})
        >>> made = GraphicalModel(d, (), total=1.0).sample_in_parts(10, 4, rng=0)
        >>> [len(made.part(i)["a"]) for i in range(made.count)]
        [4, 4, 2]
        """
        check_fits(self.tree, self.memory_limit)
        return parted_sample(self.tree, self._belief, n, rows, generator(rng))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file (numpy's zip of arrays, without pickle), completely or not at
        all.
        """
        header = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "domain": list(self.domain.sizes.items()),
            "cliques": self.cliques,
            "total": self.total,
            "loss": self.loss,
            "gap": None if self.gap == inf else self.gap,
            "unit": self.unit,
            "certified": self.certified,
            "iterations": self.iterations,
            "stopped": self.stopped,
        }
        tables = {f"potential{i}": f.values.cpu().numpy() for i, f in enumerate(self.potentials)}
        with atomic_writer(path) as file:
            np.savez_compressed(file, header=np.array(json.dumps(header)), **tables)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, max_bytes: int = LARGEST) -> GraphicalModel:
        """Read a model that ``save`` wrote. Raises ``InvalidInput`` for any other file.

        A file that would expand to more than ``max_bytes`` is refused.
        """
        with refusing(path, "a model file"):
            arrays = zipped_arrays(whole_file(path, max_bytes), max_bytes)
            header = plain_values(str(arrays["header"]))
            if header.get("format") == "pgmkit region model":
                raise InvalidInput("it holds a region model; read it with RegionModel.load")
            if (header.get("format"), header.get("version")) != (FORMAT, FORMAT_VERSION):
                raise InvalidInput(
                    f"it holds {header.get('format')!r}, "
                    f"format version {header.get('version')!r}; this "
                    f"release reads {FORMAT!r}, version {FORMAT_VERSION}. Install the release that "
                    "wrote it"
                )
            tables = [arrays[f"potential{i}"] for i in range(len(header["cliques"]))]
            return cls._restore(header, tables)

    @classmethod
    def _restore(cls, header: dict[str, Any], tables: Sequence[Array]) -> GraphicalModel:
        domain = Domain({name: size for name, size in header["domain"]})
        pairs = zip(header["cliques"], tables, strict=True)
        return cls(
            domain=domain,
            potentials=tuple(
                Factor(domain.project(c), t if t.dtype == np.float64 else torch.as_tensor(t))
                for c, t in pairs
            ),
            total=float(header["total"]),
            loss=float(header["loss"]),
            gap=inf if header["gap"] is None else float(header["gap"]),
            unit=float(header.get("unit", 1.0)),
            certified=bool(header.get("certified", False)),
            iterations=int(header["iterations"]),
            stopped=str(header["stopped"]),
        )

    @cached_property
    def _factors(self) -> tuple[Factor, ...]:
        """The tables that inference runs on: the potentials, or a table of a single cell for the
        uniform model.
        """
        return self.potentials or (Factor(self.domain.project(()), np.zeros(())),)

    @cached_property
    def _inference(self) -> MarginalOracle:
        like = self._factors[0].values
        cliques = [factor.domain.attributes for factor in self._factors]
        found = MarginalOracle(self.domain, cliques, device=like.device, dtype=like.dtype)
        if found.device.type == "cpu" and found.plan.largest > CACHE_CELLS:
            check_room(found.pass_bytes, "inference over the model's cliques")
        return found

    @cached_property
    def _sums(self) -> PlainSums:
        """The tables for the second computation, which shares nothing else with inference."""
        tables = [(factor.domain.attributes, factor.numpy()) for factor in self._factors]
        return PlainSums(tables, dict(self.domain.sizes))

    @cached_property
    def _opinion(self) -> SecondOpinion:
        first = self._factors[0]
        coarse = first.array is None and first.values.dtype != torch.float64
        return SecondOpinion(self._sums, {}, coarse=coarse)

    @cached_property
    def _uses(self) -> FirstUses:
        return FirstUses()

    @cached_property
    def _flat(self) -> torch.Tensor:
        return self._inference.layout.join([factor.values for factor in self._factors])

    @cached_property
    def _clique_marginals(self) -> tuple[list[torch.Tensor], float]:
        """The counts over the potentials' cliques, and the whole domain's log partition
        function.
        """
        started = time.perf_counter()
        flat, log_partition = checked_marginals(
            self._inference, self._flat, self.total, started, self._sums
        )
        free = [name for name in self.domain if not any(name in c for c in self.cliques)]
        return self._inference.layout.split(flat), log_partition + float(
            sum(np.log(self.domain.sizes[name]) for name in free)
        )

    def _host(self, clique: Clique) -> int | None:
        """Return the place of the smallest potential whose clique contains ``clique``; None if
        there is none.
        """
        places = self._index.containing(clique)
        return min(places, key=lambda p: self.domain.size(self.cliques[p]), default=None)

    @cached_property
    def _index(self) -> CliqueIndex:
        return CliqueIndex(self.cliques)

    def _summed(self, place: int, clique: Clique) -> Array:
        table = self._clique_marginals[0][place]
        held = self.cliques[place]
        summed = [i for i, name in enumerate(held) if name not in clique]
        kept = [name for name in held if name in clique]
        smaller = table.sum(summed) if summed else table
        return _array(smaller.permute([kept.index(name) for name in clique]))

    @cached_property
    def _plain(self) -> PlainBeliefs | None:
        """The beliefs of a small model, which need no torch; None for other models."""
        tables = [(factor.domain.attributes, factor.array) for factor in self._factors]
        known = [(clique, table) for clique, table in tables if table is not None]
        if len(known) < len(tables) or sum(table.size for _, table in known) > MOST_CELLS:
            return None
        if self.tree.cells > MOST_CELLS or self.tree.bytes() > self.memory_limit:
            return None
        return PlainBeliefs.of(self.tree, known)

    def _plain_marginals(self, asked: Sequence[Clique]) -> dict[Clique, Array] | None:
        """Return the counts over cliques and pairs of a small model, or None."""
        if self._plain is None:
            return None
        found = {clique: self._plain.marginal(clique) for clique in asked}
        apart = [clique for clique, table in found.items() if table is None]
        if any(len(clique) != 2 for clique in apart):
            return None
        pairs = self._plain.pairs(apart)
        if pairs is None:
            return None
        shares = {c: pairs[c] if t is None else t for c, t in found.items()}
        return {c: np.multiply(self.total, t, out=np.empty_like(t)) for c, t in shares.items()}

    def _plain_answers(self, queries: Sequence[FactoredQuery]) -> list[Array] | None:
        """Return the counts of queries within cliques of the tree of a small model, or None."""
        if self._plain is None:
            return None
        known = list[Array]()
        for query in queries:
            found = self._plain.answer(query, min(MOST_CELLS, self.memory_limit / CELL_BYTES))
            if found is None:
                return None
            known.append(np.multiply(self.total, found, out=found))
        return known

    def _belief(self, place: int) -> Array:
        """Return the counts over a clique of the tree."""
        if self._plain is not None:
            return self.total * self._plain.tables[place]
        return _array(self._beliefs[place])

    @cached_property
    def _beliefs(self) -> list[torch.Tensor]:
        """The marginals of the junction tree's cliques, in counts."""
        check_fits(self.tree, self.memory_limit)
        started = time.perf_counter()
        like = self._factors[0].values
        inference = MarginalOracle(
            self.domain, self.tree.cliques, device=like.device, dtype=like.dtype
        )
        flat = torch.zeros(inference.layout.cells, dtype=like.dtype, device=like.device)
        tables = inference.layout.split(flat)
        for factor in self.potentials:
            place = self.tree.holds(factor.domain.attributes)
            assert place is not None
            tables[place].add_(factor.expand(self.domain.project(self.tree.cliques[place])).values)
        found, _ = checked_marginals(inference, flat, self.total, started, self._sums)
        return inference.layout.split(found)

    @cached_property
    def _conditionals(self) -> list[tuple[Clique, torch.Tensor]]:
        """The root marginals and the conditional tables given separators; the sum of their product
        is the total.
        """
        factors = []
        for clique, separator, belief in zip(
            self.tree.cliques, self.tree.separators, self._beliefs, strict=True
        ):
            summed = [i for i, name in enumerate(clique) if name not in separator]
            above = belief.sum(summed, keepdim=True) if separator else belief.new_tensor(self.total)
            factors.append(
                (clique, torch.where(above > 0, belief / above, torch.zeros_like(belief)))
            )
        clique, table = factors[0]
        factors[0] = (clique, table * self.total)
        return factors


def _array(table: torch.Tensor) -> Array:
    return table.cpu().numpy().astype(np.float64)


def _some(tables: Iterator[tuple[Clique, torch.Tensor]]) -> list[tuple[Clique, Array]]:
    """Return the next tables, of some megabytes together."""
    ready: list[tuple[Clique, Array]] = []
    cells = 0
    for clique, table in tables:
        ready.append((clique, _array(table)))
        cells += table.numel()
        if cells >= BLOCK_CELLS:
            break
    return ready


def _check_domain(domain: object) -> None:
    if not isinstance(domain, Domain):
        raise InvalidInput(
            f"domain must be a pgmkit Domain, got {type(domain).__name__}; build one with "
            'Domain({"age": 10, "sex": 2})'
        )


def _checked_total(total: float) -> float:
    if isinstance(total, bool) or not isinstance(total, Real) or not 0 < float(total) < inf:
        raise InvalidInput(
            f"total must be a finite number above 0, got {total!r}; give the number of records"
        )
    return float(total)
