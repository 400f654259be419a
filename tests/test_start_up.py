"""Jobs that do without torch, and without other slow packages, in processes of their own."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mechanisms import synthesize
from pgmkit import Categorical, Integer, Schema

SLOW = ("torch", "networkx", "scipy.optimize", "scipy.stats", "sklearn", "opendp")

COMMAND = """
import sys
from mechanisms.cli import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    code = ended.code or 0
"""
GRAPH = """
import numpy as np
from pgmkit import Domain, FactorGraph
graph = FactorGraph(Domain({"a": 2, "b": 2}), [(("a", "b"), [[4, 1], [1, 4]])])
assert np.allclose(graph.posterior({"a": 0}).marginal(["b"]), [0.8, 0.2])
code = 0
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


def loaded(program: str, *arguments: str) -> tuple[int, str, list[str]]:
    """The exit code, what was printed, and which slow packages a fresh process loaded."""
    ending = f"\nprint('loaded', *[m for m in {SLOW!r} if m in sys.modules])\nsys.exit(code)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys{program}{ending}", *arguments],
        capture_output=True,
        text=True,
    )
    assert "loaded" in done.stdout, done.stderr
    printed, _, modules = done.stdout.rpartition("loaded")
    return done.returncode, printed + done.stderr, modules.split()


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


@pytest.mark.parametrize("job", JOBS)
def test_no_slow_package_is_loaded(job: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    arguments, code, said = JOBS[job]
    found, printed, modules = loaded(COMMAND, *arguments)
    assert (found, modules) == (code, []), printed
    assert said in printed


def test_a_factor_graph_of_arrays_needs_no_torch() -> None:
    assert loaded(GRAPH)[2] == []
