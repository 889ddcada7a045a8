"""Attention over a paged key/value pool, one request at a time."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention


def decode_attention(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    output: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    out_cache_loc: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    scaling: float,
) -> None:
    """One new token per request: keep its key and value, then attend to the whole sequence, itself included.

    q and output (B, H, D); k and v, written to the pool unless None, B * G * D values; k_buffer and v_buffer (S, G, D);
    out_cache_loc (B,) slots for k and v; seq_lens (B,) lengths with the new token.
    """
    if k is not None and v is not None:
        k_buffer[out_cache_loc] = k.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[out_cache_loc] = v.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    for request, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        slots = req_to_token[row, :length].long()
        output[request] = _attend(q[request : request + 1], k_buffer[slots], v_buffer[slots], scaling, None)[0]


def extend_attention(
    q: torch.Tensor,
    output: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    extend_start_loc: torch.Tensor,
    scaling: float,
    tree_mask: torch.Tensor | None,
    causal: bool,
) -> None:
    """Several new tokens per request, whose keys and values the caller has put into the pool already.

    q and output (T, H, D), request i at extend_start_loc[i], extend_seq_lens[i] long; seq_lens (B,) lengths with the
    new tokens. Among the new tokens the mask is causal, or `tree_mask`: booleans, row by row, request by request,
    either new x new (the prefix is visible to all) or new x (prefix + new).
    """
    lengths, new_lengths = seq_lens.tolist(), extend_seq_lens.tolist()
    masks: list[torch.Tensor | None] = [None] * len(lengths)
    if tree_mask is not None:
        masks = list(_tree_masks(tree_mask, lengths, new_lengths))
    elif causal:
        masks = [torch.ones(m, n, dtype=torch.bool).tril(n - m) for n, m in zip(lengths, new_lengths, strict=True)]
    rows, starts = req_pool_indices.tolist(), extend_start_loc.tolist()
    for row, length, start, new, mask in zip(rows, lengths, starts, new_lengths, masks, strict=True):
        if new:
            slots, span = req_to_token[row, :length].long(), slice(start, start + new)
            output[span] = _attend(q[span], k_buffer[slots], v_buffer[slots], scaling, mask).to(output.dtype)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, mask: torch.Tensor | None
) -> torch.Tensor:
    """q (m, H, D), k and v (n, G, D), H a multiple of G, mask (m, n), True where visible -> (m, H, D), in float32."""
    heads_first = (tensor.transpose(0, 1).float()[None] for tensor in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    attended = scaled_dot_product_attention(*heads_first, attn_mask=mask, scale=scaling, enable_gqa=grouped)
    return attended[0].transpose(0, 1)


def _tree_masks(tree_mask: torch.Tensor, lengths: list[int], new_lengths: list[int]) -> list[torch.Tensor]:
    """Cut a flat tree mask into one (new, length) mask per request, in whichever of the two layouts it has."""
    with_prefix = tree_mask.numel() == sum(n * m for n, m in zip(lengths, new_lengths, strict=True))
    flat, masks, offset = tree_mask.flatten().bool(), [], 0
    for length, new in zip(lengths, new_lengths, strict=True):
        width = length if with_prefix else new
        among = flat[offset : offset + new * width].view(new, width)
        masks.append(torch.cat([torch.ones(new, length - width, dtype=torch.bool), among], dim=1))
        offset += new * width
    return masks
