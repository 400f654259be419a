"""Random small estimation problems, ordinary and extreme, with a reference that needs no pgmkit.

The joint distribution is written out: a problem is to minimise the sum of phi((A x - y) / s) over
tables x >= 0 of the given total. Everything here is computed in ``np.longdouble`` (64 bits of
mantissa on x86), eleven bits more than the library has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import prod

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from pgmkit import Domain, Measurement
from pgmkit.linear.kronecker import Kronecker

Wide = NDArray[np.longdouble]

MOST_CELLS = 60
HELD = 2.0**-49
"""Least noise of a value beside the total, see ``draw``."""
ULPS = 16.0
"""By how many units in its last place a sum of the model's cells may be off."""
WIDTH = 1.345
"""Where the Huber loss turns from a parabola to a line."""
STEEPEST = {"squared": np.inf, "absolute": np.sqrt(np.longdouble(2)), "huber": WIDTH}


@dataclass(frozen=True)
class SmallProblem:
    domain: Domain
    measurements: list[Measurement]
    loss: str
    total: float
    extreme: bool

    @cached_property
    def rows(self) -> Wide:
        """The standardised rows of all measurements over the joint's cells."""
        return np.vstack([_joint_rows(self.domain, m) for m in self.measurements])

    @cached_property
    def target(self) -> Wide:
        parts = [m.values.astype(np.longdouble) / m.stddev for m in self.measurements]
        return np.concatenate(parts)

    @property
    def unit(self) -> float:
        """The loss's own standard deviation at the truth, as in ``estimate``."""
        rows = len(self.target)
        return float(np.sqrt(rows if self.loss == "absolute" else rows / 2))

    def value(self, table: Wide) -> float:
        """The loss of a joint table in counts."""
        residual = np.abs(self.rows @ table - self.target)
        if self.loss == "squared":
            return float(np.sum(residual * residual) / 2)
        if self.loss == "absolute":
            return float(np.sum(residual) * STEEPEST["absolute"])
        inner = np.minimum(residual, WIDTH)
        return float(np.sum(inner * (residual - inner / 2)))

    def resolution(self, table: Wide) -> float:
        """What a few units in the last place of every sum of cells do to the loss."""
        size = np.abs(self.rows) @ table + np.abs(self.target)
        shift = ULPS * np.finfo(np.float64).eps * size
        residual = np.abs(self.rows @ table - self.target)
        if self.loss == "absolute":
            return float(np.sum(shift) * STEEPEST["absolute"])
        slope = np.minimum(residual + shift / 2, STEEPEST[self.loss])
        return float(np.sum(slope * shift))


def _joint_rows(domain: Domain, m: Measurement) -> Wide:
    cells = domain.size()
    place = domain.cell_map(domain.attributes, m.clique)
    projection = np.zeros((prod(domain.sizes[name] for name in m.clique), cells))
    projection[place, np.arange(cells)] = 1.0
    return (_matrix(m.matrix, len(projection)) @ projection).astype(np.longdouble) / m.stddev


def _matrix(matrix: object, cells: int) -> NDArray[np.float64]:
    if matrix is None:
        return np.eye(cells)
    if isinstance(matrix, Kronecker):
        return matrix.to_dense()
    return matrix.toarray() if scipy.sparse.issparse(matrix) else np.asarray(matrix)


