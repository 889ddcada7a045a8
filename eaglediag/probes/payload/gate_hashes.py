"""The source of every gate in the checked releases, as the first twelve digits of its hash, oldest first.

A gate whose hash is not here has changed since: it is parsed and traced all the same, and said to be unknown.
"""

#: File, then function.
HASHES: dict[str, dict[str, tuple[str, ...]]] = {
    "hardware_backend/npu/graph_runner/eagle_draft_npu_graph_runner.py": {
        "EAGLEDraftNpuGraphRunner.can_run_graph": (
            "f8a689e0ea2e",
            "d197ac697415",
        ),
    },
    "hardware_backend/npu/graph_runner/npu_cudagraph_backend.py": {
        "NPUCudaGraphBackend.can_run": ("142564f1633f",),
    },
    "hardware_backend/xpu/graph_runner/xpu_full_graph_backend.py": {
        "FullXPUGraphBackend.can_run": ("142564f1633f",),
    },
    "layers/attention/deepseek_v4_backend.py": {
        "DeepseekV4AttnBackend.can_run_prefill_cuda_graph": ("bb3ba2d0dfba",),
    },
    "model_executor/breakable_cuda_graph_runner.py": {
        "BreakableCudaGraphRunner.can_run": ("13e338ae2569",),
    },
    "model_executor/cpu_graph_runner.py": {
        "CPUGraphRunner.can_run": (
            "956ef5e3def6",
            "690ba06459b1",
        ),
        "CPUGraphRunner.can_run_graph": (
            "857be0b7fee5",
            "7c6d9003cc19",
        ),
    },
    "model_executor/cuda_graph_runner.py": {
        "CudaGraphRunner.can_run": (
            "a1f9f18adbfd",
            "1eac578a232e",
            "39c226ea1e9b",
            "812b8fdde316",
            "11426d54665c",
        ),
    },
    "model_executor/model_runner.py": {
        "ModelRunner._forward_raw": (
            "676d3d84fdeb",
            "165b2099bb7b",
            "629e61b0ddd7",
            "70e0a20214c4",
            "68882992a6bd",
            "5a23f542ee09",
            "bb4fa8a8b97b",
            "5c2e2990b89f",
            "21077279ae32",
            "4bb06c08c078",
            "17aa9ae91f09",
            "ff06ed3b534c",
        ),
        "ModelRunner.can_run_piecewise_cuda_graph": (
            "54028b403aea",
            "9ed56d3669d1",
            "96c71feda953",
        ),
        "ModelRunner.forward_extend": (
            "13b2e713fa1f",
            "973d0949d079",
            "8145a9f6da9e",
            "aa6318218682",
            "be4fffc14d2f",
        ),
    },
    "model_executor/piecewise_cuda_graph_runner.py": {
        "PiecewiseCudaGraphRunner.can_run": (
            "7d6db7dcc384",
            "4c8f8630c058",
            "bb1c9fcc19f8",
        ),
    },
    "model_executor/runner/decode_cuda_graph_runner.py": {
        "DecodeCudaGraphRunner._can_run_ragged_verify_graph": (
            "1f114528b203",
            "ed16842c6747",
            "81016507b223",
        ),
        "DecodeCudaGraphRunner.can_run_graph": (
            "bc39cdf80c68",
            "4fe725006540",
            "0d3ae5aef1d1",
            "bf271e2fbdc5",
            "16bb60c530fd",
        ),
    },
    "model_executor/runner/eager_runner.py": {
        "EagerRunner.can_run_graph": ("fbc7ac069978",),
    },
    "model_executor/runner/prefill_cuda_graph_runner.py": {
        "PrefillCudaGraphRunner.can_replay_locally": (
            "dd55b813392c",
            "3f9791d1562b",
            "f0e911a0f261",
        ),
        "PrefillCudaGraphRunner.can_run_graph": (
            "a80fa77cd11a",
            "32bed848e48f",
            "988984dea32b",
            "90cf054a4548",
            "1f46fc0f2801",
        ),
    },
    "model_executor/runner_backend/breakable_cuda_graph_backend.py": {
        "BreakableCudaGraphBackend.can_run": ("142564f1633f",),
    },
    "model_executor/runner_backend/full_cuda_graph_backend.py": {
        "FullCudaGraphBackend.can_run": ("142564f1633f",),
    },
    "model_executor/runner_backend/tc_piecewise_cuda_graph_backend.py": {
        "TcPiecewiseCudaGraphBackend.can_run": ("ff20968dbdf8",),
    },
    "speculative/base_spec_worker.py": {
        "EagleDraftWorkerBase.prepare_for_draft": ("2957765067ca",),
        "EagleDraftWorkerBase.prepare_for_draft_extend": ("79844eb63c7b",),
    },
    "speculative/dflash_info.py": {
        "DFlashVerifyInput.prepare_for_verify": (
            "3bcb9f071246",
            "270a20ee29b5",
            "993824b8ee17",
            "cc08460a4244",
        ),
    },
    "speculative/dspark_components/dspark_draft.py": {
        "DraftBlockProposer._run_forward": (
            "ece342c3deb1",
            "3e81f4181c3c",
            "266a1e3cdec0",
        ),
    },
    "speculative/eagle_draft_cuda_graph_runner.py": {
        "EAGLEDraftCudaGraphRunner.can_run": (
            "4aea531b1c13",
            "55d91bf3436b",
        ),
        "EAGLEDraftCudaGraphRunner.can_run_graph": (
            "89698bd395b0",
            "3a10e3eb2390",
            "082e9456386f",
            "73efdfdb9dd7",
        ),
    },
    "speculative/eagle_draft_extend_cuda_graph_runner.py": {
        "EAGLEDraftExtendCudaGraphRunner.can_run": (
            "e7901e0f3bf1",
            "cd3280ff6d95",
        ),
        "EAGLEDraftExtendCudaGraphRunner.can_run_graph": (
            "129498366ebc",
            "578a218606eb",
            "07e7aea0816c",
        ),
    },
    "speculative/eagle_info_v2.py": {
        "EagleDraftInputV2Mixin.prepare_for_extend_to_fill_draft_kvcache": (
            "fbca45ae8030",
            "23325c7dfaf6",
        ),
        "EagleDraftInputV2Mixin.prepare_for_v2_draft": (
            "89d3f057bd10",
            "6d7b95ede60e",
            "810c7f0cebef",
            "d9c4254480ca",
        ),
        "EagleVerifyInputV2Mixin.prepare_for_v2_verify": (
            "dcbaf0643f5e",
            "47e557a9372e",
            "4706f6996d3f",
            "1c125deef34e",
        ),
    },
    "speculative/eagle_utils.py": {
        "eagle_prepare_for_verify": (
            "c4f7b8f7adc3",
            "f8419908a1cd",
            "8839382705db",
            "8c5ff325eb71",
            "83adbff6ac39",
        ),
    },
    "speculative/eagle_worker.py": {
        "EAGLEWorker.draft": (
            "5fdf224d8028",
            "4a38e679587c",
            "c19a2fbe3d2b",
            "73c93af8a3e3",
        ),
        "EAGLEWorker.forward_draft_extend_after_decode": (
            "f2a35518740e",
            "c519d55b97dc",
            "083f8dd92e39",
            "5ca4816868e6",
            "13c535b06913",
            "6b77907170d6",
        ),
    },
    "speculative/eagle_worker_common.py": {
        "prepare_for_draft": (
            "9e335e38440d",
            "9a51676e5fee",
            "371ccbda9e72",
        ),
        "prepare_for_draft_extend": (
            "21a87fda743c",
            "995c6f0ae81d",
            "e85c69706ec0",
        ),
    },
    "speculative/eagle_worker_v2.py": {
        "EagleDraftWorker._draft_extend_for_decode": (
            "ec28268f16ac",
            "5be49e13cb5a",
            "859579f5c852",
            "773a4f499b4e",
            "a36624fcceea",
            "af29c6c4dede",
            "49d987242dde",
            "a8da5c866159",
            "7d742bf2dd4e",
            "43c8b33359a4",
        ),
        "EagleDraftWorker.draft": (
            "d5c05c08a411",
            "9f17044ab6ef",
            "e50973e214bf",
            "97c42dabcbc3",
            "745799757c48",
            "68a8de6320e6",
            "d7808b10e893",
        ),
    },
    "speculative/frozen_kv_mtp_cuda_graph_runner.py": {
        "FrozenKVMTPCudaGraphRunner.can_run": ("cbbe4f554a04",),
        "FrozenKVMTPCudaGraphRunner.can_run_graph": (
            "74289d09c3a3",
            "0e50570f2c08",
            "9a8ff783e998",
        ),
    },
    "speculative/frozen_kv_mtp_worker.py": {
        "FrozenKVMTPWorker.draft": ("a531685e8b6d",),
    },
    "speculative/frozen_kv_mtp_worker_v2.py": {
        "FrozenKVMTPDraftWorker.draft": (
            "d44d6f1eb967",
            "5ce5c6fbed50",
            "c09b30eb9c12",
        ),
    },
    "speculative/multi_layer_eagle_draft_extend_cuda_graph_runner.py": {
        "MultiLayerEagleDraftExtendCudaGraphRunner.can_run": ("e7901e0f3bf1",),
        "MultiLayerEagleDraftExtendCudaGraphRunner.can_run_graph": (
            "3dd1b20597bf",
            "578a218606eb",
            "07e7aea0816c",
        ),
        "MultiLayerEagleMultiStepDraftExtendCudaGraphRunner.can_run": ("ddc503fb3b4a",),
        "MultiLayerEagleMultiStepDraftExtendCudaGraphRunner.can_run_graph": ("57b1de4f36a7",),
    },
    "speculative/multi_layer_eagle_worker.py": {
        "MultiLayerEagleWorker.forward_draft_extend_after_decode": (
            "6d741d58b361",
            "cf846b40cc49",
            "e33269c9ffd4",
            "8cf8f4098d83",
        ),
    },
    "speculative/multi_layer_eagle_worker_v2.py": {
        "MultiLayerEagleDraftWorker._draft_extend_for_decode": (
            "4186db9fb5b0",
            "44edee63d9ae",
            "ed7c444df3d9",
            "a7acf3ef2854",
            "a595893d0510",
            "42dd90c0eda4",
            "14e6eeaea34b",
            "f7837bdbb82e",
            "de5402ebe9c7",
        ),
        "MultiLayerEagleDraftWorker.draft": (
            "f46d83cd11ca",
            "5237d1484070",
            "632b2f057b76",
            "90689a1e2517",
            "6cba0e6e508c",
            "ca31d6538d5b",
        ),
    },
    "speculative/uno_cuda_graph_runner.py": {
        "UnoDecodeCudaGraphRunner.can_run_graph": ("5855c4023587",),
    },
    "speculative/uno_worker_v2.py": {
        "UnoWorkerV2._run_draft_block": (
            "6ec52d210d20",
            "6c62f631f4a4",
        ),
    },
}
