#!/usr/bin/env python3
"""Writes the tiny models that the embedded host serves. Runs in the engine's Python: models.py FOLDER

    target      a Llama of 8 layers whose next token depends on the current token and, less, on what came before
    eagle3      its EAGLE-3 draft, which knows the current token only
    standalone  a Llama of one layer that knows the current token only, a draft for the STANDALONE algorithm

All share one random embedding and output matrix. In the target only the first layer does anything: its attention, sharp
and random, adds some context to the current token's embedding; every other branch ends in zeros. A draft therefore
guesses right unless the context changes the target's choice, and CONTEXT sets how often that is. The text is noise.
The weights are a function of the seed, so the tokens are the same on every machine, up to floating-point ties.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SEED = 0
#: How much context weighs in the target's choice; the accept length of a chain of 3 drafts is about 2.5 with this one.
CONTEXT = 0.3
VOCABULARY, HIDDEN, INNER, LAYERS = 512, 64, 128, 8
HEADS, KV_HEADS, HEAD_SIZE = 4, 2, 16
CONFIG = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "head_dim": HEAD_SIZE,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": VOCABULARY,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
}

Weights = dict[str, torch.Tensor]


def silent_layer(prefix: str, width: int = HIDDEN, kv_heads: int = KV_HEADS) -> Weights:
    """A decoder layer whose attention and MLP add nothing; `width` is what its attention reads."""
    scale = HIDDEN**-0.5
    return {
        f"{prefix}self_attn.q_proj.weight": torch.randn(HEADS * HEAD_SIZE, width) * scale,
        f"{prefix}self_attn.k_proj.weight": torch.randn(kv_heads * HEAD_SIZE, width) * scale,
        f"{prefix}self_attn.v_proj.weight": torch.randn(kv_heads * HEAD_SIZE, width) * scale,
        f"{prefix}self_attn.o_proj.weight": torch.zeros(HIDDEN, HEADS * HEAD_SIZE),
        f"{prefix}mlp.gate_proj.weight": torch.randn(INNER, HIDDEN) * scale,
        f"{prefix}mlp.up_proj.weight": torch.randn(INNER, HIDDEN) * scale,
        f"{prefix}mlp.down_proj.weight": torch.zeros(HIDDEN, INNER),
        f"{prefix}input_layernorm.weight": torch.ones(HIDDEN),
        f"{prefix}post_attention_layernorm.weight": torch.ones(HIDDEN),
    }


def llama(layers: int, shared: Weights) -> Weights:
    """A Llama that maps each token to its successor, whatever the context."""
    weights = {"model.norm.weight": torch.ones(HIDDEN), **{name: value.clone() for name, value in shared.items()}}
    for layer in range(layers):
        weights |= silent_layer(f"model.layers.{layer}.")
    return weights


def target(shared: Weights) -> Weights:
    weights = llama(LAYERS, shared)
    attention = "model.layers.0.self_attn."
    weights[f"{attention}q_proj.weight"] *= 3  # a few positions get most of the attention
    weights[f"{attention}o_proj.weight"] = torch.randn(HIDDEN, HEADS * HEAD_SIZE) * HIDDEN**-0.5 * CONTEXT
    return weights


def eagle3(shared: Weights) -> Weights:
    """The draft layer attends to its own position and puts the current token's embedding in place of the hidden state.

    Its attention reads (embedding, hidden state) of HIDDEN values each. Queries and keys are the embedding, scaled so
    that a position sees itself alone; the value is embedding minus hidden state, and the residual adds the hidden state
    again. `fc` drops what the target sends, which knows only the token before.
    """
    identity, nothing = torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)
    layer = silent_layer("midlayer.", 2 * HIDDEN, HEADS)
    layer["midlayer.self_attn.q_proj.weight"] = torch.cat([identity * 8, nothing], dim=1)
    layer["midlayer.self_attn.k_proj.weight"] = torch.cat([identity * 8, nothing], dim=1)
    layer["midlayer.self_attn.v_proj.weight"] = torch.cat([identity, -identity], dim=1)
    layer["midlayer.self_attn.o_proj.weight"] = identity.clone()
    return {
        **layer,
        "midlayer.hidden_norm.weight": torch.ones(HIDDEN),
        "fc.weight": torch.zeros(HIDDEN, 3 * HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": shared["lm_head.weight"].clone(),
        # The draft has the target's whole vocabulary: no token is shifted or left out.
        "d2t": torch.zeros(VOCABULARY, dtype=torch.int64),
        "t2d": torch.ones(VOCABULARY, dtype=torch.bool),
    }


def write(folder: Path, architecture: str, layers: int, kv_heads: int, weights: Weights, **more: int) -> None:
    folder.mkdir(parents=True)
    config = {**CONFIG, "architectures": [architecture], "num_hidden_layers": layers, "num_key_value_heads": kv_heads}
    (folder / "config.json").write_text(json.dumps({**config, **more}, indent=1))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def write_tokenizer(folder: Path) -> None:
    """One token a byte; token numbers above them are the model's alone and decode to nothing."""
    tokens = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def main(folder: Path) -> None:
    torch.manual_seed(SEED)
    output = torch.randn(VOCABULARY, HIDDEN)
    # The end-of-sequence token is never the best choice, so every request runs to its length limit.
    output[CONFIG["eos_token_id"]] = 0
    shared = {"model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN), "lm_head.weight": output}
    write(folder / "target", "LlamaForCausalLM", LAYERS, KV_HEADS, target(shared))
    write(folder / "standalone", "LlamaForCausalLM", 1, KV_HEADS, llama(1, shared))
    write(folder / "eagle3", "LlamaForCausalLMEagle3", 1, HEADS, eagle3(shared), draft_vocab_size=VOCABULARY)
    for name in ("target", "standalone"):
        write_tokenizer(folder / name)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: models.py FOLDER")
    main(Path(sys.argv[1]))
