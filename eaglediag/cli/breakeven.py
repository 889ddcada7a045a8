"""`eaglediag breakeven`: the accept length at which speculation starts to pay, from captures or from bare numbers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from eaglediag.analysis.breakeven import BreakEven
    from eaglediag.analysis.held import Held

TIMES = "From times at one batch size"
THROUGHPUTS = "From throughputs under one load"


def breakeven(
    capture: Annotated[Path | None, typer.Argument(help="The capture with speculation.")] = None,
    baseline: Annotated[Path | None, typer.Option(help="The capture without speculation.")] = None,
    decode_ms: Annotated[
        float | None, typer.Option(help="One plain decode step, in ms.", rich_help_panel=TIMES)
    ] = None,
    verify_ms: Annotated[float | None, typer.Option(help="One verify pass, in ms.", rich_help_panel=TIMES)] = None,
    draft_ms: Annotated[
        float | None, typer.Option(help="All draft steps of a cycle, in ms.", rich_help_panel=TIMES)
    ] = None,
    extend_ms: Annotated[
        float | None, typer.Option(help="The draft-extend of a cycle, in ms.", rich_help_panel=TIMES)
    ] = None,
    host_ms: Annotated[
        float | None, typer.Option(help="The host gap of a cycle, in ms.", rich_help_panel=TIMES)
    ] = None,
    base_throughput: Annotated[
        float | None, typer.Option(help="Tokens/s without speculation.", rich_help_panel=THROUGHPUTS)
    ] = None,
    spec_throughput: Annotated[
        float | None, typer.Option(help="Tokens/s with speculation.", rich_help_panel=THROUGHPUTS)
    ] = None,
    accept_length: Annotated[
        float | None, typer.Option(help="Tokens emitted per verify pass, the bonus token included.")
    ] = None,
    draft_tokens: Annotated[
        int | None, typer.Option(help="Length of the drafted chain; at most one token more comes out of a cycle.")
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHANGE",
            help="With captures: price graph, accept-length=X, draft-tokens=N or draft-tokens=best. Repeat to combine.",
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The capture with the change made: hold the --what-if against it."),
    ] = None,
    measured_baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The baseline measured with it, where the change is in both.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Give the accept length at which speculation starts to pay.

    From captures: eaglediag breakeven eagle.json --baseline baseline.json

    From bare numbers: eaglediag breakeven --decode-ms 12 --verify-ms 29 --accept-length 2.0 --draft-tokens 2

    With times and throughputs of one request at a time, what of the cycle the times do not explain is said too.
    """
    from eaglediag.errors import UsageError

    times = {"--decode-ms": decode_ms, "--verify-ms": verify_ms}
    more_times = {"--draft-ms": draft_ms, "--extend-ms": extend_ms, "--host-ms": host_ms}
    throughputs = {"--base-throughput": base_throughput, "--spec-throughput": spec_throughput}
    captures = {"the capture": capture, "--baseline": baseline}
    given = [
        group
        for group, options in (
            ("times", {**times, **more_times}),
            ("throughputs", throughputs),
            ("captures", captures),
        )
        if any(value is not None for value in options.values())
    ]
    if given not in (["times"], ["throughputs"], ["times", "throughputs"], ["captures"]):
        raise UsageError(
            f"{' and '.join(given) if given else 'nothing'} given",
            "give a capture and --baseline, --decode-ms and --verify-ms, or --base-throughput and --spec-throughput",
        )
    needed: dict[str, dict[str, object]] = {
        "times": {**times},
        "throughputs": {**throughputs, "--accept-length": accept_length},
        "captures": {**captures},
    }
    lacking = [name for group in given for name, value in needed[group].items() if value is None]
    if lacking:
        asked = ", ".join(name for group in given for name in needed[group])
        raise UsageError(f"{' and '.join(lacking)} not given", f"{' and '.join(given)} need {asked}")
    if capture is not None and baseline is not None:
        if accept_length is not None or draft_tokens is not None:
            raise UsageError("captures know their accept length and drafted tokens", "leave these options out")
        if measured_baseline is not None and measured is None:
            raise UsageError("--measured-baseline needs --measured", "give the capture with speculation too")
        if measured is not None and not what_if:
            raise UsageError("--measured needs --what-if", "say which prediction to hold against it")
        _from_captures((baseline, capture), what_if or [], (measured_baseline, measured), as_json)
        return
    if what_if or measured or measured_baseline:
        raise UsageError("--what-if and --measured need captures", "give a capture with --baseline")

    from eaglediag.analysis import breakeven as arithmetic

    cycle = None if verify_ms is None else arithmetic.CycleTime(verify_ms, draft_ms, extend_ms, host_ms)
    if base_throughput is None or spec_throughput is None or accept_length is None:
        assert decode_ms is not None
        assert cycle is not None
        answer = arithmetic.from_times(decode_ms, cycle, accept_length=accept_length, draft_tokens=draft_tokens)
    elif decode_ms is None or cycle is None:
        answer = arithmetic.from_throughputs(
            base_throughput, spec_throughput, accept_length=accept_length, draft_tokens=draft_tokens
        )
    else:
        answer = arithmetic.from_both(
            decode_ms, cycle, base_throughput, spec_throughput, accept_length=accept_length, draft_tokens=draft_tokens
        )
    _show(answer, as_json)


def _show(answer: BreakEven, as_json: bool) -> None:
    if as_json:
        from eaglediag.reports import results_json

        results_json.write(results_json.break_even(answer), sys.stdout)
    else:
        from eaglediag.reports import terminal

        terminal.render(answer, terminal.console())
    if answer.verdict == "inconsistent":
        raise typer.Exit(3)


def _from_captures(
    paths: tuple[Path, Path], changes: list[str], later: tuple[Path | None, Path | None], as_json: bool
) -> None:
    """Both pairs of paths are the baseline's and the candidate's."""
    from eaglediag.analysis.comparison import compare
    from eaglediag.analysis.held import hold
    from eaglediag.analysis.sweep import crossings
    from eaglediag.analysis.whatif import what_if
    from eaglediag.capture import store
    from eaglediag.errors import NotComparable

    arms = store.read(paths[0]), store.read(paths[1])
    result = compare(*arms)
    if result.main.break_even is None:
        raise NotComparable(
            f"there is no break-even between {result.baseline.name} and {result.candidate.name}",
            "give one capture with speculation, its accept length known, and one without",
        )
    found = crossings(arms[1], result)
    changed = what_if(changes, arms, result) if changes else None
    held: tuple[Held, ...] = ()
    if changed is not None and later[1] is not None:
        held = hold(changed, arms, store.read(later[1]), store.read(later[0]) if later[0] else None)
    if as_json:
        from eaglediag.reports import results_json

        document = results_json.break_even_by_batch(result, found)
        if changed is not None:
            document["what_if"] = results_json.what_if(changed, held)
        results_json.write(document, sys.stdout)
    else:
        from eaglediag.reports import terminal

        console = terminal.console()
        terminal.render_break_even(result, found, console)
        if changed is not None:
            console.print()
            terminal.render_what_if(changed, console)
        if held:
            console.print()
            terminal.render_held(held, console)
    if result.outcome in ("inconclusive", "not_comparable") or result.main.break_even.verdict == "inconsistent":
        raise typer.Exit(3)
