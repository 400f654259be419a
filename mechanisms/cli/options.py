"""Parts that several commands share: options, settings, what is printed or written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pgmkit.errors import InvalidInput
from pgmkit.runtime.atomic_write import atomic_writer
from pgmkit.runtime.printed import printable
from pgmkit.tables.files.formats import WRITTEN

if TYPE_CHECKING:
    from pgmkit import FileFormat, Schema

Command = Callable[..., None]
FILE = click.Path(exists=True, dir_okay=False)
"""The type of options that name a file to be read."""


def _together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds several options to a command, in this order."""

    def decorated(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


class _SchemaFile(click.Path):
    """The path of a schema. If the option is left out, the error says how to make a schema."""

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        return (
            "It says what each column may hold. A first one, from public data or made-up rows: "
            "pgmkit schema draft FILE --assume-public -o people.yaml"
        )


budget_options = _together(
    click.option(
        "--epsilon", type=float, default=1.0, help="Privacy budget: smaller protects more."
    ),
    click.option(
        "--delta",
        type=float,
        default=1e-9,
        help="Probability of a failure of the promise, well below 1/rows; 0 for pure differential "
        "privacy (Laplace noise).",
    ),
    click.option(
        "--neighbours",
        type=click.Choice(["add/remove", "replace-one"]),
        default="add/remove",
        help="Change that is hidden: a row more or less (the number of rows is private), or a row "
        "replaced by another (the number of rows is public; noise is larger).",
    ),
)


def _settings(_context: click.Context, _option: click.Parameter, given: Sequence[str]) -> Any:
    """Return the settings in texts NAME=VALUE by name. A value is parsed as JSON or, if it is no
    JSON, kept as text. Raises InvalidInput for another form, and for a name given twice.
    """
    found: dict[str, Any] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals or not name:
            raise InvalidInput(f"--set {each!r} must be NAME=VALUE, such as model_mb=10")
        if name in found:
            raise InvalidInput(f"--set gives {name!r} twice; give it once")
        try:
            found[name] = json.loads(text)
        except json.JSONDecodeError:
            found[name] = text
    return found


settings_option = click.option(
    "--set",
    "settings",
    multiple=True,
    callback=_settings,
    metavar="NAME=VALUE",
    help="Setting of the mechanism, such as model_mb=10; may be given several times.",
)
"""--set, which a command receives as `settings`."""


def _questions(_context: click.Context, _option: click.Parameter, path: str | None) -> Any:
    """Return the questions in a file, its lines without empty ones and those that begin with #;
    None without a file. Raises InvalidInput for a file that is not UTF-8 or has no questions.
    """
    if path is None:
        return None
    try:
        # An editor may have added a byte order mark.
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(f"--queries {path} is not a text file in UTF-8") from None
    lines = [line.strip() for line in text.splitlines()]
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise InvalidInput(f"--queries {path} has no questions; write one a line")
    return found


def given(*names: str) -> list[str]:
    """Return a list of the options among `names` that the command line of the running command has,
    as it writes them: "--max-rows" for the name "max_rows".
    """
    source = click.get_current_context().get_parameter_source
    default = click.core.ParameterSource.DEFAULT
    return [f"--{name.replace('_', '-')}" for name in names if source(name) is not default]


accounting_option = click.option(
    "--accounting",
    type=click.Choice(["zcdp", "gaussian"]),
    help="How costs add up: gaussian has less noise, but selections cost more [default: gaussian "
    "for mechanisms that only measure and for auto, but not that of synth-linked; else zcdp].",
)
request_options = _together(
    click.option(
        "--mechanism", default="auto", help="Mechanism by its name in `pgmkit mechanisms`, or auto."
    ),
    settings_option,
    click.option(
        "--workload",
        type=click.IntRange(1),
        help="Number of columns of the marginals to be answered well  [default: 2, all pairs].",
    ),
    click.option(
        "--queries",
        type=FILE,
        callback=_questions,
        help="File of questions to be answered well, one a line, as `pgmkit query` has them; in "
        "place of --workload and --target.",
    ),
    click.option(
        "--within",
        metavar="RECORDS",
        help="Error that every answer to --queries keeps with a probability of 95%, in place of "
        '--epsilon, which follows: 500, or "1% of 50000".',
    ),
    click.option("--target", help="Column to be predicted later: its marginals get more weight."),
    accounting_option,
    budget_options,
    click.option(
        "--unit",
        help="Column with the unit of each row (a person, a household): all rows of a unit are "
        "protected together. It is not released.",
    ),
    click.option(
        "--max-rows",
        type=click.IntRange(1),
        help="Number of rows of each unit that are used; noise grows with it.",
    ),
)
"""The options of a run: mechanism, budget and unit."""
target_options = _together(
    click.option("--out", help=f"File for the synthetic records ({', '.join(WRITTEN)})."),
    click.option("--save", help="New file for the release: model, noisy tables, ledger."),
    click.option("--report", help="File for an HTML report (see `pgmkit report`)."),
)
file_options = _together(
    click.option("--encoding", help="Encoding of a CSV file, such as cp1252 [default: utf-8]."),
    click.option(
        "--separator", help="Separator of a CSV file's values [default: as its header shows]."
    ),
    click.option("--decimal", help='Decimal sign of numbers in texts, "." or "," [default: "."].'),
    click.option(
        "--skip-lines",
        type=click.IntRange(0),
        help="Number of lines of a CSV file, or rows of a sheet, above the header [default: 0].",
    ),
    click.option("--sheet", help="Sheet of an Excel file by its name [default: the first]."),
)
FORMAT = ("encoding", "separator", "decimal", "skip_lines", "sheet")
"""The names of the options that `file_options` adds."""


as_json = click.option(
    "--json",
    "json_out",
    is_flag=True,
    expose_value=False,
    callback=lambda context, _, json_out: setattr(context, "obj", json_out),
    help="JSON instead of text.",
)
"""--json, which a command does not receive: `emit` looks it up."""


device_option = click.option(
    "--device",
    help="Device that computes models: cpu, a CUDA GPU (cuda, cuda:1), or auto, a GPU if "
    "there is one and it gains [default: cpu].",
)


schema_option = click.option(
    "--schema",
    required=True,
    type=_SchemaFile(exists=True, dir_okay=False),
    help="Schema file (YAML or JSON): what each column may hold; or sizes alone, "
    '{"age": 10, "sex": 2}, for columns of codes.',
)


safe_csv_option = click.option(
    "--safe-csv",
    is_flag=True,
    help="Single quote before texts and names that a spreadsheet would run, such as =cmd.",
)


yes_option = click.option(
    "--yes",
    is_flag=True,
    help="Consent to go on if more than a tenth of a column cannot be read, or all is missing.",
)
"""--yes, which answers the question of `asked_about` before it is asked."""


ledger_option = click.option(
    "--ledger",
    type=FILE,
    help="Ledger of the data across runs, which `pgmkit ledger FILE --create` began.",
)


ignore_extra_option = click.option(
    "--ignore-extra-columns",
    is_flag=True,
    help="Columns that the schema does not have are ignored.",
)


def _insecure(_context: click.Context, _option: click.Parameter, seed: int | None) -> Any:
    if seed is None:
        return None
    from numpy.random import default_rng

    warn("--seed makes the noise predictable; do not publish this")
    return default_rng(seed)


seed_option = click.option(
    "--seed",
    type=click.IntRange(0),
    callback=_insecure,
    help="Seed of reproducible noise: INSECURE, for tests and simulations only.",
)


allow_modified_option = click.option(
    "--allow-modified",
    is_flag=True,
    help="Permission to read a file whose checksum is wrong; all answers are marked INSECURE.",
)


def write_text(path: str | Path, text: str) -> None:
    """Write a text to a file in UTF-8; the file has the whole text or is not changed at all."""
    with atomic_writer(path) as file:
        file.write(text.encode("utf-8"))


def warn(message: str) -> None:
    """Show a warning as one line on stderr."""
    click.echo(f"warning: {printable(message)}", err=True)


def emit(values: Mapping[str, Any], text: str, caution: str = "") -> None:
    """Print the values as JSON if the command was given --json, and otherwise the text. JSON has
    null for numbers that are not finite. `caution`: the warning of an insecure release, or an empty
    text. It is printed too: in JSON as the field "INSECURE", and below the text except for lines
    that the text has already.
    """
    if click.get_current_context().obj:
        marked = {**values, **({"INSECURE": caution} if caution else {})}
        written = json.dumps(marked, default=lambda each: getattr(each, "tolist", each.__str__)())
        click.echo(json.dumps(json.loads(written, parse_constant=lambda _constant: None), indent=2))
    else:
        lines = text.splitlines()
        said = [line for line in caution.splitlines() if line not in lines]
        click.echo(printable("\n".join([text, *said])))


def read_schema(path: str, **given: Any) -> Schema:
    """Return the schema in a file. The options `given`, by their names in `FORMAT`, override what
    the schema says of the format of the data's file.
    """
    from pgmkit.tables.schema import Schema

    found = Schema.load(path)
    return found.of_file(file_format(found.file, **given))


def file_format(form: FileFormat, **given: Any) -> FileFormat:
    """Return the format of a data file, changed by the options `given`, which have the names in
    `FORMAT`; an option that is None changes nothing. The separators `tab` and \\t stand for a tab.
    """
    named = {name: value for name, value in given.items() if value is not None}
    if named.get("separator") in ("tab", "\\t"):
        named["separator"] = "\t"
    return replace(form, **named)


def written(out: str, records: int) -> str:
    """Return the line that says how many records were written to `out`."""
    return f"wrote {out}: {records} synthetic record{'s' * (records != 1)}"
