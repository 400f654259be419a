"""A second opinion on what models and factor graphs answer, by sums that share nothing with it.

Each look at an answer takes one or a few of its numbers and computes them again from the tables
(``plain_sums``). Where even one of them would take longer than the look may, cheaper things are
looked at: that tables sum to the total and agree on the attributes that they share, and that no
change of one attribute makes a most probable record more probable.

An answer is looked at when its structure is asked for the first time: ``FirstUses`` remembers which
were, and holds the looks to a share of the time of the answers.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from math import exp, inf, prod, sqrt
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Clique
from pgmkit.inference.plain_sums import CELL_SECONDS, PlainSums, Table, TooLong
from pgmkit.inference.self_check import CLOSE, DEFECT, LEAST, MOST, ROUNDINGS, SHARE, Contradiction

if TYPE_CHECKING:
    from pgmkit.queries import FactoredQuery

__all__ = ["FirstUses", "SecondOpinion"]

Array = NDArray[np.float64]

_CLOSE, _COARSE = 1e-7, 1e-3
"""Shares of the total that rounding and underflow may explain, in double and in single precision;
the latter may lose records of 2e-6 of the total (``marginal_oracle``). Defects are off by more.
"""
_RARE = 40.0
"""A count of draws strays further than the bound with a probability of at most 2 exp(-40) = 1e-17
(Bernstein); the cell that is counted is one of thousands.
"""
_UNLIKELY = 1e-6
_WHOLE_CELLS = 1 << 10
"""Cells of a marginal that is compared as a whole: what it adds to the tables of one sum is less
than the second sum that the norm of a single cell needs.
"""
_FIRST_SECONDS = 1e-3
"""Looks at one kind of answer begin until they took this long together, or their share of the time:
four of them on a network of forty tables.
"""
_MOST_KEPT = 1 << 12
"""Structures that are remembered as looked at."""


class FirstUses:
    """A record of the structures of one model or graph that were checked, and of the time spent.

    The looks at one kind of answer take at most a tenth of the time of the answers looked at, or
    five milliseconds where that is more, and none begins after a millisecond or that tenth. A
    structure whose turn falls beyond that is looked at when it is asked again and there is time.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[str, Hashable]] = set()
        self._answering: dict[str, float] = defaultdict(float)
        self._looking: dict[str, float] = defaultdict(float)

    def look(
        self, kind: str, structure: Hashable, started: float, at: Callable[[float], None]
    ) -> None:
        """Call ``at`` with the seconds it may take, where this is the structure's first use.

        ``started`` is the ``time.perf_counter()`` at which the answer was begun.
        """
        if (kind, structure) in self._seen:
            return
        begun = time.perf_counter()
        self._answering[kind] += begun - started
        share = min(MOST, SHARE * self._answering[kind])
        if self._looking[kind] >= max(_FIRST_SECONDS, share):
            return
        with suppress(TooLong):
            at(max(LEAST, share) - self._looking[kind])
        self._looking[kind] += time.perf_counter() - begun
        if len(self._seen) < _MOST_KEPT:
            self._seen.add((kind, structure))


