"""Drafts of numbers that crowd at one end, of printed decimals, and of long lists of labels."""

import csv
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml

from pgmkit import Schema
from pgmkit.errors import InvalidInput
from pgmkit.tables.draft.column import draft_column
from pgmkit.tables.draft.draft import draft
from pgmkit.tables.draft.edges import crowded_edges
from pgmkit.tables.files.record_files import encode_file, write_records
from pgmkit.tables.labelled import Categorical, OpenCategorical
from pgmkit.tables.numbers import Integer, Numeric
from pgmkit.tables.values import tallied

SKEWED = {
    "lognormal": lambda rng, n: rng.lognormal(rng.uniform(-3, 12), rng.uniform(0.9, 2), n),
    "pareto": lambda rng, n: rng.pareto(rng.uniform(2.1, 3), n) * 10 ** rng.uniform(-2, 5),
    "negative": lambda rng, n: -(rng.exponential(10 ** rng.uniform(0, 4), n) ** 1.5),
    "far from zero": lambda rng, n: 1e6 + rng.lognormal(3, 1.2, n),
}


def numbers_of(texts: list[str]) -> np.ndarray:
    return np.array([float(text) for text in texts])


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 3, 4))]
)
@pytest.mark.parametrize("name", SKEWED)
def test_crowded_numbers_get_bins_of_few_rows(name: str, seed: int, whole: bool) -> None:
    rng = np.random.default_rng([seed, whole])
    values = SKEWED[name](rng, int(rng.integers(400, 20_000)))
    texts = [f"{value:.{0 if whole else 3}f}" for value in values]
    column = draft_column(tallied(np.array(texts))).column
    if column is None or isinstance(column, Categorical):
        pytest.skip("a few whole numbers, or an identifier")
    assert isinstance(column, Integer if whole else Numeric)
    numbers = numbers_of(texts)
    equal, _ = np.histogram(numbers, 20)
    spikes = np.isin(numbers, column.spikes)
    alone = [float(e) - float(s) == 1 for s, e in pairwise(column.positions)]
    codes = column.encode(np.array(texts))
    assert (codes >= 0).all()
    shares = np.bincount(codes[~spikes], minlength=column.size) / (~spikes).sum()
    if column.edges is None:
        # The rule itself may leave spikes out, which lie in one bin or two.
        assert equal.max() <= 0.3 * len(numbers) + spikes.sum() or whole
        return
    assert (np.diff(column.edges) > 0).all()
    wide = shares[[not one for one in alone]] if whole else shares
    # An edge may move by half of the distance to its neighbour.
    assert wide.max() <= 0.16
    gaps = np.diff(column.edges)
    for edge, before, after in zip(column.edges[1:-1], gaps[:-1], gaps[1:], strict=True):
        shown = np.format_float_positional(abs(edge) + 0.0, trim="-")
        digits = len(shown.replace(".", "").strip("0"))
        assert digits <= 2 + max(0, np.floor(np.log10(abs(edge) / min(before, after) + 1)))


def test_the_rows_between_edges_are_counted_another_way() -> None:
    rng = np.random.default_rng(3)
    values = np.round(rng.lognormal(8, 1.5, 4000)).astype(int)
    counts = {int(v): int((values == v).sum()) for v in np.unique(values)}
    edges = crowded_edges(counts, int(values.min()), int(values.max()), 20, whole=True)
    assert edges is not None
    exact = np.quantile(values, [0.005, 0.01, 0.025, *np.arange(1, 20) / 20, 0.975, 0.99, 0.995])
    for edge in edges[1:-1]:
        # Each stands near some quantile: by a twentieth of the rows at most.
        assert min(abs((values <= edge).mean() - (values <= each).mean()) for each in exact) < 0.03


