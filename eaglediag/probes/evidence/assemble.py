"""Several files of one server become one capture; where they contradict one another, it says so."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eaglediag import __version__
from eaglediag.capture.model import Capture, Instrumentation, Problem, Server, Source, Workload
from eaglediag.errors import UsageError
from eaglediag.probes.evidence import bench_serving, chrome_trace, sglang_evidence, vllm_evidence
from eaglediag.probes.evidence.evidence import Evidence, Fact
from eaglediag.probes.evidence.metrics_evidence import of_pages
from eaglediag.probes.evidence.metrics_page import parse_metrics
from eaglediag.probes.evidence.recognise import NAMES, Kind, recognise
from eaglediag.probes.evidence.server_info import parse_server_info
from eaglediag.probes.evidence.server_info_evidence import of_server_info
from eaglediag.probes.evidence.sglang_import import SglangLog
from eaglediag.probes.evidence.stream import chunks, head, whole
from eaglediag.probes.evidence.vllm_evidence import VllmLog

#: Called with a file's path, what it is, and the bytes read and to be read.
Report = Callable[[Path, str, int, int], None]

#: Whose description of the server is believed first, field by field.
_ORDER: tuple[Kind, ...] = ("server_info", "sglang_log", "vllm_log", "benchmark", "metrics", "chrome_trace")
_STAMP = re.compile(r"\[?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)")


def read(paths: list[Path], report: Report | None = None) -> list[Evidence]:
    """Read files, each by its kind; several logs of one engine are parts of one. Raises UsageError."""
    kinds: dict[Kind, list[Path]] = {}
    for path in paths:
        kinds.setdefault(recognise(path), []).append(path)
    if "sglang_log" in kinds and "vllm_log" in kinds:
        raise UsageError("a log of SGLang and one of vLLM cannot be one capture", "import them apart")
    found: list[Evidence] = []
    for kind in _ORDER:
        if kind in kinds:
            found += _read(kind, kinds[kind], report)
    return found


def assemble(parts: list[Evidence], arm: str) -> Capture:
    """One capture from all parts, which are in the order in which they are believed."""
    windows = _windows(parts)
    ranks = next((part.ranks for part in parts if part.ranks), [])
    server = _merged([part.server for part in parts])
    problems = [*_contradictions(parts), *(problem for part in parts for problem in part.problems)]
    if not windows and not any(part.profiles for part in parts):
        problems.append(
            Problem(
                code="nothing_measured",
                message="the files hold no step time and no throughput, so no verdict can come of them",
                advice="add the server's log or a benchmark result",
            )
        )
    threshold = server.speculation.accept_threshold_single if server.speculation else None
    if threshold is not None and threshold < 1:
        problems.append(
            Problem(
                code="lossy_acceptance",
                message=f"--speculative-accept-threshold-single {threshold:g} accepts drafts that the model would not "
                "have sampled: it inflates the accept length",
                advice="compare at 1.0",
            )
        )
    return Capture(
        tool_version=__version__,
        created=time.time(),
        arm=arm,
        status="complete" if windows else "partial",
        problems=problems[:1000],
        source=Source(
            kind="import",
            files=[name[:500] for part in parts for name in part.files][:1000],
            unparsed_lines=sum(part.unparsed for part in parts),
        ),
        server=server,
        instrumentation=Instrumentation(route="none", ranks=ranks),
        workload=Workload(concurrency=sorted({w.concurrency for w in windows if w.concurrency is not None})),
        windows=windows,
        denials=[denial for part in parts for denial in part.denials][:10_000],
        profiles=[profile for part in parts for profile in part.profiles][:1000],
    )


def _read(kind: Kind, paths: list[Path], report: Report | None) -> list[Evidence]:
    if kind in ("sglang_log", "vllm_log"):
        return [_read_log(kind, sorted(paths, key=_begins), report)]
    if kind == "metrics":
        pages = [parse_metrics(whole(path)) for path in paths]
        return [of_pages(pages, [path.name for path in paths])]
    if kind == "benchmark":
        return [bench_serving.read(path) for path in paths]
    if kind == "server_info":
        return [of_server_info(parse_server_info(_document(path)), path.name) for path in paths]
    return [chrome_trace.read(path, _progress(path, kind, report)) for path in paths]


def _read_log(kind: Kind, paths: list[Path], report: Report | None) -> Evidence:
    names = [path.name for path in paths]
    if kind == "sglang_log":
        log = SglangLog()
        for path in paths:
            for piece in chunks(path, _progress(path, kind, report)):
                log.feed(piece)
        log.finish()
        return sglang_evidence.evidence(log, names)
    vllm = VllmLog()
    for path in paths:
        for piece in chunks(path, _progress(path, kind, report)):
            vllm.feed(piece)
    vllm.finish()
    return vllm_evidence.evidence(vllm, names)


def _progress(path: Path, kind: Kind, report: Report | None) -> Callable[[int, int], None] | None:
    if report is None:
        return None
    return lambda done, total: report(path, NAMES[kind], done, total)


def _begins(path: Path) -> str:
    """The first time in a log: rotated parts are read in the order in which they were written."""
    found = _STAMP.search(head(path))
    return found.group(1).replace("T", " ") if found else ""


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(whole(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not whole JSON: {error}", "save it again") from error
    if not isinstance(document, dict):
        raise UsageError(f"{path} is JSON but not a /server_info", "save it with `curl http://HOST:PORT/server_info`")
    return document


def _windows(parts: list[Evidence]) -> list[Any]:
    """The windows of all parts; a server_info's step times count only where no log has that batch size."""
    logged = {
        batch.batch_size
        for part in parts
        if part.method == "log_line"
        for window in part.windows
        for rank in window.ranks
        for batch in rank.batches
    }
    found = []
    for part in parts:
        for window in part.windows:
            if part.method == "server_info" and window.concurrency in logged:
                continue
            found.append(window)
    return found[:10_000]


def _merged(servers: list[Server]) -> Server:
    """Field by field the first description that says something; captured sizes from a log before configured ones."""
    empty = Server()
    merged = Server(engine=next((server.engine for server in servers if server != empty), "sglang"))
    for name in Server.model_fields:
        if name in ("engine", "captured"):
            continue
        for server in servers:
            if getattr(server, name) != getattr(empty, name):
                setattr(merged, name, getattr(server, name))
                break
    for server in servers:
        for phase, graphs in server.captured.items():
            if phase not in merged.captured or (graphs.method == "log_line" != merged.captured[phase].method):
                merged.captured[phase] = graphs
    return merged


def _contradictions(parts: list[Evidence]) -> list[Problem]:
    """Facts that two files state differently."""
    told: dict[str, list[tuple[str, Fact]]] = {}
    for part in parts:
        for fact in part.facts:
            told.setdefault(fact.name, []).append((part.name, fact))
    found = []
    for name, said in told.items():
        first = said[0]
        for other in said[1:]:
            if not _agree(first[1], other[1]):
                found.append(
                    Problem(
                        code="contradiction",
                        message=f"{name} differs: {_said(first)}; {_said(other)}",
                        advice="check that the files are of the same server and run",
                    )
                )
    return found


def _agree(one: Fact, other: Fact) -> bool:
    if isinstance(one.value, str) or isinstance(other.value, str):
        return one.value == other.value
    return abs(one.value - other.value) <= max(one.tolerance, other.tolerance) * max(abs(one.value), abs(other.value))


def _said(told: tuple[str, Fact]) -> str:
    source, fact = told
    value = fact.value if isinstance(fact.value, str) else f"{fact.value:.4g}"
    return f"{value} in {source}" + (f" ({fact.note})" if fact.note else "")
