"""Values as text, without touching what they hold: nothing of the engine's is repr'd, copied, compared or forced."""

from __future__ import annotations

import types
from enum import Enum
from typing import Any

#: Stands for "not evaluated" wherever a value may be missing.
MISSING: Any = ...

PLAIN = frozenset({bool, int, float, str, type(None)})
_ITEMS = 16
_CHARACTERS = 120
_FIELDS = 6


def truth(value: Any) -> bool | None:
    """Whether `value` counts as true, or None where asking would run code of the engine's (a tensor, an object)."""
    kind = value.__class__
    if kind in PLAIN or kind in (list, tuple, dict, set, frozenset):
        return bool(value)
    if isinstance(value, Enum) and isinstance(value, int):
        return int.__bool__(value)
    if kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"):
        return bool(value)
    return None


def describe(value: Any) -> str:
    """`value` in a few words: plain values and short containers of them as written in source, anything else by type.

    Tensors read `Tensor(int32, (4,), cuda:0)`. Never raises.
    """
    try:
        return _describe(value)
    except Exception as error:
        return f"{type(value).__name__} (not describable: {type(error).__name__})"


def _describe(value: Any) -> str:
    kind = type(value)
    if kind in PLAIN:
        return _shorten(repr(value))
    if is_record(kind):
        fields = ((name, getattr(value, name)) for name in kind.__dataclass_fields__)
        return f"{kind.__name__}({', '.join(f'{name}={_describe(one)}' for name, one in fields if one is not None)})"
    if isinstance(value, Enum):
        return f"{kind.__name__}.{value._name_}"
    if kind in (list, tuple, set, frozenset, dict):
        return _container(value)
    if any(base.__name__ == "Tensor" for base in kind.__mro__):
        dtype = str(value.dtype).replace("torch.", "")
        return f"Tensor({dtype}, {tuple(value.shape)}, {value.device})"
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, types.MethodType):
        return f"{_describe(value.__self__)}.{value.__func__.__name__}"
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
        return value.__name__
    return kind.__name__


def _container(value: Any) -> str:
    kind = type(value)
    items = [item for item, _ in zip(value, range(_ITEMS), strict=False)]
    if not all(_simple(item) for item in items):
        return f"{kind.__name__} of {len(value)}"
    texts = [_describe(item) for item in items]
    if len(value) > _ITEMS:
        texts.append(f"... {len(value)} in all")
    inside = ", ".join(texts)
    if kind is dict:
        return f"dict with keys [{inside}]"
    if kind is list:
        return f"[{inside}]"
    if kind is tuple:
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    return f"{{{inside}}}" if value else f"{kind.__name__}()"


def is_record(kind: type) -> bool:
    """Whether it is a small frozen dataclass, such as the key of a captured graph: its fields are told, unless None."""
    parameters = getattr(kind, "__dataclass_params__", None)
    return parameters is not None and parameters.frozen and len(kind.__dataclass_fields__) <= _FIELDS  # type: ignore[attr-defined]


def identity(value: Any) -> Any:
    """Something hashable that tells this value from others of its type, as far as a glance can."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind in (list, tuple, dict, set, frozenset):
        return len(value)
    if isinstance(value, Enum):
        return id(value)
    return describe(value) if is_record(kind) else None


def _simple(item: Any) -> bool:
    return type(item) in PLAIN or isinstance(item, Enum) or is_record(type(item))


def _shorten(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 3]}..."
