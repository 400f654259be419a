"""Noisy tables from elsewhere on the command line: CSV files to a model, a report and records."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from mechanisms.cli import main
from mechanisms.release.tabular import TableRelease
from pgmkit import (
    Categorical,
    FileFormat,
    Forbid,
    Integer,
    InvalidInput,
    Measurement,
    RegionModel,
    Schema,
    estimate,
)
from pgmkit.tables.files.noisy_tables import read_noisy_tables

SCHEMA = Schema(
    {
        "age": Integer(0, 59, bins=6),
        "sex": Categorical(("F", "M"), missing=("?",)),
        "pay": Integer(0, 4),
        "shoe": Integer(30, 50),
    }
)
RNG = np.random.default_rng(5)
TRUTH = RNG.integers(20, 90, (6, 3, 5)).astype(float)  # age, sex, pay
NOISE = 4.0


def pgmkit(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def done(*arguments: str) -> Result:
    result = pgmkit(*arguments)
    assert result.exit_code == 0, result.output + result.stderr
    return result


def write(path: Path, names: list[str], table: np.ndarray, separator: str = ",") -> np.ndarray:
    """A line a cell, in an order drawn at random; the noisy values in the schema's order."""
    labels = {"age": SCHEMA.columns["age"].labels, "sex": ("F", "M", "?"), "pay": tuple("01234")}
    noisy = table + RNG.normal(0, NOISE, table.shape)
    cells = [
        [*(labels[n][i] for n, i in zip(names, place, strict=True)), noisy[place], NOISE]
        for place in np.ndindex(table.shape)
    ]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow([*names, "persons", "stddev"])
        writer.writerows(cells[i] for i in RNG.permutation(len(cells)))
    return noisy


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    SCHEMA.save("people.yaml")
    return tmp_path


def test_the_whole_path(folder: Path) -> None:
    first = write(folder / "age-sex.csv", ["age", "sex"], TRUTH.sum(2))
    second = write(folder / "sex-pay.csv", ["sex", "pay"], TRUTH.sum(0), separator=";")
    result = done(
        "estimate", "age-sex.csv", "sex-pay.csv", "--schema", "people.yaml", "--out", "m.pgm"
    )
    assert "left out of the model: shoe" in result.stderr and "contradict" not in result.stdout
    # The same by hand, in Python.
    measured = [
        Measurement(("age", "sex"), first, NOISE),
        Measurement(("sex", "pay"), second, NOISE),
    ]
    known = SCHEMA.restricted(["age", "sex", "pay"])
    model = estimate(known.domain, measured)
    found = TableRelease.load("m.pgm")
    assert found.schema == known and found.ledger is None
    for pair in (("age", "sex"), ("age", "pay")):
        np.testing.assert_allclose(
            found.model.marginal(pair), model.marginal(pair), atol=0.05, rtol=1e-3
        )
    reply = json.loads(done("query", "m.pgm", "cdf(pay) | sex = F", "--json").stdout)
    assert reply["share"][-1] == pytest.approx(1.0) and max(reply["stderr"]) < 5 * NOISE
    assert "unreliable" not in reply["notes"]
    bars = json.loads(done("query", "m.pgm", "age, pay", "--error-bars", "--json").stdout)
    assert len(bars["stderr"]) == 30
    done("sample", "m.pgm", "--out", "r.csv", "--given", "age < 20 and sex != missing")
    rows = list(csv.DictReader(Path("r.csv").read_text().splitlines()))
    assert {row["sex"] for row in rows} == {"F", "M"} and max(int(r["age"]) for r in rows) < 20
    done("report", "m.pgm", "-o", "r.html")
    page = Path("r.html").read_text()
    assert "whoever published the noisy tables" in page and "INSECURE" not in page
    assert "price unknown here" in done("ledger", "m.pgm").stdout
    assert json.loads(done("ledger", "m.pgm", "--json").stdout)["ledger"] is None
    assert "no column 'shoe'" in pgmkit("query", "m.pgm", "shoe").stderr
    done("query", "m.pgm", "age")
    # With a schema besides, as models saved in Python need it.
    model.save("plain.npz")
    known.save("known.yaml")
    assert "F" in done("query", "plain.npz", "sex", "--schema", "known.yaml").stdout


