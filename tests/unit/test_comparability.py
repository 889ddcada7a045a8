"""Every difference between the arms is named and graded."""

from __future__ import annotations

import pytest

from eaglediag.analysis.comparability import Grade, comparability
from eaglediag.analysis.comparability.settings import flags
from eaglediag.capture.model import Capture, GpuProcess
from tests.factories import gpu, pair


def grades(baseline: Capture, candidate: Capture) -> dict[str, Grade]:
    return {one.what: one.grade for one in comparability(baseline, candidate).differences}


def test_arms_that_differ_in_speculation_alone() -> None:
    baseline, eagle = pair()
    eagle.server.command += ["--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3"]
    eagle.server.environment["SGLANG_SIMULATE_ACC_LEN"] = "2.0"
    eagle.server.arguments["disable_overlap_schedule"] = True
    baseline.server.arguments["disable_overlap_schedule"] = False
    found = comparability(baseline, eagle)
    assert [(one.what, one.grade) for one in found.differences] == [("argument disable_overlap_schedule", "harmless")]
    assert found.grade == "harmless"
    assert found.unknown == ()


def test_the_founding_case_names_the_flag_that_one_arm_had() -> None:
    baseline, eagle = pair()
    baseline.server.command += ["--num-continuous-decode-steps", "4"]
    [found] = comparability(baseline, eagle).differences
    assert (found.what, found.baseline, found.candidate) == ("--num-continuous-decode-steps", "4", "not set")
    assert found.grade == "confounding"


def test_the_same_flag_seen_in_the_arguments_of_a_log() -> None:
    baseline, eagle = pair()
    for arm, steps in ((baseline, 4), (eagle, 1)):
        arm.server.command = []
        arm.server.arguments["num_continuous_decode_steps"] = steps
    assert grades(baseline, eagle) == {"argument num_continuous_decode_steps": "confounding"}


@pytest.mark.parametrize(
    ("path", "value", "grade"),
    [
        ("server.model.layers", 61, "not_comparable"),
        ("server.model.quantization", "fp8", "not_comparable"),
        ("server.model.path", "/models/copy", "harmless"),
        ("server.tp", 8, "not_comparable"),
        ("server.device", "cpu", "not_comparable"),
        ("server.release", "0.5.9", "confounding"),
        ("server.attention_backend", "fa3", "confounding"),
        ("server.versions", {"torch": "2.9.0", "cuda": "13.0", "nccl": "2.28.9"}, "confounding"),
        ("server.environment", {"NCCL_ALGO": "Ring"}, "confounding"),
        ("server.environment", {"LANG": "C"}, "harmless"),
        ("server.environment", {"CUDA_VISIBLE_DEVICES": "1"}, "harmless"),
        ("server.command", ["python", "--model-path", "/models/llama-8b", "--port", "31000"], "harmless"),
        ("workload.digest", "other", "confounding"),
        ("workload.temperature", 1.0, "confounding"),
        ("workload.max_new_tokens", 64, "confounding"),
        ("workload.endpoint", "chat", "confounding"),
        ("workload.ignore_eos", True, "confounding"),
    ],
)
def test_settings(path: str, value: object, grade: Grade) -> None:
    baseline, eagle = pair()
    *parents, name = path.split(".")
    target: object = eagle
    for parent in parents:
        target = getattr(target, parent)
    setattr(target, name, value)
    assert list(grades(baseline, eagle).values()) == [grade]


def test_what_one_capture_does_not_say_is_not_on_record() -> None:
    baseline, eagle = pair()
    eagle.server.commit, eagle.workload.endpoint = "bba2fc4", None
    found = comparability(baseline, eagle)
    assert found.unknown == ("sglang commit of baseline", "workload endpoint of eagle")
    assert found.differences == ()


