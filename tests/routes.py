"""Every route from potentials to numbers, each compared with the joint table written out.

A route raises for a wrong result. Its tolerance is that of rounding alone: a few units in the last
place of the logarithms that it adds up (``Tolerance``), whatever the structure.
"""

import random
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.sparse
import torch
from brute_force import Problem, Table, summed
from seams import tables_of
from structures import Case, draw_case, shrunk

from pgmkit import Factor, FactoredQuery, GraphicalModel
from pgmkit.contraction.evaluate import MAX, adjoints, forward
from pgmkit.domain import Clique
from pgmkit.errors import InvalidInput, NumericalFailure
from pgmkit.graphs.junction_tree import junction_tree
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.inference.tree_marginals import marginals as eliminate
from pgmkit.structural_zeros import Zeros

USUAL_SEARCH = 0.005
"""Share of the cases whose junction tree is searched for the usual time, which can take 50 ms. The
others take one of the first few trees found: inference has to be right on any tree."""

SINGLE_LOSS = 1e-4
"""Of the fused pass in float32, a share of the total. What is lost to underflow is below exp(0.85
log(1 / tiny)) tiny of the total a configuration: 1e-46 in float64, but 2e-6 in float32."""
RECORDS = 2000
FALSE_ALARM = 1e-12
"""Of the independent draws of one case: 1e-6 in a million cases."""


@dataclass(frozen=True)
class Tolerance:
    """Of results relative to their value; below ``smallest`` of the total nothing is promised."""

    relative: float
    smallest: float

    @classmethod
    def of(cls, case: Case, dtype: torch.dtype) -> "Tolerance":
        """A probability is off by as much, relatively, as its logarithm is absolutely: each
        potential is rounded when its clique's peak is subtracted, then again in every sum."""
        unit = torch.finfo(dtype).eps
        terms = len(case.cliques) + len(case.domain)
        return cls(unit * (4 * case.reach + 16 * terms), torch.finfo(dtype).tiny * 1e12)

    def check(self, found: object, expected: Table, what: object, scale: object = None) -> None:
        """``scale`` is what the rounding is in proportion to, by default the expected itself."""
        array = np.asarray(found)
        assert array.shape == expected.shape, f"{what}: shape {array.shape}, not {expected.shape}"
        size = expected if scale is None else scale
        off = np.abs(array - expected) - self.relative * np.asarray(size)
        worst = float(np.max(off))  # NaN for NaN
        assert worst <= self.smallest, f"{what}: off by {worst:.3g} beyond rounding"


class Bench:
    """A case with what its routes share: the model, its total and how exact it should be."""

    def __init__(self, case: Case) -> None:
        self.case, self.domain = case, case.domain
        self.total = random.Random(case.seed).choice([1.0, 250.0, 48842.0])
        self.joint: Table = case.joint * np.longdouble(self.total)
        self.model = modelled(case, case.problem, self.total)
        self.bp = MarginalOracle(self.domain, case.cliques)
        self.exact = Tolerance.of(case, torch.float64)
        self._expected: dict[Clique, Table] = {}

    def sets(self, rng: random.Random, count: int, most: int = 4) -> list[Clique]:
        names = self.domain.attributes
        return [
            tuple(rng.sample(names, rng.randint(0, min(most, len(names))))) for _ in range(count)
        ]

    def expected(self, clique: Clique) -> Table:
        if clique not in self._expected:
            self._expected[clique] = summed(self.domain, self.joint, clique)
        return self._expected[clique]


def modelled(case: Case, problem: Problem, total: float, dtype: object = None) -> GraphicalModel:
    """A model over one of the case's junction trees."""
    tables = [torch.as_tensor(t).to(dtype or torch.float64) for t in problem.potentials]
    pairs = zip(problem.cliques, tables, strict=True)
    factors = tuple(Factor(problem.domain.project(clique), table) for clique, table in pairs)
    model = GraphicalModel(problem.domain, factors, total)
    rng = random.Random(f"tree {case.seed}")
    if rng.random() > USUAL_SEARCH:
        seconds, seed = rng.choice([0.0, 2e-5, 5e-5]), rng.randrange(1000)
        tree = junction_tree(problem.domain, problem.cliques, seconds=seconds, seed=seed)
        vars(tables_of(model))["tree"] = tree
    return model


