"""A server that only answers: a metrics page that a test turns on, /server_info, /v1/models and /generate."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class FakeServer:
    """`pages` are answered by path, anew each time; None is 404. With `key`, requests must carry it."""

    pages: dict[str, Callable[[], str | None]]
    key: str = ""
    port: int = 0
    hang: threading.Event = field(default_factory=threading.Event)
    asked: list[str] = field(default_factory=list)
    posted: list[dict[str, Any]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def running(server: FakeServer) -> Iterator[FakeServer]:
    """Answer until the end."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            server.asked.append(self.path)
            while server.hang.is_set():
                time.sleep(0.05)
            page = server.pages.get(self.path)
            text = page() if page else None
            self.answer(404 if text is None else 200, text or "no such page")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.posted.append(body)
            usage = {"prompt_tokens": 3, "completion_tokens": 5}
            self.answer(200, json.dumps({"usage": usage, "choices": [{"message": {"content": "x"}}]}))

        def answer(self, status: int, text: str) -> None:
            if server.key and self.headers.get("Authorization") != f"Bearer {server.key}":
                status, text = 401, "Unauthorized"
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with suppress(ConnectionError):  # nobody waits for it any more
                self.wfile.write(data)

        def log_message(self, format: str, *values: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.port = http.server_address[1]
    threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.hang.clear()
        http.shutdown()
        http.server_close()


@dataclass
class SglangCounters:
    """An SGLang server of 0.5.14 that decodes at one batch size for ever: `page` is its metrics now."""

    running: int = 4
    step_ms: float = 10.0
    accept_length: float = 2.0
    graph: bool = True
    dp_rank: int = 0
    born: float = field(default_factory=time.time)

    def page(self) -> str:
        steps = int((time.time() - self.born) * 1000 / self.step_ms)
        return sglang_page(
            self.running,
            throughput=1000 * self.running * self.accept_length / self.step_ms + steps % 7,
            accept_length=self.accept_length,
            steps=steps,
            tokens=int(steps * self.running * self.accept_length),
            graph=self.graph,
            dp_rank=self.dp_rank,
        )


def sglang_page(
    running: int,
    throughput: float,
    accept_length: float = 0.0,
    steps: int | None = None,
    tokens: int = 0,
    prefilled: int = 100,
    ended: int = 3,
    *,
    graph: bool = True,
    dp_rank: int = 0,
) -> str:
    """A metrics page; without `steps` one of a release before 0.5.8."""
    label = f'model_name="m",dp_rank="{dp_rank}",tp_rank="0",pp_rank="0"'
    lines = [
        f"sglang:num_running_reqs{{{label}}} {running}.0",
        f"sglang:gen_throughput{{{label}}} {throughput}",
        f"sglang:spec_accept_length{{{label}}} {accept_length}",
        f'sglang:num_requests_total{{model_name="m"}} {ended}.0',
    ]
    if steps is not None:
        mode = "decode_cuda_graph" if graph else "decode_none"
        lines += [
            f'sglang:cuda_graph_passes_total{{mode="{mode}",{label}}} {steps}.0',
            f'sglang:cuda_graph_passes_total{{mode="prefill_none",{label}}} 9.0',
            f'sglang:realtime_tokens_total{{mode="decode",{label}}} {tokens}.0',
            f'sglang:realtime_tokens_total{{mode="prefill_compute",{label}}} {prefilled}.0',
        ]
    else:
        lines.append(f"sglang:is_cuda_graph{{{label}}} {float(graph)}")
    return "\n".join(lines) + "\n"


def vllm_page(
    running: int, steps: int, drafts: int = 0, positions: tuple[int, ...] = (), prompt: int = 50, ended: int = 2
) -> str:
    """A metrics page of vLLM; with `positions`, the accepted drafts at each, one that speculates."""
    label = 'model_name="m",engine="0"'
    accepted = sum(positions)
    lines = [
        f"vllm:num_requests_running{{{label}}} {running}.0",
        f"vllm:iteration_tokens_total_count{{{label}}} {steps}.0",
        f"vllm:generation_tokens_total{{{label}}} {(drafts + accepted) or steps * running}.0",
        f"vllm:prompt_tokens_total{{{label}}} {prompt}.0",
        f'vllm:request_success_total{{finished_reason="stop",{label}}} {ended}.0',
    ]
    if positions:
        lines += [
            f"vllm:spec_decode_num_drafts_total{{{label}}} {drafts}.0",
            f"vllm:spec_decode_num_draft_tokens_total{{{label}}} {len(positions) * drafts}.0",
            f"vllm:spec_decode_num_accepted_tokens_total{{{label}}} {accepted}.0",
            *(
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{label},position="{i}"}} {count}.0'
                for i, count in enumerate(positions)
            ),
        ]
    return "\n".join(lines) + "\n"
