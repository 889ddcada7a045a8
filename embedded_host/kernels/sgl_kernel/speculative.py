"""The token tree of speculative decoding: lay it out, verify it greedily, gather what was accepted.

A tree has N nodes a request. Node 0 is the last token already emitted; the others are drafted. Links are node numbers
within the request, -1 for none: `next_token` (B, N) a node's first child, `next_sibling` (B, N) its next sibling;
`retrive_index` (B, N), the spelling SGLang passes, a node's place in the flat batch of B * N tokens.
"""

from __future__ import annotations

import torch

FULL_MASK, QLEN_ONLY = 0, 1


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    seq_lens: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    topk: int,
    _depth: int,
    num_verify_tokens: int,
    tree_mask_mode: int,
) -> None:
    """Lay out the trees that the draft model grew.

    Drafting scores candidates in rounds of `topk`; candidate c grew from entry c // topk of parent_list (B, any), which
    names a candidate in turn (entry 0: the root). selected_index (B, N - 1) holds the candidates kept, in node order.
    Fills tree_mask (N x N a request, or N x (length + N) with FULL_MASK), positions (B * N,) and the three link tables.
    """
    if int(tree_mask_mode) not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(f"the reference kernels have no tree mask mode {tree_mask_mode}")
    masks = []
    for request, length in enumerate(seq_lens.tolist()):
        parents = [-1]
        nodes = {candidate: node for node, candidate in enumerate(selected_index[request].tolist(), start=1)}
        for candidate in nodes:
            entry = candidate // topk
            parents.append(nodes[int(parent_list[request, entry])] if entry else 0)
        ancestors = _ancestors(parents)
        first_child, next_sibling = _links(parents)
        retrive_next_token[request] = torch.tensor(first_child)
        retrive_next_sibling[request] = torch.tensor(next_sibling)
        depth = ancestors.sum(dim=1) - 1
        positions[request * num_verify_tokens : (request + 1) * num_verify_tokens] = length + depth
        prefix = torch.ones(num_verify_tokens, length if int(tree_mask_mode) == FULL_MASK else 0, dtype=torch.bool)
        masks.append(torch.cat([prefix, ancestors], dim=1).flatten())
    flat = torch.cat(masks)
    tree_mask[: len(flat)] = flat
    retrive_index.copy_(torch.arange(retrive_index.numel()).view_as(retrive_index))


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    seq_lens: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    batch_size: int,
    num_verify_tokens: int,
) -> None:
    """Recover positions and links from tree_mask (B * N * N,), in which a node sees its ancestors and itself."""
    trees = tree_mask.view(batch_size, num_verify_tokens, num_verify_tokens).bool()
    for request, (tree, length) in enumerate(zip(trees, seq_lens.tolist(), strict=True)):
        above = tree.tril(-1)
        parents = [max(row.nonzero().flatten().tolist(), default=-1) for row in above]
        first_child, next_sibling = _links(parents)
        retrive_next_token[request] = torch.tensor(first_child)
        retrive_next_sibling[request] = torch.tensor(next_sibling)
        span = slice(request * num_verify_tokens, (request + 1) * num_verify_tokens)
        positions[span] = length + above.sum(dim=1)
    retrive_index.copy_(torch.arange(retrive_index.numel()).view_as(retrive_index))


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Walk down each tree as long as a child is the token that the target predicts at its parent.

    candidates (B, N) the tree's tokens; target_predict (B, N) the target's choice behind each. Fills predicts (B * N,)
    at the accepted nodes with the token emitted behind each, accept_index (B, deepest + 1) with their places in the
    flat batch (the caller has filled it with -1), accept_token_num (B,) with the drafted tokens accepted. Returns all
    three.
    """
    choices = target_predict.flatten()
    for request in range(len(candidates)):
        node, accepted = 0, 0
        place = int(retrive_index[request, 0])
        accept_index[request, 0] = place
        while accepted + 1 < accept_index.shape[1]:
            child = int(retrive_next_token[request, node])
            while child != -1 and int(candidates[request, child]) != int(choices[place]):
                child = int(retrive_next_sibling[request, child])
            if child == -1:
                break
            predicts[place] = choices[place]
            node, accepted, place = child, accepted + 1, int(retrive_index[request, child])
            accept_index[request, accepted] = place
        predicts[place] = choices[place]
        accept_token_num[request] = accepted
    return predicts, accept_index, accept_token_num


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, accept_stride: int
) -> None:
    """Fill bonus_tokens (B,) with the last token emitted, entry accept_lens[i] - 1 of request i's accept_stride."""
    last = torch.arange(len(accept_lens)) * accept_stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.flatten()[last])


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Gather the slots of accepted tokens at the front of accept_out_cache_loc, skipping the -1 of accept_index."""
    accepted = accept_index.flatten().long()
    accepted = accepted[accepted >= 0]
    accept_out_cache_loc[: len(accepted)] = out_cache_loc[accepted]


def _ancestors(parents: list[int]) -> torch.Tensor:
    """(N, N) booleans: row i is True at node i's ancestors and at i. Parents come before their children."""
    seen = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] |= seen[parent]
    return seen


def _links(parents: list[int]) -> tuple[list[int], list[int]]:
    """First child and next sibling of every node, siblings in node order."""
    first_child, next_sibling = [-1] * len(parents), [-1] * len(parents)
    for node in reversed(range(len(parents))):
        parent = parents[node]
        if parent >= 0:
            next_sibling[node] = first_child[parent]
            first_child[parent] = node
    return first_child, next_sibling
