"""Exact values that carry a mark: whoever uses one outside the Curator's arithmetic is recorded.

`marked()` marks the records of its block as soon as they are coded, by `synthesize` or for a
Curator, and the tallies of open columns. What is counted from them is `Exact`, and so is whatever
is computed from that: numpy, `len`, `int` and `float` keep the mark in the modules of `ARITHMETIC`,
which are all that may use one. A mark ends in three ways:

- The noise source takes it and answers without one. It takes nothing else, so a mark that was lost
  on the way is noticed, too.
- A comparison in the arithmetic decides something. Such places are recorded in `decisions`.
- Any other use, by any other module or as a text, is a leak and recorded in `leaks` with its place.
"""

from __future__ import annotations

import logging
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
from seams import private_records

from mechanisms.linked import pipeline as linked
from mechanisms.privacy import (
    cell_line,
    charging,
    curator,
    discovery,
    integer_matrix,
    scores,
    selecting,
)
from mechanisms.privacy.curator import Curator
from mechanisms.privacy.noise import SeededNoise, SparseScores
from mechanisms.privacy.selecting import Scored
from mechanisms.synthesis import open_columns, pipeline

CURATOR = (curator, charging, selecting, discovery)
"""The modules of the Curator itself."""
ARITHMETIC: tuple[ModuleType, ...] = (*CURATOR, scores, cell_line, integer_matrix)
_FILES = {str(module.__file__) for module in ARITHMETIC}
_SKIPPED = (__file__, str(Path(np.__file__).parent), "<")


@dataclass
class Marks:
    """What became of the marks of one block."""

    leaks: list[str] = field(default_factory=list)
    decisions: set[str] = field(default_factory=set)
    drawn: int = 0

    def used(self, how: str, *, text: bool = False) -> None:
        """Record a use that is not the arithmetic's."""
        place = _place()
        if text or place[0] not in _FILES:
            self.leaks.append(f"{how} at {place[0]}:{place[1]} ({place[2]})")

    def decided(self) -> None:
        self.used("compared")
        path, _, function = _place()
        self.decisions.add(f"{Path(path).stem}.{function}")


def _place() -> tuple[str, int, str]:
    """The file, line and function that used a value, below this module and numpy."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_SKIPPED):
        frame = frame.f_back
    function = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
    return frame.f_code.co_filename, frame.f_lineno, function.split(".<")[0]


MARKS = Marks()
"""Those of the block that is open."""


def plain(value: Any) -> Any:
    """The value, and what it holds, without marks."""
    if isinstance(value, Exact):
        return value.held
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(plain(each) for each in value)
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return value


def holds_mark(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(holds_mark, value))
    if isinstance(value, dict):
        return any(map(holds_mark, value.values()))
    return isinstance(value, Exact)


def mark(value: Any) -> Any:
    """Numbers, arrays and lists of them with a mark."""
    if isinstance(value, np.ndarray | np.generic | int | float):
        return Exact(value)
    if isinstance(value, np.flatiter):
        return Exact(np.asarray(value))
    if isinstance(value, list | tuple):
        return type(value)(map(mark, value))
    return value


class Exact:
    """A number or an array of private values; its shape and type are public."""

    __array_priority__ = 1e6
    __array_ufunc__ = None  # numpy's operators leave the work to those below

    def __init__(self, held: Any) -> None:
        self.held = held

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.held)

    @property
    def size(self) -> int:
        return int(np.size(self.held))

    @property
    def ndim(self) -> int:
        return int(np.ndim(self.held))

    @property
    def dtype(self) -> Any:
        return np.asarray(self.held).dtype

    def __len__(self) -> int:
        return len(self.held)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            MARKS.used(name)
            raise AttributeError(name)
        MARKS.used(f".{name}")
        found = getattr(self.held, name)
        if callable(found):
            return _keeping(found)
        assert holds_mark(mark(found)), f"{name} of an exact value would have no mark"
        return mark(found)

    def __getitem__(self, place: Any) -> Any:
        MARKS.used("indexed")
        return mark(self.held[plain(place)])

    def __setitem__(self, place: Any, value: Any) -> None:
        MARKS.used("changed")
        self.held[plain(place)] = plain(value)

    def __iter__(self) -> Iterator[Any]:
        MARKS.used("iterated")
        return (mark(each) for each in self.held)

    def __hash__(self) -> int:
        MARKS.used("hashed", text=True)
        return 0

    def __bool__(self) -> bool:
        MARKS.decided()
        return bool(self.held)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        MARKS.used("made an array, which has no mark", text=True)
        return np.array(self.held, dtype)


def _operators() -> None:
    """Give Exact the operators of numbers, conversions, and texts."""

    def binary(function: Callable[..., Any], turned: bool) -> Callable[..., Any]:
        def work(self: Exact, other: Any) -> Any:
            MARKS.used(function.__name__)
            pair = (self.held, plain(other))
            return Exact(function(*(pair[::-1] if turned else pair)))

        return work

    names = [
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "lshift",
        "rshift",
        "and",
        "or",
        "xor",
        "matmul",
    ]
    for name in names:
        function = getattr(operator, f"{name}_" if name in ("and", "or") else name)
        setattr(Exact, f"__{name}__", binary(function, False))
        setattr(Exact, f"__r{name}__", binary(function, True))
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(Exact, f"__{name}__", binary(getattr(operator, name), False))

    def unary(function: Callable[[Any], Any]) -> Callable[..., Any]:
        def work(self: Exact, *more: Any) -> Any:
            MARKS.used(function.__name__)
            return Exact(function(self.held, *more))

        return work

    for name, convert in (("neg", operator.neg), ("abs", abs), ("round", round)):
        setattr(Exact, f"__{name}__", unary(convert))

    def unmarked(function: Callable[..., Any]) -> Callable[..., Any]:
        def work(self: Exact, *more: Any) -> Any:
            MARKS.used(f"made a {function.__name__}, which has no mark", text=True)
            return function(self.held, *more)

        return work

    for name, made in (("int", int), ("index", operator.index), ("float", float), ("str", str)):
        setattr(Exact, f"__{name}__", unmarked(made))
    for name, shown in (("repr", repr), ("format", format)):
        setattr(Exact, f"__{name}__", unmarked(shown))


_operators()


def _keeping(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose result is marked where an argument was, or it is of a marked array."""

    def work(*args: Any, **options: Any) -> Any:
        return mark(function(*map(plain, args), **{k: plain(v) for k, v in options.items()}))

    return work


