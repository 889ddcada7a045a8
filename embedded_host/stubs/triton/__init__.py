"""Triton without a compiler: kernels can be defined, never launched.

SGLang imports Triton everywhere, also on a CPU, and decorates kernels with it while its modules load. No kernel is
reached on the CPU engine; one that is raises.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

__version__ = "3.5.0"


class JITFunction:
    """What `@triton.jit` makes of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = self.__wrapped__ = function
        self.__name__ = getattr(function, "__name__", "kernel")

    def __getitem__(self, _grid: Any) -> JITFunction:
        return self

    def __call__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise RuntimeError(f"Triton kernel {self.__name__} was launched, and the embedded host has no Triton")


def jit(function: Callable[..., Any] | None = None, **_options: Any) -> Any:
    return JITFunction if function is None else JITFunction(function)


def autotune(*_args: Any, **_options: Any) -> Callable[[Any], Any]:
    return lambda kernel: kernel


heuristics = autotune


class Config:
    """One candidate of `@triton.autotune`."""

    def __init__(self, kwargs: dict[str, Any] | None = None, **_options: Any) -> None:
        self.kwargs = kwargs or {}


def cdiv(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def next_power_of_2(number: int) -> int:
    return 1 << (max(number, 1) - 1).bit_length()


class _Name(type):
    """The type of names such as `tl.float32`: each has any attribute, again such a name."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _named(name)


class _Anything(metaclass=_Name):
    """A name may be a value, a type, or a decorator with or without arguments."""

    def __init__(self, *_args: Any, **_options: Any) -> None:
        pass

    def __call__(self, *args: Any, **_options: Any) -> Any:
        return args[0] if args and callable(args[0]) else self

    def __getattr__(self, name: str) -> _Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


def _named(name: str) -> type:
    return type(name, (_Anything,), {})


class _Submodule(ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _named(name)
        setattr(self, name, value)
        return value


class _Finder(MetaPathFinder, Loader):
    """Every submodule of this package exists."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith("triton.") else None

    def create_module(self, spec: ModuleSpec) -> _Submodule:
        return _Submodule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "triton.runtime.jit":
            module.JITFunction = JITFunction  # type: ignore[attr-defined]
        elif module.__name__ == "triton.runtime":
            module.driver = _Driver  # type: ignore[attr-defined]


class _Driver:
    """`triton.runtime.driver.active` has no target, as on a machine without a GPU."""

    class active:
        @staticmethod
        def get_current_target() -> NoReturn:
            raise RuntimeError("the embedded host has no GPU")


def __getattr__(name: str) -> ModuleType:
    if name.startswith("__"):
        raise AttributeError(name)
    return import_module(f"triton.{name}")


sys.meta_path.insert(0, _Finder())
