"""Answers are looked at a second time: wrong ones raise, whatever made them wrong; and conditions,
queries and batches against the joint written out, in numbers that no defect is made for.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from seams import kept_by, tables_of
from structures import draw_case

import pgmkit.inference.answer_checks
import pgmkit.inference.plain_sums
import pgmkit.records.sampling
from pgmkit import (
    Domain,
    Factor,
    FactoredQuery,
    FactorGraph,
    GraphicalModel,
    Measurement,
    estimate,
    estimate_many,
)
from pgmkit.conditioning.calibration import Calibration
from pgmkit.conditioning.posteriors import Posteriors
from pgmkit.estimation.batches.answers import BatchedAnswers
from pgmkit.estimation.loss_checks import check_loss
from pgmkit.inference import model_tables, plain_beliefs
from pgmkit.inference.answer_checks import SecondOpinion
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.inference.observations import Observations
from pgmkit.inference.plain_beliefs import PlainBeliefs
from pgmkit.inference.plain_sums import PlainSums, TooLong
from pgmkit.inference.self_check import Contradiction, FirstUses
from pgmkit.inference.tree_paths import TreePaths

Array = NDArray[np.float64]
SEEDS = st.integers(0, 2**31)
LONG = 10.0
"""Seconds, so that nothing goes unlooked at on a slow machine."""


def opinion(seed: int) -> tuple[SecondOpinion, GraphicalModel, Array]:
    """Of a structure that nobody chose, its model, and the joint in fractions."""
    case = draw_case(seed)
    while not case.possible:
        seed += 1
        case = draw_case(seed)
    model = case.problem.model()
    return SecondOpinion(tables_of(model).sums, {}), model, np.asarray(case.joint, dtype=np.float64)


@given(seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_plain_sums_are_those_of_the_joint(seed: int) -> None:
    second, model, joint = opinion(seed)
    rng = np.random.default_rng(seed)
    names, shape = list(model.domain), joint.shape
    axis = int(rng.integers(len(names)))
    record = {names[axis]: int(rng.integers(shape[axis]))}
    rows = {n: rng.normal(size=s) for n, s in zip(names, shape, strict=True) if rng.random() < 0.5}
    weights = [((n,), np.log(row.astype(np.complex128))) for n, row in rows.items()]
    weighted = joint
    for i, name in enumerate(names):
        row = rows.get(name, np.ones(shape[i]))
        weighted = weighted * row.reshape([-1 if k == i else 1 for k in range(len(shape))])
    found = np.exp(second.sums.log_sum(weights=weights) - second.sums.log_sum().real)
    assert found.real == pytest.approx(weighted.sum(), rel=1e-7, abs=1e-9)
    assert abs(found.imag) < 1e-9
    share = joint.take(record[names[axis]], axis).sum()
    part = second.sums.log_sum(record).real - second.sums.log_sum().real
    assert math.exp(part) == pytest.approx(share, rel=1e-7, abs=1e-300)
    peak = second.sums.largest({}, (), np.inf) - second.sums.log_sum().real
    assert math.exp(peak) == pytest.approx(joint.max(), rel=1e-7)


@given(seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_right_answers_pass_and_wrong_ones_raise(seed: int) -> None:
    second, model, joint = opinion(seed)
    names = list(model.domain)
    table = joint.sum(axis=tuple(range(2, joint.ndim)))
    found = {tuple(names[:2]): table}
    second.tables(found, 1.0, LONG)
    moved = np.roll(table, 1).reshape(table.shape)
    if np.abs(moved - table).max() > 1e-3:
        # The likeliest cell of the wrong table has another probability.
        cell = np.unravel_index(int(moved.argmax()), table.shape)
        if abs(moved[cell] - table[cell]) > 1e-3:
            with pytest.raises(Contradiction, match="contradicts"):
                second.tables({tuple(names[:2]): moved}, 1.0, LONG)
    query = FactoredQuery({names[0]: np.eye(model.domain.sizes[names[0]]) * 2 - 1})
    answer = model.answer(query)
    second.answer(query, answer, 1.0, LONG)
    with pytest.raises(Contradiction, match="the answer"):
        second.answer(query, answer + 1e-3, 1.0, LONG)
    second.most_probable(model.map(), LONG)
    second.log_sum(model.log_partition, LONG)
    with pytest.raises(Contradiction, match="logarithm of the sum"):
        second.log_sum(model.log_partition + 1e-3, LONG)


def raising(error: Exception) -> Callable[..., float]:
    def call(*args: object) -> float:
        raise error

    return call


@pytest.mark.parametrize("fast", [True, False])
def test_a_record_that_is_not_the_most_probable_is_found_out(
    monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    """By all maxima; where these take too long, by changes of one attribute alone."""
    if not fast:
        monkeypatch.setattr(PlainSums, "largest", raising(TooLong()))
    sums = PlainSums([(("a", "b"), np.log([[1.0, 2.0], [4.0, 8.0]]))], {"a": 2, "b": 2})
    second = SecondOpinion(sums, {})
    second.most_probable({"a": 1, "b": 1}, LONG)
    with pytest.raises(Contradiction, match="most probable"):
        second.most_probable({"a": 1, "b": 0}, LONG)
    with pytest.raises(Contradiction, match="most probable"):
        second.most_probable({"a": 1, "b": 1}, LONG, math.log(7.0))
    with pytest.raises(Contradiction, match="most probable"):
        SecondOpinion(sums, {"a": 0}).most_probable({"a": 1, "b": 1}, LONG)


def test_other_claims_are_found_out() -> None:
    """The share of some codes, best records, entropies, draws: each right, then wrong."""
    table = np.array([[1.0, 2.0, 3.0], [4.0, 8.0, 12.0]]) / 30
    second = SecondOpinion(PlainSums([(("a", "b"), np.log(table))], {"a": 2, "b": 3}), {})
    allowed = {"b": np.array([True, False, True]), "a": np.array([False, True])}
    second.share(allowed, 16 / 30, LONG)
    with pytest.raises(Contradiction, match="the share"):
        second.share(allowed, 4 / 30, LONG)
    best = {"a": np.log(table.max(1)), "b": np.log(table.max(0))}
    second.max_marginals(best, LONG)
    with pytest.raises(Contradiction, match="the best record"):
        second.max_marginals({name: values[::-1] for name, values in best.items()}, LONG)
    entropy = -float((table * np.log(table)).sum())
    second.entropy(entropy, LONG)
    with pytest.raises(Contradiction, match="the entropy"):
        second.entropy(entropy + 1e-3, LONG)
    cells = np.repeat(np.arange(6), (3000 * table).round().astype(int).ravel())
    second.drawn({"a": cells // 3, "b": cells % 3}, 3000, LONG)
    with pytest.raises(Contradiction, match="records drawn"):
        second.drawn({"a": cells // 3, "b": (cells + 1) % 3}, 3000, LONG)


def test_of_a_network_only_ancestors_are_summed() -> None:
    graph = FactorGraph.from_conditionals(
        {
            "a": (("a",), [0.3, 0.7]),
            "b": (("b", "a"), [[0.9, 0.2], [0.1, 0.8]]),
            "c": (("c", "b"), [[0.5, 0.6], [0.5, 0.4]]),
        }
    )
    about = kept_by(graph).plain_sums.about(["b"])
    assert [clique for clique, _ in about.tables] == [("b", "a"), ("a",)]
    assert math.exp(about.log_sum({"b": 0}).real) == pytest.approx(0.3 * 0.9 + 0.7 * 0.2)


def losses() -> Iterator[tuple[str, float]]:
    r = np.array([0.5, 3.0, -1.0])
    yield "squared", float((r**2).sum() / 2)
    yield "absolute", float(math.sqrt(2) * np.abs(r).sum())
    huber = np.where(np.abs(r) <= 1.345, r**2 / 2, 1.345 * (np.abs(r) - 1.345 / 2))
    yield "huber", float(huber.sum())


@pytest.mark.parametrize(("loss", "value"), list(losses()))
@pytest.mark.parametrize("form", ["plain", "sparse", "product"])
def test_losses_are_computed_again(loss: str, value: float, form: str) -> None:
    marginal = np.array([[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]])
    matrix = {
        "plain": np.array([[1.0, 0, 1, 0, 1, 0], [0, 1.0, 0, 1, 0, 1], [1, 1, 1, 1, 1, 1]]),
        "sparse": scipy.sparse.csr_array(np.eye(6)[:3]),
        "product": [np.eye(3), np.ones((1, 2))],
    }[form]
    exact = {
        "plain": [90.0, 120.0, 210.0],
        "sparse": [10.0, 20.0, 30.0],
        "product": [30.0, 70.0, 110.0],
    }[form]
    y = [Measurement(("a", "b"), np.array(exact) - [1.0, 6.0, -2.0], 2.0, matrix=matrix)]
    tables = {("b", "c", "a"): np.stack([marginal.T, 0 * marginal.T], 1)}
    check_loss(loss, y, tables, value, epsilon=2e-16, seconds=LONG)
    check_loss(loss, y, tables, 99.0, epsilon=2e-16, seconds=0.0)  # no time, no opinion
    with pytest.raises(Contradiction, match="its loss"):
        check_loss(loss, y, tables, value * 1.001, epsilon=2e-16, seconds=LONG)


def test_a_structure_is_looked_at_once_and_within_a_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(pgmkit.inference.self_check.time, "perf_counter", lambda: clock[0])
    uses, given_to = FirstUses(), list[float]()

    def look(seconds: float) -> None:
        given_to.append(seconds)
        clock[0] += 0.0009

    for structure in ("one", "one", "two", "three", "two"):
        uses.check("marginals", structure, clock[0], look)
    assert given_to == pytest.approx([0.005, 0.0041])  # "three" finds the time spent
    uses.check("answer", "one", clock[0] - 1.0, look)
    assert given_to[2:] == pytest.approx([0.1])


def test_the_second_question_of_each_kind_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ("tables", "answer", "share", "most_probable", "drawn", "counted")
    seen = dict.fromkeys(kinds, 0)

    def counted(kind: str) -> Callable[..., None]:
        return lambda *args: seen.update({kind: seen[kind] + 1})

    for kind in kinds:
        monkeypatch.setattr(SecondOpinion, kind, counted(kind))
    model = chain_model()
    for n in (1000, np.int64(1001), 1002):
        assert len(dict(model.each_marginal([("x0",), ("x9", "x0")]))) == 2
        model.answer(FactoredQuery({"x0": np.ones(4)}))
        model.given({"x1": [0, 2]})
        model.map()
        model.sample(n, rng=0)
        model.sample_in_parts(n, 400, rng=0)
    assert seen == dict.fromkeys(kinds, 1)
    timed = tables_of(model).uses._answering
    assert [*timed] == ["marginals", "answer", "given", "map", "sample", "parts"]


@given(seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_given_any_codes_is_the_conditional_joint(seed: int) -> None:
    """Any number of codes of any attributes, in any order, with repeats: counts of the joint."""
    rng = np.random.default_rng(seed)
    names = [f"v{i}" for i in range(4)]
    domain = Domain({name: int(rng.integers(2, 8)) for name in names})
    cliques = [("v1", "v0"), ("v1", "v2"), ("v3",)][: int(rng.integers(1, 4))]
    factors = [Factor(domain.project(c), rng.normal(size=domain.shape(c))) for c in cliques]
    model = GraphicalModel(domain, tuple(factors), total=100.0)
    joint = model.marginal(names)
    evidence: dict[str, int | list[int]] = {}
    for axis in rng.permutation(4)[: int(rng.integers(1, 4))]:
        size = domain.sizes[names[axis]]
        codes = rng.integers(size, size=int(rng.integers(1, size + 2))).tolist()
        evidence[names[axis]] = codes if rng.random() < 0.8 else codes[0]
        kept = np.isin(np.arange(size), evidence[names[axis]])
        joint = joint * kept.reshape([-1 if k == axis else 1 for k in range(4)])
    narrowed = model.given(evidence)
    assert narrowed.total == pytest.approx(joint.sum())
    np.testing.assert_allclose(narrowed.marginal(names), joint, atol=1e-9)
    np.testing.assert_allclose(narrowed.marginal(("v3", "v0")), joint.sum((1, 2)).T, atol=1e-9)


@pytest.mark.parametrize("count", [6, 7])
def test_sums_of_graphs_too_large_to_be_written_out(count: int) -> None:
    """Beyond a thousand cells log Z is put together from scaled messages."""
    rng, domain = np.random.default_rng(count), Domain({f"x{i}": 4 for i in range(count)})
    pairs = [(f"x{i}", f"x{(i + 1) % count}") for i in range(count)]
    tables = [(c, 1e-3 * rng.exponential(size=(4, 4))) for c in pairs]
    product = np.ones((4,) * count)
    for (one, other), table in tables:
        axes = sorted((int(one[1:]), int(other[1:])))
        held = table if int(one[1:]) == axes[0] else table.T
        product = product * held.reshape([4 if i in axes else 1 for i in range(count)])
    graph = FactorGraph(domain, tables)
    assert graph.log_partition == pytest.approx(np.log(product.sum()), rel=1e-12)
    posterior = graph.posterior({"x2": 1})
    assert posterior.log_partition == pytest.approx(np.log(product[:, :, 1].sum()), rel=1e-12)


def test_matrices_of_three_attributes_in_any_order() -> None:
    """An order of three that is not its own inverse."""
    domain, rng = Domain({"a": 2, "b": 3, "c": 4}), np.random.default_rng(0)
    layout = MarginalOracle(domain, [("a", "b", "c")]).layout
    flat = rng.random(24)
    for order in itertools.permutations("abc"):
        matrix = rng.normal(size=(60, 24))  # too many entries for coordinates
        y = [Measurement(order, np.zeros(60), 2.0, matrix=matrix)]
        seen = Observations(layout, y, torch.float64, torch.device("cpu"))
        places = np.arange(24).reshape(2, 3, 4).transpose(["abc".index(n) for n in order]).ravel()
        whole = np.zeros((60, 24))
        whole[:, places] = matrix / 2.0
        np.testing.assert_allclose(seen.applied(torch.as_tensor(flat)), whole @ flat)
        dual = rng.normal(size=60)
        np.testing.assert_allclose(seen.adjoint(torch.as_tensor(dual)), whole.T @ dual)


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_many_queries_are_answered_in_their_order(count: int) -> None:
    _, model, _ = opinion(11)
    rng = np.random.default_rng(count)
    names = list(model.domain)
    queries = []
    for _ in range(count):
        some = rng.permutation(len(names))[: int(rng.integers(0, min(3, len(names)) + 1))]
        shape = [(int(rng.integers(1, 3)), model.domain.sizes[names[i]]) for i in some]
        queries.append(
            FactoredQuery({names[i]: rng.normal(size=s) for i, s in zip(some, shape, strict=True)})
        )
    for query, answer in zip(queries, model.answer(queries), strict=True):
        expected = model.marginal(query.attributes)
        for axis, matrix in enumerate(query.factors.values()):
            expected = np.moveaxis(np.tensordot(matrix, expected, (1, axis)), 0, axis)
        np.testing.assert_allclose(answer, expected, atol=1e-9)


@pytest.mark.parametrize("count", [2, 65, 131])
def test_answers_of_many_models_are_in_their_order(count: int) -> None:
    rng, domain = np.random.default_rng(count), Domain({"a": 2, "b": 3, "c": 2})
    models = []
    for _ in range(count):
        tables = [(c, rng.normal(size=domain.shape(c))) for c in (("b", "a"), ("b", "c"))]
        factors = tuple(Factor(domain.project(c), table) for c, table in tables)
        models.append(GraphicalModel(domain, factors, total=5.0))
    query = FactoredQuery({"c": [[1.0, -1.0]], "a": np.tri(2)})
    for model, answer in zip(models, BatchedAnswers(models).answer(query), strict=True):
        expected = np.tri(2) @ model.marginal(("a", "c")) @ [1.0, -1.0]
        np.testing.assert_allclose(answer.ravel(), expected, atol=1e-9)


@pytest.mark.parametrize("count", [2, 65, 131])
def test_many_estimates_are_in_the_order_of_their_sets(count: int) -> None:
    domain, rng = Domain({"a": 2, "b": 3}), np.random.default_rng(count)
    values = 50 + 100 * rng.random((count, 6))
    sets = [[Measurement(("b", "a"), row, 1.0)] for row in values]
    totals = values.sum(1).tolist()
    for model, row in zip(estimate_many(domain, sets, total=totals), values, strict=True):
        np.testing.assert_allclose(model.marginal(("b", "a")).ravel(), row, rtol=1e-3)


def test_a_model_of_another_set_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of the last model, computed from its own set of measurements."""
    from pgmkit.estimation import many

    usual = many.ManyEstimates.estimate_batch
    monkeypatch.setattr(many.ManyEstimates, "estimate_batch", lambda *args: usual(*args)[::-1])
    # Values that no table has, so that each set leaves a loss of its own.
    sets = [
        [Measurement(("a",), [x, 100.0 - x], 1.0), Measurement(("a",), [x + 3 + x / 9, 1.0], 1.0)]
        for x in (20.0, 60.0)
    ]
    with pytest.raises(Contradiction, match="its loss"):
        estimate_many(Domain({"a": 2}), sets, total=100)


