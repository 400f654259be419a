"""Values that nobody listed: found above a threshold, and never for the price of privacy."""

import math
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from chance import FALSE_ALARM
from pricing import Priced
from scipy.stats import binom
from seams import draw_from

from mechanisms.datasets.census import census
from mechanisms.privacy.budget import Accounting, Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import BudgetExceeded, Ledger
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.queries.query_sets import query_rows
from mechanisms.synthesis.open_columns import (
    assumed,
    counted_roughly,
    quantile_ends,
    resolved,
)
from mechanisms.synthesis.pipeline import synthesize
from mechanisms.workload import table_workload
from pgmkit import (
    Boolean,
    Categorical,
    Dataset,
    Forbid,
    InvalidInput,
    Measurement,
    Numeric,
    OpenCategorical,
    Schema,
)

DATA = census(500)


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_frequent_values_are_found_and_charged(relation: str) -> None:
    curator = Curator(DATA, Budget(2.0, 1e-6, 1e-7), neighbours=relation)
    noise = Priced(relation, pure=False)
    draw_from(curator, noise)
    texts = ["often"] * 300 + ["some"] * 150 + [f"rare {i}" for i in range(50)]
    found = curator.discover(texts, curator.remaining / 2, 1e-7)
    assert found == ["often", "some"]
    assert noise.costs == pytest.approx([e.cost for e in curator.ledger.entries])


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_a_row_moves_the_counts_of_values_as_the_relation_says(relation: str) -> None:
    """Given as one text a row, or as the rows of each text: a row counts once."""
    texts = ["b", "a", "b", "c", "b"]
    asked = []
    for values in (texts, {"b": 3, "a": 1, "c": 1}):
        curator = Curator(DATA, Budget(2.0, 1e-6, 1e-7), neighbours=relation)
        noise = draw_from(curator, Priced(relation, pure=False))
        curator.discover(values, 0.01, 1e-7)
        asked.append(noise.exact[0].tolist())
    assert asked == [[1, 3, 1]] * 2


def test_a_text_of_a_megabyte_takes_no_more_memory_than_its_own() -> None:
    """In an array of texts each takes the room of the longest: a terabyte for these."""
    curator = Curator(DATA, Budget(2.0, 1e-6, 1e-7), neighbours="add/remove")
    texts = ["often"] * 300 + [f"rare {i}" for i in range(300_000)] + ["x" * 2**20]
    draw_from(curator, Priced("add/remove", pure=False))
    assert curator.discover(texts, curator.remaining, 1e-7) == ["often"]


def test_halves_of_characters_are_found_as_signs_that_no_encoding_has() -> None:
    """Python reads bytes so that are not in an encoding (surrogateescape); no file holds them."""
    jobs = pd.Series(["clich\udce9"] * 500 + ["cook"] * 300, dtype=object)
    table = pd.DataFrame({"job": jobs, "ill": True})
    schema = Schema({"job": OpenCategorical(), "ill": Boolean()})
    with pytest.warns(UserWarning, match="^1 of the values found in job hold signs"):
        release = synthesize(table, schema, epsilon=5.0, delta=1e-6, mechanism="mst", seed=0)
    assert set(release.schema.columns["job"].labels) == {"clich\ufffd", "cook", "(other)"}


def test_the_threshold_is_passed_by_a_single_row_as_rarely_as_promised() -> None:
    # Each of many values has one row: their noise is independent, and the threshold is the same.
    delta, draws, hits = 0.02, 0, 0
    alone = [f"alone {i}" for i in range(500)]
    for seed in range(80):
        curator = Curator(DATA, Budget(1.0, 0.1, delta), neighbours="add/remove", seed=seed)
        hits += len(curator.discover(alone, 0.05, delta))
        draws += len(alone)
    assert hits <= binom.isf(FALSE_ALARM, draws, delta)
    # The threshold is rounded up by at most two counts of a noise of about 3.
    assert hits >= binom.ppf(FALSE_ALARM, draws, delta / 5)


def test_it_needs_a_reserved_delta_and_a_budget() -> None:
    texts = ["x"] * 500
    for budget in [Budget(1.0), Budget(1.0, 1e-6), Budget(1.0, 1e-6, 1e-8)]:
        curator = Curator(DATA, budget, neighbours="add/remove", seed=0)
        with pytest.raises(InvalidInput, match="reserves"):
            curator.discover(texts, curator.remaining, 1e-7)
        assert curator.ledger.spent == 0
    curator = Curator(DATA, Budget(1.0, 1e-6, 1e-7), neighbours="add/remove", seed=0)
    with pytest.raises(BudgetExceeded):
        curator.discover(texts, 2 * curator.remaining, 1e-7)


