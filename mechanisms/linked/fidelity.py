"""The distance of linked records from their models' tables, beside the noise of these tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechanisms.linked.siblings import POSITION, PREVIOUS, Wanted
from pgmkit.domain import Clique
from pgmkit.tables.questions import Reply


def kind_of(clique: Clique, own: Collection[str]) -> str:
    """Return the relation that a measured table of children is about: "siblings" if it has a column
    of the previous sibling, "within a child" if all its columns, apart from the position, are the
    child's `own`, and otherwise "parent and child".

    >>> tables = (("area", "age", "position"), ("previous age", "sex"), ("age", "position"))
    >>> [kind_of(clique, ["age", "sex"]) for clique in tables]
    ['parent and child', 'siblings', 'within a child']
    """
    if any(name.removeprefix(PREVIOUS) in own and name not in own for name in clique):
        return "siblings"
    return "within a child" if {*clique} - {POSITION} <= set(own) else "parent and child"


@dataclass(frozen=True)
class Compared:
    """The distance of records from the model's table over one measured clique.

    `table`, `kind`: the name of the records' table, and the relation that the clique is about.
    `noise`: half the expected absolute noise of all cells of the measured table, as a share of the
    total of the model's table. `records`: the total variation distance of the records' table from
    the model's.
    """

    table: str
    kind: str
    clique: Clique
    noise: float
    records: float


def compared(
    table: str, kind: str, wanted: Wanted, counted: Callable[[Clique], Any], *, pure: bool
) -> Compared:
    """Return the distance of the records of `table` from the model's table `wanted`.

    `kind`: the relation that the clique is about. `counted`: a function that returns the records'
    counts over a clique. `pure`: True if the noise of `wanted` is Laplace, False if it is Gaussian.
    """
    mean = math.sqrt(1 / 2 if pure else 2 / math.pi)  # the mean of |noise| for a stddev of 1
    total, own = max(1.0, float(wanted.counts.sum())), counted(wanted.clique)
    noise = 0.5 * wanted.counts.size * wanted.stddev * mean / total
    apart = np.abs(own / max(1.0, own.sum()) - wanted.counts / total).sum() / 2
    return Compared(table, kind, wanted.clique, noise, float(apart))


def fidelity(tables: Sequence[Compared]) -> Reply:
    """Return a line for each table of records and kind of relation (`kind_of`): the number of
    measured tables, the mean total variation distance that their noise alone makes, and that of the
    records from the model's tables.
    """
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for each in tables:
        found.setdefault((each.table, each.kind), []).append((each.noise, each.records))
    means = np.array([np.mean(each, axis=0) for each in found.values()]).reshape(-1, 2)
    return Reply(
        {
            "table": [name for name, _ in found],
            "tables over": [kind for _, kind in found],
            "measured": [str(len(each)) for each in found.values()],
            "noise": means[:, 0],
            "records": means[:, 1],
        },
        (
            "mean total variations: of a measured table's noise, and of the records from the "
            "model's tables",
        ),
    )
