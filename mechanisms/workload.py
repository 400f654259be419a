"""Workloads: the marginals, or other queries on them, that a release should answer well."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TypeAlias

import numpy as np

from mechanisms.queries.query_sets import CODES, Asked, QuerySet, check_scale, kind_of
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput, check_known, naming
from pgmkit.runtime.arguments import float_array, generator, mapped
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.sizes import BLOCK_CELLS, FEW_CELLS
from pgmkit.runtime.typed import typed, typed_class

WorkloadLike: TypeAlias = "Workload | Iterable[Iterable[str]]"
"""A workload, or cliques, which then have equal weight."""


@typed_class
@dataclass(frozen=True)
class Workload:
    """Distinct cliques over a domain, each with a weight above 0 (1 by default).

    `sets` says what is asked of them: every cell of their marginals, or the queries that `of` and
    `asking` give. `sought`: the cliques that are not asked for themselves, but may hold attributes
    that depend on each other only together; `mixture` measures one of them, and mechanisms that
    select treat them as all others.

    Raises InvalidInput when empty, for unknown or duplicate attributes, for two cliques over the
    same attributes, for weights that are not finite numbers above 0, for sought cliques that are
    not among the cliques, and if all cliques are sought.

    >>> workload = Workload(Domain({"a": 2, "b": 3}), [("a",), ("a", "b")], weights=[1, 2])
    >>> workload.weights
    (1.0, 2.0)
    """

    domain: Domain
    cliques: tuple[Clique, ...]
    weights: tuple[float, ...]
    sets: tuple[QuerySet, ...] = field(compare=False, repr=False)
    sought: tuple[Clique, ...] = field(compare=False, repr=False)

    def __init__(
        self,
        domain: Domain,
        cliques: Iterable[Iterable[str]],
        weights: Sequence[float] | None = None,
        *,
        sought: Iterable[Iterable[str]] = (),
    ) -> None:
        checked = tuple(domain.clique(clique, "workload") for clique in cliques)
        if not checked:
            raise InvalidInput("the workload is empty; give at least one clique")
        seen: set[frozenset[str]] = set()
        for clique in checked:
            if frozenset(clique) in seen:
                raise InvalidInput(f"the workload names {clique!r} twice; name it once")
            seen.add(frozenset(clique))
        weighted = _checked_weights(weights, len(checked))
        sets = tuple(
            QuerySet(clique, (CODES,) * len(clique), weight)
            for clique, weight in zip(checked, weighted, strict=True)
        )
        known = {frozenset(domain.clique(clique, "sought")) for clique in sought}
        if not known <= seen:
            absent = [sorted(clique) for clique in known - seen]
            raise InvalidInput(f"sought names {absent}, no cliques of the workload; add them there")
        if known and known >= seen:
            raise InvalidInput("all cliques of the workload are sought; give one that is asked")
        kept = tuple(clique for clique in checked if frozenset(clique) in known)
        vars(self).update(domain=domain, cliques=checked, weights=weighted, sets=sets, sought=kept)

    @classmethod
    def of(
        cls, domain: Domain, sets: Sequence[QuerySet], *, sought: Iterable[Iterable[str]] = ()
    ) -> Workload:
        """Return the workload of these sets of queries; several may be over the same attributes.

        A clique's weight is the sum of its sets' weights. `sought`: the cliques that are not asked
        for themselves (see the class). Raises InvalidInput as the class does, for a set that does
        not ask once along each attribute, for unknown names of queries, for matrices that do not
        fit their attributes, and for weights times squared entries that float64 cannot hold.

        >>> ages = [QuerySet(("age",), ("prefix",)), QuerySet(("age",), ("identity",))]
        >>> Workload.of(Domain({"age": 9}), ages).weights
        (2.0,)
        """
        weights: dict[frozenset[str], float] = {}
        cliques: dict[frozenset[str], Clique] = {}
        for each in sets:
            if len(each.asked) != len(each.clique):
                raise InvalidInput(f"a set must ask once along each attribute, got {each!r:.100}")
            own = frozenset(each.clique)
            cliques.setdefault(own, each.clique)
            weights[own] = weights.get(own, 0.0) + each.weight
        found = cls(domain, cliques.values(), list(weights.values()), sought=sought)
        check_scale(domain, sets)
        vars(found)["sets"] = tuple(sets)
        return found

    def asking(self, queries: Mapping[str, Asked]) -> Workload:
        """Return the workload with these queries along the named attributes. A set that already
        asks for other queries than single codes along an attribute keeps them.

        Raises InvalidInput for attributes that are not in the domain, for unknown names of queries,
        and for matrices that do not fit their attributes.

        >>> ages = Workload(Domain({"age": 9, "sex": 2}), [("age",), ("sex", "age")])
        >>> [each.asked for each in ages.asking({"age": "range"}).sets]
        [('range',), ('identity', 'range')]
        """
        content = "attributes to the names of queries or matrices"
        self.domain.clique(mapped(queries, "queries", content), "queries")

        def asked(name: str, now: Asked) -> Asked:
            return queries.get(name, now) if kind_of(now) == CODES else now

        sets = [
            QuerySet(each.clique, tuple(map(asked, each.clique, each.asked)), each.weight)
            for each in self.sets
        ]
        return Workload.of(self.domain, sets, sought=self.sought)

    @property
    def asked(self) -> Workload:
        """The workload without the cliques in `sought`.

        >>> table_workload(Domain({"a": 2, "b": 3, "c": 4}), 2, "a").asked.cliques
        (('a', 'b'), ('a', 'c'), ('b', 'c'))
        """
        sought = {frozenset(clique) for clique in self.sought}
        sets = [each for each in self.sets if frozenset(each.clique) not in sought]
        return Workload.of(self.domain, sets) if sought else self

    @property
    def by_clique(self) -> dict[Clique, float]:
        """The weight of each clique."""
        return dict(zip(self.cliques, self.weights, strict=True))

    @property
    def plain(self) -> bool:
        """True if every cell of the marginals is asked, and nothing else."""
        return all(each.plain for each in self.sets)

    def __len__(self) -> int:
        return len(self.cliques)

    @classmethod
    def over(cls, domain: Domain, workload: WorkloadLike) -> Workload:
        """Return a Workload as it is; make one of equal weights from cliques.

        Raises InvalidInput for a workload over another domain, for a mapping, for no cliques, for
        unknown or duplicate attributes, and for two cliques over the same attributes.

        >>> Workload.over(Domain({"a": 2, "b": 3}), [["b"], ["a", "b"]]).cliques
        (('b',), ('a', 'b'))
        """
        if isinstance(workload, Mapping):
            raise InvalidInput(
                f"workload must be a Workload or cliques, got {type(workload).__name__}; for "
                "weights write Workload(domain, cliques, weights)"
            )
        if not isinstance(workload, Workload):
            return cls(domain, workload)
        if workload.domain != domain:
            raise InvalidInput(
                "the workload is over another domain than the data; build it over the data's"
            )
        return workload


@typed
def k_way(domain: Domain, k: int) -> Workload:
    """Return all marginals over exactly k attributes, of equal weight, in the domain's order.

    Raises InvalidInput unless 1 <= k <= number of attributes.

    >>> k_way(Domain({"a": 2, "b": 3, "c": 4}), 2).cliques
    (('a', 'b'), ('a', 'c'), ('b', 'c'))
    """
    if not 1 <= k <= len(domain):
        raise InvalidInput(f"k must be a whole number from 1 to {len(domain)}, got {k!r}")
    return Workload(domain, itertools.combinations(domain.attributes, k))


@typed
def target_biased(domain: Domain, k: int, target: str, factor: float = 4.0) -> Workload:
    """Return all marginals over exactly k attributes; those with `target` have `factor` times the
    weight.

    Raises InvalidInput for an unknown target, a factor that is not a finite number above 0, and
    unless 1 <= k <= number of attributes.

    >>> target_biased(Domain({"a": 2, "b": 3, "c": 4}), 2, "a").weights
    (4.0, 4.0, 1.0)
    """
    check_known([target], domain, "target: there is no column", "columns are")
    marginals = k_way(domain, k)
    with naming(f"factor = {factor!r}"):
        return _biased(marginals, target, factor)


def table_workload(
    domain: Domain, asked: int | WorkloadLike | None = None, target: str | None = None
) -> Workload:
    """Return the workload that `synthesize` and the command line use.

    If `asked` is a number k, it has all marginals of k columns; None means all pairs. A column of
    one value is left out of these marginals, since it is known; if fewer than k columns are left,
    the workload has the marginal of all of them. A target adds every pair of other columns together
    with the target, as cliques that are sought, and marginals that include the target weigh four
    times as much.

    Raises InvalidInput for an unknown target, a target together with a workload that asks other
    queries than cells, a number that is not from 1 to the number of columns (2 is allowed for a
    single column), and cliques as `Workload` does.

    >>> table_workload(Domain({"a": 2, "b": 3, "c": 4}), 1, "a").cliques
    (('a',), ('b',), ('c',), ('b', 'c', 'a'))
    """
    if asked is None or isinstance(asked, int | Integral):
        with naming("workload"):
            wanted = _all_of(domain, 2 if asked is None else asked)
    else:
        wanted = Workload.over(domain, asked)
    if target is None:
        return wanted
    if not wanted.plain:
        raise InvalidInput(
            "a target gives marginals more weight, but the workload asks queries; leave target out"
        )
    check_known([target], domain, "target: there is no column", "columns are")
    others = [name for name in domain if name != target]
    triples = ((*pair, target) for pair in itertools.combinations(others, 2))
    return _biased(_with_sought(wanted, triples, 1.0), target, 4.0)


def with_predictors(workload: Workload, target: str) -> Workload:
    """Return the workload with larger sets of columns that may predict the target together.

    A label can depend on four columns and on none of their pairs. Mechanisms that measure only what
    they select can find such a set among many. Sets of three other columns, of four and so on are
    added together with the target, as cliques that are sought, with the workload's largest weight.
    The sizes end where the number of all sets of two and more columns up to that size, times
    `FEW_CELLS`, would exceed `BLOCK_CELLS`. Sets whose marginal with the target has more than
    `FEW_CELLS` cells are left out.

    >>> pairs = table_workload(Domain(dict.fromkeys("abcd", 2)), 2, "d")
    >>> with_predictors(pairs, "d").cliques[-2:]
    (('b', 'c', 'd'), ('a', 'b', 'c', 'd'))
    """
    more = ((*some, target) for some in _predictors(workload.domain, target))
    return _with_sought(workload, more, max(workload.weights))


def _with_sought(workload: Workload, cliques: Iterable[Clique], weight: float) -> Workload:
    """Return the workload with these cliques added as sought ones, unless it has them already."""
    found = workload.by_clique
    held = {frozenset(clique) for clique in found}
    more = [clique for clique in cliques if frozenset(clique) not in held]
    found |= dict.fromkeys(more, weight)
    return Workload(workload.domain, found, list(found.values()), sought=[*workload.sought, *more])


def _predictors(domain: Domain, target: str) -> Iterator[Clique]:
    """Yield the sets of attributes that `with_predictors` adds, without the target."""
    others = [name for name in varied(domain) if name != target]
    total = math.comb(len(others), 2)
    for k in range(3, len(others) + 1):
        total += math.comb(len(others), k)
        if total * FEW_CELLS > BLOCK_CELLS:
            return
        for some in itertools.combinations(others, k):
            if domain.size((*some, target)) <= FEW_CELLS:
                yield some


def _all_of(domain: Domain, k: int) -> Workload:
    """Return all marginals over k of the columns that have more than one value, or the marginal of
    all of these if they are fewer.
    """
    # A table with one column has no pairs, so the column itself is used.
    wanted = k_way(domain, min(k, len(domain)) if k == 2 else k)
    names = varied(domain)
    if len(names) == len(domain):
        return wanted
    return Workload(domain, itertools.combinations(names, min(k, len(names))))


def _biased(workload: Workload, target: str, factor: float) -> Workload:
    """Return the workload with the weights of marginals that hold the target multiplied by
    `factor`.
    """
    weights = [w * (factor if target in c else 1.0) for c, w in workload.by_clique.items()]
    return Workload(workload.domain, workload.cliques, weights, sought=workload.sought)


@typed
def random_k_way(domain: Domain, k: int, count: int, seed: int | np.random.Generator) -> Workload:
    """Return `count` of the marginals over exactly k attributes, drawn without replacement.

    Raises InvalidInput for a count below 1 or above their number, and unless 1 <= k <= number of
    attributes.

    >>> len(random_k_way(Domain({"a": 2, "b": 3, "c": 4}), 2, 2, seed=0))
    2
    """
    every = k_way(domain, k).cliques
    if not 1 <= count <= len(every):
        raise InvalidInput(f"count must be a whole number from 1 to {len(every)}, got {count!r}")
    places = generator(seed, "seed").choice(len(every), size=count, replace=False)
    return Workload(domain, [every[place] for place in sorted(places.tolist())])


@typed
def downward_closure(workload: Workload) -> tuple[Clique, ...]:
    """Return every non-empty subset of a workload clique, once, in the domain's order, small ones
    first.

    >>> downward_closure(Workload(Domain({"a": 2, "b": 3, "c": 4}), [("c", "a")]))
    (('a',), ('c',), ('a', 'c'))
    """
    return tuple(subsets(workload.domain, workload.cliques)[1:])


def pairs_of(domain: Domain, cliques: Iterable[Clique]) -> list[tuple[str, str]]:
    """Return the pairs of attributes within the cliques, each once, in the domain's order; without
    attributes of a single value, which depend on nothing.
    """
    within = [[n for n in domain.ordered(c) if domain.sizes[n] > 1] for c in cliques]
    held = {pair for clique in within for pair in itertools.combinations(clique, 2)}
    return sorted(held, key=lambda pair: [domain.places[name] for name in pair])


def pair_weights(workload: Workload, pairs: Iterable[Clique]) -> Array:
    """Return for each pair, in its order, the weight of the heaviest clique of the workload that
    holds it. The caller gives only pairs that some clique holds.

    >>> trio = Workload(Domain({"a": 2, "b": 2, "c": 2}), [("a", "b", "c"), ("a", "b")], [2, 3])
    >>> pair_weights(trio, [("b", "a"), ("b", "c")])
    array([3., 2.])
    """
    found: dict[frozenset[str], float] = {}
    for clique, weight in sorted(workload.by_clique.items(), key=lambda item: item[1]):
        found |= dict.fromkeys(map(frozenset, itertools.combinations(clique, 2)), weight)
    return np.array([found[frozenset(pair)] for pair in pairs])


def subsets(domain: Domain, cliques: Iterable[Clique]) -> list[Clique]:
    """Return every subset of each of the cliques, once, in the domain's order, small ones first.
    The first is the empty set, even if there are no cliques.
    """
    found: set[Clique] = {()}
    for clique in cliques:
        ordered = domain.ordered(clique)
        for size in range(1, len(ordered) + 1):
            found.update(itertools.combinations(ordered, size))
    return sorted(found, key=lambda c: (len(c), [domain.places[a] for a in c]))


def _checked_weights(weights: Sequence[float] | None, length: int) -> tuple[float, ...]:
    found = np.ones(length) if weights is None else float_array([*weights], "weights")
    if found.shape != (length,) or not (np.isfinite(found) & (found > 0)).all():
        said = f"weights must be {length} finite numbers above 0, one a clique"
        raise InvalidInput(f"{said}; got {found.tolist()!r:.60}")
    return tuple(found.tolist())


def varied(domain: Domain) -> list[str]:
    """Return the attributes with more than one value, or all attributes if there is none. An
    attribute with one value need not be measured.

    >>> varied(Domain({"year": 1, "sex": 2}))
    ['sex']
    """
    return [name for name, size in domain.sizes.items() if size > 1] or list(domain)
