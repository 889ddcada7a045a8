"""A real SGLang 0.5.14 on an H200, judged from its step records."""

from __future__ import annotations

import pytest

from eaglediag.analysis.comparison import Comparison, compare
from tests.recordings import captures


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(*captures())


def test_times_are_those_that_were_recorded(found: Comparison) -> None:
    rows = {row.batch_size: row for row in found.rows}
    assert set(rows) == {1, 4, 12}
    assert rows[1].baseline.parts["decode"] == pytest.approx(4.49, rel=0.02)
    assert rows[1].candidate.parts["verify"] == pytest.approx(5.3, rel=0.05)
    for row in rows.values():
        assert row.candidate.gap_ms is not None
        assert sum(row.candidate.parts.values()) + row.candidate.gap_ms == pytest.approx(row.candidate.period.value)


def test_it_wins_at_every_batch_size(found: Comparison) -> None:
    """Accept length 2.0 against a break-even of 1.2 to 1.6."""
    assert [row.outcome for row in found.rows] == ["better"] * 3
    for row in found.rows:
        assert row.break_even is not None
        assert 1.1 < row.break_even.break_even_accept_length < 1.7


def test_what_ran_eagerly_and_why(found: Comparison) -> None:
    assert found.rows[0].candidate.graph_share["verify"] == 1.0
    assert found.rows[-1].candidate.graph_share["verify"] == 0.0
    findings = {finding.code: finding for finding in found.findings}
    assert set(findings) == {
        "graph_denied_verify",
        "graph_unexplained_draft",
        "baseline_eager",
        "simulated_acceptance",
    }
    # Only verify's gate was recorded.
    assert "draft and draft-extend ran without a graph at batch 12" in findings["graph_unexplained_draft"].what
    condition, counted = findings["graph_denied_verify"].evidence
    assert "`cuda_graph_bs <= self.max_bs` was `12 <= 8` (decode_cuda_graph_runner.py:461)" in condition.fact
    assert counted.fact.startswith("eagle: verify, batch 12, 504 times")
    assert findings["graph_denied_verify"].advice == "`--cuda-graph-max-bs-decode 12` would allow it"


def test_what_is_not_on_record_is_said(found: Comparison) -> None:
    assert found.comparability.unknown == ("GPUs and their clocks",)
    assert [one.problem.code for one in found.problems] == ["unsteady", "unsteady"]


def test_eager_steps_that_went_at_two_paces_are_said_to(found: Comparison) -> None:
    """At batch 12 the recorded decode steps take 15 ms for a while and 31 ms for a while."""
    assert "batch 12: a step took 15.0 ms or less for a tenth" in found.problems[0].problem.message
