"""CSV files against the standard csv module."""

from __future__ import annotations

import csv
import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgmkit import table
from pgmkit.atomic_write import atomic_writer
from pgmkit.dataset import Dataset
from pgmkit.domain import Domain
from pgmkit.errors import InvalidInput
from pgmkit.table import read_csv, write_csv

AGE_SEX = Domain({"age": 1000, "sex": 2})
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0\ufeff"), min_size=1, max_size=5)


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "data.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def codes(data: Dataset) -> dict[str, list[int]]:
    return {a: column.tolist() for a, column in data.columns.items()}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(NAMES, st.sampled_from([1, 2, 11, 101, 300, 70_000, 2**40]), min_size=1),
    st.integers(1, 40),
    st.integers(0, 2**32),
    st.sampled_from([1, 7, 1 << 16]),
)
def test_written_files_read_back(
    tmp_path: Path, sizes: dict[str, int], rows: int, seed: int, chunk: int
) -> None:
    rng = np.random.default_rng(seed)
    domain = Domain(sizes)
    data = Dataset(domain, {a: rng.integers(0, n, rows) for a, n in sizes.items()})
    path = tmp_path / "data.csv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "_CHUNK_ROWS", chunk)
        write_csv(path, data)
    with open(path, encoding="utf-8", newline="") as file:
        header, *body = csv.reader(file)
    assert header == list(sizes)
    columns = codes(data)
    assert body == [[str(columns[a][i]) for a in sizes] for i in range(rows)]
    assert codes(read_csv(path, domain)) == columns


@pytest.mark.parametrize(
    "text",
    [
        "age,sex\n3,1\n999,0\n",
        "sex,age\n1,3\n0,999",
        "age,sex\r\n3,1\r\n999,0\r\n",
        "\ufeffage,sex\n3,1\n999,0\n",
        '"age","sex"\n"3","1"\n 999 ,0\n',
        "age,sex\n\n3,1\n\n999,0\n\n",
        "age,sex\n+3,1\n0999,0\n",
    ],
)
def test_ordinary_files_are_read(tmp_path: Path, text: str) -> None:
    assert codes(read_csv(write(tmp_path, text), AGE_SEX)) == {"age": [3, 999], "sex": [1, 0]}


