"""No error that a package raises while it reads private records shows what it quotes."""

import logging
import traceback
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from mechanisms import Link, synthesize, synthesize_linked
from pgmkit import EngineFailed, InvalidInput, Schema
from pgmkit.errors import without_quotes
from pgmkit.tables.files.record_files import encode_file, read_frame
from pgmkit.tables.labelled import Boolean, OpenCategorical

SECRET = "6174-Kaprekar"
AGES = Schema({"age": Boolean()})
OPEN = Schema({"age": OpenCategorical()})


def polars_cast() -> Any:
    return pl.LazyFrame({"age": ["1", SECRET]}).select(pl.col("age").cast(pl.Int64), id=pl.lit(1))


def duckdb_cast() -> Any:
    return duckdb.sql(
        f"select cast(age as integer) as age, 1 as id from (values ('1'), ('{SECRET}')) t(age)"
    )


def pandas_values() -> Any:
    class Fails(pd.api.extensions.ExtensionArray):
        dtype = pd.Series(["a"], dtype="string").dtype

        def __len__(self) -> int:
            return 2

        def __array__(self, *_: object, **__: object) -> np.ndarray:
            raise RuntimeError(SECRET)

        def __getitem__(self, item: object) -> object:
            raise RuntimeError(SECRET)

        def copy(self) -> object:
            return self

    return pd.DataFrame({"age": pd.Series(Fails()), "id": [1, 1]})


class Panic(BaseException):
    """A panic of Rust, which polars raises, is no Exception either."""


def panicking() -> Any:
    def fail(*_: Any, **__: Any) -> Any:
        raise Panic(SECRET)

    frame = pl.LazyFrame({"age": ["1"], "id": [1]})
    frame.collect = fail  # type: ignore[method-assign]
    frame.select = lambda *_: frame  # type: ignore[method-assign]
    return frame


FRAMES = [polars_cast, duckdb_cast, pandas_values, panicking]


def check(error: BaseException, capfd: pytest.CaptureFixture[str], logged: str) -> None:
    shown = [str(error), repr(error), *traceback.format_exception(error), *capfd.readouterr()]
    chain: BaseException | None = error
    assert chain.__cause__ is None and chain.__context__ is None
    assert all(SECRET not in text for text in (*shown, logged))


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("unit", [None, "id"])
@pytest.mark.parametrize("schema", [AGES, OPEN])
def test_errors_of_frames_quote_nothing(
    frame: Any, schema: Schema, unit: str | None, capfd: Any, caplog: Any, recwarn: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    more = {} if unit is None else {"unit": unit, "max_rows": 1}
    with pytest.raises(EngineFailed, match="failed.*: .*Its message is left out") as caught:
        synthesize(frame(), schema, epsilon=1.0, delta=1e-6, seed=0, **more)
    check(caught.value, capfd, caplog.text + "".join(str(w.message) for w in recwarn))


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("odd", ["homes", "people"])
def test_errors_of_linked_frames_quote_nothing(
    frame: Any, odd: str, capfd: Any, caplog: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    whole = pa.table({"old": [True, False], "id": [1, 2]})
    frames = {"homes": whole, "people": whole, odd: frame()}
    schemas = {name: Schema({"old": Boolean()}) for name in frames} | {odd: AGES}
    links = [Link("people", "homes", key="id", most=2)]
    with pytest.raises(EngineFailed) as caught:
        synthesize_linked(frames, schemas, links, epsilon=1.0, delta=1e-6, seed=0)
    check(caught.value, capfd, caplog.text)


@pytest.mark.parametrize("read", [encode_file, read_frame])
@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "xlsx", "sav"])
@pytest.mark.parametrize("error", [pa.ArrowInvalid, KeyError, MemoryError, OSError])
def test_errors_of_files_quote_nothing(
    read: Any, kind: str, error: Any, tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"people.{kind}"

    def batches(*_: object) -> Any:
        yield {"age": pa.array(["true"])}
        raise error(SECRET)

    monkeypatch.setattr("pgmkit.tables.files.record_files.batches", batches)
    with pytest.raises(EngineFailed, match=error.__name__) as caught:
        read(path, AGES)
    check(caught.value, capfd, "")


def test_arguments_of_another_name_are_named() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'strict'"):
        encode_file("people.csv", AGES, strict=True)  # type: ignore[call-arg]


def test_errors_of_this_program_lose_what_caused_them() -> None:
    def fails() -> None:
        try:
            int(SECRET)
        except ValueError as error:
            raise InvalidInput("age must be a number") from error

    with pytest.raises(InvalidInput, match="age must be") as caught:
        without_quotes("reading", fails)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(FileNotFoundError):
        encode_file("no-such-file.csv", AGES)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_reading_stays_interrupted(stop: type[BaseException]) -> None:
    def stopped() -> None:
        raise stop

    with pytest.raises(stop):
        without_quotes("reading failed", stopped)
