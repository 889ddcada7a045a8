"""A comment that fits a pull request: the verdict and the break-even in sight, the rest folded."""

from __future__ import annotations

from typing import TextIO

from eaglediag.analysis.comparison import Comparison
from eaglediag.capture.model import Capture
from eaglediag.reports import markdown, summary
from eaglediag.reports.markdown import Section
from eaglediag.reports.untrusted import markdown as literal


def render(capture: Capture, result: Comparison | None, out: TextIO) -> None:
    """Write the comment on a comparison, or on `capture` alone."""
    out.write(markdown.fitted(_alone(capture) if result is None else _folded(result)))


def _folded(result: Comparison) -> list[Section]:
    head, *sections = markdown.sections(result)
    titles = ("\n### What it yields", "\n### What the clients saw")
    first = [section for section in sections if section.head.startswith(titles)][:1]
    return [
        head,
        *first,
        Section("\n<details><summary>Costs, findings and what to know</summary>\n"),
        *(section for section in sections if section not in first),
        Section("\n</details>\n"),
    ]


def _alone(capture: Capture) -> list[Section]:
    sections = [
        Section(f"**{literal(capture.arm)}**: {literal(capture.server.engine)} {literal(capture.server.release)}\n\n"),
        Section(
            "| concurrency | tokens/s | batch | step, ms | parts, ms | accept length | graph |\n"
            "|---:|---:|---:|---:|---|---:|---|\n",
            _windows(capture),
            more="| and {} more |\n",
        ),
    ]
    lines = [f"no graph: {one.line}" for one in summary.main_refusals(capture)]
    lines += [f"{one.message}{'; ' + one.advice if one.advice else ''}" for one in capture.problems]
    return [*sections, Section("\n", [f"- {literal(line)}\n" for line in lines])] if lines else sections


def _windows(capture: Capture) -> list[str]:
    rows = []
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
        rows.append(f"| {' | '.join(literal(cell) for cell in (concurrency, throughput, *measured))} |\n")
    return rows
