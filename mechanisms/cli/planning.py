"""`pgmkit schema draft`, `plan`, `mechanisms` and `compare`, which prepare a run and read no
private record: a first schema, what a run would do, and mechanisms side by side.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mechanisms.cli import options as cli
from mechanisms.cli import preflight
from mechanisms.registry import MECHANISMS, USUAL, configure
from pgmkit.errors import InvalidInput, naming
from pgmkit.runtime.printed import printable

if TYPE_CHECKING:
    from mechanisms.synthesis.auto import Choice
    from mechanisms.synthesis.comparing import Compared
    from mechanisms.synthesis.request import Request
    from pgmkit.records.dataset import Dataset
    from pgmkit.tables.schema import Schema

_WITHIN = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(%(?:\s*of\s+(\d+)(?:\s+rows)?)?)?", re.ASCII)


@click.group()
def schema() -> None:
    """Describe what each column may hold."""


@schema.command()
@click.argument("data", type=cli.FILE)
@click.option(
    "--assume-public",
    is_flag=True,
    help="Permission to look at values: the data are public, or made up by hand.",
)
@click.option("-o", "--out", help="File for the draft (YAML) [default: printed].")
@click.option(
    "--values",
    type=click.IntRange(2),
    default=50,
    help="Number of distinct texts above which a column is left open, to be found with a budget.",
)
@click.option(
    "--names", help="Columns of a CSV file without a header line, as age,sex,... in their order."
)
@cli.file_options
def draft(
    data: str, assume_public: bool, out: str | None, values: int, names: str | None, **given: Any
) -> None:
    """Propose a schema from public values, or from names alone.

    Looking at private values without a budget would leak them. Without --assume-public only the
    column names are read. Every column is then left open, so that its values are found with a
    budget, or left out if its name is that of an identifier.

    \b
    pgmkit schema draft sample.csv --assume-public -o people.yaml
    """
    preflight.check_form(data)
    target = None if out is None else preflight.writable(out)
    if target is not None and (target.exists() or target.suffix.lower() not in (".yaml", ".yml")):
        raise InvalidInput(
            f"--out must be a new file that ends in .yaml or .yml, got {out!r}: a draft is YAML "
            "with comments on what to check, and replaces no file that may be corrected by hand"
        )
    from pgmkit import FileFormat
    from pgmkit import draft as drafted

    named = None if names is None else tuple(name.strip() for name in names.split(","))
    form = cli.file_format(FileFormat(names=named), **given)
    text = drafted(data, look=assume_public, most_values=values, file=form)
    if target is None:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        if text.encode(encoding, "replace").decode(encoding) != text:
            raise InvalidInput(
                f"the draft has signs that this output's encoding, {encoding}, does not have; "
                "write it to a file, by -o people.yaml"
            )
        click.echo(printable(text))
        return
    cli.write_text(target, text)
    for line in text.splitlines():
        if line.lstrip().startswith("# "):
            click.echo(printable(line.lstrip()[2:]))
    click.echo(f"wrote {out}: read it through, correct ranges and values, then use it")


@click.command()
@cli.as_json
def mechanisms() -> None:
    """List the mechanisms that `synth --mechanism NAME` runs."""
    width = max(map(len, MECHANISMS))
    lines = [f"{entry.name:<{width}}  {entry.summary}" for entry in MECHANISMS.values()]
    cli.emit({entry.name: entry.summary for entry in MECHANISMS.values()}, "\n".join(lines))


@click.command()
@cli.schema_option
@click.option(
    "--rows",
    type=click.IntRange(1),
    default=50_000,
    help="Number of rows to plan for, with --unit those kept.",
)
@cli.request_options
@click.option(
    "--data-format",
    "data",
    type=cli.FILE,
    help="File whose format is checked as `synth` would: its column names are read, no values.",
)
@cli.target_options
@cli.ignore_extra_option
@cli.file_options
@cli.as_json
def plan(rows: int, **options: Any) -> None:
    """Show what a run would cost and keep; it reads no records.

    The mechanism runs on made-up records. The plan shows the split of the budget, the noise, the
    model's size and the time. Files that are named are checked as `synth` checks them before it
    spends anything.

    \b
    pgmkit plan --schema people.yaml --rows 50000 --mechanism aim --epsilon 1
    pgmkit plan --schema people.yaml --data-format people.csv --out synth.csv
    pgmkit plan --schema people.yaml --queries questions.txt --within "1%" --rows 50000
    """
    from mechanisms.synthesis.open_columns import assumed
    from mechanisms.synthesis.plan import plan as planned
    from mechanisms.synthesis.request import Request

    files = preflight.Files.taken_from(options)
    schema = cli.read_schema(files.schema, **{name: options.pop(name) for name in cli.FORMAT})
    settle_budget(options, rows)
    # Without --strict, `synth` spends a part of the budget on reporting values that it cannot read,
    # unless all columns' labels are still to be found. The plan includes that cost.
    unread = bool(preflight.asked_about(schema, True))
    request = Request(schema=schema, report_unread=unread, **options)
    preflight.check_run(request, files)
    choice = request.choice(assumed(schema), request.likely, rows)
    found = planned(
        choice.name,
        request.likely,
        request.budget.epsilon,
        request.delta,
        neighbours=request.neighbours,
        rows=rows,
        unit=request.unit,
        max_rows=request.max_rows,
        settings=choice.settings,
        accounting=request.budget.accounting,
    )
    found = replace(found, questions=request.planned)
    places = {name: column.place for name, column in request.placed.columns.items()}
    chosen = {"reason": choice.reason, "outside": places, "open": [*schema.unresolved]}
    lines = [f"{choice.name} for {rows:,} rows, because: {choice.reason}", str(found)]
    lines += _remarks(request, choice, rows)
    lines.append("values that the schema does not have are")
    lines += [f"  {name}: {place}" for name, place in places.items()]
    cli.emit(found.to_dict() | chosen, "\n".join(lines))


def _remarks(request: Request, choice: Choice, rows: int) -> Iterator[str]:
    """Yield, as lines of text, remarks on the budget, on charges that the plan leaves out, and on
    weak protection. `choice`: the mechanism that is planned, for `rows` rows.
    """
    from mechanisms.synthesis.pipeline import cautions
    from pgmkit.tables.draft.thresholds import BINS

    if request.within is not None:
        yield (
            f"epsilon = {request.budget.epsilon:.4g} is the least by which every answer is within "
            f"{request.within:g} records of the truth, each with a probability of 95%"
        )
    if request.schema.unresolved:
        yield (
            f"assumed: {BINS} values, or the bins asked for, in each open column: "
            f"{', '.join(request.schema.unresolved)}. Finding them takes a tenth of the budget "
            "first, which is not in this plan"
        )
    if request.mechanism == "auto" and choice.name == "aim":
        yield (
            "before that auto looks whether the columns depend on each other, for up to a "
            "fiftieth of the budget, which is not in this plan; where they do not, it takes "
            "independent"
        )
    for caution in cautions(request, rows):
        yield f"warning: {caution}"


def settle_budget(options: dict[str, Any], rows: int | None) -> None:
    """If --within is given, replace its text in `options` by a number of records, and epsilon by
    None, since epsilon follows from that number.

    `options`: the options of a command by name, which are changed in place. `rows`: the public
    number of rows, to which a percentage such as "1%" refers; None if it is private. Raises
    InvalidInput for a text that is neither a number nor a percentage, for a percentage of a private
    number of rows unless the text says of what ("1% of 50000"), and if --epsilon is given too.
    """
    text = options["within"]
    if text is None:
        return
    if cli.given("epsilon"):
        raise InvalidInput("give either --epsilon or --within, from which epsilon follows")
    found = _WITHIN.fullmatch(text.strip())
    if found is None:
        raise InvalidInput(
            f'--within {text!r} must be a number of records, or a percentage such as "1% of 50000"'
        )
    number, percent, of = float(found[1]), found[2], found[3]
    if percent:
        if of is None and rows is None:
            raise InvalidInput(
                f'--within {text!r}: the number of rows is private; write "{text} of 50000", with '
                "a public figure"
            )
        number *= float(of or rows or 0) / 100
    options.update(within=number, epsilon=None)


@click.command()
@cli.schema_option
@click.option(
    "--public", type=cli.FILE, help="File of public records to run on [default: made-up records]."
)
@click.option("--rows", type=click.IntRange(1), default=10_000, help="Number of made-up records.")
@click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    help="Mechanism by its name in `pgmkit mechanisms`; may be given several times [default: "
    f"{', '.join(USUAL)}].",
)
@click.option(
    "--workload",
    type=click.IntRange(1),
    default=2,
    help="Number of columns of the marginals to be answered well: 2 for all pairs.",
)
@cli.budget_options
@click.option("-o", "--out", help="File for an HTML page with the pictures.")
@cli.file_options
@cli.as_json
def compare(
    schema: str,
    public: str | None,
    rows: int,
    mechanisms: Sequence[str],
    workload: int,
    epsilon: float,
    delta: float,
    neighbours: str,
    out: str | None,
    **form: Any,
) -> None:
    """Compare mechanisms on made-up or on public records.

    Made-up records have the shape that the schema describes.

    Errors are exact: never give private records here. On made-up records the mechanisms may rank
    differently than on yours.

    \b
    pgmkit compare --schema people.yaml --epsilon 1 -o compare.html
    pgmkit compare --schema people.yaml --public sample.csv --mechanism mst --mechanism aim
    """
    if public is not None and cli.given("rows"):
        raise InvalidInput(f"--rows {rows} is about made-up records; leave it or --public out")
    preflight.check_form(public)
    target = None if out is None else preflight.page_file(out)
    from mechanisms.synthesis.comparing import compared, comparison
    from mechanisms.workload import k_way

    columns, names = cli.read_schema(schema, **form), mechanisms or USUAL
    data = _records(columns, public, rows)
    with naming("--workload"):  # the default of 2 is 1 for a single column
        wanted = k_way(data.domain, workload if cli.given("workload") else min(2, len(data.domain)))
    found = list(compared(names, data, wanted, epsilon, delta, neighbours=neighbours))
    kind = "made-up records of this shape" if public is None else f"records of {Path(public).name}"
    said = f"{len(data):,} {kind}; epsilon = {epsilon:g}, delta = {delta:g}, {neighbours}"
    if columns.constraints:
        cannot = ", ".join(name for name in names if not configure(name)[0].graphical)
        said += "; the schema's constraints are left out"
        said += f", and {cannot} cannot hold them" if cannot else ""
        held = () if public is None else zip(columns.constraints, columns.zeros, strict=True)
        for constraint, zeros in held:
            broken = int(data.marginal(zeros.clique)[~zeros.allowed].sum())
            said += f"; records that break the constraint ({constraint}): {broken:,}"
    lines = [f"on {said}; mean error of tables by their columns", *map(_line, found)]
    if target is not None:
        cli.write_text(target, comparison(found, len(data), said))
        lines.append(f"wrote {out}")
    values = {"records": len(data), "compared": [each.to_dict() for each in found], "out": out}
    cli.emit(values, "\n".join(lines))


def _line(found: Compared) -> str:
    if found.refused:
        return f"{found.mechanism:<20} refused: {found.refused}"
    errors = (f"{k}: {mean:7.2%}" for k, mean in found.to_dict()["mean"].items())
    return f"{found.mechanism:<20} {'   '.join(errors)}   {found.seconds:6.2f} s"


def _records(schema: Schema, public: str | None, rows: int) -> Dataset:
    """Return the public records coded by the schema, or made-up ones. Raises InvalidInput for
    public records if values or edges of a column are still to be found, and for a file without
    records.
    """
    import numpy as np

    from mechanisms.synthesis.open_columns import assumed
    from mechanisms.synthesis.plan import made_up

    if public is None:
        return made_up(assumed(schema).domain, rows, np.random.default_rng(0))
    if schema.unresolved:
        raise InvalidInput(
            f"values are not listed for {', '.join(schema.unresolved)}; describe these columns, "
            "or leave --public out for made-up records"
        )
    return preflight.public_records(public, schema.placed())
