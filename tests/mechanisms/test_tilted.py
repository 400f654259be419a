"""Mixtures that are changed to have a marginal, against the joint table of all cells."""

import numpy as np
import pytest
from scipy import stats

import mechanisms.families.tilted as module
from mechanisms.families.product_mixture import ProductMixtureModel
from mechanisms.families.tilted import tilted
from pgmkit.domain import Domain
from pgmkit.measurement import Measurement

DOMAIN = Domain({"a": 2, "b": 3, "c": 2, "d": 4})
NAMES = tuple(DOMAIN)
CLIQUE = ("c", "a", "b")


def mixture(seed: int) -> ProductMixtureModel:
    rng = np.random.default_rng(seed)
    rows = np.concatenate([rng.dirichlet(np.ones(n), 5) for n in DOMAIN.shape()], axis=1)
    return ProductMixtureModel(DOMAIN, rows, 1000.0, rng.dirichlet(np.ones(5)))


def wanted(seed: int) -> np.ndarray:
    shares = np.random.default_rng([seed, 1]).dirichlet(np.ones(12))
    return 1000 * shares.reshape(DOMAIN.shape(CLIQUE))


@pytest.mark.parametrize("seed", range(3))
def test_all_cells_are_multiplied_by_the_ratio_of_the_marginals(seed: int) -> None:
    model, table = mixture(seed), wanted(seed)
    joint = model.marginal(NAMES)
    ratio = table / joint.sum(3).transpose(2, 0, 1)
    found = tilted(model, Measurement(CLIQUE, table, 1e-6))
    expected = joint * ratio.transpose(1, 2, 0)[..., None]
    np.testing.assert_allclose(found.marginal(NAMES), expected, atol=1e-5)


def test_where_rows_are_many_some_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is the same nevertheless, and a cell has a row however small its share is."""
    model, table = mixture(0), wanted(0)
    table[0, 0] *= 1e-6
    whole = tilted(model, Measurement(CLIQUE, table, 1e-6))
    monkeypatch.setattr(module, "BLOCK_CELLS", 60 * 11)
    all_of_them = tilted(model, Measurement(CLIQUE, table, 1e-6), rng=0)
    np.testing.assert_array_equal(all_of_them.shares, whole.shares)
    monkeypatch.setattr(module, "BLOCK_CELLS", 40 * 11 + 10)
    some = tilted(model, Measurement(CLIQUE, table, 1e-6), rng=0)
    assert len(whole.rows) == 60 and len(some.rows) <= 40
    np.testing.assert_allclose(some.marginal(CLIQUE), whole.marginal(CLIQUE), rtol=1e-9)
    table *= 1000 / table.sum()
    monkeypatch.setattr(module, "BLOCK_CELLS", 24 * 11)  # two for each of the cells
    for seed in range(20):
        least = tilted(model, Measurement(CLIQUE, table, 1e-6), rng=seed)
        assert len(least.rows) <= 24
        np.testing.assert_allclose(least.marginal(CLIQUE), table, rtol=1e-6)


@pytest.mark.parametrize("rows", [40, 20])
@pytest.mark.parametrize("clique", [("d",), ("b",)])
def test_drawn_rows_have_the_shares_of_all_on_average(
    rows: int, clique: tuple[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where rows are too few for all cells. The mean of 400 draws is within six standard
    errors, or equal up to rounding, which fails by chance less than once in a million.
    """
    model, noisy = mixture(0), Measurement(CLIQUE, wanted(0), 1e-6)
    whole = tilted(model, noisy).marginal(clique)
    monkeypatch.setattr(module, "BLOCK_CELLS", rows * 11)
    found = np.array([tilted(model, noisy, rng=seed).marginal(clique) for seed in range(400)])
    deviation = found.std(0, ddof=1) / 400**0.5
    assert (np.abs(found.mean(0) - whole) < 6 * deviation + 1e-9).all()


