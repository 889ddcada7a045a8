"""Two arms, compared per batch size and per concurrency: what each step costs, what it yields, and whether it pays."""

from __future__ import annotations

from dataclasses import dataclass

from eaglediag.analysis import sentences
from eaglediag.analysis.comparability import Comparability, comparability
from eaglediag.analysis.denials import Refusals, refusals
from eaglediag.analysis.findings import Case, Finding, Share, find, shares
from eaglediag.analysis.measured import Arm, measure
from eaglediag.analysis.pairing import MIN_STEPS, Load, Outcome, Row, pair_loads, pair_rows
from eaglediag.analysis.suspects import suspects
from eaglediag.capture.model import Capture, Denial, Problem
from eaglediag.errors import NotComparable, UsageError


@dataclass(frozen=True)
class Skipped:
    """A batch size without a row, and why."""

    batch_size: int
    why: str


@dataclass(frozen=True)
class ArmProblem:
    """Something to know before trusting one arm (or, with arm "", the comparison)."""

    arm: str
    problem: Problem


@dataclass(frozen=True)
class ArmDenial:
    """A denied graph in one arm."""

    arm: str
    denial: Denial


@dataclass(frozen=True)
class ArmRefusals:
    """Denials of one arm that are alike."""

    arm: str
    refusals: Refusals


@dataclass(frozen=True)
class Comparison:
    """The comparison. `headline` is the verdict in one sentence, with its cause.

    `shares` split the ms by which the main row's cycle misses (or beats) break-even, and add up to them.
    """

    baseline: Arm
    candidate: Arm
    comparability: Comparability
    outcome: Outcome
    headline: str
    rows: tuple[Row, ...]
    loads: tuple[Load, ...]
    skipped: tuple[Skipped, ...]
    shares: tuple[Share, ...]
    findings: tuple[Finding, ...]
    denials: tuple[ArmDenial, ...]
    refusals: tuple[ArmRefusals, ...]
    problems: tuple[ArmProblem, ...]

    @property
    def main(self) -> Row | Load:
        """The row that the headline speaks of: the smallest batch size, where speculation has most to give."""
        return self.rows[0] if self.rows else self.loads[0]


def compare(baseline: Capture, candidate: Capture) -> Comparison:
    """Compare two captures: plain against speculative, or two of the same kind (older first).

    Raises UsageError when the arms are the wrong way round, NotComparable when they share no batch size and no
    concurrency.
    """
    base, other = measure(baseline, arm=0), measure(candidate, arm=1)
    if base.speculative and not other.speculative:
        raise UsageError(f"{base.name} speculates and {other.name} does not", "give the baseline first")
    settings = candidate.server.speculation if not base.speculative else None
    loads = pair_loads(base, other, settings)
    rows = pair_rows(base, other, loads, settings)
    if not rows and not loads:
        raise NotComparable(
            f"{base.name} and {other.name} share no batch size with {MIN_STEPS} steps in both and no concurrency",
            f"measure both under the same load ({_sizes(base)} against {_sizes(other)})",
        )
    problems = tuple(
        ArmProblem(arm.name, problem)
        for arm, capture in ((base, baseline), (other, candidate))
        for problem in (*capture.problems, *_problems(capture))
    )
    denials = tuple(
        ArmDenial(arm.name, denial)
        for arm, capture in ((base, baseline), (other, candidate))
        for denial in sorted(capture.denials, key=lambda denial: -sum(denial.counts.values()))
    )
    differences = comparability(baseline, candidate)
    split = shares(rows[0]) if rows else ()
    forbidden = differences.grade == "not_comparable"
    return Comparison(
        baseline=base,
        candidate=other,
        comparability=differences,
        outcome="not_comparable" if forbidden else (rows or loads)[0].outcome,
        headline=sentences.headline(base, other, rows, loads, denials, differences, split),
        rows=rows,
        loads=loads,
        skipped=_skipped(base, other),
        shares=split,
        findings=find(Case(baseline, candidate, base, other, rows, loads, differences)),
        denials=denials,
        refusals=tuple(
            ArmRefusals(arm.name, one)
            for arm, capture in ((base, baseline), (other, candidate))
            for one in refusals(capture)
        ),
        problems=problems + tuple(ArmProblem("", problem) for problem in suspects(rows, (baseline, candidate))),
    )


def _sizes(arm: Arm) -> str:
    sizes = ", ".join(f"{size}: {cost.steps} steps" for size, cost in arm.batches.items())
    return f"{arm.name}: {'batch ' + sizes if sizes else 'no steps'}"


def _skipped(base: Arm, other: Arm) -> tuple[Skipped, ...]:
    skipped = []
    for size in sorted(set(base.batches) | set(other.batches)):
        counts = [(arm.name, arm.batches[size].steps if size in arm.batches else 0) for arm in (base, other)]
        if min(steps for _, steps in counts) < MIN_STEPS:
            skipped.append(Skipped(size, ", ".join(f"{name} {steps} steps" for name, steps in counts)))
    return tuple(skipped)


def _problems(capture: Capture) -> list[Problem]:
    """What the capture's own fields say against trusting it, beyond what the probe already listed."""
    listed = {problem.code for problem in capture.problems}
    problems = []
    if capture.status == "partial" and not listed:
        problems.append(Problem(code="partial", message="the measurement ended early", advice="probe again"))
    expected = capture.instrumentation.ranks_expected
    seen = sum(rank.seen for rank in capture.instrumentation.ranks)
    if expected is not None and seen < expected and "ranks_missing" not in listed:
        problems.append(
            Problem(
                code="ranks_missing",
                message=f"{seen} of {expected} ranks were measured",
                advice="the missing ones may be the slow ones: see `refused` in the capture",
            )
        )
    failed = sum(window.failed_requests for window in capture.windows)
    if failed and "failed_requests" not in listed:
        problems.append(
            Problem(code="failed_requests", message=f"{failed} requests failed", advice="see the server's log")
        )
    return problems
