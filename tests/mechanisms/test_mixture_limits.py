"""What the mixture measures at the limits of its cells and of the noise, and its model of these."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from mechanisms.families import shrinkage
from mechanisms.families.frequent import Frequent
from mechanisms.families.held_out import judges
from mechanisms.families.mixture_fit import MixtureFit
from mechanisms.families.product_mixture import Columns, PairMixtureModel, ProductMixtureModel
from mechanisms.families.tilted import tilted
from mechanisms.families.training_memory import answering_bytes, fitting_tables_bytes
from mechanisms.mixture import Mixture, fitted_rows, mixture
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.rounds.all_at_once import pairs_within
from mechanisms.rounds.merging import Tables, best_tables
from mechanisms.workload import Workload, k_way, table_workload
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput, ModelTooLarge
from pgmkit.measurement import Measurement
from pgmkit.records.dataset import Dataset

DOMAIN = Domain({"a": 2, "b": 3, "c": 8})
DATA = Dataset(DOMAIN, dict.fromkeys(DOMAIN, np.arange(3000) % 2))
WIDE = Domain({"a": 2, "b": 3, "c": 5, "d": 7})
QUICK: dict[str, Any] = {"rows": 2, "steps": 1, "level": 0.0}


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("rare", ["a", "ab"])
@pytest.mark.parametrize("epsilon", [0.1, 10.0])
def test_columns_of_rare_codes_alone_take_nothing_from_the_others(
    rare: str, epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise hides all codes of such a column, which are one code in pairs: it has no residuals."""
    domain = Domain({name: 40 if name in rare else 3 for name in "abcd"})
    codes = {n: np.arange(300) % 40 if n in rare else np.arange(300) // 100 for n in domain}

    def hidden(domain: Domain, without: list[Measurement], total: float) -> Frequent:
        assert {m.clique for m in without} == {(name,) for name in rare}
        return Frequent(domain, [replace(m, values=0 * m.values) for m in without], total)

    monkeypatch.setattr("mechanisms.mixture.Frequent", hidden)
    data, budget = Dataset(domain, codes), Budget(epsilon, 1e-7)
    curator = Curator(data, budget, neighbours="replace-one", seed=0)
    release = mixture(curator, k_way(domain, 2), Mixture(**QUICK))
    assert curator.remaining < 1e-12
    assert len([m for m in release.measurements if len(m.clique) == 1]) == 2 * len(domain)
    pairs = {m.clique for m in release.measurements if len(m.clique) > 1}
    told = set(combinations([name for name in domain if name not in rare], 2))
    assert pairs == (told if epsilon > 1 else set())


def test_only_pairs_are_measured_where_rare_codes_are_merged() -> None:
    """Three codes an attribute are left, of which triples have 27 cells, but all codes 216,000."""
    domain = Domain(dict.fromkeys("abc", 60))
    data = Dataset(domain, dict.fromkeys("abc", np.arange(2000) % 2))
    curator = Curator(data, Budget(1.0, 1e-7), neighbours="replace-one", seed=0)
    settings = Mixture(**QUICK, cells=5000)
    release = mixture(curator, k_way(domain, 3), settings)
    assert sorted({len(m.clique) for m in release.measurements}) == [1, 2]


@pytest.mark.parametrize("delta", [0.0, 1e-7])
@pytest.mark.parametrize(("cells", "pairs"), [(99, 1), (199, 1), (200, 2), (201, 2), (600, 6)])
def test_as_many_pairs_are_measured_as_the_cells_hold_and_one_at_least(
    cells: int, pairs: int, delta: float
) -> None:
    domain = Domain(dict.fromkeys("abcd", 10))
    data = Dataset(domain, dict.fromkeys("abcd", np.arange(2000) % 10))
    curator = Curator(data, Budget(1.0, delta), neighbours="replace-one", seed=0)
    release = mixture(curator, k_way(domain, 2), Mixture(**QUICK, cells=cells))
    assert sum(len(m.clique) == 2 for m in release.measurements) == pairs
    assert curator.remaining < 1e-12


def test_pairs_that_gain_most_for_each_cell_are_kept() -> None:
    """Of 2 x 2, 2 x 3 and 3 x 3 cells the predicted gains for each are 1, 3 and 2 counts. One that
    has too many cells makes room for one that gains less.
    """
    sides = [(np.arange(a), np.arange(b)) for a, b in [(2, 2), (2, 3), (3, 3)]]
    tables = Tables(sides, np.ones(3), np.ones(1), np.array([4.0, 18.0, 18.0]))
    found = [pairs_within(most, tables).tolist() for most in (1, 9, 10, 14, 15, 18, 19)]
    first, small, large = [False, True, False], [True, True, False], [False, True, True]
    assert found == [first, first, small, small, large, large, [True, True, True]]


def test_no_pair_is_left_out_where_merged_bins_have_few_cells() -> None:
    """All pairs have 14,701 cells, but noise hides the relations of single bins."""
    domain = Domain({"a": 70, "b": 70, "c": 70, "d": 2})
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(0, size, 300) for name, size in domain.sizes.items()}
    bins = dict.fromkeys("abc", 70)
    curator = Curator(Dataset(domain, columns), Budget(3.0, 0.0), neighbours="add/remove", seed=0)
    release = mixture(curator, k_way(domain, 2), Mixture(**QUICK, cells=7000), bins=bins)
    assert sum(len(m.clique) == 2 for m in release.measurements) == 6


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
        asked.append({name: one.bins for name, one in given[1].items()})
        return best_tables(*given, **options)

    monkeypatch.setattr("mechanisms.rounds.all_at_once.best_tables", tables)
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


