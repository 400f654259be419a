"""RAP and RAPsoftmax: the fit, charges, learning, refusals."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from pricing import CellPriced, total_variation
from seams import draw_from

from mechanisms import run
from mechanisms.datasets.census import census
from mechanisms.families.fitting import FreeRows, stalled
from mechanisms.families.product_mixture import Columns
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.queries.cells import Cell
from mechanisms.rap import Rap, RapSoftmax, fitter, rap, rap_softmax
from mechanisms.workload import Workload, k_way
from pgmkit import InvalidInput

DATA = census(3000).project(["sex", "work", "income"])
PAIRS = k_way(DATA.domain, 2)


@pytest.mark.parametrize(("run_it", "settings"), [(rap, Rap), (rap_softmax, RapSoftmax)])
@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-7])
def test_draws_match_charges(run_it: object, settings: type, relation: str, delta: float) -> None:
    curator = Curator(DATA, Budget(1.0, delta), neighbours=relation)
    noise = CellPriced(relation, pure=delta == 0)
    top_k = 4

    def cells(scale: float) -> float:
        return top_k / scale if delta == 0 else top_k / (2 * scale**2)

    plain_top = noise.top

    def top(scores: np.ndarray, count: int, scale: float) -> list[int]:
        found = plain_top(scores, count, scale)
        noise.prices["gaussian"] = noise.prices["laplace"] = cells
        return found

    noise.top = top
    draw_from(curator, noise)
    release = run_it(curator, PAIRS, settings(rounds=3, queries=top_k, rows=50, steps=20))
    assert noise.costs == pytest.approx([e.cost for e in release.ledger.entries], rel=1e-9)
    assert math.fsum(noise.costs) == pytest.approx(curator.ledger.budget.total, rel=1e-9)


def test_the_fit_reaches_answers_that_can_be_reached() -> None:
    """The largest error is 0.08 counts, standard deviation 0.015."""
    columns = Columns(DATA.domain)
    truth = DATA.marginal(("sex", "income"))
    curator = Curator(DATA, Budget(1e4, 1e-7), neighbours="replace-one", seed=0)
    cells = [Cell(("sex", "income"), i) for i in range(truth.size)]
    exact = curator.measure_cells(cells, curator.remaining)
    values = torch.randn(200, columns.width, generator=torch.Generator().manual_seed(0))
    start = FreeRows(columns, columns.softmax(values), 3000.0, values)
    fitted = fitter(RapSoftmax(steps=800))(start, exact)
    from mechanisms.families.product_mixture import ProductMixtureModel

    model = ProductMixtureModel(DATA.domain, fitted.rows.double().numpy(), 3000)
    np.testing.assert_allclose(model.marginal(("sex", "income")), truth, atol=1)


def test_softmax_learns_more_than_clamping() -> None:
    """The log of their errors' ratio is -0.93, standard deviation 0.15: of two seeds, 8.7 away."""
    ratios = []
    for seed in range(2):
        errors = []
        for kind in (RapSoftmax, Rap):
            settings = kind(rows=200, steps=150, seed=seed)
            options = {"neighbours": "replace-one", "seed": seed}
            release = run(settings, DATA, PAIRS, 5.0, 1e-7, **options)
            errors.append(total_variation(DATA, release.model, PAIRS))
        ratios.append(math.log(errors[0] / errors[1]))
    assert np.mean(ratios) < 0


def test_softmax_learns_pairs() -> None:
    """The ratio is 0.22, standard deviation 0.02: 26 away from the limit."""
    release = run("rap-softmax", DATA, PAIRS, 5.0, 1e-7, neighbours="replace-one", seed=0)
    independent = run("independent", DATA, PAIRS, 5.0, 1e-7, neighbours="replace-one", seed=0)
    learnt = total_variation(DATA, release.model, PAIRS)
    assert learnt < 0.7 * total_variation(DATA, independent.model, PAIRS)


def test_a_fit_ends_only_when_a_whole_window_gains_nothing() -> None:
    slow = [100 * 0.9999**i for i in range(500)]  # half a percent a window
    assert not stalled(slow)
    assert stalled([*slow, *[slow[-1]] * 51])
    assert not stalled([1.0] * 50)


