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
from eaglediag.analysis.sentences import breakeven_sentence, comparability_sentence, missing_sentence
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
#: Between two columns of a table.
GAP = 2
#: Before these a cell may be broken: what follows qualifies a number.
BELOW = (" [", " (", " eager", " / ")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command line, which has one answer for it; rich would end with the code of a failed gate."""
        raise BrokenPipeError


def console(file: TextIO | None = None) -> Console:
    """A console on standard output. Colour only on a terminal and without NO_COLOR; `[...]` is text, not markup."""
    return _Console(file=file or sys.stdout, markup=False, highlight=False, emoji=False)


def render(result: Comparison | BreakEven, out: Console, *, verbose: bool = False) -> None:
    """Print a result; of a comparison what matters, on about one screen, and with `verbose` everything."""
    if isinstance(result, Comparison):
        _comparison(result, out, verbose)
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


def _comparison(result: Comparison, out: Console, verbose: bool) -> None:
    out.print(Text(printable(result.headline), style=STYLES[result.outcome]))
    for table in tables.tables(result) if verbose else tables.main_tables(result):
        out.print()
        _table(table, out)
    _findings(result.findings, out, verbose)
    for title, lines in (
        ("What else differs between the arms", tables.differences(result)),
        ("Refusals of a graph that no finding explains", tables.denials(result)),
        ("Other refusals of a graph", _others(result) if verbose else []),
        ("Too few steps for a row", [f"batch {one.batch_size}: {one.why}" for one in result.skipped]),
        ("Before you trust this", tables.short_problems(result)),
    ):
        _list(title, lines, out)
    out.print()
    notes = ["[low, high] are 95 % intervals; times are means per step; parts and gap add up."]
    if not verbose:
        more = tables.left_out(result)
        others = f" and {more} denials in prefill or behind another gate" if more else ""
        notes.append(f"--verbose shows all evidence, what the clients saw{others}.")
    out.print(Text(" ".join(notes), style="dim"))


def _others(result: Comparison) -> list[str]:
    told = tables.denials(result)
    return [line for line in tables.denials(result, everything=True) if line not in told]


def render_what_if(result: WhatIf, out: Console) -> None:
    """Print what would happen, and how it was priced."""
    _table(tables.what_if(result), out)
    if (predicted := tables.predictions(result)).rows:
        out.print()
        _table(predicted, out)
    if result.choices:
        out.print()
        _table(tables.choices(result), out)
    _list("How this was priced", tables.pricing(result), out)


def render_held(found: Sequence[Held], out: Console) -> None:
    """Print predictions beside what was measured afterwards."""
    _table(tables.held(found), out)


def render_break_even(result: Comparison, found: Sequence[Crossing], out: Console) -> None:
    """Print the break-even of two captures, batch size by batch size, what a sweep says of it, and what is doubtful."""
    if caution := comparability_sentence(result.comparability):
        out.print(Text(printable(caution), style=STYLES["inconclusive"]))
    judged = [(f"batch {row.batch_size}", row.break_even) for row in result.rows]
    for where, answer in judged or [(f"concurrency {load.concurrency}", load.break_even) for load in result.loads]:
        if answer is not None:
            said = breakeven_sentence(answer, where, result.candidate.accept_length_set)
            out.print(Text(said, style=STYLES.get(answer.verdict or "", "bold")))
    out.print()
    _table(tables.break_evens(result), out)
    if found:
        out.print()
        _table(tables.crossings(found), out)
        _list(
            "Speed-up seen, by accept length (set, not reached: judge the draft in a run without)",
            tables.swept(found),
            out,
        )
    _list("What else differs between the arms", tables.differences(result), out)
    _list("Before you trust this", [*tables.set_accept_length(result), *tables.short_problems(result)], out)


def _findings(findings: Sequence[Finding], out: Console, verbose: bool) -> None:
    """The first finding with its evidence; the others, unless all is asked for, as what and what to do."""
    for number_, finding in enumerate(findings, start=1):
        whole = verbose or number_ == 1
        if whole or number_ == 2:
            out.print()
        out.print(Text(printable(f"{number_}. {finding.what} ({finding.sure})"), style="bold"))
        grid = RichTable.grid(padding=(0, 1))
        grid.add_column(min_width=10 if whole else 4)
        for i, evidence in enumerate(finding.evidence if whole else ()):
            line = Text(printable(evidence.fact))
            line.append(printable(f" [{evidence.source}]"), style="dim")
            grid.add_row("" if i else "  evidence", line)
        grid.add_row("  do", Text(printable(finding.advice)))
        if whole:
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


def _table(table: tables.Table, out: Console) -> None:
    """Title and table, in the first layout that fits.

    Headers on one line; headers broken; what qualifies a number below it; an interval's bounds below each other.
    """
    out.print(Text(table.title, style="bold"))
    for broken, breaks in ((False, ()), (True, ()), (True, BELOW), (True, (*BELOW, ", "))):
        headers = [Text(_broken(printable(header)) if broken else printable(header)) for header in table.headers]
        rows = [[_cell(printable(text), breaks) for text in row] for row in table.rows]
        widths = [
            max(
                *(cell_len(word) for word in (header.plain.split() if broken else [header.plain])),
                *(cell_len(line) for row in rows for line in row[column].plain.split("\n")),
            )
            for column, header in enumerate(headers)
        ]
        if sum(widths) + GAP * (len(widths) - 1) <= out.width:
            break
    laid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, show_edge=False)
    for column, (header, width) in enumerate(zip(headers, widths, strict=True)):
        names = column == 0 and table.headers[0] in ("phase", "share")
        laid.add_column(header, justify="left" if names else "right", width=width)
    for row in rows:
        laid.add_row(*row)
    out.print(laid)


def _broken(header: str) -> str:
    """A header may break anywhere, a number nowhere."""
    return header.replace("draft-", "draft-\n")


def _cell(text: str, breaks: Sequence[str]) -> Text:
    """A cell, with a new line at the blank that one of the `breaks` begins or ends with."""
    for mark in breaks:
        text = text.replace(mark, ",\n" if mark == ", " else "\n" + mark[1:])
    return Text(text, style=STYLES.get(text.split("\n")[0].split(" ")[0], ""), no_wrap=True)
