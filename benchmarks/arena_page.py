"""The page of the arena: what the lines of ``results/arena.jsonl`` say, as a table and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import table

MEASURES = ("pairs", "largest pair", "triples", "k-marginal", "f1", "cpu_seconds", "peak_mb")
_ACROSS = 4
"""The panels of a line of the picture."""
_HEAD = """# Other programs on the same tables

`python -m benchmarks.arena` runs other programs and pgmkit on the same tables, with all rows,
add/remove, epsilon 1, delta 1/n² (ADULT: 4.2e-10), all pairs as the workload and one seed. It
writes this page from `benchmarks/results/arena.jsonl`. Each other program runs in an environment of
its own, with its defaults. All are judged by their records.

The first table has the mean error of the pairs of `auto`, of the best of pgmkit's mechanisms by
name and of the best other program, each with its CPU seconds. Other programs that ran on few
tables, or not at all, stand at the end of the page.
"""
_MEASURES_IN_WORDS = """
The measures: the mean and the largest total variation of the pairs, the mean of 200 triples, NIST's
k-marginal score of these triples (1,000 is perfect), and macro F1 of a logistic regression of a
label. CPU seconds are those of one process on 2 cores of a shared machine, where only their ratios
mean something.

Names with a slash are tables of the packages of R's data sets, coded as in `benchmarks.regret`.
`xor` and `scm` are drawn by the benchmark: a label that is the parity of three of ten fair bits,
and twelve attributes that are nonlinear functions of earlier ones.

![mean error of pairs against CPU seconds](img/arena.svg)

Lower left is better; pgmkit's mechanisms are filled.
"""


def summary(lines: Sequence[Mapping[str, Any]], own: Sequence[str]) -> str:
    """A row a table: `auto`, the best of ours by name, and the best other program."""
    rows = []
    for name in sorted({each["table"] for each in lines}):
        known = [each for each in lines if each["table"] == name and "pairs" in each]
        sides = (
            [each for each in known if each["who"] == "auto"],
            [each for each in known if each["who"] in own and each["who"] != "auto"],
            [each for each in known if each["who"] not in own],
        )
        best = [min(side, key=lambda each: each["pairs"], default=None) for side in sides]
        auto = best[0] and f"{best[0]['pairs']:.4g} ({best[0]['cpu_seconds']:.4g} s)"
        cells = [
            each and f"{each['who']}: {each['pairs']:.4g} ({each['cpu_seconds']:.4g} s)"
            for each in best[1:]
        ]
        ratio = best[0] and best[2] and f"{best[0]['pairs'] / best[2]['pairs']:.2f}"
        rows.append([name, auto, *cells, ratio])
    return table(["table", "auto", "ours by name", "other program", "auto over other"], rows)


def report(lines: Sequence[Mapping[str, Any]], not_run: Mapping[str, str]) -> str:
    """The table of all lines, what did not end, and who was not run."""
    known = [each for each in lines if "pairs" in each]
    rows = [
        [each["table"], each["who"], *(each.get(measure) for measure in MEASURES)]
        for each in sorted(known, key=lambda each: (each["table"], each["pairs"]))
    ]
    ended = [
        f"{each['who']} on {each['table']} "
        + (f"(over {each['over']} CPU s)" if "over" in each else f"({each['failed']})")
        for each in sorted(lines, key=lambda each: (each["who"], each["table"]))
        if "pairs" not in each
    ]
    parts = [table(["table", "who", *MEASURES], rows), ""]
    parts += [f"- No answer: {', '.join(ended)}."] if ended else []
    parts += [f"- {who}: {why}." for who, why in not_run.items()]
    return "\n".join(parts)


def plot(lines: Sequence[Mapping[str, Any]], own: Sequence[str], path: Path) -> None:
    """Draw the mean error of pairs against CPU seconds, a panel for each table."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.hashsalt": "arena", "svg.fonttype": "none"})
    known = [each for each in lines if "pairs" in each]
    names = sorted({each["table"] for each in known})
    rows = -(-len(names) // _ACROSS)
    size = (4.2 * _ACROSS, 3.8 * rows)
    figure, axes = pyplot.subplots(rows, _ACROSS, figsize=size, squeeze=False)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names, strict=False):
        for each in (each for each in known if each["table"] == name):
            filled = "#3366aa" if each["who"] in own else "none"
            axis.scatter(each["cpu_seconds"], each["pairs"], facecolor=filled, edgecolor="#3366aa")
            axis.annotate(
                each["who"],
                (each["cpu_seconds"], each["pairs"]),
                xytext=(4, 3),
                textcoords="offset points",
                fontsize=7,
            )
        axis.set(xscale="log", yscale="log", title=name, xlabel="CPU seconds")
    for axis in axes[:, 0]:
        axis.set_ylabel("mean total variation of pairs")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def write(
    lines: Sequence[Mapping[str, Any]],
    not_run: Mapping[str, str],
    own: Sequence[str],
    page: Path,
) -> None:
    """Write the page, and its picture beside it."""
    plot(lines, own, page.parent / "img" / "arena.svg")
    parts = [_HEAD, summary(lines, own), _MEASURES_IN_WORDS, report(lines, not_run)]
    page.write_text("\n".join(parts) + "\n", encoding="utf-8")
