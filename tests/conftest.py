"""Hypothesis profiles, and a mechanism of somebody else's beside the built-in ones.

The same examples are drawn on every run; HYPOTHESIS_PROFILE=explore looks further. The example in
`examples/chain_of_pairs.py` registers itself here, before tests are collected: those that go over
all mechanisms go over it too.
"""

import gc
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

# Workers beside each other (pytest -n) take a core each: threads of linear algebra and of torch
# would wait for one another. Read when these libraries are first imported, here and in children.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine must not fail a property for taking long.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("gate", derandomize=True, max_examples=60, **_COMMON)
# A mutant that is noticed needs no smallest example.
settings.register_profile(
    "mutants",
    derandomize=True,
    max_examples=60,
    phases=[Phase.explicit, Phase.generate],
    **_COMMON,
)
settings.register_profile("explore", max_examples=2000, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

# Triton's kernels run in its interpreter; it reads this when it is first imported.
os.environ["TRITON_INTERPRET"] = "1"

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

FIRST = (
    "test_pinned_versions",
    "test_replay_at_random",
    "test_replay",
    "test_drawn_files",
    "test_matrix",
    "test_structures",
    "test_terminal",
    "test_spark",
    "test_synthesize",
    "test_first_look",
    "test_linked_tables",
    "test_linked",
    "test_taint",
    "test_mechanisms_on_a_gpu",
)
"""The files of tests that begin first: one that waits for the package index, while other work may
have its core, and those that take longest, more than ten seconds each.
"""


def pytest_sessionstart() -> None:
    """Look for no garbage while tests are collected: all that is made then stays."""
    gc.disable()


def pytest_collectstart() -> None:
    """Register the example before any file is collected. A process that only hands out files to
    workers, which begin after it, collects none and needs no torch.
    """
    import_module("chain_of_pairs")


def pytest_collection_finish() -> None:
    """Look for garbage among what the tests make, not among all that was imported, and a thirtieth
    as often as usual: looking took two hundredths of the tests' time.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files: one that begins last leaves other workers without work."""
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.fixture
def short_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fit mixtures by ten steps a level, for tests of what is asked and of what leaves.

    Neither depends on how near a fit is to its optimum; the steps took half of such tests' time.
    """
    from mechanisms.families.mixture_fit import MixtureFit

    whole = MixtureFit.run
    monkeypatch.setattr(
        MixtureFit, "run", lambda self, steps, level: whole(self, min(steps, 10), level)
    )


@pytest.fixture
def planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test's runs of the matrix mechanism, which differ in their draws alone, share one plan.

    Planning took nine tenths of the time of such tests.
    """
    from mechanisms import matrix
    from mechanisms.strategies.best import Strategy

    plan = matrix.best_strategy
    plans: list[Strategy] = []

    def shared(*given: Any, **options: Any) -> Strategy:
        if not plans:
            plans.append(plan(*given, **options))
        return plans[0]

    monkeypatch.setattr(matrix, "best_strategy", shared)
