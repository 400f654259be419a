"""A check of public functions' arguments by their annotations."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from functools import cache, wraps
from itertools import chain, cycle
from numbers import Integral
from os import PathLike
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, Union

from pgmkit.errors import InvalidInput
from pgmkit.runtime.arguments import number, shown

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Kind(NamedTuple):
    """The values that an annotation allows: ``words`` describe them, as in "name must be a number",
    and ``holds(value)`` returns True for them.
    """

    words: str
    holds: Callable[[Any], bool]
    entry: Kind | None = None
    """The kind of the entries of a sequence, if they are checked."""


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function, with a check of each argument by its annotation before it is called.

    The contents of arrays and mappings, and arguments annotated as ``Any``, are not checked.
    Entries are checked in lists and tuples; in another value for an annotated ``Sequence`` or
    ``Collection``, only if they are neither numbers, texts nor truth values. An object fits a
    protocol if it has all of the protocol's public names.

    Raises InvalidInput, which states the argument's name, what is allowed and what was received. A
    number, text, truth value or None is shown itself, shortened. For any other argument only the
    name of its type is shown, and for a list or tuple that of the first wrong entry, so that the
    message shows no data.

    >>> @typed
    ... def repeated(text: str, times: int = 2) -> str:
    ...     return text * times
    >>> repeated("a", times=[3])
    Traceback (most recent call last):
    pgmkit.errors.InvalidInput: times must be a whole number, got list
    """
    parameters = inspect.signature(function).parameters
    by_place = [name for name, each in parameters.items() if each.kind <= each.VAR_POSITIONAL]
    several = [name for name, each in parameters.items() if each.kind is each.VAR_POSITIONAL]

    @cache
    def kinds() -> dict[str, Kind]:
        found = {name: _kind_in(function, name) for name in parameters}
        for name in several:
            if (kind := found[name]) is not None:
                found[name] = kind._replace(words=f"{_plural(kind.words)}, an argument each")
        return {name: kind for name, kind in found.items() if kind is not None}

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        known = kinds()
        names = chain(by_place, cycle(several))
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            kind = known.get(name)
            if kind is not None and not kind.holds(value):
                reader = _reader(type(args[0])) if by_place[:1] == ["self"] and args else ""
                hint = f"; {reader}" if reader and isinstance(value, str | PathLike) else ""
                raise InvalidInput(f"{name} must be {kind.words}, got {_shown(kind, value)}{hint}")
        return function(*args, **kwargs)

    return checked


def _kind_in(function: Callable[..., Any], name: str) -> Kind | None:
    """Return the kind of values that a parameter's annotation allows; None if they are not checked
    (`kind_of`), or if the annotation cannot be evaluated, since it has a name that only a type
    checker imports.
    """
    alone = SimpleNamespace(__annotations__={name: function.__annotations__.get(name, Any)})
    try:
        return kind_of(typing.get_type_hints(alone, inspect.unwrap(function).__globals__)[name])
    except (NameError, TypeError):
        return None


def typed_class(cls: type[T]) -> type[T]:
    """Return the class, with the check of ``typed`` in its constructor and in those public methods
    that it defines itself.
    """
    for name, value in vars(cls).copy().items():
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(value, classmethod | staticmethod):
            setattr(cls, name, type(value)(typed(value.__func__)))
        elif inspect.isfunction(value):
            setattr(cls, name, typed(value))
    return cls


_PLAIN: dict[object, Kind] = {
    NoneType: Kind("None", lambda value: value is None),
    str: Kind("a text", lambda value: isinstance(value, str)),
    bool: Kind("True or False", lambda value: type(value).__name__ in ("bool", "bool_")),
    int: Kind("a whole number", lambda v: isinstance(v, Integral) and not isinstance(v, bool)),
    # `number` returns NaN, which is not equal to itself, for whatever is not a number. NaN itself
    # is allowed here, since later checks refuse it by its value.
    float: Kind("a number", lambda v: number(v) == number(v) or isinstance(v, float)),
}


