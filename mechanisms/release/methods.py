"""A paragraph on a release for the methods section of a paper or for a statistical note."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module

from mechanisms.privacy.ledger import Ledger
from mechanisms.registry import MECHANISMS
from mechanisms.release.tabular import TableRelease
from pgmkit import __version__
from pgmkit.runtime.html import escape

_UNPROTECTED = (
    "Not protected are facts about the population that hold for its members whether or not they "
    "are in the data, and the schema, the workload and the settings, which are public."
)


def methods(release: TableRelease) -> Iterator[str]:
    """Yield the section of the report that shows the methods paragraph (`paragraph`)."""
    yield "<h2>For a methods section</h2>"
    yield f"<blockquote class='box'><p>{escape(paragraph(release))}</p></blockquote>"


def paragraph(release: TableRelease) -> str:
    """Return the paragraph of a methods section: mechanism, promise and its accounting (or, if the
    release is not secure, that none is promised), number of noisy tables, what is not protected,
    and the reference. Without a ledger it says only how many noisy tables, published by others, and
    how many exact ones the model was estimated from.
    """
    columns = f"{len(release.schema.columns)} columns"
    noisy = len(release.measurements) - release.exact
    if release.ledger is None:
        exact = f" and {release.exact} exact" if release.exact else ""
        return (
            f"A model of {columns} was estimated from {noisy} noisy{exact} tables with pgmkit "
            f"{__version__}. Their privacy is that of whoever published them."
        )
    entry = MECHANISMS.get(release.mechanism)
    cited = "" if entry is None else _cited(entry.module)
    what = "" if entry is None else f" ({entry.summary.partition(';')[0]})"
    said = " ".join(release.caution.splitlines())
    kept = _promised(release.ledger) if release.secure else f"No privacy is promised: {said}."
    held = f"The model also holds tables that are exact: {release.exception}. "
    return (
        f"Synthetic data of {columns} were made with the mechanism {release.mechanism} of pgmkit "
        f"{__version__}{what}. {kept} "
        f"{noisy} noisy tables were measured, and all else was computed from "
        f"them. {held * (release.exact > 0)}{_UNPROTECTED}{f' Reference: {cited}' if cited else ''}"
    )


def _promised(ledger: Ledger) -> str:
    budget = ledger.budget
    accounting = (
        "pure differential privacy by basic composition"
        if budget.pure
        else "Gaussian differential privacy"
        if budget.gaussian
        else "zero-concentrated differential privacy"
    )
    delta = "" if budget.pure else f", {budget.delta:g}"
    return (
        f"They satisfy ({budget.epsilon:g}{delta})-differential privacy under the neighbour "
        f"relation {ledger.neighbours}, accounted for by {accounting}."
    )


def _cited(module: str) -> str:
    """Return the paper that the second paragraph of a mechanism's module docstring begins with, or
    "".
    """
    try:
        said = inspect.getdoc(import_module(module)) or ""
    except ImportError:  # its package is no longer installed
        return ""
    second = [" ".join(part.split()) for part in said.split("\n\n")][1:2]
    paper, year, _ = second[0].partition(")") if second else ("", "", "")
    return f"{paper})." if year and '"' in paper else ""
