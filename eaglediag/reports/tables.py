"""What a comparison's reports show, as plain tables and lines; terminal and markdown only lay them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eaglediag.analysis.breakeven import Interval
from eaglediag.analysis.comparison import ArmRefusals, Comparison
from eaglediag.analysis.figures import estimate, fixed, interval, number, percent, signed
from eaglediag.analysis.graph_price import EAGER
from eaglediag.analysis.held import Held
from eaglediag.analysis.measured import CYCLE_PARTS
from eaglediag.analysis.pairing import Load, Row
from eaglediag.analysis.policy import Check
from eaglediag.analysis.sentences import PHASE_NAMES
from eaglediag.analysis.statistics import Estimate
from eaglediag.analysis.sweep import Crossing
from eaglediag.analysis.whatif import Bound, WhatIf
from eaglediag.capture.model import Phase

OUTCOMES = {
    "better": "better",
    "worse": "worse",
    "equal": "equal",
    "inconclusive": "inconclusive",
    "not_comparable": "not comparable",
}


#: What stands before a figure that is a bound, or rests on two.
SIGNS: dict[Bound, str] = {"at least": "≥ ", "at most": "≤ ", "about": "≈ ", "": ""}


@dataclass(frozen=True)
class Table:
    """Cells as text, every header with its unit. `[low, high]` in a cell is a 95 % interval."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(comparison: Comparison) -> list[Table]:
    """The tables of a comparison, leaving out those that would be empty."""
    shown = [*main_tables(comparison), _loads(comparison), _graphs(comparison)]
    return [table for table in dict.fromkeys(shown) if table.rows]


def main_tables(comparison: Comparison) -> list[Table]:
    """What a step costs, what it yields and where the time goes; without steps, what the clients saw."""
    if not comparison.rows:
        return [_loads(comparison)]
    return [table for table in (_cost(comparison), _break_even(comparison), shares(comparison)) if table.rows]


def break_evens(comparison: Comparison) -> Table:
    """Break-even against what is reached, by batch size; by concurrency when steps were not measured."""
    rows: tuple[Row, ...] | tuple[Load, ...] = comparison.rows or comparison.loads
    judged = [(row, row.break_even) for row in rows if row.break_even is not None]
    return Table(
        "Break-even",
        (
            "batch" if comparison.rows else "concurrency",
            "break-even, tokens",
            "reached, tokens",
            "most, tokens",
            "acceptance rate, % (needed)",
            "speed-up, ×",
            "room, ms",
        ),
        tuple(
            (
                str(row.batch_size if isinstance(row, Row) else row.concurrency),
                _bounded(answer.break_even_accept_length, answer.break_even_interval),
                _bounded(answer.accept_length, answer.accept_length_interval),
                str(answer.max_accept_length or "–"),
                f"{_rate(answer.acceptance_rate)} ({_rate(answer.required_acceptance_rate)})",
                interval(row.speedup),
                number(answer.headroom_ms),
            )
            for row, answer in judged
        ),
    )


def what_if(result: WhatIf) -> Table:
    """Every batch size as it is and as it would be."""
    rows = []
    for row in result.rows:
        before, after = row.before, row.after
        cells = ["–", "–", "no answer"]
        if after is not None and row.prediction is not None:
            of_break_even, of_speedup = SIGNS[row.prediction.break_even_bound], SIGNS[row.prediction.speedup_bound]
            cells = [
                of_break_even + _bounded(after.break_even_accept_length, after.break_even_interval),
                of_speedup + _bounded(after.speedup, after.speedup_interval),
                (after.verdict or "–").replace("_", "-"),
            ]
        now = _bounded(before.break_even_accept_length, before.break_even_interval)
        speedup = _bounded(before.speedup, before.speedup_interval)
        rows.append((str(row.batch_size), now, cells[0], speedup, cells[1], cells[2]))
    return Table(
        "What if: " + ", ".join(result.asked),
        ("batch", "break-even now, tokens", "then, tokens", "speed-up now, ×", "then, ×", "verdict"),
        tuple(rows),
    )