def kind_of(hint: Any) -> Kind | None:
    """Return the kind of values that an annotation allows, or None if they are not checked."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if hasattr(origin, "__value__"):  # a name of another type, as NDArray is since numpy 2.5
        return kind_of(origin.__value__)
    if origin in (Union, UnionType):
        return _either([kind_of(part) for part in parts])
    if origin is Literal:
        return Kind(
            f"one of {', '.join(map(repr, parts))}",
            lambda value: isinstance(value, str) and value in parts,
        )
    words = {"PathLike": "a path", "Callable": "a function", "Mapping": "a mapping"}
    words["ndarray"] = "an array"  # found by its name, since numpy is not imported for a check
    if (name := getattr(origin, "__name__", "")) in words:
        said = _mapping(parts) if name == "Mapping" else words[name]
        return Kind(said, lambda value: isinstance(value, origin))
    if origin in (Sequence, Iterable, Collection, tuple, list):
        same = parts[:1] if origin is not tuple or parts[1:] == (...,) else ()
        unfit = {Iterable: (), Collection: (Mapping,)}.get(origin, (Mapping, Set))
        return _sequence(kind_of(same[0]) if same else None, (str, bytes, *unfit))
    if isinstance(hint, type) and origin is None and hint not in (Any, object):
        if not getattr(hint, "_is_protocol", False):
            return Kind(_article(hint), lambda value: isinstance(value, hint))
        has = [name for base in hint.__mro__[:-1] for name in vars(base) if name[0] != "_"]
        return Kind(_article(hint), lambda value: all(hasattr(value, name) for name in has))
    return None


def _either(kinds: list[Kind | None]) -> Kind | None:
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds):
        return None
    words = " or ".join(dict.fromkeys(kind.words for kind in known))
    entry = next((kind.entry for kind in known if kind.entry is not None), None)
    return Kind(words, lambda value: any(kind.holds(value) for kind in known), entry)


def _sequence(entry: Kind | None, refused: tuple[type, ...]) -> Kind:
    """Return the kind of sequences with entries of the kind ``entry``, or with any entries if that
    is None. Values of the types ``refused`` do not count as sequences; if mappings are among these,
    a sequence must have a length.
    """
    sized = Mapping in refused

    def holds(value: Any) -> bool:
        if isinstance(value, refused):
            return False
        try:
            iter(value)  # an array or tensor of no axes has __iter__, but raises here
            _ = len(value) if sized else 0
        except TypeError:
            return False
        fast = isinstance(value, list | tuple) or (sized and entry not in _PLAIN.values())
        return not fast or entry is None or all(map(entry.holds, value))

    return Kind(f"a sequence of {_plural(entry.words)}" if entry else "a sequence", holds, entry)


def _mapping(parts: tuple[Any, ...]) -> str:
    """Return words for a mapping. They name the kinds of its keys and of its values if both are
    checked and each is of one kind.
    """
    single = [kind.words for each in parts if (kind := kind_of(each)) and " or " not in kind.words]
    named = len(single) == len(parts)
    return f"a mapping from {' to '.join(map(_plural, single))}" if named else "a mapping"


def _plural(words: str) -> str:
    """Return the plural of "a text", "a sequence of texts" and the like.

    >>> _plural("a sequence of texts"), _plural("a text"), _plural("a text or None")
    ('sequences of texts', 'texts', 'entries, each a text or None')
    """
    first, of, rest = words.partition(" of ")
    noun = first.partition(" ")[2]
    return f"entries, each {words}" if " or " in first else f"{noun}s{of}{rest}"


def _article(kind: type) -> str:
    """Return a class's name with its article and, if it has one, the method that reads a file:
    "a Domain", "a Schema (Schema.load reads a file)".
    """
    words = f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
    return f"{words} ({_reader(kind)})" if _reader(kind) else words


def _reader(kind: type) -> str:
    """Return a clause that names the method by which a class reads a file; "" if it has none."""
    found = ((base, name) for base in kind.__mro__ for name in ("load", "open"))
    names = (f"{base.__name__}.{name}" for base, name in found if name in vars(base))
    return f"{name} reads a file" if (name := next(names, "")) else ""


def _shown(kind: Kind, value: object) -> str:
    if kind.entry is not None and isinstance(value, list | tuple):
        wrong = next(each for each in value if not kind.entry.holds(each))
        return f"a {type(value).__name__} with {type(wrong).__name__}"
    return shown(value)
