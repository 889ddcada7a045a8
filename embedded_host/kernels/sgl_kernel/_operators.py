"""Registers the kernels that SGLang reaches through `torch.ops.sgl_kernel`, with the running release's signatures."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch

from .attention import decode_attention, extend_attention

Optional = torch.Tensor | None
#: From this release on, the attention kernels take the key/value cache's scales.
SCALES_SINCE = (0, 5, 20)

_library = torch.library.Library("sgl_kernel", "FRAGMENT")


def register() -> None:
    """Define the operators. SGLang passes their arguments by position; those behind the last used are optional."""
    release = tuple(int(part) for part in version("sglang").split(".")[:3])
    scales = "float k_scale, float v_scale, " if release >= SCALES_SINCE else ""
    _define(
        f"decode_attention_cpu(Tensor q, Tensor(a!) k_buffer, Tensor(b!) v_buffer, {scales}Tensor(c!) output, "
        "Tensor? k, Tensor? v, Tensor out_cache_loc, Tensor attn_logits, Tensor req_to_token, "
        "Tensor req_pool_indices, Tensor seq_lens, float scaling, float logit_cap, "
        "bool cross=False, int window=0, Tensor? encoder_lens=None, Tensor? sinks=None) -> ()",
        _decode if scales else lambda q, k_buffer, v_buffer, *rest: _decode(q, k_buffer, v_buffer, 1.0, 1.0, *rest),
    )
    _define(
        "extend_attention_cpu(Tensor q, Tensor? k, Tensor? v, Tensor(a!) output, "
        f"Tensor(b!) k_buffer, Tensor(c!) v_buffer, {scales}Tensor req_to_token, Tensor req_pool_indices, "
        "Tensor seq_lens, Tensor extend_seq_lens, Tensor extend_start_loc, int? max_extend_len, "
        "float scaling, float logit_cap, bool cross=False, int window=0, Tensor? encoder_lens=None, "
        "Tensor? sinks=None, Tensor? tree_mask=None, bool causal=True) -> ()",
        _extend if scales else lambda q, k, v, o, kb, vb, *rest: _extend(q, k, v, o, kb, vb, 1.0, 1.0, *rest),
    )
    _ignore_fakes_of_missing_operators()


def _define(schema: str, kernel: Callable[..., None]) -> None:
    _library.define(schema)
    _library.impl(schema.partition("(")[0], kernel, "CompositeExplicitAutograd")


def _decode(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    output: torch.Tensor,
    k: Optional,
    v: Optional,
    out_cache_loc: torch.Tensor,
    _attn_logits: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    scaling: float,
    logit_cap: float,
    cross: bool = False,
    window: int = 0,
    _encoder_lens: Optional = None,
    sinks: Optional = None,
) -> None:
    _require_plain_attention(k_scale, v_scale, logit_cap, cross, window, sinks)
    decode_attention(
        q, k_buffer, v_buffer, output, k, v, out_cache_loc, req_to_token, req_pool_indices, seq_lens, scaling
    )


def _extend(
    q: torch.Tensor,
    _k: Optional,
    _v: Optional,
    output: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    extend_start_loc: torch.Tensor,
    _max_extend_len: int | None,
    scaling: float,
    logit_cap: float,
    cross: bool = False,
    window: int = 0,
    _encoder_lens: Optional = None,
    sinks: Optional = None,
    tree_mask: Optional = None,
    causal: bool = True,
) -> None:
    _require_plain_attention(k_scale, v_scale, logit_cap, cross, window, sinks)
    extend_attention(
        q,
        output,
        k_buffer,
        v_buffer,
        req_to_token,
        req_pool_indices,
        seq_lens,
        extend_seq_lens,
        extend_start_loc,
        scaling,
        tree_mask,
        causal,
    )


def _require_plain_attention(
    k_scale: float, v_scale: float, logit_cap: float, cross: bool, window: int, sinks: Optional
) -> None:
    """A wrong answer would pass unnoticed, so refuse what the reference attention leaves out."""
    if (k_scale, v_scale) != (1.0, 1.0) or logit_cap or cross or window > 0 or sinks is not None:
        raise NotImplementedError(
            "the reference kernels have no key/value scales, logit cap, cross attention, sliding window or sinks"
        )


def _ignore_fakes_of_missing_operators() -> None:
    """Let SGLang describe (`register_fake`) operators of the real package that are not here.

    Its CPU graph runner describes all of them in advance, and PyTorch refuses names that it does not know.
    """
    register_fake = torch.library.register_fake

    def tolerant(op: Any, func: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        if isinstance(op, str) and op.startswith("sgl_kernel::"):
            name = op.removeprefix("sgl_kernel::")
            if not hasattr(torch.ops.sgl_kernel, name):
                return (lambda described: described) if func is None else func
        return register_fake(op, func, **options)

    torch.library.register_fake = tolerant
