"""MWEM, PEP and PMW-Pub: updates against optima, charges, public data, refusals."""

import math

import numpy as np
import pytest
from pricing import CellPriced, reachable, total_variation
from scipy.optimize import minimize
from seams import draw_from

from mechanisms import run
from mechanisms.datasets.census import census
from mechanisms.families.histogram import FullDomain, Histogram, PublicSupport
from mechanisms.mwem import Mwem, multiplicative_weights
from mechanisms.pep import Pep, PepPub, entropy_projection, pep_pub
from mechanisms.pmw_pub import PmwPub, pmw_pub
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.queries.cells import Cell
from mechanisms.rounds.histogram import MeasuredCell, measured_cells
from mechanisms.workload import Workload, k_way
from pgmkit import Dataset, Domain, InvalidInput, Measurement, ModelTooLarge

DATA = census(3000).project(["sex", "work", "income", "region"])
PUBLIC = census(400, seed=7).project(["sex", "work", "income", "region"])
PAIRS = k_way(DATA.domain, 2)
SMALL = Domain({"a": 3, "b": 2, "c": 2})


def test_the_projection_is_the_entropy_projection() -> None:
    start = np.random.default_rng(0).random(SMALL.shape()) + 0.1
    known = [
        MeasuredCell(Cell(("a", "b"), 1), 0.3, 1e-9),
        MeasuredCell(Cell(("b", "c"), 3), 0.25, 1e-9),
        MeasuredCell(Cell(("c",), 0), 0.6, 1e-9),
    ]
    histogram = Histogram(FullDomain(SMALL), start)
    entropy_projection(2000, 0.5)(histogram, known, 1)
    flat = start.ravel() / start.sum()
    views = np.zeros((4, flat.size))
    for row, fact in enumerate(known):
        mask = np.zeros(SMALL.shape(), dtype=bool)
        mask[FullDomain(SMALL).satisfying(fact.cell)] = True
        views[row] = mask.ravel()
    views[3] = 1
    goal = np.array([fact.answer for fact in known] + [1.0])
    best = minimize(
        lambda p: float((p * np.log(p / flat)).sum()),
        flat,
        jac=lambda p: np.log(p / flat) + 1,
        constraints={"type": "eq", "fun": lambda p: views @ p - goal, "jac": lambda p: views},
        bounds=[(1e-9, 1)] * flat.size,
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    found = (histogram.weights / histogram.weights.sum()).ravel()
    np.testing.assert_allclose(found, best.x, atol=2e-5)


def test_the_projection_passes_over_what_no_public_record_can_answer() -> None:
    public = Dataset(SMALL, {"a": [0, 1, 1, 0], "b": [0, 1, 0, 1], "c": [0, 0, 0, 0]})
    histogram = Histogram(*PublicSupport.of(public))
    known = [
        MeasuredCell(Cell(("a",), 2), 0.5, 1e-3),  # no record
        MeasuredCell(Cell(("c",), 0), 0.4, 1e-3),  # every record
        MeasuredCell(Cell(("b",), 1), 0.8, 1e-3),
    ]
    entropy_projection(100, 0.5)(histogram, known, 1)
    assert histogram.answer(Cell(("b",), 1)) == pytest.approx(0.8)


def test_multiplicative_weights_reach_what_they_are_told() -> None:
    rng = np.random.default_rng(0)
    histogram = Histogram(FullDomain(SMALL), np.ones(SMALL.shape()))
    known = [MeasuredCell(Cell(("a",), 0), 0.5, 1e-3), MeasuredCell(Cell(("b", "c"), 0), 0.1, 1e-3)]
    before = max(abs(histogram.answer(f.cell) - f.answer) for f in known)
    multiplicative_weights(True, 200, rng)(histogram, known, 1)
    assert max(abs(histogram.answer(f.cell) - f.answer) for f in known) < 0.05 * before
    # Algorithm 1, one step: exp(q(x) (a - q(A)) / 2).
    fresh = Histogram(FullDomain(SMALL), np.ones(SMALL.shape()))
    multiplicative_weights(False, 1, rng)(fresh, known, 1)
    weights = np.ones(SMALL.shape())
    weights[:, 0, 0] *= math.exp((0.1 - 0.25) / 2)
    np.testing.assert_allclose(
        fresh.weights / fresh.weights.sum(), weights / weights.sum(), rtol=1e-12
    )


def test_answers_are_merged_and_inside_the_unit_interval() -> None:
    found = measured_cells([Measurement(("a",), [-5.0, 4.0, 20.0], 2.0)], 10.0)
    assert [round(f.answer, 3) for f in found] == [0.0, 0.4, 1.0]
    assert all(0 < f.answer < 1 and f.stddev == pytest.approx(0.2) for f in found)


def test_a_query_measured_again_is_one_fact_and_the_latest() -> None:
    again = [
        Measurement(("a",), [4.0, 6.0], 1.0),
        Measurement(("b",), [1.0], 1.0, np.array([[0.0, 1.0]])),
        Measurement(("a",), [7.0], 2.0, np.array([[1.0, 0.0]])),
    ]
    found = measured_cells(again, 10.0)
    assert [f.cell for f in found] == [Cell(("a",), 1), Cell(("b",), 1), Cell(("a",), 0)]
    assert found[-1].answer == pytest.approx((4 * 1 + 7 / 4) / (1 + 1 / 4) / 10)
    assert found[-1].stddev == pytest.approx((1 + 1 / 4) ** -0.5 / 10)


def test_only_without_past_queries_is_a_query_selected_again() -> None:
    data, ones = DATA.project(["sex", "income"]), k_way(DATA.domain.project(["sex", "income"]), 1)
    for past in (True, False):
        options = Mwem(rounds=12, past_queries=past, one_way_share=0.0)
        release = run(options, data, ones, 5.0, 1e-7, neighbours="replace-one", seed=0)
        cells = {f.cell for f in measured_cells(release.measurements, 1.0)}
        assert (len(cells) == 12) == past


@pytest.mark.parametrize("name", ["mwem", "pep", "pmw-pub"])
@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-7])
def test_draws_match_charges(name: str, relation: str, delta: float) -> None:
    from mechanisms.dispatch import run_on
    from mechanisms.registry import configure

    public = [PUBLIC, DATA] if name == "pmw-pub" else None
    curator = Curator(DATA, Budget(1.0, delta), neighbours=relation)
    noise = CellPriced(relation, pure=delta == 0, softmax_change=1)
    draw_from(curator, noise)
    entry, chosen = configure(name, rounds=4)
    release = run_on(curator, entry, chosen, PAIRS, public=public)
    assert noise.costs == pytest.approx([e.cost for e in release.ledger.entries], rel=1e-9)
    assert math.fsum(noise.costs) == pytest.approx(curator.ledger.budget.total, rel=1e-9)
    assert not [x for x in reachable(release) if isinstance(x, Curator | Dataset)]


