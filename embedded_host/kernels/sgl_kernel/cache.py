"""Bookkeeping of the key/value pool: which position of which request is kept in which slot."""

from __future__ import annotations

import ctypes

import torch


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    _pool_len: int,
) -> None:
    """Enter new slots: positions start to end of request i get the next end - start entries of out_cache_loc."""
    taken = 0
    for row, start, end in _spans(req_pool_indices, start_offset, end_offset):
        req_to_token[row, start:end] = out_cache_loc[taken : taken + end - start].to(req_to_token.dtype)
        taken += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    _pool_len: int,
) -> None:
    """Look slots up: fill out_cache_loc with those of positions start to end of request i, request after request."""
    filled = 0
    for row, start, end in _spans(req_pool_indices, start_offset, end_offset):
        out_cache_loc[filled : filled + end - start] = req_to_token[row, start:end].to(out_cache_loc.dtype)
        filled += end - start


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    _pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Fill out_cache_loc (B * topk * num_steps,) with the slots of the positions just behind each sequence."""
    positions = seq_lens.long()[:, None] + torch.arange(topk * num_steps)
    out_cache_loc.copy_(req_to_token[req_pool_indices.long()[:, None], positions].flatten())


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    _pool_len: int,
) -> torch.Tensor:
    """The table as each drafted branch sees it: (B * topk, C), the request's prefix and then the branch's own slots.

    Behind the prefix the pool holds branch 0's `num_steps` slots, then branch 1's, and so on.
    """
    table = req_to_token[req_pool_indices.long()].repeat_interleave(topk, dim=0)
    if topk > 1:
        lengths, branch = seq_lens.long().repeat_interleave(topk), torch.arange(len(table)) % topk
        step = torch.arange(num_steps)
        own = lengths[:, None] + branch[:, None] * num_steps + step
        table.scatter_(1, lengths[:, None] + step, table.gather(1, own))
    return table.contiguous()


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Move pool slots: in every buffer slot tgt_loc[i] gets what is in slot src_loc[i].

    Buffer l starts at the address data_ptrs[l] and has strides[l] bytes a slot. All sources are read before any target
    is written, so the two lists may overlap.
    """
    if not len(tgt_loc):
        return
    slots = int(torch.maximum(tgt_loc, src_loc).max()) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_ubyte * (slots * stride)).from_address(address)
        buffer = torch.frombuffer(memory, dtype=torch.uint8).view(slots, stride)
        buffer[tgt_loc.long()] = buffer[src_loc.long()]


def _spans(rows: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> zip[tuple[int, int, int]]:
    return zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
