"""`pgmkit estimate`, which makes a release of noisy tables from elsewhere, and `infer`, which
computes posteriors, a most probable record, or log Z of a factor graph in a file.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mechanisms.cli import options as cli
from mechanisms.cli.preflight import is_release, writable
from pgmkit.errors import Contradictory, InvalidInput, TotalUndetermined, check_known, without

if TYPE_CHECKING:
    from mechanisms.release.tabular import TableRelease
    from pgmkit import ApproximatePosterior, Posterior, Schema
    from pgmkit.factor_graph import FactorGraph, Inference
    from pgmkit.runtime.arrays import Array


@click.command()
@click.argument("tables", nargs=-1, required=True, type=cli.FILE)
@click.option(
    "--schema",
    type=cli.FILE,
    help="Schema file of the columns; its constraints hold in the model. A release has its own.",
)
@click.option("--out", required=True, help="File for the model.")
@click.option("--total", type=float, help="Number of records [default: as the tables imply].")
@click.option(
    "--stddev",
    type=float,
    help="Standard deviation of the noise in each cell, where the tables do not say.",
)
@click.option(
    "--rounding",
    type=click.IntRange(1),
    help="Whole number that published counts are rounded to multiples of; 1 for exact counts.",
)
@click.option("--value", help="The CSV column of noisy counts [default: the only other one].")
@click.option(
    "--inference",
    type=click.Choice(["exact", "region", "auto"]),
    help="Estimation on a junction tree (exact), by tables that agree with each other (region), or "
    "by such tables only where no tree fits (auto) [default: exact; auto for a release].",
)
@cli.device_option
@cli.as_json
def estimate(
    tables: tuple[str, ...],
    schema: str | None,
    out: str,
    total: float | None,
    inference: Inference | None,
    device: str | None,
    **reading: Any,
) -> None:
    """Fit one consistent model to noisy tables from elsewhere.

    TABLES are CSV files, a table each: some of the schema's columns with a label (or a range
    low..high) in each line, a column of noisy counts, and perhaps a column stddev. Or JSON: a list
    of {"columns": [...], "values": [...], "stddev": ...}, the values nested or flat in the order
    of the columns' values. Published tables are read too: suppressed cells (..), counts such as
    <10, totals, labels such as 65+, and tables with a column for each value. The model is a
    release: query, sample and report read it.

    TABLES may also be one release, such as `synth` saves of a run that did not end: a model is
    fitted to its noisy tables, at no cost to the budget.

    \b
    pgmkit estimate age-sex.csv sex-income.csv --stddev 5 --schema people.yaml --out model.pgm
    pgmkit estimate tables.json --schema people.yaml --out model.pgm
    pgmkit estimate rescued-1a2b3c4d.pgm --out people.pgm
    pgmkit query model.pgm "income | sex = F"
    pgmkit sample model.pgm --out records.csv
    """
    target = writable(out)
    if is_release(tables[0]):
        before = _release(tables, cli.given("schema", *reading))
        inference = inference or "auto"
    elif schema is None:
        raise InvalidInput(
            f"{tables[0]} is no release (it has another format, or it is cut off or damaged); "
            "noisy tables need the schema of their columns: --schema"
        )
    else:
        before = _of_tables(tables, cli.read_schema(schema), reading)
    release = _fitted(before, total, inference or "exact", device)
    release.save(target)
    model: Any = release.model  # graphical, or a region model
    left_out = [name for name in before.schema.columns if name not in release.schema.columns]
    lines = [f"wrote {out}: total {model.total:.6g}, loss {model.loss:.6g}, {model.certificate}"]
    if release.contradiction:
        lines.append(f"warning: {release.contradiction}")
    cli.emit(
        {
            "out": out,
            "total": model.total,
            "loss": model.loss,
            "gap": model.gap,
            "unit": model.unit,
            "certified": model.certified,
            "contradictory": bool(release.contradiction),
            "left_out": left_out,
        },
        "\n".join(lines),
    )


def _release(paths: Sequence[str], given: Sequence[str]) -> TableRelease:
    """Return the release in a file. Raises InvalidInput for further files, and for the options
    `given`, which are about tables.
    """
    from mechanisms.release.tabular import TableRelease

    if len(paths) > 1 or given:
        raise InvalidInput(
            f"{paths[0]} is a release, which has its own tables and schema; leave "
            f"{', '.join([*paths[1:], *given])} out"
        )
    return TableRelease.load(paths[0])


def _of_tables(paths: Sequence[str], schema: Schema, reading: Mapping[str, Any]) -> TableRelease:
    """Return a release of the noisy tables in these files, without a model. `reading`: the options
    of `read_noisy_tables`.
    """
    from mechanisms.release.record import Release
    from mechanisms.release.tabular import TableRelease
    from mechanisms.release.unfitted import Unfitted
    from pgmkit.tables.files.noisy_tables import read_noisy_tables

    measurements = [each for path in paths for each in read_noisy_tables(path, schema, **reading)]
    empty = Unfitted(schema.domain, None)
    return TableRelease(Release("estimate", empty, tuple(measurements), None, None), schema)


def _fitted(
    release: TableRelease, total: float | None, inference: Inference, device: str | None
) -> TableRelease:
    try:
        with without(Contradictory):  # it is reported after the file is written
            return release.estimated(total=total, inference=inference, device=device, progress=True)
    except TotalUndetermined as error:
        reason = str(error).partition("; pass total=")[0]
        raise InvalidInput(
            f"{reason}; give --total, or add a table with every cell of a column"
        ) from None


@click.command()
@click.argument("model", type=cli.FILE)
@click.option(
    "--evidence",
    multiple=True,
    metavar="NAME=STATE|FILE",
    help="An observation (a state's name or a code), or a UAI evidence file; several times.",
)
@click.option(
    "--marginal",
    "asked",
    multiple=True,
    metavar="A,B",
    help="A joint posterior [default: every variable by itself]; several times.",
)
@click.option(
    "--task",
    type=click.Choice(["MAR", "MAP", "PR"]),
    default="MAR",
    help="Posteriors, a most probable record, or log Z (log P(evidence)).",
)
@click.option(
    "--inference",
    type=click.Choice(["exact", "region", "auto"]),
    default="exact",
    help="Exact answers (exact), approximate ones with bounds on log Z (region), or approximate "
    "ones only where exact ones are too large (auto).",
)
@click.option("--max-seconds", type=float, help="Time for approximate answers [default: no limit].")
@click.option("--out", help="A UAI result file of the task.")
@cli.as_json
def infer(
    model: str,
    evidence: tuple[str, ...],
    asked: tuple[str, ...],
    task: str,
    inference: Inference,
    max_seconds: float | None,
    out: str | None,
) -> None:
    """Ask a factor graph or a Bayesian network.

    MODEL is a .uai file, or a .bif, .xml, .xmlbif or .bifxml file; one of the latter kinds may be
    compressed (.gz). Variables of UAI files are called x0, x1, ... in the order of the file.

    \b
    pgmkit infer model.uai --evidence model.uai.evid
    pgmkit infer alarm.bif --evidence HR=HIGH --marginal CO,BP
    pgmkit infer model.uai --evidence x3=1 --task MAP --out model.uai.MAP
    pgmkit infer large.uai --inference auto --task PR
    """
    if asked and task != "MAR":
        raise InvalidInput("--marginal goes with --task MAR")
    if asked and out is not None:
        raise InvalidInput("a MAR file holds every variable by itself; leave out --marginal")
    target = None if out is None else writable(out, evidence)
    from pgmkit import bif, uai

    graph = uai.read_model(model) if model.lower().endswith(".uai") else bif.read_bif(model)
    cliques = [tuple(name.strip() for name in each.split(",")) for each in asked]
    named = [name for clique in cliques for name in clique]
    check_known(named, graph.domain.sizes, "--marginal: there is no variable", "variables are")
    observed = _observed(graph, evidence)
    posterior = graph.posterior(observed, inference=inference, max_seconds=max_seconds)
    if task == "MAP":
        _emit_record(graph, posterior, target)
        return
    label, fields = _approximation(posterior)
    log_z = posterior.log_partition
    values: dict[str, Any] = {"log_partition": log_z}
    if task == "PR":
        if target is not None:
            uai.write_probability(log_z, target)
        lines = [f"log Z = {log_z:.12g} (log10: {log_z / math.log(10):.12g})"]
    else:
        found = posterior.marginals(cliques or None)
        if target is not None:
            uai.write_marginals(found.values(), target)
        values["marginals"] = {",".join(clique): own.tolist() for clique, own in found.items()}
        lines = [_written(graph, *each) for each in found.items()]
    cli.emit(values | fields, "\n".join([*label, *lines]))


def _written(graph: FactorGraph, clique: tuple[str, ...], table: Array) -> str:
    """Return the posterior marginal `table` over the clique as one line, such as "rain: no 0.8, yes
    0.2". States without names are written as their codes.
    """
    named = [graph.states.get(name, range(graph.domain.sizes[name])) for name in clique]
    cells = zip(itertools.product(*named), table.reshape(-1), strict=True)
    parts = (f"{' '.join(map(str, values))} {value:.6g}" for values, value in cells)
    return f"{','.join(clique)}: {', '.join(parts)}"


def _emit_record(
    graph: FactorGraph, posterior: Posterior | ApproximatePosterior, target: Path | None
) -> None:
    """Print a most probable record, and write it to a UAI result file unless `target` is None."""
    from pgmkit import uai
    from pgmkit.conditioning.evidence import Evidence

    record, score = posterior.map()
    codes = Evidence.of(graph.domain, graph.states, record, None).codes
    if target is not None:
        uai.write_map(codes.values(), target)
    named = {name: state for name, state in record.items() if name in graph.states}
    lines = [f"{name} = {state}" for name, state in record.items()]
    cli.emit({"record": codes, "states": named, "log_weight": score}, "\n".join(lines))


def _approximation(posterior: Posterior | ApproximatePosterior) -> tuple[list[str], dict[str, Any]]:
    """Return, for an approximate posterior, the line to print above its answers and the fields to
    add to the JSON output. Both are empty for an exact posterior.
    """
    from pgmkit.approximate.posterior import ApproximatePosterior

    if not isinstance(posterior, ApproximatePosterior):
        return [], {}
    lower, upper = posterior.log_partition_bounds
    state = "converged" if posterior.converged else f"not converged: {posterior.residual:.3g}"
    return [f"approximate ({state}); log Z between {lower:.12g} and {upper:.12g}"], {
        "approximate": True,
        "log_partition_bounds": [lower, upper],
        "converged": posterior.converged,
        "residual": posterior.residual,
        "iterations": posterior.iterations,
    }


def _observed(graph: FactorGraph, given: tuple[str, ...]) -> dict[str, Any]:
    """Return the code or the name of the state of each observed variable, from texts that are
    NAME=STATE or the name of a UAI evidence file.

    Raises InvalidInput for other texts, and for a variable that is observed twice.
    """
    from pgmkit import uai

    found: dict[str, Any] = {}
    for each in given:
        # A name may hold a sign "=" itself, such as "age>=65".
        named = [name for name in graph.domain if each.startswith(f"{name}=")]
        name = max(named, key=len, default=each.partition("=")[0])
        value = each[len(name) + 1 :]
        if "=" in each and not Path(each).exists():
            states = graph.states.get(name, ())
            number = value.isascii() and value.isdigit() and value not in states
            new: dict[str, Any] = {name: int(value) if number else value}
        elif Path(each).is_file():
            new = dict(uai.read_evidence(each, graph))
        else:
            raise InvalidInput(f"--evidence {each!r} is neither NAME=STATE nor a file")
        twice = [name for name in new if name in found]
        if twice:
            raise InvalidInput(f"--evidence observes {twice[0]!r} twice; observe it once")
        found |= new
    return found