class _Numpy:
    """numpy, or one of its functions, as the arithmetic sees it: marks are kept."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        plainly = isinstance(found, type | ModuleType) or not callable(found)
        return found if plainly else _Numpy(found)

    def __call__(self, *args: Any, **options: Any) -> Any:
        if holds_mark(args) or holds_mark(options):
            return _keeping(self._real)(*args, **options)
        return self._real(*args, **options)


class _Int(type):
    """`int` and `float`, which keep marks and are still the types."""

    real: type

    def __call__(cls, *args: Any) -> Any:
        return Exact(cls.real(args[0].held)) if holds_mark(args) else cls.real(*args)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.real)


class MarkedCounts:
    """Private records whose counts are marked. `rows_public`: the relation makes the number so."""

    def __init__(self, real: Any, rows_public: bool = False) -> None:
        self.real, self.rows_public = real, rows_public

    @property
    def columns(self) -> Any:
        MARKS.used("records.columns", text=True)
        return self.real.columns

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        return type(self.real)

    @property
    def domain(self) -> Any:
        return self.real.domain

    @property
    def unread(self) -> Any:
        MARKS.used("records.unread")
        found = self.real.unread
        return found and {name: Exact(number) for name, number in found.items()}

    def marginals(self, cliques: Any) -> Any:
        return {clique: Exact(table) for clique, table in self.real.marginals(cliques).items()}

    def __len__(self) -> int:
        if not self.rows_public:
            MARKS.used("the number of rows", text=True)
        return len(self.real)

    def __getattr__(self, name: str) -> Any:
        MARKS.used(f"records.{name}", text=True)
        return getattr(self.real, name)


def _length(value: Any) -> Any:
    if type(value) is MarkedCounts:
        return len(value.real) if value.rows_public else Exact(len(value.real))
    return len(value)


class _Source(SeededNoise):
    """Draws from marked values and nothing else, and answers without a mark."""

    secure = True

    def __init__(self) -> None:
        super().__init__(np.random.default_rng(0))

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("gaussian", "laplace", "softmax", "flip", "top", "draws"):
            return found

        def draw(values: Any, *more: Any) -> Any:
            exact = values.values if isinstance(values, SparseScores) else values
            assert isinstance(exact, Exact), f"a mark was lost on the way to {name}"
            assert not holds_mark(more), f"the scale of {name} depends on the data"
            MARKS.drawn += 1
            if isinstance(values, SparseScores):
                return found(SparseScores(plain(values.places), exact.held, values.size), *more)
            return found(exact.held, *more)

        return draw


def marks_in(value: Any, seen: set[int] | None = None) -> int:
    """How many marked values an object holds, through containers and attributes.

    The Curator and its `Scored` candidates may hold them: they are what answers.
    """
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, type | ModuleType | str | bytes | np.ndarray):
        return 0
    seen.add(id(value))
    if type(value) in (Exact, MarkedCounts):
        return 1
    if isinstance(value, Curator | Scored):
        return 0
    inside: list[Any] = list(getattr(value, "__dict__", {}).values())
    inside += [getattr(value, each, None) for each in getattr(type(value), "__slots__", ())]
    if isinstance(value, dict):
        inside += [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        inside += value
    elif isinstance(value, FunctionType):
        inside += [cell.cell_contents for cell in value.__closure__ or ()]
    return sum(marks_in(each, seen) for each in inside)


def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the Curator, of which it is recorded when its answer holds a mark."""

    def work(*args: Any, **options: Any) -> Any:
        answer = method(*args, **options)
        if marks_in(answer):
            MARKS.leaks.append(f"Curator.{method.__name__} gives an exact value away")
        return answer

    return work


