"""Benchmark results of a client: SGLang's bench_serving JSONL, vLLM's `bench serve` JSON, and the table both print.

Only what is about whole requests is taken. Inter-token latencies are not: with speculation several tokens arrive at
once, so they cannot be compared with those of a server that does not speculate.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from eaglediag.capture.model import ModelShape, Problem, Request, Server, Window
from eaglediag.errors import UsageError
from eaglediag.probes.evidence.evidence import Evidence, Fact, server_facts
from eaglediag.probes.evidence.server_info import parse_server_info
from eaglediag.probes.evidence.stream import whole
from eaglediag.probes.evidence.unix_time import unix_time

#: Ratios pasted into a result may differ by this from what their parts give.
RATIO_TOLERANCE = 0.02

#: The heading of the table that both clients print.
TABLE = "Serving Benchmark Result"
_ROWS = {
    "duration": r"Benchmark duration \(s\):\s+([\d.]+)",
    "completed": r"Successful requests:\s+(\d+)",
    "total_output_tokens": r"Total generated tokens:\s+(\d+)",
    "output_throughput": r"Output token throughput \(tok/s\):\s+([\d.]+)",
    "max_concurrency": r"(?:Max request concurrency|Maximum request concurrency):\s+(\d+)",
    "accept_length": r"Accept length:\s+([\d.]+)",
    "spec_decode_acceptance_length": r"Acceptance length:\s+([\d.]+)",
}


def read(path: Path) -> Evidence:
    """Read a result file: one window a result. Raises UsageError when it holds none."""
    text = whole(path)
    records, unreadable = _records(text)
    if not records:
        raise UsageError(f"{path} holds no benchmark result", "give the file that --output-file or --save-result wrote")
    found = Evidence(method="benchmark", files=[path.name], unparsed=len(unreadable), unparsed_lines=unreadable)
    for number, record in enumerate(records, 1):
        _take(found, record, f"benchmark {path.name} {number}" if len(records) > 1 else f"benchmark {path.name}")
    return found


def is_result(record: object) -> bool:
    """Whether a JSON value is a benchmark result."""
    return isinstance(record, dict) and "output_throughput" in record and "duration" in record


def _records(text: str) -> tuple[list[dict[str, Any]], list[str]]:
    if text.lstrip().startswith("{"):
        try:
            whole_file = json.loads(text)
        except ValueError:
            pass
        else:
            return ([whole_file] if is_result(whole_file) else []), []
        records, unreadable = [], []
        for line in filter(str.strip, text.splitlines()):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if is_result(record):
                records.append(record)
            else:
                unreadable.append(line[:2000])
        return records, unreadable
    tables = []
    for table in text.split(TABLE)[1:]:
        values = {name: float(found.group(1)) for name, row in _ROWS.items() if (found := re.search(row, table))}
        if is_result(values):
            tables.append(dict(values))
    return tables, []


def _take(evidence: Evidence, record: dict[str, Any], name: str) -> None:
    duration, tokens = _number(record.get("duration")), _number(record.get("total_output_tokens"))
    throughput = _number(record.get("output_throughput"))
    if duration and tokens:
        recomputed = tokens / duration
        if throughput is not None and abs(throughput - recomputed) > RATIO_TOLERANCE * recomputed:
            evidence.problems.append(
                Problem(
                    code="ratio_mismatch",
                    message=f"{name}: output_throughput says {throughput:.1f} tokens/s, its own tokens and "
                    f"duration give {recomputed:.1f}, which is used",
                    advice="check whether the result was edited or put together from several runs",
                )
            )
        throughput = recomputed
    if not throughput or throughput <= 0:
        evidence.problems.append(Problem(code="no_throughput", message=f"{name}: no request produced a token"))
        return
    concurrency = _count(record.get("max_concurrency"))
    if concurrency is None:
        evidence.problems.append(
            Problem(
                code="open_load",
                message=f"{name}: no --max-concurrency: the load is not of one concurrency, so nothing is compared",
                advice="run the benchmark with --max-concurrency",
            )
        )
    requests = _requests(record)
    accept_length = _accept_length(evidence, record, name)
    completed = _count(record.get("completed"))
    evidence.windows.append(
        Window(
            id=name,
            concurrency=concurrency,
            agent="absent",
            started=_date(record.get("date")),
            duration_s=duration or 0.0,
            throughput=throughput,
            throughput_method="benchmark",
            accept_length=accept_length,
            requests=[request for request in requests if request.error is None],
            failed_requests=_failed(record, requests, completed),
        )
    )
    _describe(evidence, record)


def _accept_length(evidence: Evidence, record: dict[str, Any], name: str) -> float | None:
    """vLLM counts the run's own drafts; SGLang's client copies the server's average since its start."""
    drafts, accepted = _number(record.get("spec_decode_num_drafts")), _number(record.get("spec_decode_accepted_tokens"))
    if drafts and accepted is not None:
        length: float | None = 1 + accepted / drafts
        evidence.facts.append(Fact("the accept length", length or 0.0, 0.05, "over the benchmark's drafts"))
        return length
    length = _number(record.get("spec_decode_acceptance_length"))
    if length:
        evidence.facts.append(Fact("the accept length", length, 0.05, "over the benchmark"))
        return length
    length = _number(record.get("accept_length"))
    if not length:
        return None
    evidence.facts.append(Fact("the accept length", length, 0.05, "average since the server started"))
    evidence.problems.append(
        Problem(
            code="lifetime_accept_length",
            message=f"{name}: accept_length {length:.2f} is the server's average since it started, warm-up and earlier "
            "loads included, and of one DP rank",
            advice="start the server anew for each benchmark, or give its log too",
        )
    )
    return length


