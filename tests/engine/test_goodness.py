"""Goodness of fit against dense least squares, and how rarely right measurements are doubted."""

import tracemalloc
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from brute_force import design
from chance import FALSE_ALARM
from scipy.sparse import csr_array
from scipy.stats import binom, chi2, kstest

from pgmkit import Contradictory, Domain, GraphicalModel, Measurement, Zeros, error_bars, estimate
from pgmkit.least_squares.goodness import Fit, goodness_of_fit, is_gross, least_degrees
from pgmkit.least_squares.linear_estimate import LinearEstimate
from pgmkit.linear.kronecker import Kronecker
from pgmkit.queries import FactoredQuery, mean, prefix

DOMAIN = Domain({"a": 2, "b": 3, "c": 2, "d": 4})
CLIQUES = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d",), ("a", "b")]
TWO = Domain({"education": 3, "sex": 2})


def measured(joint: np.ndarray, rng: np.random.Generator, laplace: bool = False) -> list:
    found = []
    for place, clique in enumerate(CLIQUES):
        table, stddev = design(DOMAIN, clique) @ joint, 2.0 + place
        noise = rng.laplace if laplace else rng.normal
        scale = stddev / np.sqrt(2) if laplace else stddev
        matrix = prefix(4) if clique == ("d",) else None
        values = table if matrix is None else matrix @ table
        values = values + noise(0, scale, len(table))
        found.append(Measurement(clique, values, stddev, matrix))
    return found


def fit_of(model: GraphicalModel) -> Fit:
    assert model.fit is not None
    return model.fit


def contradictory() -> list[Measurement]:
    joint = [[15_300, 15_000], [10_050, 9_950], [10_000, 10_010]]
    return [
        Measurement(("education",), [60_000.0, 20_000.0, 20_000.0], 10.0),
        Measurement(("education", "sex"), joint, 50.0),
    ]


def test_the_statistic_is_that_of_least_squares_on_the_joint() -> None:
    rng = np.random.default_rng(0)
    for seed in range(5):
        joint = np.random.default_rng(seed).dirichlet(np.full(DOMAIN.size(), 0.1)) * 300
        y = measured(joint, rng)
        fit = fit_of(estimate(DOMAIN, y))
        views = [
            (np.eye(DOMAIN.size(m.clique)) if m.matrix is None else m.matrix)
            @ design(DOMAIN, m.clique) / m.stddev
            for m in y
        ]  # fmt: skip
        rows, values = np.vstack(views), np.concatenate([m.values / m.stddev for m in y])
        solution, _, rank, _ = np.linalg.lstsq(rows, values, rcond=1e-10)
        assert fit.degrees == len(values) - rank
        assert fit.statistic == pytest.approx(((rows @ solution - values) ** 2).sum())


def test_p_values_of_right_measurements_are_uniform_with_zeros_all_over() -> None:
    """Kolmogorov and Smirnov's test of the chi-square law; false alarm one in a million."""
    rng, joint = np.random.default_rng(1), np.zeros(DOMAIN.size())
    joint[[0, 17, 40]] = 1000.0
    fits = [fit_of(estimate(DOMAIN, measured(joint, rng))) for _ in range(60)]
    shares = [chi2.sf(fit.statistic, fit.degrees) for fit in fits]
    assert kstest(shares, "uniform").pvalue >= FALSE_ALARM
    assert not any(fit.gross for fit in fits)


