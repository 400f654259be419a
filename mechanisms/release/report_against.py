"""The part of a report that compares with the private data; it is not private, and says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import numpy as np

from mechanisms.release import comparison, evaluation
from mechanisms.release.tabular import TableRelease
from pgmkit import RegionModel
from pgmkit.domain import Clique
from pgmkit.errors import InvalidInput, installing
from pgmkit.records.dataset import Dataset
from pgmkit.runtime.html import MOST_COLUMNS, table
from pgmkit.runtime.printed import NAMED
from pgmkit.runtime.typed import typed_class

DRAWN = 3 * MOST_COLUMNS
"""The most columns that are drawn, and sets of columns that are compared: a page of a few
megabytes.
"""
NOT_PRIVATE = (
    "NOT PRIVATE: the part 'Against the private data' was computed from them without noise. Do not "
    "publish this page."
)
"""This warning begins the page and the part of it that compares with the private data."""
_MOST_MARGINALS = MOST_COLUMNS
"""The most marginals of a score that is computed again for several samples or for every record."""


@typed_class
@dataclass(frozen=True)
class Evaluation:
    """Private data to compare with; a report that uses it is not private.

    Raises InvalidInput for fewer than 2 private records, and for `test` records that are these
    same records.

    Attributes:
        truth: The private records.
        target: A column to predict, if any.
        test: Records that the release was not made of, to test predictions on and, if there are 4
            or more, to attack the release with; by default a quarter of `truth` is set aside for
            the predictions, and there is no attack.
    """

    truth: Dataset
    target: str | None = None
    test: Dataset | None = None

    def __post_init__(self) -> None:
        if len(self.truth) < 2:
            raise InvalidInput(
                "a comparison divides the private records into two parts, so that it needs 2 or "
                f"more, got {len(self.truth)}; leave it out"
            )
        others = {} if self.test is None else self.test.columns
        if others and all(
            np.array_equal(codes, others.get(name, ()))
            for name, codes in self.truth.columns.items()
        ):
            raise InvalidInput(
                "the test records are the private records themselves, of which the release was "
                "made, so that no attack could tell them apart; give others, or leave them out"
            )


def sections(release: TableRelease, against: Evaluation) -> dict[str, Iterator[str]]:
    """Return the sections by name, as iterators over pieces of HTML, which are computed as they are
    read. A section takes seconds, however large the table is.

    For separate tables, from which no records can be drawn, there are only the errors of marginals
    within them. If a target or test records are given for these, reading the sections raises
    InvalidInput.
    """
    if separate(release) and not (against.target or against.test):
        return {"errors": _errors(release, against.truth)}
    size = min(len(against.truth), max(1, round(release.model.total)), evaluation.AT_ONCE)
    # Records are drawn for the first section that asks for them, when progress is shown already.
    synthetic = cache(lambda: release.codes(size, rng=0))
    truth = against.truth
    found = {
        "errors": _errors(release, truth),
        "similarity": _similarity(synthetic, truth),
        "k-marginal score": _k_marginal(synthetic, truth),
        "propensity": _by_classifier("Propensity", _propensity(synthetic, truth)),
        "regressions": _regressions(release, synthetic, against),
        "matches": _matches(synthetic, truth),
        "membership": _membership(release, against),
    }
    if against.target is not None:
        predicted = _prediction(release, against, against.target)
        found["prediction"] = _by_classifier("Prediction", predicted)
    return found


def _by_classifier(title: str, section: Iterator[str]) -> Iterator[str]:
    """Yield a section that needs scikit-learn, or, where that is missing, how to install it."""
    yield f"<h3>{title}</h3>"
    if find_spec("sklearn") is None:
        yield f"<p>Left out: it needs scikit-learn ({installing('report')}).</p>"
    else:
        yield from section


def separate(release: TableRelease) -> Collection[Clique]:
    """Return the cliques of a release of separate tables; empty for a model of all columns."""
    return () if isinstance(release.model, RegionModel) else getattr(release.model, "tables", ())


def _errors(release: TableRelease, truth: Dataset) -> Iterator[str]:
    yield "<h2>Against the private data</h2>"
    yield f"<p class='warn'>{NOT_PRIVATE}</p>"
    rows, worst, sampled = [], [], []
    tables = separate(release)
    for k in range(1, min(3, len(truth.domain)) + 1):
        cliques = evaluation.some_cliques(truth.domain, k, most=None if k == 1 else DRAWN)
        if tables:
            cliques = [clique for clique in cliques if any(set(clique) <= set(t) for t in tables)]
        errors = evaluation.marginal_errors(release.model, truth, cliques)
        values = list(errors.values())
        if not values:
            continue
        rows.append([f"{k}-way", str(len(errors)), f"{np.mean(values):.4f}", f"{max(values):.4f}"])
        worst += [(value, clique) for clique, value in errors.items() if k <= 2]
        if len(errors) < math.comb(len(truth.domain), k):
            sampled.append(f"{k}-way: {len(errors)} of {math.comb(len(truth.domain), k):,}")
    note = f"; drawn at random, small enough, or held: {', '.join(sampled)}" if sampled else ""
    yield table(
        ["marginals", "number", "mean", "worst"],
        rows,
        numbers={1, 2, 3},
        caption=f"total variation distance of the model's tables{note}",
    )
    worst.sort(reverse=True)
    yield table(
        ["worst of one and two columns", "distance"],
        [[" x ".join(clique), f"{value:.4f}"] for value, clique in worst[:NAMED]],
        numbers={1},
    )


def _similarity(synthetic: Callable[[], Dataset], truth: Dataset) -> Iterator[str]:
    yield "<h3>Similarity of columns and pairs</h3>"
    yield (
        "<p>Of synthetic records; 1 is equal. TVComplement of each column and "
        "ContingencySimilarity of each pair, as SDMetrics defines them, over the schema's "
        "values and bins.</p>"
    )
    domain, drawn = truth.domain, synthetic()
    singles = comparison.similarity(truth, drawn, evaluation.some_cliques(domain, 1))
    pairs = comparison.similarity(truth, drawn, evaluation.some_cliques(domain, 2, most=DRAWN))
    for title, found in (("column", singles), ("pair", pairs)):
        if not found:
            continue
        order = sorted(found.items(), key=lambda item: item[1])
        mean = float(np.mean(list(found.values())))
        yield table(
            [f"least similar {title}s", "similarity"],
            [[" x ".join(clique), f"{value:.4f}"] for clique, value in order[:NAMED]],
            numbers={1},
            caption=f"mean over {len(found)} {title}s: {mean:.4f}",
        )


def _k_marginal(synthetic: Callable[[], Dataset], truth: Dataset) -> Iterator[str]:
    k = min(3, len(truth.domain))
    cliques = evaluation.some_cliques(truth.domain, k, most=_MOST_MARGINALS)
    if not cliques:
        return
    score = comparison.k_marginal_score(truth, synthetic(), cliques)
    share = comparison.subsample_equivalent(truth, score, cliques)
    yield "<h3>k-marginal score</h3>"
    yield (
        f"<p>{score:.0f} of 1000, over {len(cliques)} marginals of {k} columns (SDNist): as good "
        f"as publishing a random sample of {share:.0%} of the real records would be, on these "
        "marginals.</p>"
    )


def _propensity(synthetic: Callable[[], Dataset], truth: Dataset) -> Iterator[str]:
    found = comparison.propensity(truth, synthetic())
    some = f"{found.columns} of {len(truth.domain)}" if found.columns < len(truth.domain) else "all"
    yield (
        f"<p>pMSE {found.pmse:.5f}, {found.ratio:.2f} times what a perfect model of the data would "
        "give (Snoke et al., 2018): 1 means that a logistic regression on single columns "
        f"({some} columns) cannot tell synthetic records from real ones.</p>"
    )


def _regressions(
    release: TableRelease, synthetic: Callable[[], Dataset], against: Evaluation
) -> Iterator[str]:
    columns = release.schema.columns
    line = comparison.strongest_line(against.truth, release.schema, against.target)
    groups = [n for n, c in columns.items() if 2 <= c.size <= 12 and n not in (line or ())]
    if line is None or not groups:
        return
    y, x = line
    group = min(groups, key=lambda name: (columns[name].midpoints is not None, columns[name].size))
    lines = comparison.regressions(against.truth, synthetic(), release.schema, y, x, group)
    rows = [[label, str(size), f"{real:.4g}", f"{made:.4g}"] for label, size, real, made in lines]
    if rows:
        yield "<h3>Regression by subgroup</h3>"
        yield table(
            [group, "records", "slope, real", "slope, synthetic"],
            rows,
            numbers={1, 2, 3},
            caption=f"of {y} on {x}, the two most correlated columns of numbers; bins count as "
            "their middles, in the real records too",
        )


def _matches(synthetic: Callable[[], Dataset], truth: Dataset) -> Iterator[str]:
    copied, by_chance = comparison.matches(truth, synthetic())
    yield "<h3>Records that equal real ones</h3>"
    yield (
        f"<p>{copied:.2%} of the synthetic records equal, in every value and bin, one of "
        f"a random half of the real records; of the other half of the real records "
        f"{by_chance:.2%} do. A release that copied would be above what chance gives.</p>"
    )


def _membership(release: TableRelease, against: Evaluation) -> Iterator[str]:
    yield "<h3>Membership inference</h3>"
    if against.test is None or len(against.test) < 4:
        yield (
            "<p>Not estimated: it needs 4 or more records of the same population that the release "
            "was not made of (<code>--test</code>).</p>"
        )
        return
    domain = against.truth.domain
    cliques = evaluation.some_cliques(domain, min(2, len(domain)), most=_MOST_MARGINALS // 2)
    found = comparison.membership(release.model, against.truth, against.test, cliques)
    yield (
        f"<p>An attacker who knows such a population ranks a record of the data above one that was "
        f"not in it with probability {found.auc:.3f} (95% interval {found.low:.3f} to "
        f"{found.high:.3f}; {found.members:,} records against {found.others:,}); 0.5 is guessing. "
        "This is one attack; what bounds all of them is the budget above.</p>"
    )


def _prediction(release: TableRelease, against: Evaluation, target: str) -> Iterator[str]:
    test = against.test
    train, test = evaluation.held_out(against.truth) if test is None else (against.truth, test)
    scores = evaluation.train_and_test(release.codes(len(train), rng=0), train, test, target)
    yield table(
        [f"predicting {target}", "macro F1"],
        [
            ["trained on synthetic records", f"{scores.synthetic:.3f}"],
            ["trained on real records", f"{scores.real:.3f}"],
            ["ratio", f"{scores.ratio:.3f}"],
        ],
        numbers={1},
        caption="logistic regression, tested on real records",
    )
