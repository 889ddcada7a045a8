"""Checks of a `vllm serve` command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from eaglediag.analysis.launch_lint.command import Command
from eaglediag.analysis.launch_lint.finding import Finding

#: vLLM's default ceiling for captured sizes, in tokens.
DEFAULT_CAPTURE_TOKENS = 512

_REMOVED = ("--speculative-model", "--num-speculative-tokens", "--speculative-disable-by-batch-size")


def check(command: Command, asked: int) -> Iterator[Finding]:
    """All checks. `asked` is the highest concurrency, 0 when it is not known."""
    for name in _REMOVED:
        if command.has(name):
            yield Finding(
                "error",
                "removed_option",
                f"{name} is gone since vLLM 0.9",
                '--speculative-config \'{"model": ..., "num_speculative_tokens": ...}\'',
            )
    settings = _config(command, "--speculative-config")
    compilation = _config(command, "--compilation-config")
    for name, read in (("--speculative-config", settings), ("--compilation-config", compilation)):
        if read is None:
            yield Finding(
                "error", "not_json", f"{name} is not a JSON object", "quote it with single quotes in the shell"
            )
    width = 1
    if settings:
        tokens = settings.get("num_speculative_tokens")
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
            yield Finding("error", "no_draft_tokens", "--speculative-config does not say num_speculative_tokens")
        else:
            width += tokens
        yield from _speculation(settings, asked)
    if command.has("--enforce-eager"):
        yield Finding(
            "warning",
            "graphs_disabled",
            "--enforce-eager: no CUDA graphs, every step is launched kernel by kernel",
            "leave it out",
        )
        return
    mode = str((compilation or {}).get("cudagraph_mode", "")).upper()
    if mode == "NONE":
        yield Finding("warning", "graphs_disabled", "cudagraph_mode NONE: no CUDA graphs")
        return
    yield from _sizes(command, compilation or {}, asked, width)


def _speculation(settings: dict[str, Any], asked: int) -> Iterator[Finding]:
    disabled_at = settings.get("disable_by_batch_size")
    if isinstance(disabled_at, int) and asked and disabled_at <= asked:
        yield Finding(
            "warning",
            "speculation_off_at_batch",
            f"disable_by_batch_size {disabled_at}: at concurrency {asked} the server does not speculate",
        )
    if settings.get("acceptance_method") == "typical_acceptance_sampler" or "posterior_threshold" in settings:
        yield Finding(
            "warning",
            "lossy_acceptance",
            "typical acceptance accepts drafts that the model would not have sampled: accept lengths are inflated",
            "compare with the rejection sampler",
        )


def _sizes(command: Command, compilation: dict[str, Any], asked: int, width: int) -> Iterator[Finding]:
    explicit = compilation.get("cudagraph_capture_sizes")
    sizes = [size for size in explicit if isinstance(size, int)] if isinstance(explicit, list) else None
    sizes = sizes or command.numbers("--cuda-graph-sizes") or command.numbers("--cudagraph-capture-sizes")
    ceiling = command.number("--max-cudagraph-capture-size") or compilation.get("max_cudagraph_capture_size")
    given = bool(sizes) or isinstance(ceiling, int)
    largest = max(sizes) if sizes else ceiling if isinstance(ceiling, int) else DEFAULT_CAPTURE_TOKENS
    running = command.number("--max-num-seqs")
    if asked and running and running < asked:
        yield Finding(
            "note", "requests_wait", f"--max-num-seqs {running}: of {asked} requests {asked - running} wait at any time"
        )
        asked = running
    if asked and asked * width > largest:
        yield Finding(
            "warning",
            "beyond_largest_graph",
            f"captured sizes count tokens: {asked} requests x {width} tokens are {asked * width}, the largest graph "
            f"{'is' if given else 'is by default at most'} {largest}",
            f"--compilation-config '{{\"max_cudagraph_capture_size\": {asked * width}}}'",
        )
    elif given and width > 1:
        yield Finding(
            "note",
            "token_sized_graphs",
            f"captured sizes count tokens: {largest} are {largest // width} requests of {width} tokens",
        )


def _config(command: Command, name: str) -> dict[str, Any] | None:
    """An option's JSON object; {} when it is absent or a bare level, None when it cannot be read."""
    words = command.options.get(name)
    if not words or (name == "--compilation-config" and words[0].isdigit()):
        return {}
    try:
        value = json.loads(" ".join(words))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
