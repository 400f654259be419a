"""An earlier model brought up to new tables, compared with the joint written out."""

from __future__ import annotations

import time
from math import inf
from unittest.mock import patch

import numpy as np
import pytest
import torch
from brute_force import Problem as Written
from brute_force import Table, log_weights, random_problem, spread, structures, summed
from hypothesis import given
from hypothesis import strategies as st

from pgmkit import Domain, Measurement, estimate
from pgmkit.domain import Clique
from pgmkit.estimation import scaling
from pgmkit.estimation.problem import Point, Problem
from pgmkit.estimation.scaling import refit
from pgmkit.graphs.clique_index import maximal
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.losses import make_loss

TOTAL = 1000.0
SEEDS = st.integers(0, 10**6)


def measured(
    domain: Domain, cliques: list[Clique], tables: list[Table], noise: Table, late: float
) -> Problem:
    """The problem to fit these tables, of one standard deviation each."""
    inference = MarginalOracle(domain, cliques)
    y = [
        Measurement(c, table.astype(np.float64).ravel(), float(stddev))
        for c, table, stddev in zip(cliques, tables, noise, strict=True)
    ]
    loss = make_loss("squared", inference.layout, y, inference.dtype, inference.device)
    return Problem(inference, loss, TOTAL, late)


def brought_up(
    earlier: Written, tables: list[Table], noise: Table, enough: float, late: float = inf
) -> tuple[Point, Point]:
    """The earlier model as a start, and what `refit` makes of it."""
    problem = measured(earlier.domain, earlier.cliques, tables, noise, late)
    start = problem.point(earlier.flat())
    return start, refit(problem, start, [t.astype(np.float64) for t in tables], enough)


def joint(earlier: Written, potentials: torch.Tensor) -> Table:
    """The joint of these potentials over the earlier model's cliques, in counts."""
    sizes = [earlier.domain.size(clique) for clique in earlier.cliques]
    parts = np.split(potentials.numpy(), np.cumsum(sizes)[:-1])
    shaped = [
        part.reshape(earlier.domain.shape(c))
        for c, part in zip(earlier.cliques, parts, strict=True)
    ]
    weights = log_weights(earlier.domain, earlier.cliques, shaped)
    unscaled = np.exp(weights - weights.max())
    return unscaled * (TOTAL / unscaled.sum())


def misfit(earlier: Written, potentials: torch.Tensor, tables: list[Table], noise: Table) -> float:
    """The squared loss of these potentials by the joint."""
    cells = joint(earlier, potentials)
    apart = [
        (summed(earlier.domain, cells, c) - table) / stddev
        for c, table, stddev in zip(earlier.cliques, tables, noise, strict=True)
    ]
    return float(sum((part**2).sum() for part in apart) / 2)


def random_table(rng: np.random.Generator, shape: tuple[int, ...]) -> Table:
    """Positive, of the total."""
    table = rng.uniform(0.1, 1.0, shape).astype(np.longdouble)
    return table * (TOTAL / table.sum())


def random_noise(rng: np.random.Generator, earlier: Written) -> Table:
    """A standard deviation for each clique, in counts; some tables say a thousand times more."""
    return 10 ** rng.uniform(-1, 2, len(earlier.cliques))


@st.composite
def models(draw: st.DrawFn) -> Written:
    domain, cliques = draw(structures(5))
    kept = [cliques[place] for place in maximal(cliques)]
    return random_problem(domain, kept, draw(SEEDS), width=1.5)


@given(models(), SEEDS)
def test_one_changed_table_is_matched_with_all_that_follows_from_it(
    earlier: Written, seed: int
) -> None:
    """The joint times new table / old table has the new marginals: one step of scaling."""
    rng = np.random.default_rng(seed)
    domain, cells = earlier.domain, earlier.joint(TOTAL)
    clique = earlier.cliques[rng.integers(len(earlier.cliques))]
    ratio = random_table(rng, domain.shape(clique)) / summed(domain, cells, clique)
    tables = [summed(domain, cells * spread(domain, clique, ratio), c) for c in earlier.cliques]
    noise = random_noise(rng, earlier)
    start, found = brought_up(earlier, tables, noise, enough=1e-9)
    before = misfit(earlier, start.potentials, tables, noise)
    after = misfit(earlier, found.potentials, tables, noise)
    assert after <= 1e-9
    assert after < before or before <= 1e-9


