"""The loop's order, its records, and how it ends."""

from __future__ import annotations

import dataclasses

import pytest

from mechanisms.rounds.loop import Round, adapt
from pgmkit.measurement import Measurement


def reading(value: float) -> Measurement:
    return Measurement(("a",), [value, value], 1.0)


def test_steps_run_in_order_and_see_what_they_should() -> None:
    log: list[tuple[object, ...]] = []
    picks = iter([["x"], ["y"], None])

    def select(model: int, last: Round[int, str] | None) -> str | None:
        log.append(("select", model, None if last is None else last.index))
        return next(picks)

    def measure(pick: str) -> list[Measurement]:
        log.append(("measure", *pick))
        return [reading(len(log))]

    def update(model: int, measurements: object) -> int:
        log.append(("update", model, len(list(measurements))))
        return model + 1

    rounds: list[Round[int, str]] = []
    model, measurements = adapt(
        10, [reading(0)], select=select, measure=measure, update=update, progress=rounds.append
    )
    assert model == 12
    assert len(measurements) == 3
    assert log == [
        ("select", 10, None), ("measure", "x"), ("update", 10, 2),
        ("select", 11, 0), ("measure", "y"), ("update", 11, 3),
        ("select", 12, 1),
    ]  # fmt: skip
    assert [(r.index, r.picked, r.before, r.after) for r in rounds] == [
        (0, ("x",), 10, 11),
        (1, ("y",), 11, 12),
    ]
    assert [r.measurements for r in rounds] == [measurements[1:2], measurements[2:3]]
    with pytest.raises(dataclasses.FrozenInstanceError):
        rounds[0].picked = "z"


@pytest.mark.parametrize("where", ["select", "measure", "update", "progress"])
def test_an_interrupt_leaves_at_once(where: str) -> None:
    calls: list[str] = []

    def step(name: str, value: object) -> object:
        def call(*_: object) -> object:
            calls.append(name)
            if name == where:
                raise KeyboardInterrupt
            return value

        return call

    with pytest.raises(KeyboardInterrupt):
        adapt(
            0,
            [],
            select=step("select", "x"),
            measure=step("measure", []),
            update=step("update", 1),
            progress=step("progress", None),
        )
    assert calls == ["select", "measure", "update", "progress"][: calls.index(where) + 1]
