"""Tables by the number of a unit's rows: the cost of each, its values and its matrix."""

import numpy as np
import pytest

from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import BudgetExceeded
from mechanisms.privacy.neighbours import relation
from pgmkit import Domain, InvalidInput
from pgmkit.linear.kronecker import Kronecker
from pgmkit.records.dataset import Dataset


@pytest.mark.parametrize("name", ["add/remove", "replace-one"])
@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("codes", [3, 4, 6])
@pytest.mark.parametrize("groups", [1, 3])
def test_noise_by_the_number_of_a_groups_rows_costs_what_is_charged(
    name: str, pure: bool, codes: int, groups: int
) -> None:
    """A unit of g groups of k rows moves k cells of table k by g; a replaced one moves those of two
    units, which may be in one table. The worst of them costs exactly the charge, whether or not the
    column of numbers has as many codes as there are places.
    """
    places = 4
    most = min(places, codes)
    domain = Domain({"rows": codes + 1, "at": places, "kind": 2})
    rows = np.repeat(np.arange(1, most + 1), np.arange(1, most + 1))
    at = np.concatenate([np.arange(k) for k in range(1, most + 1)])
    data = Dataset(domain, {"rows": rows, "at": at, "kind": np.zeros_like(rows)})
    budget = Budget(1e9, 0.0 if pure else 1e-6)
    curator = Curator(data, budget, neighbours=relation(name, "id", groups * places), seed=0)
    cost = curator.remaining / 3
    tables = curator.measure_numbered("rows", "at", ["kind"], cost)
    assert curator.remaining == pytest.approx(2 * cost)
    costs = []
    assert len(tables) == most and curator.measurements == tables
    assert {table.clique for table in tables} == {("rows", "at", "kind")}
    assert curator.ledger.entries[-1].step == f"measure rows x at x kind in {most} tables"
    for k, table in enumerate(tables, 1):
        assert table.values.tolist() == [1, 0] * k
        exact = data.marginal(("rows", "at", "kind"))
        assert isinstance(table.matrix, Kronecker)
        np.testing.assert_array_equal(table.matrix.matvec(exact.ravel()), table.values)
        moved = 2**0.5 * k * groups / table.stddev if pure else k * (groups / table.stddev) ** 2 / 2
        costs.append(moved)
        np.testing.assert_array_equal(exact[k, :k].ravel(), table.values)
    several = 2 if name == "replace-one" else 1
    assert several * np.array(costs) == pytest.approx(np.full(most, cost))


def test_wrong_columns_and_costs_of_numbered_tables_are_free() -> None:
    domain = Domain({"rows": 3, "at": 2, "kind": 2})
    data = Dataset(domain, {"rows": [1, 2, 2], "at": [0, 0, 1], "kind": [0, 1, 1]})
    curator = Curator(data, Budget(1.0, 1e-6), neighbours=relation("add/remove", "id", 2), seed=0)
    whole = curator.remaining
    for others, cost in ((["nothing"], whole), (["at"], whole), (["kind"], 2 * whole), ([], 0.0)):
        with pytest.raises((InvalidInput, BudgetExceeded)):
            curator.measure_numbered("rows", "at", others, cost)
    assert curator.remaining == whole
    odd = Curator(data, Budget(1.0, 1e-6), neighbours=relation("add/remove", "id", 3), seed=0)
    with pytest.raises(InvalidInput, match="'at' must have as many codes as a group"):
        odd.measure_numbered("rows", "at", [], whole)
    assert odd.remaining == whole
    found = curator.measure_numbered("rows", "at", [], whole)
    assert curator.remaining == 0.0 and [len(table.values) for table in found] == [1, 2]
    assert all((table.values == np.rint(table.values)).all() for table in found)
