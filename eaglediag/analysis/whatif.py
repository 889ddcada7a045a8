"""What would happen if: a graph for an eager phase, another accept length, another number of drafted tokens.

Every price comes from something measured in the two captures and says from what; what was not measured is refused, not
extrapolated. A changed figure keeps the relative interval of the measured one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from eaglediag.analysis import breakeven
from eaglediag.analysis.breakeven import BreakEven, Interval
from eaglediag.analysis.figures import listed, number
from eaglediag.analysis.graph_price import EAGER, RefusedError, graphed
from eaglediag.analysis.measured import accept_length_told
from eaglediag.analysis.pairing import Row
from eaglediag.capture.model import Capture, Phase
from eaglediag.errors import UsageError

if TYPE_CHECKING:
    from eaglediag.analysis.comparison import Comparison

#: Fewer verify passes than this say too little about single positions.
MIN_PASSES = 200
#: Verdicts that say whether speculation pays.
DECIDED = ("win", "lose", "impossible")
GRAPHED_ALREADY = "every phase has its graph already"

Bound = Literal["at least", "at most", "about", ""]
#: The baseline's capture and the candidate's.
Arms = tuple[Capture, Capture]


@dataclass(frozen=True)
class Change:
    """One `--what-if`: `value` is an accept length, a number of drafted tokens (None: the best), or nothing."""

    kind: Literal["graph", "accept-length", "draft-tokens"]
    value: float | None = None


@dataclass(frozen=True)
class Prediction:
    """What a later capture would measure, in ms. `at_least`: the phases, decode included, priced at a lower bound.

    `gap_at_least` says the same of the cycle's host gap.
    """

    step_ms: float
    parts: dict[Phase, float]
    cycle_ms: float
    at_least: frozenset[Phase] = frozenset()
    gap_at_least: bool = False

    @property
    def step_bound(self) -> Bound:
        """What kind of figure the step's time is."""
        return "at least" if "decode" in self.at_least else ""

    @property
    def cycle_bound(self) -> Bound:
        """What kind of figure the cycle's time is."""
        return "at least" if self.gap_at_least or self.at_least - {"decode"} else ""

    @property
    def gap_bound(self) -> Bound:
        """What kind of figure the host gap is."""
        return "at least" if self.gap_at_least else ""

    @property
    def break_even_bound(self) -> Bound:
        """What the bounds of cycle and step make of their ratio."""
        if self.step_bound and self.cycle_bound:
            return "about"
        return "at most" if self.step_bound else self.cycle_bound

    @property
    def speedup_bound(self) -> Bound:
        """The same for the inverse."""
        opposite: dict[Bound, Bound] = {"at least": "at most", "at most": "at least"}
        return opposite.get(self.break_even_bound, self.break_even_bound)

    @property
    def gap_ms(self) -> float | None:
        """The host gap of a cycle; None when its parts are not known."""
        return self.cycle_ms - sum(self.parts.values()) if self.parts else None


