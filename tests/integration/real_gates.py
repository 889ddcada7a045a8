"""Runs in the engine's Python: SGLang's real gates, traced, asked about batches that each fail one condition.

Usage: real_gates.py PAYLOAD_FOLDER [BENCHMARK]. Prints a JSON object: scenario -> {answer, denials}. The gates run on
bare instances that hold what the methods read; their code is the release's own, rewritten.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import runpy
import sys
from contextlib import nullcontext
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.model_executor.model_runner import ModelRunner


def classes() -> tuple[Any, Any]:
    """The target's graph runner, and the backend that holds its graphs where the release has one."""
    try:
        from sglang.srt.model_executor.cuda_graph_runner import CudaGraphRunner

        return CudaGraphRunner, None
    except ImportError:
        from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner
        from sglang.srt.model_executor.runner_backend.full_cuda_graph_backend import FullCudaGraphBackend

        return DecodeCudaGraphRunner, FullCudaGraphBackend


Runner, Backend = classes()
GATE = "can_run" if hasattr(Runner, "can_run") else "can_run_graph"
RUNNER = "decode_cuda_graph_runner" if "can_run_graph" in GATE else "graph_runner"
SIZES, WIDTH = (1, 2, 4), 4


def payload(folder: str) -> Any:
    """The tracer's module, out of the payload as it is shipped: a plain folder that is a package of another name."""
    found = importlib.util.spec_from_file_location(
        "eaglediag_payload", f"{folder}/__init__.py", submodule_search_locations=[folder]
    )
    assert found is not None
    sys.modules["eaglediag_payload"] = importlib.util.module_from_spec(found)
    return importlib.import_module("eaglediag_payload.tracer")


class Lenient:
    """Holds what it was given; anything else that is read of it is None."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Algorithm:
    """A speculative algorithm: `is_eagle()` and its like are asked by name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        return lambda: name in (f"is_{self.name}", "is_speculative")


def runner(**changed: Any) -> Any:
    """A graph runner with graphs for batches of 1, 2 and 4 requests of WIDTH tokens each."""
    made = object.__new__(Runner)
    fields: dict[str, Any] = dict.fromkeys(_read_by(Runner))
    fields.update(
        require_mlp_tp_gather=False, require_mlp_sync=False, enable_pdmux=False, disable_padding=False,
        max_bs=max(SIZES), graphs=dict.fromkeys(SIZES, "graph"), capture_hidden_mode=CaptureHiddenMode.FULL,
        is_encoder_decoder=False,
        enable_two_batch_overlap=False, num_tokens_per_bs=WIDTH, captured_req_width=WIDTH, ragged_verify_mode=None,
        record_nolora_graph=False, capture_num_tokens=[4, 8, 16],
        attn_backend=Lenient(supports_ragged_verify_graph=True),
        model_runner=Lenient(spec_algorithm=Algorithm("eagle")),
    )  # fmt: skip
    fields.update(changed)
    made.__dict__.update(fields)
    if Backend is not None:
        made.backend = object.__new__(Backend)
        keys = [made._make_graph_key(size) for size in SIZES] if hasattr(Runner, "_make_graph_key") else list(SIZES)
        made.backend._graphs = dict.fromkeys(keys, "graph")
    return made


def _read_by(owner: type) -> set[str]:
    """The names that the class's methods read and the class does not have: its instances' attributes among them."""
    names: set[str] = set()
    for method in vars(owner).values():
        if inspect.isfunction(method):
            names.update(method.__code__.co_names)
    return {name for name in names if not hasattr(owner, name)}


def batch(size: int = 2, **changed: Any) -> Any:
    """A verify batch of `size` requests that the runner above has a graph for."""
    fields: dict[str, Any] = {
        "batch_size": size,
        "forward_mode": ForwardMode.TARGET_VERIFY,
        "capture_hidden_mode": CaptureHiddenMode.FULL,
        "input_ids": torch.zeros(size * WIDTH, dtype=torch.int64),
        "spec_info": Lenient(capture_hidden_mode=CaptureHiddenMode.FULL, num_tokens_per_req=WIDTH),
    }
    return Lenient(**{**fields, **changed})


