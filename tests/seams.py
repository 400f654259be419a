"""The private places that several tests reach into, each behind one function.

None of them is public, since whoever may replace a Curator's noise may also remove it.
"""

import itertools
from typing import Any, TypeVar

import numpy as np
import pytest

from mechanisms import Curator
from mechanisms.linked import pipeline
from mechanisms.privacy.noise import SparseScores
from pgmkit import FactorGraph, GraphicalModel

Source = TypeVar("Source")


def draw_from(curator: Curator, noise: Source) -> Source:
    """Let the Curator draw from `noise`, which has the methods of `privacy.noise.Noise`."""
    curator._noise = noise  # type: ignore[assignment]
    return noise


def private_records(curator: Curator) -> Any:
    """Return the records that the Curator holds, which nothing but it may see."""
    return curator._data


def noise_of(curator: Curator) -> Any:
    """Return the source that the Curator draws from."""
    return curator._noise


def tables_of(model: GraphicalModel) -> Any:
    """Return what a model computes once and keeps (`inference.model_tables.ModelTables`)."""
    return model._tables


def kept_by(graph: FactorGraph) -> Any:
    """Return what the posteriors of a factor graph share
    (`conditioning.graph_tables.GraphTables`).
    """
    return graph._shared


def listed(scores: np.ndarray) -> SparseScores:
    """Return scores all of which are listed."""
    return SparseScores(np.arange(len(scores)), scores, len(scores))


def dense(scores: SparseScores) -> np.ndarray:
    """Return the scores of all candidates."""
    found = np.zeros(scores.size)
    found[scores.places] = scores.values
    return found


def interrupt_second_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs on linked tables be interrupted once their second table has been measured."""
    honest, runs = pipeline.run_on, itertools.count()

    def ended(*args: Any, **options: Any) -> Any:
        release = honest(*args, **options)
        if next(runs):
            raise KeyboardInterrupt
        return release

    monkeypatch.setattr(pipeline, "run_on", ended)
