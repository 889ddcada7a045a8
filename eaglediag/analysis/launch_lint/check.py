"""The entry: a command's engine decides which checks apply."""

from __future__ import annotations

from eaglediag.analysis.launch_lint import command as commands
from eaglediag.analysis.launch_lint import sglang_checks, vllm_checks
from eaglediag.analysis.launch_lint.finding import Finding, Rules

_ORDER = {"error": 0, "warning": 1, "note": 2}


def lint(text: str, concurrency: list[int], rules: Rules | None = None) -> list[Finding]:
    """What is wrong with a launch command, worst first. `concurrency` is what it will be asked to serve, if known.

    Raises UsageError when the command cannot be read.
    """
    command = commands.parse(text)
    asked = max(concurrency, default=0)
    if command.engine == "vllm":
        found = list(vllm_checks.check(command, asked))
    else:
        found = list(sglang_checks.check(command, asked, rules or Rules()))
    return sorted(found, key=lambda finding: _ORDER[finding.level])
