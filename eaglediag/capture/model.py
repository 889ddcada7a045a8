"""The capture: one arm's measurement, the only thing that passes from probing to analysis and reports.

Times are in the unit their name ends with. Times of day are seconds since the Unix epoch, on the host's clock.
A value that could not be known is None, never zero. Whoever widens this schema in a way that an older reader would
misread raises SCHEMA_VERSION; `eaglediag.capture.schema` keeps the JSON Schema in the repository in step.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

SCHEMA_VERSION = 1

Phase = Literal["decode", "verify", "draft", "draft_extend", "extend", "idle"]
#: How a number was obtained.
Method = Literal[
    "cuda_event",
    "host_clock",
    "profiler",
    "log_line",
    "metrics",
    "server_info",
    "benchmark",
    "server_report",
    "derived",
]
Text = Annotated[str, Field(max_length=20_000)]
Name = Annotated[str, Field(max_length=500)]
Count = Annotated[int, Field(ge=0)]
#: Seconds of Unix time, within what 63 bits of nanoseconds and every calendar can hold: before 2200.
MOMENTS_END = 7.2e9
Moment = Annotated[float, Field(ge=0, lt=MOMENTS_END)]


class Strict(BaseModel):
    """Rejects unknown keys, NaN and infinities: a capture is untrusted input."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=False)


class Distribution(Strict):
    """A summary of `count` measured values of one quantity, all in `unit`."""

    count: Count
    mean: float
    sd: float
    min: float
    p50: float
    p90: float
    p99: float
    max: float
    method: Method
    unit: Literal["ms"] = "ms"


class PhaseStats(Strict):
    """One phase at one batch size, all with a graph or all without, as one rank saw it in one window.

    `tokens` is how many tokens one pass runs through the model (batch size x width). `graph` is None when the engine
    does not say. `host_ms` is the time the Python call took; with CUDA it only enqueues work, and `device_ms` is the
    time between two CUDA events around it.
    """

    phase: Phase
    batch_size: Count
    tokens: Count | None = None
    graph: bool | None = None
    count: Count
    host_ms: Distribution | None = None
    device_ms: Distribution | None = None


class AcceptStats(Strict):
    """Accepted tokens at one batch size. The bonus token is counted: a pass that accepts no draft emits one token.

    `passes` counts (request, verify) pairs; `tokens` is their sum of accept lengths; `histogram[i]` is how many
    pairs accepted exactly i + 1 tokens, so sum(histogram) == passes and sum((i + 1) * histogram[i]) == tokens.
    """

    passes: Count
    tokens: Count
    histogram: list[Count] = Field(default_factory=list, max_length=4096)
    method: Method = "host_clock"


class Blocks(Strict):
    """Sums over consecutive stretches of 0.2 to 1 s: the unit of resampling, as steps are autocorrelated.

    All columns have the same length, one entry a block. `steps` periods took `period_ms` in all; `parts_ms[phase]`
    is the share of each phase; `passes` and `tokens` are as in AcceptStats (0 for plain decoding).
    """

    t: list[Moment] = Field(default_factory=list, max_length=100_000)
    steps: list[Count] = Field(default_factory=list, max_length=100_000)
    period_ms: list[float] = Field(default_factory=list, max_length=100_000)
    parts_ms: dict[Phase, list[float]] = Field(default_factory=dict)
    passes: list[Count] = Field(default_factory=list, max_length=100_000)
    tokens: list[Count] = Field(default_factory=list, max_length=100_000)


class BatchStats(Strict):
    """Steps at one batch size on one rank: plain decode steps, or speculative cycles.

    A period is the time from the start of one step to the start of the next of the same kind and batch size with
    nothing in between; it holds the parts and the gap (scheduling, sampling, result handling). Parts and gap are on
    the same clock as `period_ms` (`device_ms` when its method is cuda_event, else `host_ms`) and of the same steps, so
    the parts' mean x count / `count`, plus the gap's mean, is the period's mean. A phase that ran both as a graph and
    eagerly has two entries in `parts`.
    """

    batch_size: Count
    kind: Literal["decode", "cycle"]
    count: Count
    period_ms: Distribution
    parts: list[PhaseStats] = Field(default_factory=list, max_length=64)
    gap_ms: Distribution | None = None
    accept: AcceptStats | None = None
    blocks: Blocks = Field(default_factory=Blocks)


