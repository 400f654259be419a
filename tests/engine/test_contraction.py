"""Contractions against numpy's einsum, in all semirings, and their fused form."""

import itertools
import random
from collections.abc import Sequence

import numpy as np
import opt_einsum
import pytest
import torch
from brute_force import CLIQUE_SETS, FIVE, structures
from hypothesis import given
from hypothesis import strategies as st

from pgmkit.contraction import buffers as contraction_buffers
from pgmkit.contraction import order as contraction_order
from pgmkit.contraction.buffers import ContractionBuffers
from pgmkit.contraction.evaluate import LINEAR, LOG, MAX, adjoints, contract, forward, maximiser
from pgmkit.contraction.order import plan
from pgmkit.contraction.plan import Kernel, Plan, Step
from pgmkit.domain import Clique, Domain


def einsum(tables: list[np.ndarray], cliques: list[Clique], output: Clique) -> np.ndarray:
    names = sorted({name for clique in cliques for name in clique})
    operands: list[object] = []
    for table, clique in zip(tables, cliques, strict=True):
        operands += [table, [names.index(name) for name in clique]]
    return np.einsum(*operands, [names.index(name) for name in output], optimize="greedy")


def random_tables(domain: Domain, cliques: list[Clique], seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=domain.shape(clique)) for clique in cliques]


@given(structures(), st.integers(0, 10**6), st.data())
def test_any_output_and_sign(
    structure: tuple[Domain, list[Clique]], seed: int, data: st.DataObject
) -> None:
    domain, cliques = structure
    held = sorted({name for clique in cliques for name in clique})
    output = tuple(data.draw(st.lists(st.sampled_from(held), unique=True, max_size=3)))
    tables = random_tables(domain, cliques, seed)
    tensors = [torch.as_tensor(table) for table in tables]
    found = contract(plan(cliques, output, domain.sizes), tensors, LINEAR)
    expected = einsum(tables, cliques, output)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-10)
    logs = contract(plan(cliques, output, domain.sizes), tensors, LOG)
    positive = einsum([np.exp(t) for t in tables], cliques, output)
    np.testing.assert_allclose(logs.numpy(), np.log(positive), rtol=1e-10, atol=1e-10)


@given(structures(), st.integers(0, 10**6))
def test_maximum_and_its_argument(structure: tuple[Domain, list[Clique]], seed: int) -> None:
    domain, cliques = structure
    tables = random_tables(domain, cliques, seed)
    held = sorted({name for clique in cliques for name in clique})
    best = max(
        sum(
            t[tuple(record[held.index(n)] for n in c)] for t, c in zip(tables, cliques, strict=True)
        )
        for record in itertools.product(*(range(domain.sizes[n]) for n in held))
    )
    p = plan(cliques, (), domain.sizes)
    values = forward(p, [torch.as_tensor(table) for table in tables], MAX)
    assert float(values[-1]) == pytest.approx(best, abs=1e-12)
    record = maximiser(p, values)
    assert sorted(record) == held
    found = sum(t[tuple(record[n] for n in c)] for t, c in zip(tables, cliques, strict=True))
    assert found == pytest.approx(best, abs=1e-12)


