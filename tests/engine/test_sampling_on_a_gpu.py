"""Records drawn on a pretend GPU are those of the processor, to the last one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pretend_device import pretend_gpu

from pgmkit import Domain, Factor, GraphicalModel
from pgmkit.domain import Clique
from pgmkit.errors import InvalidInput, NumericalFailure
from pgmkit.graphs.junction_tree import junction_tree
from pgmkit.records import sampling
from pgmkit.records.sampling import gains_on_device, sample, sample_on_device

GPU = torch.device("cuda")


@st.composite
def models(draw: st.DrawFn) -> tuple[Domain, list[Clique], int]:
    """Attributes of any size, small cliques of them, and a seed."""
    count = draw(st.integers(1, 6))
    sizes = {f"x{i}": draw(st.sampled_from([1, 2, 3, 5, 17, 300])) for i in range(count)}
    names = st.sampled_from(list(sizes))
    cliques = draw(st.lists(st.lists(names, min_size=1, max_size=2, unique=True), max_size=6))
    return Domain(sizes), [tuple(each) for each in cliques], draw(st.integers(0, 10**6))


def tables(domain: Domain, cliques: list[Clique], seed: int) -> tuple[Factor, ...]:
    """Potentials, some of them minus infinity."""
    rng = np.random.default_rng(seed)
    made = []
    for clique in dict.fromkeys(map(domain.ordered, cliques)):
        values = rng.normal(0, 2, domain.shape(clique))
        values[rng.random(values.shape) < 0.2] = -np.inf
        values.flat[0] = 0.0
        made.append(Factor(domain.project(clique), values))
    return tuple(made)


@settings(max_examples=30)
@given(models(), st.sampled_from(["round", "sample"]), st.sampled_from([0, 1, 7, 500]))
def test_records_are_those_of_the_processor(
    drawn: tuple[Domain, list[Clique], int], method: str, n: int
) -> None:
    domain, cliques, seed = drawn
    model = GraphicalModel(domain, tables(domain, cliques, seed), total=10.0)
    marginals = [model.marginal(clique) for clique in model.tree.cliques]
    with pretend_gpu() as gpu:
        there = sample_on_device(
            model.tree, marginals.__getitem__, n, np.random.default_rng(seed), method, GPU
        )
        assert gpu.launches > 0
    plain = sample(model.tree, marginals.__getitem__, n, np.random.default_rng(seed), method)
    for name in domain:
        np.testing.assert_array_equal(there[name], plain[name])
        assert there[name].dtype == plain[name].dtype


def test_a_model_on_a_gpu_draws_there(monkeypatch: pytest.MonkeyPatch) -> None:
    domain = Domain({"a": 3, "b": 20_000, "c": 2})  # smaller models are answered on the processor
    made = tables(domain, [("a", "b"), ("b", "c")], 0)
    monkeypatch.setattr(sampling, "FEWEST", 1000)
    with pretend_gpu() as gpu:
        factors = tuple(Factor(f.domain, f.values.to("cuda")) for f in made)
        there = GraphicalModel(domain, factors, total=10.0)
        there.marginal(["a"])
        waits = gpu.synchronisations
        few = there.sample(999, rng=5)
        assert "sort" not in gpu.ops and len(few) == 999
        records = there.sample(2000, rng=5)
        assert gpu.ops["sort"] == 2, "one for each clique of the tree"
        assert gpu.synchronisations - waits < 30
        # Sums on a GPU are rounded otherwise, so the processor draws from the GPU's own tables.
        marginals = [there.marginal(clique) for clique in there.tree.cliques]
    rng = np.random.default_rng(5)
    plain = sample(there.tree, marginals.__getitem__, 2000, rng, "round")
    for name in domain:
        np.testing.assert_array_equal(records.columns[name], plain[name])


def test_a_gpu_without_room_leaves_it_to_the_processor() -> None:
    domain = Domain({"a": 3, "b": 400})
    with pretend_gpu(gpu_bytes=1 << 30):
        assert gains_on_device(domain, 1_000_000, GPU)
        assert not gains_on_device(domain, 20_000_000, GPU)
        assert not gains_on_device(domain, 1000, GPU)
        assert not gains_on_device(domain, 1_000_000, torch.device("cpu"))


@pytest.mark.parametrize("method", ["round", "sample"])
def test_what_cannot_be_drawn_is_refused(method: str) -> None:
    tree = junction_tree(Domain({"a": 2, "b": 2}), [("a", "b")])
    rng = np.random.default_rng(0)
    with pretend_gpu():
        with pytest.raises(NumericalFailure, match="no finite mass"):
            sample_on_device(tree, lambda i: np.zeros((2, 2)), 5, rng, method, GPU)
        with pytest.raises(InvalidInput, match="n must be"):
            sample_on_device(tree, lambda i: np.ones((2, 2)), -1, rng, method, GPU)
