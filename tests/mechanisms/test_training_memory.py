"""Memory that training asks for beforehand, and what it then holds on a pretend GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pretend_device import pretend_gpu

from mechanisms.dispatch import run
from mechanisms.privacy.ledger import Ledger
from mechanisms.registry import configure
from mechanisms.workload import k_way
from pgmkit import Dataset, Domain
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
    "mixture, thinned": ("mixture", {"steps": 3, "rows": 200, "cells": 50, "pairs": 1}),
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
