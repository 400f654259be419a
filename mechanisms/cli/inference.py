"""The command `pgmkit infer`, which reads a factor graph from a file and computes its posteriors,
a most probable record, or log Z.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mechanisms.cli.options import FILE, as_json, emit, writable
from pgmkit.errors import InvalidInput, check_known

if TYPE_CHECKING:
    from pgmkit import ApproximatePosterior, Posterior
    from pgmkit.factor_graph import FactorGraph, Inference
    from pgmkit.runtime.arrays import Array


@click.command()
@click.argument("model", type=FILE)
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
@as_json
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
    target = None if out is None else writable(out, evidence)
    from pgmkit import bif, uai

    graph = uai.read_model(model) if model.lower().endswith(".uai") else bif.read_bif(model)
    observed = _observed(graph, evidence)
    posterior = graph.posterior(observed, inference=inference, max_seconds=max_seconds)
    if task != "MAR":
        if asked:
            raise InvalidInput("--marginal goes with --task MAR")
        _emit_number(graph, posterior, task, target)
        return
    cliques = [tuple(name.strip() for name in each.split(",")) for each in asked]
    if cliques and target is not None:
        raise InvalidInput("a MAR file holds every variable by itself; leave out --marginal")
    named = [name for clique in cliques for name in clique]
    check_known(named, graph.domain.sizes, "--marginal: there is no variable", "variables are")
    found = posterior.marginals(cliques or None)
    if target is not None:
        uai.write_marginals(found.values(), target)
    listed = {",".join(clique): table.tolist() for clique, table in found.items()}
    label, fields = _approximation(posterior)
    lines = [*label, *(_written(graph, *each) for each in found.items())]
    emit({"log_partition": posterior.log_partition, "marginals": listed} | fields, "\n".join(lines))


def _written(graph: FactorGraph, clique: tuple[str, ...], table: Array) -> str:
    """Return the posterior marginal `table` over the clique as one line, such as "rain: no 0.8, yes
    0.2". States without names are written as their codes.
    """
    named = [graph.states.get(name, range(graph.domain.sizes[name])) for name in clique]
    cells = zip(itertools.product(*named), table.reshape(-1), strict=True)
    parts = (f"{' '.join(map(str, values))} {value:.6g}" for values, value in cells)
    return f"{','.join(clique)}: {', '.join(parts)}"


def _emit_number(
    graph: FactorGraph, posterior: Posterior | ApproximatePosterior, task: str, target: Path | None
) -> None:
    from pgmkit import uai
    from pgmkit.conditioning.evidence import Evidence

    if task == "PR":
        value = posterior.log_partition
        if target is not None:
            uai.write_probability(value, target)
        label, fields = _approximation(posterior)
        lines = [*label, f"log Z = {value:.12g} (log10: {value / math.log(10):.12g})"]
        emit({"log_partition": value} | fields, "\n".join(lines))
        return
    record, score = posterior.map()
    codes = Evidence.of(graph.domain, graph.states, record, None).codes
    if target is not None:
        uai.write_map(codes.values(), target)
    named = {name: state for name, state in record.items() if name in graph.states}
    lines = [f"{name} = {state}" for name, state in record.items()]
    emit({"record": codes, "states": named, "log_weight": score}, "\n".join(lines))


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
