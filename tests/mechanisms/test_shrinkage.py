"""Tables drawn near independence, against linear algebra and by their risk on drawn truths."""

import itertools
import tracemalloc
from collections import Counter
from functools import partial

import numpy as np
import pytest
from chance import DEVIATIONS
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, optimize
from scipy.stats import norm

from mechanisms.families.shrinkage import (
    all_hidden,
    all_stay_hidden,
    beyond_noise,
    independent_columns,
    near_independence,
    smoothed,
)
from pgmkit.domain import Domain
from pgmkit.measurement import Measurement

TOTAL = 1000.0


def drawn(sizes: list[int], seed: int, stddev: float) -> tuple[Domain, np.ndarray, list]:
    """A dependent distribution in counts; noisy measurements of single columns and of all."""
    rng = np.random.default_rng(seed)
    domain = Domain({f"x{i}": size for i, size in enumerate(sizes)})
    truth = rng.dirichlet(np.full(domain.size(), 0.7)).reshape(sizes) * TOTAL
    axes = range(len(sizes))
    noisy = [
        Measurement(
            (f"x{i}",),
            truth.sum(axis=tuple(j for j in axes if j != i)) + rng.normal(0, stddev, sizes[i]),
            stddev,
        )
        for i in axes
    ]
    noisy.append(Measurement(tuple(domain), truth + rng.normal(0, stddev, sizes), stddev))
    return domain, truth, noisy


def main_effects(sizes: list[int]) -> np.ndarray:
    """A column for each value of each attribute over the flattened table."""
    places = np.indices(sizes).reshape(len(sizes), -1)
    return np.stack(
        [(places[i] == v).astype(float) for i, size in enumerate(sizes) for v in range(size)],
        axis=1,
    )


@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=3),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.1, 3.0, 50.0]),
    st.sampled_from([0.0, 0.3, 1.0]),
)
def test_the_mean_is_that_of_linear_algebra(
    sizes: list[int], seed: int, stddev: float, strength: float
) -> None:
    domain, _, noisy = drawn(sizes, seed, stddev)
    *single, table = near_independence(domain, noisy, TOTAL, strength)
    assert [m.clique for m in single] == [(name,) for name in domain]
    # What the two tables say of an attribute, by generalised least squares.
    for i, found in enumerate(single):
        others = tuple(j for j in range(len(sizes)) if j != i)
        margin = noisy[-1].values.reshape(sizes).sum(axis=others)
        variances = [stddev**2, stddev**2 * np.prod([sizes[j] for j in others])]
        design = (
            np.concatenate([np.eye(sizes[i])] * 2) / np.repeat(variances, sizes[i])[:, None] ** 0.5
        )
        values = np.concatenate([noisy[i].values, margin]) / np.repeat(variances, sizes[i]) ** 0.5
        deviation = np.linalg.inv(design.T @ design)[0, 0] ** 0.5
        mean = Measurement(found.clique, np.linalg.lstsq(design, values)[0], deviation)
        np.testing.assert_allclose(found.values, smoothed(mean, TOTAL).values, atol=1e-8)
        assert found.stddev == pytest.approx(smoothed(mean, TOTAL).stddev)
    # The table lies on the segment from its noisy values to a product, where the stddev says.
    effects = main_effects(sizes)
    degrees = len(effects) - np.linalg.matrix_rank(effects)
    kept = (table.stddev / stddev) ** 2
    if degrees == 0 or strength == 0:
        assert kept == pytest.approx(1) and np.allclose(table.values, noisy[-1].values)
        return
    product = (table.values - kept * noisy[-1].values) / (1 - kept) if kept < 1 - 1e-9 else None
    if product is not None:
        factors = [
            product.reshape(sizes).sum(axis=tuple(set(range(len(sizes))) - {i}))
            for i in range(len(sizes))
        ]
        outer = np.ones(())
        for factor in factors:
            outer = np.multiply.outer(outer, factor / TOTAL)
        np.testing.assert_allclose(product.reshape(sizes), outer * TOTAL, atol=1e-5 * TOTAL)
        away = noisy[-1].values - product
        rest = away - effects @ np.linalg.lstsq(effects, away)[0]
        share = max(0.02, 1 - degrees * stddev**2 / (rest @ rest))
        assert kept == pytest.approx(1 / (1 + strength * (1 - share) / share), rel=1e-6)