@dataclass(frozen=True, eq=False)
class SecondOpinion:
    """An independent opinion, by plain sums, on answers about the records with some evidence.

    Every method raises Contradiction where it finds another number, within what rounding may
    explain, and takes about the ``seconds`` it is given.

    Args:
        sums: over the tables that were asked.
        evidence: codes of observed attributes.
        weights: logarithms of likelihoods.
        coarse: whether the answers were computed in single precision.
    """

    sums: PlainSums
    evidence: Mapping[str, int]
    weights: Sequence[Table] = ()
    coarse: bool = False
    _remembered: list[float] = field(default_factory=list)

    def tables(self, found: Mapping[Clique, Array], total: float, seconds: float) -> None:
        """Marginals in units of ``total``: their sums, and one or two of them.

        The largest leads furthest. Another, drawn by chance, is compared where a tenth of the time
        of the answer allows both.
        """
        self._consistent(found, total, seconds / 4)
        begun = time.perf_counter()
        cliques = [clique for clique in found if clique]
        if not cliques:
            return
        chance = Random(len(found))  # which tables are compared decides nothing else
        chosen = [max(cliques, key=lambda clique: found[clique].size)]
        if seconds > LEAST:
            chosen.append(chance.choice(cliques))
        for clique in chosen:
            left = seconds / 2 - (time.perf_counter() - begun)
            self._table(clique, found[clique] / total, left, chance)

    def _table(self, clique: Clique, found: Array, seconds: float, chance: Random) -> None:
        """One marginal, whole; of a large one its likeliest cell and one of those not rare."""
        begun = time.perf_counter()
        if found.size <= _WHOLE_CELLS:
            with suppress(TooLong):
                expected = self._shares(clique, {}, seconds)
                at = tuple([self.evidence.get(name, slice(None)) for name in clique])
                worst = int(np.abs(found[at] - expected).argmax())
                name = f"the marginal of {clique} at its free cell {worst}"
                self._compare(name, float(found[at].flat[worst]), float(expected.flat[worst]))
                return
        seconds -= time.perf_counter() - begun
        for cell in _cells(found, chance, seconds / 4):
            codes = [int(code) for code in np.unravel_index(cell, found.shape)]
            record = dict(zip(clique, codes, strict=True))
            share = float(self._shares((), record, seconds / 2))
            self._compare(f"the marginal of {clique} at {record}", float(found.flat[cell]), share)

    def answer(self, query: FactoredQuery, found: Array, total: float, seconds: float) -> None:
        """A factored query's answers in counts: the largest of them, and one more."""
        flat = found.reshape(-1)
        drawn = Random(flat.size).randrange(flat.size)
        for cell in dict.fromkeys([int(np.abs(flat).argmax()), drawn]):
            rows = _rows(query, cell)
            scale = total * prod(float(np.abs(row).max()) for row in rows.values())
            if scale == 0:
                expected = 0.0
            else:
                weights = [((name,), _logarithm(row)) for name, row in rows.items()]
                whole = self._log_sum(seconds / 2)
                value = self.sums.log_sum(weights=weights, seconds=seconds / 2) - whole
                expected = total * float(np.exp(value).real)
            self._compare(f"the answer {cell} to {query!r}", float(flat[cell]), expected, scale)
            seconds /= 2

    def share(
        self, allowed: Mapping[str, int | Sequence[int]], found: float, seconds: float
    ) -> None:
        """The share of the records that have these codes (one, or any of several)."""
        weights: list[Table] = []
        for name, codes in allowed.items():
            mask = np.full(self.sums.sizes[name], -inf)
            mask[np.atleast_1d(codes)] = 0.0
            weights.append(((name,), mask))
        part = self.sums.log_sum(weights=weights, seconds=seconds / 2).real
        expected = _ratio(part, self._log_sum(seconds / 2))
        self._compare(f"the share of the records with {dict(allowed)!r}", found, expected)

    def most_probable(
        self, record: Mapping[str, int], seconds: float, log_weight: float | None = None
    ) -> None:
        """A most probable record, and its ``log_weight``: none has a larger one."""
        own = self.sums.at(record, self.weights)
        close = self._close_logarithm
        try:
            best = self.sums.largest(self.evidence, self.weights, seconds / 2)
        except TooLong:
            best = max([own, *self._beside(record, seconds / 2)])
        stated = own if log_weight is None else log_weight
        contradicted = any(record[name] != code for name, code in self.evidence.items())
        if contradicted or not best - own <= close or not abs(stated - own) <= close:
            raise Contradiction(
                f"inference contradicts a second computation: the record {dict(record)!r:.200} is "
                f"called most probable, with the logarithm {stated!r}; it is {own!r}, and another "
                f"record has {best!r}. Please report this"
            )

    def _beside(self, record: Mapping[str, int], seconds: float) -> Iterator[float]:
        """Sums at the records that differ from this one in one attribute, as time allows."""
        own, deadline = self.sums.at(record, self.weights), time.perf_counter() + seconds
        changes: dict[str, Any] = {}
        for clique, table in (*self.sums.tables, *self.weights):
            at: list[Any] = [record[name] for name in clique]
            for axis, name in enumerate(clique):
                line = table[(*at[:axis], slice(None), *at[axis + 1 :])]
                changes[name] = changes.get(name, 0.0) + line - line[at[axis]]
            if time.perf_counter() > deadline:
                return
        for name, change in changes.items():
            if name not in self.evidence:
                yield own + float(np.nanmax(change))

    def log_sum(self, found: float, seconds: float) -> None:
        """The logarithm of the sum over all records with the evidence; minus infinity if none."""
        what = f"the sum over all records with {dict(self.evidence)!r:.200}"
        self._same_logarithm(what, found, self._log_sum(seconds))

    def same_sum(self, other: PlainSums, seconds: float) -> None:
        """Tables of the attributes that were not observed have the same sum over all records."""
        self.log_sum(other.log_sum(seconds=seconds / 2).real, seconds / 2)

    def max_marginals(self, found: Mapping[str, Array], seconds: float) -> None:
        """The largest logarithm of a record that has each value: one of them."""
        chance = Random(len(found))
        name = chance.choice(list(found))
        code = chance.randrange(len(found[name]))
        stated = float(found[name][code])
        if self.evidence.get(name, code) != code:
            expected = -inf
        else:
            expected = self.sums.largest({**self.evidence, name: code}, self.weights, seconds)
        self._same_logarithm(f"the best record with {name!r} = {code}", stated, expected)

    def entropy(self, found: float, seconds: float) -> None:
        """The entropy in nats: log Z less the slope of log Z(t), the sum with all tables times t.

        The slope is a difference quotient over t = 1 -+ h: with logarithms of size s it is off by
        at most h^2 s^3 / 6, and by rounding of about 1e-15 s / h.
        """
        size = 1.0 + self.sums.size
        step = 1e-4 / size
        around = [
            replace(self.sums, tables=[(c, t * factor) for c, t in self.sums.tables], children=None)
            .log_sum(self.evidence, [(c, t * factor) for c, t in self.weights], seconds / 3)
            .real
            for factor in (1 - step, 1 + step)
        ]
        expected = self._log_sum(seconds / 3) - (around[1] - around[0]) / (2 * step)
        self._compare("the entropy", found, expected, 10 * size * (1 + 1e-4 * size))

    def drawn(self, columns: Mapping[str, NDArray[Any]], n: int, seconds: float) -> None:
        """Records drawn: how many have one cell of two attributes, against its probability.

        The bound is that of independent draws; rounded counts stray less.
        """
        if n == 0:
            return
        chance, names = Random(n), list(columns)
        for _ in range(6):
            row = chance.randrange(n)
            pair = chance.sample(names, min(2, len(names)))
            record = {name: int(columns[name][row]) for name in pair}
            count = int(np.logical_and.reduce([columns[k] == v for k, v in record.items()]).sum())
            self.counted(record, count, n, seconds / 2)
            seconds /= 2

    def counted(self, record: Mapping[str, int], count: int, n: int, seconds: float) -> None:
        """The number of ``n`` records with these codes, against their probability."""
        share = float(self._shares((), record, seconds))
        stray = sqrt(2 * _RARE * n * share * max(0.0, 1 - share)) + _RARE
        if not abs(count - n * share) <= stray + self._allowed(count, n * share, n):
            raise Contradiction(
                f"inference contradicts a second computation: {count} of {n} records drawn "
                f"have {record!r}, where {n * share:.6g} are expected, give or take "
                f"{stray:.3g}. Please report this"
            )

    @cached_property
    def _known(self) -> PlainSums:
        """The tables that the sum over the records with the evidence needs."""
        return self.sums.about(
            [*self.evidence, *(name for axes, _ in self.weights for name in axes)]
        )

    def _log_sum(self, seconds: float) -> float:
        """The logarithm of the sum over all records with the evidence."""
        if not self._remembered:
            found = self._known.log_sum(self.evidence, self.weights, seconds).real
            self._remembered.append(found)
        return self._remembered[0]

    def _shares(self, clique: Clique, record: Mapping[str, int], seconds: float) -> Array:
        """The probabilities given the evidence of these codes together with each cell of the
        clique's attributes that were not observed; raises TooLong.
        """
        if any(self.evidence.get(name, code) != code for name, code in record.items()):
            return np.zeros(())
        kept = tuple([name for name in clique if name not in self.evidence])
        both = {**self.evidence, **record}
        sums = self.sums.about([*both, *kept, *(name for axes, _ in self.weights for name in axes)])
        logarithms = sums.table(kept, both, self.weights, seconds)
        # The cells of a whole table are its own norm, so that one sum is enough.
        whole = self._log_sum(seconds) if record else np.logaddexp.reduce(logarithms, axis=None)
        return np.exp(np.minimum(logarithms - whole, 1.0))

    @cached_property
    def _close_logarithm(self) -> float:
        """The difference of two logarithms that rounding may explain, as in ``self_check``."""
        epsilon = float(np.finfo(np.float32 if self.coarse else np.float64).eps)
        steps = len(self.sums.tables) + len(self.sums.sizes)
        return min(DEFECT, epsilon * (CLOSE + ROUNDINGS * steps * self.sums.size))

    def _allowed(self, found: float, expected: float, scale: float) -> float:
        """The difference that rounding may explain, with units of ``scale``; the part in proportion
        to the logarithms, which takes a look at all tables, is added where it is needed.
        """
        close = (_COARSE if self.coarse else _CLOSE) * scale
        if abs(found - expected) <= close:
            return close
        return close + self._close_logarithm * scale

    def _compare(self, what: str, found: float, expected: float, scale: float = 1.0) -> None:
        if not abs(found - expected) <= self._allowed(found, expected, scale):
            raise Contradiction(
                f"inference contradicts a second computation: {what:.300} is {found!r} by one and "
                f"{expected!r} by the other. Please report this"
            )

    def _same_logarithm(self, what: str, found: float, expected: float) -> None:
        if not (abs(found - expected) <= self._close_logarithm or found == expected):
            raise Contradiction(
                f"inference contradicts a second computation: the logarithm of {what} is "
                f"{found!r} by one and {expected!r} by the other. Please report this"
            )

    def _consistent(self, found: Mapping[Clique, Array], total: float, seconds: float) -> None:
        """All tables sum to the total and agree on the attributes that they share."""
        singles = [table for table in found.values() if table.ndim == 1]
        if singles:
            starts = [0, *accumulate(map(len, singles[:-1]))]
            sums = np.add.reduceat(np.concatenate(singles), starts) / total
            worst = int(np.abs(sums - 1.0).argmax())
            self._compare(f"the sum of single marginal {worst}", float(sums[worst]), 1.0)
        if len(singles) == len(found):
            return
        deadline = time.perf_counter() + seconds
        seen = {c[0]: table / total for c, table in found.items() if len(c) == 1}
        for clique, table in found.items():
            if time.perf_counter() + CELL_SECONDS * table.size > deadline:
                return
            if table.ndim == 1:
                continue
            self._compare(f"the sum of {clique}", float(table.sum()) / total, 1.0)
            for axis, name in enumerate(clique):
                away = tuple([other for other in range(len(clique)) if other != axis])
                line = table.sum(axis=away) / total
                apart = float(np.abs(line - seen.setdefault(name, line)).max())
                self._compare(f"what two marginals say of {name!r}: apart, {clique},", apart, 0.0)


