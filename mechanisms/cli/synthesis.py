"""`pgmkit demo`, `plan`, `synth` and `mechanisms`."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mechanisms.cli.consent import asked_about
from mechanisms.cli.options import (
    as_json,
    budget_options,
    device_option,
    emit,
    file_options,
    generator,
    mechanism_options,
    read_schema,
    settings_of,
    unit_options,
    writable,
)
from mechanisms.cli.spreadsheets import safe_csv_option, spreadsheet_safe

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from mechanisms.privacy.budget import Accounting
    from mechanisms.privacy.ledger import Ledger
    from mechanisms.release.tabular import TableRelease
    from pgmkit.tables.schema import Schema

__all__ = ["demo", "mechanisms", "plan", "synth"]

_SEED = click.option(
    "--seed", type=int, help="Seed of reproducible noise: INSECURE, for tests and simulations only."
)
_MOST_CHARGES = 40
_INSECURE = "warning: --seed makes the noise predictable; do not publish this"


@click.command()
@budget_options
@_SEED
@click.option(
    "--rows",
    type=click.IntRange(1),
    default=20_000,
    show_default=True,
    help="Number of made-up rows.",
)
@click.option(
    "--out",
    default="synthetic.csv",
    show_default=True,
    help="File for the synthetic records (CSV).",
)
def demo(
    epsilon: float, delta: float, neighbours: str, seed: int | None, rows: int, out: str
) -> None:
    """Run MWEM+PGM on built-in census-like data, which are public."""
    target = writable(out)
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
    rng = generator(seed)
    if rng is not None:
        click.echo(_INSECURE, err=True)
    with round_reports(True) as progress:
        release = run(
            "mwem+pgm",
            data,
            workload,
            epsilon,
            delta,
            neighbours=neighbours,
            seed=rng,
            progress=progress,
        )
    synthetic = release.sample(rng=rng)
    write_records(target, schema(), [synthetic], np.random.default_rng(rng))
    click.echo(report(release, data, synthetic, workload))
    click.echo(f"\nwrote {out}: {len(synthetic)} synthetic records")


@click.command()
@as_json
def mechanisms(json_out: bool) -> None:
    """List the mechanisms that `pgmkit synth --mechanism NAME` can run."""
    from mechanisms.registry import MECHANISMS

    width = max(map(len, MECHANISMS))
    lines = [f"{entry.name:<{width}}  {entry.summary}" for entry in MECHANISMS.values()]
    emit({entry.name: entry.summary for entry in MECHANISMS.values()}, "\n".join(lines), json_out)


@click.command()
@click.option(
    "--schema",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="Schema file (YAML or JSON).",
)
@click.option(
    "--rows",
    type=click.IntRange(1),
    default=50_000,
    show_default=True,
    help="Number of rows to plan for.",
)
@mechanism_options
@budget_options
@unit_options
@as_json
def plan(
    schema: str,
    rows: int,
    mechanism: str,
    settings: tuple[str, ...],
    k: int,
    target: str | None,
    accounting: Accounting | None,
    epsilon: float,
    delta: float,
    neighbours: str,
    unit: str | None,
    max_rows: int | None,
    json_out: bool,
) -> None:
    """Plan a run: the split of the budget, the noise, the model's size, the time.

    No data are read: the mechanism runs on made-up records.

    \b
    pgmkit plan --schema people.yaml --rows 50000 --mechanism aim --epsilon 1
    """
    from mechanisms.privacy.budget import Budget
    from mechanisms.synthesis.auto import choice_of
    from mechanisms.synthesis.open_columns import ASSUMED_LABELS, assumed
    from mechanisms.synthesis.pipeline import table_workload
    from mechanisms.synthesis.plan import plan as planned

    asked = read_schema(schema)
    described = assumed(asked)
    workload = table_workload(described.domain, k, target)
    budget = Budget(epsilon, delta)
    if mechanism == "auto":
        accounting = accounting or budget.least_noise
    choice = choice_of(
        mechanism, described, workload, budget=budget, rows=rows, max_rows=max_rows or 1
    )
    found = planned(
        choice.name,
        workload,
        epsilon,
        delta,
        neighbours=neighbours,
        rows=rows,
        unit=unit,
        max_rows=max_rows,
        settings={**choice.settings, **settings_of(mechanism, settings)},
        accounting=accounting,
    )
    places = {name: column.place for name, column in asked.placed().columns.items()}
    open_names = asked.unresolved
    values = {**found.to_dict(), "reason": choice.reason, "outside": places, "open": [*open_names]}
    lines = [f"{choice.name}, because: {choice.reason}", str(found)]
    if open_names:
        lines.append(
            f"assumed: {ASSUMED_LABELS} values, or the bins asked for, in what is open: "
            f"{', '.join(open_names)}. Finding them takes a tenth of the budget first, which is "
            "not in this plan"
        )
    if mechanism == "auto" and choice.name in ("aim", "mixture", "mst"):
        lines.append(
            "before that auto looks whether the columns depend on each other, for up to a "
            "fiftieth of the budget, which is not in this plan; where they do not, it takes "
            "independent"
        )
    lines.append("values that the schema does not have are")
    lines += [f"  {name}: {place}" for name, place in places.items()]
    emit(values, "\n".join(lines), json_out)


@click.command()
@click.argument("data", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--schema",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="Schema file (YAML or JSON): what each column may hold; or sizes alone, "
    '{"age": 10, "sex": 2}, for columns of codes.',
)
@mechanism_options
@budget_options
@unit_options
@click.option(
    "--report-dropped",
    is_flag=True,
    help="Noisy number of rows that --max-rows left out, for a hundredth of the budget.",
)
@_SEED
@click.option(
    "--public",
    type=click.Path(exists=True, dir_okay=False),
    help="File of records that need no protection.",
)
@click.option("--out", help="File for the synthetic records (CSV or parquet).")
@click.option("--save", help="File for the release: model, noisy tables, ledger.")
@click.option("--report", "page", help="File for an HTML report (see `pgmkit report`).")
@click.option(
    "--rows", type=click.IntRange(1), help="Number of records to write [default: as estimated]."
)
@click.option(
    "--seconds", type=float, help="Time that auto plans with, in seconds; it is not enforced."
)
@click.option(
    "--memory-mb", type=float, help="Memory that auto plans with, in MB; it is not enforced."
)
@device_option
@click.option(
    "--ledger",
    "account",
    type=click.Path(exists=True, dir_okay=False),
    help="Ledger of the data set across runs, which `pgmkit ledger FILE --create` began.",
)
@safe_csv_option
@click.option(
    "--ignore-extra-columns",
    is_flag=True,
    help="Columns that the schema does not have are ignored.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Refusal of data that do not fit the schema. NOT private: failure and message are exact.",
)
@click.option(
    "--yes",
    is_flag=True,
    help="Consent to go on where more than a tenth of a column cannot be read.",
)
@file_options
@as_json
def synth(
    data: str,
    schema: str,
    mechanism: str,
    settings: tuple[str, ...],
    k: int,
    target: str | None,
    accounting: Accounting | None,
    epsilon: float,
    delta: float,
    neighbours: str,
    unit: str | None,
    max_rows: int | None,
    report_dropped: bool,
    seed: int | None,
    public: str | None,
    out: str | None,
    save: str | None,
    page: str | None,
    rows: int | None,
    seconds: float | None,
    memory_mb: float | None,
    device: str | None,
    account: str | None,
    safe_csv: bool,
    ignore_extra_columns: bool,
    strict: bool,
    yes: bool,
    encoding: str | None,
    separator: str | None,
    decimal: str | None,
    skip_lines: int | None,
    sheet: str | None,
    json_out: bool,
) -> None:
    """Make differentially private synthetic data from a file (CSV, parquet, Excel, SPSS, Stata).

    \b
    pgmkit synth people.csv --schema people.yaml --epsilon 1 --delta 1e-9 --out synth.csv
    pgmkit synth people.parquet --schema people.yaml --target income --save people.pgm
    pgmkit synth people.csv --schema people.yaml --mechanism mwem+pgm --set rounds=20 --out s.csv
    """
    from mechanisms.privacy.budget import Budget
    from mechanisms.privacy.ledger import Ledger

    Budget(epsilon, delta)
    targets = _targets(out, save, page)
    described = read_schema(schema, encoding, separator, decimal, skip_lines, sheet)
    chosen = settings_of(mechanism, settings)
    _check_mechanism(mechanism, chosen, out)
    rng = generator(seed)
    from mechanisms.synthesis.pipeline import synthesize

    records = _records(
        data, described if strict else described.placed(), unit, ignore_extra_columns
    )
    others: Any = None if public is None else _public_frame(public, described)
    if rng is not None:
        click.echo(_INSECURE, err=True)
    release = synthesize(
        records,
        described,
        epsilon=epsilon,
        delta=delta,
        neighbours=neighbours,
        unit=unit,
        max_rows=max_rows,
        report_dropped=report_dropped,
        report_unread=not strict and asked_about(described, yes),
        mechanism=mechanism,
        settings=chosen,
        workload=k,
        target=target,
        public=others,
        seconds=seconds,
        memory_mb=memory_mb,
        strict=strict,
        seed=rng,
        ledger=None if account is None else Ledger.open(account),
        accounting=accounting,
        device=device,
        progress=True,
    )
    written = _write(release, rows, rng, safe_csv, *targets)
    assert release.ledger is not None
    lines = [f"{release.mechanism}: {release.reason}", *_spent(release.ledger, save)]
    lines += release.verdict.sentences
    lines += [f"wrote {out}: {written} synthetic records"] if out else []
    lines += [f"wrote {save}: the release; try `pgmkit query {save} ...`"] if save else []
    lines += [f"wrote {page}: the report"] if page else []
    emit(
        {
            "mechanism": release.mechanism,
            "reason": release.reason,
            "verdict": release.verdict.sentences,
            "ledger": release.ledger.to_dict(),
            "records": written,
            "out": out,
            "save": save,
            "report": page,
        },
        "\n".join(lines),
        json_out,
        release.caution if json_out else "",
    )


def _targets(out: str | None, save: str | None, page: str | None) -> list[Path | None]:
    """Where to write, all of it writable before anything is paid for."""
    from pgmkit.errors import InvalidInput

    if out is None and save is None:
        raise InvalidInput("nothing to write: give --out for records, --save for the release")
    return [None if path is None else writable(path) for path in (out, save, page)]


def _check_mechanism(mechanism: str, settings: Mapping[str, Any], out: str | None) -> None:
    """Refuse an unknown mechanism or setting, and one that has no records to write."""
    from mechanisms.registry import configure
    from pgmkit.errors import InvalidInput

    if mechanism == "auto":
        return
    entry, _ = configure(mechanism, **settings)
    if not entry.records and out is not None:
        raise InvalidInput(
            f"{mechanism} releases tables, from which no records can be drawn; leave --out away, "
            "or choose another mechanism"
        )


def _records(data: str, schema: Schema, unit: str | None, ignore_extra: bool) -> Any:
    """The private records: as codes where the schema says all about them, else as a frame."""
    from pgmkit.tables.files.record_files import encode_file, read_frame

    if unit is None and not schema.unresolved:
        return encode_file(data, schema, ignore_extra=ignore_extra)
    also = () if unit is None or unit in schema.columns else (unit,)
    return read_frame(data, schema, ignore_extra=ignore_extra, also=also)


def _spent(ledger: Ledger, save: str | None) -> list[str]:
    """The ledger's lines; of a long one that is saved the end, and how to see the rest."""
    lines = str(ledger).splitlines()
    if save is None or len(ledger.entries) <= _MOST_CHARGES:
        return lines
    listed = f"{len(ledger.entries)} charges; `pgmkit ledger {save}` lists them"
    return [listed, *lines[1 + len(ledger.entries) :]]


