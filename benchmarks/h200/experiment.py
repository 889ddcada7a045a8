"""The experiment on a GPU host: every claim of the tool, measured there, part by part.

    python benchmarks/h200/experiment.py --site DIR --out DIR [--part 1,2,3,4] [--limit-s 560]

Parts: 1 baseline and EAGLE-3 at concurrency 1, 4, 8, all graphs; 2 at 12, all eager; 3 the advised flag, and what the
what-if said; 4 a sweep of simulated accept lengths; 5 what watching costs; 6 a mixture of experts; tp2 two GPUs; killed
one of two ranks. Parts 1 to 4 share servers when given together. Each part writes captures (ARM.json), raw steps and
report.txt into a folder of --out, and a part that fails leaves what it has. --dry-run-cpu runs the same code on the
embedded host, with no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import costs
import figures
from arms import ADVISED_GRAPH_MAX, EmbeddedHost, GpuHost, write_models
from running import Arms, Probed

from eaglediag.analysis.comparison import compare
from eaglediag.capture.model import Window
from eaglediag.errors import EaglediagError
from eaglediag.probes.session import Plan, Session
from eaglediag.probes.workload import Load
from eaglediag.reports import markdown

LENGTHS = (1.0, 1.25, 1.5, 1.75, 2.0, 3.0)
PROMPT_TOKENS = 64
NEW_TOKENS = 200
NCCL = ("--tp-size", "2", "--disable-custom-all-reduce")


@dataclass
class Experiment:
    """What all parts share."""

    place: GpuHost | EmbeddedHost
    out: Path
    deadline: float
    port: int
    gpu: bool

    def arms(self, name: str) -> Arms:
        """The folder, log and deadline of one part."""
        folder = self.out / name
        folder.mkdir(parents=True, exist_ok=True)
        arms = Arms(folder, self.deadline, self.out / "experiment.log")
        if not self.gpu:
            arms.stagger_s = 1.0
        return arms

    def plan(
        self,
        arm: str,
        number: int,
        concurrency: tuple[int, ...],
        *,
        speculative: bool,
        profile: bool = False,
        sweep: tuple[float, ...] = (),
        graph_max: int = 8,
        model: str = "dense",
        flags: tuple[str, ...] = (),
    ) -> Plan:
        """One arm's probe; ports are counted up."""
        launch = self.place.launch(
            self.port + number, speculative=speculative, model=model, graph_max=graph_max, flags=flags
        )
        load = Load(
            [],
            concurrency=concurrency,
            requests=(16 if sweep else None) if self.gpu else max(concurrency),
            max_new_tokens=NEW_TOKENS if self.gpu else 24,
            endpoint="generate",
            ignore_eos=True,
            source=f"random ids, {PROMPT_TOKENS} tokens",
            random_input_len=PROMPT_TOKENS,
        )
        return Plan(
            launch,
            load,
            arm,
            ready_timeout_s=max(30.0, self.deadline - time.monotonic() - 60),
            overhead_pairs=0,
            profile_steps=(20 if self.gpu else 3) if profile else 0,
            sweep=sweep,
        )


def dense(run: Experiment, parts: set[str]) -> str:
    """Parts 1 to 4 on the 8B shape."""
    arms = run.arms("dense")
    levels = (*((1, 4, 8) if "1" in parts else ()), *((12,) if parts & {"2", "3"} else ()))
    plans = []
    if levels:
        plans += [
            run.plan("baseline", 0, levels, speculative=False, profile=True),
            run.plan("eagle", 1, levels, speculative=True, profile=True),
        ]
    elif "4" in parts:
        plans.append(run.plan("baseline", 0, (1, 8), speculative=False))
    if "3" in parts:
        plans += [
            run.plan("baseline-advised", 2, (12,), speculative=False, graph_max=ADVISED_GRAPH_MAX),
            run.plan("eagle-advised", 3, (12,), speculative=True, graph_max=ADVISED_GRAPH_MAX),
        ]
    if "4" in parts:
        plans.append(run.plan("sweep", 4, (1, 8), speculative=True, sweep=LENGTHS if run.gpu else (1.0, 2.0, 3.0)))
    probed = arms.probe(plans)
    sections = _sections(probed)
    if "eagle" in probed:
        sections += _judged(run, arms.folder, probed, "baseline", "eagle")
    if "3" in parts:
        sections += _judged(run, arms.folder, probed, "baseline-advised", "eagle-advised")
        sections.append(("what the what-if said, and what was measured", _predicted(probed)))
    if "4" in parts:
        sections.append(("computed break-even against the measured crossing", _crossing(probed)))
    return _report(arms, sections)


