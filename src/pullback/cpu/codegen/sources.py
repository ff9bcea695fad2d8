"""Definitions of functions, as they are written in their files, and which of their names vary."""

from __future__ import annotations

import ast
import linecache
import types
from collections.abc import Iterator
from functools import cache


class RefusedError(TypeError):
    """Something that cannot be translated."""


@cache
def _definitions(
    path: str, text: str
) -> dict[tuple[str, int], tuple[types.CodeType, ast.FunctionDef]]:
    """The functions of a file, by name and first line."""
    tree = ast.parse(text, path)
    codes = {(c.co_name, c.co_firstlineno): c for c in _codes(compile(tree, path, "exec"))}
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found[node.name, first] = codes[node.name, first], node
    return found


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def definition_of(function: types.FunctionType) -> ast.FunctionDef:
    """The definition of a function as it was read, or as text that is its ``source``.

    A file that was edited since it was imported is refused: it may say something else by now.
    """
    text = getattr(function, "source", None)
    if text is not None:
        (node,) = ast.parse(text).body
        assert isinstance(node, ast.FunctionDef)
        return node
    code, path = function.__code__, function.__code__.co_filename
    text = "".join(linecache.getlines(path, function.__globals__))
    if not text:
        raise RefusedError(f"{function.__qualname__}: {path}, to be compiled, cannot be read")
    try:
        read, node = _definitions(path, text)[code.co_name, code.co_firstlineno]
        same = read.co_code == code.co_code and read.co_names == code.co_names
    except (KeyError, SyntaxError):
        same = False
    if not same:
        raise RefusedError(f"{function.__qualname__}: {path} has changed since it was imported")
    return node


@cache
def returns_early(node: ast.FunctionDef) -> bool:
    """Whether a function returns elsewhere than at its end."""
    returns = [n for n in ast.walk(node) if isinstance(n, ast.Return)]
    return len(returns) > 1 or (bool(returns) and returns[0] is not node.body[-1])


@cache
def varying_names(function: ast.FunctionDef) -> frozenset[str]:
    """Names that are assigned more than once, or read where not every way has assigned them.

    All others stand for one value.
    """
    stored: dict[str, tuple[int, ...]] = {a.arg: () for a in function.args.args}
    loaded: list[tuple[str, tuple[int, ...]]] = []
    placed: set[str] = set()

    def look(node: ast.AST, path: tuple[int, ...]) -> None:
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                loaded.append((node.id, path))
            elif node.id in stored:
                placed.add(node.id)
            else:
                stored[node.id] = path
            return
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            placed.add(node.target.id)
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.AST):
                look(value, path)
            elif isinstance(value, list):
                nested = field in ("body", "orelse") and node is not function
                inside = (*path, id(value)) if nested else path
                if isinstance(node, ast.For) and nested:
                    enter_loop(node, inside)
                for item in value:
                    if isinstance(item, ast.AST):
                        look(item, inside)

    def enter_loop(node: ast.For, inside: tuple[int, ...]) -> None:
        # The name of a loop stands for a value inside of it alone.
        if isinstance(node.target, ast.Name) and stored.get(node.target.id) == inside[:-1]:
            stored[node.target.id] = inside

    for statement in function.body:
        look(statement, ())
    for name, path in loaded:
        home = stored.get(name)
        if home is not None and path[: len(home)] != home:
            placed.add(name)
    return frozenset(placed)
