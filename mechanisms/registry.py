"""The mechanisms by name, with their settings: those of this package and of other packages."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from pgmkit.errors import InvalidInput, check_known
from pgmkit.runtime.typed import typed_class

ENTRY_POINTS = "pgmkit.mechanisms"
"""The group in which an installed package lists its entries."""


@typed_class
@dataclass(frozen=True)
class Entry:
    """A mechanism: its name, where its code is, and its properties. The module is imported on use.

    `function(curator, workload, settings, *, progress=None, public=None)` returns a Release; it
    takes `progress` only if `rounds`, and `public` only if `public`. If it also takes `bins` (the
    number of ordered codes of each attribute) or, for linked tables, `zeros` (combinations that
    cannot occur), it is given them. The settings class is a frozen dataclass with a default for
    every field.

    Attributes:
        name: The name by which it is run.
        module: The module of the function and of the settings class.
        function: The name of the function.
        settings: The name of the settings class.
        summary: A line that says what it does, shown by `pgmkit mechanisms`.
        rounds: Whether it runs in rounds and reports each to a `progress` callback.
        public: Whether it needs records that need no protection.
        graphical: Whether its model is always a GraphicalModel, for which there are error bars and
            constraints. A mechanism with the setting `inference` has both too, unless the setting
            is "exact": its model is then graphical only if that is small enough.
        records: Whether synthetic records can be drawn from its model.
        consistent: Whether the tables of its model, with default settings, are at least 0 and, if
            it runs in rounds, sum to the total.
        queries: Whether it selects and measures by the workload's own queries. Other mechanisms
            measure, cell by cell, the tables that the queries are about.
        measures: Whether it draws nothing but additive noise, and selects nothing by another
            mechanism: Gaussian accounting then needs less noise, and is the default. If that
            depends on the workload, its settings have `measures(workload)` as well.
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
    queries: bool = False
    measures: bool = False

    def load(self) -> tuple[Callable[..., Any], type[Any]]:
        """Return the function and its settings class.

        Raises InvalidInput if the module of another package cannot be imported or lacks them.
        """
        try:
            module = import_module(self.module)
            return getattr(module, self.function), getattr(module, self.settings)
        except Exception as error:
            raise InvalidInput(
                f"mechanism {self.name!r} cannot be loaded from {self.module} ({error}); "
                "install or repair the package that registered it"
            ) from error

    def takes(self, argument: str) -> bool:
        """Return True if the function has an argument of this name. Raises InvalidInput if the
        module of another package cannot be imported.
        """
        return argument in inspect.signature(self.load()[0]).parameters


class Registry(Mapping[str, Entry]):
    """Entries by name, in order of registration; installed packages add theirs on first use.

    `earlier`: the present name for each former name. Former names are understood but not listed.
    """

    def __init__(self, entries: list[Entry], earlier: Mapping[str, str] | None = None) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self._earlier = dict(earlier or {})
        self._discovered = False

    def register(self, entry: Entry) -> None:
        """Add an entry. Raises InvalidInput for a value that is not an Entry, and for a name that
        another entry has or once had.
        """
        if not isinstance(entry, Entry):
            raise InvalidInput(f"entry must be a mechanisms.Entry, got {type(entry).__name__}")
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
        """Return all entries. Those of installed packages are loaded on the first call; one that
        fails is left out with a warning.
        """
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


def _own(place: str, settings: str, name: str = "", **traits: bool) -> Callable[[str], Entry]:
    """Return a function that makes an entry of this package from its summary.

    `place`: the module and the function, as "module.function". `name`: the mechanism's name; by
    default the function's. `traits`: further fields of the entry.
    """
    module, _, function = place.partition(".")
    where = f"mechanisms.{module}"
    return lambda said: Entry(name or function, where, function, settings, said, **traits)


