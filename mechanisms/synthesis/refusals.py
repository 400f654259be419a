"""What `synthesize` refuses before its first charge, so that nothing is paid for and then lost."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import numpy as np

from mechanisms.dispatch import check_public, run_on
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import FileLedger, Ledger
from mechanisms.privacy.neighbours import Neighbours
from mechanisms.registry import configure
from mechanisms.synthesis.auto import Choice
from mechanisms.synthesis.open_columns import assumed
from mechanisms.synthesis.plan import made_up
from mechanisms.workload import Workload
from pgmkit.errors import InvalidInput
from pgmkit.records.dataset import Dataset
from pgmkit.runtime.devices import device_of
from pgmkit.runtime.randomness import generator
from pgmkit.tables.engines.frames import encode, names_of
from pgmkit.tables.schema import NoRows, Schema

__all__ = [
    "check_kinds",
    "check_mechanism",
    "check_public_records",
    "dry_run",
    "on_device",
    "public_records",
    "with_device",
]

_DRY_ROWS = 100


def check_kinds(
    *,
    schema: Any,
    mechanism: Any,
    neighbours: Any,
    accounting: Any,
    seed: Any,
    ledger: Any,
    progress: Any,
    settings: Any,
    **switches: object,
) -> None:
    """Raises InvalidInput for arguments of another kind, which would fail later or half-way."""
    if not isinstance(schema, Schema):
        raise InvalidInput(f"schema must be a Schema, got {type(schema).__name__}; see Schema.load")
    for name, text in {"mechanism": mechanism, "neighbours": neighbours}.items():
        if not isinstance(text, str):
            raise InvalidInput(f"{name} must be a name, got {text!r}")
    if accounting is not None and not isinstance(accounting, str):
        raise InvalidInput(f"accounting must be 'zcdp' or 'gaussian', got {accounting!r}")
    for name, switch in switches.items():
        if not isinstance(switch, bool):
            raise InvalidInput(f"{name} must be True or False, got {switch!r}")
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise InvalidInput(f"progress must be True, False, None or callable, got {progress!r}")
    if not (ledger is None or isinstance(ledger, FileLedger)):
        raise InvalidInput(
            f"ledger must be one across runs, got {ledger!r}; open its file: Ledger.open(path)"
        )
    if not (isinstance(settings, Mapping) and all(isinstance(name, str) for name in settings)):
        raise InvalidInput(f"settings must be a mapping from names to values, got {settings!r}")
    generator(seed)


def check_mechanism(
    schema: Schema, mechanism: str, settings: Mapping[str, Any], public: bool
) -> None:
    """Raises InvalidInput for a mechanism or settings that do not fit the schema or each other."""
    for constraint in schema.constraints:
        for name in constraint.columns:
            if name in schema.unresolved:
                raise InvalidInput(
                    f"a constraint speaks of {name!r}, whose values are still to be found; list "
                    "them, or take the constraint out"
                )
    if mechanism == "auto":
        if settings:
            raise InvalidInput(
                f"settings {sorted(settings)} need a mechanism by name; auto chooses its own"
            )
        return
    entry, chosen = configure(mechanism, **settings)
    check_public(entry, public)
    inference = getattr(chosen, "inference", None)
    if schema.constraints and not entry.graphical and inference in (None, "exact"):
        remedy = f"settings={{'inference': 'auto'}} with {mechanism}, or " if inference else ""
        raise InvalidInput(
            f"the schema has constraints, which the model of {mechanism} cannot hold; use "
            f"{remedy}aim, mst or mwem+pgm, or take the constraints out"
        )


def with_device(
    device: str | None, mechanism: str, settings: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The settings of a mechanism named, with the device among them.

    Raises InvalidInput for a device that is not there or said twice.
    """
    if device is None:
        return settings
    device_of(device)
    if "device" in settings:
        raise InvalidInput(
            f"device is given twice, as {device!r} and in settings as {settings['device']!r}; "
            "give it once"
        )
    return settings if mechanism == "auto" else {**settings, "device": device}


def on_device(chosen: Any, device: str | None) -> Any:
    """A mechanism's settings with the device, where it computes on one."""
    if device is None or not hasattr(chosen, "device"):
        return chosen
    return replace(chosen, device=device)


def check_public_records(public: Any, schema: Schema, mechanism: str) -> None:
    """Raises InvalidInput for public records that could not be used; none are well."""
    if public is None:
        return
    if isinstance(public, Dataset):
        if schema.unresolved:
            raise InvalidInput(
                "public records must be a data frame where the schema has open columns, whose "
                "codes are not known yet"
            )
        return
    known = public_records(public, assumed(schema).placed()).domain
    absent = [name for name in schema.columns if name not in known]
    if schema.unresolved and absent and mechanism not in ("auto", "gem-pub"):
        raise InvalidInput(
            f"the public data lack {', '.join(map(repr, absent))}; add what is missing, or use "
            "gem-pub, which can do without"
        )
    fixed = [name for name in known if name not in schema.unresolved]
    if fixed:
        public_records(public, schema.restricted(fixed))


def public_records(public: Any, schema: Schema) -> Dataset:
    """The columns of the schema that the public records have, as codes."""
    if isinstance(public, Dataset):
        return public
    known = [name for name in names_of(public) if name in schema.columns]
    if not known:
        raise InvalidInput("the public records have no column of the schema; rename theirs")
    found = encode(public, schema.restricted(known))
    if isinstance(found, NoRows):
        raise InvalidInput("the public records have no rows; give at least one")
    return found


class _FirstCharge(BaseException):
    """What ends a dry run; no mechanism can take it for an error of its own."""


class _DryLedger(Ledger):
    def charge(self, step: str, mechanism: str, cost: float, delta: float = 0.0) -> None:
        raise _FirstCharge


def dry_run(
    choice: Choice,
    settings: Mapping[str, Any],
    schema: Schema,
    workload: Workload,
    budget: Budget,
    neighbours: Neighbours,
    public: Any,
) -> None:
    """Run the mechanism on made-up records up to its first charge, and so raise what it refuses.

    For runs that pay for something else before: for open columns (`assumed` values stand for what
    will be found), for the number of rows, or for that of rows left out. What depends on how many
    values are found can still be refused after that: a domain that is too large, or more queries
    than there are cells.
    """
    entry, chosen = configure(choice.name, **{**choice.settings, **settings})
    if any(field.name == "pretrain_steps" for field in fields(chosen)):
        chosen = replace(chosen, pretrain_steps=1)  # it refuses nothing, and takes its time
    placed = assumed(schema).placed()
    records = made_up(placed.domain, _DRY_ROWS, np.random.default_rng(0))
    curator = Curator(records, budget, neighbours=neighbours, seed=0)
    curator.ledger = _DryLedger(budget, neighbours=neighbours.name)
    others = None if public is None else public_records(public, placed)
    with suppress(_FirstCharge):
        run_on(curator, entry, chosen, workload, public=others)
