"""Zeros of tables that overlap: what they rule out elsewhere, and which residuals they leave free.

The other routes are linear programmes over all cells, and the null space of all equations at once.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.linalg
from numpy.typing import NDArray
from scipy.optimize import linprog

from pgmkit import Domain, Measurement, Zeros, estimate
from pgmkit.errors import InvalidInput, NumericalFailure
from pgmkit.regions.parts import confined, shared_residuals
from pgmkit.regions.polytope import LocalPolytope

Array = NDArray[np.float64]
TOTAL = 100.0


def drawn_polytope(seed: int) -> LocalPolytope:
    """Up to five attributes of one to four values, up to five tables, about half of the cells."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, int(rng.integers(2, 6)))
    domain = Domain({f"x{i}": int(size) for i, size in enumerate(sizes)})
    cliques: dict[frozenset[str], tuple[str, ...]] = {}
    for _ in range(int(rng.integers(1, 6))):
        names = rng.permutation(domain.attributes)[: int(rng.integers(1, 4))].tolist()
        cliques[frozenset(names)] = tuple(names)
    zeros = []
    for clique in cliques.values():
        allowed = rng.random(domain.shape(clique)) < 0.6
        if allowed.any() and rng.random() < 0.7:
            zeros.append(Zeros(clique, allowed))
    return LocalPolytope(domain, tuple(cliques.values()), TOTAL, tuple(zeros))


def written_out(polytope: LocalPolytope) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Equations A x = b of all tables' cells side by side, and the cells that zeros rule out."""
    domain, cliques = polytope.domain, polytope.cliques
    starts = polytope.offsets
    rows, sums = [], []
    ruled_out = np.zeros(starts[-1], dtype=np.bool_)
    cells = [list(itertools.product(*map(range, domain.shape(c)))) for c in cliques]
    for k, clique in enumerate(cliques):
        rows.append(np.zeros(starts[-1]))
        rows[-1][starts[k] : starts[k + 1]] = 1
        sums.append(polytope.total)
        for j, cell in enumerate(cells[k]):
            value = dict(zip(clique, cell, strict=True))
            ruled_out[starts[k] + j] = any(
                not z.allowed[tuple(value[name] for name in z.clique)]
                for z in polytope.zeros
                if set(z.clique) <= set(clique)
            )
    for (k, first), (m, second) in itertools.combinations(enumerate(cliques), 2):
        shared = [name for name in first if name in second]
        for values in itertools.product(*(range(domain.sizes[name]) for name in shared)):
            row = np.zeros(starts[-1])
            for place, clique, sign in ((k, first, 1.0), (m, second, -1.0)):
                for j, cell in enumerate(cells[place]):
                    held = dict(zip(clique, cell, strict=True))
                    if all(held[n] == v for n, v in zip(shared, values, strict=True)):
                        row[starts[place] + j] = sign
            rows.append(row)
            sums.append(0.0)
    return np.array(rows), np.array(sums), ruled_out


@pytest.mark.parametrize("seed", range(60))
def test_cells_ruled_out_are_zero_in_all_tables_that_agree(seed: int) -> None:
    polytope = drawn_polytope(seed)
    matrix, sums, ruled_out = written_out(polytope)
    bounds = [(0, 0 if out else None) for out in ruled_out]
    try:
        allowed = polytope.allowed
    except InvalidInput as refusal:
        assert "leave no possible record" in str(refusal)
        assert linprog(np.zeros(len(bounds)), A_eq=matrix, b_eq=sums, bounds=bounds).status == 2
        return
    assert not allowed[ruled_out].any()
    for cell in np.flatnonzero(~allowed & ~ruled_out):
        gain = np.zeros(len(bounds))
        gain[cell] = -1.0
        found = linprog(gain, A_eq=matrix, b_eq=sums, bounds=bounds)
        assert found.status == 2 or -found.fun == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("seed", range(60))
