"""Mutants: a function of the product with one small change, as a code object that can stand in its place."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, NoneType

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
"""Comparisons, and what each becomes."""


@dataclass(frozen=True)
class Site:
    """A place where a change can be made.

    Attributes:
        path: The file.
        number: Its number among the sites of the file, from 0.
    """

    path: Path
    number: int


@dataclass(frozen=True)
class Mutant:
    """A function with one change.

    Attributes:
        path: The file.
        name: The outermost function that has the change in it, with its class.
        first_line: First line of that function's code; a decorator belongs to it.
        line: Line of the change.
        change: The change, as source.
        code: The function's code with the change.
    """

    path: Path
    name: str
    first_line: int
    line: int
    change: str
    code: CodeType

    def __str__(self) -> str:
        """Place and change."""
        return f"{self.path}:{self.line} {self.name}: {self.change}"


def sites_of(path: Path) -> list[Site]:
    """Every site of a file."""
    return [Site(path, number) for number, _ in enumerate(_changes(ast.parse(path.read_text())))]


def make_mutant(site: Site) -> Mutant | None:
    """The mutant of a site; None if a closure loses a variable by it, so that it cannot stand in its place."""
    file = str(site.path.resolve())
    tree = ast.parse(site.path.read_text())
    original = compile(tree, file, "exec", dont_inherit=True)
    name, function, node, change = list(_changes(tree))[site.number]
    first_line = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    before = ast.unparse(node)
    line = getattr(node, "lineno", function.lineno)
    change()
    described = f"{before} -> {ast.unparse(node)}"
    mutated = _find(compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True), name, first_line)
    if mutated.co_freevars != _find(original, name, first_line).co_freevars:
        return None
    return Mutant(site.path, name, first_line, line, described, mutated)


_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Change = tuple[str, _Function, ast.AST, Callable[[], object]]


def _changes(tree: ast.AST, within: str = "") -> Iterator[_Change]:
    """Each change: the name of its function, the function, the changed node, and what makes the change."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _Function):
            for statement in node.body:
                yield from ((within + node.name, node, *change) for change in _changes_below(statement))
        elif isinstance(node, ast.ClassDef):
            yield from _changes(node, f"{within}{node.name}.")


def _changes_below(node: ast.AST) -> Iterator[tuple[ast.AST, Callable[[], object]]]:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Raise() | ast.JoinedStr():  # docstrings, and texts for people
            return
        case ast.Compare(ops=[operator]) if type(operator) in COMPARED:
            yield node, partial(setattr, node, "ops", [COMPARED[type(operator)]()])
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield node, partial(setattr, node, "op", other)
        case ast.UnaryOp(op=ast.Not()):
            doubled = ast.UnaryOp(op=ast.Not(), operand=node.operand)
            yield node, partial(setattr, node, "operand", doubled)
        case ast.Constant(value=bool(value)):
            yield node, partial(setattr, node, "value", not value)
        case ast.Constant(value=int(value)):
            yield node, partial(setattr, node, "value", value + 1)
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield node, partial(setattr, node, "value", ast.Constant(value=None))
        case _:
            pass
    unchanged = {id(getattr(node, name, None)) for name in ("annotation", "returns")}
    for child in ast.iter_child_nodes(node):
        if id(child) not in unchanged:
            yield from _changes_below(child)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, NoneType)


def _find(code: CodeType, name: str, first_line: int) -> CodeType:
    """The code of a function, by its qualified name and its first line."""
    inside = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    for constant in inside:
        if constant.co_qualname == name and constant.co_firstlineno == first_line:
            return constant
        if name.startswith(f"{constant.co_qualname}."):
            return _find(constant, name, first_line)
    msg = f"{name} at line {first_line} has no code"
    raise LookupError(msg)
