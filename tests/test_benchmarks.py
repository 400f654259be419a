"""The benchmarks that can run anywhere, on tiny settings; the figures' own arithmetic."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import (
    adaptive,
    adaptive_report,
    adaptive_run,
    drawn,
    papers,
    papers_causes,
    papers_mixed,
    papers_page,
    problems,
    settings,
)
from benchmarks.adaptive_report import Summary

REPOSITORY = Path(__file__).parent.parent
MODULES = (
    *(
        "adaptive",
        "approximate",
        "counting",
        "coverage",
        "estimation",
        "gpu",
        "marginals",
        "mwem_pgm",
        "networks",
        "papers",
    ),
    "regions",
    "regions_shrinkage",
    "threads",
    "units",
)
MARKED = "# Benchmarks\n<!-- adaptive: begin -->\nold\n<!-- adaptive: end -->\nafter\n"


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_every_benchmark_explains_itself(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", "--help"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "usage" in done.stdout, done.stderr


def test_a_run_reports_its_errors_resumes_and_fills_the_readme(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(MARKED)
    asked = ["--dataset", "census", "--mechanisms", "mwem+pgm", "--epsilons", "1", "--seeds", "1"]
    adaptive.main(asked, tmp_path, readme)
    (line,) = (tmp_path / "adaptive.jsonl").read_text().splitlines()
    run = json.loads(line)
    assert 0 < run["mean"] < run["rmse"] < run["max"] < 0.2
    assert run["seconds"] > 0 and run["peak_mb"] > 50 and run["process_seconds"] > run["seconds"]
    adaptive.main(asked, tmp_path, readme)  # resumes: nothing left to run
    assert (tmp_path / "adaptive.jsonl").read_text().splitlines() == [line]
    written = readme.read_text()
    assert "old" not in written and written.startswith("# Benchmarks") and "after" in written


def test_errors_are_fractions_over_all_cells() -> None:
    truth = {("a",): np.array([6, 4]), ("b",): np.array([5, 5, 0])}
    answers = {("a",): np.array([10.0, 10.0]), ("b",): np.array([10.0, 6.0, 4.0])}
    figures = adaptive_run.errors(truth, answers, 10, 20)
    gaps = np.array([-0.1, 0.1, 0.0, -0.2, 0.2])
    assert figures["max"] == pytest.approx(0.2)
    assert figures["mean"] == pytest.approx(np.abs(gaps).mean())
    assert figures["rmse"] == pytest.approx(np.sqrt((gaps**2).mean()))
    assert adaptive_run.mean_variation(truth, answers, 10, 20) == pytest.approx((0.1 + 0.2) / 2)


def test_what_was_run_or_refused_is_not_run_again() -> None:
    grid = [("adult", "mwem", e, s) for e in (0.1, 1.0) for s in (0, 1)]
    done: list[dict[str, Any]] = [
        {"dataset": "adult", "mechanism": "mwem", "epsilon": 0.1, "seed": 0}
    ]
    assert adaptive.to_do(grid, done) == grid[1:]
    assert adaptive.to_do(grid, [{**done[0], "refused": "too large"}]) == []


def test_a_failed_run_is_counted_and_the_others_go_on(tmp_path: Path) -> None:
    def worker(_module: str, request: dict[str, Any]) -> dict[str, Any]:
        if request["seed"] == 0:
            raise SystemExit("broken")
        return {"max": 1.0, "mean": 1.0, "rmse": 1.0, "pairs": None, "seconds": 1.0}

    tasks = [("census", "x", 1.0, seed) for seed in range(3)]
    path = tmp_path / "runs.jsonl"
    assert adaptive.run_all(tasks, {"x": ("x", {})}, path, 2, worker) == 1
    assert sorted(run["seed"] for run in adaptive.read_runs(path)) == [1, 2]


def test_summaries_are_means_over_seeds_and_verdicts_allow_one_standard_error() -> None:
    figures = [{"max": m, "mean": 0.2, "rmse": 0.3} for m in (1.0, 2.0, 3.0)]
    same = {"dataset": "adult", "mechanism": "pep", "epsilon": 1.0}
    ours = adaptive_report.summarise([{**same, **f} for f in figures])["adult", "pep", 1.0]
    assert (ours.seeds, ours.value("max")) == (3, 2.0)
    assert ours.error("max") == pytest.approx(1 / np.sqrt(3))
    near = Summary(3, {"max": 1.5, "mean": 0.2, "rmse": 0.3}, {})
    far = Summary(3, {"max": 1.4, "mean": 0.2, "rmse": 0.2}, {})
    assert adaptive_report.verdict(ours, near) == "yes"
    assert adaptive_report.verdict(ours, far) == "no: max, rmse"
    assert adaptive_report.verdict(ours, None) == "-"


def test_the_best_row_of_a_baseline_counts(tmp_path: Path) -> None:
    path = tmp_path / "baselines.csv"
    header = "alg,dataset,eps,hyper,seeds,max,max_sd,mean,mean_sd,rmse,rmse_sd,wall_s,cpu_s\n"
    rows = "gem,adult,1.0,a,3,.2,.01,.1,.01,.1,.01,5,\ngem,adult,1.0,b,3,.1,.01,.2,.01,.1,nan,5,4\n"
    path.write_text(header + rows + "gem_full,adult,1.0,c,1,.05,nan,.3,nan,.1,nan,5,4\n")
    baselines = adaptive_report.read_baselines(path)
    assert baselines["adult", "gem", 1.0].value("max") == 0.1
    strictest = adaptive_report.opponent(("adult", "gem", 1.0), baselines)
    assert strictest is not None and strictest.value("max") == 0.05 and strictest.error("max") == 0
    assert adaptive_report.opponent(("adult", "aim", 1.0), baselines) is None
    assert adaptive_report.read_baselines(None) == {}


def test_unknown_mechanisms_are_refused_by_name() -> None:
    options = adaptive.parse(["--mechanisms", "gemm"])
    with pytest.raises(SystemExit, match=r"unknown mechanism 'gemm'; known: .*aim"):
        adaptive.grid(options, {"aim": ("aim", {})})


def test_drawn_records_and_marginals_follow_the_joint_table() -> None:
    rng = np.random.default_rng(0)
    pairs = [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4), (1, 4)]
    factors = {pair: np.exp(rng.normal(0, 1, (2, 2))) for pair in pairs}
    joint = np.ones((2,) * 5)
    for (a, b), table in factors.items():
        joint = joint * table.reshape([2 if i in (a, b) else 1 for i in range(5)])
    joint /= joint.sum()
    for a, b in ((0, 2), (2, 4), (0, 1)):
        expected = joint.sum(tuple(i for i in range(5) if i not in (a, b)))
        np.testing.assert_allclose(drawn.marginal(factors, (a, b)), expected)
        np.testing.assert_allclose(drawn.marginal(factors, (b, a)), expected.T)
    n = 200_000
    records = drawn.sample(5, factors, n, rng).astype(np.intp)
    counts = np.bincount(np.ravel_multi_index(tuple(records), joint.shape), minlength=32)
    # Chi-squared with 31 degrees of freedom: 92 is exceeded once in some ten million draws.
    assert (np.square(counts - n * joint.ravel()) / (n * joint.ravel())).sum() < 92


@pytest.mark.parametrize(("name", "pairs"), [("grid", 180), ("boolean", 60)])
def test_drawn_problems_are_the_same_every_time(name: str, pairs: int) -> None:
    problem = problems.load(name, 1)
    drawn.draw.cache_clear()
    again = problems.load(name, 1)
    assert len(problem.cliques) == len(set(problem.cliques)) == pairs
    assert not set(problem.cliques) & set(problem.unmeasured)
    for y, z in zip(problem.values, again.values, strict=True):
        np.testing.assert_array_equal(y, z)
    assert problem.total == pytest.approx(drawn.RECORDS, rel=0.01)
    assert problem.variation(list(problem.unmeasured_counts)) == 0.0
    assert not np.array_equal(problem.values[0], problems.load(name, 0).values[0])


def test_every_experiment_of_the_papers_says_what_it_is_and_can_be_run() -> None:
    found = papers.experiments()
    assert {each["paper"] for each in found} == set(papers_page.PAPERS)
    known = {*settings.SETTINGS, *papers_mixed.SOURCES}
    for each in found:
        assert {"paper", "label", "what", "numbers", "theirs", "line"} <= set(each), each["label"]
        assert "settings" in each or each.get("lacks") or each.get("why"), each["label"]
        for setting in each.get("settings", ()):
            names = papers.contestants(setting)
            assert set(each["contestants"]) <= set(names), (each["label"], setting)
            others = {names[name][0] for name in each["contestants"]} - set(papers.WORK)
            assert setting in known or not others, (each["label"], setting)
        for pair in each.get("before", ()):
            assert set(pair) <= set(each["contestants"]), each["label"]


def test_verdicts_on_the_papers_follow_the_means() -> None:
    def summary(value: float, spread: float) -> Summary:
        return Summary(4, {"max": value, "f1": value}, {"max": spread, "f1": spread})

    low, near, high = summary(0.1, 0.02), summary(0.105, 0.02), summary(0.2, 0.02)
    assert papers_page.compare(low, high, "max") == "better"
    assert papers_page.compare(high, low, "max") == "behind"
    assert papers_page.compare(low, high, "f1") == "behind"
    assert papers_page.compare(near, low, "max") == "equal"
    each = {
        "settings": ["adult"], "contestants": ["gem", "rap"], "epsilons": [1],
        "metric": "max", "before": [["gem", "rap"]],
    }  # fmt: skip
    ours = {("adult", "gem", 1.0): high, ("adult", "rap", 1.0): low}
    theirs = {("adult", "gem", 1.0): low, ("adult", "rap", 1.0): high}
    found = papers_page.verdicts(each, ours, theirs)
    assert found.compared == {
        ("adult", "gem", 1.0, "max"): "behind", ("adult", "rap", 1.0, "max"): "better"
    }  # fmt: skip
    assert list(found.orders.values()) == ["fails"]
    placed = {**each, "paper": "004", "label": "Figure 1"}
    (row,) = papers_causes.rows([(placed, found)], [], ours, theirs)
    assert row == ["004", "Figure 1", "; ".join([
        "gem before rap on adult (max): at 1 0.2 ± 0.01 / 0.1 ± 0.01 (0.1 / 0.2)",
        "gem behind the authors' code on adult (max): at 1 0.2 ± 0.01 (0.1)",
    ]), "not known", ""]  # fmt: skip


def test_every_failure_on_the_papers_page_has_its_cause() -> None:
    page = papers.PAGE.read_text(encoding="utf-8")
    part = page.split("\n## What does not hold, and why\n")[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in part.splitlines() if line.startswith("| 0")]
    known = {"seeds", "better rival", "other data", "choice", "shortcoming"}
    assert rows and {row[-2].strip() for row in rows} <= known


def test_causes_are_found_by_what_fails() -> None:
    causes = [
        {"first": "gem", "settings": ["adult"], "metric": "max", "cause": "seeds", "why": "w"}
    ]
    behind = ("adult", "gem", papers_causes.AUTHORS, "max")
    assert papers_causes.cause_of(behind, causes) == ("seeds", "w")
    assert papers_causes.cause_of(("adult", "gem", "rap", "max"), causes)[0] == "not known"
    assert papers_causes.cause_of(("loans", *behind[1:]), causes)[0] == "not known"


def test_errors_of_blocks_join_to_those_of_all_cells() -> None:
    rng = np.random.default_rng(0)
    truth = {(name,): rng.integers(0, 9, 7) for name in "abc"}
    answers = {(name,): rng.normal(4, 2, 7) for name in "abc"}
    gaps = np.concatenate([answers[c] / 8 - truth[c] / 4 for c in truth])
    found = adaptive_run.errors(truth, answers, 4, 8)
    assert found["max"] == pytest.approx(np.abs(gaps).max())
    assert found["mean"] == pytest.approx(np.abs(gaps).mean())
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean(gaps**2)))
