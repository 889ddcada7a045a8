"""What to know before trusting a capture made from an SGLang log: what was left out, looks wrong, or is in no log."""

from __future__ import annotations

import time
from collections.abc import Iterator

from eaglediag.capture.model import Phase, Problem, Server
from eaglediag.probes.evidence.decode_series import DecodeSeries, accept_rate_counts_bonus
from eaglediag.probes.evidence.sglang_import import Launch, SglangLog, identity
from eaglediag.probes.evidence.sglang_log import Rank
from eaglediag.probes.evidence.sglang_server import decode_log_interval

#: An accept length that never moves over this many lines is pinned, not measured.
PINNED_LINES = 8

_DRAFT_PHASES: dict[Phase, tuple[str, str]] = {
    "draft": ("draft", "draft_decode"),
    "draft_extend": ("draft extend", "draft_extend"),
}


def of_the_log(log: SglangLog, launch: Launch, source: str) -> Iterator[Problem]:
    """Whether the log holds more than one server or launch, and lines that could not be read."""
    others = sorted({writer or "(no prefix)" for writer, _ in launch.series} - {source or "(no prefix)"})
    if others:
        yield Problem(
            code="several_servers",
            message=f"the log mixes several servers: {source or '(no prefix)'} is used, {', '.join(others)} left out",
            advice="give each server's log apart",
        )
    if len(log.launches) > 1:
        yield Problem(
            code="several_launches",
            message=f"the log holds {len(log.launches)} launches with different arguments; {_which(log, launch)}",
            advice="cut the log at `server_args=` to use another",
        )
    if log.unreadable:
        yield Problem(
            code="unreadable_lines",
            message=f"{log.unreadable} of {log.lines} lines could not be read, torn or in a new format",
            advice="see them with `eaglediag import --show-unparsed`",
        )
    for text, count in launch.trouble.most_common(5):
        yield Problem(code="trouble", message=f"the log reports trouble{_times(count)}: {text[:300]}")


def of_the_lines(series: dict[Rank, DecodeSeries], server: Server, interval: int) -> Iterator[Problem]:
    """Decode lines that were left out or that say something odd."""
    lines, unusable = sum(one.lines for one in series.values()), sum(one.unusable for one in series.values())
    if not lines:
        yield Problem(
            code="no_decode_lines",
            message="the log holds no decode lines, so no step times",
            advice="log at level info, or probe the server",
        )
        return
    if unusable == lines:
        yield Problem(
            code="no_usable_lines",
            message=f"none of the {lines} decode lines follows another at the same #running-req: no step times",
            advice="give more of the log: at least three decode lines in a row under a steady load",
        )
    elif unusable:
        yield Problem(
            code="first_lines_left_out",
            message=f"{unusable} of {lines} decode lines were left out: the first after idle or after a change of "
            "#running-req, whose throughput is not of one batch size",
        )
    mixed = sorted({size for one in series.values() for size, _, steady in one.usable() if not steady})
    if mixed:
        yield Problem(
            code="prefill_in_period",
            message=f"at #running-req {_listed(mixed)} every decode line follows prefills: its step time holds them",
            advice="measure with `eaglediag probe`, or under a steady load",
        )
    if decode_log_interval(server.arguments) is None:
        known = any(one.steps_per_line for one in series.values())
        yield Problem(
            code="interval_inferred" if known else "interval_assumed",
            message=f"the log does not show server_args; a decode line is taken to stand for {interval} steps"
            + (", as the KV cache grew between lines" if known else ", the default"),
            advice="" if known else "give the log from the server's start, or /server_info",
        )
    yield from _accept_lengths(series, server)


def of_the_start(launch: Launch, server: Server, speculative: bool) -> Iterator[Problem]:
    """Phases whose graphs were never captured, and what the server said it disabled or changed."""
    whole = launch.arguments and launch.ready is not None
    if speculative and whole and server.device in ("", "cuda"):
        for phase, (words, _) in _DRAFT_PHASES.items():
            if phase not in launch.captured:
                yield Problem(
                    code="never_captured",
                    message=f"the log shows no capture of {words} graphs: that phase is always eager",
                    advice="the probe shows what it costs",
                )
    if launch.startup is not None and speculative:
        never = [words for phase, (words, name) in _DRAFT_PHASES.items() if launch.startup.graphs.get(name) == 0.0]
        if never:
            yield Problem(
                code="never_captured", message=f"startup timings of 0.00 s: {' and '.join(never)} never captured"
            )
    for text, count in launch.remarks.most_common(20):
        yield Problem(code="server_remark", message=f"the server says{_times(count)}: {text[:300]}")