@pytest.mark.parametrize("seed", range(5))
def test_ranges_and_unequal_noise_are_rows_of_a_matrix(folder: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lines, rows = ["sex,age,n,stddev"], []
    for first in range(6):
        last = int(rng.integers(first, 6))
        sex, spread = int(rng.integers(3)), float(rng.uniform(1, 5))
        value = float(rng.normal(50, 20))
        lines.append(f"{('F', 'M', '')[sex]},{10 * first}..{10 * last + 9},{value!r},{spread!r}")
        mask = np.zeros((6, 3))
        mask[first : last + 1, sex] = 1
        rows.append((mask.reshape(-1), value, spread))
    Path("t.csv").write_text("\n".join(lines))
    (found,) = read_noisy_tables("t.csv", SCHEMA)
    assert found.clique == ("age", "sex") and found.stddev == 1.0
    wanted = np.stack([row / spread for row, _, spread in rows])
    np.testing.assert_allclose(found.matrix.toarray(), wanted)  # type: ignore[union-attr]
    np.testing.assert_allclose(found.values, [value / spread for _, value, spread in rows])


def test_the_noise_of_tables_without_a_ledger_is_in_counts(folder: Path) -> None:
    """Lines of different noise are stored in units of their own standard deviations."""
    Path("t.csv").write_text("sex,n,stddev\nF,120,2.5\nM,80,40\n,..,1\nTotal,210,10\n")
    done("estimate", "t.csv", "--schema", "people.yaml", "--out", "t.pgm", "--total", "210")
    assert "sex: 3 values, stddev 2.5 to 40" in done("ledger", "t.pgm").stdout
    (table,) = json.loads(done("ledger", "t.pgm", "--json").stdout)["tables"]
    assert (table["stddev"], table["largest_stddev"]) == pytest.approx((2.5, 40))


def test_a_region_model(folder: Path) -> None:
    tables = {"age-sex": TRUTH.sum(2), "sex-pay": TRUTH.sum(0), "age-pay": TRUTH.sum(1)}
    for name, table in tables.items():
        write(folder / f"{name}.csv", name.split("-"), table)
    names = [f"{name}.csv" for name in tables]
    done("estimate", *names, "--schema", "people.yaml", "--out", "m.pgm", "--inference", "region")
    model = TableRelease.load("m.pgm").model
    assert isinstance(model, RegionModel) and model.certified
    reply = json.loads(done("query", "m.pgm", "pay | sex = F", "--json").stdout)
    of_women = model.marginal(("sex", "pay"))[0]
    np.testing.assert_allclose(reply["count"][: len(of_women)], of_women, rtol=1e-6)
    warned = done("query", "m.pgm", "age, sex, pay", "--json").stderr
    assert warned.startswith("warning: ") and "lie within no region" in warned
    done("sample", "m.pgm", "--given", "sex = F", "--rows", "50", "--out", "w.csv")
    with (folder / "w.csv").open() as file:
        assert [row["sex"] for row in csv.DictReader(file)] == ["F"] * 50


def test_a_table_may_be_a_total_alone_and_stddev_an_option(folder: Path) -> None:
    Path("total.csv").write_text("count\n1000\n")
    (found,) = read_noisy_tables("total.csv", SCHEMA, stddev=2.0)
    assert found.clique == () and found.values == [1000.0] and found.stddev == 2.0
    Path("part.csv").write_text("sex,count\nF,300\n")
    refused = pgmkit(
        "estimate", "part.csv", "--schema", "people.yaml", "--out", "m", "--stddev", "2"
    )
    assert refused.exit_code == 2
    assert "--total" in refused.stderr and "total=" not in refused.stderr
    fixed = ["estimate", "part.csv", "--schema", "people.yaml", "--out", "m", "--stddev", "2"]
    assert "total 900" in done(*fixed, "--total", "900").stdout
    assert "total 1000" in done(*fixed[:1], "total.csv", *fixed[1:]).stdout


def test_tables_that_contradict_each_other_are_said_to(folder: Path) -> None:
    Path("a.csv").write_text("sex,n\nF,500\nM,500\n?,1\n")
    Path("b.csv").write_text("sex,n\nF,900\nM,100\n?,1\n")
    text = done(
        "estimate", "a.csv", "b.csv", "--schema", "people.yaml", "--out", "m", "--stddev", "3"
    )
    assert "contradict each other" in text.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sex,n\nF,1\n", "how noisy"),
        ("sex,n,stddev\nF,1\n", "line 2 has 2 values for 3"),
        ("sex,n,stddev\nF,1,-1\n", "line 2: stddev must be finite, 0 or more"),
        ('sex,n,stddev\nF,"1,5",1\n', "t.csv, line 2: value '1,5' is no number"),
        ("sex,n,stddev\nF,1,x\n", "t.csv, line 2: stddev 'x' is no number"),
        ("sex,n,stddev\nF,1,1\nX,1,1\n", "line 3: .*no value 'X'"),
        ("age,n,stddev\n0..14,1,1\n", "cuts the bin"),
        ("sex,n,stddev\nF,1,1\nF,2,1\n", "line 3 gives the cell F again"),
        ("sex,n,m,stddev\nF,1,1,1\n", "found n, m"),
        ("sex,stddev\nF,1\n", "found none"),
        ("sex,n,n,stddev\n", "holds no cells"),
        ("sex,sex,n,stddev\nF,M,1,1\n", "two columns named 'sex'"),
    ],
)
def test_what_a_table_may_not_be(folder: Path, text: str, message: str) -> None:
    Path("t.csv").write_text(text)
    with pytest.raises(InvalidInput, match=message):
        read_noisy_tables("t.csv", SCHEMA)


