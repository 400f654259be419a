"""Running a mechanism, given by its name or its settings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from mechanisms.privacy.budget import Accounting, Budget
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.ledger import FileLedger
from mechanisms.privacy.neighbours import Neighbours
from mechanisms.registry import MECHANISMS, Entry, configure, entry_of
from mechanisms.release.record import Release
from mechanisms.release.unfinished import kept, unfinished
from mechanisms.rounds.loop import Progress
from mechanisms.workload import Workload, WorkloadLike
from pgmkit import Dataset, Measurement, Zeros
from pgmkit.errors import InvalidInput, NotCertified, check_known
from pgmkit.runtime.typed import typed


@typed
def run(
    mechanism: str | object,
    data: Dataset,
    workload: WorkloadLike,
    epsilon: float,
    delta: float = 0.0,
    *,
    neighbours: str | Neighbours,
    public: Dataset | Sequence[Dataset] | None = None,
    seed: int | np.random.Generator | None = None,
    ledger: FileLedger | None = None,
    accounting: Accounting | None = None,
    progress: Progress = None,
) -> Release:
    """Spend an (epsilon, delta) budget on private data by the named mechanism, or by its settings.

    `workload`: a Workload, or cliques of equal weight. `neighbours`: "replace-one", "add/remove" or
    a relation of units (see `Curator`). `public`: records of the same domain that need no
    protection; several data sets for `pmw-pub`, and for `gem-pub` they may lack attributes. `seed`:
    makes the noise reproducible, and the release INSECURE.

    `ledger`: a ledger across runs (`Ledger.open`). `accounting`: a kind of accounting (see
    `Budget`); by default that of the ledger across runs, or else "zcdp" or, for a mechanism that
    only measures, the one with the least noise. `progress` is called with each finished Round of a
    mechanism that has rounds.

    Raises InvalidInput, before anything is spent, for an unknown mechanism, a wrong budget or
    relation, a workload over another domain, and public records that the mechanism does not use, or
    needs and lacks; BudgetExceeded if the ledger across runs has less left than this budget. An
    exception that ends the run later holds the noisy tables that were paid for, if there are any,
    as its `unfinished` (a Release). Warns (NotCertified) if the released model fits the
    measurements poorly.

    >>> from mechanisms.datasets.census import census
    >>> from mechanisms.workload import k_way
    >>> data = census(500)
    >>> run("mst", data, k_way(data.domain, 2), 1.0, 1e-6, neighbours="replace-one", seed=0)
    <Release of mst: 17 measurements, <Ledger: 25 charges, 0.02436 of 0.02436 rho>, INSECURE>
    """
    if isinstance(mechanism, str):
        entry, settings = configure(mechanism)
    else:
        entry, settings = entry_of(mechanism), mechanism
    budget = Budget(epsilon, delta)
    workload = Workload.over(data.domain, workload)
    budget = accounted(budget, accounting, only_measures(entry, settings, workload), ledger)
    curator = Curator(data, budget, neighbours=neighbours, seed=seed, ledger=ledger)
    with kept(lambda: unfinished(curator, entry.name)), closing(curator.ledger):
        release = run_on(curator, entry, settings, workload, public=public, progress=progress)
    warn_of_poor_fit(release)
    return release


def run_on(
    curator: Curator,
    entry: Entry,
    settings: Any,
    workload: WorkloadLike,
    *,
    public: Dataset | Sequence[Dataset] | None = None,
    bins: Mapping[str, int] | None = None,
    progress: Progress = None,
    **known: Sequence[Measurement] | Sequence[Zeros],
) -> Release:
    """Spend all that remains of a Curator's budget by a mechanism; see `run`.

    `bins`: the number of ordered codes of each attribute, for mechanisms that merge codes. `known`,
    for mechanisms that take them: `first`, measurements made before, and `zeros`, combinations that
    cannot occur. A poor fit is for the caller to report (`warn_of_poor_fit`), who may fit another
    model to the measurements.
    """
    check_known(known, ("first", "zeros"), "unknown option", "options are")
    check_public(entry, public is not None)
    workload = Workload.over(curator.domain, workload)
    options: dict[str, Any] = {"progress": progress} if entry.rounds else {}
    if public is not None:
        options["public"] = public
    options |= {name: each for name, each in known.items() if each}
    if bins is not None and entry.takes("bins"):
        options["bins"] = bins
    release: Release = entry.load()[0](curator, workload, settings, **options)
    return release


def warn_of_poor_fit(release: Release, stacklevel: int = 4) -> None:
    """Warn (NotCertified) if the released model fits the measurements poorly. `stacklevel`: that of
    `warnings.warn`; by default it names the caller of `run` or `synthesize`.
    """
    if getattr(release.model, "poor_fit", False):
        warnings.warn(
            f"the released model of {release.mechanism} is {release.certificate}: its answers may "
            "be off by more than the noise explains; the noisy tables themselves are in "
            "release.measurements",
            NotCertified,
            stacklevel=stacklevel,
        )


def only_measures(entry: Entry, settings: Any, workload: Workload) -> bool:
    """Return True if this run draws nothing but additive noise. Settings with a method `measures`,
    as those of `Mixture`, decide it by the workload; otherwise it is `entry.measures`. The answer
    depends on public figures alone.
    """
    check = getattr(settings, "measures", None)
    return bool(check(workload)) if callable(check) else entry.measures


def accounted(
    budget: Budget, asked: Accounting | None, measures: bool, ledger: FileLedger | None
) -> Budget:
    """Return the budget with the accounting that was asked for, or else with that of the ledger
    across runs.

    Without either it is the one that needs the least noise: "gaussian" for a run that only
    measures, but not for large epsilon (see `Budget.least_noise`), else "zcdp".
    """
    kind = asked if ledger is None else asked or ledger.budget.accounting
    return replace(budget, accounting=kind or (budget.least_noise if measures else "zcdp"))


def check_public(entry: Entry, given: bool) -> None:
    """Raise InvalidInput for public records that are not used, or that are needed but absent."""
    if given and not entry.public:
        users = [other.name for other in MECHANISMS.values() if other.public]
        raise InvalidInput(f"{entry.name} uses no public records; take {' or '.join(users)}")
    if entry.public and not given:
        raise InvalidInput(
            f"{entry.name} needs public records of the same domain: pass public= (--public), which "
            "`synthesize_linked` does not have, or take another mechanism"
        )
