"""The work that ``benchmarks.gpu`` times on a device, one job a process."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.common import serve

Work = Callable[[], object]


def copy_bandwidth(request: dict[str, Any]) -> dict[str, Any]:
    """Copies within the device's memory, read and write counted, least of ten."""
    source = torch.ones(request["bytes"] // 8, dtype=torch.float64, device=request["device"])
    target = torch.empty_like(source)
    seconds = least(lambda: target.copy_(source), request["device"], 10)
    return {
        "card": gpu(request["device"]),
        "torch": torch.__version__,
        "copy_gb_per_second": 2 * request["bytes"] / seconds / 1e9,
    }


def clique(request: dict[str, Any]) -> dict[str, Any]:
    """A pass of a clique of so many cells with a pair and a single beside it.

    What it must move at least is the potentials, read once, and the marginals, written once.
    """
    from pgmkit import Domain
    from pgmkit.inference.marginal_oracle import MarginalOracle

    side = round(request["cells"] ** (1 / 3))
    domain = Domain({"a": side, "b": side, "c": side, "d": 10})
    cliques = [("a", "b", "c"), ("c", "d")]
    oracle = MarginalOracle(domain, cliques, device=request["device"])
    potentials = torch.zeros(oracle.layout.cells, dtype=torch.float64, device=request["device"])
    with oracle.session():
        seconds = least(lambda: oracle.try_marginals(potentials), request["device"], 5)
    return {"seconds": seconds, "moved_gb": 16 * oracle.layout.cells / 1e9}


def passes(request: dict[str, Any]) -> dict[str, Any]:
    """A pass of a stored problem's structure, alone and for so many sets of potentials."""
    from benchmarks import problems
    from pgmkit import Domain
    from pgmkit.estimation.batches.oracle import BatchedOracle
    from pgmkit.inference.marginal_oracle import MarginalOracle

    problem = problems.load(request["name"])
    oracle = MarginalOracle(Domain(problem.domain), problem.cliques, device=request["device"])
    device, count = request["device"], request["batch"]
    sets = torch.zeros(count, oracle.layout.cells, dtype=torch.float64, device=device)
    totals = torch.ones(count, dtype=torch.float64, device=device)
    many = BatchedOracle(oracle, count)

    def work() -> object:
        if count == 1:
            return oracle.try_marginals(sets[0])
        return many.begin_marginals(sets, totals)

    with oracle.session():
        return {"seconds": least(work, device, 5) / count}


def steps(request: dict[str, Any]) -> dict[str, Any]:
    """A step of the search for a stored problem's model, captured where that can be."""
    from benchmarks import problems
    from pgmkit import Domain, Measurement
    from pgmkit.estimation.device_search import MeasuredObjective
    from pgmkit.estimation.problem import Problem
    from pgmkit.estimation.start import uniform
    from pgmkit.estimation.tensor_steps import Steps, start_at
    from pgmkit.inference.marginal_oracle import MarginalOracle
    from pgmkit.losses import MeasuredLoss, make_loss

    given, device = problems.load(request["name"]), torch.device(request["device"])
    measured = [
        Measurement(clique, y, given.sigma)
        for clique, y in zip(given.cliques, given.values, strict=True)
    ]
    oracle = MarginalOracle(Domain(given.domain), given.cliques, device=device)
    with oracle.session():
        loss = make_loss("squared", oracle.layout, measured, torch.float64, device)
        assert isinstance(loss, MeasuredLoss)
        problem = Problem(oracle, loss, given.total)
        objective = MeasuredObjective(problem, loss)
        first = start_at(objective, objective.at(problem.point(uniform(oracle))))
        taken = Steps(objective, first)
        for _ in range(30):
            taken()
        return {"seconds": least(taken, request["device"], 10)}


def sampling(request: dict[str, Any]) -> dict[str, Any]:
    """So many records of a chain of 20 attributes of 20 values, brought to the processor."""
    from pgmkit import Domain, Factor, GraphicalModel

    rng = np.random.default_rng(0)
    domain = Domain({f"x{i}": 20 for i in range(20)})
    made = []
    for pair in itertools.pairwise(domain):
        values = torch.tensor(rng.normal(size=(20, 20)), device=request["device"])
        made.append(Factor(domain.project(pair), values))
    model = GraphicalModel(domain, tuple(made), total=1.0)
    return {"seconds": least(lambda: model.sample(request["rows"], rng=0), request["device"], 2)}


def release(request: dict[str, Any]) -> dict[str, Any]:
    """A release of the built-in census by a mechanism, from its call to its end."""
    from mechanisms.datasets.census import census
    from mechanisms.dispatch import run
    from mechanisms.registry import configure
    from mechanisms.workload import k_way

    data = census(request["rows"])
    workload = k_way(data.domain, 2)
    chosen = configure(request["mechanism"], **request["settings"], device=request["device"])[1]

    def work() -> object:
        return run(
            chosen, data, workload, request["epsilon"], 1e-6, neighbours="replace-one", seed=0
        )

    return {"seconds": least(work, request["device"], 2)}


def search(request: dict[str, Any]) -> dict[str, Any]:
    """An estimate of noisy pairs along a cycle or a chain of attributes with so many values.

    A chain is solved in one step, a cycle in tens or hundreds. ``multiplications`` are those of a
    pass, by which ``device="auto"`` chooses.
    """
    from pgmkit import Dataset, Domain, Measurement, estimate
    from pgmkit.contraction.order import plan

    rng, values, rows = np.random.default_rng(0), request["values"], 100_000
    domain = Domain(dict.fromkeys("abcd", values))
    kinds = rng.random((3, len(domain)))[rng.integers(0, 3, rows)]
    records = dict(zip(domain, rng.binomial(values - 1, kinds).T, strict=True))
    pairs = [("a", "b"), ("b", "c"), ("c", "d")] + [("a", "d")] * (request["shape"] == "cycle")
    noisy = [
        Measurement(pair, table + rng.normal(0, 20.0, table.shape), 20.0)
        for pair, table in Dataset(domain, records).marginals(pairs).items()
    ]
    models = []

    def work() -> None:
        models.append(estimate(domain, noisy, total=rows, device=request["device"]))

    return {
        "seconds": least(work, request["device"], 2),
        "iterations": models[-1].iterations,
        "loss": models[-1].loss,
        "multiplications": plan(pairs, (), domain.sizes).cost,
    }


def histogram(request: dict[str, Any]) -> dict[str, Any]:
    """An update of every cell of a pair and all pairs' tables, of so many Boolean attributes."""
    from mechanisms.families.histogram import FullDomain, Histogram
    from mechanisms.queries.cells import Cell
    from pgmkit import Domain

    domain = Domain({f"x{i}": 2 for i in range(request["attributes"])})
    support = FullDomain(domain)
    held = Histogram(support, np.ones(support.shape), torch.device(request["device"]))
    pairs = list(itertools.combinations(domain, 2))

    def work() -> None:
        for index in range(4):
            held.scale(Cell(pairs[0], index), 1.1)
        held.tables(pairs)

    return {"seconds": least(work, request["device"], 3)}


def counting(request: dict[str, Any]) -> dict[str, Any]:
    """All pairs of so many rows of 13 columns; the rows lie on the device already."""
    from benchmarks.counting import ADULT
    from pgmkit import Dataset, Domain

    rng = np.random.default_rng(0)
    columns = {name: rng.integers(0, n, request["rows"]) for name, n in ADULT.items()}
    data = Dataset(Domain(ADULT), columns).on(request["device"])
    pairs = list(itertools.combinations(ADULT, 2))
    return {"seconds": least(lambda: data.marginals(pairs), request["device"], 3)}


def least(work: Work, device: str, calls: int) -> float:
    """The least wall time of some calls after a first one, each waited for."""
    work()
    wait(device)
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        work()
        wait(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def wait(device: str) -> None:
    """Until the device has done all it was given."""
    if device != "cpu":
        torch.cuda.synchronize()


def gpu(device: str) -> str:
    """The device's name."""
    return "the processor" if device == "cpu" else torch.cuda.get_device_name()


JOBS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    each.__name__: each
    for each in (
        copy_bandwidth,
        clique,
        passes,
        steps,
        search,
        release,
        histogram,
        counting,
        sampling,
    )
}

if __name__ == "__main__":
    serve(lambda request: JOBS[request["job"]](request))
