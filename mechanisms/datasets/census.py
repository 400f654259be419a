"""A public data set like a census, drawn from a small Bayesian network without any download.

Each attribute has a base rate for every value, and a slope for each parent: the logit of a value
changes by `slope * centred value * centred parent value`, with both values scaled to -1 … 1. The
numbers are invented.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgmkit import Categorical, Dataset, Domain, Schema
from pgmkit.records.sampling import check_count
from pgmkit.runtime.arguments import generator
from pgmkit.runtime.typed import typed
from pgmkit.tables.records import arrow_table

__all__ = ["LABELS", "census", "domain", "people", "schema"]


@dataclass(frozen=True)
class _Node:
    labels: str
    rates: tuple[float, ...]
    slopes: dict[str, float] = field(default_factory=dict)


# Parents precede their children.
NETWORK = {
    "age": _Node(
        "16-19, 20-24, 25-29, 30-34, 35-39, 40-44, 45-49, 50-54, 55-59, 60-64, 65-74, 75+",
        (6, 8, 9, 9, 9, 8, 8, 8, 9, 8, 11, 7),
    ),
    "sex": _Node("female, male", (51, 49)),
    "region": _Node("north, east, south, west, capital", (22, 17, 26, 19, 16)),
    "education": _Node(
        "primary, lower secondary, upper secondary, vocational, some college, "
        "bachelor, master, doctorate",
        (7, 14, 27, 17, 13, 14, 6, 2),
        {"age": -0.7, "region": 0.4},
    ),
    "marital": _Node(
        "single, cohabiting, married, divorced, widowed",
        (30, 12, 42, 11, 5),
        {"age": 3.0, "sex": -0.2},
    ),
    "work": _Node(
        "full time, part time, self-employed, student, unemployed, retired",
        (44, 14, 9, 8, 6, 19),
        {"age": 1.6, "sex": -0.5, "education": -0.5},
    ),
    "occupation": _Node(
        "none, elementary, operator, craft, agriculture, sales, clerical, "
        "technician, professional, manager",
        (14, 9, 8, 10, 3, 16, 12, 11, 11, 6),
        {"education": 3.5, "work": -2.0, "sex": 0.3},
    ),
    "hours": _Node(
        "0, 1-15, 16-29, 30-37, 38-40, 41-48, 49+",
        (24, 6, 9, 15, 29, 11, 6),
        {"work": -3.5, "sex": 0.8, "occupation": 0.8},
    ),
    "income": _Node(
        "under 5k, 5-10k, 10-15k, 15-20k, 20-25k, 25-30k, 30-40k, 40-50k, 50-75k, 75k+",
        (9, 11, 13, 13, 12, 11, 13, 8, 7, 3),
        {"occupation": 2.2, "hours": 1.8, "education": 1.4, "age": 0.6, "sex": 0.3},
    ),
}

LABELS = {attribute: tuple(node.labels.split(", ")) for attribute, node in NETWORK.items()}
"""The labels of each attribute's codes, in the order of the codes."""


def domain() -> Domain:
    """Return the nine attributes and their sizes.

    >>> domain().shape()
    (12, 2, 5, 8, 5, 6, 10, 7, 10)
    """
    return Domain({attribute: len(labels) for attribute, labels in LABELS.items()})


@typed
def census(rows: int = 20_000, seed: int = 2024) -> Dataset:
    """Return public records drawn from the network; the same seed gives the same rows.
    Raises InvalidInput for less than one row.

    >>> data = census(5)
    >>> len(data), [LABELS["income"][code] for code in data.columns["income"]]
    (5, ['50-75k', '50-75k', '5-10k', '40-50k', '50-75k'])
    """
    check_count(rows, "rows", 1)
    rng = generator(seed, "seed")
    columns: dict[str, NDArray[np.int64]] = {}
    for attribute, node in NETWORK.items():
        size = len(node.rates)
        values = _centred(np.arange(size), size)
        pull = np.zeros(rows)
        for parent, slope in node.slopes.items():
            pull += slope * _centred(columns[parent], len(LABELS[parent]))
        logits = np.log(node.rates) + pull[:, None] * values
        columns[attribute] = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return Dataset(domain(), columns)


def schema() -> Schema:
    """Return the columns with their labels, as a person would describe them."""
    return Schema({name: Categorical(tuple(labels)) for name, labels in LABELS.items()})


@typed
def people(rows: int = 20_000, seed: int = 2024) -> Any:
    """Return the records of `census` with labels, as a pyarrow table like a user's file. Raises
    InvalidInput for less than one row.

    >>> people(3).column_names[:3]
    ['age', 'sex', 'region']
    """
    return arrow_table(census(rows, seed), schema(), generator(seed, "seed"))


def _centred(codes: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    return 2 * codes / (size - 1) - 1
