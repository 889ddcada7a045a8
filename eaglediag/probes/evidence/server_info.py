"""A saved or polled `/server_info` (`/get_server_info` to 0.5.x) of an SGLang server."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from eaglediag.capture.model import BatchStats, Blocks, Distribution, Server
from eaglediag.errors import UsageError
from eaglediag.probes.evidence.sglang_args import redact
from eaglediag.probes.evidence.sglang_server import (
    DEFAULT_DECODE_LOG_INTERVAL,
    decode_log_interval,
    server_from_arguments,
    speculation,
)

#: A step time this many times the median holds idle time or a prefill: it is the time between two decode lines.
IDLE_FACTOR = 3.0


@dataclass(frozen=True)
class EngineState:
    """One entry of `internal_states`: one DP rank.

    `lifetime_accept_length` is over the server's life, warm-up and every earlier load included; None on DP ranks that
    have not decoded. `step_times_s[batch size]` are the times per step between decode lines
    (with SGLANG_RECORD_STEP_TIME=1), `graph_memory_gb` what the target's graphs take.
    """

    lifetime_accept_length: float | None = None
    gen_throughput: float | None = None
    step_times_s: dict[int, list[float]] = field(default_factory=dict)
    graph_memory_gb: float | None = None


@dataclass(frozen=True)
class ServerInfo:
    """What `/server_info` says. `arguments` are the resolved ones, secrets redacted."""

    release: str
    arguments: dict[str, JsonValue]
    states: list[EngineState]

    def server(self) -> Server:
        """The capture's description of the server."""
        server = server_from_arguments(self.arguments, "server_info")
        server.release = self.release
        return server

    def batches(self, state: EngineState) -> list[BatchStats]:
        """Step or cycle times by batch size, from the recorded step times; those that hold idle time are left out."""
        interval = decode_log_interval(self.arguments) or DEFAULT_DECODE_LOG_INTERVAL
        kind = "cycle" if speculation(self.arguments) else "decode"
        found = []
        for size, times in sorted(state.step_times_s.items()):
            middle = statistics.median(times)
            kept = [1000 * seconds for seconds in times if seconds <= IDLE_FACTOR * middle]
            found.append(
                BatchStats(
                    batch_size=size,
                    kind=kind,  # type: ignore[arg-type]
                    count=interval * len(kept),
                    period_ms=distribution(kept),
                    blocks=Blocks(
                        t=[0.0] * len(kept),
                        steps=[interval] * len(kept),
                        period_ms=[interval * period for period in kept],
                        passes=[0] * len(kept),
                        tokens=[0] * len(kept),
                    ),
                )
            )
        return found


def distribution(values: list[float]) -> Distribution:
    """A summary of step times in ms; `values` is not empty."""
    ordered = sorted(values)

    def quantile(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return Distribution(
        count=len(ordered),
        mean=statistics.fmean(ordered),
        sd=statistics.stdev(ordered) if len(ordered) > 1 else 0.0,
        min=ordered[0],
        p50=statistics.median(ordered),
        p90=quantile(0.9),
        p99=quantile(0.99),
        max=ordered[-1],
        method="server_info",
    )


def parse_server_info(document: Mapping[str, Any]) -> ServerInfo:
    """Read `/server_info`. A disaggregated router's answer is read as its first decode server's.

    Raises UsageError when it is not a server_info.
    """
    decode = document.get("decode")
    if isinstance(decode, list) and decode and isinstance(decode[0], dict):
        document = decode[0]
    if "model_path" not in document and "internal_states" not in document:
        raise UsageError(
            "this is not a /server_info", "save it with `curl http://HOST:PORT/server_info > server_info.json`"
        )
    raw = document.get("internal_states")
    states = [_state(state) for state in raw if isinstance(state, dict)] if isinstance(raw, list) else []
    version = document.get("version")
    arguments = {
        name: value for name, value in document.items() if name not in ("internal_states", "version", "status")
    }
    return ServerInfo(version if isinstance(version, str) else "", redact(arguments), states)


def _state(state: Mapping[str, Any]) -> EngineState:
    memory = state.get("memory_usage")
    times = state.get("step_time_dict")
    return EngineState(
        lifetime_accept_length=_number(state.get("avg_spec_accept_length")),
        gen_throughput=_number(state.get("last_gen_throughput")),
        step_times_s=_step_times(times) if isinstance(times, dict) else {},
        graph_memory_gb=_number(memory.get("graph")) if isinstance(memory, dict) else None,
    )


def _step_times(times: Mapping[str, Any]) -> dict[int, list[float]]:
    found = {}
    for size, values in times.items():
        if str(size).isdigit() and len(str(size)) < 9 and isinstance(values, list):
            numbers = [number for value in values if (number := _number(value)) is not None and number > 0]
            if numbers:
                found[int(size)] = numbers
    return found


def _number(value: object) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300:
        return float(value)
    return None