class _Log(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if marks_in(record.args) or marks_in(record.__dict__):
            MARKS.leaks.append(f"an exact value in the log of {record.name}")
        record.getMessage()


def _plain_counts(self: Curator, predicates: Any) -> Any:
    """Predicates are counted on the records themselves, which is the Curator's own work."""
    return Exact(predicates.counts(self._data.real))  # type: ignore[attr-defined]


def _annotations_resolved() -> None:
    """Have the annotations of the Curator's methods resolved. This is done once, at a method's
    first call, by the names of its module, which `_patched` replaces.
    """
    for each in Curator.__mro__:
        for method in vars(each).values():
            for cell in getattr(method, "__closure__", None) or ():
                if hasattr(cell.cell_contents, "cache_info"):
                    cell.cell_contents()


def _patched(patch: pytest.MonkeyPatch) -> None:
    _annotations_resolved()
    numbers = {each.__name__: _Int(each.__name__, (), {"real": each}) for each in (int, float)}
    for module in ARITHMETIC:
        patch.setattr(module, "np", _Numpy(np))
        for name, kept in numbers.items():
            patch.setattr(module, name, kept, raising=False)
    for module in CURATOR:
        patch.setattr(module, "len", _length, raising=False)
    texts_and_counts = discovery.distinct
    patch.setattr(
        discovery,
        "distinct",
        lambda values: (lambda t, n: (t, Exact(n)))(*texts_and_counts(plain(values))),
    )
    patch.setattr(curator, "ExactNoise", _Source)
    patch.setattr(Curator, "_predicate_counts", _plain_counts)
    init, recoded, table_of = Curator.__init__, Curator.recoded, Curator.table
    bounded, linked_codes = pipeline.bounded_frame, linked.coded
    check_rows, texts_of = pipeline.check_rows, open_columns.present_texts

    def marking(self: Curator, data: Any, *args: Any, **options: Any) -> None:
        init(self, data, *args, **options)
        self._data = MarkedCounts(getattr(data, "real", data), self.neighbours.rows_public)

    def recoding(self: Curator, data: Any) -> Curator:
        plainly = getattr(data, "real", data)
        return recoded(self, MarkedCounts(plainly, self.neighbours.rows_public))

    def table(self: Curator, data: Any, neighbours: Any, cost: float, **options: Any) -> Curator:
        other = table_of(self, data, neighbours, cost, **options)
        private_records(other).rows_public = neighbours.rows_public  # type: ignore[attr-defined]
        return other

    def linked_and_marked(*args: Any) -> Any:
        found = linked_codes(*args)
        return {name: MarkedCounts(counts) for name, counts in found.items()}

    def coded(function: Callable[..., Any]) -> Callable[..., Any]:
        def work(*args: Any) -> MarkedCounts:
            made = function(*args)
            return MarkedCounts(getattr(made, "real", made))

        return work

    def checking(request: Any, counts: MarkedCounts) -> None:
        counts.rows_public = request.relation.rows_public
        check_rows(request, counts)

    def bounding(*args: Any) -> Any:
        rows, excess = bounded(*args)
        return rows, replace(excess, rows=Exact(excess.rows))

    patch.setattr(Curator, "__init__", marking)
    patch.setattr(Curator, "recoded", recoding)
    patch.setattr(Curator, "table", table)
    patch.setattr(pipeline, "bounded_frame", bounding)
    patch.setattr(linked, "coded", linked_and_marked)
    patch.setattr(pipeline, "check_rows", checking)
    for name in ("counted", "counted_roughly"):
        patch.setattr(open_columns, name, coded(getattr(open_columns, name)))
    patch.setattr(
        open_columns,
        "present_texts",
        lambda *args: {text: Exact(rows) for text, rows in texts_of(*args).items()},
    )
    methods = [each for owner in Curator.__mro__[::-1] for each in vars(owner).items()]
    for name, method in methods:
        if isinstance(method, FunctionType) and not name.startswith("_") and name != "recoded":
            patch.setattr(Curator, name, guarded(method))


@contextmanager
def marked() -> Iterator[Marks]:
    """Curators of this block hold marked records and draw seeded noise that calls itself secure."""
    global MARKS
    MARKS = Marks()
    handler, root = _Log(), logging.getLogger()
    level = root.level
    with pytest.MonkeyPatch.context() as patch:
        _patched(patch)
        root.addHandler(handler)
        root.setLevel(0)
        try:
            yield MARKS
        finally:
            root.removeHandler(handler)
            root.setLevel(level)