def test_residuals_are_confined_to_those_of_tables_with_these_cells(seed: int) -> None:
    polytope = drawn_polytope(seed)
    try:
        allowed = polytope.allowed
    except InvalidInput:
        pytest.skip("zeros that contradict each other have no tables")
    cliques, starts = polytope.cliques, polytope.offsets
    parts = [slice(a, b) for a, b in itertools.pairwise(starts)]
    whole = shared_residuals(polytope.domain, cliques)
    inside = [np.flatnonzero(allowed[part]) for part in parts]
    some = confined(whole, inside, TOTAL)
    # All tables with the total, of any sign, and the vector s that they share: M x - (0, s) = 0.
    size, equations, values = len(whole.offset), [], []
    for part, rows, places, cells in zip(parts, whole.rows, whole.places, inside, strict=True):
        block = np.zeros((len(rows), int(starts[-1]) + size))
        block[:, part.start + cells] = rows[:, cells]
        block[np.arange(1, len(rows)), starts[-1] + places] = -1.0
        equations.append(block)
        values.append(np.concatenate([[TOTAL], np.zeros(len(places))]))
    system, right = np.concatenate(equations), np.concatenate(values)
    one = np.linalg.lstsq(system, right, rcond=None)[0]
    if not np.allclose(system @ one, right):  # agreement has no solution at all, of any sign
        return
    reached = scipy.linalg.null_space(system)[starts[-1] :]
    free = np.eye(size) if some.free is None else some.free
    assert np.linalg.matrix_rank(reached, tol=1e-9) == free.shape[1]
    for s in (one[starts[-1] :], one[starts[-1] :] + reached.sum(axis=1)):
        np.testing.assert_allclose(some.offset + free @ (free.T @ (s - some.offset)), s, atol=1e-6)
    for rows in some.rows:
        assert np.linalg.matrix_rank(rows) == len(rows)
        assert (rows[0] == 1).all()


def few_cells() -> tuple[Domain, list[Measurement], list[Zeros]]:
    """One of three values is impossible, so that what two tables share depends on their total."""
    domain = Domain({"a": 2, "b": 1, "c": 3})
    skewed = [[-0.5, -0.9, 0.5], [-2.0, -1.2, 1.2], [0.3, -1.3, -0.8], [0.0, 1.2, -1.6]]
    measured = [
        Measurement(("b", "c"), [70.1, 87.1, 104.8], 10.5, matrix=[[1.0], np.tri(3)]),
        Measurement(("a",), [12.8, 131.8], 7.5, matrix=np.tri(2)),
        Measurement(("c",), [-57.2, -207.4, 49.2, -7.6], 1.4, matrix=np.array(skewed)),
        Measurement(("c",), [15.1, 26.5, 154.4], 3.6, matrix=np.tri(3)),
    ]
    return domain, measured, [Zeros(("c",), [True, False, True])]


@pytest.mark.parametrize("loss", ["squared", "huber", "absolute"])
def test_interior_points_need_no_more_steps_where_zeros_leave_few_cells(loss: str) -> None:
    domain, measured, zeros = few_cells()
    model = estimate(
        domain, measured, total=TOTAL, inference="region", tolerance=1e-5, zeros=zeros, loss=loss
    )
    assert model.certified and model.iterations <= 20


def test_tables_found_before_rounding_ends_the_search_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    domain, measured, zeros = few_cells()
    nearest, calls = LocalPolytope.nearest, itertools.count()

    def failing(self: LocalPolytope, *given: Array, deadline: float) -> tuple[Array, Array]:
        if next(calls) >= 2:
            raise NumericalFailure("no tables were found that agree with each other")
        return nearest(self, *given, deadline=deadline)

    monkeypatch.setattr(LocalPolytope, "nearest", failing)
    with pytest.warns(UserWarning, match="rounding: no tables were found"):
        model = estimate(domain, measured, total=TOTAL, inference="region", zeros=zeros)
    assert not model.certified and np.isfinite(model.loss)
    for table in model.tables.values():
        assert table.sum() == pytest.approx(TOTAL)
