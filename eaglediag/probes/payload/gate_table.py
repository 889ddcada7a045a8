"""The table of SGLang's gates: where each stands, in which releases, and which phases it settles.

`since` and `until` are the first and the last release whose source was read and has the gate there; an empty `until`
means that the newest one has it, and that a later release without it has moved it. Gates that no row names are found
by pattern (`gates.py`), so a release that is not listed still yields its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: The releases whose source every row was checked against.
CHECKED = (
    "0.5.2", "0.5.4.post3", "0.5.5.post3", "0.5.6.post2", "0.5.8.post1", "0.5.9", "0.5.10.post1", "0.5.12",
    "0.5.14", "0.5.16", "0.5.18", "0.5.20", "0.5.23",
)  # fmt: skip

TARGET = ("decode", "verify", "idle")
VERIFY = ("verify",)
EXTEND = ("extend",)
DRAFT = ("draft",)
DRAFT_EXTEND = ("draft_extend",)


@dataclass(frozen=True)
class Row:
    """One gate, or one caller that asks a gate.

    `phases` are those it is asked in. A caller with `settles` false only plans (attention metadata): another one asks
    again and decides. `condition_phases` are those that a test inside the caller settles, where they differ.
    """

    since: str
    until: str
    file: str
    qualname: str
    kind: str
    phases: tuple[str, ...]
    settles: bool = True
    condition_phases: tuple[str, ...] = ()


ALL = (*TARGET, *DRAFT, *DRAFT_EXTEND, *EXTEND)

_RUNNER = "model_executor/model_runner.py"
_CUDA = "model_executor/cuda_graph_runner.py"
_CPU = "model_executor/cpu_graph_runner.py"
_PIECEWISE = "model_executor/piecewise_cuda_graph_runner.py"
_BREAKABLE = "model_executor/breakable_cuda_graph_runner.py"
_DECODE = "model_executor/runner/decode_cuda_graph_runner.py"
_PREFILL = "model_executor/runner/prefill_cuda_graph_runner.py"
_EAGER = "model_executor/runner/eager_runner.py"
_FULL_BACKEND = "model_executor/runner_backend/full_cuda_graph_backend.py"
_BREAKABLE_BACKEND = "model_executor/runner_backend/breakable_cuda_graph_backend.py"
_PIECEWISE_BACKEND = "model_executor/runner_backend/tc_piecewise_cuda_graph_backend.py"
_DEEPSEEK = "layers/attention/deepseek_v4_backend.py"
_DRAFT = "speculative/eagle_draft_cuda_graph_runner.py"
_DRAFT_EXTEND = "speculative/eagle_draft_extend_cuda_graph_runner.py"
_WORKER = "speculative/eagle_worker.py"
_WORKER2 = "speculative/eagle_worker_v2.py"
_INFO2 = "speculative/eagle_info_v2.py"
_BASE = "speculative/base_spec_worker.py"
_COMMON = "speculative/eagle_worker_common.py"
_UTILS = "speculative/eagle_utils.py"
_MULTI = "speculative/multi_layer_eagle_draft_extend_cuda_graph_runner.py"
_MULTI_WORKER = "speculative/multi_layer_eagle_worker.py"
_MULTI_WORKER2 = "speculative/multi_layer_eagle_worker_v2.py"
_FROZEN = "speculative/frozen_kv_mtp_cuda_graph_runner.py"
_FROZEN_WORKER = "speculative/frozen_kv_mtp_worker.py"
_FROZEN_WORKER2 = "speculative/frozen_kv_mtp_worker_v2.py"
_DFLASH = "speculative/dflash_info.py"
_DSPARK = "speculative/dspark_components/dspark_draft.py"
_UNO = "speculative/uno_cuda_graph_runner.py"
_UNO_WORKER2 = "speculative/uno_worker_v2.py"


def _gate(since: str, until: str, file: str, qualname: str, phases: tuple[str, ...]) -> Row:
    return Row(since, until, file, qualname, "gate", phases)


def _caller(since: str, until: str, file: str, qualname: str, phases: tuple[str, ...], **more: Any) -> Row:
    return Row(since, until, file, qualname, "caller", phases, **more)


TABLE = (
    # Layout A: the target's graphs
    _gate("0.5.2", "0.5.12", _CUDA, "CudaGraphRunner.can_run", TARGET),
    _gate("0.5.2", "0.5.12", _CPU, "CPUGraphRunner.can_run", TARGET),
    _caller("0.5.2", "0.5.2", _RUNNER, "ModelRunner._forward_raw", (*TARGET, *EXTEND)),
    _caller("0.5.4.post3", "0.5.12", _RUNNER, "ModelRunner._forward_raw", TARGET),
    # Layout A: prefill
    _gate("0.5.4.post3", "0.5.12", _PIECEWISE, "PiecewiseCudaGraphRunner.can_run", EXTEND),
    _gate("0.5.12", "0.5.12", _BREAKABLE, "BreakableCudaGraphRunner.can_run", EXTEND),
    _caller("0.5.4.post3", "0.5.12", _RUNNER, "ModelRunner.forward_extend", EXTEND, condition_phases=EXTEND),
    # Layout A: draft and draft-extend
    _gate("0.5.2", "0.5.12", _DRAFT, "EAGLEDraftCudaGraphRunner.can_run", DRAFT),
    _gate("0.5.2", "0.5.12", _DRAFT_EXTEND, "EAGLEDraftExtendCudaGraphRunner.can_run", DRAFT_EXTEND),
    _caller("0.5.2", "0.5.12", _WORKER, "EAGLEWorker.draft", DRAFT),
    _caller("0.5.2", "0.5.12", _WORKER, "EAGLEWorker.forward_draft_extend_after_decode", DRAFT_EXTEND),
    _caller("0.5.4.post3", "0.5.12", _INFO2, "EagleDraftInputV2Mixin.prepare_for_v2_draft", DRAFT),
    _caller("0.5.4.post3", "0.5.12", _INFO2, "EagleVerifyInputV2Mixin.prepare_for_v2_verify", VERIFY, settles=False),
    _caller("0.5.5.post3", "0.5.12", _INFO2, "EagleDraftInputV2Mixin.prepare_for_extend_to_fill_draft_kvcache",
            DRAFT_EXTEND, settles=False),
    _gate("0.5.8.post1", "0.5.12", _MULTI, "MultiLayerEagleDraftExtendCudaGraphRunner.can_run", DRAFT_EXTEND),
    _gate("0.5.8.post1", "0.5.12", _MULTI, "MultiLayerEagleMultiStepDraftExtendCudaGraphRunner.can_run", DRAFT_EXTEND),
    _caller("0.5.8.post1", "0.5.12", _MULTI_WORKER, "MultiLayerEagleWorker.forward_draft_extend_after_decode",
            DRAFT_EXTEND),
    _gate("0.5.12", "0.5.12", _FROZEN, "FrozenKVMTPCudaGraphRunner.can_run", DRAFT),
    _caller("0.5.12", "0.5.12", _FROZEN_WORKER, "FrozenKVMTPWorker.draft", DRAFT),
    # Both layouts
    _caller("0.5.4.post3", "", _WORKER2, "EagleDraftWorker.draft", DRAFT),
    _caller("0.5.5.post3", "", _WORKER2, "EagleDraftWorker._draft_extend_for_decode", DRAFT_EXTEND),
    _caller("0.5.8.post1", "", _MULTI_WORKER2, "MultiLayerEagleDraftWorker.draft", DRAFT),
    _caller("0.5.8.post1", "", _MULTI_WORKER2, "MultiLayerEagleDraftWorker._draft_extend_for_decode", DRAFT_EXTEND),
    # Layout B: the target's graphs, and prefill
    _caller("0.5.14", "", _RUNNER, "ModelRunner._forward_raw", TARGET, condition_phases=EXTEND),
    _gate("0.5.14", "", _DECODE, "DecodeCudaGraphRunner.can_run_graph", TARGET),
    _gate("0.5.16", "", _DECODE, "DecodeCudaGraphRunner._can_run_ragged_verify_graph", VERIFY),
    _gate("0.5.14", "", _CPU, "CPUGraphRunner.can_run_graph", TARGET),
    _gate("0.5.14", "", _EAGER, "EagerRunner.can_run_graph", EXTEND),
    _gate("0.5.14", "", _PREFILL, "PrefillCudaGraphRunner.can_run_graph", EXTEND),
    _gate("0.5.18", "", _PREFILL, "PrefillCudaGraphRunner.can_replay_locally", EXTEND),
    _gate("0.5.23", "", _DEEPSEEK, "DeepseekV4AttnBackend.can_run_prefill_cuda_graph", EXTEND),
    _gate("0.5.14", "", _FULL_BACKEND, "FullCudaGraphBackend.can_run", ALL),
    _gate("0.5.14", "", _BREAKABLE_BACKEND, "BreakableCudaGraphBackend.can_run", ALL),
    _gate("0.5.14", "", _PIECEWISE_BACKEND, "TcPiecewiseCudaGraphBackend.can_run", EXTEND),
    # Layout B: draft, verify and draft-extend
    _gate("0.5.14", "", _DRAFT, "EAGLEDraftCudaGraphRunner.can_run_graph", DRAFT),
    _gate("0.5.14", "", _DRAFT_EXTEND, "EAGLEDraftExtendCudaGraphRunner.can_run_graph", DRAFT_EXTEND),
    _caller("0.5.14", "0.5.14", _BASE, "EagleDraftWorkerBase.prepare_for_draft", DRAFT),
    _caller("0.5.14", "0.5.14", _BASE, "EagleDraftWorkerBase.prepare_for_draft_extend", DRAFT_EXTEND, settles=False),
    _caller("0.5.16", "", _COMMON, "prepare_for_draft", DRAFT),
    _caller("0.5.16", "", _COMMON, "prepare_for_draft_extend", DRAFT_EXTEND, settles=False),
    _caller("0.5.14", "", _UTILS, "eagle_prepare_for_verify", VERIFY, settles=False),
    _caller("0.5.14", "", _DFLASH, "DFlashVerifyInput.prepare_for_verify", VERIFY, settles=False),
    _gate("0.5.14", "", _MULTI, "MultiLayerEagleDraftExtendCudaGraphRunner.can_run_graph", DRAFT_EXTEND),
    _gate("0.5.14", "", _MULTI, "MultiLayerEagleMultiStepDraftExtendCudaGraphRunner.can_run_graph", DRAFT_EXTEND),
    _gate("0.5.14", "", _FROZEN, "FrozenKVMTPCudaGraphRunner.can_run_graph", DRAFT),
    _caller("0.5.14", "", _FROZEN_WORKER2, "FrozenKVMTPDraftWorker.draft", DRAFT),
    _caller("0.5.18", "", _DSPARK, "DraftBlockProposer._run_forward", DRAFT, settles=False),
    _gate("0.5.20", "", _UNO, "UnoDecodeCudaGraphRunner.can_run_graph", (*TARGET, *DRAFT)),
    _caller("0.5.20", "", _UNO_WORKER2, "UnoWorkerV2._run_draft_block", DRAFT, settles=False),
)  # fmt: skip


def version(release: str) -> tuple[int, ...]:
    """`0.5.4.post3` -> (0, 5, 4, 3); what follows the numbers of a development version is left out."""
    numbers: list[int] = []
    for part in release.split("+")[0].split("."):
        digits = part.removeprefix("post")
        head = ""
        for character in digits:
            if not character.isdigit():
                break
            head += character
        if not head:
            break
        numbers.append(int(head))
        if head != digits:
            break
    return tuple(numbers)


def rows(release: str) -> tuple[Row, ...]:
    """The rows that hold for a release, by the numbers of its version."""
    wanted = version(release)
    return tuple(
        row for row in TABLE if version(row.since) <= wanted and (not row.until or wanted <= version(row.until))
    )
