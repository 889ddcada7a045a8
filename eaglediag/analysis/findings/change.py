"""The finding between two captures of the same arm: what changed, and which change is first to blame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eaglediag.analysis.comparability import Comparability, Difference
from eaglediag.analysis.comparability.gpus import PHYSICAL
from eaglediag.analysis.figures import number, signed
from eaglediag.analysis.findings.attribution import excess_ms, shares
from eaglediag.analysis.findings.finding import Case, Evidence, Finding, Part
from eaglediag.analysis.pairing import Row

#: In this order: what slows everything, then what was changed on purpose, then what came along. "time" is a difference
#: where no clocks are on record, and stands for them.
BLAME = (
    "GPU",
    "time",
    "host",
    "driver",
    "--",
    "argument",
    "environment",
    "attention",
    "sglang",
    "torch",
    "nccl",
    "workload",
    "",
)
#: The same for accept lengths, which the machine's state does not change: what sets them, what was asked, the code.
ACCEPTANCE_BLAME = (
    "environment SGLANG_SIMULATE_ACC",
    "--speculative",
    "argument speculative",
    "workload",
    "sglang",
    "",
)
NOT_ACCEPTANCE = ("GPU", "application clocks", "ECC", "NVLinks", "time", "host", "driver", "clock", "agent")
CODE = "first_to_blame"
#: Differences of how it was measured, which cannot be undone.
MEASUREMENT = ("clock", "agent", PHYSICAL)


def find(case: Case) -> Iterator[Finding]:
    """What explains that an arm is faster or slower than it was."""
    if not case.alike or not case.rows or case.rows[0].outcome not in ("better", "worse"):
        return
    row = case.rows[0]
    total = excess_ms(row)
    if total is None:
        return
    split = shares(row)
    largest = max(split, key=lambda share: abs(share.ms))
    suspected = _suspected(case.comparability, largest.part)
    evidence = [Evidence(f"{share.text}: {signed(share.ms, 2)} ms", "recorded steps") for share in split]
    evidence += [Evidence(f"{one.what}: {one.baseline} against {one.candidate}", one.why) for one in suspected[:5]]
    evidence += [Evidence(f"{what}: not on record", "could differ as well") for what in case.comparability.unknown]
    first = suspected[0].what if suspected else ""
    advice, refuted_by = _test(first, "" if total > 0 else ", to be sure that it was this")
    known = not case.comparability.unknown and first != PHYSICAL
    yield Finding(
        code=CODE,
        what=f"{_pace(case, row, total)}, most of it in {largest.text.removesuffix(' changed')}; "
        + (f"first to blame: {first}" if first else "nothing on record changed that could explain it"),
        evidence=tuple(evidence),
        sure="likely" if len(suspected) == 1 and known else "possible",
        advice=advice,
        refuted_by=refuted_by,
        part=largest.part,
        batch_size=row.batch_size,
    )


def _pace(case: Case, row: Row, excess: float) -> str:
    """By how many ms the pace changed. A cycle's old pace is that of as many tokens, not of a cycle."""
    new, old, ms = case.other.name, case.base.name, number(abs(excess))
    if row.candidate.kind == "decode":
        return f"{new} is {ms} ms a step {'slower' if excess > 0 else 'faster'} than {old}"
    return f"a cycle of {new} takes {ms} ms {'more' if excess > 0 else 'less'} than {old} needs for as many tokens"


def _suspected(found: Comparability, part: Part) -> list[Difference]:
    """What may have changed that part, the likeliest first."""
    grave = [one for one in found.differences if one.grade != "harmless"]
    if part == "acceptance":
        return sorted(
            (one for one in grave if not one.what.startswith(NOT_ACCEPTANCE)),
            key=lambda one: _place(one, ACCEPTANCE_BLAME),
        )
    grave.sort(key=lambda one: _place(one, BLAME))
    return grave or [one for one in found.differences if one.what == PHYSICAL]


def _test(first: str, why: str) -> tuple[str, str]:
    """(what to do to see whether it was that, what would refute it)."""
    if not first:
        return "measure the old one again: the machine's state may have changed", "the old pace returning by itself"
    if first == "time" or (first.startswith("GPU") and first != PHYSICAL):
        return (
            "measure both again, one right after the other on the same GPUs, their clocks on record (probe --launch)",
            "the same difference with the GPUs in the same state",
        )
    if first in MEASUREMENT:
        return f"measure both with the same {first}", f"the same pace with the same {first}"
    return f"undo {first} alone and measure again{why}", f"the same pace with {first} undone"


def _place(difference: Difference, order: Sequence[str]) -> int:
    return next(place for place, start in enumerate(order) if difference.what.startswith(start))
