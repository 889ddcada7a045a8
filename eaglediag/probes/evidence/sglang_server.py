"""What an SGLang server's resolved arguments say, as the capture's `Server`. The log and /server_info share them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from eaglediag.capture.model import CapturedGraphs, Method, ModelShape, Phase, Server, Speculation

#: Printed on every decode line's behalf when the arguments are not known (the default of every release).
DEFAULT_DECODE_LOG_INTERVAL = 40


def server_from_arguments(arguments: Mapping[str, JsonValue], method: Method) -> Server:
    """The server as its resolved arguments describe it. `captured` holds the sizes it was told to capture."""
    return Server(
        arguments=dict(arguments),
        model=ModelShape(
            path=_text(arguments, "model_path"),
            dtype=_text(arguments, "dtype"),
            quantization=_text(arguments, "quantization"),
        ),
        draft_model=ModelShape(path=draft) if (draft := _text(arguments, "speculative_draft_model_path")) else None,
        speculation=speculation(arguments),
        device=_text(arguments, "device"),
        tp=_count(arguments, "tp_size") or 1,
        dp=_count(arguments, "dp_size") or 1,
        pp=_count(arguments, "pp_size") or 1,
        overlap=None if (off := arguments.get("disable_overlap_schedule")) is None else not off,
        attention_backend=_text(arguments, "attention_backend"),
        captured=_configured(arguments, method),
    )


def speculation(arguments: Mapping[str, JsonValue]) -> Speculation | None:
    """The speculation settings; None when the server does not speculate."""
    algorithm = _text(arguments, "speculative_algorithm")
    if not algorithm:
        return None
    return Speculation(
        algorithm=algorithm,
        num_steps=_count(arguments, "speculative_num_steps"),
        topk=_count(arguments, "speculative_eagle_topk"),
        num_draft_tokens=_count(arguments, "speculative_num_draft_tokens"),
        accept_threshold_single=_number(arguments, "speculative_accept_threshold_single"),
        accept_threshold_acc=_number(arguments, "speculative_accept_threshold_acc"),
    )


def graph_sizes(arguments: Mapping[str, JsonValue]) -> list[int] | None:
    """The batch sizes of the target's graphs, in requests; empty when they are disabled, None when not said.

    0.5.14 on: cuda_graph_config.decode.bs; before: cuda_graph_bs, which 0.4.6 fills only when the user did.
    """
    if arguments.get("disable_cuda_graph") or arguments.get("disable_decode_cuda_graph"):
        return []
    config = arguments.get("cuda_graph_config")
    decode: Any = config.get("decode") if isinstance(config, dict) else None
    if isinstance(decode, dict) and decode.get("backend") == "disabled":
        return []
    sizes = decode.get("bs") if isinstance(decode, dict) else arguments.get("cuda_graph_bs")
    if not isinstance(sizes, list):
        return None
    return sorted(size for size in sizes if isinstance(size, int) and not isinstance(size, bool) and size >= 0)


def decode_log_interval(arguments: Mapping[str, JsonValue]) -> int | None:
    """How many decode steps one decode line speaks of; None when the arguments do not say."""
    return _count(arguments, "decode_log_interval") or None


def _configured(arguments: Mapping[str, JsonValue], method: Method) -> dict[Phase, CapturedGraphs]:
    sizes = graph_sizes(arguments)
    if sizes is None:
        return {}
    phase: Phase = "verify" if _text(arguments, "speculative_algorithm") else "decode"
    return {phase: CapturedGraphs(sizes=sizes, method=method)}


def _text(arguments: Mapping[str, JsonValue], name: str) -> str:
    value = arguments.get(name)
    return value[:500] if isinstance(value, str) else ""


def _count(arguments: Mapping[str, JsonValue], name: str) -> int | None:
    value = arguments.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _number(arguments: Mapping[str, JsonValue], name: str) -> float | None:
    value = arguments.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
