"""Releases: one file there and back, and what is refused."""

import dataclasses
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import scipy.sparse
from pricing import cut
from scipy.special import ndtri
from scipy.stats import binom, laplace, norm

from mechanisms import MECHANISMS, run
from mechanisms.datasets.census import census
from mechanisms.privacy.budget import Budget
from mechanisms.privacy.ledger import Ledger
from mechanisms.registry import configure
from mechanisms.release.quick_bars import gaussian_level, without_bars
from mechanisms.release.record import Release
from mechanisms.release.tabular import TableRelease
from mechanisms.synthesis.pipeline import synthesize
from mechanisms.workload import k_way
from pgmkit import (
    Boolean,
    Categorical,
    Contradictory,
    Integer,
    InvalidInput,
    Kronecker,
    Measurement,
    Schema,
    ask,
    estimate,
)
from pgmkit.queries import prefix
from pgmkit.tables.question_grammar import parse

DATA = census(300).project(["sex", "work", "income"])
PAIRS = k_way(DATA.domain, 2)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_release_comes_back_the_same(tmp_path: Path, name: str) -> None:
    public = {}
    if MECHANISMS[name].public:
        public = {"public": census(200).project(list(DATA.domain))}
    settings = configure(name, **cut(name))[1]
    release = run(settings, DATA, PAIRS, 1.0, 1e-6, neighbours="replace-one", seed=0, **public)
    release.save(tmp_path / "release")
    again = Release.load(tmp_path / "release")
    assert again.mechanism == name and again.settings == release.settings
    assert str(again.ledger) == str(release.ledger) and not again.secure
    for pair in PAIRS.cliques:
        np.testing.assert_allclose(again.model.marginal(pair), release.model.marginal(pair))
    assert len(again.measurements) == len(release.measurements)
    for one, other in zip(again.measurements, release.measurements, strict=True):
        assert one.clique == other.clique and one.stddev == other.stddev
        np.testing.assert_array_equal(one.values, other.values)


@pytest.mark.parametrize("name", ["mst", "mixture", "mwem"])
def test_a_release_is_read_without_a_folder_for_temporary_files(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = census(300).project(["age", "sex", "region"])
    release = run(name, data, k_way(data.domain, 2), 5.0, 1e-6, neighbours="add/remove", seed=0)
    release.save(tmp_path / "r.pgm")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    loaded = Release.load(tmp_path / "r.pgm")
    found, was = (r.model.marginals([("age", "sex")])["age", "sex"] for r in (loaded, release))
    np.testing.assert_allclose(found, was)


def test_settings_of_a_mechanism_that_is_unknown_here_outlast_a_second_file(tmp_path: Path) -> None:
    noisy = Measurement(("sex",), [30.0, 40.0], 1.0)
    model = estimate(DATA.domain.project(("sex",)), [noisy])
    release = Release("elsewhere", model, (noisy,), None, {"rounds": 2})
    for name in ("first", "second"):
        release.save(tmp_path / name)
        release = Release.load(tmp_path / name)
        assert release.settings == {"rounds": 2}


def test_every_kind_of_matrix_comes_back(tmp_path: Path) -> None:
    n = DATA.domain.sizes["work"]
    measurements = (
        Measurement(("work",), np.arange(n), 1.0, prefix(n)),
        Measurement(("work",), np.arange(n), 1.0, scipy.sparse.csr_array(np.eye(n))),
        Measurement(("sex", "work"), np.arange(2 * n), 2.0, Kronecker([np.eye(2), prefix(n)])),
    )
    model = estimate(DATA.domain, measurements, total=100.0)
    ledger = Ledger(Budget(1.0, 1e-6, 1e-7), neighbours="add/remove")
    Release("by hand", model, measurements, ledger, None, {"columns": {}}).save(tmp_path / "r")
    again = Release.load(tmp_path / "r")
    assert again.schema == {"columns": {}} and again.ledger.budget == ledger.budget
    for one, other in zip(again.measurements, measurements, strict=True):
        assert type(one.matrix) is type(other.matrix)
        cells = DATA.domain.size(one.clique)
        x = np.random.default_rng(0).random(cells)
        np.testing.assert_array_equal(_times(one.matrix, x), _times(other.matrix, x))


def _times(matrix: object, x: np.ndarray) -> np.ndarray:
    return matrix.matvec(x) if isinstance(matrix, Kronecker) else matrix @ x


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_bytes(b"PK nothing")
    with pytest.raises(InvalidInput, match="not a release file"):
        Release.load(path)
    with pytest.raises(FileNotFoundError):
        Release.load(tmp_path / "absent")
    release = run("mst", DATA, PAIRS, 1.0, 1e-6, neighbours="replace-one", seed=0)
    release.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidInput, match="not a release file"):
        Release.load(path)