@pytest.mark.parametrize("degrees", [1, 3, 30, 1000])
def test_a_gross_misfit_is_beyond_noise_of_any_usual_law(degrees: int) -> None:
    """The tail of sums of squares of Laplace noise, extrapolated beyond 200,000 draws.

    Far out, the square root of a sum is spread like the largest value: exponentially at most.
    """
    rng = np.random.default_rng(2)
    draws = max(2000, 200_000 // degrees)
    sums = np.sqrt((rng.laplace(0, np.sqrt(0.5), (draws, degrees)) ** 2).sum(axis=1))
    rare, rarer = np.quantile(sums, [0.9, 0.99])
    foreseen = rarer + (rarer - rare) * (np.log(0.01 / FALSE_ALARM) / np.log(10))
    assert not is_gross(float(foreseen**2), degrees)
    assert chi2.sf(foreseen**2, degrees) < FALSE_ALARM  # so that Gaussian noise is far below
    assert is_gross(degrees + 6 * np.sqrt(5 * degrees) + 700, degrees)


@pytest.mark.parametrize("laplace", [False, True])
def test_right_error_bars_are_rarely_widened(laplace: bool) -> None:
    """At most 3 in 1,000 by Laplace noise: of 2,000 draws 6, and 20 once in a million times."""
    rng, table = np.random.default_rng(6), np.array([300.0, 200.0, 100.0, 400.0])
    noise, scale = (rng.laplace, np.sqrt(0.5)) if laplace else (rng.normal, 1.0)
    widened = 0
    for _ in range(2000):
        y = [Measurement(("d",), table + noise(0, scale, 4), 1.0) for _ in range(3)]
        widened += LinearEstimate(DOMAIN, y, None).scale > 1
    assert widened <= binom.isf(FALSE_ALARM, 2000, 0.003)
    if not laplace:
        assert widened <= binom.isf(FALSE_ALARM, 2000, 1e-4)


def test_right_measurements_are_not_warned_of() -> None:
    """Zeros held at zero, matrices, repeated and Laplace measurements, regions, structural zeros.

    A false alarm has probability 1e-7 in each of 80 estimates at most, far less with small noise.
    """
    rng = np.random.default_rng(3)
    allowed = np.ones((2, 3), dtype=bool)
    allowed[0, 1] = False
    possible = np.tile(allowed.reshape(2, 3, 1, 1), (1, 1, 2, 4)).reshape(-1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", Contradictory)
        for draw in range(40):
            joint = rng.dirichlet(np.full(DOMAIN.size(), 0.03)) * rng.choice([60.0, 3000.0])
            joint = joint * possible + possible / 10
            y = measured(joint, rng, laplace=draw % 2 == 1)
            estimate(DOMAIN, y, zeros=[Zeros(("a", "b"), allowed)])
            estimate(DOMAIN, y, inference="region", total=float(joint.sum()))
    assert not [each.message for each in caught if issubclass(each.category, Contradictory)]


def test_a_contradiction_is_named_warned_of_and_widens_error_bars() -> None:
    y = contradictory()
    with pytest.warns(
        Contradictory, match=r"education, sex by .* error bars are widened 240 times"
    ):
        model = estimate(TWO, y)
    fit = fit_of(model)
    assert fit.gross and fit.p_value < 1e-100 and fit.degrees == 3
    assert fit.worst[0][0] == ("education", "sex")
    assert fit.scale == pytest.approx(np.sqrt(fit.statistic / 3))
    bars = error_bars(model, y, replicates=20, seed=0).marginal(["education"])
    assert bars.low[0] < 59_000 and bars.high[0] > 61_000 and bars.stddev[0] > 1000
    with pytest.warns(Contradictory):
        region = estimate(TWO, y, inference="region")
    assert region.fit is not None and region.fit.statistic == pytest.approx(fit.statistic)


def understated(apart: float) -> list[Measurement]:
    """A table of sexes that misses the sum of another by ``apart`` standard deviations."""
    by_sex = [300.0 + apart * np.sqrt(4.0), 300.0]
    joint = Measurement(("education", "sex"), np.full((3, 2), 100.0), 1.0)
    return [joint, Measurement(("sex",), by_sex, 1.0)]


@pytest.mark.parametrize("inference", ["exact", "region"])
def test_every_gross_fit_is_warned_of_and_names_a_table(inference: str) -> None:
    """A chi-square of 289, with two degrees of freedom among eight values."""
    with pytest.warns(Contradictory, match="furthest off.*: education, sex by"):
        fit = estimate(TWO, understated(17.0), inference=inference).fit
    assert fit is not None and fit.gross and len(fit.worst) == 1
    assert (fit.degrees, fit.statistic) == (2, pytest.approx(17.0**2))


def test_a_fit_that_widens_error_bars_without_a_warning_states_the_limit() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", Contradictory)
        fit = fit_of(estimate(TWO, understated(10.0)))
    assert fit.p_value < 1e-20 and not fit.gross and fit.worst == ()
    limit = 2 + 6 * np.sqrt(10) + np.log(2e6) ** 2
    assert f"without a warning, which takes a chi-square of {limit:.4g}" in str(fit)


def test_theleast_degrees_of_freedom_are_no_more_than_those_of_least_squares() -> None:
    rng = np.random.default_rng(8)
    joint = rng.dirichlet(np.ones(DOMAIN.size())) * 3000
    y = measured(joint, rng)
    tables = [m for m in y if m.matrix is None]
    assert least_degrees(DOMAIN, tables) == fit_of(estimate(DOMAIN, tables)).degrees
    assert least_degrees(DOMAIN, y) <= fit_of(estimate(DOMAIN, y)).degrees
    assert least_degrees(DOMAIN, [Measurement(("a", "b"), [1.0], 1.0, np.ones((1, 6)))]) == 0


def test_a_gross_fit_warns_beside_sums_that_determine_no_table() -> None:
    """The sums have many values, which a perfect fit meets, and no degrees of freedom."""
    sums = np.tile(np.random.default_rng(0).normal(size=(60, 3)), 2)
    apart = [Measurement(("a",), [500.0 + far, 500.0 - far], 1.0) for far in (0.0, 18.0)]
    domain = Domain({"a": 2, "b": 6})
    y = [*apart, Measurement(("b",), sums @ np.full(6, 1000 / 6), 1.0, sums)]
    with pytest.warns(Contradictory):
        fit = fit_of(estimate(domain, y, total=1000.0))
    assert fit.gross and fit.degrees == 2


def test_what_no_counts_can_be_is_gross_without_a_disagreement() -> None:
    y = [Measurement(("education",), [500.0, -900.0, 800.0], 10.0)]
    with pytest.warns(Contradictory):
        fit = fit_of(estimate(TWO, y))
    assert fit.degrees == 0 and fit.scale == 1.0 and fit.gross


def test_other_models_have_no_fit() -> None:
    y = [Measurement(("education",), [500.0, 100.0, 800.0], 10.0)]
    model = estimate(TWO, y)
    assert fit_of(model).p_value == 1.0
    assert str(model.fit) == "p-value 1 (chi-square 0 with 0 degrees of freedom)"
    assert model.given({"sex": 0}).fit is None
    assert estimate(TWO, y, loss="absolute").fit is None


def test_a_matrix_over_no_attributes_is_no_residual() -> None:
    """It tells of the total: 100.2 with a variance of 5, beside a table that sums to 101."""
    table = Measurement(("sex",), [41.0, 60.0], 1.0)
    of_total = Measurement((), [99.0, 201.0, 3.0], 5.0, np.array([[1.0], [2.0], [0.0]]))
    fit = fit_of(estimate(TWO, [table, of_total], total=100.0))
    apart = (1.2**2 + 0.6**2 + 3.0**2) / 5.0**2 + 0.8**2 / (5.0 + 2.0)
    assert (fit.statistic, fit.degrees) == (pytest.approx(apart), 3)


def test_a_large_table_of_matrices_is_left_out_without_an_index_of_its_cells() -> None:
    domain = Domain({name: 100 for name in "abc"})
    rows = [np.ones((1, 100))] * 3
    y = [Measurement(tuple("abc"), [9.0 + place], 1.0, rows) for place in range(20)]
    tracemalloc.start()
    linear = LinearEstimate(domain, y, None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert linear.scale == 1.0
    assert peak < 8 * domain.size()  # one index alone has 8 bytes for each cell


def test_cells_that_nobody_counts_add_no_degrees_of_freedom() -> None:
    """One known cell in each of three tables contradicts nothing: all agreements cancel."""
    rng = np.random.default_rng(0)
    domain = Domain({"a": 2, "b": 3, "c": 2})
    for known in (1, 1, 2, 3, 3, 4, 4, 5, 5):
        y = []
        for clique in (("a", "b"), ("b", "c"), ("c", "a")):
            cells = domain.size(clique)
            counted = np.eye(cells)[rng.permutation(cells)[:known]]
            y.append(Measurement(clique, rng.normal(9, 1, len(counted)), 1.0, counted))
        linear = LinearEstimate(domain, y, None)
        rows = np.vstack([m.matrix @ design(domain, m.clique) for m in y])
        values = np.concatenate([m.values for m in y])
        solution, _, rank, _ = np.linalg.lstsq(rows, values, rcond=1e-10)
        assert linear.degrees == len(values) - rank
        apart = ((rows @ solution - values) ** 2).sum()
        assert linear.statistic == pytest.approx(apart, abs=1e-9)


def test_cells_that_nobody_counts_take_no_matrix_of_their_own() -> None:
    size = 100
    domain = Domain({"a": size, "b": size})
    diagonal = np.arange(size) * (size + 1)
    counted = csr_array((np.ones(size), (np.arange(size), diagonal)), (size, size**2))
    y = [
        Measurement(("a",), np.full(size, 50.0), 1.0),
        Measurement(("a", "b"), np.full(size, 20.0), 1.0, counted),
    ]
    tracemalloc.start()
    linear = LinearEstimate(domain, y, None)
    rest = linear.answer(FactoredQuery({"a": np.eye(size)[:1], "b": 1 - np.eye(size)[:1]}))
    cell = linear.answer(FactoredQuery.marginal(domain, ("a", "b")))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rest is not None and rest.values.round(6) == 30.0
    assert rest.stddev == pytest.approx(np.sqrt(2)) and cell is None
    assert peak < 800 * domain.size()  # a matrix of the constraints by these cells alone


@pytest.mark.parametrize("count", [2, 3000])
def test_no_residual_of_thousands_of_codes_is_sought_in_sparse_or_few_rows(count: int) -> None:
    """A square matrix of the codes would take 72 MB."""
    domain = Domain({"a": 3000})
    rows = csr_array((np.ones(count), (np.arange(count), np.arange(count))), (count, 3000))
    tracemalloc.start()
    linear = LinearEstimate(domain, [Measurement(("a",), np.ones(count), 1.0, rows)], None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert linear.degrees == 0 and linear.p_value == 1.0 and peak < 1000 * 3000


@pytest.mark.parametrize("kept", [np.asarray, csr_array])
def test_a_product_of_many_rows_is_shortened_before_it_is_written_out(kept: Any) -> None:
    """All ranges of two attributes: 18,496 answers over 256 cells, 38 MB written out."""
    ranges = np.array(
        [(i <= np.arange(16)) & (np.arange(16) <= j) for i in range(16) for j in range(i, 16)]
    )
    product = Kronecker([kept(ranges.astype(float))] * 2)
    noisy = np.random.default_rng(0).normal(100.0, 3.0, product.shape[0])
    measured = Measurement(("b", "a"), noisy, 3.0, product)
    tracemalloc.start()
    linear = LinearEstimate(Domain({"a": 16, "b": 16}), [measured], None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * product.shape[0] * product.shape[1] / 3
    solution, squares, *_ = np.linalg.lstsq(product.to_dense(), noisy)
    assert linear.degrees == len(noisy) - 256
    assert linear.statistic == pytest.approx(squares[0] / 9)
    found = linear.answer(FactoredQuery.marginal(linear.domain, ("b", "a")))
    np.testing.assert_allclose(found.values, solution, atol=1e-9)


@dataclass
class Fixed:
    """A model with these tables, whose loss is bounded by what is stated."""

    domain: Domain
    tables: dict[tuple[str, ...], np.ndarray]
    bound: float
    loss: float = 0.0
    structural_zeros: tuple[Zeros, ...] = ()

    def marginals(self, _cliques: Any) -> dict[tuple[str, ...], np.ndarray]:
        return self.tables


@pytest.mark.parametrize("bound", [-1.0, 0.0, 0.3, 2.0, 5.0, 8.9, 50.0])
@pytest.mark.parametrize("apart", [0.0, 1.0, 4.0])
def test_the_p_value_is_twice_the_smaller_of_two(bound: float, apart: float) -> None:
    """Of the loss, at most that of the tables, and of the distance between two measurements."""
    y = [Measurement(("sex",), [100.0, 100.0 + far], 1.0) for far in (0.0, apart)]
    for measurements in (y[:1], y):
        fit = goodness_of_fit(Fixed(TWO, {("sex",): np.array([103.0, 100.0])}, bound), measurements)
        squares = sum(float(((m.values - [103, 100]) ** 2).sum()) for m in measurements)
        shares = [chi2.sf(min(2 * max(bound, 0.0), squares), 2 * len(measurements))]
        if len(measurements) == 2:
            assert (fit.degrees, fit.statistic) == (2, pytest.approx(apart**2 / 2, abs=1e-9))
            shares.append(chi2.sf(apart**2 / 2, 2))
        assert fit.p_value == pytest.approx(min(1.0, 2 * min(shares)))


def test_a_bound_of_zero_says_nothing_of_a_single_value() -> None:
    y = [Measurement((), [100.0], 1.0)]
    assert goodness_of_fit(Fixed(TWO, {(): np.array(103.0)}, 0.0), y).p_value == 1.0


def test_the_worst_cliques_are_those_furthest_beyond_noise() -> None:
    """In standard deviations of a sum of squares of Laplace noise; three are named."""
    domain = Domain({"one": 1, "sex": 2, "d": 4, "long": 1000, "right": 2})
    squares = {"one": 230.0, "sex": 600.0, "d": 900.0, "long": 8000.0, "right": 2.0}
    y = [Measurement((n,), np.full(s, 9.0), 2.0) for n, s in domain.sizes.items()]
    tables = {
        (n,): 9.0 + 2.0 * np.full(s, np.sqrt(squares[n] / s)) for n, s in domain.sizes.items()
    }
    fit = goodness_of_fit(Fixed(domain, tables, 1e6), y)
    beyond = {n: (squares[n] - s) / np.sqrt(5 * s) for n, s in domain.sizes.items()}
    order = sorted(beyond, key=lambda name: -beyond[name])[:3]
    assert order == ["d", "sex", "one"] and beyond["one"] < 1.05 * beyond["long"]
    assert [clique for clique, _ in fit.worst] == [(name,) for name in order]
    far = [np.sqrt(squares[name] / domain.sizes[name]) for name in order]
    np.testing.assert_allclose([distance for _, distance in fit.worst], far)
    ends = "; ".join(f"{name} by {each:.3g}" for name, each in zip(order, far, strict=True))
    assert fit.gross and f"furthest off, in standard deviations: {ends}; error" in str(fit)


def test_measurements_of_one_clique_in_either_order_are_one() -> None:
    table = np.arange(6.0).reshape(3, 2)
    y = [
        Measurement(("sex", "education"), table.T + 50.0, 2.0),
        Measurement(
            ("education", "sex"), [table[0].sum() + 40.0], 4.0, np.eye(6)[:1] + np.eye(6)[1:2]
        ),
    ]
    tables = {("sex", "education"): table.T, ("education", "sex"): table}
    fit = goodness_of_fit(Fixed(TWO, tables, 1e6), y)
    ((clique, far),) = fit.worst
    assert clique == ("education", "sex")
    assert far == pytest.approx(np.sqrt((6 * 25.0**2 + 10.0**2) / 7))


SEXES = [Measurement(("sex",), [250.0, 260.0], 1e3)]


@pytest.mark.parametrize(
    ("inference", "beside"), [("exact", []), ("exact", SEXES), ("region", SEXES)]
)
def test_totals_that_contradict_each_other_are_warned_of(
    inference: str, beside: list[Measurement]
) -> None:
    """The loss of the model knows nothing of them."""
    degrees = 1 + len(beside)
    limit = degrees + 6 * np.sqrt(5 * degrees) + np.log(1e6 * degrees) ** 2
    for square, gross in ((limit - 1, False), (limit + 1, True)):
        y = [Measurement((), [500.0 + far], 1.0) for far in (0.0, np.sqrt(2 * square))] + beside
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit = estimate(TWO, y, inference=inference).fit
        assert fit is not None and fit.degrees == degrees and fit.gross == gross
        assert fit.statistic == pytest.approx(square, abs=0.1)
        assert [each.category for each in caught] == [Contradictory] * gross
        assert not gross or "in standard deviations: total by 1" in str(caught[0].message)


@pytest.mark.parametrize("value", [500.0, 1000.0])
def test_a_multiple_of_the_total_that_contradicts_a_table_is_warned_of(value: float) -> None:
    """A table of 500 records, and -2 times the total."""
    y = [
        Measurement(("sex",), [250.0, 250.0], 1e-3),
        Measurement((), [value], 1e-3, np.array([[-2.0]])),
    ]
    with pytest.warns(Contradictory):
        estimate(TWO, y, total=500.0)


def test_any_widening_is_stated() -> None:
    fit = Fit(p_value=1e-9, statistic=2250.0, degrees=1000, scale=1.5, worst=(), gross=True)
    assert str(fit).endswith("1,000 degrees of freedom); error bars are widened 1.5 times")


@pytest.mark.parametrize("sizes", [(2, 3), (5, 2), (4, 3)])
def test_contrasts_of_either_sign_are_one_residual(sizes: tuple[int, int]) -> None:
    """Least squares on all cells know no signs: three measurements through n I - J, times -2 to 3
    along each attribute, and the whole table.
    """
    rng = np.random.default_rng([*sizes, 7])
    domain, joint = Domain({"a": sizes[0], "b": sizes[1]}), rng.uniform(0, 90, sizes).ravel()
    one, other = (n * np.eye(n) - 1 for n in sizes)
    noisy, views = [Measurement(("a", "b"), joint + rng.normal(0, 3, joint.size), 3.0)], []
    for first, second in ((-1, 1), (3, -2), (-0.5, -1)):
        matrix = [first * one, second * other]
        found = np.kron(*matrix)
        values = found @ joint + rng.normal(0, 5, joint.size)
        noisy.append(Measurement(("a", "b"), values, 5.0, matrix))
        views.append(found / 5)
    rows = np.vstack([np.eye(joint.size) / 3, *views])
    values = np.concatenate([m.values / m.stddev for m in noisy])
    solution = np.linalg.lstsq(rows, values, rcond=None)[0]
    linear = LinearEstimate(domain, noisy, None)
    assert linear.statistic == pytest.approx(float(((rows @ solution - values) ** 2).sum()))
    assert linear.degrees == len(values) - joint.size


def test_a_factor_of_zeros_determines_no_residual() -> None:
    """The codes of an attribute of one value are 0, and so is their sum, ``mean(1)``."""
    domain = Domain({"one": 1, "sex": 2})
    y = [
        Measurement(("one", "sex"), [0.3, -0.2], 1.0, [mean(1), np.eye(2)]),
        Measurement(("sex",), [41.0, 60.0], 1.0),
        Measurement(("sex",), [43.0, 60.0], 1.0),
    ]
    fit = fit_of(estimate(domain, y, total=102.0))
    assert (fit.statistic, fit.degrees) == (pytest.approx(2.0), 2)


def test_a_p_value_that_is_of_the_loss_is_not_said_to_be_of_the_chi_square() -> None:
    """Tables that agree with each other, but not with the total that was given."""
    one, two = (Measurement((name,), np.full(2, 100.0), 1.0) for name in "ac")
    domain = DOMAIN.project(["a", "c"])
    with pytest.warns(Contradictory, match="of the model's loss; negative counts of any total"):
        forced = estimate(domain, [one, two], total=900.0)
    fit = goodness_of_fit(forced, [one, two])
    assert fit.p_value < 1e-9 < chi2.sf(fit.statistic, fit.degrees)
    apart = Measurement(("a",), [150.0, 50.0], 1.0)
    with pytest.warns(Contradictory, match=r"p-value 0 \(chi-square \S+ with 3 degrees"):
        estimate(domain, [one, two, apart])
