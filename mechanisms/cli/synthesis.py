"""`pgmkit demo`, `plan`, `synth` and `mechanisms`."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mechanisms.cli.options import (
    as_json,
    budget_options,
    emit,
    generator,
    mechanism_options,
    read_schema,
    settings_of,
    writable,
)

if TYPE_CHECKING:
    import numpy as np

    from mechanisms.privacy.budget import Ledger
    from mechanisms.release.tabular import TableRelease
    from pgmkit.tables.schema import Schema

__all__ = ["demo", "mechanisms", "plan", "synth"]

_SEED = click.option(
    "--seed", type=int, help="Reproducible noise: INSECURE, for tests and simulations only."
)
_OPEN_VALUES = 20
"""That a plan assumes of a column whose values are still to be found."""
_MOST_CHARGES = 40
_INSECURE = "warning: --seed makes the noise predictable; do not publish this"


@click.command()
@budget_options
@_SEED
@click.option("--rows", type=click.IntRange(1), default=20_000, show_default=True)
@click.option("--out", default="synthetic.csv", show_default=True, help="Synthetic data (CSV).")
def demo(
    epsilon: float, delta: float, neighbours: str, seed: int | None, rows: int, out: str
) -> None:
    """MWEM+PGM on built-in census-like data, which is public."""
    target = writable(out)
    import numpy as np

    from mechanisms.cli.demo import report
    from mechanisms.datasets.census import census, schema
    from mechanisms.dispatch import run
    from mechanisms.rounds.loop import round_reports
    from mechanisms.workload import k_way
    from pgmkit.tables.files import write_file

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
    synthetic = release.sample(seed=rng)
    write_file(target, schema().decode(synthetic, np.random.default_rng(rng)))
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
@click.option("--schema", required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--rows", type=click.IntRange(1), default=50_000, show_default=True)
@mechanism_options
@budget_options
@as_json
def plan(
    schema: str,
    rows: int,
    mechanism: str,
    settings: tuple[str, ...],
    k: int,
    target: str | None,
    epsilon: float,
    delta: float,
    neighbours: str,
    json_out: bool,
) -> None:
    """What a run would spend on what, how large its model gets and how long it takes.

    No data are touched: the mechanism runs on that many made-up records.

    \b
    pgmkit plan --schema people.yaml --rows 50000 --mechanism aim --epsilon 1
    """
    from mechanisms.privacy.budget import Budget
    from mechanisms.synthesis.auto import Choice, choose_mechanism
    from mechanisms.synthesis.pipeline import table_workload
    from mechanisms.synthesis.plan import plan as planned

    described, assumed = _stand_ins(read_schema(schema))
    workload = table_workload(described.domain, k, target)
    known_rows = None if target else rows
    choice = (
        choose_mechanism(described, workload, Budget(epsilon, delta), rows=known_rows)
        if mechanism == "auto"
        else Choice(mechanism, "as asked")
    )
    found = planned(
        choice.name,
        workload,
        epsilon,
        delta,
        neighbours=neighbours,
        rows=rows,
        settings=settings_of(mechanism, settings),
    )
    values = {**found.to_dict(), "reason": choice.reason, "assumed": assumed}
    text = "\n".join([f"{choice.name}, because: {choice.reason}", str(found), *assumed])
    emit(values, text, json_out)


def _stand_ins(schema: Schema) -> tuple[Schema, list[str]]:
    """The schema with made-up values in its open columns, and what was assumed."""
    from pgmkit.tables.schema import Categorical, Numeric, Schema

    found: dict[str, Any] = {}
    for name in schema.unresolved:
        column = schema.columns[name]
        if isinstance(column, Numeric):
            found[name] = Numeric(column.low, column.high, bins=column.bins, missing=column.missing)
        else:
            values = tuple(f"value {i}" for i in range(_OPEN_VALUES))
            found[name] = Categorical(values, missing=column.missing)
    if not found:
        return schema, []
    names = ", ".join(found)
    return Schema({**schema.columns, **found}), [
        f"assumed: {_OPEN_VALUES} values, or the bins asked for, in what is open: {names}. Finding "
        "them takes a tenth of the budget first, which is not in this plan"
    ]


@click.command()
@click.argument("data", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--schema",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help='YAML or JSON: what each column may hold; or just sizes, {"age": 10, "sex": 2}, of '
    "columns of codes.",
)
@mechanism_options
@budget_options
@_SEED
@click.option("--public", type=click.Path(exists=True, dir_okay=False), help="Public records.")
@click.option("--out", help="Where the synthetic records go (CSV or parquet).")
@click.option("--save", help="Where the release goes: model, noisy values, ledger (one file).")
@click.option("--report", "page", help="Where an HTML report goes (see `pgmkit report`).")
@click.option("--rows", type=click.IntRange(1), help="Records to write [default: as estimated].")
@click.option("--seconds", type=float, help="Time that auto may choose by; no promise.")
@click.option("--memory-mb", type=float, help="Memory that auto may choose by; no promise.")
@click.option("--ignore-extra-columns", is_flag=True, help="Ignore columns not in the schema.")
@as_json
def synth(
    data: str,
    schema: str,
    mechanism: str,
    settings: tuple[str, ...],
    k: int,
    target: str | None,
    epsilon: float,
    delta: float,
    neighbours: str,
    seed: int | None,
    public: str | None,
    out: str | None,
    save: str | None,
    page: str | None,
    rows: int | None,
    seconds: float | None,
    memory_mb: float | None,
    ignore_extra_columns: bool,
    json_out: bool,
) -> None:
    """Differentially private synthetic data from a CSV or parquet file.

    \b
    pgmkit synth people.csv --schema people.yaml --epsilon 1 --delta 1e-9 --out synth.csv
    pgmkit synth people.parquet --schema people.yaml --target income --save people.pgm
    pgmkit synth people.csv --schema people.yaml --mechanism mwem+pgm --set rounds=20 --out s.csv
    """
    from mechanisms.registry import configure
    from mechanisms.synthesis.pipeline import synthesize
    from pgmkit.errors import InvalidInput
    from pgmkit.tables.files import encode_file, read_frame

    if out is None and save is None:
        raise InvalidInput("nothing to write: give --out for records, --save for the release")
    targets = [None if path is None else writable(path) for path in (out, save, page)]
    described = read_schema(schema)
    chosen = settings_of(mechanism, settings)
    entry = None if mechanism == "auto" else configure(mechanism, **chosen)[0]
    if entry is not None and not entry.records and out is not None:
        raise InvalidInput(
            f"{mechanism} releases tables, from which no records can be drawn; leave --out away, "
            "or choose another mechanism"
        )
    rng = generator(seed)
    read = read_frame if described.unresolved else encode_file
    records: Any = read(data, described, ignore_extra=ignore_extra_columns)
    others: Any = None if public is None else _public_frame(public, described)
    if rng is not None:
        click.echo(_INSECURE, err=True)
    release = synthesize(
        records,
        described,
        epsilon=epsilon,
        delta=delta,
        neighbours=neighbours,
        mechanism=mechanism,
        settings=chosen,
        workload=k,
        target=target,
        public=others,
        seconds=seconds,
        memory_mb=memory_mb,
        seed=rng,
        progress=True,
    )
    written = _write(release, rows, rng, *targets)
    assert release.ledger is not None
    lines = [f"{release.mechanism}: {release.reason}", *_spent(release.ledger, save)]
    lines += [f"wrote {out}: {written} synthetic records"] if out else []
    lines += [f"wrote {save}: the release; try `pgmkit query {save} ...`"] if save else []
    lines += [f"wrote {page}: the report"] if page else []
    emit(
        {
            "mechanism": release.mechanism,
            "reason": release.reason,
            "ledger": release.ledger.to_dict(),
            "records": written,
            "out": out,
            "save": save,
            "report": page,
        },
        "\n".join(lines),
        json_out,
    )


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
    out: Path | None,
    save: Path | None,
    page: Path | None,
) -> int:
    """Write what was asked for; the number of records. What was paid for is kept if that fails."""
    import numpy as np

    from pgmkit.atomic_write import atomic_writer
    from pgmkit.errors import PgmkitError
    from pgmkit.tables.files import write_file

    saved = False
    try:
        if save is not None:
            release.save(save)
            saved = True
        synthetic: Any = ()
        if out is not None:
            draw = np.random.default_rng(rng)
            synthetic = release.codes(rows, seed=draw)
            write_file(out, release.schema.decode(synthetic, draw))
        if page is not None:
            from mechanisms.release.report import html

            with atomic_writer(page) as file:
                file.write(html(release).encode("utf-8"))
    except (OSError, PgmkitError) as error:
        if not saved:
            _rescue(release, error)
        raise
    return len(synthetic)


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
    from pgmkit.tables.files import names_of, read_frame

    names = names_of(path, schema.file)
    known = schema.restricted(names) if schema.columns.keys() & set(names) else schema
    return read_frame(path, known)
