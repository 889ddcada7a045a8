"""The verdict in one sentence, with its cause."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from eaglediag.analysis.breakeven import BreakEven, Interval
from eaglediag.analysis.comparability import Comparability, Difference
from eaglediag.analysis.figures import estimate, faster_or_slower, fixed, interval, listed, number, signed
from eaglediag.analysis.measured import CYCLE_PARTS, Arm
from eaglediag.analysis.pairing import Load
from eaglediag.capture.model import Denial, Frame, Phase

if TYPE_CHECKING:
    from eaglediag.analysis.comparison import ArmDenial
    from eaglediag.analysis.findings import Share
    from eaglediag.analysis.pairing import Row

#: Longer values are left to the list of differences.
SHOWN = 60
#: An interval of the speed-up wider than this around 1 is not called break-even.
VAGUE = 0.1

#: Behind an accept length that says nothing of the draft.
SET = " (set, not reached by the draft)"

PHASE_NAMES: dict[Phase, str] = {
    "decode": "decode",
    "verify": "verify",
    "draft": "draft",
    "draft_extend": "draft-extend",
    "extend": "prefill",
    "idle": "idle",
}


def headline(
    base: Arm,
    other: Arm,
    rows: Sequence[Row],
    loads: Sequence[Load],
    denials: Sequence[ArmDenial],
    differences: Comparability,
    shares: Sequence[Share],
) -> str:
    """What happened at the smallest batch size and why; where others disagree; what else could explain it."""
    if rows:
        sentence = _headline_of_rows(base, other, rows, denials, shares)
    else:
        sentence = _headline_of_loads(_subject(base, other), loads)
    caution = comparability_sentence(differences)
    if differences.grade == "not_comparable":
        return f"{caution} For what it is worth: {sentence}."
    return f"{sentence}. {caution}" if caution else f"{sentence}."


def comparability_sentence(differences: Comparability) -> str:
    """What forbids a verdict, or else could explain it; nothing when the arms are comparable."""
    if forbidding := differences.graded("not_comparable"):
        return f"Not comparable: {_named(forbidding)}."
    if doubtful := differences.graded("confounding"):
        verb = "this" if len(doubtful) == 1 else "these"
        return f"The arms also differ in {_named(doubtful)}: {verb} could explain some or all of it."
    return ""


def _named(differences: Sequence[Difference]) -> str:
    named = [
        f"{one.what} ({one.baseline} against {one.candidate})"
        if len(one.baseline) + len(one.candidate) <= SHOWN
        else one.what
        for one in differences[:3]
    ]
    more = len(differences) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _headline_of_rows(
    base: Arm, other: Arm, rows: Sequence[Row], denials: Sequence[ArmDenial], shares: Sequence[Share]
) -> str:
    first, what = rows[0], _subject(base, other)
    sentence = f"{what} {_compared(first)} at batch {first.batch_size}{_cause(base, other, first, denials, shares)}"
    others = [row for row in rows[1:] if row.outcome != first.outcome and row.outcome != "inconclusive"]
    if others:
        sentence += f"; but {listed(f'at batch {row.batch_size} it {_compared(row)}' for row in others)}"
    open_ = [row for row in rows[1:] if row.outcome != first.outcome and row.outcome == "inconclusive"]
    if open_:
        sentence += f"; inconclusive at {listed(map(_open, open_))}"
    return sentence


def _open(row: Row) -> str:
    """A batch size without a verdict, and the eager passes that make it one of its own."""
    shares = {**row.baseline.graph_share, **row.candidate.graph_share}
    eager = [PHASE_NAMES[phase] for phase in PHASE_NAMES if shares.get(phase, 1.0) < 0.5]
    return f"batch {row.batch_size}" + (f" (without graphs for {listed(eager)})" if eager else "")


def condition(denial: Denial) -> str:
    """The condition that denied a graph, with its values and its place, on one line.

    `cuda_graph_bs <= self.max_bs` was `12 <= 8` (decode_cuda_graph_runner.py:420, through `is_bs_supported`, line 461)
    """
    if not denial.frames:
        return denial.reason or f"{denial.gate} said no; why is not known"
    leaf = denial.frames[-1]
    shown = f" was `{leaf.shown}`" if leaf.shown and leaf.shown != leaf.text else ""
    through = ""
    for frame in denial.frames[:-1]:
        name = _deciding_local(frame)
        if name == leaf.text:
            continue
        if name and frame.file == leaf.file:
            through += f", through `{name}`, line {frame.line}"
        elif name:
            through += f", through `{name}`, {frame.file.rsplit('/', 1)[-1]}:{frame.line}"
    return f"`{leaf.text}`{shown} ({leaf.file.rsplit('/', 1)[-1]}:{leaf.line}{through})"


def _deciding_local(frame: Frame) -> str:
    """The local variable that decided an `and` or `or`: the last operand that was evaluated; "" for anything else."""
    try:
        tree = ast.parse(frame.text, mode="eval").body
        operands = tree.values if isinstance(tree, ast.BoolOp) else [tree]
        evaluated = [operand for operand in operands if ast.unparse(operand) in frame.values]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return evaluated[-1].id if evaluated and isinstance(evaluated[-1], ast.Name) else ""


def breakeven_sentence(answer: BreakEven, where: str = "", accept_length_set: bool = False) -> str:
    """The verdict of a break-even question in one sentence. An accept length that was set is not called reached."""
    at = f" at {where}" if where else ""
    least = "at least " if answer.missing else ""
    break_even = _trimmed(answer.break_even_accept_length, answer.break_even_interval)
    needs = f"break-even needs an accept length of {least}{break_even}"
    how = "is set" if accept_length_set else "is reached"
    reached = f"{_trimmed(answer.accept_length, answer.accept_length_interval)} {how}"
    match answer.verdict:
        case "impossible":
            return (
                f"No accept length can win{at}: {needs}, and {answer.max_accept_length} is the most that this many "
                "drafted tokens can give."
            )
        case "inconsistent":
            return (
                f"The figures are inconsistent{at}: a break-even of {break_even} says that a whole cycle takes less "
                "time than one plain decode step."
            )
        case "win":
            if answer.missing and answer.headroom_ms is not None:
                return (
                    f"Speculation wins{at} only while {_listed(answer.missing)} take less than "
                    f"{number(answer.headroom_ms)} ms together: {needs}, {reached}."
                )
            return f"Speculation wins{at}: {needs}, {reached}."
        case "lose":
            return f"Speculation loses{at}: {needs}, {reached}."
        case "break_even":
            slow, fast = answer.speedup_interval or (1.0, 1.0)
            if fast - slow > VAGUE:
                return (
                    f"The figures cannot tell whether speculation wins{at}: {needs}, {reached}, but the speed-up "
                    f"may be anything from {number(slow, (fast - slow) / 2)} to {number(fast, (fast - slow) / 2)}."
                )
            return f"Speculation breaks even{at}, as far as the figures can tell: {needs}, {reached}."
        case _:
            return f"{needs[0].upper()}{needs[1:]}{at}; no accept length was given."


def _trimmed(value: float | None, interval: Interval | None) -> str:
    return number(value, None if interval is None else (interval[1] - interval[0]) / 2)


def missing_sentence(answer: BreakEven) -> str:
    """What the break-even leaves out, or what of the cycle nothing accounts for; else nothing."""
    if answer.unexplained_ms is not None and answer.cycle_ms is not None:
        known = answer.cycle_ms - answer.unexplained_ms
        return (
            f"Unexplained: {number(answer.unexplained_ms)} ms of the {number(answer.cycle_ms)} ms of a cycle are not "
            f"in the {number(known)} ms of the parts given."
        )
    if not answer.missing:
        return ""
    whose = _listed([f"{name}'s" for name in answer.missing])
    verb = "is" if len(answer.missing) == 1 else "are"
    return f"{whose[0].upper()}{whose[1:]} time {verb} not in this: at least {number(answer.break_even_accept_length)}."


def _listed(names: Sequence[str]) -> str:
    listed = [f"the {name}" for name in names]
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"


def _subject(base: Arm, other: Arm) -> str:
    """Two captures of one kind are called what their files are, as it is written."""
    return other.name if base.speculative == other.speculative else other.label[:1].upper() + other.label[1:]


def _compared(row: Row | Load) -> str:
    speedup = row.speedup if isinstance(row, Load) else row.decisive
    match row.outcome:
        case "equal":
            return f"is as fast ({signed(100 * (speedup.value - 1), 1)} %)"
        case "inconclusive" if speedup.interval is None:
            return f"seems {faster_or_slower(speedup)} (inconclusive: too little data for an interval)"
        case "inconclusive":
            return f"comes out at {interval(speedup)} times the speed (inconclusive)"
        case _:
            return f"is {faster_or_slower(speedup)}"


def _cause(base: Arm, other: Arm, row: Row, denials: Sequence[ArmDenial], shares: Sequence[Share]) -> str:
    if row.break_even_length is None:
        return _cause_of_change(row)
    accepted = row.candidate.accept_length
    if accepted is None:
        return f": a cycle costs {estimate(row.break_even_length)} decode steps; how many tokens it emits is not known"
    cause = (
        f" because a cycle costs {estimate(row.break_even_length)} decode steps and emits {estimate(accepted)} tokens"
        f"{SET if other.accept_length_set else ''}"
    )
    if row.break_even and row.break_even.verdict == "impossible":
        cause += f", and can never emit more than {row.break_even.max_accept_length}"
    if row.outcome not in ("worse", "inconclusive") or not row.candidate.parts:
        return cause
    largest = max(shares, key=lambda share: share.ms)
    decimals = len(estimate(row.candidate.period).partition(".")[2])
    paid = sum(share.ms for share in shares if share.part == "acceptance")
    balance = f"{fixed(-paid, decimals)} ms are paid back by accepted drafts"
    phase = next((part for part in CYCLE_PARTS if part == largest.part), None)
    if phase is None:
        return f"{cause}; {largest.ms:.{decimals}f} ms of it are {largest.text}, and {balance}"
    spent = row.candidate.parts[phase]
    cause += f"; {PHASE_NAMES[phase]} takes {spent:.{decimals}f} of its {estimate(row.candidate.period)} ms"
    if phase == "verify":
        cause += f", {largest.ms:.{decimals}f} more than a plain decode pass"
    return f"{cause}, and {balance}{_eager(base, other, row, phase, denials)}"


def _eager(base: Arm, other: Arm, row: Row, phase: Phase, denials: Sequence[ArmDenial]) -> str:
    share = row.candidate.graph_share.get(phase)
    if share is None or share > 0.5:
        return ""
    plain = row.baseline.graph_share.get("decode")
    contrast = ", as decode does" if plain is not None and plain <= 0.5 else ""
    for one in denials:
        fits = one.denial.batch_size in (None, row.batch_size) and one.denial.phase == phase and one.denial.decides
        if one.arm == other.name and fits:
            return f"; it runs without a graph{contrast}: {condition(one.denial)}"
    return f"; it runs without a graph{contrast}"


def _cause_of_change(row: Row) -> str:
    old, new = row.baseline, row.candidate
    times = estimate(new.period), estimate(old.period)
    taken = f"{times[0]} ms in both" if times[0] == times[1] else f"{times[0]} ms, not {times[1]}"
    cause = f": a {'cycle' if new.kind == 'cycle' else 'step'} takes {taken}"
    if old.accept_length and new.accept_length and estimate(old.accept_length) != estimate(new.accept_length):
        cause += f", and emits {estimate(new.accept_length)} tokens, not {estimate(old.accept_length)}"
    changes = {phase: new.parts[phase] - old.parts.get(phase, 0.0) for phase in new.parts}
    phase = max(changes, key=lambda part: abs(changes[part]), default=None)
    if phase is not None and round(changes[phase], 2):
        cause += f"; {PHASE_NAMES[phase]} changed most ({signed(changes[phase], 2)} ms)"
    return cause


def _headline_of_loads(what: str, loads: Sequence[Load]) -> str:
    first = loads[0]
    sentence = f"{what} {_compared(first)} at concurrency {first.concurrency}"
    if first.break_even:
        sentence += (
            f": {number(first.baseline.throughput)} tokens/s became {number(first.candidate.throughput)}; at an accept "
            f"length of {number(first.break_even.accept_length)} that is a cycle of "
            f"{number(first.break_even.break_even_accept_length)} decode steps"
        )
    others = [load for load in loads[1:] if load.outcome != first.outcome and load.outcome != "inconclusive"]
    if others:
        sentence += "; but " + ", ".join(
            f"at concurrency {load.concurrency} it {_compared(load)}" for load in others[:3]
        )
    return sentence
