"""Hooks by code swap: the same signature, results, exceptions and cells, and nothing left when they are off."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest

from eaglediag.probes.payload.wrap import Hook, Patch, Refused, innermost, wrap


class Log(Hook):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def enter(self, arguments: tuple[Any, ...]) -> Any:
        self.calls.append(("enter", arguments[1:]))
        return "token"

    def leave(self, token: Any, result: Any) -> None:
        self.calls.append(("leave", token, result))

    def abandon(self, token: Any) -> None:
        self.calls.append(("abandon", token))


class Base:
    def work(self, a: int, b: int = 2, /, c: int = 3, *rest: int, d: int = 4, **more: int) -> tuple[Any, ...]:
        return a, b, c, rest, d, more


class Worker(Base):
    def work(self, a: int, b: int = 2, /, c: int = 3, *rest: int, d: int = 4, **more: int) -> tuple[Any, ...]:
        return super().work(a, b, c, *rest, d=d, **more)

    def fail(self, why: str) -> None:
        raise ValueError(why)

    def __private(self, x: int) -> int:
        return x + 1

    def call_private(self, x: int) -> int:
        return self.__private(x)

    @staticmethod
    def static(x: int) -> int:
        return x


@pytest.fixture
def log() -> Log:
    return Log()


def patched(function: Any, log: Log) -> Patch:
    patch = wrap(innermost(function), log)
    patch.on()
    return patch


def test_a_bound_method_taken_earlier_is_reached_and_super_still_works(log: Log) -> None:
    early = Worker().work
    patch = patched(Worker.work, log)
    try:
        assert early(1) == (1, 2, 3, (), 4, {})
        assert early(1, 9, 8, 7, 6, d=5, e=0) == (1, 9, 8, (7, 6), 5, {"e": 0})
    finally:
        patch.off()
    assert log.calls == [
        ("enter", (1, 2, 3, 4)),
        ("leave", "token", (1, 2, 3, (), 4, {})),
        ("enter", (1, 9, 8, 5)),
        ("leave", "token", (1, 9, 8, (7, 6), 5, {"e": 0})),
    ]
    early(1)
    assert len(log.calls) == 4


def test_the_signature_is_kept(log: Log) -> None:
    before = inspect.signature(Worker.work)
    patch = patched(Worker.work, log)
    try:
        assert inspect.signature(Worker.work) == before
        assert Worker.work.__code__.co_name == "work"
        with pytest.raises(TypeError, match=r"work\(\) missing 1 required positional argument: 'a'"):
            Worker().work()  # type: ignore[call-arg]
    finally:
        patch.off()


def test_an_exception_goes_through_and_is_told(log: Log) -> None:
    patch = patched(Worker.fail, log)
    try:
        with pytest.raises(ValueError, match="why"):
            Worker().fail("why")
    finally:
        patch.off()
    assert log.calls == [("enter", ("why",)), ("abandon", "token")]


def test_mangled_names_static_methods_and_decorators(log: Log) -> None:
    def decorated(function: Any) -> Any:
        @functools.wraps(function)
        def outer(*args: Any) -> Any:
            return function(*args)

        return outer

    def plain(first: int, second: int) -> int:
        return first + second

    patches = [
        patched(vars(Worker)["_Worker__private"], log),
        patched(vars(Worker)["static"], log),
        patched(decorated(plain), log),
    ]
    try:
        assert Worker().call_private(1) == 2
        assert Worker.static(5) == 5
        assert plain(1, 2) == 3
    finally:
        for patch in patches:
            patch.off()
    assert len(log.calls) == 6


def test_two_hooks_on_one_function_come_off_in_the_reverse_order(log: Log) -> None:
    original = Worker.static.__code__
    first = patched(vars(Worker)["static"], log)
    second = patched(vars(Worker)["static"], log)
    Worker.static(1)
    assert [call[0] for call in log.calls] == ["enter", "enter", "leave", "leave"]
    second.off()
    first.off()
    assert Worker.static.__code__ is original


def test_what_returns_before_its_work_is_done_is_refused(log: Log) -> None:
    def generator() -> Any:
        yield 1

    async def coroutine() -> None:
        pass

    for function in (generator, coroutine):
        with pytest.raises(Refused, match="generator or coroutine"):
            wrap(innermost(function), log)
    with pytest.raises(Refused, match="not a Python function"):
        innermost(len)
