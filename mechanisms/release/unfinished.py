"""What a run had paid for when it was interrupted or failed: a release that has noisy tables, but
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
    """Return the release with a model that is estimated from its noisy tables and gives the records
    that the schema rules out probability zero.

    The total is that of its model, or the public one; `options` of `pgmkit.estimate` may give
    another.
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
    total = curator.public_total
    model = Unfitted(curator.domain, None if total is None else float(total))
    made = tuple(curator.measurements)
    return Release(f"{mechanism}, unfinished", model, made, curator.ledger, None)


@contextmanager
def kept(paid: Callable[[], Any]) -> Iterator[None]:
    """Give an exception that ends the block the attribute `unfinished`, with the release (of codes,
    or with a schema) that `paid` then returns, and a note that says so. Without noisy tables there
    is nothing to keep.
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
                "model from at no further cost (`.estimated()`)"
            )
        raise
