"""A comment that fits a pull request: the verdict and the break-even in sight, the rest folded."""

from __future__ import annotations

import io
from typing import TextIO

from eaglediag.analysis.comparison import Comparison
from eaglediag.capture.model import Capture
from eaglediag.reports import markdown, summary
from eaglediag.reports.untrusted import markdown as literal

#: GitHub takes 65,536 characters.
LONGEST = 60_000
CUT = "\n\n*The rest did not fit: `eaglediag report --html` shows all of it.*\n"


def render(capture: Capture, result: Comparison | None, out: TextIO) -> None:
    """Write the comment on a comparison, or on `capture` alone."""
    if result is None:
        _alone(capture, out)
        return
    whole = io.StringIO()
    markdown.render(result, whole)
    head, *sections = whole.getvalue().split("\n### ")
    first = [section for section in sections if section.startswith(("What it yields", "What the clients saw"))][:1]
    rest = "".join(f"\n### {section}" for section in sections if section not in first)
    if len(rest) > LONGEST:
        rest = rest[:LONGEST].rpartition("\n")[0] + CUT
    out.write(head)
    out.writelines(f"\n### {section}" for section in first)
    out.write(f"\n<details><summary>Costs, findings and what to know</summary>\n{rest}\n</details>\n")


def _alone(capture: Capture, out: TextIO) -> None:
    out.write(f"**{literal(capture.arm)}**: {literal(capture.server.engine)} {literal(capture.server.release)}\n\n")
    out.write("| concurrency | tokens/s | batch | step, ms | parts, ms | accept length | graph |\n")
    out.write("|---:|---:|---:|---:|---|---:|---|\n")
    again = summary.started_again(capture)
    for window in capture.windows:
        batch = summary.typical(window)
        measured = ("–",) * 5 if batch is None else (
            str(batch.batch_size), f"{batch.period_ms.mean:.2f}", summary.parts(batch), summary.accept_length(batch),
            summary.graphs(batch),
        )  # fmt: skip
        throughput = "–" if window.throughput is None else f"{window.throughput:.1f}"
        concurrency = "–" if window.concurrency is None else str(window.concurrency)
        if again:
            concurrency += f", start {window.repeat + 1}"
        out.write(f"| {' | '.join(literal(cell) for cell in (concurrency, throughput, *measured))} |\n")
    lines = [f"no graph: {one.line}" for one in summary.main_refusals(capture)]
    lines += [f"{one.message}{'; ' + one.advice if one.advice else ''}" for one in capture.problems]
    if lines:
        out.write("\n")
        out.writelines(f"- {literal(line)[:2000]}\n" for line in lines[:40])