def _cliques(bench: Bench, bp: MarginalOracle, flat: torch.Tensor, tolerance: Tolerance) -> None:
    for clique, table in zip(bench.case.cliques, bp.layout.split(flat), strict=True):
        tolerance.check(table, bench.expected(clique), clique)


def _log_z(bench: Bench, bp: MarginalOracle, found: float, tolerance: Tolerance) -> None:
    """Of the cliques' attributes: the others multiply it by their sizes."""
    covered = {name for clique in bench.case.cliques for name in clique}
    free = sum(np.log(s) for n, s in bench.domain.sizes.items() if n not in covered)
    off = abs(found + free - bench.case.log_partition)
    assert off <= tolerance.relative, f"log partition off by {off:.3g}"


def _weight(bench: Bench, record: dict[str, int]) -> float:
    return float(bench.case.weights[tuple(record.get(name, 0) for name in bench.domain)])


def fast(bench: Bench, rng: random.Random) -> None:
    """The fused pass in linear space, and the exact marginals, in the same buffers."""
    bp, flat = bench.bp, bench.case.problem.flat()
    # Documented: absolute to 1e-12 of the total, beside the rounding of the potentials.
    loose = Tolerance(0.0, (bench.exact.relative + 1e-12) * bench.total)
    with bp.session() if rng.random() < 0.5 else nullcontext():
        found, log_z = bp.fast_marginals(flat, bench.total)
        _cliques(bench, bp, found, loose)
        _log_z(bench, bp, log_z, bench.exact)
        found, log_z = bp.marginals(flat, bench.total)
        _cliques(bench, bp, found, bench.exact)
        _log_z(bench, bp, log_z, bench.exact)


def logarithms(bench: Bench, rng: random.Random) -> None:
    found, log_z = bench.bp.log_marginals(bench.case.problem.flat(), bench.total)
    _cliques(bench, bench.bp, found, bench.exact)
    _log_z(bench, bench.bp, log_z, bench.exact)


def ruled_out(bench: Bench, rng: random.Random) -> None:
    """Zeros said beside the potentials, in any order of attributes, mean what -inf means."""
    zeros, tables = [], []
    for clique, table in zip(bench.case.cliques, bench.case.problem.potentials, strict=True):
        allowed = np.isfinite(table)
        order = rng.sample(range(len(clique)), len(clique))
        if not allowed.all():
            zeros.append(Zeros([clique[i] for i in order], allowed.transpose(order)))
        tables.append(np.where(allowed, table, 3.0))
    if not zeros:
        return
    bp = MarginalOracle(bench.domain, bench.case.cliques, zeros=zeros)
    flat = Problem(bench.domain, bench.case.cliques, tables).flat()
    found, log_z = bp.marginals(flat, bench.total)
    _cliques(bench, bp, found, bench.exact)
    _log_z(bench, bp, log_z, bench.exact)
    assert bp.maximum(flat) <= float(bench.case.weights.max()) + bench.exact.relative


def maxima(bench: Bench, rng: random.Random) -> None:
    """The largest weight, and a record that has it."""
    bp, flat = bench.bp, bench.case.problem.flat()
    best, rounding = float(bench.case.weights.max()), bench.exact.relative
    assert abs(bp.maximum(flat) - best) <= rounding, "maximum"
    record = bench.model.map()
    assert list(record) == list(bench.domain)
    assert abs(_weight(bench, record) - best) <= rounding, f"{record} is no maximum"


def max_marginals(bench: Bench, rng: random.Random) -> None:
    """The largest weight with each cell of each clique."""
    bp, flat, rounding = bench.bp, bench.case.problem.flat(), bench.exact.relative
    tables = bp.layout.split(flat)
    others = adjoints(bp.plan, forward(bp.plan, tables, MAX), MAX)
    for clique, own, rest in zip(bench.case.cliques, tables, others, strict=True):
        away = tuple(i for i, name in enumerate(bench.domain) if name not in clique)
        left = [name for name in bench.domain if name in clique]
        expected = bench.case.weights.max(axis=away).transpose([left.index(n) for n in clique])
        found = (own + rest).numpy()
        same = np.isneginf(found) == np.isneginf(expected)
        assert np.all(same | (expected < -1e300)), f"{clique}: other cells are possible"
        finite = np.isfinite(expected)
        off = np.abs(found[finite] - expected[finite])
        assert np.all(off <= rounding), f"max-marginal {clique}: off by {off.max():.3g}"


