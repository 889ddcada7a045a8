"""Findings: each from its evidence, none without; shares that add up; the change first to blame."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from eaglediag.analysis.comparison import Comparison, compare
from eaglediag.analysis.figures import number
from eaglediag.analysis.findings import Finding, excess_ms
from eaglediag.analysis.findings.acceptance import by_position
from eaglediag.analysis.findings.cost import fit
from eaglediag.analysis.whatif import choose
from eaglediag.capture.model import (
    Capture,
    CapturedGraphs,
    Collective,
    Denial,
    Overhead,
    Phase,
    PhaseStats,
    Problem,
    Profile,
    Refusal,
)
from eaglediag.reports.tables import denials, left_out
from tests.factories import Cost, capture, cycle, decode, denial, distribution, gpu, pair


def codes(found: Comparison) -> set[str]:
    return {finding.code for finding in found.findings}


def test_a_healthy_pair_has_no_findings() -> None:
    baseline = capture("baseline", {1: decode(5), 4: decode(6), 12: decode(9)}, seed=1)
    eagle = capture("eagle", {1: cycle(6), 4: cycle(8), 12: cycle(14)}, seed=2)
    for stats in (window.ranks[0].batches[0] for window in eagle.windows):
        assert stats.accept is not None
        stats.accept.histogram = [200, 160, 128, 512]
    assert codes(compare(baseline, eagle)) == set()


def test_the_founding_case() -> None:
    """All of it: the shares add up, verify carries most, and the flag that one arm had is named."""
    baseline = capture("baseline", {1: decode(11.8, gap=0.2)}, seed=1, tp=8)
    baseline.server.command += ["--num-continuous-decode-steps", "4"]
    eagle = capture(
        "eagle",
        {1: cycle(29, draft=2.0, draft_extend=0.8, gap=1.3, graph={"verify": False})},
        seed=2,
        tp=8,
        denials=[denial("verify", 1)],
    )
    found = compare(baseline, eagle)
    assert found.outcome == "worse"
    assert sum(share.ms for share in found.shares) == pytest.approx(excess_ms(found.rows[0]))
    beyond_verify = [share.ms for share in found.shares if share.part in ("draft", "draft_extend", "gap")]
    assert sum(beyond_verify) == pytest.approx(2.0 + 0.8 + 1.1, rel=0.05)
    assert found.findings[0].code == "graph_denied_verify"
    assert found.findings[0].part == found.shares[0].part == "verify"
    assert "--num-continuous-decode-steps (4 against not set): this could explain" in found.headline


def test_every_finding_says_what_to_do_and_what_would_refute_it() -> None:
    for finding in compare(*pair()).findings:
        assert finding.evidence
        assert finding.advice
        assert finding.refuted_by


def spoil(change: Callable[[Capture, Capture], object]) -> set[str]:
    baseline, eagle = pair(verify_ms=14.0, accept_length=2.6)
    change(baseline, eagle)
    return codes(compare(baseline, eagle))


def test_a_phase_that_never_had_a_graph() -> None:
    eagle = capture("eagle", {1: cycle(14, graph={"draft_extend": False})}, seed=2)
    found = compare(capture("baseline", {1: decode(12)}, seed=1), eagle)
    assert "never_graphed_draft_extend" in codes(found)


def test_an_eager_baseline() -> None:
    baseline = capture("baseline", {1: decode(12, graph={"decode": False})}, seed=1)
    assert "baseline_eager" in codes(compare(baseline, capture("eagle", {1: cycle(14)}, seed=2)))


@pytest.mark.parametrize(("unit", "sizes", "width"), [("requests", [1, 2, 4, 8], None), ("tokens", [4, 8, 16, 32], 4)])
def test_batches_beyond_the_captured(unit: str, sizes: list[int], width: int | None) -> None:
    baseline = capture("baseline", {12: decode(12)}, seed=1)
    eagle = capture("eagle", {12: cycle(14)}, seed=2)
    eagle.server.captured["verify"] = CapturedGraphs.model_validate(
        {"sizes": sizes, "unit": unit, "tokens_per_request": width}
    )
    [finding] = [one for one in compare(baseline, eagle).findings if one.code == "beyond_captured_candidate"]
    assert "from 9 requests on" in finding.what


def test_losing_by_how_much() -> None:
    found = compare(*pair())
    [finding] = [one for one in found.findings if one.code == "below_break_even"]
    assert "6.8" in finding.what
    assert "verify alone would have to fall from 28.9 to 22." in finding.evidence[1].fact


def test_no_drafter_can_win() -> None:
    assert "cannot_win" in codes(compare(*pair(decode_ms=5.0)))
    assert "below_break_even" not in codes(compare(*pair(decode_ms=5.0)))


def test_fixed_cost() -> None:
    sizes = {1: 14.0, 4: 14.2, 12: 14.5}
    baseline = capture("baseline", {size: decode(12) for size in sizes}, seed=1)
    eagle = capture("eagle", {size: cycle(ms) for size, ms in sizes.items()}, seed=2)
    [finding] = [one for one in compare(baseline, eagle).findings if one.code == "fixed_cost"]
    assert "from batch 1 to 12" in finding.evidence[0].fact
    assert fit([(1, 14.0), (4, 14.2)]) is None
    assert fit([(1, 3), (2, 5), (3, 7)]) == pytest.approx((1, 2))


def test_launch_bound_and_compute_bound() -> None:
    def profiled(busy: float) -> set[str]:
        one = Profile(
            phase="verify",
            steps=4,
            kernels_per_step=650,
            launches_per_step=650,
            graph_launches_per_step=0,
            device_busy_ms=busy,
            span_ms=15.0,
        )
        return spoil(lambda _, eagle: eagle.profiles.append(one))

    assert "launch_bound_verify" in profiled(5.0)
    assert "compute_bound_verify" in profiled(14.5)
    assert not {"launch_bound_verify", "compute_bound_verify"} & profiled(11.0)


def test_collectives_one_by_one_and_through_nccl() -> None:
    counted = Collective(
        phase="verify", backend="nccl", operation="all_reduce", in_graph=False, calls=650, steps=10, calls_per_step=65
    )

    def change(_: Capture, eagle: Capture) -> None:
        eagle.windows[0].ranks[0].collectives.append(counted)
        eagle.server.arguments["disable_custom_all_reduce"] = True
        eagle.server.tp = 2

    assert {"eager_collectives_verify", "nccl_instead_of_custom"} <= spoil(change)


def test_ranks_that_do_not_keep_step() -> None:
    baseline = capture("baseline", {1: decode(12)}, seed=1, tp=2)
    eagle = capture("eagle", {1: cycle(14)}, seed=2, tp=2)
    slow = PhaseStats(phase="verify", batch_size=1, graph=True, count=100, host_ms=distribution(20.0, 100))
    eagle.windows[0].ranks[1].phases = [slow]
    assert "ranks_skewed" in codes(compare(baseline, eagle))


def test_clocks_and_a_costly_agent() -> None:
    def change(_: Capture, eagle: Capture) -> None:
        eagle.hosts[0].gpus = [gpu(sm_mhz=1500.0)]
        eagle.instrumentation.overhead = Overhead(ratio=1.05)

    assert {"gpu_state", "agent_costly"} <= spoil(change)
    baseline, eagle = pair()
    change(baseline, eagle)
    found = compare(baseline, eagle)
    assert found.outcome == "not_comparable"
    assert found.headline.startswith("Not comparable: GPU clock, median (1980 of 1980 MHz against 1500 of 1980 MHz)")


def test_acceptance() -> None:
    assert "acceptance_collapsed" in codes(compare(*pair(accept_length=1.01)))
    assert "acceptance_decays_by_position" in codes(compare(*pair(accept_length=1.6)))
    baseline = capture("baseline", {1: decode(12), 12: decode(13)}, seed=1)
    eagle = capture("eagle", {1: cycle(14, accept_length=3.0), 12: cycle(15, accept_length=2.0)}, seed=2)
    assert "acceptance_falls_with_batch" in codes(compare(baseline, eagle))
    assert by_position([50, 25, 25]) == [0.5, 0.5]
    assert by_position([]) == []


def test_settings() -> None:
    def change(_: Capture, eagle: Capture) -> None:
        assert eagle.server.speculation is not None
        eagle.server.speculation.accept_threshold_single = 0.6
        eagle.server.speculation.simulated_accept_length = 2.0
        eagle.server.arguments["enable_lora"] = True
        eagle.workload.temperature = 0.7

    assert {"lossy_acceptance", "simulated_acceptance", "lora", "sampling_in_verify"} <= spoil(change)


def test_the_change_first_to_blame() -> None:
    old = capture("old", {1: cycle(14)}, seed=1)
    new = capture("new", {1: cycle(20)}, seed=2, release="0.5.23")
    new.server.commit = "0be30d4"
    old.server.commit = "bba2fc4"
    found = compare(old, new)
    [finding] = [one for one in found.findings if one.code == "first_to_blame"]
    assert "most of it in verify; first to blame: sglang release" in finding.what
    assert any("sglang commit: bba2fc4 against 0be30d4" in one.fact for one in finding.evidence)
    assert sum(share.ms for share in found.shares) == pytest.approx(excess_ms(found.rows[0]))

    nothing = compare(old, capture("new", {1: cycle(20)}, seed=2))
    assert nothing.outcome == "worse"


def test_between_captures_of_the_same_arm_what_changed_comes_first() -> None:
    eager = {"draft": False, "verify": False, "draft_extend": False}
    old = capture("old", {12: cycle(25, 3.5, 3.0, gap=2.0, graph=eager)}, seed=1, denials=[denial("verify", 12)])
    new = capture("new", {12: cycle(7, 0.3, 0.4, gap=0.1)}, seed=2)
    old.server.command += ["--cuda-graph-max-bs", "8"]
    new.server.command += ["--cuda-graph-max-bs", "12"]
    found = compare(old, new)
    assert found.findings[0].code == "first_to_blame"
    assert "first to blame: --cuda-graph-max-bs" in found.findings[0].what
    assert "to be sure that it was this" in found.findings[0].advice
    assert [share.part for share in found.shares] == ["verify", "draft", "draft_extend", "gap", "acceptance"]


def test_another_way_of_measuring_cannot_be_undone() -> None:
    old, new = capture("old", {1: cycle(14)}, seed=1), capture("new", {1: cycle(20)}, seed=2)
    old.windows[0].ranks[0].batches[0].period_ms.method = "cuda_event"
    [finding] = [one for one in compare(old, new).findings if one.code == "first_to_blame"]
    assert "first to blame: clock" in finding.what
    assert finding.advice == "measure both with the same clock"


def test_nothing_on_record_changed() -> None:
    found = compare(capture("old", {1: decode(12)}, seed=1), capture("new", {1: decode(14)}, seed=2))
    [finding] = found.findings
    assert "nothing on record changed" in finding.what
    assert "the machine's state may have changed" in finding.advice


def test_nothing_changed_but_which_gpu_it_was() -> None:
    old, new = capture("old", {1: decode(12)}, seed=1), capture("new", {1: decode(14)}, seed=2)
    old.hosts[0].gpus[0].uuid, new.hosts[0].gpus[0].uuid = "GPU-006b29f7-d1c5", "GPU-8b7fe9f7-0aa1"
    [finding] = compare(old, new).findings
    assert "first to blame: physical GPU" in finding.what
    assert (finding.sure, finding.advice) == ("possible", "measure both with the same physical GPU")


def test_one_condition_that_denies_several_phases_in_both_arms_is_one_finding() -> None:
    eager = {"draft": False, "verify": False, "draft_extend": False}
    baseline = capture(
        "baseline",
        {12: decode(20, graph={"decode": False})},
        seed=1,
        denials=[denial("decode", 12), denial("decode", 16)],
    )
    eagle = capture(
        "eagle",
        {12: cycle(22, graph=eager)},
        seed=2,
        denials=[denial("verify", 12), denial("draft", 12), denial("draft_extend", 12)],
    )
    found = compare(baseline, eagle)
    [finding] = [one for one in found.findings if one.denied]
    assert finding.code == "graph_denied_verify"
    assert finding.what == (
        "denied their graphs at batch 12 and 16: decode (baseline); verify, draft and draft-extend (eagle)"
    )
    assert [one.fact.partition(" (")[0] for one in finding.evidence] == [
        "`cuda_graph_bs <= self.max_bs` was `12 <= 8`",
        "`cuda_graph_bs <= self.max_bs` was `16 <= 8`",
        "baseline: decode, batch 12, 1000 times",
        "baseline: decode, batch 16, 1000 times",
        "eagle: verify, draft and draft-extend, batch 12, 1000 times",
    ]
    assert "--cuda-graph-max-bs-decode 16" in finding.advice
    assert "in both arms" in finding.advice
    assert "baseline_eager" not in codes(found)
    assert denials(found) == []


def test_refusals_that_explain_nothing_are_folded_and_left_to_whoever_asks() -> None:
    baseline, eagle = pair()
    for size in (1, 3, 7):
        prefill = denial("extend", size)
        aside = denial("verify", size)
        aside.decides = False
        eagle.denials += [prefill, aside]
    found = compare(baseline, eagle)
    assert denials(found) == []
    prefill_line, aside_line = denials(found, everything=True)
    assert prefill_line.startswith("eagle: prefill, batch 1, 3 and 7, 3000 times")
    assert aside_line.endswith("(eager already, by another gate)")
    assert left_out(found) == 2


def test_a_refusal_is_shown_when_nothing_else_explains_an_eager_phase() -> None:
    baseline = capture("baseline", {1: decode(12)}, seed=1)
    aside = denial("verify", 1)
    aside.decides = False
    found = compare(baseline, capture("eagle", {1: cycle(14, graph={"verify": False})}, seed=2, denials=[aside]))
    assert len(denials(found)) == 1


def profile(phase: Phase, busy: float, span: float, graphs: float = 1) -> Profile:
    return Profile(
        phase=phase,
        batch_size=1,
        steps=19,
        kernels_per_step=480,
        launches_per_step=28,
        graph_launches_per_step=graphs,
        device_busy_ms=busy,
        span_ms=span,
    )


def waiting(cycle_ms: float, profiles: Sequence[Profile]) -> list[Finding]:
    eagle = capture("eagle", {1: cycle(cycle_ms - 2.0, draft=1.0, draft_extend=0.4, gap=0.6)}, seed=2)
    eagle.profiles = list(profiles)
    found = compare(capture("baseline", {1: decode(3.4)}, seed=1), eagle).findings
    return [finding for finding in found if finding.code == "host_late"]


def test_graphs_that_leave_the_gpu_waiting() -> None:
    def profiled(graphs: float) -> list[Profile]:
        return [
            profile("draft", 0.3, 0.6, graphs),
            profile("verify", 4.8, 6.1, graphs),
            profile("draft_extend", 0.3, 0.4, graphs),
        ]

    assert waiting(7.0, profiled(1))
    assert not waiting(7.0, profiled(0))


def test_the_gpu_cannot_wait_for_longer_than_the_cycle_without_the_profiler_leaves() -> None:
    """What the profiler sees waiting is the slowed host's: 3.00 ms here, in a cycle whose kernels leave 1.29."""
    profiled = [profile("draft", 0.65, 1.57), profile("verify", 4.67, 6.24), profile("draft_extend", 1.24, 1.74)]
    [finding] = waiting(7.84, profiled)
    waits = float(finding.what.split(" ms ")[0].rpartition(" ")[2])
    assert waits == pytest.approx(7.84 - 6.56, abs=0.05)
    assert "kernels take 6.56 ms of a cycle; without the profiler it takes 7.8" in finding.evidence[0].fact
    assert not waiting(6.6, profiled)
    assert not waiting(6.0, profiled)
    assert not waiting(7.84, profiled[:2])


