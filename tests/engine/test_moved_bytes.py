"""The table of docs/gpu.md: what a pass and a step move beside the least, by the pretend GPU.

PYTHONPATH=.:tests python tests/engine/test_moved_bytes.py     # prints the table
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from pretend_device import PretendGpu, pretend_gpu

from benchmarks import problems
from benchmarks.first_contact_steps import known
from pgmkit import Domain, Measurement
from pgmkit.estimation.device_search import MeasuredObjective
from pgmkit.estimation.model_size import cliques_of
from pgmkit.estimation.problem import Problem
from pgmkit.estimation.start import uniform
from pgmkit.estimation.tensor_steps import Steps, start_at
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.losses import MeasuredLoss, make_loss

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
LARGE = {
    "1000 x 1000": ({"a": 1000, "b": 1000}, [("a", "b")]),
    "1000 x 1000 and 1000": (
        {"a": 1000, "b": 1000},
        [("a", "b"), ("a",)],
    ),
    "100 x 100 x 100": ({"a": 100, "b": 100, "c": 100, "d": 3}, [("a", "b", "c"), ("c", "d")]),
}
NAMES = (*LARGE, "triangle", "tree", "dense", "wide")


def row(name: str, loss: str = "squared", ratio: float = 1.0) -> str:
    """A line of the table: tables measured whole, float64. The standard deviation of each table is
    ``ratio`` times that of the one before it.
    """
    if name in LARGE:
        sizes, cliques = LARGE[name]
    else:
        problem = problems.load(name)
        sizes, cliques = problem.domain, list(problem.cliques)
    domain, rng = Domain(sizes), np.random.default_rng(0)
    noisy = [
        Measurement(c, rng.random(domain.size(c)) * 100, 5.0 * ratio**i)
        for i, c in enumerate(cliques)
    ]
    with pretend_gpu() as gpu, torch.no_grad():
        oracle = MarginalOracle(domain, cliques_of(domain, noisy), device="cuda")
        made = make_loss(loss, oracle.layout, noisy, torch.float64, torch.device("cuda"))
        assert isinstance(made, MeasuredLoss)
        problem = Problem(oracle, made, 500.0)
        objective = MeasuredObjective(problem, made)
        # Read each potential once, write each marginal once.
        cells, all_cells = (
            oracle.layout.cells,
            sum(map(oracle.plan.cells, range(len(oracle.plan.axes)))),
        )
        least = 2 * 8 * cells
        # Without a cache: potentials are read upwards and downwards; a value that is computed is
        # written, read in both directions, and has an adjoint, which is written and read.
        of_plan = 8 * (3 * cells + 5 * (all_cells - cells)) / least
        with oracle.session():
            start = objective.at(problem.point(uniform(oracle)))
            steps = Steps(objective, start_at(objective, start))
            for _ in range(3):  # makes the buffers
                steps()
            of_pass = counted(gpu, lambda: oracle.try_marginals(start.potentials, 500.0), least)
            of_step = counted(gpu, steps, least)
            held = gpu.peak_bytes / 1e6
    return f"| {name} | {cells:,} | {held:.1f} | {of_plan:.1f} | {of_pass} | {of_step} |"


def counted(gpu: PretendGpu, work: object, least: int) -> str:
    assert callable(work)
    gpu.reset()
    work()
    return f"{gpu.moved_bytes / least:.1f} | {gpu.launches}"


@pytest.mark.parametrize("name", NAMES)
def test_the_page_says_what_is_moved(name: str) -> None:
    if name not in LARGE and not known((name,)):
        pytest.skip("the estimation problems are not at hand")
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    found = row(name)
    of_plan, of_pass = (float(found.split("|")[column]) for column in (4, 5))
    # To store exponentials, tables are read for their peaks, read again, and written.
    assert of_pass <= 1.52 * (of_plan + 1.5 * (name not in LARGE))
    assert found in lines, "run PYTHONPATH=.:tests python tests/engine/test_moved_bytes.py"


def test_a_step_moves_a_large_table_24_times_for_every_penalty() -> None:
    """And 26 times if standard deviations differ."""
    steps = [row("100 x 100 x 100", *given).split("|")[-3] for given in (("huber",), ("huber", 2))]
    assert [2 * float(each) for each in steps] == [24, 26]


if __name__ == "__main__":
    for each in NAMES:
        print(row(each))
