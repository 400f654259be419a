"""What storing a model's tables in float32 costs its fit, and what a search in float32 would save.

    python -m benchmarks.precision [--problems star wide]

Each estimation problem once in float64 and once with ``dtype=torch.float32``; the loss is that of
the marginals which the model answers, computed here, and not the one that it reports. The method
``accelerated``, which GPUs take, also searches from one start in float64; and in float32 as far as
it gets, passes included, and then in float64. Its steps are counted, and "goals" is the difference
of both losses in units of the gap that ends a search. Prints a table and writes
``results/precision.json``, where problems that are left out keep their figures.

Takes 0.4 CPU minutes.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from math import log
from time import perf_counter
from typing import Any

import torch

from benchmarks import problems
from benchmarks.common import command_line, machine, read_results, table, write_results
from pgmkit import Domain, Measurement, NotCertified, estimate
from pgmkit.contraction.buffers import ContractionBuffers
from pgmkit.estimation.methods import minimise
from pgmkit.estimation.model_size import cliques_of
from pgmkit.estimation.problem import Monitor, Problem
from pgmkit.estimation.request import Request
from pgmkit.estimation.start import best_start
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.losses import make_loss, statistics

HEADER = (
    "problem", "loss, float64", "loss, float32", "relative difference", "steps in float64",
    "steps in float32", "then in float64", "goals",
)  # fmt: skip


def row(name: str) -> list[str | float]:
    """Both losses of a problem."""
    problem = problems.load(name)
    measured = [
        Measurement(clique, values, problem.sigma)
        for clique, values in zip(problem.cliques, problem.values, strict=True)
    ]
    losses = []
    for dtype in (torch.float64, torch.float32):
        model = estimate(Domain(problem.domain), measured, total=problem.total, dtype=dtype)
        tables = model.marginals(problem.cliques)
        losses.append(problem.loss([tables[clique] for clique in problem.cliques]))
    return [name, *losses, losses[1] / losses[0] - 1, *searches(measured, problem)]


class Coarse(MarginalOracle):
    """An oracle whose passes are in its own type, with that type's range."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        tiny = torch.finfo(self.dtype).tiny
        self.safe_spread *= log(tiny) / log(torch.finfo(torch.float64).tiny)
        self.smallest, self.largest = tiny**0.5, tiny**-0.5

    @cached_property
    def buffers(self) -> ContractionBuffers:
        return ContractionBuffers(self.plan, self.device, self.dtype)


def searches(measured: list[Measurement], given: problems.Problem) -> list[float]:
    """The steps in float64 alone, those in float32 and the further ones in float64, and by how many
    goals of the search the second loss is above the first.
    """
    domain, tolerance = Domain(given.domain), estimate.__kwdefaults__["tolerance"]
    request = Request(domain, measured, given.total, "squared", "accelerated", tolerance)
    known = statistics(domain, request.used, "squared")

    def problem(dtype: torch.dtype) -> Problem:
        form = MarginalOracle if dtype == torch.float64 else Coarse
        oracle = form(domain, cliques_of(domain, known.measurements), dtype=dtype)
        loss = make_loss("squared", oracle.layout, known.measurements, dtype, oracle.device)
        return Problem(oracle, loss, given.total)

    def monitor(problem: Problem) -> Monitor:
        made = Monitor(problem, tolerance=tolerance, report=None, started=perf_counter())
        made.raise_bound(bound)
        return made

    bound, (double, single) = 0.0, map(problem, (torch.float64, torch.float32))
    with double.inference.session():
        first = monitor(double)
        start = best_start(double, first, request, known, (), None)
        bound = first.bound
        alone, coarse, then = monitor(double), monitor(single), monitor(double)
        minimise(double, start, alone, request.method)
        near = minimise(single, single.point(start.potentials.float()), coarse, request.method)
        minimise(double, double.point(near.potentials.double()), then, request.method)
    steps = [each.iterations for each in (alone, coarse, then)]
    return [*steps, (then.best_loss - alone.best_loss) / alone.goal]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--problems", nargs="+", choices=problems.NAMES, default=problems.NAMES)
    warnings.simplefilter("ignore", NotCertified)
    known = {each["problem"]: each for each in read_results("precision").get("rows", [])}
    for name in parser.parse_args().problems:
        known[name] = dict(zip(HEADER, row(name), strict=True))
        rows = [known[each] for each in problems.NAMES if each in known]
        write_results("precision", {"machine": machine(), "rows": rows})
    print(table(HEADER, [list(each.values()) for each in rows]))


if __name__ == "__main__":
    main()
