"""GEM: draws against charges, learning, reproducibility, refusals before spending."""

import functools
import math

import numpy as np
import pytest
from pricing import CellPriced, total_variation
from seams import draw_from

from mechanisms.datasets.census import census
from mechanisms.families.training import Generator
from mechanisms.gem import Gem, GemPub, gem, gem_pub
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.release.record import Release
from mechanisms.rounds.loop import Round
from mechanisms.workload import Workload, k_way
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.records.dataset import Dataset

SMALL = {"rounds": 4, "batch_rows": 60, "hidden": (32,), "noise_width": 8, "steps": 40}


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
    draw_from(curator, noise)
    release = gem(curator, k_way(curator.domain, 2), Gem(**SMALL, queries=1))
    # Rounds that find only noise make the further ones fewer.
    assert 4 + 2 <= len(noise.costs) <= 4 + 2 * 4 and len(noise.costs) % 2 == 0
    assert noise.costs == pytest.approx([e.cost for e in release.ledger.entries], rel=1e-9)
    assert math.fsum(noise.costs) == pytest.approx(curator.ledger.budget.total, rel=1e-9)


@functools.cache
def learnt(precision: str) -> float:
    _, release = run(epsilon=50.0, rounds=12, batch_rows=200, hidden=(64,), precision=precision)
    return total_variation(small_data(), release.model, k_way(small_data().domain, 2))


def test_it_learns() -> None:
    """The ratio is 0.495, standard deviation 0.0005: 200 away from the limit."""
    data = small_data()
    workload = k_way(data.domain, 2)
    uniform = Dataset(
        data.domain,
        {a: np.arange(10_000) * 7919 % n for a, n in data.domain.sizes.items()},
    )
    assert learnt("float32") < 0.6 * total_variation(data, uniform, workload)


def test_seeds_reproduce() -> None:
    first, second = (run()[1] for _ in range(2))
    for a, b in zip(first.measurements, second.measurements, strict=True):
        assert np.array_equal(a.values, b.values)
    np.testing.assert_array_equal(first.model.marginal(["work"]), second.model.marginal(["work"]))


def test_products_in_bfloat16_learn_too() -> None:
    """The ratio is 1.001, standard deviation 0.0005."""
    assert learnt("bfloat16") < 1.1 * learnt("float32")


@pytest.mark.parametrize("missing", [[], ["hours"]])
def test_public_records_are_the_start(missing: list[str]) -> None:
    """The ratio is 1.02 and 1.04, standard deviations 0.006 and 0.026: 7 away or more."""
    data = census(3000, seed=1).project(["sex", "work", "income", "hours"])
    public = small_data().project([name for name in data.domain if name not in missing])
    workload = k_way(data.domain, 2)
    curator = Curator(data, Budget(0.1, 1e-7), neighbours="replace-one", seed=0)
    settings = GemPub(batch_rows=200, noise_width=16, hidden=(64, 64), pretrain_steps=1000)
    release = gem_pub(curator, workload, settings, public=public)
    known = [c for c in workload.cliques if not set(c) & set(missing)]
    tables, truth, alone = (d.marginals(known) for d in (release.model, data, public))
    off, off_alone = (
        sum(np.abs(answers[clique] - truth[clique]).sum() for clique in known)
        for answers in (tables, alone)
    )
    assert off < 1.25 * off_alone
    # The one-way marginals are measured where the public records do not have them all.
    ones = [m for m in release.measurements if len(m.clique) == 1 and m.matrix is None]
    assert len(ones) == (4 if missing else 0)


def test_unfit_public_records_are_refused_before_spending() -> None:
    data = small_data()
    curator = Curator(data, Budget(1.0, 1e-7), neighbours="replace-one", seed=0)
    other = Dataset(Domain({"sex": 3}), {"sex": [0, 2]})
    unknown = Dataset(Domain({"zip": 2}), {"zip": [0, 1]})
    alone = data.project(["sex"])
    for public, match in [(other, "size 3"), (unknown, "'zip'"), (alone, "no workload clique")]:
        with pytest.raises(InvalidInput, match=match):
            gem_pub(curator, k_way(data.domain, 2), GemPub(**SMALL), public=public)
    assert curator.ledger.spent == 0


def test_refusals_come_before_spending() -> None:
    for settings in [{"rounds": 0}, {"select_share": 1.5}, {"batch_rows": 1}, {"select": "some"}]:
        with pytest.raises(InvalidInput):
            Gem(**settings)
    curator = Curator(small_data(), Budget(1.0, 1e-7), neighbours="replace-one", seed=0)
    with pytest.raises(InvalidInput):
        gem(curator, k_way(Domain({"a": 2, "b": 2}), 2), Gem(**SMALL))
    with pytest.raises(InvalidInput, match="fewer"):
        gem(curator, k_way(curator.domain, 2), Gem(**{**SMALL, "rounds": 10_000}))
    assert curator.ledger.spent == 0


def test_what_is_released_is_the_average_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[object] = []
    set_weights = Generator.set_weights

    def noted(self: Generator, weights: object) -> None:
        used.append(weights)
        set_weights(self, weights)

    monkeypatch.setattr(Generator, "set_weights", noted)
    rounds: list[Round] = []
    curator = Curator(small_data(200), Budget(20.0, 1e-7), neighbours="replace-one", seed=0)
    gem(curator, k_way(curator.domain, 2), Gem(**SMALL), progress=rounds.append)
    average = rounds[-1].after.average
    assert average is not None and used[-1] is average


@pytest.mark.parametrize("cliques", [[()], [(), ("sex",)]])
def test_the_total_may_be_a_query(cliques: list[tuple[str, ...]]) -> None:
    """Its answer is the same for all rows, also if no other query has been selected."""
    curator = Curator(small_data(), Budget(1.0, 1e-7), neighbours="replace-one", seed=0)
    workload = Workload(curator.domain, cliques)
    settings = Gem(**{**SMALL, "rounds": 1, "steps": 2}, queries=1, one_way_share=0.0)
    release = gem(curator, workload, settings)
    assert release.model.marginal([]) == pytest.approx(len(small_data()))


def test_public_records_cannot_stand_for_the_total_alone() -> None:
    data = small_data()
    curator = Curator(data, Budget(1.0, 1e-7), neighbours="replace-one", seed=0)
    with pytest.raises(InvalidInput, match="no workload clique whole"):
        gem_pub(curator, Workload(data.domain, [()]), GemPub(**SMALL), public=data)
    assert curator.ledger.spent == 0
