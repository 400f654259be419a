"""The default noise is OpenDP's and the operating system's: no generator of ours makes it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from opendp.mod import disable_features, enable_features
from seams import listed, noise_of

from mechanisms.privacy import noise as noise_module
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.noise import ExactNoise, SeededNoise, SparseScores
from pgmkit.domain import Domain
from pgmkit.records.dataset import Dataset

DATA = Dataset(Domain({"a": 200}), {"a": np.arange(200)})
SCORES = np.linspace(0, 3, 50)


def everything(noise: ExactNoise) -> list[object]:
    """One answer of every kind of draw."""
    return [
        noise.gaussian(np.zeros(50, dtype=np.int64), 30.0).tolist(),
        noise.laplace(np.zeros(50, dtype=np.int64), 30.0).tolist(),
        [noise.softmax(SCORES, 5.0) for _ in range(20)],
        [noise.flip(SCORES, 5.0) for _ in range(20)],
        noise.top(SCORES, 20, 5.0),
        noise.draws(listed(SCORES), 50, 5.0),
    ]


def test_no_generator_of_ours_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a pseudorandom generator was used for private noise")

    everything(ExactNoise())  # libraries draw when they are imported
    monkeypatch.setattr(np.random, "default_rng", refused)
    monkeypatch.setattr(noise_module, "SeededNoise", refused)
    for owner, names in {
        np.random: ["normal", "laplace", "random", "gumbel", "geometric", "choice", "randint"],
        random: ["random", "gauss", "randrange", "getrandbits", "choices"],
        torch: ["rand", "randn", "multinomial", "normal"],
    }.items():
        for name in names:
            monkeypatch.setattr(owner, name, refused)
    everything(ExactNoise())
    curator = Curator(DATA, Budget(1.0, 1e-6), neighbours="add/remove")
    assert type(noise_of(curator)) is ExactNoise and curator.ledger.secure
    curator.measure(("a",), curator.remaining)


@pytest.mark.parametrize("noise", [ExactNoise(), SeededNoise(np.random.default_rng(0))])
def test_arrays_in_any_order_of_memory_are_read_by_their_places(
    noise: ExactNoise | SeededNoise,
) -> None:
    """What lies between the entries of a view, or after it, is not read: gaps of 1e6 scales leave
    nothing to chance, and so does discrete noise of a thousandth.
    """
    held = np.zeros(40)
    held[[3, 8, 14]] = 9.0, 2.0, 1.0  # at odd places is what the views leave out
    for scores, best in [(held[::2], 4), (held[::-2], 18), (held[8::-2], 0)]:
        assert noise.softmax(scores, 1e-6) == noise.flip(scores, 1e-6) == best, scores
        assert noise.top(scores, 1, 1e-6) == noise.draws(listed(scores), 1, 1e-6) == [best]
    counts = np.arange(24, dtype=np.int64).reshape(4, 6)
    for view in (counts.T, counts[::2, ::-1], counts[:, 1]):
        assert np.array_equal(noise.gaussian(view, 1e-3), view)
        assert np.array_equal(noise.laplace(view, 1e-3), view)


def test_seeds_do_not_repeat_it() -> None:
    found = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        torch.manual_seed(0)
        found.append(everything(ExactNoise()))
    for one, other in zip(*found, strict=True):
        assert one != other


def test_seeded_noise_is_marked() -> None:
    assert not SeededNoise(np.random.default_rng(0)).secure
    for seed in (0, np.random.default_rng()):
        assert not Curator(DATA, Budget(1.0), neighbours="add/remove", seed=seed).ledger.secure


def test_samplers_are_enabled_where_nothing_else_has_done_it() -> None:
    disable_features("contrib")
    try:
        everything(ExactNoise())
    finally:
        enable_features("contrib")


def test_the_largest_uniform_number_gives_the_last_candidate() -> None:
    """A product that rounded up to the sum of the weights would give a place past the last."""
    rng = np.random.default_rng(0)

    class Largest:
        def random(self, size: int) -> np.ndarray:
            return np.full(size, np.nextafter(1.0, 0.0))

        def integers(self, high: int) -> int:
            return high - 1

    noise = SeededNoise(Largest())  # type: ignore[arg-type]
    for size in rng.integers(1, 9, 2000):
        scores = listed(rng.normal(0, 1, size))
        assert noise.draws(scores, 1, 1.0) == [size - 1]
        others = SparseScores(scores.places, scores.values, int(size) + 3)
        assert noise.draws(others, 1, 1.0) == [size + 2]
