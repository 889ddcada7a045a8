"""`eaglediag import`: logs, benchmark results, metrics pages and traces become a capture."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eaglediag.capture.model import Capture
    from eaglediag.probes.evidence.assemble import Report
    from eaglediag.probes.evidence.evidence import Evidence


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Files of one server: SGLang or vLLM logs (also gzipped, rotated, from docker or Kubernetes), "
            "benchmark results, a saved /server_info or /metrics, a torch profiler trace. Recognised by content.",
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="CAPTURE", help="The capture to write.")],
    arm: Annotated[str | None, typer.Option("--arm", help="What to call it; else the capture's file name.")] = None,
    show_unparsed: Annotated[
        bool, typer.Option("--show-unparsed", help="Print the lines that look like evidence and could not be read.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Make a capture from evidence that already exists, for `compare`, `breakeven` and `check`.

    Nothing is measured and nothing is contacted. What the files cannot say is said in the capture, with the command
    that would find out.

    Example: eaglediag import server.log bench.jsonl -o eagle.json
    """
    from eaglediag.capture import store
    from eaglediag.cli.outputs import outputs
    from eaglediag.probes.evidence.assemble import assemble, read

    output = outputs({"-o": output}, files)["-o"]
    with _progress(quiet) as report:
        parts = read(files, report)
    capture = assemble(parts, arm or output.name.removesuffix(".json"))
    store.write(capture, output)
    if show_unparsed:
        for part in parts:
            for line in part.unparsed_lines:
                typer.echo(f"{part.name}: {_printable(line)}")
    if not quiet:
        for line in summary(capture, parts):
            typer.echo(line, err=True)
        typer.echo(f"wrote {output}", err=True)


def summary(capture: Capture, parts: list[Evidence]) -> Iterator[str]:
    """What was read, what it measures, and what to know, one line each."""
    for part in parts:
        yield f"read {_printable(part.name)} ({part.method})"
    for window in capture.windows:
        for rank in window.ranks:
            for batch in rank.batches:
                name = "cycle" if batch.kind == "cycle" else "decode step"
                length = f", accept length {batch.accept.tokens / batch.accept.passes:.2f}" if batch.accept else ""
                yield f"batch {batch.batch_size}: {name} {batch.period_ms.mean:.2f} ms over {batch.count} steps{length}"
        if window.throughput is not None:
            at = f" at concurrency {window.concurrency}" if window.concurrency is not None else ""
            yield f"{_printable(window.id)}: {window.throughput:.1f} tokens/s{at}"
    for profile in capture.profiles:
        size = "" if profile.batch_size is None else f" at batch {profile.batch_size}"
        yield (
            f"{profile.phase}{size}: {profile.kernels_per_step:.0f} kernels, {profile.launches_per_step:.0f} launches, "
            f"{profile.graph_launches_per_step:.1f} graph launches, {profile.device_busy_ms:.2f} ms busy a pass"
        )
    for problem in capture.problems:
        yield f"note: {_printable(problem.message)}" + (f"; {_printable(problem.advice)}" if problem.advice else "")


def _printable(text: str) -> str:
    """A line from a file without what would move the terminal's cursor."""
    return "".join(char if char.isprintable() else "�" for char in text)


class _progress:
    """A bar for each file, on a terminal, while large files are read."""

    def __init__(self, quiet: bool) -> None:
        self._shown = not quiet and sys.stderr.isatty()

    def __enter__(self) -> Report | None:
        if not self._shown:
            return None
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bars.start()
        tasks: dict[Path, int] = {}

        def report(path: Path, kind: str, done: int, total: int) -> None:
            if path not in tasks:
                tasks[path] = self._bars.add_task(escape(f"{path.name} ({kind})"), total=total)
            self._bars.update(tasks[path], completed=done)  # type: ignore[arg-type]

        return report

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._bars.stop()
