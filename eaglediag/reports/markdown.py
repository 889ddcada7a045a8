"""Reports in markdown, for a job summary or an issue."""

from __future__ import annotations

from typing import TextIO

from eaglediag.analysis.comparison import Comparison
from eaglediag.analysis.policy import Check
from eaglediag.reports import tables
from eaglediag.reports.untrusted import markdown


def render(result: Comparison, out: TextIO) -> None:
    """Write a comparison: the verdict, its tables, denials and caveats. Everything from the captures is escaped."""
    out.write(f"**{markdown(result.headline)}**\n")
    for table in tables.tables(result):
        out.write(f"\n### {table.title}\n\n")
        out.write(table_text(table))
    for number, finding in enumerate(result.findings, start=1):
        out.write(f"\n### {number}. {markdown(finding.what)} ({finding.sure})\n\n")
        out.writelines(f"- {markdown(one.fact)} *({markdown(one.source)})*\n" for one in finding.evidence)
        out.write(f"- **Do:** {markdown(finding.advice)}\n- **Refuted by:** {markdown(finding.refuted_by)}\n")
    for title, lines in (
        ("What else differs between the arms", tables.differences(result)),
        ("Refusals of a graph that no finding explains", tables.denials(result)),
        ("Too few steps for a row", [f"batch {one.batch_size}: {one.why}" for one in result.skipped]),
        (
            "Before you trust this",
            tables.short_problems(result),
        ),
    ):
        if lines:
            out.write(f"\n### {title}\n\n")
            out.writelines(f"- {markdown(line)}\n" for line in lines)


def render_check(result: Check, out: TextIO) -> None:
    """Write the gates of `check`."""
    out.write(f"**{markdown(result.headline)}**\n\n{table_text(tables.gates(result))}")


def table_text(table: tables.Table) -> str:
    """One table, numbers to the right."""
    lines = [table.headers, *table.rows]
    text = [f"| {' | '.join(markdown(cell) for cell in line)} |\n" for line in lines]
    text.insert(1, f"|{'---:|' * len(table.headers)}\n")
    return "".join(text)