@pytest.mark.parametrize("stddev", [1.0, 10.0, 40.0])
def test_the_risk_falls_whatever_the_noise(stddev: float) -> None:
    """Of 300 drawn truths of 24 and 27 cells; false alarms: see `chance`."""
    saved = []
    for seed, sizes in itertools.product(range(150), ([4, 6], [3, 3, 3])):
        domain, truth, noisy = drawn(sizes, seed, stddev)
        found = near_independence(domain, noisy, TOTAL, 1.0)[-1].values
        raw = ((noisy[-1].values - truth.ravel()) ** 2).sum()
        saved.append((raw - ((found - truth.ravel()) ** 2).sum()) / (stddev**2 * truth.size))
    mean, error = np.mean(saved), np.std(saved) / len(saved) ** 0.5
    assert mean > DEVIATIONS * error or (stddev == 1.0 and mean > -DEVIATIONS * error)


def test_no_noise_changes_nothing_and_noise_alone_is_taken_for_nothing() -> None:
    domain, truth, exact = drawn([5, 4], 1, 1e-6)
    np.testing.assert_allclose(
        near_independence(domain, exact, TOTAL, 1.0)[-1].values, truth.ravel(), atol=1e-4
    )
    rng = np.random.default_rng(0)
    domain = Domain({"a": 20, "b": 20})
    flat = np.full(20, TOTAL / 20)
    noisy = [
        Measurement(("a",), flat, 0.1),
        Measurement(("b",), flat, 0.1),
        Measurement(("a", "b"), np.full(400, TOTAL / 400) + rng.normal(0, 5.0, 400), 5.0),
    ]
    off = near_independence(domain, noisy, TOTAL, 1.0)[-1].values - TOTAL / 400
    # A noisy share of the variance is dependence by chance: at most 1 - 361 / (361 + 6 * 27).
    assert np.sqrt((off**2).mean()) < 0.32 * 5.0


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("dependence", [0.0, 15.0])
def test_tables_are_hidden_unless_they_have_more_than_noise(dependence: float, pure: bool) -> None:
    """Tables of noise are hidden in most draws; none if one depends by three times its noise."""
    domain = Domain(dict.fromkeys("abcdef", 4))
    pairs = list(itertools.combinations("abcdef", 2))
    hidden = 0
    for seed in range(200):
        rng = np.random.default_rng([seed, 4])
        draw = partial(rng.laplace, scale=5 / 2**0.5) if pure else partial(rng.normal, scale=5.0)
        tables = {pair: draw(1000.0, size=(4, 4)) for pair in pairs}
        tables["a", "b"] += dependence * np.kron(np.eye(2), [[1, -1], [-1, 1]])
        singles = [Measurement((name,), np.full(4, 4000.0), 1e-6) for name in domain]
        noisy = [Measurement(pair, table, 5.0) for pair, table in tables.items()]
        excess = beyond_noise(domain, [*singles, *noisy], 16_000.0, pure=pure)
        hidden += all_hidden(np.array(list(excess.values())))
    # Shares of 0.75 and 0.70 of noise alone: 100 hidden draws are 6 standard deviations away, and
    # of Laplace noise 0.46 are hidden if its squares are taken to vary as those of Gaussian noise.
    assert hidden == 0 if dependence else hidden > 100


@pytest.mark.parametrize("sizes", [(5, 5), (12, 3)])
def test_the_interaction_of_laplace_noise_has_the_stated_variance(sizes: tuple[int, int]) -> None:
    """The excess of 2,000 tables has the mean 0 and the variance 1, in six standard errors."""
    rng, domain = np.random.default_rng(sizes), Domain(dict(zip("ab", sizes, strict=True)))
    singles = [
        Measurement((name,), np.full(size, 1e6 / size), 1e-6) for name, size in domain.sizes.items()
    ]
    flat, scale = 1e6 / domain.size(), 5 / 2**0.5
    tables = [Measurement(("a", "b"), rng.laplace(flat, scale, sizes), 5.0) for _ in range(2_000)]
    found = np.array(
        [beyond_noise(domain, [*singles, table], 1e6, pure=True)["a", "b"] for table in tables]
    )
    assert abs(found.mean()) < 6 * found.std() / len(found) ** 0.5
    squares = (found - found.mean()) ** 2
    assert abs(squares.mean() - 1) < 6 * squares.std() / len(found) ** 0.5


