"""Memory that training asks for beforehand, and what it then holds on a pretend card."""

from __future__ import annotations

import numpy as np
import pytest
from pretend_device import pretend_card

from mechanisms.dispatch import run
from mechanisms.registry import configure
from mechanisms.workload import k_way
from pgmkit import Dataset, Domain
from pgmkit.errors import ModelTooLarge

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
    "mixture": ("mixture", {"steps": 3, "rows": 500}),
    "mixture, thinned": ("mixture", {"steps": 3, "rows": 200, "cells": 50, "pairs": 1}),
}


def drawn(seed: int) -> tuple[Dataset, int]:
    """A data set of a few attributes of any size, and of how many a question is."""
    rng = np.random.default_rng(seed)
    sizes = {f"x{i}": int(rng.choice([2, 3, 7, 20, 60])) for i in range(rng.integers(3, 7))}
    columns = {name: rng.integers(0, n, 2000) for name, n in sizes.items()}
    return Dataset(Domain(sizes), columns), int(rng.integers(2, 4))


def trained(kind: str, seed: int) -> None:
    name, settings = KINDS[kind]
    data, order = drawn(seed)
    chosen = configure(name, **settings, device="cuda")[1]
    workload = k_way(data.domain, order)
    run(chosen, data, workload, 1.0, 1e-6, neighbours="replace-one", seed=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_asked_for_is_what_is_held(
    kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mechanisms.mixture._FIRST_STEPS", 3)
    asked: list[int] = []
    for module in ("gem", "rap", "mixture"):
        monkeypatch.setattr(
            f"mechanisms.{module}.check_room", lambda _device, needed, _what: asked.append(needed)
        )
    with pretend_card() as card:
        trained(kind, seed)
    assert card.peak_bytes <= max(asked) <= 4 * card.peak_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_a_card_without_room_is_refused_before_anything_is_spent(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spent(*_: object, **__: object) -> None:
        raise AssertionError("something was measured")

    for name in ("measure", "measure_cells", "choose"):
        monkeypatch.setattr(f"mechanisms.privacy.curator.Curator.{name}", spent)
    with pretend_card(card_bytes=1 << 14), pytest.raises(ModelTooLarge, match="rows of"):
        trained(kind, 0)
