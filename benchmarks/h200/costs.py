"""What watching costs: no agent, the agent dormant and active, SGLang's device timer, SGLang's torch profiler.

Three servers of the same arm take turns under the same load. Active is compared with dormant on one server, where
nothing else differs; the others with the server that has no agent at all, which is profiled last.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from running import Arms

from eaglediag.hosts import open_host
from eaglediag.probes.agents import Agents
from eaglediag.probes.folder import RemoteFolder
from eaglediag.probes.launch import LaunchCommand
from eaglediag.probes.overhead import interval
from eaglediag.probes.preflight import find_python, preflight
from eaglediag.probes.server import Server
from eaglediag.probes.workload import Client, Load, random_prompts

#: Profiled loads are few and short: with stacks, as SGLang records them unless told otherwise, a trace grows fast.
PROFILED_ROUNDS = 3
PROFILED_TOKENS = 24


@dataclass
class Watched:
    """One server, with or without agents in it."""

    folder: RemoteFolder
    server: Server
    client: Client
    agents: Agents | None


@dataclass
class Costs:
    """Milliseconds per token by way of watching and round."""

    spent: dict[str, list[float]] = field(default_factory=dict)

    def ratio(self, way: str, against: str) -> str:
        """The mean ratio over rounds with its 95 % interval."""
        pairs = [one / other for one, other in zip(self.spent.get(way, []), self.spent.get(against, []), strict=False)]
        if not pairs:
            return "not measured"
        if len(pairs) < 2:
            return f"{pairs[0]:.4f}, one round"
        middle, low, high = interval(pairs)
        return f"{middle:.4f} [{low:.4f}, {high:.4f}], {len(pairs)} rounds"


def start(stack: ExitStack, launch: LaunchCommand, load: Load, agent: bool) -> Watched:
    """Start a server; it is not ready yet."""
    host = stack.enter_context(open_host("local"))
    python = find_python(host, launch, None)
    folder = stack.enter_context(RemoteFolder(host))
    folder.ship(python)
    checked = preflight(host, folder, launch, python)
    server = stack.enter_context(Server(host, folder, launch, python, checked.route if agent else "none"))
    server.start()
    agents = Agents([(host, folder, python)]) if agent else None
    return Watched(folder, server, Client(host, launch.port, load), agents)


def measure(
    arms: Arms, launch: Callable[..., LaunchCommand], port: int, concurrency: tuple[int, ...], rounds: int, gpu: bool
) -> str:
    """Alternate all ways of watching, and say what each cost. What fails is said and left out."""
    load = Load(random_prompts(64, 32_000 if gpu else 512, 0), max_new_tokens=128, endpoint="generate", ignore_eos=True)
    lines = []
    with ExitStack() as stack:
        watched: dict[str, Watched] = {}
        for number, (name, agent, extra) in enumerate(
            (
                ("agent", True, {}),
                ("no agent", False, {}),
                (
                    "device timer",
                    False,
                    {"environment": ("SGLANG_ENABLE_METRICS_DEVICE_TIMER=1",), "flags": ("--enable-metrics",)},
                ),
            )
        ):
            watched[name] = start(stack, launch(port + number, speculative=True, **extra), load, agent)
            time.sleep(arms.stagger_s)
        for name in list(watched):
            try:
                watched[name].server.wait_ready(max(1.0, arms.deadline - time.monotonic()))
                arms.say(f"costs: {name} ready")
            except Exception as error:  # the experiment goes on with the servers that are there
                lines.append(f"{name}: {error}")
                arms.say(f"costs: {name}: {error}")
                del watched[name]
        for at, level in enumerate(concurrency):
            share = (arms.deadline - 60 - time.monotonic()) / (len(concurrency) - at)
            lines.append(_level(arms, watched, level, rounds, time.monotonic() + share, gpu))
    return "\n".join(lines)


def _level(arms: Arms, watched: dict[str, Watched], concurrency: int, rounds: int, until: float, gpu: bool) -> str:
    requests = max(8, 4 * concurrency) if gpu else concurrency
    costs = Costs()
    ways: list[tuple[str, Watched, Callable[[], None], Callable[[], None]]] = []
    with_agent, plain, timed = (watched.get(name) for name in ("agent", "no agent", "device timer"))
    if with_agent is not None and with_agent.agents is not None:
        agents = with_agent.agents
        ways.append(("active", with_agent, lambda: _tell(agents, "start"), lambda: _tell(agents, "stop", "discard")))
        ways.append(("dormant", with_agent, _nothing, _nothing))
    if plain is not None:
        ways.append(("no agent", plain, _nothing, _nothing))
    if timed is not None:
        ways.append(("device timer", timed, _nothing, _nothing))
    for _, one, _, _ in ways:
        one.client.run(concurrency, concurrency)
    for turn in range(rounds):
        if time.monotonic() > until - 30:
            break
        for name, one, before, after in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
            before()
            costs.spent.setdefault(name, []).append(_ms_per_token(one.client, concurrency, requests))
            after()
    if plain is not None:
        place = Path(plain.folder.path) / f"trace-{concurrency}"
        for _ in range(PROFILED_ROUNDS):
            if time.monotonic() > until:
                break
            short = _ms_per_token(plain.client, concurrency, concurrency, PROFILED_TOKENS)
            costs.spent.setdefault("no profiler, short", []).append(short)
            _post(plain.client, "/start_profile", {"output_dir": str(place), "activities": ["CPU", "GPU"][: 1 + gpu]})
            profiled = _ms_per_token(plain.client, concurrency, concurrency, PROFILED_TOKENS)
            _post(plain.client, "/stop_profile", {})
            costs.spent.setdefault("torch profiler", []).append(profiled)
    arms.say(f"costs: concurrency {concurrency}: {json.dumps(costs.spent)}")
    return "\n".join(
        [
            f"concurrency {concurrency}, {requests} requests of 128 tokens a round, ratio of times per token:",
            f"  agent active / dormant      {costs.ratio('active', 'dormant')}",
            f"  agent active / no agent     {costs.ratio('active', 'no agent')}",
            f"  agent dormant / no agent    {costs.ratio('dormant', 'no agent')}",
            f"  device timer / no agent     {costs.ratio('device timer', 'no agent')}",
            f"  torch profiler / no agent   {costs.ratio('torch profiler', 'no profiler, short')}",
        ]
    )


def _ms_per_token(client: Client, concurrency: int, requests: int, tokens: int | None = None) -> float:
    return 1000 * client.run(concurrency, requests, tokens).seconds_per_token


def _tell(agents: Agents, *commands: str) -> None:
    for command in commands:
        agents.command(command)


def _nothing() -> None:
    pass


def _post(client: Client, path: str, body: dict[str, object]) -> None:
    connection = client.connect(180.0)
    with contextlib.closing(connection):
        connection.request("POST", path, body=json.dumps(body), headers=client.headers)
        response: http.client.HTTPResponse = connection.getresponse()
        response.read()