def unknown(server: Server, speculative: bool) -> Iterator[Problem]:
    """What no log can know, each with the command that finds out."""
    port = server.arguments.get("port")
    url = f"http://127.0.0.1:{port if isinstance(port, int) else 30000}"
    probe = "eaglediag probe --host HOST --launch 'the launch command' -o capture.json"
    if speculative:
        yield Problem(
            code="unknown_draft_graphs",
            message="the graph flag in a decode line is of the last verify only; whether draft and draft-extend ran as "
            "graphs is not in a log",
            advice=f"`{probe}`",
        )
    yield Problem(
        code="unknown_parts",
        message="the parts of a step (draft, verify, host gap) are not in a log, only its whole length",
        advice=f"`{probe}`",
    )
    yield Problem(
        code="unknown_clocks",
        message="clocks, power and throttling are not in a log: a difference between two logs may be the GPU's state",
        advice=f"`eaglediag probe --host HOST --url {url} --read-only -o capture.json`",
    )


def _accept_lengths(series: dict[Rank, DecodeSeries], server: Server) -> Iterator[Problem]:
    blocked = [lines for one in series.values() for _, lines, _ in one.usable() if one.speculative]
    count = sum(one.lines for one in blocked)
    low = min((one.min_accept for one in blocked), default=0.0)
    high = max((one.max_accept for one in blocked), default=0.0)
    most = server.speculation.max_accept_length if server.speculation else None
    if count >= PINNED_LINES and low == high and low not in (1.0, most):
        yield Problem(
            code="accept_length_pinned",
            message=f"the accept length is {low:.2f} in all {count} decode lines: it looks pinned",
            advice="check the server's environment for SGLANG_SIMULATE_ACC_LEN; the tokens are then not the model's",
        )
    width = server.speculation.num_draft_tokens if server.speculation else None
    if width is None:
        return
    if server.speculation and server.speculation.topk in (None, 1) and most is not None and high > most + 0.005:
        yield Problem(
            code="accept_length_impossible",
            message=f"an accept length of {high:.2f} is above the most that {most - 1} draft steps can give ({most})",
            advice="the lines and the server_args are not of the same server, or speculation is adaptive",
        )
    pairs = [pair for one in series.values() for pair in one.rates if pair[0] > 1.05]
    meanings = {accept_rate_counts_bonus(length, rate, width) for length, rate in pairs} - {None}
    if meanings == {True}:
        length, rate = max(pairs)
        yield Problem(
            code="accept_rate_counts_bonus",
            message="`accept rate` in this log counts the bonus token, as releases to 0.5.10 do: its "
            f"{rate:.2f} at accept length {length:.2f} reads {(length - 1) / (width - 1):.2f} from 0.5.12 on",
            advice="compare accept lengths, which mean the same in every release",
        )
    elif pairs and not meanings and width > 2:
        yield Problem(
            code="accept_rate_inconsistent",
            message=f"`accept rate` fits neither of its meanings at {width} draft tokens",
            advice="the server_args may not be this server's, or its speculation is adaptive",
        )


def _which(log: SglangLog, launch: Launch) -> str:
    """`number 2 is used, the last with decode lines, started 2026-01-02 12:16:40 with tp_size=2`."""
    used = f"number {1 + next(i for i, one in enumerate(log.launches) if one is launch)} is used, the last"
    used += " with decode lines" if launch.series else ""
    if launch.started is not None:
        used += time.strftime(", started %Y-%m-%d %H:%M:%S", time.gmtime(launch.started))
    others = [identity(one.arguments) for one in log.launches if one is not launch]
    own = {
        name: value
        for name, value in identity(launch.arguments).items()
        if any(one.get(name) != value for one in others)
    }
    # What speculation was told says most.
    names = sorted(own, key=lambda name: (not name.startswith("speculative_"), own[name] is None, name))
    shown = [f"{name}={str(own[name])[:60]}" for name in names[:3]]
    more = f" and {len(names) - 3} more of its own" if len(names) > 3 else ""
    return used + (f" with {', '.join(shown)}{more}" if shown else "")


def _listed(sizes: list[int]) -> str:
    shown = ", ".join(str(size) for size in sizes[:8])
    return shown if len(sizes) <= 8 else f"{shown} and {len(sizes) - 8} more"


def _times(count: int) -> str:
    return f" ({count} times)" if count > 1 else ""