@pytest.mark.parametrize("unit", [1.0, 1e-3])
@pytest.mark.parametrize("far", [1.0, 5.3, 5.45])
def test_smaller_tables_inside_are_weighted_means_by_the_error_of_each(
    far: float, unit: float
) -> None:
    """The tables of (a, b) and of c are means of the table that was shrunk and of the model,
    weighted by the sums of squares of their errors. The model's error is that of its
    measurements' noise, unless its distance from the noisy table is too large for chance. All
    counts may be below 1.
    """
    model = mixture(2)
    model = ProductMixtureModel(DOMAIN, model.rows, 1000.0 * unit, model.shares)
    own = model.marginal(CLIQUE)
    pattern = np.array([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]])
    off = unit * (far / 2 * pattern + 0.7 * np.array([1.0, -1.0])[:, None, None])
    assert (own + off > 0).all()
    measured = Measurement(CLIQUE, own + off, 0.5 * unit)
    fitted = [
        Measurement(("b", "a"), np.zeros(6), 3.0 * unit),
        Measurement(("c",), np.zeros(2), 2.0 * unit),
        Measurement(("a", "b"), np.zeros(6), 6.0 * unit),
        Measurement(("a", "c", "b"), np.zeros(12), 4.0 * unit),  # the whole is no smaller one
        Measurement(("a", "d"), np.zeros(8), 4.0 * unit),
    ]
    found = tilted(model, measured, fitted)
    noise = 12 * 0.5**2
    shrunk = 1 - noise / float((off**2).sum() / unit**2)
    for clique, axes, error in (
        (("a", "b"), 0, 6 / (3.0**-2 + 6.0**-2)),
        (("c",), (1, 2), 2 * 2.0**2),
    ):
        squares = float((off.sum(axes) ** 2).sum()) / unit**2
        size = off.sum(axes).size
        chance = stats.chi2.sf(size * squares / (noise + error), size)
        assert chance < 1e-2 if clique == ("a", "b") and far > 1 else chance > 1e-2
        weight = noise / (noise + error if chance >= 1e-3 else squares)
        wanted = model.marginal(clique) + (1 - weight) * shrunk * off.sum(axes)
        np.testing.assert_allclose(found.marginal(clique), wanted, rtol=1e-6)


def test_smaller_tables_with_empty_cells_keep_them() -> None:
    """No record has a = b = 0; where the table says so, too, nothing is divided."""
    domain = Domain({"a": 2, "b": 2, "c": 2})
    rows = [[1, 0, 0, 1, 0.5, 0.5], [0, 1, 0.5, 0.5, 0.25, 0.75]]
    model = ProductMixtureModel(domain, rows, 1000.0)
    own = model.marginal(("a", "b", "c"))
    measured = Measurement(("a", "b", "c"), own + 20 * (own > 0) * [1, -1], 1.0)
    with np.errstate(all="raise"):
        found = tilted(model, measured, [Measurement(("a", "b"), own.sum(2), 1.0)])
    assert found.marginal(("a", "b"))[0, 0] == 0 and np.isfinite(found.rows).all()
    np.testing.assert_allclose(found.marginal(("a", "b")), own.sum(2), rtol=1e-6)
    assert found.marginal(("c",))[0] > own.sum((0, 1))[0] + 50


def test_noise_is_kept_out() -> None:
    """Within a standard deviation of noise the model stays; above, noise's part is left out."""
    model = mixture(1)
    before = model.marginal(CLIQUE)
    off = np.resize([1.0, -1.0], before.shape) * 10
    assert tilted(model, Measurement(CLIQUE, before + off, 10.0)) is model
    assert tilted(model, Measurement(CLIQUE, before + off, 8.5)) is model
    found = tilted(model, Measurement(CLIQUE, before + off, 5.0)).marginal(CLIQUE)
    inner = before > 20  # cells that stay above 0
    assert inner.sum() > 6
    moved = (found - before)[inner] / off[inner]
    # Of the squared distance 12 * 100, noise explains 12 * 25: three quarters remain.
    assert np.median(moved) == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize(("factor", "stays"), [(1.0 - 1e-9, True), (1.0 + 1e-9, False)])
def test_the_model_changes_beyond_one_standard_deviation_of_noise(
    factor: float, stays: bool
) -> None:
    """The squared distance by noise alone has the mean n s^2 and the variance 2 n s^4."""
    model = mixture(1)
    n, stddev = DOMAIN.size(CLIQUE), 2.0
    off = np.zeros(n)
    off[0] = np.sqrt(factor * (n + np.sqrt(2 * n))) * stddev
    noisy = Measurement(CLIQUE, model.marginal(CLIQUE).ravel() + off, stddev)
    assert (tilted(model, noisy) is model) == stays


