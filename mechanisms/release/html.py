"""The view of a release in a notebook: warnings, what was promised and released, the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mechanisms.privacy.ledger import Ledger
from mechanisms.privacy.neighbours import rows_public
from mechanisms.release.unfitted import Unfitted
from pgmkit.runtime.html import escape, table


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
    said = (
        f"epsilon = {budget.epsilon:g}, delta = {budget.delta:g}, neighbours: {ledger.neighbours}"
    )
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
