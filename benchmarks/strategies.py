"""Errors of the planned strategies: prefixes and marginals together, ranges, mixtures.

    python -m benchmarks.strategies [--smasher PATH] [--rows CPS]

Each row: the root of the mean variance of the workload's queries at privacy cost 1 (Gaussian noise,
one row added or removed, noise of standard deviation 1 at sensitivity 1, so rho = 1/2), a lower
bound on that of every Gaussian mechanism (`mechanisms.strategies.lower_bound`), and CPU seconds of
planning. The first twelve rows are those of QuerySmasher's Table 1: prefixes along the numeric
columns, every code of the others. `--smasher` is a checkout of
cmla-psu/QuerySmasherMatrixMechanism, which then plans the same workloads beside. Writes
results/strategies.json, where figures of other rows stay, and the table of docs/queries.md.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.common import HERE, read_results, write_results
from mechanisms.privacy.neighbours import relation
from mechanisms.queries.query_sets import Asked, QuerySet, number_of_queries, query_rows
from mechanisms.strategies.lower_bound import lower_bound
from mechanisms.strategies.residuals import residuals_strategy
from pgmkit.domain import Domain

Row = tuple[str, Domain, list[QuerySet]]

TABLES = {
    "CPS": ((50, 100, 7, 4, 2), 2),
    "Loans": ((101, 101, 101, 101, 3, 8, 36, 6, 51, 4, 5, 15), 4),
    "Adult": ((100, 100, 100, 99, 85, 42, 16, 15, 9, 7, 6, 5, 2, 2), 5),
}
"""The sizes of the columns and the number of numeric ones, which come first."""
BEGIN, END = "<!-- strategies: begin -->", "<!-- strategies: end -->"
BEFORE = {
    "CPS": (3.37, 6.72, 8.99, 10.7),
    "Loans": (5.16, 17.4, 43.7, 45.1),
    "Adult": (5.69, 21.4, 61.2, 62.8),
}
"""Of 1-, 2-, 3-way and up to 3-way: `best_strategy` at commit f588393, run on the same rows."""
PUBLISHED = {
    "CPS": ((3.081, 3.347), (5.823, 6.625), (7.302, 8.634), (7.570, 8.623)),
    "Loans": ((4.681, 5.127), (14.502, 17.149), (34.168, 42.938), (34.144, 44.338)),
    "Adult": ((5.081, 5.648), (17.274, 21.111), (45.223, 60.025), (45.174, 61.613)),
}
"""Of ResidualPlanner+ and HDMM, from the table of ResidualPlanner+'s paper that QuerySmasher's
experiments cite."""


def domain_of(sizes: Iterable[int]) -> Domain:
    return Domain({f"x{i}": size for i, size in enumerate(sizes)})


def every(domain: Domain, ks: Iterable[int], asked: dict[str, Asked]) -> list[QuerySet]:
    """All sets of k columns, each asked in its way."""
    cliques = itertools.chain.from_iterable(itertools.combinations(domain, k) for k in ks)
    return [QuerySet(c, tuple(asked.get(name, "identity") for name in c)) for c in cliques]


def rows() -> Iterable[Row]:
    """All workloads by name."""
    for name, (sizes, numeric) in TABLES.items():
        domain = domain_of(sizes)
        prefixes: dict[str, Asked] = dict.fromkeys(domain.attributes[:numeric], "prefix")
        for ks in ((1,), (2,), (3,), (1, 2, 3)):
            ways = "up to 3" if len(ks) > 1 else str(*ks)
            yield f"{name}, {ways}-way", domain, every(domain, ks, prefixes)
    line = domain_of([1000])
    yield "ranges over 1,000 codes", line, [QuerySet(("x0",), ("range",))]
    grid = domain_of([100, 100])
    for kind in ("range", "circular"):
        yield f"2-way {kind}s, 100 x 100", grid, [QuerySet(("x0", "x1"), (kind, kind))]
    drawn = np.random.default_rng(0).random((200, 100)) < 0.1
    sparse: dict[str, Asked] = {"x0": drawn.astype(np.float64), "x1": "prefix"}
    yield "200 sparse queries by prefixes, 100 x 100", grid, every(grid, (1, 2), sparse)
    mixed = domain_of([20] * 6)
    kinds = {1: "range", 2: "prefix", 3: "identity"}
    sets = [every(mixed, (k,), dict.fromkeys(mixed, kind)) for k, kind in kinds.items()]
    yield (
        "1-way ranges, 2-way prefixes, 3-way codes, 20^6",
        mixed,
        [s for each in sets for s in each],
    )
    forty = domain_of(range(20, 60))
    yield (
        "prefixes up to 3-way, 40 columns",
        forty,
        every(forty, (1, 2, 3), dict.fromkeys(forty, "prefix")),
    )


def number(domain: Domain, sets: Sequence[QuerySet]) -> int:
    """How many queries the sets have."""
    return sum(number_of_queries(domain, each) for each in sets)


def planned(domain: Domain, sets: Sequence[QuerySet]) -> dict[str, Any]:
    """Our root mean squared error, the bound, and CPU seconds of planning."""
    start = time.process_time()
    found = residuals_strategy(domain, sets, relation("add/remove"), 2, total_known=False)
    seconds = time.process_time() - start
    many = number(domain, sets)
    bound = lower_bound(domain, sets)
    return {
        "error": math.sqrt(2 * found.expected_error / many),
        "bound": math.sqrt(2 * bound / many),
        "seconds": seconds,
    }


def smashed(domain: Domain, sets: Sequence[QuerySet]) -> dict[str, Any]:
    """QuerySmasher's root mean squared error and CPU seconds, of products by its convex solver."""
    from query import KronQuery
    from smasher import Smasher

    start = time.process_time()
    sizes = list(domain.shape())
    solver = {"mu_schedule": [0.1, 0.01, 0.001, 0.0001], "ftol": 1e-10, "maxcor": 50}
    rival = Smasher(
        sizes, privacy_cost=1.0, default_solver="convex", verbose=False, convex_kwargs=solver
    )
    for each in sets:
        places = tuple(domain.places[name] for name in each.clique)
        asked = zip(each.clique, each.asked, strict=True)
        factors = [query_rows(queries, domain.sizes[name]) for name, queries in asked]
        rival.add_queries_to_workload([KronQuery(sizes, places, factors)])
    rival.optimize()
    error = math.sqrt(rival.workload_variance() / number(domain, sets))
    return {"smasher error": error, "smasher seconds": time.process_time() - start}


