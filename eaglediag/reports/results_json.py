"""Results as JSON: figures as numbers, intervals as `[low, high]`, what is not known as null."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TextIO

from eaglediag.analysis.breakeven import BreakEven, Interval
from eaglediag.analysis.comparability import Comparability
from eaglediag.analysis.comparison import Comparison
from eaglediag.analysis.findings import excess_ms
from eaglediag.analysis.held import Held
from eaglediag.analysis.measured import Arm, BatchCost
from eaglediag.analysis.pairing import Load, Row
from eaglediag.analysis.policy import Check
from eaglediag.analysis.sentences import breakeven_sentence, condition
from eaglediag.analysis.statistics import Estimate
from eaglediag.analysis.sweep import Crossing
from eaglediag.analysis.whatif import Prediction, WhatIf

Json = dict[str, object]


def write(document: Mapping[str, object], out: TextIO) -> None:
    """Write one JSON document and a newline."""
    json.dump(document, out, indent=2, allow_nan=False, ensure_ascii=False)
    out.write("\n")


def break_even(answer: BreakEven, accept_length_set: bool = False) -> Json:
    """A break-even answer. `missing` lists the parts of the cycle that were not given."""
    return {
        "break_even_accept_length": answer.break_even_accept_length,
        "break_even_is_lower_bound": bool(answer.missing),
        "break_even_interval": _interval(answer.break_even_interval),
        "speedup": answer.speedup,
        "speedup_interval": _interval(answer.speedup_interval),
        "verdict": answer.verdict,
        "summary": breakeven_sentence(answer, accept_length_set=accept_length_set),
        "max_accept_length": answer.max_accept_length,
        "accept_length": answer.accept_length,
        "accept_length_interval": _interval(answer.accept_length_interval),
        "required_acceptance_rate": answer.required_acceptance_rate,
        "acceptance_rate": answer.acceptance_rate,
        "step_ms": answer.step_ms,
        "cycle_ms": answer.cycle_ms,
        "headroom_ms": answer.headroom_ms,
        "missing": list(answer.missing),
        "unexplained_ms": answer.unexplained_ms,
    }


def break_even_by_batch(result: Comparison, found: Sequence[Crossing]) -> Json:
    """The break-even of two captures: the headline's batch size on top, every measured one under `by_batch_size`."""
    told = result.candidate.accept_length_set
    document: Json = {"outcome": result.outcome, "comparability": _comparability(result.comparability)}
    document["accept_length_set"] = told
    if (answer := result.main.break_even) is not None:
        document |= break_even(answer, told)
    if isinstance(result.main, Row):
        document["batch_size"] = result.main.batch_size
    else:
        document["concurrency"] = result.main.concurrency
    rows = [{"batch_size": row.batch_size, **break_even(row.break_even, told)} for row in result.rows if row.break_even]
    loads = [
        {"concurrency": load.concurrency, **break_even(load.break_even, told)}
        for load in result.loads
        if load.break_even
    ]
    sweep = [{**asdict(one), "computed": _estimate(one.computed), "apart": one.apart} for one in found]
    return {**document, "by_batch_size": rows, "by_concurrency": loads, "sweep": sweep}


def what_if(result: WhatIf, found: Sequence[Held] = ()) -> Json:
    """What would happen, by batch size. `after` is null where the answer was refused; `held` is what came of it."""
    return {
        "asked": list(result.asked),
        "by_batch_size": [
            {
                "batch_size": row.batch_size,
                "before": break_even(row.before),
                "after": break_even(row.after) if row.after else None,
                "prediction": _prediction(row.prediction) if row.prediction else None,
                "notes": list(row.notes),
                "refused": row.refused or None,
            }
            for row in result.rows
        ],
        "draft_tokens": [asdict(choice) for choice in result.choices],
        "crossover": {"before": result.crossover_before, "after": result.crossover_after},
        "held": [{**asdict(one), "measured": _estimate(one.measured), "error": one.error} for one in found],
    }


def _comparability(found: Comparability) -> Json:
    return {
        "grade": found.grade,
        "differences": [asdict(one) for one in found.differences],
        "unknown": list(found.unknown),
    }


