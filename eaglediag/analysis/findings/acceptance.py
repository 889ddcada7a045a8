"""Findings about accepted tokens: how many, where they stop, and whether they are what they seem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eaglediag.analysis.figures import interval, number, percent
from eaglediag.analysis.findings.finding import Case, Evidence, Finding
from eaglediag.analysis.measured import accept_length_told
from eaglediag.analysis.pairing import Row
from eaglediag.analysis.whatif import Choice, choose

#: An accept length below this is a collapse, not a weak drafter.
COLLAPSED = 1.05
#: A position accepted this much less often than the first may not pay its draft step.
DECAYED = 0.6
MIN_PASSES = 200


def find(case: Case) -> Iterator[Finding]:
    """All findings about acceptance."""
    yield from _settings(case)
    if accept_length_told(case.candidate) is not None:
        return
    rows = [row for row in case.rows if row.candidate.accept_length is not None]
    yield from _collapsed(rows)
    for row in rows[:1]:
        yield from _by_position(row, rows)
    yield from _by_batch(rows)


def by_position(histogram: Sequence[int]) -> list[float]:
    """Conditional acceptance of each drafted token: how often it is accepted when all before it were."""
    reached, rates = sum(histogram), []
    for stopped in histogram[:-1]:
        if not reached:
            break
        rates.append((reached - stopped) / reached)
        reached -= stopped
    return rates


def _collapsed(rows: Sequence[Row]) -> Iterator[Finding]:
    for row in rows:
        accepted = row.candidate.accept_length
        if accepted is not None and accepted.value < COLLAPSED:
            yield Finding(
                code="acceptance_collapsed",
                what=f"almost no drafted token is accepted at batch {row.batch_size}",
                evidence=(Evidence(f"accept length {interval(accepted)}; 1 is none at all", "recorded verify passes"),),
                sure="likely",
                advice="that is a bug's signature: is it the draft for this model, are hidden states captured, is the "
                "draft's input the newest token?",
                refuted_by="the same draft reaching more on another release or another prompt set",
                part="acceptance",
                batch_size=row.batch_size,
            )
            return


def _by_position(row: Row, rows: Sequence[Row]) -> Iterator[Finding]:
    """That acceptance falls is certain; whether fewer drafted tokens would be faster, only their price tells."""
    histogram = row.candidate.histogram
    rates = by_position(histogram)
    if sum(histogram) < MIN_PASSES or len(rates) < 2 or rates[0] == 0 or rates[-1] / rates[0] > DECAYED:
        return
    falls = f"acceptance falls along the chain, to {percent(rates[-1])} at position {len(rates)}"
    evidence = (
        Evidence("accepted when reached: " + ", ".join(percent(rate) for rate in rates), "recorded verify passes"),
        Evidence(f"{sum(histogram)} passes at batch {row.batch_size}", "recorded verify passes"),
    )
    choice = _priced(row, rows)
    if choice.refused:
        yield Finding(
            code="acceptance_decays_by_position",
            what=f"{falls}: the last drafted tokens may not pay",
            evidence=evidence,
            sure="possible",
            advice=f"fewer cannot be priced from this ({choice.refused}): measure once with "
            f"--speculative-num-steps {len(rates) - 1} and compare",
            refuted_by="the shorter chain measured slower",
            batch_size=row.batch_size,
        )
        return
    *fewer, now = choice.speedups
    best = max(fewer, default=0.0)
    if best <= now:
        return
    tokens = fewer.index(best) + 1
    shown = ", ".join(f"{number(speedup)} with {count}" for count, speedup in enumerate(choice.speedups, 1))
    yield Finding(
        code="acceptance_decays_by_position",
        what=f"{falls}: the last drafted tokens hardly pay",
        evidence=(*evidence, Evidence(f"speed-up by drafted tokens: {shown}", "priced from measured passes")),
        sure="likely" if choice.margin is not None and best - now > choice.margin * best else "possible",
        advice=f"try --speculative-num-steps {tokens} (eaglediag breakeven --what-if draft-tokens={tokens} says how "
        "it is priced)",
        refuted_by="the shorter chain measured slower",
        batch_size=row.batch_size,
    )


def _priced(row: Row, rows: Sequence[Row]) -> Choice:
    if row.break_even is None:
        return Choice(row.batch_size, refused="there is no plain baseline here")
    return choose(row, rows)


def _by_batch(rows: Sequence[Row]) -> Iterator[Finding]:
    if len(rows) < 2:
        return
    one, other = rows[0].candidate.accept_length, rows[-1].candidate.accept_length
    if one is not None and other is not None and one.interval and other.interval and other.high < one.low * 0.95:
        yield Finding(
            code="acceptance_falls_with_batch",
            what="the accept length falls as the batch grows, which drafting alone does not explain",
            evidence=tuple(
                Evidence(f"batch {row.batch_size}: {interval(row.candidate.accept_length)}", "recorded verify passes")
                for row in (rows[0], rows[-1])
            ),
            sure="possible",
            advice="check that all windows used the same prompts; if so, suspect padding or batched drafting",
            refuted_by="equal accept lengths for the same prompts at both batch sizes",
        )


def _settings(case: Case) -> Iterator[Finding]:
    speculation = case.candidate.server.speculation
    if speculation is None:
        return
    for name, value in (
        ("--speculative-accept-threshold-single", speculation.accept_threshold_single),
        ("--speculative-accept-threshold-acc", speculation.accept_threshold_acc),
    ):
        if value is not None and value < 1:
            yield Finding(
                code="lossy_acceptance",
                what="acceptance is lossy: tokens are accepted that the target model would not have chosen",
                evidence=(Evidence(f"{name} {number(value)}", "launch arguments"),),
                sure="certain",
                advice="set it to 1 to keep the target's distribution; the accept length will fall",
                refuted_by="nothing: the setting says so",
            )
    if speculation.simulated_accept_length is not None:
        yield Finding(
            code="simulated_acceptance",
            what=f"the accept length is pinned to {number(speculation.simulated_accept_length)}, not the draft's own",
            evidence=(Evidence("SGLANG_SIMULATE_ACC_LEN", "environment"),),
            sure="certain",
            advice="costs are real, acceptance is not: judge the draft in a run without it",
            refuted_by="nothing: the setting says so",
        )
