"""GEM's network, its targets and losses, against plain formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mechanisms.families.fitting import Targets, draw_records, with_score_gradient
from mechanisms.families.product_mixture import Columns
from mechanisms.families.training import Generator, squared_errors, worst_errors
from pgmkit.domain import Domain
from pgmkit.measurement import Measurement

DOMAIN = Domain({"a": 2, "b": 3})
COLUMNS = Columns(DOMAIN)


def made(seed: int = 0) -> Generator:
    return Generator(COLUMNS, 3, (6, 4), 7, torch.Generator().manual_seed(seed))


def test_the_network_is_that_of_the_paper() -> None:
    """Layer by layer in numpy: concatenated inputs, normalised by the batch, rectified."""
    generator = made()
    with torch.no_grad():
        for number, parameter in enumerate(generator.parameters(), 1):
            parameter += 0.1 * number * torch.arange(parameter.numel()).reshape_as(parameter).sin()
    values = generator.noise.numpy().astype(float)
    assert values.shape == (7, 3)
    for width, layer, scale, shift in zip(
        (6, 4), generator.layers, generator.scales, generator.shifts, strict=False
    ):
        weights = np.hstack([each.detach().numpy() for each in layer.weights])
        assert weights.shape == (width, values.shape[1])
        linear = values @ weights.T
        normal = (linear - linear.mean(0)) / np.sqrt(linear.var(0) + 1e-5)
        own = normal * scale.detach().numpy() + shift.detach().numpy()
        values = np.hstack([values, np.maximum(own, 0)])
    weights = np.hstack([each.detach().numpy() for each in generator.layers[2].weights])
    logits = values @ weights.T + generator.bias.detach().numpy()
    parts = [np.exp(logits[:, at]) for at in (slice(0, 2), slice(2, 5))]
    rows = np.hstack([part / part.sum(1, keepdims=True) for part in parts])
    np.testing.assert_allclose(generator().detach().numpy(), rows, atol=1e-5)
    matrices = 6 * 3 + 4 * 9 + 5 * 13
    assert generator.multiplications == 3 * 7 * matrices
    assert generator.parameter_count == matrices + 2 * (6 + 4) + 5


def test_weights_start_uniform_and_can_be_set() -> None:
    generator, other = made(), made(1)
    for layer, inputs in zip(generator.layers, (3, 9, 13), strict=True):
        drawn = torch.cat([each.detach().flatten() for each in layer.weights]).abs()
        bound = 1 / math.sqrt(inputs)
        assert 0.8 * bound < drawn.max() <= bound and drawn.mean() == pytest.approx(
            bound / 2, rel=0.4
        )
    kept = generator.weights_now()
    rows = generator().detach()
    other.noise = generator.noise
    other.set_weights(kept)
    assert torch.equal(other().detach(), rows)
    with torch.no_grad():
        generator.bias += 1.0
    assert not torch.equal(kept[-1], generator.bias) or kept[-1] is not generator.bias
    other.set_weights(kept)
    assert torch.equal(other().detach(), rows)


def test_errors_are_noisy_values_minus_answers() -> None:
    """Whole marginals come first, single cells after them; values are clipped to [0, 1]."""
    cell = np.zeros((1, 6))
    cell[0, 4] = 1
    measured = [
        Measurement(("b", "a"), [3.0], 2.0, cell),
        Measurement(("a",), [14.0, -2.0], 1.0),
        Measurement(("b",), [1.0, 2.0, 3.0], 0.5),
    ]
    rows = torch.rand(4, 5, generator=torch.Generator().manual_seed(0))
    rows = torch.hstack(
        [rows[:, :2] / rows[:, :2].sum(1, True), rows[:, 2:] / rows[:, 2:].sum(1, True)]
    )
    targets = Targets(COLUMNS, measured, 10.0, "cpu")
    assert targets.values.tolist() == pytest.approx([1.0, 0.0, 0.1, 0.2, 0.3, 0.3])
    assert targets.stddevs.tolist() == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.05, 0.2])
    answers = [*rows.mean(0).tolist(), (rows[:, 4] * rows[:, 0]).mean().item()]
    wanted = np.array([1.0, 0.0, 0.1, 0.2, 0.3, 0.3]) - answers
    np.testing.assert_allclose(targets.errors(rows).numpy(), wanted, atol=1e-6)
    # REINFORCE has the same values, and the gradients of the answers in expectation.
    leaf = rows.clone().requires_grad_()
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0, 4.0])
    estimated = targets.score_errors(leaf, 40_000, torch.Generator().manual_seed(1))
    np.testing.assert_allclose(estimated.detach().numpy(), wanted, atol=1e-6)
    (found,) = torch.autograd.grad((weights * estimated).sum(), leaf)
    (exact,) = torch.autograd.grad((weights * targets.errors(leaf)).sum(), leaf)
    for at in (slice(0, 2), slice(2, 5)):  # gradients count up to a constant along an attribute
        gap = (found - exact)[:, at]
        assert (gap - (gap * rows[:, at]).sum(1, True)).abs().max() < 0.05


def test_records_are_drawn_by_the_rows() -> None:
    rows = torch.tensor([[1.0, 0.0, 0.0, 0.25, 0.75], [0.5, 0.5, 1.0, 0.0, 0.0]])
    drawn = draw_records(rows, COLUMNS, 4000, torch.Generator().manual_seed(0))
    assert drawn.shape == (2, 4000, 2) and set(drawn[0, :, 0].tolist()) == {0}
    assert set(drawn[1, :, 1].tolist()) == {2} and set(drawn[1, :, 0].tolist()) == {0, 1}
    # Five standard deviations of a share of a quarter among 4,000 are 0.034.
    assert (drawn[0, :, 1] == 3).float().mean().item() == pytest.approx(0.25, abs=0.034)


def test_the_score_is_centred_by_each_querys_mean() -> None:
    rows = torch.tensor([[0.2, 0.8, 0.5, 0.3, 0.2]], requires_grad=True)
    records = torch.tensor([[[0, 2], [1, 3], [1, 4]]])
    satisfied = torch.tensor([[[True, False, False]], [[True, True, False]]])
    answer = with_score_gradient(torch.tensor([0.1, 0.9]), rows, records, satisfied)
    assert answer.tolist() == pytest.approx([0.1, 0.9])
    (slope,) = torch.autograd.grad(answer[0], rows)
    # Centred by 1/3: 2/3, -1/3, -1/3; each record's logarithm has the slopes 1 / probability.
    wanted = np.array([2 / 0.2, -2 / 0.8, 2 / 0.5, -1 / 0.3, -1 / 0.2]) / 9
    np.testing.assert_allclose(slope[0].numpy(), wanted, rtol=1e-5)


def test_losses_are_of_the_worst_or_of_all_errors() -> None:
    errors = torch.tensor([0.5, -0.2, 0.1, -0.9, 0.3])
    levels = torch.tensor([0.5, 0.1, 0.2, 0.1, 0.4])
    for most, wanted in ((100, (0.5 + 0.2 + 0.9) / 3), (2, 0.7), (1, 0.9)):
        found = worst_errors(errors, levels, most)
        assert found is not None and found.item() == pytest.approx(wanted)
    assert worst_errors(errors, torch.ones(5), 3) is None
    assert squared_errors(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 1.0])) is None
    loss = squared_errors(torch.tensor([2.0, -1.0]), torch.tensor([1.0, 2.0]))
    assert loss is not None and loss.item() == pytest.approx((4 + 0.25) / 2)
