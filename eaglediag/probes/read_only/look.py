"""Looks at the server again and again, keeps its metrics pages, and notices when it stops answering."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from eaglediag.errors import InstrumentationError
from eaglediag.probes.evidence.metrics_series import Poll, readings, trimmed
from eaglediag.probes.progress import Progress, silent
from eaglediag.probes.read_only.log_tail import LogTail
from eaglediag.probes.read_only.pages import NoAnswer, Pages
from eaglediag.probes.workload import Client, Result

#: A page costs the server's HTTP process some milliseconds. Steps are counted: fewer looks lose none.
EVERY_S = 0.5
#: A server that did not answer for so long, or was not there so often, has stopped.
SILENT_S = 20.0
REFUSED_TIMES = 3
#: How long the requests under way when a load is broken off may take to come back.
STOP_WITHIN_S = 2.0


@dataclass
class Look:
    """The looks so far, in `polls`; without `metrics` each only asks whether the server is there."""

    pages: Pages
    metrics: bool
    tail: LogTail | None = None
    progress: Progress = silent
    polls: list[Poll] = field(default_factory=list)
    _silent_since: float | None = None
    _refused: int = 0

    def once(self) -> bool:
        """Whether the server answered.

        Raises HostError when the connection is lost, InstrumentationError when the server stopped answering.
        """
        if self.tail is not None:
            self.tail.check()
        try:
            if self.metrics:
                page = self.pages.metrics()
                if page is not None:
                    self.polls.append(Poll(time.time(), trimmed(page)))
            else:
                self.pages.alive()
        except NoAnswer as error:
            self._not_answered(error)
            return False
        self._silent_since, self._refused = None, 0
        return True

    def insist(self) -> None:
        """Look until the server answers. Raises what `once` raises."""
        while not self.once():
            time.sleep(EVERY_S)

    def until(self, done: Callable[[], bool], stage: str, duration_s: float | None = None) -> None:
        """Look until `done`, and once more. Raises what `once` raises."""
        begin = time.monotonic()
        self.once()
        while not done():
            fraction = None if duration_s is None else min(1.0, (time.monotonic() - begin) / duration_s)
            self.progress(stage, self._now(), fraction)
            next_at = time.monotonic() + EVERY_S
            while time.monotonic() < next_at and not done():
                time.sleep(0.05)
            self.once()

    def during(self, client: Client, concurrency: int, count: int, tokens: int, stage: str) -> Result:
        """Run a load, and look meanwhile. Raises what either raises; the load is then broken off."""
        outcome: list[Result | BaseException] = []

        def work() -> None:
            try:
                outcome.append(client.run(concurrency, count, tokens))
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            self.until(lambda: not thread.is_alive(), f"{stage}, concurrency {concurrency}")
        except BaseException:
            client.stopped.set()
            thread.join(STOP_WITHIN_S)
            raise
        (result,) = outcome
        if isinstance(result, BaseException):
            raise result
        return result

    def _not_answered(self, error: NoAnswer) -> None:
        now = time.monotonic()
        self._silent_since = now if self._silent_since is None else self._silent_since
        self._refused += isinstance(error.__cause__, ConnectionError)
        if self._refused >= REFUSED_TIMES or now - self._silent_since > SILENT_S:
            raise InstrumentationError(
                f"{self.pages.host.label}: the server stopped answering: {error}",
                "the capture holds what was read until then",
            ) from error

    def _now(self) -> str:
        if not self.polls:
            return ""
        now = readings(self.polls[-1]).values()
        return f"{sum(one.running for one in now)} running"
