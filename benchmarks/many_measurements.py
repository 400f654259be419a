"""Estimates from up to 200 measurements a clique beside an independent optimum of each problem.

    python -m benchmarks.many_measurements [--problems 1000] [--seed 0]

Every problem has two to five attributes of two to six values, up to five cliques of one to three
attributes, and of each clique 1 to 200 measurements: tables, single cells, prefixes, random rows,
products; with noise of 1 to 100 counts on 100 to 100,000 records, and structural zeros in a fifth
of the problems. The optimum is that of the interior points of ``clarabel`` on the joint
distribution written out. Prints how many estimates end within one noise unit (``model.unit``) of
it, which do not, whether each says so, and the CPU times. A problem's figures are appended to
``results/many_measurements.jsonl`` as it ends, and what is there is not run again.

Takes 1 CPU minutes.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from math import prod
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from benchmarks.common import RESULTS, command_line, table
from pgmkit import Domain, Measurement, Zeros, estimate
from pgmkit.linear.kronecker import Kronecker

Array = NDArray[np.float64]

HEADER = ("problems", "within 1 unit", "say so", "silent misses", "median s", "longest s")
LINES = RESULTS / "many_measurements.jsonl"


def problem(seed: int) -> tuple[Domain, list[Measurement], list[Zeros], float]:
    """A random domain, its measurements, zeros and total."""
    rng = np.random.default_rng(seed)
    names = "abcde"[: rng.integers(2, 6)]
    domain = Domain({name: int(rng.integers(2, 7)) for name in names})
    while prod(domain.shape(domain.attributes)) > 2500:
        domain = Domain({name: int(rng.integers(2, 5)) for name in names})
    shape = domain.shape(domain.attributes)
    possible = np.ones(shape, dtype=bool)
    zeros = []
    if rng.random() < 0.2:
        pair = tuple(rng.choice(list(names), 2, replace=False).tolist())
        allowed = rng.random(domain.shape(pair)) < 0.7
        allowed.reshape(-1)[0] = True
        zeros.append(Zeros(pair, allowed))
        possible &= zeros[0].within(domain, domain.attributes)
    total = float(np.round(10 ** rng.uniform(2, 5)))
    joint = rng.gamma(rng.choice([0.05, 0.3, 1.0]), size=shape) * possible + 1e-9 * possible
    joint *= total / joint.sum()
    measured = []
    for _ in range(rng.integers(1, 6)):
        size = int(rng.integers(1, min(3, len(names)) + 1))
        clique = tuple(rng.choice(list(names), size, replace=False).tolist())
        axes = tuple(i for i, name in enumerate(domain.attributes) if name not in clique)
        held = [name for name in domain.attributes if name in clique]
        counts = joint.sum(axis=axes).transpose([held.index(name) for name in clique]).reshape(-1)
        for _ in range(round(200 ** rng.random())):
            measured.append(_measured(rng, domain, clique, counts))
    return domain, measured, zeros, total


def _measured(
    rng: np.random.Generator, domain: Domain, clique: tuple[str, ...], counts: Array
) -> Measurement:
    cells, stddev = len(counts), float(10 ** rng.uniform(0, 2))
    matrix: Any = None
    match rng.integers(5):
        case 0:
            matrix = np.eye(cells)[[rng.integers(cells)]]
        case 1:
            matrix = np.tri(cells)[[rng.integers(cells)]]
        case 2:
            matrix = rng.choice([-1.0, 0.0, 1.0, 0.5], size=(int(rng.integers(1, 4)), cells))
        case 3:
            matrix = [np.tri(domain.sizes[name])[-2:] for name in clique]
    rows = matrix if not isinstance(matrix, list) else Kronecker(matrix).to_dense()
    answers = counts if rows is None else rows @ counts
    return Measurement(clique, answers + rng.normal(0, stddev, len(answers)), stddev, matrix)


def dense_problem(domain: Domain, measured: list[Measurement]) -> tuple[Array, Array]:
    """All rows over the joint's cells and all values, in units of the noise."""
    rows, values = [], []
    for m in measured:
        cells = domain.cell_map(domain.attributes, m.clique)
        size = domain.size(m.clique)
        matrix: Any = np.eye(size) if m.matrix is None else m.matrix
        matrix = matrix.to_dense() if isinstance(matrix, Kronecker) else matrix
        rows.append(matrix[:, cells] / m.stddev)
        values.append(m.values / m.stddev)
    return np.concatenate(rows), np.concatenate(values)


