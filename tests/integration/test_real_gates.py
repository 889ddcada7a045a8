"""The real gates of six releases name the condition that failed, with its values. One engine process a release."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.engine import engine_environment

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("real_gates.py")
PAYLOAD = Path(__file__).parents[2] / "eaglediag" / "probes" / "payload"
A = ("0.5.6.post2", "0.5.9", "0.5.12")
B = ("0.5.14", "0.5.20", "0.5.23")
RELEASES = (*A, *B)


@cache
def asked(release: str) -> dict[str, Any]:
    """What every scenario of real_gates.py gave in this release."""
    engine = engine_environment(release)
    environment = {**engine.environment(), "EMBEDDED_HOST_STUBS": "vllm"}
    command = [str(engine.python), str(SCRIPT), str(PAYLOAD)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout[done.stdout.index('{"allowed"') :])
    return told


def leaf(release: str, scenario: str) -> dict[str, Any]:
    """The last frame of the scenario's only denial."""
    denials = asked(release)[scenario]["denials"]
    assert len(denials) == 1, denials
    assert denials[0]["explained"], denials[0]["reason"]
    assert denials[0]["count"] == 1
    frame: dict[str, Any] = denials[0]["frames"][-1]
    assert frame["file"].startswith("sglang/srt/model_executor/")
    assert any(line.startswith(f"{frame['line']}: ") for line in frame["source"])
    return frame


def width(release: str) -> str:
    return "self.num_tokens_per_bs" if release in (*A, "0.5.14") else "self.captured_req_width"


def dp_flag(release: str) -> str:
    older = (*A, "0.5.14")
    return "forward_batch.can_run_dp_cuda_graph" if release in older else "forward_batch.can_run_decode_cuda_graph"


@pytest.mark.parametrize("release", RELEASES)
def test_a_batch_with_a_graph_is_allowed_without_a_word(release: str) -> None:
    assert asked(release)["allowed"] == {"answer": True, "denials": []}


@pytest.mark.parametrize("release", RELEASES)
def test_batch_too_large(release: str) -> None:
    for scenario, size in (("batch too large", 12), ("another batch too large", 13)):
        frame = leaf(release, scenario)
        assert (frame["text"], frame["shown"]) == ("cuda_graph_bs <= self.max_bs", f"{size} <= 4")
        assert frame["values"]["forward_batch.batch_size"] == str(size)


@pytest.mark.parametrize("release", RELEASES)
def test_global_tokens_too_many(release: str) -> None:
    frame = leaf(release, "global tokens too many")
    assert frame["shown"] == "12 <= 4"
    if release in (*A, "0.5.14"):
        assert frame["values"]["max(forward_batch.global_num_tokens_cpu)"] == "48"


@pytest.mark.parametrize("release", RELEASES)
def test_size_not_captured_with_padding_disabled(release: str) -> None:
    frame = leaf(release, "size not captured")
    if release in A:
        assert frame["text"] == "graph_key in self.graphs" if release != "0.5.6.post2" else frame["text"]
        assert frame["shown"] == "3 in dict with keys [1, 2, 4]"
    else:
        assert frame["text"] == "shape_key in self._graphs"
        assert frame["file"].endswith("full_cuda_graph_backend.py")
        assert "3" in frame["values"]["shape_key"]


@pytest.mark.parametrize("release", RELEASES)
def test_dp_sync(release: str) -> None:
    frame = leaf(release, "dp sync")
    assert (frame["text"], frame["shown"]) == (dp_flag(release), "False")


@pytest.mark.parametrize("release", RELEASES)
def test_encoder_length_zero_is_told_without_reading_the_tensor(release: str) -> None:
    frame = leaf(release, "encoder length zero")
    assert frame["text"] == "torch.all(forward_batch.encoder_lens > 0)"
    assert frame["shown"] == "Tensor(bool, (), cpu) is false"
    assert frame["values"]["forward_batch.encoder_lens"] == "Tensor(int64, (2,), cpu)"