@pytest.mark.parametrize(("mhz", "grade"), [(1970.0, None), (1920.0, "confounding"), (1500.0, "not_comparable")])
def test_clocks(mhz: float, grade: Grade | None) -> None:
    baseline, eagle = pair()
    eagle.hosts[0].gpus = [gpu(sm_mhz=mhz)]
    assert grades(baseline, eagle).get("GPU clock, median") == grade


def test_idle_clocks_do_not_count() -> None:
    baseline, eagle = pair()
    series = eagle.hosts[0].gpus[0].series
    series.t += [series.t[0] - 100 + i for i in range(50)]
    series.sm_mhz += [210.0] * 50
    assert grades(baseline, eagle) == {}


def test_a_moving_clock() -> None:
    baseline, eagle = pair()
    eagle.hosts[0].gpus[0].series.sm_mhz = [1980.0, 1700.0] * 10
    assert grades(baseline, eagle)["GPU clock, spread"] == "confounding"


@pytest.mark.parametrize(("reason", "grade"), [(0x4, "confounding"), (0x40, "not_comparable"), (0x1, None)])
def test_throttling_in_one_arm(reason: int, grade: Grade | None) -> None:
    baseline, eagle = pair()
    eagle.hosts[0].gpus = [gpu(reasons=reason)]
    assert list(grades(baseline, eagle).values()) == ([grade] if grade else [])


def test_hardware_and_company() -> None:
    baseline, eagle = pair()
    other = gpu()
    other.name, other.power_limit_w = "NVIDIA H100", 500.0
    other.processes = [GpuProcess(pid=7)]
    eagle.hosts[0].gpus = [other]
    assert grades(baseline, eagle) == {
        "GPU": "not_comparable",
        "GPU power limit": "confounding",
        "GPU company": "confounding",
    }


def test_another_gpu_of_the_same_kind() -> None:
    baseline, eagle = pair()
    baseline.hosts[0].gpus[0].uuid = "GPU-006b29f7-d1c5"
    assert "physical GPU" not in grades(baseline, eagle)
    eagle.hosts[0].gpus[0].uuid = "GPU-8b7fe9f7-0aa1"
    [one] = comparability(baseline, eagle).differences
    assert (one.what, one.baseline, one.candidate) == ("physical GPU", "GPU-006b29f7", "GPU-8b7fe9f7")
    assert one.grade == "harmless"


def test_hours_apart_without_clocks() -> None:
    baseline, eagle = pair()
    for arm in (baseline, eagle):
        arm.hosts = []
    eagle.created += 7200
    found = comparability(baseline, eagle)
    assert [(one.what, one.candidate) for one in found.differences] == [("time", "2.0 h later")]
    assert found.unknown == ("GPUs and their clocks",)


def test_flags() -> None:
    command = ["python", "-m", "sglang.launch_server", "--tp", "8", "--disable-radix-cache", "--a=b", "--bs", "1", "2"]
    assert flags(command) == {"tp": "8", "disable_radix_cache": "on", "a": "b", "bs": "1 2"}


def test_nested_settings_are_named_by_their_leaf() -> None:
    baseline, eagle = pair()
    for arm, largest in ((baseline, 8), (eagle, 16)):
        arm.server.arguments["cuda_graph_config"] = {"decode": {"max_bs": largest, "bs": [1] * 100}}
        arm.server.arguments["schedule"] = {"policy": "lpm" if largest == 8 else "x" * 200}
    found = {one.what: one for one in comparability(baseline, eagle).differences}
    assert set(found) == {"argument cuda_graph_config.decode.max_bs", "argument schedule.policy"}
    assert len(found["argument schedule.policy"].candidate) < 100


def test_an_object_that_prints_its_address_is_no_difference() -> None:
    baseline, eagle = pair()
    for one, address in ((baseline, "0x7fb4"), (eagle, "0x7f20")):
        one.server.arguments["model_config"] = f"<sglang.srt.configs.model_config.ModelConfig object at {address}>"
    assert "argument model_config" not in {found.what for found in comparability(baseline, eagle).differences}
