"""The error bars shown by default: those that take about a second at most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mechanisms.privacy.noise_scales import reach
from mechanisms.release.column_counts import as_table
from mechanisms.release.evaluation import AT_ONCE
from mechanisms.release.record import Release, count_noise
from pgmkit import GraphicalModel, InvalidInput, Measurement, RegionModel, Reply
from pgmkit.runtime.sizes import UNASKED_SECONDS
from pgmkit.tables.questions import UNRELIABLE
from pgmkit.uncertainty import Uncertainty, error_bars

REPLICATES = 25
"""The number of replicates; standard errors from so few are off by about a seventh, which the
intervals allow for.
"""


def quick_bars(model: GraphicalModel, tables: Sequence[Measurement]) -> Uncertainty | None:
    """Return error bars that raise TooSlow for a question whose re-estimations would take more than
    about a second together; None if these tables allow no error bars.

    Questions within measured tables are answered in closed form. For others the model is
    re-estimated, until the first re-estimations show that all would take too long; none is made if
    the model's tree has more than `AT_ONCE` cells.
    """
    try:
        bars = error_bars(model, tables, replicates=REPLICATES, seed=0, max_seconds=UNASKED_SECONDS)
    except InvalidInput:
        return None
    # On a tree of more than `AT_ONCE` cells even the first re-estimation takes too long, so none is
    # tried.
    refused = ["the error bars take longer than a second"]
    return replace(bars, _refused=refused) if model.tree.cells > AT_ONCE else bars


def gaussian_level(release: Release, level: float) -> float:
    """Return the level, `level` or more, to ask for in intervals that are computed for Gaussian
    noise, so that with the noise of this release they hold the answer without noise with a
    probability of at least `level`. Without a ledger, or if it is not between 0 and 1, `level` is
    returned as it is.

    The release's noise differs from Gaussian noise in two ways. That of a pure budget is Laplace
    noise (see `reach`). And noise is a whole number, so that an interval which ends between two
    numbers covers no more than up to the lower one. To make up for this, each interval is made
    longer at both ends by half a count, measured in standard deviations of the smallest noise in
    the release.
    """
    if release.ledger is None or not 0.5 < (1 + level) / 2 < 1:
        return level
    noises = [noise for noise in map(count_noise, release.paid) if noise > 0]
    far = reach(level, pure=release.ledger.budget.pure) + 0.5 / min(noises, default=math.inf)
    return max(level, min(math.erf(far / math.sqrt(2)), 1 - 2 * np.finfo(np.float64).eps))


def without_bars(release: Release, columns: Sequence[str], reply: Reply) -> Reply:
    """Return the reply with a note that it has no error bars, another one if the question's
    `columns` were not measured together, and marks on counts that are too small.

    A count is too small if it is below three times the standard deviation of the noise
    (`count_noise`) in the most precise of the noisy measurements that have one of the columns.
    Without such a measurement no count is marked.
    """
    said = (
        "no error bars: they take more than a second here; ask for them with --error-bars, "
        "error_bars=True"
        if isinstance(release.model, GraphicalModel | RegionModel)
        else f"no error bars: the model of {release.mechanism} is not graphical, and no table that "
        "was measured without merging bins holds the answer; a release of aim has them"
    )
    touching = [count_noise(as_table(m)) for m in release.paid if set(columns) & set(m.clique)]
    noise = min(touching, default=-np.inf)  # without such a table no line is marked
    least = noise / UNRELIABLE
    weak = np.asarray(reply.columns["count"], dtype=np.float64) < least
    if weak.any():
        shown = {**reply.columns, "note": ["unreliable" if each else "" for each in weak]}
        note = (
            f"UNRELIABLE: {int(weak.sum())} of {len(weak)} lines have fewer than {least:.3g} "
            f"records, three times the noise of a measured cell ({noise:.3g})"
        )
        reply = replace(reply, columns=shown, notes=(*reply.notes, note))
    notes = [*reply.notes, said]
    varied = [name for name in columns if release.model.domain.sizes[name] > 1]
    together = any(set(varied) <= set(m.clique) for m in release.measurements)
    if len(varied) > 1 and not together:
        notes.append(
            f"{', '.join(varied)} were not measured together: how they depend on each other is "
            "the model's guess, and true values may lie far from the answer"
        )
    return replace(reply, notes=tuple(notes))
