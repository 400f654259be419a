"""A second computation that checks answers of models and factor graphs, by sums that share with
inference only the search for an elimination order; any order gives the same sums.

A check of an answer picks one or a few of its numbers and computes them again from the tables
(``plain_sums``). Tables must also sum to the total and agree on the attributes that they share. If
the maximum over all records would take too long, the check of a most probable record is only that
no change of one attribute makes it more probable.

An answer is checked when its structure is asked for the first time: ``FirstUses`` remembers which
structures were checked, and limits the checks to a share of the time of the answers.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from math import exp, inf, log, prod, sqrt
from random import Random
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pgmkit.domain import Clique
from pgmkit.inference import self_check
from pgmkit.inference.plain_sums import CELL_SECONDS, PlainSums, Table, TooLong, sliced
from pgmkit.linear.matrix import as_dense
from pgmkit.queries import FactoredQuery
from pgmkit.runtime.arrays import Array
from pgmkit.runtime.precision import EPSILON
from pgmkit.runtime.sizes import FEW_CELLS

RARE = -log(EPSILON)
"""The exponent in the bound on a count of drawn records. By Bernstein's inequality a correct count
exceeds the bound with a probability of at most 2 exp(-36) = 4e-16, which stays small if a test
counts thousands of cells.
"""

Check: TypeAlias = Callable[["SecondOpinion", float], None]
"""A check of an answer: it gets the second computation and the seconds that it may take."""


@dataclass(frozen=True, eq=False)
class SecondOpinion:
    """Independent checks, by sums on plain arrays (``PlainSums``), of answers about the records
    that agree with some evidence.

    Most methods take the answer to be checked as ``found`` and the time that the check may take,
    roughly, as ``seconds``. They raise Contradiction if the answer differs from the second
    computation by more than rounding can explain, and TooLong if there is not enough time or memory
    for it.

    Args:
        sums: plain sums over the tables of the model or graph whose answers are checked.
        evidence: codes of observed attributes.
        weights: further tables of logarithms, the likelihoods of uncertain evidence.
        coarse: whether the answers were computed in single precision.
    """

    sums: PlainSums
    evidence: Mapping[str, int]
    weights: Sequence[Table] = ()
    coarse: bool = False
    _remembered: list[float] = field(default_factory=list)

    def tables(self, found: Mapping[Clique, Array], total: float, seconds: float) -> None:
        """Check that marginals in counts sum to ``total`` and agree with each other, and that one
        or two of them agree with the second computation.

        The largest is compared, since it depends on the most tables. If ``seconds`` is more than
        the least time of any check (``self_check.LEAST``), one drawn at random is compared too.
        """
        self._consistent(found, total, seconds / 4)
        begun = time.perf_counter()
        cliques = [clique for clique in found if clique]
        if not cliques:
            return
        # The second computation has to leave room for the answers.
        room = self.sums.room - sum([table.nbytes for table in found.values()])
        beside = replace(self, sums=replace(self.sums, room=room))
        chosen = [max(cliques, key=lambda clique: found[clique].size)]
        if seconds > self_check.LEAST:
            chosen.append(Random(len(found)).choice(cliques))
        for clique in chosen:
            beside._table(clique, found[clique], total, seconds / 2 - (time.perf_counter() - begun))

    def _table(self, clique: Clique, found: Array, total: float, seconds: float) -> None:
        """Check one marginal, in counts that sum to ``total``: all its cells or, if it is large or
        there is no time for all, its likeliest cell and a random one that is not rare (if there is
        no time to find these, any random cell).
        """
        begun = time.perf_counter()
        if found.size <= FEW_CELLS:
            with suppress(TooLong):
                expected = self._shares(clique, {}, seconds)
                at = tuple([self.evidence.get(name, slice(None)) for name in clique])
                free = found[at] / total
                worst = int(np.abs(free - expected).argmax())
                name = f"the marginal of {clique} at its free cell {worst}"
                self._compare(name, float(free.flat[worst]), float(expected.flat[worst]))
                return
        seconds -= time.perf_counter() - begun
        for cell in _cells(found, seconds / 4):
            codes = [int(code) for code in np.unravel_index(cell, found.shape)]
            record = dict(zip(clique, codes, strict=True))
            share = float(self._shares((), record, seconds / 2))
            mine = float(found.flat[cell]) / total
            self._compare(f"the marginal of {clique} at {record}", mine, share)

    def answer(self, query: FactoredQuery, found: Array, total: float, seconds: float) -> None:
        """Check two numbers of ``found``, a model's answer to ``query`` in counts of ``total``
        records: that of the largest magnitude, and one drawn at random. There must be no evidence.
        """
        flat = found.reshape(-1)
        drawn = Random(flat.size).randrange(flat.size)
        for cell in dict.fromkeys([int(np.abs(flat).argmax()), drawn]):
            rows = rows_of(query, cell)
            scale = total * prod(float(np.abs(row).max()) for row in rows.values())
            if scale == 0:
                expected = 0.0
            else:
                with np.errstate(divide="ignore"):  # logarithms of negative numbers are complex
                    weights = [((name,), np.emath.log(row)) for name, row in rows.items()]
                whole = self._log_sum(seconds / 2)
                value = self.sums.log_sum(weights=weights, seconds=seconds / 2) - whole
                expected = total * float(np.exp(value).real)
            self._compare(f"the answer {cell} to {query!r}", float(flat[cell]), expected, scale)
            seconds /= 2

    def share(self, allowed: Mapping[str, NDArray[np.bool_]], found: float, seconds: float) -> None:
        """Check ``found``, the share of all records (there must be no evidence) in which each
        attribute in ``allowed`` has a code for which its mask there is True.
        """
        weights = [((name,), np.where(mask, 0.0, -inf)) for name, mask in allowed.items()]
        part = self.sums.log_sum(weights=weights, seconds=seconds / 2).real
        expected = exp(min(part - self._log_sum(seconds / 2), 1.0)) if part > -inf else 0.0
        codes = {name: np.flatnonzero(mask).tolist() for name, mask in allowed.items()}
        self._compare(f"the share of the records with {codes!r}", found, expected)

    def most_probable(
        self, record: Mapping[str, int], seconds: float, log_weight: float | None = None
    ) -> None:
        """Check that no record has a larger log weight than ``record``, that it agrees with the
        evidence, and that its log weight is ``log_weight`` (not checked if None).

        If the maximum over all records would take too long, only records that differ from this one
        in a single attribute are compared; none are if that takes too long as well.
        """
        own = self.sums.at(record, self.weights)
        close = self._close_logarithm
        try:
            best = self.sums.largest(self.evidence, self.weights, seconds / 2)
        except TooLong:
            best = max([own, *self._beside(record, seconds / 2)])
        stated = own if log_weight is None else log_weight
        contradicted = any(record[name] != code for name, code in self.evidence.items())
        if contradicted or not best - own <= close or not abs(stated - own) <= close:
            raise self_check.Contradiction(
                f"inference contradicts a second computation: the record {dict(record)!r:.200} is "
                f"the most probable by inference, with the log weight {stated!r}; by the second "
                f"computation it has {own!r} and another record {best!r}. Please report this"
            )

    def _beside(self, record: Mapping[str, int], seconds: float) -> Iterator[float]:
        """Yield, for every attribute of the tables that is not observed, the largest log weight of
        this record and of those that differ from it in that attribute alone. Yield nothing if
        reading the tables takes longer than ``seconds``.
        """
        own, deadline = self.sums.at(record, self.weights), time.perf_counter() + seconds
        changes: dict[str, Any] = {}
        own_tables = [(table, self.sums.logarithms) for table in self.sums.tables]
        for table, part in (*own_tables, *((weight, sliced) for weight in self.weights)):
            for name in table[0]:
                line = part(table, {other: record[other] for other in table[0] if other != name})[1]
                changes[name] = changes.get(name, 0.0) + line - line[record[name]]
            if time.perf_counter() > deadline:
                return
        for name, change in changes.items():
            if name not in self.evidence:
                yield own + float(np.nanmax(change))

    def log_sum(self, found: float, seconds: float) -> None:
        """Check the logarithm of the summed weight of all records with the evidence; minus infinity
        means that no such record is possible.
        """
        what = f"the sum over all records with {dict(self.evidence)!r:.200}"
        self._same_logarithm(what, found, self._log_sum(seconds))

    def max_marginals(self, found: Mapping[str, Array], seconds: float) -> None:
        """Check one entry, drawn at random, of max-marginals: for an attribute and a code of it,
        the largest log weight of a record with this code.
        """
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
        """Check the entropy in nats. It is log Z minus the slope at t = 1 of log Z(t), where Z(t)
        is the sum with all log tables multiplied by t.

        The slope is a difference quotient over t = 1 -+ h: with logarithms of size s its error is
        at most h^2 s^3 / 6, plus rounding of about 1e-15 s / h.
        """
        size = 1.0 + self.sums.size
        step = 1e-4 / size
        around = [
            replace(self.sums, power=factor, children=None)
            .log_sum(self.evidence, [(c, t * factor) for c, t in self.weights], seconds / 3)
            .real
            for factor in (1 - step, 1 + step)
        ]
        expected = self._log_sum(seconds / 3) - (around[1] - around[0]) / (2 * step)
        self._compare("the entropy", found, expected, 10 * size * (1 + 1e-4 * size))

    def drawn(self, columns: Mapping[str, NDArray[Any]], n: int, seconds: float) -> None:
        """Check ``n`` drawn records: for a few random ones and pairs of attributes (or the only
        attribute), the number of records in the same cell must agree with the cell's probability.

        The allowed difference is that of independent draws; counts rounded from expectations differ
        less.
        """
        if n == 0:
            return
        chance, names = Random(int(n)), list(columns)
        for _ in range(6):
            row = chance.randrange(n)
            pair = chance.sample(names, min(2, len(names)))
            record = {name: int(columns[name][row]) for name in pair}
            count = int(np.logical_and.reduce([columns[k] == v for k, v in record.items()]).sum())
            self.counted(record, count, n, seconds / 2)
            seconds /= 2

    def counted(self, record: Mapping[str, int], count: int, n: int, seconds: float) -> None:
        """Check that ``count``, the number of those among ``n`` drawn records that have the codes
        ``record``, agrees with the probability of these codes. Computing the probability may take
        ``seconds``.
        """
        share = float(self._shares((), record, seconds))
        stray = sqrt(2 * RARE * n * share * max(0.0, 1 - share)) + RARE
        if not abs(count - n * share) <= stray + self._allowed(count, n * share, n):
            raise self_check.Contradiction(
                f"inference contradicts a second computation: {count} of {n} records drawn "
                f"have {record!r}, where {n * share:.6g} are expected, with a difference of at "
                f"most {stray:.3g}. Please report this"
            )

    def _log_sum(self, seconds: float) -> float:
        """Return the logarithm of the summed weight of all records with the evidence. The first
        call takes at most ``seconds``, or raises TooLong; the result is remembered.
        """
        if not self._remembered:
            known = self.sums.about(
                [*self.evidence, *(name for axes, _ in self.weights for name in axes)]
            )
            self._remembered.append(known.log_sum(self.evidence, self.weights, seconds).real)
        return self._remembered[0]

    def _shares(self, clique: Clique, record: Mapping[str, int], seconds: float) -> Array:
        """Return a table over the clique's unobserved attributes. Each cell is the joint
        probability of that cell and of the codes of ``record``, given the evidence; if ``record``
        contradicts it, the result is a single zero. Raises TooLong.
        """
        if any(self.evidence.get(name, code) != code for name, code in record.items()):
            return np.zeros(())
        kept = tuple([name for name in clique if name not in self.evidence])
        both = {**self.evidence, **record}
        sums = self.sums.about([*both, *kept, *(name for axes, _ in self.weights for name in axes)])
        logarithms = sums.table(kept, both, self.weights, seconds)
        # If `record` is empty, the cells sum to 1, so the table is normalised by its own sum and
        # the sum over all records is not needed.
        whole = self._log_sum(seconds) if record else np.logaddexp.reduce(logarithms, axis=None)
        return np.exp(np.minimum(logarithms - whole, 1.0))

    @cached_property
    def _close_logarithm(self) -> float:
        """The largest difference of two logarithms that rounding explains: the format's epsilon
        times the constant ``self_check.CLOSE`` plus a part proportional to the number of tables and
        attributes and to the sum of the tables' largest logarithms. It is at most
        ``self_check.DEFECT``, which it always is in single precision.
        """
        steps = len(self.sums.tables) + len(self.sums.sizes)
        return min(
            self_check.DEFECT,
            self._epsilon * (self_check.CLOSE + self_check.ROUNDINGS * steps * self.sums.size),
        )

    @property
    def _epsilon(self) -> float:
        return float(np.finfo(np.float32).eps) if self.coarse else EPSILON

    def _allowed(self, found: float, expected: float, scale: float) -> float:
        """Return the difference between ``found`` and ``expected`` that rounding can explain, for
        numbers of about the size ``scale``: half of their digits, and a part that grows with the
        size of the logarithms.

        The second part takes time, as all tables have to be read for it, so it is added only if the
        difference is larger than the first.
        """
        close = self._epsilon**0.5 * scale
        if abs(found - expected) <= close:
            return close
        return close + self._close_logarithm * scale

    def _compare(self, what: str, found: float, expected: float, scale: float = 1.0) -> None:
        if not abs(found - expected) <= self._allowed(found, expected, scale):
            raise self_check.Contradiction(
                f"inference contradicts a second computation: {what:.300} is {found!r} by "
                f"inference and {expected!r} by the second computation. Please report this"
            )

    def _same_logarithm(self, what: str, found: float, expected: float) -> None:
        if not (abs(found - expected) <= self._close_logarithm or found == expected):
            raise self_check.Contradiction(
                f"inference contradicts a second computation: the logarithm of {what} is "
                f"{found!r} by inference and {expected!r} by the second computation. Please report "
                "this"
            )

    def _consistent(self, found: Mapping[Clique, Array], total: float, seconds: float) -> None:
        """Check that all tables sum to the total, and that tables which share an attribute agree on
        its marginal. Tables with several attributes are checked only until ``seconds`` have passed.
        """
        singles = {clique: table for clique, table in found.items() if len(clique) == 1}
        if singles:
            starts = [0, *accumulate(map(len, singles.values()))][:-1]
            sums = np.add.reduceat(np.concatenate([*singles.values()]), starts) / total
            worst = int(np.abs(sums - 1.0).argmax())
            self._compare(f"the sum of {[*singles][worst]}", float(sums[worst]), 1.0)
        deadline = time.perf_counter() + seconds
        held = Counter(name for clique in found for name in clique)
        shares = {clique[0]: table / total for clique, table in singles.items()}
        for clique, table in [each for each in found.items() if len(each[0]) != 1]:
            if time.perf_counter() + CELL_SECONDS * table.size > deadline:
                return
            self._compare(f"the sum of {clique}", float(table.sum()) / total, 1.0)
            for name in [each for each in clique if held[each] > 1]:
                away = tuple([axis for axis, other in enumerate(clique) if other != name])
                line = table.sum(axis=away) / total
                apart = float(np.abs(line - shares.setdefault(name, line)).max())
                self._compare(f"what two marginals say of {name!r}: apart, {clique},", apart, 0.0)


def _cells(table: Array, seconds: float) -> Iterable[int]:
    """Return the cells of a table to be checked: the likeliest one and a random one that is not
    rare, or any random cell if searching the table would take longer than ``seconds``.
    """
    chance = Random(table.size)  # this choice affects no answer
    if CELL_SECONDS * table.size > seconds:
        return [chance.randrange(table.size)]
    mean = float(table.mean())
    possible = np.flatnonzero(table >= min(self_check.UNLIKELY * table.size, 1.0) * mean)
    return dict.fromkeys([int(table.argmax()), int(possible[chance.randrange(len(possible))])])


def rows_of(query: FactoredQuery, cell: int) -> dict[str, Array]:
    """Return for each attribute of the query, in its order, the row of its matrix that answer
    number ``cell`` uses.
    """
    rows = {}
    for name in reversed(query.attributes):  # numpy's `unravel_index` knows 64 axes at most
        cell, row = divmod(cell, query.factors[name].shape[0])
        rows[name] = as_dense(query.factors[name][[row]])[0]
    return {name: rows[name] for name in query.attributes}
