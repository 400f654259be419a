"""Small changes of a Python file, enumerated on its syntax tree in a fixed order.

Each changes one expression or drops one statement: another operator, a constant next to it, a
comparison that is off by one, a condition turned round, two arguments swapped, a call left out, and
the mistakes of this house, exact values in place of noisy ones. Messages of errors, annotations and
documentation stay as they are: no number depends on them.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

__all__ = ["Change", "changes"]

_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.MatMult: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_NOISY = {"gaussian", "laplace"}
_DRAWN = {"softmax", "flip"}


@dataclass(frozen=True)
class Change:
    """One change: `name` is the function that holds it, what is changed, and its number there.

    `line`: the first line of what is changed, from 1.
    """

    name: str
    line: int
    source: str


def changes(text: str) -> Iterator[Change]:
    """All changes of a file's text, each as the whole text changed.

    >>> [change.name for change in changes("def f(x):\\n    return x < 2\\n")]
    ['f: x < 2 -> x <= 2', 'f: 2 -> 3']
    >>> next(changes("def f(x):\\n    return x < 2\\n")).source
    'def f(x):\\n    return (x <= 2)\\n'
    """
    tree = ast.parse(text)
    encoded = text.encode()
    starts = [0]
    for line in encoded.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    seen: Counter[str] = Counter()
    for place, node in _nodes(tree, ""):
        for changed in _changed(node):
            # Conditions are turned round in place: a statement of several lines is not rewritten.
            old = node.test if isinstance(node, ast.If | ast.While) else node
            new = ast.unparse(changed)
            name = f"{place}: {_short(ast.unparse(old))} -> {_short(new)}"
            seen[name] += 1
            assert isinstance(old, ast.expr | ast.stmt) and old.end_lineno is not None
            begin = starts[old.lineno - 1] + old.col_offset
            end = starts[old.end_lineno - 1] + (old.end_col_offset or 0)
            put = new if isinstance(old, ast.stmt) else f"({new})"
            source = (encoded[:begin] + put.encode() + encoded[end:]).decode()
            if seen[name] > 1:
                name += f" #{seen[name]}"
            yield Change(name, old.lineno, source)


def _short(code: str) -> str:
    line = " ".join(code.split())
    return line if len(line) <= 60 else line[:57] + "..."


def _nodes(node: ast.AST, place: str) -> Iterator[tuple[str, ast.AST]]:
    """The nodes that may be changed, each with its function or class, outer ones first."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        place = f"{place}.{node.name}" if place else node.name
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "exc", "type_comment", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_text(child):
                continue
            if isinstance(child, ast.expr | ast.stmt):
                yield place or "(module)", child
            yield from _nodes(child, place)


def _is_text(node: ast.AST) -> bool:
    """Documentation, messages, names that are listed, imports and what only types are made of."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
        return True
    if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
        return True
    return isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom)


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.BinOp() | ast.BoolOp():
            if type(node.op) in _OPERATORS:
                yield _with(node, op=_OPERATORS[type(node.op)]())
        case ast.Compare(ops=[operator, *_]):
            yield _with(node, ops=[_OPERATORS[type(operator)](), *node.ops[1:]])
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert()):
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int()):
            yield ast.Constant(node.value + 1)
        case ast.Constant(value=float()):
            yield ast.Constant(node.value * 2 or 1.0)
        case ast.If() | ast.While():
            if not isinstance(node.test, ast.Compare | ast.UnaryOp | ast.Constant):
                yield ast.UnaryOp(ast.Not(), node.test)
        case ast.IfExp(test=ast.Name() | ast.Attribute() | ast.Call() | ast.BoolOp()):
            yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete():
            yield ast.Pass()
        case ast.Call():
            yield from _calls(node)
        case ast.Attribute(attr="public_total", ctx=ast.Load()):
            yield ast.parse(f"len({ast.unparse(node.value)}._data)", mode="eval").body
        case ast.Name(id="noisy", ctx=ast.Load()):
            yield ast.Name("exact", ast.Load())


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    """Arguments swapped, the call left out, and what a draw was given in place of the draw."""
    arguments = node.args
    plain = not any(isinstance(each, ast.Starred) for each in arguments)
    named = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if len(arguments) >= 2 and plain:
        swapped = [arguments[1], arguments[0], *arguments[2:]]
        if ast.unparse(arguments[0]) != ast.unparse(arguments[1]):
            yield _with(node, args=swapped)
        if named in _NOISY:
            yield arguments[0]
        if named in _DRAWN:
            best = ast.parse("max(range(len(scores)), key=lambda i: scores[i])", mode="eval").body
            given = ast.unparse(arguments[0])
            text = ast.unparse(best).replace("scores", f"({given})")
            yield ast.parse(text, mode="eval").body
    elif len(arguments) == 1 and plain and not node.keywords:
        yield arguments[0]
    elif not arguments and not node.keywords and isinstance(node.func, ast.Attribute):
        yield node.func.value


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = deepcopy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed
