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
writes this page. Each other program runs in an environment of its own, with its defaults. All are
judged by their records: the mean and the largest total variation of the pairs, the mean of 200
triples, NIST's k-marginal score of these triples (1,000 is perfect), and macro F1 of a logistic
regression of a label.

CPU seconds are those of one process on 2 cores of a shared machine, where
only their ratios mean something. Names with a slash are tables of the packages of R's data sets,
coded as in `benchmarks.regret`. `xor` and `scm` are drawn by the benchmark: a label that is the
parity of three of ten fair bits, and twelve attributes that are nonlinear functions of earlier
ones.

![mean error of pairs against CPU seconds](img/arena.svg)

Lower left is better; pgmkit's mechanisms are filled.
"""


def report(lines: Sequence[Mapping[str, Any]], not_run: Mapping[str, str]) -> str:
    """The table of all lines, and who was not run."""
    rows = []
    for each in sorted(lines, key=lambda each: (each["table"], each.get("pairs", 9))):
        if "pairs" in each:
            cells = [each.get(measure) for measure in MEASURES]
        else:
            why = f"over {each['over']} CPU s" if "over" in each else each["failed"]
            cells = [why, *[None] * (len(MEASURES) - 1)]
        rows.append([each["table"], each["who"], *cells])
    parts = [table(["table", "who", *MEASURES], rows), ""]
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
    page.write_text(f"{_HEAD}\n{report(lines, not_run)}\n", encoding="utf-8")
