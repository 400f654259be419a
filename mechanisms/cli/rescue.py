"""Saving of releases and schemas that were paid for but could not be written to the files that the
user named.
"""

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
    """Save a release in the file `save` (for linked tables a folder), if one is given, before the
    block writes its records and pages, since the spent budget cannot be spent again. If this fails,
    or the block fails and no `save` is given, the release is saved in a folder for temporary files,
    or else in the home folder, and its name is printed. The error is raised again.
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
    """If the block raises ColumnsFound, save the schema with the columns that were found in the
    format of the file `like`, print the name of the new file, and raise the error again.
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
