"""What a session found, as a capture: at its end, after each window, or when something ended it early."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import eaglediag
from eaglediag.capture.model import Capture, CapturedGraphs, HostInfo, ModelShape, Rank, Refusal, Server, Source
from eaglediag.probes.denials import merge_denials
from eaglediag.probes.evidence.sglang_server import server_from_arguments
from eaglediag.probes.preflight import Preflight
from eaglediag.probes.workload import describe

if TYPE_CHECKING:
    from eaglediag.probes.session import Session

#: Environment that changes how a server runs; anything else stays on the host.
ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES",
    "NCCL_",
    "SGLANG_",
    "SGL_",
    "TORCH",
    "PYTORCH_",
    "OMP_NUM_THREADS",
    "TRITON_",
    "CUDA_",
)


def as_capture(session: Session) -> Capture:
    """What is known so far."""
    description, found = server_of(session), session.preflights[0][1].found if session.preflights else {}
    capture = Capture(
        tool_version=eaglediag.__version__,
        created=session.created,
        arm=session.plan.arm,
        status="partial" if session.status == "partial" else "complete",
        problems=session.problems,
        source=Source(kind="probe"),
        server=description,
        hosts=[_host(session, name, checked) for name, checked in session.preflights],
        instrumentation=session.instrumentation.model_copy(update={"ranks": _ranks(session)}),
        workload=describe(session.plan.load, session.endpoint),
        windows=session.windows,
        denials=merge_denials(session.denials),
        profiles=session.profiles,
    )
    capture.server.release = str(found.get("release") or "")
    capture.server.commit = found.get("commit")
    return capture


def _ranks(session: Session) -> list[Rank]:
    """The ranks, their clocks as their rows tell: a marker may have been read before anything was recorded."""
    on_device = {rows.rank for _, rows in session.rows if rows.clock == "cuda_event"}
    return [
        rank.model_copy(update={"clock": "cuda_event"}) if rank.rank in on_device else rank
        for rank in session.instrumentation.ranks
    ]


def _host(session: Session, name: str, checked: Preflight) -> HostInfo:
    """The host with the GPUs that the server uses as the sampler saw them, else all as nvidia-smi lists them."""
    host = checked.host_info(name)
    sampling = session.sampling.get(name)
    if sampling is not None and not sampling.refused:
        host.gpus, host.gpu_sampling = sampling.gpus, sampling.cost
    return host


def server_of(session: Session) -> Server:
    """The server as its ranks, its launch command and its log describe it."""
    leader = session.ranks[0] if session.ranks else {}
    description = server_from_arguments(leader.get("arguments") or {}, "server_info")
    description.command = session.plan.launch.redacted()
    description.environment = {
        name: value for name, value in session.plan.launch.environment.items() if name.startswith(ENVIRONMENT)
    }
    if leader:
        description.overlap = leader.get("overlap", description.overlap)
        description.device = leader.get("device") or description.device
        if leader.get("model"):
            description.model = ModelShape(**leader["model"])
        if leader.get("draft_model"):
            description.draft_model = ModelShape(**leader["draft_model"])
    description.versions = {
        **(session.preflights[0][1].versions() if session.preflights else {}),
        **leader.get("versions", {}),
    }
    if description.speculation is not None:
        simulated = session.plan.launch.environment.get("SGLANG_SIMULATE_ACC_LEN")
        description.speculation.simulated_accept_length = float(simulated) if simulated else None
    server = session.server
    if server is not None:
        description.ready_s = None if server.ready_s is None else round(server.ready_s, 1)
        description.exit_code = server.exit_code if session.status == "partial" else None
        description.last_log_lines = [
            line[:2000] for line in server.log.tail(60 if session.status == "partial" else 10)
        ]
        described = leader.get("captured")
        if described is not None:
            # The runners that exist, not the sizes that were asked for.
            description.captured = {
                phase: server.log.captured.get(phase, CapturedGraphs()).model_copy(
                    update={key: value for key, value in captured.items() if value}
                )
                for phase, captured in described.items()
            }
    return description


def rank_of(marker: dict[str, Any]) -> Rank:
    """A rank, from its agent's marker."""
    return Rank(
        rank=marker["rank"],
        host=marker["host"],
        pid=marker["pid"],
        gpu=marker.get("gpu"),
        tp=marker["tp"],
        dp=marker["dp"],
        pp=marker["pp"],
        seen=marker["seen"],
        layout=marker["layout"],
        patched=marker["patched"],
        refused=[Refusal(**refused) for refused in marker["refused"]],
        errors=[str(error)[:2000] for error in marker["errors"]][:100],
    )
