"""Turns of one arm as one capture: nothing that a later turn measured is lost."""

from __future__ import annotations

from eaglediag.capture.model import Capture, Gpu, GpuProcess, GpuSeries, HostInfo, Problem
from eaglediag.probes.gpu import MAX_SAMPLES, merged_gpus
from eaglediag.probes.turns import merged, order
from tests.factories import capture, decode


def a_turn(number: int, *, mhz: float = 1980.0, partial: bool = False) -> Capture:
    one = capture("baseline", {1: decode(4.2)}, seed=number)
    start = one.windows[0].started + 1000 * number
    one.windows[0] = one.windows[0].model_copy(update={"id": f"c1-r{number}", "repeat": number, "started": start})
    samples = 40
    series = GpuSeries(
        t=[start + i / 2 for i in range(samples)],
        sm_mhz=[mhz] * samples,
        memory_mhz=[None] * samples,
        power_w=[300.0] * samples,
        temperature_c=[50.0] * samples,
        utilisation_percent=[90.0] * samples,
        pstate=[0] * samples,
        reasons=[4 * number] * samples,
    )
    gpu = Gpu(index=0, series=series, throttled_ms={f"c1-r{number}": {"sw_power_cap": 10.0}})
    gpu.processes = [GpuProcess(pid=100 + number)]
    one.hosts = [HostInfo(name="one", gpus=[gpu])]
    if partial:
        one.status = "partial"
        one.problems = [Problem(code="interrupted", message="it was interrupted")]
        one.server.exit_code = 1
    return one


def test_the_order_alternates() -> None:
    assert order(2, 3) == [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (1, 2)]
    assert order(1, 2) == [(0, 0), (0, 1)]


def test_windows_and_gpu_samples_of_every_turn() -> None:
    first = a_turn(0)
    both = merged(merged(None, first), a_turn(1, mhz=1200.0))
    assert [window.id for window in both.windows] == ["c1-r0", "c1-r1"]
    [gpu] = both.hosts[0].gpus
    assert gpu.series.sm_mhz == [1980.0] * 40 + [1200.0] * 40
    assert gpu.series.reasons == [0] * 40 + [4] * 40
    assert gpu.series.t == sorted(gpu.series.t)
    assert gpu.throttled_ms == {"c1-r0": {"sw_power_cap": 10.0}, "c1-r1": {"sw_power_cap": 10.0}}
    assert {process.pid for process in gpu.processes} == {100, 101}
    assert len(first.hosts[0].gpus[0].series.t) == 40
    assert Capture.model_validate(both.model_dump()) == both


def test_a_turn_that_ended_early() -> None:
    both = merged(a_turn(0), a_turn(1, partial=True))
    assert (both.status, both.server.exit_code) == ("partial", 1)
    assert [problem.code for problem in both.problems] == ["interrupted"]


def test_gpus_that_only_one_turn_saw() -> None:
    gpus = merged_gpus([Gpu(index=0, name="a")], [Gpu(index=1, name="b")])
    assert [gpu.name for gpu in gpus] == ["a", "b"]


def test_many_turns_do_not_grow_beyond_what_a_capture_holds() -> None:
    gpus: list[Gpu] = []
    for number in range(3):
        columns = {name: [number] * MAX_SAMPLES for name in GpuSeries.model_fields}
        gpus = merged_gpus(gpus, [Gpu(index=0, series=GpuSeries.model_validate(columns))])
    assert 0.4 * MAX_SAMPLES < len(gpus[0].series.t) <= MAX_SAMPLES
    assert gpus[0].series.reasons[-1] == 2
