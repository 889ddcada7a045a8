"""Differences in the GPUs and in their state: clocks, throttling, temperature, power cap, company.

Only samples inside measured windows count: an idle GPU's clock says nothing about the clock under load (an H200 idles
at 1980 MHz and runs a matrix product at 1455 to 1500 MHz).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from eaglediag.analysis.comparability.difference import Difference, Grade
from eaglediag.capture.model import Capture, Gpu

#: NVML's clock event reasons that hold a GPU back, by bit (nvml.h, nvmlClocksEventReason*).
SLOWDOWNS = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
POWER_CAP = 0x4
#: A median clock this much lower makes a verdict doubtful, and this much lower forbids it.
CLOCK_DOUBTFUL, CLOCK_FORBIDS = 0.02, 0.05
#: A reason present in this much more of one arm's samples counts.
REASON_SHARE = 0.10
WARMER_C = 10.0
#: Which of several GPUs of one kind ran an arm. Two H200s at the same clock took 4.49 and 4.59 ms for the same step
#: (benchmarks/results, `alone` and `overhead`).
PHYSICAL = "physical GPU"


def gpu_differences(baseline: Capture, candidate: Capture) -> tuple[list[Difference], list[str]]:
    """The differences, and what is not on record."""
    one, other = _gpus(baseline), _gpus(candidate)
    if not one and not other:
        return [], [] if baseline.server.device == "cpu" else ["GPUs and their clocks"]
    if not one or not other:
        return [], [f"GPUs of {(candidate if one else baseline).arm}"]
    found = list(_hardware(one, other))
    clocks = [_samples(capture, "sm_mhz") for capture in (baseline, candidate)]
    if not all(clocks):
        silent = " and ".join(c.arm for c, mhz in zip((baseline, candidate), clocks, strict=True) if not mhz)
        return found, [f"GPU clocks of {silent}"]
    found += _clocks(clocks[0], clocks[1], max((gpu.sm_mhz_max or 0.0 for gpu in one), default=0.0))
    found += _reasons(_samples(baseline, "reasons"), _samples(candidate, "reasons"))
    warm = [_samples(capture, "temperature_c") for capture in (baseline, candidate)]
    if all(warm) and abs(statistics.median(warm[0]) - statistics.median(warm[1])) > WARMER_C:
        shown = [f"{statistics.median(series):.0f} °C" for series in warm]
        found.append(
            Difference("GPU temperature", shown[0], shown[1], "harmless", "matters through clocks, which are compared")
        )
    return found, []


def _gpus(capture: Capture) -> list[Gpu]:
    return [gpu for host in capture.hosts for gpu in host.gpus]


def _samples(capture: Capture, column: str) -> list[float]:
    """Samples of all GPUs inside measured windows; all samples when no window tells its time."""
    spans = [(window.started, window.started + window.duration_s) for window in capture.windows if window.duration_s]
    inside, everything = [], []
    for gpu in _gpus(capture):
        for t, value in zip(gpu.series.t, getattr(gpu.series, column), strict=False):
            if value is not None:
                everything.append(value)
                if any(start <= t <= end for start, end in spans):
                    inside.append(value)
    return inside or everything


def _hardware(one: Sequence[Gpu], other: Sequence[Gpu]) -> Iterator[Difference]:
    units = _both(one, other, "uuid")
    compared: list[tuple[str, list[object], list[object], Grade, str]] = [
        ("GPU count", [len(one)], [len(other)], "not_comparable", "other hardware"),
        ("GPU", *_both(one, other, "name"), "not_comparable", "other hardware"),
        ("GPU power limit", *_both(one, other, "power_limit_w"), "confounding", "limits clocks under load"),
        ("application clocks", *_both(one, other, "sm_mhz_application"), "confounding", "limits clocks"),
        ("MIG", *_both(one, other, "mig"), "not_comparable", "another share of the GPU"),
        ("ECC", *_both(one, other, "ecc"), "confounding", "changes memory bandwidth"),
        ("PCIe generation", *_both(one, other, "pcie_generation"), "harmless", "links slow down when idle"),
        ("NVLinks", *_both(one, other, "nvlinks"), "confounding", "another interconnect"),
        (PHYSICAL, _short(units[0]), _short(units[1]), "harmless", "two of one kind differ by a percent or two"),
    ]
    for what, mine, theirs, grade, why in compared:
        if mine and theirs and mine != theirs:
            yield Difference(what, ", ".join(map(str, mine)), ", ".join(map(str, theirs)), grade, why)
    company = [[process for gpu in gpus for process in gpu.processes if not process.ours] for gpus in (one, other)]
    if any(company):
        counts = [f"{len(processes)} other processes" for processes in company]
        yield Difference(
            "GPU company", counts[0], counts[1], "confounding", "others used the GPUs during the measurement"
        )


def _short(uuids: Sequence[object]) -> list[object]:
    """Of each UUID what tells one from another to a reader: `GPU-` and eight digits."""
    return [str(uuid)[:12] for uuid in uuids]


def _both(one: Sequence[Gpu], other: Sequence[Gpu], name: str) -> tuple[list[object], list[object]]:
    """The distinct known values in each arm."""
    values = [
        sorted({getattr(gpu, name) for gpu in gpus if getattr(gpu, name) not in (None, "")}) for gpus in (one, other)
    ]
    return values[0], values[1]


def _clocks(one: Sequence[float], other: Sequence[float], highest: float) -> Iterator[Difference]:
    medians = statistics.median(one), statistics.median(other)
    apart = abs(medians[0] - medians[1]) / max(medians)
    reach = f" of {highest:.0f}" if highest else ""
    shown = [f"{median:.0f}{reach} MHz" for median in medians]
    if apart > CLOCK_DOUBTFUL:
        grade: Grade = "not_comparable" if apart > CLOCK_FORBIDS else "confounding"
        yield Difference("GPU clock, median", shown[0], shown[1], grade, f"{100 * apart:.0f} % apart")
    spreads = [_spread(series) for series in (one, other)]
    if max(spreads) > CLOCK_FORBIDS:
        yield Difference(
            "GPU clock, spread",
            f"{100 * spreads[0]:.0f} %",
            f"{100 * spreads[1]:.0f} %",
            "confounding",
            "the clock moved during the measurement",
        )


def _spread(series: Sequence[float]) -> float:
    """The range of the middle 80 % of samples, as a share of the median."""
    ordered = sorted(series)
    cut = len(ordered) // 10
    return (ordered[len(ordered) - 1 - cut] - ordered[cut]) / statistics.median(ordered)


def _reasons(one: Sequence[float], other: Sequence[float]) -> Iterator[Difference]:
    if not one or not other:
        return
    for bit, name in {**SLOWDOWNS, POWER_CAP: "power cap"}.items():
        shares = [sum(bool(int(mask) & bit) for mask in series) / len(series) for series in (one, other)]
        if abs(shares[0] - shares[1]) > REASON_SHARE:
            grade: Grade = "confounding" if bit == POWER_CAP else "not_comparable"
            shown = [f"{100 * share:.0f} % of samples" for share in shares]
            yield Difference(f"GPU held back by {name}", shown[0], shown[1], grade, "one arm ran on a slower GPU")
