"""What the tests of every mechanism share: priced draws, quick settings, what an object reaches,
error."""

import gc
import math
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from mechanisms.privacy.noise import SeededNoise
from mechanisms.workload import Workload
from pgmkit.linear.kronecker import Kronecker
from pgmkit.measurement import Measurement
from pgmkit.model import GraphicalModel
from pgmkit.records.dataset import Dataset


class Priced(SeededNoise):
    """Real draws, each priced independently of the Curator; scores change by l1."""

    def __init__(self, relation: str, pure: bool) -> None:
        super().__init__(np.random.default_rng(0))
        l1, l2 = {"replace-one": (2, math.sqrt(2)), "add/remove": (1, 1)}[relation]
        self.prices = {
            "gaussian": lambda scale: l2**2 / (2 * scale**2),
            "laplace": lambda scale: l1 / scale,
            "softmax": lambda scale: 2 * l1 / scale if pure else (2 * l1 / scale) ** 2 / 8,
        }
        self.costs: list[float] = []
        self.exact: list[np.ndarray] = []

    def gaussian(self, counts: np.ndarray, scale: float) -> np.ndarray:
        self.costs.append(self.prices["gaussian"](scale))
        self.exact.append(counts)
        return super().gaussian(counts, scale)

    def laplace(self, counts: np.ndarray, scale: float) -> np.ndarray:
        self.costs.append(self.prices["laplace"](scale))
        self.exact.append(counts)
        return super().laplace(counts, scale)

    def softmax(self, scores: np.ndarray, scale: float) -> int:
        self.costs.append(self.prices["softmax"](scale))
        self.exact.append(scores)
        return super().softmax(scores, scale)


class CellPriced(Priced):
    """One-way marginals cost the relation's price; cells, measured later, change by at most one.

    `softmax_change`: how much the scores of a selection that is not of cells change.
    """

    def __init__(self, relation: str, pure: bool, softmax_change: float | None = None) -> None:
        super().__init__(relation, pure)
        self.pure = pure
        if softmax_change is not None:
            self.prices["softmax"] = lambda scale: (
                2 * softmax_change / scale if pure else (2 * softmax_change / scale) ** 2 / 8
            )

    def top(self, scores: np.ndarray, count: int, scale: float) -> list[int]:
        self.costs.append(2 * count / scale if self.pure else count / (2 * scale**2))
        self.exact.append(scores)
        # From here on what is measured is single cells.
        self.prices["gaussian"] = lambda scale: 1 / (2 * scale**2)
        self.prices["laplace"] = lambda scale: 1 / scale
        return super().top(scores, count, scale)


def cut(name: str) -> dict[str, Any]:
    """Options that cut short what would take long and is not about privacy."""
    if name.startswith("gem"):
        fewer = {"pretrain_steps": 20} if name == "gem-pub" else {}
        return {"hidden": (16,), "batch_rows": 50, "noise_width": 8, **fewer}
    if name.startswith("rap"):
        return {"rows": 50}
    return {"rows": 50, "steps": 10} if name == "mixture" else {}


def reachable(start: object) -> Iterator[object]:
    """Everything an object holds, closures included, short of modules, types and globals."""
    seen, stack = set(), [start]
    while stack:
        thing = stack.pop()
        if id(thing) in seen or isinstance(thing, types.ModuleType | type):
            continue
        seen.add(id(thing))
        yield thing
        if isinstance(thing, types.FunctionType):
            stack.extend(thing.__closure__ or ())
            stack.extend(thing.__defaults__ or ())
        elif isinstance(thing, types.CellType):
            stack.append(thing.cell_contents)
        else:
            stack.extend(gc.get_referents(thing))


def total_variation(data: Dataset, model: GraphicalModel | Dataset, workload: Workload) -> float:
    truth = data.marginals(workload.cliques)
    tables = model.marginals(workload.cliques)
    return float(
        np.mean(
            [
                np.abs(truth[c] / truth[c].sum() - tables[c] / tables[c].sum()).sum() / 2
                for c in workload.cliques
            ]
        )
    )


def matrix_price(m: Measurement, relation: str, pure: bool = False) -> float:
    """The price of the noise on linear answers, by every pair of neighbouring columns: rho of
    Gaussian noise, epsilon of Laplace noise.
    """
    assert isinstance(m.matrix, Kronecker)
    columns = np.kron(*m.matrix.factors).T
    power = 1 if pure else 2
    norms = (np.abs(columns - each) ** power for each in columns)
    if relation == "add/remove":
        norms = iter([np.abs(columns) ** power])
    moved = max(each.sum(axis=1).max() for each in norms)
    return float(moved * math.sqrt(2) / m.stddev if pure else moved / (2 * m.stddev**2))