def predictions(result: WhatIf) -> Table:
    """What a later capture would measure at the batch sizes that change."""
    rows = []
    for row in result.rows:
        one = row.prediction
        if one is None or (one.cycle_ms == row.before.cycle_ms and one.step_ms == row.before.step_ms):
            continue
        parts = (_fixed(one.parts.get(part), SIGNS["at least" if part in one.at_least else ""]) for part in CYCLE_PARTS)
        rows.append(
            (
                str(row.batch_size),
                number(row.before.step_ms),
                _fixed(one.step_ms, SIGNS[one.step_bound]),
                number(row.before.cycle_ms),
                _fixed(one.cycle_ms, SIGNS[one.cycle_bound]),
                *parts,
                _fixed(one.gap_ms, SIGNS[one.gap_bound]),
            )
        )
    return Table(
        "Predicted",
        (
            "batch",
            "decode step now, ms",
            "then, ms",
            "cycle now, ms",
            "then, ms",
            *(f"{PHASE_NAMES[part]}, ms" for part in CYCLE_PARTS),
            "gap, ms",
        ),
        tuple(rows),
    )


def held(found: Sequence[Held]) -> Table:
    """Predictions beside what was measured afterwards. The error is the prediction's, against the measured value."""
    kept = {None: "", True: "bound kept", False: "bound broken"}
    return Table(
        "Predicted and measured",
        ("batch", "figure", "predicted", "measured", "error, %", ""),
        tuple(
            (
                str(one.batch_size),
                f"{one.quantity}, {one.unit}",
                _fixed(one.predicted, SIGNS[one.bound]),
                interval(one.measured) if one.measured.interval else _fixed(one.measured.value),
                signed(100 * one.error, 1),
                kept[one.kept],
            )
            for one in found
        ),
    )


def choices(result: WhatIf) -> Table:
    """The speed-up with every number of drafted tokens, and the best where one stands out."""
    most = max((len(choice.speedups) for choice in result.choices), default=0)
    rows = []
    for choice in result.choices:
        speedups = [number(speedup) for speedup in choice.speedups] + ["–"] * (most - len(choice.speedups))
        best = str(choice.best) if choice.best else "refused" if choice.refused else "none stands out"
        rows.append(
            (str(choice.batch_size), *speedups, best, "–" if choice.margin is None else f"{100 * choice.margin:.1f}")
        )
    headers = (f"speed-up with {tokens}, ×" for tokens in range(1, most + 1))
    return Table("Drafted tokens", ("batch", *headers, "best", "margin, ± %"), tuple(rows))


def pricing(result: WhatIf) -> list[str]:
    """How each batch size was priced, or why it was refused; then where speculation starts to lose."""
    alike: dict[str, list[int]] = {}
    for row in result.rows:
        if row.refused or row.notes:
            alike.setdefault(row.refused or "; ".join(row.notes), []).append(row.batch_size)
    lines = [f"batch {', '.join(map(str, sizes))}: {said}" for said, sizes in alike.items()]
    lines += [
        f"batch {one.batch_size}, drafted tokens: {one.refused}"
        for one in result.choices
        if one.refused and one.refused not in alike
    ]
    return [*lines, f"now: speculation {result.crossover_before}", f"then: speculation {result.crossover_after}"]


def crossings(found: Sequence[Crossing]) -> Table:
    """The measured crossing of an accept-length sweep against the computed break-even."""
    rows = []
    for one in found:
        apart = "–" if one.apart is None else signed(100 * one.apart, 1)
        measured = "none" if one.measured is None else number(one.measured)
        rows.append((str(one.concurrency), measured, interval(one.computed), apart))
    return Table(
        "Where a sweep of accept lengths crosses break-even",
        ("concurrency", "measured crossing, tokens", "computed (cycle / step), tokens", "apart, %"),
        tuple(rows),
    )


def swept(found: Sequence[Crossing]) -> list[str]:
    """The speed-up seen at every accept length of a sweep."""
    return [
        f"concurrency {one.concurrency}: "
        + ", ".join(f"{speedup:.2f} × at {length:g}" for length, speedup in one.points)
        for one in found
    ]


