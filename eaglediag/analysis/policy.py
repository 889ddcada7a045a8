"""The gates of `eaglediag check`: what a capture must reach, and whether the data say that it does.

A gate passes when the whole interval lies within its limit, fails when the whole interval lies outside, and is
inconclusive otherwise: a regression that the data do not support fails nothing, and a pass they do not support is none.
So it is where the captures that a gate rests on are not comparable, the accept length was set and not reached, or a
whole cycle seems to take less time than one plain step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from eaglediag.analysis.comparison import Comparison, compare
from eaglediag.analysis.figures import interval, number, percent
from eaglediag.analysis.measured import Arm, BatchCost, accept_length_told
from eaglediag.analysis.pairing import BETWEEN_STARTS, Row
from eaglediag.analysis.sentences import PHASE_NAMES, condition
from eaglediag.analysis.statistics import MIN_TURNS, Estimate, estimate
from eaglediag.capture.model import Capture, Phase
from eaglediag.errors import UsageError

Status = Literal["pass", "fail", "inconclusive"]
OnInconclusive = Literal["fail", "warn"]
PHASES: tuple[Phase, ...] = get_args(Phase)
#: A phase is graphed when at least this share of its passes ran as a graph.
GRAPHED = 0.99


@dataclass(frozen=True)
class Policy:
    """What `check` asks. None or empty: not asked. In TOML the names are written with hyphens.

    `maximum_regression` is by phase, or "step" for the whole step or cycle: 0.05 lets it get 5 % longer than in the
    previous capture. `allowed_denials` are shell patterns on a denial's gate, condition or phase; None allows all, and
    those of prefill, which most servers run without graphs, are not asked about.
    `batch_sizes` limits the gates to these; empty means every batch size with enough steps.
    """

    minimum_speedup: float | None = None
    maximum_break_even: float | None = None
    minimum_accept_length: float | None = None
    maximum_regression: Mapping[str, float] = field(default_factory=dict)
    graphed_phases: tuple[Phase, ...] = ()
    allowed_denials: tuple[str, ...] | None = None
    require_comparable: bool = True
    maximum_overhead: float | None = None
    batch_sizes: tuple[int, ...] = ()
    on_inconclusive: OnInconclusive = "fail"


#: Without a policy: speculation must not make things slower.
DEFAULT = Policy(minimum_speedup=1.0)


@dataclass(frozen=True)
class Gate:
    """One gate's answer: what was asked, what was measured, and why that passes or not."""

    name: str
    status: Status
    asked: str
    measured: str
    detail: str = ""


@dataclass(frozen=True)
class Check:
    """All gates, and the exit code that they end the command with."""

    gates: tuple[Gate, ...]
    on_inconclusive: OnInconclusive

    @property
    def exit_code(self) -> int:
        """1 when a gate failed; 3 when one is inconclusive and that may not pass; else 0."""
        statuses = {gate.status for gate in self.gates}
        if "fail" in statuses:
            return 1
        return 3 if "inconclusive" in statuses and self.on_inconclusive == "fail" else 0

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        counts = {status: sum(gate.status == status for gate in self.gates) for status in get_args(Status)}
        told = [
            f"{counts[status]} {said}"
            for status, said in (("fail", "failed"), ("inconclusive", "inconclusive"))
            if counts[status]
        ]
        of = f"of {len(self.gates)} gates"
        if not told:
            return f"Pass: all {len(self.gates)} gates."
        verdict = {0: "Pass, with a warning", 1: "Fail", 3: "Inconclusive"}[self.exit_code]
        return f"{verdict}: {' and '.join(told)} {of}."


