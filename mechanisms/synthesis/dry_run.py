"""A run on made-up records up to its first charge, which raises what the mechanism refuses."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace

import numpy as np

from mechanisms.dispatch import run_on
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import Ledger
from mechanisms.registry import configure
from mechanisms.synthesis.auto import Choice
from mechanisms.synthesis.open_columns import assumed
from mechanisms.synthesis.plan import made_up
from mechanisms.synthesis.request import Request
from mechanisms.workload import Workload
from pgmkit.tables.schema import Schema

__all__ = ["dry_run"]


class _FirstCharge(BaseException):
    """Ends a dry run; no mechanism can take it for an error of its own."""


class _DryLedger(Ledger):
    def charge(self, step: str, mechanism: str, cost: float, delta: float = 0.0) -> None:
        raise _FirstCharge


def dry_run(request: Request, choice: Choice, schema: Schema, workload: Workload) -> None:
    """Run the mechanism on made-up records up to its first charge, and so raise what it refuses.

    For runs that pay for something before the mechanism does: for open columns (`assumed` values
    stand for those that will be found), for the number of rows, for the number of rows left out, or
    for a first look. A domain that is too large, or more queries than there are cells, can still be
    refused after that, as these depend on how many values are found.
    """
    entry, chosen = configure(choice.name, **{**choice.settings, **request.options})
    if any(field.name == "pretrain_steps" for field in fields(chosen)):
        chosen = replace(chosen, pretrain_steps=1)  # pretraining refuses nothing and takes time
    placed = assumed(schema).placed()
    # Refusals depend on public figures and not on the records, of which any few serve.
    records = made_up(placed.domain, 100, np.random.default_rng(0))
    curator = Curator(records, request.budget, neighbours=request.relation, seed=0)
    curator.ledger = _DryLedger(request.budget, neighbours=request.relation.name)
    with suppress(_FirstCharge):
        run_on(curator, entry, chosen, workload, public=request.public_records(placed))
