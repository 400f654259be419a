"""Descent on losses, answers of single cells, and relaxed rows, against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mechanisms.families.fitting import CellAnswers, descend, fitted_or_stalled, stalled
from mechanisms.families.product_mixture import Columns, RelaxedRowsModel
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput


@pytest.mark.parametrize("last_rate", [None, 0.02])
def test_steps_are_those_of_gradient_descent(last_rate: float | None) -> None:
    """On (x - 1)^2, with rates on a cosine from 0.2 to the last."""
    x = torch.tensor([4.0], dtype=torch.float64, requires_grad=True)
    seen: list[float] = []

    def loss() -> torch.Tensor:
        seen.append(x.item())
        return (x - 1).square().sum()

    descend(torch.optim.SGD([x], lr=0.2), iter(loss, None), 6, last_rate=last_rate)
    wanted = [4.0]
    for step in range(6):
        low = 0.2 if last_rate is None else last_rate
        rate = low + (0.2 - low) * (1 + math.cos(math.pi * step / 6)) / 2
        wanted.append(wanted[-1] - rate * 2 * (wanted[-1] - 1))
    assert seen == pytest.approx(wanted[:6]) and x.item() == pytest.approx(wanted[6])


def test_a_descent_ends_without_a_loss_or_where_it_is_enough() -> None:
    for losses, enough, steps in [
        ([1.0, 2.0, None, 3.0], None, 2),
        ([1.0, 2.0], None, 2),
        ([5.0, 4.0, 3.0, 2.0], lambda seen: seen == [5.0, 4.0, 3.0], 2),
        ([5.0, 4.0, 3.0, 2.0], lambda seen: False, 3),
    ]:
        x = torch.tensor([0.0], requires_grad=True)
        taken = [None if each is None else each + x.sum() - x.item() for each in losses]
        descend(torch.optim.SGD([x], lr=1.0), taken, 3, enough=enough)
        assert x.item() == -steps


def test_losses_stall_where_the_least_hardly_falls() -> None:
    falling = [1000.0 - i for i in range(51)]
    assert not stalled(falling) and not stalled([1.0] * 50) and stalled([1.0] * 51)
    assert not stalled([2.0] + [1.0] * 50) and stalled([1.0, 2.0] + [1.0] * 50)
    assert stalled([1.0] + [0.9995] * 50) and not stalled([1.0] + [0.9985] * 50)
    assert not stalled([1.0, 0.5] + [0.5] * 49) and stalled([1.0, 0.5] + [0.5] * 50)
    assert stalled([1.0] * 4, window=3) and not stalled([1.0] * 3, window=3)
    assert not stalled([1.0] * 3 + [0.5], window=3) and stalled([4.0] * 3 + [3.0], 3, 0.3)
    assert not stalled([4.0] * 3 + [3.0], 3, 0.25)  # fell by as much as is asked for
    assert fitted_or_stalled([1.0]) and not fitted_or_stalled([1.01])
    assert fitted_or_stalled([3.0] * 51) and not fitted_or_stalled([0.5, 1.5])


def test_answers_of_cells_are_means_of_products() -> None:
    domain = Domain({"a": 2, "b": 3, "c": 4})
    columns = Columns(domain)
    cells = [(("c", "a"), 5), (("b",), 2), (("a", "b", "c"), 23), (("a", "b"), 0), (("b", "c"), 3)]
    rows = torch.rand(5, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows.requires_grad_()
    start = {"a": 0, "b": 2, "c": 5}
    for some in (cells, cells[1:2], cells[3:]):
        answers = CellAnswers(columns, some)
        wanted = []
        for clique, cell in some:
            codes = np.unravel_index(cell, domain.shape(clique))
            places = [start[name] + int(code) for name, code in zip(clique, codes, strict=True)]
            wanted.append(rows[:, places].prod(1).mean())
        found = answers(rows)
        assert len(answers) == len(some) and torch.allclose(found, torch.stack(wanted))
        (slope,) = torch.autograd.grad(found.sum(), rows, retain_graph=True)
        (plain,) = torch.autograd.grad(torch.stack(wanted).sum(), rows)
        assert torch.allclose(slope, plain)


def test_relaxed_rows_are_in_the_square_and_drawn_by_their_positive_parts() -> None:
    domain = Domain({"a": 3, "b": 2})
    rows = np.array([[1.0, -1.0, 0.0, 0.25, 0.75], [-0.5, -0.2, -0.1, 0.5, -1.0]])
    model = RelaxedRowsModel(domain, rows, 20_000.0)
    pairs = np.einsum("ki,kj->ij", rows[:, :3], rows[:, 3:]) * 10_000
    assert np.allclose(model.marginal(("a", "b")), pairs)
    table = model.sample(20_000, rng=0).marginal(("a", "b"))
    # The first half have code 0 of a, and of the second any, which have code 0 of b.
    wanted = np.array([[0.125 + 1 / 6, 0.375], [1 / 6, 0], [1 / 6, 0]])
    assert np.abs(table / 20_000 - wanted).max() < 5 * 0.5 / math.sqrt(20_000)
    for wrong in (1.01, -1.01, math.nan):
        other = rows.copy()
        other[0, 0] = wrong
        with pytest.raises(InvalidInput, match=r"must lie in \[-1, 1\]"):
            RelaxedRowsModel(domain, other, 1.0)
    with pytest.raises(InvalidInput, match="cannot be conditioned"):
        model.given({"a": 0})
