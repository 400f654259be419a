"""Linked tables as one HTML page: numbers of children, and what is kept of parents and siblings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from mechanisms.linked.fidelity import Compared, fidelity
from mechanisms.linked.link import Link
from mechanisms.linked.release import LinkedRelease
from mechanisms.linked.siblings import POSITION, PREVIOUS
from mechanisms.release.page import origin, page, promise, result_rows, warnings
from mechanisms.release.report import methods, relations
from mechanisms.release.tabular import TableRelease
from pgmkit.runtime.arguments import Rng
from pgmkit.runtime.html import MOST_BARS, bars, escape, table
from pgmkit.runtime.printed import NAMED, percent

_HOW_TO_READ = (
    "Counts, shares and charts are estimates of the models. A distance is a total variation: half "
    "the sum of the absolute differences of two tables' shares, from 0 (equal) to 1. Beside the "
    "distance of records from the model stands what the noise of the measured table makes by "
    "itself: smaller differences say nothing about the data."
)


def html(release: LinkedRelease, *, name: str = "", schema_file: str = "", rng: Rng = None) -> str:
    """Return the text of the page, which loads nothing from elsewhere.

    `name` and `schema_file`: the name of the data and of the schema's file, for the heading. `rng`:
    the source of randomness for the records that are compared with the models
    (`LinkedRelease.fidelity`).
    """
    parts = [origin(schema_file), *_released(release)]
    tables = release.compared(rng=rng)
    parts += records_beside_models(tables)
    for link in release.links:
        above = release.tables[link.parent]
        parts += numbers_of_children(
            above, list(release.schemas.get(link.parent, above.schema).columns), link
        )
        child = release.children[link.child]
        parts.append(f"<h2>{escape(link.child)}: parent, child and sibling</h2>")
        parts.append(
            f"<p>One column of {escape(link.child)} is compared with the columns of its "
            f"{escape(link.parent)}, with its place among its siblings, and with the columns of "
            "the sibling before it (“previous”).</p>"
        )
        parts += relations(child)
        parts += farthest_tables([each for each in tables if each.table == link.child])
    return page(f"Linked tables: {name}" if name else "Linked tables", parts)


def verdicts(release: LinkedRelease) -> dict[str, tuple[str, ...]]:
    """Return the verdict on each table in sentences. If those on children say which relations show,
    another sentence says what is assumed of siblings; if they name the position or the columns of
    the previous sibling, the last one says what these are.
    """
    assumed = (
        "All this takes rows as independent of each other: among siblings who resemble each other "
        "chance explains more, so that relations may be shown that are none."
    )
    what = (
        f"“{POSITION}” is the place of a row among its siblings, and “{PREVIOUS}...” are the "
        "columns of the sibling before it."
    )
    found = {name: each.verdict.sentences for name, each in release.tables.items()}
    named = re.compile(rf"\b({POSITION}|{PREVIOUS})")
    for name, child in release.children.items():
        told = any(map(named.search, found[name]))
        found[name] += (*[assumed] * bool(child.verdict.shows), *[what] * told)
    return found


def _released(release: LinkedRelease) -> Iterator[str]:
    """Yield what a reader must know first: warnings, verdicts, the promise and the tables."""
    found = release.tables
    yield from dict.fromkeys(line for each in found.values() for line in warnings(each))
    yield "<div class='box'><h2>In short</h2><ul>"
    for name, sentences in verdicts(release).items():
        yield from (f"<li>{escape(f'{name}: {said}')}</li>" for said in sentences)
    yield f"</ul></div><p>{_HOW_TO_READ}</p>"
    yield "<h2>What was released</h2>"
    rows = [["promise", promise(release.parents)]]
    rows += [
        [f"{each.child} of a {each.parent}", f"at most {each.most}, by the key {each.parent_key}"]
        for each in release.links
    ]
    for name, each in found.items():
        rows += [[f"{name}: {what}", said] for what, said in result_rows(each)]
    yield table(["", ""], rows)
    yield from methods(f"{len(found)} linked tables ({', '.join(found)})", [*found.values()])


def records_beside_models(tables: Sequence[Compared]) -> Iterator[str]:
    """Yield the mean distances of records from the models' tables, for each table of records and
    each relation that its measured tables are about, such as "siblings" (`fidelity.kind_of`).
    """
    means = fidelity(tables).columns
    names = list(means)
    distances = {i: np.asarray(means[name], float) for i, name in enumerate(names[3:], 3)}
    highest = max(1e-9, *(float(each.max(initial=0)) for each in distances.values()))
    filled = {i: each / highest for i, each in distances.items()}
    texts = [[f"{value:.4f}" for value in each] for each in distances.values()]
    rows = list(zip(*(map(str, means[name]) for name in names[:3]), *texts, strict=True))
    yield "<h2>Records beside the models</h2>"
    yield "<p>Mean distances of measured tables.</p>"
    yield table(names, rows, numbers={2, *distances}, filled=filled)


def numbers_of_children(parents: TableRelease, own: Sequence[str], link: Link) -> Iterator[str]:
    """Yield a chart of the numbers of children, and a table with their means for each value of the
    parents' columns `own`.
    """
    columns, count = parents.schema.columns, link.count
    yield f"<h2>{escape(link.child)} of each {escape(link.parent)}</h2>"
    labels = list(columns[count].labels)
    yield bars(count, labels, parents.model.marginal((count,)), total=parents.model.total)
    numbers, means, rows = np.arange(link.most + 1), [], []
    for name in (n for n in own if n != count):
        by_value = parents.model.marginal((name, count))
        each = by_value.sum(axis=1)
        for code in sorted(np.argsort(-each)[:MOST_BARS].tolist()):
            mean = by_value[code] @ numbers / each[code] if each[code] > 0 else 0.0
            without = by_value[code, 0] / each[code] if each[code] > 0 else 0.0
            means.append(mean)
            figures = f"{each[code]:,.0f}", f"{mean:.2f}", percent(without)
            rows.append([name, columns[name].labels[code], *figures])
    if rows:
        yield f"<p>{escape(link.parent)} by each of its columns:</p>"
        yield table(
            ["column", "value", link.parent, f"mean number of {link.child}", "without any"],
            rows,
            numbers={2, 3, 4},
            filled={3: np.array(means) / max(1e-9, *means)},
        )


def farthest_tables(tables: Sequence[Compared]) -> Iterator[str]:
    """Yield, for each relation that measured tables are about, such as "siblings"
    (`fidelity.kind_of`), a table of the cliques where the records are farthest from the model.
    """
    for kind in dict.fromkeys(each.kind for each in tables):
        of_kind = sorted((t for t in tables if t.kind == kind), key=lambda each: -each.records)
        rows = [
            [" x ".join(each.clique), f"{each.noise:.4f}", f"{each.records:.4f}"]
            for each in of_kind[:NAMED]
        ]
        yield f"<h3>{escape(kind[0].upper() + kind[1:])}: the tables farthest from the model</h3>"
        yield table(["columns", "noise", "records"], rows, numbers={1, 2})
