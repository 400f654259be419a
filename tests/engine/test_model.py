"""The model's marginals, answers, MAP, samples and file against the joint table."""

import io
import json
import tracemalloc
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from brute_force import CLIQUE_SETS, FIVE, Problem, log_weights, problems, random_problem, summed
from chance import assert_follows, assert_no_more_spread
from hypothesis import given
from hypothesis import strategies as st
from seams import tables_of

from pgmkit import Domain, Factor, FactoredQuery, GraphicalModel, Measurement, error_bars, estimate
from pgmkit.errors import InvalidInput, ModelTooLarge, NumericalFailure
from pgmkit.estimation.batches.answers import BatchedAnswers
from pgmkit.inference import model_tables
from pgmkit.model import FORMAT
from pgmkit.queries import identity, moments, prefix, range_, subset
from pgmkit.runtime.precision import EPSILON, TINY
from pgmkit.runtime.untrusted import write_container
from pgmkit.uncertainty.measured import MeasuredBars


def explicit_answer(problem: Problem, query: FactoredQuery, total: float) -> np.ndarray:
    """The full Kronecker product over the domain's order, times the joint; ones where left out."""
    matrix = np.ones((1, 1))
    for name, size in problem.domain.sizes.items():
        factor = query.factors.get(name, np.ones((1, size)))
        factor = factor.toarray() if scipy.sparse.issparse(factor) else np.asarray(factor)
        matrix = np.kron(matrix, factor)
    flat = matrix @ problem.joint(total).astype(np.float64).ravel()
    ordered = [name for name in problem.domain if name in query.factors]
    shape = [query.factors[name].shape[0] for name in ordered]
    return flat.reshape(shape).transpose([ordered.index(name) for name in query.attributes])


