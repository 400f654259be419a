"""GEM: draws against charges, learning, reproducibility, refusals before spending."""

import math

import numpy as np
import pytest
from pricing import CellPriced, total_variation

from mechanisms.budget import Budget
from mechanisms.census import census
from mechanisms.curator import NEIGHBOURS, Curator
from mechanisms.gem import Gem, gem
from mechanisms.release import Release
from mechanisms.workload import k_way
from pgmkit.dataset import Dataset
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput

SMALL = {"rounds": 4, "rows": 60, "hidden": (32,), "noise_width": 8, "steps": 40}


def small_data(rows: int = 3000) -> Dataset:
    return census(rows).project(["sex", "work", "income", "hours"])


def run(epsilon: float = 1.0, seed: int = 0, **settings: object) -> tuple[Curator, Release]:
    curator = Curator(small_data(), Budget(epsilon, 1e-7), neighbours="replace-one", seed=seed)
    return curator, gem(curator, k_way(curator.domain, 2), Gem(**{**SMALL, **settings}))


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-7])
def test_draws_match_charges_and_the_budget(relation: str, delta: float) -> None:
    curator = Curator(small_data(), Budget(1.0, delta), neighbours=relation)
    noise = CellPriced(relation, pure=delta == 0)
    curator._noise = noise
    release = gem(curator, k_way(curator.domain, 2), Gem(**SMALL))
    assert len(noise.costs) == 4 + 2 * 4
    assert noise.costs == pytest.approx([e.cost for e in release.ledger.entries], rel=1e-9)
    assert math.fsum(noise.costs) == pytest.approx(curator.ledger.budget.total, rel=1e-9)


def test_it_learns() -> None:
    data = small_data()
    workload = k_way(data.domain, 2)
    uniform = Dataset(
        data.domain,
        {a: np.arange(10_000) * 7919 % n for a, n in data.domain.sizes.items()},
    )
    _, release = run(epsilon=50.0, rounds=25, rows=200, hidden=(64,))
    learnt = total_variation(data, release.model, workload)
    assert learnt < 0.4 * total_variation(data, uniform, workload)


def test_seeds_reproduce() -> None:
    first, second = (run()[1] for _ in range(2))
    for a, b in zip(first.measurements, second.measurements, strict=True):
        assert np.array_equal(a.values, b.values)
    np.testing.assert_array_equal(first.model.marginal(["work"]), second.model.marginal(["work"]))


def test_refusals_come_before_spending() -> None:
    for settings in [{"rounds": 0}, {"alpha": 1.5}, {"rows": 1}, {"select": "some"}]:
        with pytest.raises(InvalidInput):
            Gem(**settings)
    curator = Curator(small_data(), Budget(1.0, 1e-7), neighbours="replace-one", seed=0)
    with pytest.raises(InvalidInput):
        gem(curator, k_way(Domain({"a": 2, "b": 2}), 2), Gem(**SMALL))
    with pytest.raises(InvalidInput, match="fewer"):
        gem(curator, k_way(curator.domain, 2), Gem(**{**SMALL, "rounds": 10_000}))
    assert curator.ledger.spent == 0