@pytest.mark.parametrize(
    "settings", [Mwem(), Mwem(select="marginals"), Pep(), Mwem(result="average")]
)
def test_they_learn(settings: object) -> None:
    """The ratios are 0.42 to 0.54, standard deviations 0.006 to 0.034: 6 away or more."""
    release = run(settings, DATA, PAIRS, 5.0, 1e-7, neighbours="replace-one", seed=0)
    independent = run("independent", DATA, PAIRS, 5.0, 1e-7, neighbours="replace-one", seed=0)
    learnt = total_variation(DATA, release.model, PAIRS)
    assert learnt < 0.7 * total_variation(DATA, independent.model, PAIRS)


def test_public_records_help_and_the_nearer_ones_are_chosen() -> None:
    """The errors are 0.106 to 0.107, standard deviation 0.002: 6 away from the limit or more."""
    far = Dataset(DATA.domain, {n: np.zeros(50, dtype=int) for n in DATA.domain})
    options = {"neighbours": "replace-one", "seed": 0}
    with_far = run("pmw-pub", DATA, PAIRS, 1.0, 1e-7, public=[far, PUBLIC], **options)
    near = run(PmwPub(), DATA, PAIRS, 1.0, 1e-7, public=PUBLIC, **options)
    tv = [total_variation(DATA, release.model, PAIRS) for release in (with_far, near)]
    assert max(tv) < 0.12
    pep = run("pep-pub", DATA, PAIRS, 1.0, 1e-7, public=PUBLIC, **options)
    assert total_variation(DATA, pep.model, PAIRS) < 0.12


