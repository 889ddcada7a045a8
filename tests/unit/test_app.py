"""The application's frame: prompt help, completion, exit codes of errors."""

from __future__ import annotations

import subprocess
import sys

import pytest

from eaglediag.cli import UNFORESEEN
from eaglediag.cli.app import COMMANDS
from eaglediag.errors import HostError
from tests.invoke import eaglediag

HEAVY = ("numpy", "scipy", "eaglediag.capture.model", "paramiko", "pandas", "jinja2")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], [], ["compare", "--help"], ["breakeven", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys\nfrom eaglediag.cli import main\n"
        f"sys.argv = ['eaglediag', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print([module for module in {HEAVY!r} if module in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stderr.splitlines()[-1] == "[]"


def test_every_command_is_listed_and_loads() -> None:
    listed = eaglediag("--help").out
    for name in COMMANDS:
        assert name in listed
        assert f"eaglediag {name}" in eaglediag(name, "--help").out


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(name: str) -> None:
    """Beside the line with the usage."""
    assert eaglediag(name, "--help").out.count(f"eaglediag {name}") > 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("export", "needs eaglediag[parquet]."),
        ("check", "[default: (tool.eaglediag.check of ./pyproject.toml)]"),
        ("check", "[default: (fail)]"),
        ("probe", "[default: (eagle with speculation, else baseline)]"),
        ("probe", "[default: (4 for each concurrent one, at least 16)]"),
    ],
)
def test_brackets_in_help_are_no_markup(name: str, said: str) -> None:
    assert said in eaglediag(name, "--help", width=200).out


def test_version() -> None:
    assert eaglediag("--version").out.startswith("eaglediag 0.")


def test_a_command_that_does_not_exist() -> None:
    ran = eaglediag("comapre")
    assert ran.code == 2
    assert "No such command 'comapre'" in ran.err


@pytest.mark.parametrize(
    ("words", "position", "expected"),
    [("eaglediag comp", 1, "compare"), ("eaglediag compare --js", 2, "--json")],
)
def test_completion(words: str, position: int, expected: str) -> None:
    ran = eaglediag(
        _EAGLEDIAG_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(position), _TYPER_COMPLETE_ARGS=words
    )
    assert expected in ran.out.split()


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KeyboardInterrupt(), 99, "eaglediag: interrupted\n"),
        (HostError("h200: refused", "check the port"), 4, "eaglediag: h200: refused; check the port\n"),
        (
            ZeroDivisionError("division by zero"),
            UNFORESEEN,
            "eaglediag: unforeseen ZeroDivisionError: division by zero",
        ),
    ],
)
def test_errors_become_exit_codes(raised: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: object) -> None:
        raise raised

    monkeypatch.setattr("eaglediag.capture.store.read", read)
    ran = eaglediag("compare", "a", "b")
    assert ran.code == code
    assert ran.err.startswith(said)
    assert "Traceback" not in ran.err
    debugged = eaglediag("--debug", "compare", "a", "b")
    assert debugged.code == code
    assert "Traceback" in debugged.err


def test_an_error_is_one_line_without_escape_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: object) -> None:
        raise HostError("it said \x1b[2J\nand\r\nmore\u202e", "look")

    monkeypatch.setattr("eaglediag.capture.store.read", read)
    assert eaglediag("compare", "a", "b").err == "eaglediag: it said \\x1b[2J and more\\u202e; look\n"