def watching(run: Experiment, parts: set[str]) -> str:
    """Part 5."""
    arms = run.arms("costs")
    text = costs.measure(arms, run.place.launch, run.port, (1, 8), 12 if run.gpu else 2, run.gpu)
    return _report(arms, [("what watching costs", text)])


def experts(run: Experiment, parts: set[str]) -> str:
    """Part 6: verifying more tokens loads more experts, so verify costs more than its tokens' share of decode."""
    arms = run.arms("moe")
    levels = (1, 8)
    probed = arms.probe(
        [
            run.plan("moe-baseline", 0, levels, speculative=False, model="moe"),
            run.plan("moe-eagle", 1, levels, speculative=True, model="moe"),
        ]
    )
    return _report(arms, _sections(probed) + _judged(run, arms.folder, probed, "moe-baseline", "moe-eagle"))


def two_gpus(run: Experiment, parts: set[str]) -> str:
    """Part tp2: NCCL and custom all-reduce, both ranks."""
    arms = run.arms("tp2")
    levels = (1, 12) if run.gpu else (1, 4)
    probed = arms.probe(
        [
            run.plan("eagle-nccl", 0, levels, speculative=True, profile=True, flags=NCCL),
            run.plan("eagle-custom", 1, levels, speculative=True, profile=True, flags=NCCL[:2]),
            run.plan("baseline-nccl", 2, levels, speculative=False, profile=True, flags=NCCL),
        ]
    )
    return _report(arms, _sections(probed) + _judged(run, arms.folder, probed, "baseline-nccl", "eagle-nccl"))


def lost_rank(run: Experiment, parts: set[str]) -> str:
    """Part killed: a rank killed while it is measured."""
    arms = run.arms("killed")

    def kill(session: Session) -> None:
        threading.Thread(target=_kill_a_rank, args=(arms, session), daemon=True).start()

    lost = arms.probe([run.plan("rank-killed", 3, (1,), speculative=True, flags=NCCL)], kill)["rank-killed"]
    ranks = lost.capture.instrumentation.ranks
    text = (
        f"ended with: {lost.error or 'no error'}\ncapture: {lost.capture.status}, "
        f"ranks {sum(rank.seen for rank in ranks)}/{lost.capture.instrumentation.ranks_expected}, "
        f"{len(lost.capture.windows)} windows, last words: {lost.capture.server.last_log_lines[-1:]}"
    )
    return _report(arms, [("a rank killed on purpose", text)])


def _kill_a_rank(arms: Arms, session: Session) -> None:
    """Once the session's ranks are known and it measures, end the process of its rank 1."""
    while len(session.ranks) < 2:
        time.sleep(0.2)
    while "rank-killed: measuring" not in arms.log.read_text(encoding="utf-8"):
        time.sleep(0.2)
    time.sleep(0.5)
    pid = int(session.ranks[1]["pid"])
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    arms.say(f"killed rank 1, process {pid}")


def _sections(probed: dict[str, Probed]) -> list[tuple[str, str]]:
    captures = [one.capture for one in probed.values()]
    sections = [
        (
            "steps (ms; device times where there is CUDA; graph: G, eager: e, per phase in order)",
            figures.steps(captures),
        ),
        ("who denied a graph", figures.denials(captures)),
        ("collectives", figures.collectives(captures)),
        ("profiles, and CUDA events against kernel times", figures.profiles(captures)),
        ("GPUs", figures.gpus(captures)),
        ("ranks", figures.skew(captures)),
    ]
    troubles = [f"{one.name}: {one.error}" for one in probed.values() if one.error]
    troubles += [f"{one.name}: {problem.message}" for one in probed.values() for problem in one.capture.problems]
    troubles += [
        f"{one.name} rank {rank.rank}: {refused.target}: {refused.why}"
        for one in probed.values()
        for rank in one.capture.instrumentation.ranks
        for refused in rank.refused
    ]
    troubles += [
        f"{one.name} rank {rank.rank}: {error}"
        for one in probed.values()
        for rank in one.capture.instrumentation.ranks
        for error in rank.errors
    ]
    return [*sections, ("problems", "\n".join(troubles) or "none")]


def _judged(run: Experiment, folder: Path, probed: dict[str, Probed], base: str, other: str) -> list[tuple[str, str]]:
    """The tool's own report of two arms, and its what-if, as a user would get them."""
    title = f"{base} against {other}"
    try:
        result = compare(probed[base].capture, probed[other].capture)
    except EaglediagError as error:
        return [(title, f"no comparison: {error}")]
    text = io.StringIO()
    markdown.render(result, text)
    (folder / f"{base}-{other}.md").write_text(text.getvalue(), encoding="utf-8")
    whatif = _eaglediag(
        "breakeven", str(probed[other].path), "--baseline", str(probed[base].path), "--what-if", "graph"
    )
    return [(title, f"{result.outcome}: {result.headline}"), (f"{title}: what if graphed", whatif)]


