"""The page of the papers' tables and figures: ``docs/reproduction.md``, from stored runs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import adaptive_report as report
from benchmarks import papers_causes
from benchmarks.common import table

PAPERS = {
    "001": "Private-PGM (McKenna, Sheldon and Miklau 2019, appendix)",
    "002": "RAP++ (Vietri et al. 2022)",
    "003": "PMW-Pub (Liu, Vietri, Steinke, Ullman and Wu 2021)",
    "004": "Iterative methods (Liu, Vietri and Wu 2021)",
    "000": "Iterative methods, a second copy of the appendix",
}
LARGER_IS_BETTER = ("f1", "f1 second")
Summaries = Mapping[report.Key, report.Summary]
Experiment = Mapping[str, Any]

INTRODUCTION = """# The papers' experiments and this program's results

Every table and figure of the five papers, in the papers' order: what the paper says, and what
this program finds. For what does not hold see "What does not hold, and why".

`python -m benchmarks.papers` runs what is missing and writes this page; `--paper 003 --table 2`
does so for one table. The runs are in `benchmarks/results/papers.jsonl` and `adaptive.jsonl`
beside it.

- *Theirs* is what the papers' text says; the figures' images were not available. If the authors'
  own code was run on the same table, its errors are in brackets after ours. Its settings were
  chosen by the true error, ours are fixed defaults.
- *Better*, *equal* and *behind* compare our mean over seeds with those errors; within one
  standard error of the difference they are equal.
- An *order* is a sentence of a paper that one mechanism has smaller errors than another. It holds
  if our means say the same, or differ by less than one standard error.
- Rows with † have runs of earlier code (21 November 2026); `-` is not run.
- Errors are fractions of n. Experiments use replace-one and delta 1/n², unless stated otherwise.
  CPU seconds are of a shared machine: only their ratios can be compared.
"""


@dataclass(frozen=True)
class Verdicts:
    """What comparisons with the authors' code found, which claimed orders hold, and which printed
    numbers are found here, to their digits.
    """

    compared: dict[tuple[Any, ...], str]
    orders: dict[tuple[Any, ...], str]
    printed: dict[report.Key, bool]


def verdicts(each: Experiment, ours: Summaries, theirs: Summaries) -> Verdicts:
    compared, orders = {}, {}
    for key in keys_of(each, ours):
        rival = report.opponent(key, theirs)
        if rival is not None and each["metric"] in report.METRICS:
            compared[*key, each["metric"]] = compare(ours[key], rival, each["metric"])
    for first, second in each.get("before", ()):
        for setting, epsilon in itertools.product(each["settings"], each["epsilons"]):
            one, other = (setting, first, float(epsilon)), (setting, second, float(epsilon))
            if one in ours and other in ours:
                held = compare(ours[one], ours[other], each["metric"]) != "behind"
                orders[*one, second, each["metric"]] = "holds" if held else "fails"
    printed = {}
    for key, number in printed_of(each).items():
        if key in ours:
            digits = len(number.split("e")[0].replace(".", "").lstrip("0"))
            found = float(f"{ours[key].value(each['metric']):.{digits}g}")
            printed[key] = found == float(number)
    return Verdicts(compared, orders, printed)


def printed_of(each: Experiment) -> dict[report.Key, str]:
    """The numbers of a paper that are computed here too."""
    return {(setting, name, 0.0): number for setting, name, number in each.get("printed", ())}


def keys_of(each: Experiment, ours: Summaries) -> Iterator[report.Key]:
    for setting, name, epsilon in itertools.product(
        each.get("settings", ()), each.get("contestants", ()), each.get("epsilons", ())
    ):
        if (setting, name, float(epsilon)) in ours:
            yield setting, name, float(epsilon)


def compare(one: report.Summary, other: report.Summary, metric: str) -> str:
    """Of the first: "better", "equal" (within a standard error of the difference) or "behind"."""
    sign = -1 if metric in LARGER_IS_BETTER else 1
    slack = (one.error(metric) ** 2 + other.error(metric) ** 2) ** 0.5
    gap = sign * (one.value(metric) - other.value(metric))
    return "equal" if abs(gap) <= slack else "behind" if gap > 0 else "better"


def status(each: Experiment, found: Verdicts, ran: bool) -> str:
    """The status of a row, in words."""
    said = []
    if found.compared:
        counted = Counter(found.compared.values())
        parts = [f"{counted[k]} {k}" for k in ("better", "equal", "behind") if counted[k]]
        said.append("authors' code: " + ", ".join(parts))
    if found.orders:
        held = Counter(found.orders.values())["holds"]
        said.append(f"orders: {held} of {len(found.orders)} hold")
    if found.printed:
        equal = sum(found.printed.values())
        said.append(f"{equal} of {len(found.printed)} printed numbers are found here")
    if not said:
        missing = "not run" if each.get("lacks") else "nothing to run"
        said.append("ran" if ran else missing)
    return ". ".join(said)


def rows_of(
    each: Experiment, ours: Summaries, theirs: Summaries, old: Set[report.Key]
) -> list[list[str]]:
    """Ours, and the authors' in brackets: a row a setting and contestant, a column an epsilon.

    Those in `old` have a dagger.
    """
    found = []
    for setting, name in itertools.product(each["settings"], each["contestants"]):
        cells = []
        for epsilon in each["epsilons"]:
            key = (setting, name, float(epsilon))
            if key not in ours:
                cells.append("-")
                continue
            rival = report.opponent(key, theirs) if each["metric"] in report.METRICS else None
            beside = f" ({rival.value(each['metric']):.3g})" if rival else ""
            value = ours[key].value(each["metric"])
            shown = f"{value:,}" if float(value).is_integer() else f"{value:.3g}"
            cells.append(f"{shown.removesuffix('.0')}{beside}")
        if set(cells) != {"-"}:
            seeds = max(ours[k].seeds for k in keys_of(each, ours) if k[:2] == (setting, name))
            mark = " †" if any((setting, name, float(e)) in old for e in each["epsilons"]) else ""
            found.append([setting, name + mark, str(seeds), *cells])
    return found


def earlier(runs: Sequence[Mapping[str, Any]]) -> set[report.Key]:
    """What was run by earlier code."""
    return {(r["dataset"], r["mechanism"], r["epsilon"]) for r in runs if "earlier" in r}


def refusals(each: Experiment, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was refused, or did not end, of an experiment: a line for each reason."""
    reasons: dict[str, dict[str, None]] = {}
    for run in runs:
        if run["dataset"] in each.get("settings", ()) and run["mechanism"] in each["contestants"]:
            who = f"{run['mechanism']} on {run['dataset']}"
            if "refused" in run:
                reasons.setdefault(f"refused: {run['refused']}", {})[who] = None
            if "over" in run:
                reasons.setdefault(f"ended at {run['over']} CPU s", {})[who] = None
    return sorted(f"- {', '.join(sorted(who))}: {reason}" for reason, who in reasons.items())