def _write(
    release: TableRelease,
    rows: int | None,
    rng: np.random.Generator | None,
    safe_csv: bool,
    out: Path | None,
    save: Path | None,
    page: Path | None,
) -> int:
    """Write what was asked for; the number of records. What was paid for is kept if that fails."""
    import numpy as np

    from pgmkit.errors import PgmkitError
    from pgmkit.runtime.atomic_write import atomic_writer
    from pgmkit.tables.files.record_files import write_records

    saved = False
    try:
        if save is not None:
            release.save(save)
            saved = True
        written = 0
        if out is not None:
            draw = np.random.default_rng(rng)
            parts = release.parts(rows, rng=draw)
            spelled = spreadsheet_safe if safe_csv else None
            written = write_records(out, release.schema, parts, draw, spelled=spelled)
        if page is not None:
            from mechanisms.release.report import html

            with atomic_writer(page) as file:
                file.write(html(release).encode("utf-8"))
    except (OSError, PgmkitError) as error:
        if not saved:
            _rescue(release, error)
        raise
    return written


def _rescue(release: TableRelease, error: Exception) -> None:
    """Save the release elsewhere and say where: its budget is spent and cannot be spent again."""
    import tempfile

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


def _public_frame(path: str, schema: Schema) -> Any:
    """The columns of the schema that the file of public records has."""
    from pgmkit.tables.files.record_files import names_of, read_frame

    names = names_of(path, schema.file)
    known = schema.restricted(names) if schema.columns.keys() & set(names) else schema
    return read_frame(path, known)
