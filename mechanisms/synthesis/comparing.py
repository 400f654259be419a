"""Mechanisms compared: each runs on the same records, and its tables are compared with the
records'.

The errors are exact and the noise is reproducible, so the records must be public or made up.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechanisms.dispatch import run
from mechanisms.privacy.budget import Budget
from mechanisms.registry import configure
from mechanisms.release.evaluation import marginal_errors, some_cliques
from mechanisms.release.page import page
from mechanisms.workload import Workload
from pgmkit import Dataset, InvalidInput, PgmkitError
from pgmkit.domain import Clique
from pgmkit.runtime.html import bars, escape, table


@dataclass(frozen=True)
class Compared:
    """The total variation distances between a mechanism's tables and the tables of the records.

    Attributes:
        mechanism: The mechanism's name.
        errors: The error of each table, from 0 to 1: the share of the rows that would have to move
            to another cell.
        seconds: The CPU seconds of the run.
        refused: Why the mechanism did not run, so that there are no `errors`; empty if it ran.
    """

    mechanism: str
    errors: Mapping[Clique, float]
    seconds: float
    refused: str = ""

    def of(self, columns: int) -> list[float]:
        """Return the errors of the tables over `columns` columns."""
        return [error for clique, error in self.errors.items() if len(clique) == columns]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: the mean and the largest error for each number of columns."""
        levels = {len(clique) for clique in self.errors}
        return {
            "mechanism": self.mechanism,
            "mean": {k: float(np.mean(self.of(k))) for k in sorted(levels)},
            "largest": {k: max(self.of(k)) for k in sorted(levels)},
            "seconds": self.seconds,
            "refused": self.refused,
        }


def compared(
    names: Sequence[str],
    data: Dataset,
    workload: Workload,
    epsilon: float,
    delta: float,
    *,
    neighbours: str,
) -> Iterator[Compared]:
    """Run each mechanism on these records, which must be public or made up, and yield its errors.

    Tables of one column up to as many as the workload's largest clique has are compared. Of more
    than 1,000 tables with the same number of columns, 1,000 are drawn at random; those of more than
    262,144 cells (`AT_ONCE`) are then left out. If the standard deviation of the errors is half of
    their mean, the mean of 1,000 has a standard error of 1.6%.

    Raises InvalidInput, as the first result is asked for, for an unusable budget, an unknown
    mechanism, and one that needs public records. The message of a mechanism that refuses these
    records is in its result.

    >>> from mechanisms.datasets.census import census
    >>> from mechanisms.workload import k_way
    >>> data = census(2000).project(["age", "sex", "work"])
    >>> pairs = k_way(data.domain, 2)
    >>> few, = compared(["mst"], data, pairs, 0.1, 1e-9, neighbours="add/remove")
    >>> many, = compared(["mst"], data, pairs, 10.0, 1e-9, neighbours="add/remove")
    >>> many.to_dict()["mean"][1] < few.to_dict()["mean"][1]
    True
    """
    Budget(epsilon, delta)  # A wrong budget is no mechanism's refusal: it ends the comparison here.
    for name in names:
        if configure(name)[0].public:
            raise InvalidInput(f"{name} needs public records beside the others; leave it out")
    widest = max(map(len, workload.cliques))
    cliques = [
        clique
        for columns in range(1, widest + 1)
        for clique in some_cliques(data.domain, columns, most=1000)
    ]
    for name in names:
        started = time.process_time()
        try:
            release = run(name, data, workload, epsilon, delta, neighbours=neighbours, seed=0)
            seconds = time.process_time() - started
            yield Compared(name, marginal_errors(release.model, data, cliques), seconds)
        except PgmkitError as error:
            yield Compared(name, {}, time.process_time() - started, str(error))


def comparison(found: Sequence[Compared], rows: int, said: str) -> str:
    """Return the comparison as an HTML page. `rows`: the number of records; `said`: a description
    of the records and the promise.
    """
    ran = [each for each in found if not each.refused]
    levels = sorted({len(clique) for each in ran for clique in each.errors})
    header = ["mechanism"]
    for columns in levels:
        header += [f"{_columns(columns)}: mean", "largest"]
    lines = []
    for each in ran:
        errors = [error for k in levels for error in (np.mean(each.of(k)), max(each.of(k)))]
        lines.append([each.mechanism, *(f"{e:.2%}" for e in errors), f"{each.seconds:.2f}"])
    refused = [f"{each.mechanism}: {each.refused}" for each in found if each.refused]
    parts = [
        f"<p>{escape(said)}</p>",
        "<p>An error is the share of the rows that would have to move to another cell of a table "
        "to make it that of the records. One run each: small differences can be chance.</p>",
        table([*header, "seconds"], lines, numbers=range(1, len(header) + 1)),
        *(f"<p class='warn'>{escape(each)}</p>" for each in refused),
        *(_chart(ran, columns, rows) for columns in levels),
    ]
    return page("Mechanisms compared", parts)


def _columns(columns: int) -> str:
    return "1 column" if columns == 1 else f"{columns} columns"


def _chart(ran: Sequence[Compared], columns: int, rows: int) -> str:
    """Return a chart with, for each mechanism, the mean number of rows in a wrong cell of the
    tables over `columns` columns, and the range of nine of ten tables. `rows`: the number of rows.
    """
    wrong = rows * np.array([each.of(columns) for each in ran])
    low, high = np.quantile(wrong, (0.05, 0.95), axis=1)
    name = (
        f"Rows in a wrong cell: mean of tables of {_columns(columns)}, and the range of nine in ten"
    )
    return bars(name, [each.mechanism for each in ran], wrong.mean(axis=1), (low, high), total=rows)
