"""The load is the same for both arms, and a request that fails is kept."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from eaglediag.errors import InstrumentationError, UsageError
from eaglediag.hosts.local import LocalHost
from eaglediag.probes.workload import Client, Load, built_in_prompts, prompts_from_file, random_prompts


def test_built_in_prompts_are_of_several_kinds() -> None:
    prompts = built_in_prompts()
    assert len(prompts) >= 40
    assert len({prompt.text for prompt in prompts}) == len(prompts)
    assert min(Counter(prompt.kind for prompt in prompts).values()) >= 8
    assert len({prompt.kind for prompt in prompts}) == 5


def test_random_prompts_repeat_with_their_seed() -> None:
    assert random_prompts(5, 1000, 1) == random_prompts(5, 1000, 1) != random_prompts(5, 1000, 2)
    assert all(100 <= token < 1000 for prompt in random_prompts(50, 1000, 1) for token in prompt.token_ids)
    assert all(token < 16 for prompt in random_prompts(50, 16, 1) for token in prompt.token_ids)


def test_prompts_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(
        '{"text": "a", "kind": "k"}\n\n{"prompt": "b"}\n{"messages": [{"content": "c"}]}\n{"token_ids": [1, 2]}\n'
    )
    assert [(p.kind, p.text, p.token_ids) for p in prompts_from_file(path)] == [
        ("k", "a", ()), ("file", "b", ()), ("file", "c", ()), ("file", "", (1, 2)),
    ]  # fmt: skip


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"text": ""}', '{"token_ids": ["x"]}', "3"])
def test_a_line_that_cannot_be_used_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(UsageError, match="line 2"):
        prompts_from_file(path)


def test_requests_by_default_are_four_a_slot() -> None:
    load = Load(built_in_prompts())
    assert [load.count(level) for level in (1, 4, 12)] == [16, 16, 48]
    assert Load(built_in_prompts(), requests=5).count(12) == 5


class Engine(BaseHTTPRequestHandler):
    """Answers /generate as SGLang does; knows no chat; fails for one prompt."""

    protocol_version = "HTTP/1.1"
    seen: list[dict[str, Any]]
    bad = ""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).seen.append(body)
        if self.path != "/generate" or (self.bad and body.get("text") == self.bad):
            answer, status = b"no", 400
        else:
            count = body["sampling_params"]["max_new_tokens"]
            answer, status = (
                json.dumps({"text": "t", "meta_info": {"completion_tokens": count, "prompt_tokens": 3}}).encode(),
                200,
            )
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *values: Any) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[ThreadingHTTPServer]:
    Engine.seen, Engine.bad = [], ""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def client(server: ThreadingHTTPServer, **settings: Any) -> Client:
    return Client(LocalHost(), server.server_address[1], Load(built_in_prompts(), max_new_tokens=7, **settings))


def test_chat_is_left_for_generation_where_there_is_none(engine: ThreadingHTTPServer) -> None:
    one = client(engine)
    one.choose_endpoint()
    assert one.endpoint == "generate"


def test_no_endpoint_at_all(engine: ThreadingHTTPServer) -> None:
    Engine.bad = "Hello"
    with pytest.raises(InstrumentationError, match="answers no request"):
        client(engine).choose_endpoint()


def test_every_run_sends_the_same_prompts(engine: ThreadingHTTPServer) -> None:
    one = client(engine, endpoint="generate")
    first = one.run(4, 50)
    texts = sorted(body["text"] for body in Engine.seen)
    Engine.seen.clear()
    second = one.run(1, 50)
    assert sorted(body["text"] for body in Engine.seen) == texts
    assert [request.kind for request in first.requests] == [request.kind for request in second.requests]
    assert first.throughput is not None
    assert first.throughput == pytest.approx(50 * 7 / first.duration_s)
    assert not first.failed


def test_a_failed_request_is_kept_and_the_rest_goes_on(engine: ThreadingHTTPServer) -> None:
    Engine.bad = built_in_prompts()[3].text
    result = client(engine, endpoint="generate").run(3, 45)
    assert len(result.requests) == 45
    assert [request.error for request in result.failed] == ["HTTP 400: no"]


def test_ctrl_c_stops_the_load_and_keeps_what_was_answered(
    engine: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = threading.Thread.join

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        join(thread, timeout)
        if timeout == 0.2 and len(Engine.seen) > 5:
            raise KeyboardInterrupt

    one = client(engine, endpoint="generate")
    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        one.run(2, 100_000)
    monkeypatch.undo()
    assert one.stopped.is_set()
    assert 0 < len(one.result.requests) < 100_000
    assert one.result.duration_s > 0
    while any(thread.name.endswith("(work)") for thread in threading.enumerate()):
        time.sleep(0.02)  # what was under way is answered
    sent = len(Engine.seen)
    time.sleep(0.2)
    assert len(Engine.seen) == sent