def test_refusals_come_before_spending() -> None:
    for settings in [{"rounds": 0}, {"queries": 0}, {"select_share": 0.0}, {"device": "tpu"}]:
        with pytest.raises(InvalidInput):
            RapSoftmax(**settings)
    for workload, settings, message in [
        (PAIRS, RapSoftmax(rounds=100, queries=100), "fewer"),
        (Workload(DATA.domain, PAIRS.cliques, [1, 2, 3]), RapSoftmax(), "unequal"),
        (k_way(census(5).domain, 2), RapSoftmax(), "another domain"),
    ]:
        curator = Curator(DATA, Budget(1.0, 1e-7), neighbours="replace-one", seed=0)
        with pytest.raises(InvalidInput, match=message):
            rap_softmax(curator, workload, settings)
        assert curator.ledger.spent == 0


def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, dict[Any, np.ndarray]]]:
    """What each selection of cells is asked for: how many, and by which estimates."""
    asked: list[tuple[int, dict[Any, np.ndarray]]] = []
    choose = Curator.choose_cells

    def choosing(self: Curator, cliques: Any, estimates: Any, *args: Any, **options: Any) -> Any:
        asked.append((options["count"], {c: np.array(t) for c, t in estimates.items()}))
        return choose(self, cliques, estimates, *args, **options)

    monkeypatch.setattr(Curator, "choose_cells", choosing)
    return asked


@pytest.mark.parametrize(("run_it", "share"), [(rap, 0.5), (rap_softmax, 0.5), (rap_softmax, 0.0)])
def test_the_first_selection_compares_what_is_known(
    run_it: Any, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares of probabilities add up; single columns that were measured are fitted."""
    asked = noted(monkeypatch)
    settings = (Rap if run_it is rap else RapSoftmax)(rounds=1, queries=3, one_way_share=share)
    curator = Curator(DATA, Budget(1e3, 1e-7), neighbours="replace-one", seed=0)
    before = torch.get_rng_state()
    run_it(curator, PAIRS, settings)
    assert torch.equal(torch.get_rng_state(), before), "a generator of all programs was used"
    for clique, table in asked[0][1].items():
        if run_it is rap_softmax:
            assert table.min() >= 0 and table.sum() == pytest.approx(3000, rel=1e-4)
        for axis, name in enumerate(clique if share else ()):
            found = table.sum(axis=1 - axis)
            assert abs(found - DATA.marginal((name,))).max() < 0.1 * 3000


def test_the_number_of_queries_follows_from_the_noise_within_what_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """sqrt(rows / noise) / 5, at least five, and no more than the cells of the workload allow."""
    small = Workload(DATA.domain, [("sex", "income")])
    cells = DATA.domain.size(("sex", "income"))
    pairs = sum(map(DATA.domain.size, PAIRS.cliques))
    for workload, rounds, epsilon in ((PAIRS, 2, 400.0), (PAIRS, 2, 1.0), (small, 5, 1.0)):
        with monkeypatch.context() as patch:
            asked = noted(patch)
            curator = Curator(DATA, Budget(epsilon, 1e-7), neighbours="replace-one", seed=0)
            wanted = round((3000 / curator.scale(0.9 * curator.remaining)) ** 0.5 / 5)
            rap(curator, workload, Rap(rounds=rounds, rows=20, steps=5))
            available = (pairs if workload is PAIRS else cells) // rounds
            assert asked[0][0] == min(available, max(5, wanted))
            if epsilon == 400.0:
                assert 5 < wanted < available


def test_rounds_are_joined_where_nothing_is_found_unless_their_queries_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = census(30).project(["sex", "work", "income"])
    for queries, joined in ((None, True), (5, False)):
        with monkeypatch.context() as patch:
            asked = noted(patch)
            curator = Curator(few, Budget(0.01, 1e-7), neighbours="replace-one", seed=1)
            rap(curator, PAIRS, Rap(rounds=4, queries=queries, rows=20, steps=20))
            assert (len(asked) < 4) == joined
            assert curator.ledger.spent == pytest.approx(curator.ledger.budget.total)
