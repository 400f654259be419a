"""A place for what was paid for and could not be written where it was wanted."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pgmkit.errors import PgmkitError

if TYPE_CHECKING:
    from mechanisms.linked.release import LinkedRelease
    from mechanisms.release.tabular import TableRelease
    from pgmkit.tables.schema import Schema


@contextmanager
def keeping(release: TableRelease | LinkedRelease, save: str | None) -> Iterator[None]:
    """Save a release, whose budget is spent and cannot be spent again, before its records and pages
    are written. Where the release is not wanted, or cannot be saved there, and writing fails, save
    it elsewhere and say where.
    """
    saved = False
    try:
        if save is not None:
            release.save(save)
            saved = True
        yield
    except (OSError, PgmkitError) as error:
        if not saved and (rescued := _saved(release, ".pgm")):
            click.echo(
                f"could not write ({getattr(error, 'strerror', None) or error}), but the budget is "
                f"spent: the release was saved to {rescued}; `pgmkit sample {rescued}` draws "
                "records from it",
                err=True,
            )
        raise


@contextmanager
def rescued_columns(like: str) -> Iterator[None]:
    """Save the schema whose open columns were found, in the format of the file `like`, and say
    where, if the block is refused after they were found.
    """
    from mechanisms.synthesis.open_columns import ColumnsFound

    try:
        yield
    except ColumnsFound as refusal:
        if rescued := _saved(refusal.schema, Path(like).suffix):
            click.echo(
                f"the schema with the columns that were found was saved to {rescued}; give it as "
                "--schema",
                err=True,
            )
        raise


def _saved(what: TableRelease | LinkedRelease | Schema, suffix: str) -> Path | None:
    for folder in (tempfile.gettempdir(), Path.home()):
        rescued = Path(folder, f"rescued-{secrets.token_hex(4)}{suffix}")
        try:
            what.save(rescued)
        except OSError:
            continue
        return rescued
    return None