def _ratio(part: float, whole: float) -> float:
    """The ratio of two sums given by their logarithms; it is zero where the part is zero."""
    return exp(min(part - whole, 1.0)) if part > -inf else 0.0


def _cells(table: Array, chance: Random, seconds: float) -> Iterable[int]:
    """The likeliest cell and one of the others that are not rare; any one of a table that takes
    longer to be searched.
    """
    if CELL_SECONDS * table.size > seconds:
        return [chance.randrange(table.size)]
    mean = float(table.mean())
    possible = np.flatnonzero(table >= min(_UNLIKELY * table.size, 1.0) * mean)
    return dict.fromkeys([int(table.argmax()), int(possible[chance.randrange(len(possible))])])


def _rows(query: FactoredQuery, cell: int) -> dict[str, Array]:
    """The row of each attribute's matrix that the flat answer ``cell`` is for."""
    rows = {}
    for name in reversed(query.attributes):
        matrix = query.factors[name]
        cell, row = divmod(cell, matrix.shape[0])
        picked = np.zeros(matrix.shape[0])
        picked[row] = 1.0
        rows[name] = np.asarray(picked @ matrix)
    return rows


def _logarithm(row: Array) -> Any:
    """The logarithms, complex where a number is negative."""
    with np.errstate(divide="ignore"):
        return np.log(row.astype(np.complex128)) if row.min() < 0 else np.log(row)
