"""Errors of the planned strategies: prefixes and marginals together, ranges, mixtures.

    python -m benchmarks.strategies [--smasher PATH] [--rows CPS]

Each row: the root of the mean variance of the workload's queries at privacy cost 1 (Gaussian noise,
one row added or removed, noise of standard deviation 1 at sensitivity 1, so rho = 1/2), a lower
bound on that of every Gaussian mechanism (`benchmarks.lower_bound`), and CPU seconds of
planning. The first twelve rows are those of QuerySmasher's Table 1: prefixes along the numeric
columns, every code of the others. `--smasher` is a checkout of
cmla-psu/QuerySmasherMatrixMechanism, which then plans the same workloads beside, and so does the
ResidualPlanner+ in it, where an attribute is asked in one way that it knows (codes, prefixes,
ranges). QuerySmasher gets as few rows of the same gram as there are codes. Writes
results/strategies.json, where figures of other rows stay, and the table of docs/queries.md.

Takes 10 (with the other programs) CPU minutes.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.common import HERE, command_line, read_results, write_results
from benchmarks.lower_bound import lower_bound
from mechanisms.privacy.neighbours import relation
from mechanisms.queries.query_sets import (
    Asked,
    QuerySet,
    number_of_queries,
    query_gram,
    query_rows,
)
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


RIVALS = ("smasher error", "planner error")
"""Their root mean squared errors among the results of a row."""


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
    cps = domain_of(TABLES["CPS"][0])
    weights = {"range": 4.0, "prefix": 1.0, "identity": 0.25}
    sets = [
        QuerySet(each.clique, each.asked, weights[kind])
        for k, kind in kinds.items()
        for each in every(cps, (k,), dict.fromkeys(cps, kind))
    ]
    yield "weighted 4 : 1 : 1/4, ranges, prefixes, codes, CPS", cps, sets
    line = domain_of([100, 20, 7])
    for kind in ("distance", "moments", "hierarchy"):
        asked: dict[str, Asked] = {"x0": kind}
        yield f"{kind} by codes, up to 2-way, 100 x 20 x 7", line, every(line, (1, 2), asked)
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
        factors = [few_rows(queries, domain.sizes[name]) for name, queries in asked]
        rival.add_queries_to_workload([KronQuery(sizes, places, factors, each.weight)])
    rival.optimize()
    error = math.sqrt(rival.workload_variance() / number(domain, sets))
    return {"smasher error": error, "smasher seconds": time.process_time() - start}


def few_rows(queries: Asked, n: int) -> np.ndarray:
    """As few rows as codes, with the gram of the queries along an attribute."""
    if not isinstance(queries, str) or queries in ("identity", "prefix"):
        return query_rows(queries, n)
    values, vectors = np.linalg.eigh(query_gram(queries, n))
    return (vectors * np.sqrt(values.clip(min=0))).T


def residual_planner(domain: Domain, sets: Sequence[QuerySet]) -> dict[str, Any]:
    """ResidualPlanner+'s root mean squared error and CPU seconds; nothing where it has no basis."""
    sys.modules.setdefault("gurobipy", ModuleType("gurobipy")).GRB = None  # for other objectives
    from baselines.resplan.ResPlan import ResPlanSum

    letters = {"identity": "I", "prefix": "P", "range": "R"}
    ways: dict[str, set[str]] = {}
    for each in sets:
        for name, queries in zip(each.clique, each.asked, strict=True):
            ways.setdefault(name, set()).add(str(queries))
    known = all(len(own) == 1 and own <= letters.keys() for own in ways.values())
    if not known or max(domain.shape()) > 500:  # it writes all ranges down
        return {}
    start = time.process_time()
    system = ResPlanSum(list(domain.shape()), [letters[min(ways[name])] for name in domain])
    for each in sets:
        system.input_mech(tuple(sorted(domain.places[name] for name in each.clique)))
    error = math.sqrt(system.get_noise_level() / number(domain, sets))
    return {"planner error": error, "planner seconds": time.process_time() - start}


def table(results: dict[str, Any]) -> str:
    """The rows as a table of docs/queries.md."""
    lines = [
        "| workload | now | over the better rival | bound | gap | planning, CPU s "
        "| QuerySmasher, beside | ResidualPlanner+, beside | published | HDMM | before |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    cited = {}
    for name in TABLES:
        ways = ("1-way", "2-way", "3-way", "up to 3-way")
        for way, old, others in zip(ways, BEFORE[name], PUBLISHED[name], strict=True):
            cited[f"{name}, {way}"] = (old, *others)
    for name, found in results.items():
        old, plus, hdmm = (f"{x:.4g}" for x in cited[name]) if name in cited else ("", "", "")
        rivals = [found[key] for key in RIVALS if key in found]
        beside = [f"{found[key]:.4g}" if key in found else "" for key in RIVALS]
        ratio = f"{found['error'] / min(rivals):.3f}" if rivals else ""
        gap = f"{100 * (found['error'] / found['bound'] - 1):.2g}%"
        ours = f"{found['error']:.4g} | {ratio} | {found['bound']:.4g} | {gap}"
        cells = [name, ours, f"{found['seconds']:.2g}", *beside, plus, hdmm, old]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = command_line(__doc__)
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
            found.update(residual_planner(domain, sets))
            write_results("strategies", results)
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