def single_marginals(bench: Bench, rng: random.Random) -> None:
    """One at a time, inside the model's cliques, inside its tree and outside both."""
    inside = [rng.sample(c, rng.randint(0, len(c))) for c in bench.model.tree.cliques]
    for asked in [*map(tuple, rng.sample(inside, min(2, len(inside)))), *bench.sets(rng, 2)]:
        bench.exact.check(bench.model.marginal(asked), bench.expected(asked), asked)
    off = abs(bench.model.log_partition - bench.case.log_partition)
    assert off <= bench.exact.relative, f"log partition off by {off:.3g}"


def many_marginals(bench: Bench, rng: random.Random) -> None:
    asked = [*bench.case.cliques, *bench.sets(rng, 8), (), bench.domain.attributes[:5]]
    found = bench.model.marginals(asked)
    assert list(found) == list(dict.fromkeys(asked))
    for clique, table in found.items():
        bench.exact.check(table, bench.expected(clique), clique)


def elimination(bench: Bench, rng: random.Random) -> None:
    """From the tree's true marginals, without the model."""
    tree = bench.model.tree
    beliefs = [
        torch.from_numpy(bench.expected(clique).astype(np.float64)) for clique in tree.cliques
    ]
    for clique, table in eliminate(tree, beliefs, bench.sets(rng, 8, most=5)).items():
        bench.exact.check(table, bench.expected(clique), clique)


def _query(bench: Bench, rng: random.Random, like: FactoredQuery | None = None) -> FactoredQuery:
    """With negative entries, dense or sparse; over the same attributes and shapes as ``like``."""
    draw = np.random.default_rng(rng.getrandbits(64))
    names = bench.sets(rng, 1, most=4)[0] if like is None else like.attributes
    factors = {}
    for place, name in enumerate(names):
        rows = rng.choice([1, 1, 2, 3]) if like is None else like.shape[place]
        matrix = draw.normal(size=(rows, bench.domain.sizes[name]))
        factors[name] = scipy.sparse.csr_array(matrix) if rng.random() < 0.2 else matrix
    return FactoredQuery(factors)


def _answer(bench: Bench, query: FactoredQuery, joint: Table, size: bool = False) -> Table:
    """The matrices applied one by one to the marginal, or what its rounding is in proportion to."""
    table = summed(bench.domain, joint, query.attributes)
    for axis, factor in enumerate(query.factors.values()):
        dense = factor.toarray() if scipy.sparse.issparse(factor) else np.asarray(factor)
        matrix = np.abs(dense) if size else dense
        table = np.moveaxis(np.tensordot(matrix.astype(np.longdouble), table, (1, axis)), 0, axis)
    return table


def _check_answers(
    bench: Bench, queries: Sequence[FactoredQuery], model: GraphicalModel, tolerance: Tolerance
) -> None:
    """All but the last together, the last alone."""
    *several, one = queries
    for query, found in zip(queries, [*model.answer(several), model.answer(one)], strict=True):
        size = _answer(bench, query, bench.joint, size=True)
        tolerance.check(found, _answer(bench, query, bench.joint), query, size)


def answers(bench: Bench, rng: random.Random) -> None:
    """Single queries, and several at once, some of which share their structure."""
    first, one = _query(bench, rng), _query(bench, rng)
    queries = [first, *(_query(bench, rng, first) for _ in range(rng.randint(1, 2))), one]
    if rng.random() < 0.3:
        queries.insert(1, _query(bench, rng))
    _check_answers(bench, queries, bench.model, bench.exact)


def given(bench: Bench, rng: random.Random) -> None:
    """Evidence: one code or several, on one attribute or some, once and once more."""
    model, mask = bench.model, np.ones(bench.joint.shape, dtype=bool)
    for _ in range(rng.choice([1, 1, 2])):
        evidence = {}
        for name in rng.sample(bench.domain.attributes, rng.randint(1, min(3, len(bench.domain)))):
            size = bench.domain.sizes[name]
            codes = rng.sample(range(size), rng.randint(1, size))
            evidence[name] = codes if rng.random() < 0.5 or len(codes) > 1 else codes[0]
            axis = bench.domain.attributes.index(name)
            allowed = np.isin(np.arange(size), codes)
            mask &= allowed.reshape([size if i == axis else 1 for i in range(mask.ndim)])
        # A share that float64 does not hold is as good as none; none of all is refused.
        share = float((bench.joint * mask).sum() / bench.total)
        try:
            model = model.given(evidence)
        except InvalidInput:
            assert share < bench.exact.smallest, f"{evidence}: refused, but has {share:.3g}"
            return
        assert share > 0 or (np.isfinite(bench.case.weights) & mask).any(), f"{evidence}: accepted"
        if share < bench.exact.smallest:
            return
        vars(tables_of(model))["tree"] = bench.model.tree
    _check_given(bench, rng, model, mask)


