"""Replayed transcripts: the same noisy answers forced upon neighbouring data.

A mechanism runs on D with a noise source that records what it was asked and what came out. It runs
again on a neighbour D', and every draw gives what it gave before. Whatever then differs (what is
asked next, a scale, a charge, the release, its file, a log line) depends on the data by another way
than the noise: a leak. And from the exact values that D and D' handed to each draw follows what the
draw cost in truth, which must not be more than what was charged for it.

A selection may put candidates aside that are not allowed and draw again at the same charge. Only
the candidate that is kept was paid for, so a replay keeps that one and puts other candidates aside
before it: where anything later depends on those, the two runs differ.
"""

from __future__ import annotations

import io
import json
import logging
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, ndtri
from seams import dense, listed

from mechanisms.privacy import curator as curator_module
from mechanisms.privacy import ledger as ledger_module
from mechanisms.privacy.noise import SeededNoise, SparseScores

TOLERANCE = 1e-9


@dataclass
class Draw:
    """One question to a noise source: exact values in, an answer out.

    `aside`: the places that a selection drew before its answer, which were not allowed.
    """

    law: str
    exact: np.ndarray
    scale: float
    count: int
    answer: Any
    aside: list[int] = field(default_factory=list)

    @property
    def left(self) -> np.ndarray:
        """The places that a selection has not drawn and put aside."""
        return np.delete(np.arange(len(self.exact)), self.aside)


@dataclass
class Charge:
    """One charge: where and how much."""

    step: str
    mechanism: str
    cost: float
    delta: float
    accounting: str


@dataclass
class Transcript:
    """Everything that left one run, in order, and what each draw was given."""

    events: list[Draw | Charge] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    shown: str = ""

    @property
    def draws(self) -> list[Draw]:
        return [event for event in self.events if isinstance(event, Draw)]

    @property
    def charges(self) -> list[Charge]:
        return [event for event in self.events if isinstance(event, Charge)]


class Source:
    """A noise source that records, and answers as before where `forced` has a transcript.

    It calls itself secure, and nobody but the Curator meets it.
    """

    secure = True

    def __init__(self, transcript: Transcript, forced: Transcript | None) -> None:
        self._real = SeededNoise(np.random.default_rng(0))
        self._transcript, self._forced = transcript, forced
        self._varied = np.random.default_rng(1)
        self._coming: list[int] = []

    def _draw(self, law: str, exact: np.ndarray, scale: float, count: int = 1) -> Any:
        place = len(self._transcript.draws)
        if self._forced is None:
            options = (count,) if law in ("top", "draws") else ()
            scores = listed(exact) if law == "draws" else exact
            answer = getattr(self._real, law)(scores, *options, scale)
        else:
            assert place < len(self._forced.draws), f"draw {place} ({law}) was not asked before"
            before = self._forced.draws[place]
            assert (law, count, exact.shape) == (before.law, before.count, before.exact.shape), (
                f"draw {place} asks {law} of {exact.shape}; before {before.law} of "
                f"{before.exact.shape}"
            )
            answer = before.answer
        self._transcript.events.append(Draw(law, np.array(exact), float(scale), count, answer))
        return answer.copy() if isinstance(answer, np.ndarray | list) else answer

    def gaussian(self, counts: np.ndarray, scale: float) -> np.ndarray:
        return self._draw("gaussian", counts, scale)

    def laplace(self, counts: np.ndarray, scale: float) -> np.ndarray:
        return self._draw("laplace", counts, scale)

    def softmax(self, scores: np.ndarray, scale: float) -> int:
        last = self._transcript.events[-1] if self._transcript.events else None
        if isinstance(last, Draw) and last.law == "softmax":
            return self._again(last, scores, scale)
        kept = self._draw("softmax", scores, scale)
        if self._forced is not None:
            before = self._forced.draws[len(self._transcript.draws) - 1].aside
            some = self._varied.permutation(before)[: self._varied.integers(len(before) + 1)]
            self._coming = [*map(int, some), kept]
            return self._next(self._transcript.draws[-1])
        return kept

    def _again(self, last: Draw, scores: np.ndarray, scale: float) -> int:
        """Nothing was charged since a selection: what it drew was put aside."""
        last.aside.append(last.answer)
        assert scale == last.scale, "a selection draws again at another scale"
        assert np.array_equal(scores, last.exact[last.left]), "a selection draws again from others"
        if self._forced is not None:
            assert self._coming, "a selection puts aside what it kept before"
            return self._next(last)
        place = self._real.softmax(scores, scale)
        last.answer = int(last.left[place])
        return place

    def _next(self, draw: Draw) -> int:
        draw.answer = self._coming.pop(0)
        return int(np.searchsorted(draw.left, draw.answer))

    def flip(self, scores: np.ndarray, scale: float) -> int:
        return self._draw("flip", scores, scale)

    def top(self, scores: np.ndarray, count: int, scale: float) -> list[int]:
        return self._draw("top", scores, scale, count)

    def draws(self, scores: SparseScores, count: int, scale: float) -> list[int]:
        # Which scores are listed may differ between neighbours; the candidates are the same.
        return self._draw("draws", dense(scores), scale, count)