@pytest.mark.parametrize(
    "text",
    [
        "name,age,sex\nAnn,3,1\nBörje 日本,999,0\n",
        'age,"a ""quoted"", name\nof two lines",sex\n3,"x,\n\n# y",1\n999,,0\n',
        "age,,sex,\n3,1.5,1,\n999,nan,0,-\n",
    ],
)
def test_extra_columns_are_ignored_only_when_told(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    data = read_csv(str(path), AGE_SEX, ignore_extra=True)
    assert codes(data) == {"age": [3, 999], "sex": [1, 0]}
    with pytest.raises(InvalidInput, match="ignore_extra=True"):
        read_csv(path, AGE_SEX)


SECRET = "987"

BAD_FILES: list[tuple[str | bytes, str]] = [
    ("", "is empty"),
    ("\n", "is empty"),
    ("age,sex\n", "no rows"),
    ("age\n987\n", "no column 'sex'"),
    ("age;sex\n987;1\n", "no column 'age'"),
    ("987,1\n987,0\n", "no column 'age'"),
    ("age,sex,age\n987,1,3\n", "'age' twice"),
    ("age,sex,zip\n987,1,3\n", "'zip' is not in the domain"),
    ("age,sex\n987,1\n987\n", "more or fewer cells"),
    ("age,sex\n987,1,1\n", "more or fewer cells"),
    ("age,sex\n987,1\n987,1,\n", "more or fewer cells"),
    ("age,sex\n98.7,1\n", "'age' .* not integers"),
    ("age,sex\n987.0,1\n", "'age' .* not integers"),
    ("age,sex\n987,1\n,1\n", "'age' .* not integers"),
    ("age,sex\n987,x987\n", "'sex' .* not integers"),
    ("age,sex\n987,nan\n", "'sex' .* not integers"),
    ("age,sex\n987,1_0\n", "'sex' .* not integers"),
    ("age,sex\n987,\u0663\n", "'sex' .* not integers"),
    ("age,sex\n987,# 1\n", "'sex' .* not integers"),
    ("age,sex\n98798798798798798798798798787,1\n", "'age' .* not integers"),
    ("age,sex\n98798798798798798798,1\n", "integer codes"),
    ("age,sex\n1987,1\n", r"'age' holds codes outside 0\.\.999"),
    ("age,sex\n-987,1\n", r"'age' holds codes outside 0\.\.999"),
    (b"age,sex\n987,\xff\n", "not UTF-8"),
    (b"age,s\xe9x\n987,1\n", "not UTF-8"),
    ("age,sex\n987,1\n".encode("utf-16"), "not UTF-8"),
    (b"age,sex\n987,1\0\n", "integer"),
    (b"PK\x03\x04\0\0\0", "no column 'age'|plain CSV"),
    ('age,sex\n987,"1\n987,0\n', "'sex' .* not integers"),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES)
def test_bad_files_are_refused_without_quoting_cells(
    tmp_path: Path, text: str | bytes, message: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InvalidInput, match=message) as caught:
        read_csv(path, AGE_SEX)
    shown = str(caught.value).removeprefix(f"{path}: ")
    assert shown != str(caught.value) and SECRET not in shown
    assert caught.value.__context__ is None


def test_an_empty_cell_in_a_single_column_is_refused(tmp_path: Path) -> None:
    domain = Domain({"age": 1000})
    assert len(read_csv(write(tmp_path, "age\n3\n4\n\n"), domain)) == 2
    for text in ("age\n3\n\n4\n", "age\n\n3\n4\n", "age\r\n3\r\n\r\n4\r\n"):
        with pytest.raises(InvalidInput, match="'age' holds cells that are not integers"):
            read_csv(write(tmp_path, text), domain)


@pytest.mark.parametrize("name", ["\x0c", " ", "\n\n", "\u2028", ",", '"'])
def test_strange_names_of_a_single_column(tmp_path: Path, name: str) -> None:
    data = Dataset(Domain({name: 3}), {name: [2, 0]})
    write_csv(tmp_path / "data.csv", data)
    assert codes(read_csv(tmp_path / "data.csv", data.domain)) == {name: [2, 0]}


def test_missing_files_and_wrong_domains(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_csv(tmp_path / "none.csv", AGE_SEX)
    with pytest.raises(InvalidInput, match="pgmkit Domain"):
        read_csv(tmp_path / "none.csv", {"age": 1000})  # type: ignore[arg-type]


def test_codes_of_64_bits(tmp_path: Path) -> None:
    domain = Domain({"id": 2**64, "a": 2})
    data = read_csv(write(tmp_path, f"id,a\n{2**64 - 1},1\n0,0\n"), domain)
    assert codes(data) == {"id": [2**64 - 1, 0], "a": [1, 0]}


SMALL = Dataset(AGE_SEX, {"age": [3, 999], "sex": [1, 0]})


def test_nothing_is_left_behind_by_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "old")

    def fail(codes: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(table, "_LOOKUP_SIZE", 0)
    monkeypatch.setattr(table, "_text", fail)
    with pytest.raises(KeyboardInterrupt):
        write_csv(path, SMALL)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_bad_targets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_csv(tmp_path / "none" / "data.csv", SMALL)
    with pytest.raises(IsADirectoryError):
        write_csv(tmp_path, SMALL)
    with pytest.raises(InvalidInput, match="no attributes"):
        write_csv(tmp_path / "data.csv", SMALL.project(()))
    assert list(tmp_path.iterdir()) == []


def test_writing_follows_links_and_keeps_usual_permissions(tmp_path: Path) -> None:
    plain, target, link = tmp_path / "plain", tmp_path / "target", tmp_path / "link"
    plain.write_text("")
    link.symlink_to(target)
    write_csv(link, SMALL)
    assert link.is_symlink() and target.read_text() == "age,sex\n3,1\n999,0\n"
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_atomic_writer_replaces_only_at_the_end(tmp_path: Path) -> None:
    path = write(tmp_path, "old")
    with atomic_writer(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_adult_is_read_and_written_back(tmp_path: Path) -> None:
    folder = os.environ.get("PGMKIT_DATA")
    if not folder:
        pytest.skip("set PGMKIT_DATA to the folder that holds adult.csv")
    domain = Domain(json.loads((Path(folder) / "adult.domain.json").read_text()))
    data = read_csv(Path(folder) / "adult.csv", domain, ignore_extra=True)
    path = tmp_path / "copy.csv"
    write_csv(path, data)
    original = (Path(folder) / "adult.csv").read_text().splitlines()
    assert path.read_text().splitlines() == [line.rpartition(",")[0] for line in original]
