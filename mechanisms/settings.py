"""Settings of mechanisms: the allowed values of each field are stated beside its default.

A mechanism's settings are a frozen dataclass that derives from `Settings`. Every field is made by
`setting(default, rule)`, and a value that breaks its rule is refused as the settings are made,
before there is any data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import Any, TypeVar

from pgmkit.errors import InvalidInput
from pgmkit.runtime.arguments import number
from pgmkit.runtime.typed import typed

__all__ = [
    "RULE",
    "Rule",
    "Settings",
    "at_least",
    "flag",
    "fraction",
    "leave_something",
    "mapping_to",
    "one_of",
    "or_none",
    "positive",
    "random_seed",
    "setting",
    "text",
    "torch_device",
    "tuple_of",
    "whole_number",
]

T = TypeVar("T")

RULE = "rule"
"""The key of a field's metadata under which its rule is stored."""


@dataclass(frozen=True)
class Rule:
    """The values that a field may have.

    Attributes:
        words: The end of "name must be ...".
        holds: A function that is True for allowed values.
    """

    words: str
    holds: Callable[[Any], bool]


def setting(default: T, rule: Rule) -> T:
    """Return a dataclass field with this default and this rule, which `Settings` checks. If the
    default is None, None is allowed.
    """
    if default is None and not rule.holds(None):
        rule = or_none(rule)
    return field(default=default, metadata={RULE: rule})


class Settings:
    """This is the base class of all settings. It checks every field by its rule, then the fields
    together (`conflict`). Numbers of numpy become Python's, except within tuples and mappings.

    Raises InvalidInput, naming the field, the value received and what is allowed.

    >>> @dataclass(frozen=True)
    ... class Mine(Settings):
    ...     rounds: int = setting(3, whole_number())
    >>> Mine(rounds=0)
    Traceback (most recent call last):
    pgmkit.errors.InvalidInput: rounds must be a whole number, 1 or more; got 0
    """

    def __post_init__(self) -> None:
        for each_field in fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            rule = each_field.metadata.get(RULE)
            value = getattr(self, each_field.name)
            if isinstance(value, Real) and hasattr(value, "item"):  # a number of numpy
                object.__setattr__(self, each_field.name, value := value.item())
            if rule is not None and not rule.holds(value):
                raise InvalidInput(f"{each_field.name} must be {rule.words}; got {value!r}")
        if (conflict := self.conflict()) is not None:
            raise InvalidInput(conflict)

    def conflict(self) -> str | None:
        """Return a message about values that are allowed one by one but not together; else None."""
        return None


def leave_something(rest: str, settings: Settings, *shares: str) -> str | None:
    """Return a message if the fields `shares` of the settings, which are shares of one budget, sum
    to 1 or more; else None. `rest`: what then gets nothing, in words.
    """
    if math.fsum(getattr(settings, name) for name in shares) < 1:
        return None
    return (
        f"{' and '.join(shares)} must leave something for {rest}; got "
        f"{' and '.join(repr(getattr(settings, name)) for name in shares)}: lower one of them"
    )


@typed
def whole_number(least: int = 1, most: int | None = None) -> Rule:
    """Return the rule for a whole number, `least` or more and at most `most` (None: no limit)."""
    range_ = f", {least} or more" if most is None else f" from {least} to {most}"

    def holds(value: Any) -> bool:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and value >= least and (most is None or value <= most)

    return Rule(f"a whole number{range_}", holds)


def random_seed() -> Rule:
    """Return the rule for a seed of numpy's and torch's generators, from 0 to 2^63 - 1."""
    return whole_number(0, 2**63 - 1)  # torch holds it as a signed number of 64 bits


def positive() -> Rule:
    """Return the rule for a number above 0, from 1e-30 to 1e30. Within these bounds a number is in
    the range of float32, in which fits compute, and its square in that of float64.
    """
    return replace(at_least(1e-30), words="a number above 0, from 1e-30 to 1e30")


@typed
def at_least(least: float, most: float = 1e30) -> Rule:
    """Return the rule for a number from `least` to `most`; by default the latter is 1e30, as in
    `positive`.
    """
    words = f"a number from {least:g} to {most:g}"
    return Rule(words, lambda v: _is_finite(v) and least <= v <= most)


@typed
def fraction(*, below: float = 1.0, zero: bool = False) -> Rule:
    """Return the rule for a fraction, above 0 (or from 0, with `zero`) and below `below`."""
    low = "at least 0" if zero else "above 0"
    return Rule(
        f"a number {low} and below {below:g}",
        lambda value: _is_finite(value) and (value > 0 or (zero and value == 0)) and value < below,
    )


def one_of(*known: str) -> Rule:
    """Return the rule for one of these words."""
    words = f"one of {', '.join(map(repr, known))}"
    return Rule(words, lambda value: isinstance(value, str) and value in known)


def flag() -> Rule:
    """Return the rule for True or False."""
    return Rule("True or False", lambda value: isinstance(value, bool))


def text() -> Rule:
    """Return the rule for a string that is not empty."""
    return Rule("a string, not empty", lambda value: isinstance(value, str) and value != "")


@typed
def or_none(rule: Rule) -> Rule:
    """Return the rule that allows None and the values of another rule."""
    return Rule(f"{rule.words}, or None", lambda value: value is None or rule.holds(value))


@typed
def tuple_of(rule: Rule, *, empty: bool = False) -> Rule:
    """Return the rule for a tuple whose entries all satisfy ``rule``. The empty tuple is allowed
    only if `empty`.
    """
    return Rule(
        f"a tuple{'' if empty else ', not empty'}, each entry {rule.words}",
        lambda value: (
            isinstance(value, tuple) and (empty or len(value) > 0) and all(map(rule.holds, value))
        ),
    )


@typed
def mapping_to(rule: Rule) -> Rule:
    """Return the rule for a mapping from names of attributes, which are not checked against a
    domain, to values that satisfy ``rule``.
    """
    return Rule(
        f"a mapping from attributes to {rule.words}",
        lambda value: (
            isinstance(value, Mapping)
            and all(isinstance(key, str) and rule.holds(item) for key, item in value.items())
        ),
    )


def torch_device() -> Rule:
    """Return the rule for the setting `device`: "cpu", "auto", or a CUDA GPU that torch finds."""
    words = (
        '"cpu", "auto", or a CUDA GPU that torch finds, such as "cuda" or "cuda:1" (leave it out '
        "to compute on the processor)"
    )
    return Rule(words, _is_device)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(number(value))


def _is_device(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    if value in ("cpu", "auto"):
        return True
    from pgmkit.runtime.devices import device_of

    try:
        device_of(value)
    except InvalidInput:
        return False
    return True