def read(table: Mapping[str, Any], source: str) -> Policy:
    """A policy from a TOML table. Raises UsageError for keys that do not exist and values of the wrong type."""
    known = {one.name.replace("_", "-"): one.name for one in fields(Policy)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise UsageError(f"{source} has an unknown key {key}", f"known: {', '.join(known)}")
        values[known[key]] = _checked(known[key], value, f"{source}: {key}")
    return replace(Policy(), **values)


def _checked(name: str, value: Any, where: str) -> Any:
    match name:
        case "require_comparable":
            if not isinstance(value, bool):
                raise UsageError(f"{where} must be true or false")
        case "on_inconclusive":
            if value not in get_args(OnInconclusive):
                raise UsageError(f"{where} must be fail or warn")
        case "maximum_regression":
            if not isinstance(value, Mapping):
                return {"step": _number(value, where)}
            unknown = set(value) - {*PHASES, "step"}
            if unknown:
                raise UsageError(f"{where} names {', '.join(sorted(unknown))}", f"known: step, {', '.join(PHASES)}")
            return {phase: _number(limit, where) for phase, limit in value.items()}
        case "graphed_phases":
            if not isinstance(value, list) or not set(value) <= set(PHASES):
                raise UsageError(f"{where} must be a list of phases", f"known: {', '.join(PHASES)}")
            return tuple(value)
        case "allowed_denials":
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise UsageError(f"{where} must be a list of patterns")
            return tuple(value)
        case "batch_sizes":
            if not isinstance(value, list) or not all(isinstance(one, int) and one > 0 for one in value):
                raise UsageError(f"{where} must be a list of batch sizes")
            return tuple(value)
        case _:
            return _number(value, where)
    return value


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise UsageError(f"{where} must be a number, 0 or more")
    return float(value)


def check(policy: Policy, candidate: Capture, baseline: Capture, older: Capture | None = None) -> Check:
    """Ask every gate. `older` is an older capture of the candidate's arm.

    Raises UsageError for a policy that asks about regressions when there is no older capture; else as `compare`.
    """
    if policy.maximum_regression and older is None:
        raise UsageError("the policy limits regressions", "give the older capture with --previous")
    against, previous = compare(baseline, candidate), compare(older, candidate) if older else None
    others = {"baseline": baseline} | ({"previous": older} if older else {})
    gates = [
        *_comparable(policy, against, previous),
        *_complete(candidate, others),
        *_rows(policy, against, _set(candidate, against.candidate)),
        *(_regressions(policy, previous) if previous else ()),
        *_graphs(policy, against),
        *_denials(policy, against),
        *_overhead(policy, candidate),
    ]
    return Check(tuple(gates), policy.on_inconclusive)


def _judge(
    name: str, value: Estimate | None, asked: str, *, least: float | None = None, most: float | None = None
) -> Gate:
    if value is None:
        return Gate(name, "inconclusive", asked, "–", "not measured")
    low, high = (-float("inf") if least is None else least), (float("inf") if most is None else most)
    if value.interval is None:
        beyond = "within" if low <= value.value <= high else "beyond"
        return Gate(
            name, "inconclusive", asked, interval(value), f"{beyond} the limit, but too little data for an interval"
        )
    status: Status = "inconclusive"
    detail = "the interval reaches over the limit: measure longer"
    if low <= value.low and value.high <= high:
        status, detail = "pass", ""
    elif value.high < low or value.low > high:
        status, detail = "fail", "the whole interval is beyond the limit"
    return Gate(name, status, asked, interval(value), detail)


def _between_starts(gate: Gate, row: Row | None, ratio: Estimate | None, limit: float) -> Gate:
    """The gate, with a warning where another start of the server might have answered otherwise."""
    if gate.status == "inconclusive" or row is None or ratio is None or not row.few_starts:
        return gate
    if abs(ratio.value - limit) >= BETWEEN_STARTS * limit:
        return gate
    warning = f"closer to the limit than two starts of one server may be to each other: probe with --repeat {MIN_TURNS}"
    return replace(gate, detail="; ".join(filter(None, (gate.detail, warning))))


def _comparable(policy: Policy, against: Comparison, previous: Comparison | None) -> Iterator[Gate]:
    if not policy.require_comparable:
        return
    for name, one in (("comparable with the baseline", against), ("comparable with the previous", previous)):
        if one is None:
            continue
        grave = one.comparability.graded("not_comparable")
        doubtful = one.comparability.graded("confounding")
        if one is previous:
            # An older capture of the same arm is there to differ in release, commit and flags.
            doubtful = tuple(
                difference for difference in doubtful if difference.what.startswith(("GPU", "workload", "time"))
            )
        unknown = f"not on record: {', '.join(one.comparability.unknown)}" if one.comparability.unknown else ""
        named = "; ".join(map(str, grave or doubtful)) or unknown
        shown = "not comparable" if grave else "could be confounded" if doubtful else "comparable"
        yield Gate(name, "inconclusive" if grave or doubtful else "pass", "comparable", shown, named)


def _complete(candidate: Capture, others: Mapping[str, Capture]) -> Iterator[Gate]:
    whole, shown = _whole(candidate)
    lacking = [
        f"the {name} capture is {told}" for name, one in others.items() for fine, told in [_whole(one)] if not fine
    ]
    status: Status = "pass" if whole and not lacking else "inconclusive"
    yield Gate("complete capture", status, "complete, all ranks", shown, "; ".join(lacking))


def _whole(capture: Capture) -> tuple[bool, str]:
    """Whether a capture is complete, with every rank in it, and how that is said."""
    expected = capture.instrumentation.ranks_expected
    seen = sum(rank.seen for rank in capture.instrumentation.ranks)
    shown = capture.status + (f", {seen} of {expected} ranks" if expected is not None else "")
    return capture.status == "complete" and (expected is None or seen >= expected), shown


def _apart(policy: Policy, comparison: Comparison, what: str) -> str:
    """Why nothing follows from a comparison; nothing when something does, or the policy says that it shall."""
    grave = comparison.comparability.graded("not_comparable") if policy.require_comparable else ()
    return f"not comparable with the {what}: {'; '.join(one.what for one in grave)}" if grave else ""


def _set(candidate: Capture, arm: Arm) -> str:
    """Why an accept length, and a speed-up by it, is not the draft's; nothing when it is."""
    if (told := accept_length_told(candidate)) is not None:
        return f"the accept length is set to {number(told)}, not reached by the draft"
    return "the accept length never moves: it looks set, not reached by the draft" if arm.accept_length_set else ""


def _too_cheap(row: Row | None) -> str:
    """Why a row's break-even is not believed; nothing when it may be."""
    if row is None or not row.below_one:
        return ""
    return "a cycle seems to take less time than one decode step: measure both again"


def _unless(gate: Gate, *reasons: str) -> Gate:
    """The gate, without an answer when there is a reason that it cannot have one."""
    given = "; ".join(filter(None, reasons))
    return replace(gate, status="inconclusive", detail=given) if given else gate


def _rows(policy: Policy, against: Comparison, accept_length_set: str) -> Iterator[Gate]:
    apart = _apart(policy, against, "baseline")
    rows = {row.batch_size: row for row in against.rows}
    loads = {load.concurrency: load for load in against.loads}
    for size in policy.batch_sizes or sorted(rows) or sorted(loads):
        row, load = rows.get(size), loads.get(size)
        where = f"at batch {size}"
        if policy.minimum_speedup is not None:
            speedup = row.speedup if row else load.speedup if load else None
            asked = f"≥ {number(policy.minimum_speedup)} ×"
            gate = _judge(f"speed-up {where}", speedup, asked, least=policy.minimum_speedup)
            gate = _between_starts(gate, row, speedup, policy.minimum_speedup)
            yield _unless(gate, apart, accept_length_set, _too_cheap(row))
        if policy.maximum_break_even is not None:
            length = row.break_even_length if row else None
            asked = f"≤ {number(policy.maximum_break_even)} tokens"
            gate = _judge(f"break-even {where}", length, asked, most=policy.maximum_break_even)
            yield _unless(gate, apart, _too_cheap(row))
        if policy.minimum_accept_length is not None:
            accepted = row.candidate.accept_length if row else None
            asked = f"≥ {number(policy.minimum_accept_length)} tokens"
            gate = _judge(f"accept length {where}", accepted, asked, least=policy.minimum_accept_length)
            yield _unless(gate, accept_length_set)


def _regressions(policy: Policy, previous: Comparison) -> Iterator[Gate]:
    apart = _apart(policy, previous, "previous")
    rows = {row.batch_size: row for row in previous.rows}
    for size in policy.batch_sizes or sorted(rows):
        for phase, limit in policy.maximum_regression.items():
            ratio = _ratio(rows[size], phase, 1 + limit) if size in rows else None
            name = "step" if phase == "step" else PHASE_NAMES[phase]  # type: ignore[index]
            gate = _judge(f"{name} time at batch {size}, new / old", ratio, f"≤ {number(1 + limit)} ×", most=1 + limit)
            yield _unless(_between_starts(gate, rows.get(size), ratio, 1 + limit), apart)


def _ratio(row: Row, phase: str, limit: float) -> Estimate | None:
    column = "period_ms" if phase == "step" else phase
    if not (_measured(row.baseline, column) and _measured(row.candidate, column)):
        return None
    return estimate(
        lambda old, new: (new[column] / new["steps"]) / (old[column] / old["steps"]),
        row.baseline.resampled,
        row.candidate.resampled,
        undecided=limit,
    )


def _measured(cost: BatchCost, column: str) -> bool:
    return column in cost.resampled.sums and bool(cost.resampled.sums[column].any())


def _graphs(policy: Policy, against: Comparison) -> Iterator[Gate]:
    for phase in policy.graphed_phases:
        share = against.candidate.graph_share.get(phase)
        status: Status = "inconclusive" if share is None else "pass" if share >= GRAPHED else "fail"
        detail = "the engine does not say, or the phase never ran" if share is None else ""
        yield Gate(f"{PHASE_NAMES[phase]} graphed", status, f"≥ {percent(GRAPHED)} of passes", percent(share), detail)


def _denials(policy: Policy, against: Comparison) -> Iterator[Gate]:
    if policy.allowed_denials is None:
        return
    refused = [
        f"{PHASE_NAMES[one.denial.phase]}: {condition(one.denial)}"
        for one in against.denials
        if one.arm == against.candidate.name
        and one.denial.decides
        and one.denial.phase != "extend"
        and not any(
            fnmatchcase(text, pattern)
            for pattern in policy.allowed_denials
            for text in (one.denial.gate, one.denial.frames[-1].text if one.denial.frames else "", one.denial.phase)
        )
    ]
    yield Gate(
        "denials",
        "fail" if refused else "pass",
        "none but " + ", ".join(policy.allowed_denials) if policy.allowed_denials else "none",
        f"{len(refused)} others" if policy.allowed_denials else str(len(refused)),
        "; ".join(refused[:5]),
    )


def _overhead(policy: Policy, candidate: Capture) -> Iterator[Gate]:
    if policy.maximum_overhead is None:
        return
    overhead = candidate.instrumentation.overhead
    ratio = None if overhead.ratio is None else Estimate(overhead.ratio, overhead.interval)
    yield _judge(
        "agent's overhead", ratio, f"≤ {number(1 + policy.maximum_overhead)} ×", most=1 + policy.maximum_overhead
    )