def draw(seed: int) -> SmallProblem:
    """A random problem: up to 60 cells, cyclic or not, every loss and kind of matrix.

    Half are ordinary. In the extreme half totals go to 1e12 and each measurement has a noise
    between 1e-6 and 1e9, but not below 2^-49 of the total times its matrix's largest entry: a
    count of 1e12 is stored in steps of 1e-4, so less noise than that weighs the storage's
    rounding, not the measurement. Some tables are outliers, some totals contradict the tables.
    """
    rng = np.random.default_rng(seed)
    domain = _draw_domain(rng)
    cliques = _draw_cliques(rng, domain.attributes)
    loss, extreme = str(rng.choice(["squared", "absolute", "huber"])), bool(rng.random() < 0.5)
    total = 10.0 ** rng.uniform(0, 12) if extreme else float(rng.choice([20.0, 1e3, 1e5]))
    shape = tuple(domain.sizes.values())
    alpha = float(rng.choice([0.05, 0.3, 1.0, 10.0]))
    truth = total * rng.dirichlet(np.full(prod(shape), alpha)).reshape(shape)
    noise, noisy = total * 10.0 ** rng.uniform(-3, -0.5), bool(rng.random() < 0.8)
    measurements = []
    for clique in cliques:
        stddev = 10.0 ** rng.uniform(-6, 9) if extreme else noise * rng.choice([0.3, 1.0, 3.0])
        matrix = _draw_matrix(rng, domain, clique)
        cells = prod(domain.sizes[name] for name in clique)
        dense = _matrix(matrix, cells)
        stddev = max(float(stddev), HELD * total * float(np.abs(dense).max()))
        others = tuple(i for i, name in enumerate(domain) if name not in clique)
        held = [name for name in domain if name in clique]
        marginal = truth.sum(axis=others).transpose([held.index(name) for name in clique])
        values = dense @ marginal.reshape(-1)
        if noisy:
            values = values + stddev * rng.normal(size=values.shape)
        if rng.random() < 0.05:
            values = values + total * rng.normal(size=values.shape)
        measurements.append(Measurement(clique, values, stddev, matrix))
    if rng.random() < 0.1:
        total *= float(rng.choice([0.9, 1.1, 0.5]))
    return SmallProblem(domain, measurements, loss, float(total), extreme)


def _draw_domain(rng: np.random.Generator) -> Domain:
    while True:
        count = int(rng.integers(1, 6))
        sizes = [int(size) for size in rng.integers(1, 7, count)]
        if rng.random() < 0.3:
            sizes = [int(rng.integers(2, 4))] * count
        if prod(sizes) <= MOST_CELLS:
            return Domain(dict(zip("abcde"[:count], sizes, strict=True)))


def _draw_cliques(rng: np.random.Generator, names: tuple[str, ...]) -> list[tuple[str, ...]]:
    if len(names) >= 3 and rng.random() < 0.4:
        return list(combinations(names, 2))
    found = []
    for _ in range(int(rng.integers(1, 8))):
        width = int(rng.integers(1, min(len(names), 3) + 1))
        found.append(tuple(rng.permutation(list(names))[:width].tolist()))
    return found


def _draw_matrix(rng: np.random.Generator, domain: Domain, clique: tuple[str, ...]) -> object:
    sizes = [domain.sizes[name] for name in clique]
    cells = prod(sizes)
    kind = str(rng.choice(["none", "none", "prefix", "kronecker", "sparse", "dense"]))
    if kind == "prefix":
        return Kronecker([np.tril(np.ones((size, size))) for size in sizes])
    if kind == "kronecker":
        return Kronecker([rng.normal(size=(int(rng.integers(1, n + 2)), n)) for n in sizes])
    if kind == "sparse":
        picked = rng.random((int(rng.integers(1, 2 * cells + 1)), cells)) < 0.3
        picked[0, 0] |= not picked.any()
        return scipy.sparse.csr_array(picked * rng.choice([1.0, 1.0, -1.0, 0.5]))
    if kind == "dense":
        return rng.normal(size=(int(rng.integers(1, cells + 3)), cells))
    return None


@dataclass(frozen=True)
class Reference:
    """A joint table, its loss, and by how much at most that exceeds the least possible."""

    table: Wide
    value: float
    gap: float


def reference(problem: SmallProblem, precision: float = 1e-3) -> Reference:
    """The optimum to within ``precision`` units, or as near as 64 bits of mantissa get.

    By a primal-dual interior point method on the cells' shares p, one saddle point for all losses:

        min over p in the simplex, max over |u| <= h, of  u'G p - c u'u / 2,

    with G the rows times the total less the targets; c = 0, h = sqrt 2 for the absolute loss,
    c = 1, h = infinity for the squared one, c = 1, h = 1.345 for Huber's.
    """
    search = _InteriorPoint(problem)
    best = search.reached()
    if len(best.table) == 1:
        return Reference(best.table, best.value, 0.0)
    for _ in range(_MOST_STEPS):
        if best.gap <= precision * problem.unit or not search.step():
            break
        best = min(best, search.reached(), key=lambda each: each.value)
    return Reference(best.table, best.value, max(best.value - search.bound, 0.0))


