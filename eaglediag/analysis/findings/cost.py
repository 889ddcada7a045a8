"""Findings about what a cycle costs against what it yields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eaglediag.analysis.figures import interval, number, percent
from eaglediag.analysis.findings.attribution import excess_ms
from eaglediag.analysis.findings.finding import Case, Evidence, Finding
from eaglediag.analysis.measured import CYCLE_PARTS
from eaglediag.analysis.pairing import Row
from eaglediag.analysis.sentences import PHASE_NAMES
from eaglediag.capture.model import Profile

#: A fixed cost above this share of the cycle dominates.
FIXED = 0.7
#: A fit needs this many batch sizes.
MIN_SIZES = 3
#: Device busy for less than this share of the time: launch-bound.
BUSY = 0.6
MANY_LAUNCHES = 100
#: With graphs, waiting for longer than this share of the cycle is the host's doing.
LATE = 0.15


def find(case: Case) -> Iterator[Finding]:
    """All findings about cost."""
    for row in case.rows:
        if row.break_even is not None and row.break_even.verdict == "impossible":
            yield _impossible(row)
        elif row.break_even is not None and row.break_even.verdict == "lose":
            yield _below(row)
    yield from _fixed(case.rows)
    for profile in case.candidate.profiles:
        yield from _launch_bound(profile)
    if case.rows:
        yield from _host_late(case.candidate.profiles, case.rows[0])


def _impossible(row: Row) -> Finding:
    assert row.break_even is not None
    maximum = row.break_even.max_accept_length or 0
    target = maximum * row.baseline.period.value
    return Finding(
        code="cannot_win",
        what=f"no drafter can win at batch {row.batch_size}: the cycle is too long for any accept length",
        evidence=(
            Evidence(f"break-even {interval(row.break_even_length)} tokens", "cycle / step, recorded steps"),
            Evidence(f"at most {maximum} tokens a cycle", "the server's speculation settings"),
        ),
        sure="certain",
        advice=f"more training cannot help; shorten the cycle to {number(target)} ms, or do not speculate at this size",
        refuted_by=f"a cycle under {number(target)} ms at this batch size",
        batch_size=row.batch_size,
    )


def _below(row: Row) -> Finding:
    excess = excess_ms(row) or 0.0
    evidence = [
        Evidence(
            f"accept length {interval(row.candidate.accept_length)}, break-even {interval(row.break_even_length)}",
            "recorded steps",
        )
    ]
    for part in CYCLE_PARTS:
        spent = row.candidate.parts.get(part, 0.0)
        if spent > excess:
            name = PHASE_NAMES[part]
            evidence.append(
                Evidence(
                    f"{name} alone would have to fall from {number(spent)} to {number(spent - excess)} ms", "derived"
                )
            )
    if len(evidence) == 1:
        evidence.append(Evidence("no part alone can pay for it", "derived"))
    rate = row.break_even.required_acceptance_rate if row.break_even else None
    needed = f", {percent(rate)} per drafted token" if rate is not None else ""
    return Finding(
        code="below_break_even",
        what=f"a cycle is {number(excess)} ms too long to break even at batch {row.batch_size}",
        evidence=tuple(evidence),
        sure="certain",
        advice=f"shorten the cycle by {number(excess)} ms, or reach an accept length of "
        f"{number(row.break_even.break_even_accept_length if row.break_even else None)}{needed}",
        refuted_by="a longer measurement whose interval for the speed-up lies above 1",
        batch_size=row.batch_size,
    )


def fit(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Least squares line through (batch, ms): (fixed ms, ms per request); None from fewer than three batch sizes."""
    if len({x for x, _ in points}) < MIN_SIZES:
        return None
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return mean_y - slope * mean_x, slope


