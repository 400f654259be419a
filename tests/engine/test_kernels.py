"""The kernels' forms against sums and maxima written out, and against each other."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_operands import Stacks, operands, runs

from pgmkit.contraction.kernels import cpu, reference


def terms(stacks: Stacks) -> np.ndarray:
    """(batch, rows, columns, summed), in float64."""
    left, right = (side.double().numpy() for side in stacks)
    return left[:, :, None] + right[:, None]


def log_sums(stacks: Stacks) -> np.ndarray:
    return np.logaddexp.reduce(terms(stacks), axis=-1, initial=-np.inf)


def tolerance(stacks: Stacks) -> float:
    return 1e-12 if stacks[0].dtype == torch.float64 else 1e-4


@given(operands())
def test_maxima(stacks: Stacks) -> None:
    found = reference.max_contract(*stacks)
    left, right = (side.numpy() for side in stacks)  # in the tables' own format
    np.testing.assert_array_equal(found.numpy(), (left[:, :, None] + right[:, None]).max(-1))
    torch.testing.assert_close(cpu.max_contract(*stacks), found, rtol=0, atol=0)


@given(operands())
def test_sums_in_log_space(stacks: Stacks) -> None:
    bound = tolerance(stacks)
    for form in (reference.log_contract, cpu.log_contract):
        np.testing.assert_allclose(form(*stacks), log_sums(stacks), rtol=bound, atol=bound)


@given(operands(spread=20.0))
def test_scaled_sums(stacks: Stacks) -> None:
    product, scale = reference.contract(*stacks)
    bound = tolerance(stacks)
    expected = np.exp(terms(stacks) - scale.double().numpy()[..., None]).sum(-1)
    np.testing.assert_allclose(product, expected, rtol=bound, atol=bound)
    assert product.isfinite().all() and (product <= stacks[0].shape[2] * (1 + bound)).all()


@given(operands())
def test_the_compiled_loop_gives_the_same_bits(stacks: Stacks) -> None:
    pytest.importorskip("numba", reason="numba (the extra 'fast') is not installed")
    loop = cpu.compiled()
    assert loop is not None
    found = cpu.looped(loop, *stacks)
    torch.testing.assert_close(found, reference.max_contract(*stacks), rtol=0, atol=0)


@pytest.mark.parametrize("place", [0, 3, 8])
def test_what_is_not_a_number_stays_so(place: int) -> None:
    left, right = torch.zeros(1, 2, 9), torch.zeros(1, 9, 9)
    left[0, 1, place] = torch.nan
    loop = cpu.compiled()
    forms = [reference.max_contract(left, right), cpu.log_contract(left, right)]
    forms += [cpu.looped(loop, left, right)] if loop else []
    for found in forms:
        assert found[0, 1].isnan().all() and not found[0, 0].isnan().any()


def test_the_loop_is_compiled_when_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(cpu, "compiled", lambda: asked.append(1))
    monkeypatch.setattr(cpu.Spent, "terms", 0)
    left, right = torch.zeros(1, 10, 10), torch.zeros(1, 10, 10)
    monkeypatch.setattr(cpu, "COMPILE_AFTER", 2500)
    for _ in range(3):
        cpu.max_contract(left, right)
    assert asked == [1]


@given(runs(), st.sampled_from([torch.float64, torch.float32]))
def test_peaks_and_shifted_exponentials(
    drawn: tuple[list[float], list[int]], dtype: torch.dtype
) -> None:
    cells, starts = torch.tensor(drawn[0], dtype=dtype), torch.tensor(drawn[1])
    pieces = [cells[a:b] for a, b in zip(drawn[1], drawn[1][1:], strict=False)]
    highest = [0.0 if x.isneginf().all() else float(x.max()) for x in pieces]
    found = reference.peaks(cells, starts)
    assert found.tolist() == highest
    out = reference.shift_exp(cells, found, starts, torch.empty_like(cells))
    expected = torch.cat([(x - p).exp() for x, p in zip(pieces, highest, strict=True)])
    torch.testing.assert_close(out, expected)


def test_maxima_take_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's threads take longer for blocks that fit a core's cache."""
    seen: list[int] = []
    right = reference.max_contract
    monkeypatch.setattr(
        reference, "max_contract", lambda *a: seen.append(torch.get_num_threads()) or right(*a)
    )
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        cpu.max_contract(torch.zeros(1, 50, 50), torch.zeros(1, 50, 50))
        cpu.max_contract(torch.zeros(1, 2, 2), torch.zeros(1, 2, 2))
        assert (seen, torch.get_num_threads()) == ([1, 2], 2)
    finally:
        torch.set_num_threads(before)
