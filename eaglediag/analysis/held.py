"""A prediction held against what was measured after the change was made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eaglediag.analysis.comparability import comparability
from eaglediag.analysis.measured import CYCLE_PARTS, measure
from eaglediag.analysis.pairing import MIN_STEPS
from eaglediag.analysis.sentences import PHASE_NAMES
from eaglediag.analysis.statistics import Estimate
from eaglediag.analysis.whatif import Arms, Bound, WhatIf, WhatIfRow
from eaglediag.capture.model import Capture
from eaglediag.errors import NotComparable

#: A bound counts as broken when the measured figure is beyond it by more than this: noise moves both.
TOLERANCE = 0.02


@dataclass(frozen=True)
class Held:
    """One predicted figure beside the measured one, both in `unit`."""

    batch_size: int
    quantity: str
    unit: str
    predicted: float
    bound: Bound
    measured: Estimate

    @property
    def error(self) -> float:
        """The prediction against the measured value, as a share of the latter."""
        return self.predicted / self.measured.value - 1

    @property
    def kept(self) -> bool | None:
        """Whether the bound held; None for a prediction that is not a bound."""
        if self.bound == "at least":
            return self.error <= TOLERANCE
        return self.error >= -TOLERANCE if self.bound == "at most" else None


def hold(predicted: WhatIf, arms: Arms, measured: Capture, baseline: Capture | None) -> tuple[Held, ...]:
    """Every predicted figure that `measured` has: the cycle and its parts; with `baseline`, the step and what follows.

    `arms` are the captures that the prediction was made from. Raises NotComparable when the later captures are of
    another model or machine, or have none of the predicted batch sizes.
    """
    for before, after in ((arms[0], baseline), (arms[1], measured)):
        if after is not None and (other := comparability(before, after).graded("not_comparable")):
            raise NotComparable(
                f"{after.arm} cannot prove a prediction from {before.arm}: {other[0]}", "change one thing, and measure"
            )
    cycles = measure(measured).batches
    steps = measure(baseline).batches if baseline is not None else {}
    found: list[Held] = []
    for row in predicted.rows:
        cycle, step = cycles.get(row.batch_size), steps.get(row.batch_size)
        if cycle is None or cycle.kind != "cycle" or cycle.steps < MIN_STEPS or row.prediction is None:
            continue
        against = step if step is not None and step.kind == "decode" and step.steps >= MIN_STEPS else None
        if against is not None:
            figures = row.prediction.step_ms, row.prediction.step_bound
            found.append(Held(row.batch_size, "decode step", "ms", *figures, against.period))
        for phase in CYCLE_PARTS:
            if phase in row.prediction.parts and phase in cycle.parts:
                bound: Bound = "at least" if phase in row.prediction.at_least else ""
                found.append(_ms(row, PHASE_NAMES[phase], row.prediction.parts[phase], bound, cycle.parts[phase]))
        if row.prediction.gap_ms is not None and cycle.gap_ms:
            found.append(_ms(row, "host gap", row.prediction.gap_ms, row.prediction.gap_bound, cycle.gap_ms))
        found.append(
            Held(row.batch_size, "cycle", "ms", row.prediction.cycle_ms, row.prediction.cycle_bound, cycle.period)
        )
        if against is not None:
            found += _ratios(row, against.period, cycle.period, cycle.accept_length)
    if not found:
        raise NotComparable(
            f"{measured.arm} has none of the predicted batch sizes",
            f"measure at batch {', '.join(str(row.batch_size) for row in predicted.rows)}",
        )
    return tuple(found)


def _ms(row: WhatIfRow, quantity: str, predicted: float, bound: Bound, measured: float) -> Held:
    return Held(row.batch_size, quantity, "ms", predicted, bound, Estimate(measured))


def _ratios(row: WhatIfRow, step: Estimate, cycle: Estimate, accepted: Estimate | None) -> Iterator[Held]:
    prediction, after = row.prediction, row.after
    assert prediction is not None
    assert after is not None
    length = Estimate(cycle.value / step.value)
    yield Held(
        row.batch_size, "break-even", "tokens", after.break_even_accept_length, prediction.break_even_bound, length
    )
    if after.speedup is not None and accepted is not None:
        speedup = Estimate(accepted.value / length.value)
        yield Held(row.batch_size, "speed-up", "×", after.speedup, prediction.speedup_bound, speedup)
