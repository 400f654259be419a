"""The entry point for linked tables: from frames, schemas and links to linked synthetic tables."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mechanisms.baselines import Projection
from mechanisms.dispatch import run_on, warn_of_poor_fit
from mechanisms.families.graphical import model_megabytes
from mechanisms.linked.coding import coded
from mechanisms.linked.inherited import inherited
from mechanisms.linked.link import Link, check_links, counted, own_columns
from mechanisms.linked.release import LinkedRelease
from mechanisms.linked.siblings import POSITION, PREVIOUS
from mechanisms.privacy.budget import Accounting
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import FileLedger
from mechanisms.privacy.neighbours import promise
from mechanisms.registry import configure
from mechanisms.release.record import Measured
from mechanisms.release.tabular import TableRelease
from mechanisms.release.unfinished import kept, unfinished
from mechanisms.synthesis.auto import Choice
from mechanisms.synthesis.pipeline import constrained, curator_of
from mechanisms.synthesis.plan import dry_run
from mechanisms.synthesis.request import Request
from mechanisms.synthesis.unread import UnreadValues, check_values, warn_unchecked
from mechanisms.workload import Workload
from pgmkit import InvalidInput, Measurement, Schema
from pgmkit.records.dataset import Counts
from pgmkit.runtime.typed import typed
from pgmkit.runtime.untrusted import FilePath
from pgmkit.tables.engines.frames import FrameForm

logger = logging.getLogger(__name__)

_KNOWING = ("aim", "mst", "gaussian+projection")
"""The mechanisms that take pairs measured before as their first measurements. `pair-graph` takes
single columns alone, and with pairs the columns of `independent` would depend on each other.
"""
_SELECTING = ("aim", "mst")
"""The mechanisms that select pairs. With them the position can be a further column of every
measured table of children. A model of all pairs by position is several times as large, and its fit
ends early: for a survey's households at epsilon 4 it was up to 54 noise units (standard deviations
of the loss at the truth) from the best one.
"""
UNEVEN = 0.75
"""The share (sum N)^2 / (P sum N^2), with N children at each of P positions, from which on tables
of children are measured without the position. A table with the position has independent noise at
each position. If children are alike at all positions, the best mean of it over the positions has
this share of the noise variance of a table without the position, so the position helps where few
children are at many positions. On registers drawn at random (`benchmarks.placed`) tables with the
position are nearly always better below this share (.85 to 1.03 times the error of tables without);
above it mostly, up to a share of .98 (.83 to 1.04), and at more they are not (.93 to 1.21). But
TPC-H's orders, at .80, are worse with the position between parent and child.
"""
MUCH_SIGNAL = 600.0
"""The number of children from which "auto" measures all pairs at once, in units of the scale that
the noise in a cell then has. From 540 to 740 the mean error of all pairs is 0.92 to 1.03 times that
of AIM (RandHIE at epsilon 6 and 8, drawn families at 3 and 4; two to four noise seeds), and the
error of the pairs of parent and child 0.78 to 0.95 times. At 490 the mean error of all pairs is
0.99 times, at 370 to 390 it is 1.06 and 1.18 times that of AIM.
"""


@dataclass(frozen=True)
class UnfinishedTables:
    """The releases of the tables that were finished, and of the table that was being measured a
    release with noisy tables but no model yet (`TableRelease.estimated` makes one). A child's
    release has the columns of its parent too. They answer questions one by one; linked records
    cannot be drawn, since tables are missing or unfinished.

    `tables`: the releases by the names of the tables, the topmost table first.
    """

    tables: Mapping[str, TableRelease]

    @property
    def measurements(self) -> list[Measured]:
        """The noisy tables of all releases."""
        return [m for each in self.tables.values() for m in each.release.measurements]

    def save(self, folder: FilePath) -> None:
        """Write each release to a file `TABLE.pgm` in a new folder, which `TableRelease.load` and
        the commands read. Raises FileExistsError if the folder exists.
        """
        Path(folder).mkdir()
        for name, each in self.tables.items():
            each.save(Path(folder, f"{name}.pgm"))


@typed
def synthesize_linked(
    frames: Mapping[str, Any],
    schemas: Mapping[str, Schema],
    links: Sequence[Link],
    *,
    epsilon: float,
    delta: float,
    neighbours: str = "add/remove",
    mechanism: str = "auto",
    settings: Mapping[str, Any] | None = None,
    report_unread: bool | Callable[[UnreadValues], None] = False,
    seed: int | np.random.Generator | None = None,
    ledger: FileLedger | None = None,
    accounting: Accounting | None = None,
) -> LinkedRelease:
    """Spend an (epsilon, delta) budget on parents and their children, and return a release of all
    tables.

    Links form a tree: children may have children of their own. The promise is about units: a row of
    the topmost table, such as a household, together with all its descendants. The rows of the
    topmost table are modelled with their numbers of children. The children of a link are modelled
    with their own numbers of children, their parent's columns, their position and the columns of
    their previous sibling.

    The mechanism measures pairs of columns, at least one of them the child's own: those that it
    selects as worth it, or all. With `aim`, `mst` and `gaussian+projection` each of the child's
    columns is also measured together with the number of siblings and the position, unless noise
    would hide the counts or the model would be too large. A unit changes at most `most` rows of a
    table of children, and at most the product of `most` along the path of links in a table further
    below; the noise is scaled to that.

    Rows without a key, and children whose parent is not in the data, are left out. Of several
    rows of the topmost table with the same key one is kept at random. In a table between, a key
    identifies its row, as a primary key does: no two units have rows with the same key, which is
    not checked. Values outside a column go where the schema places them (`Schema.placed`).

    Raises InvalidInput, before anything is spent, for wrong arguments, links or frames, and
    BudgetExceeded if `ledger` has less left than this budget. If the run is interrupted or fails
    after something was measured, the exception's `unfinished` is an `UnfinishedTables`.

    Args:
        frames: A data frame for each table, by name; rows of an engine such as DuckDB are fetched
            into memory.
        schemas: The released columns of each table. They include neither keys nor the columns that
            order siblings, nor the number of children, which is counted.
        links: Which table's rows belong to which (`Link`). Every table but the topmost one is the
            child of one link.
        epsilon: The epsilon promised for units.
        delta: The delta promised for units.
        neighbours: "add/remove" of a unit, or "replace-one".
        mechanism: The name of the mechanism that is run on each table. "auto" is `aim` for parents;
            for children it is `aim`, or where there is much signal `gaussian+projection`, which
            measures all pairs at once. The parents' noisy tables and public figures decide.
        settings: The mechanism's settings; "auto" takes none.
        report_unread: Whether to spend a hundredth of each table's budget on the share of each
            column's values that the schema could not read, and of its missing values. Each
            release's `reason` says it, and a warning tells of columns with many. A callable gets
            the noisy shares in place of the warning, and may raise to end the run.
        seed: A seed for reproducible noise: INSECURE, for tests and simulations only.
        ledger: A ledger across runs on the same data (`Ledger.open`).
        accounting: "zcdp" or "gaussian" (see `Budget`). The default is that of `ledger`. Without a
            ledger it is "zcdp", also for "auto", or the one with the least noise for a mechanism
            that only measures.

    >>> import pyarrow
    >>> from pgmkit import Boolean, Categorical
    >>> farms = pyarrow.table({"id": range(60), "hills": [True, False] * 30})
    >>> cows = pyarrow.table({"id": [i // 2 for i in range(120)], "kind": ["a", "b"] * 60})
    >>> schemas = {"farm": Schema({"hills": Boolean()}),
    ...            "cow": Schema({"kind": Categorical(("a", "b"))})}
    >>> link = Link("cow", "farm", key="id", most=3)
    >>> release = synthesize_linked({"farm": farms, "cow": cows}, schemas, [link],
    ...                             epsilon=5.0, delta=1e-6, seed=0)
    >>> sorted(release.sample(rng=0)["cow"].column_names)
    ['id', 'kind']
    """
    links = check_links(schemas, links)
    top = links[0].parent
    if set(frames) != set(schemas):
        raise InvalidInput(
            f"frames must be a mapping with a data frame for each of {list(schemas)}, got "
            f"{list(frames)}"
        )
    if mechanism == "auto" and settings:
        raise InvalidInput(
            f"settings {sorted(settings)} need a mechanism by name; name it, or leave them out"
        )
    if not report_unread:
        warn_unchecked(schemas.values())
    placed = {name: schema.placed() for name, schema in schemas.items()}
    whole = counted(placed, links)
    above = Request(
        schema=whole[top],
        epsilon=epsilon,
        delta=delta,
        neighbours=neighbours,
        unit=links[0].parent_key,
        max_rows=1,
        mechanism="aim" if mechanism == "auto" else mechanism,
        settings=settings,
        report_unread=report_unread,
        seed=seed,
        ledger=ledger,
        accounting=accounting,
    )
    requests = {top: above}
    for link in links:
        steps = link.steps(whole[link.parent], whole[link.child])
        requests[link.child] = replace(
            above,
            schema=steps,
            max_rows=requests[link.parent].relation.max_rows * link.most,
            workload=child_workload(steps, whole[link.child]),
            accounting=above.budget.accounting,
        )
    for request in requests.values():
        # The dry run raises the mechanism's refusals before any table is charged to the budget.
        choice = request.choice(request.schema, request.likely)
        dry_run(request, choice, request.schema, request.likely)
    random = None if seed is None else np.random.default_rng(seed)
    steps_of = {link.child: requests[link.child].schema for link in links}
    tables = coded(frames, placed, links, steps_of, random)
    curator = curator_of(above, tables[top], random)
    releases: dict[str, TableRelease] = {}
    measuring: dict[str, Curator] = {}
    with kept(partial(_paid, requests, releases, measuring)), closing(curator.ledger):
        choosing = mechanism == "auto"
        _spend(curator, tables, requests, links, measuring, releases, choosing=choosing)
    forms = {name: FrameForm.of(frames[name]) for name in tables}
    return LinkedRelease(links, releases.pop(top), releases, {n: whole[n] for n in releases}, forms)


def _spend(
    curator: Curator,
    tables: Mapping[str, Counts],
    requests: Mapping[str, Request],
    links: Sequence[Link],
    measuring: dict[str, Curator],
    found: dict[str, TableRelease],
    *,
    choosing: bool,
) -> None:
    """Spend the Curator's budget on all tables. Before a table is measured, its Curator is added to
    `measuring`; afterwards its release is added to `found`. The topmost table comes first.

    `tables`: the coded records by table. `requests`: the request for each table, the topmost one's
    first. `choosing`: whether the mechanism of a table of children is chosen from noisy figures of
    its parents' release (`choice_for`).

    Gaussian noise in a table is proportional to the number m of rows that a unit has in it, divided
    by the square root of the table's share s of the budget. The sum of m / sqrt(s) is least if s is
    proportional to m^(2/3). Pure budgets are shared in the same way, though Laplace noise is
    proportional to m / s.
    """
    weights = {name: request.relation.max_rows ** (2 / 3) for name, request in requests.items()}
    relations = {name: request.relation for name, request in requests.items()}
    for name in list(relations)[1:]:
        # The number of children is private, even if each parent has at most one. The name of a
        # replace-one relation would say by "(max_rows 1)" that it is public, so `promise` takes
        # this ending out.
        units = relations[name]
        named = units.name if units.max_rows > 1 else promise(units.name)
        relations[name] = replace(units, name=named, rows_public=False)
    own = {link.child: list(own_columns(requests[link.child].schema).columns) for link in links}
    said = dict.fromkeys(requests, "")
    for name, request in requests.items():
        if request.report_unread:
            cost = curator.remaining * weights[name] / sum(weights.values())
            table = curator.table(tables[name], relations[name], cost)
            before = {PREVIOUS + each for each in own.get(name, ())}
            columns = request.schema.restricted(request.schema.columns.keys() - before)
            said[name] += check_values(table, columns, request.report_unread, 5)
    for name, request in requests.items():
        left = sum(weight for other, weight in weights.items() if other not in found)
        cost = curator.remaining * (weights[name] / left)
        table = measuring[name] = curator.table(tables[name], relations[name], cost)
        workload = request.workload_over(request.schema)
        chosen = request.choice(request.schema, workload)
        first: list[Measurement] = []
        if found:
            link = next(each for each in links if each.child == name)
            above = found[link.parent]
            first = inherited(above.measurements, above.schema.domain, link, request.schema.domain)
            numbers = above.model.marginal((link.count,))
            children = float(numbers @ np.arange(link.most + 1))
            if request.mechanism in _KNOWING:
                numbered, workload = numbered_tables(table, workload, link, own[name], children)
                first += numbered
            if choosing:
                chosen = choice_for(table, workload, first, children)
            held = np.cumsum(numbers[:0:-1])  # the children at each position, the last one first
            uneven = held.sum() ** 2 < UNEVEN * link.most * (held @ held)
            if chosen.name in _SELECTING and uneven:
                answered, left_over = table.measurements, table.remaining
                table = curator.table(tables[name], relations[name], left_over, place=POSITION)
                table.measurements = answered  # one list, also for the Curator in `measuring`
        entry, settings = configure(chosen.name, **chosen.settings)
        first = first if entry.name in _KNOWING else []
        # Mechanisms that cannot hold the schema's constraints measure without them; their models
        # are fitted again with them afterwards.
        zeros = request.schema.zeros if entry.takes("zeros") else ()
        release = run_on(table, entry, settings, workload, first=first, zeros=zeros)
        logger.info("the table %s is measured", name)
        final = release if zeros else constrained(release, request.schema, None)
        warn_of_poor_fit(final, 5)
        final = replace(final, reason=chosen.reason + said[name])
        found[name] = TableRelease(final, request.schema)


def _paid(
    requests: Mapping[str, Request],
    found: Mapping[str, TableRelease],
    measuring: Mapping[str, Curator],
) -> UnfinishedTables:
    """Return the releases `found`, and the noisy tables that the Curators of further tables have
    answered.
    """
    begun = {
        name: TableRelease(unfinished(table, requests[name].mechanism), requests[name].schema)
        for name, table in measuring.items()
        if name not in found
    }
    return UnfinishedTables({**found, **begun})


def numbered_tables(
    table: Curator, workload: Workload, link: Link, own: Sequence[str], children: float
) -> tuple[list[Measurement], Workload]:
    """Measure each of the children's columns `own` together with the number of siblings and the
    position. Return the noisy tables, and the workload without the pairs that follow from them.

    The tables have less noise than if each were measured alone (`Curator.measure_numbered`).
    Nothing is measured if the noise would hide the counts, so that the mean count of all cells is
    below the noise's scale, if a model of these tables and of one more pair would be too large, or
    if no other pair is left. `children`: the noisy number of children.
    """
    above = {link.count, POSITION}
    pairs = [clique for clique in workload.cliques if not above & set(clique)]
    wide = sorted(own, key=table.domain.sizes.__getitem__)[-2:]
    cliques = [(link.count, POSITION, name) for name in own]
    if not pairs or model_megabytes(table.domain, [*cliques, tuple(wide)]) > Projection().model_mb:
        return [], workload
    cost = table.remaining / (len(own) + len(pairs))
    numbers, power = np.arange(1, link.most + 1), 1.0 if table.ledger.budget.pure else 0.5
    codes = sum(map(table.domain.sizes.__getitem__, own)) / len(own)
    if children < codes * table.scale(cost) / link.most * (numbers * numbers**power).sum():
        return [], workload
    found = [table.measure_numbered(link.count, POSITION, [name], cost) for name in own]
    return [each for tables in found for each in tables], Workload(table.domain, pairs)


def choice_for(
    table: Curator, workload: Workload, first: Sequence[Measurement], children: float
) -> Choice:
    """Return the mechanism for a table of children, chosen from noisy and public figures alone.
    `first`: the children's tables that were measured before. `children`: the noisy number of
    children.

    If noise would hide some of the pairs, or a model of all pairs would be too large, AIM selects
    those whose dependence is larger than the noise. Otherwise every pair is measured once, with the
    same noise.
    """
    noise = table.scale(table.remaining / len(workload.cliques))
    cliques = [*workload.cliques, *(each.clique for each in first)]
    if children < MUCH_SIGNAL * noise:
        return Choice("aim", "pairs are selected, as noise would hide some of them")
    if model_megabytes(table.domain, cliques) > Projection().model_mb:
        return Choice("aim", "pairs are selected, as a model of all of them would be too large")
    return Choice("gaussian+projection", "all pairs are measured, as noise hides few of them")


def child_workload(steps: Schema, children: Schema) -> Workload:
    """Return the pairs of a child's own columns with each other, and with the parent's columns, the
    position and the previous sibling's columns, without columns of a single code; or the first own
    column alone if no pair is left. Pairs of the parent's columns are measured in the parents'
    table.

    `steps`: the schema of `Link.steps`. `children`: that of the child's own columns.
    """
    own = list(children.columns)
    before = [PREVIOUS + name for name in own]
    others = [name for name in steps.columns if name not in {*own, *before}]
    pairs = [*itertools.combinations(own, 2), *itertools.product([*others, *before], own)]
    domain = steps.domain
    told = [pair for pair in pairs if all(domain.sizes[name] > 1 for name in pair)]
    return Workload(domain, told or [(own[0],)])
