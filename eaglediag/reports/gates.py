"""The gates of an installation, what changed between two, and what they would say on paper: terminal and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from eaglediag.analysis.advice import Advice, advise, known_condition
from eaglediag.analysis.gates import Answer, Asked, Condition, Difference, Gate, Installation
from eaglediag.analysis.gates.arguments import depends_on
from eaglediag.analysis.sentences import PHASE_NAMES
from eaglediag.capture.model import Denial, Frame, Server
from eaglediag.reports.untrusted import printable

Json = dict[str, object]

STATUS = {"known": "", "changed": "changed, but parsed", "not understood": "NOT UNDERSTOOD"}
#: What reports call a phase.
PHASES: dict[str, str] = {str(phase): name for phase, name in PHASE_NAMES.items()}
_ORDER = list(PHASES)


def headline(installation: Installation, phase: str | None = None) -> str:
    """How much of it is known, in one sentence."""
    gates = list(installation.of_phase(phase))
    counts = Counter(gate.status for gate in gates)
    where = f" asked in {PHASES[phase]}" if phase in PHASES else ""
    checked = "a checked release" if installation.known else "not a checked release"
    said = f"{installation.name}, {checked}: {len(gates)} gates{where}"
    if counts["known"] == len(gates):
        said += ", every one of them known"
    else:
        parts = [(counts["known"], "known"), (counts["changed"], "changed, but parsed")]
        said += "; " + ", ".join(f"{count} {word}" for count, word in parts if count)
        said += f", {counts['not understood']} not understood" if counts["not understood"] else ""
    if installation.missing:
        said += f"; {len(installation.missing)} that were expected are not there"
    return said + "."


def render(installation: Installation, phase: str | None, out: Console) -> None:
    """Print every gate with its conditions, by phase; gates of other devices last."""
    out.print(Text(printable(headline(installation, phase)), style="bold"))
    out.print(Text(printable(f"Read in {installation.package} ({installation.where})."), style="dim"))
    for name, why in installation.missing:
        out.print(Text(printable(f"Missing: {name}: {why}"), style="yellow"))
    for title, gates in _sections(installation.of_phase(phase)):
        out.print()
        out.print(Text(title, style="bold underline"))
        for gate in gates:
            out.print()
            _gate(gate, installation, out)
    out.print()
    out.print(
        Text(
            "`needs`: it says no when this is false. `refuses`: it says no when this is true. Behind them: when it is "
            "asked at all, and the launch options that it depends on.",
            style="dim",
        )
    )


def _sections(gates: Iterable[Gate]) -> list[tuple[str, list[Gate]]]:
    sections: dict[tuple[bool, int, str], list[Gate]] = {}
    for gate in gates:
        phases = ", ".join(PHASES[phase] for phase in _ORDER if phase in gate.phases)
        first = min((_ORDER.index(phase) for phase in gate.phases if phase in _ORDER), default=len(_ORDER))
        title = f"{phases}, only on {gate.device}" if gate.device else phases
        sections.setdefault((bool(gate.device), first, title), []).append(gate)
    return [(key[2], sections[key]) for key in sorted(sections)]


def _gate(gate: Gate, installation: Installation, out: Console) -> None:
    line = Text(printable(gate.qualname), style="bold")
    if gate.kind == "caller":
        line.append(" (asks others)" if gate.settles else " (only plans)", style="dim")
    if note := STATUS[gate.status]:
        line.append(f" {note}", style="yellow" if gate.status == "changed" else "bold red")
    out.print(line)
    out.print(Text(printable(f"  {gate.file}:{gate.line}  {gate.source_hash[:12]}"), style="dim"))
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", min_width=7, no_wrap=True)
    grid.add_column(min_width=7, no_wrap=True)
    grid.add_column(overflow="fold")
    for condition in gate.conditions:
        word = "refuses" if condition.denies_when else "needs"
        grid.add_row(str(condition.line), word, Text(printable(condition.text)))
        if behind := _behind(gate, condition, installation):
            grid.add_row("", "", Text(printable(behind), style="dim"))
    if not gate.conditions:
        grid.add_row("", "", Text("hands on what others decide, or always says the same", style="dim"))
    out.print(grid)


def _behind(gate: Gate, condition: Condition, installation: Installation) -> str:
    parts = []
    if when := gate.when(condition):
        parts.append("asked only if " + " and ".join(when))
    if flags := depends_on(gate, condition, installation.options):
        parts.append("depends on " + ", ".join(flags))
    return "; ".join(parts)


def as_json(installation: Installation, phase: str | None) -> Json:
    """An installation whole, for machines."""
    return {
        **_named(installation),
        "headline": headline(installation, phase),
        "missing": [{"gate": name, "why": why} for name, why in installation.missing],
        "gates": [
            {
                **_gate_named(gate),
                "kind": gate.kind,
                "settles": gate.settles,
                "found_by": gate.how,
                "conditions": [
                    {
                        "text": condition.text,
                        "line": condition.line,
                        "denies_when": condition.denies_when,
                        "asks": known.what if (known := known_condition(condition.text)) else None,
                        "asked_if": list(gate.when(condition)),
                        "depends_on": list(depends_on(gate, condition, installation.options)),
                    }
                    for condition in gate.conditions
                ],
            }
            for gate in installation.of_phase(phase)
        ],
    }


def _named(installation: Installation) -> Json:
    return {
        "release": installation.release or None,
        "commit": installation.commit,
        "package": installation.package,
        "checked_release": installation.known,
    }


def _gate_named(gate: Gate) -> Json:
    return {
        "gate": gate.target,
        "phases": list(gate.phases),
        "file": gate.file,
        "line": gate.line,
        "source_hash": gate.source_hash,
        "status": gate.status,
        "device": gate.device or None,
    }


# -- differences ------------------------------------------------------------------------------------------------------


def difference_headline(found: Difference) -> str:
    """What changed, counted."""
    asks = sum(bool(one.added or one.removed) for one in found.changed)
    moved = sum(one.moved for one in found.changed)
    said = f"From {found.old.name} to {found.new.name}: {len(found.added)} gates added, {len(found.removed)} removed, "
    return said + f"{moved} moved or renamed, {asks} ask something else, {found.same} the same."


def render_difference(found: Difference, out: Console) -> None:
    """Print what changed, gate by gate; a line of the old in red with `-`, of the new in green with `+`."""
    out.print(Text(printable(difference_headline(found)), style="bold"))
    for title, gates, mark, style in (
        ("Added", found.added, "+", "green"),
        ("Removed", found.removed, "-", "red"),
    ):
        if gates:
            out.print()
            out.print(Text(title, style="bold underline"))
            for gate in gates:
                out.print(Text(printable(f"{mark} {_where(gate)}"), style=style))
                _texts([(mark, style, condition.text) for condition in gate.conditions], out)
    if found.changed:
        out.print()
        out.print(Text("Changed", style="bold underline"))
    for change in found.changed:
        out.print(Text(printable(_where(change.new)), style="bold"))
        if change.moved:
            out.print(Text(printable(f"  was {change.old.target} ({change.old.file}:{change.old.line})"), style="dim"))
        texts = [("-", "red", text) for text in change.removed] + [("+", "green", text) for text in change.added]
        _texts(texts, out)
        if not texts:
            out.print(Text("  the same conditions; other code", style="dim"))
    for title, options, mark in (
        ("Options about graphs that are gone", found.options_removed, "-"),
        ("Options about graphs that are new", found.options_added, "+"),
    ):
        if options:
            out.print()
            out.print(Text(title, style="bold underline"))
            _texts([(mark, "green" if mark == "+" else "red", option) for option in options], out)


def _where(gate: Gate) -> str:
    phases = ", ".join(PHASES[phase] for phase in _ORDER if phase in gate.phases)
    return f"{gate.qualname} ({phases}{', ' + gate.device if gate.device else ''}) {gate.file}:{gate.line}"


def _texts(texts: Sequence[tuple[str, str, str]], out: Console) -> None:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(min_width=3, justify="right")
    grid.add_column(overflow="fold")
    for mark, style, text in texts:
        grid.add_row(Text(mark, style=style), Text(printable(text), style=style))
    if texts:
        out.print(grid)


def difference_json(found: Difference) -> Json:
    """The same, for machines."""
    return {
        "headline": difference_headline(found),
        "old": _named(found.old),
        "new": _named(found.new),
        "added": [{**_gate_named(gate), "conditions": _condition_texts(gate)} for gate in found.added],
        "removed": [{**_gate_named(gate), "conditions": _condition_texts(gate)} for gate in found.removed],
        "changed": [
            {
                "old": _gate_named(change.old),
                "new": _gate_named(change.new),
                "moved": change.moved,
                "conditions_added": list(change.added),
                "conditions_removed": list(change.removed),
            }
            for change in found.changed
        ],
        "same": found.same,
        "options_added": list(found.options_added),
        "options_removed": list(found.options_removed),
    }


def _condition_texts(gate: Gate) -> list[str]:
    return [condition.text for condition in gate.conditions]


# -- on paper ---------------------------------------------------------------------------------------------------------


def denial_of(answer: Answer, asked: Asked) -> Denial:
    """A denial on paper, as a capture would hold it."""
    gate, condition = answer.gate, answer.condition
    frame = Frame(
        file=gate.file,
        line=condition.line,
        function=gate.qualname,
        text=condition.text,
        shown=answer.shown or condition.text,
    )
    phase = asked.phase if asked.phase in PHASES else gate.phases[0]
    return Denial.model_validate({"phase": phase, "gate": gate.target, "frames": [frame], "counts": {}})


def _advice(answer: Answer, asked: Asked, installation: Installation) -> Advice | None:
    return advise(denial_of(answer, asked), Server(release=installation.release))


def explain_headline(found: Sequence[Answer], asked: Asked) -> str:
    """What the values decide."""
    denied = [one for one in found if one.verdict == "denies" and not one.gate.device]
    what = PHASES.get(asked.phase or "", "any phase")
    if denied:
        provisos = ", with the provisos below" if all(one.assuming for one in denied) else ""
        return f"With these values {what} is denied its graph by {_conditions(len(denied))}{provisos}."
    if any(one.verdict == "allows" for one in found):
        return f"No condition that these values decide denies {what} its graph; the others need more."
    return f"These values decide no condition of {what}."


def _conditions(count: int) -> str:
    return "1 condition" if count == 1 else f"{count} conditions"


def render_explained(installation: Installation, asked: Asked, found: Sequence[Answer], out: Console) -> None:
    """Print what the conditions say on paper: what denies, what allows, and what the values do not decide."""
    out.print(Text(explain_headline(found, asked), style="bold"))
    out.print(Text(printable(f"On paper, by the source of {installation.name}."), style="dim"))
    for title, verdict, style in (("Denies", "denies", "red"), ("Allows", "allows", "green")):
        told = sorted((one for one in found if one.verdict == verdict), key=lambda one: one.gate.device)
        if told:
            out.print()
            out.print(Text(title, style=f"bold {style}"))
            for one in told:
                _answer(one, asked, installation, out)
    unknown = [one for one in found if one.verdict == "unknown" and not one.gate.device]
    if unknown:
        out.print()
        out.print(Text(f"Not decided by these values: {_conditions(len(unknown))}, which need", style="bold"))
        grid = _grid(2)
        needs: dict[str, dict[str, None]] = {}
        for one in unknown:
            needs.setdefault(one.gate.qualname, {}).update(dict.fromkeys(one.needs))
        for name, texts in needs.items():
            grid.add_row(" -", Text(printable(f"{name}: {', '.join(texts)}"), style="dim"))
        out.print(grid)


def _grid(columns: int) -> Table:
    """Columns of text of which the last may break anywhere."""
    grid = Table.grid(padding=(0, 1))
    for _ in range(columns - 1):
        grid.add_column()
    grid.add_column(overflow="fold")
    return grid


def _answer(one: Answer, asked: Asked, installation: Installation, out: Console) -> None:
    condition, gate = one.condition, one.gate
    only = f", only on {gate.device}" if gate.device else ""
    shown = "" if one.shown == condition.text else f" is `{one.shown}`"
    text = f"`{condition.text}`{shown} ({gate.file.rpartition('/')[2]}:{condition.line}, {gate.qualname}{only})"
    grid = _grid(2)
    grid.add_row(" -", Text(printable(text)))
    if one.assuming:
        grid.add_row("", Text(printable("provided that " + " and ".join(one.assuming)), style="dim"))
    if one.verdict == "denies":
        advice = _advice(one, asked, installation)
        grid.add_row("", Text(printable(advice.sentence if advice else "no advice: this condition is not a known one")))
    out.print(grid)


def explained_json(installation: Installation, asked: Asked, found: Sequence[Answer]) -> Json:
    """The same, for machines. `values` are by the names of the code."""
    return {
        **_named(installation),
        "headline": explain_headline(found, asked),
        "phase": asked.phase,
        "values": dict(asked.values),
        "conditions": [
            {
                "gate": one.gate.target,
                "file": one.gate.file,
                "line": one.condition.line,
                "device": one.gate.device or None,
                "text": one.condition.text,
                "shown": one.shown or None,
                "verdict": one.verdict,
                "assuming": list(one.assuming),
                "needs": list(one.needs),
                "advice": advice.as_json()
                if one.verdict == "denies" and (advice := _advice(one, asked, installation))
                else None,
            }
            for one in found
        ],
    }
