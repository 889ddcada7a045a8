"""`eaglediag check`: the regression check for CI. Gates from a policy; the exit code says what became of them."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from eaglediag.analysis.policy import Check, Policy


class Inconclusive(str, Enum):
    """What a gate without an answer does."""

    FAIL = "fail"
    WARN = "warn"


def check(
    capture: Annotated[Path, typer.Argument(metavar="CAPTURE", help="The capture to check, with speculation.")],
    baseline: Annotated[Path, typer.Option(metavar="FILE", help="The capture without speculation.")],
    previous: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An older capture of the same arm, for regressions.")
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The policy, in TOML.", show_default="tool.eaglediag.check of ./pyproject.toml"
        ),
    ] = None,
    on_inconclusive: Annotated[
        Inconclusive | None, typer.Option(help="What a gate without an answer does.", show_default="fail")
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write markdown, for a job summary.")] = None,
    github: Annotated[bool, typer.Option("--github", help="Print annotations for GitHub Actions.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Check a capture against a policy.

    Ends with 0 when every gate passed, 1 when one failed, 3 when one has no answer (or warns, with
    --on-inconclusive warn).

    Example: eaglediag check results/eagle.json --baseline results/baseline.json --junit checks.xml
    """
    from dataclasses import replace

    from eaglediag.analysis import policy as gates
    from eaglediag.capture import store
    from eaglediag.cli.outputs import outputs

    asked = _policy(policy)
    if on_inconclusive is not None:
        asked = replace(asked, on_inconclusive=on_inconclusive.value)
    inputs = [path for path in (capture, baseline, previous, policy) if path is not None]
    places = outputs({"--junit": junit, "--markdown": markdown}, inputs)
    plain, candidate = store.read_pair(baseline, capture)
    older = store.read(previous) if previous is not None else None
    result = gates.check(asked, candidate, plain, older)
    _report(result, places.get("--junit"), places.get("--markdown"), github, as_json)
    raise typer.Exit(result.exit_code)


def _policy(path: Path | None) -> Policy:
    """The policy of a file, of pyproject.toml in the current folder, or the default. Raises UsageError."""
    from eaglediag.analysis import policy as gates
    from eaglediag.errors import UsageError

    if path is None:
        project = Path("pyproject.toml")
        table = _toml(project).get("tool", {}).get("eaglediag", {}).get("check") if project.is_file() else None
        return gates.DEFAULT if table is None else gates.read(table, "pyproject.toml")
    document = _toml(path)
    table = document.get("tool", {}).get("eaglediag", {}).get("check", document)
    if not table:
        raise UsageError(f"{path} holds no policy", "see docs/ci.md for its keys")
    return gates.read(table, str(path))


def _toml(path: Path) -> dict[str, Any]:
    from eaglediag.errors import UsageError

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error
    return document


def _report(result: Check, junit: Path | None, markdown: Path | None, github: bool, as_json: bool) -> None:
    from eaglediag.errors import UsageError

    try:
        if junit is not None:
            from eaglediag.reports import junit as junit_report

            with junit.open("wb") as binary:
                junit_report.render(result, binary)
        if markdown is not None:
            from eaglediag.reports import markdown as markdown_report

            # A job summary may already hold what earlier commands of the step wrote.
            with markdown.open("a", encoding="utf-8") as text:
                markdown_report.render_check(result, text)
    except OSError as error:
        raise UsageError(f"cannot write {error.filename}: {error.strerror}", "choose another file") from error
    if as_json:
        from eaglediag.reports import results_json

        results_json.write(results_json.check(result), sys.stdout)
    else:
        from eaglediag.reports import terminal

        terminal.render_check(result, terminal.console())
    if github:
        from eaglediag.reports import github as annotations

        annotations.render(result, sys.stderr if as_json else sys.stdout)
