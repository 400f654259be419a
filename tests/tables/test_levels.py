"""Levels of a column: refused unless every value has one group, and never contradictory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from chance import FALSE_ALARM
from scipy.optimize import nnls
from scipy.stats import binom

from mechanisms import synthesize
from pgmkit import Measurement, Schema, error_bars, estimate
from pgmkit.errors import InvalidInput
from pgmkit.queries import FactoredQuery
from pgmkit.tables.engines.frames import encode
from pgmkit.tables.files.noisy_tables import read_noisy_tables
from pgmkit.tables.labelled import Categorical, OpenCategorical
from pgmkit.tables.levels import Level
from pgmkit.tables.numbers import Integer
from pgmkit.tables.questions import ask

BLOCKS = tuple(f"b{i}" for i in range(9))
COUNTY = {"b0": "c1", "b1": "c1", "b2": "c1", "b3": "c1", "b4": "c1", "b5": "c2", "b6": "c2"} | {
    "b7": "c3",
    "b8": "c3",
}
TRACTS = {"t1": ["b0", "b1"], "t2": ["b2", "b3", "b4"], "t3": ["b5", "b6"], "t4": ["b7", "b8"]}
LEVELS = {
    # Above what it is a level of: the order does not matter.
    "county": Level("tract", {"c1": ["t1", "t2"], "c2": "t3", "c3": ["t4"]}),
    "tract": Level("block", TRACTS),
    "stage": Level("age", {"child": "..19", "grown": "20.."}),
}
COLUMNS = {"block": Categorical(BLOCKS), "age": Integer(0, 89, bins=9)}
SCHEMA = Schema(COLUMNS, levels=LEVELS)


def people(n: int = 2000) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"block": rng.choice(BLOCKS, n), "age": rng.integers(0, 90, n)})


def with_levels(frame: pd.DataFrame) -> pd.DataFrame:
    """The levels by plain lookups, apart from the schema's own."""
    tract = {block: name for name, blocks in TRACTS.items() for block in blocks}
    return frame.assign(
        county=frame["block"].map(COUNTY),
        tract=frame["block"].map(tract),
        stage=np.where(frame["age"] < 20, "child", "grown"),
    )


