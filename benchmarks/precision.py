"""What storing a model's tables in float32 costs its fit.

    python -m benchmarks.precision [--problems star wide]

Each estimation problem once in float64 and once with ``dtype=torch.float32``; the loss is that of
the marginals which the model answers, computed here, and not the one that it reports. Prints a
table and writes ``results/precision.json``, where problems that are left out keep their figures.
"""

from __future__ import annotations

import argparse
import warnings

import torch

from benchmarks import problems
from benchmarks.common import machine, read_results, table, write_results
from pgmkit import Domain, Measurement, NotCertified, estimate

HEADER = ("problem", "loss, float64", "loss, float32", "relative difference")


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
    return [name, *losses, losses[1] / losses[0] - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Losses of models in float64 and float32.")
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