def test_a_reserved_delta_leaves_less_for_noise() -> None:
    assert Budget(1.0, 1e-6, 5e-7).total < Budget(1.0, 1e-6).total
    assert Budget(1.0, 1e-6, 5e-7).total == Budget(1.0, 5e-7).total
    for accounting in get_args(Accounting):
        budget = Budget(1.0, 1e-6, 5e-7, accounting)
        # What was spent is stated at the delta that is left for it, too.
        assert budget.epsilon_spent(budget.total) == pytest.approx(1.0, rel=1e-9)
        for share in (0.1, 0.5):
            whole = Budget(1.0, 5e-7, accounting=accounting)
            assert budget.epsilon_spent(share * budget.total) == whole.epsilon_spent(
                share * whole.total
            )
    for reserved in [-1e-9, 1e-6, math.nan]:
        with pytest.raises(InvalidInput, match="reserved"):
            Budget(1.0, 1e-6, reserved)


def test_recoded_records_share_the_ledger() -> None:
    curator = Curator(DATA, Budget(1.0, 1e-6), neighbours="add/remove", seed=0)
    small = DATA.project(["sex"])
    other = curator.recoded(small)
    other.measure(("sex",), 0.4 * curator.remaining)
    assert other.domain == small.domain and curator.domain == DATA.domain
    assert curator.ledger is other.ledger and len(curator.ledger.entries) == 1
    assert np.isfinite(curator.remaining)


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("cost", [1e-4, 0.01, 0.2])
@pytest.mark.parametrize("delta", [1e-9, 1e-4])
def test_values_of_one_row_pass_with_probability_delta_in_all(
    relation: str, cost: float, delta: float
) -> None:
    """The threshold is found from outside; the tail of the discrete Gaussian is summed exactly.

    A neighbour may hold one other value of its own (a row more) or both may (a row replaced).
    """
    asked: list[float] = []
    answer = 0

    class Fixed(Priced):
        def gaussian(self, counts: np.ndarray, scale: float) -> np.ndarray:
            asked.append(scale)
            return np.full(len(counts), answer)

    low, high = 0, 2**40
    while high - low > 1:
        answer = (low + high) // 2
        curator = Curator(DATA, Budget(4.0, 1e-3, 2e-4), neighbours=relation)
        draw_from(curator, Fixed(relation, pure=False))
        passed = curator.discover(["seen once"], cost, delta)
        low, high = (low, answer) if passed else (answer, high)
    scale = asked[0]
    noise = np.arange(-int(50 * scale) - 50, int(50 * scale) + 50)
    mass = np.exp(-(noise**2) / (2 * scale**2))
    tail = float(mass[1 + noise >= high].sum() / mass.sum())
    values = {"replace-one": 2, "add/remove": 1}[relation]
    assert values * tail <= delta
    assert values * tail >= delta / 1000, "the threshold is far higher than it need be"


def test_discoveries_share_the_reserved_delta() -> None:
    curator = Curator(DATA, Budget(2.0, 1e-6, 1e-7), neighbours="add/remove")
    curator.discover(["a"], 1e-4, 6e-8)
    with pytest.raises(BudgetExceeded, match="delta"):
        curator.discover(["b"], 1e-4, 6e-8)
    curator.discover(["b"], 1e-4, 4e-8)