def test_a_sought_set_changes_the_model_beside_all_that_was_measured_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No pair has the parity of two columns; only the table of all three has it."""
    given = []

    def spied(*arguments: Any, **options: Any) -> ProductMixtureModel:
        given.append(arguments)
        return tilted(*arguments, **options)

    monkeypatch.setattr("mechanisms.mixture.tilted", spied)
    bits = np.random.default_rng(0).integers(0, 2, (2, 4000))
    triple, domain = ("a", "b", "c"), Domain(dict.fromkeys("abc", 2))
    data = Dataset(domain, {"a": bits[0], "b": bits[1], "c": bits[0] ^ bits[1]})
    curator = Curator(data, Budget(3.0, 1e-7), neighbours="replace-one", seed=0)
    workload = Workload(domain, [*combinations("abc", 2), triple], sought=[triple])
    release = mixture(curator, workload, Mixture(**QUICK))
    np.testing.assert_allclose(release.model.marginal(triple), data.marginal(triple), atol=60)
    ((_, measured, before),) = given
    assert [*before, measured] == [*release.measurements]


def test_shares_that_may_leave_nothing_for_pairs_are_refused_before_spending() -> None:
    curator = Curator(DATA, Budget(1.0, 1e-7), neighbours="replace-one", seed=0)
    workload = table_workload(DOMAIN, 2, "c")
    shares = {"one_way_share": 0.4, "errors_share": 0.2, "select_share": 0.4}
    with pytest.raises(InvalidInput, match="must leave something for pairs"):
        mixture(curator, workload, Mixture(**QUICK | shares))
    assert curator.ledger.spent == 0


def test_a_gpu_without_room_is_refused_before_spending(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_of: object) -> None:
        raise ModelTooLarge("full")

    monkeypatch.setattr("mechanisms.mixture.check_room", full)
    curator = Curator(DATA, Budget(1.0, 1e-7), neighbours="replace-one", seed=0)
    with pytest.raises(ModelTooLarge, match="full"):
        mixture(curator, k_way(DOMAIN, 2), Mixture(**QUICK))
    assert curator.ledger.spent == 0


@pytest.mark.parametrize(
    ("k", "cells", "cliques", "answered"),
    [
        (3, 10_000, [*combinations(WIDE, 1), *combinations(WIDE, 2), *combinations(WIDE, 3)], []),
        # All pairs have 101 cells together. With fewer cells, merged bins may still be all pairs.
        (3, 101, [*combinations(WIDE, 1), *combinations(WIDE, 2)], []),
        (2, 100, [*combinations(WIDE, 1), *combinations(WIDE, 2)], []),
        # The largest pair has 35 cells, and the next has 21: no other two have as many.
        (2, 36, [*combinations(WIDE, 1), "cd", "bd"], ["ab", "ac", "ad", "bc"]),
        (2, 35, [*combinations(WIDE, 1), "cd"], ["ab", "ac", "ad", "bc", "bd"]),
        (2, 1, [*combinations(WIDE, 1), "cd"], ["ab", "ac", "ad", "bc", "bd"]),
        (1, 20, [*combinations(WIDE, 1)], []),
    ],
)
def test_a_gpu_has_room_for_all_tables_that_may_be_measured(
    k: int,
    cells: int,
    cliques: list[Sequence[str]],
    answered: list[Sequence[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    monkeypatch.setattr("mechanisms.mixture.check_room", lambda *given: asked.append(given))
    curator = Curator(
        Dataset(WIDE, dict.fromkeys(WIDE, np.arange(300) % 2)),
        Budget(1.0, 1e-7),
        neighbours="replace-one",
        seed=0,
    )
    mixture(curator, k_way(WIDE, k), Mixture(**QUICK, cells=cells))
    columns = Columns(WIDE)
    needed = fitting_tables_bytes(columns, map(tuple, cliques), 2)
    needed += answering_bytes(columns, map(tuple, answered), 2)
    assert asked == [(torch.device("cpu"), needed, "a mixture of 2 rows of 17 codes")]


class Counted(MixtureFit):
    """A fit that notes how many rows it is made with, and how many steps it runs to the end."""

    made: ClassVar[list[int]] = []
    ended: ClassVar[list[tuple[int, int]]] = []

    def __init__(self, *given: Any, rows: int, **options: Any) -> None:
        super().__init__(*given, rows=rows, **options)
        self.made.append(rows)

    def finish(self, steps: int, level: float) -> None:
        self.ended.append((len(self.logits), steps))
        super().finish(steps, level)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """The strengths of shrinkage of each fit, and the cliques of what is held out, as noted."""
    Counted.made.clear()
    Counted.ended.clear()
    found: dict[str, list[Any]] = {"strengths": [], "held": []}
    drawn_in, judged = shrinkage.near_independence, judges

    def shrunk(*given: Any) -> list[Measurement]:
        found["strengths"].append(given[-1])
        return drawn_in(*given)

    def judging(columns: Columns, held: list[Measurement], *rest: Any) -> Any:
        found["held"].append([m.clique for m in held])
        return judged(columns, held, *rest)

    monkeypatch.setattr("mechanisms.mixture.MixtureFit", Counted)
    monkeypatch.setattr("mechanisms.mixture._graph_share", lambda *_, **__: 0.0)
    monkeypatch.setattr("mechanisms.mixture.shrinkage.near_independence", shrunk)
    monkeypatch.setattr("mechanisms.mixture.judges", judging)
    return found


def equal_columns(records: float, **settings: Any) -> torch.Tensor:
    """The rows fitted to two columns of two codes that are the same in all records."""
    codes, half = Frequent(Domain({"a": 2, "b": 2}), [], records), records / 2
    exact = [Measurement((name,), [half, half], 1.0) for name in "ab"]
    exact.append(Measurement(("a", "b"), [half, 0.0, 0.0, half], 1.0))
    asked = Mixture(steps=3, **settings)
    return fitted_rows(codes, exact, records, asked, torch.device("cpu"), pure=False)[0]


@pytest.mark.parametrize(
    ("records", "rows", "level", "made"),
    [
        (3000, 9, None, [1, 5, 5, 9]),  # trial fits have half of the rows, an odd one more
        (3000, 9, 1.0, [9]),
        (6.2, 9, 1.0, [7]),  # no more rows than records
        (6.2, 5, 1.0, [5]),
    ],
)
def test_trials_have_half_of_the_rows_of_the_fit_which_has_as_many_as_records_at_most(
    records: float, rows: int, level: float | None, made: list[int], noted: dict[str, list[Any]]
) -> None:
    before = torch.get_rng_state()
    found = equal_columns(records, rows=rows, level=level)
    assert torch.equal(torch.get_rng_state(), before)  # that of the process is left alone
    assert (Counted.made, Counted.ended) == (made, [(made[-1], 3)])
    assert found.shape == (made[-1], 4)
    assert noted["held"] == [[("a", "b")]] * (len(made) // 2)
    assert noted["strengths"] == [0.1] * len(made)


@pytest.mark.parametrize(
    ("excess", "losses", "farther", "ended"),
    [
        # Most tables stand out from their noise, by more than a standard deviation. The trial fits
        # may be farther from the hidden table than independent columns are, and from all tables
        # than the fits with 1 are.
        ([1.0, 1.5, 9.0], {0.1: (5.0, 2.0)}, [False], (0.1, 2.0)),
        ([1.0, 1.5, 9.0], {0.1: (4.0, 2.0), 1.0: (5.0, 3.0)}, [True, True], (1.0, 3.0)),
        ([1.0, 1.5, 9.0], {0.1: (5.0, 2.0), 1.0: (4.0, 3.0)}, [True, False], (0.1, 2.0)),
        ([0.0, 0.9, 9.0], {0.1: (5.0, 1.0), 0.3: (3.0, 2.0)}, [], (0.3, 2.0)),
        ([0.0, 0.9, 9.0], {0.1: (3.0, 2.0), 0.3: (5.0, 1.0)}, [], (0.1, 2.0)),
        ([0.0, 0.9, 9.0], {0.1: (3.0, 1.0), 0.3: (5.0, 2.0)}, [], (0.1, 1.0)),
        ([0.0, 0.9, 9.0], {0.1: (3.0, 0.0), 0.3: (5.0, 2.0)}, [], None),
    ],
)
def test_the_strength_of_least_misfit_is_fitted_at_its_level(
    excess: list[float],
    losses: dict[float, tuple[float, float]],
    farther: list[bool],
    ended: tuple[float, float] | None,
    noted: dict[str, list[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At level 0 the rows are one, that of independent columns."""
    levels: list[float] = []
    named = dict(zip([("a", "b"), ("a", "c"), ("b", "c")], excess, strict=True))
    told = iter(farther)

    def compared(_: Columns, held: Any, rows: Any, others: Any, total: float) -> bool:
        assert [[m.clique for m in each] for each in held] == [[("a", "b")]] * 2
        first = len(noted["strengths"]) == 3
        assert [each.shape for each in rows] == [(2, 4)] * 2
        assert [each.shape for each in others] == [(1 if first else 2, 4)] * 2
        assert torch.equal(*others) == first
        return next(told)

    def least(trials: Any, _steps: int) -> tuple[float, float, torch.Tensor]:
        logits = torch.cat([fit.logits + place for place, (fit, *_) in enumerate(trials)])
        return *losses[noted["strengths"][-1]], logits

    monkeypatch.setattr("mechanisms.mixture.least_misfit", least)
    monkeypatch.setattr("mechanisms.mixture.are_farther", compared)
    monkeypatch.setattr("mechanisms.mixture.shrinkage.beyond_noise", lambda *_, **__: named)
    monkeypatch.setattr(Counted, "finish", lambda _fit, _steps, level: levels.append(level))
    found = equal_columns(3000, rows=4)
    trials = [each for each in losses for _ in range(2)]
    assert noted["strengths"] == [0.1, *trials, *([] if ended is None else [ended[0]])]
    assert levels == ([] if ended is None else [ended[1]])
    assert len(found) == (1 if ended is None else 4) and not [*told]
