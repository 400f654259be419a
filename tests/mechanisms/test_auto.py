"""The choice of "auto" by public figures."""

import math
from typing import Any

import numpy as np
import pytest

from mechanisms.privacy.budget import Budget
from mechanisms.synthesis.auto import Choice, choose_mechanism, mixture_seconds, noise
from mechanisms.workload import Workload, k_way, table_workload
from pgmkit import Boolean, Domain, Forbid, Integer, InvalidInput, Schema
from pgmkit.tables.labelled import Categorical

WIDE = Schema({f"c{i}": Categorical([str(code) for code in range(4)]) for i in range(300)})


@pytest.fixture(scope="module")
def pairs() -> Workload:
    """All 44,850 pairs of the wide table."""
    return k_way(WIDE.domain, 2)


@pytest.mark.parametrize(
    ("epsilon", "delta", "name"),
    [(1.0, 1e-7, "independent"), (2.0, 1e-7, "independent"), (4.0, 1e-7, "pair-graph"),
     (1.9, 0.0, "independent")],
)  # fmt: skip
def test_pairs_are_measured_where_noise_leaves_the_strongest(
    pairs: Workload, epsilon: float, delta: float, name: str
) -> None:
    found = choose_mechanism(WIDE, pairs, Budget(epsilon, delta), rows=3000)
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
        shorter = choose_mechanism(schema, workload, budget, rows=100_000, seconds=35.0)
        assert shorter.name != "mixture"


def test_auto_goes_by_columns_budget_limits_and_public_records() -> None:
    def chosen(columns: int = 10, epsilon: float = 1.0, k: int = 2, **figures: Any) -> Choice:
        schema = Schema({f"q{i}": Boolean() for i in range(columns)})
        workload = table_workload(schema.domain, k, None)
        return choose_mechanism(schema, workload, Budget(epsilon, 1e-9), **figures)

    assert (
        chosen().name == "mixture" and chosen(6, k=3).name == "aim" and not chosen(6, k=3).settings
    )
    assert chosen(60).name == "mixture" and "60 columns" in chosen(60).reason
    assert chosen(60, seconds=1).name == "pair-graph" and chosen(60, seconds=30).name == "mixture"
    assert chosen(300).name == chosen(300, seconds=1000).name == "pair-graph"
    assert chosen(30, k=3, seconds=1000).name == "aim"
    assert not chosen(30, k=3, seconds=1000).settings
    assert chosen(30, k=3, seconds=200).settings == {"model_mb": 5.0}
    assert "at most about" in chosen(30, k=3, seconds=200).reason
    assert chosen(30, k=3).name == chosen(30, k=3, memory_mb=600).name == "mixture"
    assert chosen(30, k=3, memory_mb=599).name == "pair-graph", "no room for a mixture"
    assert chosen(memory_mb=100).name == "pair-graph"
    assert chosen(k=3, memory_mb=430).settings == {"model_mb": 10.0}
    few = chosen(rows=100, k=3)
    assert few.name == "independent" and "100 rows" in few.reason
    assert chosen(rows=0).name == chosen(rows=600).name == "mixture"
    assert chosen(rows=600, k=3).name == chosen(300, rows=1000).name == "independent"
    assert chosen(rows=300, epsilon=100.0).name == "mixture"
    names = [f"q{i}" for i in range(10)]
    assert chosen(public=names).name == "gem-pub"
    assert chosen(public=names, seconds=5).name == "pep-pub"
    assert chosen(public=[*names, "more"], seconds=5).name == "pep-pub"
    assert chosen(public=names[:9], seconds=5).name == "gem-pub"  # alone takes such records
    with pytest.raises(InvalidInput, match="seconds must be a number above 0"):
        chosen(seconds=0.0)
    # The limits themselves.
    assert chosen(2).name == "mixture" and "2 columns" in chosen(2).reason
    assert chosen(public=names, seconds=150).name == "gem-pub"
    assert chosen(memory_mb=350 + 8).name == "mixture" or chosen(memory_mb=350 + 8).name == "aim"
    assert chosen(memory_mb=350 + 7).name == "pair-graph"
    assert chosen(memory_mb=600).name == "mixture" and chosen(memory_mb=599).name == "aim"
    assert chosen(40, k=3).name != "pair-graph" and chosen(41, k=3).name == "pair-graph"
    unit = (2 * Budget(1.0, 1e-9).total) ** -0.5
    for most in (1, 3):
        edge = math.ceil(25 * 10 * most * unit)
        assert chosen(rows=edge - 1, max_rows=most, k=3).name == "independent"
        assert chosen(rows=edge + 1, max_rows=most, k=3).name != "independent"
    schema = Schema({f"q{i}": Boolean() for i in range(10)})
    for rows, taken in ((30 * 10**2 * 2 - 1, "independent"), (30 * 10**2 * 2, "mixture")):
        pairs = table_workload(schema.domain, 2, None)
        assert choose_mechanism(schema, pairs, Budget(1.0), rows=rows).name == taken
    late = chosen(30, k=3, seconds=1e-3)
    assert (late.name, "aim may take" in late.reason) == ("pair-graph", True)
    domain = Domain({f"q{i}": 2 for i in range(30)})
    pairs_of_30 = k_way(domain, 2).cliques
    limit = mixture_seconds(domain, pairs_of_30, 10**5, 10**5, Budget(1.0, 1e-9))
    slow = chosen(30, k=3, seconds=limit)
    assert (slow.name, "aim may take" in slow.reason) == ("mixture", True)
    assert chosen(30, k=3, seconds=0.999 * limit).name == "pair-graph"


