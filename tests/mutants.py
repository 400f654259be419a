# ruff: noqa: E501  # texts of the packages, to the letter
"""Planted privacy mistakes: each is put into a copy of the packages, and the tests must notice.

    python tests/mutants.py                 # all of them
    python tests/mutants.py --list          # their names
    python tests/mutants.py discovery noise # those whose names hold one of these words
    python tests/mutants.py --record        # and write benchmarks/results/mutants.json

The tests are collected once, and each mutant meets them in a fork of that process
(`tests/warm_tests.py`): first the test that caught it before, which the record names; then the file
that should notice it; and the other fast privacy tests only where that file passes. A mutant that
no test notices is a hole in the tests; one whose text is not in its file exactly once is stale and
counts as a failure too.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from warm_tests import Collected

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "benchmarks" / "results" / "mutants.json"
TESTS = (
    "exact_noise",
    "scores",
    "replay",
    "discovery",
    "curator",
    "cells",
    "clique_queries",
    "ledger_file",
    "permute_and_flip",
    "budget",
    "gaussian_accounting",
    "dual_query",
    "strategies",
    "histogram_mechanisms",
    "untrusted",
    "units",
    "unread",
    "first_look",
    "merging",
    "linked",
    "linked_trees",
    "refusals",
    "tables/test_company",
    "tables/test_neighbours",
)
"""The fast privacy tests, in `tests/mechanisms` where no folder is named."""


@dataclass(frozen=True)
class Mutant:
    """A mistake: in a file, one text in place of another. `first`: the test that is tried first."""

    name: str
    file: str
    old: str
    new: str
    first: str = "replay"


P = "mechanisms/privacy/"
CURATOR, NOISE, SCALES = P + "curator.py", P + "noise.py", P + "noise_scales.py"
CHARGING, SELECTING = P + "charging.py", P + "selecting.py"
UNITS = P + "units.py"
LINKED = "mechanisms/linked/pipeline.py"
CODING = "mechanisms/linked/coding.py"
SCORES, LEDGER, DISCOVERY = P + "scores.py", P + "ledger.py", P + "discovery.py"
NEIGHBOURS, CONVERSIONS, GRID = P + "neighbours.py", P + "conversions.py", P + "integer_matrix.py"
GAUSSIAN = P + "gaussian_dp.py"
TOTAL, EXACT = "curator.public_total", "len(curator._data)"

MUTANTS = (
    # Sensitivities.
    Mutant("L1 sensitivity of replace-one halved", NEIGHBOURS, "l1=2,", "l1=1,", "scores"),
    Mutant("L2 sensitivity of replace-one is 1", NEIGHBOURS, "l2=math.sqrt(2)", "l2=1.0"),
    Mutant(
        "add/remove takes the number of rows as public",
        NEIGHBOURS,
        "l2=1.0, rows_public=False",
        "l2=1.0, rows_public=True",
    ),
    Mutant(
        "errors of cliques measured as if they were one",
        CURATOR,
        "self._noisy(step, distances, self.neighbours.l1, cost)",
        "self._noisy(step, distances, self.neighbours.l1 / len(names), cost)",
        "scores",
    ),
    Mutant(
        "cells measured at the price of one",
        CURATOR,
        "for cell in cells]\n        noisy, stddev = self._noisy(step, exact, self.neighbours.max_rows, cost)",
        "for cell in cells]\n        noisy, stddev = self._noisy(step, exact, 1 / len(cells), cost)",
        "cells",
    ),
    Mutant(
        "predicates measured at the price of one",
        CURATOR,
        "the charge\n        noisy, stddev = self._noisy(step, exact, self.neighbours.max_rows, cost)",
        "the charge\n        noisy, stddev = self._noisy(step, exact, 1 / len(predicates), cost)",
        "scores",
    ),
    Mutant(
        "selection of a marginal at half its sensitivity",
        SELECTING,
        "found, self.neighbours.l1, cost, flip",
        "found, self.neighbours.l1 / 2, cost, flip",
        "scores",
    ),
    Mutant(
        "public data chosen at half the sensitivity",
        SELECTING,
        "np.array(found), self.neighbours.max_rows, cost",
        "np.array(found), self.neighbours.max_rows / 2, cost",
        "scores",
    ),
    Mutant(
        "query matrix measured at unit sensitivity",
        CURATOR,
        "answers, sensitivity, sensitivity, cost",
        "answers, 1, 1, cost",
    ),
    Mutant(
        "products measured at once for half of what a row moves",
        P + "joint_moves.py",
        "replaced = 2 * (weights.sum()",
        "replaced = (weights.sum()",
        "strategies",
    ),
    Mutant(
        "products measured at once as if rows differed in all attributes",
        P + "joint_moves.py",
        "float(each.max())",
        "float(each[-1])",
        "strategies",
    ),
    Mutant(
        "rows that come and go forgotten where products are measured at once",
        P + "joint_moves.py",
        "np.append(replaced, weights.sum()) if self._leaves",
        "replaced if self._leaves",
        "strategies",
    ),
    Mutant(
        "difference of columns ignored under replace-one",
        NEIGHBOURS,
        "max(norm(differ) for differ in kinds)",
        "norm(False)",
        "strategies",
    ),
    Mutant(
        "largest column norm is the mean one",
        GRID,
        "            own.max(),",
        "            own.mean(),",
        "strategies",
    ),
    Mutant(
        "query answers larger than their matrix says",
        GRID,
        "np.clip(np.ascontiguousarray(x).reshape(-1), -held, held)",
        "np.clip(2 * np.ascontiguousarray(x).reshape(-1), -held, held)",
        "strategies",
    ),
    Mutant(
        "squared norms wrap around at 64 bits",
        GRID,
        "np.dtype(np.int64) if 4 * most < 2**63 else np.dtype(object)",
        "np.dtype(np.int64)",
        "strategies",
    ),
    Mutant(
        "answers of many rows wrap around at 64 bits",
        GRID,
        "counts if fits else counts.astype(object)",
        "counts",
        "strategies",
    ),
    # Scores and their grid.
    Mutant(
        "weights not taken as fractions of the largest",
        SCORES,
        "weights / weights.max() * one",
        "weights * one",
        "scores",
    ),
    Mutant(
        "weighted scores stretched by half",
        SCORES,
        "(part * (distance - penalty)) >> ENTRY_BITS",
        "(3 * part * (distance - penalty)) >> (1 + ENTRY_BITS)",
        "scores",
    ),
    Mutant(
        "distances by queries not divided by their norm",
        SCORES,
        "// each.l1(differ=False) for each",
        "for each",
        "scores",
    ),
    Mutant(
        "scores in single precision",
        SCORES,
        "np.left_shift(counts, _BITS, dtype=np.int64) - grid",
        "(np.float32(counts) * 2**_BITS - np.float32(grid)).astype(np.int64)",
        "scores",
    ),
    Mutant(
        "estimates of any size accepted",
        SCORES,
        "    if size > LARGEST:",
        "    if False:",
        "scores",
    ),
    Mutant(
        "answers of queries compared without their norm",
        SCORES,
        "sum(np.abs(each.answers(flat)).tolist()) // each.l1(differ=False)",
        "sum(np.abs(each.answers(flat)).tolist())",
        "clique_queries",
    ),
    Mutant(
        "distances by several queries added up",
        SCORES,
        "return sum(norms) // len(norms)",
        "return sum(norms)",
        "clique_queries",
    ),
    Mutant(
        "a share's error counted twice",
        SCORES,
        "(-largest) >> (_SHARE_BITS - _BITS)",
        "(-2 * largest) >> (_SHARE_BITS - _BITS)",
        "scores",
    ),
    # Scales and prices.
    Mutant(
        "Gaussian scale without the 2 of 2 rho",
        SCALES,
        "l2 / math.sqrt(2 * cost)",
        "l2 / math.sqrt(4 * cost)",
    ),
    Mutant(
        "Laplace scale halved",
        SCALES,
        "return l1 / cost if budget",
        "return l1 / (2 * cost) if budget",
        "curator",
    ),
    Mutant(
        "exponential mechanism without its factor 2",
        SCALES,
        "return 2 * sensitivity / (cost if budget.pure else math.sqrt(8 * cost))",
        "return sensitivity / (cost if budget.pure else math.sqrt(8 * cost))",
        "scores",
    ),
    Mutant(
        "permute-and-flip at the price of the exponential mechanism",
        SCALES,
        "cost) * (1 if budget.pure else 2)",
        "cost)",
        "permute_and_flip",
    ),
    Mutant(
        "top-k charged once",
        CHARGING,
        "self.neighbours.max_rows, cost / count)",
        "self.neighbours.max_rows, cost)",
        "scores",
    ),
    Mutant(
        "repeated draws at the price of one",
        SELECTING,
        "self._several(count, cost)\n        drawn = self._noise.draws",
        "self._several(1, cost)\n        drawn = self._noise.draws",
        "scores",
    ),
    Mutant(
        "counts compared in the type that keeps them",
        SCORES,
        "np.left_shift(counts, _BITS, dtype=np.int64) - grid",
        "np.left_shift(counts, _BITS, dtype=counts.dtype) - grid",
        "curator",
    ),
    Mutant(
        "a candidate chosen that is not allowed",
        CHARGING,
        "if passes is None or passes(int(left[drawn])):",
        "if True:",
        "curator",
    ),
    Mutant(
        "candidates that were put aside are not offered again",
        "mechanisms/families/graphical.py",
        "        return self._held(tree, clique) or all(\n",
        "        if not self._held(tree, clique):\n"
        "            self._placed = {c: w for c, w in self._placed.items() if c != clique}\n"
        "        return self._held(tree, clique) or all(\n",
    ),
    Mutant(
        "scale of the pure price under zCDP",
        SCALES,
        "return l1 / cost if budget.pure else l2 / math.sqrt(2 * cost)",
        "return l1 / cost",
        "curator",
    ),
    # Noise.
    Mutant(
        "no noise on counts",
        NOISE,
        "return self._noisy(self._measurements.make_gaussian(*self._gaussian, scale=scale), counts)",
        "return counts",
        "exact_noise",
    ),
    Mutant(
        "half the Gaussian noise",
        NOISE,
        "self._measurements.make_gaussian(*self._gaussian, scale=scale)",
        "self._measurements.make_gaussian(*self._gaussian, scale=scale / 2)",
        "curator",
    ),
    Mutant(
        "half the Laplace noise",
        NOISE,
        "self._measurements.make_laplace(*self._laplace, scale=scale)",
        "self._measurements.make_laplace(*self._laplace, scale=scale / 2)",
        "curator",
    ),
    Mutant(
        "selection by permute-and-flip for the exponential mechanism",
        NOISE,
        "choose = self._measurements.make_noisy_max(*self._scores, self._zcdp, scale=scale)",
        "choose = self._measurements.make_noisy_max(*self._scores, self._pure, scale=scale)",
        "curator",
    ),
    Mutant(
        "top-k without noise",
        NOISE,
        "return [int(index) for index in choose(np.ascontiguousarray(scores))]",
        "return [int(index) for index in np.argsort(-scores)[:count]]",
        "exact_noise",
    ),
    Mutant(
        "one noise value for all cells",
        NOISE,
        "return np.array(measurement(flat), dtype=np.int64).reshape(counts.shape)",
        "return counts + (np.array(measurement(flat[:1]), dtype=np.int64) - flat[:1])[0]",
        "curator",
    ),
    Mutant(
        "numpy noise marked secure", NOISE, "    secure = False", "    secure = True", "exact_noise"
    ),
    Mutant(
        "the default path on a seeded generator but marked secure",
        CURATOR,
        "ExactNoise() if seed is None",
        "type('ExactNoise', (SeededNoise,), {'secure': True})(np.random.default_rng()) if seed is None",
        "exact_noise",
    ),
    Mutant(
        "exact noise from numpy",
        NOISE,
        "return self._noisy(self._measurements.make_laplace(*self._laplace, scale=scale), counts)",
        "return SeededNoise(np.random.default_rng()).laplace(counts, scale)",
        "exact_noise",
    ),
    Mutant(
        "exact draws at half their scale",
        NOISE,
        "Fraction(each[index])) / Fraction(scale)",
        "Fraction(each[index])) * 2 / Fraction(scale)",
        "permute_and_flip",
    ),
    Mutant(
        "all scores that are not listed weigh as much as one",
        NOISE,
        "int(bounds[-1]) * scores.others)",
        "int(bounds[-1]) * min(scores.others, 1))",
        "permute_and_flip",
    ),
    Mutant(
        "signed draws compare cells with the estimates of others",
        SCORES,
        "np.searchsorted(places, row.indices)",
        "np.arange(row.nnz)",
        "scores",
    ),
    Mutant(
        "the smallest weights are never proposed",
        NOISE,
        "np.maximum(np.ceil(weights * (1 + SUM_ROUNDING) * 2.0**bits), 1)",
        "np.ceil(weights * (1 + SUM_ROUNDING) * 2.0**bits)",
        "permute_and_flip",
    ),
    Mutant(
        "the best candidate chosen without noise",
        CHARGING,
        "drawn = self._noise.softmax(found[left], scale)",
        "drawn = int(np.argmax(found[left]))",
    ),
    # The ledger.
    Mutant(
        "a charge after the answer",
        CURATOR,
        """        self._charged(f"{step} {_named(checked)}", cost)
        noisy, stddev = self._drawn(counts, l1, l2, cost)