class Collective(Strict):
    """Collective calls of one kind, as one rank made them in one window.

    `calls_per_step` and `bytes_per_step` are per pass of the phase. With `in_graph`, calls were counted while the
    graph was captured and happen in every replay; otherwise each was launched from Python.
    """

    phase: Phase
    batch_size: Count | None = None
    backend: Name
    operation: Name
    in_graph: bool
    calls: Count
    steps: Count
    calls_per_step: float
    bytes_per_step: float | None = None


class OutsideCollective(Strict):
    """Collective calls outside any phase in one window: the scheduler's, such as handing requests to other ranks."""

    backend: Name
    operation: Name
    calls: Count
    bytes: Count


class RankWindow(Strict):
    """What one rank recorded in one window.

    `collectives_counted` names the phases whose collectives were counted completely: one of them without an entry in
    `collectives` had none. A phase that ran as graphs whose capture was not seen is not among them.
    """

    rank: Count
    batches: list[BatchStats] = Field(default_factory=list, max_length=1024)
    phases: list[PhaseStats] = Field(default_factory=list, max_length=4096)
    collectives: list[Collective] = Field(default_factory=list, max_length=4096)
    collectives_counted: list[Phase] = Field(default_factory=list, max_length=16)
    collectives_outside: list[OutsideCollective] = Field(default_factory=list, max_length=256)
    steps_recorded: Count = 0
    steps_dropped: Count = 0


class Request(Strict):
    """One request of the workload, as the client saw it and the server reported it."""

    prompt_tokens: Count | None = None
    completion_tokens: Count
    latency_ms: float
    ttft_ms: float | None = None
    verify_passes: Count | None = None
    kind: Name | None = None
    error: Name | None = None


class RankSkew(Strict):
    """How far apart the ranks of one tensor-parallel group start the same pass of `phase`, by the host's clock.

    `starts_last[rank]` counts the passes that this rank started last: the others wait for it in the pass's first
    collective. Only ranks of one host are compared.
    """

    phase: Phase
    skew_ms: Distribution
    starts_last: dict[int, Count] = Field(default_factory=dict)


class Window(Strict):
    """One stretch of load at one concurrency. `throughput` is completion tokens per second, all requests together.

    `accept_length` is what a benchmark reports for the whole stretch, bonus token included, where neither requests nor
    ranks say it.
    """

    id: Name
    concurrency: Count | None = None
    repeat: Count = 0
    agent: Literal["active", "dormant", "absent"] = "active"
    started: Moment
    duration_s: float
    throughput: float | None = None
    throughput_method: Method = "host_clock"
    accept_length: float | None = None
    simulated_accept_length: float | None = None
    requests: list[Request] = Field(default_factory=list, max_length=20_000)
    failed_requests: Count = 0
    ranks: list[RankWindow] = Field(default_factory=list, max_length=4096)
    rank_skew: list[RankSkew] = Field(default_factory=list, max_length=1024)


class Frame(Strict):
    """One link of an explanation: the expression that said no, where it stands and what it was made of.

    `text` is the expression as written; `shown` the same with the operands' values (`12 <= 8`). `source` holds the
    source lines around it, for reports.
    """

    file: Name
    line: Count
    function: Name
    text: Text
    shown: Text
    values: dict[Name, Text] = Field(default_factory=dict)
    source: list[Text] = Field(default_factory=list, max_length=40)


class Denial(Strict):
    """A gate that refused a graph, aggregated: the same phase, batch size, gate, leaf and values on every rank.

    `frames` leads from the gate's own answer to the leaf that decided it (last). `explained` is False when only the
    refusal is known. `decides` is False for a gate inside a phase whose eager path another gate had already chosen.
    """

    phase: Phase
    batch_size: Count | None = None
    gate: Name
    frames: list[Frame] = Field(default_factory=list, max_length=32)
    explained: bool = True
    decides: bool = True
    reason: Text = ""
    counts: dict[int, Count] = Field(default_factory=dict, description="refusals by rank")
    windows: dict[Name, Count] = Field(default_factory=dict, description="refusals by window, all ranks together")


class Refusal(Strict):
    """Something that was not done, and why: a probe point not patched, a value the host does not offer."""

    target: Name
    why: Text


