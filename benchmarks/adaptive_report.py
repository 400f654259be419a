"""What the runs in ``results/adaptive.jsonl`` say: tables beside the baselines, checks, plots.

The baselines are the authors' implementations, whose hyperparameters were picked on the true
error, as the papers do; every run of ours uses the mechanism's defaults. Of each algorithm the row
with the smallest largest error counts, for each data set and epsilon.
"""

from __future__ import annotations

import csv
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import RESULTS, table

METRICS = ("max", "mean", "rmse")

BASELINES = {
    "dual-query": ("dualquery",),
    "fem": ("fem",),
    "gaussian": ("gauss_all",),
    "gaussian+projection": ("gauss_all",),
    "gem": ("gem", "gem_full"),
    "gem (the paper's network)": ("gem_full",),
    "gem-pub": ("pmwpub", "pmwpub_code"),
    "hdmm": ("hdmm_zcdp_replace",),
    "hdmm+pgm": ("hdmm_zcdp_replace",),
    "matrix": ("hdmm_zcdp_replace",),
    "matrix+pgm": ("hdmm_zcdp_replace",),
    "mwem": ("mwem",),
    "mwem (no past queries)": ("mwem_nopast",),
    "pep": ("pep",),
    "pep-pub": ("pmwpub", "pmwpub_code"),
    "pmw-pub": ("pmwpub", "pmwpub_code"),
    "rap": ("rap",),
    "rap-softmax": ("rapsoftmax",),
}
"""Our name, and the algorithms of the baseline table that it must not be worse than."""

PEERS = {
    "aim (10 MB)": {"name": "mbi's script", "seconds": 1062.0, "mb": 5600.0, "pairs": 0.0175,
            "max": 0.011, "mean": 6.9e-5, "rmse": 2.7e-4},
    "mst": {"name": "google/dpsynth", "seconds": 19.0, "pairs": 0.0385, "max": 0.040,
            "mean": 1.4e-4},
    "clique-tree": {"name": "google/dpsynth, one shot", "seconds": 514.0, "mb": 2100.0,
                    "pairs": 0.0166, "max": 0.018, "mean": 6.5e-5, "rmse": 2.6e-4},
}  # fmt: skip
"""Published for all rows, add/remove, all pairs, eps 1, delta 4.2e-10, on another machine."""

ORDERINGS = (
    ("pep", "mwem"),
    ("mwem", "mwem (no past queries)"),
    ("mwem", "mwem (average)"),
    ("rap-softmax", "rap"),
)
"""The papers say that the first has the smaller errors."""

