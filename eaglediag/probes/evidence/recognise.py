"""What a file is, by its content."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Literal

from eaglediag.errors import UsageError
from eaglediag.probes.evidence import bench_serving
from eaglediag.probes.evidence.exceptions import OPENING, Exceptions
from eaglediag.probes.evidence.stream import chunks, head

Kind = Literal["sglang_log", "vllm_log", "benchmark", "server_info", "metrics", "chrome_trace"]

#: How messages call each kind.
NAMES: dict[Kind, str] = {
    "sglang_log": "SGLang server log",
    "vllm_log": "vLLM server log",
    "benchmark": "benchmark result",
    "server_info": "/server_info",
    "metrics": "metrics page",
    "chrome_trace": "Chrome trace",
}
#: How much of a file without a mark is searched.
SEARCHED = 256 * 1024 * 1024

_METRICS = re.compile(r"^(?:# (?:HELP|TYPE) )?(?:sglang|vllm)[:_]\w+", re.MULTILINE)
_TRACE = re.compile(r'"traceEvents"\s*:|^\s*\[\s*\{[^{}]*"ph"\s*:')
_LOGS = re.compile(
    r"(?P<sglang>(?:Decode|Prefill) batch[., ]|server_args=(?:ServerArgs\(|\{)|"
    r"Capture [\w -]*(?:cuda|CUDA|cpu) graph \w+|fired up and ready to roll|Load weight (?:begin|end))|"
    r"(?P<vllm>SpecDecoding metrics:|Avg generation throughput: [\d.]+ tokens/s|Initializing a V\d LLM engine|"
    r"vLLM API server version|non-default args: \{)"
)


def recognise(path: Path) -> Kind:
    """The kind of a file. Raises UsageError when it cannot be read, is empty, or is none of them."""
    text = head(path)
    if not text.strip("\0 \n\t"):
        raise UsageError(f"{path} is empty", "give the file that the server or the benchmark wrote")
    start = text.lstrip()[:1]
    if start in ("{", "["):
        found = _json(path, text)
        if found:
            return found
    if bench_serving.TABLE in text:
        return "benchmark"
    if _METRICS.search(text) and not _LOGS.search(text):
        return "metrics"
    searched, raised, exceptions = 0, "", Exceptions()
    for piece in chunks(path):
        if mark := _LOGS.search(piece):
            return "sglang_log" if mark.group("sglang") else "vllm_log"
        if not raised and (OPENING in piece or exceptions.cut_off):
            raised = next(filter(None, map(exceptions.take, piece.split("\n"))), "")
        searched += len(piece)
        if searched > SEARCHED:
            break
    if raised:
        raise UsageError(
            f"{path} holds no measurement, but {raised[:300]}",
            "the server did not come up: give a log of one that served",
        )
    raise UsageError(
        f"{path} holds nothing that eaglediag can read",
        f"it reads: {', '.join(NAMES.values())}; a log must be at level info",
    )


def _json(path: Path, text: str) -> Kind | None:
    if _TRACE.search(text):
        return "chrome_trace"
    first = text.lstrip().split("\n", 1)[0]
    for candidate in (first, text):
        try:
            document = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if bench_serving.is_result(document):
            return "benchmark"
        if isinstance(document, dict):
            if "schema_version" in document and "tool_version" in document:
                raise UsageError(f"{path} is a capture already", "give it to `eaglediag compare`")
            if "internal_states" in document or "model_path" in document or "decode" in document:
                return "server_info"
    if '"internal_states"' in text or '"model_path"' in text:
        return "server_info"
    if '"schema_version"' in text[:2000] and '"tool_version"' in text[:2000]:
        raise UsageError(f"{path} is a capture already", "give it to `eaglediag compare`")
    return "benchmark" if '"output_throughput"' in text else None
