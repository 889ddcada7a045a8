"""A server that already runs, read from outside: its pages, its log, its GPUs; loaded only when asked to."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import eaglediag
from eaglediag.capture.model import Capture, HostInfo, Instrumentation, Overhead, Problem, Source, Window, Workload
from eaglediag.errors import EaglediagError, InstrumentationError, Interrupted, NotComparable
from eaglediag.hosts.base import Host
from eaglediag.probes.evidence.server_info import ServerInfo
from eaglediag.probes.evidence.sglang_args import REDACTED
from eaglediag.probes.folder import PARENT
from eaglediag.probes.gpu import Sampling
from eaglediag.probes.progress import Progress, silent
from eaglediag.probes.read_only import problems
from eaglediag.probes.read_only.gpus import GpuWatch
from eaglediag.probes.read_only.log_tail import LogTail
from eaglediag.probes.read_only.look import EVERY_S, Look
from eaglediag.probes.read_only.pages import NoAnswer, Pages
from eaglediag.probes.read_only.windows import LINE_WITHIN_S, Observed, Span
from eaglediag.probes.workload import WARM_UP_TOKENS, Client, Endpoint, Load, Result, describe, random_prompts

#: Token ids that every model has: its vocabulary is not known.
VOCABULARY = 1000


@dataclass(frozen=True)
class Watch:
    """What to read, and how. With a `load` the server is loaded, else it is watched for `duration_s`."""

    port: int
    address: str = "127.0.0.1"
    arm: str | None = None
    api_key: str | None = None
    log: str | None = None
    load: Load | None = None
    duration_s: float = 60.0
    python: str | None = None
    gpu_hz: float = 10.0
    remote_parent: str = PARENT


@dataclass
class ReadOnly:
    """The state of one such probe; `capture()` sums up whatever there is. The URL is as the first host sees it."""

    watch: Watch
    progress: Progress = silent
    created: float = field(default_factory=time.time)
    observed: Observed = field(default_factory=Observed)
    problems: list[Problem] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    sampling: dict[str, Sampling] = field(default_factory=dict)
    hosts: list[str] = field(default_factory=list)
    pages: Pages | None = None
    endpoint: Endpoint = "auto"
    status: str = "complete"

    def run(self, hosts: Sequence[Host]) -> None:
        """Read. Raises what went wrong, after noting it in the capture; NotComparable when nothing ran."""
        self.hosts = [host.label for host in hosts]
        try:
            with ExitStack() as stack:
                self._run(hosts, stack)
        except KeyboardInterrupt:
            self._note("interrupted", "interrupted")
            raise Interrupted("interrupted; nothing of the probe is left on the host") from None
        except EaglediagError as error:
            self._note("ended_early", error.message, error.advice)
            raise
        except Exception as error:
            self._note("failed", f"{type(error).__name__} {error}".strip())
            raise

    def _note(self, code: str, message: str, advice: str = "") -> None:
        self.status = "partial"
        self.problems.append(Problem(code=code, message=message, advice=advice))

    def _run(self, hosts: Sequence[Host], stack: ExitStack) -> None:
        watch = self.watch
        self.pages = Pages(hosts[0], watch.port, watch.address, watch.api_key)
        self.progress("reading", f"{hosts[0].label}: port {watch.port}")
        try:
            look = Look(self.pages, self._describe(self.pages), progress=self.progress)
        except NoAnswer as error:
            raise InstrumentationError(
                f"{hosts[0].label}: no server answers at {watch.address} port {watch.port}: {error}",
                "give --url the server's address as the host sees it",
            ) from error
        if not look.metrics:
            self.problems.append(problems.metrics_off(watch.log is not None))
        if watch.log is not None:
            self.observed.tail = look.tail = stack.enter_context(LogTail(hosts[0], watch.log))
        self.observed.polls = look.polls
        gpus = self._sample_gpus(hosts, stack)
        started = time.time()
        try:
            if watch.load is not None:
                self._drive(look, watch.load)
            else:
                self._watch(look, started)
        finally:
            self._sum_up(gpus, started)
        if not any(window.ranks or window.throughput for window in self.windows):
            raise NotComparable(
                f"nothing was seen to run on the server within {time.time() - started:.0f} s",
                "watch longer with --duration, send it requests with --drive, or name its log with --log",
            )

    def _describe(self, pages: Pages) -> bool:
        """Who is there, and whether it has metrics. Raises NoAnswer; InstrumentationError when it is neither engine."""
        observed, page = self.observed, pages.metrics()
        if page is None or page.engine == "sglang":
            observed.info = pages.server_info()
        if observed.info is not None:
            observed.server = observed.info.server()
        elif page is not None and page.engine == "vllm":
            observed.server = pages.vllm(page)
        elif page is not None:
            observed.server.model.path = page.model
        else:
            raise InstrumentationError(
                f"{self.hosts[0]}: what answers on port {self.watch.port} is neither SGLang nor a vLLM with metrics",
                "give --url the address that the server listens on",
            )
        return page is not None

    def _sample_gpus(self, hosts: Sequence[Host], stack: ExitStack) -> list[GpuWatch]:
        if self.observed.server.device == "cpu":
            return []
        found = [stack.enter_context(GpuWatch(host, self.watch.python, self.watch.remote_parent)) for host in hosts]
        for one in found:
            one.start(self.watch.gpu_hz)
        return found

    def _watch(self, look: Look, started: float) -> None:
        before = self._step_times(look.pages)
        look.until(lambda: time.time() - started >= self.watch.duration_s, "watching", self.watch.duration_s)
        self._settle()
        for span in self.observed.spans(started, time.time()):
            self.spans.append(span)
        if len(self.spans) == 1:
            self.spans[0].before, self.spans[0].after = before, self._step_times(look.pages)

    def _drive(self, look: Look, load: Load) -> None:
        watch = self.watch
        if load.random_input_len is not None and not load.prompts:
            load.prompts = random_prompts(load.random_input_len, VOCABULARY, load.seed)
        try:
            model = look.pages.model_name() if self.observed.server.engine == "vllm" else "default"
        except NoAnswer as error:
            raise InstrumentationError(f"{self.hosts[0]}: the server does not say its model: {error}") from error
        client = Client(look.pages.host, watch.port, load, watch.api_key, address=watch.address, model=model)
        client.choose_endpoint()
        self.endpoint = client.endpoint
        for concurrency in load.concurrency:
            look.during(client, concurrency, concurrency, min(WARM_UP_TOKENS, load.max_new_tokens), "warming up")
        for concurrency in load.concurrency:
            span = Span(f"c{concurrency}", time.time(), 0.0, concurrency, before=self._step_times(look.pages))
            self.spans.append(span)
            try:
                count = load.count(concurrency)
                span.result = look.during(client, concurrency, count, load.max_new_tokens, "measuring")
            finally:
                span.ended = time.time()
            self._settle()
            span.after = self._step_times(look.pages)
            self._judge(span.result, concurrency, look)

    def _judge(self, result: Result, concurrency: int, look: Look) -> None:
        if not result.failed:
            return
        look.insist()
        failed, sent = len(result.failed), len(result.requests)
        message = f"{failed} of {sent} requests failed at concurrency {concurrency}: {result.failed[0].error}"
        if failed == sent:
            raise InstrumentationError(message, "look at the server's log")
        self.problems.append(Problem(code="failed_requests", message=message))

    def _step_times(self, pages: Pages) -> ServerInfo | None:
        """/server_info again, only of a server that records step times: it asks the scheduler."""
        info = self.observed.info
        if info is None or not any(state.step_times_s for state in info.states):
            return None
        try:
            return pages.server_info()
        except NoAnswer:
            return None  # whether the server is still there is the next look's question

    def _settle(self) -> None:
        """Let the log's last lines come in."""
        if self.observed.tail is not None:
            time.sleep(LINE_WITHIN_S)

    def _sum_up(self, gpus: Sequence[GpuWatch], started: float) -> None:
        """The windows and the GPUs' state in them, also of what was broken off."""
        self.windows = self.observed.windows(self.spans or self.observed.spans(started, time.time()))
        for one in gpus:
            found = self.sampling[one.host.label] = one.stop(self.windows)
            if found.refused:
                message = f"{one.host.label}: no GPU samples: {found.refused}"
                self.problems.append(Problem(code="gpu_sampler", message=message))

    def capture(self) -> Capture:
        """What is known so far."""
        observed, load = self.observed, self.watch.load
        server = observed.server
        clocks = any(gpu.series.t for sampling in self.sampling.values() for gpu in sampling.gpus)
        said = [*self.problems, *observed.problems, *problems.unknown(server, self.hosts, clocks)]
        capture = Capture(
            tool_version=eaglediag.__version__,
            created=self.created,
            arm=self.watch.arm or ("eagle" if server.speculation else "baseline"),
            status="partial" if self.status == "partial" else "complete",
            problems=list({(one.code, one.message): one for one in said}.values())[:1000],
            source=Source(kind="read_only", files=[self.watch.log] if self.watch.log else []),
            server=server,
            hosts=[
                HostInfo(name=name, gpus=found.gpus, gpu_sampling=found.cost) for name, found in self.sampling.items()
            ],
            instrumentation=Instrumentation(
                route="none", ranks=[observed.ranks[rank] for rank in sorted(observed.ranks)], overhead=self._overhead()
            ),
            workload=describe(load, self.endpoint) if load else Workload(source="what others asked of the server"),
            windows=self.windows,
            denials=observed.denials[:10_000],
        )
        return self._without_key(capture)

    def _overhead(self) -> Overhead:
        spent = self.pages.spent_s if self.pages else []
        if not spent:
            return Overhead(method="nothing ran in the server")
        return Overhead(
            method=f"nothing ran in the server; it answered /metrics {len(spent)} times, every {EVERY_S:g} s, in "
            f"{1000 * statistics.median(spent):.0f} ms each"
        )

    def _without_key(self, capture: Capture) -> Capture:
        """The key is nowhere in a capture, not even where a log line or an error quotes it."""
        key = self.watch.api_key
        if not key:
            return capture
        text = capture.model_dump_json().replace(json.dumps(key, ensure_ascii=False)[1:-1], REDACTED)
        return Capture.model_validate_json(text)
