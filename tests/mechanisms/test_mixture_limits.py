"""What the mixture measures at the limits of its cells and of the noise, and its model of these."""

import math
from typing import Any

import numpy as np
import pytest

from mechanisms.families.pair_mixture import PairMixtureModel
from mechanisms.families.product_mixture import ProductMixtureModel
from mechanisms.mixture import Mixture, mixture
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.workload import Workload, k_way
from pgmkit.domain import Domain
from pgmkit.errors import ModelTooLarge
from pgmkit.records.dataset import Dataset

DOMAIN = Domain({"a": 2, "b": 3, "c": 8})
DATA = Dataset(DOMAIN, dict.fromkeys(DOMAIN, np.arange(3000) % 2))
QUICK: dict[str, Any] = {"rows": 2, "steps": 1, "level": 0.0}


def test_only_pairs_are_measured_where_rare_codes_are_merged() -> None:
    """Three codes an attribute are left, of which triples have 27 cells, but all codes 216,000."""
    domain = Domain(dict.fromkeys("abc", 60))
    data = Dataset(domain, dict.fromkeys("abc", np.arange(2000) % 2))
    curator = Curator(data, Budget(1.0, 1e-7), neighbours="replace-one", seed=0)
    settings = Mixture(**QUICK, cells=5000)
    release = mixture(curator, k_way(domain, 3), settings)
    assert sorted({len(m.clique) for m in release.measurements}) == [1, 2]


@pytest.mark.parametrize(("k", "kind"), [(2, PairMixtureModel), (3, ProductMixtureModel)])
def test_records_are_drawn_nearer_to_independence_where_pairs_alone_were_fitted(
    k: int, kind: type[ProductMixtureModel]
) -> None:
    curator = Curator(DATA, Budget(1.0, 1e-7), neighbours="replace-one", seed=0)
    release = mixture(curator, k_way(DATA.domain, k), Mixture(**QUICK))
    assert max(len(m.clique) for m in release.measurements) == k
    assert type(release.model) is kind


@pytest.mark.parametrize("more", [False, True])
def test_sets_are_sought_unless_their_noise_is_twice_the_number_of_records(more: bool) -> None:
    """A replaced row moves two counts by 1, so the noise of each has the variance 1 / cost."""
    budget, triple = Budget(1.0, 1e-7), ("a", "b", "c")
    noise = math.sqrt(2 / math.pi / (0.9 * 0.1 * budget.total))
    rows = math.floor(48 * noise / 2) + more
    data = Dataset(DOMAIN, dict.fromkeys(DOMAIN, np.arange(rows) % 2))
    workload = Workload(DOMAIN, [("a", "b"), triple], sought=[triple])
    curator = Curator(data, budget, neighbours="replace-one", seed=0)
    release = mixture(curator, workload, Mixture(**QUICK))
    assert (release.measurements[-1].clique == triple) == more
    assert curator.remaining == 0


def test_a_card_without_room_is_refused_before_spending(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_of: object) -> None:
        raise ModelTooLarge("full")

    monkeypatch.setattr("mechanisms.mixture.check_room", full)
    curator = Curator(DATA, Budget(1.0, 1e-7), neighbours="replace-one", seed=0)
    with pytest.raises(ModelTooLarge, match="full"):
        mixture(curator, k_way(DOMAIN, 2), Mixture(**QUICK))
    assert curator.ledger.spent == 0