def cost(one: Draw, other: Draw, pure: bool, accounting: str = "zcdp") -> float:
    """What a draw costs on these two data sets, from their exact values alone.

    Laplace: ||x - y||_1 / scale. Gaussian: ||x - y||_2^2 / (2 scale^2). The exponential mechanism:
    its log ratios lie in an interval of length r = range(x - y) / scale, so it is r-DP and
    r^2/8-zCDP; Gumbel top-k is k of them. Permute-and-flip: 2 max|x - y| / scale. In Gaussian
    differential privacy log ratios within r cost mu^2/2, where 1 / (1 + exp(-r / 2)) is the
    normal probability below mu / 2.
    """
    moved = one.exact.astype(np.longdouble) - other.exact.astype(np.longdouble)
    scale = one.scale
    if one.law == "laplace":
        return float(np.abs(moved).sum() / scale)
    if one.law == "gaussian":
        return float((moved**2).sum() / (2 * scale**2))
    if one.law == "flip":
        epsilon = float(2 * np.abs(moved).max() / scale)
        if accounting == "gaussian":
            return 2 * float(ndtri(expit(epsilon))) ** 2
        return epsilon if pure else epsilon**2 / 2
    ratio = float((moved.max() - moved.min()) / scale)
    if accounting == "gaussian":
        return one.count * 2 * float(ndtri(expit(ratio / 2))) ** 2
    return one.count * (ratio if pure else ratio**2 / 8)


@contextmanager
def recorded(forced: Transcript | None = None) -> Iterator[Transcript]:
    """Curators made in this block, without a seed, draw from a recording source; charges and log
    lines are recorded too.
    """
    transcript = Transcript()
    charge = ledger_module.Ledger.charge

    def recording(self: Any, step: str, mechanism: str, cost: float, delta: float = 0.0) -> None:
        charge(self, step, mechanism, cost, delta)
        transcript.events.append(Charge(step, mechanism, cost, delta, self.budget.accounting))

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            # Spark's bridge, where a test has started it, logs its own garbage at any time.
            if not record.name.startswith("py4j"):
                transcript.log.append(record.getMessage())

    handler, root = Handler(), logging.getLogger()
    level = root.level
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curator_module, "ExactNoise", lambda: Source(transcript, forced))
        patch.setattr(ledger_module.Ledger, "charge", recording)
        root.addHandler(handler)
        root.setLevel(0)
        try:
            yield transcript
        finally:
            root.removeHandler(handler)
            root.setLevel(level)


def transcript_of(
    job: Callable[[], Any], folder: Path, forced: Transcript | None = None
) -> Transcript:
    """Run a job that gives a release; what was asked, charged, logged, shown and saved."""
    with recorded(forced) as transcript:
        release = job()
        release.save(folder / "release")
    transcript.files = _parts((folder / "release").read_bytes())
    said = getattr(release, "reason", "")  # of releases with a schema
    ledger = f"{release.ledger}\n{json.dumps(release.ledger.to_dict())}"
    transcript.shown = f"{release!r}\n{said}\n{ledger}"
    return transcript


def _parts(content: bytes) -> dict[str, bytes]:
    """The contents of a zip archive and those inside, without the times of writing."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        found: dict[str, bytes] = {}
        for name in archive.namelist():
            part = archive.read(name)
            if name.endswith(".npz"):
                found |= {f"{name}/{inner}": held for inner, held in _parts(part).items()}
            else:
                found[name] = part
        return found


def assert_same(one: Transcript, other: Transcript) -> list[tuple[Charge, list[Draw], list[Draw]]]:
    """Nothing but the exact values differs, however far apart the data sets are.

    Gives each charge with the draws on both data sets that it paid for: one, but for tables that
    are measured at once.
    """
    assert len(one.events) == len(other.events), "one run asked for more than the other"
    draws: list[tuple[Charge, list[Draw], list[Draw]]] = []
    for a, b in zip(one.events, other.events, strict=True):
        if isinstance(a, Charge):
            assert a == b, f"charged {a} and {b}"
            assert not draws or draws[-1][1], f"{draws[-1][0]} was charged but nothing was drawn"
            draws.append((a, [], []))
            continue
        assert isinstance(b, Draw) and draws, f"{a.law} was drawn before it was paid"
        paid = draws[-1][0]
        assert not draws[-1][1] or paid.step.endswith(" tables"), f"{a.law} was drawn unpaid"
        assert a.scale == b.scale, f"{paid.step}: scales {a.scale} and {b.scale}"
        draws[-1][1].append(a)
        draws[-1][2].append(b)
    assert not draws or draws[-1][1], f"{draws[-1][0]} was charged but nothing was drawn for it"
    assert one.log == other.log
    assert one.shown == other.shown
    assert one.files.keys() == other.files.keys()
    for name, content in one.files.items():
        assert content == other.files[name], f"{name} of the saved release depends on the data"
    assert draws, "nothing was charged"
    return draws


def assert_private(one: Transcript, other: Transcript, pure: bool) -> float:
    """Nothing but the exact values differs, and no draw cost more than was charged for it.

    Gives the true cost of all draws as a share of what was charged.
    """
    charged = true = 0.0
    for paid, before, after in assert_same(one, other):
        pairs = zip(before, after, strict=True)
        spent = sum(cost(a, b, pure, paid.accounting) for a, b in pairs)
        assert spent <= paid.cost * (1 + TOLERANCE), (
            f"{paid.step} cost {spent}, charged {paid.cost}"
        )
        charged, true = charged + paid.cost, true + spent
    return true / charged


def replay(
    job: Callable[[Any], Any], data: Any, neighbour: Any, folder: Path, *, pure: bool
) -> float:
    """Run `job` on both and compare; the true cost as a share of what was charged."""
    one = transcript_of(lambda: job(data), folder)
    other = transcript_of(lambda: job(neighbour), folder, forced=one)
    return assert_private(one, other, pure)
