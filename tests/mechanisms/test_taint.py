"""Exact values carry a mark: in no mechanism does one leave the Curator's own arithmetic."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from taint import Exact, Marks, guarded, marked, marks_in
from test_replay import BUDGETS, FAST, PAIRS, PATHS, PUBLIC, drawn, frame, quick

from mechanisms.dispatch import run_on
from mechanisms.privacy import curator as curator_module
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import BudgetExceeded
from mechanisms.privacy.neighbours import NEIGHBOURS
from mechanisms.registry import MECHANISMS, configure
from mechanisms.release.report import html
from mechanisms.synthesis import pipeline
from mechanisms.synthesis.pipeline import synthesize
from pgmkit.measurement import Measurement

pytestmark = pytest.mark.usefixtures("short_fits")

DECISIONS = {
    "integer_matrix.GridMatrix.answers": "64 bits or Python's integers: the same answers",
    "scores.share_score": "the largest error of a cell, which is the score",
}
"""Where the arithmetic compares exact values, and why nothing follows from it but a score."""


def run_marked(name: str, relation: str, budget: str, folder: Path) -> None:
    """Run a mechanism on marked records, and show and save what it gives."""
    entry, settings = configure(name, **quick(name))
    public = {"public": PUBLIC} if entry.public else {}
    data = drawn(np.random.default_rng(0))
    with marked() as marks:
        curator = Curator(data, BUDGETS[budget], neighbours=relation)
        progress = {"progress": shown} if entry.rounds else {}
        release = run_on(curator, entry, settings, PAIRS, **public, **progress)
        release.save(folder / "release.pgm")
        assert repr(release) and release._repr_html_() and str(release.ledger)
        assert marks_in(release) == 0
    assert_kept(marks)


def shown(finished: object) -> None:
    """A callback of a user's, which may show whatever it is given."""
    assert repr(finished) and marks_in(finished) == 0


def assert_kept(marks: Marks) -> None:
    assert marks.leaks == []
    assert marks.decisions <= set(DECISIONS), "something else is decided by exact values"
    assert marks.drawn > 0


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("name", MECHANISMS)
def test_no_mark_leaves_the_curator(name: str, relation: str, tmp_path: Path) -> None:
    run_marked(name, relation, "zCDP", tmp_path)


@pytest.mark.parametrize("name", FAST)
def test_nor_with_pure_budgets(name: str, tmp_path: Path) -> None:
    run_marked(name, "add/remove", "pure", tmp_path)


def all_questions(curator: Curator) -> None:
    tables = [
        PUBLIC.marginals(PAIRS.cliques),
        drawn(np.random.default_rng(5)).marginals(PAIRS.cliques),
    ]
    shares = [{c: t / t.sum() for c, t in each.items()} for each in tables]
    curator.choose_public(shares, curator.remaining / 4)
    curator.measure_errors(PAIRS.cliques, tables[0], curator.remaining / 4)
    curator.draw_signed(PAIRS.cliques, tables[0], curator.remaining / 4, count=3)
    curator.scored(PAIRS.cliques, tables[0]).choose([0, 1], curator.remaining / 4, step="select")
    curator.choose(PAIRS.cliques, tables[0], curator.remaining / 4, mechanism="permute-and-flip")
    curator.measure_queries(("a", "c"), np.arange(16.0).reshape(2, 8), curator.remaining / 4)


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("budget", BUDGETS)
def test_nor_by_what_no_mechanism_asks(relation: str, budget: str) -> None:
    with marked() as marks:
        all_questions(
            Curator(drawn(np.random.default_rng(0)), BUDGETS[budget], neighbours=relation)
        )
    assert_kept(marks)
    assert marks.drawn == 6 and "scores.share_score" in marks.decisions


@pytest.mark.parametrize("relation", NEIGHBOURS)
@pytest.mark.parametrize("path", PATHS)
def test_no_mark_leaves_by_the_front_door(path: str, relation: str, tmp_path: Path) -> None:
    """The release, its page, its file, what it says, and the log: all of `synthesize`."""
    schema, options, form = PATHS[path]
    data = form(drawn(np.random.default_rng(7), 400))
    with marked() as marks:
        release = synthesize(data, schema, epsilon=2.0, delta=1e-6, neighbours=relation, **options)
        release.save(tmp_path / "release.pgm")
        assert html(release) and repr(release) and release._repr_html_()
        assert marks_in(release) == 0 and marks_in(release.reason) == 0
    assert_kept(marks)


