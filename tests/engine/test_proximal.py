"""Proximal steps that try points beyond linear space, or that have no certificate to reach."""

import itertools
import warnings

import numpy as np

from pgmkit import Dataset, Domain, Measurement, estimate


def test_a_few_points_beyond_linear_space_do_not_end_the_search() -> None:
    """All triples of nine Booleans without noise: on this draw a line search leaves linear space,
    and the optimum, of loss 0, is found all the same.
    """
    names = "abcdefghi"
    joint = np.random.default_rng(17).dirichlet(np.full(2 ** len(names), 0.5)) * 1e4
    joint = joint.reshape((2,) * len(names))
    measured = []
    for some in itertools.combinations(range(len(names)), 3):
        away = tuple(set(range(len(names))) - set(some))
        measured.append(Measurement([names[i] for i in some], joint.sum(away), 1.0))
    model = estimate(Domain(dict.fromkeys(names, 2)), measured, total=1e4)
    assert model.certified
    for each in measured:
        np.testing.assert_allclose(model.marginal(each.clique).reshape(-1), each.values, atol=1.0)


def _mixture(seed: int) -> tuple[Domain, list[Measurement], int]:
    """All pairs of five attributes of 5,000 records from a mixture of six products, with noise."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers([20, 20, 5, 4, 3], [50, 50, 12, 8, 6])
    domain = Domain({name: int(size) for name, size in zip("abcde", sizes, strict=True)})
    component, records = rng.choice(6, 5000, p=rng.dirichlet(np.ones(6))), {}
    for name, size in domain.sizes.items():
        steps = rng.dirichlet(np.full(size, 0.15), 6).cumsum(1)[component]
        records[name] = (rng.random((5000, 1)) > steps).sum(1).clip(max=size - 1)
    pairs = Dataset(domain, records).marginals(itertools.combinations(domain, 2))
    noisy = [Measurement(c, t + rng.normal(0, 5, t.shape), 5.0) for c, t in pairs.items()]
    return domain, noisy, 5000


def test_a_certificate_by_steps_beyond_linear_space() -> None:
    """Pairs that agree with each other and with no records: a certificate needs potentials whose
    spread no pass in linear space holds.
    """
    domain, noisy, total = _mixture(91)
    model = estimate(domain, noisy, total=total)
    assert model.certified
    other = estimate(domain, noisy, total=total, method="proximal")
    assert other.certified
    assert abs(model.loss - other.loss) < 0.1 * model.unit


def test_steps_without_tolerance_end_when_the_loss_falls_no_more() -> None:
    measured = [
        Measurement(("a", "b"), [[30.0, 31.0], [21.0, 18.0]], 3.0),
        Measurement(("a",), [55.0, 44.0], 0.03),
        Measurement(("b",), [48.0, 53.0], 1.0),
    ]
    domain = Domain({"a": 2, "b": 2})
    model = estimate(domain, measured, total=100.0, loss="huber", method="proximal", tolerance=0.0)
    assert model.iterations < 1000
    assert model.gap < 1e-3 * model.unit


def test_newton_steps_without_tolerance_do_not_overflow() -> None:
    only_total = [Measurement(("a",), [120.1], 3.7, np.ones((1, 2)))]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        model = estimate(Domain({"a": 2}), only_total, total=100.0, tolerance=0.0)
    np.testing.assert_allclose(model.marginal(["a"]), 50.0)