def fallen(verify_ms: float, draft_ms: float) -> Comparison:
    """Three drafted tokens, accepted less and less; passes of 1 to 4 tokens lie between decode and verify."""
    eagle = capture("eagle", {1: cycle(verify_ms, draft=draft_ms, accept_length=2.0)}, seed=2)
    return compare(capture("baseline", {1: decode(12)}, seed=1), eagle)


def decayed(found: Comparison) -> list[Finding]:
    return [finding for finding in found.findings if finding.code == "acceptance_decays_by_position"]


def test_the_last_drafted_tokens_hardly_pay_where_fewer_are_priced_as_faster() -> None:
    found = fallen(verify_ms=18, draft_ms=3.0)
    [finding] = decayed(found)
    choice = choose(found.rows[0], found.rows)
    assert finding.sure == "likely"
    assert finding.what.startswith("acceptance falls along the chain, to 1")
    assert finding.what.endswith("% at position 3: the last drafted tokens hardly pay")
    assert max(choice.speedups) == choice.speedups[0]
    assert f"speed-up by drafted tokens: {number(choice.speedups[0])} with 1, " in finding.evidence[-1].fact
    assert "try --speculative-num-steps 1 (" in finding.advice


def test_drafted_tokens_that_pay_although_acceptance_falls_are_not_the_matter() -> None:
    found = fallen(verify_ms=12.1, draft_ms=0.1)
    assert choose(found.rows[0], found.rows).speedups[-1] == max(choose(found.rows[0], found.rows).speedups)
    assert not decayed(found)


