"""Counting queries on mixed records: codes that a record must have, and a linear threshold on
numeric attributes.

A numeric attribute is an ordered one whose codes stand for numbers between 0 and 1: of m codes,
code j stands for (j + 1/2) / m. A record either satisfies a predicate or not, so one record more,
or one in place of another, changes the number of records that satisfy it by at most 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from pgmkit import Dataset, InvalidInput
from pgmkit.domain import Clique, Domain
from pgmkit.records.dataset import NoRows
from pgmkit.runtime.arguments import check_whole, float_array, number
from pgmkit.runtime.precision import CLOSE
from pgmkit.runtime.typed import typed, typed_class


@typed_class
@dataclass(frozen=True)
class Predicate:
    """A condition on records. A record meets it if it has every code in `codes`, which are pairs of
    an attribute and a code, and if the sum of its numeric attributes, each scaled to
    (code + 1/2) / size and multiplied by its weight in `weights`, is at most `bound`. Without
    weights there is no threshold.

    >>> Predicate((("sex", 1),), (("age", 1.0),), 0.25)
    Predicate(codes=(('sex', 1),), weights=(('age', 1.0),), bound=0.25)
    """

    codes: tuple[tuple[str, int], ...] = ()
    weights: tuple[tuple[str, float], ...] = ()
    bound: float = 0.0

    @property
    def clique(self) -> Clique:
        """The attributes of the predicate: those of the codes, then those of the numbers."""
        return tuple(dict.fromkeys(name for name, _ in (*self.codes, *self.weights)))


@typed_class
@dataclass(frozen=True)
class MeasuredPredicate:
    """The noisy count of the records that satisfy a predicate.

    It is a measurement like `pgmkit.Measurement`, with `clique`, `values` and `stddev`. It is not a
    `Measurement` because its matrix would have a column for every cell of a marginal that may be
    too large to write out.

    Attributes:
        predicate: The predicate that was counted.
        value: The count with its noise.
        stddev: The noise's standard deviation, in counts.
    """

    predicate: Predicate
    value: float
    stddev: float

    @property
    def clique(self) -> Clique:
        """The attributes of the predicate."""
        return self.predicate.clique

    @property
    def values(self) -> NDArray[np.float64]:
        """The noisy count, as an array of one."""
        return np.array([self.value])

    def check(self, domain: Domain) -> None:
        """Raise InvalidInput for a predicate outside the domain, or a wrong value or stddev."""
        Predicates(domain, [self.predicate])
        if not (np.isfinite(self.value) and np.isfinite(self.stddev) and self.stddev > 0):
            raise InvalidInput(
                f"a measured predicate must have a finite value and a stddev above 0, got "
                f"{self.value!r} and {self.stddev!r}; if a file has them, read the original"
            )


@typed_class
class Predicates:
    """A list of predicates over a domain, checked once.

    Raises InvalidInput for an empty list, attributes that are unknown or occur twice among the
    codes or the weights of a predicate, codes that are no whole numbers within the domain, and
    weights or bounds that are no finite numbers.
    """

    def __init__(self, domain: Domain, predicates: Sequence[Predicate]) -> None:
        if not predicates:
            raise InvalidInput("predicates is empty; give at least one")
        for each in predicates:
            pairs = (*each.codes, *each.weights)
            if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
                raise InvalidInput(f"codes and weights must be pairs, as tuples, got {pairs!r:.60}")
            domain.clique([name for name, _ in each.codes], "predicate")
            domain.clique([name for name, _ in each.weights], "predicate")
            for name, code in each.codes:
                last = domain.sizes[name] - 1
                if not (0 <= number(code) <= last and isinstance(code, Integral)):
                    said = f"code {code!r} of {name!r} must be a whole number within 0..{last}"
                    raise InvalidInput(said)
            numbers = [number(each.bound), *(number(weight) for _, weight in each.weights)]
            if not np.isfinite(numbers).all():
                raise InvalidInput(f"a predicate's weights and bound must be finite; got {each!r}")
        self.domain = domain
        self.list = tuple(predicates)

    def __repr__(self) -> str:
        return f"<Predicates: {len(self)} over {len(self.domain)} attributes>"

    def __len__(self) -> int:
        return len(self.list)

    @cached_property
    def numbers(self) -> tuple[str, ...]:
        """The numeric attributes, which have a weight in some predicate, in the domain's order."""
        used = {name for each in self.list for name, _ in each.weights}
        return tuple(name for name in self.domain if name in used)

    @cached_property
    def matrix(self) -> NDArray[np.float64]:
        """The weights, with a row for each predicate and a column for each attribute of
        `numbers`.
        """
        rows = [dict(each.weights) for each in self.list]
        return np.array([[row.get(name, 0) for name in self.numbers] for row in rows], np.float64)

    @cached_property
    def bounds(self) -> NDArray[np.float64]:
        """The bounds; infinite for a predicate without a threshold."""
        return np.array([each.bound if each.weights else np.inf for each in self.list])

    def counts(self, data: Dataset) -> NDArray[np.int64]:
        """Return the number of records that satisfy each predicate; exact. Raises InvalidInput for
        records over another domain.
        """
        if data.domain != self.domain:
            raise InvalidInput(
                "the predicates are over another domain than the data; build them over that of the "
                "data"
            )
        if isinstance(data, NoRows):
            return np.zeros(len(self.list), dtype=np.int64)
        holds = {
            pair: data.columns[pair[0]] == pair[1]
            for pair in {pair for each in self.list for pair in each.codes}
        }
        values = {
            name: value_of(data.columns[name], self.domain.sizes[name]) for name in self.numbers
        }
        sums: dict[tuple[tuple[str, float], ...], NDArray[np.float64]] = {}
        found = np.empty(len(self.list), dtype=np.int64)
        for line, each in enumerate(self.list):
            mask = np.ones(len(data), dtype=bool)
            if each.weights:
                weights = tuple(each.weights)
                if weights not in sums:
                    sums[weights] = sum(w * values[n] for n, w in weights)  # type: ignore[assignment]
                mask = sums[weights] <= each.bound
            for pair in each.codes:
                mask = mask & holds[pair]
            found[line] = np.count_nonzero(mask)
        return found


