"""Public functions whose annotations are checked refuse every other type by the argument's name."""

import importlib
import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

import mechanisms
import pgmkit
from mechanisms.privacy.ledger import FileLedger
from pgmkit import Domain, InvalidInput, Measurement
from pgmkit.runtime.typed import kind_of, typed, typed_class

MODULES = (pgmkit, mechanisms, pgmkit.uai, pgmkit.bif, mechanisms.settings)
PLACES = (*MODULES, importlib.import_module("mechanisms.datasets.census"))


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function, constructor and method that ``typed`` has wrapped."""
    for module in PLACES:
        for name in module.__all__:
            thing = getattr(module, name)
            found = {name: thing}
            if inspect.isclass(thing):
                found = {f"{name}.{key}": value for key, value in inspect.getmembers(thing)}
            for key, each in found.items():
                function = getattr(each, "__func__", each)
                if inspect.isfunction(function) and hasattr(function, "__wrapped__"):
                    yield key, function


CHECKED = dict(public()) | {entry.name: entry.load()[0] for entry in mechanisms.MECHANISMS.values()}
UNCHECKED = re.compile(r"Any|object|ArrayLike|NDArray|\bT\b")
"""Annotations of which nothing, or only that they are arrays, is checked."""


@pytest.mark.parametrize("name", CHECKED)
def test_another_type_is_refused_by_name(name: str) -> None:
    """The check comes before the call, so the other arguments may be missing."""
    function = CHECKED[name]
    hints = {key: each.annotation for key, each in inspect.signature(function).parameters.items()}
    for parameter, hint in hints.items():
        if parameter in ("self", "cls") or re.search(
            "Any|object|ArrayLike|NDArray|\\bT\\b", str(hint)
        ):
            continue
        for value in (object(), ...):
            with pytest.raises((InvalidInput, TypeError)) as refused:
                function(**{parameter: value})
            if refused.type is InvalidInput:
                assert str(refused.value).startswith(f"{parameter} must be "), parameter
            else:  # the annotation has names that only a type checker imports
                assert "argument" in str(refused.value)


def test_most_of_the_curator_is_checked() -> None:
    names = [name for name in CHECKED if name.startswith("Curator.")]
    assert len(names) >= 18
    for name in ("run", "k_way", "plan", "aim", "mst", "Workload.__init__", "TableRelease.sample"):
        assert name in CHECKED


class Scaled(Protocol):
    """A protocol with a method and an attribute."""

    def scale(self) -> float: ...

    @property
    def unit(self) -> float: ...


class Meter:
    unit = 1.0

    def scale(self) -> float:
        return 1.0


class Half:
    unit = 1.0


class Twin:
    unit = 1.0

    def scale(self) -> float:
        return 1.0


class Longer(Scaled, Protocol):
    """A protocol with the names of another one."""

    def length(self) -> float: ...


class Rod(Meter):
    def length(self) -> float:
        return 2.0


class Stick:
    def length(self) -> float:
        return 2.0


ALLOWED: list[tuple[Any, list[Any], list[Any]]] = [
    (int, [3, np.int64(3)], [True, 3.5, "3", None, [3]]),
    (
        float,
        [3, 0.5, np.float32(1), float("nan"), 2**60 + 1, Fraction(1, 3)],
        ["x", None, 10**400, [1.0]],
    ),
    (bool, [True, np.bool_(False)], [0, "True", None]),
    (str, ["a"], [b"a", 1, None]),
    (int | None, [None, 1], ["a", 1.5]),
    (Literal["a", "b"], ["a"], ["c", None, np.array(["a", "a"])]),
    (Domain, [Domain({"a": 2})], [{"a": 2}, None]),
    (Sequence[str], [["a"], ("a",), []], ["a", {"a": 1}, {"a"}, ["a", 1], iter("a")]),
    (tuple[tuple[str, int], ...], [(("a", 1),), ()], [1, (1,)]),
    (Sequence[Measurement], [[Measurement(("a",), [1.0], 1.0)]], [[1], 3, np.zeros(3)]),
    (Mapping[str, int], [{"a": 1}], [[("a", 1)], None]),
    (Callable[[int], int], [abs, len], [3, "abs"]),
    (Path | str, [Path("a"), "a"], [3, None]),
    (os.PathLike[str], [Path("a")], ["a", 3]),
    (Iterable[int], [[1], (1,), {1}, {1: 2}, iter(["a"])], ["1", b"1", 3, None, ["a"], (1, "a")]),
    (Collection[str], [["a"], {"a"}, ()], ["a", {"a": 1}, iter("a"), ["a", 1], 3]),
    (list[float], [[1.0, 2]], [["a"], 1.0, "a"]),
    (tuple[int, str], [(1, "a"), ["any", "entries"]], [3, "ab", None]),
    (Sequence[Any], [["a", 1], np.zeros(2)], ["a", {"a": 1}, {"a"}, np.array(1.0)]),
    (Sequence[Sequence[str]], [[["a"], []]], [["a"], [[1]], 3]),
    (Sequence[str], [np.array([1.0])], [np.array(1.0)]),
    (NDArray[np.float64], [np.zeros(2)], [[0.0], 0.0]),
    (Mapping[str, int] | None, [{}, None], [[]]),
    (Scaled, [Meter(), Twin()], [Half(), 3, None]),
    (Longer, [Rod()], [Meter(), Stick()]),
    (Meter, [Meter(), Rod()], [Twin(), 3]),
    (tuple[int, ...], [(1, 2), [3]], [(1, "a"), ("a",)]),
    (type(None), [None], [0, False]),
    (Literal["a"] | float, ["a", 1], ["b", None]),
]


@pytest.mark.parametrize(("hint", "fine", "wrong"), ALLOWED, ids=[str(each[0]) for each in ALLOWED])
def test_kinds_of_values(hint: Any, fine: list[Any], wrong: list[Any]) -> None:
    kind = kind_of(hint)
    assert kind is not None
    assert [kind.holds(value) for value in fine] == [True] * len(fine)
    assert [kind.holds(value) for value in wrong] == [False] * len(wrong)


@pytest.mark.parametrize("hint", [Any, object, Any | None, int | Any])
def test_what_is_not_checked(hint: Any) -> None:
    assert kind_of(hint) is None


def test_arguments_are_named_wherever_they_stand() -> None:
    @typed
    def summed(first: int, /, second: int, *rest: int, scale: float = 1.0, **more: str) -> float:
        return scale * (first + second + sum(rest)) + len(more)

    assert summed(1, 2, 3, 4, scale=2, name="a") == 21
    assert summed(1, second=2) == 3
    for place, name in enumerate(("first", "second", "rest", "rest", "rest")):
        values: list[Any] = [1] * 5
        values[place] = "x"
        kind = "whole numbers, an argument each" if name == "rest" else "a whole number"
        with pytest.raises(InvalidInput, match=f"{name} must be {kind}, got 'x'"):
            summed(*values)
    with pytest.raises(InvalidInput, match="second must be a whole number, got 2.5"):
        summed(1, second=2.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="scale must be a number, got None"):
        summed(1, 2, scale=None)  # type: ignore[arg-type]


def test_constructors_and_public_methods_are_checked() -> None:
    @typed_class
    class Shelf:
        def __init__(self, books: Sequence[str]) -> None:
            self.books = list(books)

        def holding(self, title: str) -> bool:
            return title in self.books

        @classmethod
        def load(cls, path: Path) -> Any:
            return cls([str(path)])

        def _hidden(self, title: str) -> bool:
            return title in self.books

        @classmethod
        def of(cls, title: str) -> Any:
            return cls([title])

        @staticmethod
        def joined(titles: Sequence[str]) -> str:
            return " ".join(titles)

        @property
        def size(self) -> int:
            return len(self.books)

    wrong: Any = 3
    shelf = Shelf.of("a")
    assert shelf.holding("a") and Shelf.joined(["a", "b"]) == "a b" and shelf.size == 1
    assert not shelf._hidden(wrong)
    for call in (shelf.holding, Shelf.of):
        with pytest.raises(InvalidInput, match="title must be a text, got 3"):
            call(wrong)
    with pytest.raises(
        InvalidInput, match="books must be a sequence of texts, got a list with int"
    ):
        Shelf(["a", wrong])
    with pytest.raises(InvalidInput, match="titles must be a sequence of texts, got 3"):
        Shelf.joined(wrong)
    for words in ("books", Path("books")):
        with pytest.raises(InvalidInput, match="books must be .*; Shelf.load reads a file"):
            Shelf(words)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (Sequence[str], "a sequence of texts"),
        (Sequence[Sequence[str]], "a sequence of sequences of texts"),
        (Sequence[int | None], "a sequence of entries, each a whole number or None"),
        (int | str, "a whole number or a text"),
        (Sequence[str] | list[str], "a sequence of texts"),
        (Scaled, "a Scaled"),
        (Domain | None, "a Domain or None"),
        (Mapping[str, Domain], "a mapping from texts to Domains"),
        (Mapping[str, int | None], "a mapping"),
        (FileLedger, "a FileLedger (Ledger.open reads a file)"),
        (InvalidInput, "an InvalidInput"),
    ],
)
def test_kinds_are_said_in_words(hint: Any, words: str) -> None:
    kind = kind_of(hint)
    assert kind is not None and kind.words == words


def test_of_a_list_the_wrong_entry_is_shown_where_other_kinds_are_allowed_too() -> None:
    @typed
    def asked(tables: Domain | Sequence[Sequence[str]]) -> int:
        return len(tables)

    with pytest.raises(InvalidInput, match="sequences of texts, got a list with str"):
        asked(["age", "sex"])  # a list of texts in place of a list of lists


def test_messages_show_numbers_but_no_contents() -> None:
    @typed
    def kept(rows: int) -> int:
        return rows

    for value, shown in (
        (1.5, "1.5"),
        (True, "True"),
        (None, "None"),
        ("x", "'x'"),
        ("x" * 99, "'" + "x" * 59),
        ([4711], "list"),
        (np.full(2, 4711), "ndarray"),
        (Domain, "the class Domain"),
    ):
        with pytest.raises(InvalidInput, match=f"rows must be a whole number, got {shown}$"):
            kept(value)  # type: ignore[arg-type]