def clarabel_table(problem: SmallProblem) -> Wide | None:
    """The joint table that cvxpy with Clarabel finds, if it finds one.

    In shares of the total, rows scaled to entries of at most 1. On extreme problems it often stops
    far from the optimum, so that it is one reference of two.
    """
    import cvxpy as cp

    total, rows = problem.total, problem.rows.astype(np.float64)
    scale = np.maximum(np.abs(rows).max(axis=1) * total, 1e-300)
    shares, largest = cp.Variable(rows.shape[1], nonneg=True), scale.max()
    game, target = rows * total / scale[:, None], problem.target.astype(np.float64) / scale
    residual = cp.multiply(scale / largest, game @ shares - target)
    objective = {
        "squared": cp.sum_squares,
        "absolute": cp.norm1,
        "huber": lambda each: cp.sum(cp.huber(each, WIDTH / largest)),
    }[problem.loss](residual)
    search = cp.Problem(cp.Minimize(objective), [cp.sum(shares) == 1])
    tight = {"tol_gap_abs": 1e-14, "tol_gap_rel": 1e-12, "tol_feas": 1e-12, "max_iter": 400}
    try:
        search.solve(solver=cp.CLARABEL, **tight)
    except cp.error.SolverError:
        return None
    if shares.value is None or not np.isfinite(shares.value).all():
        return None
    found = np.maximum(shares.value, 0).astype(np.longdouble)
    return found / found.sum() * np.longdouble(total)


_MOST_STEPS = 120


class _InteriorPoint:
    """Mehrotra's predictor and corrector.

    ``above`` and ``below`` are the multipliers of u <= h and u >= -h, ``slack`` that of p >= 0,
    ``level`` that of sum p = 1. ``upper`` and ``lower`` are u's distances to its bounds, kept apart
    because they get far smaller than the rounding of u.
    """

    def __init__(self, problem: SmallProblem) -> None:
        self.problem, self.total = problem, np.longdouble(problem.total)
        self.game = problem.rows * self.total - problem.target[:, None]
        cells = self.game.shape[1]
        self.curvature = 0.0 if problem.loss == "absolute" else 1.0
        self.steepest = STEEPEST[problem.loss]
        self.bounded = bool(np.isfinite(self.steepest))
        self.shares = np.full(cells, np.longdouble(1) / cells)
        residual = self.game @ self.shares
        self.dual, self.above, self.below = residual, 0 * residual, 0 * residual
        if self.bounded:
            size = np.abs(residual).max() + 1
            self.dual = self.steepest * residual / (self.steepest + 2 * size)
            left = residual - self.curvature * self.dual
            self.above, self.below = np.maximum(left, 0) + size, np.maximum(-left, 0) + size
        self.upper, self.lower = self.steepest - self.dual, self.steepest + self.dual
        slopes = self.dual @ self.game
        self.level = np.ptp(slopes) + 1 - slopes.min()
        self.slack = slopes + self.level
        self.bound = 0.0

    def reached(self) -> Reference:
        """The table so far; raises the lower bound."""
        table = self.shares / self.shares.sum() * self.total
        value, least = self.problem.value(table), (self.dual @ self.game).min()
        self.bound = max(self.bound, float(least - self.curvature * (self.dual @ self.dual) / 2))
        return Reference(table, value, value - self.bound)

    def step(self) -> bool:
        """One step; False when rounding leaves nothing to gain."""
        previous = self._centrality()
        with np.errstate(all="ignore"):
            self._factorise()
            guess = self._way(np.longdouble(0), None)
            shrink = self._centrality(guess, self._longest(guess)) / previous
            way = self._way(previous * min(shrink, 1) ** 3, guess)
            if not all(np.isfinite(each).all() for each in way):
                return False
            share = min(1.0, 0.99 * self._longest(way))
        for name, change in zip(_PARTS, way, strict=True):
            setattr(self, name, getattr(self, name) + share * change)
            if name == "dual":
                self.upper, self.lower = self.upper - share * change, self.lower + share * change
        return share > 1e-6

    def _pairs(self) -> list[tuple[Wide, str, Wide, str, int]]:
        """Every pair of a distance to a bound and its multiplier."""
        pairs = [(self.shares, "shares", self.slack, "slack", 1)]
        if self.bounded:
            pairs.append((self.upper, "dual", self.above, "above", -1))
            pairs.append((self.lower, "dual", self.below, "below", 1))
        return pairs

    def _centrality(self, way: tuple[Wide, ...] | None = None, share: float = 0.0) -> np.longdouble:
        change = dict(zip(_PARTS, way, strict=True)) if way is not None else None
        total, count = np.longdouble(0), 0
        for distance, of, multiplier, name, sign in self._pairs():
            if change is not None:
                distance = distance + sign * share * change[of]
                multiplier = multiplier + share * change[name]
            total, count = total + distance @ multiplier, count + len(distance)
        return total / count

    def _longest(self, way: tuple[Wide, ...]) -> float:
        change, longest = dict(zip(_PARTS, way, strict=True)), 1.0
        for distance, of, multiplier, name, sign in self._pairs():
            for value, by in [(distance, sign * change[of]), (multiplier, change[name])]:
                falls = by < 0
                if falls.any():
                    longest = min(longest, float((value[falls] / -by[falls]).min()))
        return longest

    def _factorise(self) -> None:
        """The square roots of both sides' weights, and the reduced system's factors.

        With p = y / sqrt(slack / shares) the rows of y are a unit matrix; a reflection turns the
        constraint that the change of p sums to zero into y[0] = 0.
        """
        weights = np.full(len(self.dual), np.longdouble(self.curvature))
        if self.bounded:
            weights += self.above / self.upper
            weights += self.below / self.lower
        self.weights, self.scale = weights, np.sqrt(self.shares / self.slack)
        self.normal = self.scale.copy()
        self.normal[0] += np.sqrt(self.scale @ self.scale)
        self.normal /= np.sqrt(self.normal @ self.normal)
        rows = self.game * self.scale / np.sqrt(weights)[:, None]
        tall = np.vstack([rows, np.eye(len(self.scale), dtype=np.longdouble)])
        tall = tall - 2 * np.outer(tall @ self.normal, self.normal)
        self.qr = _Reflections(tall[:, 1:])

    def _way(self, centre: np.longdouble, guess: tuple[Wide, ...] | None) -> tuple[Wide, ...]:
        """The direction to complementary products ``centre``, corrected for the guess's own."""
        second = dict(zip(_PARTS, guess, strict=True)) if guess is not None else None
        lacks = []
        for distance, of, multiplier, name, sign in self._pairs():
            lack = centre - distance * multiplier
            lacks.append(lack if second is None else lack - sign * second[of] * second[name])
        uneven = self.slack - self.dual @ self.game - self.level
        force = self.curvature * self.dual - self.game @ self.shares + self.above - self.below
        if self.bounded:
            force += lacks[1] / self.upper
            force -= lacks[2] / self.lower
        pull = uneven + lacks[0] / self.shares
        right = np.concatenate([force / np.sqrt(self.weights), pull * self.scale])
        inner = np.concatenate([np.zeros(1, dtype=np.longdouble), self.qr.solve(right)])
        inner -= 2 * self.normal * (self.normal @ inner)
        shares = self.scale * inner
        dual = (self.game @ shares - force) / self.weights
        slack = (lacks[0] - self.slack * shares) / self.shares
        change = slack - dual @ self.game + uneven
        level = change[self.shares.argmax()]
        above, below = np.zeros_like(dual), np.zeros_like(dual)
        if self.bounded:
            above = (lacks[1] + self.above * dual) / self.upper
            below = (lacks[2] - self.below * dual) / self.lower
        return shares, slack, dual, above, below, level