def table(results: dict[str, Any]) -> str:
    """The rows as a table of docs/queries.md."""
    lines = [
        "| workload | now | bound | planning, CPU s | before | QuerySmasher, run beside "
        "| ResidualPlanner+ | HDMM |",
        "|---|---|---|---|---|---|---|---|",
    ]
    cited = {}
    for name in TABLES:
        ways = ("1-way", "2-way", "3-way", "up to 3-way")
        for way, old, others in zip(ways, BEFORE[name], PUBLISHED[name], strict=True):
            cited[f"{name}, {way}"] = (old, *others)
    for name, found in results.items():
        old, plus, hdmm = (f"{x:.4g}" for x in cited[name]) if name in cited else ("", "", "")
        rival = f"{found['smasher error']:.4g}" if "smasher error" in found else ""
        ours = f"{found['error']:.4g} | {found['bound']:.4g} | {found['seconds']:.2g}"
        lines.append(f"| {name} | {ours} | {old} | {rival} | {plus} | {hdmm} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smasher", help="a checkout of QuerySmasher, to run beside")
    parser.add_argument("--rows", default="", help="the beginning of the rows' names")
    given = parser.parse_args()
    if given.smasher:
        sys.path.insert(0, given.smasher)
    results = read_results("strategies")
    for name, domain, sets in rows():
        if not name.startswith(given.rows):
            continue
        found = results.setdefault(name, {})
        found.update(planned(domain, sets))
        if given.smasher:
            found.update(smashed(domain, sets))
        shown = {key: float(f"{value:.4g}") for key, value in found.items()}
        print(f"{name}: {shown}", flush=True)
        write_results("strategies", results)
    order = [name for name, _, _ in rows() if name in results]
    page = HERE.parent / "docs" / "queries.md"
    head, _, rest = page.read_text().partition(BEGIN)
    tail = rest.partition(END)[2]
    shown = table({name: results[name] for name in order})
    page.write_text(f"{head}{BEGIN}\n{shown}\n{END}{tail}")


if __name__ == "__main__":
    main()