def shared(each: Experiment, rows: Sequence[list[str]], head: Sequence[str]) -> Iterator[str]:
    """The table of an experiment, after a line that says what all its rows have in common.

    Several settings at one epsilon stand beside each other.
    """
    names, common = ["setting", "mechanism", "seeds"], []
    if len({row[0] for row in rows}) == 1:
        common.append(f"Setting: {rows[0][0]}")
    if len({row[2] for row in rows}) == 1:
        common.append(f"seeds: {rows[0][2]}")
    if list(head) != [each["metric"]]:
        common.append(f"metric: {each['metric']}")
    settings = list(dict.fromkeys(row[0] for row in rows))
    if len(head) == 1 < len(settings) and len({row[2] for row in rows}) == 1:
        if head != [each["metric"]]:
            common.append(head[0])
        cells = {(row[1], row[0]): row[3] for row in rows}
        lines = [[m, *(cells.get((m, s), "-") for s in settings)] for m in {r[1]: 0 for r in rows}]
        columns = ["mechanism", *settings]
    else:
        told = [name for name in names if not any(c.lower().startswith(name) for c in common)]
        kept = [names.index(name) for name in told]
        columns = [*told, *head]
        lines = once([[*(row[k] for k in kept), *row[3:]] for row in rows])
    said = "; ".join(common)
    yield f"{said[:1].upper()}{said[1:]}." if said else ""
    yield table(columns, lines)


