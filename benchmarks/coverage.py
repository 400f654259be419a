"""Coverage of the error bars on ADULT, on rows drawn from a model, and on random structures.

    python -m benchmarks.coverage [--draws 5] [--only adult spread intervals] [--sets 200]
    python -m benchmarks.coverage --report

Spread: on 200 random structures (``benchmarks.redrawn``) the stated standard error of what was not
measured, over the real one of ``--sets`` data sets with fresh noise. Intervals: on 20 others
the share of true answers that the 95% intervals of as many data sets hold. Each structure's line
goes to ``results/coverage.jsonl`` as soon as it is done, and what is there with as many data sets
is not run again.

Adult: each case measures some marginals of a table with fresh Gaussian noise, estimates a model,
asks for 95% intervals of every cell, and counts how many hold the truth. Measured marginals: the
truth is the table. Unmeasured pairs: the *projection* (the model that noiseless measurements give)
and the table itself, from which the model's bias is not covered. Prints a table and
writes ``results/coverage.json``.

Takes more than 170 s.
"""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np

from benchmarks import adult, redrawn
from benchmarks.common import RESULTS, code_state, command_line, machine, table, write_results
from benchmarks.marginals import chosen_cliques
from mechanisms import run
from mechanisms.workload import k_way
from pgmkit import Dataset, Domain, Measurement, error_bars, estimate
from pgmkit.model import GraphicalModel

Clique = tuple[str, ...]
Fit = Callable[[int], tuple[GraphicalModel, list[Measurement]]]

SIGMA = 25.0
REPLICATES = 50
STRUCTURES = 200
LINES = RESULTS / "coverage.jsonl"
FIGURE = {"spread": "ratio", "intervals": "covered"}
AWAY = 3.0
"""Standard deviations; a structure whose least noiseless value is larger is away from zero."""
SLACK = 1e-3
"""Counts; a model gives a cell that is zero in the table a little more than zero."""
SIZES = {
    "0": (-1.0, 0.0),
    "to s/2": (0.0, 0.5),
    "to 2s": (0.5, 2.0),
    "to 10s": (2.0, 10.0),
    "above": (10.0, np.inf),
}
HEADER = (
    "case",
    "cells",
    "truth",
    "all",
    *SIZES,
    "estimate >= s",
    "width / s",
    "error bars s",
    "queries s",
)


@dataclass(frozen=True)
class Cells:
    """What one draw of noise gave: flat arrays over the cells of some marginals, in counts."""

    inside: dict[str, np.ndarray]
    estimate: np.ndarray
    truth: dict[str, np.ndarray]
    width: np.ndarray
    noise: np.ndarray


def gaussian_fit(data: Dataset, cliques: Sequence[Clique]) -> Fit:
    def fit(seed: int) -> tuple[GraphicalModel, list[Measurement]]:
        rng = np.random.default_rng(seed)
        noisy = [
            Measurement(c, counts + rng.normal(0, SIGMA, counts.shape).round(), SIGMA)
            for c, counts in data.marginals(cliques).items()
        ]
        return estimate(data.domain, noisy, total=len(data)), noisy

    return fit


def mechanism_fit(data: Dataset) -> Fit:
    def fit(seed: int) -> tuple[GraphicalModel, list[Measurement]]:
        pairs = k_way(data.domain, 2)
        delta = 1 / len(data) ** 2
        release = run("mwem+pgm", data, pairs, 1.0, delta, neighbours="replace-one", seed=seed)
        assert isinstance(release.model, GraphicalModel)
        return release.model, list(release.measurements)

    return fit