def denials(comparison: Comparison, *, everything: bool = False) -> list[str]:
    """Conditions that denied a graph and are in no finding, one line for each phase and condition.

    Unless `everything` is asked for, only those of eager phases that no finding explains.
    """
    told = {pair for finding in comparison.findings for pair in finding.denied}
    arms = {arm.name: arm for arm in (comparison.baseline, comparison.candidate)}
    folded: dict[tuple[object, ...], list[ArmRefusals]] = {}
    for one in comparison.refusals:
        denial = one.refusals.denial
        if denial.decides and (one.arm, denial.phase) in told:
            continue
        eager = arms[one.arm].graph_share.get(denial.phase, 1.0) < EAGER and denial.phase not in ("extend", "idle")
        if everything or (eager and (one.arm, denial.phase) not in told):
            leaf = denial.frames[-1] if denial.frames else None
            where = (leaf.file, leaf.line, leaf.text) if leaf else (denial.gate, denial.reason)
            folded.setdefault((one.arm, denial.phase, denial.decides, *where), []).append(one)
    return [_refusal(alike) for alike in folded.values()]


def left_out(comparison: Comparison) -> int:
    """How many conditions only `everything` shows: those of prefill, and those behind a gate that had decided."""
    return len(denials(comparison, everything=True)) - len(denials(comparison))


def _refusal(alike: Sequence[ArmRefusals]) -> str:
    """Refusals of one phase by one condition, over all batch sizes and values; the most frequent is shown."""
    first = alike[0]
    if len(alike) == 1:
        line = first.refusals.line
    else:
        counts: dict[int, int] = {}
        for one in alike:
            for rank, count in one.refusals.counts.items():
                counts[rank] = counts.get(rank, 0) + count
        sizes = tuple(sorted({size for one in alike for size in one.refusals.batch_sizes}))
        line = replace(first.refusals, batch_sizes=sizes, counts=counts, share=None).line
    return f"{first.arm}: {line}" + ("" if first.refusals.denial.decides else " (eager already, by another gate)")


def gates(result: Check) -> Table:
    """One line a gate."""
    return Table(
        "Gates",
        ("gate", "result", "measured", "asked", "because"),
        tuple((gate.name, gate.status, gate.measured, gate.asked, gate.detail) for gate in result.gates),
    )


def shares(comparison: Comparison) -> Table:
    """Where the main row's cycle loses its time, in ms that add up."""
    row = comparison.rows[0] if comparison.rows else None
    if row is None or not comparison.shares:
        return Table("", ("share", "ms"), ())
    aim = "break-even" if row.break_even_length is not None else "the old pace"
    total = sum(share.ms for share in comparison.shares)
    decimals = len(estimate(row.candidate.period).partition(".")[2])
    lines = [(share.text, signed(share.ms, decimals)) for share in comparison.shares]
    distance = f"{'too long for' if total > 0 else 'shorter than'} {aim}"
    return Table(
        f"Between the {'cycle' if row.candidate.kind == 'cycle' else 'step'} and {aim} at batch {row.batch_size}",
        ("share", "time, ms"),
        (*lines, (distance, signed(total, decimals))),
    )


def differences(comparison: Comparison) -> list[str]:
    """What differs between the arms beside speculation, gravest first, and what is not on record."""
    grades = {"confounding": "could explain it", "not_comparable": "forbids a verdict"}
    found = comparison.comparability
    named = [f"{grades[one.grade]}: {one}" for one in found.differences if one.grade in grades]
    if harmless := found.graded("harmless"):
        named.append("harmless: " + ", ".join(one.what for one in harmless))
    return [*named, *(f"not on record: {what}" for what in found.unknown)]


def problems(comparison: Comparison) -> list[tuple[str, str]]:
    """(what, what to do) for everything that weakens the comparison; what both arms share is said once."""
    arms: dict[tuple[str, str], list[str]] = {}
    for one in comparison.problems:
        arms.setdefault((one.problem.message, one.problem.advice), []).append(one.arm)
    return [
        (f"{' and '.join(dict.fromkeys(named))}: {message}" if all(named) else message, advice)
        for (message, advice), named in arms.items()
    ]


def short_problems(comparison: Comparison) -> list[str]:
    """The same, one line each, an advice given once."""
    lines = []
    given: set[str] = set()
    for what, advice in problems(comparison):
        lines.append(what if advice in given or not advice else f"{what}; {advice}")
        given.add(advice)
    return lines


def set_accept_length(comparison: Comparison) -> list[str]:
    """That the accept length was set, where it was; a verdict on speculation rests on it."""
    return [f"{one.what}; {one.advice}" for one in comparison.findings if one.code == "simulated_acceptance"]