def test_the_excess_of_a_table_in_standard_deviations() -> None:
    """A table of two times two has one interaction; one of a single row has none."""
    domain = Domain({"a": 2, "b": 2, "c": 1})
    singles = [Measurement((name,), [500.0, 500.0], 1e-3) for name in "ab"]
    pair = Measurement(("a", "b"), [[260.0, 240.0], [240.0, 260.0]], 5.0)
    tables = [*singles, pair, Measurement(("a", "c"), [480, 520], 5.0)]
    for pure, variance in [(False, 2.0), (True, 2 + 3 / 4)]:
        found = beyond_noise(domain, tables, TOTAL, pure=pure)
        excess = (4 * 10.0**2 / 5.0**2 - 1) / variance**0.5
        assert found == pytest.approx({("a", "b"): excess}, rel=1e-4)


@pytest.mark.parametrize(("factor", "hidden"), [(1 - 1e-9, True), (1 + 1e-9, False)])
@pytest.mark.parametrize("tables", [1, 5])
def test_the_limit_of_what_is_hidden(factor: float, hidden: bool, tables: int) -> None:
    """The half of z^2 where z > 0 has the mean 1/2 and the variance 3/2 - 1/4 = 5/4."""
    excess = np.full(tables, -3.0)
    excess[0] = (factor * (tables / 2 + (5 / 4 * tables) ** 0.5)) ** 0.5
    assert all_hidden(excess) == hidden


def test_nothing_stands_out_where_there_are_no_tables() -> None:
    assert all_hidden(np.array([])) and all_stay_hidden(np.array([]))


@pytest.mark.parametrize("tables", [[0.0] * 20 + [1.0], [0.3, 1.0, 2.5], [1.0] * 40])
def test_tables_stay_hidden_up_to_two_standard_deviations_of_noise(tables: list[float]) -> None:
    """The expected squares of max(0, z) around the factor at which two deviations are reached."""

    def together(factor: float) -> float:
        return sum(
            n
            * integrate.quad(lambda x, at=factor * z: x**2 * norm.pdf(x - at), 0, 60, limit=500)[0]
            for z, n in Counter(tables).items()
        )

    limit = len(tables) / 2 + 2 * (5 / 4 * len(tables)) ** 0.5
    factor = optimize.brentq(lambda f: together(f) - limit, 0.0, 30.0)
    assert all_stay_hidden(0.999 * factor * np.array(tables))
    assert not all_stay_hidden(1.001 * factor * np.array(tables))


@pytest.mark.parametrize(("off", "kept"), [(0.0, 0.02), (1.0, 0.02), (5.0, 0.75)])
def test_a_fiftieth_of_an_interaction_counts_as_dependence_at_least(
    off: float, kept: float
) -> None:
    """Of the squared interaction 4 off^2 noise explains 5^2; the rest is the table's weight."""
    domain = Domain({"a": 2, "b": 2})
    singles = [Measurement((name,), [500.0, 500.0], 1e-3) for name in "ab"]
    pair = Measurement(("a", "b"), 250.0 + off * np.array([[1, -1], [-1, 1]]), 5.0)
    found = near_independence(domain, [*singles, pair], TOTAL, 1.0)[-1]
    np.testing.assert_allclose(found.values, 250.0 + kept * off * np.array([1, -1, -1, 1]))
    assert found.stddev == pytest.approx(5.0 * kept**0.5)


def test_a_column_of_very_many_codes_takes_no_square_matrix() -> None:
    codes = 3000
    domain = Domain({"a": codes, "b": 2})
    measured = [Measurement((name,), np.ones(n), 1.0) for name, n in domain.sizes.items()]
    tracemalloc.start()
    model = independent_columns(domain, measured, float(codes))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < codes**2 * 8 / 4
    np.testing.assert_allclose(model.marginal(("a",)), np.ones(codes))
