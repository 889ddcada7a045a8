"""One arm, probed from beginning to end: ship, preflight, start, wait, warm up, measure, collect, stop, remove.

Whatever ends it early, what was measured until then is in the capture, marked partial.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

from eaglediag.capture.model import Capture, Instrumentation, Problem, Profile, Window
from eaglediag.errors import EaglediagError, InstrumentationError, Interrupted
from eaglediag.hosts.base import Host
from eaglediag.probes.agents import Agents, Rows
from eaglediag.probes.aggregate import rank_window
from eaglediag.probes.as_capture import as_capture, rank_of, server_of
from eaglediag.probes.folder import PARENT, RemoteFolder
from eaglediag.probes.gpu import GpuSampler, Sampling
from eaglediag.probes.launch import LaunchCommand
from eaglediag.probes.overhead import measure_overhead
from eaglediag.probes.preflight import Preflight, find_python, preflight
from eaglediag.probes.profile import Profiler
from eaglediag.probes.progress import Progress, silent
from eaglediag.probes.server import Server
from eaglediag.probes.skew import rank_skew
from eaglediag.probes.workload import WARM_UP_TOKENS, Client, Endpoint, Load, Result, random_prompts


@dataclass(frozen=True)
class Plan:
    """What to probe, and how. `sweep` holds simulated accept lengths, each measured at every concurrency."""

    launch: LaunchCommand
    load: Load
    arm: str
    python: str | None = None
    ready_timeout_s: float = 1800.0
    overhead_pairs: int = 3
    repeat: int = 0
    remote_parent: str = PARENT
    gpu_hz: float = 10.0
    profile_steps: int = 0
    sweep: tuple[float, ...] = ()


@dataclass
class Session:
    """The state of one arm's probe; `capture()` sums up whatever there is."""

    plan: Plan
    progress: Progress = silent
    created: float = field(default_factory=time.time)
    preflights: list[tuple[str, Preflight]] = field(default_factory=list)
    server: Server | None = None
    ranks: list[dict[str, Any]] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    denials: dict[str, list[tuple[int, list[dict[str, Any]]]]] = field(default_factory=dict)
    rows: list[tuple[str, Rows]] = field(default_factory=list)
    texts: dict[str, list[str]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    instrumentation: Instrumentation = field(default_factory=lambda: Instrumentation(route="none"))
    status: str = "complete"
    endpoint: Endpoint = "auto"
    agents: Agents | None = None
    sampling: dict[str, Sampling] = field(default_factory=dict)
    profiles: list[Profile] = field(default_factory=list)
    #: Called when the server is ready, before anything is measured; and held while a load runs. With these, several
    #: servers on one GPU start together and then take turns.
    on_ready: Callable[[], None] = lambda: None
    turn: AbstractContextManager[object] = field(default_factory=nullcontext)
    #: Called after each window.
    on_window: Callable[[Session], None] = lambda session: None

    def run(self, hosts: Sequence[Host]) -> None:
        """Probe. Raises what went wrong, after noting it in the capture."""
        try:
            with ExitStack() as stack:
                self._run(hosts, stack)
        except (EaglediagError, KeyboardInterrupt) as error:
            self._note(error)
            raise (
                Interrupted("interrupted; the server was stopped and its folder removed")
                if isinstance(error, KeyboardInterrupt)
                else error
            ) from None
        except Exception as error:
            self._note(error)
            raise

    def _note(self, error: BaseException) -> None:
        self.status = "partial"
        code = {EaglediagError: "ended_early", KeyboardInterrupt: "interrupted"}
        name = next((value for kind, value in code.items() if isinstance(error, kind)), "failed")
        if isinstance(error, KeyboardInterrupt):
            message = "interrupted before all was measured"
        else:
            message = error.message if isinstance(error, EaglediagError) else f"{type(error).__name__} {error}".strip()
        self.problems.append(Problem(code=name, message=message, advice=getattr(error, "advice", "")))

    def _run(self, hosts: Sequence[Host], stack: ExitStack) -> None:
        plan, progress = self.plan, self.progress
        progress("preflight", ", ".join(host.label for host in hosts))
        servers: list[Server] = []
        places = []
        for node, host in enumerate(hosts):
            launch = plan.launch.on_node(node, len(hosts))
            python = find_python(host, launch, plan.python)
            folder = stack.enter_context(RemoteFolder(host, plan.remote_parent))
            folder.ship(python)
            stack.enter_context(folder.guard())
            checked = preflight(host, folder, launch, python)
            self.preflights.append((host.label, checked))
            for note in checked.notes:
                self.problems.append(Problem(code="preflight", message=f"{host.label}: {note}"))
            progress("preflight", _describe(host, checked))
            servers.append(
                Server(host, folder, launch, checked.python, checked.route, progress if node == 0 else silent)
            )
            places.append((host, folder, checked.python))
        route = self.preflights[0][1].route
        self.instrumentation = Instrumentation(route=route, layout=self.preflights[0][1].found["layout"] or "")
        self.server = servers[0]
        for server in servers:
            stack.enter_context(server)
            server.start()
        servers[0].wait_ready(plan.ready_timeout_s, servers[1:])
        self.on_ready()
        self.agents = Agents(places)
        try:
            self._measure(servers, self.agents)
        finally:
            for server in servers:
                server.stop()

    def _measure(self, servers: list[Server], agents: Agents) -> None:
        self._find_ranks(agents)
        samplers = self._start_samplers(agents)
        try:
            self._load(servers[0], agents)
        except InstrumentationError as error:
            raise self._by_a_rank(servers, error) from error
        finally:
            self._stop_samplers(samplers)

    def _by_a_rank(self, servers: list[Server], error: InstrumentationError) -> InstrumentationError:
        """The error with the rank whose end brought it about, if one ended; the others only followed."""
        for server in servers:
            for number, pid in server.ended_ranks[:1]:
                for rank in self.instrumentation.ranks:
                    if rank.rank == number:
                        rank.seen = False
                        rank.errors.append(f"process {pid} ended while it was measured")
                process = f"process {pid} on {server.host.label}"
                return InstrumentationError(
                    f"rank {number} ({process}) ended while it was measured; {error.message}",
                    "look at the log in the capture, and at the kernel's for a killed process or a GPU error",
                )
        return error

    def _load(self, server: Server, agents: Agents) -> None:
        load, progress = self.plan.load, self.progress
        if load.random_input_len is not None and not load.prompts:
            vocabulary = (self.ranks[0].get("model") or {}).get("vocab_size") if self.ranks else None
            load.prompts = random_prompts(load.random_input_len, int(vocabulary or 32000), load.seed)
        client = Client(server.host, server.launch.port, load, server.launch.api_key, self.turn)
        client.choose_endpoint()
        self.endpoint = client.endpoint
        for concurrency in load.concurrency:
            progress("warming up", f"concurrency {concurrency}")
            client.run(concurrency, concurrency, min(WARM_UP_TOKENS, load.max_new_tokens))
            server.check()
        for length in (self.plan.sweep if self.plan.launch.speculative else ()) or (None,):
            if length is not None:
                self._set_accept_length(agents, length)
            for concurrency in load.concurrency:
                name = f"c{concurrency}" + ("" if length is None else f"-a{length:g}")
                name += f"-r{self.plan.repeat}" if self.plan.repeat else ""
                self._window(server, agents, client, name, concurrency, length)
        self.instrumentation.overhead = measure_overhead(
            agents, client, [rows for _, rows in self.rows], self.plan.overhead_pairs, progress
        )
        if self.plan.profile_steps:
            self._profile(agents, client)
        self._find_ranks(agents)
        self._require_ranks()

    def _start_samplers(self, agents: Agents) -> list[GpuSampler]:
        """On every host with GPUs, a sampler of those that its ranks work on."""
        samplers = []
        for (host, folder, python), (_, checked) in zip(agents.places, self.preflights, strict=True):
            ranks = [rank for rank in self.ranks if rank["host"] == host.label]
            if checked.found["gpus"] or any(_on_gpu(rank) for rank in ranks):
                sampler = GpuSampler(host, folder, python)
                sampler.start(self.plan.gpu_hz, ranks, self.plan.launch.environment)
                samplers.append(sampler)
        return samplers

    def _stop_samplers(self, samplers: list[GpuSampler]) -> None:
        for sampler in samplers:
            found = self.sampling[sampler.host.label] = sampler.stop(self.windows)
            if found.refused:
                message = f"{sampler.host.label}: no GPU samples: {found.refused}"
                self.problems.append(Problem(code="gpu_sampler", message=message))

    def _set_accept_length(self, agents: Agents, length: float) -> None:
        """Raises InstrumentationError where the server cannot be changed while it runs."""
        for reply in agents.command("set", accept_length=length):
            if not reply["ok"]:
                raise InstrumentationError(
                    f"the simulated accept length cannot be changed while this server runs: {reply['error']}",
                    "start it once for each value, with SGLANG_SIMULATE_ACC_LEN in the launch command",
                )

    def _profile(self, agents: Agents, client: Client) -> None:
        """One profile per concurrency; a server that cannot be profiled is no reason to lose what was measured."""
        host, folder, _ = agents.places[0]
        speculation = server_of(self).speculation
        longest = (speculation.max_accept_length if speculation else None) or 1
        profiler = Profiler(host, folder, agents, client, longest, any(_on_gpu(rank) for rank in self.ranks))
        for concurrency in self.plan.load.concurrency:
            self.progress("profiling", f"concurrency {concurrency}")
            try:
                self.profiles += profiler.window(concurrency, self.plan.profile_steps)
            except InstrumentationError as error:
                self.problems.append(Problem(code="profile", message=error.message, advice=error.advice))
                return

    def _window(
        self,
        server: Server,
        agents: Agents,
        client: Client,
        name: str,
        concurrency: int,
        accept_length: float | None = None,
    ) -> None:
        count = self.plan.load.count(concurrency)
        label = f"concurrency {concurrency}"
        self.progress("measuring", label, 0.0)
        agents.command("start")
        whole = False
        try:
            client.run(
                concurrency,
                count,
                on_done=lambda done: self.progress("measuring", f"{label}, {done} of {count} requests", done / count),
            )
            whole = True
        finally:
            # Also after Ctrl-C: what was recorded until then is worth keeping, if the server is still there.
            result = client.result
            if whole or server.running:
                self._collect(agents, name, concurrency, result, accept_length, whole)
        server.check()
        if result.failed and len(result.failed) == len(result.requests):
            raise InstrumentationError(
                f"no request was answered at {label}: {result.failed[0].error}",
                "look at the server's log in the capture",
            )
        if result.failed:
            self.problems.append(
                Problem(
                    code="failed_requests",
                    message=f"{len(result.failed)} of {len(result.requests)} requests failed at {label}: "
                    f"{result.failed[0].error}",
                )
            )
        self.texts[name] = result.texts
        self.on_window(self)

    def _collect(
        self,
        agents: Agents,
        name: str,
        concurrency: int,
        result: Result,
        accept_length: float | None,
        whole: bool,
    ) -> None:
        """Add the window. Of a load that was cut off the throughput is not given: requests were under way."""
        self.progress("collecting", f"concurrency {concurrency}")
        agents.command("stop")
        recorded, replies = agents.collect(name)
        groups = {rank["rank"]: f"{rank['host']} {rank['dp']} {rank['pp']}" for rank in self.ranks}
        simulated = self.plan.launch.environment.get("SGLANG_SIMULATE_ACC_LEN")
        if accept_length is None and self.plan.launch.speculative and simulated:
            accept_length = float(simulated)
        self.rows += [(name, rows) for rows in recorded]
        self.denials[name] = [(int(reply["rank"]), reply["denials"]) for reply in replies if reply["ok"]]
        for reply in replies:
            if not reply["ok"]:
                self.problems.append(
                    Problem(
                        code="agent",
                        message=f"the agent of process {reply['pid']} on {reply['host']} gave no records: "
                        f"{reply['error']}",
                    )
                )
        self.windows.append(
            Window(
                id=name,
                concurrency=concurrency,
                repeat=self.plan.repeat,
                started=result.started,
                duration_s=round(result.duration_s, 4),
                throughput=round(result.throughput, 4) if whole and result.throughput else None,
                requests=result.requests,
                failed_requests=len(result.failed),
                simulated_accept_length=accept_length,
                ranks=[rank_window(rows) for rows in recorded],
                rank_skew=rank_skew(recorded, groups),
            )
        )

    def _find_ranks(self, agents: Agents) -> None:
        """Ask every agent who it is; ranks that answered once and no more stay known, with their last words."""
        known = {rank["rank"]: rank for rank in self.ranks}
        for reply in agents.command("status"):
            if reply["ok"]:
                known[reply["rank"]] = {**reply, "seen": True}
            else:
                for rank in known.values():
                    if rank["pid"] == reply["pid"] and rank["host"] == reply["host"]:
                        rank["seen"] = False
                        rank["errors"] = [*rank["errors"], f"it no longer answers: {reply['error']}"]
        self.ranks = [known[number] for number in sorted(known)]
        self.instrumentation.ranks_expected = self.ranks[0]["ranks_expected"] if self.ranks else None
        self.instrumentation.ranks = [rank_of(rank) for rank in self.ranks]

    def _require_ranks(self) -> None:
        """Raises InstrumentationError when ranks are missing: their share of the story is not told."""
        expected = self.instrumentation.ranks_expected
        seen = [rank.rank for rank in self.instrumentation.ranks if rank.seen]
        failed = self.agents.failed if self.agents else {}
        why = "; ".join(f"{place}: {words}" for place, words in failed.items())
        if not self.ranks:
            raise InstrumentationError(
                f"no scheduler process has an agent{': ' + why if why else ''}",
                "if the launch command changes PYTHONPATH or SGLANG_PLUGINS itself, let it keep what is there",
            )
        missing = ", ".join(map(str, sorted(set(range(expected or 0)) - set(seen))))
        if missing:
            raise InstrumentationError(
                f"ranks {len(seen)}/{expected}: no records from rank {missing}{': ' + why if why else ''}",
                "the capture is marked partial; look at its server log",
            )

    def capture(self) -> Capture:
        """What is known so far."""
        return as_capture(self)


def _on_gpu(rank: dict[str, Any]) -> bool:
    return str(rank.get("device") or "").startswith("cuda")


def _describe(host: Host, checked: Preflight) -> str:
    found = checked.found
    gpus = f"{len(found['gpus'])} x {found['gpus'][0]['name']}" if found["gpus"] else "no GPU"
    commit = f" ({found['commit']})" if found["commit"] else ""
    return (
        f"{host.label}: SGLang {found['release']}{commit}, Python {found['python']}, torch {found['torch']}, {gpus}, "
        f"{checked.route} route, {len(found['points'])} probe points"
    )