_PARTS = ("shares", "slack", "dual", "above", "below", "level")


class _Reflections:
    """Least squares by Householder reflections with pivoting, largest rows first."""

    def __init__(self, matrix: Wide) -> None:
        self.order = np.argsort(-np.abs(matrix).max(axis=1), kind="stable")
        work, columns = matrix[self.order].copy(), matrix.shape[1]
        self.pivots, self.normals = np.arange(columns), []
        for place in range(columns):
            sizes = (work[place:, place:] ** 2).sum(axis=0)
            other = place + int(sizes.argmax())
            work[:, [place, other]] = work[:, [other, place]]
            self.pivots[[place, other]] = self.pivots[[other, place]]
            normal = work[place:, place].copy()
            normal[0] += np.copysign(np.sqrt(normal @ normal), normal[0])
            normal /= np.sqrt(normal @ normal)
            work[place:, place:] -= 2 * np.outer(normal, normal @ work[place:, place:])
            self.normals.append(normal)
        self.triangle = work[:columns]

    def solve(self, right: Wide) -> Wide:
        right = right[self.order].copy()
        for place, normal in enumerate(self.normals):
            right[place:] -= 2 * normal * (normal @ right[place:])
        found = right[: len(self.pivots)].copy()
        for place in reversed(range(len(found))):
            found[place] /= self.triangle[place, place]
            found[:place] -= found[place] * self.triangle[:place, place]
        result = np.empty_like(found)
        result[self.pivots] = found
        return result
