"""The `pgmkit` command.

Exit codes: 0 done; 1 an error inside pgmkit; 2 bad input (options, files, schema, data);
3 a limit refused the job (budget, model size, numerical tolerance); 130 interrupted.
Heavy imports stay inside the commands, so that `pgmkit --help` answers at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import numpy as np

    from mechanisms.adaptive import Round
    from mechanisms.release import Release
    from mechanisms.workload import Workload
    from pgmkit.dataset import Dataset
    from pgmkit.domain import Domain

__all__ = ["main"]


class _Commands(click.Group):
    """Turns exceptions into one line on stderr and a stated exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(130)
        except Exception as error:
            if os.environ.get("PGMKIT_TRACEBACK"):
                raise
            message, code = _explained(error)
            click.echo(f"error: {message}", err=True)
            sys.exit(code)


def _explained(error: Exception) -> tuple[str, int]:
    from pgmkit.errors import InvalidInput, PgmkitError

    if isinstance(error, InvalidInput):
        return str(error), 2
    if isinstance(error, PgmkitError):
        return str(error), 3
    if isinstance(error, OSError):
        return f"{error.filename or 'input/output'}: {error.strerror or error}", 2
    # The message of an unforeseen error could quote private values.
    return (
        f"unexpected {type(error).__name__} inside pgmkit; "
        "set PGMKIT_TRACEBACK=1 to see where (it may show private values)"
    ), 1


_BUDGET_OPTIONS = [
    click.option("--epsilon", type=float, default=1.0, show_default=True, help="Privacy budget."),
    click.option(
        "--delta",
        type=float,
        default=1e-9,
        show_default=True,
        help="Well below 1/rows; 0 for pure differential privacy (Laplace noise).",
    ),
    click.option(
        "--neighbours",
        type=click.Choice(["add/remove", "replace-one"]),
        default="add/remove",
        show_default=True,
        help="What is protected: one row more or less (the number of rows is private), "
        "or one row replaced (it is public; noise is larger).",
    ),
    click.option(
        "--seed", type=int, help="Reproducible noise: INSECURE, for tests and simulations only."
    ),
]


def _budget_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_BUDGET_OPTIONS):
        command = option(command)
    return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pgmkit")
def main() -> None:
    """Private synthetic data and marginal inference.

    \b
    Try it on built-in data:   pgmkit demo
    Your own CSV file:         pgmkit synth data.csv --schema schema.json \\
                                   --epsilon 1 --delta 1e-9 --out synth.csv
    """


@main.command()
@_budget_options
@click.option("--rows", type=click.IntRange(1), default=20_000, show_default=True)
@click.option("--out", default="synthetic.csv", show_default=True, help="Synthetic data (CSV).")
def demo(
    epsilon: float, delta: float, neighbours: str, seed: int | None, rows: int, out: str
) -> None:
    """MWEM+PGM on built-in census-like data, which is public."""
    target = _writable(out)
    from mechanisms.census import census
    from mechanisms.demo import report
    from mechanisms.workload import k_way

    data = census(rows)
    workload = k_way(data.domain, 2)
    click.echo(
        f"MWEM+PGM on built-in census-like data: {rows} rows, {len(data.domain)} attributes, "
        f"all {len(workload)} pairs\n"
    )
    rng = _generator(seed)
    release = _run("mwem+pgm", {}, data, workload, (epsilon, delta), neighbours, rng)
    synthetic = release.sample(seed=rng)
    _write(target, synthetic)
    click.echo(report(release, data, synthetic, workload))
    click.echo(f"\nwrote {out}: {len(synthetic)} synthetic records")


@main.command()
def mechanisms() -> None:
    """List the mechanisms that `pgmkit synth --mechanism NAME` can run."""
    from mechanisms.registry import MECHANISMS

    width = max(map(len, MECHANISMS))
    for entry in MECHANISMS.values():
        click.echo(f"{entry.name:<{width}}  {entry.summary}")