def scenarios() -> dict[str, tuple[Any, Any]]:
    """One (runner, batch) for each condition; a release that does not have the condition allows it."""
    last = CaptureHiddenMode.LAST
    layout = Lenient(graph_num_tokens=64)
    ragged = Lenient(ragged_verify_layout=layout, capture_hidden_mode=CaptureHiddenMode.FULL, num_tokens_per_req=WIDTH)
    ngram = Lenient(spec_algorithm=Algorithm("ngram"))
    no_dp = {"can_run_dp_cuda_graph": False, "can_run_decode_cuda_graph": False}
    return {
        "allowed": (runner(), batch(4)),
        "batch too large": (runner(), batch(12)),
        "another batch too large": (runner(), batch(13)),
        "global tokens too many": (
            runner(require_mlp_tp_gather=True),
            batch(2, global_num_tokens_cpu=[8, 48], original_global_num_tokens_cpu=[2, 12]),
        ),
        "size not captured": (runner(disable_padding=True), batch(3)),
        "dp sync": (runner(require_mlp_sync=True), batch(2, **no_dp)),
        "encoder length zero": (runner(is_encoder_decoder=True), batch(2, encoder_lens=torch.tensor([7, 0]))),
        "hidden mode": (
            runner(),
            batch(2, capture_hidden_mode=last, spec_info=Lenient(capture_hidden_mode=last, num_tokens_per_req=WIDTH)),
        ),
        "tbo": (runner(enable_two_batch_overlap=True), batch(2, can_run_tbo=False)),
        "ngram width": (runner(model_runner=ngram), batch(2, input_ids=torch.zeros(6, dtype=torch.int64))),
        "width": (runner(), batch(2, spec_info=Lenient(num_tokens_per_req=3))),
        "replace_embeds": (runner(), batch(2, replace_embeds=torch.zeros(2, 8))),
        "ragged layout": (runner(ragged_verify_mode="compact"), batch(2, spec_info=ragged)),
        "ragged without layout": (runner(ragged_verify_mode="compact"), batch(2)),
    }


def benchmark(script: str) -> None:
    """Measure the real gate with the `measure` of benchmarks/gate_cost.py; exit 1 when it costs too much."""
    measure = runpy.run_path(script)["measure"]
    tracer = payload(sys.argv[1]).Tracer(lambda: ("verify", 12))
    title = f"SGLang's {Runner.__name__}.{GATE}"
    sys.exit(not measure(title, vars(Runner)[GATE], runner(), batch(4), batch(12), tracer))


def main() -> None:
    tracer = payload(sys.argv[1]).Tracer(lambda: ("verify", 2))
    for owner, name, kind in (
        (Runner, GATE, "gate"),
        (Runner, "_can_run_ragged_verify_graph", "gate"),
        (Backend, "can_run", "gate"),
        (ModelRunner, "_forward_raw", "caller"),
    ):
        function = vars(owner).get(name) if owner is not None else None
        if function is not None:
            function.__code__ = tracer.rewrite(function, f"{owner.__name__}.{name}", kind=kind)

    # 0.5.23 enters a context of the configured model's first; there is none here.
    ModelRunner._forward_raw.__globals__["get_model"] = lambda: Lenient(override=lambda **_: nullcontext())

    told: dict[str, Any] = {}
    for scenario, (graph_runner, forward_batch) in scenarios().items():
        tracer.clear()
        answer = getattr(graph_runner, GATE)(forward_batch)
        told[scenario] = {"answer": bool(answer), "denials": tracer.denials()}

    def forward(forward_batch: Any, graph_runner: Any, device: str) -> dict[str, Any]:
        """ModelRunner._forward_raw up to where this bare instance has nothing to run the model with."""
        tracer.clear()
        model_runner = object.__new__(ModelRunner)
        fields = {"hisparse_coordinator": None, "attn_backend": None, "model": Lenient()}
        model_runner.__dict__.update({**fields, "device": device, RUNNER: graph_runner})
        parameters = inspect.signature(ModelRunner._forward_raw).parameters.values()
        given = {one.name: None for one in parameters if one.default is one.empty and one.name != "self"}
        try:
            model_runner._forward_raw(**{**given, "forward_batch": forward_batch})
            ended = "returned"
        except (AttributeError, TypeError, ValueError) as error:
            ended = f"{type(error).__name__}: {error}"
        return {"answer": ended, "denials": tracer.denials()}

    told["forward: no runner"] = forward(batch(), None, "cuda")
    told["forward: mode is not graph"] = forward(batch(2, forward_mode=ForwardMode.EXTEND), runner(), "cuda")
    told["forward: on the CPU"] = forward(batch(), None, "cpu")
    told["forward: batch too large"] = forward(batch(12), runner(), "cuda")
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    benchmark(sys.argv[2]) if len(sys.argv) > 2 else main()
