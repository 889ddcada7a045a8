"""`check` as JUnit XML: one test case a gate."""

from __future__ import annotations

from typing import BinaryIO

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from eaglediag.analysis.policy import Check
from eaglediag.reports.untrusted import printable


def render(result: Check, out: BinaryIO) -> None:
    """Write the gates. A failed gate is a failure; an inconclusive one an error, or skipped when it only warns."""
    suite = TestSuite("eaglediag check")
    for gate in result.gates:
        case = TestCase(printable(gate.name), classname="eaglediag.check")
        message = printable(f"measured {gate.measured}, asked {gate.asked}. {gate.detail}".strip())
        if gate.status == "fail":
            case.result = [Failure(message)]
        elif gate.status == "inconclusive":
            case.result = [Error(message) if result.on_inconclusive == "fail" else Skipped(message)]
        suite.add_testcase(case)
    document = JUnitXml()
    document.add_testsuite(suite)
    document.write(out, pretty=True)
