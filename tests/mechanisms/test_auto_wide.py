"""The choice of "auto" for many columns of few records."""

import pytest

from mechanisms.privacy.budget import Budget
from mechanisms.synthesis.auto import choose_mechanism
from mechanisms.workload import k_way
from pgmkit import Boolean, Integer, Schema
from pgmkit.tables.labelled import Categorical

WIDE = Schema({f"c{i}": Categorical([str(code) for code in range(4)]) for i in range(300)})


@pytest.mark.parametrize(
    ("epsilon", "delta", "name"),
    [(1.0, 1e-7, "independent"), (2.0, 1e-7, "independent"), (4.0, 1e-7, "pair-graph"),
     (1.9, 0.0, "independent")],
)  # fmt: skip
def test_pairs_are_measured_where_noise_leaves_the_strongest(
    epsilon: float, delta: float, name: str
) -> None:
    workload = k_way(WIDE.domain, 2)
    found = choose_mechanism(WIDE, workload, Budget(epsilon, delta), rows=3000)
    assert found.name == name


def test_a_column_of_one_value_is_in_no_pair() -> None:
    schema = Schema({"a": Boolean(), "b": Boolean(), "land": Categorical(["here"])})
    found = choose_mechanism(schema, k_way(schema.domain, 2), Budget(1.0, 1e-7))
    assert "all pairs of 2 columns" in found.reason


def test_pairs_of_many_codes_lead_to_a_mixture_up_to_forty_columns() -> None:
    for columns, codes, name in [
        (9, 100, "mixture"), (40, 20, "mixture"), (41, 20, "pair-graph"), (3, 3000, "aim"),
    ]:  # fmt: skip
        schema = Schema({f"c{i}": Integer(0, codes - 1) for i in range(columns)})
        workload, budget = k_way(schema.domain, 2), Budget(1.0, 1e-9)
        assert choose_mechanism(schema, workload, budget, rows=100_000).name == name
        shorter = choose_mechanism(schema, workload, budget, rows=100_000, seconds=50.0)
        assert shorter.name != "mixture"