@pytest.mark.parametrize("text", ["12.5", "1.234,5", "1,234.5"])
def test_a_file_with_decimal_commas_has_no_points(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"sex;n;stddev\nF;{text};1\nM;2,5;1\n")
    with pytest.raises(InvalidInput, match="is no number"):
        read_noisy_tables(path, SCHEMA.of_file(FileFormat(decimal=",")))
    path.write_text("sex;n;stddev\nF;12,5;1\nM;2,5;1\n")
    (table,) = read_noisy_tables(path, SCHEMA.of_file(FileFormat(decimal=",")))
    assert table.values.tolist() == [12.5, 2.5]


@pytest.mark.parametrize("name", ["t.json", "t.JSON"])
def test_the_noise_that_json_tables_state_goes_before_the_option(folder: Path, name: str) -> None:
    table = {"columns": ["sex"], "values": [1.0, 2.0, 3.0]}
    Path(name).write_text(json.dumps([table, table | {"stddev": 5.0}]))
    assert [each.stddev for each in read_noisy_tables(name, SCHEMA, stddev=2.0)] == [2.0, 5.0]
    with pytest.raises(InvalidInput, match=f"{name}, table 1 must be .*stands in where it is left"):
        read_noisy_tables(name, SCHEMA)


def test_json_tables_without_a_list_of_columns_are_refused(folder: Path) -> None:
    for columns in (5, None, "age"):
        table = {"columns": columns, "values": [1.0] * 6, "stddev": 1.0}
        Path("tables.json").write_text(json.dumps([table]))
        result = pgmkit("estimate", "tables.json", "--schema", "people.yaml", "--out", "m.pgm")
        assert result.exit_code == 2
        assert "tables.json, table 1: columns must be a sequence of names" in result.stderr


def test_numbers_that_are_not_finite_are_null_in_json(folder: Path) -> None:
    """JSON has none. Nobody of 0 to 9 has a pay, so the mean of their pay is that of no records."""
    columns = {"age": SCHEMA.columns["age"], "pay": Integer(0, 4, missing=())}
    Schema(columns, [Forbid({"age": "0..9", "pay": "0..4"})]).save("few.json")
    table = np.full((6, 6), 9.0)
    Path("tables.json").write_text(
        json.dumps([{"columns": ["age", "pay"], "values": table.tolist(), "stddev": 1.0}])
    )
    done("estimate", "tables.json", "--schema", "few.json", "--out", "m.pgm")
    shown = json.loads(
        done("query", "m.pgm", "age, mean(pay)", "--json").stdout, parse_constant=pytest.fail
    )
    assert shown["mean(pay)"][0] is None
    assert shown["mean(pay)"][1:] == pytest.approx([2.0] * 5, abs=1e-6)