def test_what_cannot_be_priced_is_only_possible() -> None:
    eager = capture("eagle", {1: cycle(29, accept_length=2.0, graph={"verify": False})}, seed=2)
    [finding] = decayed(compare(capture("baseline", {1: decode(12)}, seed=1), eager))
    assert finding.sure == "possible"
    assert "may not pay" in finding.what
    assert "cannot be priced from this (no pass without a graph was measured on both sides of 2 tokens)" in (
        finding.advice
    )
    older = capture("older", {1: cycle(29, accept_length=2.0)}, seed=1)
    [finding] = decayed(compare(older, eager))
    assert "there is no plain baseline here" in finding.advice


def unexplained(eagle: Capture, baseline: Capture | None = None) -> list[Finding]:
    found = compare(baseline or capture("baseline", {1: decode(12)}, seed=1, tp=eagle.server.tp), eagle).findings
    return [finding for finding in found if finding.code.startswith("graph_unexplained")]


def eager_verify(*denials: Denial, size: int = 1) -> Capture:
    return capture("eagle", {size: cycle(29, graph={"verify": False})}, seed=2, tp=8, denials=denials)


def test_an_eager_verify_without_a_condition_on_record_is_said_first() -> None:
    """The founding case's question: no graph was seen, and a cause assumed that nobody had recorded."""
    eagle = eager_verify()
    found = compare(capture("baseline", {1: decode(12)}, seed=1, tp=8), eagle)
    finding = found.findings[0]
    assert finding.code == "graph_unexplained_verify"
    assert finding.what == "eagle: verify ran without a graph at batch 1, and no condition that denied it is on record"
    assert (finding.part, finding.sure) == ("verify", "certain")
    assert len(unexplained(eagle)) == 1
    passes = eagle.windows[0].ranks[0].batches[0].count
    assert finding.evidence[0].fact == f"eagle: verify without a graph, batch 1, {passes} times on each of 8 ranks"
    assert "no gate was traced: `eaglediag probe --launch 'the launch command'`" in finding.advice
    assert "`eaglediag gates --release 0.5.20 --phase verify`" in finding.advice