@pytest.mark.parametrize(
    ("question", "by", "kept"),
    [
        ("county", ["county"], "age >= 0"),
        ("tract x stage", ["tract", "stage"], "age >= 0"),
        ("age in steps of 30 | county", ["county", "thirty"], "age >= 0"),
        ("block | county = c1 and stage != child", ["block"], "county == 'c1' and age >= 20"),
        ("stage | tract in {t1, t3}, block != b0", ["stage"], "block in ['b1', 'b5', 'b6']"),
        ("count | county = c2 and tract = t3", [], "county == 'c2'"),
    ],
)  # fmt: skip
def test_answers_by_level_are_those_of_a_group_by(question: str, by: list[str], kept: str) -> None:
    frame = with_levels(people()).assign(thirty=lambda rows: rows["age"] // 30).query(kept)
    exact = Measurement(("block", "age"), encode(people(), SCHEMA).marginal(("block", "age")), 1e-3)
    model = estimate(SCHEMA.domain, [exact])
    found = np.asarray(ask(model, SCHEMA, question).columns["count"])
    wanted = frame.groupby(by).size().to_numpy() if by else np.array([len(frame)])
    np.testing.assert_allclose(found, wanted, atol=1e-3)


def test_records_have_every_level_and_files_keep_it(tmp_path: Path) -> None:
    """Whatever the data say of a level: it follows from the column below."""
    wrong = people().assign(county="nowhere")
    release = synthesize(wrong, SCHEMA, epsilon=1.0, delta=1e-6, mechanism="mst", seed=0)
    drawn = release.sample(500, rng=0)
    assert list(drawn.columns) == [*SCHEMA.columns, *LEVELS]
    pd.testing.assert_frame_equal(drawn, with_levels(drawn[["block", "age"]])[drawn.columns])
    some = release.sample(200, given={"county": "c1", "tract": ["t2", "t3"]}, rng=0)
    assert set(some["block"]) <= {"b2", "b3", "b4"}
    release.save(tmp_path / "out.pgm")
    assert type(release).load(tmp_path / "out.pgm").schema.levels == LEVELS
    for suffix in (".yaml", ".json"):
        SCHEMA.save(tmp_path / f"schema{suffix}")
        assert Schema.load(tmp_path / f"schema{suffix}") == SCHEMA


def test_missing_values_are_a_group_of_their_own() -> None:
    columns = {"block": Categorical(("a", "b"), missing=())}
    own = Schema(columns, levels={"area": Level("block", {"all": ["a", "b"]})})
    assert own.groups["area"].column.labels == ("all", "(missing)")
    joined = Schema(columns, levels={"area": Level("block", {"all": ["a", "b", "(missing)"]})})
    assert joined.groups["area"].column.labels == ("all",)
    codes = encode(pa.table({"block": ["a", None]}), own)
    assert own.decode(codes, np.random.default_rng(0))["area"].tolist() == ["all", None]


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        ({"a": Level("block", {"x": list(BLOCKS[:8])})}, "'b8' of 'block' is in 0 groups"),
        ({"a": Level("block", {"x": list(BLOCKS), "y": "b3"})}, "'b3' of 'block' is in 2 groups"),
        ({"a": Level("block", {"x": list(BLOCKS), "y": []})}, "'y' has no values"),
        ({"a": Level("block", {"x": [*BLOCKS, "b9"]})}, "no value 'b9'"),
        ({"a": Level("age", {"x": "..14", "y": "15.."})}, "level 'a'"),
        ({"a": Level("blocks", {"x": 1})}, "did you mean 'block'"),
        ({"a": Level("b", {"x": 1}), "b": Level("a", {"x": 1})}, "level of itself"),
        ({"block": Level("block", {"x": list(BLOCKS)})}, "change its name or its `of`"),
        ({"age": Level("block", {"x": list(BLOCKS)})}, "name of its own"),
        ({"": Level("block", {"x": list(BLOCKS)})}, "name of its own"),
        ({"a": Level("open", {"x": 1})}, "still to be found"),
        ({"a": 3}, "must be a Level"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_groups_that_are_no_tree_are_refused(levels: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Schema({**COLUMNS, "open": OpenCategorical()}, levels=levels)


@pytest.mark.parametrize(
    "wrong", [3, {"a": 3}, {"a": {"of": "block"}}, {"a": {"of": 3, "groups": {}}}]
)
def test_files_with_wrong_levels_are_refused(wrong: Any) -> None:  # fmt: skip
    with pytest.raises(InvalidInput, match="level"):
        Schema.from_dict(SCHEMA.to_dict() | {"levels": wrong})


@pytest.mark.parametrize(
    "question", ["tract x block", "county x tract", "cdf(tract)", "mean(stage)", "county = c9"]
)
def test_questions_that_no_level_answers_are_refused(question: str) -> None:
    model = estimate(SCHEMA.domain, [Measurement(("age",), np.ones(9), 1.0)])
    with pytest.raises(InvalidInput, match="twice|level|condition"):
        ask(model, SCHEMA, question)


def test_noisy_tables_name_levels(tmp_path: Path) -> None:
    """A line of a county is the sum over its blocks; two levels of one column must agree."""
    path = tmp_path / "table.csv"
    path.write_text("county,age,tract,count,stddev\nc1,0..9,t2,7,1\nc2,10..19,t3,8,1\n")
    (table,) = read_noisy_tables(path, SCHEMA)
    assert table.clique == ("age", "block") and table.matrix is not None
    rows = table.matrix.toarray().reshape(2, 9, 9)
    assert np.argwhere(rows[0]).tolist() == [[0, 2], [0, 3], [0, 4]]
    assert np.argwhere(rows[1]).tolist() == [[1, 5], [1, 6]]
    path.write_text("county,tract,count,stddev\nc1,t3,7,1\n")
    with pytest.raises(InvalidInput, match="line 2: no value of 'block' is in"):
        read_noisy_tables(path, SCHEMA)


def test_every_level_is_measured_where_all_tables_are_asked() -> None:
    """A county's noise is far below that of the sum of as many blocks measured alone."""
    blocks = tuple(f"b{i}" for i in range(64))
    halves = {"north": list(blocks[:32]), "south": list(blocks[32:])}
    columns = {"block": Categorical(blocks)}
    schemas = [Schema(columns), Schema(columns, levels={"half": Level("block", halves)})]
    frame = pd.DataFrame({"block": np.repeat(blocks, 100)})
    errors = []
    for schema in schemas:
        release = synthesize(
            frame, schema, epsilon=1.0, delta=1e-6, mechanism="matrix", workload=1, seed=0
        )
        errors.append(
            release.ask(f"count | block in {{{', '.join(blocks[:32])}}}").columns["stderr"]
        )
    assert errors[1] < 0.5 * errors[0]  # fmt: skip


def spine(rng: np.random.Generator) -> tuple[Schema, np.ndarray]:
    """A drawn tree of 8 to 40 blocks in tracts in counties, and true counts by block and code."""
    blocks, codes = int(rng.integers(8, 41)), int(rng.integers(2, 6))
    tracts = rng.integers(0, max(2, blocks // 4), blocks)
    above = rng.integers(0, 3, tracts.max() + 1)

    def groups(under: str, places: np.ndarray, name: str) -> dict[str, list[str]]:
        return {
            f"{name}{k}": [f"{under}{i}" for i in np.flatnonzero(places == k)]
            for k in np.unique(places)
        }

    known = np.unique(tracts)
    counties = {
        name: [each for each in below if int(each[1:]) in known]
        for name, below in groups("t", above, "c").items()
    }
    levels = {
        "tract": Level("block", groups("b", tracts, "t")),
        "county": Level("tract", {name: below for name, below in counties.items() if below}),
    }
    columns = {
        "block": Categorical(tuple(f"b{i}" for i in range(blocks))),
        "code": Integer(0, codes - 1),
    }
    rates = rng.gamma(0.5, 20, (blocks, codes)) * rng.gamma(0.5, 2, (blocks, 1))
    return Schema(columns, levels=levels), rng.poisson(rates).astype(float)


@pytest.mark.parametrize("spines", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_spines_beside_nonnegative_least_squares(spines: int) -> None:
    """Certified, as near to the truth at every level as scipy's own nonnegative fit, and covered.

    At one total both solve one problem, so their losses agree to a tenth of a noise unit. By
    default the total is that of least squares without a bound at zero.
    """
    rng = np.random.default_rng(0)
    squares: dict[str, Any] = {}
    covered: dict[str, Any] = {}
    for _ in range(spines):
        schema, truth = spine(rng)
        eye = np.eye(truth.shape[1])
        sums = {name: schema.groups[name].members().astype(float) for name in schema.levels}
        sums["block"] = np.eye(len(truth))
        noise = {name: float(rng.choice([1.0, 3.0, 6.0])) for name in sums}
        noisy = {
            n: m @ truth + rng.normal(0, noise[n], (len(m), len(eye))) for n, m in sums.items()
        }
        tables = [
            Measurement(("block", "code"), noisy[n].ravel(), noise[n], [m, eye])
            for n, m in sums.items()
        ]  # fmt: skip
        model = estimate(schema.domain, tables)
        assert model.certified
        found = model.marginal(("block", "code"))
        rows = np.vstack([np.kron(m, eye) / noise[n] for n, m in sums.items()])
        values = np.concatenate([noisy[n].ravel() / noise[n] for n in sums])
        other = nnls(rows, values)[0].reshape(truth.shape)
        for name, m in sums.items():
            own, peer = (np.sqrt(np.square(m @ (each - truth)).mean()) for each in (found, other))
            assert own <= peer + noise[name]
            squares[name] = squares.get(name, 0.0) + np.array([own**2, peer**2]) / noise[name] ** 2
        same = estimate(schema.domain, tables, total=other.sum()).marginal(("block", "code"))
        loss, least = (np.square(rows @ x.ravel() - values).sum() / 2 for x in (same, other))
        assert loss <= least + 0.1 * np.sqrt(len(values) / 2)
        bars = error_bars(model, tables, seed=0)
        for name, m in sums.items():
            found = bars.answer(FactoredQuery({"block": m, "code": eye}))
            exact = (m @ truth).reshape(found.low.shape)
            held = ((found.low <= exact) & (exact <= found.high)).sum()
            covered[name] = covered.get(name, 0) + np.array([held, exact.size])
    for own, peer in squares.values():
        assert own <= 1.1 * peer
    # Cells of counties share little noise: nearly independent draws. Below them counts are bounded
    # by zero, and intervals that end there hold the truth more often.
    held, asked = covered["county"]
    assert held <= binom.isf(FALSE_ALARM, asked, 0.97)
    for held, asked in covered.values():
        assert held >= binom.ppf(FALSE_ALARM, asked, 0.93)


@pytest.mark.parametrize("of", ["", 3, None])
def test_a_level_is_of_a_name(of: Any) -> None:
    with pytest.raises(InvalidInput, match="of must be a text|needs `of`"):
        Level(of, {"a": ["b"]})


def test_names_of_groups_are_texts() -> None:
    groups: dict[Any, str] = {1: "..19", 2.0: "20.."}
    assert Level("age", groups).groups == {"1": "..19", "2": "20.."}


def test_names_of_groups_differ_as_texts() -> None:
    groups: dict[Any, str] = {1: "..19", "1": "..30"}
    with pytest.raises(InvalidInput, match="differ as texts"):
        Level("age", groups)
