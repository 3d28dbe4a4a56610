"""Small changes to a module's syntax tree, one at a time: what a mutation score counts.

Changed are comparisons, arithmetic, and/or/not, numbers, texts, conditions, keyword arguments, returned values and
min/max/any/all; calls for effect, assignments to parts of objects and `raise` are taken out. Left alone are types,
decorators, docstrings and the texts of errors.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

_SWAPS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,), ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.Mult,), ast.Pow: (ast.Mult,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitOr,), ast.And: (ast.Or,), ast.Or: (ast.And,),
}  # fmt: skip
TELLING = 20  # characters of an expression that tell where it is from
_OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}
_SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "ctx", "type_params"}
_SKIPPED_NODES = (ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)


@dataclass(eq=False)
class Mutation:
    """One change of a tree: `tree` with `new` in the place of a node."""

    tree: ast.Module
    key: str  # says where and what, without line numbers: unique within a module
    first: int  # lines of the statement it is in, or of the head of a compound one
    last: int
    parent: ast.AST
    field: str
    index: int | None  # in a field that is a list
    new: ast.AST | None  # None: taken out

    def compiled(self, filename: str) -> CodeType:
        """The changed module as code."""
        before = self._swap(self.new)
        try:
            return compile(ast.fix_missing_locations(self.tree), filename, "exec")
        finally:
            self._restore(before)

    def _swap(self, new: Any) -> Any:
        if self.index is None:
            before = getattr(self.parent, self.field)
            setattr(self.parent, self.field, new)
            return before
        items = getattr(self.parent, self.field)
        before = items[self.index]
        items[self.index : self.index + 1] = [] if new is None else [new]
        return before

    def _restore(self, before: Any) -> None:
        if self.index is not None and self.new is None:
            getattr(self.parent, self.field).insert(self.index, before)
        else:
            self._swap(before)


def mutations(source: str) -> list[Mutation]:
    """Every change of a module, in the order of its text."""
    tree, seen = ast.parse(source), Counter[str]()
    result = []
    for mutation, name in _visit(tree, (tree,), "", tree):
        mutation.key = f"{name}: {mutation.key}"
        seen[mutation.key] += 1
        if seen[mutation.key] > 1:
            mutation.key += f" ({seen[mutation.key]})"
        result.append(mutation)
    return result


def _visit(
    tree: ast.Module, path: tuple[ast.AST, ...], name: str, statement: ast.AST
) -> Iterator[tuple[Mutation, str]]:
    node = path[-1]
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        name = f"{name}.{node.name}".lstrip(".")
    for field, value in ast.iter_fields(node):
        if field in _SKIPPED_FIELDS:
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or isinstance(child, _SKIPPED_NODES) or _docstring(child):
                continue
            inside = child if isinstance(child, ast.stmt) else statement
            first, last = _head(inside)
            for new in _replacements(child, node, field):
                mutation = Mutation(tree, "", first, last, node, field, index, new)
                mutation.key = _described(mutation, (*path, child))
                yield mutation, name or "module"
            if not isinstance(child, (ast.Raise, ast.JoinedStr)):
                yield from _visit(tree, (*path, child), name, inside)


def _replacements(node: ast.AST, parent: ast.AST, field: str) -> Iterator[ast.AST | None]:
    """What may stand in the place of a node; None where it may be taken out of a list."""
    for other in _SWAPS.get(type(node), ()):
        yield other()
    match node:
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node.operand
        case ast.Constant(value=bool() as truth):
            yield ast.Constant(not truth)
        case ast.Constant(value=int() as number):
            yield ast.Constant(number + 1)
            yield ast.Constant(number - 1)
        case ast.Constant(value=float() as number):
            yield ast.Constant(2.0 * number if number else 1.0)
            yield ast.Constant(number / 2.0 if number else -1.0)
        case ast.Constant(value=str() as text) if not isinstance(parent, ast.Expr):
            yield ast.Constant(text + "?")
        case ast.Constant(value=bytes() as data):
            yield ast.Constant(data + b"?")
        case ast.JoinedStr():
            yield ast.Constant("?")
        case ast.keyword() if node.arg is not None:
            yield None
        case ast.Name() if field == "func" and node.id in _OPPOSITES:
            yield ast.Name(_OPPOSITES[node.id], ast.Load())
        case ast.Attribute() if field == "func" and node.attr in _OPPOSITES:
            yield ast.Attribute(node.value, _OPPOSITES[node.attr], ast.Load())
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and not value.value):
            yield ast.Return(ast.Constant(None))
        case ast.Raise() | ast.Break() | ast.Continue() | ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.expr() if field in ("test", "ifs") and not isinstance(node, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
            yield ast.UnaryOp(ast.Not(), node)


def _described(mutation: Mutation, path: tuple[ast.AST, ...]) -> str:
    """The change in words: the smallest expression or statement that is long enough to show it, before and after."""
    whole = path[-1]
    for node in reversed(path):
        if isinstance(node, ast.stmt) and node is not path[-1] and hasattr(node, "body"):
            break
        if isinstance(node, (ast.expr, ast.keyword, ast.stmt)):
            whole = node
            if len(_line(node)) >= TELLING:
                break
    old = _line(whole)
    before = mutation._swap(mutation.new)
    new = _line(mutation.new if whole is path[-1] else whole)
    mutation._restore(before)
    argument = _argument(mutation)
    return f"{argument}{old} -> {argument}{new}"


def _argument(mutation: Mutation) -> str:
    """The name of the argument that a default belongs to, with the equals sign; else nothing."""
    match mutation.parent, mutation.field, mutation.index:
        case ast.arguments() as all_, "defaults", int(index):
            return f"{[*all_.posonlyargs, *all_.args][index - len(all_.defaults)].arg}="
        case ast.arguments() as all_, "kw_defaults", int(index):
            return f"{all_.kwonlyargs[index].arg}="
    return ""


def _line(node: ast.AST | None) -> str:
    return "nothing" if node is None else ast.unparse(node).splitlines()[0]


def _docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _head(statement: ast.AST) -> tuple[int, int]:
    """The lines of a statement; of a compound one, those before its body."""
    first = getattr(statement, "lineno", 1)
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if isinstance(body, list) and body else getattr(statement, "end_lineno", first)
    return first, max(first, last)