@pytest.mark.parametrize(("delta", "factor"), [(1e-7, 1), (0.0, 2)])
def test_a_graph_of_many_columns_needs_five_rows_a_column_in_units_of_the_noise(
    delta: float, factor: int
) -> None:
    budget = Budget(1.0, delta)
    unit = (2 * budget.total) ** -0.5 if delta else 2 / budget.total
    edge = math.ceil(factor * 5 * 41 * unit)
    schema = Schema({f"q{i}": Boolean() for i in range(41)})
    workload = k_way(schema.domain, 2)
    for rows, name in [(edge - 1, "independent"), (edge, "pair-graph")]:  # a second is too short
        assert choose_mechanism(schema, workload, budget, rows=rows, seconds=1.0).name == name


@pytest.mark.parametrize(
    ("columns", "sizes", "seconds", "names"),
    [
        (2, (400, 250), 16.9, ["mixture", "all pairs"]),
        (2, (400, 250), 16.8, ["aim"]),
        (2, (400, 251), 33.0, ["mixture", "gain most"]),
        (2, (400, 251), 31.0, ["aim"]),
        (2, (4000, 2500), 1300.0, ["mixture", "gain most"]),
        (2, (4000, 2501), 1300.0, ["aim"]),
        (41, (400, 250), 16.9, ["mixture", "all pairs"]),
        (41, (400, 251), 100.0, ["pair-graph"]),
    ],
)
def test_a_mixture_holds_a_hundred_thousand_cells_or_the_best_of_a_hundred_times_as_many(
    columns: int, sizes: tuple[int, int], seconds: float, names: list[str]
) -> None:
    """A single pair of more cells may be fitted whole, and takes longer."""
    schema = Schema(
        {f"c{i}": Integer(0, size - 1) for i, size in enumerate([*sizes, *[2] * (columns - 2)])}
    )
    found = choose_mechanism(schema, [("c0", "c1")], Budget(1.0, 1e-9), seconds=seconds)
    assert found.name == names[0] and all(part in found.reason for part in names[1:])


@pytest.mark.parametrize(
    ("sizes", "cells", "rows", "seconds"),
    [
        ([10, 10, 10], 1000, 3000, 1 + math.log2(1000 / 0.015) * (0.06 + 0.006)),
        ([10, 10, 10], 150, 3000, 1 + math.log2(1000 / 0.015) * (0.06 + 0.003)),
        ([10, 10, 10], 50, 3000, 1 + math.log2(1000 / 0.015) * (0.06 + 0.002)),  # one pair
        ([10, 10, 10], 1000, 60, 1 + math.log2(1 / 0.015) * (0.06 + 0.0012)),  # 20 cells a pair
        ([1000, 1000], 10**5, 10_000, 1 + math.log2(1 / 0.015) * (4 + 20)),
        ([1000, 1000], 10**6, 10_000, 1 + math.log2(1 / 0.015) * (4 + 0.2)),
        ([10, 40], 1000, 0, 1 + math.log2(1 / 0.015) * (0.1 + 2e-5)),
    ],
)
def test_the_seconds_of_a_mixture_are_those_of_codes_cells_and_levels(
    sizes: list[int], cells: int, rows: int, seconds: float
) -> None:
    """Laplace noise of scale 1 for one marginal, and of 3 for each of three pairs."""
    domain = Domain({f"c{i}": size for i, size in enumerate(sizes)})
    pairs = k_way(domain, 2).cliques
    found = mixture_seconds(domain, pairs, cells, rows, Budget(2.0))
    assert found == pytest.approx(seconds + 0.25 * len(sizes))
    gaussian = Budget(1.0, 1e-9)
    same = mixture_seconds(
        domain, pairs, cells, round(1e6 * len(pairs) ** 0.5 * noise(gaussian)), gaussian
    )
    assert same == pytest.approx(
        mixture_seconds(domain, pairs, cells, 1_000_000 * len(pairs), Budget(2.0)), rel=1e-4
    )


def test_constraints_are_refused_with_public_records_alone() -> None:
    schema = Schema({"a": Boolean(), "b": Boolean()}, [Forbid({"a": True, "b": True})])
    pairs, budget = k_way(schema.domain, 2), Budget(1.0, 1e-9)
    assert choose_mechanism(schema, pairs, budget).name == "aim"
    with pytest.raises(InvalidInput, match="constraints"):
        choose_mechanism(schema, pairs, budget, public=["a", "b"])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rows": -1}, "rows must be a whole number of records from 0 to"),
        ({"max_rows": 0}, "max_rows must be a whole number of records from 1 to"),
        ({"seconds": math.nan}, "seconds must be a number above 0"),
        ({"memory_mb": np.float64(0)}, "memory_mb must be a number above 0"),
    ],
)
def test_figures_that_are_no_sizes_are_refused(
    pairs: Workload, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        choose_mechanism(WIDE, pairs, Budget(1.0, 1e-6), **wrong)


def test_numbers_of_numpy_are_figures(pairs: Workload) -> None:
    budget = Budget(1.0, 1e-6)
    found = choose_mechanism(WIDE, pairs, budget, seconds=np.int64(60))  # type: ignore[arg-type]
    assert found == choose_mechanism(WIDE, pairs, budget, seconds=60)
