"""Replicates of decomposable models in closed form, against estimation and inference."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pgmkit.uncertainty
from pgmkit import Dataset, Domain, FactoredQuery, Measurement, Zeros, error_bars, estimate
from pgmkit.total import estimate_total
from pgmkit.uncertainty.closed_form import ClosedForm, closed_form


def drawn_problem(
    rng: np.random.Generator, zeros: bool
) -> tuple[Domain, list[Measurement], list[Zeros]]:
    """A forest of tables of two or three columns, some of their parts, and repetitions."""
    count = int(rng.integers(2, 7))
    domain = Domain({f"x{i}": int(rng.integers(1, 5)) for i in range(count)})
    names = list(domain)
    cliques: list[tuple[str, ...]] = [(names[0],)]
    for i, name in enumerate(names[1:], 1):
        before = cliques[int(rng.integers(len(cliques)))] if rng.random() < 0.8 else ()
        kept = int(rng.integers(1, 3))
        cliques.append(tuple(rng.permutation([*before[:kept], name])) if i else (name,))
    for clique in list(cliques):
        if rng.random() < 0.3:
            cliques.append(clique[: int(rng.integers(0, len(clique) + 1))])
    rows = {name: rng.integers(0, size, 400) for name, size in domain.sizes.items()}
    for one, other in itertools.pairwise(names):
        same = rng.random(400) < 0.7
        rows[other] = np.where(same, rows[one] % domain.sizes[other], rows[other])
    found = []
    barred = [
        Zeros(clique, rng.random(domain.shape(clique)) < 0.8)
        for clique in cliques
        if zeros and len(clique) > 1 and rng.random() < 0.5
    ]
    # The first value of every column stays possible.
    for each in barred:
        each.allowed.setflags(write=True)
        each.allowed[(0,) * len(each.clique)] = True
        each.allowed.setflags(write=False)
    for clique in cliques:
        noise = float(rng.choice([2.0, 8.0, 30.0]))
        counts = Dataset(domain, rows).marginal(clique)
        found.append(Measurement(clique, rng.normal(counts, noise), noise))
    return domain, found, barred


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), zeros=st.booleans(), total=st.booleans())
def test_a_replicate_is_what_estimation_and_inference_give(
    seed: int, zeros: bool, total: bool
) -> None:
    rng = np.random.default_rng(seed)
    domain, measurements, barred = drawn_problem(rng, zeros)
    fixed = 400.0 if total else None
    model = estimate(domain, measurements, total=fixed, zeros=barred)
    closed = closed_form(model, measurements, barred)
    assert closed is not None
    drawn = closed.draw(rng)
    noisy = closed.measurements(drawn)
    size = fixed or max(1.0, closed.total(drawn))
    again = estimate(domain, noisy, total=size, zeros=barred, tolerance=1e-3)
    made = closed.model(drawn, size)
    assert made is not None and again.certified
    for clique in made.tree.cliques:
        # As far from the best tables as the two gaps allow, by strong convexity.
        noise = max(m.stddev for m in measurements)
        reach = noise * np.sqrt(2 * (again.gap + 1e-9)) + noise * np.sqrt(2 * (made.gap + 1e-9))
        apart = np.linalg.norm(made.marginal(clique) - again.marginal(clique))
        assert apart <= reach + 1e-6 * size
        np.testing.assert_allclose(
            replace(made).marginal(clique), made.marginal(clique), atol=1e-9 * size
        )
    names = tuple(domain)[:3]
    query = FactoredQuery.marginal(domain, names)
    np.testing.assert_allclose(replace(made).answer(query), made.answer(query), atol=1e-9 * size)


def test_the_total_is_that_of_the_measurements() -> None:
    rng = np.random.default_rng(3)
    domain, measurements, _ = drawn_problem(rng, zeros=False)
    closed = closed_form(estimate(domain, measurements), measurements, ())
    assert closed is not None
    drawn = closed.draw(rng)
    noisy = closed.measurements(drawn)
    assert closed.total(drawn) == pytest.approx(estimate_total(noisy).value, rel=1e-12)


def test_bars_are_those_of_estimation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draws, each re-estimated: standard errors differ by less than a hundredth."""
    rng = np.random.default_rng(0)
    domain = Domain({"a": 3, "b": 4, "c": 2, "d": 5})
    joint = rng.dirichlet(np.ones(domain.size())).reshape(domain.shape()) * 5000
    measurements = []
    for clique in [("a", "b"), ("b", "c"), ("c", "d"), ("a",)]:
        others = tuple(i for i, name in enumerate(domain) if name not in clique)
        measurements.append(Measurement(clique, rng.normal(joint.sum(axis=others), 20.0), 20.0))
    model = estimate(domain, measurements)
    found = []
    for _ in range(2):
        bars = error_bars(model, measurements, replicates=40, seed=1).marginal(("a", "d"))
        found.append(bars.stddev)
        # Now by estimation.
        monkeypatch.setattr(ClosedForm, "model", lambda *_: None)
        monkeypatch.setattr(pgmkit.uncertainty, "_TOLERANCE", 1e-3)
    assert not np.array_equal(*found)
    np.testing.assert_allclose(*found, rtol=0.01)
