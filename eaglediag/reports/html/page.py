"""The page: what stands on it in which order, and the template that lays it out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TextIO

from eaglediag import __version__
from eaglediag.analysis.figures import estimate, interval
from eaglediag.analysis.measured import Arm
from eaglediag.capture.model import Capture, Workload
from eaglediag.reports import tables
from eaglediag.reports.html import acceptance, batches, collectives, cycle, denials, speedup, timeline
from eaglediag.reports.html.figure import Figure, Material
from eaglediag.reports.untrusted import printable

if TYPE_CHECKING:
    from jinja2 import Environment

#: A mark beside the verdict, so that its colour is not all that tells.
MARKS = {
    "better": "▲",
    "worse": "▼",
    "equal": "=",
    "inconclusive": "?",
    "not_comparable": "≠",
}
#: A figure names so many of its findings; the others are only counted.
MOST_LINKS = 5


@dataclass(frozen=True)
class Facts:
    """What a reader must know about one arm: (name, value) pairs, and its launch command."""

    arm: str
    pairs: tuple[tuple[str, str], ...]
    command: str


def render(material: Material, out: TextIO) -> None:
    """Write the page."""
    result = material.comparison
    found = [one for one in _figures(material) if one is not None]
    refused, left_out = denials.refused(material)
    page = _environment().get_template("report.html")
    out.write(
        page.render(
            version=__version__,
            verdict=result.headline if result else _alone(material.candidate.arm),
            outcome=result.outcome if result else "",
            outcome_words=tables.OUTCOMES[result.outcome] if result else "",
            mark=MARKS[result.outcome] if result else "",
            figures=found,
            about={figure.name: _about(figure, material) for figure in found},
            most_links=MOST_LINKS,
            shown_in=_shown_in(found, material),
            tables=tables.tables(result) if result else (),
            findings=result.findings if result else (),
            refused=refused,
            left_out=left_out,
            place=denials.place,
            differences=tables.differences(result) if result else (),
            problems=_problems(material),
            facts=[_facts(side.capture) for side in material.sides],
        )
    )


def _figures(material: Material) -> Iterator[Figure | None]:
    yield speedup.figure(material)
    yield cycle.figure(material)
    yield batches.figure(material)
    yield acceptance.figure(material)
    for number, side in enumerate(material.sides):
        yield timeline.figure(side, number)
    yield collectives.figure(material)


def _about(figure: Figure, material: Material) -> list[tuple[int, str]]:
    """(number, what) of the findings that a figure shows."""
    findings = material.comparison.findings if material.comparison else ()
    return [(number, one.what) for number, one in enumerate(findings, 1) if one.code.startswith(figure.findings)]


def _shown_in(figures: list[Figure], material: Material) -> dict[str, list[tuple[str, str]]]:
    """(name, title) of the figures that show a finding, by its code."""
    findings = material.comparison.findings if material.comparison else ()
    return {
        one.code: [(figure.name, figure.title) for figure in figures if one.code.startswith(figure.findings)]
        for one in findings
    }


def _alone(arm: Arm) -> str:
    """The verdict on a single capture: what it costs and yields; whether that pays takes a baseline."""
    if not arm.batches:
        return f"{arm.name}: no steps were recorded; give it a baseline to compare throughputs."
    cost = next(iter(arm.batches.values()))
    if not arm.speculative:
        return f"{arm.name}: a decode step takes {interval(cost.period)} ms at batch {cost.batch_size}."
    emitted = f" and emits {interval(cost.accept_length)} tokens" if cost.accept_length else ""
    return (
        f"{arm.name}: a cycle takes {estimate(cost.period)} ms at batch {cost.batch_size}{emitted}; whether that pays "
        "takes a baseline: eaglediag report BASELINE CANDIDATE."
    )


def _problems(material: Material) -> list[str]:
    if material.comparison is not None:
        listed = tables.problems(material.comparison)
    else:
        listed = [(one.message, one.advice) for one in material.candidate.capture.problems]
    return [f"{what}; {advice}" if advice else what for what, advice in listed]


def _facts(capture: Capture) -> Facts:
    server, instruments = capture.server, capture.instrumentation
    seen = sum(rank.seen for rank in instruments.ranks)
    speculation = server.speculation
    pairs = [
        ("measured", datetime.fromtimestamp(capture.created, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")),
        ("engine", f"{server.engine} {server.release}{f' ({server.commit})' if server.commit else ''}"),
        ("model", server.model.path or server.model.architecture),
        ("layers", "" if server.model.layers is None else str(server.model.layers)),
        ("parallel", f"tp {server.tp}, dp {server.dp}, pp {server.pp}"),
        ("attention backend", server.attention_backend),
        (
            "speculation",
            ""
            if speculation is None
            else f"{speculation.algorithm}, {speculation.num_steps} steps, top-k {speculation.topk}, "
            f"{speculation.num_draft_tokens} draft tokens",
        ),
        ("GPUs", ", ".join(dict.fromkeys(gpu.name for host in capture.hosts for gpu in host.gpus))),
        ("driver", ", ".join(dict.fromkeys(host.driver for host in capture.hosts if host.driver))),
        ("versions", ", ".join(f"{name} {version}" for name, version in server.versions.items())),
        ("workload", _workload(capture.workload)),
        ("ranks measured", f"{seen} of {instruments.ranks_expected or '?'}"),
        ("injected by", instruments.route),
        ("the agent costs", _overhead(capture)),
        ("status", "" if capture.status == "complete" else capture.status),
    ]
    return Facts(capture.arm, tuple(pair for pair in pairs if pair[1]), shlex.join(server.command))


def _workload(work: Workload) -> str:
    endpoint = f"{work.endpoint} endpoint" if work.endpoint else ""
    concurrency = f"concurrency {', '.join(map(str, work.concurrency))}" if work.concurrency else ""
    return ", ".join(part for part in (work.source, endpoint, concurrency) if part)


def _overhead(capture: Capture) -> str:
    overhead = capture.instrumentation.overhead
    if overhead.ratio is None:
        return "not measured"
    low, high = overhead.interval or (overhead.ratio, overhead.ratio)
    return f"{overhead.ratio:.3f} [{low:.3f}, {high:.3f}] of the time without it; {overhead.method}"


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def shown(value: object) -> object:
        return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    return Environment(
        loader=PackageLoader("eaglediag.reports.html", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