GOALS = {1.0: {"max": 0.012, "mean": 8e-5}, 0.1: {"max": 0.06, "mean": 3e-4}}
"""What the best mechanism without public data should reach on ADULT, both at once."""


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation over seeds of each figure of one (mechanism, data set, eps)."""

    seeds: int
    means: Mapping[str, float | None]
    deviations: Mapping[str, float | None]

    def error(self, metric: str) -> float:
        """The standard error of the mean; 0 where the spread is unknown (one seed)."""
        spread = self.deviations.get(metric)
        return 0.0 if spread is None or math.isnan(spread) else spread / math.sqrt(self.seeds)

    def value(self, metric: str) -> float:
        value = self.means[metric]
        return math.nan if value is None else value


Key = tuple[str, str, float]
"""Data set, mechanism, epsilon."""


def summarise(runs: Iterable[Mapping[str, Any]]) -> dict[Key, Summary]:
    """Runs by (data set, mechanism, epsilon); what was refused or did not end is left out."""
    groups: dict[Key, list[Mapping[str, Any]]] = defaultdict(list)
    for run in runs:
        if not {"refused", "over"} & run.keys():
            groups[run["dataset"], run["mechanism"], run["epsilon"]].append(run)
    return {key: _summary(group) for key, group in groups.items()}


def _summary(group: Sequence[Mapping[str, Any]]) -> Summary:
    names = {name for run in group for name, value in run.items() if isinstance(value, float | int)}
    means: dict[str, float | None] = dict.fromkeys(METRICS)
    deviations: dict[str, float | None] = {}
    for name in {*METRICS, *names}:
        values = [run[name] for run in group if run.get(name) is not None]
        means[name] = float(np.mean(values)) if values else None
        deviations[name] = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Summary(len(group), means, deviations)


def baseline_file() -> Path | None:
    """PGMKIT_BASELINES, else ``../reference/adaptive-baselines.csv`` beside PGMKIT_DATA."""
    named = os.environ.get("PGMKIT_BASELINES")
    data = os.environ.get("PGMKIT_DATA")
    if named is None and data is not None:
        named = str(Path(data).resolve().parent / "reference" / "adaptive-baselines.csv")
    return Path(named) if named is not None and Path(named).exists() else None


def read_baselines(path: Path | None) -> dict[Key, Summary]:
    """The best row (by largest error) of each algorithm, data set and epsilon."""
    best: dict[Key, Summary] = {}
    if path is None:
        return best
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            key = (row["dataset"], row["alg"], float(row["eps"]))
            means = {m: float(row[m]) for m in METRICS}
            means |= {"seconds": _number(row["wall_s"]), "cpu_seconds": _number(row["cpu_s"])}
            deviations = {m: _number(row[f"{m}_sd"]) for m in METRICS}
            summary = Summary(int(row["seeds"]), means, deviations)
            if key not in best or summary.value("max") < best[key].value("max"):
                best[key] = summary
    return best


def _number(text: str) -> float:
    return float(text) if text else math.nan


def opponent(key: Key, baselines: Mapping[Key, Summary]) -> Summary | None:
    """The strictest baseline of a mechanism: the smallest largest error among its algorithms."""
    dataset, mechanism, epsilon = key
    rows = [
        baselines[dataset, algorithm, epsilon]
        for algorithm in BASELINES.get(mechanism, ())
        if (dataset, algorithm, epsilon) in baselines
    ]
    return min(rows, key=lambda row: row.value("max"), default=None)


def no_worse(ours: Summary, theirs: Summary, metric: str) -> bool:
    """Whether our mean is at most theirs plus one standard error of the difference."""
    slack = math.hypot(ours.error(metric), theirs.error(metric))
    return ours.value(metric) <= theirs.value(metric) + slack


def verdict(ours: Summary, theirs: Summary | None) -> str:
    """ "yes" for all three metrics, or those that are worse."""
    if theirs is None:
        return "-"
    worse = [metric for metric in METRICS if not no_worse(ours, theirs, metric)]
    return "no: " + ", ".join(worse) if worse else "yes"


def seeds_in_words(summaries: Mapping[Key, Summary]) -> str:
    """How many seeds most rows have, and which mechanisms have fewer or more."""
    if not summaries:
        return "none yet"
    usual = Counter(summary.seeds for summary in summaries.values()).most_common(1)[0][0]
    others = {key[1]: s.seeds for key, s in summaries.items() if s.seeds != usual}
    named = ", ".join(f"{count} of {name}" for name, count in sorted(others.items()))
    return f"{usual} seeds" + (f", {named}" if named else "")


def error_table(
    dataset: str, summaries: Mapping[Key, Summary], baselines: Mapping[Key, Summary]
) -> str:
    """A row for each mechanism: its errors at the least and the largest epsilon, the authors' in
    brackets, where it is behind them, and what it costs at the largest epsilon.
    """
    present = sorted(key for key in summaries if key[0] == dataset)
    epsilons = sorted({key[2] for key in present})
    shown = dict.fromkeys((epsilons[0], epsilons[-1]))
    errors = [f"{metric} at {epsilon:g}" for epsilon in shown for metric in ("max", "mean")]
    rows = []
    for name in dict.fromkeys(key[1] for key in present):
        cells = [
            _beside((dataset, name, epsilon), summaries, baselines, metric)
            for epsilon in shown
            for metric in ("max", "mean")
        ]
        last = summaries[dataset, name, max(key[2] for key in present if key[1] == name)]
        costs = [last.means.get(figure) for figure in ("pairs", "cpu_seconds", "peak_mb")]
        rows.append([name, *cells, _behind(dataset, name, summaries, baselines), *costs])
    header = ["mechanism", *errors, "behind the authors", "pairs TV", "CPU s", "MB"]
    return table(header, rows)


def _beside(
    key: Key, summaries: Mapping[Key, Summary], baselines: Mapping[Key, Summary], metric: str
) -> str | None:
    """Our error, and the authors' in brackets where it is known; None if we have not run."""
    if key not in summaries:
        return None
    theirs = opponent(key, baselines)
    return _spread(summaries[key], metric) + (f" ({theirs.value(metric):.4g})" if theirs else "")


