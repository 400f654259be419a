"""The ADULT table that two of the benchmarks run on (numpy only)."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np


@dataclass(frozen=True)
class Adult:
    """All rows of ``adult.csv`` as codes; ``domain`` gives the sizes, in the columns' order."""

    csv: Path
    schema: Path
    domain: dict[str, int]
    columns: dict[str, np.ndarray]

    def pairs(self) -> list[tuple[str, str]]:
        return list(itertools.combinations(self.domain, 2))


def load() -> Adult:
    """Read the table from the folder that ``PGMKIT_DATA`` names.

    Raises:
        SystemExit: the variable is not set or the files are not there.
    """
    folder = Path(os.environ.get("PGMKIT_DATA", ""))
    csv, schema = folder / "adult.csv", folder / "adult.domain.json"
    if "PGMKIT_DATA" not in os.environ or not csv.exists():
        raise SystemExit("set PGMKIT_DATA to a folder with adult.csv and adult.domain.json")
    domain = json.loads(schema.read_text())
    return Adult(csv, schema, domain, read_columns(csv, domain))


def read_columns(csv: Path, domain: dict[str, int]) -> dict[str, np.ndarray]:
    """The columns of a coded CSV file that the domain names; others are left unread."""
    with opened(csv) as lines:
        header = next(lines).strip().split(",")
    places = [header.index(name) for name in domain]
    codes = np.loadtxt(csv, delimiter=",", skiprows=1, usecols=places, dtype=np.int64)
    return dict(zip(domain, codes.T, strict=True))


def opened(csv: Path) -> TextIO:
    """A text file, plain or compressed by gzip."""
    return gzip.open(csv, "rt") if csv.suffix == ".gz" else csv.open()


def counts(
    columns: dict[str, np.ndarray], domain: dict[str, int], clique: tuple[str, ...]
) -> np.ndarray:
    """The marginal of a clique, in the clique's order."""
    shape = tuple(domain[name] for name in clique)
    cells = np.ravel_multi_index([columns[name] for name in clique], shape)
    return np.bincount(cells, minlength=int(np.prod(shape))).reshape(shape)


def mean_pair_variation(
    first: dict[str, np.ndarray], second: dict[str, np.ndarray], domain: dict[str, int]
) -> float:
    """Total variation between two tables' pair marginals, averaged over all pairs (fractions)."""
    distances = []
    for pair in itertools.combinations(domain, 2):
        one, other = counts(first, domain, pair), counts(second, domain, pair)
        distances.append(0.5 * np.abs(one / one.sum() - other / other.sum()).sum())
    return float(np.mean(distances))