def test_phases_that_ran_eagerly_at_the_same_batch_sizes_are_one_finding() -> None:
    eager = {"verify": False, "draft": False, "draft_extend": False}
    costs = {1: cycle(20), 4: cycle(29, graph=eager), 12: cycle(29, graph=eager)}
    eagle = capture("eagle", costs, seed=2, denials=[denial("verify", 12)])
    found = unexplained(eagle, capture("baseline", {size: decode(12) for size in costs}, seed=1))
    assert [finding.what for finding in found] == [
        "eagle: verify ran without a graph at batch 4, and no condition that denied it is on record",
        "eagle: draft and draft-extend ran without a graph at batch 4 and 12, and no condition that denied it is on "
        "record",
    ]
    assert found[0].part is None
    assert [one.fact.partition(", ")[0] for one in found[1].evidence[:2]] == [
        "eagle: draft without a graph",
        "eagle: draft-extend without a graph",
    ]


def test_how_to_get_the_condition_depends_on_how_it_was_missed() -> None:
    traced, refused, imported = eager_verify(), eager_verify(), eager_verify()
    traced.instrumentation.ranks[0].patched = ["gate model_executor.model_runner:ModelRunner._forward_raw"]
    assert unexplained(traced)[0].advice.startswith("none of the traced gates said no: `eaglediag gates --release")
    refused.instrumentation.ranks[0].refused = [Refusal(target="gate a:B.can_run", why="its source cannot be read")]
    assert unexplained(refused)[0].advice.startswith("not traced: gate a:B.can_run (its source cannot be read); `eagle")
    imported.source.kind = "import"
    assert unexplained(imported)[0].advice == (
        "`eaglediag probe --launch 'the launch command'` records which condition says no"
    )


