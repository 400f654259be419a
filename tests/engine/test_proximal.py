"""Proximal steps that try points beyond linear space."""

import itertools

import numpy as np

from pgmkit import Domain, Measurement, estimate


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
