"""Where steps and phases can be observed in an SGLang release: the one table, and how it is resolved in a source tree.

Everything is found in the source by name, without importing: preflight can say what resolves before a server is
started, and the agent knows which modules to wait for. A rule matches a class's method in a file; a release in which
a required rule matches nothing is reported by the rule's name.
"""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass
from fnmatch import fnmatch

#: What each worker's own methods are, in every release from 0.5.2 on. One line a method name; `owner` narrows by class.
#: role: step = one scheduler step's forward; phase = a part of it; forward = one pass of one model runner;
#: replay = a graph was used; accept = results are on the CPU; scheduler = the process is a scheduler rank;
#: collective = a backend's own function that launches one; capture = one graph is captured, its size the 2nd argument.


@dataclass(frozen=True)
class Rule:
    """Methods of one role: files (glob, below sglang/srt), class (glob; "" for plain functions) and names."""

    role: str
    files: str
    owner: str
    methods: tuple[str, ...]
    phase: str = ""
    required: bool = False
    backend: str = ""


COMMUNICATORS = "distributed/device_communicators/"

RULES = (
    Rule("scheduler", "managers/scheduler.py", "Scheduler", ("__init__",), required=True),
    Rule("step", "managers/tp_worker.py", "TpModelWorker", ("forward_batch_generation",), "decode", required=True),
    Rule(
        "step",
        "speculative/*worker*.py",
        "*",
        ("forward_batch_generation", "forward_batch_speculative_generation"),
        "cycle",
        required=True,
    ),
    Rule(
        "phase", "speculative/*worker*.py", "*", ("draft", "_prepare_for_speculative_decoding"), "draft", required=True
    ),
    Rule("phase", "speculative/*worker*.py", "*", ("verify",), "verify", required=True),
    Rule(
        "phase",
        "speculative/*worker*.py",
        "*",
        ("_draft_extend_for_decode", "forward_draft_extend_after_decode"),
        "draft_extend",
        required=True,
    ),
    Rule("forward", "model_executor/model_runner.py", "ModelRunner", ("forward",), required=True),
    Rule("replay", "speculative/*graph_runner.py", "*", ("replay", "execute"), required=True),
    Rule(
        "accept", "managers/scheduler_output_processor_mixin.py", "*", ("process_batch_result_decode",), required=False
    ),
    Rule(
        "accept",
        "managers/scheduler_components/batch_result_processor.py",
        "*",
        ("process_batch_result_decode",),
        required=False,
    ),
    # The target's runner says itself which phase it captures; prefill's graphs are counted in tokens and left out.
    Rule("capture", "model_executor/cuda_graph_runner.py", "CudaGraphRunner", ("capture_one_batch_size",)),
    Rule("capture", "model_executor/runner/decode_cuda_graph_runner.py", "*", ("capture_one_shape",)),
    *(
        Rule("capture", f"speculative/{files}", "*", ("capture_one_batch_size", "capture_one_shape"), phase)
        for files, phase in (
            ("eagle_draft_cuda_graph_runner.py", "draft"),
            ("frozen_kv_mtp_cuda_graph_runner.py", "draft"),
            ("uno_cuda_graph_runner.py", "draft"),
            ("*draft_extend_cuda_graph_runner.py", "draft_extend"),
        )
    ),
    Rule(
        "collective",
        COMMUNICATORS + "pynccl.py",
        "PyNcclCommunicator",
        (
            *("all_reduce", "outplace_all_reduce", "all_gather", "cp_all_gather_into_tensor", "reduce_scatter"),
            *("all_to_all_single", "broadcast", "send", "recv"),
        ),
        backend="nccl (pynccl)",
    ),
    *(
        Rule("collective", COMMUNICATORS + files, owner, methods, backend=backend)
        for files, owner, methods, backend in (
            ("custom_all_reduce.py", "CustomAllreduce", ("custom_all_reduce", "deterministic_all_reduce"), "custom"),
            ("custom_all_reduce_v2.py", "CustomAllReduceV2", ("custom_all_reduce",), "custom"),
            ("quick_all_reduce.py", "QuickAllReduce", ("quick_all_reduce",), "quick"),
            ("torch_symm_mem.py", "TorchSymmMemCommunicator", ("all_reduce",), "symmetric memory (torch)"),
            ("triton_symm_mem_ag.py", "", ("all_gather_inner",), "symmetric memory (triton)"),
            ("pymscclpp.py", "PyMscclppCommunicator", ("all_reduce",), "mscclpp"),
            ("pcie_ipc_ar.py", "PcieIpcCommunicator", ("pcie_ipc_all_reduce",), "pcie ipc"),
            ("vocab_gather.py", "NVLinkVocabGather", ("_push_stacked", "_pull"), "nvlink"),
        )
    ),
    Rule(
        "collective",
        "distributed/parallel_state.py",
        "GroupCoordinator",
        ("_all_reduce_in_place", "_all_reduce_out_place", "_all_gather_into_tensor", "_reduce_scatter_tensor"),
        backend="other",
    ),
)

