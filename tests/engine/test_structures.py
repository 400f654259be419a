"""An adversary: structures that nobody chose, by every route, against the joint written out.

The ordinary run takes the same 400 structures every time; each defect that is planted below shows
in the first 24 of them. ``pytest -m slow`` takes 100,000 that nobody has seen and prints their
seed; ``PGMKIT_STRUCTURES=SEED:COUNT`` in the environment repeats them, or the one that failed.
"""

import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from brute_force import Problem
from routes import ROUTES, complaint, first_failure
from structures import Case, draw_case, shrunk

import pgmkit.contraction.buffers
import pgmkit.contraction.evaluate
import pgmkit.contraction.order
import pgmkit.inference.variable_elimination
import pgmkit.model
import pgmkit.records.sampling
from pgmkit.contraction.buffers import ContractionBuffers
from pgmkit.contraction.order import plan
from pgmkit.contraction.plan import Kernel, Plan
from pgmkit.domain import Clique, Domain
from pgmkit.factor import Factor
from pgmkit.inference import model_tables
from pgmkit.inference.marginal_oracle import MarginalOracle
from pgmkit.inference.self_check import FirstUses
from pgmkit.inference.tree_paths import TreePaths

ORDINARY = 400
MANY = 100_000
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("block", range(4))
def test_no_structure_is_wrong(block: int) -> None:
    size = ORDINARY // 4
    found = first_failure(range(block * size, (block + 1) * size))
    assert found is None, found


@pytest.mark.slow
def test_no_structure_of_many_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    seed, count = secrets.randbelow(10**9) * 10**6, MANY
    if "PGMKIT_STRUCTURES" in os.environ:
        first, _, number = os.environ["PGMKIT_STRUCTURES"].partition(":")
        seed, count = int(first), int(number or MANY)
    start = time.monotonic()
    for done in range(0, count, 5000):
        with capsys.disabled():
            elapsed = time.monotonic() - start
            print(f"\nPGMKIT_STRUCTURES={seed}:{count}: {done} right, {elapsed:.0f} s", end="")
        found = first_failure(range(seed + done, seed + min(count, done + 5000)))
        assert found is None, found
    with capsys.disabled():
        print(f"\nPGMKIT_STRUCTURES={seed}:{count}: all right, {time.monotonic() - start:.0f} s")


def test_what_the_draws_hold() -> None:
    """An adversary that never draws a thing says nothing about it."""
    cases = [draw_case(seed) for seed in range(500)]
    count: Counter[str] = Counter()
    for case in cases:
        steps = pgmkit.contraction.buffers.by_level(plan(case.cliques, (), case.domain.sizes))
        tables = case.problem.potentials
        attributes = {name for clique in case.cliques for name in clique}
        count["grouped"] += any(len(group) >= 3 for group in steps)
        count["zeros"] += any(np.isneginf(table).any() for table in tables)
        count["beyond linear space"] += case.reach > 1400
        count["to 600"] += max(t[np.isfinite(t)].max(initial=0) for t in tables) > 600
        count["impossible"] += not case.possible
        count["free attributes"] += len(attributes) < len(case.domain)
        count["of one value"] += 1 in case.domain.sizes.values()
        count["of equal sizes"] += len(set(case.domain.sizes.values())) == 1
        count["odd names"] += any(not name.isalpha() for name in case.domain)
        count["repeated"] += len({frozenset(c) for c in case.cliques}) < len(case.cliques)
    least = {"grouped": 60, "zeros": 150, "beyond linear space": 50, "to 600": 20, "impossible": 2}
    least |= {"free attributes": 50, "of one value": 20, "of equal sizes": 250, "odd names": 30}
    least |= {"repeated": 50}
    assert {name: count[name] for name in least if count[name] < least[name]} == {}
    assert len({case.family for case in cases}) == 10
    assert max(case.domain.size() for case in cases) > 4000
    assert sum(case.domain.size() for case in cases) < 1000 * len(cases)


# Defects, planted one at a time: what reports nothing on these could report nothing on any.