def given_loses_a_code(patch: pytest.MonkeyPatch) -> None:
    usual = model_tables.ModelTables.narrowed
    patch.setattr(
        model_tables.ModelTables,
        "narrowed",
        lambda self, allowed: usual(
            self, {name: mask & (mask.cumsum() < mask.sum()) for name, mask in allowed.items()}
        ),
    )


def answers_of_the_next_row(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model_tables, "MOST_CELLS", 0)
    usual = model_tables.answers
    patch.setattr(
        model_tables,
        "answers",
        lambda *args: [np.roll(a, 1) for a in usual(*args)],
    )


def plain_answers_of_the_next_row(patch: pytest.MonkeyPatch) -> None:
    usual = PlainBeliefs.answer
    patch.setattr(PlainBeliefs, "answer", lambda self, *args: np.roll(usual(self, *args), 1))


def plain_messages_to_the_next_value(patch: pytest.MonkeyPatch) -> None:
    usual = plain_beliefs.log_sums
    patch.setattr(plain_beliefs, "log_sums", lambda *args: np.roll(usual(*args), 1))


def distant_pairs_turned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model_tables, "MOST_CELLS", 0)
    patch.setattr(TreePaths, "arranged", lambda self, table, clique: table)


def modes_of_the_next_code(patch: pytest.MonkeyPatch) -> None:
    usual = MarginalOracle.mode
    patch.setattr(
        MarginalOracle, "mode", lambda *args: {n: (c + 1) % 4 for n, c in usual(*args).items()}
    )