def _fixed(rows: Sequence[Row]) -> Iterator[Finding]:
    cycles = [row for row in rows if row.candidate.kind == "cycle"]
    # Graph and eager are two different lines.
    alike = [row for row in cycles if row.candidate.graph_share == cycles[0].candidate.graph_share]
    line = fit([(row.batch_size, row.candidate.period.value) for row in alike])
    if line is None:
        return
    fixed, slope = line
    smallest, largest = alike[0], alike[-1]
    if slope >= 0 and fixed / largest.candidate.period.value > FIXED:
        yield Finding(
            code="fixed_cost",
            what="the cycle's cost hardly depends on the batch: fixed cost dominates",
            evidence=(
                Evidence(
                    f"{number(fixed)} ms fixed and {number(slope)} ms per request, from batch {smallest.batch_size} to "
                    f"{largest.batch_size}",
                    "least squares over recorded steps; not valid outside these batch sizes",
                ),
            ),
            sure="likely",
            advice="reading weights, launching kernels or communicating sets the pace, not the tokens: graphs, fewer "
            "collectives and fewer draft steps help; fewer verified tokens do not",
            refuted_by="a cycle that grows with the batch in a longer measurement",
        )


def _launch_bound(profile: Profile) -> Iterator[Finding]:
    if profile.phase not in ("decode", "verify", "draft", "draft_extend") or not profile.span_ms:
        return
    busy = profile.device_busy_ms / profile.span_ms
    name = PHASE_NAMES[profile.phase]
    where = f" at batch {profile.batch_size}" if profile.batch_size else ""
    evidence = (
        Evidence(f"device busy {number(profile.device_busy_ms)} of {number(profile.span_ms)} ms", "profiler"),
        Evidence(f"{profile.launches_per_step:.0f} launches a pass", "profiler"),
    )
    if profile.graph_launches_per_step >= 1:
        return
    if busy < BUSY and profile.launches_per_step > MANY_LAUNCHES:
        yield Finding(
            code=f"launch_bound_{profile.phase}",
            what=f"{name} is launch-bound{where}: the GPU waits for Python to launch kernels",
            evidence=evidence,
            sure="likely",
            advice=f"a graph would bring {name} towards {number(profile.device_busy_ms)} ms",
            refuted_by="a profile in which the device is busy most of the time",
            part=profile.phase,
            batch_size=profile.batch_size,
        )
    elif busy > 0.9:
        yield Finding(
            code=f"compute_bound_{profile.phase}",
            what=f"{name} keeps the GPU busy{where}: a graph would not shorten it much",
            evidence=evidence,
            sure="likely",
            advice="verify fewer tokens, or make the kernels cheaper (quantization, attention backend)",
            refuted_by="a profile in which the device waits",
            batch_size=profile.batch_size,
        )


def _host_late(profiles: Sequence[Profile], row: Row) -> Iterator[Finding]:
    """Passes that are graphs and yet leave the GPU waiting, all phases of a cycle together.

    The profiler slows the host and hardly the kernels: of what it sees waiting, only what the unprofiled cycle leaves
    beside the kernels can be true. That needs the kernels of every phase.
    """
    cycle = [one for one in profiles if one.batch_size == row.batch_size and one.phase in CYCLE_PARTS]
    phases = row.candidate.parts.keys()
    if not phases or not phases <= {one.phase for one in cycle}:
        return
    graphs = [one for one in cycle if one.graph_launches_per_step >= 1]
    seen = sum(one.span_ms - one.device_busy_ms for one in graphs)
    period, busy = row.candidate.period.value, sum(one.device_busy_ms for one in cycle)
    waits = min(seen, period - busy)
    if waits < LATE * period:
        return
    yield Finding(
        code="host_late",
        what=f"the GPU waits about {number(waits)} ms a cycle for the host at batch {row.batch_size}, although graphs "
        "run",
        evidence=(
            Evidence(
                f"kernels take {number(busy)} ms of a cycle; without the profiler it takes {number(period)} ms",
                "profiler, recorded steps",
            ),
            *(
                Evidence(
                    f"{PHASE_NAMES[one.phase]}: busy {number(one.device_busy_ms)} ms, "
                    f"{one.launches_per_step:.0f} launches beside {one.graph_launches_per_step:.0f} graph",
                    "profiler",
                )
                for one in graphs
            ),
        ),
        sure="likely",
        advice="a faster or less shared CPU core shortens it: free cores, the performance governor, numactl",
        refuted_by="on a quiet host, a cycle as long with kernels as short",
        batch_size=row.batch_size,
    )
