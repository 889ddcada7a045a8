"""Reads the `server_args=` that an SGLang server prints: a dataclass's repr, or a dict's from 0.5.20 on."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from pydantic import JsonValue

REDACTED = "[redacted]"
_SECRET = re.compile(r"(^|_)(api_key|password|passwd|secret|access_token|auth_token|hf_token)($|_)")
#: An enum or object inside a repr is not Python source: <SomeEnum.NAME: 'x'>, <object at 0x7f..>.
_OBJECT = re.compile(r"<[^<>'\"]*(?:'[^']*')?[^<>'\"]*>")


def parse_server_args(text: str) -> dict[str, JsonValue]:
    """The arguments in `ServerArgs(...)` or `{...}`, secrets redacted.

    A nested dataclass becomes a dict; a value that is not a literal becomes its text. Nothing is evaluated.
    Raises ValueError when the text is cut off or is neither form.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        try:
            tree = ast.parse(_OBJECT.sub(lambda found: repr(found.group()), text.strip()), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError("the server_args are cut off or garbled") from error
    if not isinstance(tree, (ast.Call, ast.Dict)):
        raise ValueError("the server_args are neither ServerArgs(...) nor a dict")
    try:
        value = _value(tree)
    except RecursionError as error:
        raise ValueError("the server_args are nested too deeply") from error
    assert isinstance(value, dict)
    return redact(value)


def redact(arguments: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The same arguments without keys, tokens and passwords."""
    return {name: REDACTED if value and _SECRET.search(name) else value for name, value in arguments.items()}


def _value(node: ast.expr) -> JsonValue:
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, bool, type(None))):
        finite = not isinstance(node.value, float) or abs(node.value) != float("inf")
        return node.value if finite else str(node.value)
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {str(_value(key)): _value(value) for key, value in pairs if key is not None}
    if isinstance(node, ast.Call):
        return {word.arg: _value(word.value) for word in node.keywords if word.arg is not None}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = _value(node.operand)
        if isinstance(operand, (int, float)):
            return -operand
    return ast.unparse(node)
