"""Replays of drawn cases: table, schema, mechanism, settings, relation, accounting, neighbour."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from replay import Transcript, assert_private, transcript_of
from test_replay import quick

from mechanisms.dispatch import run_on
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.neighbours import NEIGHBOURS, Neighbours, relation
from mechanisms.registry import MECHANISMS, configure
from mechanisms.synthesis.pipeline import synthesize
from mechanisms.workload import Workload
from pgmkit import Boolean, Categorical, Column, Forbid, Integer, Numeric, OpenCategorical, Schema
from pgmkit.domain import Domain
from pgmkit.errors import PgmkitError
from pgmkit.records.dataset import Dataset
from pgmkit.tables.dates import Date

pytestmark = pytest.mark.usefixtures("short_fits")

Rng = np.random.Generator
SIZES = (1, 2, 2, 3, 3, 4, 5, 7, 12, 60)
CODED = [name for name in MECHANISMS if name != "auto"]
SINGLE = ("gem", "gem-pub", "rap", "rap-softmax", "rap++", "dual-query", "fem", "mwem", "pep")
SINGLE += ("pep-pub", "pmw-pub")
"""Mechanisms that select single queries and refuse unequal weights."""
LABELS = ("a", "b", "c", "d", "e")
"""Of open columns. A label that one side alone has is found with probability delta at most, which
`test_discovery.py` checks: no replay of the same answers, which are as many as there are labels.
"""
NAMED = ("auto", "auto", "mst", "independent", "aim", "mwem+pgm", "gaussian+projection", "mixture")
ODD: tuple[Any, ...] = (None, "?", "0x1F", 10**30, 0.5, b"\xff", True, float("-inf"), "=1+1", "")


@dataclass
class Case:
    """A job, two neighbouring tables for it, and in words what was drawn."""

    job: Callable[[Any], Any]
    data: Any
    neighbour: Any
    pure: bool
    said: str


def drawn_budget(rng: Rng, *, reserved: bool = False) -> Budget:
    """From a twentieth of an epsilon to twenty, pure, zCDP or Gaussian."""
    epsilon = float(np.exp(rng.uniform(np.log(0.05), np.log(20))))
    kind = int(rng.integers(1 if reserved else 0, 3))
    if kind == 0:
        return Budget(epsilon)
    delta = float(10 ** rng.uniform(-12, -3))
    return Budget(epsilon, delta, accounting="zcdp" if kind == 1 else "gaussian")


def drawn_relation(rng: Rng) -> Neighbours:
    """Of rows, or of units of up to four."""
    rows = relation(str(rng.choice(list(NEIGHBOURS))))
    return rows if rng.random() < 0.6 else rows.of_units("who", int(rng.integers(1, 5)))


def changes(rng: Rng, neighbours: Neighbours, rows: int) -> tuple[int, int]:
    """How many rows leave and how many come between the neighbours."""
    most = min(neighbours.max_rows, rows - 1)
    leave, come = int(rng.integers(1, most + 1)), int(rng.integers(1, neighbours.max_rows + 1))
    if neighbours.exchanged:
        return (1, 1) if neighbours.rows_public else (leave, come)
    return (leave, 0) if rng.random() < 0.5 else (0, come)


def coded_case(rng: Rng) -> Case:
    """A mechanism on coded records, of few or many codes, with unequal weights."""
    count = int(rng.integers(2, 6))
    domain = Domain({name: int(rng.choice(SIZES)) for name in "abcdef"[:count]})
    rows = int(np.exp(rng.uniform(np.log(2), np.log(400))))
    favoured = {name: rng.dirichlet(np.full(size, 0.4)) for name, size in domain.sizes.items()}
    codes = {n: rng.choice(size, rows, p=favoured[n]) for n, size in domain.sizes.items()}
    name = str(rng.choice(CODED))
    neighbours, budget = drawn_relation(rng), drawn_budget(rng)
    leave, come = changes(rng, neighbours, rows)
    together = rng.random() < 0.7  # the worst units have all their rows in one cell
    new = {n: rng.integers(0, size, come) for n, size in domain.sizes.items()}
    if together:
        new = {n: np.full(come, each[0]) if come else each for n, each in new.items()}
    other = {n: np.concatenate([codes[n][leave:], new[n]]) for n in domain}
    if leave and together:
        for column in codes.values():
            column[:leave] = column[0]
    entry, settings = configure(name, **{**quick(name), **drawn_settings(rng, name)})
    cliques = drawn_cliques(rng, domain)
    weights = rng.integers(1, 40, len(cliques)).astype(float)
    equal = name in SINGLE or rng.random() < 0.4
    workload = Workload(domain, cliques, np.ones(len(cliques)) if equal else weights)
    public = {n: rng.integers(0, size, 30) for n, size in domain.sizes.items()}
    options = {"public": Dataset(domain, public)} if entry.public else {}

    def job(data: Dataset) -> Any:
        curator = Curator(data, budget, neighbours=neighbours)
        return run_on(curator, entry, settings, workload, **options)

    said = f"{name} {settings}, {budget}, {neighbours.name}, {domain}, {rows} rows, {cliques}"
    return Case(job, Dataset(domain, codes), Dataset(domain, other), budget.pure, said)


def drawn_settings(rng: Rng, name: str) -> dict[str, Any]:
    """Settings by which selections and models become small, or shares uneven."""
    drawn: dict[str, dict[str, Any]] = {
        "aim": {"select_share": float(rng.uniform(0.05, 0.6)), "model_mb": 0.002},
        "mwem+pgm": {"rounds": int(rng.integers(1, 6)), "model_mb": 0.002},
    }
    return drawn.get(name, {}) if rng.random() < 0.7 else {}


def drawn_cliques(rng: Rng, domain: Domain) -> list[tuple[str, ...]]:
    """Some sets of one, two or three columns, each once and of at most 4,000 cells."""
    found: dict[frozenset[str], tuple[str, ...]] = {}
    names = list(domain)
    for _ in range(int(rng.integers(1, 9))):
        size = int(rng.integers(1, min(3, len(names)) + 1))
        clique = tuple(str(name) for name in rng.permutation(names)[:size])
        if domain.size(clique) <= 4000:
            found[frozenset(clique)] = clique
    return list(found.values()) or [(names[0],)]


def drawn_columns(rng: Rng, pure: bool) -> dict[str, Column]:
    """Closed and open columns of every kind; some have places for odd values, others not."""
    low = int(rng.integers(-5, 2**40))
    kinds: dict[str, Column] = {
        "number": Integer(low, low + 30, bins=int(rng.integers(2, 6))),
        "wage": Numeric(0, 100, bins=4, missing=("?",), quantiles=not pure and rng.random() < 0.3),
        "sex": Categorical(("F", "M"), other="else")
        if rng.random() < 0.5
        else Categorical(("F", "M")),
        "job": Categorical(LABELS, missing=("",)),
        "ill": Boolean(),
        "born": Date("1990-01-01", "2019-12-31", bins=3),
        "alone": Categorical(("only",)),
    }
    if not pure:
        kinds["job"] = OpenCategorical() if rng.random() < 0.3 else kinds["job"]
    names = rng.permutation(list(kinds))[: int(rng.integers(2, 6))]
    return {str(name): kinds[str(name)] for name in names}


def drawn_row(rng: Rng, columns: dict[str, Column]) -> dict[str, Any]:
    """Values of the columns, now and then one that no schema foresaw."""
    row: dict[str, Any] = {}
    for name, column in columns.items():
        value: Any
        if rng.random() < 0.03:
            value = ODD[int(rng.integers(len(ODD)))]
        elif isinstance(column, Integer):
            value = int(column.low + rng.integers(0, 31))
        elif isinstance(column, Numeric):
            value = float(rng.integers(0, 400)) / 4
        elif isinstance(column, Boolean):
            value = bool(rng.random() < 0.3)
        elif isinstance(column, Date):
            value = datetime.date(1990, 1, 1) + datetime.timedelta(int(rng.integers(0, 10_000)))
        else:
            listed = getattr(column, "values", None) or LABELS
            value = str(listed[int(rng.integers(len(listed)) * rng.random())])
        odd = isinstance(column, OpenCategorical) and value not in LABELS
        row[name] = LABELS[0] if odd else value
    return row


def as_frame(rows: list[dict[str, Any]]) -> Any:
    """A frame of objects, which holds any values as they are."""
    found = {}
    for name in rows[0]:
        held = np.empty(len(rows), dtype=object)
        held[:] = [row[name] for row in rows]
        found[name] = pd.Series(held, dtype=object)
    return pd.DataFrame(found)


def front_door_case(rng: Rng) -> Case:
    """A frame with odd rows through `synthesize`: open columns, units, targets, constraints."""
    budget = drawn_budget(rng)
    columns = drawn_columns(rng, budget.pure)
    name = str(rng.choice(NAMED))
    rules = []
    if {"sex", "ill"} <= set(columns) and rng.random() < 0.3:
        rules, name = [Forbid({"sex": "F", "ill": True})], "mst"
    schema = Schema(columns, rules)
    rows = [drawn_row(rng, columns) for _ in range(int(rng.integers(5, 150)) + 8)]
    for place, label in enumerate(LABELS, 1):  # all labels of an open column are on both sides
        rows[-place] |= {n: label for n, c in columns.items() if isinstance(c, OpenCategorical)}
    most = int(rng.integers(1, 4)) if rng.random() < 0.3 else 0
    named = str(rng.choice(list(NEIGHBOURS)))
    neighbours = relation(named, "who", most) if most else relation(named)
    leave, come = changes(rng, neighbours, len(rows))
    new = [drawn_row(rng, columns) for _ in range(come)]
    other = [*rows[leave:], *new]
    if most:  # the first unit is the one that differs, and none has more rows than are kept
        whose = [0] * leave + [1 + i // most for i in range(len(rows) - leave)]
        rows = [{**row, "who": who} for row, who in zip(rows, whose, strict=True)]
        other = [*rows[leave:], *({**row, "who": 0} for row in new)]
    options: dict[str, Any] = {"unit": "who", "max_rows": most} if most else {}
    options["report_dropped"] = bool(most) and rng.random() < 0.5
    if rng.random() < 0.3 and len(columns) > 2:
        options["target"] = str(rng.choice(list(columns)))
    if rng.random() < 0.5 and not budget.pure:
        options["accounting"] = budget.accounting
    options["settings"] = {} if name == "auto" else quick(name)

    def job(records: list[dict[str, Any]]) -> Any:
        return synthesize(
            as_frame(records),
            schema,
            epsilon=budget.epsilon,
            delta=budget.delta,
            neighbours=named,
            mechanism=name,
            **options,
        )

    said = f"{name} {options}, {budget}, {neighbours.name}, {schema.to_dict()}, {len(rows)} rows"
    return Case(job, rows, other, budget.pure, said)


def drawn_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    return front_door_case(rng) if rng.random() < 0.3 else coded_case(rng)


def assert_charges_cover(case: Case, folder: Path) -> float | None:
    """The true cost as a share of what was charged; None where the case is refused.

    A refusal comes before the first charge, or is the same on both tables.
    """
    one = attempted(case, case.data, folder, None)
    other = attempted(case, case.neighbour, folder, one if isinstance(one, Transcript) else None)
    if isinstance(one, str) or isinstance(other, str):
        assert one == other, f"refused on one of two neighbours: {one!s:.300}, {other!s:.300}"
        return None
    return assert_private(one, other, case.pure)


def attempted(case: Case, data: Any, folder: Path, forced: Transcript | None) -> Transcript | str:
    try:
        return transcript_of(lambda: case.job(data), folder, forced)
    except PgmkitError as error:
        return f"{type(error).__name__}: {error}"


def assert_all_covered(seeds: range, folder: Path) -> str:
    """Replay the cases of these seeds; how many, how many were refused, and the largest share."""
    outcomes: Counter[str] = Counter()
    largest, at = 0.0, -1
    for seed in seeds:
        case = drawn_case(seed)
        try:
            share = assert_charges_cover(case, folder)
        except BaseException as error:
            error.add_note(f"seed {seed}: {case.said}")
            raise
        outcomes["refused" if share is None else "replayed"] += 1
        if share is not None and share > largest:
            largest, at = share, seed
    assert outcomes["refused"] < len(seeds) / 4, outcomes
    return f"{dict(outcomes)}, true / charged up to {largest:.9f} (seed {at})"


@pytest.mark.parametrize(
    "seeds", [range(120), pytest.param(range(10_000), marks=pytest.mark.slow)], ids=len
)
@pytest.mark.filterwarnings("ignore")
def test_drawn_cases_cost_no_more_than_they_are_charged(seeds: range, tmp_path: Path) -> None:
    print(assert_all_covered(seeds, tmp_path))


def test_a_tenth_less_noise_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drawn neighbours are bad enough: of the first thirty, many use what they are charged."""
    drawn = Curator._drawn

    def cheap(self: Curator, exact: Any, l1: float, l2: float, cost: float) -> Any:
        return drawn(self, exact, 0.9 * l1, 0.9 * l2, cost)

    monkeypatch.setattr(Curator, "_drawn", cheap)
    caught = 0
    for seed in range(30):
        try:
            assert_charges_cover(drawn_case(seed), tmp_path)
        except AssertionError as error:
            caught += "charged" in str(error)
    assert caught >= 5
