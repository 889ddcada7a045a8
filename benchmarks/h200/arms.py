"""The servers of the experiment: how each is launched on the GPU host, or on the embedded host for a dry run.

On the GPU host SGLang 0.5.14 lies unpacked in a folder that goes first on PYTHONPATH; models are only shapes, served
with dummy weights, so requests carry token ids and the accept length is pinned.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from eaglediag.cli.demo import find_embedded_host, launch_command
from eaglediag.probes.launch import LaunchCommand

ACCEPT_LENGTH = 2.0
DRAFT_STEPS = 2
#: Captured up to here: a batch of 12 then runs eagerly in every phase.
GRAPH_MAX = 8
#: What the report advises for that batch.
ADVISED_GRAPH_MAX = 12
VOCABULARY = 32_000

_COMMON: dict[str, object] = {
    "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "torch_dtype": "bfloat16", "tie_word_embeddings": False, "attention_bias": False,
    "vocab_size": VOCABULARY, "head_dim": 128,
}  # fmt: skip
_LLAMA = {"model_type": "llama", "mlp_bias": False}
#: 8B-shaped: 32 layers of 4096. MoE: the shape of Qwen3-30B-A3B, with the small vocabulary.
_DENSE = {
    **_LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8,
}  # fmt: skip
_MOE = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128,
    "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
_MOE_DRAFT = {
    **_LLAMA, "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 32, "num_key_value_heads": 4,
}  # fmt: skip
MODELS = {
    "dense": ({"architectures": ["LlamaForCausalLM"], **_DENSE}, _DENSE),
    "moe": ({"architectures": ["Qwen3MoeForCausalLM"], **_MOE}, _MOE_DRAFT),
}


def write_models(folder: Path) -> None:
    """Write every model's config.json: FOLDER/KIND/target and FOLDER/KIND/draft."""
    for kind, (target, draft) in MODELS.items():
        one_layer = {"num_hidden_layers": 1, "draft_vocab_size": VOCABULARY}
        small = {**draft, "architectures": ["LlamaForCausalLMEagle3"], **one_layer}
        for name, config in (("target", target), ("draft", small)):
            place = folder / kind / name
            place.mkdir(parents=True, exist_ok=True)
            (place / "config.json").write_text(json.dumps(_COMMON | config, indent=1), encoding="utf-8")


@dataclass(frozen=True)
class GpuHost:
    """SGLang 0.5.14 in `site`, started with `python`, shapes in `models`."""

    site: Path
    models: Path
    python: str = "python3"

    def launch(
        self,
        port: int,
        *,
        speculative: bool,
        model: str = "dense",
        graph_max: int = GRAPH_MAX,
        flags: tuple[str, ...] = (),
        environment: tuple[str, ...] = (),
    ) -> LaunchCommand:
        """The launch command. The cache is bounded by tokens, so several servers fit on one GPU however they start."""
        target, draft = self.models / model / "target", self.models / model / "draft"
        words = ["env", f"PYTHONPATH={self.site}", *environment]
        if speculative:
            words.append(f"SGLANG_SIMULATE_ACC_LEN={ACCEPT_LENGTH}")
        words += [
            *(self.python, "-m", "sglang.launch_server", "--model-path", str(target), "--load-format", "dummy"),
            *("--skip-tokenizer-init", "--attention-backend", "triton", "--sampling-backend", "pytorch"),
            *("--grammar-backend", "none", "--disable-piecewise-cuda-graph", "--cuda-graph-max-bs", str(graph_max)),
            *("--mem-fraction-static", "0.95", "--max-total-tokens", "16384", "--port", str(port)),
        ]
        if speculative:
            words += [
                *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(draft)),
                *("--speculative-draft-load-format", "dummy", "--speculative-num-steps", str(DRAFT_STEPS)),
                *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(DRAFT_STEPS + 1)),
            ]
        return LaunchCommand.parse(shlex.join([*words, *flags]))


@dataclass(frozen=True)
class EmbeddedHost:
    """The CPU engine, for a dry run of everything but the GPU: same arms, its own tiny models, no graphs."""

    def launch(
        self,
        port: int,
        *,
        speculative: bool,
        model: str = "dense",
        graph_max: int = GRAPH_MAX,
        flags: tuple[str, ...] = (),
        environment: tuple[str, ...] = (),
    ) -> LaunchCommand:
        """The launch command; what only means something on a GPU is left out."""
        command = LaunchCommand.parse(
            launch_command(find_embedded_host(), "eagle" if speculative else "baseline", port)
        )
        variables = dict(variable.split("=", 1) for variable in environment)
        if speculative:
            variables["SGLANG_SIMULATE_ACC_LEN"] = str(ACCEPT_LENGTH)
        if "--tp-size" in flags:
            variables["SGLANG_CPU_OMP_THREADS_BIND"] = "0|0"
        known = tuple(flag for flag in flags if flag != "--disable-custom-all-reduce")
        return replace(command.with_environment(**variables), argv=(*command.argv, *known))
