"""Memory that training asks for beforehand, and what it then holds on a pretend GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pretend_device import pretend_gpu

from mechanisms.dispatch import run
from mechanisms.families import training
from mechanisms.families.fitting import CellAnswers, ProductRows, Targets
from mechanisms.families.mixed_rows import MixedRows, Ranks
from mechanisms.families.product_mixture import Columns
from mechanisms.families.training import Generator
from mechanisms.families.training_memory import (
    answering_bytes,
    answering_predicates_bytes,
    fitting_cells_bytes,
    fitting_predicates_bytes,
    fitting_tables_bytes,
    network_bytes,
)
from mechanisms.gem import Gem
from mechanisms.privacy.ledger import Ledger
from mechanisms.queries.predicates import MeasuredPredicate
from mechanisms.rap_pp import RapPlusPlus, loss_of, thresholds_of
from mechanisms.registry import configure
from mechanisms.rounds.merging import MOST_GROUPS, groups_of
from mechanisms.workload import k_way
from pgmkit import Dataset, Domain, Measurement
from pgmkit.errors import ModelTooLarge

_QUICK = {"rounds": 2, "queries": 5, "steps": 3, "temperatures": (8.0, 32.0)}
KINDS = {
    "gem, wide": ("gem", {"rounds": 2, "steps": 2, "hidden": (300, 200), "batch_rows": 50}),
    "gem, many rows": ("gem", {"rounds": 2, "steps": 2, "hidden": (8,), "batch_rows": 900}),
    "gem, many queries": (
        "gem",
        {"rounds": 2, "queries": 100, "steps": 2, "hidden": (8,), "batch_rows": 200},
    ),
    "gem, marginals": (
        "gem",
        {"rounds": 3, "steps": 2, "hidden": (8,), "batch_rows": 300, "select": "marginals"},
    ),
    "rap": ("rap", {"rounds": 2, "steps": 3, "rows": 800}),
    "rap, many queries": ("rap", {"rounds": 2, "queries": 150, "steps": 3, "rows": 200}),
    "rap-softmax": ("rap-softmax", {"rounds": 2, "steps": 3, "rows": 800}),
    "rap++": ("rap++", {**_QUICK, "rows": 900}),
    "rap++, many queries": ("rap++", {**_QUICK, "queries": 120, "rows": 200}),
    "rap++, numbers": ("rap++", {**_QUICK, "rows": 300, "numeric": ("x0", "x1")}),
    "rap++, thresholds": (
        "rap++",
        {
            **_QUICK,
            "queries": 60,
            "rows": 150,
            "numeric": ("x0", "x1"),
            "labels": ("x2",),
            "directions": 80,
        },
    ),
    "mixture": ("mixture", {"steps": 3, "rows": 500}),
    "mixture, thinned": ("mixture", {"steps": 3, "rows": 200, "cells": 50}),
}

UNSET = {
    "gem by rule": ("gem", {"steps": 2, "hidden": (8,), "batch_rows": 200}),
    "gem, marginals by rule": (
        "gem",
        {"steps": 2, "hidden": (8,), "batch_rows": 300, "select": "marginals"},
    ),
    "rap by rule": ("rap", {"steps": 2, "rows": 200}),
    "rap-softmax by rule": ("rap-softmax", {"steps": 2, "rows": 200}),
}
"""Whose rounds, or queries a round, follow from the total."""


def drawn(seed: int) -> tuple[Dataset, int]:
    """A data set of a few attributes of any size, and of how many a question is."""
    rng = np.random.default_rng(seed)
    sizes = {f"x{i}": int(rng.choice([2, 3, 7, 20, 60])) for i in range(rng.integers(3, 7))}
    columns = {name: rng.integers(0, n, 2000) for name, n in sizes.items()}
    return Dataset(Domain(sizes), columns), int(rng.integers(2, 4))


def trained(kind: str, seed: int, epsilon: float = 1.0, neighbours: str = "replace-one") -> None:
    name, settings = {**KINDS, **UNSET}[kind]
    data, order = drawn(seed)
    chosen = configure(name, **settings, device="cuda")[1]
    workload = k_way(data.domain, order)
    run(chosen, data, workload, epsilon, 1e-6, neighbours=neighbours, seed=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_what_is_asked_for_is_what_is_held(
    kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    for module in ("gem", "rap", "rap_pp", "mixture"):
        monkeypatch.setattr(
            f"mechanisms.{module}.check_room", lambda _device, needed, _what: asked.append(needed)
        )
    with pretend_gpu() as gpu:
        trained(kind, seed, epsilon=100.0)  # no code is lost in noise, so none saves room
    assert gpu.peak_bytes <= max(asked) <= 4 * gpu.peak_bytes


def columns_of(*sizes: int) -> Columns:
    return Columns(Domain({f"x{place}": size for place, size in enumerate(sizes)}))


def answered(columns: Columns, order: int, rows: int) -> int:
    cliques, held = k_way(columns.domain, order).cliques, torch.rand(rows, columns.width)
    ProductRows(columns, held.to("cuda"), 1.0).marginals(cliques)
    return held.nbytes + answering_bytes(columns, cliques, rows)


def fitted_to_tables(columns: Columns, order: int, rows: int) -> int:
    domain, cliques = columns.domain, k_way(columns.domain, order).cliques
    free = torch.zeros(rows, columns.width, device="cuda", requires_grad=True)
    tables = [Measurement(clique, np.ones(domain.size(clique)), 1.0) for clique in cliques]
    targets, optimizer = Targets(columns, tables, 10.0, "cuda"), torch.optim.Adam([free])
    for _ in range(2):
        optimizer.zero_grad()
        (targets.errors(columns.softmax(free)) / targets.stddevs).square().mean().backward()
        optimizer.step()
    return fitting_tables_bytes(columns, cliques, rows)


def fitted_to_cells(columns: Columns, cells: int, rows: int) -> int:
    clique, random = columns.domain.attributes, np.random.default_rng(0)
    picked = random.integers(0, columns.domain.size(clique), cells)
    held = torch.rand(rows, columns.width).to("cuda").requires_grad_()
    answers = CellAnswers(columns, [(clique, int(place)) for place in picked], "cuda")
    values, least = torch.ones(cells, device="cuda"), torch.zeros(cells, device="cuda")
    for _ in range(2):
        held.grad = None
        loss = training.worst_errors(values - answers(held), least, cells)
        assert loss is not None
        loss.backward()
    return held.nbytes + fitting_cells_bytes(columns, cells, len(clique), rows)


def trained_network(columns: Columns, hidden: tuple[int, ...], rows: int) -> int:
    network = Generator(columns, 16, hidden, rows, torch.Generator().manual_seed(0)).to("cuda")
    update = training.trainer(network, Gem(hidden=hidden, steps=2), lambda: 0.9, 10.0)
    state = training.GemState(columns, network().detach(), 10.0, network.weights_now())
    for _ in range(2):
        state = update(state, [Measurement(("x0",), [0.0, 10.0], 1e-3)])
    return network_bytes(network.parameter_count, hidden, rows)


def met_by_rows(columns: Columns, directions: int, rows: int, fitted: bool = False) -> int:
    """Rows of one label, the first attribute, and of numbers meet thresholds, or are fitted."""
    domain, random = columns.domain, np.random.default_rng(0)
    label, *numeric = domain
    counts = {name: np.ones(domain.sizes[name]) for name in numeric}
    groups = {name: groups_of(each, MOST_GROUPS, len(each)) for name, each in counts.items()}
    family = MixedRows(Ranks(domain, counts, groups), torch.device("cuda"))
    codes = {name: random.integers(0, size, rows) for name, size in domain.sizes.items()}
    start = family.start(Dataset(domain, codes), torch.Generator().manual_seed(0))
    state = family.state(start, 100.0)
    settings = RapPlusPlus(numeric=tuple(numeric), labels=(label,), directions=directions)
    pool = thresholds_of(family, state, settings)
    if not fitted:
        with torch.no_grad():
            family.satisfied(*family.rows(state.free, None), family.thresholds(pool), None)
        return state.rows.nbytes + answering_predicates_bytes(len(pool), len(numeric), rows)
    loss = loss_of(family, [MeasuredPredicate(each, 50.0, 1.0) for each in pool.list], 100.0)
    free = state.free.detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([free])
    for _ in range(2):
        optimizer.zero_grad()
        loss(free, 16.0).backward()
        optimizer.step()
    return fitting_predicates_bytes(columns, free.shape[1], len(pool), len(numeric), rows)


def fitted_to_predicates(columns: Columns, directions: int, rows: int) -> int:
    return met_by_rows(columns, directions, rows, fitted=True)


@pytest.mark.parametrize(
    ("part", "sizes", "number", "rows"),
    [
        (answered, (20, 7, 3, 3, 2, 2), 2, 1000),
        (answered, (60, 2, 60, 7, 7), 3, 1),
        (fitted_to_tables, (20, 20, 20, 20), 3, 300),
        (fitted_to_tables, (7, 20, 60), 3, 1),
        (fitted_to_cells, (5, 5, 5, 5), 2000, 100),
        (fitted_to_cells, (5, 5, 5, 5, 5, 5), 2000, 1),
        (fitted_to_cells, (200, 200), 10, 1000),
        (met_by_rows, (2, 4, 4), 400, 1),
        (met_by_rows, (2, 4, 4), 200, 50),
        (fitted_to_predicates, (2, 4, 4), 400, 1),
        (fitted_to_predicates, (2, 4, 4), 200, 50),
        (fitted_to_predicates, (2, 30, 30), 1, 500),
        (trained_network, (2,), (300, 300), 2),
        (trained_network, (2,), (300, 300), 1000),
    ],
)
def test_each_part_of_what_is_asked_for_is_held(
    part: Callable[[Columns, Any, int], int], sizes: tuple[int, ...], number: Any, rows: int
) -> None:
    """Parts that are small in whole runs, which larger parts then cover, are the largest here."""
    with pretend_gpu() as gpu:
        asked = part(columns_of(*sizes), number, rows)
    assert gpu.peak_bytes <= asked <= 2.25 * gpu.peak_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_without_room_is_refused_before_anything_is_spent(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spent(*_: object, **__: object) -> None:
        raise AssertionError("something was measured")

    monkeypatch.setattr("mechanisms.privacy.ledger.Ledger.charge", spent)
    with pretend_gpu(gpu_bytes=1 << 14), pytest.raises(ModelTooLarge, match="rows of"):
        trained(kind, 0)


def in_turn(kind: str, monkeypatch: pytest.MonkeyPatch, neighbours: str) -> list[int]:
    """The bytes asked for, and 0 for every charge, in their order, until the rounds begin."""
    events: list[int] = []
    charge = Ledger.charge

    def charged(*given: Any) -> None:
        events.append(0)
        charge(*given)

    class Enough(Exception):
        pass

    def ended(*_: object, **__: object) -> None:
        raise Enough

    with monkeypatch.context() as patched, pretend_gpu(), pytest.raises(Enough):
        patched.setattr("mechanisms.privacy.ledger.Ledger.charge", charged)
        patched.setattr("mechanisms.rounds.select_and_measure.adapt", ended)
        for module in ("gem", "rap"):
            patched.setattr(
                f"mechanisms.{module}.check_room",
                lambda _device, needed, _what: events.append(needed),
            )
        trained(kind, 1, 20.0, neighbours)
    return events


@pytest.mark.parametrize("kind", UNSET)
def test_what_follows_from_a_public_total_is_asked_for_before_anything_is_spent(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed, *later = in_turn(kind, monkeypatch, "replace-one")
    assert needed and later and not any(later)

    def spent(*_: object, **__: object) -> None:
        raise AssertionError("something was measured")

    monkeypatch.setattr("mechanisms.privacy.ledger.Ledger.charge", spent)
    with pretend_gpu(gpu_bytes=needed - 1), pytest.raises(ModelTooLarge, match="rows of"):
        trained(kind, 1, 20.0)


@pytest.mark.parametrize("kind", UNSET)
def test_a_private_total_is_asked_about_again(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    events = in_turn(kind, monkeypatch, "add/remove")
    first, after = events[0], max(events[1:])
    public = in_turn(kind, monkeypatch, "replace-one")[0]
    assert 0 < first < after and public > first


@pytest.mark.parametrize("name", ["rap", "rap-softmax", "rap++", "gem", "mixture"])
def test_a_processor_without_room_is_refused_before_anything_is_spent(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spent(*_: object, **__: object) -> None:
        raise AssertionError("something was measured")

    monkeypatch.setattr("mechanisms.privacy.ledger.Ledger.charge", spent)
    data, order = drawn(0)
    rows = {"batch_rows" if name == "gem" else "rows": 10**11}
    with pytest.raises(ModelTooLarge, match="bytes at once.*take a smaller model"):
        run(configure(name, **rows)[1], data, k_way(data.domain, order), 1.0, 1e-6,
            neighbours="replace-one", seed=0)  # fmt: skip