def optimum(
    domain: Domain, measured: list[Measurement], zeros: list[Zeros], total: float
) -> tuple[float, float]:
    """The least loss of any distribution of the total, by another solver: bounds from above and
    below.

    Its tables are made nonnegative and given the total, and its multipliers are a cut of the loss,
    so that both are what they say whatever the solver does.
    """
    import clarabel

    rows, values = dense_problem(domain, measured)
    possible = np.ones(domain.shape(domain.attributes), dtype=bool)
    for each in zeros:
        possible &= each.within(domain, domain.attributes)
    matrix = rows[:, possible.reshape(-1)] * total
    upper = np.linalg.qr(np.column_stack([matrix, values]), mode="r")
    reduced, right = upper[:, :-1], upper[:, -1]
    count, size = reduced.shape[1], len(reduced)
    # Variables are the shares p and the residuals r = R p - c; the objective is |r|^2 / 2.
    objective = scipy.sparse.diags_array(np.r_[np.zeros(count), np.ones(size)]).tocsc()
    constraints = scipy.sparse.vstack(
        [
            scipy.sparse.hstack([reduced, -scipy.sparse.eye_array(size)]),
            scipy.sparse.csc_array(np.r_[np.ones(count), np.zeros(size)][None, :]),
            scipy.sparse.hstack(
                [-scipy.sparse.eye_array(count), scipy.sparse.csc_array((count, size))]
            ),
        ]
    ).tocsc()
    cones = [clarabel.ZeroConeT(size + 1), clarabel.NonnegativeConeT(count)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs, settings.tol_gap_rel, settings.tol_feas = 1e-10, 1e-12, 1e-11
    solution = clarabel.DefaultSolver(
        objective, np.zeros(count + size), constraints, np.r_[right, 1.0, np.zeros(count)],
        cones, settings,
    ).solve()  # fmt: skip
    shares = np.maximum(np.array(solution.x)[:count], 0.0)
    shares /= shares.sum()
    residual = matrix @ shares - values
    above = float(residual @ residual) / 2
    # Fenchel: |r|^2 / 2 >= <u, r> - |u|^2 / 2 with u the residual, least at a single record.
    below = float((residual @ matrix).min()) - float(residual @ values) - above
    return above, below


def run(seed: int) -> dict[str, Any]:
    """One problem: both bounds of its optimum, and what the estimate says."""
    domain, measured, zeros, total = problem(seed)
    above, below = optimum(domain, measured, zeros, total)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        started = time.process_time()
        model = estimate(domain, measured, total=total, zeros=zeros)
        seconds = time.process_time() - started
    return {
        "seed": seed, "measurements": len(measured), "zeros": bool(zeros), "seconds": seconds,
        "above": above, "below": below, "loss": model.loss, "gap": model.gap, "unit": model.unit,
        "units off": (model.loss - above) / model.unit, "certified": model.certified,
        "warned": bool(caught), "stopped": model.stopped, "iterations": model.iterations,
    }  # fmt: skip


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    lines = [json.loads(line) for line in LINES.read_text().splitlines()] if LINES.exists() else []
    known = {line["seed"]: line for line in lines}
    seeds = range(arguments.seed, arguments.seed + arguments.problems)
    for seed in [each for each in seeds if each not in known]:
        known[seed] = run(seed)
        with LINES.open("a") as file:
            file.write(json.dumps(known[seed]) + "\n")
        if known[seed]["units off"] > 1 or not known[seed]["certified"]:
            print(known[seed], file=sys.stderr, flush=True)
    records = [known[seed] for seed in seeds]
    seconds = sorted(each["seconds"] for each in records)
    within = sum(each["units off"] <= 1 for each in records)
    said = sum(each["certified"] or each["warned"] for each in records)
    silent = sum(each["units off"] > 1 and not each["warned"] for each in records)
    row = [len(records), within, said, silent, seconds[len(seconds) // 2], seconds[-1]]
    print(table(HEADER, [row]))


if __name__ == "__main__":
    main()
