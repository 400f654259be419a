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
from mechanisms.rounds.merging import Tables, best_tables
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


@pytest.mark.parametrize(("cells", "pairs"), [(99, 1), (199, 1), (200, 2), (201, 2)])
def test_as_many_pairs_are_selected_as_the_cells_hold_and_one_at_least(
    cells: int, pairs: int
) -> None:
    domain = Domain(dict.fromkeys("abcd", 10))
    data = Dataset(domain, dict.fromkeys("abcd", np.arange(2000) % 10))
    curator = Curator(data, Budget(1.0, 1e-7), neighbours="replace-one", seed=0)
    release = mixture(curator, k_way(domain, 2), Mixture(**QUICK, cells=cells))
    assert sum(len(m.clique) == 2 for m in release.measurements) == pairs


@pytest.mark.parametrize(("k", "kind"), [(2, PairMixtureModel), (3, ProductMixtureModel)])
def test_records_are_drawn_nearer_to_independence_where_pairs_alone_were_fitted(
    k: int, kind: type[ProductMixtureModel]
) -> None:
    curator = Curator(DATA, Budget(1.0, 1e-7), neighbours="replace-one", seed=0)
    release = mixture(curator, k_way(DATA.domain, k), Mixture(**QUICK))
    assert max(len(m.clique) for m in release.measurements) == k
    assert type(release.model) is kind


def test_each_number_of_attributes_gets_half_of_what_the_number_before_gets() -> None:
    """Of the budget less a tenth for single attributes and a fiftieth for distances."""
    curator = Curator(DATA, Budget(1.0, 1e-7), neighbours="replace-one", seed=0)
    mixture(curator, k_way(DOMAIN, 3), Mixture(**QUICK))
    of_triple = [e.cost for e in curator.ledger.entries if e.step.startswith("3-way: measure")]
    assert of_triple == pytest.approx([0.88 / 3 * curator.ledger.budget.total], rel=1e-9)


def test_a_code_beyond_the_bins_is_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def tables(*given: Any, **options: Any) -> Tables:
        asked.append(options["bins"])
        return best_tables(*given, **options)

    monkeypatch.setattr("mechanisms.mixture.best_tables", tables)
    curator = Curator(DATA, Budget(1.0, 1e-7), neighbours="replace-one", seed=0)
    mixture(curator, k_way(DOMAIN, 2), Mixture(**QUICK), bins={"b": 3, "c": 7})
    assert asked == [{"a": 0, "b": 3, "c": 7}]


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
