"""The mixture mechanism: its fit against the maximum-entropy model, draws against charges."""

import itertools
import math

import numpy as np
import pytest
import torch
from pricing import Priced, total_variation

from mechanisms.datasets.census import census
from mechanisms.families.mixture_fit import fit_mixture
from mechanisms.families.product_mixture import Columns, ProductAnswers
from mechanisms.mixture import Mixture, mixture
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import NEIGHBOURS
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
    drawn = 4 + 6 + 4 if cells > 10 else 4 + 2 * 6
    assert len(noise.costs) == drawn
    assert noise.costs == pytest.approx([e.cost for e in release.ledger.entries], rel=1e-9)
    assert math.fsum(noise.costs) == pytest.approx(curator.ledger.budget.total, rel=1e-9)


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
    assert curator.ledger.spent == 0