def _check_given(bench: Bench, rng: random.Random, model: GraphicalModel, mask: Table) -> None:
    left = bench.joint * mask
    bench.exact.check(model.total, np.asarray(left.sum()), "total given")
    for clique, table in model.marginals([*bench.case.cliques[:3], *bench.sets(rng, 3)]).items():
        bench.exact.check(table, summed(bench.domain, left, clique), f"{clique} given")
    query = _query(bench, rng)
    size = _answer(bench, query, left, size=True)
    bench.exact.check(model.answer(query), _answer(bench, query, left), f"{query} given", size)
    best = float(np.where(mask, bench.case.weights, -np.inf).max())
    off = abs(_weight(bench, model.map()) - best)
    assert off <= bench.exact.relative, f"map given: off by {off:.3g}"


def rounded_records(bench: Bench, rng: random.Random) -> None:
    """Each tree clique's counts are its expected ones given the separator's, rounded."""
    count = rng.choice([1, 7, RECORDS])
    data = bench.model.sample(count, rng=np.random.default_rng(rng.getrandbits(64)))
    assert len(data) == count
    tree = bench.model.tree
    for clique, separator in zip(tree.cliques, tree.separators, strict=True):
        kept = tuple(i for i, name in enumerate(clique) if name not in separator)
        counts = np.asarray(data.marginal(clique), dtype=np.longdouble)
        law = bench.expected(clique)
        mass = law.sum(axis=kept, keepdims=True)
        law = law / np.where(mass > 0, mass, 1)
        expected = law * counts.sum(axis=kept, keepdims=True)
        slack = 2 * bench.exact.relative * (expected + 1) + 1e-9
        # Floor and ceiling of a number that rounding may have moved past an integer.
        low, high = np.floor(expected - slack), np.ceil(expected + slack)
        high = np.where(law > 0, high, 0)
        assert np.all((low <= counts) & (counts <= high)), f"{clique}: {counts} for {expected}"


def independent_records(bench: Bench, rng: random.Random) -> None:
    """Each tree clique's counts are binomial, by Chernoff's bound on their tails."""
    data = bench.model.sample(
        RECORDS, rng=np.random.default_rng(rng.getrandbits(64)), method="sample"
    )
    cells = sum(bench.domain.size(clique) for clique in bench.model.tree.cliques)
    most = np.log(2 * cells / FALSE_ALARM) / RECORDS
    for clique in bench.model.tree.cliques:
        share = np.asarray(data.marginal(clique), dtype=np.float64) / RECORDS
        law = (bench.expected(clique) / bench.total).astype(np.float64)
        assert not np.any((share > 0) & (law == 0)), f"{clique}: impossible records"
        distance = _entropy(share, law) + _entropy(1 - share, 1 - law)
        assert np.all(distance <= most), f"{clique}: {share} for {law}"


def _entropy(share: Table, law: Table) -> Table:
    """share log(share / law), zero where the share is."""
    ratio = np.where(share > 0, share, 1.0) / np.where(share > 0, np.maximum(law, 1e-300), 1.0)
    return share * np.log(ratio)