@pytest.mark.parametrize("release", [*A, "0.5.14"])
def test_hidden_mode_mismatch(release: str) -> None:
    frame = leaf(release, "hidden mode")
    assert frame["values"]["requested_capture_hidden_mode"] == "CaptureHiddenMode.LAST"
    assert frame["values"]["self.capture_hidden_mode"] == "CaptureHiddenMode.FULL"


@pytest.mark.parametrize("release", RELEASES)
def test_two_batch_overlap(release: str) -> None:
    frame = leaf(release, "tbo")
    assert (frame["text"], frame["shown"]) == ("forward_batch.can_run_tbo", "False")


@pytest.mark.parametrize("release", RELEASES)
def test_ngram_width(release: str) -> None:
    frame = leaf(release, "ngram width")
    assert frame["shown"] == "8 == 6"
    assert frame["values"][width(release)] == "4"
    assert frame["values"]["forward_batch.batch_size"] == "2"


@pytest.mark.parametrize("release", ["0.5.20", "0.5.23"])
def test_width_asked_is_not_width_captured(release: str) -> None:
    frame = leaf(release, "width")
    assert frame["shown"].endswith("3 > 0 and 3 != 4")
    assert frame["values"]["spec_info.num_tokens_per_req"] == "3"
    assert frame["values"]["self.captured_req_width"] == "4"


@pytest.mark.parametrize("release", ["0.5.12", *B])
def test_replace_embeds(release: str) -> None:
    frame = leaf(release, "replace_embeds")
    assert frame["text"] == "forward_batch.replace_embeds is not None"
    assert frame["values"] == {"forward_batch.replace_embeds": "Tensor(float32, (2, 8), cpu)"}


@pytest.mark.parametrize("release", ["0.5.20", "0.5.23"])
def test_ragged_layout_leads_into_the_other_gate(release: str) -> None:
    frame = leaf(release, "ragged layout")
    assert frame["function"].endswith("_can_run_ragged_verify_graph")
    assert (frame["text"], frame["shown"]) == ("admission_tokens <= self.capture_num_tokens[-1]", "64 <= 16")
    assert frame["values"]["ragged_layout.graph_num_tokens"] == "64"
    bare = leaf(release, "ragged without layout")
    assert bare["shown"] == "'compact' and True"


@pytest.mark.parametrize(
    ("scenario", "releases"),
    [
        ("hidden mode", ("0.5.20", "0.5.23")),
        ("width", (*A, "0.5.14")),
        ("replace_embeds", ("0.5.6.post2", "0.5.9")),
        ("ragged layout", (*A, "0.5.14")),
    ],
)
def test_a_condition_that_the_release_does_not_have_denies_nothing(scenario: str, releases: tuple[str, ...]) -> None:
    for release in releases:
        assert asked(release)[scenario] == {"answer": True, "denials": []}


@pytest.mark.parametrize("release", RELEASES)
def test_the_caller_names_its_own_condition(release: str) -> None:
    runner = "self.graph_runner" if release in A else "self.decode_cuda_graph_runner"
    frame = leaf(release, "forward: no runner")
    assert (frame["text"], frame["shown"], frame["values"]) == (runner, "None", {runner: "None"})

    frame = leaf(release, "forward: mode is not graph")
    assert frame["text"] == "forward_batch.forward_mode.is_cuda_graph()"
    assert frame["shown"] == "ForwardMode.EXTEND.is_cuda_graph() is False"

    frame = leaf(release, "forward: on the CPU")
    assert frame["shown"] == "ForwardMode.TARGET_VERIFY.is_cpu_graph() is False"


@pytest.mark.parametrize("release", RELEASES)
def test_a_denial_that_a_caller_passes_on_is_one_denial(release: str) -> None:
    (denial,) = asked(release)["forward: batch too large"]["denials"]
    assert denial["gate"] == "ModelRunner._forward_raw"
    assert denial["frames"][0]["function"].endswith("_forward_raw")
    assert leaf(release, "forward: batch too large")["shown"] == "12 <= 4"
