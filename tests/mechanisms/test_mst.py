"""MST: draws against charges, the tree against networkx, forests, refusals."""

import math

import networkx as nx
import numpy as np
import pytest
from pricing import Priced, total_variation
from seams import draw_from

from mechanisms.datasets.census import census
from mechanisms.mst import Mst, mst
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.workload import Workload, k_way
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.records.dataset import Dataset


def small_data(rows: int = 4177) -> Dataset:
    return census(rows).project(["sex", "education", "work", "hours", "income"])


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-8])
def test_draws_match_charges_and_the_budget(relation: str, delta: float) -> None:
    curator = Curator(small_data(), Budget(1.0, delta), neighbours=relation)
    noise = Priced(relation, pure=delta == 0)
    draw_from(curator, noise)
    release = mst(curator, k_way(curator.domain, 2))
    assert len(noise.costs) == 5 + 4 + 4
    assert noise.costs == pytest.approx([e.cost for e in release.ledger.entries], rel=1e-9)
    assert math.fsum(noise.costs) == pytest.approx(curator.ledger.budget.total, rel=1e-9)


def test_with_much_budget_it_is_the_maximum_spanning_tree() -> None:
    data = small_data()
    curator = Curator(data, Budget(1e5, 1e-8), neighbours="replace-one", seed=0)
    release = mst(curator, k_way(curator.domain, 2))
    chosen = {m.clique for m in release.measurements if len(m.clique) == 2}
    graph = nx.Graph()
    for clique in k_way(data.domain, 2).cliques:
        table = data.marginal(clique)
        independent = np.outer(table.sum(1), table.sum(0)) / len(data)
        graph.add_edge(*clique, weight=np.abs(table - independent).sum())
    best = nx.maximum_spanning_tree(graph)
    assert {frozenset(c) for c in chosen} == {frozenset(e) for e in best.edges}
    workload = Workload(data.domain, chosen)
    assert total_variation(data, release.model, workload) < 1e-3
    assert release.model.stopped.startswith("certified")


def test_a_workload_in_two_parts_gives_a_forest() -> None:
    data = small_data()
    workload = Workload(data.domain, [("sex", "education"), ("work", "hours", "income")])
    curator = Curator(data, Budget(1.0, 1e-8), neighbours="add/remove", seed=0)
    pairs = [m.clique for m in mst(curator, workload).measurements if len(m.clique) == 2]
    assert len(pairs) == 3 and ("sex", "education") in pairs
    assert curator.remaining == 0


def test_single_attributes_need_no_tree() -> None:
    data = small_data()
    curator = Curator(data, Budget(1.0, 1e-8), neighbours="add/remove", seed=0)
    release = mst(curator, k_way(data.domain, 1))
    assert [len(m.clique) for m in release.measurements] == [1] * 5
    assert curator.ledger.spent == pytest.approx(curator.ledger.budget.total, rel=1e-12)


def test_a_column_of_one_value_takes_no_part_of_the_budget() -> None:
    domain = Domain({"a": 3, "b": 1, "c": 2})
    data = Dataset(domain, {"a": [0, 1, 2], "b": [0, 0, 0], "c": [0, 1, 1]})
    for degree in (1, 2):
        curator = Curator(data, Budget(1.0, 1e-8), neighbours="add/remove", seed=0)
        release = mst(curator, k_way(domain, degree))
        assert not [m for m in release.measurements if "b" in m.clique]
        assert curator.ledger.spent == pytest.approx(curator.ledger.budget.total, rel=1e-12)
        if degree == 2:
            first = sum(e.cost for e in curator.ledger.entries if e.step.startswith("first"))
            assert first == pytest.approx(Mst().one_way(domain) * curator.ledger.budget.total)


@pytest.mark.parametrize("seed", range(4))
def test_noise_beyond_the_data_still_gives_a_release(seed: int) -> None:
    curator = Curator(small_data(30), Budget(0.001, 1e-9), neighbours="add/remove", seed=seed)
    assert len(mst(curator, k_way(curator.domain, 2)).sample(5, rng=0)) == 5


def test_refusals_come_before_spending() -> None:
    for settings in [{"one_way_share": 0.0}, {"select_share": 1.0}]:
        with pytest.raises(InvalidInput, match=next(iter(settings))):
            Mst(**settings)
    with pytest.raises(InvalidInput, match="leave something"):
        Mst(one_way_share=0.6, select_share=0.5)
    curator = Curator(small_data(), Budget(1.0, 1e-8), neighbours="add/remove", seed=0)
    with pytest.raises(InvalidInput, match="another domain"):
        mst(curator, k_way(Domain({"a": 2, "b": 2}), 2))
    assert curator.ledger.spent == 0
