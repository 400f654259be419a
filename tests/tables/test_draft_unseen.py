"""Drafts of files as they are found: sentinels, units, short years, titles, labels."""

from __future__ import annotations

import datetime
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pgmkit import Schema
from pgmkit.errors import InvalidInput
from pgmkit.records.dataset import Dataset
from pgmkit.tables.dates import Date
from pgmkit.tables.draft.column import Drafted, draft_column
from pgmkit.tables.draft.draft import draft, labelled
from pgmkit.tables.files.foreign import Labels
from pgmkit.tables.files.record_files import encode_file, write_records
from pgmkit.tables.labelled import Boolean, Categorical, OpenCategorical
from pgmkit.tables.numbers import Integer, Numeric
from pgmkit.tables.schema_file import FileFormat
from pgmkit.tables.values import tallied


def drafted(values: list[object], name: str = "v", **form: str) -> Drafted:
    """The draft of one column beside others would be the same."""
    return draft_column(tallied(np.array(values, dtype=object)), **form)


RNG = np.random.default_rng(5)
ROWS = 600
AMONG = {
    "99 at 60% beside a scale": (range(1, 11), 99, 0.6),
    "99 at 60% beside ages": (range(18, 98), 99, 0.6),
    "9 beside codes up to 7": (range(1, 8), 9, 0.15),
    "9 beside three codes": (range(1, 4), 9, 0.25),
    "-1 beside codes": (range(0, 6), -1, 0.2),
}


@pytest.mark.parametrize("case", AMONG)
def test_sentinels_are_no_quantities(case: str) -> None:
    usual, code, share = AMONG[case]
    values = np.where(RNG.random(ROWS) < share, code, RNG.choice(list(usual), ROWS))
    column = drafted(values.tolist()).column
    assert isinstance(column, Integer) and column.special == (code,)


@pytest.mark.parametrize("most", [2, 3, 5])
@pytest.mark.parametrize("shape", ["flat", "polar"])
def test_a_scale_around_zero_has_no_sentinels(most: int, shape: str) -> None:
    scale = [*range(-most, most + 1)]
    weights = [1 + (shape == "polar") * abs(each) for each in scale]
    column = drafted(np.repeat(scale, np.multiply(weights, 20)).tolist()).column
    assert isinstance(column, Integer)
    assert (column.low, column.high, column.special) == (-most, most, ())
    beside = drafted([*range(6)] * 20 + [-1] * 30 + [-2] * 10).column
    assert isinstance(beside, Integer) and beside.special == (-2, -1)


@pytest.mark.parametrize("top", [97, 98, 99])
def test_numbers_without_a_gap_are_quantities(top: int) -> None:
    """Frequent or not: people of 98 and more are counted as 99."""
    values = [*RNG.integers(18, top, ROWS), *range(18, top), *([top] * 300)]
    column = drafted(values).column
    assert isinstance(column, Integer) and column.high == top and column.special == ()


@pytest.mark.parametrize("code", [9999, 99999])
def test_nines_within_the_range_stand_alone_and_are_pointed_out(code: int) -> None:
    incomes = (code * RNG.lognormal(0, 0.8, ROWS)).astype(int)
    incomes[:24] = code
    found = drafted(incomes.tolist())
    assert isinstance(found.column, Integer) and code in found.column.spikes
    assert f"{code} may stand for a missing value" in found.note
    without = drafted(incomes[24:].tolist())
    assert "may stand" not in without.note


@pytest.mark.parametrize("code", [998, 9997, 99999998])
def test_nines_with_a_last_seven_or_eight_are_codes_beside_amounts(code: int) -> None:
    """As surveys write that an answer was refused or does not apply."""
    amounts = (np.random.default_rng(6).uniform(0, 300, ROWS) + 0.25).round(2).tolist()
    column = drafted([*amounts, *[code] * 30]).column
    assert isinstance(column, Numeric) and column.special == (code,) and column.spikes == ()
    twice = drafted([*amounts, *[310.98] * 30]).column  # an amount, not written so
    assert isinstance(twice, Numeric) and twice.special == ()


