"""The mechanisms by name, and the one way to run any of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mechanisms.budget import Budget
from pgmkit.errors import InvalidInput, NotCertified

if TYPE_CHECKING:
    import numpy as np

    from mechanisms.adaptive import Round
    from mechanisms.curator import Curator
    from mechanisms.release import Release
    from mechanisms.workload import WorkloadLike
    from pgmkit.dataset import Dataset

__all__ = ["MECHANISMS", "Entry", "check_public", "named", "run", "run_on"]


@dataclass(frozen=True)
class Entry:
    """A mechanism: its name, where it lives, and a line on it. Its module is imported on use.

    `public`: whether it needs records that need no protection. `graphical`: whether its model is a
    GraphicalModel, which has error bars and can hold constraints. `rounds`: whether it goes in
    rounds and reports each to a `progress` callback. `records`: whether synthetic records can be
    drawn from its model. `consistent`: whether its tables are at least 0 and agree.
    """

    name: str
    module: str
    function: str
    settings: str
    summary: str
    rounds: bool = True
    public: bool = False
    graphical: bool = False
    records: bool = True
    consistent: bool = True

    def load(self) -> tuple[Callable[..., Release], type[Any]]:
        """The function and its settings class."""
        module = import_module(self.module)
        return getattr(module, self.function), getattr(module, self.settings)


_ENTRIES = [
    Entry(
        "aim",
        "mechanisms.aim",
        "aim",
        "Aim",
        "adaptive marginals under an annealed budget; accurate, and a graphical model",
        graphical=True,
    ),
    Entry(
        "mixture",
        "mechanisms.mixture",
        "mixture",
        "Mixture",
        "all pairs (and more) measured at once, a mixture of rows fitted; accurate in seconds",
        rounds=False,
    ),
    Entry(
        "mst",
        "mechanisms.mst",
        "mst",
        "Mst",
        "a spanning tree of pairs, measured once; the fastest",
        rounds=False,
        graphical=True,
    ),
    Entry(
        "mwem+pgm",
        "mechanisms.mwem_pgm",
        "mwem_pgm",
        "MwemPgm",
        "one-way marginals, then a fixed number of adaptively selected ones",
        graphical=True,
    ),
    Entry(
        "gem",
        "mechanisms.gem",
        "gem",
        "Gem",
        "a generator network trained on adaptively selected queries; for many attributes",
    ),
    Entry(
        "gem-pub",
        "mechanisms.gem",
        "gem_pub",
        "GemPub",
        "the same network fitted to public records first; they may lack attributes",
        public=True,
    ),
    Entry(
        "clique-tree",
        "mechanisms.clique_tree",
        "clique_tree",
        "CliqueTree",
        "one shot: the pairs that a small tree can hold, measured together; accurate in seconds",
        rounds=False,
        graphical=True,
    ),
    Entry(
        "rap-softmax",
        "mechanisms.rap",
        "rap_softmax",
        "RapSoftmax",
        "rows of probabilities fitted to the queries selected in a few rounds",
    ),
    Entry(
        "rap",
        "mechanisms.rap",
        "rap",
        "Rap",
        "the same with rows in [-1, 1]; fails beyond few attributes",
        consistent=False,
    ),
    Entry(
        "rap++",
        "mechanisms.rap_pp",
        "rap_pp",
        "RapPlusPlus",
        "rows of codes and numbers, fitted to thresholds by tempered sigmoids",
    ),
    Entry(
        "dual-query",
        "mechanisms.dual_query",
        "dual_query",
        "DualQuery",
        "records that best respond to drawn queries; no measurement",
    ),
    Entry(
        "fem",
        "mechanisms.fem",
        "fem",
        "Fem",
        "records that best respond to selected queries under perturbations",
    ),
    Entry(
        "mwem",
        "mechanisms.mwem",
        "mwem",
        "Mwem",
        "multiplicative weights on a histogram of the whole domain; few attributes",
    ),
    Entry(
        "pep",
        "mechanisms.pep",
        "pep",
        "Pep",
        "a histogram projected on all noisy answers; few attributes",
    ),
    Entry(
        "pep-pub",
        "mechanisms.pep",
        "pep_pub",
        "PepPub",
        "weights of public records projected on all noisy answers",
        public=True,
    ),
    Entry(
        "pmw-pub",
        "mechanisms.pmw_pub",
        "pmw_pub",
        "PmwPub",
        "multiplicative weights on public records",
        public=True,
    ),
    Entry(
        "hdmm",
        "mechanisms.hdmm",
        "hdmm",
        "Hdmm",
        "the strategy of least expected error for marginals, prefixes or ranges; tables only",
        rounds=False,
        records=False,
    ),
    Entry(
        "hdmm+pgm",
        "mechanisms.hdmm",
        "hdmm_pgm",
        "HdmmPgm",
        "a model, or consistent tables, of the answers to the same strategy",
        rounds=False,
    ),
    Entry(
        "gaussian",
        "mechanisms.baselines",
        "gaussian",
        "Gaussian",
        "noise on every workload marginal, as it comes; a baseline, tables only",
        rounds=False,
        records=False,
    ),
    Entry(
        "gaussian+projection",
        "mechanisms.baselines",
        "projection",
        "Projection",
        "noise on every workload marginal, then the nearest model or consistent tables",
        rounds=False,
    ),
    Entry(
        "independent",
        "mechanisms.baselines",
        "independent",
        "Independent",
        "one-way marginals only; a baseline",
        rounds=False,
        graphical=True,
    ),
]
MECHANISMS = {entry.name: entry for entry in _ENTRIES}
"""All mechanisms by name."""


def named(name: str, **options: object) -> tuple[Entry, Any]:
    """The mechanism of this name and its settings with these options.

    Raises InvalidInput for an unknown name, listing the known ones, and for an option that the
    mechanism does not have, listing those it has.

    >>> named("mwem+pgm", rounds=5)[1].rounds
    5
    """
    if name not in MECHANISMS:
        raise InvalidInput(f"mechanism {name!r} is unknown; known are {', '.join(MECHANISMS)}")
    entry = MECHANISMS[name]
    settings = entry.load()[1]
    known = [field.name for field in fields(settings)]
    for option in options:
        if option not in known:
            raise InvalidInput(f"{name} has no setting {option!r}; it has {', '.join(known)}")
    return entry, settings(**options)


def run(
    mechanism: str | object,
    data: Dataset,
    workload: WorkloadLike,
    epsilon: float,
    delta: float = 0.0,
    *,
    neighbours: str,
    public: Dataset | Sequence[Dataset] | None = None,
    seed: int | np.random.Generator | None = None,
    progress: Callable[[Round[Any, Any]], None] | None = None,
) -> Release:
    """Spend an (epsilon, delta) budget on private data by the named mechanism, or by its settings.

    `workload`: a Workload, or cliques of equal weight. `public`: records of the same domain that
    need no protection. Raises InvalidInput, before anything is spent, for an unknown mechanism, a
    wrong budget or relation, a workload over another domain, and public records where none are used
    or none are given but needed.

    >>> from mechanisms.census import census
    >>> from mechanisms.workload import k_way
    >>> data = census(500)
    >>> run("mst", data, k_way(data.domain, 2), 1.0, 1e-6, neighbours="replace-one", seed=0)
    <Release of mst: 17 measurements, <Ledger: 25 charges, 0.02436 of 0.02436 rho>, INSECURE>
    """
    from mechanisms.curator import Curator

    entry, settings = named(mechanism) if isinstance(mechanism, str) else _of(mechanism)
    curator = Curator(data, Budget(epsilon, delta), neighbours=neighbours, seed=seed)
    return run_on(curator, entry, settings, workload, public=public, progress=progress)


def run_on(
    curator: Curator,
    entry: Entry,
    settings: Any,
    workload: WorkloadLike,
    *,
    public: Dataset | Sequence[Dataset] | None = None,
    progress: Callable[[Round[Any, Any]], None] | None = None,
) -> Release:
    """Spend all that remains of a Curator's budget by a mechanism; see `run`."""
    check_public(entry, public is not None)
    options: dict[str, Any] = {"progress": progress} if entry.rounds else {}
    if public is not None:
        options["public"] = public
    release: Release = entry.load()[0](curator, workload, settings, **options)
    if getattr(release.model, "poor_fit", False):
        warnings.warn(
            f"the released model of {entry.name} is {release.fit}: its answers may be off by more "
            "than the noise explains; the noisy tables themselves are in release.measurements.",
            NotCertified,
            stacklevel=2,
        )
    return release


def check_public(entry: Entry, given: bool) -> None:
    """Raises InvalidInput for public records that are not used, or that are needed but absent."""
    if given and not entry.public:
        users = [other.name for other in MECHANISMS.values() if other.public]
        raise InvalidInput(f"{entry.name} uses no public records; {', '.join(users)} do")
    if entry.public and not given:
        raise InvalidInput(f"{entry.name} needs public records of the same domain; pass public=")


def _of(settings: object) -> tuple[Entry, object]:
    for entry in MECHANISMS.values():
        if (type(settings).__module__, type(settings).__name__) == (entry.module, entry.settings):
            return entry, settings
    raise InvalidInput(
        f"mechanism must be a name or the settings of a mechanism, got {type(settings).__name__}; "
        f"names are {', '.join(MECHANISMS)}"
    )
