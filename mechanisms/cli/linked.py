"""`pgmkit synth-linked`: linked tables, such as households and their persons, under one budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mechanisms.cli import options as cli
from mechanisms.cli import preflight
from mechanisms.cli.rescue import keeping, rescuing
from pgmkit.errors import InvalidInput, check_known
from pgmkit.runtime.printed import shell_word
from pgmkit.runtime.progress import telling_time
from pgmkit.tables.files.formats import WRITTEN

if TYPE_CHECKING:
    from mechanisms.linked.link import Link
    from pgmkit.tables.schema import Schema


@click.command("synth-linked")
@click.argument("tables", nargs=-1, required=True, metavar="TABLE=FILE...")
@click.option(
    "--schema",
    "schema_file",
    required=True,
    type=cli.FILE,
    help="File of the tables' schemas and the links between them (YAML or JSON).",
)
@click.option(
    "--mechanism",
    default="auto",
    help="Mechanism that is run on each table, by its name in `pgmkit mechanisms`; auto chooses "
    "between aim and all pairs at once.",
)
@cli.settings_option
@cli.budget_options
@cli.accounting_option
@click.option("--out", help="Folder for the synthetic tables, a file for each.")
@click.option("--save", help="New folder for the release: models, noisy tables, ledger.")
@click.option("--report", help="File for an HTML report (see `pgmkit report`).")
@click.option(
    "--suffix",
    type=click.Choice(WRITTEN),
    default=".csv",
    help="Format of the files in --out.",
)
@click.option(
    "--rows", type=click.IntRange(1), help="Number of parents to draw [default: as estimated]."
)
@cli.ledger_option
@cli.ignore_extra_option
@cli.yes_option
@cli.seed_option
@cli.as_json
def synth_linked(
    tables: tuple[str, ...],
    schema_file: str,
    out: str | None,
    save: str | None,
    report: str | None,
    suffix: str,
    rows: int | None,
    ledger: str | None,
    ignore_extra_columns: bool,
    yes: bool,
    **options: Any,
) -> None:
    """Make private linked tables, such as households and persons.

    Every child that is made has a parent that is made. A row of the topmost table, such as a
    household, is protected together with all its descendants. The schema file has `tables`, a
    schema for each table by its name, and `links`: key, parent, child and the largest number of
    children (docs/linked.md).

    \b
    pgmkit synth-linked home=homes.csv person=persons.csv --schema register.yaml \\
        --epsilon 1 --delta 1e-9 --out synthetic --save register --report register.html
    pgmkit query register/person.pgm "mean(age) | area = city"
    pgmkit sample register --out more
    """
    if out is None and save is None and report is None:
        raise InvalidInput(
            "nothing to write: give --out for records, --save for the release, --report for a page"
        )
    if out is None and rows is not None:
        raise InvalidInput("--rows is a number of parents to draw; give --out for their tables")
    for folder in (out, save):
        if folder is not None:
            preflight.writable_folder(folder)
    preflight.check_kept(save)
    preflight.check_drawn(options["mechanism"], "out", "report")
    page = None if report is None else preflight.page_file(report)
    from mechanisms.linked.link import load_linked_schema
    from mechanisms.linked.pipeline import synthesize_linked
    from mechanisms.linked.report import html, verdicts
    from mechanisms.privacy.ledger import Ledger

    schemas, links = load_linked_schema(schema_file)
    paths = _paths(tables, schemas)
    made = [] if out is None else [str(Path(out, f"{name}{suffix}")) for name in schemas]
    for path in filter(None, (report, *made)):
        preflight.check_apart(path, [*paths.values(), *made])
    frames = _frames(paths, schemas, links, ignore_extra_columns)
    with rescuing(save or out or ""), telling_time("measuring and modelling"):
        release = synthesize_linked(
            frames,
            schemas,
            links,
            report_unread=preflight.asked_about(schemas[links[0].parent], yes),
            ledger=None if ledger is None else Ledger.open(ledger),
            **options,
        )
    written: dict[str, int] = {}
    with keeping(release, save):
        if out is not None:
            written = release.write(out, rows, suffix=suffix, rng=options["seed"])
        if page is not None:
            cli.write_text(page, html(release, schema_file=Path(schema_file).name))
    tried = shell_word(f"{save}/{links[0].child}.pgm")
    lines = [f"wrote {save}: the release; try `pgmkit query {tried} ...`"] if save else []
    lines += [] if page is None else [f"wrote {page}: the report"]
    lines += [] if out is None else [counted(out, written)]
    assert release.ledger is not None
    why = {name: f"{each.mechanism}: {each.reason}" for name, each in release.tables.items()}
    found = verdicts(release)
    said = [f"{name}: {each}" for name in found for each in (why[name], *found[name])]
    cli.emit(
        {
            "ledger": release.ledger.to_dict(),
            "reason": why,
            "verdict": found,
            "records": written,
            "out": out,
            "save": save,
            "report": report,
        },
        "\n".join([str(release.ledger).splitlines()[-1], *said, *lines]),
        release.caution,
    )


def report_linked(folder: str, out: str, allow_modified: bool) -> None:
    """Write the report of a saved release of linked tables. `allow_modified`: read the release even
    if its checksum tells that a file was changed.
    """
    from mechanisms.linked.release import LinkedRelease
    from mechanisms.linked.report import html

    kept = [str(each) for each in Path(folder).iterdir() if each.suffix in (".pgm", ".json")]
    target = preflight.page_file(out, kept)
    release = LinkedRelease.load(folder, allow_modified=allow_modified)
    cli.write_text(target, html(release, name=Path(folder).name))
    cli.emit({"out": out, "private": release.secure}, f"wrote {out}", release.caution)


def counted(out: str, written: Mapping[str, int]) -> str:
    """Return the line that says how many rows of each table were written to the folder `out`."""
    return f"wrote {out}: {', '.join(f'{count} of {name}' for name, count in written.items())}"


def _paths(given: Sequence[str], schemas: Mapping[str, Schema]) -> dict[str, str]:
    """Return the file of each table from the arguments TABLE=FILE. Raises InvalidInput for another
    form, unknown tables, files that do not exist, and tables that are given twice or not at all.
    """
    found: dict[str, str] = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not equals:
            raise InvalidInput(f"{each!r} must be TABLE=FILE, such as person=persons.csv")
        check_known([name], schemas, "the schema has no table", "its tables are")
        if name in found:
            raise InvalidInput(f"the table {name!r} is given twice; give one file for it")
        if not Path(path).is_file():
            raise InvalidInput(f"the file {path!r} of the table {name!r} does not exist")
        found[name] = path
    absent = [name for name in schemas if name not in found]
    if absent:
        raise InvalidInput(f"no file is given for the table {absent[0]!r}; add {absent[0]}=FILE")
    return found


def _frames(
    paths: Mapping[str, str],
    schemas: Mapping[str, Schema],
    links: Sequence[Link],
    ignore_extra: bool,
) -> dict[str, Any]:
    """Return each table as a data frame with the columns of its schema and those that link or order
    its rows.

    The column names of all files but JSON lines, which have no header, are checked before a record
    of any file is read. Raises InvalidInput for a file without one of these columns or, unless
    `ignore_extra`, with others.
    """
    from mechanisms.linked.link import linking
    from pgmkit.tables.files.reading import check_columns
    from pgmkit.tables.files.record_files import read_frame

    also = linking(links)
    placed = {name: schemas[name].placed() for name in paths}
    for name, path in paths.items():
        check_columns(path, placed[name], ignore_extra=ignore_extra, also=also[name])
    return {n: read_frame(path, placed[n], also=also[n]) for n, path in paths.items()}