""",
        """        noisy, stddev = self._drawn(counts, l1, l2, cost)
        self._charged(f"{step} {_named(checked)}", cost)
""",
    ),
    Mutant(
        "no charge for selections",
        CHARGING,
        'self.ledger.charge(step, "permute-and-flip" if flip else "exponential mechanism", cost)',
        "pass",
        "scores",
    ),
    Mutant(
        "no charge for top-k",
        CHARGING,
        'self.ledger.charge(step, f"top {count} of {what}, Gumbel noise", cost)',
        "pass",
        "cells",
    ),
    Mutant(
        "overspending allowed by a tenth",
        LEDGER,
        "within = 1 + AGREEMENT",
        "within = 1.1",
        "budget",
    ),
    Mutant(
        "noise of an earlier answer used again",
        CURATOR,
        "        noisy, stddev = self._drawn(counts, l1, l2, cost)\n",
        "        old = self.__dict__.setdefault('_old', {})\n"
        "        if counts.shape not in old:\n"
        "            old[counts.shape] = self._drawn(counts, l1, l2, cost)[0] - counts\n"
        "        noisy, stddev = counts + old[counts.shape], self.scale(cost)\n",
    ),
    Mutant(
        "killed runs are not on the disk",
        P + "chained_lines.py",
        "            _flushed(file, _line(values, digest)[0])\n        return",
        "        return",
        "ledger_file",
    ),
    Mutant(
        "lines of a ledger are not forced to the disk",
        P + "chained_lines.py",
        "    os.fsync(file.fileno())",
        "    pass",
        "ledger_file",
    ),
    Mutant(
        "runs at once take no lock",
        P + "chained_lines.py",
        "with naming_file(self.path), self._alone() as file:",
        'with naming_file(self.path), open(self.path, "r+b") as file:',
        "ledger_file",
    ),
    Mutant(
        "runs are not held to what is left",
        LEDGER,
        "if held is None or not held.allows(entry.cost, entry.delta):",
        "if False:",
        "ledger_file",
    ),
    Mutant(
        "a charge is not checked against what its run holds",
        LEDGER,
        "if held is None or not held.allows(entry.cost, entry.delta):",
        "if held is None:",
        "ledger_file",
    ),
    Mutant(
        "a run holds nothing from its beginning",
        LEDGER,
        'return {"run": runs + 1, "holds": budget.total, "delta": budget.reserved}',
        'return {"run": runs + 1, "holds": 1e-300, "delta": budget.reserved}',
        "ledger_file",
    ),
    Mutant(
        "a run begins whatever others hold",
        LEDGER,
        "            ledger._check_run(budget, self._lines.path.name, sorted(held))\n",
        "",
        "ledger_file",
    ),
    Mutant(
        "what killed runs hold counts as free",
        LEDGER,
        "                if own.cost_left\n",
        "                if False\n",
        "ledger_file",
    ),
    # Conversions.
    Mutant(
        "rho for a tenfold delta",
        CONVERSIONS,
        "    target = math.log(delta)\n    return crossing_from_zero",
        "    target = math.log(10 * delta)\n    return crossing_from_zero",
        "budget",
    ),
    Mutant(
        "rho is epsilon squared",
        CONVERSIONS,
        "return crossing_from_zero(lambda rho: log_delta(rho, epsilon) > target)[0]",
        "return epsilon**2",
        "budget",
    ),
    Mutant(
        "reserved delta spent on rho too",
        P + "budget.py",
        "return convert(self.epsilon, self.delta - self.reserved)",
        "return convert(self.epsilon, self.delta)",
        "discovery",
    ),
    Mutant(
        "epsilon spent is stated at all of delta",
        P + "budget.py",
        "return convert(cost, self.delta - self.reserved)",
        "return convert(cost, self.delta)",
        "discovery",
    ),
    # Units of several rows.
    Mutant(
        "children cost as one row",
        LINKED,
        "max_rows=requests[link.parent].relation.max_rows * link.most,",
        "max_rows=1,",
        "linked",
    ),
    Mutant(
        "children of children cost as children",
        LINKED,
        "max_rows=requests[link.parent].relation.max_rows * link.most,",
        "max_rows=link.most,",
        "linked_trees",
    ),
    Mutant(
        "a table by place costs as one cell of it",
        CURATOR,
        "l2 /= self.domain.sizes[str(self._place)] ** 0.5",
        "l2 /= self.domain.sizes[str(self._place)]",
        "linked_trees",
    ),
    Mutant(
        "several groups of numbered rows cost as one",
        CURATOR,
        "l1, l2 = self.neighbours.l1 / places, self.neighbours.l2 / places",
        "l1, l2 = (n / self.neighbours.max_rows for n in (self.neighbours.l1, self.neighbours.l2))",
        "linked_trees",
    ),
    Mutant(
        "the number of children is public",
        LINKED,
        "replace(units, name=named, rows_public=False)",
        "replace(units, name=named)",
        "linked",
    ),
    Mutant(
        "more children of a unit are kept than it is charged for",
        CODING,
        "bounded(owners, link.most, keys)",
        "bounded(owners, link.most + 1, keys)",
        "linked",
    ),
    Mutant(
        "a unit has two parents",
        CODING,
        "bounded(units, 1, random_keys",
        "bounded(units, 2, random_keys",
        "linked",
    ),
    Mutant(
        "noise by the number of a unit's rows does not grow with it",
        P + "curator.py",
        "l2 * k**0.5, cost",
        "l2, cost",
        "linked",
    ),
    Mutant(
        "a replaced unit costs as an added one where its rows are numbered",
        P + "curator.py",
        "self.neighbours.l1 / places, self.neighbours.l2 / places",
        "self.neighbours.max_rows / places, self.neighbours.max_rows / places",
        "linked",
    ),
    Mutant("a unit's rows cost as one", NEIGHBOURS, "l1=self.l1 * max_rows", "l1=self.l1", "units"),
    Mutant(
        "L2 of a unit grows with the root of its rows",
        NEIGHBOURS,
        "l2=self.l2 * max_rows",
        "l2=self.l2 * max_rows**0.5",
        "units",
    ),
    Mutant(
        "a unit moves a cell by one row",
        NEIGHBOURS,
        "max_rows=self.max_rows * max_rows",
        "max_rows=1",
        "units",
    ),
    Mutant(
        "replaced units leave the number of rows public",
        NEIGHBOURS,
        "self.rows_public and max_rows == 1",
        "self.rows_public",
        "units",
    ),
    Mutant(
        "replaced units have equally many rows",
        NEIGHBOURS,
        "[False] * (not self.rows_public)",
        "[False] * (not self.exchanged)",
        "units",
    ),
    Mutant(
        "a unit brings one new value only",
        DISCOVERY,
        "delta / neighbours.l1",
        "delta / neighbours.l1 * neighbours.max_rows",
        "units",
    ),
    Mutant(
        "a unit has a new value in one row only",
        DISCOVERY,
        "return 1 + neighbours.max_rows - scale",
        "return 2 - scale",
        "units",
    ),
    Mutant("a unit keeps a row too many", UNITS, "ranks < max_rows", "ranks <= max_rows", "units"),
    Mutant("rows of nobody are kept", UNITS, "units >= 0", "units >= -1", "units"),
    Mutant(
        "rows left out counted without bound",
        UNITS,
        "np.clip(sizes - max_rows, 0, most)",
        "np.maximum(sizes - max_rows, 0)",
        "units",
    ),
    Mutant(
        "rows left out said exactly",
        DISCOVERY,
        "return float(noisy[0]), stddev",
        "return float(exact[0]), stddev",
        "units",
    ),
    Mutant(
        "frames counted as they came, not bounded",
        "mechanisms/synthesis/units.py",
        "held[places].select",
        "held.select",
        "units",
    ),
    # Gaussian accounting.
    Mutant(
        "selections at their price of zCDP under Gaussian accounting",
        SCALES,
        "        return 2 * sensitivity / gaussian_dp.range_of(cost)",
        "        return 2 * sensitivity / math.sqrt(8 * cost)",
        "gaussian_accounting",
    ),
    Mutant(
        "permute-and-flip at the Gaussian price of the exponential mechanism",
        SCALES,
        "(1 if budget.pure else 2)",
        "(1 if budget.pure or budget.gaussian else 2)",
        "gaussian_accounting",
    ),
    Mutant(
        "a selection's range twice what its Gaussian price allows",
        GAUSSIAN,
        "return 4 * math.atanh(",
        "return 8 * math.atanh(",
        "gaussian_accounting",
    ),
    Mutant(
        "discrete noise taken for continuous",
        GAUSSIAN,
        "(shift * math.sqrt(1 - (shift / math.pi) ** 2))",
        "shift",
        "gaussian_accounting",
    ),
    Mutant(
        "Gaussian delta less the far tail twice",
        GAUSSIAN,
        "mills = erfcx(near / math.sqrt(2)) - erfcx(far / math.sqrt(2))",
        "mills = erfcx(near / math.sqrt(2)) - 2 * erfcx(far / math.sqrt(2))",
        "gaussian_accounting",
    ),
    Mutant(
        "zCDP runs in a ledger of Gaussian ones",
        LEDGER,
        "if self.budget.gaussian and not budget.gaussian:",
        "if False:",
        "gaussian_accounting",
    ),
    Mutant(
        "a mixture that selects taken for one that measures",
        "mechanisms/mixture.py",
        "return not workload.sought",
        "return True",
        "gaussian_accounting",
    ),
    # Discovery and open columns.
    Mutant(
        "discovery's delta not halved",
        DISCOVERY,
        "delta / neighbours.l1",
        "delta",
        "discovery",
    ),
    Mutant(
        "discovery's threshold a step too low",
        DISCOVERY,
        "return 1 + neighbours.max_rows - scale",
        "return neighbours.max_rows - 1 - scale",
        "discovery",
    ),
    Mutant(
        "unread values of several columns cost as one",
        DISCOVERY,
        'self._noisy("unread values", exact, self.neighbours.max_rows, cost)',
        'self._noisy("unread values", exact, self.neighbours.max_rows / len(exact), cost)',
        "unread",
    ),
    Mutant(
        "the number of rows beside unread values is exact",
        DISCOVERY,
        "noisy[-1] if self.public_total is None else self.public_total",
        "len(self._data)",
        "unread",
    ),
    Mutant("discovery without noise", DISCOVERY, "if noisy[i] > above", "if True", "discovery"),
    Mutant(
        "discoveries spend the reserved delta each",
        DISCOVERY,
        'threshold", cost, delta)',
        'threshold", cost)',
        "discovery",
    ),
    Mutant(
        "quantile edges from exact counts",
        "mechanisms/synthesis/open_columns.py",
        "cells = np.linalg.solve(matrix.T @ matrix, matrix.T @ noisy.values)",
        "cells = curator._data.marginals([(name,)])[(name,)].astype(float)",
        "discovery",
    ),
    Mutant(
        "auto counts the rows for nothing",
        "mechanisms/synthesis/pipeline.py",
        'return max(0, round(float(curator.measure((), cost, step="auto: measure").values[0])))',
        "return len(curator._data)",
        "units",
    ),
    Mutant(
        "an undeclared missing value of an open column is refused",
        "mechanisms/synthesis/open_columns.py",
        "schema.check_unread({name: tally[None]})",
        "Schema({name: OpenCategorical()}).check_unread({name: tally[None]})",
        "tables/test_neighbours",
    ),
    Mutant(
        "auto says the exact number of rows",
        "mechanisms/synthesis/pipeline.py",
        "request.choice(schema, workload, rows), schema",
        "request.choice(schema, workload, len(curator._data)), schema",
        "first_look",
    ),
    # The exact number of rows.
    Mutant(
        "exact n under add/remove for all",
        CHARGING,
        "return len(self._data) if self.neighbours.rows_public else None",
        "return len(self._data)",
    ),
    Mutant(
        "exact n in MST",
        "mechanisms/mst.py",
        f"estimator(domain, {TOTAL},",
        f"estimator(domain, {EXACT},",
    ),
    Mutant(
        "exact n in measure_one_way",
        "mechanisms/rounds/select_and_measure.py",
        "return max(1.0, estimate_total(first, curator.domain).value)",
        f"return max(1.0, float({EXACT}))",
    ),
    Mutant(
        "bins merged by their exact counts",
        "mechanisms/rounds/all_at_once.py",
        "np.bincount(places[name], one.counts).astype(float),",
        "np.bincount(places[name], curator._marginals([(name,)])[name,]).astype(float),",
        "merging",
    ),
    Mutant(
        "exact n in AIM",
        "mechanisms/aim.py",
        f"final = estimator(domain, {TOTAL},",
        f"final = estimator(domain, {EXACT},",
    ),
    Mutant(
        "exact n in MWEM+PGM",
        "mechanisms/mwem_pgm.py",
        f"estimator(domain, {TOTAL},",
        f"estimator(domain, {EXACT},",
    ),
    Mutant(
        "exact n in clique-tree",
        "mechanisms/clique_tree.py",
        f"estimator(domain, {TOTAL},",
        f"estimator(domain, {EXACT},",
    ),
    Mutant(
        "exact n in pair-graph",
        "mechanisms/pair_graph.py",
        f"estimator(domain, {TOTAL},",
        f"estimator(domain, {EXACT},",
    ),
    Mutant(
        "exact n in the matrix mechanism",
        "mechanisms/matrix.py",
        f"    total = {TOTAL}\n    whole =",
        f"    total = {EXACT}\n    whole =",
    ),
    Mutant(
        "exact n in the independent baseline",
        "mechanisms/baselines.py",
        f"estimator(curator.domain, {TOTAL},",
        f"estimator(curator.domain, {EXACT},",
    ),
    # One row decides how others are read, or whether the run succeeds.
    Mutant(
        "numbers of all kinds read together",
        "pgmkit/tables/bins.py",
        "elif isinstance(position, int) and self.whole:",
        "elif False:",
        "tables/test_company",
    ),
    Mutant(
        "one type for all objects of a column",
        "pgmkit/tables/values.py",
        'if held.dtype != object or infer_dtype(held, skipna=True) == "string":',
        "if True:",
        "tables/test_company",
    ),
    Mutant(
        "a value that Python does not have ends the run",
        "pgmkit/tables/values.py",
        "return [_object(each) for each in array]",
        "raise",
        "tables/test_company",
    ),
    Mutant(
        "values outside the schema are refused by default",
        "mechanisms/synthesis/request.py",
        "return self.schema if self.strict else self.schema.placed()",
        "return self.schema",
        "tables/test_neighbours",
    ),
    Mutant(
        "open columns are paid for before the mechanism refuses",
        "mechanisms/synthesis/pipeline.py",
        "dry_run(request, likely, schema, request.likely)",
        "pass",
        "refusals",
    ),
    # What is said.
    Mutant(
        "exact counts in the log",
        "mechanisms/dispatch.py",
        "    check_public(entry, public is not None)\n    workload",
        "    __import__('logging').getLogger('pgmkit').info('%d rows', len(curator._data))\n    workload",
    ),
    Mutant(
        "a changed release is read as if it were whole",
        "mechanisms/release/file.py",
        "if modified and not allow_modified:",
        "if False:",
        "untrusted",
    ),
    Mutant(
        "a seeded release is not marked",
        LEDGER,
        "        self._secure = secure\n        self.neighbours",
        "        self._secure = True\n        self.neighbours",
        "exact_noise",
    ),
)


_LONGEST_TEST = 20.0
"""Seconds of processor time that one of them may take, several times what it does."""


@contextmanager
def copy() -> Iterator[Path]:
    """A folder with the packages, the tests, and the examples that these register."""
    with tempfile.TemporaryDirectory() as folder:
        for part in ("pgmkit", "mechanisms", "tests", "examples"):
            shutil.copytree(
                ROOT / part, Path(folder, part), ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copy(ROOT / "pyproject.toml", folder)
        yield Path(folder)


@dataclass(frozen=True)
class Fate:
    """What became of a mutant: "caught" (by which test), "SURVIVED" or "STALE", in how long."""

    end: str
    test: str
    seconds: float


def fate(mutant: Mutant, tests: Collected, before: str = "") -> Fate:
    """Run the tests on code with the mistake. `before`: the test that caught it earlier."""
    sound = (tests.folder / mutant.file).read_text(encoding="utf-8")
    if sound.count(mutant.old) != 1:
        return Fate("STALE", "", 0.0)
    begun, own = time.monotonic(), f"{_path(mutant.first)}::"
    order = sorted(tests.items, key=lambda test: (_short(test) != before, not test.startswith(own)))
    change = mutant.file, sound.replace(mutant.old, mutant.new)
    failed = tests.outcome(dict.fromkeys(order, _LONGEST_TEST), change).failed
    seconds = round(time.monotonic() - begun, 1)
    return Fate("caught" if failed else "SURVIVED", _short(failed), seconds)


def _path(name: str) -> str:
    return f"tests/{name}.py" if "/" in name else f"tests/mechanisms/test_{name}.py"


def _short(test: str) -> str:
    """The name of a test as it is recorded."""
    return test.removeprefix("tests/").removeprefix("mechanisms/")


def run(
    words: tuple[str, ...] = (), each: Callable[[dict[str, Fate]], None] | None = None
) -> dict[str, Fate]:
    """What became of each mutant whose name holds one of the words; all without words.

    `each` is called with all of them so far.
    """
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    earlier = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    fates: dict[str, Fate] = {}

    def work(tests: Collected) -> None:
        for number, mutant in enumerate(chosen, 1):
            before = earlier.get(mutant.name, {}).get("test", "")
            fates[mutant.name] = found = fate(mutant, tests, before)
            told = f"{number}/{len(chosen)} {found.end} ({found.seconds:.0f} s): {mutant.name}"
            print(f"{told}: {found.test}", flush=True)
            if each is not None:
                each(fates)

    with copy() as folder:
        Collected(folder, work).collect([_path(name) for name in TESTS])
    return fates


def record(
    fates: Mapping[str, object],
    planted: Sequence[Mutant] = MUTANTS,
    table: Path = TABLE,
) -> None:
    """Write the table, with earlier fates of other mutants that are still there."""
    earlier = json.loads(table.read_text(encoding="utf-8")) if table.exists() else {}
    known = {**earlier, **{name: vars(found) for name, found in fates.items()}}
    rows = {mutant.name: known[mutant.name] for mutant in planted if mutant.name in known}
    table.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if "--list" in sys.argv:
        print("\n".join(mutant.name for mutant in MUTANTS))
    else:
        chosen = tuple(word for word in sys.argv[1:] if word != "--record")
        ends = run(chosen, record if "--record" in sys.argv else None)
        sys.exit(any(found.end != "caught" for found in ends.values()))