#: Abstract bases: their bodies only say `pass`.
ABSTRACT = ("BaseDraftWorker", "BaseSpecWorker", "EagleDraftWorkerBase", "BaseTpWorker")


@dataclass(frozen=True)
class ProbePoint:
    """A method or function to hook: where it is, and what it is."""

    role: str
    phase: str
    module: str
    qualname: str
    file: str
    line: int
    backend: str = ""

    @property
    def target(self) -> str:
        """How messages name it: `eagle_worker_v2:EAGLEWorkerV2.verify`."""
        return self.module.removeprefix("sglang.srt.") + ":" + self.qualname


def layout_of(package: str) -> str:
    """The layout of the release whose `sglang` package folder is given: A to 0.5.12, B from 0.5.14."""
    return "B" if os.path.isdir(os.path.join(package, "srt", "model_executor", "runner")) else "A"


def resolve(package: str) -> tuple[list[ProbePoint], list[tuple[str, str]]]:
    """The probe points of the release in folder `package`, and (what, why) for each required rule that found none."""
    points: list[ProbePoint] = []
    missing: list[tuple[str, str]] = []
    parsed: dict[str, ast.Module] = {}
    root = os.path.join(package, "srt")
    for rule in RULES:
        found = list(_matches(rule, root, parsed))
        points += found
        if rule.required and not found:
            missing.append(
                (
                    f"{rule.role} {rule.phase} ({rule.files}: {', '.join(rule.methods)})".replace("  ", " "),
                    "not in this release's source",
                )
            )
    if not any(point.role == "accept" for point in points):
        missing.append(("accept (process_batch_result_decode)", "not in this release's source"))
    return points, missing


def _matches(rule: Rule, root: str, parsed: dict[str, ast.Module]) -> list[ProbePoint]:
    folder, pattern = os.path.split(rule.files)
    found = []
    directory = os.path.join(root, folder)
    names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    for name in names:
        if not (name.endswith(".py") and fnmatch(name, pattern)):
            continue
        path = os.path.join(directory, name)
        if path not in parsed:
            with open(path, encoding="utf-8") as stream:
                parsed[path] = ast.parse(stream.read(), path)
        module = ".".join(["sglang", "srt", *folder.split("/"), name[:-3]])
        body = parsed[path].body
        classes = [item for item in body if isinstance(item, ast.ClassDef) and item.name not in ABSTRACT]
        places = [(f"{one.name}.", one.body) for one in classes if fnmatch(one.name, rule.owner)]
        for prefix, statements in places if rule.owner else [("", body)]:
            for item in statements:
                if isinstance(item, ast.FunctionDef) and item.name in rule.methods:
                    name = prefix + item.name
                    found.append(ProbePoint(rule.role, rule.phase, module, name, path, item.lineno, rule.backend))
    return found