def _behind(
    dataset: str, name: str, summaries: Mapping[Key, Summary], baselines: Mapping[Key, Summary]
) -> str:
    """The epsilons and metrics at which a mechanism is worse than the authors' code; or "no"."""
    keys = sorted(key for key in summaries if key[:2] == (dataset, name))
    verdicts = {key[2]: verdict(summaries[key], opponent(key, baselines)) for key in keys}
    if set(verdicts.values()) == {"-"}:
        return "-"
    worse = [f"{e:g}: {v.removeprefix('no: ')}" for e, v in verdicts.items() if v[:2] == "no"]
    return "; ".join(worse) or "no"


def _spread(summary: Summary, metric: str) -> str:
    return f"{summary.value(metric):.3g} ± {summary.error(metric):.1g}"


def peer_table(summaries: Mapping[Key, Summary]) -> str:
    """Ours above the peer's; "no worse" allows one standard error of ours, figure by figure."""
    header = (
        "side", "seeds", "whole process s", "mechanism s", "CPU s", "MB", "pairs TV", "3-way max",
        "mean", "RMSE", "no worse",
    )  # fmt: skip
    errors = ("pairs", *METRICS)
    rows: list[list[Any]] = []
    for (dataset, mechanism, _), ours in sorted(summaries.items()):
        if dataset != "adult-all":
            continue
        peer = PEERS.get(mechanism, {})
        worse = [
            name
            for name in errors
            if name in peer and ours.value(name) > peer[name] + ours.error(name)
        ]
        said = f"no: {', '.join(worse)}" if worse else "yes"
        costs = [ours.means[name] for name in ("process_seconds", "seconds", "cpu_seconds")]
        spreads = [_spread(ours, name) for name in errors]
        memory = ours.means["peak_mb"]
        rows.append([mechanism, ours.seeds, *costs, memory, *spreads, said if peer else None])
        if peer:
            figures = [peer.get(name) for name in ("mb", *errors)]
            side = f"{peer['name']}, another machine"
            rows.append([side, None, peer["seconds"], None, None, *figures, None])
    return table(header, rows)


def ordering_lines(summaries: Mapping[Key, Summary]) -> list[str]:
    """One line for each ordering and data set: whether it holds on the largest and the mean error.

    It fails where the first mean is larger by more than a standard error of the difference: of two
    that do the same, one is ahead by chance.
    """
    lines = []
    for better, worse in ORDERINGS:
        for dataset in ("adult-small", "adult"):
            shared = sorted(
                epsilon
                for name, mechanism, epsilon in summaries
                if (name, mechanism) == (dataset, better) and (dataset, worse, epsilon) in summaries
            )
            fails = [
                f"{metric} fails at eps {epsilon:g}"
                for metric in ("max", "mean")
                for epsilon in shared
                if not no_worse(
                    summaries[dataset, better, epsilon], summaries[dataset, worse, epsilon], metric
                )
            ]
            if shared:
                covered = ", ".join(f"{epsilon:g}" for epsilon in shared)
                said = ", ".join(fails) or "holds"
                lines.append(f"- {better} before {worse}, {dataset} (eps {covered}): {said}")
    return lines


