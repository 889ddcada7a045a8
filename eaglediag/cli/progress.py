"""Progress on the terminal; silence when standard error is not one."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.status import Status


class TerminalProgress:
    """One line that changes with what is going on, and a line that stays for every stage that ended."""

    def __init__(self, title: str = "") -> None:
        self.console = Console(stderr=True)
        self.title = f"{title}: " if title else ""
        self._status: Status | None = None
        self._stage = ""
        self._detail = ""
        self._since = 0.0

    def __enter__(self) -> TerminalProgress:
        if self.console.is_terminal:
            self._status = self.console.status("")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._finish()
            self._status.stop()

    def __call__(self, stage: str, detail: str = "", fraction: float | None = None) -> None:
        """Show what goes on; see `eaglediag.probes.progress.Progress`."""
        if self._status is None:
            return
        if stage != self._stage:
            self._finish()
            self._stage, self._since = stage, time.monotonic()
        self._detail = detail
        share = "" if fraction is None else f" {fraction:.0%}"
        self._status.update(escape(f"{self.title}{stage}{share}{' · ' + detail if detail else ''}"))

    def _finish(self) -> None:
        if self._stage:
            spent = time.monotonic() - self._since
            detail = f" · {self._detail}" if self._detail else ""
            self.console.print(
                escape(f"  {self.title}{self._stage}{detail} ({spent:.1f} s)"), style="dim", highlight=False
            )
            self._stage = ""
