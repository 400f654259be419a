"""The mechanisms by name, with their settings: the built-in ones and those of other packages."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from pgmkit.errors import InvalidInput, did_you_mean

__all__ = ["MECHANISMS", "Entry", "Registry", "configure", "entry_of", "register"]

ENTRY_POINTS = "pgmkit.mechanisms"
"""The group under which an installed package names its entries."""


@dataclass(frozen=True)
class Entry:
    """A mechanism: its name, where it lives, and a line on it. Its module is imported on use.

    `function(curator, workload, settings, *, progress=None, public=None)` returns a Release; it
    takes `progress` only if `rounds`, and `public` only if `public`. `settings` is a frozen
    dataclass with a default for every field.

    Attributes:
        name: The name by which it is run.
        module: The module of the function and of the settings class.
        function: The name of the function.
        settings: The name of the settings class.
        summary: A line that says what it does, shown by `pgmkit mechanisms`.
        rounds: Whether it goes in rounds and reports each to a `progress` callback.
        public: Whether it needs records that need no protection.
        graphical: Whether its model is a GraphicalModel, which has error bars and can hold
            constraints. A mechanism with the setting `inference` can, too, where that is not
            "exact".
        records: Whether synthetic records can be drawn from its model.
        consistent: Whether its tables are at least 0 and agree with each other.
        measures: Whether it draws nothing but additive noise, and selects nothing by another
            mechanism: Gaussian accounting then needs less noise, and is the default.
            Where that depends on the workload, its settings have `measures(workload)` as well.
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
    measures: bool = False

    def load(self) -> tuple[Callable[..., Any], type[Any]]:
        """The function and its settings class.

        Raises InvalidInput where the module of another package cannot be imported or lacks them.
        """
        try:
            module = import_module(self.module)
            return getattr(module, self.function), getattr(module, self.settings)
        except (ImportError, AttributeError) as error:
            raise InvalidInput(
                f"mechanism {self.name!r} cannot be loaded from {self.module} ({error}); "
                "install or repair the package that registered it"
            ) from error


class Registry(Mapping[str, Entry]):
    """Entries by name, in order of registration; installed packages add theirs on first use.

    `earlier` names are understood and not listed.
    """

    def __init__(self, entries: list[Entry], earlier: Mapping[str, str] | None = None) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self._earlier = dict(earlier or {})
        self._discovered = False

    def register(self, entry: Entry) -> None:
        """Add an entry. Raises InvalidInput for what is no Entry, and for a name that is taken."""
        if not isinstance(entry, Entry):
            raise InvalidInput(
                f"a mechanism is registered by an Entry, got {type(entry).__name__}; "
                "see mechanisms.registry.Entry"
            )
        taken = self._entries.get(self._earlier.get(entry.name, entry.name))
        if taken is not None and taken != entry:
            raise InvalidInput(
                f"mechanism {entry.name!r} is registered already, by {taken.module}; "
                "choose another name"
            )
        self._entries[entry.name] = entry

    def __getitem__(self, name: str) -> Entry:
        return self._found()[self._earlier.get(name, name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found())

    def __len__(self) -> int:
        return len(self._found())

    def _found(self) -> dict[str, Entry]:
        """All entries; those of installed packages are read once. A broken one is left out."""
        if not self._discovered:
            self._discovered = True
            for point in entry_points(group=ENTRY_POINTS):
                try:
                    self.register(point.load())
                except Exception as error:
                    warnings.warn(
                        f"the mechanism {point.name!r} ({point.value}) was left out: {error}",
                        stacklevel=3,
                    )
        return self._entries


_BUILT_IN = [
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
        measures=True,
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
        "matrix",
        "mechanisms.matrix",
        "matrix",
        "Matrix",
        "the least noise for marginals, prefixes or ranges, with exact variances; tables only",
        rounds=False,
        records=False,
        measures=True,
    ),
    Entry(
        "matrix+pgm",
        "mechanisms.matrix",
        "matrix_pgm",
        "MatrixPgm",
        "a model, or consistent tables, of the same measurements",
        rounds=False,
        measures=True,
    ),
    Entry(
        "gaussian",
        "mechanisms.baselines",
        "gaussian",
        "Gaussian",
        "noise on every workload marginal, as it comes; a baseline, tables only",
        rounds=False,
        records=False,
        measures=True,
    ),
    Entry(
        "gaussian+projection",
        "mechanisms.baselines",
        "projection",
        "Projection",
        "noise on every workload marginal, then the nearest model or consistent tables",
        rounds=False,
        measures=True,
    ),
    Entry(
        "independent",
        "mechanisms.baselines",
        "independent",
        "Independent",
        "one-way marginals only; a baseline",
        rounds=False,
        graphical=True,
        measures=True,
    ),
]
_EARLIER = {"hdmm": "matrix", "residual": "matrix", "hdmm+pgm": "matrix+pgm"}
"""Names that mechanisms had before, which go on to be understood."""
MECHANISMS = Registry(_BUILT_IN, _EARLIER)
"""All mechanisms by name."""


def register(entry: Entry) -> None:
    """Make a mechanism known to `run`, `synthesize`, `plan` and the command line of this process.

    An installed package does the same by an entry point in the group "pgmkit.mechanisms" whose
    object is the Entry. Raises InvalidInput as `Registry.register` does.
    """
    MECHANISMS.register(entry)


def configure(name: str, **options: object) -> tuple[Entry, Any]:
    """The mechanism of this name and its settings with these options.

    Raises InvalidInput for an unknown name, listing the known ones, and for an option that the
    mechanism does not have, listing those it has.

    >>> configure("mwem+pgm", rounds=5)[1].rounds
    5
    """
    if name not in MECHANISMS:
        near = did_you_mean(name, MECHANISMS)
        raise InvalidInput(
            f"mechanism {name!r} is unknown{near}; known are {', '.join(MECHANISMS)}"
        )
    entry = MECHANISMS[name]
    settings = entry.load()[1]
    known = [field.name for field in fields(settings)]
    for option in options:
        if option not in known:
            near = did_you_mean(option, known)
            raise InvalidInput(f"{name} has no setting {option!r}{near}; it has {', '.join(known)}")
    # Where options were read from JSON, tuples are lists.
    return entry, settings(
        **{k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    )


def entry_of(settings: object) -> Entry:
    """The entry whose settings these are. Raises InvalidInput where there is none."""
    for entry in MECHANISMS.values():
        if (type(settings).__module__, type(settings).__name__) == (entry.module, entry.settings):
            return entry
    raise InvalidInput(
        f"mechanism must be a name or the settings of a mechanism, got {type(settings).__name__}; "
        f"names are {', '.join(MECHANISMS)}"
    )
