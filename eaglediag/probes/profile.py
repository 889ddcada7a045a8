"""`--profile-steps`: a short torch-profiler window through SGLang's own endpoint after the measured ones.

SGLang profiles all ranks at once; the trace of the lowest one is fetched and read. The agent is active meanwhile and
names each phase in the trace, so that a pass in the trace and a row of the agent's are the same pass, and the CUDA
events can be held against the kernels' times.
"""

from __future__ import annotations

import http.client
import json
import tempfile
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglediag.capture.model import Profile
from eaglediag.errors import InstrumentationError
from eaglediag.hosts.base import Host
from eaglediag.probes.agents import Agents, Rows
from eaglediag.probes.evidence import chrome_trace
from eaglediag.probes.folder import RemoteFolder
from eaglediag.probes.workload import Client

#: Starting CUPTI for the first time, and writing a trace, take seconds.
ENDPOINT_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Profiler:
    """What a profile needs: the server's first host, its agents, a client, and whether there is a GPU to see.

    `longest` is the most tokens that a step can emit for one request.
    """

    host: Host
    folder: RemoteFolder
    agents: Agents
    client: Client
    longest: int
    gpu: bool

    def window(self, concurrency: int, steps: int) -> list[Profile]:
        """Profile about `steps` steps at one concurrency.

        Raises InstrumentationError when the server has no such endpoint or writes no trace with passes and kernels.
        """
        name = f"profile-c{concurrency}"
        # The prompts are prefilled first, in at most `concurrency` steps, and each of those counts.
        wanted = {
            "output_dir": f"{self.folder.path}/{name}",
            "num_steps": steps + concurrency,
            "activities": ["CPU", "GPU"] if self.gpu else ["CPU"],
            "with_stack": False,
            "record_shapes": False,
        }
        self.agents.command("start", annotate=True)
        try:
            self._post("/start_profile", wanted)
            self.client.run(concurrency, concurrency, (steps + concurrency + 4) * self.longest)
            if not self._traces(name):  # the requests ended before the steps
                self._post("/stop_profile", {})
        finally:
            self.agents.command("stop")
            recorded, _ = self.agents.collect(name)
        traces = self._traces(name)
        if not traces:
            raise InstrumentationError("the server wrote no trace", "look at its log in the capture")
        data = self.host.read_file(f"{self.folder.path}/{name}/{traces[0]}")
        return read(data, min(recorded, key=lambda rows: rows.rank, default=None))

    def _traces(self, name: str) -> list[str]:
        """The traces written so far, the lowest rank's first."""
        done = self.host.run(["ls", "-1", "--", f"{self.folder.path}/{name}"])
        names = [one for one in done.stdout.decode(errors="replace").split() if one.endswith(".trace.json.gz")]
        return sorted(names, key=lambda one: ("TP-0" not in one, one))

    def _post(self, path: str, body: Mapping[str, Any]) -> None:
        connection = self.client.connect(ENDPOINT_TIMEOUT_S)
        try:
            connection.request("POST", path, body=json.dumps(body), headers=self.client.headers)
            response = connection.getresponse()
            words = response.read()[:300].decode(errors="replace").strip()
        except (OSError, http.client.HTTPException) as error:
            raise InstrumentationError(f"the server does not answer {path}: {error}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise InstrumentationError(f"the server refuses {path}: HTTP {response.status} {words}")


def read(data: bytes, rows: Rows | None) -> list[Profile]:
    """Profiles from a trace, compared with the agent's rows of the same steps. Raises InstrumentationError."""
    trace = chrome_trace.Trace()
    with tempfile.NamedTemporaryFile(suffix=".json.gz") as file:
        file.write(data)
        file.flush()
        try:
            for event in chrome_trace.events(Path(file.name)):
                trace.take(event)
        except ValueError as error:
            raise InstrumentationError(f"the server's trace cannot be read: {error}") from error
    found = chrome_trace.profiles(trace)
    if not found:
        why = "no kernels" if trace.agent_passes else "no passes of the agent's"
        raise InstrumentationError(f"the profile shows {why}", "kernels are only seen on a GPU with CUPTI")
    events = device_times(rows) if rows is not None else {}
    _, ran = chrome_trace.attributed(trace)
    compared = compare(ran, trace.kernels, events)
    for profile in found:
        pair = compared.get((profile.phase, profile.batch_size))
        if pair is not None:
            profile.device_ms, profile.device_ms_by_kernels = pair
    return found


def device_times(rows: Rows) -> dict[tuple[int, str], float]:
    """The time between CUDA events, in ms, by step and phase; what ran twice in a step is left out."""
    at = {name: rows.columns.index(name) for name in ("row", "step", "phase", "device_us")}
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    for row in rows.rows:
        if row[at["row"]] in ("step", "phase") and row[at["device_us"]] is not None:
            found[row[at["step"]], row[at["phase"]]].append(row[at["device_us"]] / 1000)
    return {key: times[0] for key, times in found.items() if len(times) == 1}


def compare(
    ran: Mapping[chrome_trace.Pass, Sequence[chrome_trace.Kernel]],
    kernels: Sequence[chrome_trace.Kernel],
    events: Mapping[tuple[int, str], float],
) -> dict[tuple[str, int | None], tuple[float, float]]:
    """Mean ms by phase and batch size: between events, and between the same two moments by the kernels' times.

    An event is reached when the stream has done what was enqueued before it: the first at the pass's start or, if that
    is later, at the end of the kernel before; the second at the end of the pass's last kernel or, on an idle stream,
    when the host gets there.
    """
    streams: dict[int | None, list[tuple[float, float]]] = defaultdict(list)
    for kernel in kernels:
        streams[kernel.stream].append((kernel.start, kernel.end))
    for times in streams.values():
        times.sort()
    pairs: dict[tuple[str, int | None], list[tuple[float, float]]] = defaultdict(list)
    for one, mine in ran.items():
        event = events.get((one.step, one.phase)) if one.step is not None else None
        if event is None or not mine:
            continue
        stream = Counter(kernel.stream for kernel in mine).most_common(1)[0][0]
        own = [kernel for kernel in mine if kernel.stream == stream]
        first = min(kernel.start for kernel in own)
        before = bisect_left(streams[stream], (first,)) - 1
        begin = max(one.start, streams[stream][before][1]) if before >= 0 else one.start
        end = max(one.end, max(kernel.end for kernel in own))
        pairs[one.phase, one.batch_size].append((event, (end - begin) / 1000))
    return {
        key: (sum(event for event, _ in found) / len(found), sum(kernel for _, kernel in found) / len(found))
        for key, found in pairs.items()
    }
