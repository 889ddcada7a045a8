"""Advice: the value that would have allowed what was seen, its cost where it is on record, nothing for the unknown."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pydantic import JsonValue

from eaglediag.analysis.advice import Advice, advise, room_for
from eaglediag.analysis.denials import denial_line, refusals
from eaglediag.analysis.sentences import condition
from eaglediag.capture.model import (
    CapturedGraphs,
    Denial,
    Frame,
    GpuProcess,
    Phase,
    PhaseStats,
    RankWindow,
    Server,
    Speculation,
)
from tests.factories import capture, cycle, decode, denial

RUNNER = "sglang/srt/model_executor/runner/decode_cuda_graph_runner.py"


def refused(
    text: str,
    shown: str,
    values: Mapping[str, str] | None = None,
    phase: Phase = "verify",
    file: str = RUNNER,
    through: tuple[str, int] | None = None,
) -> Denial:
    """A denial by one leaf; `through` is the local it went through, and the line of the answer."""
    leaf = Frame(
        file=file, line=420, function="Runner.can_run_graph", text=text, shown=shown, values=dict(values or {})
    )
    frames = [leaf]
    if through is not None:
        name, line = through
        answer = f"{name} and is_encoder_lens_supported and is_tbo_supported"
        frames.insert(0, leaf.model_copy(update={"line": line, "text": answer, "shown": "False and ..."}))
        frames[0].values = {name: "False"}
    return Denial(phase=phase, batch_size=12, gate="Runner.can_run_graph", frames=frames, counts={0: 504})


def server(release: str = "0.5.9", **arguments: JsonValue) -> Server:
    return Server(
        release=release,
        device="cuda",
        arguments=arguments,
        speculation=Speculation(algorithm="EAGLE3", num_steps=2, num_draft_tokens=3),
    )


def advice(found: Denial, on: Server | None = None) -> Advice:
    given = advise(found, on or server())
    assert given is not None
    return given


def too_large(batch: int, most: int, through: tuple[str, int] | None = None) -> Denial:
    return refused("cuda_graph_bs <= self.max_bs", f"{batch} <= {most}", through=through)


# -- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "batch", "flag"),
    [
        ("0.5.2", 12, "--cuda-graph-max-bs 12"),
        ("0.5.9", 12, "--cuda-graph-max-bs 12"),
        ("0.5.9", 13, "--cuda-graph-max-bs 14"),
        ("0.5.9", 33, "--cuda-graph-max-bs 40"),
        ("0.5.12", 33, "--cuda-graph-max-bs 33"),
        ("0.5.14", 12, "--cuda-graph-max-bs-decode 12"),
        ("0.5.23", 13, "--cuda-graph-max-bs-decode 13"),
    ],
)
def test_a_batch_too_large_asks_for_the_next_size_that_the_release_captures(
    release: str, batch: int, flag: str
) -> None:
    given = advice(too_large(batch, 8), server(release))
    assert (given.code, given.kind, given.flag) == ("batch_too_large", "add", flag)
    assert given.sentence.startswith(f"`{flag}` would allow it")
    on_grid = flag.endswith(f" {batch}")
    assert on_grid or f"{batch} is not a size that this release captures" in given.sentence


def test_the_grid_without_speculation_is_another() -> None:
    plain = Server(release="0.5.9", device="cuda")
    found = refused("cuda_graph_bs <= self.max_bs", "9 <= 8", phase="decode")
    assert advice(found, plain).flag == "--cuda-graph-max-bs 12"


def test_the_cost_is_the_mean_of_what_was_captured_in_every_phase() -> None:
    on = server("0.5.14")
    on.captured["verify"] = CapturedGraphs(sizes=[1, 2, 3, 4, 5, 6, 7, 8], memory_gb=0.24)
    on.captured["draft"] = CapturedGraphs(sizes=[1, 2, 3, 4, 5, 6, 7, 8], memory_gb=0.08)
    on.captured["draft_extend"] = CapturedGraphs(sizes=[1, 2, 3, 4, 5, 6, 7, 8])
    cost = advice(too_large(12, 8), on).cost
    assert cost == (
        "about 0.08 GB more for 2 more sizes, at the mean of those captured, counted for the whole GPU: "
        "8 of verify 0.24 GB, 8 of draft 0.08 GB"
    )
    assert advice(too_large(12, 8)).cost == ""


@pytest.mark.parametrize(
    ("seen", "repeat", "cost"),
    [
        ([], 0, "at the mean of those captured, counted for the whole GPU: 4 of decode 68.54 GB"),
        ([(1000, True)], 0, "at the mean of those captured: 4 of decode 68.54 GB"),
        ([(1000, True), (1459, True)], 0, "what it takes is not known"),
        ([(1000, True), (1459, False)], 1, "what it takes is not known"),
        ([(1000, True), (1459, True)], 1, "at the mean of those captured: 4 of decode 68.54 GB"),  # started twice
    ],
)
def test_memory_is_the_servers_own_only_where_nobody_else_was_on_the_gpu(
    seen: list[tuple[int, bool]], repeat: int, cost: str
) -> None:
    """Several servers that start at once on one GPU all count each other's memory as their graphs'."""
    baseline = capture("baseline", {12: decode(12, graph={"decode": False})}, denials=[denial("decode", 12)])
    baseline.server.captured["decode"] = CapturedGraphs(sizes=[1, 2, 4, 8], memory_gb=68.54)
    baseline.hosts[0].gpus[0].processes = [GpuProcess(pid=pid, ours=ours) for pid, ours in seen]
    baseline.windows[0].repeat = repeat
    [found] = refusals(baseline)
    assert found.advice is not None
    assert cost in found.advice.cost
    assert ("17." in found.advice.cost) == ("mean" in cost)


def test_a_list_of_sizes_is_completed() -> None:
    on = server()
    on.command = ["python", "-m", "sglang.launch_server", "--cuda-graph-bs", "1", "4"]
    on.captured["verify"] = CapturedGraphs(sizes=[1, 4])
    assert advice(too_large(12, 4), on).flag == "--cuda-graph-bs 1 4 12"


@pytest.mark.parametrize(
    "shown",
    [
        "3 in dict with keys [1, 2, 4]",
        "ShapeKey(size=3) in dict with keys [ShapeKey(size=1), ShapeKey(size=2), ShapeKey(size=4)]",
        "'0_3' in dict with keys ['0_1', '0_2', '0_4']",
    ],
)
def test_a_size_between_those_captured_would_be_padded(shown: str) -> None:
    given = advice(refused("graph_key in self.graphs", shown), server(disable_cuda_graph_padding=True))
    assert (given.kind, given.flag) == ("remove", "--disable-cuda-graph-padding")
    assert given.sentence == (
        "without `--disable-cuda-graph-padding` it would be allowed "
        "(the batch would be padded from 3 to 4, which is captured)"
    )


def test_a_size_beyond_those_captured_without_padding() -> None:
    found = refused("shape_key in self._graphs", "ShapeKey(size=9) in dict with keys [ShapeKey(size=1)]")
    assert advice(found, server("0.5.20", disable_cuda_graph_padding=True)).flag == "--cuda-graph-max-bs-decode 9"


def test_another_variant_of_a_captured_size_is_structural() -> None:
    shown = "ShapeKey(size=2, variant_label='lora') in dict with keys [ShapeKey(size=1), ShapeKey(size=2)]"
    assert advice(refused("shape_key in self._graphs", shown)).kind == "structural"


def test_cpu_graphs_have_their_own_option() -> None:
    found = refused(
        "forward_batch.batch_size in self.graphs", "3 in dict with keys [1, 2]", file="x/cpu_graph_runner.py"
    )
    assert advice(found).flag == "--torch-compile-max-bs 3"


@pytest.mark.parametrize(
    ("release", "shown", "flag"),
    [
        ("0.5.9", "4100 <= 4096", "--piecewise-cuda-graph-max-tokens 4608"),
        ("0.5.9", "300 <= 256", "--piecewise-cuda-graph-max-tokens 320"),
        ("0.5.23", "1280 <= 512", "--cuda-graph-max-bs-prefill 1280"),
    ],
)
def test_prefill_sizes_count_tokens(release: str, shown: str, flag: str) -> None:
    found = refused("num_tokens <= self.max_num_tokens", shown, phase="extend")
    assert advice(found, server(release)).flag == flag


def test_room_for_a_batch_that_only_ran_beyond_the_largest() -> None:
    assert room_for(33, 32, "verify", server("0.5.9")).flag == "--cuda-graph-max-bs 40"


# -- everything else --------------------------------------------------------------------------------------------------


def hidden(asked: str, captured: str) -> Denial:
    name = "requested_capture_hidden_mode"
    values = {name: f"CaptureHiddenMode.{asked}", "self.capture_hidden_mode": f"CaptureHiddenMode.{captured}"}
    text = f"{name} == CaptureHiddenMode.NULL or {name} == self.capture_hidden_mode"
    return refused(text, " == ".join(values.values()), values)


WIDTH = "spec_info is not None and (spec_info.num_tokens_per_req != self.captured_req_width)"


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (
            refused("forward_batch.forward_mode.is_cuda_graph()", "ForwardMode.EXTEND.is_cuda_graph() is False",
                    {"forward_batch.forward_mode": "ForwardMode.EXTEND"}),
            "EXTEND is not a graph mode",
        ),
        (
            refused("forward_batch.forward_mode.is_cpu_graph()", "ForwardMode.TARGET_VERIFY.is_cpu_graph() is False",
                    {"forward_batch.forward_mode": "ForwardMode.TARGET_VERIFY"}),
            "on a CPU only DECODE is a graph mode, not TARGET_VERIFY",
        ),
        (refused("forward_batch.can_run_dp_cuda_graph", "False"), "another data-parallel rank was not decoding"),
        (refused("torch.all(forward_batch.encoder_lens > 0)", "Tensor(bool, (), cuda:0) is false"), "no encoder input"),
        (hidden("LAST", "FULL"), "hidden states were asked as LAST and captured as FULL"),
        (refused("forward_batch.batch_size * self.num_tokens_per_bs == forward_batch.input_ids.numel()", "8 == 6"),
         "6 tokens instead of 8"),
        (refused(WIDTH, "3 != 4", {"spec_info.num_tokens_per_req": "3", "self.captured_req_width": "4"}),
         "3 tokens a request were asked, and the graphs were captured with 4"),
        (refused("forward_batch.replace_embeds is not None", "Tensor(float32, (2, 8), cuda:0) is not None"),
         "requests with embeddings of their own"),
    ],
)  # fmt: skip
def test_structural(found: Denial, why: str) -> None:
    given = advice(found)
    assert given.kind == "structural"
    assert given.flag == ""
    assert given.sentence.startswith("structural, no flag changes this: ")
    assert why in given.sentence


def test_two_batch_overlap_would_have_to_go() -> None:
    assert advice(refused("forward_batch.can_run_tbo", "False")).flag == "--enable-two-batch-overlap"


def test_hidden_states_that_a_request_asks_for() -> None:
    assert advice(hidden("FULL", "NULL"), Server(release="0.5.9")).kind == "structural"  # verify speculates
    plain = hidden("FULL", "NULL").model_copy(update={"phase": "decode"})
    assert advice(plain, Server(release="0.5.9")).flag == "--enable-return-hidden-states"


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        ({"disable_cuda_graph": True}, "--disable-cuda-graph"),
        ({"disable_decode_cuda_graph": True}, "--disable-decode-cuda-graph"),
        ({"cuda_graph_config": {"decode": {"backend": "disabled"}}}, "--cuda-graph-backend-decode disabled"),
    ],
)
def test_no_runner_because_it_was_switched_off(arguments: dict[str, JsonValue], flag: str) -> None:
    given = advice(refused("self.decode_cuda_graph_runner", "None"), server("0.5.20", **arguments))
    assert (given.kind, given.flag) == ("remove", flag)


def test_no_runner_on_a_cpu() -> None:
    on = server("0.5.9", enable_torch_compile=False)
    on.device = "cpu"
    assert advice(refused("self.graph_runner", "None", phase="decode"), on).flag == "--enable-torch-compile"
    assert advice(refused("cuda_graph_runner", "None", phase="draft"), on).kind == "structural"


@pytest.mark.parametrize(
    "found",
    [
        refused("self.graph_runner", "None"),  # nothing on record switched it off
        refused("self.some_new_thing(forward_batch)", "False"),
        refused("cuda_graph_bs <= self.max_bs", "cuda_graph_bs <= self.max_bs"),  # values that do not tell
        Denial(phase="verify", gate="Runner.can_run_graph", explained=False, reason="decided elsewhere"),
    ],
)
def test_what_is_not_known_gets_no_advice(found: Denial) -> None:
    assert advise(found, server()) is None


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 12])
def test_numbers_that_are_no_sizes(number: str) -> None:
    assert advise(refused("cuda_graph_bs <= self.max_bs", f"{number} <= 8"), server()) is None
    assert advise(refused("graph_key in self.graphs", f"{number} in dict with keys [1]"), server()) is None


@pytest.mark.parametrize("text", ["(" * 5000, "not " * 4000 + "x", "a and " * 3000 + "b", "\x00", ""])
def test_text_that_is_no_source(text: str) -> None:
    assert condition(refused(text, "False", through=("x", 1)))
    found = refused("cuda_graph_bs <= self.max_bs", "12 <= 8", through=("x", 1))
    found.frames[0].text = text
    assert condition(found).startswith("`cuda_graph_bs <= self.max_bs` was `12 <= 8` (decode_cuda_graph_runner.py:420")


# -- sentences --------------------------------------------------------------------------------------------------------


def test_the_whole_story_on_one_line() -> None:
    found = too_large(12, 8, through=("is_bs_supported", 461))
    found.counts = dict.fromkeys(range(8), 504)
    assert denial_line(found, server("0.5.9")) == (
        "verify, batch 12, 504 times on each of 8 ranks: `cuda_graph_bs <= self.max_bs` was `12 <= 8` "
        "(decode_cuda_graph_runner.py:420, through `is_bs_supported`, line 461); "
        "`--cuda-graph-max-bs 12` would allow it"
    )
    assert denial_line(found).endswith("line 461)")


def test_through_a_local_of_another_file() -> None:
    found = too_large(12, 8, through=("is_bs_supported", 461))
    found.frames[1].file = "sglang/srt/model_executor/runner_backend/full_cuda_graph_backend.py"
    assert "(full_cuda_graph_backend.py:420, through `is_bs_supported`, decode_cuda_graph_runner.py:461)" in condition(
        found
    )


def test_a_local_that_is_itself_the_condition_is_told_once() -> None:
    found = refused("cuda_graph_runner", "None", through=("cuda_graph_runner", 310))
    assert condition(found) == "`cuda_graph_runner` was `None` (decode_cuda_graph_runner.py:420)"


def test_no_advice_about_a_gate_that_decides_nothing() -> None:
    found = too_large(12, 8).model_copy(update={"decides": False})
    assert "would allow it" not in denial_line(found, server())


def test_an_unexplained_denial_says_so() -> None:
    found = Denial(phase="draft", gate="Runner.can_run_graph", explained=False, reason="no source", counts={0: 3})
    assert denial_line(found, server()) == "draft, 3 times: no source"


def test_alike_denials_are_one_with_their_share_of_the_passes() -> None:
    eagle = capture("eagle", {1: cycle(6), 4: cycle(6)}, denials=[])
    none = refused("self.cuda_graph_runner", "None", phase="draft")
    for size, count in ((1, 30), (2, 20), (3, 10)):
        eagle.denials.append(none.model_copy(update={"batch_size": size, "counts": {0: count, 1: count}}))
    passes = [PhaseStats(phase="draft", batch_size=size, graph=False, count=20) for size in (1, 2, 3)]
    eagle.windows = eagle.windows[:1]
    eagle.windows[0].ranks = [RankWindow(rank=rank, phases=passes * 2) for rank in (0, 1)]
    (one,) = refusals(eagle)
    assert one.share == 0.5
    assert one.line.startswith("draft, batch 1 to 3, 60 times on each of 2 ranks (50 % of its passes): ")


def test_ones_that_decide_come_first() -> None:
    aside = denial("draft", 1, {0: 5000}).model_copy(update={"decides": False})
    eagle = capture("eagle", {1: cycle(6)}, denials=[aside, denial("verify", 12)])
    assert [one.denial.phase for one in refusals(eagle)] == ["verify", "draft"]
    assert refusals(capture("baseline", {1: decode(5)})) == []