@pytest.mark.parametrize("code", ["unknown_gates", "eager_passes"])
def test_what_the_captures_problems_say_already_is_not_said_twice(code: str) -> None:
    eagle = eager_verify()
    eagle.problems.append(Problem(code=code, message="which condition denied a graph is not known"))
    assert not unexplained(eagle)


def test_what_is_on_record_is_not_unexplained() -> None:
    baseline = capture("baseline", {12: decode(12)}, seed=1, tp=8)
    assert not unexplained(eager_verify(denial("verify", 1)))
    assert not unexplained(eager_verify(denial("verify", None)))
    assert unexplained(eager_verify(denial("verify", 12)))
    assert not unexplained(capture("eagle", {1: cycle(29)}, seed=2))
    beyond = eager_verify(size=12)
    beyond.server.captured["verify"] = CapturedGraphs(sizes=[1, 2, 4, 8])
    assert not unexplained(beyond, baseline)
    beyond.server.captured["verify"] = CapturedGraphs(sizes=[1, 2, 4, 16])
    assert unexplained(beyond, baseline)


def test_graphs_that_were_switched_off_are_no_riddle() -> None:
    eagle = eager_verify()
    eagle.server.arguments["disable_cuda_graph"] = True
    [finding] = unexplained(eagle)
    assert finding.what == "eagle: verify ran without a graph at batch 1, as graphs are switched off"
    assert finding.advice == "without `--disable-cuda-graph` it would be allowed"


