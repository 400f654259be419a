"""The mixture mechanism: its fit against the maximum-entropy model, draws against charges."""

import itertools
import math

import numpy as np
import pytest
import torch
from chance import assert_mean, assert_stddev
from pricing import Priced, total_variation

from mechanisms.datasets.census import census
from mechanisms.families.held_out import best_penalty, splits
from mechanisms.families.mixture_fit import Misfit, fit_mixture, nearest_counts
from mechanisms.families.product_mixture import Columns, ProductAnswers, ProductMixtureModel
from mechanisms.mixture import Mixture, mixture
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.rounds.distances import Distances
from mechanisms.workload import k_way
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.estimation import estimate
from pgmkit.measurement import Measurement

DATA = census(4000).project(["sex", "work", "income", "hours"])
PAIRS = k_way(DATA.domain, 2)
QUICK = {"rows": 60, "steps": 60}


def fitted(measurements: list[Measurement], penalty: float, steps: int = 400) -> torch.Tensor:
    return fit_mixture(
        Columns(DATA.domain),
        measurements,
        4000.0,
        rows=200,
        steps=steps,
        learning_rate=0.1,
        penalty=penalty,
        random=torch.Generator().manual_seed(0),
    )


def exact(k: int, stddev: float) -> list[Measurement]:
    cliques = [c for j in range(1, k + 1) for c in itertools.combinations(DATA.domain, j)]
    return [Measurement(c, DATA.marginal(c), stddev) for c in cliques]


def answers(rows: torch.Tensor, k: int) -> np.ndarray:
    tables = ProductAnswers(Columns(DATA.domain), k_way(DATA.domain, k).cliques)(rows)
    return np.concatenate([table.numpy().ravel() for table in tables.values()])


def test_the_penalty_leads_from_the_tables_to_independence() -> None:
    """The errors are 1.6e-4 and 8e-7; over starts the first has a standard deviation of 5e-6."""
    measured = exact(2, 20.0)
    truth = np.concatenate([DATA.marginal(c).ravel() / 4000 for c in PAIRS.cliques])
    shares = {n: DATA.marginal((n,)) / 4000 for n in DATA.domain}
    independent = np.concatenate([np.outer(shares[a], shares[b]).ravel() for a, b in PAIRS.cliques])
    assert np.abs(answers(fitted(measured, 1e-3), 2) - truth).mean() < 3e-4
    np.testing.assert_allclose(answers(fitted(measured, 1e9), 2), independent, atol=2e-3)


def test_what_was_not_measured_is_near_the_maximum_entropy_model() -> None:
    """The ratio is 0.063, over starts with a standard deviation of 0.001."""
    measured = exact(2, 20.0)
    model = estimate(DATA.domain, measured, total=4000)
    triples = k_way(DATA.domain, 3).cliques
    entropic = np.concatenate([model.marginal(c).ravel() / 4000 for c in triples])
    independent = answers(fitted(measured, 1e9), 3)
    found = answers(fitted(measured, 30.0, steps=800), 3)
    assert np.abs(found - entropic).sum() < 0.25 * np.abs(independent - entropic).sum()


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-7])
@pytest.mark.parametrize("cells", [50_000, 10])
def test_draws_match_charges_and_the_budget(relation: str, delta: float, cells: int) -> None:
    curator = Curator(DATA, Budget(1.0, delta), neighbours=relation)
    noise = Priced(relation, pure=delta == 0)
    curator._noise = noise
    release = mixture(curator, k_way(DATA.domain, 3), Mixture(**QUICK, cells=cells))
    drawn = 4 + 1 + 6 + 4 if cells > 10 else 4 + 2 * 6
    assert len(noise.costs) == drawn
    if cells > 10:
        # Six distances at once, each of which a neighbour moves by l1, not as a table's cells.
        squares = {"replace-one": 2, "add/remove": 1}[relation]
        noise.costs[4] *= 6 if delta == 0 else 6 * squares
    assert noise.costs == pytest.approx([e.cost for e in release.ledger.entries], rel=1e-9)
    assert math.fsum(noise.costs) == pytest.approx(curator.ledger.budget.total, rel=1e-9)