def kept_in_a_file(bench: Bench, rng: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pgm")
        bench.model.save(path)
        loaded = GraphicalModel.load(path)
    assert (loaded.domain, loaded.cliques) == (bench.domain, bench.model.cliques)
    assert loaded.total == bench.model.total
    for old, new in zip(bench.model.potentials, loaded.potentials, strict=True):
        assert torch.equal(old.values, new.values)
    for clique in bench.case.cliques[:2]:
        bench.exact.check(loaded.marginal(clique), bench.expected(clique), clique)


def single_precision(bench: Bench, rng: random.Random) -> None:
    """The same in float32, of the potentials that float32 holds."""
    tables = [table.astype(np.float32) for table in bench.case.problem.potentials]
    doubles = [np.asarray(table.astype(np.float64)) for table in tables]
    case = replace(bench.case, problem=Problem(bench.domain, bench.case.cliques, doubles))
    other = Bench(case)
    tolerance = Tolerance.of(case, torch.float32)
    bp = MarginalOracle(other.domain, case.cliques, dtype=torch.float32)
    flat = case.problem.flat().float()
    for routine in (bp.marginals, bp.log_marginals):
        found, log_z = routine(flat, other.total)
        assert found.dtype == torch.float32
        _cliques(other, bp, found, tolerance)
        _log_z(other, bp, log_z, tolerance)
    found, log_z = bp.fast_marginals(flat, other.total)
    loose = Tolerance(0.0, (tolerance.relative + SINGLE_LOSS) * other.total)
    _cliques(other, bp, found, loose)
    model = modelled(case, case.problem, other.total, torch.float32)
    for clique, table in model.marginals(bench.sets(rng, 4)).items():
        tolerance.check(table, other.expected(clique), clique)
    _check_answers(other, [_query(other, rng) for _ in range(2)], model, tolerance)


def contradiction(case: Case) -> None:
    """Where no record is possible, nothing is answered."""
    bp = MarginalOracle(case.domain, case.cliques)
    model = modelled(case, case.problem, 1.0)
    name = case.domain.attributes[0]
    flat = case.problem.flat()
    questions: list[tuple[type[Exception], Callable[[], object]]] = [
        (NumericalFailure, lambda: bp.marginals(flat)),
        (NumericalFailure, lambda: bp.fast_marginals(flat)),
        (NumericalFailure, lambda: bp.mode(flat)),
        (NumericalFailure, lambda: model.marginal([name])),
        (NumericalFailure, lambda: model.marginals([case.domain.attributes])),
        (NumericalFailure, lambda: model.answer(FactoredQuery({}))),
        (NumericalFailure, lambda: model.sample(5, rng=np.random.default_rng(0))),
        (InvalidInput, lambda: model.given({name: 0})),
    ]
    assert bp.maximum(flat) == -np.inf
    for error, question in questions:
        try:
            found = question()
        except error:
            continue
        raise AssertionError(f"{found} of a model without records")


Route = Callable[[Bench, random.Random], None]

ROUTES: dict[str, tuple[Route, float]] = {
    route.__name__: (route, share)
    for route, share in (
        (fast, 1.0),
        (logarithms, 0.5),
        (ruled_out, 0.3),
        (maxima, 1.0),
        (max_marginals, 0.3),
        (single_marginals, 1.0),
        (many_marginals, 1.0),
        (elimination, 0.5),
        (answers, 1.0),
        (given, 0.3),
        (rounded_records, 0.5),
        (independent_records, 0.5),
        (kept_in_a_file, 0.1),
        (single_precision, 0.12),
    )
}
"""Each route with the share of the cases that take it: all together would be twice the time, and
what the rarer ones add to the others shows in any case of many."""


def complaint(case: Case, only: str | None = None) -> tuple[str, str] | None:
    """The first route that is wrong, or raises, on this case, and what is wrong; ``only`` one."""
    if not case.possible:
        return _tried("contradiction", lambda: contradiction(case))
    bench = Bench(case)
    for name, (route, share) in ROUTES.items():
        rng = random.Random(f"{name} {case.seed}")
        drawn = rng.random() < share
        if drawn if only is None else only == name:
            found = _tried(name, lambda route=route, rng=rng: route(bench, rng))  # type: ignore[misc]
            if found:
                return found
    return None


def first_failure(seeds: Iterable[int]) -> str | None:
    """The first case that a route is wrong on, in words, and the smallest that shrinking finds."""
    for seed in seeds:
        case = draw_case(seed)
        found = complaint(case)
        if found:
            route, message = found
            small = shrunk(case, lambda smaller, route=route: _same(smaller, route))
            tables = zip(small.cliques, small.problem.potentials, strict=True)
            return (
                f"seed {seed}, route {route!r}: {message}\n  {case}\n  shrunk to {small}\n"
                + "".join(f"  {clique}: {table.tolist()}\n" for clique, table in tables)[:4000]
                + f"  there: {(complaint(small, route) or found)[1]}"
            )
    return None


def _same(case: Case, route: str) -> bool:
    if case.possible == (route == contradiction.__name__):
        return False
    found = complaint(case, route)
    return found is not None and found[0] == route


def _tried(name: str, check: Callable[[], None]) -> tuple[str, str] | None:
    try:
        check()
    except Exception as error:  # whatever the library raises on a valid case is a finding
        return name, f"{type(error).__name__}: {error}"
    return None
