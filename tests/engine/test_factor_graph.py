"""Factor graphs against the joint written out, and against pgmpy."""

import gc
import itertools
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from chance import FALSE_ALARM, p_value
from numpy.typing import NDArray
from seams import kept_by

from pgmkit import (
    Dataset,
    Domain,
    Factor,
    FactorGraph,
    GraphicalModel,
    InvalidInput,
    ModelTooLarge,
)
from pgmkit.conditioning.evidence_marginals import EvidenceMarginals
from pgmkit.conditioning.graph_tables import CELLS_OF_A_TABLE
from pgmkit.conditioning.message_passing import Messages

Array = NDArray[np.float64]
Tables = list[tuple[tuple[str, ...], Array]]


def random_graph(seed: int) -> tuple[FactorGraph, Tables]:
    """A Bayesian network or tables with zeros, over up to seven attributes."""
    rng = np.random.default_rng(seed)
    names = [f"v{i}" for i in rng.permutation(int(rng.integers(1, 8)))]
    sizes = {name: int(rng.integers(1, 4)) for name in names}
    if seed % 2:
        return random_potentials(rng, sizes)
    tables = {}
    for place, name in enumerate(names):
        count = min(place, int(rng.integers(0, 4)))
        parents = [str(p) for p in rng.choice(names[:place], count, replace=False)] if count else []
        law = rng.dirichlet(np.full(sizes[name], 0.5), size=[sizes[p] for p in parents])
        tables[name] = ((name, *parents), np.moveaxis(law, -1, 0))
    listed = {str(name): tables[name] for name in rng.permutation(names)}
    return FactorGraph.from_conditionals(listed), list(tables.values())


def random_potentials(
    rng: np.random.Generator, sizes: Mapping[str, int]
) -> tuple[FactorGraph, Tables]:
    tables: Tables = []
    for _ in range(int(rng.integers(0, 8))):
        count = int(rng.integers(0, min(len(sizes), 3) + 1))
        clique = tuple(str(name) for name in rng.choice(list(sizes), count, replace=False))
        shape = [sizes[name] for name in clique]
        scale = 10.0 ** rng.integers(-5, 5)
        values = scale * rng.exponential(size=shape) * (rng.random(shape) > 0.1)
        tables.append((clique, np.asarray(values)))
    return FactorGraph(Domain(dict(sizes)), tables), tables


def written_out(domain: Domain, tables: Tables) -> Array:
    joint = np.ones(domain.shape())
    for clique, table in tables:
        joint = joint * spread(domain, clique, table)
    return joint


def spread(domain: Domain, clique: Sequence[str], table: Array) -> Array:
    held = [name for name in domain if name in clique]
    ordered = np.asarray(table).transpose([list(clique).index(name) for name in held])
    return ordered.reshape([size if n in clique else 1 for n, size in domain.sizes.items()])


def random_evidence(
    rng: np.random.Generator, domain: Domain
) -> tuple[dict[str, int], dict[str, Array]]:
    codes = {n: int(rng.integers(size)) for n, size in domain.sizes.items() if rng.random() < 0.3}
    soft = {n: rng.random(size) for n, size in domain.sizes.items() if rng.random() < 0.15}
    return codes, soft


def weighed(
    joint: Array, domain: Domain, codes: Mapping[str, int], soft: Mapping[str, Array]
) -> Array:
    for name, code in codes.items():
        joint = joint * spread(domain, [name], np.eye(domain.sizes[name])[code])
    for name, weights in soft.items():
        joint = joint * spread(domain, [name], weights)
    return joint


def summed(joint: Array, domain: Domain, clique: Sequence[str]) -> Array:
    away = tuple(axis for axis, name in enumerate(domain) if name not in clique)
    held = [name for name in domain if name in clique]
    return joint.sum(away).transpose([held.index(name) for name in clique])