def value_of(codes: NDArray[np.integer], size: int) -> NDArray[np.float64]:
    """Return the numbers in [0, 1] that codes of an ordered attribute of `size` values stand for:
    (code + 1/2) / size.

    >>> value_of(np.array([0, 1]), 2)
    array([0.25, 0.75])
    """
    return (codes.astype(np.float64) + 0.5) / size


def check_number(value: int, name: str) -> None:
    """Raise InvalidInput unless `value` is a whole number from 1 to 1,000,000; `name` is for the
    message.
    """
    check_whole(value, name, 1, 10**6)


@typed
def mixed_marginals(domain: Domain, numeric: Sequence[str], cuts: int) -> list[Predicate]:
    """Return a predicate for each code of each categorical attribute, each numeric attribute and
    each of `cuts` evenly spaced bounds between 0 and 1: the records with this code whose scaled
    value of the numeric attribute is at most the bound.

    Raises InvalidInput for `cuts` that is not from 1 to 1,000,000, and for attributes that the
    domain does not have.

    >>> len(mixed_marginals(Domain({"sex": 2, "age": 100}), ["age"], 3))
    6
    """
    check_number(cuts, "cuts")
    domain.clique(numeric, "numeric")
    bounds = np.arange(1, cuts + 1) / (cuts + 1)
    return [
        Predicate(((name, code),), ((number, 1.0),), float(bound))
        for name in domain
        if name not in numeric
        for code in range(domain.sizes[name])
        for number, bound in itertools.product(numeric, bounds)
    ]


def _spread(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard deviations of the columns, 1 for one whose numbers are equal but for
    rounding.
    """
    found = numbers.std(axis=0)
    return np.where(found > CLOSE, found, 1.0)


@typed
def linear_thresholds(
    domain: Domain,
    numeric: Sequence[str],
    label: str,
    count: int,
    rng: np.random.Generator,
    points: NDArray[np.float64] | None = None,
) -> list[Predicate]:
    """Return linear thresholds on the numeric attributes, for `count` random directions with a
    random bound each: one predicate for every direction and code of the attribute `label`.

    Without `points`, directions are Gaussian and scaled to length 1, and a bound is uniform between
    the least and the largest weighted sum of numbers from 0 to 1.

    `points`: the numeric attributes of public or noisy records (records x numeric attributes), as
    numbers from 0 to 1, where a code's middle is (code + 1/2) / size. If they are given, each
    Gaussian weight is divided by the standard deviation of its attribute, the direction is scaled
    so that the points' weighted sums have the standard deviation of a uniform number from 0 to 1,
    and each bound is the weighted sum of a random point. With uniform bounds nearly all records of
    skewed attributes would be on one side.

    Raises InvalidInput for a `count` that is not from 1 to 1,000,000, for no numeric attributes,
    for attributes that the domain does not have, and for `points` of another shape, without records
    or with numbers that are not finite.
    """
    check_number(count, "count")
    domain.clique([*numeric, label], "numeric with label")
    if not numeric:
        raise InvalidInput("numeric must name at least one attribute, got none")
    points = None if points is None else float_array(points, "points")
    if points is not None and (
        points.shape[1:] != (len(numeric),) or not len(points) or not np.isfinite(points).all()
    ):
        raise InvalidInput(
            f"points must be finite numbers, at least one record x {len(numeric)} numeric "
            f"attributes; got an array of shape {points.shape}"
        )
    found = []
    spread = 1.0 if points is None else _spread(points)
    for _ in range(count):
        direction = rng.normal(size=len(numeric)) / spread
        if points is None:
            direction /= np.linalg.norm(direction)
            low, high = direction.clip(max=0).sum(), direction.clip(min=0).sum()
            bound = rng.uniform(low, high)
        else:
            direction *= 12**-0.5 / _spread(points @ direction)
            bound = float(points[rng.integers(len(points))] @ direction)
        weights = tuple(zip(numeric, direction.tolist(), strict=True))
        found += [
            Predicate(((label, code),), weights, bound) for code in range(domain.sizes[label])
        ]
    return found