LEFT_AFTER_CODING = {
    "their number in the log": lambda counts: logging.getLogger("pgmkit").info("%d", len(counts)),
    "their codes": lambda counts: dict(counts.columns),
    "their counts in an error": lambda counts: f"{counts.marginals([()])[()]}",
    "values that could not be read": lambda counts: counts.unread,
}


@pytest.mark.parametrize("mistake", LEFT_AFTER_CODING)
@pytest.mark.parametrize("path", ["auto", "open columns"])
def test_records_are_marked_as_soon_as_they_are_coded(
    mistake: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `synthesize` does with coded records besides passing them to a Curator is noticed."""
    schema, options, form = PATHS[path]
    with marked() as marks, monkeypatch.context() as patch:
        honest = pipeline.check_rows

        def leaking(request: object, counts: object) -> None:
            honest(request, counts)
            LEFT_AFTER_CODING[mistake](counts)

        patch.setattr(pipeline, "check_rows", leaking)
        with suppress(Exception):
            synthesize(
                form(drawn(np.random.default_rng(7), 400)),
                schema,
                epsilon=2.0,
                delta=1e-6,
                **options,
            )
    assert any("test_taint.py" in leak for leak in marks.leaks)


def test_nor_where_the_rows_of_units_are_bounded_and_counted(tmp_path: Path) -> None:
    data = frame(drawn(np.random.default_rng(7), 400))
    data["patient"] = np.arange(400) // 3
    schema, options, _ = PATHS["auto"]
    with marked() as marks:
        release = synthesize(
            data,
            schema,
            epsilon=2.0,
            delta=1e-6,
            unit="patient",
            max_rows=2,
            report_dropped=True,
            **options,
        )
        release.save(tmp_path / "release.pgm")
        assert html(release) and "left out" in release.reason
    assert_kept(marks)


def test_errors_after_the_first_answer_hold_no_mark() -> None:
    """A run that is refused half-way says nothing exact: not in the text, not in the exception."""
    with marked() as marks:
        curator = Curator(drawn(np.random.default_rng(0)), BUDGETS["zCDP"], neighbours="add/remove")
        curator.measure(("a",), curator.remaining / 2)
        with pytest.raises(BudgetExceeded) as refused:
            curator.measure(("a", "b"), curator.remaining * 2)
        assert str(refused.value) and marks_in(refused.value.__dict__) == 0
        assert marks_in(refused.value.args) == 0
    assert_kept(marks)


def leaks_of(
    monkeypatch: pytest.MonkeyPatch, name: str, plant: Callable[[pytest.MonkeyPatch], None]
) -> str:
    """What is noticed of a mistake planted in a run of this mechanism."""
    entry, settings = configure(name, **quick(name))
    data = drawn(np.random.default_rng(0))
    with marked() as marks, monkeypatch.context() as patch:
        plant(patch)
        # A mark may end the run, of which nothing is then said but what was recorded.
        with suppress(Exception):
            curator = Curator(data, BUDGETS["zCDP"], neighbours="add/remove")
            held = marks_in(run_on(curator, entry, settings, PAIRS))
            marks.leaks += ["the release holds an exact value"] * held
    return "\n".join(marks.leaks + sorted(marks.decisions - set(DECISIONS)))


def inside_the_curator(source: str, **names: Any) -> Any:
    """An expression as if it stood in the Curator's module, where marks may be used."""
    code = compile(source, str(curator_module.__file__), "eval")
    return eval(code, {**vars(curator_module), **names})


class Picked(tuple[str, ...]):
    """A clique that carries its score to whoever asked."""

    score: object = None

    @classmethod
    def at(cls, clique: tuple[str, ...], score: object) -> Picked:
        picked = cls(clique)
        picked.score = score
        return picked


PLANTED = {
    "exact total in the log": (
        "measure",
        "lambda self, *args, **named: (log.info('%d rows', len(self._data)),"
        " honest(self, *args, **named))[1]",
    ),
    "exact table among what a log line is made of": (
        "measure",
        "lambda self, clique, *args, **named: (log.debug('', {'x': self._marginals([()])}),"
        " honest(self, clique, *args, **named))[1]",
    ),
    "exact number in an error": (
        "measure",
        "lambda self, *args, **named: fail(InvalidInput(f'{len(self._data)} rows'))",
    ),
    "exact cell in a release": (
        "measure",
        "lambda self, clique, *args, **named: (lambda found: Measurement(found.clique,"
        " np.concatenate([self._marginals([found.clique])[found.clique].reshape(-1)[:1],"
        " found.values.reshape(-1)[1:]]), found.stddev))(honest(self, clique, *args, **named))",
    ),
    "exact table for a noisy one": ("_drawn", "lambda self, exact, *rest: (exact, 1.0)"),
    "noise added to half of the cells": (
        "_drawn",
        "lambda self, exact, *rest: (lambda found: (np.where(np.arange(exact.size)"
        ".reshape(exact.shape) % 2, found[0], exact), found[1]))(honest(self, exact, *rest))",
    ),
    "score passed out": (
        "choose",
        "lambda self, candidates, estimates, *args, **named: at("
        "honest(self, candidates, estimates, *args, **named),"
        " self.scored(candidates[:1], {c: np.zeros(self.domain.shape(c)) for c in candidates[:1]})"
        "._found[0])",
    ),
    "the best chosen without noise": (
        "_selected",
        "lambda self, step, found, *args, **named: found.argmax()",
    ),
    "a cost by the number of rows": (
        "measure",
        "lambda self, clique, cost, **named: honest(self, clique, cost * (1 - 1 / len(self._data)),"
        " **named)",
    ),
    "a scale by the number of rows": (
        "scale",
        "lambda self, cost: honest(self, cost) * (1 + 1 / len(self._data))",
    ),
    "a decision by an exact count": (
        "measure",
        "lambda self, clique, cost, **named: honest(self, clique, cost if len(self._data) > 50"
        " else cost / 2, **named)",
    ),
    "exact number in a step's name": (
        "measure",
        "lambda self, clique, cost, **named: honest(self, clique, cost,"
        " step=f'{self._marginals([clique])[clique].sum()}')",
    ),
    "exact number in a step's name, by way of int and str": (
        "measure",
        "lambda self, clique, cost, **named: honest(self, clique, cost,"
        " step=str(int(self._marginals([clique])[clique].sum())))",
    ),
}
"""Which method of the Curator holds a mistake, and the expression in its place; AIM calls all."""


def fail(error: Exception) -> None:
    """Raise an error where an expression is wanted."""
    raise error


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_leak_is_noticed(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, source = PLANTED[mistake]

    def plant(patch: pytest.MonkeyPatch) -> None:
        honest, log = getattr(Curator, method), logging.getLogger("pgmkit")
        planted = inside_the_curator(source, honest=honest, log=log, at=Picked.at, fail=fail)
        patch.setattr(Curator, method, guarded(planted))

    name = "aim" if method in ("choose", "_selected", "scale") else "mst"
    assert leaks_of(monkeypatch, name, plant)


def test_the_total_that_is_private_is_noticed_where_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mechanism that takes the exact number of rows passes it on to the estimate."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        known = inside_the_curator("lambda self: len(self._data)")
        patch.setattr(Curator, "public_total", property(known))

    assert "known_total" in leaks_of(monkeypatch, "mst", plant)


def test_without_a_planted_leak_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mst", "aim"):
        assert leaks_of(monkeypatch, name, lambda patch: None) == ""


def test_marks_are_kept_by_arithmetic_and_noticed_elsewhere() -> None:
    with marked() as marks:
        exact = Exact(np.arange(6).reshape(2, 3))
        for use in (
            lambda: exact + 1,
            lambda: 2.0 - exact,
            lambda: exact[0],
            lambda: exact.sum(),
            lambda: list(exact),
            lambda: exact.tolist(),
            lambda: float(exact[0, 0]),
            lambda: f"{exact[0, 0]}",
            lambda: bool(exact[0, 0] > 1),
            lambda: np.asarray(exact),
            lambda: {exact},
            lambda: Measurement(("a",), exact, 1.0),
        ):
            before = len(marks.leaks)
            use()
            assert len(marks.leaks) > before
