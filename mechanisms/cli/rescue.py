"""Saving of releases and schemas that were paid for but could not be written to the files that the
user named.
"""

from __future__ import annotations

import secrets
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mechanisms.cli.preflight import check_kept
from pgmkit.errors import InvalidInput, PgmkitError
from pgmkit.runtime.printed import shell_word

if TYPE_CHECKING:
    from mechanisms.linked.pipeline import UnfinishedTables
    from mechanisms.linked.release import LinkedRelease
    from mechanisms.release.tabular import TableRelease
    from pgmkit.tables.schema import Schema

_ENDINGS = ("SIGTERM", "SIGHUP", "SIGXCPU")
"""The signals that end a process unless it handles them: a request to end, a terminal that closes,
and a limit of processor time.
"""


@contextmanager
def keeping(release: TableRelease | LinkedRelease, save: str | None) -> Iterator[None]:
    """Save a release in the file `save` (for linked tables a folder), if one is given, and then run
    the block, which writes records and pages.

    The budget is spent already and must not be lost. If saving or the block fails or is interrupted
    while the release is in no file, it is saved in the folder for temporary files, or else in the
    home folder. After every failure the path of the saved release is printed, unless it could be
    saved nowhere, and the exception is raised again.
    """
    saved = False
    try:
        with interrupted_by_signals():
            if save is not None:
                check_kept(save)  # another run may have written it meanwhile
                release.save(save)
                saved = True
            yield
    except BaseException as error:
        if saved:
            click.echo(f"the release is in {save}", err=True)
        elif rescued := _saved(release, ".pgm"):
            click.echo(
                f"could not write ({_cause(error)}), but the budget is spent: the release was "
                f"saved to {rescued}; `pgmkit sample {shell_word(str(rescued))}` draws records "
                "from it",
                err=True,
            )
        raise


@contextmanager
def rescuing(target: str, like: str = "") -> Iterator[None]:
    """If the block ends by an exception that holds what was paid for, save it, print the name of
    the new file, and raise the exception again.

    Noisy tables (`unfinished`) are saved in a file, those of linked tables in a folder, beside
    `target`, or else in the folder for temporary files or the home folder. The schema with the
    columns that were found (ColumnsFound) is saved in one of these two, in the format of `like`, or
    as JSON if YAML may not hold so many values.
    """
    from mechanisms.synthesis.open_columns import ColumnsFound

    try:
        with interrupted_by_signals():
            yield
    except BaseException as error:
        paid = getattr(error, "unfinished", None)
        if paid and (rescued := _saved(paid, ".pgm", str(Path(target).parent))):
            file = rescued / "TABLE.pgm" if rescued.is_dir() else rescued  # linked tables: a folder
            click.echo(
                f"the run did not end; the noisy tables that it had paid for "
                f"({len(paid.measurements)}) were saved to {rescued}: `pgmkit estimate "
                f"{shell_word(str(file))} --out NEW.pgm` makes a release of them at no further "
                "cost",
                err=True,
            )
        columns = error.schema if isinstance(error, ColumnsFound) else None
        if columns and (rescued := _saved(columns, Path(like).suffix) or _saved(columns, ".json")):
            click.echo(
                f"the schema with the columns that were found was saved to {rescued}; give it as "
                "--schema",
                err=True,
            )
        raise


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Let the signals by which others end this process interrupt the block as Ctrl-C does, unless
    they are ignored or handled otherwise. Nothing changes in a thread other than the main one, in
    which alone signals can be caught.
    """
    ours = []
    if threading.current_thread() is threading.main_thread():
        known = [getattr(signal, name) for name in _ENDINGS if hasattr(signal, name)]
        ours = [each for each in known if signal.getsignal(each) is signal.SIG_DFL]
    for each in ours:
        signal.signal(each, signal.default_int_handler)
    try:
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)


def _cause(error: BaseException) -> str:
    """Return the part of an error that a user may see: its message or, if it is an unforeseen one,
    whose message could quote private values, its type alone.
    """
    if isinstance(error, OSError | PgmkitError):
        return str(getattr(error, "strerror", None) or error)
    return type(error).__name__


def _saved(
    what: TableRelease | LinkedRelease | UnfinishedTables | Schema, suffix: str, folder: str = ""
) -> Path | None:
    places: list[Callable[[], str]] = [tempfile.gettempdir, lambda: str(Path.home())]
    for place in [lambda: folder, *places] if folder else places:
        try:  # a machine may have neither a folder for temporary files nor a home folder
            rescued = Path(place(), f"rescued-{secrets.token_hex(4)}{suffix}")
            what.save(rescued)
        except (OSError, RuntimeError, InvalidInput):  # a schema may be too large for YAML
            continue
        return rescued
    return None