def once(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """The rows without a first cell that is that of the row above."""
    firsts = ["", *(row[0] for row in rows)]
    return [["" if row[0] == f else row[0], *row[1:]] for row, f in zip(rows, firsts, strict=False)]


def section(
    each: Experiment, runs: Sequence[Mapping[str, Any]], ours: Summaries, theirs: Summaries
) -> str:
    """One table or figure: theirs, ours, what differs."""
    found = verdicts(each, ours, theirs)
    rows = rows_of(each, ours, theirs, earlier(runs)) if "settings" in each else []
    parts = [
        f"### {each['label']}: {each['what']}",
        f"Theirs: {each['theirs']}.",
    ]
    if each.get("their_table"):
        head, *lines = each["their_table"]
        parts.append(table(head, once(lines)))
    if (said := status(each, found, bool(rows))) != "ran":
        parts.append(f"Status: {said}.")
    if rows:
        head = [f"eps {epsilon:g}" if epsilon else each["metric"] for epsilon in each["epsilons"]]
        parts += [*shared(each, rows, head)]
    if each.get("lacks"):
        parts.append(f"Lacking: {each['lacks']}.")
    parts += [f"{each['why'][0].upper()}{each['why'][1:]}."] if each.get("why") else []
    parts += ["\n".join(lines)] if (lines := refusals(each, runs)) else []
    return "\n\n".join(part for part in parts if part)


def totals(experiments: Sequence[Experiment], ours: Summaries, theirs: Summaries) -> str:
    """The count over all rows."""
    every = [verdicts(each, ours, theirs) for each in experiments]
    # A run that stands in several rows counts once.
    compared = Counter({k: v for found in every for k, v in found.compared.items()}.values())
    orders = Counter({k: v for found in every for k, v in found.orders.items()}.values())
    lacking = [each for each in experiments if each.get("lacks")]
    stood_in = sum(any(True for _ in keys_of(each, ours)) for each in lacking)
    numbers = sum(each["numbers"] for each in experiments)
    unavailable = sum(each["numbers"] for each in lacking)
    computed = [equal for found in every for equal in found.printed.values()]
    return "\n".join(
        [
            f"- Entries: {len(experiments)}. For {len(lacking)} the data are not available; "
            f"{stood_in} of these were run on other data.",
            f"- Printed numbers: {numbers}. For {unavailable} the data are not available; of the "
            f"other {len(computed)} this program finds {sum(computed)}.",
            f"- Errors beside the authors' code: {compared['better']} better, "
            f"{compared['equal']} equal, {compared['behind']} behind.",
            f"- Orders: {orders['holds']} hold, {orders['fails']} do not.",
        ]
    )


def plot(
    paper: str, experiments: Sequence[Experiment], ours: Summaries, theirs: Summaries, folder: Path
) -> Path | None:
    """Small multiples against epsilon: ours with markers, the authors' code dashed."""
    panels = [
        (each, setting)
        for each in experiments
        if each["paper"] == paper and len(each.get("epsilons", ())) > 1
        for setting in each["settings"]
        if any(key[0] == setting for key in keys_of(each, ours))
    ]
    if not panels:
        return None
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.hashsalt": "papers", "svg.fonttype": "none"})
    lines = -(-len(panels) // 4)
    figure, axes = pyplot.subplots(lines, 4, figsize=(13, 2.9 * lines), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (each, setting) in zip(axes.flat, panels, strict=False):
        metric = each["metric"]
        for name in each["contestants"]:
            keys = sorted(k for k in keys_of(each, ours) if k[:2] == (setting, name))
            if not keys:
                continue
            values = [ours[key].value(metric) for key in keys]
            spread = [ours[key].error(metric) for key in keys]
            line = axis.errorbar([k[2] for k in keys], values, spread, marker=".", label=name)
            rivals = [(key[2], report.opponent(key, theirs)) for key in keys]
            known = [(eps, rival.value(metric)) for eps, rival in rivals if rival]
            if known and metric in report.METRICS:
                axis.plot(*zip(*known, strict=True), "--", color=line[0].get_color(), alpha=0.6)
        scale = "linear" if metric in LARGER_IS_BETTER else "log"
        axis.set(xscale="log", yscale=scale)
        axis.set_title(f"{each['label']}\n{setting}: {metric}", fontsize=7)
        axis.tick_params(labelsize=6)
        axis.legend(fontsize=5)
    figure.tight_layout()
    path = folder / f"papers-{paper}.svg"
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path


def write(
    experiments: Sequence[Experiment],
    causes: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]],
    page: Path,
    folder: Path,
) -> None:
    """Write the page, and the plots into `folder`."""
    ours = report.summarise(runs)
    theirs = report.read_baselines(report.baseline_file())
    if not theirs:
        raise SystemExit("no adaptive-baselines.csv: set PGMKIT_BASELINES to it")
    found = [(each, verdicts(each, ours, theirs)) for each in experiments]
    parts = [
        INTRODUCTION,
        "## Counts",
        totals(experiments, ours, theirs),
        "## What does not hold, and why",
        papers_causes.section(found, causes, ours, theirs),
    ]
    for paper, title in PAPERS.items():
        parts.append(f"## {paper}: {title}")
        picture = plot(paper, experiments, ours, theirs, folder)
        if picture:
            parts.append(f"![errors against epsilon](img/{picture.name})")
        parts += [section(e, runs, ours, theirs) for e in experiments if e["paper"] == paper]
    temporary = page.with_suffix(".part")
    temporary.write_text("\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8")
    temporary.replace(page)
