"""Exact tables, such as published ones, added to the model of a release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mechanisms.privacy.neighbours import rows_public
from mechanisms.release.record import Release, count_noise
from pgmkit import GraphicalModel, InvalidInput, Measurement, Schema, estimate
from pgmkit.runtime.iterations import SLIGHT
from pgmkit.runtime.untrusted import FilePath
from pgmkit.tables.files.noisy_tables import read_noisy_tables

_MISSED = 0.5
"""The largest distance, in counts, of a model from a cell of an exact table. A file that states
noise of a larger standard deviation than this is not taken for exact.
"""


def with_exact(release: Release, schema: Schema, paths: Sequence[FilePath]) -> Release:
    """Return the release with a model that is estimated from its noisy tables, from the exact
    tables that it has already, and from those in these files (`TableRelease.with_exact`).

    Raises InvalidInput for no files, for a model that is not graphical, and for tables that state
    noise of a standard deviation above half a count, or that the model misses by more than that.
    """
    if not paths:
        raise InvalidInput("paths is empty; name at least one file of exact tables")
    if not isinstance(release.model, GraphicalModel):
        raise InvalidInput(
            f"exact tables need a graphical model, which {release.mechanism} has not; use a "
            "mechanism such as aim, mst or matrix+pgm"
        )
    paid = release.paid
    noisy = [each for each in paid if isinstance(each, Measurement)]
    before = [each for each in release.measurements[len(paid) :] if isinstance(each, Measurement)]
    # The model misses an exact table by about a third of `stddev`, the standard deviation that is
    # stated for it. A smaller one would make the search longer.
    stddev = min(_MISSED / 2, SLIGHT * min(map(count_noise, noisy), default=1.0))
    given = [each for path in paths for each in read_noisy_tables(path, schema, rounding=1)]
    if any(each.stddev > _MISSED for each in given):
        raise InvalidInput(
            "an exact table states noise (stddev); leave that column out if the counts are exact"
        )
    exact = before + [Measurement(m.clique, m.values, stddev, m.matrix) for m in given]
    public = release.ledger is not None and rows_public(release.ledger.neighbours)
    total = release.model.total if public else None
    model = estimate(schema.domain, [*noisy, *exact], total=total, zeros=schema.zeros)
    for each in exact:
        found = each.applied(model.marginal(each.clique).reshape(-1))
        missed = float(np.abs(found - each.values).max())
        if missed > _MISSED:
            raise InvalidInput(
                f"the exact table over {', '.join(each.clique)} is missed by {missed:.3g} counts: "
                "the exact tables contradict each other, the schema, or a public number of rows"
            )
    return replace(release, model=model, measurements=(*paid, *exact), exact=len(exact))
