"""From a function's code object back to its syntax tree, and from a tree to a code object that can take its place.

The new code keeps the file name, the line numbers, the cells and the `from __future__` imports of the old one.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import linecache
import sys
import warnings
from functools import cache
from types import CodeType
from typing import Any

from .wrap import Refused

_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag


def parse(code: CodeType, qualname: str) -> ast.Module:
    """The function's definition alone in a module, lines as in its file, inside a class of its own class's name."""
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise Refused("it is a generator or coroutine")
    if code.co_name == "<lambda>":
        raise Refused("it is a lambda")
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError, IndexError, SyntaxError) as error:
        raise Refused(f"its source cannot be read ({error})") from error
    indented = lines[0][:1].isspace()
    try:
        tree = ast.parse("if 1:\n" + "".join(lines) if indented else "".join(lines))
    except SyntaxError as error:
        raise Refused(f"its source does not parse ({error})") from error
    if indented:
        assert isinstance(tree.body[0], ast.If)
        tree.body = tree.body[0].body
    ast.increment_lineno(tree, first - 1 - indented)
    parents = qualname.split(".")[:-1]
    if parents and parents[-1] != "<locals>":
        owner = ast.ClassDef(parents[-1], [], [], tree.body, [])
        if sys.version_info >= (3, 12):
            owner.type_params = []
        tree.body = [ast.copy_location(owner, tree.body[0])]
    cells = [name for name in code.co_freevars if name != "__class__" or not parents or parents[-1] == "<locals>"]
    if cells:
        arguments = ast.arguments([], [ast.arg(name) for name in cells], None, [], [], None, [])
        outer = ast.FunctionDef("@cells", arguments, tree.body, [], None)
        if sys.version_info >= (3, 12):
            outer.type_params = []
        tree.body = [ast.copy_location(outer, tree.body[0])]
    # CPython compiles a call on a name that its module imports otherwise than one on any other global.
    tree.body += _imports(code.co_filename)
    ast.fix_missing_locations(tree)
    return tree


@cache
def _imports(file: str) -> tuple[ast.stmt, ...]:
    """The imports at the top of a module, under its `if`s and `try`s too."""
    found: list[ast.stmt] = []
    waiting: list[ast.AST] = [ast.parse("".join(linecache.getlines(file)))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                found.append(node)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)
    return tuple(found)


def definition(tree: ast.Module, code: CodeType) -> ast.FunctionDef:
    body: list[Any] = tree.body
    while body:
        node = body[0]
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            return node
        body = getattr(node, "body", [])
    raise Refused("its definition is not where its code says")


def replace(tree: ast.Module, old: ast.FunctionDef, new: ast.FunctionDef) -> None:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and body[0] is old:
            body[0] = new
            return


def compiled(tree: ast.Module, code: CodeType) -> CodeType:
    """The function's code object out of the compiled module. Raises Refused when its cells are not the function's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = compile(tree, code.co_filename, "exec", flags=code.co_flags & _FUTURE, dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise Refused(f"the rewritten source does not compile ({error})") from error
    waiting = [module]
    while waiting:
        found = waiting.pop()
        inner = [one for one in found.co_consts if isinstance(one, CodeType)]
        for one in inner:
            if one.co_name == code.co_name and one.co_firstlineno == code.co_firstlineno:
                if one.co_freevars != code.co_freevars:
                    raise Refused("its cells cannot be kept")
                if sys.version_info >= (3, 11):
                    return one.replace(co_qualname=code.co_qualname)
                return one
        waiting += inner
    raise Refused("its code cannot be found again")
