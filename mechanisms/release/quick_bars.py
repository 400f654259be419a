"""Error bars that come without being asked for: those that take about a second at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from pgmkit.errors import InvalidInput, PgmkitError
from pgmkit.model import GraphicalModel
from pgmkit.uncertainty import error_bars

if TYPE_CHECKING:
    from mechanisms.release.record import Release
    from pgmkit.uncertainty import Replication, Uncertainty

__all__ = ["TooSlow", "quick_bars", "without_bars"]

_SECONDS = 1.0
_REPLICATES = 50
_MOST_CELLS = 200_000
"""Of the model's tables together: one re-estimation of more takes too long to be tried."""


class TooSlow(PgmkitError):
    """The error bars would take longer than a reader waits without having asked."""


def quick_bars(release: Release) -> Uncertainty | None:
    """Error bars that raise TooSlow when a question needs a longer re-estimation; None for none.

    Questions within measured tables are answered in closed form; others re-estimate the model,
    and give up once the first re-estimations show that all would take more than about a second.
    """
    if not isinstance(release.model, GraphicalModel):
        return None

    def watch(done: Replication) -> None:
        if done.seconds / done.done * done.of > _SECONDS:
            _refuse()

    try:
        bars = error_bars(
            release.model, release.measurements, replicates=_REPLICATES, seed=0, progress=watch
        )
    except InvalidInput:
        return None
    return replace(bars, _estimated=_refuse) if release.model.tree.cells > _MOST_CELLS else bars


def _refuse() -> NoReturn:
    raise TooSlow("the error bars take longer than a second")


def without_bars(release: Release, columns: Sequence[str]) -> tuple[str, ...]:
    """What a reply without error bars says instead."""
    if not isinstance(release.model, GraphicalModel):
        return (
            f"no error bars: the model of {release.mechanism} is not graphical; the numbers carry "
            "the noise of its measurements and the model's own error",
        )
    touching = [m.stddev for m in release.measurements if set(columns) & set(m.clique)]
    noise = f"; the noise has a stddev of {np.median(touching):.3g} a cell" if touching else ""
    return (
        "no error bars: they take more than a second here; ask for them with --error-bars, "
        f"error_bars=True{noise}",
    )
