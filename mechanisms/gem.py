"""GEM and GEM-Pub: generative networks with the exponential mechanism.

Liu, Vietri and Wu, "Iterative Methods for Private Synthetic Data" (2021), Algorithms 2 and 3: in
each round the worst answered queries are selected and measured, and a generator of product rows is
trained on all noisy answers so far. What the paper leaves open is decided here:

- The fixed noise batch is part of the model; normalisation uses the batch (see `Generator`).
- With eps_0 and alpha of section 3.1 a query is selected with a probability proportional to
  exp(alpha eps_0 n |error|), so selecting it costs alpha^2 eps_0^2 / 2 and measuring it
  (1 - alpha)^2 eps_0^2 / 2; k queries a round cost k times as much. `select_share` is the part of
  selection in this, alpha^2 / (alpha^2 + (1 - alpha)^2).
- The threshold gamma is half of a moving average (beta 1/2) of the largest error on *noisy* past
  answers: the true error would leak.
- An update is a new Adam with a cosine schedule on the mean absolute error over the active set: the
  measured queries whose error is at least gamma, at most `worst` of them.
- Measured queries are not selected again. Unless the number of rounds is given, rounds that find
  nothing but noise double the budget of the next ones (`CellRounds`).
- Codes whose noisy one-way counts cannot be told from 0 are merged into one code of the network,
  and no query is about them (`mechanisms.families.frequent`). No codes are merged with public data,
  or if whole marginals are selected.
- The result's weights are a moving average over the rounds that end after half of the rounds'
  budget is spent.
- An error within `tolerance` standard deviations of its own noise is not trained on.
- With public data the first generator is near the truth already, and fitting noise does more harm
  than leaving most errors as they are. The defaults are therefore fewer rounds, a tolerance of 3,
  and the paper's small steps (1e-4).
- For training noisy answers are clipped to [0, n], the range of answers on any data; the released
  measurements are not clipped.
- Not in the paper: a share of the budget measures the one-way marginals first.

The networks compute in float32: answers are accurate to about 1e-6 of the total.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch

from mechanisms import settings as rules
from mechanisms.families import training, training_memory
from mechanisms.families.frequent import Frequent
from mechanisms.families.product_mixture import Columns, ProductMixtureModel
from mechanisms.privacy.curator import Curator
from mechanisms.rounds.loop import Outcome, Progress, mechanism
from mechanisms.rounds.select_and_measure import (
    SELECTIONS,
    RoundsRule,
    SelectionSettings,
    check_queries,
    least_total,
    measure_one_way,
)
from mechanisms.settings import one_of, setting
from mechanisms.workload import Workload
from pgmkit import Dataset, Domain, InvalidInput
from pgmkit.runtime.devices import check_room, device_of, gpu_memory
from pgmkit.runtime.threads import threads_for


@dataclass(frozen=True)
class Gem(SelectionSettings, training.TrainingSettings):
    """Settings of GEM; none may be chosen by looking at private data.

    Raises InvalidInput for values outside the ranges below.

    Attributes:
        rounds: The number of rounds T, 1 or more; None for the number that `RoundsRule` derives
            from the number of rows and the budget, or fewer if rounds of single queries find only
            noise.
        queries: The number of queries k of a round, 1 or more; 1 if whole marginals are selected.
            None for 1, as in the paper; but if `rounds` is None too, one more for each
            `query_codes` frequent codes, in correspondingly fewer rounds.
        query_codes: The number of frequent codes that adds one query to each round if `rounds` and
            `queries` are None, 1 or more. With 512 the last layer takes two thirds of a training
            step's work in the default network.
        select_share: The share of each round's budget for selection, above 0 and below 1; None for
            0.8, which is the paper's alpha of 0.67, or 0.5 for whole marginals.
        one_way_share: The share of the budget for the one-way marginals before the rounds, at least
            0 and below 1; with 0, as in the paper, nothing measures the number of rows, so it must
            be public.
        select: What a round selects: single "queries" (cells of the workload's marginals), or whole
            "marginals" (the marginal trick of appendix A.1, trained on squared errors as in
            appendix D.4, here in units of the noise).
        noise_width: The length of the generator's noise vectors, 1 or more. The paper has 512.
        hidden: The widths of the generator's hidden layers, each 1 or more; the paper has (1024,
            1024).
        batch_rows: The number of noise vectors B, and so of rows in the mixture, 2 or more, as they
            are normalised over the batch. The default is the paper's.
        precision: The type of the layers' products, "float32" or "bfloat16": the latter is several
            times as fast on processors and GPUs that support it, and slow on others. Weights and
            rows are always float32.
        learning_rate: Adam's first rate, above 0; it falls along a cosine.
        steps: The most training steps of a round, 1 or more.
        worst: The most queries that a step trains on, those with the largest errors, 1 or more.
        tolerance: The error that is not trained on, in standard deviations of the answer's own
            noise, above 0.
        smoothing: The share of the previous moving average of the weights that is kept for each
            query of the planned budget, at least 0 and below 1: a round that spends the budget
            planned for k queries keeps this share to the power k.
        gradient: "exact", or "reinforce" to estimate gradients from drawn records (appendix B.3).
        records: The number of records drawn from each row for such an estimate, 1 or more.
        device: Where the generator is trained: "cpu", "cuda", or "auto": a GPU if there is one. The
            noise is always drawn on the CPU.
        seed: The seed of the generator's first weights and noise; it protects nothing.
    """

    rounds: int | None = setting(None, rules.whole_number())
    queries: int | None = setting(None, rules.whole_number())
    query_codes: int = setting(512, rules.whole_number())
    select_share: float | None = setting(None, rules.fraction())
    one_way_share: float = setting(0.2, rules.fraction(zero=True))
    select: Literal["queries", "marginals"] = setting("queries", one_of(*SELECTIONS))
    noise_width: int = setting(128, rules.whole_number())
    hidden: tuple[int, ...] = setting((256, 256), rules.tuple_of(rules.whole_number()))
    batch_rows: int = setting(1000, rules.whole_number(2))
    precision: Literal["float32", "bfloat16"] = setting("float32", one_of("float32", "bfloat16"))
    learning_rate: float = setting(3e-4, rules.positive())
    steps: int = setting(30, rules.whole_number())
    worst: int = setting(100, rules.whole_number())
    tolerance: float = setting(1.0, rules.positive())
    smoothing: float = setting(0.9, rules.fraction(zero=True))
    gradient: Literal["exact", "reinforce"] = setting("exact", one_of("exact", "reinforce"))
    records: int = setting(10, rules.whole_number())
    device: str = setting("cpu", rules.torch_device())
    seed: int = setting(0, rules.random_seed())


@dataclass(frozen=True)
class GemPub(Gem, training.PretrainingSettings):
    """Settings of GEM-Pub: those of `Gem`, two with other defaults, and two more for the fit to
    the public data.

    The one-way marginals are not measured if the public data have every attribute and the total is
    public.

    Attributes:
        learning_rate: Adam's first rate in the rounds, above 0; the paper's small steps.
        tolerance: The error that is not trained on, in standard deviations of the answer's own
            noise, above 0: public data are nearer to the truth than small noisy differences.
        pretrain_steps: The number of steps of the fit to the public data, 1 or more.
        pretrain_rate: Adam's first rate in that fit, above 0; it falls along a cosine.
    """

    learning_rate: float = setting(1e-4, rules.positive())
    tolerance: float = setting(3.0, rules.positive())
    pretrain_steps: int = setting(2000, rules.whole_number())
    pretrain_rate: float = setting(2e-3, rules.positive())


_SELECT_SHARE = {"queries": 0.67**2 / (0.67**2 + (1 - 0.67) ** 2), "marginals": 0.5}
"""The default shares of a round's budget for its selection. That for queries follows from the
paper's alpha of 0.67.
"""
_RULES = {
    ("gem", "queries"): RoundsRule(1.4),
    ("gem", "marginals"): RoundsRule(0.35),
    ("gem-pub", "queries"): RoundsRule(0.005, power=2),
    ("gem-pub", "marginals"): RoundsRule(0.001, power=2),
}


@mechanism("gem", Gem)
def gem(
    curator: Curator, workload: Workload, settings: Gem, *, progress: Progress = None
) -> Outcome:
    """Spend all that remains of the Curator's budget on a generator for the workload, and return
    the release of the mixture of the averaged generator's rows. `progress` is called with each
    finished Round.

    Raises InvalidInput, before anything is spent, for a workload over another domain, for unequal
    weights if single queries are selected, for rounds that select more queries or marginals than
    the workload has, or for one_way_share = 0 if the total is private. Raises ModelTooLarge if
    memory is too small to count the marginals together or for the training; if the total is
    private, the latter may be known only once the one-way marginals are measured.
    """
    share = settings.one_way_share
    return _run("gem", curator, workload, settings, share, lambda *_: None, progress)


@mechanism("gem-pub", GemPub)
def gem_pub(
    curator: Curator,
    workload: Workload,
    settings: GemPub,
    *,
    public: Dataset,
    progress: Progress = None,
) -> Outcome:
    """Spend all that remains on a generator that is first fitted to the marginals of public data,
    and return the release of its mixture.

    The public data may lack attributes. Raises InvalidInput, before anything is spent, for a
    workload over another domain, for unequal weights if single queries are selected, for more
    queries than there are, for one_way_share = 0 if the total is private, for public data with an
    attribute that the private data lack or have in another size, and if no workload clique has all
    its attributes in the public data; ModelTooLarge if memory is too small to count the marginals
    together or for the training.
    """
    _check_public(curator.domain, workload, public)
    needless = set(public.domain) == set(curator.domain) and curator.public_total is not None
    share = 0.0 if needless else settings.one_way_share

    prepare = partial(training.pretrain, cliques=workload.cliques, public=public, settings=settings)
    return _run("gem-pub", curator, workload, settings, share, prepare, progress)


def _run(
    name: str,
    curator: Curator,
    workload: Workload,
    settings: Gem,
    one_way_share: float,
    prepare: Callable[[training.Generator], None],
    progress: Progress,
) -> Outcome:
    check_queries(curator, workload, settings)
    device = device_of(settings.device)
    columns = Columns(curator.domain)
    rule = _RULES[name, settings.select]
    expected = rule.of(curator, workload, settings, least_total(curator), one_way_share)
    count = settings.queries or 1
    _check_room(device, columns, workload, settings, expected * count)
    with gpu_memory(device):
        first, total = measure_one_way(curator, one_way_share)
        rounds = rule.of(curator, workload, settings, total)
        if rounds > expected:  # the total was private
            _check_room(device, columns, workload, settings, rounds * count)
        split = settings.select_share or _SELECT_SHARE[settings.select]
        # Codes are merged only for single queries without public data: public records tell more
        # about rare codes than the noisy marginals do.
        seen = first if settings.select == "queries" and name == "gem" else []
        frequent = Frequent.of(workload, seen, total, rounds * count)
        columns = Columns(frequent.domain)
        rounds, count, options = selection_of(settings, rounds, frequent)
        steps = SELECTIONS[settings.select](curator, workload, rounds, count, split, **options)
        generator = new_generator(columns, settings).to(device)
        # A step of 6e8 multiplications (the default network) takes 19 ms on one core and 18 on two,
        # 1e9 take 31 and 22, 3e9 take 76 and 44, and the paper's network has 7e9. So a step of less
        # than 1e9 is computed on one core.
        with threads_for(generator.multiplications, 1e9):
            prepare(generator)

            def smoothing() -> float | None:
                return float(settings.smoothing**steps.planned) if steps.late else None

            update = training.trainer(generator, settings, smoothing, total)
            state = training.GemState(
                columns, generator().detach(), total, generator.weights_now(), frequent=frequent
            )
            if first:
                # The moving averages, of the weights and of the largest error, are over rounds, so
                # they start after the one-way marginals.
                state = replace(update(state, first), average=None, error=None)
            small = operator.attrgetter("small")
            state, measurements = steps.run(state, first, update, progress, small)
            generator.set_weights(state.average or state.weights)
            rows = replace(state, rows=generator().detach()).whole_rows()
    return ProductMixtureModel(curator.domain, rows, total), measurements


def selection_of(settings: Gem, rounds: int, frequent: Frequent) -> tuple[int, int, dict[str, Any]]:
    """Return the number of rounds, the number of queries or marginals that each selects, and
    further arguments of the class of `SELECTIONS` that `settings.select` names.
    """
    count = settings.queries or 1
    if settings.select != "queries":
        return rounds, count, {}
    if settings.rounds is None and settings.queries is None:
        count = min(rounds, 1 + Columns(frequent.domain).width // settings.query_codes)
        rounds = rounds // count
    return rounds, count, {"codes": frequent.codes, "anneal": settings.rounds is None}


def new_generator(columns: Columns, settings: Gem) -> training.Generator:
    """Return a generator with random weights, drawn with the seed of the settings."""
    random = torch.Generator().manual_seed(settings.seed)
    precision = getattr(torch, settings.precision)
    width, rows = settings.noise_width, settings.batch_rows
    return training.Generator(columns, width, settings.hidden, rows, random, precision)


def _check_room(
    device: torch.device, columns: Columns, workload: Workload, settings: Gem, queries: int
) -> None:
    """Raise ModelTooLarge if memory is too small to train on `queries` measured queries (or
    marginals) over all codes.
    """
    rows = settings.batch_rows
    parameters = new_generator(columns, replace(settings, batch_rows=2)).parameter_count
    singles = [(name,) for name in workload.domain]
    taken = sorted(workload.cliques, key=workload.domain.size)[-queries:]
    whole = [*singles, *taken] if settings.select == "marginals" else singles
    needed = training_memory.network_bytes(parameters, settings.hidden, rows)
    needed += training_memory.fitting_tables_bytes(columns, whole, rows)
    if settings.select == "queries":
        cells, places = min(queries, settings.available(workload)), max(map(len, workload.cliques))
        needed += training_memory.fitting_cells_bytes(columns, cells, places, rows)
    needed = max(needed, training_memory.answering_bytes(columns, workload.cliques, rows))
    what = f"GEM with {rows:,} rows of {columns.width:,} codes and {queries:,} {settings.select}"
    check_room(device, needed, what)


def _check_public(domain: Domain, workload: Workload, public: Dataset) -> None:
    for name in public.domain:
        if name not in domain or public.domain.sizes[name] != domain.sizes[name]:
            raise InvalidInput(
                f"the public data's attribute {name!r} of size {public.domain.sizes[name]} must be "
                f"one of the private domain's, of the same size; leave it out or recode it"
            )
    if not any(clique and set(clique) <= set(public.domain) for clique in workload.cliques):
        raise InvalidInput(
            "the public data hold no workload clique whole; use others, or run without public data"
        )
