"""The training of GEM's generator against plain formulas: losses, Adam's steps, moving averages."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from mechanisms.families.frequent import Frequent
from mechanisms.families.product_mixture import Columns
from mechanisms.families.training import GemState, Generator, pretrain, squared_errors, trainer
from mechanisms.gem import Gem, GemPub
from pgmkit import Dataset, Domain, Measurement

DOMAIN = Domain({"a": 2, "b": 3, "c": 2})
COLUMNS = Columns(DOMAIN)
CELL = np.eye(6)[[4]]
MEASURED = [
    Measurement(("a", "b"), [30.0, 5.0, 9.0, 2.0, 14.0, 40.0], 2.0),
    Measurement(("c",), [5.0, 60.0], 4.0),
    Measurement(("b", "c"), [3.0], 1.0, CELL),
]
TOTAL = 100.0


def made(seed: int = 0) -> Generator:
    return Generator(COLUMNS, 3, (6, 4), 7, torch.Generator().manual_seed(seed))


def errors_of(rows: torch.Tensor) -> torch.Tensor:
    """The noisy values minus the answers of the product rows, as fractions of the total."""
    a, b, c = rows.split([2, 3, 2], dim=1)
    table = torch.einsum("ki,kj->ij", a, b) / len(rows)
    cell = (b[:, 2] * c[:, 0]).mean().reshape(1)
    noisy = torch.tensor(np.concatenate([m.values for m in MEASURED]) / TOTAL).float()
    return noisy - torch.cat([table.flatten(), c.mean(0), cell])


STDDEVS = torch.tensor([2.0] * 6 + [4.0] * 2 + [1.0]) / 100


def by_adam(
    generator: Generator, loss_of: Callable[[Any], Any], steps: int, rate: float, last: float
) -> int:
    """Adam as in the paper's Algorithm 1, with a rate on a cosine; the number of steps taken."""
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in generator.parameters()]
    for step in range(steps):
        loss = loss_of(generator())
        if loss is None:
            return step
        now = last + (rate - last) * (1 + math.cos(math.pi * step / steps)) / 2
        slopes = torch.autograd.grad(loss, list(generator.parameters()))
        with torch.no_grad():
            for p, (mean, square), slope in zip(
                generator.parameters(), moments, slopes, strict=True
            ):
                mean.mul_(0.9).add_(0.1 * slope)
                square.mul_(0.999).add_(0.001 * slope**2)
                root = (square / (1 - 0.999 ** (step + 1))).sqrt()
                p -= now * mean / (1 - 0.9 ** (step + 1)) / (root + 1e-8)
    return steps


def assert_weights(found: Any, wanted: Any, atol: float = 1e-5) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.detach().numpy(), other.detach().numpy(), atol=atol)


@pytest.mark.parametrize("factor", [None, 0.8])
@pytest.mark.parametrize("before", [None, 0.3])
@pytest.mark.parametrize(
    "options",
    [
        {"select": "queries", "worst": 2, "tolerance": 1.0},
        {"select": "queries", "worst": 100, "tolerance": 4.0},
        {"select": "marginals"},
    ],
)
def test_an_update_is_that_of_the_paper(
    options: dict[str, Any], before: float | None, factor: float | None
) -> None:
    """Single queries are trained on the mean of the worst errors beyond half of the averaged
    largest error, and beyond their own noise; marginals on squared errors in units of noise.
    """
    settings = Gem(steps=12, learning_rate=0.05, **options)
    generator, other = made(), made(1)
    other.noise = generator.noise
    start = other.weights_now()
    with torch.no_grad():
        largest = float(errors_of(other()).abs().max())
    error = largest if before is None else (before + largest) / 2
    threshold = (settings.tolerance * STDDEVS).clamp_min(error / 2)

    def loss_of(rows: torch.Tensor) -> torch.Tensor | None:
        off = errors_of(rows)
        if settings.select == "marginals":
            squares = ((off / STDDEVS) ** 2).mean()
            return squares if squares > 1 else None
        active = off[off.abs() >= threshold].abs().sort(descending=True).values
        return active[: settings.worst].mean() if len(active) else None

    by_adam(other, loss_of, 12, 0.05, 1e-8)
    average = tuple(torch.full_like(weight, 0.5) for weight in start) if before else None
    state = GemState(COLUMNS, made(2)().detach(), TOTAL, start, average=average, error=before)
    # The generator holds other weights than the state, which has those to begin with.
    update = trainer(generator, settings, lambda: factor, TOTAL)
    found = update(state, MEASURED)
    assert_weights(found.weights, other.parameters())
    np.testing.assert_allclose(found.rows.numpy(), other().detach().numpy(), atol=1e-5)
    assert not found.rows.requires_grad
    assert found.error == pytest.approx(error, rel=1e-5)
    if factor is None:
        assert found.average is average
    elif average is None:
        assert_weights(found.average, found.weights)
    else:
        assert_weights(found.average, [0.8 * 0.5 + 0.2 * weight for weight in found.weights])


def test_what_noise_explains_is_not_trained_on() -> None:
    """Only the average of the error changes in the state."""
    for error, loss in ((1.001, 1.001**2), (1.4, 1.96), (1.0, None), (0.9, None)):
        found = squared_errors(torch.tensor([2 * error, -error]), torch.tensor([2.0, 1.0]))
        assert (None if found is None else found.item()) == pytest.approx(loss)
    for options in ({"select": "queries", "tolerance": 100.0}, {"select": "marginals"}):
        wide = [Measurement(m.clique, m.values, 500.0, m.matrix) for m in MEASURED]
        state = GemState(COLUMNS, torch.zeros(0), TOTAL, made().weights_now())
        after = trainer(made(1), Gem(**options), lambda: None, TOTAL)(state, wide)
        for one, other in zip(after.weights, state.weights, strict=True):
            assert torch.equal(one, other)


