"""Real tables through the whole command line, without editing anything.

    python -m benchmarks.zoo [--only NAME] [--budget-seconds 3600] [--again] [--limit 300] [--page]

For each table (`benchmarks.zoo_tables`): `schema draft --assume-public`, `plan`, `synth` with
`auto` and with `independent` at epsilon 0.1, 1 and 10, `sample`, `sample --given`, `query`, a
labelled table, `report`; each in a process of its own with a limit of processor time. Then, against
the table: the mean total variation of pairs of columns beside that of `independent` and of the
product of the exact single columns, the worst column, and F1 of a classifier where there is a
target. Seeded noise. A line a table goes to ``results/zoo.jsonl``; tables that have one are left
out unless `--again`. `--page` writes what was found into ``benchmarks/zoo.md``.

Takes 28 CPU minutes.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import command_line, machine, peak_rss_mb
from benchmarks.zoo_auto import EPSILONS, MOST_PAIRS
from benchmarks.zoo_page import RESULT, known, markdown, write_page
from benchmarks.zoo_tables import TABLES, Absent, Table

MOST_ROWS = 20_000
"""Of the records that a classifier is trained and tested on."""
_PATIENCE = 10
"""Times the limit, by the clock: for work that waits and does nothing."""


def in_process(work: Callable[[], Any], limit: float) -> dict[str, Any]:
    """What the work returns, from a process of its own: ok, seconds, cpu, mb, result or error."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        answer, said = Path(folder, "answer.json"), Path(folder, "said.txt")
        child = os.fork()
        if child == 0:
            _child(work, answer, said, limit)
        code = _waited(child, started + _PATIENCE * limit)
        found = json.loads(answer.read_text()) if answer.exists() else {}
        text = said.read_text(errors="replace").strip() if said.exists() else ""
    seconds = round(time.perf_counter() - started, 2)
    if code == 0:
        return {"ok": True, "seconds": seconds, **found}
    lines = [line for line in text.replace(f"{tempfile.gettempdir()}/", "").splitlines() if line]
    late = code is None or code == -signal.SIGXCPU
    reason = f"over {limit:.0f} s" if late else (lines[-1] if lines else f"exit {code}")
    used = {"mb": found.get("mb"), "cpu": limit if late else found.get("cpu")}
    return {"ok": False, "seconds": seconds, **used, "error": reason[:400]}


def _child(work: Callable[[], Any], answer: Path, said: Path, limit: float) -> None:
    """Never returns: the process ends here, at the latest after so many seconds of a processor."""
    code = 1
    spent = math.ceil(time.process_time() + limit)
    resource.setrlimit(resource.RLIMIT_CPU, (spent, spent + 5))
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.stdout = sys.stderr = file
        try:
            result = work()
            used = {"mb": round(peak_rss_mb()), "cpu": round(time.process_time(), 2)}
            answer.write_text(json.dumps({**used, "result": result}))
            code = 0
        except SystemExit as left:
            code = int(left.code or 0)
            used = {"mb": round(peak_rss_mb()), "cpu": round(time.process_time(), 2)}
            answer.write_text(json.dumps(used))
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        file.flush()
    os._exit(code)


def _waited(child: int, deadline: float) -> int | None:
    """The exit code, or None for a process that had to be stopped."""
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.perf_counter() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.02)


def command(*arguments: str) -> Callable[[], None]:
    """`pgmkit` with these arguments."""

    def work() -> None:
        from mechanisms.cli import main

        main(list(arguments))

    return work


def steps(
    table: Table, data: Path, limit: float, epsilons: Sequence[float]
) -> Iterator[dict[str, Any]]:
    """Each step's outcome; the first failure of what the others need ends them."""
    folder = data.parent
    schema = str(folder / "s.yaml")

    def run(step: str, work: Callable[[], Any]) -> dict[str, Any]:
        return {"step": step, **in_process(work, limit)}

    drafted = run("draft", command("schema", "draft", str(data), "--assume-public", "-o", schema))
    yield drafted
    if not drafted["ok"]:
        return
    yield run("plan", command("plan", "--schema", schema, "--rows", "5000"))
    made = []
    for mechanism in ("auto", "independent"):
        for epsilon in epsilons:
            release = str(folder / f"{mechanism}-{epsilon:g}.pgm")
            options = ["--schema", schema, "--epsilon", str(epsilon), "--seed", "0"]
            options += ["--target", table.target] if table.target and mechanism == "auto" else []
            files = ["--mechanism", mechanism, "--save", release]
            files += ["--out", str(folder / "o.csv")] if mechanism == "auto" else []
            found = run(
                f"synth {mechanism} {epsilon:g}", command("synth", str(data), *options, *files)
            )
            yield found
            made += [(mechanism, epsilon, release)] if found["ok"] else []
    for release in (
        path for mechanism, epsilon, path in made if (mechanism, epsilon) == ("auto", 1)
    ):
        out = str(folder / "more.csv")
        yield run("sample", command("sample", release, "--out", out, "--rows", "500"))
        yield from asked(release, out, run)
        yield run("report", command("report", release, "-o", str(folder / "r.html")))
    if made:
        yield run("scores", lambda: scores(data, made, table.target))


