"""GEM's rounds, averages and merged codes, beside what its settings and the paper say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mechanisms import gem as module
from mechanisms.families.product_mixture import Columns
from mechanisms.gem import Gem, GemPub, gem, gem_pub
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.release.record import Release
from mechanisms.rounds.loop import Round
from mechanisms.workload import k_way
from pgmkit import Dataset, Domain, InvalidInput

DOMAIN = Domain({"a": 2, "b": 3, "c": 40})
SMALL = {"batch_rows": 20, "hidden": (8,), "noise_width": 4, "steps": 3}


def data(rows: int = 2000) -> Dataset:
    """Return records; nearly all of them have one of three codes of the attribute c."""
    rng = np.random.default_rng(0)
    a = rng.integers(0, 2, rows)
    columns = {"a": a, "b": np.minimum(a + rng.integers(0, 2, rows), 2)}
    return Dataset(DOMAIN, columns | {"c": np.where(np.arange(rows) % 500, a, 39)})


def run(settings: Gem, *, public: bool = False, epsilon: float = 1.0,
        neighbours: str = "replace-one") -> tuple[Release, list[Round[Any, Any]]]:  # fmt: skip
    rounds: list[Round[Any, Any]] = []
    curator = Curator(data(), Budget(epsilon, 1e-7), neighbours=neighbours, seed=0)
    workload = k_way(DOMAIN, 2)
    if isinstance(settings, GemPub):
        return gem_pub(
            curator, workload, settings, public=data(300), progress=rounds.append
        ), rounds
    return gem(curator, workload, settings, progress=rounds.append), rounds


@pytest.mark.parametrize(
    ("select", "share", "expected"),
    [
        # Selection costs (alpha eps_0)^2 / 2, and measurement ((1 - alpha) eps_0)^2 / 2.
        ("queries", None, 0.67**2 / (0.67**2 + 0.33**2)),
        ("marginals", None, 0.5),
        ("queries", 0.3, 0.3),
        ("marginals", 0.3, 0.3),
    ],
)
def test_a_round_is_shared_between_selection_and_measurement(
    select: Any, share: float | None, expected: float
) -> None:
    settings = Gem(rounds=2, select=select, select_share=share, one_way_share=0.25, **SMALL)
    release, _ = run(settings)
    assert release.ledger is not None
    total = release.ledger.budget.total
    costs = [(entry.step, entry.cost / total) for entry in release.ledger.entries]
    assert [cost for step, cost in costs if step.startswith("first: measure")] == pytest.approx(
        [0.25 / 3] * 3
    )
    selections = [cost for step, cost in costs if ": select" in step]
    assert selections == pytest.approx([0.75 / 2 * expected] * 2)
    assert sum(cost for _, cost in costs) == pytest.approx(1)


@pytest.mark.parametrize(("select", "queries"), [("queries", 3), ("marginals", None)])
def test_averages_begin_with_the_round_that_ends_after_half_of_the_budget(
    select: Any, queries: int | None
) -> None:
    """A round of k queries keeps the k-th power of the former average's share. The rows of the
    last average are released.
    """
    settings = Gem(rounds=3, select=select, queries=queries, smoothing=0.7, **SMALL)
    release, rounds = run(settings)
    states = [rounds[0].before, *(each.after for each in rounds)]
    # The first state is trained on the one-way marginals, of which neither average knows.
    assert states[0].error is None and states[0].average is None and states[1].average is None
    kept = 0.7 ** (queries or 1)
    for one, other in zip(states[2].average, states[2].weights, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-6)
    for now, old, weight in zip(
        states[3].average, states[2].average, states[3].weights, strict=True
    ):
        np.testing.assert_allclose(now, kept * old + (1 - kept) * weight, atol=1e-6)
    assert states[1].error is not None
    generator = module.new_generator(states[3].columns, settings)
    generator.set_weights(states[3].average)
    smaller = generator().detach().double().numpy()
    wanted = states[3].frequent.expand(smaller).mean(0)
    found = np.concatenate([release.model.marginal((name,)) for name in DOMAIN]) / 2000
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "merged"),
    [
        (Gem(rounds=2, queries=1, **SMALL), True),
        (Gem(rounds=2, queries=None, **SMALL), True),
        (Gem(rounds=2, select="marginals", **SMALL), False),
        (GemPub(rounds=2, pretrain_steps=3, one_way_share=0.2, **SMALL), False),
    ],
)
def test_rare_codes_are_merged_for_single_queries_without_public_records(
    settings: Gem, merged: bool
) -> None:
    _, rounds = run(settings, epsilon=3.0, neighbours="add/remove")
    frequent = rounds[0].before.frequent
    if merged:
        assert {0, 1} <= {*frequent.codes["c"].tolist()} and len(rounds[0].picked) == 1
        assert 2 <= len(frequent.codes["c"]) < 10
    else:
        assert frequent.domain == DOMAIN


def test_codes_stay_apart_where_the_frequent_ones_are_too_few_for_all_rounds() -> None:
    """There are as many cells of frequent codes as all rounds select, or one fewer."""
    known = run(Gem(rounds=1, queries=1, **SMALL), epsilon=50.0)[1][0].before.frequent
    a, b, c = (len(known.codes[name]) for name in DOMAIN)
    cells = a * b + a * c + b * c
    assert a * b + 2 * (a + b) <= cells < 100
    for queries in (cells, cells + 1):
        settings = Gem(rounds=1, queries=queries, **SMALL)
        _, found = run(settings, epsilon=50.0)
        assert (found[0].before.frequent.domain != DOMAIN) == (queries == cells)
    _, found = run(Gem(rounds=cells, queries=None, **{**SMALL, "steps": 1}), epsilon=50.0)
    assert found[0].before.frequent.domain != DOMAIN  # a query a round


@pytest.mark.parametrize(
    ("options", "rounds", "expected"),
    [
        ({"select": "marginals"}, 7, (7, 1, None)),
        ({}, 7, (7 // 3, 3, True)),
        ({"query_codes": 7}, 20, (20 // 7, 7, True)),
        ({"query_codes": 3}, 9, (1, 9, True)),  # no more queries than rounds
        ({"query_codes": 46}, 9, (9, 1, True)),
        ({"rounds": 7}, 7, (7, 1, False)),
        ({"rounds": 7, "queries": 4}, 7, (7, 4, False)),
        ({"queries": 4}, 7, (7, 4, True)),
    ],
)
def test_rounds_have_one_query_more_for_so_many_frequent_codes(
    options: dict[str, Any], rounds: int, expected: tuple[int, int, bool | None]
) -> None:
    """The domain has 45 codes. Rounds and queries that are given stay as they are."""
    frequent: Any = SimpleNamespace(domain=DOMAIN, codes={"a": np.arange(2)})
    settings = Gem(**{"query_codes": 20, **options})
    found, count, further = module.selection_of(settings, rounds, frequent)
    assert (found, count, further.get("anneal")) == expected and type(found) is int
    assert further.get("codes") is (None if settings.select == "marginals" else frequent.codes)


def test_one_way_marginals_are_needless_beside_public_records_of_all_columns() -> None:
    """They are measured only if the number of records is private."""
    settings = GemPub(rounds=2, pretrain_steps=3, **SMALL)
    for neighbours, measured in (("replace-one", 0), ("add/remove", 3)):
        release, _ = run(settings, neighbours=neighbours)
        steps = [entry.step for entry in release.ledger.entries]  # type: ignore[union-attr]
        assert sum(step.startswith("first: measure") for step in steps) == measured


def test_seeds_give_the_weights_and_the_noise() -> None:
    """The global random source of torch is not touched."""
    columns, state = Columns(DOMAIN), torch.get_rng_state()
    one, other = (module.new_generator(columns, Gem(seed=seed, **SMALL)) for seed in (0, 1))
    again = module.new_generator(columns, Gem(seed=1, **SMALL))
    assert (one.noise != other.noise).all() and (other.noise == again.noise).all()
    assert torch.equal(torch.get_rng_state(), state)
    assert one.noise.shape == (20, 4) and [len(scale) for scale in one.scales] == [8]


def test_the_smallest_networks_have_two_rows_and_one_of_all_else() -> None:
    least = {"batch_rows": 2, "hidden": (1,), "noise_width": 1, "steps": 1}
    release, _ = run(Gem(rounds=1, queries=1, **least))  # type: ignore[arg-type]
    assert release.model.marginal(("a",)).sum() == pytest.approx(2000)
    with pytest.raises(InvalidInput, match="batch_rows"):
        Gem(batch_rows=1)


def test_public_records_of_one_clique_are_enough() -> None:
    curator = Curator(data(), Budget(1.0, 1e-7), neighbours="replace-one", seed=0)
    settings, public = GemPub(rounds=1, pretrain_steps=1, **SMALL), data(300).project(["a", "b"])
    release = gem_pub(curator, k_way(DOMAIN, 2), settings, public=public)
    assert release.model.marginal(()) == pytest.approx(2000)