def test_the_rate_of_an_update_never_rises() -> None:
    """A rate below the last one of the cosine is not changed. Adam's first step has its size."""
    settings = Gem(steps=1, learning_rate=1e-9, select="marginals")
    generator = made()
    with torch.no_grad():  # steps of 1e-9 are seen beside weights of nearly 0 alone
        for parameter in generator.parameters():
            parameter *= 1e-6
    before = generator.weights_now()
    state = GemState(COLUMNS, torch.zeros(0), TOTAL, before)
    found = trainer(generator, settings, lambda: None, TOTAL)(state, MEASURED)
    moved = max(float((a - b).abs().max()) for a, b in zip(found.weights, before, strict=True))
    assert moved <= 1.01e-9


def test_rare_codes_are_merged_before_training() -> None:
    """The state's measurements are over all codes, and its rows have the frequent ones."""
    whole = Domain({"a": 4, "b": 3})
    first = [Measurement(("a",), [60.0, 0.0, 41.0, 1.0], 1.0)]
    frequent = Frequent(whole, first, TOTAL)
    columns = Columns(frequent.domain)
    generator = Generator(columns, 3, (4,), 7, torch.Generator().manual_seed(0))
    start = generator.weights_now()
    state = GemState(columns, generator().detach(), TOTAL, start, frequent=frequent)
    settings = Gem(steps=2, learning_rate=0.05, select="marginals")
    found = trainer(generator, settings, lambda: None, TOTAL)(state, first)
    plain = GemState(columns, state.rows, TOTAL, start)
    merged = [Measurement(("a",), [60.0, 41.0, 0.0], 1.0)]
    wanted = trainer(generator, settings, lambda: None, TOTAL)(plain, merged)
    for one, other in zip(found.weights, wanted.weights, strict=True):
        assert torch.equal(one, other)
    assert found.frequent is frequent


@pytest.mark.parametrize("count", [4, 40])
def test_the_fit_to_public_records_is_on_batches_of_their_marginals(count: int) -> None:
    """A batch is the mean squared error of at most 32 marginals. Marginals with an attribute that
    the public records lack are left out.
    """
    domain = Domain({f"x{i}": 2 for i in range(10)} | {"secret": 3})
    rng = np.random.default_rng(0)
    public = Dataset(
        Domain({f"x{i}": 2 for i in range(10)}),
        {f"x{i}": (rng.random(50) < 0.1 * i).astype(int) for i in range(10)},
    )
    cliques = [*itertools.combinations(public.domain, 2)][:count]
    asked = [*cliques[:2], ("x0", "secret"), *cliques[2:]]
    columns = Columns(domain)
    generator = Generator(columns, 3, (4,), 7, torch.Generator().manual_seed(0))
    other = copy.deepcopy(generator)
    settings, state = GemPub(pretrain_steps=5, pretrain_rate=0.02, seed=3), torch.get_rng_state()
    pretrain(generator, asked, public, settings)
    assert torch.equal(torch.get_rng_state(), state)  # the drawn batches have a source of their own
    records, random = np.stack([public.columns[n] for n in public.domain]), torch.Generator()
    random.manual_seed(3)

    def loss_of(rows: torch.Tensor) -> torch.Tensor:
        terms = []
        for place in torch.randperm(count, generator=random)[:32].tolist():
            a, b = (int(name[1:]) for name in cliques[place])
            for i, j in itertools.product(range(2), repeat=2):
                answer = (rows[:, 2 * a + i] * rows[:, 2 * b + j]).mean()
                share = float(((records[a] == i) & (records[b] == j)).mean())
                terms.append((answer - share) ** 2)
        return torch.stack(terms).sum() / min(count, 32)

    assert by_adam(other, loss_of, 5, 0.02, 0.0002) == 5
    assert_weights(generator.parameters(), other.parameters())


def test_drawn_records_take_the_place_of_gradients() -> None:
    """With "reinforce" steps follow estimated slopes, which with many records are nearly exact;
    they are drawn by the seed of the settings.
    """
    found = {}
    for name, options in {
        "exact": {"gradient": "exact"},
        "many": {"gradient": "reinforce", "records": 40_000},
        "few": {"gradient": "reinforce", "records": 1},
        "again": {"gradient": "reinforce", "records": 1},
        "other": {"gradient": "reinforce", "records": 1, "seed": 1},
    }.items():
        generator = made()
        state = GemState(COLUMNS, torch.zeros(0), TOTAL, generator.weights_now())
        settings = Gem(steps=1, learning_rate=1e-3, select="marginals", **options)
        update = trainer(generator, settings, lambda: None, TOTAL)
        found[name] = torch.cat([each.flatten() for each in update(state, MEASURED).weights])
    assert torch.equal(found["few"], found["again"])
    assert not torch.equal(found["few"], found["other"])
    # Each of Adam's first steps is the rate up or down: those of nearly all weights are the same.
    alike = {name: float(((each - found["exact"]).abs() < 1e-4).float().mean())
             for name, each in found.items()}  # fmt: skip
    assert alike["many"] > 0.95 > alike["few"]