@pytest.mark.parametrize(
    "route", ["trees", "trees apart", "trees by matrices", "what is relevant", "the graph"]
)
@pytest.mark.parametrize(
    "block", [*range(5), *(pytest.param(each, marks=pytest.mark.slow) for each in range(5, 10))]
)
def test_every_answer_is_that_of_the_joint_written_out(
    block: int, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By elimination trees, or with the joint of the relevant or of all attributes."""
    if route == "trees apart":
        part_all_questions(monkeypatch)
        monkeypatch.setattr("pgmkit.conditioning.evidence_marginals.OWN_TREE", 0)
    monkeypatch.setattr("pgmkit.conditioning.modes.CACHE_CELLS", 2 * block)
    if route == "trees by matrices":
        monkeypatch.setattr("pgmkit.conditioning.kernels.FEW_CELLS", 0)
    if route == "what is relevant":
        monkeypatch.setattr("pgmkit.conditioning.graph_tables.is_small", lambda *_: False)
    cells = 0 if route.startswith("trees") else 1 << 10
    monkeypatch.setattr("pgmkit.conditioning.joint.MOST_CELLS", cells)
    for seed in range(20 * block, 20 * block + 20):
        graph, tables = random_graph(seed)
        joint = written_out(graph.domain, tables)
        rng = np.random.default_rng(seed + 1000)
        for _ in range(2):  # one graph: orders and plans of the first evidence serve the second
            check_posterior(graph, joint, rng)


@pytest.mark.parametrize("attributes", [40, 90])
def test_more_attributes_with_one_value_than_a_table_has_axes(attributes: int) -> None:
    domain = Domain({f"x{i}": 1 for i in range(attributes)} | {"a": 2, "b": 2})
    pairs = list(itertools.pairwise(domain.attributes))
    rng = np.random.default_rng(0)
    graph = FactorGraph(domain, [(pair, rng.random(domain.shape(pair))) for pair in pairs])
    last = graph.tables[-1][1] * graph.tables[-2][1].T
    expected = last / last.sum()
    for _ in range(2):  # the second answer has what the first one prepared
        np.testing.assert_allclose(graph.posterior().marginal(("a", "b")), expected, rtol=1e-12)
        given = graph.posterior({"b": 1}).marginals()
        np.testing.assert_allclose(given[("a",)], expected[:, 1] / expected[:, 1].sum(), rtol=1e-12)
    assert graph.posterior({"a": 0, "b": 1}).marginals()[("x0",)] == 1


def part_all_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer them by trees of their own wherever these have fewer tables."""
    monkeypatch.setattr("pgmkit.conditioning.evidence_marginals.LARGE_PASS", 0)
    monkeypatch.setattr("pgmkit.conditioning.evidence_marginals.MOSTLY_CELLS", 0)
    work = property(lambda cost: 2.0 ** (cost.tables / CELLS_OF_A_TABLE))
    monkeypatch.setattr("pgmkit.conditioning.evidence_marginals.Cost.work", work)


def check_posterior(graph: FactorGraph, joint: Array, rng: np.random.Generator) -> None:
    domain = graph.domain
    codes, soft = random_evidence(rng, domain)
    weights = weighed(joint, domain, codes, soft)
    posterior = graph.posterior(codes, soft)
    if weights.sum() == 0:
        asks = [posterior.marginals, posterior.map, posterior.max_marginals, posterior.entropy]
        asks += [lambda: posterior.log_partition, lambda: posterior.sample(3, rng=0)]
        for ask in asks:
            with pytest.raises(InvalidInput, match="zero|no record possible"):
                ask()
        return
    drawn = posterior.sample(3, rng=rng)
    assert (weights[tuple(drawn.columns[name] for name in domain)] > 0).all()
    names = list(domain)
    sets = [
        tuple(
            str(n) for n in rng.choice(names, int(rng.integers(0, len(names) + 1)), replace=False)
        )
        for _ in range(5)
    ]
    law = weights / weights.sum()
    for clique, found in posterior.marginals([*sets, *((n,) for n in names)]).items():
        np.testing.assert_allclose(found, summed(law, domain, clique), atol=1e-11)
    assert posterior.log_partition == pytest.approx(np.log(weights.sum()), abs=1e-9)
    assert posterior.probability == pytest.approx(weights.sum() / joint.sum(), rel=1e-9)
    present = law[law > 0]
    assert posterior.entropy() == pytest.approx(-(present * np.log(present)).sum(), abs=1e-9)
    record, score = posterior.map()
    assert score == pytest.approx(np.log(weights.max()), abs=1e-9)
    cell = tuple(record[name] for name in domain)
    assert weights[cell] == pytest.approx(weights.max(), rel=1e-9)
    for axis, found in enumerate(posterior.max_marginals().values()):
        away = tuple(other for other in range(len(names)) if other != axis)
        np.testing.assert_allclose(np.exp(found), weights.max(away), rtol=1e-9, atol=0)


@pytest.mark.parametrize("seed", range(30))
def test_divergence_and_likelihood(seed: int) -> None:
    graph, tables = random_graph(2 * seed)
    rng = np.random.default_rng(seed)
    other = FactorGraph(graph.domain, [(c, rng.exponential(size=t.shape)) for c, t in tables[::2]])
    p = written_out(graph.domain, tables)
    q = written_out(graph.domain, list(other.tables))
    q = q / q.sum()
    inside = p > 0
    expected = (p[inside] * np.log(p[inside] / q[inside])).sum()
    assert graph.divergence(other) == pytest.approx(expected, abs=1e-9)
    columns = {name: rng.integers(size, size=50) for name, size in graph.domain.sizes.items()}
    data = Dataset(graph.domain, columns)
    with np.errstate(divide="ignore"):
        mean = np.log(q[tuple(columns.values())]).mean()
    assert other.expected_log_likelihood(data) == pytest.approx(mean, abs=1e-9)


def test_draws_follow_the_posterior() -> None:
    graph, tables = random_graph(4)
    name = next(n for n, size in graph.domain.sizes.items() if size > 1)
    code = int(np.argmax(graph.posterior().marginal([name])))
    law = weighed(written_out(graph.domain, tables), graph.domain, {name: code}, {})
    drawn = graph.posterior({name: code}).sample(20_000, rng=0)
    assert (drawn.columns[name] == code).all()
    counts = np.asarray(drawn.marginal(tuple(graph.domain)))
    assert p_value(counts, law) > FALSE_ALARM


def test_what_underflows_in_plain_numbers() -> None:
    """A chain of 600 observations of probability 1e-4, and potentials of 1e-200 and 1e200."""
    length = 600
    tables = {"h0": (("h0",), [0.5, 0.5])}
    for i in range(1, length):
        tables[f"h{i}"] = ((f"h{i}", f"h{i - 1}"), [[0.9, 0.2], [0.1, 0.8]])
    for i in range(length):
        tables[f"y{i}"] = ((f"y{i}", f"h{i}"), [[1e-4, 2e-4], [0.9999, 0.9998]])
    graph = FactorGraph.from_conditionals(tables)
    posterior = graph.posterior({f"y{i}": 0 for i in range(length)})
    law = np.array([0.5, 0.5])
    log_sum = 0.0
    for i in range(length):
        law = law if i == 0 else np.array([[0.9, 0.2], [0.1, 0.8]]) @ law
        law = law * [1e-4, 2e-4]
        log_sum += np.log(law.sum())
        law /= law.sum()
    assert posterior.log_partition == pytest.approx(log_sum, rel=1e-12)
    np.testing.assert_allclose(posterior.marginal([f"h{length - 1}"]), law, rtol=1e-9)
    domain = Domain({"a": 2, "b": 2})
    wide = FactorGraph(
        domain,
        [(("a", "b"), [[1e-200, 0], [0, 1e200]]), (("a",), [1e200, 1e-200]), (("b",), [1, 1])],
    )
    np.testing.assert_allclose(wide.posterior().marginal(["b"]), [0.5, 0.5])


def test_distant_attributes_of_a_long_chain() -> None:
    rng = np.random.default_rng(0)
    step = rng.dirichlet(np.ones(3), size=3).T
    tables = {"x0": (("x0",), np.full(3, 1 / 3))}
    tables |= {f"x{i}": ((f"x{i}", f"x{i - 1}"), step) for i in range(1, 2000)}
    posterior = FactorGraph.from_conditionals(tables).posterior()
    first = np.linalg.matrix_power(step, 5) @ np.full(3, 1 / 3)
    expected = np.linalg.matrix_power(step, 1994) * first
    np.testing.assert_allclose(posterior.marginal(["x1999", "x5"]), expected, atol=1e-12)
    # An attribute between two others stays in the table.
    near, far = np.linalg.matrix_power(step, 4) * first, np.linalg.matrix_power(step, 5)
    expected = far[:, :, None] * near
    found = posterior.marginal(["x14", "x9", "x5"])
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_networks_of_another_library(seed: int) -> None:
    pytest.importorskip("pgmpy", reason="the comparison needs pgmpy; install the extra 'test'")
    from pgmpy.inference import VariableElimination

    from pgmkit.bif import to_pgmpy

    graph, _ = random_graph(2 * seed + 100)
    rng = np.random.default_rng(seed)
    record = graph.posterior().sample(1, rng=rng)
    names = list(graph.domain)
    evidence = {n: int(record.columns[n][0]) for n in names[: len(names) // 3]}
    engine = VariableElimination(to_pgmpy(graph))
    for name in names:
        if name in evidence:
            continue
        theirs = engine.query(
            [name], evidence={n: str(c) for n, c in evidence.items()}, show_progress=False
        )
        ours = graph.posterior(evidence).marginal([name])
        np.testing.assert_allclose(ours, theirs.values, atol=1e-10)


def sprinkler() -> FactorGraph:
    return FactorGraph.from_conditionals(
        {
            "rain": (("rain",), [0.8, 0.2]),
            "wet": (("wet", "rain"), [[1.0, 0.2], [0.0, 0.8]]),
        },
        states={"rain": ("no", "yes"), "wet": ("dry", "wet")},
    )


def test_evidence_of_probability_zero_is_named() -> None:
    with pytest.raises(InvalidInput, match="wet = wet is impossible given rain = no"):
        sprinkler().posterior({"rain": "no", "wet": "wet"}).marginals()


def test_impossible_evidence_where_less_of_it_does_not_fit() -> None:
    """A grid whose observed columns leave trees; a search for the first impossible observation
    with fewer columns observed was refused for lack of memory.
    """
    domain = Domain({f"x{i}{j}": 2 for i in range(10) for j in range(10)})
    down = [((f"x{i}{j}", f"x{i + 1}{j}"), np.eye(2)) for i in range(9) for j in range(10)]
    right = [((f"x{i}{j}", f"x{i}{j + 1}"), np.ones((2, 2))) for i in range(10) for j in range(9)]
    graph = FactorGraph(domain, down + right, memory_limit=9_000)
    evidence = {f"x{i}{j}": int(i == 9) for j in range(1, 10, 2) for i in range(10)}
    for ask in (lambda p: p.log_partition, lambda p: p.marginals(), lambda p: p.map()):
        with pytest.raises(InvalidInput, match="the evidence has probability zero: x01 = 0, x11"):
            ask(graph.posterior(evidence))


def test_a_graph_without_a_possible_record_does_not_blame_the_evidence() -> None:
    graph = FactorGraph(Domain({"a": 2, "b": 2}), [(("a",), [0, 0])])
    with pytest.raises(InvalidInput, match="tables of the graph leave no record possible"):
        graph.posterior({"b": 1}).map()


def test_an_answered_posterior_can_be_pickled() -> None:
    posterior = sprinkler().posterior({"wet": "wet"})
    before = posterior.marginal(["rain"])
    again = pickle.loads(pickle.dumps(posterior)).marginal(["rain"])
    np.testing.assert_array_equal(again, before)


def test_a_most_probable_record_and_refused_tables_have_names_of_states() -> None:
    record, _ = sprinkler().posterior({"rain": "yes"}).map()
    assert record == {"rain": "yes", "wet": "wet"}
    assert sprinkler().posterior(record).probability == pytest.approx(0.16)
    tables = {"rain": (["rain"], [0.8, 0.2]), "wet": (["wet", "rain"], [[1.0, 0.2], [0.0, 0.7]])}
    with pytest.raises(InvalidInput, match="distribution of 'wet' given rain = yes sums to 0.9"):
        FactorGraph.from_conditionals(tables, states={"rain": ("no", "yes")})


@pytest.mark.parametrize(
    ("evidence", "likelihood", "said"),
    [
        ({"snow": 1}, {}, "unknown attribute 'snow'"),
        ({"rain": "maybe"}, {}, "'rain' must be one of .* got 'maybe'"),
        ({"rain": 2}, {}, "an integer code 0..1, got 2"),
        ({"rain": True}, {}, "got True"),
        ({}, {"rain": [1.0]}, "2 non-negative numbers"),
        ({}, {"rain": [1.0, -1.0]}, "2 non-negative numbers"),
        ([("rain", 1)], {}, "must be a mapping"),
    ],
)
def test_bad_evidence(evidence: object, likelihood: object, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        sprinkler().posterior(evidence, likelihood)  # type: ignore[arg-type]


def test_codes_are_refused_where_a_code_of_one_state_names_another() -> None:
    def graph(*states: int) -> FactorGraph:
        return FactorGraph(Domain({"a": 3}), [(("a",), [1, 2, 3])], states={"a": states})

    assert graph(1, 2, 3).posterior({"a": 3}).probability == pytest.approx(3 / 6)
    assert graph(1990, 1991, 1992).posterior({"a": 2}).probability == pytest.approx(3 / 6)
    assert graph(0, 1, 5).posterior({"a": 2}).probability == pytest.approx(3 / 6)
    with pytest.raises(InvalidInput, match=r"'a' must be one of \[1, 2, 3\], got 0"):
        graph(1, 2, 3).posterior({"a": 0})


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        (
            {"a": (("a", "b"), np.full((2, 2), 0.5)), "b": (("b", "a"), np.full((2, 2), 0.5))},
            "cycle",
        ),
        ({"a": (("a",), [0.5, 0.6])}, "'a' sums to 1.1"),
        (
            {"b": (("b",), [0.5, 0.5]), "a": (("a", "b"), [[0.5, 0.5], [0.5, 0.4]])},
            "'a' given b = 1 sums to 0.9",
        ),
        ({"a": (("a",), [0.0, 0.0])}, "'a' is missing"),
        ({"a": (("a", "b"), [[0.5], [0.5]])}, "unknown attribute 'b'"),
        ({"a": (("b", "a"), [[0.5], [0.5]])}, "the variable first"),
        ({"a": (np.zeros((2, 2, 2)), [0.5, 0.5])}, "the variable first"),
        ({"a": (scipy.sparse.eye(1).tocsr(), [0.5, 0.5])}, "the variable first"),
        ({"a": (("a",), [1.5, -0.5])}, "negative"),
        ({"a": (("a",), [np.nan, 1.0])}, "NaN"),
        ({}, "must be a mapping"),
    ],
)
def test_what_is_no_bayesian_network(tables: object, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        FactorGraph.from_conditionals(tables)  # type: ignore[arg-type]


def test_tables_that_are_no_potentials() -> None:
    domain = Domain({"a": 2})
    for table, said in (([1.0, -1.0], "negative"), ([1.0], "shape"), ([1.0, np.inf], "infinity")):
        with pytest.raises(InvalidInput, match=said):
            FactorGraph(domain, [(("a",), table)])


def test_an_attribute_that_no_table_fits_is_refused() -> None:
    for size in (10**12, 10**5000):
        with pytest.raises(ModelTooLarge, match="attribute 'b' has more values than a table"):
            FactorGraph(Domain({"a": 2, "b": size}), [(("a",), [1.0, 1.0])])
    with pytest.raises(
        InvalidInput, match="memory_limit must be a whole number of bytes, 1 or more"
    ):
        FactorGraph(Domain({"a": 2}), [], memory_limit="1 GB")  # type: ignore[arg-type]


def best_of_grid(rows: int, columns: int, tables: Mapping[tuple[str, ...], Array]) -> float:
    """The best log weight of a binary grid, cell by cell over the states of one row."""
    best = np.zeros((2,) * columns)
    for i in range(rows):
        for j in range(columns):
            here, above = f"x{i}_{j}", f"x{i - 1}_{j}"
            moved = np.moveaxis(best, j, -1)[..., None]  # the value above, then that here
            moved = moved + (np.log(tables[above, here]) if i else np.zeros((2, 2)))
            best = np.moveaxis(moved.max(-2), -1, j)
            best = best + spread_along(np.log(tables[(here,)]), (j,), columns)
            if j:
                pair = np.log(tables[f"x{i}_{j - 1}", here])
                best = best + spread_along(pair, (j - 1, j), columns)
    return float(best.max())


def spread_along(table: Array, axes: Sequence[int], count: int) -> Array:
    return table.reshape([2 if axis in axes else 1 for axis in range(count)])


def test_records_of_a_wide_grid() -> None:
    """Maxima where the joint has 2^144 cells, with ties and impossible cells."""
    rng = np.random.default_rng(5)
    rows = columns = 12
    names = [[f"x{i}_{j}" for j in range(columns)] for i in range(rows)]
    tables: dict[tuple[str, ...], Array] = {}
    for i, j in np.ndindex(rows, columns):
        tables[(names[i][j],)] = rng.integers(1, 4, 2).astype(float)
        if i:
            tables[names[i - 1][j], names[i][j]] = rng.integers(0, 4, (2, 2)) + np.eye(2)
        if j:
            tables[names[i][j - 1], names[i][j]] = rng.integers(0, 4, (2, 2)) + np.eye(2)
    domain = Domain({name: 2 for row in names for name in row})
    with np.errstate(divide="ignore"):
        expected = best_of_grid(rows, columns, tables)
        posterior = FactorGraph(domain, tables.items()).posterior()
        record, best = posterior.map()
        assert best == pytest.approx(expected, abs=1e-9)
        cells = [np.log(t[tuple(record[n] for n in clique)]) for clique, t in tables.items()]
    assert sum(cells) == pytest.approx(expected, abs=1e-9)
    reached = posterior.max_marginals()
    for name, code in record.items():
        assert reached[name].max() == pytest.approx(expected, abs=1e-9)
        assert reached[name][code] == pytest.approx(expected, abs=1e-9)
    name = names[6][6]
    flipped = FactorGraph(domain, tables.items()).posterior({name: 1 - record[name]})
    assert flipped.map()[1] == pytest.approx(reached[name][1 - record[name]], abs=1e-9)


def test_observed_records_beyond_the_range_of_plain_numbers() -> None:
    """All attributes observed: the product of the potentials is 1e-10000."""
    names = [f"x{i}" for i in range(50)]
    pairs = zip(names, [*names[1:], names[0]], strict=True)
    domain = Domain(dict.fromkeys(names, 2))
    graph = FactorGraph(domain, [(pair, [[1e-200, 1.0], [1.0, 1.0]]) for pair in pairs])
    evidence = dict.fromkeys(names, 0)
    posterior = graph.posterior(evidence)
    assert posterior.log_partition == pytest.approx(-10000 * np.log(10))
    np.testing.assert_array_equal(posterior.marginal(["x3", "x4"]), [[1, 0], [0, 0]])
    assert posterior.entropy() == pytest.approx(0.0, abs=1e-9)
    assert posterior.map()[1] == pytest.approx(posterior.log_partition)
    for count in (2, 40):  # one by one; different records side by side
        columns = {n: [0] * count if n != "x0" else [i % 2 for i in range(count)] for n in names}
        many = graph.posteriors(columns)
        assert many.log_partition[0] == pytest.approx(posterior.log_partition)
        np.testing.assert_array_equal(many.marginal(["x0"])[:2], np.eye(2))


def test_an_earlier_split_does_not_keep_later_questions_from_calibration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pgmkit.conditioning.joint.MOST_CELLS", 0)
    names = [f"x{i}" for i in range(12)]
    rng = np.random.default_rng(0)
    tables = {name: ((name,), np.array([0.5, 0.5])) for name in (names[0], names[6])}
    for place in (1, 2, 3, 4, 5, 7, 8, 9, 10, 11):  # two chains that have nothing in common
        law = rng.dirichlet([1, 1], size=2).T
        tables[names[place]] = ((names[place], names[place - 1]), law)
    graph = FactorGraph.from_conditionals(tables)
    with monkeypatch.context() as split:
        part_all_questions(split)
        graph.posterior({names[0]: 0}).marginals()
    assert kept_by(graph).was_split
    for code in range(6):
        graph.posterior({names[code]: 1}).marginals()
    assert not kept_by(graph).was_split
    assert kept_by(graph).calibrated is not None


def test_a_marginal_that_does_not_fit_is_refused() -> None:
    names = [f"x{i}" for i in range(40)]
    graph = FactorGraph.from_conditionals({n: ((n,), [0.5, 0.5]) for n in names})
    with pytest.raises(ModelTooLarge, match="the marginal over .* bytes at once"):
        graph.posterior().marginal(names)


def test_a_model_and_back() -> None:
    graph, tables = random_graph(8)
    joint = written_out(graph.domain, tables)
    model = graph.model(total=10.0)
    name = next(iter(graph.domain))
    np.testing.assert_allclose(model.marginal([name]), 10 * summed(joint, graph.domain, [name]))
    again = FactorGraph.from_model(model).posterior().marginal([name])
    np.testing.assert_allclose(again, summed(joint, graph.domain, [name]), atol=1e-12)


def test_potentials_that_cancel_each_other_are_not_lost() -> None:
    """The likely record has the least value of one potential and the largest of the other."""
    domain = Domain({"a": 2, "b": 2})
    for span in (20.0, 1400.0):
        first = Factor(domain, [[0.0, -np.inf], [-span, 0.3]])
        second = Factor(domain.project(["a"]), [0.0, span])
        model = GraphicalModel(domain, (first, second), 1.0)
        found = FactorGraph.from_model(model).posterior({"b": 0}).marginal(["a"])
        np.testing.assert_allclose(found, [0.5, 0.5])
    far = Factor(domain.project(["b"]), [0.0, -1500.0])
    with pytest.raises(InvalidInput, match="spans 1500, but may span 1417"):
        FactorGraph.from_model(GraphicalModel(domain, (far,), 1.0))
    nothing = Factor(domain.project(["b"]), [-np.inf, -np.inf])
    assert not FactorGraph.from_model(GraphicalModel(domain, (nothing,), 1.0)).tables[0][1].any()


def test_a_graph_and_its_model_have_one_memory_limit() -> None:
    model = FactorGraph(Domain({"a": 2}), [(("a",), [1.0, 3.0])], memory_limit=1_000_000).model()
    assert model.memory_limit == 1_000_000 == FactorGraph.from_model(model).memory_limit


def test_arrows_and_edges_for_drawing() -> None:
    assert list(sprinkler().to_networkx().edges) == [("rain", "wet")]
    graph = FactorGraph(Domain({"a": 2, "b": 2}), [(("a", "b"), np.ones((2, 2)))])
    assert not graph.to_networkx().is_directed()
    assert graph.to_networkx().has_edge("b", "a")


def test_messages_that_later_ones_cover_are_dropped() -> None:
    """In a chain each attribute needs the tables of all before it: kept, they are n^2 / 2."""

    def alive() -> int:
        return sum(isinstance(each, Messages) for each in gc.get_objects())

    names, link = [f"x{i}" for i in range(20)], np.array([[0.9, 0.2], [0.1, 0.8]])
    tables = {"x0": (("x0",), [0.5, 0.5])} | {
        b: ((b, a), link) for a, b in itertools.pairwise(names)
    }
    graph, before = FactorGraph.from_conditionals(tables), alive()
    posterior, steps = graph.posterior({"x0": 0}), range(20)
    found = [posterior.marginal([name]) for name in names]
    law = [np.linalg.matrix_power(link, step) @ [1.0, 0.0] for step in steps]
    np.testing.assert_allclose(found, law, atol=1e-12)
    assert alive() <= before + 1
    records = np.array(list(itertools.product([0, 1], repeat=6))).T
    posteriors = graph.posteriors(dict(zip(names, records, strict=False)))
    each = [posteriors.marginal([name]) for name in names[6:]]
    last = [[np.linalg.matrix_power(link, step)[:, code] for code in records[5]] for step in steps]
    np.testing.assert_allclose(each, last[1:15], atol=1e-12)
    assert alive() <= before + 2


def test_questions_one_by_one_cost_little_more_than_together() -> None:
    """Each of forty children of one parent alone needs a tree of its own."""
    rng = np.random.default_rng(0)
    tables = {"v0": (("v0",), rng.dirichlet(np.ones(3)))} | {
        f"v{i}": ((f"v{i}", "v0"), rng.dirichlet(np.ones(4), 3).T) for i in range(1, 41)
    }
    first, second = (FactorGraph.from_conditionals(tables) for _ in range(2))
    posterior = second.posterior({"v40": 2})
    for clique, law in first.posterior({"v40": 2}).marginals().items():
        np.testing.assert_allclose(posterior.marginal(clique), law, atol=1e-12)
    assert sum(kept_by(second).passes) < 2.5 * sum(kept_by(first).passes)
    assert "calibrated" not in vars(kept_by(second))  # which serves further evidence only


def test_a_pass_over_all_tables_that_does_not_fit_is_tried_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Children of all pairs of roots join five of them: 1024 cells, which no question needs."""
    passed, failed = EvidenceMarginals._passed, []

    def counted(self: EvidenceMarginals, *arguments: Any) -> Messages:
        try:
            return passed(self, *arguments)
        except ModelTooLarge:
            failed.append(arguments)
            raise

    monkeypatch.setattr(EvidenceMarginals, "_passed", counted)
    tables = {f"v{i}": ((f"v{i}",), [0.25] * 4) for i in range(6)}
    pairs = list(itertools.combinations(tables, 2))
    tables |= {f"{a}{b}": ((f"{a}{b}", a, b), np.full((2, 4, 4), 0.5)) for a, b in pairs}
    posterior = FactorGraph.from_conditionals(tables, memory_limit=7_000).posterior({"v0": 0})
    for names in pairs * 5:
        assert posterior.marginal(["".join(names)]) == pytest.approx([0.5, 0.5])
    assert len(failed) == 1


def test_no_earlier_question_makes_a_question_too_large() -> None:
    rng, families = np.random.default_rng(0), {
        "v0": "v0", "v1": "v1", "v2": "v2 v0 v1", "v4": "v4 v1", "v6": "v6 v4 v0",
        "v7": "v7 v1 v2", "v9": "v9 v6 v2", "v11": "v11 v9", "v12": "v12", "v13": "v13 v11 v12",
    }  # fmt: skip
    scopes = {name: family.split() for name, family in families.items()}
    tables = {
        n: (c, np.moveaxis(rng.dirichlet(np.ones(4), [4] * len(c[1:])), -1, 0))
        for n, c in scopes.items()
    }
    alone = FactorGraph.from_conditionals(tables).posterior().marginal(["v1", "v2"])
    posterior = FactorGraph.from_conditionals(tables, memory_limit=6_000).posterior()
    for names in (["v13"], ["v1", "v2"], ["v13"], ["v1", "v2"]):
        found = posterior.marginal(names)
    np.testing.assert_allclose(found, alone, atol=1e-12)
