"""The load: prompts that are the same for both arms, sent at a fixed concurrency through the server's HTTP API."""

from __future__ import annotations

import hashlib
import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from eaglediag.capture.model import Request, Workload
from eaglediag.errors import HostError, InstrumentationError, UsageError
from eaglediag.hosts.base import Host

Endpoint = Literal["auto", "generate", "chat"]
REQUEST_TIMEOUT_S = 600.0
WARM_UP_TOKENS = 32


@dataclass(frozen=True)
class Prompt:
    """One request's input: text, or token ids for a server without a tokenizer."""

    kind: str
    text: str = ""
    token_ids: tuple[int, ...] = ()


@dataclass
class Load:
    """What to send. `requests` is per concurrency; None means four for each concurrent one, and at least 16."""

    prompts: list[Prompt]
    concurrency: tuple[int, ...] = (1, 4, 12)
    requests: int | None = None
    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    endpoint: Endpoint = "auto"
    ignore_eos: bool = False
    source: str = "built-in"
    random_input_len: int | None = None

    def count(self, concurrency: int) -> int:
        """How many requests one window sends."""
        return self.requests if self.requests is not None else max(16, 4 * concurrency)

    def digest(self) -> str:
        """Identifies the prompts, whatever their source."""
        text = json.dumps([[prompt.kind, prompt.text, prompt.token_ids] for prompt in self.prompts])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe(load: Load, endpoint: Endpoint) -> Workload:
    """The load as the capture has it; `endpoint` is the one chosen, "auto" as long as none is."""
    used = load.endpoint if endpoint == "auto" else endpoint
    return Workload(
        source=load.source,
        endpoint=None if used == "auto" else used,
        prompts=len(load.prompts),
        random_input_len=load.random_input_len,
        max_new_tokens=load.max_new_tokens,
        temperature=load.temperature,
        seed=load.seed,
        ignore_eos=load.ignore_eos,
        concurrency=list(load.concurrency),
        requests_per_window=load.requests,
        digest=load.digest(),
    )


def built_in_prompts() -> list[Prompt]:
    """The prompts that ship with eaglediag: chat, code, maths, summaries and translation, interleaved."""
    text = resources.files("eaglediag.probes").joinpath("prompts.jsonl").read_text(encoding="utf-8")
    return [Prompt(**json.loads(line)) for line in text.splitlines()]