_NOISE_ALONE = {"rounds": False, "graphical": True, "queries": True, "measures": True}
"""The fields of an `Entry` whose mechanism measures by the workload's own queries, draws nothing
but the noise of measurements, and estimates a graphical model.
"""
_BUILT_IN = [
    _own("aim.aim", "Aim", graphical=True, queries=True)(
        "adaptive marginals under an annealed budget; accurate, and a graphical model"
    ),
    _own("mixture.mixture", "Mixture", rounds=False)(
        "pairs (and more) measured at once unless noise hides all, a mixture of rows fitted, "
        "perhaps blended with a graphical model; fast"
    ),
    _own("mst.mst", "Mst", rounds=False, graphical=True, queries=True)(
        "a spanning tree of pairs, measured once; the fastest"
    ),
    _own("pair_graph.pair_graph", "PairGraph", "pair-graph", rounds=False, graphical=True)(
        "a forest of pairs, then pairs that it answers badly; for hundreds of columns"
    ),
    _own("mwem_pgm.mwem_pgm", "MwemPgm", "mwem+pgm", graphical=True, queries=True)(
        "one-way marginals, then a fixed number of adaptively selected ones"
    ),
    _own("gem.gem", "Gem")(
        "a generator network trained on adaptively selected queries; for many attributes"
    ),
    _own("gem.gem_pub", "GemPub", "gem-pub", public=True)(
        "a generator network as of gem, fitted to public records first; they may lack attributes"
    ),
    _own("clique_tree.clique_tree", "CliqueTree", "clique-tree", **_NOISE_ALONE)(
        "one shot: the pairs that a small tree can hold, measured together; accurate in seconds"
    ),
    _own("rap.rap_softmax", "RapSoftmax", "rap-softmax")(
        "rows of probabilities fitted to the queries selected in a few rounds"
    ),
    _own("rap.rap", "Rap", consistent=False)(
        "rows in [-1, 1] fitted to queries selected in a few rounds; fails beyond few attributes"
    ),
    _own("rap_pp.rap_pp", "RapPlusPlus", "rap++")(
        "rows of codes and numbers, fitted to thresholds by tempered sigmoids"
    ),
    _own("dual_query.dual_query", "DualQuery", "dual-query")(
        "records that best respond to drawn queries; no measurement"
    ),
    _own("fem.fem", "Fem")("records that best respond to selected queries under perturbations"),
    _own("mwem.mwem", "Mwem")(
        "multiplicative weights on a histogram of the whole domain; few attributes"
    ),
    _own("pep.pep", "Pep")("a histogram projected on all noisy answers; few attributes"),
    _own("pep.pep_pub", "PepPub", "pep-pub", public=True)(
        "weights of public records projected on all noisy answers"
    ),
    _own("pmw_pub.pmw_pub", "PmwPub", "pmw-pub", public=True)(
        "multiplicative weights on public records"
    ),
    _own("matrix.matrix", "Matrix", rounds=False, records=False, queries=True, measures=True)(
        "the least noise for marginals, prefixes or ranges, with exact variances; tables only"
    ),
    _own("matrix.matrix_pgm", "MatrixPgm", "matrix+pgm", rounds=False, queries=True, measures=True)(
        "a model, or consistent tables, of the measurements of matrix"
    ),
    _own("baselines.gaussian", "Gaussian", rounds=False, records=False, measures=True)(
        "noise on every workload marginal, as it comes; a baseline, tables only"
    ),
    _own("baselines.projection", "Projection", "gaussian+projection", rounds=False, measures=True)(
        "noise on every workload marginal, then the nearest model or consistent tables"
    ),
    _own("baselines.independent", "Independent", "independent", **_NOISE_ALONE)(
        "one-way marginals only; a baseline"
    ),
]
_EARLIER = {"hdmm": "matrix", "residual": "matrix", "hdmm+pgm": "matrix+pgm"}
"""The earlier names of mechanisms, which are still understood."""
MECHANISMS = Registry(_BUILT_IN, _EARLIER)
"""All mechanisms by name."""
USUAL = ("independent", "mst", "mwem+pgm", "aim", "mixture")
"""The mechanisms compared by default: they make records of any table without public ones, and most
take seconds.
"""


def register(entry: Entry) -> None:
    """Make a mechanism known to `run`, `synthesize`, `plan` and the command line of this process.

    An installed package does the same by an entry point in the group "pgmkit.mechanisms" whose
    object is the Entry. Raises InvalidInput for a value that is not an Entry, and for a name that
    another entry has or once had.
    """
    MECHANISMS.register(entry)


def configure(name: str, /, **options: object) -> tuple[Entry, Any]:
    """Return the mechanism of this name, and its settings with these options.

    Raises InvalidInput for an unknown name, listing the known ones, for an option that the
    mechanism does not have, listing those it has, and for a value that an option does not allow.

    >>> configure("mwem+pgm", rounds=5)[1].rounds
    5
    """
    if isinstance(name, str) and name == "auto":
        raise InvalidInput(
            f"'auto' is a choice among mechanisms, which `synthesize` and `pgmkit synth` make and "
            f"`pgmkit plan` shows; name one of {', '.join(MECHANISMS)}"
        )
    others = (
        "besides auto (for `synthesize`, `synthesize_linked`, `pgmkit synth`, `synth-linked` and "
        "`plan`), known are"
    )
    # `MECHANISMS` understands former names, though it does not list them.
    if not (isinstance(name, str) and name in MECHANISMS):
        check_known([name], MECHANISMS, "unknown mechanism", others)
    entry = MECHANISMS[name]
    settings = entry.load()[1]
    known = [field.name for field in fields(settings)]
    check_known(options, known, f"{name} has no setting", "it has")
    # Options read from JSON have lists in place of tuples.
    return entry, settings(
        **{k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    )


def entry_of(settings: object) -> Entry:
    """Return the entry that these settings belong to. Raises InvalidInput if there is none."""
    for entry in MECHANISMS.values():
        if (type(settings).__module__, type(settings).__name__) == (entry.module, entry.settings):
            return entry
    raise InvalidInput(
        f"mechanism must be a name or the settings of a mechanism, got {type(settings).__name__}; "
        f"names are {', '.join(MECHANISMS)}"
    )