def test_edges_of_quantiles_come_from_the_noisy_answers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the same noisy answers, records that could not differ more have the same edges."""

    def forced(
        self: Curator, clique: tuple[str, ...], matrix: list[Any], cost: float, *, step: str
    ) -> Measurement:
        self.ledger.charge(step, "discrete Gaussian", cost)
        dense = np.asarray(matrix[0], dtype=float)
        return Measurement(clique, dense @ np.linspace(0, 9, dense.shape[1]), 1.0, dense)

    monkeypatch.setattr(Curator, "measure_queries", forced)
    schema = Schema({"age": Numeric(0, 100, bins=5, quantiles=True)})
    budget = Budget(1.0, 1e-6)
    found = []
    for age in (3.0, 97.0):
        frame = pa.table({"age": [age] * 90})
        for name in NEIGHBOURS:
            counts = counted_roughly(frame, schema)
            curator = Curator(counts, budget, neighbours=name, seed=0)
            wanted = table_workload(assumed(schema).domain, 1, None)
            found.append(resolved(frame, schema, curator, wanted)[0])
    assert len({repr(each.to_dict()) for each in found}) == 1
    assert len(found[0].columns["age"].labels) == 5


def test_quantiles_are_asked_in_sums_of_intervals_of_powers_of_two() -> None:
    for size in (1, 2, 6, 8):
        expected = []
        width = 1
        while width < 2 * size:
            for start in range(0, size, width):
                expected.append([float(start <= c < start + width) for c in range(size)])
            width *= 2
        assert query_rows("hierarchy", size).tolist() == expected
    # The whole is one question, and each cell is in one of each width.
    assert (
        query_rows("hierarchy", 8)[-1].tolist() == [1.0] * 8
        and query_rows("hierarchy", 8).sum(0).tolist() == [4.0] * 8
    )


def test_edges_hold_equal_counts() -> None:
    """By hand, of eight fine bins; a place for missing values at the end does not count."""
    fine = Numeric(0, 16, bins=4, missing=("?",)).grid(8)
    even = np.array([1.0] * 8 + [99.0])
    assert quantile_ends(fine, even, 4) == [4.0, 8.0, 12.0]
    heavy = np.array([0, 0, 10.0, 0, 0, 0, 10.0, 0, 99.0])
    assert quantile_ends(fine, heavy, 2) == [6.0] and quantile_ends(fine, heavy, 4) == [
        6.0,
        6.0,
        14.0,
    ]
    # Noise may be negative: what was reached stays reached.
    assert quantile_ends(fine, np.array([4.0, -3, 0, 0, 0, 0, 3.0, 0, 0]), 2) == [2.0]
    # The last cell counts, and so does a share of a record.
    assert quantile_ends(fine, np.array([0, 0, 0, 0, 0, 0, 0, 10.0, 99]), 2) == [16.0]
    assert quantile_ends(fine, np.array([0, 0.5, 0, 0, 0, 0, 0, 0, 99]), 2) == [4.0]
    for nothing in (np.zeros(9), np.full(9, -1.0)):
        assert quantile_ends(fine, nothing, 4) == [0.0, 4.0, 8.0, 12.0, 16.0]


def test_a_column_of_which_nothing_is_found_is_pointed_out() -> None:
    """Of 300 texts that all differ none passes a threshold of 30 rows and more."""
    table = pa.table({"who": [f"person {i}" for i in range(300)], "sex": ["F", "M"] * 150})
    schema = Schema({"who": OpenCategorical(), "sex": Categorical(("F", "M"))})
    with pytest.warns(UserWarning, match=r"no value of who is frequent enough .* '\(other\)'"):
        synthesize(table, schema, epsilon=1, delta=1e-6, mechanism="independent", seed=0)


def test_strict_runs_refuse_no_rows_and_coded_records_that_break_a_rule(tmp_path: Path) -> None:
    options = {"epsilon": 1.0, "delta": 1e-6, "mechanism": "mst", "seed": 0}
    ledger = Ledger.create(
        tmp_path / "ledger", Budget(9.0, 1e-5, reserved=1e-6), neighbours="add/remove"
    )
    nobody = pa.table({"who": pa.array([], pa.string())})
    names = Schema({"who": OpenCategorical()})
    with pytest.raises(InvalidInput, match="no rows"):
        synthesize(nobody, names, strict=True, ledger=ledger, **options | {"seed": None})
    assert ledger.spent == 0
    assert synthesize(nobody, names, **options).ledger.spent > 0
    rule = Schema({"a": Boolean(), "b": Boolean()}, [Forbid({"a": True, "b": True})])
    broken = Dataset(rule.domain, {"a": [1, 0], "b": [1, 0]})
    with pytest.raises(InvalidInput, match="break"):
        synthesize(broken, rule, strict=True, **options)
    assert synthesize(broken, rule, **options).ledger.spent > 0


def test_columns_that_are_not_released_are_pointed_out() -> None:
    people = pa.table({"sex": ["F", "M"] * 50, "name": [f"n {i}" for i in range(100)]})
    schema = Schema({"sex": Categorical(("F", "M"))})
    with pytest.warns(UserWarning, match="columns that the schema does not have are left out: 'na"):
        synthesize(people, schema, epsilon=1.0, delta=1e-6, mechanism="independent", seed=0)


def test_a_public_number_of_rows_is_refused_where_it_is_none_alone() -> None:
    schema = Schema({"sex": Categorical(("F", "M"))})
    options = {"epsilon": 1.0, "delta": 1e-6, "mechanism": "independent", "seed": 0}
    nobody, one = (pa.table({"sex": pa.array(["F"] * n, pa.string())}) for n in (0, 1))
    with pytest.raises(InvalidInput, match="no rows"):
        synthesize(nobody, schema, neighbours="replace-one", **options)
    for table in (nobody, one):
        assert synthesize(table, schema, neighbours="add/remove", **options).ledger.spent > 0
    assert synthesize(one, schema, neighbours="replace-one", **options).ledger.spent > 0


@pytest.mark.parametrize(("kind", "last"), [("integer", None), ("number", 1e25)])
def test_found_labels_beyond_64_bits_do_not_end_the_drawing(kind: str, last: float | None) -> None:
    """They are not whole numbers that a data frame holds; beyond all floats they are no numbers."""
    frame = pd.DataFrame({"a": ["7", "1" + "0" * 400, "1" + "0" * 25] * 100})
    schema = Schema({"a": OpenCategorical(decode_as=kind)})
    release = synthesize(frame, schema, epsilon=50.0, delta=1e-6, mechanism="mst", seed=0)
    drawn = release.sample(500, rng=0)["a"]
    assert {None if pd.isna(each) else each for each in drawn} == {7, None, last}
