"""What the tracer adds to a gate, in nanoseconds: allowed and denied, next to the untouched function, in one run.

`python benchmarks/gate_cost.py` measures a gate of the shape that SGLang's own have; `--python ENGINE/bin/python
[--pythonpath ...]` measures the real gate of the SGLang that this Python has, too. Rounds alternate between the two
functions, so that a busy machine slows both; the table gives the median of the rounds, and their range.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
LIMIT_NS = {"allows": 1000, "denies": 5000}

SHAPE = """
class Runner:
    def can_run(self, forward_batch):
        if forward_batch.replace_embeds is not None:
            return False
        if self.require_mlp_tp_gather:
            cuda_graph_bs = max(forward_batch.global_num_tokens_cpu) // self.num_tokens_per_bs
        else:
            cuda_graph_bs = forward_batch.batch_size
        graph_key = cuda_graph_bs
        is_bs_supported = graph_key in self.graphs if self.disable_padding else cuda_graph_bs <= self.max_bs
        if self.require_mlp_sync:
            is_bs_supported = is_bs_supported and forward_batch.can_run_dp_cuda_graph
        is_encoder_lens_supported = all(forward_batch.encoder_lens) if self.is_encoder_decoder else True
        requested_mode = max(forward_batch.mode, forward_batch.spec_mode)
        mode_matches = requested_mode == 0 or requested_mode == self.mode
        is_tbo_supported = forward_batch.can_run_tbo if self.enable_two_batch_overlap else True
        is_ngram_supported = (
            forward_batch.batch_size * self.num_tokens_per_bs == forward_batch.tokens if self.ngram else True
        )
        return (
            is_bs_supported
            and is_encoder_lens_supported
            and is_tbo_supported
            and mode_matches
            and is_ngram_supported
        )
"""


def shape() -> tuple[FunctionType, Any, Any, Any]:
    """A gate like SGLang's: the function, a runner, a batch it allows, a batch it denies."""
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(SHAPE)
    names: dict[str, Any] = {}
    exec(compile(SHAPE, file.name, "exec"), names)
    runner = names["Runner"]()
    runner.__dict__.update(
        require_mlp_tp_gather=False, require_mlp_sync=False, disable_padding=False, is_encoder_decoder=False,
        enable_two_batch_overlap=False, ngram=False, graphs={1: 1, 4: 1}, max_bs=8, mode=2, num_tokens_per_bs=3,
    )  # fmt: skip

    def batch(size: int) -> Any:
        return SimpleNamespace(batch_size=size, replace_embeds=None, mode=2, spec_mode=2, tokens=3 * size)

    return names["Runner"].can_run, runner, batch(4), batch(12)


def nanoseconds(function: Callable[[Any, Any], Any], runner: Any, batch: Any, calls: int) -> float:
    began = time.perf_counter_ns()
    for _ in range(calls):
        function(runner, batch)
    return (time.perf_counter_ns() - began) / calls


def measure(title: str, function: FunctionType, runner: Any, allowed: Any, denied: Any, tracer: Any) -> bool:
    """Print one table; whether the medians keep within the limits."""
    untouched = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    traced = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    traced.__code__ = tracer.rewrite(function, title)
    assert untouched(runner, allowed)
    assert traced(runner, allowed)
    assert not untouched(runner, denied)
    assert not traced(runner, denied)

    print(f"{title}, Python {sys.version.split()[0]}")
    print(f"{'':10}{'untouched':>12}{'traced':>12}{'added':>12}{'range':>20}{'ratio':>8}")
    kept = True
    for name, batch in (("allows", allowed), ("denies", denied)):
        calls, plain, with_tracer = 20_000, [], []
        for _ in range(15):
            plain.append(nanoseconds(untouched, runner, batch, calls))
            with_tracer.append(nanoseconds(traced, runner, batch, calls))
        added = [after - before for before, after in zip(plain, with_tracer, strict=True)]
        before, after, more = statistics.median(plain), statistics.median(with_tracer), statistics.median(added)
        spread = f"{min(added):.0f} .. {max(added):.0f}"
        print(f"{name:10}{before:9.0f} ns{after:9.0f} ns{more:9.0f} ns{spread:>17} ns{after / before:8.2f}")
        kept = kept and more < LIMIT_NS[name]
    counted = sum(denial["count"] for denial in tracer.denials())
    print(f"{len(tracer.denials())} kind of denial kept, counted {counted} times\n")
    return kept


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--python", help="a Python that has SGLang, to measure its real gate as well")
    arguments.add_argument("--pythonpath", default="", help="what that Python needs on its path")
    options = arguments.parse_args()

    sys.path.append(str(REPOSITORY))
    from eaglediag.probes.payload.tracer import Tracer

    kept = measure("a gate of SGLang's shape", *shape(), Tracer(lambda: ("verify", 12)))
    print(f"limits: {LIMIT_NS['allows']} ns allowed, {LIMIT_NS['denies']} ns denied: {'kept' if kept else 'NOT KEPT'}")
    if options.python:
        environment = {**os.environ, "PYTHONPATH": options.pythonpath, "EMBEDDED_HOST_STUBS": "vllm"}
        script = REPOSITORY / "tests" / "integration" / "real_gates.py"
        command = [options.python, str(script), str(REPOSITORY / "eaglediag" / "probes" / "payload"), __file__]
        done = subprocess.run(command, env=environment, check=False)
        kept = kept and done.returncode == 0
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
