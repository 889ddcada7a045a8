"""What can go wrong, each with the exit code it ends the command with.

Commands raise these; `eaglediag.cli.main` is the one place that prints them and exits.
"""

from __future__ import annotations


class EaglediagError(Exception):
    """One line that says what happened and one that says what to do.

    `advice` is printed behind the message; `exit_code` is the process's exit status.
    """

    exit_code = 2

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message}; {self.advice}" if self.advice else self.message


class UsageError(EaglediagError):
    """Arguments or input files that cannot be used."""


class CaptureError(UsageError):
    """A capture that cannot be read: not JSON, truncated, too large, from a newer schema."""


class NotComparable(EaglediagError):
    """The arms differ in a way that forbids a verdict, or the data cannot support one."""

    exit_code = 3


class HostError(EaglediagError):
    """The host could not be reached, its key was refused, the login was refused, or the connection was lost."""

    exit_code = 4


class InstrumentationError(EaglediagError):
    """The server could not be instrumented or measured, or some of its ranks are missing."""

    exit_code = 5


class Interrupted(EaglediagError):
    """The user pressed Ctrl-C."""

    exit_code = 99


class ReaderGone(EaglediagError):
    """Nobody reads standard output any more, as behind `| head`: 128 + SIGPIPE, as a shell shows it, and no message."""

    exit_code = 141
