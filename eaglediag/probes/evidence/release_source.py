"""What an SGLang release's own source says of its launch options and captured sizes. It is parsed, never run."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from eaglediag.analysis.launch_lint.finding import Rules
from eaglediag.errors import UsageError

_FLAG = re.compile(r"--[a-z][\w-]*$")
_MAXIMUM = re.compile(r"(?:cuda_graph_)?max_bs$")


def read_rules(folder: Path) -> Rules:
    """The rules of the release whose package `sglang` lies in `folder` (site-packages, a checkout's `python`, a wheel).

    Raises UsageError when there is none.
    """
    package = folder if folder.name == "sglang" else folder / "sglang"
    arguments = package / "srt" / "server_args.py"
    if not arguments.is_file():
        raise UsageError(f"{folder} holds no sglang", "give the folder that holds the package `sglang`")
    files = [arguments, *sorted((package / "srt" / "arg_groups").glob("**/*.py"))]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    sizes = next((node for tree in trees if (node := _sizes_function(tree))), None)
    return Rules(
        release=_release(package),
        options=frozenset(flag for tree in trees for flag in _flags(tree)),
        grid=None if sizes is None else lambda most, spec, padding: captured(sizes, most, spec, padding),
        source=str(package),
    )


def installed_rules() -> Rules | None:
    """The rules of the SGLang in this Python's path, without importing it; None when there is none."""
    for entry in sys.path:
        if entry and (Path(entry) / "sglang" / "srt" / "server_args.py").is_file():
            return read_rules(Path(entry))
    return None


def captured(function: ast.FunctionDef, max_bs: int, speculative: bool, padding: bool) -> list[int]:
    """The sizes that a release's generator gives. Raises UsageError for source it cannot follow."""
    sizes: list[int] = []
    for statement in function.body:
        sizes = _run(statement, sizes, max_bs, speculative, padding)
    return sizes


def _run(statement: ast.stmt, sizes: list[int], max_bs: int, speculative: bool, padding: bool) -> list[int]:
    if isinstance(statement, ast.If):
        condition = ast.unparse(statement.test)
        if "disable_cuda_graph_padding" in condition:
            chosen = not padding
        elif "speculative_algorithm is None" in condition or "speculative_algorithm) is None" in condition:
            chosen = not speculative
        elif "not in capture_bs" in condition:
            chosen = max_bs not in sizes
        else:
            raise UsageError(f"cannot follow `if {condition}` in this release", "use the built-in rules")
        for inner in statement.body if chosen else statement.orelse:
            sizes = _run(inner, sizes, max_bs, speculative, padding)
        return sizes
    if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "capture_bs":
        if isinstance(statement.value, ast.ListComp):
            return [size for size in sizes if size <= max_bs]
        return _list(statement.value, max_bs)
    if isinstance(statement, ast.Expr) and ast.unparse(statement.value).startswith("capture_bs.append("):
        return [*sizes, max_bs]
    return sizes


def _list(node: ast.expr, max_bs: int) -> list[int]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _list(node.left, max_bs) + _list(node.right, max_bs)
    if isinstance(node, ast.List):
        return [_number(item, max_bs) for item in node.elts]
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "list":
        return _list(node.args[0], max_bs)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "range":
        return list(range(*(_number(argument, max_bs) for argument in node.args)))
    raise UsageError(f"cannot follow `{ast.unparse(node)}` in this release", "use the built-in rules")


def _number(node: ast.expr, max_bs: int) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _number(node.left, max_bs) + _number(node.right, max_bs)
    if _MAXIMUM.search(ast.unparse(node)):
        return max_bs
    raise UsageError(f"cannot follow `{ast.unparse(node)}` in this release", "use the built-in rules")


def _sizes_function(tree: ast.Module) -> ast.FunctionDef | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and "generate" in node.name and "range(272" in ast.unparse(node):
            return node
    return None


def _flags(tree: ast.Module) -> set[str]:
    """Every option's spelling in the source, and those derived from the fields of the arguments' dataclasses."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _FLAG.match(node.value):
            found.add(node.value)
        elif isinstance(node, ast.ClassDef):
            found.update(
                "--" + field.target.id.replace("_", "-")
                for field in node.body
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            )
    return found


def _release(package: Path) -> str:
    for metadata in package.parent.glob("sglang-*.dist-info"):
        return metadata.name.removeprefix("sglang-").removesuffix(".dist-info")
    for file in (package / "_version.py", package / "version.py"):
        if file.is_file() and (
            found := re.search(r"version.*?['\"](\d[\w.+]*)['\"]", file.read_text(encoding="utf-8"))
        ):
            return found.group(1)
    return Rules().release
