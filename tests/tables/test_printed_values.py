"""Values as people's files print them: signs of units, thousands, gaps, clocks, two headers."""

import math
import random
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pgmkit import Schema
from pgmkit.errors import InvalidInput
from pgmkit.tables.dates import Date, DateTime
from pgmkit.tables.draft.column import draft_column
from pgmkit.tables.draft.draft import draft
from pgmkit.tables.engines.frames import encode
from pgmkit.tables.files.record_files import encode_file, write_records
from pgmkit.tables.labelled import Boolean
from pgmkit.tables.numbers import Integer, Numeric
from pgmkit.tables.values import bare, tallied

ROWS = 300


@given(
    st.floats(-1e9, 1e9, allow_nan=False),
    st.integers(0, 3),
    st.sampled_from(["", "$", "€ ", "£"]),
    st.sampled_from(["", " %", "%", " €"]),
    st.sampled_from(["", ",", " ", "'", "\u202f"]),
    st.sampled_from(["-", "("]),
)
def test_printed_numbers_are_read_as_what_was_printed(
    value: float, places: int, before: str, behind: str, apart: str, minus: str
) -> None:
    shown = f"{abs(value):,.{places}f}".replace(",", apart)
    text = f"{before}{shown}{behind}"
    if value < 0:
        text = f"-{text}" if minus == "-" else f"({text})"
    wanted = math.copysign(float(f"{abs(value):.{places}f}"), value)
    assert float(bare(text)) == wanted
    assert Numeric(-1e9, 1e9, bins=5).position(f" {text} ") == wanted


@given(st.text(st.sampled_from("0123456789,.'$%-+() ax€"), max_size=9))
def test_other_texts_stay_as_they_are(text: str) -> None:
    found = bare(text)
    if found != text:
        assert math.isfinite(float(found))
        assert [c for c in text if c.isdigit()] == [c for c in found if c.isdigit()]
        assert not set(text) & set("ax")


def lines(path: Path, head: str, rows: list[str], encoding: str = "utf-8") -> Path:
    path.write_bytes(("\r\n".join([head, *rows]) + "\r\n").encode(encoding))
    return path


def drafted(path: Path) -> Schema:
    (path.parent / "s.yaml").write_text(draft(path, look=True), encoding="utf-8")
    return Schema.load(path.parent / "s.yaml")


def test_amounts_with_signs_are_numbers_in_files_and_frames(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    amounts, shares = rng.uniform(500, 99_000, ROWS), rng.uniform(0, 100, ROWS)
    swap = str.maketrans(",.", ".,")
    rows = [
        f"€ {a:,.2f};{b:.1f} %".translate(swap) for a, b in zip(amounts, shares, strict=True)
    ]  # fmt: skip
    path = lines(tmp_path / "t.csv", "betrag €;anteil", rows, "utf-8-sig")
    schema = drafted(path)
    assert schema.file.decimal == ","
    columns = schema.columns
    assert isinstance(columns["betrag €"], Numeric) and isinstance(columns["anteil"], Numeric)
    data = encode_file(path, schema)
    exact = [f"{a:.2f}" for a in amounts]
    frame = {"betrag €": exact, "anteil": [f"{b:.1f}" for b in shares]}
    for made in (pa.table(frame), pandas.DataFrame(frame)):
        other = encode(made, schema)
        for name in columns:
            np.testing.assert_array_equal(other.columns[name], data.columns[name])
    printed = pa.table({
        "betrag €": [f"${a:,.2f}" for a in amounts], "anteil": [f"{b:.1f}%" for b in shares]
    })  # fmt: skip
    np.testing.assert_array_equal(
        encode(printed, schema).columns["betrag €"], data.columns["betrag €"]
    )
    write_records(tmp_path / "o.csv", schema, [data], rng)
    again = encode_file(tmp_path / "o.csv", schema)
    np.testing.assert_array_equal(again.columns["betrag €"], data.columns["betrag €"])


@pytest.mark.parametrize("gap", ["na", "N/a", "#N/A", "<NA>", "-", ".", "--"])
def test_gaps_among_numbers_are_missing_whatever_their_spelling(gap: str) -> None:
    column = draft_column(tallied(np.array([*map(str, range(1, 8)), gap] * 20))).column
    assert isinstance(column, Integer) and column.missing == (gap,)
    assert column.encode(np.array([gap])) == [column.size - 1]


def test_a_dash_among_labels_is_a_label() -> None:
    column = draft_column(tallied(np.array(["a", "-", "none", "b"] * 9))).column
    assert column is not None and column.labels == ("-", "a", "b", "none")


@pytest.mark.parametrize(
    ("form", "kind"),
    [("%H:%M", DateTime), ("%-H:%M:%S", DateTime), ("%-I:%M %p", DateTime), ("%d %b %Y", Date),
     ("%-d-%b-%y", Date), ("%b-%y", Date), ("%Y-%m", Date), ("%B %-d, %Y", Date)],
)  # fmt: skip
def test_clocks_and_named_months_are_times(form: str, kind: type, tmp_path: Path) -> None:
    import datetime

    r = random.Random(1)
    start = datetime.datetime(2001, 3, 4)
    texts = [
        f'"{(start + datetime.timedelta(minutes=r.randint(0, 4_000_000))).strftime(form)}",x'
        for _ in range(ROWS)
    ]
    path = lines(tmp_path / "t.csv", "when,x", texts)
    schema = drafted(path)
    column = schema.columns["when"]
    assert isinstance(column, kind) and column.format == form
    assert kind is Date or column.size == 24
    data = encode_file(path, schema)
    write_records(tmp_path / "o.csv", schema, [data], np.random.default_rng(0))
    again = encode_file(tmp_path / "o.csv", schema)
    np.testing.assert_array_equal(again.columns["when"], data.columns["when"])


def test_two_headers_are_refused_with_the_remedy(tmp_path: Path) -> None:
    rows = ["age,sex,pay", *(f"{20 + i},{'mf'[i % 2]},{1000 + 7 * i}" for i in range(30))]
    with pytest.raises(InvalidInput, match=r"second header line has. Delete one"):
        draft(lines(tmp_path / "t.csv", "Person,,Income", rows), look=True)
    once = lines(tmp_path / "u.csv", "age,sex,pay", ["?,m,1000", *rows[1:]])
    assert "columns" in yaml.safe_load(draft(once, look=True))


def test_a_column_without_a_name_is_no_index(tmp_path: Path) -> None:
    path = lines(tmp_path / "t.csv", "a,,b", [f"{i % 5},q,{i % 3}" for i in range(30)])
    assert "# (unnamed): without a name: left out. Give it one" in draft(path, look=True)


def test_labels_that_differ_by_case_are_pointed_out() -> None:
    note = draft_column(tallied(np.array(["yes", "no", "Yes", "NO"] * 9))).note
    assert "NO, no, Yes, yes differ by case" in note


@pytest.mark.parametrize("word", ["WAHR", "wahr", "true", "TRUE", "yes", "1", True])
def test_truth_is_asked_for_by_any_of_its_words(word: object) -> None:
    column = Boolean(words=("FALSCH", "WAHR"), missing=())
    assert column.equal([word]).tolist() == [False, True, False]
    assert column.equal(["(missing)", "FALSCH"]).tolist() == [True, False, True]
    with pytest.raises(InvalidInput, match="no value 'maybe'"):
        column.equal(["maybe"])
