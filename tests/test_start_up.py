"""Jobs that do without torch, and without other slow packages, in a process of their own."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mechanisms import synthesize
from pgmkit import Categorical, Integer, Schema

SLOW = ("torch", "networkx", "scipy.optimize", "scipy.stats", "sklearn", "opendp")

COMMANDS = """
import contextlib, io, json, sys
from mechanisms.cli import main
found, before = {}, set()  # the first job is charged for the imports above, too
for job, arguments in json.loads(sys.argv[1]).items():
    shown, code = io.StringIO(), 0
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            main(arguments)
        except SystemExit as ended:
            code = ended.code or 0
    found[job] = code, shown.getvalue(), [m for m in SLOW if m in {*sys.modules} - before]
    before = {*sys.modules}
print(json.dumps(found))
"""
GRAPH = """
import sys
import numpy as np
from pgmkit import Domain, FactorGraph
graph = FactorGraph(Domain({"a": 2, "b": 2}), [(("a", "b"), [[4, 1], [1, 4]])])
assert np.allclose(graph.posterior({"a": 0}).marginal(["b"]), [0.8, 0.2])
print([m for m in SLOW if m in sys.modules])
"""
ESTIMATE = """
import sys
from pgmkit import Domain, Measurement, estimate
domain = Domain({"a": 2, "b": 2, "c": 2})
y = [Measurement(tuple(c), [3.0, 1.0, 1.0, 3.0], 1.0) for c in ("ab", "bc")]
estimate(domain, y, total=8)
print("networkx" in sys.modules)
"""
NETWORK = """BAYES
2
2 2
2
1 0
2 0 1

2
 0.8 0.2
4
 0.9 0.1 0.2 0.8
"""


def printed(program: str, *arguments: str, folder: Path | None = None) -> str:
    """What a fresh process prints, which finds the names of the slow packages in SLOW."""
    done = subprocess.run(
        [sys.executable, "-c", f"SLOW = {SLOW!r}{program}", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("release")
    rng = np.random.default_rng(0)
    age, sex = rng.integers(0, 10, 2000), rng.integers(0, 2, 2000)
    frame = pa.table({"age": age, "sex": np.where(sex, "F", "M"), "pay": (age + sex) % 10})
    schema = Schema({"age": Integer(0, 9), "sex": Categorical(("F", "M")), "pay": Integer(0, 9)})
    schema.save(made / "people.yaml")
    release = synthesize(frame, schema, epsilon=5, delta=1e-9, mechanism="mst", seed=0)
    release.save(made / "people.pgm")
    (made / "net.uai").write_text(NETWORK)
    return made


JOBS = {
    "help": (("--help",), 0, "Usage"),
    "mechanisms": (("mechanisms",), 0, "aim"),
    "ledger": (("ledger", "people.pgm"), 0, "spent"),
    "a measured table": (("query", "people.pgm", "age"), 0, "stderr"),
    "a condition": (("query", "people.pgm", "pay | age < 3", "--no-error-bars"), 0, "share"),
    "a mean": (("query", "people.pgm", "mean(pay)", "--no-error-bars"), 0, "mean"),
    "records": (("sample", "people.pgm", "--rows", "100", "--out", "records.csv"), 0, "wrote"),
    "a network": (("infer", "net.uai", "--evidence", "x1=1"), 0, "0.66"),
    "a misspelt column": (("query", "people.pgm", "agge"), 2, "agge"),
    "a misspelt release": (("query", "peple.pgm", "age"), 2, "peple.pgm"),
    "a budget below 0": (
        ("synth", "net.uai", "--schema", "people.yaml", "--epsilon", "-1", "--out", "o.csv"),
        2,
        "epsilon",
    ),
    "no folder": (
        ("synth", "net.uai", "--schema", "people.yaml", "--out", "none/o.csv"),
        2,
        "none",
    ),
}


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, tuple[int, str, list[str]]]:
    """The exit code of each job, what it printed, and the slow packages that it loaded. One
    process runs all: what a job loads is charged to it, and the next ones find it loaded.
    """
    arguments = json.dumps({job: arguments for job, (arguments, *_) in JOBS.items()})
    found: dict[str, tuple[int, str, list[str]]] = json.loads(
        printed(COMMANDS, arguments, folder=folder)
    )
    return found


@pytest.mark.parametrize("job", JOBS)
def test_no_slow_package_is_loaded(
    job: str, results: dict[str, tuple[int, str, list[str]]]
) -> None:
    _, code, said = JOBS[job]
    found, shown, modules = results[job]
    assert (found, modules) == (code, []), shown
    assert said in shown


def test_a_factor_graph_of_arrays_needs_no_torch() -> None:
    assert printed(GRAPH) == "[]\n"


@pytest.mark.slow
def test_an_estimate_without_cycles_needs_no_networkx() -> None:
    assert printed(ESTIMATE) == "False\n"