def posteriors_in_reverse(patch: pytest.MonkeyPatch) -> None:
    usual = Posteriors._spread
    patch.setattr(Posteriors, "_spread", lambda self, parts: usual(self, parts)[::-1])


def calibrated_one_cell_along(patch: pytest.MonkeyPatch) -> None:
    usual = Calibration.singles.func
    made = cached_property(lambda self: np.roll(usual(self), 1))
    made.__set_name__(Calibration, "singles")
    patch.setattr(Calibration, "singles", made)


def draws_one_bin_along(patch: pytest.MonkeyPatch) -> None:
    usual = pgmkit.records.sampling.draw_independent
    patch.setattr(
        pgmkit.records.sampling,
        "draw_independent",
        lambda table, *others: (usual(table, *others) + 1) % table.shape[1],
    )


def parts_one_cell_along(patch: pytest.MonkeyPatch) -> None:
    usual = pgmkit.records.sampling.rounded_counts
    patch.setattr(
        pgmkit.records.sampling,
        "rounded_counts",
        lambda *args: np.roll(usual(*args), 1, axis=1),
    )


DEFECTS = {
    given_loses_a_code: lambda: chain_model().given({"x1": [0, 1, 2]}),
    answers_of_the_next_row: lambda: chain_model().answer(FactoredQuery({"x0": np.tri(4)})),
    plain_answers_of_the_next_row: lambda: chain_model().answer(FactoredQuery({"x0": np.tri(4)})),
    plain_messages_to_the_next_value: lambda: chain_model().marginals([("x0",), ("x9", "x0")]),
    distant_pairs_turned: lambda: chain_model().marginal(("x9", "x0")),
    modes_of_the_next_code: lambda: chain_model().map(),
    posteriors_in_reverse: lambda: chain_graph().posteriors(records()).marginals(),
    calibrated_one_cell_along: lambda: one_after_another(chain_graph()),
    parts_one_cell_along: lambda: chain_model().sample_in_parts(5000, 100, rng=0),
    draws_one_bin_along: lambda: chain_model().sample(5000, rng=0, method="sample"),
}


