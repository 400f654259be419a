"""What a run that does not end keeps: the noisy tables that it had paid for, and nothing exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from replay import Charge, recorded, replay
from taint import marked, marks_in
from test_replay import BUDGETS, DOMAIN, PAIRS, PUBLIC, drawn, neighbour, quick
from test_taint import assert_kept

from mechanisms import MECHANISMS, Curator, TableRelease, configure, run, synthesize
from mechanisms.privacy.ledger import Ledger
from mechanisms.privacy.neighbours import NEIGHBOURS
from pgmkit import Forbid, Integer, InvalidInput, Measurement, Numeric, Schema, estimate
from pgmkit.records.dataset import Dataset

pytestmark = pytest.mark.usefixtures("short_fits")
SCHEMA = Schema({name: Integer(0, size - 1) for name, size in DOMAIN.sizes.items()})


def interrupted(data: Any, schema: Schema = SCHEMA, rounds: int = 2, **options: Any) -> Any:
    """What a run that is interrupted after some rounds keeps."""

    def stop(finished: Any) -> None:
        if finished.index == rounds - 1:
            raise KeyboardInterrupt

    wanted = {"mechanism": "mwem+pgm", "epsilon": 3.0, "delta": 1e-6, "progress": stop, **options}
    with pytest.raises(KeyboardInterrupt) as caught:
        synthesize(data, schema, **wanted)
    (note,) = caught.value.__notes__
    kept = caught.value.unfinished
    assert f"had been paid for: {len(kept.measurements)};" in note
    return kept


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_noisy_tables_become_a_release_at_no_cost(relation: str, tmp_path: Path) -> None:
    data = drawn(np.random.default_rng(1), 500)
    kept = interrupted(data, neighbours=relation, seed=0)
    assert len(kept.measurements) == 5  # three columns and two pairs
    with pytest.raises(InvalidInput, match="the run did not end"):
        kept.ask("a")
    assert kept._repr_html_() and not kept.secure
    kept.save(tmp_path / "kept.pgm")
    again = TableRelease.load(tmp_path / "kept.pgm")
    before = kept.ledger.to_dict()
    for each in (kept, again):
        release = each.estimated()
        assert release.ledger.to_dict() == before
        total = 500 if relation == "replace-one" else None
        expected = estimate(DOMAIN, kept.measurements, total=total)
        for pair in PAIRS.cliques:
            assert np.allclose(release.model.marginal(pair), expected.marginal(pair), atol=1e-3)
        if total:
            assert release.model.total == total
    assert release.ask("a").columns["stderr"] is not None
    release.save(tmp_path / "release.pgm")
    assert TableRelease.load(tmp_path / "release.pgm").mechanism == "mwem+pgm, unfinished"


@pytest.mark.parametrize("relation", NEIGHBOURS)
def test_what_is_kept_depends_on_the_data_by_noise_alone(relation: str, tmp_path: Path) -> None:
    """The same noisy answers, forced upon a neighbour, leave the same file."""
    rng = np.random.default_rng(2)
    data = drawn(rng)

    def job(data: Dataset) -> TableRelease:
        return interrupted(data, neighbours=relation)

    replay(job, data, neighbour(data, relation, rng), tmp_path, pure=False)


def test_nothing_exact_is_kept(tmp_path: Path) -> None:
    with marked() as marks:
        kept = interrupted(drawn(np.random.default_rng(3)))
        assert marks_in(kept) == 0
        kept.save(tmp_path / "kept.pgm")
        assert kept.estimated().sample(3, rng=0).num_rows == 3
    assert_kept(marks)


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_keeps_its_noisy_tables(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails at its last charge has every noisy table that was drawn before."""
    entry, settings = configure(name, **quick(name))
    public = {"public": PUBLIC} if entry.public else {}
    data, budget = drawn(np.random.default_rng(4)), BUDGETS["zCDP"]
    charge = Ledger.charge

    def failing(self: Ledger, step: str, mechanism: str, cost: float, delta: float = 0.0) -> None:
        if self.entries and self.spent + cost >= 0.999 * self.budget.total:
            raise MemoryError
        charge(self, step, mechanism, cost, delta)

    monkeypatch.setattr(Ledger, "charge", failing)
    with recorded() as transcript, pytest.raises(MemoryError) as caught:
        run(settings, data, PAIRS, budget.epsilon, budget.delta, neighbours="add/remove", **public)
    kept = getattr(caught.value, "unfinished", None)
    values, step = 0, ""
    for each in transcript.events:
        if isinstance(each, Charge):
            step = each.step
        elif each.law in ("gaussian", "laplace") and "errors" not in step:  # those are distances
            values += each.exact.size
    assert (kept is None) == (values == 0)
    if kept is not None:
        assert sum(len(each.values) for each in kept.measurements) == values
        assert kept.ledger.spent < budget.total


def test_columns_without_a_table_are_left_out_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measure = Curator.measure

    def failing(self: Curator, clique: Any, cost: float, **options: Any) -> Measurement:
        if "b" in clique:
            raise MemoryError
        return measure(self, clique, cost, **options)

    monkeypatch.setattr(Curator, "measure", failing)
    data = drawn(np.random.default_rng(5))
    with pytest.raises(MemoryError) as caught:
        synthesize(data, SCHEMA, epsilon=100.0, delta=1e-6, mechanism="mwem+pgm")
    kept = caught.value.unfinished  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="left out of the model: b, c"):
        release = kept.estimated()
    assert list(release.schema.columns) == ["a"]


def test_what_was_measured_before_columns_were_found_is_no_table() -> None:
    """The counts by which quantiles are found are over other codes."""
    frame = pa.table({"a": [0, 1, 2, 3] * 200, "c": [float(i % 50) for i in range(800)]})
    quarters = Numeric(0, 50, bins=4, quantiles=True, outside="clip")
    schema = Schema({"a": Integer(0, 3, outside="clip"), "c": quarters})
    kept = interrupted(frame, schema, rounds=1, seed=0)
    assert kept.schema.domain == kept.model.domain and not kept.schema.unresolved
    assert {each.step.split()[0] for each in kept.ledger.entries} >= {"quantiles:"}
    assert len(kept.estimated().table("c").columns["count"]) == 4


def test_what_the_schema_rules_out_stays_ruled_out() -> None:
    rule = Forbid({"a": [0], "c": [3]})
    ruled = Schema(SCHEMA.columns, constraints=[rule])
    data = Dataset(DOMAIN, {"a": [1, 0] * 50, "b": [0, 2] * 50, "c": [3, 0] * 50})
    release = interrupted(data, ruled, seed=0).estimated()
    assert release.model.marginal(["a", "c"])[0, 3] == 0


def test_a_finished_release_is_estimated_again() -> None:
    """A mixture answers questions about three columns with error bars then."""
    data = drawn(np.random.default_rng(6), 300)
    release = synthesize(data, SCHEMA, epsilon=5.0, delta=1e-6, mechanism="mixture", seed=0)
    again = release.estimated().estimated()
    assert again.mechanism == "mixture, estimated"
    assert again.ask("a, b, c", error_bars=True).columns["stderr"] is not None
    assert again.model.total == release.model.total