def prompts_from_file(path: Path) -> list[Prompt]:
    """Prompts from JSON lines: {"text": ...}, {"prompt": ...}, {"messages": [...]} or {"token_ids": [...]}.

    Raises UsageError naming the line that cannot be used.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", "give --prompts a file of JSON lines") from error
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            text = (
                entry.get("text") or entry.get("prompt") or "\n".join(m["content"] for m in entry.get("messages", []))
            )
            prompt = Prompt(
                str(entry.get("kind", "file")), str(text), tuple(int(i) for i in entry.get("token_ids", ()))
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(
                f"{path}, line {number}: {error}", 'each line is {"text": "..."} or {"token_ids": [...]}'
            ) from error
        if not prompt.text and not prompt.token_ids:
            raise UsageError(f"{path}, line {number}: no text", 'each line is {"text": "..."} or {"token_ids": [...]}')
        prompts.append(prompt)
    if not prompts:
        raise UsageError(f"{path} holds no prompts", "give it at least one line")
    return prompts


def random_prompts(length: int, vocabulary: int, seed: int, count: int = 64) -> list[Prompt]:
    """Prompts of random token ids, for servers without a tokenizer; the lowest ids, often special, are left out."""
    generator = random.Random(seed)
    low = min(100, vocabulary // 4)
    return [
        Prompt("random", token_ids=tuple(generator.randrange(low, vocabulary) for _ in range(length)))
        for _ in range(count)
    ]


@dataclass
class Result:
    """One window of load: the requests, and how long it took from the first sent to the last answered."""

    started: float
    duration_s: float
    requests: list[Request] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @property
    def failed(self) -> list[Request]:
        """Requests that got no answer."""
        return [request for request in self.requests if request.error]

    @property
    def throughput(self) -> float | None:
        """Completion tokens per second, all requests together."""
        return self.tokens / self.duration_s if self.tokens and self.duration_s > 0 else None

    @property
    def tokens(self) -> int:
        """Completion tokens of all requests."""
        return sum(request.completion_tokens for request in self.requests)

    @property
    def seconds_per_token(self) -> float:
        """The time that a completion token took; without any, that of the load."""
        return self.duration_s / max(1, self.tokens)


class Client:
    """Sends requests to the server through the host's connection, one connection a thread; `turn` is held meanwhile.

    Once `stopped` is set no further request is sent. `model` is the name that chat requests give; SGLang takes any.
    `result` is what the last load got, as far as it came.
    """

    def __init__(
        self,
        host: Host,
        port: int,
        load: Load,
        api_key: str | None = None,
        turn: AbstractContextManager[object] | None = None,
        address: str = "127.0.0.1",
        model: str = "default",
    ) -> None:
        self.host = host
        self.port = port
        self.address = address
        self.model = model
        self.stopped = threading.Event()
        self.result = Result(0.0, 0.0)
        self.load = load
        self.turn = turn or nullcontext()
        self.endpoint: Endpoint = load.endpoint
        self.headers = {"Content-Type": "application/json"}
        if api_key:
            self.headers["Authorization"] = f"Bearer {api_key}"

    def choose_endpoint(self) -> None:
        """With "auto": chat where the model has a chat template, else plain generation. Raises InstrumentationError."""
        if self.endpoint != "auto":
            return
        if self.load.prompts[0].token_ids:
            self.endpoint = "generate"
            return
        answers = []
        candidates: tuple[Endpoint, ...] = ("chat", "generate")
        for endpoint in candidates:
            self.endpoint = endpoint
            connection = self.connect()
            try:
                self._send(connection, Prompt("try", "Hello"), 1)
                return
            except (OSError, http.client.HTTPException, ValueError) as error:
                answers.append(f"{endpoint}: {error}")
            finally:
                connection.close()
        raise InstrumentationError(
            f"the server answers no request ({'; '.join(answers)[:400]})", "look at its log in the capture"
        )

    def run(
        self,
        concurrency: int,
        count: int,
        max_new_tokens: int | None = None,
        on_done: Callable[[int], None] = lambda done: None,
    ) -> Result:
        """Send `count` requests, `concurrency` at a time. A request that fails is kept with its error.

        Raises HostError when the connection to the host is lost. An exception that comes from outside, as Ctrl-C does,
        stops the load: a server that is asked to end waits for its requests.
        """
        pending = self._numbered(count)
        lock = threading.Lock()
        requests: dict[int, Request] = {}
        texts: dict[int, str] = {}
        lost: list[HostError] = []

        def work() -> None:
            connection: http.client.HTTPConnection | None = None
            while not lost and not self.stopped.is_set():
                with lock:
                    number, prompt = next(pending, (-1, None))
                if prompt is None:
                    break
                try:
                    connection = connection or self.connect()
                    request, text = self._send(connection, prompt, max_new_tokens or self.load.max_new_tokens)
                except HostError as error:
                    lost.append(error)
                    break
                except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                    request, text = (
                        Request(
                            completion_tokens=0,
                            latency_ms=0.0,
                            kind=prompt.kind,
                            error=str(error)[:400] or type(error).__name__,
                        ),
                        "",
                    )
                    if connection is not None:
                        connection.close()
                    connection = None
                with lock:
                    requests[number], texts[number] = request, text
                    on_done(len(requests))
            if connection is not None:
                connection.close()

        threads = [threading.Thread(target=work, daemon=True) for _ in range(min(concurrency, count))]
        started, begin = time.time(), time.monotonic()
        try:
            with self.turn:
                started, begin = time.time(), time.monotonic()
                for thread in threads:
                    thread.start()
                for thread in threads:
                    # Not a bare join: Ctrl-C must get through while the load runs.
                    while thread.is_alive():
                        thread.join(0.2)
        except BaseException:
            self.stopped.set()
            raise
        finally:
            spent = time.monotonic() - begin
            with lock:
                order = sorted(requests)
                self.result = Result(started, spent, [requests[n] for n in order], [texts[n] for n in order])
        if lost:
            raise lost[0]
        return self.result

    def _numbered(self, count: int) -> Iterator[tuple[int, Prompt]]:
        """The same prompts in the same order for every window and arm."""
        prompts = list(self.load.prompts)
        random.Random(self.load.seed).shuffle(prompts)
        return iter([(number, prompts[number % len(prompts)]) for number in range(count)])

    def connect(self, timeout_s: float = REQUEST_TIMEOUT_S) -> http.client.HTTPConnection:
        """A connection to the server's HTTP API. Raises ConnectionError, HostError."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=timeout_s)
        stream = self.host.connect(self.port, self.address)
        stream.settimeout(timeout_s)
        connection.sock = stream
        return connection

    def _send(self, connection: http.client.HTTPConnection, prompt: Prompt, max_new_tokens: int) -> tuple[Request, str]:
        path, body = self._body(prompt, max_new_tokens)
        begin = time.perf_counter()
        connection.request("POST", path, body=json.dumps(body), headers=self.headers)
        response = connection.getresponse()
        data = response.read()
        latency = (time.perf_counter() - begin) * 1000
        if response.status != 200:
            raise ValueError(f"HTTP {response.status}: {data[:200].decode(errors='replace')}")
        answer = json.loads(data)
        if self.endpoint == "chat":
            usage, choice = answer["usage"], answer["choices"][0]
            text = choice["message"].get("content") or ""
            return Request(
                prompt_tokens=usage["prompt_tokens"],
                completion_tokens=usage["completion_tokens"],
                latency_ms=round(latency, 3),
                kind=prompt.kind,
            ), text
        info: dict[str, Any] = answer["meta_info"]
        return Request(
            prompt_tokens=info.get("prompt_tokens"),
            completion_tokens=info["completion_tokens"],
            latency_ms=round(latency, 3),
            verify_passes=info.get("spec_verify_ct"),
            kind=prompt.kind,
        ), str(answer.get("text", answer.get("output_ids", "")))

    def _body(self, prompt: Prompt, max_new_tokens: int) -> tuple[str, dict[str, Any]]:
        if self.endpoint == "chat":
            return "/v1/chat/completions", {
                "model": self.model,
                "messages": [{"role": "user", "content": prompt.text}],
                "max_tokens": max_new_tokens,
                "temperature": self.load.temperature,
                "seed": self.load.seed,
                "ignore_eos": self.load.ignore_eos,
            }
        sampling = {
            "max_new_tokens": max_new_tokens,
            "temperature": self.load.temperature,
            "ignore_eos": self.load.ignore_eos,
        }
        given: dict[str, Any] = {"input_ids": list(prompt.token_ids)} if prompt.token_ids else {"text": prompt.text}
        return "/generate", {**given, "sampling_params": sampling}