class Rank(Strict):
    """One scheduler process as its agent described it."""

    rank: Count
    host: Name = ""
    pid: Count | None = None
    gpu: Count | None = None
    tp: Count = 0
    dp: Count = 0
    pp: Count = 0
    seen: bool = True
    layout: Name = ""
    patched: list[Name] = Field(default_factory=list, max_length=1000)
    refused: list[Refusal] = Field(default_factory=list, max_length=1000)
    errors: list[Text] = Field(default_factory=list, max_length=100)
    clock: Literal["host_clock", "cuda_event"] = "host_clock"


class Overhead(Strict):
    """What the agent cost. `ratio` is time with it over time without it; [low, high] a 95 % interval.

    `hook_us_per_step` and `gate_us_per_step` are the times in the hooks around steps and phases and in counting
    denials, measured around each; `share_of_step` is what both are of a step. Counting collectives is not in them, nor
    what it took to explain each kind of denial the first time, which `method` states.
    """

    ratio: float | None = None
    interval: tuple[float, float] | None = None
    hook_us_per_step: float | None = None
    gate_us_per_step: float | None = None
    share_of_step: float | None = None
    method: Text = ""


class Instrumentation(Strict):
    """How the numbers were taken: injection route, layout of the release, ranks, cost."""

    route: Literal["plugin", "sitecustomize", "none"]
    layout: Name = ""
    ranks_expected: Count | None = None
    ranks: list[Rank] = Field(default_factory=list, max_length=4096)
    overhead: Overhead = Field(default_factory=Overhead)


class Speculation(Strict):
    """The speculation settings the server ended up with."""

    algorithm: Name
    num_steps: Count | None = None
    topk: Count | None = None
    num_draft_tokens: Count | None = None
    accept_threshold_single: float | None = None
    accept_threshold_acc: float | None = None
    simulated_accept_length: float | None = None

    @property
    def max_accept_length(self) -> int | None:
        """The most tokens one verify pass can emit: one per draft step, and the bonus token."""
        if self.num_steps is not None:
            return self.num_steps + 1
        return self.num_draft_tokens


class ModelShape(Strict):
    """A model's shape, from its config.json."""

    path: Name = ""
    architecture: Name = ""
    layers: Count | None = None
    hidden_size: Count | None = None
    vocab_size: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    experts: Count | None = None
    experts_per_token: Count | None = None
    dtype: Name = ""
    quantization: Name = ""