def missed(model: ProductMixtureModel, measured: list[Measurement]) -> float:
    return sum(
        float((((model.marginal(m.clique).ravel() - m.values) / m.stddev) ** 2).sum())
        for m in measured
    )


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_misfit_is_that_of_cell_by_cell_sums(k: int) -> None:
    """Whichever way pairs are answered, and with measurements repeated and turned round."""
    rng = np.random.default_rng(k)
    domain = Domain({"a": 2, "b": 5, "c": 3, "d": 4})
    columns = Columns(domain)
    rows = columns.softmax(torch.tensor(rng.normal(size=(7, columns.width)), dtype=torch.float32))
    uniform = columns.softmax(torch.zeros(7, columns.width))
    model, even = (ProductMixtureModel(domain, each.numpy(), 50.0) for each in (rows, uniform))
    cliques = [c for j in range(1, k + 1) for c in itertools.permutations(domain, j)]
    measured = [
        Measurement(c, rng.normal(size=domain.shape(c)), float(rng.uniform(0.5, 2)))
        for c in (*cliques, *cliques[:6])
    ]
    for some in (measured, measured[:5]):
        misfit = Misfit(columns, some, 50.0)
        # Up to a constant: repeated pairs are one by the inverse of their variances.
        found = float(misfit(rows) - misfit(uniform))
        expected = missed(model, some) - missed(even, some)
        assert found == pytest.approx(expected, rel=1e-3, abs=0.05)
        recorded = rows.clone().requires_grad_()
        misfit(recorded).backward()
        torch.testing.assert_close(misfit.slope(rows), recorded.grad, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_the_fit_is_that_of_recorded_gradients(seed: int) -> None:
    """The objective as it is documented, by torch's own gradients and optimiser."""
    rng = np.random.default_rng(seed)
    domain = Domain({"a": 2, "b": 1, "c": 5, "d": 3})
    columns = Columns(domain)
    cliques = [("a",), ("b",), ("c",), ("d",), ("c", "a"), ("d", "c"), ("a", "c", "d")]
    noisy = [
        Measurement(c, rng.uniform(0, 60, size=domain.shape(c)), float(rng.uniform(2, 9)))
        for c in cliques[: 7 - seed % 2]
    ]
    found = fit_mixture(
        columns, noisy, 120.0, rows=6, steps=40, learning_rate=0.2, penalty=3.0,
        random=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    shares = [nearest_counts(m.values, 120.0) / 120 for m in noisy[:4]]
    floored = [np.maximum(each, 1e-5) for each in shares]
    independent = torch.tensor(np.log(np.concatenate([each / each.sum() for each in floored])))
    spread = torch.randn(6, columns.width, generator=torch.Generator().manual_seed(seed))
    logits = (independent + 0.5 * spread).requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=0.2, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40, 0.2 / 50)
    for _ in range(40):
        rows = columns.softmax(logits)
        loss = 3.0 / 6 * (rows * (rows.log() - independent)).sum()
        answers = ProductAnswers(columns, [m.clique for m in noisy])(rows)
        for m in noisy:
            missed = 120 * answers[m.clique].reshape(-1) - torch.tensor(m.values)
            loss = loss + (missed / m.stddev).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    torch.testing.assert_close(found.double(), columns.softmax(logits.detach()), rtol=0, atol=2e-3)


def test_held_out_noise_is_independent_of_what_is_given() -> None:
    """40,000 cells whose truth is 0, so that values are noise."""
    rng = np.random.default_rng(1)
    measured = Measurement(("a",), rng.normal(0, 3.0, 40_000), 3.0)
    for (given,), (kept,) in splits([measured], rng=2):
        for each in (given, kept):
            assert_stddev(float(np.std(each.values)), each.stddev, 40_000)
        products = given.values * kept.values / (given.stddev * kept.stddev)
        assert_mean(products, 0.0)


def test_what_is_linear_in_fresh_noise_falls_out_of_the_mean_of_two_splits() -> None:
    """Of a linear fit: what it misses of the values, and squares of the fresh noise, are left."""
    rng = np.random.default_rng(5)
    measured = Measurement(("a",), rng.normal(0, 3.0, 50), 2.0)
    fit = rng.normal(size=(50, 50))
    missed = measured.values - fit @ measured.values
    losses, noises = [], []
    for (given,), (kept,) in splits([measured], rng=6):
        losses.append(((kept.values - fit @ given.values) ** 2).mean())
        noise = (kept.values - measured.values) - fit @ (given.values - measured.values)
        noises.append((noise**2).mean())
        assert losses[-1] != pytest.approx((missed**2).mean() + noises[-1], rel=1e-3)
    assert np.mean(losses) == pytest.approx((missed**2).mean() + np.mean(noises), rel=1e-12)


@pytest.mark.parametrize("best", [0.3, 1.0, 5.0, 40.0])
def test_the_walk_ends_at_the_least_loss(best: float) -> None:
    found = best_penalty(lambda penalty: math.log(penalty / best) ** 2, 4.0)
    assert found == pytest.approx(best, rel=1e-6)
    assert best_penalty(lambda penalty: penalty, 4.0) == 4.0 / 2**8
    assert best_penalty(lambda penalty: -penalty, 4.0) == 4.0 * 2**8


def test_a_table_of_noise_asks_for_more_penalty_than_an_exact_one() -> None:
    """Noise of 300 in tables of 4,000 records hides their dependence; noise of 2 does not."""
    found = {}
    for stddev in (300.0, 2.0):
        rng = np.random.default_rng(0)
        noisy = [
            Measurement(m.clique, m.values + rng.normal(0, stddev, len(m.values)), stddev)
            for m in exact(2, stddev)
        ]
        given, kept = splits(noisy, rng=1)[0]
        misfit = Misfit(Columns(DATA.domain), kept, 4000.0)

        def loss(
            penalty: float, given: list[Measurement] = given, misfit: Misfit = misfit
        ) -> float:
            return float(misfit(fitted(given, penalty, steps=150)))

        found[stddev] = best_penalty(loss, 8.0) * stddev**2
    assert found[300.0] > 2 * found[2.0]


def test_dependent_pairs_get_more_of_the_budget() -> None:
    release = mixture(
        Curator(DATA, Budget(20.0, 1e-7), neighbours="add/remove", seed=0), PAIRS, Mixture(**QUICK)
    )
    noise = {m.clique: m.stddev for m in release.measurements if len(m.clique) == 2}
    shares = {n: DATA.marginal((n,)) / 4000 for n in DATA.domain}
    distances = {
        c: np.abs(DATA.marginal(c) - 4000 * np.outer(shares[c[0]], shares[c[1]])).sum()
        for c in PAIRS.cliques
    }
    assert min(noise, key=noise.__getitem__) == max(distances, key=distances.__getitem__)
    assert max(noise, key=noise.__getitem__) == min(distances, key=distances.__getitem__)


def test_it_is_accurate_and_seeds_reproduce() -> None:
    """The error is 0.0155, standard deviation 0.0006: 25 away from the limit."""
    releases = [
        mixture(
            Curator(DATA, Budget(5.0, 1e-7), neighbours="replace-one", seed=3),
            PAIRS,
            Mixture(rows=100, steps=200),
        )
        for _ in range(2)
    ]
    assert total_variation(DATA, releases[0].model, PAIRS) < 0.03
    first, second = (release.model.marginal(("work", "hours")) for release in releases)
    np.testing.assert_array_equal(first, second)


def test_one_way_workloads_spend_everything_too() -> None:
    curator = Curator(DATA, Budget(1.0, 1e-7), neighbours="add/remove", seed=0)
    release = mixture(curator, k_way(DATA.domain, 1), Mixture(**QUICK))
    assert len(release.measurements) == 4
    assert curator.ledger.spent == pytest.approx(curator.ledger.budget.total)


def test_refusals_come_before_spending() -> None:
    for settings in [{"rows": 0}, {"penalty": 0.0}, {"one_way_share": 0.7}, {"steps": 1.5}]:
        with pytest.raises(InvalidInput):
            Mixture(**settings)
    curator = Curator(DATA, Budget(1.0, 1e-7), neighbours="replace-one", seed=0)
    with pytest.raises(InvalidInput, match="another domain"):
        mixture(curator, k_way(Domain({"a": 2, "b": 2}), 2))
    few = Distances({pair: 1.0 for pair in PAIRS.cliques[1:]}, 1.0)
    with pytest.raises(InvalidInput, match=r"every pair.*lack \('sex', 'work'\)"):
        mixture(curator, PAIRS, distances=few)
    assert curator.ledger.spent == 0
