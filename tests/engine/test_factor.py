"""Factor against loops over cells (itertools) and Python arithmetic."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.factor import Factor

SIZES = {"a": 2, "b": 3, "c": 1, "d": 4}
Cell = dict[str, int]


@st.composite
def domains(draw: st.DrawFn) -> Domain:
    names = draw(st.permutations(list(SIZES)))
    return Domain(SIZES).project(names[: draw(st.integers(0, 4))])


@st.composite
def factors(draw: st.DrawFn, zeros: bool = False) -> Factor:
    domain = draw(domains())
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = rng.uniform(-700, 700, domain.shape())
    if zeros:
        values = np.where(rng.random(domain.shape()) < 0.5, -np.inf, values)
    return Factor(domain, values)


def cells(domain: Domain) -> list[Cell]:
    ranges = [range(size) for size in domain.shape()]
    return [dict(zip(domain, index, strict=True)) for index in itertools.product(*ranges)]


def value(factor: Factor, cell: Cell) -> float:
    return factor.values[tuple(cell[a] for a in factor.domain)].item()


@given(
    factors(),
    factors(),
    st.sampled_from([operator.add, operator.sub, operator.mul, operator.truediv]),
)
def test_arithmetic_cell_by_cell(f: Factor, g: Factor, verb: Callable[[Any, Any], Any]) -> None:
    result = verb(f, g)
    extra = [a for a in g.domain if a not in f.domain]
    assert result.domain.attributes == (*f.domain.attributes, *extra)
    for cell in cells(result.domain):
        assert value(result, cell) == verb(value(f, cell), value(g, cell))


@given(
    factors(),
    st.sampled_from([2, 0.5, np.float64(3), np.int64(4), np.float32(0.25)]),
    st.sampled_from([operator.add, operator.sub, operator.mul, operator.truediv]),
)
def test_arithmetic_with_numbers(f: Factor, x: Any, verb: Callable[[Any, Any], Any]) -> None:
    right, left = verb(f, x), verb(x, f)
    assert isinstance(left, Factor) and right.domain == left.domain == f.domain
    for cell in cells(f.domain):
        assert value(right, cell) == verb(value(f, cell), float(x))
        assert value(left, cell) == verb(float(x), value(f, cell))


@given(factors(), st.data())
def test_project_sums_cells(f: Factor, data: st.DataObject) -> None:
    attrs = data.draw(st.permutations(f.domain.attributes))
    attrs = attrs[: data.draw(st.integers(0, len(attrs)))]
    projected = f.project(attrs)
    assert projected.domain == f.domain.project(attrs)
    for target in cells(projected.domain):
        terms = [value(f, c) for c in cells(f.domain) if target.items() <= c.items()]
        assert value(projected, target) == pytest.approx(math.fsum(terms), rel=1e-12, abs=1e-9)


@given(factors(), st.data())
def test_transpose_and_expand_keep_values(f: Factor, data: st.DataObject) -> None:
    order = data.draw(st.permutations(f.domain.attributes))
    larger = Domain(SIZES).project(data.draw(st.permutations(list(SIZES))))
    for result, domain in [
        (f.transpose(order), f.domain.project(order)),
        (f.expand(larger), larger),
    ]:
        assert result.domain == domain
        for cell in cells(domain):
            assert value(result, cell) == value(f, cell)


@given(factors(zeros=True))
def test_exp_log_and_numpy(f: Factor) -> None:
    positive = Factor(f.domain, f.values / 10)
    for cell in cells(f.domain):
        assert value(positive.exp(), cell) == pytest.approx(
            math.exp(value(positive, cell)), rel=1e-13
        )
    np.testing.assert_allclose(positive.exp().log().numpy(), positive.numpy(), atol=1e-12)
    copied = f.numpy()
    assert copied.dtype == np.float64 and copied.shape == f.domain.shape()
    assert f.values.data_ptr() != copied.ctypes.data


def test_dtype_and_device_are_kept() -> None:
    domain = Domain({"a": 2})
    single = Factor(domain, torch.ones(2, dtype=torch.float32))
    for result in (single + 1, single * single, single.project([])):
        assert result.values.dtype == torch.float32
    assert single.numpy().dtype == np.float64
    assert Factor(domain, [1, 2]).values.dtype == torch.float64
    tensor = torch.zeros(2, dtype=torch.float64)
    assert Factor(domain, tensor).values is tensor
    with pytest.raises(InvalidInput, match="cannot combine a torch.float32"):
        single + Factor(domain, [1, 2])
    meta = Factor(domain, torch.ones(2, dtype=torch.float64, device="meta"))
    with pytest.raises(InvalidInput, match="on meta"):
        Factor(domain, [1, 2]) + meta


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, 2.0, 3.0], r"shape \(2,\), got \(3,\)"),
        ([[1.0, 2.0]], "shape"),
        (1.0, r"got \(\)"),
        (torch.ones(2, dtype=torch.int64), "float64 or float32, got torch.int64"),
        (torch.ones(2, dtype=torch.float16), "float16"),
        (["x", "y"], "array of numbers"),
        (None, r"shape|array"),
    ],
)
def test_bad_values_are_refused(values: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Factor(Domain({"a": 2}), values)


def test_bad_arguments_are_refused() -> None:
    f = Factor(Domain({"a": 2, "b": 3}), np.ones((2, 3)))
    for verb in (f.project, f.transpose):
        for attrs in ("a", ["a", "a"], ["z"]):
            with pytest.raises(InvalidInput):
                verb(attrs)
    with pytest.raises(InvalidInput, match="every attribute"):
        f.transpose(["a"])
    with pytest.raises(InvalidInput, match="lacks the factor's attribute 'b'"):
        f.expand(Domain({"a": 2}))
    with pytest.raises(InvalidInput, match="'a' has size 2 in one domain and 5"):
        f.expand(Domain({"a": 5, "b": 3}))
    with pytest.raises(InvalidInput, match="'a' has size 2 in one domain and 5"):
        f * Factor(Domain({"a": 5}), np.ones(5))
    with pytest.raises(InvalidInput, match="pgmkit Domain"):
        Factor({"a": 2}, [1, 2])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="another factor or a number, got ndarray"):
        f + np.ones(6)  # type: ignore[operator]


def test_repr() -> None:
    f = Factor(Domain({"a": 2}), [1, 2])
    assert repr(f) == "Factor(Domain({'a': 2}), torch.float64, cpu)"