@given(structures(), st.integers(0, 10**6))
def test_adjoints_are_derivatives_and_the_fused_form_agrees(
    structure: tuple[Domain, list[Clique]], seed: int
) -> None:
    domain, cliques = structure
    p = plan(cliques, (), domain.sizes)
    tensors = [
        torch.as_tensor(np.exp(table)).requires_grad_()
        for table in random_tables(domain, cliques, seed)
    ]
    result = contract(p, tensors, LINEAR)
    expected = torch.autograd.grad(result, tensors)
    plain = [tensor.detach() for tensor in tensors]
    for mine, theirs in zip(adjoints(p, forward(p, plain, LINEAR), LINEAR), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=0)
    logs = [tensor.log() for tensor in plain]
    for mine, theirs in zip(adjoints(p, forward(p, logs, LOG), LOG), expected, strict=True):
        torch.testing.assert_close(mine.exp(), theirs, rtol=1e-9, atol=0)

    passing = ContractionBuffers(p, torch.device("cpu"), torch.float64)
    for _ in range(2):  # buffers are reused
        passing.inputs.copy_(torch.cat([tensor.reshape(-1) for tensor in plain]))
        torch.testing.assert_close(passing.forward()[0], result.detach(), rtol=1e-10, atol=0)
        seed_value = torch.tensor([2.0], dtype=torch.float64)
        found = passing.backward(seed_value)
        flat = torch.cat([grad.reshape(-1) for grad in expected])
        torch.testing.assert_close(found, 2 * flat, rtol=1e-10, atol=0)


def test_equal_small_steps_share_a_call() -> None:
    """A balanced tree of equal factors needs far fewer calls than it has factors."""
    domain = Domain({f"x{i}": 4 for i in range(63)})
    edges = [(f"x{(i - 1) // 2}", f"x{i}") for i in range(1, 63)]
    p = plan(edges, (), domain.sizes)
    passing = ContractionBuffers(p, torch.device("cpu"), torch.float64)
    pairs = sum(step.kernel is not None for step in p.steps)
    assert len(passing.upward) - (len(p.steps) - pairs) < pairs / 3


def test_a_large_clique_of_small_factors_is_not_written_out() -> None:
    domain = Domain({f"x{i}": 30 for i in range(6)})
    pairs = [(f"x{i}", f"x{j}") for i in range(6) for j in range(i)]
    assert plan(pairs, (), domain.sizes).largest <= 30**5
    ring = [(f"x{i}", f"x{(i + 1) % 6}") for i in range(6)]
    assert plan(ring, (), domain.sizes).largest <= 30**2


def test_plans_are_cached_and_leave_the_global_generator_alone() -> None:
    cliques = CLIQUE_SETS["all pairs"]
    random.seed(5)
    before = random.getstate()
    first = plan(cliques, (), FIVE.sizes)
    assert random.getstate() == before
    assert plan(cliques, (), FIVE.sizes) is first


def test_minus_infinity_is_exact() -> None:
    p = plan([("a", "b"), ("b",)], ("a",), {"a": 2, "b": 2})
    table = torch.tensor([[-torch.inf, -torch.inf], [0.0, -torch.inf]])
    found = contract(p, [table, torch.zeros(2)], LOG)
    assert found.tolist() == [-torch.inf, 0.0]


# Plans that nobody chose. What runs by levels depends on which steps happen to be of one shape, so
# the structures are drawn, and every way of running a plan is compared with opt_einsum's own.

Tables = list[np.ndarray]