def product_in_another_order(patch: Patch) -> None:
    """As it once was: a product's axes in another order than a batched product writes them."""

    def product(left: Clique, right: Clique, gone: set[str], sizes: dict[str, int]) -> Kernel:
        out = tuple(n for n in left if n not in gone) + tuple(n for n in right if n not in left)
        return Kernel(left, right, out, sizes)

    patch.setattr(Kernel, "product", product)
    patch.setattr(Plan, "__post_init__", lambda self: None)


def groups_gathered_backwards(patch: Patch) -> None:
    usual = ContractionBuffers.operand

    def operand(self: ContractionBuffers, values: list, orders: list, shape: tuple) -> object:
        return usual(self, values, [order[::-1] for order in orders], shape)

    patch.setattr(ContractionBuffers, "operand", operand)


def adjoints_swapped(patch: Patch) -> None:
    usual = pgmkit.contraction.evaluate.transposes
    for module in (pgmkit.contraction.evaluate, pgmkit.contraction.buffers):
        patch.setattr(module, "transposes", lambda kernel: _turned(usual(kernel)))


def _turned(kernels: tuple[Kernel, Kernel]) -> tuple[Kernel, Kernel]:
    """The first with its output's axes turned round, where the sizes do not show it."""
    left, right = kernels
    shape = [left.sizes[name] for name in left.out]
    out = left.out[::-1] if shape == shape[::-1] else left.out
    return Kernel(left.left, left.right, out, left.sizes), right


def square(patch: Patch, where: object, name: str) -> None:
    """A function's result transposed, where its shape does not show it."""
    usual = getattr(where, name)

    def planted(*given: object, **named: object) -> object:
        table = usual(*given, **named)
        turned = table.permute(*range(table.ndim - 1, -1, -1)) if table.ndim > 1 else table
        return turned if turned.shape == table.shape else table

    patch.setattr(where, name, planted)


def answers_transposed(patch: Patch) -> None:
    square(patch, pgmkit.inference.variable_elimination, "contract")


def arranged_backwards(patch: Patch) -> None:
    square(patch, TreePaths, "arranged")


def factors_expanded_backwards(patch: Patch) -> None:
    usual = Factor.expand

    def planted(self: Factor, domain: Domain) -> Factor:
        table = usual(self, domain).values
        turned = table.permute(*range(table.ndim - 1, -1, -1))
        return Factor(domain, turned if turned.shape == table.shape else table)

    patch.setattr(Factor, "expand", planted)


def codes_of_records_swapped(patch: Patch) -> None:
    usual = pgmkit.records.sampling.unravel

    def planted(domain: Domain, attrs: Clique, cells: np.ndarray) -> dict[str, np.ndarray]:
        columns = usual(domain, attrs, cells)
        if len(attrs) > 1 and domain.sizes[attrs[0]] == domain.sizes[attrs[1]]:
            columns[attrs[0]], columns[attrs[1]] = columns[attrs[1]], columns[attrs[0]]
        return columns

    patch.setattr(pgmkit.records.sampling, "unravel", planted)


def modes_reversed(patch: Patch) -> None:
    usual = pgmkit.contraction.evaluate.maximiser

    def planted(p: Plan, values: list[torch.Tensor]) -> dict[str, int]:
        found = usual(p, values)
        first = next(iter(found))
        return found | {first: p.sizes[first] - 1 - found[first]}

    patch.setattr("pgmkit.inference.marginal_oracle.maximiser", planted)


def other_evidence(patch: Patch) -> None:
    usual = Domain.allowed
    # Two calls, one of the result of the other, must not give back what was asked.
    patch.setattr(Domain, "allowed", lambda self, name, codes: np.roll(usual(self, name, codes), 1))


