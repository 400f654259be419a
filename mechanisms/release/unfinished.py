"""The release of what a run had paid for when it was interrupted or failed: noisy tables that have
no model yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from mechanisms.privacy.curator import Curator
from mechanisms.release.record import Release
from mechanisms.release.unfitted import Unfitted
from pgmkit import Measurement, Schema, estimate


def estimated(release: Release, schema: Schema, **options: Any) -> Release:
    """Return the release with a model that is estimated from its noisy tables, in which records
    that the schema rules out have probability zero.

    The total is that of the release's model. If it has no model yet (`Unfitted`), the total is the
    public number of records, or is estimated if that number is private. `options` are those of
    `pgmkit.estimate`: a total among them is used in place of that one, and an `inference` in place
    of "auto".
    """
    tables = [each for each in release.measurements if isinstance(each, Measurement)]
    model: Any = release.model
    known = model.public_total if isinstance(model, Unfitted) else model.total
    whole = {"total": known, "inference": "auto", "zeros": schema.zeros, **options}
    return replace(release, model=estimate(schema.domain, tables, **whole))


def unfinished(curator: Curator, mechanism: str) -> Release:
    """Return the noisy tables that a Curator has answered so far, with its ledger. They were paid
    for, and nothing exact is among them.
    """
    model = Unfitted(curator.domain, curator.public_total)
    made, why = tuple(curator.measurements), "the run did not end"
    return Release(f"{mechanism}, unfinished", model, made, curator.ledger, None, reason=why)


@contextmanager
def kept(paid: Callable[[], Any]) -> Iterator[None]:
    """If an exception ends the block, set its attribute `unfinished` to what `paid` returns (a
    Release, a TableRelease or an UnfinishedTables) if that has measurements, and add a note that
    says so. The exception is raised again in any case.
    """
    try:
        yield
    except BaseException as error:
        release = paid()
        if release.measurements:
            error.unfinished = release  # type: ignore[attr-defined]
            error.add_note(
                f"noisy tables that had been paid for: {len(release.measurements)}; the "
                "exception's `unfinished` holds them, to save (`.save(path)`) or to estimate a "
                "model from at no further cost (`.estimated()`, for linked tables that of each "
                "release in `.tables`)"
            )
        raise