def test_settings_hold_nothing_that_json_does_not() -> None:
    for entry in MECHANISMS.values():
        for field in dataclasses.fields(entry.load()[1]()):
            value = getattr(entry.load()[1](), field.name)
            assert isinstance(value, int | float | str | tuple | dict | type(None)), field.name


def test_a_contradiction_is_told_with_every_table_and_answer() -> None:
    schema = Schema({"a": Boolean(), "b": Boolean()})
    tables = (
        Measurement(("a",), [70.0, 10.0], 1.0),
        Measurement(("a", "b"), [[5.0, 5.0], [300.0, 20.0]], 1.0),
    )
    with pytest.warns(Contradictory):
        model = estimate(schema.domain, tables)
    release = TableRelease(Release("tables", model, tables, None, None), schema)
    for reply in (release.ask("a"), release.table("a"), release.table("a", replicates=20)):
        assert any(note.startswith("careful: the tables contradict") for note in reply.notes)


def test_counts_are_unreliable_by_the_noise_in_counts() -> None:
    """Nine times each count was measured, with noise of 9: a count has noise of 1."""
    schema = Schema({"a": Boolean()})
    tables = (Measurement(("a",), [180.0, 18.0], 9.0, 9 * np.eye(2)),)
    model = estimate(schema.domain, tables)
    release = Release("tables", model, tables, None, None)
    noted = without_bars(release, ["a"], ask(model, schema, "a"))
    said = "1 of 2 lines have fewer than 3 records, three times the noise of a measured cell (1)"
    assert noted.notes[0] == f"UNRELIABLE: {said}"
    assert noted.columns["note"] == ["", "unreliable"]


def test_an_answer_about_columns_that_no_table_has_together_says_so() -> None:
    schema = Schema({"a": Boolean(), "b": Boolean(), "c": Boolean(), "one": Categorical(("x",))})
    pairs = [("a", "b"), ("b", "c")]
    tables = tuple(Measurement(pair, [[40.0, 10.0], [10.0, 40.0]], 1.0) for pair in pairs)
    model = estimate(schema.domain, tables)
    release = Release("tables", model, tables, None, None)
    no = ["a, b", "c | b = true", "a", "a, one"]
    for asked, guessed in (*((each, False) for each in no), ("a, c, one", True)):
        columns = parse(schema, asked).columns
        notes = without_bars(release, columns, ask(model, schema, asked)).notes
        told = [note for note in notes if "not measured together: how they depend" in note]
        assert bool(told) == guessed, asked
    assert told[0].startswith("a, c were")


def test_the_class_has_the_attributes_of_its_release() -> None:
    for name in ("model", "mechanism", "measurements", "ledger", "settings", "secure", "reason"):
        assert hasattr(TableRelease, name)


@pytest.mark.parametrize("exact", [-1, 3])
def test_no_more_tables_are_exact_than_there_are(exact: int) -> None:
    tables = tuple(Measurement(("sex",), [1.0, 2.0], 1.0) for _ in range(2))
    model = estimate(DATA.domain.project(["sex"]), tables)
    with pytest.raises(InvalidInput, match="exact must be a whole number of tables from 0 to 2"):
        Release("aim", model, tables, None, None, exact=exact)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 0.0), (1.7, 0.0), (7.0, 1e-9), (9.0, 1e-9)])
def test_intervals_hold_discrete_noise_at_their_level(epsilon: float, delta: float) -> None:
    """Single counts and sums of two, far from 0, beside the true ones; the noise is Laplace or
    Gaussian noise in whole numbers, in all but the first case of a standard deviation of about 1.
    Coverage is a binomial number; that of right intervals is below the limit once in a million
    tests of 8 levels.
    """
    places, each = 4000, 150
    data = pyarrow.table({"place": np.repeat(np.arange(places), each)})
    schema = Schema({"place": Integer(0, places - 1)})
    release = synthesize(
        data, schema, epsilon=epsilon, delta=delta, mechanism="independent", seed=0
    )
    for question, truth in [("place", each), ("place in steps of 2", 2 * each)]:
        for level in (0.8, 0.95, 0.99, 0.999):
            found = release.ask(question, level=level).columns
            held = (np.asarray(found["low"]) <= truth) & (truth <= np.asarray(found["high"]))
            assert held.sum() >= binom.ppf(1e-6 / 8, len(held), level)
    # A model of tables from elsewhere keeps the level that is asked for.
    assert gaussian_level(dataclasses.replace(release.release, ledger=None), 0.99) == 0.99
    noise = laplace(scale=0.5**0.5) if delta == 0 else norm()
    wide = noise.ppf(0.995) + 0.5 / release.release.measurements[0].stddev
    assert ndtri((1 + gaussian_level(release.release, 0.99)) / 2) == pytest.approx(wide)
    for odd in (1 - 1e-15, 0.0, 1.0, np.nan):
        with pytest.raises(InvalidInput, match="level") if odd != 1 - 1e-15 else nullcontext():
            release.ask("place", level=odd)
