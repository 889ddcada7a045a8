"""Findings: what is the matter and what to do about it, from the evidence in two captures. One module a family."""

from __future__ import annotations

from eaglediag.analysis.findings import acceptance, change, collectives, cost, graphs, settings, state
from eaglediag.analysis.findings.attribution import Share, excess_ms, shares
from eaglediag.analysis.findings.finding import Case, Evidence, Finding

__all__ = ["Case", "Evidence", "Finding", "Share", "excess_ms", "find", "shares"]

FAMILIES = (state, change, graphs, cost, collectives, acceptance, settings)
CERTAINTY = ("certain", "likely", "possible")


def find(case: Case) -> tuple[Finding, ...]:
    """All findings: by the ms of the main row's excess that they explain, then by how sure they are.

    Between two captures of the same arm, what changed comes first.
    """
    charged = {share.part: share.ms for share in (shares(case.rows[0]) if case.rows else ())}
    found = [finding for family in FAMILIES for finding in family.find(case)]

    def weight(finding: Finding) -> tuple[bool, float, int]:
        explains = charged.get(finding.part, 0.0) if finding.part else 0.0
        return finding.code != change.CODE, -max(explains, 0.0), CERTAINTY.index(finding.sure)

    return tuple(sorted(found, key=weight))