def files_turned(patch: Patch) -> None:
    usual = pgmkit.model.read_container

    def planted(*args: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        header, arrays = usual(*args)
        same = {name for name, t in arrays.items() if t.shape == t.T.shape}
        return header, {name: t.T.copy() if name in same else t for name, t in arrays.items()}

    patch.setattr(pgmkit.model, "read_container", planted)


def zeros_forgotten(patch: Patch) -> None:
    patch.setattr(MarginalOracle, "masked", lambda self, potentials: potentials)


def a_part_in_a_million(patch: Patch) -> None:
    """Nothing of another order of axes: a small error is an error too."""
    usual = model_tables.as_array
    patch.setattr(model_tables, "as_array", lambda table: usual(table) * (1 + 1e-6))


PLANTED: list[tuple[Callable[[Patch], None], str]] = [
    (product_in_another_order, "fast"),
    (groups_gathered_backwards, "fast"),
    (adjoints_swapped, "fast"),
    (adjoints_swapped, "logarithms"),
    (adjoints_swapped, "max_marginals"),
    (zeros_forgotten, "ruled_out"),
    (modes_reversed, "maxima"),
    (factors_expanded_backwards, "single_marginals"),
    (arranged_backwards, "many_marginals"),
    (arranged_backwards, "elimination"),
    (answers_transposed, "answers"),
    (other_evidence, "given"),
    (codes_of_records_swapped, "rounded_records"),
    (codes_of_records_swapped, "independent_records"),
    (files_turned, "kept_in_a_file"),
    (factors_expanded_backwards, "single_precision"),
    (a_part_in_a_million, "single_marginals"),
]


@pytest.fixture
def fresh_plans() -> Iterator[None]:
    """No plan of a planted defect outlives it, and none from before hides it."""
    pgmkit.contraction.order.cached_plan.cache_clear()
    yield
    pgmkit.contraction.order.cached_plan.cache_clear()


@pytest.mark.usefixtures("fresh_plans")
@pytest.mark.parametrize(("plant", "route"), PLANTED, ids=lambda p: getattr(p, "__name__", p))
def test_every_route_reports_a_planted_defect(
    monkeypatch: Patch, plant: Callable[[Patch], None], route: str
) -> None:
    plant(monkeypatch)
    monkeypatch.setattr(FirstUses, "check", lambda *args: None)
    cases = (case for case in map(draw_case, range(200)) if case.possible)
    reports = filter(None, (complaint(case, route) for case in cases))
    # Not what the library raises itself: the comparison has to notice.
    assert any(name == route and text.startswith("AssertionError") for name, text in reports)


def test_every_route_has_a_planted_defect() -> None:
    assert {route for _, route in PLANTED} == set(ROUTES)


@pytest.mark.usefixtures("fresh_plans")
def test_a_report_says_how_to_repeat_it_and_is_small(monkeypatch: Patch) -> None:
    product_in_another_order(monkeypatch)
    found = first_failure(range(500))
    assert found is not None and "route 'fast'" in found
    assert found.startswith("seed ") and "shrunk to" in found and "beyond rounding" in found
    seed = int(found.split()[1].strip(","))
    assert (complaint(draw_case(seed)) or ("", ""))[0] == "fast"
    sizes = found.split("shrunk to")[1].split("cliques")[0]
    assert sizes.count(": 2") <= 6  # attributes, all of two values


def test_shrinking_finds_the_smallest_case() -> None:
    """Where a case fails that joins two named attributes of at least three values each."""
    rng = np.random.default_rng(0)
    domain = Domain(dict.fromkeys("abcdef", 4))
    cliques: list[Clique] = [("a", "b", "c"), ("d", "b"), ("c", "e", "d"), ("f",)]
    tables = [rng.normal(size=domain.shape(clique)) for clique in cliques]

    def fails(case: Case) -> bool:
        sizes = case.domain.sizes
        together = any({"b", "d"} <= set(clique) for clique in case.cliques)
        return together and sizes["b"] >= 3 and sizes["d"] >= 3

    small = shrunk(Case(Problem(domain, cliques, tables), 0), fails)
    assert small.cliques == [("d", "b")] and dict(small.domain.sizes) == {"b": 3, "d": 3}
    assert np.array_equal(small.problem.potentials[0], np.round(small.problem.potentials[0], 1))
