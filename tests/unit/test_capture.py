"""Captures: written whole or not at all, and read with suspicion."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from eaglediag.capture import schema, store
from eaglediag.capture.model import SCHEMA_VERSION, Capture, Instrumentation, Source
from eaglediag.errors import CaptureError


def small() -> Capture:
    return Capture(
        tool_version="0.1.0",
        created=1.0,
        arm="eagle",
        source=Source(kind="probe"),
        instrumentation=Instrumentation(route="none"),
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "eagle.json"
    store.write(small(), path)
    assert store.read(path) == small()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("files", "arms"),
    [
        (("old.json", "new.json"), ("old", "new")),
        (("monday/eagle.json", "friday/eagle.json"), ("monday/eagle", "friday/eagle")),
        (("a/x/eagle.json", "b/x/eagle.json"), ("a/eagle", "b/eagle")),
        (("eagle.json", "eagle.json"), ("eagle", "eagle")),
        (("eagle.json", "later/eagle.json"), (None, "later/eagle")),
    ],
)
def test_arms_of_one_name_are_told_apart_by_their_files(
    tmp_path: Path, files: tuple[str, str], arms: tuple[str | None, str]
) -> None:
    paths = [tmp_path / file for file in files]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        store.write(small(), path)
    found = [capture.arm for capture in store.read_pair(*paths)]
    assert found == [arms[0] or f"{tmp_path.name}/eagle", arms[1]]


def test_arms_of_two_names_keep_them(tmp_path: Path) -> None:
    store.write(small(), tmp_path / "a.json")
    store.write(small().model_copy(update={"arm": "baseline"}), tmp_path / "b.json")
    assert [one.arm for one in store.read_pair(tmp_path / "a.json", tmp_path / "b.json")] == ["eagle", "baseline"]


def test_a_written_capture_has_the_permissions_of_any_output(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        store.write(small(), tmp_path / "eagle.json")
    finally:
        os.umask(before)
    assert (tmp_path / "eagle.json").stat().st_mode & 0o777 == 0o644


def document(**changes: Any) -> dict[str, Any]:
    return {**small().model_dump(mode="json"), **changes}


@pytest.mark.parametrize(
    "content",
    [
        b"[2026-01-02 12:00:00] server_args=ServerArgs(tp_size=1)\n",
        b"INFO 01-02 12:00:00 [api_server.py:1] vLLM API server version 0.11\n",
        b"# HELP sglang:num_running_reqs x\n",
        gzip.compress(b"[2026-01-02 12:00:00] Decode batch\n"),
        b'{"log": "Decode batch"}\n{"log": "Decode batch"}\n',
        b'{"output_throughput": 2.0}',
    ],
)
def test_what_is_no_capture_but_may_be_imported_is_pointed_there(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(content)
    with pytest.raises(CaptureError) as caught:
        store.read(path)
    assert "eaglediag import" in caught.value.advice


@pytest.mark.parametrize("content", [b"", json.dumps({"schema_version": 1}).encode()[:-3]])
def test_a_capture_that_is_cut_off_is_not(content: bytes) -> None:
    with pytest.raises(CaptureError) as caught:
        store.parse(content, "eagle.json")
    assert "probe again" in caught.value.advice


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[1, 2]", "not an eaglediag capture"),
        (b'{"accept_length": 2.0}', "not an eaglediag capture"),
        (b"[" * 100_000, "not valid JSON"),
        (json.dumps(document()).encode()[:-20], "not valid JSON"),
        (json.dumps(document(created=float("nan"))).encode(), "NaN is not a number"),
        (json.dumps(document(schema_version=SCHEMA_VERSION + 1)).encode(), "newer than this eaglediag reads"),
        (json.dumps(document(surprise=1)).encode(), "surprise: Extra inputs"),
        (json.dumps(document(created="yesterday")).encode(), "created: Input should be a valid number"),
        (json.dumps(document(arm="x" * 501)).encode(), "arm: String should have at most 500"),
    ],
)
def test_anything_else_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "eagle.json"
    path.write_bytes(content)
    with pytest.raises(CaptureError) as caught:
        store.read(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_gigabyte_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "eagle.json"
    with path.open("wb") as stream:
        stream.truncate(1 << 30)
    with pytest.raises(CaptureError, match="more than a capture can be"):
        store.read(path)


def test_a_missing_file_and_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="cannot read"):
        store.read(tmp_path / "no.json")
    with pytest.raises(CaptureError, match="cannot write"):
        store.write(small(), tmp_path / "no" / "eagle.json")


def test_the_schema_in_the_repository_is_the_models() -> None:
    assert schema.PATH.read_text(encoding="utf-8") == schema.text(), "run python -m eaglediag.capture.schema"
