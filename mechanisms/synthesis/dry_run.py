"""A run on made-up records up to its first charge, which raises the mechanism's refusals early."""

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


class _FirstCharge(BaseException):
    """An exception that ends a dry run. It is a BaseException, so that no mechanism handles it as
    one of its own errors.
    """


class _DryLedger(Ledger):
    def charge(self, step: str, mechanism: str, cost: float, delta: float = 0.0) -> None:
        raise _FirstCharge


def dry_run(request: Request, choice: Choice, schema: Schema, workload: Workload) -> None:
    """Run the mechanism on made-up records up to its first charge, so that its refusals are raised.

    `schema`: the schema of the records; open columns get made-up values (`assumed`). `workload`:
    over the schema with these values. A run that pays for something before its mechanism, such as
    the values of open columns, the number of rows or a first look, makes a dry run before that. A
    refusal that depends on how many values are found, such as that of a domain that is too large,
    can still come later. A named mechanism then ends the run with `ColumnsFound`; "auto", unless
    there are public records or questions, makes a second dry run, over the values found, and takes
    independent columns if that is refused.
    """
    entry, chosen = configure(choice.name, **choice.settings)
    if any(field.name == "pretrain_steps" for field in fields(chosen)):
        chosen = replace(chosen, pretrain_steps=1)  # pretraining refuses nothing and takes time
    likely = assumed(schema)
    # Refusals depend on public figures, not on the records, so any few records will do.
    records = made_up(likely.domain, 100, np.random.default_rng(0))
    curator = Curator(records, request.budget, neighbours=request.relation, seed=0)
    curator.ledger = _DryLedger(request.budget, neighbours=request.relation.name)
    with suppress(_FirstCharge):
        run_on(curator, entry, chosen, workload, public=request.public_records(likely))