def comparison(result: Comparison) -> Json:
    """A comparison, whole."""
    return {
        "outcome": result.outcome,
        "headline": result.headline,
        "comparability": _comparability(result.comparability),
        "baseline": _arm(result.baseline),
        "candidate": _arm(result.candidate),
        "by_batch_size": [_row(row, result.candidate.accept_length_set) for row in result.rows],
        "by_concurrency": [_load(load, result.candidate.accept_length_set) for load in result.loads],
        "skipped": [{"batch_size": one.batch_size, "why": one.why} for one in result.skipped],
        "shares": [asdict(one) for one in result.shares],
        "findings": [asdict(one) for one in result.findings],
        "denials": [
            {
                "arm": one.arm,
                "phase": one.denial.phase,
                "batch_size": one.denial.batch_size,
                "gate": one.denial.gate,
                "condition": condition(one.denial),
                "explained": one.denial.explained,
                "decides": one.denial.decides,
                "counts": {str(rank): count for rank, count in one.denial.counts.items()},
                "frames": [frame.model_dump() for frame in one.denial.frames],
            }
            for one in result.denials
        ],
        "refusals": [
            {
                "arm": one.arm,
                "line": one.refusals.line,
                "phase": one.refusals.denial.phase,
                "batch_sizes": list(one.refusals.batch_sizes),
                "gate": one.refusals.denial.gate,
                "condition": condition(one.refusals.denial),
                "decides": one.refusals.denial.decides,
                "counts": {str(rank): count for rank, count in one.refusals.counts.items()},
                "share_of_passes": one.refusals.share,
                "advice": one.refusals.advice.as_json() if one.refusals.advice else None,
            }
            for one in result.refusals
        ],
        "problems": [
            {
                "arm": one.arm or None,
                "code": one.problem.code,
                "message": one.problem.message,
                "advice": one.problem.advice,
            }
            for one in result.problems
        ],
    }


def check(result: Check) -> Json:
    """The gates of `check`, and the exit code."""
    return {
        "exit_code": result.exit_code,
        "headline": result.headline,
        "on_inconclusive": result.on_inconclusive,
        "gates": [asdict(gate) for gate in result.gates],
    }


def _prediction(one: Prediction) -> Json:
    return {
        "step_ms": one.step_ms,
        "cycle_ms": one.cycle_ms,
        "parts_ms": dict(one.parts),
        "gap_ms": one.gap_ms,
        "at_least": sorted(one.at_least),
        "bounds": {
            "step": one.step_bound or None,
            "cycle": one.cycle_bound or None,
            "gap": one.gap_bound or None,
            "break_even": one.break_even_bound or None,
            "speedup": one.speedup_bound or None,
        },
    }


def _arm(arm: Arm) -> Json:
    return {
        "name": arm.name,
        "label": arm.label,
        "speculative": arm.speculative,
        "graph_share": dict(arm.graph_share),
        "accept_length_set": arm.accept_length_set,
    }


def _row(row: Row, accept_length_set: bool) -> Json:
    return {
        "batch_size": row.batch_size,
        "outcome": row.outcome,
        "baseline": _batch(row.baseline),
        "candidate": _batch(row.candidate),
        "break_even": break_even(row.break_even, accept_length_set) if row.break_even else None,
        "speedup": _estimate(row.speedup),
        "speedup_seen": _estimate(row.seen),
        "reconciliation": row.reconciliation,
        "excess_ms": excess_ms(row),
    }


def _load(load: Load, accept_length_set: bool) -> Json:
    return {
        "concurrency": load.concurrency,
        "outcome": load.outcome,
        "baseline_throughput": load.baseline.throughput,
        "candidate_throughput": load.candidate.throughput,
        "requests": [load.baseline.requests, load.candidate.requests],
        "speedup": _estimate(load.speedup),
        "break_even": break_even(load.break_even, accept_length_set) if load.break_even else None,
    }


def _batch(cost: BatchCost) -> Json:
    return {
        "kind": cost.kind,
        "steps": cost.steps,
        "period_ms": _estimate(cost.period),
        "parts_ms": dict(cost.parts),
        "gap_ms": cost.gap_ms,
        "graph_share": dict(cost.graph_share),
        "accept_length": _estimate(cost.accept_length),
        "accept_histogram": list(cost.histogram),
        "windows": list(cost.windows),
    }


def _estimate(value: Estimate | None) -> Json | None:
    if value is None:
        return None
    return {
        "value": value.value,
        "interval": _interval(value.interval),
        "blocks": value.blocks,
        "effective_n": value.effective_n,
    }


def _interval(interval: Interval | None) -> list[float] | None:
    return list(interval) if interval else None