def draw_inputs(rng: random.Random) -> tuple[dict[str, int], list[Clique]]:
    """Inputs of repeated shapes over few axes, each with its axes in an order of its own."""
    equal = rng.choice([2, 2, 2, 3, 4, 0])
    count = rng.randint(2, {2: 11, 3: 7, 4: 6, 0: 6}[equal])
    sizes = {f"x{i}": equal or rng.choice([1, 1, 2, 3, 4, 5]) for i in range(count)}
    names = list(sizes)
    way = rng.randint(1, min(4, count))
    kind = rng.choice(["any", "one way", "one way", "all", "chain", "star", "fan"])
    if kind == "any":
        inputs = [
            rng.sample(names, rng.randint(0, min(4, count))) for _ in range(rng.randint(1, 9))
        ]
    elif kind == "one way":
        inputs = [rng.sample(names, way) for _ in range(rng.randint(3, 12))]
    elif kind == "all":
        inputs = [list(c) for c in itertools.combinations(names[:6], min(3, count, max(2, way)))]
    elif kind == "chain":
        inputs = [list(pair) for pair in itertools.pairwise([*names, names[0]])][: count - way // 4]
    elif kind == "star":
        inputs = [[names[0], name] for name in names[1:]] + [[name] for name in names[1:]]
    else:  # the same pair of inputs for each of several axes that nothing else holds
        shared, own = names[: count // 2], names[count // 2 :]
        pair = [rng.sample(shared, rng.randint(1, min(2, len(shared)))) for _ in range(2)]
        inputs = [[*held, name] for name in own for held in pair] + [shared[:3]]
    cliques = [tuple(rng.sample(axes, len(axes))) for axes in inputs or [names[:1]]]
    return sizes, rng.sample(cliques, len(cliques))


def draw_tables(rng: random.Random, sizes: dict[str, int], inputs: Sequence[Clique]) -> Tables:
    """Of both signs, some cells exactly zero."""
    draw = np.random.default_rng(rng.randrange(1 << 32))
    tables = [np.array(draw.normal(size=[sizes[n] for n in axes])) for axes in inputs]
    for table in tables:
        table[np.asarray(draw.random(table.shape) < 0.1)] = 0.0
    return tables


def theirs(
    tables: Tables, inputs: Sequence[Clique], output: Clique, sizes: dict[str, int]
) -> np.ndarray:
    """opt_einsum's own contraction, in its own order."""
    symbols = {name: opt_einsum.get_symbol(i) for i, name in enumerate(sizes)}
    terms = ["".join(symbols[n] for n in axes) for axes in inputs]
    equation = ",".join(terms) + "->" + "".join(symbols[n] for n in output)
    return np.asarray(opt_einsum.contract(equation, *tables, optimize="greedy"))


def rests(
    tables: Tables, inputs: Sequence[Clique], sizes: dict[str, int], combine: np.ufunc
) -> list[np.ndarray]:
    """For every input what all the others combine to, written out over all axes."""
    names, start = list(sizes), np.full(list(sizes.values()), float(combine.identity))
    spread = []
    for table, axes in zip(tables, inputs, strict=True):
        held = [n for n in names if n in axes]
        ordered = table.transpose([axes.index(n) for n in held])
        spread.append(ordered.reshape([sizes[n] if n in axes else 1 for n in names]))
    before = list(itertools.accumulate(spread[:-1], combine, initial=start))
    after = list(itertools.accumulate(spread[:0:-1], combine, initial=start))
    return [combine(one, other) for one, other in zip(before, reversed(after), strict=True)]


def reduced(
    whole: np.ndarray, axes: Clique, inputs: Sequence[Clique], sizes: dict[str, int], how: np.ufunc
) -> np.ndarray:
    """Down to these axes; axes of no input do not count."""
    held = {name for other in inputs for name in other}
    whole = whole[tuple(slice(None) if name in held else 0 for name in sizes)]
    names = [name for name in sizes if name in held]
    left = [name for name in names if name in axes]
    table = how.reduce(whole, axis=tuple(i for i, name in enumerate(names) if name not in axes))
    return np.asarray(table).transpose([left.index(name) for name in axes])


def logarithms(tables: Tables) -> Tables:
    with np.errstate(divide="ignore"):
        return [np.log(np.abs(table)) for table in tables]


def agree(found: torch.Tensor, expected: np.ndarray, size: np.ndarray | float, what: str) -> None:
    """Equal to within the rounding of terms of this total size."""
    assert tuple(found.shape) == np.shape(expected), what
    off = np.abs(found.numpy() - expected) - 1e-12 * np.abs(size)
    assert np.all(off <= 1e-290), f"{what} is off by {off.max():.3g}"


def fused(p: Plan, tables: Tables) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The result, and 2.5 times its derivatives; run twice, as buffers are reused."""
    passing = ContractionBuffers(p, torch.device("cpu"), torch.float64)
    for _ in range(2):
        passing.inputs.copy_(torch.from_numpy(np.concatenate([t.ravel() for t in tables])))
        result = passing.forward()[0]
        flat = passing.backward(torch.tensor([2.5], dtype=torch.float64))
    cuts = np.cumsum([table.size for table in tables])[:-1].tolist()
    found = [
        part.reshape(table.shape)
        for part, table in zip(flat.tensor_split(cuts), tables, strict=True)
    ]
    return result, found


def check_fused(sizes: dict[str, int], inputs: list[Clique], tables: Tables) -> None:
    """In groups as usual, with every step in a group, and with none; then step by step."""
    p, positive = plan(inputs, (), sizes), [np.abs(table) for table in tables]
    expected, size = theirs(tables, inputs, (), sizes), theirs(positive, inputs, (), sizes)
    pairs = [
        [
            reduced(whole, axes, inputs, sizes, np.add)
            for whole, axes in zip(rests(each, inputs, sizes, np.multiply), inputs, strict=True)
        ]
        for each in (tables, positive)
    ]
    usual = contraction_buffers.SMALLEST_GROUP
    for smallest in (usual, 1, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(contraction_buffers, "SMALLEST_GROUP", smallest)
            result, found = fused(p, tables)
        agree(result, expected, size, f"result in groups of {smallest}")
        for mine, one, bound in zip(found, *pairs, strict=True):
            agree(mine, 2.5 * one, 2.5 * bound, f"derivatives in groups of {smallest}")
    slow = adjoints(p, forward(p, tensors(tables), LINEAR), LINEAR)
    for mine, one, bound in zip(slow, *pairs, strict=True):
        agree(mine, one, bound, "adjoint")


def tensors(tables: Tables) -> list[torch.Tensor]:
    return [torch.as_tensor(table) for table in tables]


def check_semirings(
    sizes: dict[str, int], inputs: list[Clique], tables: Tables, output: Clique
) -> None:
    p = plan(inputs, output, sizes)
    positive = [np.abs(table) for table in tables]
    total = theirs(positive, inputs, output, sizes)
    agree(contract(p, tensors(tables), LINEAR), theirs(tables, inputs, output, sizes), total, "sum")
    found = contract(p, tensors(logarithms(tables)), LOG)
    agree(found.exp(), total, 10 * total, "sum of exponentials")
    assert np.array_equal(np.isneginf(found.numpy()), total == 0)
    whole = rests([*tables, np.zeros(())], [*inputs, ()], sizes, np.add)[-1]
    best = reduced(whole, output, inputs, sizes, np.maximum)
    agree(contract(p, tensors(tables), MAX), best, 10.0, "maximum")


def check_tropical_adjoints(sizes: dict[str, int], inputs: list[Clique], tables: Tables) -> None:
    p, positive = plan(inputs, (), sizes), [np.abs(table) for table in tables]
    logs = adjoints(p, forward(p, tensors(logarithms(tables)), LOG), LOG)
    for mine, whole, axes in zip(
        logs, rests(positive, inputs, sizes, np.multiply), inputs, strict=True
    ):
        total = reduced(whole, axes, inputs, sizes, np.add)
        agree(mine.exp(), total, 100 * total, "adjoint of logarithms")
    maxima = adjoints(p, forward(p, tensors(tables), MAX), MAX)
    for mine, whole, axes in zip(maxima, rests(tables, inputs, sizes, np.add), inputs, strict=True):
        agree(mine, reduced(whole, axes, inputs, sizes, np.maximum), 10.0, "adjoint of maxima")


def check_batch(
    sizes: dict[str, int], inputs: list[Clique], output: Clique, rng: random.Random
) -> None:
    """Several contractions as one: an axis "*" that some inputs and the output have in front."""
    together = sizes | {"*": rng.randint(2, 4)}
    batched = [("*", *axes) if rng.random() < 0.5 else axes for axes in inputs]
    batched[0] = ("*", *inputs[0])
    tables = draw_tables(rng, together, batched)
    found = contract(plan(batched, ("*", *output), together), tensors(tables), LINEAR)
    for place in range(together["*"]):
        one = [
            t[place] if axes[:1] == ("*",) else t for t, axes in zip(tables, batched, strict=True)
        ]
        size = theirs([np.abs(table) for table in one], inputs, output, sizes)
        agree(found[place], theirs(one, inputs, output, sizes), size, "batch")


def check_every_way(rng: random.Random) -> None:
    sizes, inputs = draw_inputs(rng)
    tables = draw_tables(rng, sizes, inputs)
    held = sorted({name for axes in inputs for name in axes})
    output = tuple(rng.sample(held, rng.randint(0, min(4, len(held)))))
    check_fused(sizes, inputs, tables)
    check_semirings(sizes, inputs, tables, ())
    check_semirings(sizes, inputs, tables, output)
    check_tropical_adjoints(sizes, inputs, tables)
    check_batch(sizes, inputs, output, rng)


@given(st.randoms(use_true_random=False))
def test_every_way_of_running_a_plan(rng: random.Random) -> None:
    check_every_way(rng)


@pytest.mark.parametrize("block", range(2))
def test_every_way_of_running_many_plans(block: int) -> None:
    """Plain draws are larger on the whole than those that hypothesis makes to be shrunk."""
    for seed in range(50 * block, 50 * (block + 1)):
        try:
            check_every_way(random.Random(seed))
        except Exception as error:
            error.add_note(f"seed {seed}: {draw_inputs(random.Random(seed))}")
            raise


def test_the_draws_run_steps_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without groups in them the two tests above would show nothing about groups."""
    bound, kinds = [], set()
    usual = ContractionBuffers.bind_group

    def spied(self: ContractionBuffers, group: list[Step]) -> None:
        bound.append(len(group))
        for step in group:
            assert step.kernel is not None
            kinds.add(tuple(extent > 1 for extent in step.kernel.extents))
        usual(self, group)

    monkeypatch.setattr(ContractionBuffers, "bind_group", spied)
    grouped = 0
    for seed in range(400):
        sizes, inputs = draw_inputs(random.Random(seed))
        before = len(bound)
        ContractionBuffers(plan(inputs, (), sizes), torch.device("cpu"), torch.float64)
        grouped += len(bound) > before
    assert grouped >= 100
    assert min(bound) >= contraction_buffers.SMALLEST_GROUP and max(bound) >= 6
    # (batch, rows, summed, columns) above one: products in which an order of axes can be mistaken.
    assert {
        (True, True, True, True),
        (True, True, False, False),
        (False, True, True, True),
    } <= kinds


def _product_in_another_order(
    left: Clique, right: Clique, gone: set[str], sizes: dict[str, int]
) -> Kernel:
    """A product's axes as the operands have them, not as a batched product writes them."""
    kept = tuple(n for n in left if n not in gone) + tuple(n for n in right if n not in left)
    return Kernel(left, right, kept, sizes)


@pytest.fixture
def reordered(monkeypatch: pytest.MonkeyPatch) -> object:
    """Plants axes in another order than grouped products write, past the plan's own check."""
    contraction_order.cached_plan.cache_clear()
    monkeypatch.setattr(Kernel, "product", _product_in_another_order)
    with pytest.raises(AssertionError, match="has axes"):
        plan([("a", "b"), ("b", "c")], ("a", "b", "c"), {"a": 2, "b": 2, "c": 2})
    monkeypatch.setattr(Plan, "__post_init__", lambda self: None)
    yield
    monkeypatch.undo()
    contraction_order.cached_plan.cache_clear()


@pytest.mark.usefixtures("reordered")
def test_axes_in_another_order_are_noticed() -> None:
    wrong = 0
    for seed in range(100):
        try:
            check_every_way(random.Random(seed))
        except AssertionError as error:
            assert "groups" in str(error)
            wrong += 1
    assert wrong >= 10
