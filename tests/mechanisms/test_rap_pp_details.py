"""RAP++'s fit and thresholds against plain formulas."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from mechanisms import rap_pp as module
from mechanisms.families import training_memory
from mechanisms.families.mixed_rows import MixedRows, Ranks
from mechanisms.families.product_mixture import Columns
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.curator import Curator
from mechanisms.queries.predicates import MeasuredPredicate, Predicate, Predicates
from mechanisms.rap_pp import RapPlusPlus, rap_pp
from pgmkit import Dataset, Domain, InvalidInput, Measurement

DOMAIN = Domain({"age": 6, "ill": 2, "pay": 4, "work": 3})
GROUPS = {"age": np.array([0, 0, 1, 1, 2, 2]), "pay": np.arange(4)}
COUNTS = {"age": np.array([5.0, 10, 20, 30, 25, 10]), "pay": np.array([40.0, 30, 20, 10])}
TOTAL = 100.0
ASKED = [
    Predicate((("ill", 1),), (("age", 1.0), ("pay", -0.5)), 0.3),
    Predicate((("ill", 0), ("work", 2)), (("pay", 1.0),), 0.6),
]
ANSWERS = [MeasuredPredicate(ASKED[0], 20.0, 2.0), MeasuredPredicate(ASKED[1], 9.0, 3.0)]
TABLES = [
    Measurement(("ill", "age"), np.arange(12.0) + 2, 1.5),
    Measurement(("work",), [50.0, 30.0, 20.0], 4.0),
]


def family_of(numeric: bool = True) -> MixedRows:
    return MixedRows(Ranks(DOMAIN, COUNTS, GROUPS) if numeric else Ranks(DOMAIN, {}, {}))


def parameters(family: MixedRows, rows: int = 9, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(rows, family.width + len(family.numbers), generator=random)


def loss(family: MixedRows, free: torch.Tensor, temperature: float | None) -> torch.Tensor:
    """The mean square of all errors in units of their noise, answer by answer."""
    rows, numbers = family.rows(free, temperature)
    parts = dict(zip(DOMAIN, rows.split(list(family.ranks.domain.shape()), dim=1), strict=True))
    terms = []
    sums = np.eye(3)[GROUPS["age"]].T if family.numbers else np.eye(6)
    for ill, age in itertools.product(range(2), range(len(sums))):
        noisy = float(sums[age] @ TABLES[0].values.reshape(2, 6)[ill])
        answer = (parts["ill"][:, ill] * parts["age"][:, age]).mean() * TOTAL
        terms.append((answer - noisy) / (1.5 * sums[age].sum() ** 0.5))
    for work, noisy in enumerate(TABLES[1].values):
        terms.append((parts["work"][:, work].mean() * TOTAL - noisy) / 4.0)
    for each in ANSWERS if family.numbers else []:
        product = torch.ones(len(rows))
        for name, code in each.predicate.codes:
            product = product * parts[name][:, code]
        reach = torch.full((len(rows),), each.predicate.bound)
        for name, weight in each.predicate.weights:
            reach = reach - weight * numbers[:, ["age", "pay"].index(name)]
        met = (reach >= 0).float() if temperature is None else (temperature * reach).sigmoid()
        terms.append(((product * met).mean() * TOTAL - each.value) / each.stddev)
    return (torch.stack(terms) ** 2).mean()


@pytest.mark.parametrize("temperature", [None, 8.0, 100.0])
@pytest.mark.parametrize("numeric", [True, False])
def test_the_loss_is_in_units_of_the_noise_of_every_answer(
    temperature: float | None, numeric: bool
) -> None:
    family = family_of(numeric)
    free = parameters(family)
    measured = [TABLES[0], *ANSWERS[:numeric], TABLES[1], *ANSWERS[1 : 1 + numeric]]
    found = module.loss_of(family, measured, TOTAL)(free, temperature)
    assert found.shape == () and float(found) == pytest.approx(
        float(loss(family, free, temperature)), rel=1e-5
    )


def stages(
    family: MixedRows, free: torch.Tensor, settings: RapPlusPlus, temperatures: Any
) -> list[torch.Tensor]:
    """The parameters after each stage: Adam's steps down the smoothed loss, from where the stage
    before it ended, with moments of its own, until noise alone explains the loss.
    """
    now, found = free.clone(), [free]
    for temperature in temperatures:
        mean, square = torch.zeros_like(now), torch.zeros_like(now)
        for step in range(1, settings.steps + 1):
            now = now.detach().requires_grad_()
            missed = loss(family, now, temperature)
            if missed <= 1:
                break
            (slope,) = torch.autograd.grad(missed, now)
            mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
            root = (square / (1 - 0.999**step)).sqrt() + 1e-8
            now = now.detach() - settings.learning_rate * mean / (1 - 0.9**step) / root
        now = now.detach()
        found.append(now)
    return found


@pytest.mark.parametrize("rate", [0.03, 0.3, 50.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_stage_by_true_thresholds_is_kept(rate: float, seed: int) -> None:
    """The first parameters stay where no stage improves on them."""
    family = family_of()
    settings = RapPlusPlus(steps=8, learning_rate=rate, temperatures=(8.0, 64.0, 16.0))
    free = parameters(family, seed=seed)
    ends = stages(family, free, settings, settings.temperatures)
    losses = [float(loss(family, each, None)) for each in ends]
    best = int(np.argmin(losses))
    before = free.clone()
    found = module.fitter(family, settings)(family.state(free, TOTAL), [*TABLES, *ANSWERS])
    np.testing.assert_allclose(found.free.numpy(), ends[best].numpy(), atol=1e-3)
    assert torch.equal(free, before) and not found.rows.requires_grad
    assert found.total == TOTAL
    wanted = family.state(ends[best], TOTAL).rows.numpy()
    np.testing.assert_allclose(found.rows.numpy(), wanted, atol=1e-3)


@pytest.mark.parametrize("temperatures", [(8.0,), (8.0, 64.0, 16.0)])
def test_codes_alone_need_one_stage(temperatures: tuple[float, ...]) -> None:
    """Only the stage of the last temperature runs, as no row depends on the temperature."""
    family = family_of(numeric=False)
    settings = RapPlusPlus(steps=8, learning_rate=0.1, temperatures=temperatures)
    free = parameters(family)
    found = module.fitter(family, settings)(family.state(free, TOTAL), TABLES)
    (_, wanted) = stages(family, free, settings, [None])
    np.testing.assert_allclose(found.free.numpy(), wanted.numpy(), atol=1e-4)


def test_a_fit_within_the_noise_is_left_as_it_is() -> None:
    """Where the loss is at most 1 there are no steps."""
    family, settings = family_of(), RapPlusPlus(steps=8, learning_rate=0.1)
    free = parameters(family)
    wide = [Measurement(m.clique, m.values, 1e4) for m in TABLES]
    found = module.fitter(family, settings)(family.state(free, TOTAL), wide)
    assert torch.equal(found.free, free)


def test_thresholds_pass_through_the_rows() -> None:
    """Each label in turn is asked in each direction, with all its codes, as the seed draws them."""
    family = family_of()
    free = parameters(family, rows=40)
    state, settings = (
        family.state(free, TOTAL),
        RapPlusPlus(numeric=("age", "pay"), labels=("work", "ill"), directions=5, seed=3),
    )
    found = module.thresholds_of(family, state, settings)
    codes = [each.codes for each in found.list]
    assert codes == [((name, k),) for name in ("work", "ill") for _ in range(5)
                     for k in range(DOMAIN.sizes[name])]  # fmt: skip
    points = family.rows(free, None)[1].double().numpy()
    for each in found.list:
        assert [name for name, _ in each.weights] == ["age", "pay"]
        sums = points @ np.array([weight for _, weight in each.weights])
        assert np.abs(sums - each.bound).min() < 1e-6 and sums.std() == pytest.approx(12**-0.5)
    again, other = (
        module.thresholds_of(family, state, RapPlusPlus(**{**vars(settings), "seed": seed}))
        for seed in (3, 4)
    )
    assert again.list == found.list and other.list != found.list


def test_thresholds_are_selected_by_the_answers_of_the_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Answers are in counts and by true thresholds; earlier thresholds are not selected again."""
    seen: list[tuple[Any, np.ndarray, list[int]]] = []
    choose = Curator.choose_predicates

    def noted(self: Curator, pool: Any, counts: Any, *given: Any, **options: Any) -> Any:
        seen.append((pool, counts, list(options["exclude"])))
        return choose(self, pool, counts, *given, **options)

    monkeypatch.setattr(Curator, "choose_predicates", noted)
    rng = np.random.default_rng(0)
    data = Dataset(DOMAIN, {name: rng.integers(0, n, 500) for name, n in DOMAIN.sizes.items()})
    curator = Curator(data, Budget(5.0, 1e-6), neighbours="replace-one", seed=0)
    settings = RapPlusPlus(numeric=("age", "pay"), labels=("ill",), directions=20, rounds=2,
                           queries=3, rows=30, steps=5)  # fmt: skip
    rounds: list[Any] = []
    state = torch.get_rng_state()
    release = rap_pp(curator, [("age", "work"), ("pay", "work")], settings, progress=rounds.append)
    assert torch.equal(torch.get_rng_state(), state)  # no global source is drawn from
    assert [len(taken) for _, _, taken in seen] == [0, 3]
    for (pool, counts, _), each in zip(seen, rounds, strict=True):
        # Of the product rows of the state, whose codes have the shares of their groups.
        assert isinstance(counts, np.ndarray) and counts.dtype == np.float64
        assert each.before.total == 500.0 and counts.max() <= 500.0
        ill = each.before.marginals([("ill",)])["ill",]
        for code in (0, 1):
            of_code = [i for i, line in enumerate(pool.list) if line.codes == (("ill", code),)]
            assert (counts[of_code] <= ill[code] * (1 + 1e-5)).all()
        assert counts.std() > 20
    picked = [line for each in rounds for line in each.picked if isinstance(line, Predicate)]
    assert len(picked) == len(set(picked)) == 6
    assert [m.predicate for m in release.measurements if isinstance(m, MeasuredPredicate)] == picked


