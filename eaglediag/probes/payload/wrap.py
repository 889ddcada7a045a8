"""Put a hook around a function by swapping its code object.

Bound methods, class attributes and `from x import f` names all share one function object, so the swap reaches every
caller however early it imported the name, and assigning the old code back undoes it. The new code keeps the
function's signature, name, defaults and cells, and forwards to a copy that carries the old code.
"""

from __future__ import annotations

import inspect
from types import CodeType, FunctionType
from typing import Any

#: Where the hooks of a module live: no identifier, so that it can never meet a name of the module's own.
HOOKS = "@eaglediag.hooks"


class Refused(Exception):
    """A function cannot be hooked; the message says why."""


class Hook:
    """What happens around a call. None of these may raise.

    `enter` gets the call's named arguments as one tuple, in the order of the parameters, and returns a token that
    `leave` (with the call's result) or `abandon` (when it raised) gets back.
    """

    def enter(self, arguments: tuple[Any, ...]) -> Any:
        """Before the call."""
        raise NotImplementedError

    def leave(self, token: Any, result: Any) -> None:
        """After the call returned."""
        raise NotImplementedError

    def abandon(self, token: Any) -> None:
        """After the call raised."""


def innermost(function: Any) -> FunctionType:
    """The plain function under decorators that keep `__wrapped__`. Raises Refused."""
    function = getattr(function, "__func__", function)
    plain = inspect.unwrap(function)
    if not isinstance(plain, FunctionType):
        raise Refused(f"it is a {type(plain).__name__}, not a Python function")
    return plain


class Patch:
    """A function and the code that stands in for its own while the patch is on. Off, it costs nothing."""

    def __init__(self, function: FunctionType, replacement: CodeType, inner: FunctionType | None = None) -> None:
        self.function = function
        self.replacement = replacement
        #: What carries the function's own code while the patch is on: itself, or the copy that a hook calls.
        self.inner = inner or function
        self.original: CodeType | None = None

    def on(self) -> None:
        """Swap the code in."""
        if self.original is None:
            self.original, self.function.__code__ = self.function.__code__, self.replacement

    def off(self) -> None:
        """Swap the function's own code back. A call that is going on ends in the code it began with."""
        if self.original is not None:
            self.function.__code__, self.original = self.original, None


def wrap(function: FunctionType, hook: Hook) -> Patch:
    """The patch, still off, that runs `hook` around every call of `function`.

    Raises Refused for generators and coroutines, whose call returns before their work is done.
    """
    code = function.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise Refused("it is a generator or coroutine")
    original = FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
    original.__kwdefaults__ = function.__kwdefaults__
    original.__qualname__ = function.__qualname__
    hooks: list[tuple[Hook, FunctionType]] = function.__globals__.setdefault(HOOKS, [])
    hooks.append((hook, original))
    return Patch(function, _forwarding_code(code, len(hooks) - 1), original)


def _forwarding_code(code: CodeType, slot: int) -> CodeType:
    names = code.co_varnames
    plain = list(names[: code.co_argcount])
    keyword_only = list(names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount])
    rest = list(names[code.co_argcount + code.co_kwonlyargcount :])
    star = rest.pop(0) if code.co_flags & inspect.CO_VARARGS else None
    stars = rest.pop(0) if code.co_flags & inspect.CO_VARKEYWORDS else None

    parameters = list(plain)
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    if star is not None:
        parameters.append("*" + star)
    elif keyword_only:
        parameters.append("*")
    parameters += keyword_only
    forwarded = plain + ([f"*{star}"] if star else []) + [f"{name}={name}" for name in keyword_only]
    if stars is not None:
        parameters.append("**" + stars)
        forwarded.append("**" + stars)
    seen = plain + keyword_only

    # The dead `if 0` makes the cells of the original free variables here too: a code swap needs the same number.
    cells = f"if 0: ({', '.join(code.co_freevars)},)" if code.co_freevars else ""
    hidden = {"_hook_": "hook", "_call_": "call", "_token_": "token", "_result_": "result"}
    body = f"""
def _factory_({", ".join(code.co_freevars)}):
    def {code.co_name if code.co_name.isidentifier() else "_function_"}({", ".join(parameters)}):
        {cells}
        _hook_, _call_ = _hooks_[{slot}]
        _token_ = _hook_.enter(({"".join(name + ", " for name in seen)}))
        try:
            _result_ = _call_({", ".join(forwarded)})
        except BaseException:
            _hook_.abandon(_token_)
            raise
        _hook_.leave(_token_, _result_)
        return _result_
    return {code.co_name if code.co_name.isidentifier() else "_function_"}
"""
    for name in (*parameters, *code.co_freevars):
        if name.lstrip("*") in (*hidden, "_hooks_", "_factory_", "_function_"):
            raise Refused(f"its parameter {name} has a name of ours")
    module = compile(body, "<eaglediag hook>", "exec")
    factory = next(item for item in module.co_consts if isinstance(item, CodeType))
    inner = next(item for item in factory.co_consts if isinstance(item, CodeType))
    if inner.co_freevars != code.co_freevars:
        raise Refused("its cells cannot be kept")
    global_names = tuple(HOOKS if name == "_hooks_" else name for name in inner.co_names)
    replaced = {"co_names": global_names, "co_name": code.co_name, "co_firstlineno": code.co_firstlineno}
    if hasattr(code, "co_qualname"):
        replaced["co_qualname"] = code.co_qualname
    return inner.replace(**replaced)  # type: ignore[arg-type]