def _cost(comparison: Comparison) -> Table:
    plain = not comparison.baseline.speculative
    parts: tuple[Phase, ...] = ("draft", "verify", "draft_extend") if comparison.candidate.speculative else ("decode",)
    base, other = ("decode step", "cycle") if plain and comparison.candidate.speculative else _names(comparison)
    headers = (
        "batch",
        "steps",
        f"{base}, ms",
        f"{other}, ms",
        *(f"{PHASE_NAMES[part]}, ms" for part in parts),
        "gap, ms",
    )
    return Table(
        "What a step costs",
        headers,
        tuple(
            (
                str(row.batch_size),
                f"{row.baseline.steps} / {row.candidate.steps}",
                interval(row.baseline.period),
                interval(row.candidate.period),
                *(_part(row, part) for part in parts),
                _like(row.candidate.gap_ms, row.candidate.period),
            )
            for row in comparison.rows
        ),
    )


def _break_even(comparison: Comparison) -> Table:
    return _known(
        "What it yields",
        (
            "batch",
            "accept length, tokens",
            "break-even, tokens",
            "speed-up implied, ×",
            "speed-up seen, × (off by)",
            "outcome",
        ),
        tuple(
            (
                str(row.batch_size),
                interval(row.candidate.accept_length),
                interval(row.break_even_length),
                interval(row.speedup),
                _seen(row),
                OUTCOMES[row.outcome] if not _impossible(row) else f"{OUTCOMES[row.outcome]} (cannot win)",
            )
            for row in comparison.rows
        ),
    )


def _known(title: str, headers: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> Table:
    """A table without the columns in which nothing is known."""
    kept = [column for column in range(len(headers)) if any(row[column] != "–" for row in rows)]
    return Table(
        title, tuple(headers[column] for column in kept), tuple(tuple(row[column] for column in kept) for row in rows)
    )


def _loads(comparison: Comparison) -> Table:
    base, other = _names(comparison)
    return Table(
        "What the clients saw",
        ("concurrency", f"{base}, tokens/s", f"{other}, tokens/s", "speed-up, ×", "requests", "outcome"),
        tuple(
            (
                str(load.concurrency),
                number(load.baseline.throughput),
                number(load.candidate.throughput),
                interval(load.speedup),
                f"{load.baseline.requests} / {load.candidate.requests}",
                OUTCOMES[load.outcome],
            )
            for load in comparison.loads
        ),
    )


def _graphs(comparison: Comparison) -> Table:
    phases = [
        phase
        for phase in PHASE_NAMES
        if phase in comparison.baseline.graph_share or phase in comparison.candidate.graph_share
    ]
    return Table(
        "Passes that ran as a graph",
        ("phase", *_names(comparison)),
        tuple(
            (
                PHASE_NAMES[phase],
                *(percent(arm.graph_share.get(phase)) for arm in (comparison.baseline, comparison.candidate)),
            )
            for phase in phases
        ),
    )


def _names(comparison: Comparison) -> tuple[str, str]:
    return comparison.baseline.name, comparison.candidate.name


def _part(row: Row, phase: Phase) -> str:
    if phase not in row.candidate.parts:
        return "–"
    cost = _like(row.candidate.parts[phase], row.candidate.period)
    share = row.candidate.graph_share.get(phase)
    return cost if share is None or share > 0.5 else f"{cost} eager"


def _like(value: float | None, whole: Estimate) -> str:
    """A part with the decimals of its whole, so that a reader can add the parts up."""
    if value is None:
        return "–"
    decimals = len(estimate(whole).partition(".")[2])
    return fixed(value, decimals)


def _fixed(value: float | None, sign: str = "") -> str:
    """A predicted time beside others that it adds up with: two decimals, three below a tenth."""
    return "–" if value is None else sign + fixed(value, 2 if value >= 0.1 else 3)


def _bounded(value: float | None, bounds: Interval | None) -> str:
    return "–" if value is None else interval(Estimate(value, bounds))


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.0f}"


def _seen(row: Row) -> str:
    if row.seen is None or row.reconciliation is None:
        return "–"
    return f"{estimate(row.seen)} ({100 * row.reconciliation:+.0f} %)"


def _impossible(row: Row | Load) -> bool:
    return row.break_even is not None and row.break_even.verdict == "impossible"
