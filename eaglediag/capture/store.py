"""Reading and writing captures."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from eaglediag.capture.model import SCHEMA_VERSION, Capture
from eaglediag.errors import CaptureError
from eaglediag.whole_file import whole_file

#: Far above any real capture (ten minutes on eight ranks stay under 5 MB): a file beyond it is not one.
MAX_BYTES = 64 * 1024 * 1024
IMPORT = "for logs, benchmark files and metrics use `eaglediag import`"


def write(capture: Capture, path: Path) -> None:
    """Write a capture so that the file is either whole or not there.

    Raises CaptureError when the folder cannot be written or the disk is full.
    """
    try:
        with whole_file(path) as stream:
            stream.write(capture.model_dump_json(exclude_none=True).encode() + b"\n")
    except OSError as error:
        raise CaptureError(f"cannot write {path}: {error.strerror}", "free some space or choose another -o") from error


def read(path: Path) -> Capture:
    """Read and validate a capture.

    Raises CaptureError for anything that is not a whole, readable capture of a schema this version knows.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise CaptureError(
                f"{path} is {size / 1e6:.0f} MB, more than a capture can be ({MAX_BYTES / 1e6:.0f} MB)",
                "give the capture, not the raw steps; for logs use `eaglediag import`",
            )
        text = path.read_bytes()
    except OSError as error:
        raise CaptureError(f"cannot read {path}: {error.strerror}", "check the path") from error
    return parse(text, str(path))


def read_pair(first: Path, second: Path) -> tuple[Capture, Capture]:
    """Read two captures to be set side by side. Arms of one name are named by what tells their files apart.

    `old.json` and `new.json` are `old` and `new`; `monday/eagle.json` and `friday/eagle.json` keep their folders.
    Raises CaptureError.
    """
    one, other = read(first), read(second)
    if one.arm != other.arm:
        return one, other
    paths = [path.resolve().with_name(path.name.removesuffix(".json")).parts for path in (first, second)]
    for last, (mine, theirs) in enumerate(zip(*map(reversed, paths), strict=False)):
        if mine != theirs:
            names = [mine, theirs] if last == 0 else [f"{mine}/{paths[0][-1]}", f"{theirs}/{paths[1][-1]}"]
            return one.model_copy(update={"arm": names[0]}), other.model_copy(update={"arm": names[1]})
    return one, other


def parse(text: bytes, name: str) -> Capture:
    """Validate a capture's bytes; `name` is what messages call it. Raises CaptureError."""
    try:
        document = json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        where = (
            "it ends in the middle"
            if isinstance(error, json.JSONDecodeError) and error.pos >= len(text) - 1
            else str(error)
        )
        # A capture is one JSON object; what begins otherwise, or goes on behind it, never was one.
        other = text.strip() and (text.lstrip()[:1] != b"{" or str(error).startswith("Extra data"))
        raise CaptureError(
            f"{name} is not a capture: not valid JSON ({where})",
            IMPORT if other else "probe again, or give another file",
        ) from error
    if not isinstance(document, dict) or "schema_version" not in document or "tool_version" not in document:
        raise CaptureError(
            f"{name} is JSON, but not an eaglediag capture",
            IMPORT,
        )
    version = document["schema_version"]
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise CaptureError(
            f"{name} has capture schema {version}, newer than this eaglediag reads ({SCHEMA_VERSION})",
            "upgrade eaglediag",
        )
    try:
        return Capture.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise CaptureError(f"{name} is not a valid capture: {place}: {first['msg']}", "probe again") from error


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")
