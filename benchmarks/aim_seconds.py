"""How long AIM takes on real tables, and the prediction that auto goes by.

    python -m benchmarks.aim_seconds [--epsilons 1,10] [--tables Chile,bfi] [--limit 90]
    python -m benchmarks.aim_seconds --report     # run nothing, fit and compare

All pairs, replace-one, delta = 1/n^2, seed 0, of the tables of `benchmarks.regret`: the figures of
`mechanisms.synthesis.auto` are fitted to the half "choosing" and judged on the half "reporting". A
run of more than `--limit` CPU seconds ends and counts as that long. Lines of CPU seconds without
imports go to ``results/aim_seconds.jsonl``, and what is there is not run again.

Takes 1.5 CPU minutes.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import pgmkit.estimation  # noqa: F401  its import belongs to no run
from benchmarks.common import RESULTS, command_line, table
from benchmarks.regret import HALVES, TABLES, load
from mechanisms import k_way, run
from mechanisms.privacy.budget import Budget
from mechanisms.synthesis.auto import aim_seconds, figures
from pgmkit import Domain

LINES = RESULTS / "aim_seconds.jsonl"


class Late(Exception):
    """The run has taken its limit."""


def measured(name: str, epsilon: float, limit: float) -> dict[str, Any]:
    """One run: its CPU seconds, rounds, and the model's size."""
    data, rounds = load(name), 0

    def count(_: object) -> None:
        nonlocal rounds
        rounds += 1

    def late(*_: object) -> None:
        raise Late

    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, limit)
    started, megabytes = time.process_time(), None
    try:
        workload, delta = k_way(data.domain, 2), len(data) ** -2.0
        release = run(
            "aim", data, workload, epsilon, delta, neighbours="replace-one", seed=0, progress=count
        )
        megabytes = round(release.model.tree.bytes() / 2**20, 3)
    except Late:
        pass
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {
        "table": name, "epsilon": epsilon, "rows": len(data),
        "sizes": list(data.domain.sizes.values()), "rounds": rounds, "model_mb": megabytes,
        "cpu": round(time.process_time() - started, 2),
    }  # fmt: skip


def public(line: Mapping[str, Any]) -> tuple[Domain, int, Budget]:
    """What is known of a run beforehand."""
    domain = Domain({f"x{i}": size for i, size in enumerate(line["sizes"])})
    return domain, line["rows"], Budget(line["epsilon"], line["rows"] ** -2.0)


def report(lines: Sequence[Mapping[str, Any]]) -> str:
    """The fit to one half, and the predictions of `aim_seconds` beside the seconds of both."""
    half = {name: [r for r in lines if TABLES[r["table"]] == name] for name in HALVES}
    features = np.array([[1.0, np.log(figures(*public(r))).prod()] for r in half["choosing"]])
    seconds = np.log([r["cpu"] for r in half["choosing"]])
    fitted = np.linalg.lstsq(features, seconds, rcond=None)[0].round(2).tolist()
    text = f"fitted to the half choosing: {fitted}\n"
    for name, runs in half.items():
        found = [(r, aim_seconds(*public(r))) for r in runs]
        near = sum(0.5 <= r["cpu"] / predicted <= 2 for r, predicted in found)
        rows = [
            [r["table"], r["epsilon"], r["rounds"], r["cpu"], round(predicted, 2)]
            for r, predicted in found
        ]
        text += f"\n{name}: {near} of {len(rows)} within 2x\n"
        text += table(("table", "epsilon", "rounds", "cpu s", "predicted"), rows)
    return text


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--epsilons", default="1,10")
    parser.add_argument("--tables", default="")
    parser.add_argument("--limit", type=float, default=90.0)
    parser.add_argument("--report", action="store_true")
    chosen = parser.parse_args()
    lines = [json.loads(line) for line in LINES.read_text().splitlines()] if LINES.exists() else []
    done = {(line["table"], line["epsilon"]) for line in lines}
    names = [t for t in TABLES if not chosen.tables or t in chosen.tables.split(",")]
    for epsilon in [] if chosen.report else map(float, chosen.epsilons.split(",")):
        for name in names:
            if (name, epsilon) in done:
                continue
            lines.append(measured(name, epsilon, chosen.limit))
            with LINES.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
    print(report(lines))


if __name__ == "__main__":
    main()
