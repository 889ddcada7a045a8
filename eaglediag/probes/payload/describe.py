"""What a scheduler process is and serves, read from SGLang's own objects once it stands. Values only, no tensors."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from typing import Any

SECRET = re.compile(
    r"(api_?key|password|passwd|secret|credential|auth_token|hf_token|access_key|private_key)", re.IGNORECASE
)

#: Attributes under which releases keep the graph runner of a phase: on the model runner, then on the draft worker.
TARGET_RUNNERS = ("decode_cuda_graph_runner", "graph_runner", "cuda_graph_runner")
DRAFT_RUNNERS = {"draft": ("cuda_graph_runner",), "draft_extend": ("cuda_graph_runner_for_draft_extend",)}


def package() -> str:
    """The folder of the `sglang` package, without importing it."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("sglang is not installed in this Python")
    return next(iter(spec.submodule_search_locations))


def rank(construction: dict[str, Any]) -> dict[str, Any]:
    """Which rank this is, from the arguments of Scheduler.__init__."""
    arguments = construction["server_args"]
    tp, pp = construction.get("tp_rank") or 0, construction.get("pp_rank") or 0
    tp_size, pp_size = int(getattr(arguments, "tp_size", 1)), int(getattr(arguments, "pp_size", 1))
    dp_size = int(getattr(arguments, "dp_size", 1))
    dp_attention = bool(getattr(arguments, "enable_dp_attention", False))
    dp = construction.get("dp_rank")
    # With DP attention the data-parallel ranks are groups of the tensor-parallel ones, not processes of their own.
    replicas = 1 if dp_attention else dp_size
    replica = 0 if dp_attention else (dp or 0)
    if dp is None and dp_attention and dp_size > 1:
        dp = tp // max(1, tp_size // dp_size)
    return {
        "rank": (replica * pp_size + pp) * tp_size + tp,
        "ranks_expected": tp_size * pp_size * replicas,
        "tp": tp,
        "pp": pp,
        "dp": dp or 0,
        # A CPU engine numbers its ranks like GPUs.
        "gpu": None if getattr(arguments, "device", None) == "cpu" else construction.get("gpu_id"),
        "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "arguments": plain_arguments(arguments),
    }


def plain_arguments(arguments: Any) -> dict[str, Any]:
    """ServerArgs as JSON: secrets redacted, anything that is not plain as text."""
    # From 0.5.20 the record keeps the user's input, and what was decided stands beside it.
    values = arguments.resolved_dict() if hasattr(arguments, "resolved_dict") else vars(arguments)
    return {
        str(name): "<redacted>" if SECRET.search(str(name)) and value else _plain(value)
        for name, value in sorted(values.items())
        if not str(name).startswith("_")
    }


def server(scheduler: Any) -> dict[str, Any]:
    """Model shapes, captured sizes, versions and scheduling of a constructed scheduler."""
    worker = getattr(scheduler, "tp_worker", None)
    runner = getattr(worker, "model_runner", None)
    draft = getattr(scheduler, "draft_worker", None)
    inner = getattr(draft, "draft_worker", None) or getattr(draft, "_draft_worker", None) or draft
    found: dict[str, Any] = {
        "overlap": getattr(scheduler, "enable_overlap", None),
        "model": _shape(getattr(scheduler, "model_config", None)),
        "versions": _versions(),
        "device": str(getattr(scheduler, "device", getattr(runner, "device", ""))),
        "captured": {},
    }
    if draft is not None:
        draft_runner = getattr(inner, "draft_runner", None) or getattr(inner, "draft_model_runner", None)
        found["draft_model"] = _shape(getattr(draft_runner, "model_config", None))
    for name in TARGET_RUNNERS:
        graph_runner = getattr(runner, name, None)
        if graph_runner is not None:
            found["captured"]["decode" if draft is None else "verify"] = _captured(graph_runner)
            break
    for phase, names in DRAFT_RUNNERS.items():
        for name in names:
            graph_runner = getattr(inner, name, None) if draft is not None else None
            if graph_runner is not None:
                found["captured"][phase] = _captured(graph_runner)
    return found


def _captured(graph_runner: Any) -> dict[str, Any]:
    sizes = getattr(graph_runner, "capture_bs", None) or []
    width = getattr(graph_runner, "num_tokens_per_bs", None) or getattr(graph_runner, "num_tokens_per_req", None)
    return {
        "method": "server_report",
        "sizes": sorted(int(size) for size in sizes),
        "tokens_per_request": int(width) if isinstance(width, int) else None,
    }


def _shape(config: Any) -> dict[str, Any] | None:
    if config is None:
        return None
    hf = getattr(config, "hf_text_config", None) or getattr(config, "hf_config", None)

    def number(*names: str) -> int | None:
        for name in names:
            value = getattr(hf, name, None)
            if isinstance(value, int):
                return value
        return None

    architectures = getattr(getattr(config, "hf_config", hf), "architectures", None) or [""]
    return {
        "path": str(getattr(config, "model_path", getattr(config, "path", ""))),
        "architecture": str(architectures[0]),
        "layers": number("num_hidden_layers", "n_layer"),
        "hidden_size": number("hidden_size", "n_embd"),
        "vocab_size": number("vocab_size"),
        "heads": number("num_attention_heads", "n_head"),
        "kv_heads": number("num_key_value_heads"),
        "experts": number("n_routed_experts", "num_experts", "num_local_experts"),
        "experts_per_token": number("num_experts_per_tok", "moe_topk"),
        "dtype": str(getattr(config, "dtype", "")).removeprefix("torch."),
        "quantization": str(getattr(config, "quantization", None) or ""),
    }


def _versions() -> dict[str, str]:
    import importlib.metadata

    versions = {}
    for name in ("sglang", "torch", "triton", "flashinfer-python", "sglang-kernel", "sgl-kernel", "transformers"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    torch = sys.modules.get("torch")
    if torch is not None:
        versions["torch"] = str(torch.__version__)
        if torch.version.cuda and torch.cuda.is_available():
            versions["cuda"] = str(torch.version.cuda)
            nccl = torch.cuda.nccl.version()
            versions["nccl"] = ".".join(str(part) for part in nccl) if isinstance(nccl, tuple) else str(nccl)
    return versions


def _plain(value: Any, depth: int = 3) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if depth and isinstance(value, dict):
        return {
            str(key): "<redacted>" if SECRET.search(str(key)) else _plain(item, depth - 1)
            for key, item in value.items()
        }
    if depth and isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item, depth - 1) for item in value]
    text = str(value)
    # An object that prints its address would differ from run to run.
    return f"<{type(value).__name__}>" if " at 0x" in text else text[:1000]
