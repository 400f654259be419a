"""Somebody else's mechanism: registered, or named by an entry point of an installed package.

`examples/chain_of_pairs.py` is registered for all tests (see `tests/conftest.py`), so that what
every mechanism must pass it passes too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from chain_of_pairs import CHAIN, Chain

from mechanisms import MECHANISMS, Release, TableRelease, k_way, plan, register, run, synthesize
from mechanisms.datasets.census import census, people, schema
from mechanisms.registry import Registry
from pgmkit import InvalidInput

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "chain_of_pairs.py"


def test_it_runs_wherever_a_built_in_one_does(tmp_path: Path) -> None:
    data = census(300)
    release = run("chain", data, k_way(data.domain, 2), 1.0, 1e-6, neighbours="replace-one")
    assert release.ledger.spent == pytest.approx(release.ledger.budget.total)
    planned = plan("chain", k_way(data.domain, 2), 1.0, neighbours="add/remove", rows=100)
    assert planned.mechanism == "chain" and planned.measurements == 17
    tabular = synthesize(
        people(300),
        schema(),
        epsilon=1.0,
        delta=1e-6,
        mechanism="chain",
        settings={"one_way_share": 0.5},
    )
    assert tabular.table("age", "sex").columns["stderr"] is not None
    tabular.save(tmp_path / "chain.pgm")
    again = TableRelease.load(tmp_path / "chain.pgm")
    assert again.settings == Chain(one_way_share=0.5)
    with pytest.raises(InvalidInput, match="one_way_share"):
        synthesize(people(300), schema(), epsilon=1.0, mechanism=Chain(one_way_share=2.0))
    release.save(tmp_path / "plain.pgm")
    assert Release.load(tmp_path / "plain.pgm").settings == Chain()


def test_the_example_is_short() -> None:
    code = [line for line in EXAMPLE.read_text().splitlines() if line.strip()]
    assert len(code) <= 50


def test_names_are_not_taken_twice() -> None:
    register(CHAIN)  # the same entry again is no harm
    with pytest.raises(InvalidInput, match="registered already, by chain_of_pairs"):
        register(replace(CHAIN, function="another"))
    with pytest.raises(InvalidInput, match="entry must be a mechanisms.Entry, got str"):
        register("chain")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="registered already, by mechanisms"):
        register(replace(CHAIN, name="aim"))


def test_an_entry_that_cannot_be_loaded_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "half_written.py").write_text("def run(:\n")
    modules = [replace(CHAIN, module=name) for name in ("no_such_module", "half_written")]
    for broken in (*modules, replace(CHAIN, function="absent")):
        with pytest.raises(InvalidInput, match="'chain' cannot be loaded from .*; install or"):
            broken.load()


def installed(folder: Path, name: str, point: str) -> None:
    """A package's metadata, as an installer leaves it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[pgmkit.mechanisms]\n{point}\n")


def commands(folder: Path, *each: list[str]) -> subprocess.CompletedProcess[str]:
    """`pgmkit` with these arguments in turn, in one process that finds the packages in the
    folder.
    """
    start = """if True:
        import json, sys
        from mechanisms.cli import main
        for arguments in json.loads(sys.argv[1]):
            main(arguments, prog_name="pgmkit", standalone_mode=False)
    """
    return subprocess.run(
        [sys.executable, "-c", start, json.dumps(each)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
    )


def test_an_installed_package_adds_its_mechanism_to_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "chain_of_pairs.py").write_text(EXAMPLE.read_text())
    installed(tmp_path, "chains", "chain = chain_of_pairs:CHAIN")
    (tmp_path / "schema.json").write_text('{"a": 2, "b": 3}')
    (tmp_path / "data.csv").write_text("a,b\n" + "0,1\n1,2\n" * 50)
    arguments = ["data.csv", "--schema", "schema.json", "--mechanism", "chain", "--save", "r.pgm"]
    synthesised = ["synth", *arguments, "--set", "one_way_share=0.4"]
    asked = ["query", "r.pgm", "a, b", "--error-bars"]
    done = commands(tmp_path, ["mechanisms"], synthesised, asked)
    assert done.returncode == 0 and "stderr" in done.stdout, done.stderr
    assert f"chain                {CHAIN.summary}" in done.stdout
    assert "warning" not in done.stderr  # of an entry that cannot be read
    assert Release.load(tmp_path / "r.pgm").settings == Chain(one_way_share=0.4)


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        ("broken = no_such_module_at_all:ENTRY", "No module named 'no_such_module_at_all'"),
        ("broken = os:getcwd", "entry must be a mechanisms.Entry, got"),
        ("broken = chain_of_pairs:TAKEN", "'aim' is registered already"),
    ],
)
def test_a_broken_plug_in_is_left_out_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, reason: str
) -> None:
    import chain_of_pairs

    monkeypatch.setattr(chain_of_pairs, "TAKEN", replace(CHAIN, name="aim"), raising=False)
    installed(tmp_path, "broken", point)
    monkeypatch.syspath_prepend(str(tmp_path))
    fresh = Registry(list(MECHANISMS.values()))
    with pytest.warns(UserWarning, match=f"'broken'.* was left out: .*{reason}"):
        assert "broken" not in fresh
    assert list(fresh) == list(MECHANISMS)
