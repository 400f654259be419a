"""The `pgmkit` command.

Exit codes: 0 done; 1 an error inside pgmkit; 2 bad input (options, files, schema, data);
3 a limit refused the job (budget, model size, numerical tolerance, memory); 130 interrupted.
Heavy imports stay inside the commands, so that `pgmkit --help` answers at once.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from itertools import chain
from typing import Any

import click

from mechanisms.cli.answers import ledger, query, report, sample
from mechanisms.cli.linked import synth_linked
from mechanisms.cli.models import estimate, infer
from mechanisms.cli.options import warn
from mechanisms.cli.planning import compare, mechanisms, plan, schema
from mechanisms.cli.synthesis import demo, synth
from pgmkit import __version__
from pgmkit.errors import InvalidInput, PgmkitError
from pgmkit.runtime.printed import printable

_SPENT = (
    "; what was charged until then stays spent: `pgmkit ledger FILE` shows it "
    "for a run with --ledger; without one, count the whole budget as spent"
)


class _Commands(click.Group):
    """A command group whose help lists the commands by purpose. Warnings, and exceptions other than
    click's, are shown as one line on stderr; an exception also sets the exit code. Its traceback is
    shown only if the environment variable PGMKIT_TRACEBACK is set.
    """

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.commands))
        for purpose, commands in _COMMANDS.items():
            with formatter.section(purpose):
                names = [f"{each.name or '':<{width}}" for each in commands]
                said = [each.get_short_help_str(64) for each in commands]
                formatter.write_dl(list(zip(names, said, strict=True)))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _ended_by_one_line():  # --help and --version are shown here
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, click.Group) and rest:
            _check_once(command.commands.get(rest[0]), rest[1:])
        else:
            _check_once(command, rest)
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        # As on stderr, a sign that the output's encoding lacks is written as an escape.
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            with _ended_by_one_line(), warnings.catch_warnings():
                _check_texts(sys.argv[1:])
                # A warning is one line, without the place in the code that raised it.
                warnings.showwarning = lambda message, *_, **__: warn(str(message))
                return super().invoke(ctx)
        except KeyboardInterrupt:
            spends = ctx.invoked_subcommand in (synth.name, synth_linked.name)
            click.echo(f"interrupted{_SPENT if spends else ''}", err=True)
            sys.exit(130)


@contextmanager
def _ended_by_one_line() -> Iterator[None]:
    """Run the block. If it raises an exception that is not click's, print the exception as one line
    and exit.
    """
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:
        if os.environ.get("PGMKIT_TRACEBACK"):
            raise
        message, code = _explained(error)
        click.echo(f"error: {printable(message)}", err=True)
        sys.exit(code)


def _check_once(command: click.Command | None, words: list[str]) -> None:
    """Raise InvalidInput if `words`, the words after the command, give an option twice that takes
    one value; click would silently take the last. Nothing else is checked here, and nothing at all
    if `command` is None.
    """
    if command is None:
        return
    with suppress(click.UsageError):  # other mistakes are reported later
        _, _, given = command.make_parser(click.Context(command)).parse_args([*words])
        once = [each for each in given if isinstance(each, click.Option) and not each.multiple]
        for option in once:
            if once.count(option) > 1:
                raise InvalidInput(f"{max(option.opts, key=len)} is given twice; give it once")


def _check_texts(words: Sequence[str]) -> None:
    """Raise InvalidInput for a word with bytes that are no text in this machine's encoding."""
    for word in words:
        if any("\ud800" <= sign <= "\udfff" for sign in word):
            raise InvalidInput(
                f"{printable(word)!r} is no text in this machine's encoding, "
                f"{sys.getfilesystemencoding()}; set PYTHONUTF8=1 (or a locale such as "
                "LC_ALL=C.UTF-8), or rename the file"
            )


def _explained(error: Exception) -> tuple[str, int]:
    """Return the message of an exception, and the exit code. The message of an unforeseen error
    names only its type.
    """
    if isinstance(error, InvalidInput):
        return str(error), 2
    if isinstance(error, PgmkitError):
        return str(error), 3
    if isinstance(error, MemoryError):
        return "the memory is not enough for this job; take fewer rows, columns or codes", 3
    if isinstance(error, OSError):
        name = "input/output" if error.filename is None else error.filename or repr("")
        return f"{name}: {error.strerror or error}", 2
    # The message of an unforeseen error could quote private values.
    return (
        f"unexpected {type(error).__name__} inside pgmkit; "
        "set PGMKIT_TRACEBACK=1 to see where (it may show private values)"
    ), 1


_COMMANDS = {
    "From a private table": (demo, schema, plan, compare, mechanisms, synth, synth_linked),
    "From a release, the file that `synth --save` writes": (query, sample, report, ledger),
    "From noisy tables, or a graphical model": (estimate, infer),
}


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.version_option(__version__)
def main() -> None:
    """Make synthetic records of a private table, and answer questions about it.

    What comes out hides whether any one person is in the table (differential privacy). How much it
    hides is the budget, epsilon: smaller hides more, and blurs more.

    \b
    Try it:            pgmkit demo
    Describe columns:  pgmkit schema draft sample.csv --assume-public -o people.yaml
    See the price:     pgmkit plan --schema people.yaml --rows 50000
    Spend the budget:  pgmkit synth people.csv --schema people.yaml \\
                           --epsilon 1 --delta 1e-9 --out synthetic.csv --save people.pgm
    Ask the release:   pgmkit query people.pgm "income | age in 30..44, sex = F"
    Look at it:        pgmkit report people.pgm -o report.html

    \b
    Exit codes: 0 done, 1 a fault in pgmkit, 2 bad input, 3 a limit refused it, 130 interrupted.
    Completion: eval "$(_PGMKIT_COMPLETE=bash_source pgmkit)"   (or zsh_source, fish_source)
    """
    # Waiting threads sleep. By default they spin, and if other processes use the cores too, they
    # take time from the threads they wait for. OpenMP reads this when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


for command in chain.from_iterable(_COMMANDS.values()):
    main.add_command(command)
