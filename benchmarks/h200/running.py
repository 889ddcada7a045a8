"""Several servers at once on one host: started together, then measured in turns, each written whatever happens."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from eaglediag.capture import store
from eaglediag.capture.model import Capture
from eaglediag.errors import EaglediagError, InstrumentationError
from eaglediag.hosts import open_host
from eaglediag.probes.run import write_steps
from eaglediag.probes.session import Plan, Session

#: Kernels that several servers compile at once slow each other down.
STAGGER_S = 15.0
#: What stopping the servers and writing the captures takes.
RESERVE_S = 45.0


class Turn:
    """Held while a load runs: one load at a time on the GPU. No load begins after the deadline."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._lock = threading.Lock()

    def __enter__(self) -> Turn:
        self._lock.acquire()
        if time.monotonic() > self.deadline - RESERVE_S:
            self._lock.release()
            raise InstrumentationError("the experiment's time is used up", "give --limit-s more, or fewer parts")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


class Gate:
    """Opens when every server is ready or has failed, so that no measurement meets another server's start-up."""

    def __init__(self, count: int) -> None:
        self._waiting = count
        self._condition = threading.Condition()

    def passed(self) -> None:
        """One server less to wait for."""
        with self._condition:
            self._waiting -= 1
            self._condition.notify_all()

    def wait(self) -> None:
        """Count this one as ready, and wait for the others."""
        self.passed()
        with self._condition:
            self._condition.wait_for(lambda: self._waiting <= 0)


@dataclass
class Probed:
    """One arm after its probe: the capture, where it lies, and what ended it early."""

    name: str
    path: Path
    capture: Capture
    error: str = ""


def _not_company(probed: Sequence[Probed]) -> None:
    """Servers that take turns are idle while another is measured: their processes are no others on the GPU."""
    pids = {rank.pid for one in probed for rank in one.capture.instrumentation.ranks}
    for one in probed:
        for host in one.capture.hosts:
            for gpu in host.gpus:
                for process in gpu.processes:
                    process.ours = process.pid in pids
        store.write(one.capture, one.path)


@dataclass
class Arms:
    """Plans to be probed together; `log` gets every session's progress."""

    folder: Path
    deadline: float
    log: Path
    stagger_s: float = STAGGER_S
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, line: str) -> None:
        """A line to the log and the terminal."""
        with self._lock, self.log.open("a", encoding="utf-8") as out:
            stamped = f"{time.strftime('%H:%M:%S')} {line}"
            out.write(stamped + "\n")
            print(stamped, flush=True)

    def probe(
        self, plans: Sequence[Plan], watch: Callable[[Session], None] = lambda session: None
    ) -> dict[str, Probed]:
        """Probe all plans; an arm that fails has its partial capture and the reason. `watch` sees sessions begin."""
        turn, gate = Turn(self.deadline), Gate(len(plans))
        done: dict[str, Probed] = {}

        def one(number: int, plan: Plan) -> None:
            time.sleep(number * self.stagger_s)
            done[plan.arm] = self._one(plan, turn, gate, watch)

        threads = [threading.Thread(target=one, args=item, daemon=True) for item in enumerate(plans)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _not_company(list(done.values()))
        return {plan.arm: done[plan.arm] for plan in plans}

    def _one(self, plan: Plan, turn: Turn, gate: Gate, watch: Callable[[Session], None]) -> Probed:
        counted = threading.Event()
        told = ""

        def progress(stage: str, detail: str = "", fraction: float | None = None) -> None:
            nonlocal told
            if fraction is None or stage != told:
                self.say(f"{plan.arm}: {stage} {detail}".rstrip())
            told = stage

        def ready() -> None:
            counted.set()
            gate.wait()

        session = Session(plan, progress=progress, on_ready=ready, turn=turn)
        watch(session)
        error = ""
        try:
            with open_host("local") as host:
                session.run([host])
        except EaglediagError as problem:
            error = str(problem)
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
            self.say(traceback.format_exc())
        finally:
            if not counted.is_set():
                gate.passed()
        path = self.folder / f"{plan.arm}.json"
        capture = session.capture()
        store.write(capture, path)
        write_steps(session.rows, self.folder / f"{plan.arm}.steps.jsonl.gz")
        if error:
            self.say(f"{plan.arm}: ENDED EARLY: {error}")
            if session.server is not None:
                (self.folder / f"{plan.arm}.log").write_text("\n".join(session.server.log.lines), encoding="utf-8")
        return Probed(plan.arm, path, capture, error)
