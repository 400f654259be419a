"""Factor graphs: distributions proportional to a product of tables that the user gives."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import numpy as np
from numpy.typing import ArrayLike

from pgmkit.approximate.posterior import REGION_CELLS, ApproximatePosterior, approximate
from pgmkit.conditioning.evidence import Evidence, expected_log, observed_codes
from pgmkit.conditioning.graph_tables import GraphTables
from pgmkit.conditioning.posterior import Posterior
from pgmkit.conditioning.posteriors import Posteriors
from pgmkit.domain import Clique, Domain, check_domain
from pgmkit.errors import InvalidInput, ModelTooLarge
from pgmkit.factor import Factor
from pgmkit.model import GraphicalModel
from pgmkit.records.conditional_tables import checked_conditionals, checked_states
from pgmkit.records.dataset import Dataset
from pgmkit.runtime.arguments import check_unlabelled, float_array, instance, listed, one_of
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.memory import MEMORY_LIMIT, check_limit
from pgmkit.runtime.precision import TINY

if TYPE_CHECKING:
    import networkx as nx

Inference = Literal["exact", "region", "auto"]
_INFERENCES = get_args(Inference)
Table = tuple[Clique, Array]

_DEFAULTS = {"region_cells": REGION_CELLS, "tolerance": 1e-6, "max_seconds": None}
"""The default options of ``FactorGraph.posterior`` for approximate answers."""


@dataclass(frozen=True, eq=False, repr=False)
class FactorGraph:
    """The distribution p(x) proportional to the product of ``tables``, each over a few attributes
    of ``domain``.

    Tables hold non-negative numbers (no logarithms), axes in the order of their attributes; pairs
    ``(attributes, array)`` or ``Factor`` objects. ``states`` names the values of attributes, for
    evidence and for files. A Bayesian network is built by ``from_conditionals``: then ``children``
    names the variable of each table, ``log_partition`` is 0 and the probability of evidence is
    meaningful; tables that cannot change an answer are left out of its computation.

    Raises InvalidInput for tables that do not fit the domain or hold negative numbers, NaN or
    infinity, and for ``states`` with an unknown attribute or without a name of its own for each
    value of an attribute; ModelTooLarge for an attribute whose values alone exceed
    ``memory_limit``.

    >>> graph = FactorGraph(Domain({"a": 2, "b": 2}), [(("a", "b"), [[4, 1], [1, 4]])])
    >>> posterior = graph.posterior({"a": 0})
    >>> posterior.marginal(["b"]), round(posterior.log_partition, 6)
    (array([0.8, 0.2]), 1.609438)
    """

    domain: Domain
    tables: tuple[Table, ...]
    children: tuple[str, ...] | None = None
    states: Mapping[str, tuple[Hashable, ...]] = field(default_factory=dict)
    memory_limit: int = MEMORY_LIMIT
    """The most bytes that an answer may hold at once: intermediate tables, their copies and the
    result.
    """
    _shared: GraphTables = field(init=False, repr=False)

    def __init__(
        self,
        domain: Domain,
        tables: Iterable[Factor | tuple[Sequence[str], ArrayLike]],
        *,
        states: Mapping[str, Sequence[Hashable]] | None = None,
        memory_limit: int = MEMORY_LIMIT,
    ) -> None:
        check_domain(domain)
        held = tuple(
            _checked(domain, place, each)
            for place, each in enumerate(listed(tables, "tables", "factors"))
        )
        self._fill(domain, held, None, checked_states(domain, states), memory_limit)

    def _fill(
        self,
        domain: Domain,
        tables: tuple[Table, ...],
        children: tuple[str, ...] | None,
        states: Mapping[str, tuple[Hashable, ...]],
        memory_limit: int,
    ) -> None:
        check_limit(memory_limit)
        for name, size in domain.sizes.items():
            if 8 * size > memory_limit:
                raise ModelTooLarge(
                    f"attribute {name!r:.200} has more values than a table of {memory_limit:,} "
                    "bytes can hold; merge values, or raise memory_limit"
                )
        shared = GraphTables(domain, tables, children, states, memory_limit)
        vars(self).update(domain=domain, tables=tables, children=children, states=states)
        vars(self).update(memory_limit=memory_limit, _shared=shared)

    @classmethod
    def from_conditionals(
        cls,
        tables: Mapping[str, tuple[Sequence[str], ArrayLike]],
        *,
        states: Mapping[str, Sequence[Hashable]] | None = None,
        memory_limit: int = MEMORY_LIMIT,
    ) -> FactorGraph:
        """Build a Bayesian network from one pair ``((variable, *parents), table)`` for each
        variable.

        The first axis of a table is the variable; along it each distribution sums to one (within
        1e-5, for rounded files; then it is scaled). Raises InvalidInput for cycles, parents without
        tables, shapes that disagree, negative numbers, distributions that do not sum to one, and
        for wrong ``states`` as the class does.

        >>> net = FactorGraph.from_conditionals(
        ...     {"rain": (["rain"], [0.8, 0.2]), "wet": (["wet", "rain"], [[0.9, 0.2], [0.1, 0.8]])}
        ... )
        >>> net.posterior({"wet": 1}).marginal(["rain"]).round(3)
        array([0.333, 0.667])
        """
        domain, checked, named = checked_conditionals(tables, states)
        graph = cls.__new__(cls)
        graph._fill(domain, tuple(checked), tuple(tables), named, memory_limit)
        return graph

    @classmethod
    def from_model(cls, model: GraphicalModel) -> FactorGraph:
        """Return the distribution of one record of a model; the model's total is left out.

        Raises InvalidInput for a potential whose exponential float64 cannot hold, since its values
        at possible cells differ by more than about 1,400.
        """
        instance(model, GraphicalModel, "model")
        tables = [(p.domain.attributes, _exponential(p)) for p in model.potentials]
        return cls(model.domain, tables, memory_limit=model.memory_limit)

    def model(self, total: float = 1.0) -> GraphicalModel:
        """Return the same distribution as a model of ``total`` records, for factored queries and
        files.
        """
        with np.errstate(divide="ignore"):
            potentials = tuple(
                Factor(self.domain.project(clique), np.log(table)) for clique, table in self.tables
            )
        return GraphicalModel(self.domain, potentials, total, memory_limit=self.memory_limit)

    @overload
    def posterior(
        self,
        evidence: Mapping[str, Hashable] | None = None,
        likelihood: Mapping[str, ArrayLike] | None = None,
        *,
        inference: Literal["exact"] = "exact",
    ) -> Posterior: ...

    @overload
    def posterior(
        self,
        evidence: Mapping[str, Hashable] | None = None,
        likelihood: Mapping[str, ArrayLike] | None = None,
        *,
        inference: Literal["region"],
        region_cells: int = REGION_CELLS,
        tolerance: float = 1e-6,
        max_seconds: float | None = None,
    ) -> ApproximatePosterior: ...

    @overload
    def posterior(
        self,
        evidence: Mapping[str, Hashable] | None = None,
        likelihood: Mapping[str, ArrayLike] | None = None,
        *,
        inference: Inference,
        region_cells: int = REGION_CELLS,
        tolerance: float = 1e-6,
        max_seconds: float | None = None,
    ) -> Posterior | ApproximatePosterior: ...

    def posterior(
        self,
        evidence: Mapping[str, Hashable] | None = None,
        likelihood: Mapping[str, ArrayLike] | None = None,
        *,
        inference: Inference = "exact",
        region_cells: int = REGION_CELLS,
        tolerance: float = 1e-6,
        max_seconds: float | None = None,
    ) -> Posterior | ApproximatePosterior:
        """Return the distribution given what was observed. Exact answers are computed when they are
        asked for; "region" computes in this call, and so does "auto", which tries the marginals of
        all single attributes first.

        Put several questions about the same evidence to one result, since each new result computes
        its messages anew; for many records of the same observed attributes ask `posteriors`.

        Args:
            evidence: the value of each observed attribute: a state's name, or a code 0 .. size - 1
                unless the code of one state names another.
            likelihood: soft evidence: for an attribute a non-negative number for each of its
                values, the probability of the observation given the value (up to a factor).
            inference: ``"exact"`` raises ModelTooLarge, when something is asked, if no junction
                tree within ``memory_limit`` answers it. ``"region"`` answers approximately, with a
                lower and an upper bound on ``log_partition``. ``"auto"`` is ``"exact"`` if the
                marginals of all single attributes can be computed exactly within ``memory_limit``,
                and otherwise ``"region"``.
            region_cells: the most cells of a table of an approximate answer. With a larger number
                the answer takes longer and is usually better. A table of the graph that has more
                cells is used whole.
            tolerance: the largest difference, in an approximate answer, between two regions'
                marginals of shared attributes.
            max_seconds: the approximate time after which the search for an approximate answer ends,
                converged or not; None for no limit.

        Raises InvalidInput for unknown attributes, states or codes, and for options of approximate
        answers with exact inference. For evidence of probability zero, exact inference raises it
        at the first answer, or with "auto" in this call, since only a sum over the whole graph
        shows it. Approximate inference raises it in this call if its subgraphs or bounds show it;
        if they do not, the lower bound is minus infinity.
        """
        one_of(inference, _INFERENCES, "inference")
        given_options = region_cells, tolerance, max_seconds
        options: dict[str, Any] = dict(zip(_DEFAULTS, given_options, strict=True))
        changed = [
            n for n, d in _DEFAULTS.items() if (v := options[n]) is not d and (np.ndim(v) or v != d)
        ]
        if inference == "exact" and changed:
            raise InvalidInput(
                f"exact answers do not use {', '.join(changed)}; leave it out, or pass "
                'inference="region" or "auto"'
            )
        given = Evidence.of(self.domain, self.states, evidence, likelihood)
        exact = Posterior(self._shared, given)
        if inference == "exact" or (inference == "auto" and exact.fits()):
            return exact
        return approximate(self._shared, given, **options)

    def posteriors(self, evidence: Mapping[str, Sequence[Hashable]]) -> Posteriors:
        """Return the distributions given each of many records of the same observed attributes.

        Distinct records are computed side by side if there are 32 or more and the graph's tables
        are small, which costs each a fraction of its cost alone.

        Args:
            evidence: for each observed attribute a column with, for every record, a state's name or
                a code 0 .. size - 1.

        Raises InvalidInput for no attributes, for unknown attributes, states or codes and for
        columns of different lengths; and, when something is asked, if a record has probability
        zero.

        >>> graph = FactorGraph(Domain({"a": 2, "b": 2}), [(("a", "b"), [[4, 1], [1, 4]])])
        >>> graph.posteriors({"a": [0, 1, 1]}).marginal(["b"])
        array([[0.8, 0.2],
               [0.2, 0.8],
               [0.2, 0.8]])
        """
        names, codes = observed_codes(self.domain, self.states, evidence)
        return Posteriors(self._shared, names, codes)

    @property
    def log_partition(self) -> float:
        """The logarithm of the sum, over all possible records, of the product of the tables. Raises
        InvalidInput if no record is possible.
        """
        return self.posterior().log_partition

    def divergence(self, other: FactorGraph) -> float:
        """Return the Kullback-Leibler divergence KL(self || other) in nats; infinite if ``other``
        rules out a record that this graph does not. Raises InvalidInput unless both have the same
        attributes and sizes and leave a record possible.
        """
        instance(other, FactorGraph, "other")
        if dict(self.domain.sizes) != dict(other.domain.sizes):
            raise InvalidInput("the divergence needs two graphs over the same attributes and sizes")
        own = self.posterior()
        return max(0.0, -own.entropy() - other.expected_log_product(own) + other.log_partition)

    def expected_log_product(self, posterior: Posterior) -> float:
        """Return the expectation, under ``posterior``, of the logarithm of the tables' product;
        minus infinity if a record that is possible under it has the product 0.

        Raises InvalidInput if the posterior's graph lacks an attribute or has another size for one.
        """
        self._check_sizes(instance(posterior, Posterior, "posterior").graph.domain, "posterior")
        marginals = posterior.marginals([clique for clique, _ in self.tables])
        return float(sum(_expected_log(marginals[clique], table) for clique, table in self.tables))

    def expected_log_likelihood(self, data: Dataset) -> float:
        """Return the mean over the records of log p(record), in nats; minus infinity if a record is
        impossible.

        Raises InvalidInput if the data lack an attribute or have another size for one.
        """
        self._check_sizes(instance(data, Dataset, "data").domain, "data")
        found = -self.log_partition
        for clique, table in self.tables:
            counts = np.asarray(data.marginal(clique), dtype=np.float64)
            found += _expected_log(counts / len(data), table)
        return found

    def _check_sizes(self, domain: Domain, name: str) -> None:
        if (sizes := domain.project(self.domain).sizes) != self.domain.sizes:
            raise InvalidInput(
                f"{name} has the sizes {dict(sizes)!r:.200}, but must have the graph's, "
                f"{dict(self.domain.sizes)!r:.200}; use one domain for both"
            )

    def to_networkx(self) -> nx.Graph[str]:
        """Return a networkx graph, to draw or to analyse: for a Bayesian network the edges lead
        from parents to children, otherwise they join the attributes that share a table.
        """
        import networkx as nx

        graph = nx.Graph() if self.children is None else nx.DiGraph()
        graph.add_nodes_from((name, {"size": size}) for name, size in self.domain.sizes.items())
        for clique, _ in self.tables:
            if self.children is None:
                graph.add_edges_from((a, b) for i, a in enumerate(clique) for b in clique[:i])
            else:
                graph.add_edges_from((parent, clique[0]) for parent in clique[1:])
        return graph

    def __repr__(self) -> str:
        kind = "factor graph" if self.children is None else "Bayesian network"
        cells = sum(table.size for _, table in self.tables)
        return f"<{kind}: {len(self.domain)} attributes, {len(self.tables)} tables, {cells} cells>"


def _exponential(potential: Factor) -> Array:
    """Return exp(potential) divided by its maximum, or by a smaller number if its least positive
    value would be rounded to 0 otherwise. Raises InvalidInput if float64 cannot hold all values,
    whatever the divisor.
    """
    values, half = potential.numpy(), -math.log(TINY)
    peak, low = values.max(), values[values > -np.inf].min(initial=np.inf)
    shift = min(peak, low + half) if low < np.inf else 0.0
    if peak - shift > half:
        raise InvalidInput(
            f"the potential over {potential.domain.attributes!r:.200} spans {peak - low:.4g}, but "
            f"may span {2 * half:.4g} for its exponential to be a table of float64; ask the model "
            "itself, which computes with logarithms"
        )
    return np.asarray(np.exp(values - shift))


def _expected_log(weights: Array, table: Array) -> float:
    """Return the sum of weights * log(table) over the cells whose weight is not zero."""
    with np.errstate(divide="ignore"):
        return expected_log(weights, np.log(table))


def _checked(domain: Domain, place: int, given: Factor | tuple[Sequence[str], ArrayLike]) -> Table:
    name = f"tables[{place}]"
    if isinstance(given, Factor):
        given = given.domain.attributes, given.numpy()
    try:
        attrs, values = given
    except (TypeError, ValueError):
        raise InvalidInput(
            f"{name} must be a Factor or a pair (attributes, array), got {given!r:.80}"
        ) from None
    clique = domain.clique(attrs, name)
    check_unlabelled(values, name)
    table = float_array(values, name)
    if table.shape != domain.shape(clique):
        raise InvalidInput(
            f"{name} over {clique!r} must have shape {domain.shape(clique)}, got {table.shape}"
        )
    if not (np.isfinite(table).all() and table.min() >= 0):
        raise InvalidInput(
            f"{name} over {clique!r} holds a negative number, NaN or infinity; potentials "
            "here are the factors themselves, not their logarithms: write np.exp(...)"
        )
    return clique, table
