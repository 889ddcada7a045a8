"""The agent in a scheduler process: dormant until told over a UNIX socket that only its owner can open.

Dormant means that SGLang runs its own code objects: hooks and gates are swapped in on `start` and out on `stop`.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from . import describe, gates, hooks, probe_points, simulation
from .collectives import Collectives
from .imports import when_imported
from .recorder import COLUMNS, Recorder
from .tracer import Tracer
from .wrap import Hook, Patch, Refused, innermost, wrap

SCHEDULER = "sglang.srt.managers.scheduler"
PROTOCOL = 1
#: The methods of an agent that the socket may call.
COMMANDS = ("start", "stop", "flush", "discard", "status", "set")

_agent: Agent | None = None


def install(folder: str, route: str) -> None:
    """Wait for a scheduler to be constructed in this process, and put an agent beside it."""
    when_imported(SCHEDULER, lambda module: _watch(module, folder, route))


def _watch(module: ModuleType, folder: str, route: str) -> None:
    try:
        patch = wrap(innermost(module.Scheduler.__init__), _Construction(folder, route))
    except (Refused, AttributeError) as error:
        _write(os.path.join(folder, "agents", f"{os.getpid()}.failed"), f"{SCHEDULER}:Scheduler.__init__: {error}\n")
        return
    patch.on()


class _Construction(Hook):
    """Around Scheduler.__init__: the process is a rank from here on; when it returns, the model is loaded."""

    def __init__(self, folder: str, route: str) -> None:
        self.folder = folder
        self.route = route

    def enter(self, arguments: tuple[Any, ...]) -> Any:
        global _agent
        try:
            scheduler = arguments[0]
            names = innermost(type(scheduler).__init__).__code__.co_varnames
            _agent = Agent(self.folder, self.route, dict(zip(names, arguments, strict=False)))
        except Exception as error:
            _write(os.path.join(self.folder, "agents", f"{os.getpid()}.failed"), f"{type(error).__name__}: {error}\n")
            return None
        return scheduler

    def leave(self, token: Any, result: Any) -> None:
        if _agent is not None and token is not None:
            _agent.ready(token)


class Agent:
    """One per scheduler process. Files it owns, all in `folder`/agents: PID.json (marker), PID.sock, PID.*.jsonl.gz."""

    def __init__(self, folder: str, route: str, construction: dict[str, Any]) -> None:
        self.folder = os.path.join(folder, "agents")
        self.recorder = Recorder()
        self.tracer = Tracer(self.recorder.context)
        self._inner: dict[FunctionType, FunctionType] = {}
        self.patches: list[tuple[str, Patch]] = []
        self.marker: dict[str, Any] = {
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "role": "scheduler",
            "route": route,
            "state": "starting",
            "python": sys.version.split()[0],
            "patched": [],
            "refused": [],
            "errors": [],
            **describe.rank(construction),
        }
        self.package = describe.package()
        self.marker["layout"] = probe_points.layout_of(self.package)
        self.lock = threading.Lock()
        self._hooks: dict[int, str] = {}
        self.collectives = Collectives(self.recorder, self.marker["patched"].append, self._refuse)
        # Graphs are captured while the scheduler is constructed, and only then can their collectives be counted.
        self.collectives.on()
        self._find_points()
        self._find_gates()
        self.save()
        threading.Thread(target=self._serve, name="eaglediag-agent", daemon=True).start()

    # -- patching ------------------------------------------------------------------------------------------------

    def _find_points(self) -> None:
        points, missing = probe_points.resolve(self.package)
        self.marker["refused"] += [{"target": target, "why": why} for target, why in missing]
        self.collectives.install(points)
        for point in points:
            if point.role not in ("scheduler", "collective", "capture"):
                when_imported(point.module, partial(self._patch, point))

    def _patch(self, point: probe_points.ProbePoint, module: ModuleType) -> None:
        try:
            owner, name = point.qualname.split(".")
            function = innermost(vars(getattr(module, owner))[name])
            hook = self._hook(point)
            patch = wrap(function, hook)
        except (Refused, AttributeError, KeyError) as error:
            self.marker["refused"].append({"target": point.target, "why": str(error)})
            return
        self._hooks[id(hook)] = point.target
        self._inner[function] = patch.inner
        self._add(point.target, patch)

    def _refuse(self, target: str, why: str) -> None:
        self.marker["refused"].append({"target": target, "why": why})

    def _find_gates(self) -> None:
        """After the probe points: a gate in a hooked function is rewritten in the copy that the hook calls."""
        found = gates.find(self.package)
        self.marker["refused"] += [{"target": target, "why": why} for target, why in found.missing]
        self.marker["gates_known"] = found.known
        for gate in found.gates:
            if gate.conditions and not gate.device:  # one without a condition never says no
                when_imported(gate.module, partial(self._trace, gate))

    def _trace(self, gate: gates.Gate, module: ModuleType) -> None:
        try:
            owner: Any = module
            *owners, name = gate.qualname.split(".")
            for part in owners:
                owner = getattr(owner, part)
            function = innermost(vars(owner)[name])
            function = self._inner.get(function, function)
            code = self.tracer.rewrite(
                function,
                gate.target,
                kind=gate.kind,
                phases=gate.phases if gate.settles else ("",),
                condition_phases=gate.condition_phases,
            )
        except (Refused, AttributeError, KeyError) as error:
            self.marker["refused"].append({"target": f"gate {gate.target}", "why": str(error)})
            return
        self._add(f"gate {gate.target}", Patch(function, code))

    def _add(self, target: str, patch: Patch) -> None:
        self.patches.append((target, patch))
        self.marker["patched"].append(target)
        if self.recorder.active:
            patch.on()
        if self.marker["state"] != "starting":
            self.save()

    def _hook(self, point: probe_points.ProbePoint) -> Hook:
        if point.role == "step":
            return hooks.Step(self.recorder, self._failed, point.phase)
        if point.role == "phase":
            return hooks.PhaseOf(self.recorder, self._failed, point.phase)
        simple: dict[str, Callable[..., Hook]] = {
            "forward": hooks.Forward,
            "replay": hooks.Replay,
            "accept": hooks.Accept,
        }
        return simple[point.role](self.recorder, self._failed)

    def _failed(self, hook: Hook, why: str) -> None:
        """A hook erred. When it erred too often, take it out for good."""
        target = self._hooks.get(id(hook), "?")
        self.marker["errors"].append(f"{target}: {why}")
        if why.startswith("removed"):
            for name, patch in self.patches:
                if name == target:
                    patch.off()
            self.patches = [(name, patch) for name, patch in self.patches if name != target]

    def ready(self, scheduler: Any) -> None:
        """The scheduler is constructed: say what it serves. Never raises."""
        try:
            self.marker.update(describe.server(scheduler))
        except Exception as error:
            self.marker["errors"].append(f"describing the server: {type(error).__name__}: {error}")
        if not self.recorder.active:
            self.collectives.off()
        self.marker["state"] = "dormant"
        self.save()

    # -- commands ------------------------------------------------------------------------------------------------

    def start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Begin a window: swap the hooks in. With `request["annotate"]`, a running profiler sees the phases too."""
        self.tracer.clear()
        self.collectives.clear()
        self.recorder.start(annotate=bool(request.get("annotate")))
        self.collectives.on()
        for _, patch in self.patches:
            patch.on()
        self.marker["state"] = "active"
        self.marker["clock"] = "cuda_event" if self.recorder.clock.available() else "host_clock"
        return {"state": "active"}

    def stop(self, request: dict[str, Any]) -> dict[str, Any]:
        """End the window: swap SGLang's own code back."""
        self.recorder.stop()
        self.collectives.off()
        for _, patch in self.patches:
            patch.off()
        self.marker["state"] = "dormant"
        return {"state": "dormant"}

    def flush(self, request: dict[str, Any]) -> dict[str, Any]:
        """Write the window's rows to `request["file"]` (a name in the agents folder) and forget them."""
        rows = self.recorder.drain()
        path = os.path.join(self.folder, os.path.basename(str(request["file"])))
        header = {
            "rank": self.marker["rank"],
            "columns": COLUMNS,
            "dropped": self.recorder.dropped,
            "clock": self.marker.get("clock", "host_clock"),
            "epoch_minus_perf_ns": time.time_ns() - time.perf_counter_ns(),
            "hooks_ns": self.recorder.spent_ns,
            "gates_ns": self.tracer.spent_ns - self.tracer.explaining_ns,
            "explaining_ns": self.tracer.explaining_ns,
            "collectives": self.collectives.report(),
        }
        with gzip.open(path + ".part", "wt", compresslevel=3, encoding="utf-8") as stream:
            stream.write(json.dumps(header) + "\n")
            stream.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        os.replace(path + ".part", path)
        self.save()
        return {
            "rank": self.marker["rank"],
            "file": path,
            "rows": len(rows),
            "dropped": self.recorder.dropped,
            "denials": self.tracer.denials(),
        }

    def set(self, request: dict[str, Any]) -> dict[str, Any]:
        """Change the simulated accept length from the next verify on."""
        return simulation.set_accept_length(float(request["accept_length"]))

    def discard(self, request: dict[str, Any]) -> dict[str, Any]:
        """Forget what was recorded since the last flush."""
        return {"rows": len(self.recorder.drain(0.0))}

    def status(self, request: dict[str, Any]) -> dict[str, Any]:
        """The marker as it is now."""
        return self.marker

    def answer(self, line: bytes) -> dict[str, Any]:
        """One request, one reply; a request that fails says why."""
        try:
            request = json.loads(line)
            name = request["command"]
            if name not in COMMANDS:
                raise ValueError(f"unknown command {name!r}")
            command: Callable[[dict[str, Any]], dict[str, Any]] = getattr(self, name)
            with self.lock:
                return {"ok": True, **command(request)}
        except Exception as error:
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}

    def save(self) -> None:
        """Write the marker. A full disk must not stop the server: the marker is then the old one."""
        try:
            _write(os.path.join(self.folder, f"{os.getpid()}.json"), json.dumps(self.marker))
        except OSError as error:
            self.marker["errors"].append(f"marker not written: {error}")

    def _serve(self) -> None:
        path = os.path.join(self.folder, f"{os.getpid()}.sock")
        before = os.umask(0o177)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
                try:
                    server.bind(path)
                finally:
                    os.umask(before)
                server.listen(4)
                while os.path.exists(path):
                    connection, _ = server.accept()
                    with connection, connection.makefile("rb") as lines:
                        for line in lines:
                            connection.sendall(json.dumps(self.answer(line)).encode() + b"\n")
        except OSError as error:
            self.marker["errors"].append(f"socket: {error}")
            self.save()


def _write(path: str, text: str) -> None:
    with open(path + ".part", "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(path + ".part", path)