def test_a_baseline_that_is_eager_for_no_recorded_reason_is_one_finding() -> None:
    baseline = capture("baseline", {1: decode(12, graph={"decode": False})}, seed=1)
    found = compare(baseline, capture("eagle", {1: cycle(14)}, seed=2)).findings
    [finding] = [one for one in found if "eager" in one.code or "unexplained" in one.code]
    assert finding.code == "baseline_eager"
    assert "no denial of these passes" in [one.fact for one in finding.evidence]
    assert "speculation flatters itself; no gate was traced: " in finding.advice


def test_only_against_a_plain_baseline_does_speculation_flatter_itself() -> None:
    def both(kind: Callable[..., Cost], phase: Phase) -> str:
        arms = [
            capture(arm, {12: kind(20, graph={phase: False})}, seed=seed, denials=[denial(phase, 12)])
            for seed, arm in enumerate(("old", "new"))
        ]
        [finding] = [one for one in compare(*arms).findings if one.denied]
        assert finding.what.endswith("(old); decode (new)" if phase == "decode" else "(old); verify (new)")
        return finding.advice

    assert "flatters" not in both(cycle, "verify")
    assert "flatters" not in both(decode, "decode")
    plain = [capture(arm, {1: decode(20, graph={"decode": False})}, seed=seed) for seed, arm in enumerate("ab")]
    assert codes(compare(*plain)) >= {"graph_unexplained_decode"}
    assert "baseline_eager" not in codes(compare(*plain))
