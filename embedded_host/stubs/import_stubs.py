"""Modules without content: anything can be imported from them, nothing can be called."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

#: Optional or GPU-only dependencies of SGLang. EMBEDDED_HOST_STUBS adds more, separated by commas.
PACKAGES = frozenset({"torchvision", "IPython", "soundfile", "gguf", "compressed_tensors"})
#: Some importers compare the version of what they got; this one passes for a current torchvision.
VERSION = "0.28.0"


class Placeholder(type):
    """A class that stands for a name nobody defined: it can be subclassed and asked for attributes, not instantiated."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"

    def __call__(cls, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise RuntimeError(f"{cls.__module__}.{cls.__qualname__} is an import stub of the embedded host")


class StubModule(ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        placeholder = Placeholder(name, (), {"__module__": self.__name__})
        setattr(self, name, placeholder)
        return placeholder


class StubFinder(MetaPathFinder, Loader):
    """Comes last on sys.meta_path, so a package that is installed is found first."""

    def __init__(self, packages: frozenset[str]) -> None:
        self.packages = packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, submodule = fullname.partition(".")
        # The reference kernels are a real package; only the submodules that it lacks are stubs.
        if package in self.packages or (package == "sgl_kernel" and submodule):
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> StubModule:
        return StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__version__ = VERSION  # type: ignore[attr-defined]


def install() -> None:
    more = filter(None, os.environ.get("EMBEDDED_HOST_STUBS", "").split(","))
    sys.meta_path.append(StubFinder(PACKAGES.union(more)))
