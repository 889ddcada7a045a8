"""Reference kernels in plain PyTorch, under the names that SGLang's CPU engine imports from `sgl_kernel`.

No CPU wheel of the real package is published. These are written from what the callers in SGLang pass and expect, for
correctness and reading, not for speed. Each function states its shapes with these letters:

    B requests, T query tokens of all requests together, H query heads, G key/value heads, D head size,
    S slots of the key/value pool, P rows and C columns of the request-to-token table, N tokens verified per request.

The table `req_to_token` (P, C) says in which pool slot each position of a request is kept; `req_pool_indices` (B,)
says which row of it a request has. Integer tensors may be int32 or int64. Functions that fill an argument return None
unless stated otherwise. A kernel that is not here raises NotImplementedError when it is called, not when imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from . import _operators
from .cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
)
from .speculative import (
    build_tree_kernel_efficient_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    verify_tree_greedy_cpu,
)

#: SGLang demands a minimum version of the real package.
__version__ = "99.0.0"

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "verify_tree_greedy_cpu",
]

_operators.register()


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"the reference kernels have no {name}")

    return missing
