"""Mechanisms side by side: figures against a calculation by hand, the page, what is refused."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from mechanisms import k_way, run
from mechanisms.cli import main
from mechanisms.datasets.census import census, people, schema
from mechanisms.synthesis.comparing import compared
from pgmkit import Categorical, Forbid, OpenCategorical, Schema, write_file

DATA = census(1500).project(["age", "sex", "work"])


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def pgmkit(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["compare", *arguments])


def test_errors_are_the_distances_of_tables() -> None:
    """Half the absolute differences of shares, from the run with the same reproducible noise."""
    pairs = k_way(DATA.domain, 2)
    (found,) = compared(["mst"], DATA, pairs, 1.0, 1e-9, neighbours="add/remove")
    model = run("mst", DATA, pairs, 1.0, 1e-9, neighbours="add/remove", seed=0).model
    assert set(found.errors) == {c for k in (1, 2) for c in itertools.combinations(DATA.domain, k)}
    for clique, error in found.errors.items():
        table = np.asarray(model.marginal(clique))
        real = np.zeros_like(table)
        np.add.at(real, tuple(DATA.columns[name] for name in clique), 1 / len(DATA))
        assert error == pytest.approx(np.abs(table / table.sum() - real).sum() / 2)


def test_it_runs_on_made_up_records_and_draws_a_page() -> None:
    Path("s.json").write_text('{"<b>": 2, "age": 4, "sex": 2}')
    done = pgmkit(
        "--schema", "s.json", "--mechanism", "mst", "--mechanism", "matrix", "-o", "c.html"
    )
    assert done.exit_code == 0, done.output
    page = Path("c.html").read_text(encoding="utf-8")
    assert "10,000 made-up records" in page and page.count("<figure>") == 2 and "matrix" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_marginals_of_more_columns_than_there_are_are_refused() -> None:
    Path("s.json").write_text('{"age": 4}')
    assert pgmkit("--schema", "s.json", "--mechanism", "independent").exit_code == 0
    done = pgmkit("--schema", "s.json", "--mechanism", "independent", "--workload", "2")
    assert done.exit_code == 2 and "--workload: k must be a whole number from 1 to 1" in done.stderr


@pytest.mark.parametrize("command", ["compare", "plan", "plan --queries q.txt"])
def test_constraints_on_values_that_are_to_be_found_are_refused(command: str) -> None:
    columns = {"job": OpenCategorical(), "sex": Categorical(("F", "M"))}
    Schema(columns, [Forbid({"job": "nurse", "sex": "M"})]).save("s.yaml")
    Path("q.txt").write_text("job x sex\n")
    done = CliRunner().invoke(main, [*command.split(), "--schema", "s.yaml"])
    assert done.exit_code == 2 and "a constraint speaks of 'job', whose values are" in done.output
    assert "list them, or take the constraint out" in done.output


def test_public_records_and_json() -> None:
    table = people(400)
    write_file("p.csv", {n: table[n].to_numpy() for n in table.column_names})
    schema().save("s.yaml")
    done = pgmkit("--schema", "s.yaml", "--public", "p.csv", "--mechanism", "independent", "--json")
    assert done.exit_code == 0, done.output
    assert not done.stderr
    said = json.loads(done.stdout)
    assert said["records"] == 400 and set(said["compared"][0]["mean"]) == {"1", "2"}


def test_constraints_are_said_to_be_left_out_and_who_cannot_hold_them() -> None:
    rule = {"forbid": {"age": 0, "sex": 1}}
    columns = {n: {"type": "integer", "low": 0, "high": 1} for n in ("age", "sex")}
    Path("s.json").write_text(json.dumps({"columns": columns, "constraints": [rule]}))
    names = ["--mechanism", "mst", "--mechanism", "matrix"]
    done = pgmkit("--schema", "s.json", "--rows", "50", *names, "-o", "c.html")
    wanted = "the schema&#x27;s constraints are left out, and matrix cannot hold them"
    assert wanted.replace("&#x27;", "'") in done.output and done.exit_code == 0
    assert wanted in Path("c.html").read_text(encoding="utf-8")
    Path("p.csv").write_text("age,sex\n0,1\n0,0\n1,1\n1,0\n0,1\n")
    done = pgmkit("--schema", "s.json", "--public", "p.csv", *names, "-o", "p.html")
    for text in (done.stdout, Path("p.html").read_text(encoding="utf-8")):
        assert re.search(r"records that break the constraint \(.*age.*\): 2[;<]", text)


def test_a_mechanism_that_refuses_says_why() -> None:
    Path("s.json").write_text(json.dumps({f"c{i}": 50 for i in range(12)}))
    done = pgmkit("--schema", "s.json", "--rows", "50", "--mechanism", "mwem", "--workload", "1")
    assert done.exit_code == 0 and "mwem                 refused: " in done.stdout


def test_public_values_that_cannot_be_read_are_warned_of() -> None:
    Path("s.json").write_text('{"age": 4, "sex": 2}')
    Path("p.csv").write_text("age,sex\n" + "1,x\n" * 3 + "2,0\n" * 5)
    done = pgmkit("--schema", "s.json", "--public", "p.csv", "--mechanism", "independent")
    assert done.exit_code == 0 and "p.csv: 3 of 8 values of sex could not be read" in done.stderr
    assert "of age" not in done.stderr


def test_auto_is_refused_as_a_choice_and_named_among_the_known() -> None:
    Path("s.json").write_text('{"age": 4, "sex": 2}')
    done = pgmkit("--schema", "s.json", "--mechanism", "auto")
    assert done.exit_code == 2 and "'auto' is a choice among mechanisms" in done.stderr
    done = pgmkit("--schema", "s.json", "--mechanism", "amm")
    assert (
        done.exit_code == 2 and "besides auto (for `synthesize`, `synthesize_linked`" in done.stderr
    )


@pytest.mark.parametrize("name", ["gem-pub", "msst"])
def test_what_cannot_run_alone_is_refused(name: str) -> None:
    Path("s.json").write_text('{"age": 4, "sex": 2}')
    done = pgmkit("--schema", "s.json", "--mechanism", name)
    assert done.exit_code == 2 and name in done.stderr


def test_a_wrong_budget_is_bad_input() -> None:
    Path("s.json").write_text('{"age": 4, "sex": 2}')
    done = pgmkit("--schema", "s.json", "--epsilon", "-1")
    assert done.exit_code == 2 and done.stdout == ""
    assert "epsilon must be a finite number above 0, got -1" in done.stderr
