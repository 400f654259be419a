"""Published tables: suppressed and rounded counts, totals, wide layout, labels as printed."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest

from pgmkit import Categorical, FileFormat, Integer, Level, Schema, estimate
from pgmkit.errors import InvalidInput
from pgmkit.tables.files.noisy_tables import read_noisy_tables

SCHEMA = Schema(
    {
        "age": Integer(edges=(0, 18, 30, 65, 99)),
        "sex": Categorical(("F", "M")),
        "job": Categorical(("cook", "smith"), missing=()),
    }
)
COUNTS = np.array([[310.0, 322], [287, 301], [244, 198], [120, 90]])


def written(folder: Path, text: str) -> Path:
    path = folder / "t.csv"
    path.write_text(text, encoding="utf-8")
    return path


def rows(path: Path, **options: object) -> dict[tuple[float, ...], tuple[float, float]]:
    """The value and the stddev of each sum of cells."""
    (found,) = read_noisy_tables(path, SCHEMA, **options)  # type: ignore[arg-type]
    cells = SCHEMA.domain.size(found.clique)
    matrix = np.eye(cells) if found.matrix is None else found.matrix.toarray()
    scale = matrix.max(axis=1)
    return {
        tuple(np.flatnonzero(row).tolist()): (float(v / s), float(found.stddev / s))
        for row, v, s in zip(matrix, np.ravel(found.values), scale, strict=True)
    }


def test_a_wide_table_with_totals_is_that_with_a_line_a_cell(tmp_path: Path) -> None:
    wide = written(
        tmp_path,
        "age,F,M,Total\nunder 18,310,322,632\n18-29,287,301,588\n30\u201364,244,198,442\n"
        "65+,120,90,210\nAll,961,911,1872\n",
    )
    found = rows(wide, stddev=2.0)
    long = ["age,sex,n"]
    labels = ["0..17", "18..29", "30..64", "65..99", "0..99"]
    table = np.vstack([COUNTS, COUNTS.sum(axis=0)])
    for label, line in zip(labels, table, strict=True):
        long += [f"{label},F,{line[0]}", f"{label},M,{line[1]}", f"{label},Total,{line.sum()}"]
    assert found == rows(written(tmp_path, "\n".join(long) + "\n"), stddev=2.0)
    assert len(found) == 15 and found[tuple(range(8))] == (1872.0, 2.0)


def test_a_wide_table_may_have_a_column_named_count(tmp_path: Path) -> None:
    schema = Schema({"count": Integer(0, 1), "sex": Categorical(("F", "M"))})
    path = written(tmp_path, "count,F,M\n0,10,12\n1,5,7\n")
    (found,) = read_noisy_tables(path, schema, stddev=1.0)
    assert found.clique == ("count", "sex") and found.values.tolist() == [10, 12, 5, 7]


def test_row_names_without_a_title_are_the_column_that_they_fit(tmp_path: Path) -> None:
    wide = written(tmp_path, ",F,M\n cook,10,20\nsmith ,30,40\n")
    assert rows(wide, stddev=1.0) == rows(
        written(tmp_path, "job,F,M\ncook,10,20\nsmith,30,40\n"), stddev=1.0
    )


def test_german_names_of_ranges(tmp_path: Path) -> None:
    german = written(tmp_path, "sex,unter 18,18 bis 64,65 und mehr\nF,1,2,3\n")
    english = written(tmp_path, "sex,under 18,18 to 64,65 and over\nF,1,2,3\n")
    assert rows(german, stddev=1.0) == rows(english, stddev=1.0)


def test_spaces_around_names_and_labels_are_not_read(tmp_path: Path) -> None:
    padded = written(tmp_path, " sex ,job, n \n F,cook ,10\nM , smith , 20 \n")
    assert rows(padded, stddev=1.0) == {(0,): (10.0, 1.0), (4,): (20.0, 1.0)}
    assert rows(padded.rename(tmp_path / "T.CSV"), stddev=1.0, value="n") == rows(
        written(tmp_path, "sex,job,n\nF,cook,10\nM,smith,20\n"), stddev=1.0
    )


def test_a_line_for_each_cell_in_any_order_is_a_whole_table(tmp_path: Path) -> None:
    """Such a table needs no matrix. One line too many, or one of other noise, needs one."""
    cells = [(age, sex) for age in ("0..17", "18..29", "30..64", "65..99") for sex in ("F", "M")]
    shuffled = np.random.default_rng(2).permutation(8)
    lines = [f"{sex},{age},{COUNTS.flat[i]}" for i in shuffled for age, sex in [cells[i]]]
    text = "\n".join(["sex,age,n", *lines, ""])
    (whole,) = read_noisy_tables(written(tmp_path, text), SCHEMA, stddev=3.0)
    assert whole.matrix is None and (whole.clique, whole.stddev) == (("age", "sex"), 3.0)
    np.testing.assert_array_equal(np.reshape(whole.values, (4, 2)), COUNTS)
    (more,) = read_noisy_tables(written(tmp_path, text + "F,Total,961\n"), SCHEMA, stddev=3.0)
    design = np.vstack([np.eye(8)[shuffled], [1, 0] * 4])
    np.testing.assert_array_equal(more.matrix.toarray(), design)  # type: ignore[union-attr]
    np.testing.assert_array_equal(more.values, design @ COUNTS.ravel())


def test_row_numbers_are_not_read(tmp_path: Path) -> None:
    plain = rows(written(tmp_path, "sex,n\nF,10\nM,20\n"), stddev=1.0)
    for text in (
        ",sex,n\n0,F,10\n1,M,20\n",
        ",sex,n\n1,F,10\n2,M,20\n",
        " ,sex,n\n 1,F,10\n 2,M,20\n",
        "sex,,n\nF,,10\nM,,20\n",
    ):
        assert rows(written(tmp_path, text), stddev=1.0) == plain
    for numbers in ((2, 3), (0, 2), (-1, 0), (0, -1)):
        lines = [f"{number},{sex},10" for number, sex in zip(numbers, "FM", strict=True)]
        with pytest.raises(InvalidInput, match="column 1 of .* has no name"):
            rows(written(tmp_path, "\n".join([",sex,n", *lines])), stddev=1.0)


def test_a_value_that_reads_like_a_total_is_the_value(tmp_path: Path) -> None:
    schema = Schema({"aid": Categorical(("All", "none"), missing=("sum",))})
    path = written(tmp_path, "aid,n\nAll,10\nTOTAL,30\nsum,5\n")
    (found,) = read_noisy_tables(path, schema, stddev=1.0)
    assert found.matrix is not None
    assert found.matrix.toarray().tolist() == [[1, 0, 0], [1, 1, 1], [0, 0, 1]]


def test_a_column_without_a_title_that_fits_no_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="column 1 of .* has no name; write one of"):
        rows(written(tmp_path, ",F,M\ncook,10,20\nbaker,30,40\n"), stddev=1.0)


def test_suppressed_cells_are_not_measured(tmp_path: Path) -> None:
    path = written(tmp_path, "sex,job,n\nF,cook,..\nF,smith,C\nM,cook, (x) \nM,smith,31\n")
    assert rows(path, rounding=1) == {(4,): (31.0, pytest.approx(1e-2))}
    with pytest.raises(InvalidInput, match="no cells that are not suppressed"):
        rows(written(tmp_path, "sex,n\nF,..\nM,:\n"), stddev=1.0)


def test_small_and_rounded_counts_have_the_spread_of_what_they_may_be(tmp_path: Path) -> None:
    """Against the standard deviation of the whole numbers that would be published so."""
    path = written(tmp_path, "age,n\n0..17, <10 \n18..29,\u22644\n30..64,25\n65..,0\n")
    found = rows(path, rounding=5)
    for place, possible in {0: range(10), 1: range(5), 2: range(23, 28)}.items():
        numbers = list(possible)
        assert found[(place,)] == pytest.approx((np.mean(numbers), np.std(numbers)))
    noisy = rows(path, rounding=5, stddev=3.0)
    assert noisy[(2,)][1] == pytest.approx(np.hypot(3.0, np.std(range(5))))


def test_exact_totals_hold_and_suppressed_cells_are_filled(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "age,sex,n,stddev\nunder 18,F,315,9\nunder 18,M,..,9\n18-29,F,280,9\n18-29,M,300,9\n"
        "Total,F,961,0\nTotal,M,911,0\nunder 18,Total,632,0\n",
    )
    schema = SCHEMA.restricted(["age", "sex"])
    (found,) = read_noisy_tables(path, schema)
    model = estimate(schema.domain, [found])
    table = model.marginal(("age", "sex"))
    assert table.sum(axis=0) == pytest.approx([961, 911], abs=0.05)
    assert table[0].sum() == pytest.approx(632, abs=0.05)
    assert table[0, 1] == pytest.approx(632 - table[0, 0], abs=0.05)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sex,n\nF,-\nM,3\n", "is no number"),
        ("sex,n\nF,<0\nM,3\n", "is no number"),
        ("age,n\n18-40,3\n", "cuts the bin"),
        ("sex,n\nF,3\n F,4\n", "line 3 gives the cell F again"),
        ("sex,n\nF,3\nBoth sexes,3\n", "no value 'Both sexes'.*; write Total for the sum"),
        ("age,F,M,Both sexes\n0..17,3,1,4\n", "found F, M, Both sexes.*; write Total for the sum"),
        ("age,F,M,x,All\n0..17,3,1,4,8\n", "not among the values of 'sex': 'x'. .* schema$"),
        ("sex,n\nF,3\nFemale,3\n", "no value 'Female'; the values are F, M$"),
        ("age,sex,n,m\n0..17,F,1,2\n", "one column of noisy counts"),
        ("age,n,stddev\n0..17,3,-1\n", "stddev must be finite, 0 or more"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_noisy_tables(written(tmp_path, text), SCHEMA, stddev=2.0)


def test_noise_that_is_no_number_and_settings_of_other_files_are_refused(tmp_path: Path) -> None:
    for stddev in (math.nan, math.inf, -1.0):
        with pytest.raises(InvalidInput, match="stddev must be finite, 0 or more"):
            read_noisy_tables(written(tmp_path, "sex,n\nF,1\nM,3\n"), SCHEMA, stddev=stddev)
    path = tmp_path / "noisy.json"
    path.write_text('[{"columns": ["sex"], "values": [1, 2], "stddev": 1}]', encoding="utf-8")
    assert len(read_noisy_tables(path, SCHEMA)) == 1
    with pytest.raises(InvalidInput, match="value and rounding are for CSV"):
        read_noisy_tables(path, SCHEMA, rounding=10)


@pytest.mark.parametrize("line", ["1,3", "1,3,4,9"])
def test_no_line_of_a_wide_table_is_left_out(line: str, tmp_path: Path) -> None:
    schema = Schema({"age": Integer(0, 1), "sex": Categorical(("F", "M"))})
    (tmp_path / "wide.csv").write_text(f"age,F,M\n0,1,2\n{line}\n")
    with pytest.raises(InvalidInput, match=rf"line 3 has {line.count(',') + 1} values for 3"):
        read_noisy_tables(tmp_path / "wide.csv", schema, stddev=1.0)


def test_columns_that_may_be_values_of_two_columns_are_refused(tmp_path: Path) -> None:
    schema = Schema({name: Categorical(("yes", "no")) for name in ("a", "b")} | SCHEMA.columns)
    with pytest.raises(InvalidInput, match="'a' or of 'b'"):
        read_noisy_tables(written(tmp_path, "sex,yes,no\nF,1,2\n"), schema, stddev=1.0)


def test_lines_that_give_one_cell_twice_leave_another_one_unmeasured(tmp_path: Path) -> None:
    """As many lines as cells, but not one for each: a county of a single tract, and two spellings
    of one range.
    """
    schema = Schema(
        {"tract": Categorical(("A1", "B1", "B2")), "age": Integer(edges=(0, 18, 65, 100))},
        levels={"county": Level("tract", {"A": ["A1"], "B": ["B1", "B2"]})},
    )
    for text in (
        "county,tract,n\nA,Total,70\nA,A1,60\nB,B1,30\n",
        "age,n\n0-17,70\n0..17,60\n18..64,30\n",
    ):
        (found,) = read_noisy_tables(written(tmp_path, text), schema, stddev=2.0)
        assert found.matrix is not None and found.values.tolist() == [70, 60, 30]
        assert found.matrix.toarray().tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 0]]


def test_the_noise_of_a_suppressed_cell_may_be_suppressed_too(tmp_path: Path) -> None:
    for noise in ("..", "", "NA"):
        path = written(tmp_path, f"sex,n,stddev\nF,12,3\nM,..,{noise}\n")
        assert rows(path) == {(0,): (12.0, 3.0)}


@pytest.mark.parametrize(
    ("text", "value"), [("Sex,age,n\nF,0..17,12\n", "n"), ("age,F,M\n0..17,12,9\n", "F")]
)
def test_no_column_is_left_out_unless_the_schema_ignores_it(
    text: str, value: str, tmp_path: Path
) -> None:
    """The count of women must not be taken for that of all persons of an age."""
    path = written(tmp_path, text)
    with pytest.raises(InvalidInput, match="rename standard deviations to stddev"):
        read_noisy_tables(path, SCHEMA, stddev=1.0, value=value)
    ignoring = SCHEMA.of_file(FileFormat(ignore=("Sex", "M")))
    (found,) = read_noisy_tables(path, ignoring, stddev=1.0, value=value)
    assert found.clique == ("age",) and found.values.tolist() == [12.0]
    with pytest.raises(InvalidInput, match=r"t.csv has no column .*its columns are"):
        read_noisy_tables(path, ignoring, stddev=1.0, value="count")


def test_titles_and_notes_are_refused_with_what_to_delete(tmp_path: Path) -> None:
    for text in ("Table 1\n\nsex,n\nF,3\n", "sex,n\nF,3\nSource: the census\n"):
        with pytest.raises(InvalidInput, match="delete titles above the header and notes below"):
            rows(written(tmp_path, text), stddev=1.0)


def test_a_rounded_count_with_a_fraction_is_refused(tmp_path: Path) -> None:
    """A point or comma before the last three digits is then one of thousands."""
    path = written(tmp_path, "sex,n\nF,1.204\nM,3\n")
    with pytest.raises(InvalidInput, match=r"line 2: value '1\.204' is not whole"):
        read_noisy_tables(path, SCHEMA, rounding=1)
    assert read_noisy_tables(path, SCHEMA, stddev=2.0)[0].values.tolist() == [1.204, 3.0]
    whole = written(tmp_path, "sex,n\nF,1204.0\nM,3\n")
    assert read_noisy_tables(whole, SCHEMA, rounding=1)[0].stddev < 1


def test_a_negative_count_is_refused_unless_it_has_noise(tmp_path: Path) -> None:
    path = written(tmp_path, "sex,n\nF,-1\nM,3\n")
    assert read_noisy_tables(path, SCHEMA, rounding=5, stddev=2.0)[0].values.tolist() == [-1.0, 3.0]
    with pytest.raises(InvalidInput, match="line 2: value '-1' is negative, which a count without"):
        read_noisy_tables(path, SCHEMA, rounding=1)
    with pytest.raises(InvalidInput, match="line 3: value '-3' is negative"):
        read_noisy_tables(written(tmp_path, "sex,n,stddev\nF,-1,2\nM,-3,0\n"), SCHEMA)


def test_rounding_is_a_whole_number(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="rounding must be"):
        read_noisy_tables(written(tmp_path, "sex,n\nF,3\n"), SCHEMA, rounding=0)


def test_a_last_line_that_may_be_cut_is_warned_of(tmp_path: Path) -> None:
    """Of all beginnings of a file, each that is read has its whole lines, or a warning."""
    text = "age,sex,n,stddev\n0..17,F,310,12.5\n0..17,M,322,12.5\n18..29,F,287,12.5\n"
    lines, whole = text.splitlines(keepends=True), []
    for stop in range(len(lines[0]) + 1, len(text) + 1):
        path = written(tmp_path, text[:stop])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                rows(path)
            except InvalidInput:
                continue
        if caught:
            assert "has no line end" in str(caught[0].message)
            assert caught[0].filename == __file__
        else:
            whole.append(text[:stop])
    assert whole == ["".join(lines[:stop]) for stop in (2, 3, 4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a closing quotation mark ends a value
        assert rows(written(tmp_path, 'sex,n\nF,"310"'), stddev=1.0) == {(0,): (310.0, 1.0)}


@pytest.mark.parametrize(
    ("columns", "values", "said"), [(["zip"], [1, 2], "'zip'"), (["sex"], [1, 2, 3], "3 values")]
)
def test_tables_that_do_not_fit_the_schema_are_named(
    columns: list[str], values: list[int], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "noisy.json"
    fitting = {"columns": ["sex"], "values": [1, 2], "stddev": 1}
    path.write_text(json.dumps([fitting, {"columns": columns, "values": values, "stddev": 1}]))
    schema = Schema({"sex": Categorical(("F", "M"))})
    with pytest.raises(InvalidInput, match=f"noisy.json, table 2: .*{said}"):
        read_noisy_tables(path, schema)


def test_labels_may_hold_the_signs_of_line_ends(tmp_path: Path) -> None:
    schema = Schema({"job": Categorical(("cook", "co\nok", "co\u2028ok"))})
    path = written(tmp_path, 'job,n\n"co\nok",3\n"co\u2028ok",5\n')
    (found,) = read_noisy_tables(path, schema, stddev=1.0)
    assert found.matrix is not None and found.matrix.toarray().argmax(axis=1).tolist() == [1, 2]


def test_a_value_that_is_too_long_is_refused_with_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, f'sex,n\nF,1\n"{"M" * 200_000}",2\n')
    with pytest.raises(InvalidInput, match="t.csv hold a value of more than"):
        rows(path, stddev=1.0)


def test_exact_totals_beside_much_noise_leave_the_estimate_certified(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    share = rng.lognormal(0, 1.2, 100)
    area = rng.choice(100, 50_000, p=share / share.sum())
    region, age = area // 20, np.minimum(rng.gamma(3, 2, 50_000).astype(int), 8)
    work = rng.integers(0, 4, 50_000) * (age > 1)
    groups = {f"r{r}": list(range(20 * r, 20 * r + 20)) for r in range(5)}
    schema = Schema(
        {"area": Integer(0, 99), "age": Integer(0, 8), "work": Integer(0, 3)},
        levels={"region": Level("area", groups)},
    )
    columns, tables = {"area": area, "region": region, "age": age, "work": work}, []
    for names, noise in (
        (["region"], 0),
        (["area", "age"], 100),
        (["area", "work"], 100),
        (["region", "age", "work"], 50),
    ):
        sizes = [columns[name].max() + 1 for name in names]
        counts = np.zeros(sizes)
        np.add.at(counts, tuple(columns[name] for name in names), 1)
        lines = [",".join([*names, "n", "stddev"])]
        for cell, count in np.ndenumerate(counts):
            labels = ["r" * (n == "region") + str(c) for n, c in zip(names, cell, strict=True)]
            lines.append(",".join([*labels, f"{count + rng.normal(0, noise)}", f"{noise}"]))
        tables += read_noisy_tables(written(tmp_path, "\n".join(lines) + "\n"), schema)
    model = estimate(schema.domain, tables, total=50_000)
    found = model.marginal(("area",)).reshape(5, 20).sum(axis=1)
    assert model.certified and np.abs(found - np.bincount(region)).max() < 0.1