def goal_lines(summaries: Mapping[Key, Summary], with_public: Iterable[str]) -> list[str]:
    """Which mechanisms without public data reach the goals on ADULT, or come closest."""
    lines = []
    for epsilon, goal in GOALS.items():
        rivals = {
            key[1]: summary
            for key, summary in summaries.items()
            if key[0] == "adult" and key[2] == epsilon and key[1] not in set(with_public)
        }
        reached = [name for name, s in rivals.items() if all(s.value(m) <= goal[m] for m in goal)]
        wanted = ", ".join(f"{metric} at most {value:g}" for metric, value in goal.items())
        nearest = min(
            rivals, default="-", key=lambda r: max(rivals[r].value(m) / goal[m] for m in goal)
        )
        said = ", ".join(reached) or f"none yet; nearest: {nearest}"
        lines.append(f"- eps {epsilon:g}, {wanted}: {said}")
    return lines


def plot(
    dataset: str,
    summaries: Mapping[Key, Summary],
    baselines: Mapping[Key, Summary],
    folder: Path = RESULTS,
) -> Path:
    """Errors against epsilon: one line a mechanism, its baseline dashed in the same colour;
    baselines that no mechanism here stands against dashed in grey.
    """
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "adaptive"
    names = sorted({key[1] for key in summaries if key[0] == dataset})
    opposed = {algorithm for name in names for algorithm in BASELINES.get(name, ())}
    others = sorted({key[1] for key in baselines if key[0] == dataset} - opposed)
    colours = pyplot.get_cmap("tab20")(np.linspace(0, 1, max(2, len(names))))
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 4.2))
    for axis, metric in zip(axes, METRICS, strict=True):
        for algorithm in others:
            points = _points(dataset, algorithm, baselines, metric)
            axis.plot(*zip(*points, strict=True), "--", color="0.75", linewidth=1)
            axis.annotate(algorithm, points[-1], fontsize=5, color="0.5")
        for name, colour in zip(names, colours, strict=True):
            keys = sorted(key for key in summaries if key[:2] == (dataset, name))
            points = _points(dataset, name, summaries, metric)
            spreads = [summaries[key].error(metric) for key in keys]
            axis.errorbar(*zip(*points, strict=True), spreads, marker=".", color=colour, label=name)
            rivals = [(key[2], opponent(key, baselines)) for key in keys]
            known = [(epsilon, rival.value(metric)) for epsilon, rival in rivals if rival]
            if known:
                axis.plot(*zip(*known, strict=True), "--", color=colour, alpha=0.6)
        axis.set(xscale="log", yscale="log", xlabel="epsilon", title=f"{metric} error / n")
    figure.suptitle(f"{dataset}, all 3-way marginals; dashed: the authors' implementations")
    figure.tight_layout(rect=(0, 0, 0.86, 1))
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=7, loc="center right")
    path = folder / f"adaptive-{dataset}.svg"
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path


def _points(
    dataset: str, name: str, summaries: Mapping[Key, Summary], metric: str
) -> list[tuple[float, float]]:
    keys = sorted(key for key in summaries if key[:2] == (dataset, name))
    return [(key[2], summaries[key].value(metric)) for key in keys]


def replace_section(readme: Path, text: str) -> None:
    """Put the text between the markers of the README.

    Raises:
        SystemExit: the README has no markers.
    """
    begin, end = "<!-- adaptive: begin -->", "<!-- adaptive: end -->"
    old = readme.read_text(encoding="utf-8")
    if begin not in old or end not in old:
        raise SystemExit(f"{readme} has no {begin} ... {end} to write between")
    before, after = old.split(begin)[0], old.split(end, 1)[1]
    temporary = readme.with_suffix(".part")
    temporary.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
    temporary.replace(readme)
