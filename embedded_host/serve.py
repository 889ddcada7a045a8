#!/usr/bin/env python3
"""Serves a tiny model with the real SGLang on a CPU, or prints the command line that does.

    serve.py --arm eagle --port 31000                  serve EAGLE-3; ^C ends it
    serve.py --print --arm baseline --port 31000       the command line of the same server without speculation

Arms: baseline, eagle (EAGLE-3), standalone, ngram. Arguments that are not known here go to SGLang as they are, behind
the arm's own, so they win. What is not built yet is built first.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

import build

HERE = Path(__file__).resolve().parent
MAX_RUNNING_REQUESTS, CONTEXT_LENGTH = 16, 2048
DRAFT_STEPS = 3
ARMS = ("baseline", "eagle", "standalone", "ngram")


def environment(installation: build.Installation, ranks: int) -> dict[str, str]:
    """What the server needs in its environment, beside what it inherits."""
    path = [HERE / "shim", HERE / "stubs", HERE / "kernels"]
    if installation.sources:
        path.insert(0, installation.sources)
    inherited = os.environ.get("PYTHONPATH")
    return {
        "PYTHONPATH": os.pathsep.join([*map(str, path), *([inherited] if inherited else [])]),
        "SGLANG_USE_CPU_ENGINE": "1",
        # One group of cores per rank; without Intel's AMX SGLang checks the number of groups and pins nothing.
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(["0"] * ranks),
        # The models are so small that threads only get in each other's way.
        "OMP_NUM_THREADS": "1",
        # With --enable-torch-compile the CPU graph runner is then built at once, around the plain Python model.
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
    }


def command(installation: build.Installation, arm: str, port: int, more: list[str]) -> list[str]:
    models = installation.models
    # "intel_amx" is SGLang's CPU attention, Python over the kernels in ./kernels; torch_native refuses speculation.
    attention = ["--attention-backend", "torch_native"]
    attention += ["--prefill-attention-backend", "intel_amx", "--decode-attention-backend", "intel_amx"]
    return [
        *(str(installation.python), "-m", "sglang.launch_server", "--model-path", str(models / "target")),
        *("--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1", "--port", str(port)),
        *("--max-running-requests", str(MAX_RUNNING_REQUESTS), "--context-length", str(CONTEXT_LENGTH)),
        *("--max-total-tokens", str(MAX_RUNNING_REQUESTS * CONTEXT_LENGTH), "--mem-fraction-static", "0.3"),
        *attention,
        *speculation(arm, models),
        *more,
    ]


def speculation(arm: str, models: Path) -> list[str]:
    if arm == "baseline":
        return []
    width = ["--speculative-num-draft-tokens", str(DRAFT_STEPS + 1)]
    if arm == "ngram":
        return ["--speculative-algorithm", "NGRAM", *width]
    algorithm, draft = ("EAGLE3", "eagle3") if arm == "eagle" else ("STANDALONE", "standalone")
    return [
        *("--speculative-algorithm", algorithm, "--speculative-draft-model-path", str(models / draft)),
        *("--speculative-num-steps", str(DRAFT_STEPS), "--speculative-eagle-topk", "1", *width),
        *("--speculative-draft-attention-backend", "intel_amx"),
    ]


def ranks(more: list[str]) -> int:
    """How many scheduler processes the arguments for SGLang ask for."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name, alias in (("--tp-size", "--tensor-parallel-size"), ("--dp-size", "--data-parallel-size")):
        parser.add_argument(name, name.removesuffix("-size"), alias, type=int, default=1, dest=name[2:4])
    parser.add_argument("--pp-size", "--pp", "--pipeline-parallel-size", type=int, default=1, dest="pp")
    known, _ = parser.parse_known_args(more)
    return int(known.tp * known.dp * known.pp)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # SGLang's own arguments may start like these
    )
    parser.add_argument("--arm", choices=ARMS, default="eagle")
    parser.add_argument("--port", type=int, default=31000)
    parser.add_argument("--release", default=build.RELEASE, choices=(build.RELEASE, *build.OTHER_RELEASES))
    parser.add_argument("--print", action="store_true", dest="show", help="print the command line, do not run it")
    arguments, more = parser.parse_known_args()
    try:
        installation = build.ensure(arguments.release)
    except build.BuildError as error:
        sys.exit(f"embedded host: {error}")
    variables = environment(installation, ranks(more))
    argv = command(installation, arguments.arm, arguments.port, more)
    if arguments.show:
        print(shlex.join(["env", *(f"{name}={value}" for name, value in variables.items()), *argv]))
    else:
        os.execvpe(argv[0], argv, {**os.environ, **variables})


if __name__ == "__main__":
    main()
