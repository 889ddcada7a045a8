"""The reference kernels against slower, independent computations. Run by the engine's Python:

python -m unittest discover -s embedded_host/tests  (with embedded_host/kernels on PYTHONPATH)
"""

from __future__ import annotations

import itertools
import math
import random
import unittest
from typing import Any

import sgl_kernel
import torch
from sgl_kernel import speculative
from sgl_kernel.speculative import FULL_MASK, QLEN_ONLY

HEADS, KV_HEADS, HEAD_SIZE = 4, 2, 8
SLOTS, ROWS, COLUMNS = 64, 6, 16
SCALING = HEAD_SIZE**-0.5


def naive_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: list[int]) -> torch.Tensor:
    """One query (H, D) over the listed positions of k and v (n, G, D), in double precision, term by term."""
    output = torch.zeros(HEADS, HEAD_SIZE, dtype=torch.float64)
    for head in range(HEADS):
        group = head * KV_HEADS // HEADS
        weights = {at: math.exp(SCALING * float(q[head].double() @ k[at, group].double())) for at in visible}
        for at, weight in weights.items():
            output[head] += weight / sum(weights.values()) * v[at, group].double()
    return output


class Pool:
    """A key/value pool whose slots are dealt out at random to the requests in the table's rows."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.k, self.v = torch.randn(SLOTS, KV_HEADS, HEAD_SIZE), torch.randn(SLOTS, KV_HEADS, HEAD_SIZE)
        self.table = torch.randperm(ROWS * COLUMNS).remainder(SLOTS).view(ROWS, COLUMNS).int()
        for row in range(ROWS):
            self.table[row] = torch.randperm(SLOTS)[:COLUMNS].int()

    def sequence(self, row: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        slots = self.table[row, :length].long()
        return self.k[slots], self.v[slots]


def extend(
    pool: Pool, rows: list[int], lengths: list[int], new: list[int], mask: torch.Tensor | None
) -> tuple[Any, Any]:
    q = torch.randn(sum(new), HEADS, HEAD_SIZE)
    output = torch.empty_like(q)
    starts = [0, *itertools.accumulate(new)][:-1]
    rest = [torch.tensor(values) for values in (rows, lengths, new, starts)]
    options: list[Any] = [max(new), SCALING, 0.0, False, 0, None, None, mask, True]
    kernel = torch.ops.sgl_kernel.extend_attention_cpu
    kernel(q, None, None, output, pool.k, pool.v, 1.0, 1.0, pool.table, *rest, *options)
    return q, output


class Attention(unittest.TestCase):
    def test_decode_keeps_the_new_token_and_attends_to_it(self) -> None:
        pool, rows, lengths = Pool(0), [4, 1, 3], [5, 1, 9]
        q, k, v = (
            torch.randn(3, HEADS, HEAD_SIZE),
            torch.randn(3, KV_HEADS * HEAD_SIZE),
            torch.randn(3, KV_HEADS * HEAD_SIZE),
        )
        # Slots are shared between rows in this pool, so give the new tokens slots of their own.
        slots = torch.tensor([60, 61, 62])
        pool.table.masked_fill_(pool.table >= 60, 0)
        for row, length, slot in zip(rows, lengths, slots.tolist(), strict=True):
            pool.table[row, length - 1] = slot
        output = torch.empty_like(q)
        sequence = [pool.table, torch.tensor(rows), torch.tensor(lengths)]
        kernel = torch.ops.sgl_kernel.decode_attention_cpu
        kernel(q, pool.k, pool.v, 1.0, 1.0, output, k, v, slots, torch.empty(0), *sequence, SCALING, 0.0)
        assert torch.equal(pool.k[slots].flatten(1), k)
        assert torch.equal(pool.v[slots].flatten(1), v)
        for request, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            keys, values = pool.sequence(row, length)
            expected = naive_attention(q[request], keys, values, list(range(length)))
            torch.testing.assert_close(output[request].double(), expected, rtol=1e-5, atol=1e-6)

    def test_extend_is_causal_behind_a_prefix(self) -> None:
        pool, rows, lengths, new = Pool(1), [0, 5, 2], [7, 4, 10], [3, 4, 1]
        q, output = extend(pool, rows, lengths, new, None)
        at = 0
        for row, length, count in zip(rows, lengths, new, strict=True):
            keys, values = pool.sequence(row, length)
            for position in range(length - count, length):
                expected = naive_attention(q[at], keys, values, list(range(position + 1)))
                torch.testing.assert_close(output[at].double(), expected, rtol=1e-5, atol=1e-6)
                at += 1

    def test_extend_obeys_a_tree_mask_in_both_layouts(self) -> None:
        rows, lengths, new = [3, 0], [6, 9], [4, 4]
        tree = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], dtype=torch.bool)
        prefixed = [
            torch.cat([torch.ones(4, length - 4, dtype=torch.bool), tree], dim=1).flatten() for length in lengths
        ]
        for mask in (tree.flatten().repeat(2), torch.cat(prefixed)):
            pool = Pool(2)
            q, output = extend(pool, rows, lengths, new, mask)
            for request, (row, length) in enumerate(zip(rows, lengths, strict=True)):
                keys, values = pool.sequence(row, length)
                for node in range(4):
                    visible = [*range(length - 4), *(length - 4 + other for other in range(4) if tree[node, other])]
                    expected = naive_attention(q[request * 4 + node], keys, values, visible)
                    torch.testing.assert_close(output[request * 4 + node].double(), expected, rtol=1e-5, atol=1e-6)

    def test_what_is_left_out_is_refused(self) -> None:
        pool, one = Pool(3), torch.tensor([1])
        q = torch.randn(1, HEADS, HEAD_SIZE)
        arguments = [
            q,
            None,
            None,
            torch.empty_like(q),
            pool.k,
            pool.v,
            1.0,
            1.0,
            pool.table,
            one,
            one,
            one,
            one * 0,
            1,
        ]
        with self.assertRaises(NotImplementedError):  # noqa: PT027 (the engine has no pytest)
            torch.ops.sgl_kernel.extend_attention_cpu(*arguments, SCALING, 30.0)
        with self.assertRaises(NotImplementedError):  # noqa: PT027 (the engine has no pytest)
            sgl_kernel.moe_align_block_size(1)


class Bookkeeping(unittest.TestCase):
    def setUp(self) -> None:
        self.table = torch.arange(ROWS * COLUMNS, dtype=torch.int32).view(ROWS, COLUMNS)
        self.rows, self.starts, self.ends = torch.tensor([2, 0]), torch.tensor([3, 5]), torch.tensor([6, 7])

    def test_slots_entered_are_found_again(self) -> None:
        slots, found = torch.tensor([90, 91, 92, 93, 94]), torch.zeros(5, dtype=torch.int64)
        sgl_kernel.assign_req_to_token_pool_cpu(self.rows, self.table, self.starts, self.ends, slots, COLUMNS)
        assert self.table[2, 2:7].tolist() == [34, 90, 91, 92, 38]
        assert self.table[0, 4:8].tolist() == [4, 93, 94, 7]
        sgl_kernel.assign_extend_cache_locs_cpu(self.rows, self.table, self.starts, self.ends, found, COLUMNS)
        assert torch.equal(found, slots)

    def test_drafts_are_kept_behind_the_sequence(self) -> None:
        slots = torch.zeros(8, dtype=torch.int64)
        sgl_kernel.assign_draft_cache_locs_contiguous_cpu(self.rows, self.table, self.starts, slots, COLUMNS, 2, 2)
        assert slots.tolist() == [35, 36, 37, 38, 5, 6, 7, 8]

    def test_each_branch_sees_the_prefix_and_its_own_drafts(self) -> None:
        view = sgl_kernel.build_draft_decode_metadata_cpu(self.table, self.rows, self.starts, 2, 3, COLUMNS)
        assert view.shape == (4, COLUMNS)
        assert view[0, :6].tolist() == [32, 33, 34, 35, 36, 37]
        assert view[1, :6].tolist() == [32, 33, 34, 38, 39, 40]
        assert view[3, :8].tolist() == [0, 1, 2, 3, 4, 8, 9, 10]

    def test_overlapping_moves_read_before_they_write(self) -> None:
        layers = [torch.arange(12.0).view(6, 2), torch.arange(18.0).view(6, 3) + 100]
        expected = [layer.clone() for layer in layers]
        for layer, copy in zip(layers, expected, strict=True):
            copy[2], copy[3] = layer[3].clone(), layer[5].clone()
        pointers = torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64)
        strides = torch.tensor([layer.stride(0) * 4 for layer in layers])
        sgl_kernel.copy_all_layer_kv_cache_cpu(pointers, strides, torch.tensor([2, 3]), torch.tensor([3, 5]))
        for layer, copy in zip(layers, expected, strict=True):
            assert torch.equal(layer, copy)

    def test_accepted_tokens_and_slots_are_gathered(self) -> None:
        bonus = torch.zeros(2, dtype=torch.int64)
        sgl_kernel.fill_bonus_tokens_cpu(torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([3, 1]), bonus, 3)
        assert bonus.tolist() == [7, 8]
        slots = torch.zeros(6, dtype=torch.int64)
        index = torch.tensor([[0, 1, -1], [3, -1, -1]])
        sgl_kernel.fill_accept_out_cache_loc_cpu(index, torch.arange(6) + 50, slots)
        assert slots.tolist() == [50, 51, 53, 0, 0, 0]


def random_tree(nodes: int, generator: random.Random) -> list[int]:
    """Parents of every node, -1 for the root."""
    return [-1, *(generator.randrange(node) for node in range(1, nodes))]


def path_to(parents: list[int], node: int) -> list[int]:
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def mask_of(parents: list[int]) -> torch.Tensor:
    nodes = range(len(parents))
    return torch.tensor([[other in path_to(parents, node) for other in nodes] for node in nodes])


class Trees(unittest.TestCase):
    def tables(self, batch: int, nodes: int) -> list[torch.Tensor]:
        return [torch.full((batch * nodes,), -9), *(torch.full((batch, nodes), -9) for _ in range(3))]

    def test_a_chain_of_drafts(self) -> None:
        for mode, width in ((QLEN_ONLY, 0), (FULL_MASK, 5)):
            mask = torch.zeros(3 * (3 + width), dtype=torch.bool)
            positions, index, child, sibling = self.tables(1, 3)
            parents, selected = torch.tensor([[-1, 0]]), torch.tensor([[0, 1]])
            tables = (mask, positions, index, child, sibling)
            sgl_kernel.build_tree_kernel_efficient_cpu(parents, selected, torch.tensor([5]), *tables, 1, 2, 3, mode)
            causal = torch.ones(3, 3, dtype=torch.bool).tril()
            assert torch.equal(mask.view(3, -1)[:, width:], causal)
            assert mask.view(3, -1)[:, :width].all()
            assert positions.tolist() == [5, 6, 7]
            assert (child.tolist(), sibling.tolist()) == ([[1, 2, -1]], [[-1, -1, -1]])

    def test_a_tree_of_drafts(self) -> None:
        # topk 2: candidates 0 and 1 under the root, 2 and 3 under candidate 1 (entry 1), 4 and 5 under 0 (entry 2).
        parents, selected = torch.tensor([[-1, 1, 0]]), torch.tensor([[0, 1, 3, 4]])
        mask = torch.zeros(25, dtype=torch.bool)
        positions, index, child, sibling = self.tables(1, 5)
        tables = (mask, positions, index, child, sibling)
        sgl_kernel.build_tree_kernel_efficient_cpu(parents, selected, torch.tensor([7]), *tables, 2, 2, 5, QLEN_ONLY)
        assert torch.equal(mask.view(5, 5), mask_of([-1, 0, 0, 2, 1]))
        assert positions.tolist() == [7, 8, 8, 9, 9]
        assert child.tolist() == [[1, 4, 3, -1, -1]]
        assert sibling.tolist() == [[-1, 2, -1, -1, -1]]

    def test_a_tree_is_recovered_from_its_mask_and_verified(self) -> None:
        """Any tree: greedy verification finds the longest path whose every token the target chose at its parent."""
        generator = random.Random(7)
        for _ in range(200):
            nodes, batch, depth = generator.randint(1, 7), generator.randint(1, 3), 4
            trees = [random_tree(nodes, generator) for _ in range(batch)]
            lengths = torch.tensor([generator.randint(1, 9) for _ in range(batch)])
            mask = torch.stack([mask_of(parents) for parents in trees]).flatten()
            positions, index, child, sibling = self.tables(batch, nodes)
            speculative.reconstruct_indices_from_tree_mask(
                mask, lengths, positions, index, child, sibling, batch, nodes
            )
            depths = [len(path_to(parents, node)) - 1 for parents in trees for node in range(nodes)]
            assert positions.tolist() == [int(lengths[i // nodes]) + d for i, d in enumerate(depths)]

            # Tokens are distinct among siblings, as drafts are.
            tokens = torch.stack([torch.randperm(nodes) for _ in range(batch)])
            choices = torch.tensor([[generator.randrange(nodes) for _ in range(nodes)] for _ in range(batch)])
            predicts, accepted = torch.full((batch * nodes,), -1), torch.zeros(batch, dtype=torch.int64)
            places = torch.full((batch, depth), -1)
            sgl_kernel.verify_tree_greedy_cpu(predicts, places, accepted, tokens, index, child, sibling, choices)
            for request, parents in enumerate(trees):
                paths = [path_to(parents, node) for node in range(nodes)]
                right = [
                    path
                    for path in paths
                    if len(path) <= depth
                    and all(tokens[request, b] == choices[request, a] for a, b in itertools.pairwise(path))
                ]
                best = max(right, key=len)
                assert int(accepted[request]) == len(best) - 1
                flat = [request * nodes + node for node in best]
                assert places[request].tolist() == flat + [-1] * (depth - len(best))
                assert predicts[flat].tolist() == choices[request, best].tolist()


if __name__ == "__main__":
    unittest.main()
