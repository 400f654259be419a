"""Tables that are known exactly: the model has them, and refuses what cannot be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from mechanisms import synthesize
from mechanisms.cli import main
from mechanisms.release.exact import with_exact
from mechanisms.release.quick_bars import gaussian_level, without_bars
from mechanisms.release.record import Release
from mechanisms.release.report import html
from mechanisms.release.tabular import TableRelease
from pgmkit import Categorical, Forbid, Integer, Level, Schema, estimate
from pgmkit.errors import InvalidInput
from pgmkit.measurement import Measurement

BLOCKS = [f"b{i}" for i in range(12)]
SCHEMA = Schema(
    {
        "block": Categorical(BLOCKS),
        "age": Integer(0, 89, bins=9),
        "ill": Categorical(["no", "yes"]),
    },
    [Forbid({"age": "0..9", "ill": "yes"})],
    levels={"half": Level("block", {"north": BLOCKS[:6], "south": BLOCKS[6:]})},
)  # fmt: skip


def people() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.integers(0, 90, 3000)
    ill = np.where((age > 9) & (rng.random(3000) < age / 100), "yes", "no")
    return pd.DataFrame({"block": rng.choice(BLOCKS, 3000), "age": age, "ill": ill})


def released(mechanism: str) -> TableRelease:
    settings = {"inference": "auto"} if mechanism == "matrix+pgm" else {}
    return synthesize(
        people(),
        SCHEMA,
        epsilon=0.5,
        delta=1e-6,
        mechanism=mechanism,
        settings=settings,
        seed=0,
    )


@pytest.mark.parametrize("mechanism", ["mst", "matrix+pgm"])
def test_exact_tables_are_the_models(mechanism: str, tmp_path: Path) -> None:
    frame = people()
    blocks = frame["block"].value_counts().reindex(BLOCKS)
    blocks.rename_axis("block").to_csv(tmp_path / "blocks.csv")
    south = frame[frame["block"].isin(BLOCKS[6:])]["ill"].value_counts()
    (tmp_path / "south.csv").write_text(
        f"half,ill,count\nsouth,no,{south['no']}\nsouth,yes,{south['yes']}\n"
    )
    before = released(mechanism)
    release = before.with_exact(tmp_path / "blocks.csv", tmp_path / "south.csv")
    found = release.ask("block", error_bars=False).columns
    np.testing.assert_allclose(found["count"], blocks, atol=0.3)
    halves = release.ask("ill | half = south", error_bars=False).columns["count"]
    np.testing.assert_allclose(halves, south[["no", "yes"]], atol=0.3)
    assert np.abs(before.ask("block", error_bars=False).columns["count"] - blocks).max() > 2
    assert release.certified and release.ledger is before.ledger
    # What exact tables do not touch has intervals and marks of the same noise as before.
    assert gaussian_level(release.release, 0.95) == gaussian_level(before.release, 0.95)
    reply = before.ask("block x age", error_bars=False)
    one, other = (without_bars(each.release, ["block", "age"], reply) for each in (before, release))
    assert one.notes == other.notes and "note" in one.columns
    assert (
        release.ask("count | age in 0..9 and ill = yes", error_bars=False).columns["count"][0] == 0
    )
    drawn = release.sample(3000, rng=0)["block"].value_counts().reindex(BLOCKS)
    assert np.abs(drawn - blocks).max() <= 3
    release.save(tmp_path / "out.pgm")
    again = TableRelease.load(tmp_path / "out.pgm").ask("block").columns["count"]
    np.testing.assert_array_equal(again, found["count"])


@pytest.mark.parametrize("mechanism", ["mst", "matrix+pgm"])
def test_a_public_number_of_rows_stays_known(mechanism: str, tmp_path: Path) -> None:
    (tmp_path / "block.csv").write_text("block,count\nb0,250\n")
    data = people()[["block", "ill"]]
    schema = Schema({name: SCHEMA.columns[name] for name in data})
    asked = {"epsilon": 0.5, "delta": 1e-6, "neighbours": "replace-one", "mechanism": mechanism}
    made = synthesize(data, schema, seed=0, **asked).with_exact(tmp_path / "block.csv")
    assert made.model.total == 3000
    found = made.ask("count | block = b0", error_bars=False).columns
    assert found["count"] == pytest.approx([250], abs=0.3)


def test_what_the_promise_does_not_cover_is_said(tmp_path: Path) -> None:
    """Also of a saved release, and where tables are added twice."""
    (tmp_path / "ill.csv").write_text("ill,count\nno,1500\nyes,1500\n")
    (tmp_path / "block.csv").write_text("block,count\nb0,250\n")
    before = released("mst")
    made = before.with_exact(tmp_path / "ill.csv").with_exact(tmp_path / "block.csv")
    assert made.ask("ill").columns["count"] == pytest.approx([1500, 1500], abs=0.3)
    made.save(tmp_path / "a.pgm")
    said = "the promise does not cover 2 tables that were given exactly"
    for release in (made, TableRelease.load(tmp_path / "a.pgm")):
        assert release.exception == said and "2 exact" in repr(release)
        assert len(release.measurements) == len(before.measurements) + 2
        page = html(release)
        assert page.count(said) == 3 and said in release._repr_html_()
        assert "hold whatever is done" not in page and "holds whatever is done" not in page
        assert f"{len(before.measurements)} noisy tables were measured" in page
    assert said in CliRunner().invoke(main, ["ledger", str(tmp_path / "a.pgm")]).output
    assert before.exception == "" and "does not cover" not in html(before)


def test_exact_tables_beside_noisy_ones_of_others_are_counted_apart(tmp_path: Path) -> None:
    (tmp_path / "ill.csv").write_text("ill,count\nno,60\nyes,40\n")
    schema = Schema({"ill": SCHEMA.columns["ill"]})
    noisy = (Measurement(("ill",), [58.0, 43.0], 2.0),)
    model = estimate(schema.domain, noisy)
    release = TableRelease(Release("tables", model, noisy, None, None), schema)
    made = release.with_exact(tmp_path / "ill.csv")
    assert "was estimated from 1 noisy and 1 exact tables" in html(made)
    assert made.reason.startswith("its model also has exact tables")
    assert "model of 1 column was estimated from 1 noisy table with" in html(release)


def test_exact_tables_that_cannot_be_are_refused(tmp_path: Path) -> None:
    (tmp_path / "age.csv").write_text("age,ill,count\n0..9,yes,5\n")
    (tmp_path / "one.csv").write_text("half,count\nnorth,5\nsouth,7\n")
    (tmp_path / "two.csv").write_text("block,count\nb0,500\n")
    release = released("mst")
    for paths in (["age.csv"], ["one.csv", "two.csv"]):
        with pytest.raises(InvalidInput, match="missed by"):
            release.with_exact(*(tmp_path / path for path in paths))
    for stddevs in (("50", "50"), ("10", "50"), ("0", "50")):
        lines = [f"north,5,{stddevs[0]}", f"south,7,{stddevs[1]}"]
        (tmp_path / "noisy.csv").write_text("\n".join(["half,count,stddev", *lines]))
        with pytest.raises(InvalidInput, match="states noise"):
            release.with_exact(tmp_path / "noisy.csv")
    plain = Schema({"ill": Categorical(["no", "yes"])})
    other = synthesize(people(), plain, epsilon=0.5, delta=1e-6, mechanism="matrix", seed=0)
    with pytest.raises(InvalidInput, match="graphical model"):
        other.with_exact(tmp_path / "age.csv")
    with pytest.raises(InvalidInput, match="paths is empty"):
        release.with_exact()


def test_exact_tables_are_surer_than_a_count_and_than_any_noise(tmp_path: Path) -> None:
    """In units of a query's largest weight, a part of the least noise; a quarter count at most."""
    (tmp_path / "ill.csv").write_text("ill,count\nno,60\nyes,40\n")
    model = released("mst").release.model
    weights = np.array([[-4.0, 1.0]])
    ledger = released("mst").ledger
    for stddev, expected in ((2.0, 0.01 * 2.0 / 4), (4e3, 0.25)):
        paid = (Measurement(("ill",), [3.0], stddev, weights),)
        before = Release("mst", model, paid, ledger, None)
        found = with_exact(before, Schema({"ill": SCHEMA.columns["ill"]}), [tmp_path / "ill.csv"])
        assert found.measurements[-1].stddev == pytest.approx(expected)