def test_spellings_of_one_number_are_one_label() -> None:
    column = drafted(["9", "9.0", "1", "B"] * 20).column
    assert isinstance(column, Categorical) and column.values == ("1", "9", "B")
    assert column.encode(np.array(["9", "9.0"])).tolist() == [1, 1]
    numbers = drafted(["9", "9.0", "1", "2"] * 20).column
    assert numbers is not None and numbers.encode(np.array(["9.0"])) == numbers.encode(
        np.array(["9"])
    )


def test_dashes_among_numbers_with_a_decimal_comma_are_missing(tmp_path: Path) -> None:
    texts = [f"{RNG.integers(0, 9000)},{RNG.integers(0, 99):02d}" for _ in range(ROWS)]
    texts[::25] = ["-"] * 24
    euros = [f"{RNG.integers(1, 9)}.{RNG.integers(100, 999)},50 €" for _ in range(ROWS)]
    for separator in (";", ","):
        quote = '"' if separator == "," else ""
        lines = [
            separator.join(f"{quote}{v}{quote}" for v in row)
            for row in zip(texts, euros, strict=True)
        ]
        path = tmp_path / "t.csv"
        path.write_text("\n".join([f"a{separator}b", *lines]) + "\n", encoding="utf-8")
        text = draft(path, look=True)
        (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
        schema = Schema.load(tmp_path / "s.yaml")
        assert schema.file.decimal == ","
        assert isinstance(schema.columns["a"], Numeric) and schema.columns["a"].missing == ("-",)
        assert isinstance(schema.columns["b"], Numeric) and schema.columns["b"].decimals == 2
        found = encode_file(path, schema)
        assert isinstance(found, Dataset)
        assert (found.columns["a"] == schema.columns["a"].size - 1).sum() == 24


def test_a_decimal_point_elsewhere_forbids_the_comma(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a;b\n" + "1,5;2.5\n2,25;3.5\n3,5;4.25\n" * 20)
    text = draft(path, look=True)
    assert "decimal:" not in text and "write all in one way" in text


@pytest.mark.parametrize(
    "name", ["household", "hh_nr", "patient", "PatientNo", "Patient No.", "person_key"]
)
def test_columns_named_as_units_hint_at_the_unit(name: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [f"{1000 + i // 2},{'FM'[i % 2]}" for i in range(400)]
    path.write_text("\n".join([f"{name},sex", *rows]) + "\n")
    text = draft(path, look=True)
    assert f"--unit {shlex.quote(name)}" in text and f"ignore:\n  - {name}\n" in text


@pytest.mark.parametrize("name", ["household_size", "patients", "cases", "wage"])
def test_columns_named_otherwise_do_not(name: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [f"{(i * i * 37) % 5003},{'FM'[i % 2]}" for i in range(400)]
    path.write_text("\n".join([f"{name},sex", *rows]) + "\n")
    assert "--unit" not in draft(path, look=True)


def test_sentences_are_free_text() -> None:
    words = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog"]
    texts = [" ".join(RNG.choice(words, RNG.integers(5, 12))) for _ in range(ROWS)]
    found = drafted(list(texts))
    assert found.column is None and found.note.startswith("free text")


@pytest.mark.parametrize(
    ("form", "written"),
    [
        ("%m/%d/%y", "%m/%d/%y"),
        ("%d.%m.%y", "%d.%m.%y"),
        ("%Y-%m-%dT%H:%M:%S+02:00", "%Y-%m-%dT%H:%M:%S+02:00"),
        ("%Y-%m-%d %H:%M-05:00", "%Y-%m-%d %H:%M-05:00"),
    ],
)
def test_short_years_and_offsets_are_times(form: str, written: str) -> None:
    start = datetime.datetime(2021, 3, 1)
    moments = [start + datetime.timedelta(minutes=int(m)) for m in RNG.integers(0, 10**6, ROWS)]
    texts = [moment.strftime(form) for moment in moments]
    found = drafted(list(texts))
    assert found.column is not None and getattr(found.column, "format", None) == written
    codes = found.column.encode(np.array(texts, dtype=object))
    assert (codes >= 0).all()
    again = found.column.decode(codes, np.random.default_rng(0))
    assert (found.column.encode(again) == codes).all()
    assert len(again[0]) == len(texts[0])


def test_changing_offsets_are_pointed_out() -> None:
    texts = [f"2024-0{1 + i % 9}-11T12:{i % 60:02d}:00+0{1 + i % 2}:00" for i in range(200)]
    assert "offsets from Greenwich" in drafted(list(texts)).note


def test_titles_above_the_header(tmp_path: Path) -> None:
    records = "1;x\n2;y\n3;z\n" * 20
    for above in ("Wages, 2024\n\n", "Title\n", "\n", ""):
        path = tmp_path / "t.csv"
        path.write_text(f"{above}age;sex\n{records}")
        text = draft(path, look=True)
        lines = above.count("\n")
        assert (f"skip_lines: {lines}" in text) == bool(lines)
        (tmp_path / "s.yaml").write_text(text)
        found = encode_file(path, Schema.load(tmp_path / "s.yaml"))
        assert len(found) == 60 and list(found.domain) == ["age", "sex"]


@pytest.mark.parametrize("width", [2, 3, 4, 9])
def test_titles_that_a_spreadsheet_filled_up_with_separators(width: int, tmp_path: Path) -> None:
    path, fill = tmp_path / "t.csv", "," * (width - 1)
    names = [f"name {i}" for i in range(width)]
    records = [",".join(["xyz"[i % 3], *[str(i % 7)] * (width - 1)]) for i in range(60)]
    for above in (["Staff of 2024" + fill, fill], [fill], ["Staff of 2024", fill], []):
        path.write_text("\n".join([*above, ",".join(names), *records]) + "\n")
        stored = yaml.safe_load(draft(path, look=True))
        assert stored.get("file", {}).get("skip_lines", 0) == len(above)
        assert [*stored["columns"]] == names


@pytest.mark.parametrize("first", ["name,city,", ",name,city", "x,y,", "name,city,x,"])
def test_a_header_that_lacks_a_name_is_no_title(first: str, tmp_path: Path) -> None:
    path, width = tmp_path / "t.csv", first.count(",") + 1
    path.write_text("\n".join([first, *[",".join("abcde"[:width])] * 60]) + "\n")
    assert "skip_lines" not in draft(path, look=True)


def test_titles_above_a_sheet(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    rows = [["Wages of 2024"], [], ["age", "wage", "sex"]]
    for row in [*rows, *([30 + i % 9, 100.5 + i, "FM"[i % 2]] for i in range(60))]:
        book.active.append(row)
    book.active.merge_cells("A1:C1")
    book.save(tmp_path / "t.xlsx")
    text = draft(tmp_path / "t.xlsx", look=True)
    assert "skip_lines: 2" in text and "wage" in text


def test_merged_names_above_the_names_of_a_sheet(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    rows = [["Staff"], ["Person", None, "Pay", None], ["age", "sex", "base", "bonus"]]
    for row in [*rows, *([30 + i % 9, "FM"[i % 2], 100.5 + i, i % 4] for i in range(60))]:
        book.active.append(row)
    for merged in ("A1:D1", "A2:B2", "C2:D2"):
        book.active.merge_cells(merged)
    book.save(tmp_path / "t.xlsx")
    text = draft(tmp_path / "t.xlsx", look=True)
    assert "skip_lines: 2" in text and "bonus: whole numbers 0..3" in text and "Person" not in text


def test_the_first_row_of_a_sheet_without_a_header_names_no_column(tmp_path: Path) -> None:
    """A draft called the columns by the values of a record, also without --assume-public."""
    openpyxl = pytest.importorskip("openpyxl")
    rows = [[30 + i % 40, "FM"[i % 2], None if i % 7 else i] for i in range(60)]
    path = tmp_path / "t.xlsx"
    for above in ([], [["age", "sex", "2020"]]):
        book = openpyxl.Workbook()
        for row in above + rows:
            book.active.append(row)
        book.save(path)
        for look, said in ((True, "is no header"), (False, "may be a record and no header")):
            if above:
                assert "# age: " in draft(path, look=look)
                continue
            with pytest.raises(InvalidInput, match=f"first row .* {said}.*Add a row"):
                draft(path, look=look)


def test_notes_below_a_sheet_and_sheets_before_it(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.title = "About"
    book.active["A1"] = "See the next sheet"
    sheet = book.create_sheet("Data")
    sheet.append(["seen", "age", "sex"])
    for i in range(60):
        sheet.append([datetime.datetime(2020, 1 + i % 9, 1, 12), 30 + i % 9, "FM"[i % 2]])
    for note in ([], ["Source: an office"]):
        sheet.append(note)
    path = tmp_path / "t.xlsx"
    book.save(path)
    with pytest.raises(InvalidInput, match=r"the first of its sheets .* 'About', 'Data': --sheet"):
        draft(path, look=True)
    text = draft(path, look=True, file=FileFormat(sheet="Data"))
    assert "points in time" in text and "2 labels" in text and "missing" not in text
    assert "'Source: an office'" in text and "Delete them" in text and "'About'" not in text
    book.move_sheet("Data", -1)
    book.save(path)
    for look in (True, False):
        told = "sheets was read, of 'Data', 'About': --sheet reads another one.\n"
        assert f"\n# This is an Excel file; the first of its {told}" in draft(path, look=look)


@pytest.mark.parametrize("decimal", [".", ","])
def test_amounts_with_signs_that_are_few_are_read_as_drafted(decimal: str, tmp_path: Path) -> None:
    """Whatever spelling a draft recognises, its own schema reads: each value has its code."""
    amounts = ["$20.00", "$37.00", "$1,250.00", "(3.00)", "20"]
    if decimal == ",":
        amounts = ["20,00 €", "37,00 €", "1.250,00 €", "3,50 €", "20"]
    path = tmp_path / "t.csv"
    path.write_text("fee;sex\n" + "".join(f"{a};{s}\n" for a in amounts for s in "FM" * 9))
    (tmp_path / "s.yaml").write_text(draft(path, look=True))
    schema = Schema.load(tmp_path / "s.yaml")
    fees = schema.columns["fee"]
    assert isinstance(fees, Categorical)
    found = encode_file(path, schema)  # a value without a code would be an error
    assert isinstance(found, Dataset)
    numbers = np.array(fees.midpoints)[found.columns["fee"]].reshape(-1, 18)[:, 0].tolist()
    assert numbers == [20, 37, 1250, -3 if decimal == "." else 3.5, 20]


def test_a_minus_one_below_amounts_is_no_amount() -> None:
    amounts = [f"{v:.2f}" for v in RNG.lognormal(4, 0.7, ROWS)]
    column = drafted([*amounts, *["-1"] * 40]).column
    assert isinstance(column, Numeric) and column.special == (-1.0,) and min(column.positions) >= 0
    column = drafted([*amounts, *["-1", "-2.5"] * 40]).column
    assert isinstance(column, Numeric) and column.special == ()


def test_labels_that_differ_by_case_stand_together() -> None:
    note = drafted(["Tensed", "Abc", "tensed", "ABC", "x"] * 9).note
    assert "ABC, Abc, Tensed, tensed differ by case" in note
    note = drafted(["Tensed", "Abc", "tensed", "ABC", "abc"] * 9).note
    assert "ABC, Abc, abc, Tensed, tensed differ by case" in note


def test_labels_and_missing_codes_of_spss(tmp_path: Path) -> None:
    pyreadstat = pytest.importorskip("pyreadstat")
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {
            "sex": RNG.choice([1.0, 2.0], ROWS),
            "sat": RNG.choice([1.0, 2.0, 3.0, 9.0], ROWS),
            "age": np.where(RNG.random(ROWS) < 0.1, 998.0, RNG.integers(18, 90, ROWS)),
        }
    )
    path = tmp_path / "t.sav"
    pyreadstat.write_sav(
        frame,
        str(path),
        variable_value_labels={
            "sex": {1: "man", 2: "woman"},
            "sat": {1: "low", 2: "middle", 3: "high", 9: "no answer"},
            "age": {998: "refused"},
        },
        missing_ranges={"sat": [9], "age": [{"lo": 997, "hi": 999}]},
    )
    (tmp_path / "s.yaml").write_text(draft(path, look=True), encoding="utf-8")
    schema = Schema.load(tmp_path / "s.yaml")
    assert schema.file.user_missing
    assert schema.columns["sex"].labels == ("man", "woman")
    assert schema.columns["sat"].labels == ("low", "middle", "high", "no answer")
    age = schema.columns["age"]
    assert isinstance(age, Integer) and age.special == (998,) and age.missing is None
    found = encode_file(path, schema)
    assert isinstance(found, Dataset)
    assert (found.columns["sat"] == 3).sum() == (frame["sat"] == 9).sum()
    write_records(tmp_path / "o.sav", schema, [found], np.random.default_rng(0))
    columns, about = pyreadstat.read_sav(str(tmp_path / "o.sav"), output_format="dict")
    assert about.variable_value_labels["sat"][9.0] == "no answer"
    assert columns["sat"] == frame["sat"].tolist() and columns["sex"] == frame["sex"].tolist()
    _, about = pyreadstat.read_sav(str(tmp_path / "o.sav"), user_missing=True)
    assert about.missing_ranges["age"] == [{"lo": 998.0, "hi": 998.0}]


def test_missing_codes_of_a_draft_are_in_order() -> None:
    """The first of them is written for a missing value, so their order must not be by chance."""
    codes = [str(code) for code in range(90, 100)]
    tally = {"yes": 9, "no": 8, **dict.fromkeys(codes, 2)}
    column = labelled(tally, Labels({}, ((90, 99),)), 50, ".").column
    assert column is not None and column.missing == tuple(codes)


def test_thousands_are_no_decimals_in_a_file_that_commas_separate(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    pay = [3_600 + 137 * (i * i % 311) for i in range(400)]
    path.write_text("sex,pay\n" + "".join(f'{"FM"[i % 2]},"{p:,}"\n' for i, p in enumerate(pay)))
    text = draft(path, look=True)
    (tmp_path / "s.yaml").write_text(text)
    schema = Schema.load(tmp_path / "s.yaml")
    column = schema.columns["pay"]
    assert "decimal" not in text and isinstance(column, Integer)
    counted = encode_file(path, schema).marginal(["pay"])  # type: ignore[union-attr]
    ends = [*column.positions[:-1], np.inf]
    np.testing.assert_array_equal(counted, np.histogram(pay, ends)[0])


def test_numbers_that_hardly_repeat_are_no_list_of_codes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [f"{20_000 + i * i * 37},{(i * 7) % 40 + 1},{i % 5 * 100}" for i in range(50)]
    path.write_text("\n".join(["wage,week,code", *rows]) + "\n")
    (tmp_path / "s.yaml").write_text(draft(path, look=True))
    wage, week, code = Schema.load(tmp_path / "s.yaml").columns.values()
    assert isinstance(wage, Integer) and wage.size < 40 and isinstance(week, Integer)
    assert isinstance(code, Categorical) and code.values == (0, 100, 200, 300, 400)


def test_codes_without_gaps_are_not_called_codes_with_gaps(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["day", *(str(i % 150 + 1) for i in range(3000))]) + "\n")
    text = draft(path, look=True, most_values=200)
    assert "day: whole numbers 1..150, a code each" in text and "gaps" not in text


def test_a_label_of_missing_values_is_taken_for_them(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("job\n" + "cook\n(missing)\nclerk\n''\n".replace("''", '""') * 30)
    (tmp_path / "s.yaml").write_text(draft(path, look=True))
    schema = Schema.load(tmp_path / "s.yaml")
    assert schema.columns["job"].labels == ("clerk", "cook", "(missing)")
    counted = encode_file(path, schema).marginal(["job"])  # type: ignore[union-attr]
    assert counted.tolist() == [30, 30, 60]
    with pytest.raises(InvalidInput, match="'\\(missing\\)' stands for missing values and"):
        Categorical(("cook", "(missing)"), missing=())
    for column in (
        Integer(0, 9, missing=()),
        Boolean(missing=()),
        Date("2020-01-01", "2020-01-09", missing=()),
    ):
        codes = column.encode(np.array(["(missing)", "", None], dtype=object))
        assert codes.tolist() == [column.size - 1] * 3
    opened = OpenCategorical(missing=())
    assert opened.tally(np.array(["(missing)", "", "cook"])) == {None: 2, "cook": 1}
    assert Categorical(("a", "(missing)")).labels == ("a", "(missing)")  # no value can be missing


def test_a_title_above_two_columns_of_a_sheet_is_no_header(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (
        ["Wages of 2024"],
        [],
        ["age", "sex"],
        *([20 + i % 40, "FM"[i % 2]] for i in range(99)),
    ):
        book.active.append(row)
    book.save(tmp_path / "t.xlsx")
    stored = yaml.safe_load(draft(tmp_path / "t.xlsx", look=True))
    assert stored["file"]["skip_lines"] == 2 and [*stored["columns"]] == ["age", "sex"]


def test_a_header_that_is_repeated_among_the_records_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [f"{20 + i % 40},{'FM'[i % 2]}" for i in range(99)]
    path.write_text("\n".join(["age,sex", *rows, "age,sex", *rows]) + "\n")
    with pytest.raises(InvalidInput, match="is repeated in record 100"):
        draft(path, look=True)
    path.write_text(
        "\n".join(["a,b,1", "a,b,1", *(f"c,{x},{i}" for i, x in enumerate("bd" * 20))]) + "\n"
    )
    assert "is a record and no header" in draft(path, look=True)


@pytest.mark.parametrize("look", [True, False])
@pytest.mark.parametrize("end", ["\n", "\r", "\x85", "\u2028", "\u2029"])
def test_line_ends_in_names_do_not_break_the_draft(look: bool, end: str, tmp_path: Path) -> None:
    """The second column is left out as an identifier, which its name tells without a look."""
    names = [f"sex{end}F: 1", f"columns: 2{end}x:{end}ID"]
    rows = {names[0]: ["F", "M"] * 200, names[1]: [f"p{i}x" for i in range(400)]}
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    (tmp_path / "s.yaml").write_text(draft(tmp_path / "t.parquet", look=look), encoding="utf-8")
    schema = Schema.load(tmp_path / "s.yaml")
    assert list(schema.columns) == names[:1] and schema.file.ignore == (names[1],)


def test_names_that_are_keys_of_a_private_record_are_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"age": 1, "oncology": "F"}\n{"age": 2}\n')
    assert "the first line, which is a private record" in draft(tmp_path / "t.jsonl", look=False)
    assert "private record" not in draft(tmp_path / "t.jsonl", look=True)


def test_a_sheet_of_a_file_that_has_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,sex\n1,F\n")
    (tmp_path / "t.jsonl").write_text('{"age": 1, "sex": "F"}\n')
    schema = Schema({"age": Integer(0, 9)}, file=FileFormat(sheet="s"))
    for name in ("t.csv", "t.jsonl"):
        said = f"{name} is no Excel file and has no sheet 's'"
        for look in (False, True):
            with pytest.raises(InvalidInput, match=said):
                draft(tmp_path / name, look=look, file=FileFormat(sheet="s"))
        for each in (schema, schema.placed()):
            with pytest.raises(InvalidInput, match=said):
                encode_file(tmp_path / name, each)


@pytest.mark.parametrize("look", [False, True])
def test_columns_of_one_name_are_refused(tmp_path: Path, look: bool) -> None:
    (tmp_path / "t.csv").write_text("age,age,sex\n1,2,F\n3,4,M\n")
    with pytest.raises(InvalidInput, match="has 2 columns named as column 1; rename them"):
        draft(tmp_path / "t.csv", look=look)
