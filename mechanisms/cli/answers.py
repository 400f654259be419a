"""`pgmkit query`, `sample`, `ledger` and `report`: what a release answers."""

from __future__ import annotations

from typing import Any

import click

from mechanisms.cli.options import as_json, emit, generator, writable

__all__ = ["ledger", "query", "report", "sample"]

_RELEASE = click.argument("release", type=click.Path(exists=True, dir_okay=False))


@click.command()
@_RELEASE
@click.argument("question")
@click.option(
    "--error-bars/--no-error-bars",
    default=None,
    help="Standard errors and intervals, however long they take; or none  [default: those that "
    "take about a second at most].",
)
@click.option("--level", type=float, default=0.95, show_default=True, help="Of the intervals.")
@click.option(
    "--schema",
    type=click.Path(exists=True, dir_okay=False),
    help="For a model that `GraphicalModel.save` wrote in Python.",
)
@as_json
def query(
    release: str,
    question: str,
    error_bars: bool | None,
    level: float,
    schema: str | None,
    json_out: bool,
) -> None:
    """Ask a release, without sampling: marginals, conditions, CDFs, sums, means and quantiles.

    \b
    pgmkit query people.pgm "income"
    pgmkit query people.pgm "income, sex | age in 30..44 and hours != missing"
    pgmkit query people.pgm "cdf(age) | sex = F" --error-bars
    pgmkit query people.pgm "sex, mean(hours) | education in {Masters, Doctorate}"
    pgmkit query people.pgm "sex, median(hours)"
    pgmkit query people.pgm "quantile(hours, 0.9) | age < 30"
    pgmkit query people.pgm "count | age < 30, income != high"
    """
    if schema is not None and not _is_release(release):
        from mechanisms.cli.options import read_schema
        from pgmkit.errors import InvalidInput
        from pgmkit.model import GraphicalModel
        from pgmkit.tables.questions import ask

        if error_bars:
            raise InvalidInput("error bars need the noisy tables, which a release file holds")
        reply = ask(GraphicalModel.load(release), read_schema(schema), question)
    else:
        reply = _load(release).ask(question, error_bars=error_bars, level=level, progress=True)
    emit({**reply.columns, "notes": reply.notes}, str(reply), json_out)


@click.command()
@_RELEASE
@click.option("--out", required=True, help="Where the records go (CSV or parquet).")
@click.option("--rows", type=click.IntRange(1), help="Records [default: as estimated].")
@click.option("--given", help='Conditions that all records meet: "sex = F, age in 30..44".')
@click.option("--seed", type=int, help="Of the draw; it costs no privacy.")
@as_json
def sample(
    release: str,
    out: str,
    rows: int | None,
    given: str | None,
    seed: int | None,
    json_out: bool,
) -> None:
    """Draw synthetic records from a release; no more privacy is spent.

    \b
    pgmkit sample people.pgm --rows 1000 --out more.csv
    pgmkit sample people.pgm --given "sex = F, age in 30..44" --out women.parquet
    """
    target = writable(out)
    import numpy as np

    from pgmkit.tables.files import write_file

    loaded = _load(release)
    rng = generator(seed) or np.random.default_rng()
    records = loaded.codes(rows, given=given, seed=rng)
    write_file(target, loaded.schema.decode(records, rng))
    emit(
        {"out": out, "records": len(records)},
        f"wrote {out}: {len(records)} synthetic records",
        json_out,
    )


@click.command()
@_RELEASE
@as_json
def ledger(release: str, json_out: bool) -> None:
    """What was promised and spent, step by step."""
    from mechanisms.release.record import Release

    loaded = Release.load(release)
    found = loaded.ledger
    if found is not None:
        emit(found.to_dict(), str(found), json_out)
        return
    tables = [
        {"columns": m.clique, "values": len(m.values), "stddev": m.stddev}
        for m in loaded.measurements
    ]
    lines = [
        f"{' x '.join(m.clique) or 'total'}: {len(m.values)} values, stddev {m.stddev:g}"
        for m in loaded.measurements
    ]
    said = "nothing was spent here: the noisy tables came from elsewhere, at a price unknown here"
    emit({"ledger": None, "tables": tables}, "\n".join([said, *lines]), json_out)


@click.command()
@_RELEASE
@click.option("-o", "--out", required=True, help="The report (one HTML file, opens offline).")
@click.option(
    "--against",
    type=click.Path(exists=True, dir_okay=False),
    help="The private data themselves: errors are shown, and the report is NOT private.",
)
@click.option("--target", help="With --against: a column to predict from the others.")
@click.option(
    "--test",
    type=click.Path(exists=True, dir_okay=False),
    help="Records that the release was not made of, to test on and to attack it with.",
)
@as_json
def report(
    release: str,
    out: str,
    against: str | None,
    target: str | None,
    test: str | None,
    json_out: bool,
) -> None:
    """A self-contained HTML report: what was released, what it cost, how far to trust it.

    \b
    pgmkit report people.pgm -o report.html
    pgmkit report people.pgm -o internal.html --against people.csv --target income
    """
    target_file = writable(out)
    from mechanisms.release.report import Evaluation, html
    from pgmkit.atomic_write import atomic_writer
    from pgmkit.tables.files import encode_file

    loaded = _load(release)
    evaluation = None
    if against is not None:
        click.echo("warning: --against shows the private data's errors; do not publish", err=True)
        truth = encode_file(against, loaded.schema, ignore_extra=True)
        held_out = None if test is None else encode_file(test, loaded.schema, ignore_extra=True)
        evaluation = Evaluation(truth, target, held_out)
    page = html(loaded, evaluation, progress=True)
    with atomic_writer(target_file) as file:
        file.write(page.encode("utf-8"))
    emit({"out": out, "private": against is None}, f"wrote {out}", json_out)


def _is_release(path: str) -> bool:
    """Whether the file holds a release, and not a model alone."""
    import zipfile

    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return "release.json" in archive.namelist()


def _load(path: str) -> Any:
    from mechanisms.release.tabular import TableRelease

    return TableRelease.load(path)