def one_draw(data: Dataset, fit: Fit, seed: int) -> tuple[dict[str, Cells], dict[str, float]]:
    model, noisy = fit(seed)
    exact = [Measurement(m.clique, data.marginal(m.clique), m.stddev) for m in noisy]
    projection = estimate(data.domain, exact, total=len(data), tolerance=0.01)
    started = time.perf_counter()
    bars = error_bars(model, noisy, replicates=REPLICATES, seed=seed)
    assert len(bars.replicates) == REPLICATES
    built = time.perf_counter()
    noise = {frozenset(m.clique): m.stddev for m in noisy}
    measured = list(dict.fromkeys(tuple(sorted(clique)) for clique in noise))
    unmeasured = [
        pair
        for pair in itertools.combinations(data.domain, 2)
        if not any(set(pair) <= clique for clique in noise)
    ]
    typical = float(np.median(list(noise.values())))
    found = {
        name: cells(
            bars.marginal,
            {"table": data.marginals(cliques), "projection": projection.marginals(cliques)},
            {clique: noise.get(frozenset(clique), typical) for clique in cliques},
        )
        for name, cliques in (("measured", measured), ("unmeasured", unmeasured))
    }
    return found, {"bars": built - started, "queries": time.perf_counter() - built}


def cells(ask: Any, truths: dict[str, Any], noise: dict[Clique, float]) -> Cells:
    intervals = {clique: ask(clique) for clique in noise}

    def flat(tables: Any) -> np.ndarray:
        return np.concatenate([np.ravel(tables[clique]) for clique in noise])

    low = flat({clique: each.low for clique, each in intervals.items()})
    high = flat({clique: each.high for clique, each in intervals.items()})
    truth = {name: flat(tables) for name, tables in truths.items()}
    return Cells(
        inside={n: (low - SLACK <= t) & (t <= high + SLACK) for n, t in truth.items()},
        estimate=flat({clique: each.estimate for clique, each in intervals.items()}),
        truth=truth,
        width=high - low,
        noise=flat({c: np.full(each.low.shape, noise[c]) for c, each in intervals.items()}),
    )


def summary(draws: Sequence[Cells], truth: str) -> dict[str, float | None]:
    """Shares of cells whose interval holds the truth, by the truth's size in noise units."""
    inside = np.concatenate([draw.inside[truth] for draw in draws])
    noise = np.concatenate([draw.noise for draw in draws])
    size = np.concatenate([draw.truth[truth] for draw in draws])
    size = np.where(size <= SLACK, 0.0, size / noise)
    groups = {name: (least < size) & (size <= most) for name, (least, most) in SIZES.items()}
    groups["estimate >= s"] = np.concatenate([draw.estimate for draw in draws]) >= noise
    return {
        "all": float(inside.mean()),
        **{name: float(inside[g].mean()) if g.any() else None for name, g in groups.items()},
        "width / s": float((np.concatenate([draw.width for draw in draws]) / noise).mean()),
    }


def cases(data: adult.Adult) -> dict[str, tuple[Dataset, Fit]]:
    real = Dataset(Domain(data.domain), data.columns)
    tree = chosen_cliques(data, 0)
    small = [c for c in itertools.combinations(data.domain, 3) if real.domain.size(c) < 3000]
    picked = np.random.default_rng(1).choice(len(small), 6, replace=False)
    triples = [*tree, *(small[i] for i in picked)]
    exact = [Measurement(c, counts, SIGMA) for c, counts in real.marginals(tree).items()]
    truth = estimate(real.domain, exact, total=len(real))
    simulated = truth.sample(len(real), rng=np.random.default_rng(2), method="sample")
    return {
        "tree of pairs": (real, gaussian_fit(real, tree)),
        "tree and 6 triples": (real, gaussian_fit(real, triples)),
        "MWEM+PGM, eps 1": (real, mechanism_fit(real)),
        "simulated tree": (simulated, gaussian_fit(simulated, tree)),
    }


