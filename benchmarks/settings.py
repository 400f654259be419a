"""The tables that mechanisms are compared on, and how each is protected."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.adult import opened

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mechanisms.workload import Workload
    from pgmkit.records.dataset import Dataset


@dataclass(frozen=True)
class Setting:
    """A data set, how it is protected, its workload, and what is compared.

    `rows`: which of the table are private: those of a `split` ("private"), "all", or, of the
    built-in census, how many. `k`: the workload's marginals have so many attributes; `triples`: so
    many of them, drawn with seed 0; None for all. `small`: drawn as GEM's authors draw them, of
    those with at most as many cells as there are rows. `delta` None stands for 1/n^2. `records`:
    errors of synthetic records, not of the model. `public` makes the public rows from those of the
    split.
    """

    schema: str
    rows: str | int
    neighbours: str = "replace-one"
    k: int = 3
    delta: float | None = None
    records: bool = False
    table: str = "adult.csv"
    triples: int | None = None
    small: bool = False
    public: Callable[[Dataset, Dataset], tuple[Dataset, Dataset]] | None = None


def _share(share: float) -> Callable[[Dataset, Dataset], tuple[Dataset, Dataset]]:
    """A part of the public rows, drawn without replacement."""

    def taken(private: Dataset, public: Dataset) -> tuple[Dataset, Dataset]:
        rng = np.random.default_rng(0)
        return private, _rows(public, rng.permutation(len(public))[: round(share * len(public))])

    return taken


def _biased(more: float) -> Callable[[Dataset, Dataset], tuple[Dataset, Dataset]]:
    """Public rows drawn with replacement, women with a probability higher by `more` than theirs."""

    def taken(private: Dataset, public: Dataset) -> tuple[Dataset, Dataset]:
        rng = np.random.default_rng(0)
        women = public.columns["sex"] == 0
        share = women.mean() + more
        chances = np.where(women, share / women.sum(), (1 - share) / (~women).sum())
        return private, _rows(public, rng.choice(len(public), len(public), p=chances))

    return taken


def _reduced(private: Dataset, public: Dataset) -> tuple[Dataset, Dataset]:
    """Public rows with the seven attributes of ADULT (reduced) alone."""
    names = list(json.loads((_folder() / "adult-reduced.domain.json").read_text()))
    columns = {name: public.columns[name] for name in public.domain if name in names}
    return private, type(public)(public.domain.project(columns), columns)


def _validation(private: Dataset, public: Dataset) -> tuple[Dataset, Dataset]:
    """A validation set in the private rows' place: one half of the public rows; public: the other.

    As the ACS of an earlier year is in PMW-Pub's appendix C.2.
    """
    half = np.random.default_rng(0).permutation(len(public))
    return _rows(public, half[::2]), _rows(public, half[1::2])


def _of_sex(own: int, public_sex: int) -> Callable[[Dataset, Dataset], tuple[Dataset, Dataset]]:
    """Private rows of one sex, public rows of another or the same, without the sex and what tells
    it (nobody is a husband and a woman).
    """

    def part(data: Dataset, code: int) -> Dataset:
        names = [name for name in data.domain if name not in ("sex", "relationship")]
        kept = data.columns["sex"] == code
        columns = {name: data.columns[name][kept] for name in names}
        return type(data)(data.domain.project(names), columns)

    return lambda private, public: (part(private, own), part(public, public_sex))


def _rows(data: Dataset, taken: NDArray[Any]) -> Dataset:
    return type(data)(data.domain, {name: codes[taken] for name, codes in data.columns.items()})


_ADULT = "adult.domain.json"
SETTINGS = {
    "adult": Setting(_ADULT, "private"),
    "adult-small": Setting("adult-reduced.domain.json", "private"),
    "adult-all": Setting(_ADULT, "all", "add/remove", k=2, delta=4.2e-10, records=True),
    "census": Setting("built in", 44_000),
    "adult-star": Setting("adult-star.domain.json", "all", table="adult-star.csv", triples=64),
    "adult-star (small triples)": Setting(
        "adult-star.domain.json", "all", table="adult-star.csv", triples=64, small=True
    ),
    "loans (small triples)": Setting(
        "loans.domain.json", "all", table="loans.csv.gz", triples=64, small=True
    ),
    "loans": Setting("loans.domain.json", "all", table="loans.csv.gz", triples=64),
    "loans-all": Setting("loans.domain.json", "all", "add/remove", k=2, table="loans.csv.gz"),
    "nltcs": Setting("nltcs.domain.json", "all", "add/remove", k=2, table="nltcs.csv.gz"),
    "salary": Setting("salary.domain.json", "all", "add/remove", k=2, table="salary.csv.gz"),
    **{f"adult-{count}": Setting(_ADULT, "private", triples=count) for count in (16, 64, 128)},
    **{
        f"adult-public {share:g}": Setting(_ADULT, "private", public=_share(share))
        for share in (0.1, 0.01)
    },
    **{
        f"adult-biased {more:g}": Setting(_ADULT, "private", triples=256, public=_biased(more))
        for more in (0, 0.2, 0.45, 0.65)
    },
    "adult-public-small": Setting(_ADULT, "private", public=_reduced),
    "adult-validation": Setting(_ADULT, "private", public=_validation),
    "men, public men": Setting(_ADULT, "private", public=_of_sex(1, 1)),
    "men, public women": Setting(_ADULT, "private", public=_of_sex(1, 0)),
}


def _folder() -> Path:
    """The folder of PGMKIT_DATA.

    Raises:
        SystemExit: the variable is not set.
    """
    if "PGMKIT_DATA" not in os.environ:
        raise SystemExit("set PGMKIT_DATA to the folder with the tables")
    return Path(os.environ["PGMKIT_DATA"])


def load(setting: Setting) -> tuple[Dataset, Dataset | None]:
    """The private rows, and the public ones where there are some.

    Raises:
        SystemExit: PGMKIT_DATA does not name a folder with the files.
    """
    from pgmkit.domain import Domain
    from pgmkit.records.dataset import Dataset

    if isinstance(setting.rows, int):
        from mechanisms.datasets.census import census

        return census(setting.rows, seed=0), census(setting.rows // 9, seed=1)
    from benchmarks.adult import read_columns

    csv, schema = _folder() / setting.table, _folder() / setting.schema
    if not (csv.exists() and schema.exists()):
        raise SystemExit(f"PGMKIT_DATA must hold {setting.table} and {setting.schema}")
    sizes = json.loads(schema.read_text())
    whole = Dataset(Domain(sizes), read_columns(csv, sizes))
    if setting.rows == "all":
        return whole, None
    with opened(csv) as lines:
        place = next(lines).strip().split(",").index("split")
        split = np.array([line.strip().split(",")[place] for line in lines])
    private, public = (_rows(whole, split == part) for part in ("private", "public"))
    return setting.public(private, public) if setting.public else (private, public)


def workload_of(setting: Setting, data: Dataset) -> Workload:
    from mechanisms.workload import Workload, k_way, random_k_way

    if setting.triples is None:
        return k_way(data.domain, setting.k)
    if setting.small:
        every = k_way(data.domain, setting.k).cliques
        small = [clique for clique in every if data.domain.size(clique) <= len(data)]
        # Their generator, so that the triples are theirs.
        places = np.random.RandomState(0).choice(len(small), setting.triples, replace=False)
        return Workload(data.domain, [small[place] for place in places])
    return random_k_way(data.domain, setting.k, setting.triples, seed=0)


def delta_of(setting: Setting, data: Dataset) -> float:
    return len(data) ** -2 if setting.delta is None else setting.delta
