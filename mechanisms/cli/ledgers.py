"""`pgmkit ledger`: show the ledger of a release or of all runs on a data set, create such a file,
or end a run that was killed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mechanisms.cli import options as cli
from pgmkit.errors import InvalidInput

if TYPE_CHECKING:
    from mechanisms.release.record import Release


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--create", is_flag=True, help="Begin a ledger across runs with this total budget.")
@cli.budget_options
@click.option("--unit", help="Column of the units that all runs protect, with --create.")
@click.option(
    "--reserved",
    type=float,
    default=0.0,
    help="Part of delta kept for finding values that the schema leaves open, with --create.",
)
@click.option(
    "--end-run",
    type=int,
    help="Number of a run that was killed; the part of its budget that it did not charge is freed.",
)
@cli.allow_modified_option
@cli.as_json
def ledger(
    file: str, create: bool, end_run: int | None, allow_modified: bool, **options: Any
) -> None:
    """Show what was promised, and each step's cost.

    FILE is a release, or the ledger of all runs on a data set, which --create begins.

    \b
    pgmkit ledger people.pgm
    pgmkit ledger people.ledger --create --epsilon 3 --delta 1e-9
    pgmkit synth people.csv --schema people.yaml --epsilon 1 --ledger people.ledger --out s.csv
    pgmkit ledger people.ledger
    """
    from mechanisms.privacy.budget import Budget
    from mechanisms.privacy.ledger import Ledger
    from mechanisms.release.record import Release

    unused = cli.given("epsilon", "delta", "neighbours", "unit", "reserved")
    if unused and not create:
        raise InvalidInput(f"{unused[0]} goes with --create; leave it out")
    if end_run is not None and (create or cli.is_release(file)):
        said = f"--end-run goes with the ledger of all runs on a data set, which {file} is not"
        raise InvalidInput(f"{said}; leave it out")
    found: Ledger | None
    caution = exception = ""
    if create:
        total = Budget(*(options.pop(name) for name in ("epsilon", "delta", "reserved")))
        found = Ledger.create(cli.writable(file), total, **options)
    elif cli.is_release(file):
        release = Release.load(file, allow_modified=allow_modified)
        found, caution, exception = release.ledger, release.caution, release.exception
        if found is None:
            _emit_tables(release)
            return
    else:
        found = Ledger.open(file)
        if end_run is not None:
            found.end_run(end_run)
    values = found.to_dict() | ({"exception": exception} if exception else {})
    cli.emit(values, "\n".join(filter(None, (str(found), exception))), caution)


def _emit_tables(release: Release) -> None:
    """Print a line about each noisy table of a release that has no ledger."""
    said = "nothing was spent here: the noisy tables came from elsewhere, at a price unknown here"
    tables, lines = list[dict[str, Any]](), [said]
    for m in release.measurements:
        columns, values = " x ".join(m.clique) or "total", len(m.values)
        least, most = _noises(m)
        noise = {"stddev": least, "largest_stddev": most}
        tables.append({"columns": m.clique, "values": values, **noise})
        shown = " to ".join(dict.fromkeys((f"{least:g}", f"{most:g}")))
        lines.append(f"{columns}: {values} values, stddev {shown}")
    cli.emit({"ledger": None, "tables": tables}, "\n".join(lines))


def _noises(measured: Any) -> tuple[float, float]:
    """Return the least and the largest standard deviation of a noisy table's counts. Counts that
    differ in noise are stored divided by their own standard deviations: `stddev` is then 1, and the
    entries of a row of the sparse matrix are 1 / standard deviation.
    """
    from pgmkit.linear.matrix import is_sparse

    matrix: Any = getattr(measured, "matrix", None)
    units = abs(matrix).max(axis=1).data if is_sparse(matrix) and matrix.nnz else [1.0]
    return measured.stddev / max(units), measured.stddev / min(units)
