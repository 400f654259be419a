"""Mechanisms that measure everything at once, where no tree holds what they measured."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mechanisms import Release, TableRelease, synthesize
from pgmkit import Boolean, FromRecords, Measurement, RegionModel, Schema, estimate
from pgmkit.errors import InvalidInput

ROWS = 4000


def frame(seed: int) -> pd.DataFrame:
    """Seven columns that all depend on a hidden one."""
    rng = np.random.default_rng(seed)
    hidden = rng.integers(3, size=ROWS)
    columns = {}
    for i in range(7):
        chances = rng.dirichlet(np.full(4, 0.5), size=3).cumsum(1)
        columns[f"c{i}"] = (rng.random(ROWS)[:, None] > chances[hidden]).sum(1).clip(0, 3)
    return pd.DataFrame(columns)


SCHEMA = Schema.from_dict(
    {"columns": {f"c{i}": {"type": "integer", "low": 0, "high": 3} for i in range(7)}}
)


def released(mechanism: str, **settings: object) -> TableRelease:
    return synthesize(
        frame(0),
        SCHEMA,
        epsilon=5.0,
        delta=1e-9,
        mechanism=mechanism,
        workload=2,
        settings={"model_mb": 1e-4, **settings},
        seed=0,
    )


@pytest.mark.parametrize("mechanism", ["gaussian+projection", "matrix+pgm"])
def test_records_come_from_a_region_model_where_it_is_asked_for(
    mechanism: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match='inference="auto"'):
        released(mechanism).sample(10, rng=0)
    release = released(mechanism, inference="auto")
    assert isinstance(release.model, RegionModel)
    assert release.model.certified
    data, drawn = frame(0), release.sample(20_000, rng=0)
    for a, b in [("c0", "c1"), ("c2", "c5"), ("c3", "c6")]:
        true = pd.crosstab(data[a], data[b], normalize=True).reindex(
            index=range(4), columns=range(4), fill_value=0
        )
        made = pd.crosstab(drawn[a], drawn[b], normalize=True).reindex(
            index=range(4), columns=range(4), fill_value=0
        )
        apart = float(np.abs(true - made).to_numpy().sum() / 2)
        independent = np.outer(true.sum(axis=1), true.sum(axis=0))
        assert apart < 0.05
        assert apart < float(np.abs(true.to_numpy() - independent).sum() / 2) / 2
    release.save(tmp_path / "release.pgm")
    again = TableRelease.load(tmp_path / "release.pgm")
    assert isinstance(again.model, RegionModel)
    assert again.codes(100, rng=1).columns["c3"].tolist() == (
        release.codes(100, rng=1).columns["c3"].tolist()
    )
    assert str(again.ask("c0 | c1 = 2")) == str(release.ask("c0 | c1 = 2"))
    assert set(again.codes(200, given="c1 = 2", rng=0).columns["c1"].tolist()) == {2}
    with pytest.warns(FromRecords):
        again.ask("c0 | c1 = 2, c3 = 1")
    assert again.bars(20, seed=0).marginal(("c0", "c1")).method == "closed form"


@pytest.mark.filterwarnings("ignore::pgmkit.FromRecords")
def test_error_bars_of_a_region_model_are_told_of_and_computed_for_a_number_of_replicates() -> None:
    names = ("a", "b", "c")
    schema = Schema({name: Boolean() for name in names})
    noisy = [
        Measurement(pair, [[40.0, 20.0], [15.0, 25.0]], 2.0) for pair in combinations(names, 2)
    ]
    model = estimate(schema.domain, noisy, total=100.0, inference="region")
    release = TableRelease(Release("estimate", model, tuple(noisy), None, None), schema)
    unasked = release.table(*names)
    assert "stderr" not in unasked.columns
    assert "error_bars=True" in unasked.notes[0]
    asked = release.table(*names, replicates=20)
    assert (np.asarray(asked.columns["stderr"]) > 0).all()