def chain_model() -> GraphicalModel:
    domain, rng = Domain({f"x{i}": 4 for i in range(10)}), np.random.default_rng(5)
    pairs = [(f"x{i}", f"x{i + 1}") for i in range(9)]
    factors = tuple(Factor(domain.project(c), 2 * rng.normal(size=(4, 4))) for c in pairs)
    return GraphicalModel(domain, factors, total=100.0)


def chain_graph() -> FactorGraph:
    return FactorGraph.from_model(chain_model())


def one_after_another(graph: FactorGraph) -> None:
    """Sets of evidence, until the graph calibrates itself."""
    for code in range(4):
        graph.posterior({"x0": code, "x5": 1}).marginals()


def records() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {name: rng.integers(4, size=200) for name in ("x0", "x4", "x7")}


@pytest.mark.parametrize("plant", DEFECTS, ids=lambda plant: plant.__name__)
def test_defects_behind_inference_are_noticed(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """Right tables, and a defect in what is made of them: the first answer raises."""
    monkeypatch.setattr(pgmkit.inference.self_check, "LEAST", LONG)
    # On a slow machine the checks of the first answers would leave no time for the last.
    monkeypatch.setattr(pgmkit.inference.self_check, "FIRST_SECONDS", LONG)
    DEFECTS[plant]()
    plant(monkeypatch)
    with pytest.raises(Contradiction, match="contradicts"):
        DEFECTS[plant]()


def test_estimates_in_single_precision_pass() -> None:
    domain = Domain({"a": 3, "b": 4})
    y = [Measurement(("a", "b"), 1000 * np.arange(12.0).reshape(3, 4), 5.0)]
    model = estimate(domain, y, dtype=torch.float32)
    assert model.answer(FactoredQuery({"b": np.eye(4)})).sum() == pytest.approx(66_000, rel=1e-3)


@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_sums_in_blocks_keep_any_cells(seed: int) -> None:
    """Blocks of a few cells, an order that lacks attributes, and axes kept, beside the joint."""
    second, model, joint = opinion(seed)
    rng = np.random.default_rng(seed)
    names = list(model.domain)
    kept = tuple(rng.permutation(names)[: int(rng.integers(0, 3))].tolist())
    fixed = [name for name in names if name not in kept][:1]
    record = {name: int(rng.integers(model.domain.sizes[name])) for name in fixed}
    sums = replace(second.sums, order=tuple(rng.permutation(names)[:2].tolist()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pgmkit.inference.plain_sums, "BLOCK_CELLS", 4)
        found = np.exp(sums.table(kept, record, (), np.inf) - second.sums.log_sum().real)
    cut = joint[tuple([record.get(name, slice(None)) for name in names])]
    left = [name for name in names if name not in record]
    true = cut.sum(axis=tuple([i for i, name in enumerate(left) if name not in kept]))
    held = [name for name in left if name in kept]
    true = true.transpose([held.index(name) for name in kept])
    np.testing.assert_allclose(found, true, rtol=1e-7, atol=1e-12)
