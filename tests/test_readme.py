"""What README says: its examples run in order, its commands exist, and its promises hold."""

from __future__ import annotations

import re
import shlex
import tomllib
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from mechanisms import MECHANISMS, Budget, BudgetExceeded, Ledger, synthesize
from mechanisms.cli import main
from pgmkit import Categorical, Domain, Integer, InvalidInput, Measurement, Schema, estimate

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text()
SCHEMA = Schema({"age": Integer(0, 9), "sex": Categorical(("F", "M"))})


def people(rows: int = 500) -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table({"age": rng.integers(0, 10, rows), "sex": rng.choice(["F", "M"], rows)})


def test_the_python_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    age = rng.integers(16, 101, 2000)
    sex = rng.choice(["F", "M"], 2000)
    frame = pa.table({"age": age, "sex": sex, "income": np.minimum(age, 99)})
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 3
    session: dict[str, object] = {"frame": frame}
    for block in blocks:
        exec(block, session)
    shown = capsys.readouterr().out
    assert "cumulative epsilon" in shown and "stderr" in shown and "up to" in shown
    assert session["records"].num_rows == 1000
    assert set(session["women"]["sex"].to_pylist()) == {"F"}


def test_the_question_is_answered_by_a_release_of_the_mixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default mechanism may take it, whose error bars are for measured tables only."""
    monkeypatch.chdir(tmp_path)
    table = people().append_column("income", [["low", "high"] * 250])
    schema = Schema(
        {
            "age": Integer(edges=(0, 25, 45, 100)),
            "sex": Categorical(("F", "M")),
            "income": Categorical(("low", "high")),
        }
    )
    options = {"epsilon": 1, "delta": 1e-6, "mechanism": "mixture"}
    synthesize(table, schema, **options, seed=0).save("people.pgm")
    (line,) = re.findall("^pgmkit (query .*)$", TEXT, re.MULTILINE)
    answered = CliRunner().invoke(main, shlex.split(line))
    assert answered.exit_code == 0, answered.output


def test_the_commands_that_need_a_checkout_come_after_the_sentence_that_says_so() -> None:
    assert TEXT.index("a checkout of this repository") < TEXT.index("constraints.txt")


def test_commands_and_options_are_there() -> None:
    lines = TEXT.replace("\\\n", " ").splitlines()
    named = [line for line in lines if re.match(r"pgmkit \w", line)]
    assert len(named) >= 4
    for line in named:
        words = line.partition("#")[0].split()[1:]
        command: click.Command = main
        while isinstance(command, click.Group):
            command = command.commands[words.pop(0)]
        known = {option for each in command.params for option in each.opts}
        given = {word for word in words if re.match(r"--?\w", word)}
        assert given <= known, line


def test_extras_are_there() -> None:
    project = tomllib.loads((README.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = re.findall(r"`(\w+)` \(", TEXT.partition("Extras:")[2].partition("\n")[0])
    assert len(named) >= 6 and set(named) <= set(extras)
    for group in re.findall(r"'\.\[([\w,]+)\]'", TEXT):
        assert set(group.split(",")) <= set(extras)


def test_named_mechanisms_are_there() -> None:
    for name in (
        "aim",
        "mwem+pgm",
        "gem",
        "rap++",
        "pep",
        "dual-query",
        "mst",
        "mixture",
        "matrix",
    ):
        assert name in MECHANISMS


@pytest.mark.parametrize("neighbours", ["add/remove", "replace-one"])
def test_delta_zero_is_pure_and_laplace(neighbours: str) -> None:
    # Without a seed the noisy number of rows would be the true one every now and then.
    release = synthesize(
        people(), SCHEMA, epsilon=1, delta=0, mechanism="independent", neighbours=neighbours, seed=1
    )
    assert release.ledger is not None and release.ledger.budget.unit == "epsilon"
    assert {e.mechanism for e in release.ledger.entries} == {"discrete Laplace"}
    # The number of rows is public under replace-one only.
    assert (release.model.total == 500) == (neighbours == "replace-one")


def test_the_lock_file_is_of_the_constraints() -> None:
    def versions(name: str) -> set[tuple[str, str]]:
        lines = (README.parent / name).read_text().splitlines()
        found = [re.match(r"([\w.-]+)==([\w.]+)", line) for line in lines]
        return {(re.sub(r"[-_.]+", "-", each[1]).lower(), each[2]) for each in found if each}

    # A package may have one version for each of several versions of Python.
    locked, pinned = versions("pgmkit.lock"), versions("constraints.txt")
    requirements = tomllib.loads((README.parent / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[>=]", each)[0].replace("_", "-") for each in requirements["dependencies"]}
    assert names <= dict(locked).keys()
    # What comes with torch alone is its own choice.
    assert {(name, version) for name, version in locked if name in dict(pinned)} <= pinned
    text = (README.parent / "pgmkit.lock").read_text()
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", text)) > len(locked)


def test_accounting_is_gaussian_for_what_only_measures() -> None:
    def accounting(**options: str) -> str:
        release = synthesize(people(), SCHEMA, epsilon=1, delta=1e-6, **options)
        assert release.ledger is not None
        return release.ledger.budget.accounting

    assert accounting() == accounting(mechanism="independent") == "gaussian"
    assert accounting(mechanism="mst") == accounting(accounting="zcdp") == "zcdp"


def test_noise_is_discrete_and_selection_exponential() -> None:
    release = synthesize(people(), SCHEMA, epsilon=1, delta=1e-6, mechanism="mwem+pgm")
    assert release.ledger is not None
    used = {entry.mechanism for entry in release.ledger.entries}
    assert used == {"discrete Gaussian", "exponential mechanism"}


def test_noise_grows_with_the_rows_of_a_person() -> None:
    frame = people().append_column("person", pa.array(np.arange(500) // 2))

    def noise(rows: int) -> float:
        release = synthesize(
            frame,
            SCHEMA,
            epsilon=1,
            delta=1e-6,
            mechanism="independent",
            unit="person",
            max_rows=rows,
        )
        return float(release.measurements[0].stddev)

    assert 1.2 * noise(1) < noise(2) < noise(3)


def test_the_frame_that_comes_back_is_of_the_kind_that_went_in() -> None:
    pandas = pytest.importorskip("pandas")
    frame = people().to_pandas()
    release = synthesize(frame, SCHEMA, epsilon=1, delta=1e-6, mechanism="independent")
    assert isinstance(release.sample(10), pandas.DataFrame)


def test_a_plan_lists_where_odd_values_go_and_touches_no_data(tmp_path: Path) -> None:
    SCHEMA.save(tmp_path / "people.yaml")
    shown = CliRunner().invoke(
        main, ["plan", "--schema", str(tmp_path / "people.yaml"), "--mechanism", "mst"]
    )
    assert shown.exit_code == 0 and "sex: counted as" in shown.output


def test_decomposable_cliques_end_at_the_optimum() -> None:
    rng = np.random.default_rng(0)
    domain = Domain({name: 4 for name in "abcd"})
    pairs = [Measurement(p, 50 + rng.normal(0, 5, (4, 4)), 5.0) for p in pairwise("abcd")]
    model = estimate(domain, pairs)
    assert model.certified and model.gap <= 0.1 * model.unit


def test_a_common_ledger_refuses_to_overspend(tmp_path: Path) -> None:
    account = Ledger.create(tmp_path / "people.ledger", Budget(1.2, 1e-7), neighbours="add/remove")
    budget = {"epsilon": 1.0, "delta": 1e-7, "mechanism": "independent"}
    synthesize(people(), SCHEMA, ledger=account, **budget)
    with pytest.raises(BudgetExceeded):
        synthesize(people(), SCHEMA, ledger=account, **budget)


def test_a_value_outside_the_schema_does_not_end_a_run_unless_strict() -> None:
    odd = pa.concat_tables([people(), pa.table({"age": [3], "sex": ["X"]})])
    release = synthesize(odd, SCHEMA, epsilon=1, delta=1e-6, mechanism="independent")
    assert set(release.sample()["sex"].to_pylist()) <= {"F", "M"}
    with pytest.raises(InvalidInput):
        synthesize(odd, SCHEMA, epsilon=1, delta=1e-6, mechanism="independent", strict=True)


def test_a_seeded_release_is_marked() -> None:
    release = synthesize(people(), SCHEMA, epsilon=1, delta=1e-6, mechanism="mst", seed=0)
    assert not release.secure and "INSECURE" in release.caution


def test_the_pages_it_names_are_there() -> None:
    for target in re.findall(r"\]\(([\w/.-]+?)(?:#[\w-]+)?\)", TEXT):
        assert (README.parent / target).exists(), target
