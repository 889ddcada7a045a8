"""Which launch options a condition depends on, by the names that it reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable

from eaglediag.analysis.gates.installation import Condition, Gate
from eaglediag.analysis.gates.source import function

Alternatives = tuple[str, ...]
"""Names that one option has had; the first that a release knows is the one to use."""

MAX_SIZE: Alternatives = ("cuda_graph_max_bs_decode", "cuda_graph_max_bs")
SIZES: Alternatives = ("cuda_graph_bs_decode", "cuda_graph_bs")
MAX_TOKENS: Alternatives = ("cuda_graph_max_bs_prefill", "piecewise_cuda_graph_max_tokens")
TOKENS: Alternatives = ("cuda_graph_bs_prefill", "piecewise_cuda_graph_tokens")
PREFILL: Alternatives = ("cuda_graph_backend_prefill", "enable_piecewise_cuda_graph")
WIDTH: tuple[Alternatives, ...] = (("speculative_num_draft_tokens",), ("speculative_num_steps",))
CPU_SIZES: Alternatives = ("torch_compile_max_bs",)
RUNNERS: tuple[Alternatives, ...] = (("cuda_graph_backend_decode",), ("disable_cuda_graph",))

#: A name in a condition -> the options behind it. Names that SGLang spells like the option need no line here.
BEHIND: dict[str, tuple[Alternatives, ...]] = {
    "max_bs": (MAX_SIZE, SIZES),
    "cuda_graph_bs": (MAX_SIZE, SIZES),
    "graphs": (MAX_SIZE, SIZES, ("disable_cuda_graph_padding",)),
    "_graphs": (MAX_SIZE, SIZES, ("disable_cuda_graph_padding",)),
    "graph_key": (MAX_SIZE, SIZES),
    "_make_graph_key": (MAX_SIZE, SIZES),
    "_ragged_capture_slots": (MAX_SIZE, SIZES),
    "max_num_tokens": (MAX_TOKENS, TOKENS),
    "disable_padding": (("disable_cuda_graph_padding",),),
    "can_run_dp_cuda_graph": (("enable_dp_attention",), ("dp_size",)),
    "can_run_decode_cuda_graph": (("enable_dp_attention",), ("dp_size",)),
    "can_run_dp_draft_cuda_graph": (("enable_dp_attention",), ("dp_size",)),
    "can_run_dp_prefill_cuda_graph": (("enable_dp_attention",), ("dp_size",)),
    "can_run_tbo": (("enable_two_batch_overlap",),),
    "capture_hidden_mode": (("enable_return_hidden_states",), ("speculative_algorithm",)),
    "requested_capture_hidden_mode": (("enable_return_hidden_states",), ("speculative_algorithm",)),
    "num_tokens_per_bs": WIDTH,
    "num_tokens_per_req": WIDTH,
    "captured_req_width": WIDTH,
    "is_ngram": (("speculative_algorithm",),),
    "graph_runner": RUNNERS,
    "cuda_graph_runner": RUNNERS,
    "decode_cuda_graph_runner": RUNNERS,
    "cuda_graph_runner_for_draft_extend": (*RUNNERS, ("speculative_draft_attention_backend",)),
    "cuda_graph_runner_for_draft_extend_list": (*RUNNERS, ("speculative_draft_attention_backend",)),
    "piecewise_cuda_graph_runner": (PREFILL, ("disable_piecewise_cuda_graph",)),
    "prefill_cuda_graph_runner": (PREFILL,),
    "is_mixed": (("enable_mixed_chunk",),),
    "lora_ineligible": (("enable_lora",), ("lora_backend",)),
    "get_moe_a2a_backend": (("moe_a2a_backend",),),
}

_NAME = re.compile(r"[A-Za-z_]\w*")
#: The asked gate's own name; what it depends on is listed with it.
_ASKS = re.compile(r"_?can_(run|replay)\w*")


def flag(argument: str) -> str:
    """`cuda_graph_max_bs` -> `--cuda-graph-max-bs`."""
    return "--" + argument.replace("_", "-")


def first_known(names: Alternatives, options: Collection[str]) -> str | None:
    """The option among these that a release with `options` knows."""
    return next((flag(name) for name in names if flag(name) in options), None)


def depends_on(gate: Gate, condition: Condition, options: Collection[str]) -> tuple[str, ...]:
    """The launch options that a condition, and the tests it stands behind, depend on; none where no name tells."""
    own = _flags(_names(condition.text), gate, options)
    if not own:
        own = _flags(_origins(gate, condition), gate, options)
    behind = _flags([name for test in gate.when(condition) for name in _names(test)], gate, options)
    return tuple(dict.fromkeys([*own, *behind]))


def _flags(names: Iterable[str], gate: Gate, options: Collection[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        behind = BEHIND.get(name, ())
        if gate.qualname.startswith("CPUGraphRunner") and SIZES in behind:
            behind = (CPU_SIZES,)
        found += [known for one in behind if (known := first_known(one, options))]
        # `self.disable_padding = server_args.disable_cuda_graph_padding`, and names that are spelled like the option.
        for spelled in (name, *_names(gate.attributes.get(name, ""))):
            if "_" in spelled and spelled not in BEHIND and flag(spelled) in options:
                found.append(flag(spelled))
    return found


def _names(text: str) -> list[str]:
    return [name for name in _NAME.findall(text) if not _ASKS.fullmatch(name) or name in BEHIND]


def _origins(gate: Gate, condition: Condition) -> list[str]:
    """The names in what the condition's locals were assigned."""
    tree = function(gate.source)
    if tree is None:
        return []
    wanted = set(_names(condition.text))
    return [
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id in wanted for one in node.targets)
        for name in _names(ast.unparse(node.value))
    ]
