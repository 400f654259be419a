"""Whether tables of children gain from the position in them, on registers drawn at random.

    python -m benchmarks.placed

A register has 6,000 parents of four latent kinds and up to six children of each, whose columns
depend on the parent's kind, on their position and on the child before. The numbers of children are
drawn from a geometric law, so that the evenness (sum N)^2 / (6 sum N^2), of the numbers N of
children by position, goes from a third to nearly 1. Each is synthesised at epsilon 1 with the
position in no selected table and in all of them (`UNEVEN` of `mechanisms.linked.pipeline` at 0 and
at 1). Prints, for each law and mean over `--seeds` registers, the evenness and the ratio of the
mean total variation of pairs, with the position over without: parent and child, within a child, and
a child and the one before. Writes results/placed.json.

Takes more than 170 s.
"""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import RESULTS, command_line
from mechanisms import Link, synthesize_linked
from mechanisms.linked import pipeline
from pgmkit import Schema
from pgmkit.tables.labelled import Categorical

PARENTS, MOST, KINDS = 6000, 6, 4
ABOVE = {"a": 3, "b": 5, "c": 8}
OWN = {"s": 2, "u": 4, "v": 6, "w": 9}
RATIOS = (0.4, 0.8, 1.1, 1.4, 1.8, 2.5, 5.0, 20.0)


def drawn(ratio: float, rng: np.random.Generator) -> tuple[Any, Any]:
    """Parents and children; a parent has k children with a weight of ratio^k, k from 1."""
    kind = rng.integers(0, KINDS, PARENTS)
    parents = {"id": np.arange(PARENTS)}
    for name, size in ABOVE.items():
        law = rng.dirichlet(np.ones(size), KINDS)
        parents[name] = _drawn(law[kind], rng)
    weights = ratio ** np.arange(1, MOST + 1.0)
    counts = rng.choice(MOST, PARENTS, p=weights / weights.sum()) + 1
    owner = np.repeat(np.arange(PARENTS), counts)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    children = {"id": owner, "no": place}
    for name, size in OWN.items():
        law = rng.dirichlet(np.ones(size), (KINDS, 2))
        codes = _drawn(law[kind[owner], np.minimum(place, 1)], rng)
        for i in np.flatnonzero((place > 0) & (rng.random(len(owner)) < 0.3)):
            codes[i] = codes[i - 1]
        children[name] = codes
    return pd.DataFrame(parents), pd.DataFrame(children)


def _drawn(laws: Any, rng: np.random.Generator) -> Any:
    return (laws.cumsum(1) < rng.random((len(laws), 1))).sum(1).clip(max=laws.shape[1] - 1)


def tables(parents: Any, children: Any) -> dict[str, list[Any]]:
    """The shares of all pairs of columns, by kind."""
    joined = children.merge(parents, on="id").astype(int)
    before = joined.shift().loc[(joined["id"] == joined["id"].shift()).to_numpy(), list(OWN)]
    after = joined.loc[before.index]
    sizes = ABOVE | OWN

    def shares(one: Any, other: Any, a: str, b: str) -> Any:
        cells = one[a].to_numpy().astype(int) * sizes[b] + other[b].to_numpy()
        return np.bincount(cells, minlength=sizes[a] * sizes[b]) / len(cells)

    return {
        "parent-child": [shares(joined, joined, a, b) for a, b in itertools.product(ABOVE, OWN)],
        "child": [shares(joined, joined, a, b) for a, b in itertools.combinations(OWN, 2)],
        "siblings": [shares(before, after, a, b) for a, b in itertools.product(OWN, OWN)],
    }


def errors(parents: Any, children: Any, seed: int) -> dict[str, float]:
    """The mean total variations of one release, by kind of pairs."""
    schemas = {
        name: Schema({n: Categorical(tuple(map(str, range(k)))) for n, k in sizes.items()})
        for name, sizes in (("parent", ABOVE), ("child", OWN))
    }
    link = Link("child", "parent", "id", MOST, order="no")
    frames = {"parent": parents.astype({n: str for n in ABOVE}), "child": children}
    release = synthesize_linked(
        {**frames, "child": children.astype({n: str for n in OWN})},
        schemas,
        [link],
        epsilon=1.0,
        delta=1e-9,
        seed=seed,
    )
    made = release.sample(rng=seed)
    true, found = tables(parents, children), tables(made["parent"], made["child"])
    return {
        kind: float(
            np.mean([np.abs(x - y).sum() / 2 for x, y in zip(true[kind], found[kind], strict=True)])
        )
        for kind in true
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ratios", default=",".join(map(str, RATIOS)))
    arguments = parser.parse_args()
    rows = []
    for ratio in map(float, arguments.ratios.split(",")):
        ratios, started, even = [], time.process_time(), []
        for seed in range(arguments.seeds):
            parents, children = drawn(ratio, np.random.default_rng(seed))
            held = np.bincount(children["no"])
            even.append(held.sum() ** 2 / (MOST * (held @ held)))
            found = []
            for pipeline.UNEVEN in (0.0, 1.0):
                found.append(errors(parents, children, seed))
            ratios.append([found[1][kind] / found[0][kind] for kind in found[0]])
        rows.append({"evenness": round(float(np.mean(even)), 3)})
        means = np.round(np.exp(np.mean(np.log(ratios), 0)), 3).tolist()
        rows[-1] |= dict(zip(found[0], means, strict=True))
        rows[-1] |= {"spread": np.round(np.std(np.log(ratios), 0), 3).tolist()}
        rows[-1] |= {"without": {k: round(v, 4) for k, v in found[0].items()}}
        print(rows[-1], round(time.process_time() - started, 1), flush=True)
        (RESULTS / "placed.json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