def _describe(evidence: Evidence, record: dict[str, Any]) -> None:
    info = record.get("server_info")
    if isinstance(info, dict) and not evidence.server.arguments:
        try:
            evidence.server = parse_server_info(info).server()
        except UsageError:
            return
        evidence.facts += server_facts(evidence.server)
    model = record.get("model_id")
    if isinstance(model, str) and not evidence.server.model.path:
        evidence.server = Server(engine="vllm", model=ModelShape(path=model[:500]))
        evidence.facts.append(Fact("the model", model[:500]))


def _requests(record: dict[str, Any]) -> list[Request]:
    """The single requests, if the result has them (--output-details, --save-detailed); times are in seconds there."""
    columns = [record.get(name) for name in ("output_lens", "ttfts", "itls")]
    if not all(isinstance(column, list) for column in columns):
        return []
    errors, prompts = record.get("errors"), record.get("input_lens")
    found = []
    for i, (length, ttft, gaps) in enumerate(zip(*columns, strict=False)):
        tokens, first = _count(length), _number(ttft)
        if tokens is None or first is None or not isinstance(gaps, list):
            continue
        latency = first + sum(gap for gap in map(_number, gaps) if gap is not None)
        error = errors[i] if isinstance(errors, list) and i < len(errors) and errors[i] else None
        found.append(
            Request(
                prompt_tokens=_count(prompts[i]) if isinstance(prompts, list) and i < len(prompts) else None,
                completion_tokens=tokens,
                latency_ms=1000 * latency,
                ttft_ms=1000 * first,
                error=str(error)[:500] if error else None,
            )
        )
    return found[:20_000]


def _failed(record: dict[str, Any], requests: list[Request], completed: int | None) -> int:
    told = _count(record.get("failed"))
    if told is not None:
        return told
    asked = _count(record.get("num_prompts"))
    if asked is not None and completed is not None:
        return max(0, asked - completed)
    return sum(request.error is not None for request in requests)


def _date(value: object) -> float:
    """vLLM's `20260131-235959`, local time read as UTC; 0 where there is none."""
    found = re.fullmatch(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)", value) if isinstance(value, str) else None
    if found is None:
        return 0.0
    return unix_time(*map(int, found.groups())) or 0.0


def _number(value: object) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15:
        return float(value)
    return None


def _count(value: object) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number >= 0 and number == int(number) else None
