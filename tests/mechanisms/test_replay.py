"""Every mechanism, replayed on neighbours: only noise depends on the data, and it is paid."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pricing import cut
from replay import assert_private, assert_same, replay, transcript_of
from seams import noise_of

from mechanisms.dispatch import run_on
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.queries.query_sets import QUERIES
from mechanisms.registry import MECHANISMS, configure
from mechanisms.release.report import html
from mechanisms.synthesis.pipeline import synthesize
from mechanisms.workload import Workload, k_way
from pgmkit import Categorical, Column, Forbid, Numeric, OpenCategorical, Schema
from pgmkit.domain import Domain
from pgmkit.records.dataset import Dataset

pytestmark = pytest.mark.usefixtures("short_fits")

DOMAIN = Domain({"a": 2, "b": 3, "c": 4})
PAIRS = k_way(DOMAIN, 2)
FAST = (
    "mst",
    "pair-graph",
    "independent",
    "gaussian+projection",
    "aim",
    "mwem+pgm",
    "clique-tree",
    "matrix+pgm",
)
BUDGETS = {"pure": Budget(1.5), "zCDP": Budget(1.5, 1e-6)}


def drawn(rng: np.random.Generator, rows: int = 80) -> Dataset:
    """Records whose columns depend on each other."""
    a = rng.integers(0, 2, rows)
    b = (a + (rng.random(rows) < 0.3)) % 3
    return Dataset(DOMAIN, {"a": a, "b": b, "c": (a + b + rng.integers(0, 2, rows)) % 4})


PUBLIC = drawn(np.random.default_rng(99), 40)


def neighbour(data: Dataset, relation: str, rng: np.random.Generator) -> Dataset:
    """One row replaced by one that differs in every column, or one row more or less."""
    domain = data.domain
    columns = {name: np.asarray(data.columns[name]).astype(int).copy() for name in domain}
    row = int(rng.integers(len(data)))
    if relation == "replace-one":
        for name, size in domain.sizes.items():
            columns[name][row] = (columns[name][row] + rng.integers(1, size)) % size
    elif rng.random() < 0.5:
        columns = {name: np.delete(codes, row) for name, codes in columns.items()}
    else:
        columns = {
            name: np.append(codes, rng.integers(domain.sizes[name]))
            for name, codes in columns.items()
        }
    return Dataset(domain, columns)


def quick(name: str) -> dict[str, Any]:
    """Settings under which a mechanism takes a second; what it asks the data is as ever."""
    entry = MECHANISMS[name]
    known = set(entry.load()[1].__dataclass_fields__)
    wanted = {**cut(name), "steps": 5, "rounds": 3, "pretrain_steps": 5}
    if name == "rap++":
        wanted |= {"rounds": 2, "queries": 5}
    return {key: value for key, value in wanted.items() if key in known}


def assert_charges_cover(
    name: str, relation: str, budget: Budget, seed: int, folder: Path
) -> float:
    rng = np.random.default_rng(seed)
    entry, settings = configure(name, **quick(name))
    public = {"public": PUBLIC} if entry.public else {}

    def job(data: Dataset) -> Any:
        curator = Curator(data, budget, neighbours=relation)
        return run_on(curator, entry, settings, PAIRS, **public)

    data = drawn(rng)
    return replay(job, data, neighbour(data, relation, rng), folder, pure=budget.pure)


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("name", MECHANISMS)
def test_nothing_but_noise_depends_on_the_data(name: str, relation: str, tmp_path: Path) -> None:
    assert_charges_cover(name, relation, BUDGETS["zCDP"], 0, tmp_path)


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("asked", [*QUERIES][1:])
@pytest.mark.parametrize("name", ["matrix", "matrix+pgm"])
def test_bases_for_other_queries_cost_what_is_charged(
    name: str, asked: str, budget: str, relation: str, tmp_path: Path
) -> None:
    entry, settings = configure(name, queries={"b": asked, "c": asked})
    data = drawn(np.random.default_rng(5))

    def job(data: Dataset) -> Any:
        curator = Curator(data, BUDGETS[budget], neighbours=relation)
        return run_on(curator, entry, settings, PAIRS)

    other = neighbour(data, relation, np.random.default_rng(6))
    replay(job, data, other, tmp_path, pure=BUDGETS[budget].pure)


def strangers(relation: str) -> tuple[Dataset, Dataset]:
    """Records that have nothing in common: other codes, and another number where it is private."""
    rows = 80 if relation == "replace-one" else 301
    rng = np.random.default_rng(11)
    other = {name: np.full(rows, size - 1) for name, size in DOMAIN.sizes.items()}
    other["b"] = rng.integers(0, 2, rows)
    return drawn(np.random.default_rng(0)), Dataset(DOMAIN, other)


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("name", MECHANISMS)
def test_no_exact_value_reaches_anything_that_leaves(
    name: str, relation: str, tmp_path: Path
) -> None:
    """With the same noisy answers, data sets that could not differ more give the same release.

    Rounding and thresholds hide from neighbours what they cannot hide here: every exact value that
    the Curator holds is another one, and only it and the noise source may see them.
    """
    entry, settings = configure(name, **quick(name))
    public = {"public": PUBLIC} if entry.public else {}

    def job(data: Dataset) -> Any:
        curator = Curator(data, BUDGETS["zCDP"], neighbours=relation)
        return run_on(curator, entry, settings, PAIRS, **public)

    data, other = strangers(relation)
    one = transcript_of(lambda: job(data), tmp_path)
    draws = assert_same(one, transcript_of(lambda: job(other), tmp_path, forced=one))
    pairs = [pair for _, before, after in draws for pair in zip(before, after, strict=True)]
    assert sum((a.exact != b.exact).any() for a, b in pairs) > len(pairs) / 4


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("name", FAST)
def test_pure_budgets_too(name: str, relation: str, tmp_path: Path) -> None:
    assert_charges_cover(name, relation, BUDGETS["pure"], 0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BUDGETS)
@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("name", MECHANISMS)
def test_nothing_but_noise_depends_on_the_data_in_any_mechanism(
    name: str, relation: str, kind: str, tmp_path: Path
) -> None:
    shares = [
        assert_charges_cover(name, relation, BUDGETS[kind], seed, tmp_path) for seed in range(1, 5)
    ]
    print(f"{name}, {relation}, {kind}: true cost / charged up to {max(shares):.6f}")


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_measurements_alone_cost_exactly_what_is_charged(relation: str, tmp_path: Path) -> None:
    """The harness has power: where the neighbours are the worst, true cost is the charge."""
    shares = [
        assert_charges_cover("gaussian+projection", relation, budget, 5, tmp_path)
        for budget in BUDGETS.values()
    ]
    assert shares == pytest.approx([1.0, 1.0], rel=1e-9)


WIDE = Domain(dict(zip("abcdefg", (4, 3, 5, 2, 6, 3, 4), strict=True)))
TIGHT: dict[str, dict[str, Any]] = {
    "aim": {"model_mb": 0.0012, "select_share": 0.4},
    "mwem+pgm": {"model_mb": 0.0012, "rounds": 8},
}
"""Models that hold a few pairs, so that most draws late in a run are not allowed."""


def chain(rng: np.random.Generator, rows: int = 300) -> Dataset:
    """Records whose columns all follow one hidden number: any pair is worth measuring."""
    hidden = rng.random(rows)
    codes = {
        name: ((hidden + 0.2 * rng.random(rows)) * size).astype(int) % size
        for name, size in WIDE.sizes.items()
    }
    return Dataset(WIDE, codes)


def tight(name: str, relation: str, seed: int) -> tuple[Any, Dataset, Dataset]:
    """A run of small models and unequal weights, data, and a neighbour."""
    rng = np.random.default_rng(seed)
    pairs = k_way(WIDE, 2).cliques
    workload = Workload(WIDE, pairs, rng.integers(1, 40, len(pairs)).astype(float))
    entry, settings = configure(name, **TIGHT[name])

    def job(data: Dataset) -> Any:
        curator = Curator(data, Budget(8.0, 1e-6), neighbours=relation)
        return run_on(curator, entry, settings, workload)

    data = chain(rng)
    return job, data, neighbour(data, relation, rng)


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("name", TIGHT)
def test_what_was_drawn_and_put_aside_leaves_no_trace(
    name: str, relation: str, tmp_path: Path
) -> None:
    """Other candidates are put aside in the replay: later scores are the same to the last digit."""
    job, data, other = tight(name, relation, 0)
    one = transcript_of(lambda: job(data), tmp_path)
    again = transcript_of(lambda: job(data), tmp_path, forced=one)
    aside = [(a.aside, b.aside) for a, b in zip(one.draws, again.draws, strict=True)]
    assert sum(len(first) for first, _ in aside[:-3]) >= 5
    assert any(first != then for first, then in aside[:-3])
    for a, b in zip(one.draws, again.draws, strict=True):
        assert np.array_equal(a.exact, b.exact)
    assert assert_private(one, again, pure=False) == 0
    near = transcript_of(lambda: job(other), tmp_path, forced=one)
    assert_private(one, near, pure=False)


def frame(data: Dataset) -> Any:
    """The records as a pandas frame of texts and numbers."""
    import pandas as pd

    return pd.DataFrame(
        {
            "sex": np.array(["F", "M"])[data.columns["a"]],
            "job": np.array(["cook", "smith", "clerk"])[data.columns["b"]],
            "wage": data.columns["c"].astype(float) * 7.25 + 1,
        }
    )


def duckdb_relation(data: Dataset) -> Any:
    duckdb = pytest.importorskip("duckdb")
    return duckdb.connect().from_df(frame(data))


CLOSED: dict[str, Column] = {
    "sex": Categorical(("F", "M")),
    "job": Categorical(("cook", "smith", "clerk")),
    "wage": Numeric(0, 30, bins=4),
}
OPEN: dict[str, Column] = {
    **CLOSED,
    "job": OpenCategorical(),
    "wage": Numeric(0, 30, bins=4, quantiles=True),
}
FORBID = Forbid({"sex": "F", "job": "clerk"})
PATHS: dict[str, tuple[Schema, dict[str, Any], Any]] = {
    "auto": (Schema(CLOSED), {"mechanism": "auto"}, frame),
    "open columns": (Schema(OPEN), {"mechanism": "mst"}, frame),
    "constraints": (Schema(CLOSED, [FORBID]), {"mechanism": "mst"}, frame),
    "target": (Schema(CLOSED), {"mechanism": "mwem+pgm", "target": "wage"}, frame),
    "public": (Schema(CLOSED), {"mechanism": "pmw-pub", "public": frame(PUBLIC)}, frame),
    "engine": (Schema(CLOSED), {"mechanism": "mst"}, duckdb_relation),
    "queries": (Schema(CLOSED), {"queries": ["cdf(wage) | sex", "mean(wage) | job"]}, frame),
}


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("path", PATHS)
def test_the_front_door_lets_nothing_but_noise_through(
    path: str, relation: str, tmp_path: Path
) -> None:
    schema, options, form = PATHS[path]
    rng = np.random.default_rng(7)
    data = drawn(rng, 400)
    other = neighbour(data, relation, rng)
    if path == "constraints":  # data of the schema hold its constraints
        kept = [
            d for d in (data, other) if not ((d.columns["a"] == 0) & (d.columns["b"] == 2)).any()
        ]
        assert len(kept) == 2

    def job(records: Dataset) -> Any:
        return synthesize(
            form(records), schema, epsilon=2.0, delta=1e-6, neighbours=relation, **options
        )

    replay(job, data, other, tmp_path, pure=False)


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("path", [path for path in PATHS if path != "open columns"])
def test_no_exact_value_leaves_by_the_front_door(path: str, relation: str, tmp_path: Path) -> None:
    """The release, its file, its page, what it says and the log, of records of strangers.

    Open columns are left out: their labels come from the records, above a noisy threshold.
    """
    schema, options, form = PATHS[path]
    data, other = strangers(relation)
    pages = []

    def job(records: Dataset) -> Any:
        release = synthesize(
            form(records), schema, epsilon=2.0, delta=1e-6, neighbours=relation, **options
        )
        if path == "engine":
            pages.append(html(release))
        return release

    one = transcript_of(lambda: job(data), tmp_path)
    assert_same(one, transcript_of(lambda: job(other), tmp_path, forced=one))
    assert not pages or pages[0] == pages[1]


def test_a_leak_is_seen(tmp_path: Path) -> None:
    """An exact number beside the noise, a scale from the data, an unpaid draw: all are caught."""
    data = drawn(np.random.default_rng(0))
    other = neighbour(data, "add/remove", np.random.default_rng(1))
    entry, settings = configure("independent")

    def honest(records: Dataset) -> tuple[Curator, Any]:
        curator = Curator(records, BUDGETS["zCDP"], neighbours="add/remove")
        return curator, lambda: run_on(curator, entry, settings, PAIRS)

    def exact_total(records: Dataset) -> Any:
        release = honest(records)[1]()
        return replace(release, model=replace(release.model, total=float(len(records))))

    def data_dependent_cost(records: Dataset) -> Any:
        curator, rest = honest(records)
        curator.measure(("a",), curator.remaining / len(records))
        return rest()

    def unpaid(records: Dataset) -> Any:
        curator, rest = honest(records)
        noise_of(curator).gaussian(np.array([len(records)]), 1.0)
        return rest()

    def logged(records: Dataset) -> Any:
        logging.getLogger("pgmkit").debug("%d rows", len(records))
        return honest(records)[1]()

    def too_little_noise(records: Dataset) -> Any:
        curator, rest = honest(records)
        curator._noisy("measure", np.array([2 * len(records)]), 1, curator.remaining / 2)
        return rest()

    for leak in (exact_total, data_dependent_cost, unpaid, logged, too_little_noise):
        with pytest.raises(AssertionError):
            replay(leak, data, other, tmp_path, pure=False)
    replay(lambda records: honest(records)[1](), data, other, tmp_path, pure=False)
