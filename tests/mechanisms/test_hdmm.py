"""HDMM: draws against charges, reconstruction, errors as expected, refusals before spending."""

import math

import numpy as np
import pytest
from chance import assert_mean
from pricing import Priced

from mechanisms.baselines import Gaussian, gaussian
from mechanisms.datasets.census import census
from mechanisms.families.tables import TablesModel
from mechanisms.hdmm import Hdmm, HdmmPgm, best_strategy, hdmm, hdmm_pgm
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.workload import Workload, k_way
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.model import GraphicalModel
from pgmkit.queries import FactoredQuery, prefix

DATA = census(3000).project(["sex", "work", "hours", "income"])
PAIRS = k_way(DATA.domain, 2)


def curator_with(relation: str, delta: float, seed: int = 0) -> Curator:
    return Curator(DATA, Budget(1.0, delta), neighbours=relation, seed=seed)


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-8])
def test_marginals_draws_match_charges_and_the_budget(relation: str, delta: float) -> None:
    curator = curator_with(relation, delta)
    noise = curator._noise = Priced(relation, pure=delta == 0)
    release = hdmm(curator, PAIRS)
    assert len(noise.costs) == len(release.measurements) > 1
    assert noise.costs == pytest.approx([e.cost for e in release.ledger.entries], rel=1e-9)
    assert math.fsum(noise.costs) == pytest.approx(curator.ledger.budget.total, rel=1e-12)
    assert min(table.min() for table in release.model.marginals(PAIRS.cliques).values()) >= 0


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("delta", [0.0, 1e-8])
def test_errors_are_as_expected(relation: str, delta: float) -> None:
    truth = DATA.marginals(PAIRS.cliques)
    known = relation == "replace-one"
    strategy = best_strategy(PAIRS, {}, norm=2 if delta else 1, total_known=known)
    squares = []
    for seed in range(60):
        curator = curator_with(relation, delta, seed)
        unit = 2 * curator.scale(curator.remaining) ** 2 if delta == 0 else None
        unit = unit or curator.scale(curator.remaining) ** 2
        tables = hdmm(curator, PAIRS, Hdmm(clip=False)).model.marginals(PAIRS.cliques)
        squares.append(sum(float(((tables[c] - truth[c]) ** 2).sum()) for c in truth) / unit)
    assert_mean(squares, strategy.expected_error)


def test_prefixes_beat_noise_on_every_cell() -> None:
    """Cumulative counts of hours by sex, by a p-Identity product."""
    workload = Workload(DATA.domain, [("hours", "sex")])
    query = FactoredQuery({"hours": prefix(DATA.domain.sizes["hours"]), "sex": np.eye(2)})
    table = DATA.marginal(("hours", "sex"))
    rows = np.kron(np.asarray(query.factors["hours"]), np.eye(2))
    found: dict[str, list[float]] = {"hdmm": [], "gaussian": []}
    exact: dict[str, float] = {}
    for seed in range(60):
        curators = [curator_with("add/remove", 1e-8, seed) for _ in range(2)]
        ours = hdmm(curators[0], workload, Hdmm({"hours": "prefix"}, clip=False))
        assert ours.measurements[0].matrix is not None and curators[0].remaining == 0
        plain = gaussian(curators[1], workload, Gaussian(clip=False))
        for release in (ours, plain):
            (m,) = release.measurements
            strategy = (
                np.eye(rows.shape[1])
                if m.matrix is None
                else np.kron(*map(np.asarray, m.matrix.factors))
            )
            exact[release.mechanism] = float(
                m.stddev**2 * ((rows @ np.linalg.pinv(strategy)) ** 2).sum(axis=1).mean()
            )
            gaps = release.answer(query) - np.cumsum(table, axis=0)
            found[release.mechanism].append(float((gaps**2).mean()))
    # The least-squares error in closed form, without a draw of noise.
    assert exact["hdmm"] < 0.7 * exact["gaussian"]
    for mechanism, errors in found.items():
        # One error's standard deviation is a third of it, that of 60 a 25th: the limit is 6 away.
        assert np.mean(errors) == pytest.approx(exact[mechanism], rel=0.25)


@pytest.mark.parametrize("delta", [0.0, 1e-8])
@pytest.mark.parametrize("queries", [{}, {"hours": "range"}])
@pytest.mark.parametrize("model_mb", [80.0, 0.0])
def test_hdmm_pgm(delta: float, queries: dict[str, str], model_mb: float) -> None:
    release = hdmm_pgm(curator_with("replace-one", delta), PAIRS, HdmmPgm(queries, model_mb))
    model = release.model
    assert isinstance(model, GraphicalModel if model_mb else TablesModel)
    for table in model.marginals(PAIRS.cliques).values():
        assert table.min() >= 0 and table.sum() == pytest.approx(3000, abs=1)


@pytest.mark.parametrize("seed", range(4))
def test_noise_beyond_the_data_still_gives_a_release(seed: int) -> None:
    few = census(20).project(["sex", "work", "income"])
    for mechanism in (hdmm, hdmm_pgm):
        curator = Curator(few, Budget(0.001, 1e-9), neighbours="add/remove", seed=seed)
        assert mechanism(curator, k_way(few.domain, 2)).model.total >= 1


def test_refusals_come_before_spending() -> None:
    with pytest.raises(InvalidInput, match="to one of 'identity', 'prefix', 'range'; got .*median"):
        Hdmm({"hours": "median"})
    with pytest.raises(InvalidInput, match="model_mb"):
        HdmmPgm(model_mb=-1)
    curator = curator_with("add/remove", 1e-8)
    for mechanism, settings in [(hdmm, Hdmm({"z": "range"})), (hdmm_pgm, HdmmPgm({"z": "range"}))]:
        with pytest.raises(InvalidInput, match="another domain"):
            mechanism(curator, k_way(Domain({"a": 2, "b": 2}), 2))
        with pytest.raises(InvalidInput, match="'z'"):
            mechanism(curator, PAIRS, settings)
    assert curator.ledger.spent == 0
