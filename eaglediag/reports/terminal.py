"""Reports for a terminal: the verdict first, then the evidence, then what to do."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from eaglediag.analysis.breakeven import BreakEven
from eaglediag.analysis.comparison import Comparison
from eaglediag.analysis.figures import number, percent
from eaglediag.analysis.findings import Finding
from eaglediag.analysis.held import Held
from eaglediag.analysis.policy import Check
from eaglediag.analysis.sentences import breakeven_sentence, missing_sentence
from eaglediag.analysis.sweep import Crossing
from eaglediag.analysis.whatif import WhatIf
from eaglediag.reports import tables
from eaglediag.reports.untrusted import printable

if TYPE_CHECKING:
    from typing import TextIO

STYLES = {
    "pass": "bold green",
    "fail": "bold red",
    "better": "bold green",
    "win": "bold green",
    "equal": "bold",
    "break_even": "bold",
    "worse": "bold red",
    "lose": "bold red",
    "impossible": "bold red",
    "inconclusive": "bold yellow",
    "inconsistent": "bold yellow",
    "not_comparable": "bold yellow",
}
#: Below this width an interval goes under its value.
WIDE = 118


def console(file: TextIO | None = None) -> Console:
    """A console on standard output. Colour only on a terminal and without NO_COLOR; `[...]` is text, not markup."""
    return Console(file=file or sys.stdout, markup=False, highlight=False, emoji=False)


def render(result: Comparison | BreakEven, out: Console) -> None:
    """Print a result."""
    if isinstance(result, Comparison):
        _comparison(result, out)
    else:
        _break_even(result, out)


def render_check(result: Check, out: Console) -> None:
    """Print the gates of `check`, the result first."""
    out.print(Text(result.headline, style=STYLES[{0: "pass", 1: "fail", 3: "inconclusive"}[result.exit_code]]))
    out.print()
    grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("result", "gate", "measured", "asked"):
        grid.add_column(name)
    for gate in result.gates:
        words = (gate.status, gate.name, gate.measured, gate.asked)
        grid.add_row(*(Text(printable(word), style=STYLES.get(word, "")) for word in words))
    out.print(grid)
    _list("Because", [f"{gate.name}: {gate.detail}" for gate in result.gates if gate.detail], out)


def _comparison(result: Comparison, out: Console) -> None:
    out.print(Text(printable(result.headline), style=STYLES[result.outcome]))
    for table in tables.tables(result):
        out.print()
        out.print(_laid_out(table, out.width))
    _findings(result.findings, out)
    for title, lines in (
        ("Differences between the arms beside speculation", tables.differences(result)),
        ("Other refusals of a graph", tables.denials(result)),
        ("Too few steps for a row", [f"batch {one.batch_size}: {one.why}" for one in result.skipped]),
    ):
        _list(title, lines, out)
    problems = tables.problems(result)
    _list("Before you trust this", [f"{what}; {advice}" if advice else what for what, advice in problems], out)
    out.print()
    out.print(Text("[low, high] are 95 % intervals; times are means per step; parts and gap add up.", style="dim"))


def render_what_if(result: WhatIf, out: Console) -> None:
    """Print what would happen, and how it was priced."""
    out.print(_laid_out(tables.what_if(result), out.width))
    if (predicted := tables.predictions(result)).rows:
        out.print()
        out.print(_laid_out(predicted, out.width))
    if result.choices:
        out.print()
        out.print(_laid_out(tables.choices(result), out.width))
    _list("How this was priced", tables.pricing(result), out)


def render_held(found: Sequence[Held], out: Console) -> None:
    """Print predictions beside what was measured afterwards."""
    out.print(_laid_out(tables.held(found), out.width))


def render_break_even(result: Comparison, found: Sequence[Crossing], out: Console) -> None:
    """Print the break-even of two captures, batch size by batch size, and what a sweep says about it."""
    judged = [(f"batch {row.batch_size}", row.break_even) for row in result.rows]
    for where, answer in judged or [(f"concurrency {load.concurrency}", load.break_even) for load in result.loads]:
        if answer is not None:
            out.print(Text(breakeven_sentence(answer, where), style=STYLES.get(answer.verdict or "", "bold")))
    out.print()
    out.print(_laid_out(tables.break_evens(result), out.width))
    _list("Measured by a sweep of accept lengths", tables.crossings(found), out)
    problems = tables.problems(result)
    _list("Before you trust this", [f"{what}; {advice}" if advice else what for what, advice in problems], out)


def _findings(findings: Sequence[Finding], out: Console) -> None:
    for number_, finding in enumerate(findings, start=1):
        out.print()
        out.print(Text(printable(f"{number_}. {finding.what} ({finding.sure})"), style="bold"))
        grid = RichTable.grid(padding=(0, 1))
        grid.add_column(min_width=10)
        for i, evidence in enumerate(finding.evidence):
            line = Text(printable(evidence.fact))
            line.append(printable(f" [{evidence.source}]"), style="dim")
            grid.add_row("" if i else "  evidence", line)
        grid.add_row("  do", Text(printable(finding.advice)))
        grid.add_row(Text("  refuted by", style="dim"), Text(printable(finding.refuted_by), style="dim"))
        out.print(grid)


def _break_even(answer: BreakEven, out: Console) -> None:
    out.print(Text(breakeven_sentence(answer), style=STYLES.get(answer.verdict or "", "bold")))
    if note := missing_sentence(answer):
        out.print(Text(note, style="yellow"))
    grid = RichTable.grid(padding=(0, 2))
    for name, value, unit in _figures(answer):
        grid.add_row(Text(name, style="dim"), Text(value), Text(unit, style="dim"))
    out.print()
    out.print(grid)


def _figures(answer: BreakEven) -> list[tuple[str, str, str]]:
    least = "≥ " if answer.missing else ""
    most = "≤ " if answer.missing else ""
    figures = [
        ("break-even accept length", least + number(answer.break_even_accept_length), "tokens per verify pass"),
        ("accept length reached", number(answer.accept_length), "tokens per verify pass"),
        ("highest possible", str(answer.max_accept_length or "–"), "tokens per verify pass"),
        ("speed-up", most + number(answer.speedup), "×"),
        ("acceptance needed per drafted token", percent(answer.required_acceptance_rate), "for a chain"),
        ("acceptance reached per drafted token", percent(answer.acceptance_rate), "for a chain"),
        ("decode step", number(answer.step_ms), "ms"),
        ("cycle", least + number(answer.cycle_ms), "ms"),
    ]
    return [figure for figure in figures if not figure[1].endswith("–")]


def _list(title: str, lines: list[str], out: Console) -> None:
    if not lines:
        return
    out.print()
    out.print(Text(title, style="bold"))
    grid = RichTable.grid(padding=(0, 1))
    for line in lines:
        grid.add_row("-", Text(printable(line)))
    out.print(grid)


def _laid_out(table: tables.Table, width: int) -> RichTable:
    laid = RichTable(
        title=Text(table.title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        show_edge=False,
    )
    rows = [[_cell(printable(text), width) for text in row] for row in table.rows]
    for column, header in enumerate(table.headers):
        # A header may break anywhere, a number nowhere.
        title = Text(printable(header if width >= WIDE else header.replace("draft-", "draft-\n")))
        longest = max(
            [cell_len(word) for word in title.plain.split()]
            + [cell_len(line) for row in rows for line in row[column].plain.split("\n")]
        )
        words = column == 0 and table.headers[0] in ("phase", "share")
        laid.add_column(title, justify="left" if words else "right", width=None if width >= WIDE else longest)
    for row in rows:
        laid.add_row(*row)
    return laid


def _cell(text: str, width: int) -> Text:
    """A cell; on a narrow terminal what qualifies a number goes under it, unbroken."""
    if width < WIDE:
        for mark in (" [", " (", " eager", " / "):
            text = text.replace(mark, f"\n{mark.strip()}" + (" " if mark == " / " else ""))
    return Text(text, style=STYLES.get(text.split("\n")[0].split(" ")[0], ""), no_wrap=True)
