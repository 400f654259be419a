"""`pgmkit query`, `sample`, `report` and `ledger`, which answer from a release. The last also shows
the ledger of all runs on a data set, creates such a file, and ends a run that was killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mechanisms.cli import options as cli
from mechanisms.cli import preflight
from mechanisms.cli.linked import counted, report_linked
from pgmkit.errors import InvalidInput
from pgmkit.tables.files.formats import WRITTEN

if TYPE_CHECKING:
    from mechanisms.release.record import Release

_RELEASE = click.argument("release", type=click.Path(exists=True))


@click.command()
@_RELEASE
@click.argument("question")
@click.option(
    "--error-bars/--no-error-bars",
    default=None,
    help="Standard errors and intervals, however long they take; or none  [default: those that "
    "take about a second at most].",
)
@click.option("--level", type=float, default=0.95, help="Level of the intervals.")
@click.option(
    "--schema", type=cli.FILE, help="Schema of a model that `GraphicalModel.save` wrote in Python."
)
@cli.allow_modified_option
@cli.as_json
def query(
    release: str,
    question: str,
    error_bars: bool | None,
    level: float,
    schema: str | None,
    allow_modified: bool,
) -> None:
    """Ask a release for counts, shares, sums, means or quantiles.

    Answers are computed from the model and cost no more privacy. They are exactly the model's,
    except that a region model's are approximate for columns that share no region.

    \b
    pgmkit query people.pgm "income"
    pgmkit query people.pgm "income, sex | age in 30..44 and hours != missing"
    pgmkit query people.pgm "cdf(age) | sex = F" --error-bars
    pgmkit query people.pgm "sex, mean(hours) | education in {Masters, Doctorate}"
    pgmkit query people.pgm "sex, median(hours)"
    pgmkit query people.pgm "quantile(hours, 0.9) | age < 30"
    pgmkit query people.pgm "count | age < 30, income != high"
    """
    if Path(release).is_dir():
        raise InvalidInput(
            f"{release} is a folder, and a question is asked of one table's release; give a file "
            f"in it, such as {release}/NAME.pgm"
        )
    caution = ""
    if schema is not None:
        from pgmkit import GraphicalModel, ask

        if preflight.is_release(release):
            raise InvalidInput(
                f"--schema goes with a model without one; {release} is a release, whose schema is "
                "that of its run; leave it out"
            )
        if unused := cli.given("level", "allow_modified", *["error_bars"] * bool(error_bars)):
            raise InvalidInput(
                f"{unused[0]} goes with a release and its noisy tables; leave it out"
            )
        reply = ask(GraphicalModel.load(release), cli.read_schema(schema), question)
    else:
        loaded = _load(release, allow_modified)
        caution = loaded.caution
        reply = loaded.ask(question, error_bars=error_bars, level=level, progress=True)
    cli.emit({**reply.columns, "notes": reply.notes}, str(reply), caution)


@click.command()
@_RELEASE
@click.option(
    "--out",
    required=True,
    help=f"File for the records ({', '.join(WRITTEN)}); for linked tables a folder.",
)
@click.option("--rows", type=click.IntRange(1), help="Number of records [default: as estimated].")
@click.option(
    "--given",
    multiple=True,
    help='Conditions that all records meet: "sex = F, age in 30..44". For linked tables '
    '"TABLE: CONDITIONS", such as "home: area = n"; may be repeated.',
)
@click.option("--seed", type=click.IntRange(0), help="Seed of the draw; a draw costs no privacy.")
@cli.safe_csv_option
@cli.allow_modified_option
@cli.as_json
def sample(
    release: str,
    out: str,
    rows: int | None,
    given: tuple[str, ...],
    seed: int | None,
    safe_csv: bool,
    allow_modified: bool,
) -> None:
    """Draw more synthetic records from a release, at no cost.

    RELEASE is a file, or the folder of linked tables that `pgmkit synth-linked --save` wrote; of
    these --rows is the number of parents. Conditions on a table of children are met by at least one
    child of every parent.

    \b
    pgmkit sample people.pgm --rows 1000 --out more.csv
    pgmkit sample people.pgm --given "sex = F, age in 30..44" --out women.parquet
    pgmkit sample register --given "home: persons = 3" --given "person: age < 10" --out three
    """
    from numpy.random import default_rng

    rng = default_rng(seed)
    if Path(release).is_dir():
        if safe_csv:
            raise InvalidInput("--safe-csv is not available for linked tables; leave it out")
        from mechanisms.linked.release import LinkedRelease

        preflight.writable_folder(out)
        conditions = _conditions(given)
        linked = LinkedRelease.load(release, allow_modified=allow_modified)
        tables = linked.write(out, rows, given=conditions, rng=rng)
        cli.emit({"out": out, "records": tables}, counted(out, tables), linked.caution)
        return
    if "" in map(str.strip, given):
        raise InvalidInput('--given is empty; write conditions such as "sex = F", or leave it out')
    target = preflight.records_file(out)
    from pgmkit.tables.files.record_files import write_records

    loaded = _load(release, allow_modified)
    parts = loaded.parts(rows, given=", ".join(given), rng=rng)
    written = write_records(target, loaded.schema, parts, rng, safe_csv=safe_csv)
    cli.emit({"out": out, "records": written}, cli.written(out, written), loaded.caution)


@click.command()
@_RELEASE
@click.option("-o", "--out", required=True, help="File for the report (HTML, opens offline).")
@click.option(
    "--against",
    type=cli.FILE,
    help="Private data to compare with; the report then shows exact errors and is NOT private.",
)
@click.option(
    "--target",
    help="Column whose relations to the others are listed; with --against also predicted.",
)
@click.option(
    "--test",
    type=cli.FILE,
    help="Records that the release was not made of, to test on and to attack it with; with "
    "--against.",
)
@cli.allow_modified_option
@cli.as_json
def report(
    release: str,
    out: str,
    against: str | None,
    target: str | None,
    test: str | None,
    allow_modified: bool,
) -> None:
    """Write a report: what the release keeps, and what it cost.

    It is one HTML page that opens offline. RELEASE is a file, or the folder of linked tables that
    `pgmkit synth-linked --save` wrote.

    \b
    pgmkit report people.pgm -o report.html
    pgmkit report people.pgm -o internal.html --against people.csv --target income
    """
    if Path(release).is_dir():
        if asked := cli.given("against", "target", "test"):
            raise InvalidInput(f"{asked[0]} is not available for linked tables; leave it out")
        report_linked(release, out, allow_modified)
        return
    if test is not None and against is None:
        raise InvalidInput("--test needs --against, the data to compare with; give both")
    target_file = preflight.page_file(out)
    from mechanisms.release.report import Evaluation, html

    loaded = _load(release, allow_modified)
    evaluation = None
    if against is not None:
        cli.warn("--against shows the private data's errors; do not publish")
        truth = preflight.public_records(against, loaded.schema)
        held_out = None if test is None else preflight.public_records(test, loaded.schema)
        evaluation = Evaluation(truth, target, held_out)
    page = html(loaded, evaluation, name=Path(release).name, target=target, progress=True)
    cli.write_text(target_file, page)
    private = against is None and loaded.secure and not loaded.exact
    cli.emit({"out": out, "private": private}, f"wrote {out}", loaded.caution)


def _conditions(given: Sequence[str]) -> dict[str, str]:
    """Return the conditions on each table from texts "TABLE: CONDITIONS". Raises InvalidInput for
    another form.
    """
    found: dict[str, str] = {}
    for each in given:
        table, colon, own = (part.strip() for part in each.partition(":"))
        if not colon or not own:
            raise InvalidInput(
                f"--given must be TABLE: CONDITIONS for linked tables, got {each!r}; write, for "
                'example, "home: area = n, size = 3"'
            )
        found[table] = ", ".join(filter(None, (found.get(table), own)))
    return found


def _load(path: str, allow_modified: bool) -> Any:
    from mechanisms.release.tabular import TableRelease

    return TableRelease.load(path, allow_modified=allow_modified)


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
    if end_run is not None and (create or preflight.is_release(file)):
        said = f"--end-run goes with the ledger of all runs on a data set, which {file} is not"
        raise InvalidInput(f"{said}; leave it out")
    found: Ledger | None
    caution = exception = ""
    if create:
        total = Budget(*(options.pop(name) for name in ("epsilon", "delta", "reserved")))
        found = Ledger.create(preflight.writable(file), total, **options)
    elif preflight.is_release(file):
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
