"""Files that nobody chose: columns drawn from many styles, through the whole command line."""

from __future__ import annotations

import csv
import datetime
import gzip
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from mechanisms.cli import main
from mechanisms.release.tabular import TableRelease
from pgmkit.tables.quoting import quoted

pytestmark = pytest.mark.usefixtures("short_fits")

Draw = Callable[[random.Random], str]


def moment(form: str) -> Draw:
    start = datetime.datetime(2015, 1, 1)
    return lambda r: (start + datetime.timedelta(minutes=r.randint(0, 3_000_000))).strftime(form)


def one_of(*texts: str) -> Draw:
    return lambda r: r.choice(texts)


COLUMNS: dict[str, Draw] = {
    "code": one_of("1", "2", "9"),
    "zip": lambda r: f"{r.randint(0, 40):05d}",
    "pay": lambda r: r.choice(["", "0", "0", f"{r.gauss(3e4, 1e4):.2f}"]),
    "age": lambda r: str(r.randint(18, 95)),
    'a name, "quoted"': one_of("a, b", 'say "x"', "é", " padded ", "=1+1", "-", "two\nlines"),
    "gap": one_of("", "1.0", "2.0", "3.0"),
    "flag": one_of("TRUE", "FALSE", "NA"),
    "same": one_of("same"),
    "nothing": one_of(""),
    "iso": moment("%Y-%m-%d"),
    "french": moment("%d/%m/%Y"),
    "american": moment("%-m/%-d/%Y"),
    "stamp": moment("%Y-%m-%d %H:%M:%S"),
    "greenwich": moment("%Y-%m-%dT%H:%M:%SZ"),
    "digits": moment("%Y%m%d"),
    "clock": moment("%H:%M"),
    "month": moment("%Y-%m"),
    "sentinel": lambda r: r.choice(["9999", "9999", str(r.randint(1, 30))]),
    "half": one_of("1", "2", "2.5", "3"),
    "negative": lambda r: r.choice(["-1", "-9", "-99", str(r.randint(0, 500))]),
    "scientific": lambda r: f"{r.lognormvariate(0, 9):.3e}",
    "tiny": lambda r: f"{r.random() * 1e-8:.12f}",
    "long": lambda r: str(r.randint(10**17, 10**18)),
    "beyond": lambda r: str(r.randint(10**24, 10**25)),
    "percent": lambda r: f"{r.randint(0, 100)}%",
    "mixed": one_of("1", "2", "x", "", "NA", "?"),
    "answer": one_of("yes", "no", "Yes", "NO"),
    "spelling": one_of("1", "1.0", "01"),
    "infinite": one_of("inf", "-inf", "nan", "1.5"),
    "range": one_of("0..4", "5..9", "10+"),
    "words": one_of("(missing)", "(other)", "missing", "and", "|"),
    "🦊": one_of("🦊", "日本", "ñ"),
}


def write(r: random.Random, folder: Path) -> tuple[str, str]:
    """A file and what it is."""
    rows = r.choice([2, 5, 30, 300])
    # "code" is there so that something can always be drafted.
    names = ["code", *r.sample(sorted(set(COLUMNS) - {"code"}), r.randint(0, 6))]
    separator = r.choice([",", ",", ";", "\t"])
    path = folder / ("t.tsv" if separator == "\t" else "t.csv")
    packed = r.random() < 0.2
    path = path.with_name(path.name + ".gz") if packed else path
    index = r.random() < 0.2
    text = "utf-8" if packed else r.choice(["utf-8", "utf-8-sig"])
    opened = gzip.open if packed else open
    with opened(path, "wt", newline="", encoding=text) as file:
        quoting = r.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
        writer = csv.writer(file, delimiter=separator, lineterminator="\n", quoting=quoting)
        writer.writerow([""] * index + names)
        for i in range(rows):
            writer.writerow([str(i)] * index + [COLUMNS[name](r) for name in names])
    return path.name, f"{names}, {rows} rows, {separator!r}, {text}, packed {packed}"


def check_goes_through(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    name, what = write(random.Random(seed), folder)
    for line in (
        f"schema draft {name} --assume-public -o s.yaml",
        "plan --schema s.yaml --rows 500",
        f"synth {name} --schema s.yaml --epsilon 1 --seed 1 --out o.csv --save m.pgm",
        "sample m.pgm --out p.parquet --rows 100",
        "synth o.csv --schema s.yaml --epsilon 1 --seed 1 --strict --out p.csv",
        "report m.pgm -o r.html",
    ):
        result = CliRunner().invoke(main, line.split())
        assert result.exit_code == 0, f"seed {seed}, {what}: {line}: {result.output}"
    release = TableRelease.load(folder / "m.pgm")
    for name, column in release.schema.columns.items():
        total = 0.0
        for label in column.labels:
            question = f"count | {quoted(name)} = {quoted(label)}"
            total += float(release.ask(question, error_bars=False).columns["count"][0])
        assert total == pytest.approx(release.model.total), f"seed {seed}, {what}: {name}"


@pytest.mark.parametrize("seed", range(6))
def test_drawn_files_go_through(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_goes_through(seed, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_many_drawn_files_go_through(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_goes_through(seed, tmp_path, monkeypatch)