@given(problems(most=5), st.data())
def test_marginals_inside_and_outside_the_cliques(problem: Problem, data: st.DataObject) -> None:
    if not problem.possible():
        return
    model = problem.model(250.0)
    names = st.lists(st.sampled_from(problem.domain.attributes), unique=True).map(tuple)
    asked = data.draw(st.lists(names, min_size=1, max_size=6))
    joint = problem.joint(250.0)
    for clique, table in model.marginals(asked).items():
        expected = summed(problem.domain, joint, clique).astype(np.float64)
        np.testing.assert_allclose(table, expected, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(model.marginal(clique), expected, rtol=1e-9, atol=1e-10)
    assert model.log_partition == pytest.approx(problem.log_partition(), rel=1e-10, abs=1e-9)


def test_the_caller_of_each_marginal_keeps_torch_as_it_was() -> None:
    """And an iteration that is left in its middle: what a session changes ends with it."""
    domain = Domain({f"x{i}": 40 for i in range(8)})
    chain = [(f"x{i}", f"x{i + 1}") for i in range(7)]
    factors = tuple(Factor(domain.project(c), np.zeros((40, 40))) for c in chain)
    model = GraphicalModel(domain, factors, total=40.0)
    threads, tiny = torch.get_num_threads(), torch.tensor([1e-310], dtype=torch.float64)
    triples = list(combinations(domain, 3))
    seen = 0
    for _, table in model.each_marginal(triples):
        seen += 1
        assert table.sum() == pytest.approx(40.0)
        assert not torch.is_inference_mode_enabled()
        assert torch.get_num_threads() == threads
        assert float(tiny * 0.5) > 0
    assert seen == len(triples)
    next(model.each_marginal(triples))
    assert not torch.is_inference_mode_enabled()


@given(problems(most=5))
def test_map_has_the_largest_weight(problem: Problem) -> None:
    if not problem.possible():
        return
    weights = log_weights(problem.domain, problem.cliques, problem.potentials)
    found = problem.model().map()
    assert list(found) == list(problem.domain)
    assert float(weights[tuple(found.values())]) == pytest.approx(float(weights.max()), abs=1e-9)


def random_query(problem: Problem, rng: np.random.Generator) -> FactoredQuery:
    names = rng.permutation(problem.domain.attributes)[: rng.integers(0, 4)]
    factors = {}
    for name in names:
        size = problem.domain.sizes[str(name)]
        matrix = rng.normal(size=(rng.integers(1, 4), size))
        factors[str(name)] = scipy.sparse.csr_array(matrix) if rng.random() < 0.3 else matrix
    return FactoredQuery(factors)


def test_a_mode_is_no_sum_of_many() -> None:
    """Many values of an attribute that one potential alone holds: each less likely, all more."""
    domain = Domain({"a": 2, "b": 6, "c": 2})
    table = np.log(np.array([[0.2] * 6, [0.7, 0.01, 0.01, 0.01, 0.01, 0.01]]))
    for clique, held in ((("a", "b"), table), (("b", "a"), table.T)):
        factors = (
            Factor(domain.project(clique), held),
            Factor(domain.project(("c", "a")), np.log([[0.5, 0.5], [0.4, 0.6]])),
        )
        model = GraphicalModel(domain, factors, total=1.0)
        assert model.map() == {"a": 1, "b": 0, "c": 1}
        oracle = tables_of(model).oracle
        assert oracle.maximum(tables_of(model).potentials) == pytest.approx(np.log(0.7 * 0.6))


@given(problems(most=5), st.integers(0, 10**6))
def test_factored_queries_against_the_kronecker_product(problem: Problem, seed: int) -> None:
    if not problem.possible():
        return
    rng = np.random.default_rng(seed)
    queries = [random_query(problem, rng) for _ in range(3)]
    queries.append(FactoredQuery({n: 2 * q for n, q in queries[0].factors.items()}))
    model = problem.model(90.0)
    together = model.answer(queries)
    for query, answer in zip(queries, together, strict=True):
        expected = explicit_answer(problem, query, 90.0)
        assert answer.shape == query.shape
        np.testing.assert_allclose(answer, expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(model.answer(query), expected, rtol=1e-9, atol=1e-9)


@given(problems(most=5), st.integers(0, 10**6))
def test_large_sparse_matrices_against_the_kronecker_product(problem: Problem, seed: int) -> None:
    """Matrices that are not written out are multiplied last; here a matrix of two cells is large
    enough. Answers of several models come from the same code.
    """
    if not problem.possible():
        return
    rng = np.random.default_rng(seed)
    asked = random_query(problem, rng)
    sparse = {
        n: scipy.sparse.csr_array(f) if rng.random() < 0.7 else f for n, f in asked.factors.items()
    }
    query, models = FactoredQuery(sparse), [problem.model(90.0), problem.model(90.0)]
    expected = explicit_answer(problem, asked, 90.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pgmkit.inference.variable_elimination.TABLE_CELLS", 1)
        patch.setattr("pgmkit.inference.model_tables.MOST_CELLS", 0)
        for answer in [models[0].answer(query), *BatchedAnswers(models).answer(query)]:
            np.testing.assert_allclose(answer, expected, rtol=1e-9, atol=1e-9)


def test_the_marginal_of_many_codes_needs_no_square_matrix() -> None:
    """The identity of 6000 codes has 288 MB."""
    domain = Domain({"a": 6000, "b": 2})
    counts = np.random.default_rng(0).integers(1, 9, 6000).astype(float)
    noisy = [Measurement(("a",), counts, 1.0), Measurement(("b",), [counts.sum() / 2] * 2, 1.0)]
    model = estimate(domain, noisy, total=float(counts.sum()))
    bars, tables = error_bars(model, noisy, replicates=20, seed=0), MeasuredBars(model, noisy)
    tracemalloc.start()
    for of_a in (bars, tables):
        np.testing.assert_allclose(of_a.marginal(["a"]).estimate, counts, rtol=1e-9)
    pairs = bars.marginal(["b", "a"]).estimate
    np.testing.assert_allclose(pairs, np.tile(counts / 2, (2, 1)), rtol=1e-9)
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()


def test_an_answer_from_a_table_copies_no_matrix() -> None:
    """That of 250 cumulative counts has 500 KB."""
    model = GraphicalModel(Domain({"a": 250}), (), total=250.0)
    query = FactoredQuery({"a": prefix(250)})
    model.answer(query)
    tracemalloc.start()
    np.testing.assert_allclose(model.answer(query), np.arange(1, 251))
    assert tracemalloc.get_traced_memory()[1] < 250e3
    tracemalloc.stop()


@pytest.mark.parametrize("name", ["*", ">", ">b", ">>b", ">*"])
def test_any_string_names_an_attribute(name: str) -> None:
    """The axes that answering adds to a model's are named like none of its attributes."""
    domain = Domain({name: 2, "b": 2})
    problem = random_problem(domain, [(name, "b")], 0, 1.0)
    queries = [FactoredQuery({"b": np.eye(2) * i, name: np.eye(2)}) for i in (1, 2, 3)]
    for asked in ([queries[0]], queries):
        for query, answer in zip(asked, problem.model(9.0).answer(asked), strict=True):
            np.testing.assert_allclose(answer, explicit_answer(problem, query, 9.0), rtol=1e-12)


@pytest.mark.parametrize("name", CLIQUE_SETS)
def test_building_blocks_on_every_kind_of_clique_set(name: str) -> None:
    problem = random_problem(FIVE, CLIQUE_SETS[name], 0, 3.0)
    model = problem.model(1000.0)
    for query in [
        FactoredQuery({"e": prefix(3), "c": identity(4)}),
        FactoredQuery({"c": moments(4, 2), "a": [1.0, -1.0]}),
        FactoredQuery({"b": range_(3, 1, 2), "c": subset(4, [0, 3]), "d": identity(1)}),
        FactoredQuery({}),
    ]:
        expected = explicit_answer(problem, query, 1000.0)
        np.testing.assert_allclose(model.answer(query), expected, rtol=1e-10, atol=1e-8)


def test_one_wide_query_never_forms_the_joint() -> None:
    """60 attributes: the parity of all of them, against a product of 2 x 2 matrices."""
    rng = np.random.default_rng(0)
    names = [f"x{i}" for i in range(60)]
    domain = Domain(dict.fromkeys(names, 2))
    tables = [rng.normal(size=(2, 2)) for _ in range(59)]
    factors = tuple(
        Factor(domain.project(names[i : i + 2]), table) for i, table in enumerate(tables)
    )
    sign = np.array([1.0, -1.0])
    signed, plain = sign.copy(), np.ones(2)
    log_ratio_scale = 0.0
    for table in tables:
        signed = (signed @ np.exp(table)) * sign
        plain = plain @ np.exp(table)
        scale = plain.sum()
        signed, plain = signed / scale, plain / scale
        log_ratio_scale += np.log(scale)
    model = GraphicalModel(domain, factors, total=1.0)
    answer = model.answer(FactoredQuery({name: [1.0, -1.0] for name in names}))
    assert float(answer.squeeze()) == pytest.approx(signed.sum() / plain.sum(), rel=1e-9)
    assert model.log_partition == pytest.approx(log_ratio_scale, rel=1e-12)


def test_samples_follow_the_model() -> None:
    problem = random_problem(FIVE, CLIQUE_SETS["cycle of five"], 1, 1.5)
    model = problem.model(10.0)
    joint = problem.joint()
    law = joint.astype(np.float64)
    for method in ("round", "sample"):
        data = model.sample(200_000, rng=np.random.default_rng(0), method=method)
        assert len(data) == 200_000
        counts = data.marginal(FIVE.attributes)
        if method == "sample":
            assert_follows(counts, law)
        else:  # less spread than independent draws
            assert_no_more_spread(counts, law)


def test_contradicting_zeros_are_refused() -> None:
    problem = random_problem(FIVE, CLIQUE_SETS["triangle"], 0, 1.0)
    problem.potentials[0][...] = -np.inf
    with pytest.raises(NumericalFailure, match="structural zeros"):
        problem.model().marginal(["a"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_save_and_load(tmp_path: Path, dtype: torch.dtype) -> None:
    problem = random_problem(FIVE, CLIQUE_SETS["cycle beside a chain"], 2, 2.0, zeros=0.1)
    factors = tuple(
        Factor(FIVE.project(c), torch.as_tensor(t).to(dtype).requires_grad_())  # as torch fits them
        for c, t in zip(problem.cliques, problem.potentials, strict=True)
    )
    model = GraphicalModel(FIVE, factors, 77.0, loss=1.5, gap=0.25, iterations=9, stopped="why")
    path = tmp_path / "m.pgm"
    model.save(path)
    loaded = GraphicalModel.load(path)
    assert loaded.domain == model.domain and loaded.cliques == model.cliques
    record = (loaded.total, loaded.loss, loaded.gap, loaded.iterations, loaded.stopped)
    assert record == (77.0, 1.5, 0.25, 9, "why")
    for old, new in zip(model.potentials, loaded.potentials, strict=True):
        assert new.values.dtype == dtype and torch.equal(old.values, new.values)
    assert [p.name for p in tmp_path.iterdir()] == ["m.pgm"]
    with zipfile.ZipFile(path) as archive:
        assert not any(b"pickle" in archive.read(name) for name in archive.namelist())


def test_other_files_are_refused(tmp_path: Path) -> None:
    names = ("text", "pickled", "v", "foreign", "release")
    text, pickled, version, foreign, release = (tmp_path / name for name in names)
    with zipfile.ZipFile(release, "w") as archive:
        archive.writestr("release.json", "{}")
    text.write_text("age,sex\n1,2\n")
    np.savez(pickled, header=np.array([{"a": 1}], dtype=object))
    pickled = pickled.with_suffix(".npz") if not pickled.exists() else pickled
    buffer = io.BytesIO()
    np.savez(buffer, header=np.array(json.dumps({"version": 99, "cliques": []})))
    version.write_bytes(buffer.getvalue())
    buffer = io.BytesIO()
    np.savez(buffer, something=np.arange(3))
    foreign.write_bytes(buffer.getvalue())
    for path, message in [
        (text, "not a model file"),
        (pickled, "not a model file"),
        (version, "format version 99"),
        (foreign, "not a model file"),
        (release, "a release is read by TableRelease.load"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            GraphicalModel.load(path)
    with pytest.raises(FileNotFoundError):
        GraphicalModel.load(tmp_path / "missing")


def test_bad_questions() -> None:
    model = random_problem(FIVE, CLIQUE_SETS["chain"], 0, 1.0).model()
    for attrs, message in [("a", "string"), (("a", "z"), "'z'"), (("a", "a"), "twice")]:
        with pytest.raises(InvalidInput, match=message):
            model.marginal(attrs)
    with pytest.raises(InvalidInput, match="FactoredQuery"):
        model.answer([{"a": [1.0, 1.0]}])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="3"):
        model.answer(FactoredQuery({"a": np.eye(3)}))
    wide = Domain({f"x{i}": 1000 for i in range(8)})
    one = GraphicalModel(wide, (Factor(wide.project(["x0"]), np.zeros(1000)),), 1.0)
    with pytest.raises(ModelTooLarge):
        one.marginal([f"x{i}" for i in range(6)])
    with pytest.raises(ModelTooLarge, match="cells"):
        one.answer(FactoredQuery({f"x{i}": identity(1000) for i in range(6)}))


def test_queries_that_are_too_many_are_refused_before_their_matrices_are_joined() -> None:
    domain = Domain({"a": 200, "b": 2})
    values = torch.zeros(200, 2, dtype=torch.float32)
    model = GraphicalModel(domain, (Factor(domain, values),), 1.0, memory_limit=1 << 20)
    query = FactoredQuery({"a": identity(200)})
    model.answer(query)
    tracemalloc.start()
    with pytest.raises(ModelTooLarge, match="1000 queries"):
        model.answer([query] * 1000)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_queries_over_more_attributes_than_an_array_has_axes() -> None:
    """A chain of 100 attributes: two keep their axes, against a product of 2 x 2 matrices."""
    rng = np.random.default_rng(0)
    domain = Domain({f"x{i}": 2 for i in range(100)})
    names = domain.attributes
    tables = [rng.normal(size=(2, 2)) for _ in range(99)]
    factors = tuple(Factor(domain.project(names[i : i + 2]), t) for i, t in enumerate(tables))
    model = GraphicalModel(domain, factors, total=10.0)
    steps = [np.exp(table) for table in tables]
    whole = reduce(np.matmul, [np.ones(2), *steps, np.ones(2)])

    def expected(rows: dict[str, np.ndarray], x7: np.ndarray, x50: np.ndarray) -> float:
        weights = [np.diag(np.ravel(rows[name])) for name in names]
        weights[7], weights[50] = np.diag(x7), np.diag(x50)
        links = [link for pair in zip(weights, [*steps, np.eye(2)], strict=True) for link in pair]
        return float(reduce(np.matmul, [np.ones(2), *links, np.ones(2)]) / whole * 10.0)

    queries = []
    for _ in range(2):
        rows = {name: rng.uniform(0.5, 1.5, (1, 2)) for name in names}
        rows["x7"], rows["x50"] = rng.normal(size=(3, 2)), rng.normal(size=(2, 2))
        queries.append(FactoredQuery(rows))
    for query, answer in zip(queries, model.answer(queries), strict=True):
        assert query.shape == tuple({7: 3, 50: 2}.get(i, 1) for i in range(100))
        assert answer.shape == query.answer_shape == (3, 2)
        parts = {name: np.asarray(factor) for name, factor in query.factors.items()}
        by_hand = [[expected(parts, a, b) for b in parts["x50"]] for a in parts["x7"]]
        np.testing.assert_allclose(answer, by_hand, rtol=1e-9)
        np.testing.assert_allclose(model.answer(query), by_hand, rtol=1e-9)
    assert model.answer(FactoredQuery({name: [1.0, 1.0] for name in names})) == pytest.approx(10.0)
    with pytest.raises(ModelTooLarge, match="cells"):
        model.answer(FactoredQuery({name: identity(2) for name in names}))


@pytest.mark.parametrize("attributes", [63, 64])
def test_the_most_axes_that_an_array_has(attributes: int) -> None:
    domain = Domain({f"x{i}": 2 for i in range(70)})
    model = GraphicalModel(domain, (), 8.0)
    rows = {name: [[1.0, 0.0]] for name in domain.attributes[:3]}
    query = FactoredQuery(rows | {name: [1.0, 1.0] for name in domain.attributes[3:attributes]})
    for answer in (model.answer(query), *model.answer([query, query])):
        assert answer.shape in ((1,) * attributes, ())  # () before numpy 2
        assert answer.shape == query.answer_shape and answer.sum() == pytest.approx(1.0)


class TestUniform:
    """A model without potentials, against the table of equal cells."""

    model = GraphicalModel(FIVE, (), 36.0)

    def test_marginals(self) -> None:
        assert self.model.cliques == () and "0 cliques" in repr(self.model)
        asked = [(), ["e", "a"], ("b",), FIVE.attributes]
        for clique, table in self.model.marginals(asked).items():
            assert table.shape == FIVE.shape(clique)
            np.testing.assert_allclose(table, 36.0 / FIVE.size(clique), rtol=1e-12)
        np.testing.assert_allclose(self.model.marginal(["b", "a"]), np.full((3, 2), 6.0))
        assert self.model.log_partition == pytest.approx(np.log(FIVE.size()), rel=1e-12)

    def test_answers(self) -> None:
        query = FactoredQuery({"b": prefix(3), "e": [0.0, -1.0, 5.0]})
        expected = 4.0 * np.cumsum(np.ones(3))[:, None] * 4.0
        np.testing.assert_allclose(self.model.answer(query), expected, rtol=1e-12)
        np.testing.assert_allclose(self.model.answer([FactoredQuery({})]), [36.0])

    def test_given(self) -> None:
        narrowed = replace(self.model, loss=3.0, certified=True).given({"b": [0, 2], "c": 1})
        assert narrowed.total == pytest.approx(36.0 * 2 / 3 / 4)
        assert (narrowed.loss, narrowed.certified, narrowed.stopped) == (0.0, False, "conditioned")
        np.testing.assert_allclose(narrowed.marginal(["b"]), [3.0, 0.0, 3.0])
        np.testing.assert_allclose(self.model.given({}).marginal(["e"]), [12.0, 12.0, 12.0])

    def test_records(self) -> None:
        assert list(self.model.map()) == list(FIVE)
        columns = self.model.sample(36, rng=0).columns
        for name, size in FIVE.sizes.items():
            assert np.bincount(columns[name], minlength=size).tolist() == [36 // size] * size

    def test_save_and_load(self, tmp_path: Path) -> None:
        self.model.save(tmp_path / "uniform.npz")
        loaded = GraphicalModel.load(tmp_path / "uniform.npz")
        assert (loaded.domain, loaded.potentials, loaded.total) == (FIVE, (), 36.0)
        np.testing.assert_array_equal(loaded.marginal(["a"]), self.model.marginal(["a"]))


def test_attributes_in_no_potential_are_uniform() -> None:
    model = random_problem(FIVE, [("c",)], 0, 1.0).model(12.0)
    np.testing.assert_allclose(model.marginal(["e", "a"]), np.full((3, 2), 2.0))


AB = Domain({"a": 2, "b": 3})


def over(sizes: dict[str, int], value: float = 0.0) -> Factor:
    return Factor(Domain(sizes), np.full(tuple(sizes.values()), value))


@pytest.mark.parametrize(
    ("potentials", "message"),
    [
        ([over({"b": 3}), over({"a": 3})], r"potentials\[1\] over \('a',\) has 3 .* 2 values"),
        ([over({"a": 2, "z": 2})], r"potentials\[0\] over \('a', 'z'\) .*unknown.*'z'"),
        ([over({"a": 2}, np.nan)], r"potentials\[0\] over \('a',\) holds nan at the cell \(0,\)"),
        ([over({"a": 2}, np.inf)], r"potentials\[0\] over \('a',\) holds inf"),
        (
            [over({"a": 2}), Factor(AB, [[0, 0, -np.inf], [0, np.inf, np.nan]])],
            r"potentials\[1\] over \('a', 'b'\) holds inf at the cell \(1, 1\)",
        ),
        ([np.zeros(2)], r"potentials\[0\] must be a pgmkit Factor, got ndarray"),
        (over({"a": 2}), "potentials must be a sequence of factors"),
        (
            [over({"a": 2}), Factor(AB.project(["b"]), torch.zeros(3))],
            r"potentials\[1\] over \('b',\) is torch.float32",
        ),
    ],
)
def test_potentials_that_do_not_fit_are_refused(potentials: Sequence[Factor], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        GraphicalModel(AB, potentials, 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("total", [0.0, -1.0, np.nan, np.inf, True, "10", None])
def test_totals_that_are_no_number_of_records_are_refused(total: object) -> None:
    with pytest.raises(InvalidInput, match="total must be a finite number above 0"):
        GraphicalModel(AB, (), total)  # type: ignore[arg-type]


def test_what_a_model_takes() -> None:
    """Minus infinity, lists of factors, and any real number as the total."""
    possible = Factor(AB.project(["b"]), [0.0, -np.inf, 0.0])
    model = GraphicalModel(AB, [possible], np.int64(4))  # type: ignore[arg-type]
    np.testing.assert_allclose(model.marginal(["b"]), [2.0, 0.0, 2.0])
    assert isinstance(model.total, float) and model.potentials == (possible,)
    with pytest.raises(InvalidInput, match="must be a pgmkit Domain"):
        GraphicalModel({"a": 2}, (), 1.0)  # type: ignore[arg-type]


def test_a_part_of_the_records_is_at_most_all_and_may_be_the_least_total(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All codes of an attribute in no potential change the rounding, as on seed 5 upwards."""
    least = TINY / EPSILON
    assert GraphicalModel(AB, (), least).given({}).total == least
    monkeypatch.setattr(model_tables, "MOST_CELLS", 0)
    domain = Domain({"a": 3, "b": 3, "c": 7})
    for seed in range(9):
        table = np.random.default_rng(seed).normal(size=(3, 3)) * 3
        model = GraphicalModel(domain, (Factor(domain.project(["a", "b"]), table),), 10.0)
        total = model.given({"c": range(7)}).total
        assert total <= 10.0 and total == pytest.approx(10.0)


def test_records_need_the_memory_of_the_tree() -> None:
    factors = tuple(over({"a": 90, name: 90}) for name in "bc")
    domain = Domain({"a": 90, "b": 90, "c": 90})
    model = GraphicalModel(domain, factors, 1.0, memory_limit=100_000)
    for draw in (lambda: model.sample(10), lambda: model.sample_in_parts(10, 5)):
        with pytest.raises(ModelTooLarge, match="junction tree takes 129,600 bytes"):
            draw()


@pytest.mark.parametrize("most", [model_tables.MOST_CELLS, 0])
def test_each_marginal_comes_once(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(model_tables, "MOST_CELLS", most)
    asked = [("a",), ["b", "c"], ("a",), ("b", "c"), ("d", "a")]
    model = random_problem(FIVE, CLIQUE_SETS["chain"], 0, 1.0).model()
    assert sorted(c for c, _ in model.each_marginal(asked)) == [("a",), ("b", "c"), ("d", "a")]


def test_figures_of_a_file_have_their_types(tmp_path: Path) -> None:
    header = dict(domain=[["a", 2]], cliques=[], gap=None, total=4, loss=1, unit=2)
    figures = dict(certified=1, iterations=7.0, stopped=None)
    write_container(tmp_path / "m", FORMAT, header | figures, {})
    read = GraphicalModel.load(tmp_path / "m")
    assert repr((read.total, read.certified, read.iterations, read.stopped)) == (
        "(4.0, True, 7, 'None')"
    )
    for name in ("total", "loss", "gap", "unit"):
        write_container(tmp_path / "m", FORMAT, header | figures | {name: "3"}, {})
        with pytest.raises(InvalidInput, match=f"{name} must be"):
            GraphicalModel.load(tmp_path / "m")


def test_a_file_from_before_certificates_is_read(tmp_path: Path) -> None:
    header = dict(domain=[["a", 2]], cliques=[], gap=None, total=4, loss=1)
    write_container(tmp_path / "m", FORMAT, header | dict(iterations=7, stopped="early"), {})
    read = GraphicalModel.load(tmp_path / "m")
    assert read.unit == 1.0 and read.certified is False


def test_what_a_model_says_of_its_search_and_its_zeros() -> None:
    table = [[0.0, -np.inf, 0.0], [0.0, 0.0, 0.0]]
    factors = (over({"a": 2}), Factor(AB, table))
    model = GraphicalModel(AB, factors, 5.0, loss=5.0, gap=3.0, unit=2.0, stopped="time")
    assert model.bound == 2.0 and model.poor_fit
    for fine in ({"certified": True}, {"gap": 2.0}, {"gap": np.inf}):
        assert not replace(model, **fine).poor_fit
    (zeros,) = model.structural_zeros
    assert zeros.clique == ("a", "b") and (zeros.allowed == np.isfinite(table)).all()


def test_attributes_of_one_value_beside_those_without_a_potential() -> None:
    domain = Domain({"a": 3, "b": 1, "c": 1, "d": 2, "e": 1})
    potentials = [Factor(domain.project((name,)), np.zeros(1)) for name in ("e", "b")]
    model = GraphicalModel(domain=domain, potentials=tuple(potentials), total=6.0)
    np.testing.assert_allclose(model.marginal(domain.attributes), np.ones((3, 1, 1, 2, 1)))


def test_attributes_of_no_potential_count_in_the_log_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the route of large models: log Z = log(1 + 2 + 3 + 4) + log 3 + log 5."""
    monkeypatch.setattr(model_tables, "MOST_CELLS", 0)
    domain = Domain({"a": 2, "b": 2, "c": 3, "d": 5})
    pair = Factor(domain.project(["a", "b"]), np.log([[1.0, 2.0], [3.0, 4.0]]))
    model = GraphicalModel(domain, (pair,), total=1.0)
    assert model.log_partition == pytest.approx(np.log(10 * 3 * 5), rel=1e-12)


@pytest.mark.parametrize(
    ("height", "dtype", "refused"),
    [
        (665.0, torch.float64, False),
        (700.0, torch.float64, True),
        (65.0, torch.float32, False),
        (80.0, torch.float32, True),
    ],
)
def test_conditions_of_hardly_any_records_are_answered_or_refused(
    height: float, dtype: torch.dtype, refused: bool
) -> None:
    """Counts below 2.2e-308 (exp(-708)) have fewer digits, and may sum to nothing; in float32 those
    below exp(-87). They are lost in a total that is 2^52 times as large, in float32 2^23 times.
    """
    domain = Domain({"a": 2, "b": 30})
    table = np.stack([np.zeros(30), np.linspace(0.0, -3.0, 30) - height])
    model = GraphicalModel(domain, (Factor(domain, torch.tensor(table, dtype=dtype)),), total=1.0)
    if not refused:
        law = np.exp(table[1]) / 30
        np.testing.assert_allclose(model.given({"a": 1}).marginal(["b"]), law, rtol=1e-4)
    else:
        with pytest.raises(InvalidInput, match="no records with"):
            model.given({"a": 1})
