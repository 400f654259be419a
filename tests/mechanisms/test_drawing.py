"""Records of a release: near the model's pairs, within what is possible, from the model alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from pricing import cut

from mechanisms import MECHANISMS, k_way, run
from mechanisms.datasets.census import census
from mechanisms.families.product_mixture import PairMixtureModel, ProductMixtureModel
from mechanisms.mixture import Mixture, mixture
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.registry import configure
from mechanisms.release import record
from mechanisms.release.record import draw_near
from pgmkit import Zeros, estimate
from pgmkit.domain import Domain
from pgmkit.measurement import Measurement
from pgmkit.records.dataset import Dataset

DATA = census(600).project(["sex", "work", "hours", "income"])
PAIRS = k_way(DATA.domain, 2)


@pytest.mark.parametrize("name", ["aim", "mst", "mixture", "gem", "rap-softmax", "independent"])
def test_records_of_every_family_are_nearer_than_a_sample(name: str) -> None:
    settings = configure(name, **cut(name))[1]
    assert MECHANISMS[name].records
    release = run(settings, DATA, PAIRS, 3.0, 1e-6, neighbours="replace-one", seed=0)
    tables = release.model.marginals(PAIRS.cliques)

    def gap(records: object) -> float:
        found = records.marginals(PAIRS.cliques)  # type: ignore[attr-defined]
        return sum(
            float(np.abs(found[c] / 600 - tables[c] / tables[c].sum()).sum()) for c in tables
        )

    drawn = [gap(release.model.sample(600, rng=seed)) for seed in range(3)]
    near = [gap(release.sample(600, rng=seed)) for seed in range(3)]
    assert max(near) < 0.7 * min(drawn)
    one, other = (release.sample(600, rng=5) for _ in range(2))
    assert all(np.array_equal(one.columns[a], other.columns[a]) for a in DATA.domain)


def chain(rows: int, seed: int) -> Dataset:
    """Six columns, each of which follows the one before in six of ten rows."""
    rng = np.random.default_rng(seed)
    columns, before = {}, rng.integers(0, 6, rows)
    for name in "abcdef":
        follows = rng.random(rows) < 0.6
        before = np.where(follows, (5 * before + 1) % 6, rng.integers(0, 6, rows))
        columns[name] = before
    return Dataset(Domain(dict.fromkeys(columns, 6)), columns)


def test_triples_are_nearer_where_a_mixture_knows_pairs_alone() -> None:
    """The ratio is 0.79 to 0.85 in four seeds, standard deviation 0.03: 4 away from the limit."""
    apart = np.zeros(2)
    for seed in range(2):
        data = chain(20_000, seed)
        curator = Curator(data, Budget(10.0, 1e-9), neighbours="add/remove", seed=seed)
        found = mixture(curator, k_way(data.domain, 2), Mixture(rows=100, steps=50, level=10.0))
        plain = ProductMixtureModel(data.domain, found.model.rows, found.model.total)
        for place, model in enumerate((found.model, plain)):
            records = draw_near(model, len(data), rng=seed)
            for triple in itertools.combinations(data.domain, 3):
                off = np.abs(records.marginal(triple) - data.marginal(triple))
                apart[place] += off.sum()
    assert apart[0] < 0.95 * apart[1]


def test_a_mixture_of_triples_is_drawn_from_as_it_is() -> None:
    for width, kind in ((2, PairMixtureModel), (3, ProductMixtureModel)):
        curator = Curator(DATA, Budget(1.0, 1e-9), neighbours="add/remove", seed=0)
        asked = Mixture(rows=5, steps=2, graph_mb=0.0)
        assert type(mixture(curator, k_way(DATA.domain, width), asked).model) is kind


def test_what_is_impossible_stays_so() -> None:
    domain = Domain({"a": 3, "b": 3, "c": 3})
    rng = np.random.default_rng(0)
    measured = [
        Measurement(pair, rng.integers(0, 50, 9), 3.0) for pair in itertools.combinations("abc", 2)
    ]
    for clique in (("a", "b"), ("a", "b", "c")):
        allowed = rng.random(domain.shape(clique)) < 0.6
        allowed.flat[0] = True
        model = estimate(domain, measured, total=200, zeros=[Zeros(clique, allowed)])
        for seed in range(5):
            records = draw_near(model, 200, rng=seed)
            assert not records.marginal(clique)[~allowed].any()


def test_large_ones_stay_as_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    release = run("mst", DATA, PAIRS, 3.0, 1e-6, neighbours="replace-one", seed=0)
    plain = release.model.sample(50, rng=np.random.default_rng(1))
    for name, value in (("LARGEST_WIDTH", 5), ("MOST_LOOKUPS", 10)):
        with monkeypatch.context() as patch:
            patch.setattr(record, name, value)
            found = release.sample(50, rng=1)
        assert all(np.array_equal(found.columns[a], plain.columns[a]) for a in DATA.domain)
    assert len(release.sample(1, rng=0)) == 1
