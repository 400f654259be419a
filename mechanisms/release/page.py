"""Releases as HTML: what a notebook shows of one, and the page of a report, a single file that
includes its style and its few lines of script.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any

from mechanisms.privacy.ledger import Ledger
from mechanisms.privacy.neighbours import rows_public
from mechanisms.release.unfitted import Unfitted
from pgmkit import __version__
from pgmkit.runtime.html import escape, table
from pgmkit.runtime.printed import NAMED, exactly

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --paper: #fff; --soft: #5a6775; --line: #e3e8ee;
  --bar: #4f81bd; --edge: #9fb3c8; --warn: #fdecea; --box: #f4f7fa; }
@media (prefers-color-scheme: dark) { :root { --ink: #dde5ee; --paper: #14191f; --soft: #9aa8b6;
  --line: #2c3640; --bar: #6fa0dc; --edge: #55687c; --warn: #45201c; --box: #1d242c; } }
@media print { :root { --ink: #000; --paper: #fff; --line: #ccc; --box: #fff; --soft: #444; }
  figure, tr, .box, .wide, details.column { break-inside: avoid; } h2, h3 { break-after: avoid; }
  body { margin: 0; } input { display: none; } .wide { break-before: avoid; }
  .wide svg { max-width: 100%; max-height: 14cm; } .columns.columns { display: block; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 66rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
h3 { font-size: 1rem; margin-top: 1.6rem; }
.meta, caption { color: var(--soft); } .meta { margin-top: 0; }
.box { background: var(--box); border: 1px solid var(--line); border-radius: 6px;
  padding: .2rem 1.2rem .6rem; } .box h2 { margin-top: .6rem; }
table { border-collapse: collapse; margin: .6rem 0; display: block; max-width: 100%;
  overflow-x: auto; } caption { text-align: left; max-width: min(64rem, 100vw - 2rem); }
th, td { padding: .15rem .8rem .15rem 0; text-align: left; border-bottom: 1px solid var(--line);
  overflow-wrap: break-word; vertical-align: top; }
tr > :first-child { min-width: 8rem; }
@media (max-width: 30rem) { th, td { padding-right: .4rem; font-size: .85em; }
  tr > :first-child { min-width: 0; } }
figure { margin: .4rem 0 1rem; } figcaption { font-weight: 600; }
svg { max-width: 100%; height: auto; } .wide, pre { overflow-x: auto; }
@media screen { .wide svg { max-width: none; } } .bar, .heat { fill: var(--bar); }
.whisker { stroke: var(--ink); } .edge { stroke: var(--edge); } .node { fill: var(--bar); }
.axis { stroke: var(--soft); } .joined { stroke: var(--ink); }
text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.warn { background: var(--warn); border-left: 4px solid #c0392b; padding: .5rem 1rem; }
summary { cursor: pointer; padding: .15rem 0; } summary span { color: var(--soft); }
.columns { display: grid; gap: 0 2rem; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(27rem, 100%), 1fr)); }
details.column { border-bottom: 1px solid var(--line); }
input[type=search] { font: inherit; width: 20rem; max-width: 100%; padding: .3rem .5rem;
  color: inherit; background: var(--box); border: 1px solid var(--line); border-radius: 4px;
  box-sizing: border-box; }
"""
_SCRIPT = """
const find = document.getElementById('find');
if (find) find.addEventListener('input', () => {
  for (const each of document.querySelectorAll('details.column'))
    each.hidden = !each.dataset.name.toLowerCase().includes(find.value.toLowerCase());
});
addEventListener('beforeprint', () => {
  for (const each of document.querySelectorAll('details.column')) each.open = true;
});
"""


def of_columns(picture: str, columns: int) -> str:
    """Return the HTML element that contains a picture of `columns` columns of the data. In a narrow
    window a picture of more than `NAMED` columns can be scrolled sideways, and any other
    shrinks.
    """
    return f"<div class='wide'>{picture}</div>" if columns > NAMED else f"<div>{picture}</div>"


def origin(schema_file: str) -> str:
    """Return the line below the heading: the page's date, the version of pgmkit that makes it and,
    unless it is empty, the name of the schema's file.
    """
    made = [f"page made on {date.today():%d %B %Y}", f"by pgmkit {__version__}"]
    made += [f"schema {schema_file}"] if schema_file else []
    return f"<p class='meta'>{escape(', '.join(made))}</p>"


def page(title: str, parts: Iterable[str]) -> str:
    """Return the whole page; `parts` are HTML, the title is plain text."""
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<link rel='icon' href='data:,'><title>{escape(title)}</title><style>{_STYLE}</style>"
        f"</head>\n<body><h1>{escape(title)}</h1>\n"
        + "\n".join(parts)
        + f"\n<script>{_SCRIPT}</script></body></html>\n"
    )


def overview(release: Any, more: Sequence[Sequence[str]] = ()) -> str:
    """Return the release as HTML: its warnings, a table of its properties, and its ledger. Nothing
    beyond the release itself is shown.

    `release`: a Release or a TableRelease. `more`: further rows, as texts that are escaped here.
    """
    rows = [["promise", promise(release)], *result_rows(release), *more]
    spent = "" if release.ledger is None else release.ledger._repr_html_()
    return "".join(warnings(release)) + table(["", ""], rows) + spent


def result_rows(release: Any) -> list[list[str]]:
    """Return rows of a table, each a title and a text, on the mechanism (with the version of pgmkit
    that ran it, and why), the number of records, whether it is public, the number of noisy tables
    and, where they are known, how close the model came to its best fit and how well the noisy
    tables agree.
    """
    ran = f"{release.mechanism} of pgmkit {release.made_by}".removesuffix(" of pgmkit ")
    public = release.ledger is not None and rows_public(release.ledger.neighbours)
    total = "" if isinstance(release.model, Unfitted) else f"{release.model.total:,.0f}"
    records = f"records ({'public' if public else 'estimated'})"
    noisy = str(len(release.measurements) - release.exact)
    ran += f" ({release.reason})" if release.reason else ""
    rows = [["mechanism", ran], [records, total], ["noisy tables", noisy]]
    rows += [["fit of the model to them", release.certificate]] if release.certificate else []
    return rows + ([["agreement of the tables", str(release.fit)]] if release.fit else [])


def promise(release: Any) -> str:
    """Return the privacy promise in one line, which also says how many exact tables it does not
    cover, if there are any. For an insecure release the line says that there is none, and what the
    ledger says; for one without a ledger, that the promise is that of whoever published the noisy
    tables.
    """
    ledger: Ledger | None = release.ledger
    if ledger is None:
        return "that of whoever published the noisy tables"
    budget = ledger.budget
    said = f"epsilon = {exactly(budget.epsilon)}, delta = {exactly(budget.delta)}"
    said += f", neighbours: {ledger.neighbours}"
    said += f"; {release.exception}" if release.exception else ""
    return said if release.secure else f"none; the ledger says {said}"


def warnings(release: Any) -> list[str]:
    """Return the warnings that a reader must see before anything else, as HTML paragraphs: the
    release's caution, a model that fits poorly, and noisy tables that contradict each other.
    """
    said = release.caution.splitlines()
    if getattr(release.model, "poor_fit", False):
        off = "Its answers may be off by more than the noise explains."
        said.append(f"The model is {release.certificate}. {off}")
    said += [f"Careful: {release.contradiction}."] if release.contradiction else []
    return [f"<p class='warn'>{escape(line)}</p>" for line in said]
