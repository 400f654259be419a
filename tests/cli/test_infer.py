"""`pgmkit infer` on files."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mechanisms.cli import main
from pgmkit import Domain, FactorGraph, uai
from pgmkit.bif import write_bif

RAIN = FactorGraph.from_conditionals(
    {"rain": (("rain",), [0.8, 0.2]), "wet": (("wet", "rain"), [[1.0, 0.2], [0.0, 0.8]])}
)


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "rain.uai"
    uai.write_model(RAIN, path)
    return str(path)


def run(*arguments: str) -> dict[str, object]:
    done = CliRunner().invoke(main, ["infer", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_marginals_given_evidence(model: str, tmp_path: Path) -> None:
    found = run(model, "--evidence", "x1=0", "--marginal", "x0")
    expected = RAIN.posterior({"wet": 0})
    assert found["marginals"] == {"x0": pytest.approx(expected.marginal(["rain"]).tolist())}
    assert found["log_partition"] == pytest.approx(expected.log_partition)
    (tmp_path / "evid").write_text("1 1 0")
    run(model, "--evidence", str(tmp_path / "evid"), "--out", str(tmp_path / "MAR"))
    tables = uai.read_marginals(tmp_path / "MAR")
    np.testing.assert_allclose(tables[0], expected.marginal(["rain"]))
    assert tables[1].tolist() == [1.0, 0.0]


def test_the_other_tasks(model: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert run(model, "--task", "MAP", "--out", out)["record"] == {"x0": 0, "x1": 0}
    assert uai.read_map(out) == [0, 0]
    found = run(model, "--task", "PR", "--evidence", "x1=1", "--out", out)
    assert found["log_partition"] == pytest.approx(np.log(0.16))
    assert uai.read_probability(out) == pytest.approx(np.log(0.16))


def test_text_names_states(tmp_path: Path) -> None:
    pytest.importorskip("pgmpy")
    graph = FactorGraph.from_conditionals(
        {"rain": (("rain",), [0.8, 0.2]), "wet": (("wet", "rain"), [[1.0, 0.25], [0.0, 0.75]])},
        states={"rain": ("no", "yes"), "wet": ("dry", "wet")},
    )
    path = str(tmp_path / "rain.bif")
    write_bif(graph, path)
    said = CliRunner().invoke(main, ["infer", path]).output
    assert said == "rain: no 0.8, yes 0.2\nwet: dry 0.85, wet 0.15\n"
    said = (
        CliRunner().invoke(main, ["infer", path, "--task", "MAP", "--evidence", "wet=wet"]).output
    )
    assert said == "rain = yes\nwet = wet\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--evidence", "x0=0", "--evidence", "x1=1"], "x1 = 1 is impossible given x0 = 0"),
        (["--evidence", "x0=9"], "code 0..1"),
        (["--evidence", "snow"], "neither NAME=STATE nor a file"),
        (["--evidence", "x0=0", "--evidence", "x0=1"], "twice"),
        (["--marginal", "x7"], "--marginal: there is no variable 'x7'"),
        (["--evidence", "y=0"], "evidence names an unknown attribute 'y'"),
    ],
)
def test_bad_input_is_one_line(model: str, arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(main, ["infer", model, *arguments])
    assert done.exit_code == 2
    assert said in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_a_name_may_hold_the_sign_of_evidence(tmp_path: Path) -> None:
    pytest.importorskip("pgmpy")
    graph = FactorGraph.from_conditionals(
        {"age>=65": (("age>=65",), [0.8, 0.2])}, states={"age>=65": ("no", "yes")}
    )
    write_bif(graph, tmp_path / "age.bif")
    found = run(str(tmp_path / "age.bif"), "--evidence", "age>=65=yes", "--task", "PR")
    assert found["log_partition"] == pytest.approx(np.log(0.2))


def test_approximate_answers_say_so(tmp_path: Path) -> None:
    names = [f"x{i}" for i in range(5)]
    ring = [((a, b), [[3.0, 1.0], [1.0, 2.0]]) for a, b in zip(names, names[1:] + names[:1])]  # noqa: B905
    graph = FactorGraph(Domain(dict.fromkeys(names, 2)), ring)
    path = str(tmp_path / "ring.uai")
    uai.write_model(graph, path)
    exact = graph.posterior({"x0": 1})
    found = run(path, "--inference", "region", "--evidence", "x0=1", "--marginal", "x1")
    assert found["approximate"] is True and found["converged"] is True
    assert found["log_partition_bounds"] == pytest.approx([exact.log_partition] * 2)
    assert found["marginals"] == {"x1": pytest.approx(exact.marginal(["x1"]).tolist())}
    assert "approximate" not in run(path, "--inference", "auto")
    options = ["--inference", "region", "--task"]
    said = CliRunner().invoke(main, ["infer", path, *options, "PR"]).output
    assert said.startswith("approximate (converged); log Z between ") and "\nlog Z = " in said
    refused = CliRunner().invoke(main, ["infer", path, *options, "MAP"])
    assert refused.exit_code == 2 and "no most probable record" in refused.output
    apart = CliRunner().invoke(main, ["infer", path, *options, "MAR", "--max-seconds", "-1"])
    assert apart.exit_code == 2 and "max_seconds" in apart.output