@given(st.integers(2, 5), st.integers(2, 4), SEEDS)
def test_in_a_chain_a_changed_table_leaves_the_others_as_they_were(
    attributes: int, size: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    domain = Domain({f"x{i}": size for i in range(attributes + 1)})
    names = domain.attributes
    earlier = random_problem(
        domain, [(names[i], names[i + 1]) for i in range(attributes)], seed, width=1.5
    )
    tables = [summed(domain, earlier.joint(TOTAL), clique) for clique in earlier.cliques]
    changed = random_table(rng, (size, size))
    tables[-1] = changed * (tables[-1].sum(1) / changed.sum(1))[:, None]
    _, found = brought_up(earlier, tables, random_noise(rng, earlier), enough=1e-9)
    cells = joint(earlier, found.potentials)
    for clique, table in zip(earlier.cliques, tables, strict=True):
        np.testing.assert_allclose(
            summed(domain, cells, clique).astype(float), table.astype(float), rtol=1e-9
        )


@given(models(), SEEDS, st.integers(1, 10))
def test_the_loss_never_rises_and_is_that_of_the_potentials(
    earlier: Written, seed: int, steps: int
) -> None:
    """Whatever the new table says, though no joint may have it beside the others, and wherever the
    steps end.
    """
    rng = np.random.default_rng(seed)
    domain, cells = earlier.domain, earlier.joint(TOTAL)
    tables = [summed(domain, cells, clique) for clique in earlier.cliques]
    place = int(rng.integers(len(tables)))
    tables[place] = random_table(rng, tables[place].shape)
    noise = random_noise(rng, earlier)
    with patch.object(scaling, "START_STEPS", steps):
        start, found = brought_up(earlier, tables, noise, enough=0.0)
    before = misfit(earlier, start.potentials, tables, noise)
    after = misfit(earlier, found.potentials, tables, noise)
    assert after <= before * (1 + 1e-9) + 1e-9
    written = [summed(domain, joint(earlier, found.potentials), c).ravel() for c in earlier.cliques]
    np.testing.assert_allclose(
        found.marginals.numpy(), np.concatenate(written).astype(float), rtol=1e-8
    )


@given(models(), SEEDS)
def test_nothing_is_done_where_it_fits_or_the_time_is_up(earlier: Written, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = [random_table(rng, earlier.domain.shape(clique)) for clique in earlier.cliques]
    noise = random_noise(rng, earlier)
    start, found = brought_up(earlier, tables, noise, enough=inf)
    assert found is start
    start, found = brought_up(earlier, tables, noise, enough=0.0, late=time.perf_counter())
    assert found is start


def contradicting(seed: int) -> tuple[Domain, list[Measurement]]:
    """A 5 x 5 grid of Boolean attributes whose pairs have tables of different distributions."""
    rng = np.random.default_rng(seed)
    names = {(i, j): f"x{i}{j}" for i in range(5) for j in range(5)}
    edges = [
        (name, names[there])
        for (i, j), name in names.items()
        for there in ((i + 1, j), (i, j + 1))
        if there in names
    ]
    tables = [rng.dirichlet(np.full(4, 0.1)) * 1000 + rng.normal(0, 10, 4) for _ in edges]
    measured = [Measurement(edge, y, 10.0) for edge, y in zip(edges, tables, strict=True)]
    return Domain(dict.fromkeys(names.values(), 2)), measured


@pytest.mark.parametrize("seed", [1, 2])
def test_tables_that_contradict_each_other_are_fitted_from_where_the_way_is_short(
    seed: int,
) -> None:
    domain, measured = contradicting(seed)
    model = estimate(domain, measured, total=1000)
    assert model.gap <= model.unit
    assert model.iterations <= 200