class CapturedGraphs(Strict):
    """The graphs captured for one phase. `sizes` count requests unless `unit` says tokens."""

    sizes: list[Count] = Field(default_factory=list, max_length=10_000)
    unit: Literal["requests", "tokens"] = "requests"
    backend: Name = ""
    tokens_per_request: Count | None = None
    memory_gb: float | None = None
    seconds: float | None = None
    method: Method = "log_line"

    @property
    def requests(self) -> list[int]:
        """The sizes, in requests."""
        width = (self.tokens_per_request or 1) if self.unit == "tokens" else 1
        return [size // width for size in self.sizes]


class Server(Strict):
    """The engine and what it was told."""

    engine: Literal["sglang", "vllm"] = "sglang"
    release: Name = ""
    commit: Name | None = None
    command: list[Text] = Field(default_factory=list, max_length=2000)
    environment: dict[Name, Text] = Field(default_factory=dict)
    arguments: dict[Name, JsonValue] = Field(default_factory=dict)
    model: ModelShape = Field(default_factory=ModelShape)
    draft_model: ModelShape | None = None
    speculation: Speculation | None = None
    device: Name = ""
    tp: Count = 1
    dp: Count = 1
    pp: Count = 1
    overlap: bool | None = None
    attention_backend: Name = ""
    captured: dict[Phase, CapturedGraphs] = Field(default_factory=dict)
    versions: dict[Name, Name] = Field(default_factory=dict)
    ready_s: float | None = None
    exit_code: int | None = None
    last_log_lines: list[Text] = Field(default_factory=list, max_length=200)


class GpuSeries(Strict):
    """Samples of one GPU over time; columns of equal length. `reasons` is NVML's clock event bitmask."""

    t: list[Moment] = Field(default_factory=list, max_length=200_000)
    sm_mhz: list[float | None] = Field(default_factory=list, max_length=200_000)
    memory_mhz: list[float | None] = Field(default_factory=list, max_length=200_000)
    power_w: list[float | None] = Field(default_factory=list, max_length=200_000)
    temperature_c: list[float | None] = Field(default_factory=list, max_length=200_000)
    utilisation_percent: list[float | None] = Field(default_factory=list, max_length=200_000)
    pstate: list[int | None] = Field(default_factory=list, max_length=200_000)
    reasons: list[int | None] = Field(default_factory=list, max_length=200_000)


class GpuProcess(Strict):
    """Another process seen on a GPU."""

    pid: Count
    memory_mb: float | None = None
    ours: bool = False


class Gpu(Strict):
    """One GPU: what it is, what limits it, and its state over the measurement."""

    index: Count
    host: Name = ""
    name: Name = ""
    uuid: Name = ""
    memory_mb: float | None = None
    sm_mhz_max: float | None = None
    sm_mhz_application: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    ecc: bool | None = None
    mig: bool | None = None
    persistence: bool | None = None
    pcie_generation: Count | None = None
    pcie_width: Count | None = None
    nvlinks: Count | None = None
    nvlink_version: Count | None = None
    processes: list[GpuProcess] = Field(default_factory=list, max_length=1000)
    series: GpuSeries = Field(default_factory=GpuSeries)
    #: window id -> clock event reason -> milliseconds it lasted in that window, from the cumulative counters
    throttled_ms: dict[Name, dict[Name, float]] = Field(default_factory=dict)
    unsupported: list[Name] = Field(default_factory=list, max_length=200)


class GpuSampling(Strict):
    """What the sampler on the host did, and what that cost: time per sample of all GPUs, share of one CPU core."""

    hz: float
    samples: Count
    first_ms: float
    ms_per_sample: float
    share_of_a_core: float | None = None


class HostInfo(Strict):
    """A machine the server ran on."""

    name: Name
    system: Name = ""
    python: Name = ""
    cpu: Name = ""
    cores: Count | None = None
    memory_gb: float | None = None
    driver: Name | None = None
    gpus: list[Gpu] = Field(default_factory=list, max_length=1024)
    gpu_sampling: GpuSampling | None = None


class Profile(Strict):
    """A short torch-profiler window on one rank, apart from the measured windows. Counts are per pass of the phase.

    `device_ms` is the time between the agent's CUDA events around the same passes, and `device_ms_by_kernels` what the
    profiler's kernel times say that those events should have measured: the two methods check each other.
    """

    phase: Phase
    batch_size: Count | None = None
    steps: Count
    kernels_per_step: float
    launches_per_step: float
    graph_launches_per_step: float
    device_busy_ms: float
    span_ms: float
    collectives_per_step: dict[Name, float] = Field(default_factory=dict)
    device_ms: float | None = None
    device_ms_by_kernels: float | None = None


class Workload(Strict):
    """What was asked of the server. `source` names the prompts: built-in, random, a file, or what others asked."""

    source: Name = ""
    endpoint: Literal["generate", "chat"] | None = None
    prompts: Count | None = None
    random_input_len: Count | None = None
    max_new_tokens: Count | None = None
    temperature: float | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    concurrency: list[Count] = Field(default_factory=list, max_length=1000)
    requests_per_window: Count | None = None
    digest: Name = ""


class Problem(Strict):
    """Something the reader must know before trusting the capture."""

    code: Name
    message: Text
    advice: Text = ""


class Source(Strict):
    """Where the evidence came from."""

    kind: Literal["probe", "read_only", "import"]
    files: list[Name] = Field(default_factory=list, max_length=1000)
    unparsed_lines: Count = 0


class Capture(Strict):
    """One arm, measured. `status` is partial when something ended the measurement early; `problems` says what."""

    schema_version: Annotated[int, Field(ge=1, le=SCHEMA_VERSION)] = SCHEMA_VERSION
    tool_version: Name
    created: Moment
    arm: Name
    status: Literal["complete", "partial"] = "complete"
    problems: list[Problem] = Field(default_factory=list, max_length=1000)
    source: Source
    server: Server = Field(default_factory=Server)
    hosts: list[HostInfo] = Field(default_factory=list, max_length=1000)
    instrumentation: Instrumentation
    workload: Workload = Field(default_factory=Workload)
    windows: list[Window] = Field(default_factory=list, max_length=10_000)
    denials: list[Denial] = Field(default_factory=list, max_length=10_000)
    profiles: list[Profile] = Field(default_factory=list, max_length=1000)
    steps_file: Name | None = None
