"""Changing the simulated accept length of a running server, in the shapes that releases have it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from eaglediag.probes.payload.simulation import PACKAGE, set_accept_length


def module(monkeypatch: pytest.MonkeyPatch, name: str, source: str, **names: Any) -> Any:
    made = ModuleType(f"{PACKAGE}.{name}")
    vars(made).update(names)
    exec(source, vars(made))
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


UTILS = """
SIMULATE_ACC_LEN = 2.0
def generate(index, bs, simulate_acc_len: float = SIMULATE_ACC_LEN, simulate_acc_method: str = "match-expected"):
    return simulate_acc_len, simulate_acc_method
"""


def test_a_release_that_imports_the_constant_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = module(monkeypatch, "spec_utils", UTILS)
    assert set_accept_length(1.5) == {"accept_length": 1.5, "modules": [f"{PACKAGE}.spec_utils"]}
    assert utils.SIMULATE_ACC_LEN == 1.5


def test_a_release_whose_modules_hold_the_constant_and_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = module(monkeypatch, "spec_utils", UTILS)
    info = module(
        monkeypatch, "eagle_info", "def verify():\n    return generate(0, 1) if SIMULATE_ACC_LEN > 0 else None",
        SIMULATE_ACC_LEN=2.0, generate=utils.generate,
    )  # fmt: skip
    set_accept_length(2.75)
    assert info.SIMULATE_ACC_LEN == 2.75
    assert info.verify() == (2.75, "match-expected")


def test_a_release_that_keeps_text(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = module(monkeypatch, "eagle_utils", "SIMULATE_ACC_LEN = '2'")
    set_accept_length(1.5)
    assert utils.SIMULATE_ACC_LEN == "1.5"


@pytest.mark.parametrize(
    ("modules", "why"),
    [
        ({}, "no SIMULATE_ACC_LEN"),
        ({"spec_utils": "SIMULATE_ACC_LEN = -1"}, "started without SGLANG_SIMULATE_ACC_LEN"),
        ({"eagle_utils": "SIMULATE_ACC_LEN = None"}, "started without SGLANG_SIMULATE_ACC_LEN"),
        ({"spec_utils": UTILS, "dspark_components.dspark_worker_v2": ""}, "DSpark"),
    ],
)
def test_refusals(monkeypatch: pytest.MonkeyPatch, modules: dict[str, str], why: str) -> None:
    for name, source in modules.items():
        module(monkeypatch, name, source)
    with pytest.raises(ValueError, match=why):
        set_accept_length(1.5)
