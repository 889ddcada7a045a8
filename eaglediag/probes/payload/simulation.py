"""Changing the simulated accept length of a running server, so that a sweep needs no restart.

SGLang reads SGLANG_SIMULATE_ACC_LEN once, into a constant of `speculative/spec_utils.py` (0.5.2: `eagle_utils.py`).
Modules of the EAGLE family read that constant, or their own import of it, at every verify, and pass it on or rely on
the default argument of the function that draws the length: all three are changed here. DSpark's worker keeps a copy.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

CONSTANT = "SIMULATE_ACC_LEN"
PARAMETER = "simulate_acc_len"
PACKAGE = "sglang.srt.speculative"


def set_accept_length(length: float) -> dict[str, Any]:
    """Set it in every module that has it; the names of those modules.

    Raises ValueError when this server cannot be changed: no such constant, simulation not on since the start, DSpark.
    """
    modules = {
        name: module
        for name, module in list(sys.modules.items())
        if name.startswith(PACKAGE) and hasattr(module, CONSTANT)
    }
    if not modules:
        raise ValueError(f"this release has no {CONSTANT} to change")
    if any(name.startswith(f"{PACKAGE}.dspark") and name.endswith("worker_v2") for name in sys.modules):
        raise ValueError("DSpark keeps its own copy of the simulated accept length")
    now = next(iter(modules.values())).SIMULATE_ACC_LEN
    if not now or float(now) <= 0:
        raise ValueError("the server was started without SGLANG_SIMULATE_ACC_LEN")
    value = str(length) if isinstance(now, str) else length  # 0.5.2 keeps the environment's text
    for module in modules.values():
        setattr(module, CONSTANT, value)
        for function in list(vars(module).values()):
            if inspect.isfunction(function) and function.__defaults__ and PARAMETER in function.__code__.co_varnames:
                _set_default(function, value)
    return {"accept_length": length, "modules": sorted(modules)}


def _set_default(function: Any, value: Any) -> None:
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    first = len(names) - len(function.__defaults__)
    if PARAMETER in names[first:]:
        defaults = list(function.__defaults__)
        defaults[names.index(PARAMETER) - first] = value
        function.__defaults__ = tuple(defaults)