@dataclass(frozen=True)
class WhatIfRow:
    """One batch size, as it is and as it would be. `refused` says why there is no answer; `notes` how it was priced."""

    batch_size: int
    before: BreakEven
    after: BreakEven | None
    prediction: Prediction | None = None
    notes: tuple[str, ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class Choice:
    """Drafted tokens at one batch size: `speedups[k - 1]` for k of them; `best` is None when none stands out."""

    batch_size: int
    speedups: tuple[float, ...] = ()
    best: int | None = None
    margin: float | None = None
    refused: str = ""


@dataclass(frozen=True)
class WhatIf:
    """The answer, by batch size, and from which batch on speculation loses, before and after."""

    asked: tuple[str, ...]
    rows: tuple[WhatIfRow, ...]
    choices: tuple[Choice, ...]
    crossover_before: str
    crossover_after: str


@dataclass(frozen=True)
class _Scenario:
    """A changed batch size. `like` is the row whose relative intervals the changed figures keep."""

    row: Row
    parts: dict[Phase, float]
    cycle_ms: float
    step_ms: float
    accept_length: float
    draft_tokens: int | None
    chain: bool
    like: Row
    at_least: frozenset[Phase] = frozenset()
    gap_at_least: bool = False
    simulated: bool = False
    notes: tuple[str, ...] = ()


def parse(text: str) -> Change:
    """`graph`, `accept-length=2.6`, `draft-tokens=5` or `draft-tokens=best`. Raises UsageError."""
    name, _, value = text.partition("=")
    try:
        if name == "graph" and not value:
            return Change("graph")
        if name == "accept-length" and float(value) >= 1:
            return Change("accept-length", float(value))
        if name == "draft-tokens" and value == "best":
            return Change("draft-tokens")
        if name == "draft-tokens" and int(value) >= 1:
            return Change("draft-tokens", int(value))
    except ValueError:
        pass
    raise UsageError(
        f"--what-if {text} is not known", "give graph, accept-length=X (1 or more), draft-tokens=N or =best"
    )


def what_if(asked: Sequence[str], arms: Arms, comparison: Comparison) -> WhatIf:
    """Apply the changes one after the other to every batch size. `comparison` is that of the two `arms`.

    Raises UsageError when there is nothing to change.
    """
    changes = [parse(text) for text in asked]
    rows = [row for row in comparison.rows if row.break_even is not None and row.break_even.accept_length is not None]
    if not rows:
        raise UsageError("no batch size has a break-even and an accept length", "what-if needs steps of both arms")
    answers = tuple(_answer(row, changes, comparison, arms) for row in rows)
    choosing = any(change.kind == "draft-tokens" for change in changes)
    simulated = accept_length_told(arms[1]) is not None
    return WhatIf(
        asked=tuple(asked),
        rows=answers,
        choices=tuple(choose(row, rows, simulated=simulated) for row in rows) if choosing else (),
        crossover_before=crossover([(row.batch_size, row.before) for row in answers]),
        crossover_after=crossover([(row.batch_size, row.after) for row in answers if row.after]),
    )


def crossover(points: Sequence[tuple[int, BreakEven]]) -> str:
    """From which batch on speculation loses, within the batch sizes that were measured and as far as they tell."""
    told = [(size, answer, answer.speedup) for size, answer in points if answer.speedup is not None]
    if not told:
        return "not known"
    decided = [(size, answer.verdict == "win", speedup) for size, answer, speedup in told if answer.verdict in DECIDED]
    open_ = [size for size, answer, _ in told if answer.verdict not in DECIDED]
    if not decided:
        return f"neither wins nor loses for certain at batch {listed(open_)}"
    doubt = f"; at batch {listed(open_)} the figures cannot tell" if open_ else ""
    measured = f"from batch {decided[0][0]} to {decided[-1][0]}" if len(decided) > 1 else f"at batch {decided[0][0]}"
    for (small, wins, fast), (large, still, slow) in pairwise(decided):
        if wins and not still:
            about = small + (large - small) * (fast - 1) / (fast - slow)
            return f"loses from a batch between {small} and {large} on, about {about:.0f}{doubt}"
    winning = [size for size, wins, _ in decided if wins]
    if len(winning) == len(decided):
        return f"wins {measured}{doubt or '; not measured beyond'}"
    if not winning:
        return f"loses {measured}{doubt or '; not measured beyond'}"
    return f"wins only from batch {winning[0]} on, as far as was measured{doubt}"


def choose(row: Row, rows: Sequence[Row], *, simulated: bool = False) -> Choice:
    """The best number of drafted tokens at a batch size, from 1 to the number that was drafted.

    With `simulated` accept lengths there is none: they say nothing about single positions.
    """
    start = replace(_scenario(row), simulated=simulated)
    speedups = []
    try:
        for tokens in range(1, (start.draft_tokens or 0) + 1):
            scenario = _with_draft_tokens(start, tokens, rows)
            speedups.append(scenario.accept_length * row.baseline.period.value / scenario.cycle_ms)
    except RefusedError as refusal:
        return Choice(row.batch_size, refused=str(refusal))
    if not speedups:
        return Choice(row.batch_size, refused="the number of drafted tokens is not on record")
    margin = (row.speedup.high - row.speedup.low) / 2 / row.speedup.value if row.speedup.interval else None
    ranked = sorted(speedups, reverse=True)
    stands_out = margin is not None and (len(ranked) == 1 or ranked[0] - ranked[1] > margin * ranked[0])
    return Choice(row.batch_size, tuple(speedups), speedups.index(ranked[0]) + 1 if stands_out else None, margin)


def _answer(row: Row, changes: Sequence[Change], comparison: Comparison, arms: Arms) -> WhatIfRow:
    assert row.break_even is not None
    scenario = replace(_scenario(row), simulated=accept_length_told(arms[1]) is not None)
    try:
        for change in changes:
            scenario = _changed(scenario, change, comparison, arms)
    except RefusedError as refusal:
        return WhatIfRow(row.batch_size, row.break_even, None, refused=str(refusal))
    given = any(change.kind == "accept-length" for change in changes)
    step, cycle = scenario.step_ms, scenario.cycle_ms
    break_even, speedup = cycle / step, scenario.accept_length * step / cycle
    like = scenario.like
    assert like.break_even is not None
    of_break_even = _relative(like.break_even.break_even_interval, like.break_even.break_even_accept_length)
    of_speedup = _relative(like.break_even.speedup_interval, like.speedup.value)
    if given and of_break_even is not None:
        # The accept length is then exact: only the times' uncertainty is left.
        of_speedup = (1 / of_break_even[1], 1 / of_break_even[0])
    after = breakeven.judged(
        break_even=break_even,
        accept_length=scenario.accept_length,
        speedup=speedup,
        draft_tokens=scenario.draft_tokens,
        break_even_interval=_scaled(of_break_even, break_even),
        speedup_interval=_scaled(of_speedup, speedup),
        step_ms=step,
        cycle_ms=cycle,
        chain=scenario.chain,
    )
    prediction = Prediction(step, scenario.parts, cycle, scenario.at_least, scenario.gap_at_least)
    return WhatIfRow(row.batch_size, row.break_even, after, prediction, scenario.notes)


def _scenario(row: Row) -> _Scenario:
    assert row.break_even is not None
    accept_length, maximum = row.break_even.accept_length, row.break_even.max_accept_length
    assert accept_length is not None
    return _Scenario(
        row=row,
        parts=row.candidate.parts,
        cycle_ms=row.candidate.period.value,
        step_ms=row.baseline.period.value,
        accept_length=accept_length,
        draft_tokens=None if maximum is None else maximum - 1,
        chain=row.break_even.chain,
        like=row,
    )


def _changed(scenario: _Scenario, change: Change, comparison: Comparison, arms: Arms) -> _Scenario:
    if change.kind == "graph":
        return _with_graph(scenario, comparison, arms)
    if change.kind == "draft-tokens":
        tokens = change.value
        if tokens is None:
            choice = choose(scenario.row, comparison.rows, simulated=scenario.simulated)
            if choice.best is None:
                raise RefusedError(choice.refused or "no number of drafted tokens stands out")
            tokens = choice.best
        return _with_draft_tokens(scenario, int(tokens), comparison.rows)
    assert change.value is not None
    if scenario.draft_tokens is not None and change.value > scenario.draft_tokens + 1:
        raise RefusedError(f"{scenario.draft_tokens} drafted tokens give at most {scenario.draft_tokens + 1}")
    return replace(scenario, accept_length=change.value)


def _repriced(scenario: _Scenario, parts: dict[Phase, float], notes: Sequence[str]) -> _Scenario:
    cycle = scenario.cycle_ms + sum(ms - scenario.parts[phase] for phase, ms in parts.items())
    return replace(scenario, parts={**scenario.parts, **parts}, cycle_ms=cycle, notes=(*scenario.notes, *notes))


def _with_graph(scenario: _Scenario, comparison: Comparison, arms: Arms) -> _Scenario:
    """Graphs for both arms: the flag that gives them to one gives them to the other."""
    row = scenario.row
    if not scenario.parts:
        raise RefusedError("the cycle's parts are not known")
    cycle = graphed(row.candidate, comparison.candidate.batches.values(), arms[1].profiles)
    step = graphed(row.baseline, comparison.baseline.batches.values(), arms[0].profiles)
    notes = [f"{name}: {'; '.join(priced.notes)}" for name, priced in (("cycle", cycle), ("step", step)) if priced]
    for priced in (cycle, step):
        if priced is not None:
            scenario = replace(scenario, at_least=scenario.at_least | priced.at_least)
    if cycle is not None:
        scenario = replace(scenario, parts=cycle.parts, cycle_ms=cycle.total_ms, gap_at_least=cycle.gap_at_least)
    if step is not None:
        scenario = replace(scenario, step_ms=step.total_ms)
    alike = {priced.alike for priced in (cycle, step) if priced}
    if cycle is not None and len(alike) == 1:
        scenario = replace(scenario, like=next((one for one in comparison.rows if one.batch_size in alike), row))
    return replace(scenario, notes=(*scenario.notes, *(notes or [GRAPHED_ALREADY])))


def _with_draft_tokens(scenario: _Scenario, tokens: int, rows: Sequence[Row]) -> _Scenario:
    row, drafted = scenario.row, scenario.draft_tokens
    if drafted is None or not scenario.chain:
        raise RefusedError("only a chain of known length can be shortened")
    if tokens > drafted:
        raise RefusedError(f"acceptance was measured for {drafted} drafted tokens, not {tokens}")
    if not scenario.parts:
        raise RefusedError("the cycle's parts are not known")
    if scenario.simulated and tokens != drafted:
        raise RefusedError("the accept length is simulated: where a draft would stop is not known")
    histogram = row.candidate.histogram
    passes = sum(histogram)
    if passes < MIN_PASSES:
        raise RefusedError(f"{passes} verify passes say too little about single positions")
    if tokens == drafted:
        return scenario
    accept_length = 1 + sum(sum(histogram[position:]) for position in range(1, tokens + 1)) / passes
    verify = _verify_price(row, row.batch_size * (tokens + 1), drafted, rows)
    parts: dict[Phase, float] = {"verify": verify}
    if "draft" in scenario.parts:
        parts["draft"] = scenario.parts["draft"] * tokens / drafted
    notes = (
        f"verify of {row.batch_size * (tokens + 1)} tokens at {number(verify)} ms, between measured passes",
        "draft in proportion to its steps, draft-extend unchanged",
    )
    return replace(_repriced(scenario, parts, notes), accept_length=accept_length, draft_tokens=tokens)


def _verify_price(row: Row, tokens: int, drafted: int, rows: Sequence[Row]) -> float:
    """Target pass of `tokens` tokens, interpolated between decode passes (one a request) and verify passes.

    Only passes as graphed as this row's verify are used. Raises RefusedError outside the measured range.
    """
    graphed = row.candidate.graph_share.get("verify", 1.0) > EAGER
    points: dict[int, list[float]] = {}
    for one in rows:
        for cost, phase, width in ((one.baseline, "decode", 1), (one.candidate, "verify", drafted + 1)):
            if phase in cost.parts and (cost.graph_share.get(phase, 1.0) > EAGER) == graphed:
                points.setdefault(one.batch_size * width, []).append(cost.parts[phase])
    known = sorted((count, sum(times) / len(times)) for count, times in points.items())
    for (small, low), (large, high) in pairwise(known):
        if small <= tokens <= large:
            return low + (high - low) * (tokens - small) / (large - small)
    raise RefusedError(
        f"no pass {'with' if graphed else 'without'} a graph was measured on both sides of {tokens} tokens"
    )


def _relative(interval: Interval | None, value: float) -> Interval | None:
    return None if interval is None else (interval[0] / value, interval[1] / value)


def _scaled(relative: Interval | None, value: float) -> Interval | None:
    return None if relative is None else (relative[0] * value, relative[1] * value)
