"""Columns of labels: categories, known or still to be found, and truth values."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from pgmkit.errors import InvalidInput
from pgmkit.runtime.arguments import in_order, instance
from pgmkit.runtime.precision import EXACT
from pgmkit.tables.columns import LARGEST, OUTSIDE, Codes, Column, Values, plain
from pgmkit.tables.values import bare, distinct, is_null, label_of, number_of, tallied, text_of

_PADDED = re.compile("0[0-9]+")


class _Labelled(Column):
    """Base of columns whose values are distinguished by their texts."""

    def _codes(self, values: Any) -> Codes:
        found, places = distinct(values)
        return np.array([self._code(value) for value in found], dtype=np.int64)[places]

    def _code(self, value: object) -> int:
        if is_null(value):
            return self._null_code
        text = text_of(value)
        if (code := self._known.get(text)) is not None:
            return code
        if text in self.missing_texts:
            return self._null_code
        text = label_of(text)
        code = self._as_number.get(text)
        if code is None and not isinstance(value, str):
            code = self._padded.get(text)
        return self._otherwise(text) if code is None else code

    @cached_property
    def _as_number(self) -> Mapping[str, int]:
        """A mapping from labels (`label_of`) to codes, for every known text and every text listed
        as missing. If several texts have the same label, it has the code of the first known one.
        """
        absent = dict.fromkeys(map(label_of, self.missing_texts), self._null_code)
        return absent | {label_of(t): code for t, code in reversed([*self._known.items()])}

    @cached_property
    def _padded(self) -> Mapping[str, int]:
        """The code of each text with leading zeros, such as "01234", by the text without them
        ("1234"), unless several texts are the same number. Many readers of files turn 01234 into
        the number 1234.
        """
        padded = [text for text in self._known if _PADDED.fullmatch(text)]
        numbers = Counter(str(int(text)) for text in padded)
        return {str(int(t)): self._known[t] for t in padded if numbers[str(int(t))] == 1}

    @property
    @abstractmethod
    def _known(self) -> Mapping[str, int]:
        """The code of every known text."""

    def _otherwise(self, text: str) -> int:
        """Return the code of a text that is not known: none (`OUTSIDE`) unless overridden."""
        return OUTSIDE


@dataclass(frozen=True)
class Categorical(_Labelled):
    """A column whose values are one of a list (texts, numbers or truth values); spaces around texts
    do not count.

    The number 1234 also matches a listed text with leading zeros, "01234". Values that are all
    numbers have an order: "2..4" is a range of them. They are decoded as numbers or, if there is an
    `other`, as texts; if `decode_as` is a type of number, an `other` that is no number is decoded
    as a null. Raises InvalidInput for an empty list, a null or a whole number beyond 2^62 in it; an
    alias of something that is not in the list; two values, or a value and missing values, that have
    a text, an alias or a number in common; and, unless there is an `other`, a value that would be
    decoded as a null or as another value.

    Attributes:
        values: The values, in the order of their codes.
        other: A label for every value that is neither listed nor missing; without it such values
            are errors, unless `outside` says where they count.
        aliases: Other spellings of values, such as {"<=50K.": "<=50K"}.

    >>> column = Categorical(("no", "yes"), other="else")
    >>> column.encode(np.array(["yes", "no", "what"]))
    array([1, 0, 2])
    """

    type = "categorical"
    becomes = ("text", "category", "integer", "number", "boolean")
    values: Sequence[Any] = ()
    other: str | None = None
    aliases: Mapping[str, Any] | tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.other is not None:
            instance(self.other, str, "other")
        given = in_order(self.values, "values", "labels")
        plain_values = tuple(each if is_null(each) else plain(each) for each in given)
        object.__setattr__(self, "values", plain_values)
        try:
            aliases = dict(self.aliases)
        except (TypeError, ValueError):
            raise InvalidInput(
                f"aliases must be a mapping from texts to values, got {self.aliases!r:.60}"
            ) from None
        object.__setattr__(self, "aliases", tuple(aliases.items()))
        texts = list(self.own_labels)
        if not texts:
            raise InvalidInput("values is empty; list at least one value")
        for value in self.values:
            if isinstance(value, int) and abs(value) > LARGEST:
                raise InvalidInput(
                    f'values holds {value}, which is beyond 2^62; write it as a text: "{value}"'
                )
        doubled = [text for text, times in Counter(texts).items() if times > 1]
        if doubled:
            raise InvalidInput(f"values holds {sorted(doubled)[0]!r} twice; list it once")
        for value in (*self.values, *texts):
            if is_null(value) or isinstance(value, list | dict):
                raise InvalidInput(
                    f"values holds {value!r}, but must hold texts, numbers or truth values; nulls, "
                    "NaN and the empty text are missing values: declare `missing` instead"
                )
        self._check_aliases(texts)
        if self.other is None and self.kind not in ("text", "category"):
            for code, (value, decoded) in enumerate(zip(self.values, self._decoded, strict=True)):
                if self._code(decoded) != code:
                    raise InvalidInput(
                        f"the value {value!r} is decoded as {decoded}, which is no {self.kind} of "
                        'its own; declare decode_as: "text", or another type'
                    )
        self._check_outside()

    def _check_aliases(self, texts: Sequence[str]) -> None:
        """Raise InvalidInput for an alias of no value, and for texts or numbers of two meanings."""
        for spelling, label in dict(self.aliases).items():
            if text_of(label) not in texts:
                raise InvalidInput(f"alias {spelling!r} stands for {label!r}, which is not a value")
            if text_of(spelling) in texts:
                raise InvalidInput(f"alias {spelling!r} is a value itself; remove one of them")
        meant = {label_of(t): repr(t) for t in reversed(texts)} | {t: repr(t) for t in texts}
        further = [(text_of(t), repr(text_of(label))) for t, label in dict(self.aliases).items()]
        further += [(text, "missing values") for text in self.missing_texts]
        for text, value in further:
            for spelling in (text, label_of(text)):
                if (first := meant.setdefault(spelling, value)) != value:
                    raise InvalidInput(
                        f"{text!r} stands for {value} and, as the same text or number, for "
                        f"{first}; keep one"
                    )

    @cached_property
    def own_labels(self) -> tuple[str, ...]:
        listed = tuple(text_of(value) for value in self.values)
        return listed if self.other is None else (*listed, text_of(self.other))

    @property
    def default_outside(self) -> str:
        return super().default_outside if self.other is None else text_of(self.other)

    @property
    def kind(self) -> str:
        if self.decode_as is not None:
            return self.decode_as
        if self.other is not None:
            return "text"
        kinds = {type(value) for value in self.values}
        if kinds == {bool}:
            return "boolean"
        if kinds == {int}:
            return "integer"
        return "number" if kinds <= {int, float} else "text"

    @property
    def nullable(self) -> bool:
        return super().nullable or any(value is None for value in self._decoded)

    @cached_property
    def _numbers(self) -> list[int | float] | None:
        """The values if all of them are numbers; otherwise None."""
        if any(isinstance(value, bool | str) for value in self.values):
            return None
        return [number_of(value) for value in self.values]

    @cached_property
    def _padded(self) -> Mapping[str, int]:
        """The codes of texts with leading zeros, as in any column of labels, and in a column of
        truth values their codes by "0" and "1", as SPSS and Stata store them.
        """
        stored = {str(int(v)): code for code, v in enumerate(self.values) if v in (False, True)}
        return {**super()._padded, **(stored if self.kind == "boolean" else {})}

    @cached_property
    def _known(self) -> Mapping[str, int]:
        known = {text_of(value): code for code, value in enumerate(self.values)}
        others = {text_of(t): known[text_of(value)] for t, value in dict(self.aliases).items()}
        return known | others

    def _otherwise(self, text: str) -> int:
        if self._numbers is not None:
            with suppress(ValueError, KeyError):
                return self._known[text_of(number_of(bare(text)))]
        return self._truths.get(text.lower(), OUTSIDE if self.other is None else len(self.values))

    @cached_property
    def _truths(self) -> Mapping[str, int]:
        """The codes, by "true" and "false", of the values that are Booleans or that the column
        decodes as Booleans. Texts are compared with these two in any case of letters.
        """
        every, kind = enumerate(self.values), self.kind
        listed = ((code, v) for code, v in every if kind == "boolean" or isinstance(v, bool))
        return {text_of(_converted(value, "boolean")): code for code, value in listed}

    @cached_property
    def _decoded(self) -> list[Any]:
        """The decoded value of each code, except that of missing values."""
        listed, kind = [*self.values, *([] if self.other is None else [self.other])], self.kind
        return [_converted(value, kind) for value in listed]

    def own_values(self, codes: Codes, rng: np.random.Generator) -> Values:
        plain = {type(value) for value in self._decoded} in ({int}, {bool}, {float}, {int, float})
        return np.array(self._decoded, dtype=None if plain else object)[codes]

    def within(self, low: object, high: object, closed: bool = True) -> NDArray[np.bool_]:
        if self._numbers is None:
            return super().within(low, high, closed)
        try:
            first = -np.inf if low is None else number_of(low)
            last = np.inf if high is None else number_of(high)
            if first != first or last != last:
                raise ValueError(low, high)
        except (ValueError, TypeError):
            raise InvalidInput(f"a range needs numbers, got {low!r} and {high!r}") from None
        mask = np.zeros(self.size, dtype=bool)
        for code, value in enumerate(self._numbers):
            mask[code] = first <= value and (value <= last if closed else value < last)
        return mask

    @property
    def midpoints(self) -> NDArray[np.float64] | None:
        if self._numbers is None:
            return None
        rest = [np.nan] * (self.size - len(self._numbers))
        return np.array([*self._numbers, *rest], dtype=np.float64)

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | ({"aliases": plain(dict(self.aliases))} if self.aliases else {})


def _converted(value: Any, kind: str) -> Any:
    """Return a label as a value of this kind; None if it has no such value."""
    if kind in ("text", "category"):
        return value if isinstance(value, str) else text_of(value)
    if kind == "boolean":
        return {"true": True, "false": False, "1": True, "0": False}.get(text_of(value).lower())
    try:
        number = number_of(value)
        nearest = float(number)
    except (ValueError, OverflowError):
        return None
    if kind == "number":
        return number if abs(number) <= EXACT else nearest
    return int(number) if abs(number) <= LARGEST and nearest.is_integer() else None


@dataclass(frozen=True)
class OpenCategorical(Column):
    """A column whose labels are not known in advance and are still to be found in the data.

    `other`: the label of all values that are too rare to be found. Raises InvalidInput for settings
    that a `Categorical` refuses whatever its labels.
    """

    type = "open"
    resolved = False
    becomes = ("text", "category", "integer", "number", "boolean")
    other: str = "(other)"

    def __post_init__(self) -> None:
        super().__post_init__()
        instance(self.other, str, "other")
        # Settings that are wrong whatever the labels are refused here: finding labels costs budget.
        self.found(())

    @property
    def default_outside(self) -> str:
        return self.other

    def _unknown(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidInput("an open column has no labels yet; resolve the schema with a budget")

    own_labels, _codes, own_values = property(_unknown), _unknown, _unknown

    def is_missing(self, value: object) -> bool:
        """Return True for a missing value, or a text listed as missing."""
        listed = {each for text in self.missing_texts for each in (text, label_of(text))}
        return is_null(value) or not listed.isdisjoint({text_of(value), label_of(text_of(value))})

    def tally(self, values: Any) -> Counter[str | None]:
        """Return the number of values with each label (`label_of`), missing ones under None."""
        counted: Counter[str | None] = Counter()
        for text, rows in tallied(values).items():
            counted[None if self.is_missing(text) else label_of(text)] += rows
        return counted

    def found(self, labels: Sequence[str]) -> Categorical:
        """Return the Categorical with these labels and the settings of this column."""
        shared = {"missing": self.missing, "outside": self.outside, "decode_as": self.decode_as}
        return Categorical(tuple(labels), other=self.other, **shared)  # type: ignore[arg-type]


_TRUTH = {"false": 0, "true": 1, "0": 0, "1": 1, "no": 0, "yes": 1}


@dataclass(frozen=True)
class Boolean(_Labelled):
    """A column of truth values, which are also read from 0 and 1 and from true, false, yes and no.

    `words`: further words for false and for true, such as ("FALSE", "TRUE"), which are the labels,
    are written in CSV files, and are the decoded values if `decode_as` is "text". Raises
    InvalidInput unless they are two texts that are not blank and differ by more than case and outer
    spaces, or if False, True or a decoded value would be read as its opposite or as missing.
    """

    type = "boolean"
    own_labels = ("false", "true")
    becomes = ("boolean", "text", "integer")
    words: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.words is not None:
            words = tuple(in_order(self.words, "words", "two texts"))
            texts = [word.strip().lower() if isinstance(word, str) else "" for word in words]
            if len(words) != 2 or "" in texts or texts[0] == texts[1]:
                raise InvalidInput(
                    "words must be two texts, for false and for true, that differ by more than "
                    f"case and outer spaces; got {self.words!r}"
                )
            object.__setattr__(self, "words", words)
        written = [*self.own_values(np.arange(2), np.random.default_rng()), False, True]
        if [self._code(value) for value in written] != [0, 1, 0, 1]:
            raise InvalidInput(
                f"words {self.words or self.own_labels} mean something else as truth values, "
                f"numbers or missing values {self.missing or ()}; leave out words such as '1' for "
                "false, such missing values, or decode_as"
            )
        self._check_outside()

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return (*map(text_of, self.words or self.own_labels), *self.missing_texts[-1:])

    @cached_property
    def _known(self) -> Mapping[str, int]:
        return {text: code for code, text in enumerate(self.words or ())}

    def _otherwise(self, text: str) -> int:
        own = {word.strip().lower(): code for code, word in enumerate(self.words or ())}
        return (_TRUTH | own).get(text.lower(), OUTSIDE)

    def equal(self, labels: Sequence[object]) -> NDArray[np.bool_]:
        """Return what `Column.equal` does. A label may be any text or value that the column reads
        as true or false, such as TRUE, yes, 1, or one of `words`.
        """
        known = dict(enumerate(self.labels))
        return super().equal([known.get(self._code(label), label) for label in labels])

    def own_values(self, codes: Codes, rng: np.random.Generator) -> Values:
        if self.kind == "text":
            return np.array(self.words or ("false", "true"), dtype=object)[codes]
        return codes.astype(bool if self.kind == "boolean" else np.int64)
