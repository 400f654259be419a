"""The inequalities that the promise stands on, in exact fractions and with enclosures.

Each has its statement in docs/checks.md ("What is proven, and what a machine has checked"). Where
a parameter is continuous the argument that carries the check from its points to all others stands
in the docstring.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from exact import delta_of_mu, gap, log_delta_of_rho, normal, quantile, tail
from mpmath import mp, mpf

from mechanisms.privacy import gaussian_dp, noise_scales
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.conversions import rho_from_epsilon
from mechanisms.privacy.discovery import threshold
from mechanisms.privacy.integer_matrix import GridMatrix
from mechanisms.privacy.ledger import BudgetExceeded, Ledger
from mechanisms.privacy.neighbours import NEIGHBOURS, relation
from pgmkit.runtime.precision import SUM_ROUNDING

ROUNDING = Fraction(1, 10**12)
"""What rounding may add to a cost, as a share of it; the ledger allows as much of a total."""
EPSILONS = [1e-4, 0.01, 0.1, 0.5, 1.0, 3.0, 10.0, 40.0, 300.0]
DELTAS = [1e-200, 1e-30, 1e-15, 1e-9, 1e-6, 1e-3, 0.3]
COSTS = [float(c) for c in np.geomspace(1e-10, 60, 60)]
COUNTED = Budget(1.0, 1e-6)
GAUSSIAN = Budget(1.0, 1e-6, accounting="gaussian")


def test_the_discrete_gaussian_costs_no_more_than_is_charged_in_gaussian_privacy() -> None:
    """mu^2 (1 - mu^2 / pi^2) <= 1 / s^2 for every gap mu, at scales from 2/pi to 1.3, all of them.

    Tails grow with the scale, so a gap over an interval of scales is at most the quantile at its
    lower end less the one at its upper end. What is allowed falls as the scale grows. Gaps beyond
    the fourth and larger scales are left to the proof in `gaussian_dp`, whose numbers for all of
    them follow below.
    """
    low, width = 2 / mp.pi - mpf("1e-6"), mpf("0.002")
    while low < mpf("1.3"):
        high = low + width
        allowed = allowed_shift(high)
        worst = max(gap(low, k, high) for k in range(4))
        if worst > allowed and width > mpf("1e-5"):
            width /= 2
            continue
        assert worst <= allowed, f"between the scales {low} and {high}"
        low, width = high, min(mpf("0.004"), 2 * width)


@pytest.mark.parametrize("scale", ["0.64", "1", "1.7", "4", "20"])
def test_all_gaps_at_single_scales(scale: str) -> None:
    """Each gap up to one whose tail has a mass of e^-200, far beyond the longest."""
    s = mpf(scale)
    allowed = allowed_shift(s)
    assert max(gap(s, k) for k in range(min(int(20 * s), 60) + 1)) <= allowed


def allowed_shift(scale: mpf) -> mpf:
    """The smaller mu with mu^2 (1 - mu^2 / pi^2) = 1 / s^2, from below; pi / sqrt(2) at most."""
    inner = max(mpf(0), 1 - 4 / (mp.pi * scale) ** 2)
    return mp.pi * mp.sqrt((1 - mp.sqrt(inner)) / 2) * (1 - mpf(10) ** -25)


def test_no_gap_is_as_long_as_the_proof_must_exclude() -> None:
    """All gaps are shorter than c = pi / sqrt(2), at all scales from 2 / pi on, without a last one.

    The numbers of the proof in `gaussian_dp`. A gap k >= 1 begins at y = (k - 1) / s or further
    out; its length is less than c where 1 / (1 + exp(y / s + 3 / (2 s^2))) is above
    Q(y + c) / Q(y). The former's logarithm falls by 1 / s at most for a step of 1 in y, and with s
    all of it rises; the latter's falls by c times the slope of the hazard at least, which rises.
    So either comparison at one y and the largest 1 / s holds for all larger y and s.
    """
    c = mp.pi / mp.sqrt(2)
    assert 2 * quantile((1 - mp.sqrt(mp.pi / 8)) / 2, mpf(1)).high < mpf("1.79") < c
    # All k >= 1 at s >= 1; k >= 4 at s >= 2 / pi. Those of k < 4 below 1.3 are enclosed above.
    for y, inverse in [(mpf(0), mpf(1)), (mpf(3), mp.pi / 2)]:
        kept = 1 / (1 + mp.exp(y * inverse + 3 * inverse**2 / 2))
        assert kept > 2 * normal(-y - c).high / normal(-y).low
        hazard = density(y) / normal(-y).high
        assert c * hazard * (hazard - y) > inverse * mpf("1.2")


@pytest.mark.parametrize("scale", ["0.6366198", "0.7", "1", "1.3", "2.5", "30"])
def test_gaps_begin_and_end_where_the_proof_says(scale: str) -> None:
    """P(X >= k) <= Q((k - 1) / s), and the share of it beyond k, of the law itself."""
    s = mpf(scale)
    assert 1 - 2 * tail(s, 1).high <= 1 / (s * mp.sqrt(2 * mp.pi))
    for k in range(1, min(int(8 * s), 60) + 2):
        assert tail(s, k).high <= normal(-(k - 1) / s).low
        odds = mp.exp((2 * k + 1) / (2 * s**2))
        assert tail(s, k + 1).low >= tail(s, k).high / (1 + odds)


@pytest.mark.parametrize("l2", [1.0, math.sqrt(2), 3.0, 4 * math.sqrt(2), 1e5])
def test_scales_of_additive_noise_are_no_smaller_than_their_prices_say(l2: float) -> None:
    """l2^2 / (2 s^2) <= cost in fractions; and mu^2 / 2 <= cost where the accounting is Gaussian.

    A square root rounds alike for costs that differ by a power of four, so that costs between
    0.25 and 4 stand for all others; here are 4,000 of them, and 60 from 10^-10 to 60.
    """
    rng = np.random.default_rng(0)
    for cost in [*COSTS, *(float(each) for each in rng.uniform(0.25, 4, 4000))]:
        s = Fraction(noise_scales.additive(COUNTED, 1.0, l2, cost))
        assert Fraction(l2) ** 2 <= 2 * s**2 * Fraction(cost) * (1 + ROUNDING)
        laplace = Fraction(noise_scales.additive(Budget(1.0), l2, 1.0, cost))
        assert Fraction(l2) <= laplace * Fraction(cost) * (1 + ROUNDING)
    for cost in COSTS:
        scale = mpf(noise_scales.additive(GAUSSIAN, 1.0, l2, cost))
        assert scale >= 2 / mp.pi * (1 - mpf(10) ** -15)
        mu = allowed_shift(max(scale, 2 / mp.pi)) * l2
        # Near 2 / pi the shift goes with the root of what rounding leaves of a difference.
        rounding = mpf(10) ** -7 if scale < mpf("0.7") else mpf(10) ** -12
        assert mu**2 / 2 <= mpf(cost) * (1 + rounding)


def test_selections_are_priced_at_the_worst_of_all_draws_of_their_range() -> None:
    """z(y + r) - z(y) <= 2 z(r / 2), since z is odd and concave above 0.

    That is D(y) = n (2 N - 1) - y N (1 - N) >= 0 for all y >= 0, with the normal density n and
    distribution N. D(0) = 0, and D' = 2 n^2 - N (1 - N) is above 0 up to 0.01, where n is at least
    n(0.01) and N (1 - N) at most 1/4. From there to 30: with Q = 1 - N and R = Q / n, D / n is
    1 - 2 Q - y R (1 - Q), in which Q falls and y R rises (R >= y / (1 + y^2)), so that the ends of
    an interval bound it. Beyond 30, y R <= (y^2 + 2) / (y^2 + 3) leaves 1 / (y^2 + 3), which is
    more than 2 exp(-y^2 / 2), and that more than 2 Q; their ratio only falls.
    """
    assert 2 * density(mpf("0.01")) ** 2 > mpf(1) / 4
    low, width = mpf("0.01"), mpf("0.01")
    while low < 30:
        high = low * (1 + width)
        upper_low, upper_high = normal(-low), normal(-high)
        most = high * upper_high.high / density(high) * (1 - upper_high.low)
        if 1 - 2 * upper_low.high - most <= 0:
            width /= 2
            assert width > mpf("1e-6"), f"D is not above 0 at {low}"
            continue
        low, width = high, min(mpf("0.1"), 2 * width)
    assert 1 / (low**2 + 3) > 2 * mp.exp(-(low**2) / 2)


def density(x: mpf) -> mpf:
    """The normal density."""
    return mp.exp(-(x**2) / 2) / mp.sqrt(2 * mp.pi)


def test_scales_of_selections_are_no_smaller_than_their_prices_say() -> None:
    """mu^2 / 2 <= cost for mu = 2 z(r / 2), at the range that `exponential` allows for a cost."""
    for cost in COSTS:
        r = 2 / mpf(noise_scales.exponential(GAUSSIAN, 1.0, cost))
        mu = 2 * quantile(1 / (1 + mp.exp(r / 2)), mp.sqrt(2 * mpf(cost)) / 2).high
        assert mu**2 / 2 <= mpf(cost) * (1 + mpf(10) ** -9), cost
        assert mpf(cost) <= mp.pi / 2 * r**2 / 8 * (1 + mpf(10) ** -9)
        flip = 4 / mpf(noise_scales.permute_and_flip(GAUSSIAN, 1.0, cost))
        assert abs(flip - r) <= r * mpf(10) ** -14
    for cost in COSTS:
        zcdp = 2 / Fraction(noise_scales.exponential(COUNTED, 1.0, cost))
        assert zcdp**2 / 8 <= Fraction(cost) * (1 + ROUNDING)
        flip_zcdp = 2 / Fraction(noise_scales.permute_and_flip(COUNTED, 1.0, cost))
        assert flip_zcdp**2 / 2 <= Fraction(cost) * (1 + ROUNDING)
        for count in (1, 3, 50):
            each = 2 / Fraction(noise_scales.exponential(COUNTED, 1.0, cost / count))
            assert count * each**2 / 8 <= Fraction(cost) * (1 + ROUNDING)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_totals_imply_the_promise(epsilon: float) -> None:
    """The delta of each total is no more than the promise's; of Gaussian privacy exactly.

    Both deltas grow with the total and fall with epsilon, so a total that is right at an epsilon
    and a delta is right for larger ones.
    """
    for delta in DELTAS:
        rho = mpf(rho_from_epsilon(epsilon, delta))
        # The best order solves (2 a - 1) rho - epsilon + log(1 - 1 / a) = 0; any other is valid.
        orders = [1 + mpf(10) ** mpf(float(t)) for t in np.linspace(-6, 9, 600)]
        at = min(orders, key=lambda order: log_delta_of_rho(rho, mpf(epsilon), order))
        for _ in range(60):
            slope = (2 * at - 1) * rho - mpf(epsilon) + mp.log1p(-1 / at)
            at = max(1 + (at - 1) / 2, at - slope / (2 * rho + 1 / (at * (at - 1))))
        shown = log_delta_of_rho(rho, mpf(epsilon), at)
        assert shown <= mp.log(mpf(delta)) + mpf(10) ** -9 * max(1, mpf(epsilon))
        mu = mp.sqrt(2 * mpf(gaussian_dp.largest_cost(epsilon, delta)))
        assert delta_of_mu(mu, mpf(epsilon)).high <= mpf(delta)


@pytest.mark.parametrize("epsilon", [1e-30, 1e-20, 1e-12, 1e-8, 1e-6])
def test_totals_of_tiny_budgets_imply_the_promise(epsilon: float) -> None:
    """Here the two terms of delta agree in nearly all digits."""
    with mp.workdps(300):
        for delta in DELTAS:
            mu = mp.sqrt(2 * mpf(gaussian_dp.largest_cost(epsilon, delta)))
            near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
            shown = mp.ncdf(-near) - mp.exp(epsilon) * mp.ncdf(-far)
            assert 1 - mpf(10) ** -8 < shown / mpf(delta) <= 1


def test_the_rounding_of_a_small_delta_is_below_what_is_set_aside_for_it() -> None:
    """Between 1e-5 and 1.5e-5 the difference of two ratios was low by up to 1.07e-9."""
    with mp.workdps(50):
        for mu, near in itertools.product(np.geomspace(9e-6, 3e-4, 60), np.linspace(30, 37, 10)):
            epsilon = float((near + mu / 2) * mu)
            exact, at = mpf(epsilon) / mpf(mu), mpf(mu) / 2
            true = mp.ncdf(at - exact) - mp.exp(mpf(epsilon)) * mp.ncdf(-at - exact)
            assert abs(gaussian_dp.delta_from_mu(float(mu), epsilon) / true - 1) < SUM_ROUNDING


@pytest.mark.parametrize(
    ("mu", "epsilon", "delta"),
    [(1e-310, 1.0, 0.0), (1e-200, 1e-3, 0.0), (1.0, 1e300, 0.0), (1e200, 1.0, 1.0)],
)
def test_delta_does_not_overflow(mu: float, epsilon: float, delta: float) -> None:
    assert gaussian_dp.delta_from_mu(mu, epsilon) == delta


def test_a_value_of_one_unit_is_discovered_no_more_often_than_its_delta() -> None:
    """P(X > threshold - rows) <= delta / values, of the discrete law itself."""
    for scale in (0.7, 1.0, 3.3, 12.0):
        for delta in (1e-12, 1e-6, 0.01):
            for name, most in itertools.product(NEIGHBOURS, (1, 2, 5)):
                units = relation(name, "who", most)
                above = threshold(scale, delta, units) - units.max_rows
                found = tail(mpf(scale), max(0, math.floor(above) + 1)).high
                assert found <= mpf(delta) / units.l1


def placements(rows: int, cells: int) -> list[tuple[int, ...]]:
    """All tables of so many rows."""
    if cells == 1:
        return [(rows,)]
    return [
        (first, *rest) for first in range(rows + 1) for rest in placements(rows - first, cells - 1)
    ]


@pytest.mark.parametrize("most", [1, 2, 3, 4])
@pytest.mark.parametrize("name", NEIGHBOURS)
def test_units_move_tables_and_answers_by_no_more_than_is_stated(name: str, most: int) -> None:
    """All pairs of units of up to four rows in four cells, in integers, and that bounds are met.

    More cells change nothing: rows of two units lie in the cells of both, and to join cells in
    which one has no rows changes no norm of the difference by more than it had.
    """
    units = relation(name, "who", most)
    own = [p for rows in range(1, most + 1) for p in placements(rows, 4)]
    nobody = [(0,) * 4]
    pairs = itertools.product(own, own if units.exchanged else nobody)
    moves = {tuple(a - b for a, b in zip(one, two, strict=True)) for one, two in pairs}
    assert max(sum(map(abs, move)) for move in moves) == units.l1
    largest = max(sum(each**2 for each in move) for move in moves)
    assert largest == round(units.l2**2) and Fraction(units.l2) ** 2 >= largest * (1 - ROUNDING)
    assert max(max(map(abs, move)) for move in moves) == units.max_rows
    assert units.rows_public == all(sum(move) == 0 for move in moves)
    rng = np.random.default_rng(most)
    for _ in range(40):
        entries = [rng.integers(-9, 10, (int(rng.integers(1, 5)), 4)).astype(float)]
        if not entries[0].any():
            continue
        grid = GridMatrix.rounded(entries)
        factor = [[int(each) for each in row] for row in grid.factors[0]]
        answers = [[sum(a * b for a, b in zip(r, m, strict=True)) for r in factor] for m in moves]
        l1 = units.largest_move(grid.l1)
        assert max(sum(map(abs, each)) for each in answers) <= l1
        l2 = units.largest_move(lambda differ, g=grid: g.l2_squared(differ) ** 0.5)
        assert max(sum(v**2 for v in each) for each in answers) <= Fraction(l2) ** 2 * (
            1 + ROUNDING
        )


@pytest.mark.parametrize("seed", range(4))
def test_no_order_of_runs_and_charges_spends_more_than_the_total(seed: int, tmp_path: Path) -> None:
    """The exact sum of all charges of a ledger file, whatever runs begin, charge and end.

    A run may pass what it holds by a 10^-12th, and runs hold together no more than the total and
    its 10^-12th, so all charges are within (1 + 10^-12)^2 of the total.
    """
    rng = np.random.default_rng(seed)
    file = Ledger.create(tmp_path / "all", Budget(1.0, 1e-6), neighbours="add/remove")
    total, charges, refused = file.budget.total, [Fraction(0)], 0
    runs: list[Ledger] = []
    for _ in range(150):
        kind = rng.random()
        try:
            if kind < 0.25:
                epsilon = float(rng.choice([0.05, 0.2, 0.5]))
                runs.append(
                    Ledger(Budget(epsilon, 1e-6), neighbours="add/remove", across_runs=file)
                )
            elif kind < 0.4 and runs:
                runs.pop(int(rng.integers(len(runs)))).close()
            elif kind < 0.5:
                cost = float(rng.choice([total / 13, file.remaining or total, total / 3]))
                file.charge("by hand", "discrete Gaussian", cost)
                charges.append(Fraction(cost))
            elif runs:
                run = runs[int(rng.integers(len(runs)))]
                cost = float(rng.choice([run.budget.total / 7, run.remaining or 1.0, 1e-9]))
                run.charge("step", "discrete Gaussian", cost)
                charges.append(Fraction(cost))
        except BudgetExceeded:
            refused += 1
        assert sum(charges) <= Fraction(total) * (1 + ROUNDING) ** 2
    assert refused and sum(charges) > Fraction(total) / 2


def test_equal_shares_and_the_rest_can_always_be_spent() -> None:
    """n shares of a total, and the rest after any charges: exact sums are within its 10^-12th."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        budget = Budget(float(rng.uniform(0.01, 20)), 1e-6)
        ledger = Ledger(budget)
        parts = int(rng.integers(1, 40))
        for _ in range(parts):
            ledger.charge("share", "discrete Gaussian", budget.total / parts * rng.choice([1, 0.5]))
        if ledger.remaining > 0:
            ledger.charge("rest", "discrete Gaussian", ledger.remaining)
        assert ledger.spent <= budget.total * (1 + 1e-12)
        exact = sum(Fraction(entry.cost) for entry in ledger.entries)
        assert exact <= Fraction(budget.total) * (1 + ROUNDING)
