"""`pgmkit synth-linked`: keys that fit, formats, refusals before anything is spent."""

from __future__ import annotations

import errno
import itertools
import json
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from seams import interrupt_second_table

from mechanisms import load_linked_schema
from mechanisms.cli import main
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.ledger import Ledger
from pgmkit import __version__
from pgmkit.errors import InvalidInput

REGISTER = {
    "tables": {
        "home": {"columns": {"area": {"type": "categorical", "values": ["n", "s"]}}},
        "person": {
            "columns": {
                "sex": {"type": "categorical", "values": ["F", "M"]},
                "age": {"type": "integer", "low": 0, "high": 79, "bins": 4},
            }
        },
    },
    "links": [
        {
            "child": "person",
            "parent": "home",
            "key": "id",
            "most": 3,
            "order": "no",
            "count": "size",
            "constraints": [{"forbid": {"position": 1, "age": ["0..19"]}}],
        }
    ],
}
TABLES = ["home=homes.csv", "person=persons.csv"]
FIXED = ["--schema", "register.json", "--epsilon", "5", "--delta", "1e-6", "--mechanism", "mst"]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two linked CSV files and their schema, in the current folder."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    return tmp_path


def write_files(folder: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 4, 200)
    owner = np.repeat(np.arange(200), sizes)
    no = np.concatenate([np.arange(1, size + 1) for size in sizes])
    age = np.where(no == 1, rng.integers(20, 80, len(no)), rng.integers(0, 80, len(no)))
    homes = {"id": np.arange(200), "area": rng.choice(["n", "s"], 200)}
    pd.DataFrame(homes).to_csv(folder / "homes.csv", index=False)
    persons = {"id": owner, "no": no, "sex": rng.choice(["F", "M"], len(no)), "age": age}
    pd.DataFrame(persons).to_csv(folder / "persons.csv", index=False)
    (folder / "register.json").write_text(json.dumps(REGISTER), encoding="utf-8")


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files with all that one run makes of them: tables, a release and its report."""
    folder = tmp_path_factory.mktemp("released")
    write_files(folder)
    options = ["--out", "drawn", "--save", "kept", "--report", "now.html", "--rows", "50"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        found = run("synth-linked", *TABLES, *FIXED, *options)
    assert found.exit_code == 0, found.output
    assert "wrote now.html" in found.stdout
    for table in ("home", "person"):  # the mechanism, why, and what the noisy check has shown
        assert re.search(rf"(?m)^{table}: \w+: .*; .* \(noise ", found.stdout)
    return folder


@pytest.fixture
def kept(released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The release, as the folder `kept` of the current folder."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(released / "kept", tmp_path / "kept"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_keys_of_written_tables_fit(request: pytest.FixtureRequest, suffix: str) -> None:
    if suffix == ".csv":
        folder, read = request.getfixturevalue("released"), pd.read_csv
    else:
        folder, read = request.getfixturevalue("files"), pd.read_parquet
        options = ["--out", "drawn", "--suffix", suffix, "--rows", "50"]
        found = run("synth-linked", *TABLES, *FIXED, *options)
        assert found.exit_code == 0, found.output
    home, person = (read(folder / "drawn" / f"{name}{suffix}") for name in ("home", "person"))
    assert list(home) == ["id", "area", "size"] and list(person) == ["id", "no", "sex", "age"]
    assert home["id"].tolist() == list(range(1, 51))
    sizes = person.groupby("id").size().reindex(home["id"], fill_value=0)
    assert sizes.tolist() == home["size"].tolist()
    assert (person.loc[person["no"] == 1, "age"] >= 20).all()


@pytest.mark.usefixtures("kept")
def test_more_tables_are_drawn_from_the_saved_release() -> None:
    found = run("sample", "kept", "--out", "more", "--rows", "20", "--seed", "1", "--json")
    assert found.exit_code == 0, found.output
    records = json.loads(found.stdout)["records"]
    assert records["home"] == 20 and records["person"] == len(pd.read_csv("more/person.csv"))
    asked = run("query", "kept/person.pgm", "mean(age) | area = n")
    assert asked.exit_code == 0, asked.output


@pytest.mark.usefixtures("kept")
def test_records_under_conditions_are_drawn_from_the_saved_release() -> None:
    fixed = ["sample", "kept", "--out", "some", "--rows", "20", "--seed", "1"]
    conditions = ["home: area = n", "home:size in 2..3", "person: sex = F, age < 40"]
    found = run(*fixed, *(part for each in conditions for part in ("--given", each)))
    assert found.exit_code == 0, found.output
    home, person = pd.read_csv("some/home.csv"), pd.read_csv("some/person.csv")
    assert set(home["area"]) == {"n"} and set(home["size"]) <= {2, 3} and len(home) == 20
    assert set(person.query("sex == 'F' and age < 40")["id"]) == set(home["id"])
    assert person.groupby("id").size().tolist() == home["size"].tolist()
    for wrong, said in (
        ("area = n", "--given must be TABLE: CONDITIONS for linked tables, got 'area = n'"),
        ("home:", "got 'home:'"),
        ("homes: area = n", "did you mean 'home'"),
        ("home: aera = n", "table 'home': there is no column 'aera'"),
        ("home: area = west", "'west'"),
        ("person: age < 20, position = 1", "no column 'position'"),
    ):
        refused = run("sample", "kept", "--out", "none", "--given", wrong)
        assert refused.exit_code == 2 and said in refused.stderr, refused.output
        assert not Path("none").exists()
    assert "leave it out" in run("sample", "kept", "--out", "more", "--safe-csv").stderr


@pytest.mark.usefixtures("kept")
def test_a_report_is_written_with_the_tables_or_later(released: Path) -> None:
    for _ in range(2):  # a page in the folder of its release is written again
        assert run("report", "kept", "-o", "kept/later.html").exit_code == 0
    later = run("report", "kept", "-o", "later.html", "--json")
    assert later.exit_code == 0, later.output
    assert json.loads(later.stdout)["private"] is True
    for page in (released / "now.html", Path("later.html")):
        text = page.read_text("utf-8")
        assert "person of each home" in text and "INSECURE" not in text
        for table in ("home", "person"):  # as the console said
            said = rf"{table}: mechanism</td><td>\w+ of pgmkit {re.escape(__version__)} \(.*noise "
            assert re.search(said, text)
    refused = run("report", "kept", "-o", "later.html", "--target", "age").stderr
    assert "--target is not available for linked tables" in refused


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*TABLES], "nothing to write"),
        ([*TABLES, "--report", "no/r.html"], "does not exist"),
        (["home=homes.csv", "--out", "o"], "no file is given for the table 'person'"),
        ([*TABLES, "--out", "o", "--save", "o"], "named twice"),
        ([*TABLES, "--save", "o", "--rows", "5"], "give --out for their tables"),
        ([*TABLES, "--save", "paid"], "a release that was paid for is not replaced"),
        ([*TABLES, "--out", "homes.csv"], "is a file"),
        (["home=homes.csv", "person=person.csv", "--out", "."], "person.csv is named twice"),
        ([*TABLES, "--out", "no/o"], "does not exist"),
        ([*TABLES, "--out", "o", "--suffix", ".ods"], "is not one of"),
        (["homes=homes.csv", TABLES[1], "--out", "o"], "did you mean 'home'"),
        (["home", TABLES[1], "--out", "o"], "TABLE=FILE"),
        (["home=none.csv", TABLES[1], "--out", "o"], "does not exist"),
        ([*TABLES, "home=homes.csv", "--out", "o"], "given twice"),
        (["home=persons.csv", TABLES[1], "--out", "o"], "no column 'area'"),
        (["home=wide.csv", TABLES[1], "--out", "o"], "--ignore-extra-columns"),
        ([*TABLES, "--out", "o", "--mechanism", "best"], "unknown"),
        ([*TABLES, "--out", "o", "--mechanism", "matrix"], "leave --out out"),
        ([*TABLES, "--report", "r.html", "--mechanism", "gaussian"], "leave --report out"),
        ([*TABLES, "--out", "o", "--set", "sede=2"], "sede"),
        ([*TABLES, "--out", "o", "--epsilon", "0"], "epsilon"),
    ],
)
def test_wrong_arguments_spend_nothing(files: Path, arguments: list[str], said: str) -> None:
    pd.read_csv("homes.csv").assign(extra=1).to_csv("wide.csv", index=False)
    pd.read_csv("persons.csv").to_csv("person.csv", index=False)
    Path("paid").mkdir()
    Path("paid/home.pgm").touch()
    Ledger.create(files / "l.ledger", Budget(9.0, 1e-5), unit="id", neighbours="add/remove")
    before = (files / "l.ledger").read_bytes()
    others = [(o, v) for o, v in zip(FIXED[::2], FIXED[1::2], strict=True) if o not in arguments]
    fixed = [*itertools.chain(*others), "--ledger", "l.ledger"]
    found = run("synth-linked", *fixed, *arguments)
    assert found.exit_code == 2 and said in found.stderr, found.output
    assert (files / "l.ledger").read_bytes() == before
    assert not (files / "o").exists()


def test_unreadable_values_stop_the_run_before_the_rest_is_spent(files: Path) -> None:
    """Ages with a unit: only a hundredth of the budget is spent."""
    persons = pd.read_csv("persons.csv")
    persons["age"] = persons["age"].astype(str) + " years"
    pd.concat([persons] * 20).assign(id=lambda f: np.arange(len(f)) // 3).to_csv(
        "persons.csv", index=False
    )
    pd.DataFrame({"id": range(4000), "area": "n"}).to_csv("homes.csv", index=False)
    Ledger.create(files / "l.ledger", Budget(5.1, 1e-6), unit="id", neighbours="add/remove")
    options = ["--out", "o", "--ledger", "l.ledger"]
    found = run("synth-linked", *TABLES, *FIXED, *options)
    assert found.exit_code == 2 and "age could not be read" in found.stderr, found.output
    ledger = Ledger.open(files / "l.ledger")
    # Within each table's share: a hundredth of the run's budget in all, however it is divided.
    assert ledger.spent == pytest.approx(0.01 * Budget(5.0, 1e-6).total, rel=0.01)
    quick = ["--mechanism", "independent", "--out", "o", "--yes"]
    assert run("synth-linked", *TABLES, *FIXED[:-2], *quick).exit_code == 0


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ({"tables": {}}, "must have `tables` and `links`"),
        ({**REGISTER, "link": []}, "got .*'link'"),
        ({**REGISTER, "links": ["person"]}, "each link must be a mapping"),
        ({**REGISTER, "links": [{"child": "person"}]}, "needs the field"),
        ({**REGISTER, "tables": {"home": REGISTER["tables"]["home"]}}, "has no schema"),
        ({"tables": {"home": {"columns": {}}}, "links": []}, "table 'home'"),
    ],
)
def test_wrong_schema_files_are_refused(tmp_path: Path, stored: object, said: str) -> None:
    path = tmp_path / "register.json"
    path.write_text(json.dumps(stored), encoding="utf-8")
    with pytest.raises(InvalidInput, match=said):
        load_linked_schema(path)


def test_what_was_paid_for_is_not_lost_to_a_full_disk(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mechanisms.linked.release.write_tables", full)
    monkeypatch.setattr(tempfile, "tempdir", str(files))
    found = run("synth-linked", *TABLES, *FIXED, "--out", "o")
    assert found.exit_code == 2 and "No space left" in found.stderr
    (rescued,) = files.glob("rescued-*")
    assert str(rescued) in found.stderr
    monkeypatch.undo()
    monkeypatch.chdir(files)
    assert run("sample", str(rescued), "--out", "o", "--rows", "5").exit_code == 0


def test_what_an_interrupted_run_had_paid_for_is_saved(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_second_table(monkeypatch)
    found = run("synth-linked", *TABLES, *FIXED, "--out", "o")
    assert found.exit_code == 130 and not Path("o").exists()
    (rescued,) = files.glob("rescued-*.pgm")
    assert f"`pgmkit estimate {rescued.name}/TABLE.pgm --out NEW.pgm`" in found.stderr
    made = run("estimate", f"{rescued.name}/person.pgm", "--out", "person.pgm")
    assert made.exit_code == 0 and run("query", "person.pgm", "sex").exit_code == 0


def test_a_changed_table_of_children_is_said_to_be_insecure(kept: Path) -> None:
    path = kept / "person.pgm"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # of the checksum
    path.write_bytes(content)
    found = run("sample", "kept", "--out", "more", "--rows", "5", "--allow-modified")
    assert found.exit_code == 0 and "INSECURE" in found.stdout, found.output


def test_linked_tables_given_to_commands_of_one_table(files: Path) -> None:
    """The messages name what to give instead."""
    for given, said in (
        (["query", ".", "sex"], "NAME.pgm"),
        (["synth", "homes.csv", *FIXED, "--out", "x.csv"], "synth-linked"),
    ):
        found = run(*given)
        assert found.exit_code == 2 and said in found.output
