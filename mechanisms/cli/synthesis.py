"""`pgmkit demo` and `pgmkit synth`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mechanisms.cli import options as cli
from mechanisms.cli.planning import settle_budget
from mechanisms.cli.preflight import Files, asked_about, check_run, records_file
from mechanisms.cli.rescue import keeping, rescuing
from pgmkit.errors import InvalidInput
from pgmkit.runtime.printed import printable, shell_word
from pgmkit.runtime.progress import telling_time

if TYPE_CHECKING:
    import numpy as np

    from mechanisms.privacy.ledger import Ledger
    from mechanisms.release.tabular import TableRelease
    from mechanisms.synthesis.request import Request
    from pgmkit.tables.schema import Schema

_NOT_KEPT = (
    "the release was not kept: with --save FILE, further records, answers with error bars and the "
    "report cost nothing more; without it they need another run and its budget"
)


@click.command()
@cli.budget_options
@cli.seed_option
@click.option("--rows", type=click.IntRange(1), default=20_000, help="Number of made-up rows.")
@click.option("--out", default="synthetic.csv", help="File for the synthetic records (CSV).")
def demo(seed: np.random.Generator | None, rows: int, out: str, **budget: Any) -> None:
    """Try everything on built-in records, made up like a census.

    The mechanism is MWEM+PGM. The records are public, so that errors may be shown.
    """
    target = records_file(out)
    import numpy as np

    from mechanisms.cli.demo import report
    from mechanisms.datasets.census import census, schema
    from mechanisms.dispatch import run
    from mechanisms.rounds.loop import round_reports
    from mechanisms.workload import k_way
    from pgmkit.tables.files.record_files import write_records

    data = census(rows)
    workload = k_way(data.domain, 2)
    click.echo(
        f"MWEM+PGM on built-in census-like data: {rows} rows, {len(data.domain)} attributes, "
        f"all {len(workload)} pairs\n"
    )
    with round_reports(True) as progress:
        release = run("mwem+pgm", data, workload, seed=seed, progress=progress, **budget)
    synthetic = release.sample(rng=seed)
    write_records(target, schema(), [synthetic], np.random.default_rng(seed))
    click.echo(report(release, data, synthetic, workload))
    click.echo("\n" + cli.written(out, len(synthetic)))


@click.command()
@click.argument("data", type=cli.FILE)
@cli.schema_option
@cli.request_options
@click.option(
    "--report-dropped",
    is_flag=True,
    help="Noisy number of rows that --max-rows left out, for a hundredth of the budget.",
)
@cli.seed_option
@click.option("--public", type=cli.FILE, help="File of records that need no protection.")
@cli.target_options
@click.option(
    "--rows", type=click.IntRange(1), help="Number of records to write [default: as estimated]."
)
@click.option(
    "--seconds", type=float, help="Time that auto plans with, in seconds; it is not enforced."
)
@click.option(
    "--memory-mb", type=float, help="Memory that auto plans with, in MB; it is not enforced."
)
@cli.device_option
@cli.ledger_option
@cli.safe_csv_option
@cli.ignore_extra_option
@click.option(
    "--strict",
    is_flag=True,
    help="Refusal of data that do not fit the schema. NOT private: failure and message are exact.",
)
@cli.yes_option
@cli.file_options
@cli.as_json
def synth(**options: Any) -> None:
    """Make private synthetic records from a file.

    The file is CSV, parquet, JSON lines, Excel, SPSS, Stata or SAS; the promise is differential
    privacy. Everything that can be checked is checked before the budget is spent; `pgmkit plan`
    makes the same checks and spends nothing.

    \b
    pgmkit synth people.csv --schema people.yaml --epsilon 1 --delta 1e-9 --out synth.csv
    pgmkit synth people.parquet --schema people.yaml --target income --save people.pgm
    pgmkit synth people.csv --schema people.yaml --mechanism mwem+pgm --set rounds=20 --out s.csv
    """
    from mechanisms.privacy.budget import Budget

    settle_budget(options, None)
    # Budget and folders are checked before slow packages are loaded, and again with the rest.
    Budget(options["epsilon"] or 1.0, options["delta"])
    files = Files.taken_from(options)
    if files.out is None and files.save is None:
        raise InvalidInput("nothing to write: give --out for records, --save for the release")
    files.check_targets()
    schema = cli.read_schema(files.schema, **{name: options.pop(name) for name in cli.FORMAT})
    rng, yes = options["seed"], options.pop("yes")
    from mechanisms.privacy.ledger import Ledger
    from mechanisms.synthesis.request import Request

    request = Request(
        schema=schema,
        report_unread=not options["strict"] and asked_about(schema, yes),
        public=None if files.public is None else _public_frame(files.public, schema),
        ledger=None if files.ledger is None else Ledger.open(files.ledger),
        progress=True,
        **options,
    )
    check_run(request, files)
    from mechanisms.synthesis.pipeline import release_of

    for each in request.planned:
        click.echo(printable(f"planned: {each}"), err=True)
    records = _records(request, files)
    beside, doing = files.save or files.out or "", telling_time("measuring and modelling")
    with rescuing(beside, files.schema), doing:
        release = release_of(request, records)
    written = _write(release, files, rng)
    assert release.ledger is not None
    out, save, page = files.out, files.save, files.report
    lines = [f"{release.mechanism}: {release.reason}", *_spent(release.ledger, save)]
    lines += release.verdict.sentences
    lines += [cli.written(out, written)] if out else []
    lines += (
        [f"wrote {save}: the release; try `pgmkit query {shell_word(save)} ...`"] if save else []
    )
    lines += [f"wrote {page}: the report"] if page else []
    lines += [] if save else [_NOT_KEPT]
    cli.emit(
        {
            "mechanism": release.mechanism,
            "questions": [each.to_dict() for each in request.planned],
            "reason": release.reason,
            "verdict": release.verdict.sentences,
            "ledger": release.ledger.to_dict(),
            "records": written,
            "out": out,
            "save": save,
            "report": page,
        },
        "\n".join(lines),
        release.caution,
    )


def _records(request: Request, files: Files) -> Any:
    """Return the private records: as codes if the codes of all columns are known and there is no
    unit, and otherwise as a data frame.
    """
    from pgmkit.tables.files.record_files import encode_file, read_frame

    assert files.data is not None
    if request.unit is None and not request.placed.unresolved:
        return encode_file(files.data, request.placed)
    also = () if request.unit is None else (request.unit,)
    return read_frame(files.data, request.placed, also=also)


def _spent(ledger: Ledger, save: str | None) -> list[str]:
    """Return the lines of the ledger. If it has more than 40 charges and is saved in the file
    `save`, only the lines after the charges are returned, with a line that says where they are.
    """
    lines = str(ledger).splitlines()
    if save is None or len(ledger.entries) <= 40:
        return lines
    listed = f"{len(ledger.entries)} charges; `pgmkit ledger {shell_word(save)}` lists them"
    return [listed, *lines[1 + len(ledger.entries) :]]


def _write(release: TableRelease, files: Files, rng: np.random.Generator | None) -> int:
    """Save the release, write its records and its report to the files that are named, and return
    the number of records that were written.
    """
    import numpy as np

    from pgmkit.tables.files.record_files import write_records

    written = 0
    with keeping(release, files.save):
        if files.out is not None:
            draw = np.random.default_rng(rng)
            parts = release.parts(files.rows, rng=draw)
            safe = files.safe_csv
            written = write_records(files.out, release.schema, parts, draw, safe_csv=safe)
        if files.report is not None:
            from mechanisms.release.report import html

            name, schema_file = Path(files.data or "").name, Path(files.schema).name
            cli.write_text(files.report, html(release, name=name, schema_file=schema_file))
    return written


def _public_frame(path: str, schema: Schema) -> Any:
    """Return the public records in a file as a data frame of those columns of the schema that the
    file has. Raises InvalidInput if it has none of them.
    """
    from pgmkit.tables.files.reading import all_names
    from pgmkit.tables.files.record_files import read_frame

    names = all_names(path, schema.file)
    known = schema.restricted(names) if schema.columns.keys() & set(names) else schema
    return read_frame(path, known)
