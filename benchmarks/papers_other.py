"""Experiments of the papers that are no run of a registered mechanism with its settings.

    python -m benchmarks.papers_other REQUEST.json ANSWER.json

The request's `mechanism` names one of `WORK`. All of them read public data without protection.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import adaptive_run, problems
from benchmarks.common import HERE, peak_rss_mb, serve, within_cap
from benchmarks.settings import SETTINGS, load, workload_of

if TYPE_CHECKING:
    import torch

    from mechanisms.families.training import Generator

SECONDS = 20
"""The time of one of the estimation algorithms on one problem."""


def method(request: Mapping[str, Any]) -> dict[str, Any]:
    """The loss an estimation algorithm reaches on a stored problem, over the least known."""
    import json

    from pgmkit.domain import Domain
    from pgmkit.estimation import estimate
    from pgmkit.measurement import Measurement

    problem = problems.load(request["dataset"].removeprefix("problem "))
    best = json.loads((HERE / "best_losses.json").read_text())[problem.key]["loss"]
    measured = [
        Measurement(clique, values, problem.sigma)
        for clique, values in zip(problem.cliques, problem.values, strict=True)
    ]
    started = time.process_time()
    model = estimate(
        Domain(problem.domain),
        measured,
        total=problem.total,
        max_seconds=SECONDS,
        **request["options"],
    )
    seconds = time.process_time() - started
    reached = problem.loss([model.marginal(clique) for clique in problem.cliques])
    return {"excess": reached / best - 1, "cpu_seconds": seconds}


def factored(request: Mapping[str, Any]) -> dict[str, Any]:
    """The CDF of k attributes of a chain of twenty, by Algorithm 3 or summed from the marginal."""
    from pgmkit.domain import Domain
    from pgmkit.estimation import estimate
    from pgmkit.measurement import Measurement
    from pgmkit.queries import FactoredQuery, prefix

    names = [f"x{i}" for i in range(20)]
    rng = np.random.default_rng(request["seed"])
    pairs = list(itertools.pairwise(names))
    measured = [Measurement(pair, rng.gamma(1.0, 100.0, 100), 1.0) for pair in pairs]
    model = estimate(Domain(dict.fromkeys(names, 10)), measured, total=10_000.0, max_seconds=5)
    asked = names[:: 20 // int(request["dataset"].split()[-1])][
        : int(request["dataset"].split()[-1])
    ]
    started = time.process_time()
    if request["options"]["factored"]:
        found = model.answer(FactoredQuery({name: prefix(10) for name in asked}))
    else:
        found = model.marginal(asked)
        for axis in range(len(asked)):
            found = found.cumsum(axis)
    return {"cpu_seconds": time.process_time() - started, "last": float(np.ravel(found)[-1])}


def scaling(request: Mapping[str, Any]) -> dict[str, Any]:
    """One estimate of a chain or a star of so many attributes, as in `benchmarks.growth`."""
    from benchmarks import growth
    from pgmkit import Domain, Measurement, estimate

    structure, attributes = request["dataset"].split(" of ")
    pairs = growth.edges(structure, int(attributes))
    noisy = growth.tables(pairs, int(attributes), growth.STDDEV)
    measured = [
        Measurement(pair, values, growth.STDDEV) for pair, values in zip(pairs, noisy, strict=True)
    ]
    domain = Domain({f"x{i}": growth.SIZE for i in range(int(attributes))})
    started = time.process_time()
    model = estimate(domain, measured, total=float(growth.TOTAL))
    return {"cpu_seconds": time.process_time() - started, "gap": model.gap}


def losses(request: Mapping[str, Any]) -> dict[str, Any]:
    """L1 or L2 minimisation of Laplace measurements (D.1): workload error along the way.

    All pairs of ADULT (reduced), pure eps 1, replace-one. The workload error is half the L1
    distance of a triple's marginal, as a fraction of n, averaged over all triples. It is taken
    after each second of the search, which starts where it stopped; `seconds` counts them.
    """
    from mechanisms.privacy.budget import Budget
    from mechanisms.privacy.curator import Curator
    from pgmkit.estimation import estimate

    data, _ = load(SETTINGS["adult-small"])
    pairs = list(itertools.combinations(data.domain, 2))
    triples = list(itertools.combinations(data.domain, 3))
    budget = Budget(request["epsilon"], 0.0)
    curator = Curator(data, budget, neighbours="replace-one", seed=request["seed"])
    measured = [curator.measure(pair, request["epsilon"] / len(pairs)) for pair in pairs]
    truth = data.marginals(triples)
    model, found = None, []
    for _ in range(10):
        model = estimate(
            data.domain,
            measured,
            total=float(len(data)),
            method="mirror_descent",
            max_seconds=1.0,
            warm_start=model,
            **request["options"],
        )
        tables = model.marginals(triples)
        found.append(adaptive_run.mean_variation(truth, tables, len(data), model.total))
    return {"mean": found[-1], "least": min(found), "path": found, "seconds": len(found)}


def likelihood(request: Mapping[str, Any]) -> dict[str, Any]:
    """DualQuery on all pairs of the built-in census, with the model its draws make likeliest."""
    from mechanisms.datasets.census import census
    from mechanisms.dual_query import DualQuery, DualQueryLoss, dual_query
    from mechanisms.privacy.budget import Budget
    from mechanisms.privacy.curator import Curator
    from pgmkit.estimation import estimate
    from pgmkit.measurement import Measurement

    data = census(44_000, seed=0)
    pairs = list(itertools.combinations(data.domain, 2))
    budget = Budget(request["epsilon"], len(data) ** -2)
    curator = Curator(data, budget, neighbours="replace-one", seed=request["seed"])
    started = time.process_time()
    release: Any = dual_query(curator, pairs, DualQuery())
    model = release.model
    if request["options"]["pgm"]:
        cliques = [Measurement(p, np.zeros(data.domain.size(p)), 1.0) for p in pairs]
        loss = DualQueryLoss(release, pairs)
        total = float(len(data))
        model = estimate(data.domain, cliques, total=total, loss=loss, max_seconds=SECONDS)
    seconds = time.process_time() - started
    truth, tables = data.marginals(pairs), model.marginals(pairs)
    found = adaptive_run.errors(truth, tables, len(data), len(data))
    return {**found, "cpu_seconds": seconds}


def least_mixture(request: Mapping[str, Any]) -> dict[str, Any]:
    """The best mixture error of the public rows, from above: multiplicative weights without noise.

    As the authors estimate it (section 3.1): the worst query is answered exactly, round by round,
    and the smallest largest error along the way counts.
    """
    setting = SETTINGS[request["dataset"]]
    data, public = load(setting)
    assert public is not None
    cliques = workload_of(setting, data).cliques
    shapes = {c: data.domain.shape(c) for c in cliques}
    truth = {c: table / len(data) for c, table in data.marginals(cliques).items()}
    rows = np.unique(np.stack([public.columns[n] for n in public.domain], 1), axis=0)
    place = {name: rows[:, i].astype(np.int64) for i, name in enumerate(public.domain)}
    cells = {c: np.ravel_multi_index([place[n] for n in c], shapes[c]) for c in cliques}
    weights = np.full(len(rows), 1 / len(rows))
    best, started = np.inf, time.process_time()
    for _ in range(300):
        worst, query, sign = 0.0, (cliques[0], 0), 1.0
        for c in cliques:
            gaps = truth[c].reshape(-1) - np.bincount(cells[c], weights, truth[c].size)
            at = int(np.abs(gaps).argmax())
            if abs(gaps[at]) > worst:
                worst, query, sign = abs(float(gaps[at])), (c, at), float(np.sign(gaps[at]))
        best = min(best, worst)
        held = cells[query[0]] == query[1]
        share = float(weights[held].sum())
        if share == 0:
            break  # no public row can answer it
        wanted = min(max(share + sign * worst, 1e-6), 1 - 1e-6)
        weights[held] *= wanted / share
        weights[~held] *= (1 - wanted) / (1 - share)
    return {"max": best, "cpu_seconds": time.process_time() - started}


def resampled(request: Mapping[str, Any]) -> dict[str, Any]:
    """GEM with its noise drawn anew in each step (Figure 4): a generator that redraws it."""
    import torch

    from mechanisms import gem as module
    from mechanisms.families.training import Generator

    random = torch.Generator().manual_seed(request["seed"])

    class Redrawing(Generator):
        def forward(self) -> torch.Tensor:
            if self.training and torch.is_grad_enabled():
                self.noise.copy_(torch.randn(self.noise.shape, generator=random))
            return super().forward()

    made: type[Generator] = Redrawing
    module.Generator = made  # type: ignore[misc]
    return adaptive_run.answer({**request, "mechanism": "gem", "asked": time.time()})


def counted(request: Mapping[str, Any]) -> dict[str, Any]:
    """What a table or its workload has so many of: `options["what"]`, and of queries those whose
    answers are at least `options["above"]` of n.
    """
    setting, options = SETTINGS[request["dataset"]], request["options"]
    data, _ = load(setting)
    cliques, sizes = workload_of(setting, data).cliques, list(data.domain.sizes.values())
    least = options.get("above", 0.0) * len(data)
    counts = {
        "queries": lambda: sum(int((t >= least).sum()) for t in data.marginals(cliques).values()),
        "attributes": lambda: len(sizes),
        "values": lambda: sum(sizes),
        "cells": lambda: math.prod(sizes),
        "women": lambda: float((data.columns["sex"] == 0).mean()),
    }
    return {"count": counts[options["what"]]()}


WORK: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "method": method,
    "factored": factored,
    "estimate": scaling,
    "losses": losses,
    "likelihood": likelihood,
    "least mixture error": least_mixture,
    "gem (z resampled)": resampled,
    "counted": counted,
}


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    found = within_cap(lambda: WORK[request["mechanism"]](request), request["cap"])
    return {**found, "peak_mb": peak_rss_mb()}


if __name__ == "__main__":
    serve(answer)
