"""A typer group whose commands are modules, imported when one of them is called and not when they are listed."""

from __future__ import annotations

import errno
import importlib
import sys
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from eaglediag.errors import Interrupted, ReaderGone, UsageError


class Command(NamedTuple):
    """Where a command's function is (`module:function`, under `eaglediag.cli`) and the line that lists it."""

    target: str
    help: str
    panel: str | None = None


def lazy_group(commands: dict[str, Command]) -> type[TyperGroup]:
    """A group class for `typer.Typer(cls=...)` that knows `commands` by name."""

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            for name, command in commands.items():
                self.add_command(TyperCommand(name, help=command.help, rich_help_panel=command.panel), name)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            # Help and the completion of names see stand-ins; a command that runs or completes its options is loaded.
            name, command, rest = super().resolve_command(ctx, args)
            if name in commands:
                command = self.commands[name] = _load(name, commands[name])
            return name, command, rest

        def invoke(self, ctx: Any) -> Any:
            # typer turns Ctrl-C and a reader that is gone into exit codes of its own; ours are raised before it can.
            try:
                try:
                    return super().invoke(ctx)
                finally:
                    if sys.stdout is not None:
                        sys.stdout.flush()
            except (KeyboardInterrupt, typer.Abort) as stop:
                raise Interrupted("interrupted") from stop
            except BrokenPipeError as error:
                raise ReaderGone("nobody reads the output") from error
            except OSError as error:
                # Who writes a file names it in an error of ours.
                if error.errno != errno.ENOSPC or error.filename is not None:
                    raise
                raise UsageError(f"cannot write to standard output: {error.strerror}", "free some space") from error

    return LazyGroup


def _load(name: str, command: Command) -> Any:
    module, function = command.target.split(":")
    single = typer.Typer(add_completion=False, rich_markup_mode="rich")
    single.command(name)(getattr(importlib.import_module(f"eaglediag.cli.{module}"), function))
    return typer.main.get_command(single)