def test_directions_are_limited() -> None:
    assert [RapPlusPlus(directions=count).directions for count in (1, 10**6)] == [1, 10**6]
    for wrong in (0, 10**6 + 1):
        with pytest.raises(InvalidInput, match="directions"):
            RapPlusPlus(directions=wrong)


@pytest.mark.parametrize("thresholds", [0, 30])
def test_memory_is_asked_for_the_largest_marginals_and_all_selected_thresholds(
    thresholds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, str]] = []
    monkeypatch.setattr(module, "check_room", lambda _device, *given: asked.append(given))
    first, small, large = [("ill",)], ("ill", "work"), ("age", "pay")
    plan = module.Plan(first, {small: 1.0, large: 1.0}, thresholds, 1)
    settings = RapPlusPlus(numeric=("age", "pay"), labels=("ill",), rows=7, queries=5)
    module._check_room(torch.device("cpu"), plan, DOMAIN, settings)
    ((needed, text),) = asked
    free = parameters(family_of()).shape[1]
    columns = Columns(DOMAIN)
    expected = max(
        training_memory.fitting_tables_bytes(columns, [*first, large], 7),
        training_memory.answering_bytes(columns, [small, large], 7),
    )
    if thresholds:
        expected += training_memory.fitting_predicates_bytes(columns, free, 5, 2, 7)
        expected += training_memory.answering_predicates_bytes(thresholds, 2, 7)
    held = sum(each.nbytes for each in family_of().thresholds(Predicates(DOMAIN, ASKED[:1])))
    assert held == training_memory.answering_predicates_bytes(1, 2, rows=0)
    assert needed == expected and text.endswith(f" rows of {free} parameters")