def asked(
    release: str, out: str, run: Callable[[str, Callable[[], Any]], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """A conditional sample, a question and a table, of the first columns and a frequent value."""
    from mechanisms.release.tabular import TableRelease
    from pgmkit.tables.quoting import quoted

    loaded = TableRelease.load(release)
    names = list(loaded.schema.columns)
    first, last = names[0], names[-1]
    label = loaded.schema.columns[last].labels[int(np.argmax(loaded.model.marginal((last,))))]
    given = f"{quoted(last)} = {quoted(label)}"
    yield run("sample given", command("sample", release, "--out", out, "--given", given))
    yield run("query", command("query", release, f"{quoted(first)} | {given}"))
    yield run("table", lambda: str(loaded.table(*dict.fromkeys((first, last))))[:200])


def scores(
    data: Path, made: Sequence[tuple[str, float, str]], target: str | None
) -> dict[str, Any]:
    """How far each release is from the table; the same pairs for all."""
    from mechanisms.release.evaluation import held_out, marginal_errors, some_cliques
    from mechanisms.release.tabular import TableRelease
    from pgmkit.tables.files.record_files import encode_file

    found: dict[str, Any] = {}
    for mechanism, epsilon, path in made:
        release = TableRelease.load(path)
        truth = encode_file(data, release.schema)
        pairs = some_cliques(truth.domain, 2, most=MOST_PAIRS)
        errors = marginal_errors(release.model, truth, pairs)
        singles = marginal_errors(release.model, truth, some_cliques(truth.domain, 1))
        worst = max(singles, key=singles.__getitem__)
        key = f"{mechanism} {epsilon:g}"
        found[key] = {
            "mechanism": release.mechanism,
            "pairs": float(np.mean(list(errors.values()))) if errors else None,
            "worst": [worst[0], singles[worst]],
        }
        if mechanism == "auto":
            found[key]["exact_one_way"] = _exact_one_way(truth, pairs)
        if mechanism == "auto" and target in truth.domain:
            found[key]["f1"] = _f1(release, truth, str(target), held_out)
        found["rows"], found["columns"] = len(truth), len(truth.domain)
    return found


def _exact_one_way(truth: Any, pairs: Sequence[tuple[str, ...]]) -> float:
    """The mean total variation of pairs when single columns are exact and independent."""
    counts = truth.marginals([*pairs, *((name,) for name in truth.domain)])
    n = len(truth)
    distances = [
        np.abs(counts[a, b] / n - np.outer(counts[(a,)] / n, counts[(b,)] / n)).sum() / 2
        for a, b in pairs
    ]
    return float(np.mean(distances)) if distances else 0.0


def _f1(release: Any, truth: Any, target: str, held_out: Callable[..., Any]) -> list[float]:
    from mechanisms.release.evaluation import train_and_test

    train, test = held_out(truth, most=MOST_ROWS)
    found = train_and_test(release.codes(len(train), rng=0), train, test, target)
    return [found.synthetic, found.real]


def visit(table: Table, limit: float, epsilons: Sequence[float] = EPSILONS) -> dict[str, Any]:
    """The table's line: every step's outcome, and its scores."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            data = table.write(Path(folder))
        except Absent as error:
            return {"table": table.name, "absent": str(error)}
        done = list(steps(table, data, limit, epsilons))
    failed = [each["step"] for each in done if not each["ok"]]
    return {
        "table": table.name,
        "ok": not failed,
        "failed": failed,
        "seconds": round(time.perf_counter() - started, 1),
        "mb": max(each.get("mb") or 0 for each in done),
        "scores": next((e.get("result") for e in done if e["step"] == "scores"), None) or {},
        "steps": [{k: v for k, v in each.items() if k != "result"} for each in done],
        "machine": machine(),
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--only", action="append", help="tables whose name holds this")
    parser.add_argument("--budget-seconds", type=float, default=float("inf"))
    parser.add_argument(
        "--limit", type=float, default=300.0, help="processor seconds for each step"
    )
    parser.add_argument("--again", action="store_true", help="tables that have a line, too")
    parser.add_argument(
        "--page", action="store_true", help="write benchmarks/zoo.md and do no more"
    )
    options = parser.parse_args()
    if options.page:
        write_page()
        return
    # Before the forks, so that each step's time is its own.
    import mechanisms.release.report
    import mechanisms.synthesis.pipeline  # noqa: F401

    deadline = time.perf_counter() + options.budget_seconds
    for table in TABLES:
        if options.only and not any(part in table.name for part in options.only):
            continue
        if table.name in known() and not options.again:
            continue
        if time.perf_counter() > deadline:
            print(f"time is up before {table.name}", file=sys.stderr)
            break
        line = visit(table, options.limit)
        if "absent" in line:
            print(f"{table.name}: {line['absent']}", file=sys.stderr)
            continue
        with RESULT.open("a") as file:
            file.write(json.dumps(line) + "\n")
        failures = [f"{e['step']}: {e['error']}" for e in line["steps"] if not e["ok"]]
        with contextlib.suppress(BrokenPipeError):
            print(f"{table.name}: {line['seconds']} s, {'; '.join(failures) or 'ok'}", flush=True)
    print(markdown([line for line in known().values()]))


if __name__ == "__main__":
    main()
