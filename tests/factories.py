"""Builders of synthetic captures: figures as a test wants them, everything else plausible and consistent."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from eaglediag.capture.model import (
    AcceptStats,
    BatchStats,
    Blocks,
    Capture,
    Denial,
    Distribution,
    Frame,
    Gpu,
    GpuSeries,
    HostInfo,
    Instrumentation,
    ModelShape,
    Phase,
    PhaseStats,
    Rank,
    RankWindow,
    Request,
    Server,
    Source,
    Speculation,
    Window,
    Workload,
)

START = 1_750_000_000.0
BLOCK_S = 1.0


@dataclass(frozen=True)
class Cost:
    """One batch size: mean ms of each part and of the gap, tokens per cycle, and the noise of a block.

    `sd` is the relative standard deviation of a block's period, `rho` its lag-1 autocorrelation, `step` a factor on all
    times. `graph` says for each phase whether it ran as a graph (all True when left out).
    """

    parts: Mapping[Phase, float]
    gap: float = 0.3
    accept_length: float | None = None
    sd: float = 0.01
    rho: float = 0.0
    blocks: int = 20
    factor: float = 1.0
    graph: Mapping[Phase, bool | None] = field(default_factory=dict)

    @property
    def period(self) -> float:
        return self.factor * (sum(self.parts.values()) + self.gap)


def decode(ms: float, gap: float = 0.3, **more: Any) -> Cost:
    """A plain decode step of `ms` in the model and `gap` beyond it."""
    return Cost(parts={"decode": ms}, gap=gap, **more)


def cycle(
    verify: float,
    draft: float = 1.0,
    draft_extend: float = 0.5,
    gap: float = 0.5,
    accept_length: float = 2.0,
    **more: Any,
) -> Cost:
    """A speculative cycle."""
    parts: dict[Phase, float] = {"draft": draft, "verify": verify, "draft_extend": draft_extend}
    return Cost(parts=parts, gap=gap, accept_length=accept_length, **more)


def distribution(mean: float, count: int, sd: float = 0.0) -> Distribution:
    """A summary of values that hardly vary."""
    return Distribution(
        count=count,
        mean=mean,
        sd=sd,
        min=mean - sd,
        p50=mean,
        p90=mean + sd,
        p99=mean + 2 * sd,
        max=mean + 3 * sd,
        method="host_clock",
    )


def batch(size: int, cost: Cost, seed: int = 0, draft_tokens: int = 3) -> BatchStats:
    """Blocks of about a second of steps (or cycles) at one batch size, with autocorrelated noise."""
    generator = random.Random(f"{seed} {size}")
    blocks = Blocks(parts_ms={phase: [] for phase in cost.parts})
    histogram = [0] * (draft_tokens + 1)
    noise = generator.gauss(0, 1)
    per_block = max(1, round(1000 * BLOCK_S / cost.period))
    share = 0.0 if cost.accept_length is None else (cost.accept_length - 1) / draft_tokens
    for i in range(cost.blocks):
        noise = cost.rho * noise + (1 - cost.rho**2) ** 0.5 * generator.gauss(0, 1)
        stretch = cost.factor * (1 + cost.sd * noise)
        blocks.t.append(START + i * BLOCK_S)
        blocks.steps.append(per_block)
        blocks.period_ms.append(per_block * stretch * (sum(cost.parts.values()) + cost.gap))
        for phase, ms in cost.parts.items():
            blocks.parts_ms[phase].append(per_block * stretch * ms)
        emitted = 0
        if cost.accept_length is not None:
            for _ in range(per_block * size):
                accepted = sum(generator.random() < share for _ in range(draft_tokens))
                histogram[accepted] += 1
                emitted += accepted + 1
        blocks.passes.append(per_block * size if cost.accept_length is not None else 0)
        blocks.tokens.append(emitted)
    count = sum(blocks.steps)
    width = 1 if cost.accept_length is None else draft_tokens + 1
    return BatchStats(
        batch_size=size,
        kind="decode" if cost.accept_length is None else "cycle",
        count=count,
        period_ms=distribution(sum(blocks.period_ms) / count, count, cost.sd * cost.period),
        parts=[
            PhaseStats(
                phase=phase,
                batch_size=size,
                tokens=size * (width if phase == "verify" else 1),
                graph=cost.graph.get(phase, True),
                count=count,
                host_ms=distribution(sum(blocks.parts_ms[phase]) / count, count),
            )
            for phase in cost.parts
        ],
        gap_ms=distribution(cost.gap * cost.factor, count),
        accept=AcceptStats(passes=sum(blocks.passes), tokens=sum(blocks.tokens), histogram=histogram)
        if cost.accept_length is not None
        else None,
        blocks=blocks,
    )


def window(concurrency: int, cost: Cost, seed: int = 0, ranks: Sequence[int] = (0,), draft_tokens: int = 3) -> Window:
    """A window at one concurrency, all of it at that batch size; its requests emit what its steps emitted."""
    stats = batch(concurrency, cost, seed, draft_tokens)
    seconds = sum(stats.blocks.period_ms) / 1000
    tokens = stats.accept.tokens if stats.accept else stats.count * concurrency
    passes = stats.accept.passes if stats.accept else None
    count = 8 * concurrency
    rounds = count // concurrency
    requests = [
        Request(
            prompt_tokens=64,
            completion_tokens=tokens // count,
            latency_ms=1000 * seconds / rounds * (1 + 0.02 * random.Random(f"{seed} {i}").gauss(0, 1)),
            ttft_ms=20.0,
            verify_passes=passes // count if passes else None,
            kind="chat",
        )
        for i in range(count)
    ]
    return Window(
        id=f"c{concurrency}-{seed}",
        concurrency=concurrency,
        started=START,
        duration_s=seconds,
        throughput=tokens / seconds,
        requests=requests,
        ranks=[
            RankWindow(rank=rank, batches=[stats], phases=list(stats.parts), steps_recorded=stats.count)
            for rank in ranks
        ],
    )


def gpu(index: int = 0, sm_mhz: float = 1980.0, reasons: int = 0, samples: int = 20) -> Gpu:
    """An H200 whose clock stood still."""
    return Gpu(
        index=index,
        name="NVIDIA H200",
        memory_mb=143_771.0,
        sm_mhz_max=1980.0,
        power_limit_w=700.0,
        power_limit_default_w=700.0,
        series=GpuSeries(
            t=[START + i for i in range(samples)],
            sm_mhz=[sm_mhz] * samples,
            memory_mhz=[3201.0] * samples,
            power_w=[420.0] * samples,
            temperature_c=[55.0] * samples,
            utilisation_percent=[97.0] * samples,
            pstate=[0] * samples,
            reasons=[reasons] * samples,
        ),
    )


def denial(phase: Phase = "verify", size: int | None = None, rank_counts: Mapping[int, int] | None = None) -> Denial:
    """A batch beyond the largest captured."""
    shown = f"{size or 12} <= 8"
    frame = Frame(
        file="/site-packages/sglang/srt/model_executor/runner/decode_cuda_graph_runner.py",
        line=412,
        function="DecodeCudaGraphRunner.can_run_graph",
        text="cuda_graph_bs <= self.max_bs",
        shown=shown,
        values={"cuda_graph_bs": str(size or 12), "self.max_bs": "8"},
    )
    return Denial(
        phase=phase, batch_size=size, gate=frame.function, frames=[frame], counts=dict(rank_counts or {0: 1000})
    )


def capture(
    arm: str,
    costs: Mapping[int, Cost],
    *,
    seed: int = 0,
    tp: int = 1,
    speculation: Speculation | None = None,
    denials: Sequence[Denial] = (),
    gpus: Sequence[Gpu] | None = None,
    release: str = "0.5.20",
) -> Capture:
    """A capture with one window per batch size in `costs`. Speculation follows from the costs unless given."""
    speculative = any(cost.accept_length is not None for cost in costs.values())
    if speculative and speculation is None:
        speculation = Speculation(algorithm="EAGLE3", num_steps=3, topk=1, num_draft_tokens=4)
    draft_tokens = (speculation.max_accept_length or 4) - 1 if speculation else 3
    arguments: dict[str, JsonValue] = {"model_path": "/models/llama-8b", "tp_size": tp, "cuda_graph_max_bs": 8}
    return Capture(
        tool_version="0.1.0",
        created=START,
        arm=arm,
        source=Source(kind="probe"),
        server=Server(
            release=release,
            commit=None,
            command=["python", "-m", "sglang.launch_server", "--model-path", "/models/llama-8b"],
            arguments=arguments,
            model=ModelShape(path="/models/llama-8b", architecture="LlamaForCausalLM", layers=32, hidden_size=4096),
            speculation=speculation,
            device="cuda",
            tp=tp,
            attention_backend="triton",
            versions={"torch": "2.11.0+cu130", "cuda": "13.0", "nccl": "2.28.9"},
        ),
        hosts=[
            HostInfo(
                name="h200", driver="580.82.07", gpus=list(gpus) if gpus is not None else [gpu(i) for i in range(tp)]
            )
        ],
        instrumentation=Instrumentation(
            route="plugin",
            layout="B",
            ranks_expected=tp,
            ranks=[Rank(rank=rank, tp=rank, gpu=rank, pid=1000 + rank) for rank in range(tp)],
        ),
        workload=Workload(
            source="built-in prompts",
            endpoint="generate",
            prompts=48,
            max_new_tokens=256,
            temperature=0.0,
            seed=1,
            ignore_eos=False,
            concurrency=list(costs),
            digest="d1",
        ),
        windows=[window(size, cost, seed, range(tp), draft_tokens) for size, cost in costs.items()],
        denials=list(denials),
    )


def pair(
    decode_ms: float = 12.0, verify_ms: float = 29.0, accept_length: float = 2.0, **more: Any
) -> tuple[Capture, Capture]:
    """A baseline and an EAGLE-3 arm at batch 1; the defaults lose as the founding case lost."""
    baseline = capture("baseline", {1: decode(decode_ms - 0.3, gap=0.3)}, seed=1)
    eagle = capture("eagle", {1: cycle(verify_ms, accept_length=accept_length, **more)}, seed=2)
    return baseline, eagle