def run_adult(draws: int) -> dict[str, Any]:
    rows, results = [], []
    for case, (data, fit) in cases(adult.load()).items():
        made = [one_draw(data, fit, seed) for seed in range(draws)]
        seconds = {
            key: float(np.mean([times[key] for _, times in made])) for key in ("bars", "queries")
        }
        for kind, truth in (
            ("measured", "table"),
            ("unmeasured", "projection"),
            ("unmeasured", "table"),
        ):
            shares = summary([found[kind] for found, _ in made], truth)
            rows.append((case, kind, truth, *shares.values(), *seconds.values()))
            results.append({"case": case, "cells": kind, "truth": truth, **shares, **seconds})
        print(table(HEADER, rows[-3:]), flush=True)
    print("\n" + table(HEADER, rows))
    return {"draws": draws, "replicates": REPLICATES, "machine": machine(), "cases": results}


def stored() -> list[dict[str, Any]]:
    """The lines of both studies, a structure's last one."""
    lines = [json.loads(line) for line in LINES.read_text().splitlines()] if LINES.exists() else []
    return [*{(line["study"], line["seed"]): line for line in lines}.values()]


def studied(study: str) -> str:
    """The distribution of a study's figures, and how far one structure's are off by chance."""
    lines = [line for line in stored() if line["study"] == study]
    away = [line["least"] >= AWAY * line["stddev"] for line in lines]
    kinds = {"all": [True] * len(lines), "away from zero": away, "near zero": np.logical_not(away)}
    rows = []
    for kind, kept in kinds.items():
        found = [(line[FIGURE[study]], line["error"]) for line in itertools.compress(lines, kept)]
        if found:
            values, errors = np.array(found).T
            figures = np.median(values), values.mean(), values.min(), values.max()
            rows.append((kind, len(values), *map(float, figures), float(np.median(errors))))
    return table((study, "structures", "median", "mean", "least", "most", "error of each"), rows)


def structures(study: str) -> list[int]:
    """The seeds of a study."""
    if study == "spread":
        return [*range(STRUCTURES)]
    cases = {s: redrawn.case(s) for s in range(STRUCTURES, 2 * STRUCTURES)}
    seeds = [s for s, case in cases.items() if case.family != "region"][:20]
    return sorted(seeds, key=lambda s: cases[s].least < AWAY * cases[s].exact[0].stddev)


def within(seconds: float, study: str, seed: int, sets: int) -> dict[str, Any] | None:
    """A structure's line, or None where that takes this process more seconds of the processor."""
    signal.signal(signal.SIGPROF, _give_up)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return {"spread": redrawn.spread, "intervals": redrawn.intervals}[study](seed, sets)
    except TimeoutError:
        return None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _give_up(number: int, frame: FrameType | None) -> None:
    raise TimeoutError


def run_study(study: str, sets: int, jobs: int) -> None:
    """Append a line a structure to those that are there; the slow ones wait for the others."""
    done = {(line["study"], line["seed"]) for line in stored() if line["sets"] >= sets}
    left = [seed for seed in structures(study) if (study, seed) not in done]
    code, seconds = code_state(), sets / 10
    with ProcessPoolExecutor(jobs) as pool:
        while left:
            running = {pool.submit(within, seconds, study, seed, sets): seed for seed in left}
            for each in as_completed(running):
                found = each.result()
                if found is not None:
                    left.remove(running[each])
                    line = {"study": study, "seed": running[each], **found, "code": code}
                    with LINES.open("a") as file:
                        file.write(json.dumps(line) + "\n")
            seconds *= 4


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--draws", type=int, default=5, help="of the noise, for each case of adult")
    parser.add_argument("--only", nargs="*", default=["adult", "spread", "intervals"])
    parser.add_argument("--sets", type=int, default=200, help="redrawn, for each structure")
    parser.add_argument("--report", action="store_true", help="run nothing, print both studies")
    parser.add_argument("--jobs", type=int, default=1, help="processes for random structures")
    arguments = parser.parse_args()
    for name in [] if arguments.report else arguments.only:
        if name == "adult":
            write_results("coverage", run_adult(arguments.draws))
        else:
            run_study(name, arguments.sets, arguments.jobs)
    print(*map(studied, FIGURE), sep="\n\n")


if __name__ == "__main__":
    main()
