"""A place for a release that could not be written where it was wanted."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mechanisms.linked.release import LinkedRelease
    from mechanisms.release.tabular import TableRelease


def rescue(release: TableRelease | LinkedRelease, error: Exception) -> None:
    """Save the release elsewhere and say where, since its budget is spent and cannot be spent
    again.
    """
    for folder in (tempfile.gettempdir(), Path.home()):
        rescued = Path(folder, f"rescued-{secrets.token_hex(4)}.pgm")
        try:
            release.save(rescued)
        except OSError:
            continue
        click.echo(
            f"could not write ({getattr(error, 'strerror', None) or error}), but the budget is "
            f"spent: the release was saved to {rescued}; `pgmkit sample {rescued}` draws records "
            "from it",
            err=True,
        )
        return
