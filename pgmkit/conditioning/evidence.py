"""Evidence: observed values of attributes, and likelihoods of the values of others."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pgmkit.conditioning.message_passing import LEAST_ENTRY, Underflow
from pgmkit.domain import Clique, Domain
from pgmkit.errors import InvalidInput
from pgmkit.inference import plain_sums
from pgmkit.runtime.arguments import check_unlabelled, float_array, in_order, mapped
from pgmkit.runtime.arrays import Array


@dataclass(frozen=True)
class Evidence:
    """The codes of observed attributes, and for each attribute with uncertain (soft) evidence its
    likelihood: one weight for every value.
    """

    codes: Mapping[str, int]
    likelihood: Mapping[str, Array]

    @classmethod
    def of(
        cls,
        domain: Domain,
        states: Mapping[str, tuple[Hashable, ...]],
        evidence: Mapping[str, Hashable] | None,
        likelihood: Mapping[str, ArrayLike] | None,
    ) -> Evidence:
        """Check evidence as a user gives it (None if there is none), and return it with codes in
        place of states.

        ``states`` has the named states of some attributes, in the order of their codes; a user may
        give either a state or a code. A number that names a state is that state and no code; where
        a code of one state names another, as with the states 1, 2, 3, codes are refused.

        Raises InvalidInput for what is no mapping, an unknown attribute or state, a code out of
        range, or a likelihood that is not one non-negative number for each value.
        """
        seen = {} if evidence is None else mapped(evidence, "evidence", "names to values")
        soft = {} if likelihood is None else mapped(likelihood, "likelihood", "names to weights")
        codes = {name: _code(domain, states, name, value) for name, value in seen.items()}
        return cls(codes, {name: _weights(domain, name, value) for name, value in soft.items()})

    def scaled(self) -> tuple[Evidence, float]:
        """Return this evidence with each likelihood divided by its maximum, and the logarithm of
        the product of these divisors. The likelihood of an attribute whose code is known is left
        out, and its weight at the code counts as a divisor.

        Raises Underflow if a divisor is zero, or if weights are so small that products without
        logarithms may underflow.
        """
        weights, log_scale = {}, 0.0
        for name, values in self.likelihood.items():
            peak = float(values[self.codes[name]] if name in self.codes else values.max())
            if not peak:
                raise Underflow
            log_scale += math.log(peak)
            if name not in self.codes:
                weights[name] = values / peak
                if (weights[name][values > 0] < LEAST_ENTRY).any():
                    raise Underflow
        return Evidence(self.codes, weights), log_scale

    def words(self, states: Mapping[str, tuple[Hashable, ...]]) -> list[str]:
        """Return each piece of evidence in words, with the names of states in place of codes where
        an attribute has named states.
        """
        parts = [f"{name} = {state(states, name, code)}" for name, code in self.codes.items()]
        return parts + [f"likelihood of {n} {w.tolist()}" for n, w in self.likelihood.items()]

    def impossible(self, states: Mapping[str, tuple[Hashable, ...]]) -> str:
        """Return the error message for evidence of probability zero or, without any evidence, for a
        graph whose tables leave no record possible. ``states`` has the names of states by
        attribute.
        """
        if not self.codes and not self.likelihood:
            return "the tables of the graph leave no record possible: their product is 0 everywhere"
        return f"the evidence has probability zero: {', '.join(self.words(states)):.500}"


def state(states: Mapping[str, tuple[Hashable, ...]], name: str, code: int) -> Hashable:
    """Return the name of a state by its code; the code for an attribute without named states."""
    return states[name][code] if name in states else code


def sliced(
    domain: Domain, tables: Iterable[tuple[Clique, Array]], evidence: Evidence
) -> Iterator[tuple[Clique, Array]]:
    """Yield a pair (unobserved attributes, logarithms) for each table and then for each likelihood:
    the logarithms at the codes of its observed attributes, with an axis for each unobserved one.

    A table of which all attributes are observed becomes a number, with the attributes (). An
    attribute in no table gets a table of ones, so every unobserved attribute is yielded.
    """
    given = [*tables, *(((name,), weights) for name, weights in evidence.likelihood.items())]
    held = {name for clique, _ in given for name in clique}
    given += [((name,), np.ones(domain.sizes[name])) for name in domain if name not in held]
    for table in given:
        left, kept = plain_sums.sliced(table, evidence.codes)
        with np.errstate(divide="ignore"):
            logarithms = np.log(kept)
        yield left, logarithms


def expected_log(weights: Array, logarithms: Array) -> float:
    """Return the sum of weights * logarithms, in which a weight of zero contributes 0 even if its
    logarithm is infinite.
    """
    present = weights > 0
    return float(weights[present] @ logarithms[present])


def observed_codes(
    domain: Domain,
    states: Mapping[str, tuple[Hashable, ...]],
    evidence: Mapping[str, Sequence[Hashable]],
) -> tuple[Clique, NDArray[np.int64]]:
    """Return the observed attributes and their codes, an array with a row for each record and a
    column for each of these attributes. ``evidence`` has a column of states or codes for each.

    Raises InvalidInput for what is no mapping, an unknown attribute or state, and a code out of
    range; if there is no column; and for columns that are empty or differ in length.
    """
    content = 'observed attributes to columns, as {"a": [0, 1]} or dict(frame)'
    if not mapped(evidence, "evidence", content):
        raise InvalidInput("evidence must have a column for at least one attribute, got none")
    columns = {name: _column(name, values) for name, values in evidence.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1 or not min(lengths.values()):
        raise InvalidInput(
            f"evidence has columns of {lengths!r:.200} records; give one value for each of the "
            "same records, at least one"
        )
    codes = []
    for name, values in columns.items():
        known = {value: _code(domain, states, name, value) for value in dict.fromkeys(values)}
        codes.append([known[value] for value in values])
    return domain.clique(columns), np.array(codes, dtype=np.int64).T


def _column(name: str, values: Sequence[Hashable]) -> list[Hashable]:
    content = "values, one for each record"
    given = values.tolist() if isinstance(values, np.ndarray) else values
    column = in_order(given, f"evidence {name!r}", content)
    if wrong := [each for each in column if not isinstance(each, Hashable)]:
        raise InvalidInput(
            f"evidence {name!r} must be a sequence of {content}, got {wrong[0]!r:.80}"
        )
    return column


def _code(
    domain: Domain, states: Mapping[str, tuple[Hashable, ...]], name: str, value: Hashable
) -> int:
    size = domain.sizes.get(name) or domain.shape(domain.clique([name], "evidence"))[0]
    named, codes, allowed = states.get(name), size, [f"an integer code 0..{size - 1}"]
    if named is not None:
        with contextlib.suppress(ValueError, TypeError):  # comparing arrays raises: no state
            return named.index(value)
        known = set(named)
        clear = all(named[code] == code for code in range(size) if code in known)
        codes = size if clear else 0
        allowed = [f"one of {list(named)!r:.200}", *(allowed if clear else [])]
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 <= value < codes:
        return int(value)
    raise InvalidInput(f"evidence {name!r} must be {' or '.join(allowed)}, got {value!r:.80}")


def _weights(domain: Domain, name: str, value: ArrayLike) -> Array:
    size = domain.shape(domain.clique([name], "likelihood"))[0]
    check_unlabelled(value, f"the likelihood of {name!r}")
    weights = float_array(value, f"the likelihood of {name!r}")
    if weights.shape != (size,) or not (np.isfinite(weights).all() and weights.min() >= 0):
        raise InvalidInput(
            f"the likelihood of {name!r} must be {size} non-negative numbers, got {value!r:.80}"
        )
    return weights