@main.command()
@click.argument("data", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--schema",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help='JSON: the number of values of each attribute, such as {"age": 10, "sex": 2}; '
    "the file holds codes 0 to n-1.",
)
@click.option(
    "--mechanism",
    default="mwem+pgm",
    show_default=True,
    help="A name that `pgmkit mechanisms` lists.",
)
@click.option(
    "--workload",
    "k",
    type=int,
    default=2,
    show_default=True,
    help="Answer all marginals over this many attributes well.",
)
@_budget_options
@click.option("--out", required=True, help="Where the synthetic records go (CSV).")
@click.option("--model", "model_out", help="Where the model goes (one file).")
@click.option("--rows", type=click.IntRange(1), help="Records to write [default: as estimated].")
@click.option("--rounds", type=int, help="Marginals that mwem+pgm selects.")
@click.option("--model-mb", type=float, help="Size limit of the models of aim and mwem+pgm.")
@click.option("--ignore-extra-columns", is_flag=True, help="Ignore columns not in the schema.")
def synth(
    data: str,
    schema: str,
    mechanism: str,
    k: int,
    epsilon: float,
    delta: float,
    neighbours: str,
    seed: int | None,
    out: str,
    model_out: str | None,
    rows: int | None,
    rounds: int | None,
    model_mb: float | None,
    ignore_extra_columns: bool,
) -> None:
    """Differentially private synthetic data from a CSV file of integer codes.

    \b
    pgmkit synth people.csv --schema people.json --epsilon 1 --delta 1e-9 --out synth.csv
    """
    target = _writable(out)
    model_target = None if model_out is None else _writable(model_out)
    domain = _read_schema(schema)
    from mechanisms.workload import k_way
    from pgmkit.table import read_csv

    workload = k_way(domain, k)
    private = read_csv(data, domain, ignore_extra=ignore_extra_columns)
    rng = _generator(seed)
    given = {"rounds": rounds, "model_mb": model_mb}
    settings = {name: value for name, value in given.items() if value is not None}
    release = _run(mechanism, settings, private, workload, (epsilon, delta), neighbours, rng)
    synthetic = release.sample(rows, seed=rng)
    _write(target, synthetic)
    if model_target is not None:
        release.model.save(model_target)
    click.echo(release.ledger)
    click.echo(f"wrote {out}: {len(synthetic)} synthetic records ({mechanism})")


def _run(
    mechanism: str,
    options: dict[str, Any],
    data: Dataset,
    workload: Workload,
    budget: tuple[float, float],
    neighbours: str,
    rng: np.random.Generator | None,
) -> Release:
    from tqdm import tqdm

    from mechanisms.registry import named, run
    from pgmkit.errors import InvalidInput

    entry, settings = named(mechanism, **options)
    if not entry.records:
        raise InvalidInput(
            f"{mechanism} releases tables, from which no records can be drawn; use "
            "gaussian+projection, hdmm+pgm or another mechanism for synthetic data"
        )
    if rng is not None:
        click.echo("warning: --seed makes the noise predictable; do not publish this", err=True)
    # disable=None: a bar on a terminal, nothing in a pipe.
    with tqdm(disable=None if entry.rounds else True, unit="round") as bar:

        def show(finished: Round[Any, Any]) -> None:
            bar.set_postfix_str(" x ".join(finished.measurements[0].clique))
            bar.update()

        epsilon, delta = budget
        return run(
            settings,
            data,
            workload,
            epsilon,
            delta,
            neighbours=neighbours,
            seed=rng,
            progress=show,
        )


def _generator(seed: int | None) -> np.random.Generator | None:
    import numpy as np

    from pgmkit.errors import InvalidInput

    if seed is not None and seed < 0:
        raise InvalidInput(f"seed must be 0 or more, got {seed}")
    return None if seed is None else np.random.default_rng(seed)


def _read_schema(path: str) -> Domain:
    from pgmkit.domain import Domain
    from pgmkit.errors import InvalidInput

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise InvalidInput(f"schema {path} names {name!r} twice; name it once")
        return dict(pairs)

    try:
        sizes = json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=unique)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"schema {path} is not JSON in UTF-8: {error}") from None
    if not isinstance(sizes, dict):
        raise InvalidInput(
            f'schema {path} must be an object such as {{"age": 10, "sex": 2}}, '
            f"got {type(sizes).__name__}"
        )
    return Domain(sizes)


def _writable(path: str) -> Path:
    """The path, refused before any work if nothing can be written there."""
    from pgmkit.errors import InvalidInput

    target = Path(path)
    folder = target.parent
    if target.is_dir():
        raise InvalidInput(f"{path} is a folder; name a file")
    if not folder.is_dir():
        raise InvalidInput(f"the folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK):
        raise InvalidInput(f"the folder {folder} is not writable; choose another")
    return target


def _write(target: Path, synthetic: Dataset) -> None:
    from pgmkit.table import write_csv

    write_csv(target, synthetic)
