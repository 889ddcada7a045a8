"""Run a callback once a module has been imported: at once when it is there already, otherwise right after its import.

Modules are never imported early: the order in which SGLang imports decides what some of them see.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any


class _Finder(MetaPathFinder):
    """First on sys.meta_path; finds nothing itself, and lets the loader of a watched module tell us when it is done."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[ModuleType], None]]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.waiting:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self.waiting.pop(name))
                return spec
        return None


class _Loader(Loader):
    """Another loader's, and then the callbacks. Everything else is asked of the other loader."""

    def __init__(self, inner: Any, callbacks: list[Callable[[ModuleType], None]]) -> None:
        self._inner = inner
        self._callbacks = callbacks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._inner.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The module must end up with its own loader: inspect and pickle ask for it.
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        for callback in self._callbacks:
            callback(module)


_finder = _Finder()


def when_imported(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Call `callback(module)` now or after the import of `name`. The callback must not raise."""
    module = sys.modules.get(name)
    # A module that is being imported right now has no functions yet: its callback must wait for the end.
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        callback(module)
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.waiting.setdefault(name, []).append(callback)
