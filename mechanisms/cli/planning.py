"""`pgmkit plan` and `mechanisms`: the mechanisms there are, and what a run would do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from mechanisms.cli import options as cli
from mechanisms.cli.consent import asked_about
from mechanisms.cli.preflight import Files, preflight
from pgmkit.errors import InvalidInput

if TYPE_CHECKING:
    from mechanisms.synthesis.auto import Choice
    from mechanisms.synthesis.request import Request


_WITHIN = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(%(?:\s*of\s+(\d+)(?:\s+rows)?)?)?", re.ASCII)


@click.command()
@cli.as_json
def mechanisms() -> None:
    """List the mechanisms that `synth --mechanism NAME` runs."""
    from mechanisms.registry import MECHANISMS

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

    files = Files.taken_from(options)
    schema = cli.read_schema(files.schema, **{name: options.pop(name) for name in cli.FORMAT})
    settle_budget(options, rows)
    # Without --strict, `synth` spends a part of the budget on reporting values that it cannot read,
    # unless all columns' labels are still to be found. The plan includes that cost.
    request = Request(schema=schema, report_unread=bool(asked_about(schema, True)), **options)
    preflight(request, files)
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
    from mechanisms.synthesis.cautions import cautions
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