class Scores(CellPriced):
    """Priced draws that keep the scores of the selection."""

    def softmax(self, scores: np.ndarray, scale: float) -> int:
        self.scores = scores
        return super().softmax(scores, scale)


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_the_choice_of_public_data_changes_by_at_most_one_and_does(relation: str) -> None:
    rng = np.random.default_rng(0)
    largest = 0.0
    for _ in range(60):
        rows = {n: rng.integers(0, size, 12) for n, size in SMALL.sizes.items()}
        drop = 1 if relation == "replace-one" else rng.integers(2)
        new = {n: np.append(c[drop:], rng.integers(SMALL.sizes[n])) for n, c in rows.items()}
        shares = [{("a", "b"): rng.dirichlet(np.full(6, 0.2)).reshape(3, 2)} for _ in range(3)]
        seen = []
        for codes in (rows, new):
            curator = Curator(Dataset(SMALL, codes), Budget(1.0), neighbours=relation)
            noise = draw_from(curator, Scores(relation, pure=True, softmax_change=1))
            curator.choose_public(shares, 0.5)
            assert noise.costs == pytest.approx([0.5])
            seen.append(noise.scores)
        largest = max(largest, float(np.abs(seen[0] - seen[1]).max()))
    assert 0.9 < largest <= 1 + 1e-9


def test_shares_that_would_break_the_sensitivity_are_refused_before_spending() -> None:
    curator = Curator(DATA, Budget(1.0), neighbours="add/remove", seed=0)
    near, far = {("sex",): [0.5, 0.5]}, {("sex",): [0.0, 1.0]}
    for shares, message in [
        ([], "empty"),
        ([{}], "empty"),
        ([near, {("sex",): [50.0, 2.0]}], "0..1"),
        ([{("sex",): [-0.5, 1.0]}, far], "0..1"),
        ([near, {("income",): np.full(10, 0.1)}], "same cliques"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            curator.choose_public(shares, 0.1)
    assert curator.ledger.spent == 0


def test_refusals_come_before_spending() -> None:
    for make in [
        lambda: Mwem(result="best"),
        lambda: Mwem(select="cells"),
        lambda: Pep(gamma=0.0),
        lambda: Pep(select_share=0.0),
        lambda: PmwPub(choose_share=1.0),
        lambda: Mwem(select="marginals", queries=2),
    ]:
        with pytest.raises(InvalidInput):
            make()
    wide = Dataset(Domain({f"x{i}": 10 for i in range(12)}), {f"x{i}": [0] for i in range(12)})
    with pytest.raises(ModelTooLarge):
        run("mwem", wide, k_way(wide.domain, 1), 1.0, 1e-6, neighbours="replace-one")
    other = census(20).project(["sex", "work"])
    turned = PUBLIC.project(reversed(PUBLIC.domain.attributes))
    for public, message in [
        (other, "lack"),
        (turned, "another domain"),
        ([], "empty"),
        (3, "not iterable|Dataset"),
    ]:
        with pytest.raises((InvalidInput, TypeError), match=message):
            run("pmw-pub", DATA, PAIRS, 1.0, 1e-6, neighbours="replace-one", public=public)
    with pytest.raises(InvalidInput, match="needs public records"):
        run("pmw-pub", DATA, PAIRS, 1.0, 1e-6, neighbours="replace-one")


def test_a_single_public_data_set_is_not_paid_for() -> None:
    for public, paid in ((PUBLIC, 0), ([PUBLIC], 0), ([PUBLIC, PUBLIC], 1)):
        release = run("pmw-pub", DATA, PAIRS, 1.0, 1e-7, neighbours="add/remove", public=public)
        assert [e.step for e in release.ledger.entries].count("public: select") == paid


def test_what_is_refused_is_not_paid_for() -> None:
    """The choice among several public data sets is the first charge, and all else is checked."""
    other = Dataset(SMALL, {"a": [0], "b": [0], "c": [0]})
    uneven = Workload(DATA.domain, [("sex",), ("work",)], [1.0, 2.0])
    wider = census(400, seed=7).project([*DATA.domain, "hours"])
    refused = [([PUBLIC, other], PAIRS), ([PUBLIC, wider], PAIRS), ([PUBLIC, PUBLIC], uneven)]
    for public, workload in refused:
        curator = Curator(DATA, Budget(1.0, 1e-7), neighbours="add/remove", seed=0)
        with pytest.raises(InvalidInput):
            pmw_pub(curator, workload, public=public)
        assert curator.ledger.spent == 0


def test_settings_are_those_given() -> None:
    for mechanism, settings in ((pmw_pub, PmwPub(passes=3)), (pep_pub, PepPub(steps=7))):
        curator = Curator(DATA, Budget(1.0, 1e-7), neighbours="add/remove", seed=0)
        assert mechanism(curator, PAIRS, settings, public=PUBLIC).settings == settings
        curator = Curator(DATA, Budget(1.0, 1e-7), neighbours="add/remove", seed=0)
        assert mechanism(curator, PAIRS, public=PUBLIC).settings == type(settings)()