@pytest.mark.parametrize("seed", range(5))
def test_numbers_that_do_not_crowd_keep_bins_of_equal_width(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for values in (rng.normal(50, 9, 3000), rng.uniform(3, 900, 3000), rng.gamma(6, 50, 3000)):
        column = draft_column(tallied(np.array([f"{value:.2f}" for value in values]))).column
        assert isinstance(column, Numeric) and (column.bins, column.edges) == (20, None)


def test_the_mean_and_the_median_of_skewed_incomes_survive_the_bins() -> None:
    rng = np.random.default_rng(5)
    values = np.where(rng.random(20_000) < 0.1, 0, rng.lognormal(10, 0.9, 20_000)).round(2)
    texts = np.array([f"{value:.2f}" for value in values])
    column = draft_column(tallied(texts)).column
    assert isinstance(column, Numeric) and column.edges is not None and column.spikes == (0.0,)
    decoded = column.decode(column.encode(texts), rng).astype(float)
    assert np.mean(decoded) == pytest.approx(values.mean(), rel=0.03)
    assert np.median(decoded) == pytest.approx(np.median(values), rel=0.01)
    equal = Numeric(0, values.max(), bins=20)
    flat = equal.decode(equal.encode(texts), rng).astype(float)
    assert abs(np.median(flat) / np.median(values) - 1) > 0.1


def test_trailing_zeros_are_written_where_all_decimals_were(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    amounts = rng.normal(100, 25, 500)
    lines = ["padded;plain;paid"]
    for amount in amounts.tolist():
        padded = f"{amount:.2f}"
        lines.append(f"{padded.replace('.', ',')};{float(padded):g};".replace(".", ",") + "1,50")
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    text = draft(tmp_path / "t.csv", look=True)
    stored = yaml.safe_load(text)["columns"]
    assert stored["padded"]["trailing_zeros"] is True and stored["padded"]["decimals"] == 2
    assert "trailing_zeros" not in stored["plain"]
    (tmp_path / "s.yaml").write_text(text)
    schema = Schema.load(tmp_path / "s.yaml")
    data = encode_file(tmp_path / "t.csv", schema)
    write_records(tmp_path / "o.csv", schema, [data], rng)
    rows = list(csv.DictReader((tmp_path / "o.csv").open(), delimiter=";"))
    assert {len(row["padded"].partition(",")[2]) for row in rows} == {2}
    assert {len(row["plain"].partition(",")[2]) for row in rows} == {0, 1, 2}
    again = encode_file(tmp_path / "o.csv", schema)
    np.testing.assert_array_equal(again.columns["padded"], data.columns["padded"])


@pytest.mark.parametrize("seed", range(5))
def test_trailing_zeros_are_those_of_python(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    places, high = int(rng.integers(0, 9)), float(10 ** rng.integers(0, 6))
    column = Numeric(-high, high, bins=7, decimals=places, trailing_zeros=True, missing=("x",))
    schema = Schema({"v": column})
    data = schema.coded({"v": rng.integers(0, column.size, 400)})
    write_records(tmp_path / "o.csv", schema, [data], np.random.default_rng(7))
    found = (tmp_path / "o.csv").read_text().split("\n")[1:-1]
    assert "x" in found
    for text in found:
        assert text == "x" or text == f"{float(text):.{places}f}"


def test_trailing_zeros_need_decimals() -> None:
    with pytest.raises(InvalidInput, match="needs decimals"):
        Numeric(0, 1, bins=2, trailing_zeros=True)
    with pytest.raises(InvalidInput, match="one of False, True"):
        Numeric(0, 1, bins=2, decimals=1, trailing_zeros="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("labels", "rows", "listed"),
    [(50, 60, True), (51, 51 * 20, True), (51, 51 * 20 - 1, False), (1000, 20_000, True),
     (1001, 40_000, False)],
)  # fmt: skip
def test_labels_that_each_occur_often_are_listed(labels: int, rows: int, listed: bool) -> None:
    texts = [f"word {i % labels}" for i in range(rows)]
    column = draft_column(tallied(np.array(texts))).column
    assert isinstance(column, Categorical if listed else OpenCategorical)


def test_numbers_around_zero_are_no_sentinels() -> None:
    rng = np.random.default_rng(0)
    around = draft_column(tallied(np.round(rng.normal(0, 1, 5000)).astype(int))).column
    assert isinstance(around, Integer) and around.special == () and around.low is not None
    assert around.low < -2
    asked = draft_column(tallied(np.array([-1] * 40 + [-2] * 60 + [*range(6)] * 90))).column
    assert isinstance(asked, Integer) and set(asked.special) == {-1, -2}


def test_rates_beside_populations_keep_a_narrow_first_bin() -> None:
    """An end rounded by the whole range would put rates of -3 up to a hundred million off."""
    rng = np.random.default_rng(11)
    rates, people = rng.normal(1.5, 2, 500).round(2), rng.lognormal(15, 2, 500).round(0)
    texts = np.array([f"{value:.2f}" for value in (*rates, *people)])
    column = draft_column(tallied(texts)).column
    assert isinstance(column, Numeric) and column.edges is not None
    assert 2 * rates.min() - 9 < column.edges[0] <= rates.min()
    decoded = column.decode(column.encode(texts), rng).astype(float)
    assert np.median(decoded[:500]) == pytest.approx(np.median(rates), abs=0.5)
    assert decoded.min() > 2 * rates.min() - 9


def test_amounts_begin_at_zero() -> None:
    incomes = np.random.default_rng(3).lognormal(10.3, 0.9, 2000).round(2) + 900
    column = draft_column(tallied(np.array([f"{each:.2f}" for each in incomes]))).column
    assert isinstance(column, Numeric) and column.edges is not None and column.edges[0] == 0


def test_few_rows_make_no_spikes() -> None:
    rng = np.random.default_rng(2)
    amounts = [round(float(value), 2) for value in rng.lognormal(4, 1, 17)]
    column = draft_column(tallied(np.array([str(each) for each in amounts]))).column
    assert isinstance(column, Numeric) and column.spikes == ()
    often = [*amounts, *[50.25] * 6]
    column = draft_column(tallied(np.array([str(each) for each in often]))).column
    assert isinstance(column, Numeric) and column.spikes == (50.25,)


@pytest.mark.parametrize("ends", [(5.6, 9.4), (0.3, 0.9), (-0.7, 2.1), (1.3, 7.2)])
def test_ends_that_are_round_already_are_kept(ends: tuple[float, float]) -> None:
    values = [*ends, *np.random.default_rng(0).uniform(*ends, 200).round(3).tolist()]
    column = draft_column(tallied(np.array([str(value) for value in values]))).column
    assert isinstance(column, Numeric) and (column.low, column.high) == ends


def test_a_quantity_with_sparse_tails_is_no_list_of_codes() -> None:
    rng = np.random.default_rng(4)
    heights = [*rng.normal(170, 8, 300).round().astype(int).tolist(), 57, 230]
    column = draft_column(tallied(np.array(heights))).column
    assert isinstance(column, Integer) and column.edges is not None and column.edges[0] == 57
    for codes in ([*range(1, 13), 50], range(0, 205, 5), [n * n for n in range(30)]):
        values = [code for code in codes for _ in range(9)]
        assert isinstance(draft_column(tallied(np.array(values))).column, Categorical)


def test_whole_numbers_that_one_float_stands_for_are_ends() -> None:
    """The number before the last one is the same float as the lower end."""
    few = {385148798343095539: 1, 707562482409008348: 1}
    assert crowded_edges(few, min(few), max(few), 20, whole=True) is None