def _eaglediag(*words: str) -> str:
    program = [sys.executable, "-c", "from eaglediag.cli import main; main()", *words]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    return f"$ eaglediag {' '.join(words)}\n{done.stdout}{done.stderr}".rstrip()


def _predicted(probed: dict[str, Probed]) -> str:
    """The cycle at 12 as it was (eager) and as it is with the advised flag (graphs)."""
    lines = []
    for name in ("baseline", "eagle", "baseline-advised", "eagle-advised"):
        for window in probed[name].capture.windows if name in probed else ():
            batch = figures.typical(window)
            if window.concurrency == 12 and batch is not None:
                lines.append(f"{name}: {batch.period_ms.mean:.3f} ms a {batch.kind} at batch {batch.batch_size}")
    return "\n".join([*lines, "the advice and the prediction are in the reports above"])


def _crossing(probed: dict[str, Probed]) -> str:
    """Where the sweep's tokens/s meet the baseline's, against cycle time / step time."""
    plain = {window.concurrency: window for window in probed["baseline"].capture.windows}
    lines = []
    for concurrency in (1, 8):
        base = plain.get(concurrency)
        swept = [window for window in probed["sweep"].capture.windows if window.concurrency == concurrency]
        if base is None or base.throughput is None or not swept:
            lines.append(f"concurrency {concurrency}: not measured")
            continue
        points = sorted(
            (window.simulated_accept_length or 0.0, (window.throughput or 0.0) / base.throughput) for window in swept
        )
        shown = ", ".join(f"{length:g}: {ratio:.3f}" for length, ratio in points)
        computed = _break_even(base, swept)
        crossed = _where_one(points)
        apart = f", {100 * (computed / crossed - 1):+.1f} % apart" if computed and crossed else ""
        lines.append(
            f"concurrency {concurrency}: speed-up by accept length {shown}; computed break-even "
            f"{_figure(computed)}, measured crossing {_figure(crossed)}{apart}"
        )
    return "\n".join(lines)


def _break_even(base: Window, swept: Sequence[Window]) -> float | None:
    step = figures.typical(base)
    cycles = [batch.period_ms for window in swept if (batch := figures.typical(window)) and batch.kind == "cycle"]
    if step is None or not cycles:
        return None
    total = sum(cycle.count for cycle in cycles)
    return sum(cycle.mean * cycle.count for cycle in cycles) / total / step.period_ms.mean


def _where_one(points: Sequence[tuple[float, float]]) -> float | None:
    for (low, below), (high, above) in itertools.pairwise(points):
        if below <= 1.0 <= above:
            return low + (high - low) * (1.0 - below) / (above - below)
    return None


def _figure(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _report(arms: Arms, sections: Sequence[tuple[str, str]]) -> str:
    text = "\n\n".join(f"== {title}\n{body}" for title, body in sections) + "\n"
    (arms.folder / "report.txt").write_text(text, encoding="utf-8")
    return text


def main() -> int:
    """Run the parts asked for; 0 when all of them came to their end."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--site", type=Path, help="the folder with SGLang, first on the servers' PYTHONPATH")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", default="1,2,3,4")
    parser.add_argument("--limit-s", type=float, default=560.0, help="all parts together are done by then")
    parser.add_argument("--port", type=int, default=31500)
    parser.add_argument("--dry-run-cpu", action="store_true")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if options.dry_run_cpu:
        place: GpuHost | EmbeddedHost = EmbeddedHost()
    else:
        if options.site is None:
            parser.error("--site is needed on a GPU host")
        write_models(out / "models")
        place = GpuHost(options.site.resolve(), out / "models", sys.executable)
    run = Experiment(place, out, time.monotonic() + options.limit_s, options.port, not options.dry_run_cpu)
    asked = set(options.part.split(","))
    groups: list[tuple[set[str], Callable[[Experiment, set[str]], str]]] = [
        ({"1", "2", "3", "4"}, dense),
        ({"5"}, watching),
        ({"6"}, experts),
        ({"tp2"}, two_gpus),
        ({"killed"}, lost_rank),
    ]
    unknown = asked - set().union(*(names for names, _ in groups))
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    failed = 0
    for names, part in groups:
        if not names & asked:
            continue
        try:
            print(part(run, names & asked), flush=True)
        except Exception:
            failed += 1
            print(traceback.format_exc(), flush=True)
            with (out / "experiment.log").open("a", encoding="utf-8") as log:
                log.write(traceback.format_exc())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
