"""``max_seconds`` by a clock that ticks at every look: no stage goes on for long without one, and
soon after the deadline the model is there. The machine's speed plays no part.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pgmkit import Domain, Measurement, NotCertified, Zeros, estimate
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.regions.parts import Region
from pgmkit.regions.polytope import LocalPolytope

TOTAL = 1000.0
LIMITS = (1, 3, 10, 30, 100, 300, 1000)
AFTER = 100
"""Looks after the deadline, at most: a line search gives up after 40 tries without a pass, and the
self-check has a look for each of 21 tables and some others.
"""


class Clock:
    """Seconds that pass when somebody looks; ``work`` counts what is done after the deadline."""

    def __init__(self) -> None:
        self.now, self.deadline, self.late_work = 0.0, np.inf, 0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now

    def works(self) -> None:
        self.late_work += self.now >= self.deadline


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    found = Clock()
    monkeypatch.setattr(time, "perf_counter", found)

    def counting(owner: type, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def counted(self: Any, *arguments: Any, **named: Any) -> Any:
            found.works()
            return original(self, *arguments, **named)

        monkeypatch.setattr(owner, name, counted)

    counting(MarginalOracle, "fast_marginals")
    counting(MarginalOracle, "maximum")
    counting(LocalPolytope, "newton_direction")
    counting(Region, "curvature")
    yield found


def pairs(seed: int, attributes: int, size: int, matrix: bool) -> tuple[Domain, list[Measurement]]:
    """Tables of all pairs that contradict each other, or prefix sums of them."""
    rng = np.random.default_rng(seed)
    names = [f"x{i}" for i in range(attributes)]
    found = []
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            table = rng.dirichlet(np.full(size * size, 0.3)) * TOTAL
            rows = np.tri(size * size) if matrix else None
            values = table if rows is None else rows @ table
            noisy = values + rng.normal(0, 1, size * size)
            found.append(Measurement([first, second], noisy, 1.0, rows))
    return Domain(dict.fromkeys(names, size)), found


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("matrix", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss": "huber"},
        {"loss": "absolute"},
        {"method": "proximal"},
        {"method": "accelerated"},
        {"inference": "region"},
        {"inference": "region", "loss": "huber"},
    ],
    ids=lambda options: "-".join(options.values()) or "default",
)
def test_every_stage_looks_at_the_clock(
    options: dict[str, Any], matrix: bool, limit: int, clock: Clock
) -> None:
    domain, measured = pairs(0, 7, 3, matrix)
    clock.deadline = clock.now + 1 + limit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotCertified)
        model = estimate(domain, measured, total=TOTAL, max_seconds=limit, tolerance=0.0, **options)
    assert clock.now <= clock.deadline + AFTER
    assert clock.late_work <= 3
    assert model.marginal(["x0"]).sum() == pytest.approx(TOTAL)


@pytest.mark.parametrize("limit", LIMITS)
def test_newton_steps_and_their_set_up_look_at_the_clock(limit: int, clock: Clock) -> None:
    domain, measured = pairs(1, 3, 4, True)
    clock.deadline = clock.now + 1 + limit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotCertified)
        estimate(domain, measured * 20, total=TOTAL, max_seconds=limit, tolerance=0.0)
    assert clock.now <= clock.deadline + AFTER
    assert clock.late_work <= 3


@pytest.mark.parametrize("limit", LIMITS)
def test_tables_of_regions_agree_and_keep_zeros_even_out_of_time(limit: int, clock: Clock) -> None:
    domain, measured = pairs(2, 5, 3, True)
    zeros = [Zeros(["x0", "x1"], np.eye(3, dtype=bool))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotCertified)
        model = estimate(
            domain, measured, total=TOTAL, zeros=zeros, max_seconds=limit, inference="region"
        )
    both = np.asarray(model.marginal(["x0", "x1"]))
    assert np.all(both[~np.eye(3, dtype=bool)] == 0)
    np.testing.assert_allclose(both.sum(axis=1), model.marginal(["x0"]), atol=1e-6)
    np.testing.assert_allclose(
        np.asarray(model.marginal(["x0", "x2"])).sum(axis=1), model.marginal(["x0"]), atol=1e-6
    )
