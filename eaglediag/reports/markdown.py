"""Reports in markdown, for a job summary, a comment or an issue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from eaglediag.analysis.comparison import Comparison
from eaglediag.analysis.policy import Check
from eaglediag.reports import tables
from eaglediag.reports.untrusted import markdown, printable

#: GitHub takes 65,536 characters in a comment or an issue, and 1 MiB in a job summary.
ROOM = 64_000
SUMMARY_ROOM = 1_000_000


@dataclass(frozen=True)
class Section:
    """A part of a report that can be made to fit: of its `pieces` (lines, or characters) the last are left out first.

    `more` stands for those that were left out, and says how many.
    """

    head: str
    pieces: Sequence[str] = ()
    tail: str = ""
    more: str = "- and {} more\n"

    @property
    def whole(self) -> str:
        """All of it."""
        return "".join((self.head, *self.pieces, self.tail))

    def within(self, room: int) -> str:
        """As much of it as `room` characters hold."""
        if len(self.whole) <= room:
            return self.whole
        left = room - len(self.head) - len(self.tail) - len(self.more) - len(str(len(self.pieces)))
        if left < 0:
            return "\n*One section did not fit.*\n"
        shown = 0
        while len(self.pieces[shown]) <= left:
            left -= len(self.pieces[shown])
            shown += 1
        return "".join((self.head, *self.pieces[:shown], self.more.format(len(self.pieces) - shown), self.tail))


def fitted(sections: Sequence[Section], room: int = ROOM) -> str:
    """All sections in `room` characters: the longest ones are cut, to one length."""
    level = room
    for number, length in enumerate(sorted(len(section.whole) for section in sections)):
        level = room // (len(sections) - number)
        if length > level:
            break
        room -= length
    else:
        level = max((len(section.whole) for section in sections), default=0)
    return "".join(section.within(level) for section in sections)


def render(result: Comparison, out: TextIO) -> None:
    """Write a comparison: the verdict, its tables, denials and caveats. Everything from the captures is escaped."""
    out.write(fitted(sections(result), SUMMARY_ROOM))


def sections(result: Comparison) -> list[Section]:
    """The verdict, then everything else under headings."""
    found = [Section(f"**{markdown(result.headline)}**\n")]
    found += [table(one, f"\n### {markdown(one.title)}\n\n") for one in tables.tables(result)]
    for number, finding in enumerate(result.findings, start=1):
        lines = [f"- {markdown(one.fact)} *({markdown(one.source)})*\n" for one in finding.evidence]
        advice = f"- **Do:** {markdown(finding.advice)}\n- **Refuted by:** {markdown(finding.refuted_by)}\n"
        found.append(Section(f"\n### {number}. {markdown(finding.what)} ({finding.sure})\n\n", lines, advice))
    for title, said in (
        ("What else differs between the arms", tables.differences(result)),
        ("Refusals of a graph that no finding explains", tables.denials(result)),
        ("Too few steps for a row", [f"batch {one.batch_size}: {one.why}" for one in result.skipped]),
        ("Before you trust this", tables.short_problems(result)),
    ):
        if said:
            found.append(Section(f"\n### {title}\n\n", [f"- {markdown(line)}\n" for line in said]))
    return found


def render_check(result: Check, out: TextIO) -> None:
    """Write the gates of `check`."""
    out.write(f"**{markdown(result.headline)}**\n\n{table(tables.gates(result)).whole}")


def table(one: tables.Table, head: str = "") -> Section:
    """A table, numbers to the right."""
    lines = [f"| {' | '.join(markdown(cell) for cell in cells)} |\n" for cells in (one.headers, *one.rows)]
    return Section(f"{head}{lines[0]}|{'---:|' * len(one.headers)}\n", lines[1:], more="| and {} more |\n")


def fenced(language: str, text: str, head: str = "") -> Section:
    """Text to be copied, exactly as it is; the fence is longer than any in it."""
    text = "\n".join(printable(line) for line in text.split("\n"))
    fence = "```"
    while fence in text:
        fence += "`"
    return Section(f"{head}\n{fence}{language}\n", text, f"\n{fence}\n", "… ({} more characters)")