def test_cells_without_records_stay_empty_and_nearly_empty_ones_are_filled() -> None:
    """The model has no records with a = 1, c = 1 and half of a record with a = 1, c = 0."""
    domain = Domain({"a": 2, "c": 2})
    model = ProductMixtureModel(domain, [[1, 0, 0, 1], [0, 1, 1, 0]], 1000.0, [0.9995, 0.0005])
    noisy = Measurement(("a", "c"), [[0.0, 500.0], [300.0, 200.0]], 1e-6)
    found = tilted(model, noisy).marginal(("a", "c"))
    np.testing.assert_allclose(found, [[0.0, 625.0], [375.0, 0.0]], rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_pairs_that_the_noise_does_not_blur_are_brought_back(seed: int) -> None:
    """Iterative proportional fitting of the joint table: d given each attribute of the table."""
    model, table = mixture(seed), wanted(seed)
    measured = Measurement(CLIQUE, table, 1e-6)
    pairs = [(name, "d") for name in CLIQUE]
    exact = [Measurement(pair, model.marginal(pair), 0.1) for pair in pairs]
    blurred = [Measurement(pair, model.marginal(pair), 1000.0) for pair in pairs]
    moved = tilted(model, measured).marginal(NAMES)
    np.testing.assert_array_equal(tilted(model, measured, blurred).marginal(NAMES), moved)

    joint = moved
    for _ in range(10):
        for name, m in zip(CLIQUE, exact, strict=True):
            others = tuple(i for i, each in enumerate(NAMES[:3]) if each != name)
            now, then = joint.sum(others, keepdims=True), m.values.reshape(-1, 4)
            then = np.expand_dims(then / then.sum(1, keepdims=True), others)
            joint = joint * then / (now / now.sum(3, keepdims=True))
        joint = joint * (table.transpose(1, 2, 0) / joint.sum(3))[..., None]
    found = tilted(model, measured, exact)
    np.testing.assert_allclose(found.marginal(NAMES), joint, rtol=1e-6)
    np.testing.assert_allclose(found.marginal(CLIQUE), table, rtol=1e-6)
    for axis, m in zip((2, 0, 1), exact, strict=True):
        given = m.values.reshape(-1, 4) / m.values.reshape(-1, 4).sum(1, keepdims=True)
        pairs_of = [each.sum(tuple({0, 1, 2} - {axis})) for each in (moved, joint)]
        before, after = (np.abs(p / p.sum(1, keepdims=True) - given).max() for p in pairs_of)
        assert after < before


def test_pairs_are_brought_back_where_their_misfit_rises_by_more_than_its_deviation() -> None:
    """The misfit of n values moves by the root of 2 n. Here it is 0 before."""
    model, measured = mixture(0), Measurement(CLIQUE, wanted(0), 1e-6)
    moved = tilted(model, measured)
    pairs = [(name, "d") for name in CLIQUE]
    rise = sum(((moved.marginal(pair) - model.marginal(pair)) ** 2).sum() for pair in pairs)
    values = sum(model.domain.size(pair) for pair in pairs)
    for factor, same in ((1.01, True), (0.99, False)):
        stddev = factor * (rise / (2 * values) ** 0.5) ** 0.5
        fitted = [Measurement(pair, model.marginal(pair), stddev) for pair in pairs]
        found = tilted(model, measured, fitted).marginal(NAMES)
        assert np.array_equal(found, moved.marginal(NAMES)) == same


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("total", [1.0, 1e4])
def test_codes_that_no_row_has_together_stay_apart(total: float) -> None:
    """Here b = a is measured. No record has a = 0 and c = 2, so none has b = 0 and c = 2 then."""
    domain = Domain({"a": 2, "b": 2, "c": 3})
    rows = [[1, 0, 0.5, 0.5, 0.25, 0.75, 0], [0, 1, 0.5, 0.5, 0, 0.5, 0.5]]
    model = ProductMixtureModel(domain, rows, total)
    measured = Measurement(("a", "b"), total * np.eye(2) / 2, 1e-9 * total)
    pairs = [("a", "c"), ("b", "c")]
    exact = [Measurement(pair, model.marginal(pair), 1e-6 * total) for pair in pairs]
    found = tilted(model, measured, exact).marginal(tuple("abc")) / total
    assert (found[0, 0, 2], found[1, 1, 0]) == (0, 0)
    np.testing.assert_allclose(found.sum(2), np.eye(2) / 2, rtol=1e-9, atol=1e-12)
    # Of c, what is left of P(c | b) = (1/8, 5/8, 1/4): it is the last that is brought back.
    np.testing.assert_allclose(found[0, 0, :2], np.array([1, 5]) / 12, rtol=1e-2)


def test_cells_that_the_model_rules_out_take_nothing_from_known_subsets() -> None:
    """The first value of a has the first of b alone. What the noisy table has beside it is left
    out before the marginal of a, which is known exactly, is kept.
    """
    rows = [[1, 0, 1, 0], [0, 1, 0.5, 0.5]]
    model = ProductMixtureModel(Domain({"a": 2, "b": 2}), rows, 100.0, [0.4, 0.6])
    known = Measurement(("a",), model.marginal(("a",)), 1e-3)
    found = tilted(model, Measurement(("a", "b"), [[20, 20], [50, 10]], 2.0), [known])
    assert found.marginal(("a", "b"))[0, 1] == 0.0
    np.testing.assert_allclose(found.marginal(("a",)), [40.0, 60.0], atol=0.01)


def test_a_table_of_what_the_model_rules_out_changes_nothing() -> None:
    model = ProductMixtureModel(Domain({"a": 2}), [[1, 0]], 100.0)
    assert tilted(model, Measurement(("a",), [-50.0, 200.0], 1.0)) is model
