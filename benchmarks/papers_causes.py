"""Why an order of a paper does not hold here, or an error is behind the authors' code.

The causes are the entries ``[[cause]]`` of ``papers.toml``. The page has one row for each of them
that a stored run asks for, with all that it explains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks import adaptive_report as report
from benchmarks.common import table

if TYPE_CHECKING:
    from benchmarks.papers_page import Experiment, Summaries, Verdicts

AUTHORS = "the authors' code"
HEAD = ["paper", "place", "what fails", "cause", "why"]
INTRODUCTION = """Every order that does not hold, and every error behind the authors' code.
After the epsilon are the two means in the order of the sentence, with their standard errors over
seeds, and in brackets those of the authors' code. The *cause* is one of these:

- *seeds*: the difference is at most two standard errors, or stands on one seed;
- *better rival*: the second is better here than in the paper;
- *other data*: the sentence is about a table that is not at hand, and this one differs in what
  counts;
- *choice*: an algorithm of ours differs from the paper's on purpose;
- *shortcoming*: ours is worse than it could be."""

Failure = tuple[str, str, str, str]
"""Setting, first, second (or `AUTHORS`), metric."""


def failures(found: Verdicts) -> Iterator[tuple[Failure, float]]:
    """What fails of an experiment, and at which epsilon."""
    for (setting, first, epsilon, second, metric), verdict in found.orders.items():
        if verdict == "fails":
            yield (setting, first, second, metric), epsilon
    for (setting, first, epsilon, metric), verdict in found.compared.items():
        if verdict == "behind":
            yield (setting, first, AUTHORS, metric), epsilon


def cause_of(failure: Failure, causes: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The kind of cause, and the sentence that says why; of several entries the first."""
    setting, first, second, metric = failure
    for each in causes:
        named = each["first"], each.get("second", AUTHORS), each["metric"]
        if named == (first, second, metric) and setting in each["settings"]:
            return each["cause"], each["why"]
    return "not known", ""


def rows(
    experiments: Sequence[tuple[Experiment, Verdicts]],
    causes: Sequence[Mapping[str, Any]],
    ours: Summaries,
    theirs: Summaries,
) -> list[list[str]]:
    """One row for each paper and reason; what stands in several experiments is of the first."""
    seen: dict[Failure, tuple[Experiment, list[float]]] = {}
    for each, found in experiments:
        for failure, epsilon in failures(found):
            epsilons = seen.setdefault(failure, (each, []))[1]
            if epsilon not in epsilons:
                epsilons.append(epsilon)
    made: dict[tuple[str, str, str], tuple[list[str], list[str]]] = {}
    for failure, (each, epsilons) in seen.items():
        cause, why = cause_of(failure, causes)
        labels, said = made.setdefault((each["paper"], cause, why), ([], []))
        if each["label"] not in labels:
            labels.append(each["label"])
        said.append(_said(failure, sorted(epsilons), ours, theirs))
    return [
        [paper, "; ".join(labels), "; ".join(said), cause, why]
        for (paper, cause, why), (labels, said) in made.items()
    ]


def _said(failure: Failure, epsilons: Sequence[float], ours: Summaries, theirs: Summaries) -> str:
    """What fails, and the means at each epsilon."""
    setting, first, second, metric = failure
    names = [first] if second == AUTHORS else [first, second]
    parts = []
    for epsilon in epsilons:
        keys = [(setting, name, epsilon) for name in names]
        means = " / ".join(_shown(ours[key], metric) for key in keys)
        known = [report.opponent(key, theirs) for key in keys]
        if metric in report.METRICS and any(known):
            beside = " / ".join(f"{k.value(metric):.3g}" if k else "-" for k in known)
            means = f"{means} ({beside})"
        parts.append(f"at {epsilon:g} {means}" if epsilon else means)
    said = f"behind {AUTHORS}" if second == AUTHORS else f"before {second}"
    return f"{first} {said} on {setting} ({metric}): {', '.join(parts)}"


def _shown(summary: report.Summary, metric: str) -> str:
    spread = summary.error(metric)
    return f"{summary.value(metric):.3g}" + (f" ± {spread:.1g}" if spread else "")


def section(*arguments: Any) -> str:
    """The table of the page; its arguments are those of `rows`."""
    return f"{INTRODUCTION}\n\n{table(HEAD, rows(*arguments))}"
