"""The finding between two captures of the same arm: what changed, and which change is first to blame."""

from __future__ import annotations

from collections.abc import Iterator

from eaglediag.analysis.comparability import Difference
from eaglediag.analysis.comparability.gpus import PHYSICAL
from eaglediag.analysis.figures import number, signed
from eaglediag.analysis.findings.attribution import excess_ms, shares
from eaglediag.analysis.findings.finding import Case, Evidence, Finding

#: In this order: what slows everything, then what was changed on purpose, then what came along.
BLAME = (
    "GPU",
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
CODE = "first_to_blame"
#: Differences of how it was measured, which cannot be undone.
MEASUREMENT = ("clock", "agent", "time", PHYSICAL)


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
    differences = case.comparability.differences
    suspected = sorted((one for one in differences if one.grade != "harmless"), key=_blame)
    suspected = suspected or [one for one in differences if one.what == PHYSICAL]
    evidence = [Evidence(f"{share.text}: {signed(share.ms, 2)} ms", "recorded steps") for share in split]
    evidence += [Evidence(f"{one.what}: {one.baseline} against {one.candidate}", one.why) for one in suspected[:5]]
    first = suspected[0].what if suspected else ""
    if first in MEASUREMENT:
        advice, refuted_by = f"measure both with the same {first}", f"the same pace with the same {first}"
    elif first:
        advice = f"undo {first} alone and measure again" + ("" if total > 0 else ", to be sure that it was this")
        refuted_by = f"the same pace with {first} undone"
    else:
        advice = "measure the old one again: the machine's state may have changed"
        refuted_by = "the old pace returning by itself"
    yield Finding(
        code=CODE,
        what=f"{case.other.name} is {number(abs(total))} ms a step {'slower' if total > 0 else 'faster'} than "
        f"{case.base.name}, most of it in {largest.text.removesuffix(' changed')}; "
        + (f"first to blame: {first}" if first else "nothing on record changed"),
        evidence=tuple(evidence),
        sure="likely" if len(suspected) == 1 and first != PHYSICAL else "possible",
        advice=advice,
        refuted_by=refuted_by,
        part=largest.part,
        batch_size=row.batch_size,
    )


def _blame(difference: Difference) -> int:
    return next(place for place, start in enumerate(BLAME) if difference.what.startswith(start))
